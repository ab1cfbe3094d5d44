//! Dispatches a request to its handler and converts the result to an answer.

use std::sync::Arc;

use async_trait::async_trait;
use flatbed_channels::PrincipalKind;
use flatbed_documents::while_allowed;
use flatbed_http::{Answer, Client, Origin, Rejection, Reply, Surface, spawn};
use flatbed_layer::{DatabaseKind, is_replicator_name};
use flatbed_service::Standing;
use hyper::{Method, StatusCode, header};

use crate::error::{Failure, Result};
use crate::path::{Administration, Path, Resource, Target};
use crate::query::Query;
use crate::reply::{failed, moved};
use crate::request::Request;
use crate::route::Route;
use crate::session::ClientSignIn;
use crate::state::{Gateway, Port};
use crate::{
    all_docs, attachment, bulk, bulk_get, changes, config, database, document, dump, local, principals, raw, resync,
    session,
};

#[async_trait]
impl Surface for Gateway {
    type Target = Path;
    type Label = Route;

    const PREFLIGHT: Route = Route::Preflight;

    fn target(&self, path: &str) -> (Path, Route) {
        let target = Target::parse(path, self.is_for_administrators());
        let route = target.route();
        (Path(target), route)
    }

    /// An open surface listens on this machine's addresses and accepts this machine's host names only.
    fn is_open(&self) -> bool {
        matches!(self.port, Port::Administrators { anywhere: false })
    }

    fn changes(Path(target): &Path, method: &Method) -> bool {
        !target.only_reads(method)
    }

    /// Returns true, so that the shell checks every request's origin. The administrators' port has no credentials that
    /// tell an administrator from a web page; at the users' port the browser may send the session cookie.
    fn begins_session(_target: &Path) -> bool {
        true
    }

    async fn answer(
        self: &Arc<Self>,
        request: flatbed_http::Request,
        Path(target): Path,
        origin: Origin<'_>,
    ) -> Answer {
        let method = request.method.clone();
        let (reply, user) = match self.handle(request, target, &origin).await {
            Ok((reply, user)) => (reply, user),
            Err(failure) => (failed(&failure), None),
        };
        tracing::trace!(%method, status = reply.status.as_u16(), "answered");
        Answer { reply, user }
    }

    fn refused(&self, refused: &Rejection) -> Reply {
        failed(&refused.clone().into())
    }
}

impl Gateway {
    async fn handle(
        self: &Arc<Self>,
        mut request: flatbed_http::Request,
        target: Target,
        origin: &Origin<'_>,
    ) -> Result<(Reply, Option<String>)> {
        let is_for_administrators = self.is_for_administrators();
        let Some(methods) = target.methods(is_for_administrators) else {
            request.skip_body().await;
            return match target {
                Target::Moved(location) => Ok((moved(&location, &request.method), None)),
                _ => Err(Failure::unknown()),
            };
        };
        if request.method == Method::OPTIONS {
            request.skip_body().await;
            let mut reply = crate::reply::empty(StatusCode::NO_CONTENT);
            reply.header(header::ALLOW, methods);
            return Ok((reply, None));
        }
        if !methods.split(", ").any(|method| method == request.method.as_str()) {
            return request.refuse(Failure::method(methods)).await;
        }
        // No part of this process sends requests to this surface, so they get no rights.
        if origin.is_inside {
            return Err(Failure::login_required());
        }
        let signed_in = match &target {
            _ if is_for_administrators => ClientSignIn { standing: Standing::of_server(), set_cookie: None },
            Target::Database(name, of) => {
                let signed_in = self.user(&request, name, of).await;
                request.skip_if_refused(signed_in).await?
            }
            _ => ClientSignIn { standing: Standing::anonymous(), set_cookie: None },
        };
        let ClientSignIn { standing, set_cookie } = signed_in;
        let user = match &target {
            Target::Database(name, _) => session::user_of(&standing, name),
            _ => None,
        };
        if is_for_administrators || standing.principal().is_admin {
            origin.know();
        } else if let Some(user) = &user {
            origin.admit(user)?;
        }
        if let Target::Database(name, of) = &target
            && let Err(failure) = database::must_be_open(self, name, of, &request.method).await
        {
            return request.refuse(failure).await;
        }
        let query = Query::parse(request.uri.query())?;
        let context = self.service.context(standing).from_peer(request.peer);
        let watch = context.rights_watch();
        let request = Box::new(Request::new(request, query, context));
        let reply = run(self, request, target).await.unwrap_or_else(|failure| failed(&failure));
        let mut reply = while_allowed(reply, watch);
        if let Some(cookie) = set_cookie
            && !reply.headers.contains_key(header::SET_COOKIE)
        {
            reply.header(header::SET_COOKIE, &cookie);
        }
        Ok((reply, user))
    }

    /// Identifies a client at the users' port, after checking that users may see the database.
    async fn user(&self, request: &flatbed_http::Request, name: &str, of: &Resource) -> Result<ClientSignIn> {
        let is_ordinary = DatabaseKind::of(name) == DatabaseKind::Ordinary;
        let found = match is_ordinary {
            true => database::must_be_public(&self.service, name).await,
            false => Err(Failure::no_database(name)),
        };
        if (of, &request.method) == (&Resource::Root, &Method::PUT) {
            return Err(match found {
                Ok(()) => Failure::new(StatusCode::PRECONDITION_FAILED, "Database already exists"),
                Err(_) => Failure::new(StatusCode::FORBIDDEN, "Creating a DB over the public API is unsupported"),
            });
        }
        found?;
        session::sign_in(self, request, name, of).await
    }
}

/// Runs the handler. A writing request continues when its client disconnects, so that a commit in flight is not
/// dropped.
async fn run(state: &Arc<Gateway>, mut request: Box<Request>, target: Target) -> Result<Reply> {
    if target.only_reads(&request.method) {
        return dispatch(state, request, target).await;
    }
    let state = state.clone();
    let (client, _there) = Client::new();
    request.client = Some(client);
    let task = spawn(async move { dispatch(&state, request, target).await });
    task.await.unwrap_or_else(|error| Err(flatbed_layer::Error::of_task(error).into()))
}

async fn dispatch(state: &Arc<Gateway>, mut request: Box<Request>, target: Target) -> Result<Reply> {
    let (name, of) = match target {
        Target::Welcome => return Ok(database::welcome(state)),
        Target::AllDatabases => return database::all(&request).await,
        Target::Database(name, of) => (name, of),
        Target::Moved(_) | Target::Unknown => return Err(Failure::unknown()),
    };
    let name = name.as_str();
    // The name begins with a letter or digit, so it is none of the server's own databases, but it may be a replicator
    // database.
    let is_systems = DatabaseKind::of(name) != DatabaseKind::Ordinary
        || is_replicator_name(name) && request.context.asks_for_replications(name).await?;
    if is_systems {
        return request.refuse(Failure::no_database(name)).await;
    }
    let done = match state.is_for_administrators() {
        true => administrators(state, request, name, of).await,
        false => users(state, request, name, of).await,
    };
    done.map_err(|failure| match failure.reason.as_str() {
        "no such database" => Failure::no_database(name),
        _ => failure,
    })
}

/// Dispatches at the users' port. Both ports share handlers; the principal determines which documents are visible and
/// writable.
async fn users(state: &Arc<Gateway>, mut request: Box<Request>, name: &str, of: Resource) -> Result<Reply> {
    match of {
        Resource::Session => Box::pin(session::of_users(state, *request, name)).await,
        Resource::Design(_) | Resource::View => request.refuse(Failure::new(StatusCode::FORBIDDEN, "forbidden")).await,
        Resource::Administration(_) => request.refuse(Failure::unknown()).await,
        of => Box::pin(documents(state, request, name, of)).await,
    }
}

async fn administrators(state: &Arc<Gateway>, mut request: Box<Request>, name: &str, of: Resource) -> Result<Reply> {
    match of {
        Resource::Session if request.method == Method::POST => Box::pin(session::begin_for(*request, name)).await,
        Resource::Session => {
            request.context.database(name, flatbed_service::Read).await?.exists().await?;
            Ok(session::anonymous())
        }
        // Design documents are served by CouchDB's surface only.
        Resource::Design(_) | Resource::View if request.method.is_safe() => {
            request.context.database(name, flatbed_service::Read).await?.exists().await?;
            Err(Failure::not_found("missing"))
        }
        Resource::Design(_) | Resource::View => request.refuse(Failure::not_implemented("This route")).await,
        Resource::Administration(of) => Box::pin(administration(state, *request, name, of)).await,
        of => Box::pin(documents(state, request, name, of)).await,
    }
}

/// Dispatches the paths that both ports have.
async fn documents(state: &Arc<Gateway>, request: Box<Request>, name: &str, of: Resource) -> Result<Reply> {
    match of {
        Resource::Root => Box::pin(database::root(state, *request, name)).await,
        Resource::AllDocs => Box::pin(all_docs::all_docs(state, *request, name)).await,
        Resource::BulkDocs => Box::pin(bulk::bulk_docs(*request, name)).await,
        Resource::Changes => Box::pin(changes::changes(state, *request, name)).await,
        Resource::RevsDiff => Box::pin(bulk::revs_diff(*request, name)).await,
        Resource::EnsureFullCommit => Box::pin(database::ensure_full_commit(*request, name)).await,
        Resource::Local(id) => Box::pin(local::document(*request, name, &id)).await,
        Resource::Document(id) => Box::pin(document::document(state, *request, name, &id)).await,
        Resource::Attachment(id, file) => Box::pin(attachment::attachment(*request, name, &id, &file)).await,
        Resource::BulkGet => Box::pin(bulk_get::bulk_get(*request, name)).await,
        // Each port dispatches these itself.
        Resource::Session | Resource::Design(_) | Resource::View | Resource::Administration(_) => {
            Err(Failure::unknown())
        }
    }
}

async fn administration(state: &Gateway, mut request: Request, name: &str, of: Administration) -> Result<Reply> {
    match of {
        Administration::Compact => Box::pin(database::compact(request, name)).await,
        Administration::Vacuum => {
            request.refuse(Failure::new(StatusCode::NOT_IMPLEMENTED, "Vacuum is temporarily out of order")).await
        }
        Administration::Repair => {
            let reason = "Internal error: _repair endpoint disabled";
            request.refuse(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, reason)).await
        }
        Administration::Users => Box::pin(principals::all(request, name, PrincipalKind::User)).await,
        Administration::User(user) => Box::pin(principals::one(request, name, PrincipalKind::User, &user)).await,
        Administration::UserChannels(user) => Box::pin(principals::channels(request, name, &user)).await,
        Administration::Roles => Box::pin(principals::all(request, name, PrincipalKind::Role)).await,
        Administration::Role(role) => Box::pin(principals::one(request, name, PrincipalKind::Role, &role)).await,
        Administration::Config => Box::pin(config::config(request, name)).await,
        Administration::ConfigSync => Box::pin(config::sync(request, name)).await,
        Administration::SessionOf(id) => Box::pin(session::one(state, request, name, &id, None)).await,
        Administration::UserSession(user, id) => Box::pin(session::one(state, request, name, &id, Some(&user))).await,
        Administration::UserSessions(user) => Box::pin(session::end_all(request, name, &user)).await,
        Administration::RevTree(id) => Box::pin(raw::rev_tree(request, name, &id)).await,
        Administration::Raw(id) => Box::pin(raw::raw(request, name, &id)).await,
        Administration::DumpChannel(channel) => Box::pin(dump::channel(request, name, &channel)).await,
        Administration::Resync => Box::pin(resync::resync(request, name)).await,
        Administration::DryRun => Box::pin(resync::dry_run(request, name)).await,
        Administration::RawChannels(id) => Box::pin(raw::channels(request, name, &id)).await,
        Administration::View(_) => {
            request.context.database(name, flatbed_service::Read).await?.exists().await?;
            Err(Failure::not_found("missing"))
        }
        Administration::Offline => Box::pin(database::set_offline(request, name, true)).await,
        Administration::Online => Box::pin(database::set_offline(request, name, false)).await,
        Administration::Purge => Box::pin(bulk::purge(request, name)).await,
        _ => request.refuse(Failure::not_implemented("This route")).await,
    }
}
