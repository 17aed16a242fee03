//! What happens by itself: sessions follow a recovery, use of sessions is written down, idle sessions are closed, expired reservations
//! voided, old quota rows and application sessions past their time ended. Bounded batches; each session in a transaction of its own, looked
//! at again under its lock, so that any number of processes may do this at once.

use uuid::Uuid;

use super::error::{Attempt, SeedsError, settle_it};
use super::recovery::BEGIN;
use super::{Seeds, missing};
use crate::db::seeds::RetiredBy;
use crate::db::{DbError, Tx, transaction};

/// Rows that one round of maintenance looks at, of each kind.
const BATCH: i64 = 200;

/// Sessions marked in one statement.
const MARKS_MAX: usize = 1_000;

/// What one round of maintenance did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Sessions whose use was written down.
    pub marked: usize,
    /// Sessions moved into the epoch of a recovery.
    pub recovered: usize,
    /// Idle sessions closed.
    pub closed: usize,
    /// Application sessions ended because their time to live was over.
    pub expired_sessions: usize,
    /// Seeds revealed whose reveal was left over.
    pub revealed: usize,
    /// Reservations voided.
    pub expired_reservations: usize,
    /// Quota rows forgotten.
    pub quota_rows: u64,
    /// Some batch was full: there is more to do.
    pub more: bool,
}

impl Seeds {
    /// Does one round of maintenance. Run often: each is short.
    ///
    /// # Errors
    /// The database's; what was done before stays done.
    pub async fn maintain(&self) -> Result<Maintained, SeedsError> {
        let mut done = Maintained { marked: self.write_marks().await?, ..Maintained::default() };
        let settings = &self.inner.settings;
        let store = &self.inner.store;
        let idle_seconds = settings.idle_after.as_secs_f64();

        let place = self.inner.recovering.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let (recovered, next) = self.recover_some(place.unwrap_or(BEGIN)).await?;
        *self.inner.recovering.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = next;
        done.recovered = recovered;
        done.more |= next.is_some();

        let due = transaction!(store, "maintain.reveals", |tx| tx.reveals_due(BATCH).await)?;
        done.more |= due.len() == BATCH as usize;
        for (session_id, seed_no) in due {
            let revealed = self.reveal_due(session_id, seed_no).await;
            done.revealed += passing_over_corruption(revealed.map(|()| 1).map_err(Into::into))?;
        }

        let reservations = transaction!(store, "maintain.reservations", |tx| tx.expired_reservations(BATCH).await)?;
        done.more |= reservations.len() == BATCH as usize;
        let mut sessions: Vec<Uuid> = reservations.iter().map(|key| key.session_id).collect();
        sessions.sort_unstable();
        sessions.dedup();
        for session_id in sessions {
            done.expired_reservations += passing_over_corruption(self.void_expired_of(session_id).await)?;
        }

        let idle = transaction!(store, "maintain.idle", |tx| tx.idle_sessions(idle_seconds, BATCH).await)?;
        done.more |= idle.len() == BATCH as usize;
        for session_id in idle {
            done.closed += passing_over_corruption(self.end_session(session_id, RetiredBy::Idle).await)?;
        }

        let expired = transaction!(store, "maintain.expired", |tx| tx.expired_sessions(BATCH).await)?;
        done.more |= expired.len() == BATCH as usize;
        for session_id in expired {
            done.expired_sessions += passing_over_corruption(self.end_session(session_id, RetiredBy::Expiry).await)?;
        }

        let window_seconds = settings.address_window.as_secs_f64();
        done.quota_rows = transaction!(store, "maintain.quota", |tx| tx.sweep_quota(window_seconds, BATCH).await)?;
        Ok(done)
    }

    /// Writes down up to when all bets are committed, for those who read a replica, which cannot see the transactions under way. Run about
    /// once a second: a replica's readers see nothing later.
    ///
    /// # Errors
    /// The database's.
    pub async fn advance_horizon(&self) -> Result<(), SeedsError> {
        // Acknowledged to nobody.
        let store = self.inner.store.unfenced();
        let mut tx = store.snapshot("horizon.look").await?;
        let in_flight = tx.bets_in_flight().await?;
        tx.rollback().await;
        match in_flight.as_of() {
            Some(as_of) => {
                transaction!(store, "horizon.advance", |tx| tx.advance_horizon(as_of).await).map_err(SeedsError::from)
            }
            None => Ok(()),
        }
    }

    /// Writes down which sessions were used. On a failure the marks are kept for the next time. [`Seeds::maintain`] does this first;
    /// by itself it is for a service that stops.
    ///
    /// # Errors
    /// The database's.
    pub async fn write_marks(&self) -> Result<usize, SeedsError> {
        let mut ids: Vec<Uuid> = {
            let mut seen = self.inner.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            seen.drain().collect()
        };
        let count = ids.len();
        while !ids.is_empty() {
            let start = ids.len().saturating_sub(MARKS_MAX);
            let chunk = &mut ids[start..];
            let marked: Result<(), DbError> =
                async { transaction!(self.inner.store, "session.mark", |tx| tx.mark_active(chunk).await) }.await;
            if let Err(error) = marked {
                let mut seen = self.inner.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                seen.extend(ids);
                return Err(error.into());
            }
            ids.truncate(start);
        }
        Ok(count)
    }

    /// Closes a session if it is still idle, or past its time, under its lock; gives how many were closed.
    pub(super) async fn end_session(&self, session_id: Uuid, by: RetiredBy) -> Result<usize, SeedsError> {
        let ended = settle_it!(self, "session.end", |tx| self.end_session_in(tx, session_id, by).await)?;
        if let Some(Some(seed_no)) = ended {
            self.reveal_due(session_id, seed_no).await?;
        }
        Ok(usize::from(ended.is_some()))
    }

    /// Gives the seed that is to be revealed, if there is one; nothing when the session is not to be closed.
    async fn end_session_in(
        &self,
        tx: &mut Tx,
        session_id: Uuid,
        by: RetiredBy,
    ) -> Result<Option<Option<i32>>, Attempt> {
        let session = tx.lock_session(session_id).await?.ok_or_else(|| missing("session"))?;
        self.in_epoch(&session)?;
        let live = tx.lock_live_seed(&session).await?;
        let due = match (by, &live) {
            // Under the seed's lock no bet is on its way.
            (RetiredBy::Idle, Some(live)) => tx.is_idle(&session, live, self.inner.settings.idle_after).await?,
            (RetiredBy::Idle, None) => false,
            _ => tx.is_expired(&session).await?,
        };
        if !due {
            return Ok(None);
        }
        let Some(live) = live else {
            // An application that revealed its seed and never put another.
            tx.close_session(&session).await?;
            return Ok(Some(None));
        };
        let revealed = self.close_locked(tx, &session, &live, by).await?;
        Ok(Some(revealed.map(|_| live.seed_no)))
    }
}

/// One row that is corrupt, or whose key is missing, must not keep every other session from its end. It was logged where it was found.
fn passing_over_corruption(done: Result<usize, SeedsError>) -> Result<usize, SeedsError> {
    match done {
        Err(SeedsError::Db(error)) if error.is_of_one_row() => Ok(0),
        other => other,
    }
}
