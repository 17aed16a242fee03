//! [`SeedStore`] in memory, for tests of applications. The rules are those of the trait; nothing survives the process.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde_json::Value;
use uuid::Uuid;

use super::{PushedRecord, PutSession, SeedStore, SeedStoreError, StoredSession};
use crate::gfs::seed::{ClientSeed, Commitment, NONCE_MAX, ServerSeed};
use crate::seeds::{SeedsSettings, address_group};

/// The store in memory.
#[derive(Debug, Default)]
pub struct MemorySeedStore {
    state: Mutex<State>,
    settings: SeedsSettings,
}

#[derive(Debug, Default)]
struct State {
    sessions: HashMap<Uuid, Session>,
    commitments: HashMap<Commitment, Uuid>,
    addresses: HashMap<[u8; 9], (Instant, u32)>,
}

#[derive(Debug)]
struct Session {
    created_at: DateTime<Utc>,
    expires_at: Instant,
    /// Oldest first; never empty.
    seeds: Vec<Seed>,
}

#[derive(Debug)]
struct Seed {
    server_seed: ServerSeed,
    commitment: Commitment,
    client_seed: ClientSeed,
    status: Status,
    bets: Vec<Bet>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Live,
    Revealed,
    Discarded,
}

#[derive(Debug)]
enum Bet {
    Owed { expires_at: Instant },
    Void(String),
    Recorded(Value),
}

impl Seed {
    fn new(session: &PutSession) -> Self {
        Self {
            server_seed: session.server_seed.clone(),
            commitment: session.server_seed.commitment(),
            client_seed: session.client_seed.clone(),
            status: Status::Live,
            bets: Vec::new(),
        }
    }

    /// Voids what expired, and counts what is still owed.
    fn owed(&mut self) -> usize {
        let now = Instant::now();
        let mut owed = 0;
        for bet in &mut self.bets {
            match bet {
                Bet::Owed { expires_at } if *expires_at <= now => *bet = Bet::Void("expired".to_owned()),
                Bet::Owed { .. } => owed += 1,
                Bet::Void(_) | Bet::Recorded(_) => {}
            }
        }
        owed
    }

    fn end(&mut self) {
        self.status = if self.bets.is_empty() { Status::Discarded } else { Status::Revealed };
    }
}

impl Session {
    fn latest(&mut self) -> &mut Seed {
        // Made with one seed; seeds are only ever added.
        self.seeds.last_mut().unwrap_or_else(|| unreachable!("a session has a seed"))
    }

    /// A time to live that is over ends in a reveal.
    fn is_open(&mut self) -> bool {
        let open = self.expires_at > Instant::now();
        let latest = self.latest();
        if !open && latest.status == Status::Live {
            for bet in &mut latest.bets {
                if let Bet::Owed { expires_at } = bet {
                    let reason = if *expires_at <= Instant::now() { "expired" } else { "abandoned" };
                    *bet = Bet::Void(reason.to_owned());
                }
            }
            latest.end();
        }
        open
    }
}

impl MemorySeedStore {
    /// With other limits than the defaults.
    pub fn new(settings: SeedsSettings) -> Self {
        Self { state: Mutex::default(), settings }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn open_session(&mut self, session_id: Uuid) -> Result<&mut Session, SeedStoreError> {
        let session = self.sessions.get_mut(&session_id).ok_or(SeedStoreError::SessionNotFound)?;
        if session.is_open() { Ok(session) } else { Err(SeedStoreError::SessionEnded) }
    }
}

#[async_trait]
impl SeedStore for MemorySeedStore {
    async fn get(&self, session_id: Uuid, ttl: Option<Duration>) -> Result<Option<StoredSession>, SeedStoreError> {
        let mut state = self.state();
        let session = match state.open_session(session_id) {
            Ok(session) => session,
            Err(SeedStoreError::SessionNotFound | SeedStoreError::SessionEnded) => return Ok(None),
            Err(error) => return Err(error),
        };
        if let Some(ttl) = ttl {
            session.expires_at = Instant::now() + ttl;
        }
        let created_at = session.created_at;
        let seed = session.latest();
        Ok(Some(StoredSession {
            session_id,
            server_seed: seed.server_seed.clone(),
            commitment: seed.commitment,
            client_seed: seed.client_seed.clone(),
            bets_under_seed: seed.bets.len() as u64,
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
        let mut state = self.state();
        let commitment = session.server_seed.commitment();
        let used = state.commitments.contains_key(&commitment);
        let expires_at = Instant::now() + ttl;
        if expected.is_none() && !state.sessions.contains_key(&session.session_id) {
            if used {
                return Err(SeedStoreError::CommitmentUsed);
            }
            let seeds = vec![Seed::new(session)];
            state.sessions.insert(session.session_id, Session { created_at: Utc::now(), expires_at, seeds });
        } else {
            let stored = state.open_session(session.session_id)?;
            let before = stored.seeds.iter().rev().nth(1).map(|seed| seed.commitment);
            let latest = stored.latest();
            if latest.commitment == commitment {
                if expected != Some(&commitment) && expected.copied() != before {
                    return Err(SeedStoreError::CommitmentChanged);
                }
                if latest.client_seed != session.client_seed {
                    return Err(SeedStoreError::ClientSeedBound);
                }
            } else {
                if expected != Some(&latest.commitment) {
                    return Err(SeedStoreError::CommitmentChanged);
                }
                if latest.status == Status::Live && latest.owed() > 0 {
                    return Err(SeedStoreError::BetsPending);
                }
                if used {
                    return Err(SeedStoreError::CommitmentUsed);
                }
                if latest.status == Status::Live {
                    latest.end();
                }
                stored.seeds.push(Seed::new(session));
            }
            stored.expires_at = expires_at;
        }
        state.commitments.insert(commitment, session.session_id);
        Ok(())
    }

    async fn reserve_nonce(
        &self,
        session_id: Uuid,
        ttl: Duration,
        expected: &Commitment,
    ) -> Result<u64, SeedStoreError> {
        let mut state = self.state();
        let session = state.open_session(session_id)?;
        let seed = session.latest();
        if seed.commitment != *expected {
            return Err(SeedStoreError::CommitmentChanged);
        }
        if seed.status != Status::Live {
            return Err(SeedStoreError::SeedEnded);
        }
        if seed.owed() >= self.settings.pending_max as usize {
            return Err(SeedStoreError::TooManyPending);
        }
        let nonce = seed.bets.len() as u64;
        if nonce >= NONCE_MAX {
            return Err(SeedStoreError::NonceExhausted);
        }
        seed.bets.push(Bet::Owed { expires_at: Instant::now() + self.settings.reservation_ttl });
        session.expires_at = Instant::now() + ttl;
        Ok(nonce)
    }

    async fn peek_nonce(&self, session_id: Uuid) -> Result<u64, SeedStoreError> {
        Ok(self.state().open_session(session_id)?.latest().bets.len() as u64)
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
        let mut state = self.state();
        let session = state.sessions.get_mut(&session_id).ok_or(SeedStoreError::SessionNotFound)?;
        let open = session.is_open();
        let seed = session.seeds.iter_mut().find(|seed| seed.commitment == *commitment);
        let seed = seed.ok_or(SeedStoreError::CommitmentChanged)?;
        let owed = seed.owed() > 0;
        match seed.status {
            Status::Live if owed => return Err(SeedStoreError::BetsPending),
            Status::Live => seed.status = Status::Revealed,
            Status::Revealed => {}
            Status::Discarded => return Err(SeedStoreError::SeedEnded),
        }
        if open {
            session.expires_at = Instant::now() + ttl;
        }
        Ok(())
    }

    async fn revealed(&self, session_id: Uuid) -> Result<BTreeMap<Commitment, ServerSeed>, SeedStoreError> {
        let mut state = self.state();
        let Some(session) = state.sessions.get_mut(&session_id) else { return Ok(BTreeMap::new()) };
        session.is_open();
        let revealed = session.seeds.iter().filter(|seed| seed.status == Status::Revealed);
        Ok(revealed.map(|seed| (seed.commitment, seed.server_seed.clone())).collect())
    }

    async fn push_record(&self, session_id: Uuid, record: &Value) -> Result<(), SeedStoreError> {
        let pushed = PushedRecord::read(record)?;
        let mut state = self.state();
        let session = state.sessions.get_mut(&session_id).ok_or(SeedStoreError::SessionNotFound)?;
        session.is_open();
        let seed = session.seeds.iter_mut().find(|seed| seed.commitment == pushed.commitment);
        let seed = seed.ok_or(SeedStoreError::NonceNotReserved)?;
        seed.owed();
        let place = usize::try_from(pushed.nonce).map_err(|_| SeedStoreError::NonceNotReserved)?;
        match seed.bets.get_mut(place) {
            None => Err(SeedStoreError::NonceNotReserved),
            Some(Bet::Void(reason)) => Err(SeedStoreError::Void(reason.clone())),
            Some(Bet::Recorded(stored)) if stored == pushed.json.value() => Ok(()),
            Some(Bet::Recorded(_)) => Err(SeedStoreError::RecordExists),
            Some(bet @ Bet::Owed { .. }) => {
                *bet = Bet::Recorded(pushed.json.value().clone());
                Ok(())
            }
        }
    }

    async fn records(&self, session_id: Uuid, limit: u32) -> Result<Vec<Value>, SeedStoreError> {
        let state = self.state();
        let Some(session) = state.sessions.get(&session_id) else { return Ok(Vec::new()) };
        let newest_first = session.seeds.iter().rev().flat_map(|seed| seed.bets.iter().rev());
        let records = newest_first.filter_map(|bet| match bet {
            Bet::Recorded(record) => Some(record.clone()),
            Bet::Owed { .. } | Bet::Void(_) => None,
        });
        Ok(records.take(limit as usize).collect())
    }

    async fn count_session(&self, address: IpAddr, window: Duration) -> Result<u32, SeedStoreError> {
        let mut state = self.state();
        let now = Instant::now();
        let (started, count) = state.addresses.entry(address_group(address)).or_insert((now, 0));
        if started.elapsed() >= window {
            (*started, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        Ok(*count)
    }
}
