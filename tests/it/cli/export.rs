//! `export`: a file that has its name only when it is whole.

use super::*;

async fn history(db: &TestDb) {
    let service = Service::spawn(db, &[], &[]);
    let caller = Caller::new(&service, &db.admin_token().await);
    for name in ["a", "b"] {
        let session = caller.session().await;
        for number in 0..5 {
            caller.dice(&session, &format!("{name}:{number}")).await;
        }
        caller.rotate(&session).await;
    }
}

#[tokio::test]
async fn a_file_is_written_and_gone_on_with() {
    let db = TestDb::new().await;
    history(&db).await;
    let folder = tempfile::tempdir().unwrap();
    let (name, part) = (folder.path().join("all.ndjson"), folder.path().join("all.ndjson.part"));
    let path = name.to_str().unwrap();
    let first = done(on(&db, &["export", "--out", path])).await.succeeded();
    assert!(first.out.is_empty() && first.err.contains("10 bets in "), "{first:#?}");
    let whole = std::fs::read_to_string(&name).unwrap();
    assert_eq!(whole.lines().count(), 12);
    assert!(!part.exists());
    done(on(&db, &["export", "--out", path])).await.refused(&["is there already"]);

    // Broken off within the sixth record.
    let cut = whole.match_indices('\n').nth(5).unwrap().0 + 30;
    std::fs::rename(&name, &part).unwrap();
    std::fs::write(&part, &whole[..cut]).unwrap();
    done(on(&db, &["export", "--out", path])).await.refused(&["--resume"]);
    done(on(&db, &["export", "--out", path, "--resume", "--game", "dice"])).await.refused(&["other filters"]);
    done(on(&db, &["export", "--out", path, "--resume"])).await.succeeded();
    let resumed = std::fs::read_to_string(&name).unwrap();
    let records = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with("{\"type\":\"record\"")).map(str::to_owned).collect()
    };
    assert_eq!(records(&resumed), records(&whole));
    let trailer: Value = serde_json::from_str(resumed.lines().last().unwrap()).unwrap();
    assert_eq!((&trailer["records"], &trailer["resumed"]), (&json!(10), &json!(1)));

    // Whole, but without its name: a kill came between the two.
    std::fs::rename(&name, &part).unwrap();
    done(on(&db, &["export", "--out", path, "--resume"])).await.succeeded();
    assert_eq!(std::fs::read_to_string(&name).unwrap(), resumed);
}

#[tokio::test]
async fn standard_output_gets_it_where_no_file_is_named() {
    let db = TestDb::new().await;
    history(&db).await;
    for args in [
        &["export", "--format", "csv", "--bet-ref", "a:1"][..],
        &["export", "--format", "csv", "--bet-ref", "a:1", "--out", "-"],
    ] {
        let all = done(on(&db, args)).await.succeeded();
        assert_eq!(all.out.lines().count(), 4, "{}", all.out);
        assert!(all.out.starts_with("type,") && all.out.contains("\r\nrecord,"));
    }
    done(on(&db, &["export", "--resume"])).await;
    let wrong = done(on(&db, &["export", "--nonce", "1"])).await;
    assert_eq!(wrong.code, Some(2), "{wrong:#?}");
    let wrong = done(on(&db, &["export", "--format", "xml"])).await;
    assert_eq!(wrong.code, Some(2), "{wrong:#?}");
    done(on(&db, &["export", "--from", "2030-01-02T00:00:00Z", "--to", "2030-01-01T00:00:00Z"]))
        .await
        .refused(&["to: must not be earlier"]);
}
