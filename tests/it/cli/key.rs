//! `key add`, `list`, `close`, and `sweep --once`.

use super::*;

#[tokio::test]
async fn keys_are_registered_listed_closed_and_swept() {
    let db = TestDb::new().await;
    let run = async |args: &[&str]| done(on(&db, args)).await;
    let added = run(&["key", "add", "mon", "tue", "--from", "2030-01-07T00:00:00Z"]).await.succeeded().out;
    assert!(added.lines().count() == 2 && added.lines().all(|line| line.ends_with("  registered")), "{added}");
    assert!(added.contains("2030-01-08T00:00:00.000000Z to 2030-01-09T06:00:00.000000Z"), "{added}");
    let again = run(&["key", "add", "mon", "tue", "--from", "2030-01-07T00:00:00Z"]).await.succeeded().out;
    assert!(again.lines().all(|line| line.ends_with("  is registered already")), "{again}");
    run(&["key", "add", "mon", "--until", "2031-01-01T00:00:00Z"]).await.refused(&["another window"]);
    run(&["key", "add", "a", "b", "--until", "2031-01-01T00:00:00Z"]).await.refused(&["--until is for one key"]);
    run(&["key", "add", "old", "--from", "2020-01-01T00:00:00Z"]).await.succeeded();
    run(&["key", "close", "mon"]).await.succeeded();
    assert!(run(&["key", "close", "mon"]).await.succeeded().out.contains("was closed before"));
    run(&["key", "close", "none"]).await.refused(&["there is no key of that keyId"]);

    // Any transaction on the server may be in the way for a while, those of other tests too.
    let mut swept = String::new();
    for _ in 0..20 {
        swept += &run(&["sweep", "--once"]).await.succeeded().out;
        if swept.contains("old  spends forgotten") {
            break;
        }
    }
    assert!(swept.contains("old  swept") && swept.contains("old  spends forgotten"), "{swept}");
    assert_eq!(run(&["sweep", "--once"]).await.succeeded().out, "nothing to sweep\n");
    let list = run(&["key", "list"]).await.succeeded().out;
    let states: Vec<_> =
        list.lines().map(|line| (line.split("  ").next().unwrap(), line.rsplit("  ").next().unwrap())).collect();
    assert_eq!(states, [("old", "swept"), ("mon", "closed"), ("tue", "to come")]);
    assert_eq!(run(&["key", "add", "a b"]).await.code, Some(2), "wrong use");
}
