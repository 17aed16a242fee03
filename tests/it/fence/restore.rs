//! Databases that were put back: noticed at the start and by the first write, never by mistake.

use super::*;
use crate::harness::{Caller, Service, id};

#[tokio::test]
async fn a_restored_database_is_noticed_at_the_start_and_can_be_read_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let instance = Instance::start(&db, folder.path()).await;
    let view = instance.session().await;
    instance.dice(&view, "a").await;
    instance.stop().await;
    let old = db.snapshot().await;
    let instance = Instance::start(&db, folder.path()).await;
    instance.dice(&view, "b").await;
    instance.stop().await;
    db.restore(&old).await;

    let instance = Instance::start(&db, folder.path()).await;
    let reason = instance.store.quarantine().unwrap();
    assert!(reason.contains("acknowledged"), "{reason}");
    assert_eq!(instance.seeds.view(view.session_id).await.unwrap().bets, 1);
    instance.seeds.bets_of_session(view.session_id, None, 10).await.unwrap();
    assert!(instance.ledger.live_keys().await.unwrap().is_empty());
    assert!(is_quarantined(&instance.try_dice(view.session_id, view.commitment, "c").await));
    assert!(is_quarantined(&instance.seeds.close(view.session_id, &view.commitment).await));
    assert!(spend_is_quarantined(&instance.ledger.register_key(&KeyRequest::new("k".parse().unwrap())).await));
    assert_eq!(instance.seeds.view(view.session_id).await.unwrap().bets, 1);
    // Starting again does not help.
    instance.stop().await;
    assert!(Instance::start(&db, folder.path()).await.store.quarantine().is_some());
}

/// The writer that is asked first has lost nothing itself: another one has.
#[tokio::test]
async fn a_database_replaced_under_a_running_service_is_noticed_by_the_first_write_whoever_makes_it_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let four = FenceSettings { writers: 4, ..settings(folder.path(), false) };
    let instance = Instance::over(fenced(&db.service_url, &four).await.unwrap(), &db).await;
    let view = instance.session().await;
    let old = db.snapshot().await;
    for name in ["a", "b", "c"] {
        instance.dice(&view, name).await;
    }
    db.restore(&old).await;
    let refused = instance.patient_dice(&view, "d").await;
    assert!(is_quarantined(&refused), "{refused:?}");
    assert_eq!(instance.seeds.view(view.session_id).await.unwrap().bets, 0);
}

/// What the database lacks was acknowledged by a writer that the settings of this start do not have any more.
#[tokio::test]
async fn a_service_with_fewer_writers_than_before_misses_what_the_others_acknowledged_i10() {
    for (writers, write) in [(1, true), (2, false)] {
        let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
        let start = async |writers| {
            let settings = FenceSettings { writers, ..settings(folder.path(), false) };
            Instance::over(fenced(&db.service_url, &settings).await.unwrap(), &db).await
        };
        // Half of the writers never hear of the recovery, and have marks of the epoch before it.
        let instance = start(8).await;
        let view = instance.session().await;
        instance.dice(&view, "a").await;
        instance.stop().await;
        recovery::recover(&db, None).await;
        let instance = start(4).await;
        let view = instance.session().await;
        instance.stop().await;
        let old = db.snapshot().await;
        let instance = start(4).await;
        instance.dice(&view, "b").await;
        instance.stop().await;

        let instance = start(writers).await;
        instance.store.watch().await.unwrap();
        assert_eq!(instance.store.quarantine(), None);
        db.restore(&old).await;
        if write {
            assert!(is_quarantined(&instance.patient_dice(&view, "c").await));
            assert_eq!(instance.seeds.view(view.session_id).await.unwrap().bets, 0);
        } else {
            while instance.store.watch().await.is_err() {}
        }
        let reason = instance.store.quarantine().unwrap();
        assert!(reason.contains("writer 3 acknowledged 2 transactions, the database has 1"), "{reason}");
    }
}

#[tokio::test]
async fn a_loss_that_one_instance_finds_stops_all_of_them_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    let loser = Instance::start(&db, &a).await;
    let view = loser.session().await;
    let other = Instance::join(&db, &b).await;
    other.session().await;
    let old = db.snapshot().await;
    loser.dice(&view, "a").await;
    db.restore(&old).await;
    // It finds out without being asked for anything.
    loser.store.watch().await.unwrap();
    assert!(loser.store.quarantine().is_some());
    let mut refused = other.seeds.create_session(&SessionRequest::default()).await;
    while matches!(refused, Err(SeedsError::Db(DbError::Unavailable(_)))) {
        refused = other.seeds.create_session(&SessionRequest::default()).await;
    }
    assert!(is_quarantined(&refused), "{refused:?}");
    // And one that starts then.
    other.stop().await;
    assert!(Instance::start(&db, &b).await.store.quarantine().unwrap().contains("another instance"));
}

/// It notices nothing itself, and heeds what others noticed: running, at its start, and until a recovery.
#[tokio::test]
async fn a_service_without_a_witness_folder_stops_with_the_others_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let token = db.admin_token().await;
    let instance = Instance::start(&db, folder.path()).await;
    instance.session().await;
    instance.stop().await;
    let old = db.snapshot().await;
    let instance = Instance::start(&db, folder.path()).await;
    instance.session().await;
    instance.stop().await;
    db.restore(&old).await;

    let service = Service::spawn(&db, &[], &[]);
    let caller = Caller::new(&service, &token);
    let session = caller.session().await;
    let instance = Instance::start(&db, folder.path()).await;
    assert!(instance.store.quarantine().is_some());
    let quarantined = || async { caller.call("GET", "/readyz", None).await.1["code"] == "quarantined" };
    while !quarantined().await {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let bets = format!("/v1/sessions/{}/bets", id(&session));
    let second = Service::spawn(&db, &[], &[]);
    for (caller, path) in [
        (&caller, "/v1/sessions"),
        (&caller, bets.as_str()),
        (&caller, "/v1/spends"),
        (&Caller::new(&second, &token), "/v1/sessions"),
    ] {
        let (status, problem) = caller.call("POST", path, Some(json!({}))).await;
        assert_eq!((status, &problem["code"]), (503, &json!("quarantined")), "{path}: {problem}");
    }
    assert_eq!(caller.call("GET", &format!("/v1/sessions/{}", id(&session)), None).await.0, 200);
    assert_eq!(service.logs().matches("QUARANTINE").count(), 1, "{}", service.logs());
    super::recovery::recover(&db, Some(folder.path())).await;
    while quarantined().await {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    caller.session().await;
}

#[tokio::test]
async fn a_move_of_everything_passes() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let instance = Instance::start(&db, folder.path()).await;
    let view = instance.session().await;
    instance.dice(&view, "a").await;
    let current = db.snapshot().await;
    db.restore(&current).await;
    // Whichever connection the restore cut is made anew.
    while instance.try_dice(view.session_id, view.commitment, "b").await.is_err() {}
    assert_eq!(instance.store.quarantine(), None);
    instance.stop().await;
    let instance = Instance::start(&db, folder.path()).await;
    assert_eq!(instance.store.quarantine(), None);
    assert_eq!(instance.dice(&view, "c").await.record["nonce"], 2);
}

/// Restored to before the instance joined: none of its rows are there.
#[tokio::test]
async fn a_database_of_before_the_instance_joined_is_noticed_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let empty = db.snapshot().await;
    let instance = Instance::start(&db, folder.path()).await;
    instance.session().await;
    instance.stop().await;
    db.restore(&empty).await;
    assert!(Instance::start(&db, folder.path()).await.store.quarantine().unwrap().contains("no such writer"));
}

#[tokio::test]
async fn in_quarantine_http_reads_work_and_every_change_is_refused_before_its_body_is_read_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let token = db.admin_token().await;
    let dir = folder.path().to_str().unwrap().to_owned();
    let env = [("FAIRLEDGER_WITNESS_DIR", dir.as_str())];
    let mut service = Service::spawn(&db, &env, &[]);
    let caller = Caller::new(&service, &token);
    let session = caller.session().await;
    service.terminate();
    let old = db.snapshot().await;
    let mut service = Service::spawn(&db, &env, &[]);
    Caller::new(&service, &token).dice(&session, "a").await;
    service.terminate();
    db.restore(&old).await;

    let service = Service::spawn(&db, &env, &[]);
    let caller = Caller::new(&service, &token);
    let (status, ready) = caller.call("GET", "/readyz", None).await;
    assert_eq!((status, &ready["code"]), (503, &json!("quarantined")), "{ready}");
    assert!(ready["detail"].as_str().unwrap().contains("acknowledged"), "{ready}");
    assert_eq!(caller.call("GET", "/healthz", None).await.0, 200);
    let own = format!("/v1/sessions/{}", id(&session));
    assert_eq!(caller.call("GET", &own, None).await.0, 200);
    assert_eq!(caller.call("GET", &format!("{own}/records"), None).await.0, 200);
    assert_eq!(caller.call("GET", "/v1/keys", None).await.0, 200);
    let commitment = session["commitment"].as_str().unwrap();
    assert_eq!(caller.call("GET", &format!("/v1/commitments/{commitment}"), None).await.0, 200);
    let play = json!({ "game": "dice", "serverSeed": "ab".repeat(32), "clientSeed": "c", "nonce": 0 });
    assert_eq!(caller.call("POST", "/v1/verify/play", Some(play)).await.0, 200);
    for (method, path) in [
        ("POST", "/v1/sessions".to_owned()),
        ("POST", format!("{own}/bets")),
        ("POST", format!("{own}/rotate")),
        ("PUT", format!("{own}/client-seed")),
        ("POST", format!("{own}/close")),
        ("POST", "/v1/spends".to_owned()),
        ("POST", "/v1/spends/batch".to_owned()),
        ("POST", "/v1/spends/rollback".to_owned()),
        ("PUT", "/v1/keys/k".to_owned()),
    ] {
        // The body is out of form: quarantined comes first.
        let (status, problem) = caller.call(method, &path, Some(json!({ "x": 1 }))).await;
        assert_eq!((status, &problem["code"]), (503, &json!("quarantined")), "{method} {path}: {problem}");
    }
    // But not before the token.
    let stranger = Caller::new(&service, "flt_");
    assert_eq!(stranger.call("POST", "/v1/sessions", Some(json!({}))).await.0, 401);
    assert_eq!(service.logs().matches("QUARANTINE").count(), 1, "{}", service.logs());
}
