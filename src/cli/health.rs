//! `health`: asks a running service on this machine whether it will serve, for containers that have no other program to ask with.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::config::Settings;

use super::CliError;

/// How long the whole answer may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What is read of an answer at the most, in bytes.
const ANSWER_BYTES_MAX: u64 = 16 * 1024;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Ask only whether the process lives
    #[arg(long)]
    alive: bool,
}

pub(super) async fn run(settings: &Settings, args: &Args) -> Result<ExitCode, CliError> {
    let address = reachable(settings.listen);
    let path = if args.alive { "/healthz" } else { "/readyz" };
    let answer = tokio::time::timeout(TIMEOUT, ask(address, path))
        .await
        .map_err(|_| CliError::Refused(format!("{address} does not answer in time")))?
        .map_err(|error| CliError::Refused(format!("{address} does not answer: {error}")))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    println!("{body}");
    let ready = head.split(' ').nth(1) == Some("200");
    Ok(if ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where a service that listens on every address is reached.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

async fn ask(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_on_every_address_is_asked_on_this_machines_own() {
        for (listen, asked) in [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:2", "[::1]:2"), ("10.0.0.1:3", "10.0.0.1:3")] {
            assert_eq!(reachable(listen.parse().unwrap()), asked.parse().unwrap());
        }
    }
}
