//! kill -9 under load, many times, of the service and of PostgreSQL.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::check;
use crate::harness::{Caller, Service, TestDb, data_folder, id, program};

const PLAYERS: usize = 12;

/// What all players share: whom to call, and what they were told.
struct Table {
    caller: RwLock<Caller>,
    session: Value,
    acknowledged: Mutex<BTreeMap<String, Value>>,
    unknown: AtomicUsize,
}

impl Table {
    fn new(caller: Caller, session: Value) -> Arc<Self> {
        let (acknowledged, unknown) = (Mutex::default(), AtomicUsize::new(0));
        Arc::new(Self { caller: RwLock::new(caller), session, acknowledged, unknown })
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// Waits until so many more bets are acknowledged.
    async fn await_more(&self, more: usize) {
        let target = self.count() + more;
        while self.count() < target {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Takes bets one after another until told to stop, each sent again until its outcome is known.
    async fn play(self: Arc<Self>, player: usize, stop: tokio_util::sync::CancellationToken) {
        let path = format!("/v1/sessions/{}/bets", id(&self.session));
        for number in 0.. {
            let name = format!("{player}:{number}");
            let body = json!({ "commitment": self.session["commitment"], "betRef": name, "game": "dice" });
            loop {
                let caller = self.caller.read().unwrap().clone();
                match caller.try_call("POST", &path, Some(body.clone())).await {
                    Ok((200 | 201, mut answer)) => {
                        self.acknowledged.lock().unwrap().insert(name, answer["record"].take());
                        break;
                    }
                    // The answer is lost, or the service says that it does not know.
                    Ok((503, _)) | Err(_) => {
                        self.unknown.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    Ok((status, answer)) => panic!("{status} {answer}"),
                }
            }
            if stop.is_cancelled() {
                return;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_kill_9_of_the_service_under_load_loses_and_doubles_nothing() {
    let db = TestDb::new().await;
    let token = db.admin_token().await;
    let mut service = Service::spawn(&db, &[], &[]);
    let caller = Caller::new(&service, &token);
    let table = Table::new(caller.clone(), caller.session().await);
    let stop = tokio_util::sync::CancellationToken::new();
    let players: Vec<_> =
        (0..PLAYERS).map(|player| tokio::spawn(Arc::clone(&table).play(player, stop.clone()))).collect();
    for _ in 0..8 {
        table.await_more(40).await;
        service.kill9();
        service = Service::spawn(&db, &[], &[]);
        *table.caller.write().unwrap() = Caller::new(&service, &token);
    }
    table.await_more(40).await;
    stop.cancel();
    futures_util::future::join_all(players).await.into_iter().for_each(Result::unwrap);
    finish(&table).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_kill_9_of_postgresql_under_load_loses_and_doubles_nothing() {
    let (_folder, data) = data_folder();
    let mut command = program(&["serve", "--listen", "127.0.0.1:0", "--data-dir"]);
    command.arg(&data);
    let mut service = Service::start(command);
    let token = std::fs::read_to_string(data.join("admin-token")).unwrap();
    let caller = Caller::new(&service, token.trim());
    let table = Table::new(caller.clone(), caller.session().await);
    let stop = tokio_util::sync::CancellationToken::new();
    let players: Vec<_> =
        (0..PLAYERS).map(|player| tokio::spawn(Arc::clone(&table).play(player, stop.clone()))).collect();
    let mut killed = None;
    for _ in 0..4 {
        table.await_more(40).await;
        // Backends may take bets for a moment after their postmaster is gone: it is the next one's turn.
        let postmaster = loop {
            let pid_file = std::fs::read_to_string(data.join("pg/postmaster.pid")).unwrap_or_default();
            match pid_file.lines().next().and_then(|pid| pid.parse().ok()) {
                Some(pid) if killed != Some(pid) => break pid,
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        kill(Pid::from_raw(postmaster), Signal::SIGKILL).unwrap();
        killed = Some(postmaster);
    }
    // The service starts its PostgreSQL again by itself.
    table.await_more(40).await;
    stop.cancel();
    futures_util::future::join_all(players).await.into_iter().for_each(Result::unwrap);
    finish(&table).await;
    assert!(service.terminate().success());
}

async fn finish(table: &Table) {
    assert!(table.unknown.load(Ordering::Relaxed) > 0, "no request was ever cut off: nothing was tested");
    let caller = table.caller.read().unwrap().clone();
    caller.rotate(&table.session).await;
    let acknowledged = table.acknowledged.lock().unwrap().clone();
    check(&caller, id(&table.session), &acknowledged).await;
}
