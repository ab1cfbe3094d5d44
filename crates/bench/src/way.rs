//! Authenticated connections, plain or over TLS, with a header on each request.

use std::{cell::Cell, io, net::SocketAddr, rc::Rc, time::Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    header::{self, HeaderName},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::{JoinSet, LocalSet},
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

/// The reason why a request has no usable answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WayError {
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A request failed.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// A request that cannot be written.
    #[error(transparent)]
    Request(#[from] hyper::http::Error),
    /// The status is not 2xx.
    #[error("{path}: {status} {text}")]
    Status {
        /// The request's path.
        path: String,
        /// The answer's status.
        status: u16,
        /// The beginning of the answer's text.
        text: String,
    },
}

/// A way to connect, and the credentials of its requests.
#[derive(Clone)]
pub(crate) struct Way {
    /// The server's address.
    pub address: SocketAddr,
    pub tls: Option<TlsConnector>,
    pub says: Option<(HeaderName, String)>,
}

/// One connection for sequential requests.
pub(crate) struct OpenConnection {
    sender: SendRequest<Full<Bytes>>,
    says: Option<(HeaderName, String)>,
}

impl Way {
    /// Connects.
    pub(crate) async fn open(&self) -> Result<OpenConnection, WayError> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let sender = match &self.tls {
            None => begin(stream).await?,
            Some(tls) => {
                let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
                begin(tls.connect(name, stream).await?).await?
            }
        };
        Ok(OpenConnection { sender, says: self.says.clone() })
    }
}

async fn begin<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, WayError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        // The caller that waits for an answer gets the error.
        let _ = connection.await;
    });
    Ok(sender)
}

impl OpenConnection {
    /// Sends a request, and returns the answer when its head has arrived.
    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<Response<Incoming>, WayError> {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, "localhost");
        if let Some((name, value)) = &self.says {
            request = request.header(name, value);
        }
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        self.sender.ready().await?;
        Ok(self.sender.send_request(request.body(Full::new(body.into()))?).await?)
    }

    /// Sends a request, and returns its whole answer: status, body, cookie.
    pub(crate) async fn call(
        &mut self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<(u16, Bytes, Option<String>), WayError> {
        let answer = self.send(method, path, body).await?;
        let cookie =
            answer.headers().get(header::SET_COOKIE).and_then(|cookie| cookie.to_str().ok()).map(str::to_owned);
        Ok((answer.status().as_u16(), answer.into_body().collect().await?.to_bytes(), cookie))
    }

    /// Sends a request, checks for a 2xx, and returns body and cookie.
    pub(crate) async fn expect(
        &mut self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<(Bytes, Option<String>), WayError> {
        match self.call(method, path, body).await? {
            (200..300, text, cookie) => Ok((text, cookie)),
            (status, text, _) => Err(WayError::Status {
                path: path.to_owned(),
                status,
                text: String::from_utf8_lossy(&text).chars().take(300).collect(),
            }),
        }
    }
}

/// Runs requests of many workers, each on its own connection, until one ends the load. Returns the milliseconds of
/// each. Each request gets a unique number.
pub(crate) async fn together<E>(
    way: &Way,
    workers: usize,
    request: impl AsyncFn(&mut OpenConnection, u64) -> Result<bool, E> + Clone + 'static,
) -> Result<Vec<f64>, E>
where
    E: From<WayError> + 'static,
{
    let (local, next) = (LocalSet::new(), Rc::new(Cell::new(0_u64)));
    let mut tasks = JoinSet::new();
    for _ in 0..workers {
        let (next, request) = (next.clone(), request.clone());
        let mut connection = way.open().await?;
        let work = async move {
            let mut ms = Vec::new();
            loop {
                let number = next.replace(next.get() + 1);
                let sent = Instant::now();
                if !request(&mut connection, number).await? {
                    return Ok::<_, E>(ms);
                }
                ms.push(sent.elapsed().as_secs_f64() * 1e3);
            }
        };
        tasks.spawn_local_on(work, &local);
    }
    let mut ms = Vec::new();
    local
        .run_until(async {
            while let Some(done) = tasks.join_next().await {
                ms.extend(done.map_err(|failed| WayError::Io(io::Error::other(failed)))??);
            }
            Ok(ms)
        })
        .await
}
