//! I1: batches that meet. No deadlock, none half-spent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fairledger::db::PoolSettings;
use fairledger::ledger::{Ledger, LedgerError, Outcome, Spend, SpendLedger};
use sqlx::Executor as _;
use tokio::sync::Barrier;

use super::{ledger_with, open_key, settings, spend, standing, token};
use crate::harness::TestDb;

const PAIRS: u128 = 50;
const CALLERS_PER_PAIR: usize = 20;

async fn patient_ledger(db: &TestDb) -> Ledger {
    let patient = PoolSettings { acquire_timeout: Duration::from_secs(60), ..PoolSettings::default() };
    ledger_with(db, &patient, settings()).await
}

/// How many deadlocks PostgreSQL broke in this database. Backends tell when they end.
async fn deadlocks(db: &TestDb) -> i64 {
    let mut admin = db.connect_admin().await;
    loop {
        let others: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'",
        )
        .fetch_one(&mut admin)
        .await
        .unwrap();
        if others == 0 {
            break;
        }
        tokio::task::yield_now().await;
    }
    admin.execute("SELECT pg_stat_clear_snapshot()").await.unwrap();
    sqlx::query_scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        .fetch_one(&mut admin)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_atomic_batches_in_opposite_orders_a_thousand_at_once() {
    let db = TestDb::new().await;
    let services = [patient_ledger(&db).await, patient_ledger(&db).await];
    open_key(&services[0], "k").await;
    open_key(&services[0], "l").await;
    let barrier = Arc::new(Barrier::new(PAIRS as usize * CALLERS_PER_PAIR));
    let mut callers = Vec::new();
    for pair in 0..PAIRS {
        // Every other pair spans two keys.
        let (a, b) = (token("k", 2 * pair), token(if pair % 2 == 0 { "k" } else { "l" }, 2 * pair + 1));
        for caller in 0..CALLERS_PER_PAIR {
            let (service, barrier) = (services[caller % 2].clone(), Arc::clone(&barrier));
            let mut batch = [spend(&a), spend(&b)];
            if caller % 4 < 2 {
                batch.reverse();
            }
            callers.push(tokio::spawn(async move {
                barrier.wait().await;
                (pair, batch.clone(), service.spend_all(&batch).await)
            }));
        }
    }
    let mut winners: HashMap<u128, [Spend; 2]> = HashMap::new();
    for caller in callers {
        match caller.await.unwrap() {
            (pair, batch, Ok(results)) => {
                assert!(results.iter().all(|result| result.outcome == Outcome::Fresh && !result.replayed));
                assert!(winners.insert(pair, batch).is_none(), "a pair was spent twice");
            }
            (_, _, Err(LedgerError::BatchRefused { results })) => {
                assert!(results.iter().any(|result| result.outcome == Outcome::AlreadySpent));
                assert!(results.iter().all(|result| result.outcome != Outcome::Fresh));
            }
            (_, _, Err(error)) => panic!("{error}"),
        }
    }
    assert_eq!(winners.len(), PAIRS as usize);
    for spend in winners.values().flatten() {
        assert_eq!(standing(&db, &spend.token).await, [spend.spend_id.as_uuid()], "a half-spent batch");
    }
    for service in services {
        service.datastore().close().await;
    }
    assert_eq!(deadlocks(&db).await, 0, "deadlocks that were retried are deadlocks still");
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_batches_that_overlap_spend_every_token_once() {
    const TOKENS: u128 = 40;
    let db = TestDb::new().await;
    let services = [patient_ledger(&db).await, patient_ledger(&db).await];
    open_key(&services[0], "k").await;
    let barrier = Arc::new(Barrier::new(24));
    let callers: Vec<_> = (0..24u128)
        .map(|caller| {
            let (service, barrier) = (services[caller as usize % 2].clone(), Arc::clone(&barrier));
            // Each caller's own order and its own choice.
            let batch: Vec<Spend> = (0..TOKENS)
                .map(|place| spend(&token("k", (place * 7 + caller * 11) % TOKENS)))
                .skip(caller as usize)
                .collect();
            tokio::spawn(async move {
                barrier.wait().await;
                let results = service.spend_each(&batch).await.unwrap();
                batch.into_iter().zip(results).collect::<Vec<_>>()
            })
        })
        .collect();
    let mut fresh = HashMap::new();
    for caller in callers {
        for (spend, result) in caller.await.unwrap() {
            match result.outcome {
                Outcome::Fresh => {
                    assert!(!result.replayed);
                    assert!(fresh.insert(spend.token.clone(), spend.spend_id).is_none(), "fresh twice");
                }
                Outcome::AlreadySpent => {}
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(fresh.len(), TOKENS as usize);
    for (token, spend_id) in fresh {
        assert_eq!(standing(&db, &token).await, [spend_id.as_uuid()]);
    }
}
