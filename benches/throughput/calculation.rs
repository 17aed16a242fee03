//! The calculation of each game, against its HMACs alone.

use std::hint::black_box;
use std::time::Instant;

use fairledger::gfs::floats::SeedPair;
use fairledger::gfs::games::Game;
use fairledger::gfs::{ClientSeed, Play, ServerSeed};
use serde_json::{Value, json};

use crate::Done;

/// The time of one call, in ns: the best of several rounds.
fn ns(rounds: u64, mut call: impl FnMut(u64)) -> f64 {
    let round = |call: &mut dyn FnMut(u64)| {
        let started = Instant::now();
        (0..rounds).for_each(&mut *call);
        started.elapsed().as_nanos() as f64 / rounds as f64
    };
    (0..5).map(|_| round(&mut call)).fold(f64::INFINITY, f64::min).round()
}

pub fn measure(full: bool) -> Done<Value> {
    let rounds = if full { 100_000 } else { 100 };
    let (server_seed, client_seed) = (ServerSeed::generate(), ClientSeed::generate());
    let pair = SeedPair::new(&server_seed, &client_seed);
    let mut games = Vec::new();
    for game in Game::ALL {
        let play = Play::new(game.name(), None).map_err(|error| error.to_string())?;
        let result = ns(rounds, |nonce| drop(black_box(play.result(black_box(&pair), nonce))));
        let hmacs = ns(rounds, |nonce| {
            let stream = black_box(&pair).floats(nonce);
            // The first of every eight floats calculates the digest of all eight.
            black_box(stream.step_by(8).take(play.cursor() as usize + 1).sum::<f64>());
        });
        games.push(json!({ "game": game.name(), "hmacs": play.cursor() + 1, "ns": result, "hmacs_alone_ns": hmacs,
            "ratio": (result / hmacs * 100.0).round() / 100.0 }));
    }
    let schedule = ns(rounds, |_| drop(black_box(SeedPair::new(black_box(&server_seed), &client_seed))));
    Ok(json!({ "key_schedule_ns": schedule, "games": games }))
}
