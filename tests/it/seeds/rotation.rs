//! Rotation, client-seed change and closing.

use fairledger::db::DbError;
use fairledger::gfs::ClientSeed;
use fairledger::seeds::model::{BetStatus, SessionStatus};
use fairledger::seeds::{ClientSeedRequest, RotateRequest, SeedsError};
use serde_json::json;
use sqlx::Executor as _;

use super::pending::reservation;
use super::{all_bets, dice, game, inspected, refused, session, start};
use crate::harness::TestDb;

fn text(seed: &str) -> ClientSeed {
    ClientSeed::parse(seed).unwrap()
}

#[tokio::test]
async fn a_rotation_reveals_the_seed_and_the_committed_next_one_goes_live() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    seeds.take_bet(view.session_id, &dice(view.commitment, "b")).await.unwrap();
    let request = RotateRequest { commitment: view.commitment, client_seed: None };
    let ended = seeds.rotate(view.session_id, &request).await.unwrap();
    let revealed = ended.revealed.clone().unwrap();
    assert_eq!((revealed.commitment, revealed.bets), (view.commitment, 1));
    assert_eq!(Some(ended.session.commitment), view.next_commitment, "the one that was published before");
    assert_ne!(ended.session.next_commitment, view.next_commitment);
    assert_eq!(ended.session.nonce, 0);
    assert_eq!(ended.session.client_seed, view.client_seed, "the text stays");

    let again = seeds.rotate(view.session_id, &request).await.unwrap();
    assert!(again.replayed && !ended.replayed);
    assert_eq!(again.revealed, ended.revealed);
    let other_text = RotateRequest { client_seed: Some(text("other")), ..request };
    refused!(seeds.rotate(view.session_id, &other_text).await, SeedsError::CommitmentChanged { .. });
}

/// What a transaction wrote stays on disk even when it is rolled back, and then the seed would live on readable.
#[tokio::test]
async fn a_rotation_that_fails_has_written_no_seed_in_clear_i6() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    seeds.take_bet(view.session_id, &dice(view.commitment, "b")).await.unwrap();
    // The last thing that the rotation does is refused.
    let mut owner = db.owner().await;
    owner.execute("ALTER TABLE fairledger.next_seeds ADD CONSTRAINT never CHECK (seed_no < 2)").await.unwrap();
    let request = RotateRequest { commitment: view.commitment, client_seed: None };
    refused!(seeds.rotate(view.session_id, &request).await, SeedsError::Db(_));
    assert_eq!(seeds.view(view.session_id).await.unwrap().commitment, view.commitment, "it is live still");
    let bytes: i64 =
        sqlx::query_scalar("SELECT pg_relation_size('fairledger.reveals')").fetch_one(&mut owner).await.unwrap();
    assert_eq!(bytes, 0, "nothing was ever written there");
}

#[tokio::test]
async fn a_reveal_that_was_left_over_is_made_up_for_i7() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    for by_maintenance in [false, true] {
        let view = session(&seeds).await;
        seeds.take_bet(view.session_id, &dice(view.commitment, "b")).await.unwrap();
        let mut owner = db.owner().await;
        owner.execute("ALTER TABLE fairledger.reveals ADD CONSTRAINT never CHECK (false) NOT VALID").await.unwrap();
        let request = RotateRequest { commitment: view.commitment, client_seed: None };
        refused!(seeds.rotate(view.session_id, &request).await, SeedsError::Db(DbError::OutcomeUnknown(_)));
        refused!(
            seeds.take_bet(view.session_id, &dice(view.commitment, "late")).await,
            SeedsError::CommitmentChanged { .. }
        );
        owner.execute("ALTER TABLE fairledger.reveals DROP CONSTRAINT never").await.unwrap();
        if by_maintenance {
            assert_eq!(seeds.maintain().await.unwrap().revealed, 1);
        }
        let again = seeds.rotate(view.session_id, &request).await.unwrap();
        assert!(again.replayed);
        let stored = seeds.commitment(&view.commitment).await.unwrap();
        assert_eq!(stored.server_seed, again.revealed.map(|revealed| revealed.server_seed));
        assert!(stored.server_seed.is_some());
        assert_eq!(seeds.maintain().await.unwrap().revealed, 0);
    }
}

#[tokio::test]
async fn a_rotation_of_a_seed_without_bets_has_nothing_to_reveal() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    let request = RotateRequest { commitment: view.commitment, client_seed: Some(text("mine")) };
    refused!(seeds.rotate(view.session_id, &request).await, SeedsError::NothingToReveal);
    assert_eq!(seeds.view(view.session_id).await.unwrap().commitment, view.commitment);
}

#[tokio::test]
async fn a_client_seed_change_discards_an_unused_seed_and_reveals_a_used_one() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    let id = view.session_id;
    let first = ClientSeedRequest { commitment: view.commitment, client_seed: text("mine") };
    let ended = seeds.change_client_seed(id, &first).await.unwrap();
    assert_eq!(ended.revealed, None);
    assert_eq!(ended.session.client_seed, text("mine"));
    assert_eq!(Some(ended.session.commitment), view.next_commitment);

    let same = ClientSeedRequest { commitment: ended.session.commitment, client_seed: text("mine") };
    let unchanged = seeds.change_client_seed(id, &same).await.unwrap();
    assert!(unchanged.replayed);
    assert_eq!(unchanged.session.commitment, ended.session.commitment, "the same text changes nothing");

    seeds.take_bet(id, &dice(ended.session.commitment, "b")).await.unwrap();
    let second = ClientSeedRequest { commitment: ended.session.commitment, client_seed: text("yours") };
    let ended_second = seeds.change_client_seed(id, &second).await.unwrap();
    assert_eq!(ended_second.revealed.as_ref().unwrap().bets, 1);

    // Each request again, long after.
    let again = seeds.change_client_seed(id, &first).await.unwrap();
    assert!(again.replayed && again.revealed.is_none());
    assert_eq!(again.session.commitment, ended_second.session.commitment, "the view is current");
    assert_eq!(seeds.change_client_seed(id, &second).await.unwrap().revealed, ended_second.revealed);
    let other = ClientSeedRequest { client_seed: text("other"), ..first };
    refused!(seeds.change_client_seed(id, &other).await, SeedsError::CommitmentChanged { .. });

    let list = seeds.seeds_of_session(id).await.unwrap().seeds;
    let states: Vec<_> = list.iter().map(|seed| (seed.status, seed.retired_by, seed.client_seed_source)).collect();
    let expected = [
        ("discarded", Some("client_seed"), Some("generated")),
        ("revealed", Some("client_seed"), Some("player")),
        ("live", None, Some("player")),
        ("next", None, None),
    ];
    assert_eq!(states, expected);
}

#[tokio::test]
async fn a_kept_client_seed_keeps_the_time_it_was_set() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    seeds.take_bet(view.session_id, &dice(view.commitment, "b")).await.unwrap();
    let request = RotateRequest { commitment: view.commitment, client_seed: None };
    seeds.rotate(view.session_id, &request).await.unwrap();
    let list = seeds.seeds_of_session(view.session_id).await.unwrap().seeds;
    assert_eq!(list[0].client_seed_at, list[1].client_seed_at);
    assert_eq!(list[1].client_seed_source, Some("kept"));
    assert!(list[1].committed_at <= list[1].live_at.unwrap());
}

#[tokio::test]
async fn nothing_ends_a_seed_with_a_pending_bet_but_closing() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    let id = view.session_id;
    seeds.take_bet(id, &game(view.commitment, "round", "mines", &json!({}), true)).await.unwrap();
    seeds.reserve(id, &reservation(view.commitment, "nonce")).await.unwrap();
    let rotate = RotateRequest { commitment: view.commitment, client_seed: None };
    refused!(seeds.rotate(id, &rotate).await, SeedsError::BetsPending);
    let change = ClientSeedRequest { commitment: view.commitment, client_seed: text("mine") };
    refused!(seeds.change_client_seed(id, &change).await, SeedsError::BetsPending);
    let pending = seeds.view(id).await.unwrap().pending;
    let listed: Vec<_> = pending.iter().map(|bet| (bet.nonce, bet.bet_ref.as_str(), bet.kind)).collect();
    assert_eq!(listed, [(0, "round", "round"), (1, "nonce", "reservation")]);

    let closed = seeds.close(id, &view.commitment).await.unwrap();
    assert_eq!(closed.revealed.as_ref().unwrap().bets, 2);
    assert_eq!(closed.session.status, SessionStatus::Closed);
    assert_eq!((closed.session.next_commitment, closed.session.pending.len()), (None, 0));
    let bets = all_bets(&seeds, id).await;
    assert_eq!(bets[1].meta.status, BetStatus::Recorded);
    assert_eq!(bets[1].meta.round_outcome, Some("abandoned"));
    assert_eq!(inspected(&bets[1]), "matches");
    assert_eq!(bets[0].meta.status, BetStatus::Void);
    assert_eq!(bets[0].meta.void_reason.as_deref(), Some("abandoned"));
}

#[tokio::test]
async fn a_closed_session_takes_nothing_more_and_closing_again_is_the_same_answer() {
    let db = TestDb::new().await;
    let seeds = start(&db).await;
    let view = session(&seeds).await;
    let id = view.session_id;
    let unknown = fairledger::gfs::ServerSeed::generate().commitment();
    refused!(seeds.close(id, &unknown).await, SeedsError::CommitmentChanged { .. });
    seeds.take_bet(id, &dice(view.commitment, "b")).await.unwrap();
    let closed = seeds.close(id, &view.commitment).await.unwrap();
    let again = seeds.close(id, &view.commitment).await.unwrap();
    assert!(again.replayed);
    assert_eq!(again.revealed, closed.revealed);
    refused!(seeds.close(id, &unknown).await, SeedsError::SessionClosed);
    refused!(seeds.take_bet(id, &dice(view.commitment, "new")).await, SeedsError::SessionClosed);
    let rotate = RotateRequest { commitment: view.commitment, client_seed: None };
    refused!(seeds.rotate(id, &rotate).await, SeedsError::SessionClosed);
    let change = ClientSeedRequest { commitment: view.commitment, client_seed: text("mine") };
    refused!(seeds.change_client_seed(id, &change).await, SeedsError::SessionClosed);
    let list = seeds.seeds_of_session(id).await.unwrap().seeds;
    let states: Vec<_> = list.iter().map(|seed| (seed.status, seed.server_seed.is_some())).collect();
    assert_eq!(states, [("revealed", true), ("discarded", false)]);
}
