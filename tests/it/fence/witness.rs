//! Joining, counting, and commits whose answer was lost.

use std::collections::BTreeMap;

use fairledger::db::fence::{self, FenceError};
use fairledger::db::{DbError, PoolSettings};
use sqlx::Row as _;

use super::*;
use crate::harness::Proxy;

/// By writer: what the database and what the file says. Writers that never wrote are left out.
async fn numbers(db: &TestDb, dir: &Path) -> BTreeMap<usize, (i64, i64)> {
    let contents = fence::look(dir).unwrap();
    let rows = sqlx::query("SELECT writer, seq FROM fairledger.witness WHERE instance = $1")
        .bind(&contents.instance)
        .fetch_all(&mut db.owner().await)
        .await
        .unwrap();
    rows.iter()
        .map(|row| (usize::try_from(row.get::<i32, _>(0)).unwrap(), row.get::<i64, _>(1)))
        .map(|(writer, seq)| (writer, (seq, contents.marks[writer].unwrap().seq)))
        .filter(|(_, both)| *both != (0, 0))
        .collect()
}

fn sum(numbers: &BTreeMap<usize, (i64, i64)>) -> i64 {
    numbers.values().map(|(row, _)| row).sum()
}

#[tokio::test]
async fn every_change_is_counted_in_the_database_and_outside_and_nothing_else_is_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let instance = Instance::start(&db, folder.path()).await;
    assert_eq!(sum(&numbers(&db, folder.path()).await), 0);
    let view = instance.session().await;
    instance.dice(&view, "a").await;
    instance.dice(&view, "b").await;
    instance.key("k").await;
    instance.ledger.spend(&spend("k", 1)).await.unwrap();
    let counted = numbers(&db, folder.path()).await;
    assert_eq!(sum(&counted), 5);
    assert!(counted.values().all(|(row, file)| row == file), "{counted:?}");
    // Reads and refusals.
    instance.seeds.view(view.session_id).await.unwrap();
    instance.ledger.live_keys().await.unwrap();
    instance.try_dice(Uuid::new_v4(), view.commitment, "c").await.unwrap_err();
    assert_eq!(numbers(&db, folder.path()).await, counted);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_commits_at_once_than_writers_all_go_through_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let pool = PoolSettings { connections_max: 16, ..PoolSettings::default() };
    let store = Datastore::connect(&db.service_url, &pool).await.unwrap();
    let store = store.fenced(&FenceSettings { writers: 3, ..settings(folder.path(), false) }).await.unwrap();
    let mut instance = Instance::over(store.clone(), &db).await;
    // Without a group every spend is a commit of its own.
    instance.ledger = Ledger::new(store, LedgerSettings { group: None, ..LedgerSettings::default() });
    instance.key("k").await;
    let spends = (0..200).map(|nonce| {
        let instance = instance.clone();
        tokio::spawn(async move { instance.ledger.spend(&spend("k", nonce)).await.unwrap() })
    });
    futures_util::future::join_all(spends).await.into_iter().for_each(|done| assert!(!done.unwrap().replayed));
    let counted = numbers(&db, folder.path()).await;
    assert_eq!(sum(&counted), 201);
    assert!(counted.len() <= 3 && counted.values().all(|(row, file)| row == file), "{counted:?}");
}

#[tokio::test]
async fn a_database_with_data_is_joined_only_when_told_so_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let first = Instance::start(&db, &folder.path().join("a")).await;
    first.session().await;
    let second = folder.path().join("b");
    let refused = fenced(&db.service_url, &settings(&second, false)).await.unwrap_err();
    assert!(matches!(refused, FenceError::NotJoined { .. }), "{refused}");
    let joined = Instance::join(&db, &second).await;
    joined.session().await;
    joined.stop().await;
    // Once is enough, and the first is not disturbed.
    Instance::start(&db, &second).await.session().await;
    first.session().await;
    assert_ne!(first.store.instance(), fence::look(&second).unwrap().instance.as_str().into());
}

#[tokio::test]
async fn a_lost_witness_folder_is_no_reason_to_trust_the_database_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let dir = folder.path().join("w");
    let named = |join| FenceSettings { instance: Some("one".to_owned()), ..settings(&dir, join) };
    fenced(&db.service_url, &named(false)).await.unwrap().close().await;
    std::fs::remove_dir_all(&dir).unwrap();
    // Not even without data: its rows are there.
    assert!(matches!(fenced(&db.service_url, &named(false)).await, Err(FenceError::NotJoined { .. })));
    fenced(&db.service_url, &named(true)).await.unwrap();
}

#[tokio::test]
async fn two_processes_never_share_a_witness_folder() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let held = Instance::start(&db, folder.path()).await;
    let refused = fenced(&db.service_url, &settings(folder.path(), true)).await.unwrap_err();
    assert!(matches!(refused, FenceError::InUse { .. }), "{refused}");
    drop(held);
}

#[tokio::test]
async fn more_writers_than_before_start_at_zero() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let of = |writers| FenceSettings { writers, ..settings(folder.path(), false) };
    for writers in [1, 5, 2, 8] {
        let instance = Instance::over(fenced(&db.service_url, &of(writers)).await.unwrap(), &db).await;
        instance.session().await;
        assert_eq!(instance.store.quarantine(), None);
        instance.stop().await;
    }
    assert_eq!(sum(&numbers(&db, folder.path()).await), 4);
}

/// The row may be one ahead of the file or not. Both are sound, and the next use finds out.
#[tokio::test]
async fn a_commit_of_unknown_outcome_is_adopted_whichever_it_was_i9_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let proxy = Proxy::start(&db.service_url).await;
    // One writer, so that each change meets what the one before it left.
    let one = FenceSettings { writers: 1, ..settings(folder.path(), false) };
    let store = fenced(&proxy.url(&db.service_url), &one).await.unwrap();
    let instance = Instance::over(store, &db).await;
    instance.key("k").await;
    for (round, happens) in [(0, true), (1, false), (2, true), (3, true), (4, false)] {
        let lost = spend("k", round);
        if happens {
            proxy.cut_after_client_sends(b"COMMIT");
        } else {
            proxy.cut_before(b"COMMIT");
        }
        let unknown = instance.ledger.spend(&lost).await.unwrap_err();
        assert!(matches!(unknown, LedgerError::Db(DbError::OutcomeUnknown(_))), "{unknown}");
        let again = instance.ledger.spend(&lost).await.unwrap();
        assert_eq!(again.replayed, happens);
        assert_eq!(instance.store.quarantine(), None);
    }
    // And at a start.
    proxy.cut_after_client_sends(b"COMMIT");
    instance.ledger.spend(&spend("k", 9)).await.unwrap_err();
    instance.stop().await;
    let instance = Instance::over(fenced(&db.service_url, &one).await.unwrap(), &db).await;
    instance.ledger.spend(&spend("k", 10)).await.unwrap();
    assert!(numbers(&db, folder.path()).await.values().all(|(row, file)| row == file));
}

#[tokio::test]
async fn a_caller_that_goes_away_in_mid_commit_leaves_a_writer_that_finds_out_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let one = FenceSettings { writers: 1, ..settings(folder.path(), false) };
    let instance = Instance::over(fenced(&db.service_url, &one).await.unwrap(), &db).await;
    instance.key("k").await;
    for nonce in 0..60 {
        let instance = instance.clone();
        // Cut off wherever it happens to be.
        let late = std::time::Duration::from_micros(u64::from(nonce) * 50);
        let _ = tokio::time::timeout(late, async { instance.ledger.spend(&spend("k", nonce)).await }).await;
    }
    instance.ledger.spend(&spend("k", 99)).await.unwrap();
    assert_eq!(instance.store.quarantine(), None);
}

#[tokio::test]
async fn another_process_that_counts_under_the_same_name_is_told_apart() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let one = FenceSettings { writers: 1, ..settings(folder.path(), false) };
    let instance = Instance::over(fenced(&db.service_url, &one).await.unwrap(), &db).await;
    sqlx::query("UPDATE fairledger.witness SET seq = seq + 1").execute(&mut db.owner().await).await.unwrap();
    let refused = instance.seeds.create_session(&SessionRequest::default()).await;
    assert!(is_quarantined(&refused), "{refused:?}");
    assert!(instance.store.quarantine().unwrap().contains("another process"));
}

#[tokio::test]
async fn a_torn_mark_leaves_the_one_before_it_and_the_database_is_ahead_i10() {
    use std::os::unix::fs::FileExt as _;
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let one = FenceSettings { writers: 1, ..settings(folder.path(), false) };
    let instance = Instance::over(fenced(&db.service_url, &one).await.unwrap(), &db).await;
    for _ in 0..3 {
        instance.session().await;
    }
    instance.stop().await;
    let marks = std::fs::OpenOptions::new().write(true).open(folder.path().join("marks")).unwrap();
    // The join took the first slot, so the third change stands in the second.
    marks.write_all_at(&[0xff; 8], 4_096 + 16).unwrap();
    let instance = Instance::over(fenced(&db.service_url, &one).await.unwrap(), &db).await;
    instance.session().await;
    instance.stop().await;
    marks.write_all_at(&[0xff; 8], 16).unwrap();
    marks.write_all_at(&[0xff; 8], 4_096 + 16).unwrap();
    assert!(matches!(fenced(&db.service_url, &one).await, Err(FenceError::Damaged { writer: 0, .. })));
}
