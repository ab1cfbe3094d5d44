//! `_all_docs` and what is like it, streamed page by page.

use flatbed_http::{Pages, Reply, Sender, shrink, spawn};
use flatbed_layer::json::{Object, Value, name};
use flatbed_layer::{AllDocsQuery, AllDocsRow, DESIGN_IDS, DocumentId, Reader, Seq};
use flatbed_service::Read;
use hyper::Method;

use crate::attached::{self, Show};
use crate::error::{Failure, Result};
use crate::handlers::bulk::{json_body, object, take};
use crate::handlers::partition;
use crate::json_out;
use crate::path::Listed;
use crate::query::{Query, number};
use crate::reply::{Interrupted, page_bytes};
use crate::request::{Body, Memory, Request};

/// Documents that are looked up at once by their ids; the layer gives back as many as fit.
const KEYS_AT_ONCE: usize = 100;

/// Queries in one request.
const QUERIES_MAX: usize = 1_000;

/// One query of the index, but for the ids that are asked for one by one. What the request's parameters say stands in each of
/// its queries: it is made when its turn has come.
struct Selection {
    walk: AllDocsQuery,
    has_keys: bool,
    update_seq: bool,
    /// Nothing can match.
    nothing: bool,
    documents: Listed,
    show: Show,
}

pub(crate) async fn all_docs(mut request: Request, name: &str, documents: Listed) -> Result<Reply> {
    let mut memory = Memory::default();
    let members = match request.method {
        Method::GET | Method::HEAD => Value::Object(Vec::new()),
        Method::POST => {
            if let Err(failure) = request.require_json() {
                request.skip_body().await;
                return Err(failure.into());
            }
            let body = request.read_body().await?;
            memory = body.memory;
            object(&body.bytes)?.into_owned()
        }
        _ => {
            request.skip_body().await;
            return Err(Failure::method("GET,HEAD,POST"));
        }
    };
    let mut selection = Selection::new(&request.query, &members, documents)?;
    let keys = keys_of(&request.query, members)?;
    let database = request.context.database(name, Read)?;
    match partition::asked_for(&request.query, &database).await? {
        Some(partition) => partition::only(&mut selection.walk, &partition),
        None => database.exists().await?,
    }
    let (reply, mut sender) = Reply::stream();
    let pages = Pages::new(selection.walk.include_docs);
    spawn(async move {
        let _memory = memory;
        let mut design_documents = None;
        if write(&database, selection, keys, &mut design_documents, &pages, &mut sender).await.is_ok() {
            sender.buffer.push(b'\n');
            let _ = sender.finish().await;
        }
    });
    Ok(reply)
}

pub(crate) async fn queries(mut request: Request, name: &str, documents: Listed) -> Result<Reply> {
    let Body { bytes, memory } = json_body(&mut request).await?;
    let queries = match take(object(&bytes)?.into_owned(), "queries") {
        Some(Value::Array(queries)) => queries,
        Some(_) => return Err(Failure::bad_request("`queries` must be an array.")),
        None => return Err(Failure::bad_request("POST body must include `queries` parameter.")),
    };
    drop(bytes);
    if queries.len() > QUERIES_MAX {
        return Err(Failure::bad_request(format!("at most {QUERIES_MAX} queries")));
    }
    let parameters = std::mem::take(&mut request.query);
    let mut include_docs = false;
    for query in &queries {
        include_docs |= Selection::new(&parameters, query, documents)?.walk.include_docs;
        // The parameters may be long, and are read for each.
        tokio::task::yield_now().await;
    }
    let database = request.context.database(name, Read)?;
    database.exists().await?;
    let (reply, mut sender) = Reply::stream();
    let pages = Pages::new(include_docs);
    spawn(async move {
        let _memory = memory;
        sender.buffer.extend_from_slice(b"{\"results\":[\r\n");
        let mut design_documents = None;
        for (at, query) in queries.into_iter().enumerate() {
            if at > 0 {
                sender.buffer.extend_from_slice(b",\r\n");
            }
            // They were right before the answer began.
            let Ok(selection) = Selection::new(&parameters, &query, documents) else { return };
            let Ok(keys) = keys_of(&parameters, query) else { return };
            if write(&database, selection, keys, &mut design_documents, &pages, &mut sender).await.is_err() {
                return;
            }
        }
        sender.buffer.extend_from_slice(b"\r\n]}\n");
        let _ = sender.finish().await;
    });
    Ok(reply)
}

/// Where a bound that is no string stands: CouchDB's order is null, false, true, numbers, strings, arrays, objects.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Bound {
    None,
    BeforeAll,
    At(String),
    AfterAll,
}

fn bound(value: Option<Value<'_>>) -> Bound {
    match value {
        None => Bound::None,
        Some(Value::Null | Value::Bool(_) | Value::Number(_)) => Bound::BeforeAll,
        Some(Value::String(text)) => Bound::At(text.into_owned()),
        Some(Value::Array(_) | Value::Object(_)) => Bound::AfterAll,
    }
}

impl Selection {
    /// From the query string and the members of a body, which say the same things.
    fn new(query: &Query, members: &Value<'static>, documents: Listed) -> Result<Selection> {
        let Value::Object(members) = members else { return Err(Failure::bad_request("a query must be an object")) };
        let find = |names: &[&str]| members.iter().find(|(found, _)| names.contains(&found.as_ref()));
        let value = |names: &[&str]| -> Result<Option<Value<'static>>> {
            match find(names) {
                Some((_, value)) => Ok(Some(value.clone())),
                None => query.json(names),
            }
        };
        let flag = |name: &str| -> Result<bool> {
            match find(&[name]) {
                None => query.flag(name),
                Some((_, Value::Bool(value))) => Ok(*value),
                Some(_) => Err(Failure::query(format!("Invalid boolean parameter: \"{name}\""))),
            }
        };
        let count = |name: &str| -> Result<Option<u64>> {
            match find(&[name]) {
                None => query.number(name),
                Some((_, Value::Number(text))) => number(text).map(Some),
                Some(_) => Err(Failure::query(format!("Invalid value for integer: \"{name}\""))),
            }
        };
        let inclusive_end = match find(&["inclusive_end"]) {
            Some((_, value)) => *value != Value::Bool(false),
            None => query.get("inclusive_end").is_none_or(|text| text == "true"),
        };
        let has_keys = match find(&["keys"]) {
            Some((_, Value::Array(_))) => true,
            Some(_) => return Err(Failure::bad_request("`keys` body member must be an array.")),
            None => match query.json(&["keys"])? {
                None => false,
                Some(Value::Array(_)) => true,
                Some(_) => return Err(Failure::bad_request("`keys` parameter must be an array.")),
            },
        };
        let mut walk = AllDocsQuery {
            exclusive_end: !inclusive_end,
            descending: flag("descending")?,
            include_docs: flag("include_docs")?,
            conflicts: flag("conflicts")?,
            skip: count("skip")?.unwrap_or(0),
            limit: count("limit")?,
            ..AllDocsQuery::default()
        };
        let mut nothing = false;
        let (mut start, mut end) = (bound(value(&["startkey", "start_key"])?), bound(value(&["endkey", "end_key"])?));
        let names_bounds = ["key", "startkey", "start_key", "endkey", "end_key"];
        if has_keys && names_bounds.iter().any(|name| find(&[name]).is_some() || query.get(name).is_some()) {
            return Err(Failure::query("`keys` is incompatible with `key`, `start_key` and `end_key`"));
        }
        if let Some(key) = value(&["key"])? {
            (start, end) = (bound(Some(key.clone())), bound(Some(key)));
            nothing = !matches!(start, Bound::At(_));
        }
        let (low, high) = if walk.descending { (&end, &start) } else { (&start, &end) };
        nothing |= *low == Bound::AfterAll || *high == Bound::BeforeAll;
        let at = |bound: Bound| if let Bound::At(id) = bound { Some(id) } else { None };
        (walk.start, walk.end) = (at(start), at(end));
        if documents == Listed::Design {
            only_design(&mut walk);
        }
        Ok(Selection { walk, has_keys, update_seq: flag("update_seq")?, nothing, documents, show: Show::new(query)? })
    }
}

/// The ids that a query asks for one by one, as JSON; [`Selection::new`] has checked it.
fn keys_of(query: &Query, members: Value<'static>) -> Result<Option<Vec<Value<'static>>>> {
    match take(members, "keys").map_or_else(|| query.json(&["keys"]), |keys| Ok(Some(keys)))? {
        Some(Value::Array(keys)) => Ok(Some(keys)),
        _ => Ok(None),
    }
}

/// Narrows a walk to `_design/...`.
fn only_design(walk: &mut AllDocsQuery) {
    let (first, behind) = DESIGN_IDS;
    let descending = walk.descending;
    let (low, high) = if descending { (&mut walk.end, &mut walk.start) } else { (&mut walk.start, &mut walk.end) };
    if low.as_deref().is_none_or(|low| low < first) {
        *low = Some(first.to_owned());
    }
    if high.as_deref().is_none_or(|high| high >= behind) {
        // No id is as high as this within the range.
        *high = Some(format!("{first}\u{10ffff}\u{10ffff}"));
    }
}

/// `design_documents`: how many there are, once they are counted for the request.
async fn write(
    database: &Reader,
    selection: Selection,
    keys: Option<Vec<Value<'static>>>,
    design_documents: &mut Option<u64>,
    pages: &Pages,
    sender: &mut Sender,
) -> std::result::Result<(), Interrupted> {
    let (include_docs, conflicts) = (selection.walk.include_docs, selection.walk.conflicts);
    let (skip, limit) = (selection.walk.skip, selection.walk.limit);
    let descending = selection.walk.descending;
    let mut walk = database.all_docs(selection.walk.clone());
    let total = match selection.documents {
        Listed::All => walk.total_rows().await?,
        Listed::Design => match *design_documents {
            Some(count) => count,
            None => *design_documents.insert(sender.unless_gone(count_design_documents(database)).await??),
        },
    };
    let update_seq = if selection.update_seq { Some(database.update_seq().await?) } else { None };
    // What lies before a walk that begins somewhere would have to be counted.
    let is_from_begin = selection.walk.start.is_none() && !selection.has_keys && !selection.nothing;
    head(total, is_from_begin.then(|| skip.min(total)), update_seq, &mut sender.buffer);
    let mut rows = 0;
    if let Some(mut keys) = keys {
        if descending {
            keys.reverse();
        }
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let keys: Vec<Value<'static>> = keys.into_iter().skip(skip).take(limit).collect();
        let mut rest = keys.as_slice();
        while !rest.is_empty() {
            let mut room = sender.page_room(pages).await?;
            let chunk = rest.get(..KEYS_AT_ONCE).unwrap_or(rest);
            let ids: Vec<String> = chunk.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            let found =
                if ids.is_empty() { Vec::new() } else { database.all_docs_keys(&ids, include_docs, conflicts).await? };
            let documents = found.iter().flatten().filter_map(|row| row.doc.as_ref());
            shrink(&mut room, page_bytes(found.len(), documents));
            let mut found = found.into_iter();
            let mut written = 0;
            for key in chunk {
                // What was too much for one read is asked for again.
                if key.as_str().is_some() && found.len() == 0 {
                    break;
                }
                separator(&mut rows, &mut sender.buffer);
                let row = if key.as_str().is_some() { found.next().flatten() } else { None };
                let shown =
                    |row: &AllDocsRow| selection.documents == Listed::All || DocumentId::of(&row.id).is_design();
                let row = row.filter(shown);
                match row {
                    Some(row) => write_row(database, &row, include_docs, &selection.show, sender).await?,
                    None => {
                        Object::new(&mut sender.buffer).value(name!("key"), key).string(name!("error"), "not_found");
                    }
                }
                written += 1;
                sender.send_if_full().await?;
            }
            rest = rest.get(written..).unwrap_or_default();
        }
    } else if !selection.nothing {
        loop {
            let mut room = sender.page_room(pages).await?;
            // It goes on by itself while it passes rows over.
            let Some(page) = sender.unless_gone(walk.next_page()).await?? else { break };
            shrink(&mut room, page_bytes(page.len(), page.iter().filter_map(|row| row.doc.as_ref())));
            for row in &page {
                separator(&mut rows, &mut sender.buffer);
                write_row(database, row, include_docs, &selection.show, sender).await?;
                sender.send_if_full().await?;
            }
        }
    }
    sender.buffer.extend_from_slice(b"\r\n]}");
    Ok(())
}

/// Design documents are few: they are counted by a walk.
async fn count_design_documents(database: &Reader) -> std::result::Result<u64, flatbed_layer::Error> {
    let mut all = AllDocsQuery::default();
    only_design(&mut all);
    let mut walk = database.all_docs(all);
    let mut count = 0;
    while let Some(page) = walk.next_page().await? {
        count += page.len() as u64;
    }
    Ok(count)
}

fn head(total: u64, offset: Option<u64>, update_seq: Option<Seq>, out: &mut Vec<u8>) {
    let mut open = Object::new(out);
    open.number("total_rows", total);
    match offset {
        Some(offset) => open.number("offset", offset),
        None => open.null("offset"),
    };
    if let Some(seq) = update_seq {
        open.string("update_seq", &seq.to_string());
    }
    open.place("rows").extend_from_slice(b"[\r\n");
    open.leave_open();
}

fn separator(rows: &mut u64, out: &mut Vec<u8>) {
    if *rows > 0 {
        out.extend_from_slice(b",\r\n");
    }
    *rows += 1;
}

async fn write_row(
    database: &Reader,
    row: &AllDocsRow,
    include_docs: bool,
    show: &Show,
    sender: &mut Sender,
) -> std::result::Result<(), Interrupted> {
    let mut open = Object::new(&mut sender.buffer);
    open.string(name!("id"), &row.id).string(name!("key"), &row.id);
    let mut value = open.object(name!("value"));
    json_out::rev(&row.rev, value.place(name!("rev")));
    if row.deleted {
        value.bool(name!("deleted"), true);
    }
    value.end();
    open.leave_open();
    if include_docs {
        sender.buffer.extend_from_slice(b",\"doc\":");
        attached::send_or_null(database, row.doc.as_ref(), show, sender).await?;
    }
    sender.buffer.push(b'}');
    Ok(())
}
