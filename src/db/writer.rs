//! A connection of its own for whoever commits batches one after the other.
//!
//! The pool asks a connection for a sign of life whenever it is lent and given back, and every transaction states its limits anew. A
//! writer does neither: it keeps its connection, states the limits once, and makes another when that one is lost. Through a
//! transaction-pooling PgBouncer nothing may stay in a session, so there every transaction states them.
//!
//! Keeps I9 and I10 as [`Tx`](super::Tx) does (a lost answer to a commit is an unknown outcome; see `fence`) and I12 (connecting,
//! statements and lock waits are bounded).

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{ConnectOptions as _, Connection as _, Executor as _};

use super::fence::Fence;
use super::stats::{Kind, Timed};
use super::{Datastore, DbError, FORGET_STATEMENTS, commit_error, no_answer, witness};

/// A connection that begins one transaction after the other.
#[derive(Debug)]
pub struct Writer {
    store: Datastore,
    /// What a new connection is told once; empty where nothing may stay in the session.
    session: String,
    begin: String,
    connection: Option<PgConnection>,
    /// A transaction was begun and not ended: its connection is good for nothing else.
    open: bool,
    /// COMMIT was sent, and its answer has not come or was not yet witnessed.
    committing: bool,
}

impl Writer {
    pub(super) fn new(store: Datastore, lock_timeout: Duration, settings: &[(&str, &str)]) -> Self {
        let limits = [
            ("statement_timeout", store.statement_timeout.as_millis().to_string()),
            ("lock_timeout", lock_timeout.as_millis().to_string()),
            ("idle_in_transaction_session_timeout", (store.statement_timeout * 2).as_millis().to_string()),
        ];
        let limits = limits.iter().map(|(name, value)| (*name, value.as_str()));
        let set = if store.transaction_pooler { "SET LOCAL" } else { "SET" };
        let mut stated = String::new();
        for (name, value) in limits.chain(settings.iter().copied()) {
            // Writing to a string cannot fail.
            let _ = write!(stated, "{set} {name} = {value}; ");
        }
        let begin = "BEGIN ISOLATION LEVEL READ COMMITTED".to_owned();
        let (session, begin) = if store.transaction_pooler {
            (String::new(), format!("{begin}; {stated}{}", FORGET_STATEMENTS.trim_start_matches("; ")))
        } else {
            (stated, begin)
        };
        Self { store, session, begin, connection: None, open: false, committing: false }
    }

    /// Begins a transaction. The name is for logs and metrics.
    ///
    /// # Errors
    /// No database, or not in time.
    pub async fn begin(&mut self, name: &'static str) -> Result<BatchTx<'_>, DbError> {
        self.store.ready().await?;
        self.committing = false;
        if std::mem::replace(&mut self.open, true) {
            self.connection = None;
        }
        // A connection at rest may have been lost since. Nothing is in it, so another one will do.
        let kept = match self.connection.take() {
            Some(mut connection) => {
                let begun = connection.execute(sqlx::AssertSqlSafe(self.begin.clone()));
                let begun = tokio::time::timeout(self.store.acquire_timeout, begun).await;
                matches!(begun, Ok(Ok(_))).then_some(connection)
            }
            None => None,
        };
        let connection = match kept {
            Some(connection) => connection,
            None => self.connect_and_begin().await?,
        };
        let connection = self.connection.insert(connection);
        Ok(BatchTx {
            connection,
            open: &mut self.open,
            committing: &mut self.committing,
            timed: self.store.stats.begun(name),
            fence: self.store.fence.as_ref(),
        })
    }

    async fn connect_and_begin(&self) -> Result<PgConnection, DbError> {
        let connecting = async {
            let mut connection = self.store.pool.connect_options().connect().await?;
            if !self.session.is_empty() {
                connection.execute(sqlx::AssertSqlSafe(self.session.clone())).await?;
            }
            connection.execute(sqlx::AssertSqlSafe(self.begin.clone())).await?;
            Ok(connection)
        };
        match tokio::time::timeout(self.store.acquire_timeout, connecting).await {
            Ok(connected) => connected.map_err(|error: sqlx::Error| error.into()),
            Err(_) => Err(DbError::Unavailable("no connection to the database could be made in time".to_owned())),
        }
    }

    /// How long a batch may take in all.
    pub(super) fn batch_timeout(&self) -> Duration {
        self.store.transaction_timeout
    }

    /// Throws the connection away in the middle of a batch that took too long; says what became of it.
    pub(super) fn give_up(&mut self) -> DbError {
        tracing::warn!("a batch got no answer in time: its connection is given up");
        self.connection = None;
        if std::mem::take(&mut self.committing) {
            DbError::OutcomeUnknown("the commit got no answer in time".to_owned())
        } else {
            no_answer()
        }
    }

    /// Says goodbye to the server.
    pub async fn close(mut self) {
        let Some(connection) = self.connection.take() else { return };
        match tokio::time::timeout(self.store.acquire_timeout, connection.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "closing a writer's connection"),
            Err(_) => tracing::debug!("a writer's connection did not close in time"),
        }
    }
}

/// A writer's transaction. Dropped without an end it takes its connection with it, and so is rolled back.
#[derive(Debug)]
pub struct BatchTx<'w> {
    connection: &'w mut PgConnection,
    open: &'w mut bool,
    committing: &'w mut bool,
    timed: Timed,
    fence: Option<&'w Arc<Fence>>,
}

impl BatchTx<'_> {
    /// Commits. With a fence, only on a database that lacks nothing, and a batch is counted as one transaction.
    ///
    /// # Errors
    /// [`DbError::OutcomeUnknown`] when the answer was lost; any other error means that nothing was persisted.
    pub async fn commit(self) -> Result<(), DbError> {
        let _commit = self.timed.commit(Kind::Group);
        let counted = match self.fence {
            Some(fence) => fence.count(self.connection).await,
            None => Ok(None),
        };
        let ticket = match counted {
            Ok(ticket) => ticket,
            Err(error) => {
                self.rollback().await;
                return Err(error);
            }
        };
        *self.committing = true;
        let committed = match self.connection.execute("COMMIT").await {
            Ok(_) => {
                *self.open = false;
                Ok(())
            }
            Err(error) => Err(commit_error(self.timed.name(), error)),
        };
        match ticket {
            Some(ticket) => ticket.settle(committed).await,
            None => committed,
        }
    }

    /// Rolls back at once, so that locks are free before the caller goes on.
    pub async fn rollback(self) {
        match self.connection.execute("ROLLBACK").await {
            Ok(_) => *self.open = false,
            Err(error) => tracing::debug!(transaction = self.timed.name(), %error, "rollback on a lost connection"),
        }
    }

    /// As [`Tx::acknowledge_again`](super::Tx).
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) async fn acknowledge_again(&mut self) -> Result<(), DbError> {
        witness::be_counted(self.connection).await
    }

    /// The connection, for statements.
    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        self.connection
    }
}
