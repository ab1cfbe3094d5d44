//! From a request to its handler, and from the handler's result to the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Response};

use crate::error::{Failure, Result};
use crate::handlers::{all_docs, bulk, changes, database, document, server};
use crate::metrics::Route;
use crate::query::{Query, decode};
use crate::reply::{Reply, ReplyBody};
use crate::request::Request;
use crate::server::State;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-couch-request-id");

/// Numbers requests; only to tell them apart in a log.
static REQUESTS: AtomicU64 = AtomicU64::new(1);

/// Answers one request.
pub(crate) async fn answer(state: Arc<State>, request: hyper::Request<Incoming>) -> Response<ReplyBody> {
    let started = Instant::now();
    let (parts, body) = request.into_parts();
    let (method, uri, headers) = (parts.method, parts.uri, parts.headers);
    let is_head = method == Method::HEAD;
    let request_headers = if headers.contains_key(header::ORIGIN) { headers.clone() } else { Default::default() };
    let plain = wants_plain_text(headers.get(header::ACCEPT));
    let mut route = Route::Other;
    let mut reply = match state.cors.preflight(&method, &headers) {
        Some(reply) => reply,
        None => {
            let handled = async {
                let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
                let principal = state.admins.authenticate(authorization).await?;
                let segments = segments(uri.path())?;
                route = route_of(&segments);
                let memory = state.memory.clone();
                let query = Query::parse(uri.query())?;
                let request = Request { method: method.clone(), segments, query, headers, body, memory, principal };
                run(state.clone(), request).await
            };
            handled.await.unwrap_or_else(|failure| Reply::failure(&failure))
        }
    };
    if plain && reply.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json") {
        reply.header(header::CONTENT_TYPE, "text/plain; charset=utf-8");
    }
    if is_head {
        if let ReplyBody::Full(Some(body)) = &reply.body {
            let length = body.len().to_string();
            reply.header(header::CONTENT_LENGTH, &length);
        }
        reply.body = ReplyBody::Full(None);
    }
    state.cors.decorate(&request_headers, &mut reply.headers);
    let id = REQUESTS.fetch_add(1, Ordering::Relaxed);
    let id = format!("{:010x}", id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24);
    reply.header(REQUEST_ID, &id);
    if let Ok(value) = HeaderValue::from_str(&format!("Flatbed/{}", state.version)) {
        reply.headers.insert(header::SERVER, value);
    }
    state.requests.count(route, reply.status.as_u16());
    tracing::debug!(
        request = id,
        %method,
        path = uri.path(),
        status = reply.status.as_u16(),
        microseconds = started.elapsed().as_micros() as u64,
        "request"
    );
    let mut response = Response::new(reply.body);
    *response.status_mut() = reply.status;
    *response.headers_mut() = reply.headers;
    response
}

/// A request that changes something goes on when its client hangs up: a commit in flight is not dropped.
async fn run(state: Arc<State>, request: Request) -> Result<Reply> {
    if matches!(request.method, Method::GET | Method::HEAD) {
        return dispatch(&state, request).await;
    }
    let task = tokio::spawn(async move { dispatch(&state, request).await });
    task.await.unwrap_or_else(|error| {
        tracing::error!(%error, "a handler failed");
        Err(Failure::new(hyper::StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", "see the server's log"))
    })
}

fn segments(path: &str) -> Result<Vec<String>> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() { Ok(Vec::new()) } else { path.split('/').map(decode).collect() }
}

fn route_of(segments: &[String]) -> Route {
    let names: Vec<&str> = segments.iter().take(2).map(String::as_str).collect();
    match names[..] {
        [] => Route::Server,
        [name] if name.starts_with('_') => Route::Server,
        [_] => Route::Database,
        [_, "_bulk_docs"] => Route::BulkDocs,
        [_, "_bulk_get"] => Route::BulkGet,
        [_, "_all_docs" | "_design_docs"] => Route::AllDocs,
        [_, "_changes"] => Route::Changes,
        [_, name, ..] if name.starts_with('_') && !name.starts_with("_design") => Route::Other,
        _ => Route::Document,
    }
}

async fn dispatch(state: &State, mut request: Request) -> Result<Reply> {
    let segments = std::mem::take(&mut request.segments);
    let names: Vec<&str> = segments.iter().map(String::as_str).collect();
    // What a server tells anyone; all else is the administrators' as long as there are no other users.
    match names[..] {
        [] => return server::welcome(state, &request),
        ["_up"] => return server::up(state, &request).await,
        ["_session"] => return server::session(state, &request),
        _ => {}
    }
    if !request.principal.is_admin {
        request.skip_body().await;
        return Err(Failure::unauthorized("You are not authorized to access this db."));
    }
    match names[..] {
        ["_all_dbs"] => server::all_dbs(state, &request).await,
        ["_uuids"] => server::uuids(&request),
        ["_active_tasks"] => server::active_tasks(&request),
        ["metrics"] => server::metrics(state, &request),
        [name] => database::root(state, request, name).await,
        [name, "_bulk_docs"] => bulk::bulk_docs(state, request, name).await,
        [name, "_bulk_get"] => bulk::bulk_get(state, request, name).await,
        [name, "_all_docs"] => all_docs::all_docs(state, request, name, all_docs::Documents::All).await,
        [name, "_all_docs", "queries"] => all_docs::queries(state, request, name).await,
        [name, "_design_docs"] => all_docs::all_docs(state, request, name, all_docs::Documents::Design).await,
        [name, "_changes"] => changes::changes(state, request, name).await,
        [name, "_ensure_full_commit"] => database::ensure_full_commit(state, request, name).await,
        [name, "_revs_limit"] => database::revs_limit(state, request, name).await,
        [_, "_local", ..] | [_, "_local_docs"] => Err(Failure::not_implemented("Local documents")),
        [_, "_find" | "_index" | "_explain", ..] => Err(Failure::not_implemented("Mango queries")),
        [
            _,
            path @ ("_revs_diff"
            | "_missing_revs"
            | "_purge"
            | "_purged_infos_limit"
            | "_compact"
            | "_view_cleanup"
            | "_security"
            | "_shards"
            | "_sync_shards"
            | "_partition"),
            ..,
        ] => Err(Failure::not_implemented(path)),
        [name, "_design", id] => {
            let id = format!("_design/{id}");
            document::document(state, request, name, &id).await
        }
        [_, "_design", _, path, ..] if path.starts_with('_') => {
            Err(Failure::not_implemented("Functions of design documents"))
        }
        [name, "_design", id, ..] => document::attachment(state, request, name, &format!("_design/{id}")).await,
        [name, id] => document::document(state, request, name, id).await,
        [name, id, ..] => document::attachment(state, request, name, id).await,
        [] => Err(Failure::not_found("missing")),
    }
}

/// CouchDB says `text/plain` to who does not take JSON.
fn wants_plain_text(accept: Option<&HeaderValue>) -> bool {
    let Some(accept) = accept.and_then(|value| value.to_str().ok()) else { return false };
    !accept.split(',').any(|kind| {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        matches!(kind, "application/json" | "application/*" | "*/*" | "text/event-stream" | "")
    })
}
