//! The double-spend ledger: single-use tokens, their keys, and forgetting them in time.

mod batches;
mod conformance;
mod group;
mod keys;
mod model;
mod partitions;
mod privacy;
mod rights;
mod rollback;
mod spends;
mod sweep;
mod transactions;
mod windows;

use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use fairledger::db::{Datastore, PoolSettings};
use fairledger::ledger::{
    Key, KeyId, KeyRequest, Ledger, LedgerError, LedgerSettings, Spend, SpendLedger, Spent, Swept, Token, TokenNonce,
};
use uuid::Uuid;

use crate::harness::TestDb;

/// A ledger over a pool of its own, as a service process has one.
async fn ledger(db: &TestDb) -> Ledger {
    ledger_with(db, &PoolSettings::default(), settings()).await
}

async fn ledger_with(db: &TestDb, pool: &PoolSettings, settings: LedgerSettings) -> Ledger {
    Ledger::new(Datastore::connect(&db.service_url, pool).await.unwrap(), settings)
}

/// The defaults, but for a sweep that does not wait long for what a test keeps in its way.
fn settings() -> LedgerSettings {
    LedgerSettings { sweep_wait: Duration::from_millis(100), ..LedgerSettings::default() }
}

/// Every spend in a transaction of its own.
async fn ledger_alone(db: &TestDb) -> Ledger {
    ledger_with(db, &PoolSettings::default(), LedgerSettings { group: None, ..settings() }).await
}

fn key_id(text: &str) -> KeyId {
    text.parse().unwrap()
}

/// A token of its own for every number.
fn token(key: &str, number: u128) -> Token {
    let mut nonce = [0x5a; 32];
    nonce[16..].copy_from_slice(&number.to_be_bytes());
    Token { key_id: key_id(key), nonce: TokenNonce::from_bytes(&nonce).unwrap() }
}

fn spend(token: &Token) -> Spend {
    Spend::new(token.clone())
}

/// A key whose window is open for the length of any test.
async fn open_key(ledger: &impl SpendLedger, key: &str) -> Key {
    ledger.register_key(&KeyRequest::new(key_id(key))).await.unwrap().key
}

/// A key with a window of its own.
async fn key_with_window(ledger: &impl SpendLedger, key: &str, from: DateTime<Utc>, until: DateTime<Utc>) -> Key {
    let request = KeyRequest { key_id: key_id(key), redeem_from: Some(from), redeem_until: Some(until) };
    ledger.register_key(&request).await.unwrap().key
}

fn fresh(spend: &Spend) -> Spent {
    Spent { spend_id: spend.spend_id, replayed: false }
}

fn replayed(spend: &Spend) -> Spent {
    Spent { spend_id: spend.spend_id, replayed: true }
}

/// The code of what a request came to.
fn code<T>(result: &Result<T, LedgerError>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(LedgerError::Invalid { .. }) => "invalid_request",
        Err(LedgerError::Isolation(_)) => "isolation",
        Err(LedgerError::UnknownKey) => "unknown_key",
        Err(LedgerError::KeyExpired) => "key_expired",
        Err(LedgerError::KeyNotYetValid) => "key_not_yet_valid",
        Err(LedgerError::AlreadySpent) => "already_spent",
        Err(LedgerError::BatchRefused { .. }) => "batch_refused",
        Err(LedgerError::NotSpent) => "not_spent",
        Err(LedgerError::SpentByAnother) => "spent_by_another",
        Err(LedgerError::KeyIdRetired) => "key_id_retired",
        Err(LedgerError::KeyExistsWithDifferentWindow) => "key_exists_with_different_window",
        Err(LedgerError::KeyPredatesRecovery) => "key_predates_recovery",
        Err(LedgerError::TooManyLiveKeys { .. }) => "too_many_live_keys",
        Err(LedgerError::Db(error)) => panic!("{error}"),
    }
}

/// The spend ids that stand for a token, as the owner sees them.
async fn standing(db: &TestDb, token: &Token) -> Vec<Uuid> {
    let mut owner = db.connect(&db.owner_url).await;
    sqlx::query_scalar(
        "SELECT spend_id FROM fairledger.spends JOIN fairledger.token_keys USING (key_no) WHERE key_id = $1 AND nonce = $2",
    )
    .bind(token.key_id.as_str())
    .bind(token.nonce.as_bytes())
    .fetch_all(&mut owner)
    .await
    .unwrap()
}

/// Whether a key's partition is there.
async fn has_partition(db: &TestDb, key: &str) -> bool {
    let mut owner = db.connect(&db.owner_url).await;
    sqlx::query_scalar(
        "SELECT to_regclass('fairledger_spends.key_' || key_no) IS NOT NULL FROM fairledger.token_keys WHERE key_id = $1",
    )
    .bind(key)
    .fetch_one(&mut owner)
    .await
    .unwrap()
}

/// Sweeps until something holds of all that it did, and of what waits still. A sweep waits for every older transaction of the whole
/// cluster, so for those of tests that run beside this one.
async fn sweep_until(ledger: &impl SpendLedger, enough: impl Fn(&Swept) -> bool) -> Swept {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut all = Swept::default();
    loop {
        let swept = ledger.sweep().await.unwrap();
        all.marked.extend(swept.marked);
        all.dropped.extend(swept.dropped);
        all.waiting = swept.waiting;
        all.another_at_work = swept.another_at_work;
        if enough(&all) {
            return all;
        }
        assert!(Instant::now() < deadline, "only {all:?}");
    }
}

/// Sweeps until nothing is left to do.
async fn sweep_all(ledger: &impl SpendLedger) -> Swept {
    sweep_until(ledger, Swept::is_done).await
}

/// Ends the window of a key as of this moment, which takes no waiting: its owner may move an end earlier.
async fn end_window(db: &TestDb, key: &str) {
    let mut owner = db.connect(&db.owner_url).await;
    let ended = sqlx::query("UPDATE fairledger.token_keys SET redeem_until = clock_timestamp() WHERE key_id = $1")
        .bind(key)
        .execute(&mut owner)
        .await
        .unwrap();
    assert_eq!(ended.rows_affected(), 1);
}

fn hours(hours: i64) -> TimeDelta {
    TimeDelta::hours(hours)
}
