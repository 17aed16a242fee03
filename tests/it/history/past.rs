//! Bets of every kind, for tests of what is told of them later.

use fairledger::db::{Datastore, PoolSettings, Reader};
use fairledger::gfs::signature::SigningKey;
use fairledger::gfs::{ClientSeed, Commitment, Play, Rules};
use fairledger::history::{History, HistorySettings};
use fairledger::seeds::model::{BetAnswer, View};
use fairledger::seeds::values::{
    BetRef, BoundedJson, Currency, JSON_BYTES_MAX, Money, OutsideGame, PlayerRef, RESULT_BYTES_MAX, SettlementOutcome,
    VoidReason,
};
use fairledger::seeds::{
    BetRequest, ClientSeedRequest, CloseOutcome, CloseRequest, Disclose, GameRequest, KeyRing, RecordRequest,
    ReservationRequest, RotateRequest, Seeds, SeedsSettings, ServiceSecret, SessionRequest, SettlementRequest,
    StepRequest, VoidRequest, Wager,
};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::harness::{TestDb, program};

/// The key ring that all tests of one database share.
pub const RING: &str = "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// Services over a test's database.
pub struct Past {
    pub db: TestDb,
    pub seeds: Seeds,
    pub history: History,
}

fn bounded(value: Value) -> BoundedJson {
    BoundedJson::new(value, JSON_BYTES_MAX).unwrap()
}

impl Past {
    pub async fn new() -> Self {
        Self::with(SeedsSettings::default(), None).await
    }

    pub async fn with(settings: SeedsSettings, signing_key: Option<SigningKey>) -> Self {
        Self::on(TestDb::new().await, settings, signing_key).await
    }

    pub async fn on(db: TestDb, settings: SeedsSettings, signing_key: Option<SigningKey>) -> Self {
        let store = Datastore::connect(&db.service_url, &PoolSettings::default()).await.unwrap();
        let secret = ServiceSecret::new([7; 32]);
        let history = History::new(Reader::from(&store), secret.clone(), HistorySettings::default());
        let ring = KeyRing::parse(RING).unwrap();
        let seeds = Seeds::start(store, ring, secret, signing_key, settings).await.unwrap();
        Self { db, seeds, history }
    }

    pub async fn session(&self) -> Player<'_> {
        self.session_of("anna").await
    }

    pub async fn session_of(&self, player_ref: &str) -> Player<'_> {
        let player_ref = Some(PlayerRef::parse(player_ref).unwrap());
        let request = SessionRequest { player_ref, ..SessionRequest::default() };
        let view = self.seeds.create_session(&request).await.unwrap().view;
        Player { past: self, id: view.session_id, view, bets: 0 }
    }

    /// The program over this database, to its end.
    pub async fn command(&self, args: &[&str]) {
        let seed_keys = self.db.data_dir().join("seed-keys");
        std::fs::write(&seed_keys, RING).unwrap();
        let mut command = program(args);
        command
            .env("DATABASE_URL", &self.db.service_url)
            .env("MIGRATE_DATABASE_URL", &self.db.owner_url)
            .env("FAIRLEDGER_SEED_KEYS_FILE", seed_keys);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// The state between the two transactions of a seed's end: it is retired, and its reveal is noted as due. A service that was killed
    /// in that instant leaves it so.
    pub async fn take_back_reveal(&self, commitment: &Commitment) {
        let of_seed = format!("commitment = decode('{commitment}', 'hex')");
        self.as_owner(&format!("DELETE FROM fairledger.reveals WHERE {of_seed}")).await;
        let due =
            "INSERT INTO fairledger.reveals_due (session_id, seed_no) SELECT session_id, seed_no FROM fairledger.seeds";
        self.as_owner(&format!("{due} WHERE {of_seed}")).await;
    }

    /// A statement as the owner, who may do what the service may not.
    pub async fn as_owner(&self, statement: &str) {
        let mut owner = self.db.owner().await;
        let done = sqlx::query(sqlx::AssertSqlSafe(statement.to_owned())).execute(&mut owner).await;
        let done = done.unwrap_or_else(|error| panic!("{statement}: {error}"));
        assert!(done.rows_affected() > 0 || statement.starts_with("ALTER"), "{statement} changed nothing");
    }

    /// Whether a statement finds anything for a session.
    pub async fn has(&self, statement: &'static str, session_id: Uuid) -> bool {
        sqlx::query(statement).bind(session_id).fetch_optional(&mut self.db.owner().await).await.unwrap().is_some()
    }
}

/// A session that is played.
pub struct Player<'p> {
    past: &'p Past,
    pub id: Uuid,
    pub view: View,
    bets: u32,
}

impl Player<'_> {
    pub fn commitment(&self) -> Commitment {
        self.view.commitment
    }

    fn bet_ref(&mut self) -> BetRef {
        self.bets += 1;
        BetRef::parse(&format!("bet:{}", self.bets)).unwrap()
    }

    fn wager() -> Wager {
        Wager {
            selection: Some(bounded(json!({ "over": 50.5 }))),
            stake: Some(Money::parse("1.50").unwrap()),
            currency: Some(Currency::parse("EUR").unwrap()),
            context: Some(bounded(json!({ "table": 7 }))),
        }
    }

    pub async fn play(&mut self, game: &str, params: Value) -> BetAnswer {
        self.take(game, params, false).await
    }

    /// Takes a round; gives its nonce.
    pub async fn round(&mut self, game: &str, params: Value) -> u64 {
        self.take(game, params, true).await.record["nonce"].as_u64().unwrap()
    }

    async fn take(&mut self, game: &str, params: Value, conceal: bool) -> BetAnswer {
        let play = Play::new(game, Some(&params)).unwrap();
        let request = BetRequest {
            commitment: self.commitment(),
            bet_ref: self.bet_ref(),
            game: GameRequest { play, conceal },
            wager: Self::wager(),
        };
        self.past.seeds.take_bet(self.id, &request).await.unwrap()
    }

    /// A step of a round; gives what it disclosed.
    pub async fn step(&self, nonce: u64, index: u32, disclose: Option<Disclose>) -> Option<Value> {
        let request = StepRequest { index, step: bounded(json!({ "action": index })), disclose };
        let answer = self.past.seeds.step(self.id, &self.commitment(), nonce, &request).await.unwrap();
        answer.round.steps.last().unwrap().disclosed.clone()
    }

    pub async fn close_round(&self, nonce: u64, outcome: CloseOutcome) -> BetAnswer {
        let request = CloseRequest { outcome };
        self.past.seeds.close_round(self.id, &self.commitment(), nonce, &request).await.unwrap().bet
    }

    /// Reserves a nonce for an outside game.
    pub async fn reserve(&mut self) -> u64 {
        let request = ReservationRequest {
            commitment: self.commitment(),
            bet_ref: self.bet_ref(),
            game: OutsideGame::parse("x-darts").unwrap(),
            params: Map::new(),
            rules: Rules::new("darts:3", [9; 32]).unwrap(),
            floats: 10,
            wager: Self::wager(),
        };
        self.past.seeds.reserve(self.id, &request).await.unwrap().nonce
    }

    pub async fn record(&self, nonce: u64, result: Value) -> BetAnswer {
        let result = BoundedJson::new(result, RESULT_BYTES_MAX).unwrap();
        let request = RecordRequest { commitment: self.commitment(), nonce, result };
        self.past.seeds.record(self.id, &request).await.unwrap()
    }

    pub async fn void(&self, nonce: u64, reason: &str) -> BetAnswer {
        let reason = VoidReason::parse(reason).unwrap();
        let request = VoidRequest { commitment: self.commitment(), nonce, reason };
        self.past.seeds.void(self.id, &request).await.unwrap()
    }

    pub async fn settle(&self, nonce: u64, payout: &str) -> BetAnswer {
        let request = SettlementRequest {
            commitment: self.commitment(),
            nonce,
            payout: Money::parse(payout).unwrap(),
            outcome: Some(SettlementOutcome::parse("win").unwrap()),
            displayed: Some(bounded(json!({ "line": "You win" }))),
            rules: Some(bounded(json!({ "paytable": 4 }))),
        };
        self.past.seeds.settle(self.id, &request).await.unwrap()
    }

    pub async fn rotate(&mut self) {
        let request = RotateRequest { commitment: self.commitment(), client_seed: None };
        self.view = self.past.seeds.rotate(self.id, &request).await.unwrap().session;
    }

    pub async fn change_client_seed(&mut self, text: &str) {
        let client_seed = ClientSeed::parse(text).unwrap();
        let request = ClientSeedRequest { commitment: self.commitment(), client_seed };
        self.view = self.past.seeds.change_client_seed(self.id, &request).await.unwrap().session;
    }

    pub async fn close(&mut self) {
        self.view = self.past.seeds.close(self.id, &self.commitment()).await.unwrap().session;
    }

    /// Under a seed that is then revealed: five dice (0 to 4, the first settled), a round of mines with two steps (5), a void (6) and a
    /// recorded reservation (7). Under the live one: two dice. Gives the commitment of the revealed one.
    pub async fn every_kind(&mut self) -> Commitment {
        for _ in 0..5 {
            self.play("dice", json!({})).await;
        }
        self.settle(0, "2.75").await;
        let round = self.round("mines", json!({ "mines": 4 })).await;
        let shown = self.step(round, 0, Some(Disclose::Tiles(vec![3]))).await.unwrap();
        let lost = shown["tiles"][0]["mine"] == json!(true);
        if !lost {
            self.step(round, 1, None).await;
        }
        self.close_round(round, if lost { CloseOutcome::Lost } else { CloseOutcome::Cashout }).await;
        let void = self.reserve().await;
        self.void(void, "a dart fell").await;
        let reserved = self.reserve().await;
        self.record(reserved, json!({ "score": 180 })).await;
        let revealed = self.commitment();
        self.change_client_seed(&format!("chosen {}", self.bets)).await;
        self.play("dice", json!({})).await;
        self.play("dice", json!({})).await;
        revealed
    }
}
