//! A database clock that tests set, to the microsecond, also back.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{Executor as _, PgConnection};

use crate::harness::TestDb;

/// Takes the place of `clock_timestamp()` and `statement_timestamp()` in one test's database. The planner inlines a function of language
/// SQL, so that every plan made from then on asks this clock instead of the built-in one: install it before anything else connects.
pub struct TestClock {
    admin: PgConnection,
    at: DateTime<Utc>,
}

impl TestClock {
    pub async fn install(db: &TestDb, at: DateTime<Utc>) -> Self {
        let mut admin = db.connect_admin().await;
        let install = "CREATE SCHEMA test_clock;
             GRANT USAGE ON SCHEMA test_clock TO PUBLIC;
             CREATE TABLE test_clock.now (at timestamptz NOT NULL);
             INSERT INTO test_clock.now VALUES ('epoch');
             CREATE FUNCTION test_clock.read() RETURNS timestamptz LANGUAGE plpgsql VOLATILE SECURITY DEFINER
                 AS 'BEGIN RETURN (SELECT at FROM test_clock.now); END';
             CREATE OR REPLACE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
                 AS 'SELECT test_clock.read()';
             CREATE FUNCTION test_clock.read_once() RETURNS timestamptz LANGUAGE plpgsql STABLE SECURITY DEFINER
                 AS 'BEGIN RETURN (SELECT at FROM test_clock.now); END';
             CREATE OR REPLACE FUNCTION pg_catalog.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE
                 AS 'SELECT test_clock.read_once()'";
        admin.execute(install).await.unwrap();
        let mut clock = Self { admin, at };
        clock.set(at).await;
        let shown: DateTime<Utc> =
            sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(&mut clock.admin).await.unwrap();
        assert_eq!(shown, at, "the database does not go by the test's clock");
        clock
    }

    pub fn now(&self) -> DateTime<Utc> {
        self.at
    }

    pub async fn set(&mut self, at: DateTime<Utc>) {
        sqlx::query("UPDATE test_clock.now SET at = $1").bind(at).execute(&mut self.admin).await.unwrap();
        self.at = at;
    }

    pub async fn advance(&mut self, by: TimeDelta) {
        self.set(self.at + by).await;
    }
}
