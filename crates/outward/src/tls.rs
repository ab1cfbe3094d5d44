//! TLS to peers behind `https://`.

use std::fmt;
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::{TlsConnector, rustls};

/// The reason why certificates are refused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TlsError {
    /// Not PEM.
    #[error("the certificates are not in PEM form: {0}")]
    Pem(String),
    /// PEM without a certificate.
    #[error("the file contains no certificate")]
    None,
    /// An invalid certificate.
    #[error("a certificate cannot be used: {0}")]
    Certificate(rustls::Error),
}

/// The trusted authorities: Mozilla's list as of the build, and additional ones.
#[derive(Clone, Default)]
pub struct Tls(Arc<Inner>);

#[derive(Default)]
struct Inner {
    further: Vec<CertificateDer<'static>>,
    /// Created with the first connection.
    connector: OnceLock<TlsConnector>,
}

impl Tls {
    /// Trusts the authorities (or servers) whose certificates are in `pem` too.
    pub fn with_authorities(pem: &[u8]) -> Result<Tls, TlsError> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let further = certificates.map_err(|error| TlsError::Pem(error.to_string()))?;
        if further.is_empty() {
            return Err(TlsError::None);
        }
        let mut roots = RootCertStore::empty();
        for certificate in &further {
            roots.add(certificate.clone()).map_err(TlsError::Certificate)?;
        }
        Ok(Tls(Arc::new(Inner { further, connector: OnceLock::new() })))
    }

    /// Returns the additional authorities as DER, for a library with its own TLS.
    pub fn authorities(&self) -> Vec<Vec<u8>> {
        self.0.further.iter().map(|certificate| certificate.as_ref().to_vec()).collect()
    }

    fn connector(&self) -> Result<&TlsConnector, rustls::Error> {
        if let Some(connector) = self.0.connector.get() {
            return Ok(connector);
        }
        let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        roots.add_parsable_certificates(self.0.further.iter().cloned());
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(self.0.connector.get_or_init(|| TlsConnector::from(Arc::new(config))))
    }

    /// Begins TLS on a connection to `host`, a name or an address, and verifies its certificate.
    ///
    /// # Errors
    /// The reason of the failure.
    pub async fn connect<S>(&self, host: &str, stream: S) -> Result<TlsStream<S>, String>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
        let connector = self.connector().map_err(|error| error.to_string())?;
        connector.connect(name, stream).await.map_err(|error| format!("no TLS: {error}"))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({} further authorities)", self.0.further.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_certificate() {
        assert!(matches!(Tls::with_authorities(b"hello"), Err(TlsError::None)));
        let pem = |text: &str| format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
        assert!(matches!(Tls::with_authorities(pem("!").as_bytes()), Err(TlsError::Pem(_))));
        assert!(matches!(Tls::with_authorities(pem("aGVsbG8=").as_bytes()), Err(TlsError::Certificate(_))));
        assert!(Tls::default().connector().is_ok());
    }
}
