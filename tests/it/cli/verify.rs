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
    let (done, report) = verify(&db).await;
    done.succeeded();
    let expected = json!({ "verified": 6, "custom": 1, "void": 1, "notRevealed": 2, "mismatched": 0, "corrupt": 0, "findings": [] });
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

/// A page costs the same at any depth only if it follows the index and stops. A view with a volatile function, for one, would be read
/// to its end and sorted for each page.
#[tokio::test]
async fn pages_follow_the_index_of_bets_and_stop_i12() {
    let db = TestDb::new().await;
    let mut owner = db.owner().await;
    // The table is small: without these the planner would rightly sort it.
    for off in ["seqscan", "bitmapscan", "sort", "hashjoin", "mergejoin"] {
        owner.execute(sqlx::AssertSqlSafe(format!("SET enable_{off} = off"))).await.unwrap();
    }
    let page = "EXPLAIN SELECT * FROM fairledger.bet_details WHERE (session_id, seed_no, nonce) > ('80000000-0000-0000-0000-000000000000', 0, 3)
                ORDER BY session_id, seed_no, nonce LIMIT 1000";
    let plan = sqlx::query_scalar::<_, String>(page).fetch_all(&mut owner).await.unwrap().join("\n");
    assert!(plan.contains("using bets_pkey on bets") && !plan.contains("Sort"), "{plan}");
}
