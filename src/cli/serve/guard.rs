//! What stands between the service and a database that cannot keep its promises: the checks of the server, and the restore fence (I10).

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::cli::CliError;
use crate::config::Settings;
use crate::db::Datastore;
use crate::db::fence::FenceSettings;
use crate::db::server::ServerState;

/// How often the service looks whether the database lacks something, or a recovery was made.
const LOOK: Duration = Duration::from_secs(1);

/// How long one look may take: a database whose host vanished says nothing.
const LOOK_MAX: Duration = Duration::from_secs(30);

/// Checks the server, and says what may be lost by what.
///
/// # Errors
/// A standby; and a server without a synchronous standby where one is required.
pub(super) async fn check_server(store: &Datastore, require_sync_standby: bool) -> Result<(), CliError> {
    let mut tx = store.snapshot("server.check").await?;
    let state = tx.server_state().await?;
    tx.rollback().await;
    let ServerState { version, synchronous_commit, synchronous_standby_names, standbys, .. } = &state;
    tracing::info!(version, synchronous_commit, synchronous_standby_names, standbys, "the database server");
    if state.in_recovery {
        return Err(CliError::Standby);
    }
    for weakness in state.weaknesses() {
        tracing::warn!(weakness, "the database server does not keep everything that is acknowledged");
    }
    if require_sync_standby && !state.waits_for_standby() {
        return Err(CliError::NoSyncStandby);
    }
    Ok(())
}

/// Fences the datastore where there is a witness folder.
///
/// # Errors
/// A folder that cannot be used, or does not know a database that has data.
pub(super) async fn fence(store: Datastore, settings: &Settings, join: bool) -> Result<Datastore, CliError> {
    let private = settings.database_url.is_none().then(|| settings.data_dir.join("witness"));
    let Some(dir) = settings.witness_dir.clone().or(private) else {
        tracing::warn!(
            "NO WITNESS FOLDER: a database that was restored or failed over asynchronously will not be noticed, and its nonces and \
             tokens may be used twice. Set FAIRLEDGER_WITNESS_DIR to a folder outside the database's storage"
        );
        // Another instance may have found a loss: not even the first request goes through then.
        store.watch().await?;
        return Ok(store);
    };
    let instance = settings.instance.clone();
    // Whatever may commit at once: the pool's connections, and those that groups have beside it.
    let groups = [&settings.ledger.group, &settings.seeds.group].into_iter().flatten();
    let writers = groups.fold(settings.pool.connections_max, |sum, group| sum.saturating_add(group.writers.max(1)));
    let store = store.fenced(&FenceSettings { dir, instance, writers, join }).await?;
    tracing::info!(instance = store.instance(), epoch = store.epoch(), "fenced");
    Ok(store)
}

/// Looks at the database from time to time until the stop.
pub(super) async fn watch(store: Datastore, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        match tokio::time::timeout(LOOK_MAX, store.watch()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the database could not be compared with the witness"),
            Err(_) => tracing::debug!("the database did not answer in time"),
        }
    }
}
