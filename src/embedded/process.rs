//! Running PostgreSQL's programs so that they cannot outlive us.
//!
//! Every child is started and awaited by a thread of its own, for two reasons. The kernel's parent-death signal follows the *thread* that
//! started the child, and a runtime's threads come and go. And because only that thread signals and reaps the server, no signal can reach
//! another process that got the same pid.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::{oneshot, watch};

use super::error::{EmbeddedError, IoContext as _};
use super::socket;
use super::user::ServerUser;

/// How often the server's thread looks after it.
const WATCH: Duration = Duration::from_millis(50);
const LOG_CHECK: Duration = Duration::from_secs(30);
const LOG_BYTES_MAX: u64 = 16 << 20;

/// A program to run as the server's user, in an environment that holds nothing of ours.
#[derive(Debug)]
pub(super) struct Job(Command);

impl Job {
    pub fn new(program: &Path, user: Option<&ServerUser>) -> Self {
        let mut command = Command::new(program);
        // Secrets may stand in our environment (I6), and PG* variables would change what the programs do.
        command.env_clear().env("LC_ALL", "C");
        for name in ["PATH", "LD_LIBRARY_PATH"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        // A group of its own: Ctrl-C on our terminal must not stop the server before we have finished with it.
        command.current_dir("/").stdin(Stdio::null()).process_group(0);
        if let Some(user) = user {
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        Self(command)
    }

    pub fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Self {
        self.0.arg(arg);
        self
    }

    pub fn args<const N: usize>(&mut self, args: [&str; N]) -> &mut Self {
        self.0.args(args);
        self
    }

    pub fn current_dir(&mut self, dir: &Path) -> &mut Self {
        self.0.current_dir(dir);
        self
    }

    /// Runs the program to its end.
    pub async fn output(mut self) -> io::Result<Output> {
        let (sender, receiver) = oneshot::channel();
        die_with_parent(&mut self.0, Signal::SIGTERM);
        std::thread::Builder::new().name("postgres-tool".into()).spawn(move || {
            // Nobody waits any more if sending fails.
            let _ = sender.send(self.0.output());
        })?;
        receiver.await.map_err(io::Error::other)?
    }
}

/// A running server and the thread that looks after it. Dropping this tells the server to stop.
#[derive(Debug)]
pub(super) struct Server {
    pid: u32,
    signals: mpsc::Sender<Signal>,
    state: watch::Receiver<State>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Running,
    Ended(Option<ExitStatus>),
}

impl Server {
    /// Starts the server. The lock is kept until it has ended, and `run_dir` is removed then.
    pub async fn spawn(
        mut job: Job,
        log: File,
        log_path: PathBuf,
        lock: Arc<File>,
        run_dir: Option<PathBuf>,
    ) -> Result<Self, EmbeddedError> {
        const DOING: &str = "starting PostgreSQL";
        let (signals, received) = mpsc::channel();
        let (publish, state) = watch::channel(State::Running);
        let (started, start) = oneshot::channel();
        let both = log.try_clone().and_then(|out| Ok((out, log.try_clone()?))).during(DOING)?;
        job.0.stdout(both.0).stderr(both.1);
        die_with_parent(&mut job.0, Signal::SIGINT);
        let body = move || {
            let child = match job.0.spawn() {
                Ok(child) => child,
                Err(error) => return drop(started.send(Err(error))),
            };
            // When the starter has given up meanwhile, `received` is closed, and the server is stopped at once.
            let _ = started.send(Ok(child.id()));
            let status = look_after(child, &received, &log, &log_path);
            if let Some(run_dir) = run_dir {
                socket::remove_short_dir(&run_dir);
            }
            // First the lock: whoever hears of the end may start the folder again.
            drop(lock);
            publish.send_replace(State::Ended(status));
        };
        std::thread::Builder::new().name("postgres".into()).spawn(body).during(DOING)?;
        let pid = start.await.map_err(io::Error::other).and_then(|result| result).during(DOING)?;
        Ok(Self { pid, signals, state })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn exited(&self) -> impl Future<Output = Option<ExitStatus>> + Send + use<> {
        let mut state = self.state.clone();
        async move {
            match state.wait_for(|state| matches!(state, State::Ended(_))).await.as_deref() {
                Ok(State::Ended(status)) => *status,
                _ => None,
            }
        }
    }

    /// Fast shutdown, then after `patience` an immediate one, then SIGKILL.
    pub async fn stop(&self, patience: Duration) -> Option<ExitStatus> {
        for (signal, wait) in [(Signal::SIGINT, patience), (Signal::SIGQUIT, Duration::from_secs(10))] {
            // A failure means that the server has ended.
            let _ = self.signals.send(signal);
            if let Ok(status) = tokio::time::timeout(wait, self.exited()).await {
                return status;
            }
        }
        let _ = self.signals.send(Signal::SIGKILL);
        self.exited().await
    }
}

/// Passes signals on, keeps the log short, and returns how the server ended; `None` when that could not be told.
fn look_after(mut child: Child, signals: &mpsc::Receiver<Signal>, log: &File, log_path: &Path) -> Option<ExitStatus> {
    let mut dropped = false;
    let mut log_checked: Option<Instant> = None;
    loop {
        let signal = match signals.recv_timeout(WATCH) {
            Ok(signal) => Some(signal),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                std::thread::sleep(WATCH);
                (!std::mem::replace(&mut dropped, true)).then_some(Signal::SIGINT)
            }
        };
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => return Some(status),
            // Somebody else has reaped the child, as with SIGCHLD ignored.
            Err(_) => return None,
        }
        // Not reaped yet, so the pid is still the child's.
        if let (Some(signal), Ok(pid)) = (signal, i32::try_from(child.id())) {
            let _ = kill(Pid::from_raw(pid), signal);
        }
        if log_checked.is_none_or(|last| last.elapsed() >= LOG_CHECK) {
            log_checked = Some(Instant::now());
            if let Err(error) = cut_log(log, log_path, LOG_BYTES_MAX) {
                tracing::warn!(%error, "pg.log could not be shortened");
            }
        }
    }
}

/// Moves the text of a log that has grown past `bytes_max` to `pg.log.1`. The server keeps the file open, hence a copy and a cut instead of a
/// new name; lines written between the two are lost, which a log may.
fn cut_log(log: &File, path: &Path, bytes_max: u64) -> io::Result<()> {
    let length = log.metadata()?.len();
    if length <= bytes_max {
        return Ok(());
    }
    let mut old = path.as_os_str().to_owned();
    old.push(".1");
    let copy = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(old)?;
    let mut at = 0;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = log.read_at(&mut buffer, at)?;
        if count == 0 {
            break;
        }
        copy.write_all_at(&buffer[..count], at)?;
        at += count as u64;
    }
    log.set_len(0)
}

/// Has the kernel send `signal` to the child when we die, in whatever way. Without this a server would outlive a killed parent and keep the
/// folder; where the system has no such thing, the next start stops what it finds.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn die_with_parent(command: &mut Command, signal: Signal) {
    use nix::sys::prctl::set_pdeathsig;
    use nix::unistd::getppid;

    let parent = Pid::this();
    let in_child = move || {
        set_pdeathsig(signal)?;
        // The parent may have died before the request.
        if getppid() == parent { Ok(()) } else { Err(io::Error::from_raw_os_error(nix::libc::ESRCH)) }
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. The closure makes two system calls, allocates nothing, takes
    // no lock, and its errors are plain numbers.
    unsafe {
        command.pre_exec(in_child);
    }
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_: &mut Command, _: Signal) {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_log_past_its_bound_is_kept_once_and_its_writer_goes_on_at_the_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pg.log");
        let mut log = File::options().create(true).append(true).read(true).open(&path).unwrap();
        log.write_all(b"first").unwrap();
        cut_log(&log, &path, 5).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        log.write_all(b" line").unwrap();
        cut_log(&log, &path, 5).unwrap();
        assert_eq!(std::fs::read(folder.path().join("pg.log.1")).unwrap(), b"first line");
        log.write_all(b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
    }
}
