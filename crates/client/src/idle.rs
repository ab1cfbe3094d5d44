//! Connections to one server that wait for their next request.

use std::error::Error;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use hyper::body::Body;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// Begins HTTP/1.1 on a stream. `buffer_bytes_max` bounds a connection's buffer, and so the head of an answer. Must run
/// inside a Tokio runtime.
///
/// # Errors
/// The stream broke.
pub async fn handshake<S, B>(stream: S, buffer_bytes_max: usize) -> hyper::Result<SendRequest<B>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let (sender, connection) =
        http1::Builder::new().max_buf_size(buffer_bytes_max).handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        // The request that failed reports the error.
        let _ = connection.await;
    });
    Ok(sender)
}

/// The idle connections to one server. The caller makes new ones with [`handshake`]: it knows which addresses are
/// allowed, how TLS begins, and how long all of it may take.
pub struct IdleConnections<B> {
    senders: Mutex<Vec<SendRequest<B>>>,
    max: usize,
}

impl<B> IdleConnections<B> {
    /// Keeps at most `max` connections.
    pub fn new(max: usize) -> IdleConnections<B> {
        IdleConnections { senders: Mutex::default(), max }
    }

    /// Returns the connection that was used last and that the server has not closed. `None`: make a new one.
    pub async fn take(&self) -> Option<SendRequest<B>> {
        loop {
            let idle = self.senders.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut sender = idle?;
            if sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    /// Keeps a connection whose answer was read to its end. Ends it if it is closed or one too many.
    pub fn give_back(&self, sender: SendRequest<B>) {
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        if !sender.is_closed() && senders.len() < self.max {
            senders.push(sender);
        }
    }
}

impl<B> fmt::Debug for IdleConnections<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleConnections").field("max", &self.max).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{BodyExt, Full};
    use hyper::Request;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// Returns a connection and the server's end of it.
    async fn connection() -> (SendRequest<Full<Bytes>>, DuplexStream) {
        let (ours, servers) = duplex(1 << 10);
        (handshake(ours, 8 << 10).await.unwrap(), servers)
    }

    /// Sends a request on a connection, answers it, and reads the answer. Returns the path that the server has seen.
    async fn exchange(sender: &mut SendRequest<Full<Bytes>>, server: &mut DuplexStream, path: &str) -> String {
        let request = Request::get(path).body(Full::default()).unwrap();
        let answered = async {
            let mut head = [0; 1 << 10];
            let length = server.read(&mut head).await.unwrap();
            server.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
            String::from_utf8_lossy(&head[..length]).split(' ').nth(1).unwrap().to_owned()
        };
        let (response, seen) = tokio::join!(sender.send_request(request), answered);
        assert_eq!(response.unwrap().into_body().collect().await.unwrap().to_bytes(), "ok");
        seen
    }

    #[tokio::test]
    async fn a_connection_serves_the_next_request() {
        let idle = IdleConnections::new(2);
        assert!(idle.take().await.is_none());
        let (mut sender, mut server) = connection().await;
        assert_eq!(exchange(&mut sender, &mut server, "/1").await, "/1");
        idle.give_back(sender);
        let mut sender = idle.take().await.unwrap();
        assert_eq!(exchange(&mut sender, &mut server, "/2").await, "/2");
        assert!(idle.take().await.is_none(), "it is in use");
    }

    #[tokio::test]
    async fn closed_connections_are_passed_over() {
        let idle = IdleConnections::new(3);
        let (mut kept, mut server) = connection().await;
        exchange(&mut kept, &mut server, "/").await;
        idle.give_back(kept);
        let (mut closed, mut gone) = connection().await;
        exchange(&mut closed, &mut gone, "/").await;
        idle.give_back(closed);
        gone.shutdown().await.unwrap();
        // The connection has ended, too.
        assert_eq!(gone.read(&mut [0; 1]).await.unwrap(), 0);
        let mut sender = idle.take().await.unwrap();
        assert_eq!(exchange(&mut sender, &mut server, "/kept").await, "/kept");
        assert!(idle.take().await.is_none());
    }

    #[tokio::test]
    async fn no_more_than_the_bound_are_kept() {
        let idle = IdleConnections::new(1);
        let ((mut kept, mut server), (mut beyond, mut other)) = (connection().await, connection().await);
        exchange(&mut kept, &mut server, "/").await;
        exchange(&mut beyond, &mut other, "/").await;
        idle.give_back(kept);
        idle.give_back(beyond);
        // The connection beyond the bound has ended.
        assert_eq!(other.read(&mut [0; 1]).await.unwrap(), 0);
        assert!(idle.take().await.is_some());
        assert!(idle.take().await.is_none());
    }

    #[tokio::test]
    async fn a_head_beyond_the_buffer_is_an_error() {
        let (mut sender, mut server) = connection().await;
        let request = Request::get("/").body(Full::default()).unwrap();
        let endless = async {
            while server.write_all(b"HTTP/1.1 200 OK\r\nx: ").await.is_ok()
                && server.write_all(&[b'y'; 1 << 10]).await.is_ok()
            {}
        };
        let (response, ()) = tokio::join!(sender.send_request(request), endless);
        assert!(response.is_err());
    }
}
