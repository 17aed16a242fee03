//! How many sessions one address may start in its window.

use super::{DbError, Tx};

impl Tx {
    /// Counts one more session of an address, unless its window is full; gives the number, or the seconds until the window ends.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn count_session(
        &mut self,
        address_hash: &[u8; 32],
        sessions_max: i32,
        window_seconds: f64,
    ) -> Result<Result<i32, f64>, DbError> {
        let counted = sqlx::query_scalar!(
            "INSERT INTO fairledger.address_quota AS q (address_hash, window_started_at, sessions) VALUES ($1, clock_timestamp(), 1)
             ON CONFLICT (address_hash) DO UPDATE SET
                 sessions = CASE WHEN q.window_started_at <= clock_timestamp() - make_interval(secs => $3) THEN 1 ELSE q.sessions + 1 END,
                 window_started_at = CASE WHEN q.window_started_at <= clock_timestamp() - make_interval(secs => $3)
                                          THEN clock_timestamp() ELSE q.window_started_at END
             WHERE q.sessions < $2 OR q.window_started_at <= clock_timestamp() - make_interval(secs => $3)
             RETURNING sessions",
            address_hash.as_slice(),
            sessions_max,
            window_seconds,
        )
        .fetch_optional(&mut *self.inner)
        .await?;
        if let Some(sessions) = counted {
            return Ok(Ok(sessions));
        }
        let left = sqlx::query_scalar!(
            r#"SELECT extract(epoch FROM window_started_at + make_interval(secs => $2) - clock_timestamp())::float8 AS "left!"
               FROM fairledger.address_quota WHERE address_hash = $1"#,
            address_hash.as_slice(),
            window_seconds,
        )
        .fetch_optional(&mut *self.inner)
        .await?;
        Ok(Err(left.unwrap_or(0.0).max(1.0)))
    }

    /// Forgets addresses whose window ended, a bounded number at a time.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn sweep_quota(&mut self, window_seconds: f64, limit: i64) -> Result<u64, DbError> {
        Ok(sqlx::query!(
            "DELETE FROM fairledger.address_quota WHERE address_hash IN (
                 SELECT address_hash FROM fairledger.address_quota
                 WHERE window_started_at <= clock_timestamp() - make_interval(secs => $1)
                 ORDER BY window_started_at LIMIT $2 FOR UPDATE SKIP LOCKED)",
            window_seconds,
            limit,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected())
    }
}
