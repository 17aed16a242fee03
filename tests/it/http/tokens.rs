//! Tokens over HTTP: statuses, codes and bodies to the letter.

use axum::body::Body;
use axum::http::Request;
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, ETAG, IF_NONE_MATCH};
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use fairledger::db::tokens::Scope;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Answer, Api, new_token};

/// An API whose token may do everything.
async fn api() -> Api {
    let mut api = Api::new().await;
    api.token = new_token(&api.app, &[Scope::Admin]).await;
    api
}

fn nonce(number: u64) -> String {
    format!("{number:032x}")
}

fn spend(key_id: &str, number: u64) -> Value {
    json!({"keyId": key_id, "nonce": nonce(number), "spendId": Uuid::new_v4()})
}

fn text(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Micros, true)
}

impl Api {
    async fn key(&self, key_id: &str) -> Value {
        self.put(&format!("/v1/keys/{key_id}"), json!({})).await.expect(201)
    }

    async fn key_with(&self, key_id: &str, from: i64, until: i64) -> Answer {
        let time = |hours| text(Utc::now() + TimeDelta::hours(hours));
        let body = json!({"redeemFrom": time(from), "redeemUntil": time(until)});
        self.put(&format!("/v1/keys/{key_id}"), body).await
    }

    async fn spend(&self, body: &Value) -> Answer {
        self.post("/v1/spends", body.clone()).await
    }

    async fn keys(&self, if_none_match: Option<&str>) -> Answer {
        let mut request = Request::get("/v1/keys");
        if let Some(tag) = if_none_match {
            request = request.header(IF_NONE_MATCH, tag);
        }
        self.send(request.body(Body::empty()).unwrap()).await
    }
}

#[tokio::test]
async fn a_spend_is_answered_201_and_again_200() {
    let api = api().await;
    api.key("k").await;
    let first = spend("k", 1);
    let answer = api.spend(&first).await.expect(201);
    assert_eq!(answer, json!({"outcome": "fresh", "spendId": first["spendId"], "replayed": false}));
    for _ in 0..2 {
        let answer = api.spend(&first).await.expect(200);
        assert_eq!(answer, json!({"outcome": "fresh", "spendId": first["spendId"], "replayed": true}));
    }
    api.spend(&spend("k", 1)).await.problem(409, "already_spent");
    api.spend(&spend("none", 1)).await.problem(404, "unknown_key");
    api.key_with("coming", 1, 2).await.expect(201);
    api.spend(&spend("coming", 1)).await.problem(409, "key_not_yet_valid");
    api.key_with("ended", -2, -1).await.expect(201);
    api.spend(&spend("ended", 1)).await.problem(410, "key_expired");
    api.post("/v1/keys/k/close", json!({})).await.expect(200);
    api.spend(&spend("k", 2)).await.problem(410, "key_expired");
}

#[tokio::test]
async fn a_spend_id_that_is_left_out_is_made_and_can_be_used() {
    let api = api().await;
    api.key("k").await;
    let token = json!({"keyId": "k", "nonce": nonce(1)});
    let answer = api.spend(&token).await.expect(201);
    api.spend(&token).await.problem(409, "already_spent");
    let mut with_id = token.clone();
    with_id["spendId"] = answer["spendId"].clone();
    assert_eq!(api.spend(&with_id).await.expect(200)["replayed"], true);
    assert_eq!(Uuid::parse_str(answer["spendId"].as_str().unwrap()).unwrap().get_version_num(), 4);
}

#[tokio::test]
async fn a_rollback_gives_back_what_is_the_callers_own() {
    let api = api().await;
    api.key("k").await;
    let first = spend("k", 1);
    let roll_back = async |body: &Value| api.post("/v1/spends/rollback", body.clone()).await;
    roll_back(&first).await.problem(404, "not_spent");
    api.spend(&first).await.expect(201);
    roll_back(&spend("k", 1)).await.problem(409, "spent_by_another");
    assert_eq!(roll_back(&first).await.expect(200), json!({"outcome": "rolled_back", "replayed": false}));
    roll_back(&first).await.problem(404, "not_spent");
    api.spend(&spend("k", 1)).await.expect(201);
    roll_back(&json!({"keyId": "k", "nonce": nonce(1)})).await.invalid("spendId");
}

#[tokio::test]
async fn a_batch_tells_of_each_in_order() {
    let api = api().await;
    api.key("k").await;
    let batch = [spend("k", 1), spend("none", 1), spend("k", 2), spend("k", 1)];
    let body = json!({"spends": batch});
    let results = api.post("/v1/spends/batch", body.clone()).await.expect(200)["results"].take();
    let result = |place: usize, outcome: &str, replayed: bool| json!({"outcome": outcome, "spendId": batch[place]["spendId"], "replayed": replayed});
    let expected = [
        result(0, "fresh", false),
        result(1, "unknown_key", false),
        result(2, "fresh", false),
        result(3, "already_spent", false),
    ];
    assert_eq!(results, json!(expected));
    let again = api.post("/v1/spends/batch", body).await.expect(200)["results"].take();
    assert_eq!(again[0], result(0, "fresh", true));
    assert_eq!(again[3], result(3, "already_spent", false));
}

#[tokio::test]
async fn an_atomic_batch_is_refused_with_what_each_came_to() {
    let api = api().await;
    api.key("k").await;
    api.spend(&spend("k", 1)).await.expect(201);
    let batch = [spend("k", 2), spend("k", 1)];
    let body =
        api.post("/v1/spends/batch", json!({"spends": batch, "atomic": true})).await.problem(409, "batch_refused");
    let expected = json!([
        {"outcome": "not_spent", "spendId": batch[0]["spendId"], "replayed": false},
        {"outcome": "already_spent", "spendId": batch[1]["spendId"], "replayed": false},
    ]);
    assert_eq!(body["results"], expected);
    let body = json!({"spends": [batch[0]], "atomic": true});
    assert_eq!(api.post("/v1/spends/batch", body.clone()).await.expect(200)["results"][0]["replayed"], false);
    assert_eq!(api.post("/v1/spends/batch", body).await.expect(200)["results"][0]["replayed"], true);
    let twice = spend("k", 3);
    api.post("/v1/spends/batch", json!({"spends": [twice, twice], "atomic": true})).await.problem(409, "batch_refused");
    assert_eq!(api.count("spends").await, 2);
}

#[tokio::test]
async fn i12_a_batch_is_bounded_in_number_and_in_bytes() {
    let api = api().await;
    api.key("k").await;
    let batch = |count: u64| json!({"spends": (0..count).map(|number| spend("k", number)).collect::<Vec<_>>()});
    assert!(batch(1_000).to_string().len() > api.app.settings().body_bytes_max, "more than another body may have");
    api.post("/v1/spends/batch", batch(1_001)).await.invalid("spends");
    api.post("/v1/spends/batch", batch(0)).await.invalid("spends");
    api.post("/v1/spends/batch", batch(1_000)).await.expect(200);
    assert_eq!(api.count("spends").await, 1_000);
    let padded = format!("{}{}", batch(1), " ".repeat(256 * 1024));
    api.text("POST", "/v1/spends/batch", &padded).await.problem(413, "too_large");
    let padded = format!("{}{}", spend("k", 1), " ".repeat(64 * 1024));
    api.text("POST", "/v1/spends", &padded).await.problem(413, "too_large");
}

#[tokio::test]
async fn i13_what_is_out_of_form_is_refused_and_not_repeated() {
    let api = api().await;
    api.key("k").await;
    let good = spend("k", 1);
    for (field, bad) in [
        ("keyId", json!("a b")),
        ("keyId", json!("")),
        ("keyId", json!(5)),
        ("nonce", json!("0F".repeat(16))),
        ("nonce", json!("0f".repeat(15))),
        ("nonce", json!("0f".repeat(65))),
        ("nonce", json!("0x".repeat(16))),
        ("nonce", json!("0f".repeat(16) + "0")),
        ("spendId", json!("0198c1d2-7c3a-7e4b-8a5f-1234567890ab")),
        ("spendId", json!(Uuid::new_v4().simple().to_string())),
        ("spendId", json!("")),
        ("more", json!(1)),
    ] {
        let mut body = good.clone();
        body[field] = bad.clone();
        let answer = api.spend(&body).await;
        if let Some(bad) = bad.as_str().filter(|bad| bad.len() > 5) {
            assert!(!answer.body.to_string().contains(bad), "{:#}", answer.body);
        }
        answer.invalid(field);
        let mut batch = json!({"spends": [good, good]});
        batch["spends"][1][field] = bad;
        api.post("/v1/spends/batch", batch).await.invalid(&format!("spends[1].{field}"));
    }
    for (field, bad) in [("redeemFrom", "tomorrow"), ("redeemUntil", "2030-01-01T00:00:60Z"), ("redeemUntil", "")] {
        api.put("/v1/keys/l", json!({field: bad})).await.invalid(field);
    }
    api.put("/v1/keys/a%20b", json!({})).await.invalid("keyId");
    assert_eq!(api.count("spends").await, 0);
}

#[tokio::test]
async fn a_key_is_registered_once() {
    let api = api().await;
    let key = api.key("k").await;
    assert_eq!((&key["keyId"], &key["state"], &key["replayed"]), (&json!("k"), &json!("open"), &json!(false)));
    let time = |field: &str| key[field].as_str().unwrap().parse::<DateTime<Utc>>().unwrap();
    assert_eq!(time("redeemUntil") - time("redeemFrom"), TimeDelta::hours(30));
    for body in [json!({}), json!({"redeemFrom": key["redeemFrom"]}), json!({"redeemUntil": key["redeemUntil"]})] {
        let again = api.put("/v1/keys/k", body).await.expect(200);
        assert_eq!((&again["redeemFrom"], &again["replayed"]), (&key["redeemFrom"], &json!(true)));
    }
    // The same instant in another zone.
    let zoned = time("redeemFrom").with_timezone(&chrono::FixedOffset::east_opt(3600).unwrap()).to_rfc3339();
    api.put("/v1/keys/k", json!({"redeemFrom": zoned})).await.expect(200);
    let moved = text(time("redeemUntil") + TimeDelta::microseconds(1));
    api.put("/v1/keys/k", json!({"redeemUntil": moved})).await.problem(409, "key_exists_with_different_window");
    api.put("/v1/keys/l", json!({"redeemUntil": text(Utc::now() - TimeDelta::hours(1))})).await.invalid("redeemUntil");

    let closed = api.post("/v1/keys/k/close", json!({})).await.expect(200);
    assert_eq!((&closed["state"], &closed["replayed"]), (&json!("closed"), &json!(false)));
    assert_eq!(api.post("/v1/keys/k/close", json!({})).await.expect(200)["replayed"], true);
    api.put("/v1/keys/k", json!({})).await.problem(409, "key_id_retired");
    api.post("/v1/keys/none/close", json!({})).await.problem(404, "unknown_key");
    for number in 0..4 {
        api.key(&format!("n{number}")).await;
    }
    api.put("/v1/keys/n4", json!({})).await.problem(409, "too_many_live_keys");
}

#[tokio::test]
async fn the_list_of_keys_is_the_same_for_everyone_and_need_not_be_sent_twice() {
    let api = api().await;
    let empty = api.keys(None).await;
    assert_eq!(empty.body, json!({"keys": []}));
    api.key_with("coming", 24, 54).await.expect(201);
    api.key("now").await;
    api.key("closed").await;
    api.post("/v1/keys/closed/close", json!({})).await.expect(200);
    api.key_with("ended", -2, -1).await.expect(201);
    let list = api.keys(None).await;
    let etag = list.headers[ETAG].to_str().unwrap().to_owned();
    assert_ne!(empty.headers[ETAG], etag);
    assert_eq!(list.headers[CACHE_CONTROL], "public, max-age=60, must-revalidate");
    let keys = list.expect(200)["keys"].take();
    let names: Vec<_> = keys.as_array().unwrap().iter().map(|key| key["keyId"].as_str().unwrap()).collect();
    assert_eq!(names, ["now", "coming"]);
    let members: Vec<_> = keys[0].as_object().unwrap().keys().collect();
    assert_eq!(members, ["keyId", "redeemFrom", "redeemUntil"]);

    // With a token, without one, with the list in hand.
    let token = format!("Bearer {}", api.token.expose());
    let request = Request::get("/v1/keys").header(AUTHORIZATION, token).body(Body::empty()).unwrap();
    assert_eq!(api.send(request).await.headers[ETAG], etag);
    let unchanged = api.keys(Some(&etag)).await;
    assert_eq!((unchanged.status, &unchanged.headers[ETAG]), (304, &etag.parse().unwrap()));
    assert_eq!(unchanged.headers[CACHE_CONTROL], "public, max-age=60, must-revalidate");
    api.post("/v1/keys/now/close", json!({})).await.expect(200);
    let changed = api.keys(Some(&etag)).await;
    assert_ne!(changed.headers[ETAG], etag);
    assert_eq!(changed.expect(200)["keys"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn keys_are_for_admins_and_spends_for_relays() {
    let mut api = api().await;
    api.key("k").await;
    for (scope, keys, spends) in [(Scope::Relay, 403, 201), (Scope::Engine, 403, 403), (Scope::Dispute, 403, 403)] {
        api.token = new_token(&api.app, &[scope]).await;
        assert_eq!(api.put("/v1/keys/k", json!({})).await.status, keys, "{scope:?}");
        assert_eq!(api.post("/v1/keys/k/close", json!({})).await.status, keys, "{scope:?}");
        assert_eq!(api.spend(&spend("k", 1)).await.status, spends, "{scope:?}");
        let batch = api.post("/v1/spends/batch", json!({"spends": [spend("k", 2)]})).await;
        assert_eq!(batch.status == 200, spends == 201, "{scope:?}");
        let rolled_back = api.post("/v1/spends/rollback", spend("k", 3)).await;
        assert_eq!(rolled_back.status == 404, spends == 201, "{scope:?}");
    }
}
