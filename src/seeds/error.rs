//! What a request of sessions, bets and rounds can come to other than its answer.

use std::time::Duration;

use uuid::Uuid;

use super::model::View;
use crate::db::{DbError, MaybeConflict};

/// One variant for each thing that a caller can tell apart. The order is that of precedence: where several apply, the first is
/// answered.
#[derive(Debug, thiserror::Error)]
pub enum SeedsError {
    /// A field is out of form or out of bounds. Nothing was stored.
    #[error("{field}: {detail}")]
    Invalid {
        /// Path of the field, such as `params.rows`.
        field: String,
        /// What is wrong with it.
        detail: String,
    },
    /// No such session.
    #[error("there is no session of that id")]
    SessionNotFound,
    /// No such bet.
    #[error("there is no bet of that commitment and nonce in the session")]
    BetNotFound,
    /// No such round.
    #[error("there is no round of that commitment and nonce in the session")]
    RoundNotFound,
    /// No such commitment.
    #[error("there is no such commitment")]
    CommitmentNotFound,
    /// The session exists, for another player.
    #[error("the session exists with another playerRef")]
    SessionExistsWithDifferentContent,
    /// The reference names another bet of the session.
    #[error("the betRef names a bet with other content")]
    BetRefReused,
    /// The address started too many sessions.
    #[error("too many sessions were started from this address")]
    TooManySessions {
        /// When to try again.
        retry_after: Duration,
    },
    /// The session is closed.
    #[error("the session is closed")]
    SessionClosed,
    /// The session brings its own seeds, and has none waiting.
    #[error("the session's seeds are brought by an application: it has no next seed")]
    NoNextSeed,
    /// The commitment is not that of the live seed.
    #[error("the commitment is not that of the session's live seed")]
    CommitmentChanged {
        /// The session as it is now.
        session: Box<View>,
    },
    /// Bets are pending under the seed.
    #[error("bets are pending under the seed: end them first")]
    BetsPending,
    /// The seed has no bets.
    #[error("the seed has no bets: there is nothing to reveal")]
    NothingToReveal,
    /// Every nonce of the seed was handed out.
    #[error("every nonce under the commitment was handed out: rotate")]
    NonceExhausted,
    /// As many bets are pending as may be.
    #[error("too many bets are pending in the session: end some first")]
    TooManyPending,
    /// The nonce was not reserved for an outside game.
    #[error("the nonce is not reserved")]
    NonceNotReserved,
    /// The reservation is recorded with another result.
    #[error("the nonce is recorded with another result")]
    RecordExistsWithDifferentContent,
    /// The bet is void.
    #[error("the bet is void: {reason}")]
    Void {
        /// Why.
        reason: String,
    },
    /// The bet has its result.
    #[error("the bet is already recorded")]
    AlreadyRecorded,
    /// The bet is void for another reason.
    #[error("the bet is void for another reason: {reason}")]
    VoidWithDifferentReason {
        /// Why.
        reason: String,
    },
    /// A step of another index, or the same index with other content.
    #[error("the step is not the round's next one")]
    StepConflict {
        /// Index of the next step.
        next_index: u32,
    },
    /// A mine was shown.
    #[error("a mine was disclosed: the round can only be closed as lost")]
    RoundLost,
    /// The round ended.
    #[error("the round is closed")]
    RoundClosed,
    /// The round has as many steps as it may.
    #[error("the round has as many steps as a round may have")]
    TooManySteps,
    /// The bet is settled otherwise.
    #[error("the bet is settled with other content")]
    SettledWithDifferentContent,
    /// The bet has no result to settle.
    #[error("the bet has no recorded result")]
    NotRecorded,
    /// The database.
    #[error(transparent)]
    Db(#[from] DbError),
}

impl SeedsError {
    /// A field that was refused.
    pub fn invalid(field: impl Into<String>, detail: impl ToString) -> Self {
        Self::Invalid { field: field.into(), detail: detail.to_string() }
    }
}

/// How one try inside a transaction ended when it did not succeed. Either way it is rolled back.
#[derive(Debug)]
pub(super) enum Attempt<E = SeedsError> {
    /// For good.
    Refused(E),
    /// What the statements found has changed since: look again in a new transaction.
    LookAgain,
    /// The session is of an epoch before the last recovery: move it, then look again.
    Outdated(Uuid),
}

impl From<SeedsError> for Attempt {
    fn from(error: SeedsError) -> Self {
        Self::Refused(error)
    }
}

impl<E: From<DbError>> From<DbError> for Attempt<E> {
    fn from(error: DbError) -> Self {
        Self::Refused(error.into())
    }
}

impl<E: MaybeConflict> MaybeConflict for Attempt<E> {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused(error) if error.is_conflict())
    }
}

impl MaybeConflict for SeedsError {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Db(error) if error.is_conflict())
    }
}

/// How often a request looks again before it calls the database too busy.
pub(super) const LOOKS_MAX: u32 = 8;

/// Runs `$body` in a transaction until it succeeds or is refused for good.
macro_rules! settle_it {
    ($seeds:expr, $name:literal, |$tx:ident| $body:expr) => {{
        let mut looks = 1;
        loop {
            let attempt: Result<_, $crate::seeds::error::Attempt<_>> =
                async { $crate::db::transaction!($seeds.inner.store, $name, |$tx| $body) }.await;
            match attempt {
                Ok(value) => break Ok(value),
                Err($crate::seeds::error::Attempt::Refused(error)) => break Err(error),
                // Committed before anything of it is shown.
                Err($crate::seeds::error::Attempt::Outdated(session_id)) if looks < $crate::seeds::error::LOOKS_MAX => {
                    looks += 1;
                    if let Err(error) = $seeds.recover_session(session_id).await {
                        break Err(error.into());
                    }
                    continue;
                }
                Err($crate::seeds::error::Attempt::LookAgain) if looks < $crate::seeds::error::LOOKS_MAX => looks += 1,
                Err($crate::seeds::error::Attempt::LookAgain | $crate::seeds::error::Attempt::Outdated(_)) => {
                    let message = concat!($name, " found the row changed each time it looked");
                    break Err($crate::db::DbError::TimedOut(message.to_owned()).into());
                }
            }
            $crate::db::pause_before_retry(looks).await;
        }
    }};
}
pub(super) use settle_it;
