//! What the whole history costs at size: bytes for a record, pages at any depth, exports, verification, and bets before and after. Prints one
//! JSON object; docs/PERFORMANCE.md explains it.
//!
//! `FAIRLEDGER_BENCH_RECORDS=20000000 cargo bench --bench history` fills a database of its own with so many records, which takes some
//! minutes and 9 GB below `TMPDIR`. Without `--bench` (`cargo test --benches`) it is small, and each thing runs once to see that it
//! works. `FAIRLEDGER_BENCH_ONLY=compare` leaves out all but the comparison with a Node.js loop, which takes turns
//! for `FAIRLEDGER_BENCH_ROUNDS` rounds. That needs `node`, and is left out without it.

mod fill;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use fairledger::db::rights::Roles;
use fairledger::db::scan::{GameName as ScannedGame, ScanFilter};
use fairledger::db::{Datastore, PoolSettings, Reader, bootstrap, migrate};
use fairledger::embedded::{Embedded, find_binaries};
use fairledger::gfs::games::Play;
use fairledger::history::export::{ExportRequest, ExportSink, SinkClosed};
use fairledger::history::format::Format;
use fairledger::history::verify::{Whose, verify};
use fairledger::history::{Filters, History, HistorySettings, PageRequest};
use fairledger::seeds::model::{BetStatus, View};
use fairledger::seeds::values::{BetRef, GameName, PlayerRef, Timestamp};
use fairledger::seeds::{BetRequest, GameRequest, KeyRing, Seeds, SeedsSettings, ServiceSecret, SessionRequest, Wager};
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _, PgConnection};

use fill::Filling;

type Done<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Records on a page.
const PAGE: u32 = 50;
/// Pages measured at each depth.
const PAGES: usize = 200;
/// The deep page.
const DEEP: usize = 100_000;
/// Records compared with the Node.js loop at the most.
const COMPARED: usize = 1_000_000;

struct Plan {
    records: usize,
    bets_per_seed: usize,
    time: Duration,
    /// Of the comparison with the Node.js loop.
    rounds: usize,
    /// Only the comparison with the Node.js loop.
    compare_only: bool,
}

impl Plan {
    fn read() -> Self {
        let full = std::env::args().any(|argument| argument == "--bench");
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<usize>().ok());
        let records = number("FAIRLEDGER_BENCH_RECORDS").unwrap_or(if full { 2_000_000 } else { 4_000 });
        let time = if full { Duration::from_secs(5) } else { Duration::from_millis(200) };
        let rounds = number("FAIRLEDGER_BENCH_ROUNDS").unwrap_or(if full { 3 } else { 1 }).max(1);
        let compare_only = std::env::var("FAIRLEDGER_BENCH_ONLY").is_ok_and(|only| only == "compare");
        Self { records, bets_per_seed: if full { 500 } else { 50 }, time, rounds, compare_only }
    }
}

fn main() -> Done<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let (data, folder) = (tempfile::tempdir()?, tempfile::tempdir()?);
        // Room for the log: a checkpoint in the middle is not what is measured.
        let settings = [("max_wal_size", "16GB"), ("checkpoint_timeout", "1h"), ("shared_buffers", "2GB")];
        let server = Embedded::start(data.path(), &find_binaries(None)?, &settings).await?;
        let measured = measure(&server, folder.path()).await;
        server.stop().await?;
        println!("{}", measured?);
        Ok(())
    })
}

async fn measure(server: &Embedded, folder: &Path) -> Done<Value> {
    let plan = Plan::read();
    bootstrap::private_server(&server.url(bootstrap::SUPERUSER, "postgres")).await?;
    let owner_url = server.url(bootstrap::OWNER, bootstrap::DATABASE);
    migrate::run(&owner_url, &Roles::default()).await?;
    let store =
        Datastore::connect(&server.url(bootstrap::SERVICE, bootstrap::DATABASE), &PoolSettings::default()).await?;
    let entry = KeyRing::generate_entry("k1");
    let secret = ServiceSecret::new(rand::random());
    let seeds =
        Seeds::start(store.clone(), KeyRing::parse(&entry)?, secret.clone(), None, SeedsSettings::default()).await?;
    let history = History::new(Reader::from(&store), secret, HistorySettings::default());

    let before = bets(&seeds, plan.time).await?;
    say("bets before", &before);
    let started = Instant::now();
    let filling = Filling { records: plan.records, bets_per_seed: plan.bets_per_seed };
    let (first, last) = fill::fill(&owner_url, KeyRing::parse(&entry)?, filling).await?;
    let fill_rate = rate(plan.records, started.elapsed());
    say("filled, records/s", &fill_rate);
    let mut admin = PgConnection::connect(&server.url(bootstrap::SUPERUSER, bootstrap::DATABASE)).await?;
    admin.execute("VACUUM ANALYZE").await?;
    admin.execute("CHECKPOINT").await?;
    if plan.compare_only {
        let compared = compare(&history, &mut admin, folder, plan.rounds).await?;
        say("compared", &compared);
        seeds.stop().await;
        return Ok(json!({ "bench": "history", "records": plan.records, "dice_against_node": compared }));
    }
    let bytes = bytes(&mut admin).await?;
    say("bytes", &bytes);
    let after = bets(&seeds, plan.time).await?;
    say("bets after", &after);
    let pages = pages(&history, &mut admin, first, last).await?;
    let exported = export(&history, Filters::default(), None).await?;
    say("export", &exported);
    let verified = verified(&history, ScanFilter::default()).await?;
    say("verify", &verified);
    let compared = compare(&history, &mut admin, folder, plan.rounds).await?;
    say("compared", &compared);
    seeds.stop().await;
    Ok(json!({
        "bench": "history", "records": plan.records, "fill_per_s": fill_rate, "bytes_per_record": bytes,
        "bets_per_s": { "before": before, "after": after }, "pages": pages, "export": exported, "verify": verified,
        "dice_against_node": compared,
    }))
}

fn say(what: &str, value: &Value) {
    eprintln!("{what}: {value}");
}

fn rate(count: usize, time: Duration) -> Value {
    json!((count as f64 / time.as_secs_f64()).round())
}

/// Bets a second of 64 callers, each in a session of its own.
async fn bets(seeds: &Seeds, time: Duration) -> Done<Value> {
    let until = Instant::now() + time;
    let started = Instant::now();
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let seeds = seeds.clone();
            tokio::spawn(async move {
                let view: View = seeds.create_session(&SessionRequest::default()).await?.view;
                let mut taken = 0;
                while Instant::now() < until {
                    let bet = BetRequest {
                        commitment: view.commitment,
                        bet_ref: BetRef::parse(&format!("b{taken}"))?,
                        game: GameRequest { play: Play::new("dice", None)?, conceal: false },
                        wager: Wager::default(),
                    };
                    seeds.take_bet(view.session_id, &bet).await?;
                    taken += 1;
                }
                Done::Ok(taken)
            })
        })
        .collect();
    let mut taken = 0;
    for caller in callers {
        taken += caller.await??;
    }
    Ok(rate(taken, started.elapsed()))
}

/// Bytes of each table and of its indexes, over the number of bets.
async fn bytes(admin: &mut PgConnection) -> Done<Value> {
    let rows: Vec<(String, i64, i64)> = sqlx::query_as(
        "SELECT c.relname::text, pg_table_size(c.oid), pg_indexes_size(c.oid) FROM pg_class c
         WHERE c.relnamespace = 'fairledger'::regnamespace AND c.relkind = 'r' AND pg_total_relation_size(c.oid) > 1000000",
    )
    .fetch_all(&mut *admin)
    .await?;
    let bets: i64 = sqlx::query_scalar("SELECT count(*) FROM fairledger.bets").fetch_one(&mut *admin).await?;
    let each = |bytes: i64| (bytes as f64 / bets as f64 * 10.0).round() / 10.0;
    let tables: BTreeMap<_, _> = rows
        .iter()
        .map(|(name, table, index)| (name, json!({ "table": each(*table), "indexes": each(*index) })))
        .collect();
    Ok(json!({ "tables": tables, "total": each(rows.iter().map(|(_, table, index)| table + index).sum()) }))
}

/// How long pages take, the first ones and those at the deep end, for each filter.
async fn pages(history: &History, admin: &mut PgConnection, first: DateTime<Utc>, last: DateTime<Utc>) -> Done<Value> {
    let commitment: Vec<u8> = sqlx::query_scalar(
        "SELECT commitment FROM fairledger.seeds WHERE status = 'revealed' ORDER BY session_id DESC LIMIT 1",
    )
    .fetch_one(&mut *admin)
    .await?;
    let commitment = hex::encode(commitment).parse()?;
    let (session_id, player_ref): (uuid::Uuid, String) = sqlx::query_as(
        "SELECT session_id, player_ref FROM fairledger.sessions WHERE player_ref IS NOT NULL ORDER BY session_id DESC OFFSET 10 LIMIT 1",
    )
    .fetch_one(&mut *admin)
    .await?;
    let none = Filters::default();
    let middle = first + (last - first) / 2;
    let filters = [
        ("none", none.clone()),
        ("status=recorded", Filters { status: Some(BetStatus::Recorded), ..none.clone() }),
        ("game=dice", Filters { game: Some(GameName::parse("dice")?), ..none.clone() }),
        ("from, to", Filters { from: Some(Timestamp(first)), to: Some(Timestamp(middle)), ..none.clone() }),
        (
            "game, from, to",
            Filters {
                game: Some(GameName::parse("hilo")?),
                from: Some(Timestamp(first)),
                to: Some(Timestamp(middle)),
                ..none.clone()
            },
        ),
        ("status=void", Filters { status: Some(BetStatus::Void), ..none.clone() }),
        ("betRef", Filters { bet_ref: Some(BetRef::parse("b0-7")?), ..none.clone() }),
        ("sessionId", Filters { session_id: Some(session_id), ..none.clone() }),
        ("playerRef", Filters { player_ref: Some(PlayerRef::parse(&player_ref)?), ..none.clone() }),
        (
            "playerRef, from, to",
            Filters {
                player_ref: Some(PlayerRef::parse(&player_ref)?),
                from: Some(Timestamp(first)),
                to: Some(Timestamp(last)),
                ..none.clone()
            },
        ),
        ("commitment", Filters { commitment: Some(commitment), ..none.clone() }),
        ("commitment, nonce", Filters { commitment: Some(commitment), nonce: Some(3), ..none }),
    ];
    let mut measured = serde_json::Map::new();
    for (name, filters) in filters {
        let shallow = time_pages(history, &filters, None).await?;
        let (token, depth) = walk_to(history, &filters, DEEP).await?;
        let deep = time_pages(history, &filters, token).await?;
        let found = json!({ "first": shallow, "deep": deep, "deep_page": depth });
        say(name, &found);
        measured.insert(name.to_owned(), found);
    }
    Ok(measured.into())
}

async fn time_pages(history: &History, filters: &Filters, from: Option<String>) -> Done<Value> {
    let mut times = Vec::new();
    let mut records = 0;
    let mut after = from.clone();
    for _ in 0..PAGES {
        let started = Instant::now();
        let page = history.page(PageRequest { filters: filters.clone(), after, limit: PAGE }).await?;
        times.push(started.elapsed());
        records += page.records.len();
        after = page.next_after.or_else(|| from.clone());
    }
    times.sort_unstable();
    let ms =
        |percent: usize| (times[(times.len() * percent / 100).min(times.len() - 1)].as_secs_f64() * 1e5).round() / 1e2;
    Ok(json!({ "p50_ms": ms(50), "p99_ms": ms(99), "records": records }))
}

/// The token of a page so deep, or of the last page before the end; and which page that is.
async fn walk_to(history: &History, filters: &Filters, pages: usize) -> Done<(Option<String>, usize)> {
    let (mut token, mut records) = (None, 0);
    while records < pages * PAGE as usize {
        // Larger pages on the way: a place is a place.
        let page =
            history.page(PageRequest { filters: filters.clone(), after: token.clone(), limit: 10 * PAGE }).await?;
        let Some(next) = page.next_after else { break };
        records += page.records.len();
        token = Some(next);
    }
    Ok((token, records / PAGE as usize))
}

/// Writes to a file, or nowhere.
struct Sink {
    file: Option<tokio::fs::File>,
    bytes: usize,
}

impl ExportSink for Sink {
    async fn take(&mut self, bytes: Vec<u8>, _: u64) -> Result<(), SinkClosed> {
        self.bytes += bytes.len();
        if let Some(file) = &mut self.file {
            tokio::io::AsyncWriteExt::write_all(file, &bytes).await.map_err(|_| SinkClosed)?;
        }
        Ok(())
    }
}

async fn export(history: &History, filters: Filters, file: Option<&Path>) -> Done<Value> {
    let file = match file {
        Some(path) => Some(tokio::fs::File::create(path).await?),
        None => None,
    };
    let mut sink = Sink { file, bytes: 0 };
    let started = Instant::now();
    let export = history.export(ExportRequest { filters, format: Format::Ndjson, resume: None }).await?;
    let records = export.write_to(&mut sink).await?;
    if let Some(file) = &mut sink.file {
        tokio::io::AsyncWriteExt::flush(file).await?;
    }
    Ok(json!({
        "records": records,
        "records_per_s": rate(records as usize, started.elapsed()),
        "megabytes_per_s": (sink.bytes as f64 / 1e5 / started.elapsed().as_secs_f64()).round() / 10.0,
    }))
}

async fn verified(history: &History, filter: ScanFilter) -> Done<Value> {
    let started = Instant::now();
    let report = verify(history.reader(), &Whose::All, &filter, |_| ()).await?;
    if !report.is_sound() {
        return Err(format!("{} mismatched, {} corrupt", report.mismatched, report.corrupt).into());
    }
    let seen = report.verified + report.not_revealed + report.void + report.custom;
    Ok(json!({
        "records": seen,
        "verified": report.verified,
        "seconds": (started.elapsed().as_secs_f64() * 1e3).round() / 1e3,
        "records_per_s": rate(seen as usize, started.elapsed()),
    }))
}

/// A million records of dice, verified from the database and by a Node.js loop over their export.
async fn compare(history: &History, admin: &mut PgConnection, folder: &Path, rounds: usize) -> Done<Value> {
    if Command::new("node").arg("--version").output().is_err() {
        return Ok(json!("node is not installed"));
    }
    let to: Option<DateTime<Utc>> = sqlx::query_scalar(
        "SELECT taken_at FROM fairledger.bets WHERE game = 'dice' ORDER BY taken_at OFFSET $1 LIMIT 1",
    )
    .bind(COMPARED as i64)
    .fetch_optional(&mut *admin)
    .await?;
    let revealed: DateTime<Utc> =
        sqlx::query_scalar("SELECT max(revealed_at) FROM fairledger.reveals").fetch_one(&mut *admin).await?;
    let to = to.unwrap_or(revealed).min(revealed);
    let file = folder.join("dice.ndjson");
    let filters = Filters { game: Some(GameName::parse("dice")?), to: Some(Timestamp(to)), ..Filters::default() };
    export(history, filters, Some(&file)).await?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/history/verify.mjs");
    let mut runs = Vec::new();
    for _ in 0..rounds {
        let game = ScannedGame::new("dice");
        let ours = verified(history, ScanFilter { game, to: Some(to), ..ScanFilter::default() }).await?;
        let output = Command::new("node").arg(&script).arg(&file).output()?;
        let theirs: Value = serde_json::from_slice(&output.stdout)?;
        if theirs["wrong"] != 0 || theirs["verified"] != ours["verified"] {
            return Err(format!("they differ: {ours} and {theirs}").into());
        }
        let seconds = |value: &Value| value["seconds"].as_f64().unwrap_or(f64::NAN);
        let ratio = seconds(&theirs) / seconds(&ours);
        runs.push(json!({ "ours": ours, "node": theirs, "ratio": (ratio * 10.0).round() / 10.0 }));
    }
    Ok(runs.into())
}
