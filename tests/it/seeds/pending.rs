//! Reservations for outside games, voids and settlements.

use std::time::Duration;

use fairledger::gfs::{Commitment, Rules, SeedPair, ServerSeed};
use fairledger::seeds::model::BetStatus;
use fairledger::seeds::values::{BoundedJson, OutsideGame, RESULT_BYTES_MAX, SettlementOutcome, VoidReason};
use fairledger::seeds::{
    RecordRequest, ReservationRequest, RotateRequest, SeedsError, SeedsSettings, SettlementRequest, VoidRequest, Wager,
};
use serde_json::{Map, Value, json};

use super::{all_bets, bet_ref, bounded, dice, game, inspected, money, refused, session, start, start_with};
use crate::harness::TestDb;

pub fn reservation(commitment: Commitment, name: &str) -> ReservationRequest {
    ReservationRequest {
        commitment,
        bet_ref: bet_ref(name),
        game: OutsideGame::parse("x-slots").unwrap(),
        params: Map::new(),
        rules: Rules::new("slots-7", [9; 32]).unwrap(),
        floats: 10,
        wager: Wager { stake: Some(money("3")), ..Wager::default() },
    }
}

fn record(commitment: Commitment, nonce: u64, result: Value) -> RecordRequest {
    RecordRequest { commitment, nonce, result: BoundedJson::new(result, RESULT_BYTES_MAX).unwrap() }
}

fn void(commitment: Commitment, nonce: u64, reason: &str) -> VoidRequest {
    VoidRequest { commitment, nonce, reason: VoidReason::parse(reason).unwrap() }
}

fn settlement(commitment: Commitment, nonce: u64, payout: &str) -> SettlementRequest {
    SettlementRequest {
        commitment,
        nonce,
        payout: money(payout),
        outcome: Some(SettlementOutcome::parse("win").unwrap()),
        displayed: Some(bounded(json!({ "reels": [7, 7, 7] }))),
        rules: None,
    }
}

#[tokio::test]
async fn a_reservation_shows_its_floats_after_its_wager_is_stored_and_the_same_again() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    let request = reservation(view.commitment, "r");
    let first = seeds.reserve(view.session_id, &request).await.unwrap();
    assert_eq!((first.nonce, first.cursor, first.floats.len(), first.replayed), (0, 1, 10, false));
    let again = seeds.reserve(view.session_id, &request).await.unwrap();
    assert!(again.replayed);
    assert_eq!((again.floats, again.expires_at), (first.floats.clone(), first.expires_at));
    let other = ReservationRequest { floats: 11, ..request };
    refused!(seeds.reserve(view.session_id, &other).await, SeedsError::BetRefReused);

    let bet = seeds.record(view.session_id, &record(view.commitment, 0, json!({ "line": 3 }))).await.unwrap();
    assert_eq!(bet.record["profile"], "custom");
    assert_eq!(bet.record["rules"], json!({ "id": "slots-7", "sha256": "09".repeat(32) }));
    assert_eq!((&bet.record["floats"], &bet.record["cursor"]), (&json!(10), &json!(1)));

    let rotate = RotateRequest { commitment: view.commitment, client_seed: None };
    let revealed = seeds.rotate(view.session_id, &rotate).await.unwrap().revealed.unwrap();
    let seed = ServerSeed::parse(revealed.server_seed.as_str()).unwrap();
    let floats: Vec<f64> = SeedPair::new(&seed, &view.client_seed).floats(0).take(10).collect();
    assert_eq!(floats, first.floats);
    let bet = &all_bets(&seeds, view.session_id).await[0];
    assert_eq!(inspected(bet), "incomplete", "the outcome of an outside game is unsupported");
    assert_eq!(seeds.reserve(view.session_id, &reservation(view.commitment, "r")).await.unwrap().floats, first.floats);
}

#[tokio::test]
async fn a_reservation_is_recorded_once() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    let id = view.session_id;
    seeds.reserve(id, &reservation(view.commitment, "r")).await.unwrap();
    seeds.take_bet(id, &dice(view.commitment, "played")).await.unwrap();
    let first = seeds.record(id, &record(view.commitment, 0, json!({ "a": 1.0, "b": [] }))).await.unwrap();
    let again = seeds.record(id, &record(view.commitment, 0, json!({ "b": [], "a": 1 }))).await.unwrap();
    assert!(again.replayed && !first.replayed);
    assert_eq!(again.record, first.record);
    let other = record(view.commitment, 0, json!({ "a": 2 }));
    refused!(seeds.record(id, &other).await, SeedsError::RecordExistsWithDifferentContent);
    for nonce in [1, 2, 99] {
        refused!(seeds.record(id, &record(view.commitment, nonce, json!(1))).await, SeedsError::NonceNotReserved);
    }
    let elsewhere = session(&seeds).await;
    let request = record(elsewhere.commitment, 0, json!(1));
    refused!(seeds.record(id, &request).await, SeedsError::NonceNotReserved);
    refused!(seeds.void(id, &void(view.commitment, 0, "late")).await, SeedsError::AlreadyRecorded);
}

#[tokio::test]
async fn a_void_ends_a_pending_bet_of_either_kind_and_keeps_its_nonce() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    let id = view.session_id;
    seeds.reserve(id, &reservation(view.commitment, "r")).await.unwrap();
    seeds.take_bet(id, &game(view.commitment, "round", "hilo", &json!({}), true)).await.unwrap();
    for nonce in [0, 1] {
        let first = seeds.void(id, &void(view.commitment, nonce, "table broke")).await.unwrap();
        assert_eq!(first.meta.status, BetStatus::Void);
        assert!(!first.record.contains_key("result"));
        let again = seeds.void(id, &void(view.commitment, nonce, "table broke")).await.unwrap();
        assert!(again.replayed);
        let other = void(view.commitment, nonce, "other");
        refused!(seeds.void(id, &other).await, SeedsError::VoidWithDifferentReason { .. });
    }
    refused!(seeds.record(id, &record(view.commitment, 0, json!(1))).await, SeedsError::Void { .. });
    refused!(seeds.void(id, &void(view.commitment, 2, "none")).await, SeedsError::BetNotFound);
    let now = seeds.view(id).await.unwrap();
    assert_eq!((now.nonce, now.pending.len()), (2, 0));
    seeds.rotate(id, &RotateRequest { commitment: view.commitment, client_seed: None }).await.unwrap();
}

#[tokio::test]
async fn an_expired_reservation_is_void_before_anybody_swept() {
    let db = TestDb::new().await;
    let settings =
        SeedsSettings { reservation_ttl: Duration::from_millis(1), pending_max: 2, ..SeedsSettings::default() };
    let seeds = start_with(&db, settings, None).await;
    let view = session(&seeds).await;
    let id = view.session_id;
    for number in 0..6 {
        // More than may be pending at once: those that expired are pending no more.
        seeds.reserve(id, &reservation(view.commitment, &format!("r{number}"))).await.unwrap();
        db.wait_until("SELECT every(expires_at <= clock_timestamp()) FROM fairledger.pending").await;
    }
    refused!(seeds.record(id, &record(view.commitment, 5, json!(1))).await, SeedsError::Void { .. });
    let bets = all_bets(&seeds, id).await;
    assert!(bets.iter().all(|bet| bet.meta.void_reason.as_deref() == Some("expired")));
    assert!(seeds.view(id).await.unwrap().pending.is_empty());
    // And they do not stand in the way of a rotation.
    let ended = seeds.rotate(id, &RotateRequest { commitment: view.commitment, client_seed: None }).await.unwrap();
    assert_eq!(ended.revealed.unwrap().bets, 6);
}

#[tokio::test]
async fn only_so_many_bets_are_pending_in_a_session() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    let id = view.session_id;
    for number in 0..16 {
        seeds.reserve(id, &reservation(view.commitment, &format!("r{number}"))).await.unwrap();
    }
    refused!(seeds.reserve(id, &reservation(view.commitment, "r16")).await, SeedsError::TooManyPending);
    seeds.take_bet(id, &dice(view.commitment, "played")).await.unwrap();
    assert!(seeds.reserve(id, &reservation(view.commitment, "r3")).await.unwrap().replayed);
    seeds.void(id, &void(view.commitment, 3, "make room")).await.unwrap();
    seeds.reserve(id, &reservation(view.commitment, "r16")).await.unwrap();
}

#[tokio::test]
async fn a_settlement_is_stored_once_and_only_for_a_recorded_bet() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    let id = view.session_id;
    seeds.take_bet(id, &dice(view.commitment, "played")).await.unwrap();
    seeds.reserve(id, &reservation(view.commitment, "r")).await.unwrap();
    let first = seeds.settle(id, &settlement(view.commitment, 0, "4.50")).await.unwrap();
    let stored = first.meta.settlement.unwrap();
    assert_eq!((stored.payout.as_str(), stored.outcome.as_deref()), ("4.50", Some("win")));
    assert_eq!(stored.displayed, Some(json!({ "reels": [7, 7, 7] })));
    assert!(seeds.settle(id, &settlement(view.commitment, 0, "4.5")).await.unwrap().replayed);
    let other = settlement(view.commitment, 0, "4.51");
    refused!(seeds.settle(id, &other).await, SeedsError::SettledWithDifferentContent);
    refused!(seeds.settle(id, &settlement(view.commitment, 1, "0")).await, SeedsError::NotRecorded);
    refused!(seeds.settle(id, &settlement(view.commitment, 9, "0")).await, SeedsError::BetNotFound);
}

#[tokio::test]
async fn a_pending_bet_has_exactly_one_end_whoever_comes_at_once() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    for round in 0..10 {
        let view = session(&seeds).await;
        let id = view.session_id;
        seeds.reserve(id, &reservation(view.commitment, "r")).await.unwrap();
        let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(9));
        let tries = (0..9).map(|number| {
            let (seeds, barrier, commitment) = (seeds.clone(), barrier.clone(), view.commitment);
            tokio::spawn(async move {
                barrier.wait().await;
                match number % 3 {
                    0 => seeds.record(id, &record(commitment, 0, json!(number))).await.is_ok_and(|bet| !bet.replayed),
                    1 => {
                        let request = void(commitment, 0, &format!("void {number}"));
                        seeds.void(id, &request).await.is_ok_and(|bet| !bet.replayed)
                    }
                    _ => {
                        // Closing ends it too, unless another end came first.
                        seeds.close(id, &commitment).await.unwrap();
                        false
                    }
                }
            })
        });
        let wins = futures_util::future::join_all(tries).await.into_iter().filter(|won| *won.as_ref().unwrap()).count();
        let bet = &all_bets(&seeds, id).await[0];
        let abandoned = bet.meta.void_reason.as_deref() == Some("abandoned");
        assert_eq!(wins, usize::from(!abandoned), "round {round}");
        let mut owner = db.owner().await;
        let ends: i64 = sqlx::query_scalar(
            "SELECT (SELECT count(*) FROM fairledger.outcomes WHERE session_id = $1)
                  + (SELECT count(*) FROM fairledger.voids WHERE session_id = $1)",
        )
        .bind(id)
        .fetch_one(&mut owner)
        .await
        .unwrap();
        assert_eq!(ends, 1);
    }
}
