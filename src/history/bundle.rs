//! A dispute bundle: all that is known of one bet, in one JSON file that can be checked without us.
//!
//! Keeps I6 and I11: it is made of a bet's answer and of revealed seeds, so an unrevealed seed or a pending result has no way in. All of
//! it is read in one snapshot. Its size is bounded by the steps of a round (I12).

mod offline;
mod receipt;
mod words;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

pub use offline::{BundleError, BundleReport, BundleStatus, verify};
pub use words::Word;

use super::coverage::{Recovery, SeedCoverage, recoveries_in, seed_coverage_in};
use super::{History, HistoryError, Looking};
use crate::db::bets::{BetKey, BetKind};
use crate::db::coverage::SeedKey;
use crate::db::details::{BetDetails, BetState};
use crate::db::seeds::SeedRow;
use crate::db::{Access, DbError, Tx, corrupt};
use crate::gfs::json;
use crate::gfs::seed::{ClientSeed, Commitment};
use crate::seeds::model::{BetStatus, RevealedSeed, SettlementView, StepView};
use crate::seeds::values::Timestamp;
use crate::seeds::{bet_answer, round_outcome, step_view};

/// The format of a bundle. Another layout, other fields or other statements are another format.
pub const FORMAT: &str = "fairledger-bundle/1";

/// One bet's evidence. `record`, `serverSeed` and what `meta` shares with a bet's answer are as that answer has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bundle {
    /// `fairledger-bundle/1`.
    pub format: String,
    /// Up to when the database that was read is complete.
    pub as_of: Timestamp,
    /// When it was read, by its own clock.
    pub read_at: Timestamp,
    /// What made the bundle.
    pub software: Software,
    /// The record, exactly as it was signed.
    #[schema(value_type = crate::gfs::record::Record)]
    pub record: Map<String, Value>,
    /// The server seed, once revealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_seed: Option<RevealedSeed>,
    /// What is not part of the record.
    pub meta: BundledMeta,
    /// The round, when the bet was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round: Option<BundledRound>,
    /// The seed's life.
    pub seed: Chronology,
    /// The seed after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_seed: Option<NextSeed>,
    /// What became of every nonce of the seed.
    pub coverage: SeedCoverage,
    /// The key of the record's signature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_key: Option<BundledKey>,
    /// Recoveries after acknowledged state was lost.
    pub recoveries: Vec<Recovery>,
    /// What each part proves and does not prove.
    pub statements: Vec<Statement>,
}

/// A program and its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Software {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// How a bet gets its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// At once.
    Played,
    /// Concealed until its round ends.
    Round,
    /// Owed by an outside game.
    Reservation,
}

/// What was bound with the bet, and what it came to beside its record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BundledMeta {
    /// Its session.
    pub session_id: Uuid,
    /// The engine's name for it.
    pub bet_ref: String,
    /// How it gets its result.
    pub kind: Kind,
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
    /// Whatever else the engine bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<Value>,
    /// When the nonce was handed out and all of this was bound.
    pub taken_at: Timestamp,
    /// Until when an outside game could record its result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When the result of a round or an outside game was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_at: Option<Timestamp>,
    /// When it ended void.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub voided_at: Option<Timestamp>,
    /// Why it is void.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub void_reason: Option<String>,
    /// How its round ended: `cashout`, `lost`, `forfeit`, `abandoned` or `void`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_outcome: Option<String>,
    /// What was paid and shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settlement: Option<SettlementView>,
}

/// A round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BundledRound {
    /// `open` or `closed`.
    pub status: String,
    /// How many steps it has.
    pub next_index: u32,
    /// The steps, in order.
    pub steps: Vec<StepView>,
}

/// The life of a seed that bets were taken under.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Chronology {
    /// Its commitment.
    pub commitment: Commitment,
    /// Its number in the session, from 0.
    pub seed_no: u32,
    /// `live` or `revealed`.
    pub status: String,
    /// The recovery epoch that it was committed in; 0 before any recovery.
    pub epoch: u32,
    /// When its commitment became durable, before anybody was shown it.
    pub committed_at: Timestamp,
    /// When it came into use.
    pub live_at: Timestamp,
    /// The client seed that it is or was used with.
    pub client_seed: ClientSeed,
    /// `generated` here, chosen by the `player`, `kept` from the seed before, or brought by an `application`.
    pub client_seed_source: String,
    /// When that text was first set.
    pub client_seed_at: Timestamp,
    /// When the earliest bet under it was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_bet_at: Option<Timestamp>,
    /// Bets taken under it.
    pub bets: u64,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retired_at: Option<Timestamp>,
    /// What ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retired_by: Option<String>,
    /// When it was revealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revealed_at: Option<Timestamp>,
}

/// The seed that was committed to come after another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NextSeed {
    /// Its commitment.
    pub commitment: Commitment,
    /// Its number in the session.
    pub seed_no: u32,
    /// When its commitment became durable.
    pub committed_at: Timestamp,
}

/// A key that records were signed with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BundledKey {
    /// The Ed25519 public key, 64 hex characters.
    pub signer: String,
    /// When the service first started with it.
    pub from: Timestamp,
    /// When the service started with another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// What a part of the bundle proves, and what it does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Statement {
    /// The part.
    pub part: String,
    /// What it proves.
    pub proves: String,
    /// What it does not prove.
    pub does_not_prove: String,
}

/// Part, what it proves, what it does not. Of the format: other words are another format.
const STATEMENTS: [[&str; 3]; 9] = [
    [
        "record",
        "With a signature: whoever holds the signing key stated this game, these parameters, this client seed, this nonce, this time and this result.",
        "Whose key that is: compare it with one that the operator published elsewhere. When it was signed. Without a signature the record is the operator's word until the seed is revealed.",
    ],
    [
        "serverSeed",
        "It hashes to the commitment, and the result follows from it, the client seed and the nonce. So none of them was changed after the commitment was shown.",
        "That the operator did not know the result in advance: whoever holds the database and the keys that seal it can read a live seed.",
    ],
    [
        "seed",
        "In which order the operator's database says that the seed was committed, came into use, ended and was revealed.",
        "That the commitment was shown when it says: compare with the signed receipt that the player kept.",
    ],
    [
        "seed.clientSeed",
        "Where the source is player: the server seed was committed before the player chose this text, so it was not made to fit.",
        "Where the source is generated, kept or application: whoever made the server seed could know this text beforehand.",
    ],
    [
        "meta",
        "What the operator says was bound, in one transaction with the nonce, before any result was calculated or shown.",
        "That the player chose it: it is not signed. The nonce and the commitment are; the rest is kept where the service may insert and neither change nor delete.",
    ],
    [
        "round",
        "Each step was stored before what it disclosed was shown, and what was disclosed is part of the result, once that is known.",
        "That the engine's own description of a step is right, or when the player saw it.",
    ],
    [
        "meta.settlement and meta.voidReason",
        "What the operator says it paid and showed, and why it says that a bet is void.",
        "That it was paid, that it is right by the rules of the game, or that a void was honest.",
    ],
    [
        "coverage",
        "By the operator's count every nonce that was handed out under the seed is a bet with a result, void or pending, or it is listed as missing.",
        "That it was this database which took the bets. Every nonce up to the last that a player saw must be there: ask for those records too.",
    ],
    [
        "recoveries",
        "That the operator says acknowledged state was lost, and when play went on.",
        "That nothing was lost where none is listed.",
    ],
];

fn statements() -> Vec<Statement> {
    STATEMENTS
        .iter()
        .map(|[part, proves, does_not_prove]| Statement {
            part: (*part).to_owned(),
            proves: (*proves).to_owned(),
            does_not_prove: (*does_not_prove).to_owned(),
        })
        .collect()
}

impl Bundle {
    /// The bundle as canonical JSON.
    ///
    /// # Errors
    /// None that a bundle made here can have: every member has a JSON form.
    pub fn to_canonical(&self) -> Result<String, serde_json::Error> {
        serde_json::to_value(self).map(|value| json::canonical(&value))
    }
}

impl History {
    /// The evidence of one bet.
    ///
    /// # Errors
    /// [`HistoryError::CommitmentNotFound`], [`HistoryError::BetNotFound`]; and the database's.
    pub async fn bundle(&self, commitment: &Commitment, nonce: u64) -> Result<Bundle, HistoryError> {
        let mut looking = self.look("bundle").await?;
        looking.tx.plan_freely().await?;
        let bundle = bundle_in(&mut looking, commitment, nonce).await;
        looking.tx.rollback().await;
        bundle
    }
}

fn missing(what: &'static str) -> DbError {
    corrupt(what, "is not there")
}

async fn bundle_in(looking: &mut Looking, commitment: &Commitment, nonce: u64) -> Result<Bundle, HistoryError> {
    let (as_of, read_at) = (Timestamp(looking.as_of), Timestamp(looking.now));
    let place = looking.tx.find_commitment(commitment).await?;
    let (session_id, seed_no) = place.ok_or(HistoryError::CommitmentNotFound)?;
    let key = BetKey { session_id, seed_no, nonce };
    let bet = looking.tx.bet(&key).await?.ok_or(HistoryError::BetNotFound)?;
    let bet = looking.as_it_was(bet);
    let tx = &mut looking.tx;
    let (recorded_at, voided_at) = tx.end_times(&key).await?;
    let (recorded_at, voided_at) = (recorded_at.map(Timestamp), voided_at.map(Timestamp));
    let seed = tx.seed(session_id, seed_no).await?.ok_or_else(|| missing("seed"))?;
    let seed_key = SeedKey { session_id, seed_no };
    let (coverage, first_bet_at) = seed_coverage_in(tx, seed_key).await?.ok_or_else(|| missing("seed"))?;
    let round = if bet.kind == BetKind::Round { Some(round_in(tx, &bet).await?) } else { None };
    let answer = bet_answer(&bet, false);
    Ok(Bundle {
        format: FORMAT.to_owned(),
        as_of,
        read_at,
        software: Software { name: env!("CARGO_PKG_NAME").to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() },
        record: answer.record,
        server_seed: answer.server_seed,
        meta: BundledMeta {
            session_id,
            bet_ref: answer.meta.bet_ref,
            kind: match bet.kind {
                BetKind::Played => Kind::Played,
                BetKind::Round => Kind::Round,
                BetKind::Reservation => Kind::Reservation,
            },
            status: answer.meta.status,
            selection: answer.meta.selection,
            stake: answer.meta.stake,
            currency: answer.meta.currency,
            context: answer.meta.context,
            taken_at: answer.meta.taken_at,
            expires_at: bet.expires_at.map(Timestamp),
            recorded_at,
            voided_at: voided_at.filter(|_| matches!(bet.state, BetState::Void { .. })),
            void_reason: answer.meta.void_reason,
            round_outcome: round_outcome(&bet).map(str::to_owned),
            settlement: answer.meta.settlement,
        },
        round,
        seed: chronology(&seed, first_bet_at.map(Timestamp))?,
        next_seed: next_seed_in(tx, &seed).await?,
        coverage,
        signing_key: signing_key_in(tx, &bet).await?,
        recoveries: recoveries_in(tx).await?,
        statements: statements(),
    })
}

async fn round_in<A: Access>(tx: &mut Tx<A>, bet: &BetDetails) -> Result<BundledRound, DbError> {
    let steps = tx.steps(&bet.key).await?;
    Ok(BundledRound {
        status: if matches!(bet.state, BetState::Pending) { "open" } else { "closed" }.to_owned(),
        next_index: u32::try_from(steps.len()).map_err(|_| corrupt("round", "more steps than can be counted"))?,
        steps: steps.into_iter().map(step_view).collect(),
    })
}

fn chronology(seed: &SeedRow, first_bet_at: Option<Timestamp>) -> Result<Chronology, DbError> {
    let client = seed.client_side()?;
    Ok(Chronology {
        commitment: seed.commitment,
        seed_no: seed.seed_no.unsigned_abs(),
        status: seed.status.as_str().to_owned(),
        epoch: seed.epoch.unsigned_abs(),
        committed_at: Timestamp(seed.committed_at),
        live_at: Timestamp(client.live_at),
        client_seed: client.client_seed.clone(),
        client_seed_source: client.source.as_str().to_owned(),
        client_seed_at: Timestamp(client.set_at),
        first_bet_at,
        bets: seed.next_nonce,
        retired_at: seed.retired.map(|(at, _)| Timestamp(at)),
        retired_by: seed.retired.map(|(_, by)| by.as_str().to_owned()),
        revealed_at: seed.revealed.as_ref().map(|(_, at)| Timestamp(*at)),
    })
}

async fn next_seed_in<A: Access>(tx: &mut Tx<A>, seed: &SeedRow) -> Result<Option<NextSeed>, DbError> {
    let next_no = seed.seed_no + 1;
    let successor = tx.seed(seed.session_id, next_no).await?.map(|next| (next.commitment, next.committed_at));
    let next = match successor {
        Some(next) => Some(next),
        None => {
            let waiting = tx.next_seed(seed.session_id).await?.filter(|next| next.seed_no == next_no);
            waiting.map(|next| (next.commitment, next.committed_at))
        }
    };
    Ok(next.map(|(commitment, committed_at)| NextSeed {
        commitment,
        seed_no: next_no.unsigned_abs(),
        committed_at: Timestamp(committed_at),
    }))
}

async fn signing_key_in<A: Access>(tx: &mut Tx<A>, bet: &BetDetails) -> Result<Option<BundledKey>, DbError> {
    let BetState::Recorded(recorded) = &bet.state else { return Ok(None) };
    let Some((_, signer)) = recorded.signature else { return Ok(None) };
    let key = tx.signing_keys().await?.into_iter().find(|key| key.signer == signer);
    let key = key.ok_or_else(|| missing("signing key"))?;
    Ok(Some(BundledKey {
        signer: hex::encode(signer),
        from: Timestamp(key.valid_from),
        until: key.valid_until.map(Timestamp),
    }))
}
