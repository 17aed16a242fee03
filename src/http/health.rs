//! Whether the process lives, and whether it will serve.

use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use tokio::sync::Mutex;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::openapi::problems;
use super::problem::{Code, Problem};
use super::{App, ok};
use crate::db::migrate::{self, MigrateError};
use crate::seeds::Seeds;

/// How long the database may take to answer.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// How long an answer of the database counts. The endpoint is public: it must not be a way to make the database work.
const CHECK_TTL: Duration = Duration::from_secs(1);

pub(super) fn endpoints() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(alive)).routes(routes!(ready))
}

/// How the service is.
#[derive(Serialize, ToSchema)]
struct Health {
    /// `alive` or `ready`.
    status: &'static str,
}

/// What the database last answered, and when. Locked while it is asked, so that one asks for all.
#[derive(Default)]
pub(super) struct Checked(Mutex<Option<(Instant, Result<(), String>)>>);

impl Checked {
    async fn look(&self, seeds: &Seeds) -> Result<(), String> {
        let mut last = self.0.lock().await;
        if let Some((at, answer)) = last.as_ref()
            && at.elapsed() < CHECK_TTL
        {
            return answer.clone();
        }
        let answer = check(seeds).await;
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}

async fn check(seeds: &Seeds) -> Result<(), String> {
    match tokio::time::timeout(CHECK_TIMEOUT, check_all(seeds)).await {
        Ok(checked) => checked,
        Err(_) => Err("the database does not answer in time".to_owned()),
    }
}

async fn check_all(seeds: &Seeds) -> Result<(), String> {
    let silent = |error: &dyn std::fmt::Display| {
        tracing::warn!(%error, "not ready: the database does not answer");
        "the database does not answer".to_owned()
    };
    match migrate::check_served(seeds.datastore()).await {
        // A migration leaves the programs before it working, so that they serve until they are replaced.
        Ok(_) | Err(MigrateError::Newer { .. }) => {}
        Err(error @ (MigrateError::Pending { .. } | MigrateError::Diverged(_))) => return Err(error.to_string()),
        Err(error) => return Err(silent(&error)),
    }
    match seeds.missing_key().await {
        Ok(None) => Ok(()),
        Ok(Some(key_id)) => Err(format!(
            "seeds are sealed under the key {key_id:?}, which this service does not have: add it to its seed keys and restart it"
        )),
        Err(error) => Err(silent(&error)),
    }
}

problems!(AliveProblems:);

/// Whether the process lives
///
/// Says nothing of the database: a process is not restarted because its database is away.
#[utoipa::path(get, path = "/healthz", tag = "health",
    responses((status = 200, description = "It lives", body = Health), AliveProblems))]
async fn alive() -> Response {
    ok(&Health { status: "alive" })
}

problems!(ReadyProblems:; Quarantined, Unavailable);

/// Whether requests will be served
///
/// The database answers, lacks nothing that was acknowledged, its schema has all that this program needs, the service has the key of every
/// seed, and it is not stopping.
#[utoipa::path(get, path = "/readyz", tag = "health",
    responses((status = 200, description = "They will", body = Health), ReadyProblems))]
async fn ready(State(app): State<App>) -> Result<Response, Problem> {
    if let Some(reason) = app.readiness().reason() {
        return Err(Problem::unavailable(reason));
    }
    if let Some(reason) = app.datastore().quarantine() {
        return Err(Problem::new(Code::Quarantined, format!("in quarantine: {reason}")));
    }
    app.inner.health.look(app.seeds()).await.map_err(Problem::unavailable)?;
    Ok(ok(&Health { status: "ready" }))
}
