//! Looking after the private PostgreSQL: when it ends by itself it is started again, and the pool finds it there.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::db::Datastore;
use crate::embedded::Embedded;

use crate::cli::CliError;
use crate::cli::database::{Role, private_url, start_private};

/// A server that ends sooner than this was hardly started.
const SOON: Duration = Duration::from_secs(10);

/// How often in a row it may end soon, or not start.
const TIMES_MAX: u32 = 5;

/// The pause before it is started again after it ended soon; it doubles each time.
const PAUSE: Duration = Duration::from_millis(200);

/// The private server and what starting it again takes.
pub(super) struct PrivateServer {
    server: Embedded,
    data_dir: PathBuf,
    pg_bin: Option<PathBuf>,
    store: Datastore,
}

impl PrivateServer {
    pub fn new(server: Embedded, data_dir: PathBuf, pg_bin: Option<PathBuf>, store: Datastore) -> Self {
        Self { server, data_dir, pg_bin, store }
    }
}

/// Waits for the stop and gives the running server back; meanwhile starts it again whenever it ended. Without a server it only waits.
///
/// # Errors
/// A server that keeps ending, or does not start again.
pub(super) async fn look_after(
    private: Option<PrivateServer>,
    stop: CancellationToken,
) -> Result<Option<Embedded>, CliError> {
    let Some(PrivateServer { mut server, data_dir, pg_bin, store }) = private else {
        stop.cancelled().await;
        return Ok(None);
    };
    let mut times = 0;
    loop {
        let started = Instant::now();
        tokio::select! {
            () = stop.cancelled() => return Ok(Some(server)),
            status = server.exited() => {
                let status = status.map_or_else(|| "unknown".to_owned(), |status| status.to_string());
                tracing::error!(status, "the private PostgreSQL ended by itself: starting it again");
            }
        }
        drop(server);
        times = if started.elapsed() < SOON { times + 1 } else { 0 };
        server = loop {
            if times >= TIMES_MAX {
                return Err(CliError::KeepsEnding { times, seconds: SOON.as_secs() });
            }
            let again = async {
                if times > 0 {
                    tokio::time::sleep(PAUSE * 2u32.saturating_pow(times)).await;
                }
                // Without its folder a start would make an empty database in its place.
                if !data_dir.join("pg").exists() {
                    return Err(CliError::NoDatabase { data_dir: data_dir.clone() });
                }
                Ok(start_private(&data_dir, pg_bin.as_deref()).await?)
            };
            let again = tokio::select! {
                () = stop.cancelled() => return Ok(None),
                again = again => again,
            };
            match again {
                Ok(server) => break server,
                Err(error) if times + 1 == TIMES_MAX => return Err(error),
                Err(error) => {
                    tracing::error!(%error, "the private PostgreSQL did not start again");
                    times += 1;
                }
            }
        };
        // Its socket may stand in another folder now.
        store.lead_to(private_url(&server, Role::Service).expose())?;
        tracing::info!("the private PostgreSQL runs again");
    }
}
