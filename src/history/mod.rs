//! History: what dispute teams and auditors ask of the stored bets. Only reads.
//!
//! | file | holds |
//! |---|---|
//! | `bundle` | the evidence of one bet, and its check without a database |
//! | `check` | a check and what it came to |
//! | `coverage` | whether every nonce that was handed out is accounted for |

pub mod bundle;
mod check;
pub mod coverage;

use std::sync::Arc;

pub use check::{Check, State};

use crate::db::{DbError, Reader};

/// Questions about the past, over a database or its replica. Cheap to clone.
#[derive(Clone, Debug)]
pub struct History {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    reader: Reader,
}

/// What a question can come to other than its answer.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// A parameter is out of form or out of bounds.
    #[error("{field}: {detail}")]
    Invalid {
        /// The parameter.
        field: &'static str,
        /// What is wrong with it.
        detail: String,
    },
    /// No such session.
    #[error("there is no session of that id")]
    SessionNotFound,
    /// No such bet.
    #[error("there is no bet of that commitment and nonce")]
    BetNotFound,
    /// No such commitment.
    #[error("there is no such commitment")]
    CommitmentNotFound,
    /// The database.
    #[error(transparent)]
    Db(#[from] DbError),
}

impl History {
    /// Over a reader.
    #[must_use]
    pub fn new(reader: Reader) -> Self {
        Self { inner: Arc::new(Inner { reader }) }
    }
}
