//! Who may call: tokens, scopes, and their precedence.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use fairledger::db::tokens::Scope;
use fairledger::http::HttpSettings;
use fairledger::http::auth::{ApiToken, new_token_id};
use serde_json::json;

use super::{Answer, Api, Setup, new_token};

/// Nothing is remembered, so that what the database says takes effect at once.
fn forgetful() -> Setup {
    Setup { http: HttpSettings { token_ttl: Duration::ZERO, ..HttpSettings::default() }, ..Setup::default() }
}

const PATH: &str = "/v1/sessions?playerRef=p";

async fn with_headers(api: &Api, headers: &[&str]) -> Answer {
    let mut request = Request::get(PATH);
    for header in headers {
        request = request.header(AUTHORIZATION, *header);
    }
    api.send(request.body(Body::empty()).unwrap()).await
}

async fn with_token(api: &Api, token: &ApiToken) -> Answer {
    with_headers(api, &[&format!("Bearer {}", token.expose())]).await
}

#[tokio::test]
async fn a_request_without_a_valid_token_is_unauthenticated() {
    let api = Api::new().await;
    let unknown = format!("Bearer {}", ApiToken::generate().expose());
    let good = format!("Bearer {}", api.token.expose());
    let basic = good.replace("Bearer", "Basic");
    let short = &good[..good.len() - 1];
    for headers in [
        vec![],
        vec![""],
        vec!["Bearer"],
        vec!["Bearer "],
        vec!["Bearer x"],
        vec![api.token.expose()],
        vec![basic.as_str()],
        vec![short],
        vec![unknown.as_str()],
        vec![good.as_str(), good.as_str()],
    ] {
        let answer = with_headers(&api, &headers).await;
        assert_eq!(answer.headers[WWW_AUTHENTICATE], "Bearer realm=\"fairledger\"", "{headers:?}");
        let body = answer.problem(401, "unauthenticated");
        assert!(!body.to_string().contains(api.token.expose()));
    }
    with_headers(&api, &[&good.replace("Bearer", "bEARER")]).await.expect(200);
}

#[tokio::test]
async fn a_token_without_the_scope_is_forbidden_and_told_which() {
    let api = Api::new().await;
    for (scopes, allowed) in [
        (vec![Scope::Relay], false),
        (vec![Scope::Dispute, Scope::Relay], false),
        (vec![Scope::Dispute, Scope::Engine], true),
        (vec![Scope::Admin], true),
    ] {
        let token = new_token(&api.app, &scopes).await;
        // The second time it is remembered.
        for _ in 0..2 {
            let answer = with_token(&api, &token).await;
            if allowed {
                answer.expect(200);
            } else {
                assert!(answer.headers[WWW_AUTHENTICATE].to_str().unwrap().contains("insufficient_scope"));
                assert_eq!(answer.problem(403, "forbidden")["scope"], "engine");
            }
        }
    }
}

#[tokio::test]
async fn an_expired_token_and_a_revoked_one_are_refused() {
    let api = Api::with(forgetful()).await;
    let token_id = new_token_id();
    let token = ApiToken::generate();
    let mut tx = api.app.datastore().begin("token.create").await.unwrap();
    tx.insert_token(&token_id, &token.hash(), &[Scope::Engine], None, None).await.unwrap();
    tx.commit().await.unwrap();
    with_token(&api, &token).await.expect(200);
    api.as_owner("UPDATE fairledger.api_tokens SET expires_at = clock_timestamp() - interval '1 microsecond'").await;
    with_token(&api, &token).await.problem(401, "unauthenticated");
    api.as_owner("UPDATE fairledger.api_tokens SET expires_at = clock_timestamp() + interval '1 hour'").await;
    with_token(&api, &token).await.expect(200);
    let mut tx = api.app.datastore().begin("token.revoke").await.unwrap();
    assert!(tx.revoke_token(&token_id).await.unwrap());
    tx.commit().await.unwrap();
    with_token(&api, &token).await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn a_token_is_remembered_for_its_time_and_an_unknown_one_is_not() {
    let http = HttpSettings { token_ttl: Duration::from_secs(3_600), ..HttpSettings::default() };
    let api = Api::with(Setup { http, ..Setup::default() }).await;
    let token = ApiToken::generate();
    with_token(&api, &token).await.problem(401, "unauthenticated");
    let mut tx = api.app.datastore().begin("token.create").await.unwrap();
    tx.insert_token(&new_token_id(), &token.hash(), &[Scope::Engine], None, None).await.unwrap();
    tx.commit().await.unwrap();
    with_token(&api, &token).await.expect(200);
    api.as_owner("UPDATE fairledger.api_tokens SET revoked_at = clock_timestamp()").await;
    with_token(&api, &token).await.expect(200);
}

#[tokio::test]
async fn tokens_stand_in_the_database_as_hashes_only_i6() {
    let api = Api::new().await;
    let mut owner = api.db.owner().await;
    let rows: Vec<String> =
        sqlx::query_scalar("SELECT t::text FROM fairledger.api_tokens t").fetch_all(&mut owner).await.unwrap();
    assert_eq!(rows.len(), 1);
    assert!(!rows[0].contains(api.token.expose()) && rows[0].contains(&hex::encode(api.token.hash())));
}

#[tokio::test]
async fn paths_and_methods_that_do_not_exist_need_no_token() {
    let api = Api::new().await;
    for path in ["/", "/v1", "/v1/sessions/", "/v2/sessions", "/v1/sessions/x/y", "/V1/sessions", "/healthz/"] {
        api.send(Request::get(path).body(Body::empty()).unwrap()).await.problem(404, "not_found");
    }
    for (method, path, allowed) in
        [("DELETE", "/v1/sessions", "POST"), ("POST", "/healthz", "GET"), ("PATCH", "/v1/verify", "POST")]
    {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let answer = api.send(request).await;
        assert!(answer.headers["allow"].to_str().unwrap().contains(allowed), "{method} {path}");
        answer.problem(405, "method_not_allowed");
    }
}

#[tokio::test]
async fn a_request_keeps_its_callers_id() {
    let api = Api::new().await;
    let with_id = async |id: &str, path: &str| {
        let request = api.request("GET", path).header("x-request-id", id);
        api.send(request.body(Body::empty()).unwrap()).await
    };
    assert_eq!(with_id("caller-1.a_B", PATH).await.headers["x-request-id"], "caller-1.a_B");
    let body = with_id("caller-2", "/v1/sessions").await.problem(400, "invalid_request");
    assert_eq!((&body["requestId"], &body["field"]), (&json!("caller-2"), &json!("playerRef")));
    let made = with_id("not well formed", PATH).await.headers["x-request-id"].to_str().unwrap().to_owned();
    assert!(uuid::Uuid::parse_str(&made).is_ok(), "{made}");
}
