//! The small values that callers send: each is checked once, where it is made, and cannot be wrong afterwards.
//!
//! Keeps I12: every text and number has a bound.

use std::str::FromStr;

use bigdecimal::BigDecimal;
use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::gfs::json;
use crate::gfs::record::is_outside_game;

/// The longest canonical JSON of a free-form field (selection, context, displayed, rules, step), in bytes.
pub const JSON_BYTES_MAX: usize = 4 * 1024;

/// The longest canonical JSON of an outside game's result, in bytes.
pub const RESULT_BYTES_MAX: usize = 16 * 1024;

/// Why a value was refused, in words for its sender.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidValue(pub String);

macro_rules! text_value {
    ($(#[$doc:meta])* $name:ident, $form:literal, |$text:ident| $valid:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Checks a text.
            ///
            /// # Errors
            /// A text of another form.
            pub fn parse($text: &str) -> Result<Self, InvalidValue> {
                if $valid { Ok(Self($text.to_owned())) } else { Err(InvalidValue(concat!("must be ", $form).to_owned())) }
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

fn chars_between(text: &str, max: usize, allowed: impl Fn(char) -> bool) -> bool {
    !text.is_empty() && text.chars().nth(max).is_none() && text.chars().all(allowed)
}

text_value! {
    /// The caller's own name for a bet.
    BetRef, "1 to 64 characters of A-Z, a-z, 0-9, '.', '_', '-' and ':'",
    |text| chars_between(text, 64, |c| c.is_ascii_alphanumeric() || "._-:".contains(c))
}
text_value! {
    /// The operator's own name for a player.
    PlayerRef, "1 to 128 printable characters",
    |text| chars_between(text, 128, |c| !c.is_control())
}
text_value! {
    /// A currency.
    Currency, "1 to 16 characters of A-Z and 0-9",
    |text| chars_between(text, 16, |c| c.is_ascii_uppercase() || c.is_ascii_digit())
}
text_value! {
    /// The name of an outside game.
    OutsideGame, "x- and then 1 to 62 characters of A-Z, a-z, 0-9, '.', '_' and '-'",
    |text| is_outside_game(text)
}
text_value! {
    /// The name of any game.
    GameName, "1 to 64 printable characters",
    |text| chars_between(text, 64, |c| !c.is_control())
}
text_value! {
    /// Why a bet is voided. The words that the service itself uses are refused.
    VoidReason, "1 to 200 printable characters, and none of: expired, abandoned, recovery",
    |text| chars_between(text, 200, |c| !c.is_control()) && !["expired", "abandoned", "recovery"].contains(&text)
}
text_value! {
    /// The engine's word for what a bet came to.
    SettlementOutcome, "1 to 64 printable characters",
    |text| chars_between(text, 64, |c| !c.is_control())
}

/// An amount of money: not negative, at most 38 digits, of which at most 18 after the point. Compared as a number: 1.5 is 1.50.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Money(BigDecimal);

impl Money {
    /// Reads a decimal string.
    ///
    /// # Errors
    /// Anything but plain decimal notation within the bounds.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let invalid = || {
            InvalidValue(
                "must be a decimal string such as \"12.50\": not negative, at most 38 digits, of which at most 18 after the point"
                    .to_owned(),
            )
        };
        let (whole, fraction) = text.split_once('.').map_or((text, None), |(whole, fraction)| (whole, Some(fraction)));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let fraction_len = fraction.map_or(0, str::len);
        let well_formed = digits(whole)
            && fraction.is_none_or(digits)
            && (whole == "0" || !whole.starts_with('0'))
            && whole.len() + fraction_len <= 38
            && fraction_len <= 18;
        if !well_formed {
            return Err(invalid());
        }
        BigDecimal::from_str(text).map(Self).map_err(|_| invalid())
    }

    /// The number.
    pub fn as_decimal(&self) -> &BigDecimal {
        &self.0
    }
}

/// A stored amount as it goes over the wire: digits as they were sent, never an exponent.
pub fn money_text(amount: &BigDecimal) -> String {
    amount.to_plain_string()
}

/// Free-form JSON within its bound, with its canonical text.
#[derive(Clone, Debug, PartialEq)]
pub struct BoundedJson {
    value: Value,
    canonical: String,
}

impl BoundedJson {
    /// Checks the length of the canonical text.
    ///
    /// # Errors
    /// A longer one.
    pub fn new(value: Value, bytes_max: usize) -> Result<Self, InvalidValue> {
        let value = json::normalised(&value);
        let canonical = json::canonical(&value);
        if canonical.len() > bytes_max {
            return Err(InvalidValue(format!("must be at most {bytes_max} bytes as canonical JSON")));
        }
        Ok(Self { value, canonical })
    }

    /// The value.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Its canonical text.
    pub fn canonical(&self) -> &str {
        &self.canonical
    }
}

/// A time as answers show it: RFC 3339, UTC, microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub DateTime<Utc>);

impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.to_rfc3339_opts(SecondsFormat::Micros, true))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Only the form that answers show, so that one instant has one text.
impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time = DateTime::parse_from_rfc3339(&text).ok().map(|time| Self(time.to_utc()));
        time.filter(|time| time.to_string() == text)
            .ok_or_else(|| serde::de::Error::custom("must be a time such as 2030-01-31T00:00:00.000000Z"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_outside_its_bounds_is_refused() {
        for good in ["0", "1", "12.50", "0.000000000000000001", "99999999999999999999999999999999999999"] {
            assert_eq!(money_text(Money::parse(good).unwrap().as_decimal()), good);
        }
        let bad = [
            "",
            ".",
            "1.",
            ".5",
            "-1",
            "+1",
            "1e3",
            " 1",
            "01",
            "00.1",
            "1,5",
            "NaN",
            "0.0000000000000000001",
            "999999999999999999999999999999999999999",
            "123456789012345678901.123456789012345678",
        ];
        for bad in bad {
            assert!(Money::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn money_compares_as_a_number() {
        assert_eq!(Money::parse("1.5").unwrap(), Money::parse("1.50").unwrap());
        assert_ne!(Money::parse("1.5").unwrap(), Money::parse("1.51").unwrap());
    }

    #[test]
    fn texts_end_at_their_bounds() {
        assert!(BetRef::parse(&"a".repeat(64)).is_ok());
        assert!(BetRef::parse(&"a".repeat(65)).is_err());
        assert!(BetRef::parse("").is_err());
        assert!(BetRef::parse("a b").is_err());
        assert!(PlayerRef::parse(&"ä".repeat(128)).is_ok());
        assert!(PlayerRef::parse("a\u{7f}").is_err());
        assert!(OutsideGame::parse("x-Crash2").is_ok());
        assert!(OutsideGame::parse("crash2").is_err());
        assert!(VoidReason::parse("expired").is_err());
    }

    #[test]
    fn times_have_six_digits_and_a_z() {
        let time = DateTime::parse_from_rfc3339("2026-01-02T03:04:05.000007Z").unwrap().with_timezone(&Utc);
        assert_eq!(Timestamp(time).to_string(), "2026-01-02T03:04:05.000007Z");
    }
}
