//! Settings: from flags, then the environment, then an optional TOML file, then defaults.
//!
//! One table, [`DEFINITIONS`], names every setting once; flags, variables, keys of the file and the text of `--help` all follow from
//! it. A wrong setting stops the start with its name, where it came from and why.
//!
//! Keeps I6: a secret's value stands in no error and no `Debug`. Keeps I12: every number has bounds.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use crate::db::PoolSettings;
use crate::db::group::GroupSettings;
use crate::db::rights::Roles;
use crate::gfs::SigningKey;
use crate::history::HistorySettings;
use crate::http::HttpSettings;
use crate::ledger::LedgerSettings;
use crate::seeds::{KeyRing, SeedsSettings, ServiceSecret};

mod definitions;
mod sources;
mod values;

pub use definitions::{CONFIG_ENV, DEFINITIONS, Definition, Kind};
pub use sources::Sources;
pub use values::{duration_text, parse_duration};

use sources::Found;
use values::DurationBounds;

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("setting {name} ({origin}): {reason}")]
pub struct SettingError {
    /// Its name, as in the TOML file.
    pub name: String,
    /// Where the value came from, such as `variable FAIRLEDGER_LISTEN`.
    pub origin: String,
    /// What is wrong with it. Never a secret's value.
    pub reason: String,
}

/// A connection URL, which may hold a password.
#[derive(Clone)]
pub struct DatabaseUrl(Zeroizing<String>);

impl DatabaseUrl {
    /// Takes a URL as it is.
    pub fn new(url: String) -> Self {
        Self(Zeroizing::new(url))
    }

    /// The URL in clear, for a driver.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DatabaseUrl(redacted)")
    }
}

/// In what form logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people on a terminal, as JSON otherwise.
    Auto,
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

/// The files of a certificate chain and its key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain, the server's own certificate first.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Every setting, checked.
#[derive(Debug)]
pub struct Settings {
    /// Where the HTTP API listens.
    pub listen: SocketAddr,
    /// The files of the HTTP API's certificate and key; plain HTTP without them.
    pub tls: Option<TlsFiles>,
    /// Where metrics are answered; nowhere when not set.
    pub metrics_addr: Option<SocketAddr>,
    /// How often the metrics that come from the database are read.
    pub metrics_interval: Duration,
    /// The folder of the private PostgreSQL and its secrets.
    pub data_dir: PathBuf,
    /// What the service connects to; none for the private PostgreSQL.
    pub database_url: Option<DatabaseUrl>,
    /// What the owner connects to, for migrations and re-sealing; the same as `database_url` when not set.
    pub migrate_database_url: Option<DatabaseUrl>,
    /// What history is read from; the database itself when not set.
    pub replica_url: Option<DatabaseUrl>,
    /// Without `database_url`, refuse instead of running a private PostgreSQL.
    pub require_database: bool,
    /// The witness folder.
    pub witness_dir: Option<PathBuf>,
    /// The instance's name.
    pub instance: Option<String>,
    /// Refuse to serve without a synchronous standby.
    pub require_sync_standby: bool,
    /// Folder of PostgreSQL's server binaries for the private server.
    pub pg_bin: Option<PathBuf>,
    /// Names of the roles that the migrator gives rights to.
    pub roles: Roles,
    /// How the pool is made.
    pub pool: PoolSettings,
    /// The keys that seal server seeds.
    pub seed_keys: Option<KeyRing>,
    /// For address hashes and page tokens.
    pub secret: Option<ServiceSecret>,
    /// Signs records.
    pub signing_key: Option<SigningKey>,
    /// Limits and times of sessions and bets.
    pub seeds: SeedsSettings,
    /// Limits and times of the token ledger.
    pub ledger: LedgerSettings,
    /// Bounds of queries and exports.
    pub history: HistorySettings,
    /// Bounds and times of the HTTP API.
    pub http: HttpSettings,
    /// Filter of the log, as `tracing-subscriber` reads it.
    pub log: String,
    /// Form of the log.
    pub log_format: LogFormat,
    /// Where spans are sent: the collector's URL up to `/v1/traces`. Nowhere when not set.
    pub otlp_endpoint: Option<String>,
}

impl Settings {
    /// Reads and checks all settings.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn load(sources: &Sources) -> Result<Self, SettingError> {
        let read = Reader { sources };
        let timeout = DurationBounds { min: Duration::from_millis(10), max: Duration::from_secs(60 * 60) };
        let lifetime = DurationBounds { min: Duration::from_millis(100), max: Duration::from_secs(366 * 24 * 60 * 60) };
        let group = read.group()?;
        Ok(Self {
            listen: read.required("listen", |text| {
                text.parse().map_err(|_| "must be an IP address and a port, such as 127.0.0.1:8080".to_owned())
            })?,
            tls: read.tls()?,
            metrics_addr: read.optional("metrics-addr", |text| {
                text.parse().map_err(|_| "must be an IP address and a port, such as 127.0.0.1:9464".to_owned())
            })?,
            metrics_interval: read.required("metrics-interval", |text| timeout.read(text))?,
            data_dir: read.required("data-dir", |text| Ok(PathBuf::from(text)))?,
            database_url: read.optional("database-url", parse_url)?,
            migrate_database_url: read.optional("migrate-database-url", parse_url)?,
            replica_url: read.optional("replica-url", parse_url)?,
            require_database: read.required("require-database", values::boolean)?,
            witness_dir: read.optional("witness-dir", |text| Ok(PathBuf::from(text)))?,
            instance: read.optional("instance", values::instance_name)?,
            require_sync_standby: read.required("require-sync-standby", values::boolean)?,
            pg_bin: read.optional("pg-bin", |text| Ok(PathBuf::from(text)))?,
            roles: read.roles()?,
            pool: PoolSettings {
                connections_max: read.required("pool-size", |text| values::integer(text, 1, 1_000))?,
                acquire_timeout: read.required("acquire-timeout", |text| timeout.read(text))?,
                statement_timeout: read.required("statement-timeout", |text| timeout.read(text))?,
                transaction_timeout: read.required("transaction-timeout", |text| timeout.read(text))?,
                lock_timeout: read.required("lock-timeout", |text| timeout.read(text))?,
                slow_transaction: read.required("slow-transaction", |text| timeout.read(text))?,
                transaction_pooler: read.required("transaction-pooler", values::boolean)?,
            },
            seed_keys: read.optional("seed-keys", parse_seed_keys)?,
            secret: read.optional("secret", parse_secret)?,
            signing_key: read.optional("signing-key", parse_signing_key)?,
            seeds: SeedsSettings {
                idle_after: read.required("idle-after", |text| lifetime.read(text))?,
                reservation_ttl: read.required("reservation-ttl", |text| lifetime.read(text))?,
                pending_max: read.required("pending-max", |text| values::integer(text, 1, 1_000))?,
                sessions_per_address_max: read
                    .required("sessions-per-address", |text| values::integer(text, 1, 1_000_000))?,
                group: group.clone(),
                ..SeedsSettings::default()
            },
            ledger: LedgerSettings {
                keys_live_max: read.required("keys-live-max", |text| values::integer(text, 1, 1_000))?,
                window: read.required("token-window", |text| lifetime.read(text))?,
                sweep_interval: read.required("sweep-interval", |text| lifetime.read(text))?,
                group,
                ..LedgerSettings::default()
            },
            history: HistorySettings {
                exports_max: read.required("exports-max", |text| values::integer(text, 1, 1_000))? as usize, // at most 1,000
                export_stall: read.required("export-stall", |text| timeout.read(text))?,
                ..HistorySettings::default()
            },
            http: HttpSettings {
                trusted_proxies: read.optional("trusted-proxies", values::networks)?.unwrap_or_default(),
                shutdown_timeout: read.required("shutdown-timeout", |text| timeout.read(text))?,
                ..HttpSettings::default()
            },
            log: read.required("log", |text| {
                tracing_subscriber::EnvFilter::try_new(text)
                    .map(|_| text.to_owned())
                    .map_err(|_| "must be a filter such as info or fairledger=debug,info".to_owned())
            })?,
            log_format: read.required("log-format", |text| match text {
                "auto" => Ok(LogFormat::Auto),
                "human" => Ok(LogFormat::Human),
                "json" => Ok(LogFormat::Json),
                _ => Err("must be auto, human or json".to_owned()),
            })?,
            otlp_endpoint: read.optional("otlp-endpoint", values::collector)?,
        })
    }
}

/// The text form of a key ring, from a setting or from the data folder.
///
/// # Errors
/// Which entry is wrong, and why; never its bytes.
pub fn parse_seed_keys(text: &str) -> Result<KeyRing, String> {
    KeyRing::parse(text).map_err(|error| error.to_string())
}

/// The text form of the secret: 32 bytes as base64.
///
/// # Errors
/// Another form.
pub fn parse_secret(text: &str) -> Result<ServiceSecret, String> {
    let wrong = || "must be 32 bytes as base64, such as from `openssl rand -base64 32`".to_owned();
    let bytes = Zeroizing::new(STANDARD.decode(text).map_err(|_| wrong())?);
    let bytes: &[u8; 32] = bytes.as_slice().try_into().map_err(|_| wrong())?;
    Ok(ServiceSecret::new(*bytes))
}

/// The text form of the signing key.
///
/// # Errors
/// Another form, or halves that do not belong together.
pub fn parse_signing_key(text: &str) -> Result<SigningKey, String> {
    SigningKey::parse(text).map_err(|error| error.to_string())
}

fn parse_url(text: &str) -> Result<DatabaseUrl, String> {
    // What the drivers say of a wrong URL may quote a part of it, so it is not repeated.
    if crate::db::understands_url(text) {
        Ok(DatabaseUrl::new(text.to_owned()))
    } else {
        Err("must be a URL such as postgres://user:password@host:5432/database".to_owned())
    }
}

/// Looks settings up and turns their texts into values.
struct Reader<'a> {
    sources: &'a Sources,
}

impl Reader<'_> {
    fn optional<T>(
        &self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, SettingError> {
        let Some(Found { origin, text, secret }) = self.sources.find(name)? else { return Ok(None) };
        let error = |reason: String| {
            let reason = if secret { reason } else { format!("{reason}, not {:?}", text.as_str()) };
            SettingError { name: name.to_owned(), origin: origin.clone(), reason }
        };
        parse(&text).map(Some).map_err(error)
    }

    /// For settings that have a default in the table.
    fn required<T>(
        &self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, SettingError> {
        self.optional(name, parse)?.ok_or_else(|| SettingError {
            name: name.to_owned(),
            origin: "not set".to_owned(),
            reason: "is needed and has no default".to_owned(),
        })
    }

    fn group(&self) -> Result<Option<GroupSettings>, SettingError> {
        let count = |name, max| self.required(name, |text| values::integer(text, 1, max));
        let settings = GroupSettings {
            queue_max: count("group-queue", 1_000_000)?,
            batch_max: count("group-batch", 10_000)?,
            writers: count("group-writers", 64)?,
            ..GroupSettings::default()
        };
        Ok(self.required("group-commit", values::boolean)?.then_some(settings))
    }

    fn tls(&self) -> Result<Option<TlsFiles>, SettingError> {
        let path = |name| self.optional(name, |text| Ok(PathBuf::from(text)));
        match (path("tls-certificate")?, path("tls-key")?) {
            (Some(certificate), Some(key)) => Ok(Some(TlsFiles { certificate, key })),
            (None, None) => Ok(None),
            (certificate, _) => {
                let (name, other) =
                    if certificate.is_none() { ("tls-certificate", "tls-key") } else { ("tls-key", "tls-certificate") };
                Err(SettingError {
                    name: name.to_owned(),
                    origin: "not set".to_owned(),
                    reason: format!("is needed, since {other} is set"),
                })
            }
        }
    }

    fn roles(&self) -> Result<Roles, SettingError> {
        let service = self.required("service-role", values::role_name)?;
        let different = |text: &str| {
            let role = values::role_name(text)?;
            if role == service { Err("must be another role than service-role".to_owned()) } else { Ok(role) }
        };
        let read = self.required("read-role", different)?;
        Ok(Roles { service, read })
    }
}

/// Reads a file that holds one secret: its text without the white space around it.
///
/// # Errors
/// A file that cannot be read, is not text, is empty or is too large to be a secret.
pub fn read_secret_file(path: &Path) -> Result<Zeroizing<String>, String> {
    use std::io::Read as _;
    const BYTES_MAX: u64 = 64 * 1024;
    let mut text = Zeroizing::new(String::new());
    let file = std::fs::File::open(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    file.take(BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(format!("{} is larger than {BYTES_MAX} bytes", path.display()));
    }
    let trimmed = Zeroizing::new(text.trim().to_owned());
    if trimmed.is_empty() { Err(format!("{} is empty", path.display())) } else { Ok(trimmed) }
}

#[cfg(test)]
mod tests;
