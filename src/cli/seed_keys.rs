//! `seed-keys`: looks after the keys that seal server seeds.

use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};

use crate::config::Settings;
use crate::seeds::KeyRing;
use crate::seeds::reseal::{self, KeyUse};

use super::database::{Database, Role};
use super::error::MissingKey;
use super::{CliError, data_dir};

/// What is missing when no seed keys are set.
pub(super) const SEED_KEYS: MissingKey =
    MissingKey { name: "seed-keys", env: "FAIRLEDGER_SEED_KEYS", make: "echo \"k1:$(openssl rand -base64 32)\"" };

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Seal every seed anew under the first of the seed keys
    ///
    /// To replace a key: add the new one behind the old one in the settings of every service and restart them; put it first
    /// everywhere and restart them; run this command with the same keys, while the services run; once it says that the old key is
    /// not needed any more, remove it. Works as the owner of the tables, over MIGRATE_DATABASE_URL.
    Rotate,
}

pub(super) async fn run(mut settings: Settings, command: &Command) -> Result<ExitCode, CliError> {
    let Command::Rotate = command;
    let ring = seed_keys(&mut settings)?;
    let database = Database::reach(&settings, Role::Owner).await?;
    let done = rotate(&database, &settings, &ring).await;
    database.leave().await?;
    done
}

/// The seed keys for a command that works as the owner.
pub(super) fn seed_keys(settings: &mut Settings) -> Result<KeyRing, CliError> {
    let private = settings.database_url.is_none() && settings.migrate_database_url.is_none();
    match settings.seed_keys.take() {
        Some(ring) => Ok(ring),
        None if private && !settings.require_database => data_dir::seed_keys(settings),
        None => Err(CliError::KeysMissing { missing: vec![SEED_KEYS] }),
    }
}

async fn rotate(database: &Database, settings: &Settings, ring: &KeyRing) -> Result<ExitCode, CliError> {
    let store = database.open(settings).await?;
    let first = ring.sealing_key_id();
    let before = reseal::key_uses(&store, ring).await?;
    let old = |key: &&KeyUse| key.key_id != first && key.seeds > 0;
    let total = before.iter().filter(old).map(|key| key.seeds).sum();
    let bar = progress_bar(total, "seeds");
    for key in before.iter().filter(old) {
        reseal::reseal(&store, ring, &key.key_id, |count| bar.inc(count)).await?;
    }
    bar.finish_and_clear();

    let after = reseal::key_uses(&store, ring).await?;
    store.close().await;
    show!("sealed {} seeds anew under key {first}", bar.position());
    let mut needed = false;
    for key in after.iter().filter(|key| key.key_id != first) {
        if key.seeds == 0 {
            show!("key {}: no seed needs it any more", key.key_id);
        } else {
            needed = true;
            show!("key {}: {} seeds still need it; do all services seal under {first} already?", key.key_id, key.seeds);
        }
    }
    Ok(if needed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A progress bar on standard error; nothing where that is no terminal.
pub(super) fn progress_bar(length: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let template = format!("{{elapsed_precise}} {{wide_bar}} {{pos}} of {{len}} {what}, {{per_sec}}, {{eta}} left");
    // The template is ours; a mistake in it shows as the plain style.
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}
