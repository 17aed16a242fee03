//! Standard output that goes away or is full: no command panics, none passes it off as success, and none leaves half a change.

use std::fs::File;

use super::*;

/// Standard output whose reader is gone.
fn gone() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

async fn into(mut command: Command, out: Stdio) -> Done {
    command.stdout(out);
    tokio::task::spawn_blocking(move || {
        command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap().into()
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn every_command_survives_a_reader_that_went_away_and_a_full_disk() {
    let db = TestDb::new().await;
    let token = db.admin_token().await;
    let mut service = Service::spawn(&db, &[], &[]);
    let caller = Caller::new(&service, &token);
    let session = caller.session().await;
    caller.dice(&session, "a").await;
    service.terminate();
    let commitment = session["commitment"].as_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("bundle");
    let path = bundle.to_str().unwrap();
    done(on(&db, &["bundle", commitment, "0", "--out", path])).await.succeeded();
    for args in [
        &["bundle", commitment, "0"][..],
        &["verify", "--bundle", path],
        &["verify", "--bundle", path, "--json"],
        &["verify"],
        &["coverage", "--session", id(&session)],
        &["export"],
        &["token", "list"],
        &["key", "add", "k"],
        &["key", "list"],
        &["sweep", "--once"],
        &["seed-keys", "rotate"],
        &["forget-player", "nobody"],
        &["migrate", "--check"],
        &["recover"],
        &["openapi"],
        &["completions", "bash"],
        &["man"],
        &["--help"],
    ] {
        let ended = into(on(&db, args), gone()).await;
        assert_eq!((ended.code, ended.err.contains("panicked")), (Some(141), false), "{args:?}: {ended:?}");
        assert!(!ended.err.contains("fairledger: "), "{args:?}: {ended:?}");
        into(on(&db, args), full()).await.refused(&["writing to standard output: No space left on device"]);
    }
    // The change itself was made.
    assert!(done(on(&db, &["key", "list"])).await.succeeded().out.starts_with("k "));
}

#[tokio::test]
async fn a_token_that_nobody_saw_is_not_valid_i6() {
    let db = TestDb::new().await;
    for out in [gone(), full(), Stdio::null()] {
        let ended = into(on(&db, &["token", "create", "--scope", "admin"]), out).await;
        ended.refused(&["the token could not be shown, so it was not made"]);
    }
    // Closed as it begins: the next file that is opened would be standard output.
    let mut closed = Command::new("sh");
    let create = on(&db, &["token", "create", "--scope", "admin"]);
    closed.args(["-c", "exec \"$0\" token create --scope admin >&-"]).arg(create.get_program());
    for (name, value) in create.get_envs() {
        closed.env(name, value.unwrap_or_default());
    }
    done(closed).await.refused(&["the token could not be shown, so it was not made"]);
    assert_eq!(done(on(&db, &["token", "list"])).await.succeeded().out, "");
}

/// What is found is shown before anything is changed: whoever reads only the first line gets the recovery all the same, and is told of it.
#[tokio::test]
async fn a_recovery_is_made_and_told_of_whoever_reads_it() {
    let db = TestDb::new().await;
    for (epoch, out) in [(1, gone()), (2, full())] {
        let args = ["recover", "--confirm", "--sound-database", "--reason", "a test"];
        let ended = into(on(&db, &args), out).await;
        assert!([Some(141), Some(1)].contains(&ended.code), "{ended:?}");
        assert!(ended.err.contains(&format!("recovery epoch {epoch} is open")), "{ended:?}");
    }
}

/// The log goes to standard error.
#[tokio::test]
async fn a_log_that_cannot_be_written_stops_nothing() {
    let db = TestDb::new().await;
    let token = db.admin_token().await;
    for err in [full(), gone()] {
        let mut command = on(&db, &["serve", "--listen", "127.0.0.1:0"]);
        let mut child = command.stderr(err).spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap();
        let answer =
            http_client().post(format!("{url}/v1/sessions")).bearer_auth(&token).json(&json!({})).send().await.unwrap();
        assert_eq!(answer.status(), 201);
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id().cast_signed()), nix::sys::signal::SIGTERM)
            .unwrap();
        assert!(child.wait().unwrap().success());
    }
}
