//! Sessions, seeds, bets and rounds: the rules by which a bet can be checked for ever.
//!
//! Keeps I3 to I11. Every change is one transaction of the datastore; what an answer tells is committed before it leaves.
//!
//! | file | holds |
//! |---|---|
//! | `sessions` | creating and looking at sessions, seeds and commitments |
//! | `ending` | what ends a live seed: rotation, client-seed change, closing |
//! | `bets` | taking a bet: played at once, as a concealed round, or as a reservation for an outside game |
//! | `group` | the same for many callers in one transaction |
//! | `ends` | what ends a pending bet: its record or its void; settlements |
//! | `rounds` | steps and the close of a round |
//! | `recovery` | moving sessions into the epoch that a recovery opened |
//! | `maintenance` | what happens by itself: idle sessions, expired reservations |
//! | `verify` | whether a stored bet is what its revealed seed gives |
//! | `reseal` | sealing every seed anew under the first key of the ring |
//! | `store` | the `SeedStore` trait for applications that bring their own seeds |
//! | `answer` | from stored rows to records and answers |
//! | `model`, `values`, `error` | answers, checked values, refusals |
//! | `seal` | server seeds at rest |

mod answer;
mod bets;
mod ending;
mod ends;
pub mod error;
mod group;
mod maintenance;
pub mod model;
mod recovery;
pub mod reseal;
mod rounds;
pub mod seal;
mod sessions;
pub mod store;
pub mod values;
pub mod verify;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::AtomicI32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use uuid::Uuid;
use zeroize::Zeroizing;

pub(crate) use answer::{bet_answer, round_outcome, step_view};
pub use bets::{BetRequest, GameRequest, ReservationRequest, Wager};
pub use ending::{ClientSeedRequest, RotateRequest};
pub use ends::{RecordRequest, SettlementRequest, VoidRequest};
pub use error::SeedsError;
pub use maintenance::Maintained;
pub use rounds::{CloseOutcome, CloseRequest, Disclose, StepRequest};
pub use seal::{KeyRing, KeyRingError};
pub use sessions::{PAGE_DEFAULT, PAGE_MAX, SessionRequest};

pub use crate::db::group::GroupSettings;
use crate::db::group::{Group, GroupStats, Routing};
use crate::db::{Datastore, DbError, corrupt, transaction};
use crate::gfs::signature::SigningKey;
use group::BetGroup;

/// Limits and times of sessions and bets.
#[derive(Clone, Debug, PartialEq)]
pub struct SeedsSettings {
    /// Sessions that nobody used for so long are closed.
    pub idle_after: Duration,
    /// A reservation without a record is void after so long.
    pub reservation_ttl: Duration,
    /// Bets pending in one session at the most.
    pub pending_max: u32,
    /// Steps in one round at the most.
    pub steps_max: u32,
    /// Sessions that one address may start in its window.
    pub sessions_per_address_max: u32,
    /// Length of that window.
    pub address_window: Duration,
    /// Bets of many callers are committed together; none: each in a transaction of its own.
    pub group: Option<GroupSettings>,
}

impl Default for SeedsSettings {
    fn default() -> Self {
        Self {
            idle_after: Duration::from_secs(24 * 60 * 60),
            reservation_ttl: Duration::from_secs(60 * 60),
            pending_max: 16,
            steps_max: 1_000,
            sessions_per_address_max: 30,
            address_window: Duration::from_secs(24 * 60 * 60),
            group: Some(GroupSettings::default()),
        }
    }
}

/// The service's own secret, for address hashes and page tokens.
#[derive(Clone)]
pub struct ServiceSecret(Arc<Zeroizing<[u8; 32]>>);

impl ServiceSecret {
    /// From 32 random bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Arc::new(Zeroizing::new(bytes)))
    }

    /// A keyed hash for one purpose: HMAC-SHA256 over the purpose and the text, apart by a zero byte.
    pub fn keyed_hash(&self, purpose: &str, text: &[u8]) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.as_slice())
            // HMAC takes keys of any length.
            .unwrap_or_else(|_| unreachable!("an HMAC key of 32 bytes"));
        mac.update(purpose.as_bytes());
        mac.update(&[0]);
        mac.update(text);
        mac.finalize().into_bytes().into()
    }

    /// Bytes as a token that nobody else can make or change, good only for this purpose and in this context.
    pub(crate) fn seal_token(&self, purpose: &str, context: &[u8], payload: &[u8]) -> String {
        let token = [payload, &self.token_seal(purpose, context, payload)].concat();
        URL_SAFE_NO_PAD.encode(token)
    }

    /// The bytes of such a token; none when it is not one of this purpose and context.
    pub(crate) fn open_token<const N: usize>(&self, purpose: &str, context: &[u8], token: &str) -> Option<[u8; N]> {
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (payload, seal) = bytes.split_first_chunk::<N>()?;
        bool::from(self.token_seal(purpose, context, payload).as_slice().ct_eq(seal)).then_some(*payload)
    }

    fn token_seal(&self, purpose: &str, context: &[u8], payload: &[u8]) -> [u8; 16] {
        let length = (context.len() as u64).to_be_bytes();
        let hash = self.keyed_hash(purpose, &[length.as_slice(), context, payload].concat());
        let mut seal = [0; 16];
        seal.copy_from_slice(&hash[..16]);
        seal
    }
}

impl std::fmt::Debug for ServiceSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServiceSecret(..)")
    }
}

/// A key that signs, with its number in the database.
struct Signing {
    key: SigningKey,
    signing_key_no: i32,
}

/// Sessions, seeds and bets over one database. Cheap to clone.
#[derive(Clone)]
pub struct Seeds {
    inner: Arc<Inner>,
    /// None in the copy that the group itself works with.
    group: Option<Arc<Group<BetGroup>>>,
}

struct Inner {
    store: Datastore,
    ring: KeyRing,
    secret: ServiceSecret,
    signing: Option<Signing>,
    settings: SeedsSettings,
    /// The epoch that every open session is known to have been moved to.
    moved: AtomicI32,
    /// How far maintenance has come with moving them.
    recovering: Mutex<Option<recovery::Place>>,
    /// Sessions seen in use and not yet written down.
    seen: Mutex<HashSet<Uuid>>,
}

impl std::fmt::Debug for Seeds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seeds").field("ring", &self.inner.ring).finish_non_exhaustive()
    }
}

/// Why the service does not start on this database with these keys.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Seeds are sealed under a key that is not on the ring.
    #[error("seeds in the database are sealed under key {0:?}, which is not among the seed keys given: add it")]
    KeyMissing(String),
    /// A key on the ring is not the one of that name.
    #[error(
        "seed key {0:?} is not the key of that name that the database knows: give the right one, or name the new one otherwise"
    )]
    KeyWrong(String),
    /// The database.
    #[error(transparent)]
    Db(#[from] DbError),
}

impl crate::db::MaybeConflict for StartError {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Db(error) if error.is_conflict())
    }
}

impl Seeds {
    /// Starts on a migrated database: registers the keys and refuses a ring that cannot open what is stored.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(
        store: Datastore,
        ring: KeyRing,
        secret: ServiceSecret,
        signing_key: Option<SigningKey>,
        settings: SeedsSettings,
    ) -> Result<Self, StartError> {
        let signer = signing_key.as_ref().map(SigningKey::signer);
        let (signing_key_no, epoch) =
            // Nothing of it is acknowledged to anybody, and it is needed for reading too, whatever the database lacks.
            transaction!(store.unfenced(), "seeds.start", |tx| start_in(tx, &ring, signer.as_ref()).await)?;
        store.saw_epoch(epoch);
        let signing = signing_key.zip(signing_key_no).map(|(key, signing_key_no)| Signing { key, signing_key_no });
        let seen = Mutex::new(HashSet::new());
        let inner = Arc::new(Inner {
            store,
            ring,
            secret,
            signing,
            settings,
            moved: AtomicI32::new(0),
            recovering: Mutex::default(),
            seen,
        });
        let alone = Self { inner: Arc::clone(&inner), group: None };
        let group = inner.settings.group.clone().map(|settings| {
            Arc::new(Group::new(inner.store.clone(), BetGroup::new(alone), settings, Routing::ByRoute))
        });
        Ok(Self { inner, group })
    }

    /// What committing in groups did so far; none when bets go alone.
    pub fn group_stats(&self) -> Option<GroupStats> {
        self.group.as_ref().map(|group| group.stats())
    }

    /// Takes no more bets, and commits those that wait.
    pub async fn stop(&self) {
        if let Some(group) = &self.group {
            group.close().await;
        }
    }

    /// A key that some seed is sealed under and that is not on the ring: `seed-keys rotate` ran with one that this service has not.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn missing_key(&self) -> Result<Option<String>, DbError> {
        let mut tx = self.inner.store.snapshot("seed_keys.look").await?;
        let keys = tx.seed_keys().await?;
        tx.rollback().await;
        let missing =
            keys.into_iter().find(|(key_id, value, used)| *used && self.inner.ring.check(key_id, value).is_none());
        Ok(missing.map(|(key_id, ..)| key_id))
    }

    /// The datastore beneath.
    pub fn datastore(&self) -> &Datastore {
        &self.inner.store
    }

    /// The secret, for what reads beside this.
    pub(crate) fn secret(&self) -> &ServiceSecret {
        &self.inner.secret
    }

    /// Limits and times in force.
    pub fn settings(&self) -> &SeedsSettings {
        &self.inner.settings
    }

    /// Notes that a session is in use. Written down by [`Seeds::maintain`], many at once.
    fn saw(&self, session_id: Uuid) {
        self.inner.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(session_id);
    }
}

async fn start_in(
    tx: &mut crate::db::Tx,
    ring: &KeyRing,
    signer: Option<&[u8; 32]>,
) -> Result<(Option<i32>, i32), StartError> {
    register_ring(tx, ring).await?;
    let signing_key_no = match signer {
        Some(signer) => Some(tx.register_signing_key(signer).await?),
        None => None,
    };
    Ok((signing_key_no, tx.current_epoch().await?))
}

/// Registers the keys of the ring, and refuses one that cannot open what is stored.
async fn register_ring(tx: &mut crate::db::Tx, ring: &KeyRing) -> Result<(), StartError> {
    for (key_id, check_value) in ring.check_values() {
        tx.register_seed_key(key_id, &check_value).await?;
    }
    for (key_id, check_value, used) in tx.seed_keys().await? {
        match ring.check(&key_id, &check_value) {
            Some(true) => {}
            Some(false) => return Err(StartError::KeyWrong(key_id)),
            None if used => return Err(StartError::KeyMissing(key_id)),
            None => {}
        }
    }
    Ok(())
}

/// What an address counts as: IPv6 by its /64, an IPv4-mapped one as IPv4. Anything closer names one customer many times over.
fn address_group(address: IpAddr) -> [u8; 9] {
    let mut group = [0; 9];
    match address.to_canonical() {
        IpAddr::V4(address) => {
            group[0] = 4;
            group[1..5].copy_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            group[0] = 6;
            group[1..9].copy_from_slice(&address.octets()[..8]);
        }
    }
    group
}

/// A row that must be there by the rules and is not.
fn missing(what: &'static str) -> DbError {
    corrupt(what, "a row that must be there is missing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_count_by_customer() {
        let group = |text: &str| address_group(text.parse().unwrap());
        assert_eq!(group("192.0.2.1"), group("::ffff:192.0.2.1"));
        assert_ne!(group("192.0.2.1"), group("192.0.2.2"));
        assert_eq!(group("2001:db8:1:2::1"), group("2001:db8:1:2:ffff::9"));
        assert_ne!(group("2001:db8:1:2::1"), group("2001:db8:1:3::1"));
    }
}
