//! What names a token and its spend, checked once where it is made.
//!
//! Keeps I13: nonces and spend ids do not show in `Debug`, and errors about them do not repeat them. Keeps I12: every text has a bound.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Datelike as _, SubsecRound as _, Utc};
use serde::{Serialize, Serializer};
use uuid::{Builder, Uuid, Variant};

use crate::db::spends::SpendRow;

/// The shortest nonce, in bytes.
pub const NONCE_BYTES_MIN: usize = 16;

/// The longest nonce, in bytes.
pub const NONCE_BYTES_MAX: usize = 64;

/// Why a value was refused, in words for its sender, without the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidToken(&'static str);

/// The issuer's name for a key: 1 to 64 characters of `A-Za-z0-9._-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct KeyId(String);

impl KeyId {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for KeyId {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidToken("must be 1 to 64 characters of A-Z, a-z, 0-9, '.', '_' and '-'"))
        }
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A token's nonce, 16 to 64 bytes; as text, lower-case hex.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenNonce(Box<[u8]>);

impl TokenNonce {
    /// From bytes.
    ///
    /// # Errors
    /// Fewer or more bytes than a nonce may have.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, InvalidToken> {
        if (NONCE_BYTES_MIN..=NONCE_BYTES_MAX).contains(&bytes.len()) {
            Ok(Self(bytes.into()))
        } else {
            Err(InvalidToken("must be 16 to 64 bytes"))
        }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl FromStr for TokenNonce {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        const FORM: InvalidToken = InvalidToken("must be lower-case hex of 16 to 64 bytes");
        // One token, one text: were upper case accepted, whoever compares texts elsewhere would take one token for two.
        if !(2 * NONCE_BYTES_MIN..=2 * NONCE_BYTES_MAX).contains(&text.len())
            || text.bytes().any(|b| b.is_ascii_uppercase())
        {
            return Err(FORM);
        }
        hex::decode(text).map(|bytes| Self(bytes.into())).map_err(|_| FORM)
    }
}

impl fmt::Debug for TokenNonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenNonce(..)")
    }
}

/// The spender's own name for one admission: fresh randomness, never derived from the token or the message.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpendId(Uuid);

impl SpendId {
    /// A new one.
    pub fn random() -> Self {
        // By this thread's generator, which asks the kernel for randomness now and then instead of every time.
        Self(Builder::from_random_bytes(rand::random()).into_uuid())
    }

    /// The UUID, to be sent and stored.
    pub fn as_uuid(self) -> Uuid {
        self.0
    }
}

impl TryFrom<Uuid> for SpendId {
    type Error = InvalidToken;

    /// A UUID of another version was made from something: a time, a name, an address. It would tell of it.
    fn try_from(id: Uuid) -> Result<Self, InvalidToken> {
        if id.get_version_num() == 4 && id.get_variant() == Variant::RFC4122 {
            Ok(Self(id))
        } else {
            Err(InvalidToken("must be a random UUID (version 4)"))
        }
    }
}

impl FromStr for SpendId {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        // The other forms that the parser takes (braces, URN, no hyphens) would be a second spelling of the same id.
        let id = Uuid::try_parse(text).ok().filter(|_| text.len() == 36);
        id.ok_or(InvalidToken("must be a random UUID (version 4), with hyphens")).and_then(Self::try_from)
    }
}

impl fmt::Debug for SpendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpendId(..)")
    }
}

impl Serialize for SpendId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// A single-use token, as far as the ledger is concerned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// The key it was issued under.
    pub key_id: KeyId,
    /// What tells it from the key's other tokens.
    pub nonce: TokenNonce,
}

/// A token, and the admission it is spent for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spend {
    /// The token.
    pub token: Token,
    /// The admission. The same again asks about the same spend.
    pub spend_id: SpendId,
}

impl Spend {
    /// A token to be spent for a new admission.
    pub fn new(token: Token) -> Self {
        Self { token, spend_id: SpendId::random() }
    }

    pub(super) fn row(&self) -> SpendRow<'_> {
        SpendRow {
            key_id: self.token.key_id.as_str(),
            nonce: self.token.nonce.as_bytes(),
            spend_id: self.spend_id.as_uuid(),
        }
    }
}

/// A time as the ledger keeps it, in whole microseconds; none when it has no four-digit year, as RFC 3339 needs it.
pub(super) fn stored_time(time: DateTime<Utc>) -> Option<DateTime<Utc>> {
    (1..=9999).contains(&time.year()).then(|| time.trunc_subsecs(6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces_have_one_text() {
        for bytes in [16, 17, 64] {
            let text = "0f".repeat(bytes);
            let nonce: TokenNonce = text.parse().unwrap();
            assert_eq!(hex::encode(nonce.as_bytes()), text);
        }
        let bad = [
            "0f".repeat(15),
            "0f".repeat(65),
            "0F".repeat(16),
            "0g".repeat(16),
            format!("{}0", "0f".repeat(16)),
            String::new(),
        ];
        for bad in bad {
            assert!(bad.parse::<TokenNonce>().is_err(), "{bad:?}");
        }
        assert!(TokenNonce::from_bytes(&[0; 15]).is_err() && TokenNonce::from_bytes(&[0; 65]).is_err());
    }

    #[test]
    fn key_ids_end_at_their_bounds() {
        for good in ["a", "2026-01-31.a_B", &"k".repeat(64)] {
            assert_eq!(good.parse::<KeyId>().unwrap().as_str(), good);
        }
        for bad in ["", "a b", "a/b", "é", "a:b", &"k".repeat(65)] {
            assert!(bad.parse::<KeyId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn spend_ids_are_random_ones() {
        assert!(SpendId::try_from(Uuid::new_v4()).is_ok());
        for bad in [Uuid::now_v7(), Uuid::nil(), Uuid::max()] {
            assert!(SpendId::try_from(bad).is_err());
        }
    }

    #[test]
    fn i13_debug_shows_neither_nonce_nor_spend_id() {
        let token = Token { key_id: "k".parse().unwrap(), nonce: TokenNonce::from_bytes(&[0xab; 16]).unwrap() };
        let spend = Spend::new(token);
        let shown = format!("{spend:?}").to_lowercase();
        assert!(
            !shown.contains("abab") && !shown.contains("171") && !shown.contains(&spend.spend_id.0.to_string()),
            "{shown}"
        );
    }
}
