//! Every filter alone and combined against a model; pages and their tokens; single bets.

use std::time::Duration;

use fairledger::db::DbError;
use fairledger::history::{Filters, HistoryError, HistorySettings, State};
use fairledger::seeds::model::BetStatus;
use fairledger::seeds::values::{BetRef, GameName, PlayerRef, Timestamp};
use fairledger::seeds::{SeedsError, SeedsSettings};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use uuid::Uuid;

use super::past::Past;
use super::world::{Known, World, expected, history_of};
use super::{all, bundle, page, refused_for, request};

/// Filters of which each is there as often as `chance` says, mostly with values that some bet has.
fn random_filters(rng: &mut StdRng, known: &[Known], chance: f64) -> Filters {
    let bet = &known[rng.random_range(0..known.len())];
    let other = &known[rng.random_range(0..known.len())];
    let text = |bet: &Known, pointer: &str| bet.answer.pointer(pointer).unwrap().as_str().unwrap().to_owned();
    let pick = |rng: &mut StdRng| if rng.random_bool(0.9) { bet } else { other };
    let mut filters = Filters::default();
    if rng.random_bool(chance) {
        filters.session_id = Some(pick(rng).place.0);
    }
    if rng.random_bool(chance) {
        filters.commitment = Some(text(pick(rng), "/record/commitment").parse().unwrap());
        if rng.random_bool(chance) {
            filters.nonce = Some(pick(rng).place.2);
        }
    }
    if rng.random_bool(chance) {
        let player = pick(rng).player.clone().unwrap_or("nobody".to_owned());
        filters.player_ref = Some(PlayerRef::parse(&player).unwrap());
    }
    if rng.random_bool(chance) {
        filters.bet_ref = Some(BetRef::parse(&text(pick(rng), "/meta/betRef")).unwrap());
    }
    if rng.random_bool(chance) {
        filters.game = Some(GameName::parse(&text(pick(rng), "/record/game")).unwrap());
    }
    if rng.random_bool(chance) {
        filters.status = Some(pick(rng).status);
    }
    let (first, second) = (bet.taken_at.min(other.taken_at), bet.taken_at.max(other.taken_at));
    if rng.random_bool(chance) {
        filters.from = Some(Timestamp(first));
    }
    if rng.random_bool(chance) {
        filters.to = Some(Timestamp(second));
    }
    filters
}

#[tokio::test]
async fn every_filter_alone_and_combined_finds_what_the_model_has() {
    let seed: u64 = std::env::var("FAIRLEDGER_MODEL_SEED").ok().map_or_else(rand::random, |seed| seed.parse().unwrap());
    println!("FAIRLEDGER_MODEL_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let world = World::random(&mut rng, 14, 400).await;
    let known = world.known().await;
    assert!(known.len() > 200);
    // One that gives up after a few rows: more pages, some of them empty, and the same bets in all.
    let short = history_of(&world.seeds, HistorySettings { examined_max: 7, ..HistorySettings::default() });
    let mut found = 0;
    for round in 0..200 {
        let chance = if round < 80 { 0.13 } else { 0.35 };
        let filters = random_filters(&mut rng, &known, chance);
        let expected = expected(&known, &filters);
        found += expected.len();
        let limit = [1, 2, 7, 50, 500][rng.random_range(0..5)];
        let history = if expected.len() <= 30 && rng.random_bool(0.5) { &short } else { &world.history };
        let pages = all(history, &filters, if expected.len() > 30 { limit.max(50) } else { limit }).await;
        assert!(pages == expected, "{filters:?}, limit {limit}: {} instead of {}", pages.len(), expected.len());
    }
    assert!(found > 500, "the filters left next to nothing");
    for status in [BetStatus::Recorded, BetStatus::Pending, BetStatus::Void] {
        let filters = Filters { status: Some(status), ..Filters::default() };
        assert!(!expected(&known, &filters).is_empty(), "{status:?}");
        assert_eq!(all(&world.history, &filters, 50).await, expected(&known, &filters), "{status:?}");
    }
    assert_eq!(all(&world.history, &Filters::default(), 50).await, expected(&known, &Filters::default()));
}

#[tokio::test]
async fn a_page_says_that_there_is_more_exactly_when_there_is() {
    let mut rng = StdRng::seed_from_u64(1);
    let world = World::random(&mut rng, 3, 40).await;
    let known = world.known().await;
    let count = u32::try_from(known.len()).unwrap();
    let exact = page(&world.history, &Filters::default(), None, count).await;
    assert_eq!((exact.records.len(), exact.next_after), (known.len(), None));
    let less = page(&world.history, &Filters::default(), None, count - 1).await;
    let rest = page(&world.history, &Filters::default(), less.next_after, 1).await;
    assert_eq!((rest.records.len(), rest.next_after), (1, None));
}

#[tokio::test]
async fn a_page_looks_at_so_many_rows_and_says_where_to_go_on_i12() {
    let mut rng = StdRng::seed_from_u64(2);
    let world = World::random(&mut rng, 4, 120).await;
    let known = world.known().await;
    let short = history_of(&world.seeds, HistorySettings { examined_max: 5, ..HistorySettings::default() });
    // No bet has this game: every page is empty, but the walk gets on.
    for filters in [
        Filters {
            session_id: Some(world.sessions[0].0),
            game: Some(GameName::parse("keno").unwrap()),
            ..Filters::default()
        },
        Filters { status: Some(BetStatus::Void), game: Some(GameName::parse("keno").unwrap()), ..Filters::default() },
    ] {
        let mut pages = 1;
        let mut after = page(&short, &filters, None, 3).await.next_after;
        assert!(after.is_some());
        while after.is_some() {
            let next = page(&short, &filters, after, 3).await;
            assert!(next.records.is_empty());
            after = next.next_after;
            pages += 1;
            assert!(pages <= known.len() + 2, "it does not get on");
        }
    }
}

#[tokio::test]
async fn filters_that_do_not_fit_together_are_refused() {
    let world = World::empty().await;
    let history = &world.history;
    let time = |text: &str| Some(Timestamp(text.parse().unwrap()));
    let alone = Filters { nonce: Some(0), ..Filters::default() };
    refused_for(history.page(request(&alone, None, 10)).await, "nonce");
    let turned = Filters { from: time("2030-01-02T00:00:00Z"), to: time("2030-01-01T00:00:00Z"), ..Filters::default() };
    refused_for(history.page(request(&turned, None, 10)).await, "to");
    let beyond = Filters { from: time("9999-12-31T23:59:59-01:00"), ..Filters::default() };
    refused_for(history.page(request(&beyond, None, 10)).await, "from");
    let empty = Filters { from: turned.from, to: turned.from, ..Filters::default() };
    assert!(page(history, &empty, None, 10).await.records.is_empty());
}

#[tokio::test]
async fn a_page_token_is_good_only_for_its_own_filters_and_as_it_was_made() {
    let mut rng = StdRng::seed_from_u64(3);
    let world = World::random(&mut rng, 3, 60).await;
    let history = &world.history;
    let filters = Filters::default();
    let token = page(history, &filters, None, 5).await.next_after.unwrap();
    // Another limit is the same query.
    assert_eq!(page(history, &filters, Some(token.clone()), 7).await.records.len(), 7);
    let game = Filters { game: Some(GameName::parse("dice").unwrap()), ..Filters::default() };
    refused_for(history.page(request(&game, Some(token.clone()), 5)).await, "after");
    for place in 0..token.len() {
        let mut edited = token.clone().into_bytes();
        edited[place] = if edited[place] == b'A' { b'B' } else { b'A' };
        let edited = String::from_utf8(edited).unwrap();
        refused_for(history.page(request(&filters, Some(edited), 5)).await, "after");
    }
    for wrong in ["", "x", &token[1..], &format!("{token}A"), &format!("{token}{token}")] {
        refused_for(history.page(request(&filters, Some(wrong.to_owned()), 5)).await, "after");
    }
    // A session's own listing has tokens of its own.
    let (session_id, _) = world.sessions[0];
    let own = world.seeds.bets_of_session(session_id, None, 1).await.unwrap().next_after.unwrap();
    let of_session = Filters { session_id: Some(session_id), ..Filters::default() };
    refused_for(history.page(request(&of_session, Some(own), 5)).await, "after");
}

#[tokio::test]
async fn one_bet_is_found_by_commitment_and_nonce() {
    let mut rng = StdRng::seed_from_u64(4);
    let world = World::random(&mut rng, 3, 60).await;
    for bet in world.known().await {
        let commitment = bet.answer["record"]["commitment"].as_str().unwrap().parse().unwrap();
        let found = world.history.bet(&commitment, bet.place.2).await.unwrap();
        assert_eq!(serde_json::to_value(&found.bet).unwrap(), bet.answer);
        assert!(found.as_of.0 > bet.taken_at);
    }
    let view = world.seeds.view(world.sessions[0].0).await.unwrap();
    for (commitment, nonce) in [(view.commitment, view.nonce), (view.next_commitment.unwrap(), 0)] {
        assert!(matches!(world.history.bet(&commitment, nonce).await, Err(HistoryError::BetNotFound)));
    }
    let nobody = Filters { session_id: Some(Uuid::nil()), ..Filters::default() };
    assert!(all(&world.history, &nobody, 10).await.is_empty());
}

/// Whoever asks for the bets of a commitment must not be given those of another one.
#[tokio::test]
async fn a_commitment_that_leads_to_another_seed_is_corrupt_i7() {
    let past = Past::new().await;
    let mut player = past.session().await;
    let first = player.every_kind().await;
    past.as_owner("UPDATE fairledger.commitments SET seed_no = 1 WHERE seed_no = 0").await;
    let corrupt = |error: &HistoryError| matches!(error, HistoryError::Db(DbError::Corrupt { .. }));
    let refused = past.history.bet(&first, 0).await.unwrap_err();
    assert!(corrupt(&refused), "{refused:?}");
    let refused = past.history.bundle(&first, 0).await.unwrap_err();
    assert!(corrupt(&refused), "{refused:?}");
    let of_it = Filters { commitment: Some(first), ..Filters::default() };
    let refused = past.history.page(request(&of_it, None, 10)).await.unwrap_err();
    assert!(corrupt(&refused), "{refused:?}");
    let refused = past.seeds.commitment(&first).await.unwrap_err();
    assert!(matches!(refused, SeedsError::Db(DbError::Corrupt { .. })), "{refused:?}");
}

/// An end that is stored is one, also while the clock says that its time has not come: it was set back, or is another server's.
#[tokio::test]
async fn a_stored_expiry_stays_void_whatever_the_clock_says() {
    let settings = SeedsSettings { reservation_ttl: Duration::from_millis(1), ..SeedsSettings::default() };
    let past = Past::with(settings, None).await;
    let mut player = past.session().await;
    let commitment = player.commitment();
    player.reserve().await;
    past.db.wait_until("SELECT expires_at <= clock_timestamp() FROM fairledger.pending").await;
    player.rotate().await;
    past.as_owner("UPDATE fairledger.bets SET expires_at = expires_at + interval '1 hour'").await;
    past.as_owner("UPDATE fairledger.voids SET voided_at = voided_at + interval '1 hour'").await;
    let shown = past.history.bet(&commitment, 0).await.unwrap().bet;
    assert_eq!((shown.meta.status, shown.meta.void_reason.as_deref()), (BetStatus::Void, Some("expired")));
    let void = Filters { status: Some(BetStatus::Void), ..Filters::default() };
    let listed = all(&past.history, &void, 10).await;
    assert_eq!((listed.len(), &listed[0]["meta"]["status"]), (1, &json!("void")));
    let report = bundle::check(&bundle::bundle(&past, &commitment, 0).await);
    assert_eq!(bundle::named(&report, State::Mismatch), [""; 0]);
}
