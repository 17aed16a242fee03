//! The built program as a process of its own, to be asked, stopped and killed.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::TestDb;

const START_MAX: Duration = Duration::from_secs(60);
const STOP_MAX: Duration = Duration::from_secs(30);
const LAST_WORDS_MAX: Duration = Duration::from_secs(2);
const LISTENING: &str = "listening on ";

/// A running `fairledger serve`. Killed when dropped.
#[derive(Debug)]
pub struct Service {
    child: Child,
    /// Where it listens: `http://127.0.0.1:PORT`, with a certificate `https`.
    pub base_url: String,
    output: Arc<Output>,
}

#[derive(Debug, Default)]
struct Output {
    printed: Mutex<Printed>,
    grown: Condvar,
}

#[derive(Debug, Default)]
struct Printed {
    text: String,
    /// Of stdout and stderr, how many have come to their end.
    streams_ended: u32,
}

/// The built program, with nothing of the tester's own environment that it would read but where PostgreSQL's binaries are.
pub fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairledger"));
    forget_settings(&mut command);
    command.args(args).stdin(Stdio::null());
    command
}

/// Keeps the tester's own settings from a command that starts the program.
pub fn forget_settings(command: &mut Command) {
    let read = |name: &str| {
        (name.starts_with("FAIRLEDGER_") && name != "FAIRLEDGER_PG_BIN")
            || name.starts_with("OTEL_")
            || name.contains("DATABASE_URL")
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(read)) {
        command.env_remove(name);
    }
}

impl Service {
    /// Starts the service on a test's database, as its service role, with more environment and arguments.
    pub fn spawn(db: &TestDb, env: &[(&str, &str)], args: &[&str]) -> Self {
        Self::spawn_at(&db.service_url, db, env, args)
    }

    /// The same over another URL, such as a proxy's.
    pub fn spawn_at(database_url: &str, db: &TestDb, env: &[(&str, &str)], args: &[&str]) -> Self {
        let mut command = program(&["serve", "--listen", "127.0.0.1:0", "--data-dir"]);
        command
            .arg(db.data_dir())
            .args(args)
            .env("DATABASE_URL", database_url)
            .env("FAIRLEDGER_SEED_KEYS_FILE", db.data_dir().join("seed-keys"))
            .env("FAIRLEDGER_SECRET_FILE", db.data_dir().join("secret"))
            .envs(env.iter().copied());
        Self::start(command)
    }

    /// Starts a command that serves, and waits until it listens.
    ///
    /// # Panics
    /// With all that it printed, when it ends or takes a minute.
    pub fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let output = Arc::new(Output::default());
        collect(child.stdout.take().unwrap(), &output);
        collect(child.stderr.take().unwrap(), &output);
        let mut service = Self { child, base_url: String::new(), output };
        service.base_url = service.await_listening();
        service
    }

    fn await_listening(&mut self) -> String {
        let deadline = Instant::now() + START_MAX;
        loop {
            if let Some(address) = listening_address(&self.logs()) {
                return address.to_owned();
            }
            let ended = self.child.try_wait().unwrap();
            if ended.is_some() || Instant::now() > deadline {
                self.await_last_words();
                panic!("not listening ({ended:?}); it printed:\n{}", self.logs());
            }
            let seen = self.logs().len();
            self.await_output(|printed| printed.text.len() > seen, Duration::from_millis(100));
        }
    }

    fn await_output(&self, condition: impl Fn(&Printed) -> bool, within: Duration) {
        let printed = self.output.printed.lock().unwrap();
        drop(self.output.grown.wait_timeout_while(printed, within, |printed| !condition(printed)).unwrap());
    }

    /// What a process printed last is still under way when it has ended. A server that outlives it may hold its streams open.
    fn await_last_words(&self) {
        self.await_output(|printed| printed.streams_ended == 2, LAST_WORDS_MAX);
    }

    /// The URL of a path such as `/v1/keys`.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base_url)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All that it has printed so far.
    pub fn logs(&self) -> String {
        self.output.printed.lock().unwrap().text.clone()
    }

    /// SIGKILL, and waits for its end.
    pub fn kill9(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.await_last_words();
    }

    /// SIGTERM, and waits for its end.
    ///
    /// # Panics
    /// With all that it printed, when it does not end in time.
    pub fn terminate(&mut self) -> ExitStatus {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), Signal::SIGTERM).unwrap();
        self.await_end(STOP_MAX)
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// With all that it printed, when it does not end in time.
    pub fn await_end(&mut self, within: Duration) -> ExitStatus {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.await_last_words();
                return status;
            }
            assert!(Instant::now() < deadline, "it runs on; it printed:\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the service printed:\n{}", self.logs());
        }
    }
}

fn collect(stream: impl Read + Send + 'static, output: &Arc<Output>) {
    let output = Arc::clone(output);
    std::thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            output.printed.lock().unwrap().text += &(String::from_utf8_lossy(&line) + "\n");
            output.grown.notify_all();
        }
        output.printed.lock().unwrap().streams_ended += 1;
        output.grown.notify_all();
    });
}

/// The `host:port` after the first complete mention of where it listens, in plain or JSON output.
fn listening_address(text: &str) -> Option<&str> {
    let (complete, _) = text.rsplit_once('\n')?;
    let begin = complete.find(&format!("{LISTENING}http"))? + LISTENING.len();
    let address = &complete[begin..];
    let end = address.find(|c: char| !(c.is_ascii_alphanumeric() || ".:[]-/".contains(c))).unwrap_or(address.len());
    Some(&address[..end])
}
