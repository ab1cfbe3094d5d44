//! A pool of connections to one server.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use flatbed_client::Url;
use flatbed_outward::{ConnectError, Network, Tls};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::endpoint::LocalConnect;
use crate::signing_in::Cookie;

/// The timeout of an answer's head, and of the pause between two pieces of its body. Heartbeats come more often.
const IDLE_MAX: Duration = Duration::from_secs(60);

const IDLE_CONNECTIONS_MAX: usize = 16;

/// The most bytes of a connection's buffers, also the longest head. There may be thousands of connections.
const BUFFER_BYTES_MAX: usize = 128 << 10;

pub(crate) type Outgoing = BoxBody<Bytes, std::io::Error>;

pub(crate) fn whole(bytes: impl Into<Bytes>) -> Outgoing {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

/// A body that a task sends piece by piece, at the pace of the peer.
pub(crate) struct Pieces(pub mpsc::Receiver<std::io::Result<Bytes>>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

pub(crate) enum Server {
    Remote(Url, Network, Tls),
    Local(LocalConnect),
}

pub(crate) struct Pool {
    server: Server,
    idle: Mutex<Vec<SendRequest<Outgoing>>>,
}

impl Pool {
    pub(crate) fn new(server: Server) -> Arc<Pool> {
        Arc::new(Pool { server, idle: Mutex::default() })
    }

    async fn take(&self) -> Result<SendRequest<Outgoing>, ConnectError> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match idle {
                // The server may have closed the connection meanwhile.
                Some(mut sender) => {
                    if sender.ready().await.is_ok() {
                        return Ok(sender);
                    }
                }
                None => return self.connect().await,
            }
        }
    }

    fn give_back(&self, sender: SendRequest<Outgoing>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if !sender.is_closed() && idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(sender);
        }
    }

    async fn connect(&self) -> Result<SendRequest<Outgoing>, ConnectError> {
        match &self.server {
            Server::Local(connect) => handshake(connect()).await,
            Server::Remote(url, network, tls) => handshake(flatbed_outward::connect(url, network, tls).await?).await,
        }
    }

    /// Sends a request and returns the answer before its body is read.
    pub(crate) async fn send(self: &Arc<Self>, request: Request<Outgoing>) -> Result<Answer, ConnectError> {
        let mut sender = self.take().await?;
        sender.ready().await.map_err(broken)?;
        let sent = tokio::time::timeout(IDLE_MAX, sender.send_request(request)).await;
        let late = |_| ConnectError::Broken("no answer in time".to_owned());
        let response = sent.map_err(late)?.map_err(broken)?;
        Ok(Answer::new(self.clone(), sender, response))
    }

    /// As [`Pool::send`], without a timeout for sending the body.
    pub(crate) async fn send_slowly(self: &Arc<Self>, request: Request<Outgoing>) -> Result<Answer, ConnectError> {
        let mut sender = self.take().await?;
        let response = sender.send_request(request).await.map_err(broken)?;
        Ok(Answer::new(self.clone(), sender, response))
    }
}

fn broken(error: hyper::Error) -> ConnectError {
    ConnectError::Broken(error.to_string())
}

async fn handshake<S>(stream: S) -> Result<SendRequest<Outgoing>, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shaken = http1::Builder::new().max_buf_size(BUFFER_BYTES_MAX).handshake(TokioIo::new(stream)).await;
    let (sender, connection) = shaken.map_err(broken)?;
    tokio::spawn(async move {
        // The request that failed reports the error.
        let _ = connection.await;
    });
    Ok(sender)
}

/// An answer with a streamed body. Its connection returns to the pool when the body has been read to its end.
pub(crate) struct Answer {
    pub status: StatusCode,
    /// The session that the answer begins or renews.
    pub cookie: Option<Cookie>,
    /// True if the server requires a password.
    pub is_challenge: bool,
    body: Incoming,
    connection: Option<(Arc<Pool>, SendRequest<Outgoing>)>,
}

impl Answer {
    fn new(pool: Arc<Pool>, sender: SendRequest<Outgoing>, response: Response<Incoming>) -> Answer {
        let (parts, body) = response.into_parts();
        let is_challenge = parts.headers.contains_key(header::WWW_AUTHENTICATE);
        let cookie = Cookie::of(&parts.headers);
        Answer { status: parts.status, cookie, is_challenge, body, connection: Some((pool, sender)) }
    }

    /// Returns the next piece; `None` at the end.
    pub(crate) async fn piece(&mut self) -> Result<Option<Bytes>, String> {
        loop {
            match tokio::time::timeout(IDLE_MAX, self.body.frame()).await {
                Err(_) => return Err("the answer does not go on".to_owned()),
                Ok(Some(Err(error))) => return Err(error.to_string()),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Ok(None) => {
                    if let Some((pool, sender)) = self.connection.take() {
                        pool.give_back(sender);
                    }
                    return Ok(None);
                }
            }
        }
    }
}
