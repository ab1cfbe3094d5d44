//! `_bulk_get`: revisions of many documents.

use flatbed_layer::json::Value;
use flatbed_layer::{Database, Document, GetOptions, Got, NotFound, OpenRevs, RevId};
use hyper::StatusCode;

use crate::error::{Failure, Result};
use crate::handlers::bulk::{json_body, object, take};
use crate::json_out;
use crate::reply::{PagePermit, Pages, Reply};
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
    let wanted: Vec<Wanted> = docs.iter().map(|doc| Wanted::new(doc, revs, latest)).collect();
    drop(docs);
    let mut walk = BulkGet { database: state.layer.database(name), wanted, at: 0, leaves: None };
    walk.database.exists().await?;
    let pages = state.replies.pages();
    let mut out = b"{\"results\":[".to_vec();
    let room = pages.room().await;
    while out.len() < WHOLE_BYTES_MAX && walk.next(&mut out).await? {}
    if walk.is_done() {
        out.extend_from_slice(b"]}");
        return Ok(Reply::json(StatusCode::OK, out));
    }
    let (reply, mut sender) = Reply::stream();
    sender.buffer = out;
    tokio::spawn(async move {
        let _memory = memory;
        let mut room = room;
        loop {
            if sender.flush().await.is_err() {
                return;
            }
            room = another(&pages, room).await;
            match walk.next(&mut sender.buffer).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "a _bulk_get broke off");
                    return;
                }
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

/// A `_bulk_get` under way.
struct BulkGet {
    database: Database,
    wanted: Vec<Wanted>,
    at: usize,
    /// Of an entry that means several leaves, how many are written.
    leaves: Option<usize>,
}

impl BulkGet {
    fn is_done(&self) -> bool {
        self.at == self.wanted.len()
    }

    /// Reads and writes some more; false: there was nothing left.
    async fn next(&mut self, out: &mut Vec<u8>) -> flatbed_layer::Result<bool> {
        if self.is_done() {
            return Ok(false);
        }
        if let Some(from) = self.leaves {
            self.next_leaves(from, out).await?;
            return Ok(true);
        }
        let end = self.wanted.len().min(self.at + READ_AT_ONCE);
        let chunk = &self.wanted[self.at..end];
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
                    Some(Got::Several) => {
                        json_out::comma(self.at, out);
                        begin(Some(id), out);
                        self.leaves = Some(0);
                        break;
                    }
                    Some(got) => {
                        json_out::comma(self.at, out);
                        begin(Some(id), out);
                        match got {
                            Got::Document(document) => ok(&document, out),
                            Got::Missing(reason) => missing(id, options.rev.as_ref(), reason, out),
                            Got::Several => {}
                        }
                        out.extend_from_slice(b"]}");
                    }
                },
            }
            self.at += 1;
        }
        Ok(true)
    }

    /// Some leaves of the entry at hand.
    async fn next_leaves(&mut self, from: usize, out: &mut Vec<u8>) -> flatbed_layer::Result<()> {
        let Some(Wanted::Document { id, options }) = self.wanted.get(self.at) else { return Ok(()) };
        let revs = options.rev.clone().map_or(OpenRevs::All, |rev| OpenRevs::Some(vec![rev]));
        let (found, count) = self.database.open_revs(id, &revs, from, true, options).await?;
        let mut written = from;
        for revision in &found {
            json_out::comma(written, out);
            match revision {
                Ok(document) => ok(document, out),
                Err(rev) => missing(id, Some(rev), NotFound::Missing, out),
            }
            written += 1;
        }
        let is_done = written >= count || found.is_empty();
        self.leaves = Some(written).filter(|_| !is_done);
        if is_done {
            out.extend_from_slice(b"]}");
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

fn ok(document: &Document, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"ok\":");
    json_out::document(document, out);
    out.push(b'}');
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
