//! Fills a database with a history as years of play leave it: closed sessions of two revealed seeds each, their bets in the order of
//! time, with a few rounds, voids and settlements among them. By COPY, because a bench that fills twenty million through the service
//! would measure filling.

use std::fmt::Write as _;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use fairledger::gfs::floats::SeedPair;
use fairledger::gfs::games::Play;
use fairledger::gfs::json;
use fairledger::gfs::seed::{ClientSeed, ServerSeed};
use fairledger::seeds::KeyRing;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use super::Done;

/// Sessions that are played at the same time, so that their bets lie among each other's as they do in life.
const SESSIONS_AT_ONCE: usize = 1_000;
const SEEDS_PER_SESSION: usize = 2;
/// Sessions of one player.
const SESSIONS_PER_PLAYER: usize = 5;
/// Between two bets.
const STEP: TimeDelta = TimeDelta::milliseconds(1);

/// What to fill with.
#[derive(Clone, Copy, Debug)]
pub struct Filling {
    pub records: usize,
    pub bets_per_seed: usize,
}

/// Texts to copy, a table each.
#[derive(Default)]
struct Texts {
    sessions: String,
    commitments: String,
    seeds: String,
    reveals: String,
    bets: String,
    outcomes: String,
    voids: String,
    settlements: String,
}

/// Fills, and gives the time of the first bet and the time after the last.
pub async fn fill(owner_url: &str, ring: KeyRing, filling: Filling) -> Done<(DateTime<Utc>, DateTime<Utc>)> {
    let start: DateTime<Utc> = "2025-01-01T00:00:00Z".parse()?;
    let per_session = filling.bets_per_seed * SEEDS_PER_SESSION;
    let sessions = filling.records.div_ceil(per_session);
    let ring = Arc::new(ring);
    let mut connection = PgConnection::connect(owner_url).await?;
    let mut clock = start;
    let mut first_session = 0;
    while first_session < sessions {
        let count = SESSIONS_AT_ONCE.min(sessions - first_session);
        let (ring, began) = (ring.clone(), clock);
        let texts = tokio::task::spawn_blocking(move || wave(&ring, filling, first_session, count, began)).await??;
        for (into, text) in [
            (
                "sessions (session_id, player_ref, origin, status, epoch, created_at, active_at, closed_at)",
                texts.sessions,
            ),
            ("commitments (commitment, session_id, seed_no)", texts.commitments),
            (
                "seeds (session_id, seed_no, commitment, sealed_seed, seal_key_id, client_seed, client_seed_source, client_seed_at, epoch, \
                 committed_at, live_at, status, next_nonce, retired_at, retired_by)",
                texts.seeds,
            ),
            ("reveals (session_id, seed_no, commitment, server_seed, revealed_at, reason)", texts.reveals),
            (
                "bets (session_id, seed_no, nonce, bet_ref, kind, game, params, stake, currency, rules_id, rules_sha256, floats, taken_at, \
                 expires_at, result, cursor)",
                texts.bets,
            ),
            ("outcomes (session_id, seed_no, nonce, round_outcome, result, cursor, recorded_at)", texts.outcomes),
            ("voids (session_id, seed_no, nonce, reason, taken_at, voided_at)", texts.voids),
            ("settlements (session_id, seed_no, nonce, payout, outcome, settled_at)", texts.settlements),
        ] {
            let mut copy = connection.copy_in_raw(&format!("COPY fairledger.{into} FROM STDIN")).await?;
            for chunk in text.as_bytes().chunks(1 << 20) {
                copy.send(chunk).await?;
            }
            copy.finish().await?;
        }
        clock += STEP * i32::try_from(count * per_session)?;
        first_session += count;
    }
    Ok((start, clock))
}

/// The rows of some sessions that are played at the same time, one bet of each in turn.
fn wave(ring: &KeyRing, filling: Filling, first: usize, count: usize, began: DateTime<Utc>) -> Done<Texts> {
    let mut texts = Texts::default();
    let ended = began + STEP * i32::try_from(count * filling.bets_per_seed * SEEDS_PER_SESSION)?;
    let ids: Vec<Uuid> = (0..count).map(|_| Uuid::now_v7()).collect();
    let mut seeds: Vec<Vec<SeedPair>> = Vec::with_capacity(count);
    for (place, id) in ids.iter().enumerate() {
        let player = (first + place) / SESSIONS_PER_PLAYER;
        writeln!(texts.sessions, "{id}\tplayer-{player}\tservice\tclosed\t0\t{}\t{}\t{}", began - STEP, ended, ended)?;
        let of_session: Vec<SeedPair> = (0..SEEDS_PER_SESSION)
            .map(|no| seed(&mut texts, ring, *id, no, filling, began, ended))
            .collect::<Done<_>>()?;
        seeds.push(of_session);
    }
    let games = games()?;
    let mut at = began;
    for seed_no in 0..SEEDS_PER_SESSION {
        for nonce in 0..filling.bets_per_seed {
            for (id, seeds) in ids.iter().zip(&seeds) {
                bet(&mut texts, &games, *id, seed_no, nonce, &seeds[seed_no], at)?;
                at += STEP;
            }
        }
    }
    Ok(texts)
}

fn seed(
    texts: &mut Texts,
    ring: &KeyRing,
    id: Uuid,
    seed_no: usize,
    filling: Filling,
    began: DateTime<Utc>,
    ended: DateTime<Utc>,
) -> Done<SeedPair> {
    let (server_seed, client_seed) = (ServerSeed::generate(), ClientSeed::generate());
    let commitment = server_seed.commitment();
    let sealed = ring.seal(id, &commitment, &server_seed);
    let length = STEP * i32::try_from((ended - began).num_milliseconds() as usize / SEEDS_PER_SESSION)?;
    let (live, retired) = (began + length * i32::try_from(seed_no)?, began + length * i32::try_from(seed_no + 1)?);
    writeln!(texts.commitments, "\\\\x{commitment}\t{id}\t{seed_no}")?;
    writeln!(
        texts.seeds,
        "{id}\t{seed_no}\t\\\\x{commitment}\t\\\\x{}\t{}\t{}\tgenerated\t{began}\t0\t{}\t{}\trevealed\t{}\t{retired}\trotation",
        hex::encode(&sealed.bytes),
        sealed.key_id,
        client_seed.as_str(),
        began - STEP,
        live - TimeDelta::microseconds(500),
        filling.bets_per_seed,
    )?;
    writeln!(texts.reveals, "{id}\t{seed_no}\t\\\\x{commitment}\t\\\\x{}\t{retired}\trotation", server_seed.expose())?;
    Ok(SeedPair::new(&server_seed, &client_seed))
}

/// The games in the order in which they come: dice seven times in ten, and one of each other now and then.
fn games() -> Done<Vec<(Play, String)>> {
    ["dice", "limbo", "roulette", "wheel", "plinko", "mines", "keno", "hilo"]
        .into_iter()
        .map(|game| {
            let play = Play::new(game, None)?;
            let params = json::canonical_map(&play.params());
            Ok((play, params))
        })
        .collect()
}

#[allow(clippy::too_many_arguments)]
fn bet(
    texts: &mut Texts,
    games: &[(Play, String)],
    id: Uuid,
    seed_no: usize,
    nonce: usize,
    seeds: &SeedPair,
    at: DateTime<Utc>,
) -> Done<()> {
    // The same every time, and scattered.
    let dice = at.timestamp_millis().cast_unsigned().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    let bet_ref = format!("b{seed_no}-{nonce}");
    let start = format!("{id}\t{seed_no}\t{nonce}\t{bet_ref}");
    if dice.is_multiple_of(200) {
        let (rules, expires) = ("0".repeat(64), at + TimeDelta::hours(1));
        writeln!(
            texts.bets,
            "{start}\treservation\tx-slots\t{{}}\t1.00\tEUR\tslots:1\t\\\\x{rules}\t5\t{at}\t{expires}\t\\N\t\\N"
        )?;
        writeln!(texts.voids, "{id}\t{seed_no}\t{nonce}\texpired\t{at}\t{expires}")?;
        return Ok(());
    }
    let pick = if dice % 10 < 7 { 0 } else { 1 + (dice / 10) as usize % (games.len() - 1) };
    let (play, params) = &games[pick];
    let result = play.result(seeds, nonce as u64).canonical();
    let (game, cursor) = (play.game().name(), play.cursor());
    if game == "mines" {
        writeln!(texts.bets, "{start}\tround\tmines\t{params}\t1.00\tEUR\t\\N\t\\N\t\\N\t{at}\t\\N\t\\N\t\\N")?;
        writeln!(texts.outcomes, "{id}\t{seed_no}\t{nonce}\tcashout\t{result}\t{cursor}\t{at}")?;
    } else {
        writeln!(
            texts.bets,
            "{start}\tplayed\t{game}\t{params}\t1.00\tEUR\t\\N\t\\N\t\\N\t{at}\t\\N\t{result}\t{cursor}"
        )?;
    }
    if dice % 20 == 1 {
        writeln!(texts.settlements, "{id}\t{seed_no}\t{nonce}\t1.98\twin\t{at}")?;
    }
    Ok(())
}
