//! Sessions: creating and looking at them.
//!
//! Keeps I5: a view leaves after the commit of what it tells.

use axum::response::Response;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Access, Engine};
use super::input::{Json, Nothing, Path, Query};
use super::openapi::problems;
use super::problem::Problem;
use super::wire::{ClientAddress, Digits, SessionId};
use super::{App, created, ok};
use crate::seeds::model::{BetPage, SeedList, SessionCreated, SessionPage, View};
use crate::seeds::values::PlayerRef;
use crate::seeds::{PAGE_DEFAULT, PAGE_MAX, SessionRequest};

pub(super) fn endpoints() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(view))
        .routes(routes!(seeds_of_session))
        .routes(routes!(records_of_session))
}

/// How many rows a page has when its query does not say.
pub(super) type Limit = Digits<1, { PAGE_MAX as u64 }>;

pub(super) fn limit(given: Option<Limit>) -> u32 {
    // Never beyond PAGE_MAX, which is a u32.
    given.and_then(|Digits(limit)| u32::try_from(limit).ok()).unwrap_or(PAGE_DEFAULT)
}

/// The session of a path.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Path)]
pub(super) struct SessionPath {
    /// The session's id.
    #[param(value_type = SessionId, inline)]
    pub(super) session_id: SessionId,
}

/// A new session.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct NewSession {
    /// Its id, which makes the request repeatable; made by the service when absent.
    session_id: Option<SessionId>,
    /// Where the player comes from; sessions of one address are capped.
    client_address: Option<ClientAddress>,
    /// The operator's own name for the player.
    player_ref: Option<PlayerRef>,
}

problems!(CreateProblems: ANY TOKEN BODY CHANGE; SessionExistsWithDifferentContent, TooManySessions);

/// Create a session
///
/// With a live seed, a random client seed, and the next seed committed already. The same `sessionId` and `playerRef` again get the
/// session as it is.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", operation_id = "createSession", security(("bearer" = ["engine"])),
    request_body = NewSession,
    responses((status = 201, description = "Created", body = SessionCreated),
              (status = 200, description = "Created before", body = SessionCreated), CreateProblems))]
async fn create(
    access: Access<Engine>,
    Query(Nothing {}): Query<Nothing>,
    Json(body): Json<NewSession>,
) -> Result<Response, Problem> {
    let request = SessionRequest {
        session_id: body.session_id.map(|SessionId(id)| id),
        client_address: body.client_address.map(|ClientAddress(address)| address),
        player_ref: body.player_ref,
    };
    let session = access.change(|app| async move { app.seeds().create_session(&request).await }).await?;
    Ok(created(session.replayed, &session))
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// The operator's own name for the player.
    #[param(value_type = PlayerRef, inline)]
    player_ref: PlayerRef,
    /// `nextAfter` of the page before.
    #[param(value_type = Option<SessionId>, inline)]
    after: Option<SessionId>,
    /// Sessions on the page at the most; 50 when absent.
    #[param(value_type = Option<Limit>, inline)]
    limit: Option<Limit>,
}

problems!(ListProblems: ANY TOKEN);

/// Sessions of a player, by id
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", operation_id = "listSessions", security(("bearer" = ["engine"])),
    params(ListQuery), responses((status = 200, description = "A page", body = SessionPage), ListProblems))]
async fn list(access: Access<Engine>, Query(query): Query<ListQuery>) -> Result<Response, Problem> {
    let after = query.after.map(|SessionId(id)| id);
    let limit = limit(query.limit);
    let player_ref = query.player_ref;
    let page =
        access.read(|app| async move { app.seeds().sessions_of_player(&player_ref, after, limit).await }).await?;
    Ok(ok(&page))
}

problems!(ViewProblems: ANY TOKEN; SessionNotFound);

/// Look at a session
///
/// Counts as use: idle sessions are closed after a time.
#[utoipa::path(get, path = "/v1/sessions/{sessionId}", tag = "sessions", operation_id = "getSession",
    security(("bearer" = ["engine"])), params(SessionPath),
    responses((status = 200, description = "As it is", body = View), ViewProblems))]
async fn view(
    access: Access<Engine>,
    Path(path): Path<SessionPath>,
    Query(Nothing {}): Query<Nothing>,
) -> Result<Response, Problem> {
    let SessionId(session_id) = path.session_id;
    let view = access.read(|app| async move { app.seeds().view(session_id).await }).await?;
    Ok(ok(&view))
}

/// Every seed of a session
///
/// Oldest first, the next one included; in clear once revealed.
#[utoipa::path(get, path = "/v1/sessions/{sessionId}/seeds", tag = "sessions", operation_id = "listSeeds",
    security(("bearer" = ["engine"])), params(SessionPath),
    responses((status = 200, description = "The seeds", body = SeedList), ViewProblems))]
async fn seeds_of_session(
    access: Access<Engine>,
    Path(path): Path<SessionPath>,
    Query(Nothing {}): Query<Nothing>,
) -> Result<Response, Problem> {
    let SessionId(session_id) = path.session_id;
    let seeds = access.read(|app| async move { app.seeds().seeds_of_session(session_id).await }).await?;
    Ok(ok(&seeds))
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RecordsQuery {
    /// `nextAfter` of the page before.
    after: Option<String>,
    /// Bets on the page at the most; 50 when absent.
    #[param(value_type = Option<Limit>, inline)]
    limit: Option<Limit>,
}

/// Bets of a session, newest first
///
/// Voids and pending ones too.
#[utoipa::path(get, path = "/v1/sessions/{sessionId}/records", tag = "sessions", operation_id = "listSessionRecords",
    security(("bearer" = ["engine"])), params(SessionPath, RecordsQuery),
    responses((status = 200, description = "A page", body = BetPage), ViewProblems))]
async fn records_of_session(
    access: Access<Engine>,
    Path(path): Path<SessionPath>,
    Query(query): Query<RecordsQuery>,
) -> Result<Response, Problem> {
    let SessionId(session_id) = path.session_id;
    let limit = limit(query.limit);
    let after = query.after;
    let page = access
        .read(|app| async move { app.seeds().bets_of_session(session_id, after.as_deref(), limit).await })
        .await?;
    Ok(ok(&page))
}
