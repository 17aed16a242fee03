//! How much there is of what an operator watches: a few bounded look-ups, made in the background and never for whoever asks.
//!
//! Serves I12: each reading costs the same however long the history is. Counts end at a bound, and live seeds are read a part at a time.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{DbError, Look, Tx};

/// Pending bets are counted up to here.
pub const PENDING_COUNT_MAX: i64 = 100_000;

/// Reveals due are counted up to here.
pub const REVEALS_COUNT_MAX: i64 = 10_000;

/// Live seeds that one reading looks at.
pub const SEEDS_READ_MAX: i64 = 5_000;

/// One reading.
#[derive(Clone, Debug)]
pub struct State {
    /// Token keys open and within their window.
    pub keys_live: i64,
    /// Reservations pending.
    pub reservations: i64,
    /// Rounds pending.
    pub rounds: i64,
    /// Reveals that are still to be stored.
    pub reveals_due: i64,
    /// How long ago the earliest window ended whose spends are still there, in seconds; 0 when none is due.
    pub sweep_lag_seconds: f64,
    /// Size of the database.
    pub database_bytes: i64,
    /// The database's clock.
    pub now: DateTime<Utc>,
}

/// A part of the live seeds.
#[derive(Clone, Debug)]
pub struct LiveSeeds {
    /// When the oldest of the part came into use.
    pub oldest: Option<DateTime<Utc>>,
    /// Where the next part begins; none after the last.
    pub next: Option<Uuid>,
}

impl Tx<Look> {
    /// Reads the state.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn state(&mut self) -> Result<State, DbError> {
        let state = sqlx::query_as!(
            State,
            r#"SELECT (SELECT count(*) FROM fairledger.token_keys
                       WHERE state = 'open' AND redeem_from <= clock_timestamp() AND clock_timestamp() < redeem_until) AS "keys_live!",
                      p.reservations AS "reservations!", p.rounds AS "rounds!",
                      (SELECT count(*) FROM (SELECT FROM fairledger.reveals_due LIMIT $2) due) AS "reveals_due!",
                      (SELECT greatest(coalesce(extract(epoch FROM clock_timestamp() - min(k.redeem_until)), 0), 0)::float8
                       FROM fairledger.token_keys k
                       LEFT JOIN (pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n
                                  ON n.oid = c.relnamespace AND n.nspname = 'fairledger_spends')
                              ON c.relname = 'key_' || k.key_no AND c.relkind = 'r'
                       WHERE k.redeem_until < clock_timestamp() AND (k.state <> 'swept' OR c.oid IS NOT NULL)) AS "sweep_lag_seconds!",
                      pg_catalog.pg_database_size(current_database()) AS "database_bytes!",
                      clock_timestamp() AS "now!"
               FROM (SELECT count(*) FILTER (WHERE kind = 'reservation') AS reservations,
                            count(*) FILTER (WHERE kind = 'round') AS rounds
                     FROM (SELECT kind FROM fairledger.pending LIMIT $1) bounded) p"#,
            PENDING_COUNT_MAX,
            REVEALS_COUNT_MAX
        );
        Ok(state.fetch_one(&mut *self.inner).await?)
    }

    /// The version of the schema.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn schema_version(&mut self) -> Result<i32, DbError> {
        // Not checked at build time: the table is refinery's, and there is none where the queries are prepared.
        let version = sqlx::query_scalar("SELECT coalesce(max(version), 0)::int4 FROM fairledger.schema_history");
        Ok(version.fetch_one(&mut *self.inner).await?)
    }

    /// Reads the next part of the live seeds, by session.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn live_seeds_after(&mut self, after: Option<Uuid>) -> Result<LiveSeeds, DbError> {
        let row = sqlx::query!(
            r#"SELECT min(live_at) AS oldest, (array_agg(session_id ORDER BY session_id DESC))[1] AS last, count(*) AS "seeds!"
               FROM (SELECT session_id, live_at FROM fairledger.seeds
                     WHERE status = 'live' AND session_id > $1 ORDER BY session_id LIMIT $2) part"#,
            after.unwrap_or(Uuid::nil()),
            SEEDS_READ_MAX
        )
        .fetch_one(&mut *self.inner)
        .await?;
        let next = if row.seeds < SEEDS_READ_MAX { None } else { row.last };
        Ok(LiveSeeds { oldest: row.oldest, next })
    }
}
