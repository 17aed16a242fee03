//! What looking through the history answers. Field names are the wire's.

use serde::Serialize;
use utoipa::ToSchema;

use crate::seeds::model::BetAnswer;
use crate::seeds::values::Timestamp;

/// A page of bets.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecordPage {
    /// The bets. May be fewer than asked for, even none, while `nextAfter` is there: only so many are looked at for one page.
    pub records: Vec<BetAnswer>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_after: Option<String>,
    /// Every bet taken before this time is in its place on these pages, and none taken later. The same for all pages of a query.
    pub as_of: Timestamp,
    /// How long ago that is, in milliseconds, by the clock of the database that was read.
    pub behind_ms: u64,
}

/// One bet.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecordFound {
    /// The bet.
    #[serde(flatten)]
    pub bet: BetAnswer,
    /// The database that was read has every bet taken before this time.
    pub as_of: Timestamp,
    /// How long ago that is, in milliseconds, by the clock of the database that was read.
    pub behind_ms: u64,
}
