//! The service killed at each step of a change: before each of its statements and after it, as many as there are.
//!
//! The proxy tells the steps: it stops at the statement, the service is killed while it waits, and what the server had got by then is what
//! there is. So no code of the product's is needed for it. What the service does by itself goes through the proxy too and counts as a
//! step; it is kept rare, so that it seldom stands for one of the change's.

use super::*;
use crate::harness::Service;

/// More steps than any change has.
const STEPS_MAX: u32 = 60;

struct Killing {
    db: TestDb,
    proxy: Proxy,
    token: String,
    witness: tempfile::TempDir,
    sweep_interval: &'static str,
    service: Service,
    told: Told,
}

impl Killing {
    async fn start() -> Self {
        Self::sweeping_every("1h").await
    }

    async fn sweeping_every(sweep_interval: &'static str) -> Self {
        let (db, witness) = (TestDb::new().await, tempfile::tempdir().unwrap());
        let (token, proxy) = (db.admin_token().await, Proxy::start(&db.service_url).await);
        proxy.vanish_instead_of_cuts();
        let service = Self::spawn(&db, &proxy, &witness, sweep_interval);
        let killing = Self { db, proxy, token, witness, sweep_interval, service, told: Told::default() };
        assert_eq!(killing.caller().call("PUT", "/v1/keys/k", Some(json!({}))).await.0, 201);
        killing
    }

    fn spawn(db: &TestDb, proxy: &Proxy, witness: &tempfile::TempDir, sweep_interval: &str) -> Service {
        let env = [
            ("FAIRLEDGER_WITNESS_DIR", witness.path().to_str().unwrap()),
            ("FAIRLEDGER_KEYS_LIVE_MAX", "1000"),
            ("FAIRLEDGER_SWEEP_INTERVAL", sweep_interval),
        ];
        Service::spawn_at(&proxy.url(&db.service_url), db, &env, &[])
    }

    fn caller(&self) -> Caller {
        Caller::new(&self.service, &self.token)
    }

    /// The service is killed and another one started; the old one's connections end.
    async fn kill(&mut self) {
        self.service.kill9();
        self.proxy.disarm();
        self.proxy.cut_now();
        let (db, proxy, witness) = (&self.db, &self.proxy, &self.witness);
        self.service = tokio::task::block_in_place(|| Self::spawn(db, proxy, witness, self.sweep_interval));
        assert!(!self.service.logs().contains("QUARANTINE"), "{}", self.service.logs());
    }

    /// Kills the service at each step of a kind of change; each change is then sent again until it stands.
    async fn at_each_step_of(&mut self, name: &str) {
        for step in 0..STEPS_MAX {
            let caller = self.caller();
            let change = changes(&caller, |kind| kind == name).await.remove(0);
            let cuts = self.proxy.cuts();
            // Every other step before it is carried out, and the others after.
            self.proxy.cut_at_number(step / 2, step % 2 == 1);
            let answer = tokio::select! {
                answer = change.send(&caller) => Some(answer),
                () = self.proxy.await_cuts(cuts + 1) => None,
            };
            if let Some(answer) = answer {
                assert!(change.stands(&answer), "{name}: {answer:?}");
                self.told.note(&change, &answer.1);
                assert!(step > 4, "{name} has more steps than that");
                self.proxy.disarm();
                return;
            }
            self.kill().await;
            self.told.note(&change, &change.resolve(&self.caller()).await);
        }
        panic!("{name} has more steps than {STEPS_MAX}");
    }

    async fn prove(&self) {
        self.told.prove(&mut self.db.owner().await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_each_step_of_a_bet_and_a_round_s_close_the_service_leaves_all_or_nothing_i4() {
    let mut killing = Killing::start().await;
    for name in ["bet", "round close"] {
        killing.at_each_step_of(name).await;
    }
    killing.prove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_each_step_of_a_rotation_the_service_leaves_one_live_seed_and_every_reveal_i4_i5() {
    let mut killing = Killing::start().await;
    killing.at_each_step_of("rotate").await;
    killing.prove().await;
    // What is due is revealed by maintenance.
    killing.db.wait_until("SELECT count(*) = 0 FROM fairledger.reveals_due").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_each_step_of_a_sweep_no_token_is_acceptable_again_i2() {
    let mut killing = Killing::sweeping_every("100ms").await;
    for step in 0..10 {
        let (caller, key) = (killing.caller(), format!("s{step}"));
        let until: String = sqlx::query_scalar(
            "SELECT to_char((now() + '700 ms') AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')",
        )
        .fetch_one(&mut killing.db.owner().await)
        .await
        .unwrap();
        let (status, answer) =
            caller.call("PUT", &format!("/v1/keys/{key}"), Some(json!({ "redeemUntil": until }))).await;
        assert_eq!(status, 201, "{answer}");
        let mut body = spend();
        body["keyId"] = json!(key);
        let spent = caller.call("POST", "/v1/spends", Some(body.clone())).await;
        assert!(matches!(spent.0, 201 | 410), "{spent:?}");
        killing.db.wait_until("SELECT NOT EXISTS (SELECT FROM fairledger.token_keys WHERE state = 'open' AND key_id <> 'k' AND redeem_until > now())").await;
        let cuts = killing.proxy.cuts();
        killing.proxy.cut_at_number(step / 2, step % 2 == 1);
        let swept = async {
            while !swept(&killing.db, &key).await {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = swept => {}
            () = killing.proxy.await_cuts(cuts + 1) => {}
        }
        killing.kill().await;
        body["spendId"] = json!(Uuid::new_v4());
        let (status, answer) = killing.caller().call("POST", "/v1/spends", Some(body)).await;
        assert_eq!((status, &answer["code"]), (410, &json!("key_expired")), "{answer}");
    }
    killing.db.wait_until("SELECT count(*) = 10 FROM fairledger.token_keys WHERE state = 'swept'").await;
    // The rows go after the key is known to be swept.
    killing.db.wait_until("SELECT count(*) = 0 FROM fairledger.spends JOIN fairledger.token_keys USING (key_no) WHERE state = 'swept'").await;
    killing.prove().await;
}

async fn swept(db: &TestDb, key: &str) -> bool {
    sqlx::query_scalar("SELECT state = 'swept' FROM fairledger.token_keys WHERE key_id = $1")
        .bind(key)
        .fetch_one(&mut db.owner().await)
        .await
        .unwrap()
}
