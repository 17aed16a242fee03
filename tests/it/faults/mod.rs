//! Bad days: what callers are told while things break, and what is true afterwards (I1 to I4, I9, I12).
//!
//! Each file breaks one thing. What was told is collected in [`Told`], and [`Told::prove`] holds it against the database.

mod answers;
mod clock;
mod descriptors;
mod killed;
mod pooler;
mod server;
mod silence;
mod soak;
mod stopped;

use std::collections::BTreeMap;
use std::sync::Mutex;

use fairledger::db::fence::FenceSettings;
use fairledger::db::{Datastore, PoolSettings};
use fairledger::http::{App, HttpSettings, serve};
use fairledger::ledger::{Ledger, LedgerSettings};
use fairledger::seeds::{KeyRing, Seeds, SeedsSettings, ServiceSecret};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use crate::harness::{Caller, Proxy, TestDb, id};

/// The API in this process without its background tasks, so that every statement is a request's; fenced, and over a proxy.
struct Stage {
    db: TestDb,
    proxy: Proxy,
    app: App,
    caller: Caller,
    /// Where it listens.
    address: String,
    _witness: tempfile::TempDir,
}

impl Stage {
    async fn new(pool: PoolSettings, grouped: bool) -> Self {
        Self::with(pool, grouped, HttpSettings::default()).await
    }

    async fn with_http(http: HttpSettings) -> Self {
        Self::with(PoolSettings::default(), true, http).await
    }

    async fn with(pool: PoolSettings, grouped: bool, http: HttpSettings) -> Self {
        Self::on(TestDb::new().await, pool, grouped, http).await
    }

    async fn on(db: TestDb, pool: PoolSettings, grouped: bool, http: HttpSettings) -> Self {
        let witness = tempfile::tempdir().unwrap();
        let token = db.admin_token().await;
        let proxy = Proxy::start(&db.service_url).await;
        let store = Datastore::connect(&proxy.url(&db.service_url), &pool).await.unwrap();
        let fence = FenceSettings {
            dir: witness.path().to_owned(),
            instance: None,
            writers: pool.connections_max + 4,
            join: false,
        };
        let store = store.fenced(&fence).await.unwrap();
        let ring = std::fs::read_to_string(db.data_dir().join("seed-keys")).unwrap();
        let (mut seeds, mut ledger) = (SeedsSettings::default(), LedgerSettings::default());
        ledger.keys_live_max = 100;
        if !grouped {
            (seeds.group, ledger.group) = (None, None);
        }
        let ledger = Ledger::new(store.clone(), ledger);
        let secret = ServiceSecret::new([7; 32]);
        let seeds = Seeds::start(store, KeyRing::parse(ring.trim()).unwrap(), secret, None, seeds).await.unwrap();
        let app = App::new(seeds, ledger, http);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let caller = Caller::at(&format!("http://{address}"), &token);
        tokio::spawn(serve(listener, app.clone(), std::future::pending()));
        // The token is looked up now, and remembered while the test runs.
        assert_eq!(caller.call("PUT", "/v1/keys/k", Some(json!({}))).await.0, 201);
        Self { db, proxy, app, caller, address, _witness: witness }
    }
}

/// A change, as it is sent again and again.
#[derive(Clone, Debug)]
struct Change {
    name: &'static str,
    method: &'static str,
    path: String,
    body: Value,
}

impl Change {
    async fn send(&self, caller: &Caller) -> (u16, Value) {
        self.try_send(caller).await.unwrap()
    }

    async fn try_send(&self, caller: &Caller) -> Result<(u16, Value), reqwest::Error> {
        caller.try_call(self.method, &self.path, Some(self.body.clone())).await
    }

    /// Whether an answer says that the change stands.
    fn stands(&self, (status, answer): &(u16, Value)) -> bool {
        // Who gives a spend back again is told that it is given back.
        matches!(status, 200 | 201) || (self.name == "rollback" && answer["code"] == "not_spent")
    }

    /// Sends it until its outcome is known.
    async fn resolve(&self, caller: &Caller) -> Value {
        loop {
            let answer = self.send(caller).await;
            if self.stands(&answer) {
                return answer.1;
            }
            assert_eq!(answer.0, 503, "{}: {}", self.name, answer.1);
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
}

fn spend() -> Value {
    json!({ "keyId": "k", "nonce": Uuid::new_v4().simple().to_string(), "spendId": Uuid::new_v4() })
}

/// One change of every kind that there is, each with what it needs made before.
async fn every_change(caller: &Caller) -> Vec<Change> {
    changes(caller, |_| true).await
}

/// The same of some kinds.
async fn changes(caller: &Caller, wanted: impl Fn(&str) -> bool) -> Vec<Change> {
    let given_back = spend();
    caller.post("/v1/spends", given_back.clone()).await;
    let key = format!("k{}", Uuid::new_v4().simple());
    assert_eq!(caller.call("PUT", &format!("/v1/keys/{key}"), Some(json!({}))).await.0, 201);
    let change = |name, method, path: String, body| Change { name, method, path, body };
    let post = |name, path: &str, body| change(name, "POST", path.to_owned(), body);
    let mut all = vec![
        post("spend", "/v1/spends", spend()),
        post("batch", "/v1/spends/batch", json!({ "spends": [spend(), spend()] })),
        post("atomic batch", "/v1/spends/batch", json!({ "spends": [spend(), spend()], "atomic": true })),
        post("rollback", "/v1/spends/rollback", given_back),
        change("key", "PUT", format!("/v1/keys/k{}", Uuid::new_v4().simple()), json!({})),
        post("key close", &format!("/v1/keys/{key}/close"), json!({})),
        post("session", "/v1/sessions", json!({ "sessionId": Uuid::now_v7() })),
    ];
    all.retain(|change| wanted(change.name));
    let rules = json!({ "id": "r", "sha256": "ab".repeat(32) });
    for name in ["client seed", "rotate", "close", "bet", "reserve", "record", "void", "settle", "step", "round close"]
    {
        if !wanted(name) {
            continue;
        }
        let session = caller.session().await;
        let (path, commitment) = (format!("/v1/sessions/{}", id(&session)), &session["commitment"]);
        let reserve = json!({ "commitment": commitment, "betRef": "r", "game": "x-g", "rules": rules, "floats": 1 });
        let round = format!("{path}/rounds/{}/0", commitment.as_str().unwrap());
        match name {
            "client seed" | "rotate" | "close" | "settle" => drop(caller.dice(&session, "b").await),
            "record" | "void" => drop(caller.post(&format!("{path}/nonces"), reserve.clone()).await),
            "step" | "round close" => {
                let body = json!({ "commitment": commitment, "betRef": "m", "game": "mines", "params": { "mines": 3 }, "conceal": true });
                caller.post(&format!("{path}/bets"), body).await;
            }
            _ => {}
        }
        let (method, path, body) = match name {
            "client seed" => {
                ("PUT", format!("{path}/client-seed"), json!({ "commitment": commitment, "clientSeed": "mine" }))
            }
            "rotate" | "close" => ("POST", format!("{path}/{name}"), json!({ "commitment": commitment })),
            "bet" => {
                ("POST", format!("{path}/bets"), json!({ "commitment": commitment, "betRef": "b", "game": "dice" }))
            }
            "reserve" => ("POST", format!("{path}/nonces"), reserve),
            "record" => {
                ("POST", format!("{path}/records"), json!({ "commitment": commitment, "nonce": 0, "result": 1 }))
            }
            "void" => ("POST", format!("{path}/voids"), json!({ "commitment": commitment, "nonce": 0, "reason": "r" })),
            "settle" => {
                ("POST", format!("{path}/settlements"), json!({ "commitment": commitment, "nonce": 0, "payout": "1" }))
            }
            "step" => ("POST", format!("{round}/steps"), json!({ "index": 0, "step": "a" })),
            _ => ("POST", format!("{round}/close"), json!({ "outcome": "lost" })),
        };
        all.push(change(name, method, path, body));
    }
    all
}

/// What is stored of anything that a caller can change, as one text.
async fn fingerprint(owner: &mut PgConnection) -> String {
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT table_name::text FROM information_schema.tables
         WHERE table_schema = 'fairledger' AND table_type = 'BASE TABLE'
           AND table_name NOT IN ('witness', 'horizon', 'api_tokens', 'schema_history') ORDER BY 1",
    )
    .fetch_all(&mut *owner)
    .await
    .unwrap();
    let mut all = String::new();
    for table in tables {
        let query =
            format!("SELECT coalesce(md5(string_agg(t::text, ',' ORDER BY t::text)), '-') FROM fairledger.{table} t");
        all += &sqlx::query_scalar::<_, String>(AssertSqlSafe(query)).fetch_one(&mut *owner).await.unwrap();
    }
    all
}

/// Nonces of bets by session and reference, with the SHA-256 of what was told: a soak takes millions.
type Bets = BTreeMap<(String, String), (i64, [u8; 32])>;

/// What callers were told for certain.
#[derive(Debug, Default)]
struct Told {
    bets: Mutex<Bets>,
    /// The spend that stands, by the token's nonce.
    spends: Mutex<BTreeMap<String, String>>,
}

impl Told {
    /// Notes an acknowledged change.
    fn note(&self, change: &Change, answer: &Value) {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        match change.name {
            "bet" => {
                let session = change.path.split('/').nth(3).unwrap().to_owned();
                let key = (session, text(&change.body["betRef"]));
                let told = (answer["record"]["nonce"].as_i64().unwrap(), digest(&answer["record"]));
                let before = self.bets.lock().unwrap().insert(key, told);
                assert!(before.is_none_or(|before| before == told), "I3: another answer: {answer}");
            }
            "spend" => {
                let before = self.spends.lock().unwrap().insert(text(&change.body["nonce"]), text(&answer["spendId"]));
                assert!(before.is_none_or(|before| before == answer["spendId"]), "I1: another answer: {answer}");
            }
            _ => {}
        }
    }

    /// Proves I1 to I4 of everything stored, and that all that was acknowledged is there.
    async fn prove(&self, owner: &mut PgConnection) {
        for (what, query) in [
            ("I1: a token spent twice", "SELECT count(*) FROM (SELECT FROM fairledger.spends GROUP BY key_no, nonce HAVING count(*) > 1) x"),
            (
                "I2: spends of a key that is not known",
                "SELECT count(*) FROM fairledger.spends s LEFT JOIN fairledger.token_keys k USING (key_no) WHERE k.key_no IS NULL",
            ),
            (
                "I3: nonces that are not those handed out, each once and in order",
                "SELECT count(*) FROM fairledger.seeds s WHERE next_nonce <> (SELECT count(*) FROM fairledger.bets b
                     WHERE (b.session_id, b.seed_no) = (s.session_id, s.seed_no) AND b.nonce < s.next_nonce)
                 OR EXISTS (SELECT FROM fairledger.bets b
                     WHERE (b.session_id, b.seed_no) = (s.session_id, s.seed_no) AND b.nonce >= s.next_nonce)",
            ),
            (
                "I4: pending bets counted wrongly",
                "SELECT count(*) FROM fairledger.seeds s WHERE pending <> (SELECT count(*) FROM fairledger.pending p
                     WHERE (p.session_id, p.seed_no) = (s.session_id, s.seed_no))",
            ),
            (
                "I4: a pending bet that has an end, or one end too many",
                "SELECT count(*) FROM fairledger.bets b WHERE
                     (SELECT count(*) FROM fairledger.pending e WHERE (e.session_id, e.seed_no, e.nonce) = (b.session_id, b.seed_no, b.nonce))
                   + (SELECT count(*) FROM fairledger.outcomes e WHERE (e.session_id, e.seed_no, e.nonce) = (b.session_id, b.seed_no, b.nonce))
                   + (SELECT count(*) FROM fairledger.voids e WHERE (e.session_id, e.seed_no, e.nonce) = (b.session_id, b.seed_no, b.nonce)) > 1",
            ),
            (
                "I4: steps that are not those counted",
                "SELECT count(*) FROM fairledger.pending p WHERE next_step <> (SELECT count(*) FROM fairledger.steps s
                     WHERE (s.session_id, s.seed_no, s.nonce) = (p.session_id, p.seed_no, p.nonce))",
            ),
            (
                "a seed that is revealed without its reveal",
                "SELECT count(*) FROM fairledger.seeds s WHERE status = 'revealed'
                   AND NOT EXISTS (SELECT FROM fairledger.reveals r WHERE (r.session_id, r.seed_no) = (s.session_id, s.seed_no))
                   AND NOT EXISTS (SELECT FROM fairledger.reveals_due r WHERE (r.session_id, r.seed_no) = (s.session_id, s.seed_no))",
            ),
            (
                "a session without one live seed",
                "SELECT count(*) FROM fairledger.sessions s WHERE status = 'open' AND
                     (SELECT count(*) FROM fairledger.seeds d WHERE d.session_id = s.session_id AND d.status = 'live') <> 1",
            ),
        ] {
            let wrong: i64 = sqlx::query_scalar(query).fetch_one(&mut *owner).await.unwrap();
            assert_eq!(wrong, 0, "{what}");
        }
        self.prove_spends(owner).await;
        self.prove_bets(owner).await;
    }

    async fn prove_spends(&self, owner: &mut PgConnection) {
        let told: Vec<(String, String)> = self.spends.lock().unwrap().clone().into_iter().collect();
        for told in told.chunks(CHUNK) {
            let (nonces, ids): (Vec<_>, Vec<_>) = told.iter().cloned().unzip();
            let lost: Vec<String> = sqlx::query_scalar(
                "SELECT t.nonce FROM unnest($1::text[], $2::text[]) t (nonce, spend_id) WHERE NOT EXISTS (
                     SELECT FROM fairledger.spends s WHERE s.nonce = decode(t.nonce, 'hex') AND s.spend_id = t.spend_id::uuid)",
            )
            .bind(nonces)
            .bind(ids)
            .fetch_all(&mut *owner)
            .await
            .unwrap();
            assert!(lost.is_empty(), "I1: acknowledged spends that are not there: {lost:?}");
        }
    }

    async fn prove_bets(&self, owner: &mut PgConnection) {
        let told: Vec<_> = self.bets.lock().unwrap().clone().into_iter().collect();
        for told in told.chunks(CHUNK) {
            let sessions: Vec<String> = told.iter().map(|((session, _), _)| session.clone()).collect();
            let refs: Vec<String> = told.iter().map(|((_, bet_ref), _)| bet_ref.clone()).collect();
            let nonces: Vec<i64> = told.iter().map(|(_, (nonce, _))| *nonce).collect();
            let lost: Vec<String> = sqlx::query_scalar(
                "SELECT t.bet_ref FROM unnest($1::text[], $2::text[], $3::bigint[]) t (session_id, bet_ref, nonce)
                 WHERE NOT EXISTS (SELECT FROM fairledger.bets b
                     WHERE b.session_id = t.session_id::uuid AND b.bet_ref = t.bet_ref AND b.nonce = t.nonce)",
            )
            .bind(sessions)
            .bind(refs)
            .bind(nonces)
            .fetch_all(&mut *owner)
            .await
            .unwrap();
            assert!(lost.is_empty(), "I3: acknowledged bets that are not there: {lost:?}");
        }
    }
}

/// Told answers that are looked for at once.
const CHUNK: usize = 5_000;

fn digest(told: &Value) -> [u8; 32] {
    Sha256::digest(told.to_string()).into()
}
