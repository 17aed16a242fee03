//! Ed25519 signatures over a record's payload (GFS/1.0 section 6.3; RFC 8032).
//!
//! Keeps I6 for the signing key: its `Debug` redacts, and its memory is wiped when dropped.

use std::fmt;

use ed25519_dalek::{Signer as _, VerifyingKey};
use zeroize::Zeroizing;

use super::seed::{decode_hex, random};

/// A signature and the public key that it was made under. A record carries both or neither.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// The signature; 128 hexadecimal characters in a record.
    pub bytes: [u8; 64],
    /// The public key; 64 hexadecimal characters in a record.
    pub signer: [u8; 32],
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signature {{ bytes: {}, signer: {} }}", hex::encode(self.bytes), hex::encode(self.signer))
    }
}

/// Why a text is not a signing key. Never carries the text itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SigningKeyError {
    /// Not 128 characters of `[0-9a-f]`.
    #[error("a signing key is exactly 128 lower-case hexadecimal characters: seed, then public key")]
    Form,
    /// The second half is not the public key of the first, so one of them is damaged or another key's. Signing with
    /// such a pair would leak the secret.
    #[error("the public key in the second half does not belong to the seed in the first")]
    PublicHalf,
}

/// A secret Ed25519 key. Wiped when dropped.
#[derive(Clone)]
pub struct SigningKey(ed25519_dalek::SigningKey);

impl SigningKey {
    /// Makes a key from the operating system's generator.
    ///
    /// # Panics
    /// When the operating system has no randomness to give.
    #[must_use]
    pub fn generate() -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(&random()))
    }

    /// Takes a key in its portable form: 128 hexadecimal characters, seed then public key.
    ///
    /// # Errors
    /// [`SigningKeyError::Form`] for another form, [`SigningKeyError::PublicHalf`] when the halves do not belong together.
    pub fn parse(text: &str) -> Result<Self, SigningKeyError> {
        let pair = Zeroizing::new(decode_hex::<64>(text).ok_or(SigningKeyError::Form)?);
        ed25519_dalek::SigningKey::from_keypair_bytes(&pair).map(Self).map_err(|_| SigningKeyError::PublicHalf)
    }

    /// The portable form, in clear.
    #[must_use]
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(hex::encode(*Zeroizing::new(self.0.to_keypair_bytes())))
    }

    /// The public key.
    #[must_use]
    pub fn signer(&self) -> [u8; 32] {
        self.0.verifying_key().to_bytes()
    }

    /// Signs a payload. The same payload always gets the same signature.
    #[must_use]
    pub fn sign(&self, payload: &[u8]) -> [u8; 64] {
        self.0.sign(payload).to_bytes()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey(redacted, signer: {})", hex::encode(self.signer()))
    }
}

/// Whether the signature over the payload is the signer's.
///
/// Strict: a malleable signature and a public key of small order, under which one signature fits many payloads, are
/// refused, since a record that they "sign" proves nothing.
#[must_use]
pub fn verify(payload: &[u8], signature: &[u8; 64], signer: &[u8; 32]) -> bool {
    VerifyingKey::from_bytes(signer)
        .is_ok_and(|key| key.verify_strict(payload, &ed25519_dalek::Signature::from_bytes(signature)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 8032 section 7.1, test 1.
    const KEY: &str = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60\
                       d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    const EMPTY_SIGNED: &str = "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155\
                                5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b";

    #[test]
    fn signs_and_verifies_as_rfc_8032() {
        let key = SigningKey::parse(KEY).unwrap();
        let signature = key.sign(b"");
        assert_eq!(hex::encode(signature), EMPTY_SIGNED);
        assert!(verify(b"", &signature, &key.signer()));
        assert!(!verify(b"x", &signature, &key.signer()));
        assert!(!verify(b"", &signature, &SigningKey::generate().signer()));
        for i in 0..64 {
            let mut changed = signature;
            changed[i] ^= 1;
            assert!(!verify(b"", &changed, &key.signer()), "byte {i}");
        }
    }

    #[test]
    fn key_of_small_order_verifies_nothing() {
        // The identity point as key and as R, with s = 0: a lax verifier accepts it for every payload.
        let mut point = [0; 32];
        point[0] = 1;
        let mut signature = [0; 64];
        signature[0] = 1;
        assert!(!verify(b"any", &signature, &point));
        assert!(!verify(b"any", &[0xff; 64], &[0xff; 32]));
    }

    #[test]
    fn portable_form_round_trips() {
        assert_eq!(*SigningKey::parse(KEY).unwrap().to_hex(), KEY);
        let key = SigningKey::generate();
        assert_eq!(SigningKey::parse(&key.to_hex()).unwrap().signer(), key.signer());
    }

    #[test]
    fn key_with_a_foreign_public_half_is_refused() {
        let other = SigningKey::generate().to_hex();
        let mixed = format!("{}{}", &KEY[..64], &other[64..]);
        assert_eq!(SigningKey::parse(&mixed).unwrap_err(), SigningKeyError::PublicHalf);
        for text in ["", &KEY[..64], &KEY[1..], &KEY.to_uppercase(), &KEY.replace('d', "x")] {
            assert_eq!(SigningKey::parse(text).unwrap_err(), SigningKeyError::Form);
        }
    }

    #[test]
    fn debug_redacts_i6() {
        let text = format!("{:?}", SigningKey::parse(KEY).unwrap());
        assert!(text.contains("redacted") && !text.contains(&KEY[..16]), "{text}");
    }
}
