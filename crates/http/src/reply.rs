//! Answers: their headers, and bodies that are whole or come in pieces.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use flatbed_layer::Document;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use tokio::sync::mpsc;

use crate::error::Failure;
use crate::metrics::Follower;
use crate::outlet::{Outgoing, Outlet, PageKind, Room};
use crate::tracked;

/// Pieces of a streamed answer are about this large.
pub(crate) const CHUNK_BYTES: usize = 48 * 1024;

/// Beyond [`CHUNK_BYTES`], for the row that fills a piece.
const ROW_BYTES: usize = 4 * 1024;

/// Pieces that wait for a slow reader.
const CHUNKS_WAITING_MAX: usize = 2;

/// A reader that takes nothing for this long is given up.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(60);

/// An answer that finds no room for so long is refused.
const ROOM_MAX: Duration = Duration::from_secs(30);

/// Where streams wait before they read a page.
#[derive(Debug, Clone)]
pub(crate) struct Pages {
    outlet: Option<Arc<Outlet>>,
    kind: PageKind,
}

/// Room for a page until this is dropped.
pub(crate) type PagePermit = Option<Room>;

impl Pages {
    /// For the answer at hand; `has_documents`: its pages may have documents of any size.
    pub(crate) fn new(has_documents: bool) -> Pages {
        let kind = if has_documents { PageKind::Documents } else { PageKind::Rows };
        Pages { outlet: tracked::outlet(), kind }
    }

    /// What is read at once of an attachment.
    pub(crate) fn of_attachment() -> Pages {
        Pages { outlet: tracked::outlet(), kind: PageKind::Attachment }
    }

    /// Waits for room for the page that takes most; what it does not take is to be given back once it is read.
    async fn room(&self) -> PagePermit {
        match &self.outlet {
            Some(outlet) => Some(outlet.page_room(self.kind).await),
            None => None,
        }
    }
}

/// Room for what is read before the answer begins: who waits for long gets an error, and does not wait for ever where what
/// is to be read first, in the client's order, waits behind what is to be read later.
pub(crate) async fn first_room(pages: &Pages) -> Result<PagePermit, Failure> {
    tokio::time::timeout(ROOM_MAX, pages.room()).await.map_err(|_| busy())
}

fn busy() -> Failure {
    let reason = "Too many answers wait for their clients";
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
}

/// Gives back what a page does not take.
pub(crate) fn shrink(room: &mut PagePermit, bytes: usize) {
    if let Some(room) = room {
        room.shrink(bytes);
    }
}

/// What a page takes once it is read, beside its documents' bodies: ids and revisions of so many rows.
pub(crate) fn page_bytes<'d>(rows: usize, documents: impl Iterator<Item = &'d Document>) -> usize {
    const ROW_BYTES: usize = 1_024;
    CHUNK_BYTES + rows * ROW_BYTES + documents.map(|document| document.body.len()).sum::<usize>()
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum ReplyBody {
    /// All of it.
    Full(Option<Bytes>),
    /// All of it, with the room that it takes.
    Whole(Whole),
    /// Pieces from a task.
    Stream(mpsc::Receiver<Piece>),
    /// A stream that has ended as it should.
    Ended,
}

/// See [`ReplyBody::Whole`].
#[derive(Debug)]
pub(crate) struct Whole {
    rest: Bytes,
    outlet: Arc<Outlet>,
    room: Arc<Room>,
}

/// What the task of a streamed answer sends.
#[derive(Debug)]
pub(crate) enum Piece {
    /// More of the text.
    Data(Outgoing),
    /// The text is complete. A task that ends without this has failed, and the connection is cut.
    End,
}

/// A streamed answer that broke off.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off")]
pub(crate) struct BrokenOff;

impl Body for ReplyBody {
    type Data = Outgoing;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Outgoing>, BrokenOff>>> {
        match &mut *self {
            ReplyBody::Full(bytes) => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(Outgoing::new(bytes, None, None)))))
            }
            ReplyBody::Whole(Whole { rest, .. }) if rest.is_empty() => Poll::Ready(None),
            ReplyBody::Whole(Whole { rest, outlet, room }) => {
                // In pieces: what is sent of it shows that its client reads.
                let piece = rest.split_to(rest.len().min(CHUNK_BYTES));
                Poll::Ready(Some(Ok(Frame::data(Outgoing::new(piece, Some(outlet.clone()), Some(room.clone()))))))
            }
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
        match self {
            ReplyBody::Full(None) | ReplyBody::Ended => true,
            ReplyBody::Whole(whole) => whole.rest.is_empty(),
            ReplyBody::Full(Some(_)) | ReplyBody::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ReplyBody::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            ReplyBody::Whole(whole) => SizeHint::with_exact(whole.rest.len() as u64),
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
    /// Where its pieces have room.
    outlet: Option<Arc<Outlet>>,
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
        self.send_data(data.into()).await
    }

    /// Sends a text behind what is in the buffer, however long it is, without ever having it in memory twice.
    pub(crate) async fn write(&mut self, text: &[u8]) -> Result<(), Gone> {
        for part in text.chunks(CHUNK_BYTES) {
            self.buffer.extend_from_slice(part);
            self.send_if_full().await?;
        }
        Ok(())
    }

    /// Sends what is in the buffer, which takes no memory then: a feed may wait long for its next row.
    pub(crate) async fn flush(&mut self) -> Result<(), Gone> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let data = Bytes::from(std::mem::take(&mut self.buffer));
        self.send_data(data).await
    }

    /// Sends what is in many answers, after what is in the buffer.
    pub(crate) async fn send_shared(&mut self, bytes: Bytes) -> Result<(), Gone> {
        self.flush().await?;
        self.send_data(bytes).await
    }

    /// Waits until a piece can be sent without waiting.
    pub(crate) async fn ready(&self) -> Result<(), Gone> {
        self.reserve().await.map(drop)
    }

    /// Sends the rest and the end.
    pub(crate) async fn finish(mut self) -> Result<(), Gone> {
        self.flush().await?;
        self.reserve().await?.send(Piece::End);
        Ok(())
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

    /// Does some work for the client, as long as it is there.
    pub(crate) async fn unless_gone<T>(&self, work: impl Future<Output = T>) -> Result<T, Gone> {
        tokio::select! {
            biased;
            () = self.closed() => Err(Gone),
            done = work => Ok(done),
        }
    }

    /// Resolves when the client is gone.
    pub(crate) async fn closed(&self) {
        self.pieces.closed().await;
    }

    async fn reserve(&self) -> Result<mpsc::Permit<'_, Piece>, Gone> {
        match tokio::time::timeout(STALL_MAX, self.pieces.reserve()).await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(Gone),
        }
    }

    async fn send_data(&self, data: Bytes) -> Result<(), Gone> {
        if let Some(follower) = &self.follower {
            follower.bytes(data.len());
        }
        let place = self.reserve().await?;
        let room = match &self.outlet {
            // That others do not read is not this client's fault: it waits as long as it is there.
            Some(outlet) => tokio::select! {
                biased;
                room = outlet.room(data.len()) => Some(Arc::new(room)),
                () = self.pieces.closed() => return Err(Gone),
            },
            None => None,
        };
        place.send(Piece::Data(Outgoing::new(data, self.outlet.clone(), room)));
        Ok(())
    }

    /// Waits for room for a page, as long as the client is there.
    pub(crate) async fn page_room(&self, pages: &Pages) -> Result<PagePermit, Gone> {
        self.watch().page_room(pages).await
    }

    /// What knows of the client while something else is sent.
    pub(crate) fn watch(&self) -> Watch {
        Watch(self.pieces.clone())
    }
}

/// See [`Sender::watch`].
pub(crate) struct Watch(mpsc::Sender<Piece>);

impl Watch {
    /// As [`Sender::page_room`].
    pub(crate) async fn page_room(&self, pages: &Pages) -> Result<PagePermit, Gone> {
        // Nothing is read for who has not taken what there is.
        drop(tokio::time::timeout(STALL_MAX, self.0.reserve()).await.map_err(|_| Gone)?.map_err(|_| Gone)?);
        tokio::select! {
            biased;
            // First: where there is room, pages are read one after the other without a wait, and nothing may be sent of them.
            () = self.0.closed() => Err(Gone),
            room = pages.room() => Ok(room),
        }
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// Its headers, those that all answers have left out.
    pub headers: HeaderMap,
    /// Its body.
    pub body: ReplyBody,
    /// The room that a whole body was read in.
    pub(crate) held: PagePermit,
}

impl Reply {
    /// A JSON text; a newline is added as CouchDB does.
    pub(crate) fn json(status: StatusCode, mut text: Vec<u8>) -> Self {
        text.push(b'\n');
        let mut reply =
            Reply { status, headers: HeaderMap::new(), body: ReplyBody::Full(Some(text.into())), held: None };
        reply.json_headers();
        reply
    }

    /// `{"ok":true}`
    pub(crate) fn ok(status: StatusCode) -> Self {
        Reply::json(status, b"{\"ok\":true}".to_vec())
    }

    /// 304 with its tag.
    pub(crate) fn not_modified(etag: &str) -> Self {
        let mut reply = Reply {
            status: StatusCode::NOT_MODIFIED,
            headers: HeaderMap::new(),
            body: ReplyBody::Full(None),
            held: None,
        };
        reply.header(header::ETAG, etag);
        reply
    }

    /// JSON in pieces.
    pub(crate) fn stream() -> (Self, Sender) {
        let (sender, pieces) = mpsc::channel(CHUNKS_WAITING_MAX);
        let mut reply =
            Reply { status: StatusCode::OK, headers: HeaderMap::new(), body: ReplyBody::Stream(pieces), held: None };
        reply.json_headers();
        (reply, Sender { pieces: sender, buffer: Vec::new(), follower: None, outlet: tracked::outlet() })
    }

    /// Finds room for a whole body; after a long wait without any, an error takes its place.
    pub(crate) async fn find_room(&mut self, outlet: &Arc<Outlet>) {
        let held = self.held.take();
        let ReplyBody::Full(Some(bytes)) = &self.body else { return };
        let room = match held {
            Some(mut room) => {
                room.shrink(bytes.len() + CHUNK_BYTES);
                Ok(room)
            }
            None => match outlet.try_room(bytes.len()) {
                Some(room) => Ok(room),
                None => tokio::time::timeout(ROOM_MAX, outlet.room(bytes.len())).await,
            },
        };
        let Ok(room) = room else {
            *self = Reply::failure(&busy());
            return;
        };
        self.body = ReplyBody::Whole(Whole { rest: bytes.clone(), outlet: outlet.clone(), room: Arc::new(room) });
    }

    fn json_headers(&mut self) {
        self.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("must-revalidate"));
    }

    /// Sets a header; a value that no header can have is left out.
    pub(crate) fn header(&mut self, name: HeaderName, value: &str) {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
    }

    /// The answer to a failure.
    pub(crate) fn failure(failure: &Failure) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_page_is_read_for_a_client_that_has_gone() {
        let (reply, sender) = Reply::stream();
        let pages = Pages::new(false);
        assert!(sender.page_room(&pages).await.is_ok());
        assert!(sender.unless_gone(std::future::ready(())).await.is_ok());
        drop(reply);
        assert!(sender.page_room(&pages).await.is_err());
        assert!(sender.unless_gone(std::future::ready(())).await.is_err());
    }
}
