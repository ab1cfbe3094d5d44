//! The table of routes: the label in metrics and traces, the methods, the effect, the needed right and the handler of
//! each target.
//!
//! A target without a row does not compile, nor does a row without one of its columns.

use std::sync::Arc;

use flatbed_http::{Reply, TenantReply};
use flatbed_layer::{DatabaseKind, is_replicator_name};
use hyper::{Method, StatusCode};

use super::rights::RequiredRight::{
    Admin, Databases, Hidden, Maintainer, Member, Metrics, Nothing, ServerAdmin, User, UserViews, Whole,
};
use super::rights::{DatabaseRights, RequiredRight, in_database, needs};
use crate::error::{Failure, Result};
use crate::handlers::{
    all_docs, answering, attachment, bulk, bulk_get, changes, console, database, db_updates, dbs_info, document, list,
    local, local_docs, maintenance, mango, node, partition, purged_infos, raw_keys, replicate, revisions, scheduler,
    server, session, setup, view, worker,
};
use crate::path::{
    DatabaseName, DesignCall, DocumentListing, Endpoint, IdKind, InDatabase, Mango, Node, Reshard, Scheduler, Target,
};
use crate::request::Request;
use crate::route::Route;
use crate::state::State;
use Effect::{ByMethod, PostQueries, PostReads, Writes};
use Methods::{Any, Only};

/// The effect of a request by its method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// `GET` and `HEAD` read, other methods may write.
    ByMethod,
    /// A `POST` only reads, too, with parameters in the body that are too long for a URL.
    PostReads,
    /// As `PostReads`, and the server may drop the `POST` when the client disconnects.
    PostQueries,
    /// Every method may write.
    Writes,
}

/// The methods that reach a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Methods {
    /// All methods. The handler may refuse some.
    Any,
    /// The methods of the header `Allow` in a refusal. CouchDB lists `GET` alone also for paths that answer `HEAD`.
    Only(&'static str),
}

impl Methods {
    /// Returns the refusal of a method that does not reach the handler.
    pub(crate) fn refusal(self, method: &Method) -> Option<Failure> {
        let Methods::Only(allowed) = self else { return None };
        let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
        let is_listed = allowed.split(',').any(|listed| listed == method);
        (!is_listed).then(|| Failure::method(allowed))
    }
}

const READ: Methods = Only("GET,HEAD");
const POST: Methods = Only("POST");
const SETTING: Methods = Only("PUT,GET");
const LISTING: Methods = Only("GET,HEAD,POST");
const DOCUMENT: Methods = Only("DELETE,GET,HEAD,POST,PUT,COPY");
const ATTACHMENT: Methods = Only("GET,HEAD,PUT,DELETE");

/// Makes one function of each column of a table. Patterns bind values in the function `handle`, and references in the
/// others.
macro_rules! routes {
    (
        $(#[$doc:meta])*
        $targets:ident, needs($($fact:ident: $Fact:ty),+) -> $Right:ty,
        handle($state:ident, $request:ident $(, $name:ident)?):
        $($target:pat => $label:expr, $methods:expr, $effect:expr, $right:expr => $handler:expr;)+
    ) => {
        $(#[$doc])*
        #[allow(unused_mut, unused_variables, reason = "a row uses only some of the parts of its target")]
        impl $targets {
            /// Returns the label in metrics and traces.
            pub(crate) fn route(&self) -> Route {
                match self {
                    $($target => $label,)+
                }
            }

            pub(crate) fn methods(&self) -> Methods {
                match self {
                    $($target => $methods,)+
                }
            }

            pub(super) fn effect(&self) -> Effect {
                match self {
                    $($target => $effect,)+
                }
            }

            /// Returns the right that a request needs.
            pub(crate) fn needs(&self, $($fact: $Fact),+) -> $Right {
                match self {
                    $($target => $right,)+
                }
            }

            /// Runs the handler, if the method reaches it.
            pub(super) async fn handle(
                self,
                $state: &Arc<State>,
                mut $request: Box<Request>,
                $($name: &str,)?
            ) -> Result<Reply> {
                if let Some(failure) = self.methods().refusal(&$request.method) {
                    return $request.refuse(failure).await;
                }
                match self {
                    $($target => $handler,)+
                }
            }
        }
    };
}

// Handlers are boxed here, documents by their methods: each request's future reserves room for the largest unboxed one.
routes! {
    /// `is_replicator`: true if the database of [`Target::may_be_replicator`] is a replicator database.
    Target, needs(method: &Method, is_replicator: bool) -> RequiredRight,
    handle(state, request):

    // target => label, methods, effect, right => handler
    Target::Welcome => Route::Root, READ, ByMethod, Nothing => Ok(server::welcome(state));
    Target::Up => Route::Up, READ, ByMethod, Nothing => Ok(Box::pin(server::up(state)).await);
    Target::Session => Route::Session, Only("GET,HEAD,POST,DELETE"), ByMethod, Nothing =>
        Box::pin(session::session(state, *request)).await;
    Target::Uuids => Route::Uuids, Only("GET"), ByMethod, Nothing => server::uuids(state, &request);
    Target::AllDbs => Route::AllDbs, READ, ByMethod, Databases => Box::pin(server::all_dbs(&request)).await;
    Target::DbsInfo { is_longer: true } => Route::Server, Any, PostReads, Databases =>
        request.refuse(Failure::not_found("missing")).await;
    Target::DbsInfo { is_longer: false } => Route::DbsInfo, LISTING, PostReads, Databases =>
        Box::pin(dbs_info::dbs_info(state, *request)).await;
    Target::ActiveTasks => Route::ActiveTasks, READ, ByMethod, ServerAdmin =>
        Box::pin(server::active_tasks(state, &request)).await;
    Target::DbUpdates => Route::DbUpdates, Only("GET"), ByMethod, ServerAdmin =>
        Box::pin(db_updates::db_updates(state, *request)).await;
    // The replication runs with the rights of the requesting user.
    Target::Replicate => Route::Replicate, POST, ByMethod, User =>
        Box::pin(replicate::replicate(state, *request)).await;
    Target::Scheduler(Scheduler::Unknown) => Route::Scheduler, Any, ByMethod, ServerAdmin =>
        request.refuse(Failure::not_found("missing")).await;
    Target::Scheduler(what) => Route::Scheduler, READ, ByMethod, ServerAdmin =>
        Box::pin(scheduler::scheduler(state, &request, &what)).await;
    Target::Worker(what) => Route::Worker, Only(what.methods()), ByMethod, ServerAdmin =>
        Box::pin(worker::worker(state, *request, what)).await;
    Target::Metrics => Route::Metrics, READ, ByMethod, Metrics => Ok(server::metrics(state));
    Target::Node(what @ (Node::Stats(_) | Node::System)) => Route::Node, Only("GET"), ByMethod, Metrics =>
        Box::pin(node::node(state, *request, what)).await;
    Target::Node(what @ (Node::Config | Node::Section(_) | Node::Versions)) =>
        Route::Node, Only("GET"), ByMethod, ServerAdmin =>
        Box::pin(node::node(state, *request, what)).await;
    Target::Node(what @ Node::Key(..)) => Route::Node, Only("GET,PUT,DELETE"), ByMethod, ServerAdmin =>
        Box::pin(node::node(state, *request, what)).await;
    Target::Node(what @ (Node::Reload | Node::Restart)) => Route::Node, POST, ByMethod, ServerAdmin =>
        Box::pin(node::node(state, *request, what)).await;
    Target::Node(what) => Route::Node, Any, ByMethod, ServerAdmin => Box::pin(node::node(state, *request, what)).await;
    Target::Membership => Route::Server, Only("GET"), ByMethod, ServerAdmin =>
        Box::pin(setup::membership(*request)).await;
    Target::ClusterSetup => Route::Server, Only("GET,POST"), ByMethod, ServerAdmin =>
        Box::pin(setup::cluster_setup(*request)).await;
    Target::Reshard(what @ Reshard::Summary) => Route::Server, Only("GET"), ByMethod, ServerAdmin =>
        Box::pin(setup::reshard(*request, what)).await;
    Target::Reshard(what @ Reshard::State) => Route::Server, Only("GET,PUT"), ByMethod, ServerAdmin =>
        Box::pin(setup::reshard(*request, what)).await;
    Target::Reshard(what @ Reshard::Jobs) => Route::Server, Only("GET,POST"), ByMethod, ServerAdmin =>
        Box::pin(setup::reshard(*request, what)).await;
    Target::Reshard(what @ Reshard::Job) => Route::Server, Any, ByMethod, ServerAdmin =>
        Box::pin(setup::reshard(*request, what)).await;
    Target::Utils => Route::Server, READ, ByMethod, Nothing => Box::pin(console::console(state, *request)).await;
    Target::Favicon => Route::Server, READ, ByMethod, Nothing => Box::pin(setup::favicon(*request)).await;
    Target::Later(what, label) => *label, Any, ByMethod, ServerAdmin =>
        request.refuse(Failure::not_implemented(what)).await;
    Target::Database(name, what) =>
        label_of(name, what), Any, what.effect(), in_database(name, what, method, is_replicator) =>
        what.handle(state, request, &name.text).await;
    // Such a target is no query and no update function.
    Target::EncodedDesign(plain) => plain.route(), Any, ByMethod, plain.needs(method, is_replicator) =>
        Box::pin(plain.handle(state, request)).await;
}

routes! {
    /// Resources of databases with valid names.
    InDatabase, needs(method: &Method) -> DatabaseRights,
    handle(state, request, name):

    // target => label, methods, effect, right => handler
    InDatabase::Root => Route::Database, Any, ByMethod, match *method {
        Method::PUT | Method::DELETE => needs(ServerAdmin),
        Method::GET | Method::HEAD | Method::POST => needs(Member).everywhere(),
        _ => needs(Member),
    } => Box::pin(database::root(state, *request, name)).await;

    // Documents. `_users` and replicator databases show single documents to their readers, and no listings: the right
    // to write documents there does not include the right to list them.
    InDatabase::Document { kind: IdKind::Local, .. } =>
        Route::LocalDocument, Any, ByMethod, needs(Member).everywhere() =>
        Box::pin(local::no_id(*request)).await;
    InDatabase::Document { id, kind: IdKind::Design } => Route::DesignDocument, DOCUMENT, ByMethod, of_design(method) =>
        document::document(request, name, &id).await;
    InDatabase::Document { id, kind } => kind.label(Route::Document), DOCUMENT, ByMethod, needs(Member).everywhere() =>
        document::document(request, name, &id).await;
    InDatabase::Attachment { id, kind: IdKind::Design, name: file } =>
        Route::DesignAttachment, ATTACHMENT, ByMethod, of_design(method) =>
        Box::pin(attachment::attachment(*request, name, &id, &file)).await;
    InDatabase::Attachment { id, kind, name: file } =>
        kind.label(Route::Attachment), ATTACHMENT, ByMethod, needs(Member).everywhere() =>
        Box::pin(attachment::attachment(*request, name, &id, &file)).await;
    InDatabase::Local { id } => Route::LocalDocument, Any, ByMethod, needs(Member).in_users(Hidden) =>
        Box::pin(local::document(*request, name, &id)).await;
    InDatabase::LocalAttachment => Route::LocalDocument, Any, ByMethod, needs(Member) =>
        request.refuse(Failure::bad_request("_local documents do not accept attachments.")).await;
    InDatabase::Endpoint(Endpoint::LocalDocs) => Route::LocalDocs, LISTING, PostReads, needs(Member) =>
        Box::pin(local_docs::list(*request, name)).await;
    InDatabase::LocalQueries => Route::LocalDocs, POST, PostReads, needs(Member) =>
        Box::pin(local_docs::queries(*request, name)).await;
    InDatabase::Endpoint(Endpoint::AllDocs) =>
        Route::AllDocs, LISTING, PostReads, needs(Member).in_system(ServerAdmin) =>
        Box::pin(all_docs::all_docs(*request, name, DocumentListing::All)).await;
    InDatabase::Queries(listed @ DocumentListing::All) =>
        Route::AllDocs, POST, PostReads, needs(Member).in_system(ServerAdmin) =>
        Box::pin(all_docs::queries(*request, name, listed)).await;
    InDatabase::Endpoint(Endpoint::DesignDocs) => Route::DesignDocs, LISTING, PostReads, needs(Whole) =>
        Box::pin(all_docs::all_docs(*request, name, DocumentListing::Design)).await;
    InDatabase::Queries(listed @ DocumentListing::Design) => Route::DesignDocs, POST, PostReads, needs(Whole) =>
        Box::pin(all_docs::queries(*request, name, listed)).await;
    InDatabase::Endpoint(Endpoint::BulkDocs) => Route::BulkDocs, POST, ByMethod, needs(Member).everywhere() =>
        Box::pin(bulk::bulk_docs(state, *request, name)).await;
    InDatabase::Endpoint(Endpoint::BulkGet) => Route::BulkGet, POST, PostReads, needs(Member) =>
        Box::pin(bulk_get::bulk_get(*request, name)).await;
    InDatabase::Endpoint(Endpoint::Changes) =>
        Route::Changes, Only("GET,POST,HEAD"), PostReads, needs(Member).in_system(ServerAdmin) =>
        Box::pin(changes::changes(state, *request, name)).await;
    InDatabase::Endpoint(Endpoint::RevsDiff) => Route::RevsDiff, POST, PostReads, needs(Member).everywhere() =>
        Box::pin(revisions::revs_diff(*request, name)).await;
    InDatabase::Endpoint(Endpoint::MissingRevs) => Route::MissingRevs, POST, PostReads, needs(Member).everywhere() =>
        Box::pin(revisions::missing_revs(*request, name)).await;

    // Configuration and maintenance.
    InDatabase::Endpoint(Endpoint::RevsLimit) =>
        Route::RevsLimit, SETTING, ByMethod, of_setting(method, needs(Whole)) =>
        Box::pin(revisions::revs_limit(*request, name)).await;
    InDatabase::Endpoint(Endpoint::Security) =>
        Route::Security, SETTING, ByMethod, of_setting(method, needs(Whole).everywhere()) =>
        Box::pin(maintenance::security(state, *request, name)).await;
    InDatabase::Endpoint(Endpoint::EnsureFullCommit) => Route::EnsureFullCommit, POST, ByMethod, needs(Member) =>
        Box::pin(database::ensure_full_commit(*request, name)).await;
    InDatabase::Endpoint(Endpoint::Compact) => Route::Compact, POST, ByMethod, needs(Maintainer) =>
        Box::pin(maintenance::compact(*request, name)).await;
    InDatabase::CompactViews { design } => Route::Compact, POST, ByMethod, needs(Maintainer) =>
        Box::pin(maintenance::compact_views(*request, name, &design)).await;
    InDatabase::ViewCleanup => Route::ViewCleanup, POST, ByMethod, needs(Maintainer) =>
        Box::pin(maintenance::view_cleanup(*request, name)).await;
    InDatabase::Endpoint(Endpoint::Purge) => Route::Purge, POST, ByMethod, needs(ServerAdmin) =>
        Box::pin(maintenance::purge(*request, name)).await;
    InDatabase::Endpoint(Endpoint::PurgedInfos) => Route::PurgedInfos, Only("GET"), ByMethod, needs(Whole) =>
        Box::pin(purged_infos::purged_infos(*request, name)).await;
    InDatabase::Endpoint(Endpoint::PurgedInfosLimit) =>
        Route::PurgedInfosLimit, SETTING, ByMethod, needs(ServerAdmin) =>
        Box::pin(maintenance::purged_infos_limit(*request, name)).await;
    InDatabase::Endpoint(Endpoint::RawKeys) => Route::RawKeys, READ, ByMethod, needs(ServerAdmin) =>
        Box::pin(raw_keys::raw_keys(*request, name)).await;

    // Design documents: indexes, views and functions.
    InDatabase::Mango(what @ Mango::Find) => Route::Find, POST, PostQueries, needs(Whole) =>
        Box::pin(mango::mango(state, *request, name, what, None)).await;
    InDatabase::Mango(what @ Mango::Explain) => Route::Explain, POST, PostQueries, needs(Whole) =>
        Box::pin(mango::mango(state, *request, name, what, None)).await;
    InDatabase::Mango(what @ Mango::Count) => Route::Count, POST, PostQueries, needs(Whole) =>
        Box::pin(mango::mango(state, *request, name, what, None)).await;
    InDatabase::Mango(what @ Mango::Indexes) => Route::Index, Only("GET,POST"), ByMethod, needs(Whole) =>
        Box::pin(mango::mango(state, *request, name, what, None)).await;
    InDatabase::Mango(what @ Mango::BulkDelete) => Route::Index, POST, ByMethod, needs(Whole) =>
        Box::pin(mango::mango(state, *request, name, what, None)).await;
    InDatabase::Mango(what @ Mango::Index { .. }) => Route::Index, Only("DELETE"), ByMethod, needs(Whole) =>
        Box::pin(mango::mango(state, *request, name, what, None)).await;
    InDatabase::Mango(what @ Mango::Unknown) => Route::Index, Any, ByMethod, needs(Whole) =>
        Box::pin(mango::mango(state, *request, name, what, None)).await;
    InDatabase::View { design, rest } => Route::View, view_methods(rest), PostReads, needs(Whole).in_users(UserViews) =>
        Box::pin(view::view(*request, name, &design, &rest)).await;
    InDatabase::DesignCall { design, kind: DesignCall::Show, rest } =>
        Route::DesignFunction, Any, PostReads, needs(Whole) =>
        sandboxed(Box::pin(answering::show(state, *request, name, &design, &rest)).await);
    InDatabase::DesignCall { design, kind: DesignCall::Update, rest } =>
        Route::DesignFunction, Any, Writes, needs(Whole) =>
        sandboxed(Box::pin(answering::update(state, *request, name, &design, &rest)).await);
    InDatabase::DesignCall { design, kind: DesignCall::List, rest } =>
        Route::DesignFunction, Any, PostReads, needs(Whole).in_users(UserViews) =>
        sandboxed(Box::pin(list::list(state, *request, name, &design, &rest)).await);
    // The dispatcher handles rewrites.
    InDatabase::DesignCall { kind: DesignCall::Rewrite, .. } => Route::DesignFunction, Any, ByMethod, needs(Whole) =>
        Err(Failure::not_found("missing"));
    InDatabase::DesignInfo { is_longer: true, .. } => Route::DesignInfo, Any, ByMethod, needs(Whole) =>
        request.refuse(Failure::method("GET")).await;
    InDatabase::DesignInfo { design, .. } => Route::DesignInfo, Only("GET"), ByMethod, needs(Whole) =>
        Box::pin(maintenance::view_info(*request, name, &design)).await;
    InDatabase::TempView => Route::DatabaseOther, Any, ByMethod, needs(Whole) => {
        let reason = "Temporary views are not supported in CouchDB";
        request.refuse(Failure::new(StatusCode::GONE, "gone", reason)).await
    };
    InDatabase::Partition { partition, of: None } => Route::DatabaseOther, Any, ByMethod, needs(Whole) =>
        Box::pin(partition::partition(state, *request, name, partition, None)).await;
    InDatabase::Partition { partition, of: Some(of) } => of.route(), Any, of.effect(), needs(Whole) =>
        Box::pin(partition::partition(state, *request, name, partition, Some(*of))).await;
    InDatabase::Later("_sync_shards", label) => *label, Any, ByMethod, needs(ServerAdmin) =>
        request.refuse(Failure::not_implemented("_sync_shards")).await;
    InDatabase::Later(what, label) => *label, Any, ByMethod, needs(Whole) =>
        request.refuse(Failure::not_implemented(what)).await;
}

fn label_of(name: &DatabaseName, what: &InDatabase) -> Route {
    if name.kind == DatabaseKind::Reserved { Route::Server } else { what.route() }
}

/// Returns the methods of a view, whose `queries` take only a body. `rest`: the path after `_view`.
fn view_methods(rest: &[String]) -> Methods {
    match rest {
        [_, queries] if queries == "queries" => POST,
        _ => Only("GET,POST,HEAD"),
    }
}

/// Returns the rights for a design document and its attachments. Only administrators write these; the write itself
/// refuses others with a message of its own.
fn of_design(method: &Method) -> DatabaseRights {
    let right = if matches!(*method, Method::PUT | Method::DELETE) { Member } else { Whole };
    needs(right).everywhere()
}

/// Returns the rights for a setting of a database, which administrators write.
fn of_setting(method: &Method, to_read: DatabaseRights) -> DatabaseRights {
    if *method == Method::PUT { needs(Admin) } else { to_read }
}

/// Converts the answer of a design document's function. The type [`TenantReply`] makes the shell sandbox it.
fn sandboxed(reply: Result<TenantReply>) -> Result<Reply> {
    reply.map(Reply::from)
}

impl IdKind {
    /// Returns the label. `plain` is the label of ordinary document ids.
    fn label(self, plain: Route) -> Route {
        match self {
            IdKind::Plain | IdKind::Design => plain,
            IdKind::Local => Route::LocalDocument,
            IdKind::Endpoint(endpoint) => endpoint.route(),
            IdKind::Reserved => Route::DatabaseOther,
        }
    }
}

impl Endpoint {
    pub(crate) fn route(self) -> Route {
        InDatabase::Endpoint(self).route()
    }
}

impl Target {
    /// Returns the database's name.
    pub(crate) fn database(&self) -> Option<&str> {
        match self {
            Target::Database(name, _) => Some(&name.text),
            Target::EncodedDesign(target) => target.database(),
            _ => None,
        }
    }

    /// Returns the database's name if it may be a replicator database. The caller looks that up before
    /// [`Target::needs`].
    pub(crate) fn may_be_replicator(&self) -> Option<&str> {
        self.database().filter(|name| is_replicator_name(name))
    }

    /// Returns whether a request with this method only reads, so that the server may drop it when the client
    /// disconnects.
    pub(crate) fn only_reads(&self, method: &Method) -> bool {
        match self.effect() {
            Effect::ByMethod | Effect::PostReads => matches!(*method, Method::GET | Method::HEAD),
            Effect::PostQueries => matches!(*method, Method::GET | Method::HEAD | Method::POST),
            Effect::Writes => false,
        }
    }

    /// Returns whether a request with this method may write. A `POST` may be a query.
    pub(crate) fn changes(&self, method: &Method) -> bool {
        match self.effect() {
            Effect::ByMethod => !method.is_safe(),
            Effect::PostReads | Effect::PostQueries => !method.is_safe() && *method != Method::POST,
            Effect::Writes => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The methods that reach the handler of a path.
    fn methods(path: &str) -> String {
        let target = Target::parse(path).unwrap();
        let methods = if let Target::Database(_, what) = &target { what.methods() } else { target.methods() };
        let all = ["GET", "HEAD", "POST", "PUT", "DELETE", "COPY", "PATCH"];
        let is_taken = |name: &&str| methods.refusal(&Method::from_bytes(name.as_bytes()).unwrap()).is_none();
        all.into_iter().filter(is_taken).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_method_that_a_route_does_not_list_is_refused() {
        for (path, expected) in [
            ("/", "GET HEAD"),
            ("/_uuids", "GET HEAD"),
            ("/_session", "GET HEAD POST DELETE"),
            ("/_replicate", "POST"),
            ("/_scheduler/jobs", "GET HEAD"),
            ("/_scheduler/x", "GET HEAD POST PUT DELETE COPY PATCH"),
            ("/_worker/_api/leases/x", "DELETE"),
            ("/_node/_local/_config", "GET HEAD"),
            ("/_node/_local/_config/a/b", "GET HEAD PUT DELETE"),
            ("/_node/_local/_restart", "POST"),
            ("/_reshard/state", "GET HEAD PUT"),
            ("/db/doc", "GET HEAD POST PUT DELETE COPY"),
            ("/db/doc/file", "GET HEAD PUT DELETE"),
            ("/db/_security", "GET HEAD PUT"),
            ("/db/_view_cleanup", "POST"),
            ("/db/_index", "GET HEAD POST"),
            ("/db/_index/d/json/n", "DELETE"),
            ("/db/_design/d/_view/v", "GET HEAD POST"),
            ("/db/_design/d/_view/v/queries", "POST"),
        ] {
            assert_eq!(methods(path), expected, "{path}");
        }
        let refusal = SETTING.refusal(&Method::DELETE).unwrap();
        assert_eq!((refusal.status, &*refusal.reason), (StatusCode::METHOD_NOT_ALLOWED, "Only PUT,GET allowed"));
    }
}
