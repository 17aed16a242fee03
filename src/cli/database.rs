//! Reaching the database: the configured one, the one that `serve` runs in the data folder, or that folder's own server started for
//! as long as a command takes.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::config::{DatabaseUrl, Settings};
use crate::db::rights::Roles;
use crate::db::{Datastore, PoolSettings, bootstrap, migrate};
use crate::embedded::{Embedded, EmbeddedError, find_binaries_for, running_url};

use super::CliError;

/// How long a command waits for a server that another process is starting or stopping in the folder.
const FOLDER_BUSY_MAX: Duration = Duration::from_secs(30);

/// As whom a command works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// As the service does.
    Service,
    /// As the owner of the tables, over `MIGRATE_DATABASE_URL` where it is set.
    Owner,
}

impl Role {
    fn private_name(self) -> &'static str {
        match self {
            Self::Service => bootstrap::SERVICE,
            Self::Owner => bootstrap::OWNER,
        }
    }
}

/// A database that a command can reach.
pub(super) struct Database {
    pub url: DatabaseUrl,
    /// The roles that a migration gives rights to: those of the settings, or of the private server.
    pub roles: Roles,
    /// The private server, when it was started for this command.
    server: Option<Embedded>,
}

impl Database {
    /// Reaches the database, which must be there already.
    pub async fn reach(settings: &Settings, role: Role) -> Result<Self, CliError> {
        let url = match role {
            Role::Service => settings.database_url.as_ref(),
            Role::Owner => settings.migrate_database_url.as_ref().or(settings.database_url.as_ref()),
        };
        if let Some(url) = url {
            return Ok(Self { url: url.clone(), roles: settings.roles.clone(), server: None });
        }
        if settings.require_database {
            return Err(CliError::DatabaseRequired);
        }
        let data_dir = &settings.data_dir;
        if !data_dir.join("pg").exists() {
            return Err(CliError::NoDatabase { data_dir: data_dir.clone() });
        }
        let deadline = Instant::now() + FOLDER_BUSY_MAX;
        loop {
            if let Some(url) = running_url(data_dir, role.private_name(), bootstrap::DATABASE).await? {
                return Ok(Self { url: DatabaseUrl::new(url), roles: Roles::default(), server: None });
            }
            match start_private(data_dir, settings.pg_bin.as_deref()).await {
                Ok(server) => {
                    let url = private_url(&server, role);
                    return Ok(Self { url, roles: Roles::default(), server: Some(server) });
                }
                // Another process is about to start or to stop it.
                Err(EmbeddedError::InUse { .. }) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Opens a pool on it, and refuses a schema that is not this program's.
    pub async fn open(&self, settings: &Settings) -> Result<Datastore, CliError> {
        self.open_pool(&settings.pool).await
    }

    /// The same with a pool as this command needs it.
    pub async fn open_pool(&self, pool: &PoolSettings) -> Result<Datastore, CliError> {
        let store = Datastore::connect(self.url.expose(), pool).await?;
        migrate::check_served(&store).await?;
        Ok(store)
    }

    /// The same for a command that changes what callers of the service rely on: not while some instance has found a loss.
    pub async fn open_for_change(&self, settings: &Settings) -> Result<Datastore, CliError> {
        let store = self.open(settings).await?;
        let mut tx = store.snapshot("quarantine.look").await?;
        let quarantine = tx.quarantines_in_force().await?.into_iter().next();
        tx.rollback().await;
        match quarantine {
            Some(quarantine) => Err(CliError::Quarantined(quarantine.reason)),
            None => Ok(store),
        }
    }

    /// Stops the server, if it was started for this command.
    pub async fn leave(self) -> Result<(), CliError> {
        match self.server {
            Some(server) => Ok(server.stop().await?),
            None => Ok(()),
        }
    }
}

/// Starts the private server of a data folder.
pub(super) async fn start_private(data_dir: &Path, pg_bin: Option<&Path>) -> Result<Embedded, EmbeddedError> {
    let binaries = find_binaries_for(data_dir, pg_bin)?;
    Embedded::start(data_dir, &binaries, &[]).await
}

/// Where a role reaches a private server.
pub(super) fn private_url(server: &Embedded, role: Role) -> DatabaseUrl {
    DatabaseUrl::new(server.url(role.private_name(), bootstrap::DATABASE))
}
