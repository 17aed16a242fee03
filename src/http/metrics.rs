//! What Prometheus reads, on an address of its own. `docs/METRICS.md` lists it all.
//!
//! Keeps I12: a scrape reads numbers in memory; what the database has to be asked is asked in the background, a bounded part at a time.
//! Keeps I13 and I6: a label's value comes from a list that the program has, never from a request.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;
use chrono::{DateTime, Utc};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{App, openapi, serve};
use crate::db::group::{BATCH_SIZES, GroupStats};
use crate::db::stats::{Distribution, TIMES_US};
use crate::db::{DbError, migrate};
use crate::ledger::Ledger;
use crate::seeds::Maintained;

/// Upper bounds of the latencies that are counted apart, in seconds.
const LATENCIES: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// Scrapers at a time; further ones wait.
const SCRAPERS_MAX: usize = 16;

/// How long one reading of the database may take in all.
const READ_MAX: Duration = Duration::from_secs(10);

/// The kinds of what maintenance ends, as labels.
const MAINTAINED: [&str; 5] =
    ["sessions_idle", "sessions_expired", "sessions_recovered", "reservations_expired", "seeds_revealed"];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    method: &'static str,
    route: &'static str,
    status: u16,
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    method: &'static str,
    route: &'static str,
}

/// The templates of every route, sorted.
fn routes() -> &'static [String] {
    static ROUTES: OnceLock<Vec<String>> = OnceLock::new();
    ROUTES.get_or_init(|| {
        let (_, described) = openapi::endpoints().split_for_parts();
        let mut routes: Vec<String> = described.paths.paths.into_keys().collect();
        routes.sort_unstable();
        routes
    })
}

/// The route as a word from that list.
pub(super) fn route_word(route: Option<&str>) -> &'static str {
    let routes = routes();
    let found = route.and_then(|route| routes.binary_search_by(|known| known.as_str().cmp(route)).ok());
    found.map_or("unmatched", |place| routes[place].as_str())
}

/// A folder whose file system is watched.
#[derive(Clone, Debug)]
pub struct WatchedFolder {
    /// What the label says: `data` or `witness`.
    pub label: &'static str,
    /// The folder.
    pub path: PathBuf,
}

/// What was last read in the background.
#[derive(Clone, Debug, Default)]
struct Readings {
    up: bool,
    at: Option<SystemTime>,
    keys_live: i64,
    reservations: i64,
    rounds: i64,
    reveals_due: i64,
    sweep_lag_seconds: f64,
    oldest_seed_seconds: f64,
    database_bytes: i64,
    schema_version: i32,
    /// Label, free bytes and size.
    disks: Vec<(&'static str, u64, u64)>,
}

/// What is counted while the service runs. One for each [`App`].
#[derive(Debug)]
pub struct Metrics {
    requests: Family<Answered, Counter>,
    latencies: Family<Asked, Histogram, fn() -> Histogram>,
    in_flight: AtomicI64,
    connections: AtomicI64,
    maintained: [AtomicU64; 5],
    maintenance_failures: AtomicU64,
    maintenance_success: AtomicI64,
    read_failures: AtomicU64,
    readings: Mutex<Readings>,
    started: SystemTime,
    /// When the certificate in use ends, in Unix seconds; 0 without TLS.
    pub(super) tls_expiry: AtomicI64,
    pub(super) tls_reloads: AtomicU64,
    pub(super) tls_reload_failures: AtomicU64,
    pub(super) tls_handshake_failures: AtomicU64,
}

/// Counts one up until it is dropped.
pub(super) struct UnderWay<'m>(&'m AtomicI64);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn latency_histogram() -> Histogram {
    Histogram::new(LATENCIES)
}

fn unix_seconds(at: SystemTime) -> i64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

impl Metrics {
    pub(super) fn new() -> Self {
        Self {
            requests: Family::default(),
            latencies: Family::new_with_constructor(latency_histogram),
            in_flight: AtomicI64::new(0),
            connections: AtomicI64::new(0),
            maintained: Default::default(),
            maintenance_failures: AtomicU64::new(0),
            maintenance_success: AtomicI64::new(0),
            read_failures: AtomicU64::new(0),
            readings: Mutex::default(),
            started: SystemTime::now(),
            tls_expiry: AtomicI64::new(0),
            tls_reloads: AtomicU64::new(0),
            tls_reload_failures: AtomicU64::new(0),
            tls_handshake_failures: AtomicU64::new(0),
        }
    }

    pub(super) fn request_under_way(&self) -> UnderWay<'_> {
        self.in_flight.fetch_add(1, Relaxed);
        UnderWay(&self.in_flight)
    }

    pub(super) fn connection_open(&self) -> UnderWay<'_> {
        self.connections.fetch_add(1, Relaxed);
        UnderWay(&self.connections)
    }

    pub(super) fn answered(
        &self,
        method: &'static str,
        route: &'static str,
        status: StatusCode,
        code: Option<&'static str>,
        took: Duration,
    ) {
        let labels = Answered { method, route, status: status.as_u16(), code: code.unwrap_or("none") };
        self.requests.get_or_create(&labels).inc();
        self.latencies.get_or_create(&Asked { method, route }).observe(took.as_secs_f64());
    }

    /// Notes a round of maintenance.
    pub fn maintained(&self, done: &Maintained) {
        let ended = [done.closed, done.expired_sessions, done.recovered, done.expired_reservations, done.revealed];
        for (counter, ended) in self.maintained.iter().zip(ended) {
            counter.fetch_add(ended as u64, Relaxed);
        }
        self.maintenance_success.store(unix_seconds(SystemTime::now()), Relaxed);
    }

    /// Notes a round of maintenance that failed.
    pub fn maintenance_failed(&self) {
        self.maintenance_failures.fetch_add(1, Relaxed);
    }

    fn readings(&self) -> Readings {
        self.readings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How far the walk of the live seeds has come.
#[derive(Default)]
struct Walk {
    after: Option<Uuid>,
    oldest: Option<DateTime<Utc>>,
    /// Of the last complete walk, or of the first one so far.
    known: Option<DateTime<Utc>>,
    completed: bool,
}

async fn read_once(app: &App, walk: &mut Walk, last: &Readings) -> Result<Readings, DbError> {
    let mut tx = app.datastore().snapshot("metrics.read").await?;
    let state = tx.state().await?;
    let schema_version = tx.schema_version().await?;
    let part = tx.live_seeds_after(walk.after).await?;
    tx.rollback().await;
    walk.oldest = walk.oldest.into_iter().chain(part.oldest).min();
    walk.after = part.next;
    if !walk.completed || walk.after.is_none() {
        walk.known = walk.oldest;
    }
    if walk.after.is_none() {
        walk.completed = true;
        walk.oldest = None;
    }
    let age = walk.known.and_then(|oldest| (state.now - oldest).to_std().ok());
    Ok(Readings {
        up: true,
        at: Some(SystemTime::now()),
        keys_live: state.keys_live,
        reservations: state.reservations,
        rounds: state.rounds,
        reveals_due: state.reveals_due,
        sweep_lag_seconds: state.sweep_lag_seconds,
        oldest_seed_seconds: age.unwrap_or_default().as_secs_f64(),
        database_bytes: state.database_bytes,
        schema_version,
        disks: last.disks.clone(),
    })
}

fn disks(folders: &[WatchedFolder]) -> Vec<(&'static str, u64, u64)> {
    let space = |folder: &WatchedFolder| {
        let space = nix::sys::statvfs::statvfs(&folder.path).ok()?;
        let block = space.fragment_size();
        Some((folder.label, space.blocks_available() * block, space.blocks() * block))
    };
    folders.iter().filter_map(space).collect()
}

/// Reads what has to be asked of the database and of the file systems, now and then, until the stop.
pub async fn keep_reading(app: App, folders: Vec<WatchedFolder>, interval: Duration, stop: CancellationToken) {
    let mut walk = Walk::default();
    loop {
        let last = app.metrics().readings();
        let read = tokio::select! {
            () = stop.cancelled() => return,
            read = tokio::time::timeout(READ_MAX, read_once(&app, &mut walk, &last)) => read,
        };
        let mut readings = match read {
            Ok(Ok(readings)) => readings,
            failed => {
                app.metrics().read_failures.fetch_add(1, Relaxed);
                if let Ok(Err(error)) = failed {
                    tracing::debug!(%error, "the metrics of the database were not read");
                }
                Readings { up: false, ..last }
            }
        };
        let watched = folders.clone();
        if let Ok(disks) = tokio::task::spawn_blocking(move || disks(&watched)).await {
            readings.disks = disks;
        }
        *app.metrics().readings.lock().unwrap_or_else(PoisonError::into_inner) = readings;
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(interval) => {}
        }
    }
}

/// Everything as Prometheus reads it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Exposition(Arc<Registry>);

impl Exposition {
    /// Over an app and the ledger that it serves.
    #[must_use]
    pub fn new(app: &App, ledger: Ledger) -> Self {
        let metrics = Arc::clone(app.metrics());
        let mut registry = Registry::default();
        registry.register("fairledger_http_requests", "Requests answered", metrics.requests.clone());
        registry.register(
            "fairledger_http_request_duration_seconds",
            "From a request's headers to its answer's headers",
            metrics.latencies.clone(),
        );
        let build = Info::new([
            ("version", env!("CARGO_PKG_VERSION")),
            ("commit", env!("BUILD_COMMIT")),
            ("schema", env!("BUILD_SCHEMA")),
        ]);
        registry.register("fairledger_build", "The program", build);
        registry.register_collector(Box::new(Collected { app: app.clone(), ledger }));
        Self(Arc::new(registry))
    }

    /// The text of one scrape.
    ///
    /// # Errors
    /// None, as long as a string can be written to.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.0)?;
        Ok(text)
    }
}

/// Answers `GET /metrics` until the stop.
pub async fn serve_metrics(listener: TcpListener, exposition: Exposition, app: App, stop: CancellationToken) {
    let scrape = move || {
        let text = exposition.text();
        async move {
            match text {
                Ok(text) => {
                    let form = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                    ([(header::CONTENT_TYPE, form)], text).into_response()
                }
                Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            }
        }
    };
    let router = axum::Router::new().route("/metrics", axum::routing::get(scrape));
    let builder = serve::connections(app.settings());
    let places = Arc::new(Semaphore::new(SCRAPERS_MAX));
    loop {
        // Never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(serve::ACCEPT_PAUSE).await;
            continue;
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
        let stop = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                ended = connection => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a scraper's connection ended early");
                    }
                }
                () = stop.cancelled() => {}
            }
            drop(place);
        });
    }
}

/// What is read where it is kept, at each scrape.
#[derive(Debug)]
struct Collected {
    app: App,
    ledger: Ledger,
}

/// Writes single metrics.
struct Out<'e, 'd>(&'e mut DescriptorEncoder<'d>);

type Written = Result<(), std::fmt::Error>;

impl Out<'_, '_> {
    fn gauge(&mut self, name: &str, help: &str, value: f64) -> Written {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> Written {
        let mut out = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        out.encode_counter(&value, None::<&Exemplar<NoLabelSet, u64>>)
    }

    fn gauges(&mut self, name: &str, help: &str, label: &str, values: &[(&str, f64)]) -> Written {
        let mut out = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        values.iter().try_for_each(|(word, value)| out.encode_family(&[(label, *word)])?.encode_gauge(value))
    }

    fn counters(&mut self, name: &str, help: &str, label: &str, values: &[(&str, u64)]) -> Written {
        let mut out = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        values.iter().try_for_each(|(word, value)| {
            out.encode_family(&[(label, *word)])?.encode_counter(value, None::<&Exemplar<NoLabelSet, u64>>)
        })
    }

    fn histograms(
        &mut self,
        (name, help): (&str, &str),
        label: &str,
        bounds: &[f64; 10],
        scale: f64,
        values: &[(&str, Distribution)],
    ) -> Written {
        let mut out = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (word, value) in values {
            let bounds = bounds.iter().copied().chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(value.counts).collect();
            let none: Option<&HashMap<usize, Exemplar<NoLabelSet, f64>>> = None;
            out.encode_family(&[(label, *word)])?.encode_histogram(
                value.sum as f64 / scale,
                value.counts.iter().sum(),
                &buckets,
                none,
            )?;
        }
        Ok(())
    }
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Written {
        let mut out = Out(&mut encoder);
        let readings = self.app.metrics().readings();
        self.http_and_tls(&mut out)?;
        self.database(&mut out, &readings)?;
        self.groups(&mut out)?;
        self.sweeping(&mut out, &readings)?;
        self.state(&mut out, &readings)
    }
}

impl Collected {
    fn http_and_tls(&self, out: &mut Out) -> Written {
        let metrics = self.app.metrics();
        let (in_flight, connections) = (metrics.in_flight.load(Relaxed), metrics.connections.load(Relaxed));
        out.gauge("fairledger_http_requests_in_flight", "Requests under way", in_flight as f64)?;
        out.gauge("fairledger_http_connections", "Connections open", connections as f64)?;
        out.gauge(
            "fairledger_tls_certificate_expiry_timestamp_seconds",
            "When the certificate in use ends; 0 without TLS",
            metrics.tls_expiry.load(Relaxed) as f64,
        )?;
        out.counter("fairledger_tls_reloads", "New certificates taken", metrics.tls_reloads.load(Relaxed))?;
        out.counter(
            "fairledger_tls_reload_failures",
            "New certificates refused",
            metrics.tls_reload_failures.load(Relaxed),
        )?;
        out.counter(
            "fairledger_tls_handshake_failures",
            "TLS handshakes that failed",
            metrics.tls_handshake_failures.load(Relaxed),
        )?;
        let started = unix_seconds(metrics.started) as f64;
        out.gauge("process_start_time_seconds", "When the process started", started)
    }

    fn database(&self, out: &mut Out, readings: &Readings) -> Written {
        let metrics = self.app.metrics();
        let store = self.app.datastore();
        let stats = store.stats();
        let read_at = readings.at.map_or(0, unix_seconds) as f64;
        out.gauge("fairledger_database_up", "Whether the last reading succeeded", flag(readings.up))?;
        out.gauge("fairledger_state_read_timestamp_seconds", "When the database was last read", read_at)?;
        out.counter(
            "fairledger_state_read_failures",
            "Readings of the database that failed",
            metrics.read_failures.load(Relaxed),
        )?;
        let (open, idle) = store.pool_size();
        let in_use = f64::from(open) - idle as f64;
        let states = [("idle", idle as f64), ("in_use", in_use.max(0.0))];
        out.gauges("fairledger_pool_connections", "Connections of the pool", "state", &states)?;
        out.gauge("fairledger_pool_connections_max", "Their bound", f64::from(store.pool_size_max()))?;
        out.counter("fairledger_pool_timeouts", "Callers that got no connection in time", stats.pool_timeouts)?;
        out.histograms(
            ("fairledger_commit_duration_seconds", "Time of COMMIT with the witness folder's sync"),
            "kind",
            &TIMES_US.map(|bound| bound as f64 / 1e6),
            1e6,
            &[("single", stats.commits_us), ("group", stats.group_commits_us)],
        )?;
        out.counter("fairledger_slow_transactions", "Transactions that took longer than the setting", stats.slow)?;
        out.gauge("fairledger_database_size_bytes", "Size of the database", readings.database_bytes as f64)?;
        let disks = |pick: fn(&(&'static str, u64, u64)) -> u64| {
            readings.disks.iter().map(|disk| (disk.0, pick(disk) as f64)).collect::<Vec<_>>()
        };
        out.gauges("fairledger_disk_free_bytes", "Free space", "folder", &disks(|disk| disk.1))?;
        out.gauges("fairledger_disk_size_bytes", "Size of the file system", "folder", &disks(|disk| disk.2))?;
        let (found, needed) = (f64::from(readings.schema_version), f64::from(migrate::version_needed()));
        out.gauge("fairledger_schema_version", "Version of the schema in the database", found)?;
        out.gauge("fairledger_schema_version_needed", "Version that the program needs", needed)
    }

    fn groups(&self, out: &mut Out) -> Written {
        let spends = self.ledger.group_stats().unwrap_or_default();
        let bets = self.app.seeds().group_stats().unwrap_or_default();
        let gauges = |of: fn(&GroupStats) -> usize| [("spends", of(&spends) as f64), ("bets", of(&bets) as f64)];
        let counters = |of: fn(&GroupStats) -> u64| [("spends", of(&spends)), ("bets", of(&bets))];
        let depth = gauges(|stats| stats.queued);
        out.gauges("fairledger_group_queue_depth", "Callers that wait to be committed", "group", &depth)?;
        let capacity = gauges(|stats| stats.queue_max);
        out.gauges("fairledger_group_queue_capacity", "Callers that may wait", "group", &capacity)?;
        let refused = counters(|stats| stats.refused);
        out.counters("fairledger_group_refused", "Callers refused by a full queue", "group", &refused)?;
        let alone = counters(|stats| stats.alone);
        out.counters("fairledger_group_alone", "Items sent on to their own transactions", "group", &alone)?;
        let failed = counters(|stats| stats.failed);
        out.counters("fairledger_group_batches_failed", "Batches that ended with an error", "group", &failed)?;
        out.histograms(
            ("fairledger_group_batch_items", "Items in a batch"),
            "group",
            &BATCH_SIZES.map(|bound| bound as f64),
            1.0,
            &[("spends", spends.sizes.clone()), ("bets", bets.sizes.clone())],
        )?;
        out.histograms(
            ("fairledger_group_batch_duration_seconds", "From a batch's begin to its end"),
            "group",
            &TIMES_US.map(|bound| bound as f64 / 1e6),
            1e6,
            &[("spends", spends.times_us.clone()), ("bets", bets.times_us.clone())],
        )
    }

    fn sweeping(&self, out: &mut Out, readings: &Readings) -> Written {
        let metrics = self.app.metrics();
        let counts = self.ledger.sweep_counts();
        out.counter("fairledger_sweep_keys_marked", "Token keys marked swept", counts.marked)?;
        out.counter("fairledger_sweep_partitions_dropped", "Spends of a key dropped", counts.dropped)?;
        out.counter("fairledger_sweep_freed_bytes", "Bytes that those had", counts.bytes_freed)?;
        out.counter("fairledger_sweep_waits", "Tries that had to give way", counts.waited)?;
        out.counter("fairledger_sweep_failures", "Sweeps that failed", counts.failed)?;
        let lag = readings.sweep_lag_seconds;
        out.gauge("fairledger_sweep_lag_seconds", "Since the earliest key ended that is not swept", lag)?;
        let ended: Vec<_> =
            MAINTAINED.iter().zip(&metrics.maintained).map(|(kind, count)| (*kind, count.load(Relaxed))).collect();
        out.counters("fairledger_maintenance_ended", "What maintenance ended", "kind", &ended)?;
        out.counter(
            "fairledger_maintenance_failures",
            "Rounds of maintenance that failed",
            metrics.maintenance_failures.load(Relaxed),
        )?;
        out.gauge(
            "fairledger_maintenance_success_timestamp_seconds",
            "When a round of maintenance last succeeded",
            metrics.maintenance_success.load(Relaxed) as f64,
        )?;
        out.gauge("fairledger_reveals_due", "Reveals that are still to be stored", readings.reveals_due as f64)
    }

    fn state(&self, out: &mut Out, readings: &Readings) -> Written {
        let store = self.app.datastore();
        let quarantined = store.quarantine().is_some();
        let ready = readings.up && !quarantined && self.app.readiness().reason().is_none();
        out.gauge("fairledger_keys_live", "Token keys open and within their window", readings.keys_live as f64)?;
        let (reservations, rounds) = (readings.reservations as f64, readings.rounds as f64);
        out.gauge("fairledger_outstanding_nonces", "Reservations without a record", reservations)?;
        out.gauge("fairledger_open_rounds", "Rounds not closed", rounds)?;
        let oldest = readings.oldest_seed_seconds;
        out.gauge("fairledger_oldest_live_seed_age_seconds", "Age in use of the oldest live seed", oldest)?;
        out.gauge("fairledger_quarantined", "Whether nothing is changed until a recovery", flag(quarantined))?;
        out.gauge("fairledger_epoch", "The recovery epoch", f64::from(store.epoch()))?;
        out.gauge("fairledger_witness_configured", "Whether a restore is noticed", flag(store.instance().is_some()))?;
        out.gauge("fairledger_ready", "Whether requests are served", flag(ready))
    }
}
