//! Spends of many callers in one transaction: who is told what when something goes wrong for one of them, or for all.

use std::sync::Arc;
use std::time::Duration;

use fairledger::db::{Datastore, DbError, PoolSettings};
use fairledger::ledger::{GroupSettings, Ledger, LedgerError, LedgerSettings, Spend, SpendLedger as _, spend_in};
use futures_util::future::join_all;
use sqlx::Connection as _;
use tokio::sync::Barrier;

use super::{code, fresh, key_id, ledger, open_key, replayed, settings, spend, standing, token};
use crate::harness::{Proxy, TestDb};

/// One writer, so that what queues while it is busy comes in one batch.
fn one_writer() -> LedgerSettings {
    LedgerSettings { group: Some(GroupSettings { writers: 1, ..GroupSettings::default() }), ..settings() }
}

async fn ledger_through(url: &str, settings: LedgerSettings) -> Ledger {
    Ledger::new(Datastore::connect(url, &PoolSettings::default()).await.unwrap(), settings)
}

/// Begins spends without waiting for them, in order.
fn begin(
    ledger: &Ledger,
    spends: &[Spend],
) -> Vec<tokio::task::JoinHandle<Result<fairledger::ledger::Spent, LedgerError>>> {
    spends
        .iter()
        .map(|spend| {
            let (ledger, spend) = (ledger.clone(), spend.clone());
            tokio::spawn(async move { ledger.spend(&spend).await })
        })
        .collect()
}

const SOMEONE_WAITS: &str =
    "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";

/// Keeps the writer busy with a token that the caller's own transaction holds, until that ends; gives the transaction's connection.
async fn hold(db: &TestDb, held: &Spend) -> sqlx::PgConnection {
    let mut connection = db.connect(&db.service_url).await;
    sqlx::query("BEGIN").execute(&mut connection).await.unwrap();
    spend_in(&mut connection, held).await.unwrap();
    connection
}

async fn queued(ledger: &Ledger, count: usize) {
    while ledger.group_stats().unwrap().queued < count {
        tokio::task::yield_now().await;
    }
}

fn patient(settings: LedgerSettings) -> LedgerSettings {
    let group = settings.group.map(|group| GroupSettings { lock_timeout: Duration::from_secs(60), ..group });
    LedgerSettings { group, ..settings }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_tokens_fail_alone_and_the_same_token_twice_follows_the_first() {
    let db = TestDb::new().await;
    let ledger = ledger_through(&db.service_url, patient(one_writer())).await;
    open_key(&ledger, "k").await;
    open_key(&ledger, "other").await;
    open_key(&ledger, "closed").await;
    ledger.close_key(&key_id("closed")).await.unwrap();
    let stood = spend(&token("k", 2));
    ledger.spend(&stood).await.unwrap();
    let before = ledger.group_stats().unwrap();

    let mut holder = hold(&db, &spend(&token("k", 1))).await;
    let waiting = begin(&ledger, &[spend(&token("k", 1))]);
    db.wait_until(SOMEONE_WAITS).await;
    let first = spend(&token("other", 5));
    let batch = [
        first.clone(),
        spend(&token("k", 2)),
        stood.clone(),
        spend(&token("unknown", 1)),
        spend(&token("closed", 1)),
        spend(&token("k", 9)),
        first.clone(),
        spend(&token("other", 5)),
    ];
    let mut tasks = Vec::new();
    for (place, spend) in batch.iter().enumerate() {
        tasks.extend(begin(&ledger, std::slice::from_ref(spend)));
        queued(&ledger, place + 1).await;
    }
    sqlx::query("ROLLBACK").execute(&mut holder).await.unwrap();
    assert_eq!(code(&join_all(waiting).await.remove(0).unwrap()), "ok", "what was in its way is gone");
    let results: Vec<_> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
    let codes: Vec<_> = results.iter().map(code).collect();
    assert_eq!(codes, ["ok", "already_spent", "ok", "unknown_key", "key_expired", "ok", "ok", "already_spent"]);
    assert_eq!(results[0].as_ref().unwrap(), &fresh(&first));
    assert_eq!(results[2].as_ref().unwrap(), &replayed(&stood));
    assert_eq!(results[6].as_ref().unwrap(), &replayed(&first));
    let after = ledger.group_stats().unwrap();
    assert_eq!(after.sizes.counts.iter().sum::<u64>(), before.sizes.counts.iter().sum::<u64>() + 2, "two batches");
    assert_eq!((after.failed, after.refused), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_a_lost_answer_to_a_batchs_commit_is_unknown_to_all_and_each_learns_by_sending_again() {
    let db = TestDb::new().await;
    let proxy = Proxy::start(&db.service_url).await;
    let ledger = ledger_through(&proxy.url(&db.service_url), patient(one_writer())).await;
    open_key(&ledger, "k").await;
    for cut_before in [false, true] {
        let numbers = if cut_before { 100..120 } else { 0..20 };
        let mut holder = hold(&db, &spend(&token("k", numbers.start))).await;
        let waiting = begin(&ledger, &[spend(&token("k", numbers.start))]);
        db.wait_until(SOMEONE_WAITS).await;
        let spends: Vec<Spend> = (numbers.start + 1..numbers.end).map(|number| spend(&token("k", number))).collect();
        let tasks = begin(&ledger, &spends);
        queued(&ledger, spends.len()).await;
        sqlx::query("COMMIT").execute(&mut holder).await.unwrap();
        assert_eq!(code(&join_all(waiting).await.remove(0).unwrap()), "already_spent");
        // So that the next commit is that of those below.
        assert!(join_all(tasks).await.into_iter().all(|done| done.unwrap().is_ok()));
        let barrier = Arc::new(Barrier::new(20));
        let late: Vec<Spend> = (0..20).map(|number| spend(&token("k", 1_000 + numbers.start + number))).collect();
        if cut_before {
            proxy.cut_before(b"COMMIT");
        } else {
            proxy.cut_after_client_sends(b"COMMIT");
        }
        let results = join_all(late.iter().map(|spend| {
            let (ledger, barrier, spend) = (ledger.clone(), barrier.clone(), spend.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                (ledger.spend(&spend).await, spend)
            })
        }))
        .await;
        let mut unknown = 0;
        for (result, spend) in results.into_iter().map(Result::unwrap) {
            match result {
                Ok(spent) => assert_eq!(spent, fresh(&spend)),
                Err(LedgerError::Db(DbError::OutcomeUnknown(_))) => {
                    unknown += 1;
                    assert!(!standing(&db, &spend.token).await.is_empty() || cut_before, "it was committed");
                    let again = ledger.spend(&spend).await.unwrap();
                    assert_eq!(again.replayed, !cut_before);
                }
                Err(error) => panic!("{error}"),
            }
        }
        let failed = ledger.group_stats().unwrap().failed;
        assert!(unknown > 0 && failed > 0, "no batch was cut: {unknown} unknown, {failed} failed");
        proxy.await_cuts(1 + u64::from(cut_before)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i12_a_full_queue_is_overloaded_at_once_and_nothing_is_done() {
    let db = TestDb::new().await;
    let group =
        GroupSettings { queue_max: 3, writers: 1, lock_timeout: Duration::from_secs(60), ..GroupSettings::default() };
    let ledger = ledger_through(&db.service_url, LedgerSettings { group: Some(group), ..settings() }).await;
    open_key(&ledger, "k").await;
    let mut holder = hold(&db, &spend(&token("k", 1))).await;
    let mut tasks = begin(&ledger, &[spend(&token("k", 1))]);
    db.wait_until(SOMEONE_WAITS).await;
    tasks.extend(begin(&ledger, &[spend(&token("k", 2)), spend(&token("k", 3)), spend(&token("k", 4))]));
    queued(&ledger, 3).await;
    let refused = spend(&token("k", 5));
    let answer = ledger.spend(&refused).await;
    assert!(matches!(answer, Err(LedgerError::Db(DbError::Overloaded))), "{answer:?}");
    assert_eq!(ledger.group_stats().unwrap().refused, 1);
    sqlx::query("ROLLBACK").execute(&mut holder).await.unwrap();
    assert!(join_all(tasks).await.into_iter().all(|done| done.unwrap().is_ok()));
    assert!(standing(&db, &refused.token).await.is_empty());
    assert_eq!(ledger.spend(&refused).await.unwrap(), fresh(&refused));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_goes_away_changes_nothing_for_the_others() {
    let db = TestDb::new().await;
    let ledger = ledger_through(&db.service_url, patient(one_writer())).await;
    open_key(&ledger, "k").await;
    let mut holder = hold(&db, &spend(&token("k", 1))).await;
    let held = begin(&ledger, &[spend(&token("k", 1))]);
    db.wait_until(SOMEONE_WAITS).await;
    let spends: Vec<Spend> = (10..20).map(|number| spend(&token("k", number))).collect();
    let tasks = begin(&ledger, &spends);
    queued(&ledger, spends.len()).await;
    held[0].abort();
    tasks[3].abort();
    sqlx::query("ROLLBACK").execute(&mut holder).await.unwrap();
    for (place, task) in tasks.into_iter().enumerate() {
        match task.await {
            Ok(spent) => assert_eq!(spent.unwrap(), fresh(&spends[place])),
            Err(gone) => assert!(gone.is_cancelled() && place == 3),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_another_transaction_holds_keeps_only_its_own_caller_waiting() {
    let db = TestDb::new().await;
    let ledger = ledger_through(&db.service_url, one_writer()).await;
    open_key(&ledger, "k").await;
    let mut holder = hold(&db, &spend(&token("k", 1))).await;
    let held = begin(&ledger, &[spend(&token("k", 1))]).remove(0);
    for number in 2..40 {
        let other = spend(&token("k", number));
        assert_eq!(ledger.spend(&other).await.unwrap(), fresh(&other));
    }
    assert!(!held.is_finished());
    sqlx::query("COMMIT").execute(&mut holder).await.unwrap();
    assert_eq!(code(&held.await.unwrap()), "already_spent");
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_commits_what_waits_and_takes_nothing_more() {
    let db = TestDb::new().await;
    let ledger = ledger_through(&db.service_url, patient(one_writer())).await;
    open_key(&ledger, "k").await;
    let mut holder = hold(&db, &spend(&token("k", 1))).await;
    let mut tasks = begin(&ledger, &[spend(&token("k", 1))]);
    db.wait_until(SOMEONE_WAITS).await;
    tasks.extend(begin(&ledger, &[spend(&token("k", 2)), spend(&token("k", 3))]));
    queued(&ledger, 2).await;
    let stopping = tokio::spawn({
        let ledger = ledger.clone();
        async move { ledger.stop().await }
    });
    sqlx::query("ROLLBACK").execute(&mut holder).await.unwrap();
    stopping.await.unwrap();
    assert!(join_all(tasks).await.into_iter().all(|done| done.unwrap().is_ok()));
    let late = ledger.spend(&spend(&token("k", 4))).await;
    assert!(matches!(late, Err(LedgerError::Db(DbError::Unavailable(_)))), "{late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_two_services_that_spend_the_same_tokens_at_once_spend_each_once_and_never_deadlock() {
    let db = TestDb::new().await;
    let services = [ledger(&db).await, ledger(&db).await];
    open_key(&services[0], "k").await;
    open_key(&services[0], "l").await;
    let barrier = Arc::new(Barrier::new(64));
    let callers = (0..64_u128).map(|caller| {
        let (ledger, barrier) = (services[caller as usize % 2].clone(), barrier.clone());
        tokio::spawn(async move {
            barrier.wait().await;
            let mut fresh = 0;
            for round in 0..60_u128 {
                let number = (round * 7 + caller * 13) % 200;
                let key = if number % 2 == 0 { "k" } else { "l" };
                fresh += usize::from(ledger.spend(&spend(&token(key, number))).await.is_ok());
            }
            fresh
        })
    });
    let fresh: usize = join_all(callers).await.into_iter().map(Result::unwrap).sum();
    let mut admin = db.connect_admin().await;
    let stored: i64 = sqlx::query_scalar("SELECT count(*) FROM fairledger.spends").fetch_one(&mut admin).await.unwrap();
    assert_eq!(fresh as i64, stored);
    let deadlocks: i64 =
        sqlx::query_scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
            .fetch_one(&mut admin)
            .await
            .unwrap();
    assert_eq!(deadlocks, 0);
    admin.close().await.unwrap();
}
