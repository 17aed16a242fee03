//! From a seed pair and a nonce to a stream of numbers (GFS/1.0 section 3).
//!
//! The key schedule and the client seed are absorbed once in a [`SeedPair`]; each digest then costs two or three
//! compressions and no allocation.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::seed::{ClientSeed, ServerSeed};

/// Floats in one digest.
const FLOATS_PER_DIGEST: u32 = 8;

/// `{nonce}:{cursor}` at its longest: 20 digits, a colon, 10 digits.
const MESSAGE_END_MAX: usize = 31;

/// The highest digest index that the first `float_count` floats touch: `floor((n - 1) / 8)`, and 0 for none (GFS/1.0
/// section 3.2). This is what a record calls `cursor`.
#[must_use]
pub const fn cursor(float_count: u32) -> u32 {
    float_count.saturating_sub(1) / FLOATS_PER_DIGEST
}

/// A server seed and a client seed, ready to derive under any nonce.
///
/// Whoever holds one can calculate every result, so its `Debug` redacts (I6).
#[derive(Clone)]
pub struct SeedPair {
    /// HMAC keyed with the server seed's text, having read `{client seed}:`.
    mac: Hmac<Sha256>,
}

impl SeedPair {
    /// Prepares the pair: one HMAC key schedule, used for every nonce after.
    #[must_use]
    pub fn new(server_seed: &ServerSeed, client_seed: &ClientSeed) -> Self {
        // Cannot fail: HMAC takes a key of any length.
        let mut mac = Hmac::new_from_slice(server_seed.expose().as_bytes()).expect("HMAC takes a key of any length");
        mac.update(client_seed.as_str().as_bytes());
        mac.update(b":");
        Self { mac }
    }

    /// `HMAC-SHA256(server seed, "{client seed}:{nonce}:{cursor}")`.
    #[must_use]
    pub fn digest(&self, nonce: u64, cursor: u32) -> [u8; 32] {
        // From the back, all of it at once: copying the state and handing over pieces is what costs beside the compressions.
        let mut text = [0_u8; MESSAGE_END_MAX];
        let at = write_decimal(&mut text, MESSAGE_END_MAX, u64::from(cursor)) - 1;
        text[at] = b':';
        let at = write_decimal(&mut text, at, nonce);
        let mut mac = self.mac.clone();
        mac.update(&text[at..]);
        mac.finalize().into_bytes().into()
    }

    /// The floats of one bet, from the first on.
    #[must_use]
    pub fn floats(&self, nonce: u64) -> FloatStream<'_> {
        FloatStream { pair: self, nonce, next_cursor: Some(0), digest: [0; 32], used: 32 }
    }
}

impl fmt::Debug for SeedPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SeedPair(redacted)")
    }
}

/// The floats of one bet, each in `[0, 1)` and exact in binary64. Ends only after 2^32 digests.
#[derive(Clone)]
pub struct FloatStream<'a> {
    pair: &'a SeedPair,
    nonce: u64,
    /// The next digest's index; `None` once the last has been used.
    next_cursor: Option<u32>,
    digest: [u8; 32],
    /// Bytes of `digest` already turned into floats.
    used: usize,
}

impl Iterator for FloatStream<'_> {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        if self.used == self.digest.len() {
            let cursor = self.next_cursor?;
            self.digest = self.pair.digest(self.nonce, cursor);
            self.next_cursor = cursor.checked_add(1);
            self.used = 0;
        }
        let bytes = self.digest[self.used..].first_chunk::<4>()?;
        self.used += bytes.len();
        // The specification sums b0/256 + b1/65536 + ...; every term and partial sum is exact, so this is the same.
        Some(f64::from(u32::from_be_bytes(*bytes)) / 4_294_967_296.0)
    }
}

impl fmt::Debug for FloatStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FloatStream(redacted)")
    }
}

/// Writes a number as decimal digits without leading zeros, so that they end before `end`; gives where they begin.
fn write_decimal(text: &mut [u8; MESSAGE_END_MAX], end: usize, mut number: u64) -> usize {
    let mut start = end;
    loop {
        start -= 1;
        text[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return start;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gfs::seed::NONCE_MAX;

    const SEED: &str = "5c1f7d3e8a2b4c6d9e0f1a2b3c4d5e6f7a8b9c0d1e2f3a4b5c6d7e8f9a0b1c2d";

    fn pair(client_seed: &str) -> SeedPair {
        SeedPair::new(&ServerSeed::parse(SEED).unwrap(), &ClientSeed::parse(client_seed).unwrap())
    }

    #[test]
    fn worked_example_of_the_specification() {
        let pair = pair("galabet");
        assert_eq!(hex::encode(pair.digest(42, 0)), "8fa8eae01ccd43120b5028acd55241e63f01343d81935389da84578897a5fe39");
        assert_eq!(pair.floats(42).next(), Some(0.561_171_226_203_441_6));
    }

    #[test]
    fn message_is_the_formatted_text_for_every_width() {
        for client_seed in ["a", &"€".repeat(64), "😀 0"] {
            let pair = pair(client_seed);
            for nonce in [0, 9, 10, 99, 100, 12_345, NONCE_MAX, u64::MAX] {
                for cursor in [0, 7, 51, 1_000, u32::MAX] {
                    let mut mac = Hmac::<Sha256>::new_from_slice(SEED.as_bytes()).unwrap();
                    mac.update(format!("{client_seed}:{nonce}:{cursor}").as_bytes());
                    assert_eq!(pair.digest(nonce, cursor), <[u8; 32]>::from(mac.finalize().into_bytes()));
                }
            }
        }
    }

    #[test]
    fn floats_run_on_into_the_next_digest() {
        let pair = pair("galabet");
        let mut expected = Vec::new();
        for cursor in 0..3 {
            for b in pair.digest(1, cursor).chunks(4) {
                let [b0, b1, b2, b3] = [0, 1, 2, 3].map(|i| f64::from(b[i]));
                expected.push(b0 / 256.0 + b1 / 65_536.0 + b2 / 16_777_216.0 + b3 / 4_294_967_296.0);
            }
        }
        assert_eq!(pair.floats(1).take(24).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn cursor_is_the_highest_digest_used() {
        for (float_count, expected) in
            [(0, 0), (1, 0), (8, 0), (9, 1), (16, 1), (17, 2), (24, 2), (39, 4), (1_024, 127)]
        {
            assert_eq!(cursor(float_count), expected, "{float_count}");
        }
    }

    #[test]
    fn debug_redacts_i6() {
        let pair = pair("galabet");
        assert_eq!(format!("{pair:?} {:?}", pair.floats(0)), "SeedPair(redacted) FloatStream(redacted)");
    }
}
