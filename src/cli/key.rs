//! `key`: the keys that single-use tokens are issued under.

use std::process::ExitCode;

use chrono::{DateTime, Utc};

use crate::config::Settings;
use crate::ledger::{ChangedKey, Key, KeyDays, KeyId, KeyRequest, KeyState, Ledger, SpendLedger as _};
use crate::seeds::values::Timestamp;

use super::CliError;
use super::database::{Database, Role};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Register keys; the same again changes nothing
    Add(AddArgs),
    /// List every key there ever was, by the begin of its window
    List,
    /// Accept nothing more under a key
    Close {
        /// The key
        key_id: KeyId,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct AddArgs {
    /// The key; of several, those of days in a row: each window opens a day after the one before
    #[arg(required = true, value_name = "KEY_ID")]
    key_ids: Vec<KeyId>,
    /// When the (first) window opens, such as 2030-01-31T00:00:00Z; by default now, of several a day after the last key there is
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    from: Option<DateTime<Utc>>,
    /// When the window ends; by default token-window after it opens, as it is for several
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<DateTime<Utc>>,
}

fn parse_time(text: &str) -> Result<DateTime<Utc>, String> {
    let time = DateTime::parse_from_rfc3339(text);
    time.map(|time| time.to_utc()).map_err(|_| "must be an RFC 3339 time such as 2030-01-31T00:00:00Z".to_owned())
}

pub(super) async fn run(settings: &Settings, command: Command) -> Result<ExitCode, CliError> {
    let database = Database::reach(settings, Role::Service).await?;
    let done = async {
        let store = match &command {
            Command::List => database.open(settings).await?,
            Command::Add(_) | Command::Close { .. } => database.open_for_change(settings).await?,
        };
        let ledger = Ledger::new(store, settings.ledger.clone());
        match command {
            Command::Add(args) => add(&ledger, args).await?,
            Command::List => list(&ledger).await?,
            Command::Close { key_id } => {
                tell("closed", "was closed before", &ledger.close_key(&key_id).await?);
            }
        }
        ledger.datastore().close().await;
        Ok(ExitCode::SUCCESS)
    }
    .await;
    database.leave().await?;
    done
}

async fn add(ledger: &Ledger, args: AddArgs) -> Result<(), CliError> {
    let AddArgs { key_ids, from, until } = args;
    let changed = match (key_ids.as_slice(), until) {
        ([key_id], _) => {
            let request = KeyRequest { key_id: key_id.clone(), redeem_from: from, redeem_until: until };
            vec![ledger.register_key(&request).await?]
        }
        (_, None) => ledger.register_days(&KeyDays { key_ids, first_opens: from }).await?,
        (_, Some(_)) => return Err(CliError::Refused("--until is for one key: give it without the others".to_owned())),
    };
    for changed in &changed {
        tell("registered", "is registered already", changed);
    }
    Ok(())
}

async fn list(ledger: &Ledger) -> Result<(), CliError> {
    let now = Utc::now();
    for key in ledger.keys().await? {
        show!("{}  {}", line(&key), state(&key, now));
    }
    Ok(())
}

/// How a key stands, to this machine's clock: only the database's decides anything.
fn state(key: &Key, now: DateTime<Utc>) -> &'static str {
    match key.state {
        KeyState::Closed => "closed",
        KeyState::Swept => "swept",
        KeyState::Open if now < key.redeem_from => "to come",
        KeyState::Open if now < key.redeem_until => "live",
        KeyState::Open => "ended",
    }
}

fn line(key: &Key) -> String {
    let (from, until) = (Timestamp(key.redeem_from), Timestamp(key.redeem_until));
    format!("{:24}  {from} to {until}", key.key_id.as_str())
}

fn tell(done: &str, done_before: &str, changed: &ChangedKey) {
    show!("{}  {}", line(&changed.key), if changed.replayed { done_before } else { done });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stands_by_its_state_then_by_its_window() {
        let time = |hour: u32| -> DateTime<Utc> { format!("2030-01-01T{hour:02}:00:00Z").parse().unwrap() };
        let key = |state| Key { key_id: "k".parse().unwrap(), redeem_from: time(10), redeem_until: time(12), state };
        for (state_of, hour, word) in [
            (KeyState::Open, 9, "to come"),
            (KeyState::Open, 10, "live"),
            (KeyState::Open, 12, "ended"),
            (KeyState::Closed, 11, "closed"),
            (KeyState::Swept, 13, "swept"),
        ] {
            assert_eq!(state(&key(state_of), time(hour)), word);
        }
        assert!(parse_time("2030-01-31T00:00:00+01:00").is_ok() && parse_time("tomorrow").is_err());
    }
}
