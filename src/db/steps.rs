//! Steps of rounds. Only ever inserted, each before what it discloses is shown (I8, I11).

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::bets::BetKey;
use super::{Access, DbError, Tx, decode};

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

impl<A: Access> Tx<A> {
    /// Reads a round's steps in order. Their number is capped when they are made.
    ///
    /// # Errors
    /// Those of the database; corruption when one is missing.
    pub async fn steps(&mut self, key: &BetKey) -> Result<Vec<StepRow>, DbError> {
        let what = "step";
        let rows = sqlx::query!(
            r#"SELECT step_index, step::text AS "step!", disclose::text AS disclose, disclosed::text AS disclosed,
                      stepped_at AS "stepped_at: decode::StoredTime"
               FROM fairledger.steps WHERE session_id = $1 AND seed_no = $2 AND nonce = $3 ORDER BY step_index"#,
            key.session_id,
            key.seed_no,
            key.nonce_i64(),
        )
        .fetch_all(&mut *self.inner)
        .await?;
        rows.into_iter()
            .zip(0..)
            .map(|(row, expected)| {
                let index = decode::unsigned32(what, row.step_index)?;
                if index != expected {
                    return Err(super::corrupt(what, format!("index {index} where {expected} must be")));
                }
                Ok(StepRow {
                    index,
                    step: decode::json(what, &row.step)?,
                    disclose: decode::json_opt(what, row.disclose.as_deref())?,
                    disclosed: decode::json_opt(what, row.disclosed.as_deref())?,
                    stepped_at: row.stepped_at.time(what)?,
                })
            })
            .collect()
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
