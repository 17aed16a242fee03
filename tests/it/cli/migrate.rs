//! `migrate` and `migrate --check`.

use futures_util::future::join_all;
use sqlx::Executor as _;

use super::*;

#[tokio::test]
async fn five_migrators_at_once_all_succeed_and_one_applies() {
    let db = TestDb::unmigrated().await;
    let all = join_all((0..5).map(|_| done(on(&db, &["migrate"])))).await;
    let applied = all.into_iter().filter(|done| {
        assert_eq!(done.code, Some(0), "{done:#?}");
        done.out.contains("applied V1__seeds_and_bets")
    });
    assert_eq!(applied.count(), 1);
}

#[tokio::test]
async fn check_changes_nothing_and_tells_by_its_exit_code() {
    let db = TestDb::unmigrated().await;
    done(on(&db, &["migrate", "--check"])).await.refused(&["the schema is at version 0", "run `fairledger migrate`"]);
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'fairledger'";
    let found: i64 = sqlx::query_scalar(schemas).fetch_one(&mut db.owner().await).await.unwrap();
    assert_eq!(found, 0);
    done(on(&db, &["migrate"])).await.succeeded();
    done(on(&db, &["migrate", "--check"])).await.succeeded();
    // The service's rights are enough to look.
    let mut as_service = on(&db, &["migrate", "--check"]);
    as_service.env_remove("MIGRATE_DATABASE_URL");
    done(as_service).await.succeeded();
}

#[tokio::test]
async fn a_migration_that_was_edited_after_it_landed_stops_everything() {
    let db = TestDb::new().await;
    db.owner().await.execute("UPDATE fairledger.schema_history SET checksum = '1' WHERE version = 1").await.unwrap();
    stops_everything(&db).await;
}

#[tokio::test]
async fn a_migration_that_this_program_does_not_know_stops_everything() {
    let db = TestDb::new().await;
    let newer = "INSERT INTO fairledger.schema_history SELECT 9999, 'newer', applied_on, checksum FROM fairledger.schema_history LIMIT 1";
    db.owner().await.execute(newer).await.unwrap();
    stops_everything(&db).await;
}

/// As a migration of the next version leaves the database.
async fn migrate_further(db: &TestDb) {
    let further = "INSERT INTO fairledger.schema_history SELECT version + 1, 'further', applied_on, checksum
         FROM fairledger.schema_history ORDER BY version DESC LIMIT 1";
    db.owner().await.execute(further).await.unwrap();
}

#[tokio::test]
async fn a_service_goes_on_when_the_schema_is_migrated_further_under_it() {
    let db = TestDb::new().await;
    let service = Service::spawn(&db, &[], &[]);
    let caller = Caller::new(&service, &db.admin_token().await);
    let session = caller.session().await;
    migrate_further(&db).await;
    caller.dice(&session, "b1").await;
    let (status, answer) = caller.call("GET", "/readyz", None).await;
    assert_eq!((status, &answer["status"]), (200, &json!("ready")));
}

#[tokio::test]
async fn a_service_of_the_previous_version_starts_only_when_told_that_the_newer_schema_is_accepted() {
    let db = TestDb::new().await;
    migrate_further(&db).await;
    done(on(&db, &["serve", "--listen", "127.0.0.1:0"])).await.refused(&["the database is newer"]);
    let service = Service::spawn(&db, &[], &["--accept-newer-schema"]);
    assert!(service.logs().contains("the schema is newer than this program"), "{}", service.logs());
    let caller = Caller::new(&service, &db.admin_token().await);
    let session = caller.session().await;
    caller.dice(&session, "b1").await;
    caller.rotate(&session).await;
}

#[tokio::test]
async fn a_service_of_the_next_version_refuses_the_schema_before_it_whatever_it_is_told() {
    let db = TestDb::new().await;
    let back =
        "DELETE FROM fairledger.schema_history WHERE version = (SELECT max(version) FROM fairledger.schema_history)";
    db.owner().await.execute(back).await.unwrap();
    for args in
        [&["serve", "--listen", "127.0.0.1:0"][..], &["serve", "--listen", "127.0.0.1:0", "--accept-newer-schema"]]
    {
        done(on(&db, args)).await.refused(&["this program needs", "run `fairledger migrate`"]);
    }
}

#[tokio::test]
async fn another_history_is_not_taken_for_a_newer_one() {
    let db = TestDb::new().await;
    migrate_further(&db).await;
    db.owner().await.execute("UPDATE fairledger.schema_history SET checksum = '1' WHERE version = 1").await.unwrap();
    done(on(&db, &["serve", "--listen", "127.0.0.1:0", "--accept-newer-schema"]))
        .await
        .refused(&["was applied in another form"]);
}

#[tokio::test]
async fn a_migration_does_not_wait_for_a_lock_without_end() {
    let db = TestDb::unmigrated().await;
    let mut owner = db.owner().await;
    owner.execute("CREATE SCHEMA fairledger; BEGIN; CREATE TABLE fairledger.seeds (id int)").await.unwrap();
    done(on(&db, &["migrate"])).await.refused(&["lock timeout"]);
    owner.execute("ROLLBACK").await.unwrap();
    done(on(&db, &["migrate"])).await.succeeded();
}

async fn stops_everything(db: &TestDb) {
    for args in [
        &["migrate"][..],
        &["migrate", "--check"],
        &["serve", "--listen", "127.0.0.1:0"],
        &["serve", "--listen", "127.0.0.1:0", "--migrate"],
        &["verify"],
        &["token", "list"],
        &["seed-keys", "rotate"],
    ] {
        done(on(db, args)).await.refused(&["the database's migrations are not this program's"]);
    }
}

#[tokio::test]
async fn the_service_must_not_be_the_owner_i8() {
    let db = TestDb::unmigrated().await;
    let mut command = on(&db, &["migrate", "--service-role", "fairledger_owner"]);
    command.env_remove("DATABASE_URL");
    done(command).await.refused(&["\"fairledger_owner\" must not be the role that migrates"]);
}
