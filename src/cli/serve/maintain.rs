//! Maintenance while the service runs: often, each time shortly, never two services in step.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::http::metrics::Metrics;
use crate::seeds::{Maintained, Seeds, SeedsSettings};

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The shortest pause, also between two rounds where the first left something over.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Runs until the stop, and then writes down which sessions were used last. A failure is logged and tried again.
pub(super) async fn run(seeds: Seeds, metrics: Arc<Metrics>, stop: CancellationToken) {
    run_until(&seeds, &metrics, stop).await;
    if let Err(error) = seeds.write_marks().await {
        tracing::warn!(%error, "which sessions were used last was not written down: they may count as idle a little early");
    }
}

async fn run_until(seeds: &Seeds, metrics: &Metrics, stop: CancellationToken) {
    let usual = usual_pause(seeds.settings());
    loop {
        let done = tokio::select! {
            // What is under way is rolled back.
            () = stop.cancelled() => return,
            done = async {
                // Nothing is changed in quarantine.
                if seeds.datastore().quarantine().is_some() { Ok(Maintained::default()) } else { seeds.maintain().await }
            } => done,
        };
        let pause = match done {
            Ok(done) => {
                metrics.maintained(&done);
                if done != Maintained::default() {
                    tracing::debug!(?done, "maintenance");
                }
                // Rows that cannot be ended stay where they are found: without progress there is no hurry.
                if done.more && ended_something(&done) { PAUSE_MIN } else { usual }
            }
            Err(error) => {
                metrics.maintenance_failed();
                tracing::warn!(%error, "maintenance failed and is tried again");
                usual
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(jittered(pause)) => {}
        }
    }
}

/// How often the time is written down up to which all bets are committed.
const HORIZON_PAUSE: Duration = Duration::from_secs(1);

/// How long that may take.
const HORIZON_MAX: Duration = Duration::from_secs(60);

/// Keeps that time going until the stop.
pub(super) async fn keep_horizon(seeds: Seeds, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(jittered(HORIZON_PAUSE)) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            // A database whose host vanished says nothing.
            done = tokio::time::timeout(HORIZON_MAX, seeds.advance_horizon()) => match done {
                Ok(Ok(_)) => {}
                // Readers of a replica see by their answers how far behind it is.
                Ok(Err(error)) => tracing::debug!(%error, "the horizon was not advanced and is tried again"),
                Err(_) => tracing::debug!("the horizon was not advanced in time and is tried again"),
            }
        }
    }
}

fn ended_something(done: &Maintained) -> bool {
    done.recovered + done.closed + done.expired_sessions + done.expired_reservations + done.revealed > 0
}

/// A quarter of the shortest time that maintenance watches over, so that what is due is not long overdue.
fn usual_pause(settings: &SeedsSettings) -> Duration {
    (settings.idle_after.min(settings.reservation_ttl) / 4).clamp(PAUSE_MIN, PAUSE_MAX)
}

/// Between a half and the whole of it.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_follow_the_shortest_time_within_bounds() {
        let pause = |idle_after, reservation_ttl| {
            usual_pause(&SeedsSettings { idle_after, reservation_ttl, ..SeedsSettings::default() })
        };
        let day = Duration::from_secs(86_400);
        assert_eq!(pause(day, day), PAUSE_MAX);
        assert_eq!(pause(day, Duration::from_secs(4)), Duration::from_secs(1));
        assert_eq!(pause(Duration::from_millis(10), day), PAUSE_MIN);
        for _ in 0..100 {
            let pause = jittered(PAUSE_MAX);
            assert!((PAUSE_MAX / 2..=PAUSE_MAX).contains(&pause), "{pause:?}");
        }
    }
}
