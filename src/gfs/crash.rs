//! The crash profile: a chain of hashes played backwards, and the result of one link (GFS/1.0 section 5).
//!
//! fairledger stores no crash games; it checks their results for anybody (`/v1/verify`).

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::seed::{Commitment, ServerSeed};

/// The hash of one game: 64 hexadecimal characters, secret until its game has ended. In form, in how it is hashed and in
/// how it must be guarded the same as a server seed.
pub type GameHash = ServerSeed;

/// The longest chain, in games.
pub const CHAIN_GAMES_MAX: u32 = 10_000_000;

/// The longest salt, in UTF-16 code units.
pub const SALT_UNITS_MAX: usize = 1_024;

/// The house edge where none is given.
pub const HOUSE_EDGE_DEFAULT: f64 = 0.01;

/// The highest house edge.
pub const HOUSE_EDGE_MAX: f64 = 0.999_999;

/// Why a crash game cannot be calculated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CrashError {
    /// A chain of no games, or of too many.
    #[error("a chain is 1 to {CHAIN_GAMES_MAX} games")]
    Length,
    /// A game that the chain does not have.
    #[error("a game is numbered from 1 to the length of its chain")]
    Game,
    /// A salt of no or too many UTF-16 code units.
    #[error("a salt is 1 to {SALT_UNITS_MAX} UTF-16 code units")]
    Salt,
    /// A house edge out of bounds.
    #[error("a house edge is a number from 0 to {HOUSE_EDGE_MAX}")]
    HouseEdge,
}

/// A chain: `h(0)` is the secret, `h(i + 1)` the SHA-256 of the text of `h(i)`, and game `k` uses `h(length - k)`.
#[derive(Debug, Clone)]
pub struct Chain {
    secret: GameHash,
    length: u32,
}

impl Chain {
    /// A chain of `length` games.
    ///
    /// # Errors
    /// [`CrashError::Length`] outside 1 to [`CHAIN_GAMES_MAX`].
    pub fn new(secret: GameHash, length: u32) -> Result<Self, CrashError> {
        if (1..=CHAIN_GAMES_MAX).contains(&length) { Ok(Self { secret, length }) } else { Err(CrashError::Length) }
    }

    /// The hash of game `game`, from 1. Costs `length - game` hashes.
    ///
    /// # Errors
    /// [`CrashError::Game`] for a game that the chain does not have.
    pub fn game_hash(&self, game: u32) -> Result<GameHash, CrashError> {
        if (1..=self.length).contains(&game) { Ok(self.link(self.length - game)) } else { Err(CrashError::Game) }
    }

    /// What is published before game 1: the hash that game 1's hashes to. Costs `length` hashes.
    #[must_use]
    pub fn terminating_hash(&self) -> Commitment {
        self.link(self.length - 1).commitment()
    }

    fn link(&self, index: u32) -> GameHash {
        (0..index).fold(self.secret.clone(), |hash, _| GameHash::from_bytes(hash.commitment().as_bytes()))
    }
}

/// The result of one game: a multiplier of at least 1, in hundredths.
///
/// The salt is taken as text, even when it starts with `0x`.
///
/// # Errors
/// [`CrashError::Salt`] and [`CrashError::HouseEdge`] outside their bounds.
pub fn result(game_hash: &GameHash, salt: &str, house_edge: f64) -> Result<f64, CrashError> {
    // Counting stops at the first unit too many, so a long text costs no more than a short one.
    if !(1..=SALT_UNITS_MAX).contains(&salt.encode_utf16().take(SALT_UNITS_MAX + 1).count()) {
        return Err(CrashError::Salt);
    }
    if !(0.0..=HOUSE_EDGE_MAX).contains(&house_edge) {
        return Err(CrashError::HouseEdge);
    }
    // Cannot fail: HMAC takes a key of any length.
    let mut mac =
        Hmac::<Sha256>::new_from_slice(game_hash.expose().as_bytes()).expect("HMAC takes a key of any length");
    mac.update(salt.as_bytes());
    let digest: [u8; 32] = mac.finalize().into_bytes().into();
    let [b0, b1, b2, b3, b4, b5, b6, b7, ..] = digest;
    // The first 13 hexadecimal digits are the top 52 bits.
    Ok(multiplier(u64::from_be_bytes([b0, b1, b2, b3, b4, b5, b6, b7]) >> 12, house_edge))
}

/// The multiplier of a 52-bit number. The quotient is an exact integer, and becomes a binary64 *before* the division
/// by a million: any other order rounds differently.
fn multiplier(h: u64, house_edge: f64) -> f64 {
    const DIVIDEND: u128 = 100 * (1 << 52) * 1_000_000;
    let quotient = DIVIDEND / (u128::from(h) + 1);
    let cents = (quotient as f64 / 1_000_000.0 * (1.0 - house_edge)).floor();
    cents.max(100.0) / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> GameHash {
        GameHash::parse(&"5c".repeat(32)).unwrap()
    }

    #[test]
    fn chain_is_bounded_at_just_below_and_above() {
        for (length, good) in [(0, false), (1, true), (CHAIN_GAMES_MAX, true), (CHAIN_GAMES_MAX + 1, false)] {
            assert_eq!(Chain::new(secret(), length).is_ok(), good, "{length}");
        }
        let chain = Chain::new(secret(), 3).unwrap();
        for (game, good) in [(0, false), (1, true), (3, true), (4, false), (u32::MAX, false)] {
            assert_eq!(chain.game_hash(game).is_ok(), good, "{game}");
        }
    }

    #[test]
    fn games_run_from_the_end_of_the_chain_to_its_secret() {
        let chain = Chain::new(secret(), 3).unwrap();
        assert_eq!(chain.game_hash(3), Ok(secret()));
        for game in 2..=3 {
            let previous = chain.game_hash(game - 1).unwrap();
            assert_eq!(chain.game_hash(game).unwrap().commitment().to_string(), previous.expose());
        }
        assert_eq!(chain.game_hash(1).unwrap().commitment(), chain.terminating_hash());
        let single = Chain::new(secret(), 1).unwrap();
        assert_eq!(single.terminating_hash(), secret().commitment());
    }

    #[test]
    fn multiplier_at_both_ends_of_the_range() {
        assert_eq!(multiplier(0, 0.0), 4_503_599_627_370_496.0);
        assert_eq!(multiplier((1 << 52) - 1, 0.0), 1.0);
        assert_eq!(multiplier((1 << 52) - 1, HOUSE_EDGE_MAX), 1.0);
        assert_eq!(multiplier((1 << 51) - 1, 0.0), 2.0);
        assert_eq!(multiplier((1 << 51) - 1, 0.01), 1.98);
    }

    #[test]
    fn salt_and_edge_are_bounded_at_just_below_and_above() {
        for (salt, good) in [("", false), ("0", true), (&*"€".repeat(1_024), true), (&*"a".repeat(1_025), false)] {
            assert_eq!(result(&secret(), salt, 0.01).is_ok(), good, "{}", salt.len());
        }
        assert!(result(&secret(), &"😀".repeat(512), 0.0).is_ok());
        assert_eq!(result(&secret(), &"😀".repeat(513), 0.0), Err(CrashError::Salt));
        for edge in [-f64::MIN_POSITIVE, 0.999_999_1, 1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(result(&secret(), "x", edge), Err(CrashError::HouseEdge), "{edge}");
        }
        assert!(result(&secret(), "x", HOUSE_EDGE_MAX).is_ok());
    }

    #[test]
    fn salt_is_text_even_when_it_looks_like_hexadecimal() {
        let results = ["0xab", "ab", "0xAB"].map(|salt| result(&secret(), salt, 0.0).unwrap());
        assert!(results[0] != results[1] && results[0] != results[2], "{results:?}");
    }
}
