//! I2 and I12: the registry of keys.

use std::collections::HashSet;
use std::sync::Arc;

use chrono::{TimeDelta, Utc};
use fairledger::ledger::{KeyDays, KeyId, KeyRequest, SpendLedger};
use sqlx::Executor as _;
use tokio::sync::Barrier;

use super::{
    code, end_window, has_partition, hours, key_id, key_with_window, ledger, open_key, spend, sweep_all, token,
};
use crate::harness::TestDb;

/// What 20 callers over two services get who register at once.
async fn register_at_once(db: &TestDb, key: impl Fn(usize) -> KeyId) -> Vec<&'static str> {
    let services = [ledger(db).await, ledger(db).await];
    let barrier = Arc::new(Barrier::new(20));
    let callers: Vec<_> = (0..20)
        .map(|caller| {
            let (service, barrier) = (services[caller % 2].clone(), Arc::clone(&barrier));
            let request = KeyRequest::new(key(caller));
            tokio::spawn(async move {
                barrier.wait().await;
                match service.register_key(&request).await {
                    Ok(changed) if changed.replayed => "replayed",
                    other => code(&other),
                }
            })
        })
        .collect();
    let mut codes = Vec::new();
    for caller in callers {
        codes.push(caller.await.unwrap());
    }
    codes.sort_unstable();
    codes
}

#[tokio::test(flavor = "multi_thread")]
async fn i12_two_at_once_do_not_pass_the_cap_on_live_keys() {
    let db = TestDb::new().await;
    let codes = register_at_once(&db, |caller| key_id(&format!("k{caller}"))).await;
    assert_eq!(codes, [["ok"; 4].as_slice(), &["too_many_live_keys"; 16]].concat());
    assert_eq!(ledger(&db).await.live_keys().await.unwrap().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_a_key_registered_by_many_at_once_is_made_once() {
    let db = TestDb::new().await;
    let codes = register_at_once(&db, |_| key_id("k")).await;
    assert_eq!(codes, [["ok"].as_slice(), &["replayed"; 19]].concat());
}

#[tokio::test]
async fn i2_the_number_of_a_swept_key_is_not_used_again() {
    let db = TestDb::new().await;
    let ledger = ledger(&db).await;
    let mut owner = db.connect(&db.owner_url).await;
    let mut numbers = HashSet::new();
    for round in 0..3 {
        let key = format!("k{round}");
        open_key(&ledger, &key).await;
        let number: i32 = sqlx::query_scalar("SELECT key_no FROM fairledger.token_keys WHERE key_id = $1")
            .bind(&key)
            .fetch_one(&mut owner)
            .await
            .unwrap();
        assert!(numbers.insert(number), "{number} twice");
        end_window(&db, &key).await;
        sweep_all(&ledger).await;
    }
}

#[tokio::test]
async fn keys_of_the_coming_days_open_a_day_apart_with_their_partitions_ahead() {
    let db = TestDb::new().await;
    let ledger = ledger(&db).await;
    let first_opens = Utc::now() + hours(2);
    let key_ids = ["mon", "tue", "wed"].map(key_id).to_vec();
    let days = KeyDays { key_ids: key_ids.clone(), first_opens: Some(first_opens) };
    let changed = ledger.register_days(&days).await.unwrap();
    assert!(changed.iter().all(|changed| !changed.replayed));
    for (day, changed) in changed.iter().enumerate() {
        assert_eq!(changed.key.redeem_from, changed_from(first_opens) + TimeDelta::days(day as i64));
        assert_eq!(changed.key.redeem_until - changed.key.redeem_from, hours(30));
        assert!(has_partition(&db, changed.key.key_id.as_str()).await);
    }
    assert_eq!(code(&ledger.spend(&spend(&token("tue", 1))).await), "key_not_yet_valid");

    let again = ledger.register_days(&days).await.unwrap();
    assert!(again.iter().zip(&changed).all(|(again, first)| again.replayed && again.key == first.key));
    let without_time = KeyDays { key_ids: [key_ids[1..].to_vec(), vec![key_id("thu")]].concat(), first_opens: None };
    let more = ledger.register_days(&without_time).await.unwrap();
    assert_eq!(
        more[2].key.redeem_from,
        changed[2].key.redeem_from + TimeDelta::days(1),
        "after the last of those that exist"
    );
    assert_eq!(more.iter().map(|more| more.replayed).collect::<Vec<_>>(), [true, true, false]);
}

fn changed_from(time: chrono::DateTime<Utc>) -> chrono::DateTime<Utc> {
    chrono::SubsecRound::trunc_subsecs(time, 6)
}

#[tokio::test]
async fn keys_of_the_coming_days_follow_what_is_there_and_are_made_all_or_none() {
    let db = TestDb::new().await;
    let ledger = ledger(&db).await;
    let key = open_key(&ledger, "k").await;
    let too_many = KeyDays { key_ids: ["a", "b", "c", "d"].map(key_id).to_vec(), first_opens: None };
    assert_eq!(code(&ledger.register_days(&too_many).await), "too_many_live_keys");
    assert_eq!(ledger.live_keys().await.unwrap(), std::slice::from_ref(&key), "none of them");
    let days = KeyDays { key_ids: ["a", "b"].map(key_id).to_vec(), first_opens: None };
    let changed = ledger.register_days(&days).await.unwrap();
    assert_eq!(changed[0].key.redeem_from, key.redeem_from + TimeDelta::days(1));
    assert_eq!(changed[1].key.redeem_from, key.redeem_from + TimeDelta::days(2));
}

#[tokio::test]
async fn i10_a_window_that_begins_before_the_last_recovery_is_refused() {
    let db = TestDb::new().await;
    let ledger = ledger(&db).await;
    let before = open_key(&ledger, "before").await;
    let mut owner = db.connect(&db.owner_url).await;
    owner
        .execute("INSERT INTO fairledger.recoveries (epoch, reason, findings) VALUES (1, 'a restore', '{}')")
        .await
        .unwrap();
    let now = Utc::now();
    let request = |from, until| KeyRequest { key_id: key_id("k"), redeem_from: Some(from), redeem_until: Some(until) };
    assert_eq!(code(&ledger.register_key(&request(now - hours(1), now + hours(1))).await), "key_predates_recovery");
    assert_eq!(code(&ledger.register_key(&request(now - hours(2), now - hours(1))).await), "key_predates_recovery");
    assert!(
        ledger.register_key(&KeyRequest::new(before.key_id)).await.unwrap().replayed,
        "a key that is known is known"
    );
    let key = ledger.register_key(&KeyRequest::new(key_id("k"))).await.unwrap().key;
    let epochs: Vec<(String, i32)> = sqlx::query_as("SELECT key_id, epoch FROM fairledger.token_keys ORDER BY key_no")
        .fetch_all(&mut owner)
        .await
        .unwrap();
    assert_eq!(epochs, [("before".into(), 0), (key.key_id.to_string(), 1)]);
}

#[tokio::test]
async fn a_closed_key_binds_what_begins_after_it() {
    let db = TestDb::new().await;
    let services = [ledger(&db).await, ledger(&db).await];
    let now = Utc::now();
    open_key(&services[0], "k").await;
    key_with_window(&services[0], "coming", now + hours(1), now + hours(2)).await;
    services[0].close_key(&key_id("k")).await.unwrap();
    services[0].close_key(&key_id("coming")).await.unwrap();
    for service in &services {
        assert_eq!(code(&service.spend(&spend(&token("k", 1))).await), "key_expired");
        assert_eq!(code(&service.spend(&spend(&token("coming", 1))).await), "key_expired");
        assert_eq!(service.live_keys().await.unwrap(), []);
    }
}
