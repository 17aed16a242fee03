//! What a request of the ledger can come to other than its answer.

use super::model::BatchResult;
use crate::db::{DbError, MaybeConflict};

/// One variant for each thing that a caller can tell apart. The order is that of precedence: where several apply, the first is
/// answered.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// A field is out of form or out of bounds. Nothing was stored.
    #[error("{field}: {detail}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        detail: String,
    },
    /// The caller's own transaction has an isolation level under which the ledger cannot judge a key.
    #[error("a token can only be spent in a READ COMMITTED transaction, this one is {0}")]
    Isolation(String),
    /// No such key.
    #[error("there is no key of that keyId")]
    UnknownKey,
    /// The key's window has ended, or it was closed or swept.
    #[error("the key accepts no more tokens")]
    KeyExpired,
    /// The key's window has not begun.
    #[error("the key does not accept tokens yet")]
    KeyNotYetValid,
    /// The token is spent, under another spend id.
    #[error("the token is already spent")]
    AlreadySpent,
    /// An atomic batch was refused; nothing of it was spent.
    #[error("the batch was refused: nothing of it was spent")]
    BatchRefused {
        /// What each token came to, in order; those that would have been spent are [`super::Outcome::NotSpent`].
        results: Vec<BatchResult>,
    },
    /// No spend of the token stands.
    #[error("the token is not spent")]
    NotSpent,
    /// A spend of the token stands, under another spend id.
    #[error("the token is spent under another spendId")]
    SpentByAnother,
    /// The key was closed or swept: its name is never used again.
    #[error("the keyId was used by a key that is closed or swept: it is never used again")]
    KeyIdRetired,
    /// The key exists with another window.
    #[error("the key exists with another window")]
    KeyExistsWithDifferentWindow,
    /// The key's window begins before the last recovery: what was spent under it may have been lost.
    #[error(
        "the key's window begins before the last recovery: tokens may have been spent under it that nobody remembers"
    )]
    KeyPredatesRecovery,
    /// As many keys are live or to come as may be.
    #[error("{keys_live_max} keys are live or to come already, and no more may be")]
    TooManyLiveKeys {
        /// The bound.
        keys_live_max: u32,
    },
    /// The database.
    #[error(transparent)]
    Db(#[from] DbError),
}

impl LedgerError {
    pub(super) fn invalid(field: &'static str, detail: impl ToString) -> Self {
        Self::Invalid { field, detail: detail.to_string() }
    }
}

impl MaybeConflict for LedgerError {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Db(error) if error.is_conflict())
    }
}

/// What was found of a row has changed before the next statement came. Everything is tried again, a bounded number of times.
pub(super) fn changed_meanwhile() -> LedgerError {
    DbError::Conflict("a spend was rolled back between two looks".into()).into()
}
