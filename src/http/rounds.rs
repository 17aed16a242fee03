//! Rounds: bets whose result is concealed while the player decides.
//!
//! Keeps I11: an answer shows of the result what steps have disclosed, and nothing else until the round is closed.

use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::auth::{Access, Engine};
use super::input::{Json, Nothing, Path, Query};
use super::openapi::problems;
use super::problem::Problem;
use super::wire::{FreeForm, Integer, Json4KiB, NonceDigits, SessionId};
use super::{App, created, ok};
use crate::gfs::seed::Commitment;
use crate::seeds::model::RoundAnswer;
use crate::seeds::values::VoidReason;
use crate::seeds::{CloseOutcome, CloseRequest, Disclose, StepRequest};

pub(super) fn endpoints() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(look)).routes(routes!(step)).routes(routes!(close))
}

/// The round of a path.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Path)]
struct RoundPath {
    /// The session's id.
    #[param(value_type = SessionId, inline)]
    session_id: SessionId,
    /// The seed's commitment.
    #[param(value_type = Commitment, inline)]
    commitment: Commitment,
    /// The bet's nonce.
    #[param(value_type = NonceDigits, inline)]
    nonce: NonceDigits,
}

impl RoundPath {
    fn parts(&self) -> (Uuid, Commitment, u64) {
        (self.session_id.0, self.commitment, self.nonce.0)
    }
}

problems!(LookProblems: ANY TOKEN; SessionNotFound, RoundNotFound);

/// Look at a round
#[utoipa::path(get, path = "/v1/sessions/{sessionId}/rounds/{commitment}/{nonce}", tag = "rounds", operation_id = "getRound",
    security(("bearer" = ["engine"])), params(RoundPath),
    responses((status = 200, description = "As it is", body = RoundAnswer), LookProblems))]
async fn look(
    access: Access<Engine>,
    Path(path): Path<RoundPath>,
    Query(Nothing {}): Query<Nothing>,
) -> Result<Response, Problem> {
    let (session_id, commitment, nonce) = path.parts();
    let round = access.read(|app| async move { app.seeds().round(session_id, &commitment, nonce).await }).await?;
    Ok(ok(&round))
}

/// What a step asks to be shown.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what Disclose::parse reads")]
enum Disclosure {
    /// Mines: whether these tiles, 0 to 24, are mines.
    #[schema(rename = "tiles")]
    Tiles(Vec<u8>),
    /// Blackjack and hilo: so many further cards.
    #[schema(rename = "cards")]
    Cards(u32),
}

/// A step of a round.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct NewStep {
    /// The round's `nextIndex`; the index of an earlier step repeats it.
    index: Integer<0, { u32::MAX as u64 }>,
    /// The engine's own description.
    step: Json4KiB,
    /// What to show of the result; nothing when absent.
    #[schema(value_type = Option<Disclosure>)]
    disclose: Option<Value>,
}

problems!(StepProblems: ANY TOKEN BODY CHANGE; SessionNotFound, RoundNotFound, StepConflict, RoundClosed, RoundLost, TooManySteps);

/// Add a step to a round
///
/// It is stored before what it discloses is answered, in `disclosed` of that step. After a mine the round can only be closed as lost.
#[utoipa::path(post, path = "/v1/sessions/{sessionId}/rounds/{commitment}/{nonce}/steps", tag = "rounds",
    operation_id = "addStep", security(("bearer" = ["engine"])), params(RoundPath), request_body = NewStep,
    responses((status = 201, description = "Added", body = RoundAnswer),
              (status = 200, description = "Added before", body = RoundAnswer), StepProblems))]
async fn step(
    access: Access<Engine>,
    Path(path): Path<RoundPath>,
    Query(Nothing {}): Query<Nothing>,
    Json(body): Json<NewStep>,
) -> Result<Response, Problem> {
    let (session_id, commitment, nonce) = path.parts();
    let (Integer(index), FreeForm(step)) = (body.index, body.step);
    let request = StepRequest {
        index: u32::try_from(index).map_err(|_| Problem::invalid("index", "is too high"))?,
        step,
        disclose: body.disclose.as_ref().map(Disclose::parse).transpose()?,
    };
    let round = access
        .change(move |app| async move { app.seeds().step(session_id, &commitment, nonce, &request).await })
        .await?;
    Ok(created(round.replayed, &round))
}

/// How a round ends.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Ending {
    /// The player took the winnings.
    Cashout,
    /// The player lost.
    Lost,
    /// The player gave up.
    Forfeit,
    /// The round does not count.
    Void,
}

/// The close of a round.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct RoundClose {
    /// How.
    outcome: Ending,
    /// Why it is void; with outcome void, and only then.
    reason: Option<VoidReason>,
}

problems!(CloseProblems: ANY TOKEN BODY CHANGE; SessionNotFound, RoundNotFound, RoundClosed, RoundLost);

/// Close a round
///
/// Stores its record, or its void, and answers it.
#[utoipa::path(post, path = "/v1/sessions/{sessionId}/rounds/{commitment}/{nonce}/close", tag = "rounds",
    operation_id = "closeRound", security(("bearer" = ["engine"])), params(RoundPath), request_body = RoundClose,
    responses((status = 201, description = "Closed", body = RoundAnswer),
              (status = 200, description = "Closed before", body = RoundAnswer), CloseProblems))]
async fn close(
    access: Access<Engine>,
    Path(path): Path<RoundPath>,
    Query(Nothing {}): Query<Nothing>,
    Json(body): Json<RoundClose>,
) -> Result<Response, Problem> {
    let (session_id, commitment, nonce) = path.parts();
    let outcome = match (body.outcome, body.reason) {
        (Ending::Void, Some(reason)) => CloseOutcome::Void(reason),
        (Ending::Void, None) => return Err(Problem::invalid("reason", "is required for a void")),
        (_, Some(_)) => return Err(Problem::invalid("reason", "is for a void only")),
        (Ending::Cashout, None) => CloseOutcome::Cashout,
        (Ending::Lost, None) => CloseOutcome::Lost,
        (Ending::Forfeit, None) => CloseOutcome::Forfeit,
    };
    let request = CloseRequest { outcome };
    let round = access
        .change(move |app| async move { app.seeds().close_round(session_id, &commitment, nonce, &request).await })
        .await?;
    Ok(created(round.replayed, &round))
}
