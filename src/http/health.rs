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
use crate::db::Datastore;
use crate::db::migrate::{self, MigrateError};

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
    async fn look(&self, store: &Datastore) -> Result<(), String> {
        let mut last = self.0.lock().await;
        if let Some((at, answer)) = last.as_ref()
            && at.elapsed() < CHECK_TTL
        {
            return answer.clone();
        }
        let answer = check(store).await;
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}

async fn check(store: &Datastore) -> Result<(), String> {
    match tokio::time::timeout(CHECK_TIMEOUT, migrate::check_served(store)).await {
        // A migration leaves the programs before it working, so that they serve until they are replaced.
        Ok(Ok(_) | Err(MigrateError::Newer { .. })) => Ok(()),
        Ok(Err(error @ (MigrateError::Pending { .. } | MigrateError::Diverged(_)))) => Err(error.to_string()),
        Ok(Err(error)) => {
            tracing::warn!(%error, "not ready: the database does not answer");
            Err("the database does not answer".to_owned())
        }
        Err(_) => Err("the database does not answer in time".to_owned()),
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
/// The database answers, lacks nothing that was acknowledged, its schema has all that this program needs, and the service is not
/// stopping.
#[utoipa::path(get, path = "/readyz", tag = "health",
    responses((status = 200, description = "They will", body = Health), ReadyProblems))]
async fn ready(State(app): State<App>) -> Result<Response, Problem> {
    if let Some(reason) = app.readiness().reason() {
        return Err(Problem::unavailable(reason));
    }
    if let Some(reason) = app.datastore().quarantine() {
        return Err(Problem::new(Code::Quarantined, format!("in quarantine: {reason}")));
    }
    app.inner.health.look(app.datastore()).await.map_err(Problem::unavailable)?;
    Ok(ok(&Health { status: "ready" }))
}
