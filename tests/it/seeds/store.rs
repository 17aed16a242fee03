//! One conformance suite over both implementations of `SeedStore`.

use std::time::Duration;

use fairledger::gfs::{ClientSeed, ServerSeed};
use fairledger::seeds::SeedsSettings;
use fairledger::seeds::store::{MemorySeedStore, PgSeedStore, PutSession, SeedStore, SeedStoreError};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{refused, start_with};
use crate::harness::TestDb;

const TTL: Duration = Duration::from_secs(3600);

fn settings() -> SeedsSettings {
    SeedsSettings { pending_max: 1_000, ..SeedsSettings::default() }
}

/// Makes one test for each implementation out of each of these functions.
macro_rules! conformance {
    ($($name:ident),+ $(,)?) => {
        mod memory {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(std::sync::Arc::new(MemorySeedStore::new(settings()))).await;
            })+
        }
        mod postgres {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let db = TestDb::new().await;
                super::$name(std::sync::Arc::new(PgSeedStore::new(start_with(&db, settings(), None).await))).await;
            })+
        }
    };
}

conformance!(
    a_put_session_is_got_back,
    a_new_session_must_be_new_and_a_stored_one_as_expected,
    a_commitment_is_used_once_for_ever,
    a_thousand_reservations_at_once_hand_out_every_nonce_once,
    a_new_commitment_starts_at_nonce_zero_and_reveals_the_old_seed,
    a_revealed_seed_reserves_no_more,
    only_the_right_seed_reveals,
    records_are_pushed_once_and_never_trimmed,
    records_owed_keep_a_seed_from_its_end,
    a_time_to_live_ends_in_a_reveal,
    addresses_are_counted_in_their_window,
);

fn new_session(session_id: Uuid) -> PutSession {
    PutSession { session_id, server_seed: ServerSeed::generate(), client_seed: ClientSeed::generate() }
}

fn record(session: &PutSession, nonce: u64, result: Value) -> Value {
    json!({ "spec": "GFS/1.0", "game": "dice", "commitment": session.server_seed.commitment(), "nonce": nonce, "result": result })
}

type Store = std::sync::Arc<dyn SeedStore>;

async fn stored(store: &Store) -> PutSession {
    let session = new_session(Uuid::new_v4());
    store.put(&session, TTL, None).await.unwrap();
    session
}

/// Plays one bet to its end.
async fn play(store: &Store, session: &PutSession) -> u64 {
    let nonce = store.reserve_nonce(session.session_id, TTL, &session.server_seed.commitment()).await.unwrap();
    store.push_record(session.session_id, &record(session, nonce, json!(nonce))).await.unwrap();
    nonce
}

async fn a_put_session_is_got_back(store: Store) {
    let session = stored(&store).await;
    let got = store.get(session.session_id, Some(TTL)).await.unwrap().unwrap();
    assert_eq!(got.server_seed.expose(), session.server_seed.expose());
    assert_eq!((got.client_seed, got.bets_under_seed), (session.client_seed.clone(), 0));
    assert_eq!(play(&store, &session).await, 0);
    assert_eq!(store.peek_nonce(session.session_id).await.unwrap(), 1);
    assert_eq!(store.get(session.session_id, None).await.unwrap().unwrap().bets_under_seed, 1);
    assert!(store.get(Uuid::new_v4(), None).await.unwrap().is_none());
    refused!(store.peek_nonce(Uuid::new_v4()).await, SeedStoreError::SessionNotFound);
}

async fn a_new_session_must_be_new_and_a_stored_one_as_expected(store: Store) {
    let session = stored(&store).await;
    let commitment = session.server_seed.commitment();
    store.put(&session, TTL, None).await.unwrap();
    store.put(&session, TTL, Some(&commitment)).await.unwrap();
    let other = new_session(session.session_id);
    refused!(store.put(&other, TTL, None).await, SeedStoreError::CommitmentChanged);
    let wrong = other.server_seed.commitment();
    refused!(store.put(&new_session(session.session_id), TTL, Some(&wrong)).await, SeedStoreError::CommitmentChanged);
    refused!(store.put(&new_session(Uuid::new_v4()), TTL, Some(&wrong)).await, SeedStoreError::SessionNotFound);
    let rebound = PutSession { client_seed: ClientSeed::generate(), ..session.clone() };
    refused!(store.put(&rebound, TTL, Some(&commitment)).await, SeedStoreError::ClientSeedBound);
    let nul = PutSession { client_seed: ClientSeed::parse("a\0b").unwrap(), ..new_session(Uuid::new_v4()) };
    refused!(store.put(&nul, TTL, None).await, SeedStoreError::ClientSeedWithNul);
    let got = store.get(session.session_id, None).await.unwrap().unwrap();
    assert_eq!((got.commitment, got.client_seed), (commitment, session.client_seed));
}

async fn a_commitment_is_used_once_for_ever(store: Store) {
    let first = stored(&store).await;
    let elsewhere = PutSession { session_id: Uuid::new_v4(), ..first.clone() };
    refused!(store.put(&elsewhere, TTL, None).await, SeedStoreError::CommitmentUsed);
    assert!(store.get(elsewhere.session_id, None).await.unwrap().is_none(), "nothing of it was kept");
    play(&store, &first).await;
    let second = new_session(first.session_id);
    store.put(&second, TTL, Some(&first.server_seed.commitment())).await.unwrap();
    // Back to the first seed would hand its nonces out again.
    let expected = second.server_seed.commitment();
    refused!(store.put(&first, TTL, Some(&expected)).await, SeedStoreError::CommitmentUsed);
    assert_eq!(store.get(first.session_id, None).await.unwrap().unwrap().commitment, expected);
    assert_eq!(store.reserve_nonce(first.session_id, TTL, &expected).await.unwrap(), 0, "and the seed is still live");
}

async fn a_thousand_reservations_at_once_hand_out_every_nonce_once(store: Store) {
    let session = stored(&store).await;
    let commitment = session.server_seed.commitment();
    let callers = (0..50).map(|_| {
        let (store, id) = (store.clone(), session.session_id);
        tokio::spawn(async move {
            let mut nonces = Vec::new();
            for _ in 0..20 {
                nonces.push(store.reserve_nonce(id, TTL, &commitment).await.unwrap());
            }
            nonces
        })
    });
    let mut nonces: Vec<u64> =
        futures_util::future::join_all(callers).await.into_iter().flat_map(Result::unwrap).collect();
    nonces.sort_unstable();
    assert_eq!(nonces, (0..1000).collect::<Vec<_>>());
    refused!(store.reserve_nonce(session.session_id, TTL, &commitment).await, SeedStoreError::TooManyPending);
}

async fn a_new_commitment_starts_at_nonce_zero_and_reveals_the_old_seed(store: Store) {
    let first = stored(&store).await;
    for nonce in 0..3 {
        assert_eq!(play(&store, &first).await, nonce);
    }
    let second = new_session(first.session_id);
    let expected = first.server_seed.commitment();
    store.put(&second, TTL, Some(&expected)).await.unwrap();
    store.put(&second, TTL, Some(&expected)).await.unwrap();
    assert_eq!(play(&store, &second).await, 0);
    let revealed = store.revealed(first.session_id).await.unwrap();
    assert_eq!(revealed.len(), 1);
    assert_eq!(revealed[&expected].expose(), first.server_seed.expose());
    refused!(store.reserve_nonce(first.session_id, TTL, &expected).await, SeedStoreError::CommitmentChanged);
}

async fn a_revealed_seed_reserves_no_more(store: Store) {
    let session = stored(&store).await;
    let commitment = session.server_seed.commitment();
    play(&store, &session).await;
    for _ in 0..2 {
        store.reveal(session.session_id, &commitment, &session.server_seed, TTL).await.unwrap();
    }
    refused!(store.reserve_nonce(session.session_id, TTL, &commitment).await, SeedStoreError::SeedEnded);
    let next = new_session(session.session_id);
    store.put(&next, TTL, Some(&commitment)).await.unwrap();
    assert_eq!(play(&store, &next).await, 0);
}

async fn only_the_right_seed_reveals(store: Store) {
    let session = stored(&store).await;
    let commitment = session.server_seed.commitment();
    let other = ServerSeed::generate();
    refused!(store.reveal(session.session_id, &commitment, &other, TTL).await, SeedStoreError::WrongSeed);
    let foreign = store.reveal(session.session_id, &other.commitment(), &other, TTL).await;
    refused!(foreign, SeedStoreError::CommitmentChanged);
    assert!(store.revealed(session.session_id).await.unwrap().is_empty());
}

async fn records_are_pushed_once_and_never_trimmed(store: Store) {
    let session = stored(&store).await;
    for _ in 0..60 {
        play(&store, &session).await;
    }
    let id = session.session_id;
    store.push_record(id, &record(&session, 7, json!(7))).await.unwrap();
    refused!(store.push_record(id, &record(&session, 7, json!(8))).await, SeedStoreError::RecordExists);
    refused!(store.push_record(id, &record(&session, 60, json!(0))).await, SeedStoreError::NonceNotReserved);
    refused!(store.push_record(id, &record(&new_session(id), 0, json!(0))).await, SeedStoreError::NonceNotReserved);
    refused!(store.push_record(id, &json!({ "nonce": 1 })).await, SeedStoreError::InvalidRecord(_));
    let records = store.records(id, 1_000).await.unwrap();
    let results: Vec<u64> = records.iter().map(|record| record["result"].as_u64().unwrap()).collect();
    assert_eq!(results, (0..60).rev().collect::<Vec<_>>());
    assert_eq!(store.records(id, 5).await.unwrap(), records[..5]);
    assert_eq!(records[0], record(&session, 59, json!(59)), "as it was pushed");
}

async fn records_owed_keep_a_seed_from_its_end(store: Store) {
    let session = stored(&store).await;
    let (id, commitment) = (session.session_id, session.server_seed.commitment());
    let nonce = store.reserve_nonce(id, TTL, &commitment).await.unwrap();
    refused!(store.reveal(id, &commitment, &session.server_seed, TTL).await, SeedStoreError::BetsPending);
    refused!(store.put(&new_session(id), TTL, Some(&commitment)).await, SeedStoreError::BetsPending);
    store.push_record(id, &record(&session, nonce, json!(1))).await.unwrap();
    store.reveal(id, &commitment, &session.server_seed, TTL).await.unwrap();
}

async fn a_time_to_live_ends_in_a_reveal(store: Store) {
    let session = new_session(Uuid::new_v4());
    let (id, commitment) = (session.session_id, session.server_seed.commitment());
    store.put(&session, TTL, None).await.unwrap();
    play(&store, &session).await;
    store.get(id, Some(Duration::from_millis(5))).await.unwrap();
    while store.get(id, None).await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    refused!(store.reserve_nonce(id, TTL, &commitment).await, SeedStoreError::SessionEnded);
    refused!(store.peek_nonce(id).await, SeedStoreError::SessionEnded);
    // A counter is never made again: the id has ended for good.
    refused!(store.put(&new_session(id), TTL, Some(&commitment)).await, SeedStoreError::SessionEnded);
    refused!(store.put(&new_session(id), TTL, None).await, SeedStoreError::SessionEnded);
    assert_eq!(store.revealed(id).await.unwrap().len(), 1);
    assert_eq!(store.records(id, 10).await.unwrap().len(), 1, "its history stays");
}

async fn addresses_are_counted_in_their_window(store: Store) {
    let address = "192.0.2.1".parse().unwrap();
    for expected in 1..=3 {
        assert_eq!(store.count_session(address, TTL).await.unwrap(), expected);
    }
    assert_eq!(store.count_session("192.0.2.2".parse().unwrap(), TTL).await.unwrap(), 1);
    let short = Duration::from_millis(1);
    let again = "192.0.2.3".parse().unwrap();
    assert_eq!(store.count_session(again, short).await.unwrap(), 1);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(store.count_session(again, short).await.unwrap(), 1, "a new window");
}
