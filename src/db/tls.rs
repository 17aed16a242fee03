//! TLS to PostgreSQL for the migrator's driver, which leaves it to others; the pool's driver brings its own.
//!
//! Both read the same connection URLs: `sslmode=verify-full` with `sslrootcert=FILE`, or with the system's roots. The migrator's driver
//! sees nothing of these parameters.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::migrate::MigrateError;

/// A URL as the migrator's driver reads it.
pub(super) struct Target {
    config: Config,
    /// What is verified, and against which file's roots; plain without it.
    verify: Option<Option<String>>,
}

impl Target {
    /// Reads a URL. `require` and `verify-ca` are taken as `verify-full`: encryption to whoever answers guards nothing.
    ///
    /// # Errors
    /// In words, without any part of the URL that may be secret.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let mut kept = Vec::new();
        let (mut mode, mut roots) = (None, None);
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let pair = form_urlencoded::parse(part.as_bytes()).next();
            let (name, value) =
                pair.map_or_else(Default::default, |(name, value)| (name.into_owned(), value.into_owned()));
            match name.as_str() {
                "sslmode" | "ssl-mode" => mode = Some(value),
                "sslrootcert" | "ssl-root-cert" | "ssl-ca" => roots = Some(value),
                "sslcert" | "ssl-cert" | "sslkey" | "ssl-key" => {
                    return Err("client certificates (sslcert, sslkey) are not supported".to_owned());
                }
                _ => kept.push(part),
            }
        }
        let url = if kept.is_empty() { place.to_owned() } else { format!("{place}?{}", kept.join("&")) };
        let mut config: Config = url.parse().map_err(|_| "the URL cannot be read".to_owned())?;
        let verify = match mode.as_deref() {
            None | Some("disable" | "allow" | "prefer") => None,
            Some("require" | "verify-ca" | "verify-full") => Some(roots),
            Some(_) => {
                return Err("sslmode must be disable, allow, prefer, require, verify-ca or verify-full".to_owned());
            }
        };
        config.ssl_mode(if verify.is_some() { SslMode::Require } else { SslMode::Disable });
        Ok(Self { config, verify })
    }

    /// Reads the file of roots, if there is one: the pool's driver does not say which file it cannot read.
    pub fn check_roots(&self) -> Result<(), String> {
        match &self.verify {
            Some(Some(roots)) => client_config(Some(roots)).map(drop),
            _ => Ok(()),
        }
    }

    /// Connects, and drives the connection in a task of its own.
    pub async fn connect(self) -> Result<Client, MigrateError> {
        match self.verify {
            None => {
                let (client, connection) = self.config.connect(NoTls).await?;
                drive(connection);
                Ok(client)
            }
            Some(roots) => {
                let tls = MakeRustlsConnect::new(client_config(roots.as_deref()).map_err(MigrateError::Database)?);
                let (client, connection) = self.config.connect(tls).await?;
                drive(connection);
                Ok(client)
            }
        }
    }
}

fn drive(connection: impl Future<Output = Result<(), tokio_postgres::Error>> + Send + 'static) {
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the migrator's connection ended");
        }
    });
}

/// A client's TLS: against the roots of a file, or the system's.
///
/// # Errors
/// In words: a file that has no roots.
pub(crate) fn client_config(roots: Option<&str>) -> Result<ClientConfig, String> {
    let mut store = RootCertStore::empty();
    match roots {
        Some(path) => {
            let wrong = |error: &dyn std::fmt::Display| format!("sslrootcert {path} cannot be used: {error}");
            for certificate in CertificateDer::pem_file_iter(Path::new(path)).map_err(|error| wrong(&error))? {
                store.add(certificate.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
            }
            if store.is_empty() {
                return Err(wrong(&"it has no certificate"));
            }
        }
        None => {
            // What the system has and rustls cannot read is no root for us.
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(builder.map_err(|error| error.to_string())?.with_root_certificates(store).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_tls_is_read_and_kept_from_the_driver() {
        let url =
            "postgres://u:p@db.example:5433/d?sslmode=verify-full&application_name=a&sslrootcert=%2Fetc%2Froot.pem";
        let target = Target::parse(url).unwrap();
        assert_eq!(target.verify, Some(Some("/etc/root.pem".to_owned())));
        assert_eq!((target.config.get_ports(), target.config.get_application_name()), (&[5433][..], Some("a")));
        assert_eq!(target.config.get_ssl_mode(), SslMode::Require);
        assert_eq!(Target::parse("postgres://u@h/d?sslmode=require").unwrap().verify, Some(None));
        for plain in ["postgres://u@h/d", "postgres://u@h/d?sslmode=disable", "postgres:///d?host=/run&sslmode=prefer"]
        {
            assert_eq!(Target::parse(plain).unwrap().verify, None, "{plain}");
        }
        for wrong in ["postgres://u@h/d?sslmode=maybe", "postgres://u@h/d?sslcert=a", "postgres://u@h:port/d"] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
    }
}
