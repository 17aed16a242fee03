//! The private PostgreSQL that `serve` runs in its data folder when no `DATABASE_URL` is set.
//!
//! It is a small supervisor and no more: it finds the server binaries, makes the cluster, starts the server as a child in the
//! foreground, and sees to it that the server never outlives this process nor meets a second one on the same folder. What it
//! guards is I9: a database that is durable as soon as it answers (`fsync`, `synchronous_commit` and `full_page_writes` are on
//! unless a test says otherwise, page checksums are on), and I6: the server inherits none of our environment, where secrets may stand.
//!
//! The data folder then holds
//!
//! | entry | what it is |
//! |---|---|
//! | `pg/` | the cluster, mode 0700, owned by the user that the server runs as |
//! | `pg.init/` | a cluster that `initdb` has not finished; thrown away at the next start |
//! | `pg.lock` | locked by the process whose server runs here; its pid, then the server's |
//! | `pg.log`, `pg.log.1` | what the server printed, and what it printed before |
//! | `run/` | mode 0700: the socket. A short folder elsewhere stands in when this path does not suit a socket |
//!
//! # Who may connect
//! The server listens on no network address. `pg_hba.conf` says `trust` for local connections, with no password; that is
//! acceptable *only* because the socket stands in a folder of mode 0700, so that nobody but the server's user (and root) reaches it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::future::Future;
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown,
};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::db::bootstrap;

mod binaries;
mod error;
mod predecessor;
mod process;
mod socket;
mod user;

pub use binaries::{Binaries, find_binaries, find_binaries_for};
pub use error::EmbeddedError;

use error::IoContext as _;
use predecessor::PidFile;
use process::{Job, Server};
use user::ServerUser;

/// A start may replay the log of a crash, which takes as long as there is log; past this it is given up.
const START_MAX: Duration = Duration::from_secs(300);
/// How long the processes of a killed predecessor may take to go.
const PREDECESSOR_MAX: Duration = Duration::from_secs(60);
/// How long another starter may keep the lock before it counts as the owner: a process that is just ending gets this long.
const LOCK_MAX: Duration = Duration::from_secs(1);
/// A fast shutdown writes a checkpoint; after this the server is told to stop at once and will recover at its next start.
const STOP_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// A running private PostgreSQL. It ends with [`Embedded::stop`]; when this value is dropped instead, the server is told to stop and nobody
/// waits for it, and when this process dies in whatever way, the kernel tells the server to stop.
#[derive(Debug)]
pub struct Embedded {
    server: Server,
    socket_dir: PathBuf,
}

impl Embedded {
    /// Starts the server of `data_dir`, making folder, cluster, roles and database where they are missing. Everything may be there already
    /// and in any state that a crash leaves behind.
    ///
    /// As root the server runs as the owner of the data folder, else as `postgres`, else as `nobody`.
    /// `extra_settings` are PostgreSQL settings that beat ours; tests turn `fsync` off with them, nobody else should.
    ///
    /// # Errors
    /// [`EmbeddedError::InUse`] when another process has this folder, [`EmbeddedError::WrongMajor`] when another major version made it,
    /// and what else [`EmbeddedError`] lists. No server is left running after an error.
    pub async fn start(
        data_dir: &Path,
        binaries: &Binaries,
        extra_settings: &[(&str, &str)],
    ) -> Result<Self, EmbeddedError> {
        let data_dir = make_data_dir(data_dir)?;
        let lock = Arc::new(take_lock(&data_dir).await?);
        let user = user::server_user(&data_dir)?;
        user::check_reach(&data_dir, binaries, user.as_ref()).await?;

        let cluster = data_dir.join("pg");
        make_cluster(&data_dir, &cluster, binaries, user.as_ref(), extra_settings).await?;

        let deadline = Instant::now() + PREDECESSOR_MAX;
        loop {
            let stale = predecessor::settle(&cluster, &lock, deadline).await?;
            let socket_dir = socket::make_dir(&data_dir, stale.as_ref(), user.as_ref())?;
            let log = open_log(&data_dir, user.as_ref())?;
            let log_start = log.metadata().during("reading the length of pg.log")?.len();
            let job = server_job(&data_dir, &cluster, &socket_dir, binaries, user.as_ref(), extra_settings);
            let run_dir = (!socket_dir.starts_with(&data_dir)).then(|| socket_dir.clone());
            let server = Server::spawn(job, log, data_dir.join("pg.log"), Arc::clone(&lock), run_dir).await?;
            write_lock(&lock, Some(server.pid())).during("writing pg.lock")?;

            match await_ready(&server, &cluster).await {
                Ok(()) => {
                    let embedded = Self { server, socket_dir };
                    bootstrap::private_server(&embedded.url(bootstrap::SUPERUSER, "postgres")).await?;
                    return Ok(embedded);
                }
                Err(status) => {
                    server.stop(STOP_MAX).await;
                    let log = log_since(&data_dir, log_start);
                    // The postmaster was killed, but a process of it lives on for a moment, attached to its shared memory.
                    if predecessor::is_in_the_way(&log) && Instant::now() < deadline {
                        tokio::time::sleep(10 * POLL).await;
                        continue;
                    }
                    return Err(match status {
                        Some(status) => EmbeddedError::Died { status, log },
                        None => EmbeddedError::StartTimeout { seconds: START_MAX.as_secs(), log },
                    });
                }
            }
        }
    }

    /// A connection URL for `user` and `database` over the socket, understood by sqlx and tokio-postgres alike. It overrides `PGPORT` and
    /// its like in the environment.
    pub fn url(&self, user: &str, database: &str) -> String {
        socket::url(&self.socket_dir, user, database)
    }

    /// The process id of the postmaster; it may have ended since.
    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Resolves when the server has ended, for whatever reason; the folder may be started again from then on. The future may be kept apart
    /// from this value. `None`: how it ended could not be told.
    pub fn exited(&self) -> impl Future<Output = Option<ExitStatus>> + Send + use<> {
        self.server.exited()
    }

    /// Stops the server and waits until it is gone: connections are cut and a checkpoint is written. A server that does not manage that within a
    /// minute is stopped without the checkpoint; committed work is safe even then.
    ///
    /// # Errors
    /// [`EmbeddedError::Died`] when the server had to be killed or had crashed before.
    pub async fn stop(self) -> Result<(), EmbeddedError> {
        match self.server.stop(STOP_MAX).await {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(EmbeddedError::Died { status, log: String::new() }),
            None => Err(EmbeddedError::Lost),
        }
    }
}

/// The URL of the server that another process runs on `data_dir`, so that a command such as `token create` reaches a running `serve`.
/// `None`: none is running, or none that answers yet.
///
/// # Errors
/// [`EmbeddedError::Io`] when the folder cannot be read, as by a user who may not.
pub async fn running_url(data_dir: &Path, user: &str, database: &str) -> Result<Option<String>, EmbeddedError> {
    let Some(found) = PidFile::read(&data_dir.join("pg"))? else { return Ok(None) };
    if !found.ready {
        return Ok(None);
    }
    // The file may be left over from a crash; a socket that takes a connection is not.
    let socket = socket::file(&found.socket_dir);
    let answers = tokio::net::UnixStream::connect(socket).await.is_ok();
    Ok(answers.then(|| socket::url(&found.socket_dir, user, database)))
}

/// Makes the folder if needed. For root it can be passed through (but not listed) by the server's user; the secrets in it have mode 0600.
fn make_data_dir(data_dir: &Path) -> Result<PathBuf, EmbeddedError> {
    let root = nix::unistd::geteuid().is_root();
    DirBuilder::new()
        .recursive(true)
        .mode(if root { 0o711 } else { 0o700 })
        .create(data_dir)
        .during(format!("making the data folder {}", data_dir.display()))?;
    let data_dir = data_dir.canonicalize().during(format!("looking up the data folder {}", data_dir.display()))?;
    let metadata = data_dir.metadata().during("reading the mode of the data folder")?;
    if root && metadata.uid() == 0 && metadata.mode() & 0o001 == 0 {
        fs::set_permissions(&data_dir, Permissions::from_mode(metadata.mode() & 0o7777 | 0o011))
            .during("letting the server's user pass through the data folder")?;
    }
    Ok(data_dir)
}

/// Locks the folder for this process. The kernel gives the lock back when the process dies, in whatever way.
async fn take_lock(data_dir: &Path) -> Result<File, EmbeddedError> {
    let path = data_dir.join("pg.lock");
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(&path)
        .during(format!("opening {}", path.display()))?;
    let deadline = Instant::now() + LOCK_MAX;
    loop {
        match lock.try_lock() {
            Ok(()) => return write_lock(&lock, None).during("writing pg.lock").map(|()| lock),
            Err(fs::TryLockError::WouldBlock) if Instant::now() < deadline => tokio::time::sleep(POLL).await,
            Err(fs::TryLockError::WouldBlock) => {
                let pid = predecessor::lock_pids(&lock).owner;
                return Err(EmbeddedError::InUse { data_dir: data_dir.to_path_buf(), pid });
            }
            Err(fs::TryLockError::Error(error)) => return Err(error).during(format!("locking {}", path.display())),
        }
    }
}

/// Writes who owns the folder. Without a server the pid of the last one stays, which tells its remains from a stranger's server.
fn write_lock(lock: &File, server: Option<u32>) -> io::Result<()> {
    let server = server.or_else(|| predecessor::lock_pids(lock).server);
    let text = match server {
        Some(server) => format!("{}\n{server}\n", std::process::id()),
        None => format!("{}\n", std::process::id()),
    };
    lock.set_len(0)?;
    lock.write_all_at(text.as_bytes(), 0)
}

/// Sees that `cluster` holds a cluster of the binaries' major version. `initdb` works beside it and the finished folder is renamed, so
/// that a cluster is there completely or not at all.
async fn make_cluster(
    data_dir: &Path,
    cluster: &Path,
    binaries: &Binaries,
    user: Option<&ServerUser>,
    extra_settings: &[(&str, &str)],
) -> Result<(), EmbeddedError> {
    if let Some(major) = binaries::cluster_major(cluster)? {
        return if major == binaries.major() {
            Ok(())
        } else {
            Err(EmbeddedError::WrongMajor {
                cluster: cluster.to_path_buf(),
                cluster_major: major,
                binaries: binaries.dir.clone(),
                binaries_major: binaries.major(),
            })
        };
    }
    let unfinished = data_dir.join("pg.init");
    remove_folder(&unfinished).await.during(format!("removing the unfinished {}", unfinished.display()))?;
    user::make_private_dir(&unfinished, user).during(format!("making {}", unfinished.display()))?;

    let mut job = Job::new(&binaries.dir.join("initdb"), user);
    job.arg("-D").arg(&unfinished).arg("-U").arg(bootstrap::SUPERUSER);
    // Byte order is the order that pages of records are stated in, and it does not change with the C library.
    job.args(["--auth-local=trust", "--auth-host=reject", "--encoding=UTF8", "--locale=C", "--data-checksums"]);
    if extra_settings.contains(&("fsync", "off")) {
        job.arg("--no-sync");
    }
    let output = job.output().await.during(format!("running {}", binaries.dir.join("initdb").display()))?;
    if !output.status.success() {
        let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stdout));
        return Err(EmbeddedError::Initdb { status: output.status, output: text });
    }
    fs::rename(&unfinished, cluster).during(format!("naming the finished cluster {}", cluster.display()))?;
    File::open(data_dir).and_then(|folder| folder.sync_all()).during("writing the data folder to disk")
}

/// Removes a folder if it is there. The processes of a killed `initdb` may still put files into it for a moment.
async fn remove_folder(folder: &Path) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && Instant::now() < deadline => {
                tokio::time::sleep(POLL).await;
            }
            result => return result,
        }
    }
}

/// The server in the foreground. Settings on its command line beat the ones in its files, so those on which durability and privacy hang
/// cannot be lost by an edit; the rest (memory, connections) is left to `postgresql.conf`, where an operator may change it.
fn server_job(
    data_dir: &Path,
    cluster: &Path,
    socket_dir: &Path,
    binaries: &Binaries,
    user: Option<&ServerUser>,
    extra_settings: &[(&str, &str)],
) -> Job {
    let mut job = Job::new(&binaries.dir.join("postgres"), user);
    job.arg("-D").arg(cluster).arg("-k").arg(socket_dir).arg("-p").arg(socket::PORT.to_string());
    let settings = [
        ("listen_addresses", ""),
        ("unix_socket_permissions", "0700"),
        ("fsync", "on"),
        ("synchronous_commit", "on"),
        ("full_page_writes", "on"),
        // pg.log is our file; with a collector the server would write its log elsewhere.
        ("logging_collector", "off"),
        ("log_destination", "stderr"),
        ("log_timezone", "UTC"),
        ("timezone", "UTC"),
        ("cluster_name", "fairledger"),
    ];
    for (name, value) in settings.iter().chain(extra_settings) {
        job.arg("-c").arg(format!("{name}={value}"));
    }
    tracing::debug!(data_dir = %data_dir.display(), binaries = %binaries.dir.display(), "starting the private PostgreSQL");
    job
}

/// Waits until the server says in its pid file that it takes connections. The pid shows that it is our server that says so.
/// The error is how the server ended, or `None` when it took too long.
async fn await_ready(server: &Server, cluster: &Path) -> Result<(), Option<ExitStatus>> {
    let ready = async {
        loop {
            if let Ok(Some(found)) = PidFile::read(cluster)
                && found.ready
                && u32::try_from(found.pid) == Ok(server.pid())
            {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::select! {
        () = ready => Ok(()),
        status = server.exited() => Err(status),
        () = tokio::time::sleep(START_MAX) => Err(None),
    }
}

/// Opens `pg.log` for appending; only so may [`process`] cut it while the server writes to it.
fn open_log(data_dir: &Path, user: Option<&ServerUser>) -> Result<File, EmbeddedError> {
    let path = data_dir.join("pg.log");
    let open = || -> io::Result<File> {
        let log = OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(&path)?;
        if let Some(user) = user {
            fchown(&log, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
        }
        Ok(log)
    };
    open().during(format!("opening {}", path.display()))
}

/// The last lines that the server printed since `pg.log` had `start` bytes, for an error message.
fn log_since(data_dir: &Path, start: u64) -> String {
    const LINES: usize = 20;
    let bytes = fs::read(data_dir.join("pg.log")).unwrap_or_default();
    let text = String::from_utf8_lossy(bytes.get(usize::try_from(start).unwrap_or(0)..).unwrap_or_default());
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
