//! Attachments in documents: as they come in JSON, and as documents go out with them.

use std::io::{BufRead, ErrorKind, Read};

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use flatbed_http::{CHUNK_BYTES, Sender};
use flatbed_layer::json::{Object, Value, name};
use flatbed_layer::{Attachment, AttachmentEdit, Document, Reader, RevId, Revpos, Uploaded};
use flatbed_service::{Uploads, json_out};

use crate::error::{DocumentError, Result};
use crate::interrupted::Interrupted;

/// What an attachment is where nobody says.
pub const DEFAULT_TYPE: &str = "application/octet-stream";

/// Bytes as base64.
pub fn base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// What is decoded of base64 at a time; a multiple of four.
const BASE64_PIECE: usize = 64 * 1024;

/// An attachment as a document in JSON has it.
pub struct Written<'v> {
    /// Its name.
    pub name: String,
    /// Its media type.
    pub content_type: String,
    /// The generation with which it came, if the client says so.
    pub revpos: Option<Revpos>,
    /// `md5-...`, if the client says what it must be.
    pub digest: Option<String>,
    /// Its length, if the client says so: of the bytes as they come, or as they are compressed.
    pub length: Option<u64>,
    /// The bytes come compressed.
    pub is_gzip: bool,
    /// Where its data is.
    pub source: Source<'v>,
}

/// Where the data of an attachment is.
pub enum Source<'v> {
    /// With the revision that is edited.
    Stub,
    /// Base64.
    Inline(std::borrow::Cow<'v, str>),
    /// In a part of its own.
    Follows,
}

/// Checks the name of an attachment that is written at its own path, where it is never empty.
///
/// # Errors
/// [`DocumentError::Malformed`].
pub fn check_name(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(DocumentError::malformed("Attachment name can't be empty"));
    }
    check_member(name)
}

/// Checks the name of an attachment in a document. It may be empty, as in CouchDB; CouchDB reserves names that begin with
/// an underscore.
fn check_member(name: &str) -> Result<()> {
    if name.starts_with('_') {
        let reason = format!("Attachment name '{name}' starts with prohibited character '_'");
        return Err(DocumentError::malformed(reason));
    }
    Ok(())
}

/// Takes `_attachments` apart.
///
/// # Errors
/// [`DocumentError`].
pub fn written(attachments: Option<Value<'_>>) -> Result<Vec<Written<'_>>> {
    let Some(Value::Object(members)) = attachments else { return Ok(Vec::new()) };
    // Before anything is done for each of what may be a million.
    let kind = |value: &Value<'_>| value.get("content_type").and_then(Value::as_str).map_or(0, str::len);
    flatbed_layer::check_list(members.iter().map(|(name, value)| (name.len(), kind(value))))?;
    let mut list: Vec<Written<'_>> = Vec::with_capacity(members.len());
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
        // Of two members of one name the last counts, as everywhere in JSON here.
        list.retain(|other| other.name != name);
        list.push(Written { name, content_type, revpos, digest, length, is_gzip, source });
    }
    Ok(list)
}

/// Up to here a floating point number tells each integer from the next.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Reads a `revpos`. As in CouchDB 1.0 is 1, and only an absent one says nothing: null does not.
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

/// Takes a member out of an object.
fn take<'v>(value: Value<'v>, name: &str) -> Option<Value<'v>> {
    match value {
        Value::Object(members) => members.into_iter().find(|(found, _)| found == name).map(|(_, value)| value),
        _ => None,
    }
}

/// Uploads what is inline, and makes the edit's list. What follows was uploaded by the caller.
///
/// # Errors
/// [`DocumentError`].
pub async fn attachment_edits(
    uploads: &mut Uploads,
    written: Vec<Written<'_>>,
    mut followed: impl FnMut(&str) -> Option<Uploaded>,
) -> Result<Vec<(String, AttachmentEdit)>> {
    let mut edits = Vec::with_capacity(written.len());
    for Written { name, content_type, revpos, digest, length, is_gzip, source } in written {
        let edit = match source {
            Source::Stub => AttachmentEdit::Stub { revpos },
            Source::Inline(text) => {
                // As documents go out: data without an encoding, and how long it is with it. It comes back as it went.
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

/// How many bytes base64 stands for.
fn decoded_length(base64: &str) -> u64 {
    let digits = base64.bytes().filter(|byte| !byte.is_ascii_whitespace() && *byte != b'=').count();
    digits as u64 * 3 / 4
}

async fn inline(uploads: &mut Uploads, name: &str, kind: &str, is_gzip: bool, text: &str) -> Result<Uploaded> {
    let invalid = || DocumentError::malformed(format!("Invalid attachment data for {name}"));
    // Some write base64 in lines.
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

/// Whether data is what the client said.
fn check(name: &str, data: &Uploaded, digest: Option<&str>, length: Option<u64>) -> Result<()> {
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

/// Revisions that one `atts_since` may name, as one `open_revs` may.
pub const ATTS_SINCE_MAX: usize = 1_000;

/// How attachments are shown in documents.
#[derive(Debug, Default)]
pub struct Show {
    /// With their data.
    pub data: bool,
    /// Only of those that came after these revisions.
    pub since: Option<HashSet<RevId>>,
    /// With their compression.
    pub encoding: bool,
}

impl Show {
    /// The generation that the client has the attachments up to, as the document's revisions tell.
    pub fn known_to(&self, document: &Document) -> u64 {
        if document.attachments.is_empty() {
            return 0;
        }
        let (Some(since), Some(line)) = (&self.since, &document.revisions) else { return 0 };
        line.iter().find(|rev| since.contains(rev)).map_or(0, RevId::generation)
    }

    /// Whether the data of an attachment is shown.
    pub fn shows(&self, attachment: &Attachment, known_to: u64) -> bool {
        self.data && is_new(attachment, known_to)
    }
}

/// Whether a client that has the attachments up to generation `known_to` may lack this one. A `revpos` of 0 names no
/// generation: CouchDB stores it for attachments that came without one.
pub(crate) fn is_new(attachment: &Attachment, known_to: u64) -> bool {
    attachment.revpos == 0 || attachment.revpos > known_to
}

/// A part of a document's text.
pub enum Part {
    /// As it stands.
    Text(Vec<u8>),
    /// The document's body, which is not copied.
    Body,
    /// The data of the attachment at this place, as base64.
    Data(usize),
    /// The data of the attachment at this place, as it is stored.
    Stored(usize),
}

/// A document up to its attachments, left open, behind what is in `out`; what comes next is to be written behind what is
/// left there. Its revisions may have been read for another reason than to be shown.
pub(crate) fn open(document: &Document, with_revisions: bool, parts: &mut Vec<Part>, out: &mut Vec<u8>) {
    json_out::begin_document(document, out);
    parts.push(Part::Text(std::mem::take(out)));
    parts.push(Part::Body);
    json_out::go_on_with_document(document, with_revisions, out);
}

/// A document's text with its attachments, whose data is read when it is sent.
pub fn parts(document: &Document, show: &Show, with_revisions: bool) -> Vec<Part> {
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

/// How long the text is.
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

/// Sends a document's text; what it takes in memory beside the document does not depend on its size, nor on that of its
/// attachments.
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

/// Sends a row's document; `null` where there is none.
pub async fn send_or_null(
    database: &Reader,
    document: Option<&Document>,
    show: &Show,
    sender: &mut Sender,
) -> std::result::Result<(), Interrupted> {
    match document {
        // The common case goes without a list of parts.
        Some(document) if document.attachments.is_empty() && document.body.len() <= CHUNK_BYTES => {
            json_out::document(document, &mut sender.buffer);
        }
        // Boxed: it is rare, and its state would stand in that of every feed.
        Some(document) => Box::pin(send(database, document, parts(document, show, true), sender)).await?,
        None => sender.buffer.extend_from_slice(b"null"),
    }
    Ok(())
}

/// An attachment's bytes as they are stored.
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

/// An attachment's bytes, without an encoding, as base64.
async fn data(
    database: &Reader,
    document: &Document,
    attachment: &Attachment,
    sender: &mut Sender,
) -> std::result::Result<(), Interrupted> {
    let mut reader = database.attachment(&document.id, Some(&document.rev), &attachment.name).await?;
    let mut plain = Plain::new(attachment.gzip);
    let mut rest: Vec<u8> = Vec::new();
    loop {
        let stored = reader.next().await?;
        let is_complete = stored.is_none();
        plain.add(stored);
        while plain.write_to(&mut rest)? {
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

/// Stored bytes without their encoding, in pieces of [`CHUNK_BYTES`] at most, however much is to come of what is stored.
pub(crate) enum Plain {
    /// They have none.
    Identity(Stored),
    /// They are compressed.
    Gzip(Box<flate2::bufread::MultiGzDecoder<Stored>>),
}

/// What was read of the storage and is still to be taken. At its end it would block, until the data is complete.
#[derive(Default)]
pub(crate) struct Stored {
    bytes: Vec<u8>,
    taken: usize,
    is_complete: bool,
}

impl Read for Stored {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let mut rest = self.fill_buf()?;
        let count = rest.read(into)?;
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Stored {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        match self.bytes.get(self.taken..) {
            Some(rest) if !rest.is_empty() || self.is_complete => Ok(rest),
            _ => Err(ErrorKind::WouldBlock.into()),
        }
    }

    fn consume(&mut self, count: usize) {
        self.taken += count;
    }
}

impl Plain {
    /// Nothing of them has come.
    pub(crate) fn new(is_gzip: bool) -> Plain {
        match is_gzip {
            true => Plain::Gzip(Box::new(flate2::bufread::MultiGzDecoder::new(Stored::default()))),
            false => Plain::Identity(Stored::default()),
        }
    }

    /// Takes more stored bytes, when nothing comes of what there was; `None`: there are no more.
    pub(crate) fn add(&mut self, bytes: Option<Vec<u8>>) {
        let stored = match self {
            Plain::Identity(stored) => stored,
            Plain::Gzip(decoder) => decoder.get_mut(),
        };
        let is_complete = bytes.is_none();
        *stored = Stored { bytes: bytes.unwrap_or_default(), taken: 0, is_complete };
    }

    /// Writes more behind what is in `out`, up to a piece; false when all is written that comes of what was added.
    pub(crate) fn write_to(&mut self, out: &mut Vec<u8>) -> std::result::Result<bool, Interrupted> {
        let has = out.len();
        out.resize(has + CHUNK_BYTES, 0);
        let free = out.get_mut(has..).unwrap_or_default();
        let read = match self {
            Plain::Identity(stored) => stored.read(free),
            Plain::Gzip(decoder) => decoder.read(free),
        };
        out.truncate(has + read.as_ref().map_or(0, |count| *count));
        match read {
            Ok(count) => Ok(count > 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
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
            assert_eq!(written(Some(list)).unwrap()[0].revpos, revpos, "{text}");
        }
    }

    #[test]
    fn what_is_inflated_at_once_is_bounded() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(&vec![0; 20_000_000]).unwrap();
        let stored = encoder.finish().unwrap();
        // However it is cut, and with a member behind another.
        for cut in [1_000, 97, 1, stored.len()] {
            let twice = [stored.as_slice(), &stored].concat();
            let mut plain = Plain::new(true);
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
        // What ends too early is no attachment.
        let mut plain = Plain::new(true);
        plain.add(Some(stored[..stored.len() - 1].to_vec()));
        let mut out = Vec::new();
        while plain.write_to(&mut out).is_ok_and(|is_more| is_more) {
            out.clear();
        }
        plain.add(None);
        assert!(plain.write_to(&mut out).is_err());
    }
}
