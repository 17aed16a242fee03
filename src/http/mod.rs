//! The HTTP API: strict requests in, answers and RFC 9457 problems out.
//!
//! Keeps I6 (nothing but what the services call revealed is written into an answer or a log line), I9 (a change runs to its end whether
//! or not its caller waits; an answer that was lost is called unknown) and I12 (every request is bounded in size, time and number).
//!
//! | file | holds |
//! |---|---|
//! | `tokens`, `sessions`, `seeds`, `bets`, `rounds`, `records`, `evidence`, `verify`, `public`, `health` | the endpoints, by subject |
//! | `auth` | tokens, scopes, and how many requests may be under way |
//! | `guesses` | who guesses tokens |
//! | `input`, `wire` | what a request brings, read into checked values |
//! | `problem` | every refusal and fault as an answer |
//! | `message` | what HTTP demands of a request as a whole |
//! | `observe` | request ids, log lines, panics |
//! | `openapi`, `schema` | the description of all this, made from it |
//! | `metrics` | what Prometheus reads, on an address of its own |
//! | `serve`, `tls` | connections |

pub mod auth;
mod bets;
mod evidence;
mod guesses;
mod health;
mod input;
mod message;
pub mod metrics;
mod observe;
mod openapi;
pub mod problem;
mod public;
mod records;
mod rounds;
mod schema;
mod seeds;
mod serve;
mod sessions;
pub mod tls;
mod tokens;
mod verify;
mod wire;

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use ipnet::IpNet;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

pub use openapi::openapi;
pub use serve::{serve, serve_with};

use self::auth::TokenCache;
use self::guesses::Guesses;
use self::problem::{Code, Problem};
use crate::db::{Datastore, Reader};
use crate::history::{History, HistorySettings};
use crate::ledger::SpendLedger;
use crate::seeds::Seeds;

/// Bounds and times of the HTTP API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSettings {
    /// The longest body, in bytes.
    pub body_bytes_max: usize,
    /// The longest body of a batch, in bytes.
    pub batch_bytes_max: usize,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// How long a caller waits for an answer. A change that takes longer goes on, and is answered `outcome_unknown`.
    pub request_timeout: Duration,
    /// How long a request's headers may take to arrive, and how long a connection may be idle.
    pub header_timeout: Duration,
    /// Connections at the most; further ones wait to be accepted.
    pub connections_max: usize,
    /// Requests with a token under way at the most; further ones are answered `overloaded`.
    pub requests_max: usize,
    /// Public requests under way at the most; and, counted apart, requests whose token was never seen and is being looked up. Bounds of
    /// their own, so that strangers cannot take the places of callers with a token.
    pub public_requests_max: usize,
    /// How long a valid token is remembered: a revoked one may work for so long.
    pub token_ttl: Duration,
    /// Unknown tokens from one address within half a minute to a minute at the most; then its tokens are not looked up for as long, those
    /// apart that were valid not long ago.
    pub failures_per_address_max: u32,
    /// Proxies whose word on whom they forward (`X-Forwarded-For`) counts.
    pub trusted_proxies: Vec<IpNet>,
    /// How long requests under way may take to end once the service is told to stop.
    pub shutdown_timeout: Duration,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            body_bytes_max: 64 * 1024,
            batch_bytes_max: 256 * 1024,
            body_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            header_timeout: Duration::from_secs(30),
            connections_max: 4_096,
            requests_max: 1_024,
            public_requests_max: 256,
            token_ttl: Duration::from_secs(5),
            failures_per_address_max: 100,
            trusted_proxies: Vec::new(),
            shutdown_timeout: Duration::from_secs(20),
        }
    }
}

/// Whether requests will be served, as far as the service itself knows. Cheap to clone; `/readyz` looks at the database besides.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<RwLock<Option<String>>>);

impl Readiness {
    /// Requests will be served.
    pub fn ready(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Requests will not be served, with the reason that `/readyz` gives.
    pub fn not_ready(&self, reason: impl Into<String>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(reason.into());
    }

    fn reason(&self) -> Option<String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What the endpoints work on. Cheap to clone.
#[derive(Clone)]
pub struct App {
    inner: Arc<Inner>,
}

struct Inner {
    seeds: Seeds,
    ledger: Arc<dyn SpendLedger>,
    history: History,
    settings: HttpSettings,
    readiness: Readiness,
    health: health::Checked,
    tokens: TokenCache,
    guesses: Guesses,
    places: Arc<Semaphore>,
    public_places: Arc<Semaphore>,
    stranger_places: Arc<Semaphore>,
    changes: TaskTracker,
    metrics: Arc<metrics::Metrics>,
}

impl App {
    /// Over started services; ready from the beginning. History is read in the services' own database.
    #[must_use]
    pub fn new(seeds: Seeds, ledger: impl SpendLedger + 'static, settings: HttpSettings) -> Self {
        let reader = Reader::from(seeds.datastore());
        let history = History::new(reader, seeds.secret().clone(), HistorySettings::default());
        Self::with_history(seeds, ledger, history, settings)
    }

    /// The same, with history from elsewhere.
    #[must_use]
    pub fn with_history(
        seeds: Seeds,
        ledger: impl SpendLedger + 'static,
        history: History,
        settings: HttpSettings,
    ) -> Self {
        let inner = Inner {
            seeds,
            ledger: Arc::new(ledger),
            history,
            readiness: Readiness::default(),
            health: health::Checked::default(),
            tokens: TokenCache::new(settings.token_ttl),
            guesses: Guesses::new(settings.failures_per_address_max),
            places: Arc::new(Semaphore::new(settings.requests_max)),
            public_places: Arc::new(Semaphore::new(settings.public_requests_max)),
            stranger_places: Arc::new(Semaphore::new(settings.public_requests_max)),
            changes: TaskTracker::new(),
            metrics: Arc::new(metrics::Metrics::new()),
            settings,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Sessions, seeds and bets.
    #[must_use]
    pub fn seeds(&self) -> &Seeds {
        &self.inner.seeds
    }

    /// Single-use tokens.
    #[must_use]
    pub fn ledger(&self) -> &dyn SpendLedger {
        &*self.inner.ledger
    }

    /// The whole history, read-only.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.inner.history
    }

    /// The datastore beneath.
    #[must_use]
    pub fn datastore(&self) -> &Datastore {
        self.inner.seeds.datastore()
    }

    /// Bounds and times in force.
    #[must_use]
    pub fn settings(&self) -> &HttpSettings {
        &self.inner.settings
    }

    /// The switch behind `/readyz`.
    #[must_use]
    pub fn readiness(&self) -> &Readiness {
        &self.inner.readiness
    }

    /// What is counted while it serves.
    #[must_use]
    pub fn metrics(&self) -> &Arc<metrics::Metrics> {
        &self.inner.metrics
    }

    /// Waits until no change is under way, those included whose callers went away.
    pub async fn changes_ended(&self) {
        self.inner.changes.close();
        self.inner.changes.wait().await;
        self.inner.changes.reopen();
    }
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("settings", &self.inner.settings).finish_non_exhaustive()
    }
}

/// Every endpoint over an app.
pub fn router(app: App) -> Router {
    let (router, _) = openapi::endpoints().split_for_parts();
    router
        .fallback(async || Problem::new(Code::NotFound, "no endpoint has this path"))
        .method_not_allowed_fallback(async || {
            Problem::new(Code::MethodNotAllowed, "the path has no such method: the header Allow names those it has")
        })
        .layer(axum::middleware::from_fn_with_state(Arc::clone(app.metrics()), observe::observe))
        .with_state(app)
}

/// An answer in JSON.
fn answer(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(body) => (status, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => {
            tracing::error!(%error, "an answer cannot be written");
            Problem::internal().into_response()
        }
    }
}

/// 200.
fn ok(body: &impl Serialize) -> Response {
    answer(StatusCode::OK, body)
}

/// 201 for the first answer to a change that creates, 200 for each later one.
fn created(replayed: bool, body: &impl Serialize) -> Response {
    answer(if replayed { StatusCode::OK } else { StatusCode::CREATED }, body)
}
