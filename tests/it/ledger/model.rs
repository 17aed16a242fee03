//! I1 and I2 against a model: random requests, several at once, and the database's clock moved forth and back between and among them.
//! Whatever was answered must be what the model answers for some order of the requests that were under way together.

use std::collections::{BTreeMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use fairledger::ledger::{Key, KeyState, Ledger, LedgerError, Outcome, Spend, SpendLedger, Spent};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use uuid::Uuid;

use super::{code, key_id, key_with_window, ledger, ledger_alone, spend, token};
use crate::harness::TestClock;
use crate::harness::TestDb;

const ROUNDS: usize = 400;
const AT_ONCE_MAX: usize = 5;
const TOKENS: u128 = 3;

/// One request, or one step of the clock.
#[derive(Clone, Debug)]
enum Step {
    Spend(Spend),
    SpendAll([Spend; 2]),
    RollBack(Spend),
    Close,
    Sweep,
    Clock(DateTime<Utc>),
}

/// All that the ledger must know of one key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Model {
    now: DateTime<Utc>,
    from: DateTime<Utc>,
    until: DateTime<Utc>,
    state: State,
    standing: BTreeMap<Vec<u8>, Uuid>,
}

/// In the order in which a key goes through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum State {
    Open,
    Closed,
    Swept,
}

impl Model {
    /// What spending comes to, with nothing changed. Written from DESIGN's words, not from the code.
    fn spending(&self, spend: &Spend) -> &'static str {
        let standing = self.standing.get(spend.token.nonce.as_bytes());
        if self.state == State::Swept {
            "key_expired"
        } else if standing == Some(&spend.spend_id.as_uuid()) {
            "replayed"
        } else if self.state == State::Closed || self.now >= self.until {
            "key_expired"
        } else if self.now < self.from {
            "key_not_yet_valid"
        } else if standing.is_some() {
            "already_spent"
        } else {
            "fresh"
        }
    }

    fn spend(&mut self, spend: &Spend) -> &'static str {
        let outcome = self.spending(spend);
        if outcome == "fresh" {
            self.standing.insert(spend.token.nonce.as_bytes().to_vec(), spend.spend_id.as_uuid());
        }
        outcome
    }

    fn spend_all(&mut self, spends: &[Spend; 2]) -> String {
        let outcomes = [self.spending(&spends[0]), self.spending(&spends[1])];
        let refused = outcomes.iter().any(|outcome| !["fresh", "replayed"].contains(outcome));
        if refused {
            return format!(
                "refused {}",
                outcomes.map(|outcome| if outcome == "fresh" { "not_spent" } else { outcome }).join(" ")
            );
        }
        spends.iter().map(|spend| self.spend(spend)).collect::<Vec<_>>().join(" ")
    }

    fn roll_back(&mut self, spend: &Spend) -> &'static str {
        match self.standing.get(spend.token.nonce.as_bytes()) {
            Some(id) if *id == spend.spend_id.as_uuid() => {
                self.standing.remove(spend.token.nonce.as_bytes());
                "rolled_back"
            }
            Some(_) => "spent_by_another",
            None => "not_spent",
        }
    }

    fn step(&mut self, step: &Step) -> String {
        match step {
            Step::Spend(spend) => self.spend(spend).to_owned(),
            Step::SpendAll(spends) => self.spend_all(spends),
            Step::RollBack(spend) => self.roll_back(spend).to_owned(),
            Step::Close => {
                if self.state == State::Open {
                    self.state = State::Closed;
                }
                String::new()
            }
            Step::Sweep => {
                if self.now >= self.until && self.state != State::Swept {
                    self.state = State::Swept;
                    self.standing.clear();
                }
                String::new()
            }
            Step::Clock(at) => {
                self.now = *at;
                String::new()
            }
        }
    }

    /// The model after a step that saw this time and this state of the key; none when the answer would have been another.
    fn after(&self, step: &Step, answer: &str, now: DateTime<Utc>, state: State) -> Option<Self> {
        let mut next = Self { now, state, ..self.clone() };
        if next.step(step) != answer {
            return None;
        }
        next.now = if let Step::Clock(at) = step { *at } else { self.now };
        next.state = next.state.max(self.state);
        if next.state == State::Swept {
            next.standing.clear();
        }
        Some(next)
    }
}

/// Every state in which some order of the steps leaves the model, with the answers that were given.
///
/// A request reads the clock and the key at one instant and takes effect, all of it, at a later one. So of a clock that moves while it is
/// under way it may have seen any time that was shown; and a key that is closed or swept meanwhile it may have seen as it was before:
/// what is promised is that nothing is accepted that begins after the closing is answered.
fn explained(models: &HashSet<Model>, steps: &[(Step, String)]) -> HashSet<Model> {
    let set = steps.iter().filter_map(|(step, _)| if let Step::Clock(at) = step { Some(*at) } else { None });
    let shown: HashSet<DateTime<Utc>> = models.iter().map(|model| model.now).chain(set).collect();
    let states: HashSet<State> = models.iter().map(|model| model.state).collect();
    in_some_order(models, steps, &shown, &states)
}

fn in_some_order(
    models: &HashSet<Model>,
    steps: &[(Step, String)],
    shown: &HashSet<DateTime<Utc>>,
    states: &HashSet<State>,
) -> HashSet<Model> {
    if steps.is_empty() {
        return models.clone();
    }
    let mut after = HashSet::new();
    for first in 0..steps.len() {
        let mut rest = steps.to_vec();
        let (step, answer) = rest.remove(first);
        let mut next = HashSet::new();
        for model in models {
            for now in shown {
                for state in states.iter().chain([&model.state]) {
                    next.extend(model.after(&step, &answer, *now, *state));
                }
            }
        }
        if !next.is_empty() {
            after.extend(in_some_order(&next, &rest, shown, states));
        }
    }
    after
}

async fn ask(
    ledger: Ledger,
    key: String,
    step: Step,
    clock: std::sync::Arc<tokio::sync::Mutex<TestClock>>,
) -> (Step, String) {
    let spent = |result: &Result<Spent, LedgerError>| match result {
        Ok(spent) => if spent.replayed { "replayed" } else { "fresh" }.to_owned(),
        Err(_) => code(result).to_owned(),
    };
    let each = |results: &[fairledger::ledger::BatchResult]| {
        let words = results.iter().map(|result| match (result.outcome, result.replayed) {
            (Outcome::Fresh, true) => "replayed",
            (outcome, _) => outcome.as_str(),
        });
        words.collect::<Vec<_>>().join(" ")
    };
    let answer = match &step {
        Step::Spend(spend) => spent(&ledger.spend(spend).await),
        Step::SpendAll(spends) => match ledger.spend_all(spends).await {
            Ok(results) => each(&results),
            Err(LedgerError::BatchRefused { results }) => format!("refused {}", each(&results)),
            Err(error) => panic!("{error}"),
        },
        Step::RollBack(spend) => match ledger.roll_back(spend).await {
            Ok(()) => "rolled_back".to_owned(),
            other => code(&other).to_owned(),
        },
        Step::Close => {
            ledger.close_key(&key_id(&key)).await.unwrap();
            String::new()
        }
        Step::Sweep => {
            ledger.sweep().await.unwrap();
            String::new()
        }
        Step::Clock(at) => {
            clock.lock().await.set(*at).await;
            String::new()
        }
    };
    (step, answer)
}

struct Driver {
    random: StdRng,
    key: Key,
    /// Spends that were asked for before: for retries and rollbacks.
    known: Vec<Spend>,
}

impl Driver {
    fn spend(&mut self) -> Spend {
        if !self.known.is_empty() && self.random.random_bool(0.4) {
            let choice = self.random.random_range(0..self.known.len());
            return self.known[choice].clone();
        }
        let spend = spend(&token(self.key.key_id.as_str(), self.random.random_range(0..TOKENS)));
        self.known.push(spend.clone());
        spend
    }

    fn step(&mut self, swept_already: bool) -> Step {
        match self.random.random_range(0..100) {
            0..50 => Step::Spend(self.spend()),
            50..60 => {
                let spends = [self.spend(), self.spend()];
                if spends[0].token == spends[1].token { Step::Spend(spends[0].clone()) } else { Step::SpendAll(spends) }
            }
            60..82 => Step::RollBack(self.spend()),
            82..84 => Step::Close,
            84..90 if !swept_already => Step::Sweep,
            _ => {
                let window = self.key.redeem_until - self.key.redeem_from;
                // Mostly within the window, and at its very edges.
                let at = match self.random.random_range(0..12) {
                    0 => self.key.redeem_from - TimeDelta::microseconds(1),
                    1 => self.key.redeem_until - TimeDelta::microseconds(1),
                    2 => self.key.redeem_until,
                    _ => {
                        self.key.redeem_from
                            + TimeDelta::microseconds(self.random.random_range(0..window.num_microseconds().unwrap()))
                    }
                };
                Step::Clock(at)
            }
        }
    }
}

async fn run(seed: u64, grouped: bool) {
    let db = TestDb::new().await;
    let noon: DateTime<Utc> = "2030-06-01T12:00:00Z".parse().unwrap();
    let clock = std::sync::Arc::new(tokio::sync::Mutex::new(TestClock::install(&db, noon).await));
    let services = if grouped {
        [ledger(&db).await, ledger(&db).await]
    } else {
        [ledger_alone(&db).await, ledger_alone(&db).await]
    };
    let mut owner = db.connect(&db.owner_url).await;
    let key = key_with_window(&services[0], "k0", noon, noon + TimeDelta::hours(1)).await;
    let mut driver = Driver { random: StdRng::seed_from_u64(seed), key, known: Vec::new() };
    let new_model = |key: &Key, now| Model {
        now,
        from: key.redeem_from,
        until: key.redeem_until,
        state: State::Open,
        standing: BTreeMap::new(),
    };
    let mut models = HashSet::from([new_model(&driver.key, noon)]);
    let mut answers: BTreeMap<String, usize> = BTreeMap::new();
    for round in 0..ROUNDS {
        let mut steps: Vec<Step> = Vec::new();
        for _ in 0..driver.random.random_range(1..=AT_ONCE_MAX) {
            let swept_already = steps.iter().any(|step| matches!(step, Step::Sweep));
            steps.push(driver.step(swept_already));
        }
        let key = driver.key.key_id.to_string();
        let asked: Vec<_> = steps
            .into_iter()
            .enumerate()
            .map(|(place, step)| tokio::spawn(ask(services[place % 2].clone(), key.clone(), step, clock.clone())))
            .collect();
        let mut answered = Vec::new();
        for asked in asked {
            let (step, answer) = asked.await.unwrap();
            *answers.entry(answer.clone()).or_default() += 1;
            answered.push((step, answer));
        }
        let after = explained(&models, &answered);
        assert!(!after.is_empty(), "seed {seed}, round {round}: from {models:#?}\nno order explains {answered:#?}");
        // What is stored now tells which of them it was.
        let (state, stored) = stored(&mut owner, &key).await;
        models = after
            .into_iter()
            .filter(|model| model.state == state && (state == State::Swept || model.standing == stored))
            .collect();
        assert!(!models.is_empty(), "seed {seed}, round {round}: {answered:#?}\nleft {state:?} with {stored:?}");
        if state != State::Open && driver.random.random_bool(0.3) {
            // That key's story is told; the next one begins. The clock goes back into its window if it must.
            let next = format!("k{}", round + 1);
            clock.lock().await.set(noon).await;
            driver.key = key_with_window(&services[0], &next, noon, noon + TimeDelta::hours(1)).await;
            driver.known.clear();
            models = HashSet::from([new_model(&driver.key, noon)]);
        }
    }
    for word in [
        "fresh",
        "replayed",
        "already_spent",
        "key_expired",
        "key_not_yet_valid",
        "rolled_back",
        "not_spent",
        "spent_by_another",
    ] {
        assert!(answers.contains_key(word), "seed {seed}: {word} never came up: {answers:?}");
    }
    let (refused, accepted): (Vec<&String>, _) =
        answers.keys().filter(|answer| answer.contains(' ')).partition(|answer| answer.starts_with("refused "));
    assert!(!refused.is_empty() && !accepted.is_empty(), "seed {seed}: batches all went one way: {answers:?}");
}

async fn stored(owner: &mut sqlx::PgConnection, key: &str) -> (State, BTreeMap<Vec<u8>, Uuid>) {
    let (key_no, state): (i32, String) =
        sqlx::query_as("SELECT key_no, state FROM fairledger.token_keys WHERE key_id = $1")
            .bind(key)
            .fetch_one(&mut *owner)
            .await
            .unwrap();
    let state = match state.as_str() {
        word if word == KeyState::Open.as_str() => State::Open,
        word if word == KeyState::Closed.as_str() => State::Closed,
        word if word == KeyState::Swept.as_str() => State::Swept,
        other => panic!("{other}"),
    };
    let rows: Vec<(Vec<u8>, Uuid)> = sqlx::query_as("SELECT nonce, spend_id FROM fairledger.spends WHERE key_no = $1")
        .bind(key_no)
        .fetch_all(owner)
        .await
        .unwrap();
    (state, rows.into_iter().collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_i2_what_was_answered_is_what_some_order_of_the_requests_explains() {
    run(1, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_i2_the_same_with_every_spend_in_a_transaction_of_its_own() {
    run(1, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_i2_the_same_from_a_seed_of_its_own_each_time() {
    let seed = std::env::var("FAIRLEDGER_MODEL_SEED").ok().map_or_else(rand::random, |seed| seed.parse().unwrap());
    println!("FAIRLEDGER_MODEL_SEED={seed}");
    run(seed, true).await;
}
