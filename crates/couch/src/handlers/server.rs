//! Endpoints of the whole server.

use std::num::IntErrorKind;

use flatbed_http::{Reply, ReplyBody};
use flatbed_layer::json::{Array, Object, Value};
use flatbed_layer::{IndexWait, NameRange, ViewTask};
use flatbed_replicator::NODE;
use hyper::{StatusCode, header};

use crate::error::{Failure, Result};
use crate::ids;
use crate::query::{Query, parameters, row_count};
use crate::request::Request;
use crate::state::{COUCHDB_VERSION, State};

/// CouchDB's features that this server has, and its own.
const FEATURES: [&str; 3] = ["partitioned", "scheduler", "flatbed"];

/// The largest number of names that are looked up one by one.
const NAMES_MAX: usize = 1_000;

pub(crate) fn welcome(state: &State) -> Reply {
    Reply::object(StatusCode::OK, |object| {
        object.string("couchdb", "Welcome");
        object.string("version", COUCHDB_VERSION).string("git_sha", "").string("uuid", state.service.uuid());
        object.array("features").strings(FEATURES.iter().copied());
        object.object("vendor").string("name", "Flatbed").string("version", &state.version);
    })
}

pub(crate) async fn up(state: &State) -> Reply {
    if let Some(status) = state.service.configuration().now().maintenance {
        return Reply::object(StatusCode::NOT_FOUND, |object| {
            object.string("status", status);
        });
    }
    state.health.up(&state.service).await
}

parameters! {
    /// The parameters of a range of names of databases.
    struct RangeParameters {
        start_key: Option<String> = name_bound,
        end_key: Option<String> = name_bound,
        inclusive_end: Option<bool> = Query::boolean,
        descending: Option<bool> = Query::boolean,
        skip: Option<usize> = row_count,
        limit: Option<usize> = row_count,
    }
}

/// Returns the requested names of databases that the client may list.
pub(crate) async fn names_of(request: &Request) -> Result<Vec<String>> {
    let query = &request.query;
    if let Some(keys) = query.json(&["keys"])? {
        let Value::Array(keys) = keys else { return Err(Failure::bad_request("`keys` member must be an array.")) };
        return names_among(request, keys.iter().filter_map(Value::as_str)).await;
    }
    if let Some(key) = query.json(&["key"])? {
        return names_among(request, key.as_str().into_iter()).await;
    }
    let RangeParameters { start_key: start, end_key: end, inclusive_end, descending, skip, limit } =
        query.parameters()?;
    let exclusive_end = inclusive_end == Some(false);
    let descending = descending == Some(true);
    let range = NameRange { start, end, exclusive_end, descending, skip: skip.unwrap_or(0), limit };
    Ok(request.context.databases().await?.all_databases(&range).await?)
}

/// Parses a name from JSON; the parameter may lack its underscore. Other JSON is ignored.
fn name_bound(query: &Query, name: &str) -> Result<Option<String>> {
    let name = query.json(&[name, &name.replace('_', "")])?;
    Ok(name.and_then(|name| name.as_str().map(str::to_owned)))
}

/// Returns the names that databases have. Names after the first [`NAMES_MAX`] are ignored.
async fn names_among<'n>(request: &Request, names: impl Iterator<Item = &'n str>) -> Result<Vec<String>> {
    let (mut found, databases) = (Vec::new(), request.context.databases().await?);
    for name in names.take(NAMES_MAX) {
        let one = NameRange { start: Some(name.to_owned()), end: Some(name.to_owned()), ..NameRange::default() };
        found.extend(databases.all_databases(&one).await?);
    }
    Ok(found)
}

pub(crate) async fn all_dbs(request: &Request) -> Result<Reply> {
    let names = names_of(request).await?;
    let out = Array::text(|array| {
        array.strings(names.iter().map(|name| &**name));
    });
    Ok(Reply::json(StatusCode::OK, out))
}

pub(crate) fn uuids(state: &State, request: &Request) -> Result<Reply> {
    let count = match request.query.get("count") {
        None => 1,
        Some(text) => match text.parse::<u64>() {
            Ok(count) => count,
            Err(error) if *error.kind() == IntErrorKind::PosOverflow => u64::MAX,
            Err(_) => return Err(Failure::bad_request("count must be a positive integer")),
        },
    };
    if count > state.service.configuration().now().uuids.count_max {
        return Err(Failure::bad_request("count parameter too large"));
    }
    let mut out = Vec::new();
    let mut answer = Object::new(&mut out);
    let mut uuids = answer.array("uuids");
    for _ in 0..count {
        uuids.string(&state.next_uuid()?);
    }
    uuids.end();
    answer.end();
    let mut reply = Reply::json(StatusCode::OK, out);
    reply.header(header::CACHE_CONTROL, "no-cache");
    reply.header(header::PRAGMA, "no-cache");
    reply.header(header::ETAG, &format!("\"{}\"", ids::random()?));
    Ok(reply)
}

/// The type of tasks for Mango queries that wait for an index.
const FIND_QUERY: &str = "find_query";

pub(crate) async fn active_tasks(state: &State, request: &Request) -> Result<Reply> {
    let server = request.context.server().await?;
    let mut out = Vec::new();
    let mut tasks = Array::new(&mut out);
    for task in server.compactions() {
        let progress = task.changes_done * 100 / task.total_changes.max(1);
        let mut object = tasks.object();
        object.string("type", "database_compaction").string("database", &task.database);
        object.number("changes_done", task.changes_done).number("total_changes", task.total_changes);
        object.number("progress", progress.min(100));
        object.number("started_on", task.started_at_seconds).number("updated_on", task.updated_at_seconds);
    }
    for task in server.resyncs() {
        let mut object = tasks.object();
        object.string("type", "channels_resync").string("database", &task.database);
        object.number("changes_done", task.documents).number("total_changes", task.total);
        object.number("docs_changed", task.changed).number("docs_refused", task.refused);
        object.number("progress", hundredths(task.documents, task.total));
        object.number("started_on", task.started_at_ms / 1_000).number("updated_on", task.updated_at_ms / 1_000);
    }
    for task in server.view_tasks() {
        let mut object = tasks.object();
        object.string("type", "indexer").string("database", &task.database);
        object.string("design_document", &task.design_document).string("signature", &task.signature);
        object.number("changes_done", task.changes_done).number("total_changes", task.total_changes);
        object.number("progress", progress_of(&task)).number("waiting_clients", task.waiting);
        object.number("started_on", task.started_at_ms / 1_000).number("updated_on", task.updated_at_ms / 1_000);
    }
    let (index_waits, other_index_waits) = server.index_waits();
    for build in server.index_builds() {
        let waits_for = |wait: &&IndexWait| (&wait.database, wait.number) == (&build.database, build.number);
        let waiting = index_waits.iter().find(waits_for).map_or(0, |wait| wait.waiting);
        let mut object = tasks.object();
        object.string("type", "indexer").string("database", &build.database);
        object.string("design_document", &build.design_document).number("index", build.number);
        object.number("changes_done", build.entered).number("total_changes", build.total);
        object.number("progress", hundredths(build.entered, build.total)).number("waiting_clients", waiting);
        object.number("started_on", build.started_at_ms / 1_000).number("updated_on", build.updated_at_ms / 1_000);
    }
    for wait in index_waits {
        let mut object = tasks.object();
        object.string("type", FIND_QUERY).string("database", &wait.database);
        object.string("design_document", &wait.design_document).string("index_name", &wait.name);
        object.number("index", wait.number).number("waiting_clients", wait.waiting);
        if let Some(build) = &wait.build {
            object.number("changes_done", build.entered).number("total_changes", build.total);
            object.number("progress", hundredths(build.entered, build.total));
        }
        let updated_ms = wait.build.as_ref().map_or(wait.since_ms, |build| build.updated_at_ms.max(wait.since_ms));
        object.number("started_on", wait.since_ms / 1_000).number("updated_on", updated_ms / 1_000);
    }
    if other_index_waits > 0 {
        tasks.object().string("type", FIND_QUERY).string("database", "").number("waiting_clients", other_index_waits);
    }
    let (waits, others) = server.view_waits();
    for wait in waits {
        let mut object = tasks.object();
        object.string("type", "view_query").string("database", &wait.database);
        object.string("design_document", &wait.design_document).string("view", &wait.view);
        object.string("signature", &wait.signature).number("waiting_clients", wait.waiting);
        if let Some(task) = &wait.task {
            object.number("changes_done", task.changes_done).number("total_changes", task.total_changes);
            object.number("progress", progress_of(task));
        }
        let updated_ms = wait.task.as_ref().map_or(wait.since_ms, |task| task.updated_at_ms.max(wait.since_ms));
        object.number("started_on", wait.since_ms / 1_000).number("updated_on", updated_ms / 1_000);
    }
    if others > 0 {
        // One task for all views beyond the limit.
        tasks.object().string("type", "view_query").string("database", "").number("waiting_clients", others);
    }
    for job in state.replicator.here().iter().filter(|job| job.is_task()) {
        job.write_task(NODE, tasks.place());
    }
    tasks.end();
    Ok(Reply::json(StatusCode::OK, out))
}

fn progress_of(task: &ViewTask) -> u64 {
    hundredths(task.changes_done, task.total_changes)
}

fn hundredths(done: u64, total: u64) -> u64 {
    (done.saturating_mul(100) / total.max(1)).min(100)
}

pub(crate) fn metrics(state: &State) -> Reply {
    let text = crate::metrics::exposition(state);
    let mut reply = Reply::json(StatusCode::OK, Vec::new());
    reply.body = ReplyBody::Full(Some(text.into()));
    reply.header(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
    reply.header(header::CACHE_CONTROL, "no-store");
    reply
}
