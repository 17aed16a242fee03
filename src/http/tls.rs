//! TLS of the listener: one certificate, changed without a restart.
//!
//! Serves I12: a handshake has a time. A new pair of files that cannot be used changes nothing: the one before stays in use.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

use super::metrics::Metrics;

/// Why a certificate and its key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds something else.
    #[error("{}: {reason}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// They do not go together, or are of a kind that is not known.
    #[error("the certificate {} and the key {} cannot be used together: {source}", certificate.display(), key.display())]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What rustls says.
        source: rustls::Error,
    },
}

/// A pair that can be served.
#[derive(Clone)]
struct Pair {
    config: Arc<ServerConfig>,
    /// When the certificate ends, in Unix seconds.
    ends: i64,
}

/// The certificate in use. Cheap to clone.
#[derive(Clone)]
pub struct Tls {
    inner: Arc<Inner>,
}

struct Inner {
    certificate: PathBuf,
    key: PathBuf,
    pair: RwLock<Pair>,
    look_again: Notify,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("certificate", &self.inner.certificate).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the pair.
    ///
    /// # Errors
    /// Files that cannot be used.
    pub fn open(certificate: PathBuf, key: PathBuf) -> Result<Self, TlsError> {
        let pair = load(&certificate, &key)?;
        let inner = Inner { certificate, key, pair: RwLock::new(pair), look_again: Notify::new() };
        Ok(Self { inner: Arc::new(inner) })
    }

    fn pair(&self) -> Pair {
        self.inner.pair.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes [`Tls::watch`] read the files now, changed or not.
    pub fn reload(&self) {
        self.inner.look_again.notify_one();
    }

    /// Looks from time to time whether the files changed, and takes what is new, until the stop.
    pub async fn watch(self, metrics: Arc<Metrics>, interval: Duration, stop: CancellationToken) {
        metrics.tls_expiry.store(self.pair().ends, Relaxed);
        let mut seen = self.changed_at();
        loop {
            let asked = tokio::select! {
                () = stop.cancelled() => return,
                () = self.inner.look_again.notified() => true,
                () = tokio::time::sleep(interval) => false,
            };
            let now = self.changed_at();
            if !asked && now == seen {
                continue;
            }
            seen = now;
            match load(&self.inner.certificate, &self.inner.key) {
                Ok(pair) => {
                    metrics.tls_expiry.store(pair.ends, Relaxed);
                    metrics.tls_reloads.fetch_add(1, Relaxed);
                    tracing::info!(certificate = %self.inner.certificate.display(), ends = pair.ends, "a new certificate is in use");
                    *self.inner.pair.write().unwrap_or_else(PoisonError::into_inner) = pair;
                }
                Err(error) => {
                    metrics.tls_reload_failures.fetch_add(1, Relaxed);
                    tracing::error!(%error, "the new certificate cannot be used: the one before stays in use");
                }
            }
        }
    }

    /// When the files were changed last; none of one that is not there.
    fn changed_at(&self) -> [Option<(SystemTime, u64)>; 2] {
        [&self.inner.certificate, &self.inner.key].map(|path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        })
    }

    /// Shakes hands within a time. Without success the connection is gone, which is all that its client is told.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
        within: Duration,
        metrics: &Metrics,
    ) -> Option<TlsStream<TcpStream>> {
        let accepting = TlsAcceptor::from(self.pair().config).accept(stream);
        match tokio::time::timeout(within, accepting).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
        metrics.tls_handshake_failures.fetch_add(1, Relaxed);
        None
    }
}

fn load(certificate: &Path, key: &Path) -> Result<Pair, TlsError> {
    let wrong = |path: &Path, reason: String| TlsError::File { path: path.to_owned(), reason };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong(certificate, error.to_string()))?;
    let Some(own) = chain.first() else {
        return Err(wrong(certificate, "it has no certificate".to_owned()));
    };
    let own = Certificate::from_der(own).map_err(|error| wrong(certificate, error.to_string()))?;
    let ends = own.tbs_certificate.validity.not_after.to_unix_duration().as_secs();
    // What the key's file holds instead is not repeated.
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| match error {
        rustls::pki_types::pem::Error::Io(error) => wrong(key, error.to_string()),
        _ => wrong(key, "it has no private key in PEM form".to_owned()),
    })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
    let mut config =
        config.map_err(|source| TlsError::Pair { certificate: certificate.to_owned(), key: key.to_owned(), source })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Pair { config: Arc::new(config), ends: i64::try_from(ends).unwrap_or(i64::MAX) })
}
