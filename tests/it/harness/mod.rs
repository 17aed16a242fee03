//! What every integration test stands on: a database of its own ([`TestDb`]), the service as a process ([`Service`]) and a connection that
//! breaks on demand ([`Proxy`]).
//!
//! The PostgreSQL behind it is, in this order: the one that `TEST_DATABASE_URL` names (its user must be a superuser); a container, where a
//! Docker engine answers; a private server from local binaries. There is one for a run of the test binary, and in it one migrated template,
//! of which each test gets a clone.

// Each subject takes what it needs.
#![allow(dead_code)]

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fairledger::http::auth::{ApiToken, new_token_id};
use fairledger::seeds::KeyRing;
use sqlx::{Connection as _, PgConnection};

mod at_exit;
mod caller;
mod clock;
mod cluster;
mod pair;
mod proxy;
mod service;
mod snapshot;
mod standby;
mod tests;

pub use caller::{Caller, data_folder, http_client, id};
pub use clock::TestClock;
pub use cluster::Cluster;
pub use pair::Pair;
pub use proxy::{Pace, Proxy};
pub use service::{Service, forget_settings, program};
pub use snapshot::Snapshot;
pub use standby::{Primary, Standby};

/// A migrated database for one test, dropped with this value.
#[derive(Debug)]
pub struct TestDb {
    /// For the role that owns the tables and may migrate.
    pub owner_url: String,
    /// For the role that the service works as.
    pub service_url: String,
    /// For the read-only role.
    pub read_url: String,
    /// The database's name.
    pub name: String,
    data_dir: tempfile::TempDir,
}

impl TestDb {
    pub async fn new() -> Self {
        Self::clone_of(Some(&Cluster::get().await.template)).await
    }

    /// An empty database that was never migrated.
    pub async fn unmigrated() -> Self {
        Self::clone_of(None).await
    }

    async fn clone_of(template: Option<&str>) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let cluster = Cluster::get().await;
        let name = format!("{}_{}", cluster.prefix, NUMBER.fetch_add(1, Ordering::Relaxed));
        cluster.create_database(&name, template).await;
        let data_dir = tempfile::tempdir().unwrap();
        std::fs::write(data_dir.path().join("seed-keys"), KeyRing::generate_entry("k1").as_bytes()).unwrap();
        std::fs::write(data_dir.path().join("secret"), STANDARD.encode(rand::random::<[u8; 32]>())).unwrap();
        Self {
            owner_url: cluster.url(fairledger::db::bootstrap::OWNER, &name),
            service_url: cluster.url(fairledger::db::bootstrap::SERVICE, &name),
            read_url: cluster.url(fairledger::db::bootstrap::READ, &name),
            name,
            data_dir,
        }
    }

    /// The data folder of the services on this database; they share it, and with it their keys, `seed-keys` and `secret`.
    pub fn data_dir(&self) -> &Path {
        self.data_dir.path()
    }

    /// A new token of scope `admin`.
    pub async fn admin_token(&self) -> String {
        let token = ApiToken::generate();
        sqlx::query("INSERT INTO fairledger.api_tokens (token_id, token_hash, scopes) VALUES ($1, $2, '{admin}')")
            .bind(new_token_id())
            .bind(token.hash().as_slice())
            .execute(&mut self.owner().await)
            .await
            .unwrap();
        token.expose().to_owned()
    }

    /// A connection as the cluster's administrator, for what no role of ours may do.
    pub async fn connect_admin(&self) -> PgConnection {
        Cluster::get().await.connect_to(&self.name).await
    }

    /// A connection of the owner's, to plant and to look at what the service's role may not.
    pub async fn owner(&self) -> PgConnection {
        self.connect(&self.owner_url).await
    }

    /// Waits until a query of one boolean says true, asked as the administrator; the test runner's own limit is the bound.
    pub async fn wait_until(&self, query: &'static str) {
        let mut admin = self.connect_admin().await;
        while !sqlx::query_scalar::<_, Option<bool>>(query).fetch_one(&mut admin).await.unwrap().unwrap_or(true) {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    }

    pub async fn connect(&self, url: &str) -> PgConnection {
        PgConnection::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"))
    }
}

impl Drop for TestDb {
    fn drop(&mut self) {
        cluster::drop_database(&self.name);
    }
}
