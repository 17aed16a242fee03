//! A primary of its own and a streaming standby of it, from local binaries: for what is read from a replica, and for what happens when
//! one takes over.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::str::FromStr as _;
use std::time::Duration;

use fairledger::db::bootstrap::{DATABASE, OWNER, SUPERUSER};
use fairledger::db::migrate;
use fairledger::db::rights::Roles;
use fairledger::embedded::{Binaries, Embedded, find_binaries};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection};

use super::at_exit::run_at_exit;

const SETTINGS: [(&str, &str); 3] = [("fsync", "off"), ("full_page_writes", "off"), ("max_connections", "100")];

fn folder(prefix: &str) -> tempfile::TempDir {
    tempfile::Builder::new().prefix(prefix).permissions(std::fs::Permissions::from_mode(0o711)).tempdir().unwrap()
}

/// A migrated PostgreSQL that a standby can follow. Stopped when dropped.
#[derive(Debug)]
pub struct Primary {
    server: Embedded,
    binaries: Binaries,
    folder: tempfile::TempDir,
}

impl Primary {
    pub async fn start() -> Self {
        let binaries = find_binaries(None).unwrap_or_else(|error| panic!("{error}"));
        let folder = folder("flp");
        let server = Embedded::start(folder.path(), &binaries, &SETTINGS).await.unwrap();
        migrate::run(&server.url(OWNER, DATABASE), &Roles::default()).await.unwrap();
        Self { server, binaries, folder }
    }

    /// A URL for one of our roles.
    pub fn url(&self, role: &str) -> String {
        self.server.url(role, DATABASE)
    }

    pub async fn admin(&self) -> PgConnection {
        PgConnection::connect(&self.url(SUPERUSER)).await.unwrap()
    }

    /// Stops it and waits until it is gone.
    pub async fn stop(self) {
        self.server.stop().await.unwrap();
    }
}

/// Copies the data of a running primary to where a standby of it can be started, by PostgreSQL's low-level interface: not every package
/// of server binaries brings `pg_basebackup`. <https://www.postgresql.org/docs/current/continuous-archiving.html#BACKUP-LOWLEVEL-BASE-BACKUP>
pub(super) async fn copy_running(mut admin: PgConnection, from: &Path, to: &Path) {
    let version: i32 =
        sqlx::query_scalar("SELECT current_setting('server_version_num')::int").fetch_one(&mut admin).await.unwrap();
    let (start, stop) = if version < 150_000 {
        ("SELECT pg_start_backup('standby', true, false)::text", "SELECT labelfile FROM pg_stop_backup(false, false)")
    } else {
        ("SELECT pg_backup_start('standby', true)::text", "SELECT labelfile FROM pg_backup_stop(false)")
    };
    let _: String = sqlx::query_scalar(start).fetch_one(&mut admin).await.unwrap();
    let (source, target) = (from.to_owned(), to.to_owned());
    let copied = tokio::task::spawn_blocking(move || {
        // A file may go while it is copied; the log makes up for it.
        Command::new("cp").arg("-a").arg(&source).arg(&target).output()
    });
    copied.await.unwrap().unwrap();
    let label: String = sqlx::query_scalar(stop).fetch_one(&mut admin).await.unwrap();
    let owner = from.metadata().unwrap();
    for (name, text) in [("backup_label", label.as_str()), ("standby.signal", "")] {
        let path = to.join(name);
        std::fs::write(&path, text).unwrap();
        std::os::unix::fs::chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    std::fs::remove_file(to.join("postmaster.pid")).unwrap();
}

/// A streaming standby. Killed when dropped.
#[derive(Debug)]
pub struct Standby {
    server: Child,
    folder: tempfile::TempDir,
    port: u16,
}

impl Standby {
    /// Copies the primary and follows it; returns once it takes connections.
    pub async fn of(primary: &Primary) -> Self {
        let options = PgConnectOptions::from_str(&primary.url(SUPERUSER)).unwrap();
        let (socket, port) = (options.get_socket().unwrap().clone(), options.get_port());
        let owner = primary.folder.path().join("pg").metadata().unwrap();
        let folder = folder("fls");
        std::os::unix::fs::chown(folder.path(), Some(owner.uid()), Some(owner.gid())).unwrap();
        let data = folder.path().join("pg");
        let as_owner = |program: &Path| {
            let mut command = Command::new(program);
            command.current_dir("/").stdin(Stdio::null());
            if nix::unistd::geteuid().is_root() {
                command.uid(owner.uid()).gid(owner.gid());
            }
            command
        };
        copy_running(primary.admin().await, &primary.folder.path().join("pg"), &data).await;
        let conninfo = format!("host={} port={port} user={SUPERUSER}", socket.display());
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut server = as_owner(&primary.binaries.dir.join("postgres"));
        server.arg("-D").arg(&data).arg("-k").arg(folder.path()).args(["-p", &port.to_string()]);
        for setting in
            ["listen_addresses=", "hot_standby=on", "max_standby_streaming_delay=-1", "logging_collector=off"]
        {
            server.args(["-c", setting]);
        }
        server.args(["-c", &format!("primary_conninfo={conninfo}")]);
        for (name, value) in SETTINGS {
            server.args(["-c", &format!("{name}={value}")]);
        }
        let server = server.stdout(log.try_clone().unwrap()).stderr(log).process_group(0).spawn().unwrap();
        run_at_exit(
            "kill -QUIT \"$1\"; while kill -0 \"$1\"; do sleep 0.1; done; rm -rf \"$2\"",
            &[&server.id().to_string(), folder.path().to_str().unwrap()],
        );
        let mut standby = Self { server, folder, port };
        while PgConnection::connect(&standby.url(SUPERUSER)).await.is_err() {
            let log = || std::fs::read_to_string(standby.folder.path().join("log")).unwrap_or_default();
            assert!(standby.server.try_wait().unwrap().is_none(), "it ended: {}", log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        standby
    }

    /// A URL for one of our roles.
    pub fn url(&self, role: &str) -> String {
        let socket = self.folder.path().to_str().unwrap().replace('/', "%2F");
        format!("postgres://{role}@{socket}:{}/{DATABASE}?sslmode=disable", self.port)
    }

    pub async fn admin(&self) -> PgConnection {
        PgConnection::connect(&self.url(SUPERUSER)).await.unwrap()
    }

    async fn wait_until(&self, query: &'static str) {
        let mut admin = self.admin().await;
        while !sqlx::query_scalar::<_, Option<bool>>(query).fetch_one(&mut admin).await.unwrap().unwrap_or(false) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What the primary commits from now on is not to be seen here.
    pub async fn pause(&self) {
        sqlx::query("SELECT pg_wal_replay_pause()").execute(&mut self.admin().await).await.unwrap();
        self.wait_until("SELECT pg_get_wal_replay_pause_state() = 'paused'").await;
    }

    pub async fn resume(&self) {
        sqlx::query("SELECT pg_wal_replay_resume()").execute(&mut self.admin().await).await.unwrap();
    }

    /// Waits until everything that the primary has committed so far is to be seen here.
    pub async fn catch_up(&self, primary: &Primary) {
        let position: String = sqlx::query_scalar("SELECT pg_current_wal_lsn()::text")
            .fetch_one(&mut primary.admin().await)
            .await
            .unwrap();
        let mut admin = self.admin().await;
        let replayed = "SELECT coalesce(pg_last_wal_replay_lsn() >= $1::pg_lsn, false)";
        while !sqlx::query_scalar::<_, bool>(replayed).bind(&position).fetch_one(&mut admin).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Makes it a primary.
    pub async fn promote(&self) {
        let promoted: bool =
            sqlx::query_scalar("SELECT pg_promote()").fetch_one(&mut self.admin().await).await.unwrap();
        assert!(promoted);
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
