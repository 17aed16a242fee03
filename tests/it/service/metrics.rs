//! What Prometheus reads: that the numbers follow what happens, that the document lists them, and that they name no one (I13).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Caller, Service, TestDb, http_client, id};

/// A scrape: values by series as written.
struct Scrape {
    text: String,
    values: BTreeMap<String, f64>,
}

impl Scrape {
    /// The value of a series such as `fairledger_open_rounds`.
    #[track_caller]
    fn value(&self, series: &str) -> f64 {
        *self.values.get(series).unwrap_or_else(|| panic!("no {series} in:\n{}", self.text))
    }

    /// Names with their types.
    fn families(&self) -> BTreeSet<(String, String)> {
        let lines = self.text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let family = |line: &str| {
            let (name, kind) = line.split_once(' ').unwrap();
            let suffix = match kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            (format!("{name}{suffix}"), kind.to_owned())
        };
        lines.map(family).collect()
    }
}

async fn scrape(address: &str) -> Scrape {
    let answer = http_client().get(format!("http://{address}/metrics")).send().await.unwrap();
    assert!(answer.headers()["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    let text = answer.text().await.unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let values = samples.map(|line| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        (series.to_owned(), value.parse().unwrap())
    });
    Scrape { values: values.collect(), text }
}

/// Scrapes until a condition holds: what comes from the database is read in the background.
async fn scrape_until(address: &str, what: &str, holds: impl Fn(&Scrape) -> bool) -> Scrape {
    for _ in 0..400 {
        let scrape = scrape(address).await;
        if holds(&scrape) {
            return scrape;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("never: {what}\n{}", scrape(address).await.text)
}

/// Where the service answers metrics; its log may come a moment after it listens.
async fn metrics_address(service: &Service) -> String {
    for _ in 0..400 {
        if let Some(line) = service.logs().lines().find(|line| line.contains("metrics are answered")) {
            return serde_json::from_str::<Value>(line).unwrap()["address"].as_str().unwrap().to_owned();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no address in:\n{}", service.logs())
}

/// Names with their types, as the document has them.
fn documented() -> BTreeSet<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/METRICS.md");
    let text = std::fs::read_to_string(path).unwrap();
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        Some((cells.next()?.trim_end_matches('`').to_owned(), cells.next()?.to_owned()))
    };
    text.lines().filter_map(row).collect()
}

const POST_BETS: &str = "method=\"POST\",route=\"/v1/sessions/{sessionId}/bets\"";

#[tokio::test(flavor = "multi_thread")]
async fn the_numbers_follow_what_happens_and_name_no_one_i13() {
    let db = TestDb::new().await;
    let witness = tempfile::tempdir().unwrap();
    let env = [
        ("FAIRLEDGER_METRICS_ADDR", "127.0.0.1:0"),
        ("FAIRLEDGER_METRICS_INTERVAL", "50ms"),
        ("FAIRLEDGER_WITNESS_DIR", witness.path().to_str().unwrap()),
        ("FAIRLEDGER_SLOW_TRANSACTION", "10ms"),
        ("FAIRLEDGER_LOG", "trace,sqlx=trace,hyper=trace,hyper_util=trace,tokio_postgres=trace"),
    ];
    // Where the server trusts everybody, a password may be given all the same.
    let role = fairledger::db::bootstrap::SERVICE;
    let url = db.service_url.replace(&format!("{role}@"), &format!("{role}:password-of-the-test@"));
    let service = Service::spawn_at(&url, &db, &env, &[]);
    let address = metrics_address(&service).await;
    let before =
        scrape_until(&address, "a first reading", |scrape| scrape.value("fairledger_database_up") == 1.0).await;
    for series in ["fairledger_open_rounds", "fairledger_outstanding_nonces", "fairledger_keys_live"] {
        assert_eq!(before.value(series), 0.0, "{series}");
    }
    for series in ["fairledger_witness_configured", "fairledger_ready"] {
        assert_eq!(before.value(series), 1.0, "{series}");
    }
    assert_eq!(before.value("fairledger_schema_version"), before.value("fairledger_schema_version_needed"));
    assert!(before.value("fairledger_disk_free_bytes{folder=\"witness\"}") > 0.0);

    let token = db.admin_token().await;
    let caller = Caller::new(&service, &token);
    let started = json!({ "playerRef": "player-of-the-test", "clientAddress": "203.0.113.77" });
    let session = caller.post("/v1/sessions", started).await;
    let path = format!("/v1/sessions/{}", id(&session));
    let commitment = session["commitment"].as_str().unwrap();
    caller.dice(&session, "bet-of-the-test").await;
    let round = json!({ "commitment": commitment, "betRef": "round-of-the-test", "game": "mines", "conceal": true });
    caller.post(&format!("{path}/bets"), round).await;
    let rules = json!({ "id": "r", "sha256": "00".repeat(32) });
    let owed =
        json!({ "commitment": commitment, "betRef": "owed-of-the-test", "game": "x-a", "floats": 1, "rules": rules });
    caller.post(&format!("{path}/nonces"), owed).await;
    let rotation = Some(json!({ "commitment": commitment }));
    assert_eq!(caller.call("POST", &format!("{path}/rotate"), rotation).await.0, 409);
    assert_eq!(caller.call("PUT", "/v1/keys/key-of-the-test", Some(json!({}))).await.0, 201);
    let nonce = "5eed".repeat(8);
    caller.post("/v1/spends", json!({ "keyId": "key-of-the-test", "nonce": nonce })).await;
    assert_eq!(caller.call("GET", "/nowhere/player-of-the-test", None).await.0, 404);

    let all_three = |scrape: &Scrape| {
        let states = ["fairledger_open_rounds", "fairledger_outstanding_nonces", "fairledger_keys_live"];
        states.iter().all(|series| scrape.value(series) == 1.0)
            && scrape.value("fairledger_oldest_live_seed_age_seconds") > 0.0
    };
    let after = scrape_until(&address, "a round, a reservation and a key", all_three).await;
    let answered = |labels: &str| after.value(&format!("fairledger_http_requests_total{{{labels}}}"));
    assert_eq!(answered(&format!("{POST_BETS},status=\"201\",code=\"none\"")), 2.0);
    assert_eq!(
        answered("method=\"POST\",route=\"/v1/sessions/{sessionId}/rotate\",status=\"409\",code=\"bets_pending\""),
        1.0
    );
    assert_eq!(answered("method=\"GET\",route=\"unmatched\",status=\"404\",code=\"not_found\""), 1.0);
    assert_eq!(after.value(&format!("fairledger_http_request_duration_seconds_count{{{POST_BETS}}}")), 2.0);
    for group in ["spends", "bets"] {
        assert!(after.value(&format!("fairledger_group_batch_items_count{{group=\"{group}\"}}")) >= 1.0, "{group}");
    }
    assert!(after.value("fairledger_commit_duration_seconds_count{kind=\"group\"}") >= 3.0);
    assert!(after.value("fairledger_commit_duration_seconds_count{kind=\"single\"}") >= 2.0);
    assert!(after.value("fairledger_maintenance_success_timestamp_seconds") > 0.0);

    for secret in
        ["-of-the-test", "203.0.113.77", id(&session), commitment, &nonce, session["nextCommitment"].as_str().unwrap()]
    {
        assert!(!after.text.contains(secret), "{secret} in:\n{}", after.text);
    }
    assert_eq!(after.families(), documented(), "docs/METRICS.md and the exposition differ");
    assert_eq!(http_client().get(format!("http://{address}/v1/keys")).send().await.unwrap().status().as_u16(), 404);

    let mut admin = db.owner().await;
    let mut held = sqlx::Connection::begin(&mut admin).await.unwrap();
    sqlx::query("SELECT FROM fairledger.seeds FOR UPDATE").execute(&mut *held).await.unwrap();
    let body = json!({ "commitment": commitment, "betRef": "late-of-the-test", "game": "dice" });
    let (late, ()) = tokio::join!(caller.post(&format!("{path}/bets"), body), async {
        scrape_until(&address, "a request under way", |scrape| {
            scrape.value("fairledger_http_requests_in_flight") == 1.0
        })
        .await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        held.rollback().await.unwrap();
    });
    assert_eq!(late["replayed"], false);
    assert!(scrape(&address).await.value("fairledger_slow_transactions_total") >= 1.0);
    let logs = service.logs();
    let slow = logs.lines().find(|line| line.contains("a slow transaction") && line.contains("bet."));
    assert!(slow.is_some_and(|line| line.contains("took_ms")), "{logs}");
    let hash = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(token.as_bytes()));
    for secret in [
        "password-of",
        "player-of",
        "bet-of",
        "round-of",
        "owed-of",
        "203.0.113.77",
        nonce.as_str(),
        token.as_str(),
        &hash,
    ] {
        assert!(!logs.contains(secret), "{secret} in the log");
    }
}

#[tokio::test]
async fn every_line_of_a_request_has_its_id_and_its_callers_trace() {
    let db = TestDb::new().await;
    let service = Service::spawn(&db, &[], &[]);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let asked = http_client()
        .get(service.url("/v1/keys"))
        .header("x-request-id", "request-of-the-test")
        .header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"));
    let answer = asked.send().await.unwrap();
    assert_eq!(answer.headers()["x-request-id"], "request-of-the-test");
    let line = loop {
        let logs = service.logs();
        match logs.lines().find(|line| line.contains("request-of-the-test")) {
            Some(line) => break serde_json::from_str::<Value>(line).unwrap(),
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let span = &line["spans"][0];
    assert_eq!(
        (span["trace_id"].as_str(), span["parent_id"].as_str()),
        (Some(trace), Some("00f067aa0ba902b7")),
        "{line}"
    );
    assert_eq!((span["route"].as_str(), span["method"].as_str()), (Some("/v1/keys"), Some("GET")), "{line}");
}

#[tokio::test]
async fn a_database_that_is_away_shows() {
    let db = TestDb::new().await;
    let env = [("FAIRLEDGER_METRICS_ADDR", "127.0.0.1:0"), ("FAIRLEDGER_METRICS_INTERVAL", "50ms")];
    let service = Service::spawn(&db, &env, &[]);
    let address = metrics_address(&service).await;
    let up = scrape_until(&address, "up", |scrape| scrape.value("fairledger_database_up") == 1.0).await;
    assert_eq!(up.value("fairledger_witness_configured"), 0.0);
    let mut admin = crate::harness::Cluster::get().await.connect_to("postgres").await;
    let allow = |allow: bool| sqlx::AssertSqlSafe(format!("ALTER DATABASE {} ALLOW_CONNECTIONS {allow}", db.name));
    sqlx::query(allow(false)).execute(&mut admin).await.unwrap();
    sqlx::query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1")
        .bind(&db.name)
        .execute(&mut admin)
        .await
        .unwrap();
    let down =
        |scrape: &Scrape| scrape.value("fairledger_database_up") == 0.0 && scrape.value("fairledger_ready") == 0.0;
    let away = scrape_until(&address, "down", down).await;
    assert!(away.value("fairledger_state_read_failures_total") >= 1.0);
    sqlx::query(allow(true)).execute(&mut admin).await.unwrap();
    scrape_until(&address, "up again", |scrape| scrape.value("fairledger_database_up") == 1.0).await;
}
