//! Answers of the ledger.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use super::values::{KeyId, SpendId};
use crate::db::keys::{KeyRow, KeyState};
use crate::db::{DbError, corrupt};

/// What a token of a batch came to. The order is that of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// It stands as spent under the caller's spend id.
    Fresh,
    /// There is no such key.
    UnknownKey,
    /// The key's window has ended, or it was closed or swept.
    KeyExpired,
    /// The key's window has not begun.
    KeyNotYetValid,
    /// It is spent, under another spend id.
    AlreadySpent,
    /// It could have been spent, but the batch was refused.
    NotSpent,
}

impl Outcome {
    /// The word, or the error code, in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::UnknownKey => "unknown_key",
            Self::KeyExpired => "key_expired",
            Self::KeyNotYetValid => "key_not_yet_valid",
            Self::AlreadySpent => "already_spent",
            Self::NotSpent => "not_spent",
        }
    }
}

/// A token that stands as spent under the caller's spend id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// The caller's spend id.
    pub spend_id: SpendId,
    /// It stood so before this request.
    pub replayed: bool,
}

/// What one token of a batch came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchResult {
    /// What it came to.
    pub outcome: Outcome,
    /// The caller's spend id.
    pub spend_id: SpendId,
    /// It stood as spent under that id before.
    pub replayed: bool,
}

/// A key with its window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The issuer's name for it.
    pub key_id: KeyId,
    /// Begin of the window, inclusive.
    pub redeem_from: DateTime<Utc>,
    /// End of the window, exclusive.
    pub redeem_until: DateTime<Utc>,
    /// How far along it is.
    pub state: KeyState,
}

impl TryFrom<KeyRow> for Key {
    type Error = DbError;

    fn try_from(row: KeyRow) -> Result<Self, DbError> {
        let key_id = row.key_id.parse().map_err(|error| corrupt("token key", format!("key_id: {error}")))?;
        Ok(Self { key_id, redeem_from: row.redeem_from, redeem_until: row.redeem_until, state: row.state })
    }
}

/// A change of a key, and whether it had been made before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedKey {
    /// The key after it.
    pub key: Key,
    /// Nothing changed: it was so before.
    pub replayed: bool,
}

/// What one sweep did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Keys marked swept by it.
    pub marked: Vec<KeyId>,
    /// Keys whose spends were forgotten, with the bytes freed.
    pub dropped: BTreeMap<KeyId, u64>,
    /// Keys whose spends must wait: for a transaction that could have seen the key open, or for a lock.
    pub waiting: Vec<KeyId>,
    /// Another sweep was going on for some of the time; what it did is not told here.
    pub another_at_work: bool,
}

impl Swept {
    /// Nothing is left to do for now.
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty() && !self.another_at_work
    }
}
