//! A check and what it came to, as coverage and bundles tell it. The words are those of [`crate::gfs::inspect`], with one more: an
//! observation that accuses nobody.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a check came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It is as it must be.
    Matches,
    /// It is not as it must be.
    Mismatch,
    /// Unusual, with an innocent explanation that the detail gives.
    Noted,
    /// What is there does not suffice to tell.
    NotProvable,
}

/// A check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Its name, always the same.
    pub name: String,
    /// What it came to.
    pub state: State,
    /// What was compared or found, in a sentence.
    pub detail: String,
}

impl Check {
    pub(super) fn new(name: &str, state: State, detail: impl Into<String>) -> Self {
        Self { name: name.to_owned(), state, detail: detail.into() }
    }

    /// A check that holds, or that fails with the given words.
    pub(super) fn unless(name: &str, fault: Option<String>, holds: &str) -> Self {
        match fault {
            Some(fault) => Self::new(name, State::Mismatch, fault),
            None => Self::new(name, State::Matches, holds),
        }
    }
}
