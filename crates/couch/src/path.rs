//! Parses a path once into a [`Target`]. `crates/couch/src/router/routes.rs` lists the label in metrics and traces, the
//! needed right and the handler of each target.

use flatbed_layer::{
    DESIGN, DatabaseKind, DocumentId, DocumentKind, LOCAL, REPLICATOR, WORKER, design_id, is_replicator_name,
};
use flatbed_replicator::NODE;

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
    pub(crate) kind: DatabaseKind,
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

macro_rules! endpoints {
    ($($(#[$doc:meta])* $endpoint:ident = $name:literal,)+) => {
        /// Fixed names in a database.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Endpoint {
            $($(#[$doc])* $endpoint,)+
        }

        impl Endpoint {
            fn from_name(name: &str) -> Option<Endpoint> {
                match name {
                    $($name => Some(Endpoint::$endpoint),)+
                    _ => None,
                }
            }
        }
    };
}

endpoints! {
    LocalDocs = "_local_docs",
    AllDocs = "_all_docs",
    DesignDocs = "_design_docs",
    BulkDocs = "_bulk_docs",
    BulkGet = "_bulk_get",
    Changes = "_changes",
    RevsDiff = "_revs_diff",
    MissingRevs = "_missing_revs",
    RevsLimit = "_revs_limit",
    EnsureFullCommit = "_ensure_full_commit",
    Compact = "_compact",
    Purge = "_purge",
    PurgedInfos = "_purged_infos",
    PurgedInfosLimit = "_purged_infos_limit",
    /// Flatbed's extension.
    RawKeys = "_raw_keys",
    Security = "_security",
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
            [id] => match (Endpoint::from_name(id), DocumentId::of(id).local_name()) {
                (Some(endpoint), _) => InDatabase::Endpoint(endpoint),
                (None, Some(id)) => InDatabase::Local { id: id.to_owned() },
                (None, None) => InDatabase::Document { id: id.to_owned(), kind: IdKind::of(id) },
            },
            [id, ref file @ ..] => {
                InDatabase::Attachment { id: id.to_owned(), kind: IdKind::of(id), name: file.join("/") }
            }
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
}

impl IdKind {
    fn of(id: &str) -> IdKind {
        match DocumentId::of(id).kind() {
            DocumentKind::Ordinary if !id.starts_with('_') => IdKind::Plain,
            DocumentKind::Design => IdKind::Design,
            DocumentKind::Local => IdKind::Local,
            DocumentKind::Ordinary if id == LOCAL => IdKind::Local,
            DocumentKind::Ordinary => Endpoint::from_name(id).map_or(IdKind::Reserved, IdKind::Endpoint),
        }
    }
}

mod node;
#[cfg(test)]
mod tests;
mod worker;
