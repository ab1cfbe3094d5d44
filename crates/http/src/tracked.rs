//! The body of an answer on its way out, and what is told of the answer once it is all sent or given up.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use flatbed_metrics::Held;
use hyper::body::{Body, Frame, SizeHint};
use hyper::{Response, header};

use crate::metrics::Metrics;
use crate::reply::{BrokenOff, Reply, ReplyBody};

/// A body that is watched. Dropping it ends the request: hyper drops a body once it has sent it, and when it cannot.
#[derive(Debug)]
pub(crate) struct Tracked {
    body: ReplyBody,
    sent: u64,
    /// What the answer's head says; hyper does not ask for more.
    length: Option<u64>,
    metrics: Arc<Metrics>,
    _in_flight: Held,
}

impl Tracked {
    /// The answer as hyper takes it.
    pub(crate) fn respond(reply: Reply, metrics: &Arc<Metrics>, in_flight: Held) -> Response<Tracked> {
        let length = reply.headers.get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let body = Tracked { body: reply.body, sent: 0, length, metrics: metrics.clone(), _in_flight: in_flight };
        let mut response = Response::new(body);
        *response.status_mut() = reply.status;
        *response.headers_mut() = reply.headers;
        response
    }

    fn is_complete(&self) -> bool {
        self.body.is_end_stream() || self.length.is_some_and(|length| self.sent >= length)
    }
}

impl Body for Tracked {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            self.sent += frame.data_ref().map_or(0, Bytes::len) as u64;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        if !self.is_complete() {
            self.metrics.answers_broken_off.add(1);
        }
    }
}
