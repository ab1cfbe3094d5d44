//! Answers: their headers, and bodies that are whole or come in pieces.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::error::Failure;
use crate::metrics::{Follower, Usage};

/// Pieces of a streamed answer are about this large.
pub(crate) const CHUNK_BYTES: usize = 48 * 1024;

/// Beyond [`CHUNK_BYTES`], for the row that fills a piece.
const ROW_BYTES: usize = 4 * 1024;

/// Pieces that wait for a slow reader.
const CHUNKS_WAITING_MAX: usize = 2;

/// A reader that takes nothing for this long is given up.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(60);

/// Whole answers above this go out in pieces: one that is not read is then seen to stall, over HTTP/2 too.
const PACED_BYTES: usize = 256 * 1024;

/// The unit in which memory for answers is given out.
const PERMIT_BYTES: usize = 1024;

/// Pages of streams that are read and not yet written out. A page is about 1 MB of documents at most, or 1 MB and one
/// document more.
const PAGES_MAX: usize = 64;

/// Memory that answers may take together, so that readers who do not read cannot exhaust it.
#[derive(Debug)]
pub(crate) struct ReplyMemory {
    whole: Arc<Semaphore>,
    whole_bytes_max: usize,
    pages: Arc<Semaphore>,
}

/// Room for a page until this is dropped.
pub(crate) type PagePermit = Option<OwnedSemaphorePermit>;

impl ReplyMemory {
    pub(crate) fn new(whole_bytes: usize) -> Self {
        let whole = (whole_bytes / PERMIT_BYTES).min(u32::MAX as usize);
        let (whole, pages) = (Arc::new(Semaphore::new(whole)), Arc::new(Semaphore::new(PAGES_MAX)));
        ReplyMemory { whole, whole_bytes_max: whole_bytes, pages }
    }

    /// Bytes of whole answers that go out in pieces.
    pub(crate) fn whole_usage(&self) -> Usage {
        let free = self.whole.available_permits() * PERMIT_BYTES;
        Usage { used: self.whole_bytes_max.saturating_sub(free), limit: self.whole_bytes_max }
    }

    /// Pages of streams.
    pub(crate) fn page_usage(&self) -> Usage {
        Usage { used: PAGES_MAX.saturating_sub(self.pages.available_permits()), limit: PAGES_MAX }
    }

    /// Where streams wait before they read a page.
    pub(crate) fn pages(&self) -> Pages {
        Pages(self.pages.clone())
    }

    /// Lets a large whole body out piece by piece; where too many are waiting already, an error takes its place.
    pub(crate) fn pace(&self, reply: &mut Reply) {
        let ReplyBody::Full(Some(bytes)) = &reply.body else { return };
        if bytes.len() <= PACED_BYTES {
            return;
        }
        let mut rest = bytes.clone();
        let permits = u32::try_from(rest.len().div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        let Ok(permit) = self.whole.clone().try_acquire_many_owned(permits) else {
            let reason = "Too many large answers at once";
            *reply = Reply::failure(&Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason));
            return;
        };
        reply.header(header::CONTENT_LENGTH, &rest.len().to_string());
        let (pieces, receiver) = mpsc::channel(CHUNKS_WAITING_MAX);
        reply.body = ReplyBody::Stream(receiver);
        let sender = Sender { pieces, buffer: Vec::new(), follower: None };
        tokio::spawn(async move {
            let _permit = permit;
            while !rest.is_empty() {
                let piece = rest.split_to(rest.len().min(CHUNK_BYTES));
                if sender.send(Piece::Data(piece)).await.is_err() {
                    return;
                }
            }
            let _ = sender.send(Piece::End).await;
        });
    }
}

/// See [`ReplyMemory::pages`].
#[derive(Debug, Clone)]
pub(crate) struct Pages(Arc<Semaphore>);

impl Pages {
    /// Waits for room for a page.
    pub(crate) async fn room(&self) -> PagePermit {
        // The semaphore is never closed.
        self.0.clone().acquire_owned().await.ok()
    }
}

/// The body of an answer.
#[derive(Debug)]
pub enum ReplyBody {
    /// All of it.
    Full(Option<Bytes>),
    /// Pieces from a task.
    Stream(mpsc::Receiver<Piece>),
    /// A stream that has ended as it should.
    Ended,
}

/// What the task of a streamed answer sends.
#[derive(Debug)]
pub enum Piece {
    /// More of the text.
    Data(Bytes),
    /// The text is complete. A task that ends without this has failed, and the connection is cut.
    End,
}

/// A streamed answer that broke off.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off")]
pub struct BrokenOff;

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        match &mut *self {
            ReplyBody::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            ReplyBody::Ended => Poll::Ready(None),
            ReplyBody::Stream(pieces) => match std::task::ready!(pieces.poll_recv(context)) {
                Some(Piece::Data(bytes)) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Some(Piece::End) => {
                    *self = ReplyBody::Ended;
                    Poll::Ready(None)
                }
                None => Poll::Ready(Some(Err(BrokenOff))),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, ReplyBody::Full(None) | ReplyBody::Ended)
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ReplyBody::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            ReplyBody::Ended => SizeHint::with_exact(0),
            ReplyBody::Stream(_) => SizeHint::default(),
        }
    }
}

/// The end of a stream that its task holds.
pub(crate) struct Sender {
    pieces: mpsc::Sender<Piece>,
    /// What is not sent yet.
    pub buffer: Vec<u8>,
    /// Where a feed's bytes are counted.
    follower: Option<Follower>,
}

/// The client is gone or does not read: the task ends.
pub(crate) struct Gone;

/// A stream cannot go on after its headers were sent: its task ends without [`Piece::End`], so that what came never looks
/// complete.
pub(crate) struct Interrupted;

impl From<Gone> for Interrupted {
    fn from(_: Gone) -> Self {
        Interrupted
    }
}

impl From<Failure> for Interrupted {
    fn from(failure: Failure) -> Self {
        // What a stranger's function fails with is no fault of the server's.
        tracing::debug!(error = %failure, "a stream broke off");
        Interrupted
    }
}

impl From<flatbed_layer::Error> for Interrupted {
    fn from(error: flatbed_layer::Error) -> Self {
        // That a database is deleted under its readers is nothing to be warned of.
        if matches!(error, flatbed_layer::Error::DatabaseNotFound) {
            tracing::debug!(%error, "a stream broke off");
        } else {
            tracing::warn!(%error, "a stream broke off");
        }
        Interrupted
    }
}

impl Sender {
    /// Sends what is in the buffer if there is enough of it.
    pub(crate) async fn send_if_full(&mut self) -> Result<(), Gone> {
        if self.buffer.len() < CHUNK_BYTES {
            return Ok(());
        }
        // More is likely to come, as much again: room for it at once.
        let data = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK_BYTES + ROW_BYTES));
        self.send(Piece::Data(data.into())).await
    }

    /// Sends what is in the buffer, which takes no memory then: a feed may wait long for its next row.
    pub(crate) async fn flush(&mut self) -> Result<(), Gone> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let data = Bytes::from(std::mem::take(&mut self.buffer));
        self.send(Piece::Data(data)).await
    }

    /// Sends what is in many answers, after what is in the buffer.
    pub(crate) async fn send_shared(&mut self, bytes: Bytes) -> Result<(), Gone> {
        self.flush().await?;
        self.send(Piece::Data(bytes)).await
    }

    /// Waits until a piece can be sent without waiting.
    pub(crate) async fn ready(&self) -> Result<(), Gone> {
        match tokio::time::timeout(STALL_MAX, self.pieces.reserve()).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Gone),
        }
    }

    /// Sends the rest and the end.
    pub(crate) async fn finish(mut self) -> Result<(), Gone> {
        self.flush().await?;
        self.send(Piece::End).await
    }

    /// Counts what is sent as `follower`'s, for as long as there is this sender.
    pub(crate) fn counted_as(mut self, follower: Follower) -> Sender {
        self.follower = Some(follower);
        self
    }

    /// A row of a feed is in the buffer.
    pub(crate) fn count_row(&self) {
        if let Some(follower) = &self.follower {
            follower.rows(1);
        }
    }

    /// Resolves when the client is gone.
    pub(crate) async fn closed(&self) {
        self.pieces.closed().await;
    }

    async fn send(&self, piece: Piece) -> Result<(), Gone> {
        if let (Some(follower), Piece::Data(data)) = (&self.follower, &piece) {
            follower.bytes(data.len());
        }
        match tokio::time::timeout(STALL_MAX, self.pieces.send(piece)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Gone),
        }
    }
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// Its headers, those that all answers have left out.
    pub headers: HeaderMap,
    /// Its body.
    pub body: ReplyBody,
}

impl Reply {
    /// A JSON text; a newline is added as CouchDB does.
    pub fn json(status: StatusCode, mut text: Vec<u8>) -> Self {
        text.push(b'\n');
        let mut reply = Reply { status, headers: HeaderMap::new(), body: ReplyBody::Full(Some(text.into())) };
        reply.json_headers();
        reply
    }

    /// `{"ok":true}`
    pub fn ok(status: StatusCode) -> Self {
        Reply::json(status, b"{\"ok\":true}".to_vec())
    }

    /// 304 with its tag.
    pub fn not_modified(etag: &str) -> Self {
        let mut reply =
            Reply { status: StatusCode::NOT_MODIFIED, headers: HeaderMap::new(), body: ReplyBody::Full(None) };
        reply.header(header::ETAG, etag);
        reply
    }

    /// JSON in pieces.
    pub(crate) fn stream() -> (Self, Sender) {
        let (sender, pieces) = mpsc::channel(CHUNKS_WAITING_MAX);
        let mut reply = Reply { status: StatusCode::OK, headers: HeaderMap::new(), body: ReplyBody::Stream(pieces) };
        reply.json_headers();
        (reply, Sender { pieces: sender, buffer: Vec::new(), follower: None })
    }

    fn json_headers(&mut self) {
        self.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("must-revalidate"));
    }

    /// Sets a header; a value that no header can have is left out.
    pub fn header(&mut self, name: HeaderName, value: &str) {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
    }

    /// The answer to a failure.
    pub fn failure(failure: &Failure) -> Self {
        let mut text = b"{\"error\":".to_vec();
        crate::json_out::string(failure.error, &mut text);
        text.extend_from_slice(b",\"reason\":");
        crate::json_out::string(&failure.reason, &mut text);
        text.push(b'}');
        let mut reply = Reply::json(failure.status, text);
        if let Some(allow) = failure.allow {
            reply.header(header::ALLOW, allow);
        }
        if failure.status == StatusCode::UPGRADE_REQUIRED {
            reply.header(header::CONNECTION, "upgrade");
            reply.header(header::UPGRADE, "websocket");
            reply.header(header::SEC_WEBSOCKET_VERSION, "13");
        }
        reply
    }
}
