//! TLS: certificates, which are reloaded when their files change, and handshakes.
//!
//! The main cost of a handshake is the signature after the client's hello, 0.1 to 1 ms of processor time by the type
//! of key. So after the hello each step of a handshake waits for its [turn](Turns): the number of turns is limited,
//! and addresses take turns.

use std::fs::{self, File};
use std::future::poll_fn;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use flatbed_admission::Full;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{Acceptor, ProducesTickets};

use crate::stream::{Stream, Transport};
use crate::turns::{ClientNetwork, Turns};

const CHECK_INTERVAL: Duration = Duration::from_secs(2);

const FILE_BYTES_MAX: u64 = 1 << 20;

/// The most unsent data that TLS buffers. Beyond it the answer waits.
const BUFFER_BYTES_MAX: usize = 16 * 1024;

/// The protocols offered to clients by ALPN (RFC 7301), in order of preference.
const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// The error of a certificate. Each message stands alone.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path:?} cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A file is larger than 1 MB.
    #[error("{0:?} is larger than 1 MB")]
    TooLarge(PathBuf),
    /// The file has no certificate, or something else.
    #[error("{0:?} has no certificates in PEM")]
    NoCertificate(PathBuf),
    /// The file has no supported key.
    #[error("{0:?} has no private key in PEM")]
    NoKey(PathBuf),
    /// The certificate and the key do not match, or their type is not supported.
    #[error("the certificate in {certificate:?} and the key in {key:?} cannot be used: {reason}")]
    Unusable {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The system provides no random numbers.
    #[error("TLS cannot be set up: {0}")]
    SetUp(String),
}

/// A certificate and its key, read from files.
#[derive(Debug)]
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    tickets: Arc<dyn ProducesTickets>,
    now: RwLock<Arc<ServerConfig>>,
}

/// The identity of a file's content: modification time, length and inode.
#[derive(Debug, PartialEq, Eq)]
struct Stamp(Option<(SystemTime, u64, u64)>);

impl Stamp {
    fn of(path: &Path) -> Stamp {
        use std::os::unix::fs::MetadataExt;
        let metadata = fs::metadata(path).ok();
        Stamp(metadata.and_then(|file| Some((file.modified().ok()?, file.len(), file.ino()))))
    }
}

impl Tls {
    /// Reads a certificate chain and its key, both in PEM.
    pub fn read(certificate: &Path, key: &Path) -> Result<Arc<Tls>, TlsError> {
        let tickets = ring::Ticketer::new().map_err(|error| TlsError::SetUp(error.to_string()))?;
        let now = RwLock::new(config(certificate, key, &tickets)?);
        Ok(Arc::new(Tls { certificate: certificate.to_owned(), key: key.to_owned(), tickets, now }))
    }

    fn now(&self) -> Arc<ServerConfig> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reloads the files when they change, until dropped. If the new files are invalid, it logs an error and keeps
    /// the old certificate.
    pub(crate) async fn follow(&self) {
        let stamps = || [Stamp::of(&self.certificate), Stamp::of(&self.key)];
        let mut known = stamps();
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let found = stamps();
            if found == known {
                continue;
            }
            known = found;
            match self.reload() {
                Ok(()) => {
                    tracing::info!(certificate = %self.certificate.display(), "the certificate was reloaded");
                }
                Err(error) => {
                    tracing::error!(%error, "the changed certificate is invalid; the previous one stays in use")
                }
            }
        }
    }

    /// Reloads the files now. Open connections keep their certificate.
    ///
    /// # Errors
    /// [`TlsError`]: the new files are invalid, and the previous certificate stays in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = config(&self.certificate, &self.key, &self.tickets)?;
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Performs the handshake of a client.
    ///
    /// # Errors
    /// The connection's, and those of the protocol.
    pub(crate) async fn greet(
        &self,
        transport: Transport,
        who: ClientNetwork,
        turns: &Arc<Turns>,
    ) -> io::Result<Stream> {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), transport).await?;
        let turn = turns.wait([who]).await.map_err(too_many)?;
        let buffers = |session: &mut tokio_rustls::rustls::ServerConnection| {
            session.set_buffer_limit(Some(BUFFER_BYTES_MAX));
        };
        let mut turn = Some(turn);
        let mut rest = pin!(hello.into_stream_with(self.now(), buffers));
        let stream = loop {
            let turn = match turn.take() {
                Some(turn) => turn,
                None => turns.wait([who]).await.map_err(too_many)?,
            };
            // Any of these polls may sign, for example after a second hello if the first had to be retried.
            let found = poll_fn(|context| Poll::Ready(rest.as_mut().poll(context))).await;
            drop(turn);
            match found {
                Poll::Ready(greeted) => break greeted?,
                Poll::Pending => woken().await,
            }
        };
        Ok(Stream::Tls(Box::new(stream)))
    }
}

fn too_many(_: Full) -> io::Error {
    io::Error::other("too many handshakes wait")
}

/// Waits for the next wake-up of this task, including spurious ones.
async fn woken() {
    let mut has_waited = false;
    poll_fn(|_| if std::mem::replace(&mut has_waited, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

/// Returns true if ALPN chose HTTP/2, `None` if the client does not use ALPN.
pub(crate) fn is_http2(chosen: Option<&[u8]>) -> Option<bool> {
    chosen.map(|chosen| chosen == HTTP2)
}

fn config(certificate: &Path, key: &Path, tickets: &Arc<dyn ProducesTickets>) -> Result<Arc<ServerConfig>, TlsError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(certificate)?).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty());
    let chain = chain.ok_or_else(|| TlsError::NoCertificate(certificate.to_owned()))?;
    let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|_| TlsError::NoKey(key.to_owned()))?;
    let made = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
    let mut made = made.map_err(|error| TlsError::Unusable {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        reason: error.to_string(),
    })?;
    made.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
    // The client stores its own session ticket, so the server's memory does not grow.
    made.ticketer = tickets.clone();
    Ok(Arc::new(made))
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(TlsError::TooLarge(path.to_owned()));
    }
    Ok(bytes)
}
