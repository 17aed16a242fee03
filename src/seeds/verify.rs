//! Whether a stored bet is what its revealed seed gives.
//!
//! Proves, bet by bet, what the ledger is for; it needs no key, only what was revealed (I6, I11).

use serde_json::Value;

use super::answer::record_of;
use crate::db::bets::BetKind;
use crate::db::details::{BetDetails, BetState};
use crate::gfs::inspect::{self, State};

/// What checking a stored bet came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The result is the calculated one; commitment, cursor and, where there is one, signature fit.
    Verified,
    /// An outside game's: commitment, cursor and signature fit, and the result is its operator's to explain.
    Custom,
    /// The seed is not revealed yet, or the result not there yet. A signature that is there fits.
    NotRevealed,
    /// It ended without a result.
    Void,
    /// Something does not fit.
    Mismatch {
        /// Which check failed: `Outcome` before any other.
        check: String,
        /// What was found, such as the first place where the results differ.
        detail: String,
    },
}

/// Checks one bet against its revealed seed.
pub fn verify_bet(bet: &BetDetails) -> Verdict {
    match bet.state {
        BetState::Pending => return Verdict::NotRevealed,
        BetState::Void { .. } => return Verdict::Void,
        BetState::Recorded(_) => {}
    }
    let record = Value::Object(record_of(bet).to_json());
    let inspection = match inspect::inspect_value(&record, bet.server_seed.as_ref()) {
        Ok(inspection) => inspection,
        Err(error) => return Verdict::Mismatch { check: "Form".to_owned(), detail: error.to_string() },
    };
    // A forged result breaks its signature too: what a dispute is about is the result.
    let failed = inspection.checks.iter().filter(|check| check.state == State::Mismatch);
    if let Some(check) = failed.min_by_key(|check| check.name != "Outcome") {
        let detail = match &inspection.difference {
            Some(difference) if check.name == "Outcome" => difference.clone(),
            _ => check.detail.clone(),
        };
        return Verdict::Mismatch { check: check.name.to_owned(), detail };
    }
    if bet.server_seed.is_none() {
        Verdict::NotRevealed
    } else if bet.kind == BetKind::Reservation {
        Verdict::Custom
    } else if inspection.status == inspect::Status::Matches {
        Verdict::Verified
    } else {
        // Nothing of a bet that we played may be left unchecked.
        let open = inspection.checks.iter().find(|check| check.state == State::Unsupported);
        let check = open.map_or("Outcome", |check| check.name);
        Verdict::Mismatch { check: check.to_owned(), detail: "The record lacks what the check needs.".to_owned() }
    }
}
