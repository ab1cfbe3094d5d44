//! One keep-alive connection to a server.

use std::{io, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{Method, Request, Response, body::Incoming, client::conn::http1::SendRequest, header};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use crate::{Url, idle::handshake, pieces::OutgoingBody};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes of a connection's buffer.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// The largest answer that is held in memory, in bytes: a bulk answer of the largest documents.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// The reason why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection, with the operating system's reason.
    #[error("no server answers at {url}: {source}")]
    Connect {
        /// The server's address, without the password.
        url: Url,
        /// Refused, unreachable, timed out, an unknown host ...
        source: io::Error,
    },
    /// The connection broke, or the server does not speak HTTP.
    #[error("the connection to the server failed: {0}")]
    Http(#[from] hyper::Error),
    /// The path or the credentials are invalid in a request line or header.
    #[error("the request cannot be written: {0}")]
    Request(#[from] hyper::http::Error),
    /// The answer exceeds 256 MB.
    #[error("the server's answer is larger than 256 MB")]
    TooLarge,
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body, at most 256 MB.
    pub body: Bytes,
}

impl Answer {
    /// Reads a whole answer.
    ///
    /// # Errors
    /// [`Error::Http`] if the connection breaks, [`Error::TooLarge`].
    pub async fn read(response: Response<Incoming>) -> Result<Answer, Error> {
        let status = response.status().as_u16();
        match Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await {
            Ok(body) => Ok(Answer { status, body: body.to_bytes() }),
            Err(error) if error.is::<LengthLimitError>() => Err(Error::TooLarge),
            Err(error) => match error.downcast::<hyper::Error>() {
                Ok(error) => Err(Error::Http(*error)),
                Err(_) => Err(Error::TooLarge),
            },
        }
    }

    /// Returns the body as text for a message: one line, at most 500 characters.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).chars().take(500).map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

/// A stream to a server.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Makes streams to a server, for callers with TLS.
pub type Connector =
    Arc<dyn Fn(Url) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send>> + Send + Sync>;

/// A connection for consecutive requests. It is reopened if the server closed it between two requests; a request that
/// was sent is never repeated.
pub struct Connection {
    url: Url,
    /// Makes the streams; `None`: TCP without TLS.
    connector: Option<Connector>,
    sender: SendRequest<OutgoingBody>,
}

impl Connection {
    /// Connects within 10 s. Must run inside a Tokio runtime.
    ///
    /// # Errors
    /// [`Error::Connect`].
    pub async fn open(url: &Url) -> Result<Connection, Error> {
        Ok(Connection { url: url.clone(), connector: None, sender: connect(url, None).await? })
    }

    /// As [`Connection::open`], over streams of a connector, which has its own timeout.
    ///
    /// # Errors
    /// [`Error::Connect`].
    pub async fn over(url: &Url, connector: Connector) -> Result<Connection, Error> {
        let sender = connect(url, Some(&connector)).await?;
        Ok(Connection { url: url.clone(), connector: Some(connector), sender })
    }

    /// Sends a request and returns the answer once its headers have arrived. `path` starts with a slash and is
    /// percent-encoded; a body is sent as `application/json`.
    ///
    /// # Errors
    /// [`Error`]; after [`Error::Http`] the server may have processed the request.
    pub async fn send(&mut self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>, Error> {
        let kind = (!body.is_empty() || method == Method::POST).then_some("application/json");
        let body: OutgoingBody = Full::new(body).map_err(|never| match never {}).boxed();
        let request = self.request(method, path, kind, body)?;
        self.send_request(request).await
    }

    /// Sends a request with a streamed body of `length` bytes, at the pace of the server, and returns the answer once
    /// its headers have arrived. `kind` is the body's content type.
    ///
    /// # Errors
    /// As [`Connection::send`]; [`Error::Http`] also if the body fails.
    pub async fn send_streamed(
        &mut self,
        method: Method,
        path: &str,
        kind: &str,
        (length, body): (u64, OutgoingBody),
    ) -> Result<Response<Incoming>, Error> {
        let mut request = self.request(method, path, Some(kind), body)?;
        request.headers_mut().insert(header::CONTENT_LENGTH, length.into());
        self.send_request(request).await
    }

    async fn send_request(&mut self, request: Request<OutgoingBody>) -> Result<Response<Incoming>, Error> {
        if self.sender.ready().await.is_err() {
            self.sender = connect(&self.url, self.connector.as_ref()).await?;
            self.sender.ready().await?;
        }
        Ok(self.sender.send_request(request).await?)
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// As [`Connection::send`], and [`Error::TooLarge`].
    pub async fn call(&mut self, method: Method, path: &str, body: impl Into<Bytes>) -> Result<Answer, Error> {
        Answer::read(self.send(method, path, body.into()).await?).await
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        kind: Option<&str>,
        body: OutgoingBody,
    ) -> Result<Request<OutgoingBody>, Error> {
        let mut builder = Request::builder()
            .method(method)
            .uri(self.url.path(path))
            .header(header::HOST, self.url.authority())
            .header(header::ACCEPT, "application/json");
        if let Some(kind) = kind {
            builder = builder.header(header::CONTENT_TYPE, kind);
        }
        if let Some(authorization) = self.url.authorization() {
            builder = builder.header(header::AUTHORIZATION, authorization);
        }
        Ok(builder.body(body)?)
    }
}

async fn connect(url: &Url, connector: Option<&Connector>) -> Result<SendRequest<OutgoingBody>, Error> {
    let failed = |source| Error::Connect { url: url.clone(), source };
    let stream: Box<dyn Stream> = match connector {
        Some(connector) => connector(url.clone()).await.map_err(failed)?,
        None => {
            let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(url.authority()))
                .await
                .map_err(|_| failed(io::ErrorKind::TimedOut.into()))?
                .map_err(failed)?;
            // Requests are small and wait for their answers: Nagle's algorithm would delay them.
            stream.set_nodelay(true).map_err(failed)?;
            Box::new(stream)
        }
    };
    Ok(handshake(stream, BUFFER_BYTES_MAX).await?)
}
