//! The queries and answers of a user's store.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::names::{BatchId, CollectionName, RecordId};
use crate::timestamp::Timestamp;

/// The bound of `sortindex` and its negation: nine digits.
pub const SORTINDEX_MAX: i32 = 999_999_999;

/// The greatest `ttl` in seconds: nine digits.
pub const TTL_SECONDS_MAX: u32 = 999_999_999;

/// An edit of a record. `None`: the member was omitted, or null, which Mozilla's server treats alike. The record then
/// keeps its value, and a new record has none (or an empty payload).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The record's id.
    pub id: RecordId,
    /// UTF-8, at most [`Limits::max_record_payload_bytes`](crate::Limits::max_record_payload_bytes).
    pub payload: Option<Bytes>,
    /// From `-SORTINDEX_MAX` to [`SORTINDEX_MAX`].
    pub sortindex: Option<i32>,
    /// The seconds of life after the write, at most [`TTL_SECONDS_MAX`]. 0: the record expires at once.
    pub ttl: Option<u32>,
}

/// A visible record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The record's id.
    pub id: RecordId,
    /// The time of the last write of payload or sortindex.
    pub modified: Timestamp,
    /// UTF-8, as received.
    pub payload: Bytes,
    /// The sortindex, if any write gave one.
    pub sortindex: Option<i32>,
    /// When the record expires.
    pub expires: Option<Timestamp>,
}

/// A condition on the time of the requested object: `X-If-Modified-Since` and `X-If-Unmodified-Since`. It is checked in
/// the transaction that reads or writes. A missing object has the time 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Precondition {
    /// No condition.
    #[default]
    None,
    /// The object is newer than this; else [`Error::NotModified`].
    ModifiedSince(Timestamp),
    /// The object is not newer than this; else [`Error::Modified`].
    UnmodifiedSince(Timestamp),
}

impl Precondition {
    /// Checks the condition against an object's time.
    pub(crate) fn judge(self, modified: Timestamp, now: Timestamp) -> Result<()> {
        match self {
            Precondition::ModifiedSince(since) if modified <= since => Err(Error::NotModified { modified, now }),
            Precondition::UnmodifiedSince(since) if modified > since => Err(Error::Modified { modified, now }),
            _ => Ok(()),
        }
    }
}

/// The order of a list. Equal records are ordered by id, in the same direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sort {
    /// By time, newest first. The API leaves the default order open; this is ours.
    #[default]
    Newest,
    /// By time, oldest first.
    Oldest,
    /// By sortindex, greatest first; records without one come last.
    Index,
}

/// The records of a collection to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Only these ids, at most [`ListQuery::IDS_MAX`] (more are an error). Duplicates count once.
    pub ids: Option<Vec<RecordId>>,
    /// Only records newer than this.
    pub newer: Option<Timestamp>,
    /// Only records older than this.
    pub older: Option<Timestamp>,
    /// The order of the list.
    pub sort: Sort,
    /// The most records. `None` and greater numbers mean [`ListQuery::LIMIT_MAX`].
    pub limit: Option<u32>,
    /// The offset from an earlier list with the same query, or a number of records to skip.
    pub offset: Option<crate::Offset>,
    /// True for records, false for their ids alone.
    pub full: bool,
}

impl ListQuery {
    /// The most ids of a query.
    pub const IDS_MAX: usize = 100;

    /// The most records of an answer.
    pub const LIMIT_MAX: u32 = 10_000;
}

/// A value for each collection of a user, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info<T> {
    /// The store's time: X-Last-Modified.
    pub modified: Timestamp,
    /// The user's time, not before any time in the answer: X-Weave-Timestamp.
    pub now: Timestamp,
    /// In the order of the names.
    pub collections: Vec<(CollectionName, T)>,
}

/// The size of a user's payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// The store's time.
    pub modified: Timestamp,
    /// As in [`Info`].
    pub now: Timestamp,
    /// Bytes of all payloads.
    pub used_bytes: u64,
    /// The limit of these bytes, if any.
    pub limit_bytes: Option<u64>,
}

/// The requested record, and the user's time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetResult {
    /// As in [`Info`].
    pub now: Timestamp,
    /// The record. Its time is X-Last-Modified.
    pub record: Record,
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteResult {
    /// The time of the write: X-Last-Modified and X-Weave-Timestamp.
    pub modified: Timestamp,
}

/// The result of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeleteResult {
    /// The time of the deleted object: X-Last-Modified. 0 if it did not exist.
    pub before: Timestamp,
    /// The time of the deletion. If a collection did not exist: the store's time, which did not change. If all was
    /// deleted: 0, which is the store's time from now on.
    pub modified: Timestamp,
    /// As in [`Info`].
    pub now: Timestamp,
}

/// The result of staging records in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageResult {
    /// The batch.
    pub batch: BatchId,
    /// The collection's time, which did not change: X-Last-Modified.
    pub modified: Timestamp,
    /// As in [`Info`].
    pub now: Timestamp,
}
