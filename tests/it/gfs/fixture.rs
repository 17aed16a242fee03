//! Records to inspect. The seed is the specification's worked example: public, and no secret.

use fairledger::gfs::crash::{self, GameHash};
use fairledger::gfs::{
    ClientSeed, InspectError, Inspection, Outcome, Play, Profile, Record, Rules, SeedPair, ServerSeed, SigningKey,
    inspect,
};
use serde_json::{Map, Value, json};

pub const SEED: &str = "5c1f7d3e8a2b4c6d9e0f1a2b3c4d5e6f7a8b9c0d1e2f3a4b5c6d7e8f9a0b1c2d";

pub fn seed() -> ServerSeed {
    ServerSeed::parse(SEED).unwrap()
}

/// A bet of a game of GFS/1.0, ended and signed if there is a key. Without the server seed, as it is stored.
pub fn played(game: &str, params: Value, key: Option<&SigningKey>) -> Record {
    let play = Play::new(game, Some(&params)).unwrap();
    let client_seed = ClientSeed::parse("galabet").unwrap();
    let result = play.result(&SeedPair::new(&seed(), &client_seed), 42).to_json();
    let mut record = Record::of_play(&play, seed().commitment(), client_seed, 42, 1_700_000_000_000);
    record.conclude(Outcome { cursor: play.cursor(), result }, key);
    record
}

/// The same as JSON, with the server seed in it.
pub fn revealed(game: &str, params: Value) -> Map<String, Value> {
    let mut map = played(game, params, None).to_json();
    map.insert("serverSeed".into(), SEED.into());
    map
}

/// A bet of an outside game that binds 17 floats (three digests).
pub fn outside(game: &str) -> Record {
    let mut record = played("dice", json!({}), None);
    record.game = game.into();
    record.profile = Profile::Custom { rules: Rules::new("craps:1", [7; 32]).unwrap(), floats: 17 };
    record.outcome = Some(Outcome { cursor: 2, result: json!({"dice": [3, 4]}) });
    record
}

pub fn crashed() -> Map<String, Value> {
    let hash = GameHash::parse(SEED).unwrap();
    let result = crash::result(&hash, "public-fixture", 0.01).unwrap();
    object(json!({"gameHash": SEED, "salt": "public-fixture", "houseEdge": 0.01, "result": result,
        "previousHash": hash.commitment(), "spec": "GFS/1.0", "profile": "crash"}))
}

pub fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("not an object: {other}"),
    }
}

/// Inspects the record as text.
pub fn look(record: &Map<String, Value>) -> Result<Inspection, InspectError> {
    inspect(&serde_json::to_vec(record).unwrap())
}

pub fn with(record: &Map<String, Value>, field: &str, value: Value) -> Map<String, Value> {
    let mut changed = record.clone();
    changed.insert(field.into(), value);
    changed
}

pub fn without(record: &Map<String, Value>, field: &str) -> Map<String, Value> {
    let mut changed = record.clone();
    changed.remove(field).unwrap_or_else(|| panic!("{field} was not there"));
    changed
}
