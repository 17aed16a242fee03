//! I2: the window is judged by the database's clock, to the microsecond, and a clock that steps back re-opens nothing that was swept.

use chrono::{DateTime, TimeDelta, Utc};
use fairledger::ledger::{KeyRequest, SpendLedger};

use super::{
    code, fresh, has_partition, hours, key_id, key_with_window, ledger, replayed, spend, standing, sweep_all, token,
};
use crate::harness::TestClock;
use crate::harness::TestDb;

const MICROSECOND: TimeDelta = TimeDelta::microseconds(1);

fn noon() -> DateTime<Utc> {
    "2030-06-01T12:00:00Z".parse().unwrap()
}

#[tokio::test]
async fn i2_a_window_begins_and_ends_to_the_microsecond() {
    let db = TestDb::new().await;
    let mut clock = TestClock::install(&db, noon()).await;
    let ledger = ledger(&db).await;
    let (from, until) = (noon() + hours(1), noon() + hours(2));
    key_with_window(&ledger, "k", from, until).await;
    let expected = [
        (from - MICROSECOND, "key_not_yet_valid"),
        (from, "ok"),
        (from + MICROSECOND, "ok"),
        (until - MICROSECOND, "ok"),
        (until, "key_expired"),
        (until + MICROSECOND, "key_expired"),
    ];
    for (number, (at, outcome)) in expected.into_iter().enumerate() {
        clock.set(at).await;
        let one = spend(&token("k", number as u128));
        assert_eq!(code(&ledger.spend(&one).await), outcome, "at {at}");
        let batch = ledger.spend_each(&[spend(&token("k", 100 + number as u128))]).await.unwrap();
        assert_eq!(batch[0].outcome.as_str().replace("fresh", "ok"), outcome, "in a batch at {at}");
        assert_eq!(standing(&db, &one.token).await.len(), usize::from(outcome == "ok"));
    }
}

#[tokio::test]
async fn i2_a_retry_after_the_window_is_answered_until_the_key_is_swept() {
    let db = TestDb::new().await;
    let mut clock = TestClock::install(&db, noon()).await;
    let ledger = ledger(&db).await;
    key_with_window(&ledger, "k", noon(), noon() + hours(30)).await;
    let first = spend(&token("k", 1));
    ledger.spend(&first).await.unwrap();
    clock.set(noon() + hours(30)).await;
    assert_eq!(ledger.spend(&first).await.unwrap(), replayed(&first));
    assert_eq!(code(&ledger.spend(&spend(&token("k", 1))).await), "key_expired", "whether or not the sweeper came");
    assert_eq!(code(&ledger.roll_back(&spend(&token("k", 1))).await), "spent_by_another");

    sweep_all(&ledger).await;
    assert!(!has_partition(&db, "k").await);
    for token in [&first, &spend(&token("k", 1)), &spend(&token("k", 2))] {
        assert_eq!(code(&ledger.spend(token).await), "key_expired");
        assert_eq!(code(&ledger.roll_back(token).await), "not_spent");
    }
}

#[tokio::test]
async fn i2_a_clock_that_steps_back_reopens_nothing_that_was_swept() {
    let db = TestDb::new().await;
    let mut clock = TestClock::install(&db, noon()).await;
    let ledger = ledger(&db).await;
    key_with_window(&ledger, "swept", noon(), noon() + hours(1)).await;
    key_with_window(&ledger, "ended", noon(), noon() + hours(3)).await;
    let (in_swept, in_ended) = (spend(&token("swept", 1)), spend(&token("ended", 1)));
    ledger.spend(&in_swept).await.unwrap();
    ledger.spend(&in_ended).await.unwrap();
    clock.set(noon() + hours(2)).await;
    sweep_all(&ledger).await;
    clock.set(noon() + hours(4)).await;
    assert_eq!(code(&ledger.spend(&spend(&token("ended", 1))).await), "key_expired");

    clock.set(noon() + TimeDelta::minutes(30)).await;
    for again in [&in_swept, &spend(&token("swept", 1)), &spend(&token("swept", 2))] {
        assert_eq!(code(&ledger.spend(again).await), "key_expired", "swept is for ever");
    }
    assert_eq!(code(&ledger.register_key(&KeyRequest::new(key_id("swept"))).await), "key_id_retired");
    assert_eq!(ledger.sweep().await.unwrap(), Default::default());
    // Its window is open again, and it still has all its spends.
    assert_eq!(code(&ledger.spend(&spend(&token("ended", 1))).await), "already_spent");
    assert_eq!(ledger.spend(&in_ended).await.unwrap(), replayed(&in_ended));
    let other = spend(&token("ended", 2));
    assert_eq!(ledger.spend(&other).await.unwrap(), fresh(&other));
}

#[tokio::test]
async fn i2_nothing_is_swept_a_microsecond_early() {
    let db = TestDb::new().await;
    let mut clock = TestClock::install(&db, noon()).await;
    let ledger = ledger(&db).await;
    key_with_window(&ledger, "k", noon(), noon() + hours(1)).await;
    let first = spend(&token("k", 1));
    ledger.spend(&first).await.unwrap();
    clock.set(noon() + hours(1) - MICROSECOND).await;
    assert_eq!(ledger.sweep().await.unwrap(), Default::default());
    ledger.close_key(&key_id("k")).await.unwrap();
    assert_eq!(
        ledger.sweep().await.unwrap(),
        Default::default(),
        "a closed key answers retries until its window has ended"
    );
    assert_eq!(ledger.spend(&first).await.unwrap(), replayed(&first));
    clock.set(noon() + hours(1)).await;
    assert_eq!(ledger.sweep().await.unwrap().marked, [key_id("k")]);
}

#[tokio::test]
async fn i13_a_spends_expiry_is_its_keys() {
    let db = TestDb::new().await;
    let mut clock = TestClock::install(&db, noon()).await;
    let ledger = ledger(&db).await;
    let key = key_with_window(&ledger, "k", noon(), noon() + hours(30)).await;
    for number in 0..3 {
        clock.advance(TimeDelta::minutes(7)).await;
        ledger.spend(&spend(&token("k", number))).await.unwrap();
    }
    assert!(clock.now() > noon());
    let mut owner = db.connect(&db.owner_url).await;
    let expiries: Vec<DateTime<Utc>> =
        sqlx::query_scalar("SELECT DISTINCT expires_at FROM fairledger.spends").fetch_all(&mut owner).await.unwrap();
    assert_eq!(expiries, [key.redeem_until], "a time of spending would tell when");
}
