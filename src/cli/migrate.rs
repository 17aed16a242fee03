//! `migrate`: brings the schema up to this program's version, or says whether it is.

use std::process::ExitCode;

use crate::config::Settings;
use crate::db::migrate;

use super::CliError;
use super::database::{Database, Role};

/// Works as the owner of the tables, over MIGRATE_DATABASE_URL. Any number may run at once: they queue.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Change nothing; exit with 1 when migrations wait or the database's are not this program's
    #[arg(long)]
    check: bool,
}

pub(super) async fn run(settings: &Settings, args: &Args) -> Result<ExitCode, CliError> {
    let database = Database::reach(settings, Role::Owner).await?;
    let done = if args.check {
        migrate::check(database.url.expose())
            .await
            .map(|version| show!("the schema is at version {version}, as it should be"))
    } else {
        migrate::run(database.url.expose(), &database.roles).await.map(|report| {
            for name in &report.applied {
                show!("applied {name}");
            }
            show!("the schema is at version {}", report.version);
        })
    };
    database.leave().await?;
    done?;
    Ok(ExitCode::SUCCESS)
}
