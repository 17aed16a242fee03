//! Failovers, with a primary and a standby of our own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fairledger::db::bootstrap::{DATABASE, SERVICE};
use fairledger::http::auth::{ApiToken, new_token_id};
use serde_json::Value;

use super::*;
use crate::harness::{Caller, Pair, Proxy, Service, id, program};

/// A service over a proxy that leads to the primary of a pair.
struct Setup {
    pair: Pair,
    proxy: Proxy,
    service: Service,
    caller: Caller,
    _db: TestDb,
    _witness: tempfile::TempDir,
}

impl Setup {
    async fn start(synchronous: bool, args: &[&str]) -> Self {
        let pair = Pair::start(synchronous).await;
        let token = ApiToken::generate();
        let insert = format!(
            "INSERT INTO fairledger.api_tokens (token_id, token_hash, scopes) VALUES ('{}', decode('{}', 'hex'), '{{admin}}')",
            new_token_id(),
            hex::encode(token.hash())
        );
        Pair::run(&pair.primary, insert).await;
        let proxy = Proxy::start(&Pair::service_url(&pair.primary)).await;
        // Only its folder with keys is used.
        let db = TestDb::new().await;
        let witness = tempfile::tempdir().unwrap();
        let env = [("FAIRLEDGER_WITNESS_DIR", witness.path().to_str().unwrap())];
        let service = Service::spawn_at(&proxy.url_as(SERVICE, DATABASE), &db, &env, args);
        let caller = Caller::new(&service, token.expose());
        assert_eq!(caller.call("PUT", "/v1/keys/k", Some(json!({}))).await.0, 201);
        Self { pair, proxy, service, caller, _db: db, _witness: witness }
    }

    /// Kills the primary and lets the service find the standby in its place.
    async fn fail_over(&self) {
        self.pair.kill_primary();
        self.proxy.close();
        self.pair.promote().await;
        self.proxy.lead_to(&Pair::service_url(&self.pair.standby));
        self.proxy.open();
    }
}

/// What callers were told.
#[derive(Default)]
struct Told {
    bets: Mutex<BTreeMap<String, Value>>,
    spends: Mutex<BTreeMap<String, Value>>,
    lost_answers: AtomicUsize,
    stop: AtomicBool,
}

impl Told {
    fn count(&self) -> usize {
        self.bets.lock().unwrap().len() + self.spends.lock().unwrap().len()
    }

    async fn await_more(&self, more: usize) {
        let target = self.count() + more;
        while self.count() < target {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    }

    /// Sends one change until its outcome is known.
    async fn send(&self, caller: &Caller, path: &str, body: &Value) -> Value {
        loop {
            match caller.try_call("POST", path, Some(body.clone())).await {
                Ok((200 | 201, answer)) => return answer,
                Ok((503, problem)) => assert_ne!(problem["code"], "quarantined", "{problem}"),
                Ok((status, problem)) => panic!("{status} {problem}"),
                Err(_) => {}
            }
            self.lost_answers.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Bets and spends in turn.
    async fn play(self: Arc<Self>, caller: Caller, session: Value, player: u64) {
        let bets = format!("/v1/sessions/{}/bets", id(&session));
        for number in 0_u64.. {
            let name = format!("{player}:{number}");
            let body = json!({ "commitment": session["commitment"], "betRef": name, "game": "dice" });
            let mut answer = self.send(&caller, &bets, &body).await;
            self.bets.lock().unwrap().insert(name, answer["record"].take());
            let nonce = hex::encode([player.to_be_bytes(), number.to_be_bytes()].concat());
            let body = json!({ "keyId": "k", "nonce": nonce, "spendId": Uuid::new_v4() });
            self.send(&caller, "/v1/spends", &body).await;
            self.spends.lock().unwrap().insert(nonce, body);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_synchronous_standby_a_killed_primary_loses_nothing_and_the_service_goes_on_by_itself_i9_i10() {
    let setup = Setup::start(true, &["--require-sync-standby"]).await;
    let session = setup.caller.session().await;
    let told = Arc::new(Told::default());
    let players: Vec<_> = (0..8)
        .map(|player| tokio::spawn(Arc::clone(&told).play(setup.caller.clone(), session.clone(), player)))
        .collect();
    told.await_more(100).await;
    setup.fail_over().await;
    told.await_more(100).await;
    told.stop.store(true, Ordering::Relaxed);
    futures_util::future::join_all(players).await.into_iter().for_each(Result::unwrap);
    assert!(told.lost_answers.load(Ordering::Relaxed) > 0, "no answer was lost: nothing was tested");
    assert!(!setup.service.logs().contains("QUARANTINE"), "{}", setup.service.logs());

    // Every answer is there as it was given, each once, without gaps.
    let bets = told.bets.lock().unwrap().clone();
    crate::service::check(&setup.caller, id(&session), &bets).await;
    let spends = told.spends.lock().unwrap().clone();
    for body in spends.values() {
        let (status, answer) = setup.caller.call("POST", "/v1/spends", Some(body.clone())).await;
        assert_eq!((status, &answer["replayed"]), (200, &json!(true)), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_asynchronous_standby_that_was_behind_is_noticed_by_the_first_write_i10() {
    let setup = Setup::start(false, &[]).await;
    assert!(setup.service.logs().contains("standbys follow asynchronously"), "{}", setup.service.logs());
    let session = setup.caller.session().await;
    setup.caller.dice(&session, "kept").await;
    // What is acknowledged from here on reaches no standby.
    setup.pair.cut_off_standby().await;
    setup.caller.dice(&session, "lost").await;
    setup.fail_over().await;

    let path = format!("/v1/sessions/{}/bets", id(&session));
    let body = json!({ "commitment": session["commitment"], "betRef": "next", "game": "dice" });
    let problem = loop {
        match setup.caller.call("POST", &path, Some(body.clone())).await {
            (503, problem) if problem["code"] == "quarantined" => break problem,
            // The connections of before are gone.
            (503, _) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            (status, answer) => panic!("the loss went unnoticed: {status} {answer}"),
        }
    };
    assert!(problem["detail"].as_str().unwrap().contains("recovery"), "{problem}");
    let (status, view) = setup.caller.call("GET", &format!("/v1/sessions/{}", id(&session)), None).await;
    assert_eq!((status, &view["bets"]), (200, &json!(1)), "reads work");
    assert_eq!(setup.caller.call("GET", "/readyz", None).await.0, 503);
}

/// No answer leaves while no standby has the commit, and what waits is not given up on either.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_waits_for_the_standby_is_neither_answered_nor_cancelled_i9() {
    let setup = Setup::start(true, &["--statement-timeout", "500ms", "--lock-timeout", "500ms"]).await;
    let session = setup.caller.session().await;
    // A standby that is stopped keeps its connection, so that the primary goes on waiting for it.
    let standby = nix::unistd::Pid::from_raw(i32::try_from(setup.pair.standby.pid()).unwrap());
    let children = stop_tree(standby, nix::sys::signal::Signal::SIGSTOP);
    let (caller, view) = (setup.caller.clone(), session.clone());
    let bet = tokio::spawn(async move { caller.dice(&view, "waits").await });
    setup.pair.await_on_primary("SELECT count(*) >= 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'").await;
    // Far beyond every limit on statements that the service states.
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    setup.pair.await_on_primary("SELECT count(*) >= 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'").await;
    assert!(!bet.is_finished(), "an answer left before the standby had its commit");
    for pid in children {
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
    }
    assert_eq!(bet.await.unwrap()["record"]["nonce"], 0);
}

/// Signals a process and its children; gives all of them.
fn stop_tree(parent: nix::unistd::Pid, signal: nix::sys::signal::Signal) -> Vec<nix::unistd::Pid> {
    let mut all = vec![parent];
    for entry in std::fs::read_dir("/proc").unwrap() {
        let Ok(pid) = entry.unwrap().file_name().to_string_lossy().parse::<i32>() else { continue };
        // The fields after the name in parentheses: state, then the parent's pid. It may have ended meanwhile.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        if fields.split_whitespace().nth(1) == Some(parent.to_string().as_str()) {
            all.push(nix::unistd::Pid::from_raw(pid));
        }
    }
    for pid in &all {
        nix::sys::signal::kill(*pid, signal).unwrap();
    }
    all
}

#[tokio::test]
async fn nothing_is_served_on_a_standby_nor_without_the_synchronous_one_that_was_asked_for() {
    let pair = Pair::start(false).await;
    let db = TestDb::new().await;
    for (server, args, words) in [
        (&pair.standby, vec![], "is a standby"),
        (&pair.primary, vec!["--require-sync-standby"], "no commit waits for a standby"),
    ] {
        let mut command = program(&["serve", "--listen", "127.0.0.1:0"]);
        command
            .args(args)
            .env("DATABASE_URL", Pair::service_url(server))
            .env("FAIRLEDGER_SEED_KEYS_FILE", db.data_dir().join("seed-keys"))
            .env("FAIRLEDGER_SECRET_FILE", db.data_dir().join("secret"));
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && text.contains(words), "{text}");
    }
}
