//! Evidence for disputes: the coverage of a session, the bundle of a bet.
//!
//! Keeps I12: a page of seeds; a bundle is bounded by the steps of its round.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Access, Dispute};
use super::input::{Nothing, Path, Query};
use super::openapi::problems;
use super::problem::Problem;
use super::records::RecordPath;
use super::sessions::{Limit, SessionPath, limit};
use super::wire::{Digits, SessionId};
use super::{App, ok};
use crate::history::bundle::Bundle;
use crate::history::coverage::SessionCoverage;

pub(super) fn endpoints() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(coverage)).routes(routes!(bundle))
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct CoverageQuery {
    /// `nextAfter` of the page before.
    #[param(value_type = Option<i32>, inline)]
    after: Option<SeedNumber>,
    /// Seeds on the page at the most; 50 when absent.
    #[param(value_type = Option<Limit>, inline)]
    limit: Option<Limit>,
}

/// A seed's number in a query. A forged row may have one below 0.
struct SeedNumber(i32);

impl<'de> Deserialize<'de> for SeedNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let number = text.parse().ok().filter(|number: &i32| number.to_string() == text);
        number.map(Self).ok_or_else(|| D::Error::custom("must be the number of a seed, as nextAfter has it"))
    }
}

problems!(CoverageProblems: ANY TOKEN; SessionNotFound);

/// Whether every nonce of a session is accounted for
///
/// Seed by seed, oldest first: nonces handed out, bets recorded, void and pending, nonces missing, and checks of the seed's commitment,
/// times, end and reveal. A seed with very many bets may have a page to itself: go on while there is a `nextAfter`.
#[utoipa::path(get, path = "/v1/sessions/{sessionId}/coverage", tag = "history", operation_id = "getCoverage",
    security(("bearer" = ["dispute"])), params(SessionPath, CoverageQuery),
    responses((status = 200, description = "A page of seeds", body = SessionCoverage), CoverageProblems))]
async fn coverage(
    access: Access<Dispute>,
    Path(path): Path<SessionPath>,
    Query(query): Query<CoverageQuery>,
) -> Result<Response, Problem> {
    let SessionId(session_id) = path.session_id;
    let limit = limit(query.limit);
    let after = query.after.map(|SeedNumber(number)| number);
    let covered = access.read(|app| async move { app.history().coverage(session_id, after, limit).await }).await?;
    Ok(ok(&covered))
}

problems!(BundleProblems: ANY TOKEN; BetNotFound, CommitmentNotFound);

/// The evidence of one bet
///
/// One self-contained file, as canonical JSON: the record as it was signed, the reveal, what was bound and when, the seed's whole life,
/// the coverage of its seed, steps, settlement, signing key, and what each part proves and does not. `fairledger verify --bundle FILE`
/// checks it without a database.
#[utoipa::path(get, path = "/v1/records/{commitment}/{nonce}/bundle", tag = "history", operation_id = "getBundle",
    security(("bearer" = ["dispute"])), params(RecordPath),
    responses((status = 200, description = "The bundle", body = Bundle), BundleProblems))]
async fn bundle(
    access: Access<Dispute>,
    Path(path): Path<RecordPath>,
    Query(Nothing {}): Query<Nothing>,
) -> Result<Response, Problem> {
    let Digits(nonce) = path.nonce;
    let bundle = access.read(|app| async move { app.history().bundle(&path.commitment, nonce).await }).await?;
    match bundle.to_canonical() {
        Ok(text) => Ok((StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], text).into_response()),
        Err(error) => {
            tracing::error!(%error, "a bundle cannot be written");
            Err(Problem::internal())
        }
    }
}
