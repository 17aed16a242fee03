//! Exports: everything that fits the filters, of one snapshot, in constant memory.
//!
//! One page after the other is read and written, and the next one only when the one before was taken: a slow reader slows the reading
//! and holds nothing but one snapshot. Keeps I12: exports are counted, and a reader that takes nothing is given up by who feeds it.

use std::future::Future;

use chrono::{DateTime, Utc};
use sha2::Sha256;
use tokio::sync::OwnedSemaphorePermit;

use super::filters::Filters;
use super::format::{FORMAT, Format, Header, Period, Resumed, Writer};
use super::walk::Walk;
use super::{History, HistoryError, Looking};
use crate::db::bets::BetKey;
use crate::db::history::{Direction, Position};
use crate::db::{DbError, corrupt};
use crate::gfs::seed::Commitment;
use crate::seeds::bet_answer;
use crate::seeds::values::Timestamp;

/// Bets read and written at once.
const PAGE: usize = 1_000;

/// Name and version of what writes exports.
pub const SOFTWARE: &str = concat!("fairledger ", env!("CARGO_PKG_VERSION"));

/// What is to be exported.
#[derive(Clone, Debug)]
pub struct ExportRequest {
    /// What is asked for.
    pub filters: Filters,
    /// In which form.
    pub format: Format,
    /// Where an export that broke off is to go on.
    pub resume: Option<Resume>,
}

/// How far an export came that broke off.
#[derive(Clone, Debug)]
pub struct Resume {
    /// The time up to which it was to be complete.
    pub as_of: DateTime<Utc>,
    /// Its last record.
    pub last: Option<LastRecord>,
    /// How many records it has.
    pub records: u64,
    /// How often it was taken up again before.
    pub resumed: u64,
    /// Hash of what it has.
    pub hash: Sha256,
}

/// A record as it stands in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastRecord {
    /// Its seed's commitment.
    pub commitment: Commitment,
    /// Its nonce.
    pub nonce: u64,
    /// When it was taken.
    pub taken_at: DateTime<Utc>,
}

/// Takes what an export writes.
pub trait ExportSink: Send {
    /// Takes the next bytes, with how many records they complete. An error ends the export.
    fn take(&mut self, bytes: Vec<u8>, records: u64) -> impl Future<Output = Result<(), SinkClosed>> + Send;
}

/// Nobody takes any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reader takes nothing any more")]
pub struct SinkClosed;

/// Why an export broke off. What was taken before ends in a line that says so, unless nobody took that either.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The reader.
    #[error(transparent)]
    Sink(#[from] SinkClosed),
    /// The database.
    #[error(transparent)]
    Db(#[from] DbError),
}

/// An export that is about to begin: it has its place, its snapshot and its header.
#[derive(Debug)]
pub struct Export {
    looking: Looking,
    request: ExportRequest,
    as_of: DateTime<Utc>,
    beyond: Option<Position>,
    _place: OwnedSemaphorePermit,
}

impl History {
    /// Begins an export.
    ///
    /// # Errors
    /// [`HistoryError::TooManyExports`]; [`HistoryError::Invalid`] for filters that do not fit together, or a record to go on from that is
    /// not there; [`HistoryError::Behind`]; and the database's.
    pub async fn export(&self, mut request: ExportRequest) -> Result<Export, HistoryError> {
        request.filters = request.filters.checked()?;
        let place = self.inner.exports.clone().try_acquire_owned().map_err(|_| HistoryError::TooManyExports)?;
        // Twice as long as whoever feeds the reader waits for it, so that it is not the database that gives up first.
        let mut looking = self.look_for("history.export", Some(self.settings().export_stall * 2)).await?;
        let as_of = match &request.resume {
            Some(resume) if looking.as_of < resume.as_of => return Err(HistoryError::Behind),
            Some(resume) => resume.as_of,
            None => looking.as_of,
        };
        let last = request.resume.as_ref().and_then(|resume| resume.last);
        let beyond = match last {
            Some(LastRecord { commitment, nonce, taken_at }) => {
                let found = looking.tx.find_commitment(&commitment).await?;
                let (session_id, seed_no) =
                    found.ok_or_else(|| HistoryError::invalid("resume", "its last record is of no seed here"))?;
                let key = BetKey { session_id, seed_no, nonce };
                let stored = looking.tx.bet(&key).await?;
                if taken_at >= as_of || stored.is_none_or(|stored| stored.taken_at != taken_at) {
                    return Err(HistoryError::invalid("resume", "its last record is not as it is stored here"));
                }
                Some(Position { key, taken_at })
            }
            None => None,
        };
        Ok(Export { looking, request, as_of, beyond, _place: place })
    }
}

impl Export {
    /// The form asked for.
    #[must_use]
    pub fn format(&self) -> Format {
        self.request.format
    }

    /// The first line.
    #[must_use]
    pub fn header(&self) -> Header {
        let Filters { from, to, .. } = self.request.filters;
        let as_of = Timestamp(self.as_of);
        Header {
            software: SOFTWARE,
            format: FORMAT,
            filters: self.request.filters.to_json(),
            period: Period { from, to: to.map_or(as_of, |to| to.min(as_of)) },
            order: self.request.filters.order(),
            as_of,
            started_at: Timestamp(self.looking.now),
        }
    }

    /// Writes everything, from the header to the trailer; gives the number of records.
    ///
    /// # Errors
    /// See [`ExportError`].
    pub async fn write_to(mut self, sink: &mut impl ExportSink) -> Result<u64, ExportError> {
        let resume = self.request.resume.take();
        let (mut records, resumed) = resume.as_ref().map_or((0, 0), |resume| (resume.records, resume.resumed + 1));
        let mut writer = Writer::new(self.request.format, resume.map(|resume| resume.hash));
        if resumed == 0 {
            writer.header(&self.header());
        } else {
            writer.resumed(&Resumed { records, started_at: Timestamp(self.looking.now) });
        }
        sink.take(writer.take(), records).await?;
        match self.write_records(&mut writer, sink, &mut records).await {
            Ok(()) => {
                writer.trailer(records, resumed);
                sink.take(writer.take(), records).await?;
                self.looking.tx.rollback().await;
                Ok(records)
            }
            Err(ExportError::Db(error)) => {
                writer.failed(reason(&error));
                sink.take(writer.take(), records).await?;
                Err(error.into())
            }
            Err(error) => Err(error),
        }
    }

    async fn write_records(
        &mut self,
        writer: &mut Writer,
        sink: &mut impl ExportSink,
        records: &mut u64,
    ) -> Result<(), ExportError> {
        let filters = self.request.filters.clone();
        let tx = &mut self.looking.tx;
        let mut walk = Walk::begin(tx, &filters, Direction::Ascending, self.as_of, self.beyond).await?;
        loop {
            // Whatever the filters leave over: the reader sees that it goes on by the bytes, not by the time that a page takes.
            let found = walk.find(&mut self.looking.tx, PAGE, PAGE * 10).await?;
            let keys: Vec<BetKey> = found.positions.iter().map(|position| position.key).collect();
            if !keys.is_empty() {
                for (key, bet) in self.looking.tx.bets_at(&keys).await? {
                    let bet = bet.map_err(|error| at(&key, error))?;
                    writer.record(&bet_answer(&self.looking.as_it_was(bet), false));
                    *records += 1;
                }
                sink.take(writer.take(), *records).await?;
            }
            if found.next.is_none() {
                return Ok(());
            }
        }
    }
}

fn at(key: &BetKey, error: DbError) -> DbError {
    let BetKey { session_id, seed_no, nonce } = key;
    corrupt("bet", format!("session {session_id}, seed {seed_no}, nonce {nonce}: {error}"))
}

/// Why an export broke off, in words for its reader: what the database said is not for them.
fn reason(error: &DbError) -> &'static str {
    match error {
        DbError::Corrupt { .. } => "stored data contradicts itself: the log says more",
        DbError::Unexpected(_) => "a fault of the service: the log says more",
        _ => "the database was not available, or ended the snapshot",
    }
}
