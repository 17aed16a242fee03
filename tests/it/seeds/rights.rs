//! What each role may do: history is guarded by the database itself (I6, I8, I11).

use fairledger::seeds::RotateRequest;
use serde_json::json;
use sqlx::{AssertSqlSafe, PgConnection};

use super::{dice, game, session, start};
use crate::harness::TestDb;

async fn denied(connection: &mut PgConnection, statement: &str) {
    match sqlx::query(AssertSqlSafe(statement.to_owned())).execute(connection).await {
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("42501") => {}
        other => panic!("{statement}: {other:?}"),
    }
}

/// A revealed seed with a bet, a live one with a bet and an open round.
async fn some_history(db: &TestDb) -> [String; 2] {
    let seeds = start(db).await;
    let view = session(&seeds).await;
    let id = view.session_id;
    seeds.take_bet(id, &dice(view.commitment, "b0")).await.unwrap();
    let rotate = RotateRequest { commitment: view.commitment, client_seed: None };
    let rotated = seeds.rotate(id, &rotate).await.unwrap();
    let live = rotated.session.commitment;
    seeds.take_bet(id, &dice(live, "b1")).await.unwrap();
    seeds.take_bet(id, &game(live, "round", "mines", &json!({}), true)).await.unwrap();
    [rotated.revealed.unwrap().server_seed.as_str().to_owned(), live.to_string()]
}

#[tokio::test]
async fn the_service_role_may_not_change_or_delete_history() {
    let db = TestDb::new().await;
    some_history(&db).await;
    let mut service = db.connect(&db.service_url).await;
    for table in ["bets", "outcomes", "voids", "steps", "settlements", "reveals", "commitments", "recoveries"] {
        denied(&mut service, &format!("DELETE FROM fairledger.{table}")).await;
        denied(&mut service, &format!("TRUNCATE fairledger.{table}")).await;
        denied(&mut service, &format!("UPDATE fairledger.{table} SET {}", first_column(table))).await;
    }
    for statement in [
        "DELETE FROM fairledger.seeds",
        "DELETE FROM fairledger.sessions",
        "UPDATE fairledger.seeds SET commitment = commitment",
        "UPDATE fairledger.seeds SET sealed_seed = sealed_seed",
        "UPDATE fairledger.seeds SET client_seed = 'other'",
        "UPDATE fairledger.sessions SET player_ref = NULL",
        "UPDATE fairledger.next_seeds SET commitment = commitment",
        "UPDATE fairledger.schema_history SET version = 1",
        "DROP TABLE fairledger.bets",
        "ALTER TABLE fairledger.bets DISABLE TRIGGER ALL",
        "CREATE TABLE fairledger.more (a int)",
        "CREATE TEMPORARY TABLE more (a int)",
    ] {
        denied(&mut service, statement).await;
    }
}

fn first_column(table: &str) -> &'static str {
    match table {
        "commitments" => "commitment = commitment",
        "recoveries" => "epoch = epoch",
        _ => "session_id = session_id",
    }
}

#[tokio::test]
async fn the_read_only_role_sees_bets_and_no_unrevealed_seed() {
    let db = TestDb::new().await;
    let [revealed, live] = some_history(&db).await;
    let mut read = db.connect(&db.read_url).await;
    let bets: Vec<(String, String, Option<String>, Option<String>)> = sqlx::query_as(
        "SELECT bet_ref, status, result, server_seed FROM fairledger_dispute.bets ORDER BY seed_no, nonce",
    )
    .fetch_all(&mut read)
    .await
    .unwrap();
    assert_eq!(bets.len(), 3);
    assert_eq!((bets[0].0.as_str(), bets[0].3.as_deref()), ("b0", Some(revealed.as_str())));
    assert_eq!((bets[1].0.as_str(), bets[1].2.is_some(), bets[1].3.is_some()), ("b1", true, false));
    assert_eq!((bets[2].1.as_str(), bets[2].2.is_some()), ("pending", false), "no result of a pending bet");
    let seeds: Vec<(String, String, Option<String>)> =
        sqlx::query_as("SELECT commitment, status, server_seed FROM fairledger_dispute.seeds ORDER BY seed_no")
            .fetch_all(&mut read)
            .await
            .unwrap();
    assert_eq!(seeds.iter().map(|seed| seed.1.as_str()).collect::<Vec<_>>(), ["revealed", "live", "next"]);
    assert_eq!((seeds[1].0.as_str(), seeds[1].2.is_some(), seeds[2].2.is_some()), (live.as_str(), false, false));
    let columns: Vec<String> = sqlx::query_scalar(
        "SELECT table_name || '.' || column_name FROM information_schema.columns
         WHERE table_schema = 'fairledger_dispute' AND (column_name LIKE '%seal%' OR column_name LIKE '%token%' OR column_name LIKE '%hash%')",
    )
    .fetch_all(&mut read)
    .await
    .unwrap();
    assert!(columns.is_empty(), "{columns:?}");
    for statement in [
        "SELECT 1 FROM fairledger.seeds",
        "SELECT 1 FROM fairledger.next_seeds",
        "SELECT 1 FROM fairledger.bets",
        "SELECT 1 FROM fairledger.api_tokens",
        "SELECT 1 FROM fairledger.bet_details",
        "INSERT INTO fairledger_dispute.sessions (session_id) VALUES ('00000000-0000-0000-0000-000000000000')",
        "CREATE TEMPORARY TABLE more (a int)",
    ] {
        denied(&mut read, statement).await;
    }
}

#[tokio::test]
async fn every_table_and_every_column_has_a_comment() {
    let db = TestDb::new().await;
    let mut owner = db.connect(&db.owner_url).await;
    let silent: Vec<String> = sqlx::query_scalar(
        "SELECT c.relname || coalesce('.' || a.attname, '')
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         LEFT JOIN LATERAL (SELECT attname, attnum FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped
                            UNION ALL SELECT NULL, 0) a ON true
         WHERE n.nspname = 'fairledger' AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname <> 'schema_history'
           AND col_description(c.oid, a.attnum) IS NULL AND obj_description(c.oid, 'pg_class') IS NOT NULL = (a.attnum > 0)
         ORDER BY 1",
    )
    .fetch_all(&mut owner)
    .await
    .unwrap();
    assert!(silent.is_empty(), "{silent:?}");
}
