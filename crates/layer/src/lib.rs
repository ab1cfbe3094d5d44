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
mod create;
mod database;
mod database_names;
mod document;
mod error;
mod feed;
mod fenced;
mod field_maps;
mod field_names;
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
mod open;
mod read;
mod record_change;
pub mod renew;
mod replicators;
mod resync;
mod resyncs;
mod security;
mod sign_in;
mod size_bounds;
mod size_limit;
mod slots;
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
pub use instance::REVS_LIMIT;
pub use judge::judgement::{Judge, Judgement, Room, Rule, Writing};
pub use layer::{CreateOptions, DEFAULT_FIELD_IDS_MAX, DEFAULT_RUN_BYTES, Layer, LayerOptions};
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

/// Checks the table in ARCHITECTURE.md. The state that a folder keeps of a server or of a database lies in `slots`, found
/// by its type, so what lies below does not know it.
#[test]
fn folders_know_only_those_below_them() {
    let layers = layers::Layers::of(env!("CARGO_MANIFEST_DIR"));
    let table: [(&str, &[&str]); 56] = [
        ("slots", &[]),
        ("field_names", &[]),
        ("at_once", &[]),
        ("line_pacer", &[]),
        ("view_bounds", &[]),
        ("view_functions", &["view_bounds"]),
        ("view_definition", &["view_functions"]),
        ("field_maps", &["view_functions", "view_definition"]),
        ("error", &["view_functions", "view_definition"]),
        ("turns", &["error"]),
        ("metrics", &[]),
        ("store", &["error", "metrics"]),
        ("confirmed", &["error"]),
        ("actor", &["error", "confirmed"]),
        ("instance", &["slots", "field_names", "error", "store", "confirmed"]),
        ("layer", &["slots", "view_bounds", "error", "turns", "store", "confirmed", "instance"]),
        ("index_builds", &["slots", "store", "layer"]),
        ("index_waits", &["slots", "error", "layer", "index_builds"]),
        ("held", &["slots", "error", "store", "instance", "layer"]),
        ("asker", &["error", "held"]),
        ("compactions", &["slots", "layer"]),
        ("resyncs", &["slots", "layer"]),
        ("lanes", &["slots", "instance", "layer"]),
        (
            "view_updates",
            &[
                "slots",
                "at_once",
                "line_pacer",
                "view_bounds",
                "view_functions",
                "view_definition",
                "field_maps",
                "error",
                "layer",
            ],
        ),
        ("size_limit", &["error", "store", "layer"]),
        ("database_names", &["error", "store", "layer"]),
        ("security", &["error", "store", "confirmed", "instance", "layer"]),
        ("admission", &["error", "store", "confirmed", "actor", "instance", "layer"]),
        ("create", &["error", "store", "confirmed", "actor", "instance", "layer"]),
        ("record_change", &["error", "store", "confirmed", "actor", "layer"]),
        ("handle", &["error", "store", "actor", "layer", "asker"]),
        ("forget", &["error", "store", "instance", "layer"]),
        ("document", &["error", "store", "actor", "instance", "layer", "size_limit", "handle"]),
        ("channels", &["error", "store", "instance", "layer", "held", "asker", "handle"]),
        (
            "index",
            &["slots", "field_names", "view_definition", "error", "store", "instance", "layer", "document", "channels"],
        ),
        (
            "read",
            &[
                "field_names",
                "error",
                "store",
                "actor",
                "instance",
                "layer",
                "held",
                "asker",
                "size_limit",
                "handle",
                "document",
                "channels",
            ],
        ),
        ("find", &["error", "store", "instance", "layer", "index_waits", "handle", "document", "index", "read"]),
        (
            "view",
            &[
                "view_bounds",
                "view_functions",
                "view_definition",
                "error",
                "store",
                "instance",
                "view_updates",
                "handle",
                "document",
                "read",
            ],
        ),
        (
            "judge",
            &[
                "slots",
                "view_bounds",
                "view_functions",
                "view_definition",
                "error",
                "store",
                "actor",
                "instance",
                "layer",
                "held",
                "asker",
                "view_updates",
                "handle",
                "document",
                "channels",
                "index",
                "read",
            ],
        ),
        (
            "feed",
            &[
                "slots", "error", "metrics", "store", "instance", "layer", "held", "asker", "handle", "document",
                "channels", "index", "read",
            ],
        ),
        (
            "open",
            &[
                "slots",
                "error",
                "turns",
                "store",
                "confirmed",
                "actor",
                "instance",
                "layer",
                "index_builds",
                "index_waits",
                "compactions",
                "resyncs",
                "index",
                "judge",
                "feed",
            ],
        ),
        ("gauges", &["layer", "index_waits", "view_updates", "feed"]),
        ("replicators", &["error", "store", "layer", "feed"]),
        (
            "write",
            &[
                "slots",
                "line_pacer",
                "error",
                "store",
                "actor",
                "instance",
                "layer",
                "held",
                "compactions",
                "lanes",
                "size_limit",
                "admission",
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
                "at_once",
                "line_pacer",
                "view_functions",
                "view_definition",
                "error",
                "store",
                "instance",
                "layer",
                "view_updates",
                "size_limit",
                "admission",
                "handle",
                "document",
                "index",
                "read",
                "view",
                "feed",
            ],
        ),
        ("sweeper", &["error", "store", "actor", "layer", "database_names", "document", "feed"]),
        (
            "sync_function",
            &[
                "error",
                "store",
                "confirmed",
                "actor",
                "instance",
                "layer",
                "asker",
                "record_change",
                "handle",
                "document",
                "judge",
                "write",
            ],
        ),
        (
            "database",
            &[
                "error",
                "store",
                "instance",
                "layer",
                "asker",
                "compactions",
                "create",
                "record_change",
                "handle",
                "document",
                "read",
                "judge",
                "feed",
                "write",
                "group",
                "sync_function",
            ],
        ),
        ("lease", &["error", "store", "instance", "layer", "handle", "document"]),
        ("stored_settings", &["error", "store", "confirmed", "actor", "layer", "feed"]),
        ("sign_in", &["error", "store", "confirmed", "layer"]),
        ("builder", &["error", "store", "layer", "index_builds", "index_waits", "index"]),
        (
            "resync",
            &[
                "error",
                "store",
                "confirmed",
                "actor",
                "instance",
                "layer",
                "resyncs",
                "record_change",
                "handle",
                "document",
                "index",
                "judge",
                "write",
            ],
        ),
        (
            "background",
            &[
                "error", "store", "actor", "layer", "document", "channels", "feed", "write", "group", "sweeper",
                "lease", "builder", "resync",
            ],
        ),
        (
            "check",
            &[
                "view_definition",
                "error",
                "store",
                "instance",
                "layer",
                "asker",
                "database_names",
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
        ("renew", &["error", "store", "instance", "document", "index", "feed"]),
    ];
    assert_eq!(layers.beyond(&table), Vec::<String>::new());
}
