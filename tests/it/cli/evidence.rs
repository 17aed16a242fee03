//! `coverage`, `bundle`, `verify --bundle` and `forget-player`.

use sqlx::Executor as _;

use super::*;

/// A session of a player with a revealed seed (three dice and a void) and a live one; gives its view, and the view before.
async fn played(db: &TestDb, player_ref: &str) -> [Value; 2] {
    let key = fairledger::gfs::SigningKey::generate().to_hex();
    let service = Service::spawn(db, &[("FAIRLEDGER_SIGNING_KEY", key.as_str())], &[]);
    let caller = Caller::new(&service, &db.admin_token().await);
    let before = caller.post("/v1/sessions", json!({ "playerRef": player_ref })).await;
    for number in 0..3 {
        caller.dice(&before, &format!("dice:{number}")).await;
    }
    let path = format!("/v1/sessions/{}", id(&before));
    let commitment = &before["commitment"];
    let keno = json!({ "commitment": commitment, "betRef": "void", "game": "keno", "conceal": true });
    caller.post(&format!("{path}/bets"), keno).await;
    caller
        .post(&format!("{path}/voids"), json!({ "commitment": commitment, "nonce": 3, "reason": "a ball fell" }))
        .await;
    let settlement = json!({ "commitment": commitment, "nonce": 0, "payout": "2.50" });
    caller.post(&format!("{path}/settlements"), settlement).await;
    let after = caller.rotate(&before).await;
    [before, after]
}

#[tokio::test]
async fn coverage_of_all_lists_only_what_is_wrong() {
    let db = TestDb::new().await;
    let [session, _] = played(&db, "anna").await;
    let sound = done(on(&db, &["coverage"])).await.succeeded().out;
    let expected = "1 sessions, 2 seeds, 3 commitments; 4 nonces handed out: 3 recorded, 1 void, 0 pending; 0 checks failed, 0 noted, in ";
    assert!(sound.starts_with(expected), "{sound}");
    db.owner().await.execute("UPDATE fairledger.voids SET voided_at = '2001-01-01'").await.unwrap();
    let noted = done(on(&db, &["coverage"])).await.succeeded().out;
    assert!(noted.contains("; 0 checks failed, 1 noted, in ") && noted.lines().count() == 1, "{noted}");
    let noted = done(on(&db, &["coverage", "--notes"])).await.succeeded().out;
    assert!(noted.starts_with("noted, session ") && noted.contains(": Order: 1 bet has a step, an end"), "{noted}");
    let noted = done(on(&db, &["coverage", "--notes", "--json"])).await.succeeded().out;
    let noted: Value = serde_json::from_str(&noted).unwrap();
    assert_eq!((&noted["noted"], &noted["notes"][0]["check"]), (&json!(1), &json!("Order")), "{noted}");
    db.owner().await.execute("DELETE FROM fairledger.bets WHERE nonce = 1").await.unwrap();
    let wrong = done(on(&db, &["coverage"])).await;
    assert_eq!(wrong.code, Some(1), "{wrong:#?}");
    let line = format!(
        "session {}, seed 0, commitment {}: Missing: 1 nonce was handed out and has no bet: nonce 1.\n",
        id(&session),
        session["commitment"].as_str().unwrap()
    );
    assert!(wrong.out.starts_with(&line), "{wrong:#?}");
    let json: Value = serde_json::from_str(&done(on(&db, &["coverage", "--json"])).await.out).unwrap();
    assert_eq!((&json["wrong"], &json["seeds"], &json["recorded"]), (&json!(1), &json!(2), &json!(2)));
    assert_eq!(
        json["findings"],
        json!([{ "sessionId": id(&session), "seedNo": 0, "commitment": session["commitment"], "check": "Missing",
                 "detail": "1 nonce was handed out and has no bet: nonce 1." }])
    );
}

#[tokio::test]
async fn coverage_of_a_session_tells_everything() {
    let db = TestDb::new().await;
    let [session, _] = played(&db, "anna").await;
    let text = done(on(&db, &["coverage", "--session", id(&session)])).await.succeeded().out;
    for words in [
        "revealed by rotation\n  4 handed out: 3 recorded, 1 void, 0 pending, 0 missing\n  matches      Commitment  ",
        "live\n  0 handed out: 0 recorded, 0 void, 0 pending, 0 missing\n  not provable Commitment  ",
        "  matches      Next seed  ",
    ] {
        assert!(text.contains(words), "it lacks {words:?}: {text}");
    }
    db.owner().await.execute("DELETE FROM fairledger.bets WHERE nonce IN (1, 2)").await.unwrap();
    let wrong = done(on(&db, &["coverage", "--session", id(&session)])).await;
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.out.contains("2 missing\n  missing: 1 to 2\n"), "{}", wrong.out);
    let json = done(on(&db, &["coverage", "--json", "--session", id(&session)])).await;
    assert_eq!(json.code, Some(1));
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["seeds"][0]["missing"], json!([{ "from": 1, "to": 2 }]));
    let nobody = uuid::Uuid::now_v7().to_string();
    done(on(&db, &["coverage", "--session", &nobody])).await.refused(&["there is no session of that id"]);
}

#[tokio::test]
async fn a_bundle_is_checked_where_there_is_no_database() {
    let db = TestDb::new().await;
    let [session, _] = played(&db, "anna").await;
    let commitment = session["commitment"].as_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (file, receipt) = (at("bet.json"), at("session.json"));
    std::fs::write(&receipt, session.to_string()).unwrap();
    done(on(&db, &["bundle", commitment, "0", "--out", &file])).await.succeeded();
    done(on(&db, &["bundle", commitment, "0", "--out", &file])).await.refused(&["bet.json", "exists"]);
    let printed = done(on(&db, &["bundle", commitment, "0"])).await.succeeded().out;
    assert_eq!(printed.trim_end().len(), std::fs::read_to_string(&file).unwrap().trim_end().len());
    done(on(&db, &["bundle", commitment, "9"])).await.refused(&["there is no bet of that commitment and nonce"]);
    done(on(&db, &["bundle", &"0".repeat(64), "0"])).await.refused(&["there is no such commitment"]);

    // No database, no settings, no data folder.
    let offline = |arguments: &[&str]| {
        let mut command = program(arguments);
        command.current_dir(folder.path());
        command
    };
    let text = done(offline(&["verify", "--bundle", &file, "--receipt", &receipt])).await.succeeded().out;
    for words in [
        &format!("dice, nonce 0 under commitment {commitment}\n  matches      Commitment  ") as &str,
        "  matches      Receipt  ",
        "meta.stake                  Not there: that there is none is the operator's word.",
        "\nmatches: the result follows from the revealed seed, and everything fits\n",
    ] {
        assert!(text.contains(words), "{words:?}: {text}");
    }
    let sound = std::fs::read_to_string(&file).unwrap();
    let tampered = at("tampered.json");
    std::fs::write(&tampered, sound.replace("\"payout\":\"2.50\"", "\"payout\":\"2.5e0\"")).unwrap();
    let report = done(offline(&["verify", "--bundle", &tampered, "--json"])).await;
    assert_eq!(report.code, Some(1), "{report:#?}");
    let report: Value = serde_json::from_str(&report.out).unwrap();
    assert_eq!(report["status"], "mismatch");
    let failed: Vec<_> =
        report["checks"].as_array().unwrap().iter().filter(|check| check["state"] == "mismatch").collect();
    assert_eq!(failed.len(), 1, "{report:#}");
    assert_eq!(
        (&failed[0]["name"], &failed[0]["detail"]),
        (&json!("Money"), &json!("The payout is no decimal number."))
    );
    std::fs::write(&tampered, sound.replace("bundle/1", "bundle/2")).unwrap();
    done(offline(&["verify", "--bundle", &tampered])).await.refused(&["format: is not fairledger-bundle/1"]);
    done(offline(&["verify", "--bundle", &at("nowhere")])).await.refused(&["reading", "nowhere"]);
    assert_eq!(done(offline(&["verify", "--receipt", &receipt])).await.code, Some(2));
}

#[tokio::test]
async fn a_forgotten_player_is_found_by_session_only() {
    let db = TestDb::new().await;
    let [anna, _] = played(&db, "anna").await;
    let [bob, _] = played(&db, "bob").await;
    let everything = "SELECT md5(string_agg(t::text, '|' ORDER BY t::text)) FROM (SELECT to_jsonb(b) - 'player_ref' AS t FROM fairledger.bet_details b
                      UNION ALL SELECT to_jsonb(s) - 'player_ref' FROM fairledger.sessions s) t";
    let mut owner = db.owner().await;
    let before: String = sqlx::query_scalar(everything).fetch_one(&mut owner).await.unwrap();
    let asked = done(on(&db, &["forget-player", "anna"])).await;
    assert_eq!(
        (asked.code, asked.out.as_str()),
        (Some(1), "1 sessions have this playerRef; nothing was changed: say --yes to sever it from them for ever\n")
    );
    let as_service = {
        let mut command = on(&db, &["forget-player", "anna", "--yes"]);
        command.env("MIGRATE_DATABASE_URL", &db.service_url);
        done(command).await
    };
    as_service.refused(&["only the owner of the tables may sever a playerRef"]);
    let service = Service::spawn(&db, &[], &[]);
    let caller = Caller::new(&service, &db.admin_token().await);
    let found = async |player: &str| {
        let (_, sessions) = caller.call("GET", &format!("/v1/sessions?playerRef={player}"), None).await;
        let (_, records) = caller.call("GET", &format!("/v1/records?playerRef={player}"), None).await;
        [&sessions["sessions"], &records["records"]].map(|list| list.as_array().unwrap().len())
    };
    assert_eq!(found("anna").await, [1, 4]);

    let done_ = done(on(&db, &["forget-player", "anna", "--yes"])).await.succeeded();
    assert_eq!(done_.out, "severed the playerRef from 1 sessions; nothing else was changed\n");
    assert_eq!((found("anna").await, found("bob").await), ([0, 0], [1, 4]));
    let (_, records) = caller.call("GET", &format!("/v1/records?sessionId={}", id(&anna)), None).await;
    assert_eq!(records["records"].as_array().unwrap().len(), 4);
    let (status, view) = caller.call("GET", &format!("/v1/sessions/{}", id(&anna)), None).await;
    assert_eq!((status, view.get("playerRef"), id(&bob) == id(&anna)), (200, None, false));
    let after: String = sqlx::query_scalar(everything).fetch_one(&mut owner).await.unwrap();
    assert_eq!(after, before, "nothing but the playerRef changed");
    let again = done(on(&db, &["forget-player", "anna", "--yes"])).await.succeeded();
    assert_eq!(again.out, "no session has this playerRef\n");
    done(on(&db, &["coverage"])).await.succeeded();
}
