//! Who may do what: the owner migrates, the service serves, the read-only role looks through views.
//!
//! Stated anew after every run of the migrator, so that they cannot drift, and in one place, so that they can be read. Keeps I8:
//! the service has no right to change or delete history; I2: it can neither reopen a key nor drop spends but through the owner's
//! functions; and I6 and I11 for the read-only role.

use tokio_postgres::Client;

use super::migrate::MigrateError;
use super::{DbError, Tx};

/// Names of the two roles that are not the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    /// What the service connects as.
    pub service: String,
    /// What dispute teams connect as.
    pub read: String,
}

impl Default for Roles {
    fn default() -> Self {
        Self { service: "fairledger_service".into(), read: "fairledger_read".into() }
    }
}

/// Tables that are only ever inserted into.
const INSERT_ONLY: &str = "fairledger.commitments, fairledger.reveals, fairledger.bets, fairledger.steps, fairledger.outcomes, \
                           fairledger.voids, fairledger.settlements, fairledger.seed_keys, \
                           fairledger.quarantines";

pub(super) async fn apply(client: &mut Client, roles: &Roles) -> Result<(), MigrateError> {
    let owner: String = client.query_one("SELECT current_user::text", &[]).await?.get(0);
    for (which, role) in [("service", &roles.service), ("read-only", &roles.read)] {
        if *role == owner {
            return Err(MigrateError::RoleIsOwner { which, role: role.clone() });
        }
        ensure(client, role).await?;
    }
    let (service, read) = (quoted(&roles.service), quoted(&roles.read));
    let database = quoted(&client.query_one("SELECT current_database()::text", &[]).await?.get::<_, String>(0));
    let statements = format!(
        "REVOKE ALL ON ALL TABLES IN SCHEMA fairledger, fairledger_dispute FROM PUBLIC, {service}, {read};
         REVOKE ALL ON SCHEMA fairledger, fairledger_dispute FROM PUBLIC, {service}, {read};
         REVOKE ALL ON SCHEMA fairledger_spends FROM PUBLIC, {service}, {read};
         REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fairledger, fairledger_dispute FROM PUBLIC, {service}, {read};
         REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC;

         GRANT USAGE ON SCHEMA fairledger TO {service};
         GRANT SELECT ON ALL TABLES IN SCHEMA fairledger TO {service};
         GRANT INSERT ON {INSERT_ONLY} TO {service};
         GRANT INSERT, UPDATE (status, epoch, active_at, expires_at, closed_at) ON fairledger.sessions TO {service};
         GRANT INSERT, DELETE ON fairledger.next_seeds, fairledger.reveals_due TO {service};
         GRANT INSERT, UPDATE (status, next_nonce, pending, retired_at, retired_by) ON fairledger.seeds TO {service};
         GRANT INSERT, DELETE, UPDATE (next_step, cards_shown, mine_shown) ON fairledger.pending TO {service};
         GRANT INSERT, UPDATE (valid_until) ON fairledger.signing_keys TO {service};
         GRANT INSERT, UPDATE (revoked_at) ON fairledger.api_tokens TO {service};
         GRANT INSERT, UPDATE, DELETE ON fairledger.address_quota TO {service};
         GRANT INSERT, UPDATE ON fairledger.witness TO {service};
         GRANT UPDATE (as_of) ON fairledger.horizon TO {service};
         GRANT INSERT, UPDATE (state, closed_at, swept_at) ON fairledger.token_keys TO {service};
         GRANT INSERT, DELETE ON fairledger.spends TO {service};
         GRANT EXECUTE ON FUNCTION fairledger.attach_spends_partition(integer),
                                   fairledger.drop_spends_partition(integer, integer),
                                   fairledger.spend_if_all_fresh(text[], bytea[], uuid[]) TO {service};

         GRANT USAGE ON SCHEMA fairledger_dispute TO {read};
         GRANT SELECT ON ALL TABLES IN SCHEMA fairledger_dispute TO {read};"
    );
    client.batch_execute(&statements).await?;
    Ok(())
}

impl Tx {
    /// Whether the connection's role could change history, as the owner of the tables and a superuser can. Then nothing in the
    /// database keeps I8 against the service.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn may_change_history(&mut self) -> Result<bool, DbError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT (has_table_privilege('fairledger.bets', 'UPDATE') OR has_table_privilege('fairledger.bets', 'DELETE')) AS "may!""#
        )
        .fetch_one(&mut *self.inner)
        .await?)
    }
}

async fn ensure(client: &Client, role: &str) -> Result<(), MigrateError> {
    if client.query_opt("SELECT 1 FROM pg_roles WHERE rolname = $1", &[&role]).await?.is_some() {
        return Ok(());
    }
    match client.batch_execute(&format!("CREATE ROLE {} NOLOGIN", quoted(role))).await {
        Ok(()) => Ok(()),
        // Roles are the cluster's: a migrator of another database may have been first.
        Err(error) if error.code().is_some_and(|code| ["42710", "23505"].contains(&code.code())) => Ok(()),
        Err(error) if error.code().is_some_and(|code| code.code() == "42501") => {
            Err(MigrateError::RoleMissing { role: role.to_owned() })
        }
        Err(error) => Err(error.into()),
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
