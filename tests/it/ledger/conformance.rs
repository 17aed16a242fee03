//! One suite for every implementation of [`SpendLedger`].

use std::collections::HashSet;

use chrono::{TimeDelta, Utc};
use fairledger::ledger::{
    BATCH_MAX, KeyRequest, KeyState, LedgerError, MemoryLedger, Outcome, Spend, SpendLedger, Token, TokenNonce,
};

use super::{
    code, fresh, hours, key_id, key_with_window, ledger, ledger_alone, open_key, replayed, settings, spend, sweep_all,
    token,
};
use crate::harness::TestDb;

macro_rules! conformance {
    ($($name:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test]
            async fn $name() {
                super::$name(&super::MemoryLedger::new(super::settings())).await;
            })*
        }
        mod postgres {
            $(#[tokio::test]
            async fn $name() {
                let db = super::TestDb::new().await;
                super::$name(&super::ledger(&db).await).await;
            })*
        }
        mod postgres_alone {
            $(#[tokio::test]
            async fn $name() {
                let db = super::TestDb::new().await;
                super::$name(&super::ledger_alone(&db).await).await;
            })*
        }
    };
}

conformance!(
    a_token_is_accepted_once,
    the_same_spend_id_again_is_replayed,
    one_nonce_under_two_keys_is_two_tokens,
    nonces_of_every_length_are_told_apart,
    keys_say_why_they_accept_nothing,
    a_batch_tells_of_each_token_in_order,
    the_same_token_twice_in_a_batch_is_fresh_once,
    an_atomic_batch_spends_all_or_none,
    an_atomic_batch_again_is_replayed,
    the_same_token_twice_refuses_an_atomic_batch,
    a_batch_has_bounds,
    a_token_given_back_is_accepted_once_more,
    only_its_own_spend_id_gives_a_token_back,
    a_late_second_rollback_frees_nothing,
    a_key_registered_again_is_the_same_key,
    a_key_with_another_window_is_refused,
    a_closed_key_accepts_nothing_and_its_name_is_gone,
    live_keys_are_bounded,
    a_window_in_the_past_is_taken_and_not_live,
    a_swept_key_remembers_nothing_and_accepts_nothing,
);

async fn a_token_is_accepted_once(ledger: &impl SpendLedger) {
    open_key(ledger, "k").await;
    let first = spend(&token("k", 1));
    assert_eq!(ledger.spend(&first).await.unwrap(), fresh(&first));
    for _ in 0..5 {
        assert_eq!(code(&ledger.spend(&spend(&token("k", 1))).await), "already_spent");
    }
    let other = spend(&token("k", 2));
    assert_eq!(ledger.spend(&other).await.unwrap(), fresh(&other));
}

async fn the_same_spend_id_again_is_replayed(ledger: &impl SpendLedger) {
    open_key(ledger, "k").await;
    let first = spend(&token("k", 1));
    assert_eq!(ledger.spend(&first).await.unwrap(), fresh(&first));
    for _ in 0..3 {
        assert_eq!(ledger.spend(&first).await.unwrap(), replayed(&first));
    }
    ledger.close_key(&key_id("k")).await.unwrap();
    assert_eq!(ledger.spend(&first).await.unwrap(), replayed(&first), "also when the key is closed");
    assert_eq!(
        code(&ledger.spend(&spend(&token("k", 1))).await),
        "key_expired",
        "the key's state comes before already_spent"
    );
}

async fn one_nonce_under_two_keys_is_two_tokens(ledger: &impl SpendLedger) {
    open_key(ledger, "k").await;
    open_key(ledger, "l").await;
    let spends = [spend(&token("k", 1)), spend(&token("l", 1))];
    for spend in &spends {
        assert_eq!(ledger.spend(spend).await.unwrap(), fresh(spend));
    }
    ledger.roll_back(&spends[0]).await.unwrap();
    assert_eq!(ledger.spend(&spends[1]).await.unwrap(), replayed(&spends[1]));
}

async fn nonces_of_every_length_are_told_apart(ledger: &impl SpendLedger) {
    open_key(ledger, "k").await;
    let spends: Vec<Spend> = (16..=64)
        .map(|length| {
            Spend::new(Token { key_id: key_id("k"), nonce: TokenNonce::from_bytes(&vec![0; length]).unwrap() })
        })
        .collect();
    let results = ledger.spend_each(&spends).await.unwrap();
    assert!(results.iter().all(|result| result.outcome == Outcome::Fresh && !result.replayed), "{results:?}");
    for spend in &spends {
        assert_eq!(ledger.spend(spend).await.unwrap(), replayed(spend));
    }
}

async fn keys_say_why_they_accept_nothing(ledger: &impl SpendLedger) {
    let now = Utc::now();
    key_with_window(ledger, "early", now + hours(1), now + hours(2)).await;
    key_with_window(ledger, "late", now - hours(2), now - hours(1)).await;
    open_key(ledger, "closed").await;
    ledger.close_key(&key_id("closed")).await.unwrap();
    let expected =
        [("none", "unknown_key"), ("early", "key_not_yet_valid"), ("late", "key_expired"), ("closed", "key_expired")];
    for (key, outcome) in expected {
        for _ in 0..2 {
            assert_eq!(code(&ledger.spend(&spend(&token(key, 1))).await), outcome, "{key}");
            assert_eq!(code(&ledger.roll_back(&spend(&token(key, 1))).await), "not_spent", "{key}");
        }
    }
}

async fn a_batch_tells_of_each_token_in_order(ledger: &impl SpendLedger) {
    let now = Utc::now();
    open_key(ledger, "k").await;
    open_key(ledger, "a").await;
    key_with_window(ledger, "early", now + hours(1), now + hours(2)).await;
    key_with_window(ledger, "late", now - hours(2), now - hours(1)).await;
    let spent = spend(&token("k", 1));
    ledger.spend(&spent).await.unwrap();
    let spends = [
        spend(&token("k", 2)),
        spend(&token("none", 1)),
        spend(&token("late", 1)),
        spent.clone(),
        spend(&token("a", 9)),
        spend(&token("early", 1)),
        spend(&token("k", 1)),
        spend(&token("a", 3)),
    ];
    let expected = [
        (Outcome::Fresh, false),
        (Outcome::UnknownKey, false),
        (Outcome::KeyExpired, false),
        (Outcome::Fresh, true),
        (Outcome::Fresh, false),
        (Outcome::KeyNotYetValid, false),
        (Outcome::AlreadySpent, false),
        (Outcome::Fresh, false),
    ];
    let results = ledger.spend_each(&spends).await.unwrap();
    assert_eq!(results.iter().map(|result| (result.outcome, result.replayed)).collect::<Vec<_>>(), expected);
    assert!(results.iter().zip(&spends).all(|(result, spend)| result.spend_id == spend.spend_id));
    let again = ledger.spend_each(&spends).await.unwrap();
    for (first, again) in results.iter().zip(&again) {
        assert_eq!(again.outcome, first.outcome);
        assert_eq!(again.replayed, first.outcome == Outcome::Fresh);
    }
}

async fn the_same_token_twice_in_a_batch_is_fresh_once(ledger: &impl SpendLedger) {
    open_key(ledger, "k").await;
    let first = spend(&token("k", 1));
    let spends = [first.clone(), spend(&token("k", 2)), spend(&token("k", 1)), first.clone()];
    let results = ledger.spend_each(&spends).await.unwrap();
    let outcomes: Vec<_> = results.iter().map(|result| (result.outcome, result.replayed)).collect();
    let expected =
        [(Outcome::Fresh, false), (Outcome::Fresh, false), (Outcome::AlreadySpent, false), (Outcome::Fresh, true)];
    assert_eq!(outcomes, expected);
    assert_eq!(ledger.spend(&first).await.unwrap(), replayed(&first), "the first of the two stands");

    // The same where the statement does not insert everything.
    let standing = spend(&token("k", 3));
    ledger.spend(&standing).await.unwrap();
    let fourth = spend(&token("k", 4));
    let spends = [spend(&token("k", 3)), standing, fourth.clone(), spend(&token("k", 4)), fourth];
    let results = ledger.spend_each(&spends).await.unwrap();
    let outcomes: Vec<_> = results.iter().map(|result| (result.outcome, result.replayed)).collect();
    let expected = [
        (Outcome::AlreadySpent, false),
        (Outcome::Fresh, true),
        (Outcome::Fresh, false),
        (Outcome::AlreadySpent, false),
        (Outcome::Fresh, true),
    ];
    assert_eq!(outcomes, expected);
}

async fn an_atomic_batch_spends_all_or_none(ledger: &impl SpendLedger) {
    open_key(ledger, "k").await;
    let spent = spend(&token("k", 1));
    ledger.spend(&spent).await.unwrap();
    let spends =
        [spend(&token("k", 2)), spend(&token("k", 1)), spend(&token("none", 1)), spent.clone(), spend(&token("k", 3))];
    // Without the repeat, the refusals are those of the tokens.
    let spends_without_repeat = [&spends[0], &spends[1], &spends[2], &spends[4]].map(Clone::clone);
    let Err(LedgerError::BatchRefused { results }) = ledger.spend_all(&spends_without_repeat).await else {
        panic!("not refused");
    };
    let outcomes: Vec<_> = results.iter().map(|result| (result.outcome, result.replayed)).collect();
    let expected = [
        (Outcome::NotSpent, false),
        (Outcome::AlreadySpent, false),
        (Outcome::UnknownKey, false),
        (Outcome::NotSpent, false),
    ];
    assert_eq!(outcomes, expected);
    for unharmed in [&spends[0], &spends[4]] {
        assert_eq!(ledger.spend(unharmed).await.unwrap(), fresh(unharmed), "nothing of the batch was spent");
    }
    assert_eq!(ledger.spend(&spent).await.unwrap(), replayed(&spent), "what stood before stands");
}

async fn an_atomic_batch_again_is_replayed(ledger: &impl SpendLedger) {
    open_key(ledger, "k").await;
    let spends: Vec<Spend> = [5, 3, 4].iter().map(|&number| spend(&token("k", number))).collect();
    ledger.spend(&spends[1]).await.unwrap();
    let replays = |results: Vec<fairledger::ledger::BatchResult>| -> Vec<bool> {
        assert!(results.iter().all(|result| result.outcome == Outcome::Fresh));
        results.iter().map(|result| result.replayed).collect()
    };
    assert_eq!(replays(ledger.spend_all(&spends).await.unwrap()), [false, true, false]);
    assert_eq!(replays(ledger.spend_all(&spends).await.unwrap()), [true, true, true]);
}

async fn the_same_token_twice_refuses_an_atomic_batch(ledger: &impl SpendLedger) {
    open_key(ledger, "k").await;
    let first = spend(&token("k", 1));
    for again in [spend(&token("k", 1)), first.clone()] {
        let spends = [first.clone(), spend(&token("none", 2)), again];
        let Err(LedgerError::BatchRefused { results }) = ledger.spend_all(&spends).await else {
            panic!("not refused");
        };
        let outcomes: Vec<_> = results.iter().map(|result| result.outcome).collect();
        assert_eq!(outcomes, [Outcome::NotSpent, Outcome::UnknownKey, Outcome::AlreadySpent]);
    }
    assert_eq!(ledger.spend(&first).await.unwrap(), fresh(&first));
}

async fn a_batch_has_bounds(ledger: &impl SpendLedger) {
    open_key(ledger, "k").await;
    let spends: Vec<Spend> = (0..=BATCH_MAX as u128).map(|number| spend(&token("k", number))).collect();
    for too in [&spends[..], &[]] {
        assert_eq!(code(&ledger.spend_each(too).await), "invalid_request");
        assert_eq!(code(&ledger.spend_all(too).await), "invalid_request");
    }
    let results = ledger.spend_each(&spends[1..]).await.unwrap();
    assert_eq!(results.len(), BATCH_MAX);
    assert!(results.iter().all(|result| result.outcome == Outcome::Fresh && !result.replayed));
    assert_eq!(results.iter().map(|result| result.spend_id).collect::<HashSet<_>>().len(), BATCH_MAX);
    assert_eq!(ledger.spend(&spends[0]).await.unwrap(), fresh(&spends[0]), "nothing of what was too long");
}

async fn a_token_given_back_is_accepted_once_more(ledger: &impl SpendLedger) {
    open_key(ledger, "k").await;
    for _ in 0..3 {
        let again = spend(&token("k", 1));
        assert_eq!(ledger.spend(&again).await.unwrap(), fresh(&again));
        assert_eq!(code(&ledger.spend(&spend(&token("k", 1))).await), "already_spent");
        ledger.roll_back(&again).await.unwrap();
        assert_eq!(code(&ledger.roll_back(&again).await), "not_spent");
    }
}

async fn only_its_own_spend_id_gives_a_token_back(ledger: &impl SpendLedger) {
    open_key(ledger, "k").await;
    let first = spend(&token("k", 1));
    ledger.spend(&first).await.unwrap();
    assert_eq!(code(&ledger.roll_back(&spend(&token("k", 1))).await), "spent_by_another");
    assert_eq!(code(&ledger.roll_back(&spend(&token("k", 2))).await), "not_spent");
    assert_eq!(ledger.spend(&first).await.unwrap(), replayed(&first));
    ledger.close_key(&key_id("k")).await.unwrap();
    assert_eq!(code(&ledger.roll_back(&spend(&token("k", 1))).await), "spent_by_another", "also under a closed key");
    ledger.roll_back(&first).await.unwrap();
}

async fn a_late_second_rollback_frees_nothing(ledger: &impl SpendLedger) {
    open_key(ledger, "k").await;
    let (first, second) = (spend(&token("k", 1)), spend(&token("k", 1)));
    ledger.spend(&first).await.unwrap();
    ledger.roll_back(&first).await.unwrap();
    assert_eq!(ledger.spend(&second).await.unwrap(), fresh(&second));
    assert_eq!(code(&ledger.roll_back(&first).await), "spent_by_another");
    assert_eq!(ledger.spend(&second).await.unwrap(), replayed(&second));
    assert_eq!(code(&ledger.spend(&first).await), "already_spent");
}

async fn a_key_registered_again_is_the_same_key(ledger: &impl SpendLedger) {
    let now = Utc::now();
    let request = KeyRequest::new(key_id("k"));
    let first = ledger.register_key(&request).await.unwrap();
    assert!(!first.replayed);
    assert_eq!(first.key.redeem_until - first.key.redeem_from, hours(30));
    assert!(first.key.redeem_from - now < TimeDelta::minutes(5), "the default is now");
    let (from, until) = (Some(first.key.redeem_from), Some(first.key.redeem_until));
    for (redeem_from, redeem_until) in [(None, None), (from, None), (None, until), (from, until)] {
        let again = ledger.register_key(&KeyRequest { redeem_from, redeem_until, ..request.clone() }).await.unwrap();
        assert!(again.replayed);
        assert_eq!(again.key, first.key);
    }
}

async fn a_key_with_another_window_is_refused(ledger: &impl SpendLedger) {
    let key = open_key(ledger, "k").await;
    let moved = TimeDelta::microseconds(1);
    let (from, until) = (Some(key.redeem_from + moved), Some(key.redeem_until - moved));
    for (redeem_from, redeem_until) in [(from, None), (None, until), (from, until)] {
        let request = KeyRequest { key_id: key.key_id.clone(), redeem_from, redeem_until };
        assert_eq!(code(&ledger.register_key(&request).await), "key_exists_with_different_window");
    }
    let now = Utc::now();
    let backwards = KeyRequest { key_id: key_id("l"), redeem_from: Some(now), redeem_until: Some(now) };
    assert_eq!(code(&ledger.register_key(&backwards).await), "invalid_request");
    let ended = KeyRequest { key_id: key_id("l"), redeem_from: None, redeem_until: Some(now - hours(1)) };
    assert_eq!(code(&ledger.register_key(&ended).await), "invalid_request", "it would begin after its end");
}

async fn a_closed_key_accepts_nothing_and_its_name_is_gone(ledger: &impl SpendLedger) {
    open_key(ledger, "k").await;
    assert_eq!(code(&ledger.close_key(&key_id("none")).await), "unknown_key");
    let closed = ledger.close_key(&key_id("k")).await.unwrap();
    assert!(!closed.replayed && closed.key.state == KeyState::Closed);
    let again = ledger.close_key(&key_id("k")).await.unwrap();
    assert!(again.replayed && again.key == closed.key);
    assert_eq!(code(&ledger.spend(&spend(&token("k", 1))).await), "key_expired");
    assert_eq!(code(&ledger.register_key(&KeyRequest::new(key_id("k"))).await), "key_id_retired");
    assert_eq!(ledger.live_keys().await.unwrap(), []);
}

async fn live_keys_are_bounded(ledger: &impl SpendLedger) {
    let now = Utc::now();
    for day in 0..4 {
        key_with_window(ledger, &format!("day-{day}"), now + hours(24 * day), now + hours(24 * day + 30)).await;
    }
    assert_eq!(code(&ledger.register_key(&KeyRequest::new(key_id("k"))).await), "too_many_live_keys");
    assert!(
        ledger.register_key(&KeyRequest::new(key_id("day-3"))).await.unwrap().replayed,
        "asking again is no new key"
    );
    let listed: Vec<String> = ledger.live_keys().await.unwrap().iter().map(|key| key.key_id.to_string()).collect();
    assert_eq!(listed, ["day-0", "day-1", "day-2", "day-3"], "those to come too, by the begin of their windows");
    ledger.close_key(&key_id("day-1")).await.unwrap();
    open_key(ledger, "k").await;
    assert_eq!(code(&ledger.register_key(&KeyRequest::new(key_id("l"))).await), "too_many_live_keys");
}

async fn a_window_in_the_past_is_taken_and_not_live(ledger: &impl SpendLedger) {
    let now = Utc::now();
    for number in 0..6 {
        key_with_window(ledger, &format!("past-{number}"), now - hours(2), now - hours(1)).await;
    }
    assert_eq!(ledger.live_keys().await.unwrap(), []);
    open_key(ledger, "k").await;
}

async fn a_swept_key_remembers_nothing_and_accepts_nothing(ledger: &impl SpendLedger) {
    let now = Utc::now();
    key_with_window(ledger, "past", now - hours(2), now - hours(1)).await;
    open_key(ledger, "k").await;
    let standing = spend(&token("k", 1));
    ledger.spend(&standing).await.unwrap();
    let swept = sweep_all(ledger).await;
    assert_eq!(swept.marked, [key_id("past")]);
    assert_eq!(swept.dropped.keys().collect::<Vec<_>>(), [&key_id("past")]);
    assert!(swept.is_done());
    assert_eq!(ledger.sweep().await.unwrap(), Default::default(), "nothing is left to do");
    assert_eq!(code(&ledger.spend(&spend(&token("past", 1))).await), "key_expired");
    assert_eq!(code(&ledger.register_key(&KeyRequest::new(key_id("past"))).await), "key_id_retired");
    assert!(ledger.close_key(&key_id("past")).await.unwrap().replayed);
    assert_eq!(ledger.spend(&standing).await.unwrap(), replayed(&standing), "other keys are left alone");
}
