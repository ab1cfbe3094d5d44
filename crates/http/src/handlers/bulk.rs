//! Many documents in one request.

use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{Database, Edit, Error as LayerError, GetOptions, Updated};
use hyper::{Method, StatusCode};

use crate::error::{Failure, Result};
use crate::handlers::document::edit_from;
use crate::handlers::server::uuid;
use crate::json_out;
use crate::reply::Reply;
use crate::request::{Body, Request};
use crate::server::State;

/// Documents of a `_bulk_get` that are read at once.
const READ_AT_ONCE: usize = 100;

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
            edit.id = uuid()?.into();
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
    Document { id: String, rev: Option<String>, options: GetOptions },
    Nonsense,
}

pub(crate) async fn bulk_get(state: &State, mut request: Request, name: &str) -> Result<Reply> {
    let body = json_body(&mut request).await?;
    let Some(Value::Array(docs)) = take(object(&body.bytes)?, "docs") else {
        return Err(Failure::bad_request("Missing JSON list of 'docs'."));
    };
    let revs = request.query.flag("revs")?;
    let database = state.layer.database(name);
    database.exists().await?;
    let mut wanted = Vec::with_capacity(docs.len());
    for doc in docs {
        wanted.push(match (doc.get("id").and_then(Value::as_str), doc.get("rev")) {
            (Some(id), rev) => {
                let rev = rev.and_then(Value::as_str).map(str::to_owned);
                let parsed = rev.as_deref().map(crate::error::parse_rev).transpose()?;
                let options = GetOptions { rev: parsed, revs, ..GetOptions::default() };
                Wanted::Document { id: id.to_owned(), rev, options }
            }
            (None, _) => Wanted::Nonsense,
        });
    }
    // Without branches the newest of a line is what was asked for: `latest` changes nothing but for ancestors, whose
    // bodies are kept.
    drop(body);
    let mut out = b"{\"results\":[".to_vec();
    let (first, rest) = wanted.split_at(wanted.len().min(READ_AT_ONCE));
    read_chunk(&database, first, true, &mut out).await?;
    if rest.is_empty() {
        out.extend_from_slice(b"]}");
        return Ok(Reply::json(StatusCode::OK, out));
    }
    let rest = wanted.into_iter().skip(READ_AT_ONCE).collect::<Vec<_>>();
    let (reply, mut sender) = Reply::stream();
    sender.buffer = out;
    tokio::spawn(async move {
        for chunk in rest.chunks(READ_AT_ONCE) {
            if let Err(failure) = read_chunk(&database, chunk, false, &mut sender.buffer).await {
                tracing::warn!(%failure, "a _bulk_get broke off");
                return;
            }
            if sender.flush().await.is_err() {
                return;
            }
        }
        sender.buffer.extend_from_slice(b"]}\n");
        let _ = sender.finish().await;
    });
    Ok(reply)
}

/// Reads some of what is wanted in one transaction and writes it.
async fn read_chunk(database: &Database, chunk: &[Wanted], is_first: bool, out: &mut Vec<u8>) -> Result<()> {
    let requests: Vec<(String, GetOptions)> = chunk
        .iter()
        .filter_map(|wanted| match wanted {
            Wanted::Document { id, options, .. } => Some((id.clone(), options.clone())),
            Wanted::Nonsense => None,
        })
        .collect();
    let mut found = database.get_many(&requests).await?.into_iter();
    for (at, wanted) in chunk.iter().enumerate() {
        json_out::comma(if is_first { at } else { 1 }, out);
        result(wanted, &mut found, out);
    }
    Ok(())
}

fn result(
    wanted: &Wanted,
    found: &mut impl Iterator<Item = std::result::Result<flatbed_layer::Document, LayerError>>,
    out: &mut Vec<u8>,
) {
    let Wanted::Document { id, rev, .. } = wanted else {
        out.extend_from_slice(
            b"{\"id\":null,\"docs\":[{\"error\":{\"id\":null,\"rev\":null,\"error\":\"bad_request\",\
              \"reason\":\"document must be a JSON object\"}}]}",
        );
        return;
    };
    out.extend_from_slice(b"{\"id\":");
    json_out::string(id, out);
    out.extend_from_slice(b",\"docs\":[{");
    match found.next() {
        Some(Ok(document)) => {
            out.extend_from_slice(b"\"ok\":");
            json_out::document(&document, out);
        }
        missing => {
            let failure = match missing {
                Some(Err(error)) => Failure::from(error),
                _ => Failure::not_found("missing"),
            };
            out.extend_from_slice(b"\"error\":{\"id\":");
            json_out::string(id, out);
            out.push(b',');
            json_out::member("rev", rev.as_deref().unwrap_or("undefined"), out);
            out.push(b',');
            json_out::member("error", failure.error, out);
            out.push(b',');
            json_out::member("reason", &failure.reason, out);
            out.push(b'}');
        }
    }
    out.extend_from_slice(b"}]}");
}
