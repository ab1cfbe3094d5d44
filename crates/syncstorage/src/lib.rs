//! The storage of Firefox Sync: SyncStorage 1.5's users, collections, records and batches as FoundationDB transactions.
//!
//! `design/syncstorage.md` describes the keys and the cost of each operation.
#![cfg_attr(not(test), forbid(unsafe_code))]
#![warn(clippy::indexing_slicing)]

pub mod accounts;
mod batch;
mod check;
mod commit;
mod edit;
mod error;
mod fold;
mod keys;
mod layers;
mod lease;
mod limits;
mod list;
mod maintenance;
mod metrics;
mod model;
mod names;
mod offset;
mod once;
mod read;
mod store;
mod sweep;
#[cfg(test)]
mod tests;
mod timestamp;
mod transaction;
mod upload;
mod values;
mod write;

pub use check::CheckReport;
pub use error::{Error, Result};
pub use limits::Limits;
pub use list::List;
pub use maintenance::{Maintenance, MaintenanceOptions};
pub use model::{
    Change, DeleteResult, GetResult, Info, ListQuery, Precondition, Quota, Record, SORTINDEX_MAX, Sort, StageResult,
    TTL_SECONDS_MAX, WriteResult,
};
pub use names::{BatchId, CollectionName, KNOWN_COLLECTIONS, RecordId, Uid};
pub use offset::Offset;
pub use store::{Options, Store};
pub use timestamp::Timestamp;
