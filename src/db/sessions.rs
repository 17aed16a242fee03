//! Sessions: a player's run of play.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::seeds::LockedSeed;
use super::{Access, DbError, Tx, corrupt};

/// Who makes a session's seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The service: the next seed is always committed.
    Service,
    /// An application that brings its own (the `SeedStore` trait).
    Application,
}

impl Origin {
    fn parse(text: &str) -> Result<Self, DbError> {
        match text {
            "service" => Ok(Self::Service),
            "application" => Ok(Self::Application),
            other => Err(corrupt("session", format!("origin {other:?}"))),
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Application => "application",
        }
    }
}

/// A session's own row.
#[derive(Clone, Debug)]
pub struct SessionRow {
    /// Its id.
    pub session_id: Uuid,
    /// The operator's name for the player.
    pub player_ref: Option<String>,
    /// Who makes its seeds.
    pub origin: Origin,
    /// Still open. An application session whose time to live is over is not, swept or not.
    pub open: bool,
    /// The recovery epoch it was last moved to.
    pub epoch: i32,
    /// When it was created.
    pub created_at: DateTime<Utc>,
}

/// Proof that the session's row is locked in this transaction: nothing else opens, ends or replaces its seeds meanwhile. Bets go on.
#[derive(Debug)]
pub struct LockedSession(SessionRow);

impl std::ops::Deref for LockedSession {
    type Target = SessionRow;

    fn deref(&self) -> &SessionRow {
        &self.0
    }
}

macro_rules! session_row {
    ($row:expr) => {{
        let row = $row;
        Ok::<_, DbError>(SessionRow {
            session_id: row.session_id,
            origin: Origin::parse(&row.origin)?,
            player_ref: row.player_ref,
            open: row.open,
            epoch: row.epoch,
            created_at: row.created_at,
        })
    }};
}

impl<A: Access> Tx<A> {
    /// Reads a session.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn session(&mut self, session_id: Uuid) -> Result<Option<SessionRow>, DbError> {
        sqlx::query!(
            r#"SELECT session_id, player_ref, origin, epoch, created_at,
                      (status = 'open' AND coalesce(expires_at > clock_timestamp(), true)) AS "open!"
               FROM fairledger.sessions WHERE session_id = $1"#,
            session_id,
        )
        .fetch_optional(&mut *self.inner)
        .await?
        .map(|row| session_row!(row))
        .transpose()
    }

    /// Sessions of a player after a given one, by id.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn sessions_of_player(
        &mut self,
        player_ref: &str,
        after: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<Uuid>, DbError> {
        Ok(sqlx::query_scalar!(
            "SELECT session_id FROM fairledger.sessions
             WHERE player_ref = $1 AND session_id > coalesce($2, '00000000-0000-0000-0000-000000000000'::uuid)
             ORDER BY session_id LIMIT $3",
            player_ref,
            after,
            limit,
        )
        .fetch_all(&mut *self.inner)
        .await?)
    }

    /// The current recovery epoch: 0 before the first recovery.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn current_epoch(&mut self) -> Result<i32, DbError> {
        Ok(sqlx::query_scalar!(r#"SELECT coalesce(max(epoch), 0) AS "epoch!" FROM fairledger.recoveries"#)
            .fetch_one(&mut *self.inner)
            .await?)
    }
}

impl Tx {
    /// Inserts an open session; false when the id is taken.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn insert_session(
        &mut self,
        session_id: Uuid,
        player_ref: Option<&str>,
        origin: Origin,
        epoch: i32,
        ttl_seconds: Option<f64>,
    ) -> Result<Option<DateTime<Utc>>, DbError> {
        Ok(sqlx::query_scalar!(
            "INSERT INTO fairledger.sessions (session_id, player_ref, origin, epoch, created_at, active_at, expires_at)
             SELECT $1, $2, $3, $4, t.at, t.at, t.at + make_interval(secs => $5)
             FROM (SELECT clock_timestamp() AS at) AS t
             ON CONFLICT (session_id) DO NOTHING
             RETURNING created_at",
            session_id,
            player_ref,
            origin.as_str(),
            epoch,
            ttl_seconds,
        )
        .fetch_optional(&mut *self.inner)
        .await?)
    }

    /// Reads and locks a session, before any of its seeds.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn lock_session(&mut self, session_id: Uuid) -> Result<Option<LockedSession>, DbError> {
        sqlx::query!(
            r#"SELECT session_id, player_ref, origin, epoch, created_at,
                      (status = 'open' AND coalesce(expires_at > clock_timestamp(), true)) AS "open!"
               FROM fairledger.sessions WHERE session_id = $1 FOR NO KEY UPDATE"#,
            session_id,
        )
        .fetch_optional(&mut *self.inner)
        .await?
        .map(|row| session_row!(row).map(LockedSession))
        .transpose()
    }

    /// Open sessions of an epoch before the given one, by epoch and id, after the given ones.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn sessions_before_epoch(
        &mut self,
        epoch: i32,
        after: (i32, Uuid),
        limit: i64,
    ) -> Result<Vec<(i32, Uuid)>, DbError> {
        let rows = sqlx::query!(
            "SELECT epoch, session_id FROM fairledger.sessions
             WHERE status = 'open' AND epoch < $1 AND (epoch, session_id) > ($2, $3) ORDER BY epoch, session_id LIMIT $4",
            epoch,
            after.0,
            after.1,
            limit,
        );
        Ok(rows.fetch_all(&mut *self.inner).await?.into_iter().map(|row| (row.epoch, row.session_id)).collect())
    }

    /// Moves a locked session into an epoch.
    ///
    /// # Errors
    /// Those of the database; corruption when it was in that one or a later one already.
    pub async fn set_session_epoch(&mut self, session: &LockedSession, epoch: i32) -> Result<(), DbError> {
        let moved = sqlx::query!(
            "UPDATE fairledger.sessions SET epoch = $2 WHERE session_id = $1 AND epoch < $2",
            session.session_id,
            epoch,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        super::decode::exactly_one("session", moved)
    }

    /// Marks a locked session closed.
    ///
    /// # Errors
    /// Those of the database; corruption when it was closed already.
    pub async fn close_session(&mut self, session: &LockedSession) -> Result<(), DbError> {
        let closed = sqlx::query!(
            "UPDATE fairledger.sessions SET status = 'closed', closed_at = clock_timestamp() WHERE session_id = $1 AND status = 'open'",
            session.session_id,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        super::decode::exactly_one("session", closed)
    }

    /// Marks sessions as seen in use. Ids are taken in order, so that two processes cannot deadlock; closed sessions are left alone.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn mark_active(&mut self, session_ids: &mut [Uuid]) -> Result<(), DbError> {
        session_ids.sort_unstable();
        sqlx::query!(
            "UPDATE fairledger.sessions SET active_at = greatest(active_at, clock_timestamp())
             WHERE session_id IN (SELECT session_id FROM fairledger.sessions
                                  WHERE session_id = ANY($1) AND status = 'open' ORDER BY session_id FOR NO KEY UPDATE)",
            &*session_ids,
        )
        .execute(&mut *self.inner)
        .await?;
        Ok(())
    }

    /// Moves on the end of an application session's time to live.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn extend_session(&mut self, session_id: Uuid, ttl_seconds: f64) -> Result<(), DbError> {
        sqlx::query!(
            "UPDATE fairledger.sessions SET expires_at = clock_timestamp() + make_interval(secs => $2), active_at = clock_timestamp()
             WHERE session_id = $1 AND origin = 'application' AND status = 'open' AND expires_at > clock_timestamp()",
            session_id,
            ttl_seconds,
        )
        .execute(&mut *self.inner)
        .await?;
        Ok(())
    }

    /// Open sessions of the service that nobody used for so long, the longest idle first.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn idle_sessions(&mut self, idle_seconds: f64, limit: i64) -> Result<Vec<Uuid>, DbError> {
        Ok(sqlx::query_scalar!(
            "SELECT session_id FROM fairledger.sessions
             WHERE status = 'open' AND origin = 'service' AND active_at < clock_timestamp() - make_interval(secs => $1)
             ORDER BY active_at LIMIT $2",
            idle_seconds,
            limit,
        )
        .fetch_all(&mut *self.inner)
        .await?)
    }

    /// Open application sessions whose time to live is over.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn expired_sessions(&mut self, limit: i64) -> Result<Vec<Uuid>, DbError> {
        Ok(sqlx::query_scalar!(
            "SELECT session_id FROM fairledger.sessions WHERE status = 'open' AND expires_at <= clock_timestamp()
             ORDER BY expires_at LIMIT $1",
            limit,
        )
        .fetch_all(&mut *self.inner)
        .await?)
    }

    /// Whether a locked session is still open and idle, its live seed being locked too. The mark of its use is written down by another
    /// service now and then, so the newest bet and the newest step of its open rounds are looked at as well.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn is_idle(
        &mut self,
        session: &LockedSession,
        live: &LockedSeed,
        idle_after: Duration,
    ) -> Result<bool, DbError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT (status = 'open' AND active_at < idle_since
                       AND coalesce((SELECT taken_at FROM fairledger.bets WHERE session_id = $1 AND seed_no = $2 ORDER BY nonce DESC LIMIT 1)
                                    < idle_since, true)
                       AND coalesce((SELECT max(stepped_at) FROM fairledger.pending JOIN fairledger.steps USING (session_id, seed_no, nonce)
                                     WHERE session_id = $1 AND seed_no = $2) < idle_since, true)) AS "idle!"
               FROM fairledger.sessions, (SELECT clock_timestamp() - make_interval(secs => $3) AS idle_since) i WHERE session_id = $1"#,
            session.session_id,
            live.seed_no,
            idle_after.as_secs_f64(),
        )
        .fetch_one(&mut *self.inner)
        .await?)
    }

    /// Whether a locked application session is still open and its time to live over.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn is_expired(&mut self, session: &LockedSession) -> Result<bool, DbError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT (status = 'open' AND coalesce(expires_at <= clock_timestamp(), false)) AS "expired!"
               FROM fairledger.sessions WHERE session_id = $1"#,
            session.session_id,
        )
        .fetch_one(&mut *self.inner)
        .await?)
    }

    /// How many sessions carry a player's name.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn count_sessions_of_player(&mut self, player_ref: &str) -> Result<u64, DbError> {
        let count = sqlx::query_scalar!(
            r#"SELECT count(*) AS "count!" FROM fairledger.sessions WHERE player_ref = $1"#,
            player_ref
        )
        .fetch_one(&mut *self.inner)
        .await?;
        super::decode::unsigned("session", count)
    }

    /// Severs a player's name from some of the sessions that carry it; gives from how many. Only the owner may: the service has no right
    /// to that column.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn sever_player(&mut self, player_ref: &str, limit: i64) -> Result<u64, DbError> {
        Ok(sqlx::query!(
            "UPDATE fairledger.sessions SET player_ref = NULL
             WHERE session_id IN (SELECT session_id FROM fairledger.sessions WHERE player_ref = $1 ORDER BY session_id LIMIT $2
                                  FOR NO KEY UPDATE)",
            player_ref,
            limit,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected())
    }
}
