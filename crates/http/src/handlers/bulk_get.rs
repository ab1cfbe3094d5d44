//! `_bulk_get`: revisions of many documents.

use flatbed_layer::json::Value;
use flatbed_layer::{Database, Document, GetOptions, Got, NotFound, OpenRevs, RevId};
use hyper::StatusCode;

use crate::attached::{self, Part, Show};
use crate::error::{Failure, Result};
use crate::handlers::bulk::{json_body, object, take};
use crate::json_out;
use crate::reply::{Interrupted, PagePermit, Pages, Reply, Sender};
use crate::request::{Body, Request};
use crate::server::State;

/// Documents that are asked for at once; the layer gives back as many as fit.
const READ_AT_ONCE: usize = 100;

/// Answers up to about this long are not streamed.
const WHOLE_BYTES_MAX: usize = 256 * 1024;

/// What one entry asks for.
enum Wanted {
    Document {
        id: String,
        options: GetOptions,
    },
    /// The id and revision as far as there are any, and what is wrong.
    Nonsense {
        id: Option<String>,
        rev: Option<String>,
        reason: &'static str,
    },
}

impl Wanted {
    fn new(doc: &Value<'_>, revs: bool, latest: bool) -> Wanted {
        let Some(id) = doc.get("id").and_then(Value::as_str) else {
            return Wanted::Nonsense { id: None, rev: None, reason: "document must be a JSON object" };
        };
        let id = id.to_owned();
        match doc.get("rev").map(Value::as_str) {
            // Without a revision the leaves are meant, be they tombstones.
            None => Wanted::Document { id, options: GetOptions { revs, tombstone: true, ..GetOptions::default() } },
            Some(rev) => match rev.map(str::parse) {
                Some(Ok(rev)) => {
                    let options = GetOptions { rev: Some(rev), revs, latest, ..GetOptions::default() };
                    Wanted::Document { id, options }
                }
                _ => Wanted::Nonsense { id: Some(id), rev: rev.map(str::to_owned), reason: "Invalid rev format" },
            },
        }
    }
}

pub(crate) async fn bulk_get(state: &State, mut request: Request, name: &str) -> Result<Reply> {
    let Body { bytes, memory } = json_body(&mut request).await?;
    let Some(Value::Array(docs)) = take(object(&bytes)?, "docs") else {
        return Err(Failure::bad_request("Missing JSON list of 'docs'."));
    };
    let (revs, latest) = (request.query.flag("revs")?, request.query.flag("latest")?);
    let show = Show::new(&request.query)?;
    let wanted: Vec<Wanted> = docs.iter().map(|doc| Wanted::new(doc, revs, latest)).collect();
    drop(docs);
    let mut walk = BulkGet { database: state.layer.database(name), wanted, at: 0, leaves: None, show };
    walk.database.exists().await?;
    let pages = state.replies.pages();
    let mut out = b"{\"results\":[".to_vec();
    let room = pages.room().await;
    let mut waiting = Vec::new();
    while waiting.is_empty() && out.len() < WHOLE_BYTES_MAX {
        let (texts, is_more) = walk.next().await?;
        // Attachments are not gathered in memory.
        if walk.show.data && texts.iter().any(Text::has_attachments) {
            waiting = texts;
        } else {
            texts.into_iter().for_each(|text| text.write(&walk.show, &mut out));
        }
        if !is_more {
            break;
        }
    }
    if walk.is_done() && waiting.is_empty() {
        out.extend_from_slice(b"]}");
        return Ok(Reply::json(StatusCode::OK, out));
    }
    let (reply, mut sender) = Reply::stream();
    sender.buffer = out;
    tokio::spawn(async move {
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
            room = another(&pages, room).await;
            let (texts, is_more) = match walk.next().await {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(%error, "a _bulk_get broke off");
                    return;
                }
            };
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
        sender.buffer.extend_from_slice(b"]}\n");
        let _ = sender.finish().await;
    });
    Ok(reply)
}

/// Gives room up and waits for some again, so that others have their turn.
async fn another(pages: &Pages, room: PagePermit) -> PagePermit {
    drop(room);
    pages.room().await
}

/// A piece of the answer.
enum Text {
    Bytes(Vec<u8>),
    Document(Box<Document>),
}

impl Text {
    fn has_attachments(&self) -> bool {
        matches!(self, Text::Document(document) if !document.attachments.is_empty())
    }

    fn write(&self, show: &Show, out: &mut Vec<u8>) {
        match self {
            Text::Bytes(bytes) => out.extend_from_slice(bytes),
            Text::Document(document) => {
                for part in attached::parts(document, show, true) {
                    if let Part::Text(text) = part {
                        out.extend_from_slice(&text);
                    }
                }
            }
        }
    }

    async fn send(self, walk: &BulkGet, sender: &mut Sender) -> std::result::Result<(), Interrupted> {
        match self {
            Text::Bytes(bytes) => sender.buffer.extend_from_slice(&bytes),
            Text::Document(document) => {
                let parts = attached::parts(&document, &walk.show, true);
                attached::send(&walk.database, &document, parts, sender).await?;
            }
        }
        Ok(sender.send_if_full().await?)
    }
}

/// Gathers pieces.
#[derive(Default)]
struct Texts {
    pieces: Vec<Text>,
    /// What comes after them.
    out: Vec<u8>,
}

impl Texts {
    fn document(&mut self, document: Box<Document>) {
        self.pieces.push(Text::Bytes(std::mem::take(&mut self.out)));
        self.pieces.push(Text::Document(document));
    }

    fn finish(mut self) -> Vec<Text> {
        self.pieces.push(Text::Bytes(self.out));
        self.pieces
    }

    fn ok(&mut self, document: Box<Document>) {
        self.out.extend_from_slice(b"{\"ok\":");
        self.document(document);
        self.out.push(b'}');
    }
}

/// A `_bulk_get` under way.
struct BulkGet {
    database: Database,
    wanted: Vec<Wanted>,
    at: usize,
    /// Of an entry that means several leaves, how many are written.
    leaves: Option<usize>,
    show: Show,
}

impl BulkGet {
    fn is_done(&self) -> bool {
        self.at == self.wanted.len()
    }

    /// Reads some more; whether there is anything left behind it.
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
        let end = self.wanted.len().min(self.at + READ_AT_ONCE);
        let chunk = self.wanted.get(self.at..end).unwrap_or_default();
        let requests: Vec<(String, GetOptions)> = chunk
            .iter()
            .filter_map(|wanted| match wanted {
                Wanted::Document { id, options } => Some((id.clone(), options.clone())),
                Wanted::Nonsense { .. } => None,
            })
            .collect();
        let found = if requests.is_empty() { Vec::new() } else { self.database.get_many(&requests).await? };
        let mut found = found.into_iter();
        for wanted in chunk {
            let out = &mut texts.out;
            match wanted {
                Wanted::Nonsense { id, rev, reason } => {
                    json_out::comma(self.at, out);
                    begin(id.as_deref(), out);
                    failed(id.as_deref(), rev.as_deref(), "bad_request", reason, out);
                    out.extend_from_slice(b"]}");
                }
                Wanted::Document { id, options } => match found.next() {
                    // What was too much for one read is asked for again.
                    None => break,
                    Some(got) => {
                        json_out::comma(self.at, out);
                        begin(Some(id), out);
                        match got {
                            Got::Several => {
                                self.leaves = Some(0);
                                break;
                            }
                            Got::Document(document) => texts.ok(document),
                            Got::Missing(reason) => missing(id, options.rev.as_ref(), reason, out),
                        }
                        texts.out.extend_from_slice(b"]}");
                    }
                },
            }
            self.at += 1;
        }
        Ok(())
    }

    /// Some leaves of the entry at hand.
    async fn next_leaves(&mut self, from: usize, texts: &mut Texts) -> flatbed_layer::Result<()> {
        let Some(Wanted::Document { id, options }) = self.wanted.get(self.at) else { return Ok(()) };
        let revs = options.rev.clone().map_or(OpenRevs::All, |rev| OpenRevs::Some(vec![rev]));
        let (found, count) = self.database.open_revs(id, &revs, from, true, options).await?;
        let is_empty = found.is_empty();
        let mut written = from;
        for revision in found {
            json_out::comma(written, &mut texts.out);
            match revision {
                Ok(document) => texts.ok(Box::new(document)),
                Err(rev) => missing(id, Some(&rev), NotFound::Missing, &mut texts.out),
            }
            written += 1;
        }
        let is_done = written >= count || is_empty;
        self.leaves = Some(written).filter(|_| !is_done);
        if is_done {
            texts.out.extend_from_slice(b"]}");
            self.at += 1;
        }
        Ok(())
    }
}

fn begin(id: Option<&str>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"id\":");
    json_out::string_or_null(id, out);
    out.extend_from_slice(b",\"docs\":[");
}

fn missing(id: &str, rev: Option<&RevId>, reason: NotFound, out: &mut Vec<u8>) {
    let failure = Failure::from(flatbed_layer::Error::DocumentNotFound(reason));
    let rev = rev.map_or("undefined".to_owned(), ToString::to_string);
    failed(Some(id), Some(&rev), failure.error, &failure.reason, out);
}

fn failed(id: Option<&str>, rev: Option<&str>, error: &str, reason: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"error\":{\"id\":");
    json_out::string_or_null(id, out);
    out.extend_from_slice(b",\"rev\":");
    json_out::string_or_null(rev, out);
    out.push(b',');
    json_out::member("error", error, out);
    out.push(b',');
    json_out::member("reason", reason, out);
    out.extend_from_slice(b"}}");
}
