//! Bundles of every state that a database can honestly be in: none of them is a mismatch (I6, I7, I10).

use std::time::Duration;

use chrono::{SubsecRound as _, TimeDelta, Utc};
use fairledger::db::DbError;
use fairledger::gfs::signature::SigningKey;
use fairledger::gfs::{ClientSeed, Commitment, ServerSeed};
use fairledger::history::bundle::BundleStatus;
use fairledger::history::{HistoryError, State};
use fairledger::seeds::store::{PgSeedStore, PutSession, SeedStore as _};
use fairledger::seeds::values::VoidReason;
use fairledger::seeds::{CloseOutcome, Disclose, SeedsSettings};
use serde_json::{Value, json};
use uuid::Uuid;

use super::bundle::{GAMES, bundle, check, lost_round, named, signing};
use super::past::Past;
use crate::harness::{TestClock, TestDb};

/// Bundles, each with what it is of.
pub type Bundles = Vec<(String, Value)>;

/// Bets of every game and every end, under a seed that is revealed or, before that, is in use.
async fn games(past: &Past, bundles: &mut Bundles) {
    let mut player = past.session().await;
    let commitment = player.commitment();
    let mut nonces = Vec::new();
    for game in GAMES {
        nonces.push((format!("{game} played"), player.play(game, json!({})).await.record["nonce"].as_u64().unwrap()));
    }
    player.settle(0, "2.75").await;
    nonces.push(("mines lost".to_owned(), lost_round(&mut player).await));
    for (game, outcome) in [
        ("mines", CloseOutcome::Cashout),
        ("blackjack", CloseOutcome::Lost),
        ("blackjack", CloseOutcome::Forfeit),
        ("hilo", CloseOutcome::Cashout),
        ("keno", CloseOutcome::Lost),
        ("hilo", CloseOutcome::Void(VoidReason::parse("a card fell").unwrap())),
    ] {
        let round = player.round(game, json!({})).await;
        nonces.push((format!("{game} {outcome:?}"), round));
        player.step(round, 0, None).await;
        if ["blackjack", "hilo"].contains(&game) {
            player.step(round, 1, Some(Disclose::Cards(3))).await;
            player.step(round, 2, Some(Disclose::Cards(1))).await;
        }
        player.close_round(round, outcome).await;
    }
    let (recorded, void) = (player.reserve().await, player.reserve().await);
    player.record(recorded, json!({ "score": 180, "darts": [60, 60, 60] })).await;
    player.void(void, "a dart fell").await;
    nonces.extend([("outside game".to_owned(), recorded), ("void outside game".to_owned(), void)]);
    for state in ["live", "revealed"] {
        for (name, nonce) in &nonces {
            bundles.push((format!("{name}, {state}"), bundle(past, &commitment, *nonce).await));
        }
        if state == "live" {
            player.rotate().await;
        }
    }
}

/// What is pending, and what a session's end does to it.
async fn endings(past: &Past, bundles: &mut Bundles) {
    let mut player = past.session().await;
    let first = player.commitment();
    player.play("dice", json!({})).await;
    player.change_client_seed("mine").await;
    let mut add = async |name: &str, commitment: &Commitment, nonce| {
        bundles.push((name.to_owned(), bundle(past, commitment, nonce).await));
    };
    add("ended by a client seed", &first, 0).await;
    past.take_back_reveal(&first).await;
    add("reveal due", &first, 0).await;
    let chosen = player.commitment();
    player.play("dice", json!({})).await;
    add("the player's client seed", &chosen, 0).await;
    player.rotate().await;
    let last = player.commitment();
    let safe = player.round("mines", json!({ "mines": 1 })).await;
    player.step(safe, 0, Some(Disclose::Tiles(vec![1]))).await;
    let hit = player.round("mines", json!({ "mines": 24 })).await;
    player.step(hit, 0, Some(Disclose::Tiles(vec![1, 2]))).await;
    let (cards, owed) = (player.round("hilo", json!({})).await, player.reserve().await);
    player.step(cards, 0, Some(Disclose::Cards(2))).await;
    let pending =
        [("round of mines", safe), ("lost round of mines", hit), ("round of hilo", cards), ("outside game", owed)];
    for (name, nonce) in pending {
        add(&format!("pending {name}"), &last, nonce).await;
    }
    player.close().await;
    for (name, nonce) in pending {
        add(&format!("abandoned {name}"), &last, nonce).await;
    }
    past.take_back_reveal(&last).await;
    for (name, nonce) in pending {
        add(&format!("abandoned {name}, reveal due"), &last, nonce).await;
    }
}

/// A reservation that nobody recorded in time, before it is swept.
async fn expired(past: &Past, bundles: &mut Bundles) {
    let settings = SeedsSettings { reservation_ttl: Duration::from_millis(1), ..SeedsSettings::default() };
    let seeds = super::world::seeds_of(&past.db, settings).await;
    let view = past.session().await.view;
    let request = super::world::reservation(view.commitment, "late");
    seeds.reserve(view.session_id, &request).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    bundles.push(("expired".to_owned(), bundle(past, &view.commitment, 0).await));
}

/// A session whose seeds an application makes.
async fn application(past: &Past, bundles: &mut Bundles) {
    let ttl = Duration::from_secs(3600);
    let store = PgSeedStore::new(past.seeds.clone());
    let session_id = Uuid::new_v4();
    let new = || PutSession { session_id, server_seed: ServerSeed::generate(), client_seed: ClientSeed::generate() };
    let (first, second) = (new(), new());
    let commitment = first.server_seed.commitment();
    store.put(&first, ttl, None).await.unwrap();
    store.reserve_nonce(session_id, ttl, &commitment).await.unwrap();
    let record = json!({ "spec": "GFS/1.0", "game": "dice", "commitment": commitment, "nonce": 0, "result": 50.5 });
    store.push_record(session_id, &record).await.unwrap();
    bundles.push(("an application's".to_owned(), bundle(past, &commitment, 0).await));
    store.put(&second, ttl, Some(&commitment)).await.unwrap();
    bundles.push(("an application's, replaced".to_owned(), bundle(past, &commitment, 0).await));
}

/// Before and after a recovery, and after a player is forgotten.
async fn recovered(past: &Past, bundles: &mut Bundles) {
    let mut player = past.session_of("otto").await;
    let before = player.commitment();
    player.play("dice", json!({})).await;
    let hit = player.round("mines", json!({ "mines": 24 })).await;
    player.step(hit, 0, Some(Disclose::Tiles(vec![1, 2]))).await;
    past.command(&["forget-player", "otto", "--yes"]).await;
    bundles.push(("forgotten".to_owned(), bundle(past, &before, 0).await));
    past.command(&["recover", "--confirm", "--sound-database", "--reason", "a test", "--move-sessions"]).await;
    past.seeds.datastore().watch().await.unwrap();
    bundles.push(("ended by a recovery".to_owned(), bundle(past, &before, 0).await));
    bundles.push(("void by a recovery".to_owned(), bundle(past, &before, hit).await));
    player.view = past.seeds.view(player.id).await.unwrap();
    let after = player.commitment();
    assert_ne!(before, after);
    player.play("dice", json!({})).await;
    bundles.push(("after a recovery".to_owned(), bundle(past, &after, 0).await));
    player.rotate().await;
    player.play("dice", json!({})).await;
    bundles.push(("after a recovery, revealed".to_owned(), bundle(past, &after, 0).await));
    bundles.push(("after a recovery, rotated".to_owned(), bundle(past, &player.commitment(), 0).await));
    past.take_back_reveal(&before).await;
    bundles.push(("ended by a recovery, reveal due".to_owned(), bundle(past, &before, 0).await));
}

pub async fn every_state(past: &Past) -> Bundles {
    let mut bundles = Vec::new();
    games(past, &mut bundles).await;
    endings(past, &mut bundles).await;
    expired(past, &mut bundles).await;
    application(past, &mut bundles).await;
    recovered(past, &mut bundles).await;
    bundles
}

#[tokio::test]
async fn a_bundle_of_every_honest_state_fits_i6_i7_i10() {
    for past in [signing().await, Past::new().await] {
        for (name, bundle) in every_state(&past).await {
            let report = check(&bundle);
            assert_ne!(report.status, BundleStatus::Mismatch, "{name}: {report:#?}");
            assert_eq!(named(&report, State::NotProvable).contains(&"Reveal"), name.contains("reveal due"), "{name}");
            let noted: Vec<_> =
                named(&report, State::Noted).into_iter().filter(|name| *name != "Client seed").collect();
            assert_eq!(noted, Vec::<&str>::new(), "{name}: {report:#?}");
            if name.ends_with(", revealed") && !name.contains("outside game") && !name.contains("Void") {
                assert_eq!(report.status, BundleStatus::Matches, "{name}: {report:#?}");
            }
        }
    }
}

/// That a reveal is about to be stored must be said by all that would say otherwise.
#[tokio::test]
async fn a_reveal_that_was_taken_out_of_a_bundle_is_a_mismatch() {
    let past = signing().await;
    let mut player = past.session().await;
    let commitment = player.commitment();
    player.play("dice", json!({})).await;
    player.rotate().await;
    let mut cut = bundle(&past, &commitment, 0).await;
    cut.as_object_mut().unwrap().remove("serverSeed");
    assert!(named(&check(&cut), State::Mismatch).contains(&"Reveal"));
    cut["seed"].as_object_mut().unwrap().remove("revealedAt");
    assert_eq!(named(&check(&cut), State::Mismatch), ["Reveal", "Coverage"]);
    // Where the database lacks a reveal that is not noted as due, there is no bundle.
    past.as_owner("DELETE FROM fairledger.reveals").await;
    let corrupt = past.history.bundle(&commitment, 0).await.unwrap_err();
    assert!(matches!(corrupt, HistoryError::Db(DbError::Corrupt { .. })), "{corrupt}");
}

/// The times of a seed's end are later than its bets whatever the clock does, so that one that is not is nobody's clock.
#[tokio::test]
async fn a_reveal_before_a_bet_is_a_mismatch_and_a_clock_that_was_set_back_is_none() {
    let (db, noon) = (TestDb::new().await, Utc::now().trunc_subsecs(6));
    let mut clock = TestClock::install(&db, noon).await;
    let past = Past::on(db, SeedsSettings::default(), Some(SigningKey::generate())).await;
    let mut player = past.session().await;
    let commitment = player.commitment();
    for minutes in [10, 20, 5] {
        clock.set(noon + TimeDelta::minutes(minutes)).await;
        player.play("dice", json!({})).await;
    }
    clock.set(noon + TimeDelta::minutes(1)).await;
    player.rotate().await;
    clock.set(noon + TimeDelta::minutes(30)).await;
    for nonce in 0..3 {
        let report = check(&bundle(&past, &commitment, nonce).await);
        assert_eq!(report.status, BundleStatus::Matches, "{report:#?}");
    }
    for (nonce, minutes) in [(1, 15), (1, 20), (0, 2), (2, 3)] {
        let at = noon + TimeDelta::minutes(minutes);
        past.as_owner(&format!("UPDATE fairledger.reveals SET revealed_at = '{at}'")).await;
        let report = check(&bundle(&past, &commitment, nonce).await);
        let times = report.checks.iter().find(|check| check.name == "Times").unwrap();
        assert!(times.detail.contains("before its seed was revealed"), "{report:#?}");
    }
}
