//! The document layer: databases, documents, indexes and feeds as FoundationDB transactions.
//!
//! This crate has the public handles, background work and the checker; the crates `views`, `feeds`, `operations`,
//! `databases` and `store` below it have the rest, and no other code knows keys of documents. All are written against
//! the crate `foundationdb`, so they do not know whether a cluster or the embedded engine answers. A [`Layer`] is one
//! server's view of one root with its own caches and feeds, so several can run in one process. A [`Database`] is a name;
//! each operation resolves it in its own transaction to an instance of the database (see `\xff/metadataVersion` in
//! design/data-model.md).
//!
//! All writes go through one function, which passes the old and the new state of each document to the index maintainers
//! in the same transaction. A read of a single document is one range read. Scans and feeds are read in pages, each in
//! its own transaction.
#![cfg_attr(not(test), forbid(unsafe_code))]

mod background;
mod builder;
pub mod check;
mod database;
mod database_names;
mod forget;
mod gauges;
mod handle;
mod lease;
mod local;
mod open;
mod principals;
mod purged_infos;
mod queries;
pub mod renew;
mod replicators;
mod resync;
mod resyncs;
mod security;
mod sign_in;
mod stored_keys;
mod stored_settings;
mod sweeper;
mod sync_function;
#[cfg(any(test, feature = "test-hooks"))]
mod test_hooks;
#[cfg(test)]
mod tests;
mod updates;
mod views;

pub use background::{Background, BackgroundOptions};
pub use database::{DatabaseInfo, REVS_LIMIT_MAX, SECURITY_BYTES_MAX};
pub use database_names::NameRange;
pub use flatbed_channels::check_channel;
pub use flatbed_databases::actor::{Actor, Authority, Gate, GatedUser, ServerActor, SettingFence, User, UserFence};
pub use flatbed_databases::confirmed::{ClosedReasons, DatabaseSecurity, RecordState, SettingsState};
pub use flatbed_databases::document::attachments::{Attachment, AttachmentEdit, AttachmentReader, Revpos, check_list};
pub use flatbed_databases::document::coding::InflationBound;
pub use flatbed_databases::document::edit::{
    Conflicts, DOCUMENT_ID_BYTES_MAX, Document, Edit, EditParts, GetOptions, Outcome, WrittenRevision,
    check_document_id, check_partition, check_partitioned_id, partition_of,
};
pub use flatbed_databases::document::text;
pub use flatbed_databases::document::upload::{
    ATTACHMENT_BYTES_MAX, SmallUpload, StagedUpload, Upload, is_compressible,
};
pub use flatbed_databases::document::verdict::Verdict;
pub use flatbed_databases::handles::DocumentFilter;
pub use flatbed_databases::instance::REVS_LIMIT;
pub use flatbed_databases::server::{CreateOptions, DEFAULT_FIELD_IDS_MAX, DEFAULT_RUN_BYTES, LayerOptions};
pub use flatbed_feeds::feed::changes::{Changes, FollowOutcome, WaitOutcome};
pub use flatbed_feeds::feed::hub::Followers;
pub use flatbed_feeds::feed::place::FeedPosition;
pub use flatbed_feeds::feed::query::{ChangesQuery, Documents, Extras, Scope, Since};
pub use flatbed_feeds::feed::row::{ChangeRow, ChangesPage, RowKind};
pub use flatbed_feeds::feed::tail::{TEXTS, TailDocument, TailRow};
pub use flatbed_feeds::updates::{
    DatabaseUpdate, DatabaseUpdateKind, DatabaseUpdates, DatabaseUpdatesPage, DatabaseUpdatesQuery,
};
pub use flatbed_flatten::json;
pub use flatbed_operations::compactions::CompactionProgress;
pub use flatbed_operations::find::catalog::JsonIndexes;
pub use flatbed_operations::find::query::{Find, FindOptions, QueryDocument, QueryRow};
pub use flatbed_operations::index::selector::definition::IndexName;
pub use flatbed_operations::index_builds::IndexBuild;
pub use flatbed_operations::index_waits::IndexWait;
pub use flatbed_operations::judge::judgement::{Judge, Judgement, ProposedWrite, Room, Rule};
pub use flatbed_operations::read::all_docs::{AllDocs, AllDocsQuery, AllDocsRow};
pub use flatbed_operations::read::get::{GetOutcome, OpenRevs};
pub use flatbed_operations::read::local::{LOCAL_BYTES_MAX, LocalDocument, LocalEdit, LocalOutcome, check_local_id};
pub use flatbed_operations::read::partition::PartitionInfo;
pub use flatbed_operations::read::purged_infos::{PurgeLogPosition, PurgedInfo, PurgedInfos};
pub use flatbed_operations::read::routings::DocumentRouting;
pub use flatbed_operations::read::stored_keys::{StoredKey, StoredKeys};
pub use flatbed_operations::write::compact::SUPERSEDED_PERCENT_MAX;
pub use flatbed_revtree::{DESIGN, DESIGN_IDS, DocumentId, DocumentKind, Hash, LOCAL, RevId, design_id, local_id};
pub use flatbed_store::buckets::SHARDS_MAX;
pub use flatbed_store::database_name::{DatabaseKind, REPLICATOR, USER_ID_PREFIX, USERS, WORKER, is_replicator_name};
pub use flatbed_store::error::{
    DesignFault, Error, IndexFailure, Invalid, NotFound, NotJudged, Refusal, Result, ViewFailure,
};
pub use flatbed_store::secrets::SigningSecret;
pub use flatbed_store::seq::Seq;
pub use flatbed_store::sync_function::ChannelsOptions;
pub use flatbed_store::transaction::TRACE_TARGET;
pub use flatbed_store::view_bounds::ViewBounds;
pub use flatbed_store::view_definition::{
    DefinitionError, GroupDefinition, GroupOptions, ReduceFunction, Signature, TreeDefinition, ViewDefinition,
    collator_version,
};
pub use flatbed_store::view_functions::{
    EmittedRows, FunctionFailure, GroupFunctions, GroupSource, MapOutcome, ReduceInput, ReduceResults, Reduction,
    ViewFunctions,
};
pub use flatbed_views::group::info::{SetAsideDocuments, ViewGroupInfo};
pub use flatbed_views::group::source::ViewUpdate;
pub use flatbed_views::view::read::{Select, View, ViewRange};
pub use flatbed_views::view::reduced::{Grouping, ReduceQuery, ReducedPage, ReducedRow, ReducedRows};
pub use flatbed_views::view::rows::{ViewPage, ViewQuery, ViewRow, ViewRows};
pub use flatbed_views::view::written::ReduceFailure;
pub use flatbed_views::view_updates::{ViewTask, ViewWait};
pub use handle::{Database, Layer, Reader};
pub use lease::{MayFollow, MayFollowOne};
pub use replicators::ReplicatorDatabases;
pub use resync::{ResyncAction, ResyncState};
pub use resyncs::ResyncTask;
pub use sign_in::{SignInState, UsersState};
pub use stored_settings::{SETTING_BYTES_MAX, SETTING_NAME_BYTES_MAX, STORED_SETTINGS_MAX, StoredSettings};
pub use sync_function::{SYNC_FUNCTION_BYTES_MAX, SyncFunctionInfo};

/// The counts of the work that an operation gives to a cluster.
pub mod waits {
    pub use flatbed_store::waits::{Path, Waits, count};
}

/// Access control of databases with channels: users, roles and grants.
pub mod channels {
    pub use flatbed_databases::channels::{
        ADMIN_NAMES_BYTES_MAX, AccessCell, AccessChanges, AccessPart, AccessState, HeldRights, Principal,
        PrincipalKind, PrincipalSession, PrincipalWithRights, PrincipalWrite, PrincipalWriteOutcome, ReadPrincipal,
        SessionHash, SignInUser, SignsIn, UserChanges, UsersPosition, is_principal,
    };
}

#[cfg(test)]
#[path = "../../fdb-embedded/src/layers.rs"]
mod layers;

/// Each module uses only the modules in its row. Modules below it need not know its state, which is found by its type.
#[test]
fn folders_know_only_those_below_them() {
    let layers = layers::Layers::of(env!("CARGO_MANIFEST_DIR"));
    let table: [(&str, &[&str]); 27] = [
        ("builder", &[]),
        ("handle", &[]),
        ("renew", &[]),
        ("resyncs", &[]),
        ("sweeper", &[]),
        ("database_names", &["handle"]),
        ("forget", &["handle"]),
        ("gauges", &["handle"]),
        ("lease", &["handle"]),
        ("local", &["handle"]),
        ("open", &["handle", "resyncs"]),
        ("principals", &["handle"]),
        ("purged_infos", &["handle"]),
        ("queries", &["handle"]),
        ("replicators", &["handle"]),
        ("resync", &["handle", "resyncs"]),
        ("security", &["handle"]),
        ("sign_in", &["handle"]),
        ("stored_keys", &["handle"]),
        ("stored_settings", &["handle"]),
        ("sync_function", &["handle"]),
        ("updates", &["handle"]),
        ("views", &["handle"]),
        ("check", &["handle", "database_names", "stored_settings"]),
        ("database", &["handle", "sync_function"]),
        ("test_hooks", &["handle", "database_names"]),
        ("background", &["builder", "handle", "lease", "resync", "sweeper"]),
    ];
    assert_eq!(layers.beyond(&table), Vec::<String>::new());
}
