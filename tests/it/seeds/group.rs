//! Bets of many callers in one transaction: who is told what when something is wrong with one of them, or with all.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fairledger::db::{Datastore, DbError, PoolSettings};
use fairledger::seeds::error::SeedsError;
use fairledger::seeds::model::{BetAnswer, View};
use fairledger::seeds::{BetRequest, GroupSettings, KeyRing, RotateRequest, Seeds, SeedsSettings, ServiceSecret};
use futures_util::future::join_all;
use serde_json::json;
use tokio::sync::Barrier;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::{RING, all_bets, as_owner, dice, game, inspected, nonce_of, refused, session, start};
use crate::harness::{Proxy, TestDb};

const SOMEONE_WAITS: &str =
    "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";

/// One writer that waits long for locks, so that what queues while one is held comes in one batch.
async fn one_writer(url: &str, more: SeedsSettings) -> Seeds {
    let group = GroupSettings { writers: 1, lock_timeout: Duration::from_secs(60), ..GroupSettings::default() };
    let settings = SeedsSettings { group: Some(group), ..more };
    let store = Datastore::connect(url, &PoolSettings::default()).await.unwrap();
    Seeds::start(store, KeyRing::parse(RING).unwrap(), ServiceSecret::new([7; 32]), None, settings).await.unwrap()
}

type Bet = JoinHandle<Result<BetAnswer, SeedsError>>;

fn begin(seeds: &Seeds, session_id: Uuid, request: BetRequest) -> Bet {
    let seeds = seeds.clone();
    tokio::spawn(async move { seeds.take_bet(session_id, &request).await })
}

/// Holds a session's seed, has a bet wait for it, and queues the bets behind that one, in order; gives them all after letting go.
async fn in_one_batch(db: &TestDb, seeds: &Seeds, bets: Vec<(Uuid, BetRequest)>) -> Vec<Result<BetAnswer, SeedsError>> {
    let blocker = session(seeds).await;
    let mut holder = db.owner().await;
    sqlx::query("BEGIN").execute(&mut holder).await.unwrap();
    sqlx::query("SELECT 1 FROM fairledger.seeds WHERE session_id = $1 FOR UPDATE")
        .bind(blocker.session_id)
        .execute(&mut holder)
        .await
        .unwrap();
    let blocked = begin(seeds, blocker.session_id, dice(blocker.commitment, "blocked"));
    db.wait_until(SOMEONE_WAITS).await;
    let mut tasks = Vec::new();
    for (session_id, request) in bets {
        tasks.push(begin(seeds, session_id, request));
        while seeds.group_stats().unwrap().queued < tasks.len() {
            tokio::task::yield_now().await;
        }
    }
    sqlx::query("COMMIT").execute(&mut holder).await.unwrap();
    blocked.await.unwrap().unwrap();
    join_all(tasks).await.into_iter().map(Result::unwrap).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn i3_bets_of_one_session_in_a_batch_get_consecutive_nonces_in_the_order_they_came() {
    let db = TestDb::new().await;
    let seeds = one_writer(&db.service_url, SeedsSettings::default()).await;
    let views = [session(&seeds).await, session(&seeds).await];
    let bets = (0..40)
        .map(|number| {
            let view = &views[number % 2];
            (view.session_id, game(view.commitment, number.to_string(), "mines", &json!({}), number % 10 == 3))
        })
        .collect();
    let before = seeds.group_stats().unwrap();
    let answers = in_one_batch(&db, &seeds, bets).await;
    for (number, answer) in answers.iter().enumerate() {
        let answer = answer.as_ref().unwrap();
        assert_eq!((nonce_of(answer), answer.replayed), (number as u64 / 2, false));
    }
    let after = seeds.group_stats().unwrap();
    assert_eq!(after.sizes.counts.iter().sum::<u64>(), before.sizes.counts.iter().sum::<u64>() + 2, "two batches");
    assert_eq!((after.alone, after.failed), (0, 0));
    for view in &views {
        let bets = all_bets(&seeds, view.session_id).await;
        assert!(bets.is_sorted_by(|a, b| a.meta.taken_at >= b.meta.taken_at), "newest first by nonce and by time");
    }
    assert_eq!(seeds.view(views[1].session_id).await.unwrap().pending.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_bets_fail_alone_and_leave_no_gap() {
    let db = TestDb::new().await;
    let seeds = one_writer(&db.service_url, SeedsSettings { pending_max: 1, ..SeedsSettings::default() }).await;
    let (view, closed, full) = (session(&seeds).await, session(&seeds).await, session(&seeds).await);
    seeds.close(closed.session_id, &closed.commitment).await.unwrap();
    seeds.take_bet(view.session_id, &dice(view.commitment, "stored")).await.unwrap();
    let round = |view: &View, name: &str| (view.session_id, game(view.commitment, name, "mines", &json!({}), true));
    seeds.take_bet(full.session_id, &round(&full, "open").1).await.unwrap();
    let bet = |view: &View, name: &str| (view.session_id, dice(view.commitment, name));
    let bets = vec![
        bet(&view, "a"),
        bet(&view, "stored"),
        (view.session_id, dice(closed.commitment, "wrong-seed")),
        (Uuid::new_v4(), dice(view.commitment, "no-session")),
        bet(&closed, "closed"),
        round(&full, "one-too-many"),
        bet(&full, "none-too-many"),
        bet(&view, "b"),
        bet(&view, "a"),
        (view.session_id, game(view.commitment, "a", "limbo", &json!({}), false)),
        (view.session_id, game(view.commitment, "stored", "limbo", &json!({}), false)),
    ];
    let mut answers = in_one_batch(&db, &seeds, bets).await;
    refused!(answers.pop().unwrap(), SeedsError::BetRefReused);
    refused!(answers.pop().unwrap(), SeedsError::BetRefReused);
    let follower = answers.pop().unwrap().unwrap();
    let second = answers.pop().unwrap().unwrap();
    answers.pop().unwrap().unwrap();
    refused!(answers.pop().unwrap(), SeedsError::TooManyPending);
    refused!(answers.pop().unwrap(), SeedsError::SessionClosed);
    refused!(answers.pop().unwrap(), SeedsError::SessionNotFound);
    refused!(answers.pop().unwrap(), SeedsError::CommitmentChanged { .. });
    let stored = answers.pop().unwrap().unwrap();
    let first = answers.pop().unwrap().unwrap();
    assert_eq!((nonce_of(&stored), stored.replayed), (0, true));
    assert_eq!((nonce_of(&first), first.replayed), (1, false));
    assert_eq!((nonce_of(&second), second.replayed), (2, false));
    assert_eq!((nonce_of(&follower), follower.replayed), (1, true));
    assert_eq!(follower.record, first.record);
    assert_eq!(seeds.view(view.session_id).await.unwrap().nonce, 3, "no gap");
}

#[tokio::test(flavor = "multi_thread")]
async fn i7_a_seed_that_does_not_open_fails_its_own_bets_only() {
    let db = TestDb::new().await;
    let seeds = one_writer(&db.service_url, SeedsSettings::default()).await;
    let (good, bad) = (session(&seeds).await, session(&seeds).await);
    sqlx::query("UPDATE fairledger.seeds SET sealed_seed = set_byte(sealed_seed, 40, get_byte(sealed_seed, 40) # 1) WHERE session_id = $1")
        .bind(bad.session_id)
        .execute(&mut db.owner().await)
        .await
        .unwrap();
    let bets = vec![
        (good.session_id, dice(good.commitment, "a")),
        (bad.session_id, dice(bad.commitment, "b")),
        (good.session_id, dice(good.commitment, "c")),
    ];
    let mut answers = in_one_batch(&db, &seeds, bets).await;
    assert_eq!(nonce_of(&answers.pop().unwrap().unwrap()), 1);
    refused!(answers.pop().unwrap(), SeedsError::Db(DbError::Corrupt { .. }));
    assert_eq!(nonce_of(&answers.pop().unwrap().unwrap()), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn i3_a_batch_under_a_counter_that_was_set_back_hands_no_nonce_out_twice() {
    let db = TestDb::new().await;
    let seeds = one_writer(&db.service_url, SeedsSettings::default()).await;
    let (set_back, sound) = (session(&seeds).await, session(&seeds).await);
    seeds.take_bet(set_back.session_id, &dice(set_back.commitment, "first")).await.unwrap();
    as_owner(&db, &format!("UPDATE fairledger.seeds SET next_nonce = 0 WHERE session_id = '{}'", set_back.session_id))
        .await;
    let bet = |view: &View, name: &str| (view.session_id, dice(view.commitment, name));
    let answers = in_one_batch(&db, &seeds, vec![bet(&set_back, "a"), bet(&sound, "b"), bet(&set_back, "c")]).await;
    let [a, b, c] = <[_; 3]>::try_from(answers).unwrap();
    refused!(a, SeedsError::Db(DbError::Unexpected(_)));
    refused!(c, SeedsError::Db(DbError::Unexpected(_)));
    assert_eq!(nonce_of(&b.unwrap()), 0, "others are not harmed");
    assert_eq!(all_bets(&seeds, set_back.session_id).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_a_lost_answer_to_a_batchs_commit_is_unknown_and_the_same_bets_again_are_found() {
    let db = TestDb::new().await;
    let proxy = Proxy::start(&db.service_url).await;
    let seeds = one_writer(&proxy.url(&db.service_url), SeedsSettings::default()).await;
    let view = session(&seeds).await;
    seeds.take_bet(view.session_id, &dice(view.commitment, "first")).await.unwrap();
    for (round, cut_before) in [false, true].into_iter().enumerate() {
        if cut_before {
            proxy.cut_before(b"COMMIT");
        } else {
            proxy.cut_after_client_sends(b"COMMIT");
        }
        let requests: Vec<_> = (0..30).map(|number| dice(view.commitment, format!("{round}:{number}"))).collect();
        let tasks: Vec<_> = requests.iter().map(|request| begin(&seeds, view.session_id, request.clone())).collect();
        let mut unknown = 0;
        for (task, request) in tasks.into_iter().zip(&requests) {
            match task.await.unwrap() {
                Ok(answer) => assert!(!answer.replayed),
                Err(SeedsError::Db(DbError::OutcomeUnknown(_))) => {
                    unknown += 1;
                    let again = seeds.take_bet(view.session_id, request).await.unwrap();
                    assert_eq!(again.replayed, !cut_before);
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(unknown > 0, "no batch was cut");
    }
    seeds.rotate(view.session_id, &RotateRequest { commitment: view.commitment, client_seed: None }).await.unwrap();
    let bets = all_bets(&seeds, view.session_id).await;
    assert_eq!(bets.iter().map(nonce_of).collect::<BTreeSet<_>>(), (0..61).collect());
    assert!(bets.iter().all(|bet| inspected(bet) == "matches"));
}

#[tokio::test(flavor = "multi_thread")]
async fn i12_a_full_queue_is_overloaded_and_nothing_is_done() {
    let db = TestDb::new().await;
    let group =
        GroupSettings { writers: 1, queue_max: 2, lock_timeout: Duration::from_secs(60), ..GroupSettings::default() };
    let seeds = super::start_with(&db, SeedsSettings { group: Some(group), ..SeedsSettings::default() }, None).await;
    let view = session(&seeds).await;
    let mut holder = db.owner().await;
    sqlx::query("BEGIN").execute(&mut holder).await.unwrap();
    sqlx::query("SELECT 1 FROM fairledger.seeds FOR UPDATE").execute(&mut holder).await.unwrap();
    let mut tasks = vec![begin(&seeds, view.session_id, dice(view.commitment, "a"))];
    db.wait_until(SOMEONE_WAITS).await;
    for name in ["b", "c"] {
        tasks.push(begin(&seeds, view.session_id, dice(view.commitment, name)));
    }
    while seeds.group_stats().unwrap().queued < 2 {
        tokio::task::yield_now().await;
    }
    let answer = seeds.take_bet(view.session_id, &dice(view.commitment, "d")).await;
    refused!(answer, SeedsError::Db(DbError::Overloaded));
    tasks[1].abort();
    sqlx::query("COMMIT").execute(&mut holder).await.unwrap();
    let _ = join_all(tasks).await;
    let last = seeds.take_bet(view.session_id, &dice(view.commitment, "d")).await.unwrap();
    assert_eq!(nonce_of(&last), 3, "the caller that went away changed nothing for the others");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_services_with_overlapping_sessions_never_deadlock_and_leave_no_gap() {
    let db = TestDb::new().await;
    let services = [start(&db).await, start(&db).await];
    let mut views = Vec::new();
    for _ in 0..50 {
        views.push(session(&services[0]).await);
    }
    let (views, barrier) = (Arc::new(views), Arc::new(Barrier::new(64)));
    let callers = (0..64_usize).map(|caller| {
        let (seeds, views, barrier) = (services[caller % 2].clone(), views.clone(), barrier.clone());
        tokio::spawn(async move {
            barrier.wait().await;
            for number in 0..40 {
                let view = &views[(caller * 11 + number * 7) % views.len()];
                let bet = dice(view.commitment, format!("{caller}:{number}"));
                assert!(!seeds.take_bet(view.session_id, &bet).await.unwrap().replayed);
            }
        })
    });
    join_all(callers).await.into_iter().for_each(Result::unwrap);
    let mut taken = 0;
    for view in views.iter() {
        let bets = all_bets(&services[1], view.session_id).await;
        let nonces: Vec<u64> = bets.iter().rev().map(nonce_of).collect();
        assert_eq!(nonces, (0..bets.len() as u64).collect::<Vec<_>>());
        taken += bets.len();
    }
    assert_eq!(taken, 64 * 40);
    let deadlocks: i64 =
        sqlx::query_scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
            .fetch_one(&mut db.connect_admin().await)
            .await
            .unwrap();
    assert_eq!(deadlocks, 0);
}
