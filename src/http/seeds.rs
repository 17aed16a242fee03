//! What ends a session's live seed: a change of the client seed, a rotation, closing the session.
//!
//! Keeps I7: a seed that had bets is in the answer, in clear, after the commit that revealed it.

use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Access, Engine};
use super::input::{Json, Nothing, Path, Query};
use super::openapi::problems;
use super::problem::Problem;
use super::sessions::SessionPath;
use super::wire::SessionId;
use super::{App, ok};
use crate::gfs::seed::{ClientSeed, Commitment};
use crate::seeds::model::SeedEnded;
use crate::seeds::{ClientSeedRequest, RotateRequest};

pub(super) fn endpoints() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(change_client_seed)).routes(routes!(rotate)).routes(routes!(close))
}

/// Another client seed.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct NewClientSeed {
    /// The live seed's commitment.
    commitment: Commitment,
    /// The client seed from now on.
    client_seed: ClientSeed,
}

problems!(ClientSeedProblems: ANY TOKEN BODY CHANGE; SessionNotFound, SessionClosed, NoNextSeed, CommitmentChanged, BetsPending);

/// Change the client seed
///
/// The next seed goes live with this text at nonce 0. The old one is revealed if it has bets, else discarded. The text that is there
/// already changes nothing.
#[utoipa::path(put, path = "/v1/sessions/{sessionId}/client-seed", tag = "sessions", operation_id = "changeClientSeed",
    security(("bearer" = ["engine"])), params(SessionPath), request_body = NewClientSeed,
    responses((status = 200, description = "Changed, now or before", body = SeedEnded), ClientSeedProblems))]
async fn change_client_seed(
    access: Access<Engine>,
    Path(path): Path<SessionPath>,
    Query(Nothing {}): Query<Nothing>,
    Json(body): Json<NewClientSeed>,
) -> Result<Response, Problem> {
    let SessionId(session_id) = path.session_id;
    let request = ClientSeedRequest { commitment: body.commitment, client_seed: body.client_seed };
    let ended =
        access.change(move |app| async move { app.seeds().change_client_seed(session_id, &request).await }).await?;
    Ok(ok(&ended))
}

/// A rotation.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct Rotation {
    /// The live seed's commitment.
    commitment: Commitment,
    /// The client seed from now on; the text stays when absent.
    client_seed: Option<ClientSeed>,
}

problems!(RotateProblems: ANY TOKEN BODY CHANGE; SessionNotFound, SessionClosed, NoNextSeed, CommitmentChanged, BetsPending, NothingToReveal);

/// Rotate: reveal the live seed
///
/// The next seed goes live at nonce 0, and another one is committed. The same request again gets the same reveal.
#[utoipa::path(post, path = "/v1/sessions/{sessionId}/rotate", tag = "sessions", operation_id = "rotateSeed",
    security(("bearer" = ["engine"])), params(SessionPath), request_body = Rotation,
    responses((status = 200, description = "Rotated, now or before", body = SeedEnded), RotateProblems))]
async fn rotate(
    access: Access<Engine>,
    Path(path): Path<SessionPath>,
    Query(Nothing {}): Query<Nothing>,
    Json(body): Json<Rotation>,
) -> Result<Response, Problem> {
    let SessionId(session_id) = path.session_id;
    let request = RotateRequest { commitment: body.commitment, client_seed: body.client_seed };
    let ended = access.change(move |app| async move { app.seeds().rotate(session_id, &request).await }).await?;
    Ok(ok(&ended))
}

/// The closing of a session.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct Closing {
    /// The live seed's commitment.
    commitment: Commitment,
}

problems!(CloseProblems: ANY TOKEN BODY CHANGE; SessionNotFound, SessionClosed, CommitmentChanged);

/// Close a session
///
/// Its rounds are closed as abandoned with their records stored, its reservations voided, its live seed revealed if it has bets, the
/// next one discarded.
#[utoipa::path(post, path = "/v1/sessions/{sessionId}/close", tag = "sessions", operation_id = "closeSession",
    security(("bearer" = ["engine"])), params(SessionPath), request_body = Closing,
    responses((status = 200, description = "Closed, now or before", body = SeedEnded), CloseProblems))]
async fn close(
    access: Access<Engine>,
    Path(path): Path<SessionPath>,
    Query(Nothing {}): Query<Nothing>,
    Json(body): Json<Closing>,
) -> Result<Response, Problem> {
    let SessionId(session_id) = path.session_id;
    let ended = access.change(move |app| async move { app.seeds().close(session_id, &body.commitment).await }).await?;
    Ok(ok(&ended))
}
