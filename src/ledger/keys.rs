//! Registering, closing and listing keys.
//!
//! Keeps I2: a name is never used again, and what was spent under a key before a recovery may be lost, so a window that begins before
//! it is refused (I10). Keeps I12: the list that everybody reads stays short, by a count under a lock.

use chrono::{DateTime, TimeDelta, Utc};

use super::values::{KeyId, stored_time};
use super::{ChangedKey, Key, Ledger, LedgerError, LedgerSettings};
use crate::db::keys::{KeyState, LockedKeys};
use crate::db::{Tx, transaction};

/// A key to be registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRequest {
    /// The issuer's name for it.
    pub key_id: KeyId,
    /// Begin of its window, inclusive: by default now. Taken in whole microseconds.
    pub redeem_from: Option<DateTime<Utc>>,
    /// End of its window, exclusive: by default the length of a window later. Taken in whole microseconds.
    pub redeem_until: Option<DateTime<Utc>>,
}

/// Keys for the coming days, each window opening a day after the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDays {
    /// Their names, in order.
    pub key_ids: Vec<KeyId>,
    /// When the first one opens: by default a day after the last key that is live or to come, or now when there is none.
    pub first_opens: Option<DateTime<Utc>>,
}

impl KeyRequest {
    /// A key whose window is the default one.
    pub fn new(key_id: KeyId) -> Self {
        Self { key_id, redeem_from: None, redeem_until: None }
    }

    fn stored(&self) -> Result<Self, LedgerError> {
        let stored = |field, time: Option<DateTime<Utc>>| match time {
            Some(time) => stored_time(time)
                .map(Some)
                .ok_or_else(|| LedgerError::invalid(field, "must be of a year from 1 to 9999")),
            None => Ok(None),
        };
        Ok(Self {
            key_id: self.key_id.clone(),
            redeem_from: stored("redeemFrom", self.redeem_from)?,
            redeem_until: stored("redeemUntil", self.redeem_until)?,
        })
    }

    /// The window, with what was left out filled in.
    pub(super) fn window(
        &self,
        now: DateTime<Utc>,
        settings: &LedgerSettings,
    ) -> Result<(DateTime<Utc>, DateTime<Utc>), LedgerError> {
        let request = self.stored()?;
        let from = request.redeem_from.or_else(|| stored_time(now)).unwrap_or(now);
        let length = TimeDelta::from_std(settings.window).unwrap_or(TimeDelta::MAX);
        let until = match request.redeem_until {
            Some(until) => until,
            None => from
                .checked_add_signed(length)
                .and_then(stored_time)
                .ok_or_else(|| LedgerError::invalid("redeemUntil", "the window would end after the year 9999"))?,
        };
        if from < until {
            Ok((from, until))
        } else {
            Err(LedgerError::invalid("redeemUntil", "must be later than redeemFrom"))
        }
    }

    /// What asking again for a key that exists comes to.
    pub(super) fn again(&self, key: Key) -> Result<ChangedKey, LedgerError> {
        let request = self.stored()?;
        if key.state != KeyState::Open {
            return Err(LedgerError::KeyIdRetired);
        }
        let same = request.redeem_from.is_none_or(|from| from == key.redeem_from)
            && request.redeem_until.is_none_or(|until| until == key.redeem_until);
        if same { Ok(ChangedKey { key, replayed: true }) } else { Err(LedgerError::KeyExistsWithDifferentWindow) }
    }
}

impl Ledger {
    pub(super) async fn register(&self, request: &KeyRequest) -> Result<ChangedKey, LedgerError> {
        transaction!(self.inner.store, "key.register", |tx| {
            async {
                let lock = tx.lock_keys().await?;
                let changed = register_in(tx, &lock, request, self.settings()).await?;
                if changed.replayed {
                    tx.acknowledge_again().await?;
                }
                Ok::<_, LedgerError>(changed)
            }
            .await
        })
    }

    /// Registers keys for the coming days, all or none, so that neither the issuer nor the partitions are ever late. Keys of those names
    /// that exist keep their windows; the same request again changes nothing.
    ///
    /// # Errors
    /// As [`SpendLedger::register_key`](super::SpendLedger::register_key).
    pub async fn register_days(&self, days: &KeyDays) -> Result<Vec<ChangedKey>, LedgerError> {
        transaction!(self.inner.store, "key.days", |tx| register_days_in(tx, days, self.settings()).await)
    }

    /// Every key there ever was, by the begin of its window: for operators.
    ///
    /// # Errors
    /// The database's.
    pub async fn keys(&self) -> Result<Vec<Key>, LedgerError> {
        let mut tx = self.inner.store.snapshot("key.list").await?;
        let rows = tx.keys().await?;
        tx.rollback().await;
        Ok(rows.into_iter().map(Key::try_from).collect::<Result<_, _>>()?)
    }

    pub(super) async fn close(&self, key_id: &KeyId) -> Result<ChangedKey, LedgerError> {
        transaction!(self.inner.store, "key.close", |tx| {
            async {
                let closed = tx.close_key(key_id.as_str()).await?;
                let key = tx.key(key_id.as_str()).await?.ok_or(LedgerError::UnknownKey)?;
                if !closed {
                    tx.acknowledge_again().await?;
                }
                Ok::<_, LedgerError>(ChangedKey { key: key.try_into()?, replayed: !closed })
            }
            .await
        })
    }

    pub(super) async fn live(&self) -> Result<Vec<Key>, LedgerError> {
        let mut tx = self.inner.store.snapshot("key.live").await?;
        let rows = tx.live_keys().await?;
        tx.rollback().await;
        Ok(rows.into_iter().map(Key::try_from).collect::<Result<_, _>>()?)
    }
}

async fn register_in(
    tx: &mut Tx,
    lock: &LockedKeys,
    request: &KeyRequest,
    settings: &LedgerSettings,
) -> Result<ChangedKey, LedgerError> {
    if let Some(row) = tx.key(request.key_id.as_str()).await? {
        return request.again(row.try_into()?);
    }
    let (from, until) = request.window(lock.now(), settings)?;
    if tx.last_recovery().await?.is_some_and(|recovered_at| from < recovered_at) {
        return Err(LedgerError::KeyPredatesRecovery);
    }
    // A window in the past is not live and does not count: it may be registered to reserve its name.
    if until > lock.now() && tx.live_keys().await?.len() >= settings.keys_live_max as usize {
        return Err(LedgerError::TooManyLiveKeys { keys_live_max: settings.keys_live_max });
    }
    let row = tx.insert_key(lock, request.key_id.as_str(), from, until).await?;
    Ok(ChangedKey { key: row.try_into()?, replayed: false })
}

async fn register_days_in(
    tx: &mut Tx,
    days: &KeyDays,
    settings: &LedgerSettings,
) -> Result<Vec<ChangedKey>, LedgerError> {
    let lock = tx.lock_keys().await?;
    let mut opens = match days.first_opens {
        Some(opens) => opens,
        None => tx.live_keys().await?.last().map_or(lock.now(), |last| last.redeem_from + TimeDelta::days(1)),
    };
    let mut changed = Vec::with_capacity(days.key_ids.len());
    for key_id in &days.key_ids {
        let mut request = KeyRequest::new(key_id.clone());
        // One that exists keeps its window, and those after it follow that.
        if tx.key(key_id.as_str()).await?.is_none() {
            request.redeem_from = Some(opens);
        }
        let registered = register_in(tx, &lock, &request, settings).await?;
        opens = registered.key.redeem_from + TimeDelta::days(1);
        changed.push(registered);
    }
    if changed.iter().any(|key| key.replayed) {
        tx.acknowledge_again().await?;
    }
    Ok(changed)
}
