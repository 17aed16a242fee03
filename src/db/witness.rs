//! The witness rows: how far each writer of each instance has come, as the database knows it.
//!
//! Serves I10: `count` is the guard of every fenced commit. Whatever joins or recovers takes one lock, so that a recovery meets every
//! row that there is.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::fence::Mark;
use super::{Access, DbError, Tx, decode};

/// Taken by whatever joins or recovers: "recovery" as ASCII.
const RECOVERY_LOCK: i64 = 0x7265_636f_7665_7279;

/// What [`count`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    /// The transaction changes or locks rows. Without that nothing is counted.
    pub written: bool,
    /// The writer's row was as expected and is counted up.
    pub counted: bool,
    /// The database's recovery epoch.
    pub epoch: i32,
    /// Writers of the instance that the database lacks something of.
    pub lost: i64,
    /// Some instance found a loss that no recovery has followed.
    pub posted: bool,
}

/// Counts a writer's row up if it is as expected, and compares all rows of the instance with what it has acknowledged. Does nothing in a
/// transaction that has written nothing.
pub(super) async fn count(
    connection: &mut PgConnection,
    instance: &str,
    writer: u32,
    expected: &Mark,
    acknowledged: &[Option<Mark>],
) -> Result<Counted, DbError> {
    let (writers, incarnations, seqs) = columns(acknowledged);
    // The row's own columns are the guard: a recovery that runs meanwhile locks it, and changes its epoch.
    let row = sqlx::query!(
        r#"WITH counted AS (
               UPDATE fairledger.witness SET seq = seq + 1
               WHERE instance = $1 AND writer = $2 AND incarnation = $3 AND epoch = $4 AND seq = $5
                 AND pg_current_xact_id_if_assigned() IS NOT NULL
               RETURNING 1)
           SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS "written!", EXISTS (SELECT FROM counted) AS "counted!",
                  (SELECT coalesce(max(epoch), 0) FROM fairledger.recoveries) AS "epoch!",
                  (SELECT count(*) FROM unnest($6::integer[], $7::uuid[], $8::bigint[]) AS a (writer, incarnation, seq)
                   LEFT JOIN fairledger.witness w ON w.instance = $1 AND w.writer = a.writer
                   WHERE w.seq IS NULL OR w.epoch < $4 OR (w.epoch = $4 AND (w.incarnation <> a.incarnation OR w.seq < a.seq)))
                  AS "lost!",
                  EXISTS (SELECT FROM fairledger.quarantines WHERE epoch >= $4) AS "posted!""#,
        instance,
        writer.cast_signed(),
        expected.incarnation,
        expected.epoch,
        expected.seq,
        &writers,
        &incarnations,
        &seqs,
    )
    .fetch_one(connection)
    .await?;
    Ok(Counted { written: row.written, counted: row.counted, epoch: row.epoch, lost: row.lost, posted: row.posted })
}

/// Makes a transaction one that is counted, though it writes nothing.
pub(super) async fn be_counted(connection: &mut PgConnection) -> Result<(), DbError> {
    sqlx::query!("SELECT pg_current_xact_id() IS NOT NULL AS counted").fetch_one(connection).await?;
    Ok(())
}

/// Marks by writer, as columns: numbers, incarnations, counts.
fn columns(marks: &[Option<Mark>]) -> (Vec<i32>, Vec<Uuid>, Vec<i64>) {
    let marks = (0..).zip(marks).filter_map(|(writer, mark)| Some((writer, (*mark)?)));
    marks.map(|(writer, mark)| (writer, mark.incarnation, mark.seq)).collect()
}

/// The rows of an instance by writer; none where a writer has none, and nothing beyond the last.
pub(super) async fn rows(connection: &mut PgConnection, instance: &str) -> Result<Vec<Option<Mark>>, DbError> {
    let mut marks = Vec::new();
    let rows = sqlx::query!(
        "SELECT writer, incarnation, epoch, seq FROM fairledger.witness WHERE instance = $1 ORDER BY writer",
        instance,
    )
    .fetch_all(connection)
    .await?;
    for row in rows {
        let writer = decode::unsigned32("witness", row.writer)? as usize;
        marks.resize(writer, None);
        marks.push(Some(Mark { incarnation: row.incarnation, epoch: row.epoch, seq: row.seq }));
    }
    Ok(marks)
}

/// Lets a writer start anew.
pub(super) async fn start_writer(
    connection: &mut PgConnection,
    instance: &str,
    writer: u32,
    mark: &Mark,
) -> Result<(), DbError> {
    sqlx::query!(
        "INSERT INTO fairledger.witness (instance, writer, incarnation, epoch, seq) VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (instance, writer) DO UPDATE SET incarnation = $3, epoch = $4, seq = $5",
        instance,
        writer.cast_signed(),
        mark.incarnation,
        mark.epoch,
        mark.seq,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// What a fence needs to know of the database before it lets anything through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Situation {
    /// The database's recovery epoch.
    pub epoch: i32,
    /// The latest epoch in which some instance found a loss that no recovery has followed.
    pub posted: Option<i32>,
    /// There are sessions or keys.
    pub has_data: bool,
}

pub(super) async fn situation(connection: &mut PgConnection) -> Result<Situation, DbError> {
    let row = sqlx::query!(
        r#"SELECT e.epoch AS "epoch!", (SELECT max(q.epoch) FROM fairledger.quarantines q WHERE q.epoch >= e.epoch) AS posted,
                  (EXISTS (SELECT FROM fairledger.sessions) OR EXISTS (SELECT FROM fairledger.token_keys) OR e.epoch > 0) AS "has_data!"
           FROM (SELECT coalesce(max(epoch), 0) AS epoch FROM fairledger.recoveries) AS e"#
    )
    .fetch_one(connection)
    .await?;
    Ok(Situation { epoch: row.epoch, posted: row.posted, has_data: row.has_data })
}

/// Keeps others from joining and recovering until the transaction ends.
pub(super) async fn lock(connection: &mut PgConnection) -> Result<(), DbError> {
    sqlx::query!("SELECT pg_advisory_xact_lock($1)", RECOVERY_LOCK).execute(connection).await?;
    Ok(())
}

/// Tells every instance that one found a loss.
pub(super) async fn post(
    connection: &mut PgConnection,
    instance: &str,
    epoch: i32,
    reason: &str,
) -> Result<(), DbError> {
    let reason: String = reason.chars().take(1_000).collect();
    sqlx::query!(
        "INSERT INTO fairledger.quarantines (instance, epoch, reason) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        instance,
        epoch,
        reason,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// A loss that some instance found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantineRow {
    /// The instance.
    pub instance: String,
    /// The epoch it worked in.
    pub epoch: i32,
    /// When it found the loss.
    pub found_at: DateTime<Utc>,
    /// What was missing.
    pub reason: String,
}

/// The writers of an instance, as the database knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceRows {
    /// The instance.
    pub instance: String,
    /// Its writers' marks.
    pub marks: Vec<Option<Mark>>,
}

/// How much a recovery would end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affected {
    /// Open sessions: each has a live seed, and most a next one.
    pub sessions: i64,
    /// Bets pending.
    pub pending: i64,
    /// Keys open.
    pub keys: i64,
}

impl<A: Access> Tx<A> {
    /// Losses that were found and that no recovery has followed.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn quarantines_in_force(&mut self) -> Result<Vec<QuarantineRow>, DbError> {
        let rows = sqlx::query_as!(
            QuarantineRow,
            "SELECT instance, epoch, found_at, reason FROM fairledger.quarantines
             WHERE epoch >= (SELECT coalesce(max(epoch), 0) FROM fairledger.recoveries) ORDER BY found_at, instance"
        );
        Ok(rows.fetch_all(&mut *self.inner).await?)
    }

    /// Every instance that ever joined, with its writers.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn witnesses(&mut self) -> Result<Vec<InstanceRows>, DbError> {
        let instances = sqlx::query_scalar!("SELECT DISTINCT instance FROM fairledger.witness ORDER BY instance")
            .fetch_all(&mut *self.inner)
            .await?;
        let mut witnesses = Vec::with_capacity(instances.len());
        for instance in instances {
            let marks = rows(&mut self.inner, &instance).await?;
            witnesses.push(InstanceRows { instance, marks });
        }
        Ok(witnesses)
    }

    /// How much a recovery would end now.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn affected_by_recovery(&mut self) -> Result<Affected, DbError> {
        let affected = sqlx::query_as!(
            Affected,
            r#"SELECT (SELECT count(*) FROM fairledger.sessions WHERE status = 'open') AS "sessions!",
                      (SELECT count(*) FROM fairledger.pending) AS "pending!",
                      (SELECT count(*) FROM fairledger.token_keys WHERE state = 'open') AS "keys!""#
        );
        Ok(affected.fetch_one(&mut *self.inner).await?)
    }
}

impl Tx {
    /// Keeps others from joining and recovering until the transaction ends.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn lock_recovery(&mut self) -> Result<(), DbError> {
        lock(&mut self.inner).await
    }

    /// Opens a new epoch: every open key is closed, every instance's writers are told to begin again, and the event is stored. Waits for every
    /// fenced transaction that is about to commit, and none of the old epoch commits after this. As the owner, under
    /// [`Tx::lock_recovery`].
    ///
    /// # Errors
    /// Those of the database.
    pub async fn open_epoch(&mut self, epoch: i32, reason: &str, findings: &str) -> Result<DateTime<Utc>, DbError> {
        // In the order in which closing a key takes its rows: the key's, then the writer's.
        self.lock_keys().await?;
        sqlx::query!(
            "UPDATE fairledger.token_keys SET state = 'closed', closed_at = clock_timestamp() WHERE state = 'open'"
        )
        .execute(&mut *self.inner)
        .await?;
        sqlx::query!("UPDATE fairledger.witness SET epoch = $1, seq = 0", epoch).execute(&mut *self.inner).await?;
        Ok(sqlx::query_scalar!(
            "INSERT INTO fairledger.recoveries (epoch, reason, findings) VALUES ($1, $2, $3::text::json) RETURNING recovered_at",
            epoch,
            reason,
            findings,
        )
        .fetch_one(&mut *self.inner)
        .await?)
    }
}
