//! What the database server promises: settings on which durability hangs, and whether it is a primary.
//!
//! Serves I9: an answer that leaves after the commit is worth what the commit is worth.

use super::{Access, DbError, Tx};

/// Settings and role of the server, as the service's own session has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerState {
    /// Its version.
    pub version: String,
    /// It is a standby: nothing can be changed.
    pub in_recovery: bool,
    /// `fsync`.
    pub fsync: bool,
    /// `full_page_writes`.
    pub full_page_writes: bool,
    /// `synchronous_commit`.
    pub synchronous_commit: String,
    /// `synchronous_standby_names`.
    pub synchronous_standby_names: String,
    /// Standbys connected now, synchronous or not, as far as they may be seen.
    pub standbys: i64,
}

impl ServerState {
    /// Whether a commit waits for a standby.
    #[must_use]
    pub fn waits_for_standby(&self) -> bool {
        !self.synchronous_standby_names.is_empty() && !["off", "local"].contains(&self.synchronous_commit.as_str())
    }

    /// What may be lost by what, in words for an operator. Empty when a commit survives the crash of its machine.
    #[must_use]
    pub fn weaknesses(&self) -> Vec<String> {
        let mut weaknesses = Vec::new();
        if !self.fsync {
            weaknesses.push("fsync is off: a crash of its machine may lose or destroy everything".to_owned());
        }
        if !self.full_page_writes {
            weaknesses.push("full_page_writes is off: a crash of its machine may leave torn pages".to_owned());
        }
        if self.synchronous_commit == "off" {
            weaknesses.push("synchronous_commit is off: any crash loses what was acknowledged last".to_owned());
        }
        if self.standbys > 0 && !self.waits_for_standby() {
            weaknesses.push(
                "standbys follow asynchronously: a failover loses what was acknowledged last, and the service is in quarantine then"
                    .to_owned(),
            );
        }
        weaknesses
    }
}

impl<A: Access> Tx<A> {
    /// Settings and role of the server.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn server_state(&mut self) -> Result<ServerState, DbError> {
        let state = sqlx::query_as!(
            ServerState,
            r#"SELECT current_setting('server_version') AS "version!", pg_is_in_recovery() AS "in_recovery!",
                      current_setting('fsync') = 'on' AS "fsync!", current_setting('full_page_writes') = 'on' AS "full_page_writes!",
                      current_setting('synchronous_commit') AS "synchronous_commit!",
                      current_setting('synchronous_standby_names') AS "synchronous_standby_names!",
                      (SELECT count(*) FROM pg_catalog.pg_stat_replication) AS "standbys!""#
        );
        Ok(state.fetch_one(&mut *self.inner).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_lost_is_said() {
        let sound = ServerState {
            version: "17".into(),
            in_recovery: false,
            fsync: true,
            full_page_writes: true,
            synchronous_commit: "on".into(),
            synchronous_standby_names: String::new(),
            standbys: 0,
        };
        assert!(sound.weaknesses().is_empty() && !sound.waits_for_standby());
        let followed = ServerState { standbys: 1, ..sound.clone() };
        assert!(followed.weaknesses()[0].contains("asynchronously"));
        let waits = ServerState { synchronous_standby_names: "*".into(), ..followed };
        assert!(waits.weaknesses().is_empty() && waits.waits_for_standby());
        for weak in ["off", "local"] {
            assert!(!ServerState { synchronous_commit: weak.into(), ..waits.clone() }.waits_for_standby());
        }
        let unsafe_ = ServerState { fsync: false, full_page_writes: false, synchronous_commit: "off".into(), ..sound };
        assert_eq!(unsafe_.weaknesses().len(), 3);
    }
}
