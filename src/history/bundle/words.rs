//! What no check of a bundle can tell: the operator's word, field by field, so that silence never means "checked". A field that may be
//! there or not is listed where it is not, too: nothing would miss it.

use serde::Serialize;

use super::offline::Facts;
use super::{Bundle, Kind};
use crate::seeds::model::BetStatus;

/// A field that is the operator's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Word {
    /// Its path in the bundle; `[]` stands for every place of a list. What is below it is meant too.
    pub field: &'static str,
    /// Why.
    pub why: &'static str,
}

const WORD: &str = "The operator's word.";
const TWICE: &str = "The operator's word, although it stands in two places.";
const CLOCK: &str = "The operator's clock: only its order among the other times is checked.";
const BOUND: &str = "Not part of the signed record: stored with the nonce, by the operator's word.";
const SHOWN: &str = "Compare with the signed receipt that the player kept.";
const COUNTED: &str = "Counted by the operator: only the sums are checked.";
const ABSENT: &str = "Not there: that there is none is the operator's word.";

fn those_that_are<const N: usize>(
    there: [(&'static str, bool, &'static str); N],
) -> impl Iterator<Item = (&'static str, &'static str)> {
    there.into_iter().filter(|(_, there, _)| *there).map(|(field, _, why)| (field, why))
}

impl Facts<'_> {
    /// Every field that is not proven, but for those that are by a receipt.
    pub(super) fn words(&self, proven: &[&str]) -> Vec<Word> {
        let mut words = self.words_of_bet();
        words.extend(self.words_of_round());
        words.extend(self.words_of_seed());
        words.extend(self.words_of_record());
        words.retain(|(field, _)| !proven.contains(field));
        words.into_iter().map(|(field, why)| Word { field, why }).collect()
    }

    fn words_of_bet(&self) -> Vec<(&'static str, &'static str)> {
        let meta = &self.bundle.meta;
        let recorded = meta.status == BetStatus::Recorded;
        let mut words = vec![
            ("asOf", WORD),
            ("readAt", CLOCK),
            ("software", WORD),
            ("meta.sessionId", SHOWN),
            ("meta.betRef", BOUND),
        ];
        if meta.kind != Kind::Reservation {
            words.push((
                "meta.kind",
                "Not part of the signed record: whether there was a round, with steps, is the operator's word.",
            ));
        }
        if !(recorded && self.is_signed()) {
            words.push(("meta.status", "No signature says that the bet ended so, or did not end."));
        }
        for (field, there) in [
            ("meta.selection", meta.selection.is_some()),
            ("meta.stake", meta.stake.is_some()),
            ("meta.currency", meta.currency.is_some()),
            ("meta.context", meta.context.is_some()),
        ] {
            words.push((field, if there { BOUND } else { ABSENT }));
        }
        words.push((
            "meta.takenAt",
            "The record has it in whole milliseconds: what is below them is the operator's word.",
        ));
        let there = [
            ("meta.expiresAt", meta.expires_at.is_some(), CLOCK),
            ("meta.recordedAt", meta.recorded_at.is_some(), CLOCK),
            ("meta.voidedAt", meta.voided_at.is_some(), CLOCK),
            ("meta.voidReason", meta.void_reason.is_some(), WORD),
            ("meta.roundOutcome", meta.round_outcome.is_some(), WORD),
            ("meta.settlement", meta.settlement.is_some(), "What the operator says it paid and showed."),
            ("meta.settlement", meta.settlement.is_none() && recorded, ABSENT),
        ];
        words.extend(those_that_are(there));
        words
    }

    fn words_of_round(&self) -> Vec<(&'static str, &'static str)> {
        let Some(round) = &self.bundle.round else { return Vec::new() };
        let mut words = Vec::new();
        words.push(("round.nextIndex", "Nothing signed counts the steps: the last ones may have been left out."));
        if !round.steps.is_empty() {
            words.extend([("round.steps[].step", "The engine's own description."), ("round.steps[].at", CLOCK)]);
            let asked = "Steps are not signed: that just this was asked for, or nothing, is the operator's word.";
            let shown =
                "Steps are not signed. It fits what was asked for and the result, but other steps could fit too.";
            let known = self.result().is_some();
            words.push(("round.steps[].disclose", asked));
            words.push(("round.steps[].disclosed", if known { shown } else { "The result is not known yet." }));
        }
        words
    }

    fn words_of_seed(&self) -> Vec<(&'static str, &'static str)> {
        let Bundle { seed, next_seed, signing_key, .. } = self.bundle;
        let mut words = vec![
            ("seed.seedNo", TWICE),
            ("seed.epoch", TWICE),
            ("seed.committedAt", SHOWN),
            ("seed.clientSeedSource", WORD),
            ("seed.clientSeedAt", CLOCK),
            ("seed.firstBetAt", CLOCK),
            ("seed.liveAt", CLOCK),
            ("seed.bets", COUNTED),
        ];
        let there = [
            (
                "serverSeed",
                !self.is_revealed(),
                "Not there: that the seed was not revealed yet is the operator's word.",
            ),
            ("seed.retiredAt", seed.retired_at.is_some(), CLOCK),
            ("seed.retiredBy", seed.retired_by.is_some(), TWICE),
            ("seed.revealedAt", seed.revealed_at.is_some(), CLOCK),
            ("nextSeed", next_seed.is_none(), ABSENT),
            ("nextSeed.commitment", next_seed.is_some(), SHOWN),
            ("nextSeed.committedAt", next_seed.is_some(), CLOCK),
            ("coverage", true, COUNTED),
            ("signingKey.from", signing_key.is_some(), CLOCK),
            ("signingKey.until", signing_key.as_ref().is_some_and(|key| key.until.is_some()), CLOCK),
            ("signingKey.until", signing_key.as_ref().is_some_and(|key| key.until.is_none()), ABSENT),
            ("recoveries", true, "The operator's word, and that there were no others."),
        ];
        words.extend(those_that_are(there));
        words
    }

    fn words_of_record(&self) -> Vec<(&'static str, &'static str)> {
        let outside = self.bundle.meta.kind == Kind::Reservation;
        if self.is_signed() {
            let result =
                ("record.result", "Signed; whether it follows from the floats is for the outside game's rules to say.");
            return outside.then_some(result).into_iter().collect();
        }
        let mut words = vec![("record.at", "The record is not signed.")];
        if !self.is_revealed() {
            words.push(("record", "Neither signed nor revealed."));
        } else if outside {
            words.push(("record", "Not signed, and an outside game's: only its commitment and cursor are checked."));
        } else if !self.has("result") {
            words.push(("record", "Not signed, and without a result that could be recalculated."));
        } else {
            // Wheels of nine and of ten segments stop at the same one often enough.
            let other = "Not signed: another may come to the same result.";
            words.extend([("record.params", other), ("record.nonce", other)]);
        }
        words
    }
}
