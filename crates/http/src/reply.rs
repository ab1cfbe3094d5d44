//! Answers: headers, and bodies that are whole or streamed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use flatbed_flatten::json::Object;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::gate::{AccessDecision, Gate, Mark, Recheck};
use crate::metrics::AnswerCounter;
use crate::outlet::{AnswerMemory, OutgoingText, Outlet, PageKind};
use crate::rejection::Rejection;
use crate::tracked;

/// The approximate size of the pieces of a streamed answer, in bytes.
pub const CHUNK_BYTES: usize = 48 * 1024;

/// The capacity beyond [`CHUNK_BYTES`] for the row that fills a piece.
const ROW_BYTES: usize = 4 * 1024;

/// The most pieces that wait for a slow reader.
const CHUNKS_WAITING_MAX: usize = 2;

/// The time without progress after which a client is given up.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(60);

/// The longest wait of an answer for memory. Then it is refused.
pub(crate) const ROOM_MAX: Duration = Duration::from_secs(30);

/// The memory for the pages of a stream.
#[derive(Debug, Clone)]
pub struct Pages {
    outlet: Option<Arc<Outlet>>,
    kind: PageKind,
}

/// The memory of a page; released when dropped.
pub type PagePermit = Option<AnswerMemory>;

impl Pages {
    /// Returns the pages of the current answer. `has_documents`: they may contain documents of any size.
    pub fn new(has_documents: bool) -> Pages {
        let kind = if has_documents { PageKind::Documents } else { PageKind::Rows };
        Pages { outlet: tracked::outlet(), kind }
    }

    /// Returns the pages of an attachment.
    pub fn of_attachment() -> Pages {
        Pages { outlet: tracked::outlet(), kind: PageKind::Attachment }
    }

    /// Returns the page of one object of at most [`LITTLE_MAX`](crate::LITTLE_MAX) bytes.
    pub fn of_little() -> Pages {
        Pages { outlet: tracked::outlet(), kind: PageKind::Little }
    }

    /// Takes memory for a further page, to be read while another one is sent, if it is available now. A task that
    /// holds a page must not wait for another one.
    pub fn try_room(&self) -> Option<PagePermit> {
        match &self.outlet {
            Some(outlet) => outlet.try_page_room(self.kind).map(Some),
            None => Some(None),
        }
    }

    async fn room(&self) -> PagePermit {
        match &self.outlet {
            Some(outlet) => Some(outlet.page_room(self.kind).await),
            None => None,
        }
    }
}

/// Waits for the memory of the first page, before the answer begins. The wait is limited: the page may be queued
/// behind pages that the client reads only after this answer.
///
/// # Errors
/// 503 after the limit.
pub async fn first_room(pages: &Pages) -> Result<PagePermit, Rejection> {
    let most = pages.outlet.as_ref().map_or(ROOM_MAX, |outlet| outlet.room_max());
    tokio::time::timeout(most, pages.room()).await.map_err(|_| busy())
}

fn busy() -> Rejection {
    let reason = "Too many answers wait for their clients";
    Rejection::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
}

/// Returns the memory that a page does not need.
pub fn shrink(room: &mut PagePermit, bytes: usize) {
    if let Some(room) = room {
        room.shrink(bytes);
    }
}

/// The body of an answer.
#[derive(Debug)]
pub enum ReplyBody {
    /// A whole body.
    Full(Option<Bytes>),
    /// A whole body with its memory.
    Whole(WholeBody),
    /// A stream of pieces from a task.
    Stream(mpsc::Receiver<Piece>),
    /// A stream that may be cut when access is revoked.
    Until(Box<RevocableStream>),
    /// A whole body that may be cut when access is revoked.
    Checked(Box<RevocableBody>),
    /// A stream that has ended normally.
    Ended,
    /// No body: the connection switches its protocol. The channel passes on when access to it ends.
    Switched(oneshot::Sender<(EndSignal, Option<Gate>)>),
}

/// A future that resolves when an answer must end.
pub struct EndSignal(pub(crate) Pin<Box<dyn Future<Output = ()> + Send>>);

impl std::fmt::Debug for EndSignal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndSignal").finish_non_exhaustive()
    }
}

/// A whole body with its memory and gate.
#[derive(Debug)]
pub struct WholeBody {
    rest: Bytes,
    outlet: Arc<Outlet>,
    room: Arc<AnswerMemory>,
    gate: Option<Gate>,
}

/// A whole body with its gate.
#[derive(Debug)]
pub struct RevocableBody {
    bytes: Bytes,
    gate: Gate,
}

/// A stream with its end and gate.
#[derive(Debug)]
pub struct RevocableStream {
    pieces: mpsc::Receiver<Piece>,
    end: EndSignal,
    gate: Option<Gate>,
    next: Option<Piece>,
}

/// A message of the task of a streamed answer.
#[derive(Debug)]
pub enum Piece {
    /// More text, and the mark of its access decision if that is later than the request's.
    Data(OutgoingText, Option<Mark>),
    /// The text is complete. A task that ends without this has failed, and the connection is cut.
    End,
    /// The answer ends early. A WebSocket sends the reason, other answers break off.
    Refused(String),
}

/// The error of a body that ends early.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off")]
pub struct AbortedBody;

impl Body for ReplyBody {
    type Data = OutgoingText;
    type Error = AbortedBody;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<OutgoingText>, AbortedBody>>> {
        match &mut *self {
            ReplyBody::Full(bytes) => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(OutgoingText::new(bytes, None, None)))))
            }
            ReplyBody::Whole(WholeBody { rest, .. }) if rest.is_empty() => Poll::Ready(None),
            ReplyBody::Checked(checked) => {
                if !std::task::ready!(checked.gate.poll_pass(context, None)) {
                    return Poll::Ready(Some(Err(AbortedBody)));
                }
                let bytes = std::mem::take(&mut checked.bytes);
                *self = ReplyBody::Ended;
                Poll::Ready(Some(Ok(Frame::data(OutgoingText::new(bytes, None, None)))))
            }
            ReplyBody::Whole(WholeBody { rest, outlet, room, gate }) => {
                if let Some(gate) = gate
                    && !std::task::ready!(gate.poll_pass(context, None))
                {
                    return Poll::Ready(Some(Err(AbortedBody)));
                }
                // In pieces, so that progress shows that the client reads.
                let piece = rest.split_to(rest.len().min(CHUNK_BYTES));
                Poll::Ready(Some(Ok(Frame::data(OutgoingText::new(piece, Some(outlet.clone()), Some(room.clone()))))))
            }
            ReplyBody::Ended | ReplyBody::Switched(_) => Poll::Ready(None),
            ReplyBody::Stream(pieces) => {
                let piece = std::task::ready!(pieces.poll_recv(context));
                self.frame(piece)
            }
            ReplyBody::Until(until) => {
                if until.end.0.as_mut().poll(context).is_ready() {
                    // Closing the channel ends the task, as if the client had left.
                    until.pieces.close();
                    return Poll::Ready(Some(Err(AbortedBody)));
                }
                let piece = match until.next.take() {
                    Some(piece) => Some(piece),
                    None => std::task::ready!(until.pieces.poll_recv(context)),
                };
                if let (Some(gate), Some(Piece::Data(_, judged))) = (&mut until.gate, &piece) {
                    match gate.poll_pass(context, judged.as_ref()) {
                        Poll::Ready(true) => {}
                        Poll::Ready(false) => {
                            until.pieces.close();
                            return Poll::Ready(Some(Err(AbortedBody)));
                        }
                        Poll::Pending => {
                            until.next = piece;
                            return Poll::Pending;
                        }
                    }
                }
                self.frame(piece)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ReplyBody::Full(None) | ReplyBody::Ended | ReplyBody::Switched(_) => true,
            ReplyBody::Whole(whole) => whole.rest.is_empty(),
            ReplyBody::Full(Some(_)) | ReplyBody::Checked(_) | ReplyBody::Stream(_) | ReplyBody::Until(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ReplyBody::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            ReplyBody::Whole(whole) => SizeHint::with_exact(whole.rest.len() as u64),
            ReplyBody::Checked(checked) => SizeHint::with_exact(checked.bytes.len() as u64),
            ReplyBody::Ended | ReplyBody::Switched(_) => SizeHint::with_exact(0),
            ReplyBody::Stream(_) | ReplyBody::Until(_) => SizeHint::default(),
        }
    }
}

impl ReplyBody {
    pub(crate) fn whole_bytes(&self) -> Option<usize> {
        match self {
            ReplyBody::Full(Some(bytes)) => Some(bytes.len()),
            ReplyBody::Checked(checked) => Some(checked.bytes.len()),
            _ => None,
        }
    }

    fn frame(&mut self, piece: Option<Piece>) -> Poll<Option<Result<Frame<OutgoingText>, AbortedBody>>> {
        match piece {
            Some(Piece::Data(bytes, _)) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Some(Piece::End) => {
                *self = ReplyBody::Ended;
                Poll::Ready(None)
            }
            Some(Piece::Refused(_)) | None => Poll::Ready(Some(Err(AbortedBody))),
        }
    }
}

/// The sending half of a streamed answer, for its task.
pub struct Sender {
    pieces: mpsc::Sender<Piece>,
    /// Text that is not sent yet.
    pub buffer: Vec<u8>,
    follower: Option<Box<dyn AnswerCounter>>,
    outlet: Option<Arc<Outlet>>,
    /// See [`Sender::mark_judged`].
    judged: Option<Mark>,
    /// See [`Sender::in_whole_pieces`].
    sends_whole: bool,
}

/// The client is gone or reads nothing, so the task must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientGone;

impl Sender {
    /// Sends the buffer if it is large enough.
    pub async fn send_if_full(&mut self) -> Result<(), ClientGone> {
        if self.buffer.len() < CHUNK_BYTES {
            return Ok(());
        }
        // As much text is likely to follow, so its memory is allocated at once.
        let data = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK_BYTES + ROW_BYTES));
        self.send_data(data.into()).await
    }

    /// Sends a text of any length behind the buffer, without a second copy in memory.
    pub async fn write(&mut self, text: &[u8]) -> Result<(), ClientGone> {
        for part in text.chunks(CHUNK_BYTES) {
            self.buffer.extend_from_slice(part);
            self.send_if_full().await?;
        }
        Ok(())
    }

    /// Marks the text that follows as allowed at this time or later by decision `by`, if the reader could lose access
    /// to it. Text before the first mark was allowed with the request, or reveals nothing. Access is rechecked before
    /// old text is sent.
    ///
    /// # Errors
    /// [`ClientGone`]. Text in the buffer with another decision is sent first.
    pub async fn mark_judged(&mut self, at: Instant, by: Option<AccessDecision>) -> Result<(), ClientGone> {
        let mut mark = Mark { at, by };
        if let Some(before) = &self.judged {
            match mark.is_by(before) {
                false => self.flush().await?,
                true if !self.buffer.is_empty() => mark.at = mark.at.min(before.at),
                true => {}
            }
        }
        self.judged = Some(mark);
        Ok(())
    }

    /// Marks the text that follows as a heartbeat, which reveals nothing.
    pub fn mark_heartbeat(&mut self) {
        if let Some(judged) = self.judged.as_mut().filter(|_| self.buffer.is_empty()) {
            judged.at = Instant::now();
        }
    }

    /// Sends the buffer and frees its memory: a feed may wait long for its next row.
    pub async fn flush(&mut self) -> Result<(), ClientGone> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let data = Bytes::from(std::mem::take(&mut self.buffer));
        self.send_data(data).await
    }

    /// Sends bytes shared by many answers, after the buffer.
    pub async fn send_shared(&mut self, bytes: Bytes) -> Result<(), ClientGone> {
        self.flush().await?;
        self.send_data(bytes).await
    }

    /// Waits until a piece can be sent at once.
    pub async fn ready(&self) -> Result<(), ClientGone> {
        self.reserve().await.map(drop)
    }

    /// Sends the rest and the end.
    pub async fn finish(mut self) -> Result<(), ClientGone> {
        self.flush().await?;
        self.reserve().await?.send(Piece::End);
        Ok(())
    }

    /// Sends the rest and ends the answer early. A WebSocket sends the reason, other answers break off.
    pub async fn refuse(mut self, reason: String) -> Result<(), ClientGone> {
        self.flush().await?;
        self.reserve().await?.send(Piece::Refused(reason));
        Ok(())
    }

    /// Counts the output as that of `follower` while this sender lives.
    #[must_use]
    pub fn with_counter(mut self, follower: Box<dyn AnswerCounter>) -> Sender {
        self.follower = Some(follower);
        self
    }

    /// Returns a sender that sends each piece as one chunk: clients of feeds expect a chunk to hold whole lines.
    #[must_use]
    pub fn in_whole_pieces(self) -> Sender {
        Sender { sends_whole: true, ..self }
    }

    /// Counts a row of a feed in the buffer.
    pub fn count_row(&self) {
        if let Some(follower) = &self.follower {
            follower.rows(1);
        }
    }

    /// Runs a future until the client leaves.
    pub async fn unless_gone<T>(&self, work: impl Future<Output = T>) -> Result<T, ClientGone> {
        tokio::select! {
            biased;
            () = self.wait_until_gone() => Err(ClientGone),
            done = work => Ok(done),
        }
    }

    /// Resolves when the client has left.
    pub async fn wait_until_gone(&self) {
        self.pieces.closed().await;
    }

    async fn reserve(&self) -> Result<mpsc::Permit<'_, Piece>, ClientGone> {
        reserve(&self.pieces, self.outlet.as_ref()).await
    }

    async fn send_data(&self, data: Bytes) -> Result<(), ClientGone> {
        if let Some(follower) = &self.follower {
            follower.bytes(data.len());
        }
        let place = self.reserve().await?;
        let room = match &self.outlet {
            // Other slow readers are not this client's fault, so it waits while it is connected.
            Some(outlet) => tokio::select! {
                biased;
                room = outlet.room(data.len()) => Some(Arc::new(room)),
                () = self.pieces.closed() => return Err(ClientGone),
            },
            None => None,
        };
        let mut piece = OutgoingText::new(data, self.outlet.clone(), room);
        piece.is_whole = self.sends_whole;
        place.send(Piece::Data(piece, self.judged.clone()));
        Ok(())
    }

    /// Waits for the memory of a page while the client is connected.
    pub async fn page_room(&self, pages: &Pages) -> Result<PagePermit, ClientGone> {
        self.watch().page_room(pages).await
    }

    /// Returns a handle that observes the client while other data is sent.
    pub fn watch(&self) -> Watch {
        Watch(self.pieces.clone(), self.outlet.clone())
    }
}

/// See [`Sender::watch`].
pub struct Watch(mpsc::Sender<Piece>, Option<Arc<Outlet>>);

/// Waits until the client has taken a piece. Gives up a client that reads nothing for [`STALL_MAX`].
async fn reserve<'p>(
    pieces: &'p mpsc::Sender<Piece>,
    outlet: Option<&Arc<Outlet>>,
) -> Result<mpsc::Permit<'p, Piece>, ClientGone> {
    match tokio::time::timeout(STALL_MAX, pieces.reserve()).await {
        Ok(place) => place.map_err(|_| ClientGone),
        Err(_) => {
            outlet.inspect(|outlet| outlet.count_slow_reader());
            Err(ClientGone)
        }
    }
}

impl Watch {
    /// Waits for the memory of a page, like [`Sender::page_room`].
    pub async fn page_room(&self, pages: &Pages) -> Result<PagePermit, ClientGone> {
        // Nothing is read for a client that has not taken the earlier pieces.
        drop(reserve(&self.0, self.1.as_ref()).await?);
        tokio::select! {
            biased;
            // First: with free memory a task could read all pages without noticing that its client has left.
            () = self.0.closed() => Err(ClientGone),
            room = pages.room() => Ok(room),
        }
    }
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The headers, without those of all answers.
    pub headers: HeaderMap,
    /// The body.
    pub body: ReplyBody,
    /// The memory of the page from which a whole body was read.
    pub held: PagePermit,
}

impl Reply {
    /// Returns an answer with a JSON text and a newline.
    pub fn json(status: StatusCode, mut text: Vec<u8>) -> Self {
        text.push(b'\n');
        let mut reply =
            Reply { status, headers: HeaderMap::new(), body: ReplyBody::Full(Some(text.into())), held: None };
        reply.json_headers();
        reply
    }

    /// Returns an answer with a JSON object, whose members `write` adds.
    pub fn object(status: StatusCode, write: impl FnOnce(&mut Object<'_>)) -> Self {
        Reply::json(status, Object::text(write))
    }

    /// Returns 304 with its tag.
    pub fn not_modified(etag: &str) -> Self {
        let mut reply = Reply {
            status: StatusCode::NOT_MODIFIED,
            headers: HeaderMap::new(),
            body: ReplyBody::Full(None),
            held: None,
        };
        reply.header(header::ETAG, etag);
        reply
    }

    /// Returns a streamed answer in JSON, and its sender.
    pub fn stream() -> (Self, Sender) {
        let (sender, pieces) = mpsc::channel(CHUNKS_WAITING_MAX);
        let mut reply =
            Reply { status: StatusCode::OK, headers: HeaderMap::new(), body: ReplyBody::Stream(pieces), held: None };
        reply.json_headers();
        let (buffer, outlet) = (Vec::new(), tracked::outlet());
        (reply, Sender { pieces: sender, buffer, follower: None, outlet, judged: None, sends_whole: false })
    }

    /// Reserves memory for a whole body.
    ///
    /// # Errors
    /// 503 after the limit of the wait.
    pub(crate) async fn find_room(&mut self, outlet: &Arc<Outlet>) -> Result<(), Rejection> {
        let held = self.held.take();
        let (bytes, gate) = match std::mem::replace(&mut self.body, ReplyBody::Full(None)) {
            ReplyBody::Full(Some(bytes)) => (bytes, None),
            ReplyBody::Checked(checked) => (checked.bytes, Some(checked.gate)),
            body => {
                self.body = body;
                return Ok(());
            }
        };
        let room = match held {
            Some(mut room) => {
                room.shrink(bytes.len() + CHUNK_BYTES);
                Ok(room)
            }
            None => match outlet.try_room(bytes.len()) {
                Some(room) => Ok(room),
                None => tokio::time::timeout(outlet.room_max(), outlet.room(bytes.len())).await,
            },
        };
        let room = room.map_err(|_| busy())?;
        self.body = ReplyBody::Whole(WholeBody { rest: bytes, outlet: outlet.clone(), room: Arc::new(room), gate });
        Ok(())
    }

    fn json_headers(&mut self) {
        self.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("must-revalidate"));
    }

    /// Cuts a streamed answer when `end` resolves.
    #[must_use]
    pub fn until(self, end: impl Future<Output = ()> + Send + 'static) -> Reply {
        self.while_checked(end, None)
    }

    /// Does the same, and rechecks access before old data is sent, also for a whole body. `recheck` comes with the
    /// time at which the answer was allowed.
    #[must_use]
    pub fn while_checked(
        mut self,
        end: impl Future<Output = ()> + Send + 'static,
        recheck: Option<(Recheck, Instant)>,
    ) -> Reply {
        let end = EndSignal(Box::pin(end));
        let gate = recheck.map(|(recheck, since)| Gate::new(recheck, since));
        self.body = match self.body {
            ReplyBody::Stream(pieces) => ReplyBody::Until(Box::new(RevocableStream { pieces, end, gate, next: None })),
            ReplyBody::Switched(switched) => {
                // A connection that has already ended gets nothing.
                let _ = switched.send((end, gate));
                ReplyBody::Full(None)
            }
            // Smaller bodies are sent in one piece.
            ReplyBody::Full(Some(bytes)) if bytes.len() > CHUNK_BYTES => match gate {
                Some(gate) => ReplyBody::Checked(Box::new(RevocableBody { bytes, gate })),
                None => ReplyBody::Full(Some(bytes)),
            },
            body => body,
        };
        self
    }

    /// Sets a header. Ignores invalid values.
    pub fn header(&mut self, name: HeaderName, value: &str) {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stream_is_cut_when_it_may_not_go_on() {
        let (reply, mut sender) = Reply::stream();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let mut body = reply.until(async { drop(ended.await) }).body;
        sender.buffer.extend_from_slice(b"a");
        sender.flush().await.unwrap();
        let mut next = async || std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        assert!(next().await.is_some_and(|frame| frame.is_ok()));
        drop(end);
        assert!(next().await.is_some_and(|frame| frame.is_err()));
        sender.wait_until_gone().await;
        let (reply, sender) = Reply::stream();
        let mut body = reply.until(std::future::pending()).body;
        sender.finish().await.unwrap();
        assert!(std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.is_none());
    }

    #[tokio::test]
    async fn what_a_connection_turns_into_is_cut_likewise() {
        let (switched, end) = oneshot::channel();
        let reply = Reply {
            status: StatusCode::SWITCHING_PROTOCOLS,
            headers: HeaderMap::new(),
            body: ReplyBody::Switched(switched),
            held: None,
        };
        let (cut, is_cut) = oneshot::channel::<()>();
        assert!(reply.until(async { drop(is_cut.await) }).body.is_end_stream());
        let mut end = end.await.unwrap().0.0;
        assert!(end.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())).is_pending());
        drop(cut);
        end.await;
    }

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
