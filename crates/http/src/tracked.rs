//! A request from its head to the last byte of its answer: spans, log lines and metrics.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Buf;
use flatbed_metrics::{GaugeGuard, Label};
use hyper::body::{Body, Frame, SizeHint};
use hyper::{HeaderMap, Method, Response, Uri, Version, header};
use tokio::task::JoinHandle;
use tracing::{Instrument, Span, field};

use crate::chunk_sizes;
use crate::in_flight::InFlightGuard;
use crate::metrics::{Traffic, Verb};
use crate::outlet::{OutgoingText, Outlet};
use crate::peer::Peer;
use crate::reply::{AbortedBody, Reply, ReplyBody};

/// The target of the access log: `--log-level info,access=debug` shows it.
const ACCESS_TARGET: &str = "access";

/// The target of the span that adds the request id to log lines. It must be enabled at the error level whenever any
/// log line is.
pub const REQUEST_TARGET: &str = "flatbed::request";

/// The target of spans for traces, of requests and of the storage beneath them.
pub const TRACE_TARGET: &str = "flatbed::trace";

/// The spans of a request: see [`TrackedRequest`].
#[derive(Debug, Clone)]
pub(crate) struct Spans {
    log: Span,
    trace: Span,
    outlet: Option<Arc<Outlet>>,
}

tokio::task_local! {
    static SPANS: Spans;
}

impl Spans {
    /// Runs a task within both spans: a subscriber of one target does not see the other span.
    pub(crate) async fn within<T>(self, task: impl Future<Output = T>) -> T {
        let (log, trace) = (self.log.clone(), self.trace.clone());
        SPANS.scope(self, task).instrument(trace).instrument(log).await
    }
}

/// Spawns a task of the current request: its log lines carry the request id, and its spans belong to the trace.
pub fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    // Boxed: each wrapping future would reserve its state again.
    let task = Box::pin(task);
    match SPANS.try_with(Spans::clone) {
        Ok(spans) => tokio::spawn(spans.within(task)),
        Err(_) => tokio::spawn(task),
    }
}

pub(crate) fn outlet() -> Option<Arc<Outlet>> {
    SPANS.try_with(|spans| spans.outlet.clone()).ok().flatten()
}

/// Connects a request's span to the remote parent in the request's headers.
pub type ContinueTrace = fn(&Span, &HeaderMap);

/// The data of an access log line. Query and headers are left out, because they may be confidential.
#[derive(Debug)]
struct Access {
    method: Method,
    uri: Uri,
    peer: Option<Peer>,
    user: Option<String>,
    head_ms: f64,
}

/// A request in progress with two spans. The outer span adds the request id to log lines. The inner one is for
/// traces, and disabled unless they are collected.
#[derive(Debug)]
pub(crate) struct TrackedRequest {
    traffic: Arc<Traffic>,
    started: Instant,
    spans: Spans,
    access: Option<Box<Access>>,
    in_flight: Option<GaugeGuard>,
}

impl TrackedRequest {
    pub(crate) fn begin(
        traffic: &Arc<Traffic>,
        id: &str,
        method: &Method,
        uri: &Uri,
        label: impl Label,
        peer: Option<Peer>,
        outlet: Arc<Outlet>,
    ) -> TrackedRequest {
        let log = tracing::error_span!(target: REQUEST_TARGET, "request", request_id = id);
        let trace = tracing::info_span!(
            target: TRACE_TARGET,
            parent: &log,
            "request",
            // A span's name cannot change later.
            otel.name = %format_args!("{} {}", Verb::from(method).value(), label.value()),
            otel.kind = "server",
            otel.status_code = field::Empty,
            http.request.method = Verb::from(method).value(),
            http.route = label.value(),
            url.path = uri.path(),
            http.response.status_code = field::Empty,
            http.response.body.size = field::Empty,
            request_id = id,
        );
        let is_shown = tracing::enabled!(target: ACCESS_TARGET, tracing::Level::DEBUG);
        let access = is_shown
            .then(|| Box::new(Access { method: method.clone(), uri: uri.clone(), peer, user: None, head_ms: 0.0 }));
        TrackedRequest {
            traffic: traffic.clone(),
            started: Instant::now(),
            spans: Spans { log, trace, outlet: Some(outlet) },
            access,
            // Requests from within the process are not counted.
            in_flight: peer.map(|_| traffic.requests_in_flight.hold()),
        }
    }

    pub(crate) fn continue_trace(&self, as_it_says: ContinueTrace, headers: &HeaderMap) {
        if !self.spans.trace.is_disabled() {
            as_it_says(&self.spans.trace, headers);
        }
    }

    pub(crate) fn spans(&self) -> Spans {
        self.spans.clone()
    }

    pub(crate) fn elapsed(&self) -> std::time::Duration {
        self.started.elapsed()
    }

    pub(crate) fn respond(mut self, reply: Reply, user: Option<String>, version: Version) -> Response<TrackedBody> {
        let status = reply.status;
        if let Some(access) = &mut self.access {
            access.user = user;
            access.head_ms = milliseconds(self.started);
        }
        self.spans.trace.record("http.response.status_code", i64::from(status.as_u16()));
        if status.is_server_error() {
            self.spans.trace.record("otel.status_code", "ERROR");
        }
        let length = reply.headers.get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        // Other HTTP versions have no chunks.
        let in_chunks = version == Version::HTTP_11 && length.is_none() && reply.body.size_hint().exact().is_none();
        let body = TrackedBody {
            body: reply.body,
            rest: None,
            in_chunks,
            sent: 0,
            length,
            status: status.as_u16(),
            of: self,
            _in_flight: None,
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = reply.headers;
        response
    }
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_micros() as f64 / 1_000.0
}

/// The body of an answer in transmission. Dropping it ends the request: hyper drops a body once it was sent or cannot
/// be sent.
#[derive(Debug)]
pub(crate) struct TrackedBody {
    body: ReplyBody,
    rest: Option<OutgoingText>,
    in_chunks: bool,
    sent: u64,
    /// The length in the answer's head. Hyper does not poll beyond it.
    length: Option<u64>,
    status: u16,
    of: TrackedRequest,
    _in_flight: Option<InFlightGuard>,
}

impl TrackedBody {
    /// Holds a guard until the answer has ended.
    pub(crate) fn hold(&mut self, in_flight: Option<InFlightGuard>) {
        self._in_flight = in_flight;
    }

    fn is_complete(&self) -> bool {
        self.is_end_stream() || self.length.is_some_and(|length| self.sent >= length)
    }
}

impl Body for TrackedBody {
    type Data = OutgoingText;
    type Error = AbortedBody;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<OutgoingText>, AbortedBody>>> {
        let mut frame = match self.rest.take() {
            Some(rest) => Some(Ok(Frame::data(rest))),
            None => ready!(Pin::new(&mut self.body).poll_frame(context)),
        };
        if let Some(Ok(frame)) = &mut frame
            && let Some(piece) = frame.data_mut()
        {
            self.rest = if self.in_chunks { chunk_sizes::cut(piece) } else { None };
            self.sent += piece.remaining() as u64;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        let is_complete = self.is_complete();
        if !is_complete && self.of.in_flight.is_some() {
            self.of.traffic.answers_broken_off.add(1);
        }
        self.of.spans.trace.record("http.response.body.size", i64::try_from(self.sent).unwrap_or(i64::MAX));
        let Some(access) = &self.of.access else { return };
        let _within = self.of.spans.log.enter();
        tracing::debug!(
            target: ACCESS_TARGET,
            method = %access.method,
            path = access.uri.path(),
            status = self.status,
            bytes = self.sent,
            head_ms = access.head_ms,
            duration_ms = milliseconds(self.of.started),
            is_complete,
            peer = access.peer.map(field::display),
            user = access.user,
            "request"
        );
    }
}
