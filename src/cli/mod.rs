//! The commands of the program, one file each.
//!
//! | file | holds |
//! |---|---|
//! | `flags` | the settings as flags of every command |
//! | `database` | reaching the database: configured, running in the data folder, or started for a command |
//! | `data_dir` | the secrets in the data folder |
//! | `error` | why a command failed |
//! | `output` | all that is printed |
//! | the others | a command each |
//!
//! Answers go to standard output, everything else to standard error. Exit codes: 0 done, 1 refused, failed or found something
//! wrong, 2 wrong use, 141 done but the reader of the answer went away.
//!
//! Keeps I6: no secret is printed but a token at its making.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{Settings, Sources};
use crate::telemetry;

#[macro_use]
mod output;

mod bundle;
mod coverage;
mod data_dir;
mod database;
mod demo;
mod error;
mod export;
mod flags;
mod forget_player;
mod health;
mod key;
mod manual;
mod migrate;
mod openapi;
mod recover;
mod seed_keys;
mod serve;
mod sweep;
mod token;
mod verify;

pub use error::CliError;

/// The program's version, what it was built from, and the schema that it needs.
const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("BUILD_COMMIT"), ", schema ", env!("BUILD_SCHEMA"), ")");

/// Durable memory for single-use tokens and provably fair bets, on PostgreSQL.
#[derive(Debug, Parser)]
#[command(name = "fairledger", version = VERSION, about, max_term_width = 120, after_long_help = AFTER_HELP)]
struct Cli {
    #[command(flatten)]
    flags: flags::Flags,
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "A setting is taken from its flag, else from its variable, else from the TOML file (its key is the \
flag's name without the dashes), else it has its default. Times have a unit: 250ms, 10s, 5m, 24h, 90d. What may be a secret may \
stand in a file of its own instead: --NAME-file, VARIABLE_FILE or NAME-file.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the HTTP API
    Serve(serve::Args),
    /// Bring the database's schema up to this program's version
    Migrate(migrate::Args),
    /// Show the main job end to end on a throw-away database
    Demo,
    /// Recompute every stored record from its revealed seed
    Verify(verify::Args),
    /// Write the history, or what of it fits the filters, to a file
    Export(export::Args),
    /// Tell whether every nonce that was handed out is accounted for
    Coverage(coverage::Args),
    /// Write the evidence of one bet, for a dispute
    Bundle(bundle::Args),
    /// Sever an operator's name for a player from the sessions that carry it
    ForgetPlayer(forget_player::Args),
    /// Look after the keys that seal server seeds
    #[command(subcommand)]
    SeedKeys(seed_keys::Command),
    /// Register, list and close the keys that single-use tokens are issued under
    #[command(subcommand)]
    Key(key::Command),
    /// Forget what was spent under keys whose window has ended
    Sweep(sweep::Args),
    /// Show what the database lacks of what was acknowledged, and start anew after that
    Recover(recover::Args),
    /// Make, list and revoke the bearer tokens of the HTTP API
    #[command(subcommand)]
    Token(token::Command),
    /// Ask a running service whether it will serve; exits 1 if not
    Health(health::Args),
    /// Print the description of the HTTP API
    Openapi,
    /// Print completions for a shell
    Completions(manual::CompletionsArgs),
    /// Write the manual pages to a folder, or the first one to standard output
    Man(manual::ManArgs),
}

/// Runs the program: reads the command line, the settings, and does what they say.
pub fn main() -> ExitCode {
    let done = match Cli::try_parse() {
        // These need no settings, so wrong ones are not in the way.
        Ok(Cli { command: Command::Completions(args), .. }) => manual::completions(&args),
        Ok(Cli { command: Command::Man(args), .. }) => manual::man(&args),
        Ok(cli) => run(cli),
        Err(error) => usage(&error),
    };
    output::end(done)
}

/// A help that was asked for, or what is wrong with the command line.
fn usage(error: &clap::Error) -> Result<ExitCode, CliError> {
    match error.print() {
        Err(lost) if !error.use_stderr() => Err(CliError::Output(lost)),
        Ok(()) | Err(_) => Ok(u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)),
    }
}

fn run(cli: Cli) -> Result<ExitCode, CliError> {
    let sources = Sources::new(cli.flags.texts, cli.flags.config, std::env::vars_os())?;
    let settings = Settings::load(&sources)?;
    // Requests are what has spans.
    let collector = settings.otlp_endpoint.as_deref().filter(|_| matches!(cli.command, Command::Serve(_)));
    let _telemetry = telemetry::init(&settings.log, settings.log_format, collector)
        .map_err(|reason| CliError::Refused(format!("spans cannot be exported: {reason}")))?;
    for name in sources.unknown_variables() {
        tracing::warn!(name, "no setting has this variable");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::io("starting the runtime", error))?;
    runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve::run(settings, args).await,
            Command::Migrate(args) => migrate::run(&settings, &args).await,
            Command::Verify(args) => verify::run(&settings, &args).await,
            Command::Export(args) => export::run(&settings, &args).await,
            Command::Coverage(args) => coverage::run(&settings, &args).await,
            Command::Bundle(args) => bundle::run(&settings, &args).await,
            Command::ForgetPlayer(args) => forget_player::run(&settings, &args).await,
            Command::SeedKeys(command) => seed_keys::run(settings, &command).await,
            Command::Key(command) => key::run(&settings, command).await,
            Command::Sweep(args) => sweep::run(&settings, &args).await,
            Command::Recover(args) => recover::run(settings, args).await,
            Command::Token(command) => token::run(&settings, command).await,
            Command::Demo => demo::run(&settings).await,
            Command::Health(args) => health::run(&settings, &args).await,
            Command::Openapi => openapi::run(),
            Command::Completions(args) => manual::completions(&args),
            Command::Man(args) => manual::man(&args),
        }
    })
}
