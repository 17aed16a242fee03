//! The commands, run as the built program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::harness::{Service, TestDb};

mod migrate;
mod private;
mod seed_keys;
mod serve;
mod settings;
mod token;
mod verify;

/// The program with nothing of the tester's own environment that it would read.
fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairledger"));
    for (name, _) in std::env::vars_os() {
        let ours = |name: &str| name.starts_with("FAIRLEDGER_") || name.contains("DATABASE_URL");
        if name.to_str().is_some_and(ours) && name != "FAIRLEDGER_PG_BIN" {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
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

/// A caller of a running service.
struct Caller {
    base_url: String,
    token: String,
    client: reqwest::Client,
}

impl Caller {
    fn new(service: &Service, token: &str) -> Self {
        Self { base_url: service.base_url.clone(), token: token.to_owned(), client: reqwest::Client::new() }
    }

    async fn try_call(&self, method: &str, path: &str, body: Option<Value>) -> Result<(u16, Value), reqwest::Error> {
        let url = format!("{}{path}", self.base_url);
        let mut request = self.client.request(method.parse().unwrap(), url).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await?;
        Ok((answer.status().as_u16(), answer.json().await?))
    }

    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        self.try_call(method, path, body).await.unwrap()
    }

    /// A POST that succeeds.
    #[track_caller]
    fn post(&self, path: &str, body: Value) -> impl Future<Output = Value> + use<'_> {
        let path = path.to_owned();
        async move {
            let (status, answer) = self.call("POST", &path, Some(body)).await;
            assert!((200..300).contains(&status), "POST {path}: {status} {answer}");
            answer
        }
    }

    async fn session(&self) -> Value {
        self.post("/v1/sessions", json!({})).await
    }

    /// Takes a bet on dice under a session's commitment.
    async fn dice(&self, session: &Value, bet_ref: &str) -> Value {
        let body = json!({ "commitment": session["commitment"], "betRef": bet_ref, "game": "dice" });
        self.post(&format!("/v1/sessions/{}/bets", id(session)), body).await
    }

    /// Rotates the session of a view; gives the view after it.
    async fn rotate(&self, session: &Value) -> Value {
        let body = json!({ "commitment": session["commitment"] });
        let mut answer = self.post(&format!("/v1/sessions/{}/rotate", id(session)), body).await;
        answer["session"].take()
    }
}

fn id(session: &Value) -> &str {
    session["sessionId"].as_str().unwrap()
}

/// A data folder that PostgreSQL's own user can pass through.
fn data_folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::Builder::new()
        .prefix("fl")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o711))
        .tempdir()
        .unwrap();
    let data = folder.path().join("data");
    (folder, data)
}
