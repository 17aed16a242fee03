//! `health`: asks a running service on this machine whether it will serve, for containers that have no other program to ask with.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

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
    let certificate = settings.tls.as_ref().map(|files| files.certificate.as_path());
    let answer = tokio::time::timeout(TIMEOUT, ask(address, path, certificate))
        .await
        .map_err(|_| CliError::Refused(format!("{address} does not answer in time")))?
        .map_err(|error| CliError::Refused(format!("{address} does not answer: {error}")))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    show!("{body}");
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

async fn ask(address: SocketAddr, path: &str, certificate: Option<&Path>) -> std::io::Result<String> {
    let stream = TcpStream::connect(address).await?;
    match certificate {
        None => ask_over(stream, address, path).await,
        Some(certificate) => {
            let config = Arc::new(trusting(certificate)?);
            let stream = TlsConnector::from(config).connect(address.ip().into(), stream).await?;
            ask_over(stream, address, path).await
        }
    }
}

async fn ask_over(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    address: SocketAddr,
    path: &str,
) -> std::io::Result<String> {
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// TLS with whoever shows the certificate in a file, and nobody else.
fn trusting(file: &Path) -> std::io::Result<ClientConfig> {
    let certificate = CertificateDer::from_pem_file(file)
        .map_err(|error| std::io::Error::other(format!("{}: {error}", file.display())))?;
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(OwnCertificate { certificate, provider: Arc::clone(&provider) });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(std::io::Error::other)?;
    Ok(config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// The service's own certificate, as this program's settings name it. Whoever issued it and whichever name is in it, the service is asked by
/// its address on this machine, so it is told by the certificate itself and by having its key. A new file is met once the service has taken
/// it too, which is within seconds.
#[derive(Debug)]
struct OwnCertificate {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for OwnCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if *end_entity == self.certificate {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
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
