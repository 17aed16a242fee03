//! Nothing that the service or its PostgreSQL emits holds a server seed that is not revealed (I6), nor a concealed result (I11).

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use fairledger::db::seeds::SealedSeed;
use fairledger::gfs::{Commitment, ServerSeed};
use fairledger::seeds::KeyRing;
use serde_json::{Value, json};
use sqlx::Connection as _;
use uuid::Uuid;

use crate::harness::{Caller, Service, data_folder, id, program};

/// Every call that there is, good and bad, with every answer kept.
async fn everything(caller: &Caller) -> Vec<String> {
    let mut answers = Vec::new();
    let mut session = caller.session().await;
    answers.push(session.to_string());
    for round in 0..3 {
        let path = format!("/v1/sessions/{}", id(&session));
        let commitment = session["commitment"].clone();
        let with = |more: Value| {
            let mut body = json!({ "commitment": commitment });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let rounds = format!("{path}/rounds/{}/1", commitment.as_str().unwrap());
        let calls = [
            ("POST", format!("{path}/bets"), with(json!({ "betRef": format!("d{round}"), "game": "dice" }))),
            (
                "POST",
                format!("{path}/bets"),
                with(json!({ "betRef": format!("m{round}"), "game": "mines", "conceal": true })),
            ),
            (
                "POST",
                format!("{path}/nonces"),
                with(json!({ "betRef": format!("x{round}"), "game": "x-slots", "floats": 3,
                "rules": { "id": "r", "sha256": "00".repeat(32) } })),
            ),
            ("POST", format!("{path}/bets"), with(json!({ "betRef": format!("d{round}"), "game": "limbo" }))),
            (
                "POST",
                format!("{path}/bets"),
                with(json!({ "betRef": "bad", "game": "wheel", "params": { "segments": 1000 } })),
            ),
            ("POST", format!("{path}/rotate"), with(json!({}))),
            ("GET", rounds.clone(), Value::Null),
            (
                "POST",
                format!("{rounds}/steps"),
                json!({ "index": 0, "step": "open", "disclose": { "tiles": [round] } }),
            ),
            ("POST", format!("{rounds}/close"), json!({ "outcome": "cashout" })),
            ("POST", format!("{rounds}/close"), json!({ "outcome": "lost" })),
            ("POST", format!("{path}/records"), with(json!({ "nonce": 2, "result": { "line": 7 } }))),
            ("POST", format!("{path}/voids"), with(json!({ "nonce": 2, "reason": "late" }))),
            ("POST", format!("{path}/settlements"), with(json!({ "nonce": 0, "payout": "2.00" }))),
            ("GET", path.clone(), Value::Null),
            ("GET", format!("{path}/seeds"), Value::Null),
            ("GET", format!("{path}/records"), Value::Null),
            ("GET", format!("{path}/coverage"), Value::Null),
            ("GET", format!("/v1/records/{}/0/bundle", commitment.as_str().unwrap()), Value::Null),
            ("GET", format!("/v1/records/{}/1/bundle", commitment.as_str().unwrap()), Value::Null),
            ("GET", format!("/v1/commitments/{}", commitment.as_str().unwrap()), Value::Null),
            ("GET", format!("/v1/commitments/{}", session["nextCommitment"].as_str().unwrap()), Value::Null),
            ("GET", "/v1/signing-keys".to_owned(), Value::Null),
            ("GET", "/openapi.json".to_owned(), Value::Null),
            ("GET", "/readyz".to_owned(), Value::Null),
        ];
        for (method, path, body) in calls {
            let (status, answer) = caller.call(method, &path, (!body.is_null()).then_some(body)).await;
            assert!(status < 500, "{method} {path}: {status} {answer}");
            answers.push(answer.to_string());
        }
        let (status, mut rotated) = caller.call("POST", &format!("{path}/rotate"), Some(with(json!({})))).await;
        assert_eq!(status, 200, "{rotated}");
        answers.push(rotated.to_string());
        session = rotated["session"].take();
    }
    answers
}

/// The server seeds that no one may know, opened from the database with the key ring.
async fn concealed_seeds(url: &str, ring: &KeyRing) -> Vec<ServerSeed> {
    let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
    let rows: Vec<(Uuid, Vec<u8>, Vec<u8>, String)> = sqlx::query_as(
        "SELECT session_id, commitment, sealed_seed, seal_key_id FROM fairledger.seeds WHERE status <> 'revealed'
         UNION ALL SELECT session_id, commitment, sealed_seed, seal_key_id FROM fairledger.next_seeds",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    let open = |(session_id, commitment, bytes, key_id): (Uuid, Vec<u8>, Vec<u8>, String)| {
        let commitment = Commitment::from_bytes(commitment.try_into().unwrap());
        ring.open(session_id, &commitment, &SealedSeed { key_id, bytes }).unwrap()
    };
    rows.into_iter().map(open).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn i6_no_answer_log_line_or_database_log_holds_an_unrevealed_seed() {
    let (_folder, data) = data_folder();
    let mut command = program(&["serve", "--listen", "127.0.0.1:0", "--data-dir"]);
    command.arg(&data);
    let everything_there_is =
        "trace,sqlx=trace,hyper=trace,hyper_util=trace,tokio_postgres=trace,refinery=trace,refinery_core=trace";
    command.env("FAIRLEDGER_LOG", everything_there_is);
    let mut service = Service::start(command);
    let token = std::fs::read_to_string(data.join("admin-token")).unwrap();
    let caller = Caller::new(&service, token.trim());
    let answers = everything(&caller).await;

    let server =
        fairledger::embedded::running_url(&data, fairledger::db::bootstrap::OWNER, fairledger::db::bootstrap::DATABASE);
    let ring_text = std::fs::read_to_string(data.join("seed-keys")).unwrap();
    let seeds = concealed_seeds(&server.await.unwrap().unwrap(), &KeyRing::parse(&ring_text).unwrap()).await;
    assert_eq!(seeds.len(), 2, "a live seed and a next one");
    assert!(service.terminate().success());

    let logs = service.logs();
    let database_log = std::fs::read_to_string(data.join("pg.log")).unwrap();
    assert!(logs.contains("\"TRACE\""), "the log is at its most talkative");
    let secrets = std::fs::read_to_string(data.join("secret")).unwrap();
    for (place, text) in [("answers", answers.join("\n")), ("log", logs), ("database log", database_log)] {
        for seed in &seeds {
            let bytes = seed.to_bytes();
            let hex_of_text = hex::encode(seed.expose());
            let forms = [
                seed.expose().to_owned(),
                seed.expose().to_uppercase(),
                hex_of_text,
                STANDARD.encode(bytes.as_slice()),
                URL_SAFE_NO_PAD.encode(bytes.as_slice()),
                format!("{:?}", bytes.as_slice()),
            ];
            for form in forms {
                assert!(!text.contains(form.trim_matches(['[', ']'])), "a live seed in the {place}");
            }
        }
        let key = ring_text.trim().split_once(':').unwrap().1;
        for secret in [key, secrets.trim(), token.trim()] {
            assert!(!text.contains(secret), "a key or token in the {place}");
        }
    }
}

#[test]
fn i6_debug_of_what_holds_a_seed_redacts_it() {
    let seed = ServerSeed::generate();
    let pair = fairledger::gfs::SeedPair::new(&seed, &fairledger::gfs::ClientSeed::generate());
    for text in [format!("{seed:?}"), format!("{seed:#?}"), format!("{pair:?}")] {
        assert!(!text.contains(seed.expose()), "{text}");
    }
}
