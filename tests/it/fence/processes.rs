//! The service as a process with a witness folder: killed under load, and its data folder's database put back.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::Value;

use super::*;
use crate::harness::{Caller, Service, data_folder, id, program};

/// Spends fresh tokens one after another until told to stop; each is sent again until its outcome is known.
async fn spend_on(caller: Arc<std::sync::RwLock<Caller>>, player: u64, done: Arc<AtomicU64>, stop: Arc<AtomicBool>) {
    for number in 0_u64.. {
        let nonce = hex::encode([player.to_be_bytes(), number.to_be_bytes()].concat());
        let body = json!({ "keyId": "k", "nonce": nonce, "spendId": Uuid::new_v4() });
        loop {
            let now = caller.read().unwrap().clone();
            match now.try_call("POST", "/v1/spends", Some(body.clone())).await {
                Ok((200 | 201, _)) => break,
                Ok((503, problem)) => assert_ne!(problem["code"], "quarantined", "{problem}"),
                Ok((status, problem)) => panic!("{status} {problem}"),
                Err(_) => {}
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        done.fetch_add(1, Ordering::Relaxed);
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_of_the_service_under_load_never_leads_to_quarantine_i9_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let dir = folder.path().to_str().unwrap().to_owned();
    let env = [("FAIRLEDGER_WITNESS_DIR", dir.as_str())];
    let token = db.admin_token().await;
    let mut service = Service::spawn(&db, &env, &[]);
    let caller = Caller::new(&service, &token);
    assert_eq!(caller.call("PUT", "/v1/keys/k", Some(json!({}))).await.0, 201);
    let caller = Arc::new(std::sync::RwLock::new(caller));
    let (done, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let players: Vec<_> = (0..8)
        .map(|player| tokio::spawn(spend_on(Arc::clone(&caller), player, Arc::clone(&done), Arc::clone(&stop))))
        .collect();
    for _ in 0..6 {
        let target = done.load(Ordering::Relaxed) + 40;
        while done.load(Ordering::Relaxed) < target {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        service.kill9();
        service = Service::spawn(&db, &env, &[]);
        *caller.write().unwrap() = Caller::new(&service, &token);
        assert!(!service.logs().contains("QUARANTINE"), "{}", service.logs());
    }
    stop.store(true, Ordering::Relaxed);
    futures_util::future::join_all(players).await.into_iter().for_each(Result::unwrap);
    let stored: i64 =
        sqlx::query_scalar("SELECT count(*) FROM fairledger.spends").fetch_one(&mut db.owner().await).await.unwrap();
    assert_eq!(stored.unsigned_abs(), done.load(Ordering::Relaxed));
}

fn in_folder(data: &Path, args: &[&str]) -> Command {
    let mut command = program(args);
    command.args(["--data-dir".as_ref(), data.as_os_str()]);
    command
}

fn serve(data: &Path) -> (Service, Caller) {
    let service = Service::start(in_folder(data, &["serve", "--listen", "127.0.0.1:0"]));
    let token = std::fs::read_to_string(data.join("admin-token")).unwrap();
    let caller = Caller::new(&service, token.trim());
    (service, caller)
}

fn copy_folder(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(done.success());
}

async fn readiness(caller: &Caller) -> (u16, Value) {
    caller.call("GET", "/readyz", None).await
}

/// What the README promises: the private PostgreSQL's folder copied, and put back later.
#[tokio::test]
async fn a_data_folder_put_back_is_noticed_shown_and_healed_i10() {
    let (folder, data) = data_folder();
    let (mut service, caller) = serve(&data);
    let session = caller.session().await;
    caller.dice(&session, "a").await;
    assert!(service.terminate().success());
    copy_folder(&data.join("pg"), &folder.path().join("backup"));
    let (mut service, caller) = serve(&data);
    let lost = caller.dice(&session, "b").await;
    assert!(service.terminate().success());
    std::fs::remove_dir_all(data.join("pg")).unwrap();
    copy_folder(&folder.path().join("backup"), &data.join("pg"));

    let (service, caller) = serve(&data);
    assert_eq!(readiness(&caller).await.0, 503);
    let shown = in_folder(&data, &["recover"]).output().unwrap();
    assert!(String::from_utf8_lossy(&shown.stdout).contains("missing: writer"), "{shown:?}");
    let args = ["recover", "--confirm", "--reason", "put back", "--move-sessions"];
    let healed = in_folder(&data, &args).output().unwrap();
    assert!(healed.status.success(), "{healed:?}");
    // The running service follows by itself.
    while readiness(&caller).await.0 != 200 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let path = format!("/v1/sessions/{}/bets", id(&session));
    let body = json!({ "commitment": session["commitment"], "betRef": "b", "game": "dice" });
    let (status, changed) = caller.call("POST", &path, Some(body)).await;
    assert_eq!((status, &changed["code"]), (409, &json!("commitment_changed")), "{changed}");
    let again = caller.dice(&changed["session"], "b").await;
    assert_ne!(again["record"]["commitment"], lost["record"]["commitment"]);
    let verified = in_folder(&data, &["verify"]).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
    drop(service);
}
