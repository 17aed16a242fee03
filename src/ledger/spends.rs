//! Spending and giving back.
//!
//! Keeps I1 and I2: the statement that inserts judges the key; what could not be inserted is looked at by a second statement, and tried
//! again, a bounded number of times, when nothing was in the way any more. Keeps I9: an answer leaves after the commit; when that is
//! lost, [`DbError::OutcomeUnknown`] says so, and the same spend again tells.
//!
//! One spend goes with others in one transaction where the settings have a group, and in a transaction of its own otherwise. The rules
//! are the same, and so are the statements: a group is a batch of strangers.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use sqlx::PgConnection;

use super::error::changed_meanwhile;
use super::judge::{Verdict, judge, outcome};
use super::values::Spend;
use super::{BatchResult, Ledger, LedgerError, Outcome, Spent, check_batch};
use crate::db::group::{Reply, Work};
use crate::db::keys::KeyState;
use crate::db::spends::{self, SpendRow, Standing};
use crate::db::writer::{BatchTx, Writer};
use crate::db::{DbError, Tx, transaction};

/// How often one transaction tries to insert a spend before it gives way.
const LOOKS_MAX: u32 = 8;

/// Spends a token inside the caller's own transaction: it is spent if and when the caller commits, and a rollback gives it back.
///
/// The transaction must be READ COMMITTED, PostgreSQL's default, and may stay open as long as the caller likes: the key's window is
/// judged by the clock of this very moment, and a sweep waits for the transaction. Others who want to spend the same token wait for it
/// too. The role needs the rights of fairledger's service role on `fairledger.token_keys` and `fairledger.spends`.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool, token: fairledger::ledger::Token) -> Result<(), Box<dyn std::error::Error>> {
/// use fairledger::ledger::{Spend, spend_in};
///
/// let mut transaction = pool.begin().await?;
/// spend_in(&mut transaction, &Spend::new(token)).await?;
/// // What the token admits to, in the same transaction.
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`LedgerError::Isolation`]; those of [`SpendLedger::spend`](super::SpendLedger::spend), after which the transaction is still good;
/// and the database's, after which it is not.
pub async fn spend_in(connection: &mut PgConnection, spend: &Spend) -> Result<Spent, LedgerError> {
    // The statement itself inserts under no other isolation level; which one it is, is asked only when it did not insert.
    if spends::insert(connection, &spend.row()).await? {
        return Ok(Spent { spend_id: spend.spend_id, replayed: false });
    }
    let isolation = spends::isolation(connection).await?;
    if isolation != "read committed" {
        return Err(LedgerError::Isolation(isolation));
    }
    insert_or_explain(connection, spend).await
}

async fn insert_or_explain(connection: &mut PgConnection, spend: &Spend) -> Result<Spent, LedgerError> {
    for _ in 0..LOOKS_MAX {
        if spends::insert(connection, &spend.row()).await? {
            return Ok(Spent { spend_id: spend.spend_id, replayed: false });
        }
        match judge(&look_at(connection, spend).await?, spend.spend_id) {
            Verdict::Stands => return Ok(Spent { spend_id: spend.spend_id, replayed: true }),
            Verdict::Refused(refusal) => return Err(refusal.into()),
            Verdict::Free => {}
        }
    }
    Err(changed_meanwhile())
}

async fn look_at(connection: &mut PgConnection, spend: &Spend) -> Result<Standing, LedgerError> {
    // As many as were asked for: look sees to it.
    spends::look(connection, &[spend.row()]).await?.pop().ok_or_else(changed_meanwhile)
}

impl Ledger {
    pub(super) async fn spend_one(&self, spend: &Spend) -> Result<Spent, LedgerError> {
        if let Some(group) = &self.inner.group
            && let Reply::Done(spent) = group.submit(0, spend.clone()).await?
        {
            return spent;
        }
        transaction!(self.inner.store, "spend", |tx| {
            async {
                let spent = insert_or_explain(tx.connection(), spend).await?;
                if spent.replayed {
                    tx.acknowledge_again().await?;
                }
                Ok::<_, LedgerError>(spent)
            }
            .await
        })
    }

    pub(super) async fn spend_many(&self, spends: &[Spend]) -> Result<Vec<BatchResult>, LedgerError> {
        check_batch(spends)?;
        let batch = Batch::new(spends);
        transaction!(self.inner.store, "spend.batch", |tx| spend_many_in(tx, &batch).await)
    }

    pub(super) async fn spend_together(&self, spends: &[Spend]) -> Result<Vec<BatchResult>, LedgerError> {
        check_batch(spends)?;
        let batch = Batch::new(spends);
        let spent = transaction!(self.inner.store, "spend.atomic", |tx| spend_together_in(tx, &batch).await);
        if let Err(LedgerError::BatchRefused { results }) = &spent
            && results.iter().any(|result| result.replayed)
        {
            // What was inserted for the others is rolled back, and this is acknowledged all the same.
            transaction!(self.inner.store, "spend.again", |tx| tx
                .acknowledge_again()
                .await
                .map_err(LedgerError::from))?;
        }
        spent
    }

    pub(super) async fn give_back(&self, spend: &Spend) -> Result<(), LedgerError> {
        transaction!(self.inner.store, "spend.rollback", |tx| give_back_in(tx, spend).await)
    }
}

/// Batches that expect refusals after one that had some: when every batch has some, one in so many is inserted twice.
const WARY_BATCHES: u32 = 64;

/// Spends what callers queued, as one batch.
#[derive(Debug, Default)]
pub(super) struct SpendGroup {
    /// Batches to come that expect refusals.
    wary: AtomicU32,
}

impl SpendGroup {
    /// Inserts what can be inserted and gives how many, by the way that is the faster one for such a batch.
    async fn insert(&self, connection: &mut PgConnection, batch: &Batch<'_>) -> Result<usize, DbError> {
        if let [only] = batch.rows.as_slice() {
            return spends::insert(connection, only).await.map(usize::from);
        }
        let wary = self.wary.fetch_update(Relaxed, Relaxed, |batches| batches.checked_sub(1)).is_ok();
        if !wary {
            if spends::insert_if_all_fresh(connection, &batch.rows).await? {
                return Ok(batch.rows.len());
            }
            self.wary.store(WARY_BATCHES, Relaxed);
        }
        spends::insert_many(connection, &batch.rows).await
    }

    async fn insert_and_look(
        &self,
        connection: &mut PgConnection,
        batch: &Batch<'_>,
    ) -> Result<Option<Vec<Standing>>, DbError> {
        let inserted = self.insert(connection, batch).await?;
        look_unless_all(connection, batch, inserted).await
    }
}

impl Work for SpendGroup {
    type Item = Spend;
    type Answer = Result<Spent, LedgerError>;
    const NAME: &'static str = "spend.group";
    // The statement is always the same and its plan too: planning it anew would cost more than a few rows.
    const SESSION: &'static [(&'static str, &'static str)] = &[("plan_cache_mode", "force_generic_plan")];

    async fn commit(&self, writer: &mut Writer, items: &[Spend]) -> Result<Vec<Reply<Self::Answer>>, DbError> {
        let batch = Batch::new(items);
        let mut tx = writer.begin(Self::NAME).await?;
        let standings = match self.insert_and_look(tx.connection(), &batch).await {
            Ok(standings) => standings,
            Err(error) => {
                tx.rollback().await;
                return Err(error);
            }
        };
        let results = batch.results(&standings);
        if let Err(error) = acknowledge(&mut tx, &results).await {
            tx.rollback().await;
            return Err(error);
        }
        tx.commit().await?;
        Ok(results.into_iter().map(reply).collect())
    }
}

/// Has a batch counted that tells once more of a spend.
async fn acknowledge(tx: &mut BatchTx<'_>, results: &[BatchResult]) -> Result<(), DbError> {
    if results.iter().any(|result| result.replayed) { tx.acknowledge_again().await } else { Ok(()) }
}

fn reply(result: BatchResult) -> Reply<Result<Spent, LedgerError>> {
    let BatchResult { outcome, spend_id, replayed } = result;
    Reply::Done(match outcome {
        Outcome::Fresh => Ok(Spent { spend_id, replayed }),
        Outcome::UnknownKey => Err(LedgerError::UnknownKey),
        Outcome::KeyExpired => Err(LedgerError::KeyExpired),
        Outcome::KeyNotYetValid => Err(LedgerError::KeyNotYetValid),
        Outcome::AlreadySpent => Err(LedgerError::AlreadySpent),
        // What was in its way is gone. Inserting it now would take locks out of order.
        Outcome::NotSpent => return Reply::Alone,
    })
}

async fn spend_many_in(tx: &mut Tx, batch: &Batch<'_>) -> Result<Vec<BatchResult>, LedgerError> {
    let standings = insert_and_look(tx.connection(), batch).await?;
    let results: Vec<_> = batch.results(&standings);
    // Inserting the rest now would take locks out of order: everything again.
    if results.iter().any(|result| result.outcome == Outcome::NotSpent) {
        return Err(changed_meanwhile());
    }
    if results.iter().any(|result| result.replayed) {
        tx.acknowledge_again().await?;
    }
    Ok(results)
}

async fn spend_together_in(tx: &mut Tx, batch: &Batch<'_>) -> Result<Vec<BatchResult>, LedgerError> {
    let refused = |result: &BatchResult| !matches!(result.outcome, Outcome::Fresh | Outcome::NotSpent);
    if batch.has_repeats() {
        let standings = spends::look(tx.connection(), &batch.rows).await?;
        return Err(LedgerError::BatchRefused { results: batch.results_with_repeats_refused(&standings) });
    }
    let standings = insert_and_look(tx.connection(), batch).await?;
    let results = batch.results(&standings);
    if results.iter().any(refused) {
        // The error rolls back what was inserted here. Those tokens are told as of the look, like the others: as if nobody had asked,
        // under keys whose window may have ended since the insert.
        let rolled_back = standings.map(|standings| {
            standings
                .into_iter()
                .map(|standing| {
                    if standing.inserted_here {
                        Standing { spend_id: None, inserted_here: false, ..standing }
                    } else {
                        standing
                    }
                })
                .collect()
        });
        return Err(LedgerError::BatchRefused { results: batch.results(&rolled_back) });
    }
    if results.iter().any(|result| result.outcome == Outcome::NotSpent) {
        return Err(changed_meanwhile());
    }
    if results.iter().any(|result| result.replayed) {
        tx.acknowledge_again().await?;
    }
    Ok(results)
}

/// Inserts what can be inserted and gives what then stands of each token of the batch; none when everything was inserted.
async fn insert_and_look(connection: &mut PgConnection, batch: &Batch<'_>) -> Result<Option<Vec<Standing>>, DbError> {
    let inserted = spends::insert_many(connection, &batch.rows).await?;
    look_unless_all(connection, batch, inserted).await
}

async fn look_unless_all(
    connection: &mut PgConnection,
    batch: &Batch<'_>,
    inserted: usize,
) -> Result<Option<Vec<Standing>>, DbError> {
    if inserted == batch.rows.len() { Ok(None) } else { spends::look(connection, &batch.rows).await.map(Some) }
}

async fn give_back_in(tx: &mut Tx, spend: &Spend) -> Result<(), LedgerError> {
    if tx.delete_spend(&spend.row()).await? {
        return Ok(());
    }
    let standing = look_at(tx.connection(), spend).await?;
    let remembered = standing.key.is_some_and(|key| key.state != KeyState::Swept);
    match standing.spend_id.filter(|_| remembered) {
        None => Err(LedgerError::NotSpent),
        // Spent again under the same id since the statement before.
        Some(id) if id == spend.spend_id.as_uuid() => Err(changed_meanwhile()),
        Some(_) => Err(LedgerError::SpentByAnother),
    }
}

/// A batch with its tokens in the order in which all batches are inserted, each once.
struct Batch<'a> {
    spends: &'a [Spend],
    /// The first spend of every token, sorted by token.
    rows: Vec<SpendRow<'a>>,
    /// For every spend, in the caller's order: where its token is in `rows`, and whether that row is this very spend.
    places: Vec<(usize, bool)>,
}

impl<'a> Batch<'a> {
    fn new(spends: &'a [Spend]) -> Self {
        let mut order: Vec<usize> = (0..spends.len()).collect();
        // Stable: of the same token the caller's first stays first.
        order.sort_by_key(|&index| &spends[index].token);
        let mut rows = Vec::with_capacity(spends.len());
        let mut places = vec![(0, false); spends.len()];
        let mut last: Option<&Spend> = None;
        for index in order {
            let spend = &spends[index];
            let first = last.is_none_or(|last| last.token != spend.token);
            if first {
                rows.push(spend.row());
            }
            places[index] = (rows.len() - 1, first);
            last = Some(spend);
        }
        Self { spends, rows, places }
    }

    fn has_repeats(&self) -> bool {
        self.rows.len() < self.spends.len()
    }

    /// What every spend came to; [`Outcome::NotSpent`] when nothing stands in its way and yet it was not inserted.
    fn results(&self, standings: &Option<Vec<Standing>>) -> Vec<BatchResult> {
        self.each(|spend, place, first| {
            let standing = standings.as_ref().map(|standings| &standings[place]);
            match standing {
                Some(standing) if !standing.inserted_here => outcome(standing, spend.spend_id),
                _ if first => (Outcome::Fresh, false),
                // The same token again: the first has just spent it.
                _ if self.rows[place].spend_id == spend.spend_id.as_uuid() => (Outcome::Fresh, true),
                _ => (Outcome::AlreadySpent, false),
            }
        })
    }

    /// The same for an atomic batch into which nothing was inserted because it has a token twice.
    fn results_with_repeats_refused(&self, standings: &[Standing]) -> Vec<BatchResult> {
        self.each(
            |spend, place, first| {
                if first { outcome(&standings[place], spend.spend_id) } else { (Outcome::AlreadySpent, false) }
            },
        )
    }

    fn each(&self, outcome: impl Fn(&Spend, usize, bool) -> (Outcome, bool)) -> Vec<BatchResult> {
        let spends = self.spends.iter().zip(&self.places);
        spends
            .map(|(spend, &(place, first))| {
                let (outcome, replayed) = outcome(spend, place, first);
                BatchResult { outcome, spend_id: spend.spend_id, replayed }
            })
            .collect()
    }
}
