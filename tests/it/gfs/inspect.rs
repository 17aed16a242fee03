//! What an inspection answers: every check in each of its states, and how they add up.

use fairledger::gfs::inspect::{State, Status};
use fairledger::gfs::{Inspection, Profile, ServerSeed, SigningKey, inspect, inspect_value, record::GAME_UNBOUND};
use serde_json::{Value, json};

use super::fixture::{SEED, crashed, look, object, outside, played, revealed, seed, with, without};

use State::{Matches, Mismatch, NotProvided, Unsupported};

/// The checks by name and state, in order.
#[track_caller]
fn assert_checks(inspection: &Inspection, status: Status, expected: &[(&str, State)]) {
    let checks: Vec<_> = inspection.checks.iter().map(|check| (check.name, check.state)).collect();
    assert_eq!(checks, expected, "{inspection:#?}");
    assert_eq!(inspection.status, status);
    assert!(inspection.checks.iter().all(|check| !check.detail.is_empty()));
}

const ALL_BUT_SIGNED: [(&str, State); 4] =
    [("Commitment", Matches), ("Cursor", Matches), ("Signature", NotProvided), ("Outcome", Matches)];

#[test]
fn revealed_record_of_every_game_matches() {
    for (game, params) in [
        ("dice", json!({})),
        ("limbo", json!({"houseEdge": 0.05})),
        ("roulette", json!({})),
        ("wheel", json!({"segments": 100})),
        ("plinko", json!({"rows": 16})),
        ("mines", json!({"mines": 24})),
        ("keno", json!({"draws": 40})),
        ("blackjack", json!({"decks": 8})),
        ("hilo", json!({"decks": 1})),
    ] {
        let record = revealed(game, params);
        let inspection = look(&record).unwrap();
        assert_checks(&inspection, Status::Matches, &ALL_BUT_SIGNED);
        assert_eq!(inspection.kind, game);
        assert_eq!(inspection.computed, record["result"]);
        assert_eq!(inspection.claimed, record["result"]);
        assert_eq!(inspection.difference, None);
    }
}

#[test]
fn answer_is_written_as_the_contract_says() {
    let inspection = look(&without(&revealed("dice", json!({})), "at")).unwrap();
    let answer = object(serde_json::to_value(&inspection).unwrap());
    let names = ["checks", "claimed", "computed", "difference", "kind", "note", "recordHash", "status"];
    assert!(answer.keys().eq(names), "{answer:?}");
    assert_eq!(answer["status"], "matches");
    assert_eq!(answer["computed"], json!(56.12)); // The specification's worked example, section 3.3.
    assert_eq!(answer["difference"], Value::Null);
    assert_eq!(answer["recordHash"], Value::Null);
    assert_eq!(object(answer["checks"][2].clone()).keys().collect::<Vec<_>>(), ["detail", "name", "state"]);
    assert_eq!(answer["checks"][2]["state"], "not-provided");
}

#[test]
fn record_hash_needs_result_cursor_at_and_commitment() {
    let record = played("mines", json!({}), None);
    assert_eq!(look(&record.to_json()).unwrap().record_hash, Some(record.hash()));
    for field in ["result", "cursor", "at", "commitment"] {
        assert_eq!(look(&without(&record.to_json(), field)).unwrap().record_hash, None, "{field}");
    }
    // Unknown fields are part of the payload.
    let more = with(&record.to_json(), "extra", json!([1]));
    assert_ne!(look(&more).unwrap().record_hash, Some(record.hash()));
}

#[test]
fn unrevealed_record_is_incomplete() {
    let inspection = look(&played("dice", json!({}), None).to_json()).unwrap();
    let expected =
        [("Commitment", NotProvided), ("Cursor", NotProvided), ("Signature", NotProvided), ("Outcome", NotProvided)];
    assert_checks(&inspection, Status::Incomplete, &expected);
    assert_eq!(inspection.computed, Value::Null);
    assert_eq!(inspection.claimed, json!(56.12));
}

#[test]
fn record_without_result_commitment_or_cursor_is_incomplete() {
    let record = revealed("dice", json!({}));
    for changed in [without(&record, "result"), with(&record, "result", Value::Null)] {
        let inspection = look(&changed).unwrap();
        let mut expected = ALL_BUT_SIGNED;
        expected[3].1 = NotProvided;
        assert_checks(&inspection, Status::Incomplete, &expected);
        assert_eq!(inspection.computed, json!(56.12));
        assert_eq!(inspection.claimed, Value::Null);
    }
    for (field, place) in [("commitment", 0), ("cursor", 1)] {
        let mut expected = ALL_BUT_SIGNED;
        expected[place].1 = NotProvided;
        assert_checks(&look(&without(&record, field)).unwrap(), Status::Incomplete, &expected);
    }
}

#[test]
fn each_lie_is_a_mismatch_of_its_own_check() {
    let record = revealed("dice", json!({}));
    for (field, lie, place) in
        [("commitment", json!("0".repeat(64)), 0), ("cursor", json!(1), 1), ("result", json!(56.13), 3)]
    {
        let mut expected = ALL_BUT_SIGNED;
        expected[place].1 = Mismatch;
        assert_checks(&look(&with(&record, field, lie)).unwrap(), Status::Mismatch, &expected);
    }
    // Another nonce or client seed is a bet of its own, which the recorded result does not fit.
    for (field, lie) in [("nonce", json!(43)), ("clientSeed", json!("galabeT"))] {
        let mut expected = ALL_BUT_SIGNED;
        expected[3].1 = Mismatch;
        assert_checks(&look(&with(&record, field, lie)).unwrap(), Status::Mismatch, &expected);
    }
}

#[test]
fn mismatch_outweighs_what_is_missing_or_unsupported() {
    let mut record = without(&revealed("dice", json!({})), "commitment");
    record.insert("beacon".into(), json!(1));
    record.insert("result".into(), json!("x"));
    let expected = [
        ("Commitment", NotProvided),
        ("Cursor", Matches),
        ("Signature", NotProvided),
        ("Beacon", Unsupported),
        ("Outcome", Mismatch),
    ];
    assert_checks(&look(&record).unwrap(), Status::Mismatch, &expected);
}

#[test]
fn beacon_cannot_silently_pass() {
    for beacon in [json!({"source": "drand"}), Value::Null] {
        let inspection = look(&with(&revealed("dice", json!({})), "beacon", beacon)).unwrap();
        assert_eq!(inspection.status, Status::Incomplete);
        assert_eq!((inspection.checks[3].name, inspection.checks[3].state), ("Beacon", Unsupported));
    }
}

#[test]
fn difference_names_the_first_place() {
    let plinko = revealed("plinko", json!({"rows": 8}));
    let change = |edit: &dyn Fn(&mut Value)| {
        let mut record = plinko.clone();
        edit(&mut record["result"]);
        look(&record).unwrap().difference.unwrap()
    };
    let path = plinko["result"]["path"].as_array().unwrap();
    let [step, bucket] = [&path[2], &plinko["result"]["bucket"]].map(|v| v.as_u64().unwrap());
    assert_eq!(
        change(&|r| r["path"][2] = json!(1 - step)),
        format!("result.path[2]: recorded {}, calculated {step}.", 1 - step)
    );
    assert_eq!(
        change(&|r| {
            r["path"][2] = json!(1 - step);
            r["bucket"] = json!(99);
        }),
        format!("result.path[2]: recorded {}, calculated {step}.", 1 - step)
    );
    assert_eq!(change(&|r| r["bucket"] = json!("3")), format!("result.bucket: recorded \"3\", calculated {bucket}."));
    assert_eq!(
        change(&|r| r["more"] = json!({"b": 1, "a": []})),
        r#"result.more: recorded {"a":[],"b":1}, calculated nothing."#
    );
    assert_eq!(
        change(&|r| drop(r.as_object_mut().unwrap().remove("path"))).split(',').next(),
        Some("result.path: recorded nothing")
    );
    assert_eq!(
        change(&|r| drop(r["path"].as_array_mut().unwrap().pop())),
        format!("result.path[7]: recorded nothing, calculated {}.", path[7])
    );
    assert_eq!(
        change(&|r| r["path"].as_array_mut().unwrap().push(json!(1))),
        "result.path[8]: recorded 1, calculated nothing."
    );
    assert!(change(&|r| r["path"] = json!({})).starts_with("result.path: recorded {}, calculated ["));
    assert!(change(&|r| *r = json!(7)).starts_with("result: recorded 7, calculated {"));

    let mines = with(&revealed("mines", json!({"mines": 1})), "result", json!([[5]]));
    assert!(look(&mines).unwrap().difference.unwrap().starts_with("result[0]: recorded [5], calculated "));
}

#[test]
fn outcome_compares_numbers_not_their_spelling() {
    let text = serde_json::to_string(&revealed("plinko", json!({"rows": 8}))).unwrap();
    let spelled = text.replace("\"rows\":8", "\"rows\":0.8e1").replace("\"nonce\":42", "\"nonce\":42.0");
    assert_ne!(spelled, text);
    let inspection = inspect(spelled.as_bytes()).unwrap();
    assert_eq!(inspection.status, Status::Matches);
    assert_eq!(inspection.record_hash, inspect(text.as_bytes()).unwrap().record_hash);
    // A value that another reader made, with its integers as floats, is inspected alike.
    let raw: Value = serde_json::from_str(&spelled).unwrap();
    assert!(raw["nonce"].is_f64());
    assert_eq!(inspect_value(&raw, None).unwrap(), inspection);
}

#[test]
fn signature_is_checked_over_the_record_as_it_was_signed() {
    let key = SigningKey::generate();
    let record = played("dice", json!({}), Some(&key)).to_json();
    let mut expected = ALL_BUT_SIGNED;
    expected[2].1 = Matches;
    assert_checks(&inspect_value(&record.clone().into(), Some(&seed())).unwrap(), Status::Matches, &expected);

    // The seed put into the record after signing changes the payload.
    expected[2].1 = Mismatch;
    assert_checks(&look(&with(&record, "serverSeed", json!(SEED))).unwrap(), Status::Mismatch, &expected);
    // So does any other field, and another signer never fits.
    for (field, value) in
        [("at", json!(1)), ("extra", json!(0)), ("signer", json!(hex::encode(SigningKey::generate().signer())))]
    {
        let changed = with(&record, field, value).into();
        assert_checks(&inspect_value(&changed, Some(&seed())).unwrap(), Status::Mismatch, &expected);
    }
    // A record signed with its seed in it matches as it is.
    let complete = revealed("dice", json!({}));
    let signature = key.sign(fairledger::gfs::json::canonical_map(&complete).as_bytes());
    let complete =
        with(&with(&complete, "signature", json!(hex::encode(signature))), "signer", record["signer"].clone());
    expected[2].1 = Matches;
    assert_checks(&look(&complete).unwrap(), Status::Matches, &expected);
}

#[test]
fn published_signed_records_verify_but_their_results_are_made_up() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/gfs-1.0-sign.json");
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for item in file["items"].as_array().unwrap() {
        let mut record = object(item["record"].clone());
        record.insert("signature".into(), item["signature"].clone());
        record.insert("signer".into(), item["signer"].clone());
        let zeros = ServerSeed::parse(&"0".repeat(64)).unwrap();
        let inspection = inspect_value(&record.into(), Some(&zeros)).unwrap();
        let expected = [("Commitment", Matches), ("Cursor", Matches), ("Signature", Matches), ("Outcome", Mismatch)];
        assert_checks(&inspection, Status::Mismatch, &expected);
        assert_eq!(inspection.record_hash.as_deref(), item["recordHash"].as_str());
    }
}

#[test]
fn bet_answer_is_inspected_with_the_seed_beside_its_record() {
    let key = SigningKey::generate();
    let record = played("keno", json!({}), Some(&key)).to_json();
    let meta = json!({"sessionId": "s", "status": "recorded"});
    let answer = object(json!({"record": record, "serverSeed": SEED, "meta": meta, "replayed": false}));
    let mut expected = ALL_BUT_SIGNED;
    expected[2].1 = Matches;
    assert_checks(&look(&answer).unwrap(), Status::Matches, &expected);
    assert_eq!(look(&answer).unwrap(), inspect_value(&record.clone().into(), Some(&seed())).unwrap());
    // Before the reveal it is what the bare record is.
    assert_eq!(look(&without(&answer, "serverSeed")).unwrap(), look(&record).unwrap());
    // The same seed twice is one seed.
    let twice = with(&answer, "record", with(&record, "serverSeed", json!(SEED)).into());
    assert_eq!(look(&twice).unwrap().checks[3].state, Matches);
    // A record that says what it is keeps an unknown field named `record`.
    let odd = with(&revealed("dice", json!({})), "record", json!({"spec": "other"}));
    assert_checks(&look(&odd).unwrap(), Status::Matches, &ALL_BUT_SIGNED);
}

#[test]
fn custom_record_is_incomplete_at_best() {
    let key = SigningKey::generate();
    let mut record = outside("x-craps");
    let outcome = record.outcome.take().unwrap();
    record.conclude(outcome, Some(&key));
    let expected = [("Commitment", Matches), ("Cursor", Matches), ("Signature", Matches), ("Outcome", Unsupported)];
    let json = record.to_json();
    let inspection = inspect_value(&json.clone().into(), Some(&seed())).unwrap();
    assert_checks(&inspection, Status::Incomplete, &expected);
    assert_eq!((inspection.kind.as_str(), &inspection.computed), ("x-craps", &Value::Null));
    assert_eq!(inspection.claimed, json!({"dice": [3, 4]}));
    assert_eq!(inspection.record_hash, Some(record.hash()));

    let unrevealed =
        [("Commitment", NotProvided), ("Cursor", NotProvided), ("Signature", Matches), ("Outcome", Unsupported)];
    assert_checks(&look(&json).unwrap(), Status::Incomplete, &unrevealed);

    let unsigned = with(&outside("x-craps").to_json(), "cursor", json!(3)).into();
    let lied = [("Commitment", Matches), ("Cursor", Mismatch), ("Signature", NotProvided), ("Outcome", Unsupported)];
    assert_checks(&inspect_value(&unsigned, Some(&seed())).unwrap(), Status::Mismatch, &lied);
}

#[test]
fn unbound_record_has_no_cursor_to_check() {
    let mut record = outside("x-craps");
    record.game = GAME_UNBOUND.into();
    record.profile = Profile::Unbound;
    let expected =
        [("Commitment", Matches), ("Cursor", NotProvided), ("Signature", NotProvided), ("Outcome", Unsupported)];
    let json = record.to_json();
    assert_checks(&inspect_value(&json.clone().into(), Some(&seed())).unwrap(), Status::Incomplete, &expected);
    let bound = with(&json, "floats", json!(17)).into();
    assert_eq!(inspect_value(&bound, Some(&seed())).unwrap().checks[1].state, Matches);
}

#[test]
fn crash_result_needs_its_chain_link_when_it_has_one() {
    let record = crashed();
    let linked = [("Commitment", NotProvided), ("Chain link", Matches), ("Outcome", Matches)];
    let inspection = look(&record).unwrap();
    assert_checks(&inspection, Status::Matches, &linked);
    assert_eq!((inspection.kind.as_str(), inspection.record_hash.clone()), ("Crash", None));

    // spec, profile, commitment and result may be absent.
    assert_checks(&look(&without(&without(&record, "spec"), "profile")).unwrap(), Status::Matches, &linked);
    let broken = with(&record, "previousHash", json!("0".repeat(64)));
    let expected = [("Commitment", NotProvided), ("Chain link", Mismatch), ("Outcome", Matches)];
    assert_checks(&look(&broken).unwrap(), Status::Mismatch, &expected);

    let bare = without(&record, "previousHash");
    let expected = [("Commitment", NotProvided), ("Chain link", NotProvided), ("Outcome", Matches)];
    assert_checks(&look(&bare).unwrap(), Status::Incomplete, &expected);
    let committed = with(&bare, "commitment", record["previousHash"].clone());
    let expected = [("Commitment", Matches), ("Chain link", NotProvided), ("Outcome", Matches)];
    assert_checks(&look(&committed).unwrap(), Status::Matches, &expected);
    assert_eq!(look(&with(&record, "commitment", json!("0".repeat(64)))).unwrap().status, Status::Mismatch);

    for absent in [without(&record, "result"), with(&record, "result", Value::Null)] {
        let inspection = look(&absent).unwrap();
        assert_eq!((inspection.status, inspection.checks[2].state), (Status::Incomplete, NotProvided));
        assert_eq!(inspection.computed, record["result"]);
    }
    let lied = look(&with(&record, "result", json!(1_000_000))).unwrap();
    assert_eq!((lied.status, lied.checks[2].state), (Status::Mismatch, Mismatch));
    assert!(lied.difference.unwrap().starts_with("result: recorded 1000000, calculated "));
}

#[test]
fn flight_needs_its_commitment_and_proves_no_receipt() {
    let flight = with(&with(&without(&crashed(), "previousHash"), "id", json!("f-1")), "payout", json!(999_999));
    let inspection = look(&flight).unwrap();
    assert_checks(&inspection, Status::Incomplete, &[("Commitment", NotProvided), ("Outcome", Matches)]);
    assert_eq!(inspection.kind, "Galabet Flight");
    assert!(inspection.note.contains("payout"));
    let committed = with(&flight, "commitment", crashed()["previousHash"].clone());
    assert_checks(&look(&committed).unwrap(), Status::Matches, &[("Commitment", Matches), ("Outcome", Matches)]);
    // A link is checked when it is there, but does not stand in for the commitment.
    let linked = with(&flight, "previousHash", crashed()["previousHash"].clone());
    let expected = [("Commitment", NotProvided), ("Chain link", Matches), ("Outcome", Matches)];
    assert_checks(&look(&linked).unwrap(), Status::Incomplete, &expected);
}

#[test]
fn crash_signature_and_beacon_are_unsupported() {
    let mut record = with(&crashed(), "beacon", json!({}));
    record.insert("signer".into(), json!("anything"));
    let expected = [
        ("Commitment", NotProvided),
        ("Chain link", Matches),
        ("Signature", Unsupported),
        ("Beacon", Unsupported),
        ("Outcome", Matches),
    ];
    assert_checks(&look(&record).unwrap(), Status::Incomplete, &expected);
}

#[test]
fn note_says_what_is_not_proved() {
    for record in [revealed("dice", json!({})), crashed()] {
        let note = look(&record).unwrap().note;
        assert!(["published", "payout", "operator"].iter().all(|word| note.contains(word)), "{note}");
    }
}
