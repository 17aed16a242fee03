//! What group commit is worth: spends, bets and reservations by many callers, against one transaction a call, against Redis with a synced
//! append-only file, and against what PostgreSQL inserts at all. Prints one JSON object; docs/PERFORMANCE.md explains it.
//!
//! Everything runs on this machine, one run after the other. Only ratios within one run mean anything, and a machine that is shared with
//! others may halve either side of one; so everything is measured in `FAIRLEDGER_BENCH_ROUNDS` (3) rounds, and a ratio is the median of
//! the rounds' own, with the least and the most beside it. `cargo bench --bench throughput` takes the time of `FAIRLEDGER_BENCH_SECONDS` (3)
//! for each run; `FAIRLEDGER_BENCH_CALLERS` takes one number of callers; `FAIRLEDGER_BENCH_ONLY=spends,bets,http,calculation` takes some of
//! the parts, and `memory`, which is not measured otherwise, spends with 1,024 callers for that time; `FAIRLEDGER_BENCH_WRITERS` tries
//! another number of writers. Without `--bench` (`cargo test --benches`) each thing runs once, briefly, to see that it works. Needs
//! `redis-server` and `pgbench`.

mod bets;
mod calculation;
mod http;
mod load;
mod servers;
mod spends;

use std::error::Error;
use std::time::Duration;

use fairledger::db::group::GroupSettings;
use fairledger::seeds::KeyRing;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use bets::What;
use load::{Load, Repeats};
use servers::{Postgres, Redis};

pub type Done<T> = Result<T, Box<dyn Error + Send + Sync>>;

const NEVER: Repeats = Repeats(None);

/// How much is measured.
struct Plan {
    full: bool,
    time: Duration,
    rounds: usize,
    callers: Vec<usize>,
    sessions: usize,
    only: Option<String>,
}

impl Plan {
    fn read() -> Self {
        let full = std::env::args().any(|argument| argument == "--bench");
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let time = match number("FAIRLEDGER_BENCH_SECONDS") {
            Some(seconds) => Duration::from_secs(seconds),
            None if full => Duration::from_secs(3),
            None => Duration::from_millis(100),
        };
        let rounds = number("FAIRLEDGER_BENCH_ROUNDS").unwrap_or(if full { 3 } else { 1 }).max(1) as usize;
        let callers = match number("FAIRLEDGER_BENCH_CALLERS") {
            Some(callers) => vec![callers as usize],
            None if full => vec![1, 16, 64, 256, 1_024],
            None => vec![1, 8],
        };
        let only = std::env::var("FAIRLEDGER_BENCH_ONLY").ok();
        Self { full, time, rounds, callers, sessions: if full { 10_000 } else { 20 }, only }
    }

    fn wants(&self, part: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.split(',').any(|wanted| wanted == part))
    }

    fn busy(&self) -> usize {
        self.callers.iter().copied().find(|callers| *callers >= 256).unwrap_or(self.callers[self.callers.len() - 1])
    }

    /// A ceiling is measured right beside the most callers, which come nearest to it: minutes later the machine is another one.
    fn most(&self, callers: usize) -> bool {
        self.callers.last() == Some(&callers)
    }
}

pub fn random_uuid() -> Uuid {
    Uuid::new_v4()
}

/// Groups as they are by default, or with another number of writers, to try it.
pub fn writers() -> GroupSettings {
    let writers = std::env::var("FAIRLEDGER_BENCH_WRITERS").ok().and_then(|text| text.parse().ok());
    let default = GroupSettings::default();
    GroupSettings { writers: writers.unwrap_or(default.writers), ..default }
}

/// Results of one round by name, told on the error stream as they come.
#[derive(Default)]
struct Report(Map<String, Value>);

impl Report {
    fn add(&mut self, name: String, measured: &Load) {
        eprintln!(
            "{name}: {} /s, p50 {} us, p99 {} us, {} CPU s per million",
            measured.rate_per_s, measured.p50_us, measured.p99_us, measured.cpu_s_per_million
        );
        self.0.insert(name, json!(measured));
    }

    fn add_ceiling(&mut self, name: &str, rate_per_s: f64) {
        eprintln!("{name}: {rate_per_s} /s");
        self.0.insert(name.to_owned(), json!({ "rate_per_s": rate_per_s }));
    }

    /// One figure of one thing over that of another, where both were measured.
    fn ratio(&self, figure: &str, ours: &str, theirs: &str) -> Option<f64> {
        let read = |name: &str| self.0.get(name)?.get(figure)?.as_f64();
        Some(read(ours)? / read(theirs)?)
    }
}

async fn measure_spends(plan: &Plan, postgres: &Postgres, redis: &Redis, report: &mut Report) -> Done<()> {
    let (grouped, alone) = (spends::ledger(postgres, true).await?, spends::ledger(postgres, false).await?);
    // Nothing is measured cold.
    spends::through(postgres, &grouped, 8, plan.time.min(Duration::from_secs(1)), NEVER).await?;
    for &callers in &plan.callers {
        let measured = spends::through(postgres, &grouped, callers, plan.time, NEVER).await?;
        report.add(format!("spends.group.{callers}"), &measured);
        if plan.most(callers) {
            report.add_ceiling("spends.pgbench", spends::ceiling(postgres, &grouped, plan.time).await?);
        }
        let measured = spends::through(postgres, &alone, callers, plan.time, NEVER).await?;
        report.add(format!("spends.alone.{callers}"), &measured);
        let measured = spends::insert_per_call(postgres, &grouped, callers, plan.time).await?;
        report.add(format!("spends.insert.{callers}"), &measured);
        let measured = spends::by_redis(redis, callers, plan.time, NEVER).await?;
        report.add(format!("spends.redis.{callers}"), &measured);
    }
    for (name, every) in [("0.1%", 1_000), ("1%", 100), ("10%", 10)] {
        let callers = plan.busy();
        let repeats = Repeats(Some(every));
        let measured = spends::through(postgres, &grouped, callers, plan.time, repeats).await?;
        report.add(format!("spends.group.{callers}.repeats.{name}"), &measured);
    }
    report.0.insert("spends.group.stats".into(), stats(grouped.group_stats()));
    grouped.stop().await;
    Ok(())
}

fn stats(stats: Option<fairledger::db::group::GroupStats>) -> Value {
    let Some(stats) = stats else { return Value::Null };
    json!({ "refused": stats.refused, "alone": stats.alone, "failed": stats.failed, "batch_sizes": stats.sizes.counts,
        "batch_times_us": stats.times_us.counts })
}

async fn measure_bets(plan: &Plan, postgres: &Postgres, redis: &Redis, ring: &str, report: &mut Report) -> Done<()> {
    let grouped = bets::service(postgres, true, false, ring).await?;
    let signing = bets::service(postgres, true, true, ring).await?;
    let alone = bets::service(postgres, false, false, ring).await?;
    let many = bets::sessions(&alone, plan.sessions).await?;
    bets::through(postgres, &grouped, &many, What::Bets, 8, plan.time.min(Duration::from_secs(1)), NEVER).await?;
    for &callers in &plan.callers {
        if plan.most(callers) {
            report.add_ceiling("bets.pgbench", bets::ceiling(postgres, plan.sessions, plan.time).await?);
        }
        for (name, service, what) in [
            ("bets.group", &grouped, What::Bets),
            ("bets.group.signed", &signing, What::Bets),
            ("bets.alone", &alone, What::Bets),
            ("reservations.group", &grouped, What::Reservations),
            ("reservations.alone", &alone, What::Reservations),
        ] {
            let measured = bets::through(postgres, service, &many, what, callers, plan.time, NEVER).await?;
            report.add(format!("{name}.{callers}"), &measured);
        }
        let measured = bets::by_redis(redis, plan.sessions, callers, plan.time, true).await?;
        report.add(format!("bets.redis.{callers}"), &measured);
    }
    let callers = plan.busy();
    for (name, every) in [("0.1%", 1_000), ("1%", 100), ("10%", 10)] {
        let repeats = Repeats(Some(every));
        let measured = bets::through(postgres, &grouped, &many, What::Bets, callers, plan.time, repeats).await?;
        report.add(format!("bets.group.{callers}.repeats.{name}"), &measured);
    }
    let one = std::sync::Arc::new(vec![many[0]]);
    let measured = bets::through(postgres, &grouped, &one, What::Bets, callers, plan.time, NEVER).await?;
    report.add(format!("bets.one-session.group.{callers}"), &measured);
    let measured = bets::through(postgres, &alone, &one, What::Bets, callers, plan.time, NEVER).await?;
    report.add(format!("bets.one-session.alone.{callers}"), &measured);
    for (name, in_turn) in [("redis", true), ("redis-unordered", false)] {
        let measured = bets::by_redis(redis, 1, callers, plan.time, in_turn).await?;
        report.add(format!("bets.one-session.{name}.{callers}"), &measured);
    }
    report.0.insert("bets.group.stats".into(), stats(grouped.group_stats()));
    Ok(())
}

async fn measure_http(plan: &Plan, postgres: &Postgres, redis: &Redis, ring: &str, report: &mut Report) -> Done<()> {
    let seeds = bets::service(postgres, true, false, ring).await?;
    let signing = bets::service(postgres, true, true, ring).await?;
    let ledger = spends::ledger(postgres, true).await?;
    let alone = spends::ledger(postgres, false).await?;
    let many = bets::sessions(&seeds, plan.sessions).await?;
    // What is answered is one more than was measured: the first request looked the token up.
    for &connections in &plan.callers {
        let key_id = spends::new_key(&ledger, spends::next_run()).await?;
        postgres.settle().await?;
        let measured = http::spends(&seeds, ledger.clone(), key_id.as_str(), connections, plan.time).await?;
        spends::check(postgres, &key_id, measured.fresh + 1).await?;
        report.add(format!("http.group.{connections}"), &measured);
        let key_id = spends::new_key(&ledger, spends::next_run()).await?;
        postgres.settle().await?;
        let measured = http::spends(&seeds, alone.clone(), key_id.as_str(), connections, plan.time).await?;
        spends::check(postgres, &key_id, measured.fresh + 1).await?;
        report.add(format!("http.alone.{connections}"), &measured);
        redis.clear().await?;
        let by_redis = spends::RedisLedger { connection: redis.connect().await? };
        let measured = http::spends(&seeds, by_redis, key_id.as_str(), connections, plan.time).await?;
        report.add(format!("http.redis.{connections}"), &measured);
        for (name, service, what) in [
            ("http.bets", &seeds, What::Bets),
            ("http.bets.signed", &signing, What::Bets),
            ("http.reservations", &seeds, What::Reservations),
        ] {
            bets::clear(postgres).await?;
            let measured = http::bets(service, ledger.clone(), &many, what, connections, plan.time).await?;
            bets::check(postgres, measured.fresh + 1).await?;
            report.add(format!("{name}.{connections}"), &measured);
        }
    }
    Ok(())
}

/// The memory of this process, service and callers together, before, in the middle and at the end of a long run.
async fn measure_memory(plan: &Plan, postgres: &Postgres, report: &mut Report) -> Done<()> {
    let callers = if plan.full { 1_024 } else { 8 };
    let ledger = spends::ledger(postgres, true).await?;
    let mut resident_kib = vec![load::resident_kib()?];
    for _ in 0..4 {
        let measured = spends::through(postgres, &ledger, callers, plan.time / 4, NEVER).await?;
        resident_kib.push(load::resident_kib()?);
        report.add(format!("memory.spends.{callers}"), &measured);
    }
    report.0.insert("memory".into(), json!({ "resident_kib": resident_kib }));
    Ok(())
}

/// The ratios that docs/PERFORMANCE.md states.
fn ratios(plan: &Plan, rounds: &[Report]) -> Map<String, Value> {
    let mut pairs = Vec::new();
    for callers in &plan.callers {
        for (ours, theirs) in [
            ("spends.group", "spends.insert"),
            ("spends.group", "spends.redis"),
            ("spends.group", "spends.alone"),
            ("bets.group", "bets.alone"),
            ("bets.group", "bets.redis"),
            ("bets.group.signed", "bets.redis"),
            ("reservations.group", "reservations.alone"),
            ("bets.one-session.group", "bets.one-session.alone"),
            ("bets.one-session.group", "bets.one-session.redis"),
            ("bets.one-session.group", "bets.one-session.redis-unordered"),
        ] {
            pairs.push((format!("{ours}.{callers}"), format!("{theirs}.{callers}")));
        }
        pairs.push((format!("spends.group.{callers}"), "spends.pgbench".to_owned()));
        pairs.push((format!("bets.group.{callers}"), "bets.pgbench".to_owned()));
        pairs.push(("bets.pgbench".to_owned(), format!("bets.redis.{callers}")));
    }
    for connections in &plan.callers {
        pairs.push((format!("http.group.{connections}"), format!("http.redis.{connections}")));
    }
    let mut pairs: Vec<_> = pairs.into_iter().map(|(ours, theirs)| ("rate_per_s", ours, theirs)).collect();
    // One caller waits for nobody else: what counts is how long.
    for what in ["spends", "bets", "reservations"] {
        pairs.push(("p50_us", format!("{what}.group.1"), format!("{what}.alone.1")));
    }
    let mut ratios = Map::new();
    for (figure, ours, theirs) in &pairs {
        let mut found: Vec<f64> = rounds.iter().filter_map(|report| report.ratio(figure, ours, theirs)).collect();
        found.sort_by(f64::total_cmp);
        if let (Some(least), Some(most)) = (found.first(), found.last()) {
            let median = (found[(found.len() - 1) / 2] + found[found.len() / 2]) / 2.0;
            let [median, least, most] = [median, *least, *most].map(|ratio| (ratio * 100.0).round() / 100.0);
            let name = format!("{ours} / {theirs}, {figure}");
            ratios.insert(name, json!({ "median": median, "least": least, "most": most }));
        }
    }
    ratios
}

/// Everything that is wanted, once.
async fn measure_round(plan: &Plan, postgres: &Postgres, redis: &Redis, ring: &str) -> Done<Report> {
    let mut report = Report::default();
    if plan.wants("calculation") {
        report.0.insert("calculation".into(), calculation::measure(plan.full)?);
    }
    if plan.wants("spends") {
        measure_spends(plan, postgres, redis, &mut report).await?;
    }
    if plan.wants("bets") {
        measure_bets(plan, postgres, redis, ring, &mut report).await?;
    }
    if plan.wants("http") {
        measure_http(plan, postgres, redis, ring, &mut report).await?;
    }
    if plan.only.is_some() && plan.wants("memory") {
        measure_memory(plan, postgres, &mut report).await?;
    }
    Ok(report)
}

async fn measure(plan: &Plan, postgres: &Postgres, redis: &Redis) -> Done<Value> {
    // One for all services on the database.
    let ring = KeyRing::generate_entry("k1");
    let mut rounds = Vec::with_capacity(plan.rounds);
    for round in 1..=plan.rounds {
        eprintln!("round {round} of {}", plan.rounds);
        rounds.push(measure_round(plan, postgres, redis, &ring).await?);
    }
    let ratios = ratios(plan, &rounds);
    let rounds: Vec<_> = rounds.into_iter().map(|report| report.0).collect();
    Ok(json!({ "bench": "throughput", "seconds": plan.time.as_secs_f64(), "ratios": ratios, "rounds": rounds }))
}

fn main() -> Done<()> {
    let plan = Plan::read();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let folder = tempfile::tempdir()?;
        let redis_folder = tempfile::tempdir()?;
        let postgres = Postgres::start(folder.path()).await?;
        let redis = Redis::start(redis_folder.path()).await?;
        let measured = measure(&plan, &postgres, &redis).await;
        postgres.server.stop().await?;
        println!("{:#}", measured?);
        Ok(())
    })
}
