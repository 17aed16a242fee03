//! Every published vector of GFS/1.0, bit for bit. The counts are checked too, so that a cut file fails.

use fairledger::gfs::crash::{self, Chain, GameHash};
use fairledger::gfs::json::{self, Limits};
use fairledger::gfs::signature::verify;
use fairledger::gfs::{ClientSeed, Outcome, Play, Record, SeedPair, ServerSeed, SigningKey};
use serde_json::Value;

fn read(name: &str) -> Value {
    let path = format!("{}/tests/vectors/{name}", env!("CARGO_MANIFEST_DIR"));
    json::parse(&std::fs::read(path).unwrap(), Limits { bytes: 1 << 20, depth: 12 }).unwrap()
}

fn list(file: &Value, name: &str, count: usize) -> Vec<Value> {
    let items = file[name].as_array().unwrap().clone();
    assert_eq!(items.len(), count, "{name}");
    items
}

fn text<'v>(item: &'v Value, name: &str) -> &'v str {
    item[name].as_str().unwrap()
}

fn number(item: &Value, name: &str) -> u64 {
    item[name].as_u64().unwrap()
}

fn seed(item: &Value) -> ServerSeed {
    ServerSeed::parse(text(item, "serverSeed")).unwrap()
}

fn pair(item: &Value) -> SeedPair {
    SeedPair::new(&seed(item), &ClientSeed::parse(text(item, "clientSeed")).unwrap())
}

#[test]
fn commitments_match() {
    for item in list(&read("gfs-1.0.json"), "commitments", 4) {
        assert_eq!(seed(&item).commitment().to_string(), text(&item, "commitment"));
    }
}

#[test]
fn digests_match() {
    for item in list(&read("gfs-1.0.json"), "digests", 24) {
        let cursor = number(&item, "cursor").try_into().unwrap();
        assert_eq!(hex::encode(pair(&item).digest(number(&item, "nonce"), cursor)), text(&item, "digest"));
    }
}

#[test]
fn floats_match_bit_for_bit() {
    for item in list(&read("gfs-1.0.json"), "floats", 12) {
        let expected: Vec<u64> = item["floats"].as_array().unwrap().iter().map(bits).collect();
        let floats: Vec<u64> =
            pair(&item).floats(number(&item, "nonce")).take(expected.len()).map(f64::to_bits).collect();
        assert_eq!(floats, expected);
        let cursor = fairledger::gfs::floats::cursor(expected.len().try_into().unwrap());
        assert_eq!(u64::from(cursor), number(&item, "cursor"));
    }
}

fn bits(value: &Value) -> u64 {
    value.as_f64().unwrap().to_bits()
}

#[test]
fn game_results_match_bit_for_bit() {
    let mut games = std::collections::BTreeSet::new();
    for item in list(&read("gfs-1.0.json"), "games", 2_240) {
        let play = Play::new(text(&item, "game"), Some(&item["params"])).unwrap();
        let result = play.result(&pair(&item), number(&item, "nonce"));
        // As values, so that an integer written as a float would show, and as the text that is hashed.
        assert_eq!(result.to_json(), item["result"], "{item}");
        assert_eq!(result.canonical(), json::canonical(&item["result"]), "{item}");
        assert_eq!(u64::from(play.cursor()), number(&item, "cursor"), "{item}");
        games.insert(play.game());
    }
    assert_eq!(games.len(), 9);
}

#[test]
fn signed_records_match_byte_for_byte() {
    let file = read("gfs-1.0-sign.json");
    let key = SigningKey::parse(text(&file, "secretKey")).unwrap();
    for item in list(&file, "items", 2) {
        let claimed = &item["record"];
        let mut record = Record::of_play(
            &Play::new(text(claimed, "game"), Some(&claimed["params"])).unwrap(),
            text(claimed, "commitment").parse().unwrap(),
            ClientSeed::parse(text(claimed, "clientSeed")).unwrap(),
            number(claimed, "nonce"),
            number(claimed, "at").try_into().unwrap(),
        );
        let cursor = number(claimed, "cursor").try_into().unwrap();
        record.conclude(Outcome { cursor, result: claimed["result"].clone() }, Some(&key));

        assert_eq!(record.payload(), text(&item, "payload"));
        assert_eq!(record.payload(), json::canonical(claimed));
        assert_eq!(record.hash(), text(&item, "recordHash"));
        let signature = record.signature.unwrap();
        assert_eq!(hex::encode(signature.bytes), text(&item, "signature"));
        assert_eq!(hex::encode(signature.signer), text(&item, "signer"));
        assert!(verify(record.payload().as_bytes(), &signature.bytes, &signature.signer));
    }
}

#[test]
fn crash_chain_and_results_match() {
    let file = read("gfs-1.0-crash.json");
    let secret = GameHash::parse(text(&file, "secret")).unwrap();
    let chain = Chain::new(secret, number(&file, "length").try_into().unwrap()).unwrap();
    assert_eq!(chain.terminating_hash().to_string(), text(&file, "terminatingHash"));
    for item in list(&file, "games", 48) {
        let game_hash = chain.game_hash(number(&item, "index").try_into().unwrap()).unwrap();
        assert_eq!(game_hash.expose(), text(&item, "gameHash"));
        assert_eq!(game_hash.commitment().to_string(), text(&item, "previousHash"));
        let edge = item["houseEdge"].as_f64().unwrap();
        let result = crash::result(&game_hash, text(&item, "salt"), edge).unwrap();
        assert_eq!(json::number(result), item["result"], "{item}");
    }
}
