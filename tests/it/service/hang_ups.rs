//! Callers that go away.

use serde_json::json;
use sqlx::Connection as _;
use tokio::io::AsyncWriteExt as _;

use super::{check, records};
use crate::harness::{Caller, Service, TestDb, id};

/// Sends a request as bytes; dropping the stream hangs up without reading the answer.
async fn send(service: &Service, token: &str, path: &str, body: &str) -> tokio::net::TcpStream {
    let address = service.base_url.strip_prefix("http://").unwrap();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn i4_a_client_that_goes_away_in_the_middle_of_a_bet_leaves_one_whole_bet() {
    let db = TestDb::new().await;
    let token = db.admin_token().await;
    let service = Service::spawn(&db, &[], &[]);
    let caller = Caller::new(&service, &token);
    let session = caller.session().await;
    let path = format!("/v1/sessions/{}/bets", id(&session));
    let body = json!({ "commitment": session["commitment"], "betRef": "gone", "game": "dice" });

    // Hold the seed's row, so that the bet is under way for certain when its caller goes.
    let mut owner = db.owner().await;
    let mut lock = owner.begin().await.unwrap();
    sqlx::query("SELECT FROM fairledger.seeds FOR UPDATE").execute(&mut *lock).await.unwrap();
    let stream = send(&service, &token, &path, &body.to_string()).await;
    db.wait_until(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    )
    .await;
    drop(stream);
    lock.commit().await.unwrap();
    db.wait_until("SELECT count(*) = 1 FROM fairledger.bets").await;

    let again = caller.call("POST", &path, Some(body)).await;
    assert_eq!((again.0, &again.1["replayed"]), (200, &json!(true)));
    let acknowledged = [("gone".to_owned(), again.1["record"].clone())].into();
    check(&caller, id(&session), &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i3_clients_that_go_away_at_any_time_leave_no_gap() {
    let db = TestDb::new().await;
    let token = db.admin_token().await;
    let service = Service::spawn(&db, &[], &[]);
    let caller = Caller::new(&service, &token);
    let session = caller.session().await;
    let path = format!("/v1/sessions/{}/bets", id(&session));
    for number in 0..40 {
        let body = json!({ "commitment": session["commitment"], "betRef": format!("b{number}"), "game": "dice" });
        drop(send(&service, &token, &path, &body.to_string()).await);
    }
    // Half a body, and gone: nothing of it may be stored.
    let address = service.base_url.strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let half = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Content-Length: 500\r\n\r\n{{\"commitment\":"
    );
    stream.write_all(half.as_bytes()).await.unwrap();
    drop(stream);
    let mut acknowledged = std::collections::BTreeMap::new();
    for number in 0..40 {
        let name = format!("b{number}");
        let body = json!({ "commitment": session["commitment"], "betRef": name, "game": "dice" });
        acknowledged.insert(name, caller.post(&path, body).await["record"].take());
    }
    assert_eq!(records(&caller, id(&session)).await.len(), 40);
    check(&caller, id(&session), &acknowledged).await;
}
