//! Every single change of a bundle, of every state: it is seen, or what was changed is listed as not provable.

use std::collections::BTreeSet;

use fairledger::history::State;
use fairledger::history::bundle::{BundleStatus, verify};
use serde_json::{Value, json};

use super::bundle::{bundle, lost_round, named, signing};
use super::bundle_states::every_state;
use super::past::Past;

/// What can be changed unseen in some bundle or other: the operator's word. `docs/DISPUTES.md` lists the same.
const WORDS_OF_THE_OPERATOR: [&str; 34] = [
    "asOf",
    "coverage",
    "meta.betRef",
    "meta.context",
    "meta.currency",
    "meta.expiresAt",
    "meta.recordedAt",
    "meta.roundOutcome",
    "meta.selection",
    "meta.sessionId",
    "meta.settlement",
    "meta.stake",
    "meta.takenAt",
    "meta.voidReason",
    "meta.voidedAt",
    "nextSeed",
    "nextSeed.commitment",
    "nextSeed.committedAt",
    "readAt",
    "record",
    "recoveries",
    "round.nextIndex",
    "round.steps[].at",
    "round.steps[].disclosed",
    "round.steps[].step",
    "seed.clientSeedAt",
    "seed.clientSeedSource",
    "seed.committedAt",
    "seed.firstBetAt",
    "seed.liveAt",
    "seed.retiredAt",
    "seed.revealedAt",
    "signingKey.from",
    "software",
];

/// Of a record that is not signed: whether another comes to the same result is chance.
const WORDS_BY_CHANCE: [&str; 2] = ["record.nonce", "record.params"];

/// Other values for a leaf, of its own form where it has one.
fn others(value: &Value) -> Vec<Value> {
    match value {
        Value::Null => vec![json!(0)],
        Value::Bool(it) => vec![json!(!it)],
        Value::Number(n) => match n.as_u64() {
            Some(n) => vec![json!(n + 1), json!(n.saturating_sub(1)), json!(0), json!(n + 0x1_0000)],
            None => vec![json!(n.as_f64().unwrap() + 0.01)],
        },
        Value::String(text) => others_of_text(text),
        Value::Array(_) => vec![json!([1])],
        Value::Object(_) => vec![json!({ "more": 1 })],
    }
    .into_iter()
    .filter(|other| other != value)
    .collect()
}

/// Words that take each other's place.
const WORDS: [&[&str]; 8] = [
    &["live", "revealed", "discarded"],
    &["recorded", "void", "pending"],
    &["played", "round", "reservation"],
    &["cashout", "lost", "forfeit", "abandoned", "void"],
    &["generated", "player", "kept", "application"],
    &["rotation", "client_seed", "closing", "idle", "replaced", "expiry", "recovery", "abandoned", "expired"],
    &["matches", "mismatch", "noted", "not-provable"],
    &["open", "closed"],
];

fn others_of_text(text: &str) -> Vec<Value> {
    let mut others = vec![json!(format!("{text}x")), json!(""), Value::Null, json!(7)];
    if let Ok(time) = chrono::DateTime::parse_from_rfc3339(text) {
        for step in [chrono::TimeDelta::seconds(1), chrono::TimeDelta::days(-1), chrono::TimeDelta::microseconds(1)] {
            let moved = (time + step).to_utc().to_rfc3339_opts(chrono::SecondsFormat::Micros, true);
            others.push(json!(moved));
        }
    } else if text.len() >= 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let last = if text.ends_with('0') { '1' } else { '0' };
        others.push(json!(format!("{}{last}", &text[..text.len() - 1])));
    } else if let Ok(id) = text.parse::<uuid::Uuid>() {
        others.push(json!(uuid::Uuid::from_u128(id.as_u128() ^ 1)));
    } else if let Ok(number) = text.parse::<f64>() {
        others.push(json!(format!("{}", number + 1.0)));
    }
    let alike = WORDS.into_iter().filter(|words| words.contains(&text));
    others.extend(alike.flatten().map(|word| json!(word)));
    others
}

/// The path as the report has it.
fn as_listed(pointer: &str) -> String {
    let parts = pointer.trim_start_matches('/').split('/');
    parts.fold(String::new(), |path, part| match part.parse::<usize>() {
        Ok(_) => path + "[]",
        Err(_) if path.is_empty() => part.to_owned(),
        Err(_) => path + "." + part,
    })
}

/// A change and the place that it changes.
struct Edit {
    /// As the report names it.
    place: String,
    what: String,
    tampered: Value,
}

/// Every place of a value, as pointers; itself too.
fn places(value: &Value, pointer: &str, found: &mut Vec<String>) {
    found.push(pointer.to_owned());
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| places(value, &format!("{pointer}/{key}"), found)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, value)| places(value, &format!("{pointer}/{index}"), found));
        }
        _ => {}
    }
}

/// Every single change of a bundle: each member and each element taken out, each scalar as something else, a member more in each object;
/// and the last steps of a round with their count, down to none. What is the same in every bundle is changed in a whole one only.
fn edits(bundle: &Value, whole: bool) -> Vec<Edit> {
    let mut found = Vec::new();
    places(bundle, "", &mut found);
    let same = |pointer: &String| {
        let check = pointer.strip_prefix("/coverage/checks/").and_then(|rest| rest.split('/').next());
        pointer.starts_with("/statements/") || check.is_some_and(|check| check.parse::<usize>().unwrap() > 2)
    };
    found.retain(|pointer| whole || !same(pointer));
    let mut edits = Vec::new();
    let mut add = |pointer: &str, what: String, change: &dyn Fn(&mut Value)| {
        let mut tampered = bundle.clone();
        change(&mut tampered);
        edits.push(Edit { place: as_listed(pointer), what: format!("{pointer}: {what}"), tampered });
    };
    for pointer in &found {
        let original = bundle.pointer(pointer).unwrap();
        match original {
            Value::Object(_) => {
                let more = |bundle: &mut Value| bundle.pointer_mut(pointer).unwrap()["more"] = json!(1);
                add(&format!("{pointer}/more"), "a member more".to_owned(), &more);
            }
            Value::Array(_) => {
                let more = |bundle: &mut Value| {
                    let items = bundle.pointer_mut(pointer).unwrap().as_array_mut().unwrap();
                    items.push(items.last().cloned().unwrap_or(json!(1)));
                };
                add(pointer, "an element more".to_owned(), &more);
            }
            scalar => {
                for other in others(scalar) {
                    add(pointer, format!("{scalar} as {other}"), &|bundle| {
                        *bundle.pointer_mut(pointer).unwrap() = other.clone()
                    });
                }
            }
        }
        let Some((parent, name)) = pointer.rsplit_once('/') else { continue };
        let remove = |bundle: &mut Value| match bundle.pointer_mut(parent).unwrap() {
            Value::Array(items) => drop(items.remove(name.parse().unwrap())),
            other => drop(other.as_object_mut().unwrap().remove(name)),
        };
        add(pointer, "taken out".to_owned(), &remove);
    }
    let steps = bundle.pointer("/round/steps").map_or(0, |steps| steps.as_array().unwrap().len());
    for left in 0..steps {
        let cut = |bundle: &mut Value| {
            bundle["round"]["steps"].as_array_mut().unwrap().truncate(left);
            bundle["round"]["nextIndex"] = json!(left);
        };
        add("/round/nextIndex", format!("{left} of {steps} steps"), &cut);
    }
    edits
}

/// What one bundle's edits came to.
#[derive(Default)]
struct Unseen {
    /// Places that were changed unseen, as the report lists what is not provable.
    words: BTreeSet<&'static str>,
    /// And the places themselves.
    places: BTreeSet<String>,
    /// Neither seen nor listed.
    missed: Vec<String>,
}

fn tamper(bundle: &Value, receipt: Option<&[u8]>, whole: bool) -> Unseen {
    let report = verify(bundle.to_string().as_bytes(), receipt).unwrap();
    assert!(named(&report, State::Mismatch).is_empty(), "{report:#?}");
    let mut unseen = Unseen::default();
    for Edit { place, what, tampered } in edits(bundle, whole) {
        let Ok(report) = verify(tampered.to_string().as_bytes(), receipt) else { continue };
        if report.status == BundleStatus::Mismatch {
            continue;
        }
        let listed = report.not_provable.iter().find(|word| {
            place.strip_prefix(word.field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        });
        match listed {
            Some(word) => drop(unseen.words.insert(word.field)),
            None => unseen.missed.push(what),
        }
        unseen.places.insert(place);
    }
    unseen
}

#[tokio::test]
async fn every_change_of_every_bundle_is_seen_or_listed_as_not_provable() {
    let (signed, unsigned) = (signing().await, Past::new().await);
    let mut bundles = every_state(&signed).await;
    // Without signature and reveal the whole record is the operator's word; the pending ones are enough of those.
    let others = every_state(&unsigned).await.into_iter().filter(|(name, _)| !name.ends_with(", live"));
    bundles.extend(others.map(|(name, bundle)| (format!("{name}, unsigned"), bundle)));
    let (mut words, mut missed) = (BTreeSet::new(), Vec::new());
    // On one core: what else is being tested has times to keep.
    for (number, (name, bundle)) in bundles.into_iter().enumerate() {
        let unseen = tamper(&bundle, None, number == 0);
        words.extend(unseen.words);
        missed.extend(unseen.missed.into_iter().map(|what| format!("{name}: {what}")));
    }
    assert!(missed.is_empty(), "neither seen nor listed: {missed:#?}");
    words.retain(|word| !WORDS_BY_CHANCE.contains(word));
    assert_eq!(words.into_iter().collect::<Vec<_>>(), WORDS_OF_THE_OPERATOR);
}

/// What can be changed unseen is what the document says.
#[test]
fn the_document_lists_what_is_the_operators_word() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/DISPUTES.md");
    let document = std::fs::read_to_string(path).unwrap();
    for word in WORDS_OF_THE_OPERATOR.into_iter().chain(WORDS_BY_CHANCE) {
        assert!(document.contains(&format!("`{word}`")), "{word}");
    }
}

/// Of a bet that is signed and revealed, these are not a matter of anybody's word.
#[tokio::test]
async fn of_a_signed_and_revealed_bet_what_counts_is_proven() {
    let past = signing().await;
    let mut player = past.session().await;
    let commitment = player.commitment();
    let nonce = lost_round(&mut player).await;
    let receipt = serde_json::to_string(&player.view.receipt).unwrap();
    player.rotate().await;
    let bundle = bundle(&past, &commitment, nonce).await;
    let open = tamper(&bundle, Some(receipt.as_bytes()), true).places;
    for proven in [
        "record",
        "serverSeed",
        "format",
        "statements",
        "meta.sessionId",
        "meta.status",
        "meta.kind",
        "round.status",
        "round.steps[].index",
        "round.steps[].disclosed",
        "round.steps[].disclose",
        "seed.commitment",
        "seed.committedAt",
        "seed.clientSeed",
        "seed.status",
        "seed.bets",
        "seed.seedNo",
        "nextSeed.commitment",
        "nextSeed.seedNo",
        "coverage.commitment",
        "coverage.handedOut",
        "coverage.recorded",
        "coverage.void",
        "coverage.pending",
        "coverage.missing",
        "coverage.checks[].name",
        "signingKey.signer",
    ] {
        let below = |path: &&String| {
            path.as_str() == proven
                || path.starts_with(&format!("{proven}."))
                || path.starts_with(&format!("{proven}["))
        };
        assert_eq!(open.iter().find(below), None, "{proven} can be changed unseen");
    }
}
