//! What the services answer: views of sessions and seeds, bet answers, rounds. Field names are the wire's.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::values::Timestamp;
use crate::gfs::seed::{ClientSeed, Commitment, ServerSeed};

/// A server seed that anyone may see: it was revealed. The only form in which an answer holds one (I6).
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct RevealedSeed(String);

impl RevealedSeed {
    /// From a seed that the database holds as revealed, or that is revealed in this transaction.
    pub(super) fn new(seed: &ServerSeed) -> Self {
        Self(seed.expose().to_owned())
    }

    /// The 64 characters.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whoever reads one from an answer or a bundle was shown it.
impl<'de> Deserialize<'de> for RevealedSeed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        ServerSeed::parse(&text).map_err(serde::de::Error::custom)?;
        Ok(Self(text))
    }
}

// A revealed seed is no secret, but the answer that holds it may be logged before it is committed.
impl std::fmt::Debug for RevealedSeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RevealedSeed(..)")
    }
}

/// A session as its engine and player see it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// Its id.
    pub session_id: Uuid,
    /// `open` or `closed`.
    pub status: SessionStatus,
    /// Commitment of the live seed, or of the last one when closed.
    pub commitment: Commitment,
    /// Commitment of the seed that comes next; null when closed.
    pub next_commitment: Option<Commitment>,
    /// The client seed in use.
    pub client_seed: ClientSeed,
    /// Nonce of the next bet.
    pub nonce: u64,
    /// Bets under the live seed.
    pub bets: u64,
    /// Bets that are pending under it.
    pub pending: Vec<PendingView>,
    /// When the live seed was committed.
    pub committed_at: Timestamp,
    /// When the session was created.
    pub created_at: Timestamp,
    /// The operator's name for the player.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub player_ref: Option<String>,
    /// A signed receipt for the commitments, when a signing key is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
}

/// Whether a session takes bets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SessionStatus {
    /// It does.
    Open,
    /// It never will again.
    Closed,
}

/// A pending bet in a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingView {
    /// The seed's commitment.
    pub commitment: Commitment,
    /// Its nonce.
    pub nonce: u64,
    /// The caller's name for it.
    pub bet_ref: String,
    /// `round` or `reservation`.
    pub kind: &'static str,
}

/// Ed25519 over `payload`: the canonical JSON of the view's sessionId, commitment, nextCommitment and committedAt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Receipt {
    /// The signed text.
    pub payload: String,
    /// 128 hex characters.
    pub signature: String,
    /// The public key, 64 hex characters.
    pub signer: String,
}

/// A session's view after a change, with whether the change had been made before.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionCreated {
    /// The session.
    #[serde(flatten)]
    pub view: View,
    /// The same request was answered before.
    pub replayed: bool,
}

/// A page of a player's sessions.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionPage {
    /// The sessions, by id.
    pub sessions: Vec<View>,
    /// Where the next page begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_after: Option<Uuid>,
}

/// One seed of a session.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeedView {
    /// Its commitment.
    pub commitment: Commitment,
    /// `next`, `live`, `revealed` or `discarded`.
    pub status: &'static str,
    /// When it was committed.
    pub committed_at: Timestamp,
    /// When it came into use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_at: Option<Timestamp>,
    /// The client seed it is or was used with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_seed: Option<ClientSeed>,
    /// `generated`, `player`, `kept` or `application`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_seed_source: Option<&'static str>,
    /// When that client seed was first set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_seed_at: Option<Timestamp>,
    /// Bets taken under it.
    pub bets: u64,
    /// How many of them ended without a result.
    pub voids: u64,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retired_at: Option<Timestamp>,
    /// What ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retired_by: Option<&'static str>,
    /// When it was revealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revealed_at: Option<Timestamp>,
    /// The seed in clear, once revealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_seed: Option<RevealedSeed>,
}

/// Every seed of a session, oldest first, the next included.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeedList {
    /// The seeds.
    pub seeds: Vec<SeedView>,
    /// There are older ones than the 10,000 that are listed at the most: the coverage of the session has all of them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub older_omitted: bool,
}

/// What anybody may know of a commitment.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommitmentView {
    /// The commitment.
    pub commitment: Commitment,
    /// `next`, `live`, `revealed` or `discarded`.
    pub status: &'static str,
    /// When it was committed.
    pub committed_at: Timestamp,
    /// When it came into use.
    pub live_at: Option<Timestamp>,
    /// When its first bet was taken.
    pub first_bet_at: Option<Timestamp>,
    /// When it was revealed.
    pub revealed_at: Option<Timestamp>,
    /// Bets taken under it.
    pub bets: u64,
    /// The seed in clear, once revealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_seed: Option<RevealedSeed>,
}

/// A seed that was just revealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Revealed {
    /// The seed in clear.
    pub server_seed: RevealedSeed,
    /// Its commitment.
    pub commitment: Commitment,
    /// Bets taken under it.
    pub bets: u64,
}

/// The answer to a rotation, a change of client seed or a closing.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SeedEnded {
    /// The old seed, when it had bets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revealed: Option<Revealed>,
    /// The session afterwards.
    pub session: View,
    /// The same request was answered before.
    pub replayed: bool,
}

/// A bet: its evidence, and what stands beside it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BetAnswer {
    /// Exactly the GFS record, so that its hash and signature never change.
    #[schema(value_type = crate::gfs::record::Record)]
    pub record: Map<String, Value>,
    /// The server seed, once revealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_seed: Option<RevealedSeed>,
    /// What is not part of the record.
    pub meta: BetMeta,
    /// The same request was answered before.
    pub replayed: bool,
}

/// What is known of a bet beside its record.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BetMeta {
    /// Its session.
    pub session_id: Uuid,
    /// The caller's name for it.
    pub bet_ref: String,
    /// `recorded`, `pending` or `void`.
    pub status: BetStatus,
    /// The player's choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selection: Option<Value>,
    /// Amount staked, a decimal string.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stake: Option<String>,
    /// Its currency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// Whatever else was bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<Value>,
    /// When the nonce was handed out.
    pub taken_at: Timestamp,
    /// What was paid and shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settlement: Option<SettlementView>,
    /// Why it is void.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub void_reason: Option<String>,
    /// How its round ended: `cashout`, `lost`, `forfeit`, `abandoned` or `void`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_outcome: Option<&'static str>,
}

/// Where a bet is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum BetStatus {
    /// It has its result.
    Recorded,
    /// Its result is concealed or owed.
    Pending,
    /// It ended without one.
    Void,
}

/// What was paid for a bet and what the player was shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SettlementView {
    /// Amount paid, a decimal string.
    pub payout: String,
    /// The engine's word for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// What the player was shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub displayed: Option<Value>,
    /// The rules or pay table applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Value>,
    /// When.
    pub settled_at: Timestamp,
}

/// A page of bets, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BetPage {
    /// The bets.
    pub records: Vec<BetAnswer>,
    /// Where the next page begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_after: Option<String>,
}

/// A nonce handed out to an outside game, with its floats: all that the bet depends on was stored before.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// The session.
    pub session_id: Uuid,
    /// The seed's commitment.
    pub commitment: Commitment,
    /// The seed's client seed.
    pub client_seed: ClientSeed,
    /// The nonce.
    pub nonce: u64,
    /// The floats, in order.
    pub floats: Vec<f64>,
    /// The highest digest index they need.
    pub cursor: u32,
    /// Until when the result may be recorded.
    pub expires_at: Timestamp,
    /// The game.
    pub game: String,
    /// The bet beside its record.
    pub meta: BetMeta,
    /// The same request was answered before.
    pub replayed: bool,
}

/// A round with its bet.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RoundAnswer {
    /// The round.
    pub round: RoundView,
    /// Its bet.
    pub bet: BetAnswer,
    /// The same request was answered before.
    pub replayed: bool,
}

/// A round.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoundView {
    /// `open` or `closed`.
    pub status: &'static str,
    /// `cashout`, `lost`, `forfeit`, `abandoned` or `void`, once closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<&'static str>,
    /// Index of the next step.
    pub next_index: u32,
    /// The steps so far.
    pub steps: Vec<StepView>,
}

/// A step of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StepView {
    /// Its place, from 0.
    pub index: u32,
    /// The engine's own description.
    pub step: Value,
    /// What the engine asked to be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disclose: Option<Value>,
    /// What was shown for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disclosed: Option<Value>,
    /// When it was stored, which is before it was shown.
    pub at: Timestamp,
}
