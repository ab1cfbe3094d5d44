//! Mango: `_find`, `_explain` and `_count`.

use flatbed_http::{CHUNK_BYTES, Pages, Reply, Sender, first_room, shrink, spawn};
use flatbed_layer::json::{self, Value};
use flatbed_mango::{ExecutionStats, Find, HEAD, count_answer, tail, write_tail};
use flatbed_service::{CountResult, Query, QueryError, Read};
use hyper::StatusCode;

use crate::error::{Failure, Result};
use crate::handlers::bulk::{json_body, object};
use crate::handlers::indexes;
use crate::metrics::{Queries, QueryIndex};
use crate::path::Mango;
use crate::query::text;
use crate::reply::Interrupted;
use crate::request::{Body, Memory, Request};
use crate::state::State;

/// Handles the query endpoints. `partition` is the path's; `_find` and `_explain` also read it from the query string,
/// as in CouchDB.
pub(crate) async fn mango(
    state: &State,
    mut request: Request,
    name: &str,
    what: Mango,
    partition: Option<String>,
) -> Result<Reply> {
    let partition = match (&what, partition) {
        (Mango::Find | Mango::Explain, None) => text(&request.query, "partition")?,
        (_, of_path) => of_path,
    };
    match what {
        Mango::Find => find(state, request, name, partition).await,
        Mango::Explain => explain_find(state, request, name, partition).await,
        Mango::Count => count(state, request, name, partition).await,
        Mango::Indexes => indexes::indexes(request, name).await,
        Mango::BulkDelete => indexes::bulk_delete(request, name).await,
        Mango::Index { ddoc, kind, name: index } => indexes::index(request, name, &ddoc, &kind, &index).await,
        Mango::Unknown => request.refuse(Failure::not_found("missing")).await,
    }
}

pub(crate) async fn body_of(request: &mut Request) -> Result<(Value<'static>, Memory)> {
    let Body { bytes, memory } = json_body(request).await?;
    Ok((object(&bytes)?.into_owned(), memory))
}

/// A running query that counts its cost.
struct RunningQuery<'s> {
    query: Query,
    counted: ExecutionStats,
    index: QueryIndex,
    queries: &'s Queries,
}

impl<'s> RunningQuery<'s> {
    fn new(query: Query, queries: &'s Queries) -> RunningQuery<'s> {
        let index = QueryIndex::of(query.index());
        queries.begin(index);
        RunningQuery { query, counted: ExecutionStats::default(), index, queries }
    }

    async fn next_page(&mut self) -> std::result::Result<Option<Vec<Vec<u8>>>, QueryError> {
        let page = self.query.next_page().await;
        let stats = self.query.stats();
        self.queries.examined(self.index, &self.counted, &stats);
        self.counted = stats;
        page
    }
}

/// Parses the body of a `_find`. Without a `limit` it has that of the settings.
async fn read_find(
    state: &State,
    request: &Request,
    name: &str,
    partition: Option<String>,
    body: Value<'static>,
) -> Result<Find> {
    let limit = state.service.configuration().now().limits.find_documents;
    let parse = move |body: &Value<'_>, stop: &dyn Fn() -> bool| {
        let find = Find::parse(body, partition.as_deref(), stop);
        if body.get("limit").is_some() { find } else { find.map(|find| Find { limit, ..find }) }
    };
    Ok(request.context.read_query(name, body, parse).await?)
}

async fn find(state: &State, mut request: Request, name: &str, partition: Option<String>) -> Result<Reply> {
    let (body, memory) = body_of(&mut request).await?;
    let find = read_find(state, &request, name, partition, body).await?;
    let database = request.context.database(name, Read).await?;
    let query = request.context.query(&database, find).await?;
    let queries = state.queries.clone();
    let pages = Pages::new(true);
    let mut running = RunningQuery::new(query, &queries);
    // Errors before the first documents answer with an error status.
    let (mut room, first) = loop {
        let room = first_room(&pages).await?;
        match running.next_page().await? {
            Some(page) if page.is_empty() => {}
            page => break (room, page),
        }
    };
    shrink(&mut room, bytes_of(first.as_deref().unwrap_or_default()));
    let RunningQuery { query, counted, index, .. } = running;
    let (reply, mut sender) = Reply::stream();
    spawn(async move {
        let _memory = memory;
        let mut running = RunningQuery { query, counted, index, queries: &queries };
        let written = async {
            let mut page = first;
            let mut at = 0;
            sender.buffer.extend_from_slice(HEAD.as_bytes());
            while let Some(documents) = page {
                write_documents(documents, &mut at, &mut sender).await?;
                drop(room);
                room = sender.page_room(&pages).await?;
                page = sender.unless_gone(running.next_page()).await?.map_err(Failure::from)?;
                shrink(&mut room, bytes_of(page.as_deref().unwrap_or_default()));
            }
            Ok::<(), Interrupted>(())
        };
        if written.await.is_err() {
            return;
        }
        let query = &running.query;
        let members = match query.is_nothing() {
            true => Vec::new(),
            false => tail(query.find(), query.index(), &query.bookmark(), &query.stats()),
        };
        write_tail(&members, &mut sender.buffer);
        let _ = sender.finish().await;
    });
    Ok(reply)
}

fn bytes_of(documents: &[Vec<u8>]) -> usize {
    CHUNK_BYTES + documents.iter().map(Vec::len).sum::<usize>()
}

async fn write_documents(
    documents: Vec<Vec<u8>>,
    at: &mut u64,
    sender: &mut Sender,
) -> std::result::Result<(), Interrupted> {
    for document in documents {
        sender.buffer.extend_from_slice(if *at == 0 { b"\r\n" } else { b",\r\n" });
        *at += 1;
        sender.write(&document).await?;
        sender.send_if_full().await?;
    }
    Ok(())
}

async fn explain_find(state: &State, mut request: Request, name: &str, partition: Option<String>) -> Result<Reply> {
    let (body, _memory) = body_of(&mut request).await?;
    let find = read_find(state, &request, name, partition, body).await?;
    let database = request.context.database(name, Read).await?;
    Ok(answer(&request.context.explain_query(&database, find).await?))
}

async fn count(state: &State, mut request: Request, name: &str, partition: Option<String>) -> Result<Reply> {
    let (body, _memory) = body_of(&mut request).await?;
    let parse = move |body: &Value<'_>, stop: &dyn Fn() -> bool| Find::parse_count(body, partition.as_deref(), stop);
    let find = request.context.read_query(name, body, parse).await?;
    let database = request.context.database(name, Read).await?;
    let CountResult { find, index, count, stats } = request.context.count(&database, find).await?;
    let kind = QueryIndex::of(&index);
    state.queries.begin(kind);
    state.queries.examined(kind, &ExecutionStats::default(), &stats);
    Ok(answer(&count_answer(&find, &index, count, &stats)))
}

pub(crate) fn answer(value: &Value<'_>) -> Reply {
    Reply::json(StatusCode::OK, json::to_vec(value))
}
