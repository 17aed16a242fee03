//! A test's database, copied and put back: what a backup and its restore do.

use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::{AssertSqlSafe, Executor as _, PgConnection};

use super::{Cluster, TestDb, cluster};

/// A copy of a test's database. Dropped with this value.
#[derive(Debug)]
pub struct Snapshot {
    name: String,
}

impl TestDb {
    /// Copies the database as it is now. Its connections are cut.
    pub async fn snapshot(&self) -> Snapshot {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("{}_copy{}", self.name, NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut admin = Cluster::get().await.connect_to("postgres").await;
        cut_off(&mut admin, &self.name).await;
        run(&mut admin, format!("CREATE DATABASE {name} TEMPLATE {}", self.name)).await;
        run(&mut admin, format!("ALTER DATABASE {} ALLOW_CONNECTIONS true", self.name)).await;
        Snapshot { name }
    }

    /// Puts a copy in the database's place. Its connections are cut.
    pub async fn restore(&self, snapshot: &Snapshot) {
        let cluster = Cluster::get().await;
        let mut admin = cluster.connect_to("postgres").await;
        run(&mut admin, format!("DROP DATABASE {} WITH (FORCE)", self.name)).await;
        cluster.create_database(&self.name, Some(&snapshot.name)).await;
    }
}

/// Lets nobody in and throws everybody out.
async fn cut_off(admin: &mut PgConnection, name: &str) {
    run(admin, format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false")).await;
    loop {
        let others: i64 =
            sqlx::query_scalar("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = $1")
                .bind(name)
                .fetch_one(&mut *admin)
                .await
                .unwrap();
        if others == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

async fn run(admin: &mut PgConnection, statement: String) {
    // Its parts are names that were made here.
    admin.execute(AssertSqlSafe(statement)).await.unwrap();
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        cluster::drop_database(&self.name);
    }
}
