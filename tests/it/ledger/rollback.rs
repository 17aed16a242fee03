//! I1: tokens given back, at the same time as they are spent and swept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use chrono::{DateTime, Utc};
use fairledger::ledger::{Ledger, LedgerError, SpendLedger, Token};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::{code, has_partition, hours, key_with_window, ledger, spend, sweep_all, token};
use crate::harness::TestClock;
use crate::harness::TestDb;

const CALLERS: usize = 3;
const SPENDS_MIN: u64 = 300;
/// How often each of the judgements on what the others held must have been possible.
const JUDGED_MIN: u64 = 10;

/// What the others may know of one caller.
#[derive(Clone, Copy, PartialEq)]
enum Holds {
    SurelyNothing,
    Maybe,
    SurelyASpend,
}

/// What one caller shows of itself; the version tells two looks apart between which it changed and changed back.
#[derive(Default)]
struct Shown(AtomicU64);

impl Shown {
    fn show(&self, holds: Holds) {
        let version = self.0.load(SeqCst) >> 2;
        self.0.store((version + 1) << 2 | holds as u64, SeqCst);
    }
}

#[derive(Default)]
struct Table {
    shown: [Shown; CALLERS],
    /// The key was seen expired: nothing may be fresh from then on.
    expired: AtomicBool,
    fresh: AtomicU64,
    refused: AtomicU64,
    /// Spends during which nobody else held anything for sure, and those during which somebody else did for sure.
    judged: [AtomicU64; 2],
}

impl Table {
    fn others(&self, me: usize) -> Vec<u64> {
        let others = self.shown.iter().enumerate().filter(|(caller, _)| *caller != me);
        others.map(|(_, shown)| shown.0.load(SeqCst)).collect()
    }
}

async fn sit_out(tick: &mut Interval) {
    for _ in 0..rand::random_range(1..8) {
        tick.tick().await;
    }
}

/// Spends and gives back at every tick until the key is expired.
async fn spend_and_give_back(ledger: Ledger, table: Arc<Table>, me: usize, token: Token) {
    let mut tick = interval(Duration::from_millis(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // Callers sit out some ticks, so that now and then one surely holds nothing, or a spend, all through another's request.
        sit_out(&mut tick).await;
        let mine = spend(&token);
        let expired = table.expired.load(SeqCst);
        table.shown[me].show(Holds::Maybe);
        let before = table.others(me);
        let outcome = ledger.spend(&mine).await;
        let after = table.others(me);
        let throughout = |holds: Holds| before.iter().zip(&after).map(move |(b, a)| b == a && b & 3 == holds as u64);
        let nobody = throughout(Holds::SurelyNothing).all(|nothing| nothing);
        let somebody = throughout(Holds::SurelyASpend).any(|spend| spend);
        match outcome {
            Ok(spent) => {
                table.shown[me].show(Holds::SurelyASpend);
                assert!(!spent.replayed && !expired, "fresh under a key that was expired");
                assert!(!somebody, "two spends stand");
                table.fresh.fetch_add(1, SeqCst);
                sit_out(&mut tick).await;
                table.shown[me].show(Holds::Maybe);
                match ledger.roll_back(&mine).await {
                    Ok(()) => {}
                    Err(LedgerError::NotSpent) => {
                        assert_eq!(code(&ledger.spend(&mine).await), "key_expired", "only a sweep forgets a spend");
                    }
                    Err(error) => panic!("{error}"),
                }
                // A late second one frees nothing of anybody else's.
                assert!(["not_spent", "spent_by_another"].contains(&code(&ledger.roll_back(&mine).await)));
            }
            Err(LedgerError::AlreadySpent) => {
                assert!(!nobody, "already_spent for a token that does not stand");
                table.refused.fetch_add(1, SeqCst);
            }
            Err(LedgerError::KeyExpired) => {
                table.expired.store(true, SeqCst);
                return;
            }
            Err(error) => panic!("{error}"),
        }
        table.judged[0].fetch_add(u64::from(nobody), SeqCst);
        table.judged[1].fetch_add(u64::from(somebody), SeqCst);
        table.shown[me].show(Holds::SurelyNothing);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_rollback_racing_spend_and_sweep_every_millisecond() {
    let db = TestDb::new().await;
    let noon: DateTime<Utc> = "2030-06-01T12:00:00Z".parse().unwrap();
    let mut clock = TestClock::install(&db, noon).await;
    let services = [ledger(&db).await, ledger(&db).await];
    key_with_window(&services[0], "k", noon, noon + hours(1)).await;
    let table = Arc::new(Table::default());
    let callers: Vec<_> = (0..CALLERS)
        .map(|me| tokio::spawn(spend_and_give_back(services[me % 2].clone(), Arc::clone(&table), me, token("k", 1))))
        .collect();
    let sweeper = {
        let (ledger, table) = (services[0].clone(), Arc::clone(&table));
        tokio::spawn(async move {
            let mut tick = interval(Duration::from_millis(1));
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !table.expired.load(SeqCst) {
                tick.tick().await;
                ledger.sweep().await.unwrap();
            }
        })
    };
    // Long enough for each of the judgements to have been made.
    while table.fresh.load(SeqCst) < SPENDS_MIN
        || table.refused.load(SeqCst) == 0
        || table.judged.iter().any(|judged| judged.load(SeqCst) < JUDGED_MIN)
    {
        assert!(callers.iter().all(|caller| !caller.is_finished()), "a caller failed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    clock.set(noon + hours(1)).await;
    for caller in callers {
        caller.await.unwrap();
    }
    sweeper.await.unwrap();
    sweep_all(&services[0]).await;
    assert!(!has_partition(&db, "k").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_of_many_rollbacks_at_once_one_gives_back() {
    let db = TestDb::new().await;
    let services = [ledger(&db).await, ledger(&db).await];
    super::open_key(&services[0], "k").await;
    for number in 0..20 {
        let first = spend(&token("k", number));
        services[0].spend(&first).await.unwrap();
        let callers: Vec<_> = (0..8)
            .map(|caller| {
                let (service, first) = (services[caller % 2].clone(), first.clone());
                tokio::spawn(async move { code(&service.roll_back(&first).await) })
            })
            .collect();
        let mut codes = Vec::new();
        for caller in callers {
            codes.push(caller.await.unwrap());
        }
        codes.sort_unstable();
        assert_eq!(codes, [["not_spent"; 7].as_slice(), &["ok"]].concat());
    }
}
