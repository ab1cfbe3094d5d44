//! `_local_docs`: lists local documents.

use flatbed_http::{Pages, Reply, Sender, spawn};
use flatbed_layer::json::{Object, Value};
use flatbed_layer::{DocumentId, Reader, Seq};
use flatbed_service::Read;

use crate::error::Result;
use crate::handlers::all_docs::{self, Bound, page_of_keys, queries_of};
use crate::handlers::local::{short, write_found, write_missing, write_row};
use crate::handlers::view::{Parameters, Rows};
use crate::query::Query;
use crate::reply::Interrupted;
use crate::request::Request;

struct Selection {
    start: Option<String>,
    end: Option<String>,
    is_end_included: bool,
    descending: bool,
    skip: u64,
    limit: u64,
    include_docs: bool,
    update_seq: bool,
    keys: Option<Vec<Value<'static>>>,
    /// True if no row can match.
    nothing: bool,
}

impl Selection {
    fn of_one(query: &Query, one: &Value<'_>) -> Result<Selection> {
        Selection::new(Parameters::of_one(query, one)?)
    }

    fn new(parameters: Parameters) -> Result<Selection> {
        parameters.check(Rows::Mapped)?;
        let Parameters { start, start_docid, end, end_docid, descending, skip, limit, include_docs, .. } = parameters;
        let (start, end) = match parameters.keys {
            None => (Bound::of(start, start_docid), Bound::of(end, end_docid)),
            Some(_) => (Bound::None, Bound::None),
        };
        let nothing = *(if descending { &start } else { &end }) == Bound::BeforeAll;
        let id = |bound: Bound| bound.id().map(|id| short(&id).to_owned());
        let keys = match parameters.keys {
            Some(Value::Array(keys)) => Some(keys),
            _ => None,
        };
        Ok(Selection {
            start: id(start),
            end: id(end),
            is_end_included: parameters.inclusive_end,
            descending,
            skip,
            limit: limit.unwrap_or(u64::MAX),
            include_docs,
            update_seq: parameters.update_seq,
            keys,
            nothing,
        })
    }

    fn is_past_end(&self, id: &str) -> bool {
        let Some(end) = self.end.as_deref() else { return false };
        let is_beyond = if self.descending { id < end } else { id > end };
        is_beyond || (id == end && !self.is_end_included)
    }
}

pub(crate) async fn list(mut request: Request, name: &str) -> Result<Reply> {
    let (parameters, memory) = all_docs::parameters(&mut request).await?;
    let selection = Selection::new(parameters)?;
    let database = request.context.database(name, Read).await?;
    database.exists().await?;
    let (reply, mut sender) = Reply::stream();
    spawn(async move {
        let (_memory, pages) = (memory, Pages::new(false));
        let Ok(_room) = sender.page_room(&pages).await else { return };
        if answer(&database, selection, &mut sender).await.is_ok() {
            sender.buffer.push(b'\n');
            let _ = sender.finish().await;
        }
    });
    Ok(reply)
}

pub(crate) async fn queries(mut request: Request, name: &str) -> Result<Reply> {
    let (queries, memory) = queries_of(&mut request).await?;
    let parameters = std::mem::take(&mut request.query);
    Parameters::of_all(&parameters)?;
    for query in &queries {
        Selection::of_one(&parameters, query)?;
        // Parsing copies the request's parameters, which may be long.
        tokio::task::yield_now().await;
    }
    let database = request.context.database(name, Read).await?;
    database.exists().await?;
    let (reply, mut sender) = Reply::stream();
    spawn(async move {
        let (_memory, pages) = (memory, Pages::new(false));
        let Ok(_room) = sender.page_room(&pages).await else { return };
        sender.buffer.extend_from_slice(b"{\"results\":[\r\n");
        for (at, query) in queries.iter().enumerate() {
            if at > 0 {
                sender.buffer.extend_from_slice(b",\r\n");
            }
            // All queries were checked before the answer began.
            let Ok(selection) = Selection::of_one(&parameters, query) else { return };
            if answer(&database, selection, &mut sender).await.is_err() {
                return;
            }
        }
        sender.buffer.extend_from_slice(b"\r\n]}\n");
        let _ = sender.finish().await;
    });
    Ok(reply)
}

type WriteResult = std::result::Result<(), Interrupted>;

async fn answer(database: &Reader, mut selection: Selection, sender: &mut Sender) -> WriteResult {
    let update_seq = if selection.update_seq { Some(database.update_seq().await?) } else { None };
    head(update_seq, &mut sender.buffer);
    match selection.keys.take() {
        Some(keys) => by_keys(database, keys, &selection, sender).await?,
        None if selection.nothing => {}
        None => walk(database, &selection, sender).await?,
    }
    sender.buffer.extend_from_slice(b"\r\n]}");
    Ok(())
}

fn head(update_seq: Option<Seq>, out: &mut Vec<u8>) {
    let mut open = Object::new(out);
    open.null("total_rows").null("offset");
    if let Some(seq) = update_seq {
        open.string("update_seq", &seq.to_string());
    }
    open.place("rows").extend_from_slice(b"[\r\n");
    open.leave_open();
}

async fn walk(database: &Reader, selection: &Selection, sender: &mut Sender) -> WriteResult {
    let mut from = selection.start.clone().map(|start| (start, true));
    let (mut skip, mut written) = (selection.skip, 0);
    loop {
        let at = from.as_ref().map(|(id, included)| (id.as_str(), *included));
        let (ids, is_all) = sender.unless_gone(database.list_local(at, selection.descending)).await??;
        for id in &ids {
            if selection.is_past_end(id) || written == selection.limit {
                return Ok(());
            }
            if skip > 0 {
                skip -= 1;
                continue;
            }
            let Some(document) = sender.unless_gone(database.get_local(id)).await?? else { continue };
            separate(written > 0, &mut sender.buffer);
            write_row(&document, selection.include_docs, &mut sender.buffer);
            written += 1;
            sender.send_if_full().await?;
        }
        match ids.into_iter().last() {
            Some(last) if !is_all => from = Some((last, false)),
            _ => return Ok(()),
        }
    }
}

async fn by_keys(
    database: &Reader,
    keys: Vec<Value<'static>>,
    selection: &Selection,
    sender: &mut Sender,
) -> WriteResult {
    let mut keys = page_of_keys(keys, selection.descending, selection.skip, selection.limit);
    // As in CouchDB, `skip` and `limit` count all keys.
    keys.retain(|key| key.as_str().is_some_and(|id| DocumentId::of(id).local_name().is_some()));
    for (at, key) in keys.iter().enumerate() {
        separate(at > 0, &mut sender.buffer);
        write_found(database, key, selection.include_docs, write_missing, sender).await?;
        sender.send_if_full().await?;
    }
    Ok(())
}

fn separate(is_behind_another: bool, out: &mut Vec<u8>) {
    if is_behind_another {
        out.extend_from_slice(b",\r\n");
    }
}
