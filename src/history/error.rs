//! What looking through the history can come to other than its answer.

use crate::db::DbError;

/// One variant for each thing that a caller can tell apart.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// As many exports are under way as may be.
    #[error("too many exports are under way: try again when one has ended")]
    TooManyExports,
    /// A filter or parameter is out of form.
    #[error("{field}: {detail}")]
    Invalid {
        /// Its name.
        field: &'static str,
        /// What is wrong with it.
        detail: String,
    },
    /// No such session.
    #[error("there is no session of that id")]
    SessionNotFound,
    /// No such commitment.
    #[error("there is no such commitment")]
    CommitmentNotFound,
    /// No such bet.
    #[error("there is no bet of that commitment and nonce")]
    BetNotFound,
    /// What came before, a page or the part of an export, was read elsewhere, and what it counted on has not come here yet.
    #[error("what came before is of a later time than the database that was read: try again shortly")]
    Behind,
    /// The database.
    #[error(transparent)]
    Db(#[from] DbError),
}

impl HistoryError {
    pub(super) fn invalid(field: &'static str, detail: impl Into<String>) -> Self {
        Self::Invalid { field, detail: detail.into() }
    }
}
