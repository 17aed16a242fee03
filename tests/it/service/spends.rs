//! One token, two processes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::Barrier;
use uuid::Uuid;

use crate::harness::{Caller, Service, TestDb};

const CALLERS: usize = 200;

fn spend(nonce: &str) -> Value {
    json!({"keyId": "k", "nonce": nonce, "spendId": Uuid::new_v4()})
}

async fn two_services() -> (TestDb, [Service; 2], [Caller; 2]) {
    let db = TestDb::new().await;
    let token = db.admin_token().await;
    let often = [("FAIRLEDGER_SWEEP_INTERVAL", "100ms")];
    let services = [Service::spawn(&db, &often, &[]), Service::spawn(&db, &often, &[])];
    let callers = [Caller::new(&services[0], &token), Caller::new(&services[1], &token)];
    (db, services, callers)
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_one_token_spent_by_200_callers_over_two_processes_is_fresh_once() {
    let (_db, services, callers) = two_services().await;
    callers[0].call("PUT", "/v1/keys/k", Some(json!({}))).await;
    let barrier = Arc::new(Barrier::new(CALLERS));
    let nonce = "5a".repeat(32);
    let tasks = (0..CALLERS).map(|number| {
        let (caller, barrier, body) = (callers[number % 2].clone(), Arc::clone(&barrier), spend(&nonce));
        tokio::spawn(async move {
            barrier.wait().await;
            let (status, answer) = caller.call("POST", "/v1/spends", Some(body.clone())).await;
            (status, answer, body)
        })
    });
    let answers: Vec<_> = futures_util::future::join_all(tasks).await.into_iter().map(Result::unwrap).collect();
    let fresh: Vec<_> = answers.iter().filter(|(status, _, _)| *status == 201).collect();
    let refused =
        answers.iter().filter(|(status, answer, _)| *status == 409 && answer["code"] == "already_spent").count();
    assert_eq!((fresh.len(), refused), (1, CALLERS - 1), "{answers:?}");
    for repeat in 0..5 {
        let (status, answer) = callers[repeat % 2].call("POST", "/v1/spends", Some(fresh[0].2.clone())).await;
        assert_eq!((status, &answer["replayed"]), (200, &json!(true)), "{answer}");
        let (status, answer) = callers[repeat % 2].call("POST", "/v1/spends", Some(spend(&nonce))).await;
        assert_eq!((status, &answer["code"]), (409, &json!("already_spent")), "{answer}");
    }
    // I13: what the processes printed tells of none of it.
    for service in &services {
        assert!(!service.logs().contains(&nonce) && !service.logs().contains(fresh[0].2["spendId"].as_str().unwrap()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_service_sweeps_keys_whose_window_has_ended() {
    let (db, services, callers) = two_services().await;
    let window = json!({"redeemFrom": "2020-01-01T00:00:00Z", "redeemUntil": "2020-01-02T06:00:00Z"});
    let (status, _) = callers[0].call("PUT", "/v1/keys/k", Some(window)).await;
    assert_eq!(status, 201);
    let mut owner = db.owner().await;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let left: i64 =
            sqlx::query_scalar("SELECT count(*) FROM pg_inherits WHERE inhparent = 'fairledger.spends'::regclass")
                .fetch_one(&mut owner)
                .await
                .unwrap();
        if left == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "not swept; it printed:\n{}", services[0].logs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (status, answer) = callers[1].call("POST", "/v1/spends", Some(spend(&"5a".repeat(32)))).await;
    assert_eq!((status, &answer["code"]), (410, &json!("key_expired")));
    let logs = services.each_ref().map(Service::logs).concat();
    assert!(logs.contains("a key is swept") && logs.contains("a swept key's spends are forgotten"), "{logs}");
}
