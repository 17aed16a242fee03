//! Inputs that nobody wrote by hand: whatever comes, an answer or an error, never a panic; and laws that hold for all.

use fairledger::gfs::inspect::Status;
use fairledger::gfs::json::{self, Limits};
use fairledger::gfs::{ClientSeed, Game, Play, SeedPair, ServerSeed, SigningKey, inspect, inspect_value};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::fixture::{SEED, crashed, object, outside, played, revealed};

/// Any JSON value, with the names and texts of records well represented.
fn any_json() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        any::<String>(),
        "[0-9a-f]{64}",
        prop::sample::select(vec!["GFS/1.0", "single-player", "custom", "dice", "plinko", "x-craps", "unbound", ""])
            .prop_map(String::from),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-2..110).prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 8, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..8).prop_map(Value::from),
            btree_map(any_name(), inner, 0..8).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

const NAMES: [&str; 26] = [
    "spec",
    "profile",
    "game",
    "params",
    "serverSeed",
    "commitment",
    "clientSeed",
    "nonce",
    "cursor",
    "result",
    "at",
    "signature",
    "signer",
    "beacon",
    "gameHash",
    "previousHash",
    "salt",
    "houseEdge",
    "id",
    "record",
    "rules",
    "floats",
    "rows",
    "path",
    "bucket",
    "sha256",
];

fn any_name() -> impl Strategy<Value = String> {
    prop_oneof![3 => prop::sample::select(NAMES.to_vec()).prop_map(String::from), 1 => any::<String>()]
}

/// A good record of some kind.
fn any_record() -> impl Strategy<Value = Map<String, Value>> {
    let key = SigningKey::generate();
    let mut records: Vec<Map<String, Value>> = Game::ALL.iter().map(|game| revealed(game.name(), json!({}))).collect();
    records.push(played("dice", json!({}), Some(&key)).to_json());
    records.push(outside("x-craps").to_json());
    records.push(crashed());
    records.push(object(json!({"record": played("keno", json!({}), Some(&key)).to_json(), "serverSeed": SEED})));
    prop::sample::select(records)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..400), depth in 0_usize..20, limit in 0_usize..400) {
        let _ = inspect(&bytes);
        let _ = json::parse(&bytes, Limits { bytes: limit, depth });
    }

    #[test]
    fn arbitrary_json_text_never_panics(text in "[\\[\\]{}:,\"\\\\u0-9a-fdDeE.+-]{0,120}") {
        let _ = inspect(text.as_bytes());
    }

    #[test]
    fn arbitrary_json_never_panics(value in any_json()) {
        let _ = inspect_value(&value, None);
        let _ = inspect(&serde_json::to_vec(&value).unwrap());
    }

    #[test]
    fn mutated_record_never_panics_and_never_passes_with_another_result(
        record in any_record(), field in any_name(), value in any_json(), deep in any::<bool>(),
    ) {
        let mut changed = record.clone();
        match changed.get_mut("params").filter(|_| deep) {
            Some(Value::Object(params)) => drop(params.insert(field.clone(), value)),
            _ => drop(changed.insert(field.clone(), value)),
        }
        let seed = ServerSeed::parse(SEED).unwrap();
        for beside in [None, Some(&seed)] {
            if let Ok(inspection) = inspect_value(&changed.clone().into(), beside)
                && inspection.status == Status::Matches
            {
                prop_assert_eq!(json::canonical(&inspection.computed), json::canonical(&inspection.claimed));
                prop_assert_eq!(inspection.difference, None);
            }
        }
        let _ = inspect(&serde_json::to_vec(&changed).unwrap());
    }

    #[test]
    fn damaged_record_text_never_panics(
        record in any_record(), place in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(),
    ) {
        let mut text = serde_json::to_vec(&record).unwrap();
        let place = place.index(text.len());
        if cut { text.truncate(place) } else { text[place] = byte }
        let _ = inspect(&text);
    }

    #[test]
    fn parse_reads_back_what_canonical_writes(value in any_json()) {
        let text = json::canonical(&value);
        let limits = Limits { bytes: 1 << 20, depth: 12 };
        if text.contains("\\u0000") {
            prop_assert!(json::parse(text.as_bytes(), limits).is_err());
        } else {
            let read = json::parse(text.as_bytes(), limits).unwrap();
            prop_assert_eq!(&read, &json::normalised(&value));
            prop_assert_eq!(json::canonical(&read), text);
        }
    }

    #[test]
    fn canonical_number_reads_back_as_the_same_binary64(n in any::<f64>().prop_filter("finite", |n| n.is_finite())) {
        let text = json::canonical(&Value::from(n));
        prop_assert_eq!(text.parse::<f64>().unwrap(), n);
        let read = json::parse(text.as_bytes(), Limits::RECORD).unwrap();
        prop_assert_eq!(read.as_f64().unwrap(), n);
        prop_assert_eq!(&read, &json::number(n));
        // Whatever the spelling.
        for spelled in [format!("{n:e}"), format!("{n:.20e}")] {
            prop_assert_eq!(json::parse(spelled.as_bytes(), Limits::RECORD).unwrap(), json::number(spelled.parse().unwrap()));
        }
    }

    #[test]
    fn parse_agrees_with_serde_json_where_it_accepts(text in any_json().prop_map(|v| v.to_string())) {
        if let Ok(read) = json::parse(text.as_bytes(), Limits { bytes: 1 << 20, depth: 12 }) {
            let other: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(read, json::normalised(&other));
        }
    }

    #[test]
    fn results_are_in_range_and_repeatable(
        bytes in any::<[u8; 32]>(), client_seed in "[^:\\x00]{1,32}", nonce in 0..=fairledger::gfs::NONCE_MAX,
        segments in 2..=100_u64, mines in 1..=24_usize, draws in 1..=40_usize, rows in 8..=16_usize, decks in 1..=8_usize,
        edge in 0.0..=0.5,
    ) {
        let server_seed = ServerSeed::from_bytes(&bytes);
        prop_assert_eq!(*server_seed.to_bytes(), bytes);
        let client_seed = ClientSeed::parse(&client_seed).unwrap();
        let result = |game: &str, params: Value| {
            let play = Play::new(game, Some(&params)).unwrap();
            let seeds = SeedPair::new(&server_seed, &client_seed);
            let result = play.result(&seeds, nonce);
            assert_eq!(result, play.result(&seeds, nonce));
            result.to_json()
        };
        let within = |value: &Value, min: f64, max: f64| {
            let n = value.as_f64().unwrap();
            let hundredths = n * 100.0;
            n >= min && n <= max && (hundredths - hundredths.round()).abs() < 1e-4
        };
        let [dice, roulette] = ["dice", "roulette"].map(|game| result(game, json!({})));
        prop_assert!(within(&dice, 0.0, 100.0));
        prop_assert!(roulette.as_u64().unwrap() <= 36);
        let limbo = result("limbo", json!({ "houseEdge": edge }));
        prop_assert!(within(&limbo, 1.0, 1e8));
        let wheel = result("wheel", json!({ "segments": segments }));
        prop_assert!(wheel.as_u64().unwrap() < segments);
        let plinko = result("plinko", json!({ "rows": rows }));
        let path = plinko["path"].as_array().unwrap();
        prop_assert_eq!(path.len(), rows);
        prop_assert_eq!(path.iter().filter_map(Value::as_u64).sum::<u64>(), plinko["bucket"].as_u64().unwrap());
        for (game, name, count, min, max) in [("mines", "mines", mines, 0, 24), ("keno", "draws", draws, 1, 40)] {
            let positions = result(game, json!({ name: count }));
            let positions: Vec<u64> = positions.as_array().unwrap().iter().filter_map(Value::as_u64).collect();
            prop_assert_eq!(positions.len(), count);
            prop_assert!(positions.is_sorted_by(|a, b| a < b) && positions[0] >= min && *positions.last().unwrap() <= max);
        }
        let cards = result("hilo", json!({ "decks": decks }));
        let mut labels: Vec<&str> = cards.as_array().unwrap().iter().filter_map(Value::as_str).collect();
        prop_assert_eq!(labels.len(), 52 * decks);
        labels.sort_unstable();
        prop_assert!(labels.chunks(decks).all(|same| same.iter().all(|label| *label == same[0])));
        prop_assert_eq!(&cards, &result("blackjack", json!({ "decks": decks })));
    }
}
