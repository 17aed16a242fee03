//! The services against an oracle: random sequences of operations, the same verdict and the same state after each.

use std::collections::BTreeMap;

use fairledger::gfs::{ClientSeed, Commitment};
use fairledger::seeds::error::SeedsError;
use fairledger::seeds::model::{BetStatus, SessionStatus, View};
use fairledger::seeds::values::{BoundedJson, VoidReason};
use fairledger::seeds::{
    ClientSeedRequest, CloseOutcome, CloseRequest, RecordRequest, RotateRequest, Seeds, SettlementRequest, VoidRequest,
};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use uuid::Uuid;

use super::pending::reservation;
use super::{all_bets, game, in_every_form, inspected, money, nonce_of, session};

in_every_form!(random_operations_come_to_what_the_rules_say,);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Played,
    Round,
    Reservation,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Pending,
    Recorded(String),
    Void(String),
}

#[derive(Clone, Debug)]
struct Bet {
    seed: usize,
    nonce: u64,
    kind: Kind,
    state: State,
    payout: Option<u64>,
}

#[derive(Clone, Debug)]
struct Seed {
    commitment: Commitment,
    client_seed: String,
    bets: u64,
    ended: Option<&'static str>,
}

/// What the rules say a session is.
struct Oracle {
    open: bool,
    seeds: Vec<Seed>,
    next: Commitment,
    bets: BTreeMap<String, Bet>,
}

/// What an operation came to: done, done before, or the refusal's name.
type Verdict = &'static str;

impl Oracle {
    fn new(view: &View) -> Self {
        let client_seed = view.client_seed.as_str().to_owned();
        let live = Seed { commitment: view.commitment, client_seed, bets: 0, ended: None };
        Self { open: true, seeds: vec![live], next: view.next_commitment.unwrap(), bets: BTreeMap::new() }
    }

    fn live(&mut self) -> &mut Seed {
        self.seeds.last_mut().unwrap()
    }

    fn pending(&self) -> usize {
        self.bets.values().filter(|bet| bet.state == State::Pending).count()
    }

    fn find(&mut self, commitment: Commitment, nonce: u64) -> Option<&mut Bet> {
        let seed = self.seeds.iter().position(|seed| seed.commitment == commitment)?;
        self.bets.values_mut().find(|bet| bet.seed == seed && bet.nonce == nonce)
    }

    fn take(&mut self, commitment: Commitment, name: &str, kind: Kind) -> Verdict {
        if let Some(bet) = self.bets.get(name) {
            return if bet.kind == kind { "replayed" } else { "bet_ref_reused" };
        }
        if !self.open {
            return "session_closed";
        }
        let (seed, pending) = (self.seeds.len() - 1, self.pending());
        if self.live().commitment != commitment {
            return "commitment_changed";
        }
        if kind != Kind::Played && pending >= 16 {
            return "too_many_pending";
        }
        let nonce = self.live().bets;
        self.live().bets += 1;
        let state = if kind == Kind::Played { State::Recorded(String::new()) } else { State::Pending };
        self.bets.insert(name.to_owned(), Bet { seed, nonce, kind, state, payout: None });
        "done"
    }

    fn replace(
        &mut self,
        commitment: Commitment,
        wanted: Option<&str>,
        by: &'static str,
        next: Option<Commitment>,
    ) -> Verdict {
        if let Some(old) = self.seeds.iter().position(|seed| seed.commitment == commitment && seed.ended == Some(by)) {
            let after = self.seeds.get(old + 1).map(|seed| seed.client_seed.as_str());
            if after == Some(wanted.unwrap_or(&self.seeds[old].client_seed)) {
                return "replayed";
            }
        }
        if !self.open {
            return "session_closed";
        }
        if self.live().commitment != commitment {
            return "commitment_changed";
        }
        let text = wanted.unwrap_or(&self.live().client_seed).to_owned();
        if by == "client_seed" && text == self.live().client_seed {
            return "replayed";
        }
        if self.pending() > 0 {
            return "bets_pending";
        }
        if by == "rotation" && self.live().bets == 0 {
            return "nothing_to_reveal";
        }
        self.live().ended = Some(by);
        let live = Seed { commitment: self.next, client_seed: text, bets: 0, ended: None };
        self.seeds.push(live);
        self.next = next.expect("the service replaced the seed too");
        "done"
    }

    fn close(&mut self, commitment: Commitment) -> Verdict {
        let is_last = self.live().commitment == commitment;
        match (self.open, is_last) {
            (false, true) => "replayed",
            (false, false) => "session_closed",
            (true, false) => "commitment_changed",
            (true, true) => {
                for bet in self.bets.values_mut().filter(|bet| bet.state == State::Pending) {
                    bet.state = match bet.kind {
                        Kind::Reservation => State::Void("abandoned".into()),
                        _ => State::Recorded("abandoned".into()),
                    };
                }
                self.open = false;
                self.live().ended = Some("closing");
                "done"
            }
        }
    }

    fn record(&mut self, commitment: Commitment, nonce: u64, result: &str) -> Verdict {
        let Some(bet) = self.find(commitment, nonce).filter(|bet| bet.kind == Kind::Reservation) else {
            return "nonce_not_reserved";
        };
        match &bet.state {
            State::Recorded(stored) if stored == result => "replayed",
            State::Recorded(_) => "record_exists_with_different_content",
            State::Void(_) => "void",
            State::Pending => {
                bet.state = State::Recorded(result.to_owned());
                "done"
            }
        }
    }

    fn void(&mut self, commitment: Commitment, nonce: u64, reason: &str) -> Verdict {
        let Some(bet) = self.find(commitment, nonce) else { return "bet_not_found" };
        match &bet.state {
            State::Recorded(_) => "already_recorded",
            State::Void(stored) if stored == reason => "replayed",
            State::Void(_) => "void_with_different_reason",
            State::Pending => {
                bet.state = State::Void(reason.to_owned());
                "done"
            }
        }
    }

    fn close_round(&mut self, commitment: Commitment, nonce: u64, outcome: &str) -> Verdict {
        let Some(bet) = self.find(commitment, nonce).filter(|bet| bet.kind == Kind::Round) else {
            return "round_not_found";
        };
        match &bet.state {
            State::Recorded(stored) if stored == outcome => "replayed",
            State::Recorded(_) | State::Void(_) => "round_closed",
            State::Pending => {
                bet.state = State::Recorded(outcome.to_owned());
                "done"
            }
        }
    }

    fn settle(&mut self, commitment: Commitment, nonce: u64, payout: u64) -> Verdict {
        let Some(bet) = self.find(commitment, nonce) else { return "bet_not_found" };
        match (&bet.state, bet.payout) {
            (State::Recorded(_), None) => {
                bet.payout = Some(payout);
                "done"
            }
            (State::Recorded(_), Some(stored)) if stored == payout => "replayed",
            (State::Recorded(_), Some(_)) => "settled_with_different_content",
            _ => "not_recorded",
        }
    }
}

fn verdict<T>(result: &Result<T, SeedsError>, replayed: impl Fn(&T) -> bool) -> Verdict {
    match result {
        Ok(answer) if replayed(answer) => "replayed",
        Ok(_) => "done",
        Err(SeedsError::BetRefReused) => "bet_ref_reused",
        Err(SeedsError::SessionClosed) => "session_closed",
        Err(SeedsError::CommitmentChanged { .. }) => "commitment_changed",
        Err(SeedsError::TooManyPending) => "too_many_pending",
        Err(SeedsError::BetsPending) => "bets_pending",
        Err(SeedsError::NothingToReveal) => "nothing_to_reveal",
        Err(SeedsError::NonceNotReserved) => "nonce_not_reserved",
        Err(SeedsError::RecordExistsWithDifferentContent) => "record_exists_with_different_content",
        Err(SeedsError::Void { .. }) => "void",
        Err(SeedsError::BetNotFound) => "bet_not_found",
        Err(SeedsError::AlreadyRecorded) => "already_recorded",
        Err(SeedsError::VoidWithDifferentReason { .. }) => "void_with_different_reason",
        Err(SeedsError::RoundNotFound) => "round_not_found",
        Err(SeedsError::RoundClosed) => "round_closed",
        Err(SeedsError::SettledWithDifferentContent) => "settled_with_different_content",
        Err(SeedsError::NotRecorded) => "not_recorded",
        Err(error) => panic!("no rule leads to {error}"),
    }
}

/// A commitment to name: mostly the live one, sometimes an old one or the next.
fn some_commitment(random: &mut StdRng, oracle: &mut Oracle) -> Commitment {
    match random.random_range(0..10) {
        0 => oracle.next,
        1 | 2 => oracle.seeds[random.random_range(0..oracle.seeds.len())].commitment,
        _ => oracle.live().commitment,
    }
}

async fn one_operation(
    random: &mut StdRng,
    seeds: &Seeds,
    id: Uuid,
    oracle: &mut Oracle,
) -> (String, Verdict, Verdict) {
    let commitment = some_commitment(random, oracle);
    let name = format!("b{}", random.random_range(0..80));
    // Mostly a bet that is there.
    let nonce = random.random_range(0..oracle.live().bets.max(1) + 1);
    let word = ["a", "b"][random.random_range(0..2)];
    match random.random_range(0..100) {
        0..30 => {
            let conceal = random.random_bool(0.4);
            let request = game(commitment, &name, "mines", &json!({}), conceal);
            let got = verdict(&seeds.take_bet(id, &request).await, |bet| bet.replayed);
            let kind = if conceal { Kind::Round } else { Kind::Played };
            (format!("take {name} {kind:?}"), got, oracle.take(commitment, &name, kind))
        }
        30..45 => {
            let got = verdict(&seeds.reserve(id, &reservation(commitment, &name)).await, |bet| bet.replayed);
            (format!("reserve {name}"), got, oracle.take(commitment, &name, Kind::Reservation))
        }
        45..60 => {
            let result = BoundedJson::new(json!(word), 100).unwrap();
            let got =
                verdict(&seeds.record(id, &RecordRequest { commitment, nonce, result }).await, |bet| bet.replayed);
            (format!("record {nonce}"), got, oracle.record(commitment, nonce, word))
        }
        60..68 => {
            let reason = VoidReason::parse(word).unwrap();
            let got = verdict(&seeds.void(id, &VoidRequest { commitment, nonce, reason }).await, |bet| bet.replayed);
            (format!("void {nonce}"), got, oracle.void(commitment, nonce, word))
        }
        68..80 => {
            let (outcome, word) =
                [(CloseOutcome::Cashout, "cashout"), (CloseOutcome::Lost, "lost")][random.random_range(0..2)].clone();
            let closed = seeds.close_round(id, &commitment, nonce, &CloseRequest { outcome }).await;
            (
                format!("close round {nonce}"),
                verdict(&closed, |round| round.replayed),
                oracle.close_round(commitment, nonce, word),
            )
        }
        80..88 => {
            let payout = random.random_range(0..2);
            let request = SettlementRequest {
                commitment,
                nonce,
                payout: money(&payout.to_string()),
                outcome: None,
                displayed: None,
                rules: None,
            };
            (
                format!("settle {nonce}"),
                verdict(&seeds.settle(id, &request).await, |bet| bet.replayed),
                oracle.settle(commitment, nonce, payout),
            )
        }
        88..94 => {
            let wanted = random.random_bool(0.5).then_some(word);
            let client_seed = wanted.map(|text| ClientSeed::parse(text).unwrap());
            let done = seeds.rotate(id, &RotateRequest { commitment, client_seed }).await;
            let next = done.as_ref().ok().and_then(|done| done.session.next_commitment);
            (
                format!("rotate {wanted:?}"),
                verdict(&done, |done| done.replayed),
                oracle.replace(commitment, wanted, "rotation", next),
            )
        }
        94..99 => {
            let client_seed = ClientSeed::parse(word).unwrap();
            let done = seeds.change_client_seed(id, &ClientSeedRequest { commitment, client_seed }).await;
            let next = done.as_ref().ok().and_then(|done| done.session.next_commitment);
            (
                format!("client seed {word}"),
                verdict(&done, |done| done.replayed),
                oracle.replace(commitment, Some(word), "client_seed", next),
            )
        }
        _ => {
            let got = verdict(&seeds.close(id, &commitment).await, |done| done.replayed);
            ("close".into(), got, oracle.close(commitment))
        }
    }
}

async fn check_state(seeds: &Seeds, id: Uuid, oracle: &mut Oracle) {
    let view = seeds.view(id).await.unwrap();
    assert_eq!(view.status == SessionStatus::Open, oracle.open);
    assert_eq!((view.commitment, view.nonce), (oracle.live().commitment, oracle.live().bets));
    assert_eq!(view.client_seed.as_str(), oracle.live().client_seed);
    assert_eq!(view.next_commitment, oracle.open.then_some(oracle.next));
    assert_eq!(view.pending.len(), oracle.pending());
    let bets = all_bets(seeds, id).await;
    assert_eq!(bets.len(), oracle.bets.len());
    for bet in &bets {
        let expected = &oracle.bets[&bet.meta.bet_ref];
        let seed = &oracle.seeds[expected.seed];
        assert_eq!((nonce_of(bet), &bet.record["commitment"]), (expected.nonce, &json!(seed.commitment)));
        let state = match bet.meta.status {
            BetStatus::Pending => State::Pending,
            BetStatus::Void => State::Void(bet.meta.void_reason.clone().unwrap()),
            BetStatus::Recorded if expected.kind == Kind::Reservation => {
                State::Recorded(bet.record["result"].as_str().unwrap().to_owned())
            }
            BetStatus::Recorded => State::Recorded(bet.meta.round_outcome.unwrap_or_default().to_owned()),
        };
        assert_eq!(state, expected.state);
        let payout = bet.meta.settlement.as_ref().map(|settlement| settlement.payout.parse().unwrap());
        assert_eq!(payout, expected.payout);
        assert_eq!(bet.server_seed.is_some(), seed.ended.is_some() && seed.bets > 0);
        if bet.server_seed.is_some() && expected.kind != Kind::Reservation && bet.meta.status == BetStatus::Recorded {
            assert_eq!(inspected(bet), "matches");
        }
    }
}

async fn random_operations_come_to_what_the_rules_say(services: [Seeds; 2]) {
    for run in 0..8 {
        let number: u64 = rand::random();
        println!("run {run}: StdRng::seed_from_u64({number})");
        let mut random = StdRng::seed_from_u64(number);
        let view = session(&services[0]).await;
        let mut oracle = Oracle::new(&view);
        let mut log = Vec::new();
        for step in 0..150 {
            let seeds = &services[random.random_range(0..2)];
            let (operation, got, expected) = one_operation(&mut random, seeds, view.session_id, &mut oracle).await;
            log.push(operation);
            assert_eq!(got, expected, "operation {step}, after {log:#?}");
            if step % 25 == 24 {
                check_state(seeds, view.session_id, &mut oracle).await;
            }
        }
    }
}
