//! Coverage and bundles over HTTP: for those with the scope `dispute`.

use fairledger::db::tokens::Scope;
use fairledger::history::bundle::{BundleStatus, verify};
use serde_json::json;

use super::{Api, Setup};

async fn api() -> Api {
    Api::with(Setup { scopes: Some(vec![Scope::Engine, Scope::Dispute]), ..Setup::default() }).await
}

#[tokio::test]
async fn coverage_counts_every_nonce_of_a_session() {
    let api = api().await;
    let session = api.session().await;
    session.bet("b:0").await.expect(201);
    let path = session.mines("b:1", 3).await;
    api.post(&format!("{path}/close"), json!({ "outcome": "void", "reason": "a tile fell" })).await.expect(201);
    session.rotate().await.expect(200);
    let covered = api.get(&session.at("/coverage")).await.expect(200);
    let seeds = covered["seeds"].as_array().unwrap();
    assert_eq!(
        (seeds.len(), &seeds[0]["commitment"], &seeds[0]["retiredBy"]),
        (2, &json!(session.commitment), &json!("rotation"))
    );
    for (field, count) in [("handedOut", 2), ("recorded", 1), ("void", 1), ("pending", 0), ("missingTotal", 0)] {
        assert_eq!(seeds[0][field], count, "{field}");
    }
    assert!(covered["asOf"].is_string() && covered.get("nextAfter").is_none());
    let first = api.get(&session.at("/coverage?limit=1")).await.expect(200);
    assert_eq!((&first["seeds"][0], first["nextAfter"].as_i64()), (&seeds[0], Some(0)));
    let second = api.get(&session.at("/coverage?limit=1&after=0")).await.expect(200);
    assert_eq!((&second["seeds"][0], second.get("nextAfter")), (&seeds[1], None));
    let listed = api.get(&session.at("/seeds")).await.expect(200);
    assert_eq!((&listed["seeds"][0]["bets"], &listed["seeds"][0]["voids"]), (&json!(2), &json!(1)));
}

#[tokio::test]
async fn what_is_wrong_with_a_request_for_coverage_is_named() {
    let api = api().await;
    let session = api.session().await;
    for after in ["x", "", "01", "%2B1", "2147483648", &session.commitment] {
        api.get(&session.at(&format!("/coverage?after={after}"))).await.invalid("after");
    }
    let beyond = api.get(&session.at("/coverage?after=2147483647")).await.expect(200);
    assert_eq!((&beyond["seeds"], beyond.get("nextAfter")), (&json!([]), None));
    api.get(&session.at("/coverage?after=-1")).await.expect(200);
    api.get(&session.at("/coverage?limit=501")).await.invalid("limit");
    api.get("/v1/sessions/0189f7a8-0000-7000-8000-000000000000/coverage").await.problem(404, "session_not_found");
}

#[tokio::test]
async fn a_bundle_is_canonical_and_checks_offline() {
    let api = api().await;
    let session = api.session().await;
    session.bet("b:0").await.expect(201);
    let path = format!("/v1/records/{}/0/bundle", session.commitment);
    let live = api.get(&path).await.expect(200);
    assert!(live.get("serverSeed").is_none());
    session.rotate().await.expect(200);
    let revealed = api.get(&path).await.expect(200);
    let report = verify(revealed.to_string().as_bytes(), None).unwrap();
    assert_eq!(report.status, BundleStatus::Matches, "{report:#?}");
    // And the endpoint for strangers takes it for the bet's answer that it holds.
    let inspected = api.post("/v1/verify", revealed).await.expect(200);
    assert_eq!(inspected["status"], "matches");
    api.get(&format!("/v1/records/{}/1/bundle", session.commitment)).await.problem(404, "bet_not_found");
    api.get(&format!("/v1/records/{}/0/bundle", "0".repeat(64))).await.problem(404, "commitment_not_found");
}

#[tokio::test]
async fn evidence_is_for_dispute_teams() {
    let api = Api::new().await;
    let session = api.session().await;
    for path in [session.at("/coverage"), format!("/v1/records/{}/0/bundle", session.commitment)] {
        assert_eq!(api.get(&path).await.problem(403, "forbidden")["scope"], "dispute");
    }
}
