//! I2 and I12: what is swept, by whom, and what gets in the way.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use fairledger::ledger::{KeyId, LedgerSettings, SpendLedger};
use sqlx::{Connection as _, Executor as _};
use tokio_util::sync::CancellationToken;

use super::{
    end_window, fresh, has_partition, hours, key_id, key_with_window, ledger, ledger_with, open_key, replayed,
    settings, spend, sweep_all, sweep_until, token,
};
use crate::harness::TestClock;
use crate::harness::TestDb;

fn noon() -> DateTime<Utc> {
    "2030-06-01T12:00:00Z".parse().unwrap()
}

/// Keys of so many days, each with a spend, the clock past the last one's begin.
async fn days(db: &TestDb, clock: &mut TestClock, days: i64) -> Vec<KeyId> {
    let ledger = ledger(db).await;
    let mut keys = Vec::new();
    for day in 0..days {
        let key = format!("day-{day:02}");
        let from = noon() + TimeDelta::days(day);
        clock.set(from).await;
        key_with_window(&ledger, &key, from, from + hours(30)).await;
        let one = spend(&token(&key, 1));
        assert_eq!(ledger.spend(&one).await.unwrap(), fresh(&one));
        keys.push(key_id(&key));
    }
    keys
}

#[tokio::test]
async fn a_month_off_is_caught_up_with_at_once() {
    let db = TestDb::new().await;
    let mut clock = TestClock::install(&db, noon()).await;
    let keys = days(&db, &mut clock, 31).await;
    let ledger = ledger(&db).await;
    let swept = sweep_all(&ledger).await;
    assert_eq!(swept.marked, keys[..29], "the windows of the last two overlap now");
    assert_eq!(swept.dropped.keys().cloned().collect::<Vec<_>>(), keys[..29]);
    assert!(swept.dropped.values().all(|bytes| *bytes >= 16 * 1024), "a table and an index: {:?}", swept.dropped);
    for (day, key) in keys.iter().enumerate() {
        assert_eq!(has_partition(&db, key.as_str()).await, day >= 29, "{key}");
    }
    let counts = ledger.sweep_counts();
    assert_eq!((counts.marked, counts.dropped, counts.failed), (29, 29, 0));
    assert_eq!(counts.bytes_freed, swept.dropped.values().sum::<u64>());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_sweepers_at_once_each_key_is_swept_by_one() {
    let db = TestDb::new().await;
    let mut clock = TestClock::install(&db, noon()).await;
    let keys = days(&db, &mut clock, 12).await;
    clock.advance(hours(30)).await;
    let mut sweeps = Vec::new();
    for _ in 0..6 {
        let ledger = ledger(&db).await;
        sweeps.push(tokio::spawn(async move { ledger.sweep().await.unwrap() }));
    }
    let (mut marked, mut dropped) = (Vec::new(), Vec::new());
    for sweep in sweeps {
        let swept = sweep.await.unwrap();
        marked.extend(swept.marked);
        dropped.extend(swept.dropped.into_keys());
    }
    let rest = sweep_all(&ledger(&db).await).await;
    dropped.extend(rest.dropped.into_keys());
    marked.sort();
    dropped.sort();
    assert_eq!(marked, keys);
    // Two may find the same partition to drop; the later one finds it gone and frees nothing.
    dropped.dedup();
    assert_eq!(dropped, keys);
}

#[tokio::test]
async fn while_one_sweeper_is_at_work_another_does_nothing() {
    let db = TestDb::new().await;
    let ledger = ledger(&db).await;
    open_key(&ledger, "k").await;
    end_window(&db, "k").await;
    let store = ledger.datastore();
    let mut tx = store.begin("test").await.unwrap();
    assert!(tx.try_sweep_lock().await.unwrap().is_some());
    let swept = ledger.sweep().await.unwrap();
    assert!(swept.another_at_work && swept.marked.is_empty() && has_partition(&db, "k").await);
    tx.rollback().await;
    sweep_all(&ledger).await;
    assert!(!has_partition(&db, "k").await);
}

#[tokio::test]
async fn i2_what_a_sweeper_marked_before_it_died_is_dropped_by_the_next() {
    let db = TestDb::new().await;
    let ledger = ledger(&db).await;
    open_key(&ledger, "k").await;
    end_window(&db, "k").await;
    let mut tx = ledger.datastore().begin("test").await.unwrap();
    let lock = tx.try_sweep_lock().await.unwrap().unwrap();
    assert_eq!(tx.mark_swept(&lock).await.unwrap().len(), 1);
    tx.commit().await.unwrap();
    assert!(has_partition(&db, "k").await);
    let swept = sweep_all(&ledger).await;
    assert!(swept.marked.is_empty());
    assert_eq!(swept.dropped.keys().collect::<Vec<_>>(), [&key_id("k")]);
}

#[tokio::test]
async fn a_lock_in_the_way_of_one_key_keeps_no_other_from_its_end() {
    let db = TestDb::new().await;
    let ledger = ledger(&db).await;
    for key in ["a", "b", "c"] {
        open_key(&ledger, key).await;
    }
    end_window(&db, "a").await;
    end_window(&db, "b").await;
    // A reader of one partition, such as a dump: it takes a lock and no transaction id.
    let mut owner = db.connect(&db.owner_url).await;
    let mut dump = owner.begin().await.unwrap();
    dump.execute("LOCK TABLE fairledger_spends.key_1 IN ACCESS SHARE MODE").await.unwrap();
    let swept = sweep_until(&ledger, |swept| !swept.dropped.is_empty()).await;
    assert_eq!(swept.waiting, [key_id("a")]);
    assert_eq!(swept.dropped.keys().collect::<Vec<_>>(), [&key_id("b")]);
    assert!(ledger.sweep_counts().waited >= 1);
    let one = spend(&token("c", 1));
    assert_eq!(ledger.spend(&one).await.unwrap(), fresh(&one));
    dump.rollback().await.unwrap();
    assert_eq!(sweep_all(&ledger).await.dropped.keys().collect::<Vec<_>>(), [&key_id("a")]);
    assert_eq!(ledger.spend(&one).await.unwrap(), replayed(&one));
}

#[tokio::test]
async fn the_sweeper_in_the_background_works_until_told_to_stop() {
    let db = TestDb::new().await;
    let often = LedgerSettings { sweep_interval: Duration::from_millis(5), ..settings() };
    let ledger = ledger_with(&db, &Default::default(), often).await;
    let stop = CancellationToken::new();
    let sweeper = tokio::spawn({
        let (ledger, stop) = (ledger.clone(), stop.clone());
        async move { ledger.sweep_until(stop).await }
    });
    for key in ["a", "b"] {
        open_key(&ledger, key).await;
        end_window(&db, key).await;
        while has_partition(&db, key).await {
            assert!(!sweeper.is_finished());
        }
    }
    stop.cancel();
    sweeper.await.unwrap();
    let counts = ledger.sweep_counts();
    assert_eq!((counts.marked, counts.failed), (2, 0));
}
