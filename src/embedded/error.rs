//! What can keep the private PostgreSQL from running, said so that an operator knows what to install or set.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

/// Why there is no private PostgreSQL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedError {
    /// Nothing that looks like PostgreSQL is installed.
    #[error(
        "no PostgreSQL server binaries found: install postgresql (Debian: apt-get install postgresql), or set FAIRLEDGER_PG_BIN \
         to the folder that holds initdb and postgres, or DATABASE_URL to a server of your own"
    )]
    NoBinaries,
    /// The folder that was named explicitly is of no use.
    #[error(
        "{dir} is not a folder of PostgreSQL server binaries ({reason}): set FAIRLEDGER_PG_BIN to the folder that holds initdb and postgres"
    )]
    UnusableBinaries {
        /// The folder.
        dir: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A PostgreSQL that fairledger is not made for.
    #[error(
        "the PostgreSQL in {dir} has version {version}, and versions 14 to 18 are supported: install one of them or set FAIRLEDGER_PG_BIN"
    )]
    UnsupportedVersion {
        /// Where it is.
        dir: PathBuf,
        /// What it calls itself.
        version: String,
    },
    /// The data folder was made by another major version, which this one cannot read.
    #[error(
        "{cluster} was made by PostgreSQL {cluster_major}, and the binaries in {binaries} are of version {binaries_major}: install PostgreSQL \
         {cluster_major} or set FAIRLEDGER_PG_BIN to its binaries; to move to {binaries_major}, dump the database with the old version and restore it"
    )]
    WrongMajor {
        /// The folder of the cluster.
        cluster: PathBuf,
        /// The version that made it.
        cluster_major: u32,
        /// Where the binaries are.
        binaries: PathBuf,
        /// Their version.
        binaries_major: u32,
    },
    /// `pg` in the data folder is something else.
    #[error("{cluster} is not a PostgreSQL cluster (it has no PG_VERSION): move it away or choose another data folder")]
    NotACluster {
        /// The folder.
        cluster: PathBuf,
    },
    /// Another process has the folder.
    #[error(
        "the data folder {data_dir} is in use by process {}: stop it, or choose another data folder",
        pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string())
    )]
    InUse {
        /// The data folder.
        data_dir: PathBuf,
        /// The process, when it could be told.
        pid: Option<u32>,
    },
    /// We are root, which PostgreSQL refuses to be, and found nobody to run it as.
    #[error(
        "PostgreSQL does not run as root, and there is no user postgres or nobody to run it as: make one of them, or give the data folder {data_dir} to another user"
    )]
    NoServerUser {
        /// The data folder.
        data_dir: PathBuf,
    },
    /// We are root, and the user that PostgreSQL would run as cannot get there.
    #[error(
        "PostgreSQL does not run as root, and the user {user} that it would run as cannot reach {path}{}: choose another folder or open the way (chmod o+x)",
        blocked_at.as_ref().map_or_else(String::new, |at| format!(", because of the mode of {}", at.display()))
    )]
    Unreachable {
        /// What cannot be reached: the data folder or the binaries.
        path: PathBuf,
        /// The folder on the way that blocks it, when its mode tells.
        blocked_at: Option<PathBuf>,
        /// The user.
        user: String,
    },
    /// No folder was found that a socket can stand in.
    #[error(
        "no folder for PostgreSQL's socket: {data_dir} is too long or has unusual characters, and neither of {tried} can be used"
    )]
    NoSocketFolder {
        /// The data folder.
        data_dir: PathBuf,
        /// What was tried instead.
        tried: String,
    },
    /// `initdb` failed.
    #[error("initdb failed ({status}):\n{output}")]
    Initdb {
        /// How it ended.
        status: ExitStatus,
        /// What it said.
        output: String,
    },
    /// The server ended by itself or had to be killed.
    #[error("PostgreSQL ended ({status}); pg.log in the data folder says why\n{log}")]
    Died {
        /// How it ended.
        status: ExitStatus,
        /// The last lines that it printed.
        log: String,
    },
    /// The server was gone, and how it ended could not be told.
    #[error("PostgreSQL is gone, and how it ended could not be told")]
    Lost,
    /// The server did not take connections in time.
    #[error("PostgreSQL was not ready within {seconds} s and has been stopped\n{log}")]
    StartTimeout {
        /// How long was waited.
        seconds: u64,
        /// The last lines that it printed.
        log: String,
    },
    /// The operating system refused something.
    #[error("{doing}: {source}")]
    Io {
        /// What we were about.
        doing: String,
        /// What it answered.
        source: io::Error,
    },
    /// The roles or the database could not be made.
    #[error("making the roles and the database of the private PostgreSQL: {0}")]
    Bootstrap(#[from] sqlx::Error),
}

/// Says what an I/O error interrupted.
pub(super) trait IoContext<T> {
    fn during(self, doing: impl Into<String>) -> Result<T, EmbeddedError>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn during(self, doing: impl Into<String>) -> Result<T, EmbeddedError> {
        self.map_err(|source| EmbeddedError::Io { doing: doing.into(), source })
    }
}
