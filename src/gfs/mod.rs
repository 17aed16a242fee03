//! GFS/1.0: how a result follows from a server seed, a client seed and a nonce, and how a record of it is written,
//! signed and inspected.
//!
//! Pure: no I/O, no clock, no randomness but the generators of seeds and keys. Everything that hashes a seed or writes a
//! record goes through here, so that the service and a verifier years later calculate the same bits.
//!
//! Keeps I6 (secrets live in types whose `Debug` redacts and whose memory is wiped) and the half of I7 that says what a
//! commitment is. The source of every rule is the public specification GFS/1.0, cited by section.

pub mod crash;
pub mod floats;
pub mod games;
pub mod inspect;
pub mod json;
pub mod record;
pub mod seed;
pub mod shuffle;
pub mod signature;

pub use floats::{FloatStream, SeedPair};
pub use games::{Game, GameResult, Play, PlayError};
pub use inspect::{InspectError, Inspection, inspect, inspect_value};
pub use record::{Outcome, Profile, Record, Rules};
pub use seed::{ClientSeed, Commitment, NONCE_MAX, SeedError, ServerSeed};
pub use shuffle::Card;
pub use signature::{Signature, SigningKey};

/// The identifier that every record carries in `spec`.
pub const SPEC: &str = "GFS/1.0";
