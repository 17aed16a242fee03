//! PostgreSQL itself in trouble: killed, full, read-only, out of connections, with a row held. One cluster of our own for all of it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fairledger::db::bootstrap::{DATABASE, OWNER, SERVICE, SUPERUSER};
use fairledger::db::migrate;
use fairledger::db::rights::Roles;
use fairledger::embedded::{Embedded, find_binaries};
use fairledger::http::auth::{ApiToken, new_token_id};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::{Connection as _, Executor as _};

use super::*;
use crate::harness::{Service, data_folder};

/// A PostgreSQL of its own, and the service on it through a proxy, so that the server may move.
pub(super) struct Own {
    pub(super) server: Option<Embedded>,
    folder: std::path::PathBuf,
    proxy: Proxy,
    pub(super) service: Service,
    pub(super) caller: Caller,
    pub(super) told: Arc<Told>,
    db: TestDb,
    token: ApiToken,
    witness: tempfile::TempDir,
    _parent: tempfile::TempDir,
}

const SETTINGS: [(&str, &str); 2] = [("fsync", "off"), ("max_connections", "30")];

impl Own {
    pub(super) async fn start() -> Self {
        let (parent, folder) = data_folder();
        std::fs::create_dir(&folder).unwrap();
        let server = Embedded::start(&folder, &find_binaries(None).unwrap(), &SETTINGS).await.unwrap();
        migrate::run(&server.url(OWNER, DATABASE), &Roles::default()).await.unwrap();
        let token = ApiToken::generate();
        sqlx::query("INSERT INTO fairledger.api_tokens (token_id, token_hash, scopes) VALUES ($1, $2, '{admin}')")
            .bind(new_token_id())
            .bind(token.hash().as_slice())
            .execute(&mut PgConnection::connect(&server.url(SUPERUSER, DATABASE)).await.unwrap())
            .await
            .unwrap();
        let proxy = Proxy::start(&server.url(SERVICE, DATABASE)).await;
        let witness = tempfile::tempdir().unwrap();
        // Only its folder with keys is used.
        let db = TestDb::new().await;
        let service = Self::spawn(&proxy, &db, &witness);
        let caller = Caller::new(&service, token.expose());
        assert_eq!(caller.call("PUT", "/v1/keys/k", Some(json!({}))).await.0, 201);
        let told = Arc::default();
        let server = Some(server);
        Self { server, folder, proxy, service, caller, told, db, token, witness, _parent: parent }
    }

    fn spawn(proxy: &Proxy, db: &TestDb, witness: &tempfile::TempDir) -> Service {
        let env = [
            ("FAIRLEDGER_WITNESS_DIR", witness.path().to_str().unwrap()),
            ("FAIRLEDGER_KEYS_LIVE_MAX", "100"),
            ("FAIRLEDGER_ACQUIRE_TIMEOUT", "1s"),
            ("FAIRLEDGER_LOCK_TIMEOUT", "500ms"),
            ("FAIRLEDGER_SWEEP_INTERVAL", "500ms"),
            ("FAIRLEDGER_LOG", "warn"),
        ];
        Service::spawn_at(&proxy.url_as(SERVICE, DATABASE), db, &env, &[])
    }

    /// Kills the service, and starts another one.
    pub(super) fn restart_service(&mut self) {
        self.service.kill9();
        self.service = tokio::task::block_in_place(|| Self::spawn(&self.proxy, &self.db, &self.witness));
        self.caller = Caller::new(&self.service, self.token.expose());
    }

    pub(super) async fn admin(&self) -> PgConnection {
        PgConnection::connect(&self.server.as_ref().unwrap().url(SUPERUSER, DATABASE)).await.unwrap()
    }

    async fn run(&self, statement: &'static str) {
        self.admin().await.execute(statement).await.unwrap();
    }

    pub(super) async fn restart(&mut self) {
        self.proxy.close();
        if let Some(server) = self.server.take() {
            // The folder is free once it is gone. It may have ended badly before: that is what is tested.
            let _ = server.stop().await;
        }
        let server = Embedded::start(&self.folder, &find_binaries(None).unwrap(), &SETTINGS).await.unwrap();
        self.proxy.lead_to(&server.url(SERVICE, DATABASE));
        self.server = Some(server);
        self.proxy.open();
    }

    /// Each is refused as a fault.
    async fn all_fail(&self, what: &str, changes: &[Change]) {
        let answers = futures_util::future::join_all(changes.iter().map(|change| change.send(&self.caller))).await;
        for (change, (status, answer)) in changes.iter().zip(answers) {
            assert_eq!(status, 503, "{what}: {}: {answer}", change.name);
        }
    }

    async fn all_stand(&self, changes: &[Change]) {
        for change in changes {
            self.told.note(change, &change.resolve(&self.caller).await);
        }
        self.told.prove(&mut self.admin().await).await;
        assert!(!self.service.logs().contains("QUARANTINE"), "{}", self.service.logs());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_to_the_server_nothing_is_lost_doubled_or_half_done_i1_i3_i4_i9() {
    let mut own = Own::start().await;

    // Read-only: PostgreSQL refuses each change, and the service goes on afterwards.
    let changes = every_change(&own.caller).await;
    own.run("ALTER DATABASE fairledger SET default_transaction_read_only = on").await;
    own.proxy.cut_now();
    let before = fingerprint(&mut own.admin().await).await;
    own.all_fail("read-only", &changes).await;
    assert_eq!(before, fingerprint(&mut own.admin().await).await, "read-only");
    let mut admin = own.admin().await;
    admin.execute("SET default_transaction_read_only = off").await.unwrap();
    admin.execute("ALTER DATABASE fairledger RESET default_transaction_read_only").await.unwrap();
    own.proxy.cut_now();
    own.all_stand(&changes).await;

    // Out of connections: the service's are cut, and others are faster.
    let changes = every_change(&own.caller).await;
    own.proxy.close();
    let url = own.server.as_ref().unwrap().url(SERVICE, DATABASE);
    let mut others = Vec::new();
    while let Ok(other) = PgConnection::connect(&url).await {
        others.push(other);
    }
    own.proxy.open();
    own.all_fail("out of connections", &changes).await;
    for other in others {
        other.close().await.unwrap();
    }
    own.all_stand(&changes).await;

    // Rows held by somebody else for longer than we wait.
    let changes: Vec<_> =
        every_change(&own.caller).await.into_iter().filter(|change| change.name == "rotate").collect();
    let mut admin = own.admin().await;
    admin
        .execute("BEGIN; SELECT FROM fairledger.sessions FOR UPDATE; SELECT FROM fairledger.seeds FOR UPDATE")
        .await
        .unwrap();
    own.all_fail("a held lock", &changes).await;
    admin.execute("ROLLBACK").await.unwrap();
    own.all_stand(&changes).await;

    // Killed and started again, with requests under way.
    for _ in 0..2 {
        let changes = every_change(&own.caller).await;
        let pid = own.server.as_ref().unwrap().pid();
        let sending = futures_util::future::join_all(changes.iter().map(|change| change.send(&own.caller)));
        let killing = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).unwrap();
        };
        let (answers, ()) = tokio::join!(sending, killing);
        for (change, answer) in changes.iter().zip(&answers) {
            if change.stands(answer) {
                own.told.note(change, &answer.1);
            }
        }
        own.restart().await;
        own.all_stand(&changes).await;
    }
    drop(own.db);
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(may_mount), ignore = "needs the right to mount a small disk")]
async fn a_full_disk_fails_changes_without_persisting_them_and_is_survived_i9() {
    let own = Own::start().await;
    let disk = SmallDisk::mount(own.folder.parent().unwrap(), 4);
    let table = format!("CREATE TABLESPACE small LOCATION '{}'", disk.path.display());
    let mut admin = own.admin().await;
    admin.execute(AssertSqlSafe(table)).await.unwrap();
    for table in ["bets", "sessions", "seeds", "commitments"] {
        admin.execute(AssertSqlSafe(format!("ALTER TABLE fairledger.{table} SET TABLESPACE small"))).await.unwrap();
    }
    let changes = own.until_full(&disk).await;
    own.told.prove(&mut admin).await;
    disk.make_room();
    own.all_stand(&changes).await;
    for table in ["bets", "sessions", "seeds", "commitments"] {
        admin
            .execute(AssertSqlSafe(format!("ALTER TABLE fairledger.{table} SET TABLESPACE pg_default")))
            .await
            .unwrap();
    }
    admin.execute("DROP TABLESPACE small").await.unwrap();
}

/// PostgreSQL gives up when its log cannot go on; nothing that it acknowledged is lost by it.
#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(may_mount), ignore = "needs the right to mount a small disk")]
async fn a_full_disk_of_the_log_ends_the_server_and_is_survived_i1_i3_i9() {
    let mut own = Own::start().await;
    // Some of its segments, of 16 megabytes each.
    let disk = SmallDisk::mount(own.folder.parent().unwrap(), 80);
    own.move_log(&disk).await;
    let changes = every_change(&own.caller).await;
    let (stands, others) = changes.split_at(changes.len() / 2);
    own.all_stand(stands).await;
    disk.fill();
    let mut admin = own.admin().await;
    let more = "SELECT pg_logical_emit_message(true, 'more', repeat('x', 1000000))";
    let mut written = 0;
    while admin.execute(more).await.is_ok() {
        written += 1;
        assert!(written < 200, "the disk never was full");
    }
    own.all_fail("the log's disk is full", others).await;
    disk.make_room();
    own.restart().await;
    own.all_stand(&changes).await;
}

impl Own {
    /// Puts the server's log on another disk.
    async fn move_log(&mut self, disk: &SmallDisk) {
        self.proxy.close();
        self.server.take().unwrap().stop().await.unwrap();
        let log = self.folder.join("pg/pg_wal");
        let moved = disk.path.join("pg_wal");
        let copied = std::process::Command::new("cp").arg("-a").args([&log, &moved]).status().unwrap();
        assert!(copied.success());
        std::fs::remove_dir_all(&log).unwrap();
        std::os::unix::fs::symlink(&moved, &log).unwrap();
        self.restart().await;
    }

    /// Fills the disk, and takes bets until one is refused; gives that one.
    async fn until_full(&self, disk: &SmallDisk) -> Vec<Change> {
        let session = self.caller.session().await;
        disk.fill();
        for number in 0..5_000 {
            let body = json!({ "commitment": session["commitment"], "betRef": format!("{number}:{}", "x".repeat(50)), "game": "dice" });
            let path = format!("/v1/sessions/{}/bets", id(&session));
            let change = Change { name: "bet", method: "POST", path, body };
            let answer = change.send(&self.caller).await;
            if !change.stands(&answer) {
                assert_eq!(answer.0, 503, "{answer:?}");
                return vec![change];
            }
            self.told.note(&change, &answer.1);
        }
        panic!("the disk never was full");
    }
}

/// A small tmpfs. Unmounted when dropped.
struct SmallDisk {
    path: std::path::PathBuf,
}

impl SmallDisk {
    /// # Panics
    /// Where nothing may be mounted: the test cannot show anything there.
    fn mount(beside: &Path, megabytes: u32) -> Self {
        use std::os::unix::fs::{MetadataExt as _, chown};
        let path = beside.join("small");
        std::fs::create_dir(&path).unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m,mode=0700"), "tmpfs"])
            .arg(&path)
            .output()
            .unwrap();
        assert!(mounted.status.success(), "a small disk cannot be mounted here: {mounted:?}");
        let owner = beside.join("data/pg").metadata().unwrap();
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
        Self { path }
    }

    /// Leaves no room.
    fn fill(&self) {
        use std::io::Write as _;
        let mut ballast = std::fs::File::create(self.path.join("ballast")).unwrap();
        while ballast.write_all(&[0; 4096]).is_ok() {}
    }

    fn make_room(&self) {
        std::fs::remove_file(self.path.join("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
