//! Attachments in JSON documents: parses those of requests and writes those of answers.

use std::io::{BufRead, ErrorKind, Read};

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use flatbed_http::{CHUNK_BYTES, Sender};
use flatbed_layer::json::{Object, Value, name};
use flatbed_layer::{Attachment, AttachmentEdit, Document, Reader, RevId, Revpos, StagedUpload};
use flatbed_service::{Uploads, json_out};

use crate::error::{DocumentError, Result};
use crate::interrupted::Interrupted;

/// The media type of an attachment without one.
pub const DEFAULT_TYPE: &str = "application/octet-stream";

/// Encodes bytes as base64.
pub fn base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// The number of base64 digits decoded at a time; a multiple of four.
const BASE64_PIECE: usize = 64 * 1024;

/// Stored bytes that are inflated at a time: gzip members may be empty.
const INFLATED_AT_ONCE: usize = 16 * 1024;

/// A member of `_attachments`.
pub struct AttachmentMember<'v> {
    /// The attachment's name.
    pub name: String,
    /// The media type.
    pub content_type: String,
    /// The revision's generation that added it, if given.
    pub revpos: Option<Revpos>,
    /// The expected digest, `md5-...`, if given.
    pub digest: Option<String>,
    /// The expected length in bytes, if given; of the compressed bytes if they are compressed.
    pub length: Option<u64>,
    /// True if the data is compressed with gzip.
    pub is_gzip: bool,
    /// The source of its data.
    pub source: Source<'v>,
}

/// The source of an attachment's data.
pub enum Source<'v> {
    /// The existing attachment of the parent revision.
    Stub,
    /// Base64 in the document.
    Inline(std::borrow::Cow<'v, str>),
    /// A part of a multipart body.
    Follows,
}

/// Checks the name of an attachment in a path, where it is never empty.
///
/// # Errors
/// [`DocumentError::Malformed`].
pub fn check_name(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(DocumentError::malformed("Attachment name can't be empty"));
    }
    check_member(name)
}

/// Checks the name of an attachment in a document. As in CouchDB, it may be empty and must not begin with an
/// underscore.
fn check_member(name: &str) -> Result<()> {
    if name.starts_with('_') {
        let reason = format!("Attachment name '{name}' starts with prohibited character '_'");
        return Err(DocumentError::malformed(reason));
    }
    Ok(())
}

/// Parses `_attachments`.
///
/// # Errors
/// [`DocumentError`].
pub fn parse_attachments(attachments: Option<Value<'_>>) -> Result<Vec<AttachmentMember<'_>>> {
    let Some(Value::Object(members)) = attachments else { return Ok(Vec::new()) };
    // Checks the sizes before parsing, because a document may list a million attachments.
    let kind = |value: &Value<'_>| value.get("content_type").and_then(Value::as_str).map_or(0, str::len);
    flatbed_layer::check_list(members.iter().map(|(name, value)| (name.len(), kind(value))))?;
    let mut list: Vec<AttachmentMember<'_>> = Vec::with_capacity(members.len());
    for (name, value) in members {
        check_member(&name)?;
        let invalid = || DocumentError::malformed(format!("Invalid attachment data for {name}"));
        let text = |member: &str| value.get(member).and_then(Value::as_str).map(str::to_owned);
        let number = |member: &str| match value.get(member) {
            Some(Value::Number(number)) => number.parse().ok(),
            _ => None,
        };
        let is_set = |member: &str| matches!(value.get(member), Some(Value::Bool(true)));
        let is_gzip = value.get("encoding").and_then(Value::as_str) == Some("gzip");
        let content_type = text("content_type").unwrap_or_else(|| DEFAULT_TYPE.to_owned());
        let (revpos, digest) = (value.get("revpos").map(revpos), text("digest"));
        let length = if is_gzip { number("encoded_length") } else { number("length") };
        let source = if is_set("stub") {
            Source::Stub
        } else if is_set("follows") {
            Source::Follows
        } else {
            match take(value, "data") {
                Some(Value::String(data)) => Source::Inline(data),
                _ => return Err(invalid()),
            }
        };
        let name = name.into_owned();
        // The last of repeated members counts, as everywhere in JSON.
        list.retain(|other| other.name != name);
        list.push(AttachmentMember { name, content_type, revpos, digest, length, is_gzip, source });
    }
    Ok(list)
}

/// The largest floating point number up to which all integers are exact.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Parses a `revpos`. As in CouchDB, 1.0 equals 1, and null is invalid rather than absent.
fn revpos(value: &Value<'_>) -> Revpos {
    let Value::Number(text) = value else { return Revpos::Impossible };
    if let Ok(generation) = text.parse() {
        return Revpos::Generation(generation);
    }
    match text.parse::<f64>() {
        Ok(number) if (0.0..=EXACT_MAX).contains(&number) && number.fract() == 0.0 => Revpos::Generation(number as u64),
        _ => Revpos::Impossible,
    }
}

fn take<'v>(value: Value<'v>, name: &str) -> Option<Value<'v>> {
    match value {
        Value::Object(members) => members.into_iter().find(|(found, _)| found == name).map(|(_, value)| value),
        _ => None,
    }
}

/// Uploads inline data and returns the edits of attachments. `followed` returns the data that the caller has uploaded.
///
/// # Errors
/// [`DocumentError`].
pub async fn attachment_edits(
    uploads: &mut Uploads,
    written: Vec<AttachmentMember<'_>>,
    mut followed: impl FnMut(&str) -> Option<StagedUpload>,
) -> Result<Vec<(String, AttachmentEdit)>> {
    let mut edits = Vec::with_capacity(written.len());
    for AttachmentMember { name, content_type, revpos, digest, length, is_gzip, source } in written {
        let edit = match source {
            Source::Stub => AttachmentEdit::Stub { revpos },
            Source::Inline(text) => {
                // CouchDB sends uncompressed data beside `encoding` and `encoded_length`, and clients send it back. The
                // length tells whether the data is compressed.
                let is_gzip = is_gzip && length.is_none_or(|length| length == decoded_length(&text));
                let data = Box::pin(inline(uploads, &name, &content_type, is_gzip, &text)).await?;
                AttachmentEdit::Data { content_type, revpos: revpos.and_then(Revpos::generation), data }
            }
            Source::Follows => {
                let missing = || DocumentError::malformed(format!("The data of attachment {name} does not follow"));
                let data = followed(&name).ok_or_else(missing)?;
                check(&name, &data, digest.as_deref(), length)?;
                AttachmentEdit::Data { content_type, revpos: revpos.and_then(Revpos::generation), data }
            }
        };
        edits.push((name, edit));
    }
    Ok(edits)
}

/// Returns the number of bytes that base64 decodes to.
fn decoded_length(base64: &str) -> u64 {
    let digits = base64.bytes().filter(|byte| !byte.is_ascii_whitespace() && *byte != b'=').count();
    digits as u64 * 3 / 4
}

async fn inline(uploads: &mut Uploads, name: &str, kind: &str, is_gzip: bool, text: &str) -> Result<StagedUpload> {
    let invalid = || DocumentError::malformed(format!("Invalid attachment data for {name}"));
    // Some clients break base64 into lines.
    let clean: String;
    let text = if text.bytes().any(|byte| byte.is_ascii_whitespace()) {
        clean = text.split_ascii_whitespace().collect();
        &clean
    } else {
        text
    };
    let mut upload = uploads.begin(kind, is_gzip).await?;
    for piece in text.as_bytes().chunks(BASE64_PIECE) {
        upload.write(&BASE64.decode(piece).map_err(|_| invalid())?).await?;
    }
    Ok(uploads.finish(upload).await?)
}

fn check(name: &str, data: &StagedUpload, digest: Option<&str>, length: Option<u64>) -> Result<()> {
    if let Some(expected) = digest.and_then(|digest| digest.strip_prefix("md5-")) {
        let digests = [BASE64.encode(data.md5), BASE64.encode(data.sent_md5)];
        if !digests.iter().any(|digest| digest == expected) {
            return Err(DocumentError::WrongDigest);
        }
    }
    if let Some(expected) = length.filter(|length| ![data.length, data.sent_length()].contains(length)) {
        let reason = format!("Attachment {name} is {} bytes long, not {expected}", data.sent_length());
        return Err(DocumentError::malformed(reason));
    }
    Ok(())
}

/// The largest number of revisions in one `atts_since`.
pub const ATTS_SINCE_MAX: usize = 1_000;

/// Options for attachments in documents.
#[derive(Debug, Default)]
pub struct AttachmentOptions {
    /// True to include data.
    pub data: bool,
    /// Includes data only of attachments newer than these revisions.
    pub since: Option<HashSet<RevId>>,
    /// True to include the encoding and encoded length.
    pub encoding: bool,
}

impl AttachmentOptions {
    /// Returns the newest generation whose attachments the client has, according to `since` and the document's
    /// ancestors.
    pub fn known_to(&self, document: &Document) -> u64 {
        if document.attachments.is_empty() {
            return 0;
        }
        let (Some(since), Some(line)) = (&self.since, &document.revisions) else { return 0 };
        line.iter().find(|rev| since.contains(rev)).map_or(0, RevId::generation)
    }

    /// Returns whether an attachment's data is included.
    pub fn shows(&self, attachment: &Attachment, known_to: u64) -> bool {
        self.data && is_new(attachment, known_to)
    }
}

/// Returns whether a client with the attachments up to generation `known_to` may lack this one. CouchDB stores `revpos`
/// 0 for attachments that came without one, so 0 is always new.
pub(crate) fn is_new(attachment: &Attachment, known_to: u64) -> bool {
    attachment.revpos == 0 || attachment.revpos > known_to
}

/// A part of a document's JSON text.
pub enum Part {
    /// Literal bytes.
    Text(Vec<u8>),
    /// The document's body, to avoid a copy.
    Body,
    /// The data of the attachment at this index, as base64.
    Data(usize),
    /// The data of the attachment at this index, as stored.
    Stored(usize),
}

/// Writes a document up to its attachments, without the closing brace. Moves `out` to `parts` and leaves the rest in
/// `out`. `with_revisions`: include `_revisions`, which may have been read for another purpose.
pub(crate) fn open(document: &Document, with_revisions: bool, parts: &mut Vec<Part>, out: &mut Vec<u8>) {
    json_out::begin_document(document, out);
    parts.push(Part::Text(std::mem::take(out)));
    parts.push(Part::Body);
    json_out::go_on_with_document(document, with_revisions, out);
}

/// Returns a document's text with its attachments, whose data is read while it is sent.
pub fn parts(document: &Document, show: &AttachmentOptions, with_revisions: bool) -> Vec<Part> {
    let known_to = show.known_to(document);
    let (mut out, mut parts) = (Vec::new(), Vec::new());
    open(document, with_revisions, &mut parts, &mut out);
    let mut text = Object::reopen(&mut out);
    if !document.attachments.is_empty() {
        let mut attachments = text.object(name!("_attachments"));
        for (at, attachment) in document.attachments.iter().enumerate() {
            if show.shows(attachment, known_to) {
                let mut object = json_out::attachment_head(attachment, &mut attachments);
                let text = object.place(name!("data"));
                text.push(b'"');
                parts.push(Part::Text(std::mem::take(text)));
                parts.push(Part::Data(at));
                text.push(b'"');
                if show.encoding {
                    json_out::encoding(attachment, &mut object);
                }
            } else {
                json_out::attachment(attachment, "stub", show.encoding, &mut attachments);
            }
        }
    }
    text.end();
    parts.push(Part::Text(out));
    parts
}

/// Returns the length of the text in bytes.
pub fn length(document: &Document, parts: &[Part]) -> u64 {
    let attachment = |at: &usize| document.attachments.get(*at);
    let of = |part: &Part| match part {
        Part::Text(text) => text.len() as u64,
        Part::Body => document.body.len() as u64,
        Part::Data(at) => attachment(at).map_or(0, |attachment| attachment.length.div_ceil(3) * 4),
        Part::Stored(at) => attachment(at).map_or(0, |attachment| attachment.stored_length),
    };
    parts.iter().map(of).sum()
}

/// Sends a document's text. Memory use does not depend on the size of the document's attachments.
pub async fn send(
    database: &Reader,
    document: &Document,
    parts: Vec<Part>,
    sender: &mut Sender,
) -> std::result::Result<(), Interrupted> {
    for part in parts {
        match part {
            Part::Text(text) => sender.buffer.extend_from_slice(&text),
            Part::Body => sender.write(&document.body).await?,
            Part::Data(at) => {
                if let Some(attachment) = document.attachments.get(at) {
                    data(database, document, attachment, sender).await?;
                }
            }
            Part::Stored(at) => {
                if let Some(attachment) = document.attachments.get(at) {
                    stored(database, document, attachment, sender).await?;
                }
            }
        }
        sender.send_if_full().await?;
    }
    Ok(())
}

/// Sends a row's document, or `null` without one.
pub async fn send_or_null(
    database: &Reader,
    document: Option<&Document>,
    show: &AttachmentOptions,
    sender: &mut Sender,
) -> std::result::Result<(), Interrupted> {
    match document {
        // Fast path without a list of parts.
        Some(document) if document.attachments.is_empty() && document.body.len() <= CHUNK_BYTES => {
            json_out::document(document, &mut sender.buffer);
        }
        // Boxed, because it is rare and would enlarge the state of every feed.
        Some(document) => Box::pin(send(database, document, parts(document, show, true), sender)).await?,
        None => sender.buffer.extend_from_slice(b"null"),
    }
    Ok(())
}

/// Sends an attachment's stored bytes.
async fn stored(
    database: &Reader,
    document: &Document,
    attachment: &Attachment,
    sender: &mut Sender,
) -> std::result::Result<(), Interrupted> {
    let mut reader = database.attachment(&document.id, Some(&document.rev), &attachment.name).await?;
    while let Some(stored) = reader.next().await? {
        sender.write(&stored).await?;
    }
    Ok(())
}

/// Sends an attachment's decompressed bytes as base64.
async fn data(
    database: &Reader,
    document: &Document,
    attachment: &Attachment,
    sender: &mut Sender,
) -> std::result::Result<(), Interrupted> {
    let mut reader = database.attachment(&document.id, Some(&document.rev), &attachment.name).await?;
    let mut plain = PlainReader::new(attachment.gzip);
    let mut rest: Vec<u8> = Vec::new();
    loop {
        let stored = reader.next().await?;
        let is_complete = stored.is_none();
        plain.add(stored);
        while plain.write_next(&mut rest).await? {
            let whole = rest.len() / 3 * 3;
            base64_of(rest.get(..whole).unwrap_or_default(), sender).await?;
            rest.drain(..whole);
        }
        if is_complete {
            return base64_of(&rest, sender).await;
        }
    }
}

async fn base64_of(bytes: &[u8], sender: &mut Sender) -> std::result::Result<(), Interrupted> {
    for piece in bytes.chunks(BASE64_PIECE / 4 * 3) {
        sender.buffer.extend_from_slice(BASE64.encode(piece).as_bytes());
        sender.send_if_full().await?;
    }
    Ok(())
}

/// Decompresses stored bytes in pieces of at most [`CHUNK_BYTES`], so that a small stored piece cannot expand in
/// memory.
pub(crate) enum PlainReader {
    /// Not compressed.
    Identity(StoredBytes),
    /// Compressed with gzip.
    Gzip(Box<flate2::bufread::MultiGzDecoder<StoredBytes>>),
}

/// Bytes read from the storage and not yet consumed. A read returns `WouldBlock` at their end, until the data is
/// complete, and after `allowed` bytes.
#[derive(Default)]
pub(crate) struct StoredBytes {
    bytes: Vec<u8>,
    taken: usize,
    allowed: usize,
    is_complete: bool,
}

impl StoredBytes {
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.taken..).unwrap_or_default()
    }
}

impl Read for StoredBytes {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let mut rest = self.fill_buf()?;
        let count = rest.read(into)?;
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for StoredBytes {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        let rest = self.rest();
        if rest.is_empty() && self.is_complete {
            return Ok(rest);
        }
        match rest.get(..rest.len().min(self.allowed)) {
            Some(allowed) if !allowed.is_empty() => Ok(allowed),
            _ => Err(ErrorKind::WouldBlock.into()),
        }
    }

    fn consume(&mut self, count: usize) {
        self.taken += count;
        self.allowed = self.allowed.saturating_sub(count);
    }
}

impl PlainReader {
    /// Creates a decoder without input.
    pub(crate) fn new(is_gzip: bool) -> PlainReader {
        match is_gzip {
            true => PlainReader::Gzip(Box::new(flate2::bufread::MultiGzDecoder::new(StoredBytes::default()))),
            false => PlainReader::Identity(StoredBytes::default()),
        }
    }

    /// Adds stored bytes after [`PlainReader::write_to`] has returned false; `None` marks the end.
    pub(crate) fn add(&mut self, bytes: Option<Vec<u8>>) {
        let is_complete = bytes.is_none();
        *self.stored() = StoredBytes { bytes: bytes.unwrap_or_default(), taken: 0, allowed: 0, is_complete };
    }

    fn stored(&mut self) -> &mut StoredBytes {
        match self {
            PlainReader::Identity(stored) => stored,
            PlainReader::Gzip(decoder) => decoder.get_mut(),
        }
    }

    /// Appends as [`PlainReader::write_to`] does, and yields if it inflates.
    pub(crate) async fn write_next(&mut self, out: &mut Vec<u8>) -> std::result::Result<bool, Interrupted> {
        let is_more = self.write_to(out)?;
        if is_more && matches!(self, PlainReader::Gzip(_)) {
            tokio::task::yield_now().await;
        }
        Ok(is_more)
    }

    /// Appends up to one piece to `out`, which may be empty. Returns false when it has consumed all added bytes.
    pub(crate) fn write_to(&mut self, out: &mut Vec<u8>) -> std::result::Result<bool, Interrupted> {
        let has = out.len();
        out.resize(has + CHUNK_BYTES, 0);
        let free = out.get_mut(has..).unwrap_or_default();
        self.stored().allowed = if matches!(self, PlainReader::Gzip(_)) { INFLATED_AT_ONCE } else { CHUNK_BYTES };
        let read = match self {
            PlainReader::Identity(stored) => stored.read(free),
            PlainReader::Gzip(decoder) => decoder.read(free),
        };
        out.truncate(has + read.as_ref().map_or(0, |count| *count));
        match read {
            Ok(count) => Ok(count > 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(!self.stored().rest().is_empty()),
            Err(_) => Err(damaged()),
        }
    }
}

fn damaged() -> Interrupted {
    tracing::error!("an attachment's stored gzip cannot be read");
    Interrupted
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_a_revpos_says() {
        let said = |text: &str| revpos(&flatbed_layer::json::parse(text.as_bytes(), &Default::default()).unwrap());
        for (text, generation) in [("0", 0), ("-0", 0), ("1", 1), ("1.0", 1), ("10e-1", 1), ("3e2", 300)] {
            assert_eq!(said(text), Revpos::Generation(generation), "{text}");
        }
        assert_eq!(said("18446744073709551615"), Revpos::Generation(u64::MAX));
        for text in ["-1", "1.5", "99999999999999999999", "\"1\"", "null", "true", "{}", "[1]"] {
            assert_eq!(said(text), Revpos::Impossible, "{text}");
        }
        for (members, revpos) in [("", None), (r#","revpos":null"#, Some(Revpos::Impossible))] {
            let text = format!(r#"{{"x":{{"stub":true{members}}}}}"#);
            let list = flatbed_layer::json::parse(text.as_bytes(), &Default::default()).unwrap();
            assert_eq!(parse_attachments(Some(list)).unwrap()[0].revpos, revpos, "{text}");
        }
    }

    #[test]
    fn what_is_inflated_at_once_is_bounded() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(&vec![0; 20_000_000]).unwrap();
        let stored = encoder.finish().unwrap();
        // For each chunk size, with two gzip members.
        for cut in [1_000, 97, 1, stored.len()] {
            let twice = [stored.as_slice(), &stored].concat();
            let mut plain = PlainReader::new(true);
            let (mut total, mut out) = (0, Vec::new());
            let pieces = twice.chunks(cut).map(|piece| Some(piece.to_vec()));
            for piece in pieces.chain([None]) {
                plain.add(piece);
                while plain.write_to(&mut out).is_ok_and(|is_more| is_more) {
                    assert!(out.len() <= CHUNK_BYTES);
                    total += out.len();
                    out.clear();
                }
            }
            assert_eq!(total, 40_000_000, "{cut}");
        }
        // Truncated data is an error.
        let mut plain = PlainReader::new(true);
        plain.add(Some(stored[..stored.len() - 1].to_vec()));
        let mut out = Vec::new();
        while plain.write_to(&mut out).is_ok_and(|is_more| is_more) {
            out.clear();
        }
        plain.add(None);
        assert!(plain.write_to(&mut out).is_err());
    }

    #[tokio::test]
    async fn empty_members_are_inflated_in_steps() {
        let empty = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best()).finish().unwrap();
        let mut plain = PlainReader::new(true);
        plain.add(Some(empty.repeat(10_000)));
        let (mut steps, mut out) = (0, Vec::new());
        while plain.write_next(&mut out).await.is_ok_and(|is_more| is_more) {
            steps += 1;
        }
        assert_eq!((steps, out.len()), (empty.len() * 10_000 / INFLATED_AT_ONCE, 0));
        plain.add(None);
        assert!(plain.write_to(&mut out).is_ok_and(|is_more| !is_more));
    }
}
