//! The restore fence: nothing commits on a database that lacks something this service has acknowledged.
//!
//! Keeps I10. A restored snapshot brings seeds and counters back together, both old, and looks sound: nonces would be handed out again,
//! spent tokens would be fresh. So an instance of the service counts what it acknowledges, twice: in a row of the database that is
//! counted up inside each transaction, and in a file outside of it that is synced before the answer leaves. The database is never
//! behind the file unless something acknowledged is gone.
//!
//! A *writer* is a numbered place, taken for as long as one commit takes; it has a row and two slots of the file. One commit:
//!
//! 1. the writer's row is counted up if it is what the writer expects, and by the same statement the rows of *all* writers are compared
//!    with what they have acknowledged: a database that was replaced is noticed by the first write, whoever's acknowledgements it lacks;
//! 2. COMMIT;
//! 3. the number goes into the file and is synced;
//! 4. the answer leaves.
//!
//! A commit whose answer was lost leaves the row one ahead or not; the writer's next use, the next look or the next start adopts what it finds.
//! Transactions that change nothing are not counted, but for those that acknowledge again what was changed before.
//!
//! What is found missing puts the instance in *quarantine*, and is posted in the database so that every instance follows. Only a recovery
//! ends it: it opens a new epoch, in which every writer starts anew.

mod folder;

use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, PgConnection, PgPool};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

pub use folder::{FolderContents, Mark, is_instance_name, look};

use super::witness::{self, Counted, Situation};
use super::{Datastore, DbError};
use folder::{Folder, Kept, Reading};

/// How long the fence's own work on the database may take at a time.
const OWN_TIMEOUT: Duration = Duration::from_secs(10);

/// How often one commit counts again after it adopted what an earlier one left.
const COUNTS_MAX: u32 = 4;

/// What the reason of a quarantine that another instance found begins with.
pub(super) const ELSEWHERE: &str = "another instance found acknowledged state missing; see `fairledger recover`";

/// What the log says of it, once.
pub(super) const QUARANTINE: &str =
    "QUARANTINE: nothing is bet, revealed or spent until an operator has run `fairledger recover`";

/// How an instance is fenced.
#[derive(Clone, Debug)]
pub struct FenceSettings {
    /// The witness folder.
    pub dir: PathBuf,
    /// The instance's name; made once and kept in the folder when none is given.
    pub instance: Option<String>,
    /// Commits under way at once.
    pub writers: u32,
    /// Join a database that has data although the folder is empty.
    pub join: bool,
}

/// Why an instance cannot be fenced.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    /// The folder cannot be used.
    #[error("witness folder {}: {reason}", dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// Why.
        reason: String,
    },
    /// Another process uses the folder.
    #[error("witness folder {}: another process uses it; every instance needs a folder of its own", dir.display())]
    InUse {
        /// The folder.
        dir: PathBuf,
    },
    /// The folder belongs to another instance.
    #[error("witness folder {}: it belongs to the instance {kept:?}", dir.display())]
    OtherInstance {
        /// The folder.
        dir: PathBuf,
        /// Whose it is.
        kept: String,
    },
    /// Part of what the folder said cannot be read any more.
    #[error(
        "witness folder {}: {what}; so nobody can tell what was acknowledged. If the database was restored or failed over since, run \
         `fairledger recover` first. Then give the instance an empty folder and another name, and start it once with --witness-join",
        dir.display()
    )]
    Damaged {
        /// The folder.
        dir: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The database has data that this instance has no witness of.
    #[error(
        "the database has data, and the witness folder {} says nothing of it. Start once with --witness-join if this instance is new to \
         the database; if the folder was lost, nobody can tell whether the database lacks something",
        dir.display()
    )]
    NotJoined {
        /// The folder.
        dir: PathBuf,
    },
    /// The instance that is to join is known to the database already.
    #[error(
        "the database has {committed} transactions of an instance {instance:?}, and the witness folder {} says nothing of them: that \
         instance runs elsewhere, or its folder was lost. Join under another name (--instance, FAIRLEDGER_INSTANCE). A recovery sets the \
         name free; if the folder was lost and the database restored or failed over since, `fairledger recover` is needed anyway",
        dir.display()
    )]
    NameInUse {
        /// The folder.
        dir: PathBuf,
        /// The name.
        instance: String,
        /// What its writers have committed.
        committed: i64,
    },
    /// The database.
    #[error(transparent)]
    Db(#[from] DbError),
}

impl From<sqlx::Error> for FenceError {
    fn from(error: sqlx::Error) -> Self {
        Self::Db(error.into())
    }
}

/// Whether changes go through.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    Serving,
    /// A recovery has opened a later epoch: the writers must start anew in it.
    Outdated,
    Quarantined {
        reason: String,
        /// Whether the other instances are to know, and whether they do.
        post: Post,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Post {
    No,
    Due,
    Done,
}

/// A writer that is free, or in a commit.
#[derive(Clone, Copy, Debug)]
struct Writer {
    no: u32,
    /// What its row says, unless `uncertain`.
    expected: i64,
    /// The slot that holds its mark.
    slot: u64,
    /// The outcome of its last commit is not known: its row may be one ahead.
    uncertain: bool,
}

/// What the file says of all writers.
#[derive(Debug)]
struct Marks {
    /// The epoch of all of them while the instance serves.
    epoch: i32,
    /// By writer. While the instance serves, each that it uses has one, and each that is there for settings that had more has one if it
    /// was started in this epoch: to be compared, not to be used.
    kept: Vec<Option<Kept>>,
}

impl Marks {
    /// By writer.
    fn acknowledged(&self) -> Vec<Option<Mark>> {
        self.kept.iter().map(|kept| kept.map(|kept| kept.mark)).collect()
    }
}

#[derive(Debug)]
pub(super) struct Fence {
    folder: Folder,
    /// Only for where it leads: whoever waits for a writer holds a connection of the pool, so what lets them go on must not wait for one.
    pool: PgPool,
    /// What its transactions begin with.
    begin: String,
    /// At rest.
    own: Mutex<Option<PgConnection>>,
    /// The datastore's.
    epoch: Arc<AtomicI32>,
    standing: RwLock<Standing>,
    marks: Mutex<Marks>,
    free: Mutex<Vec<Writer>>,
    permits: Arc<Semaphore>,
    /// How many it uses. Those beyond are there for settings that had more.
    writers: u32,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fence {
    /// Takes the witness folder, compares it with the database, and joins where that needs nobody's word.
    pub async fn open(store: &Datastore, settings: &FenceSettings) -> Result<Self, FenceError> {
        let writers = settings.writers.max(1);
        let (folder, readings) = Folder::open(&settings.dir, settings.instance.as_deref(), writers)?;
        let mut tx = store.snapshot("witness.look").await?;
        let situation = witness::situation(&mut tx.inner).await?;
        let rows = witness::rows(&mut tx.inner, &folder.instance).await?;
        tx.rollback().await;

        if readings.iter().all(|reading| reading.kept.is_none()) {
            may_join(settings, &folder.instance, situation.has_data, &rows)?;
        }
        let kept: Vec<Option<Kept>> = readings.iter().map(|reading| reading.kept).collect();
        let marks: Vec<Option<Mark>> = kept.iter().map(|kept| kept.map(|kept| kept.mark)).collect();
        let missing = missing(&marks, &rows, situation.epoch);
        // A loss that is known is posted, whatever else is not.
        if missing.is_empty() && marks.iter().any(Option::is_some) {
            let unknown = folder::unknown(&readings, &rows);
            if !unknown.is_empty() {
                return Err(FenceError::Damaged { dir: settings.dir.clone(), what: unknown.join("; ") });
            }
        }
        warn_of_damage(settings, &readings, &rows);
        let fence = Self {
            folder,
            pool: store.pool.clone(),
            begin: store.begin.clone(),
            own: Mutex::default(),
            epoch: Arc::clone(&store.epoch),
            standing: RwLock::new(Standing::Serving),
            marks: Mutex::new(Marks { epoch: situation.epoch, kept: Vec::new() }),
            free: Mutex::default(),
            permits: Arc::new(Semaphore::new(writers as usize)),
            writers,
        };
        store.epoch.store(situation.epoch, Ordering::Release);
        if missing.is_empty() {
            let mut connection = fence.connect().await?;
            fence.start_writers(&mut connection, &kept, &rows).await?;
            fence.keep(connection);
            fence.heed_posted(&situation);
        } else {
            // The writers stay as they are; a recovery lets all of them start anew.
            let latest = marks.iter().flatten().map(|mark| mark.epoch).max().unwrap_or(situation.epoch);
            *locked(&fence.marks) = Marks { epoch: latest, kept };
            fence.quarantine(missing.join("; "), Post::Due);
            fence.post_if_due().await;
        }
        Ok(fence)
    }

    /// Lets every writer start that has no mark of this epoch, and takes the others as they are.
    async fn start_writers(
        &self,
        connection: &mut PgConnection,
        kept: &[Option<Kept>],
        rows: &[Option<Mark>],
    ) -> Result<(), FenceError> {
        self.folder.keep_instance()?;
        witness::lock(connection).await?;
        let epoch = witness::situation(connection).await?.epoch;
        let (mut started, mut changed, mut marks) = (Vec::new(), Vec::new(), Vec::new());
        // What settings that had more writers acknowledged is missed as soon as what these acknowledge.
        for no in (0..).take(kept.len().max(self.writers as usize)) {
            let kept = kept.get(no as usize).copied().flatten();
            let row = rows.get(no as usize).copied().flatten();
            let mut slot = kept.map_or(0, |kept| 1 - kept.slot);
            let mark = match (kept.filter(|kept| kept.mark.epoch == epoch), row) {
                // Whoever reads what it committed last, or sends it again, is told of it.
                (Some(kept), Some(row)) if row.seq > kept.mark.seq => Mark { seq: row.seq, ..kept.mark },
                (Some(kept), Some(_)) => {
                    slot = kept.slot;
                    kept.mark
                }
                _ if no >= self.writers => {
                    marks.push(None);
                    continue;
                }
                _ => {
                    let mark = Mark { incarnation: Uuid::new_v4(), epoch, seq: 0 };
                    witness::start_writer(connection, &self.folder.instance, no, &mark).await?;
                    started.push(no);
                    mark
                }
            };
            if kept.is_none_or(|kept| kept.mark != mark) {
                changed.push((no, slot, mark));
            }
            marks.push(Some(Kept { mark, slot }));
        }
        let writers = (0..self.writers).zip(&marks).filter_map(|(no, kept)| {
            let Kept { mark, slot } = (*kept)?;
            // A commit of the process before may still be under way.
            let uncertain = started.binary_search(&no).is_err();
            Some(Writer { no, expected: mark.seq, slot, uncertain })
        });
        let writers = writers.collect();
        // The database first. When the file does not follow, the file says nothing of a writer, or something of an earlier epoch, and it starts
        // again; or it is behind a row, which is taken over again.
        connection.execute("COMMIT").await.map_err(|error| super::commit_error("witness.start", error))?;
        for (no, slot, mark) in changed {
            self.folder.write(no, slot, &mark).await?;
        }
        self.folder.keep_started(self.writers)?;
        *locked(&self.marks) = Marks { epoch, kept: marks };
        *locked(&self.free) = writers;
        self.epoch.store(epoch, Ordering::Release);
        Ok(())
    }

    /// A connection of its own, in a transaction: behind a transaction pooler nothing else stays together.
    async fn connect(&self) -> Result<PgConnection, DbError> {
        let kept = locked(&self.own).take();
        if let Some(mut connection) = kept
            && connection.execute(AssertSqlSafe(self.begin.clone())).await.is_ok()
        {
            return Ok(connection);
        }
        let mut connection = self.pool.connect_options().connect().await?;
        connection.execute(AssertSqlSafe(self.begin.clone())).await?;
        Ok(connection)
    }

    /// Commits, and keeps the connection.
    async fn at_rest(&self, mut connection: PgConnection) -> Result<(), DbError> {
        connection.execute("COMMIT").await?;
        self.keep(connection);
        Ok(())
    }

    /// Keeps a connection without a transaction for the next time.
    fn keep(&self, connection: PgConnection) {
        *locked(&self.own) = Some(connection);
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, DbError>>) -> Result<T, DbError> {
        let late = || DbError::TimedOut("the fence's own connection did not get an answer".to_owned());
        tokio::time::timeout(OWN_TIMEOUT, work).await.unwrap_or_else(|_| Err(late()))
    }

    /// The instance's name.
    pub fn instance(&self) -> &str {
        &self.folder.instance
    }

    fn standing(&self) -> Standing {
        self.standing.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn stand(&self, standing: Standing) {
        *self.standing.write().unwrap_or_else(PoisonError::into_inner) = standing;
    }

    /// Why nothing may be changed, if so.
    pub fn quarantine_reason(&self) -> Option<String> {
        match self.standing() {
            Standing::Quarantined { reason, .. } => Some(reason),
            Standing::Serving | Standing::Outdated => None,
        }
    }

    /// From now on nothing is changed. The first reason stays.
    fn quarantine(&self, reason: String, post: Post) -> DbError {
        let mut standing = self.standing.write().unwrap_or_else(PoisonError::into_inner);
        if let Standing::Quarantined { reason, .. } = &*standing {
            return DbError::Quarantined(reason.clone());
        }
        let instance = self.instance();
        tracing::error!(instance, reason, "{QUARANTINE}");
        *standing = Standing::Quarantined { reason: reason.clone(), post };
        DbError::Quarantined(reason)
    }

    fn heed_posted(&self, situation: &Situation) {
        if situation.posted.is_some_and(|epoch| epoch >= locked(&self.marks).epoch) {
            self.quarantine(ELSEWHERE.to_owned(), Post::No);
        }
    }

    /// Tells the other instances of a loss. What fails is tried again by [`Fence::watch`].
    async fn post_if_due(&self) {
        let Standing::Quarantined { reason, post: Post::Due } = self.standing() else { return };
        let epoch = locked(&self.marks).epoch;
        let posted = self.in_time(async {
            let mut connection = self.connect().await?;
            witness::post(&mut connection, self.instance(), epoch, &reason).await?;
            self.at_rest(connection).await?;
            Ok(())
        });
        match posted.await {
            Ok(()) => self.stand(Standing::Quarantined { reason, post: Post::Done }),
            Err(error) => tracing::warn!(%error, "the other instances could not be told of the quarantine"),
        }
    }

    /// Before a transaction begins that may change something: follows a recovery into its epoch.
    pub async fn ready(&self) -> Result<(), DbError> {
        match self.standing() {
            Standing::Serving => Ok(()),
            Standing::Outdated => self.in_time(self.follow()).await,
            Standing::Quarantined { reason, .. } => Err(DbError::Quarantined(reason)),
        }
    }

    /// Lets every writer start anew in the database's epoch, if that is a later one. Waits until no commit is under way.
    async fn follow(&self) -> Result<(), DbError> {
        let Ok(_all) = self.permits.acquire_many(self.writers).await else {
            return Err(DbError::Unavailable("the fence is closed".to_owned()));
        };
        let mut connection = self.connect().await?;
        let situation = witness::situation(&mut connection).await?;
        let kept = {
            let marks = locked(&self.marks);
            if situation.epoch <= marks.epoch {
                // Another caller was faster.
                return Ok(());
            }
            marks.kept.clone()
        };
        let started = self.start_writers(&mut connection, &kept, &[]).await;
        started.map_err(|error| match error {
            FenceError::Db(error) => error,
            error => DbError::Unavailable(error.to_string()),
        })?;
        self.keep(connection);
        tracing::warn!(
            instance = self.instance(),
            epoch = situation.epoch,
            "a recovery opened a new epoch: serving in it"
        );
        self.stand(Standing::Serving);
        self.heed_posted(&situation);
        Ok(())
    }

    /// Looks at the database without changing it: an instance that nobody asks for anything finds a loss too, and one in
    /// quarantine finds the recovery.
    pub async fn watch(self: &Arc<Self>) -> Result<(), DbError> {
        self.in_time(self.look_around()).await
    }

    async fn look_around(self: &Arc<Self>) -> Result<(), DbError> {
        let (acknowledged, epoch) = {
            let marks = locked(&self.marks);
            (marks.acknowledged(), marks.epoch)
        };
        if self.standing() == Standing::Serving
            && let Some(reason) = self.unwitnessed(&acknowledged).await
        {
            // Nothing is missing from the database, so the others go on.
            self.quarantine(reason, Post::No);
        }
        let mut connection = self.connect().await?;
        let situation = witness::situation(&mut connection).await?;
        let rows = witness::rows(&mut connection, self.instance()).await?;
        self.at_rest(connection).await?;
        if situation.epoch > epoch {
            return self.follow().await;
        }
        if self.standing() == Standing::Serving {
            let missing = missing(&acknowledged, &rows, situation.epoch);
            if missing.is_empty() {
                self.heed_posted(&situation);
                self.keep_uncertain(&rows).await;
            } else {
                self.quarantine(missing.join("; "), Post::Due);
            }
        }
        self.post_if_due().await;
        Ok(())
    }

    /// Makes durable outside of the database too what commits came to whose answers were lost: whoever asks is told of it.
    async fn keep_uncertain(self: &Arc<Self>, rows: &[Option<Mark>]) {
        let unkept = |writer: &Writer| {
            let row = rows.get(writer.no as usize).copied().flatten()?;
            let mark = locked(&self.marks).kept.get(writer.no as usize).copied().flatten()?.mark;
            let known = row.seq == writer.expected || (writer.uncertain && row.seq == writer.expected + 1);
            (known && row.seq > mark.seq && row == Mark { seq: row.seq, ..mark }).then_some(row)
        };
        while let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            let writer = {
                let mut free = locked(&self.free);
                let found = free.iter().enumerate().find_map(|(place, writer)| Some((place, unkept(writer)?)));
                found.map(|(place, row)| (free.swap_remove(place), row))
            };
            let Some((writer, row)) = writer else { return };
            let mut ticket = Ticket { fence: Arc::clone(self), writer, counted: false, _permit: permit };
            if ticket.keep(row).await.is_err() {
                // Quarantined.
                return;
            }
            // Of a commit after the one that the row tells of nothing is known yet.
            ticket.writer.uncertain &= row.seq == writer.expected;
            ticket.writer.expected = row.seq;
        }
    }

    /// What the file does not say any more of what was acknowledged when it was asked.
    async fn unwitnessed(&self, acknowledged: &[Option<Mark>]) -> Option<String> {
        let kept = match self.folder.read().await {
            Ok(kept) => kept,
            Err(error) => return Some(error.to_string()),
        };
        let says = |writer: usize| kept.get(writer).copied().flatten().map(|kept| kept.mark);
        let behind = |(writer, mark): (usize, &Option<Mark>)| {
            let mark = (*mark)?;
            let there = says(writer).is_some_and(|kept| (kept.epoch, kept.seq) >= (mark.epoch, mark.seq));
            (!there).then_some(writer)
        };
        let writer = acknowledged.iter().enumerate().find_map(behind)?;
        Some(format!("the witness folder's marks of writer {writer} were changed by somebody else"))
    }

    /// Counts a transaction that is about to commit; none when it has changed nothing. An error means that it must not commit.
    pub async fn count(self: &Arc<Self>, connection: &mut PgConnection) -> Result<Option<Ticket>, DbError> {
        match self.standing() {
            Standing::Serving => {}
            // Not to wait for a writer, whom whoever follows the recovery waits for too.
            Standing::Outdated => return Err(self.outdated()),
            Standing::Quarantined { reason, .. } => return Err(DbError::Quarantined(reason)),
        }
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_| DbError::Unavailable("the fence is closed".to_owned()))?;
        // As many writers as permits.
        let writer = locked(&self.free).pop();
        let Some(writer) = writer else {
            return Err(DbError::Unavailable("no writer is free".to_owned()));
        };
        let mut ticket = Ticket { fence: Arc::clone(self), writer, counted: false, _permit: permit };
        for _ in 0..COUNTS_MAX {
            let (expected, acknowledged) = self.expectation(&ticket.writer);
            let no = ticket.writer.no;
            let counted = witness::count(connection, self.instance(), no, &expected, &acknowledged).await?;
            if !counted.written {
                return Ok(None);
            }
            self.judge(&counted, &expected, &acknowledged, connection).await?;
            if counted.counted {
                ticket.counted = true;
                return Ok(Some(ticket));
            }
            self.adopt(&mut ticket.writer, &expected, connection).await?;
        }
        Err(DbError::Conflict("the writer's row changed each time it was looked at".to_owned()))
    }

    fn expectation(&self, writer: &Writer) -> (Mark, Vec<Option<Mark>>) {
        let marks = locked(&self.marks);
        let acknowledged = marks.acknowledged();
        let expected = acknowledged.get(writer.no as usize).copied().flatten().map_or(
            // Every writer that is used has a mark.
            Mark { incarnation: Uuid::nil(), epoch: marks.epoch, seq: 0 },
            |mark| Mark { seq: writer.expected, ..mark },
        );
        (expected, acknowledged)
    }

    /// Whether the database as a whole is the one that everything was acknowledged on.
    async fn judge(
        &self,
        counted: &Counted,
        expected: &Mark,
        acknowledged: &[Option<Mark>],
        connection: &mut PgConnection,
    ) -> Result<(), DbError> {
        if counted.epoch > expected.epoch {
            return Err(self.outdated());
        }
        if counted.epoch == expected.epoch && counted.lost == 0 {
            return if counted.posted { Err(self.quarantine(ELSEWHERE.to_owned(), Post::No)) } else { Ok(()) };
        }
        let rows = witness::rows(connection, self.instance()).await?;
        let mut missing = missing(acknowledged, &rows, counted.epoch);
        if missing.is_empty() {
            missing.push("rows of the witness were missing for a moment".to_owned());
        }
        let quarantined = self.quarantine(missing.join("; "), Post::Due);
        self.post_if_due().await;
        Err(quarantined)
    }

    fn outdated(&self) -> DbError {
        let mut standing = self.standing.write().unwrap_or_else(PoisonError::into_inner);
        if *standing == Standing::Serving {
            *standing = Standing::Outdated;
        }
        // Tried again as it is, in the new epoch.
        DbError::Conflict("a recovery has opened a new epoch".to_owned())
    }

    /// Takes over what a commit of unknown outcome left in the writer's row. A statement of its own: the one before may have waited for
    /// that very commit.
    async fn adopt(&self, writer: &mut Writer, expected: &Mark, connection: &mut PgConnection) -> Result<(), DbError> {
        let rows = witness::rows(connection, self.instance()).await?;
        match rows.get(writer.no as usize).copied().flatten() {
            Some(row) if row.epoch > expected.epoch => Err(self.outdated()),
            Some(row) if row == *expected => Ok(()),
            Some(row) if writer.uncertain && row == (Mark { seq: expected.seq + 1, ..*expected }) => {
                *writer = Writer { expected: row.seq, uncertain: false, ..*writer };
                Ok(())
            }
            Some(row) if row.incarnation == expected.incarnation && row.seq > expected.seq => {
                let reason =
                    format!("another process counts as instance {:?}: give each a name of its own", self.instance());
                Err(self.quarantine(reason, Post::No))
            }
            _ => {
                let mut acknowledged = vec![None; writer.no as usize];
                acknowledged.push(Some(*expected));
                let missing = missing(&acknowledged, &rows, expected.epoch).join("; ");
                let quarantined = self.quarantine(missing, Post::Due);
                self.post_if_due().await;
                Err(quarantined)
            }
        }
    }
}

/// Whether an instance whose folder says nothing may join.
fn may_join(settings: &FenceSettings, instance: &str, has_data: bool, rows: &[Option<Mark>]) -> Result<(), FenceError> {
    let dir = settings.dir.clone();
    let committed = rows.iter().flatten().map(|row| row.seq).sum();
    match settings.join {
        false if has_data || !rows.is_empty() => Err(FenceError::NotJoined { dir }),
        true if committed > 0 => Err(FenceError::NameInUse { dir, instance: instance.to_owned(), committed }),
        _ => Ok(()),
    }
}

fn warn_of_damage(settings: &FenceSettings, readings: &[Reading], rows: &[Option<Mark>]) {
    for (writer, reading) in readings.iter().enumerate() {
        if let Reading { kept: Some(Kept { mark, .. }), damaged: Some(slot) } = reading {
            tracing::warn!(
                file = %settings.dir.join("marks").display(),
                writer,
                slot,
                epoch = mark.epoch,
                seq = mark.seq,
                database_seq = rows.get(writer).copied().flatten().map(|row| row.seq),
                "a mark is damaged, and the one in the other slot is used: torn by a crash as it was written, or damaged since"
            );
        }
    }
}

/// A counted transaction between its count and its answer. Dropped before its commit is settled, the outcome is unknown.
#[derive(Debug)]
pub(super) struct Ticket {
    fence: Arc<Fence>,
    writer: Writer,
    counted: bool,
    _permit: OwnedSemaphorePermit,
}

impl Ticket {
    /// After the commit: makes what was committed durable outside the database too, and only then is it acknowledged.
    pub async fn settle(mut self, committed: Result<(), DbError>) -> Result<(), DbError> {
        committed?;
        let (mark, _) = self.fence.expectation(&self.writer);
        let mark = Mark { seq: mark.seq + 1, ..mark };
        self.keep(mark).await?;
        self.writer = Writer { expected: mark.seq, uncertain: false, ..self.writer };
        self.counted = false;
        Ok(())
    }

    /// Makes a mark durable outside the database, of what was committed.
    async fn keep(&mut self, mark: Mark) -> Result<(), DbError> {
        let (no, slot) = (self.writer.no, 1 - self.writer.slot);
        if let Err(error) = self.fence.folder.write(no, slot, &mark).await {
            // Committed, and not witnessed: nobody may be told yet. Nothing is missing from the database, so the others go on.
            self.fence.quarantine(format!("{error}; restart the service once that is put right"), Post::No);
            return Err(DbError::OutcomeUnknown(error.to_string()));
        }
        if let Some(kept) = locked(&self.fence.marks).kept.get_mut(no as usize) {
            *kept = Some(Kept { mark, slot });
        }
        self.writer.slot = slot;
        Ok(())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.writer.uncertain |= self.counted;
        locked(&self.fence.free).push(self.writer);
    }
}

/// What the database lacks of what was acknowledged, in words. What was acknowledged in an epoch before the database's is covered by the
/// recovery that ended it.
pub fn missing(acknowledged: &[Option<Mark>], rows: &[Option<Mark>], epoch: i32) -> Vec<String> {
    let marks = acknowledged.iter().enumerate().filter_map(|(writer, mark)| Some((writer, (*mark)?)));
    marks
        .filter_map(|(writer, mark)| {
            let Mark { incarnation, epoch: in_epoch, seq } = mark;
            if epoch < in_epoch {
                return Some(format!("writer {writer} works in recovery epoch {in_epoch}, the database is in {epoch}"));
            }
            if epoch > in_epoch {
                return None;
            }
            match rows.get(writer).copied().flatten() {
                None => Some(format!("writer {writer} acknowledged {seq} transactions, the database knows no such writer")),
                // A recovery came between the look at the epoch and the look at the row.
                Some(row) if row.epoch > in_epoch => None,
                Some(row) if row.incarnation != incarnation || row.epoch < in_epoch => Some(format!(
                    "writer {writer} acknowledged {seq} transactions in its present incarnation, the database knows another one"
                )),
                Some(row) if row.seq < seq => {
                    Some(format!("writer {writer} acknowledged {seq} transactions, the database has {}", row.seq))
                }
                Some(_) => None,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_lacks_what_it_is_behind_in_and_nothing_that_a_recovery_covers() {
        let (ours, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mark = |incarnation, epoch, seq| Some(Mark { incarnation, epoch, seq });
        let lacks = |file, row, epoch| !missing(&[file], &[row], epoch).is_empty();
        for (file, row, epoch, expected) in [
            (mark(ours, 0, 5), mark(ours, 0, 5), 0, false),
            (mark(ours, 0, 5), mark(ours, 0, 6), 0, false),
            (mark(ours, 0, 5), mark(ours, 0, 4), 0, true),
            (mark(ours, 0, 0), None, 0, true),
            (mark(ours, 0, 5), mark(other, 0, 9), 0, true),
            // A recovery came after it.
            (mark(ours, 0, 5), mark(ours, 1, 4), 1, false),
            (mark(ours, 0, 5), None, 1, false),
            (mark(ours, 0, 5), mark(other, 1, 0), 0, false),
            // The recovery itself is gone, or what came after it.
            (mark(ours, 1, 0), mark(ours, 0, 5), 0, true),
            (mark(ours, 1, 0), mark(other, 1, 5), 1, true),
            (None, mark(other, 0, 5), 0, false),
        ] {
            assert_eq!(lacks(file, row, epoch), expected, "{file:?} {row:?} {epoch}");
        }
        assert_eq!(missing(&[mark(ours, 0, 1)], &[], 0).len(), 1);
    }
}
