//! Single-use tokens: their keys, spending, giving back.
//!
//! Keeps I9 (an answer leaves after the commit), I12 (a batch is bounded) and I13: nonces and spend ids come in bodies only, are read
//! into types that redact themselves, and stand in no problem but as the caller's own spend id in its results.

use axum::http::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Access, Admin, Public, Relay};
use super::input::{BatchJson, Json, Nothing, Path, Query};
use super::openapi::problems;
use super::problem::Problem;
use super::wire::GivenTime;
use super::{App, created, ok};
use crate::ledger::{BatchResult, ChangedKey, Key, KeyId, KeyRequest, Outcome, Spend, SpendId, Token, TokenNonce};
use crate::seeds::values::Timestamp;

/// How long anyone may keep the list of keys. What is accepted is decided by the ledger, whatever a list says.
const KEYS_CACHE: HeaderValue = HeaderValue::from_static("public, max-age=60, must-revalidate");

pub(super) fn endpoints() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(register_key))
        .routes(routes!(close_key))
        .routes(routes!(list_keys))
        .routes(routes!(spend))
        .routes(routes!(spend_batch))
        .routes(routes!(roll_back))
}

/// The key of a path.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Path)]
struct KeyPath {
    /// The issuer's name for the key.
    #[param(value_type = KeyId, inline)]
    key_id: KeyId,
}

/// The window of a key. Its tokens are accepted from its begin until before its end.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct Window {
    /// Its begin; now when absent, or what is stored.
    redeem_from: Option<GivenTime>,
    /// Its end; 30 hours after its begin when absent, or what is stored.
    redeem_until: Option<GivenTime>,
}

/// A key as everybody may know it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct KeyView {
    /// The issuer's name for it.
    key_id: KeyId,
    /// Begin of its window, inclusive.
    redeem_from: Timestamp,
    /// End of its window, exclusive.
    redeem_until: Timestamp,
}

impl From<Key> for KeyView {
    fn from(key: Key) -> Self {
        Self { key_id: key.key_id, redeem_from: Timestamp(key.redeem_from), redeem_until: Timestamp(key.redeem_until) }
    }
}

/// A key that was registered or closed.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct KeyChanged {
    #[serde(flatten)]
    key: KeyView,
    /// open, closed, or swept: its spends are forgotten. One way.
    #[schema(inline, value_type = String)]
    state: &'static str,
    /// It was so before.
    replayed: bool,
}

impl From<ChangedKey> for KeyChanged {
    fn from(changed: ChangedKey) -> Self {
        Self { state: changed.key.state.as_str(), key: changed.key.into(), replayed: changed.replayed }
    }
}

problems!(RegisterProblems: ANY TOKEN BODY CHANGE; KeyIdRetired, KeyExistsWithDifferentWindow, KeyPredatesRecovery, TooManyLiveKeys);

/// Register a key
///
/// Opens its window, now or in time to come. The same again changes nothing; a name is never used again.
#[utoipa::path(put, path = "/v1/keys/{keyId}", tag = "tokens", operation_id = "registerKey", security(("bearer" = ["admin"])),
    params(KeyPath), request_body = Window,
    responses((status = 201, description = "Registered", body = KeyChanged),
              (status = 200, description = "Registered before", body = KeyChanged), RegisterProblems))]
async fn register_key(
    access: Access<Admin>,
    Path(path): Path<KeyPath>,
    Query(Nothing {}): Query<Nothing>,
    Json(body): Json<Window>,
) -> Result<Response, Problem> {
    let request = KeyRequest {
        key_id: path.key_id,
        redeem_from: body.redeem_from.map(|GivenTime(time)| time),
        redeem_until: body.redeem_until.map(|GivenTime(time)| time),
    };
    let changed = access.change(|app| async move { app.ledger().register_key(&request).await }).await?;
    Ok(created(changed.replayed, &KeyChanged::from(changed)))
}

problems!(CloseKeyProblems: ANY TOKEN BODY CHANGE; UnknownKey);

/// Close a key
///
/// Nothing that begins after the answer is accepted under it. Retries of what was spent are answered until its window has ended.
#[utoipa::path(post, path = "/v1/keys/{keyId}/close", tag = "tokens", operation_id = "closeKey", security(("bearer" = ["admin"])),
    params(KeyPath), responses((status = 200, description = "Closed, now or before", body = KeyChanged), CloseKeyProblems))]
async fn close_key(
    access: Access<Admin>,
    Path(path): Path<KeyPath>,
    Query(Nothing {}): Query<Nothing>,
    Json(Nothing {}): Json<Nothing>,
) -> Result<Response, Problem> {
    let changed = access.change(|app| async move { app.ledger().close_key(&path.key_id).await }).await?;
    Ok(ok(&KeyChanged::from(changed)))
}

/// Keys that are open and whose window has not ended, by the begin of their window.
#[derive(Serialize, ToSchema)]
struct KeyList {
    /// The keys.
    keys: Vec<KeyView>,
}

problems!(KeysProblems: ANY);

/// The keys that are live or to come
///
/// The same short list for everyone, with an ETag: whoever may tell clients apart by the list they hold would tell them apart by
/// their tokens.
#[utoipa::path(get, path = "/v1/keys", tag = "tokens", operation_id = "listKeys",
    params(("If-None-Match" = Option<String>, Header, description = "The ETag of a list that the caller holds")),
    responses((status = 200, description = "The keys", body = KeyList, headers(
                  ("ETag" = String, description = "Changes when the list does"),
                  ("Cache-Control" = String, description = "May be kept by anyone for a minute"))),
              (status = 304, description = "The caller's list is this one"), KeysProblems))]
async fn list_keys(
    access: Access<Public>,
    Query(Nothing {}): Query<Nothing>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let keys = access.read(|app| async move { app.ledger().live_keys().await }).await?;
    let list = KeyList { keys: keys.into_iter().map(KeyView::from).collect() };
    let mut response = ok(&list);
    if let Ok(etag) = HeaderValue::from_str(&etag(&list)) {
        if headers.get_all(IF_NONE_MATCH).iter().any(|held| holds(held, &etag)) {
            response = StatusCode::NOT_MODIFIED.into_response();
        }
        response.headers_mut().insert(ETAG, etag);
    }
    response.headers_mut().insert(CACHE_CONTROL, KEYS_CACHE);
    Ok(response)
}

/// A hash of what the list says, in quotation marks.
fn etag(list: &KeyList) -> String {
    let mut hash = Sha256::new();
    for KeyView { key_id, redeem_from, redeem_until } in &list.keys {
        // No key id has a space.
        hash.update(format!("{key_id} {redeem_from} {redeem_until}\n"));
    }
    format!("\"{}\"", hex::encode(&hash.finalize()[..16]))
}

/// Whether `If-None-Match` names the tag. Weak ones count: RFC 9110 wants the weak comparison here.
fn holds(held: &HeaderValue, etag: &HeaderValue) -> bool {
    let (Ok(held), Ok(etag)) = (held.to_str(), etag.to_str()) else { return false };
    held.split(',').map(str::trim).any(|tag| tag == "*" || tag.trim_start_matches("W/") == etag)
}

/// A token, and the admission that it is spent for.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct NewSpend {
    /// The key that the token was issued under.
    key_id: KeyId,
    /// The token's nonce.
    nonce: TokenNonce,
    /// Names this admission, so that the request can be repeated; made by the service when absent.
    spend_id: Option<SpendId>,
}

impl From<NewSpend> for Spend {
    fn from(spend: NewSpend) -> Self {
        let token = Token { key_id: spend.key_id, nonce: spend.nonce };
        Self { token, spend_id: spend.spend_id.unwrap_or_else(SpendId::random) }
    }
}

/// What a token came to.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SpendResult {
    /// fresh, or the code of the error that it alone would have got; `not_spent` when only the rest of its batch was in its way.
    #[schema(inline, value_type = String)]
    outcome: &'static str,
    /// The caller's own, or the one that was made for it.
    spend_id: SpendId,
    /// It was spent under this spendId before.
    replayed: bool,
}

impl From<&BatchResult> for SpendResult {
    fn from(result: &BatchResult) -> Self {
        Self { outcome: result.outcome.as_str(), spend_id: result.spend_id, replayed: result.replayed }
    }
}

problems!(SpendProblems: ANY TOKEN BODY CHANGE; UnknownKey, KeyExpired, KeyNotYetValid, AlreadySpent);

/// Spend a token
///
/// Accepted once, whoever asks at the same time. The same `spendId` again is answered as replayed, until the key's window has ended
/// and its spends are forgotten.
#[utoipa::path(post, path = "/v1/spends", tag = "tokens", operation_id = "spend", security(("bearer" = ["relay"])),
    request_body = NewSpend,
    responses((status = 201, description = "Spent", body = SpendResult),
              (status = 200, description = "Spent before under this spendId", body = SpendResult), SpendProblems))]
async fn spend(
    access: Access<Relay>,
    Query(Nothing {}): Query<Nothing>,
    Json(body): Json<NewSpend>,
) -> Result<Response, Problem> {
    let spend = Spend::from(body);
    let spent = access.change(|app| async move { app.ledger().spend(&spend).await }).await?;
    let result = BatchResult { outcome: Outcome::Fresh, spend_id: spent.spend_id, replayed: spent.replayed };
    Ok(created(spent.replayed, &SpendResult::from(&result)))
}

/// Tokens to be spent.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct NewBatch {
    /// The tokens.
    #[schema(min_items = 1, max_items = 1_000)]
    spends: Vec<NewSpend>,
    /// All or none. When absent or false, each token is spent for itself.
    atomic: Option<bool>,
}

/// What every token of a batch came to, in order.
#[derive(Serialize, ToSchema)]
struct BatchAnswer {
    /// One for each token.
    results: Vec<SpendResult>,
}

problems!(BatchProblems: ANY TOKEN BODY CHANGE; BatchRefused);

/// Spend many tokens
///
/// Up to 1,000, in a body of up to 256 KiB. Each for itself: of the same token twice the first counts. Or, `atomic`, all or none: the
/// same token twice refuses the batch.
#[utoipa::path(post, path = "/v1/spends/batch", tag = "tokens", operation_id = "spendBatch", security(("bearer" = ["relay"])),
    request_body = NewBatch,
    responses((status = 200, description = "What each came to", body = BatchAnswer), BatchProblems))]
async fn spend_batch(
    access: Access<Relay>,
    Query(Nothing {}): Query<Nothing>,
    BatchJson(body): BatchJson<NewBatch>,
) -> Result<Response, Problem> {
    let spends: Vec<Spend> = body.spends.into_iter().map(Spend::from).collect();
    let atomic = body.atomic.unwrap_or(false);
    let spending = |app: App| async move {
        if atomic { app.ledger().spend_all(&spends).await } else { app.ledger().spend_each(&spends).await }
    };
    let results = access.change(spending).await?;
    Ok(ok(&BatchAnswer { results: results.iter().map(SpendResult::from).collect() }))
}

/// A spend to be given back.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct Rollback {
    /// The key that the token was issued under.
    key_id: KeyId,
    /// The token's nonce.
    nonce: TokenNonce,
    /// The admission that was answered.
    spend_id: SpendId,
}

/// A token that was given back.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct RolledBack {
    /// Always rolled_back.
    #[schema(inline, value_type = String)]
    outcome: &'static str,
    /// Always false: the same again finds the token `not_spent`, which is as good.
    replayed: bool,
}

problems!(RollbackProblems: ANY TOKEN BODY CHANGE; NotSpent, SpentByAnother);

/// Give a token back
///
/// Only a spend that was answered: one that is still under way may come later.
#[utoipa::path(post, path = "/v1/spends/rollback", tag = "tokens", operation_id = "rollBackSpend", security(("bearer" = ["relay"])),
    request_body = Rollback, responses((status = 200, description = "Given back", body = RolledBack), RollbackProblems))]
async fn roll_back(
    access: Access<Relay>,
    Query(Nothing {}): Query<Nothing>,
    Json(body): Json<Rollback>,
) -> Result<Response, Problem> {
    let spend = Spend { token: Token { key_id: body.key_id, nonce: body.nonce }, spend_id: body.spend_id };
    access.change(|app| async move { app.ledger().roll_back(&spend).await }).await?;
    Ok(ok(&RolledBack { outcome: "rolled_back", replayed: false }))
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};

    use super::*;

    fn list(keys: &[&str]) -> KeyList {
        let time: DateTime<Utc> = "2030-01-01T00:00:00Z".parse().unwrap();
        let view = |key_id: &&str| KeyView {
            key_id: key_id.parse().unwrap(),
            redeem_from: Timestamp(time),
            redeem_until: Timestamp(time),
        };
        KeyList { keys: keys.iter().map(view).collect() }
    }

    #[test]
    fn an_etag_changes_with_the_list_alone() {
        assert_eq!(etag(&list(&["a", "b"])), etag(&list(&["a", "b"])));
        for other in [&["a"][..], &["b", "a"], &["ab"], &[]] {
            assert_ne!(etag(&list(&["a", "b"])), etag(&list(other)));
        }
    }

    #[test]
    fn if_none_match_is_read_as_rfc_9110_has_it() {
        let etag = HeaderValue::from_static("\"abc\"");
        for held in ["\"abc\"", "W/\"abc\"", "\"x\", \"abc\"", "*", "\"x\",W/\"abc\""] {
            assert!(holds(&HeaderValue::from_static(held), &etag), "{held}");
        }
        for other in ["\"ab\"", "abc", "", "\"x\", \"y\""] {
            assert!(!holds(&HeaderValue::from_static(other), &etag), "{other}");
        }
    }
}
