//! Rounds: what is concealed stays concealed until its step or its close.

use fairledger::seeds::error::SeedsError;
use fairledger::seeds::model::{BetStatus, View};
use fairledger::seeds::values::VoidReason;
use fairledger::seeds::{
    CloseOutcome, CloseRequest, Disclose, RotateRequest, Seeds, SeedsSettings, StepRequest, VoidRequest,
};
use serde_json::{Value, json};

use super::{all_bets, bounded, game, inspected, refused, session, start, start_with};
use crate::harness::TestDb;

async fn round(seeds: &Seeds, name: &str, params: Value) -> View {
    let view = session(seeds).await;
    let bet = seeds.take_bet(view.session_id, &game(view.commitment, "round", name, &params, true)).await.unwrap();
    assert_eq!(bet.meta.status, BetStatus::Pending);
    for concealed in ["result", "cursor", "signature"] {
        assert!(!bet.record.contains_key(concealed));
    }
    view
}

fn step(index: u32, disclose: Option<Disclose>) -> StepRequest {
    StepRequest { index, step: bounded(json!({ "action": index })), disclose }
}

fn tiles(tiles: &[u8]) -> Option<Disclose> {
    Some(Disclose::Tiles(tiles.to_vec()))
}

fn close(outcome: CloseOutcome) -> CloseRequest {
    CloseRequest { outcome }
}

fn void(reason: &str) -> CloseOutcome {
    CloseOutcome::Void(VoidReason::parse(reason).unwrap())
}

#[tokio::test]
async fn steps_disclose_tiles_one_by_one_and_agree_with_the_record() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = round(&seeds, "mines", json!({ "mines": 1 })).await;
    let (id, commitment) = (view.session_id, view.commitment);
    let (mut shown, mut lost) = (Vec::new(), false);
    for tile in 0..25u8 {
        let answer = seeds.step(id, &commitment, 0, &step(u32::from(tile), tiles(&[tile]))).await.unwrap();
        let disclosed = answer.round.steps.last().unwrap().disclosed.clone().unwrap();
        assert_eq!(disclosed["tiles"][0]["tile"], json!(tile));
        assert!(!answer.bet.record.contains_key("result"), "the rest stays concealed");
        if disclosed["tiles"][0]["mine"] == json!(true) {
            shown.push(tile);
            lost = true;
            break;
        }
    }
    assert!(lost, "one of 25 tiles is a mine");
    let next = u32::from(shown[0]) + 1;
    refused!(seeds.step(id, &commitment, 0, &step(next, None)).await, SeedsError::RoundLost);
    for outcome in [CloseOutcome::Cashout, CloseOutcome::Forfeit, void("no")] {
        refused!(seeds.close_round(id, &commitment, 0, &close(outcome)).await, SeedsError::RoundLost);
    }
    let reason = VoidReason::parse("no").unwrap();
    let request = VoidRequest { commitment, nonce: 0, reason };
    refused!(seeds.void(id, &request).await, SeedsError::RoundLost);
    let closed = seeds.close_round(id, &commitment, 0, &close(CloseOutcome::Lost)).await.unwrap();
    assert_eq!((closed.round.status, closed.round.outcome), ("closed", Some("lost")));
    assert_eq!(closed.bet.record["result"], json!(shown));
    seeds.rotate(id, &RotateRequest { commitment, client_seed: None }).await.unwrap();
    assert_eq!(inspected(&all_bets(&seeds, id).await[0]), "matches");
}

#[tokio::test]
async fn cards_are_dealt_in_the_order_of_the_record() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = round(&seeds, "blackjack", json!({})).await;
    let (id, commitment) = (view.session_id, view.commitment);
    let mut dealt = Vec::new();
    for (index, count) in [4u32, 1, 2].into_iter().enumerate() {
        let request = step(u32::try_from(index).unwrap(), Some(Disclose::Cards(count)));
        let answer = seeds.step(id, &commitment, 0, &request).await.unwrap();
        let cards = answer.round.steps.last().unwrap().disclosed.clone().unwrap()["cards"].as_array().unwrap().clone();
        assert_eq!(cards.len(), count as usize);
        dealt.extend(cards);
        let again = seeds.step(id, &commitment, 0, &request).await.unwrap();
        assert!(again.replayed, "the same step again deals nothing more");
    }
    let too_many = step(3, Some(Disclose::Cards(46)));
    refused!(seeds.step(id, &commitment, 0, &too_many).await, SeedsError::Invalid { .. });
    seeds.step(id, &commitment, 0, &step(3, Some(Disclose::Cards(45)))).await.unwrap();
    let closed = seeds.close_round(id, &commitment, 0, &close(CloseOutcome::Cashout)).await.unwrap();
    assert_eq!(closed.bet.record["result"].as_array().unwrap()[..7], dealt[..]);
}

#[tokio::test]
async fn steps_come_in_order_and_once() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = round(&seeds, "mines", json!({})).await;
    let (id, commitment) = (view.session_id, view.commitment);
    for index in [1, 7] {
        match seeds.step(id, &commitment, 0, &step(index, None)).await {
            Err(SeedsError::StepConflict { next_index: 0 }) => {}
            other => panic!("{other:?}"),
        }
    }
    seeds.step(id, &commitment, 0, &step(0, None)).await.unwrap();
    let mut other = step(0, None);
    other.step = bounded(json!("other"));
    refused!(seeds.step(id, &commitment, 0, &other).await, SeedsError::StepConflict { next_index: 1 });
    let asking = step(0, tiles(&[3]));
    refused!(seeds.step(id, &commitment, 0, &asking).await, SeedsError::StepConflict { next_index: 1 });

    // Twenty callers with the same next step: one step, one answer.
    let tries = (0..20).map(|_| {
        let (seeds, request) = (seeds.clone(), step(1, tiles(&[0, 24])));
        tokio::spawn(async move { seeds.step(id, &commitment, 0, &request).await.unwrap() })
    });
    let answers: Vec<_> = futures_util::future::join_all(tries).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers.iter().filter(|answer| !answer.replayed).count(), 1);
    assert!(answers.iter().all(|answer| answer.round.steps[1].disclosed == answers[0].round.steps[1].disclosed));
    assert_eq!(seeds.round(id, &commitment, 0).await.unwrap().round.steps.len(), 2);
}

#[tokio::test]
async fn only_what_the_game_has_can_be_disclosed() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let cases = [("mines", Disclose::Cards(1)), ("hilo", Disclose::Tiles(vec![1])), ("dice", Disclose::Tiles(vec![1]))];
    for (name, disclose) in cases {
        let view = round(&seeds, name, json!({})).await;
        let tried = seeds.step(view.session_id, &view.commitment, 0, &step(0, Some(disclose))).await;
        refused!(tried, SeedsError::Invalid { .. });
        let now = seeds.round(view.session_id, &view.commitment, 0).await.unwrap();
        assert_eq!(now.round.next_index, 0, "nothing was stored");
    }
    for bad in [
        json!({}),
        json!([]),
        json!({ "tiles": [] }),
        json!({ "tiles": [25] }),
        json!({ "tiles": [1, 1] }),
        json!({ "tiles": [-1] }),
        json!({ "tiles": [0.5] }),
        json!({ "cards": 0 }),
        json!({ "cards": 1.5 }),
        json!({ "cards": 1, "tiles": [1] }),
        json!("all"),
    ] {
        refused!(Disclose::parse(&bad), SeedsError::Invalid { .. });
    }
}

#[tokio::test]
async fn a_round_closes_once_with_one_outcome() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = round(&seeds, "plinko", json!({})).await;
    let (id, commitment) = (view.session_id, view.commitment);
    let first = seeds.close_round(id, &commitment, 0, &close(CloseOutcome::Cashout)).await.unwrap();
    let again = seeds.close_round(id, &commitment, 0, &close(CloseOutcome::Cashout)).await.unwrap();
    assert!(again.replayed && !first.replayed);
    assert_eq!(again.bet.record, first.bet.record);
    for outcome in [CloseOutcome::Lost, CloseOutcome::Forfeit, void("no")] {
        refused!(seeds.close_round(id, &commitment, 0, &close(outcome)).await, SeedsError::RoundClosed);
    }
    refused!(seeds.step(id, &commitment, 0, &step(0, None)).await, SeedsError::RoundClosed);

    let view = round(&seeds, "plinko", json!({})).await;
    let (id, commitment) = (view.session_id, view.commitment);
    let voided = seeds.close_round(id, &commitment, 0, &close(void("power cut"))).await.unwrap();
    assert_eq!((voided.round.outcome, voided.bet.meta.status), (Some("void"), BetStatus::Void));
    assert_eq!(voided.bet.meta.round_outcome, Some("void"));
    assert!(seeds.close_round(id, &commitment, 0, &close(void("power cut"))).await.unwrap().replayed);
    refused!(seeds.close_round(id, &commitment, 0, &close(void("other"))).await, SeedsError::RoundClosed);
}

#[tokio::test]
async fn a_round_has_only_so_many_steps() {
    let db = TestDb::new().await;
    let seeds = start_with(&db, SeedsSettings { steps_max: 3, ..SeedsSettings::default() }, None).await;
    let view = round(&seeds, "hilo", json!({})).await;
    for index in 0..3 {
        seeds.step(view.session_id, &view.commitment, 0, &step(index, None)).await.unwrap();
    }
    let tried = seeds.step(view.session_id, &view.commitment, 0, &step(3, None)).await;
    refused!(tried, SeedsError::TooManySteps);
    assert!(seeds.step(view.session_id, &view.commitment, 0, &step(2, None)).await.unwrap().replayed);
}

#[tokio::test]
async fn a_step_and_a_close_at_once_leave_a_consistent_round() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    for _ in 0..20 {
        let view = round(&seeds, "mines", json!({ "mines": 24 })).await;
        let (id, commitment) = (view.session_id, view.commitment);
        let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(2));
        let stepping = tokio::spawn({
            let (seeds, barrier) = (seeds.clone(), barrier.clone());
            async move {
                barrier.wait().await;
                // All tiles: a mine is shown for certain.
                seeds.step(id, &commitment, 0, &step(0, tiles(&(0..25).collect::<Vec<_>>()))).await
            }
        });
        barrier.wait().await;
        let closed = seeds.close_round(id, &commitment, 0, &close(CloseOutcome::Cashout)).await;
        let stepped = stepping.await.unwrap();
        match (stepped, closed) {
            (Ok(_), Err(SeedsError::RoundLost)) | (Err(SeedsError::RoundClosed), Ok(_)) => {}
            other => panic!("a mine was shown and the round cashed out, or neither came through: {other:?}"),
        }
    }
}

#[tokio::test]
async fn closing_the_session_loses_a_round_that_showed_a_mine() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = round(&seeds, "mines", json!({ "mines": 24 })).await;
    let all: Vec<u8> = (0..25).collect();
    seeds.step(view.session_id, &view.commitment, 0, &step(0, tiles(&all))).await.unwrap();
    seeds.close(view.session_id, &view.commitment).await.unwrap();
    let answer = seeds.round(view.session_id, &view.commitment, 0).await.unwrap();
    assert_eq!(answer.round.outcome, Some("lost"));
}

#[tokio::test]
async fn only_concealed_bets_are_rounds() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    seeds.take_bet(view.session_id, &super::dice(view.commitment, "played")).await.unwrap();
    seeds.reserve(view.session_id, &super::pending::reservation(view.commitment, "r")).await.unwrap();
    for nonce in [0, 1, 2] {
        refused!(seeds.round(view.session_id, &view.commitment, nonce).await, SeedsError::RoundNotFound);
    }
}
