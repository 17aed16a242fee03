//! Callers that call one after the other for a time, and what that took.

use std::future::Future;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::Done;

/// What one run measured.
#[derive(Clone, Debug, Serialize)]
pub struct Load {
    pub callers: usize,
    pub calls: u64,
    /// Calls that did something for the first time.
    pub fresh: u64,
    pub rate_per_s: f64,
    pub p50_us: u64,
    pub p99_us: u64,
    /// Of this process and all its children: PostgreSQL and Redis.
    pub cpu_s_per_million: f64,
}

/// Which of a caller's calls send again what the call before sent.
#[derive(Clone, Copy, Debug)]
pub struct Repeats(pub Option<u64>);

impl Repeats {
    /// The number that a call is about: its own, or the one before.
    pub fn number(self, call: u64) -> u64 {
        match self.0 {
            Some(every) if call > 0 && call.is_multiple_of(every) => call - 1,
            _ => call,
        }
    }
}

/// Has `callers` call for a time. A call gets its caller's number and its own, and says whether it did something for the first time.
pub async fn load<C, F>(callers: usize, time: Duration, call: C) -> Done<Load>
where
    C: Fn(u64, u64) -> F + Clone + Send + 'static,
    F: Future<Output = Done<bool>> + Send,
{
    let cpu_before = cpu_seconds()?;
    let started = Instant::now();
    let until = started + time;
    let tasks: Vec<_> = (0..callers as u64)
        .map(|caller| {
            let call = call.clone();
            tokio::spawn(async move {
                let mut times_us = Histogram::<u32>::new_with_bounds(1, 60_000_000, 2)?;
                let (mut number, mut fresh) = (0, 0);
                while Instant::now() < until {
                    let began = Instant::now();
                    fresh += u64::from(call(caller, number).await?);
                    times_us.saturating_record(began.elapsed().as_micros() as u64);
                    number += 1;
                }
                Done::Ok((times_us, number, fresh))
            })
        })
        .collect();
    let mut times_us = Histogram::<u32>::new_with_bounds(1, 60_000_000, 2)?;
    let (mut calls, mut fresh) = (0, 0);
    for task in tasks {
        let (times, number, of_them) = task.await??;
        times_us.add(times)?;
        calls += number;
        fresh += of_them;
    }
    let took = started.elapsed().as_secs_f64();
    let cpu = cpu_seconds()? - cpu_before;
    Ok(Load {
        callers,
        calls,
        fresh,
        rate_per_s: (calls as f64 / took).round(),
        p50_us: times_us.value_at_quantile(0.5),
        p99_us: times_us.value_at_quantile(0.99),
        cpu_s_per_million: (cpu / calls.max(1) as f64 * 1e7).round() / 10.0,
    })
}

/// CPU time of this process and everything that it started, in seconds.
pub fn cpu_seconds() -> Done<f64> {
    // Kernels that matter here count in hundredths of a second.
    const TICKS_PER_S: f64 = 100.0;
    let mut processes = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // It may have ended since.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |place: usize| fields.get(place).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        // Parent; user and system time of its own and of children that ended.
        processes.push((pid, number(1) as u32, (11..=14).map(number).sum::<u64>()));
    }
    let (mut ours, mut ticks) = (vec![std::process::id()], 0);
    while let Some(parent) = ours.pop() {
        for &(pid, of, used) in &processes {
            if pid == parent {
                ticks += used;
            }
            if of == parent {
                ours.push(pid);
            }
        }
    }
    Ok(ticks as f64 / TICKS_PER_S)
}
