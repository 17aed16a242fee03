//! The double-spend ledger: a single-use token is accepted once, and remembered exactly as long as it could be accepted again.
//!
//! Keeps I1, I2, I9, I12 and I13. Only the database's clock counts. docs/LEDGER.md walks through a spend.
//!
//! | file | holds |
//! |---|---|
//! | `spends` | spending one token or many, giving one back, and the form inside a caller's own transaction |
//! | `keys` | registering keys, also days ahead, closing and listing them |
//! | `sweep` | forgetting what cannot matter any more |
//! | `judge` | what a token that could not be spent came to |
//! | `memory` | the same ledger without a database |
//! | `model`, `values`, `error` | answers, checked values, refusals |

pub mod error;
mod judge;
mod keys;
mod memory;
pub mod model;
mod spends;
mod sweep;
pub mod values;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use error::LedgerError;
pub use keys::{KeyDays, KeyRequest};
pub use memory::{Clock, MemoryLedger};
pub use model::{BatchResult, ChangedKey, Key, Outcome, Spent, Swept};
pub use spends::spend_in;
pub use sweep::SweepCounts;
pub use values::{KeyId, Spend, SpendId, Token, TokenNonce};

use crate::db::Datastore;
pub use crate::db::group::GroupSettings;
use crate::db::group::{Group, GroupStats, Routing};
pub use crate::db::keys::KeyState;

/// Tokens in one batch at the most.
pub const BATCH_MAX: usize = 1_000;

/// Limits and times of the ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerSettings {
    /// Keys that are open and whose window has not ended, at the most: everybody reads their list.
    pub keys_live_max: u32,
    /// How long a window is when nothing else is said.
    pub window: Duration,
    /// How often the sweeper looks for keys whose window has ended.
    pub sweep_interval: Duration,
    /// How long one try to drop a partition waits for transactions in its way, 5 s at the most. No lock is held meanwhile.
    pub sweep_wait: Duration,
    /// Spends of many callers are committed together; none: each in a transaction of its own.
    pub group: Option<GroupSettings>,
}

impl Default for LedgerSettings {
    fn default() -> Self {
        Self {
            keys_live_max: 4,
            window: Duration::from_secs(30 * 60 * 60),
            sweep_interval: Duration::from_secs(60),
            sweep_wait: Duration::from_secs(2),
            group: Some(GroupSettings::default()),
        }
    }
}

/// What every ledger does, whatever it remembers with.
#[async_trait]
pub trait SpendLedger: Send + Sync {
    /// Spends a token. The same spend id again is answered as replayed, until the key is swept.
    ///
    /// # Errors
    /// In this order of precedence: [`LedgerError::UnknownKey`], [`LedgerError::KeyExpired`], [`LedgerError::KeyNotYetValid`],
    /// [`LedgerError::AlreadySpent`]; and the database's.
    async fn spend(&self, spend: &Spend) -> Result<Spent, LedgerError>;

    /// Spends up to [`BATCH_MAX`] tokens, each for itself: some may be refused, and the rest are spent. Results are in the order of the
    /// tokens. Of the same token twice the first counts.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`] when there are too many or none; and the database's, and then nothing was spent.
    async fn spend_each(&self, spends: &[Spend]) -> Result<Vec<BatchResult>, LedgerError>;

    /// Spends up to [`BATCH_MAX`] tokens or none. The same token twice refuses the batch.
    ///
    /// # Errors
    /// As [`SpendLedger::spend_each`], and [`LedgerError::BatchRefused`].
    async fn spend_all(&self, spends: &[Spend]) -> Result<Vec<BatchResult>, LedgerError>;

    /// Gives a token back whose spend was answered. Roll back only such a one: a spend that is still under way may come later.
    ///
    /// # Errors
    /// [`LedgerError::NotSpent`], [`LedgerError::SpentByAnother`]; and the database's.
    async fn roll_back(&self, spend: &Spend) -> Result<(), LedgerError>;

    /// Registers a key. The same again changes nothing; a time left out matches what is stored.
    ///
    /// # Errors
    /// In this order of precedence: [`LedgerError::Invalid`], [`LedgerError::KeyIdRetired`],
    /// [`LedgerError::KeyExistsWithDifferentWindow`], [`LedgerError::KeyPredatesRecovery`], [`LedgerError::TooManyLiveKeys`]; and the
    /// database's.
    async fn register_key(&self, request: &KeyRequest) -> Result<ChangedKey, LedgerError>;

    /// Closes a key: no spend that begins after this is answered is accepted under it.
    ///
    /// # Errors
    /// [`LedgerError::UnknownKey`]; and the database's.
    async fn close_key(&self, key_id: &KeyId) -> Result<ChangedKey, LedgerError>;

    /// The keys that everybody may know of: open, and their window has not ended; by the begin of their window.
    ///
    /// # Errors
    /// The database's.
    async fn live_keys(&self) -> Result<Vec<Key>, LedgerError>;

    /// Forgets what was spent under keys whose window has ended.
    ///
    /// # Errors
    /// The database's; what was done before stays done.
    async fn sweep(&self) -> Result<Swept, LedgerError>;
}

/// The ledger on PostgreSQL. Cheap to clone.
#[derive(Clone)]
pub struct Ledger {
    inner: Arc<Inner>,
}

struct Inner {
    store: Datastore,
    settings: LedgerSettings,
    group: Option<Group<spends::SpendGroup>>,
    counters: sweep::Counters,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("settings", &self.inner.settings).finish_non_exhaustive()
    }
}

impl Ledger {
    /// On a migrated database.
    pub fn new(store: Datastore, settings: LedgerSettings) -> Self {
        let group = settings.group.clone();
        let group = group.map(|group| Group::new(store.clone(), spends::SpendGroup::default(), group, Routing::Any));
        Self { inner: Arc::new(Inner { store, settings, group, counters: sweep::Counters::default() }) }
    }

    /// What committing in groups did so far; none when spends go alone.
    pub fn group_stats(&self) -> Option<GroupStats> {
        self.inner.group.as_ref().map(Group::stats)
    }

    /// Takes no more single spends, and commits those that wait.
    pub async fn stop(&self) {
        if let Some(group) = &self.inner.group {
            group.close().await;
        }
    }

    /// The datastore beneath.
    pub fn datastore(&self) -> &Datastore {
        &self.inner.store
    }

    /// Limits and times in force.
    pub fn settings(&self) -> &LedgerSettings {
        &self.inner.settings
    }
}

#[async_trait]
impl SpendLedger for Ledger {
    async fn spend(&self, spend: &Spend) -> Result<Spent, LedgerError> {
        self.spend_one(spend).await
    }

    async fn spend_each(&self, spends: &[Spend]) -> Result<Vec<BatchResult>, LedgerError> {
        self.spend_many(spends).await
    }

    async fn spend_all(&self, spends: &[Spend]) -> Result<Vec<BatchResult>, LedgerError> {
        self.spend_together(spends).await
    }

    async fn roll_back(&self, spend: &Spend) -> Result<(), LedgerError> {
        self.give_back(spend).await
    }

    async fn register_key(&self, request: &KeyRequest) -> Result<ChangedKey, LedgerError> {
        self.register(request).await
    }

    async fn close_key(&self, key_id: &KeyId) -> Result<ChangedKey, LedgerError> {
        self.close(key_id).await
    }

    async fn live_keys(&self) -> Result<Vec<Key>, LedgerError> {
        self.live().await
    }

    async fn sweep(&self) -> Result<Swept, LedgerError> {
        self.sweep_now().await
    }
}

/// A batch is not empty and not too long.
fn check_batch(spends: &[Spend]) -> Result<(), LedgerError> {
    if (1..=BATCH_MAX).contains(&spends.len()) {
        Ok(())
    } else {
        Err(LedgerError::invalid("spends", format!("must be 1 to {BATCH_MAX} spends")))
    }
}
