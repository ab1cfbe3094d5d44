//! HTTP to a source or target: requests whose answers are read whole, within limits of size and time.
//!
//! The embedding program makes the connections. Allowed addresses and TLS are outside of this crate, and the crate has
//! no other way to connect.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
pub use flatbed_client::Stream;
use flatbed_client::{IdleConnections, Lines, Url, handshake};
use flatbed_clock::Clock;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{self, HeaderMap};
use hyper::{Method, Request};

const IDLE_MAX: usize = 32;

/// The most bytes of a connection's buffer, also the longest head of an answer.
const BUFFER_BYTES_MAX: usize = 128 << 10;

/// A pending connection, or the reason why it failed.
pub type DialFuture = Pin<Box<dyn Future<Output = Result<Box<dyn Stream>, String>> + Send>>;

/// Connects to a server, with TLS if its URL requires it, and only to allowed addresses.
pub type Dial = Arc<dyn Fn(&Url) -> DialFuture + Send + Sync>;

/// A pending list of addresses, or the reason why it failed.
pub type ResolveFuture = Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, String>> + Send>>;

/// Resolves the allowed addresses of a server for libraries that connect by themselves. They must connect to these
/// without resolving the name again.
pub type Addresses = Arc<dyn Fn(&Url) -> ResolveFuture + Send + Sync>;

/// Begins TLS on a connection to a host and verifies its certificate, for protocols that start without TLS.
pub type Secure = Arc<dyn Fn(String, Box<dyn Stream>) -> DialFuture + Send + Sync>;

/// The reason why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// No connection, or one that broke.
    #[error("{0}")]
    Broken(String),
    /// The timeout has expired.
    #[error("no answer in time")]
    Late,
    /// The answer with this status exceeds its limit.
    #[error("the answer, {0}, is too large")]
    TooLarge(u16),
}

/// A complete answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP's status.
    pub status: u16,
    /// The header `Retry-After`.
    pub retry_after: Option<String>,
    /// All headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// An answer that is read line by line as it arrives.
pub struct StreamedAnswer {
    /// HTTP's status.
    pub status: u16,
    /// Its lines.
    pub lines: Lines,
    /// Keeps the connection, which belongs to this answer, open.
    _sender: SendRequest<Full<Bytes>>,
}

impl std::fmt::Debug for StreamedAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamedAnswer({})", self.status)
    }
}

/// The limits of an answer.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The largest body, in bytes.
    pub bytes_max: usize,
    /// The timeout for the whole answer.
    pub time_max: Duration,
}

/// A server.
pub struct Peer {
    url: Url,
    headers: HeaderMap,
    dial: Dial,
    idle: IdleConnections<Full<Bytes>>,
    clock: Clock,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Peer({})", self.url)
    }
}

impl Peer {
    /// Creates a server whose requests carry these headers. The headers may be secret.
    pub fn new(url: Url, headers: HeaderMap, dial: Dial) -> Peer {
        Peer { url, headers, dial, idle: IdleConnections::new(IDLE_MAX), clock: Clock::default() }
    }

    /// Replaces the system clock.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Peer {
        Peer { clock, ..self }
    }

    /// Returns the clock in use.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the server's URL.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Returns the value of the header `Host`, as signatures need it: without the scheme's default port.
    pub fn host(&self) -> String {
        let authority = self.url.authority();
        let usual = if self.url.is_secure() { ":443" } else { ":80" };
        authority.strip_suffix(usual).map(str::to_owned).unwrap_or(authority)
    }

    async fn connection(&self) -> Result<SendRequest<Full<Bytes>>, PeerError> {
        if let Some(sender) = self.idle.take().await {
            return Ok(sender);
        }
        let broken = |error: hyper::Error| PeerError::Broken(error.to_string());
        let stream = (self.dial)(&self.url).await.map_err(PeerError::Broken)?;
        let mut sender = handshake(stream, BUFFER_BYTES_MAX).await.map_err(broken)?;
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

    /// Sends a request and returns its answer while it arrives, on a connection of its own. The head of the answer must
    /// come within `time_max`.
    pub async fn stream(
        &self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
        time_max: Duration,
    ) -> Result<StreamedAnswer, PeerError> {
        let request = self.request(method, path, headers, body)?;
        let exchange = async {
            let mut sender = self.connection().await?;
            let response = sender.send_request(request).await.map_err(|error| PeerError::Broken(error.to_string()))?;
            let status = response.status().as_u16();
            Ok(StreamedAnswer { status, lines: Lines::new(response.into_body()), _sender: sender })
        };
        self.clock.timeout(time_max, exchange).await.unwrap_or(Err(PeerError::Late))
    }

    /// Sends a request and reads its answer. `path` begins with a slash or question mark, is percent-encoded, and is
    /// appended to the URL's path.
    ///
    /// # Errors
    /// [`PeerError`]; the server may have processed the request.
    pub fn call<'a>(
        &'a self,
        method: Method,
        path: &'a str,
        headers: &'a HeaderMap,
        body: Bytes,
        bounds: Bounds,
    ) -> BoxFuture<'a, Result<Answer, PeerError>> {
        Box::pin(self.exchange(method, path, headers, body, bounds))
    }

    async fn exchange(
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
            self.idle.give_back(sender);
            Ok(Answer { status, retry_after, headers: head.headers, body: body.to_bytes() })
        };
        self.clock.timeout(bounds.time_max, exchange).await.unwrap_or(Err(PeerError::Late))
    }
}
