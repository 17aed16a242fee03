//! Recomputing stored bets from their revealed seeds, on all cores.
//!
//! The check of everything that the ledger promises about bets, against what it stored (I3, I7, I8 as far as rows can tell). A bet that
//! is exactly what its seed gives is told by comparing texts; whatever is anything else is read again with all that belongs to it and
//! judged by [`verify_bet`], which also says what differs. So the quick way can only ever confirm.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::RandomState;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::distribution::{Distribution, Subject, Tally};
use super::rounds::{self, Doubt, End, NOT_OF_RESULT};
use crate::db::bets::{BetKey, BetKind};
use crate::db::details::{BetDetails, BetState, Recorded};
use crate::db::scan::{Part, Scan, ScanFilter, ScannedBet, ScannedPlace, ScannedSeed, ScannedSeeds, SeedKey};
use crate::db::steps::StepRow;
use crate::db::{DbError, Look, Reader, Tx};
use crate::gfs::floats::SeedPair;
use crate::gfs::games::{GameResult, Play};
use crate::gfs::json;
use crate::gfs::record::{Outcome, Record};
use crate::gfs::seed::Commitment;
use crate::gfs::signature;
use crate::seeds::model::StepView;
use crate::seeds::step_view;
use crate::seeds::values::{PlayerRef, Timestamp};
use crate::seeds::verify::{Verdict, verify_bet};

/// Findings that are listed at the most; all are counted.
const LISTED_MAX: usize = 1_000;
/// Games, each with its parameters, whose spread is tested at the most; some parameters are fractions, and there is no end of those.
const SUBJECTS_MAX: usize = 256;
/// Seeds used from one piece to the next that make a generation; two of them are remembered, each some 10 MB.
const KNOWN_SEEDS_MAX: usize = 20_000;
/// Sessions of a player read at once.
const SESSIONS: i64 = 1_000;

/// Whose bets are checked.
#[derive(Clone, Debug, PartialEq)]
pub enum Whose {
    /// Everybody's.
    All,
    /// Of one session.
    Session(Uuid),
    /// Of every session of a player.
    Player(PlayerRef),
    /// Under one commitment.
    Commitment(Commitment),
}

/// Why a check did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// There is no such session.
    #[error("there is no session {0}")]
    SessionNotFound(Uuid),
    /// No session has the player's name.
    #[error("no session has this player reference")]
    PlayerNotFound,
    /// There is no such commitment.
    #[error("there is no commitment {0}")]
    CommitmentNotFound(Commitment),
    /// A worker ended.
    #[error("a check ended: {0}")]
    Worker(#[from] tokio::task::JoinError),
    /// The database.
    #[error(transparent)]
    Db(#[from] DbError),
}

/// What a check came to.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Recomputed and found equal.
    pub verified: u64,
    /// Their seed is not revealed, or their result not there yet.
    pub not_revealed: u64,
    /// Ended without a result.
    pub void: u64,
    /// Of outside games: commitment, cursor and signature checked.
    pub custom: u64,
    /// How many of all that have a result carry no signature.
    pub unsigned: u64,
    /// Not what their seed gives.
    pub mismatched: u64,
    /// Rows that cannot be read.
    pub corrupt: u64,
    /// The first of the mismatched and corrupt ones, by session, seed and nonce.
    pub findings: Vec<Finding>,
    /// A signing key has been in use, so that a record without signature may be asked about.
    pub signing_key_known: bool,
    /// How the results of each game are spread.
    pub distributions: Vec<Distribution>,
    /// How those are spread that voided bets would have come to.
    pub voided: Vec<Distribution>,
}

/// A bet that is not as it must be.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Its session.
    pub session_id: Uuid,
    /// The number of its seed in the session.
    pub seed_no: i32,
    /// Its nonce, as it is stored: a forged row may have one below 0.
    pub nonce: i64,
    /// What it is, where it can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bet: Option<FoundBet>,
    /// The check that failed, or `Row`.
    pub check: String,
    /// What was found.
    pub detail: String,
}

/// How its session and its engine know a bet.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FoundBet {
    /// Its seed's commitment.
    pub commitment: String,
    /// The caller's name for it.
    pub bet_ref: String,
    /// The game.
    pub game: String,
    /// When it was taken.
    pub taken_at: Timestamp,
}

impl Finding {
    fn key(&self) -> (Uuid, i32, i64) {
        (self.session_id, self.seed_no, self.nonce)
    }
}

impl Report {
    /// Whether nothing was found wrong. What is only unlikely is not wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.mismatched == 0 && self.corrupt == 0
    }

    /// The spreads that chance alone hardly gives.
    pub fn unlikely(&self) -> impl Iterator<Item = &Distribution> {
        self.distributions.iter().chain(&self.voided).filter(|found| found.unlikely)
    }
}

/// Tallies by game and parameters.
type Tallies = BTreeMap<String, Tally>;

/// What a part came to.
#[derive(Default)]
struct Counts {
    report: Report,
    results: Tallies,
    voided: Tallies,
}

impl Counts {
    fn verified(&mut self, play: Play, result: &GameResult) {
        self.report.verified += 1;
        if let Some(tally) = tally(&mut self.results, Subject::Play(play)) {
            tally.count(result);
        }
    }

    /// What a voided bet would have come to.
    fn void(&mut self, bet: &BetDetails) {
        self.report.void += 1;
        let Some(seed) = &bet.server_seed else { return };
        let pair = SeedPair::new(seed, &bet.client_seed);
        match (bet.kind, Play::new(&bet.game, Some(&bet.params.clone().into()))) {
            (BetKind::Round | BetKind::Played, Ok(play)) => {
                if let Some(tally) = tally(&mut self.voided, Subject::Play(play)) {
                    tally.count(&play.result(&pair, bet.key.nonce));
                }
            }
            _ => {
                if let (Some(tally), Some(float)) =
                    (tally(&mut self.voided, Subject::Floats), pair.floats(bet.key.nonce).next())
                {
                    tally.count_float(float);
                }
            }
        }
    }

    /// Judges a bet by everything that is known of it.
    fn judge(&mut self, key: &BetKey, row: &Result<BetDetails, DbError>, steps: Option<&StepsFault>) {
        if let Ok(BetDetails { state: BetState::Recorded(Recorded { signature: None, .. }), .. }) = row {
            self.report.unsigned += 1;
        }
        let (bet, check, detail) = match row {
            Ok(bet) => match (verify_bet(bet), steps) {
                (Verdict::Mismatch { check, detail }, _) => {
                    self.report.mismatched += 1;
                    (Some(bet), check, detail)
                }
                (_, Some(StepsFault::Mismatch(check, detail))) => {
                    self.report.mismatched += 1;
                    (Some(bet), (*check).to_owned(), (*detail).to_owned())
                }
                (_, Some(StepsFault::Unreadable(error))) => {
                    self.report.corrupt += 1;
                    (Some(bet), "Row".to_owned(), error.to_string())
                }
                (Verdict::Verified, None) => return self.judged_verified(bet),
                (Verdict::Custom, None) => return self.report.custom += 1,
                (Verdict::NotRevealed, None) => return self.report.not_revealed += 1,
                (Verdict::Void, None) => return self.void(bet),
            },
            Err(error) => {
                self.report.corrupt += 1;
                (None, "Row".to_owned(), error.to_string())
            }
        };
        let bet = bet.map(|bet| FoundBet {
            commitment: bet.commitment.to_string(),
            bet_ref: bet.bet_ref.clone(),
            game: bet.game.clone(),
            taken_at: Timestamp(bet.taken_at),
        });
        let BetKey { session_id, seed_no, nonce } = *key;
        self.list(Finding { session_id, seed_no, nonce: nonce.cast_signed(), bet, check, detail });
    }

    /// A row at a place where no bet can be.
    fn nowhere(&mut self, ScannedPlace { session_id, seed_no, nonce }: ScannedPlace) {
        self.report.corrupt += 1;
        let (check, detail) = ("Row".to_owned(), "No bet has a nonce below 0.".to_owned());
        self.list(Finding { session_id, seed_no, nonce, bet: None, check, detail });
    }

    fn list(&mut self, finding: Finding) {
        if self.report.findings.len() < LISTED_MAX {
            self.report.findings.push(finding);
        }
    }

    fn judged_verified(&mut self, bet: &BetDetails) {
        match (Play::new(&bet.game, Some(&bet.params.clone().into())), &bet.server_seed) {
            (Ok(play), Some(seed)) => {
                self.verified(play, &play.result(&SeedPair::new(seed, &bet.client_seed), bet.key.nonce));
            }
            // Verified means that there were both.
            _ => self.report.verified += 1,
        }
    }

    fn add(&mut self, other: Self) {
        let Self {
            report: Report { verified, not_revealed, void, custom, unsigned, mismatched, corrupt, findings, .. },
            results,
            voided,
        } = other;
        let report = &mut self.report;
        report.verified += verified;
        report.not_revealed += not_revealed;
        report.void += void;
        report.custom += custom;
        report.unsigned += unsigned;
        report.mismatched += mismatched;
        report.corrupt += corrupt;
        report.findings.extend(findings);
        // Pieces end in any order; the same findings are listed all the same.
        report.findings.sort_by_key(Finding::key);
        report.findings.truncate(LISTED_MAX);
        for (all, more) in [(&mut self.results, results), (&mut self.voided, voided)] {
            for other in more.values() {
                if let Some(tally) = tally(all, other.subject()) {
                    tally.add(other);
                }
            }
        }
    }

    fn finish(self) -> Report {
        let spread = |tallies: Tallies| tallies.values().map(Tally::distribution).collect();
        Report { distributions: spread(self.results), voided: spread(self.voided), ..self.report }
    }
}

/// What is wrong with the steps of a round.
enum StepsFault {
    /// They contradict the bet: the check that fails, and how.
    Mismatch(&'static str, &'static str),
    /// They cannot be read.
    Unreadable(DbError),
}

/// What is wrong with the steps of a round, if anything: whether they lead to its end, and show what is of its result.
fn steps_fault(bet: &BetDetails, steps: Result<Vec<StepRow>, DbError>) -> Option<StepsFault> {
    let steps: Vec<StepView> = match steps {
        Ok(steps) => steps.into_iter().map(step_view).collect(),
        Err(error) => return Some(StepsFault::Unreadable(error)),
    };
    let (end, result) = match &bet.state {
        BetState::Pending => (End::Open, None),
        BetState::Void { reason } => (End::Void { by_recovery: reason == "recovery" }, would_be(bet)),
        // A result without the round's outcome is coverage's to find.
        BetState::Recorded(Recorded { round_outcome, result, .. }) => {
            (round_outcome.map_or(End::Open, |outcome| End::Recorded(outcome.as_str())), Some(result.clone()))
        }
    };
    if let Some(Doubt::Impossible(words)) = rounds::doubt(&bet.game, end, &steps) {
        return Some(StepsFault::Mismatch("Steps", words));
    }
    let result = result.as_ref().and_then(Value::as_array)?;
    let shown = steps.iter().filter_map(|step| step.disclosed.as_ref());
    (!rounds::is_of_result(shown, result)).then_some(StepsFault::Mismatch("Disclosed", NOT_OF_RESULT))
}

/// What a bet that ended without a result would have come to, once its seed is revealed.
fn would_be(bet: &BetDetails) -> Option<Value> {
    let play = Play::new(&bet.game, Some(&bet.params.clone().into())).ok()?;
    Some(play.result(&SeedPair::new(bet.server_seed.as_ref()?, &bet.client_seed), bet.key.nonce).to_json())
}

/// The tally of a subject; none where there are too many already.
fn tally(tallies: &mut Tallies, subject: Subject) -> Option<&mut Tally> {
    let name = match &subject {
        Subject::Play(play) => format!("{} {}", play.game(), json::canonical_map(&play.params())),
        Subject::Floats => String::new(),
    };
    if tallies.len() >= SUBJECTS_MAX && !tallies.contains_key(&name) {
        return None;
    }
    Some(tallies.entry(name).or_insert_with(|| Tally::new(subject)))
}

/// Checks stored bets against their revealed seeds. `progress` is told how many more were checked.
///
/// Each part is read in a snapshot of its own; bets taken after the check began need not be among them. The reader's pool needs two
/// connections at least: one half of them read bets, the other what belongs to these.
///
/// # Errors
/// Nobody of the name asked for, and those of the database. What is wrong with a bet is no error but a finding.
pub async fn verify(
    reader: &Reader,
    whose: &Whose,
    filter: &ScanFilter,
    progress: impl Fn(u64),
) -> Result<Report, VerifyError> {
    let mut tx = reader.snapshot("verify.start").await?;
    let signers = Arc::new(tx.signers().await?);
    let signing_key_known = !signers.is_empty();
    let parts = match whose {
        Whose::All => stream::iter(tx.scan_cuts(filter).await?.into_iter().map(Ok)).boxed(),
        Whose::Session(session_id) => {
            tx.session(*session_id).await?.ok_or(VerifyError::SessionNotFound(*session_id))?;
            stream::iter([Ok(Part::Session { session_id: *session_id, seed_no: None })]).boxed()
        }
        Whose::Commitment(commitment) => {
            let found = tx.find_commitment(commitment).await?;
            let (session_id, seed_no) = found.ok_or(VerifyError::CommitmentNotFound(*commitment))?;
            stream::iter([Ok(Part::Session { session_id, seed_no: Some(seed_no) })]).boxed()
        }
        Whose::Player(player_ref) => {
            let first = sessions_of(reader, player_ref, None).await?;
            if first.is_empty() {
                return Err(VerifyError::PlayerNotFound);
            }
            player_parts(reader, player_ref).boxed()
        }
    };
    tx.rollback().await;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // More than there are cores: each waits for PostgreSQL as it begins a part.
    let readers = (2 * cores).min(reader.connections_max() as usize / 2).max(1);
    let (pieces, mut read) = mpsc::channel(cores);
    let reading = async move {
        let all = parts.map(|part| async { read_part(reader, part?, filter, &pieces).await }).buffer_unordered(readers);
        all.try_collect::<()>().await
    };
    let known = KnownSeeds::default();
    let checking = async {
        let checked = stream::poll_fn(|context| read.poll_recv(context))
            .map(|piece| check_piece(reader, piece, &known, &signers))
            // One more than there are cores, which then need not wait for PostgreSQL.
            .buffer_unordered(cores + 1);
        let mut checked = std::pin::pin!(checked);
        let mut counts = Counts::default();
        while let Some((piece, bets)) = checked.try_next().await? {
            counts.add(piece);
            progress(bets);
        }
        Ok::<_, VerifyError>(counts)
    };
    let ((), counts) = tokio::try_join!(reading, checking)?;
    Ok(Report { signing_key_known, ..counts.finish() })
}

fn player_parts<'a>(
    reader: &'a Reader,
    player_ref: &'a PlayerRef,
) -> impl Stream<Item = Result<Part, DbError>> + Send + 'a {
    let sessions = stream::try_unfold(None, move |after| async move {
        let page = sessions_of(reader, player_ref, after).await?;
        let last = page.last().copied();
        Ok::<_, DbError>(last.map(|last| (stream::iter(page.into_iter().map(Ok::<_, DbError>)), Some(last))))
    });
    sessions.try_flatten().map_ok(|session_id| Part::Session { session_id, seed_no: None })
}

async fn sessions_of(reader: &Reader, player_ref: &PlayerRef, after: Option<Uuid>) -> Result<Vec<Uuid>, DbError> {
    let mut tx = reader.snapshot("verify.player").await?;
    let page = tx.sessions_of_player(player_ref.as_str(), after, SESSIONS).await?;
    tx.rollback().await;
    Ok(page)
}

async fn read_part(
    reader: &Reader,
    part: Part,
    filter: &ScanFilter,
    pieces: &mpsc::Sender<Scan>,
) -> Result<(), VerifyError> {
    let mut tx = reader.scan_snapshot("verify.read").await?;
    tx.scan(&part, filter, pieces).await?;
    tx.rollback().await;
    Ok(())
}

/// Checks a piece; gives how many bets it has.
async fn check_piece(
    reader: &Reader,
    piece: Scan,
    known: &KnownSeeds,
    signers: &Arc<HashMap<i32, [u8; 32]>>,
) -> Result<(Counts, u64), VerifyError> {
    let (piece, seeds) = tokio::task::spawn_blocking(move || {
        let seeds = piece.seeds();
        (piece, seeds)
    })
    .await?;
    let ScannedSeeds { keys, of_bets } = seeds;
    let mut seeds = known.find(&keys);
    let missing: Vec<SeedKey> =
        keys.iter().zip(&seeds).filter(|(_, seed)| seed.is_none()).map(|(key, _)| *key).collect();
    if !missing.is_empty() {
        let mut tx = reader.snapshot("verify.seeds").await?;
        let read = known.learn(tx.scanned_seeds(&missing).await?);
        tx.rollback().await;
        for (key, seed) in keys.iter().zip(&mut seeds).filter(|(_, seed)| seed.is_none()) {
            *seed = read.get(key).map(Arc::clone);
        }
    }
    let signers = Arc::clone(signers);
    let seeds = SeedsOfBets { seeds, of_bets };
    let (counts, closer, bets) = tokio::task::spawn_blocking(move || quick(&piece, &seeds, &signers)).await??;
    if closer.is_empty() {
        return Ok((counts, bets));
    }
    let mut tx = reader.snapshot("verify.check").await?;
    let counts = look_closer(&mut tx, counts, &closer).await?;
    tx.rollback().await;
    Ok((counts, bets))
}

/// Judges bets by everything that is known of them, the steps of rounds too.
async fn look_closer(tx: &mut Tx<Look>, mut counts: Counts, closer: &[BetKey]) -> Result<Counts, VerifyError> {
    for keys in closer.chunks(1_000) {
        let rows = rows_at(tx, keys).await?;
        let rounds = rows.iter().filter_map(|(key, row)| Some((*key, row.as_ref().ok()?)));
        let rounds: HashMap<BetKey, &BetDetails> = rounds.filter(|(_, bet)| bet.kind == BetKind::Round).collect();
        let mut faults = HashMap::new();
        if !rounds.is_empty() {
            let keys: Vec<BetKey> = rounds.keys().copied().collect();
            // Only those of one round are held at a time.
            let look = |key, steps| {
                let fault = rounds.get(&key).and_then(|bet| steps_fault(bet, steps));
                faults.extend(fault.map(|fault| (key, fault)));
            };
            tx.steps_at(&keys, look).await?;
        }
        counts = tokio::task::spawn_blocking(move || {
            rows.iter().for_each(|(key, row)| counts.judge(key, row, faults.get(key)));
            counts
        })
        .await?;
    }
    Ok(counts)
}

/// Bets with all that belongs to them. One without its seed or session is its own error and no other's.
async fn rows_at(tx: &mut Tx<Look>, keys: &[BetKey]) -> Result<Vec<(BetKey, Result<BetDetails, DbError>)>, DbError> {
    match tx.bets_at(keys).await {
        Err(DbError::Corrupt { .. }) => {}
        rows => return rows,
    }
    let mut rows = Vec::with_capacity(keys.len());
    for key in keys {
        match tx.bets_at(&[*key]).await {
            Ok(row) => rows.extend(row),
            Err(error @ DbError::Corrupt { .. }) => rows.push((*key, Err(error))),
            Err(error) => return Err(error),
        }
    }
    Ok(rows)
}

/// Confirms what is exactly as calculated; gives the places of everything else, and how many bets there were.
fn quick(
    scan: &Scan,
    seeds: &SeedsOfBets,
    signers: &HashMap<i32, [u8; 32]>,
) -> Result<(Counts, Vec<BetKey>, u64), DbError> {
    let mut counts = Counts::default();
    let (mut closer, mut bets) = (Vec::new(), 0_usize);
    let (mut plays, mut last) = (HashMap::with_hasher(RandomState::default()), None);
    let mut tallies: Vec<Tally> = Vec::new();
    for bet in scan.bets() {
        let (place, bet) = bet?;
        let seed = seeds.of(bets);
        bets += 1;
        let Some(key) = place.key() else {
            counts.nowhere(place);
            continue;
        };
        let confirmed = bet.ok().and_then(|bet| {
            let seed = seed?;
            let (play, tally) = match last {
                // Most bets are on the same game as the one before.
                Some((game, params, found)) if game == bet.game && params == bet.params => found,
                _ => *plays.entry((bet.game, bet.params)).or_insert_with(|| {
                    let play = play_of(&bet)?;
                    tallies.push(Tally::new(Subject::Play(play)));
                    Some((play, tallies.len() - 1))
                }),
            }?;
            last = Some((bet.game, bet.params, Some((play, tally))));
            let confirmed = confirm(&key, &bet, seed, &play, signers)?;
            counts.report.unsigned += u64::from(bet.signature.is_none());
            Some((confirmed, tally))
        });
        match confirmed {
            Some((Confirmed::Verified(result), tally)) => {
                counts.report.verified += 1;
                tallies[tally].count(&result);
            }
            Some((Confirmed::NotRevealed, _)) => counts.report.not_revealed += 1,
            None => closer.push(key),
        }
    }
    for part in tallies.iter().filter(|part| part.sample() > 0) {
        if let Some(all) = tally(&mut counts.results, part.subject()) {
            all.add(part);
        }
    }
    closer.sort_unstable();
    Ok((counts, closer, bets as u64))
}

/// A game with its parameters, where these are stored as they must be: canonical, with their defaults.
fn play_of(bet: &ScannedBet<'_>) -> Option<Play> {
    let params = json::parse(bet.params, json::Limits::RECORD).ok()?;
    let play = Play::new(std::str::from_utf8(bet.game).ok()?, Some(&params)).ok()?;
    (json::canonical_map(&play.params()).as_bytes() == bet.params).then_some(play)
}

struct Seed {
    public: ScannedSeed,
    pair: Option<SeedPair>,
}

impl Seed {
    fn new(public: ScannedSeed) -> Self {
        let pair = public.server_seed.as_ref().map(|seed| SeedPair::new(seed, &public.client_seed));
        Self { public, pair }
    }
}

type SeedsByKey = HashMap<SeedKey, Arc<Seed>, RandomState>;

/// The seeds of a piece's bets.
struct SeedsOfBets {
    /// Each once; none for one that cannot be read.
    seeds: Vec<Option<Arc<Seed>>>,
    /// Of each bet, its seed's place among them.
    of_bets: Vec<u32>,
}

impl SeedsOfBets {
    fn of(&self, bet: usize) -> Option<&Seed> {
        self.seeds.get(*self.of_bets.get(bet)? as usize)?.as_deref()
    }
}

/// Revealed seeds that bets were checked with, so that the next piece need not read them again: the bets of a session lie close in time.
/// What is revealed never changes.
#[derive(Default)]
struct KnownSeeds {
    /// Those used since the last turn, and those used before it.
    generations: Mutex<[SeedsByKey; 2]>,
}

impl KnownSeeds {
    /// Of each key its seed, if that is known.
    fn find(&self, keys: &[SeedKey]) -> Vec<Option<Arc<Seed>>> {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let [now, before] = &mut *generations;
        let find = |key| {
            if let Some(seed) = now.get(key) {
                return Some(Arc::clone(seed));
            }
            let seed = before.remove(key)?;
            now.insert(*key, Arc::clone(&seed));
            Some(seed)
        };
        keys.iter().map(find).collect()
    }

    /// Makes ready what was read, and keeps it for the next piece as long as there is room.
    fn learn(&self, read: HashMap<SeedKey, ScannedSeed>) -> SeedsByKey {
        let read: SeedsByKey = read.into_iter().map(|(key, seed)| (key, Arc::new(Seed::new(seed)))).collect();
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let [now, before] = &mut *generations;
        if now.len() >= KNOWN_SEEDS_MAX {
            *before = std::mem::take(now);
        }
        let revealed = read.iter().filter(|(_, seed)| seed.pair.is_some());
        now.extend(revealed.map(|(key, seed)| (*key, Arc::clone(seed))));
        read
    }
}

enum Confirmed {
    Verified(GameResult),
    NotRevealed,
}

/// Confirms a bet that was played at once; none when it must be looked at closer.
fn confirm(
    key: &BetKey,
    bet: &ScannedBet<'_>,
    seed: &Seed,
    play: &Play,
    signers: &HashMap<i32, [u8; 32]>,
) -> Option<Confirmed> {
    // Of a bet that was played at once: no other has one here.
    let (result_text, cursor) = bet.result?;
    let result = seed.pair.as_ref().map(|pair| play.result(pair, key.nonce));
    let exact = result.as_ref().is_none_or(|result| result.is_canonical(result_text))
        && u32::try_from(cursor) == Ok(play.cursor());
    if !exact {
        return None;
    }
    if let Some(signature) = bet.signature {
        let ScannedSeed { commitment, client_seed, .. } = &seed.public;
        let at_ms = signature.taken_at_us.div_euclid(1_000);
        let mut record = Record::of_play(play, *commitment, client_seed.clone(), key.nonce, at_ms);
        let result = json::parse(result_text, json::Limits::RECORD).ok()?;
        record.outcome = Some(Outcome { cursor: play.cursor(), result });
        if !signature::verify(record.payload().as_bytes(), signature.bytes, signers.get(&signature.signing_key_no)?) {
            return None;
        }
    }
    Some(result.map_or(Confirmed::NotRevealed, Confirmed::Verified))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gfs::seed::{ClientSeed, ServerSeed};

    fn key(number: usize) -> SeedKey {
        (Uuid::from_u128(number as u128), 0)
    }

    fn seed(revealed: bool) -> ScannedSeed {
        let server_seed = ServerSeed::generate();
        ScannedSeed {
            commitment: server_seed.commitment(),
            client_seed: ClientSeed::parse("mine").unwrap(),
            server_seed: revealed.then_some(server_seed),
        }
    }

    #[test]
    fn a_seed_is_known_once_it_was_read_revealed() {
        let known = KnownSeeds::default();
        known.learn(HashMap::from([(key(1), seed(true)), (key(2), seed(false))]));
        let found: Vec<bool> = known.find(&[key(1), key(2), key(3)]).iter().map(Option::is_some).collect();
        assert_eq!(found, [true, false, false], "one that is not revealed may be by the next piece");
    }

    #[test]
    fn what_is_used_stays_known_and_the_rest_is_forgotten_in_time() {
        let known = KnownSeeds::default();
        for round in 0..4 {
            known.learn(
                (0..KNOWN_SEEDS_MAX).map(|number| (key(round * KNOWN_SEEDS_MAX + number), seed(true))).collect(),
            );
            assert!(known.find(&[key(0)])[0].is_some(), "used in every round");
        }
        assert!(known.find(&[key(1)])[0].is_none());
        let kept: usize = known.generations.lock().unwrap().iter().map(HashMap::len).sum();
        assert!(kept <= 2 * KNOWN_SEEDS_MAX + 1, "{kept}");
    }
}
