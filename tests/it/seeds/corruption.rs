//! Rows that do not fit are reported as corruption, never used and never passed over (I7).

use fairledger::db::DbError;
use fairledger::seeds::error::SeedsError;
use fairledger::seeds::{KeyRing, RotateRequest, Seeds, SeedsSettings, ServiceSecret, StartError};

use super::{RING, as_owner, dice, refused, session, start};
use crate::harness::TestDb;

#[tokio::test]
async fn a_sealed_seed_copied_into_another_sessions_row_does_not_open() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let (one, two) = (session(&seeds).await, session(&seeds).await);
    as_owner(
        &db,
        &format!(
            "UPDATE fairledger.seeds SET sealed_seed = (SELECT sealed_seed FROM fairledger.seeds WHERE session_id = '{}')
             WHERE session_id = '{}'",
            one.session_id, two.session_id
        ),
    )
    .await;
    let tried = seeds.take_bet(two.session_id, &dice(two.commitment, "b")).await;
    refused!(tried, SeedsError::Db(DbError::Corrupt { .. }));
    assert_eq!(seeds.view(two.session_id).await.unwrap().nonce, 0, "and its nonce was not consumed");
    seeds.take_bet(one.session_id, &dice(one.commitment, "b")).await.unwrap();
}

#[tokio::test]
async fn a_sealed_seed_changed_by_hand_does_not_open() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    seeds.take_bet(view.session_id, &dice(view.commitment, "b")).await.unwrap();
    as_owner(&db, "UPDATE fairledger.seeds SET sealed_seed = set_byte(sealed_seed, 40, get_byte(sealed_seed, 40) # 1)")
        .await;
    let rotate = RotateRequest { commitment: view.commitment, client_seed: None };
    refused!(seeds.rotate(view.session_id, &rotate).await, SeedsError::Db(DbError::Corrupt { .. }));
    refused!(seeds.close(view.session_id, &view.commitment).await, SeedsError::Db(DbError::Corrupt { .. }));
    assert_eq!(seeds.view(view.session_id).await.unwrap().commitment, view.commitment, "nothing was half done");
}

#[tokio::test]
async fn the_database_itself_refuses_a_reveal_that_is_not_the_committed_seed() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    let mut owner = db.owner().await;
    let inserted = sqlx::query(
        "INSERT INTO fairledger.reveals (session_id, seed_no, commitment, server_seed, revealed_at, reason)
         SELECT session_id, seed_no, commitment, decode(repeat('ab', 32), 'hex'), now(), 'rotation' FROM fairledger.seeds
         WHERE session_id = $1",
    )
    .bind(view.session_id)
    .execute(&mut owner)
    .await;
    match inserted {
        Err(sqlx::Error::Database(error)) => assert_eq!(error.constraint(), Some("reveals_match_commitment")),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_bet_that_lost_its_pending_row_or_its_result_is_corruption() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    let request = super::game(view.commitment, "round", "mines", &serde_json::json!({}), true);
    seeds.take_bet(view.session_id, &request).await.unwrap();
    as_owner(&db, "DELETE FROM fairledger.pending").await;
    let corrupt = seeds.bets_of_session(view.session_id, None, 10).await;
    refused!(corrupt, SeedsError::Db(DbError::Corrupt { .. }));
    // The seed counts one pending bet that is not there.
    refused!(seeds.close(view.session_id, &view.commitment).await, SeedsError::Db(DbError::Corrupt { .. }));
}

async fn start_with_ring(db: &TestDb, ring: &str) -> Result<Seeds, StartError> {
    let store =
        fairledger::db::Datastore::connect(&db.service_url, &fairledger::db::PoolSettings::default()).await.unwrap();
    let ring = KeyRing::parse(ring).unwrap();
    Seeds::start(store, ring, ServiceSecret::new([7; 32]), None, SeedsSettings::default()).await
}

#[tokio::test]
async fn a_wrong_or_missing_seed_key_is_refused_at_start() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    session(&seeds).await;
    let wrong = KeyRing::generate_entry("k1");
    refused!(start_with_ring(&db, &wrong).await, StartError::KeyWrong(_));
    let other = KeyRing::generate_entry("k2");
    refused!(start_with_ring(&db, &other).await, StartError::KeyMissing(_));
    let both = format!("{},{RING}", *other);
    start_with_ring(&db, &both).await.unwrap();
}
