//! The service told to stop while it works: what it acknowledged is there, and what is unknown is resolved by the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::{Connection as _, Executor as _};
use tokio::task::JoinSet;

use super::*;
use crate::harness::Service;

/// Callers that spend and bet one after the other.
const CALLERS: usize = 16;

/// So many changes are acknowledged before the signal comes.
const BEFORE: u64 = 300;

struct Working {
    db: TestDb,
    witness: tempfile::TempDir,
    token: String,
    service: Service,
    told: Arc<Told>,
    acknowledged: Arc<AtomicU64>,
    /// Each ends with the change that the stop left without an answer, or refused.
    callers: JoinSet<Change>,
}

impl Working {
    async fn start() -> Self {
        let (db, witness) = (TestDb::new().await, tempfile::tempdir().unwrap());
        let token = db.admin_token().await;
        let service = Self::spawn(&db, &witness);
        let caller = Caller::new(&service, &token);
        assert_eq!(caller.call("PUT", "/v1/keys/k", Some(json!({}))).await.0, 201);
        let (told, acknowledged) = (Arc::<Told>::default(), Arc::<AtomicU64>::default());
        let mut callers = JoinSet::new();
        for _ in 0..CALLERS {
            let (caller, session) = (caller.clone(), caller.session().await);
            let (told, acknowledged) = (Arc::clone(&told), Arc::clone(&acknowledged));
            callers.spawn(async move {
                for number in 0_u64.. {
                    let change = if number % 2 == 0 { a_spend() } else { a_bet(&session, number) };
                    match change.try_send(&caller).await {
                        Ok(answer) if change.stands(&answer) => {
                            told.note(&change, &answer.1);
                            acknowledged.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok((status, answer)) => {
                            assert_eq!(status, 503, "{}: {answer}", change.name);
                            return change;
                        }
                        Err(_) => return change,
                    }
                }
                unreachable!("the service is stopped before")
            });
        }
        let working = Self { db, witness, token, service, told, acknowledged, callers };
        while working.acknowledged.load(Ordering::Relaxed) < BEFORE {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        working
    }

    fn spawn(db: &TestDb, witness: &tempfile::TempDir) -> Service {
        // Locks are waited for longer than the test takes.
        let env = [
            ("FAIRLEDGER_WITNESS_DIR", witness.path().to_str().unwrap()),
            ("FAIRLEDGER_LOCK_TIMEOUT", "1m"),
            ("FAIRLEDGER_STATEMENT_TIMEOUT", "1m"),
        ];
        Service::spawn(db, &env, &[])
    }

    fn signal(&self) {
        kill(Pid::from_raw(self.service.pid().cast_signed()), Signal::SIGTERM).unwrap();
    }

    /// Waits for the service's end.
    async fn end(mut self, code: i32) -> Self {
        let status = tokio::task::block_in_place(|| self.service.await_end(std::time::Duration::from_secs(25)));
        assert_eq!(status.code(), Some(code), "{}", self.service.logs());
        self.told.prove(&mut self.db.owner().await).await;
        self
    }

    /// The next service answers what this one left open.
    async fn resolve(self) {
        let next = tokio::task::block_in_place(|| Self::spawn(&self.db, &self.witness));
        let caller = Caller::new(&next, &self.token);
        for change in self.callers.join_all().await {
            self.told.note(&change, &change.resolve(&caller).await);
        }
        self.told.prove(&mut self.db.owner().await).await;
        assert!(!next.logs().contains("QUARANTINE"), "{}", next.logs());
    }
}

fn a_spend() -> Change {
    Change { name: "spend", method: "POST", path: "/v1/spends".into(), body: spend() }
}

fn a_bet(session: &Value, number: u64) -> Change {
    let body = json!({ "commitment": session["commitment"], "betRef": number.to_string(), "game": "dice" });
    Change { name: "bet", method: "POST", path: format!("/v1/sessions/{}/bets", id(session)), body }
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_under_load_the_service_loses_nothing_that_it_acknowledged_i1_i3_i9() {
    let working = Working::start().await;
    working.signal();
    working.end(0).await.resolve().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_twice_under_load_it_ends_at_once_and_loses_nothing_that_it_acknowledged_i1_i3_i9() {
    let working = Working::start().await;
    // A session's row is held, so that the first signal finds a change that does not end.
    let mut owner = working.db.owner().await;
    owner.execute("BEGIN; SELECT FROM fairledger.seeds FOR UPDATE").await.unwrap();
    working
        .db
        .wait_until(
            "SELECT EXISTS (SELECT FROM pg_stat_activity
             WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0)",
        )
        .await;
    working.signal();
    while !working.service.logs().contains("a second signal ends at once") {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    working.signal();
    let ended = working.end(1).await;
    // What the service's connections still wait for is done, or not, once the row is free.
    owner.close().await.unwrap();
    ended.resolve().await;
}
