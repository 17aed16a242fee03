//! Bets: taken and played at once, concealed as a round, or reserved for an outside game; what ends a reservation; settlements.
//!
//! Keeps I9: the answer leaves after the commit, and the same request again gets it again.

use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Access, Engine};
use super::input::{Json, Nothing, Path, Query};
use super::openapi::problems;
use super::problem::Problem;
use super::sessions::SessionPath;
use super::wire::{FreeForm, Integer, Json4KiB, Json16KiB, Nonce, SessionId};
use super::{App, created};
use crate::gfs::games::Play;
use crate::gfs::record::{OUTSIDE_FLOATS_MAX, Rules};
use crate::gfs::seed::Commitment;
use crate::seeds::model::{BetAnswer, Reservation};
use crate::seeds::values::{BetRef, Currency, Money, OutsideGame, SettlementOutcome, VoidReason};
use crate::seeds::{BetRequest, GameRequest, RecordRequest, ReservationRequest, SettlementRequest, VoidRequest, Wager};

pub(super) fn endpoints() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(take))
        .routes(routes!(reserve))
        .routes(routes!(record))
        .routes(routes!(void))
        .routes(routes!(settle))
}

/// A bet on a game of GFS/1.0.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct NewBet {
    /// The live seed's commitment.
    commitment: Commitment,
    /// The caller's own name for the bet, which makes the request repeatable.
    bet_ref: BetRef,
    /// dice, limbo, roulette, wheel, plinko, mines, keno, blackjack or hilo.
    game: String,
    /// The game's parameters; those that are absent take their defaults.
    #[schema(value_type = Option<Object>)]
    params: Option<Value>,
    /// Start a round: the result stays concealed until it is closed. No when absent.
    conceal: Option<bool>,
    /// The player's choice.
    selection: Option<Json4KiB>,
    /// Amount staked.
    stake: Option<Money>,
    /// Its currency.
    currency: Option<Currency>,
    /// Whatever else the engine binds.
    context: Option<Json4KiB>,
}

problems!(TakeProblems: ANY TOKEN BODY CHANGE; SessionNotFound, BetRefReused, SessionClosed, CommitmentChanged, NonceExhausted, TooManyPending);

/// Take a bet
///
/// Its nonce and all that it binds are stored in one transaction. The same `betRef` with the same content again gets the stored bet,
/// also after a rotation.
#[utoipa::path(post, path = "/v1/sessions/{sessionId}/bets", tag = "bets", operation_id = "takeBet",
    security(("bearer" = ["engine"])), params(SessionPath), request_body = NewBet,
    responses((status = 201, description = "Taken", body = BetAnswer),
              (status = 200, description = "Taken before", body = BetAnswer), TakeProblems))]
async fn take(
    access: Access<Engine>,
    Path(path): Path<SessionPath>,
    Query(Nothing {}): Query<Nothing>,
    Json(body): Json<NewBet>,
) -> Result<Response, Problem> {
    let SessionId(session_id) = path.session_id;
    let play = Play::new(&body.game, body.params.as_ref())?;
    let request = BetRequest {
        commitment: body.commitment,
        bet_ref: body.bet_ref,
        game: GameRequest { play, conceal: body.conceal.unwrap_or(false) },
        wager: wager(body.selection, body.stake, body.currency, body.context),
    };
    let bet = access.change(move |app| async move { app.seeds().take_bet(session_id, &request).await }).await?;
    Ok(created(bet.replayed, &bet))
}

fn wager(
    selection: Option<Json4KiB>,
    stake: Option<Money>,
    currency: Option<Currency>,
    context: Option<Json4KiB>,
) -> Wager {
    let bare = |json: Option<Json4KiB>| json.map(|FreeForm(json)| json);
    Wager { selection: bare(selection), stake, currency, context: bare(context) }
}

/// The rules of an outside game.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct BoundRules {
    /// Their name.
    #[schema(pattern = "^[A-Za-z0-9._:-]{1,64}$")]
    id: String,
    /// SHA-256 of their text.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    sha256: String,
}

impl BoundRules {
    fn checked(&self) -> Result<Rules, Problem> {
        // A hash has the form of a commitment.
        let sha256: Commitment = self
            .sha256
            .parse()
            .map_err(|_| Problem::invalid("rules.sha256", "must be exactly 64 lower-case hexadecimal characters"))?;
        Rules::new(&self.id, *sha256.as_bytes()).map_err(|error| Problem::invalid("rules.id", error))
    }
}

/// A nonce for an outside game.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct NewReservation {
    /// The live seed's commitment.
    commitment: Commitment,
    /// The caller's own name for the bet, which makes the request repeatable.
    bet_ref: BetRef,
    /// The game.
    game: OutsideGame,
    /// Its parameters; none when absent.
    #[schema(value_type = Option<Object>)]
    params: Option<Map<String, Value>>,
    /// The rules that turn floats into its result.
    rules: BoundRules,
    /// How many floats it takes.
    floats: Integer<1, { OUTSIDE_FLOATS_MAX as u64 }>,
    /// The player's choice.
    selection: Option<Json4KiB>,
    /// Amount staked.
    stake: Option<Money>,
    /// Its currency.
    currency: Option<Currency>,
    /// Whatever else the engine binds.
    context: Option<Json4KiB>,
}

/// Reserve a nonce for an outside game
///
/// All that the bet depends on is bound before its floats are shown. The same `betRef` with the same content again gets the same
/// floats. A reservation that is not recorded in time is void.
#[utoipa::path(post, path = "/v1/sessions/{sessionId}/nonces", tag = "bets", operation_id = "reserveNonce",
    security(("bearer" = ["engine"])), params(SessionPath), request_body = NewReservation,
    responses((status = 201, description = "Reserved", body = Reservation),
              (status = 200, description = "Reserved before", body = Reservation), TakeProblems))]
async fn reserve(
    access: Access<Engine>,
    Path(path): Path<SessionPath>,
    Query(Nothing {}): Query<Nothing>,
    Json(body): Json<NewReservation>,
) -> Result<Response, Problem> {
    let SessionId(session_id) = path.session_id;
    let Integer(floats) = body.floats;
    let request = ReservationRequest {
        commitment: body.commitment,
        bet_ref: body.bet_ref,
        game: body.game,
        params: body.params.unwrap_or_default(),
        rules: body.rules.checked()?,
        // At most 1,024 by its type; a wrong number would be refused by the check below.
        floats: u32::try_from(floats).unwrap_or(0),
        wager: wager(body.selection, body.stake, body.currency, body.context),
    };
    request.validate()?;
    let reserved = access.change(move |app| async move { app.seeds().reserve(session_id, &request).await }).await?;
    Ok(created(reserved.replayed, &reserved))
}

/// The result of a reservation.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct NewRecord {
    /// The seed's commitment.
    commitment: Commitment,
    /// The reserved nonce.
    nonce: Nonce,
    /// What the outside game came to; not null.
    result: Json16KiB,
}

problems!(RecordProblems: ANY TOKEN BODY CHANGE; SessionNotFound, NonceNotReserved, RecordExistsWithDifferentContent, Void);

/// Record the result of a reservation
#[utoipa::path(post, path = "/v1/sessions/{sessionId}/records", tag = "bets", operation_id = "recordResult",
    security(("bearer" = ["engine"])), params(SessionPath), request_body = NewRecord,
    responses((status = 201, description = "Recorded", body = BetAnswer),
              (status = 200, description = "Recorded before", body = BetAnswer), RecordProblems))]
async fn record(
    access: Access<Engine>,
    Path(path): Path<SessionPath>,
    Query(Nothing {}): Query<Nothing>,
    Json(body): Json<NewRecord>,
) -> Result<Response, Problem> {
    let SessionId(session_id) = path.session_id;
    let (Integer(nonce), FreeForm(result)) = (body.nonce, body.result);
    if result.value().is_null() {
        // A verifier takes a record with a null result for one without.
        return Err(Problem::invalid("result", "must not be null"));
    }
    let request = RecordRequest { commitment: body.commitment, nonce, result };
    let bet = access.change(move |app| async move { app.seeds().record(session_id, &request).await }).await?;
    Ok(created(bet.replayed, &bet))
}

/// The void of a pending bet.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct NewVoid {
    /// The seed's commitment.
    commitment: Commitment,
    /// The bet's nonce.
    nonce: Nonce,
    /// Why.
    reason: VoidReason,
}

problems!(VoidProblems: ANY TOKEN BODY CHANGE; SessionNotFound, BetNotFound, AlreadyRecorded, VoidWithDifferentReason, RoundLost);

/// Void a pending bet
///
/// A round or a reservation. Its nonce stays consumed.
#[utoipa::path(post, path = "/v1/sessions/{sessionId}/voids", tag = "bets", operation_id = "voidBet",
    security(("bearer" = ["engine"])), params(SessionPath), request_body = NewVoid,
    responses((status = 201, description = "Void", body = BetAnswer),
              (status = 200, description = "Void before", body = BetAnswer), VoidProblems))]
async fn void(
    access: Access<Engine>,
    Path(path): Path<SessionPath>,
    Query(Nothing {}): Query<Nothing>,
    Json(body): Json<NewVoid>,
) -> Result<Response, Problem> {
    let SessionId(session_id) = path.session_id;
    let Integer(nonce) = body.nonce;
    let request = VoidRequest { commitment: body.commitment, nonce, reason: body.reason };
    let bet = access.change(move |app| async move { app.seeds().void(session_id, &request).await }).await?;
    Ok(created(bet.replayed, &bet))
}

/// What was paid for a recorded bet, and what the player was shown.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct NewSettlement {
    /// The seed's commitment.
    commitment: Commitment,
    /// The bet's nonce.
    nonce: Nonce,
    /// Amount paid.
    payout: Money,
    /// The engine's word for it.
    outcome: Option<SettlementOutcome>,
    /// What the player was shown.
    displayed: Option<Json4KiB>,
    /// The rules or pay table applied.
    rules: Option<Json4KiB>,
}

problems!(SettleProblems: ANY TOKEN BODY CHANGE; SessionNotFound, BetNotFound, NotRecorded, SettledWithDifferentContent);

/// Settle a recorded bet
#[utoipa::path(post, path = "/v1/sessions/{sessionId}/settlements", tag = "bets", operation_id = "settleBet",
    security(("bearer" = ["engine"])), params(SessionPath), request_body = NewSettlement,
    responses((status = 201, description = "Settled", body = BetAnswer),
              (status = 200, description = "Settled before", body = BetAnswer), SettleProblems))]
async fn settle(
    access: Access<Engine>,
    Path(path): Path<SessionPath>,
    Query(Nothing {}): Query<Nothing>,
    Json(body): Json<NewSettlement>,
) -> Result<Response, Problem> {
    let SessionId(session_id) = path.session_id;
    let Integer(nonce) = body.nonce;
    let request = SettlementRequest {
        commitment: body.commitment,
        nonce,
        payout: body.payout,
        outcome: body.outcome,
        displayed: body.displayed.map(|FreeForm(json)| json),
        rules: body.rules.map(|FreeForm(json)| json),
    };
    let bet = access.change(move |app| async move { app.seeds().settle(session_id, &request).await }).await?;
    Ok(created(bet.replayed, &bet))
}
