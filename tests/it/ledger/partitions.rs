//! I12: spends go on while partitions are made, attached and dropped. That no spend waits longer than a lock timeout is PostgreSQL's to
//! say: the spenders' own timeout is short, and one that waited longer would fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use chrono::Utc;
use fairledger::db::PoolSettings;
use fairledger::ledger::{Ledger, SpendLedger};
use sqlx::{Connection as _, Executor as _};

use super::{
    fresh, hours, key_with_window, ledger, ledger_with, open_key, replayed, settings, spend, sweep_all, token,
};
use crate::harness::TestDb;

/// Ten times that of the function that drops partitions, for a machine that has more to do; a tenth of the default.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);

struct Spenders {
    stop: Arc<AtomicBool>,
    spent: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Spenders {
    async fn start(db: &TestDb) -> Self {
        let hurried = PoolSettings { lock_timeout: LOCK_TIMEOUT, ..PoolSettings::default() };
        let ledger = ledger_with(db, &hurried, settings()).await;
        let (stop, spent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let tasks = (0..4)
            .map(|caller| tokio::spawn(spend_until(ledger.clone(), caller, Arc::clone(&stop), Arc::clone(&spent))))
            .collect();
        Self { stop, spent, tasks }
    }

    async fn end(self) -> u64 {
        self.stop.store(true, SeqCst);
        for task in self.tasks {
            task.await.unwrap();
        }
        self.spent.load(SeqCst)
    }
}

async fn spend_until(ledger: Ledger, caller: u128, stop: Arc<AtomicBool>, spent: Arc<AtomicU64>) {
    for number in 0.. {
        if stop.load(SeqCst) {
            return;
        }
        // Every statement of the ledger: the insert, the second look, the rollback, the batch.
        let one = spend(&token("live", caller << 64 | number << 8));
        assert_eq!(ledger.spend(&one).await.unwrap(), fresh(&one));
        assert_eq!(ledger.spend(&one).await.unwrap(), replayed(&one));
        let batch: Vec<_> = (1..4).map(|more| spend(&token("live", caller << 64 | number << 8 | more))).collect();
        assert!(ledger.spend_each(&batch).await.unwrap().iter().all(|result| !result.replayed));
        ledger.roll_back(&one).await.unwrap();
        spent.fetch_add(4, SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i12_no_spend_waits_for_partitions_being_made_and_dropped() {
    let db = TestDb::new().await;
    let ledger = ledger(&db).await;
    open_key(&ledger, "live").await;
    let spenders = Spenders::start(&db).await;
    let mut dropped = 0;
    for number in 0..40 {
        let now = Utc::now();
        let key = format!("past-{number}");
        key_with_window(&ledger, &key, now - hours(2), now - hours(1)).await;
        dropped += ledger.sweep().await.unwrap().dropped.len();
    }
    let spent = spenders.end().await;
    assert!(spent > 40, "only {spent} spends meanwhile");
    assert!(dropped > 20, "only {dropped} partitions could be dropped under load");
    sweep_all(&ledger).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i12_no_spend_waits_behind_a_sweep_that_waits_for_a_callers_transaction() {
    let db = TestDb::new().await;
    let ledger = ledger(&db).await;
    open_key(&ledger, "live").await;
    let now = Utc::now();
    key_with_window(&ledger, "past", now - hours(2), now - hours(1)).await;
    // What a spend holds to the end of its transaction, without the transaction id that the sweep would wait for first: so the sweep asks
    // for its locks, again and again, and later spends queue behind it.
    let mut connection = db.connect(&db.service_url).await;
    let mut transaction = connection.begin().await.unwrap();
    transaction.execute("LOCK TABLE fairledger.spends IN ROW EXCLUSIVE MODE").await.unwrap();

    let spenders = Spenders::start(&db).await;
    while spenders.spent.load(SeqCst) < 40 {
        let swept = ledger.sweep().await.unwrap();
        assert!(swept.dropped.is_empty() && swept.waiting.len() == 1, "{swept:?}");
        assert!(spenders.tasks.iter().all(|task| !task.is_finished()));
    }
    spenders.end().await;
    transaction.commit().await.unwrap();
    assert_eq!(sweep_all(&ledger).await.dropped.len(), 1);
}
