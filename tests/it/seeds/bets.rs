//! Taking bets and finding them again.

use fairledger::gfs::signature::SigningKey;
use fairledger::seeds::model::BetStatus;
use fairledger::seeds::{ClientSeedRequest, RotateRequest, SeedsError, SeedsSettings, Wager};
use serde_json::json;

use super::{all_bets, bounded, dice, game, inspected, money, nonce_of, refused, session, start, start_with};
use crate::harness::TestDb;

#[tokio::test]
async fn every_game_gives_a_record_that_verifies_once_the_seed_is_revealed() {
    let db = TestDb::new().await;
    let key = SigningKey::generate();
    let seeds = start_with(&db, SeedsSettings::default(), Some(key)).await;
    let view = session(&seeds).await;
    let games = [
        ("dice", json!({})),
        ("limbo", json!({ "houseEdge": 0.03 })),
        ("roulette", json!({})),
        ("wheel", json!({ "segments": 54 })),
        ("plinko", json!({ "rows": 8 })),
        ("mines", json!({ "mines": 5 })),
        ("keno", json!({})),
        ("blackjack", json!({ "decks": 8 })),
        ("hilo", json!({})),
    ];
    for (number, (name, params)) in games.iter().enumerate() {
        let request = game(view.commitment, format!("b{number}"), name, params, false);
        let bet = seeds.take_bet(view.session_id, &request).await.unwrap();
        assert_eq!(nonce_of(&bet), number as u64);
        assert_eq!(bet.meta.status, BetStatus::Recorded);
        assert!(bet.server_seed.is_none(), "the seed is live");
        assert!(bet.record.contains_key("signature"));
    }
    let rotate = RotateRequest { commitment: view.commitment, client_seed: None };
    seeds.rotate(view.session_id, &rotate).await.unwrap();
    let bets = all_bets(&seeds, view.session_id).await;
    assert_eq!(bets.len(), games.len());
    for bet in bets {
        assert_eq!(inspected(&bet), "matches", "{}", bet.record["game"]);
    }
}

#[tokio::test]
async fn the_same_bet_ref_again_gets_the_stored_bet_at_once_later_and_after_a_rotation() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    let wager = Wager {
        selection: Some(bounded(json!({ "over": 50.0, "under": [] }))),
        stake: Some(money("1.50")),
        currency: None,
        context: Some(bounded(json!("table 7"))),
    };
    let mut request = dice(view.commitment, "bet:1");
    request.wager = wager;
    let first = seeds.take_bet(view.session_id, &request).await.unwrap();
    let at_once = seeds.take_bet(view.session_id, &request).await.unwrap();
    assert!(!first.replayed && at_once.replayed);
    assert_eq!(at_once.record, first.record);

    // Money is compared as a number, JSON as canonical JSON with defaults filled in.
    let mut same = request.clone();
    same.wager.stake = Some(money("1.5"));
    same.wager.selection = Some(bounded(json!({ "under": [], "over": 50 })));
    assert!(seeds.take_bet(view.session_id, &same).await.unwrap().replayed);

    seeds.rotate(view.session_id, &RotateRequest { commitment: view.commitment, client_seed: None }).await.unwrap();
    let mut after = request.clone();
    after.commitment = seeds.view(view.session_id).await.unwrap().commitment;
    for again in [&request, &after] {
        let later = seeds.take_bet(view.session_id, again).await.unwrap();
        assert!(later.replayed);
        assert_eq!(later.record, first.record, "a record never changes");
        assert_eq!(later.meta.stake.as_deref(), Some("1.50"), "as it was sent");
        assert!(later.server_seed.is_some());
    }
    let now = seeds.view(view.session_id).await.unwrap();
    seeds.close(view.session_id, &now.commitment).await.unwrap();
    assert!(seeds.take_bet(view.session_id, &request).await.unwrap().replayed, "also when the session is closed");
}

#[tokio::test]
async fn the_same_bet_ref_with_other_content_is_refused_and_consumes_nothing() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    let mut request = game(view.commitment, "b", "limbo", &json!({}), false);
    request.wager = Wager { stake: Some(money("2")), selection: Some(bounded(json!(1))), ..Wager::default() };
    seeds.take_bet(view.session_id, &request).await.unwrap();
    let mut others = vec![
        game(view.commitment, "b", "limbo", &json!({ "houseEdge": 0.02 }), false),
        game(view.commitment, "b", "dice", &json!({}), false),
        game(view.commitment, "b", "limbo", &json!({}), true),
    ];
    for other in &mut others {
        other.wager = request.wager.clone();
    }
    for change in [
        Wager { stake: Some(money("2.01")), ..request.wager.clone() },
        Wager { stake: None, ..request.wager.clone() },
        Wager { selection: Some(bounded(json!("1"))), ..request.wager.clone() },
        Wager { context: Some(bounded(json!(null))), ..request.wager.clone() },
    ] {
        others.push(fairledger::seeds::BetRequest { wager: change, ..request.clone() });
    }
    for other in &others {
        refused!(seeds.take_bet(view.session_id, other).await, SeedsError::BetRefReused);
    }
    let mut defaulted = game(view.commitment, "b", "limbo", &json!({ "houseEdge": 0.01 }), false);
    defaulted.wager = request.wager.clone();
    assert!(seeds.take_bet(view.session_id, &defaulted).await.unwrap().replayed);
    assert_eq!(seeds.view(view.session_id).await.unwrap().nonce, 1);
}

#[tokio::test]
async fn the_same_bet_ref_from_fifty_callers_at_once_is_one_bet() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    let tries = (0..50).map(|_| {
        let (seeds, request, id) = (seeds.clone(), dice(view.commitment, "once"), view.session_id);
        tokio::spawn(async move { seeds.take_bet(id, &request).await.unwrap() })
    });
    let bets: Vec<_> = futures_util::future::join_all(tries).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(bets.iter().filter(|bet| !bet.replayed).count(), 1);
    assert!(bets.iter().all(|bet| bet.record == bets[0].record));
    let now = seeds.view(view.session_id).await.unwrap();
    assert_eq!((now.nonce, all_bets(&seeds, view.session_id).await.len()), (1, 1), "no nonce was lost");
}

#[tokio::test]
async fn a_bet_under_another_commitment_is_refused_with_the_session_as_it_is() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    let client_seed = "mine".parse_client();
    let changed = ClientSeedRequest { commitment: view.commitment, client_seed };
    seeds.change_client_seed(view.session_id, &changed).await.unwrap();
    for commitment in [view.commitment, fairledger::gfs::ServerSeed::generate().commitment()] {
        match seeds.take_bet(view.session_id, &dice(commitment, "b")).await {
            Err(SeedsError::CommitmentChanged { session }) => {
                assert_eq!(Some(session.commitment), view.next_commitment)
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn the_last_nonce_is_never_handed_out() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    let mut owner = db.owner().await;
    sqlx::query("UPDATE fairledger.seeds SET next_nonce = 9007199254740990").execute(&mut owner).await.unwrap();
    let bet = seeds.take_bet(view.session_id, &dice(view.commitment, "last")).await.unwrap();
    assert_eq!(nonce_of(&bet), 9_007_199_254_740_990);
    refused!(seeds.take_bet(view.session_id, &dice(view.commitment, "more")).await, SeedsError::NonceExhausted);
    let rotate = RotateRequest { commitment: view.commitment, client_seed: None };
    let ended = seeds.rotate(view.session_id, &rotate).await.unwrap();
    assert_eq!(ended.revealed.unwrap().bets, 9_007_199_254_740_991);
}

#[tokio::test]
async fn records_are_paged_newest_first_and_tokens_are_sealed_to_their_session() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let (view, other) = (session(&seeds).await, session(&seeds).await);
    let mut commitment = view.commitment;
    for number in 0..12 {
        seeds.take_bet(view.session_id, &dice(commitment, format!("b{number}"))).await.unwrap();
        if number % 5 == 4 {
            let rotate = RotateRequest { commitment, client_seed: None };
            commitment = seeds.rotate(view.session_id, &rotate).await.unwrap().session.commitment;
        }
    }
    let first = seeds.bets_of_session(view.session_id, None, 5).await.unwrap();
    let token = first.next_after.unwrap();
    let second = seeds.bets_of_session(view.session_id, Some(&token), 5).await.unwrap();
    let third = seeds.bets_of_session(view.session_id, second.next_after.as_deref(), 5).await.unwrap();
    assert_eq!(third.next_after, None);
    let names: Vec<_> =
        [first.records, second.records, third.records].concat().iter().map(|bet| bet.meta.bet_ref.clone()).collect();
    let expected: Vec<_> = (0..12).rev().map(|number| format!("b{number}")).collect();
    assert_eq!(names, expected);

    let mut edited = token.clone().into_bytes();
    edited[3] = if edited[3] == b'A' { b'B' } else { b'A' };
    let edited = String::from_utf8(edited).unwrap();
    for (session_id, token) in [
        (other.session_id, token.as_str()),
        (view.session_id, edited.as_str()),
        (view.session_id, "!"),
        (view.session_id, ""),
    ] {
        refused!(seeds.bets_of_session(session_id, Some(token), 5).await, SeedsError::Invalid { .. });
    }
}

/// Client seeds in tests.
trait ParseClient {
    fn parse_client(&self) -> fairledger::gfs::ClientSeed;
}

impl ParseClient for str {
    fn parse_client(&self) -> fairledger::gfs::ClientSeed {
        fairledger::gfs::ClientSeed::parse(self).unwrap()
    }
}
