//! What happens by itself.

use std::time::Duration;

use fairledger::seeds::model::SessionStatus;
use fairledger::seeds::{SeedsSettings, StepRequest};
use serde_json::json;

use super::pending::reservation;
use super::{all_bets, bounded, dice, session, start_with};
use crate::harness::TestDb;

fn settings(idle: Duration, reservation_ttl: Duration) -> SeedsSettings {
    SeedsSettings { idle_after: idle, reservation_ttl, ..SeedsSettings::default() }
}

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn idle_sessions_are_closed_and_used_ones_are_not() {
    let db = TestDb::new().await;
    let seeds = start_with(&db, settings(HOUR, HOUR), None).await;
    let (idle, looked_at, fresh) = (session(&seeds).await, session(&seeds).await, session(&seeds).await);
    seeds.take_bet(idle.session_id, &dice(idle.commitment, "b")).await.unwrap();
    seeds.maintain().await.unwrap();
    let mut owner = db.owner().await;
    sqlx::query("UPDATE fairledger.sessions SET active_at = active_at - interval '2 hours' WHERE session_id <> $1")
        .bind(fresh.session_id)
        .execute(&mut owner)
        .await
        .unwrap();
    sqlx::query("UPDATE fairledger.bets SET taken_at = taken_at - interval '2 hours'")
        .execute(&mut owner)
        .await
        .unwrap();
    seeds.view(looked_at.session_id).await.unwrap();
    // Two processes at once close it once.
    let again = start_with(&db, settings(HOUR, HOUR), None).await;
    let (one, two) = tokio::join!(seeds.maintain(), again.maintain());
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.marked, 1, "looking counts");
    assert!(one.closed + two.closed >= 1);
    let status = |id| {
        let seeds = again.clone();
        async move { seeds.view(id).await.unwrap().status }
    };
    assert_eq!(status(idle.session_id).await, SessionStatus::Closed);
    assert_eq!(status(fresh.session_id).await, SessionStatus::Open);
    let list = again.seeds_of_session(idle.session_id).await.unwrap().seeds;
    assert_eq!((list[0].status, list[0].retired_by), ("revealed", Some("idle")));
}

/// Its use is written down by the service that it is used on, now and then; another one must not close it meanwhile.
#[tokio::test]
async fn a_session_with_a_fresh_bet_or_step_is_not_idle_whatever_its_mark_says() {
    let db = TestDb::new().await;
    let seeds = start_with(&db, settings(HOUR, HOUR), None).await;
    let other = start_with(&db, settings(HOUR, HOUR), None).await;
    let (bet, stepped) = (session(&seeds).await, session(&seeds).await);
    seeds.take_bet(bet.session_id, &dice(bet.commitment, "b")).await.unwrap();
    let mut round = dice(stepped.commitment, "r");
    round.game.conceal = true;
    seeds.take_bet(stepped.session_id, &round).await.unwrap();
    let step = StepRequest { index: 0, step: bounded(json!("wait")), disclose: None };
    seeds.step(stepped.session_id, &stepped.commitment, 0, &step).await.unwrap();
    let mut owner = db.owner().await;
    for old in [
        "UPDATE fairledger.sessions SET active_at = active_at - interval '2 hours'",
        "UPDATE fairledger.bets SET taken_at = taken_at - interval '2 hours' WHERE bet_ref = 'r'",
    ] {
        sqlx::query(old).execute(&mut owner).await.unwrap();
    }
    assert_eq!(other.maintain().await.unwrap().closed, 0);
    sqlx::query("UPDATE fairledger.steps SET stepped_at = stepped_at - interval '2 hours'")
        .execute(&mut owner)
        .await
        .unwrap();
    assert_eq!(other.maintain().await.unwrap().closed, 1);
    assert_eq!(other.view(bet.session_id).await.unwrap().status, SessionStatus::Open);
}

#[tokio::test]
async fn looking_at_a_session_keeps_it_open() {
    let db = TestDb::new().await;
    let seeds = start_with(&db, settings(HOUR, HOUR), None).await;
    let view = session(&seeds).await;
    seeds.maintain().await.unwrap();
    let mut owner = db.owner().await;
    sqlx::query("UPDATE fairledger.sessions SET active_at = active_at - interval '2 hours'")
        .execute(&mut owner)
        .await
        .unwrap();
    seeds.view(view.session_id).await.unwrap();
    let done = seeds.maintain().await.unwrap();
    assert_eq!((done.marked, done.closed), (1, 0), "the mark is written before idle sessions are looked for");
    assert_eq!(seeds.view(view.session_id).await.unwrap().status, SessionStatus::Open);
}

#[tokio::test]
async fn expired_reservations_are_voided() {
    let db = TestDb::new().await;
    let seeds = start_with(&db, settings(HOUR, Duration::from_millis(1)), None).await;
    let view = session(&seeds).await;
    for number in 0..3 {
        seeds.reserve(view.session_id, &reservation(view.commitment, &format!("r{number}"))).await.unwrap();
    }
    db.wait_until("SELECT every(expires_at <= clock_timestamp()) FROM fairledger.pending").await;
    assert_eq!(seeds.maintain().await.unwrap().expired_reservations, 3);
    assert_eq!(seeds.maintain().await.unwrap().expired_reservations, 0);
    let bets = all_bets(&seeds, view.session_id).await;
    assert!(bets.iter().all(|bet| bet.meta.void_reason.as_deref() == Some("expired")));
    let mut owner = db.owner().await;
    let voids: i64 = sqlx::query_scalar("SELECT count(*) FROM fairledger.voids").fetch_one(&mut owner).await.unwrap();
    assert_eq!(voids, 3, "stored, not only shown");
}

#[tokio::test]
async fn one_corrupt_session_does_not_keep_others_from_their_end() {
    let db = TestDb::new().await;
    let seeds = start_with(&db, settings(HOUR, HOUR), None).await;
    let (broken, sound) = (session(&seeds).await, session(&seeds).await);
    for view in [&broken, &sound] {
        seeds.take_bet(view.session_id, &dice(view.commitment, "b")).await.unwrap();
    }
    seeds.maintain().await.unwrap();
    let mut owner = db.owner().await;
    sqlx::query("UPDATE fairledger.seeds SET sealed_seed = set_byte(sealed_seed, 40, get_byte(sealed_seed, 40) # 1) WHERE session_id = $1")
        .bind(broken.session_id)
        .execute(&mut owner)
        .await
        .unwrap();
    for old in [
        "UPDATE fairledger.sessions SET active_at = created_at - interval '2 hours'",
        "UPDATE fairledger.bets SET taken_at = taken_at - interval '2 hours'",
    ] {
        sqlx::query(old).execute(&mut owner).await.unwrap();
    }
    assert_eq!(seeds.maintain().await.unwrap().closed, 1);
    assert_eq!(seeds.view(sound.session_id).await.unwrap().status, SessionStatus::Closed);
    assert_eq!(seeds.view(broken.session_id).await.unwrap().status, SessionStatus::Open);
}

#[tokio::test]
async fn old_quota_rows_are_forgotten() {
    let db = TestDb::new().await;
    let seeds = start_with(&db, settings(HOUR, HOUR), None).await;
    for last in 1..=3 {
        let request = fairledger::seeds::SessionRequest {
            client_address: Some(std::net::IpAddr::from([192, 0, 2, last])),
            ..Default::default()
        };
        seeds.create_session(&request).await.unwrap();
    }
    let mut owner = db.owner().await;
    sqlx::query("UPDATE fairledger.address_quota SET window_started_at = window_started_at - interval '2 days'")
        .execute(&mut owner)
        .await
        .unwrap();
    assert_eq!(seeds.maintain().await.unwrap().quota_rows, 3);
}
