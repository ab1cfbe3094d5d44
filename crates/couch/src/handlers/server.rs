//! Paths of the server as a whole.

use flatbed_http::{Reply, ReplyBody};
use flatbed_layer::NameRange;
use flatbed_replicator::NODE;
use hyper::{Method, StatusCode, header};

use crate::error::{Failure, Result};
use crate::ids;
use crate::json_out;
use crate::json_out::{comma, member, string, string_or_null};
use crate::request::Request;
use crate::state::State;

/// Most ids that `_uuids` makes at once.
const UUIDS_MAX: u64 = 1_000;

fn only_get(request: &Request, allow: &'static str) -> Result<()> {
    match request.method {
        Method::GET => Ok(()),
        Method::HEAD if allow.contains("HEAD") => Ok(()),
        _ => Err(Failure::method(allow)),
    }
}

pub(crate) fn welcome(state: &State, request: &Request) -> Result<Reply> {
    only_get(request, "GET,HEAD")?;
    let mut out = b"{\"couchdb\":\"Welcome\",".to_vec();
    // Clients choose what they ask for by the version of CouchDB that they talk to.
    member("version", "3.5.0", &mut out);
    out.push(b',');
    member("git_sha", "", &mut out);
    out.push(b',');
    member("uuid", state.service.uuid(), &mut out);
    out.extend_from_slice(b",\"features\":[\"flatbed\"],\"vendor\":{");
    member("name", "Flatbed", &mut out);
    out.push(b',');
    member("version", &state.version, &mut out);
    out.extend_from_slice(b"}}");
    Ok(Reply::json(StatusCode::OK, out))
}

pub(crate) async fn up(state: &State, request: &Request) -> Result<Reply> {
    only_get(request, "GET,HEAD")?;
    Ok(state.health.up(&state.service).await)
}

pub(crate) fn session(state: &State, request: &Request) -> Result<Reply> {
    match request.method {
        Method::GET | Method::HEAD => {}
        Method::POST | Method::DELETE => return Err(Failure::not_implemented("Cookie sessions")),
        _ => return Err(Failure::method("GET,HEAD,POST,DELETE")),
    }
    let mut out = b"{\"ok\":true,\"userCtx\":{\"name\":".to_vec();
    string_or_null(request.context.principal().name.as_deref(), &mut out);
    out.extend_from_slice(b",\"roles\":[");
    if request.context.principal().is_admin {
        string("_admin", &mut out);
    }
    out.extend_from_slice(b"]},\"info\":{\"authentication_handlers\":[\"default\"]");
    if !state.admins.is_empty() && request.context.principal().name.is_some() {
        out.extend_from_slice(b",\"authenticated\":\"default\"");
    }
    out.extend_from_slice(b"}}");
    Ok(Reply::json(StatusCode::OK, out))
}

pub(crate) async fn all_dbs(request: &Request) -> Result<Reply> {
    only_get(request, "GET,HEAD")?;
    let query = &request.query;
    let name = |names: &[&str]| -> Result<Option<String>> {
        Ok(query.json(names)?.and_then(|value| value.as_str().map(str::to_owned)))
    };
    let range = NameRange {
        start: name(&["start_key", "startkey"])?,
        end: name(&["end_key", "endkey"])?,
        exclusive_end: query.get("inclusive_end") == Some("false"),
        descending: query.flag("descending")?,
        skip: usize::try_from(query.number("skip")?.unwrap_or(0)).unwrap_or(usize::MAX),
        limit: query.number("limit")?.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
    };
    let mut out = b"[".to_vec();
    for (at, name) in request.context.server()?.all_databases(&range).await?.iter().enumerate() {
        comma(at, &mut out);
        string(name, &mut out);
    }
    out.push(b']');
    Ok(Reply::json(StatusCode::OK, out))
}

pub(crate) fn uuids(state: &State, request: &Request) -> Result<Reply> {
    // CouchDB does not name HEAD here, and answers it.
    if !matches!(request.method, Method::GET | Method::HEAD) {
        return Err(Failure::method("GET"));
    }
    let count = match request.query.get("count") {
        None => 1,
        Some(text) => text.parse::<u64>().map_err(|_| Failure::bad_request("count must be a positive integer"))?,
    };
    if count > UUIDS_MAX {
        return Err(Failure::bad_request(format!("count parameter too large: at most {UUIDS_MAX}")));
    }
    let mut out = b"{\"uuids\":[".to_vec();
    for at in 0..count {
        comma(at as usize, &mut out);
        string(&state.uuids.next()?, &mut out);
    }
    out.extend_from_slice(b"]}");
    let mut reply = Reply::json(StatusCode::OK, out);
    reply.header(header::CACHE_CONTROL, "no-cache");
    reply.header(header::PRAGMA, "no-cache");
    reply.header(header::ETAG, &format!("\"{}\"", ids::random()?));
    Ok(reply)
}

pub(crate) fn active_tasks(state: &State, request: &Request) -> Result<Reply> {
    only_get(request, "GET,HEAD")?;
    let mut out = b"[".to_vec();
    for (at, task) in request.context.server()?.compactions().into_iter().enumerate() {
        json_out::comma(at, &mut out);
        let progress = task.changes_done * 100 / task.total_changes.max(1);
        out.extend_from_slice(b"{\"type\":\"database_compaction\",\"database\":");
        json_out::string(&task.database, &mut out);
        let rest = format!(
            ",\"changes_done\":{},\"total_changes\":{},\"progress\":{},\"started_on\":{},\"updated_on\":{}}}",
            task.changes_done,
            task.total_changes,
            progress.min(100),
            task.started_at_seconds,
            task.updated_at_seconds
        );
        out.extend_from_slice(rest.as_bytes());
    }
    for job in state.replicator.here().iter().filter(|job| job.is_running()) {
        json_out::comma(out.len() - 1, &mut out);
        job.write_task(NODE, &mut out);
    }
    out.push(b']');
    Ok(Reply::json(StatusCode::OK, out))
}

pub(crate) fn metrics(state: &State, request: &Request) -> Result<Reply> {
    only_get(request, "GET,HEAD")?;
    let text = crate::metrics::exposition(state);
    let mut reply = Reply::json(StatusCode::OK, Vec::new());
    reply.body = ReplyBody::Full(Some(text.into()));
    reply.header(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
    reply.header(header::CACHE_CONTROL, "no-store");
    Ok(reply)
}
