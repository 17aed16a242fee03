//! The ledger without a database: for tests of applications, and for measuring the database against.
//!
//! It keeps I1 and I2 as long as its process lives, and forgets everything with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::judge::{Verdict, judge, outcome};
use super::keys::KeyRequest;
use super::model::{BatchResult, ChangedKey, Key, Outcome, Spent, Swept};
use super::values::{KeyId, Spend, Token, TokenNonce};
use super::{LedgerError, LedgerSettings, SpendLedger, check_batch};
use crate::db::keys::KeyState;
use crate::db::spends::{KeyStanding, Standing};

/// Where a [`MemoryLedger`] gets the time from.
pub type Clock = Arc<dyn Fn() -> DateTime<Utc> + Send + Sync>;

/// A ledger in memory. Clones share what they remember.
#[derive(Clone)]
pub struct MemoryLedger {
    keys: Arc<Mutex<HashMap<KeyId, MemoryKey>>>,
    clock: Clock,
    settings: LedgerSettings,
}

struct MemoryKey {
    key: Key,
    spends: HashMap<TokenNonce, Uuid>,
}

impl std::fmt::Debug for MemoryLedger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryLedger").field("settings", &self.settings).finish_non_exhaustive()
    }
}

type Keys = HashMap<KeyId, MemoryKey>;

fn standing(keys: &Keys, token: &Token, now: DateTime<Utc>) -> Standing {
    let found = keys.get(&token.key_id);
    Standing {
        key: found.map(|found| KeyStanding {
            state: found.key.state,
            early: now < found.key.redeem_from,
            late: now >= found.key.redeem_until,
        }),
        spend_id: found.and_then(|found| found.spends.get(&token.nonce)).copied(),
        inserted_here: false,
    }
}

fn spend_in(keys: &mut Keys, spend: &Spend, now: DateTime<Utc>) -> Result<Spent, LedgerError> {
    match judge(&standing(keys, &spend.token, now), spend.spend_id) {
        Verdict::Stands => Ok(Spent { spend_id: spend.spend_id, replayed: true }),
        Verdict::Refused(refusal) => Err(refusal.into()),
        Verdict::Free => {
            let key = keys.get_mut(&spend.token.key_id).ok_or(LedgerError::UnknownKey)?;
            key.spends.insert(spend.token.nonce.clone(), spend.spend_id.as_uuid());
            Ok(Spent { spend_id: spend.spend_id, replayed: false })
        }
    }
}

fn is_live(key: &Key, now: DateTime<Utc>) -> bool {
    key.state == KeyState::Open && key.redeem_until > now
}

impl MemoryLedger {
    /// By the machine's own clock.
    pub fn new(settings: LedgerSettings) -> Self {
        Self::with_clock(settings, Arc::new(Utc::now))
    }

    /// By another clock.
    pub fn with_clock(settings: LedgerSettings, clock: Clock) -> Self {
        Self { keys: Arc::default(), clock, settings }
    }

    /// All keys under their lock, and the time once it is held.
    fn locked(&self) -> (MutexGuard<'_, Keys>, DateTime<Utc>) {
        // Nothing panics half-way through a change.
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        (keys, (self.clock)())
    }
}

#[async_trait]
impl SpendLedger for MemoryLedger {
    async fn spend(&self, spend: &Spend) -> Result<Spent, LedgerError> {
        let (mut keys, now) = self.locked();
        spend_in(&mut keys, spend, now)
    }

    async fn spend_each(&self, spends: &[Spend]) -> Result<Vec<BatchResult>, LedgerError> {
        check_batch(spends)?;
        let (mut keys, now) = self.locked();
        Ok(spends
            .iter()
            .map(|spend| {
                let (outcome, replayed) = match spend_in(&mut keys, spend, now) {
                    Ok(spent) => (Outcome::Fresh, spent.replayed),
                    Err(_) => outcome(&standing(&keys, &spend.token, now), spend.spend_id),
                };
                BatchResult { outcome, spend_id: spend.spend_id, replayed }
            })
            .collect())
    }

    async fn spend_all(&self, spends: &[Spend]) -> Result<Vec<BatchResult>, LedgerError> {
        check_batch(spends)?;
        let (mut keys, now) = self.locked();
        let mut seen = std::collections::HashSet::new();
        let mut results = Vec::with_capacity(spends.len());
        for spend in spends {
            let (outcome, replayed) = if seen.insert(&spend.token) {
                outcome(&standing(&keys, &spend.token, now), spend.spend_id)
            } else {
                (Outcome::AlreadySpent, false)
            };
            results.push(BatchResult { outcome, spend_id: spend.spend_id, replayed });
        }
        if results.iter().any(|result| !matches!(result.outcome, Outcome::Fresh | Outcome::NotSpent)) {
            return Err(LedgerError::BatchRefused { results });
        }
        for (spend, result) in spends.iter().zip(&mut results) {
            spend_in(&mut keys, spend, now)?;
            result.outcome = Outcome::Fresh;
        }
        Ok(results)
    }

    async fn roll_back(&self, spend: &Spend) -> Result<(), LedgerError> {
        let (mut keys, _) = self.locked();
        let key = keys.get_mut(&spend.token.key_id).ok_or(LedgerError::NotSpent)?;
        match key.spends.get(&spend.token.nonce) {
            None => Err(LedgerError::NotSpent),
            Some(id) if *id != spend.spend_id.as_uuid() => Err(LedgerError::SpentByAnother),
            Some(_) => {
                key.spends.remove(&spend.token.nonce);
                Ok(())
            }
        }
    }

    async fn register_key(&self, request: &KeyRequest) -> Result<ChangedKey, LedgerError> {
        let (mut keys, now) = self.locked();
        if let Some(found) = keys.get(&request.key_id) {
            return request.again(found.key.clone());
        }
        let (redeem_from, redeem_until) = request.window(now, &self.settings)?;
        let live = keys.values().filter(|found| is_live(&found.key, now)).count();
        if redeem_until > now && live >= self.settings.keys_live_max as usize {
            return Err(LedgerError::TooManyLiveKeys { keys_live_max: self.settings.keys_live_max });
        }
        let key = Key { key_id: request.key_id.clone(), redeem_from, redeem_until, state: KeyState::Open };
        keys.insert(request.key_id.clone(), MemoryKey { key: key.clone(), spends: HashMap::new() });
        Ok(ChangedKey { key, replayed: false })
    }

    async fn close_key(&self, key_id: &KeyId) -> Result<ChangedKey, LedgerError> {
        let (mut keys, _) = self.locked();
        let found = keys.get_mut(key_id).ok_or(LedgerError::UnknownKey)?;
        let replayed = found.key.state != KeyState::Open;
        if !replayed {
            found.key.state = KeyState::Closed;
        }
        Ok(ChangedKey { key: found.key.clone(), replayed })
    }

    async fn live_keys(&self) -> Result<Vec<Key>, LedgerError> {
        let (keys, now) = self.locked();
        let mut live: Vec<Key> =
            keys.values().map(|found| &found.key).filter(|key| is_live(key, now)).cloned().collect();
        live.sort_by(|a, b| (a.redeem_from, &a.key_id).cmp(&(b.redeem_from, &b.key_id)));
        Ok(live)
    }

    async fn sweep(&self) -> Result<Swept, LedgerError> {
        let (mut keys, now) = self.locked();
        let mut swept = Swept::default();
        for found in keys.values_mut() {
            if found.key.state != KeyState::Swept && found.key.redeem_until <= now {
                found.key.state = KeyState::Swept;
                found.spends = HashMap::new();
                swept.marked.push(found.key.key_id.clone());
                // What it freed is the allocator's business.
                swept.dropped.insert(found.key.key_id.clone(), 0);
            }
        }
        swept.marked.sort();
        Ok(swept)
    }
}
