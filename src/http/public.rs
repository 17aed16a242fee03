//! What anyone may look up: commitments and signing keys.
//!
//! Keeps I6: of a commitment's seed nothing is told before it is revealed.

use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Access, Public};
use super::input::{Nothing, Path, Query};
use super::openapi::problems;
use super::problem::Problem;
use super::{App, ok};
use crate::gfs::seed::Commitment;
use crate::seeds::model::CommitmentView;
use crate::seeds::values::Timestamp;

pub(super) fn endpoints() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(commitment)).routes(routes!(signing_keys))
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Path)]
struct CommitmentPath {
    /// The commitment.
    #[param(value_type = Commitment, inline)]
    commitment: Commitment,
}

problems!(CommitmentProblems: ANY; CommitmentNotFound);

/// Look up a commitment
///
/// When it was committed, used and revealed, and its seed once revealed.
#[utoipa::path(get, path = "/v1/commitments/{commitment}", tag = "public", operation_id = "getCommitment",
    params(CommitmentPath), responses((status = 200, description = "What may be known", body = CommitmentView), CommitmentProblems))]
async fn commitment(
    access: Access<Public>,
    Path(path): Path<CommitmentPath>,
    Query(Nothing {}): Query<Nothing>,
) -> Result<Response, Problem> {
    let view = access.read(|app| async move { app.seeds().commitment(&path.commitment).await }).await?;
    Ok(ok(&view))
}

/// A key that records were signed with.
#[derive(Serialize, ToSchema)]
struct SigningKeyView {
    /// The Ed25519 public key, 64 hex characters.
    signer: String,
    /// When the service first started with it.
    from: Timestamp,
    /// When the service started with another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
}

/// Every key that records were signed with, oldest first.
#[derive(Serialize, ToSchema)]
struct SigningKeyList {
    /// The keys.
    keys: Vec<SigningKeyView>,
}

problems!(SigningKeysProblems: ANY);

/// Every key that records were signed with, oldest first
#[utoipa::path(get, path = "/v1/signing-keys", tag = "public", operation_id = "listSigningKeys",
    responses((status = 200, description = "The keys", body = SigningKeyList), SigningKeysProblems))]
async fn signing_keys(access: Access<Public>, Query(Nothing {}): Query<Nothing>) -> Result<Response, Problem> {
    let keys = access.read(|app| async move { app.seeds().signing_keys().await }).await?;
    let keys = keys
        .into_iter()
        .map(|key| SigningKeyView {
            signer: hex::encode(key.signer),
            from: Timestamp(key.valid_from),
            until: key.valid_until.map(Timestamp),
        })
        .collect();
    Ok(ok(&SigningKeyList { keys }))
}
