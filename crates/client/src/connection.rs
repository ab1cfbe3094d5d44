//! One keep-alive connection to a server.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{
    Method, Request, Response,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    header,
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::Url;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
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
        source: std::io::Error,
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
    /// Returns the body as text for a message: one line, at most 500 characters.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).chars().take(500).map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

/// A connection for consecutive requests. It is reopened if the server closed it between two requests; a request that
/// was sent is never repeated.
pub struct Connection {
    url: Url,
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    /// Connects within 10 s. Must run inside a Tokio runtime.
    ///
    /// # Errors
    /// [`Error::Connect`].
    pub async fn open(url: &Url) -> Result<Connection, Error> {
        Ok(Connection { url: url.clone(), sender: connect(url).await? })
    }

    /// Sends a request and returns the answer once its headers have arrived. `path` starts with a slash and is
    /// percent-encoded; a body is sent as `application/json`.
    ///
    /// # Errors
    /// [`Error`]; after [`Error::Http`] the server may have processed the request.
    pub async fn send(&mut self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>, Error> {
        let request = self.request(method, path, body)?;
        if self.sender.ready().await.is_err() {
            self.sender = connect(&self.url).await?;
            self.sender.ready().await?;
        }
        Ok(self.sender.send_request(request).await?)
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// As [`Connection::send`], and [`Error::TooLarge`].
    pub async fn call(&mut self, method: Method, path: &str, body: impl Into<Bytes>) -> Result<Answer, Error> {
        let response = self.send(method, path, body.into()).await?;
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

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, Error> {
        let with_type = !body.is_empty() || method == Method::POST;
        let mut builder = Request::builder()
            .method(method)
            .uri(self.url.path(path))
            .header(header::HOST, self.url.authority())
            .header(header::ACCEPT, "application/json");
        if with_type {
            builder = builder.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(authorization) = self.url.authorization() {
            builder = builder.header(header::AUTHORIZATION, authorization);
        }
        Ok(builder.body(Full::new(body))?)
    }
}

async fn connect(url: &Url) -> Result<SendRequest<Full<Bytes>>, Error> {
    let failed = |source| Error::Connect { url: url.clone(), source };
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(url.authority()))
        .await
        .map_err(|_| failed(std::io::ErrorKind::TimedOut.into()))?
        .map_err(failed)?;
    // Requests are small and wait for their answers: Nagle's algorithm would delay them.
    stream.set_nodelay(true).map_err(failed)?;
    let (sender, connection) = http1::Builder::new().max_buf_size(1 << 20).handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        // The request that failed reports the error.
        let _ = connection.await;
    });
    Ok(sender)
}
