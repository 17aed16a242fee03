//! Forgetting what cannot matter any more.
//!
//! Keeps I2: a key is marked swept and that is committed; only then, once every transaction that could have seen the key open has ended,
//! is its partition dropped. The waiting is done where the dropping is, by the owner's function in the database. No spend waits for a
//! sweep longer than that function's lock timeout.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::model::Swept;
use super::values::KeyId;
use super::{Key, Ledger, LedgerError};
use crate::db::keys::KeyRow;
use crate::db::{DbError, transaction};

/// Rounds that one call of sweep makes while something is in the way.
const ROUNDS_MAX: u32 = 3;

/// Pause between two rounds, at the most.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// How long a key waits when another one of the same round has waited in vain: what is in the way is most likely the same.
const FURTHER_WAIT: Duration = Duration::from_millis(50);

/// What sweeping did since the process started.
#[derive(Debug, Default)]
pub(super) struct Counters {
    marked: AtomicU64,
    dropped: AtomicU64,
    bytes_freed: AtomicU64,
    waited: AtomicU64,
    failed: AtomicU64,
}

/// What sweeping did since the process started, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepCounts {
    /// Keys marked swept.
    pub marked: u64,
    /// Partitions dropped.
    pub dropped: u64,
    /// Bytes that those had.
    pub bytes_freed: u64,
    /// Tries to drop a partition that had to give way.
    pub waited: u64,
    /// Sweeps that failed.
    pub failed: u64,
}

/// How a try to drop one partition ended.
enum Try {
    Dropped(u64),
    InTheWay,
    AnotherAtWork,
}

impl Ledger {
    /// What sweeping did since the process started.
    pub fn sweep_counts(&self) -> SweepCounts {
        let counters = &self.inner.counters;
        SweepCounts {
            marked: counters.marked.load(Relaxed),
            dropped: counters.dropped.load(Relaxed),
            bytes_freed: counters.bytes_freed.load(Relaxed),
            waited: counters.waited.load(Relaxed),
            failed: counters.failed.load(Relaxed),
        }
    }

    /// Sweeps from time to time until told to stop. Any number of processes may do so: one at a time is at work. A failure is logged,
    /// and the next time is another chance.
    pub async fn sweep_until(&self, stop: CancellationToken) {
        loop {
            // Nothing is changed in quarantine, and a sweeper of its own has nobody else who looks.
            let swept = match self.inner.store.watch().await {
                Err(error) => Err(error.into()),
                Ok(()) if self.inner.store.quarantine().is_some() => Ok(Swept::default()),
                Ok(()) => self.sweep_now().await,
            };
            match swept {
                Ok(_) => {}
                Err(error) => {
                    self.inner.counters.failed.fetch_add(1, Relaxed);
                    tracing::warn!(%error, "sweeping failed");
                }
            }
            // With jitter, so that processes started together do not stay in step.
            let pause = self.settings().sweep_interval.mul_f64(rand::random_range(0.8..1.2));
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    pub(super) async fn sweep_now(&self) -> Result<Swept, LedgerError> {
        let mut swept = Swept::default();
        for round in 1..=ROUNDS_MAX {
            swept.waiting.clear();
            swept.another_at_work = false;
            self.mark(&mut swept).await?;
            self.drop_marked(&mut swept).await?;
            if swept.is_done() || round == ROUNDS_MAX {
                break;
            }
            tokio::time::sleep(PAUSE_MAX.mul_f64(rand::random_range(0.1..1.0))).await;
        }
        for key_id in &swept.waiting {
            tracing::info!(
                key_id = key_id.as_str(),
                "a swept key's spends wait for a transaction that could have seen it open, or for a lock"
            );
        }
        Ok(swept)
    }

    async fn mark(&self, swept: &mut Swept) -> Result<(), LedgerError> {
        let marked: Option<Vec<KeyRow>> = async {
            transaction!(self.inner.store, "sweep.mark", |tx| {
                async {
                    match tx.try_sweep_lock().await? {
                        Some(lock) => tx.mark_swept(&lock).await.map(Some),
                        None => Ok::<_, DbError>(None),
                    }
                }
                .await
            })
        }
        .await?;
        let Some(marked) = marked else {
            swept.another_at_work = true;
            return Ok(());
        };
        for row in marked {
            let key = Key::try_from(row)?;
            tracing::info!(key_id = key.key_id.as_str(), redeem_until = %key.redeem_until, "a key is swept");
            self.inner.counters.marked.fetch_add(1, Relaxed);
            swept.marked.push(key.key_id);
        }
        Ok(())
    }

    async fn drop_marked(&self, swept: &mut Swept) -> Result<(), LedgerError> {
        // Also what was marked earlier: by a process that died, or when something was in the way.
        let rows = transaction!(self.inner.store, "sweep.list", |tx| tx.partitions_to_drop().await)?;
        for row in rows {
            let key_no = row.key_no;
            let key_id = Key::try_from(row)?.key_id;
            let wait = if swept.waiting.is_empty() { self.settings().sweep_wait } else { FURTHER_WAIT };
            match self.try_drop(key_no, wait).await? {
                Try::Dropped(bytes_freed) => self.note_dropped(swept, key_id, bytes_freed),
                Try::InTheWay => {
                    self.inner.counters.waited.fetch_add(1, Relaxed);
                    swept.waiting.push(key_id);
                }
                Try::AnotherAtWork => {
                    swept.another_at_work = true;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn note_dropped(&self, swept: &mut Swept, key_id: KeyId, bytes_freed: u64) {
        tracing::info!(key_id = key_id.as_str(), bytes_freed, "a swept key's spends are forgotten");
        self.inner.counters.dropped.fetch_add(1, Relaxed);
        self.inner.counters.bytes_freed.fetch_add(bytes_freed, Relaxed);
        swept.dropped.insert(key_id, bytes_freed);
    }

    async fn try_drop(&self, key_no: i32, wait: Duration) -> Result<Try, LedgerError> {
        // A transaction of its own, which has seen the mark committed and has written nothing before the function takes its id.
        let tried: Result<Try, DbError> = async {
            transaction!(self.inner.store, "sweep.drop", |tx| {
                async {
                    let Some(lock) = tx.try_sweep_lock().await? else {
                        return Ok::<_, DbError>(Try::AnotherAtWork);
                    };
                    Ok(tx.drop_partition(&lock, key_no, wait).await?.map_or(Try::InTheWay, Try::Dropped))
                }
                .await
            })
        }
        .await;
        match tried {
            Err(DbError::TimedOut(_)) => Ok(Try::InTheWay),
            other => Ok(other?),
        }
    }
}
