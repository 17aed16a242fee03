//! History from a real standby: how far behind it is, and that nothing later is served.

use std::time::Duration;

use fairledger::db::bootstrap::SERVICE;
use fairledger::db::{Datastore, PoolSettings, Reader};
use fairledger::history::{Filters, History, HistoryError, HistorySettings};
use fairledger::seeds::{KeyRing, Seeds, SeedsSettings, ServiceSecret, SessionRequest};
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::{page, request, texts};
use crate::harness::{Primary, Standby};
use crate::seeds::dice;

fn names(bets: &[serde_json::Value]) -> Vec<&str> {
    bets.iter().map(|bet| bet["meta"]["betRef"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_standby_serves_up_to_the_time_that_it_knows_to_be_complete_and_says_so() {
    let primary = Primary::start().await;
    let store = Datastore::connect(&primary.url(SERVICE), &PoolSettings::default()).await.unwrap();
    let ring = KeyRing::parse("k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=").unwrap();
    let secret = || ServiceSecret::new([7; 32]);
    let seeds = Seeds::start(store.clone(), ring, secret(), None, SeedsSettings::default()).await.unwrap();
    let view = seeds.create_session(&SessionRequest::default()).await.unwrap().view;
    let take = async |name: &str| drop(seeds.take_bet(view.session_id, &dice(view.commitment, name)).await.unwrap());
    take("first").await;

    let standby = Standby::of(&primary).await;
    let reader = Reader::replica(&standby.url(SERVICE), &PoolSettings::default()).unwrap();
    let replica = History::new(reader, secret(), HistorySettings::default());
    let own = History::new(Reader::from(&store), secret(), HistorySettings::default());
    let all = Filters::default();
    standby.catch_up(&primary).await;

    // The bet is there, but nothing says yet that no earlier one can come.
    let unknown = page(&replica, &all, None, 10).await;
    assert_eq!((unknown.records.len(), unknown.as_of.to_string().as_str()), (0, "1970-01-01T00:00:00.000000Z"));
    seeds.advance_horizon().await.unwrap();
    standby.catch_up(&primary).await;
    let known = page(&replica, &all, None, 10).await;
    assert_eq!(names(&texts(&known)), ["first"]);

    // Paused: it stays where it is, and falls behind by its own clock.
    standby.pause().await;
    take("second").await;
    seeds.advance_horizon().await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let paused = page(&replica, &all, None, 10).await;
    assert_eq!((names(&texts(&paused)), paused.as_of), (vec!["first"], known.as_of));
    assert!(paused.behind_ms >= known.behind_ms + 20);
    let one = replica.bet(&view.commitment, 0).await.unwrap();
    assert_eq!(one.as_of, known.as_of);
    assert!(matches!(replica.bet(&view.commitment, 1).await, Err(HistoryError::BetNotFound)));
    assert_eq!(names(&texts(&page(&own, &all, None, 10).await)), ["second", "first"]);

    // A page that began where more was known waits until the same is known here.
    let token = page(&own, &all, None, 1).await.next_after;
    let early = replica.page(request(&all, token.clone(), 1)).await;
    assert!(matches!(early, Err(HistoryError::Behind)), "{early:?}");
    standby.resume().await;
    seeds.advance_horizon().await.unwrap();
    standby.catch_up(&primary).await;
    assert_eq!(names(&texts(&page(&replica, &all, token, 1).await)), ["first"]);

    // Replayed with the commit that comes late, or not at all.
    let mut open = PgConnection::connect(&primary.url(SERVICE)).await.unwrap();
    let mut open = open.begin().await.unwrap();
    open.execute("UPDATE fairledger.seeds SET next_nonce = next_nonce").await.unwrap();
    let other = seeds.create_session(&SessionRequest::default()).await.unwrap().view;
    seeds.take_bet(other.session_id, &dice(other.commitment, "third")).await.unwrap();
    seeds.advance_horizon().await.unwrap();
    standby.catch_up(&primary).await;
    assert_eq!(names(&texts(&page(&replica, &all, None, 10).await)), ["second", "first"], "one is still under way");
    open.rollback().await.unwrap();
    seeds.advance_horizon().await.unwrap();
    standby.catch_up(&primary).await;
    assert_eq!(names(&texts(&page(&replica, &all, None, 10).await)), ["third", "second", "first"]);
    replica.reader().close().await;
    store.close().await;
}

#[tokio::test]
async fn a_replica_that_is_away_is_unavailable_to_those_who_read_and_to_nobody_else() {
    let settings = PoolSettings { acquire_timeout: Duration::from_millis(200), ..PoolSettings::default() };
    let reader = Reader::replica("postgres://nobody@127.0.0.1:1/none?sslmode=disable", &settings).unwrap();
    let history = History::new(reader, ServiceSecret::new([7; 32]), HistorySettings::default());
    let error = history.page(request(&Filters::default(), None, 10)).await.unwrap_err();
    assert!(matches!(error, HistoryError::Db(_)), "{error:?}");
}
