//! A primary with a standby that streams from it, both of our own, to be killed and promoted.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use fairledger::db::bootstrap::{DATABASE, OWNER, SERVICE, SUPERUSER};
use fairledger::db::migrate;
use fairledger::db::rights::Roles;
use fairledger::embedded::{Embedded, find_binaries};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use super::standby::copy_running;

/// Durability against power cuts is not what is tested; a kill of processes loses nothing.
const SETTINGS: [(&str, &str); 2] = [("fsync", "off"), ("max_connections", "100")];

/// A migrated primary and its standby.
#[derive(Debug)]
pub struct Pair {
    pub primary: Embedded,
    pub standby: Embedded,
    _folder: tempfile::TempDir,
}

impl Pair {
    /// Starts both. With `synchronous` every commit on the primary waits for the standby from then on.
    pub async fn start(synchronous: bool) -> Self {
        let binaries = find_binaries(None).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        let folder = tempfile::Builder::new().prefix("flpair").permissions(mode).tempdir().unwrap();
        let (first, second) = (folder.path().join("a"), folder.path().join("b"));
        let primary = Embedded::start(&first, &binaries, &SETTINGS).await.unwrap();
        migrate::run(&primary.url(OWNER, DATABASE), &Roles::default()).await.unwrap();
        back_up(&primary, &first.join("pg"), &second).await;
        let standby = Embedded::start(&second, &binaries, &SETTINGS).await.unwrap();
        let pair = Self { primary, standby, _folder: folder };
        pair.await_on_primary("SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'").await;
        if synchronous {
            let mut admin = connect(&pair.primary).await;
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'").await.unwrap();
            admin.execute("SELECT pg_reload_conf()").await.unwrap();
            pair.await_on_primary("SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'").await;
        }
        pair
    }

    /// Where the service reaches one of the two.
    pub fn service_url(server: &Embedded) -> String {
        server.url(SERVICE, DATABASE)
    }

    /// Waits until a query of one boolean on the primary says true.
    pub async fn await_on_primary(&self, query: &'static str) {
        let mut admin = connect(&self.primary).await;
        while !sqlx::query_scalar::<_, bool>(query).fetch_one(&mut admin).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The standby gets nothing more from the primary.
    pub async fn cut_off_standby(&self) {
        let mut admin = connect(&self.standby).await;
        admin.execute("ALTER SYSTEM SET primary_conninfo = ''").await.unwrap();
        admin.execute("SELECT pg_reload_conf()").await.unwrap();
        self.await_on_primary("SELECT count(*) = 0 FROM pg_stat_replication").await;
    }

    /// SIGKILL to the primary's postmaster; its other processes go when they notice.
    pub fn kill_primary(&self) {
        kill(Pid::from_raw(i32::try_from(self.primary.pid()).unwrap()), Signal::SIGKILL).unwrap();
    }

    /// Makes the standby a primary.
    pub async fn promote(&self) {
        let mut admin = connect(&self.standby).await;
        assert!(sqlx::query_scalar::<_, bool>("SELECT pg_promote(true, 60)").fetch_one(&mut admin).await.unwrap());
    }

    /// A statement as the administrator of one of the two.
    pub async fn run(server: &Embedded, statement: String) {
        connect_to(server, DATABASE).await.execute(AssertSqlSafe(statement)).await.unwrap();
    }
}

async fn connect(server: &Embedded) -> PgConnection {
    connect_to(server, "postgres").await
}

async fn connect_to(server: &Embedded, database: &str) -> PgConnection {
    PgConnection::connect(&server.url(SUPERUSER, database)).await.unwrap()
}

/// Copies the running primary to where a standby can be started that streams from it.
async fn back_up(primary: &Embedded, cluster: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    let pg = to.join("pg");
    copy_running(connect(primary).await, cluster, &pg).await;
    let url = primary.url(SUPERUSER, "postgres");
    // sslmode and host are libpq's names too.
    let mut settings = std::fs::OpenOptions::new().append(true).open(pg.join("postgresql.auto.conf")).unwrap();
    writeln!(settings, "primary_conninfo = '{url}'").unwrap();
}
