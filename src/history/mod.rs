//! The whole history: queries and exports for dispute teams, from a replica where there is one, and checking all of it.
//!
//! Keeps I6 and I11 (an answer is made from revealed seeds and recorded results only), I8 (it reads through a [`Reader`], which gives no
//! transaction that could change a row) and I12 (a page looks at so many rows at the most; exports are counted).
//!
//! An answer is complete up to a stated time, its `asOf`: no bet with an earlier time can be committed after its snapshot began. See
//! `History::look`.
//!
//! | file | holds |
//! |---|---|
//! | `filters` | what is asked for, and in which order it comes |
//! | `walk` | which index is walked for it, and how far |
//! | `pages` | pages and their tokens, single bets |
//! | `export`, `format` | everything in one file, line by line |
//! | `resume` | what is left of an export that broke off |
//! | `coverage` | whether every nonce that was handed out is accounted for |
//! | `bundle` | the evidence of one bet, and its check without a database |
//! | `rounds` | whether the steps of a round lead to its end |
//! | `check` | a check and what it came to |
//! | `verify` | recomputing stored bets from their revealed seeds |
//! | `distribution` | whether results are spread as their game says |
//! | `model`, `error` | answers, refusals |

pub mod bundle;
mod check;
pub mod coverage;
pub mod distribution;
pub mod error;
pub mod export;
pub mod filters;
pub mod format;
pub mod model;
mod pages;
pub mod resume;
mod rounds;
pub mod verify;
mod walk;

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::Semaphore;

pub use check::{Check, State};
pub use error::HistoryError;
pub use filters::{Filters, Order};
pub use pages::PageRequest;

use crate::db::details::{BetDetails, BetState};
use crate::db::{DbError, Look, Reader, Tx};
use crate::seeds::ServiceSecret;

/// Bounds of queries and exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistorySettings {
    /// Rows that one page looks at, about, before it is answered as it is.
    pub examined_max: usize,
    /// Exports under way at the most.
    pub exports_max: usize,
    /// An export whose reader takes nothing for so long is cut off.
    pub export_stall: Duration,
}

impl Default for HistorySettings {
    fn default() -> Self {
        Self { examined_max: 20_000, exports_max: 2, export_stall: Duration::from_secs(60) }
    }
}

/// The whole history, to be looked through. Cheap to clone.
#[derive(Clone)]
pub struct History {
    inner: Arc<Inner>,
}

struct Inner {
    reader: Reader,
    secret: ServiceSecret,
    settings: HistorySettings,
    exports: Arc<Semaphore>,
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History").field("settings", &self.inner.settings).finish_non_exhaustive()
    }
}

/// A snapshot, and up to when it is complete.
#[derive(Debug)]
pub(crate) struct Looking {
    pub(crate) tx: Tx<Look>,
    /// When it began, by the clock of its database. All expiries are judged by it.
    pub(crate) now: DateTime<Utc>,
    /// No bet with an earlier time is missing from it.
    pub(crate) as_of: DateTime<Utc>,
}

impl Looking {
    /// How long ago a time is, in whole milliseconds.
    pub(crate) fn behind_ms(&self, as_of: DateTime<Utc>) -> u64 {
        u64::try_from((self.now - as_of).num_milliseconds()).unwrap_or(0)
    }

    /// A bet as it was when the snapshot began: a reservation that has expired since was pending. One whose end is stored was not, whatever
    /// the clock says now.
    pub(crate) fn as_it_was(&self, mut bet: BetDetails) -> BetDetails {
        let by_the_clock = bet.has_pending_row && matches!(bet.state, BetState::Void { .. });
        if by_the_clock && bet.expires_at.is_some_and(|expires_at| expires_at > self.now) {
            bet.state = BetState::Pending;
        }
        bet
    }
}

impl History {
    /// Over the database that is to be read.
    #[must_use]
    pub fn new(reader: Reader, secret: ServiceSecret, settings: HistorySettings) -> Self {
        let exports = Arc::new(Semaphore::new(settings.exports_max));
        Self { inner: Arc::new(Inner { reader, secret, settings, exports }) }
    }

    /// Where it reads.
    #[must_use]
    pub fn reader(&self) -> &Reader {
        &self.inner.reader
    }

    /// Bounds in force.
    #[must_use]
    pub fn settings(&self) -> &HistorySettings {
        &self.inner.settings
    }

    /// Begins a snapshot that is known to be complete up to a time.
    ///
    /// In the service's own database we first look whether bets are being taken: a bet's time is no earlier than its transaction's
    /// beginning, so nothing can come any more from before the oldest of these. The snapshot begins after that look, so it has all that was
    /// committed by then. Where that cannot be told (another role's transaction), and on a replica, which cannot see the transactions of its
    /// primary, what the services wrote down stands in: it was found in the same way, and is replayed after the commits that it speaks of.
    pub(crate) async fn look(&self, name: &'static str) -> Result<Looking, DbError> {
        self.look_for(name, None).await
    }

    /// The same; the snapshot may be idle for so long.
    async fn look_for(&self, name: &'static str, idle_max: Option<Duration>) -> Result<Looking, DbError> {
        let inner = &*self.inner;
        let found = if inner.reader.is_replica() {
            None
        } else {
            let mut tx = inner.reader.snapshot("history.in_flight").await?;
            let in_flight = tx.bets_in_flight().await?;
            tx.rollback().await;
            in_flight.as_of()
        };
        let mut tx = match idle_max {
            Some(idle_max) => inner.reader.long_snapshot(name, idle_max).await?,
            None => inner.reader.snapshot(name).await?,
        };
        let (now, written) = tx.horizon().await?;
        // Never later than now, and never what was found at another time: the clock may have been set back since.
        let as_of = found.unwrap_or(written).min(now);
        Ok(Looking { tx, now, as_of })
    }
}
