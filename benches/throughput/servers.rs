//! The PostgreSQL and the Redis that are measured, both durable, both on a folder of this run.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fairledger::db::rights::Roles;
use fairledger::db::{Datastore, PoolSettings, bootstrap, migrate};
use fairledger::embedded::{Embedded, find_binaries};
use redis::aio::MultiplexedConnection;
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::Done;

/// A migrated PostgreSQL with `fsync`, `synchronous_commit` and `full_page_writes` on.
pub struct Postgres {
    pub server: Embedded,
}

impl Postgres {
    pub async fn start(folder: &Path) -> Done<Self> {
        // Room for the log, so that no run pays for a checkpoint that another one caused.
        let settings = [("max_wal_size", "8GB"), ("checkpoint_timeout", "30min"), ("shared_buffers", "512MB")];
        let server = Embedded::start(folder, &find_binaries(None)?, &settings).await?;
        bootstrap::private_server(&server.url(bootstrap::SUPERUSER, "postgres")).await?;
        migrate::run(&server.url(bootstrap::OWNER, bootstrap::DATABASE), &Roles::default()).await?;
        let postgres = Self { server };
        let mut admin = postgres.admin().await?;
        for name in ["fsync", "synchronous_commit", "full_page_writes"] {
            let value: String =
                sqlx::query_scalar("SELECT current_setting($1)").bind(name).fetch_one(&mut admin).await?;
            if value != "on" {
                return Err(format!("{name} is {value}: nothing durable would be measured").into());
            }
        }
        Ok(postgres)
    }

    pub fn url(&self, role: &str) -> String {
        self.server.url(role, bootstrap::DATABASE)
    }

    pub async fn store(&self) -> Done<Datastore> {
        let pool = PoolSettings { acquire_timeout: Duration::from_secs(60), ..PoolSettings::default() };
        Ok(Datastore::connect(&self.url(bootstrap::SERVICE), &pool).await?)
    }

    pub async fn admin(&self) -> Done<PgConnection> {
        Ok(PgConnection::connect(&self.url(bootstrap::SUPERUSER)).await?)
    }

    /// Rows a second that pgbench gets in by a script that makes so many with each transaction: the best of 1, 2 and 4 clients.
    pub async fn pgbench(&self, script: &str, rows: usize, time: Duration) -> Done<f64> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("script.sql");
        std::fs::write(&file, script)?;
        let mut best: f64 = 0.0;
        for clients in ["1", "2", "4"] {
            self.settle().await?;
            let seconds = time.as_secs().max(1).to_string();
            let mut pgbench = Command::new("pgbench");
            pgbench.args(["-n", "-M", "prepared", "-c", clients, "-j", "1", "-T", &seconds, "-f"]).arg(&file);
            pgbench.arg(self.url(bootstrap::SUPERUSER));
            let output = tokio::task::spawn_blocking(move || pgbench.output())
                .await?
                .map_err(|error| format!("pgbench: {error}"))?;
            let text = String::from_utf8_lossy(&output.stdout);
            let tps = text.lines().find_map(|line| line.strip_prefix("tps = ")).and_then(|rest| rest.split(' ').next());
            let tps: f64 =
                tps.ok_or_else(|| format!("pgbench: {}", String::from_utf8_lossy(&output.stderr)))?.parse()?;
            best = best.max(tps * rows as f64);
        }
        Ok(best.round())
    }

    /// What a run left to do must not be done during the next.
    pub async fn settle(&self) -> Done<()> {
        let mut admin = self.admin().await?;
        admin.execute("VACUUM ANALYZE fairledger.seeds, fairledger.token_keys, fairledger.pending").await?;
        admin.execute("CHECKPOINT").await?;
        Ok(())
    }
}

/// A Redis that syncs its append-only file before it answers, and never rewrites it.
pub struct Redis {
    child: Child,
    socket: String,
}

impl Redis {
    pub async fn start(folder: &Path) -> Done<Self> {
        let socket = folder.join("redis.sock").to_str().ok_or("a folder with a name in UTF-8")?.to_owned();
        let child = Command::new("redis-server")
            .args(["--port", "0", "--unixsocket", &socket, "--dir"])
            .arg(folder)
            .args([
                "--appendonly",
                "yes",
                "--appendfsync",
                "always",
                "--auto-aof-rewrite-percentage",
                "0",
                "--save",
                "",
            ])
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("redis-server: {error}"))?;
        let redis = Self { child, socket };
        for _ in 0..100 {
            if redis.connect().await.is_ok() {
                return Ok(redis);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err("redis-server does not answer".into())
    }

    /// One connection that all callers share: what they send meanwhile goes together.
    pub async fn connect(&self) -> Done<MultiplexedConnection> {
        let client = redis::Client::open(format!("unix://{}", self.socket))?;
        let settings = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
        Ok(client.get_multiplexed_async_connection_with_config(&settings).await?)
    }

    pub async fn clear(&self) -> Done<()> {
        redis::cmd("FLUSHALL").query_async::<()>(&mut self.connect().await?).await?;
        Ok(())
    }

    pub async fn keys(&self) -> Done<u64> {
        Ok(redis::cmd("DBSIZE").query_async(&mut self.connect().await?).await?)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // Its folder goes with the run.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
