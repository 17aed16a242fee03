//! How a pending bet ends other than as a round: the record of a reservation, a void; and the settlement of a recorded bet.
//!
//! Keeps I4 (exactly one end wins: it counts the seed's pending bets down and deletes the pending row in its transaction) and I8.

use serde_json::Value;
use uuid::Uuid;

use super::Seeds;
use super::answer::bet_answer;
use super::error::{Attempt, SeedsError, settle_it};
use super::model::BetAnswer;
use super::values::{BoundedJson, Money, SettlementOutcome, VoidReason};
use crate::db::bets::{BetKey, BetKind};
use crate::db::details::{BetDetails, BetState, SettlementRow};
use crate::db::outcomes::NewSettlement;
use crate::db::pending::EndOf;
use crate::db::{Access, Tx};
use crate::gfs::seed::Commitment;
use crate::gfs::{floats, json};

/// The result of a reservation.
#[derive(Clone, Debug)]
pub struct RecordRequest {
    /// The seed's commitment.
    pub commitment: Commitment,
    /// The nonce.
    pub nonce: u64,
    /// What the outside game came to.
    pub result: BoundedJson,
}

/// The void of a pending bet.
#[derive(Clone, Debug)]
pub struct VoidRequest {
    /// The seed's commitment.
    pub commitment: Commitment,
    /// The nonce.
    pub nonce: u64,
    /// Why.
    pub reason: VoidReason,
}

/// What was paid for a recorded bet and what the player was shown.
#[derive(Clone, Debug)]
pub struct SettlementRequest {
    /// The seed's commitment.
    pub commitment: Commitment,
    /// The nonce.
    pub nonce: u64,
    /// Amount paid.
    pub payout: Money,
    /// The engine's word for it.
    pub outcome: Option<SettlementOutcome>,
    /// What the player was shown.
    pub displayed: Option<BoundedJson>,
    /// The rules or pay table applied.
    pub rules: Option<BoundedJson>,
}

impl SettlementRequest {
    fn is(&self, stored: &SettlementRow) -> bool {
        let same_json = |ours: &Option<BoundedJson>, stored: &Option<Value>| {
            ours.as_ref().map(BoundedJson::canonical) == stored.as_ref().map(json::canonical).as_deref()
        };
        *self.payout.as_decimal() == stored.payout
            && self.outcome.as_ref().map(SettlementOutcome::as_str) == stored.outcome.as_deref()
            && same_json(&self.displayed, &stored.displayed)
            && same_json(&self.rules, &stored.rules)
    }
}

impl Seeds {
    /// Records the result of a reservation. The same result again gets the stored record.
    ///
    /// # Errors
    /// In this order of precedence: [`SeedsError::SessionNotFound`], [`SeedsError::NonceNotReserved`],
    /// [`SeedsError::RecordExistsWithDifferentContent`], [`SeedsError::Void`]; and the database's.
    pub async fn record(&self, session_id: Uuid, request: &RecordRequest) -> Result<BetAnswer, SeedsError> {
        let answer = settle_it!(self, "bet.record", |tx| self.record_in(tx, session_id, request).await)?;
        self.saw(session_id);
        Ok(answer)
    }

    async fn record_in(&self, tx: &mut Tx, session_id: Uuid, request: &RecordRequest) -> Result<BetAnswer, Attempt> {
        self.session_in_epoch(tx, session_id).await?;
        let found = self.find_bet(tx, session_id, &request.commitment, request.nonce).await?;
        let Some(mut bet) = found.filter(|bet| bet.kind == BetKind::Reservation) else {
            return Err(SeedsError::NonceNotReserved.into());
        };
        match &bet.state {
            BetState::Recorded(recorded) if json::canonical(&recorded.result) == request.result.canonical() => {
                tx.acknowledge_again().await?;
                return Ok(bet_answer(&bet, true));
            }
            BetState::Recorded(_) => return Err(SeedsError::RecordExistsWithDifferentContent.into()),
            BetState::Void { reason } => return Err(SeedsError::Void { reason: reason.clone() }.into()),
            BetState::Pending => {}
        }
        end_pending(tx, &bet.key, BetKind::Reservation, EndOf::Unexpired).await?;
        let cursor = bet.rules.as_ref().map_or(0, |rules| floats::cursor(rules.floats));
        let result = self.complete(&mut bet, request.result.value().clone(), cursor, None);
        tx.insert_outcome(&bet.key, None, &result).await?;
        Ok(bet_answer(&bet, false))
    }

    /// Voids a pending bet, round or reservation. Its nonce stays consumed. The same reason again gets the stored void.
    ///
    /// # Errors
    /// In this order of precedence: [`SeedsError::SessionNotFound`], [`SeedsError::BetNotFound`], [`SeedsError::AlreadyRecorded`],
    /// [`SeedsError::VoidWithDifferentReason`], [`SeedsError::RoundLost`]; and the database's.
    pub async fn void(&self, session_id: Uuid, request: &VoidRequest) -> Result<BetAnswer, SeedsError> {
        let answer = settle_it!(self, "bet.void", |tx| self.void_in(tx, session_id, request).await)?;
        self.saw(session_id);
        Ok(answer)
    }

    async fn void_in(&self, tx: &mut Tx, session_id: Uuid, request: &VoidRequest) -> Result<BetAnswer, Attempt> {
        self.session_in_epoch(tx, session_id).await?;
        let found = self.find_bet(tx, session_id, &request.commitment, request.nonce).await?;
        let mut bet = found.ok_or(SeedsError::BetNotFound)?;
        match &bet.state {
            BetState::Recorded(_) => return Err(SeedsError::AlreadyRecorded.into()),
            BetState::Void { reason } if reason == request.reason.as_str() => {
                tx.acknowledge_again().await?;
                return Ok(bet_answer(&bet, true));
            }
            BetState::Void { reason } => {
                return Err(SeedsError::VoidWithDifferentReason { reason: reason.clone() }.into());
            }
            BetState::Pending => {}
        }
        if tx.pending_bet(&bet.key).await?.is_some_and(|pending| pending.mine_shown) {
            return Err(SeedsError::RoundLost.into());
        }
        end_pending(tx, &bet.key, bet.kind, EndOf::UnexpiredWithoutMine).await?;
        tx.insert_void(&bet.key, request.reason.as_str()).await?;
        bet.state = BetState::Void { reason: request.reason.as_str().to_owned() };
        Ok(bet_answer(&bet, false))
    }

    /// Stores what was paid for a recorded bet and what the player was shown. The same again gets what is stored.
    ///
    /// # Errors
    /// In this order of precedence: [`SeedsError::SessionNotFound`], [`SeedsError::BetNotFound`], [`SeedsError::NotRecorded`],
    /// [`SeedsError::SettledWithDifferentContent`]; and the database's.
    pub async fn settle(&self, session_id: Uuid, request: &SettlementRequest) -> Result<BetAnswer, SeedsError> {
        let answer = settle_it!(self, "bet.settle", |tx| self.settle_in(tx, session_id, request).await)?;
        self.saw(session_id);
        Ok(answer)
    }

    async fn settle_in(
        &self,
        tx: &mut Tx,
        session_id: Uuid,
        request: &SettlementRequest,
    ) -> Result<BetAnswer, Attempt> {
        self.session_in_epoch(tx, session_id).await?;
        let found = self.find_bet(tx, session_id, &request.commitment, request.nonce).await?;
        let bet = found.ok_or(SeedsError::BetNotFound)?;
        if !matches!(bet.state, BetState::Recorded(_)) {
            return Err(SeedsError::NotRecorded.into());
        }
        if let Some(stored) = &bet.settlement {
            if !request.is(stored) {
                return Err(SeedsError::SettledWithDifferentContent.into());
            }
            tx.acknowledge_again().await?;
            return Ok(bet_answer(&bet, true));
        }
        let inserted = tx
            .insert_settlement(
                &bet.key,
                &NewSettlement {
                    payout: request.payout.as_decimal(),
                    outcome: request.outcome.as_ref().map(SettlementOutcome::as_str),
                    displayed: request.displayed.as_ref().map(BoundedJson::canonical),
                    rules: request.rules.as_ref().map(BoundedJson::canonical),
                },
            )
            .await?;
        if !inserted {
            return Err(Attempt::LookAgain);
        }
        let bet = tx.bet(&bet.key).await?.ok_or_else(|| super::missing("bet"))?;
        Ok(bet_answer(&bet, false))
    }

    /// A bet of a session by its seed's commitment and its nonce.
    pub(super) async fn find_bet<A: Access>(
        &self,
        tx: &mut Tx<A>,
        session_id: Uuid,
        commitment: &Commitment,
        nonce: u64,
    ) -> Result<Option<BetDetails>, SeedsError> {
        if let Some((owner, seed_no)) = tx.find_commitment(commitment).await?
            && owner == session_id
        {
            return Ok(tx.bet(&BetKey { session_id, seed_no, nonce }).await?);
        }
        // No bet; but a session that does not exist is the clearer answer.
        tx.session(session_id).await?.ok_or(SeedsError::SessionNotFound)?;
        Ok(None)
    }
}

/// Ends a pending bet for the one that calls: counts the seed down, which locks it, and takes the pending row out.
pub(super) async fn end_pending(tx: &mut Tx, key: &BetKey, kind: BetKind, end: EndOf) -> Result<(), Attempt> {
    let ended = tx.count_pending_down(key.session_id, key.seed_no).await? && tx.take_pending(key, kind, end).await?;
    if ended { Ok(()) } else { Err(Attempt::LookAgain) }
}
