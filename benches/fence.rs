//! What the restore fence costs those who spend. Prints one JSON object.
//!
//! The same spends with and without a fence, in turn and several times over, on one private PostgreSQL whose commits are durable: by one
//! caller, by sixteen, and in batches of a thousand. Only the ratios mean anything: machine, disk and build are whatever they are.
//! `FAIRLEDGER_BENCH_SECONDS` is the length of one measurement, `FAIRLEDGER_BENCH_ROUNDS` how many there are of each.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use fairledger::db::fence::FenceSettings;
use fairledger::db::rights::Roles;
use fairledger::db::{Datastore, PoolSettings, bootstrap, migrate};
use fairledger::embedded::{Embedded, find_binaries};
use fairledger::ledger::{KeyId, KeyRequest, Ledger, LedgerSettings, Spend, SpendLedger, Token, TokenNonce};
use serde_json::{Value, json};

type Done<T> = Result<T, Box<dyn Error + Send + Sync>>;

const BATCH: usize = 1_000;

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn fresh(key_id: &KeyId) -> Done<Spend> {
    let nonce = TokenNonce::from_bytes(&rand::random::<[u8; 32]>())?;
    Ok(Spend::new(Token { key_id: key_id.clone(), nonce }))
}

/// Calls a second of so many callers, each with so many spends a call.
async fn rate(ledger: &Ledger, key_id: &KeyId, callers: usize, spends: usize, time: Duration) -> Done<f64> {
    let started = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let (ledger, key_id) = (ledger.clone(), key_id.clone());
            tokio::spawn(async move {
                let mut calls = 0_u32;
                while started.elapsed() < time {
                    if spends == 1 {
                        ledger.spend(&fresh(&key_id)?).await?;
                    } else {
                        let batch = (0..spends).map(|_| fresh(&key_id)).collect::<Done<Vec<_>>>()?;
                        ledger.spend_each(&batch).await?;
                    }
                    calls += 1;
                }
                Done::Ok(calls)
            })
        })
        .collect();
    let mut calls = 0.0;
    for task in tasks {
        calls += f64::from(task.await??);
    }
    Ok(calls / started.elapsed().as_secs_f64())
}

async fn measure(plain: &Ledger, fenced: &Ledger, key_id: &KeyId, callers: usize, spends: usize) -> Done<Value> {
    let time = Duration::from_secs_f64(setting("FAIRLEDGER_BENCH_SECONDS", 2.0));
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..setting("FAIRLEDGER_BENCH_ROUNDS", 3_u32) {
        without.push(rate(plain, key_id, callers, spends, time).await?);
        with.push(rate(fenced, key_id, callers, spends, time).await?);
    }
    without.sort_by(f64::total_cmp);
    with.sort_by(f64::total_cmp);
    let (without, with) = (without[without.len() / 2], with[with.len() / 2]);
    Ok(json!({
        "callers": callers, "spends_a_call": spends,
        "calls_per_second": without.round(), "calls_per_second_fenced": with.round(),
        "ratio": (with / without * 100.0).round() / 100.0,
    }))
}

async fn ledger(url: &str, witness: Option<&Path>) -> Done<Ledger> {
    let store = Datastore::connect(url, &PoolSettings::default()).await?;
    let store = match witness {
        Some(dir) => {
            let dir = dir.to_owned();
            store.fenced(&FenceSettings { dir, instance: None, writers: 16, join: true }).await?
        }
        None => store,
    };
    Ok(Ledger::new(store, LedgerSettings::default()))
}

#[tokio::main]
async fn main() -> Done<()> {
    let folder = tempfile::Builder::new().prefix("flbench").tempdir()?;
    let data = folder.path().join("data");
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
    let server = Embedded::start(&data, &find_binaries(None)?, &[]).await?;
    migrate::run(&server.url(bootstrap::OWNER, bootstrap::DATABASE), &Roles::default()).await?;
    let url = server.url(bootstrap::SERVICE, bootstrap::DATABASE);
    let plain = ledger(&url, None).await?;
    let fenced = ledger(&url, Some(&folder.path().join("witness"))).await?;
    let key_id: KeyId = "bench".parse()?;
    plain.register_key(&KeyRequest::new(key_id.clone())).await?;
    let mut found = Vec::new();
    for (callers, spends) in [(1, 1), (16, 1), (1, BATCH), (4, BATCH)] {
        found.push(measure(&plain, &fenced, &key_id, callers, spends).await?);
    }
    println!("{}", serde_json::to_string_pretty(&json!({ "spends": found }))?);
    plain.datastore().close().await;
    fenced.datastore().close().await;
    server.stop().await?;
    Ok(())
}
