//! Ends connections whose clients read nothing for too long, or have left while their request runs.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use flatbed_metrics::GaugeGuard;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::doorway::DoorwayEntry;
use crate::in_flight::InFlight;
use crate::limits::Admission;
use crate::metrics::Traffic;
use crate::outlet::Connection;
use crate::preface::Preface;
use crate::request_line::{HeadsRead, NextBytes, RequestLines};
use crate::stream::Stream;

/// The most bytes that are read ahead of hyper.
const HEAD_BYTES: usize = 4_096;

/// The interval at which the system is asked whether the client has reset the connection, where reading cannot tell.
const LOOK: Duration = Duration::from_secs(1);

/// A connection whose writes fail after a time without progress. Otherwise a client that stops reading would keep its
/// connection and the buffered data forever.
pub(crate) struct StallGuard {
    stream: Stream,
    before: Bytes,
    lines: RequestLines,
    heads: Arc<HeadsRead>,
    in_flight: Arc<InFlight>,
    /// True if the end of the connection has been read, behind the bytes in `before`.
    has_ended: bool,
    /// The end of `half_closed_max`; `None` until a client has ended its side during a request.
    gone: Option<Pin<Box<Sleep>>>,
    /// The next look at the system; `None` until the first one is needed.
    look: Option<Pin<Box<Sleep>>>,
    deadline: Pin<Box<Sleep>>,
    waiting: bool,
    stall_max: Duration,
    /// The longest time for which a request runs without sending bytes after its client has ended its side of the
    /// connection. A client that waits for its answer and one that has left look alike.
    half_closed_max: Duration,
    metrics: Arc<Traffic>,
    answers: Arc<Connection>,
    /// Kept while the connection is open, whatever its protocol.
    place: ConnectionPlace,
    admission: Arc<Admission>,
    is_http1: bool,
}

/// The counted place of a connection; released when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPlace {
    /// The place among all connections.
    pub _permit: OwnedSemaphorePermit,
    /// The place among those of its address.
    pub entered: Arc<DoorwayEntry>,
    pub _open: [GaugeGuard; 2],
}

impl StallGuard {
    /// Counts bytes and reports to the answers whether the connection accepts data. Fails after `stall_max` without
    /// progress, and ends the request of a client that has ended its side after `half_closed_max` without bytes. The
    /// bytes of `Preface` are read first; `heads` reports the requests that hyper has read, and `in_flight` whether
    /// one is being answered.
    pub(crate) fn new(
        stream: Stream,
        Preface { is_http2, read: before }: Preface,
        (heads, in_flight): (Arc<HeadsRead>, Arc<InFlight>),
        (stall_max, half_closed_max): (Duration, Duration),
        metrics: Arc<Traffic>,
        answers: Arc<Connection>,
        (place, admission): (ConnectionPlace, Arc<Admission>),
    ) -> Self {
        let deadline = Box::pin(sleep_until(Instant::now()));
        metrics.received_bytes.add(before.len() as u64);
        StallGuard {
            stream,
            before,
            lines: RequestLines::new(!is_http2),
            heads,
            in_flight,
            has_ended: false,
            gone: None,
            look: None,
            deadline,
            waiting: false,
            stall_max,
            half_closed_max,
            metrics,
            answers,
            place,
            admission,
            is_http1: !is_http2,
        }
    }

    fn count(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.metrics.sent_bytes.add(*bytes as u64);
            if let Some(gone) = &mut self.gone {
                gone.as_mut().reset(Instant::now() + self.half_closed_max);
            }
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
            Poll::Ready(()) => {
                self.answers.count_slow_reader();
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for StallGuard {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let next = this.lines.next(&this.heads);
        if into.remaining() == 0 || this.lines.copy_encoded(into) {
            return Poll::Ready(Ok(()));
        }
        match next {
            NextBytes::Head => this.poll_head(context, into),
            NextBytes::Rest => {
                let before = into.filled().len();
                let read = this.poll_bytes(context, into);
                let has_bytes = into.filled().len() > before;
                // After a chunked body, data without a running request belongs to a head, whose end is noticed once
                // it is complete.
                if this.is_http1 && has_bytes {
                    this.begins_to_ask();
                }
                // Behind the body, unless the handler waits for more of it.
                if this.is_http1
                    && matches!(read, Poll::Ready(Ok(())))
                    && !has_bytes
                    && this.in_flight.is_under_way()
                    && !this.answers.is_awaiting_body()
                {
                    return this.poll_end(context);
                }
                read
            }
            NextBytes::Body(most) => {
                let before = into.filled().len();
                let read = match usize::try_from(most) {
                    // The next head may follow.
                    Ok(most) if most < into.remaining() => {
                        let mut part = ReadBuf::new(into.initialize_unfilled_to(most));
                        let read = this.poll_bytes(context, &mut part);
                        let bytes = part.filled().len();
                        into.advance(bytes);
                        read
                    }
                    _ => this.poll_bytes(context, into),
                };
                this.lines.passed(into.filled().len().saturating_sub(before));
                read
            }
        }
    }
}

impl StallGuard {
    fn poll_bytes(&mut self, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let ahead = self.before.len().min(into.remaining());
        if ahead > 0 {
            into.put_slice(&self.before.split_to(ahead));
            return Poll::Ready(Ok(()));
        }
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        self.metrics.received_bytes.add(into.filled().len().saturating_sub(before) as u64);
        read
    }

    fn begins_to_ask(&self) {
        if self.answers.idle_since().is_some() {
            self.place.entered.begins_to_ask(&self.admission.limits());
        }
    }

    /// Reads ahead while a request is answered whose body has been passed on. Fails once the client has reset the
    /// connection. Hyper would not read any more once it had a byte of the next request, so it gets none before the
    /// answer has ended.
    fn poll_departure(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.in_flight.wake_at_end(context.waker());
        loop {
            // Behind pipelined bytes the end ends nothing: the client may still wait for its answers.
            if self.has_ended && self.before.is_empty() {
                return self.poll_end(context);
            }
            // Pieces of some size: a client that pipelines many requests would else be read one by one.
            let room = HEAD_BYTES.saturating_sub(self.before.len());
            if self.has_ended || room < HEAD_BYTES / 2 {
                return self.poll_reset(context);
            }
            let mut space = [0; HEAD_BYTES];
            let mut read = ReadBuf::new(space.get_mut(..room).unwrap_or_default());
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut read))?;
            let read = read.filled();
            if read.is_empty() {
                self.has_ended = true;
            } else {
                self.metrics.received_bytes.add(read.len() as u64);
                self.before = [&*self.before, read].concat().into();
            }
        }
    }

    /// Passes the end of the client's side on to hyper, which then drops the request: once nothing has been sent for
    /// `half_closed_max`. Fails earlier if the client resets the connection.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.in_flight.wake_at_end(context.waker());
        let gone = self.gone.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + self.half_closed_max)));
        match gone.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => self.poll_reset(context),
        }
    }

    /// Fails once the client has reset the connection. Otherwise the task is woken for the next look.
    fn poll_reset(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let look = self.look.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + LOOK)));
        while look.as_mut().poll(context).is_ready() {
            if self.stream.is_reset() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            look.as_mut().reset(Instant::now() + LOOK);
        }
        Poll::Pending
    }

    /// Fails after a reset where hyper may read no more: it may have a byte of the next request behind a chunked body.
    fn notice_reset(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let may_be_deaf = self.is_http1 && self.lines.is_at_rest() && self.in_flight.is_under_way();
        match may_be_deaf.then(|| self.poll_reset(context)) {
            Some(Poll::Ready(reset)) => reset,
            Some(Poll::Pending) | None => Ok(()),
        }
    }

    fn poll_head(&mut self, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.in_flight.is_under_way() {
            return self.poll_departure(context);
        }
        // The first bytes of the head may have arrived during the previous answer.
        if self.lines.is_within_head() {
            self.begins_to_ask();
        }
        if !self.before.is_empty() {
            let used = self.lines.copy_head(&self.before, into);
            self.before.advance(used);
            return Poll::Ready(Ok(()));
        }
        let mut space = [0; HEAD_BYTES];
        let mut read = ReadBuf::new(&mut space);
        ready!(self.poll_bytes(context, &mut read))?;
        let used = self.lines.copy_head(read.filled(), into);
        self.before = Bytes::copy_from_slice(read.filled().get(used..).unwrap_or_default());
        if self.before.is_empty() && self.lines.is_within_head() {
            self.begins_to_ask();
        }
        Poll::Ready(Ok(()))
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
        // Hyper flushes whenever its task has run.
        self.notice_reset(context)?;
        // TLS buffers data that the system does not accept yet.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if self.stream.is_tls() { self.watch(context, flushed) } else { flushed }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        if self.stream.is_tls() { self.watch(context, shut) } else { shut }
    }
}
