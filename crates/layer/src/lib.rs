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

mod all_docs;
mod attachments;
mod body;
mod changes;
pub mod check;
mod compact;
mod counted;
mod database;
mod document;
mod document_write;
mod error;
#[cfg(test)]
mod fenced;
mod fields;
mod forget;
mod hub;
mod index;
mod instance;
mod keys;
mod layer;
mod lease;
mod local;
mod metrics;
mod missing;
mod once;
#[rustfmt::skip]
#[allow(unreachable_pub, reason = "generated")]
mod proto;
mod purge;
mod read;
mod records;
mod release;
pub mod renew;
mod room;
mod root;
mod seq;
mod staging;
mod tail;
mod transaction;
mod tree;
#[cfg(test)]
mod unknown_results;
mod updates;
mod upload;
mod validate;
pub mod waits;
mod watches;
mod write;

pub use all_docs::{AllDocs, AllDocsQuery, AllDocsRow};
pub use attachments::{Attachment, AttachmentEdit, AttachmentReader, check_list};
pub use changes::{ChangeRow, Changes, ChangesPage, ChangesQuery, Followed, Since, Wait};
pub use compact::{CompactionProgress, SUPERSEDED_PERCENT_MAX};
pub use database::{Database, DatabaseInfo, REVS_LIMIT_MAX, SECURITY_BYTES_MAX};
pub use document::{DOCUMENT_ID_BYTES_MAX, Document, Edit, EditParts, GetOptions, Updated, check_document_id};
pub use error::{Error, NotFound, Result};
pub use flatbed_flatten::json;
pub use flatbed_revtree::{Hash, RevId};
pub use hub::Followers;
pub use layer::{CreateOptions, DEFAULT_FIELD_IDS_MAX, DEFAULT_RUN_BYTES, Layer, LayerOptions, NameRange, REVS_LIMIT};
pub use lease::{LEASE_STATE_BYTES_MAX, Lease, Owner, Sighting, TakenLease, valid_until};
pub use local::{LOCAL_BYTES_MAX, LocalDocument, LocalEdit, check_local_id};
pub use read::{Got, OpenRevs};
pub use seq::Seq;
pub use tail::{TEXTS, TailDocument, TailRow};
pub use transaction::TRACE_TARGET;
pub use updates::{DatabaseUpdate, DatabaseUpdateKind, DatabaseUpdates, DatabaseUpdatesPage, DatabaseUpdatesQuery};
pub use upload::{ATTACHMENT_BYTES_MAX, Upload, Uploaded, is_compressible};
pub use validate::{Room, Validate, Validator, Writing};
