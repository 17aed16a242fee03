//! I13: neither our logs and errors nor PostgreSQL's log, at its defaults, carries a nonce or a spend id.

use std::io::Write;
use std::str::FromStr as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fairledger::db::rights::Roles;
use fairledger::db::{Datastore, PoolSettings, bootstrap, migrate};
use fairledger::embedded::{Embedded, find_binaries};
use fairledger::ledger::{Ledger, LedgerError, Spend, SpendLedger, spend_in};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tracing_subscriber::fmt::MakeWriter;

use super::{code, key_id, open_key, settings, spend, token};
use crate::harness::Proxy;

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Captured {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// Every text that would betray one of the spends.
fn secrets(spends: &[Spend]) -> Vec<String> {
    let mut secrets = Vec::new();
    for spend in spends {
        let nonce = spend.token.nonce.as_bytes();
        // All of it, or the end that is not shared with other tokens; also as a list of numbers, as a derived Debug would print it.
        secrets.push(hex::encode(nonce));
        secrets.push(hex::encode(&nonce[12..]));
        secrets.push(format!("{nonce:?}").trim_matches(['[', ']']).to_owned());
        secrets.push(spend.spend_id.as_uuid().to_string());
        secrets.push(spend.spend_id.as_uuid().simple().to_string());
    }
    secrets
}

fn found(text: &str, secrets: &[String]) -> Vec<String> {
    let text = text.to_lowercase();
    secrets.iter().filter(|secret| text.contains(secret.as_str())).cloned().collect()
}

struct Errors(String);

impl Errors {
    fn note<T: std::fmt::Debug>(&mut self, result: Result<T, LedgerError>) -> &'static str {
        if let Err(error) = &result {
            self.0 += &format!("{error}\n{error:?}\n");
        }
        self.0 += &format!("{result:?}\n");
        match &result {
            Err(LedgerError::Db(_)) => "db",
            other => code(other),
        }
    }
}

/// Two callers who wait for each other's token: PostgreSQL breaks it, and logs both statements.
async fn deadlock(url: &str, errors: &mut Errors, a: &[Spend; 2], b: &[Spend; 2]) {
    let mut first = PgConnection::connect(url).await.unwrap();
    let mut second = PgConnection::connect(url).await.unwrap();
    let mut first = first.begin().await.unwrap();
    let mut second = second.begin().await.unwrap();
    spend_in(&mut first, &a[0]).await.unwrap();
    spend_in(&mut second, &b[0]).await.unwrap();
    let (one, two) = tokio::join!(
        async {
            let outcome = spend_in(&mut first, &a[1]).await;
            first.rollback().await.unwrap();
            outcome
        },
        async {
            let outcome = spend_in(&mut second, &b[1]).await;
            second.rollback().await.unwrap();
            outcome
        },
    );
    let mut codes = [errors.note(one), errors.note(two)];
    codes.sort_unstable();
    assert_eq!(codes, ["db", "ok"]);
}

#[tokio::test]
async fn i13_no_log_and_no_error_carries_a_nonce_or_a_spend_id() {
    let captured = Captured::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(captured.clone())
        .finish();
    // While there is one dispatcher only, tracing asks that of the thread which meets a line first whether the line is of interest, for
    // all threads and for good: another test's thread has none, and our line would be lost. With two, it asks both.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new());
    let guard = tracing::subscriber::set_default(subscriber);

    let folder = tempfile::tempdir().unwrap();
    let server = Embedded::start(folder.path(), &find_binaries(None).unwrap(), &[]).await.unwrap();
    bootstrap::private_server(&server.url(bootstrap::SUPERUSER, "postgres")).await.unwrap();
    migrate::run(&server.url(bootstrap::OWNER, bootstrap::DATABASE), &Roles::default()).await.unwrap();
    let url = server.url(bootstrap::SERVICE, bootstrap::DATABASE);
    let options = PgConnectOptions::from_str(&url).unwrap();
    let socket = options.get_socket().unwrap().to_str().unwrap().replace('/', "%2F");
    let proxied = format!("postgres://{}@{socket}:{}/{}", bootstrap::SERVICE, options.get_port(), bootstrap::DATABASE);
    let proxy = Proxy::start(&proxied).await;
    let hurried = PoolSettings { lock_timeout: Duration::from_millis(50), ..PoolSettings::default() };
    let ledger = Ledger::new(Datastore::connect(&proxy.url(&proxied), &hurried).await.unwrap(), settings());
    open_key(&ledger, "k").await;

    let mut errors = Errors(String::new());
    let spends: Vec<Spend> = (0..12).map(|number| spend(&token("k", 0xfeed_0000_c0de_0000 + number))).collect();
    // Everything that a spend may come to.
    assert_eq!(errors.note(ledger.spend(&spends[0]).await), "ok");
    assert_eq!(errors.note(ledger.spend(&spends[0]).await), "ok");
    let other = spend(&spends[0].token);
    assert_eq!(errors.note(ledger.spend(&other).await), "already_spent");
    assert_eq!(errors.note(ledger.spend_each(&spends[..4]).await), "ok");
    assert_eq!(errors.note(ledger.spend_all(&[other.clone(), spends[5].clone()]).await), "batch_refused");
    assert_eq!(errors.note(ledger.roll_back(&other).await), "spent_by_another");
    assert_eq!(errors.note(ledger.roll_back(&spends[1]).await), "ok");
    assert_eq!(errors.note(ledger.roll_back(&spends[1]).await), "not_spent");
    let unknown = spend(&token("none", 0xfeed_0000_c0de_0100));
    assert_eq!(errors.note(ledger.spend(&unknown).await), "unknown_key");
    // And everything that the database may come to.
    proxy.cut_after_client_sends(b"COMMIT\0");
    assert_eq!(errors.note(ledger.spend(&spends[6]).await), "db");
    proxy.cut_after_client_sends(b"INSERT INTO fairledger.spends");
    assert_eq!(errors.note(ledger.spend(&spends[7]).await), "db");
    let (there, back) = ([spends[8].clone(), spends[9].clone()], [spends[9].clone(), spends[8].clone()]);
    deadlock(&url, &mut errors, &there, &back).await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut holding = holder.begin().await.unwrap();
    spend_in(&mut holding, &spends[10]).await.unwrap();
    assert_eq!(errors.note(ledger.spend(&spend(&spends[10].token)).await), "db", "the lock timeout");
    assert_eq!(errors.note(ledger.spend_each(&spends[10..]).await), "db", "the lock timeout");
    holding.rollback().await.unwrap();
    ledger.close_key(&key_id("k")).await.unwrap();
    assert_eq!(errors.note(ledger.spend(&spends[11]).await), "key_expired");
    ledger.sweep().await.unwrap();

    let mut all = spends.clone();
    all.extend([other, unknown]);
    let secrets = secrets(&all);
    drop(guard);
    let logs = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
    assert!(
        logs.contains("the answer to a commit was lost") && logs.contains("DEBUG"),
        "nothing was captured:\n{logs}"
    );
    assert_eq!(found(&logs, &secrets), [""; 0], "our log:\n{logs}");
    assert_eq!(found(&errors.0, &secrets), [""; 0], "our errors:\n{}", errors.0);

    // The proof that looking would find: a statement as the ledger never makes one, by a role that may read the partition. (For one that
    // may not, as the service's, PostgreSQL leaves the values out.)
    let mut raw = PgConnection::connect(&server.url(bootstrap::OWNER, bootstrap::DATABASE)).await.unwrap();
    let betrayed = spend(&token("k", 0xfeed_0000_c0de_0200));
    for _ in 0..2 {
        let insert = "INSERT INTO fairledger.spends (expires_at, key_no, spend_id, nonce) VALUES (now(), 1, $1, $2)";
        let _ = sqlx::query(insert)
            .bind(betrayed.spend_id.as_uuid())
            .bind(betrayed.token.nonce.as_bytes())
            .execute(&mut raw)
            .await;
    }
    raw.execute("SELECT 1").await.unwrap();
    server.stop().await.unwrap();
    let log = std::fs::read_to_string(folder.path().join("pg.log")).unwrap();
    assert!(!found(&log, &self::secrets(&[betrayed])).is_empty(), "the log was not looked at:\n{log}");
    assert_eq!(log.matches("duplicate key value").count(), 1, "only the raw statement's:\n{log}");
    assert!(log.contains("deadlock detected") && log.contains("lock timeout"), "PostgreSQL's log:\n{log}");
    assert!(log.contains("INSERT INTO fairledger.spends"), "it logs statements that fail:\n{log}");
    assert_eq!(found(&log, &secrets), [""; 0], "PostgreSQL's log:\n{log}");
}
