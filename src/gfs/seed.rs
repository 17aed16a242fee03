//! Server seeds, their commitments, and client seeds (GFS/1.0 section 2).
//!
//! Keeps I6: a [`ServerSeed`] shows itself only through [`ServerSeed::expose`], and its memory is wiped when dropped.
//! Every hash is over *text*: a seed is hashed as its 64 characters, never as the 32 bytes that they spell.

use std::fmt;
use std::str::FromStr;

use rand::Rng;
use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// The highest nonce, 2^53 - 1: the last integer that every JSON reader keeps exactly. It can be verified, but is never
/// handed out, because the counter after it could not be written.
pub const NONCE_MAX: u64 = (1 << 53) - 1;

/// The longest client seed, in UTF-16 code units (the length that JavaScript reports).
pub const CLIENT_SEED_UNITS_MAX: usize = 64;

/// Why a text is not a seed or a commitment. Never carries the text itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SeedError {
    /// A server seed that is not 64 characters of `[0-9a-f]`.
    #[error("a server seed is exactly 64 lower-case hexadecimal characters")]
    ServerSeed,
    /// A commitment that is not 64 characters of `[0-9a-f]`.
    #[error("a commitment is exactly 64 lower-case hexadecimal characters")]
    Commitment,
    /// A client seed of no or too many UTF-16 code units.
    #[error("a client seed is 1 to {CLIENT_SEED_UNITS_MAX} UTF-16 code units")]
    ClientSeedLength,
    /// A client seed with a colon, which would make the hashed message ambiguous.
    #[error("a client seed holds no colon")]
    ClientSeedColon,
}

/// Reads exactly `N` bytes from lower-case hex; upper case is refused, never repaired.
pub(super) fn decode_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.bytes().any(|b| b.is_ascii_uppercase()) {
        return None;
    }
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).ok()?;
    Some(bytes)
}

/// Fills an array from the operating system's generator.
///
/// # Panics
/// When the operating system has no randomness to give: no seed or key may be made without it.
pub(super) fn random<const N: usize>() -> Zeroizing<[u8; N]> {
    let mut bytes = Zeroizing::new([0; N]);
    UnwrapErr(SysRng).fill_bytes(bytes.as_mut());
    bytes
}

/// A server seed: 64 characters `[0-9a-f]`, spelling 32 random bytes (GFS/1.0 section 2.1).
///
/// Has no `Display` and no `Serialize`, and its `Debug` redacts. Two seeds are compared in constant time.
#[derive(Clone)]
pub struct ServerSeed(Zeroizing<String>);

impl ServerSeed {
    /// Makes a seed from the operating system's generator.
    ///
    /// # Panics
    /// When the operating system has no randomness to give.
    #[must_use]
    pub fn generate() -> Self {
        Self::from_bytes(&random())
    }

    /// Takes a seed as its text.
    ///
    /// # Errors
    /// [`SeedError::ServerSeed`] unless the text is 64 characters of `[0-9a-f]`.
    pub fn parse(text: &str) -> Result<Self, SeedError> {
        let form = text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if form { Ok(Self(Zeroizing::new(text.to_owned()))) } else { Err(SeedError::ServerSeed) }
    }

    /// Takes a seed as the 32 bytes that its text spells, the form in which it is sealed.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        Self(Zeroizing::new(hex::encode(bytes)))
    }

    /// The 32 bytes that the text spells.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<[u8; 32]> {
        let mut bytes = Zeroizing::new([0; 32]);
        // Cannot fail: both constructors leave exactly 64 hexadecimal characters.
        hex::decode_to_slice(self.0.as_bytes(), bytes.as_mut()).expect("a server seed is 64 hexadecimal characters");
        bytes
    }

    /// SHA-256 over the 64 characters.
    #[must_use]
    pub fn commitment(&self) -> Commitment {
        Commitment(Sha256::digest(self.0.as_bytes()).into())
    }

    /// The text in clear. The one way out: search for its callers to see where seeds can leak.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ServerSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerSeed(redacted)")
    }
}

impl PartialEq for ServerSeed {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for ServerSeed {}

/// The published hash of a server seed; written as 64 lower-case hexadecimal characters (GFS/1.0 section 2.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Commitment([u8; 32]);

impl Commitment {
    /// Takes the hash as its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The hash as its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Commitment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&hex::encode(self.0))
    }
}

impl fmt::Debug for Commitment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Commitment {
    type Err = SeedError;

    fn from_str(text: &str) -> Result<Self, SeedError> {
        decode_hex(text).map(Self).ok_or(SeedError::Commitment)
    }
}

impl Serialize for Commitment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Commitment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // An owned string, because a borrowed one cannot be had from every source (escapes, readers, values).
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A client seed: 1 to 64 UTF-16 code units without a colon, otherwise any text, kept as given without Unicode
/// normalisation (GFS/1.0 section 2.2). A Rust string is well-formed, so a lone surrogate cannot arrive here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClientSeed(String);

impl ClientSeed {
    /// Takes a seed as its text.
    ///
    /// # Errors
    /// [`SeedError::ClientSeedLength`] outside 1 to 64 UTF-16 code units, [`SeedError::ClientSeedColon`] with a colon.
    pub fn parse(text: &str) -> Result<Self, SeedError> {
        // Counting stops at the first unit too many, so a long text costs no more than a short one.
        let units = text.encode_utf16().take(CLIENT_SEED_UNITS_MAX + 1).count();
        if units == 0 || units > CLIENT_SEED_UNITS_MAX {
            return Err(SeedError::ClientSeedLength);
        }
        if text.contains(':') {
            return Err(SeedError::ClientSeedColon);
        }
        Ok(Self(text.to_owned()))
    }

    /// Makes a seed of 16 random bytes, as 32 lower-case hexadecimal characters.
    ///
    /// # Panics
    /// When the operating system has no randomness to give.
    #[must_use]
    pub fn generate() -> Self {
        Self(hex::encode(*random::<16>()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClientSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl<'de> Deserialize<'de> for ClientSeed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: &str = "5c1f7d3e8a2b4c6d9e0f1a2b3c4d5e6f7a8b9c0d1e2f3a4b5c6d7e8f9a0b1c2d";

    #[test]
    fn commitment_hashes_the_characters_not_the_bytes() {
        // The worked example of the specification, section 3.3.
        let commitment = ServerSeed::parse(SEED).unwrap().commitment();
        assert_eq!(commitment.to_string(), "ab37723062965715c5e6eeb54816f909a8e787bd3bfaee67a3cc0a3b90707de7");
        assert_ne!(commitment.as_bytes(), &<[u8; 32]>::from(Sha256::digest(hex::decode(SEED).unwrap())));
    }

    #[test]
    fn server_seed_outside_its_form_is_refused() {
        let upper = SEED.to_uppercase();
        let long = format!("{SEED}0");
        let sign = format!("+{}", &SEED[1..]);
        for text in
            ["", &SEED[1..], &long, &upper, &sign, &SEED.replace('c', "g"), &format!(" {SEED}"), &"é".repeat(32)]
        {
            assert_eq!(ServerSeed::parse(text), Err(SeedError::ServerSeed), "{text}");
        }
    }

    #[test]
    fn server_seed_survives_its_bytes() {
        let seed = ServerSeed::generate();
        assert_eq!(ServerSeed::from_bytes(&seed.to_bytes()), seed);
        assert_eq!(ServerSeed::parse(seed.expose()), Ok(seed.clone()));
        assert_ne!(ServerSeed::generate(), seed);
    }

    #[test]
    fn server_seed_debug_redacts_i6() {
        let seed = ServerSeed::parse(SEED).unwrap();
        assert_eq!(format!("{seed:?} {:#?}", Some(&seed)), "ServerSeed(redacted) Some(\n    ServerSeed(redacted),\n)");
    }

    #[test]
    fn commitment_reads_only_what_it_writes() {
        let commitment = ServerSeed::parse(SEED).unwrap().commitment();
        let text = serde_json::to_string(&commitment).unwrap();
        assert_eq!(serde_json::from_str::<Commitment>(&text).unwrap(), commitment);
        for bad in [text.to_uppercase(), text.replace("ab", ""), "null".into(), "7".into()] {
            assert!(serde_json::from_str::<Commitment>(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn client_seed_length_counts_utf16_units() {
        for (text, good) in [
            (String::new(), false),
            ("a".into(), true),
            ("a".repeat(64), true),
            ("a".repeat(65), false),
            ("€".repeat(64), true),  // one unit, three bytes
            ("😀".repeat(32), true), // two units, four bytes
            ("😀".repeat(33), false),
            (format!("{}a", "😀".repeat(32)), false),
        ] {
            assert_eq!(ClientSeed::parse(&text).is_ok(), good, "{text}");
        }
        assert_eq!(ClientSeed::parse("a:b"), Err(SeedError::ClientSeedColon));
        assert_eq!(ClientSeed::parse(&"é".repeat(65)), Err(SeedError::ClientSeedLength));
    }

    #[test]
    fn client_seed_is_not_normalised() {
        let composed = ClientSeed::parse("\u{e9}").unwrap();
        assert_ne!(composed, ClientSeed::parse("e\u{301}").unwrap());
        assert_eq!(serde_json::from_str::<ClientSeed>("\"\u{e9}\"").unwrap(), composed);
        assert!(serde_json::from_str::<ClientSeed>("\"a:b\"").is_err());
    }

    #[test]
    fn generated_client_seed_is_32_hexadecimal_characters() {
        let seed = ClientSeed::generate();
        assert!(decode_hex::<16>(seed.as_str()).is_some());
        assert_ne!(seed, ClientSeed::generate());
    }
}
