//! What an inspection refuses: each error names its field, and each bound is tried at, just below and just above.

use fairledger::gfs::{Inspection, NONCE_MAX, ServerSeed, SigningKey, inspect, inspect_value};
use serde_json::{Map, Value, json};

use super::fixture::{SEED, crashed, look, object, outside, played, revealed, seed, with, without};

#[track_caller]
fn refused(record: &Map<String, Value>, field: &str) {
    let error = look(record).expect_err(field);
    assert_eq!(error.field, field, "{error}");
    assert!(!error.detail.is_empty());
}

#[track_caller]
fn taken(record: &Map<String, Value>) -> Inspection {
    look(record).unwrap_or_else(|error| panic!("{error}"))
}

/// Values of every type but text.
fn no_texts() -> [Value; 5] {
    [Value::Null, json!(1), json!(true), json!([]), json!({})]
}

/// Texts that are nearly 64 lower-case hexadecimal characters, and other types.
fn no_hashes() -> Vec<Value> {
    let texts = ["".to_owned(), SEED[1..].to_owned(), format!("{SEED}0"), SEED.to_uppercase(), SEED.replace('c', "g")];
    texts.into_iter().map(Value::from).chain(no_texts()).collect()
}

fn dice() -> Map<String, Value> {
    revealed("dice", json!({}))
}

#[test]
fn body_that_is_no_object_is_refused() {
    for text in ["null", "[]", "7", "\"x\"", "", "{", "[{}]"] {
        assert_eq!(inspect(text.as_bytes()).unwrap_err().field, "", "{text}");
    }
    assert_eq!(inspect(b"{}").unwrap_err().field, "spec");
    assert_eq!(inspect(br#"{"spec":"GFS/1.0","spec":"GFS/1.0"}"#).unwrap_err().field, "spec");
    assert_eq!(inspect(br#"{"record":{"params":{"rows":1e999}}}"#).unwrap_err().field, "record.params.rows");
}

#[test]
fn size_is_bounded_to_the_byte() {
    let sized = |bytes: usize| {
        let record = with(&dice(), "pad", json!(""));
        let missing = bytes - serde_json::to_vec(&record).unwrap().len();
        let text = serde_json::to_vec(&with(&record, "pad", json!("a".repeat(missing)))).unwrap();
        assert_eq!(text.len(), bytes);
        inspect(&text)
    };
    assert!(sized(65_535).is_ok());
    assert!(sized(65_536).is_ok());
    assert_eq!(sized(65_537).unwrap_err().field, "");
}

#[test]
fn nesting_is_bounded_to_the_level() {
    let nested = |levels: usize| (0..levels).fold(json!(0), |inner, _| json!([inner]));
    // The field is at depth 1, its scalar at depth 1 + levels.
    taken(&with(&dice(), "extra", nested(10)));
    taken(&with(&dice(), "extra", nested(11)));
    let field = format!("extra{}", "[0]".repeat(12));
    refused(&with(&dice(), "extra", nested(12)), &field);
    // The same bound for a value that was not read here, however deep.
    assert!(inspect_value(&with(&dice(), "extra", nested(11)).into(), None).is_ok());
    assert_eq!(inspect_value(&with(&dice(), "extra", nested(12)).into(), None).unwrap_err().field, "");
    assert!(inspect_value(&nested(1_000), None).is_err());
}

#[test]
fn spec_and_profile_are_exact() {
    for bad in no_texts().into_iter().chain(["GFS/1.1", "gfs/1.0", ""].map(Value::from)) {
        refused(&with(&dice(), "spec", bad), "spec");
    }
    refused(&without(&dice(), "spec"), "spec");
    for bad in no_texts().into_iter().chain(["other", "crash", "Single-player", ""].map(Value::from)) {
        refused(&with(&dice(), "profile", bad), "profile");
    }
    refused(&without(&dice(), "profile"), "profile");
}

#[test]
fn game_is_one_of_the_nine() {
    for bad in no_texts().into_iter().chain(["Dice", "crash", "toString", "x-dice", "unbound", ""].map(Value::from)) {
        refused(&with(&dice(), "game", bad), "game");
    }
    refused(&without(&dice(), "game"), "game");
    refused(&without(&with(&dice(), "game", json!("poker")), "params"), "game");
}

#[test]
fn params_are_there_known_and_in_bounds() {
    refused(&without(&dice(), "params"), "params");
    for bad in [Value::Null, json!(1), json!("x"), json!([]), json!(false)] {
        refused(&with(&dice(), "params", bad), "params");
    }
    refused(&with(&dice(), "params", json!({"rows": 8})), "params.rows");
    for (game, name, min, max) in [
        ("wheel", "segments", 2, 100),
        ("plinko", "rows", 8, 16),
        ("mines", "mines", 1, 24),
        ("keno", "draws", 1, 40),
        ("blackjack", "decks", 1, 8),
        ("hilo", "decks", 1, 8),
    ] {
        let record = revealed(game, json!({}));
        let field = format!("params.{name}");
        for good in [min, min + 1, max - 1, max] {
            taken(&with(&record, "params", json!({ name: good })));
        }
        for bad in [json!(min - 1), json!(max + 1), json!(f64::from(min) + 0.5), json!(null), json!("8"), json!([8])] {
            refused(&with(&record, "params", json!({ name: bad })), &field);
        }
        refused(&with(&record, "params", json!({ name: min, "houseEdge": 0.1 })), "params.houseEdge");
    }
    let limbo = revealed("limbo", json!({}));
    for good in [json!(0), json!(5e-324), json!(0.499), json!(0.5)] {
        taken(&with(&limbo, "params", json!({ "houseEdge": good })));
    }
    for bad in [json!(-5e-324), json!(0.5000000000000001), json!(null), json!("0.1")] {
        refused(&with(&limbo, "params", json!({ "houseEdge": bad })), "params.houseEdge");
    }
}

#[test]
fn client_seed_is_in_form() {
    for good in ["a", " ", "é", &"a".repeat(64), &"€".repeat(64), &"😀".repeat(32)] {
        taken(&with(&dice(), "clientSeed", json!(good)));
    }
    let bad = ["", ":", "a:b", &"a".repeat(65), &"€".repeat(65), &"😀".repeat(33), &format!("{}a", "😀".repeat(32))];
    for bad in no_texts().into_iter().chain(bad.map(Value::from)) {
        refused(&with(&dice(), "clientSeed", bad), "clientSeed");
    }
    refused(&without(&dice(), "clientSeed"), "clientSeed");
    let text = serde_json::to_string(&dice()).unwrap();
    for bad in ["\\ud800", "x\\udc00", "\\u0000"] {
        let error = inspect(text.replace("galabet", bad).as_bytes()).unwrap_err();
        assert_eq!(error.field, "clientSeed", "{error}");
    }
}

#[test]
fn nonce_cursor_and_at_are_safe_integers() {
    for field in ["nonce", "cursor", "at"] {
        for good in [json!(0), json!(1), json!(-0.0), json!(7.0), json!(NONCE_MAX - 1), json!(NONCE_MAX)] {
            taken(&with(&dice(), field, good));
        }
        for bad in [
            json!(-1),
            json!(0.5),
            json!(5e-324),
            json!(NONCE_MAX + 1),
            json!(NONCE_MAX + 2),
            json!(u64::MAX),
            json!(1e300),
            json!("1"),
            Value::Null,
            json!([1]),
        ] {
            refused(&with(&dice(), field, bad), field);
        }
    }
    refused(&without(&dice(), "nonce"), "nonce");
    // Only the nonce is always needed.
    taken(&without(&without(&dice(), "cursor"), "at"));
}

#[test]
fn commitment_and_server_seed_are_64_lower_case_characters() {
    for field in ["commitment", "serverSeed"] {
        for bad in no_hashes() {
            refused(&with(&dice(), field, bad), field);
        }
    }
    taken(&without(&without(&dice(), "commitment"), "serverSeed"));
}

#[test]
fn signature_and_signer_stand_together_and_in_form() {
    let signed = played("dice", json!({}), Some(&SigningKey::generate())).to_json();
    taken(&signed);
    refused(&without(&signed, "signer"), "signer");
    refused(&without(&signed, "signature"), "signature");
    for bad in no_hashes() {
        refused(&with(&signed, "signature", bad), "signature");
    }
    for bad in no_hashes() {
        refused(&with(&signed, "signer", bad), "signer");
    }
    refused(&with(&signed, "signature", json!("AB".repeat(64))), "signature");
    for field in ["result", "cursor", "at", "commitment"] {
        refused(&without(&signed, field), field);
    }
}

#[test]
fn faults_are_named_in_the_order_of_the_contract() {
    let mut record = Map::new();
    let fields = [
        ("spec", json!("GFS/1.0")),
        ("profile", json!("single-player")),
        ("game", json!("dice")),
        ("params", json!({})),
        ("clientSeed", json!("a")),
        ("nonce", json!(0)),
    ];
    for field in ["cursor", "at", "commitment", "serverSeed", "signature", "signer"] {
        record.insert(field.into(), Value::Null);
    }
    for (field, good) in fields {
        refused(&record, field);
        record.insert(field.into(), good);
    }
    for field in ["cursor", "at", "commitment", "serverSeed", "signature", "signer"] {
        refused(&record, field);
        record.remove(field);
    }
    taken(&record);
}

#[test]
fn bet_answer_faults_are_named_by_their_path() {
    let answer = object(json!({"record": dice(), "serverSeed": SEED, "meta": {}, "replayed": true}));
    taken(&answer);
    for bad in no_hashes() {
        refused(&with(&answer, "serverSeed", bad), "serverSeed");
    }
    refused(&with(&answer, "record", with(&dice(), "nonce", json!(-1)).into()), "record.nonce");
    // Another seed beside than within.
    refused(&with(&answer, "serverSeed", json!("0".repeat(64))), "record.serverSeed");
    refused(&object(json!({"record": {}})), "record.spec");
    // No object, so no bet answer.
    refused(&object(json!({"record": [], "serverSeed": SEED})), "spec");
    // An answer within an answer is none.
    refused(&object(json!({ "record": answer })), "record.spec");
}

#[test]
fn seeds_of_two_places_must_agree() {
    let other = ServerSeed::parse(&"0".repeat(64)).unwrap();
    let record: Value = dice().into();
    assert!(inspect_value(&record, Some(&seed())).is_ok());
    assert_eq!(inspect_value(&record, Some(&other)).unwrap_err().field, "serverSeed");
    let answer = json!({"record": played("dice", json!({}), None).to_json(), "serverSeed": SEED});
    assert!(inspect_value(&answer, Some(&seed())).is_ok());
    assert_eq!(inspect_value(&answer, Some(&other)).unwrap_err().field, "serverSeed");
    assert_eq!(inspect_value(&crashed().into(), Some(&other)).unwrap_err().field, "serverSeed");
}

#[test]
fn custom_profile_is_in_form() {
    let record = outside("x-craps").to_json();
    taken(&record);
    for bad in ["dice", "x-", "x craps", "x-é", "poker", &format!("x-{}", "a".repeat(63))] {
        refused(&with(&record, "game", json!(bad)), "game");
    }
    taken(&with(&record, "game", json!(format!("x-{}", "a".repeat(62)))));
    refused(&without(&record, "params"), "params");
    refused(&with(&record, "params", json!([])), "params");
    taken(&with(&record, "params", json!({"anything": [null]})));
    refused(&without(&record, "rules"), "rules");
    let hash = "ab".repeat(32);
    for (bad, field) in [
        (json!(null), "rules"),
        (json!("craps"), "rules"),
        (json!(["a", hash]), "rules"),
        (json!({"id": "a", "sha256": hash, "more": 1}), "rules"),
        (json!({}), "rules.id"),
        (json!({"sha256": hash}), "rules.id"),
        (json!({"id": "", "sha256": hash}), "rules.id"),
        (json!({"id": "a b", "sha256": hash}), "rules.id"),
        (json!({"id": "a".repeat(65), "sha256": hash}), "rules.id"),
        (json!({"id": "a"}), "rules.sha256"),
        (json!({"id": "a", "sha256": "AB".repeat(32)}), "rules.sha256"),
    ] {
        refused(&with(&record, "rules", bad), field);
    }
    taken(&with(&record, "rules", json!({"id": "a".repeat(64), "sha256": hash})));
    refused(&without(&record, "floats"), "floats");
    for good in [1, 2, 1_023, 1_024] {
        taken(&with(&record, "floats", json!(good)));
    }
    for bad in [json!(0), json!(1_025), json!(1.5), json!(-1), json!(null), json!("8")] {
        refused(&with(&record, "floats", bad), "floats");
    }
    let unbound = without(&without(&with(&record, "game", json!("unbound")), "rules"), "floats");
    taken(&unbound);
    refused(&with(&unbound, "rules", record["rules"].clone()), "rules");
    refused(&with(&unbound, "floats", json!(0)), "floats");
}

#[test]
fn crash_result_is_in_form() {
    let record = crashed();
    for field in ["gameHash", "previousHash", "commitment"] {
        for bad in no_hashes() {
            refused(&with(&record, field, bad), field);
        }
    }
    for bad in no_texts().into_iter().chain([json!("GFS/3.0")]) {
        refused(&with(&record, "spec", bad), "spec");
    }
    for field in ["salt", "houseEdge"] {
        refused(&without(&record, field), field);
    }
    for good in ["a", &"a".repeat(1_023), &"a".repeat(1_024), &"😀".repeat(512)] {
        taken(&with(&record, "salt", json!(good)));
    }
    for bad in no_texts().into_iter().chain(["", &"a".repeat(1_025), &"😀".repeat(513)].map(Value::from)) {
        refused(&with(&record, "salt", bad), "salt");
    }
    for good in [json!(0), json!(0.5), json!(0.999_998), json!(0.999_999)] {
        taken(&with(&record, "houseEdge", good));
    }
    for bad in [json!(-5e-324), json!(0.999_999_000_001), json!(1), Value::Null, json!("0.01")] {
        refused(&with(&record, "houseEdge", bad), "houseEdge");
    }
}

#[test]
fn error_never_repeats_a_value() {
    let secret = SEED.to_uppercase();
    for field in ["serverSeed", "commitment", "gameHash", "nonce", "spec", "profile", "game", "signature"] {
        let error = look(&with(&dice(), field, json!(secret))).unwrap_err();
        assert!(!format!("{error} {error:?}").contains(&secret), "{error}");
    }
}
