//! The API over TLS.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fairledger::http::metrics::Exposition;
use fairledger::http::tls::Tls;
use fairledger::http::{HttpSettings, serve_with};
use fairledger::ledger::{Ledger, LedgerSettings};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Api, Setup};

struct Served {
    api: Api,
    address: SocketAddr,
    tls: Tls,
    folder: tempfile::TempDir,
    /// The certificate that was written last, which is its own root.
    root: String,
    _stop: DropGuard,
}

fn pair() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

impl Served {
    /// With a look at the files every so often.
    async fn start(http: HttpSettings, look: Duration) -> Self {
        let api = Api::with(Setup { http, ..Setup::default() }).await;
        let folder = tempfile::tempdir().unwrap();
        let (root, key) = pair();
        let files = ["certificate.pem", "key.pem"].map(|name| folder.path().join(name));
        std::fs::write(&files[0], &root).unwrap();
        std::fs::write(&files[1], key).unwrap();
        let [certificate, key] = files;
        let tls = Tls::open(certificate, key).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(tls.clone().watch(Arc::clone(api.app.metrics()), look, stop.clone()));
        tokio::spawn(serve_with(listener, Some(tls.clone()), api.app.clone(), stop.clone().cancelled_owned()));
        Self { api, address, tls, folder, root, _stop: stop.drop_guard() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The first line of the answer to a request, to a client that trusts one root.
    async fn ask(&self, root: &str) -> Result<String, std::io::Error> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(root.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(self.address).await?;
        let name = "localhost".try_into().unwrap();
        let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
        let mut answer = Vec::new();
        // How the server ends the connection is not the matter here.
        let _ = stream.read_to_end(&mut answer).await;
        Ok(String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned())
    }

    fn metric(&self, name: &str) -> i64 {
        let ledger = Ledger::new(self.api.app.datastore().clone(), LedgerSettings::default());
        let text = Exposition::new(&self.api.app, ledger).text().unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} "))).unwrap();
        line.parse::<f64>().unwrap() as i64
    }

    async fn until(&self, metric: &str, count: i64) {
        while self.metric(metric) != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn a_new_certificate_is_taken_and_a_bad_one_is_not() {
    let mut served = Served::start(HttpSettings::default(), Duration::from_millis(20)).await;
    let first = served.root.clone();
    assert_eq!(served.ask(&first).await.unwrap(), "HTTP/1.1 200 OK");
    served.until("fairledger_tls_certificate_expiry_timestamp_seconds", 67_090_118_400).await;

    // A certificate whose key does not come along changes nothing.
    let (second, key) = pair();
    std::fs::write(served.path("certificate.pem"), &second).unwrap();
    served.until("fairledger_tls_reload_failures_total", 1).await;
    assert_eq!(served.ask(&first).await.unwrap(), "HTTP/1.1 200 OK");
    assert!(served.ask(&second).await.is_err(), "its root is not known");

    std::fs::write(served.path("key.pem"), key).unwrap();
    served.until("fairledger_tls_reloads_total", 1).await;
    served.root = second;
    assert_eq!(served.ask(&served.root).await.unwrap(), "HTTP/1.1 200 OK");
    assert!(served.ask(&first).await.is_err());

    // Told to, it reads files that did not change.
    served.tls.reload();
    served.until("fairledger_tls_reloads_total", 2).await;
    std::fs::write(served.path("key.pem"), "nothing").unwrap();
    served.until("fairledger_tls_reload_failures_total", 2).await;
    assert_eq!(served.ask(&served.root).await.unwrap(), "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn who_speaks_no_tls_or_says_nothing_is_cut_off_i12() {
    let http = HttpSettings { header_timeout: Duration::from_millis(300), ..HttpSettings::default() };
    let served = Served::start(http, Duration::from_secs(60)).await;
    let mut plain = TcpStream::connect(served.address).await.unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
    let mut silent = TcpStream::connect(served.address).await.unwrap();
    // Returns only because the server gives up.
    let _ = silent.read_to_end(&mut Vec::new()).await;
    served.until("fairledger_tls_handshake_failures_total", 2).await;
    assert_eq!(served.ask(&served.root).await.unwrap(), "HTTP/1.1 200 OK");
}

#[test]
fn files_that_cannot_be_used_are_told_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| folder.path().join(name));
    let error =
        |certificate: &PathBuf, key: &PathBuf| Tls::open(certificate.clone(), key.clone()).unwrap_err().to_string();
    assert!(error(&certificate, &key).contains("certificate.pem"));
    std::fs::write(&certificate, "no certificate").unwrap();
    assert!(error(&certificate, &key).contains("it has no certificate"));
    std::fs::write(&certificate, pair().0).unwrap();
    assert!(error(&certificate, &key).contains("key.pem"));
    std::fs::write(&key, pair().1).unwrap();
    assert!(error(&certificate, &key).contains("cannot be used together"));
}
