//! `seed-keys rotate`: every seed moves to the new key while bets go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fairledger::seeds::KeyRing;

use super::*;

/// More than fit into one batch.
const SESSIONS: usize = 130;

async fn keys_in_use(db: &TestDb) -> Vec<String> {
    let query = "SELECT DISTINCT seal_key_id FROM (SELECT seal_key_id FROM fairledger.seeds
                 UNION ALL SELECT seal_key_id FROM fairledger.next_seeds) s ORDER BY 1";
    sqlx::query_scalar(query).fetch_all(&mut db.owner().await).await.unwrap()
}

#[tokio::test]
async fn every_seed_moves_to_the_new_key_while_bets_go_on_i7() {
    let db = TestDb::new().await;
    let keys = db.data_dir().join("seed-keys");
    let old = std::fs::read_to_string(&keys).unwrap();
    let new = KeyRing::generate_entry("k2");
    let token = db.admin_token().await;
    let service = Service::spawn(&db, &[], &[]);
    let caller = Caller::new(&service, &token);
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(caller.session().await);
    }
    drop(service);
    assert_eq!(keys_in_use(&db).await, ["k1"]);

    std::fs::write(&keys, format!("{}\n{old}\n", *new)).unwrap();
    let service = Service::spawn(&db, &[], &[]);
    let caller = Arc::new(Caller::new(&service, &token));
    let stop = Arc::new(AtomicBool::new(false));
    let players: Vec<_> = (0..4)
        .map(|player| {
            let (caller, stop) = (Arc::clone(&caller), Arc::clone(&stop));
            let mut sessions: Vec<Value> = sessions.iter().skip(player).step_by(4).cloned().collect();
            tokio::spawn(async move {
                let mut bets = 0;
                while !stop.load(Ordering::Relaxed) || bets < sessions.len() {
                    let at = bets % sessions.len();
                    caller.dice(&sessions[at], &format!("b:{bets}")).await;
                    if bets % 3 == 0 {
                        sessions[at] = caller.rotate(&sessions[at]).await;
                    }
                    bets += 1;
                }
                (sessions, bets)
            })
        })
        .collect();
    let rotated = done(on(&db, &["seed-keys", "rotate"])).await;
    stop.store(true, Ordering::Relaxed);
    let mut sessions = Vec::new();
    let mut bets = 0;
    for player in players {
        let (played, taken) = player.await.unwrap();
        sessions.extend(played);
        bets += taken;
    }
    let out = rotated.succeeded().out;
    assert!(out.contains("anew under key k2") && out.contains("key k1: no seed needs it any more"), "{out}");
    assert_eq!(keys_in_use(&db).await, ["k2"]);
    drop(service);

    // Without the old key everything can still be bet under, revealed and verified.
    std::fs::write(&keys, new.as_bytes()).unwrap();
    let service = Service::spawn(&db, &[], &[]);
    let caller = Caller::new(&service, &token);
    for session in &sessions {
        let bet = caller.dice(session, "last").await;
        assert_eq!(bet["meta"]["status"], "recorded");
        caller.rotate(session).await;
    }
    let report = done(on(&db, &["verify", "--json"])).await.succeeded().out;
    let verified = serde_json::from_str::<Value>(&report).unwrap()["verified"].as_u64();
    assert_eq!(verified, Some((bets + sessions.len()) as u64));
    let again = done(on(&db, &["seed-keys", "rotate"])).await.succeeded().out;
    assert!(again.contains("sealed 0 seeds anew"), "{again}");
}

#[tokio::test]
async fn without_the_owners_rights_or_the_old_key_it_refuses_and_changes_nothing() {
    let db = TestDb::new().await;
    let keys = db.data_dir().join("seed-keys");
    let old = std::fs::read_to_string(&keys).unwrap();
    let service = Service::spawn(&db, &[], &[]);
    Caller::new(&service, &db.admin_token().await).session().await;
    let new = KeyRing::generate_entry("k2");
    std::fs::write(&keys, new.as_bytes()).unwrap();
    done(on(&db, &["seed-keys", "rotate"])).await.refused(&["sealed under key \"k1\"", "add it"]);
    std::fs::write(&keys, format!("{},{old}", *new)).unwrap();
    let mut as_service = on(&db, &["seed-keys", "rotate"]);
    as_service.env_remove("MIGRATE_DATABASE_URL");
    done(as_service).await.refused(&["permission denied"]);
    assert_eq!(keys_in_use(&db).await, ["k1"]);
    let mut without = on(&db, &["seed-keys", "rotate"]);
    without.env_remove("FAIRLEDGER_SEED_KEYS_FILE");
    done(without).await.refused(&["FAIRLEDGER_SEED_KEYS"]);
}

/// The key was to be added to every service first, and one was left out.
#[tokio::test]
async fn a_service_that_lacks_the_new_key_says_so_and_is_not_ready() {
    let db = TestDb::new().await;
    let token = db.admin_token().await;
    let keys = db.data_dir().join("seed-keys");
    let old = std::fs::read_to_string(&keys).unwrap();
    let service = Service::spawn(&db, &[], &[]);
    let caller = Caller::new(&service, &token);
    let session = caller.session().await;
    caller.dice(&session, "a").await;
    assert_eq!(caller.call("GET", "/readyz", None).await.0, 200);
    std::fs::write(&keys, format!("{},{old}", *KeyRing::generate_entry("k2"))).unwrap();
    done(on(&db, &["seed-keys", "rotate"])).await.succeeded();
    let bet = json!({ "commitment": session["commitment"], "betRef": "b", "game": "dice" });
    let bets = format!("/v1/sessions/{}/bets", id(&session));
    let (status, problem) = caller.call("POST", &bets, Some(bet.clone())).await;
    assert_eq!((status, &problem["code"]), (503, &json!("unavailable")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("lacks the key of this seed"), "{problem}");
    // An answer counts for a second.
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    let (status, problem) = caller.call("GET", "/readyz", None).await;
    assert_eq!((status, &problem["code"]), (503, &json!("unavailable")), "{problem}");
    assert!(
        problem["detail"].as_str().unwrap().contains("the key \"k2\", which this service does not have"),
        "{problem}"
    );
    drop(service);
    let service = Service::spawn(&db, &[], &[]);
    let caller = Caller::new(&service, &token);
    assert_eq!(caller.call("POST", &bets, Some(bet)).await.0, 201);
    assert_eq!(caller.call("GET", "/readyz", None).await.0, 200);
}
