//! What a caller should not send: refused by name, with nothing stored, and never a fault of ours (I12).

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use fairledger::http::HttpSettings;
use serde_json::{Value, json};

use super::{Api, Setup};

const COMMITMENT: &str = "ab37723062965715c5e6eeb54816f909a8e787bd3bfaee67a3cc0a3b90707de7";

/// Every endpoint with a body, and a body that it takes, under a session's path.
fn bodies() -> Vec<(&'static str, &'static str, Value)> {
    let rules = json!({"id": "r", "sha256": COMMITMENT});
    vec![
        ("PUT", "/client-seed", json!({"commitment": COMMITMENT, "clientSeed": "x"})),
        ("POST", "/rotate", json!({"commitment": COMMITMENT})),
        ("POST", "/close", json!({"commitment": COMMITMENT})),
        ("POST", "/bets", json!({"commitment": COMMITMENT, "betRef": "b", "game": "dice"})),
        (
            "POST",
            "/nonces",
            json!({"commitment": COMMITMENT, "betRef": "b", "game": "x-g", "rules": rules, "floats": 1}),
        ),
        ("POST", "/records", json!({"commitment": COMMITMENT, "nonce": 0, "result": 1})),
        ("POST", "/voids", json!({"commitment": COMMITMENT, "nonce": 0, "reason": "r"})),
        ("POST", "/settlements", json!({"commitment": COMMITMENT, "nonce": 0, "payout": "1"})),
        ("POST", "/rounds/ROUND/steps", json!({"index": 0, "step": "hit"})),
        ("POST", "/rounds/ROUND/close", json!({"outcome": "lost"})),
    ]
}

fn round(end: &str) -> String {
    end.replace("ROUND", &format!("{COMMITMENT}/0"))
}

/// Everything that the service stores of a caller.
async fn stored(api: &Api) -> Vec<i64> {
    let mut counts = Vec::new();
    for table in ["sessions", "seeds", "bets", "pending", "outcomes", "voids", "settlements", "steps", "reveals"] {
        counts.push(api.count(table).await);
    }
    counts
}

#[tokio::test]
async fn every_body_is_read_strictly_everywhere_and_nothing_is_stored() {
    let api = Api::new().await;
    let session = api.session().await;
    let before = stored(&api).await;
    let mut endpoints: Vec<(&str, String, Value)> =
        bodies().into_iter().map(|(method, end, body)| (method, session.at(&round(end)), body)).collect();
    endpoints.push(("POST", "/v1/sessions".to_owned(), json!({"playerRef": "p"})));
    let play = json!({"game": "dice", "serverSeed": COMMITMENT, "clientSeed": "c", "nonce": 0});
    endpoints.push(("POST", "/v1/verify/play".to_owned(), play));
    for (method, path, body) in endpoints {
        let inner = body.to_string();
        let inner = &inner[1..inner.len() - 1];
        let first = body.as_object().unwrap().keys().next().unwrap();
        let twice = format!("{{{inner},\"{first}\":{}}}", body[first]);
        let deep = "[".repeat(12) + &"]".repeat(12);
        for (text, field) in [
            (format!("{{{inner},\"surplus\":1}}"), "surplus"),
            (format!("{{{inner},\"Commitment\":\"{COMMITMENT}\"}}"), "Commitment"),
            (twice, first.as_str()),
            (format!("{{{inner},\"x\":{{\"y\":1,\"\\u0079\":1}}}}"), "x.y"),
            (format!("{{{inner},\"x\":\"\\ud800\"}}"), "x"),
            (format!("{{{inner},\"x\":\"\\u0000\"}}"), "x"),
            (format!("{{{inner},\"x\":[1e400]}}"), "x[0]"),
            (format!("{{{inner},\"x\":[0,9007199254740993]}}"), "x[1]"),
            (format!("{{{inner},\"x\":[{deep}]}}"), &format!("x{}", "[0]".repeat(12))),
            (format!("{{{inner}"), ""),
            (format!("{{{inner}}} x"), ""),
            (format!("[{{{inner}}}]"), ""),
            ("null".to_owned(), ""),
            ("\"text\"".to_owned(), ""),
            ("\u{feff}{}".to_owned(), ""),
        ] {
            let answer = api.text(method, &path, &text).await;
            let body = answer.problem(400, "invalid_request");
            assert_eq!(body["field"].as_str().unwrap_or_default(), field, "{path} {text}: {body:#}");
        }
        for value in [json!(null), json!(true), json!(1.5), json!([]), json!({}), json!("\u{1f600}\n")] {
            let mut body = body.clone();
            let (name, old) =
                body.as_object().unwrap().iter().next_back().map(|(k, v)| (k.clone(), v.clone())).unwrap();
            // Free-form fields take all of these, and an optional one takes null for its absence.
            if old != value && !(value.is_null() && name == "playerRef") && name != "step" && name != "result" {
                body[&name] = value;
                let body = api.text(method, &path, &body.to_string()).await.problem(400, "invalid_request");
                let named = body["field"].as_str().unwrap();
                assert!(named == name || named.starts_with(&format!("{name}.")), "{path} {name}: {body:#}");
            }
        }
    }
    assert_eq!(stored(&api).await, before);
}

#[tokio::test]
async fn every_required_field_is_asked_for_by_name() {
    let api = Api::new().await;
    let session = api.session().await;
    for (method, end, body) in bodies() {
        for name in body.as_object().unwrap().keys() {
            let mut without = body.clone();
            without.as_object_mut().unwrap().remove(name);
            api.text(method, &session.at(&round(end)), &without.to_string()).await.invalid(name);
        }
    }
}

/// A valid body with one field set to another value, which is refused under the field's name, or the one given.
#[tokio::test]
async fn every_field_is_held_to_its_bounds() {
    let api = Api::new().await;
    let session = api.session().await;
    let before = stored(&api).await;
    let long = |chars: usize| json!("x".repeat(chars));
    let past_4k = json!("x".repeat(4_095));
    let unsafe_numbers =
        || ["9007199254740992", "9007199254740993", "18446744073709551616", "1e300", "-1", "0.5", "\"0\""];
    let mut cases: Vec<(&str, String, &str)> = Vec::new();
    let mut case = |end: &'static str, field: &str, value: &str, named: &'static str| {
        let (_, _, body) = bodies().into_iter().find(|(_, path, _)| *path == end).unwrap();
        let mut body = body;
        body[field] = json!("PLACE");
        cases.push((end, body.to_string().replace("\"PLACE\"", value), named));
    };
    for (end, _) in
        bodies().iter().map(|(_, end, body)| (*end, body)).filter(|(_, body)| body.get("commitment").is_some())
    {
        for value in
            [json!(COMMITMENT.to_uppercase()), json!(&COMMITMENT[1..]), json!(format!("{COMMITMENT}0")), json!(7)]
        {
            case(end, "commitment", &value.to_string(), "commitment");
        }
    }
    for end in ["/records", "/voids", "/settlements"] {
        for number in unsafe_numbers() {
            case(end, "nonce", number, "nonce");
        }
    }
    for seed in [json!(""), json!("a:b"), long(65), json!("\u{1f600}".repeat(33)), json!(5)] {
        case("/client-seed", "clientSeed", &seed.to_string(), "clientSeed");
        case("/rotate", "clientSeed", &seed.to_string(), "clientSeed");
    }
    for end in ["/bets", "/nonces"] {
        for value in [json!(""), json!("a b"), json!("ä"), json!("a/b"), long(65)] {
            case(end, "betRef", &value.to_string(), "betRef");
        }
        for value in [
            json!(1),
            json!(""),
            json!("-1"),
            json!("1e3"),
            json!("0.1234567890123456789"),
            json!("9".repeat(39)),
            json!("NaN"),
        ] {
            case(end, "stake", &value.to_string(), "stake");
        }
        for value in [json!("eur"), json!(""), long(17), json!("E-R")] {
            case(end, "currency", &value.to_string(), "currency");
        }
        case(end, "selection", &past_4k.to_string(), "selection");
        case(end, "context", &past_4k.to_string(), "context");
        for value in ["[]", "1", "\"x\""] {
            case(end, "params", value, "params");
        }
    }
    for value in ["\"Dice\"", "\"crash\"", "\"x-crash\"", "\"\"", "1"] {
        case("/bets", "game", value, "game");
    }
    case("/bets", "params", "{\"rows\":16}", "params.rows");
    case("/bets", "conceal", "1", "conceal");
    for value in ["\"dice\"", "\"x-\"", "\"x-\u{c4}\"", "\"x-a b\"", &long(65).to_string()] {
        case("/nonces", "game", value, "game");
    }
    for value in ["0", "1025", "1.5", "-1", "\"1\"", "9007199254740992"] {
        case("/nonces", "floats", value, "floats");
    }
    case("/nonces", "params", &json!({"x": "y".repeat(4_096)}).to_string(), "params");
    case("/nonces", "rules", &json!({"id": "", "sha256": COMMITMENT}).to_string(), "rules.id");
    case("/nonces", "rules", &json!({"id": "a b", "sha256": COMMITMENT}).to_string(), "rules.id");
    case("/nonces", "rules", &json!({"id": "a", "sha256": "00"}).to_string(), "rules.sha256");
    case("/nonces", "rules", &json!({"id": "a"}).to_string(), "rules.sha256");
    case("/nonces", "rules", &json!({"id": "a", "sha256": COMMITMENT, "more": 1}).to_string(), "rules.more");
    case("/nonces", "rules", "\"a\"", "rules");
    case("/nonces", "conceal", "true", "conceal");
    case("/records", "result", "null", "result");
    case("/records", "result", &json!("x".repeat(16_383)).to_string(), "result");
    for value in [json!(""), json!("a\nb"), json!("expired"), json!("abandoned"), json!("recovery"), long(201)] {
        case("/voids", "reason", &value.to_string(), "reason");
    }
    for value in [json!(5), json!("-5"), json!("1."), json!("00")] {
        case("/settlements", "payout", &value.to_string(), "payout");
    }
    case("/settlements", "outcome", &long(65).to_string(), "outcome");
    case("/settlements", "displayed", &past_4k.to_string(), "displayed");
    case("/settlements", "rules", &past_4k.to_string(), "rules");
    for value in ["-1", "4294967296", "0.5", "\"0\"", "null"] {
        case("/rounds/ROUND/steps", "index", value, "index");
    }
    case("/rounds/ROUND/steps", "step", &past_4k.to_string(), "step");
    for value in ["1", "{}", "{\"tiles\":[1],\"cards\":1}", "{\"mines\":[1]}", "[]"] {
        case("/rounds/ROUND/steps", "disclose", value, "disclose");
    }
    for value in ["[]", "[25]", "[-1]", "[1,1]", "[0.5]", "\"1\"", "[[1]]"] {
        case("/rounds/ROUND/steps", "disclose", &format!("{{\"tiles\":{value}}}"), "disclose.tiles");
    }
    for value in ["0", "-1", "4294967296", "\"1\""] {
        case("/rounds/ROUND/steps", "disclose", &format!("{{\"cards\":{value}}}"), "disclose.cards");
    }
    for value in ["\"abandoned\"", "\"Lost\"", "1", "null", "{}"] {
        case("/rounds/ROUND/close", "outcome", value, "outcome");
    }
    case("/rounds/ROUND/close", "outcome", "\"void\"", "reason");
    case("/rounds/ROUND/close", "reason", "\"no void\"", "reason");
    for (end, body, named) in cases {
        let method = if end == "/client-seed" { "PUT" } else { "POST" };
        let answer = api.text(method, &session.at(&round(end)), &body).await;
        assert!(answer.status == 400 && answer.body["field"] == named, "{end} {body}: {:#}", answer.body);
    }
    for (field, value) in [
        ("sessionId", json!("x")),
        ("sessionId", json!("0198c1d27c3a7e4b8a5f1234567890ab")),
        ("sessionId", json!(5)),
        ("clientAddress", json!("localhost")),
        ("clientAddress", json!("1.2.3.4:80")),
        ("clientAddress", json!("2001:db8::/64")),
        ("playerRef", json!("")),
        ("playerRef", json!("a\tb")),
        ("playerRef", long(129)),
    ] {
        api.post("/v1/sessions", json!({ field: value })).await.invalid(field);
    }
    assert_eq!(stored(&api).await, before);
}

#[tokio::test]
async fn parameters_of_paths_and_queries_are_refused_by_name() {
    let api = Api::new().await;
    let session = api.session().await;
    let id = session.path.rsplit('/').next().unwrap();
    let simple = id.replace('-', "");
    for (path, field) in [
        ("/v1/sessions/x".to_owned(), "sessionId"),
        (format!("/v1/sessions/{simple}"), "sessionId"),
        (format!("/v1/sessions/%7B{id}%7D/seeds"), "sessionId"),
        (format!("/v1/sessions/{id}%00"), "sessionId"),
        ("/v1/sessions/%ff".to_owned(), ""),
        ("/v1/commitments/x".to_owned(), "commitment"),
        (format!("/v1/commitments/{}", COMMITMENT.to_uppercase()), "commitment"),
        (session.at("/rounds/x/0"), "commitment"),
        (session.at(&format!("/rounds/{COMMITMENT}/-1")), "nonce"),
        (session.at(&format!("/rounds/{COMMITMENT}/+1")), "nonce"),
        (session.at(&format!("/rounds/{COMMITMENT}/00")), "nonce"),
        (session.at(&format!("/rounds/{COMMITMENT}/9007199254740992")), "nonce"),
        (session.at("?verbose=1"), "verbose"),
        (session.at("/seeds?limit=1"), "limit"),
        (session.at("/records?limit=0"), "limit"),
        (session.at("/records?limit=501"), "limit"),
        (session.at("/records?limit=1&limit=2"), "limit"),
        (session.at("/records?limit="), "limit"),
        (session.at("/records?limit=1.0"), "limit"),
        (session.at("/records?after=x"), "after"),
        (session.at("/records?after=%00"), "after"),
        (session.at("/records?order=asc"), "order"),
        ("/v1/sessions".to_owned(), "playerRef"),
        ("/v1/sessions?playerRef=".to_owned(), "playerRef"),
        ("/v1/sessions?playerRef=%ff".to_owned(), ""),
        ("/v1/sessions?playerRef=%00".to_owned(), "playerRef"),
        ("/v1/sessions?playerRef=p&after=x".to_owned(), "after"),
        ("/v1/sessions?playerRef=p&limit=501".to_owned(), "limit"),
        ("/v1/sessions?player_ref=p".to_owned(), "player_ref"),
        ("/v1/signing-keys?x=1".to_owned(), "x"),
    ] {
        let answer = api.get(&path).await;
        let named = answer.body["field"].as_str().unwrap_or_default().to_owned();
        assert!(answer.status == 400 && named == field, "{path}: {:#}", answer.body);
    }
    for end in ["/records?limit=1", "/records?limit=500", "/records"] {
        api.get(&session.at(end)).await.expect(200);
    }
}

#[tokio::test]
async fn a_body_of_another_kind_is_refused() {
    let api = Api::new().await;
    let send = async |headers: &[(&str, &str)], body: &'static str| {
        let mut request = api.request("POST", "/v1/sessions");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        api.send(request.body(Body::from(body)).unwrap()).await
    };
    let form = "application/x-www-form-urlencoded";
    for headers in [
        vec![],
        vec![("content-type", form)],
        vec![("content-type", "text/json")],
        vec![("content-type", "application/jsonx")],
        vec![("content-type", "")],
        vec![("content-type", "application/json"), ("content-encoding", "gzip")],
    ] {
        send(&headers, "{}").await.problem(415, "unsupported_media_type");
    }
    for headers in [
        vec![("content-type", "application/json")],
        vec![("content-type", "Application/JSON; charset=utf-8")],
        vec![("content-type", "application/json"), ("content-encoding", "identity")],
    ] {
        send(&headers, "{}").await.expect(201);
    }
    send(&[], "").await.expect(201);
    send(&[("content-type", "application/json")], "").await.expect(201);
}

#[tokio::test]
async fn a_body_past_its_bound_is_too_large_announced_or_not() {
    let api = Api::new().await;
    let json = |bytes: usize| format!("{{\"playerRef\":\"p\"{}}}", " ".repeat(bytes - 17));
    let request = || api.request("POST", "/v1/sessions").header(CONTENT_TYPE, "application/json");
    api.send(request().body(Body::from(json(65_536))).unwrap()).await.expect(201);
    api.send(request().body(Body::from(json(65_537))).unwrap()).await.problem(413, "too_large");
    let announced = request().header(CONTENT_LENGTH, 1_u64 << 40).body(Body::empty()).unwrap();
    api.send(announced).await.problem(413, "too_large");
    let endless = futures_util::stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(&[b' '; 1_000])));
    api.send(request().body(Body::from_stream(endless)).unwrap()).await.problem(413, "too_large");
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_given_up() {
    let http = HttpSettings { body_timeout: Duration::from_millis(20), ..HttpSettings::default() };
    let api = Api::with(Setup { http, ..Setup::default() }).await;
    let request = api.request("POST", "/v1/sessions").header(CONTENT_TYPE, "application/json");
    let stalled = futures_util::stream::pending::<Result<Bytes, Infallible>>();
    api.send(request.body(Body::from_stream(stalled)).unwrap()).await.problem(408, "request_timeout");
    api.session().await;
}
