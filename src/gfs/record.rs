//! The record of a bet: the evidence, its canonical payload and its hash (GFS/1.0 section 6).
//!
//! A record's text is the same for ever. It never carries the server seed: attaching the seed after the reveal would
//! change the payload that was signed before it, so the seed stands beside the record.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::SPEC;
use super::floats;
use super::games::Play;
use super::json;
use super::seed::{ClientSeed, Commitment, decode_hex};
use super::signature::{Signature, SigningKey};

/// The profile of the nine games of GFS/1.0.
pub(super) const PROFILE_SINGLE_PLAYER: &str = "single-player";

/// The profile of outside games: fairledger's own, not of GFS/1.0.
pub(super) const PROFILE_CUSTOM: &str = "custom";

/// The game of a bet whose rules and floats fairledger was not told.
pub const GAME_UNBOUND: &str = "unbound";

/// The most floats that an outside game may bind.
pub const OUTSIDE_FLOATS_MAX: u32 = 1_024;

/// The longest name of an outside game, and of a set of rules, in characters.
pub const NAME_CHARS_MAX: usize = 64;

/// Whether this names an outside game: `x-`, then at least one of `A-Za-z0-9._-`, 64 characters at the most.
#[must_use]
pub fn is_outside_game(name: &str) -> bool {
    name.len() <= NAME_CHARS_MAX
        && name.strip_prefix("x-").is_some_and(|rest| {
            !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        })
}

/// Why something does not name rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// An id that is missing or out of form.
    #[error("the id of rules is 1 to {NAME_CHARS_MAX} characters of A-Za-z0-9._:-")]
    Id,
    /// A hash that is missing or not 64 characters of `[0-9a-f]`.
    #[error("the sha256 of rules is exactly 64 lower-case hexadecimal characters")]
    Sha256,
    /// A member besides the two.
    #[error("rules are named by id and sha256, and nothing else")]
    Unknown,
}

/// The rules of an outside game, bound before its floats are shown: a name, and the hash of their text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>", into = "Map<String, Value>")]
pub struct Rules {
    /// 1 to 64 characters of `A-Za-z0-9._:-`.
    pub id: String,
    /// SHA-256 of the rules' text, whatever the operator keeps as such; 64 lower-case hexadecimal characters in JSON.
    pub sha256: [u8; 32],
}

impl Rules {
    /// Checks the id.
    ///
    /// # Errors
    /// [`RulesError::Id`] for one out of form.
    pub fn new(id: &str, sha256: [u8; 32]) -> Result<Self, RulesError> {
        let form = (1..=NAME_CHARS_MAX).contains(&id.len())
            && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b));
        if form { Ok(Self { id: id.to_owned(), sha256 }) } else { Err(RulesError::Id) }
    }

    /// Reads `{id, sha256}`.
    ///
    /// # Errors
    /// [`RulesError`] for a member missing, out of form or unknown.
    pub fn from_json(map: &Map<String, Value>) -> Result<Self, RulesError> {
        // By hand: a derived reader would take an array for a struct as well.
        let text = |name| map.get(name).and_then(Value::as_str);
        let sha256 = text("sha256").and_then(decode_hex);
        let rules = Self::new(text("id").ok_or(RulesError::Id)?, sha256.ok_or(RulesError::Sha256)?)?;
        if map.len() == 2 { Ok(rules) } else { Err(RulesError::Unknown) }
    }

    /// `{id, sha256}`.
    #[must_use]
    pub fn to_json(&self) -> Map<String, Value> {
        [("id", self.id.clone()), ("sha256", hex::encode(self.sha256))]
            .map(|(name, text)| (name.to_owned(), text.into()))
            .into_iter()
            .collect()
    }
}

impl TryFrom<Map<String, Value>> for Rules {
    type Error = RulesError;

    fn try_from(map: Map<String, Value>) -> Result<Self, RulesError> {
        Self::from_json(&map)
    }
}

impl From<Rules> for Map<String, Value> {
    fn from(rules: Rules) -> Self {
        rules.to_json()
    }
}

/// Whose calculation the record follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Profile {
    /// One of the nine games of GFS/1.0, calculated here.
    SinglePlayer,
    /// An outside game (`x-...`), whose result its engine calculated from our floats.
    Custom {
        /// The rules that were bound before the floats were shown.
        rules: Rules,
        /// How many floats, 1 to [`OUTSIDE_FLOATS_MAX`].
        floats: u32,
    },
    /// The outside game [`GAME_UNBOUND`]: a nonce was handed out, and what it was for is the caller's to know. Written
    /// as `custom`, without rules or floats.
    Unbound,
}

/// What the bet came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The highest digest index used.
    pub cursor: u32,
    /// The result as JSON.
    pub result: Value,
}

/// The record of one bet. Pending while it has no outcome; then it has no signature either.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Whose calculation it follows.
    pub profile: Profile,
    /// A GFS game for [`Profile::SinglePlayer`], an outside game otherwise.
    pub game: String,
    /// The parameters with their defaults filled in.
    pub params: Map<String, Value>,
    /// The server seed's commitment.
    pub commitment: Commitment,
    /// The client seed.
    pub client_seed: ClientSeed,
    /// The nonce, 0 to 2^53 - 1.
    pub nonce: u64,
    /// When the bet was taken, in Unix milliseconds, 0 to 2^53 - 1.
    pub at_ms: i64,
    /// What it came to; `None` while it is pending.
    pub outcome: Option<Outcome>,
    /// The signature over [`Record::payload`].
    pub signature: Option<Signature>,
}

impl Record {
    /// A pending record of a game of GFS/1.0.
    #[must_use]
    pub fn of_play(play: &Play, commitment: Commitment, client_seed: ClientSeed, nonce: u64, at_ms: i64) -> Self {
        Self {
            profile: Profile::SinglePlayer,
            game: play.game().name().to_owned(),
            params: play.params(),
            commitment,
            client_seed,
            nonce,
            at_ms,
            outcome: None,
            signature: None,
        }
    }

    /// The cursor that this record has once it has an outcome, where the record itself says how many floats it takes:
    /// from `floats` for an outside game; `None` for a game of GFS/1.0 (ask [`Play::cursor`]) and an unbound one.
    #[must_use]
    pub const fn bound_cursor(&self) -> Option<u32> {
        match self.profile {
            Profile::Custom { floats, .. } => Some(floats::cursor(floats)),
            Profile::SinglePlayer | Profile::Unbound => None,
        }
    }

    /// Ends a pending record: sets its outcome, and signs it when there is a key.
    pub fn conclude(&mut self, outcome: Outcome, key: Option<&SigningKey>) {
        self.outcome = Some(outcome);
        self.signature = key.map(|key| Signature { bytes: key.sign(self.payload().as_bytes()), signer: key.signer() });
    }

    /// The record as JSON, as GFS/1.0 section 6.1 has it. A pending one has no `result`, `cursor`, `signature` or
    /// `signer`.
    #[must_use]
    pub fn to_json(&self) -> Map<String, Value> {
        debug_assert!(self.outcome.is_some() || self.signature.is_none(), "a pending record is not signed");
        let mut map = self.unsigned();
        if let Some(Signature { bytes, signer }) = &self.signature {
            map.insert("signature".into(), hex::encode(bytes).into());
            map.insert("signer".into(), hex::encode(signer).into());
        }
        map
    }

    fn unsigned(&self) -> Map<String, Value> {
        let mut map = Map::new();
        let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
        put("spec", SPEC.into());
        match &self.profile {
            Profile::SinglePlayer => put("profile", PROFILE_SINGLE_PLAYER.into()),
            Profile::Unbound => put("profile", PROFILE_CUSTOM.into()),
            Profile::Custom { rules, floats } => {
                put("rules", rules.to_json().into());
                put("floats", (*floats).into());
                put("profile", PROFILE_CUSTOM.into())
            }
        };
        put("game", self.game.as_str().into());
        put("params", self.params.clone().into());
        put("commitment", self.commitment.to_string().into());
        put("clientSeed", self.client_seed.as_str().into());
        put("nonce", self.nonce.into());
        put("at", self.at_ms.into());
        if let Some(Outcome { cursor, result }) = &self.outcome {
            put("cursor", (*cursor).into());
            put("result", result.clone());
        }
        map
    }

    /// The canonical JSON of the record without `signature` and `signer`: what is signed and hashed (section 6.3).
    #[must_use]
    pub fn payload(&self) -> String {
        json::canonical_map(&self.unsigned())
    }

    /// `recordHash`: SHA-256 of the payload, as 64 lower-case hexadecimal characters.
    #[must_use]
    pub fn hash(&self) -> String {
        hash(&self.payload())
    }
}

/// SHA-256 of a payload, as hexadecimal characters.
pub(super) fn hash(payload: &str) -> String {
    hex::encode(Sha256::digest(payload.as_bytes()))
}

/// The payload of a record that came as JSON: every field but the two of the signature, unknown ones too.
pub(super) fn payload_of(record: &Map<String, Value>) -> String {
    let mut unsigned = record.clone();
    unsigned.remove("signature");
    unsigned.remove("signer");
    json::canonical_map(&unsigned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gfs::{ServerSeed, signature};
    use serde_json::json;

    fn pending() -> Record {
        let seed = ServerSeed::parse(&"0".repeat(64)).unwrap();
        let play = Play::new("mines", None).unwrap();
        Record::of_play(&play, seed.commitment(), ClientSeed::parse("é").unwrap(), 7, 1_700_000_000_001)
    }

    #[test]
    fn pending_record_has_no_result_cursor_or_signature() {
        let commitment = "60e05bd1b195af2f94112fa7197a5c88289058840ce7c6df9693756bc6250f55";
        let expected = json!({"spec": "GFS/1.0", "profile": "single-player", "game": "mines", "params": {"mines": 3},
            "commitment": commitment, "clientSeed": "é", "nonce": 7, "at": 1_700_000_000_001_i64});
        assert_eq!(Value::Object(pending().to_json()), expected);
    }

    #[test]
    fn concluded_record_is_signed_over_its_payload() {
        let key = SigningKey::generate();
        let mut record = pending();
        record.conclude(Outcome { cursor: 2, result: json!([1, 7, 24]) }, Some(&key));
        let signed = record.to_json();
        assert_eq!(payload_of(&signed), record.payload());
        assert_eq!(hash(&payload_of(&signed)), record.hash());
        assert_eq!(signed["signer"], json!(hex::encode(key.signer())));
        let Signature { bytes, signer } = record.signature.unwrap();
        assert!(signature::verify(record.payload().as_bytes(), &bytes, &signer));
        assert!(!record.payload().contains("sign"));
    }

    #[test]
    fn custom_record_names_its_rules_and_floats() {
        let rules = Rules::new("table:v1.2", [0xab; 32]).unwrap();
        let mut record = pending();
        record.game = "x-craps".into();
        record.profile = Profile::Custom { rules, floats: 17 };
        let map = record.to_json();
        assert_eq!(map["profile"], "custom");
        assert_eq!(map["rules"], json!({"id": "table:v1.2", "sha256": "ab".repeat(32)}));
        assert_eq!(map["floats"], 17);
        assert_eq!(record.bound_cursor(), Some(2));
        record.profile = Profile::Unbound;
        assert_eq!(record.to_json()["profile"], "custom");
        assert!(record.to_json().get("rules").is_none() && record.to_json().get("floats").is_none());
    }

    #[test]
    fn rules_are_strict() {
        let good = json!({"id": "Az09._:-", "sha256": "0f".repeat(32)});
        let rules: Rules = serde_json::from_value(good.clone()).unwrap();
        assert_eq!(serde_json::to_value(&rules).unwrap(), good);
        assert!(Rules::new(&"a".repeat(64), [0; 32]).is_ok());
        for id in ["", "a b", "a/b", "é", &"a".repeat(65)] {
            assert_eq!(Rules::new(id, [0; 32]), Err(RulesError::Id), "{id}");
        }
        for bad in [
            json!({"id": "a"}),
            json!({"id": "a", "sha256": "0F".repeat(32)}),
            json!({"id": "a", "sha256": "0f".repeat(31)}),
            json!({"id": "a", "sha256": "0f".repeat(32), "more": 1}),
            json!(["a", "0f".repeat(32)]),
            json!(null),
        ] {
            assert!(serde_json::from_value::<Rules>(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn outside_games_are_named_x() {
        for name in ["x-a", "x-craps.v2", "x--", &format!("x-{}", "a".repeat(62))] {
            assert!(is_outside_game(name), "{name}");
        }
        for name in ["", "x-", "x", "dice", "X-a", "x-a b", "x-é", "unbound", &format!("x-{}", "a".repeat(63))] {
            assert!(!is_outside_game(name), "{name}");
        }
    }
}
