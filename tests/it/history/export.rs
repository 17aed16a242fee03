//! Exports through the library: their lines, their snapshot, what breaks them off, and going on with what is left.

use std::time::Duration;

use chrono::TimeDelta;
use fairledger::db::{Datastore, DbError, PoolSettings};
use fairledger::history::export::{Export, ExportError, ExportRequest, ExportSink, SinkClosed};
use fairledger::history::format::Format;
use fairledger::history::resume::{Found, ResumeError, scan};
use fairledger::history::{Filters, History, HistoryError, HistorySettings};
use fairledger::seeds::RotateRequest;
use fairledger::seeds::model::BetStatus;
use fairledger::seeds::values::GameName;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::world::{Known, World, expected, history_of, reservation, wagered};
use crate::harness::Proxy;
use crate::seeds::dice;

/// Keeps what it is given, and does something at a time.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    takes: usize,
    /// Takes no more after so many times.
    closed_after: Option<usize>,
}

impl ExportSink for Kept {
    async fn take(&mut self, bytes: Vec<u8>, _records: u64) -> Result<(), SinkClosed> {
        self.takes += 1;
        if self.closed_after.is_some_and(|after| self.takes > after) {
            return Err(SinkClosed);
        }
        self.bytes.extend(bytes);
        Ok(())
    }
}

async fn begin(history: &History, filters: &Filters, format: Format) -> Export {
    history.export(ExportRequest { filters: filters.clone(), format, resume: None }).await.unwrap()
}

async fn exported(history: &History, filters: &Filters, format: Format) -> Vec<u8> {
    let mut kept = Kept::default();
    begin(history, filters, format).await.write_to(&mut kept).await.unwrap();
    kept.bytes
}

/// The lines of an NDJSON export: header, records as answers have them, the rest.
fn lines(bytes: &[u8]) -> (Value, Vec<Value>, Vec<Value>) {
    let mut lines: Vec<Value> = bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    let header = lines.remove(0);
    assert_eq!(header["type"], "header");
    let (records, others): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line["type"] == "record");
    (header, records.into_iter().map(answer).collect(), others)
}

/// A record's line as the answer that shows the bet.
fn answer(mut line: Value) -> Value {
    let object = line.as_object_mut().unwrap();
    object.remove("type");
    object.insert("replayed".to_owned(), json!(false));
    line
}

/// The same out of CSV, by a reader that knows only the standard.
fn csv_rows(bytes: &[u8]) -> (Value, Vec<Value>, Vec<(String, Value)>) {
    let mut reader = csv::Reader::from_reader(bytes);
    let names = reader.headers().unwrap().clone();
    let (mut header, mut records, mut others) = (Value::Null, Vec::new(), Vec::new());
    for row in reader.records() {
        let row = row.unwrap();
        let cells: Map<String, Value> =
            names.iter().zip(&row).map(|(name, cell)| (name.to_owned(), json!(cell))).collect();
        let detail = || serde_json::from_str(cells["detail"].as_str().unwrap()).unwrap();
        match cells["type"].as_str().unwrap() {
            "header" => header = detail(),
            "record" => records.push(from_cells(&cells)),
            kind => others.push((kind.to_owned(), detail())),
        }
    }
    (header, records, others)
}

/// Puts an answer together again from a row.
fn from_cells(cells: &Map<String, Value>) -> Value {
    let mut answer = json!({"record": {}, "meta": {}, "replayed": false});
    for (name, cell) in cells {
        let text = cell.as_str().unwrap();
        if text.is_empty() || ["type", "detail"].contains(&name.as_str()) {
            continue;
        }
        let (part, name) = match name.as_str() {
            "serverSeed" => ("", "serverSeed"),
            "payout" | "outcome" | "displayed" | "settledAt" => ("settlement", name.as_str()),
            "settlementRules" => ("settlement", "rules"),
            "sessionId" | "betRef" | "status" | "takenAt" | "selection" | "stake" | "currency" | "context"
            | "voidReason" | "roundOutcome" => ("meta", name.as_str()),
            _ => ("record", name.as_str()),
        };
        let is_json = ["params", "result", "rules", "selection", "context", "displayed"].contains(&name);
        let value = if is_json || ["nonce", "at", "cursor", "floats"].contains(&name) {
            serde_json::from_str(text).unwrap()
        } else {
            cell.clone()
        };
        match part {
            "" => answer[name] = value,
            "settlement" => answer["meta"]["settlement"][name] = value,
            part => answer[part][name] = value,
        }
    }
    answer
}

fn ascending(known: &[Known], filters: &Filters) -> Vec<Value> {
    let mut expected = expected(known, filters);
    expected.reverse();
    expected
}

/// Numbers that are written in two ways are the same in both.
fn same(left: &[Value], right: &[Value]) -> bool {
    let canonical = |values: &[Value]| -> Vec<String> { values.iter().map(fairledger::gfs::json::canonical).collect() };
    canonical(left) == canonical(right)
}

#[tokio::test]
async fn an_export_has_every_bet_that_fits_in_order_between_header_and_trailer() {
    let mut rng = StdRng::seed_from_u64(6);
    let world = World::random(&mut rng, 8, 300).await;
    let known = world.known().await;
    let (session_id, _) = world.sessions[2];
    let time = known[known.len() / 2].answer["meta"]["takenAt"].as_str().unwrap().parse().unwrap();
    let time = fairledger::seeds::values::Timestamp(time);
    for (filters, order) in [
        (Filters::default(), "time"),
        (Filters { session_id: Some(session_id), ..Filters::default() }, "place"),
        (Filters { status: Some(BetStatus::Void), ..Filters::default() }, "time"),
        (Filters { game: Some(GameName::parse("mines").unwrap()), from: Some(time), ..Filters::default() }, "time"),
        (Filters { session_id: Some(session_id), to: Some(time), ..Filters::default() }, "place"),
    ] {
        let expected = ascending(&known, &filters);
        let bytes = exported(&world.history, &filters, Format::Ndjson).await;
        let (header, records, others) = lines(&bytes);
        assert_eq!(records, expected, "{filters:?}");
        assert_eq!((&header["format"], &header["order"]), (&json!("fairledger-export/1"), &json!(order)));
        assert_eq!(header["filters"], serde_json::to_value(&filters).unwrap());
        assert!(header["software"].as_str().unwrap().starts_with("fairledger "));
        assert!(
            header["period"]["to"].as_str() <= header["asOf"].as_str()
                && header["asOf"].as_str() <= header["startedAt"].as_str()
        );
        let trailer = &others[0];
        assert_eq!(
            (others.len(), &trailer["type"], &trailer["records"]),
            (1, &json!("trailer"), &json!(expected.len()))
        );
        let before = bytes[..bytes.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        assert_eq!(trailer["sha256"], hex::encode(Sha256::digest(&bytes[..before])));

        let bytes = exported(&world.history, &filters, Format::Csv).await;
        let (header, records, others) = csv_rows(&bytes);
        assert!(same(&records, &expected), "{filters:?}");
        assert_eq!((&header["order"], others[0].0.as_str()), (&json!(order), "trailer"));
        assert_eq!(others[0].1["records"], json!(expected.len()));
        let before = bytes[..bytes.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        assert_eq!(others[0].1["sha256"], hex::encode(Sha256::digest(&bytes[..before])));
        assert!(bytes.ends_with(b"\r\n"));
    }
}

#[tokio::test]
async fn an_empty_period_has_a_header_and_a_trailer_that_says_so() {
    let world = World::empty().await;
    let bytes = exported(&world.history, &Filters::default(), Format::Ndjson).await;
    let (_, records, others) = lines(&bytes);
    assert!(records.is_empty());
    assert_eq!((others.len(), &others[0]["records"], &others[0]["complete"]), (1, &json!(0), &json!(true)));
    assert_eq!(others[0]["statement"], "No bet fits the filters in this period.");
    let (_, records, others) = csv_rows(&exported(&world.history, &Filters::default(), Format::Csv).await);
    assert!(records.is_empty() && others[0].0 == "trailer");
}

/// Changes the history while an export of it is under way: at its first line, and once more.
struct Meddling<'a> {
    label: usize,
    kept: Kept,
    world: &'a World,
}

impl ExportSink for Meddling<'_> {
    async fn take(&mut self, bytes: Vec<u8>, records: u64) -> Result<(), SinkClosed> {
        self.kept.take(bytes, records).await?;
        for (session_id, _) in &self.world.sessions {
            let view = self.world.seeds.view(*session_id).await.unwrap();
            let name = format!("late:{}:{}", self.label, self.kept.takes);
            let bet = self.world.seeds.take_bet(*session_id, &dice(view.commitment, name)).await.unwrap();
            self.world.settle(*session_id, view.commitment, bet.record["nonce"].as_u64().unwrap()).await;
            for pending in view.pending {
                let request = fairledger::seeds::VoidRequest {
                    commitment: pending.commitment,
                    nonce: pending.nonce,
                    reason: super::world::reason(),
                };
                let _ = self.world.seeds.void(*session_id, &request).await;
            }
            let request = RotateRequest { commitment: view.commitment, client_seed: None };
            let _ = self.world.seeds.rotate(*session_id, &request).await;
        }
        Ok(())
    }
}

#[tokio::test]
async fn an_export_is_one_snapshot_whatever_happens_meanwhile() {
    let mut rng = StdRng::seed_from_u64(7);
    let world = World::random(&mut rng, 5, 150).await;
    let known = world.known().await;
    for filters in [Filters::default(), Filters { status: Some(BetStatus::Pending), ..Filters::default() }] {
        let known = if filters.is_empty() { known.clone() } else { world.known().await };
        let mut meddling = Meddling { label: usize::from(filters.is_empty()), kept: Kept::default(), world: &world };
        begin(&world.history, &filters, Format::Ndjson).await.write_to(&mut meddling).await.unwrap();
        let (_, records, _) = lines(&meddling.kept.bytes);
        assert_eq!(records, ascending(&known, &filters));
    }
    assert!(world.known().await.len() > known.len(), "much has happened");
}

/// A reservation that expires while the export is under way was pending when it began.
#[tokio::test]
async fn what_expires_during_an_export_was_pending_when_it_began() {
    struct Waiting<'a>(Kept, &'a World);
    impl ExportSink for Waiting<'_> {
        async fn take(&mut self, bytes: Vec<u8>, records: u64) -> Result<(), SinkClosed> {
            self.1.db.wait_until("SELECT bool_and(expires_at < clock_timestamp()) FROM fairledger.pending").await;
            self.0.take(bytes, records).await
        }
    }
    let world = World::empty().await;
    let settings =
        fairledger::seeds::SeedsSettings { reservation_ttl: Duration::from_millis(700), ..Default::default() };
    let seeds = super::world::seeds_of(&world.db, settings).await;
    let view = seeds.create_session(&Default::default()).await.unwrap().view;
    seeds.reserve(view.session_id, &reservation(view.commitment, "r")).await.unwrap();
    let all = begin(&world.history, &Filters::default(), Format::Ndjson).await;
    let void =
        begin(&world.history, &Filters { status: Some(BetStatus::Void), ..Filters::default() }, Format::Ndjson).await;
    let (mut of_all, mut of_void) = (Waiting(Kept::default(), &world), Waiting(Kept::default(), &world));
    all.write_to(&mut of_all).await.unwrap();
    void.write_to(&mut of_void).await.unwrap();
    let (_, records, _) = lines(&of_all.0.bytes);
    assert_eq!(records[0]["meta"]["status"], "pending");
    assert!(lines(&of_void.0.bytes).1.is_empty());
}

#[tokio::test]
async fn exports_are_counted_and_give_their_place_back_i12() {
    let world = World::empty().await;
    let history = history_of(&world.seeds, HistorySettings { exports_max: 2, ..HistorySettings::default() });
    let request = || ExportRequest { filters: Filters::default(), format: Format::Csv, resume: None };
    let first = history.export(request()).await.unwrap();
    let second = history.export(request()).await.unwrap();
    assert!(matches!(history.export(request()).await, Err(HistoryError::TooManyExports)));
    drop(first);
    let mut closed = Kept { closed_after: Some(0), ..Kept::default() };
    assert!(matches!(second.write_to(&mut closed).await, Err(ExportError::Sink(SinkClosed))));
    let first = history.export(request()).await.unwrap();
    drop((first, history.export(request()).await.unwrap()));
    // What cannot be begun takes none.
    let turned = Filters { nonce: Some(1), ..Filters::default() };
    for _ in 0..3 {
        let request = ExportRequest { filters: turned.clone(), ..request() };
        assert!(matches!(history.export(request).await, Err(HistoryError::Invalid { field: "nonce", .. })));
    }
}

/// Cuts the connection to the database once the header is taken.
struct Cutting(Kept, Proxy);

impl ExportSink for Cutting {
    async fn take(&mut self, bytes: Vec<u8>, records: u64) -> Result<(), SinkClosed> {
        if self.0.takes == 0 {
            self.1.close();
        }
        self.0.take(bytes, records).await
    }
}

#[tokio::test]
async fn an_export_that_loses_its_database_ends_in_a_line_that_says_so_and_has_no_trailer() {
    let mut rng = StdRng::seed_from_u64(8);
    let world = World::random(&mut rng, 2, 30).await;
    for format in [Format::Ndjson, Format::Csv] {
        let proxy = Proxy::start(&world.db.service_url).await;
        let store = Datastore::connect(&proxy.url(&world.db.service_url), &PoolSettings::default()).await.unwrap();
        let history =
            History::new((&store).into(), fairledger::seeds::ServiceSecret::new([7; 32]), HistorySettings::default());
        let export = begin(&history, &Filters::default(), format).await;
        let mut sink = Cutting(Kept::default(), proxy);
        let error = export.write_to(&mut sink).await.unwrap_err();
        assert!(matches!(error, ExportError::Db(DbError::Unavailable(_))), "{error:?}");
        let kinds: Vec<String> = match format {
            Format::Ndjson => {
                lines(&sink.0.bytes).2.iter().map(|line| line["type"].as_str().unwrap().to_owned()).collect()
            }
            Format::Csv => csv_rows(&sink.0.bytes).2.into_iter().map(|(kind, _)| kind).collect(),
        };
        assert_eq!(kinds, ["failed"]);
    }
}

#[tokio::test]
async fn a_row_that_cannot_be_read_breaks_the_export_off_and_is_named() {
    let world = World::empty().await;
    let view = world.seeds.create_session(&Default::default()).await.unwrap().view;
    for number in 0..3 {
        world.seeds.take_bet(view.session_id, &dice(view.commitment, format!("{number}"))).await.unwrap();
    }
    sqlx::query("UPDATE fairledger.bets SET params = '[]' WHERE nonce = 1")
        .execute(&mut world.db.owner().await)
        .await
        .unwrap();
    let mut kept = Kept::default();
    let error = begin(&world.history, &Filters::default(), Format::Ndjson).await.write_to(&mut kept).await.unwrap_err();
    assert!(error.to_string().contains(&format!("session {}, seed 0, nonce 1", view.session_id)), "{error}");
    let (_, _, others) = lines(&kept.bytes);
    assert_eq!((others.len(), &others[0]["type"]), (1, &json!("failed")));
    assert!(!others[0]["reason"].as_str().unwrap().contains("params"));
}

#[tokio::test]
async fn what_is_left_of_an_export_is_gone_on_with_from_any_byte() {
    let mut rng = StdRng::seed_from_u64(9);
    let mut world = World::random(&mut rng, 4, 60).await;
    // A line break and quotes within a cell.
    let view = world.seeds.create_session(&Default::default()).await.unwrap().view;
    let client_seed = fairledger::gfs::ClientSeed::parse("a\r\n\"b\",\nc").unwrap();
    let request = fairledger::seeds::ClientSeedRequest { commitment: view.commitment, client_seed };
    let view = world.seeds.change_client_seed(view.session_id, &request).await.unwrap().session;
    world.sessions.push((view.session_id, None));
    for number in 0..4 {
        let bet = wagered(view.commitment, format!("{number}"), "dice", false);
        world.seeds.take_bet(view.session_id, &bet).await.unwrap();
    }
    let known = world.known().await;
    for (filters, format) in [
        (Filters::default(), Format::Ndjson),
        (Filters::default(), Format::Csv),
        (Filters { session_id: Some(view.session_id), ..Filters::default() }, Format::Csv),
        (Filters { session_id: Some(view.session_id), ..Filters::default() }, Format::Ndjson),
    ] {
        let whole = exported(&world.history, &filters, format).await;
        let mut part = whole[..rng.random_range(0..whole.len())].to_vec();
        let mut times = 0;
        loop {
            let resume = match scan(part.as_slice(), format, &filters).unwrap() {
                Found::Complete(records) => {
                    assert_eq!(records as usize, expected(&known, &filters).len());
                    break;
                }
                Found::Nothing => {
                    part.clear();
                    None
                }
                Found::Part { bytes, resume } => {
                    part.truncate(usize::try_from(bytes).unwrap());
                    times += 1;
                    Some(resume)
                }
            };
            let request = ExportRequest { filters: filters.clone(), format, resume };
            let mut kept = Kept::default();
            world.history.export(request).await.unwrap().write_to(&mut kept).await.unwrap();
            // Broken off again, but for the third time.
            let cut = if times < 3 { rng.random_range(0..kept.bytes.len()) } else { kept.bytes.len() };
            part.extend_from_slice(&kept.bytes[..cut]);
        }
        let (records, trailer) = match format {
            Format::Ndjson => {
                let (_, records, others) = lines(&part);
                (records, others.last().unwrap().clone())
            }
            Format::Csv => {
                let (_, records, others) = csv_rows(&part);
                (records, others.last().unwrap().1.clone())
            }
        };
        assert!(same(&records, &ascending(&known, &filters)), "{filters:?} {format:?}");
        assert_eq!(trailer["records"], json!(records.len()));
        let before = part[..part.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        assert_eq!(trailer["sha256"], hex::encode(Sha256::digest(&part[..before])));
    }
}

#[tokio::test]
async fn what_is_of_another_export_or_of_none_is_not_gone_on_with() {
    let mut rng = StdRng::seed_from_u64(10);
    let world = World::random(&mut rng, 2, 20).await;
    let filters = Filters::default();
    let whole = exported(&world.history, &filters, Format::Ndjson).await;
    let game = Filters { game: Some(GameName::parse("dice").unwrap()), ..Filters::default() };
    let refused = |bytes: &[u8], format, filters: &Filters| match scan(bytes, format, filters) {
        Err(ResumeError::Other(reason)) => reason,
        other => panic!("{other:?}"),
    };
    assert!(refused(&whole, Format::Ndjson, &game).contains("other filters"));
    assert!(refused(&whole, Format::Csv, &filters).contains("byte 0"));
    assert!(refused(b"{\"type\":\"header\"}\n", Format::Ndjson, &filters).contains("header"));
    assert!(refused(b"\0\0\0\n", Format::Ndjson, &filters).contains("byte 0"));
    for (other, format) in [
        (&b"my notes"[..], Format::Ndjson),
        (b"{\"type\":\"h3", Format::Ndjson),
        (b"types", Format::Csv),
        (b"type,", Format::Ndjson),
        (b"failed,", Format::Csv),
    ] {
        assert_eq!(refused(other, format, &filters), "it is no part of an export");
    }
    assert!(refused(b"type,colour\r\n", Format::Csv, &filters).contains("byte 0"));
    let mut longer = whole.clone();
    longer.extend_from_slice(b"{}\n");
    assert!(refused(&longer, Format::Ndjson, &filters).contains("after its trailer"));
    let text = String::from_utf8(whole.clone()).unwrap();
    let second = text.lines().nth(1).unwrap();
    for forged in [text.replacen(&format!("{second}\n"), "", 1), text.replacen("\"nonce\":", "\"nonce\": ", 1)] {
        assert!(refused(forged.as_bytes(), Format::Ndjson, &filters).contains("does not fit"), "{forged}");
    }
    // It ends with a record that is not stored so.
    let cut = text.trim_end().rfind('\n').unwrap() + 1;
    for (nonces, microseconds) in [(1_000, 0), (0, 1), (0, -1), (0, 0)] {
        let Found::Part { mut resume, .. } = scan(&whole[..cut], Format::Ndjson, &filters).unwrap() else { panic!() };
        let last = resume.last.as_mut().unwrap();
        last.nonce += nonces;
        last.taken_at += TimeDelta::microseconds(microseconds);
        if nonces + microseconds.unsigned_abs() == 0 {
            resume.as_of = last.taken_at;
        }
        let request = ExportRequest { filters: filters.clone(), format: Format::Ndjson, resume: Some(resume) };
        let refused = world.history.export(request).await.map(|_| ());
        assert!(matches!(&refused, Err(HistoryError::Invalid { field: "resume", .. })), "{refused:?}");
    }
    let of_other = String::from_utf8(whole).unwrap().replace("fairledger-export/1", "fairledger-export/9");
    assert!(refused(of_other.as_bytes(), Format::Ndjson, &filters).contains("export/9"));
}
