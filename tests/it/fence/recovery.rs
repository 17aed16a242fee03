//! What a recovery does: to seeds, pending bets, keys, to one instance and to several.

use std::collections::{BTreeMap, BTreeSet};

use fairledger::db::{PoolSettings, Reader};
use fairledger::gfs::{ClientSeed, ServerSeed};
use fairledger::history::bundle::{self, BundleStatus};
use fairledger::history::coverage::Seen;
use fairledger::history::{History, HistorySettings};
use fairledger::seeds::model::SeedView;
use fairledger::seeds::store::{PgSeedStore, PutSession, SeedStore as _, SeedStoreError};
use fairledger::seeds::values::{BoundedJson, JSON_BYTES_MAX, VoidReason};
use fairledger::seeds::{Disclose, RotateRequest, StepRequest, VoidRequest};
use serde_json::Value;
use sqlx::Row as _;

use super::*;
use crate::harness::program;

/// Runs the program's command as its operator would.
pub(super) async fn command(db: &TestDb, witness: Option<&Path>, args: &[&str]) -> (Option<i32>, String) {
    let mut command = program(args);
    command
        .env("DATABASE_URL", &db.service_url)
        .env("MIGRATE_DATABASE_URL", &db.owner_url)
        .env("FAIRLEDGER_SEED_KEYS_FILE", db.data_dir().join("seed-keys"));
    if let Some(dir) = witness {
        command.env("FAIRLEDGER_WITNESS_DIR", dir);
    }
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Without a witness folder nothing need be known to be missing.
pub(super) async fn recover(db: &TestDb, witness: Option<&Path>) {
    let args = ["recover", "--confirm", "--reason", "a test restored it", "--sound-database"];
    let args = if witness.is_some() { &args[..4] } else { &args };
    let (code, text) = command(db, witness, args).await;
    assert_eq!(code, Some(0), "{text}");
}

/// An instance whose database was put back to `old`.
async fn restored(db: &TestDb, instance: Instance, old: &crate::harness::Snapshot, dir: &Path) -> Instance {
    instance.stop().await;
    db.restore(old).await;
    let instance = Instance::start(db, dir).await;
    assert!(instance.store.quarantine().is_some());
    instance
}

async fn seeds_of(instance: &Instance, session_id: Uuid) -> Vec<SeedView> {
    instance.seeds.seeds_of_session(session_id).await.unwrap().seeds
}

#[tokio::test]
async fn a_recovery_reveals_live_and_next_seeds_whatever_their_counters_say_and_promotes_neither_i7_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let instance = Instance::start(&db, folder.path()).await;
    // Of the three, the backup has a live seed with a bet, one without, and a closed session.
    let (played, fresh, closed) = (instance.session().await, instance.session().await, instance.session().await);
    instance.dice(&played, "a").await;
    let round = instance.seeds.take_bet(played.session_id, &dice(played.commitment, "round", true)).await.unwrap();
    instance.seeds.close(closed.session_id, &closed.commitment).await.unwrap();
    instance.key("old").await;
    instance.stop().await;
    let old = db.snapshot().await;
    let instance = Instance::start(&db, folder.path()).await;
    // In the time that is lost, the next seed of the fresh session goes live and is revealed.
    instance.dice(&fresh, "b").await;
    let request = RotateRequest { commitment: fresh.commitment, client_seed: None };
    let rotated = instance.seeds.rotate(fresh.session_id, &request).await.unwrap().session;
    instance.dice(&rotated, "c").await;
    let request = RotateRequest { commitment: rotated.commitment, client_seed: None };
    instance.seeds.rotate(fresh.session_id, &request).await.unwrap();
    let instance = restored(&db, instance, &old, folder.path()).await;

    let (code, text) = command(&db, Some(folder.path()), &["recover"]).await;
    assert_eq!(code, Some(1), "{text}");
    for words in ["missing: writer", "2 open sessions", "1 pending bets", "1 open keys", "nothing was changed"] {
        assert!(text.contains(words), "it lacks {words:?}: {text}");
    }
    assert!(instance.store.quarantine().is_some());
    recover(&db, Some(folder.path())).await;
    instance.store.watch().await.unwrap();
    assert_eq!(instance.store.quarantine(), None);

    // Nothing is taken under what the backup had, and the answer shows where to go on.
    for (view, name) in [(&played, "d"), (&fresh, "e")] {
        let refused = instance.try_dice(view.session_id, view.commitment, name).await.unwrap_err();
        let SeedsError::CommitmentChanged { session } = refused else { panic!("{refused}") };
        assert_ne!(Some(session.commitment), view.next_commitment, "a next seed was promoted");
        assert!(session.pending.is_empty());
        let bet = instance.dice(&session, name).await;
        assert_eq!(bet.record["nonce"], 0);

        let seeds = seeds_of(&instance, view.session_id).await;
        for commitment in [view.commitment, view.next_commitment.unwrap()] {
            let seed = seeds.iter().find(|seed| seed.commitment == commitment).unwrap();
            assert_eq!((seed.status, seed.retired_by), ("revealed", Some("recovery")));
            assert!(seed.server_seed.is_some());
            let public = instance.seeds.commitment(&commitment).await.unwrap();
            assert_eq!(public.status, "revealed");
            assert!(public.server_seed.is_some());
        }
        let live = seeds.iter().find(|seed| seed.status == "live").unwrap();
        assert_eq!(live.client_seed_source, Some("generated"), "the server seed came after the text");
        assert_ne!(live.client_seed.as_ref(), Some(&view.client_seed));
        assert_eq!(seeds.iter().filter(|seed| seed.status == "next").count(), 1);
    }
    // The pending bet is void, and says why.
    let request = VoidRequest {
        commitment: played.commitment,
        nonce: round.record["nonce"].as_u64().unwrap(),
        reason: VoidReason::parse("other").unwrap(),
    };
    let void = instance.seeds.void(played.session_id, &request).await.unwrap_err();
    assert!(matches!(&void, SeedsError::VoidWithDifferentReason { reason } if reason == "recovery"), "{void}");
    // A closed session is left as it was.
    assert_eq!(seeds_of(&instance, closed.session_id).await.len(), 2);
    let changed = instance.try_dice(closed.session_id, closed.commitment, "f").await;
    assert!(matches!(changed, Err(SeedsError::SessionClosed)), "{changed:?}");
}

/// What a recovery did is honest: coverage finds nothing, and the bundles of bets before and after it fit.
#[tokio::test]
async fn a_recovery_leaves_coverage_and_bundles_sound_i7_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let instance = Instance::start(&db, folder.path()).await;
    let (view, unused) = (instance.session().await, instance.session().await);
    instance.dice(&view, "a").await;
    // A round that has shown a mine is void afterwards, as every pending bet is.
    let play = Play::new("mines", Some(&json!({ "mines": 24 }))).unwrap();
    let mines = BetRequest { game: GameRequest { play, conceal: true }, ..dice(view.commitment, "round", true) };
    instance.seeds.take_bet(view.session_id, &mines).await.unwrap();
    for index in 0..2 {
        let step = BoundedJson::new(json!("open"), JSON_BYTES_MAX).unwrap();
        let request = StepRequest { index, step, disclose: Some(Disclose::Tiles(vec![index as u8])) };
        let shown = instance.seeds.step(view.session_id, &view.commitment, 1, &request).await.unwrap();
        if shown.round.steps.last().unwrap().disclosed.as_ref().unwrap()["tiles"][0]["mine"] == json!(true) {
            break;
        }
    }
    instance.stop().await;
    let old = db.snapshot().await;
    let instance = Instance::start(&db, folder.path()).await;
    instance.dice(&view, "lost").await;
    let instance = restored(&db, instance, &old, folder.path()).await;
    recover(&db, Some(folder.path())).await;
    instance.store.watch().await.unwrap();
    let mut lives = Vec::new();
    for view in [&view, &unused] {
        let refused = instance.try_dice(view.session_id, view.commitment, "b").await.unwrap_err();
        let SeedsError::CommitmentChanged { session } = refused else { panic!("{refused}") };
        instance.dice(&session, "b").await;
        lives.push(session);
    }
    let history = History::new(Reader::from(&instance.store), ServiceSecret::new([7; 32]), HistorySettings::default());
    let mut wrong = Vec::new();
    let totals = history
        .coverage_of_all(|seen| {
            if let Seen::Wrong(finding) = seen {
                wrong.push(finding);
            }
        })
        .await
        .unwrap();
    assert_eq!((wrong, totals.recorded, totals.void), (vec![], 3, 1));
    let sound = async |commitment: &Commitment, nonce| {
        let bundle = history.bundle(commitment, nonce).await.unwrap().to_canonical().unwrap();
        let report = bundle::verify(bundle.as_bytes(), None).unwrap();
        assert_ne!(report.status, BundleStatus::Mismatch, "{report:#?}");
        report.status
    };
    assert_eq!(sound(&view.commitment, 0).await, BundleStatus::Matches);
    assert_eq!(sound(&view.commitment, 1).await, BundleStatus::Incomplete);
    for live in &lives {
        assert_eq!(sound(&live.commitment, 0).await, BundleStatus::Incomplete);
        let request = RotateRequest { commitment: live.commitment, client_seed: None };
        instance.seeds.rotate(live.session_id, &request).await.unwrap();
        assert_eq!(sound(&live.commitment, 0).await, BundleStatus::Matches);
    }
}

#[tokio::test]
async fn a_recovery_closes_every_key_and_refuses_those_that_began_before_it_i1_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let instance = Instance::start(&db, folder.path()).await;
    instance.key("k").await;
    instance.stop().await;
    let old = db.snapshot().await;
    let instance = Instance::start(&db, folder.path()).await;
    instance.ledger.spend(&spend("k", 1)).await.unwrap();
    let before = chrono::Utc::now();
    instance.key("lost").await;
    instance.ledger.spend(&spend("lost", 1)).await.unwrap();
    let instance = restored(&db, instance, &old, folder.path()).await;
    recover(&db, Some(folder.path())).await;
    instance.store.watch().await.unwrap();

    let refused = instance.ledger.spend(&spend("k", 1)).await.unwrap_err();
    assert!(matches!(refused, LedgerError::KeyExpired), "{refused}");
    let again = KeyRequest { redeem_from: Some(before), ..KeyRequest::new("lost".parse().unwrap()) };
    let refused = instance.ledger.register_key(&again).await.unwrap_err();
    assert!(matches!(refused, LedgerError::KeyPredatesRecovery), "{refused}");
    instance.key("new").await;
    instance.ledger.spend(&spend("new", 1)).await.unwrap();
}

/// The oracle is what players were told: no nonce is ever told twice with another bet, through three losses.
#[tokio::test(flavor = "multi_thread")]
async fn no_nonce_is_used_again_under_a_commitment_that_a_player_has_a_result_of_i3_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let mut instance = Instance::start(&db, folder.path()).await;
    let mut sessions = Vec::new();
    for _ in 0..6 {
        sessions.push(instance.session().await);
    }
    let mut told: BTreeMap<(String, u64), String> = BTreeMap::new();
    for loss in 0..3 {
        instance.stop().await;
        let old = db.snapshot().await;
        instance = Instance::start(&db, folder.path()).await;
        for round in 0..5 {
            for (player, view) in sessions.iter_mut().enumerate() {
                let name = format!("{loss}:{round}:{player}");
                let bet = instance.dice(view, &name).await;
                tell(&mut told, &bet, &name);
                if (round + player) % 3 == 0 {
                    let request = RotateRequest { commitment: view.commitment, client_seed: None };
                    *view = instance.seeds.rotate(view.session_id, &request).await.unwrap().session;
                }
            }
        }
        instance = restored(&db, instance, &old, folder.path()).await;
        for view in &sessions {
            assert!(is_quarantined(&instance.try_dice(view.session_id, view.commitment, "x").await));
        }
        recover(&db, Some(folder.path())).await;
        instance.store.watch().await.unwrap();
        for view in &mut sessions {
            // A player comes back with the last view that there was, lost or not.
            let refused = instance.try_dice(view.session_id, view.commitment, "back").await.unwrap_err();
            let SeedsError::CommitmentChanged { session } = refused else { panic!("{refused}") };
            *view = *session;
            let name = format!("{loss}:after");
            tell(&mut told, &instance.dice(view, &name).await, &name);
        }
    }
    // What is stored is sound: every seed that is not in use is revealed, and every bet follows from it.
    let (code, text) = command(&db, None, &["verify"]).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(" 0 mismatched, 0 corrupt"), "{text}");
    let unrevealed: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM fairledger.seeds WHERE retired_by = 'recovery' AND status <> 'revealed'",
    )
    .fetch_one(&mut db.owner().await)
    .await
    .unwrap();
    assert_eq!(unrevealed, 0);
}

fn tell(told: &mut BTreeMap<(String, u64), String>, bet: &BetAnswer, name: &str) {
    let place = (bet.record["commitment"].as_str().unwrap().to_owned(), bet.record["nonce"].as_u64().unwrap());
    if let Some(before) = told.insert(place.clone(), name.to_owned()) {
        panic!("{place:?} was told as {before} and as {name}");
    }
}

#[tokio::test]
async fn one_recovery_serves_every_instance_running_or_not_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let dir = |name: &str| folder.path().join(name);
    let loser = Instance::start(&db, &dir("a")).await;
    let view = loser.session().await;
    let (running, stopped) = (Instance::join(&db, &dir("b")).await, Instance::join(&db, &dir("c")).await);
    running.session().await;
    stopped.session().await;
    stopped.stop().await;
    let old = db.snapshot().await;
    loser.dice(&view, "a").await;
    let loser = restored(&db, loser, &old, &dir("a")).await;
    recover(&db, Some(&dir("a"))).await;

    // One in quarantine, one that never heard of a loss, one that was not there.
    loser.store.watch().await.unwrap();
    let stopped = Instance::start(&db, &dir("c")).await;
    for instance in [&loser, &running, &stopped] {
        let mut done = instance.seeds.create_session(&SessionRequest::default()).await;
        while matches!(done, Err(SeedsError::Db(DbError::Unavailable(_)))) {
            done = instance.seeds.create_session(&SessionRequest::default()).await;
        }
        let view = done.unwrap().view;
        instance.dice(&view, "b").await;
        assert_eq!((instance.store.quarantine(), instance.store.epoch()), (None, 1));
    }
    // None of them goes on where the old epoch stopped.
    let refused = running.try_dice(view.session_id, view.commitment, "c").await.unwrap_err();
    assert!(matches!(refused, SeedsError::CommitmentChanged { .. }), "{refused}");
}

#[tokio::test]
async fn a_loss_after_a_recovery_is_not_covered_by_it_nor_is_the_loss_of_a_recovery_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let instance = Instance::start(&db, folder.path()).await;
    let before = db.snapshot().await;
    let view = instance.session().await;
    let instance = restored(&db, instance, &before, folder.path()).await;
    recover(&db, Some(folder.path())).await;
    instance.stop().await;
    let between = db.snapshot().await;
    let instance = Instance::start(&db, folder.path()).await;
    instance.session().await;
    // To after the recovery, but before the instance followed it.
    let instance = restored(&db, instance, &between, folder.path()).await;
    recover(&db, Some(folder.path())).await;
    instance.store.watch().await.unwrap();
    assert_eq!((instance.store.quarantine(), instance.store.epoch()), (None, 2));
    instance.session().await;
    // To before both: the epoch that comes is later than any that was.
    let instance = restored(&db, instance, &before, folder.path()).await;
    recover(&db, Some(folder.path())).await;
    instance.store.watch().await.unwrap();
    assert_eq!((instance.store.quarantine(), instance.store.epoch()), (None, 3));
    let lost = instance.try_dice(view.session_id, view.commitment, "a").await.unwrap_err();
    assert!(matches!(lost, SeedsError::SessionNotFound), "{lost}");
}

#[tokio::test]
async fn a_transaction_that_a_recovery_overtakes_does_not_commit_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let instance = Instance::start(&db, folder.path()).await;
    let view = instance.session().await;
    let mut tx = instance.store.begin("test").await.unwrap();
    tx.lock_session(view.session_id).await.unwrap();
    recover(&db, None).await;
    assert!(matches!(tx.commit().await, Err(DbError::Conflict(_))));
    // And one without a fence hears of it.
    let store = Datastore::connect(&db.service_url, &PoolSettings::default()).await.unwrap();
    assert_eq!(store.epoch(), 0);
    store.watch().await.unwrap();
    assert_eq!(store.epoch(), 1);
}

/// Moved in the background, and by the command.
#[tokio::test]
async fn sessions_that_nobody_touches_are_moved_too() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let instance = Instance::start(&db, folder.path()).await;
    let mut views = Vec::new();
    for _ in 0..5 {
        views.push(instance.session().await);
    }
    recover(&db, None).await;
    instance.store.watch().await.unwrap();
    let mut recovered = 0;
    loop {
        let done = instance.seeds.maintain().await.unwrap();
        recovered += done.recovered;
        if !done.more {
            break;
        }
    }
    assert_eq!(recovered, 5);
    let args = ["recover", "--confirm", "--reason", "again", "--sound-database", "--move-sessions"];
    let (code, text) = command(&db, None, &args).await;
    assert!(code == Some(0) && text.contains("5 sessions were moved"), "{text}");
    instance.store.watch().await.unwrap();
    for view in views {
        let seeds = seeds_of(&instance, view.session_id).await;
        let statuses: Vec<_> = seeds.iter().map(|seed| seed.status).collect();
        assert_eq!(statuses, ["revealed", "revealed", "revealed", "revealed", "live", "next"]);
    }
}

#[tokio::test]
async fn an_applications_session_ends_its_seed_and_takes_another_i10() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let ttl = std::time::Duration::from_secs(3_600);
    let instance = Instance::start(&db, folder.path()).await;
    let store = PgSeedStore::new(instance.seeds.clone());
    let session_id = Uuid::new_v4();
    let new = || PutSession { session_id, server_seed: ServerSeed::generate(), client_seed: ClientSeed::generate() };
    let first = new();
    let commitment = first.server_seed.commitment();
    store.put(&first, ttl, None).await.unwrap();
    store.reserve_nonce(session_id, ttl, &commitment).await.unwrap();
    recover(&db, None).await;
    instance.store.watch().await.unwrap();
    let refused = store.reserve_nonce(session_id, ttl, &commitment).await.unwrap_err();
    let ended = matches!(
        refused,
        SeedStoreError::SeedEnded
            | SeedStoreError::CommitmentChanged
            | SeedStoreError::Store(SeedsError::CommitmentChanged { .. })
    );
    assert!(ended, "{refused}");
    assert_eq!(store.revealed(session_id).await.unwrap().len(), 1);
    let second = new();
    store.put(&second, ttl, Some(&commitment)).await.unwrap();
    assert_eq!(store.reserve_nonce(session_id, ttl, &second.server_seed.commitment()).await.unwrap(), 0);
}

#[tokio::test]
async fn a_recovery_is_kept_for_ever_with_what_was_found_and_commands_wait_for_it() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let instance = Instance::start(&db, folder.path()).await;
    let old = db.snapshot().await;
    instance.session().await;
    let instance = restored(&db, instance, &old, folder.path()).await;
    let (code, text) = command(&db, None, &["key", "add", "k"]).await;
    assert!(code == Some(1) && text.contains("in quarantine"), "{text}");
    assert_eq!(command(&db, None, &["recover", "--confirm"]).await.0, Some(2), "it wants a reason");
    recover(&db, Some(folder.path())).await;
    let (code, text) = command(&db, None, &["key", "add", "k"]).await;
    assert_eq!(code, Some(0), "{text}");
    let row = sqlx::query("SELECT reason, findings::text FROM fairledger_dispute.recoveries WHERE epoch = 1")
        .fetch_one(&mut db.connect_admin().await)
        .await
        .unwrap();
    assert_eq!(row.get::<String, _>(0), "a test restored it");
    let findings: Value = serde_json::from_str(&row.get::<String, _>(1)).unwrap();
    assert_eq!(findings["epochBefore"], 0);
    assert_eq!(findings["quarantines"][0]["instance"], instance.store.instance().unwrap());
    assert_eq!(findings["missing"].as_array().unwrap().len(), 1, "{findings}");
    let writers: BTreeSet<_> =
        findings["witness"]["writers"].as_array().unwrap().iter().map(|w| w["writer"].as_u64()).collect();
    assert_eq!(writers.len(), 4);
    // The service itself could not take it back.
    let error = sqlx::query("DELETE FROM fairledger.recoveries").execute(&mut db.connect(&db.service_url).await).await;
    assert!(error.unwrap_err().to_string().contains("permission denied"));
}

async fn recoveries(db: &TestDb) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM fairledger.recoveries").fetch_one(&mut db.owner().await).await.unwrap()
}

#[tokio::test]
async fn a_sound_database_is_recovered_only_when_told_so() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    let instance = Instance::start(&db, folder.path()).await;
    instance.session().await;
    let args = ["recover", "--confirm", "--reason", "by mistake"];
    for witness in [None, Some(folder.path())] {
        let (code, text) = command(&db, witness, &args).await;
        assert!(code == Some(1) && text.contains("nothing was changed") && text.contains("--sound-database"), "{text}");
    }
    assert_eq!(recoveries(&db).await, 0);
    instance.session().await;
    for reason in ["two\nlines", "a bell \u{7}", "  ", &"x".repeat(1_001)] {
        let (code, text) = command(&db, None, &["recover", "--confirm", "--sound-database", "--reason", reason]).await;
        assert!(code == Some(2) && text.contains("must have 1 to 1,000 characters"), "{text}");
    }
    recover(&db, None).await;
    assert_eq!(recoveries(&db).await, 1);
}

/// Both found the same, and both wait for the lock.
#[tokio::test]
async fn two_recoveries_at_once_open_one_epoch() {
    let db = TestDb::new().await;
    let store = fairledger::db::Datastore::connect(&db.owner_url, &PoolSettings::default()).await.unwrap();
    let mut held = store.begin("test").await.unwrap();
    held.lock_recovery().await.unwrap();
    let args = ["recover", "--confirm", "--reason", "two at once", "--sound-database"];
    let both = futures_util::future::join(command(&db, None, &args), command(&db, None, &args));
    let let_go = async {
        let waiting = "SELECT count(*) = 2 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        db.wait_until(waiting).await;
        held.rollback().await;
    };
    let ((one, other), ()) = futures_util::future::join(both, let_go).await;
    assert_eq!((one.0, other.0), (Some(0), Some(0)), "{one:?} {other:?}");
    let (opened, told) = if one.1.contains("recovery epoch 1 is open") { (one.1, other.1) } else { (other.1, one.1) };
    assert!(opened.contains("recovery epoch 1 is open"), "{opened}");
    assert!(told.contains("another recovery opened epoch 1 at 2"), "{told}");
    assert_eq!(recoveries(&db).await, 1);
}
