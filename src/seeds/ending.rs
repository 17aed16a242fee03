//! What ends a live seed: rotation, a change of the client seed, closing.
//!
//! Keeps I5 (the seed that goes live was committed while the old one was in use, and another is committed in the same transaction),
//! I6 (see [`Seeds::reveal_due`]), I7 (a seed that has bets is revealed as it ends) and I11 (a seed with a pending bet is not revealed).
//! All of it happens under the session's lock and the seed's, taken in that order.

use uuid::Uuid;

use super::error::{Attempt, SeedsError, settle_it};
use super::model::{Revealed, RevealedSeed, SeedEnded, View};
use super::{Seeds, missing};
use crate::db::bets::{BetKey, BetKind};
use crate::db::details::RoundOutcome;
use crate::db::pending::EndOf;
use crate::db::seeds::{ClientSeedSource, LockedSeed, RetiredBy, SeedRow, SeedStatus};
use crate::db::sessions::LockedSession;
use crate::db::{DbError, Tx, corrupt, transaction};
use crate::gfs::seed::{ClientSeed, Commitment, ServerSeed};

/// The void reason of a reservation that was not recorded in time.
pub(super) const EXPIRED: &str = "expired";

/// The void reason of a reservation whose session was closed.
pub(super) const ABANDONED: &str = "abandoned";

/// A rotation.
#[derive(Clone, Debug)]
pub struct RotateRequest {
    /// The seed to end.
    pub commitment: Commitment,
    /// The client seed from now on; the text stays without one.
    pub client_seed: Option<ClientSeed>,
}

/// A change of the client seed.
#[derive(Clone, Debug)]
pub struct ClientSeedRequest {
    /// The seed to end.
    pub commitment: Commitment,
    /// The client seed from now on.
    pub client_seed: ClientSeed,
}

impl Seeds {
    /// Ends the live seed and reveals it; the next one goes live at nonce 0. The same request again gets the same reveal.
    ///
    /// # Errors
    /// In this order of precedence: [`SeedsError::SessionNotFound`], [`SeedsError::SessionClosed`],
    /// [`SeedsError::CommitmentChanged`], [`SeedsError::BetsPending`], [`SeedsError::NothingToReveal`], [`SeedsError::NoNextSeed`];
    /// and the database's.
    pub async fn rotate(&self, session_id: Uuid, request: &RotateRequest) -> Result<SeedEnded, SeedsError> {
        let wanted = request.client_seed.as_ref();
        let ended = settle_it!(self, "seed.rotate", |tx| {
            self.replace_in(tx, session_id, &request.commitment, wanted, RetiredBy::Rotation).await
        })?;
        self.saw(session_id);
        self.answer_ended(session_id, ended).await
    }

    /// Makes the next seed live with another client seed. The old seed is revealed if it has bets, else discarded. The text that is
    /// there already changes nothing.
    ///
    /// # Errors
    /// As [`Seeds::rotate`], but a seed without bets is no error.
    pub async fn change_client_seed(
        &self,
        session_id: Uuid,
        request: &ClientSeedRequest,
    ) -> Result<SeedEnded, SeedsError> {
        let ended = settle_it!(self, "seed.client_seed", |tx| {
            let wanted = Some(&request.client_seed);
            self.replace_in(tx, session_id, &request.commitment, wanted, RetiredBy::ClientSeed).await
        })?;
        self.saw(session_id);
        self.answer_ended(session_id, ended).await
    }

    async fn replace_in(
        &self,
        tx: &mut Tx,
        session_id: Uuid,
        commitment: &Commitment,
        wanted: Option<&ClientSeed>,
        by: RetiredBy,
    ) -> Result<Ended, Attempt> {
        let session = tx.lock_session(session_id).await?.ok_or(SeedsError::SessionNotFound)?;
        self.in_epoch(&session)?;
        if let Some(answer) = self.replay_replace(tx, &session, commitment, wanted, by).await? {
            return Ok(answer);
        }
        let live = if session.open { self.lock_live_seed(tx, &session).await? } else { None };
        let Some(live) = live else {
            return Err(SeedsError::SessionClosed.into());
        };
        if live.commitment != *commitment {
            let session = Box::new(self.view_in(tx, session_id).await?);
            return Err(SeedsError::CommitmentChanged { session }.into());
        }
        let client = live.client_side()?;
        let same_text = wanted.is_none_or(|wanted| *wanted == client.client_seed);
        if by == RetiredBy::ClientSeed && same_text {
            let answer = SeedEnded { revealed: None, session: self.view_in(tx, session_id).await?, replayed: true };
            return Ok(Ended { answer, seed_no: live.seed_no });
        }
        if live.pending > 0 {
            return Err(SeedsError::BetsPending.into());
        }
        if by == RetiredBy::Rotation && live.next_nonce == 0 {
            return Err(SeedsError::NothingToReveal.into());
        }
        let (client_seed, source, set_at) = match wanted {
            Some(wanted) if !same_text => (wanted, ClientSeedSource::Player, None),
            _ => (&client.client_seed, ClientSeedSource::Kept, Some(client.set_at)),
        };
        let next = tx.take_next_seed(&session).await?.ok_or(SeedsError::NoNextSeed)?;
        let revealed = self.retire(tx, &live, by).await?;
        tx.insert_live_seed(
            session_id,
            next.seed_no,
            &next.commitment,
            &next.sealed,
            next.epoch,
            Some(next.committed_at),
            client_seed,
            source,
            set_at,
        )
        .await?;
        self.commit_next(tx, session_id, next.seed_no + 1, session.epoch).await?;
        let answer = SeedEnded { revealed, session: self.view_in(tx, session_id).await?, replayed: false };
        Ok(Ended { answer, seed_no: live.seed_no })
    }

    /// The answer to a replacement that was made before: the same old commitment, the same means, the same text afterwards.
    async fn replay_replace(
        &self,
        tx: &mut Tx,
        session: &LockedSession,
        commitment: &Commitment,
        wanted: Option<&ClientSeed>,
        by: RetiredBy,
    ) -> Result<Option<Ended>, SeedsError> {
        let Some((owner, seed_no)) = tx.find_commitment(commitment).await? else { return Ok(None) };
        if owner != session.session_id {
            return Ok(None);
        }
        let Some(old) = tx.seed(owner, seed_no).await? else { return Ok(None) };
        if old.retired.is_none_or(|(_, retired_by)| retired_by != by) {
            return Ok(None);
        }
        let successor = tx.seed(owner, seed_no + 1).await?.ok_or_else(|| missing("seed"))?;
        let text_after = &successor.client_side()?.client_seed;
        let text_wanted = wanted.unwrap_or(&old.client_side()?.client_seed);
        if text_after != text_wanted {
            return Ok(None);
        }
        let session = self.view_in(tx, session.session_id).await?;
        let answer = SeedEnded { revealed: self.revealed_of(&old)?, session, replayed: true };
        Ok(Some(Ended { answer, seed_no }))
    }

    /// Closes a session: its rounds are recorded as abandoned, its reservations voided, its live seed revealed if it has bets, the
    /// next one discarded. Closing again, with the commitment it was closed under, gets the same answer.
    ///
    /// # Errors
    /// In this order of precedence: [`SeedsError::SessionNotFound`], [`SeedsError::SessionClosed`] (closed under another
    /// commitment), [`SeedsError::CommitmentChanged`]; and the database's.
    pub async fn close(&self, session_id: Uuid, commitment: &Commitment) -> Result<SeedEnded, SeedsError> {
        let ended = settle_it!(self, "session.close", |tx| self.close_in(tx, session_id, commitment).await)?;
        self.answer_ended(session_id, ended).await
    }

    async fn close_in(&self, tx: &mut Tx, session_id: Uuid, commitment: &Commitment) -> Result<Ended, Attempt> {
        let session = tx.lock_session(session_id).await?.ok_or(SeedsError::SessionNotFound)?;
        self.in_epoch(&session)?;
        let Some(live) = tx.lock_live_seed(&session).await? else {
            let last = tx.latest_seed(session_id).await?.ok_or_else(|| missing("seed"))?;
            if last.commitment != *commitment {
                return Err(SeedsError::SessionClosed.into());
            }
            let replayed = !session.open;
            if session.open {
                // An application revealed its seed and never put another.
                tx.close_session(&session).await?;
            }
            let session = self.view_in(tx, session_id).await?;
            let answer = SeedEnded { revealed: self.revealed_of(&last)?, session, replayed };
            return Ok(Ended { answer, seed_no: last.seed_no });
        };
        if live.commitment != *commitment {
            let session = Box::new(self.view_in(tx, session_id).await?);
            return Err(SeedsError::CommitmentChanged { session }.into());
        }
        let revealed = self.close_locked(tx, &session, &live, RetiredBy::Closing).await?;
        let answer = SeedEnded { revealed, session: self.view_in(tx, session_id).await?, replayed: false };
        Ok(Ended { answer, seed_no: live.seed_no })
    }

    /// Everything that closing a locked session does.
    pub(super) async fn close_locked(
        &self,
        tx: &mut Tx,
        session: &LockedSession,
        live: &LockedSeed,
        by: RetiredBy,
    ) -> Result<Option<Revealed>, DbError> {
        self.abandon_pending(tx, live).await?;
        let revealed = self.retire(tx, live, by).await?;
        if let Some(next) = tx.take_next_seed(session).await? {
            tx.insert_discarded_seed(session, &next, by).await?;
        }
        tx.close_session(session).await?;
        Ok(revealed)
    }

    /// Ends every pending bet of a locked seed. A round that disclosed a mine is lost; the others are abandoned, with their records.
    pub(super) async fn abandon_pending(&self, tx: &mut Tx, live: &LockedSeed) -> Result<(), DbError> {
        if live.pending == 0 {
            return Ok(());
        }
        // Read before the rows are taken out: without them a bet has no state until its end is stored.
        let mut bets = Vec::with_capacity(live.pending as usize);
        for (row, _) in tx.pending_bets(live.session_id, live.seed_no).await? {
            bets.push(tx.bet(&row.key).await?.ok_or_else(|| missing("bet"))?);
        }
        for row in tx.take_all_pending(live).await? {
            let bet = bets.iter_mut().find(|bet| bet.key == row.key).ok_or_else(|| missing("bet"))?;
            match row.kind {
                BetKind::Round => {
                    let outcome = if row.mine_shown { RoundOutcome::Lost } else { RoundOutcome::Abandoned };
                    self.record_round(tx, bet, Some(outcome)).await?;
                }
                BetKind::Reservation => {
                    tx.insert_void(&row.key, if row.expired { EXPIRED } else { ABANDONED }).await?;
                }
                BetKind::Played => return Err(corrupt("pending bet", "a played bet is pending")),
            }
        }
        Ok(())
    }

    /// Ends a locked seed whose pending bets are all out, and has it revealed if it has bets: by [`Seeds::reveal_due`], which must
    /// follow once this is committed.
    pub(super) async fn retire(
        &self,
        tx: &mut Tx,
        live: &LockedSeed,
        by: RetiredBy,
    ) -> Result<Option<Revealed>, DbError> {
        match tx.retire_seed(live, by).await? {
            SeedStatus::Revealed => {
                let seed = self.inner.ring.open(live.session_id, &live.commitment, &live.sealed)?;
                tx.insert_reveal_due(live).await?;
                Ok(Some(Revealed {
                    server_seed: RevealedSeed::new(&seed),
                    commitment: live.commitment,
                    bets: live.next_nonce,
                }))
            }
            SeedStatus::Discarded | SeedStatus::Live => Ok(None),
        }
    }

    /// Answers once the ended seed's reveal is stored.
    async fn answer_ended(&self, session_id: Uuid, ended: Ended) -> Result<SeedEnded, SeedsError> {
        if ended.answer.revealed.is_some() {
            self.reveal_due(session_id, ended.seed_no).await.map_err(unrevealed_yet)?;
        }
        Ok(ended.answer)
    }

    /// Stores the reveal of a seed that was retired in a committed transaction, if that is still to be done. Never in the transaction
    /// that retires it (I6): what that wrote would be on disk even if it were rolled back, and more bets taken under a seed that whoever
    /// reads the disk can read.
    ///
    /// # Errors
    /// Those of the database. The note that it is due stays, and maintenance comes by.
    pub(super) async fn reveal_due(&self, session_id: Uuid, seed_no: i32) -> Result<(), DbError> {
        transaction!(self.inner.store, "seed.reveal", |tx| {
            async {
                let seed = tx.seed(session_id, seed_no).await?.ok_or_else(|| missing("seed"))?;
                // Locks the note, so that of two who reveal one finds it done.
                if seed.revealed.is_some() || !tx.take_reveal_due(session_id, seed_no).await? {
                    return Ok(());
                }
                let clear = self.inner.ring.open(session_id, &seed.commitment, &seed.sealed)?;
                tx.insert_reveal(&seed, &clear).await
            }
            .await
        })
    }

    /// What an ended seed's answer shows, whether or not its reveal is stored yet.
    fn revealed_of(&self, seed: &SeedRow) -> Result<Option<Revealed>, DbError> {
        let clear = match (&seed.revealed, seed.status) {
            (Some((clear, _)), _) => RevealedSeed::new(clear),
            (None, SeedStatus::Revealed) => {
                RevealedSeed::new(&self.inner.ring.open(seed.session_id, &seed.commitment, &seed.sealed)?)
            }
            (None, SeedStatus::Live | SeedStatus::Discarded) => return Ok(None),
        };
        Ok(Some(Revealed { server_seed: clear, commitment: seed.commitment, bets: seed.next_nonce }))
    }

    /// Makes and commits a session's next seed, in the epoch that the session is in: this instance may not have heard of that yet.
    pub(super) async fn commit_next(
        &self,
        tx: &mut Tx,
        session_id: Uuid,
        seed_no: i32,
        epoch: i32,
    ) -> Result<(), DbError> {
        let seed = ServerSeed::generate();
        let commitment = seed.commitment();
        if !tx.insert_commitment(&commitment, session_id, seed_no).await? {
            return Err(corrupt("commitment", "256 random bits came twice: the random source is broken"));
        }
        let sealed = self.inner.ring.seal(session_id, &commitment, &seed);
        tx.insert_next_seed(session_id, seed_no, &commitment, &sealed, epoch).await
    }

    /// Locks the live seed and voids those of its reservations that have expired: they are pending no more, swept or not.
    pub(super) async fn lock_live_seed(
        &self,
        tx: &mut Tx,
        session: &LockedSession,
    ) -> Result<Option<LockedSeed>, Attempt> {
        let Some(live) = tx.lock_live_seed(session).await? else { return Ok(None) };
        if live.pending == 0 {
            return Ok(Some(live));
        }
        for key in tx.expired_reservations_of(session.session_id).await? {
            self.void_expired_in(tx, &key).await?;
        }
        Ok(tx.lock_live_seed(session).await?)
    }

    /// Voids one expired reservation.
    pub(super) async fn void_expired_in(&self, tx: &mut Tx, key: &BetKey) -> Result<(), Attempt> {
        super::ends::end_pending(tx, key, BetKind::Reservation, EndOf::Expired).await?;
        tx.insert_void(key, EXPIRED).await?;
        Ok(())
    }

    /// Voids the expired reservations of a session; gives how many.
    pub(super) async fn void_expired_of(&self, session_id: Uuid) -> Result<usize, SeedsError> {
        settle_it!(self, "reservation.expire", |tx| {
            async {
                self.session_in_epoch(tx, session_id).await?;
                let keys = tx.expired_reservations_of(session_id).await?;
                for key in &keys {
                    self.void_expired_in(tx, key).await?;
                }
                Ok::<_, Attempt>(keys.len())
            }
            .await
        })
    }

    /// The view of a session as it is now.
    pub(super) async fn snapshot_view(&self, session_id: Uuid) -> Result<View, SeedsError> {
        let mut tx = self.inner.store.snapshot("session.view").await?;
        let view = self.view_in(&mut tx, session_id).await;
        tx.rollback().await;
        view
    }
}

/// An ended seed and the answer that may leave once its reveal is stored.
struct Ended {
    answer: SeedEnded,
    seed_no: i32,
}

/// The seed is retired, and sending the request again tells its reveal.
pub(super) fn unrevealed_yet(error: DbError) -> SeedsError {
    DbError::OutcomeUnknown(format!("the seed is retired and its reveal not stored yet: {error}")).into()
}
