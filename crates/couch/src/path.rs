//! Parses a path once into a [`Target`]. The label in metrics and traces, the needed right and the handler follow from
//! it.

use flatbed_layer::{
    DESIGN, DatabaseKind, DocumentId, DocumentKind, LOCAL, REPLICATOR, WORKER, design_id, is_replicator_name,
};
use flatbed_replicator::NODE;
use hyper::Method;

use crate::error::Result;
use crate::query::decode;
use crate::route::Route;
use node::NODE_WITHOUT_NAME;
pub(crate) use node::{Node, Reshard};
#[cfg(feature = "worker")]
pub(crate) use worker::QueuePath;
pub(crate) use worker::WorkerApi;

/// CouchDB's name for the node that receives the request.
const NODE_HERE: &str = "_local";

/// The path `/metrics`. No database can have this name.
pub(crate) const METRICS: &str = "metrics";

/// A parsed path, or the reason why it is invalid.
#[derive(Debug)]
pub struct Path(pub(crate) Result<Target>);

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Welcome,
    Up,
    Session,
    Uuids,
    AllDbs,
    ActiveTasks,
    DbUpdates,
    Replicate,
    Scheduler(Scheduler),
    Worker(WorkerApi),
    Metrics,
    DbsInfo {
        /// True if further segments follow.
        is_longer: bool,
    },
    Node(Node),
    Membership,
    ClusterSetup,
    Reshard(Reshard),
    Utils,
    Favicon,
    /// A feature that CouchDB has and this version lacks: its first segment and its label.
    Later(&'static str, Route),
    Database(DatabaseName, InDatabase),
    /// A path with an encoded slash after `_design`. Reads are redirected to the plain form.
    EncodedDesign(Box<Target>),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Scheduler {
    Jobs,
    Job(String),
    Docs,
    Doc(String),
    /// All documents of another replicator database, by the database's name.
    DocsOf(String),
    /// One document of another replicator database: database name, document id.
    DocOf(String, String),
    Unknown,
}

/// The first segment of a database's path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DatabaseName {
    pub(crate) text: String,
    kind: DatabaseKind,
}

/// The resource that a path names in a database.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InDatabase {
    Root,
    /// `/{db}/_changes` and other fixed names.
    Endpoint(Endpoint),
    Queries(DocumentListing),
    LocalQueries,
    Mango(Mango),
    /// A partition, or the resource `of` restricted to it.
    Partition {
        partition: Option<String>,
        of: Option<Box<InDatabase>>,
    },
    /// A feature that CouchDB has and this version lacks: its name and its label.
    Later(&'static str, Route),
    Document {
        id: String,
        kind: IdKind,
    },
    /// `name` may have slashes.
    Attachment {
        id: String,
        kind: IdKind,
        name: String,
    },
    /// `id` is the rest of the path after `_local/`.
    Local {
        id: String,
    },
    /// An attachment of a local document, which cannot exist.
    LocalAttachment,
    /// A call of a show, list, update or rewrite function; `rest` is the path after `_show` etc.
    DesignCall {
        design: String,
        kind: DesignCall,
        rest: Vec<String>,
    },
    /// The views of a design document; `rest` is the path after `_view`.
    View {
        design: String,
        rest: Vec<String>,
    },
    /// `/{db}/_design/{ddoc}/_info`; `is_longer`: further segments follow.
    DesignInfo {
        design: String,
        is_longer: bool,
    },
    CompactViews {
        design: String,
    },
    ViewCleanup,
    /// `/{db}/_temp_view` of CouchDB 1.x.
    TempView,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mango {
    Find,
    Explain,
    /// `_count`, Flatbed's extension.
    Count,
    Indexes,
    BulkDelete,
    /// `_index/{ddoc}/{kind}/{name}`; `ddoc` with or without `_design/`.
    Index {
        ddoc: String,
        kind: String,
        name: String,
    },
    /// Any other path beneath `_index`.
    Unknown,
}

/// The kinds of design functions that answer requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DesignCall {
    Show,
    List,
    Update,
    Rewrite,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DocumentListing {
    All,
    Design,
}

/// The class of a document id, as far as the path shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdKind {
    Plain,
    Design,
    /// `_local`, or an attachment's `_local/...`. Such documents cannot exist.
    Local,
    /// An endpoint's name, which has no attachments.
    Endpoint(Endpoint),
    /// Any other id with a leading underscore. Such documents cannot exist.
    Reserved,
}

/// Fixed names in a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    LocalDocs,
    AllDocs,
    DesignDocs,
    BulkDocs,
    BulkGet,
    Changes,
    RevsDiff,
    MissingRevs,
    RevsLimit,
    EnsureFullCommit,
    Compact,
    Purge,
    PurgedInfos,
    PurgedInfosLimit,
    /// Flatbed's extension.
    RawKeys,
    Security,
}

impl Target {
    /// Parses a path; 400 if a segment is not UTF-8. Repeated slashes count as one, as in CouchDB.
    pub(crate) fn parse(path: &str) -> Result<Target> {
        let segments: Result<Vec<String>> = path.split('/').filter(|segment| !segment.is_empty()).map(decode).collect();
        Ok(Target::of(segments?))
    }

    fn of(segments: Vec<String>) -> Target {
        let is_encoded_design = segments.get(1).is_some_and(|second| DocumentId::of(second).is_design());
        let target = Target::of_plain(segments);
        if is_encoded_design { Target::EncodedDesign(Box::new(target)) } else { target }
    }

    fn of_plain(segments: Vec<String>) -> Target {
        let names: Vec<&str> = segments.iter().map(String::as_str).collect();
        match names[..] {
            [] => Target::Welcome,
            ["_up"] => Target::Up,
            ["_session"] => Target::Session,
            ["_uuids"] => Target::Uuids,
            ["_all_dbs"] => Target::AllDbs,
            ["_active_tasks"] => Target::ActiveTasks,
            ["_db_updates"] => Target::DbUpdates,
            ["_replicate"] => Target::Replicate,
            ["_scheduler", ref rest @ ..] => Target::Scheduler(Scheduler::of(rest)),
            [WORKER, "_api", ref rest @ ..] => Target::Worker(WorkerApi::of(rest)),
            [METRICS] | ["_node", NODE_HERE | NODE | NODE_WITHOUT_NAME, "_prometheus"] => Target::Metrics,
            ["_node", NODE_HERE | NODE | NODE_WITHOUT_NAME, "_active_tasks"] => Target::ActiveTasks,
            ["_node", ref rest @ ..] => Target::Node(Node::of(rest)),
            ["_dbs_info", ref rest @ ..] => Target::DbsInfo { is_longer: !rest.is_empty() },
            ["_cluster_setup"] => Target::ClusterSetup,
            ["_membership"] => Target::Membership,
            ["_reshard", ref rest @ ..] => Target::Reshard(Reshard::of(rest)),
            ["_cluster_setup", ..] => Target::Later("_cluster_setup", Route::Server),
            ["_membership", ..] => Target::Later("_membership", Route::Server),
            ["_search_analyze", ..] => Target::Later("_search_analyze", Route::Server),
            ["_nouveau_analyze", ..] => Target::Later("_nouveau_analyze", Route::Server),
            ["_utils", ..] => Target::Utils,
            ["favicon.ico"] => Target::Favicon,
            [name, ref rest @ ..] => Target::Database(DatabaseName::of(name), InDatabase::of(rest)),
        }
    }

    pub(crate) fn route(&self) -> Route {
        match self {
            Target::Welcome => Route::Root,
            Target::Up => Route::Up,
            Target::Session => Route::Session,
            Target::Uuids => Route::Uuids,
            Target::AllDbs => Route::AllDbs,
            Target::ActiveTasks => Route::ActiveTasks,
            Target::DbUpdates => Route::DbUpdates,
            Target::Replicate => Route::Replicate,
            Target::Scheduler(_) => Route::Scheduler,
            Target::Worker(_) => Route::Worker,
            Target::Metrics => Route::Metrics,
            Target::DbsInfo { is_longer: false } => Route::DbsInfo,
            Target::Node(_) => Route::Node,
            Target::DbsInfo { is_longer: true }
            | Target::Membership
            | Target::ClusterSetup
            | Target::Reshard(_)
            | Target::Utils
            | Target::Favicon => Route::Server,
            Target::Later(_, route) => *route,
            Target::Database(name, what) => match name.kind {
                DatabaseKind::Ordinary | DatabaseKind::System => what.route(),
                DatabaseKind::Reserved => Route::Server,
            },
            Target::EncodedDesign(target) => target.route(),
        }
    }

    /// Returns whether a request with this method only reads, so that the server may drop it when the client
    /// disconnects.
    pub(crate) fn only_reads(&self, method: &Method) -> bool {
        let is_query = matches!(self, Target::Database(_, what) if what.is_query()) && *method == Method::POST;
        is_query || (matches!(*method, Method::GET | Method::HEAD) && !self.is_update())
    }

    /// Returns whether a request with this method may write. A `POST` may be a query.
    pub(crate) fn changes(&self, method: &Method) -> bool {
        let is_query = *method == Method::POST && self.is_read_by_post();
        self.is_update() || !(method.is_safe() || is_query)
    }

    fn is_read_by_post(&self) -> bool {
        match self {
            Target::DbsInfo { .. } => true,
            Target::Database(_, what) => what.is_read_by_post(),
            _ => false,
        }
    }

    /// Returns whether the target calls an update function, which writes with any method.
    pub(crate) fn is_update(&self) -> bool {
        match self {
            Target::Database(_, what) => what.is_update(),
            Target::EncodedDesign(target) => target.is_update(),
            _ => false,
        }
    }
}

impl Scheduler {
    fn of(segments: &[&str]) -> Scheduler {
        match *segments {
            ["jobs"] => Scheduler::Jobs,
            ["jobs", id] => Scheduler::Job(id.to_owned()),
            ["docs"] | ["docs", REPLICATOR] => Scheduler::Docs,
            ["docs", REPLICATOR, id] => Scheduler::Doc(id.to_owned()),
            ["docs", name] if is_replicator_name(name) => Scheduler::DocsOf(name.to_owned()),
            ["docs", name, id] if is_replicator_name(name) => Scheduler::DocOf(name.to_owned(), id.to_owned()),
            // Slashes in the database's name need not be encoded, because no document can have the id `_replicator`.
            ["docs", ref name @ .., REPLICATOR] => Scheduler::DocsOf(format!("{}/{REPLICATOR}", name.join("/"))),
            ["docs", ref name @ .., REPLICATOR, id] => {
                Scheduler::DocOf(format!("{}/{REPLICATOR}", name.join("/")), id.to_owned())
            }
            _ => Scheduler::Unknown,
        }
    }
}

impl DatabaseName {
    fn of(name: &str) -> DatabaseName {
        DatabaseName { text: name.to_owned(), kind: DatabaseKind::of(name) }
    }
}

impl InDatabase {
    fn of(segments: &[&str]) -> InDatabase {
        match *segments {
            [] => InDatabase::Root,
            ["_all_docs", "queries"] => InDatabase::Queries(DocumentListing::All),
            ["_design_docs", "queries"] => InDatabase::Queries(DocumentListing::Design),
            ["_local_docs", "queries"] => InDatabase::LocalQueries,
            [LOCAL, id] => InDatabase::Local { id: id.to_owned() },
            [LOCAL, _, ..] => InDatabase::LocalAttachment,
            ["_find", ..] => InDatabase::Mango(Mango::Find),
            ["_explain", ..] => InDatabase::Mango(Mango::Explain),
            ["_count", ..] => InDatabase::Mango(Mango::Count),
            ["_index", ref rest @ ..] => InDatabase::Mango(Mango::of_index(rest)),
            ["_temp_view", ..] => InDatabase::TempView,
            ["_view_cleanup", ..] => InDatabase::ViewCleanup,
            ["_compact", design, ..] => InDatabase::CompactViews { design: design.to_owned() },
            ["_shards", ..] => InDatabase::Later("_shards", Route::DatabaseOther),
            ["_sync_shards", ..] => InDatabase::Later("_sync_shards", Route::DatabaseOther),
            ["_search_cleanup", ..] => InDatabase::Later("_search_cleanup", Route::DatabaseOther),
            ["_nouveau_cleanup", ..] => InDatabase::Later("_nouveau_cleanup", Route::DatabaseOther),
            ["_partition"] => InDatabase::Partition { partition: None, of: None },
            ["_partition", partition] => InDatabase::Partition { partition: Some(partition.to_owned()), of: None },
            // A partition has no partitions, and this bounds the recursion.
            ["_partition", partition, ref rest @ ..] if rest.first() != Some(&"_partition") => InDatabase::Partition {
                partition: Some(partition.to_owned()),
                of: Some(Box::new(InDatabase::of(rest))),
            },
            ["_partition", _, ..] => InDatabase::Document { id: "_partition".to_owned(), kind: IdKind::Reserved },
            [DESIGN, id] => InDatabase::Document { id: design_id(id), kind: IdKind::Design },
            [DESIGN, design, kind @ ("_show" | "_list" | "_update" | "_rewrite"), ref rest @ ..] => {
                let rest = rest.iter().map(|&segment| segment.to_owned()).collect();
                InDatabase::DesignCall { design: design.to_owned(), kind: DesignCall::of(kind), rest }
            }
            [DESIGN, design, "_view", ref rest @ ..] => {
                let rest = rest.iter().map(|&segment| segment.to_owned()).collect();
                InDatabase::View { design: design.to_owned(), rest }
            }
            [DESIGN, design, "_info", ref rest @ ..] => {
                InDatabase::DesignInfo { design: design.to_owned(), is_longer: !rest.is_empty() }
            }
            [DESIGN, _, "_search", ..] => InDatabase::Later("_search", Route::DesignFunction),
            [DESIGN, _, "_search_info", ..] => InDatabase::Later("_search_info", Route::DesignFunction),
            [DESIGN, _, "_search_disk_size", ..] => InDatabase::Later("_search_disk_size", Route::DesignFunction),
            [DESIGN, _, "_nouveau", ..] => InDatabase::Later("_nouveau", Route::DesignFunction),
            [DESIGN, _, "_nouveau_info", ..] => InDatabase::Later("_nouveau_info", Route::DesignFunction),
            [DESIGN, id, ref file @ ..] => {
                InDatabase::Attachment { id: design_id(id), kind: IdKind::Design, name: file.join("/") }
            }
            [id] => match (Endpoint::named(id), DocumentId::of(id).local_name()) {
                (Some(endpoint), _) => InDatabase::Endpoint(endpoint),
                (None, Some(id)) => InDatabase::Local { id: id.to_owned() },
                (None, None) => InDatabase::Document { id: id.to_owned(), kind: IdKind::of(id) },
            },
            [id, ref file @ ..] => {
                InDatabase::Attachment { id: id.to_owned(), kind: IdKind::of(id), name: file.join("/") }
            }
        }
    }

    /// Returns whether an update function is called, in a partition or not.
    fn is_update(&self) -> bool {
        match self {
            InDatabase::DesignCall { kind, .. } => matches!(kind, DesignCall::Update),
            InDatabase::Partition { of: Some(of), .. } => of.is_update(),
            _ => false,
        }
    }

    /// Returns whether a `POST` only reads, with parameters in the body that are too long for a URL.
    fn is_read_by_post(&self) -> bool {
        match self {
            InDatabase::Endpoint(endpoint) => matches!(
                endpoint,
                Endpoint::LocalDocs
                    | Endpoint::AllDocs
                    | Endpoint::DesignDocs
                    | Endpoint::BulkGet
                    | Endpoint::Changes
                    | Endpoint::RevsDiff
                    | Endpoint::MissingRevs
            ),
            InDatabase::Queries(_) | InDatabase::LocalQueries | InDatabase::View { .. } => true,
            InDatabase::DesignCall { kind, .. } => matches!(kind, DesignCall::Show | DesignCall::List),
            InDatabase::Partition { of: Some(of), .. } => of.is_read_by_post(),
            _ => self.is_query(),
        }
    }

    fn is_query(&self) -> bool {
        match self {
            InDatabase::Mango(what) => matches!(what, Mango::Find | Mango::Explain | Mango::Count),
            InDatabase::Partition { of: Some(of), .. } => of.is_query(),
            _ => false,
        }
    }

    fn route(&self) -> Route {
        match self {
            InDatabase::Root => Route::Database,
            InDatabase::Endpoint(endpoint) => endpoint.route(),
            InDatabase::Queries(DocumentListing::All) => Route::AllDocs,
            InDatabase::Queries(DocumentListing::Design) => Route::DesignDocs,
            InDatabase::LocalQueries => Route::LocalDocs,
            InDatabase::Mango(what) => what.route(),
            InDatabase::Later(_, route) => *route,
            InDatabase::Partition { of: None, .. } => Route::DatabaseOther,
            InDatabase::Partition { of: Some(of), .. } => of.route(),
            InDatabase::Document { kind, .. } => kind.route(Route::Document, Route::DesignDocument),
            InDatabase::Attachment { kind, .. } => kind.route(Route::Attachment, Route::DesignAttachment),
            InDatabase::Local { .. } | InDatabase::LocalAttachment => Route::LocalDocument,
            InDatabase::DesignCall { .. } => Route::DesignFunction,
            InDatabase::View { .. } => Route::View,
            InDatabase::DesignInfo { .. } => Route::DesignInfo,
            InDatabase::CompactViews { .. } => Route::Compact,
            InDatabase::ViewCleanup => Route::ViewCleanup,
            InDatabase::TempView => Route::DatabaseOther,
        }
    }
}

impl DesignCall {
    fn of(kind: &str) -> DesignCall {
        match kind {
            "_show" => DesignCall::Show,
            "_list" => DesignCall::List,
            "_update" => DesignCall::Update,
            _ => DesignCall::Rewrite,
        }
    }
}

impl Mango {
    fn of_index(segments: &[&str]) -> Mango {
        let index = |ddoc: String, kind: &str, name: &str| Mango::Index { ddoc, kind: kind.into(), name: name.into() };
        match *segments {
            [] => Mango::Indexes,
            ["_bulk_delete"] => Mango::BulkDelete,
            [DESIGN, ddoc, kind, name] => index(design_id(ddoc), kind, name),
            [ddoc, kind, name] => index(ddoc.to_owned(), kind, name),
            _ => Mango::Unknown,
        }
    }

    fn route(&self) -> Route {
        match self {
            Mango::Find => Route::Find,
            Mango::Explain => Route::Explain,
            Mango::Count => Route::Count,
            Mango::Indexes | Mango::BulkDelete | Mango::Index { .. } | Mango::Unknown => Route::Index,
        }
    }
}

impl IdKind {
    fn of(id: &str) -> IdKind {
        match DocumentId::of(id).kind() {
            DocumentKind::Ordinary if !id.starts_with('_') => IdKind::Plain,
            DocumentKind::Design => IdKind::Design,
            DocumentKind::Local => IdKind::Local,
            DocumentKind::Ordinary if id == LOCAL => IdKind::Local,
            DocumentKind::Ordinary => Endpoint::named(id).map_or(IdKind::Reserved, IdKind::Endpoint),
        }
    }

    /// Returns the label. `plain` and `design` are the labels of ordinary and design document ids.
    fn route(self, plain: Route, design: Route) -> Route {
        match self {
            IdKind::Plain => plain,
            IdKind::Design => design,
            IdKind::Local => Route::LocalDocument,
            IdKind::Endpoint(endpoint) => endpoint.route(),
            IdKind::Reserved => Route::DatabaseOther,
        }
    }
}

impl Endpoint {
    fn named(name: &str) -> Option<Endpoint> {
        Some(match name {
            "_local_docs" => Endpoint::LocalDocs,
            "_all_docs" => Endpoint::AllDocs,
            "_design_docs" => Endpoint::DesignDocs,
            "_bulk_docs" => Endpoint::BulkDocs,
            "_bulk_get" => Endpoint::BulkGet,
            "_changes" => Endpoint::Changes,
            "_revs_diff" => Endpoint::RevsDiff,
            "_missing_revs" => Endpoint::MissingRevs,
            "_revs_limit" => Endpoint::RevsLimit,
            "_ensure_full_commit" => Endpoint::EnsureFullCommit,
            "_compact" => Endpoint::Compact,
            "_purge" => Endpoint::Purge,
            "_purged_infos" => Endpoint::PurgedInfos,
            "_purged_infos_limit" => Endpoint::PurgedInfosLimit,
            "_raw_keys" => Endpoint::RawKeys,
            "_security" => Endpoint::Security,
            _ => return None,
        })
    }

    fn route(self) -> Route {
        match self {
            Endpoint::LocalDocs => Route::LocalDocs,
            Endpoint::AllDocs => Route::AllDocs,
            Endpoint::DesignDocs => Route::DesignDocs,
            Endpoint::BulkDocs => Route::BulkDocs,
            Endpoint::BulkGet => Route::BulkGet,
            Endpoint::Changes => Route::Changes,
            Endpoint::RevsDiff => Route::RevsDiff,
            Endpoint::MissingRevs => Route::MissingRevs,
            Endpoint::RevsLimit => Route::RevsLimit,
            Endpoint::EnsureFullCommit => Route::EnsureFullCommit,
            Endpoint::Compact => Route::Compact,
            Endpoint::Purge => Route::Purge,
            Endpoint::PurgedInfos => Route::PurgedInfos,
            Endpoint::PurgedInfosLimit => Route::PurgedInfosLimit,
            Endpoint::RawKeys => Route::RawKeys,
            Endpoint::Security => Route::Security,
        }
    }
}

mod needed;
mod node;
#[cfg(test)]
mod tests;
mod worker;

pub(crate) use needed::RequiredRight;
