//! A database host that vanishes without a word: no reset, no end, only silence.

use std::time::Duration;

use super::*;
use crate::harness::Pace;

fn impatient() -> PoolSettings {
    PoolSettings {
        connections_max: 2,
        acquire_timeout: Duration::from_millis(500),
        // The server frees what a vanished client holds after twice this.
        statement_timeout: Duration::from_millis(400),
        transaction_timeout: Duration::from_millis(500),
        ..PoolSettings::default()
    }
}

/// The commit's answer never comes, or the commit never arrives: the caller is told in time that nobody knows, the connection is thrown
/// away, and its place serves others.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_vanishes_is_unknown_in_time_and_holds_no_connection_i9_i12() {
    let stage = Stage::new(impatient(), true).await;
    stage.proxy.vanish_instead_of_cuts();
    let (mut owner, told) = (stage.db.owner().await, Told::default());
    let changes = every_change(&stage.caller).await;
    let some = ["spend", "atomic batch", "rotate", "bet", "record"];
    for (number, change) in changes.into_iter().filter(|change| some.contains(&change.name)).enumerate() {
        if number % 2 == 0 {
            stage.proxy.cut_before(b"COMMIT");
        } else {
            stage.proxy.cut_after_client_sends(b"COMMIT");
        }
        let (status, problem) = change.send(&stage.caller).await;
        assert_eq!((status, &problem["code"]), (503, &json!("outcome_unknown")), "{}: {problem}", change.name);
        told.note(&change, &change.resolve(&stage.caller).await);
    }
    told.prove(&mut owner).await;
    assert_eq!(stage.app.datastore().quarantine(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_host_is_silent_changes_fail_in_time_and_afterwards_every_connection_is_there_again_i12() {
    let stage = Stage::new(impatient(), true).await;
    let (mut owner, told) = (stage.db.owner().await, Told::default());
    // Connections in the pool and with the groups, all of which will be found dead.
    let changes = every_change(&stage.caller).await;
    stage.proxy.fall_silent();
    let asked = futures_util::future::join_all(changes.iter().map(|change| change.send(&stage.caller))).await;
    for (change, (status, problem)) in changes.iter().zip(asked) {
        assert_eq!(status, 503, "{}: {problem}", change.name);
    }
    let (status, _) = stage.caller.call("GET", "/readyz", None).await;
    assert_eq!(status, 503);
    // Those of before are gone for good, not only quiet.
    stage.proxy.cut_now();
    stage.proxy.speak();
    for change in changes {
        told.note(&change, &change.resolve(&stage.caller).await);
    }
    told.prove(&mut owner).await;
}

/// A change that stops between two statements was not persisted, and its caller is told so.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_vanishes_before_the_commit_is_unavailable_and_nothing_is_persisted_i9() {
    for grouped in [true, false] {
        let stage = Stage::new(impatient(), grouped).await;
        stage.proxy.vanish_instead_of_cuts();
        let mut owner = stage.db.owner().await;
        let changes = every_change(&stage.caller).await;
        for change in changes.into_iter().filter(|change| ["bet", "spend"].contains(&change.name)) {
            let before = fingerprint(&mut owner).await;
            // The transaction's second statement; its first is BEGIN.
            stage.proxy.cut_at_number(1, true);
            let (status, problem) = change.send(&stage.caller).await;
            assert_eq!((status, &problem["code"]), (503, &json!("unavailable")), "{}: {problem}", change.name);
            assert_eq!(before, fingerprint(&mut owner).await, "{}", change.name);
            stage.proxy.cut_now();
            change.resolve(&stage.caller).await;
        }
        Told::default().prove(&mut owner).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_trickle_or_come_late_and_resets_change_nothing_but_the_time() {
    let stage = Stage::new(PoolSettings::default(), true).await;
    let (mut owner, told) = (stage.db.owner().await, Told::default());
    for pace in [Pace::Trickle, Pace::Late(Duration::from_millis(2))] {
        let changes = every_change(&stage.caller).await;
        stage.proxy.pace(pace);
        let answers = futures_util::future::join_all(changes.iter().map(|change| change.send(&stage.caller))).await;
        for (change, answer) in changes.iter().zip(answers) {
            assert!(change.stands(&answer), "{}: {answer:?}", change.name);
            told.note(change, &answer.1);
        }
        stage.proxy.pace(Pace::Full);
    }
    stage.proxy.reset_instead_of_closing();
    stage.proxy.cut_now();
    for _ in 0..3 {
        let changes = every_change(&stage.caller).await;
        let sending = futures_util::future::join_all(changes.iter().map(|change| change.send(&stage.caller)));
        let resetting = async {
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_millis(2)).await;
                stage.proxy.cut_now();
            }
        };
        let (answers, ()) = tokio::join!(sending, resetting);
        for (change, answer) in changes.iter().zip(answers) {
            assert!(change.stands(&answer) || answer.0 == 503, "{}: {answer:?}", change.name);
            told.note(change, &change.resolve(&stage.caller).await);
        }
    }
    told.prove(&mut owner).await;
}

/// Each meets silence after its transaction has begun.
#[tokio::test(flavor = "multi_thread")]
async fn look_ups_of_tokens_that_meet_silence_give_their_places_back_i12() {
    let http = HttpSettings { request_timeout: Duration::from_millis(500), ..HttpSettings::default() };
    // A connection for each, since one that is silent is out of use for some seconds.
    let stage = Stage::with(PoolSettings { connections_max: 16, ..impatient() }, true, http).await;
    stage.proxy.vanish_instead_of_cuts();
    let ask = || async {
        let made_up = fairledger::http::auth::ApiToken::generate();
        let stranger = Caller::at(&format!("http://{}", stage.address), made_up.expose());
        stranger.call("GET", "/v1/sessions?playerRef=p", None).await
    };
    // More than look-ups have places.
    for _ in 0..10 {
        stage.proxy.cut_at_number(1, true);
        let (status, problem) = ask().await;
        assert_eq!((status, &problem["code"]), (503, &json!("unavailable")), "{problem}");
        assert!(!stage.proxy.disarm(), "nothing was cut");
    }
    assert_eq!(ask().await.0, 401);
}
