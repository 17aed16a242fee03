//! What a command prints. Standard output may go away or be full, and that must neither end a command half-way nor pass for success.
//!
//! * `show!` prints a line of the answer. When that fails, the failure is kept and what follows is dropped: a command that changes
//!   something does all of it or nothing, whoever reads along.
//! * `note!` tells a person something on standard error. Where nobody reads it, nothing is lost.
//! * [`end`] makes an exit code of it all: 141, as a shell tells of SIGPIPE, when the reader went away
//!   (`fairledger coverage ID | head -1`), and 1 with a message on standard error when the output could not be written (a full disk). A
//!   command that failed or found something wrong ends with its own code.
//!
//! Nothing else prints: clippy refuses `println!` and `eprintln!` in this crate.

use std::fmt::Arguments;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::CliError;

/// As a shell tells of a program that SIGPIPE ended.
const READER_GONE: u8 = 128 + 13;

/// The first failure of standard output. One in a process, as that is.
static LOST: Mutex<Option<io::Error>> = Mutex::new(None);

macro_rules! show {
    ($($text:tt)*) => { $crate::cli::output::line(format_args!($($text)*)) };
}

macro_rules! note {
    ($($text:tt)*) => { $crate::cli::output::aside(format_args!($($text)*)) };
}

fn lost() -> MutexGuard<'static, Option<io::Error>> {
    LOST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints a line of the answer. Use `show!`.
pub(super) fn line(text: Arguments<'_>) {
    unless_lost(|out| writeln!(out, "{text}"));
}

/// Keeps the first failure. Nothing is written after it: a reader would take what follows a gap for the whole.
fn unless_lost(write: impl FnOnce(&mut io::Stdout) -> io::Result<()>) {
    let mut lost = lost();
    if lost.is_none() {
        *lost = write(&mut io::stdout()).err();
    }
}

/// Prints what a change came to: on standard error when standard output takes it no more, since the change stands.
pub(super) fn outcome(text: &str) {
    line(format_args!("{text}"));
    unless_lost(io::Stdout::flush);
    if lost().is_some() {
        aside(format_args!("{text}"));
    }
}

/// Prints something that nothing may go on without.
///
/// # Errors
/// It could not be written.
pub(super) fn all(bytes: &[u8]) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(CliError::Output)
}

/// Prints something that is worthless unless somebody gets it.
///
/// # Errors
/// It could not be written, or goes to the null device. That stands in too for a standard output that was closed as the program began.
pub(super) fn to_somebody(bytes: &[u8]) -> Result<(), CliError> {
    if goes_nowhere().unwrap_or(false) {
        return Err(CliError::Output(io::Error::other("it is closed, or the null device")));
    }
    all(bytes)
}

fn goes_nowhere() -> io::Result<bool> {
    let out = File::from(io::stdout().as_fd().try_clone_to_owned()?).metadata()?;
    let null = fs::metadata("/dev/null")?;
    Ok(out.file_type().is_char_device() && out.rdev() == null.rdev())
}

/// Tells a person something. Use `note!`.
pub(super) fn aside(text: Arguments<'_>) {
    // In one piece, so that lines of several processes do not mix. There is nobody left to tell of a failure.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// The exit code of a command, in view of what became of its output.
pub(super) fn end(done: Result<ExitCode, CliError>) -> ExitCode {
    unless_lost(io::Stdout::flush);
    let (code, lost) = match done {
        Ok(code) => (code, lost().take()),
        Err(CliError::Output(error)) => (ExitCode::SUCCESS, Some(error)),
        Err(error) => {
            note!("fairledger: {error}");
            return ExitCode::FAILURE;
        }
    };
    let Some(error) = lost else { return code };
    let gone = error.kind() == io::ErrorKind::BrokenPipe;
    if !gone {
        note!("fairledger: {}", CliError::Output(error));
    }
    match code {
        ExitCode::SUCCESS if gone => ExitCode::from(READER_GONE),
        ExitCode::SUCCESS => ExitCode::FAILURE,
        code => code,
    }
}
