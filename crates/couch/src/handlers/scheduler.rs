//! `_scheduler`: the replications of all servers.

use std::collections::HashMap;

use flatbed_http::Reply;
use flatbed_layer::json::{self, Limits, Object, Value};
use flatbed_layer::{AllDocsQuery, Error as LayerError, REPLICATOR, Reader};
use flatbed_replicator::{Description, NODE, RowExtent, Spec, SpecDefaults};
use flatbed_service::Read;
use hyper::StatusCode;

use crate::error::{Failure, Result};
use crate::path::Scheduler;
use crate::query::{Query, parameters, row_count};
use crate::request::Request;
use crate::state::State;

/// The default number of rows, as in CouchDB.
const ROWS_DEFAULT: usize = 100;

/// The states that documents may be listed by, in CouchDB's order.
const STATES: [&str; 7] = ["initializing", "error", "running", "pending", "crashing", "completed", "failed"];

parameters! {
    /// The parameters of a list of jobs.
    struct PageParameters {
        skip: Option<usize> = row_count,
        limit: Option<usize> = row_count,
    }
}

parameters! {
    /// The parameters of a list of documents.
    struct DocsParameters {
        skip: Option<usize> = row_count,
        limit: Option<usize> = row_count,
        /// Empty for all states.
        states: Vec<String> = states,
    }
}

pub(crate) async fn scheduler(state: &State, request: &Request, what: &Scheduler) -> Result<Reply> {
    match what {
        Scheduler::Jobs => jobs(state, request, None).await,
        Scheduler::Job(id) => jobs(state, request, Some(id)).await,
        Scheduler::Docs => docs(state, request, REPLICATOR, None).await,
        Scheduler::Doc(id) => docs(state, request, REPLICATOR, Some(id)).await,
        Scheduler::DocsOf(name) => docs(state, request, name, None).await,
        Scheduler::DocOf(name, id) => docs(state, request, name, Some(id)).await,
        Scheduler::Unknown => Err(Failure::not_found("missing")),
    }
}

async fn jobs(state: &State, request: &Request, id: Option<&str>) -> Result<Reply> {
    let mut rows: Vec<(String, Vec<u8>)> = Vec::new();
    let here = state.replicator.here();
    for job in &here {
        let mut text = Vec::new();
        job.write(NODE, RowExtent::WHOLE, &mut text);
        rows.push((job.id.clone(), text));
    }
    let mut databases = request.context.server().await?.replicator_databases().await?;
    databases.push(REPLICATOR.into());
    for name in databases {
        for (doc_id, report) in &reports_of(&request.context.database(&name, Read).await?).await? {
            let rev = state.replicator.followed_by(&name, doc_id).map(|followed| followed.rev.to_string());
            // A report on another revision, or on a document whose replication has ended, is stale.
            if rev.as_deref() != report.get("rev").and_then(Value::as_str) {
                continue;
            }
            let Some(job) = report.get("job") else { continue };
            let Some(id) = job.get("id").and_then(Value::as_str) else { continue };
            if here.iter().any(|job| job.id == id) {
                continue;
            }
            rows.push((id.to_owned(), json::to_vec(job)));
        }
    }
    rows.sort();
    if let Some(id) = id {
        let found = rows.into_iter().find(|(found, _)| found == id);
        let (_, row) = found.ok_or_else(|| Failure::not_found("missing"))?;
        return Ok(Reply::json(StatusCode::OK, row));
    }
    let PageParameters { skip, limit } = request.query.parameters()?;
    let skip = skip.unwrap_or(0);
    let shown = rows.iter().skip(skip).take(limit.unwrap_or(ROWS_DEFAULT)).map(|(_, row)| &row[..]);
    let out = list("jobs", rows.len(), skip, shown);
    Ok(Reply::json(StatusCode::OK, out))
}

async fn docs(state: &State, request: &Request, name: &str, id: Option<&str>) -> Result<Reply> {
    let database = request.context.database(name, Read).await?;
    if name != REPLICATOR {
        database.exists().await?;
        // A database that starts no replications is not listed, whatever its name.
        if !request.context.asks_for_replications(name).await? {
            return Err(Failure::not_found("missing"));
        }
    }
    let reports = reports_of(&database).await?;
    if let Some(id) = id {
        let document = database.get(id, &Default::default()).await?;
        let mut description = Description::read(&document).ok_or_else(|| Failure::not_found("missing"))?;
        return Ok(Reply::json(StatusCode::OK, doc(state, name, &mut description, &reports)));
    }
    let DocsParameters { skip, limit, states } = request.query.parameters()?;
    let (skip, limit) = (skip.unwrap_or(0), limit.unwrap_or(ROWS_DEFAULT));
    let mut rows = Vec::new();
    // All documents, and those of the states.
    let (mut total, mut listed) = (0, 0);
    let mut walk = database.all_docs(AllDocsQuery { include_docs: true, ..AllDocsQuery::default() });
    loop {
        let page = match walk.next_page().await {
            Err(LayerError::DatabaseNotFound) => break,
            page => page?,
        };
        let Some(page) = page else { break };
        for row in &page {
            let Some(mut description) = row.doc.as_ref().and_then(Description::read) else { continue };
            total += 1;
            if rows.len() >= limit {
                continue;
            }
            let is_shown = listed >= skip;
            if is_shown || !states.is_empty() {
                let row = doc(state, name, &mut description, &reports);
                if !has_state(&row, &states) {
                    continue;
                }
                if is_shown {
                    rows.push(row);
                }
            }
            listed += 1;
        }
    }
    let out = list("docs", total, skip, rows.iter().map(|row| &row[..]));
    Ok(Reply::json(StatusCode::OK, out))
}

/// Formats `{"total_rows":...,"offset":...,"NAME":[...]}`.
fn list<'r>(name: &str, total: usize, skip: usize, rows: impl Iterator<Item = &'r [u8]>) -> Vec<u8> {
    Object::text(|object| {
        object.number("total_rows", total as u64).number("offset", skip.min(total) as u64);
        let mut array = object.array(name);
        for row in rows {
            array.raw(row);
        }
    })
}

/// The servers' reports on running replications, from the leases, by document.
type Reports = HashMap<String, Value<'static>>;

async fn reports_of(database: &Reader) -> Result<Reports> {
    let mut reports = HashMap::new();
    let mut after: Option<String> = None;
    loop {
        let page = match database.leases(after.as_deref()).await {
            Err(LayerError::DatabaseNotFound) => return Ok(reports),
            page => page?,
        };
        let Some((last, _)) = page.last() else { return Ok(reports) };
        after = Some(last.clone());
        for (id, lease) in page {
            if let Ok(value) = json::parse(&lease.state, &Limits::default()) {
                reports.insert(id, value.into_owned());
            }
        }
    }
}

fn doc(state: &State, database: &str, description: &mut Description, reports: &Reports) -> Vec<u8> {
    let mut out = Vec::new();
    if description.end().is_none() {
        let followed = state.replicator.followed_by(database, &description.id);
        if let Some(followed) = &followed
            && followed.is_ours()
        {
            followed.job.write_doc(NODE, RowExtent::WHOLE, &mut out);
            return out;
        }
        let of_revision =
            |value: &Value<'_>| value.get("rev").and_then(Value::as_str) == Some(description.rev.to_string().as_str());
        if let Some(value) = reports.get(&description.id).filter(|value| of_revision(value))
            && let Some(row) = value.get("doc")
        {
            return json::to_vec(row);
        }
        if let Some(followed) = &followed {
            followed.job.write_doc(NODE, RowExtent::WHOLE, &mut out);
            return out;
        }
    }
    write_ended(database, description, &mut out);
    out
}

/// Writes the row of a document whose replication has ended or has not been scheduled.
fn write_ended(database: &str, description: &mut Description, out: &mut Vec<u8>) {
    let spec = description.spec(SpecDefaults::default());
    let noted = |name: &str| description.recorded_member(name).unwrap_or_else(|| b"null".to_vec());
    let mut object = Object::new(out);
    object.string("database", database).string("doc_id", &description.id);
    object.raw("id", &noted("id")).string("node", NODE);
    let shown = |endpoint: fn(&Spec) -> String| spec.as_ref().ok().map(endpoint);
    for (name, shown) in
        [("source", shown(|spec| spec.source.to_string())), ("target", shown(|spec| spec.target.to_string()))]
    {
        object.string_or_null(name, shown.as_deref());
    }
    object.string("state", description.end().unwrap_or("initializing"));
    let has_failed = description.end() == Some("failed");
    if has_failed {
        object.object("info").raw("error", &noted("state_reason"));
    } else {
        object.raw("info", &noted("stats"));
    }
    object.number("error_count", has_failed.into());
    object.raw("last_updated", &noted("state_time")).raw("start_time", &noted("state_time"));
    object.null("source_proxy").null("target_proxy");
}

/// Parses names of states with commas between them.
fn states(query: &Query, name: &str) -> Result<Vec<String>> {
    let names = query.get(name).unwrap_or_default().split(',').filter(|name| !name.is_empty());
    let names: Vec<String> = names.map(str::to_ascii_lowercase).collect();
    if names.iter().all(|name| STATES.contains(&name.as_str())) {
        Ok(names)
    } else {
        Err(Failure::query(format!("States must be one or more of [{}]", STATES.join(","))))
    }
}

fn has_state(row: &[u8], states: &[String]) -> bool {
    let is_one = |row: &Value<'_>| {
        row.get("state").and_then(Value::as_str).is_some_and(|state| states.iter().any(|name| name == state))
    };
    states.is_empty() || json::parse(row, &Limits::default()).is_ok_and(|row| is_one(&row))
}
