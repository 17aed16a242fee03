//! Taking a bet: played at once, as a round whose result is concealed, or as a reservation for an outside game.
//!
//! Keeps I3 and I4 (the nonce and the stored bet are one transaction), I9 (what is answered is committed) and I11 (a concealed result
//! is not even calculated, and an outside game's floats are shown only once everything they decide is bound).

use std::time::Duration;

use chrono::TimeDelta;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::answer::{bet_answer, bet_meta, stored_play};
use super::error::{Attempt, SeedsError, settle_it};
use super::model::{BetAnswer, Reservation};
use super::values::{BetRef, BoundedJson, Currency, InvalidValue, JSON_BYTES_MAX, Money, OutsideGame, Timestamp};
use super::{Seeds, missing};
use crate::db::bets::{BetKey, BetKind, NewBet, RulesRow};
use crate::db::details::{BetDetails, BetState};
use crate::db::seeds::{ReservedNonce, SeedStatus};
use crate::db::{DbError, Tx};
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
struct Binding<'a> {
    commitment: Commitment,
    bet_ref: &'a str,
    kind: BetKind,
    game: &'a str,
    params: Map<String, Value>,
    wager: &'a Wager,
    rules: Option<RulesRow>,
    /// The play of a GFS game.
    play: Option<&'a Play>,
}

impl Binding<'_> {
    /// Whether a stored bet is this very one: equal as canonical JSON with defaults filled in, money compared as numbers. The
    /// commitment is not part of it: the same reference after a rotation finds the same bet.
    fn is(&self, bet: &BetDetails) -> bool {
        let same_json = |ours: Option<&BoundedJson>, stored: Option<&Value>| {
            ours.map(BoundedJson::canonical) == stored.map(json::canonical).as_deref()
        };
        self.kind == bet.kind
            && self.game == bet.game
            && json::canonical_map(&self.params) == json::canonical_map(&bet.params)
            && same_json(self.wager.selection.as_ref(), bet.selection.as_ref())
            && self.wager.stake.as_ref().map(Money::as_decimal) == bet.stake.as_ref()
            && self.wager.currency.as_ref().map(Currency::as_str) == bet.currency.as_deref()
            && same_json(self.wager.context.as_ref(), bet.context.as_ref())
            && self.rules == bet.rules
    }
}

/// A bet that is stored, and whether it had been before.
pub(super) struct Taken {
    pub(super) bet: BetDetails,
    pub(super) replayed: bool,
}

impl Seeds {
    /// Takes a bet on a game of GFS/1.0. The same reference again gets the stored bet, for ever.
    ///
    /// # Errors
    /// In this order of precedence: [`SeedsError::SessionNotFound`], [`SeedsError::BetRefReused`], [`SeedsError::SessionClosed`],
    /// [`SeedsError::CommitmentChanged`], [`SeedsError::NonceExhausted`], [`SeedsError::TooManyPending`]; and the database's.
    pub async fn take_bet(&self, session_id: Uuid, request: &BetRequest) -> Result<BetAnswer, SeedsError> {
        let binding = Binding {
            commitment: request.commitment,
            bet_ref: request.bet_ref.as_str(),
            kind: if request.game.conceal { BetKind::Round } else { BetKind::Played },
            game: request.game.play.game().name(),
            params: request.game.play.params(),
            wager: &request.wager,
            rules: None,
            play: Some(&request.game.play),
        };
        let taken = self.take(session_id, &binding).await?;
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
            bet_ref: request.bet_ref.as_str(),
            kind: BetKind::Reservation,
            game: request.game.as_str(),
            params: request.params.clone(),
            wager: &request.wager,
            rules: Some(RulesRow {
                id: request.rules.id.clone(),
                sha256: request.rules.sha256,
                floats: request.floats,
            }),
            play: None,
        };
        let taken = self.take(session_id, &binding).await?;
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
            bet_ref: bet_ref.as_str(),
            kind: BetKind::Reservation,
            game: GAME_UNBOUND,
            params: Map::new(),
            wager: &Wager::default(),
            rules: None,
            play: None,
        };
        Ok(self.take(session_id, &binding).await?.bet.key.nonce)
    }

    async fn take(&self, session_id: Uuid, binding: &Binding<'_>) -> Result<Taken, SeedsError> {
        let mut taken = self.try_take(session_id, binding).await;
        if matches!(taken, Err(SeedsError::TooManyPending)) && self.void_expired_of(session_id).await? > 0 {
            // Reservations that expired are pending no more, swept or not.
            taken = self.try_take(session_id, binding).await;
        }
        self.saw(session_id);
        taken
    }

    async fn try_take(&self, session_id: Uuid, binding: &Binding<'_>) -> Result<Taken, SeedsError> {
        // Most requests are new: the stored bet is looked for only after a first try found something in the way.
        let mut first = true;
        settle_it!(self, "bet.take", |tx| {
            let look_first = !std::mem::take(&mut first);
            self.take_in(tx, session_id, binding, look_first).await
        })
    }

    async fn take_in(
        &self,
        tx: &mut Tx,
        session_id: Uuid,
        binding: &Binding<'_>,
        look_first: bool,
    ) -> Result<Taken, Attempt> {
        if look_first && let Some(bet) = tx.bet_by_ref(session_id, binding.bet_ref).await? {
            return replayed(binding, bet);
        }
        let settings = &self.inner.settings;
        let pending = binding.kind != BetKind::Played;
        let reserved =
            tx.reserve_nonce(session_id, &binding.commitment, self.epoch(), pending, settings.pending_max).await?;
        let Some(reserved) = reserved else {
            return self.explain(tx, session_id, binding).await;
        };
        let bet = self.store(tx, session_id, binding, reserved).await?;
        Ok(Taken { bet, replayed: false })
    }

    /// Stores a bet under the nonce that it was just given.
    async fn store(
        &self,
        tx: &mut Tx,
        session_id: Uuid,
        binding: &Binding<'_>,
        reserved: ReservedNonce,
    ) -> Result<BetDetails, Attempt> {
        let key = BetKey { session_id, seed_no: reserved.seed_no, nonce: reserved.nonce };
        let expires_at = (binding.kind == BetKind::Reservation)
            .then(|| reserved.taken_at + time_delta(self.inner.settings.reservation_ttl));
        let mut bet = BetDetails {
            key,
            bet_ref: binding.bet_ref.to_owned(),
            kind: binding.kind,
            game: binding.game.to_owned(),
            params: binding.params.clone(),
            selection: binding.wager.selection.as_ref().map(|json| json.value().clone()),
            stake: binding.wager.stake.as_ref().map(|stake| stake.as_decimal().clone()),
            currency: binding.wager.currency.as_ref().map(|currency| currency.as_str().to_owned()),
            context: binding.wager.context.as_ref().map(|json| json.value().clone()),
            rules: binding.rules.clone(),
            taken_at: reserved.taken_at,
            expires_at,
            commitment: binding.commitment,
            client_seed: reserved.client_seed,
            server_seed: None,
            state: BetState::Pending,
            settlement: None,
        };
        let result = match binding.play {
            Some(play) if binding.kind == BetKind::Played => {
                let pair = self.open_pair(session_id, &bet.commitment, &reserved.sealed, &bet.client_seed)?;
                let result = play.result(&pair, key.nonce).to_json();
                Some(self.complete(&mut bet, result, play.cursor(), None))
            }
            _ => None,
        };
        let stored = tx
            .insert_bet(&NewBet {
                key,
                bet_ref: binding.bet_ref,
                kind: binding.kind,
                game: binding.game,
                params: &json::canonical_map(&binding.params),
                selection: binding.wager.selection.as_ref().map(BoundedJson::canonical),
                stake: bet.stake.as_ref(),
                currency: bet.currency.as_deref(),
                context: binding.wager.context.as_ref().map(BoundedJson::canonical),
                rules: binding.rules.as_ref(),
                taken_at: bet.taken_at,
                expires_at,
                result: result.as_ref(),
            })
            .await?;
        if !stored {
            // The reference was taken meanwhile: give the nonce back by rolling back, and find the bet.
            return Err(Attempt::LookAgain);
        }
        if binding.kind != BetKind::Played {
            tx.insert_pending(&key, binding.kind, bet.taken_at, expires_at).await?;
        }
        Ok(bet)
    }

    /// Why no nonce was handed out. Under the session's lock, so that what is told belongs together.
    async fn explain(&self, tx: &mut Tx, session_id: Uuid, binding: &Binding<'_>) -> Result<Taken, Attempt> {
        let session = tx.lock_session(session_id).await?.ok_or(SeedsError::SessionNotFound)?;
        if let Some(bet) = tx.bet_by_ref(session_id, binding.bet_ref).await? {
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
        let Taken { bet, replayed } = taken;
        let (Some(rules), Some(expires_at)) = (&bet.rules, bet.expires_at) else {
            return Err(missing("reservation").into());
        };
        // Read after the commit: the floats leave only once the wager is durable.
        let mut tx = self.inner.store.snapshot("bet.floats").await?;
        let seed = tx.seed(bet.key.session_id, bet.key.seed_no).await?.ok_or_else(|| missing("seed"))?;
        tx.rollback().await;
        let pair = self.open_pair(bet.key.session_id, &bet.commitment, &seed.sealed, &bet.client_seed)?;
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

fn replayed(binding: &Binding<'_>, bet: BetDetails) -> Result<Taken, Attempt> {
    if binding.is(&bet) { Ok(Taken { bet, replayed: true }) } else { Err(SeedsError::BetRefReused.into()) }
}

fn time_delta(duration: Duration) -> TimeDelta {
    // Settings are days at the most; a longer time would not end before the calendar does.
    TimeDelta::from_std(duration).unwrap_or(TimeDelta::MAX)
}
