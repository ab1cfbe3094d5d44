//! What is asked of a user's store, and what it answers.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::names::{BatchId, CollectionName, RecordId};
use crate::timestamp::Timestamp;

/// The least and greatest `sortindex`: nine digits.
pub const SORTINDEX_MAX: i32 = 999_999_999;

/// The greatest `ttl` in seconds: nine digits.
pub const TTL_SECONDS_MAX: u32 = 999_999_999;

/// An edit of a record. What is `None` was left out, or null, which Mozilla's server takes for the same: the record keeps its
/// value, and a new one has none (of a payload: an empty one).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Which record.
    pub id: RecordId,
    /// UTF-8, at most [`Limits::max_record_payload_bytes`](crate::Limits::max_record_payload_bytes).
    pub payload: Option<Bytes>,
    /// From `-SORTINDEX_MAX` to [`SORTINDEX_MAX`].
    pub sortindex: Option<i32>,
    /// Seconds from the write on, at most [`TTL_SECONDS_MAX`]. 0: gone at once.
    pub ttl: Option<u32>,
}

/// A record as readers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its id.
    pub id: RecordId,
    /// When payload or sortindex were last written.
    pub modified: Timestamp,
    /// UTF-8, as it was given.
    pub payload: Bytes,
    /// If it was ever given.
    pub sortindex: Option<i32>,
    /// From when on it is gone.
    pub expires: Option<Timestamp>,
}

/// What must hold of the time of what is asked for: `X-If-Modified-Since` and `X-If-Unmodified-Since`. It is judged in the
/// transaction that reads or writes. What is not there has the time 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing.
    #[default]
    None,
    /// It is newer than that; else [`Error::NotModified`].
    ModifiedSince(Timestamp),
    /// It is not newer than that; else [`Error::Modified`].
    UnmodifiedSince(Timestamp),
}

impl Precondition {
    /// Judges the time of what is asked for.
    pub(crate) fn judge(self, modified: Timestamp, now: Timestamp) -> Result<()> {
        match self {
            Precondition::ModifiedSince(since) if modified <= since => Err(Error::NotModified { modified, now }),
            Precondition::UnmodifiedSince(since) if modified > since => Err(Error::Modified { modified, now }),
            _ => Ok(()),
        }
    }
}

/// The order of a list. Of equal ones ids decide, in the same direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sort {
    /// By time, newest first. The API leaves the order open where none is asked for: this is it then.
    #[default]
    Newest,
    /// By time, oldest first.
    Oldest,
    /// By sortindex, greatest first; records without one come last.
    Index,
}

/// Which records of a collection are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// These alone, at most [`ListQuery::IDS_MAX`] (more are an error); twice the same counts once.
    pub ids: Option<Vec<RecordId>>,
    /// Those newer than this.
    pub newer: Option<Timestamp>,
    /// Those older than this.
    pub older: Option<Timestamp>,
    /// Their order.
    pub sort: Sort,
    /// At most so many; `None`, and what is beyond it: [`ListQuery::LIMIT_MAX`].
    pub limit: Option<u32>,
    /// Where an earlier list with the same query ended; or a number, to pass over so many.
    pub offset: Option<crate::Offset>,
    /// Whether records are wanted, or their ids only.
    pub full: bool,
}

impl ListQuery {
    /// Ids of a query.
    pub const IDS_MAX: usize = 100;

    /// Records of an answer.
    pub const LIMIT_MAX: u32 = 10_000;
}

/// Something of each collection of a user, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info<T> {
    /// The store's time: X-Last-Modified.
    pub modified: Timestamp,
    /// How late it is, not before anything that is answered: X-Weave-Timestamp.
    pub now: Timestamp,
    /// In the order of the names.
    pub collections: Vec<(CollectionName, T)>,
}

/// What a user's payloads take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// The store's time.
    pub modified: Timestamp,
    /// As in [`Info`].
    pub now: Timestamp,
    /// Bytes of all payloads.
    pub used_bytes: u64,
    /// How many they may be, if that is limited.
    pub limit_bytes: Option<u64>,
}

/// A record that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Got {
    /// As in [`Info`].
    pub now: Timestamp,
    /// Its time is X-Last-Modified.
    pub record: Record,
}

/// Something was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// At this time: X-Last-Modified and X-Weave-Timestamp.
    pub modified: Timestamp,
}

/// Something was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deleted {
    /// The time of what was deleted: X-Last-Modified. 0 if it was not there.
    pub before: Timestamp,
    /// When. Of a collection that was not there: the store's time, which did not change. Of all: 0, the store's time from now on.
    pub modified: Timestamp,
    /// As in [`Info`].
    pub now: Timestamp,
}

/// Records wait in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staged {
    /// Which.
    pub batch: BatchId,
    /// The collection's time, which did not change: X-Last-Modified.
    pub modified: Timestamp,
    /// As in [`Info`].
    pub now: Timestamp,
}
