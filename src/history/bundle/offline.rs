//! Checking a bundle with nothing but the bundle: no database, no settings, no network.
//!
//! Whatever is calculated is calculated anew from the reveal; what stands twice must agree; what hangs together in time must be in order.
//! What nobody can prove from the file alone is listed as such, field by field, so that silence never means "checked". Untrusted input:
//! bounded and read strictly (I12).

use serde::Serialize;
use serde_json::Value;

use super::words::Word;
use super::{Bundle, FORMAT, Kind, statements};
use crate::gfs::games::Play;
use crate::gfs::inspect::{self, Inspection};
use crate::gfs::json::{self, Limits};
use crate::gfs::seed::ServerSeed;
use crate::history::check::{Check, State};
use crate::history::coverage::{ClientSeedOf, ClientSeedTimes, RANGES_MAX, ended_with_session};
use crate::history::rounds::{self, Doubt, End, NOT_OF_RESULT, Shown};
use crate::seeds::Disclose;
use crate::seeds::model::BetStatus;
use crate::seeds::values::{Money, Timestamp};

/// The longest bundle: a thousand steps of 4 KiB with what they disclosed, and room.
const LIMITS: Limits = Limits { bytes: 16 << 20, depth: 32 };

/// What a record of ours consists of.
const RECORD_MEMBERS: [&str; 14] = [
    "spec",
    "profile",
    "game",
    "params",
    "rules",
    "floats",
    "commitment",
    "clientSeed",
    "nonce",
    "at",
    "cursor",
    "result",
    "signature",
    "signer",
];

/// Why a text cannot be checked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {}{detail}", if field.is_empty() { String::new() } else { format!("{field}: ") })]
pub struct BundleError {
    /// `bundle` or `receipt`.
    pub what: &'static str,
    /// The field at fault; empty for the whole.
    pub field: String,
    /// What is wrong with it.
    pub detail: String,
}

/// What all checks together came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BundleStatus {
    /// The result is recalculated and everything fits.
    Matches,
    /// Something does not fit.
    Mismatch,
    /// Everything fits, and the result cannot be recalculated: the seed is not revealed, or there is no result, or the game is an outside one.
    Incomplete,
}

/// What checking a bundle found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BundleReport {
    /// All checks together.
    pub status: BundleStatus,
    /// Of the bet.
    pub game: String,
    /// Its place.
    pub commitment: String,
    /// Its place.
    pub nonce: u64,
    /// SHA-256 of the record as it is signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_hash: Option<String>,
    /// The checks, in order.
    pub checks: Vec<Check>,
    /// What is not provable from the bundle.
    pub not_provable: Vec<Word>,
    /// What the bundle says of itself, in the words of its format.
    pub statements: Vec<super::Statement>,
}

/// Checks a bundle, and the receipt that a player kept, where there is one.
///
/// # Errors
/// A text that is no bundle of a format known here, or no receipt.
pub fn verify(bundle: &[u8], receipt: Option<&[u8]>) -> Result<BundleReport, BundleError> {
    let bundle = read(bundle)?;
    let record = Value::Object(bundle.record.clone());
    // Its form was checked as it was read.
    let seed = bundle.server_seed.as_ref().and_then(|seed| ServerSeed::parse(seed.as_str()).ok());
    let inspection = inspect::inspect_value(&record, seed.as_ref()).map_err(|error| BundleError {
        what: "bundle",
        field: format!("record.{}", error.field),
        detail: error.detail,
    })?;
    let facts = Facts::of(&bundle, inspection);
    let mut checks = facts.calculation();
    checks.extend([
        facts.signing_key(),
        facts.agreement(),
        facts.state(),
        facts.reveal(),
        facts.times(),
        facts.order(),
        facts.client_seed(),
        facts.coverage(),
        facts.steps(),
        facts.disclosed(),
        facts.money(),
        facts.statements(),
    ]);
    let receipt = receipt.map(|receipt| facts.receipt(receipt)).transpose()?;
    let (receipt, proven) = receipt.unwrap_or_default();
    checks.extend(receipt);
    let outcome = checks.iter().find(|check| check.name == "Outcome").map(|check| check.state);
    let status = if checks.iter().any(|check| check.state == State::Mismatch) {
        BundleStatus::Mismatch
    } else if outcome == Some(State::Matches) {
        BundleStatus::Matches
    } else {
        BundleStatus::Incomplete
    };
    Ok(BundleReport {
        status,
        game: facts.inspection.kind.clone(),
        commitment: bundle.seed.commitment.to_string(),
        nonce: facts.nonce,
        not_provable: facts.words(proven),
        record_hash: facts.inspection.record_hash.clone(),
        checks,
        statements: bundle.statements.clone(),
    })
}

fn read(text: &[u8]) -> Result<Bundle, BundleError> {
    let refused = |field: &str, detail: String| BundleError { what: "bundle", field: field.to_owned(), detail };
    let value = json::parse(text, LIMITS).map_err(|error| refused(&error.field, error.detail))?;
    let format = value.get("format").and_then(Value::as_str);
    if format != Some(FORMAT) {
        return Err(refused("format", format!("is not {FORMAT}, the one format known here")));
    }
    let bundle: Bundle = serde_path_to_error::deserialize(value).map_err(|error| {
        let field = error.path().to_string();
        refused(if field == "." { "" } else { &field }, error.into_inner().to_string())
    })?;
    // Records made elsewhere may carry more, which plays no part; one that is evidence carries nothing that is not looked at.
    if let Some(name) = bundle.record.keys().find(|name| !RECORD_MEMBERS.contains(&name.as_str())) {
        return Err(refused(&format!("record.{name}"), "unknown field".to_owned()));
    }
    // These stand in answers as any JSON; the format knows two forms of each.
    for (step, index) in bundle.round.iter().flat_map(|round| &round.steps).zip(0..) {
        if let Some(Err(error)) = step.disclose.as_ref().map(Disclose::parse) {
            return Err(refused(&format!("round.steps[{index}].disclose"), error.to_string()));
        }
        if let Some(Err(error)) = step.disclosed.as_ref().map(serde_path_to_error::deserialize::<_, Shown>) {
            let below = error.path().to_string();
            let below = if below == "." { String::new() } else { format!(".{below}") };
            return Err(refused(&format!("round.steps[{index}].disclosed{below}"), error.into_inner().to_string()));
        }
    }
    Ok(bundle)
}

/// The first thing that does not hold, in its words.
pub(super) fn fault(claims: &[(bool, &str)]) -> Option<String> {
    claims.iter().find(|(holds, _)| !holds).map(|(_, words)| (*words).to_owned())
}

/// A bundle with what was calculated from it.
pub(super) struct Facts<'b> {
    pub(super) bundle: &'b Bundle,
    inspection: Inspection,
    nonce: u64,
}

impl<'b> Facts<'b> {
    fn of(bundle: &'b Bundle, inspection: Inspection) -> Self {
        // The inspection has seen that it is a safe integer.
        let nonce = bundle.record.get("nonce").and_then(Value::as_u64).unwrap_or_default();
        Self { bundle, inspection, nonce }
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.bundle.record.get(name).and_then(Value::as_str)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.bundle.record.contains_key(name)
    }

    pub(super) fn is_signed(&self) -> bool {
        self.has("signature")
    }

    pub(super) fn is_revealed(&self) -> bool {
        self.bundle.server_seed.is_some()
    }

    /// As they were bound: a parameter that is left out is not the same as its default.
    fn has_complete_params(&self) -> bool {
        let params = self.bundle.record.get("params");
        let play = self.text("game").and_then(|game| Play::new(game, params).ok());
        // An outside game's are its own.
        play.is_none_or(|play| params.map(json::canonical) == Some(json::canonical_map(&play.params())))
    }

    /// The session's seeds are made elsewhere, and there need be no next one.
    pub(super) fn is_of_application(&self) -> bool {
        self.bundle.seed.client_seed_source == "application"
    }

    /// The seed ended and its reveal was not stored yet when this was read: it is stored in a transaction after the one that ends the
    /// seed (I6). The operator's own count must say the same.
    fn is_reveal_due(&self) -> bool {
        let Bundle { seed, coverage, .. } = self.bundle;
        seed.status == "revealed"
            && !self.is_revealed()
            && seed.revealed_at.is_none()
            && coverage.checks.iter().any(|check| check.name == "Reveal" && check.state == State::NotProvable)
    }

    /// Both the seed and the bet say so.
    fn is_void_by_recovery(&self) -> bool {
        let Bundle { meta, seed, .. } = self.bundle;
        meta.void_reason.as_deref() == Some("recovery") && seed.retired_by.as_deref() == Some("recovery")
    }

    /// Ends that only the service gives, and with the end of the seed.
    fn end_fits_seed(&self) -> bool {
        let Bundle { meta, seed, .. } = self.bundle;
        let by = seed.retired_by.as_deref();
        match (meta.void_reason.as_deref(), meta.round_outcome.as_deref()) {
            (Some("recovery"), _) => self.is_void_by_recovery(),
            (Some("expired"), _) => meta.kind == Kind::Reservation,
            (Some("abandoned"), _) => meta.kind == Kind::Reservation && ended_with_session(by),
            (None, Some("abandoned")) => ended_with_session(by),
            _ => true,
        }
    }

    /// The result, as recorded or as the reveal gives it.
    pub(super) fn result(&self) -> Option<&Value> {
        self.bundle.record.get("result").or(Some(&self.inspection.computed)).filter(|result| !result.is_null())
    }

    /// What follows from the seeds, and the signature.
    fn calculation(&self) -> Vec<Check> {
        let state = |state| match state {
            inspect::State::Matches => State::Matches,
            inspect::State::Mismatch => State::Mismatch,
            inspect::State::NotProvided | inspect::State::Unsupported => State::NotProvable,
        };
        self.inspection.checks.iter().map(|check| Check::new(check.name, state(check.state), &*check.detail)).collect()
    }

    fn signing_key(&self) -> Check {
        let name = "Signing key";
        let Some(signer) = self.text("signer") else {
            let stray = self.bundle.signing_key.is_some().then(|| "A signing key of no signature.".to_owned());
            return match stray {
                Some(stray) => Check::new(name, State::Mismatch, stray),
                None => Check::new(name, State::NotProvable, "The record is not signed."),
            };
        };
        let held = self.bundle.signing_key.as_ref().is_some_and(|key| key.signer == signer);
        Check::unless(
            name,
            (!held).then(|| "The record's signer is not the signing key of the bundle.".to_owned()),
            "The record's signer is the signing key of the bundle. Compare it with the key that the operator published elsewhere: a \
             bundle cannot vouch for its own key.",
        )
    }

    /// What stands twice says the same.
    fn agreement(&self) -> Check {
        let Bundle { record, meta, seed, next_seed, coverage, recoveries, .. } = self.bundle;
        let at_ms = record.get("at").and_then(Value::as_i64);
        let commitment = seed.commitment.to_string();
        let epochs = recoveries.windows(2).all(|pair| pair[0].epoch < pair[1].epoch);
        let epoch_known = seed.epoch == 0 || recoveries.iter().any(|recovery| recovery.epoch == seed.epoch);
        let next = next_seed.as_ref();
        let claims = [
            (self.text("commitment") == Some(&*commitment), "The record has another commitment than its seed."),
            (coverage.commitment == seed.commitment, "The coverage is that of another commitment."),
            (
                self.text("clientSeed") == Some(seed.client_seed.as_str()),
                "The record has another client seed than its seed.",
            ),
            (self.has_complete_params(), "The record's parameters are not those of its game, with defaults filled in."),
            (
                at_ms == Some(meta.taken_at.0.timestamp_millis()),
                "The record's time is not meta.takenAt in milliseconds.",
            ),
            (self.nonce < seed.bets, "The nonce is beyond the bets of its seed."),
            (coverage.handed_out == seed.bets, "Coverage and seed count other numbers of bets."),
            (coverage.status == seed.status, "Coverage and seed have other states."),
            (coverage.seed_no == seed.seed_no, "Coverage and seed have other numbers."),
            (coverage.epoch == seed.epoch, "Coverage and seed have other epochs."),
            (coverage.retired_by == seed.retired_by, "Coverage and seed ended by other means."),
            (
                next.is_some() || self.is_of_application(),
                "The next seed is not there, although one is committed before a session's seed is used.",
            ),
            (next.is_none_or(|next| next.commitment != seed.commitment), "The next seed has the same commitment."),
            (
                next.is_none_or(|next| next.seed_no == seed.seed_no.saturating_add(1)),
                "The next seed has not the next number.",
            ),
            (epochs && epoch_known, "The recoveries are out of order or lack the one that opened the seed's epoch."),
        ];
        Check::unless("Agreement", fault(&claims), "What stands in several places of the bundle says the same.")
    }

    /// Kind and state of the bet, and what comes with them.
    fn state(&self) -> Check {
        let Bundle { meta, round, .. } = self.bundle;
        let recorded = meta.status == BetStatus::Recorded;
        let (void, pending) = (meta.status == BetStatus::Void, meta.status == BetStatus::Pending);
        let outcome = meta.round_outcome.as_deref();
        let outcome_fits = match (meta.kind, meta.status) {
            (Kind::Round, BetStatus::Recorded) => {
                outcome.is_some_and(|outcome| ["cashout", "lost", "forfeit", "abandoned"].contains(&outcome))
            }
            (Kind::Round, BetStatus::Void) => outcome == Some("void"),
            _ => outcome.is_none(),
        };
        let custom = self.text("profile") == Some("custom");
        let round_fits = match round {
            None => meta.kind != Kind::Round,
            Some(round) => {
                meta.kind == Kind::Round
                    && round.status == if pending { "open" } else { "closed" }
                    && round.next_index as usize == round.steps.len()
            }
        };
        let claims = [
            (
                recorded == self.has("result"),
                "meta.status does not fit the record: a result is there when, and only when, it is recorded.",
            ),
            (
                recorded == self.has("cursor"),
                "meta.status does not fit the record: a cursor is there when, and only when, it is recorded.",
            ),
            (recorded || !self.is_signed(), "A record without a result is signed."),
            (void == meta.void_reason.is_some(), "A reason of a void is there when, and only when, the bet is void."),
            (void == meta.voided_at.is_some(), "The time of a void is there when, and only when, the bet is void."),
            (!(void || pending) || meta.kind != Kind::Played, "A bet that is played at once is never void or pending."),
            (custom == (meta.kind == Kind::Reservation), "meta.kind does not fit the record's profile."),
            (
                (meta.kind == Kind::Reservation) == meta.expires_at.is_some(),
                "Only a reservation has a time at which it expires.",
            ),
            (
                meta.recorded_at.is_some() == (recorded && meta.kind != Kind::Played),
                "meta.recordedAt is there when, and only when, the bet was pending before it was recorded.",
            ),
            (outcome_fits, "meta.roundOutcome does not fit the bet."),
            (round_fits, "round does not fit the bet."),
            (recorded || meta.settlement.is_none(), "A bet without a result is settled."),
            (!pending || self.bundle.seed.status == "live", "The seed ended with the bet pending."),
            (
                self.end_fits_seed(),
                "The bet has an end that only comes with another end of its seed, or to another kind of bet.",
            ),
        ];
        Check::unless("State", fault(&claims), "Kind, state, result, void and round of the bet fit one another.")
    }

    fn reveal(&self) -> Check {
        let name = "Reveal";
        let seed = &self.bundle.seed;
        let live = seed.status == "live";
        let (due, revealed) = (self.is_reveal_due(), self.is_revealed());
        let claims = [
            (live || seed.status == "revealed", "A seed with bets is live or revealed."),
            (live != (revealed || due), "The server seed is there when, and only when, its seed is revealed."),
            (
                revealed == seed.revealed_at.is_some(),
                "The time of the reveal is there when, and only when, the seed is revealed.",
            ),
            (live != seed.retired_at.is_some(), "The time of its end is there when, and only when, the seed ended."),
            (
                seed.retired_by.as_deref().map_or(live, |by| {
                    let means = ["rotation", "client_seed", "closing", "idle", "replaced", "expiry", "recovery"];
                    !live && means.contains(&by)
                }),
                "What ended the seed is there when, and only when, it ended, and is one of the known means.",
            ),
        ];
        match fault(&claims) {
            None if due => Check::new(
                name,
                State::NotProvable,
                "The seed ended and its reveal was about to be stored, within moments or once the service is back: ask for the bundle again.",
            ),
            fault => Check::unless(name, fault, "The server seed is revealed if the seed ended, and only then."),
        }
    }

    /// Orders that hold whatever a clock does.
    fn times(&self) -> Check {
        let Bundle { meta, seed, .. } = self.bundle;
        let first_bet = seed.first_bet_at;
        // Of the seed before there is nothing that it could have been committed during.
        let fresh = ["generated", "application"].contains(&seed.client_seed_source.as_str());
        let claims = [
            (seed.committed_at <= seed.live_at, "The seed went live before it was committed."),
            (seed.committed_at < meta.taken_at, "The bet was taken before the seed was committed."),
            (seed.live_at <= meta.taken_at, "The bet was taken before the seed was live."),
            (first_bet.is_some(), "The time of the earliest bet is not there."),
            (
                first_bet.is_none_or(|first| first <= meta.taken_at),
                "The bet was taken before the earliest of its seed.",
            ),
            (
                first_bet.is_none_or(|first| first > seed.committed_at && first >= seed.live_at),
                "The earliest bet was taken before the seed was live.",
            ),
            (
                !fresh || seed.committed_at == seed.live_at,
                "The first seed of a session or after a recovery, or an application's, is committed as it goes live.",
            ),
            (
                seed.retired_at.is_none_or(|retired| retired > meta.taken_at),
                "The bet was not taken before its seed ended.",
            ),
            (
                seed.revealed_at.is_none_or(|revealed| revealed > meta.taken_at),
                "The bet was not taken before its seed was revealed: whoever took it could know the result.",
            ),
            (
                seed.revealed_at.zip(seed.retired_at).is_none_or(|(revealed, retired)| revealed >= retired),
                "The seed was revealed before it ended.",
            ),
            (
                meta.expires_at.is_none_or(|expires| expires > meta.taken_at),
                "The reservation expired before it was made.",
            ),
        ];
        Check::unless("Times", fault(&claims), "Committed, then live, then bet on, by the operator's clock.")
    }

    /// Orders that only a clock that was set back can disturb.
    fn order(&self) -> Check {
        let Bundle { meta, seed, next_seed, signing_key, as_of, read_at, coverage, round, .. } = self.bundle;
        let ended_at = meta.recorded_at.or(meta.voided_at);
        let steps = round.iter().flat_map(|round| round.steps.iter().map(|step| Some(step.at)));
        let settled_at = meta.settlement.as_ref().map(|settlement| settlement.settled_at);
        // Each is a row of times that follow one another, with gaps where there is none.
        let played: Vec<_> =
            [Some(seed.live_at), Some(meta.taken_at)].into_iter().chain(steps).chain([ended_at]).collect();
        let ended = vec![Some(meta.taken_at), ended_at, seed.retired_at, seed.revealed_at];
        let settled = vec![ended_at.or(Some(meta.taken_at)), settled_at, Some(*read_at)];
        let next_at = next_seed.as_ref().map(|next| next.committed_at);
        // An application commits to its next seed whenever it likes.
        let next = if self.is_of_application() { vec![] } else { vec![Some(seed.live_at), next_at, seed.retired_at] };
        let client = vec![Some(seed.client_seed_at), Some(seed.live_at)];
        let key = vec![signing_key.as_ref().map(|key| key.from), ended_at.or(Some(meta.taken_at)), Some(*read_at)];
        let key_life = vec![signing_key.as_ref().map(|key| key.from), signing_key.as_ref().and_then(|key| key.until)];
        let read = vec![seed.revealed_at.or(ended_at).or(Some(meta.taken_at)), Some(*read_at)];
        let complete = vec![Some(*as_of), Some(*read_at)];
        // The service stores a result only before the time, by the same clock.
        let expiry = vec![meta.recorded_at, meta.expires_at];
        let rows = [
            (played, "bet, steps and end of the bet"),
            (expiry, "the result and the reservation's expiry"),
            (ended, "bet, its end, end and reveal of the seed"),
            (settled, "the bet's end and its settlement"),
            (next, "the next seed's commitment, while this one is in use"),
            (client, "client seed and its use"),
            (key, "the signing key's first use and the record"),
            (key_life, "the signing key's first and last use"),
            (read, "the reading of all this"),
            (complete, "asOf and readAt"),
        ];
        let disturbed = rows.iter().find(|(times, _)| {
            let times: Vec<Timestamp> = times.iter().copied().flatten().collect();
            times.windows(2).any(|pair| pair[0] > pair[1])
        });
        let noted_inside = coverage.checks.iter().find(|check| check.name == "Order" && check.state == State::Noted);
        match (disturbed, noted_inside) {
            (Some((_, what)), _) => Check::new(
                "Order",
                State::Noted,
                format!(
                    "Not in the order of their times: {what}. A clock that was set back, or another server's after a failover, explains \
                     it; ask the operator for that."
                ),
            ),
            (None, Some(check)) => Check::new("Order", State::Noted, check.detail.clone()),
            (None, None) => Check::new("Order", State::Matches, "All times follow one another as they must."),
        }
    }

    fn client_seed(&self) -> Check {
        let name = "Client seed";
        let seed = &self.bundle.seed;
        let times = ClientSeedTimes {
            seed_no: seed.seed_no,
            epoch: seed.epoch,
            committed_at: seed.committed_at.0,
            live_at: seed.live_at.0,
            set_at: seed.client_seed_at.0,
        };
        let (state, detail) = match times.of(&seed.client_seed_source) {
            Some(ClientSeedOf::Player) => {
                (State::Matches, "The player chose it after the server seed was committed, by the operator's clock.")
            }
            Some(ClientSeedOf::Kept) => (
                State::Noted,
                "It was kept from the seed before: the operator could know it as it made the server seed.",
            ),
            Some(ClientSeedOf::Operator) => {
                (State::Noted, "It is not the player's: whoever made the server seed could know it.")
            }
            None => (State::Mismatch, "Its source does not fit its time, or the seed's number in the session."),
        };
        Check::new(name, state, detail)
    }

    fn coverage(&self) -> Check {
        let Bundle { coverage, meta, seed, .. } = self.bundle;
        let listed = coverage
            .missing
            .iter()
            .try_fold(0_u64, |sum, range| sum.checked_add(range.to.checked_sub(range.from)?.checked_add(1)?));
        let in_order = coverage.missing.windows(2).all(|pair| pair[0].to < pair[1].from)
            && coverage.missing.last().is_none_or(|range| range.to < coverage.handed_out);
        let all_listed = coverage.missing.len() < RANGES_MAX as usize;
        let sum = [coverage.recorded, coverage.void, coverage.pending, coverage.missing_total]
            .into_iter()
            .try_fold(0_u64, u64::checked_add);
        let own = match meta.status {
            BetStatus::Recorded => coverage.recorded,
            BetStatus::Void => coverage.void,
            BetStatus::Pending => coverage.pending,
        };
        let itself_missing = coverage.missing.iter().any(|range| (range.from..=range.to).contains(&self.nonce));
        let claims = [
            (
                listed.is_some_and(|listed| {
                    listed == coverage.missing_total || (!all_listed && listed < coverage.missing_total)
                }),
                "The ranges of missing nonces do not make up their number.",
            ),
            (in_order, "The ranges of missing nonces are out of order or beyond the counter."),
            (sum == Some(coverage.handed_out), "Recorded, void, pending and missing nonces are not those handed out."),
            (own > 0 && !itself_missing, "The bet itself is not counted."),
            (coverage.pending == 0 || seed.status == "live", "The seed ended with bets pending."),
            (self.coverage_checks_fit(), "Its checks are not those of the format, or do not fit the seed."),
        ];
        let failed = coverage.checks.iter().find(|check| check.state == State::Mismatch);
        let failed =
            failed.map(|check| format!("The operator's own count fails its check {}: {}", check.name, check.detail));
        Check::unless(
            "Coverage",
            failed.or_else(|| fault(&claims)),
            "The counts of the seed's nonces add up, and none of its checks fails.",
        )
    }

    fn coverage_checks_fit(&self) -> bool {
        let checks = &self.bundle.coverage.checks;
        checks.len() == crate::history::coverage::CHECKS.len()
            && checks.iter().zip(crate::history::coverage::CHECKS).all(|(check, name)| {
                let state = match name {
                    "Commitment" if !self.is_revealed() => State::NotProvable,
                    "Reveal" if self.is_reveal_due() => State::NotProvable,
                    "Order" | "Steps" if check.state == State::Noted => State::Noted,
                    _ => State::Matches,
                };
                check.name == name && (check.state == state || check.state == State::Mismatch)
            })
    }

    /// The steps count from 0, each showed what was asked for, and they lead to the end.
    fn steps(&self) -> Check {
        let name = "Steps";
        let Some(round) = &self.bundle.round else {
            return Check::new(name, State::Matches, "The bet is no round, and has no steps.");
        };
        let in_order = round.steps.iter().zip(0..).all(|(step, index)| step.index == index);
        let meta = &self.bundle.meta;
        let end = match (meta.status, &meta.round_outcome) {
            (BetStatus::Void, _) => End::Void { by_recovery: self.is_void_by_recovery() },
            (BetStatus::Recorded, Some(outcome)) => End::Recorded(outcome),
            // A result without the round's outcome is a fault of its own.
            (BetStatus::Recorded, None) | (BetStatus::Pending, _) => End::Open,
        };
        if !in_order {
            return Check::new(name, State::Mismatch, "The steps do not count from 0 without gaps.");
        }
        match rounds::doubt(&self.inspection.kind, end, &round.steps) {
            Some(Doubt::Impossible(words)) => Check::new(name, State::Mismatch, words),
            Some(Doubt::Odd(words)) => Check::new(name, State::Noted, words),
            None => Check::new(
                name,
                State::Matches,
                "The steps count from 0 without gaps, each disclosed what was asked for, and nothing shows that some are missing.",
            ),
        }
    }

    /// What was shown is part of the result.
    fn disclosed(&self) -> Check {
        let name = "Disclosed";
        let shown =
            self.bundle.round.iter().flat_map(|round| round.steps.iter().filter_map(|step| step.disclosed.as_ref()));
        let shown: Vec<&Value> = shown.collect();
        if shown.is_empty() {
            return Check::new(name, State::Matches, "Nothing of the result was disclosed before its end.");
        }
        let Some(result) = self.result().and_then(Value::as_array) else {
            return Check::new(name, State::NotProvable, "The result is not known yet.");
        };
        Check::unless(
            name,
            (!rounds::is_of_result(shown, result)).then(|| NOT_OF_RESULT.to_owned()),
            "What was disclosed before the end is part of the result.",
        )
    }

    fn money(&self) -> Check {
        let meta = &self.bundle.meta;
        let payout = meta.settlement.as_ref().map(|settlement| &settlement.payout);
        let claims = [
            (meta.stake.as_deref().is_none_or(|stake| Money::parse(stake).is_ok()), "The stake is no decimal number."),
            (payout.is_none_or(|payout| Money::parse(payout).is_ok()), "The payout is no decimal number."),
        ];
        Check::unless("Money", fault(&claims), "Amounts, where there are any, are exact decimal numbers.")
    }

    fn statements(&self) -> Check {
        Check::unless(
            "Statements",
            (self.bundle.statements != statements())
                .then(|| "The statements are not the words of the format.".to_owned()),
            "The statements are the words of the format.",
        )
    }
}
