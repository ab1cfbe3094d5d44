//! The FoundationDB kit that the document layer and the storage of Firefox Sync share.
//!
//! A store implements [`TransactionContext`], which names its error type and holds its counters, clock and
//! [`RetryPolicy`]. It runs an [`Operation`] by [`write`](write()) or [`read`](read()). An operation reads and writes
//! through a [`Transaction`], which counts each call: for the process in [`TransactionCounters`], for one operation in
//! [`waits`]. [`Once`] makes an operation idempotent. [`TakeLease`] and [`HoldLease`] read and write lease records.
//!
//! [`mod@tuple`] encodes the elements of keys. The crate builds no key of its own and knows no record of a store.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod apart;
mod cleanup_budget;
mod context;
mod keys;
mod lease;
mod once;
mod policy;
mod runner;
#[cfg(test)]
mod testing;
mod transaction;
pub mod tuple;
pub mod waits;

pub use apart::{AttemptCache, Digest, MissingValueFuture};
pub use cleanup_budget::CleanupBudget;
pub use context::{
    Corruption, ErrorCode, TransactionContext, TransactionCounters, TransactionError, storage_error_text,
};
pub use keys::{KeyRange, METADATA_VERSION};
pub use lease::{HoldLease, LeaseRecords, Release, TakeLease};
pub use once::{NoRandomness, Once, random_id, removed_before};
pub use policy::RetryPolicy;
pub use runner::{
    Attempt, COMMIT_UNKNOWN_RESULT, NOT_COMMITTED, Operation, Quiet, TRACE_TARGET, conflict_with, note, of_nested,
    read, write,
};
pub use transaction::{BoxedPageRead, CommitError, PageRead, RangePage, RangeQuery, Rows, Transaction};
