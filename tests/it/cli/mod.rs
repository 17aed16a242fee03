//! The commands, run as the built program.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::harness::{self, Caller, Service, TestDb, data_folder, http_client, id};

mod evidence;
mod export;
mod installed;
mod key;
mod migrate;
mod output;
mod private;
mod seed_keys;
mod serve;
mod settings;
mod tls;
mod token;
#[cfg(feature = "otlp")]
mod traces;
mod verify;

/// The program, with what it prints kept from the test's own output.
fn program(args: &[&str]) -> Command {
    let mut command = harness::program(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The program on a test's database, with the rights of the service and of the owner, and the keys of its folder.
fn on(db: &TestDb, args: &[&str]) -> Command {
    let mut command = program(args);
    command
        .env("DATABASE_URL", &db.service_url)
        .env("MIGRATE_DATABASE_URL", &db.owner_url)
        .env("FAIRLEDGER_SEED_KEYS_FILE", db.data_dir().join("seed-keys"))
        .env("FAIRLEDGER_SECRET_FILE", db.data_dir().join("secret"));
    command
}

/// The program on a data folder of its own.
fn in_folder(folder: &Path, args: &[&str]) -> Command {
    let mut command = program(args);
    command.env("FAIRLEDGER_DATA_DIR", folder);
    command
}

/// How a command ended and what it printed.
#[derive(Debug)]
struct Done {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

impl Done {
    #[track_caller]
    fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// It was refused, with all of these words.
    #[track_caller]
    fn refused(self, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(1), "{self:#?}");
        for word in words {
            assert!(self.err.contains(word), "it lacks {word:?}: {self:#?}");
        }
        self
    }
}

async fn done(mut command: Command) -> Done {
    tokio::task::spawn_blocking(move || command.output().unwrap().into()).await.unwrap()
}
