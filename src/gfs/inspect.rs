//! Inspecting an untrusted record: what it proves, check by check (GFS/1.0 section 7).
//!
//! Keeps I12 (size and depth are bounded before anything is calculated). What is out of form is an error that names the
//! field, never a mismatch: a mismatch accuses an operator, so it must mean that the calculation disagrees.

use std::fmt::Display;

use serde::Serialize;
use serde_json::{Map, Value};

use super::crash::{self, GameHash};
use super::games::{Play, PlayError};
use super::json::{self, JsonError, Limits};
use super::record::{self, GAME_UNBOUND, OUTSIDE_FLOATS_MAX, PROFILE_CUSTOM, PROFILE_SINGLE_PLAYER, RulesError};
use super::seed::{ClientSeed, Commitment, NONCE_MAX, ServerSeed, decode_hex};
use super::signature::{self, Signature};
use super::{Rules, SPEC, SeedPair, floats};

const NOTE: &str = "Not proved: when the commitment was published, that payouts were honest, and who the operator is.";
const NOTE_FLIGHT: &str = "Not proved: when the commitment was published, the stake, the moment of cash-out and the payout \
                           (a receipt from the operator), and who the operator is.";

/// Why a record cannot be inspected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{detail}", json::prefix(field))]
pub struct InspectError {
    /// The field at fault, such as `params.rows`; `record.params.rows` in a bet answer; empty for the whole.
    pub field: String,
    /// What is wrong with it. Never repeats a value.
    pub detail: String,
}

impl InspectError {
    fn new(field: &str, detail: impl Display) -> Self {
        Self { field: field.to_owned(), detail: detail.to_string() }
    }
}

impl From<JsonError> for InspectError {
    fn from(JsonError { field, detail }: JsonError) -> Self {
        Self { field, detail }
    }
}

impl From<PlayError> for InspectError {
    fn from(PlayError { field, detail }: PlayError) -> Self {
        Self { field, detail }
    }
}

/// What one check came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// What is recorded is what is calculated.
    Matches,
    /// What is recorded is not what is calculated.
    Mismatch,
    /// The record does not hold what the check needs.
    NotProvided,
    /// The record holds something that cannot be checked here.
    Unsupported,
}

/// What all checks together came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Every needed check matches, and nothing was left unchecked.
    Matches,
    /// Some check mismatches.
    Mismatch,
    /// Nothing mismatches, but something could not be checked.
    Incomplete,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Commitment, Cursor, Chain link, Signature, Beacon or Outcome.
    pub name: &'static str,
    /// What it came to.
    pub state: State,
    /// What was compared, in a sentence.
    pub detail: String,
}

/// What an inspection found.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Inspection {
    /// The game, `Crash`, or `Galabet Flight`.
    pub kind: String,
    /// All checks together.
    pub status: Status,
    /// The recalculated result; null where it cannot be.
    pub computed: Value,
    /// The recorded result; null where there is none.
    pub claimed: Value,
    /// The checks, in order.
    pub checks: Vec<Check>,
    /// The first place where the recorded result differs, as in `result.path[2]: recorded 1, calculated 0.`
    pub difference: Option<String>,
    /// SHA-256 of the canonical payload, when result, cursor, at and commitment are there.
    pub record_hash: Option<String>,
    /// What all this does not prove.
    pub note: &'static str,
}

/// Inspects the JSON text of a record, a bet answer or a crash result.
///
/// # Errors
/// [`InspectError`] for a text that [`json::parse`] refuses, and for a record out of form.
pub fn inspect(text: &[u8]) -> Result<Inspection, InspectError> {
    inspect_value(&json::parse(text, Limits::RECORD)?, None)
}

/// Inspects a record, a bet answer or a crash result that has been read already, with the server seed that stands beside
/// it, if there is one. A bet answer (`{record, serverSeed?, ...}`) brings its own; where several seeds are given they
/// must agree. The signature is checked over the record alone, as it was signed.
///
/// # Errors
/// [`InspectError`] for a record out of form or nested too deep.
pub fn inspect_value(value: &Value, beside: Option<&ServerSeed>) -> Result<Inspection, InspectError> {
    if json::is_deeper(value, Limits::RECORD.depth) {
        return Err(InspectError::new("", format!("is nested deeper than {} levels", Limits::RECORD.depth)));
    }
    let object = value.as_object().ok_or_else(|| InspectError::new("", "is not a JSON object"))?;
    let Some(record) = record_of_bet_answer(object) else {
        return inspect_object(object, beside);
    };
    let own = Fields(object).server_seed()?;
    let beside = agreed(own, beside)?;
    inspect_object(record, beside.as_ref())
        .map_err(|error| InspectError { field: format!("record.{}", error.field), ..error })
}

/// The record within a bet answer. A record may carry unknown fields, one named `record` too, so an object that says
/// what it is by itself is not taken for a bet answer.
fn record_of_bet_answer(object: &Map<String, Value>) -> Option<&Map<String, Value>> {
    if object.contains_key("spec") || object.contains_key("gameHash") {
        return None;
    }
    object.get("record")?.as_object()
}

fn inspect_object(object: &Map<String, Value>, beside: Option<&ServerSeed>) -> Result<Inspection, InspectError> {
    let record = Fields(object);
    if object.contains_key("gameHash") { crash_result(record, beside) } else { seed_pair_record(record, beside) }
}

/// The one seed of two places.
fn agreed(own: Option<ServerSeed>, beside: Option<&ServerSeed>) -> Result<Option<ServerSeed>, InspectError> {
    match (own, beside) {
        (Some(own), Some(beside)) if own != *beside => {
            Err(InspectError::new("serverSeed", "is another seed than the one beside the record"))
        }
        (own, beside) => Ok(own.or_else(|| beside.cloned())),
    }
}

/// How a seed-pair record says that its result came about.
enum Calculation {
    /// A game of GFS/1.0.
    Play(Play),
    /// An outside game, with the floats that it bound.
    Outside { floats: Option<u32> },
}

impl Calculation {
    fn cursor(&self) -> Option<u64> {
        match self {
            Self::Play(play) => Some(play.cursor().into()),
            Self::Outside { floats } => floats.map(|floats| floats::cursor(floats).into()),
        }
    }
}

fn seed_pair_record(record: Fields<'_>, beside: Option<&ServerSeed>) -> Result<Inspection, InspectError> {
    record.literal("spec", &[SPEC])?;
    let profile = record.literal("profile", &[PROFILE_SINGLE_PLAYER, PROFILE_CUSTOM])?;
    let kind = record.text("game")?;
    let calculation = if profile == PROFILE_CUSTOM { outside_game(record, kind)? } else { gfs_game(record, kind)? };
    let client_seed = ClientSeed::parse(record.text("clientSeed")?).map_err(|e| InspectError::new("clientSeed", e))?;
    let nonce = record.safe_integer("nonce")?.ok_or_else(|| missing("nonce"))?;
    let cursor = record.safe_integer("cursor")?;
    record.safe_integer("at")?;
    let commitment = record.hash("commitment")?.map(Commitment::from_bytes);
    let seed = agreed(record.server_seed()?, beside)?;
    let signature = record.signature()?;
    let complete = ["result", "cursor", "at", "commitment"].map(|name| (name, record.0.contains_key(name)));
    if let (Some(_), Some((absent, _))) = (&signature, complete.iter().find(|(_, present)| !present)) {
        return Err(InspectError::new(absent, "is missing, and a signed record needs it"));
    }

    let payload = record::payload_of(record.0);
    let computed = match (&calculation, &seed) {
        (Calculation::Play(play), Some(seed)) => play.result(&SeedPair::new(seed, &client_seed), nonce).to_json(),
        _ => Value::Null,
    };
    let mut report = Report::new(record, computed);
    report.commitment(seed.as_ref(), commitment);
    report.cursor(seed.is_some(), calculation.cursor(), cursor);
    report.signature(signature.as_ref(), &payload);
    report.beacon();
    match calculation {
        Calculation::Play(_) => report.outcome("The server seed is not revealed."),
        Calculation::Outside { .. } => {
            report.add(
                "Outcome",
                State::Unsupported,
                "An outside game cannot be recalculated: its rules are its operator's.",
            );
        }
    }
    let record_hash = complete.iter().all(|(_, present)| *present).then(|| record::hash(&payload));
    Ok(report.finish(kind, &["Commitment", "Cursor", "Outcome"], record_hash, NOTE))
}

fn gfs_game(record: Fields<'_>, game: &str) -> Result<Calculation, InspectError> {
    // An unknown game is named first, whatever its parameters are.
    Play::new(game, None)?;
    Ok(Calculation::Play(Play::new(game, Some(record.required("params")?))?))
}

/// fairledger's own profile: a game named `x-...` binds rules and floats, an unbound one has no rules and needs no floats.
fn outside_game(record: Fields<'_>, game: &str) -> Result<Calculation, InspectError> {
    let unbound = game == GAME_UNBOUND;
    if !unbound && !record::is_outside_game(game) {
        return Err(InspectError::new("game", "is neither x-... nor unbound, as an outside game is named"));
    }
    if !record.required("params")?.is_object() {
        return Err(InspectError::new("params", "is not an object"));
    }
    match (unbound, record.0.get("rules")) {
        (true, None) => {}
        (true, Some(_)) => return Err(InspectError::new("rules", "belongs to no unbound game")),
        (false, None) => return Err(missing("rules")),
        (false, Some(rules)) => {
            let rules = rules.as_object().ok_or_else(|| InspectError::new("rules", "is not an object"))?;
            Rules::from_json(rules).map_err(|error| InspectError::new(rules_field(error), error))?;
        }
    }
    let floats = match record.0.get("floats") {
        None if unbound => None,
        None => return Err(missing("floats")),
        Some(value) => {
            Some(whole(value, 1, OUTSIDE_FLOATS_MAX.into()).and_then(|floats| u32::try_from(floats).ok()).ok_or_else(
                || InspectError::new("floats", format!("is not a whole number from 1 to {OUTSIDE_FLOATS_MAX}")),
            )?)
        }
    };
    Ok(Calculation::Outside { floats })
}

const fn rules_field(error: RulesError) -> &'static str {
    match error {
        RulesError::Id => "rules.id",
        RulesError::Sha256 => "rules.sha256",
        RulesError::Unknown => "rules",
    }
}

fn crash_result(record: Fields<'_>, beside: Option<&ServerSeed>) -> Result<Inspection, InspectError> {
    if record.0.contains_key("spec") {
        record.literal("spec", &[SPEC])?;
    }
    let game_hash = GameHash::parse(record.text("gameHash")?)
        .map_err(|_| InspectError::new("gameHash", "is not 64 lower-case hexadecimal characters"))?;
    let salt = record.text("salt")?;
    let house_edge = record.required("houseEdge")?.as_number().map_or(f64::NAN, json::binary64);
    let computed = crash::result(&game_hash, salt, house_edge).map_err(|error| {
        InspectError::new(if error == crash::CrashError::Salt { "salt" } else { "houseEdge" }, error)
    })?;
    let commitment = record.hash("commitment")?.map(Commitment::from_bytes);
    let previous = record.hash("previousHash")?.map(Commitment::from_bytes);
    if beside.is_some() {
        return Err(InspectError::new("serverSeed", "stands beside a crash result, which has none"));
    }

    let flight = record.0.contains_key("id");
    let mut report = Report::new(record, json::number(computed));
    report.commitment(Some(&game_hash), commitment);
    match previous {
        Some(previous) => report.compare(
            "Chain link",
            previous == game_hash.commitment(),
            "SHA-256 of the game hash, compared with previousHash. One link, not the whole chain.",
        ),
        None if flight => {}
        None => report.add("Chain link", State::NotProvided, "The record has no previousHash."),
    }
    if record.0.contains_key("signature") || record.0.contains_key("signer") {
        report.add("Signature", State::Unsupported, "GFS/1.0 defines no signature of a crash result.");
    }
    report.beacon();
    report.outcome("The result cannot be calculated.");
    let anchor = if previous.is_some() && !flight { "Chain link" } else { "Commitment" };
    let (kind, note) = if flight { ("Galabet Flight", NOTE_FLIGHT) } else { ("Crash", NOTE) };
    Ok(report.finish(kind, &[anchor, "Outcome"], None, note))
}

/// The checks as they are made.
struct Report<'r> {
    record: Fields<'r>,
    computed: Value,
    claimed: Value,
    checks: Vec<Check>,
    difference: Option<String>,
}

impl<'r> Report<'r> {
    fn new(record: Fields<'r>, computed: Value) -> Self {
        let claimed = record.0.get("result").map_or(Value::Null, json::normalised);
        Self { record, computed, claimed, checks: Vec::new(), difference: None }
    }

    fn add(&mut self, name: &'static str, state: State, detail: impl Into<String>) {
        self.checks.push(Check { name, state, detail: detail.into() });
    }

    fn compare(&mut self, name: &'static str, equal: bool, detail: impl Into<String>) {
        self.add(name, if equal { State::Matches } else { State::Mismatch }, detail);
    }

    fn commitment(&mut self, seed: Option<&ServerSeed>, commitment: Option<Commitment>) {
        match (seed, commitment) {
            (None, _) => self.add("Commitment", State::NotProvided, "The server seed is not revealed."),
            (_, None) => self.add("Commitment", State::NotProvided, "The record has no commitment."),
            (Some(seed), Some(commitment)) => self.compare(
                "Commitment",
                seed.commitment() == commitment,
                "SHA-256 of the revealed text, compared with the recorded commitment.",
            ),
        }
    }

    fn cursor(&mut self, revealed: bool, calculated: Option<u64>, recorded: Option<u64>) {
        match (calculated, recorded) {
            _ if !revealed => self.add("Cursor", State::NotProvided, "The server seed is not revealed."),
            (_, None) => self.add("Cursor", State::NotProvided, "The record has no cursor."),
            (None, _) => self.add("Cursor", State::NotProvided, "The record does not say how many floats it takes."),
            (Some(calculated), Some(recorded)) => {
                self.compare("Cursor", calculated == recorded, format!("The highest digest used is {calculated}."));
            }
        }
    }

    fn signature(&mut self, signature: Option<&Signature>, payload: &str) {
        match signature {
            None => self.add("Signature", State::NotProvided, "The record is not signed."),
            Some(Signature { bytes, signer }) => self.compare(
                "Signature",
                signature::verify(payload.as_bytes(), bytes, signer),
                "Ed25519 over this record under the signer it names. Whose key that is, is not checked; a signature made \
                 before the reveal is over the record without serverSeed.",
            ),
        }
    }

    fn beacon(&mut self) {
        if self.record.0.contains_key("beacon") {
            self.add("Beacon", State::Unsupported, "A beacon plays no part in GFS/1.0, and its source is not checked.");
        }
    }

    fn outcome(&mut self, not_calculated: &str) {
        if self.claimed.is_null() {
            self.add("Outcome", State::NotProvided, "The record has no result; this is a calculation only.");
        } else if self.computed.is_null() {
            self.add("Outcome", State::NotProvided, not_calculated);
        } else {
            self.difference = first_difference("result", &self.claimed, &self.computed);
            let detail = self.difference.clone();
            let detail = detail.unwrap_or_else(|| "The recorded result is the calculated one.".to_owned());
            self.compare("Outcome", self.difference.is_none(), detail);
        }
    }

    fn finish(self, kind: &str, needed: &[&str], record_hash: Option<String>, note: &'static str) -> Inspection {
        let any = |state| self.checks.iter().any(|check| check.state == state);
        let lacking = |check: &Check| needed.contains(&check.name) && check.state != State::Matches;
        let status = if any(State::Mismatch) {
            Status::Mismatch
        } else if any(State::Unsupported) || self.checks.iter().any(lacking) {
            Status::Incomplete
        } else {
            Status::Matches
        };
        let Self { computed, claimed, checks, difference, .. } = self;
        Inspection { kind: kind.to_owned(), status, computed, claimed, checks, difference, record_hash, note }
    }
}

/// The first place where two results differ, in canonical JSON. Goes no deeper than what was calculated.
fn first_difference(path: &str, recorded: &Value, calculated: &Value) -> Option<String> {
    match (recorded, calculated) {
        (Value::Array(a), Value::Array(b)) => {
            (0..a.len().max(b.len())).find_map(|i| difference_of_members(&format!("{path}[{i}]"), a.get(i), b.get(i)))
        }
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<_> = b.keys().chain(a.keys().filter(|key| !b.contains_key(*key))).collect();
            // Plinko's path before its bucket, which is only the path's sum.
            keys.sort_by_key(|key| !b.get(*key).is_some_and(Value::is_array));
            keys.into_iter().find_map(|key| difference_of_members(&format!("{path}.{key}"), a.get(key), b.get(key)))
        }
        _ => difference_of_members(path, Some(recorded), Some(calculated)),
    }
}

fn difference_of_members(path: &str, recorded: Option<&Value>, calculated: Option<&Value>) -> Option<String> {
    if let (Some(a), Some(b)) = (recorded, calculated)
        && ((a.is_array() && b.is_array()) || (a.is_object() && b.is_object()))
    {
        return first_difference(path, a, b);
    }
    let [recorded, calculated] =
        [recorded, calculated].map(|v| v.map_or_else(|| "nothing".to_owned(), json::canonical));
    (recorded != calculated).then(|| format!("{path}: recorded {recorded}, calculated {calculated}."))
}

/// A record's fields, read by name and form.
#[derive(Clone, Copy)]
struct Fields<'r>(&'r Map<String, Value>);

fn missing(name: &str) -> InspectError {
    InspectError::new(name, "is missing")
}

/// A whole number within bounds.
fn whole(value: &Value, min: u64, max: u64) -> Option<u64> {
    let n = json::binary64(value.as_number()?);
    // Both bounds are within 2^53, so every comparison and the conversion are exact.
    (n.fract() == 0.0 && n >= min as f64 && n <= max as f64).then_some(n as u64)
}

impl<'r> Fields<'r> {
    fn required(self, name: &str) -> Result<&'r Value, InspectError> {
        self.0.get(name).ok_or_else(|| missing(name))
    }

    fn text(self, name: &str) -> Result<&'r str, InspectError> {
        self.required(name)?.as_str().ok_or_else(|| InspectError::new(name, "is not text"))
    }

    fn literal(self, name: &str, allowed: &[&str]) -> Result<&'r str, InspectError> {
        let text = self.text(name)?;
        let fault = || InspectError::new(name, format!("is not {}", allowed.join(" or ")));
        if allowed.contains(&text) { Ok(text) } else { Err(fault()) }
    }

    fn safe_integer(self, name: &str) -> Result<Option<u64>, InspectError> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let fault = || InspectError::new(name, format!("is not a whole number from 0 to {NONCE_MAX}"));
        whole(value, 0, NONCE_MAX).map(Some).ok_or_else(fault)
    }

    fn hex<const N: usize>(self, name: &str) -> Result<Option<[u8; N]>, InspectError> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let fault = || InspectError::new(name, format!("is not {} lower-case hexadecimal characters", 2 * N));
        value.as_str().and_then(decode_hex).map(Some).ok_or_else(fault)
    }

    fn hash(self, name: &str) -> Result<Option<[u8; 32]>, InspectError> {
        self.hex(name)
    }

    fn server_seed(self) -> Result<Option<ServerSeed>, InspectError> {
        Ok(self.hash("serverSeed")?.map(|bytes| ServerSeed::from_bytes(&bytes)))
    }

    fn signature(self) -> Result<Option<Signature>, InspectError> {
        match (self.hex("signature")?, self.hex("signer")?) {
            (Some(bytes), Some(signer)) => Ok(Some(Signature { bytes, signer })),
            (None, None) => Ok(None),
            (Some(_), None) => Err(InspectError::new("signer", "is missing beside a signature")),
            (None, Some(_)) => Err(InspectError::new("signature", "is missing beside a signer")),
        }
    }
}
