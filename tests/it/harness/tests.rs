//! The harness itself: other tests believe what it says.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use sqlx::{Connection as _, Executor as _, PgConnection};

use super::{Proxy, Service, TestDb};

async fn numbers(url: &str) -> Vec<i32> {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::query_scalar("SELECT n FROM numbers ORDER BY n").fetch_all(&mut connection).await.unwrap()
}

async fn db_with_numbers() -> (TestDb, Proxy) {
    let db = TestDb::new().await;
    db.connect(&db.owner_url).await.execute("CREATE TABLE numbers (n int)").await.unwrap();
    let proxy = Proxy::start(&db.owner_url).await;
    (db, proxy)
}

async fn insert_in_transaction(connection: &mut PgConnection, n: i32) -> Result<(), sqlx::Error> {
    let mut tx = connection.begin().await?;
    sqlx::query("INSERT INTO numbers VALUES ($1)").bind(n).execute(&mut *tx).await?;
    tx.commit().await
}

#[tokio::test]
async fn each_test_has_a_migrated_database_of_its_own_with_its_three_roles() {
    let (one, other) = tokio::join!(TestDb::new(), TestDb::new());
    assert_ne!(one.name, other.name);
    one.connect(&one.owner_url).await.execute("CREATE TABLE public_mark ()").await.unwrap();
    let mark = "SELECT to_regclass('public_mark') IS NOT NULL";
    for (db, expected) in [(&one, true), (&other, false)] {
        let found: bool = sqlx::query_scalar(mark).fetch_one(&mut db.connect(&db.owner_url).await).await.unwrap();
        assert_eq!(found, expected);
    }
    for (url, role) in [
        (&one.owner_url, "fairledger_owner"),
        (&one.service_url, "fairledger_service"),
        (&one.read_url, "fairledger_read"),
    ] {
        let mut connection = one.connect(url).await;
        let user: String = sqlx::query_scalar("SELECT current_user::text").fetch_one(&mut connection).await.unwrap();
        assert_eq!(user, role);
    }
    fairledger::db::migrate::check(&one.owner_url).await.expect("the clone is migrated");
    fairledger::db::migrate::check(&TestDb::unmigrated().await.owner_url).await.expect_err("this one is not");
}

/// Rights on a database itself are not cloned with it.
#[tokio::test]
async fn a_clone_has_the_rights_on_the_database_that_migrating_gives_it() {
    let (clone, migrated) = (TestDb::new().await, TestDb::unmigrated().await);
    fairledger::db::migrate::run(&migrated.owner_url, &fairledger::db::rights::Roles::default()).await.unwrap();
    let mut rights = Vec::new();
    for db in [&clone, &migrated] {
        let acl: Option<String> =
            sqlx::query_scalar("SELECT datacl::text FROM pg_database WHERE datname = current_database()")
                .fetch_one(&mut db.connect(&db.owner_url).await)
                .await
                .unwrap();
        rights.push(acl);
    }
    assert_eq!(rights[0], rights[1]);
}

#[tokio::test]
async fn a_database_is_dropped_with_its_test_even_in_use() {
    let db = TestDb::new().await;
    let (name, other) = (db.name.clone(), TestDb::new().await);
    let _open = db.connect(&db.service_url).await;
    drop(db);
    let left: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
        .bind(name)
        .fetch_one(&mut other.connect_admin().await)
        .await
        .unwrap();
    assert!(!left);
}

#[tokio::test]
async fn a_proxy_loses_the_answer_of_a_commit_that_happened() {
    let (db, proxy) = db_with_numbers().await;
    let mut connection = PgConnection::connect(&proxy.url(&db.owner_url)).await.unwrap();
    insert_in_transaction(&mut connection, 1).await.unwrap();
    proxy.cut_after_client_sends(b"COMMIT");
    insert_in_transaction(&mut connection, 2).await.unwrap_err();
    proxy.await_cuts(1).await;
    assert_eq!(numbers(&db.owner_url).await, [1, 2]);
    // Once only.
    let mut connection = PgConnection::connect(&proxy.url(&db.owner_url)).await.unwrap();
    insert_in_transaction(&mut connection, 3).await.unwrap();
}

#[tokio::test]
async fn a_proxy_keeps_a_commit_from_happening() {
    let (db, proxy) = db_with_numbers().await;
    let mut connection = PgConnection::connect(&proxy.url(&db.owner_url)).await.unwrap();
    proxy.cut_before(b"COMMIT");
    insert_in_transaction(&mut connection, 1).await.unwrap_err();
    proxy.await_cuts(1).await;
    assert_eq!(numbers(&db.owner_url).await, [0; 0]);
}

/// A statement outside a transaction commits by itself, prepared just now or long ago.
#[tokio::test]
async fn a_proxy_cuts_at_prepared_statements_too() {
    const INSERT: &str = "INSERT INTO numbers VALUES ($1)";
    let (db, proxy) = db_with_numbers().await;
    for prepared_before in [false, true] {
        let mut connection = PgConnection::connect(&proxy.url(&db.owner_url)).await.unwrap();
        if prepared_before {
            sqlx::query(INSERT).bind(2).execute(&mut connection).await.unwrap();
        }
        proxy.cut_after_client_sends(b"INTO numbers");
        sqlx::query(INSERT).bind(1).execute(&mut connection).await.unwrap_err();
    }
    proxy.await_cuts(2).await;
    assert_eq!(numbers(&db.owner_url).await, [1, 1, 2]);

    let mut connection = PgConnection::connect(&proxy.url(&db.owner_url)).await.unwrap();
    proxy.cut_before(b"INTO numbers");
    sqlx::query(INSERT).bind(9).execute(&mut connection).await.unwrap_err();
    assert_eq!(numbers(&db.owner_url).await, [1, 1, 2]);
}

#[tokio::test]
async fn a_proxy_cuts_everything_and_comes_back() {
    let (db, proxy) = db_with_numbers().await;
    let url = proxy.url(&db.owner_url);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    proxy.cut_now();
    connection.execute("SELECT 1").await.unwrap_err();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    proxy.close();
    connection.execute("SELECT 1").await.unwrap_err();
    PgConnection::connect(&url).await.unwrap_err();
    proxy.open();
    PgConnection::connect(&url).await.unwrap();
}

#[test]
fn a_service_is_known_by_where_it_says_that_it_listens() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("serve");
    let script = "#!/bin/sh\necho starting\necho '{\"message\":\"listening on http://127.0.0.1:4711\",\"n\":1}' >&2\nexec sleep 600\n";
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut service = Service::start(Command::new(&program));
    assert_eq!(service.url("/v1/keys"), "http://127.0.0.1:4711/v1/keys");
    assert!(!service.terminate().success());
}

#[test]
#[should_panic(expected = "no database, no service")]
fn a_service_that_ends_at_once_fails_the_test_with_what_it_said() {
    let mut command = Command::new("sh");
    command.args(["-c", "echo 'no database, no service'"]);
    Service::start(command);
}
