//! `verify`: what it counts, and that it finds what was planted.

use sqlx::Executor as _;

use super::*;

async fn verify(db: &TestDb) -> (Done, Value) {
    let done = done(on(db, &["verify", "--json"])).await;
    let report = serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:#?}"));
    (done, report)
}

/// A session with a revealed seed that has each kind of end, and bets under the live one.
async fn history(db: &TestDb) -> Value {
    let service = Service::spawn(db, &[], &[]);
    let caller = Caller::new(&service, &db.admin_token().await);
    let session = caller.session().await;
    let path = format!("/v1/sessions/{}", id(&session));
    let commitment = &session["commitment"];
    for number in 0..5 {
        caller.dice(&session, &format!("dice:{number}")).await;
    }
    let mines = json!({ "commitment": commitment, "betRef": "mines", "game": "mines", "conceal": true });
    let round = caller.post(&format!("{path}/bets"), mines).await;
    let close = json!({ "outcome": "cashout" });
    caller
        .post(&format!("{path}/rounds/{}/{}/close", commitment.as_str().unwrap(), round["record"]["nonce"]), close)
        .await;
    for (bet_ref, end) in [("custom", true), ("void", false)] {
        let reserve = json!({ "commitment": commitment, "betRef": bet_ref, "game": "x-darts", "floats": 9,
            "rules": { "id": "darts", "sha256": "ab".repeat(32) } });
        let nonce = caller.post(&format!("{path}/nonces"), reserve).await["nonce"].clone();
        if end {
            let record = json!({ "commitment": commitment, "nonce": nonce, "result": { "score": 180 } });
            caller.post(&format!("{path}/records"), record).await;
        } else {
            let void = json!({ "commitment": commitment, "nonce": nonce, "reason": "a dart fell" });
            caller.post(&format!("{path}/voids"), void).await;
        }
    }
    let session = caller.rotate(&session).await;
    caller.dice(&session, "live").await;
    let keno = json!({ "commitment": session["commitment"], "betRef": "open", "game": "keno", "conceal": true });
    caller.post(&format!("{path}/bets"), keno).await;
    session
}

#[tokio::test]
async fn every_record_is_counted_for_what_it_is() {
    let db = TestDb::new().await;
    assert_eq!(verify(&db).await.1["verified"], 0);
    history(&db).await;
    let (done, mut report) = verify(&db).await;
    done.succeeded();
    let spreads = ["distributions", "voided"].map(|name| report.as_object_mut().unwrap().remove(name).unwrap());
    assert_eq!(spreads[0][0], json!({ "game": "dice", "params": {}, "sample": 5, "test": null, "unlikely": false }));
    assert_eq!(spreads[1][0]["game"], "floats");
    let expected = json!({ "verified": 6, "custom": 1, "void": 1, "notRevealed": 2, "unsigned": 8,
        "mismatched": 0, "corrupt": 0, "findings": [], "signingKeyKnown": false });
    assert_eq!(report, expected);
    let text = self::done(on(&db, &["verify"])).await.succeeded().out;
    assert!(
        text.starts_with("6 verified, 1 of outside games checked, 2 not revealed yet, 1 void, 0 mismatched"),
        "{text}"
    );
}

#[tokio::test]
async fn a_planted_mismatch_is_named_with_its_first_difference() {
    let db = TestDb::new().await;
    history(&db).await;
    // Results of dice have two places at the most.
    let plant = "UPDATE fairledger.bets SET result = '0.125' WHERE bet_ref = 'dice:3'";
    db.owner().await.execute(plant).await.unwrap();
    let (done, report) = verify(&db).await;
    assert_eq!(done.code, Some(1));
    assert_eq!((&report["verified"], &report["mismatched"], &report["corrupt"]), (&json!(5), &json!(1), &json!(0)));
    let finding = &report["findings"][0];
    assert_eq!(
        (&finding["check"], &finding["nonce"], &finding["bet"]["betRef"]),
        (&json!("Outcome"), &json!(3), &json!("dice:3"))
    );
    let detail = finding["detail"].as_str().unwrap();
    assert!(detail.starts_with("result: recorded 0.125, calculated "), "{detail}");
    let text = self::done(on(&db, &["verify"])).await;
    assert_eq!(text.code, Some(1));
    assert!(text.out.contains("nonce 3 (dice \"dice:3\""), "{}", text.out);
}

#[tokio::test]
async fn what_no_seed_proves_is_checked_as_far_as_it_can_be() {
    let db = TestDb::new().await;
    history(&db).await;
    for (plant, check) in [
        ("UPDATE fairledger.outcomes SET cursor = 7 WHERE round_outcome IS NULL", "Cursor"),
        ("UPDATE fairledger.bets SET cursor = 7 WHERE bet_ref = 'dice:0'", "Cursor"),
    ] {
        let mut owner = db.owner().await;
        owner.execute(plant).await.unwrap();
        let (done, report) = verify(&db).await;
        assert_eq!(done.code, Some(1), "{plant}");
        assert!(report["findings"].as_array().unwrap().iter().any(|finding| finding["check"] == check), "{report}");
    }
}

/// What was shown on the way is part of the result, and leads to the end.
#[tokio::test]
async fn steps_that_the_result_contradicts_are_named() {
    let db = TestDb::new().await;
    let service = Service::spawn(&db, &[], &[]);
    let caller = Caller::new(&service, &db.admin_token().await);
    let session = caller.session().await;
    let path = format!("/v1/sessions/{}", id(&session));
    let commitment = session["commitment"].as_str().unwrap();
    let hilo = json!({ "commitment": commitment, "betRef": "hilo", "game": "hilo", "conceal": true });
    caller.post(&format!("{path}/bets"), hilo).await;
    let round = format!("{path}/rounds/{commitment}/0");
    for index in 0..2 {
        let step = json!({ "index": index, "step": "deal", "disclose": { "cards": 1 } });
        caller.post(&format!("{round}/steps"), step).await;
    }
    caller.post(&format!("{round}/close"), json!({ "outcome": "lost" })).await;
    let mut owner = db.owner().await;
    owner.execute("CREATE TABLE kept AS SELECT * FROM fairledger.steps").await.unwrap();
    // The seed is live: a result that is there is enough.
    for revealed in [false, true] {
        if revealed {
            caller.rotate(&session).await;
        }
        verify(&db).await.0.succeeded();
        for (plant, check) in [
            ("UPDATE fairledger.steps SET disclosed = '{\"cards\":[\"X\"]}' WHERE step_index = 1", "Disclosed"),
            ("UPDATE fairledger.steps SET disclose = '{\"cards\":2}' WHERE step_index = 1", "Steps"),
            ("DELETE FROM fairledger.steps WHERE step_index = 0", "Row"),
        ] {
            owner.execute(plant).await.unwrap();
            let (done, report) = verify(&db).await;
            assert_eq!((done.code, &report["findings"][0]["check"]), (Some(1), &json!(check)), "{plant}: {report}");
            let corrupt = u8::from(check == "Row");
            assert_eq!(
                (&report["mismatched"], &report["corrupt"]),
                (&json!(1 - corrupt), &json!(corrupt)),
                "{plant}: {report}"
            );
            owner.execute("DELETE FROM fairledger.steps").await.unwrap();
            owner.execute("INSERT INTO fairledger.steps SELECT * FROM kept").await.unwrap();
        }
    }
    // A result where only bets that were played at once have theirs hides no steps.
    for forged in [
        "ALTER TABLE fairledger.bets DROP CONSTRAINT bets_result_when_played",
        "UPDATE fairledger.bets b SET result = o.result, cursor = o.cursor FROM fairledger.outcomes o",
        "UPDATE fairledger.steps SET disclosed = '{\"cards\":[\"X\"]}' WHERE step_index = 1",
    ] {
        owner.execute(forged).await.unwrap();
    }
    let (done, report) = verify(&db).await;
    assert_eq!((done.code, &report["findings"][0]["check"]), (Some(1), &json!("Disclosed")), "{report}");
}

#[tokio::test]
async fn a_corrupt_row_hides_no_other_one_i7() {
    let db = TestDb::new().await;
    history(&db).await;
    let mut owner = db.owner().await;
    owner.execute("UPDATE fairledger.bets SET params = '[]' WHERE bet_ref = 'dice:1'").await.unwrap();
    owner.execute("UPDATE fairledger.bets SET result = '0.125' WHERE bet_ref = 'dice:4'").await.unwrap();
    let (done, report) = verify(&db).await;
    assert_eq!(done.code, Some(1));
    assert_eq!((&report["verified"], &report["mismatched"], &report["corrupt"]), (&json!(4), &json!(1), &json!(1)));
    let corrupt = &report["findings"][0];
    assert_eq!((&corrupt["check"], &corrupt["nonce"]), (&json!("Row"), &json!(1)));
    assert!(corrupt["detail"].as_str().unwrap().contains("params is not an object"), "{corrupt}");
}

#[tokio::test]
async fn a_bet_without_its_seed_is_corrupt_and_hides_no_other_one_i7() {
    let db = TestDb::new().await;
    history(&db).await;
    let mut owner = db.owner().await;
    owner
        .execute(
            "ALTER TABLE fairledger.bets DROP CONSTRAINT bets_pkey CASCADE;
             UPDATE fairledger.bets SET seed_no = 77 WHERE bet_ref IN ('dice:2', 'dice:4')",
        )
        .await
        .unwrap();
    let (done, report) = verify(&db).await;
    assert_eq!(done.code, Some(1));
    assert_eq!((&report["verified"], &report["mismatched"], &report["corrupt"]), (&json!(4), &json!(0), &json!(2)));
    assert_eq!((&report["findings"][0]["check"], &report["findings"][0]["seedNo"]), (&json!("Row"), &json!(77)));
}

/// Rows that no constraint of ours would let in: each is named at its place, and ends no look at another.
#[tokio::test]
async fn what_no_bet_can_be_is_corrupt_and_hides_no_other_one_i7() {
    let db = TestDb::new().await;
    history(&db).await;
    let mut owner = db.owner().await;
    owner
        .execute(
            "ALTER TABLE fairledger.bets DROP CONSTRAINT bets_times_range, DROP CONSTRAINT bets_nonce_range;
             UPDATE fairledger.bets SET taken_at = 'infinity', result = '0.125' WHERE bet_ref = 'dice:1';
             UPDATE fairledger.bets SET taken_at = '-infinity', result = '0.125' WHERE bet_ref = 'dice:2';
             UPDATE fairledger.bets SET taken_at = '20000-01-01', result = '0.125' WHERE bet_ref = 'dice:3';
             UPDATE fairledger.bets SET nonce = -7 WHERE bet_ref = 'dice:4'",
        )
        .await
        .unwrap();
    let (done, report) = verify(&db).await;
    assert_eq!(done.code, Some(1));
    assert_eq!((&report["verified"], &report["corrupt"]), (&json!(2), &json!(4)), "{report}");
    let found: Vec<_> =
        report["findings"].as_array().unwrap().iter().map(|finding| finding["nonce"].as_i64()).collect();
    assert_eq!(found, [Some(-7), Some(1), Some(2), Some(3)]);
    let texts = ["No bet has a nonce below 0.", "outside the years 1970 to 9999"];
    for (finding, text) in report["findings"].as_array().unwrap().iter().zip([texts[0], texts[1], texts[1], texts[1]]) {
        assert_eq!(finding["check"], "Row");
        assert!(finding["detail"].as_str().unwrap().contains(text), "{finding}");
    }
    // Nor does one end an export in silence.
    let export = self::done(on(&db, &["export", "--from", "1970-01-01T00:00:00Z"])).await;
    assert!(export.out.contains("\"type\":\"trailer\"") || export.out.contains("\"type\":\"failed\""), "{export:#?}");
}

/// A forged result breaks its signature too: what is told first is the result.
#[tokio::test]
async fn of_a_signed_record_the_result_is_told_before_the_signature_and_unsigned_ones_are_counted() {
    let db = TestDb::new().await;
    let key = fairledger::gfs::SigningKey::generate().to_hex();
    let service = Service::spawn(&db, &[("FAIRLEDGER_SIGNING_KEY", key.as_str())], &[]);
    let caller = Caller::new(&service, &db.admin_token().await);
    let session = caller.session().await;
    for number in 0..3 {
        caller.dice(&session, &format!("dice:{number}")).await;
    }
    caller.rotate(&session).await;
    let mut owner = db.owner().await;
    owner.execute("UPDATE fairledger.bets SET result = '0.125' WHERE bet_ref = 'dice:1'").await.unwrap();
    owner
        .execute("UPDATE fairledger.bets SET signature = NULL, signing_key_no = NULL WHERE bet_ref = 'dice:2'")
        .await
        .unwrap();
    let (_, report) = verify(&db).await;
    assert_eq!((&report["verified"], &report["mismatched"], &report["unsigned"]), (&json!(2), &json!(1), &json!(1)));
    assert_eq!(report["findings"][0]["check"], "Outcome", "{report}");
    let text = done(on(&db, &["verify"])).await.out;
    assert!(text.contains("1 results carry no signature, though a signing key has been in use"), "{text}");
}

#[tokio::test]
async fn a_period_that_can_have_no_bet_is_refused() {
    let db = TestDb::new().await;
    for (from, to, reason) in [
        ("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z", "--from must be before --to"),
        ("0000-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "1970 to 9999"),
    ] {
        done(on(&db, &["verify", "--from", from, "--to", to])).await.refused(&[reason]);
    }
}

#[tokio::test]
async fn filters_leave_only_what_they_name() {
    let db = TestDb::new().await;
    let session = history(&db).await;
    let other = history(&db).await;
    let live = session["commitment"].as_str().unwrap();
    let (first, both) = (id(&session), id(&other));
    let now = chrono::Utc::now().to_rfc3339();
    for (args, verified, others) in [
        (vec!["--session", first], 6, 4),
        (vec!["--session", both, "--game", "dice"], 5, 1),
        (vec!["--commitment", live], 0, 2),
        (vec!["--commitment", live, "--game", "keno"], 0, 1),
        (vec!["--game", "mines"], 2, 0),
        (vec!["--game", "x-darts"], 0, 4),
        (vec!["--game", "nothing"], 0, 0),
        (vec!["--to", &now], 12, 8),
        (vec!["--from", &now], 0, 0),
        (vec!["--session", first, "--from", &now], 0, 0),
    ] {
        let args = [&["verify", "--json"], &args[..]].concat();
        let report: Value = serde_json::from_str(&done(on(&db, &args)).await.succeeded().out).unwrap();
        let rest = ["custom", "void", "notRevealed"].map(|name| report[name].as_u64().unwrap()).iter().sum::<u64>();
        assert_eq!((report["verified"].as_u64(), rest), (Some(verified), others), "{args:?}: {report}");
    }
    sqlx::query("UPDATE fairledger.sessions SET player_ref = 'anna'").execute(&mut db.owner().await).await.unwrap();
    let report = done(on(&db, &["verify", "--json", "--player", "anna"])).await.succeeded().out;
    assert!(report.starts_with(r#"{"verified":12,"notRevealed":4,"void":2,"custom":2,"#), "{report}");
}

/// More bets than one piece holds, some of them in one instant, with statistics of a part of them and with none.
#[tokio::test]
async fn each_bet_is_checked_once_however_history_is_cut() {
    const MORE: u64 = 45_000;
    let db = TestDb::new().await;
    let session = history(&db).await;
    let copy = |first: u64, time: &str| {
        format!(
            "INSERT INTO fairledger.bets (session_id, seed_no, nonce, bet_ref, kind, game, params, taken_at, result, cursor)
             SELECT session_id, seed_no, number, 'n' || number, kind, game, params, {time}, result, cursor
             FROM fairledger.bets, generate_series({first}, {first} + {MORE} / 2 - 1) AS number WHERE bet_ref = 'live'"
        )
    };
    let mut owner = db.owner().await;
    owner
        .execute(sqlx::AssertSqlSafe(copy(1_000, "taken_at - interval '1 hour' + number * interval '1 microsecond'")))
        .await
        .unwrap();
    let check = async |args: &[&str]| {
        let mut command = on(&db, &[&["verify", "--json"], args].concat());
        // Fewer connections than a check needs are made to be enough.
        command.env("FAIRLEDGER_POOL_SIZE", "1");
        serde_json::from_str::<Value>(&done(command).await.succeeded().out).unwrap()
    };
    assert_eq!(check(&[]).await["notRevealed"], MORE / 2 + 2);
    owner.execute("ANALYZE fairledger.bets").await.unwrap();
    owner.execute(sqlx::AssertSqlSafe(copy(100_000, "taken_at + interval '1 hour'"))).await.unwrap();
    let live = session["commitment"].as_str().unwrap();
    for args in [&[][..], &["--session", id(&session)], &["--commitment", live]] {
        let report = check(args).await;
        assert_eq!(report["notRevealed"], MORE + 2, "{args:?}: {report}");
    }
    assert_eq!(check(&["--game", "dice"]).await["notRevealed"], MORE + 1);
    let now = chrono::Utc::now().to_rfc3339();
    assert_eq!(check(&["--game", "dice", "--from", &now]).await["notRevealed"], MORE / 2);
}

#[tokio::test]
async fn verifying_nobody_is_an_error() {
    let db = TestDb::new().await;
    let (session, commitment) = (uuid::Uuid::nil().to_string(), "0".repeat(64));
    for args in [["--session", &session], ["--player", "nobody"], ["--commitment", &commitment]] {
        let done = done(on(&db, &[&["verify"], &args[..]].concat())).await;
        assert_eq!((done.code, done.out.as_str()), (Some(1), ""), "{args:?}: {done:#?}");
    }
    let both = done(on(&db, &["verify", "--player", "a", "--session", &session])).await;
    assert_eq!(both.code, Some(2));
}

/// Every record verifies, and what was voided is what the house would have lost.
#[tokio::test]
async fn a_selection_by_voids_is_told_as_unlikely() {
    let db = TestDb::new().await;
    let service = Service::spawn(&db, &[], &[]);
    let caller = Caller::new(&service, &db.admin_token().await);
    let session = caller.session().await;
    for number in 0..120 {
        let bet = json!({ "commitment": session["commitment"], "betRef": format!("b{number}"), "game": "wheel", "params": { "segments": 2 } });
        caller.post(&format!("/v1/sessions/{}/bets", id(&session)), bet).await;
    }
    caller.rotate(&session).await;
    let (_, honest) = verify(&db).await;
    assert_eq!((&honest["verified"], &honest["distributions"][0]["unlikely"]), (&json!(120), &json!(false)));
    db.owner()
        .await
        .execute(
            "INSERT INTO fairledger.voids (session_id, seed_no, nonce, reason, taken_at, voided_at)
             SELECT session_id, seed_no, nonce, 'engine fault', taken_at, taken_at FROM fairledger.bets WHERE result::text = '1';
             UPDATE fairledger.bets SET kind = 'round', result = NULL, cursor = NULL, signature = NULL, signing_key_no = NULL
             WHERE result::text = '1'",
        )
        .await
        .unwrap();
    let (done, report) = verify(&db).await;
    done.succeeded();
    for (spread, count) in [("distributions", &report["verified"]), ("voided", &report["void"])] {
        let found = &report[spread][0];
        assert_eq!(
            (&found["game"], &found["sample"], &found["unlikely"]),
            (&json!("wheel"), count, &json!(true)),
            "{report}"
        );
    }
    assert!(self::done(on(&db, &["verify"])).await.out.contains("UNLIKELY by chance"));
}
