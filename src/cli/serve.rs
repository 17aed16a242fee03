//! `serve`: the HTTP API, and the private PostgreSQL where no database is configured.
//!
//! Starts only on a schema and with keys that fit what is stored; what disagrees is a refusal with its reason (I6, I7, I9). Stops in
//! order and within a bound: no new requests, those under way, maintenance, the pool, the private server last.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::{DatabaseUrl, Settings};
use crate::db::migrate::MigrateError;
use crate::db::rights::Roles;
use crate::db::tokens::Scope;
use crate::db::{Datastore, Reader, migrate};
use crate::history::History;
use crate::http::auth::{ApiToken, new_token_id};
use crate::http::metrics::{self, Exposition, WatchedFolder};
use crate::http::tls::Tls;
use crate::http::{self, App, HttpSettings};
use crate::ledger::Ledger;
use crate::seeds::Seeds;

use super::data_dir::{self, Keys};
use super::database::{Role, private_url, start_private};
use super::error::MissingKey;
use super::seed_keys::SEED_KEYS;
use super::{CliError, output};

mod guard;
mod maintain;
mod private;
mod signals;

use private::PrivateServer;
use signals::Signals;

/// How often the service looks for a new certificate.
const TLS_LOOK: Duration = Duration::from_secs(10);

/// How long maintenance, then those who commit, and then the pool may take once the requests have ended.
const CLOSE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Bring the schema up to this program's version first, over MIGRATE_DATABASE_URL. The private PostgreSQL always is
    #[arg(long)]
    migrate: bool,
    /// Join a database that has data with a witness folder that is empty: for an instance that is new to the database
    #[arg(long)]
    witness_join: bool,
    /// Start although a newer program has migrated the database: after a rollback, and until then for a restart
    #[arg(long)]
    accept_newer_schema: bool,
}

/// Everything that serving needs, started and checked.
struct Service {
    seeds: Seeds,
    ledger: Ledger,
    history: History,
    /// The private PostgreSQL.
    private: Option<PrivateServer>,
    /// Those whose file systems are watched.
    folders: Vec<WatchedFolder>,
    /// Bounds and times of the API.
    http: HttpSettings,
}

/// What is listened on.
struct Listeners {
    listener: TcpListener,
    tls: Option<Tls>,
    /// For metrics, with the pause between two readings.
    scraped: Option<(TcpListener, Duration)>,
}

pub(super) async fn run(settings: Settings, args: Args) -> Result<ExitCode, CliError> {
    // First, so that an address in use is told before a database is started.
    let listener = listen(settings.listen).await?;
    let tls = match &settings.tls {
        Some(files) => Some(Tls::open(files.certificate.clone(), files.key.clone())?),
        None => None,
    };
    let scraped = match settings.metrics_addr {
        Some(address) => Some(listen(address).await?),
        None => None,
    };
    let address = listener.local_addr().map_err(|error| CliError::io("reading the listener's address", error))?;
    let mut signals = Signals::new().map_err(|error| CliError::io("listening for signals", error))?;
    let data_dir = settings.data_dir.clone();
    let interval = settings.metrics_interval;
    let service = tokio::select! {
        service = start(settings, &args) => service?,
        // Dropped half-way, a private server is told to stop.
        signal = signals.next() => {
            tracing::info!(signal, "stopped before it was ready");
            return Ok(ExitCode::SUCCESS);
        }
    };
    announce(address, tls.is_some(), service.private.is_some().then_some(data_dir.as_path()))?;
    let listeners = Listeners { listener, tls, scraped: scraped.map(|listener| (listener, interval)) };
    serve(listeners, service, signals).await
}

async fn listen(address: SocketAddr) -> Result<TcpListener, CliError> {
    TcpListener::bind(address).await.map_err(|source| CliError::Listen { address, source })
}

/// Brings up the database, checks it, and starts the services over it.
async fn start(mut settings: Settings, args: &Args) -> Result<Service, CliError> {
    let (url, keys, private) = match settings.database_url.clone() {
        Some(url) => {
            let keys = configured_keys(&mut settings)?;
            if args.migrate {
                let owner = settings.migrate_database_url.as_ref().unwrap_or(&url);
                migrated(owner, &settings.roles).await?;
            }
            (url, keys, None)
        }
        None if settings.require_database => return Err(CliError::DatabaseRequired),
        None => {
            let dir = &settings.data_dir;
            tracing::info!(data_dir = %dir.display(), "DATABASE_URL is not set: running a private PostgreSQL in the data folder");
            data_dir::prepare(dir)?;
            let keys = data_dir::keys(&mut settings)?;
            let server = start_private(&settings.data_dir, settings.pg_bin.as_deref()).await?;
            migrated(&private_url(&server, Role::Owner), &Roles::default()).await?;
            let url = private_url(&server, Role::Service);
            (url, keys, Some(server))
        }
    };
    let store = Datastore::connect(url.expose(), &settings.pool).await?;
    check_schema(&store, args.accept_newer_schema).await?;
    guard::check_server(&store, settings.require_sync_standby).await?;
    warn_of_owner(&store).await?;
    let store = guard::fence(store, &settings, args.witness_join).await?;
    if let Some(token) = &keys.admin_token {
        ensure_admin_token(&store, token).await?;
    }
    let Keys { ring, secret, signing_key, admin_token: _ } = keys;
    let reader = match &settings.replica_url {
        Some(url) => {
            tracing::info!("history is read from a replica");
            Reader::replica(url.expose(), &settings.pool)?
        }
        None => Reader::from(&store),
    };
    let folders = watched_folders(&settings);
    let history = History::new(reader, secret.clone(), settings.history);
    if signing_key.is_none() {
        tracing::warn!("no signing key is set: records are not signed");
    }
    let seeds = Seeds::start(store.clone(), ring, secret, signing_key, settings.seeds).await?;
    let private = private.map(|server| PrivateServer::new(server, settings.data_dir, settings.pg_bin, store.clone()));
    let ledger = Ledger::new(store, settings.ledger);
    Ok(Service { seeds, ledger, history, private, folders, http: settings.http })
}

fn watched_folders(settings: &Settings) -> Vec<WatchedFolder> {
    let private = settings.database_url.is_none().then(|| settings.data_dir.clone());
    let witness = settings.witness_dir.clone().or_else(|| private.as_ref().map(|dir| dir.join("witness")));
    let folders = [("data", private), ("witness", witness)];
    folders.into_iter().filter_map(|(label, path)| Some(WatchedFolder { label, path: path? })).collect()
}

async fn check_schema(store: &Datastore, accept_newer: bool) -> Result<(), MigrateError> {
    match migrate::check_served(store).await {
        Ok(version) => tracing::info!(version, "the schema is this program's"),
        Err(MigrateError::Newer { found, known }) if accept_newer => {
            tracing::warn!(found, known, "the schema is newer than this program, and accepted as it is");
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

async fn migrated(owner: &DatabaseUrl, roles: &Roles) -> Result<(), CliError> {
    let report = migrate::run(owner.expose(), roles).await?;
    for name in &report.applied {
        tracing::info!(name, "applied a migration");
    }
    Ok(())
}

/// Keys made up by a service would be lost with its container, and every seed with them.
fn configured_keys(settings: &mut Settings) -> Result<Keys, CliError> {
    let secret_key = MissingKey { name: "secret", env: "FAIRLEDGER_SECRET", make: "openssl rand -base64 32" };
    match (settings.seed_keys.take(), settings.secret.take()) {
        (Some(ring), Some(secret)) => {
            Ok(Keys { ring, secret, signing_key: settings.signing_key.take(), admin_token: None })
        }
        (ring, secret) => {
            let missing = [ring.is_none().then_some(SEED_KEYS), secret.is_none().then_some(secret_key)];
            Err(CliError::KeysMissing { missing: missing.into_iter().flatten().collect() })
        }
    }
}

/// Makes the token of the data folder known to the database. The file is first: a token that only the database knew could never be
/// used, and would be made again.
async fn ensure_admin_token(store: &Datastore, token: &ApiToken) -> Result<(), CliError> {
    // Acknowledged to nobody, and needed for reading too.
    let mut tx = store.unfenced().begin("token.ensure").await?;
    tx.ensure_token(&new_token_id(), &token.hash(), &[Scope::Admin], Some("data folder")).await?;
    let valid = tx.token_scopes(&token.hash()).await?.is_some();
    tx.commit().await?;
    if !valid {
        tracing::warn!("the token in admin-token is revoked: `fairledger token create` makes another");
    }
    Ok(())
}

async fn warn_of_owner(store: &Datastore) -> Result<(), CliError> {
    let mut tx = store.begin("rights.check").await?;
    let may_change_history = tx.may_change_history().await?;
    tx.rollback().await;
    if may_change_history {
        tracing::warn!(
            "DATABASE_URL connects as the owner of the tables or as a superuser: nothing in the database keeps bets and reveals from \
             being changed or deleted. Connect as the service role, and give the owner's URL as MIGRATE_DATABASE_URL"
        );
    }
    Ok(())
}

/// Tells where it listens: one line, which scripts read. People on a terminal are told how to begin.
fn announce(address: SocketAddr, tls: bool, data_dir: Option<&Path>) -> Result<(), CliError> {
    let mut text = format!("listening on {}://{address}\n", if tls { "https" } else { "http" });
    if std::io::stdout().is_terminal()
        && !tls
        && let Some(data_dir) = data_dir
    {
        text.push_str(&first_steps(address, data_dir));
    }
    output::all(text.as_bytes())
}

fn first_steps(mut address: SocketAddr, data_dir: &Path) -> String {
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() {
            std::net::Ipv4Addr::LOCALHOST.into()
        } else {
            std::net::Ipv6Addr::LOCALHOST.into()
        });
    }
    let token = data_dir.join("admin-token");
    let token = token.display();
    // Single quotes keep a shell from reading anything into the folder's name but a single quote, which becomes '\''.
    let quoted = token.to_string().replace('\'', "'\\''");
    format!(
        "admin token: {token}\ntry: curl -X POST http://{address}/v1/sessions -H \"Authorization: Bearer $(cat '{quoted}')\" \
         -H 'Content-Type: application/json' -d '{{}}'\n"
    )
}

/// Serves until it is told to stop, or until the private server is lost for good.
async fn serve(listeners: Listeners, service: Service, mut signals: Signals) -> Result<ExitCode, CliError> {
    let Listeners { listener, tls, scraped } = listeners;
    let Service { seeds, ledger, history, private, folders, http: settings } = service;
    let stop = CancellationToken::new();
    let app = App::with_history(seeds.clone(), ledger.clone(), history.clone(), settings);
    let mut http = tokio::spawn(http::serve_with(listener, tls.clone(), app.clone(), stop.clone().cancelled_owned()));
    if let Some(tls) = tls {
        tokio::spawn(signals::reload_on_hangup(tls.clone(), stop.clone()));
        tokio::spawn(tls.watch(Arc::clone(app.metrics()), TLS_LOOK, stop.clone()));
    }
    if let Some((listener, interval)) = scraped {
        observe(listener, interval, &app, &ledger, folders, &stop)?;
    }
    let maintenance = tokio::spawn(maintain::run(seeds.clone(), Arc::clone(app.metrics()), stop.clone()));
    let horizon = tokio::spawn(maintain::keep_horizon(seeds.clone(), stop.clone()));
    tokio::spawn(guard::watch(seeds.datastore().clone(), stop.clone()));
    let sweeping = tokio::spawn({
        let (ledger, stop) = (ledger.clone(), stop.clone());
        async move { ledger.sweep_until(stop).await }
    });
    let mut looking_after = std::pin::pin!(private::look_after(private, stop.clone()));

    let lost = tokio::select! {
        signal = signals.next() => {
            tracing::info!(signal, "stopping; a second signal ends at once");
            None
        }
        // Before the stop it ends only with a server that is lost.
        lost = &mut looking_after => Some(lost),
        ended = &mut http => return Err(CliError::Refused(format!("the HTTP service ended by itself: {ended:?}"))),
    };
    app.readiness().not_ready("the service is stopping");
    stop.cancel();
    let stopping = async {
        // Its time is bounded by its own setting.
        let served = http.await;
        let _ = tokio::time::timeout(CLOSE_MAX, async { tokio::join!(maintenance, horizon, sweeping) }).await;
        let _ = tokio::time::timeout(CLOSE_MAX, async { tokio::join!(seeds.stop(), ledger.stop()) }).await;
        let _ = tokio::time::timeout(CLOSE_MAX, async {
            tokio::join!(history.reader().close(), seeds.datastore().close())
        })
        .await;
        let server = match lost {
            None => looking_after.await?,
            Some(lost) => lost?,
        };
        if let Some(server) = server {
            server.stop().await?;
        }
        served.map_err(|error| CliError::Refused(format!("the HTTP service ended: {error}")))
    };
    tokio::select! {
        stopped = stopping => stopped?,
        signal = signals.next() => {
            tracing::warn!(signal, "ended at once");
            // Nothing is torn: what was answered is committed, and the kernel stops the private server.
            std::process::exit(1);
        }
    }
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Answers scrapers, and reads in the background what they are told.
fn observe(
    listener: TcpListener,
    interval: Duration,
    app: &App,
    ledger: &Ledger,
    folders: Vec<WatchedFolder>,
    stop: &CancellationToken,
) -> Result<(), CliError> {
    let address = listener.local_addr().map_err(|error| CliError::io("reading the metrics' address", error))?;
    tracing::info!(%address, "metrics are answered");
    let exposition = Exposition::new(app, ledger.clone());
    tokio::spawn(metrics::keep_reading(app.clone(), folders, interval, stop.clone()));
    tokio::spawn(metrics::serve_metrics(listener, exposition, app.clone(), stop.clone()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_steps_are_a_line_that_a_shell_can_run() {
        let text = first_steps("0.0.0.0:8080".parse().unwrap(), Path::new("./it's here"));
        assert!(text.contains("http://127.0.0.1:8080/v1/sessions"), "{text}");
        assert!(text.contains(r"$(cat './it'\''s here/admin-token')"), "{text}");
        let text = first_steps("[::]:80".parse().unwrap(), Path::new("/d"));
        assert!(text.contains("http://[::1]:80/"), "{text}");
    }
}
