//! Answers with an attachment's bytes.

use flatbed_http::{CHUNK_BYTES, Pages, Reply, Request, Sender, TenantReply, shrink, spawn};
use flatbed_layer::AttachmentReader;
use flatbed_service::json_out;
use hyper::{Method, StatusCode, header};

use crate::attached::PlainReader;
use crate::error::{DocumentError, Result};
use crate::interrupted::Interrupted;

/// Returns whether `Accept-Encoding` allows gzip.
fn accepts_gzip(accepted: &str) -> bool {
    accepted.split(',').any(|entry| {
        let (coding, quality) = entry.split_once(';').unwrap_or((entry, ""));
        let is_zero = quality.trim().strip_prefix("q=").is_some_and(|quality| quality.trim().parse() == Ok(0.0));
        coding.trim().eq_ignore_ascii_case("gzip") && !is_zero
    })
}

/// Parses a single byte range, end included. `None`: send everything. As in CouchDB, `0-` is no range, and a range that
/// ends before it begins is not satisfiable.
fn range(header: Option<&str>, length: u64) -> Result<Option<(u64, u64)>> {
    let Some(spec) = header.and_then(|header| header.trim().strip_prefix("bytes=")) else { return Ok(None) };
    // Several ranges are answered with the whole attachment.
    let Some((from, to)) = spec.split_once('-').filter(|_| !spec.contains(',')) else { return Ok(None) };
    let (from, to) = (from.trim(), to.trim());
    let end = length.saturating_sub(1);
    let (first, last) = match (from.parse::<u64>(), to.parse::<u64>()) {
        (Ok(from), Ok(to)) => (from, to.min(end)),
        (Ok(0), Err(_)) if to.is_empty() => return Ok(None),
        (Ok(from), Err(_)) if to.is_empty() => (from, end),
        (Err(_), Ok(count)) if from.is_empty() => (length.saturating_sub(count), end),
        _ => return Ok(None),
    };
    if first > last || first >= length {
        return Err(DocumentError::Unsatisfiable);
    }
    Ok(Some((first, last)))
}

/// Answers a `GET` or `HEAD` of an attachment with all bytes or a range, compressed as stored if the client accepts
/// that.
///
/// # Errors
/// [`DocumentError::Unsatisfiable`].
pub fn attachment(reader: AttachmentReader, request: &Request) -> Result<TenantReply> {
    let attachment = reader.attachment().clone();
    let etag = format!("\"{}\"", json_out::digest(&attachment).trim_start_matches("md5-"));
    if request.accepts_cached(&etag) {
        return Ok(TenantReply::of_body(Reply::not_modified(&etag)));
    }
    let sends_gzip = attachment.gzip && request.header(header::ACCEPT_ENCODING).is_some_and(accepts_gzip);
    let wanted = range(request.header(header::RANGE), attachment.length)?.filter(|_| !attachment.gzip);
    let (mut reply, sender) = Reply::stream();
    reply.header(header::ETAG, &etag);
    reply.header(header::ACCEPT_RANGES, if attachment.gzip { "none" } else { "bytes" });
    let mut length = attachment.length;
    if sends_gzip {
        reply.header(header::CONTENT_ENCODING, "gzip");
        length = attachment.stored_length;
    }
    if let Some((first, last)) = wanted {
        reply.status = StatusCode::PARTIAL_CONTENT;
        reply.header(header::CONTENT_RANGE, &format!("bytes {first}-{last}/{length}"));
        length = last - first + 1;
    }
    reply.header(header::CONTENT_LENGTH, &length.to_string());
    // The client that wrote the attachment chose its type, so the reply is sandboxed.
    reply.header(header::CONTENT_TYPE, &attachment.content_type);
    let reply = TenantReply::of_body(reply);
    if request.method == Method::HEAD {
        return Ok(reply);
    }
    let plain = PlainReader::new(attachment.gzip && !sends_gzip);
    let (skip, take) = wanted.map_or((0, u64::MAX), |(first, last)| (first, last - first + 1));
    spawn(async move {
        let mut sender = sender;
        if send(reader, plain, skip, take, &mut sender).await.is_ok() {
            let _ = sender.finish().await;
        }
    });
    Ok(reply)
}

async fn send(
    mut reader: AttachmentReader,
    mut plain: PlainReader,
    mut skip: u64,
    mut take: u64,
    sender: &mut Sender,
) -> std::result::Result<(), Interrupted> {
    let mut pass = |bytes: &[u8], sender: &mut Sender| {
        let passed = usize::try_from(skip).unwrap_or(usize::MAX).min(bytes.len());
        skip -= passed as u64;
        let bytes = bytes.get(passed..).unwrap_or_default();
        let bytes = bytes.get(..usize::try_from(take).unwrap_or(usize::MAX).min(bytes.len())).unwrap_or_default();
        take -= bytes.len() as u64;
        sender.buffer.extend_from_slice(bytes);
        take > 0
    };
    let pages = Pages::of_attachment();
    let mut out = Vec::new();
    loop {
        let mut room = sender.page_room(&pages).await?;
        let stored = reader.next().await?;
        let is_complete = stored.is_none();
        shrink(&mut room, CHUNK_BYTES + stored.as_ref().map_or(0, Vec::len));
        plain.add(stored);
        while plain.write_next(&mut out).await? {
            let is_more = pass(&out, sender);
            out.clear();
            sender.send_if_full().await?;
            if !is_more {
                return Ok(());
            }
        }
        if is_complete {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any range lies within the attachment.
        #[test]
        fn ranges_lie_within(
            text in prop_oneof!["bytes=[0-9]{0,21}-[0-9]{0,21}", "[bytes=0-9, -]{0,20}"],
            length in prop_oneof![0..20_u64, any::<u64>()],
        ) {
            if let Ok(Some((first, last))) = range(Some(&text), length) {
                prop_assert!(first <= last && last < length, "{first}-{last} of {length}");
            }
        }
    }
}
