//! Maps a target and a method to the right that the request needs.
//!
//! The rules are CouchDB's (`chttpd_auth_request`); `docs/couchdb-differences.md` lists the differences. Handlers request the same
//! right again when they open a database. The right determines the refusal's text: see [`authorize`](crate::router).

use flatbed_layer::{DatabaseKind, REPLICATOR, USERS, is_replicator_name};
use hyper::Method;

use super::{DesignCall, DocumentListing, Endpoint, IdKind, InDatabase, Mango, Node, Scheduler, Target};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequiredRight<'t> {
    /// No right: anonymous requests are allowed.
    Nothing,
    User,
    /// A server administrator, or the right to read metrics.
    Metrics,
    /// A server administrator, or everyone if the settings make the list of databases public.
    Databases,
    ServerAdmin,
    Member(&'t str),
    /// A member with unrestricted access: in a database with channels an administrator of the database.
    Whole(&'t str),
    /// An administrator of the database, to configure it.
    Admin(&'t str),
    /// An administrator of the database, for maintenance. Members get a different refusal.
    Maintainer(&'t str),
    /// An administrator of the database. Members get 404.
    Hidden(&'t str),
    /// An administrator of `_users`, to read its views. The refusal has its own message and is 403 for anonymous
    /// clients, too.
    UserViews,
}

impl Target {
    /// Returns the database's name if it may be a replicator database. The caller looks that up before
    /// [`Target::needs`].
    pub(crate) fn may_be_replicator(&self) -> Option<&str> {
        match self {
            Target::Database(name, _) => Some(name.text.as_str()).filter(|name| is_replicator_name(name)),
            Target::EncodedDesign(target) => target.may_be_replicator(),
            _ => None,
        }
    }

    /// Returns the right that a request with this method needs. `is_replicator`: true if the database of
    /// [`Target::may_be_replicator`] is a replicator database.
    pub(crate) fn needs(&self, method: &Method, is_replicator: bool) -> RequiredRight<'_> {
        match self {
            Target::Welcome | Target::Up | Target::Session | Target::Uuids | Target::Utils | Target::Favicon => {
                RequiredRight::Nothing
            }
            Target::Metrics | Target::Node(Node::Stats(_) | Node::System) => RequiredRight::Metrics,
            // The replication runs with the rights of the requesting user.
            Target::Replicate => RequiredRight::User,
            Target::AllDbs | Target::DbsInfo { .. } => RequiredRight::Databases,
            Target::ActiveTasks
            | Target::DbUpdates
            | Target::Scheduler(
                Scheduler::Jobs
                | Scheduler::Job(_)
                | Scheduler::Docs
                | Scheduler::Doc(_)
                | Scheduler::DocsOf(_)
                | Scheduler::DocOf(..)
                | Scheduler::Unknown,
            )
            | Target::Worker(_)
            | Target::Node(_)
            | Target::Membership
            | Target::ClusterSetup
            | Target::Reshard(_)
            | Target::Later(..) => RequiredRight::ServerAdmin,
            Target::Database(name, what) => match (name.kind, name.text.as_str()) {
                (DatabaseKind::Ordinary, name) | (DatabaseKind::System, name @ (USERS | REPLICATOR)) => {
                    in_database(name, is_replicator || name == REPLICATOR, what, method)
                }
                (DatabaseKind::System | DatabaseKind::Reserved, _) => RequiredRight::ServerAdmin,
            },
            Target::EncodedDesign(target) => target.needs(method, is_replicator),
        }
    }
}

/// Returns the right for a target in a database with a valid name.
fn in_database<'t>(name: &'t str, is_replicator: bool, what: &InDatabase, method: &Method) -> RequiredRight<'t> {
    let is_put = *method == Method::PUT;
    let shows_one_by_one = is_replicator || name == USERS;
    match what {
        InDatabase::Root if is_put || *method == Method::DELETE => RequiredRight::ServerAdmin,
        InDatabase::Endpoint(Endpoint::Purge | Endpoint::PurgedInfosLimit | Endpoint::RawKeys) => {
            RequiredRight::ServerAdmin
        }
        InDatabase::Endpoint(Endpoint::Compact) | InDatabase::CompactViews { .. } | InDatabase::ViewCleanup => {
            RequiredRight::Maintainer(name)
        }
        InDatabase::Endpoint(Endpoint::Security | Endpoint::RevsLimit) if is_put => RequiredRight::Admin(name),
        InDatabase::Later("_sync_shards", _) => RequiredRight::ServerAdmin,
        InDatabase::Local { .. } if name == USERS => RequiredRight::Hidden(name),
        // The right to write documents in these databases does not include the right to list them.
        InDatabase::Endpoint(Endpoint::AllDocs | Endpoint::Changes) | InDatabase::Queries(DocumentListing::All)
            if shows_one_by_one =>
        {
            RequiredRight::ServerAdmin
        }
        InDatabase::View { .. } | InDatabase::DesignCall { kind: DesignCall::List, .. } if name == USERS => {
            RequiredRight::UserViews
        }
        // Users without the right to administer `_users` or replications read single documents, which check the reader
        // themselves. Everything else in these databases, including future endpoints, needs an administrator.
        _ if shows_one_by_one && !is_of_single_documents(what, method) => RequiredRight::Admin(name),
        // Endpoints that show several documents or the database's configuration, and all future endpoints.
        InDatabase::Endpoint(
            Endpoint::DesignDocs | Endpoint::PurgedInfos | Endpoint::RevsLimit | Endpoint::Security,
        )
        | InDatabase::Queries(DocumentListing::Design)
        | InDatabase::Mango(
            Mango::Find
            | Mango::Explain
            | Mango::Count
            | Mango::Indexes
            | Mango::BulkDelete
            | Mango::Index { .. }
            | Mango::Unknown,
        )
        | InDatabase::Partition { .. }
        | InDatabase::Later(..)
        | InDatabase::DesignCall { .. }
        | InDatabase::View { .. }
        | InDatabase::DesignInfo { .. }
        | InDatabase::TempView => RequiredRight::Whole(name),
        // Only administrators write these; the write itself refuses others with a message of its own.
        InDatabase::Document { kind: IdKind::Design, .. } | InDatabase::Attachment { kind: IdKind::Design, .. }
            if !matches!(*method, Method::PUT | Method::DELETE) =>
        {
            RequiredRight::Whole(name)
        }
        InDatabase::Root
        | InDatabase::Endpoint(
            Endpoint::LocalDocs
            | Endpoint::AllDocs
            | Endpoint::BulkDocs
            | Endpoint::BulkGet
            | Endpoint::Changes
            | Endpoint::RevsDiff
            | Endpoint::MissingRevs
            | Endpoint::EnsureFullCommit,
        )
        | InDatabase::Queries(DocumentListing::All)
        | InDatabase::LocalQueries
        | InDatabase::Document { .. }
        | InDatabase::Attachment { .. }
        | InDatabase::Local { .. }
        | InDatabase::LocalAttachment => RequiredRight::Member(name),
    }
}

/// Returns whether members of `_users` and of replicator databases may make a request: it reads through
/// [`flatbed_layer::DocumentFilter`], or its answer contains nothing of documents.
fn is_of_single_documents(what: &InDatabase, method: &Method) -> bool {
    match what {
        InDatabase::Root => matches!(*method, Method::GET | Method::HEAD | Method::POST),
        InDatabase::Endpoint(Endpoint::BulkDocs | Endpoint::RevsDiff | Endpoint::MissingRevs | Endpoint::Security) => {
            true
        }
        InDatabase::Document { .. } | InDatabase::Attachment { .. } => true,
        _ => false,
    }
}
