//! The whole history over HTTP: strict filters, pages, single bets.

use fairledger::db::tokens::Scope;
use serde_json::{Value, json};

use super::{Api, Setup};

async fn api() -> Api {
    Api::with(Setup { scopes: Some(vec![Scope::Engine, Scope::Dispute]), ..Setup::default() }).await
}

fn refs(page: &Value) -> Vec<&str> {
    page["records"].as_array().unwrap().iter().map(|bet| bet["meta"]["betRef"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn bets_are_found_by_each_filter_page_by_page() {
    let api = api().await;
    let body = json!({"playerRef": "ann & bob"});
    let view = api.post("/v1/sessions", body).await.expect(201);
    let (session_id, commitment) = (view["sessionId"].as_str().unwrap(), view["commitment"].as_str().unwrap());
    let path = format!("/v1/sessions/{session_id}");
    for name in ["a", "b", "c"] {
        let body =
            json!({"commitment": commitment, "betRef": name, "game": "dice", "stake": "0.10", "currency": "EUR"});
        api.post(&format!("{path}/bets"), body).await.expect(201);
    }
    let body = json!({"commitment": commitment, "betRef": "d", "game": "mines", "conceal": true});
    let round = api.post(&format!("{path}/bets"), body).await.expect(201);
    let body = json!({"commitment": commitment, "nonce": 0, "payout": "0.1000", "displayed": {"won": true}});
    api.post(&format!("{path}/settlements"), body).await.expect(201);
    let other = api.session().await;
    other.bet("a").await.expect(201);

    let taken = round["meta"]["takenAt"].as_str().unwrap();
    for (query, expected) in [
        (String::new(), vec!["a", "d", "c", "b", "a"]),
        (format!("sessionId={session_id}"), vec!["d", "c", "b", "a"]),
        ("playerRef=ann%20%26%20bob".to_owned(), vec!["d", "c", "b", "a"]),
        (format!("commitment={commitment}"), vec!["d", "c", "b", "a"]),
        (format!("commitment={commitment}&nonce=1"), vec!["b"]),
        ("betRef=c".to_owned(), vec!["c"]),
        ("game=mines".to_owned(), vec!["d"]),
        ("status=pending".to_owned(), vec!["d"]),
        ("status=void".to_owned(), vec![]),
        (format!("from={taken}"), vec!["a", "d"]),
        (format!("to={taken}&game=dice"), vec!["c", "b", "a"]),
    ] {
        let page = api.get(&format!("/v1/records?{query}")).await.expect(200);
        assert_eq!(refs(&page), expected, "{query}");
        assert_eq!(page.get("nextAfter"), None);
        assert!(page["asOf"].is_string() && page["behindMs"].is_u64(), "{page}");
    }
    let first = api.get("/v1/records?limit=2").await.expect(200);
    let token = first["nextAfter"].as_str().unwrap();
    let second = api.get(&format!("/v1/records?limit=2&after={token}")).await.expect(200);
    assert_eq!((refs(&first), refs(&second)), (vec!["a", "d"], vec!["c", "b"]));
    api.get(&format!("/v1/records?limit=2&game=dice&after={token}")).await.invalid("after");

    let settled = api.get(&format!("/v1/records/{commitment}/0")).await.expect(200);
    assert_eq!(settled["meta"]["settlement"]["payout"], "0.1000");
    assert_eq!(settled["meta"]["settlement"]["displayed"], json!({"won": true}));
    let pending = api.get(&format!("/v1/records/{commitment}/3")).await.expect(200);
    assert_eq!((pending["meta"]["status"].as_str(), pending["record"].get("result")), (Some("pending"), None));
    api.get(&format!("/v1/records/{commitment}/4")).await.problem(404, "bet_not_found");
    api.get(&format!("/v1/records/{}/0", "0".repeat(64))).await.problem(404, "bet_not_found");
}

#[tokio::test]
async fn a_filter_out_of_form_is_refused_by_name() {
    let api = api().await;
    for (query, field) in [
        ("nonce=0", "nonce"),
        ("nonce=-1", "nonce"),
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("sessionId=7", "sessionId"),
        ("commitment=7", "commitment"),
        ("betRef=a%20b", "betRef"),
        ("playerRef=", "playerRef"),
        ("game=", "game"),
        ("status=lost", "status"),
        ("from=yesterday", "from"),
        ("from=2030-01-02T00:00:00Z&to=2030-01-01T00:00:00Z", "to"),
        ("after=x", "after"),
        ("order=time", "order"),
        ("game=dice&game=limbo", "game"),
    ] {
        api.get(&format!("/v1/records?{query}")).await.invalid(field);
    }
}

#[tokio::test]
async fn history_is_for_dispute_teams() {
    let api = Api::new().await;
    let body = api.get("/v1/records").await.problem(403, "forbidden");
    assert_eq!(body["scope"], "dispute");
    let api = Api::with(Setup { scopes: Some(vec![Scope::Admin]), ..Setup::default() }).await;
    api.get("/v1/records").await.expect(200);
}
