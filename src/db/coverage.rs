//! Counting what is there: for each seed, how many bets of which state, against the counter that handed their nonces out.
//!
//! For audits: nothing here trusts a constraint, a foreign key or a guard of the service, and nothing fails on a row that contradicts
//! another; what is found is given as it is, to be judged in `history`. Every statement takes a set of seeds and gives a row for each
//! (I12): bets are counted inside PostgreSQL. The rows of a bet are found by sorting all of them together and not by joins, so that the
//! cost does not hang on how many bets the planner expects.

use chrono::{DateTime, Utc};
use futures_util::TryStreamExt as _;
use uuid::Uuid;

use super::decode::StoredTime;
use super::{Access, DbError, Tx, corrupt, decode};
use crate::gfs::seed::{Commitment, ServerSeed};

/// Where a seed is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeedKey {
    /// The session.
    pub session_id: Uuid,
    /// The seed's number in it.
    pub seed_no: i32,
}

impl SeedKey {
    /// Before every seed of a session.
    #[must_use]
    pub fn before(session_id: Uuid) -> Self {
        Self { session_id, seed_no: i32::MIN }
    }

    /// After every seed of a session.
    #[must_use]
    pub fn after(session_id: Uuid) -> Self {
        Self { session_id, seed_no: i32::MAX }
    }
}

/// A seed's own rows: its place, its life, its reveal.
#[derive(Clone, Debug)]
pub struct SeedFacts {
    /// Where it is.
    pub key: SeedKey,
    /// Its commitment.
    pub commitment: Commitment,
    /// `live`, `revealed` or `discarded`.
    pub status: String,
    /// The recovery epoch it was committed in.
    pub epoch: i32,
    /// When it was committed.
    pub committed_at: DateTime<Utc>,
    /// The epoch is 0, or a recovery opened it.
    pub epoch_known: bool,
    /// When it came into use.
    pub live_at: Option<DateTime<Utc>>,
    /// Its client seed, once it was live.
    pub client_seed: Option<ClientSeedFacts>,
    /// The counter: how many nonces were handed out. As it is stored: a forged one may be below 0.
    pub next_nonce: i64,
    /// How many pending bets it counts, as it is stored.
    pub pending: i32,
    /// When it ended.
    pub retired_at: Option<DateTime<Utc>>,
    /// What ended it.
    pub retired_by: Option<String>,
    /// The directory of commitments leads here.
    pub in_directory: bool,
    /// The session has the seed before it.
    pub has_predecessor: bool,
    /// The session's seed after it, the next one not counted.
    pub successor: Option<Successor>,
    /// When the seed after it was committed, that being the next one or in use since; none where that is no time.
    pub successor_committed_at: Option<DateTime<Utc>>,
    /// A recovery opened a later epoch than the seed's.
    pub recovered_since: bool,
    /// Its session is there.
    pub has_session: bool,
    /// Its session takes bets.
    pub session_open: bool,
    /// The service made it.
    pub of_service: bool,
    /// Its reveal.
    pub reveal: Option<Reveal>,
    /// The seed ended and its reveal is noted as still to be stored.
    pub reveal_due: bool,
}

/// Where a seed's client seed came from.
#[derive(Clone, Debug)]
pub struct ClientSeedFacts {
    /// `generated`, `player`, `kept` or `application`.
    pub source: String,
    /// When the text was first set.
    pub set_at: DateTime<Utc>,
    /// The seed before had the same text; none where that had none.
    pub same_text: Option<bool>,
    /// The seed before has the same time for it.
    pub same_time: Option<bool>,
}

/// What the seed after another one tells of that one's end.
#[derive(Clone, Debug)]
pub struct Successor {
    /// The recovery epoch it was committed in.
    pub epoch: i32,
    /// It was in use.
    pub was_live: bool,
    /// What ended it.
    pub retired_by: Option<String>,
    /// Where its client seed came from.
    pub client_seed_source: Option<String>,
}

/// A seed in clear as it is stored.
#[derive(Clone, Debug)]
pub struct Reveal {
    /// The seed, unchecked.
    pub server_seed: ServerSeed,
    /// When it was revealed.
    pub revealed_at: DateTime<Utc>,
    /// What ended the seed.
    pub reason: String,
}

/// How many, and the first nonce of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// How many.
    pub count: u64,
    /// The lowest nonce.
    pub first: Option<i64>,
}

/// The bets under one seed, counted, with every row that hangs on a bet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BetCounts {
    /// Bets.
    pub bets: u64,
    /// The lowest and the highest nonce of a bet.
    pub nonces: Option<(i64, i64)>,
    /// Bets with a result.
    pub recorded: u64,
    /// Bets without one that are void, or reservations past their time.
    pub void: u64,
    /// Bets that are concealed or owed.
    pub pending: u64,
    /// Rows of pending bets, those past their time too.
    pub pending_rows: u64,
    /// When the earliest and the latest bet were taken, of those whose time is one.
    pub taken_at: Option<(DateTime<Utc>, DateTime<Utc>)>,
    /// When the last of them that were pending ended.
    pub last_ended_at: Option<DateTime<Utc>>,
    /// Bets with neither result nor void nor pending row.
    pub endless: Found,
    /// Bets that are there twice or have more than one of result, void and pending row.
    pub ended_twice: Found,
    /// Nonces without a bet that have a pending row, result, void, step or settlement.
    pub stray: Found,
    /// Bets that are settled and have no result.
    pub settled_without_result: Found,
    /// Bets whose steps do not count from 0 without gaps, are not as many as was noted, or belong to no round; and rounds whose pending row
    /// tells of other cards or mines than their steps have shown, or that showed a mine and were not lost.
    pub step_gaps: Found,
    /// Bets whose rows say something else of them: another kind, expiry or time, or a result where bets of their kind have none; or that
    /// have an amount or a time that is none.
    pub contradicted: Found,
    /// Bets whose time is outside the years 1970 to 9999.
    pub out_of_time: Found,
    /// Bets taken at an earlier time than the bet before them.
    pub earlier_than_before: Found,
    /// Bets with a step, an end or a settlement at an earlier time than they were taken.
    pub earlier_than_taken: Found,
    /// Rounds that ended and do not say how many steps they had.
    pub steps_untold: Found,
    /// Bets that say that a recovery voided them.
    pub ended_by_recovery: Found,
    /// Bets that say that their session's end abandoned them.
    pub ended_by_closing: Found,
    /// Reservations whose result was stored at a later time than they expired.
    pub later_than_expiry: Found,
}

/// Nonces below the counter that have no bet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingNonces {
    /// The first of the ranges, both ends included.
    pub ranges: Vec<(u64, u64)>,
    /// How many ranges there are in all.
    pub ranges_total: u64,
    /// How many nonces they hold.
    pub nonces_total: u64,
}

/// A session that does not have the seeds that its state demands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionFacts {
    /// The session.
    pub session_id: Uuid,
    /// The service makes its seeds.
    pub of_service: bool,
    /// It takes bets.
    pub open: bool,
    /// The recovery epoch that it was last moved to.
    pub epoch: i32,
    /// That is 0, or a recovery opened it.
    pub epoch_known: bool,
    /// Its live and its next seed, those of them that it has, were committed in that epoch or later.
    pub seeds_in_epoch: bool,
    /// The epoch of its next seed is 0, or a recovery opened it.
    pub next_epoch_known: bool,
    /// The time at which its next seed was committed is one.
    pub next_in_time: bool,
    /// How many live seeds it has.
    pub live: u64,
    /// The number of its newest seed, the next one not counted.
    pub seed_no_max: Option<i32>,
    /// The number of its next seed.
    pub next_seed_no: Option<i32>,
    /// The directory of commitments leads to its next seed.
    pub next_in_directory: bool,
}

/// A recovery after acknowledged state was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryRow {
    /// The epoch it opened.
    pub epoch: i32,
    /// When.
    pub recovered_at: DateTime<Utc>,
    /// Why, in the operator's words.
    pub reason: String,
}

fn found(count: i64, first: Option<i64>) -> Result<Found, DbError> {
    Ok(Found { count: decode::unsigned("coverage", count)?, first })
}

impl<A: Access> Tx<A> {
    /// Reads seeds with what must be there beside them, in order, from just above one place up to and including another. A seed that
    /// cannot be decoded is given as its error.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn seed_facts(
        &mut self,
        above: SeedKey,
        to: SeedKey,
        limit: i64,
    ) -> Result<Vec<(SeedKey, Result<SeedFacts, DbError>)>, DbError> {
        let what = "seed";
        let rows = sqlx::query!(
            r#"SELECT s.session_id, s.seed_no, s.commitment, s.status, s.epoch, s.committed_at AS "committed_at: StoredTime",
                      s.live_at AS "live_at: StoredTime", s.client_seed, s.client_seed_source,
                      s.client_seed_at AS "client_seed_at: StoredTime", s.next_nonce, s.pending,
                      s.retired_at AS "retired_at: StoredTime", s.retired_by,
                      (c.commitment IS NOT NULL) AS "in_directory!", (s.seed_no = 0 OR q.session_id IS NOT NULL) AS "has_predecessor!",
                      (q.client_seed = s.client_seed) AS same_text, (q.client_seed_at = s.client_seed_at) AS same_time,
                      f.epoch AS "next_epoch?", (f.live_at IS NOT NULL) AS "next_was_live!", f.retired_by AS "next_retired_by?",
                      f.client_seed_source AS "next_source?", coalesce(f.committed_at, w.committed_at) AS "next_committed_at: StoredTime",
                      coalesce(s.epoch < (SELECT max(epoch) FROM fairledger.recoveries), false) AS "recovered_since!",
                      coalesce(x.status = 'open', false) AS "session_open!", (s.epoch = 0 OR e.epoch IS NOT NULL) AS "epoch_known!",
                      (x.session_id IS NOT NULL) AS "has_session!", coalesce(x.origin = 'service', false) AS "of_service!",
                      r.server_seed AS "server_seed?", r.revealed_at AS "revealed_at?: StoredTime", r.reason AS "reason?", (d.seed_no IS NOT NULL) AS "reveal_due!"
               FROM fairledger.seeds s
               LEFT JOIN fairledger.sessions x ON x.session_id = s.session_id
               LEFT JOIN fairledger.reveals r ON r.session_id = s.session_id AND r.seed_no = s.seed_no
               LEFT JOIN fairledger.reveals_due d ON d.session_id = s.session_id AND d.seed_no = s.seed_no
               LEFT JOIN fairledger.commitments c
                      ON c.commitment = s.commitment AND c.session_id = s.session_id AND c.seed_no = s.seed_no
               LEFT JOIN fairledger.seeds q ON q.session_id = s.session_id AND q.seed_no = CASE WHEN s.seed_no > 0 THEN s.seed_no - 1 END
               LEFT JOIN fairledger.seeds f
                      ON f.session_id = s.session_id AND f.seed_no = CASE WHEN s.seed_no < 2147483647 THEN s.seed_no + 1 END
               LEFT JOIN fairledger.next_seeds w
                      ON w.session_id = s.session_id AND w.seed_no = CASE WHEN s.seed_no < 2147483647 THEN s.seed_no + 1 END
               LEFT JOIN fairledger.recoveries e ON e.epoch = s.epoch
               WHERE (s.session_id, s.seed_no) > ($1, $2) AND (s.session_id, s.seed_no) <= ($3, $4)
               ORDER BY s.session_id, s.seed_no LIMIT $5"#,
            above.session_id,
            above.seed_no,
            to.session_id,
            to.seed_no,
            limit,
        )
        .fetch_all(&mut *self.inner)
        .await?;
        let facts = rows.into_iter().map(|row| {
            let key = SeedKey { session_id: row.session_id, seed_no: row.seed_no };
            let decoded = || {
                let reveal = match (row.server_seed, row.revealed_at, row.reason) {
                    (Some(bytes), Some(at), Some(reason)) => Some(Reveal {
                        server_seed: ServerSeed::from_bytes(&decode::array(what, &bytes)?),
                        revealed_at: at.time(what)?,
                        reason,
                    }),
                    _ => None,
                };
                let live_at = decode::time_opt(what, row.live_at)?;
                let set_at = decode::time_opt(what, row.client_seed_at)?;
                let client_seed = match (row.client_seed, row.client_seed_source, set_at, live_at) {
                    (Some(text), Some(source), Some(set_at), Some(_)) => {
                        decode::client_seed(what, &text)?;
                        Some(ClientSeedFacts { source, set_at, same_text: row.same_text, same_time: row.same_time })
                    }
                    (None, None, None, None) => None,
                    _ => return Err(corrupt(what, "half a client seed")),
                };
                let successor = row.next_epoch.map(|epoch| Successor {
                    epoch,
                    was_live: row.next_was_live,
                    retired_by: row.next_retired_by,
                    client_seed_source: row.next_source,
                });
                Ok(SeedFacts {
                    key,
                    commitment: decode::commitment(what, &row.commitment)?,
                    status: row.status,
                    epoch: row.epoch,
                    committed_at: row.committed_at.time(what)?,
                    epoch_known: row.epoch_known,
                    live_at,
                    client_seed,
                    next_nonce: row.next_nonce,
                    pending: row.pending,
                    retired_at: decode::time_opt(what, row.retired_at)?,
                    retired_by: row.retired_by,
                    in_directory: row.in_directory,
                    has_predecessor: row.has_predecessor,
                    successor,
                    successor_committed_at: row.next_committed_at.and_then(|time| time.time(what).ok()),
                    recovered_since: row.recovered_since,
                    has_session: row.has_session,
                    session_open: row.session_open,
                    of_service: row.of_service,
                    reveal,
                    reveal_due: row.reveal_due,
                })
            };
            (key, decoded())
        });
        Ok(facts.collect())
    }

    /// Counts the bets under every seed from just above one place up to and including another, in order, those under seeds that are
    /// not there too. Seeds without any row of a bet are left out.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn bet_counts(
        &mut self,
        above: SeedKey,
        to: SeedKey,
        mut each: impl FnMut(SeedKey, BetCounts) + Send,
    ) -> Result<(), DbError> {
        // Expiries are judged as of the snapshot's beginning. One row a bet, put together from its rows in all tables; then one row a seed.
        // What a row of another table says of a bet that the bet says itself stands in a column of its own, `told_...`. `ended_as`: 1 by a
        // recovery, 2 abandoned with a result, 3 abandoned without.
        let mut rows = sqlx::query!(
            r#"WITH parts AS (
                   SELECT session_id, seed_no, nonce, 1 AS bet, coalesce(kind = 'played', false)::int AS result,
                          coalesce(kind = 'round', false)::int AS round,
                          0 AS void, 0 AS pending, 0 AS expired, 0 AS settled, 0 AS step, 0 AS steps_up_to, NULL::int AS steps_told,
                          0 AS cards_untold, 0 AS mines_untold,
                          taken_at, NULL::timestamptz AS ended_at, NULL::timestamptz AS later_at, expires_at,
                          NULL::timestamptz AS told_taken_at, NULL::timestamptz AS told_expires_at, NULL::int AS told_round,
                          ((stake >= 0 AND stake < 1e38 AND scale(stake) <= 18) IS FALSE OR (expires_at IS NULL) = (kind = 'reservation')
                           OR (expires_at > taken_at AND expires_at <= '9999-12-31 23:59:59.999999+00') IS FALSE
                           OR (kind IN ('played', 'round', 'reservation')) IS NOT TRUE
                           OR (kind = 'played') <> (result IS NOT NULL) OR (kind = 'played') <> (cursor IS NOT NULL))::int AS impossible,
                          0 AS ended_as
                   FROM fairledger.bets
                   UNION ALL SELECT session_id, seed_no, nonce, 0, 1, 0, 0, 0, 0, 0, 0, 0, steps, 0, -coalesce(round_outcome = 'lost', true)::int,
                                    NULL, recorded_at, NULL, NULL, NULL, NULL, (round_outcome IS NOT NULL)::int,
                                    ((recorded_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00') IS NOT TRUE)::int,
                                    CASE WHEN round_outcome = 'abandoned' THEN 2 ELSE 0 END FROM fairledger.outcomes
                   UNION ALL SELECT session_id, seed_no, nonce, 0, 0, 0, 1, 0, 0, 0, 0, 0, steps, 0,
                                    CASE WHEN reason = 'recovery' THEN -1000000 ELSE 0 END,
                                    NULL, voided_at, NULL, NULL, taken_at, CASE WHEN reason = 'expired' THEN voided_at END, NULL,
                                    ((voided_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00') IS NOT TRUE OR taken_at IS NULL OR reason IS NULL)::int,
                                    CASE reason WHEN 'recovery' THEN 1 WHEN 'abandoned' THEN 3 ELSE 0 END FROM fairledger.voids
                   UNION ALL SELECT session_id, seed_no, nonce, 0, 0, 0, 0, 1, coalesce(expires_at <= transaction_timestamp(), false)::int,
                                    0, 0, 0, next_step, -cards_shown::bigint, -mine_shown::int, NULL, NULL, NULL, NULL, taken_at, expires_at,
                                    (kind = 'round')::int, (taken_at IS NULL)::int, 0 FROM fairledger.pending
                   UNION ALL SELECT session_id, seed_no, nonce, 0, 0, 0, 0, 0, 0, 1, 0, 0, NULL, 0, 0, NULL, NULL, settled_at, NULL, NULL, NULL, NULL,
                                    ((payout >= 0 AND payout < 1e38 AND scale(payout) <= 18
                                     AND settled_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00') IS FALSE)::int, 0
                             FROM fairledger.settlements
                   UNION ALL SELECT session_id, seed_no, nonce, 0, 0, 0, 0, 0, 0, 0, 1, step_index::bigint + 1, NULL,
                                    CASE WHEN disclosed::text LIKE '{"cards":["%'
                                         THEN 1 + length(disclosed::text) - length(replace(disclosed::text, ',', '')) ELSE 0 END,
                                    coalesce(disclosed::text ~ '"mine"\s*:\s*true', false)::int, NULL, NULL, stepped_at, NULL, NULL, NULL, NULL,
                                    ((stepped_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00') IS NOT TRUE)::int, 0 FROM fairledger.steps
               ), whole AS (
                   SELECT session_id, seed_no, nonce, sum(bet) AS bet, sum(result) AS result, sum(round) AS round, sum(void) AS void,
                          sum(pending) AS pending, sum(expired) AS expired, sum(settled) AS settled, sum(step) AS steps,
                          max(steps_up_to) AS steps_up_to, max(steps_told) AS steps_told,
                          (sum(pending) > 0 AND (sum(cards_untold) <> 0 OR sum(mines_untold) <> 0))
                              OR (sum(result) + sum(void) > 0 AND sum(mines_untold) > 0) AS shown_otherwise, min(taken_at) AS taken_at,
                          least(min(later_at), min(ended_at)) < min(taken_at) AS before_itself, max(ended_at) AS ended_at, max(ended_as) AS ended_as,
                          sum(result) > 0 AND max(ended_at) > max(expires_at) AS late,
                          min(told_taken_at) <> min(taken_at) OR max(told_taken_at) <> min(taken_at)
                              OR (sum(pending) > 0 AND min(told_expires_at) IS DISTINCT FROM min(expires_at))
                              OR (sum(void) > 0 AND coalesce(max(told_expires_at) < max(expires_at), max(told_expires_at) IS NOT NULL))
                              OR max(told_round) <> sum(round) OR sum(impossible) > 0 OR (max(ended_as) = 3 AND sum(round) > 0) AS contradicted
                   FROM parts WHERE (session_id, seed_no) > ($1, $2) AND (session_id, seed_no) <= ($3, $4)
                   GROUP BY session_id, seed_no, nonce
               ), ordered AS (
                   SELECT *, taken_at < lag(taken_at) OVER (PARTITION BY session_id, seed_no ORDER BY nonce) AS earlier,
                          steps <> steps_up_to OR steps <> steps_told OR (steps > 0 AND round = 0) OR shown_otherwise AS odd_steps,
                          round > 0 AND pending = 0 AND result + void > 0 AND steps_told IS NULL AS steps_untold,
                          taken_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' AS in_time
                   FROM whole
               )
               SELECT session_id AS "session_id!", seed_no AS "seed_no!",
                      count(*) FILTER (WHERE bet > 0) AS "bets!", min(nonce) FILTER (WHERE bet > 0) AS nonce_min,
                      max(nonce) FILTER (WHERE bet > 0) AS nonce_max,
                      count(*) FILTER (WHERE bet > 0 AND result > 0) AS "recorded!",
                      count(*) FILTER (WHERE bet > 0 AND result = 0 AND void + expired > 0) AS "void!",
                      count(*) FILTER (WHERE bet > 0 AND result = 0 AND void + expired = 0 AND pending > 0) AS "pending!",
                      coalesce(sum(pending), 0)::bigint AS "pending_rows!",
                      min(taken_at) FILTER (WHERE in_time) AS "first_taken_at: StoredTime",
                      max(taken_at) FILTER (WHERE in_time) AS "last_taken_at: StoredTime",
                      count(*) FILTER (WHERE bet > 0 AND result + void + pending = 0) AS "endless!",
                      min(nonce) FILTER (WHERE bet > 0 AND result + void + pending = 0) AS endless_first,
                      count(*) FILTER (WHERE bet > 1 OR result + void + pending > 1 OR settled > 1) AS "ended_twice!",
                      min(nonce) FILTER (WHERE bet > 1 OR result + void + pending > 1 OR settled > 1) AS ended_twice_first,
                      count(*) FILTER (WHERE bet = 0) AS "stray!", min(nonce) FILTER (WHERE bet = 0) AS stray_first,
                      count(*) FILTER (WHERE settled > 0 AND result = 0) AS "settled_without_result!",
                      min(nonce) FILTER (WHERE settled > 0 AND result = 0) AS settled_without_result_first,
                      count(*) FILTER (WHERE bet > 0 AND odd_steps) AS "step_gaps!",
                      min(nonce) FILTER (WHERE bet > 0 AND odd_steps) AS step_gaps_first,
                      count(*) FILTER (WHERE bet > 0 AND contradicted) AS "contradicted!",
                      min(nonce) FILTER (WHERE bet > 0 AND contradicted) AS contradicted_first,
                      count(*) FILTER (WHERE NOT in_time) AS "out_of_time!", min(nonce) FILTER (WHERE NOT in_time) AS out_of_time_first,
                      count(*) FILTER (WHERE earlier) AS "earlier!", min(nonce) FILTER (WHERE earlier) AS earlier_first,
                      max(ended_at) FILTER (WHERE ended_at <= '9999-12-31 23:59:59.999999+00') AS "last_ended_at: StoredTime",
                      count(*) FILTER (WHERE before_itself) AS "before_itself!", min(nonce) FILTER (WHERE before_itself) AS before_itself_first,
                      count(*) FILTER (WHERE steps_untold) AS "steps_untold!", min(nonce) FILTER (WHERE steps_untold) AS steps_untold_first,
                      count(*) FILTER (WHERE ended_as = 1) AS "by_recovery!", min(nonce) FILTER (WHERE ended_as = 1) AS by_recovery_first,
                      count(*) FILTER (WHERE ended_as >= 2) AS "by_closing!", min(nonce) FILTER (WHERE ended_as >= 2) AS by_closing_first,
                      count(*) FILTER (WHERE late) AS "late!", min(nonce) FILTER (WHERE late) AS late_first
               FROM ordered GROUP BY session_id, seed_no ORDER BY session_id, seed_no"#,
            above.session_id,
            above.seed_no,
            to.session_id,
            to.seed_no,
        )
        .fetch(&mut *self.inner);
        while let Some(row) = rows.try_next().await? {
            let what = "coverage";
            let unsigned = |count| decode::unsigned(what, count);
            let taken_at = match (row.first_taken_at, row.last_taken_at) {
                (Some(first), Some(last)) => Some((first.time(what)?, last.time(what)?)),
                _ => None,
            };
            let counts = BetCounts {
                bets: unsigned(row.bets)?,
                nonces: row.nonce_min.zip(row.nonce_max),
                recorded: unsigned(row.recorded)?,
                void: unsigned(row.void)?,
                pending: unsigned(row.pending)?,
                pending_rows: unsigned(row.pending_rows)?,
                taken_at,
                last_ended_at: row.last_ended_at.and_then(|time| time.time(what).ok()),
                endless: found(row.endless, row.endless_first)?,
                ended_twice: found(row.ended_twice, row.ended_twice_first)?,
                stray: found(row.stray, row.stray_first)?,
                settled_without_result: found(row.settled_without_result, row.settled_without_result_first)?,
                step_gaps: found(row.step_gaps, row.step_gaps_first)?,
                contradicted: found(row.contradicted, row.contradicted_first)?,
                out_of_time: found(row.out_of_time, row.out_of_time_first)?,
                earlier_than_before: found(row.earlier, row.earlier_first)?,
                earlier_than_taken: found(row.before_itself, row.before_itself_first)?,
                steps_untold: found(row.steps_untold, row.steps_untold_first)?,
                ended_by_recovery: found(row.by_recovery, row.by_recovery_first)?,
                ended_by_closing: found(row.by_closing, row.by_closing_first)?,
                later_than_expiry: found(row.late, row.late_first)?,
            };
            each(SeedKey { session_id: row.session_id, seed_no: row.seed_no }, counts);
        }
        Ok(())
    }

    /// Places from just above one up to and including another where a reveal is stored or noted as due and no seed is.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn reveals_without_seed(
        &mut self,
        above: SeedKey,
        to: SeedKey,
        limit: i64,
    ) -> Result<Vec<SeedKey>, DbError> {
        // The seeds' own bounds: without them the planner may read all seeds for each page.
        Ok(sqlx::query_as!(
            SeedKey,
            r#"SELECT r.session_id AS "session_id!", r.seed_no AS "seed_no!"
               FROM (SELECT session_id, seed_no FROM fairledger.reveals UNION ALL SELECT session_id, seed_no FROM fairledger.reveals_due) r
               WHERE (r.session_id, r.seed_no) > ($1, $2) AND (r.session_id, r.seed_no) <= ($3, $4)
                 AND NOT EXISTS (SELECT FROM fairledger.seeds s WHERE s.session_id = r.session_id AND s.seed_no = r.seed_no
                                 AND (s.session_id, s.seed_no) > ($1, $2) AND (s.session_id, s.seed_no) <= ($3, $4))
               ORDER BY r.session_id, r.seed_no LIMIT $5"#,
            above.session_id,
            above.seed_no,
            to.session_id,
            to.seed_no,
            limit,
        )
        .fetch_all(&mut *self.inner)
        .await?)
    }

    /// Sessions from one up to another, both included, that have a next seed and are not there.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn next_seeds_without_session(
        &mut self,
        from: Uuid,
        to: Uuid,
        limit: i64,
    ) -> Result<Vec<(Uuid, i32)>, DbError> {
        let rows = sqlx::query!(
            "SELECT n.session_id, n.seed_no FROM fairledger.next_seeds n
             WHERE n.session_id >= $1 AND n.session_id <= $2
               AND NOT EXISTS (SELECT FROM fairledger.sessions x
                               WHERE x.session_id = n.session_id AND x.session_id >= $1 AND x.session_id <= $2)
             ORDER BY n.session_id LIMIT $3",
            from,
            to,
            limit,
        )
        .fetch_all(&mut *self.inner)
        .await?;
        Ok(rows.into_iter().map(|row| (row.session_id, row.seed_no)).collect())
    }

    /// The nonces below a seed's counter that have no bet, and how many bets have one below 0, or at or beyond the counter.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn missing_nonces(
        &mut self,
        key: SeedKey,
        next_nonce: i64,
        ranges_max: i64,
    ) -> Result<(MissingNonces, Found), DbError> {
        let what = "coverage";
        let rows = sqlx::query!(
            r#"WITH taken AS (
                   SELECT nonce FROM fairledger.bets WHERE session_id = $1 AND seed_no = $2 AND nonce >= 0 AND nonce < $3
                   UNION ALL SELECT $3::bigint
               ), gaps AS (
                   SELECT lag(nonce, 1, -1::bigint) OVER (ORDER BY nonce) + 1 AS first, nonce - 1 AS last FROM taken
               )
               SELECT first AS "first!", last AS "last!", count(*) OVER () AS "ranges!", (sum(last - first + 1) OVER ())::bigint AS "nonces!"
               FROM gaps WHERE first <= last ORDER BY first LIMIT $4"#,
            key.session_id,
            key.seed_no,
            next_nonce.max(0),
            ranges_max,
        )
        .fetch_all(&mut *self.inner)
        .await?;
        let mut missing = MissingNonces::default();
        for row in rows {
            missing.ranges.push((decode::unsigned(what, row.first)?, decode::unsigned(what, row.last)?));
            missing.ranges_total = decode::unsigned(what, row.ranges)?;
            missing.nonces_total = decode::unsigned(what, row.nonces)?;
        }
        let beyond = sqlx::query!(
            r#"SELECT count(*) AS "count!", min(nonce) AS first FROM fairledger.bets
               WHERE session_id = $1 AND seed_no = $2 AND (nonce >= $3 OR nonce < 0)"#,
            key.session_id,
            key.seed_no,
            next_nonce,
        )
        .fetch_one(&mut *self.inner)
        .await?;
        Ok((missing, found(beyond.count, beyond.first)?))
    }

    /// Reads sessions with what they must have, in order, from one up to another, both included.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn session_facts(&mut self, from: Uuid, to: Uuid, limit: i64) -> Result<Vec<SessionFacts>, DbError> {
        let rows = sqlx::query!(
            r#"WITH page AS (
                   SELECT session_id, origin, status, epoch FROM fairledger.sessions
                   WHERE session_id >= $1 AND session_id <= $2 ORDER BY session_id LIMIT $3
               ), having_seeds AS (
                   SELECT s.session_id, count(*) FILTER (WHERE s.status = 'live') AS live, max(s.seed_no) AS seed_no_max,
                          coalesce(bool_and(s.epoch >= page.epoch) FILTER (WHERE s.status = 'live'), true) AS in_epoch
                   FROM fairledger.seeds s JOIN page USING (session_id) GROUP BY s.session_id
               )
               SELECT x.session_id, (x.origin = 'service') AS "of_service!", (x.status = 'open') AS "open!",
                      x.epoch, (x.epoch = 0 OR e.epoch IS NOT NULL) AS "epoch_known!",
                      (coalesce(h.in_epoch, true) AND coalesce(n.epoch >= x.epoch, true)) AS "seeds_in_epoch!",
                      (n.epoch IS NULL OR n.epoch = 0 OR EXISTS (SELECT FROM fairledger.recoveries r WHERE r.epoch = n.epoch)) AS "next_epoch_known!",
                      (n.committed_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00') IS NOT FALSE AS "next_in_time!",
                      coalesce(h.live, 0) AS "live!", h.seed_no_max AS "seed_no_max?", n.seed_no AS "next_seed_no?",
                      (c.commitment IS NOT NULL) AS "next_in_directory!"
               FROM page x
               LEFT JOIN having_seeds h ON h.session_id = x.session_id
               LEFT JOIN fairledger.recoveries e ON e.epoch = x.epoch
               LEFT JOIN fairledger.next_seeds n ON n.session_id = x.session_id
               LEFT JOIN fairledger.commitments c
                      ON c.commitment = n.commitment AND c.session_id = n.session_id AND c.seed_no = n.seed_no
               ORDER BY x.session_id"#,
            from,
            to,
            limit,
        )
        .fetch_all(&mut *self.inner)
        .await?;
        rows.into_iter()
            .map(|row| {
                Ok(SessionFacts {
                    session_id: row.session_id,
                    of_service: row.of_service,
                    open: row.open,
                    epoch: row.epoch,
                    epoch_known: row.epoch_known,
                    seeds_in_epoch: row.seeds_in_epoch,
                    next_epoch_known: row.next_epoch_known,
                    next_in_time: row.next_in_time,
                    live: decode::unsigned("session", row.live)?,
                    seed_no_max: row.seed_no_max,
                    next_seed_no: row.next_seed_no,
                    next_in_directory: row.next_in_directory,
                })
            })
            .collect()
    }

    /// The next page of the directory of commitments: where it ends, how many rows it has, and which of them lead to no seed.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn commitments_without_seed(
        &mut self,
        above: Option<&[u8]>,
        limit: i64,
    ) -> Result<Option<DirectoryPage>, DbError> {
        let rows = sqlx::query!(
            r#"WITH page AS (
                   SELECT commitment, session_id, seed_no FROM fairledger.commitments
                   WHERE $1::bytea IS NULL OR commitment > $1 ORDER BY commitment LIMIT $2
               ), stray AS (
                   SELECT p.commitment, p.session_id, p.seed_no FROM page p
                   WHERE NOT EXISTS (SELECT FROM fairledger.seeds s
                                     WHERE s.session_id = p.session_id AND s.seed_no = p.seed_no AND s.commitment = p.commitment)
                     AND NOT EXISTS (SELECT FROM fairledger.next_seeds n WHERE n.session_id = p.session_id AND n.commitment = p.commitment)
               )
               SELECT e.last AS "last!", e.rows AS "rows!", s.commitment AS "commitment?", s.session_id AS "session_id?", s.seed_no AS "seed_no?"
               FROM (SELECT (SELECT commitment FROM page ORDER BY commitment DESC LIMIT 1) AS last, (SELECT count(*) FROM page) AS rows) e
               LEFT JOIN stray s ON true
               WHERE e.rows > 0 ORDER BY s.commitment"#,
            above,
            limit,
        )
        .fetch_all(&mut *self.inner)
        .await?;
        let what = "commitment";
        let Some(row) = rows.first() else { return Ok(None) };
        let mut page =
            DirectoryPage { last: row.last.clone(), rows: decode::unsigned(what, row.rows)?, stray: Vec::new() };
        for row in rows {
            if let (Some(bytes), Some(session_id), Some(seed_no)) = (row.commitment, row.session_id, row.seed_no) {
                page.stray.push((decode::commitment(what, &bytes).ok(), SeedKey { session_id, seed_no }));
            }
        }
        Ok(Some(page))
    }

    /// Leaves it to the planner how it finds rows, in this transaction, with room to sort a page of seeds: what is counted is read as a
    /// whole, where pages walk indexes.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn plan_freely(&mut self) -> Result<(), DbError> {
        sqlx::query!(
            "SELECT set_config(name, value, true) AS set
             FROM (VALUES ('enable_seqscan', 'on'), ('enable_bitmapscan', 'on'), ('enable_hashjoin', 'on'), ('enable_mergejoin', 'on'),
                          ('enable_sort', 'on'), ('work_mem', '64MB')) AS setting (name, value)"
        )
        .fetch_all(&mut *self.inner)
        .await?;
        Ok(())
    }

    /// Every recovery, oldest first. There are few.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn recoveries(&mut self, limit: i64) -> Result<Vec<RecoveryRow>, DbError> {
        let rows = sqlx::query!(
            r#"SELECT epoch, recovered_at AS "recovered_at: StoredTime", reason FROM fairledger.recoveries ORDER BY epoch LIMIT $1"#,
            limit
        )
        .fetch_all(&mut *self.inner)
        .await?;
        rows.into_iter()
            .map(|row| {
                let recovered_at = row.recovered_at.time("recovery")?;
                Ok(RecoveryRow { epoch: row.epoch, recovered_at, reason: row.reason })
            })
            .collect()
    }

    /// How many bets of each seed of a session are void, by the seed's number; reservations past their time are, swept or not.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn voids_of_seeds(&mut self, session_id: Uuid) -> Result<Vec<(i32, u64)>, DbError> {
        sqlx::query!(
            r#"SELECT seed_no AS "seed_no!", count(*) AS "voids!"
               FROM (SELECT seed_no FROM fairledger.voids WHERE session_id = $1
                     UNION ALL
                     SELECT seed_no FROM fairledger.pending WHERE session_id = $1 AND expires_at <= statement_timestamp()) AS ended
               GROUP BY seed_no"#,
            session_id,
        )
        .fetch_all(&mut *self.inner)
        .await?
        .into_iter()
        .map(|row| Ok((row.seed_no, decode::unsigned("void", row.voids)?)))
        .collect()
    }

    /// How many bets and sessions there are, roughly: PostgreSQL's own estimates, for progress bars.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn seeds_estimate(&mut self) -> Result<u64, DbError> {
        let estimate = sqlx::query_scalar!(
            r#"SELECT greatest(reltuples, 0)::bigint AS "estimate!" FROM pg_class WHERE oid = 'fairledger.seeds'::regclass"#
        )
        .fetch_one(&mut *self.inner)
        .await?;
        u64::try_from(estimate).map_err(|_| corrupt("seed", "a negative estimate"))
    }
}

/// A page of the directory of commitments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryPage {
    /// Its last commitment, as it is stored.
    pub last: Vec<u8>,
    /// How many rows it has.
    pub rows: u64,
    /// Those that lead to no seed; none for what is no commitment.
    pub stray: Vec<(Option<Commitment>, SeedKey)>,
}
