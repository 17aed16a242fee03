//! Coverage: every nonce is accounted for, and whatever is planted is found by its name (I3, I4, I5, I7, I8).

use std::collections::BTreeMap;
use std::time::Duration;

use fairledger::history::State;
use fairledger::history::coverage::{Finding, RANGES_MAX, Seen, SessionCoverage, Totals};
use fairledger::seeds::model::BetStatus;
use fairledger::seeds::store::{PgSeedStore, PutSession, SeedStore as _};
use fairledger::seeds::{CloseOutcome, Disclose, SeedsSettings};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use uuid::Uuid;

use super::past::{Past, Player};

async fn everything(past: &Past) -> (Totals, Vec<Finding>) {
    let mut found = Vec::new();
    let totals = past
        .history
        .coverage_of_all(|seen| {
            if let Seen::Wrong(finding) = seen {
                found.push(finding);
            }
        })
        .await
        .unwrap();
    assert_eq!(totals.wrong, found.len() as u64);
    (totals, found)
}

async fn coverage(past: &Past, session_id: Uuid) -> SessionCoverage {
    past.history.coverage(session_id, None, 500).await.unwrap()
}

/// The names of the checks that failed, of the session and of its seeds.
fn failed(coverage: &SessionCoverage) -> Vec<&str> {
    let checks = coverage.checks.iter().chain(coverage.seeds.iter().flat_map(|seed| &seed.checks));
    checks.filter(|check| check.state == State::Mismatch).map(|check| check.name.as_str()).collect()
}

#[tokio::test]
async fn every_bet_is_counted_for_what_it_is() {
    let past = Past::new().await;
    let mut player = past.session().await;
    let revealed = player.every_kind().await;
    player.round("keno", json!({})).await;
    let covered = coverage(&past, player.id).await;
    assert_eq!(failed(&covered), [""; 0], "{covered:#?}");
    let numbers: Vec<_> = covered
        .seeds
        .iter()
        .map(|seed| (seed.status.as_str(), seed.handed_out, seed.recorded, seed.void, seed.pending, seed.missing_total))
        .collect();
    assert_eq!(numbers, [("revealed", 8, 7, 1, 0, 0), ("live", 3, 2, 0, 1, 0)]);
    assert_eq!((covered.seeds[0].commitment, covered.seeds[0].retired_by.as_deref()), (revealed, Some("client_seed")));
    assert!(covered.recoveries.is_empty() && covered.next_after.is_none());
}

#[tokio::test]
async fn a_session_that_is_not_there_has_no_coverage() {
    let past = Past::new().await;
    let refused = past.history.coverage(Uuid::now_v7(), None, 50).await;
    assert!(matches!(refused, Err(fairledger::history::HistoryError::SessionNotFound)), "{refused:?}");
}

#[tokio::test]
async fn pages_of_seeds_follow_one_another() {
    let past = Past::new().await;
    let mut player = past.session().await;
    for _ in 0..4 {
        player.play("dice", json!({})).await;
        player.rotate().await;
    }
    let whole = coverage(&past, player.id).await;
    assert_eq!(whole.seeds.len(), 5);
    let (mut paged, mut after) = (Vec::new(), None);
    loop {
        let page = past.history.coverage(player.id, after, 2).await.unwrap();
        paged.extend(page.seeds);
        after = page.next_after;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(paged, whole.seeds);
}

/// What is looked at does not decide where to go on: neither the directory of commitments nor a seed that cannot be read.
#[tokio::test]
async fn pages_go_on_beyond_whatever_was_forged() {
    let past = Past::new().await;
    let mut player = past.session().await;
    for _ in 0..4 {
        player.play("dice", json!({})).await;
        player.rotate().await;
    }
    past.as_owner("DELETE FROM fairledger.bets WHERE seed_no = 3").await;
    past.as_owner("DELETE FROM fairledger.commitments WHERE seed_no = 0").await;
    past.as_owner("UPDATE fairledger.commitments SET seed_no = 0 WHERE seed_no = 2").await;
    past.as_owner("ALTER TABLE fairledger.seeds DROP CONSTRAINT seeds_client_seed_when_live").await;
    past.as_owner("UPDATE fairledger.seeds SET client_seed = NULL WHERE seed_no = 1").await;
    let whole = coverage(&past, player.id).await;
    assert_eq!(failed(&whole), ["Seeds", "Directory", "Directory", "Times", "Missing"]);
    let (mut numbers, mut after, mut unread) = (Vec::new(), None, 0);
    for _ in 0..5 {
        let page = past.history.coverage(player.id, after, 1).await.unwrap();
        numbers.extend(page.seeds.iter().map(|seed| seed.seed_no));
        unread += page.checks.iter().filter(|check| check.name == "Seeds").count();
        after = page.next_after;
    }
    assert_eq!((numbers, unread, after), (vec![0, 2, 3, 4], 1, None));
}

#[tokio::test]
async fn a_reservation_past_its_time_is_void_before_anybody_sweeps_it() {
    let settings = SeedsSettings { reservation_ttl: Duration::from_millis(1), ..SeedsSettings::default() };
    let past = Past::with(settings, None).await;
    let mut player = past.session().await;
    player.reserve().await;
    past.db.wait_until("SELECT expires_at <= clock_timestamp() FROM fairledger.pending").await;
    let covered = coverage(&past, player.id).await;
    assert_eq!((covered.seeds[0].void, covered.seeds[0].pending), (1, 0));
    assert_eq!(failed(&covered), [""; 0]);
}

/// The player's side sees what ended void, why, and how many there are.
#[tokio::test]
async fn a_void_hides_nothing_from_the_players_side() {
    let past = Past::new().await;
    let mut player = past.session().await;
    let revealed = player.every_kind().await;
    let bets = past.seeds.bets_of_session(player.id, None, 100).await.unwrap().records;
    let voids: Vec<_> = bets.iter().filter(|bet| bet.meta.status == BetStatus::Void).collect();
    assert_eq!(voids.len(), 1);
    assert_eq!((voids[0].meta.void_reason.as_deref(), &voids[0].record["nonce"]), (Some("a dart fell"), &json!(6)));
    let seeds = past.seeds.seeds_of_session(player.id).await.unwrap().seeds;
    let counts: Vec<_> = seeds.iter().map(|seed| (seed.status, seed.bets, seed.voids)).collect();
    assert_eq!(counts, [("revealed", 8, 1), ("live", 2, 0), ("next", 0, 0)]);
    assert_eq!(seeds[0].commitment, revealed);
}

/// What to plant in a session that has had bets of every kind, and the checks that must find it.
const PLANTED: &[(&[&str], &[&str])] = &[
    (&["DELETE FROM fairledger.bets WHERE session_id = '{}' AND seed_no = 0 AND nonce = 2"], &["Missing"]),
    (&["DELETE FROM fairledger.bets WHERE session_id = '{}' AND seed_no = 1"], &["Missing"]),
    (&["UPDATE fairledger.seeds SET next_nonce = 7 WHERE session_id = '{}' AND seed_no = 0"], &["Counter"]),
    (&["UPDATE fairledger.seeds SET next_nonce = 9 WHERE session_id = '{}' AND seed_no = 0"], &["Missing"]),
    (&["UPDATE fairledger.bets SET nonce = 1000 WHERE session_id = '{}' AND seed_no = 1 AND nonce = 1"], &["Missing", "Counter"]),
    (
        &["INSERT INTO fairledger.voids (session_id, seed_no, nonce, reason, voided_at, taken_at)
           SELECT session_id, seed_no, nonce, 'lost', taken_at, taken_at FROM fairledger.bets WHERE session_id = '{}' AND seed_no = 0 AND nonce = 1"],
        &["One end"],
    ),
    (
        &["INSERT INTO fairledger.voids (session_id, seed_no, nonce, reason, voided_at, taken_at)
           SELECT session_id, seed_no, nonce, 'lost', taken_at, taken_at FROM fairledger.bets WHERE session_id = '{}' AND seed_no = 0 AND nonce = 7"],
        &["One end"],
    ),
    (&["DELETE FROM fairledger.voids WHERE session_id = '{}'"], &["End"]),
    (&["DELETE FROM fairledger.outcomes WHERE session_id = '{}' AND nonce = 5"], &["End"]),
    (
        &["INSERT INTO fairledger.pending (session_id, seed_no, nonce, kind, taken_at) VALUES ('{}', 1, 1, 'round', now())",
          "UPDATE fairledger.seeds SET pending = 1 WHERE session_id = '{}' AND seed_no = 1"],
        &["One end", "Rows"],
    ),
    (
        &["INSERT INTO fairledger.pending (session_id, seed_no, nonce, kind, taken_at) VALUES ('{}', 1, 2, 'round', now())"],
        &["Pending", "Rows"],
    ),
    (&["UPDATE fairledger.seeds SET pending = 1 WHERE session_id = '{}' AND seed_no = 1"], &["Pending"]),
    (
        &["INSERT INTO fairledger.settlements (session_id, seed_no, nonce, payout, settled_at) VALUES ('{}', 0, 6, 1, now())"],
        &["Settlements"],
    ),
    (
        &["INSERT INTO fairledger.steps (session_id, seed_no, nonce, step_index, step, stepped_at) VALUES ('{}', 0, 5, 9, '1', now())"],
        &["Steps"],
    ),
    (
        &["UPDATE fairledger.bets SET taken_at = (SELECT min(committed_at) - interval '1 second' FROM fairledger.seeds WHERE session_id = '{}')
           WHERE session_id = '{}' AND seed_no = 0 AND nonce = 0"],
        &["Times"],
    ),
    (&["UPDATE fairledger.seeds SET committed_at = live_at - interval '1 hour', live_at = live_at + interval '1 hour'
        WHERE session_id = '{}' AND seed_no = 0"], &["Times"]),
    (&["DELETE FROM fairledger.reveals WHERE session_id = '{}'"], &["Reveal"]),
    (
        &["ALTER TABLE fairledger.reveals DROP CONSTRAINT IF EXISTS reveals_match_commitment",
          "UPDATE fairledger.reveals SET server_seed = sha256(server_seed) WHERE session_id = '{}'"],
        &["Commitment"],
    ),
    (
        &["ALTER TABLE fairledger.seeds DROP CONSTRAINT IF EXISTS seeds_discarded_without_bets",
          "DELETE FROM fairledger.reveals WHERE session_id = '{}'",
          "UPDATE fairledger.seeds SET status = 'discarded' WHERE session_id = '{}' AND seed_no = 0"],
        &["Reveal"],
    ),
    (
        &["ALTER TABLE fairledger.seeds DROP CONSTRAINT IF EXISTS seeds_retired_with_time",
          "UPDATE fairledger.seeds SET retired_by = NULL WHERE session_id = '{}' AND seed_no = 0"],
        &["Ending"],
    ),
    (&["DELETE FROM fairledger.commitments WHERE session_id = '{}' AND seed_no = 0"], &["Directory"]),
    (&["DELETE FROM fairledger.commitments WHERE session_id = '{}' AND seed_no = 2"], &["Next seed"]),
    (&["UPDATE fairledger.sessions SET status = 'closed', closed_at = now() WHERE session_id = '{}'"], &["Live seed", "Next seed"]),
    // How seeds and their session fit one another.
    (&["UPDATE fairledger.sessions SET epoch = 7 WHERE session_id = '{}'"], &["Session"]),
    (&["UPDATE fairledger.seeds SET epoch = 7 WHERE session_id = '{}' AND seed_no = 0"], &["Directory", "Ending"]),
    (&["UPDATE fairledger.next_seeds SET epoch = 7 WHERE session_id = '{}'"], &["Next seed"]),
    (
        &["ALTER TABLE fairledger.next_seeds DROP CONSTRAINT IF EXISTS next_seeds_times_range",
          "UPDATE fairledger.next_seeds SET committed_at = 'infinity' WHERE session_id = '{}'"],
        &["Next seed"],
    ),
    (
        &["UPDATE fairledger.seeds SET retired_by = 'closing' WHERE session_id = '{}' AND seed_no = 0",
          "UPDATE fairledger.reveals SET reason = 'closing' WHERE session_id = '{}'"],
        &["Ending"],
    ),
    (
        &["UPDATE fairledger.seeds SET retired_by = 'recovery' WHERE session_id = '{}' AND seed_no = 0",
          "UPDATE fairledger.reveals SET reason = 'recovery' WHERE session_id = '{}'"],
        &["Ending"],
    ),
    (&["CLOSE", "UPDATE fairledger.seeds SET retired_by = 'idle' WHERE session_id = '{}' AND seed_no = 2"], &["Ending"]),
    (
        &["CLOSE", "UPDATE fairledger.seeds SET retired_by = 'rotation' WHERE session_id = '{}' AND seed_no = 1",
          "UPDATE fairledger.reveals SET reason = 'rotation' WHERE session_id = '{}' AND seed_no = 1"],
        &["Ending"],
    ),
    (&["CLOSE", "UPDATE fairledger.sessions SET status = 'open', closed_at = NULL WHERE session_id = '{}'"],
     &["Ending", "Ending", "Live seed", "Next seed"]),
    (
        &["UPDATE fairledger.seeds s SET client_seed = q.client_seed FROM fairledger.seeds q
           WHERE s.session_id = '{}' AND q.session_id = s.session_id AND s.seed_no = 1 AND q.seed_no = 0"],
        &["Times"],
    ),
    (
        &["UPDATE fairledger.seeds SET client_seed_source = 'kept', client_seed_at = client_seed_at - interval '1 hour'
           WHERE session_id = '{}' AND seed_no = 1"],
        &["Times"],
    ),
    (&["UPDATE fairledger.sessions SET origin = 'application' WHERE session_id = '{}'"], &["Ending", "Times", "Times"]),
    (
        &["UPDATE fairledger.seeds SET retired_by = 'replaced' WHERE session_id = '{}' AND seed_no = 0",
          "UPDATE fairledger.reveals SET reason = 'replaced' WHERE session_id = '{}'"],
        &["Ending"],
    ),
    (&["UPDATE fairledger.seeds SET client_seed_source = 'application' WHERE session_id = '{}' AND seed_no = 0"], &["Times"]),
    (&["UPDATE fairledger.seeds SET client_seed_source = 'player' WHERE session_id = '{}' AND seed_no = 0"], &["Times"]),
    (&["UPDATE fairledger.seeds SET client_seed_at = live_at - interval '1 hour' WHERE session_id = '{}' AND seed_no = 1"], &["Times"]),
    (&["UPDATE fairledger.seeds SET committed_at = committed_at - interval '1 hour' WHERE session_id = '{}' AND seed_no = 0"], &["Times"]),
    (&["UPDATE fairledger.seeds SET retired_at = live_at WHERE session_id = '{}' AND seed_no = 0"], &["Times"]),
    (&["UPDATE fairledger.reveals SET revealed_at = revealed_at - interval '1 hour' WHERE session_id = '{}'"], &["Times"]),
    // Of a session that was closed, the live seed with its bets and the one that was discarded, taken out of everything.
    (
        &["CLOSE", "DELETE FROM fairledger.bets WHERE session_id = '{}' AND seed_no = 1",
          "DELETE FROM fairledger.reveals WHERE session_id = '{}' AND seed_no = 1",
          "DELETE FROM fairledger.commitments WHERE session_id = '{}' AND seed_no > 0",
          "DELETE FROM fairledger.seeds WHERE session_id = '{}' AND seed_no > 0"],
        &["Ending"],
    ),
    (
        &["CLOSE", "DELETE FROM fairledger.commitments WHERE session_id = '{}' AND seed_no = 2",
          "DELETE FROM fairledger.seeds WHERE session_id = '{}' AND seed_no = 2"],
        &["Ending"],
    ),
    // Of one that is open: nothing was ever bet.
    (
        &["ALTER TABLE fairledger.steps DROP CONSTRAINT IF EXISTS steps_bet_fkey",
          "DELETE FROM fairledger.steps WHERE session_id = '{}'", "DELETE FROM fairledger.outcomes WHERE session_id = '{}'",
          "DELETE FROM fairledger.voids WHERE session_id = '{}'", "DELETE FROM fairledger.settlements WHERE session_id = '{}'",
          "DELETE FROM fairledger.bets WHERE session_id = '{}'", "DELETE FROM fairledger.reveals WHERE session_id = '{}'",
          "DELETE FROM fairledger.next_seeds WHERE session_id = '{}'", "DELETE FROM fairledger.commitments WHERE session_id = '{}'",
          "DELETE FROM fairledger.seeds WHERE session_id = '{}'"],
        &["Session", "Live seed", "Next seed"],
    ),
    // What makes a statement fail that takes rows for what they should be.
    (
        &["INSERT INTO fairledger.steps (session_id, seed_no, nonce, step_index, step, stepped_at) VALUES ('{}', 0, 5, 2147483647, '1', now())"],
        &["Steps"],
    ),
    (
        &["CLOSE", "UPDATE fairledger.seeds SET seed_no = 2147483647 WHERE session_id = '{}' AND seed_no = 2"],
        &["Ending", "Directory", "Directory"],
    ),
    (
        &["UPDATE fairledger.steps SET disclose = '1', disclosed = '{\"a\":\"\\ud800\",\"cards\":[]}' WHERE session_id = '{}' AND step_index = 0",
          "INSERT INTO fairledger.settlements (session_id, seed_no, nonce, payout, settled_at) VALUES ('{}', 0, 6, 1, now())"],
        &["Settlements"],
    ),
    (
        &["ALTER TABLE fairledger.commitments DROP CONSTRAINT IF EXISTS commitments_length",
          "INSERT INTO fairledger.commitments VALUES (substr(decode(md5('{}'), 'hex'), 1, 9), '{}', 9)"],
        &["Directory"],
    ),
    // Whole lives, and what is left of them.
    (
        &["ALTER TABLE fairledger.seeds DROP CONSTRAINT IF EXISTS seeds_session_fkey",
          "ALTER TABLE fairledger.next_seeds DROP CONSTRAINT IF EXISTS next_seeds_session_fkey",
          "DELETE FROM fairledger.sessions WHERE session_id = '{}'"],
        &["Directory", "Directory", "Next seed"],
    ),
    (
        &["ALTER TABLE fairledger.steps DROP CONSTRAINT IF EXISTS steps_bet_fkey",
          "ALTER TABLE fairledger.outcomes DROP CONSTRAINT IF EXISTS outcomes_bet_fkey",
          "ALTER TABLE fairledger.voids DROP CONSTRAINT IF EXISTS voids_bet_fkey",
          "ALTER TABLE fairledger.settlements DROP CONSTRAINT IF EXISTS settlements_bet_fkey",
          "DELETE FROM fairledger.steps WHERE session_id = '{}'",
          "DELETE FROM fairledger.outcomes WHERE session_id = '{}'",
          "DELETE FROM fairledger.voids WHERE session_id = '{}'",
          "DELETE FROM fairledger.settlements WHERE session_id = '{}'",
          "DELETE FROM fairledger.bets WHERE session_id = '{}' AND seed_no = 0",
          "UPDATE fairledger.seeds SET next_nonce = 0 WHERE session_id = '{}' AND seed_no = 0"],
        &["Reveal"],
    ),
    (
        &["ALTER TABLE fairledger.reveals DROP CONSTRAINT IF EXISTS reveals_seed_fkey",
          "UPDATE fairledger.reveals SET seed_no = 9 WHERE session_id = '{}'"],
        &["Reveal", "Seeds"],
    ),
    (
        &["ALTER TABLE fairledger.reveals_due DROP CONSTRAINT IF EXISTS reveals_due_seed_fkey",
          "INSERT INTO fairledger.reveals_due VALUES ('{}', 0), ('{}', 1), ('{}', 7)"],
        &["Reveal", "Reveal", "Seeds"],
    ),
    (&["UPDATE fairledger.reveals SET reason = 'idle' WHERE session_id = '{}'"], &["Reveal"]),
    // Rounds without all of their steps, and steps of what is no round.
    (
        &["DELETE FROM fairledger.steps WHERE session_id = '{}'
           AND step_index = (SELECT max(step_index) FROM fairledger.steps WHERE session_id = '{}')"],
        &["Steps"],
    ),
    (&["DELETE FROM fairledger.steps WHERE session_id = '{}'"], &["Steps"]),
    (
        &["INSERT INTO fairledger.steps (session_id, seed_no, nonce, step_index, step, stepped_at) VALUES ('{}', 0, 1, 0, '1', now())"],
        &["Steps"],
    ),
    // Rows that do not say the same of a bet.
    (&["UPDATE fairledger.voids SET taken_at = taken_at + interval '1 day' WHERE session_id = '{}'"], &["Rows"]),
    (&["UPDATE fairledger.outcomes SET round_outcome = NULL WHERE session_id = '{}' AND nonce = 5"], &["Rows"]),
    (
        &["ALTER TABLE fairledger.bets DROP CONSTRAINT IF EXISTS bets_stake_range",
          "UPDATE fairledger.bets SET stake = 'NaN' WHERE session_id = '{}' AND seed_no = 0 AND nonce = 2"],
        &["Rows"],
    ),
    (
        &["ALTER TABLE fairledger.bets DROP CONSTRAINT IF EXISTS bets_stake_range",
          "UPDATE fairledger.bets SET stake = -1 WHERE session_id = '{}' AND seed_no = 0 AND nonce = 2"],
        &["Rows"],
    ),
    (&["UPDATE fairledger.bets SET expires_at = taken_at WHERE session_id = '{}' AND nonce = 6"], &["Rows"]),
    (&["UPDATE fairledger.voids SET reason = 'expired' WHERE session_id = '{}'"], &["Rows"]),
    // Ends that only come with another end of their seed, or to bets of another kind.
    (&["UPDATE fairledger.voids SET reason = 'recovery' WHERE session_id = '{}'"], &["Rows"]),
    (&["UPDATE fairledger.voids SET reason = 'abandoned' WHERE session_id = '{}'"], &["Rows"]),
    (
        &["DELETE FROM fairledger.steps WHERE session_id = '{}'",
          "UPDATE fairledger.outcomes SET round_outcome = 'abandoned', steps = 0 WHERE session_id = '{}' AND nonce = 5"],
        &["Rows"],
    ),
    (
        &["DELETE FROM fairledger.steps WHERE session_id = '{}'",
          "DELETE FROM fairledger.outcomes WHERE session_id = '{}' AND nonce = 5",
          "INSERT INTO fairledger.voids (session_id, seed_no, nonce, reason, voided_at, taken_at, steps)
           SELECT session_id, seed_no, nonce, 'expired', taken_at, taken_at, 0 FROM fairledger.bets WHERE session_id = '{}' AND nonce = 5"],
        &["Rows"],
    ),
    (
        &["CLOSE", "UPDATE fairledger.bets SET kind = 'round', result = NULL, cursor = NULL WHERE session_id = '{}' AND seed_no = 1 AND nonce = 1",
          "INSERT INTO fairledger.voids (session_id, seed_no, nonce, reason, voided_at, taken_at, steps)
           SELECT session_id, seed_no, nonce, 'abandoned', taken_at, taken_at, 0 FROM fairledger.bets
           WHERE session_id = '{}' AND seed_no = 1 AND nonce = 1"],
        &["Rows"],
    ),
    // What is there and says nothing.
    (
        &["ALTER TABLE fairledger.voids ALTER voided_at DROP NOT NULL", "ALTER TABLE fairledger.voids ALTER taken_at DROP NOT NULL",
          "UPDATE fairledger.voids SET voided_at = NULL WHERE session_id = '{}'"],
        &["Rows"],
    ),
    (&["UPDATE fairledger.voids SET taken_at = NULL WHERE session_id = '{}'"], &["Rows"]),
    (
        &["ALTER TABLE fairledger.outcomes ALTER recorded_at DROP NOT NULL",
          "UPDATE fairledger.outcomes SET recorded_at = NULL WHERE session_id = '{}' AND nonce = 7"],
        &["Rows"],
    ),
    (
        &["ALTER TABLE fairledger.bets ALTER kind DROP NOT NULL",
          "UPDATE fairledger.bets SET kind = NULL WHERE session_id = '{}' AND nonce = 6"],
        &["Rows"],
    ),
    // A result where bets of the kind have theirs elsewhere.
    (
        &["ALTER TABLE fairledger.bets DROP CONSTRAINT IF EXISTS bets_result_when_played",
          "UPDATE fairledger.bets SET result = '[1]', cursor = 0 WHERE session_id = '{}' AND nonce = 5"],
        &["Rows"],
    ),
    (
        &["ALTER TABLE fairledger.bets DROP CONSTRAINT IF EXISTS bets_result_when_played",
          "UPDATE fairledger.bets SET result = NULL WHERE session_id = '{}' AND seed_no = 0 AND nonce = 1"],
        &["Rows"],
    ),
    // What no constraint keeps out any more.
    (
        &["ALTER TABLE fairledger.settlements DROP CONSTRAINT IF EXISTS settlements_payout_range",
          "UPDATE fairledger.settlements SET payout = 'NaN' WHERE session_id = '{}'"],
        &["Rows"],
    ),
    (&["UPDATE fairledger.settlements SET payout = 0.0000000000000000000000001 WHERE session_id = '{}'"], &["Rows"]),
    (
        &["ALTER TABLE fairledger.settlements DROP CONSTRAINT IF EXISTS settlements_times_range",
          "UPDATE fairledger.settlements SET settled_at = 'infinity' WHERE session_id = '{}'"],
        &["Rows"],
    ),
    (
        &["ALTER TABLE fairledger.outcomes DROP CONSTRAINT IF EXISTS outcomes_times_range",
          "UPDATE fairledger.outcomes SET recorded_at = '-infinity' WHERE session_id = '{}' AND nonce = 5"],
        &["Rows"],
    ),
    (
        &["ALTER TABLE fairledger.voids DROP CONSTRAINT IF EXISTS voids_times_range",
          "UPDATE fairledger.voids SET voided_at = '20000-01-01' WHERE session_id = '{}'"],
        &["Rows"],
    ),
    (
        &["ALTER TABLE fairledger.steps DROP CONSTRAINT IF EXISTS steps_times_range",
          "UPDATE fairledger.steps SET stepped_at = 'infinity' WHERE session_id = '{}' AND step_index = 0"],
        &["Rows"],
    ),
    (
        &["ALTER TABLE fairledger.bets DROP CONSTRAINT IF EXISTS bets_nonce_range",
          "UPDATE fairledger.bets SET nonce = -1 WHERE session_id = '{}' AND seed_no = 1 AND nonce = 1"],
        &["Missing", "Counter"],
    ),
    (
        &["ALTER TABLE fairledger.seeds DROP CONSTRAINT IF EXISTS seeds_next_nonce_range",
          "UPDATE fairledger.seeds SET next_nonce = -9223372036854775808 WHERE session_id = '{}' AND seed_no = 1"],
        &["Counter"],
    ),
    (
        &["ALTER TABLE fairledger.seeds DROP CONSTRAINT IF EXISTS seeds_pending_range",
          "UPDATE fairledger.seeds SET pending = -1 WHERE session_id = '{}' AND seed_no = 1"],
        &["Pending"],
    ),
    (
        &["ALTER TABLE fairledger.bets DROP CONSTRAINT IF EXISTS bets_times_range",
          "UPDATE fairledger.bets SET taken_at = 'infinity' WHERE session_id = '{}' AND seed_no = 1 AND nonce = 1"],
        &["Times"],
    ),
    (
        &["ALTER TABLE fairledger.bets DROP CONSTRAINT IF EXISTS bets_times_range",
          "UPDATE fairledger.bets SET taken_at = '-infinity' WHERE session_id = '{}' AND seed_no = 1 AND nonce = 0"],
        &["Times"],
    ),
    (
        &["ALTER TABLE fairledger.seeds DROP CONSTRAINT IF EXISTS seeds_times_range",
          "UPDATE fairledger.seeds SET retired_at = '20000-01-01' WHERE session_id = '{}' AND seed_no = 0"],
        &["Seeds"],
    ),
];

#[tokio::test]
async fn whatever_is_planted_is_found_by_its_name_and_nothing_else_is() {
    let past = Past::new().await;
    let mut ids = Vec::new();
    for _ in PLANTED {
        let mut player = past.session().await;
        player.every_kind().await;
        ids.push(player.id);
    }
    let mut sound = past.session().await;
    sound.every_kind().await;
    assert_eq!(everything(&past).await.1, []);
    let mut expected = BTreeMap::<Uuid, Vec<&str>>::new();
    for ((statements, checks), id) in PLANTED.iter().zip(&ids) {
        for statement in *statements {
            if *statement == "CLOSE" {
                let live = past.seeds.view(*id).await.unwrap().commitment;
                past.seeds.close(*id, &live).await.unwrap();
                continue;
            }
            past.as_owner(&statement.replace("{}", &id.to_string())).await;
        }
        expected.insert(*id, checks.to_vec());
    }
    let (totals, findings) = everything(&past).await;
    let mut found = BTreeMap::<Uuid, Vec<&str>>::new();
    for finding in &findings {
        found.entry(finding.session_id).or_default().push(&finding.check);
    }
    assert_eq!(found, expected, "{findings:#?}");
    // One session was planted to be gone. Each has two seeds, and a closed one a third; five were taken out and one cannot be read.
    let closed = PLANTED.iter().filter(|(statements, _)| statements.contains(&"CLOSE")).count() as u64;
    let planted = PLANTED.len() as u64;
    assert_eq!((totals.sessions, totals.seeds), (planted, 2 * (planted + 1) + closed - 6));
    for id in ids {
        if !past.has("SELECT FROM fairledger.sessions WHERE session_id = $1", id).await {
            continue;
        }
        let mut named = failed(&coverage(&past, id).await).into_iter().map(str::to_owned).collect::<Vec<_>>();
        // What only the directory of commitments tells of is looked for over all.
        let of_session = |finding: &&Finding| {
            finding.session_id == id && !finding.detail.starts_with("The directory has this commitment")
        };
        let mut expected: Vec<_> = findings.iter().filter(of_session).map(|finding| finding.check.clone()).collect();
        named.sort();
        expected.sort();
        assert_eq!(named, expected);
    }
    assert_eq!(failed(&coverage(&past, sound.id).await), [""; 0]);
}

/// An open round goes on by what its row says was shown: with fewer cards the next ones would be shown twice, and without its mine it could
/// still be cashed out.
#[tokio::test]
async fn a_round_has_shown_what_its_steps_tell_and_ended_by_it() {
    let past = Past::new().await;
    let mut player = past.session().await;
    let mines = player.round("mines", json!({ "mines": 24 })).await;
    player.step(mines, 0, Some(Disclose::Tiles(vec![7, 8]))).await;
    let cards = player.round("blackjack", json!({})).await;
    player.step(cards, 0, Some(Disclose::Cards(2))).await;
    player.step(cards, 1, None).await;
    player.step(cards, 2, Some(Disclose::Cards(1))).await;
    assert_eq!(failed(&coverage(&past, player.id).await), [""; 0]);
    for (nonce, wrong, right) in [
        (mines, "mine_shown = false", "mine_shown = true"),
        (mines, "mine_shown = false, cards_shown = 1", "mine_shown = true, cards_shown = 0"),
        (cards, "cards_shown = 2", "cards_shown = 3"),
        (cards, "cards_shown = 4", "cards_shown = 3"),
        (cards, "mine_shown = true", "mine_shown = false"),
    ] {
        let set = |what: &str| format!("UPDATE fairledger.pending SET {what} WHERE nonce = {nonce}");
        past.as_owner(&set(wrong)).await;
        assert_eq!(failed(&coverage(&past, player.id).await), ["Steps"], "{wrong}");
        past.as_owner(&set(right)).await;
    }
    past.as_owner(&format!(
        "UPDATE fairledger.steps SET disclosed = '{{\"cards\":[]}}' WHERE nonce = {cards} AND step_index = 2"
    ))
    .await;
    assert_eq!(failed(&coverage(&past, player.id).await), ["Steps"]);
    past.as_owner(&format!(
        "UPDATE fairledger.steps SET disclosed = '{{\"cards\":[\"A♠\"]}}' WHERE nonce = {cards} AND step_index = 2"
    ))
    .await;
    player.close_round(mines, CloseOutcome::Lost).await;
    assert_eq!(failed(&coverage(&past, player.id).await), [""; 0]);
    past.as_owner(&format!("UPDATE fairledger.outcomes SET round_outcome = 'cashout' WHERE nonce = {mines}")).await;
    assert_eq!(failed(&coverage(&past, player.id).await), ["Steps"]);
    // Void after a mine was shown: only a recovery does that.
    past.as_owner(&format!(
        "WITH gone AS (DELETE FROM fairledger.outcomes WHERE nonce = {mines} RETURNING session_id, seed_no, nonce, steps)
         INSERT INTO fairledger.voids (session_id, seed_no, nonce, reason, voided_at, taken_at, steps)
         SELECT g.session_id, g.seed_no, g.nonce, 'the engine broke', now(), b.taken_at, g.steps
         FROM gone g JOIN fairledger.bets b USING (session_id, seed_no, nonce)"
    ))
    .await;
    assert_eq!(failed(&coverage(&past, player.id).await), ["Steps"]);
    past.as_owner("UPDATE fairledger.voids SET reason = 'recovery'").await;
    assert_eq!(failed(&coverage(&past, player.id).await), ["Rows"]);
}

#[tokio::test]
async fn a_seed_that_was_deleted_is_missed_by_its_bets_its_successor_and_the_directory_i7() {
    let past = Past::new().await;
    let mut player = past.session().await;
    let gone = player.every_kind().await;
    past.as_owner("ALTER TABLE fairledger.reveals DROP CONSTRAINT reveals_seed_fkey").await;
    past.as_owner("DELETE FROM fairledger.reveals").await;
    past.as_owner("DELETE FROM fairledger.seeds WHERE seed_no = 0").await;
    let (_, findings) = everything(&past).await;
    let found: Vec<_> = findings.iter().map(|finding| (finding.check.as_str(), finding.seed_no)).collect();
    assert_eq!(found, [("Directory", Some(1)), ("Seeds", Some(0)), ("Directory", Some(0))], "{findings:#?}");
    assert!(findings[1].detail.starts_with("8 bets stand under seed 0"), "{}", findings[1].detail);
    assert_eq!(findings[2].commitment, Some(gone));
    assert_eq!(failed(&coverage(&past, player.id).await), ["Seeds", "Directory"]);
}

#[tokio::test]
async fn a_next_seed_that_was_deleted_is_missed() {
    let past = Past::new().await;
    past.session().await;
    past.as_owner("DELETE FROM fairledger.next_seeds").await;
    let (_, findings) = everything(&past).await;
    let found: Vec<_> = findings.iter().map(|finding| finding.check.as_str()).collect();
    assert_eq!(found, ["Next seed", "Directory"]);
}

#[tokio::test]
async fn a_clock_that_was_set_back_is_noted_and_accuses_nobody() {
    let past = Past::new().await;
    let mut player = past.session().await;
    player.every_kind().await;
    past.as_owner("UPDATE fairledger.bets SET taken_at = taken_at + interval '1 hour' WHERE seed_no = 0 AND nonce = 1")
        .await;
    past.as_owner("UPDATE fairledger.settlements SET settled_at = settled_at - interval '25 years'").await;
    past.as_owner("UPDATE fairledger.voids SET voided_at = voided_at + interval '1 day'").await;
    past.as_owner(
        "UPDATE fairledger.outcomes o SET recorded_at = b.expires_at + interval '1 second'
         FROM fairledger.bets b WHERE (o.session_id, o.seed_no, o.nonce) = (b.session_id, b.seed_no, b.nonce) AND o.nonce = 7",
    )
    .await;
    past.as_owner("UPDATE fairledger.next_seeds SET committed_at = committed_at - interval '1 day'").await;
    let (totals, findings) = everything(&past).await;
    assert_eq!((findings, totals.noted), (vec![], 2));
    let covered = coverage(&past, player.id).await;
    let live = covered.seeds[1].checks.iter().find(|check| check.name == "Order").unwrap();
    assert!(
        live.detail.starts_with("The seed after it was committed at a time at which it was not in use"),
        "{}",
        live.detail
    );
    let order = covered.seeds[0].checks.iter().find(|check| check.name == "Order").unwrap();
    assert_eq!(order.state, State::Noted);
    for words in [
        "1 bet has an earlier time than the bet before it (nonce 2)",
        "1 bet has a step, an end or a settlement at an earlier",
        "1 bet has a result at a later time than it expired (nonce 7)",
        "the seed ended at an earlier time than a bet under it",
    ] {
        assert!(order.detail.contains(words), "{}", order.detail);
    }
}

/// Whoever cuts steps from the end of a round can take out their number with them, and that is to be seen.
#[tokio::test]
async fn a_round_that_does_not_say_how_many_steps_it_had_is_noted() {
    let past = Past::new().await;
    let mut player = past.session().await;
    player.every_kind().await;
    past.as_owner("UPDATE fairledger.outcomes SET steps = NULL WHERE nonce = 5").await;
    let (totals, findings) = everything(&past).await;
    assert_eq!((findings, totals.noted), (vec![], 1));
    let covered = coverage(&past, player.id).await;
    let steps = covered.seeds[0].checks.iter().find(|check| check.name == "Steps").unwrap();
    assert_eq!(steps.state, State::Noted);
    assert!(steps.detail.starts_with("1 round has no number of steps (nonce 5)"), "{}", steps.detail);
}

#[tokio::test]
async fn missing_nonces_are_listed_as_ranges_up_to_a_bound_i12() {
    let past = Past::new().await;
    let mut player = past.session().await;
    for _ in 0..3 {
        player.play("dice", json!({})).await;
    }
    // Every second of a thousand, and none after.
    past.as_owner(
        "INSERT INTO fairledger.bets (session_id, seed_no, nonce, bet_ref, kind, game, params, taken_at, result, cursor)
         SELECT session_id, 0, n, 'p:' || n, 'played', 'dice', '{}', taken_at, '1', 0
         FROM fairledger.bets, generate_series(4, 1000, 2) n WHERE nonce = 2",
    )
    .await;
    past.as_owner("UPDATE fairledger.seeds SET next_nonce = 9007199254740991").await;
    let covered = coverage(&past, player.id).await;
    let seed = &covered.seeds[0];
    assert_eq!(seed.missing.len(), RANGES_MAX as usize);
    assert_eq!((seed.missing[0].from, seed.missing[0].to), (3, 3));
    assert_eq!(seed.missing_total, 9_007_199_254_740_991 - 3 - 499);
    assert_eq!(failed(&covered), ["Missing"]);
}

/// Random play of every kind: nothing is ever found, and the counts are those of a ledger kept aside.
#[tokio::test(flavor = "multi_thread")]
async fn sound_histories_are_clean() {
    let past = Past::with(SeedsSettings { pending_max: 1_000, ..SeedsSettings::default() }, None).await;
    let mut rng = SmallRng::seed_from_u64(11);
    let (mut recorded, mut void, mut pending) = (0, 0, 0);
    for _ in 0..12 {
        let mut player = past.session().await;
        let mut open = Vec::new();
        for _ in 0..40 {
            act(&mut player, &mut rng, &mut open, [&mut recorded, &mut void]).await;
        }
        if rng.random_bool(0.3) {
            let rounds = open.iter().filter(|(_, round)| *round).count() as u64;
            recorded += rounds;
            void += open.len() as u64 - rounds;
            player.close().await;
        } else {
            pending += open.len() as u64;
        }
    }
    let store = PgSeedStore::new(past.seeds.clone());
    let ttl = Duration::from_secs(3_600);
    let session = PutSession {
        session_id: Uuid::now_v7(),
        server_seed: fairledger::gfs::ServerSeed::generate(),
        client_seed: fairledger::gfs::ClientSeed::generate(),
    };
    store.put(&session, ttl, None).await.unwrap();
    let commitment = session.server_seed.commitment();
    store.reveal(session.session_id, &commitment, &session.server_seed, ttl).await.unwrap();

    let (totals, findings) = everything(&past).await;
    assert_eq!(findings, []);
    assert_eq!((totals.recorded, totals.void, totals.pending), (recorded, void, pending));
    assert_eq!(totals.handed_out, recorded + void + pending);
    assert_eq!(totals.sessions, 13);
}

/// One random act; `open` holds the pending bets of the live seed, and whether each is a round.
async fn act(
    player: &mut Player<'_>,
    rng: &mut SmallRng,
    open: &mut Vec<(u64, bool)>,
    [recorded, void]: [&mut u64; 2],
) {
    match rng.random_range(0..10) {
        0..=3 => {
            let bet = player.play("dice", json!({})).await;
            *recorded += 1;
            if rng.random_bool(0.5) {
                player.settle(bet.record["nonce"].as_u64().unwrap(), "0.000000000000000001").await;
            }
        }
        4 => {
            let nonce = player.round("keno", json!({})).await;
            player.step(nonce, 0, None).await;
            open.push((nonce, true));
        }
        5 => {
            let nonce = player.reserve().await;
            open.push((nonce, false));
        }
        6 | 7 => {
            let Some((nonce, round)) = open.pop() else { return };
            if rng.random_bool(0.4) {
                player.void(nonce, "no").await;
                *void += 1;
                return;
            }
            if round {
                player.close_round(nonce, CloseOutcome::Cashout).await;
            } else {
                player.record(nonce, json!([1])).await;
            }
            *recorded += 1;
        }
        _ => {
            if open.is_empty() {
                let text = format!("text {}", rng.random_range(0..3));
                player.change_client_seed(&text).await;
            }
        }
    }
}
