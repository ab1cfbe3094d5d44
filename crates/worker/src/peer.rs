//! HTTP to a source or a target: requests with an answer that is read whole, within bounds of size and time.
//!
//! Whoever puts a worker together says how connections are made: which addresses may be reached, and TLS, are no concern of this
//! crate, and there is no way around them in it.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use flatbed_client::{Lines, Url};
use flatbed_clock::Clock;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderMap};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// Connections kept for the next request.
const IDLE_MAX: usize = 32;

/// A connection.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection that is being made, or why there is none.
pub type Dialled = Pin<Box<dyn Future<Output = Result<Box<dyn Stream>, String>> + Send>>;

/// Makes a connection to a server, with TLS where its URL asks for it, and only where the worker may go.
pub type Dial = Arc<dyn Fn(&Url) -> Dialled + Send + Sync>;

/// Addresses, or why there are none.
pub type Resolved = Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, String>> + Send>>;

/// Finds the addresses of a server that may be reached, for protocols whose library connects by itself: to these, and without asking
/// what the name means once more.
pub type Addresses = Arc<dyn Fn(&Url) -> Resolved + Send + Sync>;

/// Begins TLS over a connection to a host, whose certificate must be of it: for protocols that begin without.
pub type Secure = Arc<dyn Fn(String, Box<dyn Stream>) -> Dialled + Send + Sync>;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// No connection, or one that broke.
    #[error("{0}")]
    Broken(String),
    /// None in time.
    #[error("no answer in time")]
    Late,
    /// More than there may be, behind this status.
    #[error("the answer, {0}, is too large")]
    TooLarge(u16),
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP's status.
    pub status: u16,
    /// The header `Retry-After`.
    pub retry_after: Option<String>,
    /// All headers.
    pub headers: HeaderMap,
    /// All of the body.
    pub body: Bytes,
}

/// An answer that is read line by line, as long as it comes.
pub struct Streamed {
    /// HTTP's status.
    pub status: u16,
    /// Its lines.
    pub lines: Lines,
    /// The connection is this answer's.
    _sender: SendRequest<Full<Bytes>>,
}

impl std::fmt::Debug for Streamed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Streamed({})", self.status)
    }
}

/// How large and how late an answer may be.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Of the body.
    pub bytes_max: usize,
    /// Until all of it is here.
    pub time_max: Duration,
}

/// A server.
pub struct Peer {
    url: Url,
    headers: HeaderMap,
    dial: Dial,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
    clock: Clock,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Peer({})", self.url)
    }
}

impl Peer {
    /// A server with the headers that each request has, of which some may be secrets.
    pub fn new(url: Url, headers: HeaderMap, dial: Dial) -> Peer {
        Peer { url, headers, dial, idle: Mutex::default(), clock: Clock::default() }
    }

    /// Takes the time from `clock` instead of the machine's.
    #[must_use]
    pub fn timed_by(self, clock: Clock) -> Peer {
        Peer { clock, ..self }
    }

    /// The clock that it takes the time from.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Its address.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// What the header `Host` of its requests says: without a port that is the scheme's own, as it is signed by who signs.
    pub fn host(&self) -> String {
        let authority = self.url.authority();
        let usual = if self.url.is_secure() { ":443" } else { ":80" };
        authority.strip_suffix(usual).map(str::to_owned).unwrap_or(authority)
    }

    async fn connection(&self) -> Result<SendRequest<Full<Bytes>>, PeerError> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match idle {
                // What the server has closed meanwhile is not used.
                Some(mut sender) => {
                    if sender.ready().await.is_ok() {
                        return Ok(sender);
                    }
                }
                None => break,
            }
        }
        let broken = |error: hyper::Error| PeerError::Broken(error.to_string());
        let stream = (self.dial)(&self.url).await.map_err(PeerError::Broken)?;
        let (mut sender, connection) =
            http1::Builder::new().max_buf_size(128 << 10).handshake(TokioIo::new(stream)).await.map_err(broken)?;
        tokio::spawn(async move {
            // What goes wrong reaches who waits for an answer.
            let _ = connection.await;
        });
        sender.ready().await.map_err(broken)?;
        Ok(sender)
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, PeerError> {
        let mut request = Request::builder()
            .method(method)
            .uri(self.url.path(path))
            .header(header::HOST, self.host())
            .body(Full::new(body))
            .map_err(|error| PeerError::Broken(error.to_string()))?;
        request.headers_mut().extend(self.headers.clone());
        request.headers_mut().extend(headers.clone());
        Ok(request)
    }

    /// Sends a request whose answer is read while it comes, on a connection of its own; its head must come in such a time.
    ///
    /// # Errors
    /// [`PeerError`].
    pub async fn stream(
        &self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
        time_max: Duration,
    ) -> Result<Streamed, PeerError> {
        let request = self.request(method, path, headers, body)?;
        let exchange = async {
            let mut sender = self.connection().await?;
            let response = sender.send_request(request).await.map_err(|error| PeerError::Broken(error.to_string()))?;
            let status = response.status().as_u16();
            Ok(Streamed { status, lines: Lines::new(response.into_body()), _sender: sender })
        };
        self.clock.timeout(time_max, exchange).await.unwrap_or(Err(PeerError::Late))
    }

    /// Sends a request and reads its answer. `path` begins with a slash or question mark, is percent-encoded and stands behind the
    /// URL's own.
    ///
    /// # Errors
    /// [`PeerError`]; the server may or may not have done what was asked.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
        bounds: Bounds,
    ) -> Result<Answer, PeerError> {
        let broken = |error: &dyn std::fmt::Display| PeerError::Broken(error.to_string());
        let request = self.request(method, path, headers, body)?;
        let exchange = async {
            let mut sender = self.connection().await?;
            let response = sender.send_request(request).await.map_err(|error| broken(&error))?;
            let status = response.status().as_u16();
            let (head, body) = response.into_parts();
            let retry_after = head.headers.get(header::RETRY_AFTER);
            let retry_after = retry_after.and_then(|value| value.to_str().ok()).map(str::to_owned);
            let body = Limited::new(body, bounds.bytes_max).collect().await.map_err(|error| {
                if error.is::<LengthLimitError>() { PeerError::TooLarge(status) } else { broken(&error) }
            })?;
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if !sender.is_closed() && idle.len() < IDLE_MAX {
                idle.push(sender);
            }
            Ok(Answer { status, retry_after, headers: head.headers, body: body.to_bytes() })
        };
        self.clock.timeout(bounds.time_max, exchange).await.unwrap_or(Err(PeerError::Late))
    }
}
