//! Exports over real connections: whole ones, slow clients, and what is broken off.

use std::net::SocketAddr;
use std::time::Duration;

use fairledger::db::tokens::Scope;
use fairledger::db::{PoolSettings, Reader};
use fairledger::history::{History, HistorySettings};
use fairledger::http::{App, HttpSettings, serve};
use fairledger::ledger::{Ledger, LedgerSettings};
use fairledger::seeds::ServiceSecret;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use sqlx::Executor as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{Api, Setup};
use crate::harness::{Proxy, TestDb, http_client};
use crate::history::plans::FILL;

struct Served {
    api: Api,
    address: SocketAddr,
}

/// The API on a socket, with bounds of its own for exports.
async fn served(db: TestDb, url: Option<String>, settings: HistorySettings) -> Served {
    let scopes = Some(vec![Scope::Engine, Scope::Dispute]);
    let pool = PoolSettings { acquire_timeout: Duration::from_secs(1), ..PoolSettings::default() };
    let mut api = Api::on(db, Setup { scopes, url, pool, ..Setup::default() }).await;
    let store = api.app.datastore().clone();
    let history = History::new(Reader::from(&store), ServiceSecret::new([7; 32]), settings);
    let ledger = Ledger::new(store, LedgerSettings::default());
    api.app = App::with_history(api.app.seeds().clone(), ledger, history, HttpSettings::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, api.app.clone(), std::future::pending()));
    Served { api, address }
}

impl Served {
    async fn get(&self, query: &str) -> reqwest::Response {
        let url = format!("http://{}/v1/records/export?{query}", self.address);
        http_client().get(url).bearer_auth(self.api.token.expose()).send().await.unwrap()
    }

    /// Asks for an export on a connection of its own, and reads no more than the beginning.
    async fn begin(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!(
            "GET /v1/records/export?format=ndjson HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n",
            self.api.token.expose()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut start = [0; 15];
        stream.read_exact(&mut start).await.unwrap();
        assert_eq!(&start, b"HTTP/1.1 200 OK");
        stream
    }

    /// Waits until no snapshot of an export is open.
    async fn no_snapshot(&self) {
        let none = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND usename = 'fairledger_service'
                    AND xact_start IS NOT NULL)";
        self.api.db.wait_until(none).await;
    }
}

#[tokio::test]
async fn an_export_is_streamed_in_both_forms() {
    let served = served(TestDb::new().await, None, HistorySettings::default()).await;
    let session = served.api.session().await;
    for name in ["a", "b", "c"] {
        session.bet(name).await.expect(201);
    }
    let answer = served.get("format=ndjson&game=dice").await;
    let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
    assert_eq!((answer.status().as_u16(), header("content-type").as_str()), (200, "application/x-ndjson"));
    assert_eq!(header("content-disposition"), "attachment; filename=\"fairledger-export.ndjson\"");
    let text = answer.text().await.unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let refs: Vec<_> = lines[1..4].iter().map(|line| line["meta"]["betRef"].as_str().unwrap()).collect();
    assert_eq!((lines.len(), refs), (5, vec!["a", "b", "c"]));
    assert_eq!(lines[0]["filters"], json!({"game": "dice"}));
    assert_eq!((&lines[4]["type"], &lines[4]["records"]), (&json!("trailer"), &json!(3)));

    // A line can be checked as it is.
    let inspected = served.api.post("/v1/verify", lines[1].clone()).await.expect(200);
    assert_eq!(inspected["status"], "incomplete", "the seed is not revealed");

    let answer = served.get("format=csv").await;
    assert_eq!(answer.headers()["content-type"], "text/csv; charset=utf-8; header=present");
    let text = answer.text().await.unwrap();
    assert!(
        text.starts_with("type,sessionId,betRef,") && text.contains("\r\nheader,") && text.contains("\r\ntrailer,")
    );

    for (query, field) in
        [("", "format"), ("format=xml", "format"), ("format=csv&limit=5", "limit"), ("format=csv&nonce=1", "nonce")]
    {
        let answer = served.get(query).await;
        assert_eq!(answer.status().as_u16(), 400, "{query}");
        assert_eq!(answer.json::<Value>().await.unwrap()["field"], field, "{query}");
    }
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_cut_off_and_one_that_goes_away_holds_nothing_i12() {
    let settings =
        HistorySettings { exports_max: 1, export_stall: Duration::from_millis(500), ..HistorySettings::default() };
    let served = served(TestDb::new().await, None, settings).await;
    served.api.db.owner().await.execute(FILL).await.unwrap();

    let mut slow = served.begin().await;
    let refused = served.get("format=csv").await;
    assert_eq!(refused.status().as_u16(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(refused.json::<Value>().await.unwrap()["code"], "overloaded");
    served.no_snapshot().await;
    // Ends only because the service ends it; what was on its way is not all.
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest).await;
    let rest = String::from_utf8_lossy(&rest);
    assert!(!rest.contains("\"trailer\"") && !rest.ends_with("0\r\n\r\n"), "it had {} bytes", rest.len());

    drop(served.begin().await);
    served.no_snapshot().await;
    // Its place is free again, and one that reads gets all.
    let mut pieces = loop {
        let answer = served.get("format=ndjson").await;
        if answer.status().as_u16() == 200 {
            break answer.bytes_stream();
        }
        tokio::task::yield_now().await;
    };
    let (mut lines, mut end) = (0, Vec::new());
    while let Some(piece) = pieces.next().await {
        let piece = piece.unwrap();
        lines += piece.iter().filter(|byte| **byte == b'\n').count();
        end.extend_from_slice(&piece);
        let from = end.len().saturating_sub(1_000);
        end.drain(..from);
    }
    assert_eq!(lines, 100_002);
    assert!(String::from_utf8_lossy(&end).contains("\"type\":\"trailer\",\"records\":100000,"));
}

#[tokio::test]
async fn a_client_sees_that_an_export_broke_off() {
    let db = TestDb::new().await;
    let proxy = Proxy::start(&db.service_url).await;
    let url = proxy.url(&db.service_url);
    let served = served(db, Some(url), HistorySettings::default()).await;
    served.api.db.owner().await.execute(FILL).await.unwrap();
    let mut pieces = served.get("format=ndjson").await.bytes_stream();
    let mut end = pieces.next().await.unwrap().unwrap().to_vec();
    proxy.close();
    let broken = loop {
        match pieces.next().await {
            Some(Ok(piece)) => {
                end.extend_from_slice(&piece);
                let from = end.len().saturating_sub(1_000);
                end.drain(..from);
            }
            Some(Err(_)) => break true,
            None => break false,
        }
    };
    assert!(broken, "it ended as if it were whole");
    let end = String::from_utf8_lossy(&end);
    let last: Value = serde_json::from_str(end.trim_end().rsplit('\n').next().unwrap()).unwrap();
    assert_eq!(last["type"], "failed");
}
