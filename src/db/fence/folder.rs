//! The witness folder: what an instance has acknowledged, outside the database.
//!
//! | entry | what it is |
//! |---|---|
//! | `instance` | the instance's name, one line, made once |
//! | `lock` | locked by the process that uses the folder |
//! | `marks` | of each writer two slots of 4,096 bytes, written in turn |
//!
//! A slot says how far its writer has come, with a checksum. A write that is torn by a crash leaves the other slot, which says what was
//! acknowledged before; the torn one never was. Slots are pages of their own, so that no write touches another one.
//!
//! Writes are made durable by one thread: it writes all marks that wait and syncs once for all of them, so that sixteen writers at
//! once cost a sync or two and not sixteen.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::FenceError;

const SLOT_BYTES: u64 = 4_096;
const SLOTS: u64 = 2;
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
    /// The mark of each writer; none where a writer never was.
    pub marks: Vec<Option<Mark>>,
}

/// Reads a witness folder that another process may be using.
///
/// # Errors
/// A folder that is not there, or cannot be read, or is damaged.
pub fn look(dir: &Path) -> Result<FolderContents, FenceError> {
    let instance = read_instance(dir)?.ok_or_else(|| FenceError::Folder {
        dir: dir.to_owned(),
        reason: "is no witness folder: it names no instance".to_owned(),
    })?;
    let file = File::open(dir.join("marks")).map_err(|error| folder_error(dir, "opening marks", &error))?;
    let kept = read_marks(dir, &file, &instance)?;
    Ok(FolderContents { instance, marks: kept.into_iter().map(|kept| kept.map(|kept| kept.mark)).collect() })
}

/// A witness folder in use by this process.
#[derive(Debug)]
pub(super) struct Folder {
    pub instance: String,
    dir: PathBuf,
    requests: mpsc::Sender<Request>,
    /// Held for as long as the folder is used.
    lock: File,
}

#[derive(Debug)]
struct Request {
    at: u64,
    record: [u8; RECORD_BYTES],
    done: oneshot::Sender<Result<(), String>>,
}

impl Folder {
    /// Takes the folder for this process, making what is missing; gives what it says of each writer, of so many at the least.
    pub fn open(dir: &Path, instance: Option<&str>, writers: u32) -> Result<(Self, Vec<Option<Kept>>), FenceError> {
        let error = |doing: &'static str| move |error: io::Error| folder_error(dir, doing, &error);
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(error("making it"))?;
        let open = |name: &str| {
            OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(dir.join(name))
        };
        let lock = open("lock").map_err(error("opening its lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FenceError::InUse { dir: dir.to_owned() }),
            Err(TryLockError::Error(cause)) => return Err(folder_error(dir, "locking it", &cause)),
        }
        let instance = keep_instance(dir, instance)?;
        let file = open("marks").map_err(error("opening marks"))?;
        let wanted = u64::from(writers) * SLOTS * SLOT_BYTES;
        let length = file.metadata().map_err(error("reading the length of marks"))?.len();
        if length < wanted {
            // Written, not only made longer: from then on a sync has no block to find a place for.
            let zeros = vec![0; usize::try_from(wanted - length).unwrap_or(0)];
            file.write_all_at(&zeros, length).map_err(error("making room in marks"))?;
        }
        file.sync_all().and_then(|()| File::open(dir)?.sync_all()).map_err(error("syncing it"))?;
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            File::open(parent).and_then(|parent| parent.sync_all()).map_err(error("syncing the folder above it"))?;
        }
        let kept = read_marks(dir, &file, &instance)?;
        let (requests, waiting) = mpsc::channel();
        std::thread::Builder::new()
            .name("witness".to_owned())
            .spawn(move || write_marks(&file, &waiting))
            .map_err(error("starting its thread"))?;
        Ok((Self { instance, dir: dir.to_owned(), requests, lock }, kept))
    }

    /// Makes a mark durable.
    pub async fn write(&self, writer: u32, slot: u64, mark: &Mark) -> Result<(), FenceError> {
        let (done, written) = oneshot::channel();
        let at = (u64::from(writer) * SLOTS + slot) * SLOT_BYTES;
        let request = Request { at, record: encode(&self.instance, writer, mark), done };
        let error = |reason: String| FenceError::Folder { dir: self.dir.clone(), reason };
        self.requests.send(request).map_err(|_| error("its thread has ended".to_owned()))?;
        written.await.unwrap_or_else(|_| Err("its thread has ended".to_owned())).map_err(error)
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

/// Ends when the folder's value is dropped. After a failure nothing is tried again: what the kernel says of a file after a failed sync is
/// worth nothing.
fn write_marks(file: &File, requests: &mpsc::Receiver<Request>) {
    let mut failed = None;
    while let Ok(first) = requests.recv() {
        let batch: Vec<Request> = std::iter::once(first).chain(requests.try_iter()).collect();
        if failed.is_none() {
            let written = batch
                .iter()
                .try_for_each(|request| file.write_all_at(&request.record, request.at))
                .and_then(|()| file.sync_data());
            failed = written.err().map(|error| format!("a mark could not be written: {error}"));
        }
        for request in batch {
            // Whoever went away does not mind.
            let _ = request.done.send(failed.clone().map_or(Ok(()), Err));
        }
    }
}

fn read_marks(dir: &Path, file: &File, instance: &str) -> Result<Vec<Option<Kept>>, FenceError> {
    let error = |error: io::Error| folder_error(dir, "reading marks", &error);
    let writers = file.metadata().map_err(error)?.len() / (SLOTS * SLOT_BYTES);
    let writers = u32::try_from(writers).map_err(|_| error(io::Error::other("it is too long")))?;
    (0..writers)
        .map(|writer| {
            let mut slots = [Slot::Empty; SLOTS as usize];
            for (place, slot) in (0..SLOTS).zip(&mut slots) {
                let mut record = [0; RECORD_BYTES];
                file.read_exact_at(&mut record, (u64::from(writer) * SLOTS + place) * SLOT_BYTES).map_err(error)?;
                *slot = decode(instance, writer, &record);
            }
            current(&slots).map_err(|()| FenceError::Damaged { dir: dir.to_owned(), writer })
        })
        .collect()
}

/// The later one of two slots. A damaged one beside another was torn as it was written, and so never acknowledged.
fn current(slots: &[Slot; SLOTS as usize]) -> Result<Option<Kept>, ()> {
    let kept = (0..SLOTS).zip(slots).filter_map(|(slot, held)| match held {
        Slot::Holds(mark) => Some(Kept { mark: *mark, slot }),
        Slot::Empty | Slot::Damaged => None,
    });
    match kept.max_by_key(|kept| (kept.mark.epoch, kept.mark.seq)) {
        None if slots.iter().all(|slot| *slot == Slot::Damaged) => Err(()),
        kept => Ok(kept),
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
fn keep_instance(dir: &Path, wanted: Option<&str>) -> Result<String, FenceError> {
    if let Some(kept) = read_instance(dir)? {
        return match wanted {
            Some(wanted) if wanted != kept => Err(FenceError::OtherInstance { dir: dir.to_owned(), kept }),
            _ => Ok(kept),
        };
    }
    let name = wanted.map_or_else(|| format!("i-{:016x}", rand::random::<u64>()), ToOwned::to_owned);
    let written = (|| {
        let unfinished = dir.join("instance.new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        writeln!(file, "{name}")?;
        file.sync_all()?;
        fs::rename(&unfinished, dir.join("instance"))?;
        File::open(dir)?.sync_all()
    })();
    written.map_err(|error| folder_error(dir, "writing the instance's name", &error))?;
    Ok(name)
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

    fn open(dir: &Path) -> (Folder, Vec<Option<Kept>>) {
        Folder::open(dir, Some("a"), 2).unwrap()
    }

    fn damage(dir: &Path, writer: u64, slot: u64) {
        let file = OpenOptions::new().write(true).open(dir.join("marks")).unwrap();
        file.write_all_at(b"\xff", (writer * SLOTS + slot) * SLOT_BYTES + 20).unwrap();
    }

    #[tokio::test]
    async fn the_later_mark_counts_and_a_torn_one_leaves_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("witness");
        let (open_folder, kept) = open(&dir);
        assert_eq!(kept, [None, None]);
        open_folder.write(1, 0, &mark(0, 9)).await.unwrap();
        open_folder.write(1, 1, &mark(0, 10)).await.unwrap();
        drop(open_folder);
        assert_eq!(open(&dir).1, [None, Some(Kept { mark: mark(0, 10), slot: 1 })]);
        damage(&dir, 1, 1);
        assert_eq!(look(&dir).unwrap().marks, [None, Some(mark(0, 9))]);
        damage(&dir, 1, 0);
        assert!(matches!(look(&dir), Err(FenceError::Damaged { writer: 1, .. })));
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
        assert!(matches!(look(folder.path()), Err(FenceError::Damaged { .. })));
    }
}
