//! File descriptors used up, and connections by the thousand.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::harness::Service;

/// The service with so many file descriptors at the most.
fn with_descriptors(db: &TestDb, limit: u32) -> Service {
    let mut command = std::process::Command::new("sh");
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

/// As many idle connections as this process may open, ten thousand at the most: the service holds so many as its bound says, and answers.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_idle_connections_are_bounded_and_given_up_i12() {
    let (soft, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    let _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, hard, hard);
    let (raised, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    // The others of this process need some too.
    let count = usize::try_from(raised.max(soft)).unwrap().saturating_sub(600).min(10_000);
    assert!(count > 100, "too few descriptors to show anything: {count}");
    let http = HttpSettings {
        connections_max: 64,
        header_timeout: std::time::Duration::from_millis(500),
        ..HttpSettings::default()
    };
    let stage = Stage::with_http(http).await;
    let address = stage.address.clone();
    let mut idle = Vec::new();
    while idle.len() < count {
        // What the kernel's queue does not take is refused or waits: neither costs the service anything.
        match tokio::time::timeout(std::time::Duration::from_millis(50), TcpStream::connect(&address)).await {
            Ok(Ok(stream)) => idle.push(stream),
            _ => break,
        }
    }
    assert!(idle.len() > 64, "{}", idle.len());
    // The first ones are given up when their time for headers is over: that makes room for who asks.
    let mut first = idle.swap_remove(0);
    assert_eq!(first.read(&mut [0; 16]).await.unwrap_or(0), 0, "the service ends a connection that says nothing");
    drop(idle);
    let mut asking = TcpStream::connect(&address).await.unwrap();
    asking.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    asking.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}
