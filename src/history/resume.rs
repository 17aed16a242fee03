//! What is left of an export that broke off: how far it is good, and where to go on.

use std::io::{self, BufRead};

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::export::{LastRecord, Resume};
use super::filters::Filters;
use super::format::{FORMAT, Format, names_of_row, position_in_row};
use crate::gfs::seed::Commitment;

/// Why a file cannot be gone on with.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is of another export, or of none.
    #[error("{0}")]
    Other(String),
}

fn other<T>(reason: impl Into<String>) -> Result<T, ResumeError> {
    Err(ResumeError::Other(reason.into()))
}

/// What a file holds.
#[derive(Debug)]
pub enum Found {
    /// Not even a whole header: begin anew.
    Nothing,
    /// Everything, with this many records.
    Complete(u64),
    /// A part.
    Part {
        /// The first so many bytes are good.
        bytes: u64,
        /// Where to go on.
        resume: Resume,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OldHeader {
    format: String,
    filters: Value,
    as_of: DateTime<Utc>,
}

#[derive(Deserialize)]
struct OldTrailer {
    records: u64,
    sha256: String,
}

#[derive(Deserialize)]
struct OldRecord {
    record: OldPlace,
    meta: OldMeta,
}

#[derive(Deserialize)]
struct OldPlace {
    commitment: Commitment,
    nonce: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OldMeta {
    taken_at: DateTime<Utc>,
}

/// Reads a file to its last whole line. Everything before the last record is taken for what it says it is; the trailer's hash will be of
/// the bytes as they are.
///
/// # Errors
/// See [`ResumeError`].
pub fn scan(mut file: impl BufRead, format: Format, filters: &Filters) -> Result<Found, ResumeError> {
    let mut lines = Lines { format, line: Vec::new() };
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    let (mut as_of, mut records, mut resumed) = (None, 0, 0);
    let mut last = Vec::new();
    while lines.next(&mut file)? {
        let line = &lines.line;
        match kind_of(format, line) {
            Some("type") if bytes == 0 && line.strip_suffix(b"\r\n") == Some(names_of_row().as_bytes()) => {}
            Some("header") if as_of.is_none() => as_of = Some(read_header(format, line, filters)?),
            Some("record") if as_of.is_some() => {
                records += 1;
                last.clone_from(line);
            }
            Some("resumed") if as_of.is_some() => resumed += 1,
            Some("trailer") if as_of.is_some() => {
                let Some(trailer) = content::<OldTrailer>(format, line)? else {
                    return other("its trailer cannot be read");
                };
                if (trailer.records, trailer.sha256) != (records, hex::encode(hash.finalize())) {
                    return other("its trailer does not fit what stands before it: export it anew");
                }
                return match file.read_until(b'\n', &mut Vec::new())? {
                    0 => Ok(Found::Complete(records)),
                    _ => other("something stands after its trailer"),
                };
            }
            // All before it is good.
            Some("failed") => break,
            _ => return other(format!("what stands at byte {bytes} is no line of an export")),
        }
        hash.update(line);
        bytes += line.len() as u64;
    }
    let Some(as_of) = as_of else {
        return if is_beginning(format, bytes, &lines.line) {
            Ok(Found::Nothing)
        } else {
            other("it is no part of an export")
        };
    };
    let last = if records == 0 { None } else { Some(read_record(format, &last)?) };
    Ok(Found::Part { bytes, resume: Resume { as_of, last, records, resumed, hash } })
}

/// Whether a file that has no whole header is an export that broke off there, and not somebody else's: whoever goes on overwrites it.
fn is_beginning(format: Format, bytes: u64, rest: &[u8]) -> bool {
    let names = names_of_row();
    let header = match (format, bytes) {
        (Format::Ndjson, _) => "{\"type\":\"header\"",
        (Format::Csv, 0) => &names,
        (Format::Csv, _) => "header,",
    };
    rest.iter().zip(header.as_bytes()).all(|(found, expected)| found == expected)
}

/// Whole lines, one after the other.
struct Lines {
    format: Format,
    line: Vec<u8>,
}

impl Lines {
    /// Reads the next one; false at the end, also when something is left that is no whole line.
    fn next(&mut self, file: &mut impl BufRead) -> io::Result<bool> {
        self.line.clear();
        let mut quotes = 0;
        loop {
            let before = self.line.len();
            if file.read_until(b'\n', &mut self.line)? == 0 || self.line.last() != Some(&b'\n') {
                return Ok(false);
            }
            // In CSV a line break may stand in a quoted cell: then the number of quotes so far is odd.
            quotes += self.line[before..].iter().filter(|&&byte| byte == b'"').count();
            if self.format == Format::Ndjson || quotes % 2 == 0 {
                return Ok(true);
            }
        }
    }
}

/// What a line says that it is.
fn kind_of(format: Format, line: &[u8]) -> Option<&str> {
    let (rest, end) = match format {
        Format::Ndjson => (line.strip_prefix(b"{\"type\":\"")?, b'"'),
        Format::Csv => (line, b','),
    };
    let kind = rest.get(..rest.iter().position(|&byte| byte == end)?)?;
    std::str::from_utf8(kind).ok()
}

fn cells(line: &[u8]) -> Result<csv::StringRecord, ResumeError> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(line);
    let mut cells = csv::StringRecord::new();
    match reader.read_record(&mut cells) {
        Ok(true) => Ok(cells),
        _ => other("a line is no CSV"),
    }
}

/// What a header or trailer says; none where it is not of its form.
fn content<T: DeserializeOwned>(format: Format, line: &[u8]) -> Result<Option<T>, ResumeError> {
    Ok(match format {
        Format::Ndjson => serde_json::from_slice(line).ok(),
        Format::Csv => serde_json::from_str(cells(line)?.iter().next_back().unwrap_or_default()).ok(),
    })
}

fn read_header(format: Format, line: &[u8], filters: &Filters) -> Result<DateTime<Utc>, ResumeError> {
    match content::<OldHeader>(format, line)? {
        Some(header) if header.format != FORMAT => {
            other(format!("it is of format {:?}; this program writes {FORMAT:?}", header.format))
        }
        Some(header) if header.filters != filters.to_json() => {
            other(format!("it is of an export with other filters: {}", header.filters))
        }
        Some(header) => Ok(header.as_of),
        None => other("it does not begin with the header of an export"),
    }
}

fn read_record(format: Format, line: &[u8]) -> Result<LastRecord, ResumeError> {
    let last = match format {
        Format::Ndjson => serde_json::from_slice::<OldRecord>(line).ok().map(|old| LastRecord {
            commitment: old.record.commitment,
            nonce: old.record.nonce,
            taken_at: old.meta.taken_at,
        }),
        Format::Csv => {
            let cells = cells(line)?;
            let cell = |name| position_in_row(name).and_then(|position| cells.get(position));
            (|| {
                Some(LastRecord {
                    commitment: cell("commitment")?.parse().ok()?,
                    nonce: cell("nonce")?.parse().ok()?,
                    taken_at: cell("takenAt")?.parse().ok()?,
                })
            })()
        }
    };
    last.map_or_else(|| other("its last record cannot be read"), Ok)
}
