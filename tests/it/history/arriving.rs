//! Pages while bets arrive: nothing committed before `asOf` is missed, nothing is repeated.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use fairledger::history::{Filters, History};
use fairledger::seeds::SessionRequest;
use fairledger::seeds::model::View;
use fairledger::seeds::values::PlayerRef;
use serde_json::Value;
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::world::World;
use super::{page, texts};
use crate::seeds::dice;

/// Takes a bet in a transaction that stays open, as a service does that is slow.
async fn take(connection: &mut PgConnection, view: &View, name: &str) {
    let reserve = "UPDATE fairledger.seeds SET next_nonce = next_nonce + 1 WHERE session_id = $1 AND status = 'live'
                   RETURNING next_nonce - 1, clock_timestamp()";
    let (nonce, taken_at): (i64, chrono::DateTime<chrono::Utc>) =
        sqlx::query_as(reserve).bind(view.session_id).fetch_one(&mut *connection).await.unwrap();
    sqlx::query(
        "INSERT INTO fairledger.bets (session_id, seed_no, nonce, bet_ref, kind, game, params, taken_at, result, cursor)
         VALUES ($1, 0, $2, $3, 'played', 'dice', '{}', $4, '42.5', 0)",
    )
    .bind(view.session_id)
    .bind(nonce)
    .bind(name)
    .bind(taken_at)
    .execute(connection)
    .await
    .unwrap();
}

async fn session(world: &World, player: &str) -> View {
    let player_ref = Some(PlayerRef::parse(player).unwrap());
    world.seeds.create_session(&SessionRequest { player_ref, ..SessionRequest::default() }).await.unwrap().view
}

fn names(bets: &[Value]) -> Vec<&str> {
    bets.iter().map(|bet| bet["meta"]["betRef"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn what_commits_late_with_an_earlier_time_is_on_no_page_before_and_on_every_page_after() {
    let world = World::empty().await;
    let (slow, fast) = (session(&world, "p").await, session(&world, "p").await);
    world.seeds.take_bet(fast.session_id, &dice(fast.commitment, "before")).await.unwrap();
    let mut open = world.db.connect(&world.db.service_url).await;
    let mut open = open.begin().await.unwrap();
    take(&mut open, &slow, "late").await;
    // Later by its time, and committed earlier.
    world.seeds.take_bet(fast.session_id, &dice(fast.commitment, "after")).await.unwrap();
    for filters in
        [Filters::default(), Filters { player_ref: Some(PlayerRef::parse("p").unwrap()), ..Filters::default() }]
    {
        let found = page(&world.history, &filters, None, 10).await;
        assert_eq!(names(&texts(&found)), ["before"], "whoever saw the later one would never see the earlier one");
    }
    open.commit().await.unwrap();
    let found = page(&world.history, &Filters::default(), None, 10).await;
    assert_eq!(names(&texts(&found)), ["after", "late", "before"]);
}

#[tokio::test]
async fn later_pages_keep_to_the_time_of_the_first() {
    let world = World::empty().await;
    let view = session(&world, "p").await;
    for number in 0..4 {
        world.seeds.take_bet(view.session_id, &dice(view.commitment, format!("{number}"))).await.unwrap();
    }
    let first = page(&world.history, &Filters::default(), None, 2).await;
    world.seeds.take_bet(view.session_id, &dice(view.commitment, "new")).await.unwrap();
    let second = page(&world.history, &Filters::default(), first.next_after.clone(), 2).await;
    assert_eq!((names(&texts(&first)), names(&texts(&second))), (vec!["3", "2"], vec!["1", "0"]));
    assert_eq!(first.as_of, second.as_of);
    assert!(second.behind_ms >= first.behind_ms);
}

#[tokio::test]
async fn readers_and_idle_transactions_hold_nothing_back() {
    let world = World::empty().await;
    let view = session(&world, "p").await;
    let mut reader = world.db.connect(&world.db.service_url).await;
    reader
        .execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT count(*) FROM fairledger.bets")
        .await
        .unwrap();
    let mut idle = world.db.connect(&world.db.service_url).await;
    idle.execute("BEGIN; UPDATE fairledger.sessions SET active_at = active_at").await.unwrap();
    world.seeds.take_bet(view.session_id, &dice(view.commitment, "new")).await.unwrap();
    assert_eq!(page(&world.history, &Filters::default(), None, 10).await.records.len(), 1);
}

/// The service may not know when another role's transaction began. It then goes by what was written down before.
#[tokio::test]
async fn a_transaction_that_does_not_tell_when_it_began_holds_the_time_where_it_was() {
    let world = World::empty().await;
    let view = session(&world, "p").await;
    let first = page(&world.history, &Filters::default(), None, 10).await;
    world.seeds.advance_horizon().await.unwrap();
    let mut owner = world.db.owner().await;
    let mut open = owner.begin().await.unwrap();
    take(&mut open, &view, "owner").await;
    let during = page(&world.history, &Filters::default(), None, 10).await;
    assert!(during.as_of >= first.as_of);
    // Nor does the horizon move meanwhile.
    world.seeds.advance_horizon().await.unwrap();
    assert_eq!(page(&world.history, &Filters::default(), None, 10).await.as_of, during.as_of);
    open.commit().await.unwrap();
    let after = page(&world.history, &Filters::default(), None, 10).await;
    assert!(after.as_of > during.as_of);
    assert_eq!(names(&texts(&after)), ["owner"]);
}

/// A time that was found before the clock was set back says nothing about bets taken since.
#[tokio::test]
async fn the_horizon_is_what_was_found_last_and_never_later_than_now() {
    let world = World::empty().await;
    let read = "SELECT as_of FROM fairledger.horizon";
    let mut owner = world.db.owner().await;
    owner.execute("UPDATE fairledger.horizon SET as_of = '2099-01-01'").await.unwrap();
    let view = session(&world, "p").await;
    let mut open = owner.begin().await.unwrap();
    take(&mut open, &view, "owner").await;
    let untold = page(&world.history, &Filters::default(), None, 10).await;
    assert!(untold.as_of.0 <= chrono::Utc::now(), "{}", untold.as_of);
    open.rollback().await.unwrap();
    world.seeds.advance_horizon().await.unwrap();
    let found: chrono::DateTime<chrono::Utc> = sqlx::query_scalar(read).fetch_one(&mut owner).await.unwrap();
    assert!(found <= chrono::Utc::now(), "{found}");
}

/// Reads all pages while bets arrive, again and again; gives what each reading found with its time.
async fn read_on(history: &History, filters: &Filters, ended: &AtomicBool) -> Vec<(String, Vec<Value>)> {
    let mut readings = Vec::new();
    while !ended.load(Ordering::SeqCst) {
        let mut found = Vec::new();
        let mut after = None;
        let as_of = loop {
            let page = page(history, filters, after, 7).await;
            found.extend(texts(&page));
            after = page.next_after;
            if after.is_none() {
                break page.as_of;
            }
        };
        readings.push((as_of.to_string(), found));
    }
    readings
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_taken_while_bets_arrive_miss_and_repeat_nothing() {
    let world = World::empty().await;
    let mut sessions = Vec::new();
    for _ in 0..4 {
        sessions.push(session(&world, "p").await);
    }
    let slow = session(&world, "p").await;
    let ended = AtomicBool::new(false);
    let player = Filters { player_ref: Some(PlayerRef::parse("p").unwrap()), ..Filters::default() };
    let writers = async {
        let fast = sessions.iter().map(|view| {
            let world = &world;
            async move {
                for number in 0..60 {
                    let bet = dice(view.commitment, format!("{number}"));
                    world.seeds.take_bet(view.session_id, &bet).await.unwrap();
                }
            }
        });
        let late = async {
            let mut connection = world.db.connect(&world.db.service_url).await;
            for number in 0..12 {
                let mut open = connection.begin().await.unwrap();
                take(&mut open, &slow, &format!("late:{number}")).await;
                // For as long as some others come and go.
                let view = &sessions[0];
                world.seeds.take_bet(view.session_id, &dice(view.commitment, format!("x:{number}"))).await.unwrap();
                tokio::task::yield_now().await;
                open.commit().await.unwrap();
            }
        };
        tokio::join!(futures_util::future::join_all(fast), late);
        ended.store(true, Ordering::SeqCst);
    };
    let by_time = Filters::default();
    let ((), by_time, by_place) =
        tokio::join!(writers, read_on(&world.history, &by_time, &ended), read_on(&world.history, &player, &ended));
    let all = super::all(&world.history, &Filters::default(), 500).await;
    assert_eq!(all.len(), 4 * 60 + 24);
    let id = |bet: &Value| (bet["record"]["commitment"].to_string(), bet["record"]["nonce"].as_u64().unwrap());
    assert!(by_time.len() + by_place.len() > 4);
    for (as_of, found) in by_time.iter().chain(&by_place) {
        let ids: HashSet<_> = found.iter().map(id).collect();
        assert_eq!(ids.len(), found.len(), "something came twice");
        let taken_before = |bet: &&Value| bet["meta"]["takenAt"].as_str().unwrap() < as_of.as_str();
        let expected: HashSet<_> = all.iter().filter(taken_before).map(id).collect();
        assert_eq!(ids, expected, "as of {as_of}");
    }
}
