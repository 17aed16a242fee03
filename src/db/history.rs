//! Walking the whole history: which bets there are, in one of two total orders, by whatever filter; and up to when it is complete.
//!
//! Keeps I12. Each statement here walks one index from a place on, reads a stated number of rows and stops: what a page costs depends
//! neither on how many bets there are nor on how deep the page is. A condition that the index does not have never narrows the walk but
//! is told of each row (`matches`), so that the caller knows how far it came. Two things keep the planner to that whatever its
//! statistics say: [`Reader::snapshot`](super::Reader::snapshot) leaves it no other way than nested walks of indexes, and
//! where two indexes could serve, the condition is a comparison of rows that only one of them has.

use chrono::{DateTime, Utc};
use sqlx::{Postgres, QueryBuilder};
use uuid::Uuid;

use super::bets::BetKey;
use super::decode::StoredTime;
use super::{Access, Change, DbError, Tx, decode};

const WHAT: &str = "bet";

/// Which way a walk goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the newest or highest down.
    Descending,
    /// From the oldest or lowest up.
    Ascending,
}

impl Direction {
    fn word(self) -> &'static str {
        match self {
            Self::Descending => "DESC",
            Self::Ascending => "ASC",
        }
    }

    /// How what is beyond a place compares with it.
    fn beyond(self) -> &'static str {
        match self {
            Self::Descending => "<",
            Self::Ascending => ">",
        }
    }
}

/// The state that a bet is to have, as of the transaction's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedState {
    /// With a result.
    Recorded,
    /// Concealed or owed, and not expired.
    Pending,
    /// Ended without a result, or expired.
    Void,
}

/// What bets are looked for.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// Of this game.
    pub game: Option<&'a str>,
    /// In this state.
    pub state: Option<WantedState>,
    /// Of this player's sessions.
    pub player_ref: Option<&'a str>,
    /// With this nonce.
    pub nonce: Option<u64>,
    /// Taken at this time or later.
    pub from: DateTime<Utc>,
    /// Taken before this time.
    pub until: DateTime<Utc>,
}

impl Wanted<'_> {
    /// The rows that a walk looks at: void and pending bets are few, and have rows of their own.
    fn source(&self) -> &'static str {
        match self.state {
            None | Some(WantedState::Recorded) => "fairledger.bets",
            Some(WantedState::Pending) => PENDING,
            Some(WantedState::Void) => VOIDS,
        }
    }

    fn walks_bets(&self) -> bool {
        matches!(self.state, None | Some(WantedState::Recorded))
    }
}

/// Not `statement_timestamp()`: all statements of a snapshot must agree on what has expired.
const PENDING: &str =
    "(SELECT session_id, seed_no, nonce, taken_at, coalesce(expires_at > transaction_timestamp(), true) AS fits
                        FROM fairledger.pending)";

/// A reservation that has expired is void, swept or not.
const VOIDS: &str = "(SELECT session_id, seed_no, nonce, taken_at, true AS fits FROM fairledger.voids
                      UNION ALL
                      SELECT session_id, seed_no, nonce, taken_at, coalesce(expires_at <= transaction_timestamp(), false)
                      FROM fairledger.pending)";

// Single rows by key, as scalar subqueries: EXISTS could be hashed, which reads the whole table.
const IS_RECORDED: &str = "(b.kind = 'played' OR coalesce((SELECT true FROM fairledger.outcomes o
    WHERE o.session_id = b.session_id AND o.seed_no = b.seed_no AND o.nonce = b.nonce), false))";
const IS_PENDING: &str =
    "coalesce((SELECT coalesce(p.expires_at > transaction_timestamp(), true) FROM fairledger.pending p
    WHERE p.session_id = b.session_id AND p.seed_no = b.seed_no AND p.nonce = b.nonce), false)";
const IS_VOID: &str = "coalesce((SELECT true FROM fairledger.voids v
    WHERE v.session_id = b.session_id AND v.seed_no = b.seed_no AND v.nonce = b.nonce),
    (SELECT p.expires_at <= transaction_timestamp() FROM fairledger.pending p
    WHERE p.session_id = b.session_id AND p.seed_no = b.seed_no AND p.nonce = b.nonce), false)";

/// Where a walk is: a bet and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The bet's place.
    pub key: BetKey,
    /// When it was taken.
    pub taken_at: DateTime<Utc>,
}

/// A row that a walk came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Where.
    pub position: Position,
    /// Whether it is what is looked for.
    pub matches: bool,
}

/// Where seeds are looked for.
#[derive(Clone, Copy, Debug)]
pub enum SeedsOf<'a> {
    /// One seed.
    Seed(Uuid, i32),
    /// A session.
    Session(Uuid),
    /// All sessions of a player.
    Player(&'a str),
}

/// What of a seed tells whether a bet of it can be looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeedSpan {
    /// The session.
    pub session_id: Uuid,
    /// The seed's number in it.
    pub seed_no: i32,
    /// Bets under it.
    pub bets: u64,
    /// How many of them are pending.
    pub pending: u32,
    /// No bet of it was taken earlier.
    pub live_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub retired_at: Option<DateTime<Utc>>,
}

/// Part of a seed: the nonces between two, neither included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeedPart {
    /// The session.
    pub session_id: Uuid,
    /// The seed's number in it.
    pub seed_no: i32,
    /// Nonces above this one.
    pub above: i64,
    /// Nonces below this one.
    pub below: i64,
}

/// Where a reference is looked for.
#[derive(Clone, Copy, Debug)]
pub struct InSession {
    /// In this session; in all without it.
    pub session_id: Option<Uuid>,
    /// Under this seed of it.
    pub seed_no: Option<i32>,
}

/// Whether bets are being taken just now, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// When it was asked.
    pub now: DateTime<Utc>,
    /// The beginning of the oldest transaction that may be taking a bet.
    pub oldest: Option<DateTime<Utc>>,
    /// Some such transaction is another role's, or prepared, and does not tell when it began.
    pub untold: bool,
}

impl InFlight {
    /// A time before which no bet can be committed any more; none when it cannot be told.
    #[must_use]
    pub fn as_of(&self) -> Option<DateTime<Utc>> {
        (!self.untold).then(|| self.oldest.map_or(self.now, |oldest| oldest.min(self.now)))
    }
}

type Row = (Uuid, i32, i64, StoredTime, bool);

fn candidate((session_id, seed_no, nonce, taken_at, matches): Row) -> Result<Candidate, DbError> {
    let key = BetKey { session_id, seed_no, nonce: decode::unsigned(WHAT, nonce)? };
    Ok(Candidate { position: Position { key, taken_at: taken_at.time(WHAT)? }, matches })
}

/// A condition under which a row matches, built up part by part.
fn push_matches(query: &mut QueryBuilder<Postgres>, wanted: &Wanted<'_>, game_is_walked: bool, time_is_walked: bool) {
    match wanted.state {
        None => query.push("(true"),
        Some(WantedState::Recorded) => query.push("(").push(IS_RECORDED),
        Some(WantedState::Pending | WantedState::Void) => query.push("(b.fits"),
    };
    push_more_matches(query, wanted, game_is_walked, time_is_walked, wanted.walks_bets());
    query.push(") AS matches");
}

fn push_more_matches(
    query: &mut QueryBuilder<Postgres>,
    wanted: &Wanted<'_>,
    game_is_walked: bool,
    time_is_walked: bool,
    walks_bets: bool,
) {
    if let Some(game) = wanted.game.filter(|_| !game_is_walked) {
        if walks_bets {
            query.push(" AND b.game = ").push_bind(game.to_owned());
        } else {
            query.push(" AND coalesce((SELECT g.game = ").push_bind(game.to_owned()).push(
                " FROM fairledger.bets g WHERE g.session_id = b.session_id AND g.seed_no = b.seed_no AND g.nonce = b.nonce), false)",
            );
        }
    }
    if !time_is_walked {
        query.push(" AND b.taken_at >= ").push_bind(wanted.from).push(" AND b.taken_at < ").push_bind(wanted.until);
    }
}

impl<A: Access> Tx<A> {
    /// Whether bets are being taken just now. The snapshot of a reader who relies on it must begin after this.
    ///
    /// A bet gets its time while its transaction has the table of seeds locked for writing, and keeps that lock to its end. So whoever
    /// holds it when we look may yet commit a time as early as its own beginning, and whoever does not will get a time after ours.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn bets_in_flight(&mut self) -> Result<InFlight, DbError> {
        // Statistics of another role's connections have no state for us. A prepared transaction has no connection.
        let row = sqlx::query!(
            r#"SELECT statement_timestamp() AS "now!", min(a.xact_start) AS oldest,
                      coalesce(bool_or(l.pid IS NULL OR (a.pid IS NOT NULL AND (a.state IS NULL OR a.state = 'disabled'))), false) AS "untold!"
               FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
               WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock'
                 AND l.relation IN ('fairledger.seeds'::regclass, 'fairledger.bets'::regclass)
                 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"#
        )
        .fetch_one(&mut *self.inner)
        .await?;
        Ok(InFlight { now: row.now, oldest: row.oldest, untold: row.untold })
    }

    /// When this snapshot was begun, and the time that services wrote down as complete before that.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn horizon(&mut self) -> Result<(DateTime<Utc>, DateTime<Utc>), DbError> {
        let row = sqlx::query!(r#"SELECT transaction_timestamp() AS "now!", as_of FROM fairledger.horizon"#)
            .fetch_one(&mut *self.inner)
            .await?;
        Ok((row.now, row.as_of))
    }

    /// Walks in the order of time (then place), from beyond a position: all bets, those of a game, or the void or pending ones.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn walk_time(
        &mut self,
        wanted: &Wanted<'_>,
        beyond: Option<&Position>,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<Candidate>, DbError> {
        let word = direction.word();
        let by_game = wanted.game.filter(|_| wanted.walks_bets());
        let mut query = QueryBuilder::new("SELECT b.session_id, b.seed_no, b.nonce, b.taken_at, ");
        push_matches(&mut query, wanted, by_game.is_some(), true);
        query.push(" FROM ").push(wanted.source()).push(" b WHERE ");
        let (mut from, mut until, mut upper) = (wanted.from, wanted.until, "<");
        if let Some(position) = beyond {
            match direction {
                Direction::Ascending => from = from.max(position.taken_at),
                Direction::Descending if position.taken_at < until => (until, upper) = (position.taken_at, "<="),
                Direction::Descending => {}
            }
        }
        if let Some(game) = by_game {
            query.push("(b.game, b.taken_at) >= (").push_bind(game.to_owned()).push(", ").push_bind(from).push(")");
            query.push(format!(" AND (b.game, b.taken_at) {upper} ("));
            query.push_bind(game.to_owned()).push(", ").push_bind(until).push(")");
        } else {
            query.push("b.taken_at >= ").push_bind(from);
            query.push(format!(" AND b.taken_at {upper} ")).push_bind(until);
        }
        if let Some(Position { key, taken_at }) = beyond {
            query.push(format!(" AND (b.taken_at, b.session_id, b.seed_no, b.nonce) {} (", direction.beyond()));
            query.push_bind(*taken_at).push(", ").push_bind(key.session_id).push(", ").push_bind(key.seed_no);
            query.push(", ").push_bind(key.nonce_i64()).push(")");
        }
        let game_first = if by_game.is_some() { format!("b.game {word}, ") } else { String::new() };
        query.push(format!(
            " ORDER BY {game_first}b.taken_at {word}, b.session_id {word}, b.seed_no {word}, b.nonce {word} LIMIT "
        ));
        query.push_bind(limit_i64(limit));
        self.candidates(query).await
    }

    /// Walks the bets of a reference, in the order of place, from beyond a position.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn walk_ref(
        &mut self,
        wanted: &Wanted<'_>,
        bet_ref: &str,
        InSession { session_id, seed_no }: InSession,
        beyond: Option<&Position>,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<Candidate>, DbError> {
        let word = direction.word();
        let (mut low, mut high) = session_id.map_or((Uuid::nil(), Uuid::max()), |id| (id, id));
        let mut query = QueryBuilder::new("SELECT b.session_id, b.seed_no, b.nonce, b.taken_at, (");
        query.push(match wanted.state {
            None => "true",
            Some(WantedState::Recorded) => IS_RECORDED,
            Some(WantedState::Pending) => IS_PENDING,
            Some(WantedState::Void) => IS_VOID,
        });
        push_more_matches(&mut query, wanted, false, false, true);
        if let Some(seed_no) = seed_no {
            query.push(" AND b.seed_no = ").push_bind(seed_no);
        }
        if let Some(nonce) = wanted.nonce {
            query.push(" AND b.nonce = ").push_bind(nonce.cast_signed());
        }
        if let Some(player_ref) = wanted.player_ref {
            query.push(" AND coalesce((SELECT x.player_ref = ").push_bind(player_ref.to_owned());
            query.push(" FROM fairledger.sessions x WHERE x.session_id = b.session_id), false)");
        }
        query.push(") AS matches FROM fairledger.bets b WHERE ");
        if let Some(position) = beyond {
            match direction {
                Direction::Ascending => low = low.max(position.key.session_id),
                Direction::Descending => high = high.min(position.key.session_id),
            }
        }
        query.push("(b.bet_ref, b.session_id) >= (").push_bind(bet_ref.to_owned()).push(", ").push_bind(low);
        query.push(") AND (b.bet_ref, b.session_id) <= (").push_bind(bet_ref.to_owned()).push(", ").push_bind(high);
        query.push(")");
        if let Some(Position { key, .. }) = beyond {
            query.push(format!(" AND (b.session_id, b.seed_no, b.nonce) {} (", direction.beyond()));
            query.push_bind(key.session_id).push(", ").push_bind(key.seed_no);
            query.push(", ").push_bind(key.nonce_i64()).push(")");
        }
        query.push(format!(" ORDER BY b.bet_ref {word}, b.session_id {word}, b.seed_no {word}, b.nonce {word} LIMIT "));
        query.push_bind(limit_i64(limit));
        self.candidates(query).await
    }

    /// Walks the bets of given parts of seeds, in the order of those and then by nonce.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn walk_seeds(
        &mut self,
        wanted: &Wanted<'_>,
        parts: &[SeedPart],
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<Candidate>, DbError> {
        let word = direction.word();
        let mut query = QueryBuilder::new("SELECT b.session_id, b.seed_no, b.nonce, b.taken_at, ");
        push_matches(&mut query, wanted, false, false);
        query.push(" FROM unnest(").push_bind(parts.iter().map(|part| part.session_id).collect::<Vec<_>>());
        query.push("::uuid[], ").push_bind(parts.iter().map(|part| part.seed_no).collect::<Vec<_>>());
        query.push("::integer[], ").push_bind(parts.iter().map(|part| part.above).collect::<Vec<_>>());
        query.push("::bigint[], ").push_bind(parts.iter().map(|part| part.below).collect::<Vec<_>>());
        query.push("::bigint[]) WITH ORDINALITY AS s (session_id, seed_no, above, below, place) CROSS JOIN LATERAL (SELECT b.* FROM ");
        query.push(wanted.source()).push(
            " b WHERE b.session_id = s.session_id AND b.seed_no = s.seed_no AND b.nonce > s.above AND b.nonce < s.below ORDER BY b.nonce ",
        );
        query.push(format!("{word} LIMIT ")).push_bind(limit_i64(limit));
        query.push(format!(") b ORDER BY s.place, b.nonce {word} LIMIT ")).push_bind(limit_i64(limit));
        self.candidates(query).await
    }

    async fn candidates(&mut self, mut query: QueryBuilder<Postgres>) -> Result<Vec<Candidate>, DbError> {
        let rows: Vec<Row> = query.build_query_as().fetch_all(&mut *self.inner).await?;
        rows.into_iter().map(candidate).collect()
    }

    /// Walks seeds in the order of place, from the given one on, itself included or not.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn walk_seed_spans(
        &mut self,
        of: SeedsOf<'_>,
        start: Option<(Uuid, i32, Bound)>,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<SeedSpan>, DbError> {
        let word = direction.word();
        let mut query =
            QueryBuilder::new("SELECT s.session_id, s.seed_no, s.next_nonce, s.pending, s.live_at, s.retired_at FROM ");
        match of {
            SeedsOf::Seed(session_id, seed_no) => {
                query.push("fairledger.seeds s WHERE s.session_id = ").push_bind(session_id);
                query.push(" AND s.seed_no = ").push_bind(seed_no);
            }
            SeedsOf::Session(session_id) => {
                query.push("fairledger.seeds s WHERE s.session_id = ").push_bind(session_id);
            }
            SeedsOf::Player(player_ref) => {
                let (mut low, mut high) = (Uuid::nil(), Uuid::max());
                match (start, direction) {
                    (Some((session_id, ..)), Direction::Ascending) => low = session_id,
                    (Some((session_id, ..)), Direction::Descending) => high = session_id,
                    (None, _) => {}
                }
                query.push(
                    "fairledger.sessions x JOIN fairledger.seeds s ON s.session_id = x.session_id
                     WHERE x.player_ref IS NOT NULL AND (x.player_ref, x.session_id) >= (",
                );
                query.push_bind(player_ref.to_owned()).push(", ").push_bind(low);
                query.push(") AND (x.player_ref, x.session_id) <= (").push_bind(player_ref.to_owned());
                query.push(", ").push_bind(high).push(")");
            }
        }
        if let Some((session_id, seed_no, bound)) = start {
            let equal = if bound == Bound::Included { "=" } else { "" };
            query.push(format!(" AND (s.session_id, s.seed_no) {}{equal} (", direction.beyond()));
            query.push_bind(session_id).push(", ").push_bind(seed_no).push(")");
        }
        query.push(match of {
            SeedsOf::Player(_) => {
                format!(" ORDER BY x.player_ref {word}, x.session_id {word}, s.seed_no {word} LIMIT ")
            }
            SeedsOf::Seed(..) | SeedsOf::Session(_) => format!(" ORDER BY s.seed_no {word} LIMIT "),
        });
        query.push_bind(limit_i64(limit));
        type Span = (Uuid, i32, i64, i32, Option<StoredTime>, Option<StoredTime>);
        let rows: Vec<Span> = query.build_query_as().fetch_all(&mut *self.inner).await?;
        rows.into_iter()
            .map(|(session_id, seed_no, bets, pending, live_at, retired_at)| {
                let (bets, pending) = (decode::unsigned("seed", bets)?, decode::unsigned32("seed", pending)?);
                let (live_at, retired_at) = (decode::time_opt("seed", live_at)?, decode::time_opt("seed", retired_at)?);
                Ok(SeedSpan { session_id, seed_no, bets, pending, live_at, retired_at })
            })
            .collect()
    }
}

/// Whether a walk begins with the place it starts from or beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// With it.
    Included,
    /// Beyond it.
    Excluded,
}

impl Tx<Change> {
    /// Writes down a time before which no bet can be committed any more. What was found last counts, whether or not it is later: the
    /// clock may have been set back.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn advance_horizon(&mut self, as_of: DateTime<Utc>) -> Result<(), DbError> {
        sqlx::query!("UPDATE fairledger.horizon SET as_of = $1 WHERE as_of <> $1", as_of)
            .execute(&mut *self.inner)
            .await?;
        Ok(())
    }
}

fn limit_i64(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
