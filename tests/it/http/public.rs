//! What anyone may look up and check, without a token.

use axum::body::Body;
use axum::http::Request;
use axum::http::header::CONTENT_TYPE;
use fairledger::gfs::ServerSeed;
use serde_json::{Value, json};

use super::{Answer, Api};

const SEED: &str = "5c1f7d3e8a2b4c6d9e0f1a2b3c4d5e6f7a8b9c0d1e2f3a4b5c6d7e8f9a0b1c2d";

async fn get(api: &Api, path: &str) -> Answer {
    api.send(Request::get(path).body(Body::empty()).unwrap()).await
}

async fn post(api: &Api, path: &str, body: String) -> Answer {
    api.send(Request::post(path).header(CONTENT_TYPE, "application/json").body(Body::from(body)).unwrap()).await
}

#[tokio::test]
async fn anyone_may_follow_a_commitment_through_its_life_i6() {
    let api = Api::new().await;
    let view = api.post("/v1/sessions", json!({})).await.expect(201);
    let path = |commitment: &Value| format!("/v1/commitments/{}", commitment.as_str().unwrap());
    let (live, next) = (path(&view["commitment"]), path(&view["nextCommitment"]));
    let seen = get(&api, &next).await.expect(200);
    assert_eq!((&seen["status"], &seen["liveAt"], &seen["bets"]), (&json!("next"), &Value::Null, &json!(0)));
    let seen = get(&api, &live).await.expect(200);
    assert_eq!((&seen["status"], &seen["firstBetAt"], seen.get("serverSeed")), (&json!("live"), &Value::Null, None));
    let session = format!("/v1/sessions/{}", view["sessionId"].as_str().unwrap());
    let bet = json!({"commitment": view["commitment"], "betRef": "b", "game": "dice"});
    let bet = api.post(&format!("{session}/bets"), bet).await.expect(201);
    let seen = get(&api, &live).await.expect(200);
    assert_eq!((&seen["bets"], &seen["firstBetAt"]), (&json!(1), &bet["meta"]["takenAt"]));
    assert!(seen["committedAt"].as_str() < seen["firstBetAt"].as_str());
    api.post(&format!("{session}/rotate"), json!({"commitment": view["commitment"]})).await.expect(200);
    let seen = get(&api, &live).await.expect(200);
    let seed = ServerSeed::parse(seen["serverSeed"].as_str().unwrap()).unwrap();
    assert_eq!((&seen["status"], json!(seed.commitment())), (&json!("revealed"), view["commitment"].clone()));
    assert!(seen["revealedAt"].is_string());
    api.post(&format!("{session}/close"), json!({"commitment": view["nextCommitment"]})).await.expect(200);
    assert_eq!(get(&api, &next).await.expect(200)["status"], "discarded");
    get(&api, &format!("/v1/commitments/{}", "00".repeat(32))).await.problem(404, "commitment_not_found");
}

/// Whether a guess is near a commitment that exists is not told.
#[tokio::test]
async fn every_commitment_that_is_not_there_gets_the_same_answer_i6() {
    let api = Api::new().await;
    let view = api.post("/v1/sessions", json!({})).await.expect(201);
    let known = view["commitment"].as_str().unwrap();
    let last = if known.ends_with('0') { "1" } else { "0" };
    let mut answers = Vec::new();
    for guess in
        ["00".repeat(32), "ff".repeat(32), format!("{}{last}", &known[..63]), hex::encode(rand::random::<[u8; 32]>())]
    {
        let mut answer = get(&api, &format!("/v1/commitments/{guess}")).await.problem(404, "commitment_not_found");
        answer.as_object_mut().unwrap().remove("requestId");
        answers.push(answer);
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:#?}");
}

#[tokio::test]
async fn no_signing_key_is_an_empty_list() {
    let api = Api::new().await;
    assert_eq!(get(&api, "/v1/signing-keys").await.expect(200), json!({"keys": []}));
}

fn record() -> Value {
    json!({
        "spec": "GFS/1.0", "profile": "single-player", "game": "dice", "params": {}, "serverSeed": SEED,
        "commitment": ServerSeed::parse(SEED).unwrap().commitment(), "clientSeed": "c", "nonce": 0, "cursor": 0, "result": 0, "at": 0,
    })
}

#[tokio::test]
async fn anyone_may_have_a_record_inspected() {
    let api = Api::new().await;
    let mismatch = post(&api, "/v1/verify", record().to_string()).await.expect(200);
    assert_eq!(mismatch["status"], "mismatch");
    let mut right = record();
    right["result"] = mismatch["computed"].clone();
    let matches = post(&api, "/v1/verify", right.to_string()).await.expect(200);
    assert_eq!((&matches["status"], &matches["kind"]), (&json!("matches"), &json!("dice")));
    right["result"] = json!(9_007_199_254_740_993_u64);
    post(&api, "/v1/verify", right.to_string()).await.expect(200);
    let crash = json!({"gameHash": SEED, "salt": "salt", "houseEdge": 0.01});
    let inspection = post(&api, "/v1/verify", crash.to_string()).await.expect(200);
    assert_eq!((&inspection["kind"], &inspection["status"]), (&json!("Crash"), &json!("incomplete")));
}

#[tokio::test]
async fn a_record_out_of_form_is_an_error_that_names_the_field() {
    let api = Api::new().await;
    let with = |field: &str, value: Value| {
        let mut record = record();
        record[field] = value;
        record.to_string()
    };
    let deep = json!((0..12).fold(json!(1), |inner, _| json!([inner])));
    for (body, field) in [
        (with("spec", json!("GFS/2.0")), "spec"),
        (with("game", json!("poker")), "game"),
        (with("params", json!({"rows": 8})), "params.rows"),
        (with("nonce", json!(9_007_199_254_740_992_u64)), "nonce"),
        (with("clientSeed", json!("a:b")), "clientSeed"),
        (with("serverSeed", json!(SEED.to_uppercase())), "serverSeed"),
        (json!({"record": record()}).to_string().replace("GFS/1.0", "GFS"), "record.spec"),
        (with("extra", deep), &format!("extra{}", "[0]".repeat(12))),
        (record().to_string().replacen('{', "{\"at\":0,", 1), "at"),
        ("[]".to_owned(), ""),
        ("{".to_owned(), ""),
        (String::new(), ""),
    ] {
        let refused = post(&api, "/v1/verify", body.clone()).await.problem(400, "invalid_record");
        assert_eq!(refused["field"].as_str().unwrap_or_default(), field, "{body}: {refused:#}");
    }
    let padded = |bytes: usize| format!("{}{}", record(), " ".repeat(bytes - record().to_string().len()));
    post(&api, "/v1/verify", padded(65_536)).await.expect(200);
    post(&api, "/v1/verify", padded(65_537)).await.problem(413, "too_large");
}

#[tokio::test]
async fn anyone_may_calculate_a_result() {
    let api = Api::new().await;
    let body = json!({"game": "mines", "params": {"mines": 5}, "serverSeed": SEED, "clientSeed": "c", "nonce": 7});
    let played = post(&api, "/v1/verify/play", body.to_string()).await.expect(200);
    assert_eq!(played["result"].as_array().unwrap().len(), 5);
    assert_eq!((&played["cursor"], &played["commitment"]), (&json!(2), &record()["commitment"]));
    let with = |field: &str, value: Value| {
        let mut body = body.clone();
        body[field] = value;
        body.to_string()
    };
    // The highest nonce can be verified, although it is never handed out.
    post(&api, "/v1/verify/play", with("nonce", json!(9_007_199_254_740_991_u64))).await.expect(200);
    for (field, value, named) in [
        ("nonce", json!(9_007_199_254_740_992_u64), "nonce"),
        ("nonce", json!(-1), "nonce"),
        ("serverSeed", json!("x"), "serverSeed"),
        ("serverSeed", json!(SEED.to_uppercase()), "serverSeed"),
        ("clientSeed", json!(""), "clientSeed"),
        ("clientSeed", json!("x".repeat(65)), "clientSeed"),
        ("game", json!("x-outside"), "game"),
        ("params", json!({"mines": 25}), "params.mines"),
        ("params", json!({"mines": null}), "params.mines"),
        ("params", json!([]), "params"),
        ("more", json!(1), "more"),
    ] {
        post(&api, "/v1/verify/play", with(field, value)).await.invalid(named);
    }
}
