//! I1 and I9: one token is accepted once, whoever asks at once and wherever an answer is lost.

use std::sync::Arc;
use std::time::Duration;

use fairledger::db::{DbError, PoolSettings};
use fairledger::ledger::{LedgerError, SpendLedger};
use tokio::sync::Barrier;

use super::{code, fresh, ledger, ledger_with, open_key, replayed, settings, spend, standing, token};
use crate::harness::{Proxy, TestDb};

const CALLERS: usize = 200;

/// The whole statement, with the end of its message: BEGIN says READ COMMITTED.
const COMMIT: &[u8] = b"COMMIT\0";

#[tokio::test(flavor = "multi_thread")]
async fn i1_one_token_spent_by_200_callers_over_two_services_is_fresh_once() {
    let db = TestDb::new().await;
    let patient = PoolSettings { acquire_timeout: Duration::from_secs(60), ..PoolSettings::default() };
    let services = [ledger_with(&db, &patient, settings()).await, ledger_with(&db, &patient, settings()).await];
    open_key(&services[0], "k").await;
    for round in 0..3 {
        let token = token("k", round);
        let barrier = Arc::new(Barrier::new(CALLERS));
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (service, barrier, spend) = (services[caller % 2].clone(), Arc::clone(&barrier), spend(&token));
                tokio::spawn(async move {
                    barrier.wait().await;
                    (spend.spend_id, service.spend(&spend).await)
                })
            })
            .collect();
        let (mut winners, mut refused) = (Vec::new(), 0);
        for caller in callers {
            match caller.await.unwrap() {
                (spend_id, Ok(spent)) => {
                    assert!(!spent.replayed);
                    winners.push(spend_id.as_uuid());
                }
                (_, Err(LedgerError::AlreadySpent)) => refused += 1,
                (_, Err(error)) => panic!("{error}"),
            }
        }
        assert_eq!((winners.len(), refused), (1, CALLERS - 1));
        assert_eq!(standing(&db, &token).await, winners);
        for repeat in 0..5 {
            assert_eq!(code(&services[repeat % 2].spend(&spend(&token)).await), "already_spent");
        }
    }
}

#[tokio::test]
async fn i9_a_cut_between_commit_and_answer_is_unknown_and_the_same_again_is_replayed() {
    let db = TestDb::new().await;
    let proxy = Proxy::start(&db.service_url).await;
    let direct = ledger(&db).await;
    open_key(&direct, "k").await;
    let pool = PoolSettings::default();
    let store = fairledger::db::Datastore::connect(&proxy.url(&db.service_url), &pool).await.unwrap();
    let cut = fairledger::ledger::Ledger::new(store, settings());

    let first = spend(&token("k", 1));
    proxy.cut_after_client_sends(COMMIT);
    let lost = cut.spend(&first).await;
    assert!(matches!(lost, Err(LedgerError::Db(DbError::OutcomeUnknown(_)))), "{lost:?}");
    assert_eq!(code(&cut.spend(&spend(&token("k", 1))).await), "already_spent", "another is refused");
    assert_eq!(cut.spend(&first).await.unwrap(), replayed(&first));
    assert_eq!(direct.spend(&first).await.unwrap(), replayed(&first), "by another service too");

    // A cut before the commit looks the same from here, and the same again resolves it too.
    let second = spend(&token("k", 2));
    proxy.cut_before(COMMIT);
    let lost = cut.spend(&second).await;
    assert!(matches!(lost, Err(LedgerError::Db(DbError::OutcomeUnknown(_)))), "{lost:?}");
    assert_eq!(cut.spend(&second).await.unwrap(), fresh(&second));

    // The same for an atomic batch, of which nothing or everything stands.
    let batch = [spend(&token("k", 3)), spend(&token("k", 4))];
    proxy.cut_after_client_sends(COMMIT);
    let lost = cut.spend_all(&batch).await;
    assert!(matches!(lost, Err(LedgerError::Db(DbError::OutcomeUnknown(_)))), "{lost:?}");
    assert!(cut.spend_all(&batch).await.unwrap().iter().all(|result| result.replayed));
}

#[tokio::test]
async fn i9_a_connection_lost_before_the_commit_leaves_nothing() {
    let db = TestDb::new().await;
    let proxy = Proxy::start(&db.service_url).await;
    let direct = ledger(&db).await;
    open_key(&direct, "k").await;
    let store =
        fairledger::db::Datastore::connect(&proxy.url(&db.service_url), &PoolSettings::default()).await.unwrap();
    let cut = fairledger::ledger::Ledger::new(store, settings());
    let first = spend(&token("k", 1));
    proxy.cut_after_client_sends(b"INSERT INTO fairledger.spends");
    let lost = cut.spend(&first).await;
    assert!(matches!(lost, Err(LedgerError::Db(DbError::Unavailable(_)))), "{lost:?}");
    let other = spend(&token("k", 1));
    assert_eq!(direct.spend(&other).await.unwrap(), fresh(&other), "nothing was persisted");
}
