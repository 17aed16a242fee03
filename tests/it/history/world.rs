//! A history of every kind of bet, made through the services, and what is known of it by another way than the one under test.

use std::time::Duration;

use chrono::{DateTime, Utc};
use fairledger::db::{Datastore, PoolSettings, Reader};
use fairledger::gfs::{Commitment, Rules};
use fairledger::history::{Filters, History, HistorySettings};
use fairledger::seeds::model::BetStatus;
use fairledger::seeds::values::{BoundedJson, Currency, OutsideGame, PlayerRef, RESULT_BYTES_MAX, VoidReason};
use fairledger::seeds::{
    BetRequest, CloseOutcome, CloseRequest, GameRequest, KeyRing, RecordRequest, ReservationRequest, RotateRequest,
    Seeds, SeedsSettings, ServiceSecret, SessionRequest, SettlementRequest, VoidRequest, Wager,
};
use rand::RngExt as _;
use rand::rngs::StdRng;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::harness::TestDb;
use crate::seeds::{all_bets, bet_ref, bounded, game, money};

const RING: &str = "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

pub struct World {
    pub db: TestDb,
    pub seeds: Seeds,
    /// The same, but its reservations expire at once.
    pub hasty: Seeds,
    pub history: History,
    /// Sessions with their players.
    pub sessions: Vec<(Uuid, Option<String>)>,
}

/// A bet as the session's own listing shows it.
#[derive(Clone, Debug)]
pub struct Known {
    pub answer: Value,
    pub place: (Uuid, usize, u64),
    pub taken_at: DateTime<Utc>,
    pub player: Option<String>,
    pub status: BetStatus,
}

pub async fn seeds_of(db: &TestDb, settings: SeedsSettings) -> Seeds {
    let store = Datastore::connect(&db.service_url, &PoolSettings::default()).await.unwrap();
    let ring = KeyRing::parse(RING).unwrap();
    Seeds::start(store, ring, ServiceSecret::new([7; 32]), None, settings).await.unwrap()
}

pub fn history_of(seeds: &Seeds, settings: HistorySettings) -> History {
    History::new(Reader::from(seeds.datastore()), ServiceSecret::new([7; 32]), settings)
}

impl World {
    pub async fn empty() -> Self {
        let db = TestDb::new().await;
        let settings = SeedsSettings { pending_max: 1_000, ..SeedsSettings::default() };
        let seeds = seeds_of(&db, settings.clone()).await;
        let hasty = seeds_of(&db, SeedsSettings { reservation_ttl: Duration::from_millis(1), ..settings }).await;
        let history = history_of(&seeds, HistorySettings::default());
        Self { db, seeds, hasty, history, sessions: Vec::new() }
    }

    /// Sessions of a few players, each with bets of every kind in random order.
    pub async fn random(rng: &mut StdRng, sessions: usize, changes: usize) -> Self {
        let mut world = Self::empty().await;
        for _ in 0..sessions {
            let player = rng.random_bool(0.8).then(|| format!("player {}", rng.random_range(0..3)));
            // Ids in no order of time.
            let session_id = Some(Uuid::from_u128(rng.random()));
            let player_ref = player.as_deref().map(|player| PlayerRef::parse(player).unwrap());
            let request = SessionRequest { session_id, player_ref, ..SessionRequest::default() };
            let view = world.seeds.create_session(&request).await.unwrap().view;
            world.sessions.push((view.session_id, player));
        }
        for number in 0..changes {
            let (session_id, _) = world.sessions[rng.random_range(0..sessions)];
            world.change(rng, session_id, number).await;
        }
        world
    }

    async fn change(&self, rng: &mut StdRng, session_id: Uuid, number: usize) {
        let view = self.seeds.view(session_id).await.unwrap();
        let commitment = view.commitment;
        // Some references stand in several sessions.
        let name = if rng.random_bool(0.5) { format!("n:{number}") } else { format!("s:{}", view.bets) };
        match rng.random_range(0..10) {
            0..=3 => {
                let name_of_game = ["dice", "limbo", "mines", "plinko"][rng.random_range(0..4)];
                let bet = self.seeds.take_bet(session_id, &wagered(commitment, name, name_of_game, false)).await;
                // The reference may name another bet.
                if let Ok(bet) = bet
                    && !bet.replayed
                    && rng.random_bool(0.3)
                {
                    self.settle(session_id, commitment, bet.record["nonce"].as_u64().unwrap()).await;
                }
            }
            4 | 5 => {
                let round = self.seeds.take_bet(session_id, &wagered(commitment, name, "mines", true)).await;
                if let Ok(round) = round
                    && rng.random_bool(0.6)
                {
                    let outcome =
                        if rng.random_bool(0.5) { CloseOutcome::Cashout } else { CloseOutcome::Void(reason()) };
                    let nonce = round.record["nonce"].as_u64().unwrap();
                    let _ = self.seeds.close_round(session_id, &commitment, nonce, &CloseRequest { outcome }).await;
                }
            }
            6 | 7 => {
                if let Ok(reserved) = self.seeds.reserve(session_id, &reservation(commitment, &name)).await {
                    let nonce = reserved.nonce;
                    match rng.random_range(0..3) {
                        0 => {
                            let result = BoundedJson::new(json!({"line": number}), RESULT_BYTES_MAX).unwrap();
                            let request = RecordRequest { commitment: reserved.commitment, nonce, result };
                            let _ = self.seeds.record(session_id, &request).await;
                        }
                        1 => {
                            let request = VoidRequest { commitment: reserved.commitment, nonce, reason: reason() };
                            let _ = self.seeds.void(session_id, &request).await;
                        }
                        _ => {}
                    }
                }
            }
            8 => drop(self.hasty.reserve(session_id, &reservation(commitment, &name)).await),
            // Refused while bets are pending.
            _ => drop(self.seeds.rotate(session_id, &RotateRequest { commitment, client_seed: None }).await),
        }
    }

    pub async fn settle(&self, session_id: Uuid, commitment: Commitment, nonce: u64) {
        let request = SettlementRequest {
            commitment,
            nonce,
            payout: money("3.50"),
            outcome: None,
            displayed: Some(bounded(json!({"text": "3,50 \"won\"\n"}))),
            rules: Some(bounded(json!({"table": 7}))),
        };
        self.seeds.settle(session_id, &request).await.unwrap();
    }

    /// Every bet, by the listings of the sessions.
    pub async fn known(&self) -> Vec<Known> {
        // Whatever is about to expire has.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let mut known = Vec::new();
        for (session_id, player) in &self.sessions {
            let list = self.seeds.seeds_of_session(*session_id).await.unwrap().seeds;
            for bet in all_bets(&self.seeds, *session_id).await {
                let answer = serde_json::to_value(&bet).unwrap();
                let seed_no =
                    list.iter().position(|seed| seed.commitment.to_string() == answer["record"]["commitment"]).unwrap();
                known.push(Known {
                    place: (*session_id, seed_no, answer["record"]["nonce"].as_u64().unwrap()),
                    taken_at: bet.meta.taken_at.0,
                    player: player.clone(),
                    status: bet.meta.status,
                    answer,
                });
            }
        }
        known
    }
}

impl Known {
    fn fits(&self, filters: &Filters) -> bool {
        let text = |pointer: &str| self.answer.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        filters.session_id.is_none_or(|id| id == self.place.0)
            && filters.player_ref.as_ref().is_none_or(|player| Some(player.as_str()) == self.player.as_deref())
            && filters.commitment.is_none_or(|commitment| commitment.to_string() == text("/record/commitment"))
            && filters.nonce.is_none_or(|nonce| nonce == self.place.2)
            && filters.bet_ref.as_ref().is_none_or(|name| name.as_str() == text("/meta/betRef"))
            && filters.game.as_ref().is_none_or(|game| game.as_str() == text("/record/game"))
            && filters.status.is_none_or(|status| status == self.status)
            && filters.from.is_none_or(|from| self.taken_at >= from.0)
            && filters.to.is_none_or(|to| self.taken_at < to.0)
    }
}

/// What of the known bets fits, in the stated order, newest or highest first.
pub fn expected(known: &[Known], filters: &Filters) -> Vec<Value> {
    let mut fitting: Vec<&Known> = known.iter().filter(|bet| bet.fits(filters)).collect();
    let placed = filters.session_id.is_some()
        || filters.player_ref.is_some()
        || filters.commitment.is_some()
        || filters.bet_ref.is_some();
    if placed {
        fitting.sort_by_key(|bet| std::cmp::Reverse(bet.place));
    } else {
        fitting.sort_by_key(|bet| std::cmp::Reverse((bet.taken_at, bet.place)));
    }
    fitting.into_iter().map(|bet| bet.answer.clone()).collect()
}

pub fn reason() -> VoidReason {
    VoidReason::parse("table closed").unwrap()
}

pub fn reservation(commitment: Commitment, name: &str) -> ReservationRequest {
    ReservationRequest {
        commitment,
        bet_ref: bet_ref(name),
        game: OutsideGame::parse("x-slots").unwrap(),
        params: Map::new(),
        rules: Rules::new("slots-7", [9; 32]).unwrap(),
        floats: 3,
        wager: Wager { stake: Some(money("3")), ..Wager::default() },
    }
}

pub fn wagered(commitment: Commitment, name: String, game_name: &str, conceal: bool) -> BetRequest {
    let GameRequest { play, conceal } = game(commitment, &name, game_name, &json!({}), conceal).game;
    let wager = Wager {
        selection: Some(bounded(json!({"over": 50}))),
        stake: Some(money("1.50")),
        currency: Some(Currency::parse("EUR").unwrap()),
        context: Some(bounded(json!("a, \"b\"\r\n=c"))),
    };
    BetRequest { commitment, bet_ref: bet_ref(name), game: GameRequest { play, conceal }, wager }
}
