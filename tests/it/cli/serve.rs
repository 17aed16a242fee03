//! `serve` on a database of its operator's: what it refuses, and how it stops.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::{Connection as _, Executor as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;

pub(super) const SERVE: &[&str] = &["serve", "--listen", "127.0.0.1:0"];

#[tokio::test]
async fn without_keys_it_refuses_and_tells_how_to_make_them() {
    let db = TestDb::new().await;
    let mut command = on(&db, SERVE);
    command.env_remove("FAIRLEDGER_SEED_KEYS_FILE").env_remove("FAIRLEDGER_SECRET_FILE");
    let words = ["FAIRLEDGER_SEED_KEYS", "FAIRLEDGER_SECRET_FILE", "openssl rand -base64 32"];
    done(command).await.refused(&words);
    let mut command = on(&db, SERVE);
    command.env_remove("FAIRLEDGER_SECRET_FILE");
    let done = done(command).await.refused(&["FAIRLEDGER_SECRET"]);
    assert!(!done.err.contains("FAIRLEDGER_SEED_KEYS"), "{done:#?}");
}

#[tokio::test]
async fn it_refuses_keys_that_cannot_open_what_is_stored_i7() {
    let db = TestDb::new().await;
    let service = Service::spawn(&db, &[], &[]);
    Caller::new(&service, &db.admin_token().await).session().await;
    drop(service);
    let keys = db.data_dir().join("seed-keys");
    for (id, words) in [("k1", "seed key \"k1\" is not the key of that name"), ("k2", "sealed under key \"k1\"")] {
        std::fs::write(&keys, fairledger::seeds::KeyRing::generate_entry(id).as_bytes()).unwrap();
        done(on(&db, SERVE)).await.refused(&[words]);
    }
}

#[tokio::test]
async fn it_starts_on_a_pending_schema_only_when_told_to_migrate() {
    let db = TestDb::unmigrated().await;
    done(on(&db, SERVE)).await.refused(&["run `fairledger migrate`"]);
    let service = Service::spawn(&db, &[("MIGRATE_DATABASE_URL", &db.owner_url)], &["--migrate"]);
    Caller::new(&service, &db.admin_token().await).session().await;
    assert!(!service.logs().contains("DATABASE_URL connects as the owner"), "{}", service.logs());
}

#[tokio::test]
async fn it_warns_when_it_could_change_history_i8() {
    let db = TestDb::new().await;
    let service = Service::spawn_at(&db.owner_url, &db, &[], &[]);
    assert!(service.logs().contains("DATABASE_URL connects as the owner"), "{}", service.logs());
}

#[cfg(not(feature = "otlp"))]
#[tokio::test]
async fn without_the_feature_a_collector_gets_nothing_and_the_log_says_so() {
    let db = TestDb::new().await;
    let service = Service::spawn(&db, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")], &[]);
    assert!(service.logs().contains("built without the feature otlp"), "{}", service.logs());
}

#[tokio::test]
async fn it_tells_why_it_cannot_listen() {
    let db = TestDb::new().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    done(on(&db, &["serve", "--listen", &address])).await.refused(&[&address, "another process listens there"]);
    done(on(&db, &["serve", "--listen", "192.0.2.1:8080"])).await.refused(&["no such address"]);
}

#[tokio::test]
async fn it_runs_no_private_database_where_one_is_required() {
    let (_folder, data) = data_folder();
    for args in [SERVE, &["verify"], &["migrate"], &["token", "list"]] {
        let mut command = in_folder(&data, args);
        command.env("FAIRLEDGER_REQUIRE_DATABASE", "1");
        done(command).await.refused(&["DATABASE_URL is not set"]);
    }
    assert!(!data.exists());
}

/// A bet that waits for its session's lock, as for a slow database.
async fn waiting_bet(db: &TestDb, caller: &Caller) -> (sqlx::PgConnection, tokio::task::JoinHandle<(u16, Value)>) {
    let session = caller.session().await;
    let mut owner = db.owner().await;
    owner.execute("BEGIN; SELECT FROM fairledger.seeds FOR UPDATE").await.unwrap();
    let caller = caller.clone();
    let bet = tokio::spawn(async move {
        let body = json!({ "commitment": session["commitment"], "betRef": "b", "game": "dice" });
        caller.call("POST", &format!("/v1/sessions/{}/bets", id(&session)), Some(body)).await
    });
    db.wait_until(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0)",
    )
    .await;
    (owner, bet)
}

#[tokio::test]
async fn told_to_stop_it_answers_what_is_under_way_and_takes_nothing_new_i9() {
    let db = TestDb::new().await;
    let mut service = Service::spawn(&db, &[], &[]);
    let caller = Caller::new(&service, &db.admin_token().await);
    let address = service.base_url.trim_start_matches("http://").to_owned();
    // Connections that are open already, each in the middle of a request's headers.
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(b"GET /v1/signing-keys HTTP/1.1\r\nhost: x\r\n").await.unwrap();
        open.push(stream);
    }
    let (mut owner, bet) = waiting_bet(&db, &caller).await;
    kill(Pid::from_raw(service.pid().cast_signed()), Signal::SIGTERM).unwrap();
    // Until nothing is accepted any more.
    while TcpStream::connect(&address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut answers = String::new();
    for stream in &mut open {
        stream.write_all(b"\r\n").await.unwrap();
        // One whose bytes had not been read was closed.
        let _ = stream.read_to_string(&mut answers).await;
    }
    assert!(answers.starts_with("HTTP/1.1 503 ") && answers.contains("\"unavailable\""), "{answers}");
    assert!(answers.contains("retry-after: ") && !answers.contains(" 200 "), "{answers}");
    owner.execute("ROLLBACK").await.unwrap();
    assert_eq!(bet.await.unwrap().0, 201);
    let status = tokio::task::spawn_blocking(move || service.await_end(Duration::from_secs(10))).await.unwrap();
    assert!(status.success(), "{status}");
}

/// The lock is held for longer than the service waits, and it gives up without a second signal.
#[tokio::test]
async fn told_to_stop_it_ends_in_its_time_though_a_change_does_not_i12() {
    let db = TestDb::new().await;
    let env = [("FAIRLEDGER_SHUTDOWN_TIMEOUT", "100ms"), ("FAIRLEDGER_LOCK_TIMEOUT", "2s")];
    let mut service = Service::spawn(&db, &env, &[]);
    let caller = Caller::new(&service, &db.admin_token().await);
    let (owner, bet) = waiting_bet(&db, &caller).await;
    let status = tokio::task::spawn_blocking(move || (service.terminate(), service.logs())).await.unwrap();
    assert!(
        status.0.success() && status.1.contains("some requests took too long to end and are cut off"),
        "{status:?}"
    );
    bet.abort();
    owner.close().await.unwrap();
}

#[tokio::test]
async fn told_twice_it_ends_at_once() {
    let db = TestDb::new().await;
    let mut service =
        Service::spawn(&db, &[("FAIRLEDGER_LOCK_TIMEOUT", "1m"), ("FAIRLEDGER_STATEMENT_TIMEOUT", "1m")], &[]);
    let caller = Caller::new(&service, &db.admin_token().await);
    let (owner, bet) = waiting_bet(&db, &caller).await;
    let pid = Pid::from_raw(service.pid().cast_signed());
    kill(pid, Signal::SIGINT).unwrap();
    while !service.logs().contains("a second signal ends at once") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let asked = Instant::now();
    kill(pid, Signal::SIGTERM).unwrap();
    let status = tokio::task::spawn_blocking(move || service.await_end(Duration::from_secs(10))).await.unwrap();
    assert_eq!(status.code(), Some(1));
    // Far less than the 20 s that requests are given.
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    bet.abort();
    owner.close().await.unwrap();
}

#[tokio::test]
async fn what_is_due_ends_by_itself() {
    let db = TestDb::new().await;
    let env = [("FAIRLEDGER_IDLE_AFTER", "1s"), ("FAIRLEDGER_RESERVATION_TTL", "300ms")];
    let service = Service::spawn(&db, &env, &[]);
    let caller = Caller::new(&service, &db.admin_token().await);
    let session = caller.session().await;
    caller.dice(&session, "b").await;
    // Closing reveals the seed of a session with bets.
    db.wait_until("SELECT count(*) = 1 FROM fairledger.reveals WHERE reason = 'idle'").await;
}
