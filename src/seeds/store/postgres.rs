//! [`SeedStore`] over the ledger's own tables and rules.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use uuid::Uuid;

use super::{PushedRecord, PutSession, SeedStore, SeedStoreError, StoredSession};
use crate::db::bets::BetKind;
use crate::db::details::BetState;
use crate::db::seeds::{ClientSeedSource, LockedSeed, RetiredBy, SeedRow, SeedStatus};
use crate::db::sessions::Origin;
use crate::db::{DbError, Tx};
use crate::gfs::record::GAME_UNBOUND;
use crate::gfs::seed::{Commitment, ServerSeed};
use crate::seeds::ending::unrevealed_yet;
use crate::seeds::ends::RecordRequest;
use crate::seeds::error::{Attempt, settle_it};
use crate::seeds::sessions::PAGE_MAX;
use crate::seeds::values::BetRef;
use crate::seeds::{Seeds, SeedsError, address_group, missing};

/// The store on PostgreSQL.
#[derive(Clone, Debug)]
pub struct PgSeedStore {
    seeds: Seeds,
}

/// One try inside a transaction. Gives the seed that is to be revealed after its commit, if there may be one.
type Tried = Result<Option<i32>, Attempt<SeedStoreError>>;

impl PgSeedStore {
    /// Over the given services. Their limit of pending bets is the limit of records owed in a session.
    pub fn new(seeds: Seeds) -> Self {
        Self { seeds }
    }

    async fn put_in(&self, tx: &mut Tx, session: &PutSession, ttl: Duration, expected: Option<&Commitment>) -> Tried {
        let ttl_seconds = Some(ttl.as_secs_f64());
        let epoch = self.seeds.epoch();
        if expected.is_none()
            && tx.insert_session(session.session_id, None, Origin::Application, epoch, ttl_seconds).await?.is_some()
        {
            self.insert_seed(tx, session, 0).await?;
            return Ok(None);
        }
        let Some(locked) = tx.lock_session(session.session_id).await? else {
            return Err(SeedStoreError::SessionNotFound.into());
        };
        if locked.origin != Origin::Application {
            return Err(SeedStoreError::CommitmentChanged.into());
        }
        if !locked.open {
            return Err(SeedStoreError::SessionEnded.into());
        }
        self.seeds.in_epoch(&locked)?;
        let commitment = session.server_seed.commitment();
        let latest = tx.latest_seed(session.session_id).await?.ok_or_else(|| missing("seed"))?;
        if latest.commitment == commitment {
            // The same seed again: whether it was the expected one or its successor, it is what the caller wants it to be.
            let before =
                if latest.seed_no == 0 { None } else { tx.seed(latest.session_id, latest.seed_no - 1).await? };
            let put_before = expected.copied() == before.map(|before| before.commitment);
            if expected != Some(&commitment) && !put_before {
                return Err(SeedStoreError::CommitmentChanged.into());
            }
            if latest.client_side()?.client_seed != session.client_seed {
                return Err(SeedStoreError::ClientSeedBound.into());
            }
        } else {
            if expected != Some(&latest.commitment) {
                return Err(SeedStoreError::CommitmentChanged.into());
            }
            if let Some(live) = self.seeds.lock_live_seed(tx, &locked).await? {
                if live.pending > 0 {
                    return Err(SeedStoreError::BetsPending.into());
                }
                self.seeds.retire(tx, &live, RetiredBy::Replaced).await?;
            }
            self.insert_seed(tx, session, latest.seed_no + 1).await?;
        }
        tx.extend_session(session.session_id, ttl.as_secs_f64()).await?;
        let before = if latest.commitment == commitment { latest.seed_no - 1 } else { latest.seed_no };
        Ok(Some(before).filter(|before| *before >= 0))
    }

    async fn insert_seed(
        &self,
        tx: &mut Tx,
        session: &PutSession,
        seed_no: i32,
    ) -> Result<(), Attempt<SeedStoreError>> {
        let commitment = session.server_seed.commitment();
        if !tx.insert_commitment(&commitment, session.session_id, seed_no).await? {
            return Err(SeedStoreError::CommitmentUsed.into());
        }
        let inner = &self.seeds.inner;
        let sealed = inner.ring.seal(session.session_id, &commitment, &session.server_seed);
        tx.insert_live_seed(
            session.session_id,
            seed_no,
            &commitment,
            &sealed,
            self.seeds.epoch(),
            None,
            &session.client_seed,
            ClientSeedSource::Application,
            None,
        )
        .await?;
        Ok(())
    }

    async fn reveal_in(&self, tx: &mut Tx, session_id: Uuid, commitment: &Commitment, ttl: Duration) -> Tried {
        let Some(session) = tx.lock_session(session_id).await? else {
            return Err(SeedStoreError::SessionNotFound.into());
        };
        self.seeds.in_epoch(&session)?;
        let place = tx.find_commitment(commitment).await?.filter(|(owner, _)| *owner == session_id);
        let Some((_, seed_no)) = place else { return Err(SeedStoreError::CommitmentChanged.into()) };
        let live = self.seeds.lock_live_seed(tx, &session).await?.filter(|live| live.seed_no == seed_no);
        if let Some(live) = live {
            if live.pending > 0 {
                return Err(SeedStoreError::BetsPending.into());
            }
            self.reveal_live(tx, &live).await?;
        } else {
            let seed = tx.seed(session_id, seed_no).await?.ok_or_else(|| missing("seed"))?;
            if seed.status != SeedStatus::Revealed {
                return Err(SeedStoreError::SeedEnded.into());
            }
        }
        tx.extend_session(session_id, ttl.as_secs_f64()).await?;
        Ok(Some(seed_no))
    }

    /// Has a seed revealed although it may have no bets: the application says that it was shown.
    async fn reveal_live(&self, tx: &mut Tx, live: &LockedSeed) -> Result<(), DbError> {
        tx.reveal_seed(live, RetiredBy::Replaced).await?;
        tx.insert_reveal_due(live).await
    }

    /// Stores the reveal of a seed whose end is committed.
    async fn reveal_due(&self, session_id: Uuid, seed_no: Option<i32>) -> Result<(), SeedStoreError> {
        let Some(seed_no) = seed_no else { return Ok(()) };
        self.seeds.reveal_due(session_id, seed_no).await.map_err(|error| unrevealed_yet(error).into())
    }

    async fn latest(
        &self,
        session_id: Uuid,
    ) -> Result<Option<(SeedRow, bool, chrono::DateTime<chrono::Utc>)>, SeedStoreError> {
        let mut tx = self.seeds.inner.store.snapshot("store.get").await?;
        let Some(session) = tx.session(session_id).await?.filter(|session| session.origin == Origin::Application)
        else {
            return Ok(None);
        };
        let seed = tx.latest_seed(session_id).await?.ok_or_else(|| missing("seed"))?;
        tx.rollback().await;
        Ok(Some((seed, session.open, session.created_at)))
    }

    async fn extend(&self, session_id: Uuid, ttl: Duration) -> Result<(), SeedStoreError> {
        let store = &self.seeds.inner.store;
        let seconds = ttl.as_secs_f64();
        let extended: Result<(), DbError> =
            async { crate::db::transaction!(store, "store.extend", |tx| tx.extend_session(session_id, seconds).await) }
                .await;
        Ok(extended?)
    }
}

#[async_trait]
impl SeedStore for PgSeedStore {
    async fn get(&self, session_id: Uuid, ttl: Option<Duration>) -> Result<Option<StoredSession>, SeedStoreError> {
        let Some((seed, true, created_at)) = self.latest(session_id).await? else { return Ok(None) };
        if let Some(ttl) = ttl {
            self.extend(session_id, ttl).await?;
        }
        let server_seed = self.seeds.inner.ring.open(session_id, &seed.commitment, &seed.sealed)?;
        Ok(Some(StoredSession {
            session_id,
            server_seed,
            commitment: seed.commitment,
            client_seed: seed.client_side()?.client_seed.clone(),
            bets_under_seed: seed.next_nonce,
            created_at,
        }))
    }

    async fn put(
        &self,
        session: &PutSession,
        ttl: Duration,
        expected: Option<&Commitment>,
    ) -> Result<(), SeedStoreError> {
        if session.client_seed.as_str().contains('\0') {
            return Err(SeedStoreError::ClientSeedWithNul);
        }
        let retired: Result<_, SeedStoreError> =
            settle_it!(self.seeds, "store.put", |tx| self.put_in(tx, session, ttl, expected).await);
        self.reveal_due(session.session_id, retired?).await
    }

    async fn reserve_nonce(
        &self,
        session_id: Uuid,
        ttl: Duration,
        expected: &Commitment,
    ) -> Result<u64, SeedStoreError> {
        let (seed, open, _) = self.latest(session_id).await?.ok_or(SeedStoreError::SessionNotFound)?;
        if !open {
            return Err(SeedStoreError::SessionEnded);
        }
        if seed.commitment == *expected && seed.status != SeedStatus::Live {
            return Err(SeedStoreError::SeedEnded);
        }
        self.extend(session_id, ttl).await?;
        // The caller has no name for it. A lost answer leaves a reservation that expires as void.
        let bet_ref = BetRef::parse(&Uuid::new_v4().simple().to_string())
            .map_err(|error| SeedStoreError::Store(SeedsError::invalid("betRef", error)))?;
        Ok(self.seeds.reserve_unbound(session_id, *expected, &bet_ref).await?)
    }

    async fn peek_nonce(&self, session_id: Uuid) -> Result<u64, SeedStoreError> {
        match self.latest(session_id).await? {
            Some((seed, true, _)) => Ok(seed.next_nonce),
            Some((_, false, _)) => Err(SeedStoreError::SessionEnded),
            None => Err(SeedStoreError::SessionNotFound),
        }
    }

    async fn reveal(
        &self,
        session_id: Uuid,
        commitment: &Commitment,
        server_seed: &ServerSeed,
        ttl: Duration,
    ) -> Result<(), SeedStoreError> {
        if server_seed.commitment() != *commitment {
            return Err(SeedStoreError::WrongSeed);
        }
        let retired: Result<_, SeedStoreError> =
            settle_it!(self.seeds, "store.reveal", |tx| self.reveal_in(tx, session_id, commitment, ttl).await);
        self.reveal_due(session_id, retired?).await
    }

    async fn revealed(&self, session_id: Uuid) -> Result<BTreeMap<Commitment, ServerSeed>, SeedStoreError> {
        if let Some((seed, false, _)) = self.latest(session_id).await?
            && seed.status == SeedStatus::Live
        {
            // Its time is over, swept or not.
            self.seeds.end_session(session_id, RetiredBy::Expiry).await?;
        }
        let mut tx = self.seeds.inner.store.snapshot("store.revealed").await?;
        let seeds = tx.seeds(session_id, i64::MAX).await?;
        tx.rollback().await;
        Ok(seeds
            .into_iter()
            .filter_map(|seed| seed.revealed.map(|(server_seed, _)| (seed.commitment, server_seed)))
            .collect())
    }

    async fn push_record(&self, session_id: Uuid, record: &Value) -> Result<(), SeedStoreError> {
        let pushed = PushedRecord::read(record)?;
        let request = RecordRequest { commitment: pushed.commitment, nonce: pushed.nonce, result: pushed.json };
        self.seeds.record(session_id, &request).await?;
        Ok(())
    }

    async fn records(&self, session_id: Uuid, limit: u32) -> Result<Vec<Value>, SeedStoreError> {
        let mut tx = self.seeds.inner.store.snapshot("store.records").await?;
        let (mut records, mut below) = (Vec::new(), None);
        while records.len() < limit as usize {
            let bets = tx.bets_of_session(session_id, below, i64::from(PAGE_MAX)).await?;
            let Some(last) = bets.last() else { break };
            below = Some((last.key.seed_no, last.key.nonce));
            for bet in bets {
                if let BetState::Recorded(recorded) = bet.state
                    && bet.kind == BetKind::Reservation
                    && bet.game == GAME_UNBOUND
                {
                    records.push(recorded.result);
                }
            }
        }
        tx.rollback().await;
        records.truncate(limit as usize);
        Ok(records)
    }

    async fn count_session(&self, address: IpAddr, window: Duration) -> Result<u32, SeedStoreError> {
        let inner = &self.seeds.inner;
        let hash = inner.secret.keyed_hash("store address", &address_group(address));
        let seconds = window.as_secs_f64();
        let counted: Result<_, DbError> = async {
            crate::db::transaction!(inner.store, "store.count_session", |tx| {
                tx.count_session(&hash, i32::MAX, seconds).await
            })
        }
        .await;
        // A full window holds i32::MAX sessions.
        Ok(counted?.map_or(u32::MAX, i32::unsigned_abs))
    }
}
