//! The errors of the store.

use flatbed_kit::{Corruption, NoRandomness, TransactionError, storage_error_text};
use foundationdb::FdbError;

use crate::timestamp::Timestamp;

/// The reason why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The record does not exist (404).
    #[error("no such record")]
    NotFound {
        /// The user's time: X-Weave-Timestamp.
        now: Timestamp,
    },
    /// The client has the newest state (304).
    #[error("not modified since")]
    NotModified {
        /// The time of the requested object: X-Last-Modified.
        modified: Timestamp,
        /// The user's time.
        now: Timestamp,
    },
    /// The object is newer than the client's state (412).
    #[error("modified since")]
    Modified {
        /// The time of the requested object: X-Last-Modified.
        modified: Timestamp,
        /// The user's time.
        now: Timestamp,
    },
    /// No such batch is open in this collection: it was never begun, is committed, or is too old (400).
    #[error("no such batch")]
    BatchNotFound,
    /// The batch would exceed its limit of records or bytes (400, 17).
    #[error("the batch would be too large")]
    BatchTooLarge,
    /// The user has the most open batches or collections (400).
    #[error("too many {0}")]
    TooMany(&'static str),
    /// The user's payloads would exceed the quota, or those of open batches their limit (403, 14).
    #[error("over quota")]
    OverQuota,
    /// A batch was being committed for longer than other writers wait (503).
    #[error("the collection is being written")]
    Busy,
    /// The collection changed while a list of it was read, and FoundationDB no longer has the list's state (503, or a
    /// truncated answer).
    #[error("the collection changed while it was read")]
    Changed,
    /// The write may have been committed, and later writes hide the result (503).
    #[error("it is not known whether this was written")]
    Unknown,
    /// A limit that the caller must check, of ids, records or bytes (400).
    #[error("beyond a bound: {0}")]
    OutOfBounds(&'static str),
    /// An offset that does not belong to such a list (400).
    #[error("not an offset of such a list")]
    BadOffset,
    /// FoundationDB's error, after retries (503).
    #[error("storage: {}", storage_error_text(.0))]
    Storage(#[from] FdbError),
    /// Stored data that this program does not write (500).
    #[error("corrupt: {0}")]
    Corrupt(&'static str),
    /// The format of a newer program (500).
    #[error("the format {0} is not known to this program")]
    Format(u8),
    /// The system cannot provide randomness (500).
    #[error("no randomness")]
    NoRandomness,
}

impl From<Corruption> for Error {
    fn from(corruption: Corruption) -> Self {
        Error::Corrupt(match corruption {
            Corruption::TransactionHeld => "a transaction is held",
            // The store uses no marks and no ranges with a bound.
            Corruption::Mark | Corruption::RemovedMarks | Corruption::RangeTooLong(_) => "a mark or a range",
        })
    }
}

impl From<NoRandomness> for Error {
    fn from(_: NoRandomness) -> Self {
        Error::NoRandomness
    }
}

impl TransactionError for Error {
    fn fdb(&self) -> Option<FdbError> {
        match self {
            Error::Storage(error) => Some(*error),
            _ => None,
        }
    }
}

/// The result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;
