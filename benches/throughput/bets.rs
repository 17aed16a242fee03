//! Bets and reservations: in groups, alone, and by Redis as a demo does it.

use std::sync::Arc;
use std::time::Duration;

use fairledger::gfs::floats::SeedPair;
use fairledger::gfs::record::Rules;
use fairledger::gfs::signature::SigningKey;
use fairledger::gfs::{ClientSeed, Commitment, Play, ServerSeed, json as canonical};
use fairledger::seeds::values::{BetRef, OutsideGame};
use fairledger::seeds::{
    BetRequest, GameRequest, KeyRing, ReservationRequest, Seeds, SeedsSettings, ServiceSecret, SessionRequest, Wager,
};
use redis::aio::MultiplexedConnection;
use serde_json::{Map, json};
use sqlx::Executor as _;
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::load::{Load, Repeats, load};
use crate::servers::{Postgres, Redis};
use crate::{Done, writers};

/// Bets of a session that a demo keeps, and how long it keeps the session.
const HISTORY: isize = 100;
const SESSION_S: u32 = 24 * 60 * 60;

/// What is bet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Bets,
    Reservations,
}

/// Sessions to bet in.
pub type Sessions = Arc<Vec<(Uuid, Commitment)>>;

pub async fn service(postgres: &Postgres, grouped: bool, signed: bool, ring: &str) -> Done<Seeds> {
    // Reservations are not ended here, and the cap is not what is measured.
    let settings = SeedsSettings {
        pending_max: 1_000_000_000,
        sessions_per_address_max: 1_000_000_000,
        group: grouped.then(writers),
        ..SeedsSettings::default()
    };
    let key = signed.then(SigningKey::generate);
    let ring = KeyRing::parse(ring)?;
    Ok(Seeds::start(postgres.store().await?, ring, ServiceSecret::new([7; 32]), key, settings).await?)
}

pub async fn sessions(seeds: &Seeds, count: usize) -> Done<Sessions> {
    let makers = (0..16).map(|maker| {
        let seeds = seeds.clone();
        tokio::spawn(async move {
            let mut made = Vec::new();
            for _ in (maker..count).step_by(16) {
                let view = seeds.create_session(&SessionRequest::default()).await?.view;
                made.push((view.session_id, view.commitment));
            }
            Done::Ok(made)
        })
    });
    let mut all = Vec::with_capacity(count);
    for made in futures_util::future::join_all(makers).await {
        all.extend(made??);
    }
    Ok(Arc::new(all))
}

/// Takes all bets back, so that every run begins alike.
pub async fn clear(postgres: &Postgres) -> Done<()> {
    let mut admin = postgres.admin().await?;
    admin.execute("TRUNCATE fairledger.bets, fairledger.pending CASCADE").await?;
    admin.execute("UPDATE fairledger.seeds SET next_nonce = 0, pending = 0 WHERE next_nonce > 0").await?;
    postgres.settle().await
}

/// Every bet that was answered as new is stored; nonces have no gaps, begin at zero and rise with time; the counters are right; no bet is as
/// old as its seed's commitment.
pub async fn check(postgres: &Postgres, fresh: u64) -> Done<()> {
    let (stored, wrong): (i64, i64) = sqlx::query_as(
        "WITH counted AS (
             SELECT session_id, seed_no, count(*) AS bets, min(nonce) AS low, max(nonce) AS high, min(taken_at) AS first,
                    count(*) FILTER (WHERE kind <> 'played') AS pending
             FROM fairledger.bets GROUP BY session_id, seed_no),
         ordered AS (
             SELECT taken_at < lag(taken_at) OVER (PARTITION BY session_id, seed_no ORDER BY nonce) AS back FROM fairledger.bets)
         SELECT (SELECT count(*) FROM fairledger.bets),
             (SELECT count(*) FROM fairledger.seeds s LEFT JOIN counted c USING (session_id, seed_no)
              WHERE coalesce(c.bets, 0) <> s.next_nonce OR coalesce(c.low, 0) <> 0 OR coalesce(c.high + 1, 0) <> s.next_nonce
                 OR coalesce(c.pending, 0) <> s.pending OR c.first <= s.committed_at)
             + (SELECT count(*) FROM ordered WHERE back)
             + abs((SELECT count(*) FROM fairledger.pending) - (SELECT coalesce(sum(pending), 0)::bigint FROM fairledger.seeds))",
    )
    .fetch_one(&mut postgres.admin().await?)
    .await?;
    match (stored == fresh as i64, wrong) {
        (true, 0) => Ok(()),
        _ => Err(format!("{fresh} bets were answered as new, {stored} are stored, {wrong} things are wrong").into()),
    }
}

/// Through the library.
pub async fn through(
    postgres: &Postgres,
    seeds: &Seeds,
    sessions: &Sessions,
    what: What,
    callers: usize,
    time: Duration,
    repeats: Repeats,
) -> Done<Load> {
    clear(postgres).await?;
    let (seeds, sessions) = (seeds.clone(), Arc::clone(sessions));
    let play = Play::new("dice", None).map_err(|error| error.to_string())?;
    let rules = Rules::new("bench:1", [7; 32]).map_err(|error| error.to_string())?;
    let game = OutsideGame::parse("x-bench")?;
    let measured = load(callers, time, move |caller, call| {
        let (seeds, sessions, rules, game) = (seeds.clone(), Arc::clone(&sessions), rules.clone(), game.clone());
        async move {
            let number = repeats.number(call);
            let (session_id, commitment) = sessions[place(caller, number, sessions.len())];
            let bet_ref = BetRef::parse(&format!("{caller}:{number}"))?;
            let wager = Wager::default();
            match what {
                What::Bets => {
                    let game = GameRequest { play, conceal: false };
                    let request = BetRequest { commitment, bet_ref, game, wager };
                    Ok(!seeds.take_bet(session_id, &request).await?.replayed)
                }
                What::Reservations => {
                    let params = Map::new();
                    let request = ReservationRequest { commitment, bet_ref, game, params, rules, floats: 1, wager };
                    Ok(!seeds.reserve(session_id, &request).await?.replayed)
                }
            }
        }
    })
    .await?;
    check(postgres, measured.fresh).await?;
    Ok(measured)
}

/// PostgreSQL's own ceiling: one statement counts up the nonces of many sessions and stores a made-up bet of each; nothing travels, nothing
/// is calculated, and nobody waits for an answer. Gives bets a second.
pub async fn ceiling(postgres: &Postgres, sessions: usize, time: Duration) -> Done<f64> {
    clear(postgres).await?;
    // A quarter of the sessions for each client, so that none waits for another's rows.
    let (quarter, rows) = (sessions / 4, (sessions / 4).min(500));
    let mut admin = postgres.admin().await?;
    admin
        .execute(
            "DROP TABLE IF EXISTS ceiling;
             CREATE TABLE ceiling AS SELECT row_number() OVER (ORDER BY md5(session_id::text)) - 1 AS place, session_id, seed_no
             FROM fairledger.seeds WHERE status = 'live';
             CREATE INDEX ON ceiling (place)",
        )
        .await?;
    admin.execute("VACUUM ANALYZE ceiling").await?;
    let script = format!(
        "\\set base :client_id * {quarter} + random(0, {quarter} - {rows})
         WITH taken AS (
             UPDATE fairledger.seeds s SET next_nonce = s.next_nonce + 1 FROM ceiling c
             WHERE c.place >= :base AND c.place < :base + {rows} AND s.session_id = c.session_id AND s.seed_no = c.seed_no
             RETURNING s.session_id, s.seed_no, s.next_nonce - 1 AS nonce)
         INSERT INTO fairledger.bets (session_id, seed_no, nonce, bet_ref, kind, game, params, taken_at, result, cursor)
         SELECT session_id, seed_no, nonce, 'b' || nonce, 'played', 'dice', '{{}}', clock_timestamp(), '77.34', 0 FROM taken;\n"
    );
    postgres.pgbench(&script, rows, time).await
}

/// A session for every call: any, but the same for the same numbers.
pub fn place(caller: u64, number: u64, sessions: usize) -> usize {
    let mixed = (caller << 32 | number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 32) % sessions as u64) as usize
}

/// What a demo does for a bet, one command after the other since each needs the one before: HGETALL reads the session's seeds, HINCRBY
/// takes a nonce, the result is calculated, RPUSH and LTRIM keep the record, and two times EXPIRE keeps session and history alive.
async fn demo_bet(connection: &mut MultiplexedConnection, session: &str, history: &str) -> Done<()> {
    let fields: std::collections::HashMap<String, String> =
        redis::cmd("HGETALL").arg(session).query_async(connection).await?;
    let field = |name: &str| fields.get(name).ok_or("a session in Redis without its seeds");
    let server_seed = ServerSeed::parse(field("serverSeed")?)?;
    let client_seed = ClientSeed::parse(field("clientSeed")?)?;
    let taken: u64 = redis::cmd("HINCRBY").arg(session).arg("nonce").arg(1).query_async(connection).await?;
    let play = Play::new("dice", None).map_err(|error| error.to_string())?;
    let result = play.result(&SeedPair::new(&server_seed, &client_seed), taken - 1).to_json();
    let record = json!({ "game": "dice", "params": {}, "commitment": server_seed.commitment(), "clientSeed": client_seed,
        "nonce": taken - 1, "result": result });
    redis::cmd("RPUSH").arg(history).arg(canonical::canonical(&record)).query_async::<()>(connection).await?;
    redis::cmd("LTRIM").arg(history).arg(-HISTORY).arg(-1).query_async::<()>(connection).await?;
    redis::cmd("EXPIRE").arg(session).arg(SESSION_S).query_async::<()>(connection).await?;
    redis::cmd("EXPIRE").arg(history).arg(SESSION_S).query_async::<()>(connection).await?;
    Ok(())
}

/// `in_turn`: a session takes one bet at a time, so that its history is in the order of its nonces.
pub async fn by_redis(redis: &Redis, sessions: usize, callers: usize, time: Duration, in_turn: bool) -> Done<Load> {
    redis.clear().await?;
    let connection = redis.connect().await?;
    let mut pipe = redis::pipe();
    for session in 0..sessions {
        let (server_seed, client_seed) = (ServerSeed::generate(), ClientSeed::generate());
        pipe.cmd("HSET").arg(format!("s:{session}")).arg("serverSeed").arg(server_seed.expose());
        pipe.arg("clientSeed").arg(client_seed.as_str()).arg("nonce").arg(0).ignore();
    }
    pipe.query_async::<()>(&mut connection.clone()).await?;
    let turns: Arc<Vec<Mutex<()>>> = Arc::new((0..sessions).map(|_| Mutex::new(())).collect());
    let shared = connection.clone();
    let measured = load(callers, time, move |caller, call| {
        let (mut connection, turns) = (shared.clone(), Arc::clone(&turns));
        async move {
            let place = place(caller, call, sessions);
            let _turn = if in_turn { Some(turns[place].lock().await) } else { None };
            demo_bet(&mut connection, &format!("s:{place}"), &format!("h:{place}")).await?;
            Ok(true)
        }
    })
    .await?;
    let mut pipe = redis::pipe();
    for session in 0..sessions {
        pipe.cmd("HGET").arg(format!("s:{session}")).arg("nonce");
    }
    let nonces: Vec<u64> = pipe.query_async(&mut connection.clone()).await?;
    let taken: u64 = nonces.iter().sum();
    if taken == measured.calls { Ok(measured) } else { Err(format!("{} bets, {taken} nonces", measured.calls).into()) }
}
