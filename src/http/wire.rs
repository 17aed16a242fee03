//! How values are read from bodies, paths and queries: straight into the services' checked values, so that a wrong one is refused at
//! the place where it stands and named.
//!
//! Keeps I12: whatever is read here has passed its bound. Nothing here repeats a value that a caller sent.

use chrono::{DateTime, Utc};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{KnownFormat, RefOr, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};
use uuid::Uuid;

use super::problem::Problem;
use crate::gfs::seed::{ClientSeed, Commitment, NONCE_MAX, ServerSeed};
use crate::ledger::{KeyId, SpendId, TokenNonce};
use crate::seeds::model::RevealedSeed;
use crate::seeds::values::{
    BetRef, BoundedJson, Currency, GameName, InvalidValue, JSON_BYTES_MAX, Money, OutsideGame, PlayerRef,
    RESULT_BYTES_MAX, SettlementOutcome, Timestamp, VoidReason,
};

/// Reads a wire type from a value that [`crate::gfs::json::parse`] made.
///
/// # Errors
/// `invalid_request` that names the field.
pub(super) fn read<T: DeserializeOwned>(value: Value) -> Result<T, Problem> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { String::new() } else { path };
        let (field, detail) = fault(path, &error.into_inner().to_string());
        Problem::invalid(&field, detail)
    })
}

/// Says serde's message in the words of the API, and names the field that is missing.
fn fault(path: String, message: &str) -> (String, String) {
    if let Some(name) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        let field = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        return (field, "is required".to_owned());
    }
    // From the right: what stands before it may come from the caller.
    let expected = message.rsplit_once(", expected ").map_or("", |(_, expected)| expected);
    if message.starts_with("unknown field `") {
        let detail = if expected.is_empty() {
            "is unknown here: nothing is taken".to_owned()
        } else {
            format!("is unknown here: what is taken is {}", expected.trim_start_matches("one of "))
        };
        return (path, detail);
    }
    if message.starts_with("unknown variant `") {
        return (path, format!("must be {expected}"));
    }
    if message.starts_with("invalid type: ") || message.starts_with("invalid value: ") {
        let expected = match expected {
            "a map" => "an object",
            "a sequence" => "an array",
            other => other,
        };
        return (path, format!("must be {expected}"));
    }
    (path, message.to_owned())
}

/// A schema of a text.
fn text_schema(description: &str, pattern: Option<&str>, format: Option<KnownFormat>, example: &str) -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::String))
        .description(Some(description))
        .pattern(pattern)
        .format(format.map(SchemaFormat::KnownFormat))
        .examples([Value::from(example)])
        .into()
}

macro_rules! text_schema {
    ($($type:ty: $name:literal, $description:literal, $pattern:expr, $format:expr, $example:literal;)*) => {$(
        impl PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                text_schema($description, $pattern, $format, $example)
            }
        }

        impl ToSchema for $type {
            fn name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }
        }
    )*};
}

const HEX_64: Option<&str> = Some("^[0-9a-f]{64}$");

text_schema! {
    Commitment: "Commitment", "SHA-256 of a server seed's 64 characters", HEX_64, None, "ab37723062965715c5e6eeb54816f909a8e787bd3bfaee67a3cc0a3b90707de7";
    RevealedSeed: "ServerSeed", "A revealed server seed", HEX_64, None, "16d172395dd3c2bd2a52f4eb1755a622b62b5e48972294116b3006a046867c24";
    GivenServerSeed: "GivenServerSeed", "A server seed that the caller knows", HEX_64, None, "16d172395dd3c2bd2a52f4eb1755a622b62b5e48972294116b3006a046867c24";
    ClientSeed: "ClientSeed", "1 to 64 UTF-16 code units without a colon; not normalised", Some("^[^:]{1,64}$"), None, "7d1c0e5a9b3f2d4c6e8f0a1b2c3d4e5f";
    Timestamp: "Timestamp", "RFC 3339, UTC, microseconds", None, Some(KnownFormat::DateTime), "2030-01-31T12:00:00.000000Z";
    KeyId: "KeyId", "The issuer's name for a key", Some("^[A-Za-z0-9._-]{1,64}$"), None, "day-1";
    TokenNonce: "TokenNonce", "A token's nonce: lower-case hex of 16 to 64 bytes", Some("^([0-9a-f]{2}){16,64}$"), None, "00112233445566778899aabbccddeeff";
    SpendId: "SpendId", "A random UUID (version 4), with hyphens: fresh for each admission, never derived from token or message", None, Some(KnownFormat::Uuid), "36802d44-171f-434a-8a9f-20d4921cc03d";
    GivenTime: "Time", "RFC 3339; taken in whole microseconds", None, Some(KnownFormat::DateTime), "2030-01-31T12:00:00Z";
    SessionId: "SessionId", "A UUID with hyphens", None, Some(KnownFormat::Uuid), "0198c1d2-7c3a-7e4b-8a5f-1234567890ab";
    ClientAddress: "ClientAddress", "An IPv4 or IPv6 address; kept only as a keyed hash, and only for the cap", None, None, "192.0.2.7";
    BetRef: "BetRef", "The caller's own name for a bet", Some("^[A-Za-z0-9._:-]{1,64}$"), None, "round-17";
    GameName: "GameName", "A game of GFS/1.0, an outside game (x-...), or unbound: 1 to 64 printable characters", Some(r"^[^\x00-\x1f\x7f-\x9f]{1,64}$"), None, "dice";
    PlayerRef: "PlayerRef", "The operator's own name for a player: 1 to 128 printable characters", Some(r"^[^\x00-\x1f\x7f-\x9f]{1,128}$"), None, "anna";
    Currency: "Currency", "A currency", Some("^[A-Z0-9]{1,16}$"), None, "EUR";
    OutsideGame: "OutsideGame", "The name of an outside game", Some("^x-[A-Za-z0-9._-]{1,62}$"), None, "x-lucky-7";
    VoidReason: "VoidReason", "1 to 200 printable characters; not expired, abandoned or recovery, which are the service's own", Some(r"^[^\x00-\x1f\x7f-\x9f]{1,200}$"), None, "table closed";
    SettlementOutcome: "SettlementOutcome", "The engine's word for what the bet came to: 1 to 64 printable characters", Some(r"^[^\x00-\x1f\x7f-\x9f]{1,64}$"), None, "win";
    Money: "Money", "An amount: a decimal string of at most 38 digits, of which at most 18 after the point",
        Some(r"^(0|[1-9][0-9]*)(\.[0-9]{1,18})?$"), None, "1.50";
}

macro_rules! text_value {
    ($($type:ty),* $(,)?) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
            }
        }
    )*};
}

text_value!(
    BetRef,
    PlayerRef,
    Currency,
    GameName,
    OutsideGame,
    VoidReason,
    SettlementOutcome,
    Money,
    SessionId,
    ClientAddress,
    GivenServerSeed,
);

macro_rules! from_str_value {
    ($($type:ty),* $(,)?) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    )*};
}

from_str_value!(KeyId, TokenNonce, SpendId, GivenTime);

/// A time that a caller sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GivenTime(pub DateTime<Utc>);

impl std::str::FromStr for GivenTime {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        // A leap second has no microsecond of its own in the database.
        let time = DateTime::parse_from_rfc3339(text).ok().filter(|time| time.timestamp_subsec_nanos() < 1_000_000_000);
        time.map(|time| Self(time.to_utc()))
            .ok_or_else(|| InvalidValue("must be an RFC 3339 time such as 2030-01-31T12:00:00.000000Z".to_owned()))
    }
}

/// The id of a session: a UUID written with hyphens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionId(pub Uuid);

impl SessionId {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        // The other forms that the parser takes (braces, URN, no hyphens) would be a second spelling of the same id.
        let form = text.len() == 36;
        let id = Uuid::parse_str(text).ok().filter(|_| form);
        id.map(Self)
            .ok_or_else(|| InvalidValue("must be a UUID such as 0198c1d2-7c3a-7e4b-8a5f-1234567890ab".to_owned()))
    }
}

/// Where a player comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientAddress(pub std::net::IpAddr);

impl ClientAddress {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        text.parse().map(Self).map_err(|_| InvalidValue("must be an IPv4 or IPv6 address".to_owned()))
    }
}

/// A server seed that a caller sends to calculate with.
#[derive(Debug)]
pub(super) struct GivenServerSeed(pub ServerSeed);

impl GivenServerSeed {
    fn parse(text: &str) -> Result<Self, crate::gfs::SeedError> {
        ServerSeed::parse(text).map(Self)
    }
}

/// A whole number within bounds, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Integer<const MIN: u64, const MAX: u64>(pub u64);

/// A nonce, 0 to 2^53 - 1.
pub(super) type Nonce = Integer<0, NONCE_MAX>;

impl<const MIN: u64, const MAX: u64> Integer<MIN, MAX> {
    fn within(number: Option<u64>) -> Result<Self, InvalidValue> {
        let number = number.filter(|number| (MIN..=MAX).contains(number));
        number.map(Self).ok_or_else(|| InvalidValue(format!("must be a whole number from {MIN} to {MAX}")))
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Integer<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A value that the strict reader made: whole numbers within 2^53 are integers there, whatever their spelling.
        Self::within(Value::deserialize(deserializer)?.as_u64()).map_err(D::Error::custom)
    }
}

impl<const MIN: u64, const MAX: u64> PartialSchema for Integer<MIN, MAX> {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(SchemaType::Type(Type::Integer))
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
            .minimum(Some(MIN))
            .maximum(Some(MAX))
            .into()
    }
}

impl<const MIN: u64, const MAX: u64> ToSchema for Integer<MIN, MAX> {
    fn name() -> std::borrow::Cow<'static, str> {
        match (MIN, MAX) {
            (0, NONCE_MAX) => "Nonce".into(),
            _ => format!("Integer{MIN}To{MAX}").into(),
        }
    }
}

/// The same as it stands in a path or a query: digits, no sign, no leading zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digits<const MIN: u64, const MAX: u64>(pub u64);

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Digits<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let form = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
        let number = text.parse().ok().filter(|_| form);
        Integer::<MIN, MAX>::within(number).map(|Integer(number)| Self(number)).map_err(D::Error::custom)
    }
}

impl<const MIN: u64, const MAX: u64> PartialSchema for Digits<MIN, MAX> {
    fn schema() -> RefOr<Schema> {
        Integer::<MIN, MAX>::schema()
    }
}

impl<const MIN: u64, const MAX: u64> ToSchema for Digits<MIN, MAX> {
    fn name() -> std::borrow::Cow<'static, str> {
        Integer::<MIN, MAX>::name()
    }
}

/// A nonce in a path.
pub(super) type NonceDigits = Digits<0, NONCE_MAX>;

/// Any JSON, up to a length of its canonical text in bytes.
#[derive(Clone, Debug)]
pub(super) struct FreeForm<const BYTES_MAX: usize>(pub BoundedJson);

/// A free-form field. An alias, because the derives of utoipa take type parameters for types of their own.
pub(super) type Json4KiB = FreeForm<JSON_BYTES_MAX>;

/// The result of an outside game.
pub(super) type Json16KiB = FreeForm<RESULT_BYTES_MAX>;

impl<'de, const BYTES_MAX: usize> Deserialize<'de> for FreeForm<BYTES_MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        BoundedJson::new(value, BYTES_MAX).map(Self).map_err(D::Error::custom)
    }
}

impl<const BYTES_MAX: usize> PartialSchema for FreeForm<BYTES_MAX> {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(SchemaType::AnyValue)
            .description(Some(format!("Any JSON, up to {BYTES_MAX} bytes as canonical JSON")))
            .into()
    }
}

impl<const BYTES_MAX: usize> ToSchema for FreeForm<BYTES_MAX> {
    fn name() -> std::borrow::Cow<'static, str> {
        format!("AnyJsonUpTo{BYTES_MAX}Bytes").into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Inner {
        #[allow(dead_code, reason = "read, not used")]
        some_flag: bool,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
    struct Body {
        #[allow(dead_code, reason = "read, not used")]
        nonce: Option<Nonce>,
        #[allow(dead_code, reason = "read, not used")]
        bet_ref: BetRef,
        #[serde(default)]
        #[allow(dead_code, reason = "read, not used")]
        inner: Vec<Inner>,
    }

    fn refusal(value: Value) -> (Value, String) {
        let body = read::<Body>(value).expect_err("must be refused").body("r");
        assert_eq!(body["code"], "invalid_request");
        (body["field"].clone(), body["detail"].as_str().unwrap().to_owned())
    }

    #[test]
    fn every_refusal_names_its_field() {
        for (value, field, detail) in [
            (json!({}), json!("betRef"), "is required"),
            (json!(5), json!(null), "must be an object"),
            (json!({"betRef": 5}), json!("betRef"), "must be a string"),
            (json!({"betRef": null}), json!("betRef"), "must be a string"),
            (json!({"betRef": "a b"}), json!("betRef"), "must be 1 to 64 characters"),
            (json!({"betRef": "a", "nonce": 1.5}), json!("nonce"), "must be a whole number from 0 to 9007199254740991"),
            (json!({"betRef": "a", "nonce": 9_007_199_254_740_992_u64}), json!("nonce"), "must be a whole number"),
            (json!({"betRef": "a", "nonce": -1}), json!("nonce"), "must be a whole number"),
            (json!({"betRef": "a", "nonce": "1"}), json!("nonce"), "must be a whole number"),
            (
                json!({"betRef": "a", "more": 1}),
                json!("more"),
                "is unknown here: what is taken is `nonce`, `betRef`, `inner`",
            ),
            (json!({"betRef": "a", "inner": {}}), json!("inner"), "must be an array"),
            (json!({"betRef": "a", "inner": [{"someFlag": 1}]}), json!("inner[0].someFlag"), "must be a boolean"),
            (json!({"betRef": "a", "inner": [{"someFlag": true}, {}]}), json!("inner[1].someFlag"), "is required"),
            (json!({"betRef": "a", "inner": [{"x": true}]}), json!("inner[0].x"), "is unknown here"),
        ] {
            let (named, said) = refusal(value.clone());
            assert_eq!(named, field, "{value}");
            assert!(said.starts_with(detail), "{value}: {said}");
        }
    }

    #[test]
    fn no_refusal_repeats_what_was_sent() {
        for value in [
            json!({"betRef": "s3cret value"}),
            json!({"betRef": ["s3cret"]}),
            json!({"betRef": "a", "inner": "s3cret, expected s3cret"}),
            json!({"betRef": "a", "inner": [{"someFlag": "s3cret"}]}),
            json!("s3cret"),
        ] {
            let (_, said) = refusal(value.clone());
            assert!(!said.contains("s3cret"), "{value}: {said}");
        }
    }

    #[test]
    fn numbers_in_paths_have_one_spelling() {
        let read = |text: &str| serde_json::from_value::<Digits<0, NONCE_MAX>>(json!(text)).map(|digits| digits.0).ok();
        assert_eq!(read("0"), Some(0));
        assert_eq!(read("9007199254740991"), Some(NONCE_MAX));
        for bad in ["", "9007199254740992", "+1", "-1", "01", "1.0", "1e3", " 1", "x", "18446744073709551616"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_session_id_has_one_form() {
        let id = "0198c1d2-7c3a-7e4b-8a5f-1234567890ab";
        assert!(SessionId::parse(id).is_ok());
        for bad in ["", "x", &id.replace('-', ""), &format!("{{{id}}}"), &format!("urn:uuid:{id}"), &format!("{id} ")] {
            assert!(SessionId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn free_form_json_is_bounded() {
        let read = |bytes: usize| serde_json::from_value::<FreeForm<16>>(json!("x".repeat(bytes))).is_ok();
        assert!(read(14));
        assert!(!read(15));
    }
}
