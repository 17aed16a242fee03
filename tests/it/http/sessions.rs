//! Sessions and their seeds.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use fairledger::gfs::ServerSeed;
use fairledger::gfs::signature::{SigningKey, verify};
use fairledger::seeds::SeedsSettings;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Api, Setup};

fn time(value: &Value) -> chrono::DateTime<chrono::FixedOffset> {
    let text = value.as_str().unwrap_or_else(|| panic!("{value} is no time"));
    assert!(text.len() == 27 && text.ends_with('Z'), "{text} has no microseconds in UTC");
    chrono::DateTime::parse_from_rfc3339(text).unwrap()
}

#[tokio::test]
async fn a_session_is_created_once_and_answered_again() {
    let api = Api::new().await;
    let body = json!({"sessionId": Uuid::new_v4(), "playerRef": "Spieler 1", "clientAddress": "192.0.2.1"});
    let view = api.post("/v1/sessions", body.clone()).await.expect(201);
    assert_eq!((&view["status"], &view["nonce"], &view["bets"]), (&json!("open"), &json!(0), &json!(0)));
    assert_eq!(
        (&view["pending"], &view["replayed"], &view["playerRef"]),
        (&json!([]), &json!(false), &body["playerRef"])
    );
    assert_ne!(view["commitment"], view["nextCommitment"]);
    time(&view["committedAt"]);
    time(&view["createdAt"]);
    let mut again = api.post("/v1/sessions", body.clone()).await.expect(200);
    assert_eq!(again["replayed"].take(), true);
    again["replayed"] = json!(false);
    assert_eq!(again, view);
    let mut elsewhere = body.clone();
    elsewhere["clientAddress"] = json!("192.0.2.2");
    api.post("/v1/sessions", elsewhere).await.expect(200);
    for other in [json!({"sessionId": body["sessionId"]}), json!({"sessionId": body["sessionId"], "playerRef": "p"})] {
        api.post("/v1/sessions", other).await.problem(409, "session_exists_with_different_content");
    }
    let mut looked = api.get(&format!("/v1/sessions/{}", body["sessionId"].as_str().unwrap())).await.expect(200);
    looked["replayed"] = json!(false);
    assert_eq!(looked, view);
}

#[tokio::test]
async fn null_counts_as_absent_and_made_ids_are_version_7() {
    let api = Api::new().await;
    let body = json!({"sessionId": null, "clientAddress": null, "playerRef": null});
    let view = api.post("/v1/sessions", body).await.expect(201);
    assert_eq!(view.get("playerRef"), None);
    assert_eq!(view["sessionId"].as_str().unwrap().parse::<Uuid>().unwrap().get_version_num(), 7);
}

#[tokio::test]
async fn one_address_starts_only_so_many_sessions() {
    let seeds = SeedsSettings {
        sessions_per_address_max: 2,
        address_window: Duration::from_secs(3_600),
        ..SeedsSettings::default()
    };
    let api = Api::with(Setup { seeds, ..Setup::default() }).await;
    let from = async |address: IpAddr, id: Uuid| {
        api.post("/v1/sessions", json!({"clientAddress": address, "sessionId": id})).await
    };
    let (address, id) = (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), Uuid::new_v4());
    from(address, id).await.expect(201);
    from(address, Uuid::new_v4()).await.expect(201);
    let refused = from("::ffff:192.0.2.1".parse().unwrap(), Uuid::new_v4()).await;
    let seconds: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((3_000..=3_600).contains(&seconds), "{seconds}");
    refused.problem(429, "too_many_sessions");
    from(address, id).await.expect(200);
    from(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), Uuid::new_v4()).await.expect(201);
    api.session().await;
}

#[tokio::test]
async fn a_players_sessions_are_paged() {
    let api = Api::new().await;
    let mut created = Vec::new();
    for _ in 0..5 {
        let view = api.post("/v1/sessions", json!({"playerRef": "a+b c/ä"})).await.expect(201);
        created.push(view["sessionId"].as_str().unwrap().to_owned());
    }
    api.post("/v1/sessions", json!({"playerRef": "other"})).await.expect(201);
    created.sort_unstable();
    let (mut listed, mut after) = (Vec::new(), String::new());
    loop {
        let page = api.get(&format!("/v1/sessions?playerRef=a%2Bb%20c/%C3%A4&limit=2{after}")).await.expect(200);
        let sessions = page["sessions"].as_array().unwrap();
        assert!(sessions.len() <= 2);
        listed.extend(sessions.iter().map(|view| view["sessionId"].as_str().unwrap().to_owned()));
        match page["nextAfter"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(listed, created);
}

#[tokio::test]
async fn a_session_that_is_not_there_is_not_found() {
    let api = Api::new().await;
    let path = format!("/v1/sessions/{}", Uuid::new_v4());
    let commitment = "ab".repeat(32);
    for end in ["", "/seeds", "/records", &format!("/rounds/{commitment}/0")] {
        api.get(&format!("{path}{end}")).await.problem(404, "session_not_found");
    }
    let rules = json!({"id": "r", "sha256": commitment});
    for (end, body) in [
        ("/rotate", json!({})),
        ("/close", json!({})),
        ("/bets", json!({"betRef": "b", "game": "dice"})),
        ("/nonces", json!({"betRef": "b", "game": "x-g", "rules": rules, "floats": 1})),
        ("/records", json!({"nonce": 0, "result": 1})),
        ("/voids", json!({"nonce": 0, "reason": "r"})),
        ("/settlements", json!({"nonce": 0, "payout": "0"})),
    ] {
        let mut body = body;
        body["commitment"] = json!(commitment);
        api.post(&format!("{path}{end}"), body).await.problem(404, "session_not_found");
    }
    let body = json!({"commitment": commitment, "clientSeed": "x"});
    api.put(&format!("{path}/client-seed"), body).await.problem(404, "session_not_found");
    let round = format!("{path}/rounds/{commitment}/0");
    api.post(&format!("{round}/steps"), json!({"index": 0, "step": 1})).await.problem(404, "session_not_found");
    api.post(&format!("{round}/close"), json!({"outcome": "lost"})).await.problem(404, "session_not_found");
}

#[tokio::test]
async fn rotation_reveals_a_seed_that_hashes_to_its_commitment_and_repeats_i7() {
    let api = Api::new().await;
    let session = api.session().await;
    session.rotate().await.problem(409, "nothing_to_reveal");
    session.bet("b1").await.expect(201);
    let ended = session.rotate().await.expect(200);
    let revealed = &ended["revealed"];
    let seed = ServerSeed::parse(revealed["serverSeed"].as_str().unwrap()).unwrap();
    assert_eq!(seed.commitment().to_string(), session.commitment);
    assert_eq!(
        (&revealed["bets"], &ended["session"]["nonce"], &ended["replayed"]),
        (&json!(1), &json!(0), &json!(false))
    );
    let again = session.rotate().await.expect(200);
    assert_eq!((&again["revealed"], &again["replayed"]), (revealed, &json!(true)));
    let other = session.post("/rotate", json!({"clientSeed": "another"})).await.problem(409, "commitment_changed");
    assert_eq!(other["session"]["commitment"], ended["session"]["commitment"]);
    let stale = session.bet("b2").await.problem(409, "commitment_changed");
    assert_eq!(stale["session"], ended["session"]);
    let seeds = api.get(&session.at("/seeds")).await.expect(200);
    let statuses: Vec<&str> =
        seeds["seeds"].as_array().unwrap().iter().map(|seed| seed["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["revealed", "live", "next"]);
    assert_eq!(seeds["seeds"][0]["serverSeed"], revealed["serverSeed"]);
    assert_eq!((seeds["seeds"][1].get("serverSeed"), seeds["seeds"][2].get("serverSeed")), (None, None));
}

#[tokio::test]
async fn rotation_takes_the_next_client_seed_with_it() {
    let api = Api::new().await;
    let session = api.session().await;
    session.bet("b1").await.expect(201);
    let body = json!({"commitment": session.commitment, "clientSeed": "\u{1f600}".repeat(32)});
    let ended = api.post(&session.at("/rotate"), body.clone()).await.expect(200);
    assert_eq!(ended["session"]["clientSeed"], body["clientSeed"]);
}

#[tokio::test]
async fn a_client_seed_changes_once_and_is_answered_again() {
    let api = Api::new().await;
    let session = api.session().await;
    let change = async |seed: &str| {
        api.put(&session.at("/client-seed"), json!({"commitment": session.commitment, "clientSeed": seed})).await
    };
    session.bet("b").await.expect(201);
    let ended = change("mine").await.expect(200);
    assert_eq!(ended["session"]["clientSeed"], "mine");
    assert_eq!(ended["revealed"]["bets"], 1);
    let again = change("mine").await.expect(200);
    assert_eq!((&again["revealed"], &again["replayed"]), (&ended["revealed"], &json!(true)));
    change("yours").await.problem(409, "commitment_changed");
    let body = json!({"commitment": ended["session"]["commitment"], "clientSeed": "mine"});
    let same = api.put(&session.at("/client-seed"), body).await.expect(200);
    assert_eq!((same.get("revealed"), &same["session"]["commitment"]), (None, &ended["session"]["commitment"]));
}

#[tokio::test]
async fn nothing_ends_a_seed_while_a_bet_is_pending_but_closing() {
    let api = Api::new().await;
    let session = api.session().await;
    session.mines("round", 3).await;
    session.reserve("reserved").await.expect(201);
    session.rotate().await.problem(409, "bets_pending");
    let body = json!({"commitment": session.commitment, "clientSeed": "x"});
    api.put(&session.at("/client-seed"), body).await.problem(409, "bets_pending");
    let view = api.get(&session.path).await.expect(200);
    let kinds: Vec<_> = view["pending"].as_array().unwrap().iter().map(|bet| bet["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["round", "reservation"]);
    let closed = session.post("/close", json!({})).await.expect(200);
    assert_eq!((&closed["revealed"]["bets"], &closed["session"]["status"]), (&json!(2), &json!("closed")));
    assert_eq!((&closed["session"]["nextCommitment"], &closed["session"]["pending"]), (&Value::Null, &json!([])));
    let records = api.get(&session.at("/records")).await.expect(200);
    assert_eq!(records["records"][0]["meta"]["voidReason"], "abandoned");
    assert_eq!(records["records"][1]["meta"]["roundOutcome"], "abandoned");
}

#[tokio::test]
async fn a_closed_session_stays_closed() {
    let api = Api::new().await;
    let session = api.session().await;
    session.bet("b").await.expect(201);
    let closed = session.post("/close", json!({})).await.expect(200);
    let again = session.post("/close", json!({})).await.expect(200);
    assert_eq!((&again["revealed"], &again["replayed"]), (&closed["revealed"], &json!(true)));
    session.post("/close", json!({"commitment": "00".repeat(32)})).await.problem(409, "session_closed");
    session.bet("b").await.expect(200);
    session.bet("c").await.problem(409, "session_closed");
    session.reserve("d").await.problem(409, "session_closed");
    session.rotate().await.problem(409, "session_closed");
    let body = json!({"commitment": session.commitment, "clientSeed": "x"});
    api.put(&session.at("/client-seed"), body).await.problem(409, "session_closed");
    let open = api.session().await;
    open.post("/close", json!({"commitment": session.commitment})).await.problem(409, "commitment_changed");
}

#[tokio::test]
async fn a_session_without_a_next_seed_cannot_rotate() {
    let api = Api::new().await;
    let session = api.session().await;
    session.bet("b").await.expect(201);
    api.as_owner("DELETE FROM fairledger.next_seeds").await;
    session.rotate().await.problem(409, "no_next_seed");
}

#[tokio::test]
async fn a_view_carries_a_receipt_when_there_is_a_key() {
    let key = SigningKey::generate();
    let signer = key.signer();
    let api = Api::with(Setup { signing_key: Some(key), ..Setup::default() }).await;
    let view = api.post("/v1/sessions", json!({})).await.expect(201);
    let receipt = &view["receipt"];
    let signature: [u8; 64] = hex::decode(receipt["signature"].as_str().unwrap()).unwrap().try_into().unwrap();
    assert_eq!(receipt["signer"], hex::encode(signer));
    let payload = receipt["payload"].as_str().unwrap();
    assert!(verify(payload.as_bytes(), &signature, &signer));
    let signed: Value = serde_json::from_str(payload).unwrap();
    for field in ["sessionId", "commitment", "nextCommitment", "committedAt"] {
        assert_eq!(signed[field], view[field], "{field}");
    }
    let keys = api.get("/v1/signing-keys").await.expect(200);
    assert_eq!(keys["keys"][0]["signer"], hex::encode(signer));
    assert_eq!(keys["keys"][0].get("until"), None);
    time(&keys["keys"][0]["from"]);
}
