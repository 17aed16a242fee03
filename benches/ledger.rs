//! What a sweep costs those who spend meanwhile, and what a spend costs on disk. Prints one JSON object.
//!
//! A key with many spends is swept while others spend under another key, and the 99th percentile of how long those wait for their
//! answer is set against a run of the same length without a sweep. Only the ratio means anything: machine, disk and build are
//! whatever they are. Small by default; `FAIRLEDGER_BENCH_ROWS=10000000 FAIRLEDGER_BENCH_SECONDS=20` is the size of a busy day.

use std::error::Error;
use std::time::{Duration, Instant};

use fairledger::db::rights::Roles;
use fairledger::db::{Datastore, PoolSettings, bootstrap, migrate};
use fairledger::embedded::{Embedded, find_binaries};
use fairledger::ledger::{KeyId, KeyRequest, Ledger, LedgerSettings, Spend, SpendLedger, Token, TokenNonce};
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _, PgConnection};

type Done<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// How long each spend took of `callers` who spend one after the other for a time.
async fn spend_for(ledger: &Ledger, key_id: &KeyId, callers: usize, time: Duration) -> Done<Vec<Duration>> {
    let until = Instant::now() + time;
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let (ledger, key_id) = (ledger.clone(), key_id.clone());
            tokio::spawn(async move {
                let mut took = Vec::new();
                while Instant::now() < until {
                    let nonce = TokenNonce::from_bytes(&rand::random::<[u8; 32]>())?;
                    let spend = Spend::new(Token { key_id: key_id.clone(), nonce });
                    let started = Instant::now();
                    ledger.spend(&spend).await?;
                    took.push(started.elapsed());
                }
                Done::Ok(took)
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await??);
    }
    all.sort_unstable();
    Ok(all)
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// The value below which so many hundredths of the sorted times lie.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

fn summary(sorted: &[Duration]) -> Value {
    json!({
        "spends": sorted.len(),
        "p50_ms": milliseconds(percentile(sorted, 50)),
        "p99_ms": milliseconds(percentile(sorted, 99)),
        "max_ms": milliseconds(sorted.last().copied().unwrap_or_default()),
    })
}

/// Spends so many tokens of 32 random bytes under a key, all at once; gives the bytes that one takes in the table and in its index.
async fn fill(owner: &mut PgConnection, key_id: &KeyId, rows: i64) -> Done<(f64, f64)> {
    sqlx::query(
        "INSERT INTO fairledger.spends (expires_at, key_no, spend_id, nonce)
         SELECT k.redeem_until, k.key_no, gen_random_uuid(), sha256(n::text::bytea)
         FROM fairledger.token_keys k, generate_series(1, $2) n WHERE k.key_id = $1",
    )
    .bind(key_id.as_str())
    .bind(rows)
    .execute(&mut *owner)
    .await?;
    let sizes: (i64, i64) = sqlx::query_as(
        "SELECT pg_table_size(p), pg_indexes_size(p)
         FROM (SELECT to_regclass('fairledger_spends.key_' || key_no) AS p FROM fairledger.token_keys WHERE key_id = $1) k",
    )
    .bind(key_id.as_str())
    .fetch_one(&mut *owner)
    .await?;
    Ok((sizes.0 as f64 / rows as f64, sizes.1 as f64 / rows as f64))
}

async fn measure(server: &Embedded) -> Done<Value> {
    let rows: i64 = setting("FAIRLEDGER_BENCH_ROWS", 100_000);
    let seconds: u64 = setting("FAIRLEDGER_BENCH_SECONDS", 2);
    let callers: usize = setting("FAIRLEDGER_BENCH_CALLERS", 8);
    let time = Duration::from_secs(seconds);
    bootstrap::private_server(&server.url(bootstrap::SUPERUSER, "postgres")).await?;
    let owner_url = server.url(bootstrap::OWNER, bootstrap::DATABASE);
    migrate::run(&owner_url, &Roles::default()).await?;
    let mut owner = PgConnection::connect(&owner_url).await?;
    let mut admin = PgConnection::connect(&server.url(bootstrap::SUPERUSER, bootstrap::DATABASE)).await?;
    let store =
        Datastore::connect(&server.url(bootstrap::SERVICE, bootstrap::DATABASE), &PoolSettings::default()).await?;
    let ledger = Ledger::new(store, LedgerSettings::default());
    let (live, old): (KeyId, KeyId) = ("live".parse()?, "old".parse()?);
    for key_id in [&live, &old] {
        ledger.register_key(&KeyRequest::new(key_id.clone())).await?;
    }
    let (table_bytes, index_bytes) = fill(&mut owner, &old, rows).await?;
    // What filling left to do must not be done during either run: a day later it would have been. A vacuum of the partition would
    // also keep the sweep waiting.
    admin.execute("VACUUM ANALYZE fairledger.spends").await?;
    admin.execute("CHECKPOINT").await?;

    spend_for(&ledger, &live, callers, time / 4).await?;
    let without = spend_for(&ledger, &live, callers, time).await?;
    sqlx::query("UPDATE fairledger.token_keys SET redeem_until = clock_timestamp() WHERE key_id = $1")
        .bind(old.as_str())
        .execute(&mut owner)
        .await?;
    let sweeping = async {
        tokio::time::sleep(time / 4).await;
        let started = Instant::now();
        let swept = ledger.sweep().await?;
        Done::Ok((swept, started.elapsed()))
    };
    let (with, swept) = tokio::join!(spend_for(&ledger, &live, callers, time), sweeping);
    let (with, (swept, took)) = (with?, swept?);
    if swept.dropped.is_empty() {
        return Err(format!("nothing was dropped: {swept:?}").into());
    }
    let p99 = |sorted: &[Duration]| percentile(sorted, 99).as_secs_f64();
    Ok(json!({
        "bench": "ledger",
        "swept_rows": rows,
        "callers": callers,
        "seconds": seconds,
        "without_sweep": summary(&without),
        "with_sweep": summary(&with),
        "p99_ratio": (p99(&with) / p99(&without) * 1e3).round() / 1e3,
        "sweep_ms": milliseconds(took),
        "nonce_bytes": 32,
        "table_bytes_per_spend": table_bytes.round(),
        "index_bytes_per_spend": index_bytes.round(),
    }))
}

fn main() -> Done<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let folder = tempfile::tempdir()?;
        let server = Embedded::start(folder.path(), &find_binaries(None)?, &[]).await?;
        let measured = measure(&server).await;
        server.stop().await?;
        println!("{}", measured?);
        Ok(())
    })
}
