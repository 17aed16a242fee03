//! The two forms of an export, line by line: NDJSON, and CSV as RFC 4180 has it. `docs/HISTORY.md` describes both.
//!
//! Every line says by its type what it is: one header, the records, one trailer. A file without its trailer is not whole. The trailer
//! has the SHA-256 of every byte before it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use super::filters::Order;
use crate::gfs::json;
use crate::seeds::model::{BetAnswer, BetMeta, RevealedSeed};
use crate::seeds::values::Timestamp;

/// Name and version of what is described in `docs/HISTORY.md`.
pub const FORMAT: &str = "fairledger-export/1";

/// The form of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One JSON object a line.
    Ndjson,
    /// Comma-separated values with a row of column names.
    Csv,
}

impl Format {
    /// Its media type.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Ndjson => "application/x-ndjson",
            Self::Csv => "text/csv; charset=utf-8; header=present",
        }
    }

    /// What names of its files end in.
    #[must_use]
    pub fn extension(self) -> &'static str {
        match self {
            Self::Ndjson => "ndjson",
            Self::Csv => "csv",
        }
    }
}

/// From when to when an export has bets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Period {
    /// The first instant; none for the beginning.
    pub from: Option<Timestamp>,
    /// The first instant after it.
    pub to: Timestamp,
}

/// The first line.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// What wrote it.
    pub software: &'static str,
    /// [`FORMAT`].
    pub format: &'static str,
    /// What was asked for.
    pub filters: Value,
    /// What that comes to: never later than `as_of`.
    pub period: Period,
    /// Ascending by this.
    pub order: Order,
    /// No bet taken before this time is missing.
    pub as_of: Timestamp,
    /// When the snapshot was begun that all records are read from.
    pub started_at: Timestamp,
}

/// A line where an export was broken off and taken up again.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Resumed {
    /// Records before this line.
    pub records: u64,
    /// When the snapshot was begun that the records after this line are read from.
    pub started_at: Timestamp,
}

/// The last line.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Trailer {
    /// Records in the file.
    pub records: u64,
    /// Always true: an export that is not complete has no trailer.
    pub complete: bool,
    /// What that means, in words.
    pub statement: &'static str,
    /// How often it was broken off and taken up again.
    pub resumed: u64,
    /// Of every byte before this line.
    pub sha256: String,
}

/// The last line of an export that broke off.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Failed {
    /// Why.
    pub reason: String,
}

#[derive(Serialize)]
struct Line<'a, T> {
    r#type: &'static str,
    #[serde(flatten)]
    content: &'a T,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RecordLine<'a> {
    r#type: &'static str,
    record: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_seed: &'a Option<RevealedSeed>,
    meta: &'a BetMeta,
}

/// How a column is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cell {
    /// A text or number as it is.
    Plain,
    /// Canonical JSON: it may be anything.
    Json,
}

/// The columns between `type` and `detail`: name, and where a record has it.
const COLUMNS: &[(&str, &str, Cell)] = &[
    ("sessionId", "/meta/sessionId", Cell::Plain),
    ("betRef", "/meta/betRef", Cell::Plain),
    ("status", "/meta/status", Cell::Plain),
    ("takenAt", "/meta/takenAt", Cell::Plain),
    ("spec", "/record/spec", Cell::Plain),
    ("profile", "/record/profile", Cell::Plain),
    ("game", "/record/game", Cell::Plain),
    ("params", "/record/params", Cell::Json),
    ("commitment", "/record/commitment", Cell::Plain),
    ("clientSeed", "/record/clientSeed", Cell::Plain),
    ("nonce", "/record/nonce", Cell::Plain),
    ("at", "/record/at", Cell::Plain),
    ("cursor", "/record/cursor", Cell::Plain),
    ("result", "/record/result", Cell::Json),
    ("rules", "/record/rules", Cell::Json),
    ("floats", "/record/floats", Cell::Plain),
    ("signature", "/record/signature", Cell::Plain),
    ("signer", "/record/signer", Cell::Plain),
    ("serverSeed", "/serverSeed", Cell::Plain),
    ("selection", "/meta/selection", Cell::Json),
    ("stake", "/meta/stake", Cell::Plain),
    ("currency", "/meta/currency", Cell::Plain),
    ("context", "/meta/context", Cell::Json),
    ("voidReason", "/meta/voidReason", Cell::Plain),
    ("roundOutcome", "/meta/roundOutcome", Cell::Plain),
    ("payout", "/meta/settlement/payout", Cell::Plain),
    ("outcome", "/meta/settlement/outcome", Cell::Plain),
    ("displayed", "/meta/settlement/displayed", Cell::Json),
    ("settlementRules", "/meta/settlement/rules", Cell::Json),
    ("settledAt", "/meta/settlement/settledAt", Cell::Plain),
];

/// Which cell of a row a column is.
pub(super) fn position_in_row(name: &str) -> Option<usize> {
    COLUMNS.iter().position(|(column, ..)| *column == name).map(|position| position + 1)
}

/// The first row of a table: what its columns are called.
pub(super) fn names_of_row() -> String {
    let names = COLUMNS.iter().map(|(name, ..)| *name);
    std::iter::once("type").chain(names).chain(std::iter::once("detail")).collect::<Vec<_>>().join(",")
}

/// Writes lines into a buffer and hashes them.
pub(super) struct Writer {
    format: Format,
    hash: Sha256,
    buffer: Vec<u8>,
}

impl Writer {
    /// Goes on after lines whose hash is given, or from the beginning.
    pub(super) fn new(format: Format, hash: Option<Sha256>) -> Self {
        Self { format, hash: hash.unwrap_or_default(), buffer: Vec::new() }
    }

    pub(super) fn header(&mut self, header: &Header) {
        if self.format == Format::Csv {
            let names = COLUMNS.iter().map(|(name, ..)| *name);
            self.row(std::iter::once("type").chain(names).chain(std::iter::once("detail")));
        }
        self.line("header", header);
    }

    pub(super) fn resumed(&mut self, resumed: &Resumed) {
        self.line("resumed", resumed);
    }

    pub(super) fn record(&mut self, bet: &BetAnswer) {
        let BetAnswer { record, server_seed, meta, replayed: _ } = bet;
        match self.format {
            Format::Ndjson => self.json(&RecordLine { r#type: "record", record, server_seed, meta }),
            Format::Csv => {
                // An answer can always be written: it has no keys but texts.
                let value = serde_json::to_value(bet).unwrap_or_default();
                let cells: Vec<String> =
                    COLUMNS.iter().map(|(_, pointer, kind)| cell(&value, pointer, *kind)).collect();
                let cells = cells.iter().map(String::as_str);
                self.row(std::iter::once("record").chain(cells).chain(std::iter::once("")));
            }
        }
    }

    /// Ends the file; the hash is of all before.
    pub(super) fn trailer(&mut self, records: u64, resumed: u64) {
        let hash = self.hash.clone().chain_update(&self.buffer).finalize();
        let statement = if records == 0 {
            "No bet fits the filters in this period."
        } else {
            "Every bet that fits the filters in this period is above, once."
        };
        self.line("trailer", &Trailer { records, complete: true, statement, resumed, sha256: hex::encode(hash) });
    }

    pub(super) fn failed(&mut self, reason: &str) {
        self.line("failed", &Failed { reason: reason.to_owned() });
    }

    /// What was written since the last time.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.hash.update(&self.buffer);
        std::mem::take(&mut self.buffer)
    }

    fn line(&mut self, r#type: &'static str, content: &impl Serialize) {
        match self.format {
            Format::Ndjson => self.json(&Line { r#type, content }),
            Format::Csv => {
                let detail = json::canonical(&serde_json::to_value(content).unwrap_or_default());
                let empty = std::iter::repeat_n("", COLUMNS.len());
                self.row(std::iter::once(r#type).chain(empty).chain(std::iter::once(detail.as_str())));
            }
        }
    }

    fn json(&mut self, line: &impl Serialize) {
        let start = self.buffer.len();
        // Into memory, of types whose keys are texts: it cannot fail, and half a line would be worse than none.
        if serde_json::to_writer(&mut self.buffer, line).is_err() {
            self.buffer.truncate(start);
            return;
        }
        self.buffer.push(b'\n');
    }

    fn row<'a>(&mut self, cells: impl Iterator<Item = &'a str>) {
        let mut writer =
            csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(std::mem::take(&mut self.buffer));
        // Into memory, and every row has as many cells as the others of its writer, which has but this one.
        let written = writer.write_record(cells);
        debug_assert!(written.is_ok());
        self.buffer = writer.into_inner().unwrap_or_default();
    }
}

fn cell(value: &Value, pointer: &str, kind: Cell) -> String {
    match (value.pointer(pointer), kind) {
        (None, _) => String::new(),
        (Some(Value::String(text)), Cell::Plain) => text.clone(),
        (Some(value), _) => json::canonical(value),
    }
}
