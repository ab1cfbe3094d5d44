//! A connection that ends when its client reads nothing for too long.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use flatbed_metrics::Held;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::metrics::Traffic;
use crate::outlet::Connection;

/// A TCP stream whose writes fail once none has got through for a while: else a client that stops reading would
/// keep its connection, and what is buffered for it, for ever.
pub(crate) struct StallGuard {
    stream: TcpStream,
    /// What was read of it already.
    before: Bytes,
    deadline: Pin<Box<Sleep>>,
    waiting: bool,
    stall_max: Duration,
    metrics: Arc<Traffic>,
    answers: Arc<Connection>,
    _open: Held,
    /// Whatever is spoken on it, it is one connection as long as it is open.
    _permit: Option<OwnedSemaphorePermit>,
}

impl StallGuard {
    /// Counts the connection, and what goes over it, and tells its answers whether it takes more. A client that takes
    /// nothing for `stall_max` is given up. `before` was read of it already, and is read again first.
    pub(crate) fn new(
        stream: TcpStream,
        before: Bytes,
        stall_max: Duration,
        metrics: Arc<Traffic>,
        answers: Arc<Connection>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Self {
        let deadline = Box::pin(sleep_until(Instant::now()));
        metrics.connections_accepted.add(1);
        let open = metrics.connections.hold();
        StallGuard {
            stream,
            before,
            deadline,
            waiting: false,
            stall_max,
            metrics,
            answers,
            _open: open,
            _permit: permit,
        }
    }

    fn count(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.metrics.sent_bytes.add(*bytes as u64);
        }
        written
    }

    fn watch<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.answers.set_blocked(written.is_pending());
        if written.is_ready() {
            self.waiting = false;
            return written;
        }
        if !self.waiting {
            self.waiting = true;
            self.deadline.as_mut().reset(Instant::now() + self.stall_max);
        }
        match self.deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for StallGuard {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let ahead = self.before.len().min(into.remaining());
        if ahead > 0 {
            into.put_slice(&self.before.split_to(ahead));
            self.metrics.received_bytes.add(ahead as u64);
            return Poll::Ready(Ok(()));
        }
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        self.metrics.received_bytes.add(into.filled().len().saturating_sub(before) as u64);
        read
    }
}

impl AsyncWrite for StallGuard {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, from);
        let written = self.count(written);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, from);
        let written = self.count(written);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
