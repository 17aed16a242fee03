//! Group commit: many callers, few transactions.
//!
//! Callers queue. A few writers, each with a connection of its own, take whatever has queued while the last batch was in flight and
//! commit it as one transaction. There is no timer: an idle writer takes a caller's item at once, and the busier the database is, the
//! larger the batches get. What a batch does is its [`Work`]'s to say; here are the queue, the writers, and who is told what:
//!
//! * what the work answers, each caller its own;
//! * *alone* when the batch was rolled back for a reason that one item alone may have given: every caller then makes its own transaction
//!   and meets its own fate;
//! * otherwise the error of the batch, which is the truth for everyone in it.
//!
//! Keeps I9 (an answer leaves after the commit, and a lost one is called unknown to all) and I12 (the queue, the batch and the wait for
//! a lock are bounded; a full queue is [`DbError::Overloaded`] at once).

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::stats::{Distribution, Tally};
use super::writer::Writer;
use super::{ATTEMPTS_MAX, Datastore, DbError, pause_before_retry};

/// Limits of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSettings {
    /// Callers that may wait at the most, in all queues together.
    pub queue_max: u32,
    /// Items in one transaction at the most.
    pub batch_max: u32,
    /// Writers, each with a connection of its own.
    pub writers: u32,
    /// How long a batch waits for a lock. After that everybody in it goes alone, and only who needs the lock waits on.
    pub lock_timeout: Duration,
}

impl Default for GroupSettings {
    fn default() -> Self {
        Self { queue_max: 8_192, batch_max: 1_000, writers: 2, lock_timeout: Duration::from_millis(200) }
    }
}

/// Which writer takes an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Whichever is free.
    Any,
    /// Always the same one for the same route, so that writers do not wait for each other's rows.
    ByRoute,
}

/// What a batch answers one of its items.
#[derive(Debug)]
pub enum Reply<A> {
    /// Committed, or refused for good.
    Done(A),
    /// Nothing was done for this item: its caller is to make a transaction of its own.
    Alone,
}

/// What is done with the items of a queue.
pub trait Work: Send + Sync + 'static {
    /// What callers queue.
    type Item: Send + Sync + 'static;
    /// What each is told.
    type Answer: Send + 'static;
    /// The name of its transactions, and of a wait for one in a trace.
    const NAME: &'static str;
    /// Settings of the writers' sessions besides the limits, by name.
    const SESSION: &'static [(&'static str, &'static str)];

    /// Commits a batch and gives a reply for each item, in order. An error means that nothing of it was persisted, or
    /// [`DbError::OutcomeUnknown`]. A conflict is tried again by the group.
    fn commit(
        &self,
        writer: &mut Writer,
        items: &[Self::Item],
    ) -> impl Future<Output = Result<Vec<Reply<Self::Answer>>, DbError>> + Send;
}

struct Job<W: Work> {
    item: W::Item,
    answer: oneshot::Sender<Result<Reply<W::Answer>, DbError>>,
}

type Queue<W> = Arc<Mutex<mpsc::Receiver<Job<W>>>>;

/// The queues and their writers. These start with the first item, on the runtime of its caller.
pub struct Group<W: Work> {
    store: Datastore,
    work: Arc<W>,
    settings: GroupSettings,
    routing: Routing,
    queues: OnceLock<Vec<mpsc::Sender<Job<W>>>>,
    counters: Arc<Counters>,
    stop: CancellationToken,
    writers: TaskTracker,
}

impl<W: Work> std::fmt::Debug for Group<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl<W: Work> Group<W> {
    /// A group over a database.
    pub fn new(store: Datastore, work: W, settings: GroupSettings, routing: Routing) -> Self {
        Self {
            store,
            work: Arc::new(work),
            settings,
            routing,
            queues: OnceLock::new(),
            counters: Arc::default(),
            stop: CancellationToken::new(),
            writers: TaskTracker::new(),
        }
    }

    /// Queues an item and waits for what it came to. A caller that stops waiting changes nothing for the others; its own item may
    /// have been committed all the same.
    ///
    /// # Errors
    /// [`DbError::Overloaded`] when the queue is full, [`DbError::Unavailable`] when the group is closed, and those of the batch.
    pub async fn submit(&self, route: u64, item: W::Item) -> Result<Reply<W::Answer>, DbError> {
        let queues = self.queues.get_or_init(|| self.start());
        // A remainder is below the number of queues, which is at least one.
        let queue = &queues[(route % queues.len() as u64) as usize];
        let (answer, answered) = oneshot::channel();
        queue.try_send(Job { item, answer }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                DbError::Overloaded
            }
            mpsc::error::TrySendError::Closed(_) => DbError::Unavailable("the service is stopping".to_owned()),
        })?;
        let span = tracing::debug_span!("batch", name = W::NAME);
        answered.instrument(span).await.unwrap_or_else(|_| Err(writer_ended()))
    }

    fn start(&self) -> Vec<mpsc::Sender<Job<W>>> {
        let writers = self.settings.writers.max(1) as usize;
        let queues = if self.routing == Routing::Any { 1 } else { writers };
        (0..queues)
            .map(|_| {
                let (sender, receiver) = mpsc::channel((self.settings.queue_max as usize / queues).max(1));
                let queue = Arc::new(Mutex::new(receiver));
                let batch_max = self.settings.batch_max.max(1) as usize;
                for _ in 0..writers / queues {
                    let writer = self.store.writer(self.settings.lock_timeout, W::SESSION);
                    let (work, counters) = (Arc::clone(&self.work), Arc::clone(&self.counters));
                    let (queue, stop) = (Arc::clone(&queue), self.stop.clone());
                    self.writers.spawn(write(work, queue, writer, counters, stop, batch_max));
                }
                sender
            })
            .collect()
    }

    /// Takes no more items, commits those that wait, and closes the writers' connections.
    pub async fn close(&self) {
        self.stop.cancel();
        self.writers.close();
        self.writers.wait().await;
    }

    /// What the group did so far.
    pub fn stats(&self) -> GroupStats {
        let queued = self
            .queues
            .get()
            .map_or(0, |queues| queues.iter().map(|queue| queue.max_capacity().saturating_sub(queue.capacity())).sum());
        GroupStats { queued, queue_max: self.settings.queue_max as usize, ..self.counters.stats() }
    }
}

fn writer_ended() -> DbError {
    DbError::OutcomeUnknown("the writer ended before it answered".to_owned())
}

async fn write<W: Work>(
    work: Arc<W>,
    queue: Queue<W>,
    mut writer: Writer,
    counters: Arc<Counters>,
    stop: CancellationToken,
    batch_max: usize,
) {
    let mut jobs = Vec::new();
    while next_batch(&queue, &mut jobs, batch_max, &stop).await > 0 {
        let (items, answers): (Vec<_>, Vec<_>) = jobs.drain(..).map(|job: Job<W>| (job.item, job.answer)).unzip();
        let started = Instant::now();
        // A writer outlives a defect in the work: its callers are told that nobody knows, and the next batch comes.
        let done = AssertUnwindSafe(commit(&*work, &mut writer, &items)).catch_unwind().await;
        let done = done.unwrap_or_else(|_| Err(writer_ended()));
        counters.count(items.len(), started.elapsed(), &done);
        match done {
            // Whoever went away gets no answer, and nobody minds.
            Ok(replies) => answers.into_iter().zip(replies).for_each(|(answer, reply)| drop(answer.send(Ok(reply)))),
            Err(error) => answers.into_iter().for_each(|answer| drop(answer.send(Err(error.clone())))),
        }
    }
    writer.close().await;
}

/// Everything that has queued; waits while that is nothing. Zero once the group is closed and its queue empty.
async fn next_batch<W: Work>(
    queue: &Queue<W>,
    jobs: &mut Vec<Job<W>>,
    batch_max: usize,
    stop: &CancellationToken,
) -> usize {
    let mut queue = queue.lock().await;
    if !stop.is_cancelled() {
        tokio::select! {
            biased;
            taken = queue.recv_many(jobs, batch_max) => return taken,
            () = stop.cancelled() => {}
        }
    }
    queue.close();
    queue.recv_many(jobs, batch_max).await
}

async fn commit<W: Work>(work: &W, writer: &mut Writer, items: &[W::Item]) -> Result<Vec<Reply<W::Answer>>, DbError> {
    let mut attempt = 1;
    loop {
        let time = writer.batch_timeout();
        let committed = tokio::time::timeout(time, work.commit(writer, items)).await;
        let error = match committed.unwrap_or_else(|_| Err(writer.give_up())) {
            Ok(replies) if replies.len() == items.len() => return Ok(replies),
            Ok(_) => DbError::OutcomeUnknown("a batch with another number of answers".to_owned()),
            Err(error) => error,
        };
        match error {
            DbError::Conflict(_) if attempt < ATTEMPTS_MAX => {}
            // Rolled back, and maybe for the sake of one item.
            DbError::Conflict(_)
            | DbError::TimedOut(_)
            | DbError::Unexpected(_)
            | DbError::SeedKeyMissing { .. }
            | DbError::Corrupt { .. } => {
                tracing::debug!(%error, items = items.len(), "a batch was rolled back: each goes alone");
                return Ok(items.iter().map(|_| Reply::Alone).collect());
            }
            DbError::Overloaded | DbError::Unavailable(_) | DbError::Quarantined(_) | DbError::OutcomeUnknown(_) => {
                return Err(error);
            }
        }
        pause_before_retry(attempt).await;
        attempt += 1;
    }
}

/// Upper bounds of the batch sizes that are counted apart; what is larger counts for itself.
pub const BATCH_SIZES: [u64; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// What a group did so far, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Items that wait now.
    pub queued: usize,
    /// Items that may wait at the most.
    pub queue_max: usize,
    /// Items that were refused because the queue was full.
    pub refused: u64,
    /// Items that were sent on to transactions of their own.
    pub alone: u64,
    /// Batches that ended with an error for everybody.
    pub failed: u64,
    /// Sizes of the batches, by [`BATCH_SIZES`].
    pub sizes: Distribution,
    /// What batches took from their begin to their end, in microseconds, by [`TIMES_US`](super::stats::TIMES_US).
    pub times_us: Distribution,
}

#[derive(Debug, Default)]
struct Counters {
    refused: AtomicU64,
    alone: AtomicU64,
    failed: AtomicU64,
    sizes: Tally,
    times_us: Tally,
}

impl Counters {
    fn count<A>(&self, items: usize, took: Duration, done: &Result<Vec<Reply<A>>, DbError>) {
        self.sizes.count(&BATCH_SIZES, items as u64);
        self.times_us.count_time(took);
        match done {
            Ok(replies) => {
                let alone = replies.iter().filter(|reply| matches!(reply, Reply::Alone)).count();
                self.alone.fetch_add(alone as u64, Ordering::Relaxed);
            }
            Err(_) => drop(self.failed.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn stats(&self) -> GroupStats {
        GroupStats {
            refused: self.refused.load(Ordering::Relaxed),
            alone: self.alone.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            sizes: self.sizes.read(),
            times_us: self.times_us.read(),
            ..GroupStats::default()
        }
    }
}
