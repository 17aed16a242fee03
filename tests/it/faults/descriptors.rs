//! File descriptors used up, and connections by the thousand.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::harness::{Service, forget_settings};

/// The service with so many file descriptors at the most.
fn with_descriptors(db: &TestDb, limit: u32) -> Service {
    let mut command = std::process::Command::new("sh");
    forget_settings(&mut command);
    let serve = format!("ulimit -n {limit} && exec \"$0\" serve --listen 127.0.0.1:0 --data-dir \"$1\"");
    command.arg("-c").arg(serve).arg(env!("CARGO_BIN_EXE_fairledger")).arg(db.data_dir());
    command
        .env("DATABASE_URL", &db.service_url)
        .env("FAIRLEDGER_SEED_KEYS_FILE", db.data_dir().join("seed-keys"))
        .env("FAIRLEDGER_SECRET_FILE", db.data_dir().join("secret"))
        .env("FAIRLEDGER_ACQUIRE_TIMEOUT", "300ms")
        .env("FAIRLEDGER_WITNESS_DIR", db.data_dir().join("witness"));
    Service::start(command)
}

#[tokio::test(flavor = "multi_thread")]
async fn without_descriptors_the_service_goes_on_for_those_it_has_and_recovers_i12() {
    let db = TestDb::new().await;
    let token = db.admin_token().await;
    let service = with_descriptors(&db, 64);
    let (caller, told) = (Caller::new(&service, &token), Told::default());
    assert_eq!(caller.call("PUT", "/v1/keys/k", Some(json!({}))).await.0, 201);
    let address = service.base_url.strip_prefix("http://").unwrap().to_owned();
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(TcpStream::connect(&address).await.unwrap());
    }
    while !service.logs().contains("could not be accepted") {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    // The caller's connection is one of those taken; whatever the database needs may fail, and is told.
    for _ in 0..3 {
        let change = Change { name: "spend", method: "POST", path: "/v1/spends".into(), body: spend() };
        let answer = change.send(&caller).await;
        assert!(change.stands(&answer) || answer.0 == 503, "{answer:?}");
        if change.stands(&answer) {
            told.note(&change, &answer.1);
        }
    }
    drop(idle);
    // One that had to wait is served now.
    for name in ["spend", "session"] {
        let body = if name == "spend" { spend() } else { json!({ "sessionId": Uuid::now_v7() }) };
        let change = Change { name, method: "POST", path: format!("/v1/{name}s"), body };
        told.note(&change, &change.resolve(&caller).await);
    }
    told.prove(&mut db.owner().await).await;
    assert!(!service.logs().contains("QUARANTINE"), "{}", service.logs());
}

/// Clients that connect and say nothing.
const IDLE: usize = 10_000;

/// # Panics
/// Where so many descriptors are not to be had: the test can show nothing there.
fn allow_descriptors(count: usize) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert!(
        hard >= count as u64,
        "needs {count} file descriptors, and the hard limit is {hard}: raise it (ulimit -Hn)"
    );
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
}

async fn is_alive(address: &str) -> bool {
    let mut asking = TcpStream::connect(address).await.unwrap();
    asking.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    asking.read_to_string(&mut answer).await.unwrap();
    answer.starts_with("HTTP/1.1 200 OK")
}

/// The service takes as many as its bound says, 4,096; the others wait in the kernel's queue or before it.
#[tokio::test(flavor = "multi_thread")]
async fn beside_ten_thousand_idle_clients_a_caller_is_served_i12() {
    // The others of this process need some too.
    allow_descriptors(IDLE + 4_000);
    let db = TestDb::new().await;
    let service = with_descriptors(&db, 6_000);
    let caller = Caller::new(&service, &db.admin_token().await);
    assert_eq!(caller.call("PUT", "/v1/keys/k", Some(json!({}))).await.0, 201);
    let address: std::net::SocketAddr = service.base_url.strip_prefix("http://").unwrap().parse().unwrap();
    let (connected, mut clients) =
        (std::sync::Arc::<std::sync::atomic::AtomicUsize>::default(), tokio::task::JoinSet::new());
    for _ in 0..IDLE {
        let (socket, connected) = (tokio::net::TcpSocket::new_v4().unwrap(), std::sync::Arc::clone(&connected));
        clients.spawn(async move {
            let _idle = socket.connect(address).await;
            connected.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            std::future::pending::<()>().await;
        });
    }
    while connected.load(std::sync::atomic::Ordering::Relaxed) < 4_096 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(clients.len(), IDLE);
    let change = Change { name: "spend", method: "POST", path: "/v1/spends".into(), body: spend() };
    let answer = change.send(&caller).await;
    assert!(change.stands(&answer), "{answer:?}");
    clients.shutdown().await;
    assert!(is_alive(&address.to_string()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_past_the_bound_wait_and_are_given_up_i12() {
    let http = HttpSettings {
        connections_max: 64,
        header_timeout: std::time::Duration::from_millis(500),
        ..HttpSettings::default()
    };
    let stage = Stage::with_http(http).await;
    let mut idle = Vec::new();
    for _ in 0..500 {
        idle.push(TcpStream::connect(&stage.address).await.unwrap());
    }
    // The first ones are given up when their time for headers is over: that makes room for who asks.
    assert_eq!(idle[0].read(&mut [0; 16]).await.unwrap_or(0), 0, "the service ends a connection that says nothing");
    drop(idle);
    assert!(is_alive(&stage.address).await);
}
