//! `_scheduler`: the replications, whichever server runs them.

use std::collections::HashMap;

use flatbed_http::Reply;
use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{AllDocsQuery, Error as LayerError, Reader};
use flatbed_replicator::{Description, Extent, NODE, REPLICATOR, Spec};
use flatbed_service::Read;
use hyper::{Method, StatusCode};

use crate::error::{Failure, Result};
use crate::json_out::{comma, member, string, string_or_null};
use crate::path::Scheduler;
use crate::request::Request;
use crate::state::State;

/// Rows of a list where no limit is given, as in CouchDB.
const ROWS_DEFAULT: u64 = 100;

/// What is beneath `_scheduler`.
pub(crate) async fn scheduler(state: &State, request: &Request, what: &Scheduler) -> Result<Reply> {
    match what {
        Scheduler::Jobs => jobs(state, request, None).await,
        Scheduler::Job(id) => jobs(state, request, Some(id)).await,
        Scheduler::Docs => docs(state, request, None).await,
        Scheduler::Doc(id) => docs(state, request, Some(id)).await,
        Scheduler::Unknown => Err(Failure::not_found("missing")),
    }
}

/// `_scheduler/jobs` and `_scheduler/jobs/{id}`.
async fn jobs(state: &State, request: &Request, id: Option<&str>) -> Result<Reply> {
    only_get(request)?;
    let mut rows: Vec<(String, Vec<u8>)> = Vec::new();
    let here = state.replicator.here();
    for job in &here {
        let mut text = Vec::new();
        job.write(NODE, Extent::WHOLE, &mut text);
        rows.push((job.id.clone(), text));
    }
    for (doc_id, told) in &told_by_others(&request.context.database(REPLICATOR, Read)?).await? {
        let rev = state.replicator.followed_by(doc_id).map(|followed| followed.rev.to_string());
        // What is told of another revision, or of a document that has ended, is of the past.
        if rev.as_deref() != told.get("rev").and_then(Value::as_str) {
            continue;
        }
        let Some(job) = told.get("job") else { continue };
        let Some(id) = job.get("id").and_then(Value::as_str) else { continue };
        if here.iter().any(|job| job.id == id) {
            continue;
        }
        rows.push((id.to_owned(), text_of(job)));
    }
    rows.sort();
    if let Some(id) = id {
        let found = rows.into_iter().find(|(found, _)| found == id);
        let (_, row) = found.ok_or_else(|| Failure::not_found("missing"))?;
        return Ok(Reply::json(StatusCode::OK, row));
    }
    let (skip, limit) = window(request)?;
    let mut out =
        format!("{{\"total_rows\":{},\"offset\":{},\"jobs\":[", rows.len(), skip.min(rows.len())).into_bytes();
    for (at, (_, row)) in rows.iter().skip(skip).take(limit).enumerate() {
        comma(at, &mut out);
        out.extend_from_slice(row);
    }
    out.extend_from_slice(b"]}");
    Ok(Reply::json(StatusCode::OK, out))
}

/// `_scheduler/docs`, and of one document.
async fn docs(state: &State, request: &Request, id: Option<&str>) -> Result<Reply> {
    only_get(request)?;
    let database = request.context.database(REPLICATOR, Read)?;
    let told = told_by_others(&database).await?;
    if let Some(id) = id {
        let document = database.get(id, &Default::default()).await?;
        let mut description = Description::read(&document).ok_or_else(|| Failure::not_found("missing"))?;
        return Ok(Reply::json(StatusCode::OK, doc(state, &mut description, &told)));
    }
    let (skip, limit) = window(request)?;
    let mut rows = Vec::new();
    let mut total = 0;
    let mut walk = database.all_docs(AllDocsQuery { include_docs: true, ..AllDocsQuery::default() });
    loop {
        let page = match walk.next_page().await {
            Err(LayerError::DatabaseNotFound) => break,
            page => page?,
        };
        let Some(page) = page else { break };
        for row in &page {
            let Some(mut description) = row.doc.as_ref().and_then(Description::read) else { continue };
            if total >= skip && rows.len() < limit {
                rows.push(doc(state, &mut description, &told));
            }
            total += 1;
        }
    }
    let mut out = format!("{{\"total_rows\":{total},\"offset\":{},\"docs\":[", skip.min(total)).into_bytes();
    for (at, row) in rows.iter().enumerate() {
        comma(at, &mut out);
        out.extend_from_slice(row);
    }
    out.extend_from_slice(b"]}");
    Ok(Reply::json(StatusCode::OK, out))
}

/// What the servers tell of the replications that they run, by their documents: the leases' states.
type Told = HashMap<String, Value<'static>>;

async fn told_by_others(database: &Reader) -> Result<Told> {
    let mut told = HashMap::new();
    let mut after: Option<String> = None;
    loop {
        let page = match database.leases(after.as_deref()).await {
            Err(LayerError::DatabaseNotFound) => return Ok(told),
            page => page?,
        };
        let Some((last, _)) = page.last() else { return Ok(told) };
        after = Some(last.clone());
        for (id, lease) in page {
            if let Ok(value) = json::parse(&lease.state, &Limits::default()) {
                told.insert(id, value.into_owned());
            }
        }
    }
}

/// One document's row.
fn doc(state: &State, description: &mut Description, told: &Told) -> Vec<u8> {
    let mut out = Vec::new();
    if description.end().is_none() {
        let followed = state.replicator.followed_by(&description.id);
        if let Some(followed) = &followed
            && followed.is_ours()
        {
            followed.job.write_doc(NODE, Extent::WHOLE, &mut out);
            return out;
        }
        let of_revision =
            |value: &Value<'_>| value.get("rev").and_then(Value::as_str) == Some(description.rev.to_string().as_str());
        if let Some(value) = told.get(&description.id).filter(|value| of_revision(value))
            && let Some(row) = value.get("doc")
        {
            return text_of(row);
        }
        if let Some(followed) = &followed {
            followed.job.write_doc(NODE, Extent::WHOLE, &mut out);
            return out;
        }
    }
    ended(description, &mut out);
    out
}

/// A document that came to its end, or that nobody has looked at yet.
fn ended(description: &mut Description, out: &mut Vec<u8>) {
    let spec = description.spec();
    let noted = |name: &str| description.noted(name).unwrap_or_else(|| b"null".to_vec());
    out.push(b'{');
    member("database", REPLICATOR, out);
    out.push(b',');
    member("doc_id", &description.id, out);
    out.extend_from_slice(b",\"id\":");
    out.extend_from_slice(&noted("id"));
    out.push(b',');
    member("node", NODE, out);
    let shown = |endpoint: fn(&Spec) -> String| spec.as_ref().ok().map(endpoint);
    for (name, shown) in
        [("source", shown(|spec| spec.source.to_string())), ("target", shown(|spec| spec.target.to_string()))]
    {
        out.push(b',');
        string(name, out);
        out.push(b':');
        string_or_null(shown.as_deref(), out);
    }
    out.push(b',');
    member("state", description.end().unwrap_or("initializing"), out);
    out.extend_from_slice(b",\"info\":");
    match description.end() {
        Some("failed") => {
            out.extend_from_slice(b"{\"error\":");
            out.extend_from_slice(&noted("state_reason"));
            out.push(b'}');
        }
        _ => out.extend_from_slice(&noted("stats")),
    }
    let error_count = if description.end() == Some("failed") { 1 } else { 0 };
    out.extend_from_slice(format!(",\"error_count\":{error_count},\"last_updated\":").as_bytes());
    out.extend_from_slice(&noted("state_time"));
    out.extend_from_slice(b",\"start_time\":");
    out.extend_from_slice(&noted("state_time"));
    out.extend_from_slice(b",\"source_proxy\":null,\"target_proxy\":null}");
}

fn text_of(value: &Value<'_>) -> Vec<u8> {
    let mut text = Vec::new();
    json::write(value, &mut text);
    text
}

fn only_get(request: &Request) -> Result<()> {
    if matches!(request.method, Method::GET | Method::HEAD) { Ok(()) } else { Err(Failure::method("GET,HEAD")) }
}

/// `skip` and `limit` of a list.
fn window(request: &Request) -> Result<(usize, usize)> {
    let number = |name: &str, default: u64| -> Result<usize> {
        Ok(usize::try_from(request.query.number(name)?.unwrap_or(default)).unwrap_or(usize::MAX))
    };
    Ok((number("skip", 0)?, number("limit", ROWS_DEFAULT)?))
}
