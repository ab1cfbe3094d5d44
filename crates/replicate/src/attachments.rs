//! Copies revisions whose attachments are too large for memory: streams their data between the peers in
//! `multipart/related`, or as base64 if the target does not accept that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use flatbed_client::{encode_segment, pieces};
use flatbed_flatten::json::{Limits, Object, Value, parse_unique};
use hyper::{Method, header};
use tokio::sync::mpsc;

use crate::error::{Error, Result};
use crate::memory::{Room, Share};
use crate::peer::Peer;
use crate::raw;
use crate::stats::{Progress, Tally};
use crate::transfer::{MissingRevision, Revision, Transfer};

/// The size in bytes from which attachments of a revision are streamed.
const LARGE_BYTES: u64 = 2 << 20;

const STUB_BYTES_MAX: usize = 64 << 10;

/// The bytes buffered between source and target while an attachment is copied.
const STREAM_BYTES: usize = 1 << 20;

/// The pieces buffered between source and target.
const PIECES_WAITING_MAX: usize = 4;

/// The time without progress after which a target is given up, at the latest after twice as long.
const STALL_MAX: Duration = Duration::from_secs(60);

pub(crate) struct RevisionWithSize {
    pub(crate) wanted: MissingRevision,
    pub(crate) bytes: u64,
}

impl RevisionWithSize {
    pub(crate) fn is_large(&self) -> bool {
        self.bytes > LARGE_BYTES
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stubs {
    /// None.
    Empty,
    /// The total length.
    Bytes(u64),
}

/// Parses `_attachments`. `None`: malformed.
pub(crate) fn stubs_of(attachments: &[u8]) -> Option<Stubs> {
    let attachments = raw::object(attachments)?;
    if attachments.is_empty() {
        return Some(Stubs::Empty);
    }
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u64>().ok();
    // An attachment with an empty name has no path, so its revision is fetched in one piece of any length.
    let bytes_max = if attachments.iter().any(|(name, _)| name.is_empty()) { LARGE_BYTES } else { u64::MAX };
    attachments
        .iter()
        .try_fold(0, |sum: u64, (_, stub)| {
            let members = raw::object(stub)?;
            let length = members.iter().find(|(name, _)| name == "length").and_then(|(_, text)| number(text));
            Some(sum.saturating_add(length.unwrap_or(0)))
        })
        .map(|bytes| Stubs::Bytes(bytes.min(bytes_max)))
}

/// A multipart or JSON message: text and attachment data in turn.
struct Message {
    kind: String,
    /// The text before each attachment's data, the attachment's path below the document, and its length as sent.
    parts: Vec<(Vec<u8>, String, u64)>,
    tail: Vec<u8>,
    is_base64: bool,
}

impl Message {
    fn length(&self) -> u64 {
        let parts = self
            .parts
            .iter()
            .map(|(text, _, length)| text.len() as u64 + if self.is_base64 { length.div_ceil(3) * 4 } else { *length });
        parts.sum::<u64>() + self.tail.len() as u64
    }
}

pub(crate) async fn copy(
    transfer: &Transfer,
    (id, rev): &MissingRevision,
    tally: &mut Tally<'_>,
    room: &Arc<Room>,
) -> Result<()> {
    let document_path = Peer::document_path(id);
    let path = format!("{document_path}?revs=true&att_encoding_info=true&rev={}", encode_segment(rev));
    let answer = transfer.source.call_in(room, Method::GET, &path, None).await?;
    match answer.status {
        200 => {}
        // Purged or compacted meanwhile.
        404 => return Ok(()),
        _ => return Err(transfer.source.refused("a document", &answer)),
    }
    let malformed = || transfer.source.protocol("a revision is not well-formed");
    let found = Revision::of(&answer.body).ok_or_else(malformed)?;
    if *found.id != **id || found.rev != *rev {
        return Err(transfer.source.protocol("the source sent a revision that was not asked for"));
    }
    if !found.has_its_ancestry() {
        return Err(transfer.source.protocol("a revision has the ancestry of another one"));
    }
    // The message contains the document once more, and twice while it is built.
    let mut share = Share::new(room);
    let bytes = STREAM_BYTES + 2 * answer.body.len();
    share.set(bytes).await.map_err(|error| transfer.source.no_room(error))?;
    tally.read(1);
    for is_base64 in [false, true] {
        if !is_base64 && transfer.lacks_multipart.load(Ordering::Relaxed) {
            continue;
        }
        let message = message(&answer.body, is_base64)?.ok_or_else(malformed)?;
        let status = send(transfer, &document_path, rev, message, room).await?;
        match status {
            200..=202 => {
                if is_base64 {
                    transfer.lacks_multipart.store(true, Ordering::Relaxed);
                }
                tally.written(1);
                return Ok(());
            }
            400 | 405 | 411 | 413 | 415 | 501 if !is_base64 => {}
            _ => {
                tracing::warn!(target = transfer.target.shown, status, "a revision with attachments was refused");
                break;
            }
        }
    }
    tally.refused(1);
    Ok(())
}

/// Builds the message. `None`: the text is malformed.
fn message(doc: &[u8], is_base64: bool) -> Result<Option<Message>> {
    let mut random = [0_u8; 16];
    getrandom::fill(&mut random).map_err(|_| Error::NoRandomness)?;
    let boundary: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(message_with(doc, is_base64, &boundary))
}

fn message_with(doc: &[u8], is_base64: bool, boundary: &str) -> Option<Message> {
    let mut text = b"{".to_vec();
    let mut attachments = Vec::new();
    raw::special(doc)?;
    for member in raw::members(doc) {
        let (name, value) = member?;
        if name == b"_attachments" {
            attachments = raw::object(value)?;
            continue;
        }
        text.push(b'"');
        text.extend_from_slice(name);
        text.extend_from_slice(b"\":");
        text.extend_from_slice(value);
        text.push(b',');
    }
    text.extend_from_slice(b"\"_attachments\":");
    let mut written = Object::new(&mut text);
    let mut parts = Vec::new();
    let mut heads = Vec::new();
    for (name, stub) in &attachments {
        if stub.len() > STUB_BYTES_MAX {
            return None;
        }
        let stub = parse_unique(stub, &Limits::default()).ok()?;
        let length = match stub.get("length") {
            Some(Value::Number(length)) => length.parse::<u64>().ok()?,
            _ => return None,
        };
        let content_type = stub.get("content_type").and_then(Value::as_str).unwrap_or("application/octet-stream");
        let mut attachment = written.object(name.as_str());
        attachment.string("content_type", content_type);
        for member in ["revpos", "digest"] {
            // The digest of a compressed attachment does not match the uncompressed data that is sent.
            if let Some(value) = stub.get(member).filter(|_| member == "revpos" || stub.get("encoding").is_none()) {
                attachment.value(member, value);
            }
        }
        let path = name.split('/').map(encode_segment).collect::<Vec<_>>().join("/");
        if is_base64 {
            let text = attachment.place("data");
            text.push(b'"');
            parts.push((std::mem::take(text), path, length));
            text.push(b'"');
        } else {
            attachment.number("length", length).bool("follows", true);
            let clean = |text: &str| text.replace(['"', '\\', '\r', '\n'], "_");
            // A changed name might be that of another attachment. Without one the order decides.
            let is_plain = clean(name) == *name;
            let file_name = if is_plain { format!("; filename=\"{name}\"") } else { String::new() };
            let head = format!(
                "\r\n--{boundary}\r\nContent-Disposition: attachment{file_name}\r\nContent-Type: {}\r\n\
                 Content-Length: {length}\r\n\r\n",
                clean(content_type)
            );
            heads.push((head.into_bytes(), path, length));
        }
    }
    written.end();
    text.push(b'}');
    if is_base64 {
        return Some(Message { kind: "application/json".to_owned(), parts, tail: text, is_base64 });
    }
    let mut first = format!("--{boundary}\r\nContent-Type: application/json\r\n\r\n").into_bytes();
    first.extend_from_slice(&text);
    if let Some((head, _, _)) = heads.first_mut() {
        first.extend_from_slice(head);
        *head = first;
    }
    let tail = format!("\r\n--{boundary}--").into_bytes();
    let kind = format!("multipart/related; boundary=\"{boundary}\"");
    Some(Message { kind, parts: heads, tail, is_base64 })
}

/// Sends a revision and returns the target's status.
async fn send(transfer: &Transfer, document_path: &str, rev: &str, message: Message, room: &Arc<Room>) -> Result<u16> {
    let (sender, receiver) = mpsc::channel(PIECES_WAITING_MAX);
    let path = format!("{document_path}?new_edits=false");
    let mut request = transfer.target.request(Method::PUT, &path, Some(&message.kind), pieces(receiver))?;
    request.headers_mut().insert(header::CONTENT_LENGTH, message.length().into());
    let (source, progress) = (transfer.source.clone(), transfer.progress.clone());
    let (document_path, rev) = (document_path.to_owned(), encode_segment(rev));
    let sender = Sender { pieces: sender, taken: Arc::default() };
    let taken = sender.taken.clone();
    let feeder = tokio::spawn(async move {
        if let Err(error) = feed((&source, &*progress), &document_path, &rev, message, &sender).await {
            let _ = sender.pieces.send(Err(std::io::Error::other(error.to_string()))).await;
        }
    });
    let sent = async {
        let answer = transfer.target.send_pieces(request).await?;
        transfer.target.whole(room, answer).await
    };
    let sent = tokio::select! {
        sent = sent => sent,
        () = stalled(&taken) => Err(transfer.target.broken("nothing more of a request was taken")),
    };
    feeder.abort();
    let answer = sent?;
    if answer.status >= 500 && answer.status != 501 || matches!(answer.status, 401 | 403 | 429) {
        return Err(transfer.target.refused("a document with attachments", &answer));
    }
    Ok(answer.status)
}

/// The channel of a request's pieces, with the number that the target has taken.
struct Sender {
    pieces: mpsc::Sender<std::io::Result<Bytes>>,
    taken: Arc<AtomicU64>,
}

impl Sender {
    /// Sends a piece. False: the receiver is gone.
    async fn send(&self, piece: Bytes) -> bool {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.pieces.send(Ok(piece)).await.is_ok()
    }
}

/// Returns once nothing was taken for [`STALL_MAX`].
async fn stalled(taken: &AtomicU64) {
    let mut before = taken.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(STALL_MAX).await;
        let now = taken.load(Ordering::Relaxed);
        if now == before {
            return;
        }
        before = now;
    }
}

async fn feed(
    (source, progress): (&Arc<Peer>, &Progress),
    document_path: &str,
    rev: &str,
    message: Message,
    sender: &Sender,
) -> Result<()> {
    // The target may have answered already. The receiver is gone then, and the loop ends.
    for (text, path, length) in message.parts {
        if !sender.send(text.into()).await {
            return Ok(());
        }
        let mut answer = source.send_once(Method::GET, &format!("{document_path}/{path}?rev={rev}"), None).await?;
        if answer.status != 200 {
            return Err(source.status("an attachment", answer.status.as_u16()));
        }
        let (mut sent, mut rest) = (0_u64, Vec::new());
        while let Some(piece) = answer.piece().await.map_err(|reason| source.broken(reason))? {
            sent += piece.len() as u64;
            progress.note_bytes(piece.len());
            let piece = if message.is_base64 {
                rest.extend_from_slice(&piece);
                let whole = rest.len() - rest.len() % 3;
                let text = BASE64.encode(rest.get(..whole).unwrap_or_default());
                rest.drain(..whole);
                text.into()
            } else {
                piece
            };
            if sent > length || !sender.send(piece).await {
                break;
            }
        }
        if sent != length {
            return Err(source.protocol("an attachment has not the length that its stub tells"));
        }
        if !rest.is_empty() && !sender.send(BASE64.encode(&rest).into()).await {
            return Ok(());
        }
    }
    sender.send(message.tail.into()).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOC: &[u8] = br#"{"_id":"x","_rev":"1-a","n":1,"_attachments":{"a b/c":{"content_type":"text/plain","revpos":1,
        "digest":"md5-x","length":5,"stub":true},"\u00e9":{"content_type":"a/b","length":4,"digest":"md5-y","encoding":"gzip"}}}"#;

    #[test]
    fn attachments_are_seen() {
        assert_eq!(stubs_of(raw::member(DOC, "_attachments").unwrap()), Some(Stubs::Bytes(9)));
        assert_eq!((stubs_of(b"{}"), stubs_of(b"{\"a\":{")), (Some(Stubs::Empty), None));
        let huge = format!("{{\"a\":{{\"length\":{0}}},\"b\":{{\"length\":{0}}}}}", u64::MAX);
        assert_eq!(stubs_of(huge.as_bytes()), Some(Stubs::Bytes(u64::MAX)));
        let unnamed = br#"{"":{"length":9000000},"a":{"length":9000000}}"#;
        assert_eq!(stubs_of(unnamed), Some(Stubs::Bytes(LARGE_BYTES)));
        for twice in [r#"{"a":{},"\u0061":{}}"#, r#"{"a":{"length":1,"length":9000000}}"#, r#"{"a":1}"#] {
            assert_eq!(stubs_of(twice.as_bytes()), None, "{twice}");
        }
    }

    #[test]
    fn no_attachment_gets_the_name_of_another() {
        let doc = br#"{"_id":"x","_rev":"1-a","_attachments":{"a\"b":{"length":1},"a_b":{"length":1}}}"#;
        let message = message_with(doc, false, "B").unwrap();
        let heads: Vec<String> =
            message.parts.iter().map(|(head, ..)| String::from_utf8_lossy(head).into_owned()).collect();
        assert!(!heads[0].contains("filename") && heads[1].contains("filename=\"a_b\""), "{heads:?}");
    }

    #[test]
    fn both_forms_have_the_length_that_is_told() {
        let multipart = message_with(DOC, false, "B").unwrap();
        let mut text = Vec::new();
        for ((head, path, length), data) in multipart.parts.iter().zip(["hello", "data"]) {
            assert_eq!(data.len() as u64, *length);
            assert!(["a%20b/c", "%C3%A9"].contains(&path.as_str()));
            text.extend_from_slice(head);
            text.extend_from_slice(data.as_bytes());
        }
        text.extend_from_slice(&multipart.tail);
        assert_eq!(text.len() as u64, multipart.length());
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("--B\r\nContent-Type: application/json\r\n\r\n{\"_id\":\"x\""), "{text}");
        assert!(text.ends_with("\r\n\r\ndata\r\n--B--") && !text.contains("md5-y"), "{text}");

        let json = message_with(DOC, true, "B").unwrap();
        let mut text = Vec::new();
        for ((head, ..), data) in json.parts.iter().zip(["hello", "data"]) {
            text.extend_from_slice(head);
            text.extend_from_slice(BASE64.encode(data).as_bytes());
        }
        text.extend_from_slice(&json.tail);
        assert_eq!(text.len() as u64, json.length());
        let value = parse_unique(&text, &Limits::default()).unwrap();
        let data = value.get("_attachments").and_then(|all| all.get("é")).and_then(|one| one.get("data"));
        assert_eq!(data.and_then(Value::as_str), Some("ZGF0YQ=="));
    }
}
