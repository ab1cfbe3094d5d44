//! `_all_docs`, `_design_docs` and their `queries`, streamed page by page.

use flatbed_http::{Pages, Reply, Sender, shrink, spawn};
use flatbed_layer::json::{Object, Value, name};
use flatbed_layer::{AllDocsQuery, AllDocsRow, DESIGN_IDS, DocumentId, Reader, Seq};
use flatbed_service::Read;
use hyper::Method;

use crate::error::{Failure, Result};
use crate::handlers::bulk::{json_body, object, take};
use crate::handlers::local;
use crate::handlers::partition;
use crate::handlers::view::{Parameters, Rows};
use crate::json_out;
use crate::path::DocumentListing;
use crate::query::Query;
use crate::reply::{Interrupted, page_bytes};
use crate::request::{Body, Memory, Request};
use crate::shown::attachment_options;
use flatbed_documents::{self as attached, AttachmentOptions};

/// The largest batch of ids in one lookup; the layer returns as many as fit.
const KEYS_AT_ONCE: usize = 100;

/// The largest number of queries in one request; more are 400.
const QUERIES_MAX: usize = 1_000;

/// Databases with fewer documents get an exact `offset`, which costs a count of the rows before the range.
const COUNTED_MAX: u64 = 1_000;

/// One query of the index. Each holds a copy of the request's parameters, so it is built when its turn comes.
struct Selection {
    walk: AllDocsQuery,
    keys: Option<Vec<Value<'static>>>,
    update_seq: bool,
    /// True if no row can match.
    nothing: bool,
    documents: DocumentListing,
    show: AttachmentOptions,
    is_of_list: bool,
}

/// Reads the parameters of a single query, and the memory reserved for its body.
pub(super) async fn parameters(request: &mut Request) -> Result<(Parameters, Memory)> {
    if request.method != Method::POST {
        let parameters = match request.is_of_list {
            true => Parameters::of_list_query(&request.query)?,
            false => Parameters::of_documents_query(&request.query)?,
        };
        return Ok((parameters, Memory::default()));
    }
    let Body { bytes, memory } = json_body(request).await?;
    let members = object(&bytes)?;
    let parameters = match request.is_of_list {
        true => Parameters::of_list_body(&members, &request.query)?,
        false => Parameters::of_documents_body(&members, &request.query)?,
    };
    Ok((parameters, memory))
}

/// Reads the queries of a body, and the memory reserved for them.
pub(super) async fn queries_of(request: &mut Request) -> Result<(Vec<Value<'static>>, Memory)> {
    let Body { bytes, memory } = json_body(request).await?;
    let queries = match take(object(&bytes)?.into_owned(), "queries") {
        Some(Value::Array(queries)) => queries,
        Some(_) => return Err(Failure::bad_request("`queries` member must be an array.")),
        None => return Err(Failure::bad_request("POST body must include `queries` parameter.")),
    };
    if queries.len() > QUERIES_MAX {
        return Err(Failure::bad_request(format!("at most {QUERIES_MAX} queries")));
    }
    Ok((queries, memory))
}

pub(crate) async fn all_docs(mut request: Request, name: &str, documents: DocumentListing) -> Result<Reply> {
    let (parameters, memory) = parameters(&mut request).await?;
    let mut selection = Selection::new(parameters, &request.query, documents)?;
    selection.is_of_list = request.is_of_list;
    let database = request.context.database(name, Read).await?;
    match selection.walk.partition {
        Some(_) => partition::has_some(&database).await?,
        None => database.exists().await?,
    }
    let (reply, mut sender) = Reply::stream();
    let pages = Pages::new(selection.walk.include_docs);
    spawn(async move {
        let _memory = memory;
        let mut design_documents = None;
        if write(&database, selection, &mut design_documents, &pages, &mut sender).await.is_ok() {
            sender.buffer.push(b'\n');
            let _ = sender.finish().await;
        }
    });
    Ok(reply)
}

pub(crate) async fn queries(mut request: Request, name: &str, documents: DocumentListing) -> Result<Reply> {
    let (queries, memory) = queries_of(&mut request).await?;
    let parameters = std::mem::take(&mut request.query);
    Parameters::of_all(&parameters)?;
    let (mut include_docs, mut of_partition) = (false, false);
    for query in &queries {
        let walk = Selection::of_one(&parameters, query, documents)?.walk;
        include_docs |= walk.include_docs;
        of_partition |= walk.partition.is_some();
        // Parsing copies the request's parameters, which may be long.
        tokio::task::yield_now().await;
    }
    let database = request.context.database(name, Read).await?;
    match of_partition {
        true => partition::has_some(&database).await?,
        false => database.exists().await?,
    }
    let (reply, mut sender) = Reply::stream();
    let pages = Pages::new(include_docs);
    spawn(async move {
        let _memory = memory;
        sender.buffer.extend_from_slice(b"{\"results\":[\r\n");
        let mut design_documents = None;
        for (at, query) in queries.iter().enumerate() {
            if at > 0 {
                sender.buffer.extend_from_slice(b",\r\n");
            }
            // All queries were checked before the answer began.
            let Ok(selection) = Selection::of_one(&parameters, query, documents) else { return };
            if write(&database, selection, &mut design_documents, &pages, &mut sender).await.is_err() {
                return;
            }
        }
        sender.buffer.extend_from_slice(b"\r\n]}\n");
        let _ = sender.finish().await;
    });
    Ok(reply)
}

/// A bound of an id range. In Erlang's order, which CouchDB uses for ids, all other types sort below strings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bound {
    None,
    BeforeAll,
    At(String),
}

impl Bound {
    /// Uses the document's id as the bound if no key is given.
    pub(super) fn of(key: Option<Value<'static>>, docid: Option<String>) -> Bound {
        match (key, docid) {
            (None, None) => Bound::None,
            (Some(Value::String(id)), _) => Bound::At(id.into_owned()),
            (None, Some(id)) => Bound::At(id),
            (Some(_), _) => Bound::BeforeAll,
        }
    }

    pub(super) fn id(self) -> Option<String> {
        if let Bound::At(id) = self { Some(id) } else { None }
    }
}

impl Selection {
    fn of_one(query: &Query, one: &Value<'_>, documents: DocumentListing) -> Result<Selection> {
        Selection::new(Parameters::of_one(query, one)?, query, documents)
    }

    fn new(parameters: Parameters, query: &Query, documents: DocumentListing) -> Result<Selection> {
        parameters.check(Rows::Mapped)?;
        let conflicts = parameters.conflicts();
        let Parameters { start, start_docid, end, end_docid, descending, skip, limit, include_docs, partition, .. } =
            parameters;
        // For a list, a single key in `keys` is looked up like several.
        let (start, end) = match parameters.keys {
            None => (Bound::of(start, start_docid), Bound::of(end, end_docid)),
            Some(_) => (Bound::None, Bound::None),
        };
        let high = if descending { &start } else { &end };
        let nothing = *high == Bound::BeforeAll;
        let mut walk = AllDocsQuery {
            start: start.id(),
            end: end.id(),
            exclusive_end: !parameters.inclusive_end,
            partition,
            descending,
            include_docs,
            conflicts: conflicts.into(),
            skip,
            limit,
        };
        if documents == DocumentListing::Design {
            only_design(&mut walk);
        }
        let keys = match parameters.keys {
            Some(Value::Array(keys)) => Some(keys),
            _ => None,
        };
        let mut show = attachment_options(query)?;
        show.data |= parameters.attachments;
        show.encoding |= parameters.att_encoding_info;
        Ok(Selection { walk, keys, update_seq: parameters.update_seq, nothing, documents, show, is_of_list: false })
    }
}

fn only_design(walk: &mut AllDocsQuery) {
    let (first, behind) = DESIGN_IDS;
    let descending = walk.descending;
    let (low, high) = if descending { (&mut walk.end, &mut walk.start) } else { (&mut walk.start, &mut walk.end) };
    if low.as_deref().is_none_or(|low| low < first) {
        *low = Some(first.to_owned());
    }
    if high.as_deref().is_none_or(|high| high >= behind) {
        // Above every id of the range.
        *high = Some(format!("{first}\u{10ffff}\u{10ffff}"));
    }
}

/// Writes one query's answer. `design_documents` caches the count of design documents for the request.
async fn write(
    database: &Reader,
    mut selection: Selection,
    design_documents: &mut Option<u64>,
    pages: &Pages,
    sender: &mut Sender,
) -> std::result::Result<(), Interrupted> {
    let (include_docs, conflicts) = (selection.walk.include_docs, selection.walk.conflicts);
    let (skip, limit) = (selection.walk.skip, selection.walk.limit);
    let descending = selection.walk.descending;
    let mut walk = database.all_docs(selection.walk.clone());
    let total = match selection.documents {
        DocumentListing::All => walk.total_rows().await?,
        DocumentListing::Design => Some(match *design_documents {
            Some(count) => count,
            None => {
                let all = count_design_documents(database, AllDocsQuery::default());
                *design_documents.insert(sender.unless_gone(all).await??)
            }
        }),
    };
    let update_seq = if selection.update_seq { Some(database.update_seq().await?) } else { None };
    let keys = selection.keys.take();
    let mut first = None;
    let before = match (&selection.walk.start, selection.documents) {
        _ if keys.is_some() || total.is_none() => None,
        (_, DocumentListing::All) if selection.walk.partition.is_some() => {
            sender.unless_gone(walk.rows_before()).await??
        }
        (None, _) => Some(0),
        (start, DocumentListing::Design) => {
            let before =
                AllDocsQuery { end: start.clone(), exclusive_end: true, descending, ..AllDocsQuery::default() };
            Some(sender.unless_gone(count_design_documents(database, before)).await??)
        }
        // `offset` needs a count of the rows before the range. It runs beside the first page, and the database is
        // small.
        (Some(_), DocumentListing::All) if total.is_some_and(|total| total < COUNTED_MAX) && !selection.nothing => {
            let room = sender.page_room(pages).await?;
            let counted = database.all_docs(selection.walk.clone());
            let both = async { tokio::try_join!(counted.rows_before(), walk.next_page()) };
            let (before, page) = sender.unless_gone(both).await??;
            first = Some((page, room));
            before
        }
        (Some(_), DocumentListing::All) => None,
    };
    let offset = before.zip(total).map(|(before, total)| before.saturating_add(skip).min(total));
    head(total, offset, update_seq, &mut sender.buffer);
    let mut rows = 0;
    if let Some(keys) = keys {
        let mut keys = page_of_keys(keys, descending, skip, limit.unwrap_or(u64::MAX));
        if selection.documents == DocumentListing::Design {
            keys.retain(|key| key.as_str().is_some_and(|id| DocumentId::of(id).is_design()));
        }
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
                // The layer returned fewer rows than requested; the next round reads the rest.
                if key.as_str().is_some() && found.len() == 0 {
                    break;
                }
                separator(&mut rows, &mut sender.buffer);
                let row = if key.as_str().is_some() { found.next().flatten() } else { None };
                match row {
                    Some(row) => write_row(database, &row, include_docs, &selection.show, sender).await?,
                    None => {
                        let missing = if selection.is_of_list { write_missing_of_list } else { local::write_missing };
                        local::write_found(database, key, include_docs, missing, sender).await?;
                    }
                }
                written += 1;
                sender.send_if_full().await?;
            }
            rest = rest.get(written..).unwrap_or_default();
        }
    } else if !selection.nothing {
        loop {
            let (page, mut room) = match first.take() {
                Some(first) => first,
                None => {
                    let room = sender.page_room(pages).await?;
                    // The walk continues by itself while it skips rows.
                    (sender.unless_gone(walk.next_page()).await??, room)
                }
            };
            let Some(page) = page else { break };
            shrink(&mut room, page_bytes(page.len(), page.iter().filter_map(|row| row.doc.as_ref())));
            for row in &page {
                separator(&mut rows, &mut sender.buffer);
                write_row(database, row, include_docs, &selection.show, sender).await?;
                sender.send_if_full().await?;
            }
        }
    }
    sender.buffer.extend_from_slice(b"\r\n]");
    if total.is_none() {
        sender.buffer.extend_from_slice(format!(",\"total_rows\":{rows}").as_bytes());
    }
    sender.buffer.push(b'}');
    Ok(())
}

pub(super) fn page_of_keys(
    mut keys: Vec<Value<'static>>,
    descending: bool,
    skip: u64,
    limit: u64,
) -> Vec<Value<'static>> {
    if descending {
        keys.reverse();
    }
    let (skip, limit) = (usize::try_from(skip).unwrap_or(usize::MAX), usize::try_from(limit).unwrap_or(usize::MAX));
    keys.into_iter().skip(skip).take(limit).collect()
}

fn write_missing_of_list(key: &Value<'_>, out: &mut Vec<u8>) {
    Object::new(out).string(name!("id"), "error").value(name!("key"), key).string(name!("value"), "not_found");
}

/// Counts design documents by a walk; there are few.
async fn count_design_documents(
    database: &Reader,
    mut which: AllDocsQuery,
) -> std::result::Result<u64, flatbed_layer::Error> {
    only_design(&mut which);
    let mut walk = database.all_docs(which);
    let mut count = 0;
    while let Some(page) = walk.next_page().await? {
        count += page.len() as u64;
    }
    Ok(count)
}

/// Writes the members before the rows. `total`: `None` for a reader with restricted access, whose total is written
/// after the rows.
fn head(total: Option<u64>, offset: Option<u64>, update_seq: Option<Seq>, out: &mut Vec<u8>) {
    let mut open = Object::new(out);
    if let Some(total) = total {
        open.number("total_rows", total);
    }
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
    show: &AttachmentOptions,
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
