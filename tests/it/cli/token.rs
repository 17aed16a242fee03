//! `token create`, `list` and `revoke`, and what a running service makes of them.

use std::time::{Duration, Instant};

use super::*;

async fn create(db: &TestDb, args: &[&str]) -> String {
    let args = [&["token", "create"], args].concat();
    let out = done(on(db, &args)).await.succeeded().out;
    assert_eq!(out.lines().count(), 1, "the token alone, for scripts: {out}");
    out.trim().to_owned()
}

#[tokio::test]
async fn a_token_does_what_its_scopes_say_until_it_is_revoked() {
    let db = TestDb::new().await;
    let service = Service::spawn(&db, &[], &[]);
    let engine = create(&db, &["--scope", "engine,relay", "--label", "the tables", "--expires", "90d"]).await;
    let relay = create(&db, &["--scope", "relay"]).await;
    let status = async |token: &str| Caller::new(&service, token).call("POST", "/v1/sessions", Some(json!({}))).await.0;
    assert_eq!(status(&engine).await, 201);
    assert_eq!(status(&relay).await, 403);

    let list = done(on(&db, &["token", "list"])).await.succeeded().out;
    assert!(!list.contains("flt_"), "no token is shown again: {list}");
    let line = list.lines().find(|line| line.contains("the tables")).expect("the label").to_owned();
    assert!(line.contains("relay,engine") && line.contains("expires "), "{line}");
    let id = line.split_whitespace().next().unwrap();
    done(on(&db, &["token", "revoke", id])).await.succeeded();
    let list = done(on(&db, &["token", "list"])).await.succeeded().out;
    assert!(list.lines().any(|line| line.starts_with(id) && line.contains("revoked ")), "{list}");
    let revoked = Instant::now();
    while status(&engine).await != 401 {
        assert!(revoked.elapsed() < Duration::from_secs(10), "it works on");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_token_ends_at_its_expiry() {
    let db = TestDb::new().await;
    let service = Service::spawn(&db, &[], &[]);
    let token = create(&db, &["--scope", "admin", "--expires", "1ms"]).await;
    let (status, answer) = Caller::new(&service, &token).call("POST", "/v1/sessions", Some(json!({}))).await;
    assert_eq!((status, &answer["code"]), (401, &json!("unauthenticated")));
    let list = done(on(&db, &["token", "list"])).await.succeeded().out;
    assert!(list.contains("expired "), "{list}");
}

#[tokio::test]
async fn wrong_use_is_told_and_makes_nothing() {
    let db = TestDb::new().await;
    for args in [
        &["--scope", "root"][..],
        &["--scope", ""],
        &[],
        &["--scope", "admin", "--expires", "0s"],
        &["--scope", "admin", "--expires", "soon"],
        &["--scope", "admin", "--label", ""],
    ] {
        let done = done(on(&db, &[&["token", "create"], args].concat())).await;
        assert_eq!(done.code, Some(2), "{done:#?}");
    }
    done(on(&db, &["token", "revoke", "abcdefghijkl"])).await.refused(&["no token has the id \"abcdefghijkl\""]);
    assert_eq!(done(on(&db, &["token", "list"])).await.succeeded().out, "");
}
