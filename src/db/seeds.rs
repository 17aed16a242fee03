//! Seeds: commitments, the live seed with its nonce counter, the committed next one, reveals.
//!
//! Keeps I3 (seed and counter are one row, and a nonce is handed out by counting it up) and I7 (what is read back hashes to its
//! commitment, or the read fails).

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::decode::StoredTime;
use super::sessions::LockedSession;
use super::writer::BatchTx;
use super::{Access, DbError, Tx, corrupt, decode};
use crate::gfs::seed::{ClientSeed, Commitment, ServerSeed};

/// A server seed as it is stored: readable only with the key ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedSeed {
    /// The key it is sealed under.
    pub key_id: String,
    /// Version, nonce, ciphertext and tag.
    pub bytes: Vec<u8>,
}

/// Where a seed's client seed came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientSeedSource {
    /// Made here, with the session or by a recovery.
    Generated,
    /// Set by the caller.
    Player,
    /// Carried over by a rotation that named none.
    Kept,
    /// Brought by the application together with the server seed.
    Application,
}

impl ClientSeedSource {
    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Generated => "generated",
            Self::Player => "player",
            Self::Kept => "kept",
            Self::Application => "application",
        }
    }

    fn parse(text: &str) -> Result<Self, DbError> {
        match text {
            "generated" => Ok(Self::Generated),
            "player" => Ok(Self::Player),
            "kept" => Ok(Self::Kept),
            "application" => Ok(Self::Application),
            other => Err(corrupt("seed", format!("client seed source {other:?}"))),
        }
    }
}

/// What ended a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetiredBy {
    /// A rotation.
    Rotation,
    /// A change of the client seed.
    ClientSeed,
    /// The session was closed.
    Closing,
    /// The session was closed because nobody used it.
    Idle,
    /// The application put or revealed another seed.
    Replaced,
    /// The application session's time to live was over.
    Expiry,
    /// A recovery.
    Recovery,
}

impl RetiredBy {
    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rotation => "rotation",
            Self::ClientSeed => "client_seed",
            Self::Closing => "closing",
            Self::Idle => "idle",
            Self::Replaced => "replaced",
            Self::Expiry => "expiry",
            Self::Recovery => "recovery",
        }
    }

    fn parse(text: &str) -> Result<Self, DbError> {
        match text {
            "rotation" => Ok(Self::Rotation),
            "client_seed" => Ok(Self::ClientSeed),
            "closing" => Ok(Self::Closing),
            "idle" => Ok(Self::Idle),
            "replaced" => Ok(Self::Replaced),
            "expiry" => Ok(Self::Expiry),
            "recovery" => Ok(Self::Recovery),
            other => Err(corrupt("seed", format!("retired by {other:?}"))),
        }
    }
}

/// Where a seed is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeedStatus {
    /// Bets are taken under it.
    Live,
    /// Ended and shown in clear: it has bets, or may have had some that a recovery found lost.
    Revealed,
    /// Ended without a bet.
    Discarded,
}

impl SeedStatus {
    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Revealed => "revealed",
            Self::Discarded => "discarded",
        }
    }

    fn parse(text: &str) -> Result<Self, DbError> {
        match text {
            "live" => Ok(Self::Live),
            "revealed" => Ok(Self::Revealed),
            "discarded" => Ok(Self::Discarded),
            other => Err(corrupt("seed", format!("status {other:?}"))),
        }
    }
}

/// The client seed of a seed that is or was live.
#[derive(Clone, Debug)]
pub struct ClientSide {
    /// The text.
    pub client_seed: ClientSeed,
    /// Where it came from.
    pub source: ClientSeedSource,
    /// When that text was first set.
    pub set_at: DateTime<Utc>,
    /// When the seed went live with it.
    pub live_at: DateTime<Utc>,
}

/// A seed that is or was live, or was discarded before that.
#[derive(Clone, Debug)]
pub struct SeedRow {
    /// Its session.
    pub session_id: Uuid,
    /// Its number in the session.
    pub seed_no: i32,
    /// Its commitment.
    pub commitment: Commitment,
    /// The server seed, sealed.
    pub sealed: SealedSeed,
    /// Client seed and time of going live; none when it was discarded before.
    pub client: Option<ClientSide>,
    /// The recovery epoch it was committed in.
    pub epoch: i32,
    /// When it was committed.
    pub committed_at: DateTime<Utc>,
    /// Where it is in its life.
    pub status: SeedStatus,
    /// The next nonce, and so the number of bets.
    pub next_nonce: u64,
    /// How many of its bets are pending.
    pub pending: u32,
    /// When and by what it ended.
    pub retired: Option<(DateTime<Utc>, RetiredBy)>,
    /// The seed in clear with the time of its reveal, checked against the commitment.
    pub revealed: Option<(ServerSeed, DateTime<Utc>)>,
}

impl SeedRow {
    /// The client side of a seed that must have gone live.
    ///
    /// # Errors
    /// Corruption when it has none.
    pub fn client_side(&self) -> Result<&ClientSide, DbError> {
        self.client.as_ref().ok_or_else(|| corrupt("seed", "no client seed where there must be one"))
    }
}

/// The committed seed that is not in use yet.
#[derive(Clone, Debug)]
pub struct NextSeedRow {
    /// The number it will have.
    pub seed_no: i32,
    /// Its commitment.
    pub commitment: Commitment,
    /// The server seed, sealed.
    pub sealed: SealedSeed,
    /// The recovery epoch it was committed in.
    pub epoch: i32,
    /// When it was committed.
    pub committed_at: DateTime<Utc>,
}

/// Proof that a seed's row is locked in this transaction: its counters do not move and it does not end meanwhile.
#[derive(Debug)]
pub struct LockedSeed(SeedRow);

impl std::ops::Deref for LockedSeed {
    type Target = SeedRow;

    fn deref(&self) -> &SeedRow {
        &self.0
    }
}

/// A nonce that was just handed out, and what its bet is calculated with. The seed's row is locked until the transaction ends.
#[derive(Debug)]
pub struct ReservedNonce {
    /// The seed's number in the session.
    pub seed_no: i32,
    /// The nonce.
    pub nonce: u64,
    /// The client seed.
    pub client_seed: ClientSeed,
    /// The server seed, sealed.
    pub sealed: SealedSeed,
    /// When: by the database's clock, and later than the commitment whatever that clock did.
    pub taken_at: DateTime<Utc>,
}

/// How many nonces of a seed a batch wants, and for what.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The session.
    pub session_id: Uuid,
    /// The seed that must be live.
    pub commitment: Commitment,
    /// Bets.
    pub bets: u32,
    /// How many of them will be pending.
    pub pending: u32,
}

macro_rules! seed_row {
    ($row:expr) => {{
        let row = $row;
        let what = "seed";
        let commitment = decode::commitment(what, &row.commitment)?;
        let time = |time| decode::time_opt(what, time);
        let client = match (row.client_seed, row.client_seed_source, time(row.client_seed_at)?, time(row.live_at)?) {
            (Some(text), Some(source), Some(set_at), Some(live_at)) => Some(ClientSide {
                client_seed: decode::client_seed(what, &text)?,
                source: ClientSeedSource::parse(&source)?,
                set_at,
                live_at,
            }),
            (None, None, None, None) => None,
            _ => return Err(corrupt(what, "half a client seed")),
        };
        let retired = match (time(row.retired_at)?, row.retired_by) {
            (Some(at), Some(by)) => Some((at, RetiredBy::parse(&by)?)),
            (None, None) => None,
            _ => return Err(corrupt(what, "half an end")),
        };
        let revealed = match (row.server_seed, time(row.revealed_at)?) {
            (Some(bytes), Some(at)) => Some((decode::revealed_seed(what, &bytes, &commitment)?, at)),
            (None, None) => None,
            _ => return Err(corrupt(what, "half a reveal")),
        };
        let status = SeedStatus::parse(&row.status)?;
        if (status == SeedStatus::Revealed) != (revealed.is_some() || row.reveal_due)
            || revealed.is_some() && row.reveal_due
        {
            let reveal = match (revealed.is_some(), row.reveal_due) {
                (true, true) => "there and due",
                (true, false) => "there",
                (false, true) => "due",
                (false, false) => "missing",
            };
            return Err(corrupt(what, format!("status {} and a reveal that is {reveal}", status.as_str())));
        }
        Ok::<_, DbError>(SeedRow {
            session_id: row.session_id,
            seed_no: row.seed_no,
            commitment,
            sealed: SealedSeed { key_id: row.seal_key_id, bytes: row.sealed_seed },
            client,
            epoch: row.epoch,
            committed_at: row.committed_at.time(what)?,
            status,
            next_nonce: decode::unsigned(what, row.next_nonce)?,
            pending: decode::unsigned32(what, row.pending)?,
            retired,
            revealed,
        })
    }};
}

impl<A: Access> Tx<A> {
    /// Where a commitment's seed is.
    ///
    /// # Errors
    /// Those of the database; corruption where the directory leads to another seed, or to none.
    pub async fn find_commitment(&mut self, commitment: &Commitment) -> Result<Option<(Uuid, i32)>, DbError> {
        let row = sqlx::query!(
            r#"SELECT c.session_id, c.seed_no, (s.session_id IS NOT NULL OR n.session_id IS NOT NULL) AS "is_there!"
               FROM fairledger.commitments c
               LEFT JOIN fairledger.seeds s
                      ON s.session_id = c.session_id AND s.seed_no = c.seed_no AND s.commitment = c.commitment
               LEFT JOIN fairledger.next_seeds n
                      ON n.session_id = c.session_id AND n.seed_no = c.seed_no AND n.commitment = c.commitment
               WHERE c.commitment = $1"#,
            commitment.as_bytes().as_slice(),
        )
        .fetch_optional(&mut *self.inner)
        .await?;
        match row {
            Some(row) if !row.is_there => Err(corrupt("commitment", "the directory leads to another seed, or to none")),
            row => Ok(row.map(|row| (row.session_id, row.seed_no))),
        }
    }

    /// Reads the next seed.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn next_seed(&mut self, session_id: Uuid) -> Result<Option<NextSeedRow>, DbError> {
        sqlx::query!(
            r#"SELECT seed_no, commitment, sealed_seed, seal_key_id, epoch, committed_at AS "committed_at: StoredTime"
               FROM fairledger.next_seeds WHERE session_id = $1"#,
            session_id,
        )
        .fetch_optional(&mut *self.inner)
        .await?
        .map(|row| {
            Ok(NextSeedRow {
                seed_no: row.seed_no,
                commitment: decode::commitment("next seed", &row.commitment)?,
                sealed: SealedSeed { key_id: row.seal_key_id, bytes: row.sealed_seed },
                epoch: row.epoch,
                committed_at: row.committed_at.time("next seed")?,
            })
        })
        .transpose()
    }

    /// Reads one seed of a session by its number.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn seed(&mut self, session_id: Uuid, seed_no: i32) -> Result<Option<SeedRow>, DbError> {
        let row = sqlx::query!(
            r#"SELECT s.session_id, s.seed_no, s.commitment, s.sealed_seed, s.seal_key_id, s.client_seed, s.client_seed_source,
                      s.client_seed_at AS "client_seed_at: StoredTime", s.epoch, s.committed_at AS "committed_at: StoredTime",
                      s.live_at AS "live_at: StoredTime", s.status, s.next_nonce, s.pending, s.retired_at AS "retired_at: StoredTime", s.retired_by,
                      r.server_seed AS "server_seed?", r.revealed_at AS "revealed_at?: StoredTime", (d.seed_no IS NOT NULL) AS "reveal_due!"
               FROM fairledger.seeds s LEFT JOIN fairledger.reveals r USING (session_id, seed_no)
               LEFT JOIN fairledger.reveals_due d USING (session_id, seed_no)
               WHERE s.session_id = $1 AND s.seed_no = $2"#,
            session_id,
            seed_no,
        )
        .fetch_optional(&mut *self.inner)
        .await?;
        match row {
            Some(row) => Ok(Some(seed_row!(row)?)),
            None => Ok(None),
        }
    }

    /// Reads the seed that is live, or was the last to be.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn latest_seed(&mut self, session_id: Uuid) -> Result<Option<SeedRow>, DbError> {
        let row = sqlx::query!(
            r#"SELECT s.session_id, s.seed_no, s.commitment, s.sealed_seed, s.seal_key_id, s.client_seed, s.client_seed_source,
                      s.client_seed_at AS "client_seed_at: StoredTime", s.epoch, s.committed_at AS "committed_at: StoredTime",
                      s.live_at AS "live_at: StoredTime", s.status, s.next_nonce, s.pending, s.retired_at AS "retired_at: StoredTime", s.retired_by,
                      r.server_seed AS "server_seed?", r.revealed_at AS "revealed_at?: StoredTime", (d.seed_no IS NOT NULL) AS "reveal_due!"
               FROM fairledger.seeds s LEFT JOIN fairledger.reveals r USING (session_id, seed_no)
               LEFT JOIN fairledger.reveals_due d USING (session_id, seed_no)
               WHERE s.session_id = $1 AND s.live_at IS NOT NULL ORDER BY s.seed_no DESC LIMIT 1"#,
            session_id,
        )
        .fetch_optional(&mut *self.inner)
        .await?;
        match row {
            Some(row) => Ok(Some(seed_row!(row)?)),
            None => Ok(None),
        }
    }

    /// Reads every seed of a session but the next, newest first.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn seeds(&mut self, session_id: Uuid, limit: i64) -> Result<Vec<SeedRow>, DbError> {
        let rows = sqlx::query!(
            r#"SELECT s.session_id, s.seed_no, s.commitment, s.sealed_seed, s.seal_key_id, s.client_seed, s.client_seed_source,
                      s.client_seed_at AS "client_seed_at: StoredTime", s.epoch, s.committed_at AS "committed_at: StoredTime",
                      s.live_at AS "live_at: StoredTime", s.status, s.next_nonce, s.pending, s.retired_at AS "retired_at: StoredTime", s.retired_by,
                      r.server_seed AS "server_seed?", r.revealed_at AS "revealed_at?: StoredTime", (d.seed_no IS NOT NULL) AS "reveal_due!"
               FROM fairledger.seeds s LEFT JOIN fairledger.reveals r USING (session_id, seed_no)
               LEFT JOIN fairledger.reveals_due d USING (session_id, seed_no)
               WHERE s.session_id = $1 ORDER BY s.seed_no DESC LIMIT $2"#,
            session_id,
            limit,
        )
        .fetch_all(&mut *self.inner)
        .await?;
        let mut seeds = Vec::with_capacity(rows.len());
        for row in rows {
            seeds.push(seed_row!(row)?);
        }
        Ok(seeds)
    }

    /// When the first bet under a seed was taken.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn first_bet_at(&mut self, session_id: Uuid, seed_no: i32) -> Result<Option<DateTime<Utc>>, DbError> {
        Ok(sqlx::query_scalar!(
            "SELECT taken_at FROM fairledger.bets WHERE session_id = $1 AND seed_no = $2 AND nonce = 0",
            session_id,
            seed_no,
        )
        .fetch_optional(&mut *self.inner)
        .await?)
    }
}

impl Tx {
    /// Enters a commitment in the directory; false when it was ever used before.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn insert_commitment(
        &mut self,
        commitment: &Commitment,
        session_id: Uuid,
        seed_no: i32,
    ) -> Result<bool, DbError> {
        let inserted = sqlx::query!(
            "INSERT INTO fairledger.commitments (commitment, session_id, seed_no) VALUES ($1, $2, $3)
             ON CONFLICT (commitment) DO NOTHING",
            commitment.as_bytes().as_slice(),
            session_id,
            seed_no,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        Ok(inserted == 1)
    }

    /// Commits to a next seed. Its time is the database's.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn insert_next_seed(
        &mut self,
        session_id: Uuid,
        seed_no: i32,
        commitment: &Commitment,
        sealed: &SealedSeed,
        epoch: i32,
    ) -> Result<(), DbError> {
        let inserted = sqlx::query!(
            "INSERT INTO fairledger.next_seeds (session_id, seed_no, commitment, sealed_seed, seal_key_id, epoch, committed_at)
             VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp())",
            session_id,
            seed_no,
            commitment.as_bytes().as_slice(),
            sealed.bytes,
            sealed.key_id,
            epoch,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        decode::exactly_one("next seed", inserted)
    }

    /// Takes the next seed out of its waiting place, to go live or to be discarded in this same transaction.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn take_next_seed(&mut self, session: &LockedSession) -> Result<Option<NextSeedRow>, DbError> {
        sqlx::query!(
            r#"DELETE FROM fairledger.next_seeds WHERE session_id = $1
               RETURNING seed_no, commitment, sealed_seed, seal_key_id, epoch, committed_at AS "committed_at: StoredTime""#,
            session.session_id,
        )
        .fetch_optional(&mut *self.inner)
        .await?
        .map(|row| {
            Ok(NextSeedRow {
                seed_no: row.seed_no,
                commitment: decode::commitment("next seed", &row.commitment)?,
                sealed: SealedSeed { key_id: row.seal_key_id, bytes: row.sealed_seed },
                epoch: row.epoch,
                committed_at: row.committed_at.time("next seed")?,
            })
        })
        .transpose()
    }

    /// Puts a seed in use at nonce 0, with its client seed.
    ///
    /// `committed_at` is none for a seed that is committed by this very statement. `client_seed_at` is none for a text that is new.
    ///
    /// # Errors
    /// Those of the database.
    #[expect(clippy::too_many_arguments, reason = "one column each")]
    pub async fn insert_live_seed(
        &mut self,
        session_id: Uuid,
        seed_no: i32,
        commitment: &Commitment,
        sealed: &SealedSeed,
        epoch: i32,
        committed_at: Option<DateTime<Utc>>,
        client_seed: &ClientSeed,
        source: ClientSeedSource,
        client_seed_at: Option<DateTime<Utc>>,
    ) -> Result<(), DbError> {
        let inserted = sqlx::query!(
            "INSERT INTO fairledger.seeds (session_id, seed_no, commitment, sealed_seed, seal_key_id, client_seed, client_seed_source,
                 client_seed_at, epoch, committed_at, live_at, status)
             SELECT $1, $2, $3, $4, $5, $6, $7, coalesce($8, t.live_at), $9, coalesce($10, t.live_at), t.live_at, 'live'
             FROM (SELECT greatest(clock_timestamp(), $10) AS live_at) AS t",
            session_id,
            seed_no,
            commitment.as_bytes().as_slice(),
            sealed.bytes,
            sealed.key_id,
            client_seed.as_str(),
            source.as_str(),
            client_seed_at,
            epoch,
            committed_at,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        decode::exactly_one("seed", inserted)
    }

    /// Keeps a next seed that will never be used.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn insert_discarded_seed(
        &mut self,
        session: &LockedSession,
        next: &NextSeedRow,
        by: RetiredBy,
    ) -> Result<(), DbError> {
        self.insert_ended_seed(session, next, SeedStatus::Discarded, by).await
    }

    /// Keeps a next seed that is to be revealed, once this is committed, although as far as this database knows it was never in use.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn insert_revealed_seed(
        &mut self,
        session: &LockedSession,
        next: &NextSeedRow,
        by: RetiredBy,
    ) -> Result<(), DbError> {
        self.insert_ended_seed(session, next, SeedStatus::Revealed, by).await?;
        self.note_reveal_due(session.session_id, next.seed_no).await
    }

    async fn insert_ended_seed(
        &mut self,
        session: &LockedSession,
        next: &NextSeedRow,
        status: SeedStatus,
        by: RetiredBy,
    ) -> Result<(), DbError> {
        let inserted = sqlx::query!(
            "INSERT INTO fairledger.seeds (session_id, seed_no, commitment, sealed_seed, seal_key_id, epoch, committed_at, status,
                 retired_at, retired_by)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, clock_timestamp(), $9)",
            session.session_id,
            next.seed_no,
            next.commitment.as_bytes().as_slice(),
            next.sealed.bytes,
            next.sealed.key_id,
            next.epoch,
            next.committed_at,
            status.as_str(),
            by.as_str(),
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        decode::exactly_one("seed", inserted)
    }

    /// Locks the live seed of a locked session. A statement of its own after the session's lock, so that it sees the seed that is live
    /// now.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn lock_live_seed(&mut self, session: &LockedSession) -> Result<Option<LockedSeed>, DbError> {
        let row = sqlx::query!(
            r#"SELECT s.session_id, s.seed_no, s.commitment, s.sealed_seed, s.seal_key_id, s.client_seed, s.client_seed_source,
                      s.client_seed_at AS "client_seed_at: StoredTime", s.epoch, s.committed_at AS "committed_at: StoredTime",
                      s.live_at AS "live_at: StoredTime", s.status, s.next_nonce, s.pending, s.retired_at AS "retired_at: StoredTime", s.retired_by,
                      NULL::bytea AS server_seed, NULL::timestamptz AS "revealed_at: StoredTime", false AS "reveal_due!"
               FROM fairledger.seeds s WHERE s.session_id = $1 AND s.status = 'live' FOR NO KEY UPDATE"#,
            session.session_id,
        )
        .fetch_optional(&mut *self.inner)
        .await?;
        match row {
            Some(row) => Ok(Some(LockedSeed(seed_row!(row)?))),
            None => Ok(None),
        }
    }

    /// Hands out the next nonce of the live seed, counting it up in the same statement; none when any guard fails: another
    /// commitment, a seed that ended, another epoch, no nonce left, or too many pending.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn reserve_nonce(
        &mut self,
        session_id: Uuid,
        commitment: &Commitment,
        epoch: i32,
        pending: bool,
        pending_max: u32,
    ) -> Result<Option<ReservedNonce>, DbError> {
        reserve_one(&mut self.inner, session_id, commitment, epoch, pending, pending_max).await
    }

    /// Counts the pending bets of a seed down by one, which locks it; false when there is none to count. Whatever ends a pending bet
    /// does this first.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn count_pending_down(&mut self, session_id: Uuid, seed_no: i32) -> Result<bool, DbError> {
        let counted = sqlx::query!(
            "UPDATE fairledger.seeds SET pending = pending - 1 WHERE session_id = $1 AND seed_no = $2 AND pending > 0",
            session_id,
            seed_no,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        Ok(counted == 1)
    }

    /// Ends a locked live seed, with all its pending bets already taken out: revealed when it has bets, discarded when not.
    ///
    /// # Errors
    /// Those of the database; corruption when the row is not as it was locked.
    pub async fn retire_seed(&mut self, seed: &LockedSeed, by: RetiredBy) -> Result<SeedStatus, DbError> {
        let status = if seed.next_nonce > 0 { SeedStatus::Revealed } else { SeedStatus::Discarded };
        self.end_seed(seed, status, by).await?;
        Ok(status)
    }

    /// Ends a locked live seed as revealed, with or without bets. All its pending bets are taken out already.
    ///
    /// # Errors
    /// As [`Tx::retire_seed`].
    pub async fn reveal_seed(&mut self, seed: &LockedSeed, by: RetiredBy) -> Result<(), DbError> {
        self.end_seed(seed, SeedStatus::Revealed, by).await
    }

    /// Whatever the clock did since, the seed's end is later than its bets, so that a reveal before a bet is never the clock's doing. Of
    /// more bets than these the earlier ones were taken long enough ago.
    async fn end_seed(&mut self, seed: &LockedSeed, status: SeedStatus, by: RetiredBy) -> Result<(), DbError> {
        let ended = sqlx::query!(
            "UPDATE fairledger.seeds SET status = $3, pending = 0, retired_by = $4,
                 retired_at = greatest(clock_timestamp(), live_at, (
                     SELECT max(b.taken_at) + interval '1 microsecond'
                     FROM (SELECT taken_at FROM fairledger.bets WHERE session_id = $1 AND seed_no = $2 ORDER BY nonce DESC LIMIT 1000) b))
             WHERE session_id = $1 AND seed_no = $2 AND status = 'live' AND pending = $5 AND next_nonce = $6",
            seed.session_id,
            seed.seed_no,
            status.as_str(),
            by.as_str(),
            seed.pending.cast_signed(),
            seed.next_nonce.cast_signed(),
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        decode::exactly_one("seed", ended)
    }

    /// Notes that a seed retired in this transaction is to be revealed once this is committed. Its clear text must not be stored before:
    /// the table's file and the log keep what a transaction wrote even when it is rolled back, and the seed lives on then.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn insert_reveal_due(&mut self, seed: &LockedSeed) -> Result<(), DbError> {
        self.note_reveal_due(seed.session_id, seed.seed_no).await
    }

    async fn note_reveal_due(&mut self, session_id: Uuid, seed_no: i32) -> Result<(), DbError> {
        let inserted = sqlx::query!(
            "INSERT INTO fairledger.reveals_due (session_id, seed_no) VALUES ($1, $2)",
            session_id,
            seed_no,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        decode::exactly_one("due reveal", inserted)
    }

    /// Takes the note out; false when it is not there (any more), which is as good.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn take_reveal_due(&mut self, session_id: Uuid, seed_no: i32) -> Result<bool, DbError> {
        let taken = sqlx::query!(
            "DELETE FROM fairledger.reveals_due WHERE session_id = $1 AND seed_no = $2",
            session_id,
            seed_no,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        Ok(taken == 1)
    }

    /// Seeds whose reveal is still to be stored.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn reveals_due(&mut self, limit: i64) -> Result<Vec<(Uuid, i32)>, DbError> {
        let rows = sqlx::query!("SELECT session_id, seed_no FROM fairledger.reveals_due LIMIT $1", limit)
            .fetch_all(&mut *self.inner)
            .await?;
        Ok(rows.into_iter().map(|row| (row.session_id, row.seed_no)).collect())
    }

    /// Stores the clear text of a seed that was retired in a transaction before. The database checks that it belongs to its commitment.
    ///
    /// # Errors
    /// Those of the database; corruption when the seed is not retired.
    pub async fn insert_reveal(&mut self, seed: &SeedRow, server_seed: &ServerSeed) -> Result<(), DbError> {
        let (retired_at, by) = seed.retired.ok_or_else(|| corrupt("reveal", "its seed is live"))?;
        let bytes = server_seed.to_bytes();
        let inserted = sqlx::query!(
            "INSERT INTO fairledger.reveals (session_id, seed_no, commitment, server_seed, revealed_at, reason)
             VALUES ($1, $2, $3, $4, greatest(clock_timestamp(), $6::timestamptz), $5)",
            seed.session_id,
            seed.seed_no,
            seed.commitment.as_bytes().as_slice(),
            bytes.as_slice(),
            by.as_str(),
            retired_at,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        decode::exactly_one("reveal", inserted)
    }
}

async fn reserve_one(
    connection: &mut PgConnection,
    session_id: Uuid,
    commitment: &Commitment,
    epoch: i32,
    pending: bool,
    pending_max: u32,
) -> Result<Option<ReservedNonce>, DbError> {
    let added = i32::from(pending);
    // The limit concerns only what adds to it.
    let ceiling = if pending { i32::try_from(pending_max).unwrap_or(i32::MAX) } else { i32::MAX };
    sqlx::query!(
        r#"UPDATE fairledger.seeds SET next_nonce = next_nonce + 1, pending = pending + $4
               WHERE session_id = $1 AND commitment = $2 AND status = 'live' AND epoch = $3
                 AND next_nonce < 9007199254740991 AND pending + $4 <= $5
               RETURNING seed_no, next_nonce - 1 AS "nonce!", client_seed AS "client_seed!", sealed_seed, seal_key_id,
                         greatest(clock_timestamp(), committed_at + interval '1 microsecond', live_at) AS "taken_at!""#,
        session_id,
        commitment.as_bytes().as_slice(),
        epoch,
        added,
        ceiling,
    )
    .fetch_optional(connection)
    .await?
    .map(|row| {
        Ok(ReservedNonce {
            seed_no: row.seed_no,
            nonce: decode::unsigned("seed", row.nonce)?,
            client_seed: decode::client_seed("seed", &row.client_seed)?,
            sealed: SealedSeed { key_id: row.seal_key_id, bytes: row.sealed_seed },
            taken_at: row.taken_at,
        })
    })
    .transpose()
}

impl BatchTx<'_> {
    /// Hands out nonces of many seeds in one statement, with the guards of [`Tx::reserve_nonce`]: gives each seed's first, for the
    /// place in `wanted`, in no order. A seed that any guard fails for is left out, and nothing of it is counted.
    ///
    /// Every seed at most once and sorted by session, as all batches take their rows. The planner is kept from any other order by the
    /// settings in [`ORDERED`].
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn reserve_nonces(
        &mut self,
        wanted: &[Wanted],
        epoch: i32,
        pending_max: u32,
    ) -> Result<Vec<(usize, ReservedNonce)>, DbError> {
        debug_assert!(wanted.is_sorted_by(|a, b| (a.session_id, a.commitment) < (b.session_id, b.commitment)));
        if let [Wanted { session_id, commitment, bets: 1, pending }] = wanted {
            let reserved =
                reserve_one(self.connection(), *session_id, commitment, epoch, *pending > 0, pending_max).await?;
            return Ok(reserved.map(|reserved| (0, reserved)).into_iter().collect());
        }
        let session_ids: Vec<Uuid> = wanted.iter().map(|seed| seed.session_id).collect();
        let commitments: Vec<&[u8]> = wanted.iter().map(|seed| seed.commitment.as_bytes().as_slice()).collect();
        let bets: Vec<i64> = wanted.iter().map(|seed| i64::from(seed.bets)).collect();
        let pending: Vec<i32> = wanted.iter().map(|seed| seed.pending.cast_signed()).collect();
        // The clock is read as RETURNING is evaluated: after the row was updated, so after the transaction has its id.
        let rows = sqlx::query!(
            r#"UPDATE fairledger.seeds s SET next_nonce = s.next_nonce + t.bets, pending = s.pending + t.pending
               FROM unnest($1::uuid[], $2::bytea[], $3::bigint[], $4::integer[]) WITH ORDINALITY
                    AS t (session_id, commitment, bets, pending, place)
               WHERE s.session_id = t.session_id AND s.commitment = t.commitment AND s.status = 'live' AND s.epoch = $5
                 AND s.next_nonce + t.bets <= 9007199254740991 AND (t.pending = 0 OR s.pending + t.pending <= $6)
               RETURNING t.place AS "place!", s.seed_no, s.next_nonce - t.bets AS "nonce!", s.client_seed AS "client_seed!",
                         s.sealed_seed, s.seal_key_id,
                         greatest(clock_timestamp(), s.committed_at + interval '1 microsecond', s.live_at) AS "taken_at!""#,
            &session_ids,
            &commitments as &[&[u8]],
            &bets,
            &pending,
            epoch,
            i32::try_from(pending_max).unwrap_or(i32::MAX),
        )
        .fetch_all(self.connection())
        .await?;
        rows.into_iter()
            .map(|row| {
                let place = usize::try_from(row.place - 1).map_err(|_| corrupt("seed", "a place before the first"))?;
                let reserved = ReservedNonce {
                    seed_no: row.seed_no,
                    nonce: decode::unsigned("seed", row.nonce)?,
                    client_seed: decode::client_seed("seed", &row.client_seed)?,
                    sealed: SealedSeed { key_id: row.seal_key_id, bytes: row.sealed_seed },
                    taken_at: row.taken_at,
                };
                Ok((place, reserved))
            })
            .collect()
    }
}

/// Settings of a session in which [`BatchTx::reserve_nonces`] takes its rows in the order that it is given: with these the planner has no
/// way left but to look each one up by the index. A locking subquery would do the same, at the price of writing every row twice.
pub const ORDERED: &[(&str, &str)] = &[
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
];
