//! Taking the bets of many callers in one transaction.
//!
//! Keeps I3 and I4 as a bet alone does: the nonces of a batch and its stored bets are one transaction, with the same guards in the statement
//! that hands the nonces out. Several bets under one seed get consecutive nonces. Whatever a batch cannot take at once is sent back to
//! its caller, who takes it alone and is told why it cannot be, or what is stored already: there is one place where bets are explained.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use uuid::Uuid;

use super::Seeds;
use super::bets::{Binding, Taken};
use super::error::SeedsError;
use crate::db::DbError;
use crate::db::bets::{BetKind, NewBet, ResultRow};
use crate::db::details::BetDetails;
use crate::db::group::{Reply, Work};
use crate::db::pending::NewPending;
use crate::db::seeds::{ORDERED, ReservedNonce, Wanted};
use crate::db::writer::{BatchTx, Writer};
use crate::gfs::floats::SeedPair;

/// How often a batch is begun again without the bets that were in its way, before everybody goes alone.
const TRIES_MAX: u32 = 3;

/// A bet that waits to be taken.
pub(super) struct BetItem {
    pub(super) session_id: Uuid,
    pub(super) binding: Arc<Binding>,
}

/// Takes bets that callers queued.
pub(super) struct BetGroup {
    /// Without a group of its own.
    seeds: Seeds,
    /// A reference was taken already in the last batch, so the next one looks before it reserves. Most services never do.
    repeated: AtomicBool,
}

/// A bet of a batch as it is to be stored.
struct LaidOut {
    /// Its place in the batch.
    place: usize,
    bet: Box<BetDetails>,
    result: Option<ResultRow>,
    pair: Arc<SeedPair>,
}

/// What one try of a batch came to.
enum Tried {
    /// These are stored and committed; the others were left out.
    Committed(Vec<LaidOut>),
    /// Rolled back. These, by place, cannot be taken with the others.
    InTheWay(Vec<usize>),
    /// Rolled back. Somebody's reference is taken.
    Repeated,
}

impl BetGroup {
    pub(super) fn new(seeds: Seeds) -> Self {
        Self { seeds, repeated: AtomicBool::new(false) }
    }

    async fn try_commit(&self, writer: &mut Writer, batch: &mut Batch<'_>, look_first: bool) -> Result<Tried, DbError> {
        let mut tx = writer.begin(<Self as Work>::NAME).await?;
        let tried = async {
            if look_first {
                let known = tx.known_refs(&batch.refs()).await?;
                self.repeated.store(known.contains(&true), Ordering::Relaxed);
                batch.set_aside_where(&known);
            }
            self.store(&mut tx, batch).await
        };
        match tried.await {
            Ok(Tried::Committed(stored)) if !stored.is_empty() => {
                tx.commit().await?;
                Ok(Tried::Committed(stored))
            }
            other => {
                tx.rollback().await;
                other
            }
        }
    }

    async fn store(&self, tx: &mut BatchTx<'_>, batch: &Batch<'_>) -> Result<Tried, DbError> {
        let inner = &self.seeds.inner;
        let seeds = batch.seeds();
        let wanted: Vec<Wanted> = seeds.iter().map(|places| batch.wanted(places)).collect();
        let mut laid_out = Vec::with_capacity(batch.items.len());
        let mut corrupt = Vec::new();
        for (seed, reserved) in tx.reserve_nonces(&wanted, self.seeds.epoch(), inner.settings.pending_max).await? {
            let Some(places) = seeds.get(seed) else { continue };
            // Which seed it is has been logged. The bets under it fail alone.
            match self.lay_out(batch, places, reserved) {
                Ok(bets) => laid_out.extend(bets),
                Err(_) => corrupt.extend_from_slice(places),
            }
        }
        if !corrupt.is_empty() {
            return Ok(Tried::InTheWay(corrupt));
        }
        // The statement gives seeds in no order; rows and keys of an index come in one.
        laid_out.sort_unstable_by_key(|stored| stored.bet.key);
        let rows: Vec<NewBet<'_>> = laid_out
            .iter()
            .map(|LaidOut { place, bet, result, .. }| batch.items[*place].binding.row(bet, result.as_ref()))
            .collect();
        if rows.is_empty() {
            return Ok(Tried::Committed(laid_out));
        }
        if tx.insert_bets(&rows).await? < rows.len() {
            // A nonce without its bet would be a gap: nothing of this try may stand.
            return Ok(Tried::Repeated);
        }
        let pending: Vec<NewPending> = rows
            .iter()
            .filter(|bet| bet.kind != BetKind::Played)
            .map(|bet| NewPending { key: bet.key, kind: bet.kind, taken_at: bet.taken_at, expires_at: bet.expires_at })
            .collect();
        if !pending.is_empty() {
            tx.insert_pendings(&pending).await?;
        }
        Ok(Tried::Committed(laid_out))
    }

    /// The bets under one seed, with consecutive nonces from the reserved one on.
    fn lay_out(&self, batch: &Batch<'_>, places: &[usize], mut next: ReservedNonce) -> Result<Vec<LaidOut>, DbError> {
        let Some(first) = places.first().map(|place| &batch.items[*place]) else { return Ok(Vec::new()) };
        let (session_id, commitment) = (first.session_id, first.binding.commitment);
        let pair = Arc::new(self.seeds.open_pair(session_id, &commitment, &next.sealed, &next.client_seed)?);
        let laid_out = places.iter().map(|&place| {
            let (bet, result) = self.seeds.lay_out(session_id, &batch.items[place].binding, &next, &pair);
            next.nonce += 1;
            LaidOut { place, bet, result, pair: Arc::clone(&pair) }
        });
        Ok(laid_out.collect())
    }
}

impl Work for BetGroup {
    type Item = BetItem;
    type Answer = Result<Taken, SeedsError>;
    const NAME: &'static str = "bet.group";
    const SESSION: &'static [(&'static str, &'static str)] = ORDERED;

    async fn commit(&self, writer: &mut Writer, items: &[BetItem]) -> Result<Vec<Reply<Self::Answer>>, DbError> {
        let mut batch = Batch::new(items);
        let mut look_first = self.repeated.load(Ordering::Relaxed);
        for _ in 0..TRIES_MAX {
            match self.try_commit(writer, &mut batch, look_first).await? {
                Tried::Committed(stored) => return Ok(batch.replies(stored)),
                Tried::InTheWay(places) => batch.set_aside(&places),
                Tried::Repeated => look_first = true,
            }
        }
        Ok(items.iter().map(|_| Reply::Alone).collect())
    }
}

/// A batch with its bets in the order in which all batches take their seeds, each reference once.
struct Batch<'a> {
    items: &'a [BetItem],
    /// Places of the first bet of every reference that is to be taken, sorted by session and commitment.
    order: Vec<usize>,
    /// Of every item: the place of the first bet of its session and reference; its own when that is itself.
    leaders: Vec<usize>,
}

impl<'a> Batch<'a> {
    fn new(items: &'a [BetItem]) -> Self {
        let mut first: HashMap<(Uuid, &str), usize> = HashMap::with_capacity(items.len());
        let leaders: Vec<usize> = items
            .iter()
            .enumerate()
            .map(|(place, item)| *first.entry((item.session_id, &item.binding.bet_ref)).or_insert(place))
            .collect();
        let mut order: Vec<usize> = (0..items.len()).filter(|&place| leaders[place] == place).collect();
        // Stable: of one seed the nonces come in the order in which the bets were queued.
        order.sort_by_key(|&place| (items[place].session_id, items[place].binding.commitment));
        Self { items, order, leaders }
    }

    /// Session and reference of every bet that is to be taken.
    fn refs(&self) -> Vec<(Uuid, &'a str)> {
        let items = self.items;
        self.order.iter().map(|&place| (items[place].session_id, items[place].binding.bet_ref.as_str())).collect()
    }

    /// Sets those aside that are marked, in the order of [`Batch::refs`].
    fn set_aside_where(&mut self, marked: &[bool]) {
        let mut marked = marked.iter();
        self.order.retain(|_| !marked.next().copied().unwrap_or_default());
    }

    fn set_aside(&mut self, places: &[usize]) {
        self.order.retain(|place| !places.contains(place));
    }

    /// The places under each seed.
    fn seeds(&self) -> Vec<&[usize]> {
        let seed = |&place: &usize| (self.items[place].session_id, self.items[place].binding.commitment);
        self.order.chunk_by(|a, b| seed(a) == seed(b)).collect()
    }

    fn wanted(&self, places: &[usize]) -> Wanted {
        let first = &self.items[places[0]];
        let pending = places.iter().filter(|place| self.items[**place].binding.kind != BetKind::Played).count();
        Wanted {
            session_id: first.session_id,
            commitment: first.binding.commitment,
            // A batch has thousands of items at the most.
            bets: places.len() as u32,
            pending: pending as u32,
        }
    }

    /// A reply for every item: its bet, that of its leader, or none.
    fn replies(&self, stored: Vec<LaidOut>) -> Vec<Reply<Result<Taken, SeedsError>>> {
        let mut by_place: Vec<Option<LaidOut>> = Vec::new();
        by_place.resize_with(self.items.len(), || None);
        for bet in stored {
            let place = bet.place;
            by_place[place] = Some(bet);
        }
        // Followers first, since a leader gives its bet away.
        let mut replies: Vec<Reply<_>> = (0..self.items.len())
            .map(|place| match &by_place[self.leaders[place]] {
                Some(LaidOut { bet, pair, .. }) if self.leaders[place] != place => {
                    Reply::Done(if self.items[place].binding.is(bet) {
                        Ok(Taken { bet: bet.clone(), replayed: true, pair: Some(Arc::clone(pair)) })
                    } else {
                        Err(SeedsError::BetRefReused)
                    })
                }
                _ => Reply::Alone,
            })
            .collect();
        for LaidOut { place, bet, pair, .. } in by_place.into_iter().flatten() {
            replies[place] = Reply::Done(Ok(Taken { bet, replayed: false, pair: Some(pair) }));
        }
        replies
    }
}
