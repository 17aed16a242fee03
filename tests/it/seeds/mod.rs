//! Sessions, seeds, bets and rounds through the library, on a real PostgreSQL.

mod bets;
mod corruption;
mod group;
mod maintenance;
mod model;
mod pending;
mod races;
mod rights;
mod rotation;
mod rounds;
mod sessions;
mod store;

use fairledger::db::{Datastore, PoolSettings};
use fairledger::gfs::inspect::inspect_value;
use fairledger::gfs::signature::SigningKey;
use fairledger::gfs::{Commitment, Play, ServerSeed};
use fairledger::seeds::model::{BetAnswer, View};
use fairledger::seeds::values::{BetRef, BoundedJson, JSON_BYTES_MAX, Money};
use fairledger::seeds::{BetRequest, GameRequest, KeyRing, Seeds, SeedsSettings, ServiceSecret, SessionRequest, Wager};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::harness::TestDb;

/// The key ring that all tests of one database share.
const RING: &str = "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

async fn start_with(db: &TestDb, settings: SeedsSettings, signing_key: Option<SigningKey>) -> Seeds {
    let store = Datastore::connect(&db.service_url, &PoolSettings::default()).await.unwrap();
    let ring = KeyRing::parse(RING).unwrap();
    Seeds::start(store, ring, ServiceSecret::new([7; 32]), signing_key, settings).await.unwrap()
}

async fn start(db: &TestDb) -> Seeds {
    start_with(db, SeedsSettings::default(), None).await
}

/// Changes what only the owner may, as a fault or a tamperer would.
async fn as_owner(db: &TestDb, statement: &str) {
    let mut owner = db.owner().await;
    let done = sqlx::query(AssertSqlSafe(statement.to_owned())).execute(&mut owner).await.unwrap();
    assert!(done.rows_affected() > 0, "{statement} changed nothing");
}

/// Bets each in a transaction of its own.
async fn start_alone(db: &TestDb) -> Seeds {
    start_with(db, SeedsSettings { group: None, ..SeedsSettings::default() }, None).await
}

/// Makes tests of functions that take two services: both with group commit, both without, and one of each on one database.
macro_rules! in_every_form {
    ($($name:ident),* $(,)?) => {
        mod grouped {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let db = crate::harness::TestDb::new().await;
                super::$name([super::super::start(&db).await, super::super::start(&db).await]).await;
            })*
        }
        mod alone {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let db = crate::harness::TestDb::new().await;
                super::$name([super::super::start_alone(&db).await, super::super::start_alone(&db).await]).await;
            })*
        }
        mod mixed {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let db = crate::harness::TestDb::new().await;
                super::$name([super::super::start(&db).await, super::super::start_alone(&db).await]).await;
            })*
        }
    };
}
pub(crate) use in_every_form;

async fn session(seeds: &Seeds) -> View {
    seeds.create_session(&SessionRequest::default()).await.unwrap().view
}

pub fn bet_ref(text: impl AsRef<str>) -> BetRef {
    BetRef::parse(text.as_ref()).unwrap()
}

pub fn dice(commitment: Commitment, name: impl AsRef<str>) -> BetRequest {
    game(commitment, name, "dice", &json!({}), false)
}

pub fn game(commitment: Commitment, name: impl AsRef<str>, game: &str, params: &Value, conceal: bool) -> BetRequest {
    let play = Play::new(game, Some(params)).unwrap();
    BetRequest { commitment, bet_ref: bet_ref(name), game: GameRequest { play, conceal }, wager: Wager::default() }
}

pub fn bounded(value: Value) -> BoundedJson {
    BoundedJson::new(value, JSON_BYTES_MAX).unwrap()
}

pub fn money(text: &str) -> Money {
    Money::parse(text).unwrap()
}

fn nonce_of(bet: &BetAnswer) -> u64 {
    bet.record["nonce"].as_u64().unwrap()
}

/// Checks a recorded bet against a revealed seed by the inspection that strangers use; gives its overall status.
fn inspected(bet: &BetAnswer) -> String {
    let seed = bet.server_seed.as_ref().map(|seed| ServerSeed::parse(seed.as_str()).unwrap());
    let inspection = inspect_value(&Value::Object(bet.record.clone()), seed.as_ref()).unwrap();
    serde_json::to_value(&inspection).unwrap()["status"].as_str().unwrap().to_owned()
}

/// Every bet of a session, newest first, page by page.
pub async fn all_bets(seeds: &Seeds, session_id: Uuid) -> Vec<BetAnswer> {
    let (mut bets, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = seeds.bets_of_session(session_id, after.as_deref(), 100).await.unwrap();
        bets.extend(page.records);
        match page.next_after {
            Some(next) => after = Some(next),
            None => return bets,
        }
    }
}

macro_rules! refused {
    ($result:expr, $pattern:pat) => {
        match $result {
            Err($pattern) => {}
            other => panic!("expected {}, got {other:?}", stringify!($pattern)),
        }
    };
}
pub(crate) use refused;
