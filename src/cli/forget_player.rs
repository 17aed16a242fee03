//! `forget-player`: severs an operator's name for a player from the sessions that carry it. Bets, seeds and everything else stay.

use std::process::ExitCode;

use crate::config::Settings;
use crate::db::{Datastore, DbError, transaction};
use crate::seeds::values::PlayerRef;

use super::CliError;
use super::database::{Database, Role};
use super::seed_keys::progress_bar;

/// Sessions that one transaction changes.
const BATCH: i64 = 1_000;

/// Afterwards nothing is found by that playerRef, and everything by its session. Cannot be undone. Works as the owner of the tables,
/// over MIGRATE_DATABASE_URL: the service has no right to do it.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The playerRef to forget
    #[arg(value_parser = parse_player_ref)]
    player_ref: PlayerRef,
    /// Do it, instead of only saying how many sessions have it
    #[arg(long)]
    yes: bool,
}

fn parse_player_ref(text: &str) -> Result<PlayerRef, String> {
    PlayerRef::parse(text).map_err(|error| error.to_string())
}

pub(super) async fn run(settings: &Settings, args: &Args) -> Result<ExitCode, CliError> {
    let database = Database::reach(settings, Role::Owner).await?;
    let done = async {
        let store = database.open(settings).await?;
        let code = forget(&store, args).await?;
        store.close().await;
        Ok::<_, CliError>(code)
    }
    .await;
    database.leave().await?;
    done
}

async fn forget(store: &Datastore, args: &Args) -> Result<ExitCode, CliError> {
    let player_ref = args.player_ref.as_str();
    let mut tx = store.begin("player.count").await?;
    let (owner, sessions) = (tx.may_change_history().await?, tx.count_sessions_of_player(player_ref).await?);
    tx.rollback().await;
    if sessions == 0 {
        show!("no session has this playerRef");
        return Ok(ExitCode::SUCCESS);
    }
    if !args.yes {
        show!("{sessions} sessions have this playerRef; nothing was changed: say --yes to sever it from them for ever");
        return Ok(ExitCode::FAILURE);
    }
    if !owner {
        let why =
            "only the owner of the tables may sever a playerRef: set MIGRATE_DATABASE_URL, as for `fairledger migrate`";
        return Err(CliError::Refused(why.to_owned()));
    }
    let bar = progress_bar(sessions, "sessions");
    loop {
        let severed: Result<u64, DbError> =
            async { transaction!(store, "player.forget", |tx| tx.sever_player(player_ref, BATCH).await) }.await;
        match severed? {
            0 => break,
            count => bar.inc(count),
        }
    }
    bar.finish_and_clear();
    show!("severed the playerRef from {} sessions; nothing else was changed", bar.position());
    Ok(ExitCode::SUCCESS)
}
