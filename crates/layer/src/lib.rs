//! The document layer: databases, documents, indexes and feeds as FoundationDB transactions.
//!
//! This is the only crate that knows keys. It is written against the crate `foundationdb`; whether a cluster or the
//! embedded engine answers is decided below. A [`Layer`] is one server's view of one root with its own caches and
//! feeds, so several can run in one process. A [`Database`] is a name; each operation resolves it in its own
//! transaction to an instance of the database (see `\xff/metadataVersion` in design/data-model.md).
//!
//! All writes go through one function, which passes the old and the new state of each document to the index maintainers
//! in the same transaction. A read of a single document is one range read. Scans and feeds are read in pages, each in
//! its own transaction.
#![cfg_attr(not(test), forbid(unsafe_code))]

mod actor;
mod admission;
mod asker;
mod at_once;
mod background;
mod builder;
pub mod channels;
pub mod check;
mod compactions;
mod confirmed;
mod database;
mod database_names;
mod document;
mod error;
mod feed;
mod fenced;
mod field_maps;
mod find;
mod forget;
mod gauges;
mod group;
mod handle;
mod held;
mod index;
mod index_builds;
mod index_waits;
mod instance;
mod judge;
mod lanes;
mod layer;
mod lease;
mod line_pacer;
mod many_names;
mod metrics;
mod read;
mod record_change;
pub mod renew;
mod replicators;
mod resync;
mod resyncs;
mod security;
mod sign_in;
mod size_limit;
mod store;
mod stored_settings;
mod sweeper;
mod sync_function;
mod turns;
mod unknown_results;
mod view;
mod view_bounds;
mod view_definition;
mod view_functions;
mod view_updates;
mod write;

pub use actor::{Actor, Authority, Gate, GatedUser, ServerActor, SettingFence, User, UserFence};
pub use background::{Background, BackgroundOptions};
pub use compactions::CompactionProgress;
pub use confirmed::{ClosedReasons, RecordState, SecurityOf, SettingsState};
pub use database::{DatabaseInfo, PartitionInfo, REVS_LIMIT_MAX, SECURITY_BYTES_MAX};
pub use database_names::NameRange;
pub use document::attachments::{Attachment, AttachmentEdit, AttachmentReader, Revpos, check_list};
pub use document::edit::{
    Conflicts, DOCUMENT_ID_BYTES_MAX, Document, Edit, EditParts, GetOptions, Outcome, WrittenRevision,
    check_document_id, check_partition, check_partitioned_id, partition_of,
};
pub use document::text;
pub use document::upload::{ATTACHMENT_BYTES_MAX, SmallUpload, StagedUpload, Upload, is_compressible};
pub use document::verdict::Verdict;
pub use error::{DesignFault, Error, IndexFailure, Invalid, NotFound, NotJudged, Refusal, Result, ViewFailure};
pub use feed::changes::{Changes, FollowOutcome, WaitOutcome};
pub use feed::hub::Followers;
pub use feed::place::FeedPosition;
pub use feed::query::{ChangesQuery, Documents, Extras, Scope, Since};
pub use feed::row::{ChangeRow, ChangesPage, RowKind};
pub use feed::tail::{TEXTS, TailDocument, TailRow};
pub use feed::updates::{
    DatabaseUpdate, DatabaseUpdateKind, DatabaseUpdates, DatabaseUpdatesPage, DatabaseUpdatesQuery,
};
pub use find::{Find, FindOptions, JsonIndexes, QueryDocument, QueryRow};
pub use flatbed_channels::check_channel;
pub use flatbed_flatten::json;
pub use flatbed_revtree::{DESIGN, DESIGN_IDS, DocumentId, DocumentKind, Hash, LOCAL, RevId, design_id, local_id};
pub use group::info::{SetAsideDocuments, ViewGroupInfo};
pub use group::source::ViewUpdate;
pub use handle::{Database, DocumentFilter, Reader};
pub use index::selector::definition::IndexName;
pub use index_builds::IndexBuild;
pub use index_waits::IndexWait;
pub use judge::judgement::{Judge, Judgement, Room, Rule, Writing};
pub use layer::{CreateOptions, DEFAULT_FIELD_IDS_MAX, DEFAULT_RUN_BYTES, Layer, LayerOptions, REVS_LIMIT};
pub use lease::{MayFollow, MayFollowOne};
pub use read::all_docs::{AllDocs, AllDocsQuery, AllDocsRow};
pub use read::get::{GetOutcome, OpenRevs};
pub use read::local::{LOCAL_BYTES_MAX, LocalDocument, LocalEdit, LocalOutcome, check_local_id};
pub use read::purged_infos::{PurgedFrom, PurgedInfo, PurgedInfos};
pub use read::routings::DocumentRouting;
pub use read::stored_keys::{StoredKey, StoredKeys};
pub use replicators::ReplicatorDatabases;
pub use resync::{ResyncAction, ResyncState};
pub use resyncs::ResyncTask;
pub use sign_in::{SignInState, UsersState};
pub use store::buckets::SHARDS_MAX;
pub use store::database_name::{DatabaseKind, REPLICATOR, USER_ID_PREFIX, USERS, WORKER, is_replicator_name};
pub use store::secrets::SigningSecret;
pub use store::seq::Seq;
pub use store::sync_function::ChannelsOptions;
pub use store::transaction::TRACE_TARGET;
pub use store::waits;
pub use stored_settings::{SETTING_BYTES_MAX, SETTING_NAME_BYTES_MAX, STORED_SETTINGS_MAX, StoredSettings};
pub use sync_function::{SYNC_FUNCTION_BYTES_MAX, SyncFunctionInfo};
pub use view::read::{Select, View, ViewRange};
pub use view::reduced::{Grouping, ReduceQuery, ReducedPage, ReducedRow, ReducedRows};
pub use view::rows::{ViewPage, ViewQuery, ViewRow, ViewRows};
pub use view::written::ReduceFailure;
pub use view_bounds::ViewBounds;
pub use view_definition::{
    DefinitionError, GroupDefinition, GroupOptions, ReduceFunction, Signature, TreeDefinition, ViewDefinition,
    collator_version,
};
pub use view_functions::{
    EmittedRows, FunctionFailure, GroupFunctions, GroupSource, MapOutcome, ReduceInput, ReduceResults, Reduction,
    ViewFunctions,
};
pub use view_updates::{ViewTask, ViewWait};
pub use write::compact::SUPERSEDED_PERCENT_MAX;

#[cfg(test)]
#[path = "../../fdb-embedded/src/layers.rs"]
mod layers;

/// Checks the table in ARCHITECTURE.md. `layer` has the shared state and `instance` that of one database, including the
/// state of each folder, and every transaction begins with them: so they know upwards, as does code that takes a whole
/// `Database`. The list of exceptions may only shrink.
#[test]
fn folders_know_only_those_below_them() {
    let layers = layers::Layers::of(env!("CARGO_MANIFEST_DIR"));
    let table: [(&str, &[&str]); 52] = [
        ("at_once", &[]),
        ("compactions", &[]),
        ("line_pacer", &[]),
        ("resyncs", &[]),
        ("view_bounds", &[]),
        ("view_functions", &["view_bounds"]),
        ("view_definition", &["view_functions"]),
        ("field_maps", &["view_functions", "view_definition"]),
        ("error", &["view_functions", "view_definition"]),
        ("turns", &["error"]),
        ("metrics", &[]),
        ("store", &["error", "metrics"]),
        (
            "view_updates",
            &[
                "at_once",
                "error",
                "line_pacer",
                "store",
                "field_maps",
                "view_bounds",
                "view_functions",
                "view_definition",
            ],
        ),
        ("index_builds", &["store"]),
        ("index_waits", &["error", "index_builds", "store"]),
        ("confirmed", &["error"]),
        ("actor", &["confirmed", "error"]),
        ("instance", &["confirmed", "error", "store"]),
        ("held", &["error", "store", "instance"]),
        ("asker", &["error", "held"]),
        ("lanes", &["instance"]),
        (
            "layer",
            &[
                "actor",
                "compactions",
                "confirmed",
                "error",
                "held",
                "resyncs",
                "index_builds",
                "index_waits",
                "line_pacer",
                "metrics",
                "store",
                "turns",
                "view_bounds",
                "view_updates",
                "instance",
                "lanes",
            ],
        ),
        ("size_limit", &["error", "store", "layer"]),
        ("database_names", &["error", "store", "layer"]),
        ("security", &["confirmed", "error", "store", "instance", "layer"]),
        ("admission", &["actor", "confirmed", "error", "store", "instance", "layer"]),
        ("record_change", &["actor", "admission", "confirmed", "error", "store", "layer"]),
        ("handle", &["actor", "asker", "error", "store", "layer"]),
        ("forget", &["error", "store", "instance", "layer"]),
        ("document", &["actor", "admission", "error", "store", "instance", "layer", "size_limit", "handle"]),
        ("channels", &["asker", "error", "held", "store", "instance", "layer", "handle", "document"]),
        ("index", &["error", "store", "view_definition", "instance", "layer", "document", "channels"]),
        (
            "read",
            &[
                "actor",
                "admission",
                "asker",
                "channels",
                "error",
                "held",
                "store",
                "instance",
                "layer",
                "size_limit",
                "handle",
                "document",
            ],
        ),
        ("find", &["error", "index_waits", "store", "instance", "layer", "handle", "document", "index", "read"]),
        (
            "view",
            &[
                "error",
                "store",
                "instance",
                "handle",
                "view_bounds",
                "view_updates",
                "view_functions",
                "view_definition",
                "document",
                "read",
            ],
        ),
        (
            "judge",
            &[
                "actor",
                "asker",
                "channels",
                "error",
                "held",
                "store",
                "view_bounds",
                "view_functions",
                "view_definition",
                "instance",
                "layer",
                "handle",
                "document",
                "index",
                "read",
            ],
        ),
        (
            "feed",
            &[
                "asker", "error", "held", "metrics", "store", "instance", "layer", "handle", "document", "channels",
                "index", "read",
            ],
        ),
        ("gauges", &["feed", "layer"]),
        ("replicators", &["error", "store", "layer", "feed"]),
        (
            "write",
            &[
                "actor",
                "admission",
                "compactions",
                "error",
                "held",
                "store",
                "instance",
                "lanes",
                "layer",
                "size_limit",
                "handle",
                "document",
                "index",
                "read",
                "judge",
            ],
        ),
        (
            "group",
            &[
                "admission",
                "at_once",
                "error",
                "store",
                "view_functions",
                "view_definition",
                "view_updates",
                "instance",
                "layer",
                "size_limit",
                "handle",
                "document",
                "index",
                "read",
                "feed",
                "view",
            ],
        ),
        ("sweeper", &["actor", "database_names", "error", "store", "layer", "document", "feed"]),
        (
            "sync_function",
            &[
                "actor",
                "asker",
                "confirmed",
                "document",
                "error",
                "handle",
                "instance",
                "judge",
                "layer",
                "record_change",
                "store",
                "write",
            ],
        ),
        (
            "database",
            &[
                "asker",
                "sync_function",
                "error",
                "store",
                "instance",
                "layer",
                "handle",
                "document",
                "read",
                "judge",
                "feed",
                "write",
                "group",
                "record_change",
            ],
        ),
        ("lease", &["error", "store", "instance", "layer", "handle", "document"]),
        ("stored_settings", &["actor", "admission", "confirmed", "error", "store", "layer", "feed"]),
        ("sign_in", &["confirmed", "error", "store", "instance", "layer"]),
        ("builder", &["error", "index_builds", "store", "layer", "index"]),
        (
            "resync",
            &[
                "actor",
                "confirmed",
                "error",
                "store",
                "instance",
                "layer",
                "record_change",
                "handle",
                "document",
                "index",
                "judge",
                "resyncs",
                "write",
            ],
        ),
        (
            "background",
            &[
                "actor", "builder", "channels", "error", "store", "layer", "document", "feed", "group", "lease",
                "resync", "sweeper", "write",
            ],
        ),
        (
            "check",
            &[
                "asker",
                "database_names",
                "view_definition",
                "error",
                "store",
                "instance",
                "layer",
                "handle",
                "document",
                "index",
                "read",
                "view",
                "group",
                "lease",
                "stored_settings",
            ],
        ),
        ("renew", &["error", "metrics", "store", "instance", "layer", "document", "feed", "index"]),
    ];
    let upwards = [
        "instance knows document/fields",
        "instance knows feed/hub",
        "instance knows judge/ask",
        "instance knows layer",
        "layer knows feed/hub",
        "layer knows feed/updates",
        "layer knows feed/watches",
        "layer knows index/definitions",
        "layer knows judge/judgement",
    ];
    assert_eq!(layers.beyond(&table), upwards);
}
