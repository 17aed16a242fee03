//! What transactions took, for metrics and for the log of slow ones.
//!
//! Serves I12: what is bounded can be watched coming near its bound. A transaction is known by its name, never by what is in it (I13).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tracing::Span;

/// Upper bounds of the times that are counted apart, in microseconds.
pub const TIMES_US: [u64; 10] = [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 64_000, 256_000, 1_024_000];

/// How many values fell under each bound, and their sum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// One number for each bound, and one for what is above the last.
    pub counts: [u64; 11],
    /// The sum of all values.
    pub sum: u64,
}

/// A distribution that grows.
#[derive(Debug, Default)]
pub(super) struct Tally {
    counts: [AtomicU64; 11],
    sum: AtomicU64,
}

impl Tally {
    pub(super) fn count(&self, bounds: &[u64; 10], value: u64) {
        let place = bounds.iter().position(|bound| value <= *bound).unwrap_or(bounds.len());
        self.counts[place].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    pub(super) fn count_time(&self, took: Duration) {
        self.count(&TIMES_US, u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    pub(super) fn read(&self) -> Distribution {
        let counts = std::array::from_fn(|place| self.counts[place].load(Relaxed));
        Distribution { counts, sum: self.sum.load(Relaxed) }
    }
}

/// What the transactions of a datastore took so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Commits of transactions of their own, in microseconds, by [`TIMES_US`].
    pub commits_us: Distribution,
    /// Commits of groups.
    pub group_commits_us: Distribution,
    /// Transactions that took longer than the setting.
    pub slow: u64,
    /// Callers that got no connection in time.
    pub pool_timeouts: u64,
}

/// Whose commit it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Single,
    Group,
}

#[derive(Debug)]
pub(super) struct Stats {
    slow_after: Duration,
    commits: Tally,
    group_commits: Tally,
    slow: AtomicU64,
    pool_timeouts: AtomicU64,
}

impl Stats {
    pub fn new(slow_after: Duration) -> Self {
        Self {
            slow_after,
            commits: Tally::default(),
            group_commits: Tally::default(),
            slow: AtomicU64::new(0),
            pool_timeouts: AtomicU64::new(0),
        }
    }

    pub fn begun(self: &Arc<Self>, name: &'static str) -> Timed {
        // Within a request only: each of maintenance's own would be a trace.
        let span = if Span::current().is_none() { Span::none() } else { tracing::debug_span!("transaction", name) };
        Timed { stats: Arc::clone(self), name, started: Instant::now(), may_last: false, _span: span }
    }

    pub fn count_pool_timeout(&self) {
        self.pool_timeouts.fetch_add(1, Relaxed);
    }

    pub fn read(&self) -> StoreStats {
        StoreStats {
            commits_us: self.commits.read(),
            group_commits_us: self.group_commits.read(),
            slow: self.slow.load(Relaxed),
            pool_timeouts: self.pool_timeouts.load(Relaxed),
        }
    }
}

/// A transaction under way. Dropped with it, it is logged when it took too long.
#[derive(Debug)]
pub(super) struct Timed {
    stats: Arc<Stats>,
    name: &'static str,
    started: Instant,
    may_last: bool,
    /// Never entered: it is as long as the transaction.
    _span: Span,
}

impl Timed {
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// How long it takes is its reader's to say, and no sign of anything.
    pub fn may_last(&mut self) {
        self.may_last = true;
    }

    /// Times a commit until the value is dropped.
    pub fn commit(&self, kind: Kind) -> Commit {
        Commit { stats: Arc::clone(&self.stats), kind, started: Instant::now() }
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        if took >= self.stats.slow_after && !self.may_last {
            self.stats.slow.fetch_add(1, Relaxed);
            let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            tracing::warn!(transaction = self.name, took_ms, "a slow transaction");
        }
    }
}

/// A commit under way.
#[derive(Debug)]
pub(super) struct Commit {
    stats: Arc<Stats>,
    kind: Kind,
    started: Instant,
}

impl Drop for Commit {
    fn drop(&mut self) {
        let tally = match self.kind {
            Kind::Single => &self.stats.commits,
            Kind::Group => &self.stats.group_commits,
        };
        tally.count_time(self.started.elapsed());
    }
}
