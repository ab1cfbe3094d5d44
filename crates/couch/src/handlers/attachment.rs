//! `/{db}/{doc}/{attachment}`

use flatbed_http::{CHUNK_BYTES, Pages, Reply, Sender, shrink, spawn};
use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{AttachmentEdit, AttachmentReader, Edit, Error as LayerError, GetOptions, Reader, Refusal, RevId};
use flatbed_service::{Read, Uploads, Write, Writer};
use hyper::{Method, StatusCode, header};

use crate::attached::{DEFAULT_TYPE, Plain, check_name, wrong_digest};
use crate::error::{Failure, Result, parse_rev};
use crate::handlers::document::named_rev;
use crate::json_out;
use crate::query::encode;
use crate::reply::Interrupted;
use crate::request::Request;
use crate::uploading::Uploading;

/// `name` may have slashes.
pub(crate) async fn attachment(request: Request, db: &str, id: &str, name: &str) -> Result<Reply> {
    match request.method.as_str() {
        "GET" | "HEAD" => get(request.context.database(db, Read).await?, request, id, name).await,
        "PUT" => put(request.context.database(db, Write).await?, request, db, id, name).await,
        "DELETE" => delete(request.context.database(db, Write).await?, request, id, name).await,
        _ => {
            let mut request = request;
            request.skip_body().await;
            Err(Failure::method("GET,HEAD,PUT,DELETE"))
        }
    }
}

/// Whether an `Accept-Encoding` has gzip, and not to say that it is unwanted.
fn accepts_gzip(accepted: &str) -> bool {
    accepted.split(',').any(|entry| {
        let (coding, quality) = entry.split_once(';').unwrap_or((entry, ""));
        let is_zero = quality.trim().strip_prefix("q=").is_some_and(|quality| quality.trim().parse() == Ok(0.0));
        coding.trim().eq_ignore_ascii_case("gzip") && !is_zero
    })
}

/// The range of an attachment's bytes that is asked for, the last one included; `None`: all of it. As in CouchDB a range
/// of all from the first byte on is no range, and one that ends before it begins cannot be satisfied.
fn range(header: Option<&str>, length: u64) -> Result<Option<(u64, u64)>> {
    let Some(spec) = header.and_then(|header| header.trim().strip_prefix("bytes=")) else { return Ok(None) };
    // Several ranges are answered with all of it.
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
        let reason = "Requested range not satisfiable";
        return Err(Failure::new(StatusCode::RANGE_NOT_SATISFIABLE, "requested_range_not_satisfiable", reason));
    }
    Ok(Some((first, last)))
}

async fn get(database: Reader, request: Request, id: &str, name: &str) -> Result<Reply> {
    let rev = request.query.get("rev").map(parse_rev).transpose()?;
    let reader = database.attachment(id, rev.as_ref(), name).await?;
    let attachment = reader.attachment().clone();
    let etag = format!("\"{}\"", json_out::digest(&attachment).trim_start_matches("md5-"));
    if request.accepts_cached(&etag) {
        return Ok(Reply::not_modified(&etag));
    }
    let sends_gzip = attachment.gzip && request.header(header::ACCEPT_ENCODING).is_some_and(accepts_gzip);
    let wanted = range(request.header(header::RANGE), attachment.length)?.filter(|_| !attachment.gzip);
    let (mut reply, sender) = Reply::stream();
    reply.header(header::CONTENT_TYPE, &attachment.content_type);
    reply.header(header::ETAG, &etag);
    reply.header(header::ACCEPT_RANGES, if attachment.gzip { "none" } else { "bytes" });
    // Whoever may write an attachment must not have its scripts run as this server's own, with its readers' credentials.
    reply.header(header::CONTENT_SECURITY_POLICY, "sandbox");
    reply.header(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
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
    if request.method == Method::HEAD {
        return Ok(reply);
    }
    let plain = Plain::new(attachment.gzip && !sends_gzip);
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
    mut plain: Plain,
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
        while plain.write_to(&mut out)? {
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

/// The revision that an attachment is put to or taken from, and what else it has.
struct Base {
    parent: Option<RevId>,
    body: Vec<u8>,
    /// Names of all attachments.
    names: Vec<String>,
}

async fn base(database: &Reader, id: &str, rev: Option<RevId>) -> Result<Base> {
    let options = GetOptions { rev: rev.clone(), tombstone: true, ..GetOptions::default() };
    match (database.get(id, &options).await, rev) {
        (Ok(document), Some(rev)) => Ok(Base {
            parent: Some(rev),
            body: [b"{", document.body.as_slice(), b"}"].concat(),
            names: document.attachments.into_iter().map(|attachment| attachment.name).collect(),
        }),
        (Ok(document), None) if !document.deleted => Err(Refusal::Conflict.into()),
        (Ok(_), None) | (Err(LayerError::Refused(Refusal::DocumentNotFound(_))), None) => {
            Ok(Base { parent: None, body: b"{}".to_vec(), names: Vec::new() })
        }
        (Err(LayerError::Refused(Refusal::DocumentNotFound(_))), Some(_)) => {
            Err(Failure::new(StatusCode::CONFLICT, "not_found", "missing_rev"))
        }
        (Err(error), _) => Err(error.into()),
    }
}

async fn put(database: Writer, mut request: Request, db: &str, id: &str, name: &str) -> Result<Reply> {
    let checked = async {
        flatbed_layer::check_document_id(id)?;
        check_name(name)?;
        base(&database, id, named_rev(&request)?).await
    };
    let base = match checked.await {
        Ok(base) => base,
        Err(failure) => {
            request.skip_body().await;
            return Err(failure);
        }
    };
    let content_type = request.header(header::CONTENT_TYPE).unwrap_or(DEFAULT_TYPE).to_owned();
    let is_gzip = match request.header(header::CONTENT_ENCODING).map(str::trim) {
        None | Some("" | "identity") => false,
        Some("gzip") => true,
        Some(_) => {
            request.skip_body().await;
            let reason = "Only gzip and identity content-encodings are supported";
            return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_ctype", reason));
        }
    };
    let expected_md5 = request.header(hyper::header::HeaderName::from_static("content-md5")).map(str::to_owned);
    let mut uploads = Uploads::new(&database);
    let mut uploading = Uploading::new(&content_type, is_gzip);
    while let Some(piece) = request.next_piece().await? {
        uploading.add(piece, &request.body, &uploads).await?;
    }
    let data = uploading.finish(&mut uploads).await?;
    if expected_md5.is_some_and(|expected| expected.trim() != crate::attached::base64(&data.sent_md5)) {
        return Err(wrong_digest());
    }
    let mut attachments = vec![(name.to_owned(), AttachmentEdit::Data { content_type, revpos: None, data })];
    let others = base.names.iter().filter(|other| *other != name);
    attachments.extend(others.map(|other| (other.clone(), AttachmentEdit::Stub { revpos: None })));
    uploads.stage().await?;
    let rev = write(&database, id, &base, attachments).await?;
    uploads.taken();
    let mut reply = written(StatusCode::CREATED, id, &rev);
    reply.header(header::LOCATION, &format!("{}/{}/{}/{}", request.base(), encode(db), encode(id), encode(name)));
    Ok(reply)
}

async fn delete(database: Writer, mut request: Request, id: &str, name: &str) -> Result<Reply> {
    request.skip_body().await;
    let rev = named_rev(&request)?;
    if rev.is_none() {
        let look = GetOptions { no_body: true, ..GetOptions::default() };
        database.get(id, &look).await?;
        return Err(Refusal::Conflict.into());
    }
    let base = base(&database, id, rev).await?;
    let others = base.names.iter().filter(|other| *other != name);
    let others = others.map(|other| (other.clone(), AttachmentEdit::Stub { revpos: None })).collect();
    let rev = write(&database, id, &base, others).await?;
    Ok(written(StatusCode::OK, id, &rev))
}

async fn write(database: &Writer, id: &str, base: &Base, attachments: Vec<(String, AttachmentEdit)>) -> Result<RevId> {
    let body = json::parse(&base.body, &Limits::default()).unwrap_or(Value::Object(Vec::new()));
    let parent = base.parent.clone();
    let edit = Edit { id: id.into(), parent, history: None, deleted: false, attachments, body };
    Ok(database.update(&edit).await?.rev)
}

fn written(status: StatusCode, id: &str, rev: &RevId) -> Reply {
    let mut out = Vec::new();
    json_out::written(id, rev, &mut out);
    Reply::json(status, out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is asked for, it lies within the attachment.
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
