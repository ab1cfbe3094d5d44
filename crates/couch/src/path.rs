//! What a path names. It is parsed once: the label in metrics and traces, the right that it needs and the handler follow
//! from its [`Target`].

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
pub(crate) use worker::Queued;
pub(crate) use worker::WorkerApi;

/// What CouchDB calls the node that is asked.
const NODE_HERE: &str = "_local";

/// The path `/metrics`, which no database can be.
pub(crate) const METRICS: &str = "metrics";

/// A path that is read, or why it cannot be.
#[derive(Debug)]
pub struct Path(pub(crate) Result<Target>);

/// What a path names.
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
        /// Something stands behind it.
        is_longer: bool,
    },
    Node(Node),
    Membership,
    ClusterSetup,
    Reshard(Reshard),
    Utils,
    Favicon,
    /// What CouchDB has and this version has not: its first segment, and its label.
    Later(&'static str, Route),
    Database(DatabaseName, InDatabase),
    /// The slash behind `_design` came encoded: who reads is sent to where it is plain.
    EncodedDesign(Box<Target>),
}

/// Beneath `/_scheduler`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Scheduler {
    Jobs,
    Job(String),
    /// The documents of `_replicator`.
    Docs,
    /// One document of `_replicator`, by id.
    Doc(String),
    /// The documents of another replicator database, by its name.
    DocsOf(String),
    /// One document of another replicator database: database name, document id.
    DocOf(String, String),
    Unknown,
}

/// A path's first segment where it is a database's name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DatabaseName {
    pub(crate) text: String,
    kind: DatabaseKind,
}

/// What a path names in a database.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InDatabase {
    /// The database itself.
    Root,
    /// `/{db}/_changes` and its like.
    Endpoint(Endpoint),
    /// `/{db}/_all_docs/queries` or `/{db}/_design_docs/queries`.
    Queries(Listed),
    /// `/{db}/_local_docs/queries`.
    LocalQueries,
    /// Mango.
    Mango(Mango),
    /// A partition, or what `of` says of it alone.
    Partition {
        partition: Option<String>,
        of: Option<Box<InDatabase>>,
    },
    /// What CouchDB has and this version has not: how that is called, and its label.
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
    /// `id` is what stands behind `_local/`.
    Local {
        id: String,
    },
    /// Local documents have none.
    LocalAttachment,
    /// A function of a design document answers; `rest` is what stands behind its kind.
    Answering {
        design: String,
        kind: Answering,
        rest: Vec<String>,
    },
    /// Views of a design document; `rest` is what stands behind `_view`.
    View {
        design: String,
        rest: Vec<String>,
    },
    /// `/{db}/_design/{ddoc}/_info`; `is_longer`: something stands behind it.
    DesignInfo {
        design: String,
        is_longer: bool,
    },
    /// `/{db}/_compact/{ddoc}`
    CompactViews {
        design: String,
    },
    /// `/{db}/_view_cleanup`
    ViewCleanup,
    /// `/{db}/_temp_view`, which CouchDB had.
    TempView,
}

/// Queries and indexes of Mango.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mango {
    /// `_find`
    Find,
    /// `_explain`
    Explain,
    /// `_count`, which CouchDB has not.
    Count,
    /// `_index`
    Indexes,
    /// `_index/_bulk_delete`
    BulkDelete,
    /// `_index/{ddoc}/{kind}/{name}`; `ddoc` with or without `_design/`.
    Index { ddoc: String, kind: String, name: String },
    /// Beneath `_index`, any other path.
    Unknown,
}

/// Which functions of design documents answer requests themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answering {
    Show,
    List,
    Update,
    Rewrite,
}

/// Which documents `_all_docs` and `_design_docs` list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listed {
    All,
    Design,
}

/// What a document's id is, as far as its path shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdKind {
    Plain,
    /// `_design/...`
    Design,
    /// `_local`, or an attachment's `_local/...`: no document can have it.
    Local,
    /// The name of an endpoint, which has no attachments.
    Endpoint(Endpoint),
    /// Another one with an underscore: no document can have it.
    Reserved,
}

/// Paths of a database that are no document's.
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
    /// Which CouchDB has not.
    RawKeys,
    Security,
}

impl Target {
    /// Reads a path. As in CouchDB several slashes are one.
    ///
    /// # Errors
    /// 400: a segment is not UTF-8.
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

    /// Its label.
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

    /// Whether a request with this method changes nothing, and may end with its client.
    pub(crate) fn only_reads(&self, method: &Method) -> bool {
        let is_query = matches!(self, Target::Database(_, what) if what.is_query()) && *method == Method::POST;
        is_query || (matches!(*method, Method::GET | Method::HEAD) && !self.is_update())
    }

    /// Whether a request with this method may change something. A `POST` may be a query.
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

    /// Whether an update function writes a document there, whatever the method.
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
            // The slashes of the name need not be encoded: no document can have the id `_replicator`.
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
            ["_all_docs", "queries"] => InDatabase::Queries(Listed::All),
            ["_design_docs", "queries"] => InDatabase::Queries(Listed::Design),
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
            // Partitions have none, and paths end.
            ["_partition", partition, ref rest @ ..] if rest.first() != Some(&"_partition") => InDatabase::Partition {
                partition: Some(partition.to_owned()),
                of: Some(Box::new(InDatabase::of(rest))),
            },
            ["_partition", _, ..] => InDatabase::Document { id: "_partition".to_owned(), kind: IdKind::Reserved },
            [DESIGN, id] => InDatabase::Document { id: design_id(id), kind: IdKind::Design },
            [DESIGN, design, kind @ ("_show" | "_list" | "_update" | "_rewrite"), ref rest @ ..] => {
                let rest = rest.iter().map(|&segment| segment.to_owned()).collect();
                InDatabase::Answering { design: design.to_owned(), kind: Answering::of(kind), rest }
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

    /// A query of Mango, of a partition too.
    fn is_update(&self) -> bool {
        match self {
            InDatabase::Answering { kind, .. } => matches!(kind, Answering::Update),
            InDatabase::Partition { of: Some(of), .. } => of.is_update(),
            _ => false,
        }
    }

    /// Whether a `POST` reads: the body has what does not fit into a URL.
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
            InDatabase::Answering { kind, .. } => matches!(kind, Answering::Show | Answering::List),
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
            InDatabase::Queries(Listed::All) => Route::AllDocs,
            InDatabase::Queries(Listed::Design) => Route::DesignDocs,
            InDatabase::LocalQueries => Route::LocalDocs,
            InDatabase::Mango(what) => what.route(),
            InDatabase::Later(_, route) => *route,
            InDatabase::Partition { of: None, .. } => Route::DatabaseOther,
            InDatabase::Partition { of: Some(of), .. } => of.route(),
            InDatabase::Document { kind, .. } => kind.route(Route::Document, Route::DesignDocument),
            InDatabase::Attachment { kind, .. } => kind.route(Route::Attachment, Route::DesignAttachment),
            InDatabase::Local { .. } | InDatabase::LocalAttachment => Route::LocalDocument,
            InDatabase::Answering { .. } => Route::DesignFunction,
            InDatabase::View { .. } => Route::View,
            InDatabase::DesignInfo { .. } => Route::DesignInfo,
            InDatabase::CompactViews { .. } => Route::Compact,
            InDatabase::ViewCleanup => Route::ViewCleanup,
            InDatabase::TempView => Route::DatabaseOther,
        }
    }
}

impl Answering {
    /// `kind` is one of the four.
    fn of(kind: &str) -> Answering {
        match kind {
            "_show" => Answering::Show,
            "_list" => Answering::List,
            "_update" => Answering::Update,
            _ => Answering::Rewrite,
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

    /// `plain` and `design`: the labels of ids that are these.
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

pub(crate) use needed::Needed;
