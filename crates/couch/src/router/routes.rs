//! The table of routes: the label in metrics and traces, the effect, the needed right and the handler of each target.
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
use crate::path::{DesignCall, DocumentListing, Endpoint, IdKind, InDatabase, Mango, Node, Target};
use crate::request::Request;
use crate::route::Route;
use crate::state::State;
use Effect::{ByMethod, PostQueries, PostReads, Writes};

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

/// Makes one function of each column of a table. Patterns bind references in the functions `route`, `effect` and
/// `needs`, and values in `handle`.
macro_rules! routes {
    (
        $(#[$doc:meta])*
        $targets:ident, needs($($fact:ident: $Fact:ty),+) -> $Right:ty,
        handle($state:ident, $request:ident $(, $name:ident)?):
        $($target:pat => $label:expr, $effect:expr, $right:expr => $handler:expr;)+
    ) => {
        $(#[$doc])*
        #[allow(unused_mut, unused_variables)]
        impl $targets {
            /// Returns the label in metrics and traces.
            pub(crate) fn route(&self) -> Route {
                match self {
                    $($target => $label,)+
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

            /// Runs the handler.
            pub(super) async fn handle(
                self,
                $state: &Arc<State>,
                mut $request: Box<Request>,
                $($name: &str,)?
            ) -> Result<Reply> {
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

    // target => label, effect, right => handler
    Target::Welcome => Route::Root, ByMethod, Nothing => server::welcome(state, &request);
    Target::Up => Route::Up, ByMethod, Nothing => Box::pin(server::up(state, &request)).await;
    Target::Session => Route::Session, ByMethod, Nothing => Box::pin(session::session(state, *request)).await;
    Target::Uuids => Route::Uuids, ByMethod, Nothing => server::uuids(state, &request);
    Target::AllDbs => Route::AllDbs, ByMethod, Databases => Box::pin(server::all_dbs(&request)).await;
    Target::DbsInfo { is_longer } => if *is_longer { Route::Server } else { Route::DbsInfo }, PostReads, Databases =>
        Box::pin(dbs_info::dbs_info(state, *request, is_longer)).await;
    Target::ActiveTasks => Route::ActiveTasks, ByMethod, ServerAdmin =>
        Box::pin(server::active_tasks(state, &request)).await;
    Target::DbUpdates => Route::DbUpdates, ByMethod, ServerAdmin =>
        Box::pin(db_updates::db_updates(state, *request)).await;
    // The replication runs with the rights of the requesting user.
    Target::Replicate => Route::Replicate, ByMethod, User => Box::pin(replicate::replicate(state, *request)).await;
    Target::Scheduler(what) => Route::Scheduler, ByMethod, ServerAdmin =>
        Box::pin(scheduler::scheduler(state, &request, &what)).await;
    Target::Worker(what) => Route::Worker, ByMethod, ServerAdmin =>
        Box::pin(worker::worker(state, *request, what)).await;
    Target::Metrics => Route::Metrics, ByMethod, Metrics => server::metrics(state, &request);
    Target::Node(what @ (Node::Stats(_) | Node::System)) => Route::Node, ByMethod, Metrics =>
        Box::pin(node::node(state, *request, what)).await;
    Target::Node(what) => Route::Node, ByMethod, ServerAdmin => Box::pin(node::node(state, *request, what)).await;
    Target::Membership => Route::Server, ByMethod, ServerAdmin => Box::pin(setup::membership(*request)).await;
    Target::ClusterSetup => Route::Server, ByMethod, ServerAdmin => Box::pin(setup::cluster_setup(*request)).await;
    Target::Reshard(what) => Route::Server, ByMethod, ServerAdmin => Box::pin(setup::reshard(*request, what)).await;
    Target::Utils => Route::Server, ByMethod, Nothing => Box::pin(console::console(state, *request)).await;
    Target::Favicon => Route::Server, ByMethod, Nothing => Box::pin(setup::favicon(*request)).await;
    Target::Later(what, label) => *label, ByMethod, ServerAdmin => not_implemented(&mut request, what).await;
    Target::Database(name, what) =>
        if name.kind == DatabaseKind::Reserved { Route::Server } else { what.route() },
        what.effect(),
        in_database(name, what, method, is_replicator) =>
        what.handle(state, request, &name.text).await;
    // Such a target is no query and no update function.
    Target::EncodedDesign(plain) => plain.route(), ByMethod, plain.needs(method, is_replicator) =>
        Box::pin(plain.handle(state, request)).await;
}

routes! {
    /// Resources of databases with valid names.
    InDatabase, needs(method: &Method) -> DatabaseRights,
    handle(state, request, name):

    // target => label, effect, right => handler
    InDatabase::Root => Route::Database, ByMethod, match *method {
        Method::PUT | Method::DELETE => needs(ServerAdmin),
        Method::GET | Method::HEAD | Method::POST => needs(Member).everywhere(),
        _ => needs(Member),
    } => Box::pin(database::root(state, *request, name)).await;

    // Documents. `_users` and replicator databases show single documents to their readers, and no listings: the right
    // to write documents there does not include the right to list them.
    InDatabase::Document { kind: IdKind::Local, .. } => Route::LocalDocument, ByMethod, needs(Member).everywhere() =>
        Box::pin(local::no_id(*request)).await;
    InDatabase::Document { id, kind: IdKind::Design } => Route::DesignDocument, ByMethod, of_design(method) =>
        document::document(request, name, &id).await;
    InDatabase::Document { id, kind } => kind.label(Route::Document), ByMethod, needs(Member).everywhere() =>
        document::document(request, name, &id).await;
    InDatabase::Attachment { id, kind: IdKind::Design, name: file } => Route::DesignAttachment, ByMethod,
        of_design(method) => Box::pin(attachment::attachment(*request, name, &id, &file)).await;
    InDatabase::Attachment { id, kind, name: file } => kind.label(Route::Attachment), ByMethod,
        needs(Member).everywhere() => Box::pin(attachment::attachment(*request, name, &id, &file)).await;
    InDatabase::Local { id } => Route::LocalDocument, ByMethod, needs(Member).in_users(Hidden) =>
        Box::pin(local::document(*request, name, &id)).await;
    InDatabase::LocalAttachment => Route::LocalDocument, ByMethod, needs(Member) =>
        refused(&mut request, Failure::bad_request("_local documents do not accept attachments.")).await;
    InDatabase::Endpoint(Endpoint::LocalDocs) => Route::LocalDocs, PostReads, needs(Member) =>
        Box::pin(local_docs::list(*request, name)).await;
    InDatabase::LocalQueries => Route::LocalDocs, PostReads, needs(Member) =>
        Box::pin(local_docs::queries(*request, name)).await;
    InDatabase::Endpoint(Endpoint::AllDocs) => Route::AllDocs, PostReads, needs(Member).in_system(ServerAdmin) =>
        Box::pin(all_docs::all_docs(*request, name, DocumentListing::All)).await;
    InDatabase::Queries(listed @ DocumentListing::All) => Route::AllDocs, PostReads,
        needs(Member).in_system(ServerAdmin) => Box::pin(all_docs::queries(*request, name, listed)).await;
    InDatabase::Endpoint(Endpoint::DesignDocs) => Route::DesignDocs, PostReads, needs(Whole) =>
        Box::pin(all_docs::all_docs(*request, name, DocumentListing::Design)).await;
    InDatabase::Queries(listed @ DocumentListing::Design) => Route::DesignDocs, PostReads, needs(Whole) =>
        Box::pin(all_docs::queries(*request, name, listed)).await;
    InDatabase::Endpoint(Endpoint::BulkDocs) => Route::BulkDocs, ByMethod, needs(Member).everywhere() =>
        Box::pin(bulk::bulk_docs(state, *request, name)).await;
    InDatabase::Endpoint(Endpoint::BulkGet) => Route::BulkGet, PostReads, needs(Member) =>
        Box::pin(bulk_get::bulk_get(*request, name)).await;
    InDatabase::Endpoint(Endpoint::Changes) => Route::Changes, PostReads, needs(Member).in_system(ServerAdmin) =>
        Box::pin(changes::changes(state, *request, name)).await;
    InDatabase::Endpoint(Endpoint::RevsDiff) => Route::RevsDiff, PostReads, needs(Member).everywhere() =>
        Box::pin(revisions::revs_diff(*request, name)).await;
    InDatabase::Endpoint(Endpoint::MissingRevs) => Route::MissingRevs, PostReads, needs(Member).everywhere() =>
        Box::pin(revisions::missing_revs(*request, name)).await;

    // Configuration and maintenance.
    InDatabase::Endpoint(Endpoint::RevsLimit) => Route::RevsLimit, ByMethod,
        if *method == Method::PUT { needs(Admin) } else { needs(Whole) } =>
        Box::pin(revisions::revs_limit(*request, name)).await;
    InDatabase::Endpoint(Endpoint::Security) => Route::Security, ByMethod,
        if *method == Method::PUT { needs(Admin) } else { needs(Whole).everywhere() } =>
        Box::pin(maintenance::security(state, *request, name)).await;
    InDatabase::Endpoint(Endpoint::EnsureFullCommit) => Route::EnsureFullCommit, ByMethod, needs(Member) =>
        Box::pin(database::ensure_full_commit(*request, name)).await;
    InDatabase::Endpoint(Endpoint::Compact) => Route::Compact, ByMethod, needs(Maintainer) =>
        Box::pin(maintenance::compact(*request, name)).await;
    InDatabase::CompactViews { design } => Route::Compact, ByMethod, needs(Maintainer) =>
        Box::pin(maintenance::compact_views(*request, name, &design)).await;
    InDatabase::ViewCleanup => Route::ViewCleanup, ByMethod, needs(Maintainer) =>
        Box::pin(maintenance::view_cleanup(*request, name)).await;
    InDatabase::Endpoint(Endpoint::Purge) => Route::Purge, ByMethod, needs(ServerAdmin) =>
        Box::pin(maintenance::purge(*request, name)).await;
    InDatabase::Endpoint(Endpoint::PurgedInfos) => Route::PurgedInfos, ByMethod, needs(Whole) =>
        Box::pin(purged_infos::purged_infos(*request, name)).await;
    InDatabase::Endpoint(Endpoint::PurgedInfosLimit) => Route::PurgedInfosLimit, ByMethod, needs(ServerAdmin) =>
        Box::pin(maintenance::purged_infos_limit(*request, name)).await;
    InDatabase::Endpoint(Endpoint::RawKeys) => Route::RawKeys, ByMethod, needs(ServerAdmin) =>
        Box::pin(raw_keys::raw_keys(*request, name)).await;

    // Design documents: indexes, views and functions.
    InDatabase::Mango(what @ Mango::Find) => Route::Find, PostQueries, needs(Whole) =>
        Box::pin(mango::mango(state, *request, name, what, None)).await;
    InDatabase::Mango(what @ Mango::Explain) => Route::Explain, PostQueries, needs(Whole) =>
        Box::pin(mango::mango(state, *request, name, what, None)).await;
    InDatabase::Mango(what @ Mango::Count) => Route::Count, PostQueries, needs(Whole) =>
        Box::pin(mango::mango(state, *request, name, what, None)).await;
    InDatabase::Mango(what @ (Mango::Indexes | Mango::BulkDelete | Mango::Index { .. } | Mango::Unknown)) =>
        Route::Index, ByMethod, needs(Whole) => Box::pin(mango::mango(state, *request, name, what, None)).await;
    InDatabase::View { design, rest } => Route::View, PostReads, needs(Whole).in_users(UserViews) =>
        Box::pin(view::view(*request, name, &design, &rest)).await;
    InDatabase::DesignCall { design, kind: DesignCall::Show, rest } => Route::DesignFunction, PostReads,
        needs(Whole) => sandboxed(Box::pin(answering::show(state, *request, name, &design, &rest)).await);
    InDatabase::DesignCall { design, kind: DesignCall::Update, rest } => Route::DesignFunction, Writes,
        needs(Whole) => sandboxed(Box::pin(answering::update(state, *request, name, &design, &rest)).await);
    InDatabase::DesignCall { design, kind: DesignCall::List, rest } => Route::DesignFunction, PostReads,
        needs(Whole).in_users(UserViews) =>
        sandboxed(Box::pin(list::list(state, *request, name, &design, &rest)).await);
    // The dispatcher handles rewrites.
    InDatabase::DesignCall { kind: DesignCall::Rewrite, .. } => Route::DesignFunction, ByMethod, needs(Whole) =>
        Err(Failure::not_found("missing"));
    InDatabase::DesignInfo { is_longer: true, .. } => Route::DesignInfo, ByMethod, needs(Whole) =>
        refused(&mut request, Failure::method("GET")).await;
    InDatabase::DesignInfo { design, .. } => Route::DesignInfo, ByMethod, needs(Whole) =>
        Box::pin(maintenance::view_info(*request, name, &design)).await;
    InDatabase::TempView => Route::DatabaseOther, ByMethod, needs(Whole) => {
        let reason = "Temporary views are not supported in CouchDB";
        refused(&mut request, Failure::new(StatusCode::GONE, "gone", reason)).await
    };
    InDatabase::Partition { partition, of: None } => Route::DatabaseOther, ByMethod, needs(Whole) =>
        Box::pin(partition::partition(state, *request, name, partition, None)).await;
    InDatabase::Partition { partition, of: Some(of) } => of.route(), of.effect(), needs(Whole) =>
        Box::pin(partition::partition(state, *request, name, partition, Some(*of))).await;
    InDatabase::Later("_sync_shards", label) => *label, ByMethod, needs(ServerAdmin) =>
        not_implemented(&mut request, "_sync_shards").await;
    InDatabase::Later(what, label) => *label, ByMethod, needs(Whole) => not_implemented(&mut request, what).await;
}

/// Returns the rights for a design document and its attachments. Only administrators write these; the write itself
/// refuses others with a message of its own.
fn of_design(method: &Method) -> DatabaseRights {
    let right = if matches!(*method, Method::PUT | Method::DELETE) { Member } else { Whole };
    needs(right).everywhere()
}

/// Converts the answer of a design document's function. The type [`TenantReply`] makes the shell sandbox it.
fn sandboxed(reply: Result<TenantReply>) -> Result<Reply> {
    reply.map(Reply::from)
}

async fn refused(request: &mut Request, failure: Failure) -> Result<Reply> {
    request.skip_body().await;
    Err(failure)
}

async fn not_implemented(request: &mut Request, what: &str) -> Result<Reply> {
    refused(request, Failure::not_implemented(what)).await
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
