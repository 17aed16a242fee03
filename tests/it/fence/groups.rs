//! Spends and bets that are committed in groups, on connections beside the pool: fenced like the others.

use std::collections::BTreeSet;

use fairledger::db::fence;
use sqlx::Row as _;

use super::*;

/// What the group of the spends and that of the bets sent on to transactions of their own: nothing, where the groups did it all.
fn alone(instance: &Instance) -> (u64, u64) {
    (instance.ledger.group_stats().unwrap().alone, instance.seeds.group_stats().unwrap().alone)
}

/// Numbers of all writers, as the database and as the file has them.
async fn numbers(db: &TestDb, dir: &Path) -> (i64, i64) {
    let row = sqlx::query("SELECT coalesce(sum(seq), 0)::bigint FROM fairledger.witness");
    let row: i64 = row.fetch_one(&mut db.owner().await).await.unwrap().get(0);
    (row, fence::look(dir).unwrap().marks.into_iter().flatten().map(|mark| mark.seq).sum())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_group_is_counted_once_in_the_database_and_outside_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let instance = Instance::start(&db, folder.path()).await;
    let view = instance.session().await;
    instance.key("k").await;
    assert_eq!(numbers(&db, folder.path()).await, (2, 2));
    let spends: Vec<Spend> = (0..50).map(|nonce| spend("k", nonce)).collect();
    let spends = spends.iter().map(|spend| instance.ledger.spend(spend));
    let names: Vec<String> = (0..50).map(|name| name.to_string()).collect();
    let bets = names.iter().map(|name| instance.dice(&view, name));
    let (spends, bets) = tokio::join!(futures_util::future::join_all(spends), futures_util::future::join_all(bets));
    assert!(spends.into_iter().all(|spent| !spent.unwrap().replayed));
    let nonces: BTreeSet<_> = bets.into_iter().map(|bet| bet.record["nonce"].as_u64().unwrap()).collect();
    assert_eq!(nonces, (0..50).collect());
    assert_eq!(alone(&instance), (0, 0));
    let groups = |counts: [u64; 11]| counts.into_iter().sum::<u64>().cast_signed();
    let groups = groups(instance.ledger.group_stats().unwrap().sizes.counts)
        + groups(instance.seeds.group_stats().unwrap().sizes.counts);
    assert_eq!(numbers(&db, folder.path()).await, (2 + groups, 2 + groups));
}

/// Both groups are serving when the database is set back under them: each is refused as it commits, and nothing of it stays.
#[tokio::test]
async fn a_group_is_not_committed_on_a_database_that_lacks_something_i10() {
    for bet_first in [true, false] {
        let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
        let instance = Instance::start(&db, folder.path()).await;
        let view = instance.session().await;
        instance.key("k").await;
        instance.dice(&view, "before").await;
        instance.ledger.spend(&spend("k", 0)).await.unwrap();
        let set_back = "UPDATE fairledger.witness SET seq = seq - 1 WHERE seq > 0";
        sqlx::query(set_back).execute(&mut db.owner().await).await.unwrap();
        assert_eq!(instance.store.quarantine(), None, "it is yet to find out");
        let spent = spend("k", 1);
        if bet_first {
            assert!(is_quarantined(&instance.try_dice(view.session_id, view.commitment, "after").await));
            assert!(spend_is_quarantined(&instance.ledger.spend(&spent).await));
        } else {
            assert!(spend_is_quarantined(&instance.ledger.spend(&spent).await));
            assert!(is_quarantined(&instance.try_dice(view.session_id, view.commitment, "after").await));
        }
        assert_eq!(alone(&instance), (0, 0));
        assert!(instance.store.quarantine().is_some());
        let count = "SELECT (SELECT count(*) FROM fairledger.spends) + (SELECT count(*) FROM fairledger.bets)";
        assert_eq!(sqlx::query(count).fetch_one(&mut db.owner().await).await.unwrap().get::<i64, _>(0), 2);
    }
}

/// Groups follow a recovery by themselves: the session's bet goes back alone, is told of the session's new seed, and further ones are in
/// groups again.
#[tokio::test]
async fn groups_follow_a_recovery_into_its_epoch_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let instance = Instance::start(&db, folder.path()).await;
    let view = instance.session().await;
    instance.dice(&view, "before").await;
    let mut owner =
        Datastore::connect(&db.owner_url, &PoolSettings::default()).await.unwrap().begin("t").await.unwrap();
    owner.lock_recovery().await.unwrap();
    owner.open_epoch(1, "test", "{}").await.unwrap();
    owner.commit().await.unwrap();
    let moved = match instance.try_dice(view.session_id, view.commitment, "after").await {
        Err(SeedsError::CommitmentChanged { session }) => session,
        other => panic!("{other:?}"),
    };
    assert_eq!(instance.store.epoch(), 1);
    let sent_on = alone(&instance);
    assert_eq!(instance.dice(&moved, "after").await.record["nonce"], 0);
    instance.key("k").await;
    instance.ledger.spend(&spend("k", 0)).await.unwrap();
    assert_eq!(alone(&instance), sent_on);
}
