//! Clearing up after the test binary, however it ends: Rust drops no statics, and nothing runs after a kill.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// Runs a shell script with arguments when this process has ended. A child waits at the other end of a pipe, which the kernel closes.
pub fn run_at_exit(script: &str, args: &[&str]) {
    let child = Command::new("sh")
        .arg("-c")
        .arg(format!("read -r _; {script}"))
        .arg("at-exit")
        .args(args)
        .current_dir("/")
        .stdin(Stdio::piped())
        // It must not hold cargo's output open, nor go with a Ctrl-C before its work is done.
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("a shell");
    std::mem::forget(child);
}
