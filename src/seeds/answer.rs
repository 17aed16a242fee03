//! From stored rows to records, views and answers; and from a sealed seed to a result.

use serde_json::{Map, Value};
use uuid::Uuid;

use super::error::SeedsError;
use super::model::{
    BetAnswer, BetMeta, BetStatus, PendingView, Receipt, RevealedSeed, RoundView, SeedView, SessionStatus,
    SettlementView, StepView, View,
};
use super::values::{Timestamp, money_text};
use super::{Seeds, missing};
use crate::db::bets::{BetKind, ResultRow, RulesRow, SignatureRow};
use crate::db::details::{BetDetails, BetState, SettlementRow};
use crate::db::seeds::{NextSeedRow, SealedSeed, SeedRow};
use crate::db::steps::StepRow;
use crate::db::{Access, DbError, Tx, corrupt};
use crate::gfs::floats::SeedPair;
use crate::gfs::games::Play;
use crate::gfs::json;
use crate::gfs::record::{Outcome, Profile, Record, Rules};
use crate::gfs::seed::{ClientSeed, Commitment};
use crate::gfs::signature::Signature;

/// The record of a bet as it stands.
pub(super) fn record_of(bet: &BetDetails) -> Record {
    let profile = if bet.kind == BetKind::Reservation {
        match &bet.rules {
            Some(RulesRow { id, sha256, floats }) => {
                Profile::Custom { rules: Rules { id: id.clone(), sha256: *sha256 }, floats: *floats }
            }
            None => Profile::Unbound,
        }
    } else {
        Profile::SinglePlayer
    };
    let (outcome, signature) = match &bet.state {
        BetState::Recorded(recorded) => (
            Some(Outcome { cursor: recorded.cursor, result: recorded.result.clone() }),
            recorded.signature.map(|(bytes, signer)| Signature { bytes, signer }),
        ),
        BetState::Pending | BetState::Void { .. } => (None, None),
    };
    Record {
        profile,
        game: bet.game.clone(),
        params: bet.params.clone(),
        commitment: bet.commitment,
        client_seed: bet.client_seed.clone(),
        nonce: bet.key.nonce,
        at_ms: bet.taken_at.timestamp_millis(),
        outcome,
        signature,
    }
}

/// The answer that shows a bet.
pub(crate) fn bet_answer(bet: &BetDetails, replayed: bool) -> BetAnswer {
    BetAnswer {
        record: record_of(bet).to_json(),
        server_seed: bet.server_seed.as_ref().map(RevealedSeed::new),
        meta: bet_meta(bet),
        replayed,
    }
}

pub(super) fn bet_meta(bet: &BetDetails) -> BetMeta {
    let (status, void_reason) = match &bet.state {
        BetState::Pending => (BetStatus::Pending, None),
        BetState::Recorded(_) => (BetStatus::Recorded, None),
        BetState::Void { reason } => (BetStatus::Void, Some(reason.clone())),
    };
    BetMeta {
        session_id: bet.key.session_id,
        bet_ref: bet.bet_ref.clone(),
        status,
        selection: bet.selection.clone(),
        stake: bet.stake.as_ref().map(money_text),
        currency: bet.currency.clone(),
        context: bet.context.clone(),
        taken_at: Timestamp(bet.taken_at),
        settlement: bet.settlement.as_ref().map(settlement_view),
        void_reason,
        round_outcome: round_outcome(bet),
    }
}

/// How the round of a bet ended; none while it is open and for bets that are no rounds.
pub(crate) fn round_outcome(bet: &BetDetails) -> Option<&'static str> {
    match &bet.state {
        BetState::Recorded(recorded) => recorded.round_outcome.map(|outcome| outcome.as_str()),
        BetState::Void { .. } if bet.kind == BetKind::Round => Some("void"),
        BetState::Void { .. } | BetState::Pending => None,
    }
}

fn settlement_view(settlement: &SettlementRow) -> SettlementView {
    SettlementView {
        payout: money_text(&settlement.payout),
        outcome: settlement.outcome.clone(),
        displayed: settlement.displayed.clone(),
        rules: settlement.rules.clone(),
        settled_at: Timestamp(settlement.settled_at),
    }
}

pub(super) fn round_view(bet: &BetDetails, steps: Vec<StepRow>) -> Result<RoundView, DbError> {
    let next_index = u32::try_from(steps.len()).map_err(|_| corrupt("round", "more steps than can be counted"))?;
    Ok(RoundView {
        status: if matches!(bet.state, BetState::Pending) { "open" } else { "closed" },
        outcome: round_outcome(bet),
        next_index,
        steps: steps.into_iter().map(step_view).collect(),
    })
}

pub(crate) fn step_view(step: StepRow) -> StepView {
    StepView {
        index: step.index,
        step: step.step,
        disclose: step.disclose,
        disclosed: step.disclosed,
        at: Timestamp(step.stepped_at),
    }
}

pub(super) fn seed_view(seed: &SeedRow, voids: u64) -> SeedView {
    let client = seed.client.as_ref();
    SeedView {
        commitment: seed.commitment,
        status: seed.status.as_str(),
        committed_at: Timestamp(seed.committed_at),
        live_at: client.map(|client| Timestamp(client.live_at)),
        client_seed: client.map(|client| client.client_seed.clone()),
        client_seed_source: client.map(|client| client.source.as_str()),
        client_seed_at: client.map(|client| Timestamp(client.set_at)),
        bets: seed.next_nonce,
        voids,
        retired_at: seed.retired.map(|(at, _)| Timestamp(at)),
        retired_by: seed.retired.map(|(_, by)| by.as_str()),
        revealed_at: seed.revealed.as_ref().map(|(_, at)| Timestamp(*at)),
        server_seed: seed.revealed.as_ref().map(|(seed, _)| RevealedSeed::new(seed)),
    }
}

pub(super) fn next_seed_view(next: &NextSeedRow) -> SeedView {
    SeedView {
        commitment: next.commitment,
        status: "next",
        committed_at: Timestamp(next.committed_at),
        live_at: None,
        client_seed: None,
        client_seed_source: None,
        client_seed_at: None,
        bets: 0,
        voids: 0,
        retired_at: None,
        retired_by: None,
        revealed_at: None,
        server_seed: None,
    }
}

impl Seeds {
    /// The view of a session. The transaction holds the session's lock or sees one snapshot, so that the parts belong together.
    pub(super) async fn view_in<A: Access>(&self, tx: &mut Tx<A>, session_id: Uuid) -> Result<View, SeedsError> {
        let session = tx.session(session_id).await?.ok_or(SeedsError::SessionNotFound)?;
        let seed = tx.latest_seed(session_id).await?.ok_or_else(|| missing("seed"))?;
        let next = tx.next_seed(session_id).await?;
        let pending = tx.pending_bets(session_id, seed.seed_no).await?;
        let mut view = View {
            session_id,
            status: if session.open { SessionStatus::Open } else { SessionStatus::Closed },
            commitment: seed.commitment,
            next_commitment: next.map(|next| next.commitment),
            client_seed: seed.client_side()?.client_seed.clone(),
            nonce: seed.next_nonce,
            bets: seed.next_nonce,
            pending: pending
                .into_iter()
                .filter(|(row, _)| !row.expired)
                .map(|(row, bet_ref)| PendingView {
                    commitment: seed.commitment,
                    nonce: row.key.nonce,
                    bet_ref,
                    kind: row.kind.as_str(),
                })
                .collect(),
            committed_at: Timestamp(seed.committed_at),
            created_at: Timestamp(session.created_at),
            player_ref: session.player_ref,
            receipt: None,
        };
        view.receipt = self.receipt(&view);
        Ok(view)
    }

    fn receipt(&self, view: &View) -> Option<Receipt> {
        let signing = self.inner.signing.as_ref()?;
        let payload = json::canonical(&serde_json::json!({
            "sessionId": view.session_id,
            "commitment": view.commitment,
            "nextCommitment": view.next_commitment,
            "committedAt": view.committed_at.to_string(),
        }));
        Some(Receipt {
            signature: hex::encode(signing.key.sign(payload.as_bytes())),
            signer: hex::encode(signing.key.signer()),
            payload,
        })
    }

    /// Server seed and client seed of a bet, ready to calculate with.
    pub(super) fn open_pair(
        &self,
        session_id: Uuid,
        commitment: &Commitment,
        sealed: &SealedSeed,
        client_seed: &ClientSeed,
    ) -> Result<SeedPair, DbError> {
        let server_seed = self.inner.ring.open(session_id, commitment, sealed)?;
        Ok(SeedPair::new(&server_seed, client_seed))
    }

    /// Gives a bet its result: completes the details as if read back, and gives the row to store.
    pub(super) fn complete(
        &self,
        bet: &mut BetDetails,
        result: Value,
        cursor: u32,
        round_outcome: Option<crate::db::details::RoundOutcome>,
    ) -> ResultRow {
        let canonical = json::canonical(&result);
        let recorded = crate::db::details::Recorded { result, cursor, signature: None, round_outcome };
        bet.state = BetState::Recorded(recorded);
        let signature = self.inner.signing.as_ref().map(|signing| {
            let bytes = signing.key.sign(record_of(bet).payload().as_bytes());
            (bytes, signing)
        });
        if let (BetState::Recorded(recorded), Some((bytes, signing))) = (&mut bet.state, &signature) {
            recorded.signature = Some((*bytes, signing.key.signer()));
        }
        ResultRow {
            result: canonical,
            cursor,
            signature: signature
                .map(|(signature, signing)| SignatureRow { signature, signing_key_no: signing.signing_key_no }),
        }
    }
}

/// The game of a stored bet, which was valid when it was stored.
pub(super) fn stored_play(game: &str, params: &Map<String, Value>) -> Result<Play, DbError> {
    Play::new(game, Some(&Value::Object(params.clone())))
        .map_err(|error| corrupt("bet", format!("game {game:?}: {}: {}", error.field, error.detail)))
}
