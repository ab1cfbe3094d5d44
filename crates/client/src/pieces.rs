//! Bodies of requests that are sent piece by piece.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body_util::{BodyExt, combinators::BoxBody};
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;

/// The body of a request.
pub type OutgoingBody = BoxBody<Bytes, io::Error>;

struct Pieces(mpsc::Receiver<io::Result<Bytes>>);

/// Returns a body of the pieces that arrive in a channel. It ends with the channel; an error aborts the request.
pub fn pieces(channel: mpsc::Receiver<io::Result<Bytes>>) -> OutgoingBody {
    Pieces(channel).boxed()
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
