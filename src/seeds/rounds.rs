//! Rounds: bets whose result is concealed while the player decides.
//!
//! Keeps I4 (a step and its place in the round are one transaction) and I11 (a step is stored before what it discloses is answered,
//! and nothing else of the result is).

use serde_json::{Value, json};
use uuid::Uuid;

use super::Seeds;
use super::answer::{bet_answer, round_view};
use super::ends::end_pending;
use super::error::{Attempt, SeedsError, settle_it};
use super::model::RoundAnswer;
use super::values::{BoundedJson, VoidReason};
use crate::db::bets::BetKind;
use crate::db::details::{BetDetails, BetState, RoundOutcome};
use crate::db::pending::EndOf;
use crate::db::steps::StepRow;
use crate::db::{Access, Tx, corrupt};
use crate::gfs::games::{Game, GameResult};
use crate::gfs::json;
use crate::gfs::seed::Commitment;

/// One step of a round.
#[derive(Clone, Debug)]
pub struct StepRequest {
    /// Its place: the round's `nextIndex`.
    pub index: u32,
    /// The engine's own description.
    pub step: BoundedJson,
    /// What the engine asks to be shown.
    pub disclose: Option<Disclose>,
}

/// What a step asks to be shown of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disclose {
    /// Whether these tiles of a Mines board are mines.
    Tiles(Vec<u8>),
    /// So many further cards of a deck.
    Cards(u32),
}

impl Disclose {
    /// Reads `{"tiles": [..]}` or `{"cards": n}`.
    ///
    /// # Errors
    /// Anything else, tiles outside 0 to 24 or twice, no tile, no card.
    pub fn parse(value: &Value) -> Result<Self, SeedsError> {
        let form = || SeedsError::invalid("disclose", "must be {\"tiles\": [0 to 24, ...]} or {\"cards\": 1 or more}");
        let object = value.as_object().filter(|object| object.len() == 1).ok_or_else(form)?;
        if let Some(cards) = object.get("cards") {
            let cards = cards.as_u64().and_then(|cards| u32::try_from(cards).ok()).filter(|cards| *cards > 0);
            return cards
                .map(Self::Cards)
                .ok_or_else(|| SeedsError::invalid("disclose.cards", "must be an integer of 1 or more"));
        }
        let tiles = object.get("tiles").ok_or_else(form)?;
        let invalid = || SeedsError::invalid("disclose.tiles", "must be 1 to 25 different integers of 0 to 24");
        let tiles = tiles.as_array().filter(|tiles| !tiles.is_empty() && tiles.len() <= 25).ok_or_else(invalid)?;
        let mut seen = Vec::with_capacity(tiles.len());
        for tile in tiles {
            let tile =
                tile.as_u64().filter(|tile| *tile < 25).and_then(|tile| u8::try_from(tile).ok()).ok_or_else(invalid)?;
            if seen.contains(&tile) {
                return Err(invalid());
            }
            seen.push(tile);
        }
        Ok(Self::Tiles(seen))
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Tiles(tiles) => json!({ "tiles": tiles }),
            Self::Cards(cards) => json!({ "cards": cards }),
        }
    }
}

/// How a round is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseOutcome {
    /// The player took the winnings.
    Cashout,
    /// The player lost.
    Lost,
    /// The player gave up.
    Forfeit,
    /// The round does not count.
    Void(VoidReason),
}

/// The close of a round.
#[derive(Clone, Debug)]
pub struct CloseRequest {
    /// How.
    pub outcome: CloseOutcome,
}

/// What a step shows, and what it changes in the round.
struct Disclosure {
    shown: Option<Value>,
    cards: u32,
    mine: bool,
}

impl Seeds {
    /// Looks at a round.
    ///
    /// # Errors
    /// [`SeedsError::SessionNotFound`], [`SeedsError::RoundNotFound`]; and the database's.
    pub async fn round(
        &self,
        session_id: Uuid,
        commitment: &Commitment,
        nonce: u64,
    ) -> Result<RoundAnswer, SeedsError> {
        let mut tx = self.inner.store.snapshot("round.get").await?;
        let (bet, steps) = self.find_round(&mut tx, session_id, commitment, nonce).await?;
        tx.rollback().await;
        self.saw(session_id);
        Ok(answer(&bet, steps, false)?)
    }

    /// Adds a step to a round, then shows what it discloses. The same step again gets the same answer.
    ///
    /// # Errors
    /// In this order of precedence: [`SeedsError::SessionNotFound`], [`SeedsError::RoundNotFound`], [`SeedsError::StepConflict`] for
    /// an index already taken by other content, [`SeedsError::RoundClosed`], [`SeedsError::StepConflict`] for another index,
    /// [`SeedsError::RoundLost`], [`SeedsError::TooManySteps`], [`SeedsError::Invalid`]; and the database's.
    pub async fn step(
        &self,
        session_id: Uuid,
        commitment: &Commitment,
        nonce: u64,
        request: &StepRequest,
    ) -> Result<RoundAnswer, SeedsError> {
        let answer =
            settle_it!(self, "round.step", |tx| self.step_in(tx, session_id, commitment, nonce, request).await)?;
        self.saw(session_id);
        Ok(answer)
    }

    async fn step_in(
        &self,
        tx: &mut Tx,
        session_id: Uuid,
        commitment: &Commitment,
        nonce: u64,
        request: &StepRequest,
    ) -> Result<RoundAnswer, Attempt> {
        self.session_in_epoch(tx, session_id).await?;
        let (bet, mut steps) = self.find_round(tx, session_id, commitment, nonce).await?;
        let next_index = u32::try_from(steps.len()).map_err(|_| corrupt("round", "more steps than can be counted"))?;
        let disclose = request.disclose.as_ref().map(Disclose::to_json);
        if let Some(stored) = steps.get(request.index as usize) {
            let same = json::canonical(&stored.step) == request.step.canonical()
                && stored.disclose.as_ref().map(json::canonical) == disclose.as_ref().map(json::canonical);
            if same {
                tx.acknowledge_again().await?;
                return Ok(answer(&bet, steps, true)?);
            }
        }
        if !matches!(bet.state, BetState::Pending) {
            return Err(SeedsError::RoundClosed.into());
        }
        if request.index != next_index {
            return Err(SeedsError::StepConflict { next_index }.into());
        }
        let Some(pending) = tx.pending_bet(&bet.key).await? else {
            return Err(Attempt::LookAgain);
        };
        if pending.next_step != next_index {
            // A step was stored since the steps were read; it may be this very one.
            return Err(Attempt::LookAgain);
        }
        if pending.mine_shown {
            return Err(SeedsError::RoundLost.into());
        }
        if next_index >= self.inner.settings.steps_max {
            return Err(SeedsError::TooManySteps.into());
        }
        let (result, _) = self.concealed_result(tx, &bet).await?;
        let disclosure = disclose_from(&bet.game, &result, request.disclose.as_ref(), pending.cards_shown)?;
        let advanced = tx.advance_round(&bet.key, request.index, disclosure.cards, disclosure.mine).await?;
        match advanced {
            None => return Err(Attempt::LookAgain),
            // The guard on the index keeps any other step from coming between.
            Some(before) if before != pending.cards_shown => {
                return Err(corrupt("round", "cards were shown without a step").into());
            }
            Some(_) => {}
        }
        tx.insert_step(
            &bet.key,
            request.index,
            request.step.canonical(),
            disclose.as_ref().map(json::canonical).as_deref(),
            disclosure.shown.as_ref().map(json::canonical).as_deref(),
        )
        .await?;
        steps = tx.steps(&bet.key).await?;
        Ok(answer(&bet, steps, false)?)
    }

    /// Closes a round: stores its record, or its void. The same outcome again gets what is stored.
    ///
    /// # Errors
    /// In this order of precedence: [`SeedsError::SessionNotFound`], [`SeedsError::RoundNotFound`], [`SeedsError::RoundClosed`],
    /// [`SeedsError::RoundLost`]; and the database's.
    pub async fn close_round(
        &self,
        session_id: Uuid,
        commitment: &Commitment,
        nonce: u64,
        request: &CloseRequest,
    ) -> Result<RoundAnswer, SeedsError> {
        let answer = settle_it!(self, "round.close", |tx| {
            self.close_round_in(tx, session_id, commitment, nonce, request).await
        })?;
        self.saw(session_id);
        Ok(answer)
    }

    async fn close_round_in(
        &self,
        tx: &mut Tx,
        session_id: Uuid,
        commitment: &Commitment,
        nonce: u64,
        request: &CloseRequest,
    ) -> Result<RoundAnswer, Attempt> {
        self.session_in_epoch(tx, session_id).await?;
        let (mut bet, steps) = self.find_round(tx, session_id, commitment, nonce).await?;
        let outcome = match &request.outcome {
            CloseOutcome::Cashout => Some(RoundOutcome::Cashout),
            CloseOutcome::Lost => Some(RoundOutcome::Lost),
            CloseOutcome::Forfeit => Some(RoundOutcome::Forfeit),
            CloseOutcome::Void(_) => None,
        };
        let same = match (&bet.state, &request.outcome) {
            (BetState::Pending, _) => None,
            (BetState::Void { reason }, CloseOutcome::Void(ours)) => Some(reason == ours.as_str()),
            (BetState::Recorded(recorded), _) => Some(recorded.round_outcome == outcome),
            (BetState::Void { .. }, _) => Some(false),
        };
        match same {
            Some(true) => {
                tx.acknowledge_again().await?;
                return Ok(answer(&bet, steps, true)?);
            }
            Some(false) => return Err(SeedsError::RoundClosed.into()),
            None => {}
        }
        let Some(pending) = tx.pending_bet(&bet.key).await? else {
            return Err(Attempt::LookAgain);
        };
        if pending.mine_shown && outcome != Some(RoundOutcome::Lost) {
            return Err(SeedsError::RoundLost.into());
        }
        let end = if outcome == Some(RoundOutcome::Lost) { EndOf::Unexpired } else { EndOf::UnexpiredWithoutMine };
        end_pending(tx, &bet.key, BetKind::Round, end).await?;
        match &request.outcome {
            CloseOutcome::Void(reason) => {
                tx.insert_void(&bet.key, reason.as_str()).await?;
                bet.state = BetState::Void { reason: reason.as_str().to_owned() };
            }
            CloseOutcome::Cashout | CloseOutcome::Lost | CloseOutcome::Forfeit => {
                self.record_round(tx, &mut bet, outcome).await?;
            }
        }
        // Read now that the pending row is gone, which every step needs: one may have come since the round was looked at.
        Ok(answer(&bet, tx.steps(&bet.key).await?, false)?)
    }

    /// Stores the record of a round whose pending row was taken out.
    pub(super) async fn record_round(
        &self,
        tx: &mut Tx,
        bet: &mut BetDetails,
        outcome: Option<RoundOutcome>,
    ) -> Result<(), crate::db::DbError> {
        let (result, cursor) = self.concealed_result(tx, bet).await?;
        let row = self.complete(bet, result.to_json(), cursor, outcome);
        tx.insert_outcome(&bet.key, outcome.map(RoundOutcome::as_str), &row).await
    }

    async fn find_round<A: Access>(
        &self,
        tx: &mut Tx<A>,
        session_id: Uuid,
        commitment: &Commitment,
        nonce: u64,
    ) -> Result<(BetDetails, Vec<StepRow>), SeedsError> {
        let found = self.find_bet(tx, session_id, commitment, nonce).await?;
        let bet = found.filter(|bet| bet.kind == BetKind::Round).ok_or(SeedsError::RoundNotFound)?;
        let steps = tx.steps(&bet.key).await?;
        Ok((bet, steps))
    }
}

fn answer(bet: &BetDetails, steps: Vec<StepRow>, replayed: bool) -> Result<RoundAnswer, crate::db::DbError> {
    Ok(RoundAnswer { round: round_view(bet, steps)?, bet: bet_answer(bet, replayed), replayed })
}

fn disclose_from(
    game: &str,
    result: &GameResult,
    disclose: Option<&Disclose>,
    cards_shown: u32,
) -> Result<Disclosure, SeedsError> {
    match (disclose, result) {
        (None, _) => Ok(Disclosure { shown: None, cards: 0, mine: false }),
        (Some(Disclose::Tiles(tiles)), GameResult::Positions(mines)) if game == Game::Mines.name() => {
            let shown: Vec<Value> =
                tiles.iter().map(|tile| json!({ "tile": tile, "mine": mines.contains(tile) })).collect();
            let mine = tiles.iter().any(|tile| mines.contains(tile));
            Ok(Disclosure { shown: Some(json!({ "tiles": shown })), cards: 0, mine })
        }
        (Some(Disclose::Cards(count)), GameResult::Cards(deck)) => {
            let left = deck.get(cards_shown as usize..).unwrap_or_default();
            let Some(cards) = left.get(..*count as usize) else {
                let detail = format!("must be at most {}: the deck has no more cards", left.len());
                return Err(SeedsError::invalid("disclose.cards", detail));
            };
            let labels: Vec<Value> = cards.iter().map(|card| json!(card.label())).collect();
            Ok(Disclosure { shown: Some(json!({ "cards": labels })), cards: *count, mine: false })
        }
        (Some(Disclose::Tiles(_)), _) => Err(SeedsError::invalid("disclose.tiles", "only a round of mines has tiles")),
        (Some(Disclose::Cards(_)), _) => {
            Err(SeedsError::invalid("disclose.cards", "only a round of blackjack or hilo has cards"))
        }
    }
}
