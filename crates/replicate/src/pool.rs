//! A pool of connections to one server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flatbed_client::{IdleConnections, OutgoingBody, Url, handshake};
use flatbed_outward::{ConnectError, Network, Tls};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header;
use hyper::{Request, Response, StatusCode};

use crate::endpoint::LocalConnect;
use crate::signing_in::Cookie;

/// The timeout of an answer's head, and of the pause between two pieces of its body. Heartbeats come more often.
const IDLE_MAX: Duration = Duration::from_secs(60);

const IDLE_CONNECTIONS_MAX: usize = 16;

/// The most bytes of a connection's buffers, also the longest head. There may be thousands of connections.
const BUFFER_BYTES_MAX: usize = 128 << 10;

pub(crate) fn whole(bytes: impl Into<Bytes>) -> OutgoingBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

pub(crate) enum Server {
    Remote(Url, Network, Tls),
    Local(LocalConnect),
}

pub(crate) struct Pool {
    server: Server,
    idle: IdleConnections<OutgoingBody>,
}

impl Pool {
    pub(crate) fn new(server: Server) -> Arc<Pool> {
        Arc::new(Pool { server, idle: IdleConnections::new(IDLE_CONNECTIONS_MAX) })
    }

    async fn take(&self) -> Result<SendRequest<OutgoingBody>, ConnectError> {
        if let Some(sender) = self.idle.take().await {
            return Ok(sender);
        }
        let shaken = match &self.server {
            Server::Local(connect) => handshake(connect(), BUFFER_BYTES_MAX).await,
            Server::Remote(url, network, tls) => {
                handshake(flatbed_outward::connect(url, network, tls).await?, BUFFER_BYTES_MAX).await
            }
        };
        shaken.map_err(broken)
    }

    /// Sends a request and returns the answer before its body is read.
    pub(crate) async fn send(self: &Arc<Self>, request: Request<OutgoingBody>) -> Result<Answer, ConnectError> {
        let mut sender = self.take().await?;
        sender.ready().await.map_err(broken)?;
        let sent = tokio::time::timeout(IDLE_MAX, sender.send_request(request)).await;
        let late = |_| ConnectError::Broken("no answer in time".to_owned());
        let response = sent.map_err(late)?.map_err(broken)?;
        Ok(Answer::new(self.clone(), sender, response))
    }

    /// As [`Pool::send`], without a timeout for sending the body.
    pub(crate) async fn send_slowly(self: &Arc<Self>, request: Request<OutgoingBody>) -> Result<Answer, ConnectError> {
        let mut sender = self.take().await?;
        let response = sender.send_request(request).await.map_err(broken)?;
        Ok(Answer::new(self.clone(), sender, response))
    }
}

fn broken(error: hyper::Error) -> ConnectError {
    ConnectError::Broken(error.to_string())
}

/// An answer with a streamed body. Its connection returns to the pool when the body has been read to its end.
pub(crate) struct Answer {
    pub status: StatusCode,
    /// The session that the answer begins or renews.
    pub cookie: Option<Cookie>,
    /// True if the server requires a password.
    pub is_challenge: bool,
    body: Incoming,
    connection: Option<(Arc<Pool>, SendRequest<OutgoingBody>)>,
}

impl Answer {
    fn new(pool: Arc<Pool>, sender: SendRequest<OutgoingBody>, response: Response<Incoming>) -> Answer {
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
                        pool.idle.give_back(sender);
                    }
                    return Ok(None);
                }
            }
        }
    }
}
