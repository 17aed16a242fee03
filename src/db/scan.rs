//! Reading very many bets at once, for checking them: by COPY, a part of the history at a time, which arrives in pieces.
//!
//! Checking a bet takes less than a microsecond, so the protocol's own work for a row is what counts; COPY in binary form has the least.
//! Its text takes no parameters, so everything in it is a number, a time or a UUID that was one in our own types, or a game's name of a
//! restricted alphabet ([`GameName`]).

use std::collections::HashMap;

use chrono::{DateTime, TimeDelta, Utc};
use foldhash::fast::RandomState;
use futures_util::TryStreamExt as _;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::bets::BetKey;
use super::decode::{POSTGRES_EPOCH_US, StoredTime};
use super::{Access, DbError, Tx, corrupt, decode};
use crate::gfs::seed::{ClientSeed, Commitment, ServerSeed};

const WHAT: &str = "bet";

/// Equal times into which history is cut beside what the statistics say: several for each core.
const EQUAL_TIMES: i32 = 32;

/// A game's name as it may stand in a statement's text: 1 to 64 of `A-Za-z0-9._-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GameName(String);

impl GameName {
    /// Takes a name; none for one that no bet can have.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let fits = (1..=64).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        fits.then(|| Self(name.to_owned()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Which bets of a part are read.
#[derive(Clone, Debug, Default)]
pub struct ScanFilter {
    /// Of this game only.
    pub game: Option<GameName>,
    /// Taken at this time or later.
    pub from: Option<DateTime<Utc>>,
    /// Taken before this time.
    pub to: Option<DateTime<Utc>>,
}

/// A part of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Bets taken in a time, of any session.
    Time {
        /// From then on; without it from where the filter begins.
        from: Option<DateTime<Utc>>,
        /// Before then; without it up to where the filter ends.
        to: Option<DateTime<Utc>>,
    },
    /// Bets of a session.
    Session {
        /// The session.
        session_id: Uuid,
        /// Of this seed only.
        seed_no: Option<i32>,
    },
}

/// Bets in one piece: enough that what is done once for a piece does not count, and few enough that they are checked while the processor's
/// caches still have them.
const PIECE: usize = 4_000;

/// A piece of a part, as PostgreSQL sent it.
#[derive(Debug)]
pub struct Scan {
    bytes: Vec<u8>,
    /// The game of all its bets, where it is one and therefore not sent.
    game: Option<GameName>,
}

/// A bet as it is stored, without its seed and its later end.
#[derive(Clone, Copy, Debug)]
pub struct ScannedBet<'a> {
    /// The game, as its text's bytes.
    pub game: &'a [u8],
    /// Its parameters, canonical JSON.
    pub params: &'a [u8],
    /// Result, canonical JSON, and cursor, -1 for none, when played at once.
    pub result: Option<(&'a [u8], i32)>,
    /// Its signature.
    pub signature: Option<ScannedSignature<'a>>,
}

/// A signature with what else it needs to be checked.
#[derive(Clone, Copy, Debug)]
pub struct ScannedSignature<'a> {
    /// The signature.
    pub bytes: &'a [u8; 64],
    /// The number of its key.
    pub signing_key_no: i32,
    /// When the nonce was handed out, in microseconds since 1970.
    pub taken_at_us: i64,
}

/// A session and the number of a seed in it.
pub type SeedKey = (Uuid, i32);

/// The seeds of a piece.
#[derive(Debug, Default)]
pub struct ScannedSeeds {
    /// Each once.
    pub keys: Vec<SeedKey>,
    /// Of each bet, its seed's place among the keys.
    pub of_bets: Vec<u32>,
}

/// A seed's public side.
#[derive(Clone, Debug)]
pub struct ScannedSeed {
    /// Its commitment.
    pub commitment: Commitment,
    /// Its client seed.
    pub client_seed: ClientSeed,
    /// The seed in clear once revealed, checked against the commitment.
    pub server_seed: Option<ServerSeed>,
}

impl<A: Access> Tx<A> {
    /// Cuts the times that a filter lets through into many of about equally many bets, as far as PostgreSQL's statistics know them. The
    /// first and the last are as open as the filter is, so that a bet with an impossible time is in one of them.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn scan_cuts(&mut self, filter: &ScanFilter) -> Result<Vec<Part>, DbError> {
        let span = sqlx::query!(
            r#"SELECT min(taken_at) AS "first: StoredTime", max(taken_at) AS "last: StoredTime" FROM fairledger.bets
               WHERE taken_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'"#
        )
        .fetch_one(&mut *self.inner)
        .await?;
        let whole = vec![Part::Time { from: None, to: None }];
        let (Some(first), Some(last)) = (span.first, span.last) else { return Ok(whole) };
        let (first, end) = (first.time(WHAT)?, last.time(WHAT)? + TimeDelta::microseconds(1));
        let (from, to) = (filter.from.map_or(first, |from| from.max(first)), filter.to.map_or(end, |to| to.min(end)));
        if from >= to {
            return Ok(whole);
        }
        let known = sqlx::query_scalar!(
            r#"SELECT histogram_bounds::text::timestamptz[] AS "bounds: Vec<StoredTime>" FROM pg_stats
               WHERE schemaname = 'fairledger' AND tablename = 'bets' AND attname = 'taken_at'"#
        )
        .fetch_optional(&mut *self.inner)
        .await?;
        let step = (to - from) / EQUAL_TIMES;
        // What was taken after the statistics were made is cut by time alone.
        let known = known.flatten().unwrap_or_default();
        let mut cuts: Vec<_> = known.into_iter().filter_map(|bound| bound.time(WHAT).ok()).collect();
        cuts.extend((1..EQUAL_TIMES).map(|number| from + step * number));
        cuts.retain(|cut| *cut > from && *cut < to);
        cuts.sort_unstable();
        cuts.dedup();
        let starts = std::iter::once(None).chain(cuts.iter().copied().map(Some));
        let ends = cuts.iter().copied().map(Some).chain(std::iter::once(None));
        Ok(starts.zip(ends).map(|(from, to)| Part::Time { from, to }).collect())
    }

    /// Reads a part, and hands it on piece by piece until nobody takes them any more.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn scan(&mut self, part: &Part, filter: &ScanFilter, pieces: &mpsc::Sender<Scan>) -> Result<(), DbError> {
        let statement = copy_statement(part, filter);
        let mut rows = self.inner.copy_out_raw(&statement).await?;
        let (mut bytes, mut count) = (Vec::new(), 0);
        while let Some(row) = rows.try_next().await? {
            bytes.extend_from_slice(&row);
            count += 1;
            if count == PIECE {
                let next = Vec::with_capacity(bytes.len());
                let piece = Scan { bytes: std::mem::replace(&mut bytes, next), game: filter.game.clone() };
                count = 0;
                if pieces.send(piece).await.is_err() {
                    return Ok(());
                }
            }
        }
        // Whoever took them has ended with an error of its own when nobody takes this one.
        let _ = pieces.send(Scan { bytes, game: filter.game.clone() }).await;
        Ok(())
    }

    /// Reads the seeds of scanned bets; one that is not there is not in the answer.
    ///
    /// # Errors
    /// Those of the database. A seed that cannot be decoded is left out: whoever needs it looks at its bets one by one and is told.
    pub async fn scanned_seeds(&mut self, keys: &[SeedKey]) -> Result<HashMap<SeedKey, ScannedSeed>, DbError> {
        let (session_ids, seed_nos): (Vec<Uuid>, Vec<i32>) = keys.iter().copied().unzip();
        let rows = sqlx::query!(
            r#"SELECT s.session_id, s.seed_no, s.commitment, s.client_seed AS "client_seed!", r.server_seed AS "server_seed?"
               FROM unnest($1::uuid[], $2::integer[]) AS k (session_id, seed_no)
               JOIN fairledger.seeds s USING (session_id, seed_no)
               LEFT JOIN fairledger.reveals r USING (session_id, seed_no)
               WHERE s.client_seed IS NOT NULL"#,
            &session_ids,
            &seed_nos,
        )
        .fetch_all(&mut *self.inner)
        .await?;
        let decoded = rows.into_iter().filter_map(|row| {
            let commitment = decode::commitment("seed", &row.commitment).ok()?;
            let client_seed = decode::client_seed("seed", &row.client_seed).ok()?;
            let server_seed = match &row.server_seed {
                Some(bytes) => Some(decode::revealed_seed("seed", bytes, &commitment).ok()?),
                None => None,
            };
            Some(((row.session_id, row.seed_no), ScannedSeed { commitment, client_seed, server_seed }))
        });
        Ok(decoded.collect())
    }
}

fn copy_statement(part: &Part, filter: &ScanFilter) -> String {
    let mut conditions = vec!["true".to_owned()];
    let time = |time: &DateTime<Utc>| time.format("'%Y-%m-%d %H:%M:%S%.6f+00'::timestamptz").to_string();
    match part {
        Part::Time { from, to } => {
            conditions.extend(from.as_ref().map(|from| format!("taken_at >= {}", time(from))));
            conditions.extend(to.as_ref().map(|to| format!("taken_at < {}", time(to))));
        }
        Part::Session { session_id, seed_no } => {
            conditions.push(format!("session_id = '{session_id}'"));
            conditions.extend(seed_no.map(|seed_no| format!("seed_no = {seed_no}")));
        }
    }
    conditions.extend(filter.game.as_ref().map(|GameName(game)| format!("game = '{game}'")));
    conditions.extend(filter.from.as_ref().map(|from| format!("taken_at >= {}", time(from))));
    conditions.extend(filter.to.as_ref().map(|to| format!("taken_at < {}", time(to))));
    // PostgreSQL spends more on sending a column than we do on checking a bet: what is known or not looked at is not asked for, what is
    // hardly ever there is one column, and a cursor of 0, as of most games, is none.
    let game = if filter.game.is_some() { "" } else { ", game" };
    format!(
        "COPY (SELECT session_id, seed_no, nonce, params, CASE WHEN kind = 'played' THEN result END, nullif(coalesce(cursor, -1), 0), \
         CASE WHEN signature IS NOT NULL OR signing_key_no IS NOT NULL THEN int4send(coalesce(signing_key_no, -1)) \
         || timestamptz_send(coalesce(taken_at, 'infinity')) || coalesce(signature, '') END{game} \
         FROM fairledger.bets WHERE {}) TO STDOUT (FORMAT binary)",
        conditions.join(" AND "),
    )
}

impl Scan {
    /// The seeds that the bets belong to, each once, and for each bet which of them is its own. It ends where [`Scan::bets`] does.
    #[must_use]
    pub fn seeds(&self) -> ScannedSeeds {
        let mut seeds = ScannedSeeds::default();
        let mut numbers: HashMap<SeedKey, u32, RandomState> = HashMap::default();
        let mut last = None;
        let mut fields = self.fields();
        while let Ok(Some((place, _))) = fields.place() {
            let key = (place.session_id, place.seed_no);
            let number = match last {
                Some((before, number)) if before == key => number,
                _ => *numbers.entry(key).or_insert_with(|| {
                    seeds.keys.push(key);
                    seeds.keys.len() as u32 - 1 // a piece has a few thousand bets
                }),
            };
            last = Some((key, number));
            seeds.of_bets.push(number);
        }
        seeds
    }

    fn fields(&self) -> Fields<'_> {
        Fields { rest: &self.bytes, columns: if self.game.is_some() { COLUMNS } else { COLUMNS + 1 } }
    }

    /// Each bet with its place. A row that cannot be decoded is given as its error; when even its place cannot be told, nothing after it
    /// can, and that is the last.
    pub fn bets(&self) -> impl Iterator<Item = Result<(ScannedPlace, Result<ScannedBet<'_>, DbError>), DbError>> {
        let mut fields = self.fields();
        std::iter::from_fn(move || match fields.row(self.game.as_ref()) {
            Ok(row) => row.map(Ok),
            Err(error) => {
                fields.rest = &[];
                Some(Err(error))
            }
        })
    }
}

/// PostgreSQL's binary form of COPY: <https://www.postgresql.org/docs/current/sql-copy.html>, "Binary Format". Its header stands before the
/// first piece of a part, its trailer after the last.
struct Fields<'a> {
    rest: &'a [u8],
    /// Of each row.
    columns: usize,
}

/// Signature, no flags, no extension. No row begins like it: as a count of columns it is above what PostgreSQL has.
const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// Without the game, which is the last where it is sent.
const COLUMNS: usize = 7;

/// A row's columns after its place, as `COPY` sent them: parameters, result, cursor, signature, game.
type BetFields<'a> = [Option<&'a [u8]>; 5];

/// Where a row says that it is. A nonce below 0 is nowhere that a bet can be, and is told as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScannedPlace {
    /// The session.
    pub session_id: Uuid,
    /// The seed's number in it.
    pub seed_no: i32,
    /// The nonce.
    pub nonce: i64,
}

impl ScannedPlace {
    /// The bet's place, if a bet can be there.
    #[must_use]
    pub fn key(self) -> Option<BetKey> {
        let nonce = u64::try_from(self.nonce).ok()?;
        Some(BetKey { session_id: self.session_id, seed_no: self.seed_no, nonce })
    }
}

type Row<'a> = (ScannedPlace, Result<ScannedBet<'a>, DbError>);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DbError> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>().ok_or_else(cut_off)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn field(&mut self) -> Result<Option<&'a [u8]>, DbError> {
        let length = i32::from_be_bytes(self.take()?);
        let Ok(length) = usize::try_from(length) else { return Ok(None) };
        let (field, rest) = self.rest.split_at_checked(length).ok_or_else(cut_off)?;
        self.rest = rest;
        Ok(Some(field))
    }

    fn fields(&mut self) -> Result<Option<[Option<&'a [u8]>; COLUMNS + 1]>, DbError> {
        if let Some(after) = self.rest.strip_prefix(HEADER) {
            self.rest = after;
        }
        if self.rest.is_empty() {
            return Ok(None);
        }
        match i16::from_be_bytes(self.take()?) {
            -1 => return Ok(None),
            columns if usize::try_from(columns) == Ok(self.columns) => {}
            columns => return Err(DbError::Unexpected(format!("COPY sent a row of {columns} columns"))),
        }
        let mut fields = [None; COLUMNS + 1];
        for field in &mut fields[..self.columns] {
            *field = self.field()?;
        }
        Ok(Some(fields))
    }

    fn row(&mut self, game: Option<&'a GameName>) -> Result<Option<Row<'a>>, DbError> {
        Ok(self.place()?.map(|(place, rest)| (place, bet(rest, game))))
    }

    /// The next row's place, and its other columns.
    fn place(&mut self) -> Result<Option<(ScannedPlace, BetFields<'a>)>, DbError> {
        let Some([session_id, seed_no, nonce, rest @ ..]) = self.fields()? else { return Ok(None) };
        let place = ScannedPlace {
            session_id: Uuid::from_bytes(fixed(session_id)?),
            seed_no: i32::from_be_bytes(fixed(seed_no)?),
            nonce: i64::from_be_bytes(fixed(nonce)?),
        };
        Ok(Some((place, rest)))
    }
}

fn bet<'a>(fields: BetFields<'a>, known: Option<&'a GameName>) -> Result<ScannedBet<'a>, DbError> {
    let [params, result, cursor, signature, game] = fields;
    Ok(ScannedBet {
        game: known.map_or_else(|| given(game), |known| Ok(known.as_str().as_bytes()))?,
        params: given(params)?,
        result: match (result, cursor) {
            (Some(result), Some(_)) => Some((result, i32::from_be_bytes(fixed(cursor)?))),
            (Some(result), None) => Some((result, 0)),
            (None, _) => None,
        },
        signature: signature.map(scanned_signature).transpose()?,
    })
}

fn scanned_signature(field: &[u8]) -> Result<ScannedSignature<'_>, DbError> {
    let mut fields = Fields { rest: field, columns: 0 };
    let signing_key_no = i32::from_be_bytes(fields.take()?);
    let taken_at_us = i64::from_be_bytes(fields.take()?)
        .checked_add(POSTGRES_EPOCH_US)
        .ok_or_else(|| corrupt(WHAT, "a time out of range"))?;
    let bytes = fields.rest.try_into().map_err(|_| corrupt(WHAT, "a signature is not 64 bytes"))?;
    if signing_key_no < 0 {
        return Err(corrupt(WHAT, "a signature without its key"));
    }
    Ok(ScannedSignature { bytes, signing_key_no, taken_at_us })
}

fn fixed<const N: usize>(field: Option<&[u8]>) -> Result<[u8; N], DbError> {
    field.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| corrupt(WHAT, "a column of another length"))
}

fn given(field: Option<&[u8]>) -> Result<&[u8], DbError> {
    field.ok_or_else(|| corrupt(WHAT, "a column without value"))
}

fn cut_off() -> DbError {
    DbError::Unexpected("COPY was cut off".to_owned())
}
