//! The database's clock stepped back and forward under load. What ends in time ends by it; nothing that is taken once depends on it.
//! What a step does to tokens alone is told in `ledger/windows.rs`.

use chrono::{SubsecRound as _, TimeDelta, Utc};
use fairledger::db::Reader;
use fairledger::history::coverage::Seen;
use fairledger::history::{History, HistorySettings};

use super::*;
use crate::harness::TestClock;

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_back_and_forward_lets_nothing_be_taken_twice_and_accuses_nobody_i1_i2_i3_i4() {
    let (db, noon) = (TestDb::new().await, Utc::now().trunc_subsecs(6));
    let mut clock = TestClock::install(&db, noon - TimeDelta::hours(12)).await;
    let stage = Stage::on(db, PoolSettings::default(), true, HttpSettings::default()).await;
    let caller = &stage.caller;
    let (told, mut owner) = (Told::default(), stage.db.owner().await);
    let session = caller.session().await;
    let bet = |number: usize| {
        let body = json!({ "commitment": session["commitment"], "betRef": format!("b{number}"), "game": "dice" });
        Change { name: "bet", method: "POST", path: format!("/v1/sessions/{}/bets", id(&session)), body }
    };
    let mut spent = Vec::new();
    for (number, minutes) in [0, -300, 10, -10, 200, 0].into_iter().enumerate() {
        clock.set(noon + TimeDelta::minutes(minutes)).await;
        for change in every_change(caller).await {
            told.note(&change, &change.resolve(caller).await);
            spent.extend((change.name == "spend").then_some(change.body));
        }
        // In one session all along: nonces go on, whatever the time.
        for before in 0..=number {
            let answer = bet(before).resolve(caller).await;
            assert_eq!(answer["record"]["nonce"], before, "{answer}");
            told.note(&bet(before), &answer);
        }
        for body in &spent {
            let other = json!({ "keyId": "k", "nonce": body["nonce"], "spendId": Uuid::new_v4() });
            assert_eq!(caller.call("POST", "/v1/spends", Some(other)).await.1["code"], "already_spent");
        }
        told.prove(&mut owner).await;
        stage.app.seeds().maintain().await.unwrap();
    }

    let history =
        History::new(Reader::from(stage.app.datastore()), ServiceSecret::new([7; 32]), HistorySettings::default());
    let mut wrong = Vec::new();
    let all = history.coverage_of_all(|seen| wrong.extend(matches!(seen, Seen::Wrong(_)).then(|| format!("{seen:?}"))));
    let totals = all.await.unwrap();
    assert_eq!((wrong, totals.wrong), (vec![], 0));

    // Far ahead everything that ends in time has ended, once, and back again it stays ended.
    clock.set(noon + TimeDelta::days(60)).await;
    stage.app.seeds().maintain().await.unwrap();
    let ended = fingerprint(&mut owner).await;
    clock.set(noon).await;
    stage.app.seeds().maintain().await.unwrap();
    assert_eq!(ended, fingerprint(&mut owner).await);
    told.prove(&mut owner).await;
}
