//! Server seeds at rest: sealed with XChaCha20-Poly1305 under a ring of keys.
//!
//! Keeps I6 (outside this process an unrevealed seed is only ever sealed) and I7 (what is opened hashes to its commitment, or the
//! read fails). The associated data binds a seal to its purpose, form, key, session and commitment, so that a seal copied into another
//! row does not open there.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use uuid::Uuid;
use zeroize::{Zeroize as _, Zeroizing};

use crate::db::seeds::SealedSeed;
use crate::db::{DbError, corrupt};
use crate::gfs::seed::{Commitment, ServerSeed};

const VERSION: u8 = 1;
const NONCE_BYTES: usize = 24;
const CHECK_TEXT: [u8; 16] = *b"fairledger check";

/// A ring that cannot be read. Says which entry, never its bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed keys: {0}")]
pub struct KeyRingError(String);

struct RingKey {
    id: String,
    cipher: XChaCha20Poly1305,
}

/// The keys that seal server seeds. The first seals; all of them open.
pub struct KeyRing {
    keys: Vec<RingKey>,
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|key| &key.id)).finish()
    }
}

impl KeyRing {
    /// Reads `id:base64` entries, separated by commas or white space. The first is the one that seals.
    ///
    /// # Errors
    /// No entry, an id out of form or twice, or a key that is not 32 bytes.
    pub fn parse(text: &str) -> Result<Self, KeyRingError> {
        let mut keys: Vec<RingKey> = Vec::new();
        let entries = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|entry| !entry.is_empty());
        for (entry, number) in entries.zip(1..) {
            let error = |detail: &str| KeyRingError(format!("entry {number}: {detail}"));
            let (id, key) = entry.split_once(':').ok_or_else(|| error("must be id:base64"))?;
            let id_fits = !id.is_empty()
                && id.len() <= 32
                && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
            if !id_fits {
                return Err(error("the id must be 1 to 32 characters of A-Z, a-z, 0-9, '.', '_' and '-'"));
            }
            if keys.iter().any(|known| known.id == id) {
                return Err(error("the id is there twice"));
            }
            let bytes = Zeroizing::new(STANDARD.decode(key).map_err(|_| error("the key is not base64"))?);
            let bytes: &[u8; 32] = bytes
                .as_slice()
                .try_into()
                .map_err(|_| error("the key must be 32 bytes, such as from `openssl rand -base64 32`"))?;
            keys.push(RingKey { id: id.to_owned(), cipher: XChaCha20Poly1305::new(&Key::from(*bytes)) });
        }
        if keys.is_empty() {
            return Err(KeyRingError("no key is given".to_owned()));
        }
        Ok(Self { keys })
    }

    /// One new entry of random bytes, for a ring that does not exist yet.
    pub fn generate_entry(id: &str) -> Zeroizing<String> {
        let mut bytes: [u8; 32] = rand::random();
        let entry = Zeroizing::new(format!("{id}:{}", STANDARD.encode(bytes)));
        bytes.zeroize();
        entry
    }

    /// Name of the key that seals.
    pub fn sealing_key_id(&self) -> &str {
        &self.sealing_key().id
    }

    fn sealing_key(&self) -> &RingKey {
        // `parse` is the only way to a ring and refuses an empty one.
        &self.keys[0]
    }

    /// Seals a server seed for its row.
    pub fn seal(&self, session_id: Uuid, commitment: &Commitment, seed: &ServerSeed) -> SealedSeed {
        let key = self.sealing_key();
        let associated = associated_data(&key.id, session_id, commitment);
        SealedSeed { key_id: key.id.clone(), bytes: encrypt(&key.cipher, seed.to_bytes().as_slice(), &associated) }
    }

    /// Opens a seal and checks the seed against its commitment.
    ///
    /// # Errors
    /// A key that is not on the ring; corruption: a seal that does not open here, or a seed that is not the committed one.
    pub fn open(&self, session_id: Uuid, commitment: &Commitment, sealed: &SealedSeed) -> Result<ServerSeed, DbError> {
        let what = "sealed seed";
        let Some(key) = self.keys.iter().find(|key| key.id == sealed.key_id) else {
            let key_id = sealed.key_id.clone();
            return Err(DbError::SeedKeyMissing { commitment: commitment.to_string(), key_id });
        };
        let opened = decrypt(&key.cipher, &sealed.bytes, &associated_data(&key.id, session_id, commitment))
            .ok_or_else(|| corrupt(what, format!("{commitment}: it does not open in this row")))?;
        let bytes: &[u8; 32] =
            opened.as_slice().try_into().map_err(|_| corrupt(what, format!("{commitment}: not 32 bytes")))?;
        let seed = ServerSeed::from_bytes(bytes);
        if seed.commitment() != *commitment {
            return Err(corrupt(what, format!("{commitment}: the seed is not the committed one")));
        }
        Ok(seed)
    }

    /// A constant sealed under a key, by which a wrong key of the same name is told later.
    pub fn check_values(&self) -> impl Iterator<Item = (&str, Vec<u8>)> {
        self.keys.iter().map(|key| (key.id.as_str(), encrypt(&key.cipher, &CHECK_TEXT, check_data(&key.id).as_bytes())))
    }

    /// Whether a stored check value was made with the ring's key of that name; none when the ring has no such key.
    pub fn check(&self, key_id: &str, check_value: &[u8]) -> Option<bool> {
        let key = self.keys.iter().find(|key| key.id == key_id)?;
        let opened = decrypt(&key.cipher, check_value, check_data(key_id).as_bytes());
        Some(opened.is_some_and(|text| text.as_slice() == CHECK_TEXT))
    }
}

fn associated_data(key_id: &str, session_id: Uuid, commitment: &Commitment) -> Vec<u8> {
    let mut data = Vec::with_capacity(128);
    data.extend_from_slice(b"fairledger server seed\0");
    data.push(VERSION);
    data.extend_from_slice(key_id.as_bytes());
    data.push(0);
    data.extend_from_slice(session_id.as_bytes());
    data.extend_from_slice(commitment.as_bytes());
    data
}

fn check_data(key_id: &str) -> String {
    format!("fairledger key check\0{VERSION}{key_id}")
}

fn encrypt(cipher: &XChaCha20Poly1305, text: &[u8], associated: &[u8]) -> Vec<u8> {
    let nonce: [u8; NONCE_BYTES] = rand::random();
    let sealed = cipher
        .encrypt(&XNonce::from(nonce), Payload { msg: text, aad: associated })
        // The cipher fails only beyond 256 GiB of text; ours has 32 bytes at the most.
        .unwrap_or_else(|_| unreachable!("a short text can be sealed"));
    let mut bytes = Vec::with_capacity(1 + NONCE_BYTES + sealed.len());
    bytes.push(VERSION);
    bytes.extend_from_slice(&nonce);
    bytes.extend_from_slice(&sealed);
    bytes
}

fn decrypt(cipher: &XChaCha20Poly1305, bytes: &[u8], associated: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (version, rest) = bytes.split_first()?;
    if *version != VERSION {
        return None;
    }
    let (nonce, sealed) = rest.split_first_chunk::<NONCE_BYTES>()?;
    cipher.decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad: associated }).ok().map(Zeroizing::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(id: &str) -> KeyRing {
        KeyRing::parse(&KeyRing::generate_entry(id)).unwrap()
    }

    #[test]
    fn a_seal_opens_only_in_its_own_row() {
        let ring = ring("k1");
        let (seed, session) = (ServerSeed::generate(), Uuid::new_v4());
        let commitment = seed.commitment();
        let sealed = ring.seal(session, &commitment, &seed);
        assert_eq!(sealed.bytes.len(), 73);
        assert_eq!(ring.open(session, &commitment, &sealed).unwrap().expose(), seed.expose());
        assert!(ring.open(Uuid::new_v4(), &commitment, &sealed).is_err());
        assert!(ring.open(session, &ServerSeed::generate().commitment(), &sealed).is_err());
        for place in 0..sealed.bytes.len() {
            let mut edited = sealed.clone();
            edited.bytes[place] ^= 1;
            assert!(ring.open(session, &commitment, &edited).is_err(), "byte {place}");
        }
        assert!(super::super::seal::KeyRing::parse("").is_err());
    }

    #[test]
    fn a_wrong_key_of_the_same_name_is_told() {
        let (right, wrong) = (ring("k1"), ring("k1"));
        let (_, value) = right.check_values().next().unwrap();
        assert_eq!(value.len(), 57);
        assert_eq!(right.check("k1", &value), Some(true));
        assert_eq!(wrong.check("k1", &value), Some(false));
        assert_eq!(wrong.check("k2", &value), None);
    }

    #[test]
    fn a_ring_out_of_form_is_refused_without_its_bytes() {
        let entry = KeyRing::generate_entry("k1");
        let twice = format!("{},{}", *entry, *entry);
        let cases = ["", "k1", "k1:", "k1:AAAA", "k 1:AAAA", ":AAAA", twice.as_str()];
        for text in cases {
            let error = KeyRing::parse(text).unwrap_err().to_string();
            assert!(!error.contains("AAAA") && !error.contains(entry.split(':').nth(1).unwrap()), "{error}");
        }
        let debug = format!("{:?}", KeyRing::parse(&entry).unwrap());
        assert_eq!(debug, r#"["k1"]"#);
    }
}
