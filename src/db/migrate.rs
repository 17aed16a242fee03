//! Migrations by refinery, under an advisory lock of ours, and the check that `serve` makes of the schema.
//!
//! A landed migration never changes: one that differs from what was applied, is missing or unknown stops everything with a clear
//! error. The history table is `fairledger.schema_history`.

use refinery::Runner;
use tokio_postgres::Client;

use super::rights::{self, Roles};
use super::tls::Target;
use super::{Datastore, DbError};

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// Where refinery keeps what was applied.
const HISTORY: &str = "fairledger.schema_history";

/// Any fixed number will do that no other use of advisory locks in the database has: "fairledg" as ASCII.
const LOCK: i64 = 0x6661_6972_6c65_6467;

/// How long a migration's statement may wait for a lock, with everybody else waiting behind it. The migration fails then, whole, and is run
/// again. docs/MIGRATIONS.md has the rules.
const LOCK_TIMEOUT: &str = "SET lock_timeout = '10s'";

/// What a run of the migrator did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Names of the migrations that this run applied, in order.
    pub applied: Vec<String>,
    /// Version of the schema now.
    pub version: i32,
}

/// Why the migrator, or the check of the schema, stopped.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The database cannot be reached or refused a statement.
    #[error("migrating failed: {0}")]
    Database(String),
    /// What is in the database is not what this program carries.
    #[error("the database's migrations are not this program's: {0}")]
    Diverged(String),
    /// All that this program carries is there, and more: a newer program has migrated.
    #[error(
        "the database's migrations are not this program's: its schema is at version {found}, and this program knows {known}: the database is newer"
    )]
    Newer {
        /// Version of the schema in the database.
        found: i32,
        /// Version this program carries.
        known: i32,
    },
    /// Migrations are waiting.
    #[error("the schema is at version {found}, this program needs {needed}: run `fairledger migrate`")]
    Pending {
        /// Version of the schema in the database.
        found: i32,
        /// Version this program carries.
        needed: i32,
    },
    /// A role is missing and cannot be made.
    #[error(
        "role {role:?} does not exist and the migrating role may not create it: run `CREATE ROLE {role} LOGIN` as an administrator, or name another role"
    )]
    RoleMissing {
        /// Its name.
        role: String,
    },
    /// The service would own what it must not change.
    #[error("the {which} role {role:?} must not be the role that migrates: history would not be guarded against it")]
    RoleIsOwner {
        /// Which of the roles.
        which: &'static str,
        /// Its name.
        role: String,
    },
}

impl From<tokio_postgres::Error> for MigrateError {
    fn from(error: tokio_postgres::Error) -> Self {
        // The driver's own Display hides the server's message, and what a handshake failed of.
        let message = error.as_db_error().map_or_else(|| with_causes(&error), |error| error.message().to_owned());
        Self::Database(message)
    }
}

fn runner() -> Runner {
    let mut runner = embedded::migrations::runner();
    runner.set_migration_table_name(HISTORY);
    runner
}

/// The version of the schema that this program was built for.
pub fn version_needed() -> i32 {
    runner().get_migrations().iter().map(|migration| i32::from_version(migration.version())).max().unwrap_or(0)
}

trait FromVersion {
    fn from_version(version: refinery::SchemaVersion) -> Self;
}

impl FromVersion for i32 {
    fn from_version(version: refinery::SchemaVersion) -> Self {
        version as Self
    }
}

async fn connect(url: &str) -> Result<Client, MigrateError> {
    Target::parse(url).map_err(MigrateError::Database)?.connect().await
}

/// Applies what is missing, then states the rights of the roles anew. Any number of migrators may run at once: they queue.
///
/// # Errors
/// See [`MigrateError`]; nothing of a failed migration stays.
pub async fn run(url: &str, roles: &Roles) -> Result<Report, MigrateError> {
    let mut client = connect(url).await?;
    client.execute("SELECT pg_advisory_lock($1)", &[&LOCK]).await?;
    // Not before: other migrators may take their time.
    client.batch_execute(LOCK_TIMEOUT).await?;
    client.batch_execute("SET client_min_messages = warning; CREATE SCHEMA IF NOT EXISTS fairledger").await?;
    // The lock is the session's: it goes with the connection on every path out of here.
    let report = runner().run_async(&mut client).await.map_err(refinery_error)?;
    rights::apply(&mut client, roles).await?;
    Ok(Report {
        applied: report.applied_migrations().iter().map(ToString::to_string).collect(),
        version: version_needed(),
    })
}

/// Compares without changing anything.
///
/// # Errors
/// [`MigrateError::Pending`] when migrations wait, [`MigrateError::Newer`] when the database has more than this program,
/// [`MigrateError::Diverged`] when it has others.
pub async fn check(url: &str) -> Result<i32, MigrateError> {
    let client = connect(url).await?;
    let exists = client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&HISTORY]).await?.get::<_, bool>(0);
    let mut applied = Vec::new();
    if exists {
        for row in
            client.query("SELECT version, name, checksum FROM fairledger.schema_history ORDER BY version", &[]).await?
        {
            applied.push((row.get::<_, i32>(0), row.get::<_, String>(1), row.get::<_, String>(2)));
        }
    }
    compare(&applied)
}

/// What [`check`] does, over the service's own connection and rights: `serve` starts on no other schema than its own.
///
/// # Errors
/// As [`check`].
pub async fn check_served(store: &Datastore) -> Result<i32, MigrateError> {
    let database = |error: DbError| MigrateError::Database(error.to_string());
    let mut tx = store.snapshot("schema.check").await.map_err(database)?;
    let exists = sqlx::query_scalar!(r#"SELECT to_regclass('fairledger.schema_history') IS NOT NULL AS "exists!""#)
        .fetch_one(&mut *tx.inner)
        .await
        .map_err(|error| database(error.into()))?;
    let mut applied = Vec::new();
    if exists {
        // Not checked at build time: the table is refinery's, and there is none where the queries are prepared.
        let rows: Vec<(i32, String, String)> =
            sqlx::query_as("SELECT version, name, checksum FROM fairledger.schema_history ORDER BY version")
                .fetch_all(&mut *tx.inner)
                .await
                .map_err(|error| database(error.into()))?;
        applied.extend(rows);
    }
    tx.rollback().await;
    compare(&applied)
}

fn compare(applied: &[(i32, String, String)]) -> Result<i32, MigrateError> {
    let runner = runner();
    let ours = runner.get_migrations();
    let known = version_needed();
    for (version, name, checksum) in applied.iter().filter(|(version, ..)| *version <= known) {
        let Some(migration) = ours.iter().find(|migration| i32::from_version(migration.version()) == *version) else {
            return Err(MigrateError::Diverged(format!("V{version}__{name} is unknown here")));
        };
        if migration.name() != name || migration.checksum().to_string() != *checksum {
            return Err(MigrateError::Diverged(format!("V{version}__{name} was applied in another form")));
        }
    }
    let found = applied.iter().map(|(version, ..)| *version).max().unwrap_or(0);
    if applied.iter().filter(|(version, ..)| *version <= known).count() < ours.len() {
        return Err(MigrateError::Pending { found, needed: known });
    }
    if found > known {
        return Err(MigrateError::Newer { found, known });
    }
    Ok(found)
}

fn refinery_error(error: refinery::Error) -> MigrateError {
    use refinery::error::Kind;
    match error.kind() {
        Kind::DivergentVersion(..) | Kind::MissingVersion(..) | Kind::RepeatedVersion(..) => {
            MigrateError::Diverged(error.to_string())
        }
        _ => MigrateError::Database(with_causes(&error)),
    }
}

/// An error's message with those of its causes, each said once.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let cause = inner.to_string();
        if !message.ends_with(&cause) {
            message = format!("{message}: {cause}");
        }
        source = inner.source();
    }
    message
}
