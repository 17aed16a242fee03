//! The registry of the keys that seal server seeds, and re-sealing.

use uuid::Uuid;

use super::seeds::SealedSeed;
use super::{Access, DbError, Tx, decode};
use crate::gfs::seed::Commitment;

/// A seed to be sealed anew.
#[derive(Clone, Debug)]
pub struct SeedToReseal {
    /// Its session.
    pub session_id: Uuid,
    /// Its number.
    pub seed_no: i32,
    /// Its commitment.
    pub commitment: Commitment,
    /// As it is sealed now.
    pub sealed: SealedSeed,
    /// It is a next seed: still in `next_seeds`.
    pub next: bool,
}

impl<A: Access> Tx<A> {
    /// Every registered key with its check value, and whether any seed is sealed under it.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn seed_keys(&mut self) -> Result<Vec<(String, Vec<u8>, bool)>, DbError> {
        Ok(sqlx::query!(
            r#"SELECT key_id, check_value,
                      (EXISTS (SELECT 1 FROM fairledger.seeds s WHERE s.seal_key_id = k.key_id)
                       OR EXISTS (SELECT 1 FROM fairledger.next_seeds n WHERE n.seal_key_id = k.key_id)) AS "used!"
               FROM fairledger.seed_keys k ORDER BY key_id"#
        )
        .fetch_all(&mut *self.inner)
        .await?
        .into_iter()
        .map(|row| (row.key_id, row.check_value, row.used))
        .collect())
    }
}

impl Tx {
    /// Registers a key by a constant sealed under it; keeps what is there.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn register_seed_key(&mut self, key_id: &str, check_value: &[u8]) -> Result<(), DbError> {
        sqlx::query!(
            "INSERT INTO fairledger.seed_keys (key_id, check_value) VALUES ($1, $2) ON CONFLICT (key_id) DO NOTHING",
            key_id,
            check_value,
        )
        .execute(&mut *self.inner)
        .await?;
        Ok(())
    }

    /// Whether any seed is sealed under a key.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn seed_key_in_use(&mut self, key_id: &str) -> Result<bool, DbError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT (EXISTS (SELECT 1 FROM fairledger.seeds WHERE seal_key_id = $1)
                       OR EXISTS (SELECT 1 FROM fairledger.next_seeds WHERE seal_key_id = $1)) AS "used!""#,
            key_id,
        )
        .fetch_one(&mut *self.inner)
        .await?)
    }

    /// How many seeds, next ones included, are sealed under each registered key. Counts them one by one.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn seeds_by_key(&mut self) -> Result<Vec<(String, u64)>, DbError> {
        sqlx::query!(
            r#"SELECT key_id, (SELECT count(*) FROM fairledger.seeds s WHERE s.seal_key_id = k.key_id)
                      + (SELECT count(*) FROM fairledger.next_seeds n WHERE n.seal_key_id = k.key_id) AS "seeds!"
               FROM fairledger.seed_keys k ORDER BY registered_at, key_id"#
        )
        .fetch_all(&mut *self.inner)
        .await?
        .into_iter()
        .map(|row| Ok((row.key_id, decode::unsigned("seed", row.seeds)?)))
        .collect()
    }

    /// Locks a bounded number of seeds that are sealed under the given key, skipping those in use this moment. By key, so that an
    /// index finds them however many are sealed anew already. Needs the owner's rights.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn seeds_to_reseal(&mut self, key_id: &str, limit: i64) -> Result<Vec<SeedToReseal>, DbError> {
        let mut found = Vec::new();
        for row in sqlx::query!(
            "SELECT session_id, seed_no, commitment, sealed_seed, seal_key_id FROM fairledger.seeds WHERE seal_key_id = $1
             LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED",
            key_id,
            limit,
        )
        .fetch_all(&mut *self.inner)
        .await?
        {
            found.push(SeedToReseal {
                session_id: row.session_id,
                seed_no: row.seed_no,
                commitment: decode::commitment("seed", &row.commitment)?,
                sealed: SealedSeed { key_id: row.seal_key_id, bytes: row.sealed_seed },
                next: false,
            });
        }
        for row in sqlx::query!(
            "SELECT session_id, seed_no, commitment, sealed_seed, seal_key_id FROM fairledger.next_seeds WHERE seal_key_id = $1
             LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED",
            key_id,
            limit,
        )
        .fetch_all(&mut *self.inner)
        .await?
        {
            found.push(SeedToReseal {
                session_id: row.session_id,
                seed_no: row.seed_no,
                commitment: decode::commitment("next seed", &row.commitment)?,
                sealed: SealedSeed { key_id: row.seal_key_id, bytes: row.sealed_seed },
                next: true,
            });
        }
        Ok(found)
    }

    /// Replaces the seal of a seed that was locked by [`Tx::seeds_to_reseal`]. Needs the owner's rights.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn reseal(&mut self, seed: &SeedToReseal, sealed: &SealedSeed) -> Result<(), DbError> {
        let resealed = if seed.next {
            sqlx::query!(
                "UPDATE fairledger.next_seeds SET sealed_seed = $3, seal_key_id = $4 WHERE session_id = $1 AND seed_no = $2",
                seed.session_id,
                seed.seed_no,
                sealed.bytes,
                sealed.key_id,
            )
            .execute(&mut *self.inner)
            .await?
        } else {
            sqlx::query!(
                "UPDATE fairledger.seeds SET sealed_seed = $3, seal_key_id = $4 WHERE session_id = $1 AND seed_no = $2",
                seed.session_id,
                seed.seed_no,
                sealed.bytes,
                sealed.key_id,
            )
            .execute(&mut *self.inner)
            .await?
        };
        decode::exactly_one("seed", resealed.rows_affected())
    }
}
