//! Creating and looking at sessions.

use std::time::Duration;

use fairledger::gfs::signature::{SigningKey, verify};
use fairledger::seeds::model::SessionStatus;
use fairledger::seeds::values::PlayerRef;
use fairledger::seeds::{SeedsError, SeedsSettings, SessionRequest};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{dice, refused, session, start, start_with};
use crate::harness::TestDb;

#[tokio::test]
async fn a_new_session_shows_both_commitments_and_no_seed() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    assert_eq!(view.status, SessionStatus::Open);
    assert_ne!(Some(view.commitment), view.next_commitment);
    assert_eq!((view.nonce, view.bets, view.pending.len()), (0, 0, 0));
    assert_eq!(view.client_seed.as_str().len(), 32);
    let list = seeds.seeds_of_session(view.session_id).await.unwrap().seeds;
    let states: Vec<_> = list.iter().map(|seed| (seed.status, seed.server_seed.is_some(), seed.bets)).collect();
    assert_eq!(states, [("live", false, 0), ("next", false, 0)]);
}

#[tokio::test]
async fn the_same_session_id_again_is_the_same_session_whatever_the_cap() {
    let db = TestDb::new().await;
    let settings = SeedsSettings { sessions_per_address_max: 1, ..SeedsSettings::default() };
    let seeds = start_with(&db, settings, None).await;
    let request = SessionRequest {
        session_id: Some(Uuid::new_v4()),
        client_address: Some("192.0.2.7".parse().unwrap()),
        player_ref: Some(PlayerRef::parse("p1").unwrap()),
    };
    let first = seeds.create_session(&request).await.unwrap();
    assert!(!first.replayed);
    let again = seeds.create_session(&request).await.unwrap();
    assert!(again.replayed);
    assert_eq!(again.view.commitment, first.view.commitment);
    // The address is not part of the content; the player is.
    let elsewhere = SessionRequest { client_address: Some("192.0.2.8".parse().unwrap()), ..request.clone() };
    assert!(seeds.create_session(&elsewhere).await.unwrap().replayed);
    let other = SessionRequest { player_ref: None, ..request };
    refused!(seeds.create_session(&other).await, SeedsError::SessionExistsWithDifferentContent);
}

#[tokio::test]
async fn one_address_may_start_only_so_many_sessions_in_its_window() {
    let db = TestDb::new().await;
    let settings = SeedsSettings {
        sessions_per_address_max: 2,
        address_window: Duration::from_secs(3600),
        ..SeedsSettings::default()
    };
    let seeds = start_with(&db, settings, None).await;
    let from = |address: &str| SessionRequest { client_address: Some(address.parse().unwrap()), ..Default::default() };
    for address in ["2001:db8::1", "2001:db8::2"] {
        seeds.create_session(&from(address)).await.unwrap();
    }
    match seeds.create_session(&from("2001:db8::ffff")).await {
        Err(SeedsError::TooManySessions { retry_after }) => {
            assert!(
                retry_after <= Duration::from_secs(3600) && retry_after > Duration::from_secs(3500),
                "{retry_after:?}"
            );
        }
        other => panic!("{other:?}"),
    }
    seeds.create_session(&from("2001:db8:0:1::1")).await.unwrap();
    for _ in 0..3 {
        seeds.create_session(&SessionRequest::default()).await.unwrap();
    }
    // A refused session leaves nothing behind, and the window's end opens the address again.
    let mut owner = db.owner().await;
    let sessions: i64 =
        sqlx::query_scalar("SELECT count(*) FROM fairledger.sessions").fetch_one(&mut owner).await.unwrap();
    assert_eq!(sessions, 6);
    sqlx::query("UPDATE fairledger.address_quota SET window_started_at = window_started_at - interval '1 hour'")
        .execute(&mut owner)
        .await
        .unwrap();
    seeds.create_session(&from("2001:db8::1")).await.unwrap();
}

#[tokio::test]
async fn a_hundred_callers_cannot_pass_the_cap_together() {
    let db = TestDb::new().await;
    let settings = SeedsSettings { sessions_per_address_max: 5, ..SeedsSettings::default() };
    let seeds = start_with(&db, settings, None).await;
    let tries = (0..100).map(|_| {
        let seeds = seeds.clone();
        tokio::spawn(async move {
            let request = SessionRequest { client_address: Some("192.0.2.1".parse().unwrap()), ..Default::default() };
            seeds.create_session(&request).await
        })
    });
    let mut created = 0;
    for tried in futures_util::future::join_all(tries).await {
        match tried.unwrap() {
            Ok(_) => created += 1,
            Err(SeedsError::TooManySessions { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(created, 5);
}

#[tokio::test]
async fn sessions_of_a_player_are_listed_page_by_page() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let player = PlayerRef::parse("Zoë 7").unwrap();
    let mut ids = Vec::new();
    for _ in 0..5 {
        let request = SessionRequest { player_ref: Some(player.clone()), ..Default::default() };
        ids.push(seeds.create_session(&request).await.unwrap().view.session_id);
    }
    session(&seeds).await;
    ids.sort_unstable();
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = seeds.sessions_of_player(&player, after, 2).await.unwrap();
        assert!(page.sessions.len() <= 2);
        listed.extend(page.sessions.iter().map(|view| view.session_id));
        match page.next_after {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(listed, ids);
}

#[tokio::test]
async fn a_receipt_is_signed_over_what_the_player_was_shown() {
    let db = TestDb::new().await;
    let key = SigningKey::generate();
    let signer = key.signer();
    let seeds = start_with(&db, SeedsSettings::default(), Some(key)).await;
    let view = session(&seeds).await;
    let receipt = view.receipt.unwrap();
    let payload: Value = serde_json::from_str(&receipt.payload).unwrap();
    let expected = json!({
        "sessionId": view.session_id,
        "commitment": view.commitment,
        "nextCommitment": view.next_commitment,
        "committedAt": view.committed_at,
    });
    assert_eq!(payload, expected);
    let signature: [u8; 64] = hex::decode(&receipt.signature).unwrap().try_into().unwrap();
    assert!(verify(receipt.payload.as_bytes(), &signature, &signer));
    let keys = seeds.signing_keys().await.unwrap();
    assert_eq!(keys.iter().map(|key| (key.signer, key.valid_until)).collect::<Vec<_>>(), [(signer, None)]);
}

#[tokio::test]
async fn a_later_signing_key_ends_the_one_before() {
    let db = TestDb::new().await;
    let (old, new) = (SigningKey::generate(), SigningKey::generate());
    let (old_signer, new_signer) = (old.signer(), new.signer());
    let seeds = start_with(&db, SeedsSettings::default(), Some(old)).await;
    let view = session(&seeds).await;
    let before = seeds.take_bet(view.session_id, &dice(view.commitment, "b0")).await.unwrap();
    let seeds = start_with(&db, SeedsSettings::default(), Some(new)).await;
    let after = seeds.take_bet(view.session_id, &dice(view.commitment, "b1")).await.unwrap();
    assert_eq!(before.record["signer"], hex::encode(old_signer));
    assert_eq!(after.record["signer"], hex::encode(new_signer));
    let again = seeds.take_bet(view.session_id, &dice(view.commitment, "b0")).await.unwrap();
    assert_eq!(again.record, before.record);
    let keys = seeds.signing_keys().await.unwrap();
    assert_eq!(keys.iter().map(|key| key.valid_until.is_some()).collect::<Vec<_>>(), [true, false]);
}

#[tokio::test]
async fn a_commitment_is_public_through_all_its_life() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    let (live, next) = (view.commitment, view.next_commitment.unwrap());
    assert_eq!(seeds.commitment(&next).await.unwrap().status, "next");
    let bet = seeds.take_bet(view.session_id, &dice(live, "b0")).await.unwrap();
    let shown = seeds.commitment(&live).await.unwrap();
    assert_eq!((shown.status, shown.bets, shown.server_seed.is_some()), ("live", 1, false));
    assert_eq!(shown.first_bet_at, Some(bet.meta.taken_at));
    assert!(shown.committed_at < bet.meta.taken_at, "committed before the first bet");
    seeds.close(view.session_id, &live).await.unwrap();
    let shown = seeds.commitment(&live).await.unwrap();
    assert_eq!((shown.status, shown.server_seed.is_some()), ("revealed", true));
    let shown = seeds.commitment(&next).await.unwrap();
    assert_eq!((shown.status, shown.server_seed.is_some()), ("discarded", false));
    let unknown = fairledger::gfs::ServerSeed::generate().commitment();
    refused!(seeds.commitment(&unknown).await, SeedsError::CommitmentNotFound);
}

#[tokio::test]
async fn unknown_sessions_are_not_found_by_any_operation() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let (nobody, commitment) = (Uuid::new_v4(), fairledger::gfs::ServerSeed::generate().commitment());
    refused!(seeds.view(nobody).await, SeedsError::SessionNotFound);
    refused!(seeds.seeds_of_session(nobody).await, SeedsError::SessionNotFound);
    refused!(seeds.bets_of_session(nobody, None, 10).await, SeedsError::SessionNotFound);
    refused!(seeds.take_bet(nobody, &dice(commitment, "b")).await, SeedsError::SessionNotFound);
    refused!(seeds.close(nobody, &commitment).await, SeedsError::SessionNotFound);
    refused!(seeds.round(nobody, &commitment, 0).await, SeedsError::SessionNotFound);
}
