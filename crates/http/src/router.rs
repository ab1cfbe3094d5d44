//! From a request to its handler, and from the handler's result to the answer.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{self, HeaderName};
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Response, StatusCode};

use crate::arriving::Arriving;
use crate::body_memory::Client;
use crate::error::{Failure, Result};
use crate::handlers::replicate::NODE;
use crate::handlers::{
    all_docs, attachment, bulk, bulk_get, changes, database, db_updates, document, local, maintenance, replicate,
    revisions, scheduler, server,
};
use crate::host;
use crate::outlet::Outlet;
use crate::query::{Query, decode};
use crate::replicator::REPLICATOR;
use crate::reply::{Reply, ReplyBody};
use crate::request::Request;
use crate::route::{DATABASES_OF_THE_SYSTEM, Route, Verb};
use crate::server::State;
use crate::tracked::{Tracked, Tracking, spawn};
use flatbed_auth::Principal;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-couch-request-id");

/// Where a client says which challenge it wants to see in a 401.
const WANTED_CHALLENGE: HeaderName = HeaderName::from_static("x-couchdb-www-authenticate");

/// Answers one request at its outlet; `peer` is `None` for one of this server's own replications.
pub(crate) async fn answer(
    state: Arc<State>,
    request: hyper::Request<Incoming>,
    peer: Option<SocketAddr>,
    outlet: Arc<Outlet>,
) -> Response<Tracked> {
    let id = state.request_ids.next();
    let segments = segments(request.uri().path());
    let route = segments.as_ref().map_or(Route::Invalid, |segments| Route::of(segments));
    let tracking = Tracking::begin(&state.metrics, &id, request.method(), request.uri(), route, peer, outlet.clone());
    if let Some(continue_trace) = state.continue_trace {
        tracking.continue_trace(continue_trace, request.headers());
    }
    // What wraps it would have room for its state several times.
    let spans = tracking.spans();
    spans.within(Box::pin(answer_within(state, request, id, (segments, route), tracking, outlet))).await
}

async fn answer_within(
    state: Arc<State>,
    request: hyper::Request<Incoming>,
    id: String,
    (segments, mut route): (Result<Vec<String>>, Route),
    tracking: Tracking,
    outlet: Arc<Outlet>,
) -> Response<Tracked> {
    outlet.connection().unblocked().await;
    // Where others wait for room for what they have made, nothing is made that would wait behind them.
    outlet.until_there_is_room().await;
    let (mut parts, body) = request.into_parts();
    // Nothing from outside has extensions.
    let inside = parts.extensions.remove::<Principal>();
    let (version, upgrade) = (parts.version, parts.extensions.remove::<OnUpgrade>());
    let (method, uri, headers) = (parts.method, parts.uri, parts.headers);
    let is_head = method == Method::HEAD;
    let request_headers = if headers.contains_key(header::ORIGIN) { headers.clone() } else { Default::default() };
    let challenge = headers.get(WANTED_CHALLENGE).cloned();
    let is_inside = inside.is_some();
    let mut user = None;
    // What replications ask this server itself goes by no name.
    let checked = if is_inside { Ok(()) } else { host::check(version, &uri, &headers, state.admins.is_empty()) };
    let preflight = if checked.is_ok() { state.cors.preflight(&method, &headers) } else { None };
    let mut reply = match preflight {
        Some(reply) => {
            route = Route::Preflight;
            reply
        }
        None => {
            let handled = async {
                checked?;
                let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
                let principal = match inside {
                    Some(principal) => principal,
                    None => state.admins.authenticate(authorization).await?,
                };
                if principal.is_admin {
                    outlet.connection().know();
                }
                user = principal.name.clone();
                let segments = segments?;
                let memory = state.memory.clone();
                let body = Arriving::new(body, &memory);
                let query = Query::parse(uri.query())?;
                let (method, uri) = (method.clone(), uri.clone());
                let request = Request {
                    method,
                    uri,
                    version,
                    segments,
                    query,
                    headers,
                    body,
                    upgrade,
                    memory,
                    client: None,
                    principal,
                };
                run(state.clone(), request).await
            };
            handled.await.unwrap_or_else(|failure| Reply::failure(&failure))
        }
    };
    if let (StatusCode::UNAUTHORIZED, Some(challenge)) = (reply.status, challenge) {
        reply.headers.insert(header::WWW_AUTHENTICATE, challenge);
    }
    if is_head {
        if let ReplyBody::Full(Some(body)) = &reply.body {
            let length = body.len().to_string();
            reply.header(header::CONTENT_LENGTH, &length);
        }
        reply.body = ReplyBody::Full(None);
    }
    reply.find_room(&outlet).await;
    state.cors.decorate(&request_headers, &mut reply.headers);
    reply.header(REQUEST_ID, &id);
    reply.headers.insert(header::SERVER, state.server_header.clone());
    // What replications ask this server itself is no client's request.
    if !is_inside {
        state.metrics.answered(route, Verb::from(&method), reply.status.as_u16(), tracking.elapsed());
    }
    tracking.respond(reply, user)
}

/// A request that changes something goes on when its client hangs up: a commit in flight is not dropped.
async fn run(state: Arc<State>, mut request: Request) -> Result<Reply> {
    if matches!(request.method, Method::GET | Method::HEAD) {
        return dispatch(&state, request).await;
    }
    let (client, _there) = Client::new();
    request.client = Some(client);
    let task = spawn(async move { dispatch(&state, request).await });
    task.await.unwrap_or_else(|error| {
        tracing::error!(%error, "a handler failed");
        Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", "see the server's log"))
    })
}

/// The path's parts, decoded; as in CouchDB several slashes are one.
fn segments(path: &str) -> Result<Vec<String>> {
    path.split('/').filter(|segment| !segment.is_empty()).map(decode).collect()
}

async fn dispatch(state: &State, mut request: Request) -> Result<Reply> {
    let segments = std::mem::take(&mut request.segments);
    let names: Vec<&str> = segments.iter().map(String::as_str).collect();
    // What a server tells anyone; all else is the administrators' as long as there are no other users.
    match names[..] {
        [] => return server::welcome(state, &request),
        ["_up"] => return Box::pin(server::up(state, &request)).await,
        ["_session"] => return server::session(state, &request),
        ["_uuids"] => return server::uuids(state, &request),
        _ => {}
    }
    if !request.principal.is_admin {
        request.skip_body().await;
        let of_server = match names[..] {
            [name] => {
                name.starts_with('_') || name == "metrics" || matches!(request.method, Method::PUT | Method::DELETE)
            }
            [name, ..] => name.starts_with('_') && !DATABASES_OF_THE_SYSTEM.contains(&name),
            [] => false,
        };
        let reason =
            if of_server { "You are not a server admin." } else { "You are not authorized to access this db." };
        return Err(Failure::unauthorized(reason));
    }
    if let [_, id, ..] = names[..]
        && id.starts_with("_design/")
        && matches!(request.method, Method::GET | Method::HEAD)
        && let Some(redirect) = document::redirect_design(&request)
    {
        return Ok(redirect);
    }
    // Boxed, but for documents: the future of every request has room for what is not.
    match names[..] {
        ["_all_dbs"] => Box::pin(server::all_dbs(state, &request)).await,
        ["_active_tasks"] => server::active_tasks(state, &request),
        ["_db_updates"] => Box::pin(db_updates::db_updates(state, request)).await,
        ["_replicate"] => Box::pin(replicate::replicate(state, request)).await,
        ["_scheduler", "jobs"] => Box::pin(scheduler::jobs(state, &request, None)).await,
        ["_scheduler", "jobs", id] => Box::pin(scheduler::jobs(state, &request, Some(id))).await,
        ["_scheduler", "docs"] => Box::pin(scheduler::docs(state, &request, None)).await,
        ["_scheduler", "docs", REPLICATOR] => Box::pin(scheduler::docs(state, &request, None)).await,
        ["_scheduler", "docs", REPLICATOR, id] => Box::pin(scheduler::docs(state, &request, Some(id))).await,
        ["_scheduler", ..] => Err(Failure::not_found("missing")),
        ["metrics"] | ["_node", "_local" | NODE, "_prometheus"] => server::metrics(state, &request),
        [
            path @ ("_node" | "_cluster_setup" | "_membership" | "_dbs_info" | "_reshard" | "_search_analyze"
            | "_nouveau_analyze" | "_utils"),
            ..,
        ] => later(&mut request, path).await,
        [name] => Box::pin(database::root(state, request, name)).await,
        [name, "_bulk_docs"] => Box::pin(bulk::bulk_docs(state, request, name)).await,
        [name, "_bulk_get"] => Box::pin(bulk_get::bulk_get(state, request, name)).await,
        [name, "_all_docs"] => Box::pin(all_docs::all_docs(state, request, name, all_docs::Documents::All)).await,
        [name, "_all_docs", "queries"] => {
            Box::pin(all_docs::queries(state, request, name, all_docs::Documents::All)).await
        }
        [name, "_design_docs", "queries"] => {
            Box::pin(all_docs::queries(state, request, name, all_docs::Documents::Design)).await
        }
        [name, "_design_docs"] => Box::pin(all_docs::all_docs(state, request, name, all_docs::Documents::Design)).await,
        [name, "_changes"] => Box::pin(changes::changes(state, request, name)).await,
        [name, "_ensure_full_commit"] => Box::pin(database::ensure_full_commit(state, request, name)).await,
        [name, "_revs_limit"] => Box::pin(revisions::revs_limit(state, request, name)).await,
        [name, "_revs_diff"] => Box::pin(revisions::revs_diff(state, request, name)).await,
        [name, "_missing_revs"] => Box::pin(revisions::missing_revs(state, request, name)).await,
        [name, "_purge"] => Box::pin(maintenance::purge(state, request, name)).await,
        [name, "_purged_infos_limit"] => Box::pin(maintenance::purged_infos_limit(state, request, name)).await,
        [name, "_compact"] => Box::pin(maintenance::compact(state, request, name)).await,
        [name, "_security"] => Box::pin(maintenance::security(state, request, name)).await,
        [name, "_local_docs"] => Box::pin(local::list(state, request, name)).await,
        [name, "_local", id] => Box::pin(local::document(state, request, name, id)).await,
        [_, "_local", _, ..] => {
            request.skip_body().await;
            Err(Failure::bad_request("_local documents do not accept attachments."))
        }
        [name, id] if id.starts_with("_local/") => {
            Box::pin(local::document(state, request, name, id.strip_prefix("_local/").unwrap_or_default())).await
        }
        [_, "_find" | "_index" | "_explain", ..] => later(&mut request, "Mango queries").await,
        [_, path @ ("_view_cleanup" | "_shards" | "_sync_shards" | "_partition"), ..] => {
            later(&mut request, path).await
        }
        [name, "_design", id] => {
            let id = format!("_design/{id}");
            document::document(state, request, name, &id).await
        }
        [_, "_design", _, path, ..] if path.starts_with('_') => {
            later(&mut request, "Functions of design documents").await
        }
        [name, "_design", id, ref file @ ..] => {
            Box::pin(attachment::attachment(state, request, name, &format!("_design/{id}"), &file.join("/"))).await
        }
        [name, id] => document::document(state, request, name, id).await,
        [name, id, ref file @ ..] => Box::pin(attachment::attachment(state, request, name, id, &file.join("/"))).await,
        [] => Err(Failure::not_found("missing")),
    }
}

/// What CouchDB has and this version has not: it says so.
async fn later(request: &mut Request, what: &str) -> Result<Reply> {
    request.skip_body().await;
    Err(Failure::not_implemented(what))
}
