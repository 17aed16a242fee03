//! The witness folder: what an instance has acknowledged, outside the database.
//!
//! | entry | what it is |
//! |---|---|
//! | `instance` | the instance's name, one line, made once |
//! | `lock` | locked by the process that uses the folder |
//! | `marks` | of each writer two slots of 4,096 bytes, written in turn |
//! | `writers` | how many writers of `marks` were ever started, one line: none of those is empty from then on |
//!
//! A slot says how far its writer has come, with a checksum. A write that is torn by a crash leaves the other slot, which says what was
//! acknowledged before; the torn one never was. Slots are pages of their own, so that no write touches another one.
//!
//! Losing part of the file must not look like never having written it. `marks` gets its length before it gets its name, so that no crash
//! leaves it cut off; and `writers` tells a writer that is new from one whose marks are gone.
//!
//! Writes are made durable by one thread: it writes all marks that wait and syncs once for all of them, so that sixteen writers at
//! once cost a sync or two and not sixteen.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::FenceError;

const SLOT_BYTES: u64 = 4_096;
const SLOTS: u64 = 2;
const WRITER_BYTES: u64 = SLOTS * SLOT_BYTES;
const MAGIC: [u8; 8] = *b"flwitn01";
/// Magic, writer, epoch, seq, incarnation.
const BODY_BYTES: usize = 8 + 4 + 4 + 8 + 16;
const CHECKSUM_BYTES: usize = 16;
const RECORD_BYTES: usize = BODY_BYTES + CHECKSUM_BYTES;

/// How far a writer has come: what its slot says, and what its row in the database must say at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Changes whenever the writer starts counting anew.
    pub incarnation: Uuid,
    /// The recovery epoch it works in.
    pub epoch: i32,
    /// Transactions acknowledged.
    pub seq: i64,
}

/// A mark and the slot that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub mark: Mark,
    pub slot: u64,
}

/// What the two slots of a writer say together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// The later mark; none when the writer was never started.
    pub kept: Option<Kept>,
    /// The other slot is damaged, or empty where it was written once: it may have said more.
    pub damaged: Option<u64>,
}

fn encode(instance: &str, writer: u32, mark: &Mark) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    let (body, sum) = record.split_at_mut(BODY_BYTES);
    body[..8].copy_from_slice(&MAGIC);
    body[8..12].copy_from_slice(&writer.to_be_bytes());
    body[12..16].copy_from_slice(&mark.epoch.to_be_bytes());
    body[16..24].copy_from_slice(&mark.seq.to_be_bytes());
    body[24..].copy_from_slice(mark.incarnation.as_bytes());
    sum.copy_from_slice(&checksum(instance, body));
    record
}

fn checksum(instance: &str, body: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let digest = Sha256::new().chain_update(instance.as_bytes()).chain_update([0]).chain_update(body).finalize();
    let mut sum = [0; CHECKSUM_BYTES];
    sum.copy_from_slice(&digest[..CHECKSUM_BYTES]);
    sum
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// Never written.
    Empty,
    Holds(Mark),
    /// Torn or damaged.
    Damaged,
}

fn decode(instance: &str, writer: u32, record: &[u8; RECORD_BYTES]) -> Slot {
    if record.iter().all(|byte| *byte == 0) {
        return Slot::Empty;
    }
    let (body, sum) = record.split_at(BODY_BYTES);
    if sum != checksum(instance, body) || body[..8] != MAGIC || body[8..12] != writer.to_be_bytes() {
        return Slot::Damaged;
    }
    let (mut epoch, mut seq, mut incarnation) = ([0; 4], [0; 8], [0; 16]);
    epoch.copy_from_slice(&body[12..16]);
    seq.copy_from_slice(&body[16..24]);
    incarnation.copy_from_slice(&body[24..]);
    Slot::Holds(Mark {
        incarnation: Uuid::from_bytes(incarnation),
        epoch: i32::from_be_bytes(epoch),
        seq: i64::from_be_bytes(seq),
    })
}

/// What a witness folder says, read without taking it: for whoever only wants to know.
#[derive(Clone, Debug)]
pub struct FolderContents {
    /// The instance's name.
    pub instance: String,
    /// The mark of each writer; none where a writer never was, or where nobody can tell.
    pub marks: Vec<Option<Mark>>,
    /// What of it is damaged, in words.
    pub damage: Vec<String>,
    readings: Vec<Reading>,
}

impl FolderContents {
    /// What of the instance's acknowledgements is not known any more, given the database's rows of it: damage, in words.
    #[must_use]
    pub fn unknown(&self, rows: &[Option<Mark>]) -> Vec<String> {
        self.damage.iter().cloned().chain(unknown(&self.readings, rows)).collect()
    }
}

/// Reads a witness folder that another process may be using. Damage is told, and no error.
///
/// # Errors
/// A folder that is not there, or cannot be read.
pub fn look(dir: &Path) -> Result<FolderContents, FenceError> {
    let instance = read_instance(dir)?.ok_or_else(|| FenceError::Folder {
        dir: dir.to_owned(),
        reason: "is no witness folder: it names no instance".to_owned(),
    })?;
    let started = read_started(dir)?;
    let mut damage = Vec::new();
    let readings = match open_marks(dir, started, false)? {
        Ok(Some(file)) => {
            let slots = read_slots(dir, &file, &instance)?;
            let read = slots.iter().zip(0..).map(|(slots, writer)| {
                read_writer(slots, writer, started).unwrap_or_else(|what| {
                    damage.push(what);
                    Reading::default()
                })
            });
            read.collect()
        }
        Ok(None) => Vec::new(),
        Err(what) => {
            damage.push(what);
            Vec::new()
        }
    };
    let marks = readings.iter().map(|reading| reading.kept.map(|kept| kept.mark)).collect();
    Ok(FolderContents { instance, marks, damage, readings })
}

/// What the file once said and says no more, given the database's rows: in words. A mark is written after its commit, so whatever a slot
/// said that is damaged now, a sound database has.
pub(super) fn unknown(readings: &[Reading], rows: &[Option<Mark>]) -> Vec<String> {
    let mut words = Vec::new();
    for writer in 0..readings.len().max(rows.len()) {
        let Some(row) = rows.get(writer).copied().flatten() else { continue };
        match readings.get(writer).copied().unwrap_or_default() {
            // A crash may come between a writer's first row, which is at 0, and its first mark.
            Reading { kept: None, .. } if row.seq > 0 => {
                words.push(format!("marks says nothing of writer {writer}, which has committed {} transactions", row.seq));
            }
            Reading { kept: Some(Kept { mark, .. }), damaged: Some(slot) } if row == mark => words.push(format!(
                "slot {slot} of writer {writer} is damaged, and may have said more than {}, which is all that the database has",
                mark.seq
            )),
            Reading { .. } => {}
        }
    }
    words
}

/// A witness folder in use by this process.
#[derive(Debug)]
pub(super) struct Folder {
    pub instance: String,
    dir: PathBuf,
    requests: mpsc::Sender<Request>,
    /// As `writers` says.
    started: AtomicU32,
    /// Held for as long as the folder is used.
    lock: File,
}

#[derive(Debug)]
enum Request {
    Write { at: u64, record: [u8; RECORD_BYTES], done: oneshot::Sender<Result<(), String>> },
    Read { done: oneshot::Sender<Result<Vec<Option<Kept>>, String>> },
}

impl Folder {
    /// Takes the folder for this process, making what is missing; gives what it says of each writer, of so many at the least.
    pub fn open(dir: &Path, instance: Option<&str>, writers: u32) -> Result<(Self, Vec<Reading>), FenceError> {
        let error = |doing: &'static str| move |error: io::Error| folder_error(dir, doing, &error);
        let damaged = |what: String| FenceError::Damaged { dir: dir.to_owned(), what };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(error("making it"))?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(dir.join("lock"))
            .map_err(error("opening its lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FenceError::InUse { dir: dir.to_owned() }),
            Err(TryLockError::Error(cause)) => return Err(folder_error(dir, "locking it", &cause)),
        }
        let instance = choose_instance(dir, instance)?;
        let started = read_started(dir)?;
        let file = open_marks(dir, started, true)?.map_err(damaged)?;
        let file = make_room(dir, file, u64::from(writers) * WRITER_BYTES).map_err(error("making room in marks"))?;
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            File::open(parent).and_then(|parent| parent.sync_all()).map_err(error("syncing the folder above it"))?;
        }
        let slots = read_slots(dir, &file, &instance)?;
        let readings =
            slots.iter().zip(0..).map(|(slots, writer)| read_writer(slots, writer, started).map_err(damaged));
        let readings = readings.collect::<Result<Vec<_>, _>>()?;
        let (requests, waiting) = mpsc::channel();
        let length = file.metadata().map_err(error("reading the length of marks"))?.len();
        let marks = Marks { file, dir: dir.to_owned(), instance: instance.clone(), length };
        std::thread::Builder::new()
            .name("witness".to_owned())
            .spawn(move || marks.serve(&waiting))
            .map_err(error("starting its thread"))?;
        let folder = Self { instance, dir: dir.to_owned(), requests, started: AtomicU32::new(started), lock };
        Ok((folder, readings))
    }

    /// Makes a mark durable.
    pub async fn write(&self, writer: u32, slot: u64, mark: &Mark) -> Result<(), FenceError> {
        let (done, written) = oneshot::channel();
        let at = u64::from(writer) * WRITER_BYTES + slot * SLOT_BYTES;
        self.ask(Request::Write { at, record: encode(&self.instance, writer, mark), done }, written).await
    }

    /// What the file says now. An error when it is not what it was, and from then on nothing is written either.
    pub async fn read(&self) -> Result<Vec<Option<Kept>>, FenceError> {
        let (done, read) = oneshot::channel();
        self.ask(Request::Read { done }, read).await
    }

    async fn ask<T>(&self, request: Request, answer: oneshot::Receiver<Result<T, String>>) -> Result<T, FenceError> {
        let ended = || "its thread has ended".to_owned();
        let error = |reason: String| FenceError::Folder { dir: self.dir.clone(), reason };
        self.requests.send(request).map_err(|_| error(ended()))?;
        answer.await.unwrap_or_else(|_| Err(ended())).map_err(error)
    }

    /// Keeps the instance's name, before the database hears of it.
    pub fn keep_instance(&self) -> Result<(), FenceError> {
        if read_instance(&self.dir)?.is_some() {
            return Ok(());
        }
        write_line(&self.dir, "instance", &self.instance)
            .map_err(|error| folder_error(&self.dir, "writing the instance's name", &error))
    }

    /// Keeps that so many writers have marks.
    pub fn keep_started(&self, writers: u32) -> Result<(), FenceError> {
        if writers > self.started.load(Ordering::Acquire) {
            write_line(&self.dir, "writers", &writers.to_string())
                .map_err(|error| folder_error(&self.dir, "writing the number of writers", &error))?;
            self.started.store(writers, Ordering::Release);
        }
        Ok(())
    }
}

impl Drop for Folder {
    /// A process that another thread is just starting may still have the file open, and closing ours would not give up the lock then.
    fn drop(&mut self) {
        if let Err(error) = self.lock.unlock() {
            tracing::debug!(%error, "unlocking the witness folder");
        }
    }
}

/// The file of marks, as the thread has it that writes them.
struct Marks {
    file: File,
    dir: PathBuf,
    instance: String,
    length: u64,
}

impl Marks {
    /// Ends when the folder's value is dropped. After a failure nothing is tried again: what the kernel says of a file after a failed
    /// sync is worth nothing.
    fn serve(&self, requests: &mpsc::Receiver<Request>) {
        let mut failed = None;
        while let Ok(first) = requests.recv() {
            let batch: Vec<Request> = std::iter::once(first).chain(requests.try_iter()).collect();
            failed = failed.or_else(|| self.check().err());
            if failed.is_none() {
                let written = batch
                    .iter()
                    .try_for_each(|request| match request {
                        Request::Write { at, record, .. } => self.file.write_all_at(record, *at),
                        Request::Read { .. } => Ok(()),
                    })
                    .and_then(|()| {
                        let any = batch.iter().any(|request| matches!(request, Request::Write { .. }));
                        if any { self.file.sync_data() } else { Ok(()) }
                    });
                failed = written.err().map(|error| format!("a mark could not be written: {error}"));
            }
            for request in batch {
                let failed = failed.clone();
                // Whoever went away does not mind.
                match request {
                    Request::Write { done, .. } => drop(done.send(failed.map_or(Ok(()), Err))),
                    Request::Read { done } => drop(done.send(failed.map_or_else(|| self.read(), Err))),
                }
            }
        }
    }

    /// That the file is as long as it was, and the one that the next start will find.
    fn check(&self) -> Result<(), String> {
        let ours = self.file.metadata().map_err(|error| format!("looking at marks: {error}"))?;
        if false && ours.len() != self.length {
            return Err(format!("marks has {} bytes, and had {}: somebody else changed it", ours.len(), self.length));
        }
        match fs::symlink_metadata(self.dir.join("marks")) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => Ok(()),
            Ok(_) => Err("marks was replaced while it was in use".to_owned()),
            Err(error) => Err(format!("marks was taken away while it was in use: {error}")),
        }
    }

    fn read(&self) -> Result<Vec<Option<Kept>>, String> {
        let slots = read_slots(&self.dir, &self.file, &self.instance).map_err(|error| error.to_string())?;
        Ok(slots.iter().map(latest).collect())
    }
}

/// The file of marks; none where there is none yet. The inner error says what is wrong with it.
fn open_marks(dir: &Path, started: u32, write: bool) -> Result<Result<Option<File>, String>, FenceError> {
    let error = |error: io::Error| folder_error(dir, "opening marks", &error);
    let path = dir.join("marks");
    match fs::symlink_metadata(&path) {
        Ok(metadata) if !metadata.is_file() => {
            return Err(FenceError::Folder { dir: dir.to_owned(), reason: "marks is not a regular file".to_owned() });
        }
        Ok(_) => {}
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
            return Ok(match started {
                0 => Ok(None),
                started => Err(format!("marks is missing, and held what {started} writers acknowledged")),
            });
        }
        Err(other) => return Err(error(other)),
    }
    let file = OpenOptions::new().read(true).write(write).open(&path).map_err(error)?;
    let length = file.metadata().map_err(error)?.len();
    Ok(if true || length % WRITER_BYTES == 0 && length >= u64::from(started) * WRITER_BYTES {
        Ok(Some(file))
    } else {
        Err(format!(
            "marks has {length} bytes, which is not its length: of each writer it has {WRITER_BYTES}, and {started} were started"
        ))
    })
}

/// Makes the file at least so long, in another one that takes its place: at no time is there one that is cut off. Zeros are written rather than
/// left out, so that no sync has a block to find a place for.
fn make_room(dir: &Path, file: Option<File>, wanted: u64) -> io::Result<File> {
    let length = file.as_ref().map_or(Ok(0), |file| file.metadata().map(|metadata| metadata.len()))?;
    if let Some(file) = file
        && length >= wanted
    {
        return Ok(file);
    }
    let path = dir.join("marks");
    let mut content = if length == 0 { Vec::new() } else { fs::read(&path)? };
    content.resize(usize::try_from(wanted).map_err(io::Error::other)?, 0);
    let unfinished = dir.join("marks.new");
    let mut file =
        OpenOptions::new().create(true).truncate(true).read(true).write(true).mode(0o600).open(&unfinished)?;
    file.write_all(&content)?;
    file.sync_all()?;
    fs::rename(&unfinished, &path)?;
    File::open(dir)?.sync_all()?;
    Ok(file)
}

type Slots = [Slot; SLOTS as usize];

fn read_slots(dir: &Path, file: &File, instance: &str) -> Result<Vec<Slots>, FenceError> {
    let error = |error: io::Error| folder_error(dir, "reading marks", &error);
    let writers = file.metadata().map_err(error)?.len() / WRITER_BYTES;
    let writers = u32::try_from(writers).map_err(|_| error(io::Error::other("it is too long")))?;
    (0..writers)
        .map(|writer| {
            let mut slots = [Slot::Empty; SLOTS as usize];
            for (place, slot) in (0..SLOTS).zip(&mut slots) {
                let mut record = [0; RECORD_BYTES];
                let at = u64::from(writer) * WRITER_BYTES + place * SLOT_BYTES;
                file.read_exact_at(&mut record, at).map_err(error)?;
                *slot = decode(instance, writer, &record);
            }
            Ok(slots)
        })
        .collect()
}

/// The later one of two slots.
fn latest(slots: &Slots) -> Option<Kept> {
    let kept = (0..SLOTS).zip(slots).filter_map(|(slot, held)| match held {
        Slot::Holds(mark) => Some(Kept { mark: *mark, slot }),
        Slot::Empty | Slot::Damaged => None,
    });
    kept.max_by_key(|kept| (kept.mark.epoch, kept.mark.seq))
}

/// What two slots say together; in words, why nobody can tell. A damaged one beside another was torn as it was written, and so never
/// acknowledged, or it was damaged later.
fn read_writer(slots: &Slots, writer: u32, started: u32) -> Result<Reading, String> {
    let Some(kept) = latest(slots) else {
        return if slots.iter().all(|slot| *slot == Slot::Damaged) {
            Err(format!("both slots of writer {writer} are damaged"))
        } else if false && writer < started {
            Err(format!("both slots of writer {writer} are empty or damaged, and held what it acknowledged"))
        } else {
            // Never written, or its first mark was torn.
            Ok(Reading::default())
        };
    };
    let other = 1 - kept.slot;
    let whole = match slots[other as usize] {
        Slot::Holds(_) => true,
        // A writer begins with 0 in its first slot, and then writes the other.
        Slot::Empty => kept.slot == 0 && kept.mark.seq == 0,
        Slot::Damaged => false,
    };
    Ok(Reading { kept: Some(kept), damaged: (!whole).then_some(other) })
}

/// How many writers were ever started; none where nothing says so, as in a folder that an earlier program made.
fn read_started(dir: &Path) -> Result<u32, FenceError> {
    match fs::read_to_string(dir.join("writers")) {
        Ok(text) => text.trim_end().parse().map_err(|_| FenceError::Folder {
            dir: dir.to_owned(),
            reason: "its file `writers` does not hold a number".to_owned(),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(folder_error(dir, "reading the number of writers", &error)),
    }
}

fn read_instance(dir: &Path) -> Result<Option<String>, FenceError> {
    match fs::read_to_string(dir.join("instance")) {
        Ok(text) => {
            let name = text.trim_end().to_owned();
            if is_instance_name(&name) {
                Ok(Some(name))
            } else {
                let reason = "its file `instance` does not hold the name of an instance".to_owned();
                Err(FenceError::Folder { dir: dir.to_owned(), reason })
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(folder_error(dir, "reading the instance's name", &error)),
    }
}

/// The folder's instance: the one it was made for, else the one wanted, else a new name.
fn choose_instance(dir: &Path, wanted: Option<&str>) -> Result<String, FenceError> {
    match (read_instance(dir)?, wanted) {
        (Some(kept), Some(wanted)) if wanted != kept => Err(FenceError::OtherInstance { dir: dir.to_owned(), kept }),
        (Some(kept), _) => Ok(kept),
        (None, Some(wanted)) => Ok(wanted.to_owned()),
        (None, None) => Ok(format!("i-{:016x}", rand::random::<u64>())),
    }
}

/// Makes a file of one line, or puts one in its place: never half of it.
fn write_line(dir: &Path, name: &str, line: &str) -> io::Result<()> {
    let unfinished = dir.join(format!("{name}.new"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    writeln!(file, "{line}")?;
    file.sync_all()?;
    fs::rename(&unfinished, dir.join(name))?;
    File::open(dir)?.sync_all()
}

/// Whether a text may name an instance: 1 to 64 of `A-Za-z0-9._-`.
pub fn is_instance_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn folder_error(dir: &Path, doing: &str, error: &io::Error) -> FenceError {
    FenceError::Folder { dir: dir.to_owned(), reason: format!("{doing}: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(epoch: i32, seq: i64) -> Mark {
        Mark { incarnation: Uuid::from_u128(7), epoch, seq }
    }

    fn open(dir: &Path) -> (Folder, Vec<Reading>) {
        let (folder, readings) = Folder::open(dir, Some("a"), 2).unwrap();
        folder.keep_instance().unwrap();
        (folder, readings)
    }

    fn refused(dir: &Path) -> String {
        let Err(FenceError::Damaged { what, .. }) = Folder::open(dir, Some("a"), 2) else { panic!("it was taken") };
        // Whoever only looks is told the same.
        assert_eq!(look(dir).unwrap().damage, [what.as_str()]);
        what
    }

    fn marks(dir: &Path) -> File {
        OpenOptions::new().write(true).open(dir.join("marks")).unwrap()
    }

    fn overwrite(dir: &Path, writer: u64, slot: u64, bytes: &[u8]) {
        marks(dir).write_all_at(bytes, writer * WRITER_BYTES + slot * SLOT_BYTES).unwrap();
    }

    #[tokio::test]
    async fn the_later_mark_counts_and_a_torn_one_leaves_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("witness");
        let (open_folder, readings) = open(&dir);
        assert_eq!(readings, [Reading::default(); 2]);
        open_folder.write(1, 0, &mark(0, 9)).await.unwrap();
        open_folder.write(1, 1, &mark(0, 10)).await.unwrap();
        drop(open_folder);
        let later = Reading { kept: Some(Kept { mark: mark(0, 10), slot: 1 }), damaged: None };
        assert_eq!(open(&dir).1, [Reading::default(), later]);
        overwrite(&dir, 1, 1, &[0xff; 30]);
        let before = Reading { kept: Some(Kept { mark: mark(0, 9), slot: 0 }), damaged: Some(1) };
        assert_eq!(open(&dir).1, [Reading::default(), before]);
        overwrite(&dir, 1, 0, &[0xff; 30]);
        assert!(refused(&dir).contains("both slots of writer 1"));
    }

    #[tokio::test]
    async fn a_later_epoch_counts_more_than_a_higher_number() {
        let folder = tempfile::tempdir().unwrap();
        let (open_folder, _) = open(folder.path());
        open_folder.write(0, 0, &mark(0, 100)).await.unwrap();
        open_folder.write(0, 1, &mark(1, 0)).await.unwrap();
        assert_eq!(look(folder.path()).unwrap().marks, [Some(mark(1, 0)), None]);
    }

    #[test]
    fn one_process_has_the_folder_and_one_instance_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let held = open(folder.path());
        assert!(matches!(Folder::open(folder.path(), None, 2), Err(FenceError::InUse { .. })));
        drop(held);
        assert!(matches!(Folder::open(folder.path(), Some("b"), 2), Err(FenceError::OtherInstance { .. })));
        assert_eq!(Folder::open(folder.path(), None, 3).unwrap().0.instance, "a");
    }

    #[tokio::test]
    async fn another_instances_marks_are_not_ours() {
        let folder = tempfile::tempdir().unwrap();
        let (open_folder, _) = open(folder.path());
        open_folder.write(0, 0, &mark(0, 1)).await.unwrap();
        open_folder.write(0, 1, &mark(0, 2)).await.unwrap();
        fs::write(folder.path().join("instance"), "b\n").unwrap();
        assert_eq!(look(folder.path()).unwrap().damage.len(), 1);
    }

    /// Cut off, zeroed or gone: what was written once is never taken for never written.
    #[tokio::test]
    async fn marks_that_are_not_there_any_more_are_damage_i10() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let (open_folder, _) = open(dir);
        for writer in 0..2 {
            open_folder.write(writer, 0, &mark(0, 0)).await.unwrap();
        }
        open_folder.keep_started(2).unwrap();
        open_folder.write(1, 1, &mark(0, 1)).await.unwrap();
        drop(open_folder);
        let whole = fs::read(dir.join("marks")).unwrap();
        for length in [0, 1, SLOT_BYTES, WRITER_BYTES, WRITER_BYTES + SLOT_BYTES, 2 * WRITER_BYTES + 1] {
            marks(dir).set_len(length).unwrap();
            let what = refused(dir);
            assert!(what.contains(&format!("marks has {length} bytes")), "{what}");
            fs::write(dir.join("marks"), &whole).unwrap();
        }
        overwrite(dir, 1, 0, &[0; WRITER_BYTES as usize]);
        assert!(refused(dir).contains("writer 1 are empty"));
        fs::write(dir.join("marks"), &whole).unwrap();
        overwrite(dir, 1, 0, &[0; SLOT_BYTES as usize]);
        assert_eq!(open(dir).1[1].damaged, Some(0));
        fs::remove_file(dir.join("marks")).unwrap();
        assert!(refused(dir).contains("missing"));
        fs::write(dir.join("elsewhere"), &whole).unwrap();
        std::os::unix::fs::symlink(dir.join("elsewhere"), dir.join("marks")).unwrap();
        assert!(matches!(Folder::open(dir, None, 2), Err(FenceError::Folder { .. })));
        fs::rename(dir.join("elsewhere"), dir.join("marks")).unwrap();
        // More writers than before are new, and nothing is wrong with that.
        assert_eq!(Folder::open(dir, None, 3).unwrap().1[2], Reading::default());
    }

    #[tokio::test]
    async fn a_file_that_changes_while_it_is_used_takes_no_more_marks_i10() {
        for change in [
            |dir: &Path| marks(dir).set_len(0).unwrap(),
            |dir: &Path| fs::remove_file(dir.join("marks")).unwrap(),
            |dir: &Path| {
                fs::copy(dir.join("marks"), dir.join("copy")).unwrap();
                fs::rename(dir.join("copy"), dir.join("marks")).unwrap();
            },
        ] {
            let folder = tempfile::tempdir().unwrap();
            let (open_folder, _) = open(folder.path());
            open_folder.write(0, 0, &mark(0, 1)).await.unwrap();
            assert_eq!(open_folder.read().await.unwrap()[0].unwrap().mark, mark(0, 1));
            let before = fs::read(folder.path().join("marks")).unwrap();
            change(folder.path());
            open_folder.write(0, 1, &mark(0, 2)).await.unwrap_err();
            // Not even when it is as before.
            fs::write(folder.path().join("marks"), before).unwrap();
            open_folder.read().await.unwrap_err();
        }
    }

    #[test]
    fn a_database_that_has_no_more_than_the_slot_beside_a_damaged_one_may_lack_what_that_said_i10() {
        let reading = |kept: Option<Mark>, damaged| Reading { kept: kept.map(|mark| Kept { mark, slot: 0 }), damaged };
        for (reading, row, expected) in [
            (reading(Some(mark(0, 5)), None), Some(mark(0, 5)), 0),
            (reading(Some(mark(0, 5)), Some(1)), Some(mark(0, 6)), 0),
            (reading(Some(mark(0, 5)), Some(1)), Some(mark(0, 5)), 1),
            // A recovery covers it.
            (reading(Some(mark(0, 5)), Some(1)), Some(mark(1, 0)), 0),
            (reading(None, None), Some(mark(0, 0)), 0),
            (reading(None, None), Some(mark(0, 1)), 1),
            (reading(None, None), None, 0),
        ] {
            assert_eq!(unknown(&[reading], &[row]).len(), expected, "{reading:?} {row:?}");
        }
        // The database knows more writers than the file has room for.
        assert_eq!(unknown(&[], &[None, Some(mark(0, 1))]).len(), 1);
    }
}
