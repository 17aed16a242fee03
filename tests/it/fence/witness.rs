//! Joining, counting, and commits whose answer was lost.

use std::collections::BTreeMap;

use fairledger::db::fence::{self, FenceError};
use fairledger::db::{DbError, PoolSettings};
use sqlx::Row as _;

use super::*;
use crate::harness::{Caller, Proxy, Service};

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

/// Whoever sends it again, or reads what it changed, is told of it. So it is missed from then on.
#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_witnessed_before_anybody_is_told_of_it_i1_i10() {
    for how in ["again", "look", "start"] {
        let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
        let proxy = Proxy::start(&db.service_url).await;
        let store = fenced(&proxy.url(&db.service_url), &settings(folder.path(), false)).await.unwrap();
        let mut instance = Instance::over(store, &db).await;
        instance.key("k").await;
        let old = db.snapshot().await;
        let lost = spend("k", 0);
        proxy.cut_after_client_sends(b"COMMIT");
        instance.ledger.spend(&lost).await.unwrap_err();
        db.wait_until("SELECT count(*) = 1 FROM fairledger.spends").await;
        match how {
            "again" => assert!(instance.ledger.spend(&lost).await.unwrap().replayed),
            "look" => while instance.store.watch().await.is_err() {},
            _ => {
                instance.stop().await;
                instance = Instance::start(&db, folder.path()).await;
            }
        }
        assert_eq!(instance.store.quarantine(), None, "{how}");
        if how != "again" {
            let numbers = numbers(&db, folder.path()).await;
            assert!(numbers.values().all(|(row, file)| row == file), "{how}: {numbers:?}");
        }
        instance.stop().await;
        db.restore(&old).await;
        let instance = Instance::start(&db, folder.path()).await;
        assert!(instance.store.quarantine().is_some_and(|reason| reason.contains("acknowledged")), "{how}");
    }
}

/// The process died; its backend still waits for a standby, or for the disk.
#[tokio::test]
async fn a_commit_of_the_process_before_that_comes_after_the_start_is_adopted_i9_i10() {
    for look in [false, true] {
        let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
        let proxy = Proxy::start(&db.service_url).await;
        let one = FenceSettings { writers: 1, ..settings(folder.path(), false) };
        let instance = Instance::over(fenced(&proxy.url(&db.service_url), &one).await.unwrap(), &db).await;
        instance.key("k").await;
        proxy.cut_and_deliver_later(b"COMMIT");
        instance.ledger.spend(&spend("k", 0)).await.unwrap_err();
        instance.stop().await;
        let instance = Instance::over(fenced(&db.service_url, &one).await.unwrap(), &db).await;
        proxy.deliver();
        db.wait_until("SELECT count(*) = 1 FROM fairledger.spends").await;
        if look {
            instance.store.watch().await.unwrap();
            assert!(numbers(&db, folder.path()).await.values().all(|(row, file)| row == file));
        }
        instance.ledger.spend(&spend("k", 1)).await.unwrap();
        assert_eq!(instance.store.quarantine(), None);
        assert!(numbers(&db, folder.path()).await.values().all(|(row, file)| row == file));
    }
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
    let refused = fenced(&db.service_url, &one).await.unwrap_err();
    assert!(
        matches!(&refused, FenceError::Damaged { what, .. } if what.contains("both slots of writer 0")),
        "{refused}"
    );
}

/// The mark is written after the commit. So a database that has no more than the slot beside it may lack what a damaged one said.
#[tokio::test]
async fn a_damaged_mark_hides_no_loss_of_the_commit_that_it_told_of_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let one = FenceSettings { writers: 1, ..settings(folder.path(), false) };
    let instance = Instance::over(fenced(&db.service_url, &one).await.unwrap(), &db).await;
    instance.session().await;
    instance.session().await;
    let old = db.snapshot().await;
    // Whichever connection the copy cut is made anew.
    while instance.seeds.create_session(&SessionRequest::default()).await.is_err() {}
    instance.stop().await;
    // Each change takes the other slot, the first one the second.
    assert_eq!(fence::look(folder.path()).unwrap().marks[0].unwrap().seq, 3);
    overwrite(folder.path(), 4_096, &[0xff; 30]);
    db.restore(&old).await;
    let refused = fenced(&db.service_url, &one).await.unwrap_err();
    assert!(matches!(&refused, FenceError::Damaged { what, .. } if what.contains("is damaged")), "{refused}");
}

fn overwrite(dir: &Path, at: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt as _;
    std::fs::OpenOptions::new().write(true).open(dir.join("marks")).unwrap().write_all_at(bytes, at).unwrap();
}

/// A file that was cut off or zeroed, with an old copy of the database.
#[tokio::test]
async fn marks_that_were_cut_off_or_zeroed_are_no_new_marks_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let dir = folder.path();
    let instance = Instance::start(&db, dir).await;
    instance.key("k").await;
    instance.stop().await;
    let old = db.snapshot().await;
    let instance = Instance::start(&db, dir).await;
    instance.ledger.spend(&spend("k", 1)).await.unwrap();
    instance.stop().await;
    db.restore(&old).await;
    let marks = dir.join("marks");
    let whole = std::fs::read(&marks).unwrap();
    // With the number of writers that were started, and as programs before it left the folder.
    for started in [true, false] {
        if !started {
            std::fs::remove_file(dir.join("writers")).unwrap();
        }
        let mut zeroed = whole.clone();
        for writer in zeroed.chunks_mut(8_192).zip(fence::look(dir).unwrap().marks) {
            if writer.1.unwrap().seq > 0 {
                writer.0.fill(0);
            }
        }
        for content in [&whole[..4_096], &zeroed] {
            std::fs::write(&marks, content).unwrap();
            for join in [false, true] {
                let refused = fenced(&db.service_url, &settings(dir, join)).await.unwrap_err();
                assert!(matches!(refused, FenceError::Damaged { .. }), "{refused}");
            }
        }
        for content in [&[][..], &vec![0; whole.len()]] {
            std::fs::write(&marks, content).unwrap();
            for join in [false, true] {
                fenced(&db.service_url, &settings(dir, join)).await.unwrap_err();
            }
        }
        std::fs::write(&marks, &whole).unwrap();
        let instance = Instance::start(&db, dir).await;
        assert!(instance.store.quarantine().is_some());
        instance.stop().await;
    }
}

#[tokio::test]
async fn a_file_that_is_changed_under_a_running_service_stops_it_i9_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    // Cut off: by the next write.
    let dir = folder.path().join("a");
    let instance = Instance::start(&db, &dir).await;
    instance.session().await;
    std::fs::OpenOptions::new().write(true).open(dir.join("marks")).unwrap().set_len(0).unwrap();
    let refused = instance.seeds.create_session(&SessionRequest::default()).await;
    assert!(matches!(refused, Err(SeedsError::Db(DbError::OutcomeUnknown(_)))), "{refused:?}");
    assert!(instance.store.quarantine().unwrap().contains("marks has 0 bytes"));
    // Nothing is missing from the database: the others go on.
    let dir = folder.path().join("b");
    let other = Instance::join(&db, &dir).await;
    other.session().await;
    other.store.watch().await.unwrap();
    assert_eq!(other.store.quarantine(), None);
    // Zeroed: by the look around.
    overwrite(&dir, 0, &vec![0; 4 * 8_192]);
    other.store.watch().await.unwrap();
    assert!(other.store.quarantine().unwrap().contains("changed by somebody else"));
    other.stop().await;
    assert!(matches!(fenced(&db.service_url, &settings(&dir, false)).await, Err(FenceError::Damaged { .. })));
}

/// It would take the writers' rows over, and the one that runs would find its own acknowledgements gone.
#[tokio::test]
async fn nobody_joins_under_the_name_of_an_instance_that_has_committed_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let named = |dir: &str, name: &str| FenceSettings {
        instance: Some(name.to_owned()),
        ..settings(&folder.path().join(dir), true)
    };
    let first = Instance::over(fenced(&db.service_url, &named("a", "one")).await.unwrap(), &db).await;
    first.session().await;
    let refused = fenced(&db.service_url, &named("b", "one")).await.unwrap_err();
    assert!(matches!(&refused, FenceError::NameInUse { committed: 1, .. }), "{refused}");
    first.store.watch().await.unwrap();
    first.session().await;
    // The refusal leaves a folder that another name fits.
    Instance::over(fenced(&db.service_url, &named("b", "two")).await.unwrap(), &db).await.session().await;
    first.session().await;
    // A recovery sets a name free.
    first.stop().await;
    recovery::recover(&db, None).await;
    Instance::over(fenced(&db.service_url, &named("c", "one")).await.unwrap(), &db).await.session().await;
}

#[tokio::test]
async fn a_damaged_mark_that_hides_nothing_is_warned_of_by_name() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let token = db.admin_token().await;
    let dir = folder.path().to_str().unwrap().to_owned();
    let env = [("FAIRLEDGER_WITNESS_DIR", dir.as_str())];
    let mut service = Service::spawn(&db, &env, &[]);
    let caller = Caller::new(&service, &token);
    caller.session().await;
    caller.session().await;
    service.terminate();
    let marks = fence::look(folder.path()).unwrap().marks;
    let (writer, mark) = marks.iter().map(|mark| mark.unwrap()).enumerate().find(|(_, mark)| mark.seq > 0).unwrap();
    overwrite(folder.path(), writer as u64 * 8_192 + u64::try_from(mark.seq).unwrap() % 2 * 4_096, &[0xff; 30]);
    let mut service = Service::spawn(&db, &env, &[]);
    Caller::new(&service, &token).session().await;
    service.terminate();
    let logs = service.logs();
    let warning = logs.lines().find(|line| line.contains("a mark is damaged")).unwrap();
    let warning: serde_json::Value = serde_json::from_str(warning).unwrap();
    assert_eq!(warning["level"], "WARN");
    assert_eq!(warning["file"], json!(format!("{dir}/marks")));
    assert_eq!(warning["writer"], json!(writer));
    assert_eq!(warning["slot"], json!(mark.seq % 2));
    assert_eq!((&warning["seq"], &warning["database_seq"]), (&json!(mark.seq - 1), &json!(mark.seq)));
}
