//! A connection of the pool's for one transaction, given back in bounded time.
//!
//! A host that vanishes without a word leaves a connection that never answers: neither statements nor the sign of life that the pool asks
//! for when a connection comes back. So whatever is said here has its time, and a connection that is silent for longer is thrown away.
//! Its place in the pool is free then, and the server rolls back what was not committed, at the latest when its limit on idle
//! transactions is over. No cancel request is ever sent: a backend that waits for its standby must go on waiting.
//!
//! Keeps I12.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use sqlx::Executor as _;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, Postgres};

use super::{DbError, no_answer};

/// How long a rollback and the way back to the pool may take.
const GIVE_BACK_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Lease {
    /// There until it is dropped.
    connection: Option<PoolConnection<Postgres>>,
    /// A transaction was begun and not ended.
    open: bool,
    silent: bool,
}

impl Lease {
    pub fn new(connection: PoolConnection<Postgres>) -> Self {
        Self { connection: Some(connection), open: false, silent: false }
    }

    /// Begins a transaction.
    pub async fn begin(&mut self, begin: String, within: Duration) -> Result<(), DbError> {
        self.open = true;
        match tokio::time::timeout(within, self.execute(sqlx::AssertSqlSafe(begin))).await {
            Ok(begun) => Ok(begun.map(drop)?),
            Err(_) => {
                self.throw_away();
                Err(no_answer())
            }
        }
    }

    pub async fn rollback(&mut self) -> Result<(), DbError> {
        match tokio::time::timeout(GIVE_BACK_MAX, self.execute("ROLLBACK")).await {
            Ok(done) => {
                done?;
                self.open = false;
                Ok(())
            }
            Err(_) => {
                self.throw_away();
                Err(no_answer())
            }
        }
    }

    /// The transaction was committed.
    pub fn ended(&mut self) {
        self.open = false;
    }

    /// The connection is good for nothing any more.
    pub fn throw_away(&mut self) {
        self.silent = true;
    }
}

impl Deref for Lease {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        // Taken only when dropped.
        self.connection.as_ref().expect("a lease has its connection")
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut PgConnection {
        // Taken only when dropped.
        self.connection.as_mut().expect("a lease has its connection")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        if self.silent {
            // Says goodbye, which takes seconds at the most.
            connection.close_on_drop();
            return;
        }
        let open = self.open;
        tokio::spawn(async move {
            let given_back = tokio::time::timeout(GIVE_BACK_MAX, async {
                if open && let Err(error) = connection.execute("ROLLBACK").await {
                    tracing::debug!(%error, "rollback on a lost connection");
                }
                connection.return_to_pool().await;
            });
            if given_back.await.is_err() {
                connection.close_on_drop();
            }
        });
    }
}
