//! Sealing every seed anew under the first key of the ring, so that an old key can go.
//!
//! Keeps I7 (a seed is opened and compared with its commitment before its new seal is stored) and I12 (bounded batches, each a
//! transaction of its own; a bet waits for one batch at the most). Needs the owner's rights: the service may not touch a stored seal.
//! Services may work meanwhile, if their rings have both keys.

use std::time::Duration;

use super::{KeyRing, StartError, register_ring};
use crate::db::{Datastore, DbError, transaction};

/// Seeds sealed anew in one transaction, of each table.
const BATCH: i64 = 100;

/// How often it looks again for seeds that were in use each time.
const LOOKS_MAX: u32 = 200;

/// How long it waits before it looks again.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// A key of the database and how many seeds, next ones included, are sealed under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// Its name.
    pub key_id: String,
    /// Seeds under it.
    pub seeds: u64,
}

/// Registers the ring's keys, refuses a ring that cannot open what is stored, and counts the seeds under each key.
///
/// # Errors
/// See [`StartError`].
pub async fn key_uses(store: &Datastore, ring: &KeyRing) -> Result<Vec<KeyUse>, StartError> {
    transaction!(store, "reseal.count", |tx| {
        async {
            register_ring(tx, ring).await?;
            let uses = tx.seeds_by_key().await?;
            Ok(uses.into_iter().map(|(key_id, seeds)| KeyUse { key_id, seeds }).collect())
        }
        .await
    })
}

/// Seals every seed under `key_id` anew under the ring's first key; tells `progress` how many each batch did. Ends when none is left
/// or when those that are left stay locked by others.
///
/// # Errors
/// The database's, and corruption: a seed that does not open or is not the committed one. What was done before stays done.
pub async fn reseal(store: &Datastore, ring: &KeyRing, key_id: &str, progress: impl Fn(u64)) -> Result<(), DbError> {
    let mut looks = 0;
    while looks < LOOKS_MAX {
        let batch = transaction!(store, "reseal", |tx| {
            async {
                let seeds = tx.seeds_to_reseal(key_id, BATCH).await?;
                for seed in &seeds {
                    let opened = ring.open(seed.session_id, &seed.commitment, &seed.sealed)?;
                    tx.reseal(seed, &ring.seal(seed.session_id, &seed.commitment, &opened)).await?;
                }
                Ok::<_, DbError>(seeds.len() as u64)
            }
            .await
        })?;
        if batch > 0 {
            looks = 0;
            progress(batch);
            continue;
        }
        // None, or only such as are in use this moment.
        let left = transaction!(store, "reseal.left", |tx| tx.seed_key_in_use(key_id).await)?;
        if !left {
            return Ok(());
        }
        looks += 1;
        tokio::time::sleep(LOOK_PAUSE).await;
    }
    Ok(())
}
