//! Creating and looking at sessions, seeds and commitments.
//!
//! Keeps I5: both commitments and their times are durable before anyone is shown them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use uuid::Uuid;

use super::answer::{bet_answer, next_seed_view, seed_view};
use super::error::{Attempt, SeedsError, settle_it};
use super::model::{BetPage, CommitmentView, RevealedSeed, SeedList, SessionCreated, SessionPage, View};
use super::values::{PlayerRef, Timestamp};
use super::{Seeds, address_group, missing};
use crate::db::seeds::ClientSeedSource;
use crate::db::sessions::Origin;
use crate::db::signing_keys::SigningKeyRow;
use crate::db::{Tx, corrupt};
use crate::gfs::seed::{ClientSeed, Commitment, ServerSeed};

/// Rows on a page at the most.
pub const PAGE_MAX: u32 = 500;

/// Rows on a page when the caller does not say.
pub const PAGE_DEFAULT: u32 = 50;

/// Seeds of one session that are listed at the most: the newest.
const SEEDS_LISTED_MAX: i64 = 10_000;

/// What the page tokens of a session's bets are sealed for.
const PAGE_PURPOSE: &str = "page of a session's records";

/// A new session.
#[derive(Clone, Debug, Default)]
pub struct SessionRequest {
    /// Its id, which makes the request repeatable; made here without one.
    pub session_id: Option<Uuid>,
    /// Where the player comes from, for the cap.
    pub client_address: Option<IpAddr>,
    /// The operator's name for the player.
    pub player_ref: Option<PlayerRef>,
}

impl Seeds {
    /// Creates a session with a live seed and a committed next one. The same id again gets the session as it is.
    ///
    /// # Errors
    /// In this order of precedence: [`SeedsError::SessionExistsWithDifferentContent`], [`SeedsError::TooManySessions`]; and the
    /// database's.
    pub async fn create_session(&self, request: &SessionRequest) -> Result<SessionCreated, SeedsError> {
        let session_id = request.session_id.unwrap_or_else(Uuid::now_v7);
        settle_it!(self, "session.create", |tx| self.create_session_in(tx, session_id, request).await)
    }

    async fn create_session_in(
        &self,
        tx: &mut Tx,
        session_id: Uuid,
        request: &SessionRequest,
    ) -> Result<SessionCreated, Attempt> {
        let player_ref = request.player_ref.as_ref().map(PlayerRef::as_str);
        let epoch = self.epoch();
        let created = tx.insert_session(session_id, player_ref, Origin::Service, epoch, None).await?;
        if created.is_none() {
            // Under its lock, so that the view's parts belong together.
            let session = tx.lock_session(session_id).await?.ok_or_else(|| missing("session"))?;
            if session.player_ref.as_deref() != player_ref || session.origin != Origin::Service {
                return Err(SeedsError::SessionExistsWithDifferentContent.into());
            }
            self.in_epoch(&session)?;
            return Ok(SessionCreated { view: self.view_in(tx, session_id).await?, replayed: true });
        }
        if let Some(address) = request.client_address {
            self.count_session_in(tx, address).await?;
        }
        let seed = ServerSeed::generate();
        let commitment = seed.commitment();
        if !tx.insert_commitment(&commitment, session_id, 0).await? {
            return Err(corrupt("commitment", "256 random bits came twice: the random source is broken").into());
        }
        let sealed = self.inner.ring.seal(session_id, &commitment, &seed);
        let client_seed = ClientSeed::generate();
        tx.insert_live_seed(
            session_id,
            0,
            &commitment,
            &sealed,
            epoch,
            None,
            &client_seed,
            ClientSeedSource::Generated,
            None,
        )
        .await?;
        self.commit_next(tx, session_id, 1, epoch).await?;
        Ok(SessionCreated { view: self.view_in(tx, session_id).await?, replayed: false })
    }

    async fn count_session_in(&self, tx: &mut Tx, address: IpAddr) -> Result<(), Attempt> {
        let settings = &self.inner.settings;
        let hash = self.inner.secret.keyed_hash("address", &address_group(address));
        let max = i32::try_from(settings.sessions_per_address_max).unwrap_or(i32::MAX);
        match tx.count_session(&hash, max, settings.address_window.as_secs_f64()).await? {
            Ok(_) => Ok(()),
            Err(seconds) => {
                let retry_after = Duration::from_secs_f64(seconds);
                Err(SeedsError::TooManySessions { retry_after }.into())
            }
        }
    }

    /// Looks at a session, which counts as use.
    ///
    /// # Errors
    /// [`SeedsError::SessionNotFound`]; and the database's.
    pub async fn view(&self, session_id: Uuid) -> Result<View, SeedsError> {
        let view = self.snapshot_view(session_id).await?;
        self.saw(session_id);
        Ok(view)
    }

    /// Sessions of a player by id, from just after the given one.
    ///
    /// # Errors
    /// The database's.
    pub async fn sessions_of_player(
        &self,
        player_ref: &PlayerRef,
        after: Option<Uuid>,
        limit: u32,
    ) -> Result<SessionPage, SeedsError> {
        let limit = limit.clamp(1, PAGE_MAX);
        let mut tx = self.inner.store.snapshot("session.list").await?;
        let mut ids = tx.sessions_of_player(player_ref.as_str(), after, i64::from(limit) + 1).await?;
        let more = ids.len() > limit as usize;
        ids.truncate(limit as usize);
        let mut sessions = Vec::with_capacity(ids.len());
        for session_id in &ids {
            sessions.push(self.view_in(&mut tx, *session_id).await?);
        }
        tx.rollback().await;
        Ok(SessionPage { sessions, next_after: ids.last().copied().filter(|_| more) })
    }

    /// Every seed of a session, oldest first, the next included.
    ///
    /// # Errors
    /// [`SeedsError::SessionNotFound`]; and the database's.
    pub async fn seeds_of_session(&self, session_id: Uuid) -> Result<SeedList, SeedsError> {
        let mut tx = self.inner.store.snapshot("session.seeds").await?;
        tx.session(session_id).await?.ok_or(SeedsError::SessionNotFound)?;
        let mut rows = tx.seeds(session_id, SEEDS_LISTED_MAX + 1).await?;
        let voids: HashMap<i32, u64> = tx.voids_of_seeds(session_id).await?.into_iter().collect();
        let next = tx.next_seed(session_id).await?;
        tx.rollback().await;
        self.saw(session_id);
        let older_omitted = rows.len() > SEEDS_LISTED_MAX as usize;
        rows.truncate(SEEDS_LISTED_MAX as usize);
        let seeds = rows.iter().rev().map(|seed| seed_view(seed, voids.get(&seed.seed_no).copied().unwrap_or(0)));
        Ok(SeedList { seeds: seeds.chain(next.as_ref().map(next_seed_view)).collect(), older_omitted })
    }

    /// What anybody may know of a commitment.
    ///
    /// # Errors
    /// [`SeedsError::CommitmentNotFound`]; and the database's.
    pub async fn commitment(&self, commitment: &Commitment) -> Result<CommitmentView, SeedsError> {
        let mut tx = self.inner.store.snapshot("commitment.get").await?;
        let (session_id, seed_no) = tx.find_commitment(commitment).await?.ok_or(SeedsError::CommitmentNotFound)?;
        let view = match tx.seed(session_id, seed_no).await? {
            Some(seed) => CommitmentView {
                commitment: *commitment,
                status: seed.status.as_str(),
                committed_at: Timestamp(seed.committed_at),
                live_at: seed.client.as_ref().map(|client| Timestamp(client.live_at)),
                first_bet_at: tx.first_bet_at(session_id, seed_no).await?.map(Timestamp),
                revealed_at: seed.revealed.as_ref().map(|(_, at)| Timestamp(*at)),
                bets: seed.next_nonce,
                server_seed: seed.revealed.as_ref().map(|(seed, _)| RevealedSeed::new(seed)),
            },
            None => {
                let next = tx.next_seed(session_id).await?.filter(|next| next.commitment == *commitment);
                let next = next.ok_or_else(|| missing("seed"))?;
                CommitmentView {
                    commitment: *commitment,
                    status: "next",
                    committed_at: Timestamp(next.committed_at),
                    live_at: None,
                    first_bet_at: None,
                    revealed_at: None,
                    bets: 0,
                    server_seed: None,
                }
            }
        };
        tx.rollback().await;
        Ok(view)
    }

    /// A page of a session's bets, newest first.
    ///
    /// # Errors
    /// [`SeedsError::SessionNotFound`]; [`SeedsError::Invalid`] for a page token that is not of this session; and the database's.
    pub async fn bets_of_session(
        &self,
        session_id: Uuid,
        after: Option<&str>,
        limit: u32,
    ) -> Result<BetPage, SeedsError> {
        let below = after.map(|token| self.read_page_token(session_id, token)).transpose()?;
        let limit = limit.clamp(1, PAGE_MAX);
        let mut tx = self.inner.store.snapshot("session.records").await?;
        tx.session(session_id).await?.ok_or(SeedsError::SessionNotFound)?;
        let mut bets = tx.bets_of_session(session_id, below, i64::from(limit) + 1).await?;
        tx.rollback().await;
        let more = bets.len() > limit as usize;
        bets.truncate(limit as usize);
        self.saw(session_id);
        let next_after =
            bets.last().filter(|_| more).map(|bet| self.page_token(session_id, bet.key.seed_no, bet.key.nonce));
        Ok(BetPage { records: bets.iter().map(|bet| bet_answer(bet, false)).collect(), next_after })
    }

    /// A place in a session's bets, sealed to the session.
    fn page_token(&self, session_id: Uuid, seed_no: i32, nonce: u64) -> String {
        let mut token = Vec::with_capacity(12);
        token.extend_from_slice(&seed_no.to_be_bytes());
        token.extend_from_slice(&nonce.to_be_bytes());
        self.inner.secret.seal_token(PAGE_PURPOSE, session_id.as_bytes(), &token)
    }

    fn read_page_token(&self, session_id: Uuid, token: &str) -> Result<(i32, u64), SeedsError> {
        let place = self.inner.secret.open_token::<12>(PAGE_PURPOSE, session_id.as_bytes(), token);
        let place = place.ok_or_else(|| SeedsError::invalid("after", "is not a page token of this session"))?;
        let [a, b, c, d, nonce @ ..] = place;
        Ok((i32::from_be_bytes([a, b, c, d]), u64::from_be_bytes(nonce)))
    }

    /// Every key that records were signed with, oldest first.
    ///
    /// # Errors
    /// The database's.
    pub async fn signing_keys(&self) -> Result<Vec<SigningKeyRow>, SeedsError> {
        let mut tx = self.inner.store.snapshot("signing_keys.list").await?;
        let keys = tx.signing_keys().await?;
        tx.rollback().await;
        Ok(keys)
    }
}
