//! Pending bets: rounds whose result is concealed and reservations whose result is owed.
//!
//! Keeps I4: the one end that wins deletes the row, after it counted `seeds.pending` down; a step counts `next_step` up.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::bets::{BetKey, BetKind};
use super::seeds::LockedSeed;
use super::writer::BatchTx;
use super::{Access, DbError, Tx, decode};

/// A pending bet's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRow {
    /// The bet.
    pub key: BetKey,
    /// Round or reservation.
    pub kind: BetKind,
    /// When a reservation is void.
    pub expires_at: Option<DateTime<Utc>>,
    /// That time has come, by the database's clock.
    pub expired: bool,
    /// Index of the round's next step.
    pub next_step: u32,
    /// Cards disclosed so far.
    pub cards_shown: u32,
    /// A step disclosed a mine.
    pub mine_shown: bool,
}

macro_rules! pending_row {
    ($row:expr) => {{
        let row = $row;
        Ok::<_, DbError>(PendingRow {
            key: BetKey {
                session_id: row.session_id,
                seed_no: row.seed_no,
                nonce: decode::unsigned("pending bet", row.nonce)?,
            },
            kind: BetKind::parse(&row.kind)?,
            expires_at: row.expires_at,
            expired: row.expired,
            next_step: decode::unsigned32("pending bet", row.next_step)?,
            cards_shown: decode::unsigned32("pending bet", row.cards_shown)?,
            mine_shown: row.mine_shown,
        })
    }};
}

/// What may end a pending bet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndOf {
    /// Any round or any reservation that has not expired.
    Unexpired,
    /// The same, but no round that disclosed a mine.
    UnexpiredWithoutMine,
    /// A reservation that has expired.
    Expired,
}

impl<A: Access> Tx<A> {
    /// Reads a pending row.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn pending_bet(&mut self, key: &BetKey) -> Result<Option<PendingRow>, DbError> {
        sqlx::query!(
            r#"SELECT session_id, seed_no, nonce, kind, expires_at, coalesce(expires_at <= clock_timestamp(), false) AS "expired!",
                      next_step, cards_shown, mine_shown
               FROM fairledger.pending WHERE session_id = $1 AND seed_no = $2 AND nonce = $3"#,
            key.session_id,
            key.seed_no,
            key.nonce_i64(),
        )
        .fetch_optional(&mut *self.inner)
        .await?
        .map(|row| pending_row!(row))
        .transpose()
    }

    /// Pending bets of a seed by nonce, with their references. There are few: their number is capped.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn pending_bets(&mut self, session_id: Uuid, seed_no: i32) -> Result<Vec<(PendingRow, String)>, DbError> {
        let rows = sqlx::query!(
            r#"SELECT p.session_id, p.seed_no, p.nonce, p.kind, p.expires_at,
                      coalesce(p.expires_at <= clock_timestamp(), false) AS "expired!", p.next_step, p.cards_shown, p.mine_shown, b.bet_ref
               FROM fairledger.pending p JOIN fairledger.bets b USING (session_id, seed_no, nonce)
               WHERE p.session_id = $1 AND p.seed_no = $2 ORDER BY p.nonce"#,
            session_id,
            seed_no,
        )
        .fetch_all(&mut *self.inner)
        .await?;
        rows.into_iter()
            .map(|row| {
                let bet_ref = row.bet_ref.clone();
                Ok((pending_row!(row)?, bet_ref))
            })
            .collect()
    }
}

impl Tx {
    /// Stores a pending row. A reservation has an expiry, a round none.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn insert_pending(
        &mut self,
        key: &BetKey,
        kind: BetKind,
        taken_at: DateTime<Utc>,
        expires_at: Option<DateTime<Utc>>,
    ) -> Result<(), DbError> {
        let inserted = sqlx::query!(
            "INSERT INTO fairledger.pending (session_id, seed_no, nonce, kind, taken_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6)",
            key.session_id,
            key.seed_no,
            key.nonce_i64(),
            kind.as_str(),
            taken_at,
            expires_at,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        decode::exactly_one("pending bet", inserted)
    }

    /// Takes out a pending row whose seed was counted down in this transaction; none when it is not there or may not end so.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn take_pending(&mut self, key: &BetKey, kind: BetKind, end: EndOf) -> Result<bool, DbError> {
        let taken = sqlx::query!(
            "DELETE FROM fairledger.pending
             WHERE session_id = $1 AND seed_no = $2 AND nonce = $3 AND kind = $4
               AND coalesce(expires_at <= clock_timestamp(), false) = $5 AND NOT (mine_shown AND $6)",
            key.session_id,
            key.seed_no,
            key.nonce_i64(),
            kind.as_str(),
            end == EndOf::Expired,
            end == EndOf::UnexpiredWithoutMine,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        Ok(taken == 1)
    }

    /// Takes out every pending row of a locked seed, by nonce.
    ///
    /// # Errors
    /// Those of the database; corruption when their number is not the seed's count.
    pub async fn take_all_pending(&mut self, seed: &LockedSeed) -> Result<Vec<PendingRow>, DbError> {
        let rows = sqlx::query!(
            r#"DELETE FROM fairledger.pending WHERE session_id = $1 AND seed_no = $2
               RETURNING session_id, seed_no, nonce, kind, expires_at, coalesce(expires_at <= clock_timestamp(), false) AS "expired!",
                         next_step, cards_shown, mine_shown"#,
            seed.session_id,
            seed.seed_no,
        )
        .fetch_all(&mut *self.inner)
        .await?;
        let mut taken = rows.into_iter().map(|row| pending_row!(row)).collect::<Result<Vec<_>, _>>()?;
        if taken.len() != seed.pending as usize {
            let detail = format!("{} pending rows where the seed counts {}", taken.len(), seed.pending);
            return Err(super::corrupt("seed", detail));
        }
        taken.sort_unstable_by_key(|row| row.key);
        Ok(taken)
    }

    /// Counts a round's next step up and with it what the step discloses; gives how many cards were shown before. None when the round
    /// is not there, its next step is another, or it disclosed a mine already.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn advance_round(
        &mut self,
        key: &BetKey,
        index: u32,
        cards: u32,
        mine_shown: bool,
    ) -> Result<Option<u32>, DbError> {
        sqlx::query_scalar!(
            r#"UPDATE fairledger.pending SET next_step = next_step + 1, cards_shown = cards_shown + $5, mine_shown = $6
               WHERE session_id = $1 AND seed_no = $2 AND nonce = $3 AND kind = 'round' AND next_step = $4 AND NOT mine_shown
               RETURNING cards_shown - $5 AS "before!""#,
            key.session_id,
            key.seed_no,
            key.nonce_i64(),
            index.cast_signed(),
            cards.cast_signed(),
            mine_shown,
        )
        .fetch_optional(&mut *self.inner)
        .await?
        .map(|before| decode::unsigned32("pending bet", before))
        .transpose()
    }

    /// Expired reservations anywhere, the longest expired first.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn expired_reservations(&mut self, limit: i64) -> Result<Vec<BetKey>, DbError> {
        sqlx::query!(
            "SELECT session_id, seed_no, nonce FROM fairledger.pending WHERE expires_at <= clock_timestamp()
             ORDER BY expires_at LIMIT $1",
            limit,
        )
        .fetch_all(&mut *self.inner)
        .await?
        .into_iter()
        .map(|row| {
            Ok(BetKey {
                session_id: row.session_id,
                seed_no: row.seed_no,
                nonce: decode::unsigned("pending bet", row.nonce)?,
            })
        })
        .collect()
    }

    /// Expired reservations of one session.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn expired_reservations_of(&mut self, session_id: Uuid) -> Result<Vec<BetKey>, DbError> {
        sqlx::query!(
            "SELECT session_id, seed_no, nonce FROM fairledger.pending WHERE session_id = $1 AND expires_at <= clock_timestamp()
             ORDER BY seed_no, nonce",
            session_id,
        )
        .fetch_all(&mut *self.inner)
        .await?
        .into_iter()
        .map(|row| {
            Ok(BetKey {
                session_id: row.session_id,
                seed_no: row.seed_no,
                nonce: decode::unsigned("pending bet", row.nonce)?,
            })
        })
        .collect()
    }
}

/// A pending row to be stored.
#[derive(Clone, Copy, Debug)]
pub struct NewPending {
    /// The bet.
    pub key: BetKey,
    /// Round or reservation.
    pub kind: BetKind,
    /// The bet's.
    pub taken_at: DateTime<Utc>,
    /// When a reservation is void.
    pub expires_at: Option<DateTime<Utc>>,
}

impl BatchTx<'_> {
    /// Stores pending rows. A reservation has an expiry, a round none.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn insert_pendings(&mut self, bets: &[NewPending]) -> Result<(), DbError> {
        let session_ids: Vec<Uuid> = bets.iter().map(|bet| bet.key.session_id).collect();
        let seed_nos: Vec<i32> = bets.iter().map(|bet| bet.key.seed_no).collect();
        let nonces: Vec<i64> = bets.iter().map(|bet| bet.key.nonce_i64()).collect();
        let kinds: Vec<&str> = bets.iter().map(|bet| bet.kind.as_str()).collect();
        let taken: Vec<DateTime<Utc>> = bets.iter().map(|bet| bet.taken_at).collect();
        let expiries: Vec<Option<DateTime<Utc>>> = bets.iter().map(|bet| bet.expires_at).collect();
        let inserted = sqlx::query!(
            "INSERT INTO fairledger.pending (session_id, seed_no, nonce, kind, taken_at, expires_at)
             SELECT * FROM unnest($1::uuid[], $2::integer[], $3::bigint[], $4::text[], $5::timestamptz[], $6::timestamptz[])",
            &session_ids,
            &seed_nos,
            &nonces,
            &kinds as &[&str],
            &taken,
            &expiries as &[Option<DateTime<Utc>>],
        )
        .execute(self.connection())
        .await?
        .rows_affected();
        if inserted == bets.len() as u64 {
            Ok(())
        } else {
            Err(super::corrupt("pending bet", format!("{inserted} rows stored of {}", bets.len())))
        }
    }
}
