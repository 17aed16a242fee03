//! Taking a bet: played at once, as a round whose result is concealed, or as a reservation for an outside game.
//!
//! Keeps I3 and I4 (the nonce and the stored bet are one transaction), I9 (what is answered is committed) and I11 (a concealed result
//! is not even calculated, and an outside game's floats are shown only once everything they decide is bound).

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::answer::{bet_answer, bet_meta, stored_play};
use super::error::{Attempt, LOOKS_MAX, SeedsError};
use super::group::BetItem;
use super::model::{BetAnswer, Reservation};
use super::values::{BetRef, BoundedJson, Currency, InvalidValue, JSON_BYTES_MAX, Money, OutsideGame, Timestamp};
use super::{Seeds, missing};
use crate::db::bets::{BetKey, BetKind, NewBet, ResultRow, RulesRow};
use crate::db::details::{BetDetails, BetState};
use crate::db::group::Reply;
use crate::db::seeds::{ReservedNonce, SeedStatus};
use crate::db::{DbError, Tx, pause_before_retry, transaction};
use crate::gfs::floats::SeedPair;
use crate::gfs::games::Play;
use crate::gfs::record::{GAME_UNBOUND, OUTSIDE_FLOATS_MAX, Rules};
use crate::gfs::seed::{Commitment, NONCE_MAX};
use crate::gfs::{floats, json};

/// What a bet is on and what was staked: all that is bound besides the game.
#[derive(Clone, Debug, Default)]
pub struct Wager {
    /// The player's choice.
    pub selection: Option<BoundedJson>,
    /// Amount staked.
    pub stake: Option<Money>,
    /// Its currency.
    pub currency: Option<Currency>,
    /// Whatever else the engine binds.
    pub context: Option<BoundedJson>,
}

/// A bet on a game of GFS/1.0.
#[derive(Clone, Debug)]
pub struct BetRequest {
    /// The seed it is meant for.
    pub commitment: Commitment,
    /// The caller's name for it, once in a session.
    pub bet_ref: BetRef,
    /// The game.
    pub game: GameRequest,
    /// What is bound.
    pub wager: Wager,
}

/// A game of GFS/1.0 with its parameters, and whether its result is concealed until the round is closed.
#[derive(Clone, Debug)]
pub struct GameRequest {
    /// The game.
    pub play: Play,
    /// Start a round.
    pub conceal: bool,
}

/// A nonce for an outside game.
#[derive(Clone, Debug)]
pub struct ReservationRequest {
    /// The seed it is meant for.
    pub commitment: Commitment,
    /// The caller's name for it, once in a session.
    pub bet_ref: BetRef,
    /// The game.
    pub game: OutsideGame,
    /// Its parameters.
    pub params: Map<String, Value>,
    /// The rules that turn floats into its result.
    pub rules: Rules,
    /// How many floats: 1 to [`OUTSIDE_FLOATS_MAX`].
    pub floats: u32,
    /// What is bound.
    pub wager: Wager,
}

impl ReservationRequest {
    /// Checks what its types leave open.
    ///
    /// # Errors
    /// Params beyond their bound, or floats out of range, by field.
    pub fn validate(&self) -> Result<(), (&'static str, InvalidValue)> {
        if json::canonical_map(&self.params).len() > JSON_BYTES_MAX {
            return Err(("params", InvalidValue(format!("must be at most {JSON_BYTES_MAX} bytes as canonical JSON"))));
        }
        if !(1..=OUTSIDE_FLOATS_MAX).contains(&self.floats) {
            return Err(("floats", InvalidValue(format!("must be 1 to {OUTSIDE_FLOATS_MAX}"))));
        }
        Ok(())
    }
}

/// Everything that a bet of any kind binds, in the form in which it is compared and stored.
pub(super) struct Binding {
    pub(super) commitment: Commitment,
    pub(super) bet_ref: String,
    pub(super) kind: BetKind,
    game: String,
    params: Map<String, Value>,
    /// The same as canonical JSON.
    params_json: String,
    wager: Wager,
    rules: Option<RulesRow>,
    /// The play of a GFS game.
    play: Option<Play>,
}

impl Binding {
    /// Whether a stored bet is this very one: equal as canonical JSON with defaults filled in, money compared as numbers. The
    /// commitment is not part of it: the same reference after a rotation finds the same bet.
    pub(super) fn is(&self, bet: &BetDetails) -> bool {
        let same_json = |ours: Option<&BoundedJson>, stored: Option<&Value>| {
            ours.map(BoundedJson::canonical) == stored.map(json::canonical).as_deref()
        };
        self.kind == bet.kind
            && self.game == bet.game
            && self.params_json == json::canonical_map(&bet.params)
            && same_json(self.wager.selection.as_ref(), bet.selection.as_ref())
            && self.wager.stake.as_ref().map(Money::as_decimal) == bet.stake.as_ref()
            && self.wager.currency.as_ref().map(Currency::as_str) == bet.currency.as_deref()
            && same_json(self.wager.context.as_ref(), bet.context.as_ref())
            && self.rules == bet.rules
    }

    /// The row to store.
    pub(super) fn row<'a>(&'a self, bet: &'a BetDetails, result: Option<&'a ResultRow>) -> NewBet<'a> {
        NewBet {
            key: bet.key,
            bet_ref: &self.bet_ref,
            kind: self.kind,
            game: &self.game,
            params: &self.params_json,
            selection: self.wager.selection.as_ref().map(BoundedJson::canonical),
            stake: bet.stake.as_ref(),
            currency: bet.currency.as_deref(),
            context: self.wager.context.as_ref().map(BoundedJson::canonical),
            rules: self.rules.as_ref(),
            taken_at: bet.taken_at,
            expires_at: bet.expires_at,
            result,
        }
    }
}

/// A bet that is stored, and whether it had been before.
pub(super) struct Taken {
    // Boxed: it is passed on from hand to hand.
    pub(super) bet: Box<BetDetails>,
    pub(super) replayed: bool,
    /// What it is calculated with; known where the bet was taken just now.
    pub(super) pair: Option<Arc<SeedPair>>,
}

impl Seeds {
    /// Takes a bet on a game of GFS/1.0. The same reference again gets the stored bet, for ever.
    ///
    /// # Errors
    /// In this order of precedence: [`SeedsError::SessionNotFound`], [`SeedsError::BetRefReused`], [`SeedsError::SessionClosed`],
    /// [`SeedsError::CommitmentChanged`], [`SeedsError::NonceExhausted`], [`SeedsError::TooManyPending`]; and the database's.
    pub async fn take_bet(&self, session_id: Uuid, request: &BetRequest) -> Result<BetAnswer, SeedsError> {
        let params = request.game.play.params();
        let binding = Binding {
            commitment: request.commitment,
            bet_ref: request.bet_ref.as_str().to_owned(),
            kind: if request.game.conceal { BetKind::Round } else { BetKind::Played },
            game: request.game.play.game().name().to_owned(),
            params_json: json::canonical_map(&params),
            params,
            wager: request.wager.clone(),
            rules: None,
            play: Some(request.game.play),
        };
        let taken = self.take(session_id, Arc::new(binding)).await?;
        Ok(bet_answer(&taken.bet, taken.replayed))
    }

    /// Binds a bet of an outside game to the next nonce and then shows the floats. The same reference again gets the same floats.
    ///
    /// # Errors
    /// As [`Seeds::take_bet`], and [`SeedsError::Invalid`].
    pub async fn reserve(&self, session_id: Uuid, request: &ReservationRequest) -> Result<Reservation, SeedsError> {
        request.validate().map_err(|(field, error)| SeedsError::invalid(field, error))?;
        let binding = Binding {
            commitment: request.commitment,
            bet_ref: request.bet_ref.as_str().to_owned(),
            kind: BetKind::Reservation,
            game: request.game.as_str().to_owned(),
            params: request.params.clone(),
            params_json: json::canonical_map(&request.params),
            wager: request.wager.clone(),
            rules: Some(RulesRow {
                id: request.rules.id.clone(),
                sha256: request.rules.sha256,
                floats: request.floats,
            }),
            play: None,
        };
        let taken = self.take(session_id, Arc::new(binding)).await?;
        self.reservation(taken).await
    }

    /// Reserves a nonce for a bet that the ledger knows nothing else of.
    pub(super) async fn reserve_unbound(
        &self,
        session_id: Uuid,
        commitment: Commitment,
        bet_ref: &BetRef,
    ) -> Result<u64, SeedsError> {
        let binding = Binding {
            commitment,
            bet_ref: bet_ref.as_str().to_owned(),
            kind: BetKind::Reservation,
            game: GAME_UNBOUND.to_owned(),
            params: Map::new(),
            params_json: json::canonical_map(&Map::new()),
            wager: Wager::default(),
            rules: None,
            play: None,
        };
        Ok(self.take(session_id, Arc::new(binding)).await?.bet.key.nonce)
    }

    async fn take(&self, session_id: Uuid, binding: Arc<Binding>) -> Result<Taken, SeedsError> {
        let mut taken = self.try_take(session_id, &binding).await;
        if matches!(taken, Err(SeedsError::TooManyPending)) && self.void_expired_of(session_id).await? > 0 {
            // Reservations that expired are pending no more, swept or not.
            taken = self.try_take(session_id, &binding).await;
        }
        self.saw(session_id);
        taken
    }

    async fn try_take(&self, session_id: Uuid, binding: &Arc<Binding>) -> Result<Taken, SeedsError> {
        if let Some(group) = &self.group {
            let item = BetItem { session_id, binding: Arc::clone(binding) };
            // The low half of a session's id is random in every version that is in use.
            if let Reply::Done(taken) = group.submit(session_id.as_u64_pair().1, item).await? {
                return taken;
            }
        }
        // What a group sent back has most likely something in its way.
        if self.group.is_some()
            && let Some(taken) = self.settled(self.explain(session_id, binding).await).await?
        {
            return Ok(taken);
        }
        // Otherwise most requests are new: what stands in the way, if only the same bet, is looked for only when something does.
        for looks in 1..=LOOKS_MAX {
            if let Some(taken) = self.settled(self.take_alone(session_id, binding).await).await? {
                return Ok(taken);
            }
            // In a transaction of its own: the reservation that was refused may have locked the seed, and what explains it locks the
            // session first.
            if let Some(taken) = self.settled(self.explain(session_id, binding).await).await? {
                return Ok(taken);
            }
            pause_before_retry(looks).await;
        }
        Err(DbError::TimedOut("bet.take found the row changed each time it looked".to_owned()).into())
    }

    /// What is settled; none when it must be looked at again. A session of an earlier epoch is moved before that, and committed, as
    /// `settle_it!` does.
    async fn settled(&self, attempt: Result<Taken, Attempt>) -> Result<Option<Taken>, SeedsError> {
        match attempt {
            Ok(taken) => Ok(Some(taken)),
            Err(Attempt::Refused(error)) => Err(error),
            Err(Attempt::LookAgain) => Ok(None),
            Err(Attempt::Outdated(session_id)) => {
                self.recover_session(session_id).await?;
                Ok(None)
            }
        }
    }

    async fn take_alone(&self, session_id: Uuid, binding: &Binding) -> Result<Taken, Attempt> {
        transaction!(self.inner.store, "bet.take", |tx| self.take_in(tx, session_id, binding).await)
    }

    async fn explain(&self, session_id: Uuid, binding: &Binding) -> Result<Taken, Attempt> {
        transaction!(self.inner.store, "bet.explain", |tx| self.explain_in(tx, session_id, binding).await)
    }

    /// Takes a bet; looks again when it cannot be taken, for whatever reason.
    async fn take_in(&self, tx: &mut Tx, session_id: Uuid, binding: &Binding) -> Result<Taken, Attempt> {
        let settings = &self.inner.settings;
        let pending = binding.kind != BetKind::Played;
        let reserved =
            tx.reserve_nonce(session_id, &binding.commitment, self.epoch(), pending, settings.pending_max).await?;
        let reserved = reserved.ok_or(Attempt::LookAgain)?;
        let pair = self.open_pair(session_id, &binding.commitment, &reserved.sealed, &reserved.client_seed)?;
        let (bet, result) = self.lay_out(session_id, binding, &reserved, &pair);
        if !tx.insert_bet(&binding.row(&bet, result.as_ref())).await? {
            // The reference was taken meanwhile: give the nonce back by rolling back, and find the bet.
            return Err(Attempt::LookAgain);
        }
        if binding.kind != BetKind::Played {
            tx.insert_pending(&bet.key, binding.kind, bet.taken_at, bet.expires_at).await?;
        }
        Ok(Taken { bet, replayed: false, pair: Some(Arc::new(pair)) })
    }

    /// A bet under the nonce that it was just given, with its result when it is played at once.
    pub(super) fn lay_out(
        &self,
        session_id: Uuid,
        binding: &Binding,
        reserved: &ReservedNonce,
        pair: &SeedPair,
    ) -> (Box<BetDetails>, Option<ResultRow>) {
        let key = BetKey { session_id, seed_no: reserved.seed_no, nonce: reserved.nonce };
        let expires_at = (binding.kind == BetKind::Reservation)
            .then(|| reserved.taken_at + time_delta(self.inner.settings.reservation_ttl));
        let mut bet = Box::new(BetDetails {
            key,
            bet_ref: binding.bet_ref.clone(),
            kind: binding.kind,
            game: binding.game.clone(),
            params: binding.params.clone(),
            selection: binding.wager.selection.as_ref().map(|json| json.value().clone()),
            stake: binding.wager.stake.as_ref().map(|stake| stake.as_decimal().clone()),
            currency: binding.wager.currency.as_ref().map(|currency| currency.as_str().to_owned()),
            context: binding.wager.context.as_ref().map(|json| json.value().clone()),
            rules: binding.rules.clone(),
            taken_at: reserved.taken_at,
            expires_at,
            commitment: binding.commitment,
            client_seed: reserved.client_seed.clone(),
            server_seed: None,
            state: BetState::Pending,
            has_pending_row: binding.kind != BetKind::Played,
            settlement: None,
        });
        let result = binding.play.filter(|_| binding.kind == BetKind::Played).map(|play| {
            let result = play.result(pair, key.nonce).to_json();
            self.complete(&mut bet, result, play.cursor(), None)
        });
        (bet, result)
    }

    /// Why no nonce was handed out. Under the session's lock, so that what is told belongs together.
    async fn explain_in(&self, tx: &mut Tx, session_id: Uuid, binding: &Binding) -> Result<Taken, Attempt> {
        let session = tx.lock_session(session_id).await?.ok_or(SeedsError::SessionNotFound)?;
        if let Some(bet) = tx.bet_by_ref(session_id, &binding.bet_ref).await? {
            return replayed(binding, bet);
        }
        self.in_epoch(&session)?;
        if !session.open {
            return Err(SeedsError::SessionClosed.into());
        }
        let seed = tx.latest_seed(session_id).await?.ok_or_else(|| missing("seed"))?;
        if seed.commitment != binding.commitment || seed.status != SeedStatus::Live {
            let session = Box::new(self.view_in(tx, session_id).await?);
            return Err(SeedsError::CommitmentChanged { session }.into());
        }
        if seed.epoch != self.epoch() {
            // A recovery was made just now, and this process has not heard of it yet.
            let message = format!("the session's seed is of recovery epoch {}", seed.epoch);
            return Err(DbError::Unavailable(message).into());
        }
        if seed.next_nonce >= NONCE_MAX {
            return Err(SeedsError::NonceExhausted.into());
        }
        if binding.kind != BetKind::Played && seed.pending >= self.inner.settings.pending_max {
            return Err(SeedsError::TooManyPending.into());
        }
        Err(Attempt::LookAgain)
    }

    async fn reservation(&self, taken: Taken) -> Result<Reservation, SeedsError> {
        // After the commit: the floats leave only once the wager is durable.
        let Taken { bet, replayed, pair } = taken;
        let (Some(rules), Some(expires_at)) = (&bet.rules, bet.expires_at) else {
            return Err(missing("reservation").into());
        };
        let pair = match pair {
            Some(pair) => pair,
            None => Arc::new(self.stored_pair(&bet).await?),
        };
        Ok(Reservation {
            session_id: bet.key.session_id,
            commitment: bet.commitment,
            client_seed: bet.client_seed.clone(),
            nonce: bet.key.nonce,
            floats: pair.floats(bet.key.nonce).take(rules.floats as usize).collect(),
            cursor: floats::cursor(rules.floats),
            expires_at: Timestamp(expires_at),
            game: bet.game.clone(),
            meta: bet_meta(&bet),
            replayed,
        })
    }

    async fn stored_pair(&self, bet: &BetDetails) -> Result<SeedPair, DbError> {
        let mut tx = self.inner.store.snapshot("bet.floats").await?;
        let seed = tx.seed(bet.key.session_id, bet.key.seed_no).await?.ok_or_else(|| missing("seed"))?;
        tx.rollback().await;
        self.open_pair(bet.key.session_id, &bet.commitment, &seed.sealed, &bet.client_seed)
    }

    /// The result of a round's bet, opened from its sealed seed. Nobody but the round's own steps and its close may be told.
    pub(super) async fn concealed_result(
        &self,
        tx: &mut Tx,
        bet: &BetDetails,
    ) -> Result<(crate::gfs::games::GameResult, u32), DbError> {
        let seed = tx.seed(bet.key.session_id, bet.key.seed_no).await?.ok_or_else(|| missing("seed"))?;
        let pair = self.open_pair(bet.key.session_id, &bet.commitment, &seed.sealed, &bet.client_seed)?;
        let play = stored_play(&bet.game, &bet.params)?;
        Ok((play.result(&pair, bet.key.nonce), play.cursor()))
    }
}

fn replayed(binding: &Binding, bet: BetDetails) -> Result<Taken, Attempt> {
    if binding.is(&bet) {
        Ok(Taken { bet: Box::new(bet), replayed: true, pair: None })
    } else {
        Err(SeedsError::BetRefReused.into())
    }
}

fn time_delta(duration: Duration) -> TimeDelta {
    // Settings are days at the most; a longer time would not end before the calendar does.
    TimeDelta::from_std(duration).unwrap_or(TimeDelta::MAX)
}
