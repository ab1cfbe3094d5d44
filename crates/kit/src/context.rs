//! The interface between a store and its transactions.

use flatbed_clock::Clock;
use flatbed_metrics::{Counter, Histogram, Key, KeyedCounter};
use foundationdb::FdbError;

use crate::policy::RetryPolicy;

/// FoundationDB's `io_error`: the embedded engine's disk has failed, or its file is damaged.
const IO_ERROR: i32 = 1510;

/// Words an error of FoundationDB for clients and the log. A failure of the disk is told by `GET /_up`, because its
/// cause is known there alone.
pub fn storage_error_text(error: &FdbError) -> String {
    match error.code() {
        IO_ERROR => "the storage has failed: GET /_up says why, and what to do".to_owned(),
        code => format!("{} (FoundationDB error {code})", error.message()),
    }
}

/// The error type of a store.
pub trait TransactionError: From<FdbError> + From<Corruption> + Send + 'static {
    /// The error of FoundationDB that this error carries. The runner retries such errors alone.
    fn fdb(&self) -> Option<FdbError>;
}

/// The error type, counters, clock and retry policy of a store.
pub trait TransactionContext: Send + Sync + 'static {
    /// The error type of the store's operations.
    type Error: TransactionError;

    /// The counters of the store's transactions.
    fn counters(&self) -> &TransactionCounters;

    /// The clock of the store.
    fn clock(&self) -> &Clock;

    /// The bounds of the store's transactions.
    fn policy(&self) -> &RetryPolicy;
}

/// A state of stored data or of a transaction that the program never produces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Corruption {
    /// A range has more keys than its bound: see [`RangeQuery::all`](crate::RangeQuery::all).
    #[error("a range of at most {0} keys has more")]
    RangeTooLong(usize),
    /// The value of an operation's mark cannot be read: see [`Once`](crate::Once).
    #[error("a mark is not 4 bytes")]
    Mark,
    /// The time before which marks are removed cannot be read.
    #[error("the time of removed marks is not 8 bytes")]
    RemovedMarks,
    /// An operation kept a handle of its transaction beyond the attempt.
    #[error("a transaction is held")]
    TransactionHeld,
}

/// FoundationDB's error codes. There are about 300, of which a transaction meets few.
#[derive(Debug)]
pub struct ErrorCode;

impl Key for ErrorCode {
    const NAME: &'static str = "code";
    const COUNT_MAX: usize = 32;
}

flatbed_metrics::metrics! {
    /// The counters of a store's transactions.
    pub struct TransactionCounters {
        transactions: Counter = "Transactions begun.",
        commits: Counter = "Transactions committed.",
        commit_duration_seconds: Histogram = "How long commits that succeeded took.",
        retries: KeyedCounter<ErrorCode> = "Attempts of a transaction that an error of FoundationDB's ended, by its code; nearly all are tried again.",
        conflicts: Counter = "Commits refused for a conflict (1020).",
        unknown_results: Counter = "Commits whose result was unknown (1021).",
        reads: Counter = "Reads of a single key.",
        range_reads: Counter = "Pages of ranges read, and key selectors resolved.",
        keys_read: Counter = "Keys in the answers of reads.",
        bytes_read: Counter = "Bytes of the keys read and their values.",
        keys_written: Counter = "Keys set, changed or cleared, and ranges cleared; in each attempt of a transaction.",
        bytes_written: Counter = "Bytes of the keys written and their values.",
    }
}
