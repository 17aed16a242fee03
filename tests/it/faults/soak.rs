//! A soak: the built program at the highest rate that the machine holds, with sweeps, rotations, reveals and exports beside, killed every now
//! and then, and so is its PostgreSQL. Run by `scripts/soak`, which says how long; docs/RELIABILITY.md says what it shows.
//!
//! The service is killed in the first eighth and the last one only, so that its memory between can be compared; PostgreSQL all along.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use fairledger::db::bootstrap::{DATABASE, OWNER};
use hdrhistogram::Histogram;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::Connection as _;
use tokio::task::JoinSet;

use super::server::Own;
use super::*;

/// Callers, each of which sends one change after the other.
const CALLERS: usize = 64;

/// Bets under one seed, before its rotation.
const BETS: u64 = 50;

/// How long a kill's after-effects may last until latencies count again.
const AFTER_KILL: Duration = Duration::from_secs(1);

/// What the last quarter's memory may be above the second's: caches fill, and allocators keep.
const GROWTH_KB_MAX: u64 = 16 * 1024;

struct Load {
    /// Of the service as it is now.
    caller: RwLock<Caller>,
    told: Arc<Told>,
    stop: AtomicBool,
    /// Nothing was killed just now.
    calm: AtomicBool,
    /// Of changes that began and ended while it was calm.
    latencies: Mutex<Histogram<u64>>,
    acknowledged: AtomicU64,
    /// Resolved by sending again.
    unknown: AtomicU64,
    exports: AtomicU64,
    rotations: AtomicU64,
}

impl Load {
    fn new(caller: Caller, told: Arc<Told>) -> Self {
        Self {
            caller: RwLock::new(caller),
            told,
            stop: AtomicBool::new(false),
            calm: AtomicBool::new(true),
            latencies: Mutex::new(Histogram::new_with_bounds(1, 120_000_000, 3).unwrap()),
            acknowledged: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            exports: AtomicU64::new(0),
            rotations: AtomicU64::new(0),
        }
    }

    fn caller(&self) -> Caller {
        self.caller.read().unwrap().clone()
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Sends a change until it stands, whatever is killed meanwhile.
    async fn make(&self, change: &Change) -> Value {
        let mut again = false;
        loop {
            let (calm, began) = (self.calm.load(Ordering::Relaxed), Instant::now());
            match change.try_send(&self.caller()).await {
                Ok(answer) if change.stands(&answer) => {
                    if calm && !again && self.calm.load(Ordering::Relaxed) {
                        let took_us = u64::try_from(began.elapsed().as_micros()).unwrap();
                        self.latencies.lock().unwrap().saturating_record(took_us);
                    }
                    self.acknowledged.fetch_add(1, Ordering::Relaxed);
                    self.told.note(change, &answer.1);
                    return answer.1;
                }
                Ok((status, answer)) => assert_eq!(status, 503, "{}: {answer}", change.name),
                Err(_) => {}
            }
            if !std::mem::replace(&mut again, true) {
                self.unknown.fetch_add(1, Ordering::Relaxed);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Spends and bets in turn, and rotates.
    async fn play(&self) {
        let body = json!({ "sessionId": Uuid::now_v7() });
        let mut session = self.make(&post("session", "/v1/sessions".into(), body)).await;
        for number in 0.. {
            if self.stopped() {
                return;
            }
            self.make(&post("spend", "/v1/spends".into(), spend())).await;
            let path = format!("/v1/sessions/{}", id(&session));
            let commitment = &session["commitment"];
            let body = json!({ "commitment": commitment, "betRef": format!("{number}"), "game": "dice" });
            self.make(&post("bet", format!("{path}/bets"), body)).await;
            if number % BETS == BETS - 1 {
                let rotate = post("rotate", format!("{path}/rotate"), json!({ "commitment": commitment }));
                session = self.make(&rotate).await["session"].take();
                self.rotations.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Spends under keys that end soon; gives those spends, whose keys have ended.
    async fn spend_under_short_keys(&self, own_url: &str) -> Vec<Value> {
        let mut spent = Vec::new();
        while !self.stopped() {
            let key = format!("s{}", Uuid::new_v4().simple());
            let until = chrono::Utc::now() + Duration::from_secs(5);
            let body = json!({ "redeemUntil": until.to_rfc3339_opts(chrono::SecondsFormat::Micros, true) });
            let opened = Change { name: "key", method: "PUT", path: format!("/v1/keys/{key}"), body };
            // During a kill its time may be over before it is known, and then it is refused.
            if opened.try_send(&self.caller()).await.is_ok_and(|answer| opened.stands(&answer)) {
                for _ in 0..20 {
                    let mut body = spend();
                    body["keyId"] = json!(key);
                    let answer = self.caller().try_call("POST", "/v1/spends", Some(body.clone())).await;
                    if matches!(answer, Ok((200 | 201, _))) {
                        spent.push(body);
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let mut owner = PgConnection::connect(own_url).await.unwrap();
        while sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM fairledger.token_keys WHERE key_id <> 'k' AND state <> 'swept')",
        )
        .fetch_one(&mut owner)
        .await
        .unwrap()
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        spent
    }

    async fn export(&self) {
        while !self.stopped() {
            match self.caller().drain("/v1/records/export?format=ndjson").await {
                Ok(()) => drop(self.exports.fetch_add(1, Ordering::Relaxed)),
                // Broken off, refused or not answered, by a kill.
                Err(error) => assert!(error.status().is_none_or(|status| status == 503), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Waits until a change stands again, and for the callers that waited.
    async fn calm_down(&self) {
        self.make(&post("spend", "/v1/spends".into(), spend())).await;
        tokio::time::sleep(AFTER_KILL).await;
        self.calm.store(true, Ordering::Relaxed);
    }
}

fn post(name: &'static str, path: String, body: Value) -> Change {
    Change { name, method: "POST", path, body }
}

/// Resident memory of a process.
fn resident_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn median(samples: &[u64]) -> u64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

/// Kills and samples until the time is over; gives the samples of memory of the service that lived in the middle, with the kills of both.
async fn kill_now_and_then(own: &mut Own, load: &Load, time: Duration) -> (Vec<u64>, u32, u32) {
    let (began, mut samples, mut killed, mut restarted) = (Instant::now(), Vec::new(), 0, 0);
    let every = (time / 8).min(Duration::from_secs(30));
    let (mut next, pause) = (every / 2, (time / 200).min(Duration::from_secs(1)));
    while began.elapsed() < time {
        tokio::time::sleep(pause).await;
        let at = began.elapsed();
        let in_the_middle = at > time / 8 && at < time * 7 / 8;
        if in_the_middle {
            samples.push(resident_kb(own.service.pid()));
        }
        if at < next {
            continue;
        }
        next = at + every;
        load.calm.store(false, Ordering::Relaxed);
        if in_the_middle {
            let pid = own.server.as_ref().unwrap().pid();
            kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).unwrap();
            own.restart().await;
            restarted += 1;
        } else {
            own.restart_service();
            *load.caller.write().unwrap() = own.caller.clone();
            killed += 1;
        }
        load.calm_down().await;
    }
    (samples, killed, restarted)
}

/// `SOAK_MINUTES` (10), of which parts will do.
fn time() -> Duration {
    let minutes = std::env::var("SOAK_MINUTES").map_or(10.0, |text| text.parse().expect("SOAK_MINUTES is a number"));
    Duration::from_secs_f64(minutes * 60.0)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: scripts/soak"]
async fn soak() {
    let time = time();
    let mut own = Own::start().await;
    let url = own.server.as_ref().unwrap().url(OWNER, DATABASE);
    let load = Arc::new(Load::new(own.caller.clone(), Arc::clone(&own.told)));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let load = Arc::clone(&load);
        callers.spawn(async move { load.play().await });
    }
    callers.spawn({
        let load = Arc::clone(&load);
        async move { load.export().await }
    });
    let began = Instant::now();
    let short = tokio::spawn({
        let load = Arc::clone(&load);
        async move { load.spend_under_short_keys(&url).await }
    });
    let (samples, killed, restarted) = kill_now_and_then(&mut own, &load, time).await;
    let (seconds, acknowledged) = (began.elapsed().as_secs_f64(), load.acknowledged.load(Ordering::Relaxed));
    load.stop.store(true, Ordering::Relaxed);
    callers.join_all().await;
    let short = short.await.unwrap();
    assert!(!short.is_empty(), "nothing was spent under a short key");
    for mut body in short.iter().rev().take(1_000).cloned() {
        body["spendId"] = json!(Uuid::new_v4());
        let (status, answer) = own.caller.call("POST", "/v1/spends", Some(body)).await;
        assert_eq!((status, &answer["code"]), (410, &json!("key_expired")), "I2: {answer}");
    }
    own.told.prove(&mut own.admin().await).await;
    assert!(!own.service.logs().contains("QUARANTINE"));

    let (second, last) = (median(&samples[..samples.len() / 3]), median(&samples[samples.len() * 2 / 3..]));
    let latencies = load.latencies.lock().unwrap();
    let ms = |us: u64| us as f64 / 1_000.0;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (unknown, rotations, exports) = (count(&load.unknown), count(&load.rotations), count(&load.exports));
    let (p50_ms, p99_ms) = (ms(latencies.value_at_quantile(0.5)), ms(latencies.value_at_quantile(0.99)));
    let per_second = acknowledged as f64 / seconds;
    println!(
        "{:#}",
        json!({
            "seconds": seconds, "acknowledged": acknowledged, "per_second": per_second, "unknown_resolved": unknown,
            "rotations": rotations, "exports": exports, "spent_under_swept_keys": short.len(),
            "service_killed": killed, "postgres_killed": restarted,
            "p50_ms": p50_ms, "p99_ms": p99_ms, "max_ms": ms(latencies.max()),
            "memory_early_kb": second, "memory_late_kb": last,
        })
    );
    println!(
        "soak: {acknowledged} changes in {seconds:.0} s ({per_second:.0}/s), p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms; {unknown} resolved by \
         sending again after {} kills; memory {second} kB, then {last} kB; I1 to I4 hold",
        killed + restarted
    );
    assert!(rotations > 0 && exports > 0 && killed > 1 && restarted > 0 && unknown > 0, "something was not tried");
    assert!(last <= second + second / 4 + GROWTH_KB_MAX, "memory grows: {second} kB, then {last} kB");
}
