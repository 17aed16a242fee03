//! Steps of rounds. Only ever inserted, each before what it discloses is shown (I8, I11).

use chrono::{DateTime, Utc};
use futures_util::TryStreamExt as _;
use serde_json::Value;
use uuid::Uuid;

use super::bets::BetKey;
use super::decode::StoredTime;
use super::{Access, DbError, Tx, corrupt, decode};

const WHAT: &str = "step";

/// A stored step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRow {
    /// Its place in the round, from 0.
    pub index: u32,
    /// The engine's own description.
    pub step: Value,
    /// What the engine asked to be shown.
    pub disclose: Option<Value>,
    /// What was shown for it.
    pub disclosed: Option<Value>,
    /// When.
    pub stepped_at: DateTime<Utc>,
}

/// A step with its round, as PostgreSQL gives it.
struct Raw {
    session_id: Uuid,
    seed_no: i32,
    nonce: i64,
    step_index: i32,
    step: String,
    disclose: Option<String>,
    disclosed: Option<String>,
    stepped_at: StoredTime,
}

impl Raw {
    fn decode(self, expected: u32) -> Result<StepRow, DbError> {
        let index = decode::unsigned32(WHAT, self.step_index)?;
        if index != expected {
            return Err(corrupt(WHAT, format!("index {index} where {expected} must be")));
        }
        Ok(StepRow {
            index,
            step: decode::json(WHAT, &self.step)?,
            disclose: decode::json_opt(WHAT, self.disclose.as_deref())?,
            disclosed: decode::json_opt(WHAT, self.disclosed.as_deref())?,
            stepped_at: self.stepped_at.time(WHAT)?,
        })
    }
}

impl<A: Access> Tx<A> {
    /// Reads the steps of rounds, one round after the other. A round whose steps cannot be read is given as its error, and one without steps not
    /// at all.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn steps_at(
        &mut self,
        keys: &[BetKey],
        mut each: impl FnMut(BetKey, Result<Vec<StepRow>, DbError>) + Send,
    ) -> Result<(), DbError> {
        let sessions: Vec<Uuid> = keys.iter().map(|key| key.session_id).collect();
        let seeds: Vec<i32> = keys.iter().map(|key| key.seed_no).collect();
        let nonces: Vec<i64> = keys.iter().map(BetKey::nonce_i64).collect();
        let mut rows = sqlx::query_as!(
            Raw,
            r#"SELECT s.session_id, s.seed_no, s.nonce, s.step_index, s.step::text AS "step!", s.disclose::text AS disclose,
                      s.disclosed::text AS disclosed, s.stepped_at AS "stepped_at: StoredTime"
               FROM unnest($1::uuid[], $2::integer[], $3::bigint[]) AS k (session_id, seed_no, nonce)
               JOIN fairledger.steps s USING (session_id, seed_no, nonce)
               ORDER BY s.session_id, s.seed_no, s.nonce, s.step_index"#,
            &sessions,
            &seeds,
            &nonces,
        )
        .fetch(&mut *self.inner);
        let mut round: Option<(BetKey, Result<Vec<StepRow>, DbError>)> = None;
        while let Some(row) = rows.try_next().await? {
            let nonce = decode::unsigned(WHAT, row.nonce)?;
            let key = BetKey { session_id: row.session_id, seed_no: row.seed_no, nonce };
            if let Some((whole, steps)) = round.take_if(|(before, _)| *before != key) {
                each(whole, steps);
            }
            let (_, steps) = round.get_or_insert_with(|| (key, Ok(Vec::new())));
            if let Ok(read) = steps {
                match row.decode(u32::try_from(read.len()).unwrap_or(u32::MAX)) {
                    Ok(step) => read.push(step),
                    Err(error) => *steps = Err(error),
                }
            }
        }
        if let Some((whole, steps)) = round {
            each(whole, steps);
        }
        Ok(())
    }

    /// Reads a round's steps in order. Their number is capped when they are made.
    ///
    /// # Errors
    /// Those of the database; corruption when one is missing.
    pub async fn steps(&mut self, key: &BetKey) -> Result<Vec<StepRow>, DbError> {
        let rows = sqlx::query_as!(
            Raw,
            r#"SELECT session_id, seed_no, nonce, step_index, step::text AS "step!", disclose::text AS disclose,
                      disclosed::text AS disclosed, stepped_at AS "stepped_at: StoredTime"
               FROM fairledger.steps WHERE session_id = $1 AND seed_no = $2 AND nonce = $3 ORDER BY step_index"#,
            key.session_id,
            key.seed_no,
            key.nonce_i64(),
        )
        .fetch_all(&mut *self.inner)
        .await?;
        rows.into_iter().zip(0..).map(|(row, expected)| row.decode(expected)).collect()
    }
}

impl Tx {
    /// Stores a step of a round that was advanced in this transaction. JSON is canonical text.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn insert_step(
        &mut self,
        key: &BetKey,
        index: u32,
        step: &str,
        disclose: Option<&str>,
        disclosed: Option<&str>,
    ) -> Result<(), DbError> {
        let inserted = sqlx::query!(
            "INSERT INTO fairledger.steps (session_id, seed_no, nonce, step_index, step, disclose, disclosed, stepped_at)
             VALUES ($1, $2, $3, $4, $5::text::json, $6::text::json, $7::text::json, clock_timestamp())",
            key.session_id,
            key.seed_no,
            key.nonce_i64(),
            index.cast_signed(),
            step,
            disclose,
            disclosed,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        decode::exactly_one("step", inserted)
    }
}
