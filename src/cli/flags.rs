//! The settings as flags, made from their one list so that flag, variable, key and help cannot drift apart.
//!
//! `-h` leaves them out, `--help` lists them all with their defaults.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

use crate::config::{CONFIG_ENV, DEFINITIONS, Definition, Kind};

/// The settings given as flags, as texts by their names.
#[derive(Debug, Default)]
pub(super) struct Flags {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// The others.
    pub texts: BTreeMap<String, String>,
}

fn flag(id: &'static str, definition: &Definition, value_name: &'static str, help: String) -> Arg {
    Arg::new(id)
        .long(id)
        .value_name(value_name)
        .help_heading(definition.heading)
        .help(help)
        .global(true)
        .action(ArgAction::Set)
        .hide_short_help(true)
}

/// The names of a definition's own flag and of the one for its file, where it has them.
fn ids(definition: &Definition) -> (Option<&'static str>, Option<&'static str>) {
    let file = match definition.name {
        "database-url" => Some("database-url-file"),
        "replica-url" => Some("replica-url-file"),
        "migrate-database-url" => Some("migrate-database-url-file"),
        "seed-keys" => Some("seed-keys-file"),
        "secret" => Some("secret-file"),
        "signing-key" => Some("signing-key-file"),
        "otlp-endpoint" => Some("otlp-endpoint-file"),
        _ => None,
    };
    ((definition.kind != Kind::Secret).then_some(definition.name), file)
}

impl clap::Args for Flags {
    fn augment_args(mut command: Command) -> Command {
        command = command.arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .help(format!("TOML file with settings [env: {CONFIG_ENV}]"))
                .global(true)
                .value_parser(clap::value_parser!(PathBuf))
                .hide_short_help(true),
        );
        for definition in DEFINITIONS {
            let env = definition.env;
            let default = definition.default.map_or_else(String::new, |text| format!(" [default: {text}]"));
            let (own, file) = ids(definition);
            if let Some(id) = own {
                let help = format!("{} [env: {env}]{default}", definition.help);
                let mut arg = flag(id, definition, definition.value_name, help);
                if definition.kind == Kind::Switch {
                    arg = arg.num_args(0..=1).require_equals(true).default_missing_value("true");
                }
                command = command.arg(arg);
            }
            if let Some(id) = file {
                let help = if own.is_some() {
                    format!("The same from a file [env: {env}_FILE]")
                } else {
                    format!("{}. From a file, or from the variable {env} [env: {env}_FILE]", definition.help)
                };
                command = command.arg(flag(id, definition, "FILE", help));
            }
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.config = matches.get_one::<PathBuf>("config").cloned();
        for definition in DEFINITIONS {
            let (own, file) = ids(definition);
            for id in [own, file].into_iter().flatten() {
                if let Some(text) = matches.get_one::<String>(id) {
                    self.texts.insert(id.to_owned(), text.clone());
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory as _, Parser as _};

    #[test]
    fn every_setting_is_listed_by_help_with_its_variable_and_default() {
        let help = super::super::Cli::command().render_long_help().to_string();
        // Lines are broken wherever they are full.
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for definition in DEFINITIONS {
            assert!(help.contains(&format!("[env: {}]", definition.env)) || definition.kind == Kind::Secret);
            if let Some(default) = definition.default {
                assert!(help.contains(&format!("[env: {}] [default: {default}]", definition.env)), "{definition:?}");
            }
            if definition.has_file() {
                assert!(help.contains(&format!("[env: {}_FILE]", definition.env)), "{definition:?}");
                assert!(ids(definition).1.is_some_and(|id| id == format!("{}-file", definition.name)));
            }
        }
    }

    #[test]
    fn flags_may_stand_before_and_after_the_command() {
        for line in [
            ["fairledger", "--pool-size", "3", "--require-database", "migrate"],
            ["fairledger", "migrate", "--pool-size", "3", "--require-database"],
        ] {
            let flags = super::super::Cli::try_parse_from(line).unwrap().flags;
            assert_eq!(flags.texts["pool-size"], "3");
            assert_eq!(flags.texts["require-database"], "true");
        }
    }

    #[test]
    fn no_flag_takes_a_secret_i6() {
        for flag in ["--seed-keys", "--secret", "--signing-key"] {
            assert!(super::super::Cli::try_parse_from(["fairledger", "migrate", flag, "x"]).is_err(), "{flag}");
        }
    }
}
