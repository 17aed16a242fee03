//! I1 and I2: spending inside the caller's own transaction.

use std::time::Duration;

use chrono::{DateTime, Utc};
use fairledger::db::{DbError, PoolSettings};
use fairledger::ledger::{KeyId, Ledger, LedgerError, SpendLedger, spend_in};
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

use super::{
    code, fresh, has_partition, hours, key_id, key_with_window, ledger, ledger_with, open_key, replayed, settings,
    spend, standing, sweep_all, token,
};
use crate::harness::TestClock;
use crate::harness::TestDb;

fn noon() -> DateTime<Utc> {
    "2030-06-01T12:00:00Z".parse().unwrap()
}

/// A table of the caller's own.
async fn application(db: &TestDb) -> PgConnection {
    let mut admin = db.connect_admin().await;
    admin
        .execute("CREATE SCHEMA app; GRANT USAGE ON SCHEMA app TO PUBLIC; CREATE TABLE app.messages (body text); GRANT ALL ON app.messages TO PUBLIC")
        .await
        .unwrap();
    db.connect(&db.service_url).await
}

#[tokio::test]
async fn i1_the_callers_rollback_gives_the_token_back() {
    let db = TestDb::new().await;
    let ledger = ledger(&db).await;
    open_key(&ledger, "k").await;
    let mut connection = application(&db).await;
    let (first, second) = (spend(&token("k", 1)), spend(&token("k", 1)));

    let mut transaction = connection.begin().await.unwrap();
    assert_eq!(spend_in(&mut transaction, &first).await.unwrap(), fresh(&first));
    assert_eq!(spend_in(&mut transaction, &first).await.unwrap(), replayed(&first));
    assert_eq!(code(&spend_in(&mut transaction, &second).await), "already_spent");
    transaction.execute("INSERT INTO app.messages VALUES ('rejected')").await.unwrap();
    transaction.rollback().await.unwrap();
    assert!(standing(&db, &first.token).await.is_empty());

    let mut transaction = connection.begin().await.unwrap();
    assert_eq!(spend_in(&mut transaction, &second).await.unwrap(), fresh(&second));
    transaction.execute("INSERT INTO app.messages VALUES ('admitted')").await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(code(&ledger.spend(&first).await), "already_spent");
    let messages = connection.fetch_all("SELECT body FROM app.messages").await.unwrap();
    assert_eq!(messages.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>(), ["admitted"]);
}

#[tokio::test]
async fn a_refusal_leaves_the_callers_transaction_usable() {
    let db = TestDb::new().await;
    let ledger = ledger(&db).await;
    open_key(&ledger, "k").await;
    ledger.spend(&spend(&token("k", 1))).await.unwrap();
    let mut connection = application(&db).await;
    let mut transaction = connection.begin().await.unwrap();
    transaction.execute("INSERT INTO app.messages VALUES ('before')").await.unwrap();
    assert_eq!(code(&spend_in(&mut transaction, &spend(&token("k", 1))).await), "already_spent");
    assert_eq!(code(&spend_in(&mut transaction, &spend(&token("none", 1))).await), "unknown_key");
    let good = spend(&token("k", 2));
    assert_eq!(spend_in(&mut transaction, &good).await.unwrap(), fresh(&good));
    transaction.commit().await.unwrap();
    assert_eq!(ledger.spend(&good).await.unwrap(), replayed(&good));
}

#[tokio::test]
async fn i2_any_isolation_but_read_committed_is_refused() {
    let db = TestDb::new().await;
    let ledger = ledger(&db).await;
    open_key(&ledger, "k").await;
    let mut connection = db.connect(&db.service_url).await;
    let standing_spend = spend(&token("k", 1));
    ledger.spend(&standing_spend).await.unwrap();
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        let begin = sqlx::AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {isolation}"));
        let mut transaction = connection.begin_with(begin).await.unwrap();
        for spend in [spend(&token("k", 2)), spend(&token("k", 1)), standing_spend.clone(), spend(&token("none", 1))] {
            let refused = spend_in(&mut transaction, &spend).await;
            assert!(
                matches!(&refused, Err(LedgerError::Isolation(level)) if *level == isolation.to_lowercase()),
                "{refused:?}"
            );
        }
        transaction.commit().await.unwrap();
    }
    assert!(standing(&db, &token("k", 2)).await.is_empty());
    for isolation in ["READ COMMITTED", "READ UNCOMMITTED"] {
        // PostgreSQL treats the latter as the former, and says so by its name.
        let begin = sqlx::AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {isolation}"));
        let mut transaction = connection.begin_with(begin).await.unwrap();
        let spent = spend_in(&mut transaction, &spend(&token("k", 3))).await;
        assert_eq!(code(&spent), if isolation == "READ COMMITTED" { "ok" } else { "isolation" });
        transaction.rollback().await.unwrap();
    }
}

struct Open {
    db: TestDb,
    clock: TestClock,
    ledger: Ledger,
}

impl Open {
    async fn new() -> Self {
        let db = TestDb::new().await;
        let clock = TestClock::install(&db, noon()).await;
        let ledger = ledger(&db).await;
        key_with_window(&ledger, "k", noon(), noon() + hours(1)).await;
        Self { db, clock, ledger }
    }

    /// The key was marked, and what is left waits.
    async fn sweep_waits(&self) {
        let swept = self.ledger.sweep().await.unwrap();
        assert_eq!(swept.waiting, [key_id("k")]);
        assert!(swept.dropped.is_empty() && has_partition(&self.db, "k").await);
    }

    async fn sweep_drops(&self) {
        let swept = sweep_all(&self.ledger).await;
        assert_eq!(swept.dropped.keys().collect::<Vec<&KeyId>>(), [&key_id("k")]);
        assert!(!has_partition(&self.db, "k").await);
    }
}

#[tokio::test]
async fn i2_a_callers_transaction_past_the_sweep_is_waited_for_and_its_token_is_not_accepted_again() {
    for commits in [true, false] {
        let mut open = Open::new().await;
        let mut connection = open.db.connect(&open.db.service_url).await;
        let first = spend(&token("k", 1));
        let mut transaction = connection.begin().await.unwrap();
        assert_eq!(spend_in(&mut transaction, &first).await.unwrap(), fresh(&first));

        open.clock.set(noon() + hours(1)).await;
        open.sweep_waits().await;
        open.sweep_waits().await;
        assert_eq!(code(&open.ledger.spend(&spend(&token("k", 1))).await), "key_expired");
        // Whatever the clock says: it was marked.
        open.clock.set(noon() + hours(0)).await;
        assert_eq!(code(&open.ledger.spend(&spend(&token("k", 1))).await), "key_expired");
        assert_eq!(code(&spend_in(&mut transaction, &spend(&token("k", 2))).await), "key_expired");
        open.sweep_waits().await;

        if commits {
            transaction.commit().await.unwrap();
            assert_eq!(standing(&open.db, &first.token).await, [first.spend_id.as_uuid()]);
        } else {
            transaction.rollback().await.unwrap();
        }
        open.sweep_drops().await;
        assert_eq!(code(&open.ledger.spend(&first).await), "key_expired");
        assert_eq!(code(&open.ledger.spend(&spend(&token("k", 1))).await), "key_expired");
    }
}

#[tokio::test]
async fn i2_a_transaction_that_could_have_seen_the_key_open_is_waited_for() {
    let mut open = Open::new().await;
    let mut connection = application(&open.db).await;
    let mut transaction = connection.begin().await.unwrap();
    // It has not touched the ledger, but it might have read the key: it is older than the mark.
    transaction.execute("INSERT INTO app.messages VALUES ('x')").await.unwrap();
    open.clock.set(noon() + hours(1)).await;
    open.sweep_waits().await;
    assert_eq!(code(&spend_in(&mut transaction, &spend(&token("k", 1))).await), "key_expired");
    transaction.commit().await.unwrap();
    open.sweep_drops().await;
}

#[tokio::test]
async fn i2_a_transaction_begun_before_the_sweep_that_spends_after_it_is_refused() {
    let mut open = Open::new().await;
    let mut connection = open.db.connect(&open.db.service_url).await;
    let mut transaction = connection.begin().await.unwrap();
    // It has neither written nor seen the key open.
    transaction.execute("SELECT 1").await.unwrap();
    open.clock.set(noon() + hours(1)).await;
    open.sweep_drops().await;
    open.clock.set(noon()).await;
    assert_eq!(code(&spend_in(&mut transaction, &spend(&token("k", 1))).await), "key_expired");
    transaction.commit().await.unwrap();
}

#[tokio::test]
async fn i12_whoever_wants_a_token_that_a_transaction_holds_waits_no_longer_than_the_lock_timeout() {
    let db = TestDb::new().await;
    let hurried = PoolSettings { lock_timeout: Duration::from_millis(50), ..PoolSettings::default() };
    let ledger = ledger_with(&db, &hurried, settings()).await;
    open_key(&ledger, "k").await;
    let mut connection = db.connect(&db.service_url).await;
    let (first, second) = (spend(&token("k", 1)), spend(&token("k", 1)));
    let mut transaction = connection.begin().await.unwrap();
    spend_in(&mut transaction, &first).await.unwrap();
    let waited = ledger.spend(&second).await;
    assert!(matches!(waited, Err(LedgerError::Db(DbError::TimedOut(_)))), "{waited:?}");
    transaction.rollback().await.unwrap();
    assert_eq!(ledger.spend(&second).await.unwrap(), fresh(&second));
}
