//! The whole history, for dispute teams: queries by any filter, single bets.
//!
//! Keeps I12: a page looks at so many rows at the most, and says where to go on.

use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Access, Dispute};
use super::input::{Nothing, Path, Query};
use super::openapi::problems;
use super::problem::Problem;
use super::sessions::{Limit, limit};
use super::wire::{Digits, GivenTime, NonceDigits, SessionId};
use super::{App, ok};
use crate::gfs::seed::Commitment;
use crate::history::model::{RecordFound, RecordPage};
use crate::history::{Filters, PageRequest};
use crate::seeds::model::BetStatus;
use crate::seeds::values::{BetRef, GameName, PlayerRef, Timestamp};

pub(super) fn endpoints() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(record))
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// Bets of this session.
    #[param(value_type = Option<SessionId>, inline)]
    session_id: Option<SessionId>,
    /// Bets under this seed.
    #[param(value_type = Option<Commitment>, inline)]
    commitment: Option<Commitment>,
    /// The bet with this nonce; only with `commitment`.
    #[param(value_type = Option<NonceDigits>, inline)]
    nonce: Option<NonceDigits>,
    /// Bets on this game.
    #[param(value_type = Option<GameName>, inline)]
    game: Option<GameName>,
    /// Bets of all sessions of this player.
    #[param(value_type = Option<PlayerRef>, inline)]
    player_ref: Option<PlayerRef>,
    /// Bets of this reference, in any session.
    #[param(value_type = Option<BetRef>, inline)]
    bet_ref: Option<BetRef>,
    /// Bets taken at this time or later.
    #[param(value_type = Option<GivenTime>, inline)]
    from: Option<GivenTime>,
    /// Bets taken before this time.
    #[param(value_type = Option<GivenTime>, inline)]
    to: Option<GivenTime>,
    /// Bets in this state when the page is read. A reservation past its time is void.
    #[param(value_type = Option<BetStatus>, inline)]
    status: Option<BetStatus>,
    /// `nextAfter` of the page before, with the same filters.
    after: Option<String>,
    /// Bets on the page at the most; 50 when absent.
    #[param(value_type = Option<Limit>, inline)]
    limit: Option<Limit>,
}

impl ListQuery {
    fn into_request(self) -> PageRequest {
        let time = |time: Option<GivenTime>| time.map(|GivenTime(time)| Timestamp(time));
        let filters = Filters {
            session_id: self.session_id.map(|SessionId(id)| id),
            player_ref: self.player_ref,
            commitment: self.commitment,
            nonce: self.nonce.map(|Digits(nonce)| nonce),
            bet_ref: self.bet_ref,
            game: self.game,
            status: self.status,
            from: time(self.from),
            to: time(self.to),
        };
        PageRequest { filters, after: self.after, limit: limit(self.limit) }
    }
}

problems!(ListProblems: ANY TOKEN);

/// Bets by any filters
///
/// In one of two orders. With `sessionId`, `playerRef`, `commitment` or `betRef`: by session id, then seed, then nonce, the highest
/// first. Otherwise: by the time they were taken, then by place, the newest first. A page has every bet that fits and was taken before
/// `asOf`, which is the same for all pages of a query: nothing is missed or repeated however many bets arrive meanwhile. States
/// and settlements are shown as of each page's own snapshot.
///
/// For one page only about 20,000 rows are looked at. Where the filters leave few of them, a page may have fewer bets than `limit`, even
/// none, and yet have `nextAfter`: go on until it is absent.
#[utoipa::path(get, path = "/v1/records", tag = "history", operation_id = "listRecords", security(("bearer" = ["dispute"])),
    params(ListQuery), responses((status = 200, description = "A page", body = RecordPage), ListProblems))]
async fn list(access: Access<Dispute>, Query(query): Query<ListQuery>) -> Result<Response, Problem> {
    let request = query.into_request();
    let page = access.read(|app| async move { app.history().page(request).await }).await?;
    Ok(ok(&page))
}

/// The bet of a path.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Path)]
pub(super) struct RecordPath {
    /// Its seed's commitment.
    #[param(value_type = Commitment, inline)]
    pub(super) commitment: Commitment,
    /// Its nonce.
    #[param(value_type = NonceDigits, inline)]
    pub(super) nonce: NonceDigits,
}

problems!(RecordProblems: ANY TOKEN; BetNotFound);

/// One bet
///
/// By its seed's commitment and its nonce, in whatever session.
#[utoipa::path(get, path = "/v1/records/{commitment}/{nonce}", tag = "history", operation_id = "getRecord",
    security(("bearer" = ["dispute"])), params(RecordPath),
    responses((status = 200, description = "The bet", body = RecordFound), RecordProblems))]
async fn record(
    access: Access<Dispute>,
    Path(path): Path<RecordPath>,
    Query(Nothing {}): Query<Nothing>,
) -> Result<Response, Problem> {
    let Digits(nonce) = path.nonce;
    let found = access.read(|app| async move { app.history().bet(&path.commitment, nonce).await }).await?;
    Ok(ok(&found))
}
