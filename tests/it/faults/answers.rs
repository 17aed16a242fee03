//! Answers that are lost around the commit: for every change there is, once persisted and once not.

use super::*;

/// What the fault does to the change, and whether it is persisted then.
async fn break_every_change(stage: &Stage, persisted: bool) {
    let mut owner = stage.db.owner().await;
    let told = Told::default();
    for change in every_change(&stage.caller).await {
        let name = change.name;
        let before = fingerprint(&mut owner).await;
        if persisted {
            stage.proxy.cut_after_client_sends(b"COMMIT");
        } else {
            stage.proxy.cut_before(b"COMMIT");
        }
        let (status, problem) = change.send(&stage.caller).await;
        assert_eq!((status, &problem["code"]), (503, &json!("outcome_unknown")), "{name}: {problem}");
        assert!(!stage.proxy.disarm(), "{name}: nothing was cut");
        // The server hears of the end of the connection on its own.
        stage
            .db
            .wait_until(
                "SELECT count(*) = 0 FROM pg_stat_activity
                 WHERE datname = current_database() AND usename = 'fairledger_service' AND state <> 'idle'",
            )
            .await;
        let after = fingerprint(&mut owner).await;
        assert_eq!(before != after, persisted, "{name}: persisted");
        told.note(&change, &change.resolve(&stage.caller).await);
        let resolved = fingerprint(&mut owner).await;
        assert_ne!(before, resolved, "{name}");
        // Sent once more it changes nothing.
        change.resolve(&stage.caller).await;
        assert_eq!(resolved, fingerprint(&mut owner).await, "{name} again");
    }
    told.prove(&mut owner).await;
    assert_eq!(stage.app.datastore().quarantine(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_cut_before_its_commit_is_not_persisted_and_resolved_by_sending_it_again_i9() {
    for grouped in [true, false] {
        break_every_change(&Stage::new(PoolSettings::default(), grouped).await, false).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_whose_answer_is_lost_after_its_commit_is_resolved_by_sending_it_again_i9() {
    for grouped in [true, false] {
        break_every_change(&Stage::new(PoolSettings::default(), grouped).await, true).await;
    }
}

/// The first answer may have been lost with its mark, so that only the second one is witnessed.
#[tokio::test(flavor = "multi_thread")]
async fn every_change_that_is_acknowledged_again_is_counted_again_i10() {
    for grouped in [true, false] {
        let stage = Stage::new(PoolSettings::default(), grouped).await;
        let mut owner = stage.db.owner().await;
        let mut counted = async || {
            let sum = "SELECT coalesce(sum(seq), 0)::bigint FROM fairledger.witness";
            sqlx::query_scalar::<_, i64>(sum).fetch_one(&mut owner).await.unwrap()
        };
        for change in every_change(&stage.caller).await {
            let first = change.send(&stage.caller).await;
            let before = counted().await;
            let again = change.send(&stage.caller).await;
            // What was given back is not there to be given back again.
            if change.name == "rollback" {
                assert_eq!((first.0 / 100, again.0), (2, 404), "{again:?}");
                continue;
            }
            assert_eq!((first.0 / 100, again.0), (2, 200), "{}: {first:?} {again:?}", change.name);
            assert!(counted().await > before, "{}, {grouped}", change.name);
        }
        // A refused batch tells of each token.
        let (ours, theirs) = (spend(), spend());
        for spend in [&ours, &theirs] {
            stage.caller.post("/v1/spends", spend.clone()).await;
        }
        let before = counted().await;
        let other = json!({ "keyId": "k", "nonce": theirs["nonce"], "spendId": Uuid::new_v4() });
        let both = json!({ "spends": [ours, other], "atomic": true });
        let (status, problem) = stage.caller.call("POST", "/v1/spends/batch", Some(both)).await;
        assert_eq!((status, &problem["results"][0]["replayed"]), (409, &json!(true)), "{problem}");
        assert!(counted().await > before, "{grouped}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_is_resolved_while_its_old_backend_is_still_to_commit_i9() {
    let stage = Stage::new(PoolSettings::default(), true).await;
    let (mut owner, told) = (stage.db.owner().await, Told::default());
    for change in every_change(&stage.caller).await {
        stage.proxy.cut_and_deliver_later(b"COMMIT");
        let (status, problem) = change.send(&stage.caller).await;
        assert_eq!((status, &problem["code"]), (503, &json!("outcome_unknown")), "{}: {problem}", change.name);
        let again = tokio::spawn({
            let (change, caller) = (change.clone(), stage.caller.clone());
            async move { change.resolve(&caller).await }
        });
        // The second attempt waits for the first one's rows or for the witness of its writer, or has another way; then the first commits.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        stage.proxy.deliver();
        told.note(&change, &again.await.unwrap());
        let resolved = fingerprint(&mut owner).await;
        change.resolve(&stage.caller).await;
        assert_eq!(resolved, fingerprint(&mut owner).await, "{} again", change.name);
    }
    told.prove(&mut owner).await;
    assert_eq!(stage.app.datastore().quarantine(), None);
}
