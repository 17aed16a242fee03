//! How bets end: outcomes, voids and settlements. Only ever inserted (I8).

use bigdecimal::BigDecimal;
use chrono::{DateTime, Utc};

use super::bets::{BetKey, ResultRow};
use super::decode::StoredTime;
use super::{Access, DbError, Tx, decode};

/// A settlement to be stored. JSON is canonical text.
#[derive(Clone, Debug)]
pub struct NewSettlement<'a> {
    /// Amount paid.
    pub payout: &'a BigDecimal,
    /// The engine's word for it.
    pub outcome: Option<&'a str>,
    /// What the player was shown.
    pub displayed: Option<&'a str>,
    /// The rules or pay table applied.
    pub rules: Option<&'a str>,
}

impl<A: Access> Tx<A> {
    /// When a bet that was pending got its result, and when it ended void.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn end_times(&mut self, key: &BetKey) -> Result<(Option<DateTime<Utc>>, Option<DateTime<Utc>>), DbError> {
        let row = sqlx::query!(
            r#"SELECT recorded_at AS "recorded_at: StoredTime", voided_at AS "voided_at: StoredTime"
               FROM fairledger.bet_details WHERE session_id = $1 AND seed_no = $2 AND nonce = $3"#,
            key.session_id,
            key.seed_no,
            key.nonce_i64(),
        )
        .fetch_optional(&mut *self.inner)
        .await?;
        let Some(row) = row else { return Ok((None, None)) };
        Ok((decode::time_opt("outcome", row.recorded_at)?, decode::time_opt("void", row.voided_at)?))
    }
}

impl Tx {
    /// Stores the result of a bet whose pending row was taken out in this transaction: before it expired, so no later than that.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn insert_outcome(
        &mut self,
        key: &BetKey,
        round_outcome: Option<&str>,
        result: &ResultRow,
    ) -> Result<(), DbError> {
        let inserted = sqlx::query!(
            "INSERT INTO fairledger.outcomes (session_id, seed_no, nonce, round_outcome, result, cursor, signature, signing_key_no, recorded_at, steps)
             VALUES ($1, $2, $3, $4, $5::text::json, $6, $7, $8,
                     least(clock_timestamp(), (SELECT expires_at FROM fairledger.bets WHERE session_id = $1 AND seed_no = $2 AND nonce = $3)),
                     (SELECT count(*) FROM fairledger.steps WHERE session_id = $1 AND seed_no = $2 AND nonce = $3))",
            key.session_id,
            key.seed_no,
            key.nonce_i64(),
            round_outcome,
            result.result,
            result.cursor.cast_signed(),
            result.signature.as_ref().map(|signature| signature.signature.as_slice()),
            result.signature.map(|signature| signature.signing_key_no),
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        decode::exactly_one("outcome", inserted)
    }

    /// Voids a bet whose pending row was taken out in this transaction.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn insert_void(&mut self, key: &BetKey, reason: &str) -> Result<(), DbError> {
        let inserted = sqlx::query!(
            "INSERT INTO fairledger.voids (session_id, seed_no, nonce, reason, taken_at, voided_at, steps)
             SELECT session_id, seed_no, nonce, $4, taken_at, greatest(clock_timestamp(), CASE WHEN $4 = 'expired' THEN expires_at END),
                    (SELECT count(*) FROM fairledger.steps WHERE session_id = $1 AND seed_no = $2 AND nonce = $3)
             FROM fairledger.bets WHERE session_id = $1 AND seed_no = $2 AND nonce = $3",
            key.session_id,
            key.seed_no,
            key.nonce_i64(),
            reason,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        decode::exactly_one("void", inserted)
    }

    /// Stores what was paid; false when the bet was settled before.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn insert_settlement(&mut self, key: &BetKey, settlement: &NewSettlement<'_>) -> Result<bool, DbError> {
        let inserted = sqlx::query!(
            "INSERT INTO fairledger.settlements (session_id, seed_no, nonce, payout, outcome, displayed, rules, settled_at)
             VALUES ($1, $2, $3, $4::text::numeric, $5, $6::text::json, $7::text::json, clock_timestamp())
             ON CONFLICT (session_id, seed_no, nonce) DO NOTHING",
            key.session_id,
            key.seed_no,
            key.nonce_i64(),
            settlement.payout.to_plain_string(),
            settlement.outcome,
            settlement.displayed,
            settlement.rules,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        Ok(inserted == 1)
    }
}
