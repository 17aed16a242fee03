//! `serve` and the other commands on a data folder: its secrets, and what a crash leaves of it.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;

/// How long a dead server may stay away: a restart replays a little log.
const BACK_MAX: Duration = Duration::from_secs(20);

fn serve(data: &Path) -> Service {
    Service::start(in_folder(data, &["serve", "--listen", "127.0.0.1:0"]))
}

fn admin(service: &Service, data: &Path) -> Caller {
    let token = std::fs::read_to_string(data.join("admin-token")).unwrap();
    assert_eq!(token.lines().count(), 1);
    Caller::new(service, token.trim())
}

fn postmaster(data: &Path) -> Pid {
    postmaster_in(&data.join("pg"))
}

fn postmaster_in(cluster: &Path) -> Pid {
    let text = std::fs::read_to_string(cluster.join("postmaster.pid")).unwrap();
    Pid::from_raw(text.lines().next().unwrap().parse().unwrap())
}

fn secrets(data: &Path) -> Vec<String> {
    ["seed-keys", "secret", "signing-key", "admin-token"]
        .map(|name| {
            let path = data.join(name);
            assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o600, "{name}");
            std::fs::read_to_string(path).unwrap()
        })
        .to_vec()
}

#[tokio::test]
async fn a_first_run_makes_everything_and_a_kill_loses_nothing_i9() {
    let (_folder, data) = data_folder();
    let mut service = serve(&data);
    assert!(service.logs().contains("DATABASE_URL is not set"), "{}", service.logs());
    let made = secrets(&data);
    let caller = admin(&service, &data);
    let session = caller.session().await;
    let bet = caller.dice(&session, "b").await;
    assert!(bet["record"]["signature"].is_string(), "{bet}");
    service.kill9();

    let mut service = serve(&data);
    assert_eq!(secrets(&data), made, "no secret is made twice");
    let caller = admin(&service, &data);
    let body = json!({ "commitment": session["commitment"], "betRef": "b", "game": "dice" });
    let (status, again) = caller.call("POST", &format!("/v1/sessions/{}/bets", id(&session)), Some(body)).await;
    assert_eq!((status, &again["record"]), (200, &bet["record"]));
    caller.rotate(&session).await;

    // A command finds the server that runs.
    let report = done(in_folder(&data, &["verify", "--json"])).await.succeeded().out;
    assert_eq!(serde_json::from_str::<Value>(&report).unwrap()["verified"], 1);
    let tokens = done(in_folder(&data, &["token", "list"])).await.succeeded().out;
    assert_eq!(tokens.lines().count(), 1, "{tokens}");
    let server = postmaster(&data);
    assert!(service.terminate().success());
    assert!(kill(server, None).is_err(), "the private server is stopped with its service");

    // And starts it where none does.
    let report = done(in_folder(&data, &["verify", "--json"])).await.succeeded().out;
    assert_eq!(serde_json::from_str::<Value>(&report).unwrap()["verified"], 1);
    done(in_folder(&data, &["migrate", "--check"])).await.succeeded();
    done(in_folder(&data, &["seed-keys", "rotate"])).await.succeeded();
    assert!(!data.join("pg/postmaster.pid").exists(), "and stops it");
}

#[tokio::test]
async fn a_killed_server_is_started_again_and_requests_go_on() {
    let (_folder, data) = data_folder();
    let mut service = serve(&data);
    let caller = admin(&service, &data);
    let session = caller.session().await;
    for round in 0..2 {
        let killed = postmaster(&data);
        kill(killed, Signal::SIGKILL).unwrap();
        let began = Instant::now();
        let path = format!("/v1/sessions/{}/bets", id(&session));
        let body = json!({ "commitment": session["commitment"], "betRef": format!("b{round}"), "game": "dice" });
        loop {
            let (status, answer) = caller.call("POST", &path, Some(body.clone())).await;
            match status {
                200 | 201 => break,
                // Unavailable, or its outcome unknown: to be sent again.
                503 => assert!(began.elapsed() < BACK_MAX, "{answer}\n{}", service.logs()),
                _ => panic!("{status} {answer}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // The bet may have been taken just before the end.
        while !std::fs::read_to_string(data.join("pg/postmaster.pid"))
            .is_ok_and(|text| text.lines().next().is_some_and(|pid| pid != killed.to_string()))
        {
            assert!(began.elapsed() < BACK_MAX, "{}", service.logs());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    // The server is there again, and may still be starting.
    let (path, began) = (format!("/v1/sessions/{}", id(&session)), Instant::now());
    let view = loop {
        match caller.call("GET", &path, None).await {
            (200, view) => break view,
            (status, answer) => assert!(status == 503 && began.elapsed() < BACK_MAX, "{answer}\n{}", service.logs()),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(view["bets"], 2);
    assert!(service.terminate().success());
}

#[tokio::test]
async fn a_server_that_cannot_be_started_again_ends_the_service() {
    let (_folder, data) = data_folder();
    let mut service = serve(&data);
    std::fs::rename(data.join("pg"), data.join("pg.away")).unwrap();
    kill(postmaster_in(&data.join("pg.away")), Signal::SIGKILL).unwrap();
    let (status, logs) =
        tokio::task::spawn_blocking(move || (service.await_end(Duration::from_secs(60)), service.logs()))
            .await
            .unwrap();
    assert_eq!(status.code(), Some(1), "{logs}");
    assert!(logs.contains("fairledger: there is no database"), "{logs}");
    assert!(!data.join("pg").exists(), "no empty database is made in its place");
}

#[tokio::test]
async fn a_secret_that_others_may_read_or_that_is_gone_stops_the_start_i6() {
    let (_folder, data) = data_folder();
    let mut service = serve(&data);
    assert!(service.terminate().success());
    let serve = || done(in_folder(&data, &["serve", "--listen", "127.0.0.1:0"]));
    let keys = data.join("seed-keys");
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o644)).unwrap();
    serve().await.refused(&["seed-keys", "chmod 600"]);
    std::fs::remove_file(&keys).unwrap();
    serve().await.refused(&["seed-keys", "is missing", "bring it back from a backup"]);
    assert!(!keys.exists(), "no other keys are made for the seeds of lost ones");
}

#[tokio::test]
async fn two_services_do_not_share_a_folder() {
    let (_folder, data) = data_folder();
    let _service = serve(&data);
    done(in_folder(&data, &["serve", "--listen", "127.0.0.1:0"])).await.refused(&["is in use by process"]);
}

#[tokio::test]
async fn commands_on_no_database_say_so() {
    let (_folder, data) = data_folder();
    for args in [&["verify"][..], &["migrate"], &["token", "list"], &["token", "revoke", "abcdefghijkl"]] {
        done(in_folder(&data, args)).await.refused(&["there is no database", "fairledger serve"]);
    }
    assert!(!data.exists(), "and make none");
}

#[tokio::test]
async fn the_demo_proves_what_it_says() {
    let text = done(program(&["demo"])).await.succeeded().out;
    for words in ["every nonce from 0 to 49", "50 records recomputed from it: all match", "one of them forged: result"]
    {
        assert!(text.contains(words), "it lacks {words:?}: {text}");
    }
    assert!(text.trim_end().ends_with("Everything fits."), "{text}");
    let folder = text.lines().find_map(|line| line.split(" in ").nth(1)?.split_whitespace().next()).unwrap();
    assert!(folder.contains("fairledger-demo-") && !Path::new(folder).exists(), "{folder} is left behind");
}
