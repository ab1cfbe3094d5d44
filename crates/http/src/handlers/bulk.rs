//! Many documents in one request.

use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{Database, Document, Edit, GetOptions, Updated};
use hyper::{Method, StatusCode};

use crate::error::{Failure, Result};
use crate::handlers::document::edit_from;
use crate::json_out;
use crate::reply::Reply;
use crate::request::{Body, Request};
use crate::server::State;

/// Documents that are asked for at once; the layer gives back as many as fit.
const READ_AT_ONCE: usize = 100;

/// Answers up to about this long are not streamed.
const WHOLE_BYTES_MAX: usize = 256 * 1024;

async fn json_body(request: &mut Request) -> Result<Body> {
    if request.method != Method::POST {
        request.skip_body().await;
        return Err(Failure::method("POST"));
    }
    if let Err(failure) = request.require_json() {
        request.skip_body().await;
        return Err(failure);
    }
    request.read_body().await
}

/// A JSON object's members.
pub(crate) fn object<'b>(bytes: &'b [u8]) -> Result<Value<'b>> {
    match json::parse(bytes, &Limits::default()) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(Failure::bad_request("Request body must be a JSON object")),
        Err(_) => Err(Failure::invalid_json()),
    }
}

/// Takes a member out of an object.
pub(crate) fn take<'v>(value: Value<'v>, name: &str) -> Option<Value<'v>> {
    match value {
        Value::Object(members) => members.into_iter().find(|(found, _)| found == name).map(|(_, value)| value),
        _ => None,
    }
}

pub(crate) async fn bulk_docs(state: &State, mut request: Request, name: &str) -> Result<Reply> {
    let body = json_body(&mut request).await?;
    let value = object(&body.bytes)?;
    let new_edits = match value.get("new_edits") {
        None | Some(Value::Bool(true)) => true,
        Some(Value::Bool(false)) => false,
        Some(_) => return Err(Failure::bad_request("`new_edits` parameter must be a boolean.")),
    };
    let docs = match take(value, "docs") {
        None => return Err(Failure::bad_request("POST body must include `docs` parameter.")),
        Some(Value::Array(docs)) => docs,
        Some(_) => return Err(Failure::bad_request("`docs` parameter must be an array.")),
    };
    if !new_edits {
        return Err(Failure::not_implemented("new_edits=false"));
    }
    let mut edits = Vec::with_capacity(docs.len());
    for doc in docs {
        let (mut edit, _): (Edit<'_>, bool) = edit_from(doc, None)?;
        if edit.id.is_empty() {
            edit.id = state.uuids.next()?.into();
        }
        edits.push(edit);
    }
    let results = state.layer.database(name).bulk_update(&edits).await?;
    let mut out = Vec::with_capacity(100 * results.len() + 2);
    out.push(b'[');
    for (at, (edit, result)) in edits.iter().zip(results).enumerate() {
        json_out::comma(at, &mut out);
        match result {
            Ok(Updated { rev }) => json_out::written(&edit.id, &rev, &mut out),
            Err(error) => {
                let failure = Failure::from(error);
                out.extend_from_slice(b"{\"id\":");
                json_out::string(&edit.id, &mut out);
                out.push(b',');
                json_out::member("error", failure.error, &mut out);
                out.push(b',');
                json_out::member("reason", &failure.reason, &mut out);
                out.push(b'}');
            }
        }
    }
    out.push(b']');
    Ok(Reply::json(StatusCode::CREATED, out))
}

/// What one entry of a `_bulk_get` asks for.
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
            // Without a revision the leaves are meant, be it a tombstone.
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
    let mut walk = BulkGet { database: state.layer.database(name), wanted, at: 0 };
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
            drop(room);
            room = pages.room().await;
            match walk.next(&mut sender.buffer).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "a _bulk_get broke off");
                    return;
                }
            }
        }
        sender.buffer.extend_from_slice(b"]}\n");
        let _ = sender.finish().await;
    });
    Ok(reply)
}

/// A `_bulk_get` under way.
struct BulkGet {
    database: Database,
    wanted: Vec<Wanted>,
    at: usize,
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
            // What was too much for one read is asked for again.
            if matches!(wanted, Wanted::Document { .. }) && found.len() == 0 {
                break;
            }
            json_out::comma(self.at, out);
            result(wanted, &mut found, out);
            self.at += 1;
        }
        Ok(true)
    }
}

fn result(wanted: &Wanted, found: &mut impl Iterator<Item = flatbed_layer::Result<Document>>, out: &mut Vec<u8>) {
    let (id, rev, error, reason) = match wanted {
        Wanted::Nonsense { id, rev, reason } => {
            (id.as_deref(), rev.clone(), "bad_request", std::borrow::Cow::Borrowed(*reason))
        }
        Wanted::Document { id, options } => match found.next() {
            Some(Ok(document)) => {
                out.extend_from_slice(b"{\"id\":");
                json_out::string(id, out);
                out.extend_from_slice(b",\"docs\":[{\"ok\":");
                json_out::document(&document, out);
                out.extend_from_slice(b"}]}");
                return;
            }
            missing => {
                let failure = match missing {
                    Some(Err(error)) => Failure::from(error),
                    _ => Failure::not_found("missing"),
                };
                let rev = options.rev.as_ref().map_or("undefined".to_owned(), ToString::to_string);
                (Some(id.as_str()), Some(rev), failure.error, failure.reason.into())
            }
        },
    };
    out.extend_from_slice(b"{\"id\":");
    json_out::string_or_null(id, out);
    out.extend_from_slice(b",\"docs\":[{\"error\":{\"id\":");
    json_out::string_or_null(id, out);
    out.extend_from_slice(b",\"rev\":");
    json_out::string_or_null(rev.as_deref(), out);
    out.push(b',');
    json_out::member("error", error, out);
    out.push(b',');
    json_out::member("reason", &reason, out);
    out.extend_from_slice(b"}}]}");
}
