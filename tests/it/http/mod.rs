//! The HTTP API in this process, on a real PostgreSQL. Every answer that a test gets is held against the OpenAPI description.

mod access;
mod bets;
mod contract;
mod evidence;
mod exports;
mod faults;
mod hostile;
mod public;
mod records;
mod rounds;
mod serving;
mod sessions;
mod tls;
mod tokens;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, header};
use fairledger::db::tokens::Scope;
use fairledger::db::{Datastore, PoolSettings};
use fairledger::gfs::signature::SigningKey;
use fairledger::http::auth::{ApiToken, new_token_id};
use fairledger::http::{App, HttpSettings, router};
use fairledger::ledger::{Ledger, LedgerSettings};
use fairledger::seeds::{KeyRing, Seeds, SeedsSettings, ServiceSecret};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use tower::ServiceExt as _;

use crate::harness::TestDb;

const RING: &str = "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// How an API under test is set up.
#[derive(Default)]
struct Setup {
    seeds: SeedsSettings,
    ledger: LedgerSettings,
    http: HttpSettings,
    pool: PoolSettings,
    signing_key: Option<SigningKey>,
    /// Of the token that requests carry; an engine's when absent.
    scopes: Option<Vec<Scope>>,
    /// Another way to the database than its own URL.
    url: Option<String>,
}

/// The API on a database of its own, with a token.
struct Api {
    db: TestDb,
    app: App,
    router: Router,
    token: ApiToken,
}

/// What came back.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl Answer {
    /// Asserts a status, and gives the body.
    #[track_caller]
    fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{:#}", self.body);
        self.body
    }

    /// Asserts a problem, and gives the body.
    #[track_caller]
    fn problem(self, status: u16, code: &str) -> Value {
        assert_eq!((self.status, self.body["code"].as_str()), (status, Some(code)), "{:#}", self.body);
        assert_eq!(self.headers[header::CONTENT_TYPE], "application/problem+json");
        assert_eq!(self.headers["x-request-id"].to_str().ok(), self.body["requestId"].as_str());
        self.body
    }

    /// Asserts `invalid_request` for a field.
    #[track_caller]
    fn invalid(self, field: &str) {
        let body = self.problem(400, "invalid_request");
        assert_eq!(body["field"].as_str().unwrap_or_default(), field, "{body:#}");
    }
}

impl Api {
    async fn new() -> Self {
        Self::with(Setup::default()).await
    }

    async fn with(setup: Setup) -> Self {
        Self::on(TestDb::new().await, setup).await
    }

    async fn on(db: TestDb, setup: Setup) -> Self {
        let url = setup.url.unwrap_or_else(|| db.service_url.clone());
        let store = Datastore::connect(&url, &setup.pool).await.unwrap();
        let ledger = Ledger::new(store.clone(), setup.ledger);
        let ring = KeyRing::parse(RING).unwrap();
        let secret = ServiceSecret::new([7; 32]);
        let seeds = Seeds::start(store, ring, secret, setup.signing_key, setup.seeds).await.unwrap();
        let app = App::new(seeds, ledger, setup.http);
        let token = new_token(&app, &setup.scopes.unwrap_or(vec![Scope::Engine])).await;
        Self { db, router: router(app.clone()), app, token }
    }

    fn request(&self, method: &str, path: &str) -> axum::http::request::Builder {
        let token = format!("Bearer {}", self.token.expose());
        Request::builder().method(method).uri(path).header(header::AUTHORIZATION, token)
    }

    /// Sends a request as it is.
    async fn send(&self, request: Request<Body>) -> Answer {
        let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let answer = Answer { status: parts.status.as_u16(), headers: parts.headers, body };
        if method != "HEAD" {
            contract::hold(&method, &path, &answer);
        }
        answer
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(self.request("GET", path).body(Body::empty()).unwrap()).await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.text("POST", path, &body.to_string()).await
    }

    async fn put(&self, path: &str, body: Value) -> Answer {
        self.text("PUT", path, &body.to_string()).await
    }

    /// A body that may be no JSON.
    async fn text(&self, method: &str, path: &str, body: &str) -> Answer {
        let request = self.request(method, path).header(header::CONTENT_TYPE, "application/json");
        let answer = self.send(request.body(Body::from(body.to_owned())).unwrap()).await;
        if answer.status < 300 {
            let path = path.split('?').next().unwrap();
            contract::hold_request(method, path, &serde_json::from_str(body).unwrap_or(json!({})));
        }
        answer
    }

    /// A statement as the owner, who may do what the service may not.
    async fn as_owner(&self, statement: &str) {
        let mut owner = self.db.owner().await;
        let done = sqlx::query(AssertSqlSafe(statement.to_owned())).execute(&mut owner).await.unwrap();
        assert!(done.rows_affected() > 0, "{statement} changed nothing");
    }

    async fn count(&self, table: &str) -> i64 {
        let mut owner = self.db.owner().await;
        let query = format!("SELECT count(*) FROM fairledger.{table}");
        sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(&mut owner).await.unwrap()
    }

    async fn session(&self) -> Session<'_> {
        let view = self.post("/v1/sessions", json!({})).await.expect(201);
        Session {
            api: self,
            path: format!("/v1/sessions/{}", view["sessionId"].as_str().unwrap()),
            commitment: view["commitment"].as_str().unwrap().to_owned(),
        }
    }
}

/// Stores a token; gives it.
async fn new_token(app: &App, scopes: &[Scope]) -> ApiToken {
    let token = ApiToken::generate();
    let mut tx = app.datastore().begin("token.create").await.unwrap();
    tx.insert_token(&new_token_id(), &token.hash(), scopes, None, None).await.unwrap();
    tx.commit().await.unwrap();
    token
}

/// A session with the commitment that it began with.
struct Session<'a> {
    api: &'a Api,
    path: String,
    commitment: String,
}

impl Session<'_> {
    fn at(&self, end: &str) -> String {
        format!("{}{end}", self.path)
    }

    /// Posts a body, to which the session's commitment is added when it has none.
    async fn post(&self, end: &str, mut body: Value) -> Answer {
        body.as_object_mut().unwrap().entry("commitment").or_insert_with(|| json!(self.commitment));
        self.api.post(&self.at(end), body).await
    }

    async fn bet(&self, bet_ref: &str) -> Answer {
        self.post("/bets", json!({"betRef": bet_ref, "game": "dice"})).await
    }

    /// Starts a round of mines; gives its path.
    async fn mines(&self, bet_ref: &str, mines: u8) -> String {
        let body = json!({"betRef": bet_ref, "game": "mines", "params": {"mines": mines}, "conceal": true});
        let bet = self.post("/bets", body).await.expect(201);
        self.at(&format!("/rounds/{}/{}", self.commitment, bet["record"]["nonce"]))
    }

    async fn reserve(&self, bet_ref: &str) -> Answer {
        let rules = json!({"id": "crash-2", "sha256": "ab".repeat(32)});
        self.post("/nonces", json!({"betRef": bet_ref, "game": "x-crash", "rules": rules, "floats": 3})).await
    }

    async fn rotate(&self) -> Answer {
        self.post("/rotate", json!({})).await
    }
}
