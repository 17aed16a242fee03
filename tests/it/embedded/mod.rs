//! The private PostgreSQL: what it promises at its first start, and after every way in which it, or we, can die.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fairledger::embedded::{Binaries, Embedded, EmbeddedError, find_binaries, find_binaries_for, running_url};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use sqlx::{Connection as _, Executor as _, PgConnection};

mod crash;
mod folder;

/// Processes are killed here, machines are not; so nothing is lost without fsync.
const QUICK: &[(&str, &str)] = &[("fsync", "off")];

fn binaries() -> Binaries {
    find_binaries(None).expect("PostgreSQL's server binaries")
}

/// A folder that the server's user can pass through. Removed at the end, when nothing runs in it any more.
fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("fl").permissions(std::fs::Permissions::from_mode(0o711)).tempdir().unwrap()
}

async fn start(data_dir: &Path) -> Result<Embedded, EmbeddedError> {
    Embedded::start(data_dir, &binaries(), QUICK).await
}

async fn connect(server: &Embedded) -> PgConnection {
    connect_url(&server.url("fairledger_owner", "fairledger")).await
}

async fn connect_url(url: &str) -> PgConnection {
    PgConnection::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

async fn show(connection: &mut PgConnection, setting: &str) -> String {
    sqlx::query_scalar("SELECT current_setting($1)").bind(setting).fetch_one(connection).await.unwrap()
}

async fn remember(connection: &mut PgConnection, what: i32) {
    connection.execute("CREATE TABLE IF NOT EXISTS memory (what int)").await.unwrap();
    sqlx::query("INSERT INTO memory VALUES ($1)").bind(what).execute(connection).await.unwrap();
}

async fn remembered(connection: &mut PgConnection) -> Vec<i32> {
    sqlx::query_scalar("SELECT what FROM memory ORDER BY what").fetch_all(connection).await.unwrap()
}

fn is_alive(pid: u32) -> bool {
    // A zombie is dead; in a container without a reaper it would stay for ever.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X'])))
}

async fn await_gone(pid: u32, within: Duration) {
    let deadline = Instant::now() + within;
    while is_alive(pid) {
        assert!(Instant::now() < deadline, "process {pid} still runs after {within:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
}

fn kill9(pid: u32) {
    signal(pid, Signal::SIGKILL);
}

/// Another process that runs the server of a folder, to be killed.
struct Parent {
    child: Child,
    server_pid: u32,
}

impl Parent {
    /// Starts this test binary anew as [`parent_process`].
    fn start(data_dir: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "embedded::parent_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(PARENT_ENV, data_dir)
            .env("FAIRLEDGER_SEED_KEYS", "a-secret-of-the-parent")
            .env("PGPORT", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let server_pid = lines
            .map(|line| line.unwrap())
            .find_map(|line| line.split_once("server pid ").map(|(_, pid)| pid.parse().unwrap()))
            .expect("the parent process starts a server");
        Self { child, server_pid }
    }

    fn kill9(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

const PARENT_ENV: &str = "FAIRLEDGER_TEST_PARENT_OF";

/// Not a test but what [`Parent`] runs.
#[tokio::test]
#[ignore = "run by other tests in a process of its own"]
async fn parent_process() {
    let data_dir = PathBuf::from(std::env::var_os(PARENT_ENV).expect("a folder"));
    let server = start(&data_dir).await.unwrap();
    println!("server pid {}", server.pid());
    server.exited().await;
}

#[tokio::test]
async fn the_first_start_makes_a_durable_database_with_its_three_roles() {
    let folder = folder();
    let server = Embedded::start(folder.path(), &binaries(), &[]).await.unwrap();
    let mut owner = connect(&server).await;
    for (setting, value) in [
        ("fsync", "on"),
        ("synchronous_commit", "on"),
        ("full_page_writes", "on"),
        ("data_checksums", "on"),
        ("listen_addresses", ""),
        ("server_encoding", "UTF8"),
    ] {
        assert_eq!(show(&mut owner, setting).await, value, "{setting}");
    }
    let database_owner: String =
        sqlx::query_scalar("SELECT datdba::regrole::text FROM pg_database WHERE datname = current_database()")
            .fetch_one(&mut owner)
            .await
            .unwrap();
    assert_eq!(database_owner, "fairledger_owner");
    for role in ["fairledger_owner", "fairledger_service", "fairledger_read"] {
        let mut connection = connect_url(&server.url(role, "fairledger")).await;
        let powers: bool =
            sqlx::query_scalar("SELECT rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls FROM pg_roles WHERE rolname = current_user")
                .fetch_one(&mut connection)
                .await
                .unwrap();
        assert!(!powers, "{role} has rights over the server");
    }
    // Without passwords, these modes are all that keeps others out.
    for private in ["pg", "run"] {
        assert_eq!(folder.path().join(private).metadata().unwrap().mode() & 0o777, 0o700, "{private}");
    }
    for private in ["pg.log", "pg.lock"] {
        assert_eq!(folder.path().join(private).metadata().unwrap().mode() & 0o777, 0o600, "{private}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_second_start_finds_what_the_first_one_stored() {
    let folder = folder();
    let server = start(folder.path()).await.unwrap();
    let pid = server.pid();
    remember(&mut connect(&server).await, 1).await;
    // A connection that stays open does not keep the server from stopping.
    let open = connect(&server).await;
    server.stop().await.unwrap();
    assert!(!is_alive(pid));
    drop(open);

    let server = start(folder.path()).await.unwrap();
    assert_eq!(remembered(&mut connect(&server).await).await, [1]);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_dropped_server_stops_and_gives_its_folder_back() {
    let folder = folder();
    let server = start(folder.path()).await.unwrap();
    let (pid, exited) = (server.pid(), server.exited());
    drop(server);
    assert!(exited.await.unwrap().success(), "a server told to stop writes its checkpoint");
    assert!(!is_alive(pid));
    start(folder.path()).await.unwrap().stop().await.unwrap();
}

#[tokio::test]
async fn another_process_finds_a_running_server_and_only_a_running_one() {
    let folder = folder();
    let url = || running_url(folder.path(), "fairledger_owner", "fairledger");
    assert_eq!(url().await.unwrap(), None);

    let parent = Parent::start(folder.path());
    remember(&mut connect_url(&url().await.unwrap().expect("it runs")).await, 5).await;
    let server_pid = parent.server_pid;
    kill9(server_pid);
    await_gone(server_pid, Duration::from_secs(5)).await;
    assert!(folder.path().join("pg/postmaster.pid").exists(), "or this shows nothing");
    assert_eq!(url().await.unwrap(), None);
    parent.kill9();
}

#[tokio::test]
async fn a_second_starter_is_told_who_has_the_folder() {
    let folder = folder();
    let server = start(folder.path()).await.unwrap();
    match start(folder.path()).await.unwrap_err() {
        EmbeddedError::InUse { pid, .. } => assert_eq!(pid, Some(std::process::id())),
        other => panic!("{other}"),
    }
    // The first one is none the worse for it.
    remember(&mut connect(&server).await, 2).await;
    server.stop().await.unwrap();

    let parent = Parent::start(folder.path());
    let error = start(folder.path()).await.unwrap_err();
    assert!(matches!(error, EmbeddedError::InUse { pid: Some(pid), .. } if pid == parent.child.id()), "{error}");
    assert!(is_alive(parent.server_pid));
    parent.kill9();
}

#[tokio::test]
async fn of_starters_at_once_on_a_new_folder_one_gets_it() {
    let folder = folder();
    let results = futures_util::future::join_all((0..4).map(|_| start(folder.path()))).await;
    let (running, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!(running.len(), 1);
    for refusal in refused {
        assert!(matches!(refusal.unwrap_err(), EmbeddedError::InUse { .. }));
    }
    for server in running {
        server.unwrap().stop().await.unwrap();
    }
}

/// Secrets stand in our environment (I6), and `PGPORT` and its like would lead the server astray.
#[tokio::test]
async fn the_server_inherits_nothing_of_our_environment() {
    let folder = folder();
    let parent = Parent::start(folder.path());
    let environment = std::fs::read(format!("/proc/{}/environ", parent.server_pid)).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    assert!(environment.contains("LC_ALL=C"), "{environment}");
    assert!(!environment.contains("secret") && !environment.contains("PGPORT"), "{environment}");
    parent.kill9();
}

#[tokio::test]
async fn a_setting_that_the_server_refuses_is_reported_with_its_log() {
    let folder = folder();
    let error = Embedded::start(folder.path(), &binaries(), &[("wal_level", "nonsense")]).await.unwrap_err();
    match &error {
        EmbeddedError::Died { log, .. } => assert!(log.contains("wal_level"), "{log}"),
        other => panic!("{other}"),
    }
    start(folder.path()).await.unwrap().stop().await.unwrap();
}
