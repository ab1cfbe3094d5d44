//! What may go wrong.

use flatbed_kit::{Corruption, NoRandomness, TransactionError};
use foundationdb::FdbError;

use crate::timestamp::Timestamp;

/// Why an operation did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such record (404).
    #[error("no such record")]
    NotFound {
        /// How late it is: X-Weave-Timestamp.
        now: Timestamp,
    },
    /// It is not newer than the client has it (304).
    #[error("not modified since")]
    NotModified {
        /// The time of what was asked for: X-Last-Modified.
        modified: Timestamp,
        /// How late it is.
        now: Timestamp,
    },
    /// It is newer than the client has it (412).
    #[error("modified since")]
    Modified {
        /// The time of what was asked for: X-Last-Modified.
        modified: Timestamp,
        /// How late it is.
        now: Timestamp,
    },
    /// No such batch is open in this collection: never begun, committed, or too old (400).
    #[error("no such batch")]
    BatchNotFound,
    /// The batch would hold more records or bytes than a batch may (400, 17).
    #[error("the batch would be too large")]
    BatchTooLarge,
    /// The user has as many open batches or collections as there may be (400).
    #[error("too many {0}")]
    TooMany(&'static str),
    /// The user's payloads would take more than the quota, or those of open batches more than they may (403, 14).
    #[error("over quota")]
    OverQuota,
    /// A batch is being committed, for longer than others wait for it (503).
    #[error("the collection is being written")]
    Busy,
    /// The collection changed while a list of it was read, for longer than FoundationDB has its state (503, or the answer is
    /// broken off).
    #[error("the collection changed while it was read")]
    Changed,
    /// It was perhaps written, and so much was since that nobody can say (503).
    #[error("it is not known whether this was written")]
    Unknown,
    /// Beyond a bound that the caller was to check: of ids, records or bytes (400).
    #[error("beyond a bound: {0}")]
    OutOfBounds(&'static str),
    /// An offset that was not given for such a list (400).
    #[error("not an offset of such a list")]
    BadOffset,
    /// FoundationDB says so, also after it was tried again (503).
    #[error("FoundationDB: {0}")]
    Storage(#[from] FdbError),
    /// Something is not as this program writes it (500).
    #[error("corrupt: {0}")]
    Corrupt(&'static str),
    /// A newer program has changed the format (500).
    #[error("the format {0} is not known to this program")]
    Format(u8),
    /// The system has no randomness (500).
    #[error("no randomness")]
    NoRandomness,
}

impl From<Corruption> for Error {
    fn from(corruption: Corruption) -> Self {
        Error::Corrupt(match corruption {
            Corruption::TransactionHeld => "a transaction is held",
            // The store has no marks, and no ranges with a bound.
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

/// What an operation gives.
pub type Result<T, E = Error> = std::result::Result<T, E>;
