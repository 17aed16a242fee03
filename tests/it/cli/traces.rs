//! Spans, sent to a collector of the test's own.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::routing::post;

use super::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// Long enough for a batch on a busy machine.
const EXPORTED_MAX: Duration = Duration::from_secs(20);

/// What came: its content type and its body.
type Came = Arc<Mutex<Vec<(String, Bytes)>>>;

/// A collector; gives its URL and what it gets.
async fn collector() -> (String, Came) {
    let came = Came::default();
    let taken = Arc::clone(&came);
    let take = move |headers: HeaderMap, body: Bytes| async move {
        let content_type = headers["content-type"].to_str().unwrap().to_owned();
        assert_eq!(headers["x-collector-key"], "k");
        taken.lock().unwrap().push((content_type, body));
    };
    let router = axum::Router::new().route("/v1/traces", post(take));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, came)
}

/// The spans of all exports in JSON, each with its resource's service.
fn spans(came: &Came) -> Vec<Value> {
    let mut found = Vec::new();
    for (content_type, body) in came.lock().unwrap().iter() {
        assert_eq!(content_type, "application/json");
        let export: Value = serde_json::from_slice(body).unwrap();
        for resource in export["resourceSpans"].as_array().unwrap() {
            let attributes = resource["resource"]["attributes"].as_array().unwrap();
            assert!(attributes.iter().any(|a| a["key"] == "service.name" && a["value"]["stringValue"] == "fairledger"));
            for scope in resource["scopeSpans"].as_array().unwrap() {
                found.extend(scope["spans"].as_array().unwrap().iter().cloned());
            }
        }
    }
    found
}

fn attribute<'a>(span: &'a Value, key: &str) -> Option<&'a Value> {
    let attributes = span["attributes"].as_array()?;
    attributes.iter().find(|attribute| attribute["key"] == key)?["value"].as_object()?.values().next()
}

async fn await_that(what: &str, mut held: impl FnMut() -> bool) {
    let began = Instant::now();
    while !held() {
        assert!(began.elapsed() < EXPORTED_MAX, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn exporting(url: &str) -> [(&str, &str); 4] {
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-collector-key=k"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
    ]
}

/// A request with a trace of its caller's.
async fn traced(service: &Service, token: &str, path: &str, body: &Value, flags: &str) -> (u16, Value) {
    let request = http_client()
        .post(service.url(path))
        .bearer_auth(token)
        .header("traceparent", format!("00-{TRACE}-{PARENT}-{flags}"))
        .json(body);
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

#[tokio::test]
async fn a_request_is_a_span_in_its_callers_trace_with_its_transactions_below_i13() {
    let (db, (url, came)) = (TestDb::new().await, collector().await);
    let token = db.admin_token().await;
    let service = Service::spawn(&db, &exporting(&url), &[]);
    let (status, session) = traced(&service, &token, "/v1/sessions", &json!({}), "01").await;
    assert_eq!(status, 201, "{session}");
    let bets = format!("/v1/sessions/{}/bets", id(&session));
    let bet = json!({ "commitment": session["commitment"], "betRef": "a-secret-bet", "game": "dice" });
    assert_eq!(traced(&service, &token, &bets, &bet, "01").await.0, 201);

    let named = |name: &str| spans(&came).into_iter().find(|span| span["name"] == name);
    await_that("both requests are exported", || {
        named("POST /v1/sessions").is_some() && named("POST /v1/sessions/{sessionId}/bets").is_some()
    })
    .await;
    let opened = named("POST /v1/sessions").unwrap();
    assert_eq!((&opened["traceId"], &opened["parentSpanId"]), (&json!(TRACE), &json!(PARENT)), "{opened}");
    assert_eq!(opened["kind"], 2, "a server's: {opened}");
    assert_eq!(attribute(&opened, "http.request.method").unwrap(), "POST", "{opened}");
    assert_eq!(attribute(&opened, "http.route").unwrap(), "/v1/sessions", "{opened}");
    assert_eq!(attribute(&opened, "http.response.status_code").unwrap(), "201", "{opened}");
    assert!(attribute(&opened, "fairledger.request_id").is_some(), "{opened}");
    assert_eq!(opened["attributes"].as_array().unwrap().len(), 4, "{opened}");
    let taken = named("POST /v1/sessions/{sessionId}/bets").unwrap();

    let below = |parent: &Value| {
        let spans = spans(&came);
        spans.into_iter().filter(|span| span["parentSpanId"] == parent["spanId"]).collect::<Vec<_>>()
    };
    let transactions = below(&opened);
    assert!(transactions.iter().any(|span| span["name"] == "session.create" && span["kind"] == 3), "{transactions:?}");
    assert!(transactions.iter().all(|span| span["traceId"] == TRACE), "{transactions:?}");
    let waits = below(&taken);
    assert!(waits.iter().any(|span| span["name"] == "bet.group"), "{waits:?}");

    // What maintenance does is no trace, and no span names who bet on what.
    for span in spans(&came) {
        assert!(
            span["parentSpanId"] == PARENT || [&opened, &taken].iter().any(|of| of["spanId"] == span["parentSpanId"])
        );
    }
    let all = format!("{:?}", came.lock().unwrap());
    for secret in ["a-secret-bet", session["sessionId"].as_str().unwrap(), token.as_str()] {
        assert!(!all.contains(secret), "{secret} in {all}");
    }
}

// Of several threads: the collector takes the last spans while the test waits for the service's end.
#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_marked_and_what_its_caller_does_not_record_is_not_exported() {
    let (db, (url, came)) = (TestDb::new().await, collector().await);
    let token = db.admin_token().await;
    let mut service = Service::spawn(&db, &exporting(&url), &[]);
    let (status, _) = traced(&service, &token, "/v1/sessions", &json!({}), "00").await;
    assert_eq!(status, 201);
    let (status, _) = traced(&service, "wrong", "/v1/spends", &json!({}), "01").await;
    assert_eq!(status, 401);
    // One without a trace begins one, and its log lines name it.
    http_client().get(service.url("/v1/keys")).send().await.unwrap();
    // The last spans are handed in as the service stops.
    assert!(service.terminate().success(), "{}", service.logs());
    let spans = spans(&came);
    assert!(!spans.iter().any(|span| span["name"] == "POST /v1/sessions"), "{spans:?}");
    let names: Vec<_> = spans.iter().map(|span| &span["name"]).collect();
    let refused = spans.iter().find(|span| span["name"] == "POST /v1/spends");
    let refused = refused.unwrap_or_else(|| panic!("{names:?}"));
    assert_eq!(attribute(refused, "error.type").unwrap(), "unauthenticated", "{refused}");
    assert_ne!(refused["status"]["code"], 2, "the caller's fault is no failure of ours: {refused}");
    let keys = spans.iter().find(|span| span["name"] == "GET /v1/keys").unwrap();
    let line = service.logs().lines().find(|line| line.contains("/v1/keys")).unwrap().to_owned();
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["spans"][0]["trace_id"], keys["traceId"], "{line}");
}

#[tokio::test]
async fn protobuf_is_what_is_sent_unless_told_otherwise() {
    let (db, (url, came)) = (TestDb::new().await, collector().await);
    let mut env = exporting(&url).to_vec();
    env.retain(|(name, _)| *name != "OTEL_EXPORTER_OTLP_PROTOCOL");
    let service = Service::spawn(&db, &env, &[]);
    http_client().get(service.url("/v1/keys")).send().await.unwrap();
    let name = b"GET /v1/keys";
    await_that("a span is exported", || {
        let came = came.lock().unwrap();
        came.iter().any(|(kind, body)| {
            kind == "application/x-protobuf" && body.windows(name.len()).any(|window| window == name)
        })
    })
    .await;
}

#[tokio::test]
async fn a_collector_that_is_away_costs_spans_but_no_request() {
    let db = TestDb::new().await;
    // Bound, and never answered from.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("http://{}", silent.local_addr().unwrap());
    for url in ["http://127.0.0.1:9", silent_url.as_str()] {
        let mut env = exporting(url).to_vec();
        env.push(("OTEL_BSP_MAX_QUEUE_SIZE", "4"));
        let mut service = Service::spawn(&db, &env, &[]);
        let caller = Caller::new(&service, &db.admin_token().await);
        let session = caller.session().await;
        for number in 0..20 {
            caller.dice(&session, &format!("b{number}")).await;
        }
        if url != silent_url {
            await_that("its absence is said", || service.logs().contains("spans do not reach the collector")).await;
        }
        // Within the time that the last spans may take, not that of an export.
        assert!(service.terminate().success(), "{}", service.logs());
    }
}

#[tokio::test]
async fn a_protocol_that_is_not_spoken_is_refused_at_the_start() {
    let db = TestDb::new().await;
    let mut command = on(&db, serve::SERVE);
    command.envs(exporting("http://127.0.0.1:4317")).env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    done(command).await.refused(&["OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf or http/json"]);
}
