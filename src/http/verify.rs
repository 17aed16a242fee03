//! Checking records and calculating results, for anyone. Touches no database.
//!
//! Keeps I12: sizes and depths are bounded before anything is calculated.

use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Access, Public};
use super::input::{Json, JsonBytes, Nothing, Query};
use super::openapi::problems;
use super::problem::Problem;
use super::wire::{GivenServerSeed, Integer, Nonce};
use super::{App, ok};
use crate::gfs::floats::SeedPair;
use crate::gfs::games::Play;
use crate::gfs::inspect::{Inspection, inspect};
use crate::gfs::seed::{ClientSeed, Commitment};

pub(super) fn endpoints() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(verify)).routes(routes!(play))
}

problems!(VerifyProblems: ANY BODY; InvalidRecord);

/// Inspect a record
///
/// A GFS/1.0 record, a bet answer of this API, or a crash result. What is out of form is `invalid_record` and names the field; a
/// mismatch means that the calculation disagrees.
#[utoipa::path(post, path = "/v1/verify", tag = "public", operation_id = "verifyRecord",
    request_body(content = Object, description = "The record"),
    responses((status = 200, description = "What it proves, check by check", body = Inspection), VerifyProblems))]
async fn verify(
    _access: Access<Public>,
    Query(Nothing {}): Query<Nothing>,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Problem> {
    Ok(ok(&inspect(&body)?))
}

/// What to calculate.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct PlayRequest {
    /// dice, limbo, roulette, wheel, plinko, mines, keno, blackjack or hilo.
    game: String,
    /// The game's parameters; those that are absent take their defaults.
    #[schema(value_type = Option<Object>)]
    params: Option<Value>,
    /// The server seed.
    server_seed: GivenServerSeed,
    /// The client seed.
    client_seed: ClientSeed,
    /// The nonce.
    nonce: Nonce,
}

/// What comes of it.
#[derive(Serialize, ToSchema)]
struct Played {
    /// The result, as a record has it.
    result: Value,
    /// The highest digest index used.
    cursor: u32,
    /// The server seed's commitment.
    commitment: Commitment,
}

problems!(PlayProblems: ANY BODY);

/// Calculate a result
#[utoipa::path(post, path = "/v1/verify/play", tag = "public", operation_id = "calculateResult",
    request_body = PlayRequest,
    responses((status = 200, description = "The result", body = Played), PlayProblems))]
async fn play(
    _access: Access<Public>,
    Query(Nothing {}): Query<Nothing>,
    Json(body): Json<PlayRequest>,
) -> Result<Response, Problem> {
    let play = Play::new(&body.game, body.params.as_ref())?;
    let (GivenServerSeed(server_seed), Integer(nonce)) = (body.server_seed, body.nonce);
    let pair = SeedPair::new(&server_seed, &body.client_seed);
    let result = play.result(&pair, nonce).to_json();
    Ok(ok(&Played { result, cursor: play.cursor(), commitment: server_seed.commitment() }))
}
