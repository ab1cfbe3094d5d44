//! Feeds over a WebSocket (RFC 6455), one message per line.
//!
//! The feed's task writes lines as for `feed=continuous`. Each line becomes a text message, and the empty line of a
//! heartbeat becomes a ping or an empty message. Long lines are sent in fragments. The feed's task waits while the
//! socket accepts no more data.
//!
//! A client sends only control frames, and for some feeds one message with its request.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, Bytes};
use futures_util::{SinkExt, StreamExt};
use hyper::header::{self, HeaderName};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Method, StatusCode, Version};
use hyper_util::rt::TokioIo;
use sha1::{Digest, Sha1};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Duration, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{CloseFrame, Frame};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::cors::{Cors, PageRequest};
use crate::frame_stream::FrameStream;
use crate::gate::Gate;
use crate::peer::RequestScheme;
use crate::rejection::{Rejection, Result};
use crate::reply::{EndSignal, Piece, Reply, ReplyBody};
use crate::request::Request;

/// The text appended to the key of a handshake (RFC 6455, 1.3).
const HANDSHAKE: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The largest message of a client after the handshake or its first message, in bytes.
const INCOMING_BYTES_MAX: usize = 1_024;

const READ_BUFFER_BYTES: usize = 1_024;

/// The write buffer, in bytes. When it is full, it is flushed before the next frame is taken.
const WRITE_BUFFER_BYTES: usize = 16 * 1024;

const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// The longest close reason (RFC 6455, 5.5).
const REASON_BYTES_MAX: usize = 123;

/// The close reason sent when read access is revoked.
const ACCESS_REVOKED: &str = "Read access was revoked.";

/// The timeout of the client's reply to a close.
const CLOSE_MAX: Duration = Duration::from_secs(5);

type Stream = TokioIo<Upgraded>;

type Socket = WebSocketStream<Stream>;

/// The form of a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heartbeat {
    /// A ping.
    Ping,
    /// An empty text message.
    Message,
}

/// A valid WebSocket handshake.
#[derive(Debug)]
pub struct Handshake {
    accept: String,
    upgraded: OnUpgrade,
}

impl Handshake {
    /// Extracts the handshake from a request; `cors`: the pages that may open a WebSocket.
    ///
    /// # Errors
    /// 426 if the request is not an upgrade, 400 without a valid key, 403 for a page of a foreign origin.
    pub fn of(cors: &Cors, request: &mut Request) -> Result<Handshake> {
        let has = |name: HeaderName, token: &str| {
            let listed = request.header(name).unwrap_or_default();
            listed.split(',').any(|listed| listed.trim().eq_ignore_ascii_case(token))
        };
        let asks = request.method == Method::GET && request.version == Version::HTTP_11;
        let is_upgrade = asks && has(header::UPGRADE, "websocket") && has(header::CONNECTION, "upgrade");
        if !is_upgrade || request.header(header::SEC_WEBSOCKET_VERSION) != Some("13") {
            let reason = "feed=websocket is answered to a WebSocket's handshake, GET in HTTP/1.1, version 13";
            return Err(Rejection::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", reason));
        }
        // Browsers let any page open a WebSocket with the user's credentials, also to this machine.
        let scheme = if request.is_secure { RequestScheme::Https } else { RequestScheme::Unknown };
        let page = PageRequest { uri: &request.uri, headers: &request.headers, host: None, scheme };
        if !cors.may_open(&page) {
            return Err(Rejection::new(StatusCode::FORBIDDEN, "forbidden", "This origin may not open a WebSocket."));
        }
        let key = request.header(header::SEC_WEBSOCKET_KEY).unwrap_or_default();
        if STANDARD.decode(key).map_or(0, |key| key.len()) != 16 {
            return Err(Rejection::bad_request("Sec-WebSocket-Key must be 16 bytes in base64"));
        }
        let accept = STANDARD.encode(Sha1::new().chain_update(key).chain_update(HANDSHAKE).finalize());
        let no_upgrade = || Rejection::bad_request("The connection cannot be upgraded");
        let upgraded = request.upgrade.take().ok_or_else(no_upgrade)?;
        Ok(Handshake { accept, upgraded })
    }

    /// Returns 101. The lines of the stream go over the socket.
    pub fn answer(self, mut reply: Reply) -> Reply {
        let body = std::mem::replace(&mut reply.body, ReplyBody::Full(None));
        let ReplyBody::Stream(pieces) = body else { return reply };
        let (reply, opening) = self.open();
        crate::tracked::spawn(async move {
            if let Some(opened) = opening.opened().await {
                opened.serve(pieces, Heartbeat::Ping).await;
            }
        });
        reply
    }

    /// Returns 101, and the WebSocket that opens once it was sent.
    pub fn open(self) -> (Reply, PendingWebSocket) {
        let (switched, end) = oneshot::channel();
        let mut reply = Reply {
            status: StatusCode::SWITCHING_PROTOCOLS,
            headers: Default::default(),
            body: ReplyBody::Switched(switched),
            held: None,
        };
        reply.header(header::CONNECTION, "upgrade");
        reply.header(header::UPGRADE, "websocket");
        reply.header(header::SEC_WEBSOCKET_ACCEPT, &self.accept);
        (reply, PendingWebSocket { upgraded: self.upgraded, end })
    }
}

/// A WebSocket that is about to open.
#[derive(Debug)]
pub struct PendingWebSocket {
    upgraded: OnUpgrade,
    end: oneshot::Receiver<(EndSignal, Option<Gate>)>,
}

impl PendingWebSocket {
    /// Waits for the protocol switch. Returns `None` if it fails.
    async fn upgraded(self) -> Option<(Stream, SocketEnd)> {
        let PendingWebSocket { upgraded, end } = self;
        let upgraded = match timeout(HANDSHAKE_MAX, upgraded).await {
            Ok(Ok(upgraded)) => upgraded,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a connection was not upgraded");
                return None;
            }
            Err(_) => {
                tracing::debug!("a connection was not upgraded in time");
                return None;
            }
        };
        // It is set before the 101 is sent.
        let (end, gate) = end.await.unwrap_or_else(|_| (EndSignal(Box::pin(std::future::pending())), None));
        Some((TokioIo::new(upgraded), SocketEnd { end, gate }))
    }

    async fn opened(self) -> Option<WebSocket> {
        let (stream, ends) = self.upgraded().await?;
        Some(WebSocket { socket: socket(stream, INCOMING_BYTES_MAX).await, ends })
    }

    /// Waits for the first message, text or binary. Returns `None` if none arrives in time, or if it exceeds
    /// `bytes_max`. Its memory is at most [`message_room`] while it arrives; afterwards only the returned bytes
    /// remain.
    pub async fn first_message(self, bytes_max: usize, within: Duration) -> Option<(Bytes, WebSocket)> {
        let (stream, mut ends) = self.upgraded().await?;
        let (said, stream) = tokio::select! {
            said = first_of(stream, bytes_max, within) => said,
            () = &mut ends.end.0 => return None,
        };
        // From here on the client sends only control frames.
        let opened = WebSocket { socket: socket(stream, INCOMING_BYTES_MAX).await, ends };
        match said {
            Ok(message) => Some((message, opened)),
            Err(ending) => {
                opened.end(ending, false).await;
                None
            }
        }
    }
}

async fn first_of<S>(stream: S, bytes_max: usize, within: Duration) -> (std::result::Result<Bytes, SocketClose>, S)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut first = socket(FrameStream::new(stream), bytes_max).await;
    let said = async {
        let said = loop {
            match first.next().await {
                Some(Ok(Message::Text(text))) => break Ok(text.into()),
                Some(Ok(Message::Binary(bytes))) => break Ok(bytes),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Err(_)) => {
                    break Err(SocketClose::new(CloseCode::Policy, "The message is too long or malformed."));
                }
                Some(Ok(Message::Close(_))) | None => break Err(SocketClose::GONE),
            }
        };
        // Sends the replies to pings and a close.
        let _ = first.flush().await;
        said
    };
    let said = timeout(within, said).await;
    let said = said.unwrap_or_else(|_| Err(SocketClose::new(CloseCode::Policy, "No message arrived in time.")));
    (said, first.into_inner().into_inner())
}

/// Returns the memory of an arriving message, in bytes: a frame of it, and the part before.
pub const fn message_room(bytes_max: usize) -> usize {
    2 * bytes_max + READ_BUFFER_BYTES
}

async fn socket<S: AsyncRead + AsyncWrite + Unpin>(stream: S, incoming_bytes_max: usize) -> WebSocketStream<S> {
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(WRITE_BUFFER_BYTES)
        .max_message_size(Some(incoming_bytes_max))
        .max_frame_size(Some(incoming_bytes_max));
    WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await
}

struct SocketEnd {
    end: EndSignal,
    gate: Option<Gate>,
}

/// An open WebSocket.
pub struct WebSocket {
    socket: Socket,
    ends: SocketEnd,
}

impl std::fmt::Debug for WebSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct SocketClose {
    code: CloseCode,
    reason: String,
    is_gone: bool,
}

impl SocketClose {
    const GONE: SocketClose = SocketClose { code: CloseCode::Abnormal, reason: String::new(), is_gone: true };

    fn new(code: CloseCode, reason: impl Into<String>) -> SocketClose {
        SocketClose { code, reason: reason.into(), is_gone: false }
    }
}

impl WebSocket {
    /// Sends the lines of a streamed answer until the answer or the client ends.
    pub async fn send(self, reply: Reply, heartbeat: Heartbeat) {
        if let ReplyBody::Stream(pieces) = reply.body {
            self.serve(pieces, heartbeat).await;
        }
    }

    /// Closes the socket with a reason.
    pub async fn refuse(self, reason: &str) {
        self.end(SocketClose::new(CloseCode::Policy, reason), false).await;
    }

    async fn serve(mut self, mut pieces: mpsc::Receiver<Piece>, heartbeat: Heartbeat) {
        let mut lines = Lines::new(heartbeat);
        let ending = tokio::select! {
            ending = feed(&mut self.socket, &mut self.ends.gate, &mut lines, &mut pieces) => ending,
            () = &mut self.ends.end.0 => SocketClose::new(CloseCode::Policy, ACCESS_REVOKED),
        };
        if lines.is_sending {
            // A client that does not read must not get data to which it has lost access.
            return;
        }
        // Dropping the receiver ends the feed's task.
        drop(pieces);
        self.end(ending, lines.is_within).await;
    }

    async fn end(mut self, SocketClose { code, mut reason, is_gone }: SocketClose, is_within_line: bool) {
        let socket = &mut self.socket;
        let close = async {
            // A broken message is never completed, otherwise it would look whole.
            if is_gone || is_within_line {
                return;
            }
            while reason.len() > REASON_BYTES_MAX {
                reason.pop();
            }
            // If the client has sent a close, its code is echoed and this one is not sent.
            let _ = socket.close(Some(CloseFrame { code, reason: reason.into() })).await;
            while let Some(Ok(_)) = socket.next().await {}
            if code == CloseCode::Policy {
                // With unread bytes the system would reset the connection, and the last data would not arrive.
                let stream = socket.get_mut();
                let mut rest = [0; READ_BUFFER_BYTES];
                let _ = stream.shutdown().await;
                while stream.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {}
            }
        };
        let _ = timeout(CLOSE_MAX, close).await;
    }
}

async fn feed(
    socket: &mut Socket,
    gate: &mut Option<Gate>,
    lines: &mut Lines,
    pieces: &mut mpsc::Receiver<Piece>,
) -> SocketClose {
    loop {
        tokio::select! {
            piece = pieces.recv() => match piece {
                Some(Piece::Data(piece, judged)) => {
                    if let Some(gate) = gate
                        && !gate.passes(judged.as_ref()).await
                    {
                        return SocketClose::new(CloseCode::Policy, ACCESS_REVOKED);
                    }
                    // The piece keeps its memory until the socket has taken it.
                    lines.is_sending = true;
                    if send(socket, lines, piece.bytes().clone()).await.is_err() {
                        return SocketClose::GONE;
                    }
                    lines.is_sending = false;
                }
                Some(Piece::End) => return SocketClose::new(CloseCode::Normal, ""),
                Some(Piece::Refused(reason)) => return SocketClose::new(CloseCode::Policy, reason),
                None => return SocketClose::new(CloseCode::Error, ""),
            },
            incoming = socket.next() => match incoming {
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_))) => return SocketClose::new(CloseCode::Normal, ""),
                // Clients may not send data.
                Some(Ok(_)) => return SocketClose::new(CloseCode::Unsupported, ""),
                // Includes messages that are too long.
                Some(Err(_)) => return SocketClose::new(CloseCode::Policy, ""),
                None => return SocketClose::GONE,
            },
        }
    }
}

async fn send(
    socket: &mut Socket,
    lines: &mut Lines,
    bytes: Bytes,
) -> std::result::Result<(), tokio_tungstenite::tungstenite::Error> {
    let mut rest = bytes;
    while let Some(message) = lines.next(&mut rest) {
        socket.feed(message).await?;
    }
    socket.flush().await
}

struct Lines {
    is_within: bool,
    is_sending: bool,
    heartbeat: Heartbeat,
}

impl Lines {
    fn new(heartbeat: Heartbeat) -> Lines {
        Lines { is_within: false, is_sending: false, heartbeat }
    }
}

impl Lines {
    fn next(&mut self, rest: &mut Bytes) -> Option<Message> {
        if rest.is_empty() {
            return None;
        }
        let end = memchr::memchr(b'\n', rest);
        let part = rest.split_to(end.unwrap_or(rest.len()));
        if end.is_some() {
            rest.advance(1);
            if part.is_empty() && !self.is_within && self.heartbeat == Heartbeat::Ping {
                return Some(Message::Ping(Bytes::new()));
            }
        }
        let kind = if self.is_within { Data::Continue } else { Data::Text };
        self.is_within = end.is_none();
        Some(Message::Frame(Frame::message(part, OpCode::Data(kind), end.is_some())))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_heartbeat_is_a_ping_or_an_empty_message() {
        let one = |heartbeat| Lines::new(heartbeat).next(&mut Bytes::from_static(b"\n"));
        assert!(matches!(one(Heartbeat::Ping), Some(Message::Ping(bytes)) if bytes.is_empty()));
        let Some(Message::Frame(frame)) = one(Heartbeat::Message) else { panic!("no frame") };
        assert_eq!(frame.header().opcode, OpCode::Data(Data::Text));
        assert!(frame.header().is_final && frame.payload().is_empty());
    }

    /// Bytes behind the first message are left for another reader with a smaller limit.
    #[tokio::test]
    async fn nothing_is_read_behind_the_first_message() {
        const WITHIN: Duration = Duration::from_secs(60);
        let client = async |end| WebSocketStream::from_raw_socket(end, Role::Client, None).await;
        let (ours, theirs) = tokio::io::duplex(100_000);
        let mut theirs = client(theirs).await;
        let long = "x".repeat(16_000);
        for message in [Message::Ping("1".into()), long.clone().into(), Message::Ping("2".into()), "more".into()] {
            theirs.feed(message).await.unwrap();
        }
        theirs.flush().await.unwrap();
        let (said, ours) = first_of(ours, 16_384, WITHIN).await;
        assert_eq!(said.unwrap(), long.as_bytes());
        let mut ours = socket(ours, INCOMING_BYTES_MAX).await;
        assert_eq!(ours.next().await.unwrap().unwrap(), Message::Ping("2".into()));
        assert_eq!(ours.next().await.unwrap().unwrap(), "more".into());
        assert_eq!(theirs.next().await.unwrap().unwrap(), Message::Pong("1".into()));
        theirs.send(long.into()).await.unwrap();
        assert!(ours.next().await.unwrap().is_err(), "the limit of a client without a message applies");
        // A message that is too long, and one that does not arrive.
        let (ours, theirs) = tokio::io::duplex(100_000);
        let mut theirs = client(theirs).await;
        theirs.send("x".repeat(16_385).into()).await.unwrap();
        assert_eq!(first_of(ours, 16_384, WITHIN).await.0.unwrap_err().code, CloseCode::Policy);
        let (ours, _theirs) = tokio::io::duplex(100_000);
        assert_eq!(first_of(ours, 16_384, Duration::ZERO).await.0.unwrap_err().reason, "No message arrived in time.");
    }

    proptest! {
        #[test]
        fn lines_are_messages_wherever_they_are_cut(
            lines in proptest::collection::vec("[a-zé]{0,12}", 0..8), cuts in proptest::collection::vec(1..9_usize, 1..40)
        ) {
            let text: Vec<u8> = lines.iter().flat_map(|line| [line.as_bytes(), b"\n"].concat()).collect();
            let (mut found, mut open) = (Vec::new(), None::<Vec<u8>>);
            let (mut state, mut rest, mut cuts) = (Lines::new(Heartbeat::Ping), Bytes::from(text), cuts.into_iter().cycle());
            while !rest.is_empty() {
                let mut piece = rest.split_to(cuts.next().unwrap_or(1).min(rest.len()));
                while let Some(message) = state.next(&mut piece) {
                    match message {
                        Message::Ping(_) => {
                            prop_assert!(open.is_none(), "a ping within a line would be read as another heartbeat");
                            found.push(String::new());
                        }
                        Message::Frame(frame) => {
                            let begins = frame.header().opcode == OpCode::Data(Data::Text);
                            prop_assert_eq!(begins, open.is_none());
                            let mut line = open.take().unwrap_or_default();
                            line.extend_from_slice(frame.payload());
                            match frame.header().is_final {
                                true => found.push(String::from_utf8(line).unwrap()),
                                false => open = Some(line),
                            }
                        }
                        _ => prop_assert!(false, "another message"),
                    }
                }
            }
            prop_assert_eq!(found, lines);
        }
    }
}
