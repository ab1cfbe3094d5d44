//! The byte streams of connections.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

macro_rules! each {
    ($of:expr, $kind:ident { $($variant:ident),* }, $inner:ident => $call:expr) => {
        match $of { $($kind::$variant($inner) => $call,)* }
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

    /// Returns true if the peer has reset the connection, even if bytes before that are unread.
    pub(crate) fn is_reset(&self) -> bool {
        let error = each!(self.transport(), Transport { Tcp, Unix }, inner => inner.take_error());
        !matches!(error, Ok(None))
    }
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), Transport { Tcp, Unix }, inner => Pin::new(inner).poll_read(context, into))
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), Transport { Tcp, Unix }, inner => Pin::new(inner).poll_write(context, from))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), Transport { Tcp, Unix }, inner => Pin::new(inner).poll_write_vectored(context, from))
    }

    fn is_write_vectored(&self) -> bool {
        each!(self, Transport { Tcp, Unix }, inner => inner.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), Transport { Tcp, Unix }, inner => Pin::new(inner).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), Transport { Tcp, Unix }, inner => Pin::new(inner).poll_shutdown(context))
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), Stream { Plain, Tls }, inner => Pin::new(inner).poll_read(context, into))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), Stream { Plain, Tls }, inner => Pin::new(inner).poll_write(context, from))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), Stream { Plain, Tls }, inner => Pin::new(inner).poll_write_vectored(context, from))
    }

    fn is_write_vectored(&self) -> bool {
        each!(self, Stream { Plain, Tls }, inner => inner.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), Stream { Plain, Tls }, inner => Pin::new(inner).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), Stream { Plain, Tls }, inner => Pin::new(inner).poll_shutdown(context))
    }
}
