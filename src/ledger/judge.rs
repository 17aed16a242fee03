//! The rule that says what a token that could not be inserted came to, shared by every implementation of the ledger.
//!
//! Keeps I1 and I2. The order of precedence: a swept key remembers nothing; a spend that stands under the same id is a retry, also
//! after the window; the key's state comes before `already_spent`.

use super::error::LedgerError;
use super::model::Outcome;
use super::values::SpendId;
use crate::db::keys::KeyState;
use crate::db::spends::Standing;

/// What a token came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It stands under the caller's spend id.
    Stands,
    /// It cannot be spent.
    Refused(Refusal),
    /// Nothing stands in its way.
    Free,
}

/// Why a token cannot be spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    UnknownKey,
    KeyExpired,
    KeyNotYetValid,
    AlreadySpent,
}

impl From<Refusal> for Outcome {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::UnknownKey => Self::UnknownKey,
            Refusal::KeyExpired => Self::KeyExpired,
            Refusal::KeyNotYetValid => Self::KeyNotYetValid,
            Refusal::AlreadySpent => Self::AlreadySpent,
        }
    }
}

impl From<Refusal> for LedgerError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::UnknownKey => Self::UnknownKey,
            Refusal::KeyExpired => Self::KeyExpired,
            Refusal::KeyNotYetValid => Self::KeyNotYetValid,
            Refusal::AlreadySpent => Self::AlreadySpent,
        }
    }
}

pub(super) fn judge(standing: &Standing, spend_id: SpendId) -> Verdict {
    let Some(key) = standing.key else {
        return Verdict::Refused(Refusal::UnknownKey);
    };
    if key.state == KeyState::Swept {
        return Verdict::Refused(Refusal::KeyExpired);
    }
    if standing.spend_id == Some(spend_id.as_uuid()) {
        return Verdict::Stands;
    }
    if key.state == KeyState::Closed || key.late {
        return Verdict::Refused(Refusal::KeyExpired);
    }
    if key.early {
        return Verdict::Refused(Refusal::KeyNotYetValid);
    }
    match standing.spend_id {
        Some(_) => Verdict::Refused(Refusal::AlreadySpent),
        None => Verdict::Free,
    }
}

/// The same for a batch, with whether it is a retry. What is free counts as not spent until it is.
pub(super) fn outcome(standing: &Standing, spend_id: SpendId) -> (Outcome, bool) {
    match judge(standing, spend_id) {
        Verdict::Stands => (Outcome::Fresh, true),
        Verdict::Refused(refusal) => (refusal.into(), false),
        Verdict::Free => (Outcome::NotSpent, false),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::db::spends::KeyStanding;

    #[test]
    fn precedence_of_outcomes() {
        let ours = SpendId::random();
        let none = None;
        let same = Some(ours.as_uuid());
        let other = Some(Uuid::new_v4());
        let (before, within, after) = ((true, false), (false, false), (false, true));
        let (open, closed, swept) = (KeyState::Open, KeyState::Closed, KeyState::Swept);
        let expired = Verdict::Refused(Refusal::KeyExpired);
        let early = Verdict::Refused(Refusal::KeyNotYetValid);
        let spent = Verdict::Refused(Refusal::AlreadySpent);
        let expected = [
            (open, before, none, early),
            (open, before, same, Verdict::Stands),
            (open, before, other, early),
            (open, within, none, Verdict::Free),
            (open, within, same, Verdict::Stands),
            (open, within, other, spent),
            (open, after, none, expired),
            (open, after, same, Verdict::Stands),
            (open, after, other, expired),
            (closed, before, none, expired),
            (closed, within, none, expired),
            (closed, within, same, Verdict::Stands),
            (closed, within, other, expired),
            (closed, after, same, Verdict::Stands),
            (swept, within, same, expired),
            (swept, after, none, expired),
            (swept, after, same, expired),
            (swept, after, other, expired),
        ];
        for (state, (early, late), spend_id, verdict) in expected {
            let standing = Standing { key: Some(KeyStanding { state, early, late }), spend_id, inserted_here: false };
            assert_eq!(judge(&standing, ours), verdict, "{state:?} early {early} late {late} {:?}", spend_id == same);
        }
        let nowhere = Standing { key: None, spend_id: None, inserted_here: false };
        assert_eq!(judge(&nowhere, ours), Verdict::Refused(Refusal::UnknownKey));
    }
}
