//! `_all_docs`, streamed page by page.

use flatbed_http::{Memory, Pages, Reply, Sender, shrink, spawn};
use flatbed_layer::json::{self, Limits, Object, Value, name};
use flatbed_layer::{AllDocsQuery, AllDocsRow, Conflicts, Reader};
use flatbed_service::{Read, json_out};
use hyper::{Method, StatusCode};

use crate::error::{Failure, Result};
use crate::reply::{self, Interrupted, page_bytes};
use crate::request::{Request, object, take};

/// Documents that are looked up at once by their ids; the layer gives back as many as fit.
const KEYS_AT_ONCE: usize = 100;

/// Ids that a request may ask for.
const KEYS_MAX: usize = 100_000;

/// What is asked for.
struct Selection {
    walk: AllDocsQuery,
    keys: Option<Vec<String>>,
}

fn keys_of(list: Option<Value<'_>>, failure: &'static str) -> Result<Vec<String>> {
    let Some(Value::Array(keys)) = list else { return Err(Failure::bad_request(failure)) };
    if keys.len() > KEYS_MAX {
        return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, format!("at most {KEYS_MAX} keys")));
    }
    let texts: Option<Vec<String>> = keys.iter().map(|key| key.as_str().map(str::to_owned)).collect();
    texts.ok_or_else(|| Failure::bad_request(failure))
}

pub(crate) async fn all_docs(mut request: Request, name: &str) -> Result<Reply> {
    let mut memory = Memory::default();
    let keys = if request.method == Method::POST {
        let body = request.json().await?;
        let keys = keys_of(take(object(&body.bytes)?, "keys"), "Bad/missing keys")?;
        memory = body.memory;
        Some(keys)
    } else if let Some(keys) = request.query.get("keys") {
        Some(keys_of(json::parse(keys.as_bytes(), &Limits::default()).ok(), "Bad keys")?)
    } else {
        None
    };
    let query = &request.query;
    if let Some(asked) = ["channels", "access", "revs", "update_seq"].into_iter().find(|asked| query.flag(asked)) {
        return Err(Failure::not_implemented(asked));
    }
    let walk = AllDocsQuery {
        start: query.text("startkey"),
        end: query.text("endkey"),
        include_docs: query.flag("include_docs"),
        limit: query.number("limit").filter(|limit| *limit > 0),
        ..AllDocsQuery::default()
    };
    let database = request.context.database(name, Read).await?;
    database.exists().await?;
    let (reply, mut sender) = reply::stream();
    if request.method == Method::HEAD {
        return Ok(reply);
    }
    let pages = Pages::new(walk.include_docs);
    let selection = Selection { walk, keys };
    spawn(async move {
        let _memory = memory;
        if write(&database, selection, &pages, &mut sender).await.is_ok() {
            let _ = sender.finish().await;
        }
    });
    Ok(reply)
}

async fn write(
    database: &Reader,
    selection: Selection,
    pages: &Pages,
    sender: &mut Sender,
) -> std::result::Result<(), Interrupted> {
    let update_seq = database.update_seq().await?;
    let include_docs = selection.walk.include_docs;
    sender.buffer.extend_from_slice(b"{\"rows\":[");
    let mut rows = 0_u64;
    if let Some(keys) = selection.keys {
        let mut rest = keys.get(..limit_of(&selection.walk, keys.len())).unwrap_or(&keys);
        while !rest.is_empty() {
            let mut room = sender.page_room(pages).await?;
            let chunk = rest.get(..KEYS_AT_ONCE).unwrap_or(rest);
            let found = database.all_docs_keys(chunk, include_docs, Conflicts::No).await?;
            shrink(&mut room, page_bytes(found.len(), found.iter().flatten().filter_map(|row| row.doc.as_ref())));
            // What was too much for one read is asked for again.
            let count = found.len().max(1);
            for (key, row) in chunk.iter().zip(found) {
                separator(&mut rows, &mut sender.buffer);
                match row.filter(|row| !row.deleted) {
                    Some(row) => write_row(&row, sender).await?,
                    None => {
                        let mut row = Object::new(&mut sender.buffer);
                        row.string(name!("key"), key).string(name!("error"), "not_found");
                        row.number(name!("status"), 404);
                    }
                }
                sender.send_if_full().await?;
            }
            rest = rest.get(count..).unwrap_or_default();
        }
    } else {
        let mut walk = database.all_docs(selection.walk);
        loop {
            let mut room = sender.page_room(pages).await?;
            let Some(page) = sender.unless_gone(walk.next_page()).await?? else { break };
            shrink(&mut room, page_bytes(page.len(), page.iter().filter_map(|row| row.doc.as_ref())));
            for row in page.iter().filter(|row| !row.id.starts_with('_')) {
                separator(&mut rows, &mut sender.buffer);
                write_row(row, sender).await?;
                sender.send_if_full().await?;
            }
        }
    }
    sender.buffer.extend_from_slice(b"\n],\"total_rows\":");
    json_out::number(rows, &mut sender.buffer);
    sender.buffer.extend_from_slice(b",\"update_seq\":");
    json_out::seq(&update_seq, &mut sender.buffer);
    sender.buffer.extend_from_slice(b"}\n");
    Ok(())
}

fn limit_of(walk: &AllDocsQuery, count: usize) -> usize {
    walk.limit.map_or(count, |limit| usize::try_from(limit).unwrap_or(usize::MAX).min(count))
}

fn separator(rows: &mut u64, out: &mut Vec<u8>) {
    out.extend_from_slice(if *rows > 0 { b",\n" } else { b"\n" });
    *rows += 1;
}

async fn write_row(row: &AllDocsRow, sender: &mut Sender) -> std::result::Result<(), Interrupted> {
    let mut open = Object::new(&mut sender.buffer);
    open.string(name!("key"), &row.id).string(name!("id"), &row.id);
    let mut value = open.object(name!("value"));
    json_out::rev(&row.rev, value.place(name!("rev")));
    value.end();
    if let Some(document) = &row.doc {
        json_out::document(document, open.place(name!("doc")));
    }
    Ok(())
}
