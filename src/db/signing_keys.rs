//! The public keys that records were signed with.

use std::collections::HashMap;

use chrono::{DateTime, Utc};

use super::{Access, DbError, Tx, decode};

/// A signing key's public side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningKeyRow {
    /// The public key.
    pub signer: [u8; 32],
    /// When a service first started with it.
    pub valid_from: DateTime<Utc>,
    /// When a service started with a later key instead.
    pub valid_until: Option<DateTime<Utc>>,
}

impl<A: Access> Tx<A> {
    /// Every signing key, oldest first.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn signing_keys(&mut self) -> Result<Vec<SigningKeyRow>, DbError> {
        sqlx::query!("SELECT signer, valid_from, valid_until FROM fairledger.signing_keys ORDER BY signing_key_no")
            .fetch_all(&mut *self.inner)
            .await?
            .into_iter()
            .map(|row| {
                Ok(SigningKeyRow {
                    signer: decode::array("signing key", &row.signer)?,
                    valid_from: row.valid_from,
                    valid_until: row.valid_until,
                })
            })
            .collect()
    }

    /// The public keys by the numbers that rows with a signature name them by.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn signers(&mut self) -> Result<HashMap<i32, [u8; 32]>, DbError> {
        sqlx::query!("SELECT signing_key_no, signer FROM fairledger.signing_keys")
            .fetch_all(&mut *self.inner)
            .await?
            .into_iter()
            .map(|row| Ok((row.signing_key_no, decode::array("signing key", &row.signer)?)))
            .collect()
    }
}

impl Tx {
    /// Registers the key in use, ends the others, and gives its number.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn register_signing_key(&mut self, signer: &[u8; 32]) -> Result<i32, DbError> {
        // Starts of several services queue here, so that no two give out one number.
        sqlx::query!("SELECT pg_advisory_xact_lock(hashtext('fairledger.signing_keys'))")
            .fetch_one(&mut *self.inner)
            .await?;
        sqlx::query!(
            "INSERT INTO fairledger.signing_keys (signing_key_no, signer)
             SELECT coalesce(max(signing_key_no), 0) + 1, $1 FROM fairledger.signing_keys
             ON CONFLICT (signer) DO NOTHING",
            signer.as_slice(),
        )
        .execute(&mut *self.inner)
        .await?;
        sqlx::query!(
            "UPDATE fairledger.signing_keys SET valid_until = CASE WHEN signer = $1 THEN NULL ELSE clock_timestamp() END
             WHERE (signer = $1) = (valid_until IS NOT NULL)",
            signer.as_slice(),
        )
        .execute(&mut *self.inner)
        .await?;
        Ok(sqlx::query_scalar!(
            "SELECT signing_key_no FROM fairledger.signing_keys WHERE signer = $1",
            signer.as_slice()
        )
        .fetch_one(&mut *self.inner)
        .await?)
    }
}
