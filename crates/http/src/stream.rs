//! The byte streams of connections.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// Makes an enum of streams a stream: each method is that of the variant's stream.
macro_rules! delegate {
    ($kind:ident { $($variant:ident),* }) => {
        impl AsyncRead for $kind {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                into: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                match self.get_mut() { $($kind::$variant(inner) => Pin::new(inner).poll_read(context, into),)* }
            }
        }

        impl AsyncWrite for $kind {
            fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
                match self.get_mut() { $($kind::$variant(inner) => Pin::new(inner).poll_write(context, from),)* }
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                from: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    $($kind::$variant(inner) => Pin::new(inner).poll_write_vectored(context, from),)*
                }
            }

            fn is_write_vectored(&self) -> bool {
                match self { $($kind::$variant(inner) => inner.is_write_vectored(),)* }
            }

            fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() { $($kind::$variant(inner) => Pin::new(inner).poll_flush(context),)* }
            }

            fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() { $($kind::$variant(inner) => Pin::new(inner).poll_shutdown(context),)* }
            }
        }
    };
}

#[derive(Debug)]
pub(crate) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection as HTTP uses it.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(Transport),
    /// Boxed: only TLS connections need most of its state.
    Tls(Box<TlsStream<Transport>>),
}

impl Stream {
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }

    fn transport(&self) -> &Transport {
        match self {
            Stream::Plain(transport) => transport,
            Stream::Tls(stream) => stream.get_ref().0,
        }
    }

    /// Returns true if the connection is gone, for example reset by the peer, even if bytes before that are unread.
    pub(crate) fn is_reset(&self) -> bool {
        match self.transport() {
            // Not `SO_ERROR`: it also reports that a router or firewall refused a packet, which TCP survives.
            Transport::Tcp(stream) => stream.peer_addr().is_err(),
            Transport::Unix(stream) => !matches!(stream.take_error(), Ok(None)),
        }
    }
}

delegate!(Transport { Tcp, Unix });
delegate!(Stream { Plain, Tls });

#[cfg(test)]
mod tests {
    use flatbed_testkit::until;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_reset_is_seen_behind_unread_bytes_and_an_end_and_stays() {
        for ends_first in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (server, _) = listener.accept().await.unwrap();
            let server = Stream::Plain(Transport::Tcp(server));
            client.write_all(b"unread").await.unwrap();
            if ends_first {
                client.shutdown().await.unwrap();
            }
            assert!(!server.is_reset(), "ends first: {ends_first}");
            client.set_zero_linger().unwrap();
            drop(client);
            until("the reset has arrived", async || server.is_reset()).await;
            assert!(server.is_reset(), "ends first: {ends_first}");
        }
    }
}
