//! `_bulk_get`: revisions of many documents.

use std::collections::HashSet;
use std::sync::Arc;

use flatbed_http::{ClientGone, Pages, Reply, Sender, first_room, shrink, spawn};
use flatbed_layer::json::{Object, Value, name};
use flatbed_layer::{
    Document, DocumentId, GetOptions, GetOutcome, NotFound, OpenRevs, Reader, Refusal, RevId, check_partitioned_id,
};
use flatbed_service::Read;
use hyper::{StatusCode, header};

use crate::error::{Failure, Result};
use crate::handlers::bulk::{ENTRIES_MAX, json_body, object, take, too_many};
use crate::json_out;
use crate::multipart::{accepts, new_boundary};
use crate::query::{parameters, switch};
use crate::reply::{Interrupted, page_bytes};
use crate::request::{Body, Request};
use crate::shown::attachments;
use flatbed_documents::{
    self as attached, ATTS_SINCE_MAX, AttachmentOptions, Part, check_any_id, header_text, related,
};

/// The largest batch of documents in one read; the layer returns as many as fit.
const READ_AT_ONCE: usize = 100;

/// The approximate size in bytes from which an answer is streamed.
const WHOLE_BYTES_MAX: usize = 256 * 1024;

/// Parameters that `_bulk_get` refuses.
const REFUSED: [&str; 5] = ["open_revs", "new_edits", "w", "rev", "atts_since"];

parameters! {
    /// The parameters of all entries.
    struct BulkGetParameters {
        revs: bool = switch,
        latest: bool = switch,
        attachments: AttachmentOptions = attachments,
    }
}

/// A parsed entry. It may be many times larger than its JSON, so it is built when its turn comes.
enum BulkGetEntry {
    Document {
        id: String,
        options: GetOptions,
        show: Option<Arc<AttachmentOptions>>,
    },
    /// A malformed entry: its id and revision, if present, and the error.
    Malformed {
        id: Option<String>,
        rev: Option<String>,
        reason: &'static str,
    },
    Illegal {
        id: String,
        failure: Box<Failure>,
    },
}

impl BulkGetEntry {
    fn new(doc: &Value<'_>, walk: &BulkGet) -> BulkGetEntry {
        let BulkGet { with_revisions: revs, latest, ref show, is_partitioned, .. } = *walk;
        let Some(id) = doc.get("id").and_then(Value::as_str) else {
            return BulkGetEntry::Malformed { id: None, rev: None, reason: "document must be a JSON object" };
        };
        let id = id.to_owned();
        if let Err(failure) = check_id(&id, is_partitioned) {
            return BulkGetEntry::Illegal { id, failure: Box::new(failure) };
        }
        let since = match doc.get("atts_since") {
            None => Some(HashSet::new()),
            Some(Value::Array(revs)) if revs.len() > ATTS_SINCE_MAX => {
                let reason = "atts_since has too many revisions";
                return BulkGetEntry::Malformed { id: Some(id), rev: None, reason };
            }
            Some(Value::Array(revs)) => {
                revs.iter().map(|rev| rev.as_str()?.parse().ok()).collect::<Option<HashSet<RevId>>>()
            }
            Some(_) => {
                let reason = "att_since value must be array of revs.";
                return BulkGetEntry::Malformed { id: Some(id), rev: None, reason };
            }
        };
        let Some(since) = since else {
            return BulkGetEntry::Malformed { id: Some(id), rev: None, reason: "Invalid rev format" };
        };
        let own = Some(since).filter(|since| !since.is_empty());
        let own =
            own.map(|since| Arc::new(AttachmentOptions { data: true, since: Some(since), encoding: show.encoding }));
        // The client needs the revisions to tell which of its `atts_since` is an ancestor.
        let revs = revs || own.is_some();
        match doc.get("rev").map(Value::as_str) {
            // Without a revision all leaves are returned, deleted ones too.
            None => {
                let options = GetOptions { revs, tombstone: true, ..GetOptions::default() };
                BulkGetEntry::Document { id, options, show: own }
            }
            Some(rev) => match rev.map(str::parse) {
                Some(Ok(rev)) => {
                    let options = GetOptions { rev: Some(rev), revs, latest, ..GetOptions::default() };
                    BulkGetEntry::Document { id, options, show: own }
                }
                _ => {
                    BulkGetEntry::Malformed { id: Some(id), rev: rev.map(str::to_owned), reason: "Invalid rev format" }
                }
            },
        }
    }
}

/// Checks an entry's id, before its other members as in CouchDB.
fn check_id(id: &str, is_partitioned: bool) -> Result<()> {
    check_any_id(id)?;
    if is_partitioned && !DocumentId::of(id).is_local() {
        check_partitioned_id(id)?;
    }
    Ok(())
}

pub(crate) async fn bulk_get(mut request: Request, name: &str) -> Result<Reply> {
    let Body { bytes, memory } = json_body(&mut request).await?;
    let Some(Value::Array(docs)) = take(object(&bytes)?, "docs") else {
        return Err(Failure::bad_request("Missing JSON list of 'docs'."));
    };
    if let Some(name) = REFUSED.into_iter().find(|name| request.query.get(name).is_some()) {
        return Err(Failure::bad_request(format!("\"{name}\" query parameter is not acceptable")));
    }
    let BulkGetParameters { revs, latest, attachments: show } = request.query.parameters()?;
    if docs.len() > ENTRIES_MAX {
        return Err(too_many("docs"));
    }
    let docs: Vec<Value<'static>> = docs.into_iter().map(Value::into_owned).collect();
    drop(bytes);
    let form = Form::of(&request)?;
    let database = request.context.database(name, Read).await?;
    database.exists().await?;
    // Only partitioned databases have this rule, so the layer is asked only if an id could break it.
    let mut ids = docs.iter().filter_map(|doc| doc.get("id").and_then(Value::as_str));
    let is_partitioned = database.is_partitioned_known() != Some(false)
        && ids.any(|id| check_id(id, true).is_err())
        && database.is_partitioned().await?;
    let mut walk =
        BulkGet { database, is_partitioned, docs, at: 0, leaves: None, show, with_revisions: revs, latest, form };
    let pages = Pages::new(true);
    let mut out = if walk.form.is_json() { b"{\"results\":[".to_vec() } else { Vec::new() };
    let mut room = first_room(&pages).await?;
    let mut waiting = Vec::new();
    while waiting.is_empty() && out.len() < WHOLE_BYTES_MAX {
        let (texts, is_more) = walk.next().await?;
        // Large documents and attachments are streamed.
        let bytes = texts.iter().map(Text::bytes).sum::<usize>();
        let is_whole = walk.form.is_json() && out.len() + bytes <= WHOLE_BYTES_MAX;
        if !is_whole || texts.iter().any(|text| text.has_data(&walk.show)) {
            shrink(&mut room, out.len() + bytes);
            waiting = texts;
        } else {
            texts.into_iter().for_each(|text| text.write(&walk, &mut out));
        }
        if !is_more {
            break;
        }
    }
    if walk.is_done() && waiting.is_empty() {
        out.extend_from_slice(b"]}");
        return Ok(Reply::json(StatusCode::OK, out));
    }
    let (mut reply, mut sender) = Reply::stream();
    if let Form::Multipart { kind, outer } = &walk.form {
        reply.header(header::CONTENT_TYPE, &format!("{kind}; boundary=\"{outer}\""));
        reply.headers.remove(header::CACHE_CONTROL);
    }
    sender.buffer = out;
    spawn(async move {
        let _memory = memory;
        let mut room = room;
        for text in waiting {
            if text.send(&walk, &mut sender).await.is_err() {
                return;
            }
        }
        loop {
            if sender.flush().await.is_err() {
                return;
            }
            // Released and acquired again, so that other requests get a turn.
            drop(room);
            room = match sender.page_room(&pages).await {
                Ok(room) => room,
                Err(ClientGone) => return,
            };
            let (texts, is_more) = match walk.next().await {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(%error, "a _bulk_get broke off");
                    return;
                }
            };
            shrink(&mut room, texts.iter().map(Text::bytes).sum());
            for text in texts {
                if text.send(&walk, &mut sender).await.is_err() {
                    return;
                }
            }
            if !is_more {
                break;
            }
        }
        drop(room);
        match &walk.form {
            Form::Json => sender.buffer.extend_from_slice(b"]}\n"),
            // CouchDB writes no closing boundary without parts.
            Form::Multipart { .. } if walk.docs.is_empty() => {}
            Form::Multipart { outer, .. } => sender.buffer.extend_from_slice(format!("\r\n--{outer}--\r\n").as_bytes()),
        }
        let _ = sender.finish().await;
    });
    Ok(reply)
}

enum Form {
    Json,
    /// Each revision is a part, which is `multipart/related` if it has attachments.
    Multipart {
        kind: &'static str,
        outer: String,
    },
}

impl Form {
    /// Chooses the form. JSON takes precedence, as in CouchDB.
    fn of(request: &Request) -> Result<Form> {
        let takes = |kind: &str| accepts(&request.headers, kind);
        let kinds = ["multipart/mixed", "multipart/related"];
        match kinds.into_iter().find(|kind| takes(kind)) {
            Some(kind) if !takes("application/json") => {
                Ok(Form::Multipart { kind, outer: format!("--{}", new_boundary()?) })
            }
            _ => Ok(Form::Json),
        }
    }

    fn is_json(&self) -> bool {
        matches!(self, Form::Json)
    }

    fn begin(&self, at: usize, id: Option<&str>, out: &mut Vec<u8>) {
        if self.is_json() {
            json_out::comma(at, out);
            let mut open = Object::new(out);
            open.string_or_null(name!("id"), id).place(name!("docs")).push(b'[');
            open.leave_open();
        }
    }

    fn end(&self, out: &mut Vec<u8>) {
        if self.is_json() {
            out.extend_from_slice(b"]}");
        }
    }

    fn failed(&self, id: Option<&str>, rev: Option<&str>, error: &str, reason: &str, out: &mut Vec<u8>) {
        self.failure(out, |failure| {
            failure.string_or_null(name!("id"), id).string_or_null(name!("rev"), rev);
            failure.string(name!("error"), error).string(name!("reason"), reason);
        });
    }

    fn failure(&self, out: &mut Vec<u8>, write: impl FnOnce(&mut Object<'_>)) {
        match self {
            Form::Json => write(&mut Object::new(out).object(name!("error"))),
            Form::Multipart { outer, .. } => {
                let head = format!("\r\n--{outer}\r\nContent-Type: application/json; error=\"true\"\r\n\r\n");
                out.extend_from_slice(head.as_bytes());
                write(&mut Object::new(out));
            }
        }
    }

    fn missing(&self, id: &str, rev: Option<&RevId>, reason: NotFound, out: &mut Vec<u8>) {
        let failure = Failure::from(Refusal::DocumentNotFound(reason));
        match (self, rev) {
            // CouchDB omits the id here.
            (Form::Multipart { .. }, Some(rev)) => self.failure(out, |object| {
                object.string(name!("rev"), &rev.to_string());
                object.string(name!("error"), &failure.error).string(name!("reason"), &failure.reason);
            }),
            _ => {
                let rev = rev.map_or("undefined".to_owned(), ToString::to_string);
                self.failed(Some(id), Some(&rev), &failure.error, &failure.reason, out);
            }
        }
    }
}

enum Text {
    Bytes(Vec<u8>),
    Document(Box<Document>, Option<Arc<AttachmentOptions>>),
}

impl Text {
    /// Returns true if attachment data may be sent with it, which is streamed.
    fn has_data(&self, show: &AttachmentOptions) -> bool {
        match self {
            Text::Bytes(_) => false,
            Text::Document(document, own) => own.as_deref().unwrap_or(show).data && !document.attachments.is_empty(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Text::Bytes(bytes) => bytes.len(),
            Text::Document(document, _) => page_bytes(1, std::iter::once(&**document)),
        }
    }

    /// Writes a piece without attachment data.
    fn write(&self, walk: &BulkGet, out: &mut Vec<u8>) {
        match self {
            Text::Bytes(bytes) => out.extend_from_slice(bytes),
            Text::Document(document, own) => {
                for part in attached::parts(document, own.as_deref().unwrap_or(&walk.show), walk.with_revisions) {
                    match part {
                        Part::Text(text) => out.extend_from_slice(&text),
                        Part::Body => out.extend_from_slice(&document.body),
                        Part::Data(_) | Part::Stored(_) => {}
                    }
                }
            }
        }
    }

    async fn send(self, walk: &BulkGet, sender: &mut Sender) -> std::result::Result<(), Interrupted> {
        match (self, &walk.form) {
            (Text::Bytes(bytes), _) => sender.buffer.extend_from_slice(&bytes),
            (Text::Document(document, own), Form::Json) => {
                let parts = attached::parts(&document, own.as_deref().unwrap_or(&walk.show), walk.with_revisions);
                attached::send(&walk.database, &document, parts, sender).await?;
            }
            (Text::Document(document, own), Form::Multipart { outer, .. }) => {
                let inner = format!("--{}", new_boundary().map_err(|_| Interrupted)?);
                let related = related(&document, own.as_deref().unwrap_or(&walk.show), walk.with_revisions, &inner);
                let head = match related.has_data {
                    true => format!(
                        "\r\n--{outer}\r\nX-Doc-Id: {}\r\nX-Rev-Id: {}\r\nContent-Type: multipart/related; boundary={inner}\r\n\r\n",
                        header_text(&document.id),
                        header_text(&document.rev.to_string()),
                    ),
                    false => format!("\r\n--{outer}\r\nContent-Type: application/json\r\n\r\n"),
                };
                sender.buffer.extend_from_slice(head.as_bytes());
                attached::send(&walk.database, &document, related.parts, sender).await?;
            }
        }
        Ok(sender.send_if_full().await?)
    }
}

#[derive(Default)]
struct Texts {
    pieces: Vec<Text>,
    /// Bytes after the last document.
    out: Vec<u8>,
}

impl Texts {
    fn document(&mut self, document: Box<Document>, show: Option<&Arc<AttachmentOptions>>) {
        self.pieces.push(Text::Bytes(std::mem::take(&mut self.out)));
        self.pieces.push(Text::Document(document, show.cloned()));
    }

    fn finish(mut self) -> Vec<Text> {
        self.pieces.push(Text::Bytes(self.out));
        self.pieces
    }

    fn ok(&mut self, form: &Form, document: Box<Document>, show: Option<&Arc<AttachmentOptions>>) {
        if form.is_json() {
            self.out.extend_from_slice(b"{\"ok\":");
            self.document(document, show);
            self.out.push(b'}');
        } else {
            self.document(document, show);
        }
    }
}

struct BulkGet {
    database: Reader,
    /// False if the database is not partitioned, or every id names a partition.
    is_partitioned: bool,
    docs: Vec<Value<'static>>,
    at: usize,
    /// Leaves already written of an entry with several leaves.
    leaves: Option<usize>,
    show: AttachmentOptions,
    with_revisions: bool,
    latest: bool,
    form: Form,
}

impl BulkGet {
    fn is_done(&self) -> bool {
        self.at == self.docs.len()
    }

    /// Parses up to `most` of the next entries.
    fn wanted(&self, most: usize) -> Vec<BulkGetEntry> {
        let docs = self.docs.iter().skip(self.at).take(most);
        docs.map(|doc| BulkGetEntry::new(doc, self)).collect()
    }

    /// Reads the next pieces; false if they are the last.
    async fn next(&mut self) -> flatbed_layer::Result<(Vec<Text>, bool)> {
        let mut texts = Texts::default();
        match self.leaves {
            _ if self.is_done() => {}
            Some(from) => self.next_leaves(from, &mut texts).await?,
            None => self.next_documents(&mut texts).await?,
        }
        Ok((texts.finish(), !self.is_done()))
    }

    async fn next_documents(&mut self, texts: &mut Texts) -> flatbed_layer::Result<()> {
        let chunk = self.wanted(READ_AT_ONCE);
        let requests: Vec<(String, GetOptions)> = chunk
            .iter()
            .filter_map(|wanted| match wanted {
                BulkGetEntry::Document { id, options, .. } => Some((id.clone(), options.clone())),
                BulkGetEntry::Malformed { .. } | BulkGetEntry::Illegal { .. } => None,
            })
            .collect();
        let found = if requests.is_empty() { Vec::new() } else { self.database.get_many(&requests).await? };
        let mut found = found.into_iter();
        for wanted in &chunk {
            let out = &mut texts.out;
            match wanted {
                BulkGetEntry::Malformed { id, rev, reason } => {
                    self.form.begin(self.at, id.as_deref(), out);
                    self.form.failed(id.as_deref(), rev.as_deref(), "bad_request", reason, out);
                    self.form.end(out);
                }
                BulkGetEntry::Illegal { id, failure } => {
                    self.form.begin(self.at, Some(id), out);
                    self.form.failed(Some(id), None, &failure.error, &failure.reason, out);
                    self.form.end(out);
                }
                BulkGetEntry::Document { id, options, show } => match found.next() {
                    // The layer returned fewer documents than requested; the next round reads the rest.
                    None => break,
                    Some(got) => {
                        self.form.begin(self.at, Some(id), out);
                        match got {
                            GetOutcome::Several => {
                                self.leaves = Some(0);
                                break;
                            }
                            GetOutcome::Document(document) => texts.ok(&self.form, document, show.as_ref()),
                            GetOutcome::Missing(reason) => self.form.missing(id, options.rev.as_ref(), reason, out),
                        }
                        self.form.end(&mut texts.out);
                    }
                },
            }
            self.at += 1;
        }
        Ok(())
    }

    /// Reads the next leaves of the current entry.
    async fn next_leaves(&mut self, from: usize, texts: &mut Texts) -> flatbed_layer::Result<()> {
        let Some(BulkGetEntry::Document { id, options, show }) = self.wanted(1).pop() else { return Ok(()) };
        let revs = options.rev.clone().map_or(OpenRevs::All, |rev| OpenRevs::Some(vec![rev]));
        let (found, count) = self.database.open_revs(&id, &revs, from, true, &options).await?;
        let is_empty = found.is_empty();
        let mut written = from;
        for revision in found {
            if self.form.is_json() {
                json_out::comma(written, &mut texts.out);
            }
            match revision {
                Ok(document) => texts.ok(&self.form, Box::new(document), show.as_ref()),
                Err(rev) => self.form.missing(&id, Some(&rev), NotFound::Missing, &mut texts.out),
            }
            written += 1;
        }
        let is_done = written >= count || is_empty;
        self.leaves = Some(written).filter(|_| !is_done);
        if is_done {
            self.form.end(&mut texts.out);
            self.at += 1;
        }
        Ok(())
    }
}
