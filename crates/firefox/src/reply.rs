//! The headers and bodies of answers.

use bytes::Bytes;
use flatbed_flatten::json;
use flatbed_http::{CHUNK_BYTES, ClientGone, Reply, ReplyBody, Sender};
use flatbed_syncstorage::{Record, Timestamp};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};

use crate::error::{Failure, Result};

pub(crate) const LAST_MODIFIED: HeaderName = HeaderName::from_static("x-last-modified");
pub(crate) const TIMESTAMP: HeaderName = HeaderName::from_static("x-weave-timestamp");
const RECORDS: HeaderName = HeaderName::from_static("x-weave-records");
const NEXT_OFFSET: HeaderName = HeaderName::from_static("x-weave-next-offset");

pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(crate) const NEWLINES: HeaderValue = HeaderValue::from_static("application/newlines");

/// The characters of a payload that are written at once. Escapes may make them six times as long.
const PAYLOAD_STEP: usize = 8 * 1024;

/// Returns an answer with its body; without a body it has no type.
pub(crate) fn whole(status: StatusCode, body: Option<(HeaderValue, Bytes)>) -> Reply {
    let mut headers = HeaderMap::new();
    let body = body.map(|(kind, bytes)| {
        headers.insert(header::CONTENT_TYPE, kind);
        bytes
    });
    Reply { status, headers, body: ReplyBody::Full(body), held: None }
}

/// Returns 200 with a JSON text.
pub(crate) fn json(text: impl Into<Bytes>) -> Reply {
    whole(StatusCode::OK, Some((JSON, text.into())))
}

pub(crate) fn failed(failure: &Failure) -> Reply {
    let number = |code| Bytes::from((code as u8).to_string());
    let mut reply = whole(failure.status, failure.code.map(|code| (JSON, number(code))));
    if let Some(seconds) = failure.retry_after_seconds {
        reply.header(header::RETRY_AFTER, &seconds.to_string());
    }
    with_times(reply, failure.modified, failure.now)
}

/// Returns 405 with the allowed methods.
pub(crate) fn method_not_allowed(methods: &[Method]) -> Reply {
    let mut reply = whole(StatusCode::METHOD_NOT_ALLOWED, None);
    let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
    reply.header(header::ALLOW, &names.join(", "));
    reply
}

/// Adds the time of the last change, and the user's time.
pub(crate) fn with_times(mut reply: Reply, modified: Option<Timestamp>, now: Option<Timestamp>) -> Reply {
    if let Some(modified) = modified {
        reply.header(LAST_MODIFIED, &modified.to_string());
    }
    if let Some(now) = now {
        reply.header(TIMESTAMP, &now.to_string());
    }
    reply
}

pub(crate) fn with_records(mut reply: Reply, count: usize) -> Reply {
    reply.header(RECORDS, &count.to_string());
    reply
}

pub(crate) fn with_next_offset(mut reply: Reply, offset: Option<impl std::fmt::Display>) -> Reply {
    if let Some(offset) = offset {
        reply.header(NEXT_OFFSET, &offset.to_string());
    }
    reply
}

/// Writes a record's members before its payload.
fn head(record: &Record, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"id\":");
    json::write_string(record.id.as_str(), out);
    out.extend_from_slice(b",\"modified\":");
    out.extend_from_slice(record.modified.to_string().as_bytes());
    out.extend_from_slice(b",\"payload\":");
}

/// Writes the members behind the payload.
fn tail(record: &Record, out: &mut Vec<u8>) {
    if let Some(sortindex) = record.sortindex {
        out.extend_from_slice(b",\"sortindex\":");
        out.extend_from_slice(sortindex.to_string().as_bytes());
    }
    out.push(b'}');
}

fn payload_of(record: &Record) -> Result<&str> {
    std::str::from_utf8(&record.payload).map_err(|_| Failure::internal("a payload is no UTF-8"))
}

/// Returns whether a record's text is written at once.
pub(crate) fn is_small(bytes: usize) -> bool {
    bytes <= CHUNK_BYTES
}

pub(crate) fn write_record(record: &Record, out: &mut Vec<u8>) -> Result<()> {
    let payload = payload_of(record)?;
    head(record, out);
    json::write_string(payload, out);
    tail(record, out);
    Ok(())
}

/// The reason why a stream of records ended early.
#[derive(Debug)]
pub(crate) enum StreamEnd {
    /// The client closed the connection.
    Gone,
    /// The stored payload is not valid text.
    Failed(Failure),
}

impl From<ClientGone> for StreamEnd {
    fn from(_: ClientGone) -> StreamEnd {
        StreamEnd::Gone
    }
}

impl From<Failure> for StreamEnd {
    fn from(failure: Failure) -> StreamEnd {
        StreamEnd::Failed(failure)
    }
}

/// Sends a record's text in steps: escapes make a payload of control characters six times as long.
pub(crate) async fn send_record(record: &Record, sender: &mut Sender) -> std::result::Result<(), StreamEnd> {
    let mut rest = payload_of(record)?;
    head(record, &mut sender.buffer);
    sender.buffer.push(b'"');
    while !rest.is_empty() {
        let mut end = rest.len().min(PAYLOAD_STEP);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (step, behind) = rest.split_at(end);
        let mut escaped = Vec::with_capacity(step.len() + 2);
        json::write_string(step, &mut escaped);
        let inner = escaped.get(1..escaped.len().saturating_sub(1)).unwrap_or_default();
        sender.buffer.extend_from_slice(inner);
        sender.send_if_full().await?;
        rest = behind;
    }
    sender.buffer.push(b'"');
    tail(record, &mut sender.buffer);
    sender.send_if_full().await?;
    Ok(())
}
