//! From a request to its handler, and from the handler's result to the answer.

use std::net::SocketAddr;
use std::sync::Arc;

use flatbed_auth::Principal;
use hyper::body::Incoming;
use hyper::header::{self, HeaderName};
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Response, StatusCode};

use crate::arriving::Arriving;
use crate::body_memory::Client;
use crate::error::{Failure, Result};
use crate::handlers::{
    all_docs, attachment, bulk, bulk_get, changes, database, db_updates, document, local, maintenance, replicate,
    revisions, scheduler, server,
};
use crate::host;
use crate::outlet::Outlet;
use crate::path::{Endpoint, InDatabase, Listed, Needed, Target};
use crate::query::Query;
use crate::reply::{Reply, ReplyBody};
use crate::request::Request;
use crate::route::{Route, Verb};
use crate::server::State;
use crate::tracked::{Tracked, Tracking, spawn};

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
    let target = Target::parse(request.uri().path());
    let route = target.as_ref().map_or(Route::Invalid, Target::route);
    let tracking = Tracking::begin(&state.metrics, &id, request.method(), request.uri(), route, peer, outlet.clone());
    if let Some(continue_trace) = state.continue_trace {
        tracking.continue_trace(continue_trace, request.headers());
    }
    // What wraps it would have room for its state several times.
    let spans = tracking.spans();
    spans.within(Box::pin(answer_within(state, request, id, (target, route), tracking, outlet))).await
}

async fn answer_within(
    state: Arc<State>,
    request: hyper::Request<Incoming>,
    id: String,
    (target, mut route): (Result<Target>, Route),
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
                let target = target?;
                let memory = state.memory.clone();
                let body = Arriving::new(body, &memory);
                let query = Query::parse(uri.query())?;
                let (method, uri) = (method.clone(), uri.clone());
                let request =
                    Request { method, uri, version, query, headers, body, upgrade, memory, client: None, principal };
                run(state.clone(), request, target).await
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
async fn run(state: Arc<State>, mut request: Request, target: Target) -> Result<Reply> {
    if matches!(request.method, Method::GET | Method::HEAD) {
        return dispatch(&state, request, target).await;
    }
    let (client, _there) = Client::new();
    request.client = Some(client);
    let task = spawn(async move { dispatch(&state, request, target).await });
    task.await.unwrap_or_else(|error| {
        tracing::error!(%error, "a handler failed");
        Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", "see the server's log"))
    })
}

async fn dispatch(state: &State, mut request: Request, target: Target) -> Result<Reply> {
    authorize(target.needs(&request.method), &mut request).await?;
    handle(state, request, target).await
}

async fn handle(state: &State, mut request: Request, target: Target) -> Result<Reply> {
    let (name, what) = match target {
        Target::Database(name, what) => (name.text, what),
        // Boxed here and below, but for documents: the future of every request has room for what is not.
        Target::Welcome => return server::welcome(state, &request),
        Target::Up => return Box::pin(server::up(state, &request)).await,
        Target::Session => return server::session(state, &request),
        Target::Uuids => return server::uuids(state, &request),
        Target::AllDbs => return Box::pin(server::all_dbs(state, &request)).await,
        Target::ActiveTasks => return server::active_tasks(state, &request),
        Target::DbUpdates => return Box::pin(db_updates::db_updates(state, request)).await,
        Target::Replicate => return Box::pin(replicate::replicate(state, request)).await,
        Target::Scheduler(what) => return Box::pin(scheduler::scheduler(state, &request, &what)).await,
        Target::Metrics => return server::metrics(state, &request),
        Target::Later(what, _) => return later(&mut request, what).await,
        Target::EncodedDesign(target) => {
            let reads = matches!(request.method, Method::GET | Method::HEAD);
            return match reads.then(|| document::redirect_design(&request)).flatten() {
                Some(redirect) => Ok(redirect),
                None => Box::pin(handle(state, request, *target)).await,
            };
        }
    };
    let name = name.as_str();
    let endpoint = match what {
        InDatabase::Endpoint(endpoint) => endpoint,
        InDatabase::Document { id, .. } => return document::document(state, request, name, &id).await,
        InDatabase::Root => return Box::pin(database::root(state, request, name)).await,
        InDatabase::Queries(listed) => return Box::pin(all_docs::queries(state, request, name, listed)).await,
        InDatabase::Attachment { id, name: file, .. } => {
            return Box::pin(attachment::attachment(state, request, name, &id, &file)).await;
        }
        InDatabase::Local { id } => return Box::pin(local::document(state, request, name, &id)).await,
        InDatabase::LocalAttachment => {
            request.skip_body().await;
            return Err(Failure::bad_request("_local documents do not accept attachments."));
        }
        InDatabase::DesignFunction { .. } => return later(&mut request, "Functions of design documents").await,
        InDatabase::Later(what, _) => return later(&mut request, what).await,
    };
    match endpoint {
        Endpoint::LocalDocs => Box::pin(local::list(state, request, name)).await,
        Endpoint::AllDocs => Box::pin(all_docs::all_docs(state, request, name, Listed::All)).await,
        Endpoint::DesignDocs => Box::pin(all_docs::all_docs(state, request, name, Listed::Design)).await,
        Endpoint::BulkDocs => Box::pin(bulk::bulk_docs(state, request, name)).await,
        Endpoint::BulkGet => Box::pin(bulk_get::bulk_get(state, request, name)).await,
        Endpoint::Changes => Box::pin(changes::changes(state, request, name)).await,
        Endpoint::RevsDiff => Box::pin(revisions::revs_diff(state, request, name)).await,
        Endpoint::MissingRevs => Box::pin(revisions::missing_revs(state, request, name)).await,
        Endpoint::RevsLimit => Box::pin(revisions::revs_limit(state, request, name)).await,
        Endpoint::EnsureFullCommit => Box::pin(database::ensure_full_commit(state, request, name)).await,
        Endpoint::Compact => Box::pin(maintenance::compact(state, request, name)).await,
        Endpoint::Purge => Box::pin(maintenance::purge(state, request, name)).await,
        Endpoint::PurgedInfosLimit => Box::pin(maintenance::purged_infos_limit(state, request, name)).await,
        Endpoint::Security => Box::pin(maintenance::security(state, request, name)).await,
    }
}

/// Refuses who has not the right that a path needs. All but what the server tells anyone is the administrators' as long as
/// there are no other users.
async fn authorize(needed: Needed, request: &mut Request) -> Result<()> {
    let reason = match needed {
        Needed::Nothing => return Ok(()),
        _ if request.principal.is_admin => return Ok(()),
        Needed::ServerAdmin => "You are not a server admin.",
        Needed::Database => "You are not authorized to access this db.",
    };
    request.skip_body().await;
    Err(Failure::unauthorized(reason))
}

/// What CouchDB has and this version has not: it says so.
async fn later(request: &mut Request, what: &str) -> Result<Reply> {
    request.skip_body().await;
    Err(Failure::not_implemented(what))
}
