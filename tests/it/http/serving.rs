//! Connections: the API over a real socket.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Api, Setup};
use crate::harness::http_client;
use fairledger::http::auth::ApiToken;
use fairledger::http::{HttpSettings, serve};

struct Served {
    api: Api,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

async fn served(http: HttpSettings) -> Served {
    let api = Api::with(Setup { http, ..Setup::default() }).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async {
        // Dropped or sent: either is the sign.
        let _ = stopped.await;
    };
    let task = tokio::spawn(serve(listener, api.app.clone(), shutdown));
    Served { api, address, stop, task }
}

/// Sends text on a connection of its own and reads all that comes until it is closed.
async fn raw(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // The server may end the connection before it has read all.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn a_request_names_its_host_once() {
    let served = served(HttpSettings::default()).await;
    for (head, status) in [
        ("HTTP/1.1\r\nhost: x", 200),
        ("HTTP/1.0", 200),
        ("HTTP/1.1", 400),
        ("HTTP/1.1\r\nhost: x\r\nhost: y", 400),
        ("HTTP/1.1\r\nhost: x\r\nHost: x", 400),
        ("HTTP/1.0\r\nhost: x\r\nhost: x", 400),
    ] {
        let answer = raw(served.address, &format!("GET /healthz {head}\r\nconnection: close\r\n\r\n")).await;
        assert!(answer.split(' ').nth(1) == Some(&status.to_string()), "{head}: {answer}");
        if status == 400 {
            assert!(answer.contains("application/problem+json") && answer.contains("invalid_request"), "{answer}");
        }
    }
}

/// What is left of a body would stand where the next request is looked for.
#[tokio::test]
async fn a_refusal_before_the_body_leaves_a_connection_that_goes_on_or_says_that_it_ends() {
    let served = served(HttpSettings::default()).await;
    let refused =
        |more: &str| format!("POST /v1/sessions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer flt_\r\n{more}\r\n");
    let next = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    for (head, body) in [
        ("content-length: 2\r\n", "{}".to_owned()),
        ("content-length: 20000\r\n", " ".repeat(20_000)),
        ("transfer-encoding: chunked\r\n", "2\r\n{}\r\n0\r\n\r\n".to_owned()),
    ] {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        stream.write_all(refused(head).as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        stream.write_all((body + next).as_bytes()).await.unwrap();
        let mut answers = String::new();
        stream.read_to_string(&mut answers).await.unwrap();
        let (first, second) = answers.split_once("HTTP/1.1 200").unwrap_or_else(|| panic!("{head}: {answers}"));
        assert!(first.starts_with("HTTP/1.1 401") && !first.contains("connection: close"), "{head}: {first}");
        assert!(second.contains("alive"), "{second}");
    }
    for head in ["content-length: 2000000\r\n", "content-length: 2\r\nexpect: 100-continue\r\n"] {
        let answer = raw(served.address, &refused(head)).await;
        assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("connection: close"), "{head}: {answer}");
    }
    // A body that was read is nobody's business any more.
    let token = served.api.token.expose();
    for (length, body) in [("content-length: 2", "{}"), ("transfer-encoding: chunked", "2\r\n{}\r\n0\r\n\r\n")] {
        let length = format!("{length}\r\nexpect: 100-continue\r\ncontent-type: application/json");
        let head =
            format!("POST /v1/sessions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n{length}\r\n\r\n");
        let answer = raw(served.address, &(head + body + next)).await;
        assert!(answer.contains("HTTP/1.1 201") && answer.contains("HTTP/1.1 200"), "{answer}");
    }
}

#[tokio::test]
async fn requests_under_way_end_before_the_service_does() {
    let served = served(HttpSettings::default()).await;
    let session = served.api.session().await;
    session.bet("b").await.expect(201);
    let mut owner = served.api.db.owner().await;
    let mut held = sqlx::Connection::begin(&mut owner).await.unwrap();
    sqlx::query("SELECT FROM fairledger.sessions FOR UPDATE").execute(&mut *held).await.unwrap();
    let body = serde_json::json!({"commitment": session.commitment}).to_string();
    let request = format!(
        "POST {}/rotate HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        session.path,
        served.api.token.expose(),
        body.len()
    );
    let address = served.address;
    let asking = tokio::spawn(async move { raw(address, &request).await });
    served
        .api
        .db
        .wait_until(
            "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
             WHERE NOT l.granted AND a.datname = current_database())",
        )
        .await;
    served.stop.send(()).unwrap();
    while served.api.get("/readyz").await.status == 200 {
        tokio::task::yield_now().await;
    }
    assert!(TcpStream::connect(address).await.is_err(), "nothing more is accepted");
    assert!(!served.task.is_finished());
    held.rollback().await.unwrap();
    let answer = asking.await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\"revealed\""), "{answer}");
    served.task.await.unwrap();
}

#[tokio::test]
async fn a_request_that_never_ends_is_cut_off_after_the_time_to_stop() {
    let http = HttpSettings { shutdown_timeout: std::time::Duration::from_millis(50), ..HttpSettings::default() };
    let served = served(http).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream
        .write_all(
            b"POST /v1/verify HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{",
        )
        .await
        .unwrap();
    served.stop.send(()).unwrap();
    served.task.await.unwrap();
}

/// The status of a request with a token, and what a proxy would say of where it came from; with the seconds to wait.
async fn asked_with(address: SocketAddr, token: &ApiToken, forwarded_for: &str) -> (u16, Option<u32>) {
    let token = token.expose();
    let text = format!(
        "GET /v1/sessions?playerRef=p HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\
         x-forwarded-for: {forwarded_for}\r\n\r\n"
    );
    let answer = raw(address, &text).await;
    let retry_after =
        answer.split_once("retry-after: ").map(|(_, rest)| rest.split_once('\r').unwrap().0.parse().unwrap());
    (answer[9..12].parse().unwrap(), retry_after)
}

#[tokio::test]
async fn who_guesses_tokens_is_held_up_by_address_and_nobody_else_is_i12() {
    for trusted in [false, true] {
        let trusted_proxies = if trusted { vec!["127.0.0.0/8".parse().unwrap()] } else { vec![] };
        let http = HttpSettings { failures_per_address_max: 3, trusted_proxies, ..HttpSettings::default() };
        let served = served(http).await;
        let ask = |token: ApiToken, from: &'static str| async move { asked_with(served.address, &token, from).await };
        let good = || ApiToken::parse(served.api.token.expose()).unwrap();
        assert_eq!(ask(good(), "192.0.2.1").await, (200, None), "remembered from now on");
        for _ in 0..3 {
            assert_eq!(ask(ApiToken::generate(), "198.51.100.1, 192.0.2.1").await, (401, None));
        }
        // What stands before the trusted proxy's own word changes nothing.
        let (status, retry_after) = ask(ApiToken::generate(), "203.0.113.1, 192.0.2.1").await;
        assert!(status == 429 && (1..=60).contains(&retry_after.unwrap()), "{status} {retry_after:?}");
        assert_eq!(ask(good(), "192.0.2.1").await.0, 200, "a token that was valid is served");
        // Another address is another client only where a trusted proxy says so.
        let new = served.api.db.admin_token().await;
        let elsewhere = ask(ApiToken::parse(&new).unwrap(), "192.0.2.2").await.0;
        assert_eq!(elsewhere, if trusted { 200 } else { 429 });
    }
}

#[tokio::test]
async fn headers_are_bounded_in_size_and_time() {
    let http = HttpSettings { header_timeout: std::time::Duration::from_millis(500), ..HttpSettings::default() };
    let served = served(http).await;
    let long = format!("GET /healthz HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "x".repeat(40_000));
    let answer = raw(served.address, &long).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    // Returns only because the server closes the connection.
    assert_eq!(raw(served.address, "GET /healthz HTTP/1.1\r\nhost:").await, "");
    let answer = raw(served.address, "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("{\"status\":\"alive\"}"), "{answer}");
}

#[tokio::test]
async fn connections_past_the_bound_wait_their_turn() {
    let http = HttpSettings { connections_max: 1, ..HttpSettings::default() };
    let served = served(http).await;
    let ask = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut first = TcpStream::connect(served.address).await.unwrap();
    first.write_all(ask.as_bytes()).await.unwrap();
    let mut start = [0; 15];
    first.read_exact(&mut start).await.unwrap();
    let address = served.address;
    let close = ask.replace("host: x", "host: x\r\nconnection: close");
    let mut second = tokio::spawn(async move { raw(address, &close).await });
    let waited = tokio::time::timeout(std::time::Duration::from_millis(100), &mut second).await;
    assert!(waited.is_err(), "answered while the only place was taken");
    drop(first);
    assert!(second.await.unwrap().starts_with("HTTP/1.1 200 OK"));
}

#[tokio::test]
async fn the_description_is_served() {
    let served = served(HttpSettings::default()).await;
    let url = format!("http://{}/openapi.json", served.address);
    let described: serde_json::Value = http_client().get(url).send().await.unwrap().json().await.unwrap();
    assert_eq!(described, fairledger::http::openapi());
}
