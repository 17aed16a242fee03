//! `completions` and `man`: what a package of the program installs beside it, made from the commands themselves.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use super::{Cli, CliError, output};

#[derive(Debug, clap::Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(super) struct ManArgs {
    /// An existing folder: a page for the program, and one for each command
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(super) fn completions(args: &CompletionsArgs) -> Result<ExitCode, CliError> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "fairledger", &mut text);
    print(&text)
}

pub(super) fn man(args: &ManArgs) -> Result<ExitCode, CliError> {
    if let Some(folder) = &args.out {
        clap_mangen::generate_to(whole(), folder).map_err(|error| CliError::io("writing the manual pages", error))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = Vec::new();
    clap_mangen::Man::new(whole()).render(&mut text).map_err(|error| CliError::io("writing the manual page", error))?;
    print(&text)
}

/// The commands with all that a short help leaves out, and without `help`, which a page has no use for.
fn whole() -> Command {
    Cli::command().disable_help_subcommand(true).mut_args(|arg| arg.hide_short_help(false))
}

fn print(text: &[u8]) -> Result<ExitCode, CliError> {
    output::all(text)?;
    Ok(ExitCode::SUCCESS)
}
