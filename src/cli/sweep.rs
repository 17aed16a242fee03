//! `sweep`: forgets what was spent under keys whose window has ended, as every running service does from time to time.

use std::process::ExitCode;

use tokio_util::sync::CancellationToken;

use crate::config::Settings;
use crate::ledger::{Ledger, SpendLedger as _, Swept};

use super::CliError;
use super::database::{Database, Role};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Sweep once and end, instead of every sweep-interval until interrupted
    #[arg(long)]
    once: bool,
}

pub(super) async fn run(settings: &Settings, args: &Args) -> Result<ExitCode, CliError> {
    let database = Database::reach(settings, Role::Service).await?;
    let done = async {
        let ledger = Ledger::new(database.open_for_change(settings).await?, settings.ledger.clone());
        if args.once {
            tell(&ledger.sweep().await?);
        } else {
            let stop = CancellationToken::new();
            tokio::select! {
                () = ledger.sweep_until(stop.clone()) => {}
                _ = tokio::signal::ctrl_c() => stop.cancel(),
            }
        }
        ledger.datastore().close().await;
        Ok(ExitCode::SUCCESS)
    }
    .await;
    database.leave().await?;
    done
}

fn tell(swept: &Swept) {
    for key_id in &swept.marked {
        show!("{key_id}  swept: its window has ended");
    }
    for (key_id, bytes) in &swept.dropped {
        show!("{key_id}  spends forgotten, {bytes} bytes freed");
    }
    for key_id in &swept.waiting {
        show!("{key_id}  spends wait for a transaction or a lock in the way: sweep again");
    }
    if swept.another_at_work {
        show!("another sweeper is at work");
    } else if *swept == Swept::default() {
        show!("nothing to sweep");
    }
}
