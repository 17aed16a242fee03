//! Keys that tokens are issued under: their windows and states, and the partitions that hold what is spent under them.
//!
//! Keeps I2: a key goes open, closed, swept, one way (every UPDATE names the states it starts from), every window is judged by
//! `clock_timestamp()`, and a key's name and number are never used again. What registers a key holds [`LockedKeys`], so that two at
//! once cannot pass the cap together; what sweeps holds [`SweepLock`].

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::{Access, DbError, Tx, corrupt};

/// Taken by whatever registers keys: "tokenkey" as ASCII.
const REGISTER_LOCK: i64 = 0x746f_6b65_6e6b_6579;

/// Taken by whatever sweeps: "keysweep" as ASCII.
const SWEEP_LOCK: i64 = 0x6b65_7973_7765_6570;

/// How far along its one way a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// Its tokens are accepted within its window.
    Open,
    /// Nothing is accepted any more; its spends are still remembered.
    Closed,
    /// Its spends are forgotten or about to be.
    Swept,
}

impl KeyState {
    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Swept => "swept",
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self, DbError> {
        match text {
            "open" => Ok(Self::Open),
            "closed" => Ok(Self::Closed),
            "swept" => Ok(Self::Swept),
            other => Err(corrupt("token key", format!("state {other:?}"))),
        }
    }
}

/// A key's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRow {
    /// Its short name.
    pub key_no: i32,
    /// The issuer's name for it.
    pub key_id: String,
    /// Begin of the window, inclusive.
    pub redeem_from: DateTime<Utc>,
    /// End of the window, exclusive.
    pub redeem_until: DateTime<Utc>,
    /// How far along it is.
    pub state: KeyState,
}

macro_rules! key_row {
    ($row:expr) => {{
        let row = $row;
        Ok::<_, DbError>(KeyRow {
            key_no: row.key_no,
            key_id: row.key_id,
            redeem_from: row.redeem_from,
            redeem_until: row.redeem_until,
            state: KeyState::parse(&row.state)?,
        })
    }};
}

/// The proof that no other transaction registers keys until this one ends.
#[derive(Debug)]
pub struct LockedKeys(DateTime<Utc>);

impl LockedKeys {
    /// The database's clock once the lock was held.
    pub fn now(&self) -> DateTime<Utc> {
        self.0
    }
}

/// The proof that no other transaction sweeps until this one ends.
#[derive(Debug)]
pub struct SweepLock(());

impl<A: Access> Tx<A> {
    /// Every key there ever was, by the begin of its window.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn keys(&mut self) -> Result<Vec<KeyRow>, DbError> {
        sqlx::query!(
            "SELECT key_no, key_id, redeem_from, redeem_until, state FROM fairledger.token_keys ORDER BY redeem_from, key_no"
        )
        .fetch_all(&mut *self.inner)
        .await?
        .into_iter()
        .map(|row| key_row!(row))
        .collect()
    }

    /// Open keys whose window has not ended, those to come included, by the begin of their window.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn live_keys(&mut self) -> Result<Vec<KeyRow>, DbError> {
        sqlx::query!(
            "SELECT key_no, key_id, redeem_from, redeem_until, state FROM fairledger.token_keys
             WHERE state = 'open' AND redeem_until > clock_timestamp() ORDER BY redeem_from, key_no"
        )
        .fetch_all(&mut *self.inner)
        .await?
        .into_iter()
        .map(|row| key_row!(row))
        .collect()
    }

    /// When the latest recovery was confirmed, if there was one.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn last_recovery(&mut self) -> Result<Option<DateTime<Utc>>, DbError> {
        Ok(sqlx::query_scalar!("SELECT max(recovered_at) FROM fairledger.recoveries")
            .fetch_one(&mut *self.inner)
            .await?)
    }
}

impl Tx {
    /// Keeps other transactions from registering keys. Waits for its turn.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn lock_keys(&mut self) -> Result<LockedKeys, DbError> {
        sqlx::query!("SELECT pg_advisory_xact_lock($1)", REGISTER_LOCK).execute(&mut *self.inner).await?;
        let now = sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#).fetch_one(&mut *self.inner).await?;
        Ok(LockedKeys(now))
    }

    /// Reads a key.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn key(&mut self, key_id: &str) -> Result<Option<KeyRow>, DbError> {
        sqlx::query!(
            "SELECT key_no, key_id, redeem_from, redeem_until, state FROM fairledger.token_keys WHERE key_id = $1",
            key_id,
        )
        .fetch_optional(&mut *self.inner)
        .await?
        .map(|row| key_row!(row))
        .transpose()
    }

    /// Stores a new key, with its partition. Its name must be free: look under the same lock.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn insert_key(
        &mut self,
        _lock: &LockedKeys,
        key_id: &str,
        redeem_from: DateTime<Utc>,
        redeem_until: DateTime<Utc>,
    ) -> Result<KeyRow, DbError> {
        // The number is counted up under the lock rather than by an identity: it is the partitions' key (docs/LEDGER.md).
        let row = sqlx::query!(
            r#"INSERT INTO fairledger.token_keys (key_no, key_id, redeem_from, redeem_until, epoch)
               SELECT coalesce(max(key_no), 0) + 1, $1, $2, $3, (SELECT coalesce(max(epoch), 0) FROM fairledger.recoveries)
               FROM fairledger.token_keys
               RETURNING key_no, key_id, redeem_from, redeem_until, state"#,
            key_id,
            redeem_from,
            redeem_until,
        )
        .fetch_one(&mut *self.inner)
        .await?;
        let row = key_row!(row)?;
        sqlx::query!("SELECT fairledger.attach_spends_partition($1)", row.key_no).execute(&mut *self.inner).await?;
        Ok(row)
    }

    /// Closes a key if it is open; gives whether it was. Binds every statement that begins after this transaction's commit.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn close_key(&mut self, key_id: &str) -> Result<bool, DbError> {
        let closed = sqlx::query!(
            "UPDATE fairledger.token_keys SET state = 'closed', closed_at = clock_timestamp() WHERE key_id = $1 AND state = 'open'",
            key_id,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        Ok(closed == 1)
    }

    /// Keeps other transactions from sweeping; none when one does so already.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn try_sweep_lock(&mut self) -> Result<Option<SweepLock>, DbError> {
        let locked = sqlx::query_scalar!(r#"SELECT pg_try_advisory_xact_lock($1) AS "locked!""#, SWEEP_LOCK)
            .fetch_one(&mut *self.inner)
            .await?;
        Ok(locked.then_some(SweepLock(())))
    }

    /// Marks every key swept whose window has ended; gives them by number. Nothing may be dropped before this is committed.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn mark_swept(&mut self, _lock: &SweepLock) -> Result<Vec<KeyRow>, DbError> {
        // Every spend's expires_at is its key's redeem_until, so the key's own end speaks for all its rows.
        let mut marked = sqlx::query!(
            "UPDATE fairledger.token_keys SET state = 'swept', swept_at = clock_timestamp()
             WHERE state IN ('open', 'closed') AND redeem_until <= clock_timestamp()
             RETURNING key_no, key_id, redeem_from, redeem_until, state",
        )
        .fetch_all(&mut *self.inner)
        .await?
        .into_iter()
        .map(|row| key_row!(row))
        .collect::<Result<Vec<_>, _>>()?;
        marked.sort_unstable_by_key(|key| key.key_no);
        Ok(marked)
    }

    /// Swept keys whose partition is still there, by number.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn partitions_to_drop(&mut self) -> Result<Vec<KeyRow>, DbError> {
        // The catalogs are the truth about what was dropped: no column of ours can disagree with them.
        sqlx::query!(
            "SELECT k.key_no, k.key_id, k.redeem_from, k.redeem_until, k.state FROM fairledger.token_keys k
             JOIN pg_catalog.pg_class c ON c.relname = 'key_' || k.key_no AND c.relkind = 'r'
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'fairledger_spends'
             WHERE k.state = 'swept' ORDER BY k.key_no"
        )
        .fetch_all(&mut *self.inner)
        .await?
        .into_iter()
        .map(|row| key_row!(row))
        .collect()
    }

    /// Drops the partition of a key that was seen swept; gives the bytes freed, or none when some transaction was in the way for all
    /// of `wait` (5 s at the most). The transaction must not have written anything yet.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn drop_partition(
        &mut self,
        _lock: &SweepLock,
        key_no: i32,
        wait: Duration,
    ) -> Result<Option<u64>, DbError> {
        let wait_ms = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
        sqlx::query_scalar!("SELECT fairledger.drop_spends_partition($1, $2)", key_no, wait_ms)
            .fetch_one(&mut *self.inner)
            .await?
            .map(|bytes| super::decode::unsigned("size of a partition", bytes))
            .transpose()
    }
}
