//! Spends: in groups, alone, as one INSERT a call, by Redis, and PostgreSQL's own ceiling.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fairledger::db::bootstrap;
use fairledger::ledger::{
    KeyId, KeyRequest, Ledger, LedgerError, LedgerSettings, Spend, SpendId, SpendLedger, Token, TokenNonce,
};
use redis::aio::MultiplexedConnection;
use sha2::{Digest as _, Sha256};
use sqlx::postgres::PgPoolOptions;
use uuid::Uuid;

use crate::load::{Load, Repeats, load};
use crate::servers::{Postgres, Redis};
use crate::{Done, random_uuid, writers};

/// How long Redis remembers a token: as long as a key's window is by default.
const REMEMBERED_S: u32 = 30 * 60 * 60;

/// A nonce of 32 bytes that looks random, the same for the same numbers.
pub fn nonce(run: u32, caller: u64, number: u64) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(run.to_be_bytes());
    hash.update(caller.to_be_bytes());
    hash.update(number.to_be_bytes());
    hash.finalize().into()
}

pub fn next_run() -> u32 {
    static RUN: AtomicU32 = AtomicU32::new(0);
    RUN.fetch_add(1, Ordering::Relaxed)
}

pub async fn ledger(postgres: &Postgres, grouped: bool) -> Done<Ledger> {
    let group = grouped.then(writers);
    let settings = LedgerSettings { keys_live_max: 1_000, group, ..LedgerSettings::default() };
    Ok(Ledger::new(postgres.store().await?, settings))
}

pub async fn new_key(ledger: &Ledger, run: u32) -> Done<KeyId> {
    let key_id: KeyId = format!("run-{run}").parse()?;
    ledger.register_key(&KeyRequest::new(key_id.clone())).await?;
    Ok(key_id)
}

/// Every token that was answered as fresh stands, and nothing else does.
pub async fn check(postgres: &Postgres, key_id: &KeyId, fresh: u64) -> Done<()> {
    let stored: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM fairledger.spends JOIN fairledger.token_keys USING (key_no) WHERE key_id = $1",
    )
    .bind(key_id.as_str())
    .fetch_one(&mut postgres.admin().await?)
    .await?;
    if stored == fresh as i64 { Ok(()) } else { Err(format!("{fresh} spends were answered, {stored} stand").into()) }
}

/// Through the library.
pub async fn through(
    postgres: &Postgres,
    ledger: &Ledger,
    callers: usize,
    time: Duration,
    repeats: Repeats,
) -> Done<Load> {
    let run = next_run();
    let key_id = new_key(ledger, run).await?;
    postgres.settle().await?;
    let (key, ledger) = (key_id.clone(), ledger.clone());
    let measured = load(callers, time, move |caller, call| {
        let (ledger, key_id) = (ledger.clone(), key.clone());
        async move {
            let nonce = TokenNonce::from_bytes(&nonce(run, caller, repeats.number(call)))?;
            let spend = Spend { token: Token { key_id, nonce }, spend_id: SpendId::random() };
            match ledger.spend(&spend).await {
                Ok(spent) => Ok(!spent.replayed),
                Err(LedgerError::AlreadySpent) => Ok(false),
                Err(error) => Err(error.into()),
            }
        }
    })
    .await?;
    check(postgres, &key_id, measured.fresh).await?;
    Ok(measured)
}

/// One INSERT a call, each its own transaction, over a pool of 16: what an application would write without a ledger.
pub async fn insert_per_call(postgres: &Postgres, ledger: &Ledger, callers: usize, time: Duration) -> Done<Load> {
    let run = next_run();
    let key_id = new_key(ledger, run).await?;
    let (key_no, until): (i32, chrono::DateTime<chrono::Utc>) =
        sqlx::query_as("SELECT key_no, redeem_until FROM fairledger.token_keys WHERE key_id = $1")
            .bind(key_id.as_str())
            .fetch_one(&mut postgres.admin().await?)
            .await?;
    let pool = PgPoolOptions::new()
        .max_connections(16)
        .test_before_acquire(false)
        .acquire_timeout(Duration::from_secs(60))
        .connect(&postgres.url(bootstrap::SERVICE))
        .await?;
    postgres.settle().await?;
    let shared = pool.clone();
    let measured = load(callers, time, move |caller, call| {
        let pool = shared.clone();
        async move {
            let nonce = nonce(run, caller, call);
            let inserted = sqlx::query(
                "INSERT INTO fairledger.spends (expires_at, key_no, spend_id, nonce) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
            )
            .bind(until)
            .bind(key_no)
            .bind(random_uuid())
            .bind(nonce.as_slice())
            .execute(&pool)
            .await?;
            Ok(inserted.rows_affected() == 1)
        }
    })
    .await?;
    pool.close().await;
    check(postgres, &key_id, measured.fresh).await?;
    Ok(measured)
}

/// SETNX, and EXPIRE when that was the first.
pub async fn remember(connection: &mut MultiplexedConnection, token: &str) -> Done<bool> {
    let first: bool = redis::cmd("SETNX").arg(token).arg(1).query_async(connection).await?;
    if first {
        redis::cmd("EXPIRE").arg(token).arg(REMEMBERED_S).query_async::<()>(connection).await?;
    }
    Ok(first)
}

pub async fn by_redis(redis: &Redis, callers: usize, time: Duration, repeats: Repeats) -> Done<Load> {
    redis.clear().await?;
    let run = next_run();
    let connection = redis.connect().await?;
    let measured = load(callers, time, move |caller, call| {
        let mut connection = connection.clone();
        async move {
            let token = format!("spent:k:{}", hex::encode(nonce(run, caller, repeats.number(call))));
            remember(&mut connection, &token).await
        }
    })
    .await?;
    let keys = redis.keys().await?;
    if keys != measured.fresh {
        return Err(format!("{} tokens were answered, Redis has {keys}", measured.fresh).into());
    }
    Ok(measured)
}

/// Rows a second that pgbench inserts with ON CONFLICT, 500 in a statement, nothing to carry over the wire: the best of several numbers
/// of clients.
pub async fn ceiling(postgres: &Postgres, ledger: &Ledger, time: Duration) -> Done<f64> {
    const ROWS: usize = 500;
    let key_id = new_key(ledger, next_run()).await?;
    let key_no: i32 = sqlx::query_scalar("SELECT key_no FROM fairledger.token_keys WHERE key_id = $1")
        .bind(key_id.as_str())
        .fetch_one(&mut postgres.admin().await?)
        .await?;
    let script = format!(
        "\\set base random(1, 4000000000000000000)\nINSERT INTO fairledger.spends (expires_at, key_no, spend_id, nonce)
         SELECT '2099-01-01'::timestamptz, {key_no}, '{}'::uuid, sha256(int8send(:base::bigint + n)) FROM generate_series(1, {ROWS}) n
         ON CONFLICT DO NOTHING;\n",
        Uuid::nil(),
    );
    postgres.pgbench(&script, ROWS, time).await
}

/// A ledger that can be handed to the HTTP service and remembers in Redis.
pub struct RedisLedger {
    pub connection: MultiplexedConnection,
}

fn unsupported() -> LedgerError {
    fairledger::db::DbError::Unavailable("only spends are measured".to_owned()).into()
}

#[async_trait::async_trait]
impl SpendLedger for RedisLedger {
    async fn spend(&self, spend: &Spend) -> Result<fairledger::ledger::Spent, LedgerError> {
        let token = format!("spent:{}:{}", spend.token.key_id, hex::encode(spend.token.nonce.as_bytes()));
        match remember(&mut self.connection.clone(), &token).await {
            Ok(true) => Ok(fairledger::ledger::Spent { spend_id: spend.spend_id, replayed: false }),
            Ok(false) => Err(LedgerError::AlreadySpent),
            Err(_) => Err(unsupported()),
        }
    }

    async fn spend_each(&self, _: &[Spend]) -> Result<Vec<fairledger::ledger::BatchResult>, LedgerError> {
        Err(unsupported())
    }

    async fn spend_all(&self, _: &[Spend]) -> Result<Vec<fairledger::ledger::BatchResult>, LedgerError> {
        Err(unsupported())
    }

    async fn roll_back(&self, _: &Spend) -> Result<(), LedgerError> {
        Err(unsupported())
    }

    async fn register_key(&self, _: &KeyRequest) -> Result<fairledger::ledger::ChangedKey, LedgerError> {
        Err(unsupported())
    }

    async fn close_key(&self, _: &KeyId) -> Result<fairledger::ledger::ChangedKey, LedgerError> {
        Err(unsupported())
    }

    async fn live_keys(&self) -> Result<Vec<fairledger::ledger::Key>, LedgerError> {
        Err(unsupported())
    }

    async fn sweep(&self) -> Result<fairledger::ledger::Swept, LedgerError> {
        Err(unsupported())
    }
}
