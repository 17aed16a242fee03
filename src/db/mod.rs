//! The datastore: every SQL statement of fairledger, one file a subject.
//!
//! A [`Datastore`] hands out transactions ([`Tx`]); the files beside this one add the statements of their subject to `Tx`. Each
//! transaction has a name for metrics and logs, states READ COMMITTED and its time limits as it begins, and is tried again by
//! `transaction!` only after a serialization failure or a deadlock, a bounded number of times.
//!
//! Keeps I4 (what belongs together is one transaction), I10 (see `fence`), I9 (an unknown outcome is called unknown) and I12 (every
//! statement, lock wait and queue for a connection is bounded).
//!
//! Statements take their locks in the order sessions, seeds, next_seeds, pending. The types [`sessions::LockedSession`] and
//! [`seeds::LockedSeed`] are the proof of a lock and are asked for by what needs one.

pub mod bets;
pub mod bootstrap;
pub mod coverage;
mod decode;
pub mod details;
pub mod fence;
pub mod group;
pub mod history;
pub mod keys;
mod lease;
pub mod migrate;
pub mod outcomes;
pub mod pending;
pub mod quota;
pub mod rights;
pub mod scan;
pub mod seed_keys;
pub mod seeds;
pub mod server;
pub mod sessions;
pub mod signing_keys;
pub mod spends;
pub mod state;
pub mod stats;
pub mod steps;
mod tls;
pub mod tokens;
pub mod witness;
pub mod writer;

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _};

pub(crate) use decode::corrupt;
use fence::{Fence, FenceError, FenceSettings};
use lease::Lease;
use stats::{Kind, Stats, StoreStats, Timed};
#[cfg(feature = "otlp")]
pub(crate) use tls::client_config;

/// How many times a transaction is tried in all when PostgreSQL reports a serialization failure or a deadlock.
pub const ATTEMPTS_MAX: u32 = 5;

/// How the pool is made.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// Connections at the most.
    pub connections_max: u32,
    /// How long a caller may wait for a connection.
    pub acquire_timeout: Duration,
    /// The longest that one statement may run.
    pub statement_timeout: Duration,
    /// The longest that one statement may wait for a lock.
    pub lock_timeout: Duration,
    /// A transaction that takes longer is logged, by name.
    pub slow_transaction: Duration,
    /// How long a change may take up to its commit, and then its commit, the wait for a standby included. After that the connection is
    /// given up: its other end may be gone without a word.
    pub transaction_timeout: Duration,
    /// The connection goes through a transaction-pooling PgBouncer: no named statements, nothing left in the session.
    pub transaction_pooler: bool,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            connections_max: 16,
            acquire_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(10),
            lock_timeout: Duration::from_secs(5),
            slow_transaction: Duration::from_secs(1),
            transaction_timeout: Duration::from_secs(20),
            transaction_pooler: false,
        }
    }
}

/// What went wrong between us and PostgreSQL. Messages carry no row values.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DbError {
    /// No connection was free in time, or too many wait already. Nothing was done.
    #[error("too many requests wait for the database")]
    Overloaded,
    /// The database could not be reached or refused to work. Nothing was persisted.
    #[error("the database is unavailable: {0}")]
    Unavailable(String),
    /// The database lacks something that was acknowledged: nothing is changed until a recovery. Nothing was persisted.
    #[error("in quarantine: {0}")]
    Quarantined(String),
    /// The connection was lost while the commit was under way: it may or may not have happened.
    #[error("the outcome of the commit is unknown: {0}")]
    OutcomeUnknown(String),
    /// A serialization failure or a deadlock. Rolled back; worth trying again.
    #[error("the transaction met another one: {0}")]
    Conflict(String),
    /// A statement or a lock took longer than allowed. Rolled back.
    #[error("the database took too long: {0}")]
    TimedOut(String),
    /// A seed is sealed under a key that this service does not have. Nothing was persisted, and another service may have the key.
    #[error("the seed of {commitment} is sealed under the key {key_id:?}, which is not among the seed keys")]
    SeedKeyMissing {
        /// The seed's commitment.
        commitment: String,
        /// The key's name.
        key_id: String,
    },
    /// A stored row contradicts itself, its neighbours or its own cryptography.
    #[error("corrupt data: {what}: {detail}")]
    Corrupt {
        /// The kind of row.
        what: &'static str,
        /// What does not fit. Never a secret.
        detail: String,
    },
    /// PostgreSQL refused a statement for a reason that no rule of ours foresees.
    #[error("unexpected database error: {0}")]
    Unexpected(String),
}

impl DbError {
    /// Worth trying again as it is: the whole transaction was rolled back for the sake of another.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict(_))
    }

    /// About one row only: what is stored beside it may be sound, so a task over many goes on. It was logged where it was found.
    pub fn is_of_one_row(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::SeedKeyMissing { .. })
    }
}

impl From<sqlx::Error> for DbError {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::PoolTimedOut => Self::Overloaded,
            sqlx::Error::Database(error) => {
                // Only the primary message: the detail line of an error may quote row values.
                let message = error.message().to_owned();
                match error.code().as_deref() {
                    Some("40001" | "40P01") => Self::Conflict(message),
                    Some("57014" | "55P03" | "25P03") => Self::TimedOut(message),
                    Some("53300") => Self::Overloaded,
                    Some(code) if ["08", "53", "57", "58"].contains(&&code[..2.min(code.len())]) || code == "25006" => {
                        Self::Unavailable(message)
                    }
                    code => Self::Unexpected(format!("{message} (SQLSTATE {})", code.unwrap_or("unknown"))),
                }
            }
            sqlx::Error::ColumnDecode { index, source } => {
                Self::Corrupt { what: "row", detail: format!("column {index}: {source}") }
            }
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::BeginFailed => Self::Unavailable(error.to_string()),
            other => Self::Unexpected(other.to_string()),
        }
    }
}

/// An error of a service that may have a [`DbError`] inside, so that `transaction!` can tell what to try again.
pub trait MaybeConflict {
    /// Whether the transaction is worth trying again as it is.
    fn is_conflict(&self) -> bool;
}

impl MaybeConflict for DbError {
    fn is_conflict(&self) -> bool {
        DbError::is_conflict(self)
    }
}

/// Whether both drivers, the pool's and the migrator's, can read a connection URL. Tells nothing of whether it leads anywhere.
pub fn understands_url(url: &str) -> bool {
    let scheme = url.starts_with("postgres://") || url.starts_with("postgresql://");
    scheme && url.parse::<PgConnectOptions>().is_ok() && tls::Target::parse(url).is_ok()
}

/// The pool and what every transaction begins with.
#[derive(Clone, Debug)]
pub struct Datastore {
    pool: PgPool,
    begin: String,
    acquire_timeout: Duration,
    statement_timeout: Duration,
    transaction_timeout: Duration,
    transaction_pooler: bool,
    /// The recovery epoch that changes are made in, as last seen.
    epoch: Arc<AtomicI32>,
    fence: Option<Arc<Fence>>,
    /// Without a fence: another instance found a loss, as [`Datastore::watch`] last saw it.
    posted: Arc<AtomicBool>,
    stats: Arc<Stats>,
}

fn connect_options(url: &str, transaction_pooler: bool) -> Result<PgConnectOptions, DbError> {
    let options: PgConnectOptions =
        url.parse().map_err(|error: sqlx::Error| DbError::Unavailable(error.to_string()))?;
    tls::Target::parse(url).and_then(|target| target.check_roots()).map_err(DbError::Unavailable)?;
    // Statements are logged by us, by name; sqlx would log their text at a level of its own.
    let options = options.application_name("fairledger").disable_statement_logging();
    Ok(if transaction_pooler { options.statement_cache_capacity(0) } else { options })
}

fn pool_options(url: &str, settings: &PoolSettings) -> Result<(PgPoolOptions, PgConnectOptions), DbError> {
    let options = connect_options(url, settings.transaction_pooler)?;
    let pool = PgPoolOptions::new().max_connections(settings.connections_max).acquire_timeout(settings.acquire_timeout);
    Ok((pool, options))
}

/// Behind a transaction pooler: the driver names its statements even when it keeps none, and the session has names of other clients. So every
/// transaction starts with none, and no statement runs outside one.
const FORGET_STATEMENTS: &str = "; DEALLOCATE ALL";

impl Datastore {
    /// Opens the pool.
    ///
    /// # Errors
    /// A URL that cannot be read, or a database that cannot be reached.
    pub async fn connect(url: &str, settings: &PoolSettings) -> Result<Self, DbError> {
        let (pool, options) = pool_options(url, settings)?;
        Ok(Self::over(pool.connect_with(options).await?, settings))
    }

    fn over(pool: PgPool, settings: &PoolSettings) -> Self {
        // SET LOCAL ends with the transaction, so nothing is left behind in a pooled session; sent together with BEGIN it costs no
        // round trip. The idle limit frees the locks of a transaction whose client vanished.
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = {}; SET LOCAL lock_timeout = {}; \
             SET LOCAL idle_in_transaction_session_timeout = {}{}",
            settings.statement_timeout.as_millis(),
            settings.lock_timeout.as_millis(),
            (settings.statement_timeout * 2).as_millis(),
            if settings.transaction_pooler { FORGET_STATEMENTS } else { "" },
        );
        Self {
            pool,
            begin,
            acquire_timeout: settings.acquire_timeout,
            statement_timeout: settings.statement_timeout,
            transaction_timeout: settings.transaction_timeout,
            transaction_pooler: settings.transaction_pooler,
            epoch: Arc::default(),
            fence: None,
            posted: Arc::default(),
            stats: Arc::new(Stats::new(settings.slow_transaction)),
        }
    }

    /// Fences whatever commits through this datastore and its clones from now on. Without that, nothing notices a database that
    /// lacks what was acknowledged.
    ///
    /// # Errors
    /// See [`FenceError`]. A database that lacks something is none: then the datastore is in quarantine.
    pub async fn fenced(mut self, settings: &FenceSettings) -> Result<Self, FenceError> {
        self.fence = Some(Arc::new(Fence::open(&self, settings).await?));
        Ok(self)
    }

    /// The same datastore without its fence: for what is acknowledged to nobody, as what a service writes at each start.
    #[must_use]
    pub fn unfenced(&self) -> Self {
        Self { fence: None, posted: Arc::default(), ..self.clone() }
    }

    /// The fence's instance; none without a fence.
    pub fn instance(&self) -> Option<&str> {
        self.fence.as_deref().map(Fence::instance)
    }

    /// Why nothing may be changed, if so: the database lacks something that was acknowledged.
    pub fn quarantine(&self) -> Option<String> {
        match &self.fence {
            Some(fence) => fence.quarantine_reason(),
            None => self.posted.load(Ordering::Acquire).then(|| fence::ELSEWHERE.to_owned()),
        }
    }

    /// Before a transaction begins that may change something.
    async fn ready(&self) -> Result<(), DbError> {
        match &self.fence {
            Some(fence) => fence.ready().await,
            None => self.quarantine().map_or(Ok(()), |reason| Err(DbError::Quarantined(reason))),
        }
    }

    /// The recovery epoch that changes are made in, as last seen: by the fence before each change, without one by
    /// [`Datastore::watch`].
    pub fn epoch(&self) -> i32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Notes an epoch that was read from the database.
    pub(crate) fn saw_epoch(&self, epoch: i32) {
        self.epoch.fetch_max(epoch, Ordering::AcqRel);
    }

    /// Looks once whether the database lacks something, by its own witness or another instance's, or a recovery was made. To be run
    /// often, every second or so.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn watch(&self) -> Result<(), DbError> {
        if let Some(fence) = &self.fence {
            return fence.watch().await;
        }
        let mut tx = self.snapshot("epoch.look").await?;
        let situation = witness::situation(&mut tx.inner).await?;
        tx.rollback().await;
        self.saw_epoch(situation.epoch);
        self.heed(situation.posted.is_some());
        Ok(())
    }

    /// Without a fence: follows a loss that another instance posted, and the recovery that ended it.
    fn heed(&self, posted: bool) {
        match (posted, self.posted.swap(posted, Ordering::AcqRel)) {
            (true, false) => tracing::error!(reason = fence::ELSEWHERE, "{}", fence::QUARANTINE),
            (false, true) => tracing::warn!(epoch = self.epoch(), "a recovery opened a new epoch: serving in it"),
            (true, true) | (false, false) => {}
        }
    }

    /// Makes new connections lead elsewhere; those open stay as they are.
    ///
    /// # Errors
    /// A URL that cannot be read.
    pub fn lead_to(&self, url: &str) -> Result<(), DbError> {
        self.pool.set_connect_options(connect_options(url, self.transaction_pooler)?);
        Ok(())
    }

    /// Begins a transaction. The name is for logs and metrics.
    ///
    /// # Errors
    /// No connection in time, or no database.
    pub async fn begin(&self, name: &'static str) -> Result<Tx, DbError> {
        self.ready().await?;
        let inner = self.lease(self.begin.clone()).await?;
        let timed = self.stats.begun(name);
        Ok(Tx { inner, timed, timeout: self.transaction_timeout, fence: self.fence.clone(), access: PhantomData })
    }

    /// Begins a read-only transaction that sees one snapshot throughout, for answers put together from several rows.
    ///
    /// # Errors
    /// No connection in time, or no database.
    pub async fn snapshot(&self, name: &'static str) -> Result<Tx<Look>, DbError> {
        self.snapshot_with(name, "").await
    }

    /// The same with more settings for its length.
    async fn snapshot_with(&self, name: &'static str, settings: &str) -> Result<Tx<Look>, DbError> {
        let begin = self.begin.replacen("READ COMMITTED", "REPEATABLE READ READ ONLY", 1) + settings;
        let inner = self.lease(begin).await?;
        let timed = self.stats.begun(name);
        Ok(Tx { inner, timed, timeout: self.transaction_timeout, fence: None, access: PhantomData })
    }

    /// A connection of the pool's in which a transaction has begun.
    async fn lease(&self, begin: String) -> Result<Lease, DbError> {
        let connection = self.pool.acquire().await.map_err(|error| self.no_connection(error))?;
        let mut lease = Lease::new(connection);
        lease.begin(begin, self.acquire_timeout).await?;
        Ok(lease)
    }

    /// A connection of its own for one transaction after the other, made when it is first used. It waits for locks no longer than
    /// `lock_timeout`; `settings` are PostgreSQL's, by name.
    pub fn writer(&self, lock_timeout: Duration, settings: &[(&str, &str)]) -> writer::Writer {
        writer::Writer::new(self.clone(), lock_timeout, settings)
    }

    /// Why no connection could be had: all are in use, or none can be made.
    fn no_connection(&self, error: sqlx::Error) -> DbError {
        if matches!(error, sqlx::Error::PoolTimedOut) && self.pool.size() < self.pool.options().get_max_connections() {
            return DbError::Unavailable("no connection to the database could be made in time".to_owned());
        }
        if matches!(error, sqlx::Error::PoolTimedOut) {
            self.stats.count_pool_timeout();
        }
        error.into()
    }

    /// Whether the database answers.
    ///
    /// # Errors
    /// Whatever keeps it from answering.
    pub async fn ping(&self) -> Result<(), DbError> {
        let mut lease = Lease::new(self.pool.acquire().await?);
        match tokio::time::timeout(self.acquire_timeout, lease.ping()).await {
            Ok(pinged) => Ok(pinged?),
            Err(_) => {
                lease.throw_away();
                Err(no_answer())
            }
        }
    }

    /// Closes the pool, waiting for transactions under way.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// What its transactions took so far, for metrics.
    pub fn stats(&self) -> StoreStats {
        self.stats.read()
    }

    /// Connections at the most.
    pub fn pool_size_max(&self) -> u32 {
        self.pool.options().get_max_connections()
    }

    /// Connections open and idle, for metrics.
    pub fn pool_size(&self) -> (u32, usize) {
        (self.pool.size(), self.pool.num_idle())
    }
}

/// Leaves the planner nested walks of indexes, which cost what they return, whatever its statistics say of the tables. (Incremental sorts
/// are not sorts in this sense.) So the values asked for change no plan, and a connection plans each statement once. Without JIT, which
/// the costs of what is switched off would set going.
const WALK_INDEXES: &str = "; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_hashjoin = off; \
                            SET LOCAL enable_mergejoin = off; SET LOCAL enable_sort = off; SET LOCAL jit = off; \
                            SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL plan_cache_mode = force_generic_plan";

/// Leaves the planner bitmaps of indexes, by which pages are read in order and each once, which takes a tenth less than a walk.
const SCAN_TABLES: &str = "; SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = off; SET LOCAL jit = off; \
                           SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL statement_timeout = 0";

/// Where history is read: a replica, or the service's own database. Gives transactions that only read, and nothing else, so that no
/// change can ever be based on a replica, which may be behind.
#[derive(Clone, Debug)]
pub struct Reader {
    store: Datastore,
    replica: bool,
}

impl Reader {
    /// Makes a pool for a replica. It connects when it is first read from: a replica that is away keeps nobody from betting.
    ///
    /// # Errors
    /// A URL that cannot be read.
    pub fn replica(url: &str, settings: &PoolSettings) -> Result<Self, DbError> {
        let (pool, options) = pool_options(url, settings)?;
        Ok(Self { store: Datastore::over(pool.connect_lazy_with(options), settings), replica: true })
    }

    /// Whether it may be behind the database that changes are made in.
    #[must_use]
    pub fn is_replica(&self) -> bool {
        self.replica
    }

    /// Begins a transaction that sees one snapshot throughout, and whose statements are planned as nested walks of indexes only.
    ///
    /// # Errors
    /// As [`Datastore::snapshot`].
    pub async fn snapshot(&self, name: &'static str) -> Result<Tx<Look>, DbError> {
        self.store.snapshot_with(name, WALK_INDEXES).await
    }

    /// The same for an export, which may wait for its reader between two statements for as long as this.
    ///
    /// # Errors
    /// As [`Datastore::snapshot`].
    pub async fn long_snapshot(&self, name: &'static str, idle_max: Duration) -> Result<Tx<Look>, DbError> {
        let settings =
            format!("{WALK_INDEXES}; SET LOCAL idle_in_transaction_session_timeout = {}", idle_max.as_millis());
        let mut tx = self.store.snapshot_with(name, &settings).await?;
        tx.timed.may_last();
        Ok(tx)
    }

    /// The same for reading very many rows of one table, in its own order, however long it takes.
    ///
    /// # Errors
    /// As [`Datastore::snapshot`].
    pub async fn scan_snapshot(&self, name: &'static str) -> Result<Tx<Look>, DbError> {
        let mut tx = self.store.snapshot_with(name, SCAN_TABLES).await?;
        tx.timed.may_last();
        Ok(tx)
    }

    /// Connections at the most.
    #[must_use]
    pub fn connections_max(&self) -> u32 {
        self.store.pool.options().get_max_connections()
    }

    /// Closes the pool of a replica; the service's own is closed by the service.
    pub async fn close(&self) {
        if self.replica {
            self.store.close().await;
        }
    }
}

impl From<&Datastore> for Reader {
    fn from(store: &Datastore) -> Self {
        Self { store: store.clone(), replica: false }
    }
}

/// What a transaction may do: [`Change`] or [`Look`].
pub trait Access: std::fmt::Debug + Send + Sync + 'static {}

/// A transaction that may change rows and lock them: READ COMMITTED.
#[derive(Debug)]
pub enum Change {}

/// A transaction that only reads: one snapshot throughout. No statement that changes or locks a row can be asked of it.
#[derive(Debug)]
pub enum Look {}

impl Access for Change {}
impl Access for Look {}

/// A transaction. Dropped without [`Tx::commit`] it is rolled back.
#[derive(Debug)]
pub struct Tx<A: Access = Change> {
    inner: Lease,
    timed: Timed,
    timeout: Duration,
    fence: Option<Arc<Fence>>,
    access: PhantomData<A>,
}

impl Tx {
    /// Commits. With a fence, only on a database that lacks nothing.
    ///
    /// # Errors
    /// [`DbError::OutcomeUnknown`] when the answer was lost; any other error means that nothing was persisted.
    pub async fn commit(mut self) -> Result<(), DbError> {
        let name = self.timed.name();
        let _commit = self.timed.commit(Kind::Single);
        let ticket = match self.fence.take() {
            Some(fence) => {
                let counted = tokio::time::timeout(self.timeout, fence.count(&mut self.inner)).await;
                counted.unwrap_or_else(|_| Err(self.give_up()))?
            }
            None => None,
        };
        let committed = match tokio::time::timeout(self.timeout, self.inner.execute("COMMIT")).await {
            Ok(Ok(_)) => {
                self.inner.ended();
                Ok(())
            }
            Ok(Err(error)) => Err(commit_error(name, error)),
            Err(_) => {
                tracing::warn!(transaction = name, "a commit got no answer in time: its connection is given up");
                self.inner.throw_away();
                Err(DbError::OutcomeUnknown("the commit got no answer in time".to_owned()))
            }
        };
        match ticket {
            Some(ticket) => ticket.settle(committed).await,
            None => committed,
        }
    }

    /// Before its commit: the connection is thrown away, and so nothing was persisted.
    pub(crate) fn give_up(&mut self) -> DbError {
        tracing::warn!(transaction = self.timed.name(), "a transaction took too long: its connection is given up");
        self.inner.throw_away();
        no_answer()
    }

    /// How long it may take up to its commit.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Has the commit counted by the fence although nothing changes: what an earlier transaction changed is acknowledged once more, and that
    /// one may have been counted in the database only.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) async fn acknowledge_again(&mut self) -> Result<(), DbError> {
        witness::be_counted(&mut self.inner).await
    }

    /// The connection, for what also runs inside a caller's own transaction.
    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        &mut self.inner
    }
}

impl<A: Access> Tx<A> {
    /// Rolls back at once, so that locks are free before the caller goes on. A failure is no news: the connection is gone, and its
    /// transaction with it.
    pub async fn rollback(mut self) {
        if let Err(error) = self.inner.rollback().await {
            tracing::debug!(transaction = self.timed.name(), %error, "rollback on a lost connection");
        }
    }
}

/// The database kept silent for too long. Nothing was persisted.
fn no_answer() -> DbError {
    DbError::Unavailable("the database did not answer in time".to_owned())
}

/// What a commit that failed came to.
fn commit_error(transaction: &'static str, error: sqlx::Error) -> DbError {
    let unknown = match &error {
        // A backend that is told to go while it commits may have committed already.
        sqlx::Error::Database(error) => {
            error.code().is_none_or(|code| code.starts_with("57P") || code.starts_with("08"))
        }
        _ => true,
    };
    if unknown {
        tracing::warn!(transaction, "the answer to a commit was lost");
        DbError::OutcomeUnknown(error.to_string())
    } else {
        DbError::from(error)
    }
}

/// A pause before the next try: short, growing, with jitter so that two that met do not meet again.
pub async fn pause_before_retry(attempt: u32) {
    let ceiling_ms = 5u64 << attempt.min(6);
    tokio::time::sleep(Duration::from_millis(rand::random_range(1..=ceiling_ms))).await;
}

/// Runs `$body` in a named transaction and commits it, trying again after a serialization failure or a deadlock.
///
/// `$body` is an expression of type `Result<T, E>` that may use `$tx: &mut Tx`; `E` has `From<DbError>` and [`MaybeConflict`]. An
/// error rolls back. It is a macro because a closure that borrows both its surroundings and the transaction cannot say that its
/// future is `Send`.
macro_rules! transaction {
    ($store:expr, $name:literal, |$tx:ident| $body:expr) => {{
        let mut attempt = 1;
        loop {
            let mut owned = $store.begin($name).await?;
            let timeout = owned.timeout();
            let done = {
                let $tx = &mut owned;
                tokio::time::timeout(timeout, async { $body }).await
            };
            let error = match done {
                Ok(Ok(value)) => match owned.commit().await {
                    Ok(()) => break Ok(value),
                    Err(error) => error.into(),
                },
                Ok(Err(error)) => {
                    owned.rollback().await;
                    error
                }
                Err(_) => owned.give_up().into(),
            };
            if !$crate::db::MaybeConflict::is_conflict(&error) || attempt == $crate::db::ATTEMPTS_MAX {
                break Err(error);
            }
            $crate::db::pause_before_retry(attempt).await;
            attempt += 1;
        }
    }};
}
pub(crate) use transaction;
