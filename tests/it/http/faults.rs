//! Faults: what callers are told, and what is true afterwards.

use std::time::Duration;

use fairledger::db::PoolSettings;
use fairledger::http::HttpSettings;
use fairledger::seeds::SeedsSettings;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::{Api, Session, Setup};
use crate::harness::{Proxy, TestDb};

const SOMEONE_WAITS: &str = "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
                             WHERE NOT l.granted AND a.datname = current_database())";

/// Holds every session's row, so that whatever changes a session waits.
async fn hold_sessions(connection: &mut PgConnection) -> sqlx::Transaction<'_, sqlx::Postgres> {
    let mut tx = connection.begin().await.unwrap();
    sqlx::query("SELECT FROM fairledger.sessions FOR UPDATE").execute(&mut *tx).await.unwrap();
    tx
}

/// A session with a bet, ready to be rotated.
async fn with_bet(api: &Api) -> Session<'_> {
    let session = api.session().await;
    session.bet("b").await.expect(201);
    session
}

#[tokio::test]
async fn past_the_bound_on_requests_under_way_the_answer_is_overloaded_at_once_i12() {
    let http = HttpSettings { requests_max: 1, ..HttpSettings::default() };
    let api = Api::with(Setup { http, ..Setup::default() }).await;
    let session = with_bet(&api).await;
    let mut owner = api.db.owner().await;
    let held = hold_sessions(&mut owner).await;
    let rotated = async {
        let ended = session.rotate().await;
        ended.expect(200)
    };
    let others = async {
        api.db.wait_until(SOMEONE_WAITS).await;
        let refused = session.bet("c").await;
        assert_eq!(refused.headers["retry-after"], "1");
        refused.problem(503, "overloaded");
        // Before anything of the request is looked at, but after its token.
        api.text("POST", &session.at("/bets"), "{").await.problem(503, "overloaded");
        let stranger = axum::http::Request::post(session.at("/bets")).body(axum::body::Body::empty()).unwrap();
        api.send(stranger).await.problem(401, "unauthenticated");
        api.get("/readyz").await.expect(200);
        api.get("/v1/signing-keys").await.expect(200);
        held.rollback().await.unwrap();
    };
    tokio::join!(rotated, others);
    api.get(&session.path).await.expect(200);
}

#[tokio::test]
async fn strangers_take_no_place_of_a_caller_whose_token_is_known_i12() {
    let http =
        HttpSettings { public_requests_max: 1, token_ttl: Duration::from_secs(3_600), ..HttpSettings::default() };
    let api = Api::with(Setup { http, ..Setup::default() }).await;
    let listed = "/v1/sessions?playerRef=p";
    api.get(listed).await.expect(200);
    let mut owner = api.db.owner().await;
    let mut held = owner.begin().await.unwrap();
    sqlx::query("LOCK TABLE fairledger.commitments").execute(&mut *held).await.unwrap();
    let path = format!("/v1/commitments/{}", "00".repeat(32));
    let stranger = api.get(&path);
    let others = async {
        api.db.wait_until(SOMEONE_WAITS).await;
        api.get("/v1/signing-keys").await.problem(503, "overloaded");
        let token = fairledger::http::auth::ApiToken::generate();
        let made_up = axum::http::Request::get(listed).header("authorization", format!("Bearer {}", token.expose()));
        api.send(made_up.body(axum::body::Body::empty()).unwrap()).await.problem(503, "overloaded");
        api.get(listed).await.expect(200);
        held.rollback().await.unwrap();
    };
    let (answer, ()) = tokio::join!(stranger, others);
    answer.problem(404, "commitment_not_found");
}

#[tokio::test]
async fn no_free_connection_is_overloaded_and_nothing_is_done() {
    let pool =
        PoolSettings { connections_max: 1, acquire_timeout: Duration::from_millis(500), ..PoolSettings::default() };
    // A group has connections of its own.
    let seeds = SeedsSettings { group: None, ..SeedsSettings::default() };
    let api = Api::with(Setup { pool, seeds, ..Setup::default() }).await;
    let session = with_bet(&api).await;
    let held = api.app.datastore().begin("test.hold").await.unwrap();
    session.bet("c").await.problem(503, "overloaded");
    held.rollback().await;
    assert_eq!(session.bet("c").await.expect(201)["record"]["nonce"], 1);
}

#[tokio::test]
async fn a_change_whose_caller_went_away_runs_to_its_end() {
    let api = Api::new().await;
    let session = with_bet(&api).await;
    let mut owner = api.db.owner().await;
    let held = hold_sessions(&mut owner).await;
    {
        let mut rotating = std::pin::pin!(session.rotate());
        tokio::select! {
            _ = &mut rotating => panic!("the session is held"),
            () = api.db.wait_until(SOMEONE_WAITS) => {}
        }
        // Dropped here, as the server drops a request whose connection is gone.
    }
    held.rollback().await.unwrap();
    api.app.changes_ended().await;
    let view = api.get(&session.path).await.expect(200);
    assert_ne!(view["commitment"], json!(session.commitment));
    assert_eq!(session.rotate().await.expect(200)["replayed"], true);
}

#[tokio::test]
async fn a_change_that_takes_too_long_is_unknown_and_the_same_request_resolves_it_i9() {
    let http = HttpSettings { request_timeout: Duration::from_secs(1), ..HttpSettings::default() };
    let api = Api::with(Setup { http, ..Setup::default() }).await;
    let session = with_bet(&api).await;
    let mut owner = api.db.owner().await;
    let held = hold_sessions(&mut owner).await;
    session.rotate().await.problem(503, "outcome_unknown");
    held.rollback().await.unwrap();
    api.app.changes_ended().await;
    let ended = session.rotate().await.expect(200);
    assert_eq!((&ended["replayed"], &ended["revealed"]["bets"]), (&json!(true), &json!(1)));
}

#[tokio::test]
async fn a_change_that_waits_too_long_for_a_lock_is_unavailable_and_nothing_is_done() {
    let pool = PoolSettings { lock_timeout: Duration::from_millis(50), ..PoolSettings::default() };
    let api = Api::with(Setup { pool, ..Setup::default() }).await;
    let session = with_bet(&api).await;
    let mut owner = api.db.owner().await;
    let held = hold_sessions(&mut owner).await;
    let refused = session.rotate().await;
    assert_eq!(refused.headers["retry-after"], "1");
    let body = refused.problem(503, "unavailable");
    assert!(!body.to_string().contains("lock"), "what the database said stays in the log: {body}");
    held.rollback().await.unwrap();
    assert_eq!(session.rotate().await.expect(200)["replayed"], false);
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_unknown_and_the_same_bet_resolves_it_i9() {
    let db = TestDb::new().await;
    let proxy = Proxy::start(&db.service_url).await;
    let url = Some(proxy.url(&db.service_url));
    let api = Api::on(db, Setup { url, ..Setup::default() }).await;
    let session = with_bet(&api).await;
    proxy.cut_after_client_sends(b"COMMIT");
    session.bet("c").await.problem(503, "outcome_unknown");
    let again = session.bet("c").await.expect(200);
    assert_eq!((&again["replayed"], &again["record"]["nonce"]), (&json!(true), &json!(1)));
    assert_eq!(session.bet("d").await.expect(201)["record"]["nonce"], 2);
}

#[tokio::test]
async fn a_database_that_is_away_is_unavailable_until_it_is_back() {
    let db = TestDb::new().await;
    let proxy = Proxy::start(&db.service_url).await;
    let url = Some(proxy.url(&db.service_url));
    let pool = PoolSettings { acquire_timeout: Duration::from_secs(1), ..PoolSettings::default() };
    let api = Api::on(db, Setup { url, pool, ..Setup::default() }).await;
    let session = with_bet(&api).await;
    api.get("/readyz").await.expect(200);
    proxy.close();
    let refused = session.bet("c").await;
    assert_eq!(refused.status, 503, "{:#}", refused.body);
    assert!(refused.headers.contains_key("retry-after"));
    // The last answer counts for a second.
    let body = loop {
        let answer = api.get("/readyz").await;
        if answer.status != 200 {
            break answer.problem(503, "unavailable");
        }
        tokio::task::yield_now().await;
    };
    assert!(body["detail"].as_str().unwrap().starts_with("the database does not answer"), "{body}");
    api.get("/healthz").await.expect(200);
    proxy.open();
    session.bet("c").await.expect(201);
    while api.get("/readyz").await.status != 200 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn not_ready_says_why() {
    let api = Api::new().await;
    api.app.readiness().not_ready("recovery has to be run");
    assert_eq!(api.get("/readyz").await.problem(503, "unavailable")["detail"], "recovery has to be run");
    api.app.readiness().ready();
    api.get("/readyz").await.expect(200);
    let api = Api::new().await;
    api.as_owner("UPDATE fairledger.schema_history SET name = 'another'").await;
    let body = api.get("/readyz").await.problem(503, "unavailable");
    assert!(body["detail"].as_str().unwrap().contains("applied in another form"), "{body}");
}

#[tokio::test]
async fn a_row_that_contradicts_itself_is_corrupt_data_and_told_to_the_log_only_i7() {
    let api = Api::new().await;
    let session = with_bet(&api).await;
    session.rotate().await.expect(200);
    // The constraint that guards it is the owner's to drop.
    let mut owner = api.db.owner().await;
    for statement in [
        "ALTER TABLE fairledger.reveals DISABLE TRIGGER USER",
        "DO $$ DECLARE c record; BEGIN FOR c IN SELECT conname FROM pg_constraint
             WHERE conrelid = 'fairledger.reveals'::regclass AND contype = 'c'
         LOOP EXECUTE format('ALTER TABLE fairledger.reveals DROP CONSTRAINT %I', c.conname); END LOOP; END $$",
        "UPDATE fairledger.reveals SET server_seed = decode(repeat('ab', 32), 'hex')",
    ] {
        sqlx::query(AssertSqlSafe(statement)).execute(&mut owner).await.unwrap();
    }
    for path in [session.at("/seeds"), session.at("/records"), format!("/v1/commitments/{}", session.commitment)] {
        let body = api.get(&path).await.problem(500, "corrupt_data");
        assert!(!body.to_string().contains(&session.commitment), "{path}: {body}");
        assert!(!body.to_string().contains("abab"), "{path}: {body}");
    }
}
