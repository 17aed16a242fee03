//! Moving sessions into the epoch that a recovery opened.
//!
//! Keeps I10, with I3, I6 (no seed is in clear in the transaction that ends it) and I7. A restored seed's counter says too little: nonces
//! beyond it may have been handed out, and the next seed may have been live and revealed, in the time that is lost. So neither is used
//! again. Both are revealed whatever their counters say, pending bets are void, and the session goes on with two fresh seeds. The client
//! seed is fresh too: it was known before the new server seed was made, and keeping it would look as if the player had chosen it
//! afterwards. A player who sets one gets the next seed, which is committed before.
//!
//! Each session is moved in a transaction of its own: by whoever touches it first, and by maintenance, a bounded number at a time. What is
//! shown of it afterwards is committed. An application's session gets no fresh seed: the application brings one.

use std::sync::atomic::Ordering;

use uuid::Uuid;

use super::ending::EXPIRED;
use super::error::Attempt;
use super::{Seeds, SeedsError};
use crate::db::seeds::{ClientSeedSource, RetiredBy};
use crate::db::sessions::{LockedSession, Origin, SessionRow};
use crate::db::{Access, DbError, Tx, corrupt, transaction};
use crate::gfs::seed::{ClientSeed, ServerSeed};

/// The void reason of a bet that was pending when a recovery was made.
const RECOVERY: &str = "recovery";

/// Sessions that are looked for at once.
const BATCH: i64 = 200;

/// Where the next batch begins: epoch and session.
pub(super) type Place = (i32, Uuid);

/// Before every session.
pub(super) const BEGIN: Place = (-1, Uuid::nil());

impl Seeds {
    /// The recovery epoch that changes are made in.
    pub(super) fn epoch(&self) -> i32 {
        self.inner.store.epoch()
    }

    /// Refuses to go on with a session of an earlier epoch.
    pub(super) fn in_epoch(&self, session: &SessionRow) -> Result<(), Attempt> {
        if session.epoch < self.epoch() { Err(Attempt::Outdated(session.session_id)) } else { Ok(()) }
    }

    /// The same for a session that is not at hand. Costs nothing while there are no sessions to move.
    pub(super) async fn session_in_epoch<A: Access>(&self, tx: &mut Tx<A>, session_id: Uuid) -> Result<(), Attempt> {
        if self.all_moved() {
            return Ok(());
        }
        match tx.session(session_id).await? {
            Some(session) => self.in_epoch(&session),
            None => Ok(()),
        }
    }

    fn all_moved(&self) -> bool {
        self.epoch() <= self.inner.moved.load(Ordering::Acquire)
    }

    /// Moves a session into the present epoch, unless it is there.
    ///
    /// # Errors
    /// [`SeedsError::SessionNotFound`]; and the database's.
    pub(super) async fn recover_session(&self, session_id: Uuid) -> Result<(), SeedsError> {
        let ended =
            transaction!(self.inner.store, "session.recover", |tx| self.recover_session_in(tx, session_id).await)?;
        for seed_no in ended {
            self.reveal_due(session_id, seed_no).await?;
        }
        Ok(())
    }

    /// Gives the seeds that are to be revealed: by [`Seeds::reveal_due`], which must follow once this is committed.
    async fn recover_session_in(&self, tx: &mut Tx, session_id: Uuid) -> Result<Vec<i32>, SeedsError> {
        let session = tx.lock_session(session_id).await?.ok_or(SeedsError::SessionNotFound)?;
        let epoch = self.epoch();
        if session.epoch >= epoch {
            return Ok(Vec::new());
        }
        let mut ended = Vec::new();
        let by = RetiredBy::Recovery;
        if let Some(live) = tx.lock_live_seed(&session).await? {
            if live.pending > 0 {
                for row in tx.take_all_pending(&live).await? {
                    // What expired has read as void for that reason ever since.
                    tx.insert_void(&row.key, if row.expired { EXPIRED } else { RECOVERY }).await?;
                }
            }
            // A seed that cannot be opened keeps its session where it is.
            self.inner.ring.open(session_id, &live.commitment, &live.sealed)?;
            tx.reveal_seed(&live, by).await?;
            tx.insert_reveal_due(&live).await?;
            ended.push(live.seed_no);
        }
        if let Some(next) = tx.take_next_seed(&session).await? {
            self.inner.ring.open(session_id, &next.commitment, &next.sealed)?;
            tx.insert_revealed_seed(&session, &next, by).await?;
            ended.push(next.seed_no);
        }
        if let (Some(last), Origin::Service, true) = (ended.last(), session.origin, session.open) {
            self.start_anew(tx, &session, last + 1, epoch).await?;
        }
        tx.set_session_epoch(&session, epoch).await?;
        Ok(ended)
    }

    /// A fresh live seed and a fresh next one, as of a new session.
    async fn start_anew(&self, tx: &mut Tx, session: &LockedSession, seed_no: i32, epoch: i32) -> Result<(), DbError> {
        let session_id = session.session_id;
        let seed = ServerSeed::generate();
        let commitment = seed.commitment();
        if !tx.insert_commitment(&commitment, session_id, seed_no).await? {
            return Err(corrupt("commitment", "256 random bits came twice: the random source is broken"));
        }
        let sealed = self.inner.ring.seal(session_id, &commitment, &seed);
        let (client_seed, source) = (ClientSeed::generate(), ClientSeedSource::Generated);
        tx.insert_live_seed(session_id, seed_no, &commitment, &sealed, epoch, None, &client_seed, source, None).await?;
        self.commit_next(tx, session_id, seed_no + 1, epoch).await
    }

    /// Moves some of the sessions that are still of an earlier epoch, from a place on; gives how many, and where to go on. None: there
    /// are no more.
    pub(super) async fn recover_some(&self, after: Place) -> Result<(usize, Option<Place>), SeedsError> {
        if self.all_moved() {
            return Ok((0, None));
        }
        let epoch = self.epoch();
        let store = &self.inner.store;
        let found = transaction!(store, "recovery.list", |tx| tx.sessions_before_epoch(epoch, after, BATCH).await)?;
        let mut moved = 0;
        for (_, session_id) in &found {
            match self.recover_session(*session_id).await {
                Ok(()) => moved += 1,
                // One row that is corrupt, or whose key is missing, must not keep the others; it was logged where it was found.
                Err(SeedsError::Db(error)) if error.is_of_one_row() => {}
                Err(error) => return Err(error),
            }
        }
        if found.is_empty() && after == BEGIN {
            self.inner.moved.fetch_max(epoch, Ordering::AcqRel);
            tracing::info!(epoch, "every open session is in the epoch of the last recovery");
        }
        Ok((moved, found.last().copied()))
    }

    /// Moves every session that is still of an earlier epoch, telling of each batch how many.
    ///
    /// # Errors
    /// The database's; what was moved before stays moved.
    pub async fn recover_all(&self, mut moved: impl FnMut(u64)) -> Result<(), SeedsError> {
        let mut place = BEGIN;
        loop {
            let (count, next) = self.recover_some(place).await?;
            moved(count as u64);
            match next {
                Some(next) => place = next,
                None => return Ok(()),
            }
        }
    }
}
