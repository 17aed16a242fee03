//! `token`: the bearer tokens of the HTTP API. A token is shown once, when it is made; the database has its hash only (I6).

use std::process::ExitCode;
use std::time::Duration;

use chrono::{TimeDelta, Utc};

use crate::config::{Settings, parse_duration};
use crate::db::tokens::{Scope, TokenRow};
use crate::db::{Datastore, DbError};
use crate::http::HttpSettings;
use crate::http::auth::{ApiToken, new_token_id};
use crate::seeds::values::Timestamp;

use super::database::{Database, Role};
use super::{CliError, output};

/// The longest life that can be asked for; without an expiry a token lives until it is revoked.
const EXPIRES_MAX: Duration = Duration::from_secs(3_660 * 24 * 60 * 60);

const LABEL_CHARS_MAX: usize = 64;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Make a token and print it, once
    Create(CreateArgs),
    /// List all tokens, oldest first
    List,
    /// Refuse a token from now on
    Revoke {
        /// As `token list` shows it
        id: String,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct CreateArgs {
    /// What it may do, several apart by commas: relay, engine, dispute, or admin, which includes the others
    #[arg(long, value_name = "SCOPES", required = true, value_delimiter = ',')]
    scope: Vec<Scope>,
    /// How long it lives, such as 90d; until it is revoked when not given
    #[arg(long, value_name = "TIME", value_parser = parse_expires)]
    expires: Option<Duration>,
    /// A note for the list
    #[arg(long, value_name = "TEXT", value_parser = parse_label)]
    label: Option<String>,
}

fn parse_expires(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text)?;
    if duration.is_zero() || duration > EXPIRES_MAX { Err("must be 1ms to 3660d".to_owned()) } else { Ok(duration) }
}

fn parse_label(text: &str) -> Result<String, String> {
    let chars = text.chars().count();
    if (1..=LABEL_CHARS_MAX).contains(&chars) && !text.contains(char::is_control) {
        Ok(text.to_owned())
    } else {
        Err(format!("must be 1 to {LABEL_CHARS_MAX} printable characters"))
    }
}

pub(super) async fn run(settings: &Settings, command: Command) -> Result<ExitCode, CliError> {
    let database = Database::reach(settings, Role::Service).await?;
    let done = async {
        let store = database.open(settings).await?;
        match command {
            Command::Create(args) => create(&store, args).await?,
            Command::List => list(&store).await?,
            Command::Revoke { id } => revoke(&store, &id).await?,
        }
        store.close().await;
        Ok(ExitCode::SUCCESS)
    }
    .await;
    database.leave().await?;
    done
}

async fn create(store: &Datastore, args: CreateArgs) -> Result<(), CliError> {
    let CreateArgs { scope: mut scopes, expires, label } = args;
    scopes.sort_unstable();
    scopes.dedup();
    // Its bound is far within the calendar.
    let expires_at = expires.and_then(|expires| Utc::now().checked_add_signed(TimeDelta::from_std(expires).ok()?));
    let (token, id) = (ApiToken::generate(), new_token_id());
    let mut tx = store.begin("token.create").await?;
    tx.insert_token(&id, &token.hash(), &scopes, label.as_deref(), expires_at).await?;
    let until = expires_at.map_or_else(|| "revoked".to_owned(), |at| Timestamp(at).to_string());
    note!("token {id} ({}), valid until {until}; it is not shown again:", words(&scopes));
    // Before the commit: a token that nobody saw must not be valid.
    if let Err(error) = output::to_somebody(format!("{}\n", token.expose()).as_bytes()) {
        tx.rollback().await;
        return Err(CliError::Refused(format!("the token could not be shown, so it was not made: {error}")));
    }
    tx.commit().await.map_err(|error| match error {
        DbError::OutcomeUnknown(_) => CliError::Refused(format!(
            "{error}; whether the token that was shown is valid is not known: `fairledger token list` tells"
        )),
        error => CliError::Refused(format!("the token that was shown is not valid: {error}")),
    })
}

async fn list(store: &Datastore) -> Result<(), CliError> {
    let mut tx = store.snapshot("token.list").await?;
    let tokens = tx.tokens().await?;
    tx.rollback().await;
    for token in &tokens {
        let scopes = words(&token.scopes);
        let created = Timestamp(token.created_at);
        let label = token.label.as_deref().unwrap_or("");
        show!("{}  {scopes:28}  made {created}  {:37}  {label}", token.token_id, state(token));
    }
    Ok(())
}

fn state(token: &TokenRow) -> String {
    match (token.revoked_at, token.expires_at) {
        (Some(at), _) => format!("revoked {}", Timestamp(at)),
        (None, Some(at)) if at <= Utc::now() => format!("expired {}", Timestamp(at)),
        (None, Some(at)) => format!("expires {}", Timestamp(at)),
        (None, None) => "valid".to_owned(),
    }
}

async fn revoke(store: &Datastore, id: &str) -> Result<(), CliError> {
    let mut tx = store.begin("token.revoke").await?;
    let found = tx.revoke_token(id).await?;
    tx.commit().await?;
    if !found {
        return Err(CliError::Refused(format!("no token has the id {id:?}; `fairledger token list` shows them")));
    }
    let seconds = HttpSettings::default().token_ttl.as_secs();
    show!("revoked {id}; running services refuse it within {seconds} s");
    Ok(())
}

fn words(scopes: &[Scope]) -> String {
    scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_and_label_are_bounded() {
        assert!(parse_expires("1ms").is_ok() && parse_expires("3660d").is_ok());
        for text in ["0s", "3661d", "never", "90"] {
            assert!(parse_expires(text).is_err(), "{text}");
        }
        assert!(parse_label(&"ä".repeat(64)).is_ok());
        for text in ["", "a\nb", &"a".repeat(65)] {
            assert!(parse_label(text).is_err(), "{text}");
        }
    }
}
