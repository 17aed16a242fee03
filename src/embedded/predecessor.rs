//! What an earlier server on the same folder left behind: its pid file, or itself.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::POLL;
use super::error::{EmbeddedError, IoContext as _};

/// The lines of `postmaster.pid` that we need. PostgreSQL's `miscadmin.h` gives their order, the same since version 10.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PidFile {
    pub pid: i32,
    pub socket_dir: PathBuf,
    /// Connections are taken.
    pub ready: bool,
}

impl PidFile {
    /// `None`: there is no file, or only the beginning of one.
    pub fn read(cluster: &Path) -> Result<Option<Self>, EmbeddedError> {
        let path = path(cluster);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Self::parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).during(format!("reading {}", path.display())),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let pid: i32 = lines.next()?.trim().parse().ok()?;
        let mut rest = lines.skip(3);
        let socket_dir = rest.next().unwrap_or_default().into();
        let ready = rest.nth(2).is_some_and(|status| status.trim() == "ready");
        // A server in single-user mode writes its pid negated.
        Some(Self { pid: pid.checked_abs().filter(|&pid| pid > 0)?, socket_dir, ready })
    }
}

fn path(cluster: &Path) -> PathBuf {
    cluster.join("postmaster.pid")
}

/// The pids in `pg.lock`.
#[derive(Debug, Default)]
pub(super) struct LockPids {
    pub owner: Option<u32>,
    pub server: Option<u32>,
}

pub(super) fn lock_pids(lock: &File) -> LockPids {
    let mut bytes = [0; 64];
    let length = lock.read_at(&mut bytes, 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&bytes[..length]);
    let mut lines = text.lines().map(|line| line.parse().ok());
    LockPids { owner: lines.next().flatten(), server: lines.next().flatten() }
}

/// Waits until no earlier server runs on the folder, and sees that its pid file does not keep the next one from starting. Returns what the
/// file said.
///
/// The caller holds the folder's lock, so a server that still runs has lost its parent. One that we started is already ending or is told
/// to; any other is somebody's own, and is never touched: [`EmbeddedError::InUse`] when it is still there at the deadline.
pub(super) async fn settle(cluster: &Path, lock: &File, deadline: Instant) -> Result<Option<PidFile>, EmbeddedError> {
    let ours = lock_pids(lock).server;
    let mut told = false;
    loop {
        let Some(found) = PidFile::read(cluster)? else { return Ok(None) };
        let pid = Pid::from_raw(found.pid);
        match kill(pid, None) {
            // EPERM: a process of somebody else; PostgreSQL passes over it too.
            Err(Errno::ESRCH | Errno::EPERM) => return Ok(Some(found)),
            _ if works_elsewhere(pid, cluster) => {
                disown(cluster).during(format!("correcting {}", path(cluster).display()))?;
                return Ok(Some(found));
            }
            _ if Instant::now() >= deadline => {
                return Err(EmbeddedError::InUse {
                    data_dir: cluster.to_path_buf(),
                    pid: u32::try_from(found.pid).ok(),
                });
            }
            _ => {
                if !told && ours.is_some_and(|server| i32::try_from(server) == Ok(found.pid)) {
                    // It may be gone by now, which is what we want.
                    let _ = kill(pid, Signal::SIGINT);
                    told = true;
                }
                tokio::time::sleep(POLL).await;
            }
        }
    }
}

/// Whether the process is surely not the postmaster of `cluster`, which works in that folder. After a reboot, or a restart of a container, the
/// pid in the file may be any process's. Where this cannot be told, PostgreSQL's own check decides.
fn works_elsewhere(pid: Pid, cluster: &Path) -> bool {
    std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd != cluster)
}

/// Puts our pid in place of the one in a stale file. PostgreSQL takes its parent's pid for a stale one; removing the file would lose the
/// shared memory key in it, by which the server finds out that processes of a killed postmaster are still at work.
fn disown(cluster: &Path) -> io::Result<()> {
    let path = path(cluster);
    let text = std::fs::read_to_string(&path)?;
    let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
    // Written in place: a new file would belong to root and could not be replaced by the server.
    std::fs::write(&path, format!("{}\n{rest}", std::process::id()))
}

/// Whether the server did not start because of what an earlier one has left, so that trying again helps. It speaks English: the
/// cluster's locale is C.
pub(super) fn is_in_the_way(log: &str) -> bool {
    log.contains("pre-existing shared memory block") || log.contains("lock file \"postmaster.pid\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pid_file_is_read_in_every_stage_of_its_life() {
        let file = "4711\n/d/pg\n1700000000\n5432\n/d/run\n\n  1234567        42\nready   \n";
        let ready = PidFile { pid: 4711, socket_dir: "/d/run".into(), ready: true };
        assert_eq!(PidFile::parse(file), Some(ready));
        let starting = PidFile::parse(&file.replace("ready   ", "starting")).unwrap();
        assert!(!starting.ready);
        let single_user = PidFile::parse("-12\n/d/pg\n1700000000\n5432\n").unwrap();
        assert_eq!((single_user.pid, single_user.ready), (12, false));
        for unfinished in ["", "\n", "0\n", "x\n"] {
            assert_eq!(PidFile::parse(unfinished), None, "{unfinished:?}");
        }
    }
}
