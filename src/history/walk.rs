//! From filters to the bets that fit them: which index is walked, and how far.
//!
//! Keeps I12: whatever the filters, a walk takes batches of a bounded size and its caller says how much it may look at in all.

use std::collections::VecDeque;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::filters::{Filters, Order};
use crate::db::bets::BetKey;
use crate::db::history::{
    Bound, Candidate, Direction, InSession, Position, SeedPart, SeedSpan, SeedsOf, Wanted, WantedState,
};
use crate::db::{DbError, Look, Tx};

/// Seeds read at once.
const SEEDS_BATCH: usize = 500;

/// Seeds read first: most pages need few.
const SEEDS_FIRST: usize = 32;

/// Rows read at once where some may not fit.
const ROWS_BATCH: usize = 5_000;

/// A bet's time may be later than the end of its seed by as much as the clock was set back in between. A seed is passed over only when it
/// ended earlier than what is asked for by more than this.
const CLOCK_SLACK: TimeDelta = TimeDelta::days(1);

/// What a walk goes through.
#[derive(Clone, Debug)]
enum Route {
    Time,
    Reference(InSession),
    Seeds(Scope),
    /// Nothing can fit.
    Nothing,
}

#[derive(Clone, Debug)]
enum Scope {
    Seed(Uuid, i32),
    Session(Uuid),
    Player(String),
}

/// A walk through the history in one snapshot, in one direction.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    filters: &'a Filters,
    wanted: Wanted<'a>,
    direction: Direction,
    route: Route,
    /// Everything up to here was looked at.
    at: Option<Position>,
    /// Read and not yet walked.
    parts: VecDeque<SeedPart>,
    seeds_read: Option<(Uuid, i32)>,
    seeds_done: bool,
    /// Nothing is left to be walked.
    done: bool,
    /// Found and not yet given.
    ahead: VecDeque<Position>,
}

/// Bets found, in order.
#[derive(Debug)]
pub(super) struct Found {
    pub positions: Vec<Position>,
    /// Where to go on; none when there is no more.
    pub next: Option<Position>,
}

impl<'a> Walk<'a> {
    /// Begins a walk beyond a position, through what was taken before a time.
    pub(super) async fn begin(
        tx: &mut Tx<Look>,
        filters: &'a Filters,
        direction: Direction,
        as_of: DateTime<Utc>,
        beyond: Option<Position>,
    ) -> Result<Self, DbError> {
        let to = filters.to.map_or(as_of, |to| to.0.min(as_of));
        let wanted = Wanted {
            game: filters.game.as_ref().map(|game| game.as_str()),
            state: filters.wanted_state(),
            player_ref: filters.player_ref.as_ref().map(|player_ref| player_ref.as_str()),
            nonce: filters.nonce,
            from: filters.earliest(),
            until: to,
        };
        Ok(Self {
            route: route(tx, filters).await?,
            filters,
            wanted,
            direction,
            at: beyond,
            parts: VecDeque::new(),
            seeds_read: None,
            seeds_done: false,
            done: false,
            ahead: VecDeque::new(),
        })
    }

    /// Goes on until so many bets are found, so many rows were looked at, or there are no more.
    pub(super) async fn find(
        &mut self,
        tx: &mut Tx<Look>,
        count: usize,
        examined_max: usize,
    ) -> Result<Found, DbError> {
        let mut examined = 0;
        // As if all fitted; the fewer do, the larger the batches become.
        let mut batch = count + 1;
        // One more than asked for tells whether there are more.
        while self.ahead.len() <= count && !self.done && examined < examined_max {
            let limit = if self.every_row_fits() { count + 1 - self.ahead.len() } else { batch };
            let rows = self.step(tx, limit.min(examined_max - examined), &mut examined).await?;
            self.ahead.extend(rows.iter().filter(|row| row.matches).map(|row| row.position));
            batch = (batch * 4).min(ROWS_BATCH);
        }
        let positions: Vec<Position> = self.ahead.drain(..count.min(self.ahead.len())).collect();
        let next = if self.ahead.is_empty() { self.at.filter(|_| !self.done) } else { positions.last().copied() };
        Ok(Found { positions, next })
    }

    /// Whether all that is walked is asked for.
    fn every_row_fits(&self) -> bool {
        let by_time = self.filters.order() == Order::Time;
        match self.wanted.state {
            None => by_time || (self.wanted.game.is_none() && self.filters.from.is_none() && self.filters.to.is_none()),
            Some(_) => false,
        }
    }

    /// Takes the next batch of rows.
    async fn step(&mut self, tx: &mut Tx<Look>, limit: usize, examined: &mut usize) -> Result<Vec<Candidate>, DbError> {
        let at = self.at;
        let rows = match &self.route {
            Route::Nothing => Vec::new(),
            Route::Time => tx.walk_time(&self.wanted, at.as_ref(), self.direction, limit).await?,
            Route::Reference(place) => {
                let bet_ref = self.filters.bet_ref.as_ref().map_or("", |bet_ref| bet_ref.as_str());
                tx.walk_ref(&self.wanted, bet_ref, *place, at.as_ref(), self.direction, limit).await?
            }
            Route::Seeds(scope) => {
                let scope = scope.clone();
                return self.step_through_seeds(tx, &scope, limit, examined).await;
            }
        };
        *examined += rows.len();
        self.done = rows.len() < limit;
        self.at = rows.last().map(|row| row.position).or(self.at);
        Ok(rows)
    }

    /// The same through seeds: reads some of them, then the bets of those that can have what is asked for.
    async fn step_through_seeds(
        &mut self,
        tx: &mut Tx<Look>,
        scope: &Scope,
        limit: usize,
        examined: &mut usize,
    ) -> Result<Vec<Candidate>, DbError> {
        if self.parts.is_empty() {
            self.read_seeds(tx, scope, examined).await?;
        }
        let rows = if self.parts.is_empty() {
            Vec::new()
        } else {
            tx.walk_seeds(&self.wanted, self.parts.make_contiguous(), self.direction, limit).await?
        };
        *examined += rows.len();
        if rows.len() < limit {
            self.parts.clear();
            self.at = self.seeds_read.map(|(session_id, seed_no)| self.end_of(session_id, seed_no)).or(self.at);
            self.done = self.seeds_done;
        } else if let Some(last) = rows.last() {
            self.at = Some(last.position);
            self.leave_parts_before(&last.position.key);
        }
        Ok(rows)
    }

    /// Reads the next seeds and keeps those that can have what is asked for. They count as rows looked at: a player may have very many
    /// without a bet.
    async fn read_seeds(&mut self, tx: &mut Tx<Look>, scope: &Scope, examined: &mut usize) -> Result<(), DbError> {
        let limit = if self.seeds_read.is_none() { SEEDS_FIRST } else { SEEDS_BATCH };
        let of = match scope {
            Scope::Seed(session_id, seed_no) => SeedsOf::Seed(*session_id, *seed_no),
            Scope::Session(session_id) => SeedsOf::Session(*session_id),
            Scope::Player(player_ref) => SeedsOf::Player(player_ref),
        };
        let start = match (self.seeds_read, self.at) {
            (Some((session_id, seed_no)), _) => Some((session_id, seed_no, Bound::Excluded)),
            (None, Some(Position { key, .. })) => Some((key.session_id, key.seed_no, Bound::Included)),
            (None, None) => None,
        };
        let seeds = tx.walk_seed_spans(of, start, self.direction, limit).await?;
        *examined += seeds.len();
        if let Some(last) = seeds.last() {
            self.seeds_read = Some((last.session_id, last.seed_no));
        }
        let wanted = seeds.iter().filter(|seed| self.may_have_wanted(seed));
        let parts: Vec<SeedPart> = wanted.map(|seed| self.part_of(seed)).collect();
        self.parts.extend(parts);
        self.seeds_done = seeds.len() < limit;
        Ok(())
    }

    /// What of a seed is still to be looked at.
    fn part_of(&self, seed: &SeedSpan) -> SeedPart {
        let SeedSpan { session_id, seed_no, .. } = *seed;
        let mut part = SeedPart { session_id, seed_no, above: -1, below: i64::MAX };
        if let Some(nonce) = self.wanted.nonce {
            (part.above, part.below) = (nonce.cast_signed() - 1, nonce.cast_signed() + 1);
        }
        let at = self.at.map(|at| at.key);
        if let Some(at) = at.filter(|at| (at.session_id, at.seed_no) == (session_id, seed_no)) {
            self.cut(&mut part, &at);
        }
        part
    }

    fn may_have_wanted(&self, seed: &SeedSpan) -> bool {
        let counted = match self.wanted.state {
            Some(WantedState::Pending) => seed.pending > 0,
            None | Some(WantedState::Recorded | WantedState::Void) => seed.bets > 0,
        };
        counted
            && seed.live_at.is_some_and(|live_at| live_at < self.wanted.until)
            && seed.retired_at.is_none_or(|retired_at| retired_at >= self.wanted.from - CLOCK_SLACK)
    }

    /// Leaves of a seed what is beyond a bet.
    fn cut(&self, part: &mut SeedPart, at: &BetKey) {
        let nonce = i64::try_from(at.nonce).unwrap_or(i64::MAX);
        match self.direction {
            Direction::Descending => part.below = part.below.min(nonce),
            Direction::Ascending => part.above = part.above.max(nonce),
        }
    }

    fn leave_parts_before(&mut self, at: &BetKey) {
        while let Some(mut part) = self.parts.pop_front() {
            if (part.session_id, part.seed_no) == (at.session_id, at.seed_no) {
                self.cut(&mut part, at);
                self.parts.push_front(part);
                return;
            }
        }
    }

    /// Beyond every bet of a seed.
    fn end_of(&self, session_id: Uuid, seed_no: i32) -> Position {
        let nonce = match self.direction {
            Direction::Descending => 0,
            Direction::Ascending => i64::MAX.cast_unsigned(),
        };
        Position { key: BetKey { session_id, seed_no, nonce }, taken_at: DateTime::UNIX_EPOCH }
    }
}

/// Finds out where what fits the filters can be.
async fn route(tx: &mut Tx<Look>, filters: &Filters) -> Result<Route, DbError> {
    if filters.order() == Order::Time {
        return Ok(Route::Time);
    }
    let mut session_id = filters.session_id;
    let mut seed_no = None;
    if let Some(commitment) = &filters.commitment {
        match tx.find_commitment(commitment).await? {
            Some((found, _)) if session_id.is_some_and(|asked| asked != found) => return Ok(Route::Nothing),
            Some((found, number)) => (session_id, seed_no) = (Some(found), Some(number)),
            None => return Ok(Route::Nothing),
        }
    }
    if filters.bet_ref.is_some() {
        return Ok(Route::Reference(InSession { session_id, seed_no }));
    }
    let Some(session_id) = session_id else {
        // The order is by place, and of its four filters only the player is left.
        let player_ref = filters.player_ref.as_ref().map_or("", |player_ref| player_ref.as_str());
        return Ok(Route::Seeds(Scope::Player(player_ref.to_owned())));
    };
    if let Some(player_ref) = &filters.player_ref {
        let session = tx.session(session_id).await?;
        if session.and_then(|session| session.player_ref).as_deref() != Some(player_ref.as_str()) {
            return Ok(Route::Nothing);
        }
    }
    Ok(Route::Seeds(seed_no.map_or(Scope::Session(session_id), |seed_no| Scope::Seed(session_id, seed_no))))
}
