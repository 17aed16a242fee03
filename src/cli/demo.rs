//! `demo`: the main job end to end, on a throw-away PostgreSQL in a temporary folder.
//!
//! One token spent by fifty callers at once (I1). Fifty bets at once under one commitment (I3, I4), its reveal (I7), every record
//! recomputed from what was revealed, and a round of mines whose result nobody could see before its end (I11). Nothing in it is prepared:
//! each run has other seeds.

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use uuid::Uuid;

use crate::config::{Settings, parse_secret, parse_seed_keys};
use crate::db::rights::Roles;
use crate::db::{Datastore, migrate};
use crate::embedded::{Embedded, find_binaries};
use crate::gfs::inspect::{self, Status};
use crate::gfs::{Commitment, Game, Play, ServerSeed, SigningKey, json as canonical};
use crate::ledger::values::InvalidToken;
use crate::ledger::{
    KeyId, KeyRequest, Ledger, LedgerError, LedgerSettings, Spend, SpendLedger as _, Spent, Token, TokenNonce,
};
use crate::seeds::model::{BetAnswer, Revealed, View};
use crate::seeds::values::{BetRef, BoundedJson, JSON_BYTES_MAX, Timestamp};
use crate::seeds::{
    BetRequest, CloseOutcome, CloseRequest, Disclose, GameRequest, KeyRing, RotateRequest, Seeds, SeedsSettings,
    SessionRequest, StepRequest, Wager,
};

use super::CliError;
use super::data_dir::new_secret;
use super::database::{Role, private_url};

/// Callers who spend one token at once.
const SPENDERS: usize = 50;

/// Bets taken at once.
const BETS: usize = 50;

/// Tiles opened in the round of mines at the most, before the player cashes out.
const TILES_MAX: u8 = 5;

pub(super) async fn run(settings: &Settings) -> Result<ExitCode, CliError> {
    let folder = Folder::make()?;
    tokio::select! {
        done = on_private_server(settings, &folder.0) => done?,
        // The server is told to stop as it is dropped, and the folder goes.
        _ = tokio::signal::ctrl_c() => return Ok(ExitCode::FAILURE),
    }
    Ok(ExitCode::SUCCESS)
}

async fn on_private_server(settings: &Settings, folder: &Path) -> Result<(), CliError> {
    let started = Instant::now();
    let binaries = find_binaries(settings.pg_bin.as_deref())?;
    let server = Embedded::start(folder, &binaries, &[]).await?;
    say(format!("a throw-away PostgreSQL {} in {}", binaries.version, folder.display()), started.elapsed());
    let done = demonstrate(settings, &server).await;
    server.stop().await?;
    done
}

async fn demonstrate(settings: &Settings, server: &Embedded) -> Result<(), CliError> {
    let started = Instant::now();
    let report = migrate::run(private_url(server, Role::Owner).expose(), &Roles::default()).await?;
    let store = Datastore::connect(private_url(server, Role::Service).expose(), &settings.pool).await?;
    say(format!("schema at version {}", report.version), started.elapsed());
    one_token(&store).await?;
    bets_and_rounds(&store).await?;
    store.close().await;
    show!("\nEverything fits.");
    Ok(())
}

/// The first promise: a single-use token is accepted once.
async fn one_token(store: &Datastore) -> Result<(), CliError> {
    let ledger = Ledger::new(store.clone(), LedgerSettings::default());
    let key_id: KeyId = "demo".parse().map_err(|error: InvalidToken| failed(error.to_string()))?;
    let started = Instant::now();
    let key = ledger.register_key(&KeyRequest::new(key_id.clone())).await?.key;
    show!("\nA single-use token");
    let until = Timestamp(key.redeem_until);
    say(format!("key {key_id} takes its tokens until {until}"), started.elapsed());
    let nonce = TokenNonce::from_bytes(&rand::random::<[u8; 32]>()).map_err(|error| failed(error.to_string()))?;
    let token = Token { key_id, nonce };

    show!("\n{SPENDERS} callers spend it at once");
    let barrier = Arc::new(Barrier::new(SPENDERS));
    let callers = (0..SPENDERS).map(|_| {
        let (ledger, barrier, spend) = (ledger.clone(), Arc::clone(&barrier), Spend::new(token.clone()));
        tokio::spawn(async move {
            barrier.wait().await;
            let outcome = ledger.spend(&spend).await;
            (spend, outcome)
        })
    });
    let started = Instant::now();
    let outcomes = try_join_all(callers).await.map_err(|error| failed(format!("a caller ended: {error}")))?;
    let elapsed = started.elapsed();
    let (mut winners, mut refused) = (Vec::new(), 0);
    for (spend, outcome) in outcomes {
        match outcome {
            Ok(Spent { replayed: false, .. }) => winners.push(spend),
            Err(LedgerError::AlreadySpent) => refused += 1,
            Ok(_) => return Err(failed("a spend was taken for another".to_owned())),
            Err(error) => return Err(error.into()),
        }
    }
    let [winner] = winners.as_slice() else {
        return Err(failed(format!("the token was accepted {} times", winners.len())));
    };
    say(format!("1 fresh, {refused} already_spent"), elapsed);
    if refused != SPENDERS - 1 || !ledger.spend(winner).await?.replayed {
        return Err(failed("the one who spent it was told otherwise the second time".to_owned()));
    }
    show!("  the one who spent it asks again: replayed, as if the first answer had been lost");
    ledger.roll_back(winner).await?;
    if ledger.spend(&Spend::new(token)).await?.replayed {
        return Err(failed("a token that was given back was taken for spent".to_owned()));
    }
    show!("  it is given back, and spent once more");
    Ok(())
}

/// The second promise: a bet can be checked for ever.
async fn bets_and_rounds(store: &Datastore) -> Result<(), CliError> {
    let ring: KeyRing = parse_seed_keys(&KeyRing::generate_entry("demo")).map_err(CliError::Refused)?;
    let secret = parse_secret(&new_secret()).map_err(CliError::Refused)?;
    let signing_key = Some(SigningKey::generate());
    let seeds = Seeds::start(store.clone(), ring, secret, signing_key, SeedsSettings::default()).await?;

    show!("\nA session");
    let started = Instant::now();
    let session = seeds.create_session(&SessionRequest::default()).await?.view;
    say(format!("commitment   {}", session.commitment), started.elapsed());
    show!("  client seed  {}", session.client_seed);
    show!("  the server seed stays sealed; what comes after it is committed too");

    show!("\n{BETS} bets at once");
    let bets = fifty_bets(&seeds, &session).await?;

    show!("\nRotation");
    let revealed = rotate(&seeds, session.session_id, session.commitment).await?;
    check_records(&bets, &revealed)?;

    show!("\nA round of mines");
    let view = seeds.view(session.session_id).await?;
    mines(&seeds, &view).await
}

/// Takes all bets at the same moment; each gets a nonce of its own, and none is left out.
async fn fifty_bets(seeds: &Seeds, session: &View) -> Result<Vec<BetAnswer>, CliError> {
    let barrier = Arc::new(Barrier::new(BETS));
    let (session_id, commitment) = (session.session_id, session.commitment);
    let callers = (0..BETS).zip(Game::ALL.iter().cycle()).map(|(number, game)| {
        let (seeds, barrier) = (seeds.clone(), Arc::clone(&barrier));
        tokio::spawn(async move {
            let request = bet(commitment, &format!("demo:{number}"), game.name(), false)?;
            barrier.wait().await;
            let started = Instant::now();
            Ok::<_, CliError>((seeds.take_bet(session_id, &request).await?, started.elapsed()))
        })
    });
    let started = Instant::now();
    let answers = try_join_all(callers).await.map_err(|error| failed(format!("a caller ended: {error}")))?;
    let elapsed = started.elapsed();
    let mut bets = Vec::new();
    let mut slowest = Duration::ZERO;
    for answer in answers {
        let (bet, took) = answer?;
        slowest = slowest.max(took);
        bets.push(bet);
    }
    bets.sort_by_key(nonce);
    say(format!("taken and durable, the slowest in {} ms", slowest.as_millis()), elapsed);
    if !bets.iter().map(nonce).eq((0..BETS as u64).map(Some)) {
        return Err(failed("some nonce was handed out twice or not at all".to_owned()));
    }
    show!("  every nonce from 0 to {} was handed out exactly once", BETS - 1);
    for bet in bets.iter().take(Game::ALL.len()) {
        show!("  nonce {:<2} {:9} {}", nonce(bet).unwrap_or(0), text(bet, "game"), short(&bet.record["result"]));
    }
    show!("  ...");
    Ok(bets)
}

async fn rotate(seeds: &Seeds, session_id: Uuid, commitment: Commitment) -> Result<Revealed, CliError> {
    let started = Instant::now();
    let ended = seeds.rotate(session_id, &RotateRequest { commitment, client_seed: None }).await?;
    let revealed = ended.revealed.ok_or_else(|| failed("a seed with bets was not revealed".to_owned()))?;
    say(format!("server seed  {}", revealed.server_seed.as_str()), started.elapsed());
    Ok(revealed)
}

/// Recomputes all records, and one that was tampered with, which must be found out.
fn check_records(bets: &[BetAnswer], revealed: &Revealed) -> Result<(), CliError> {
    let seed = ServerSeed::parse(revealed.server_seed.as_str()).map_err(|error| failed(error.to_string()))?;
    if seed.commitment() != revealed.commitment {
        return Err(failed("the revealed seed is not the committed one".to_owned()));
    }
    show!("  its SHA-256 is the commitment that was published before the first bet");
    let started = Instant::now();
    for bet in bets {
        let record = Value::Object(bet.record.clone());
        let found = inspect::inspect_value(&record, Some(&seed)).map_err(|error| failed(error.to_string()))?;
        if found.status != Status::Matches {
            return Err(failed(format!("a record does not match its seed: {:?}", found.checks)));
        }
    }
    say(format!("{} records recomputed from it: all match", bets.len()), started.elapsed());

    let dice = bets.iter().find(|bet| text(bet, "game") == Game::Dice.name());
    let mut forged = dice.ok_or_else(|| failed("there is no record of dice".to_owned()))?.record.clone();
    let honest = forged["result"].as_f64().unwrap_or(0.0);
    forged.insert("result".to_owned(), json!(if honest < 50.0 { honest + 25.0 } else { honest - 25.0 }));
    let found =
        inspect::inspect_value(&Value::Object(forged), Some(&seed)).map_err(|error| failed(error.to_string()))?;
    match (found.status, found.difference) {
        (Status::Mismatch, Some(difference)) => show!("  one of them forged: {difference}"),
        (status, _) => return Err(failed(format!("a forged record was taken for {status:?}"))),
    }
    Ok(())
}

/// Opens tile after tile; each answer says no more than what was asked.
async fn mines(seeds: &Seeds, view: &View) -> Result<(), CliError> {
    let (session_id, commitment) = (view.session_id, view.commitment);
    let bet = seeds.take_bet(session_id, &bet(commitment, "demo:mines", Game::Mines.name(), true)?).await?;
    let nonce = nonce(&bet).ok_or_else(|| failed("a round has no nonce".to_owned()))?;
    if bet.record.contains_key("result") {
        return Err(failed("the result of an open round was shown".to_owned()));
    }
    show!("  25 tiles, {} mines; the result is concealed", bet.record["params"]["mines"]);
    let mut opened = Vec::new();
    let mut hit = false;
    while !hit && opened.len() < usize::from(TILES_MAX) {
        let tile = rand::random_range(0..25u8);
        if opened.iter().any(|(known, _)| *known == tile) {
            continue;
        }
        let index = u32::try_from(opened.len()).map_err(|_| failed("too many steps".to_owned()))?;
        let step =
            BoundedJson::new(json!({ "open": tile }), JSON_BYTES_MAX).map_err(|error| failed(error.to_string()))?;
        let request = StepRequest { index, step, disclose: Some(Disclose::Tiles(vec![tile])) };
        let started = Instant::now();
        let answer = seeds.step(session_id, &commitment, nonce, &request).await?;
        let shown = answer.round.steps.last().and_then(|step| step.disclosed.as_ref());
        let mine = shown.and_then(|shown| shown["tiles"][0]["mine"].as_bool());
        hit = mine.ok_or_else(|| failed("a step did not disclose what it was asked for".to_owned()))?;
        say(format!("tile {tile:<2} {}", if hit { "a mine" } else { "safe" }), started.elapsed());
        opened.push((tile, hit));
    }
    let (outcome, word) = if hit { (CloseOutcome::Lost, "lost") } else { (CloseOutcome::Cashout, "cashed out") };
    let closed = seeds.close_round(session_id, &commitment, nonce, &CloseRequest { outcome }).await?.bet;
    show!("  {word}; the record now says: mines at {}", short(&closed.record["result"]));
    let positions: BTreeSet<u64> =
        closed.record["result"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    if opened.iter().any(|(tile, mine)| positions.contains(&u64::from(*tile)) != *mine) {
        return Err(failed("a tile was shown otherwise than the record has it".to_owned()));
    }
    let revealed = rotate(seeds, session_id, commitment).await?;
    let seed = ServerSeed::parse(revealed.server_seed.as_str()).map_err(|error| failed(error.to_string()))?;
    let record = Value::Object(closed.record);
    let found = inspect::inspect_value(&record, Some(&seed)).map_err(|error| failed(error.to_string()))?;
    if found.status != Status::Matches {
        return Err(failed(format!("the round's record does not match its seed: {:?}", found.checks)));
    }
    show!("  every tile was shown as the seed had it from the beginning");
    Ok(())
}

fn bet(commitment: Commitment, bet_ref: &str, game: &str, conceal: bool) -> Result<BetRequest, CliError> {
    Ok(BetRequest {
        commitment,
        bet_ref: BetRef::parse(bet_ref).map_err(|error| failed(error.to_string()))?,
        game: GameRequest { play: Play::new(game, None).map_err(|error| failed(error.to_string()))?, conceal },
        wager: Wager::default(),
    })
}

fn nonce(bet: &BetAnswer) -> Option<u64> {
    bet.record.get("nonce").and_then(Value::as_u64)
}

fn text<'a>(bet: &'a BetAnswer, field: &str) -> &'a str {
    bet.record.get(field).and_then(Value::as_str).unwrap_or("")
}

/// A result on one line.
fn short(result: &Value) -> String {
    const CHARS_MAX: usize = 60;
    let text = canonical::canonical(result);
    if text.chars().count() <= CHARS_MAX { text } else { text.chars().take(CHARS_MAX).chain("...".chars()).collect() }
}

fn say(what: String, took: Duration) {
    show!("  {what}  [{:.1} ms]", took.as_secs_f64() * 1_000.0);
}

fn failed(what: String) -> CliError {
    CliError::Refused(format!("the demo failed: {what}"))
}

/// A temporary folder that goes with this value.
struct Folder(PathBuf);

impl Folder {
    /// Nobody can have made it before: its name has 64 random bits, and an existing folder is an error.
    fn make() -> Result<Self, CliError> {
        let path = std::env::temp_dir().join(format!("fairledger-demo-{:016x}", rand::random::<u64>()));
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| CliError::io(format!("making {}", path.display()), error))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // After an interruption the server may still be writing for a moment.
        for _ in 0..50 {
            match std::fs::remove_dir_all(&self.0) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                _ => return,
            }
        }
        tracing::warn!(folder = %self.0.display(), "the demo's folder could not be removed");
    }
}
