//! I2: what the service's role, and the read-only one, may not do.

use sqlx::Executor as _;

use super::{key_id, ledger, open_key, spend, token};
use crate::harness::TestDb;
use fairledger::ledger::SpendLedger as _;

/// The SQLSTATE of a statement that must fail.
async fn refused(connection: &mut sqlx::PgConnection, statement: &'static str) -> String {
    let error = connection.execute(statement).await.expect_err(statement);
    error.as_database_error().unwrap_or_else(|| panic!("{statement}: {error}")).code().unwrap().into_owned()
}

#[tokio::test]
async fn i2_the_service_neither_reopens_keys_nor_touches_partitions() {
    let db = TestDb::new().await;
    let ledger = ledger(&db).await;
    open_key(&ledger, "open").await;
    open_key(&ledger, "closed").await;
    ledger.spend(&spend(&token("open", 1))).await.unwrap();
    ledger.close_key(&key_id("closed")).await.unwrap();
    let mut service = db.connect(&db.service_url).await;
    let denied = [
        "UPDATE fairledger.spends SET spend_id = gen_random_uuid()",
        "UPDATE fairledger.spends SET expires_at = now()",
        "TRUNCATE fairledger.spends",
        "DROP TABLE fairledger.spends",
        "DELETE FROM fairledger.token_keys",
        "UPDATE fairledger.token_keys SET key_id = 'x'",
        "UPDATE fairledger.token_keys SET redeem_from = now()",
        "UPDATE fairledger.token_keys SET redeem_until = 'infinity'",
        "SELECT * FROM fairledger_spends.key_1",
        "DELETE FROM fairledger_spends.key_1",
        "DROP TABLE fairledger_spends.key_1",
        "CREATE TABLE fairledger_spends.key_9 (LIKE fairledger.spends)",
        "ALTER TABLE fairledger.spends DETACH PARTITION fairledger_spends.key_1",
        "ALTER TABLE fairledger.token_keys DISABLE TRIGGER token_keys_one_way",
    ];
    for statement in denied {
        assert_eq!(refused(&mut service, statement).await, "42501", "{statement}");
    }
    let one_way = [
        "UPDATE fairledger.token_keys SET state = 'open', closed_at = NULL WHERE state = 'closed'",
        "UPDATE fairledger.token_keys SET closed_at = closed_at + interval '1 s' WHERE state = 'closed'",
    ];
    for statement in one_way {
        assert_eq!(refused(&mut service, statement).await, "23000", "{statement}");
    }
    let not_in_that_state = [
        "SELECT fairledger.drop_spends_partition(1, 0)",
        "SELECT fairledger.drop_spends_partition(2, 0)",
        "SELECT fairledger.drop_spends_partition(99, 0)",
        "SELECT fairledger.attach_spends_partition(2)",
        "SELECT fairledger.attach_spends_partition(99)",
    ];
    for statement in not_in_that_state {
        assert_eq!(refused(&mut service, statement).await, "55000", "{statement}");
    }
}

#[tokio::test]
async fn i2_a_partition_is_dropped_only_once_its_mark_is_committed() {
    let db = TestDb::new().await;
    let ledger = ledger(&db).await;
    open_key(&ledger, "k").await;
    let mut service = db.connect(&db.service_url).await;
    service.execute("BEGIN").await.unwrap();
    service.execute("UPDATE fairledger.token_keys SET state = 'swept', swept_at = clock_timestamp()").await.unwrap();
    assert_eq!(refused(&mut service, "SELECT fairledger.drop_spends_partition(1, 0)").await, "55000", "its own mark");
    service.execute("ROLLBACK").await.unwrap();

    service.execute("UPDATE fairledger.token_keys SET state = 'swept', swept_at = clock_timestamp()").await.unwrap();
    service.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    assert_eq!(refused(&mut service, "SELECT fairledger.drop_spends_partition(1, 0)").await, "55000", "one snapshot");
    service.execute("ROLLBACK").await.unwrap();
    assert_eq!(
        refused(&mut service, "UPDATE fairledger.token_keys SET state = 'closed', closed_at = now(), swept_at = NULL")
            .await,
        "23000"
    );
    service.execute("SELECT fairledger.drop_spends_partition(1, 0)").await.unwrap();
}

#[tokio::test]
async fn i13_the_read_only_role_sees_no_token() {
    let db = TestDb::new().await;
    open_key(&ledger(&db).await, "k").await;
    let mut read = db.connect(&db.read_url).await;
    let denied = [
        "SELECT * FROM fairledger.spends",
        "SELECT * FROM fairledger.token_keys",
        "SELECT * FROM fairledger_spends.key_1",
        "SELECT fairledger.drop_spends_partition(1, 0)",
        "SELECT fairledger.attach_spends_partition(1)",
    ];
    for statement in denied {
        assert_eq!(refused(&mut read, statement).await, "42501", "{statement}");
    }
}

#[tokio::test]
async fn every_table_and_column_of_the_ledger_is_explained() {
    let db = TestDb::new().await;
    open_key(&ledger(&db).await, "k").await;
    let mut owner = db.connect(&db.owner_url).await;
    let bare: Vec<String> = sqlx::query_scalar(
        "SELECT c.oid::regclass || coalesce('.' || a.attname, '') FROM pg_class c
         LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         WHERE c.relnamespace IN ('fairledger'::regnamespace, 'fairledger_spends'::regnamespace)
           AND (c.relname IN ('token_keys', 'spends') OR c.relname LIKE 'key\\__') AND c.relkind IN ('r', 'p')
           AND (col_description(c.oid, a.attnum) IS NULL OR obj_description(c.oid, 'pg_class') IS NULL)",
    )
    .fetch_all(&mut owner)
    .await
    .unwrap();
    assert!(bare.is_empty(), "{bare:?}");
}
