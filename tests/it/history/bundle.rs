//! Bundles: one bet's evidence in a file, and what checking it without a database finds (I6, I7, I11).

use fairledger::gfs::signature::SigningKey;
use fairledger::gfs::{Commitment, ServerSeed};
use fairledger::history::bundle::{BundleReport, BundleStatus, FORMAT, verify};
use fairledger::history::{HistoryError, State};
use fairledger::seeds::model::View;
use fairledger::seeds::values::VoidReason;
use fairledger::seeds::{CloseOutcome, Disclose, KeyRing, SeedsSettings};
use serde_json::{Value, json};

use super::past::{Past, Player, RING};

pub async fn signing() -> Past {
    Past::with(SeedsSettings::default(), Some(SigningKey::generate())).await
}

pub async fn bundle(past: &Past, commitment: &Commitment, nonce: u64) -> Value {
    let text = past.history.bundle(commitment, nonce).await.unwrap().to_canonical().unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(fairledger::gfs::json::canonical(&value), text);
    value
}

pub fn check(bundle: &Value) -> BundleReport {
    verify(bundle.to_string().as_bytes(), None).unwrap_or_else(|error| panic!("{error}: {bundle:#}"))
}

/// The checks in a state, by name.
pub fn named(report: &BundleReport, state: State) -> Vec<&str> {
    report.checks.iter().filter(|check| check.state == state).map(|check| check.name.as_str()).collect()
}

#[track_caller]
fn all_match(report: &BundleReport) {
    assert_eq!(report.status, BundleStatus::Matches, "{report:#?}");
    // The player chose none of these client seeds, which is said and accuses nobody.
    let others = report.checks.iter().filter(|check| check.state != State::Matches);
    let others: Vec<_> = others.map(|check| (check.name.as_str(), check.state)).collect();
    assert_eq!(others, [("Client seed", State::Noted)], "{report:#?}");
}

pub const GAMES: [&str; 9] = ["dice", "limbo", "roulette", "wheel", "plinko", "mines", "keno", "blackjack", "hilo"];

#[tokio::test]
async fn the_bundle_of_every_game_matches_without_a_database() {
    let past = signing().await;
    let mut player = past.session().await;
    let commitment = player.commitment();
    for game in GAMES {
        player.play(game, json!({})).await;
    }
    player.settle(0, "2.75").await;
    player.rotate().await;
    for (game, nonce) in GAMES.iter().zip(0..) {
        let bundle = bundle(&past, &commitment, nonce).await;
        let report = check(&bundle);
        all_match(&report);
        assert_eq!((report.game.as_str(), report.nonce), (*game, nonce));
        assert_eq!(bundle["meta"]["stake"], "1.50");
    }
    let settled = bundle(&past, &commitment, 0).await;
    assert_eq!(settled["meta"]["settlement"]["payout"], "2.75");
    assert_eq!(settled["meta"]["settlement"]["displayed"], json!({ "line": "You win" }));
    assert_eq!((settled["format"].as_str(), &settled["seed"]["retiredBy"]), (Some(FORMAT), &json!("rotation")));
    // The same as the endpoint for strangers says of a bet's answer.
    let inspected = fairledger::gfs::inspect(settled.to_string().as_bytes()).unwrap();
    assert_eq!(serde_json::to_value(inspected.status).unwrap(), "matches");
}

/// A round of each kind that discloses, closed, and its seed revealed.
async fn rounds(player: &mut Player<'_>) -> Vec<u64> {
    let mines = player.round("mines", json!({ "mines": 24 })).await;
    let shown = player.step(mines, 0, Some(Disclose::Tiles(vec![7]))).await.unwrap();
    let lost = shown["tiles"][0]["mine"] == json!(true);
    player.close_round(mines, if lost { CloseOutcome::Lost } else { CloseOutcome::Cashout }).await;
    let cards = player.round("blackjack", json!({})).await;
    player.step(cards, 0, Some(Disclose::Cards(4))).await;
    player.step(cards, 1, None).await;
    player.step(cards, 2, Some(Disclose::Cards(1))).await;
    player.close_round(cards, CloseOutcome::Forfeit).await;
    vec![mines, cards]
}

#[tokio::test]
async fn what_a_round_disclosed_is_held_against_its_result() {
    let past = signing().await;
    let mut player = past.session().await;
    let commitment = player.commitment();
    let nonces = rounds(&mut player).await;
    player.rotate().await;
    for nonce in nonces {
        let sound = bundle(&past, &commitment, nonce).await;
        all_match(&check(&sound));
        let mut tampered = sound.clone();
        let shown = &mut tampered["round"]["steps"][0]["disclosed"];
        if let Some(mine) = shown.pointer_mut("/tiles/0/mine") {
            *mine = json!(!mine.as_bool().unwrap());
        } else {
            shown["cards"].as_array_mut().unwrap().swap(0, 1);
        }
        let report = check(&tampered);
        assert!(named(&report, State::Mismatch).contains(&"Disclosed"), "{report:#?}");
    }
}

/// The nonce of a round of Mines that is lost by its third step.
pub async fn lost_round(player: &mut Player<'_>) -> u64 {
    let mines = player.round("mines", json!({ "mines": 24 })).await;
    player.step(mines, 0, None).await;
    // At most one of two tiles is safe.
    for (tile, index) in [7, 8].into_iter().zip(1..) {
        let shown = player.step(mines, index, Some(Disclose::Tiles(vec![tile]))).await.unwrap();
        if shown["tiles"][0]["mine"] == json!(true) {
            break;
        }
    }
    player.close_round(mines, CloseOutcome::Lost).await;
    mines
}

/// An engine may have had a reason of its own to close it so: told, and no accusation.
#[tokio::test]
async fn a_lost_round_without_its_last_steps_is_noted() {
    let past = signing().await;
    let mut player = past.session().await;
    let commitment = player.commitment();
    let mines = lost_round(&mut player).await;
    let cards = player.round("blackjack", json!({})).await;
    player.step(cards, 0, Some(Disclose::Cards(4))).await;
    player.close_round(cards, CloseOutcome::Lost).await;
    player.rotate().await;
    for nonce in [mines, cards] {
        let mut cut = bundle(&past, &commitment, nonce).await;
        all_match(&check(&cut));
        while cut["round"]["steps"].as_array_mut().unwrap().pop().is_some() {
            cut["round"]["nextIndex"] = json!(cut["round"]["steps"].as_array().unwrap().len());
            let report = check(&cut);
            assert!(named(&report, State::Noted).contains(&"Steps"), "{report:#?}");
            assert!(report.not_provable.iter().any(|word| word.field == "round.nextIndex"), "{report:#?}");
        }
    }
}

/// Steps that are taken out of the database are missed by the number that was noted at the round's end.
#[tokio::test]
async fn a_stored_round_without_its_last_step_is_seen() {
    let past = signing().await;
    let mut player = past.session().await;
    let commitment = player.commitment();
    let mines = lost_round(&mut player).await;
    player.rotate().await;
    all_match(&check(&bundle(&past, &commitment, mines).await));
    past.as_owner("DELETE FROM fairledger.steps WHERE step_index = (SELECT max(step_index) FROM fairledger.steps)")
        .await;
    let report = check(&bundle(&past, &commitment, mines).await);
    let coverage = report.checks.iter().find(|check| check.name == "Coverage").unwrap();
    assert!(coverage.state == State::Mismatch && coverage.detail.contains("Steps: 1 bet has steps"), "{coverage:?}");
}

/// Nothing signs the steps, so other ones that fit each other and the result cannot be told from those that were: the report says so.
#[tokio::test]
async fn rewritten_steps_are_named_as_the_operators_word() {
    let past = signing().await;
    let mut player = past.session().await;
    let commitment = player.commitment();
    let mines = lost_round(&mut player).await;
    player.rotate().await;
    let mut rewritten = bundle(&past, &commitment, mines).await;
    let positions: Vec<u64> = serde_json::from_value(rewritten["record"]["result"].clone()).unwrap();
    let safe = (0..25).find(|tile| !positions.contains(tile)).unwrap();
    let steps = rewritten["round"]["steps"].as_array_mut().unwrap();
    let index = steps.len() - 1;
    steps[index]["disclose"] = json!({ "tiles": [safe] });
    steps[index]["disclosed"] = json!({ "tiles": [{ "tile": safe, "mine": false }] });
    rewritten["meta"]["roundOutcome"] = json!("cashout");
    let report = check(&rewritten);
    for field in ["round.steps[].disclose", "round.steps[].disclosed", "meta.roundOutcome"] {
        assert!(report.not_provable.iter().any(|word| word.field == field), "{field}: {report:#?}");
    }
}

#[tokio::test]
async fn what_a_step_disclosed_has_no_unknown_members() {
    let past = signing().await;
    let mut player = past.session().await;
    let commitment = player.commitment();
    let mines = lost_round(&mut player).await;
    let sound = bundle(&past, &commitment, mines).await;
    for (place, field) in [
        ("/round/steps/1/disclose", "round.steps[1].disclose"),
        ("/round/steps/1/disclosed", "round.steps[1].disclosed"),
        ("/round/steps/1/disclosed/tiles/0", "round.steps[1].disclosed.tiles[0]"),
        ("/round/steps/1", "round.steps[1]"),
    ] {
        let mut more = sound.clone();
        more.pointer_mut(place).unwrap()["more"] = json!(1);
        let error = verify(more.to_string().as_bytes(), None).unwrap_err();
        assert!(error.field.starts_with(field), "{error}");
    }
}

/// A void ends without a result, but once the seed is revealed anyone can calculate what it would have been, and hold what its steps
/// disclosed against that.
#[tokio::test]
async fn a_void_is_as_provable_as_its_reveal_makes_it() {
    let past = signing().await;
    let mut player = past.session().await;
    let commitment = player.commitment();
    let round = player.round("hilo", json!({})).await;
    player.step(round, 0, Some(Disclose::Cards(2))).await;
    player.close_round(round, CloseOutcome::Void(VoidReason::parse("a card fell").unwrap())).await;
    player.rotate().await;
    let sound = bundle(&past, &commitment, round).await;
    assert_eq!((&sound["meta"]["status"], &sound["meta"]["voidReason"]), (&json!("void"), &json!("a card fell")));
    assert!(sound["record"].get("result").is_none());
    let report = check(&sound);
    assert_eq!(report.status, BundleStatus::Incomplete);
    assert_eq!(named(&report, State::NotProvable), ["Cursor", "Signature", "Outcome", "Signing key"]);
    assert!(named(&report, State::Matches).contains(&"Disclosed"));
    let mut tampered = sound.clone();
    tampered["round"]["steps"][0]["disclosed"]["cards"].as_array_mut().unwrap().swap(0, 1);
    assert_eq!(named(&check(&tampered), State::Mismatch), ["Disclosed"]);
    // Reasons of the service's own, which come with another end of the seed or to another kind of bet.
    for reason in ["recovery", "abandoned", "expired"] {
        tampered = sound.clone();
        tampered["meta"]["voidReason"] = json!(reason);
        assert_eq!(named(&check(&tampered), State::Mismatch), ["State"], "{reason}");
    }
}

#[tokio::test]
async fn an_outside_games_bundle_says_what_is_not_ours_to_prove() {
    let past = signing().await;
    let mut player = past.session().await;
    let commitment = player.every_kind().await;
    let report = check(&bundle(&past, &commitment, 7).await);
    assert_eq!(report.status, BundleStatus::Incomplete);
    assert_eq!(named(&report, State::NotProvable), ["Outcome"]);
    assert!(report.not_provable.iter().any(|word| word.field == "record.result"), "{report:#?}");
    let chosen = check(&bundle(&past, &player.commitment(), 0).await);
    assert!(named(&chosen, State::Matches).contains(&"Client seed"), "{chosen:#?}");
    let void = check(&bundle(&past, &commitment, 6).await);
    assert_eq!((void.status, named(&void, State::Mismatch)), (BundleStatus::Incomplete, vec![]));
}

/// The server seeds that nobody may know yet.
async fn concealed(past: &Past) -> Vec<ServerSeed> {
    let rows: Vec<(uuid::Uuid, Vec<u8>, Vec<u8>, String)> = sqlx::query_as(
        "SELECT session_id, commitment, sealed_seed, seal_key_id FROM fairledger.seeds WHERE status <> 'revealed'
         UNION ALL SELECT session_id, commitment, sealed_seed, seal_key_id FROM fairledger.next_seeds",
    )
    .fetch_all(&mut past.db.owner().await)
    .await
    .unwrap();
    let ring = KeyRing::parse(RING).unwrap();
    rows.into_iter()
        .map(|(session_id, commitment, bytes, key_id)| {
            let commitment = Commitment::from_bytes(commitment.try_into().unwrap());
            ring.open(session_id, &commitment, &fairledger::db::seeds::SealedSeed { key_id, bytes }).unwrap()
        })
        .collect()
}

#[tokio::test]
async fn a_bundle_holds_no_unrevealed_seed_and_no_pending_result_i6_i11() {
    let past = signing().await;
    let mut player = past.session().await;
    let commitment = player.commitment();
    player.play("dice", json!({})).await;
    let round = player.round("blackjack", json!({})).await;
    let shown = player.step(round, 0, Some(Disclose::Cards(2))).await.unwrap();
    let seeds = concealed(&past).await;
    assert_eq!(seeds.len(), 2);
    for nonce in [0, round] {
        let text = past.history.bundle(&commitment, nonce).await.unwrap().to_canonical().unwrap();
        assert!(seeds.iter().all(|seed| !text.contains(seed.expose())), "{text}");
        assert!(!format!("{:?}", past.history.bundle(&commitment, nonce).await.unwrap()).contains(seeds[0].expose()));
        let bundle: Value = serde_json::from_str(&text).unwrap();
        assert!(bundle.get("serverSeed").is_none());
        let report = check(&bundle);
        assert_eq!((report.status, named(&report, State::Mismatch)), (BundleStatus::Incomplete, vec![]));
    }
    let pending = bundle(&past, &commitment, round).await;
    for field in ["result", "cursor", "signature", "signer"] {
        assert!(pending["record"].get(field).is_none(), "{field}");
    }
    // Of the deck's cards only those that the step showed.
    let labels = ["A", "2", "3", "4", "5", "6", "7", "8", "9", "T", "J", "Q", "K"];
    let deck = labels.iter().flat_map(|rank| ["C", "D", "H", "S"].map(|suit| format!("\"{rank}{suit}\"")));
    let found: Vec<_> = deck.filter(|card| pending.to_string().contains(card)).collect();
    assert_eq!(found.len(), shown["cards"].as_array().unwrap().len());
    let report = check(&pending);
    assert!(named(&report, State::NotProvable).contains(&"Disclosed"));
}

#[tokio::test]
async fn what_is_not_there_has_no_bundle() {
    let past = Past::new().await;
    let mut player = past.session().await;
    let commitment = player.commitment();
    player.play("dice", json!({})).await;
    assert!(matches!(past.history.bundle(&commitment, 1).await, Err(HistoryError::BetNotFound)));
    let other = ServerSeed::generate().commitment();
    assert!(matches!(past.history.bundle(&other, 0).await, Err(HistoryError::CommitmentNotFound)));
}

#[tokio::test]
async fn a_planted_row_shows_in_the_bundles_coverage() {
    let past = signing().await;
    let mut player = past.session().await;
    let commitment = player.every_kind().await;
    past.as_owner("DELETE FROM fairledger.bets WHERE seed_no = 0 AND nonce = 2").await;
    let report = check(&bundle(&past, &commitment, 0).await);
    assert_eq!(named(&report, State::Mismatch), ["Coverage"]);
    let coverage = report.checks.iter().find(|check| check.name == "Coverage").unwrap();
    assert!(
        coverage.detail.contains("Missing: 1 nonce was handed out and has no bet: nonce 2."),
        "{}",
        coverage.detail
    );
}

#[tokio::test]
async fn a_receipt_proves_that_the_commitment_was_shown() {
    let past = signing().await;
    let mut player = past.session().await;
    let first: View = player.view.clone();
    let commitment = player.commitment();
    player.play("dice", json!({})).await;
    player.rotate().await;
    let second = player.commitment();
    player.play("dice", json!({})).await;
    player.rotate().await;
    let (one, two) = (bundle(&past, &commitment, 0).await, bundle(&past, &second, 0).await);
    let receipt = serde_json::to_value(&first.receipt).unwrap();
    let verify = |bundle: &Value, receipt: &Value| {
        verify(bundle.to_string().as_bytes(), Some(receipt.to_string().as_bytes())).unwrap()
    };
    // As a receipt, and as the view of the session that has it.
    for receipt in [&receipt, &serde_json::to_value(&first).unwrap()] {
        let report = verify(&one, receipt);
        all_match(&report);
        assert!(report.not_provable.iter().all(|word| word.field != "seed.committedAt"), "{report:#?}");
    }
    let next = verify(&two, &receipt);
    all_match(&next);
    let shown = next.checks.iter().find(|check| check.name == "Receipt").unwrap();
    assert!(shown.detail.contains("while the seed before it was in use"), "{}", shown.detail);

    let mut forged = receipt.clone();
    forged["payload"] = json!(receipt["payload"].as_str().unwrap().replace("committedAt", "committedat"));
    assert_eq!(named(&verify(&one, &forged), State::Mismatch), ["Receipt signature", "Receipt"]);
    let other = past.session().await;
    let foreign = serde_json::to_value(&other.view.receipt).unwrap();
    assert_eq!(named(&verify(&one, &foreign), State::Mismatch), ["Receipt"]);
    let error = fairledger::history::bundle::verify(one.to_string().as_bytes(), Some(b"{}")).unwrap_err();
    assert_eq!(error.to_string(), "receipt: payload: is missing or no text");
}

#[tokio::test]
async fn a_next_seed_is_not_left_out_and_a_receipt_names_it() {
    let past = signing().await;
    let mut player = past.session().await;
    let first = serde_json::to_value(&player.view).unwrap();
    let commitment = player.commitment();
    player.play("dice", json!({})).await;
    player.close().await;
    let last = serde_json::to_value(&player.view).unwrap();
    assert_eq!((&last["commitment"], &last["nextCommitment"]), (&json!(commitment), &Value::Null));
    let sound = bundle(&past, &commitment, 0).await;
    let verify = |bundle: &Value, receipt: &Value| {
        verify(bundle.to_string().as_bytes(), Some(receipt.to_string().as_bytes())).unwrap()
    };
    let proves_next =
        |report: &BundleReport| !report.not_provable.iter().any(|word| word.field == "nextSeed.commitment");
    // The view of a closed session shows no next commitment any more.
    for (receipt, proven) in [(&first, true), (&last, false)] {
        let report = verify(&sound, receipt);
        all_match(&report);
        assert_eq!(proves_next(&report), proven);
    }
    let mut cut = sound.clone();
    cut.as_object_mut().unwrap().remove("nextSeed");
    assert_eq!(named(&check(&cut), State::Mismatch), ["Agreement"]);
    assert_eq!(named(&verify(&cut, &first), State::Mismatch), ["Agreement", "Receipt"]);
    // A receipt that shows none was not given while a next seed waited.
    let mut other = sound.clone();
    for place in ["/seed/retiredBy", "/coverage/retiredBy"] {
        *other.pointer_mut(place).unwrap() = json!("rotation");
    }
    assert_eq!(named(&verify(&other, &last), State::Mismatch), ["Receipt"]);
}

/// What may be there or not is listed where it is not, too.
#[tokio::test]
async fn what_nobody_would_miss_is_listed_when_it_is_not_there() {
    let past = signing().await;
    let mut player = past.session().await;
    let commitment = player.commitment();
    player.play("dice", json!({})).await;
    player.settle(0, "2.75").await;
    player.rotate().await;
    let sound = bundle(&past, &commitment, 0).await;
    for field in ["settlement", "stake", "currency", "selection", "context"] {
        let mut cut = sound.clone();
        assert!(cut["meta"].as_object_mut().unwrap().remove(field).is_some());
        let report = check(&cut);
        all_match(&report);
        let word = report.not_provable.iter().find(|word| word.field == format!("meta.{field}")).unwrap();
        assert!(word.why.starts_with("Not there"), "{word:?}");
    }
    let listed = check(&sound);
    for field in ["seed.retiredBy", "seed.bets"] {
        assert!(listed.not_provable.iter().any(|word| word.field == field), "{field}");
        let (part, name) = field.split_once('.').unwrap();
        let mut cut = sound.clone();
        cut[part].as_object_mut().unwrap().remove(name);
        let refused = verify(cut.to_string().as_bytes(), None);
        assert!(refused.is_err() || refused.unwrap().status == BundleStatus::Mismatch, "{field}");
    }
}

#[tokio::test]
async fn only_bundles_of_a_known_format_are_read() {
    let past = signing().await;
    let mut player = past.session().await;
    let commitment = player.commitment();
    player.play("dice", json!({})).await;
    let sound = bundle(&past, &commitment, 0).await;
    let mut later = sound.clone();
    later["format"] = json!("fairledger-bundle/2");
    let mut more = sound.clone();
    more["meta"]["winner"] = json!(true);
    let twice = sound.to_string().replacen('{', "{\"format\":\"fairledger-bundle/1\",", 1);
    for (text, words) in [
        (String::new(), "bundle: "),
        ("[]".to_owned(), "bundle: format: "),
        (later.to_string(), "bundle: format: is not fairledger-bundle/1"),
        (more.to_string(), "bundle: meta.winner: unknown field"),
        (twice, "bundle: format: "),
    ] {
        let error = verify(text.as_bytes(), None).unwrap_err().to_string();
        assert!(error.starts_with(words), "{error}");
    }
    assert!(verify(&[b' '; (16 << 20) + 1], None).is_err());
}
