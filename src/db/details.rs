//! Bets with all that is known of them, for answers: the view `fairledger.bet_details`, decoded.

use bigdecimal::BigDecimal;
use chrono::{DateTime, Utc};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::bets::{BetKey, BetKind, RulesRow};
use super::decode::StoredTime;
use super::{Access, DbError, Tx, corrupt, decode};
use crate::gfs::seed::{ClientSeed, Commitment, ServerSeed};

const WHAT: &str = "bet";

/// What was paid and shown for a bet.
#[derive(Clone, Debug, PartialEq)]
pub struct SettlementRow {
    /// Amount paid.
    pub payout: BigDecimal,
    /// The engine's word for it.
    pub outcome: Option<String>,
    /// What the player was shown.
    pub displayed: Option<Value>,
    /// The rules or pay table applied.
    pub rules: Option<Value>,
    /// When.
    pub settled_at: DateTime<Utc>,
}

/// How a round ended with a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundOutcome {
    /// The player took the winnings.
    Cashout,
    /// The player lost.
    Lost,
    /// The player gave up.
    Forfeit,
    /// The session ended first.
    Abandoned,
}

impl RoundOutcome {
    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cashout => "cashout",
            Self::Lost => "lost",
            Self::Forfeit => "forfeit",
            Self::Abandoned => "abandoned",
        }
    }

    fn parse(text: &str) -> Result<Self, DbError> {
        match text {
            "cashout" => Ok(Self::Cashout),
            "lost" => Ok(Self::Lost),
            "forfeit" => Ok(Self::Forfeit),
            "abandoned" => Ok(Self::Abandoned),
            other => Err(corrupt(WHAT, format!("round outcome {other:?}"))),
        }
    }
}

/// A recorded result.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// The result.
    pub result: Value,
    /// The highest digest index used.
    pub cursor: u32,
    /// Signature and signer.
    pub signature: Option<([u8; 64], [u8; 32])>,
    /// How a round ended; none for other bets.
    pub round_outcome: Option<RoundOutcome>,
}

/// The state of a bet now. An expired reservation is void whether or not it was swept.
#[derive(Clone, Debug, PartialEq)]
pub enum BetState {
    /// Concealed or owed.
    Pending,
    /// With a result.
    Recorded(Recorded),
    /// Ended without one.
    Void {
        /// Why.
        reason: String,
    },
}

/// A bet with its seed's public side, its end and its settlement.
#[derive(Clone, Debug)]
pub struct BetDetails {
    /// Where it is.
    pub key: BetKey,
    /// The caller's name for it.
    pub bet_ref: String,
    /// How it gets its result.
    pub kind: BetKind,
    /// The game.
    pub game: String,
    /// Its parameters.
    pub params: Map<String, Value>,
    /// The player's choice.
    pub selection: Option<Value>,
    /// Amount staked.
    pub stake: Option<BigDecimal>,
    /// Its currency.
    pub currency: Option<String>,
    /// Whatever else was bound.
    pub context: Option<Value>,
    /// The rules of an outside game.
    pub rules: Option<RulesRow>,
    /// When the nonce was handed out.
    pub taken_at: DateTime<Utc>,
    /// Until when a reservation may be recorded.
    pub expires_at: Option<DateTime<Utc>>,
    /// The seed's commitment.
    pub commitment: Commitment,
    /// The seed's client seed.
    pub client_seed: ClientSeed,
    /// The seed in clear once revealed, checked against the commitment.
    pub server_seed: Option<ServerSeed>,
    /// Its state.
    pub state: BetState,
    /// Its pending row is there still: a reservation that is void is so because it expired, and nothing says so but the clock.
    pub has_pending_row: bool,
    /// Its settlement.
    pub settlement: Option<SettlementRow>,
}

/// The view's columns, as PostgreSQL gives them: it calls all columns of a view nullable.
struct Raw {
    session_id: Uuid,
    seed_no: i32,
    nonce: i64,
    bet_ref: String,
    kind: String,
    game: String,
    params: String,
    selection: Option<String>,
    stake: Option<String>,
    currency: Option<String>,
    context: Option<String>,
    rules_id: Option<String>,
    rules_sha256: Option<Vec<u8>>,
    floats: Option<i32>,
    taken_at: StoredTime,
    expires_at: Option<StoredTime>,
    commitment: Vec<u8>,
    client_seed: String,
    server_seed: Option<Vec<u8>>,
    result: Option<String>,
    cursor: Option<i32>,
    signature: Option<Vec<u8>>,
    signer: Option<Vec<u8>>,
    round_outcome: Option<String>,
    status: Option<String>,
    void_reason: Option<String>,
    has_pending_row: bool,
    payout: Option<String>,
    settlement_outcome: Option<String>,
    displayed: Option<String>,
    settlement_rules: Option<String>,
    settled_at: Option<StoredTime>,
}

impl Raw {
    fn key(&self) -> Result<BetKey, DbError> {
        let nonce = decode::unsigned(WHAT, self.nonce)?;
        Ok(BetKey { session_id: self.session_id, seed_no: self.seed_no, nonce })
    }

    fn decode(self) -> Result<BetDetails, DbError> {
        let commitment = decode::commitment(WHAT, &self.commitment)?;
        let Value::Object(params) = decode::json(WHAT, &self.params)? else {
            return Err(corrupt(WHAT, "params is not an object"));
        };
        let rules = match (self.rules_id.clone(), &self.rules_sha256, self.floats) {
            (Some(id), Some(sha256), Some(floats)) => {
                Some(RulesRow { id, sha256: decode::array(WHAT, sha256)?, floats: decode::unsigned32(WHAT, floats)? })
            }
            (None, None, None) => None,
            _ => return Err(corrupt(WHAT, "half a set of rules")),
        };
        let server_seed =
            self.server_seed.as_ref().map(|bytes| decode::revealed_seed(WHAT, bytes, &commitment)).transpose()?;
        Ok(BetDetails {
            key: self.key()?,
            kind: BetKind::parse(&self.kind)?,
            params,
            selection: decode::json_opt(WHAT, self.selection.as_deref())?,
            context: decode::json_opt(WHAT, self.context.as_deref())?,
            rules,
            commitment,
            client_seed: decode::client_seed(WHAT, &self.client_seed)?,
            server_seed,
            state: self.state()?,
            has_pending_row: self.has_pending_row,
            settlement: self.settlement()?,
            bet_ref: self.bet_ref,
            game: self.game,
            stake: self.stake.as_deref().map(|text| decode::money(WHAT, text)).transpose()?,
            currency: self.currency,
            taken_at: self.taken_at.time(WHAT)?,
            expires_at: decode::time_opt(WHAT, self.expires_at)?,
        })
    }

    fn state(&self) -> Result<BetState, DbError> {
        match (self.status.as_deref(), &self.result, &self.void_reason) {
            (Some("pending"), None, None) => Ok(BetState::Pending),
            (Some("void"), None, Some(reason)) => Ok(BetState::Void { reason: reason.clone() }),
            (Some("recorded"), Some(result), None) => Ok(BetState::Recorded(Recorded {
                result: decode::json(WHAT, result)?,
                cursor: decode::unsigned32(WHAT, self.cursor.ok_or_else(|| corrupt(WHAT, "a result without cursor"))?)?,
                signature: match (&self.signature, &self.signer) {
                    (Some(signature), Some(signer)) => {
                        Some((decode::array(WHAT, signature)?, decode::array(WHAT, signer)?))
                    }
                    (None, None) => None,
                    _ => return Err(corrupt(WHAT, "a signature without its key")),
                },
                round_outcome: self.round_outcome.as_deref().map(RoundOutcome::parse).transpose()?,
            })),
            // A bet is played, pending, or has one end; the view gives no status where none of these is so.
            (status, result, reason) => Err(corrupt(
                WHAT,
                format!(
                    "nonce {}: status {status:?}, result {}, void {}",
                    self.nonce,
                    result.is_some(),
                    reason.is_some()
                ),
            )),
        }
    }

    fn settlement(&self) -> Result<Option<SettlementRow>, DbError> {
        let (Some(payout), Some(settled_at)) = (&self.payout, self.settled_at) else {
            return Ok(None);
        };
        Ok(Some(SettlementRow {
            payout: decode::money(WHAT, payout)?,
            outcome: self.settlement_outcome.clone(),
            displayed: decode::json_opt(WHAT, self.displayed.as_deref())?,
            rules: decode::json_opt(WHAT, self.settlement_rules.as_deref())?,
            settled_at: settled_at.time(WHAT)?,
        }))
    }
}

/// The columns of [`Raw`] from the view, under the given conditions.
macro_rules! details {
    ($conditions:literal, $($argument:expr),+ $(,)?) => {
        details_from!("fairledger.bet_details ", $conditions, $($argument),+)
    };
}

/// The same from any source. `query_as!` wants literals.
macro_rules! details_from {
    ($source:literal, $conditions:literal, $($argument:expr),+ $(,)?) => {
        sqlx::query_as!(
            Raw,
            r#"SELECT session_id AS "session_id!", seed_no AS "seed_no!", nonce AS "nonce!", bet_ref AS "bet_ref!", kind AS "kind!",
                      game AS "game!", params AS "params!", selection, stake::text AS stake, currency, context, rules_id, rules_sha256, floats,
                      taken_at AS "taken_at!: StoredTime", expires_at AS "expires_at: StoredTime",
                      commitment AS "commitment!", client_seed AS "client_seed!", server_seed, result, cursor,
                      signature, signer, round_outcome, status, void_reason, (next_step IS NOT NULL) AS "has_pending_row!", payout::text AS payout, settlement_outcome, displayed,
                      settlement_rules, settled_at AS "settled_at: StoredTime"
               FROM "# + $source + $conditions,
            $($argument),+
        )
    };
}

impl<A: Access> Tx<A> {
    /// Reads a bet by its place.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn bet(&mut self, key: &BetKey) -> Result<Option<BetDetails>, DbError> {
        details!("WHERE session_id = $1 AND seed_no = $2 AND nonce = $3", key.session_id, key.seed_no, key.nonce_i64())
            .fetch_optional(&mut *self.inner)
            .await?
            .map(Raw::decode)
            .transpose()
    }

    /// Reads a bet by its caller's reference.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn bet_by_ref(&mut self, session_id: Uuid, bet_ref: &str) -> Result<Option<BetDetails>, DbError> {
        details!("WHERE session_id = $1 AND bet_ref = $2", session_id, bet_ref)
            .fetch_optional(&mut *self.inner)
            .await?
            .map(Raw::decode)
            .transpose()
    }

    /// Reads a page of a session's bets, newest first, from just below the given place.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn bets_of_session(
        &mut self,
        session_id: Uuid,
        below: Option<(i32, u64)>,
        limit: i64,
    ) -> Result<Vec<BetDetails>, DbError> {
        let (seed_no, nonce) = below.map_or((i32::MAX, i64::MAX), |(seed_no, nonce)| (seed_no, nonce.cast_signed()));
        details!(
            "WHERE session_id = $1 AND (seed_no, nonce) < ($2, $3) ORDER BY seed_no DESC, nonce DESC LIMIT $4",
            session_id,
            seed_no,
            nonce,
            limit,
        )
        .fetch_all(&mut *self.inner)
        .await?
        .into_iter()
        .map(Raw::decode)
        .collect()
    }

    /// Reads the bets of given places, in the order given. A row that cannot be decoded is given as its error.
    ///
    /// # Errors
    /// Those of the database; corruption when a bet is not there.
    pub async fn bets_at(&mut self, keys: &[BetKey]) -> Result<Vec<(BetKey, Result<BetDetails, DbError>)>, DbError> {
        let sessions: Vec<Uuid> = keys.iter().map(|key| key.session_id).collect();
        let seeds: Vec<i32> = keys.iter().map(|key| key.seed_no).collect();
        let nonces: Vec<i64> = keys.iter().map(BetKey::nonce_i64).collect();
        // The limit has the planner look each bet up by itself, by key in every table: left to join the lists, it may read all of it.
        let rows = details_from!(
            "unnest($1::uuid[], $2::integer[], $3::bigint[]) WITH ORDINALITY AS k (of_session, of_seed, of_nonce, place)
                  CROSS JOIN LATERAL (SELECT * FROM fairledger.bet_details
                      WHERE session_id = of_session AND seed_no = of_seed AND nonce = of_nonce LIMIT 1) d ",
            "ORDER BY place",
            &sessions,
            &seeds,
            &nonces,
        )
        .fetch_all(&mut *self.inner)
        .await?;
        if rows.len() != keys.len() {
            return Err(corrupt(WHAT, format!("{} of {} bets have their seed and session", rows.len(), keys.len())));
        }
        rows.into_iter().map(|row| Ok((row.key()?, row.decode()))).collect()
    }

    /// How many bets there are, roughly: PostgreSQL's own estimate, for progress bars.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn bets_estimate(&mut self) -> Result<u64, DbError> {
        let estimate = sqlx::query_scalar!(
            r#"SELECT greatest(reltuples, 0)::bigint AS "estimate!" FROM pg_class WHERE oid = 'fairledger.bets'::regclass"#
        )
        .fetch_one(&mut *self.inner)
        .await?;
        decode::unsigned(WHAT, estimate)
    }
}
