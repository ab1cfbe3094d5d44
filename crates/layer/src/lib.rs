//! The document layer: databases, documents, indexes and feeds as FoundationDB transactions.
//!
//! This is the only crate that knows keys. Everything in it is written against the crate `foundationdb`; whether a
//! cluster or the embedded engine answers is decided beneath. A [`Layer`] is one server's view of one root: its caches
//! and feeds are its own, so that several may run in one process. A [`Database`] is a name; each operation finds out in
//! its own transaction which instance of the database the name means (see `\xff/metadataVersion` in
//! design/data-model.md).
//!
//! Writes go through one function, which hands the old and the new state of each document to the index maintainers in
//! the same transaction. Reads of single documents are one range read. Walks and feeds are read page by page, each page
//! in a transaction of its own.
#![cfg_attr(not(test), forbid(unsafe_code))]

pub mod check;
mod database;
mod document;
mod error;
mod feed;
#[cfg(test)]
mod fenced;
mod forget;
mod index;
mod instance;
mod judge;
mod layer;
mod metrics;
mod read;
pub mod renew;
mod store;
#[cfg(test)]
mod unknown_results;
mod write;

pub use database::{Database, DatabaseInfo, REVS_LIMIT_MAX, SECURITY_BYTES_MAX};
pub use document::attachments::{Attachment, AttachmentEdit, AttachmentReader, check_list};
pub use document::edit::{DOCUMENT_ID_BYTES_MAX, Document, Edit, EditParts, GetOptions, Updated, check_document_id};
pub use document::upload::{ATTACHMENT_BYTES_MAX, Upload, Uploaded, is_compressible};
pub use error::{Error, NotFound, Result};
pub use feed::changes::{ChangeRow, Changes, ChangesPage, ChangesQuery, Followed, Since, Wait};
pub use feed::hub::Followers;
pub use feed::tail::{TEXTS, TailDocument, TailRow};
pub use feed::updates::{
    DatabaseUpdate, DatabaseUpdateKind, DatabaseUpdates, DatabaseUpdatesPage, DatabaseUpdatesQuery,
};
pub use flatbed_flatten::json;
pub use flatbed_revtree::{Hash, RevId};
pub use judge::validate::{Room, Validate, Validator, Writing};
pub use layer::{CreateOptions, DEFAULT_FIELD_IDS_MAX, DEFAULT_RUN_BYTES, Layer, LayerOptions, NameRange, REVS_LIMIT};
pub use read::all_docs::{AllDocs, AllDocsQuery, AllDocsRow};
pub use read::get::{Got, OpenRevs};
pub use read::local::{LOCAL_BYTES_MAX, LocalDocument, LocalEdit, check_local_id};
pub use store::lease::{LEASE_STATE_BYTES_MAX, Lease, Owner, Sighting, TakenLease, valid_until};
pub use store::seq::Seq;
pub use store::transaction::TRACE_TARGET;
pub use store::waits;
pub use write::compact::{CompactionProgress, SUPERSEDED_PERCENT_MAX};
