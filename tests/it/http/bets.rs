//! Bets, reservations, voids and settlements.

use std::time::Duration;

use fairledger::gfs::signature::SigningKey;
use fairledger::seeds::SeedsSettings;
use serde_json::{Value, json};

use super::{Api, Setup};

/// The same answer, but replayed.
#[track_caller]
fn assert_replayed(again: &Value, first: &Value) {
    assert_eq!((&first["replayed"], &again["replayed"]), (&json!(false), &json!(true)));
    let mut first = first.clone();
    first["replayed"] = json!(true);
    assert_eq!(*again, first);
}

#[tokio::test]
async fn a_bet_is_taken_once_and_answered_for_ever() {
    let api = Api::with(Setup { signing_key: Some(SigningKey::generate()), ..Setup::default() }).await;
    let session = api.session().await;
    let body = json!({
        "betRef": "r:1", "game": "plinko", "selection": {"risk": "high"}, "stake": "1.50", "currency": "EUR",
        "context": {"table": 7},
    });
    let bet = session.post("/bets", body.clone()).await.expect(201);
    let record = &bet["record"];
    assert_eq!(
        (&record["spec"], &record["profile"], &record["game"]),
        (&json!("GFS/1.0"), &json!("single-player"), &json!("plinko"))
    );
    assert_eq!((&record["params"], &record["nonce"]), (&json!({"rows": 16}), &json!(0)));
    assert_eq!(record["result"]["path"].as_array().unwrap().len(), 16);
    assert!(record["signature"].is_string() && record.get("serverSeed").is_none());
    let meta = &bet["meta"];
    assert_eq!(
        (&meta["status"], &meta["stake"], &meta["context"]),
        (&json!("recorded"), &json!("1.50"), &json!({"table": 7}))
    );
    // Money is compared as a number, parameters with their defaults filled in.
    let mut same = body.clone();
    same["stake"] = json!("1.5");
    same["params"] = json!({"rows": 16.0});
    same["conceal"] = json!(false);
    assert_replayed(&session.post("/bets", same).await.expect(200), &bet);
    session.rotate().await.expect(200);
    let revealed = session.post("/bets", body.clone()).await.expect(200);
    assert_eq!(revealed["record"], bet["record"]);
    api.post("/v1/verify", revealed).await.expect(200);
    for (field, value) in [
        ("game", json!("keno")),
        ("params", json!({"rows": 8})),
        ("conceal", json!(true)),
        ("selection", json!({"risk": "low"})),
        ("stake", json!("1.51")),
        ("currency", json!("USD")),
        ("context", Value::Null),
    ] {
        let mut other = body.clone();
        other[field] = value;
        session.post("/bets", other).await.problem(409, "bet_ref_reused");
    }
    let rules = json!({"id": "r", "sha256": "ab".repeat(32)});
    let outside = json!({"betRef": "r:1", "game": "x-plinko", "rules": rules, "floats": 16});
    session.post("/nonces", outside).await.problem(409, "bet_ref_reused");
}

#[tokio::test]
async fn every_game_is_taken_and_verifies_after_the_reveal() {
    let api = Api::new().await;
    let session = api.session().await;
    let games = ["dice", "limbo", "roulette", "wheel", "plinko", "mines", "keno", "blackjack", "hilo"];
    for game in games {
        session.post("/bets", json!({"betRef": game, "game": game})).await.expect(201);
    }
    session.rotate().await.expect(200);
    let page = api.get(&session.at("/records")).await.expect(200);
    let records = page["records"].as_array().unwrap();
    assert_eq!(records.len(), games.len());
    for record in records {
        let inspection = api.post("/v1/verify", record.clone()).await.expect(200);
        assert_eq!(inspection["status"], "matches", "{inspection:#}");
    }
}

#[tokio::test]
async fn pages_of_records_follow_each_other_newest_first() {
    let api = Api::new().await;
    let session = api.session().await;
    for number in 0..5 {
        session.bet(&format!("b{number}")).await.expect(201);
    }
    let (mut nonces, mut after) = (Vec::new(), String::new());
    loop {
        let page = api.get(&session.at(&format!("/records?limit=2{after}"))).await.expect(200);
        nonces.extend(page["records"].as_array().unwrap().iter().map(|bet| bet["record"]["nonce"].as_u64().unwrap()));
        match page["nextAfter"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(nonces, [4, 3, 2, 1, 0]);
    let other = api.session().await;
    let token = api.get(&session.at("/records?limit=1")).await.expect(200)["nextAfter"].as_str().unwrap().to_owned();
    api.get(&other.at(&format!("/records?after={token}"))).await.invalid("after");
}

#[tokio::test]
async fn the_last_nonce_is_never_handed_out_i3() {
    let api = Api::new().await;
    let session = api.session().await;
    api.as_owner("UPDATE fairledger.seeds SET next_nonce = 9007199254740990").await;
    let bet = session.bet("last").await.expect(201);
    assert_eq!(bet["record"]["nonce"], 9_007_199_254_740_990_u64);
    session.bet("more").await.problem(409, "nonce_exhausted");
    assert_eq!(session.rotate().await.expect(200)["revealed"]["bets"], 9_007_199_254_740_991_u64);
}

#[tokio::test]
async fn a_reservation_shows_its_floats_and_takes_one_result() {
    let api = Api::new().await;
    let session = api.session().await;
    let reserved = session.reserve("r").await.expect(201);
    assert_eq!((&reserved["nonce"], &reserved["cursor"]), (&json!(0), &json!(0)));
    assert_eq!(reserved["floats"].as_array().unwrap().len(), 3);
    assert_replayed(&session.reserve("r").await.expect(200), &reserved);
    let record =
        async |nonce: u64, result: Value| session.post("/records", json!({"nonce": nonce, "result": result})).await;
    let bet = record(0, json!({"multiplier": 2.5})).await.expect(201);
    assert_eq!((&bet["record"]["profile"], &bet["record"]["floats"]), (&json!("custom"), &json!(3)));
    assert_eq!(bet["record"]["rules"]["id"], "crash-2");
    assert_replayed(&record(0, json!({"multiplier": 2.50})).await.expect(200), &bet);
    record(0, json!({"multiplier": 2})).await.problem(409, "record_exists_with_different_content");
    record(1, json!(1)).await.problem(409, "nonce_not_reserved");
    session.bet("played").await.expect(201);
    record(1, json!(1)).await.problem(409, "nonce_not_reserved");
    session.post("/voids", json!({"nonce": 0, "reason": "late"})).await.problem(409, "already_recorded");
    session.rotate().await.expect(200);
    let revealed = record(0, json!({"multiplier": 2.5})).await.expect(200);
    let inspection = api.post("/v1/verify", revealed).await.expect(200);
    assert_eq!(inspection["status"], "incomplete", "{inspection:#}");
}

#[tokio::test]
async fn a_pending_bet_is_voided_once() {
    let api = Api::new().await;
    let session = api.session().await;
    session.reserve("r").await.expect(201);
    let void = async |nonce: u64, reason: &str| session.post("/voids", json!({"nonce": nonce, "reason": reason})).await;
    let voided = void(0, "engine restarted").await.expect(201);
    assert_eq!(
        (&voided["meta"]["status"], &voided["meta"]["voidReason"]),
        (&json!("void"), &json!("engine restarted"))
    );
    assert_eq!(voided["record"].get("result"), None);
    assert_replayed(&void(0, "engine restarted").await.expect(200), &voided);
    void(0, "another reason").await.problem(409, "void_with_different_reason");
    let refused = session.post("/records", json!({"nonce": 0, "result": 1})).await.problem(409, "void");
    assert!(refused["detail"].as_str().unwrap().contains("engine restarted"));
    void(7, "x").await.problem(404, "bet_not_found");
    session.bet("played").await.expect(201);
    void(1, "x").await.problem(409, "already_recorded");
}

#[tokio::test]
async fn an_expired_reservation_is_void() {
    let seeds = SeedsSettings { reservation_ttl: Duration::ZERO, ..SeedsSettings::default() };
    let api = Api::with(Setup { seeds, ..Setup::default() }).await;
    let session = api.session().await;
    session.reserve("r").await.expect(201);
    let refused = session.post("/records", json!({"nonce": 0, "result": 1})).await.problem(409, "void");
    assert!(refused["detail"].as_str().unwrap().contains("expired"), "{refused}");
}

#[tokio::test]
async fn only_so_many_bets_may_be_pending() {
    let seeds = SeedsSettings { pending_max: 2, ..SeedsSettings::default() };
    let api = Api::with(Setup { seeds, ..Setup::default() }).await;
    let session = api.session().await;
    session.reserve("r1").await.expect(201);
    session.mines("r2", 3).await;
    session.reserve("r3").await.problem(409, "too_many_pending");
    session.bet("played").await.expect(201);
    session.post("/voids", json!({"nonce": 0, "reason": "x"})).await.expect(201);
    session.reserve("r3").await.expect(201);
}

#[tokio::test]
async fn a_recorded_bet_is_settled_once() {
    let api = Api::new().await;
    let session = api.session().await;
    session.bet("b").await.expect(201);
    session.reserve("pending").await.expect(201);
    let body = json!({
        "nonce": 0, "payout": "12.50", "outcome": "win", "displayed": {"text": "You won"}, "rules": {"table": "v3"},
    });
    let settled = session.post("/settlements", body.clone()).await.expect(201);
    let settlement = &settled["meta"]["settlement"];
    assert_eq!((&settlement["payout"], &settlement["outcome"]), (&json!("12.50"), &json!("win")));
    assert!(settlement["settledAt"].is_string());
    let mut same = body.clone();
    same["payout"] = json!("12.5");
    assert_replayed(&session.post("/settlements", same).await.expect(200), &settled);
    for (field, value) in
        [("payout", json!("12.51")), ("outcome", json!("loss")), ("displayed", json!(null)), ("rules", json!(0))]
    {
        let mut other = body.clone();
        other[field] = value;
        session.post("/settlements", other).await.problem(409, "settled_with_different_content");
    }
    session.post("/settlements", json!({"nonce": 1, "payout": "0"})).await.problem(409, "not_recorded");
    session.post("/settlements", json!({"nonce": 2, "payout": "0"})).await.problem(404, "bet_not_found");
}
