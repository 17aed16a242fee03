//! Coverage: whether every nonce that was handed out is accounted for, and whether each seed's life is in order.
//!
//! Looks for what the invariants exclude (I3, I4, I5, I7, I8), in what is stored and without trusting what keeps it so: a row that the
//! service could never have written is what an auditor asks about. All of a seed is judged within one snapshot. Costs are bounded by the
//! seeds of a page (I12): bets are counted inside the database.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::check::{Check, State};
use super::{History, HistoryError};
use crate::db::coverage::{BetCounts, ClientSeedFacts, Found, MissingNonces, SeedFacts, SeedKey, SessionFacts};
use crate::db::{Access, DbError, Tx};
use crate::gfs::seed::Commitment;
use crate::seeds::values::Timestamp;

/// Ranges of missing nonces that are listed for one seed at the most; all are counted.
pub const RANGES_MAX: u32 = 100;

/// The checks of a seed, in order.
pub(super) const CHECKS: [&str; 14] = [
    "Commitment",
    "Directory",
    "Reveal",
    "Ending",
    "Times",
    "Order",
    "Missing",
    "Counter",
    "End",
    "One end",
    "Pending",
    "Rows",
    "Settlements",
    "Steps",
];

/// Seeds that are judged in one snapshot.
const SEEDS_A_PAGE: i64 = 2_000;

/// Nonces handed out by the seeds of one snapshot, about; a seed with more has one to itself.
const BETS_A_PAGE: u64 = 500_000;

/// Sessions or commitments that are looked at in one snapshot.
const ROWS_A_PAGE: i64 = 20_000;

/// Nonces from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NonceRange {
    /// The first.
    pub from: u64,
    /// The last.
    pub to: u64,
}

/// What became of the nonces that one seed handed out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SeedCoverage {
    /// The seed's commitment.
    pub commitment: Commitment,
    /// The seed's number in its session, from 0.
    pub seed_no: u32,
    /// `live`, `revealed` or `discarded`.
    pub status: String,
    /// Nonces handed out: the seed's counter.
    pub handed_out: u64,
    /// Bets with a result.
    pub recorded: u64,
    /// Bets that ended without one.
    pub void: u64,
    /// Bets whose result is concealed or owed.
    pub pending: u64,
    /// Nonces handed out without a bet; the first hundred ranges.
    pub missing: Vec<NonceRange>,
    /// How many nonces are missing in all.
    pub missing_total: u64,
    /// What ended the seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retired_by: Option<String>,
    /// The recovery epoch that the seed was committed in; 0 before any recovery.
    pub epoch: u32,
    /// The checks, in order.
    pub checks: Vec<Check>,
}

impl SeedCoverage {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.checks.iter().all(|check| check.state != State::Mismatch)
    }
}

/// A recovery after acknowledged state was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Recovery {
    /// The epoch that it opened.
    pub epoch: u32,
    /// When an operator confirmed it.
    pub recovered_at: Timestamp,
    /// Why, in the operator's words.
    pub reason: String,
}

/// The coverage of a session: a page of its seeds, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionCoverage {
    /// The session.
    pub session_id: Uuid,
    /// The database that was read has every bet taken before this time.
    pub as_of: Timestamp,
    /// How long ago that is, in milliseconds, by the clock of the database that was read.
    pub behind_ms: u64,
    /// Checks of the session as a whole.
    pub checks: Vec<Check>,
    /// The seeds.
    pub seeds: Vec<SeedCoverage>,
    /// Recoveries after acknowledged state was lost, when there were any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recoveries: Vec<Recovery>,
    /// Where the next page begins: above the seed of this number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_after: Option<i32>,
}

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Where.
    pub session_id: Uuid,
    /// Under which seed of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed_no: Option<i32>,
    /// The seed's commitment, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commitment: Option<Commitment>,
    /// The check that failed.
    pub check: String,
    /// What was found.
    pub detail: String,
}

/// What looking at everything came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Sessions looked at.
    pub sessions: u64,
    /// Seeds looked at.
    pub seeds: u64,
    /// Commitments looked at.
    pub commitments: u64,
    /// Nonces handed out.
    pub handed_out: u64,
    /// Bets with a result.
    pub recorded: u64,
    /// Bets that ended without one.
    pub void: u64,
    /// Bets whose result is concealed or owed.
    pub pending: u64,
    /// Checks that failed.
    pub wrong: u64,
    /// Checks that found something that accuses nobody by itself.
    pub noted: u64,
}

/// What happens while everything is looked at.
#[derive(Debug)]
pub enum Seen {
    /// So many further seeds were judged.
    Seeds(u64),
    /// Something is not as it must be.
    Wrong(Finding),
    /// Something is to be known, and accuses nobody by itself.
    Noted(Finding),
}

impl History {
    /// The coverage of a session, from just above the seed of the given number: what is looked at must not decide where to go on.
    ///
    /// # Errors
    /// [`HistoryError::SessionNotFound`]; and the database's.
    pub async fn coverage(
        &self,
        session_id: Uuid,
        after: Option<i32>,
        limit: u32,
    ) -> Result<SessionCoverage, HistoryError> {
        let mut looking = self.look("coverage.session").await?;
        let (as_of, behind_ms) = (Timestamp(looking.as_of), looking.behind_ms(looking.as_of));
        let tx = &mut looking.tx;
        tx.plan_freely().await?;
        let session = tx.session_facts(session_id, session_id, 1).await?.pop().ok_or(HistoryError::SessionNotFound)?;
        let above = after.map_or(SeedKey::before(session_id), |seed_no| SeedKey { session_id, seed_no });
        let page = seeds_page(tx, above, SeedKey::after(session_id), i64::from(limit)).await?;
        let recoveries = recoveries_in(tx).await?;
        looking.tx.rollback().await;
        let mut checks = session_checks(&session);
        checks.extend(page.without_seed.into_iter().map(|(_, check)| check));
        Ok(SessionCoverage {
            session_id,
            as_of,
            behind_ms,
            checks,
            next_after: page.next.map(|key| key.seed_no),
            seeds: page.seeds.into_iter().map(|(_, seed)| seed).collect(),
            recoveries,
        })
    }

    /// Looks at every session, seed, bet and commitment, and tells what is wrong as it is found. Each page is one snapshot; memory
    /// does not grow.
    ///
    /// # Errors
    /// The database's.
    pub async fn coverage_of_all(&self, mut each: impl FnMut(Seen) + Send) -> Result<Totals, HistoryError> {
        let mut totals = Totals::default();
        let mut tell = |totals: &mut Totals, seen: Seen| {
            totals.wrong += u64::from(matches!(seen, Seen::Wrong(_)));
            totals.noted += u64::from(matches!(seen, Seen::Noted(_)));
            each(seen);
        };
        let (mut above, end) = (SeedKey::before(Uuid::nil()), SeedKey::after(Uuid::max()));
        loop {
            let mut tx = self.inner.reader.snapshot("coverage.seeds").await?;
            tx.plan_freely().await?;
            let page = seeds_page(&mut tx, above, end, SEEDS_A_PAGE).await?;
            tx.rollback().await;
            totals.seeds += page.seeds.len() as u64;
            for (seed_key, seed) in &page.seeds {
                totals.handed_out += seed.handed_out;
                totals.recorded += seed.recorded;
                totals.void += seed.void;
                totals.pending += seed.pending;
                for check in &seed.checks {
                    let found = || finding(seed_key.session_id, (Some(seed_key.seed_no), Some(seed.commitment)), check);
                    match check.state {
                        State::Mismatch => tell(&mut totals, Seen::Wrong(found())),
                        State::Noted => tell(&mut totals, Seen::Noted(found())),
                        State::Matches | State::NotProvable => {}
                    }
                }
            }
            for (key, check) in page.without_seed {
                tell(&mut totals, Seen::Wrong(finding(key.session_id, (Some(key.seed_no), None), &check)));
            }
            tell(&mut totals, Seen::Seeds(page.seeds.len() as u64));
            match page.next {
                Some(next) => above = next,
                None => break,
            }
        }
        self.sessions_of_all(&mut totals, &mut tell).await?;
        self.commitments_of_all(&mut totals, &mut tell).await?;
        Ok(totals)
    }

    async fn sessions_of_all(
        &self,
        totals: &mut Totals,
        tell: &mut (impl FnMut(&mut Totals, Seen) + Send),
    ) -> Result<(), HistoryError> {
        let mut from = Uuid::nil();
        loop {
            let mut tx = self.inner.reader.snapshot("coverage.sessions").await?;
            tx.plan_freely().await?;
            let sessions = tx.session_facts(from, Uuid::max(), ROWS_A_PAGE).await?;
            let whole = sessions.len() < usize::try_from(ROWS_A_PAGE).unwrap_or(usize::MAX);
            let to = sessions.last().filter(|_| !whole).map_or(Uuid::max(), |last| last.session_id);
            let orphans = tx.next_seeds_without_session(from, to, WITHOUT_SEED_MAX).await?;
            tx.rollback().await;
            for (session_id, seed_no) in orphans {
                let detail = "A next seed waits in a session that is not there: a session is never deleted.";
                let check = Check::new("Next seed", State::Mismatch, detail);
                tell(totals, Seen::Wrong(finding(session_id, (Some(seed_no), None), &check)));
            }
            totals.sessions += sessions.len() as u64;
            for session in &sessions {
                for check in session_checks(session).iter().filter(|check| check.state == State::Mismatch) {
                    tell(totals, Seen::Wrong(finding(session.session_id, (None, None), check)));
                }
            }
            match to.as_u128().checked_add(1) {
                Some(next) => from = Uuid::from_u128(next),
                None => return Ok(()),
            }
        }
    }

    async fn commitments_of_all(
        &self,
        totals: &mut Totals,
        tell: &mut (impl FnMut(&mut Totals, Seen) + Send),
    ) -> Result<(), HistoryError> {
        let mut above: Option<Vec<u8>> = None;
        loop {
            let mut tx = self.inner.reader.snapshot("coverage.commitments").await?;
            tx.plan_freely().await?;
            let page = tx.commitments_without_seed(above.as_deref(), ROWS_A_PAGE).await?;
            tx.rollback().await;
            let Some(page) = page else { return Ok(()) };
            above = Some(page.last);
            totals.commitments += page.rows;
            for (commitment, key) in page.stray {
                let detail = "The directory has this commitment, and there is no such seed: a seed is never deleted.";
                let check = Check::new("Directory", State::Mismatch, detail);
                let seed = (Some(key.seed_no), commitment);
                tell(totals, Seen::Wrong(finding(key.session_id, seed, &check)));
            }
        }
    }

    /// How many seeds there are, roughly, for progress bars.
    ///
    /// # Errors
    /// The database's.
    pub async fn seeds_estimate(&self) -> Result<u64, HistoryError> {
        let mut tx = self.inner.reader.snapshot("coverage.estimate").await?;
        let estimate = tx.seeds_estimate().await?;
        tx.rollback().await;
        Ok(estimate)
    }
}

fn finding(session_id: Uuid, (seed_no, commitment): (Option<i32>, Option<Commitment>), check: &Check) -> Finding {
    Finding { session_id, seed_no, commitment, check: check.name.clone(), detail: check.detail.clone() }
}

/// The coverage of one seed.
pub(super) async fn seed_coverage_in<A: Access>(
    tx: &mut Tx<A>,
    key: SeedKey,
) -> Result<Option<(SeedCoverage, Option<DateTime<Utc>>)>, DbError> {
    let above = SeedKey { seed_no: key.seed_no.saturating_sub(1), ..key };
    let Some((_, facts)) = tx.seed_facts(above, key, 1).await?.pop() else { return Ok(None) };
    let facts = facts?;
    let mut counts = BetCounts::default();
    tx.bet_counts(above, key, |_, found| counts = found).await?;
    let first_bet_at = counts.taken_at.map(|(first, _)| first);
    Ok(Some((judge_in(tx, &facts, &counts).await?, first_bet_at)))
}

/// Recoveries that are shown at the most.
const RECOVERIES_MAX: i64 = 1_000;

pub(super) async fn recoveries_in<A: Access>(tx: &mut Tx<A>) -> Result<Vec<Recovery>, DbError> {
    let rows = tx.recoveries(RECOVERIES_MAX).await?;
    let shown = rows.into_iter().map(|row| Recovery {
        epoch: row.epoch.unsigned_abs(),
        recovered_at: Timestamp(row.recovered_at),
        reason: row.reason,
    });
    Ok(shown.collect())
}

/// Seeds judged together.
struct SeedsPage {
    seeds: Vec<(SeedKey, SeedCoverage)>,
    /// Places where something names a seed and none is, or none that can be read.
    without_seed: Vec<(SeedKey, Check)>,
    /// Where the next page begins; none after the last.
    next: Option<SeedKey>,
}

/// Places without seed that one page lists at the most.
const WITHOUT_SEED_MAX: i64 = 1_000;

async fn seeds_page<A: Access>(tx: &mut Tx<A>, above: SeedKey, end: SeedKey, limit: i64) -> Result<SeedsPage, DbError> {
    let mut facts = tx.seed_facts(above, end, limit + 1).await?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let (mut kept, mut nonces) = (0, 0_u64);
    for (_, seed) in facts.iter().take(limit) {
        nonces = nonces.saturating_add(seed.as_ref().map_or(0, |seed| u64::try_from(seed.next_nonce).unwrap_or(0)));
        if kept > 0 && nonces > BETS_A_PAGE {
            break;
        }
        kept += 1;
    }
    let more = kept < facts.len();
    facts.truncate(kept);
    // The last page goes to the very end, so that bets under no seed are seen wherever they are.
    let to = if more { facts.last().map_or(end, |(key, _)| *key) } else { end };

    let mut counted = BTreeMap::<SeedKey, BetCounts>::new();
    let mut without_seed = BTreeMap::<SeedKey, Check>::new();
    let known: BTreeSet<SeedKey> = facts.iter().map(|(key, _)| *key).collect();
    let listed_max = usize::try_from(WITHOUT_SEED_MAX).unwrap_or(usize::MAX);
    tx.bet_counts(above, to, |key, counts| {
        if known.contains(&key) {
            counted.insert(key, counts);
        } else if without_seed.len() < listed_max {
            let detail =
                format!("{} under seed {} of the session, which is not there.", bets_text(&counts), key.seed_no);
            without_seed.insert(key, Check::new("Seeds", State::Mismatch, detail));
        }
    })
    .await?;
    for key in tx.reveals_without_seed(above, to, WITHOUT_SEED_MAX).await? {
        without_seed.entry(key).or_insert_with(|| {
            let detail = format!("A reveal stands for seed {} of the session, which is not there.", key.seed_no);
            Check::new("Seeds", State::Mismatch, detail)
        });
    }
    let mut seeds = Vec::with_capacity(facts.len());
    for (key, seed) in facts {
        match seed {
            Ok(seed) => {
                let counts = counted.remove(&key).unwrap_or_default();
                seeds.push((key, judge_in(tx, &seed, &counts).await?));
            }
            Err(error) => {
                let detail = format!("Seed {} of the session cannot be read: {error}.", key.seed_no);
                without_seed.insert(key, Check::new("Seeds", State::Mismatch, detail));
            }
        }
    }
    Ok(SeedsPage { seeds, without_seed: without_seed.into_iter().collect(), next: more.then_some(to) })
}

fn bets_text(counts: &BetCounts) -> String {
    match counts.bets {
        0 => "Rows of bets stand".to_owned(),
        1 => "1 bet stands".to_owned(),
        bets => format!("{bets} bets stand"),
    }
}

/// Judges one seed; looks closer only where its numbers do not add up.
async fn judge_in<A: Access>(tx: &mut Tx<A>, seed: &SeedFacts, counts: &BetCounts) -> Result<SeedCoverage, DbError> {
    let complete = i64::try_from(counts.bets) == Ok(seed.next_nonce)
        && counts.nonces.is_none_or(|(first, last)| first == 0 && last == seed.next_nonce.saturating_sub(1))
        && counts.ended_twice.count == 0;
    let (missing, beyond) = if complete {
        (MissingNonces::default(), Found::default())
    } else {
        tx.missing_nonces(seed.key, seed.next_nonce, i64::from(RANGES_MAX)).await?
    };
    let mut checks = life_checks(seed, counts);
    checks.extend(nonce_checks(seed, counts, &missing, beyond));
    Ok(SeedCoverage {
        commitment: seed.commitment,
        seed_no: seed.key.seed_no.unsigned_abs(),
        status: seed.status.clone(),
        // A counter below 0 is named by its check.
        handed_out: u64::try_from(seed.next_nonce).unwrap_or(0),
        recorded: counts.recorded,
        void: counts.void,
        pending: counts.pending,
        missing: missing.ranges.iter().map(|(from, to)| NonceRange { from: *from, to: *to }).collect(),
        missing_total: missing.nonces_total,
        retired_by: seed.retired_by.clone(),
        epoch: seed.epoch.unsigned_abs(),
        checks,
    })
}

/// Whether the seed was committed, used, ended and revealed as it must be (I5, I7).
fn life_checks(seed: &SeedFacts, counts: &BetCounts) -> Vec<Check> {
    let mut checks = Vec::with_capacity(14);
    checks.push(match &seed.reveal {
        None => Check::new("Commitment", State::NotProvable, "The server seed is not revealed."),
        Some(reveal) => Check::unless(
            "Commitment",
            (reveal.server_seed.commitment() != seed.commitment)
                .then(|| "The revealed server seed does not hash to the commitment.".to_owned()),
            "SHA-256 of the revealed server seed is the commitment.",
        ),
    });
    let directory = if !seed.in_directory {
        Some("The directory of commitments does not lead to this seed.".to_owned())
    } else if !seed.has_predecessor {
        Some("The seed before this one is not there: a seed is never deleted.".to_owned())
    } else if !seed.has_session {
        Some("The seed's session is not there: a session is never deleted.".to_owned())
    } else if !seed.epoch_known {
        Some(format!("The seed was committed in epoch {}, which no recovery opened.", seed.epoch))
    } else {
        None
    };
    checks.push(Check::unless(
        "Directory",
        directory,
        "The directory of commitments leads here, and the seed before this one is there.",
    ));
    checks.push(match reveal_fault(seed, counts) {
        None if seed.reveal_due => {
            Check::new("Reveal", State::NotProvable, "The seed ended and its reveal is about to be stored.")
        }
        fault => Check::unless("Reveal", fault, "Revealed if it ended with bets, and not before it ended."),
    });
    checks.push(Check::unless(
        "Ending",
        ending_fault(seed),
        "What ended it, and when, is there if it ended, and so is what follows from it.",
    ));
    checks.push(Check::unless(
        "Times",
        time_fault(seed, counts),
        "Committed, then live, then bet on, then ended, then revealed; and its client seed set at the time that its source says.",
    ));
    checks.push(order_check(seed, counts));
    checks
}

fn reveal_fault(seed: &SeedFacts, counts: &BetCounts) -> Option<String> {
    let by_recovery = seed.retired_by.as_deref() == Some("recovery");
    match (seed.status.as_str(), &seed.reveal) {
        ("revealed", None) if !seed.reveal_due => {
            Some("The seed ended with bets and its reveal is not there.".to_owned())
        }
        ("live" | "discarded", Some(_)) => Some(format!("The seed is {} and a reveal of it is there.", seed.status)),
        ("live" | "discarded", None) if seed.reveal_due => {
            Some(format!("The seed is {} and a reveal of it is noted as due.", seed.status))
        }
        ("revealed", Some(_)) if seed.reveal_due => Some("The reveal is there and noted as still due.".to_owned()),
        ("revealed", Some(reveal)) if seed.retired_by.as_ref().is_some_and(|ended| *ended != reveal.reason) => {
            let ended = seed.retired_by.as_deref().unwrap_or_default();
            Some(format!("The seed was ended by {ended} and revealed by {}.", reveal.reason))
        }
        // A recovery reveals every seed of the time before: it may have had bets that are lost. An application reveals its own when it likes.
        ("revealed", _) if seed.next_nonce == 0 && seed.of_service && !by_recovery => {
            Some("The seed was revealed although it handed out no nonce: it had to be discarded.".to_owned())
        }
        ("discarded", None) if seed.next_nonce != 0 || counts.bets > 0 => {
            Some("The seed was discarded although it has bets: it had to be revealed.".to_owned())
        }
        _ => None,
    }
}

/// What contradicts how seeds follow one another. One of the service ends only in a transaction that brings the next one into use, or
/// discards it because the session is closed (I5).
fn ending_fault(seed: &SeedFacts) -> Option<String> {
    if !["live", "revealed", "discarded"].contains(&seed.status.as_str()) {
        return Some("The seed is neither live nor revealed nor discarded.".to_owned());
    }
    if seed.status == "live" {
        return if seed.retired_at.is_some() || seed.retired_by.is_some() {
            Some("The seed is live and says when or by what it ended.".to_owned())
        } else {
            (seed.of_service && seed.successor.is_some())
                .then(|| "The seed is live, and one after it has been in use or discarded.".to_owned())
        };
    }
    let (Some(_), Some(by)) = (seed.retired_at, seed.retired_by.as_deref()) else {
        return Some("The seed ended and nothing says when and by what.".to_owned());
    };
    if !seed.has_session {
        return None;
    }
    let (whose, means): (_, &[_]) = if seed.of_service {
        ("the service", &["rotation", "client_seed", "closing", "idle", "recovery"])
    } else {
        ("an application", &["replaced", "closing", "expiry", "recovery"])
    };
    if !means.contains(&by) {
        return Some(format!("The seed was ended by {by}, which ends no seed of {whose}."));
    }
    if by == "recovery" && !seed.recovered_since {
        return Some("The seed was ended by a recovery, and none came after it.".to_owned());
    }
    if ended_with_session(Some(by)) && seed.session_open {
        return Some(format!("The seed was ended by {by} of its session, which is open."));
    }
    if by == "rotation" && seed.next_nonce == 0 {
        return Some("The seed was ended by a rotation although it handed out no nonce.".to_owned());
    }
    if seed.of_service { successor_fault(seed, by) } else { None }
}

/// What contradicts that the seed after this one came into its place, or was discarded with it.
fn successor_fault(seed: &SeedFacts, by: &str) -> Option<String> {
    let of_closing = ["closing", "idle"].contains(&by);
    // The one that waited while the last one was in use.
    let waited = seed.live_at.is_none();
    let Some(next) = &seed.successor else {
        return (!(of_closing && waited))
            .then(|| format!("The seed was ended by {by}, and the one that came after it is not there."));
    };
    let ended_with_it = !next.was_live && next.retired_by.as_deref() == Some(by);
    let follows = match (by, waited) {
        ("rotation" | "client_seed", false) => next.was_live && next.epoch >= seed.epoch,
        ("closing" | "idle", false) => ended_with_it && next.epoch >= seed.epoch,
        ("recovery", false) => ended_with_it,
        ("recovery", true) => next.client_seed_source.as_deref() == Some("generated") && next.epoch > seed.epoch,
        _ => false,
    };
    (!follows).then(|| format!("The seed was ended by {by}, and the one after it is not what follows from that."))
}

/// When, and in which seed of a session, a client seed was set.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientSeedTimes {
    pub seed_no: u32,
    pub epoch: u32,
    pub committed_at: DateTime<Utc>,
    pub live_at: DateTime<Utc>,
    pub set_at: DateTime<Utc>,
}

/// Whose a client seed is, going by source and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientSeedOf {
    /// The player's, who chose it after the commitment.
    Player,
    /// The seed's before.
    Kept,
    /// Not the player's.
    Operator,
}

impl ClientSeedTimes {
    /// Whose it is; none when the source does not fit.
    pub(super) fn of(&self, source: &str) -> Option<ClientSeedOf> {
        let set_as_it_went_live = self.set_at == self.live_at;
        match (source, self.seed_no) {
            ("player", 1..) if set_as_it_went_live && self.committed_at <= self.set_at => Some(ClientSeedOf::Player),
            // Its time is that of the seed before; a clock may have stood still or gone back since.
            ("kept", 1..) => Some(ClientSeedOf::Kept),
            // The text of a new session, and of one that goes on after a recovery.
            ("generated", number) if set_as_it_went_live && (number == 0 || self.epoch > 0) => {
                Some(ClientSeedOf::Operator)
            }
            ("application", _) if set_as_it_went_live => Some(ClientSeedOf::Operator),
            _ => None,
        }
    }
}

/// What contradicts where a client seed came from: its time, and the seed before.
fn client_seed_fault(seed: &SeedFacts, client: &ClientSeedFacts, live_at: DateTime<Utc>) -> Option<String> {
    let ClientSeedFacts { source, set_at, same_text, same_time } = client;
    let times = ClientSeedTimes {
        seed_no: seed.key.seed_no.unsigned_abs(),
        epoch: seed.epoch.unsigned_abs(),
        committed_at: seed.committed_at,
        live_at,
        set_at: *set_at,
    };
    let follows = match times.of(source) {
        None => {
            return Some(format!("The client seed's source, {source}, does not fit its time, or the seed's number."));
        }
        Some(ClientSeedOf::Kept) => (*same_text, *same_time) == (Some(true), Some(true)),
        // The same text once more is kept.
        Some(ClientSeedOf::Player) => *same_text == Some(false),
        Some(ClientSeedOf::Operator) => true,
    };
    if !follows && seed.has_predecessor {
        return Some(format!("The client seed's source, {source}, does not fit the client seed of the seed before."));
    }
    if seed.has_session && (source == "application") == seed.of_service {
        return Some(format!("The client seed's source, {source}, does not fit the session's."));
    }
    // Of the seed before there is nothing that it could have been committed during.
    let fresh = ["generated", "application"].contains(&source.as_str());
    (fresh && live_at != seed.committed_at).then(|| {
        let (live, committed) = (Timestamp(live_at), Timestamp(seed.committed_at));
        format!(
            "Live at {live}, committed at {committed}: the first seed of a session or after a recovery, or an application's, is committed \
             as it goes live."
        )
    })
}

/// What contradicts the times that hold whatever a clock does: they are written so in the statements that store them.
fn time_fault(seed: &SeedFacts, counts: &BetCounts) -> Option<String> {
    if let Some(text) = some(counts.out_of_time, "bet", "a time outside the years 1970 to 9999") {
        return Some(text + ".");
    }
    let Some(live_at) = seed.live_at else {
        return (counts.bets > 0).then(|| "The seed never went live and has bets.".to_owned());
    };
    if live_at < seed.committed_at {
        return Some(format!("Live at {}, committed at {}.", Timestamp(live_at), Timestamp(seed.committed_at)));
    }
    if let Some(client) = &seed.client_seed
        && let Some(text) = client_seed_fault(seed, client, live_at)
    {
        return Some(text);
    }
    if let Some(retired_at) = seed.retired_at
        && let Some(text) = end_fault(seed, counts, live_at, retired_at)
    {
        return Some(text);
    }
    let (first_bet_at, _) = counts.taken_at?;
    if first_bet_at <= seed.committed_at {
        let (bet, committed) = (Timestamp(first_bet_at), Timestamp(seed.committed_at));
        return Some(format!("The earliest bet was taken at {bet}, and the seed committed at {committed}."));
    }
    (first_bet_at < live_at).then(|| {
        format!(
            "The earliest bet was taken at {}, and the seed live at {}.",
            Timestamp(first_bet_at),
            Timestamp(live_at)
        )
    })
}

/// An end is later than the last bets, and a reveal no earlier than the end. Of bets whose own times go back, others could be the latest.
fn end_fault(
    seed: &SeedFacts,
    counts: &BetCounts,
    live_at: DateTime<Utc>,
    retired_at: DateTime<Utc>,
) -> Option<String> {
    let ended = Timestamp(retired_at);
    if retired_at < live_at {
        return Some(format!("Ended at {ended}, live at {}.", Timestamp(live_at)));
    }
    if let Some(reveal) = &seed.reveal
        && reveal.revealed_at < retired_at
    {
        return Some(format!("Revealed at {}, ended at {ended}.", Timestamp(reveal.revealed_at)));
    }
    let (_, last) = counts.taken_at.filter(|_| counts.earlier_than_before.count == 0)?;
    (retired_at <= last).then(|| format!("Ended at {ended}, and the last bet was taken at {}.", Timestamp(last)))
}

fn order_check(seed: &SeedFacts, counts: &BetCounts) -> Check {
    let mut steps_back = Vec::new();
    if let Some(text) = some(counts.earlier_than_before, "bet", "an earlier time than the bet before it") {
        steps_back.push(text);
    }
    if let Some(text) =
        some(counts.earlier_than_taken, "bet", "a step, an end or a settlement at an earlier time than the bet")
    {
        steps_back.push(text);
    }
    if let Some(text) = some(counts.later_than_expiry, "bet", "a result at a later time than it expired") {
        steps_back.push(text);
    }
    if let (Some(retired_at), Some(ended_at)) = (seed.retired_at, counts.last_ended_at)
        && retired_at < ended_at
    {
        steps_back.push("the seed ended at an earlier time than a bet under it".to_owned());
    }
    if let (Some(live_at), Some(committed_at), true) = (seed.live_at, seed.successor_committed_at, seed.of_service) {
        let of_next = seed.successor.as_ref().and_then(|next| next.client_seed_source.as_deref());
        let while_in_use =
            live_at <= committed_at && seed.retired_at.is_none_or(|retired_at| committed_at <= retired_at);
        // A recovery makes the seed after it.
        if !while_in_use && of_next != Some("generated") {
            steps_back.push("the seed after it was committed at a time at which it was not in use".to_owned());
        }
    }
    let ended = [seed.retired_at, seed.reveal.as_ref().map(|reveal| reveal.revealed_at)];
    let before = |time: DateTime<Utc>| ended.iter().flatten().any(|end| *end < time);
    if seed.live_at.is_some_and(before) {
        steps_back.push("the seed ended or was revealed at an earlier time than it went live".to_owned());
    } else if counts.taken_at.is_some_and(|(_, last)| before(last)) {
        steps_back.push("the seed ended or was revealed at an earlier time than its last bet was taken".to_owned());
    }
    if steps_back.is_empty() {
        return Check::new("Order", State::Matches, "Times follow the order of the nonces.");
    }
    let found = steps_back.join("; ");
    let detail = format!(
        "{found}. Nonces are the order in which bets were taken; times are the database's clock, which was set back meanwhile or belongs \
         to another server after a failover. Accuses nobody by itself."
    );
    Check::new("Order", State::Noted, capitalised(&detail))
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// `1 bet has ... (nonce 7)`, or `3 bets have ... (the first is nonce 7)`; nothing when there is none.
fn some(found: Found, noun: &str, what: &str) -> Option<String> {
    let first = found.first.map_or_else(|| "?".to_owned(), |nonce| nonce.to_string());
    match found.count {
        0 => None,
        1 => Some(format!("1 {noun} has {what} (nonce {first})")),
        count => Some(format!("{count} {noun}s have {what} (the first is nonce {first})")),
    }
}

/// Whether every nonce has one bet, every bet one end, and every row its bet (I3, I4, I8).
fn nonce_checks(seed: &SeedFacts, counts: &BetCounts, missing: &MissingNonces, beyond: Found) -> Vec<Check> {
    let sentence = |text: Option<String>| text.map(|text| text + ".");
    let missing_text = missing.ranges.first().map(|(from, to)| {
        let first = if from == to { format!("nonce {from}") } else { format!("nonces {from} to {to}") };
        match (missing.nonces_total, missing.ranges_total) {
            (1, _) => format!("1 nonce was handed out and has no bet: {first}."),
            (total, 1) => format!("{total} nonces were handed out and have no bet: {first}."),
            (total, ranges) => {
                format!("{total} nonces in {ranges} ranges were handed out and have no bet, first {first}.")
            }
        }
    });
    let pending = if i64::try_from(counts.pending_rows) != Ok(i64::from(seed.pending)) {
        Some(format!(
            "The seed counts {} pending bets, and {} rows of pending bets are there.",
            seed.pending, counts.pending_rows
        ))
    } else if seed.status != "live" && counts.pending_rows > 0 {
        Some(format!("The seed ended with {} bets pending.", counts.pending_rows))
    } else {
        None
    };
    let end = some(counts.endless, "bet", "neither result nor void nor pending row");
    let twice = some(counts.ended_twice, "bet", "more than one of result, void and pending row");
    let stray = some(counts.stray, "nonce", "a result, void, step, settlement or pending row, and no bet");
    let contradicted = some(
        counts.contradicted,
        "bet",
        "rows that say different things of its kind, its time or its expiry, or an amount or a time that is none",
    );
    let contradicted = contradicted.or_else(|| ended_otherwise(seed, counts));
    let unsettled = some(counts.settled_without_result, "bet", "a settlement and no result");
    let steps = some(
        counts.step_gaps,
        "bet",
        "steps that are not those of a round, all of them, from 0 without gaps, showing what it says was shown and how it ended",
    );
    let name = "Steps";
    let counter = if seed.next_nonce < 0 {
        Some(format!("The counter is {}.", seed.next_nonce))
    } else {
        sentence(some(beyond, "bet", "a nonce that was never handed out"))
    };
    vec![
        Check::unless("Missing", missing_text, "Every nonce that was handed out has its bet."),
        Check::unless("Counter", counter, "No bet has a nonce that was not handed out."),
        Check::unless("End", sentence(end), "Every bet has a result, is void or is pending."),
        Check::unless("One end", sentence(twice), "No bet has two of result, void and pending."),
        Check::unless("Pending", pending, "Pending bets are as many as the seed counts, and none when it ended."),
        Check::unless(
            "Rows",
            sentence(stray.or(contradicted)),
            "Results, voids, steps, settlements and pending rows belong to bets, and say the same of them.",
        ),
        Check::unless("Settlements", sentence(unsettled), "Only bets with a result are settled."),
        match (sentence(steps), some(counts.steps_untold, "round", "no number of steps")) {
            (None, Some(untold)) => Check::new(
                name,
                State::Noted,
                format!(
                    "{untold}: ended before schema version 7, or the number was taken out. Steps that are gone from the end of such a round \
                     are not missed."
                ),
            ),
            (steps, _) => Check::unless(
                name,
                steps,
                "The steps of every round count from 0 without gaps, as many as it had; what they showed is what open rounds tell, and whoever saw a mine \
                 lost.",
            ),
        },
    ]
}

/// What contradicts the ends that only the service gives: by a recovery, or as its session ends. Its seed ends in the same transaction.
fn ended_otherwise(seed: &SeedFacts, counts: &BetCounts) -> Option<String> {
    let by = seed.retired_by.as_deref();
    let BetCounts { ended_by_recovery, ended_by_closing, .. } = counts;
    if by != Some("recovery") && ended_by_recovery.count > 0 {
        return some(*ended_by_recovery, "bet", "an end by a recovery, which did not end the seed");
    }
    if !ended_with_session(by) && ended_by_closing.count > 0 {
        return some(*ended_by_closing, "bet", "been abandoned as its session ended, which did not end the seed");
    }
    None
}

/// Whether a seed ended because its session did, which abandons pending bets.
pub(super) fn ended_with_session(retired_by: Option<&str>) -> bool {
    retired_by.is_some_and(|by| ["closing", "idle", "expiry"].contains(&by))
}

/// Whether a session has the seeds that its state demands (I5, I7).
fn session_checks(session: &SessionFacts) -> Vec<Check> {
    let SessionFacts { of_service, open, epoch, live, seed_no_max, next_seed_no, next_in_directory, .. } = *session;
    // A session that nobody used since a recovery has seeds of its own epoch; an application may leave its session without a seed.
    let due = open && of_service;
    let session_fault = if !session.epoch_known {
        Some(format!("The session is in epoch {epoch}, which no recovery opened."))
    } else if of_service && !session.seeds_in_epoch {
        Some(format!("The session is in epoch {epoch}, and its live or its next seed is of an earlier one."))
    } else if seed_no_max.is_none() {
        Some("The session has had no seed.".to_owned())
    } else {
        None
    };
    let live_fault = if live > 1 {
        Some(format!("The session has {live} live seeds."))
    } else if live == 1 && !open {
        Some("The session is closed and has a live seed.".to_owned())
    } else if live == 0 && due {
        Some("The session is open and has no live seed.".to_owned())
    } else {
        None
    };
    let next_fault = match next_seed_no {
        None if due => Some("The session is open and its next seed is not there.".to_owned()),
        Some(_) if !open => Some("The session is closed and a next seed waits.".to_owned()),
        Some(next) if Some(next) != seed_no_max.and_then(|newest| newest.checked_add(1)) => {
            Some(format!("The next seed has number {next}, and the newest of the others {seed_no_max:?}."))
        }
        Some(_) if !next_in_directory => {
            Some("The directory of commitments does not lead to the next seed.".to_owned())
        }
        Some(_) if !session.next_epoch_known => {
            Some("The next seed was committed in an epoch that no recovery opened.".to_owned())
        }
        Some(_) if !session.next_in_time => {
            Some("The next seed was committed outside the years 1970 to 9999.".to_owned())
        }
        _ => None,
    };
    vec![
        Check::unless(
            "Session",
            session_fault,
            "It has had a seed, and is in an epoch that is one, with the seeds that it uses.",
        ),
        Check::unless("Live seed", live_fault, "One seed is live while the session takes bets."),
        Check::unless("Next seed", next_fault, "The seed that comes next is committed while the session takes bets."),
    ]
}
