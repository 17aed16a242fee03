//! The one list of all settings.

/// The variable that names the TOML file; its flag is `--config`.
pub const CONFIG_ENV: &str = "FAIRLEDGER_CONFIG";

/// How a setting is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value.
    Plain,
    /// `true` or `false`; the flag alone means `true`.
    Switch,
    /// May hold a secret; a file may hold it instead.
    Url,
    /// A secret. There is no flag for its value, which every user of the machine could read, only for a file that holds it.
    Secret,
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// Name of the flag and of the key in the TOML file.
    pub name: &'static str,
    /// Its variable.
    pub env: &'static str,
    /// How it is given.
    pub kind: Kind,
    /// What `--help` calls its value.
    pub value_name: &'static str,
    /// The default; none when it may be left out.
    pub default: Option<&'static str>,
    /// The heading under which `--help` lists it.
    pub heading: &'static str,
    /// What it is for.
    pub help: &'static str,
}

impl Definition {
    /// Whether its value is never shown.
    pub const fn is_secret(&self) -> bool {
        matches!(self.kind, Kind::Url | Kind::Secret)
    }

    /// Whether a file may hold it: `<name>-file` and `<env>_FILE`.
    pub const fn has_file(&self) -> bool {
        self.is_secret()
    }
}

const DATABASE: &str = "Database";
const KEYS: &str = "Keys";
const SERVICE: &str = "Service";
const LOG: &str = "Log";

const fn plain(
    name: &'static str,
    env: &'static str,
    value_name: &'static str,
    default: Option<&'static str>,
    heading: &'static str,
    help: &'static str,
) -> Definition {
    Definition { name, env, kind: Kind::Plain, value_name, default, heading, help }
}

const fn switch(name: &'static str, env: &'static str, help: &'static str) -> Definition {
    Definition { name, env, kind: Kind::Switch, value_name: "BOOL", default: Some("false"), heading: DATABASE, help }
}

const fn secret(
    name: &'static str,
    env: &'static str,
    kind: Kind,
    heading: &'static str,
    help: &'static str,
) -> Definition {
    Definition { name, env, kind, value_name: "URL", default: None, heading, help }
}

/// Every setting, in the order in which `--help` lists them. Defaults of numbers and times are those of the settings' types; a test
/// compares them.
pub const DEFINITIONS: &[Definition] = &[
    plain("listen", "FAIRLEDGER_LISTEN", "ADDR", Some("127.0.0.1:8080"), SERVICE, "Address and port of the HTTP API"),
    plain(
        "tls-certificate",
        "FAIRLEDGER_TLS_CERTIFICATE",
        "FILE",
        None,
        SERVICE,
        "Certificate chain (PEM) of the HTTP API, which then speaks TLS only; a new one is taken without a restart",
    ),
    plain("tls-key", "FAIRLEDGER_TLS_KEY", "FILE", None, SERVICE, "Private key (PEM) that goes with the certificate"),
    plain(
        "metrics-addr",
        "FAIRLEDGER_METRICS_ADDR",
        "ADDR",
        None,
        SERVICE,
        "Address and port of GET /metrics, for Prometheus; keep it inside. No metrics when not set",
    ),
    plain(
        "metrics-interval",
        "FAIRLEDGER_METRICS_INTERVAL",
        "TIME",
        Some("15s"),
        SERVICE,
        "How often the metrics that come from the database are read",
    ),
    plain(
        "idle-after",
        "FAIRLEDGER_IDLE_AFTER",
        "TIME",
        Some("24h"),
        SERVICE,
        "Sessions that nobody used for so long are closed",
    ),
    plain(
        "reservation-ttl",
        "FAIRLEDGER_RESERVATION_TTL",
        "TIME",
        Some("1h"),
        SERVICE,
        "Reservations without a record are void after so long",
    ),
    plain("pending-max", "FAIRLEDGER_PENDING_MAX", "N", Some("16"), SERVICE, "Bets pending in one session at the most"),
    plain(
        "sessions-per-address",
        "FAIRLEDGER_SESSIONS_PER_ADDRESS",
        "N",
        Some("30"),
        SERVICE,
        "Sessions that one client address may start in a day",
    ),
    plain(
        "keys-live-max",
        "FAIRLEDGER_KEYS_LIVE_MAX",
        "N",
        Some("4"),
        SERVICE,
        "Token keys that are live or to come at the most: everybody reads their list",
    ),
    plain(
        "token-window",
        "FAIRLEDGER_TOKEN_WINDOW",
        "TIME",
        Some("30h"),
        SERVICE,
        "How long a token key's window is when its end is not given",
    ),
    plain(
        "sweep-interval",
        "FAIRLEDGER_SWEEP_INTERVAL",
        "TIME",
        Some("1m"),
        SERVICE,
        "How often the service looks for token keys whose window has ended",
    ),
    plain(
        "exports-max",
        "FAIRLEDGER_EXPORTS_MAX",
        "N",
        Some("2"),
        SERVICE,
        "Exports of the history under way at the most",
    ),
    plain(
        "export-stall",
        "FAIRLEDGER_EXPORT_STALL",
        "TIME",
        Some("1m"),
        SERVICE,
        "An export whose reader takes nothing for so long is cut off",
    ),
    plain(
        "trusted-proxies",
        "FAIRLEDGER_TRUSTED_PROXIES",
        "NETS",
        None,
        SERVICE,
        "Addresses and networks, separated by commas, of proxies whose X-Forwarded-For is believed: unknown tokens are counted by client \
         address",
    ),
    plain(
        "shutdown-timeout",
        "FAIRLEDGER_SHUTDOWN_TIMEOUT",
        "TIME",
        Some("20s"),
        SERVICE,
        "How long requests and changes under way may take to end once the service is told to stop; up to 15 s more for what follows",
    ),
    plain(
        "group-commit",
        "FAIRLEDGER_GROUP_COMMIT",
        "true|false",
        Some("true"),
        SERVICE,
        "Commit the spends and bets of many callers together; false: each in a transaction of its own",
    ),
    plain(
        "group-queue",
        "FAIRLEDGER_GROUP_QUEUE",
        "N",
        Some("8192"),
        SERVICE,
        "Spends, and bets, that may wait to be committed together at the most",
    ),
    plain(
        "group-batch",
        "FAIRLEDGER_GROUP_BATCH",
        "N",
        Some("1000"),
        SERVICE,
        "Spends or bets in one transaction at the most",
    ),
    plain(
        "group-writers",
        "FAIRLEDGER_GROUP_WRITERS",
        "N",
        Some("2"),
        SERVICE,
        "Transactions of many spends, and of many bets, at the same time; each has a connection besides the pool's",
    ),
    plain(
        "data-dir",
        "FAIRLEDGER_DATA_DIR",
        "DIR",
        Some("./fairledger-data"),
        DATABASE,
        "Folder of the private PostgreSQL and its secrets, used when no database URL is set",
    ),
    secret(
        "database-url",
        "DATABASE_URL",
        Kind::Url,
        DATABASE,
        "What the service connects to, as the service role. Without it fairledger runs a private PostgreSQL in the data folder",
    ),
    secret(
        "migrate-database-url",
        "MIGRATE_DATABASE_URL",
        Kind::Url,
        DATABASE,
        "What the owner of the tables connects to, for migrate and seed-keys rotate; never through a transaction pooler. The \
         database URL when not set",
    ),
    secret(
        "replica-url",
        "FAIRLEDGER_REPLICA_URL",
        Kind::Url,
        DATABASE,
        "A read-only replica of the database, from which history (/v1/records, export) is read and nothing else; the database itself \
         when not set",
    ),
    switch(
        "require-database",
        "FAIRLEDGER_REQUIRE_DATABASE",
        "Refuse to start without a database URL; containers and units set it",
    ),
    plain(
        "service-role",
        "FAIRLEDGER_SERVICE_ROLE",
        "ROLE",
        Some("fairledger_service"),
        DATABASE,
        "The role that the service connects as; migrate gives it its rights",
    ),
    plain(
        "read-role",
        "FAIRLEDGER_READ_ROLE",
        "ROLE",
        Some("fairledger_read"),
        DATABASE,
        "The role for dispute teams; migrate gives it its rights",
    ),
    plain("pool-size", "FAIRLEDGER_POOL_SIZE", "N", Some("16"), DATABASE, "Database connections at the most"),
    plain(
        "acquire-timeout",
        "FAIRLEDGER_ACQUIRE_TIMEOUT",
        "TIME",
        Some("5s"),
        DATABASE,
        "How long a request may wait for a connection",
    ),
    plain(
        "statement-timeout",
        "FAIRLEDGER_STATEMENT_TIMEOUT",
        "TIME",
        Some("10s"),
        DATABASE,
        "How long one statement may run",
    ),
    plain(
        "lock-timeout",
        "FAIRLEDGER_LOCK_TIMEOUT",
        "TIME",
        Some("5s"),
        DATABASE,
        "How long one statement may wait for a lock",
    ),
    plain(
        "slow-transaction",
        "FAIRLEDGER_SLOW_TRANSACTION",
        "TIME",
        Some("1s"),
        DATABASE,
        "Transactions that take longer are logged, by name",
    ),
    plain(
        "transaction-timeout",
        "FAIRLEDGER_TRANSACTION_TIMEOUT",
        "TIME",
        Some("20s"),
        DATABASE,
        "How long a change may take up to its commit, and then its commit, the wait for a standby included, until its connection is \
         given up",
    ),
    switch(
        "transaction-pooler",
        "FAIRLEDGER_TRANSACTION_POOLER",
        "The database URL leads through a transaction-pooling PgBouncer",
    ),
    plain(
        "witness-dir",
        "FAIRLEDGER_WITNESS_DIR",
        "DIR",
        None,
        DATABASE,
        "Folder, outside the database's storage and of this instance alone, that remembers what was acknowledged, so that a restored \
         database is noticed; of a private PostgreSQL witness/ in the data folder",
    ),
    plain(
        "instance",
        "FAIRLEDGER_INSTANCE",
        "NAME",
        None,
        DATABASE,
        "Name of this instance among those on the database; made up once and kept in the witness folder when not set",
    ),
    switch(
        "require-sync-standby",
        "FAIRLEDGER_REQUIRE_SYNC_STANDBY",
        "Refuse to serve unless every commit waits for a standby (synchronous_standby_names)",
    ),
    plain(
        "pg-bin",
        "FAIRLEDGER_PG_BIN",
        "DIR",
        None,
        DATABASE,
        "Folder of initdb and postgres for the private PostgreSQL; looked for in PATH and the usual places when not set",
    ),
    secret(
        "seed-keys",
        "FAIRLEDGER_SEED_KEYS",
        Kind::Secret,
        KEYS,
        "Keys that seal server seeds: id:base64 of 32 bytes (openssl rand -base64 32), several apart by commas or lines; the \
         first one seals, all of them open",
    ),
    secret(
        "secret",
        "FAIRLEDGER_SECRET",
        Kind::Secret,
        KEYS,
        "For address hashes and page tokens: base64 of 32 bytes (openssl rand -base64 32)",
    ),
    secret(
        "signing-key",
        "FAIRLEDGER_SIGNING_KEY",
        Kind::Secret,
        KEYS,
        "Signs records: an Ed25519 key as 128 hexadecimal characters, seed then public key. Records are not signed without it",
    ),
    plain(
        "log",
        "FAIRLEDGER_LOG",
        "FILTER",
        Some("info"),
        LOG,
        "What is logged, such as debug or fairledger::seeds=debug,info",
    ),
    plain(
        "log-format",
        "FAIRLEDGER_LOG_FORMAT",
        "FORM",
        Some("auto"),
        LOG,
        "human, json, or auto: human on a terminal and json otherwise",
    ),
    secret(
        "otlp-endpoint",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        Kind::Url,
        LOG,
        "Where the spans of requests are sent, such as http://localhost:4318 (OTLP over HTTP); needs a program built with the feature otlp",
    ),
];
