//! Everything that an endpoint can answer other than what was asked for: RFC 9457 problems with stable codes.
//!
//! Keeps I6 and I12: this is the one place where an error becomes an answer. What the database or a stored row said never leaves
//! here; it goes to the log under the same request id.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::tokens::SpendResult;
use crate::db::DbError;
use crate::db::tokens::Scope;
use crate::gfs::games::PlayError;
use crate::gfs::inspect::InspectError;
use crate::gfs::json::JsonError;
use crate::history::HistoryError;
use crate::ledger::LedgerError;
use crate::seeds::SeedsError;
use crate::seeds::values::InvalidValue;

/// The media type of problems.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// When to try again after a fault that passes by itself.
const RETRY_SOON: Duration = Duration::from_secs(1);

/// When to try an export again.
const RETRY_EXPORT: Duration = Duration::from_secs(30);
/// When to try again after one that an operator has to put right.
const RETRY_LATER: Duration = Duration::from_secs(60);

/// The longest name of a field in an answer, in characters: names come from the caller.
const FIELD_CHARS_MAX: usize = 200;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $status:ident, $title:literal;)*) => {
        /// What went wrong, stable for ever. In order of precedence: where several apply, the first is answered.
        /// `docs/ERRORS.md` says what each means and what to do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $($(#[$doc])* $variant,)*
        }

        impl Code {
            /// Every code, in order of precedence.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The word in `code`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }

            /// The status of its answers.
            pub const fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status,)* }
            }

            /// The same for every occurrence.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }
        }
    };
}

codes! {
    /// No endpoint has this path. Nothing else is looked at.
    NotFound = "not_found", NOT_FOUND, "No such path";
    /// The path has no such method. Nothing else is looked at.
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED, "Method not allowed";
    /// Too many unknown tokens came from the address.
    TooManyUnknownTokens = "too_many_unknown_tokens", TOO_MANY_REQUESTS, "Too many unknown tokens";
    /// No valid token.
    Unauthenticated = "unauthenticated", UNAUTHORIZED, "Not authenticated";
    /// A token without the scope needed.
    Forbidden = "forbidden", FORBIDDEN, "Not allowed";
    /// The database lacks something that was acknowledged.
    Quarantined = "quarantined", SERVICE_UNAVAILABLE, "In quarantine";
    /// Too much at once.
    Overloaded = "overloaded", SERVICE_UNAVAILABLE, "Overloaded";
    /// A body of another kind than JSON.
    UnsupportedMediaType = "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE, "Unsupported media type";
    /// A body past its bound.
    TooLarge = "too_large", PAYLOAD_TOO_LARGE, "Body too large";
    /// A body that did not arrive in time.
    RequestTimeout = "request_timeout", REQUEST_TIMEOUT, "Body too slow";
    /// A parameter or a field out of form.
    InvalidRequest = "invalid_request", BAD_REQUEST, "Invalid request";
    /// A record that cannot be inspected.
    InvalidRecord = "invalid_record", BAD_REQUEST, "Invalid record";
    /// No such key.
    UnknownKey = "unknown_key", NOT_FOUND, "No such key";
    /// The key's window has ended, or it was closed or swept.
    KeyExpired = "key_expired", GONE, "Key expired";
    /// The key's window has not begun.
    KeyNotYetValid = "key_not_yet_valid", CONFLICT, "Key not yet valid";
    /// The token is spent.
    AlreadySpent = "already_spent", CONFLICT, "Token already spent";
    /// An atomic batch of which something cannot be spent.
    BatchRefused = "batch_refused", CONFLICT, "Batch refused";
    /// Nothing to give back.
    NotSpent = "not_spent", NOT_FOUND, "Token not spent";
    /// The token is spent under another spendId.
    SpentByAnother = "spent_by_another", CONFLICT, "Spent by another";
    /// The key's name was used before.
    KeyIdRetired = "key_id_retired", CONFLICT, "keyId is retired";
    /// The key exists with another window.
    KeyExistsWithDifferentWindow = "key_exists_with_different_window", CONFLICT, "Key exists otherwise";
    /// The key's window begins before the last recovery.
    KeyPredatesRecovery = "key_predates_recovery", CONFLICT, "Key predates the recovery";
    /// As many keys are live or to come as may be.
    TooManyLiveKeys = "too_many_live_keys", CONFLICT, "Too many live keys";
    /// No such session.
    SessionNotFound = "session_not_found", NOT_FOUND, "No such session";
    /// No such bet.
    BetNotFound = "bet_not_found", NOT_FOUND, "No such bet";
    /// No such round.
    RoundNotFound = "round_not_found", NOT_FOUND, "No such round";
    /// No such commitment.
    CommitmentNotFound = "commitment_not_found", NOT_FOUND, "No such commitment";
    /// The session exists, for another player.
    SessionExistsWithDifferentContent = "session_exists_with_different_content", CONFLICT, "Session exists otherwise";
    /// The reference names another bet.
    BetRefReused = "bet_ref_reused", CONFLICT, "betRef names another bet";
    /// The address started too many sessions.
    TooManySessions = "too_many_sessions", TOO_MANY_REQUESTS, "Too many sessions";
    /// The session is closed.
    SessionClosed = "session_closed", CONFLICT, "Session closed";
    /// Another seed is live.
    CommitmentChanged = "commitment_changed", CONFLICT, "Commitment changed";
    /// Bets are pending under the seed.
    BetsPending = "bets_pending", CONFLICT, "Bets are pending";
    /// The seed has no bets.
    NothingToReveal = "nothing_to_reveal", CONFLICT, "Nothing to reveal";
    /// The session brings its own seeds and has none waiting.
    NoNextSeed = "no_next_seed", CONFLICT, "No next seed";
    /// Every nonce was handed out.
    NonceExhausted = "nonce_exhausted", CONFLICT, "Nonces exhausted";
    /// As many bets are pending as may be.
    TooManyPending = "too_many_pending", CONFLICT, "Too many pending bets";
    /// The nonce is no reservation.
    NonceNotReserved = "nonce_not_reserved", CONFLICT, "Nonce not reserved";
    /// The reservation has another result.
    RecordExistsWithDifferentContent = "record_exists_with_different_content", CONFLICT, "Recorded otherwise";
    /// The bet is void.
    Void = "void", CONFLICT, "Bet is void";
    /// The bet has its result.
    AlreadyRecorded = "already_recorded", CONFLICT, "Already recorded";
    /// The bet is void for another reason.
    VoidWithDifferentReason = "void_with_different_reason", CONFLICT, "Void for another reason";
    /// The round ended.
    RoundClosed = "round_closed", CONFLICT, "Round closed";
    /// Not the round's next step.
    StepConflict = "step_conflict", CONFLICT, "Not the next step";
    /// A mine was shown.
    RoundLost = "round_lost", CONFLICT, "Round is lost";
    /// The round has as many steps as it may.
    TooManySteps = "too_many_steps", CONFLICT, "Too many steps";
    /// The bet is settled otherwise.
    SettledWithDifferentContent = "settled_with_different_content", CONFLICT, "Settled otherwise";
    /// The bet has no result.
    NotRecorded = "not_recorded", CONFLICT, "Not recorded";
    /// The database cannot be reached, or took too long. Nothing was done.
    Unavailable = "unavailable", SERVICE_UNAVAILABLE, "Unavailable";
    /// The change may or may not have been made.
    OutcomeUnknown = "outcome_unknown", SERVICE_UNAVAILABLE, "Outcome unknown";
    /// A stored row contradicts itself.
    CorruptData = "corrupt_data", INTERNAL_SERVER_ERROR, "Corrupt data";
    /// A fault of ours.
    Internal = "internal", INTERNAL_SERVER_ERROR, "Internal error";
}

/// An answer that is not what was asked for.
#[derive(Debug)]
pub struct Problem {
    code: Code,
    detail: String,
    field: Option<String>,
    /// Further members, such as `nextIndex`.
    members: Map<String, Value>,
    retry_after: Option<Duration>,
}

impl Problem {
    /// With words for the one who called.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), field: None, members: Map::new(), retry_after: None }
    }

    /// A field or parameter out of form. An empty name is the body as a whole.
    pub fn invalid(field: &str, detail: impl ToString) -> Self {
        Self::at(Code::InvalidRequest, field, detail)
    }

    /// A code with the field at fault; an empty name is the body as a whole.
    pub fn at(code: Code, field: &str, detail: impl ToString) -> Self {
        let mut problem = Self::new(code, detail.to_string());
        problem.field = (!field.is_empty()).then(|| field.chars().take(FIELD_CHARS_MAX).collect());
        problem
    }

    /// No valid token.
    pub fn unauthenticated() -> Self {
        Self::new(Code::Unauthenticated, "needs a valid token: send the header Authorization: Bearer flt_...")
    }

    /// Too many unknown tokens came from the address.
    pub fn too_many_unknown_tokens(retry_after: Duration) -> Self {
        let detail = "too many unknown tokens came from this address: no more are looked up for a while";
        Self::new(Code::TooManyUnknownTokens, detail).retry(retry_after)
    }

    /// A token without the scope.
    pub fn forbidden(scope: Scope) -> Self {
        Self::new(Code::Forbidden, format!("needs a token with scope {}", scope.as_str()))
            .with("scope", json!(scope.as_str()))
    }

    /// The database lacks something that was acknowledged. Why is for `/readyz` and the log.
    pub fn quarantined() -> Self {
        let detail = "the database lacks something that was acknowledged: nothing is bet, revealed or spent until its operator has run a recovery";
        Self::new(Code::Quarantined, detail).retry(RETRY_LATER)
    }

    /// Too much at once.
    pub fn overloaded() -> Self {
        Self::new(Code::Overloaded, "too many requests are under way: try again shortly").retry(RETRY_SOON)
    }

    /// A fault that passes. Nothing was done.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(Code::Unavailable, detail).retry(RETRY_SOON)
    }

    /// The change may or may not have been made.
    pub fn outcome_unknown() -> Self {
        let detail = "the change may or may not have been made: send the same request again to find out";
        Self::new(Code::OutcomeUnknown, detail).retry(RETRY_SOON)
    }

    /// A fault of ours; what it was goes to the log only.
    pub fn internal() -> Self {
        Self::new(Code::Internal, "a fault of the service: its log says more under this requestId")
    }

    /// What went wrong.
    pub fn code(&self) -> Code {
        self.code
    }

    fn with(mut self, name: &str, value: Value) -> Self {
        self.members.insert(name.to_owned(), value);
        self
    }

    fn retry(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// The body, for one request.
    pub fn body(&self, request_id: &str) -> Value {
        let mut body = self.members.clone();
        body.insert("type".into(), json!(format!("urn:fairledger:problem:{}", self.code.as_str())));
        body.insert("title".into(), json!(self.code.title()));
        body.insert("status".into(), json!(self.code.status().as_u16()));
        body.insert("code".into(), json!(self.code.as_str()));
        body.insert("detail".into(), json!(self.detail));
        body.insert("requestId".into(), json!(request_id));
        if let Some(field) = &self.field {
            body.insert("field".into(), json!(field));
        }
        Value::Object(body)
    }

    fn challenge(&self) -> Option<HeaderValue> {
        match self.code {
            Code::Unauthenticated => Some(HeaderValue::from_static("Bearer realm=\"fairledger\"")),
            Code::Forbidden => {
                let scope = self.members.get("scope").and_then(Value::as_str).unwrap_or_default();
                let challenge = format!("Bearer realm=\"fairledger\", error=\"insufficient_scope\", scope=\"{scope}\"");
                HeaderValue::from_str(&challenge).ok()
            }
            _ => None,
        }
    }
}

/// A problem on its way out: [`fill_in`] writes the body, which needs the request's id.
#[derive(Clone)]
struct Unwritten(Arc<Problem>);

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.code.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(challenge) = self.challenge() {
            headers.insert(WWW_AUTHENTICATE, challenge);
        }
        if let Some(after) = self.retry_after {
            // Rounded up: never earlier than it helps.
            headers.insert(RETRY_AFTER, HeaderValue::from(after.as_secs() + u64::from(after.subsec_nanos() > 0)));
        }
        response.extensions_mut().insert(Unwritten(Arc::new(self)));
        response
    }
}

/// Writes the body of a problem, if the answer is one; gives its code.
pub(super) fn fill_in(response: &mut Response, request_id: &str) -> Option<Code> {
    let Unwritten(problem) = response.extensions_mut().remove::<Unwritten>()?;
    response.headers_mut().remove(CONTENT_LENGTH);
    *response.body_mut() = Body::from(problem.body(request_id).to_string());
    Some(problem.code)
}

impl From<SeedsError> for Problem {
    fn from(error: SeedsError) -> Self {
        let detail = error.to_string();
        let plain = |code| Self::new(code, detail.clone());
        match error {
            SeedsError::Invalid { field, detail } => Self::invalid(&field, detail),
            SeedsError::SessionNotFound => plain(Code::SessionNotFound),
            SeedsError::BetNotFound => plain(Code::BetNotFound),
            SeedsError::RoundNotFound => plain(Code::RoundNotFound),
            SeedsError::CommitmentNotFound => plain(Code::CommitmentNotFound),
            SeedsError::SessionExistsWithDifferentContent => plain(Code::SessionExistsWithDifferentContent),
            SeedsError::BetRefReused => plain(Code::BetRefReused),
            SeedsError::TooManySessions { retry_after } => plain(Code::TooManySessions).retry(retry_after),
            SeedsError::SessionClosed => plain(Code::SessionClosed),
            SeedsError::NoNextSeed => plain(Code::NoNextSeed),
            SeedsError::CommitmentChanged { session } => match serde_json::to_value(&session) {
                Ok(session) => plain(Code::CommitmentChanged).with("session", session),
                Err(error) => {
                    tracing::error!(%error, "a session's view cannot be written");
                    Self::internal()
                }
            },
            SeedsError::BetsPending => plain(Code::BetsPending),
            SeedsError::NothingToReveal => plain(Code::NothingToReveal),
            SeedsError::NonceExhausted => plain(Code::NonceExhausted),
            SeedsError::TooManyPending => plain(Code::TooManyPending),
            SeedsError::NonceNotReserved => plain(Code::NonceNotReserved),
            SeedsError::RecordExistsWithDifferentContent => plain(Code::RecordExistsWithDifferentContent),
            SeedsError::Void { .. } => plain(Code::Void),
            SeedsError::AlreadyRecorded => plain(Code::AlreadyRecorded),
            SeedsError::VoidWithDifferentReason { .. } => plain(Code::VoidWithDifferentReason),
            SeedsError::StepConflict { next_index } => plain(Code::StepConflict).with("nextIndex", json!(next_index)),
            SeedsError::RoundLost => plain(Code::RoundLost),
            SeedsError::RoundClosed => plain(Code::RoundClosed),
            SeedsError::TooManySteps => plain(Code::TooManySteps),
            SeedsError::SettledWithDifferentContent => plain(Code::SettledWithDifferentContent),
            SeedsError::NotRecorded => plain(Code::NotRecorded),
            SeedsError::Db(error) => error.into(),
        }
    }
}

impl From<HistoryError> for Problem {
    fn from(error: HistoryError) -> Self {
        match error {
            HistoryError::TooManyExports => Self::new(Code::Overloaded, error.to_string()).retry(RETRY_EXPORT),
            HistoryError::Invalid { field, detail } => Self::invalid(field, detail),
            HistoryError::BetNotFound => Self::new(Code::BetNotFound, error.to_string()),
            HistoryError::Behind => Self::unavailable(error.to_string()),
            HistoryError::SessionNotFound => Self::new(Code::SessionNotFound, error.to_string()),
            HistoryError::CommitmentNotFound => Self::new(Code::CommitmentNotFound, error.to_string()),
            HistoryError::Db(error) => error.into(),
        }
    }
}

impl From<LedgerError> for Problem {
    fn from(error: LedgerError) -> Self {
        let error = match error {
            LedgerError::Db(error) => return error.into(),
            error => error,
        };
        let code = match &error {
            LedgerError::Invalid { field, detail } => return Self::invalid(field, detail),
            // Only callers' own transactions have levels of their own, and none of those is ours.
            LedgerError::Db(_) | LedgerError::Isolation(_) => {
                tracing::error!(%error, "no request of ours can come to this");
                return Self::internal();
            }
            LedgerError::BatchRefused { results } => {
                let results: Vec<SpendResult> = results.iter().map(SpendResult::from).collect();
                return match serde_json::to_value(results) {
                    Ok(results) => Self::new(Code::BatchRefused, error.to_string()).with("results", results),
                    Err(error) => {
                        tracing::error!(%error, "results cannot be written");
                        Self::internal()
                    }
                };
            }
            LedgerError::UnknownKey => Code::UnknownKey,
            LedgerError::KeyExpired => Code::KeyExpired,
            LedgerError::KeyNotYetValid => Code::KeyNotYetValid,
            LedgerError::AlreadySpent => Code::AlreadySpent,
            LedgerError::NotSpent => Code::NotSpent,
            LedgerError::SpentByAnother => Code::SpentByAnother,
            LedgerError::KeyIdRetired => Code::KeyIdRetired,
            LedgerError::KeyExistsWithDifferentWindow => Code::KeyExistsWithDifferentWindow,
            LedgerError::KeyPredatesRecovery => Code::KeyPredatesRecovery,
            LedgerError::TooManyLiveKeys { .. } => Code::TooManyLiveKeys,
        };
        Self::new(code, error.to_string())
    }
}

impl From<DbError> for Problem {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Overloaded => Self::overloaded(),
            DbError::Quarantined(_) => Self::quarantined(),
            DbError::Unavailable(_) | DbError::Conflict(_) | DbError::TimedOut(_) => {
                tracing::warn!(%error, "the database did not do what it was asked");
                Self::unavailable("the database is not available just now: nothing was done, try again")
            }
            DbError::OutcomeUnknown(_) => {
                tracing::warn!(%error, "the outcome of a change is unknown");
                Self::outcome_unknown()
            }
            DbError::SeedKeyMissing { .. } => {
                tracing::error!(%error, "a seed key is missing: add it to the seed keys of this service and restart it");
                Self::unavailable(
                    "the service lacks the key of this seed: nothing was done; its operator must add the key",
                )
                .retry(RETRY_LATER)
            }
            DbError::Corrupt { .. } => {
                tracing::error!(%error, "a stored row contradicts itself");
                let detail = "stored data contradicts itself: the service's log says more under this requestId";
                Self::new(Code::CorruptData, detail)
            }
            DbError::Unexpected(_) => {
                tracing::error!(%error, "the database refused a statement");
                Self::internal()
            }
        }
    }
}

impl From<InspectError> for Problem {
    fn from(error: InspectError) -> Self {
        Self::at(Code::InvalidRecord, &error.field, error.detail)
    }
}

impl From<PlayError> for Problem {
    fn from(error: PlayError) -> Self {
        Self::invalid(&error.field, error.detail)
    }
}

impl From<JsonError> for Problem {
    fn from(error: JsonError) -> Self {
        Self::invalid(&error.field, error.detail)
    }
}

impl From<(&'static str, InvalidValue)> for Problem {
    fn from((field, error): (&'static str, InvalidValue)) -> Self {
        Self::invalid(field, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_lists_every_code_in_order_of_precedence() {
        let document = include_str!("../../docs/ERRORS.md");
        let rows: Vec<(&str, &str)> = document
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .filter_map(|row| {
                let (code, rest) = row.split_once("` | ")?;
                Some((code, rest.split_once(" |")?.0))
            })
            .collect();
        let ours: Vec<_> = Code::ALL.iter().map(|code| (code.as_str(), code.status().as_u16().to_string())).collect();
        assert_eq!(rows, ours.iter().map(|(code, status)| (*code, status.as_str())).collect::<Vec<_>>());
    }

    #[test]
    fn codes_are_unlike_one_another() {
        let words: std::collections::HashSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(words.len(), Code::ALL.len());
        assert!(Code::ALL.is_sorted());
    }

    #[test]
    fn what_the_database_said_never_reaches_the_caller_i6() {
        const SECRET: &str = "flt_what-the-server-said";
        let text = || SECRET.to_owned();
        for (error, code, retried) in [
            (DbError::Overloaded, Code::Overloaded, true),
            (DbError::Quarantined(text()), Code::Quarantined, true),
            (DbError::Unavailable(text()), Code::Unavailable, true),
            (DbError::Conflict(text()), Code::Unavailable, true),
            (DbError::TimedOut(text()), Code::Unavailable, true),
            (DbError::OutcomeUnknown(text()), Code::OutcomeUnknown, true),
            (DbError::SeedKeyMissing { commitment: text(), key_id: text() }, Code::Unavailable, true),
            (DbError::Corrupt { what: "row", detail: text() }, Code::CorruptData, false),
            (DbError::Unexpected(text()), Code::Internal, false),
        ] {
            let problem = Problem::from(SeedsError::Db(error));
            assert_eq!(problem.code(), code);
            assert!(!problem.body("id").to_string().contains(SECRET), "{problem:?}");
            assert_eq!(problem.into_response().headers().contains_key(RETRY_AFTER), retried, "{code:?}");
        }
    }

    #[test]
    fn a_body_has_the_members_of_rfc_9457_and_ours() {
        let problem = Problem::from(SeedsError::StepConflict { next_index: 3 });
        assert_eq!(
            problem.body("r-1"),
            json!({
                "type": "urn:fairledger:problem:step_conflict", "title": "Not the next step", "status": 409,
                "code": "step_conflict", "detail": "the step is not the round's next one", "requestId": "r-1", "nextIndex": 3,
            })
        );
        assert_eq!(Problem::invalid("params.rows", "is too high").body("r")["field"], "params.rows");
        assert_eq!(Problem::invalid("", "is no object").body("r").get("field"), None);
        assert_eq!(Problem::invalid(&"x".repeat(10_000), "").body("r")["field"], "x".repeat(200));
    }

    #[test]
    fn retry_after_is_rounded_up() {
        let error = SeedsError::TooManySessions { retry_after: Duration::from_millis(1_001) };
        let response = Problem::from(error).into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[RETRY_AFTER], "2");
    }

    #[test]
    fn challenges_name_what_is_needed() {
        let header =
            |problem: Problem| problem.into_response().headers()[WWW_AUTHENTICATE].to_str().unwrap().to_owned();
        assert_eq!(header(Problem::unauthenticated()), "Bearer realm=\"fairledger\"");
        assert!(header(Problem::forbidden(Scope::Engine)).ends_with("scope=\"engine\""));
    }
}
