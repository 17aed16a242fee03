//! What of the history is asked for.

use chrono::{DateTime, Datelike as _, SubsecRound as _, TimeDelta, Utc};
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use super::HistoryError;
use crate::db::history::WantedState;
use crate::gfs::json;
use crate::gfs::seed::Commitment;
use crate::seeds::model::BetStatus;
use crate::seeds::values::{BetRef, GameName, PlayerRef, Timestamp};

/// Filters of a query or an export: bets that fit all of them. Times are whole microseconds.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Filters {
    /// Of a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<Uuid>,
    /// Of a player's sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub player_ref: Option<PlayerRef>,
    /// Under a seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commitment: Option<Commitment>,
    /// With a nonce under that seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nonce: Option<u64>,
    /// Of this reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bet_ref: Option<BetRef>,
    /// Of a game.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub game: Option<GameName>,
    /// In this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<BetStatus>,
    /// Taken at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// Taken before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
}

/// In which order bets come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// By the time they were taken, then by place.
    Time,
    /// By session, seed and nonce.
    Place,
}

impl Filters {
    /// Checks the filters against one another.
    ///
    /// # Errors
    /// A nonce without its commitment, or a period that ends before it begins.
    pub fn checked(mut self) -> Result<Self, HistoryError> {
        if self.nonce.is_some() && self.commitment.is_none() {
            return Err(HistoryError::invalid("nonce", "is only taken with a commitment"));
        }
        for (field, time) in [("from", self.from), ("to", self.to)] {
            if time.is_some_and(|Timestamp(time)| !(0..10_000).contains(&time.year())) {
                return Err(HistoryError::invalid(field, "must be in the years 0 to 9999 of UTC"));
            }
        }
        let whole = |time: Option<Timestamp>| time.map(|Timestamp(time)| Timestamp(whole_microsecond(time)));
        (self.from, self.to) = (whole(self.from), whole(self.to));
        if let (Some(from), Some(to)) = (self.from, self.to)
            && from > to
        {
            return Err(HistoryError::invalid("to", "must not be earlier than from"));
        }
        Ok(self)
    }

    /// The order of what fits them.
    #[must_use]
    pub fn order(&self) -> Order {
        let placed = self.session_id.is_some()
            || self.player_ref.is_some()
            || self.commitment.is_some()
            || self.bet_ref.is_some();
        if placed { Order::Place } else { Order::Time }
    }

    /// Whether everything fits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.to_json().as_object().is_none_or(serde_json::Map::is_empty)
    }

    /// The filters that there are, by name.
    pub(super) fn to_json(&self) -> Value {
        // Only texts and numbers: it can always be written.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// One text for the same filters.
    pub(super) fn canonical(&self) -> String {
        json::canonical(&self.to_json())
    }

    pub(super) fn wanted_state(&self) -> Option<WantedState> {
        self.status.map(|status| match status {
            BetStatus::Recorded => WantedState::Recorded,
            BetStatus::Pending => WantedState::Pending,
            BetStatus::Void => WantedState::Void,
        })
    }

    /// Before everything that any clock of a database said.
    pub(super) fn earliest(&self) -> DateTime<Utc> {
        self.from.map_or(DateTime::UNIX_EPOCH, |Timestamp(from)| from)
    }
}

/// The first whole microsecond that is not before a time: bets are taken at whole ones, and those from it on are those from the time on.
#[must_use]
pub fn whole_microsecond(time: DateTime<Utc>) -> DateTime<Utc> {
    let begun = time.trunc_subsecs(6);
    let next = begun.checked_add_signed(TimeDelta::microseconds(1)).filter(|next| next.year() < 10_000);
    if begun < time { next.unwrap_or(begun) } else { begun }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_within_a_microsecond_begins_with_the_next() {
        for (given, whole) in [
            ("2026-01-01T00:00:00.000001Z", "2026-01-01T00:00:00.000001Z"),
            ("2026-01-01T00:00:00.000001001Z", "2026-01-01T00:00:00.000002Z"),
            ("2026-01-01T00:00:00.999999999Z", "2026-01-01T00:00:01Z"),
            ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999Z"),
        ] {
            let time = |text: &str| Some(Timestamp(text.parse().unwrap()));
            let filters = Filters { from: time(given), to: time(given), ..Filters::default() }.checked().unwrap();
            assert_eq!((filters.from, filters.to), (time(whole), time(whole)), "{given}");
        }
    }
}
