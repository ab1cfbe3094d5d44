//! Which right a request needs: the one table of it, by what its path names and its method.
//!
//! As CouchDB has it (`chttpd_auth_request`); what differs: `design/http.md`. Handlers are given nothing without the right to
//! it, either, and ask for it by the same names. What a request is refused with follows from the right: see
//! [`authorize`](crate::router).

use flatbed_layer::{DatabaseKind, REPLICATOR, USERS, is_replicator_name};
use hyper::Method;

use super::{Answering, Endpoint, IdKind, InDatabase, Listed, Mango, Node, Scheduler, Target};

/// The right that a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needed<'t> {
    /// None: the server answers anyone.
    Nothing,
    /// That of anybody who has a name.
    User,
    /// An administrator's of the server, or to see its figures alone.
    Metrics,
    /// An administrator's of the server, or none where the settings show everyone which databases there are.
    Databases,
    /// An administrator's of the server.
    ServerAdmin,
    /// A member's of the database.
    Member(&'t str),
    /// The same, who sees all of it: in one with channels that is an administrator's.
    Whole(&'t str),
    /// An administrator's of the database, to set it up.
    Admin(&'t str),
    /// The same, to keep it in order: who is a member is refused with other words.
    Maintainer(&'t str),
    /// The same; for a member there is nothing there.
    Hidden(&'t str),
    /// An administrator of `_users`, to read its views: the refusal has its own message, and is 403 for anonymous clients, too.
    UserViews,
}

impl Target {
    /// The name of the target's database if it may be a replicator database; the caller looks that up before [`Target::needs`].
    pub(crate) fn may_be_replicator(&self) -> Option<&str> {
        match self {
            Target::Database(name, _) => Some(name.text.as_str()).filter(|name| is_replicator_name(name)),
            Target::EncodedDesign(target) => target.may_be_replicator(),
            _ => None,
        }
    }

    /// The right that a request with this method needs. `is_replicator`: whether the database of [`Target::may_be_replicator`]
    /// is a replicator database.
    pub(crate) fn needs(&self, method: &Method, is_replicator: bool) -> Needed<'_> {
        match self {
            Target::Welcome | Target::Up | Target::Session | Target::Uuids | Target::Utils | Target::Favicon => {
                Needed::Nothing
            }
            Target::Metrics | Target::Node(Node::Stats(_) | Node::System) => Needed::Metrics,
            // What it reaches here it reaches with the rights of who asks.
            Target::Replicate => Needed::User,
            Target::AllDbs | Target::DbsInfo { .. } => Needed::Databases,
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
            | Target::Later(..) => Needed::ServerAdmin,
            Target::Database(name, what) => match (name.kind, name.text.as_str()) {
                (DatabaseKind::Ordinary, name) | (DatabaseKind::System, name @ (USERS | REPLICATOR)) => {
                    in_database(name, is_replicator || name == REPLICATOR, what, method)
                }
                (DatabaseKind::System | DatabaseKind::Reserved, _) => Needed::ServerAdmin,
            },
            Target::EncodedDesign(target) => target.needs(method, is_replicator),
        }
    }
}

/// What is needed in a database that there can be.
fn in_database<'t>(name: &'t str, is_replicator: bool, what: &InDatabase, method: &Method) -> Needed<'t> {
    let is_put = *method == Method::PUT;
    let shows_one_by_one = is_replicator || name == USERS;
    match what {
        InDatabase::Root if is_put || *method == Method::DELETE => Needed::ServerAdmin,
        InDatabase::Endpoint(Endpoint::Purge | Endpoint::PurgedInfosLimit | Endpoint::RawKeys) => Needed::ServerAdmin,
        InDatabase::Endpoint(Endpoint::Compact) | InDatabase::CompactViews { .. } | InDatabase::ViewCleanup => {
            Needed::Maintainer(name)
        }
        InDatabase::Endpoint(Endpoint::Security | Endpoint::RevsLimit) if is_put => Needed::Admin(name),
        InDatabase::Later("_sync_shards", _) => Needed::ServerAdmin,
        InDatabase::Local { .. } if name == USERS => Needed::Hidden(name),
        // The right to write documents in these databases does not include the right to list them.
        InDatabase::Endpoint(Endpoint::AllDocs | Endpoint::Changes) | InDatabase::Queries(Listed::All)
            if shows_one_by_one =>
        {
            Needed::ServerAdmin
        }
        InDatabase::View { .. } | InDatabase::Answering { kind: Answering::List, .. } if name == USERS => {
            Needed::UserViews
        }
        // Who does not administer users, or replications, sees their documents one by one, as each shows itself; what has
        // something of them otherwise, and whatever comes to be here, is for who does.
        _ if shows_one_by_one && !is_of_single_documents(what, method) => Needed::Admin(name),
        // What has something of several documents in it, or of how the database is set up; and whatever comes to be here.
        InDatabase::Endpoint(
            Endpoint::DesignDocs | Endpoint::PurgedInfos | Endpoint::RevsLimit | Endpoint::Security,
        )
        | InDatabase::Queries(Listed::Design)
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
        | InDatabase::Answering { .. }
        | InDatabase::View { .. }
        | InDatabase::DesignInfo { .. }
        | InDatabase::TempView => Needed::Whole(name),
        // They are written by administrators alone, and refused to others in words of their own then.
        InDatabase::Document { kind: IdKind::Design, .. } | InDatabase::Attachment { kind: IdKind::Design, .. }
            if !matches!(*method, Method::PUT | Method::DELETE) =>
        {
            Needed::Whole(name)
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
        | InDatabase::Queries(Listed::All)
        | InDatabase::LocalQueries
        | InDatabase::Document { .. }
        | InDatabase::Attachment { .. }
        | InDatabase::Local { .. }
        | InDatabase::LocalAttachment => Needed::Member(name),
    }
}

/// Whether members of `_users` and of replicator databases may make a request: one that reads through [`flatbed_layer::Seen`], or whose
/// answer has nothing of documents.
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
