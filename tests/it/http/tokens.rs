//! Single-use tokens: keys, spends, batches, rollbacks. Their rules are the ledger's and tested there; here is what they look like.

use axum::body::Body;
use axum::http::Request;
use fairledger::db::tokens::Scope;
use fairledger::http::auth::ApiToken;
use fairledger::ledger::LedgerSettings;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Answer, Api, Setup};

fn nonce(number: u8) -> String {
    format!("{number:02x}").repeat(32)
}

fn spend_of(key: &str, number: u8) -> Value {
    json!({"keyId": key, "nonce": nonce(number), "spendId": Uuid::new_v4()})
}

/// With an admin's token and a live key `k`.
async fn api() -> Api {
    let ledger = LedgerSettings { keys_live_max: 3, ..LedgerSettings::default() };
    let api = Api::with(Setup { ledger, scopes: Some(vec![Scope::Admin]), ..Setup::default() }).await;
    api.put("/v1/keys/k", json!({})).await.expect(201);
    api
}

async fn keys(api: &Api, if_none_match: &str) -> Answer {
    let request = Request::get("/v1/keys").header("if-none-match", if_none_match);
    api.send(request.body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn a_key_is_registered_once_and_listed_for_everyone() {
    let api = api().await;
    let again = api.put("/v1/keys/k", json!({})).await.expect(200);
    assert_eq!((&again["keyId"], &again["state"], &again["replayed"]), (&json!("k"), &json!("open"), &json!(true)));
    let window = json!({"redeemFrom": "2100-01-01T00:00:00Z", "redeemUntil": "2100-01-02T00:00:00.5+00:00"});
    let later = api.put("/v1/keys/later", window).await.expect(201);
    assert_eq!(later["redeemUntil"], "2100-01-02T00:00:00.500000Z");
    api.put("/v1/keys/k", json!({"redeemUntil": "2100-01-01T00:00:00Z"}))
        .await
        .problem(409, "key_exists_with_different_window");
    api.put("/v1/keys/k3", json!({})).await.expect(201);
    api.put("/v1/keys/k4", json!({})).await.problem(409, "too_many_live_keys");
    let listed = keys(&api, "\"another\"").await;
    let etag = listed.headers["etag"].to_str().unwrap().to_owned();
    assert!(listed.headers["cache-control"].to_str().unwrap().starts_with("public"));
    assert_eq!(listed.expect(200)["keys"].as_array().unwrap().len(), 3);
    keys(&api, &etag).await.expect(304);
    api.post("/v1/keys/k3/close", json!({})).await.expect(200);
    assert_eq!(keys(&api, &etag).await.expect(200)["keys"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_closed_key_takes_nothing_more() {
    let api = api().await;
    assert_eq!(api.post("/v1/keys/k/close", json!({})).await.expect(200)["replayed"], false);
    assert_eq!(api.post("/v1/keys/k/close", json!({})).await.expect(200)["state"], "closed");
    api.post("/v1/keys/none/close", json!({})).await.problem(404, "unknown_key");
    api.put("/v1/keys/k", json!({})).await.problem(409, "key_id_retired");
    api.post("/v1/spends", spend_of("k", 1)).await.problem(410, "key_expired");
}

#[tokio::test]
async fn a_token_is_accepted_once_i1() {
    let api = api().await;
    let spend = spend_of("k", 1);
    let fresh = api.post("/v1/spends", spend.clone()).await.expect(201);
    assert_eq!(fresh, json!({"outcome": "fresh", "spendId": spend["spendId"], "replayed": false}));
    assert_eq!(api.post("/v1/spends", spend.clone()).await.expect(200)["replayed"], true);
    let refused = api.post("/v1/spends", spend_of("k", 1)).await.problem(409, "already_spent");
    assert!(!refused.to_string().contains(&nonce(1)), "{refused}");
    let made = api.post("/v1/spends", json!({"keyId": "k", "nonce": nonce(2)})).await.expect(201);
    assert_eq!(made["spendId"].as_str().unwrap().parse::<Uuid>().unwrap().get_version_num(), 4);
    api.post("/v1/spends", spend_of("none", 1)).await.problem(404, "unknown_key");
    api.put("/v1/keys/later", json!({"redeemFrom": "2100-01-01T00:00:00Z"})).await.expect(201);
    api.post("/v1/spends", spend_of("later", 1)).await.problem(409, "key_not_yet_valid");
    api.put("/v1/keys/past", json!({"redeemFrom": "2000-01-01T00:00:00Z"})).await.expect(201);
    api.post("/v1/spends", spend_of("past", 1)).await.problem(410, "key_expired");
}

#[tokio::test]
async fn a_spend_is_given_back_by_the_one_who_made_it() {
    let api = api().await;
    let (spend, other) = (spend_of("k", 1), spend_of("k", 1));
    api.post("/v1/spends/rollback", spend.clone()).await.problem(404, "not_spent");
    api.post("/v1/spends", spend.clone()).await.expect(201);
    api.post("/v1/spends/rollback", other.clone()).await.problem(409, "spent_by_another");
    assert_eq!(api.post("/v1/spends/rollback", spend.clone()).await.expect(200)["outcome"], "rolled_back");
    api.post("/v1/spends/rollback", spend).await.problem(404, "not_spent");
    api.post("/v1/spends", other).await.expect(201);
}

#[tokio::test]
async fn a_batch_answers_in_order_and_an_atomic_one_is_all_or_nothing() {
    let api = api().await;
    let spent = spend_of("k", 1);
    api.post("/v1/spends", spent).await.expect(201);
    let batch = json!([spend_of("k", 2), spend_of("k", 1), spend_of("none", 3)]);
    let refused =
        api.post("/v1/spends/batch", json!({"spends": batch, "atomic": true})).await.problem(409, "batch_refused");
    let outcomes = |answer: &Value| {
        let results = answer["results"].as_array().unwrap().iter();
        results.map(|result| result["outcome"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(outcomes(&refused), ["not_spent", "already_spent", "unknown_key"]);
    let answer = api.post("/v1/spends/batch", json!({"spends": batch})).await.expect(200);
    assert_eq!(outcomes(&answer), ["fresh", "already_spent", "unknown_key"]);
    assert_eq!(answer["results"][0]["spendId"], batch[0]["spendId"]);
    let again = api.post("/v1/spends/batch", json!({"spends": batch})).await.expect(200);
    assert_eq!((&again["results"][0]["replayed"], &again["results"][1]["replayed"]), (&json!(true), &json!(false)));
}

#[tokio::test]
async fn what_is_out_of_form_is_refused_by_name_and_not_repeated_i13() {
    let api = api().await;
    let secret = "ab".repeat(32);
    for (field, value) in [
        ("keyId", json!("")),
        ("keyId", json!("a:b")),
        ("keyId", json!("x".repeat(65))),
        ("nonce", json!(secret.to_uppercase())),
        ("nonce", json!(format!("{secret}a"))),
        ("nonce", json!("ab".repeat(15))),
        ("nonce", json!("ab".repeat(65))),
        ("nonce", json!(5)),
        ("spendId", json!(Uuid::now_v7())),
        ("spendId", json!(Uuid::new_v4().simple())),
        ("spendId", json!(secret)),
        ("surplus", json!(secret)),
    ] {
        for path in ["/v1/spends", "/v1/spends/rollback"] {
            let mut body = spend_of("k", 1);
            body[field] = value.clone();
            let refused = api.post(path, body).await.problem(400, "invalid_request");
            assert_eq!(refused["field"], field, "{refused}");
            assert!(!refused.to_string().contains(&secret), "{refused}");
        }
        let mut body = json!({"spends": [spend_of("k", 1), spend_of("k", 2)]});
        body["spends"][1][field] = value;
        api.post("/v1/spends/batch", body).await.invalid(&format!("spends[1].{field}"));
    }
    api.post("/v1/spends/batch", json!({"spends": []})).await.invalid("spends");
    let many: Vec<Value> = (0..1_001).map(|_| json!({"keyId": "k", "nonce": nonce(1)})).collect();
    api.post("/v1/spends/batch", json!({"spends": many})).await.invalid("spends");
    let padded = |bytes: usize| format!("{{\"spends\":[]{}}}", " ".repeat(bytes - 13));
    api.text("POST", "/v1/spends/batch", &padded(256 * 1_024)).await.invalid("spends");
    api.text("POST", "/v1/spends/batch", &padded(256 * 1_024 + 1)).await.problem(413, "too_large");
    api.text("POST", "/v1/spends", &padded(64 * 1_024 + 1)).await.problem(413, "too_large");
    for value in [json!("2030-01-01"), json!("now"), json!(0), json!("2030-13-01T00:00:00Z")] {
        api.put("/v1/keys/new", json!({"redeemUntil": value})).await.invalid("redeemUntil");
    }
    api.put("/v1/keys/new", json!({"redeemFrom": "2030-01-02T00:00:00Z", "redeemUntil": "2030-01-01T00:00:00Z"}))
        .await
        .problem(400, "invalid_request");
    api.put("/v1/keys/a:b", json!({})).await.invalid("keyId");
    assert_eq!(api.count("spends").await, 0);
}

#[tokio::test]
async fn keys_are_an_admins_and_spends_a_relays() {
    let api = Api::with(Setup { scopes: Some(vec![Scope::Relay]), ..Setup::default() }).await;
    assert_eq!(api.put("/v1/keys/k", json!({})).await.problem(403, "forbidden")["scope"], "admin");
    api.post("/v1/keys/k/close", json!({})).await.problem(403, "forbidden");
    api.post("/v1/sessions", json!({})).await.problem(403, "forbidden");
    api.post("/v1/spends", spend_of("k", 1)).await.problem(404, "unknown_key");
    let stranger =
        Request::post("/v1/spends").header("authorization", format!("Bearer {}", ApiToken::generate().expose()));
    api.send(stranger.body(Body::empty()).unwrap()).await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn the_list_of_keys_is_the_same_for_everyone_and_need_not_be_sent_twice() {
    let api = api().await;
    let window = json!({"redeemFrom": "2100-01-01T00:00:00Z", "redeemUntil": "2100-01-02T00:00:00Z"});
    api.put("/v1/keys/coming", window).await.expect(201);
    api.put("/v1/keys/closed", json!({})).await.expect(201);
    api.post("/v1/keys/closed/close", json!({})).await.expect(200);
    api.put("/v1/keys/past", json!({"redeemFrom": "2000-01-01T00:00:00Z"})).await.expect(201);
    let list = keys(&api, "\"another\"").await;
    let listed = list.body["keys"].as_array().unwrap();
    assert_eq!(listed.iter().map(|key| &key["keyId"]).collect::<Vec<_>>(), ["k", "coming"]);
    assert_eq!(listed[0].as_object().unwrap().keys().collect::<Vec<_>>(), ["keyId", "redeemFrom", "redeemUntil"]);

    let with_token = api.get("/v1/keys").await;
    assert_eq!((&with_token.headers["etag"], &with_token.body), (&list.headers["etag"], &list.body));
    let unchanged = keys(&api, list.headers["etag"].to_str().unwrap()).await;
    assert_eq!(unchanged.headers["etag"], list.headers["etag"]);
    assert_eq!(unchanged.headers["cache-control"], "public, max-age=60, must-revalidate");
    unchanged.expect(304);
}

#[tokio::test]
async fn a_batch_of_a_thousand_is_longer_than_another_body_may_be_i12() {
    let api = api().await;
    let spends: Vec<Value> = (0..1_000)
        .map(|number| json!({"keyId": "k", "nonce": format!("{number:032x}"), "spendId": Uuid::new_v4()}))
        .collect();
    let body = json!({"spends": spends, "atomic": true});
    assert!(body.to_string().len() > api.app.settings().body_bytes_max);
    for replayed in [false, true] {
        let answer = api.post("/v1/spends/batch", body.clone()).await.expect(200);
        let results = answer["results"].as_array().unwrap();
        assert!(results.iter().zip(&spends).all(|(result, spend)| {
            result["outcome"] == "fresh" && result["replayed"] == replayed && result["spendId"] == spend["spendId"]
        }));
    }
    assert_eq!(api.count("spends").await, 1_000);
}
