//! Two processes on one database.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{check, dice, records};
use crate::harness::{Caller, Service, TestDb, id};

async fn two_services() -> (TestDb, [Service; 2], [Caller; 2]) {
    let db = TestDb::new().await;
    let token = db.admin_token().await;
    let services = [Service::spawn(&db, &[], &[]), Service::spawn(&db, &[], &[])];
    let callers = [Caller::new(&services[0], &token), Caller::new(&services[1], &token)];
    (db, services, callers)
}

#[tokio::test(flavor = "multi_thread")]
async fn i3_a_thousand_bets_at_once_from_two_processes_take_every_nonce_once() {
    let (_db, _services, callers) = two_services().await;
    let session = callers[0].session().await;
    let tasks = (0..50).map(|task| {
        let (caller, session) = (callers[task % 2].clone(), session.clone());
        tokio::spawn(async move {
            let mut told = Vec::new();
            for number in 0..20 {
                told.push(caller.dice(&session, &format!("{task}:{number}")).await["record"].take());
            }
            told
        })
    });
    let told: Vec<Value> = futures_util::future::join_all(tasks).await.into_iter().flat_map(Result::unwrap).collect();
    let mut nonces: Vec<u64> = told.iter().map(|record| record["nonce"].as_u64().unwrap()).collect();
    nonces.sort_unstable();
    assert_eq!(nonces, (0..1000).collect::<Vec<_>>());
    let body = json!({ "commitment": session["commitment"] });
    let rotated = callers[1].post(&format!("/v1/sessions/{}/rotate", id(&session)), body).await;
    let (seed, client_seed) =
        (rotated["revealed"]["serverSeed"].as_str().unwrap(), session["clientSeed"].as_str().unwrap());
    for record in &told {
        let expected = dice(seed, client_seed, record["nonce"].as_u64().unwrap());
        assert_eq!(record["result"].as_f64(), Some(expected));
    }
    assert_eq!(records(&callers[1], id(&session)).await.len(), 1000);
}

/// Takes bets under whatever seed is live until the session is closed; gives the records that were acknowledged.
async fn play(caller: Caller, session: Value, player: u32) -> BTreeMap<String, Value> {
    let path = format!("/v1/sessions/{}/bets", id(&session));
    let (mut acknowledged, mut commitment) = (BTreeMap::new(), session["commitment"].clone());
    for number in 0.. {
        let name = format!("{player}:{number}");
        loop {
            let body = json!({ "commitment": commitment, "betRef": name, "game": "dice" });
            let (status, mut answer) = caller.call("POST", &path, Some(body)).await;
            match (status, answer["code"].as_str()) {
                (201, _) => {
                    acknowledged.insert(name, answer["record"].take());
                    break;
                }
                (409, Some("commitment_changed")) => commitment = answer["session"]["commitment"].take(),
                (409, Some("session_closed")) => return acknowledged,
                _ => panic!("{status} {answer}"),
            }
        }
    }
    unreachable!("the loop ends with the session")
}

#[tokio::test(flavor = "multi_thread")]
async fn i4_rotations_client_seed_changes_and_a_closing_from_two_processes_lose_no_bet() {
    let (_db, _services, callers) = two_services().await;
    let session = callers[0].session().await;
    let players: Vec<_> = (0..8)
        .map(|player| tokio::spawn(play(callers[player as usize % 2].clone(), session.clone(), player)))
        .collect();
    let path = format!("/v1/sessions/{}", id(&session));
    let mut ended = 0;
    for number in 0..40 {
        let (_, view) = callers[number % 2].call("GET", &path, None).await;
        let (method, action, body) = match number % 3 {
            0 => ("POST", "rotate", json!({ "commitment": view["commitment"] })),
            1 => ("POST", "rotate", json!({ "commitment": view["commitment"], "clientSeed": format!("r{number}") })),
            _ => {
                ("PUT", "client-seed", json!({ "commitment": view["commitment"], "clientSeed": format!("c{number}") }))
            }
        };
        let (status, answer) = callers[(number + 1) % 2].call(method, &format!("{path}/{action}"), Some(body)).await;
        match (status, answer["code"].as_str()) {
            (200, _) => ended += 1,
            (409, Some("nothing_to_reveal")) => {}
            _ => panic!("{status} {answer}"),
        }
    }
    assert!(ended > 10, "only {ended} seeds ended: the race did not happen");
    let (_, view) = callers[0].call("GET", &path, None).await;
    callers[0].post(&format!("{path}/close"), json!({ "commitment": view["commitment"] })).await;
    let acknowledged = futures_util::future::join_all(players).await.into_iter().flat_map(Result::unwrap).collect();
    check(&callers[1], id(&session), &acknowledged).await;
    let bets = records(&callers[0], id(&session)).await;
    assert_eq!(bets.len(), acknowledged.len());
    assert!(bets.iter().all(|bet| bet["serverSeed"].is_string()), "every seed with bets is revealed");
}
