//! The restore fence and what follows a loss (I10): on restored databases, after failovers, under kills.

mod failover;
mod groups;
mod processes;
mod recovery;
mod restore;
mod witness;

use std::path::Path;

use fairledger::db::fence::{FenceError, FenceSettings};
use fairledger::db::{Datastore, DbError, PoolSettings};
use fairledger::gfs::{Commitment, Play};
use fairledger::ledger::{KeyRequest, Ledger, LedgerError, LedgerSettings, Spend, SpendLedger as _, Token, TokenNonce};
use fairledger::seeds::model::{BetAnswer, View};
use fairledger::seeds::values::BetRef;
use fairledger::seeds::{
    BetRequest, GameRequest, KeyRing, Seeds, SeedsError, SeedsSettings, ServiceSecret, SessionRequest, Wager,
};
use serde_json::json;
use uuid::Uuid;

use crate::harness::TestDb;

/// An instance of the service, in this process.
#[derive(Clone, Debug)]
struct Instance {
    store: Datastore,
    seeds: Seeds,
    ledger: Ledger,
}

fn settings(dir: &Path, join: bool) -> FenceSettings {
    FenceSettings { dir: dir.to_owned(), instance: None, writers: 4, join }
}

async fn fenced(url: &str, settings: &FenceSettings) -> Result<Datastore, FenceError> {
    let pool = PoolSettings { connections_max: 4, ..PoolSettings::default() };
    Datastore::connect(url, &pool).await.unwrap().fenced(settings).await
}

impl Instance {
    async fn over(store: Datastore, db: &TestDb) -> Self {
        let ring = std::fs::read_to_string(db.data_dir().join("seed-keys")).unwrap();
        let ring = KeyRing::parse(ring.trim()).unwrap();
        let secret = ServiceSecret::new([7; 32]);
        let seeds = Seeds::start(store.clone(), ring, secret, None, SeedsSettings::default()).await.unwrap();
        let ledger = Ledger::new(store.clone(), LedgerSettings::default());
        Self { store, seeds, ledger }
    }

    /// On a database that it knows, or that is empty.
    async fn start(db: &TestDb, dir: &Path) -> Self {
        Self::over(fenced(&db.service_url, &settings(dir, false)).await.unwrap(), db).await
    }

    /// A further one, on a database that has data.
    async fn join(db: &TestDb, dir: &Path) -> Self {
        Self::over(fenced(&db.service_url, &settings(dir, true)).await.unwrap(), db).await
    }

    /// Lets go of the folder and of every connection.
    async fn stop(self) {
        // The writers of the groups have connections of their own, and hold the fence.
        self.seeds.stop().await;
        self.ledger.stop().await;
        self.store.close().await;
    }

    async fn session(&self) -> View {
        self.seeds.create_session(&SessionRequest::default()).await.unwrap().view
    }

    async fn try_dice(&self, session_id: Uuid, commitment: Commitment, name: &str) -> Result<BetAnswer, SeedsError> {
        self.seeds.take_bet(session_id, &dice(commitment, name, false)).await
    }

    /// After a restore, which cuts every connection.
    async fn patient_dice(&self, view: &View, name: &str) -> Result<BetAnswer, SeedsError> {
        loop {
            let done = self.try_dice(view.session_id, view.commitment, name).await;
            if !matches!(done, Err(SeedsError::Db(DbError::Unavailable(_)))) {
                return done;
            }
        }
    }

    async fn dice(&self, view: &View, name: &str) -> BetAnswer {
        self.try_dice(view.session_id, view.commitment, name).await.unwrap()
    }

    async fn key(&self, name: &str) {
        self.ledger.register_key(&KeyRequest::new(name.parse().unwrap())).await.unwrap();
    }
}

fn dice(commitment: Commitment, name: &str, conceal: bool) -> BetRequest {
    let play = Play::new("dice", Some(&json!({}))).unwrap();
    let bet_ref = BetRef::parse(name).unwrap();
    BetRequest { commitment, bet_ref, game: GameRequest { play, conceal }, wager: Wager::default() }
}

fn spend(key: &str, nonce: u8) -> Spend {
    let nonce = TokenNonce::from_bytes(&[nonce; 16]).unwrap();
    Spend { token: Token { key_id: key.parse().unwrap(), nonce }, spend_id: fairledger::ledger::SpendId::random() }
}

fn is_quarantined<T: std::fmt::Debug>(done: &Result<T, SeedsError>) -> bool {
    matches!(done, Err(SeedsError::Db(DbError::Quarantined(_))))
}

fn spend_is_quarantined<T: std::fmt::Debug>(done: &Result<T, LedgerError>) -> bool {
    matches!(done, Err(LedgerError::Db(DbError::Quarantined(_))))
}
