//! `SeedStore`: what fair-play demos code against, for applications that bring their own seeds.
//!
//! Demos keep a session, its nonce counter, its revealed seeds and its last records under keys that expire. The nine operations are
//! the same here and the rules are the ledger's: a new commitment is a new seed at nonce 0, never a reset; a revealed seed reserves no
//! more; nothing is trimmed; a time to live ends in a reveal. [`PgSeedStore`] keeps it in the ledger's own tables; [`MemorySeedStore`] is
//! for tests of applications. One conformance suite holds both to this page.
//!
//! A nonce reserved here is a bet of game `unbound`: the ledger knows nothing of it but that its record is owed.
//! [`SeedStore::push_record`] ends it; without that it is void when the reservation expires.

mod memory;
mod postgres;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde_json::Value;
use uuid::Uuid;

pub use memory::MemorySeedStore;
pub use postgres::PgSeedStore;

use super::SeedsError;
use super::error::Attempt;
use super::values::{BoundedJson, RESULT_BYTES_MAX};
use crate::db::MaybeConflict;
use crate::gfs::seed::{ClientSeed, Commitment, NONCE_MAX, ServerSeed};

/// A session to be stored with the seed that it plays under.
#[derive(Clone, Debug)]
pub struct PutSession {
    /// Its id.
    pub session_id: Uuid,
    /// The server seed in clear: the application made it.
    pub server_seed: ServerSeed,
    /// The client seed, for as long as this server seed is in use.
    pub client_seed: ClientSeed,
}

/// A session as it is stored.
#[derive(Clone, Debug)]
pub struct StoredSession {
    /// Its id.
    pub session_id: Uuid,
    /// The server seed in clear, for the application that brought it.
    pub server_seed: ServerSeed,
    /// Its commitment.
    pub commitment: Commitment,
    /// The client seed.
    pub client_seed: ClientSeed,
    /// Nonces handed out under it.
    pub bets_under_seed: u64,
    /// When the session was created.
    pub created_at: DateTime<Utc>,
}

/// Why an operation was refused.
#[derive(Debug, thiserror::Error)]
pub enum SeedStoreError {
    /// There is no such session.
    #[error("there is no such session")]
    SessionNotFound,
    /// The session's time to live is over, or it was closed. Its id is not used again.
    #[error("the session has ended")]
    SessionEnded,
    /// The expected commitment is not the session's.
    #[error("the session has another commitment than expected")]
    CommitmentChanged,
    /// The commitment was used before, here or in another session.
    #[error("the commitment was used before")]
    CommitmentUsed,
    /// A seed keeps the client seed that it was put with.
    #[error("the client seed of a commitment cannot be changed: put a new server seed")]
    ClientSeedBound,
    /// The seed was revealed or discarded: it reserves no more.
    #[error("the seed has ended")]
    SeedEnded,
    /// Nonces were reserved whose records are not pushed yet.
    #[error("records are owed under the seed")]
    BetsPending,
    /// As many records are owed as may be.
    #[error("too many records are owed in the session")]
    TooManyPending,
    /// Every nonce was handed out.
    #[error("every nonce under the commitment was handed out")]
    NonceExhausted,
    /// The server seed does not hash to the commitment.
    #[error("the server seed does not hash to the commitment")]
    WrongSeed,
    /// PostgreSQL cannot keep a NUL.
    #[error("the client seed has a NUL character")]
    ClientSeedWithNul,
    /// A record without commitment or nonce, or too long.
    #[error("{0}")]
    InvalidRecord(String),
    /// The record's nonce was not reserved under its commitment.
    #[error("the nonce is not reserved")]
    NonceNotReserved,
    /// Another record of the nonce was pushed.
    #[error("another record of the nonce was pushed")]
    RecordExists,
    /// The reservation ended without a record.
    #[error("the reservation is void: {0}")]
    Void(String),
    /// The store itself.
    #[error(transparent)]
    Store(SeedsError),
}

impl From<SeedsError> for SeedStoreError {
    fn from(error: SeedsError) -> Self {
        match error {
            SeedsError::SessionNotFound => Self::SessionNotFound,
            SeedsError::SessionClosed => Self::SessionEnded,
            SeedsError::CommitmentChanged { .. } => Self::CommitmentChanged,
            SeedsError::NonceExhausted => Self::NonceExhausted,
            SeedsError::TooManyPending => Self::TooManyPending,
            SeedsError::BetsPending => Self::BetsPending,
            SeedsError::NonceNotReserved => Self::NonceNotReserved,
            SeedsError::RecordExistsWithDifferentContent => Self::RecordExists,
            SeedsError::Void { reason } => Self::Void(reason),
            other => Self::Store(other),
        }
    }
}

impl From<crate::db::DbError> for SeedStoreError {
    fn from(error: crate::db::DbError) -> Self {
        Self::Store(SeedsError::Db(error))
    }
}

impl MaybeConflict for SeedStoreError {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_conflict())
    }
}

impl From<SeedStoreError> for Attempt<SeedStoreError> {
    fn from(error: SeedStoreError) -> Self {
        Self::Refused(error)
    }
}

impl From<Attempt> for Attempt<SeedStoreError> {
    fn from(attempt: Attempt) -> Self {
        match attempt {
            Attempt::Refused(error) => Self::Refused(error.into()),
            Attempt::LookAgain => Self::LookAgain,
            Attempt::Outdated(session_id) => Self::Outdated(session_id),
        }
    }
}

/// The nine operations. Every `ttl` moves the end of the session's time to live on to so long from now.
#[async_trait]
pub trait SeedStore: Send + Sync {
    /// The session, or none when there is none or its time is over.
    async fn get(&self, session_id: Uuid, ttl: Option<Duration>) -> Result<Option<StoredSession>, SeedStoreError>;

    /// Stores a session. Without `expected` it must be new; with it, that must be its commitment now, and the old seed ends: revealed
    /// if it has bets, else discarded. Putting the same again changes nothing but the time to live.
    async fn put(
        &self,
        session: &PutSession,
        ttl: Duration,
        expected: Option<&Commitment>,
    ) -> Result<(), SeedStoreError>;

    /// Hands out the next nonce under the expected commitment. Each is handed out once.
    async fn reserve_nonce(
        &self,
        session_id: Uuid,
        ttl: Duration,
        expected: &Commitment,
    ) -> Result<u64, SeedStoreError>;

    /// The nonce that comes next, without consuming it.
    async fn peek_nonce(&self, session_id: Uuid) -> Result<u64, SeedStoreError>;

    /// Ends a seed of the session and reveals it. Revealing it again changes nothing.
    async fn reveal(
        &self,
        session_id: Uuid,
        commitment: &Commitment,
        server_seed: &ServerSeed,
        ttl: Duration,
    ) -> Result<(), SeedStoreError>;

    /// Every revealed seed of the session, also after its end.
    async fn revealed(&self, session_id: Uuid) -> Result<BTreeMap<Commitment, ServerSeed>, SeedStoreError>;

    /// Stores the record of a reserved nonce, named by the record's own `commitment` and `nonce`. The same record again changes nothing.
    async fn push_record(&self, session_id: Uuid, record: &Value) -> Result<(), SeedStoreError>;

    /// The session's newest records, newest first, also after its end.
    async fn records(&self, session_id: Uuid, limit: u32) -> Result<Vec<Value>, SeedStoreError>;

    /// Counts one more session of an address and gives their number in its window.
    async fn count_session(&self, address: IpAddr, window: Duration) -> Result<u32, SeedStoreError>;
}

/// A record with the place that it names.
struct PushedRecord {
    commitment: Commitment,
    nonce: u64,
    json: BoundedJson,
}

impl PushedRecord {
    fn read(record: &Value) -> Result<Self, SeedStoreError> {
        let invalid = |detail: &str| SeedStoreError::InvalidRecord(detail.to_owned());
        let commitment = record.get("commitment").and_then(Value::as_str).and_then(|text| text.parse().ok());
        let commitment =
            commitment.ok_or_else(|| invalid("commitment: must be 64 lower-case hexadecimal characters"))?;
        let nonce = record.get("nonce").and_then(Value::as_u64).filter(|nonce| *nonce < NONCE_MAX);
        let nonce = nonce.ok_or_else(|| invalid("nonce: must be an integer of 0 to 2^53 - 2"))?;
        let json = BoundedJson::new(record.clone(), RESULT_BYTES_MAX).map_err(|error| invalid(&error.to_string()))?;
        Ok(Self { commitment, nonce, json })
    }
}
