//! The roles and the database that must be there before the first migration.
//!
//! On a server of the operator's own they are the operator's work; this is for the private server, and for tests.

use sqlx::{Connection as _, Executor as _, PgConnection};

/// The superuser of the private server.
pub const SUPERUSER: &str = "postgres";
/// Owns the database and migrates it.
pub const OWNER: &str = "fairledger_owner";
/// What `serve` works as.
pub const SERVICE: &str = "fairledger_service";
/// What a dispute team's queries work as.
pub const READ: &str = "fairledger_read";
/// The database.
pub const DATABASE: &str = "fairledger";

/// Makes the three roles and the database on the private server where they are missing. `superuser_url` leads to its database `postgres`.
///
/// # Errors
/// When the server cannot be reached or refuses.
pub async fn private_server(superuser_url: &str) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(superuser_url).await?;
    roles(&mut connection).await?;
    let exists: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = 'fairledger')")
        .fetch_one(&mut connection)
        .await?;
    // CREATE DATABASE knows no IF NOT EXISTS; the data folder's lock sees to it that nobody else is at it.
    if !exists {
        connection.execute("CREATE DATABASE fairledger OWNER fairledger_owner").await?;
    }
    connection.close().await
}

/// Makes the roles that are missing. They have no password; a server that asks for one is told theirs by its administrator.
///
/// # Errors
/// When the connection's user may not make roles.
pub async fn roles(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    // duplicate_object and unique_violation: two callers at once.
    let statement = "DO $$
        DECLARE wanted text;
        BEGIN
            FOREACH wanted IN ARRAY ARRAY['fairledger_owner', 'fairledger_service', 'fairledger_read'] LOOP
                IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted) THEN
                    BEGIN
                        EXECUTE format('CREATE ROLE %I LOGIN', wanted);
                    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
                    END;
                END IF;
            END LOOP;
        END $$";
    connection.execute(statement).await?;
    Ok(())
}
