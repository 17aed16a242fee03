//! Why a command failed, in words for its operator.

use std::io;
use std::path::PathBuf;

use crate::config::SettingError;
use crate::db::DbError;
use crate::db::fence::FenceError;
use crate::db::migrate::MigrateError;
use crate::embedded::EmbeddedError;
use crate::history::HistoryError;
use crate::history::verify::VerifyError;
use crate::ledger::LedgerError;
use crate::seeds::{SeedsError, StartError};

/// Why a command failed. No message holds a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CliError {
    /// A setting is wrong.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// `FAIRLEDGER_REQUIRE_DATABASE` is set and `DATABASE_URL` is not.
    #[error("DATABASE_URL is not set, and require-database forbids a private PostgreSQL")]
    DatabaseRequired,
    /// The command works on what is there, and there is nothing.
    #[error(
        "there is no database: DATABASE_URL is not set, and {} holds none; `fairledger serve` makes one, --data-dir names another folder",
        data_dir.display()
    )]
    NoDatabase {
        /// The data folder.
        data_dir: PathBuf,
    },
    /// With a database of its operator's, the service needs keys of its operator's.
    #[error("{}", missing_keys(missing))]
    KeysMissing {
        /// Name, variable and a command that makes one.
        missing: Vec<MissingKey>,
    },
    /// A file of the data folder.
    #[error("{}: {reason}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {}", listen_reason(source))]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
    /// The database is a standby.
    #[error("the database is a standby: nothing can be changed there. Give the URL of the primary")]
    Standby,
    /// A synchronous standby is required and none is set up.
    #[error(
        "require-sync-standby is set, and no commit waits for a standby: set synchronous_standby_names, and synchronous_commit to on or more"
    )]
    NoSyncStandby,
    /// Nothing to recover from.
    #[error(
        "nothing is known to be missing, so nothing was changed. If a backup was restored, or a failover lost something, that no witness \
         folder could notice: --sound-database opens a new epoch all the same"
    )]
    NothingMissing,
    /// The database lacks something that was acknowledged.
    #[error("the database is in quarantine, so nothing is changed: {0}. `fairledger recover` tells more")]
    Quarantined(String),
    /// The restore fence.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The private PostgreSQL keeps ending.
    #[error(
        "the private PostgreSQL ended {times} times in a row, each time within {seconds} s; pg.log in the data folder says why"
    )]
    KeepsEnding {
        /// How often.
        times: u32,
        /// How soon.
        seconds: u64,
    },
    /// The private PostgreSQL.
    #[error(transparent)]
    Embedded(#[from] EmbeddedError),
    /// The migrator.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// The services refuse the database or the keys.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The services.
    #[error(transparent)]
    Seeds(#[from] SeedsError),
    /// The history.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The token ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A check of stored bets.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// The database.
    #[error(transparent)]
    Db(#[from] DbError),
    /// What was to be shown was not.
    #[error("writing to standard output: {0}")]
    Output(io::Error),
    /// The operating system refused something.
    #[error("{doing}: {source}")]
    Io {
        /// What we were about.
        doing: String,
        /// What it said.
        source: io::Error,
    },
    /// The certificate of the HTTP API, or its key.
    #[error(transparent)]
    Tls(#[from] crate::http::tls::TlsError),
    /// Something else, said in full.
    #[error("{0}")]
    Refused(String),
}

/// A key that is needed and not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingKey {
    /// Name of the setting.
    pub name: &'static str,
    /// Its variable.
    pub env: &'static str,
    /// A command that prints a new one.
    pub make: &'static str,
}

impl CliError {
    pub(super) fn io(doing: impl Into<String>, source: io::Error) -> Self {
        Self::Io { doing: doing.into(), source }
    }
}

fn missing_keys(missing: &[MissingKey]) -> String {
    let mut text = "with DATABASE_URL set, these must be set too, and kept as long as the database:".to_owned();
    for MissingKey { name, env, make } in missing {
        text.push_str(&format!("\n  {name}: {env}, or a file named by {env}_FILE; make one with: {make}"));
    }
    text
}

fn listen_reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another process listens there; choose another address with --listen".to_owned(),
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_owned(),
        io::ErrorKind::PermissionDenied => "not permitted; ports below 1024 are the administrator's".to_owned(),
        _ => error.to_string(),
    }
}
