//! `POST /_replicate` and `_scheduler`.

use flatbed_layer::json::{Limits, Value, parse};
use flatbed_replicate::{Error, Spec};
use hyper::{Method, StatusCode};

use crate::error::{Failure, Result};
use crate::handlers::bulk::json_body;
use crate::json_out;
use crate::reply::Reply;
use crate::request::Request;
use crate::server::State;

/// Where CouchDB names a node of its cluster.
pub(crate) const NODE: &str = "flatbed@localhost";

/// Rows of a list where no limit is given, as in CouchDB.
const ROWS_DEFAULT: u64 = 100;

fn failure(error: &Error) -> Failure {
    let reason = error.to_string();
    let status = match error {
        Error::InvalidSpec(_) | Error::Url(..) => StatusCode::BAD_REQUEST,
        Error::DatabaseNotFound(_) => StatusCode::NOT_FOUND,
        Error::Unauthorized(_) => StatusCode::UNAUTHORIZED,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Failure::new(status, error.word(), reason)
}

pub(crate) async fn replicate(state: &State, mut request: Request) -> Result<Reply> {
    let body = json_body(&mut request).await?;
    let value = parse(&body.bytes, &Limits::default()).map_err(|_| Failure::invalid_json())?;
    if !matches!(value, Value::Object(_)) {
        return Err(Failure::bad_request("Request body must be a JSON object"));
    }
    if value.get("cancel") == Some(&Value::Bool(true)) {
        let named = ["replication_id", "id", "_local_id"].iter().find_map(|name| value.get(name)?.as_str());
        let id = match named {
            Some(id) => id.to_owned(),
            None => Spec::parse(&value).map_err(|error| failure(&error))?.id(state.layer.uuid()),
        };
        drop(value);
        drop(body);
        let Some(id) = state.replicator.cancel(&id).await else {
            return Err(Failure::new(StatusCode::NOT_FOUND, "not found", "no such replication"));
        };
        return Ok(local_id(StatusCode::OK, &id));
    }
    let spec = Spec::parse(&value).map_err(|error| failure(&error))?;
    drop(value);
    drop(body);
    let is_continuous = spec.continuous;
    let job = state.replicator.begin(spec, request.principal.name.clone());
    if is_continuous {
        return Ok(local_id(StatusCode::ACCEPTED, &job.id));
    }
    let outcome = job.ended().await.map_err(|error| failure(&error))?;
    let mut out = b"{\"ok\":true,".to_vec();
    if outcome.no_changes {
        out.extend_from_slice(b"\"no_changes\":true,");
    }
    out.extend_from_slice(&outcome.members);
    out.push(b'}');
    Ok(Reply::json(StatusCode::OK, out))
}

fn local_id(status: StatusCode, id: &str) -> Reply {
    let mut out = b"{\"ok\":true,".to_vec();
    json_out::member("_local_id", id, &mut out);
    out.push(b'}');
    Reply::json(status, out)
}

/// `_scheduler/jobs` and `_scheduler/jobs/{id}`.
pub(crate) fn jobs(state: &State, request: &Request, id: Option<&str>) -> Result<Reply> {
    only_get(request)?;
    let jobs = state.replicator.all();
    let mut out = Vec::new();
    if let Some(id) = id {
        let job = jobs.iter().find(|job| job.id == id).ok_or_else(|| Failure::not_found("missing"))?;
        job.write(NODE, &mut out);
        return Ok(Reply::json(StatusCode::OK, out));
    }
    let (skip, limit) = window(request)?;
    let offset = skip.min(jobs.len());
    out.extend_from_slice(format!("{{\"total_rows\":{},\"offset\":{offset},\"jobs\":[", jobs.len()).as_bytes());
    for (at, job) in jobs.iter().skip(skip).take(limit).enumerate() {
        json_out::comma(at, &mut out);
        job.write(NODE, &mut out);
    }
    out.extend_from_slice(b"]}");
    Ok(Reply::json(StatusCode::OK, out))
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
