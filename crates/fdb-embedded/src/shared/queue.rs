//! The queue of commits between transactions and the committer.

use std::sync::{Arc, Condvar, Mutex};

use crate::base::error::Error;
use crate::base::key_space::KeyRange;
use crate::base::lock::lock;
use crate::base::mutation::Mutation;
use crate::base::range_set::RangeList;
use crate::disk::failure::DiskFailure;
use crate::read::snapshot::ReadPoint;
use crate::shared::watch::WatchRequest;

/// Most commits of one LMDB transaction; the index of a commit fits the two bytes in a versionstamp.
const BATCH_COMMITS_MAX: usize = 4_096;
/// Most bytes of one LMDB transaction, which bounds its dirty pages.
const BATCH_BYTES_MAX: usize = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommitReceipt {
    pub(crate) version: i64,
    pub(crate) stamp: [u8; 10],
}

#[derive(Debug)]
pub(crate) struct CommitFailure {
    pub(crate) error: Error,
    /// The conflicting read ranges, if the transaction requested them.
    pub(crate) conflicting: Vec<KeyRange>,
}

impl From<Error> for CommitFailure {
    fn from(error: Error) -> Self {
        CommitFailure { error, conflicting: Vec::new() }
    }
}

pub(crate) type Complete = Box<dyn FnOnce(Result<CommitReceipt, CommitFailure>) + Send>;

/// A transaction handed over for its commit.
pub(crate) struct CommitRequest {
    /// `None`: nothing was read, so nothing can conflict. The snapshot keeps the history back to its version.
    pub(crate) read: Option<ReadPoint>,
    pub(crate) read_conflicts: RangeList,
    pub(crate) write_conflicts: RangeList,
    pub(crate) mutations: Vec<Mutation>,
    pub(crate) reports_conflicts: bool,
    /// True if the commit ignores the database lock.
    pub(crate) is_lock_aware: bool,
    pub(crate) watches: Vec<WatchRequest>,
    /// The caller, as an observer of a test named it; 0 without one.
    pub(crate) caller: u64,
    pub(crate) complete: Complete,
}

impl CommitRequest {
    pub(crate) fn bytes(&self) -> usize {
        self.mutations.iter().map(Mutation::bytes).sum()
    }
}

#[derive(Default)]
struct Queue {
    requests: Vec<CommitRequest>,
    is_closed: bool,
    /// Set while the committer sleeps and was not notified yet. An unneeded notification would cost a system call for
    /// each commit.
    is_waiting: bool,
}

/// The commits that wait for the committer.
pub(crate) struct CommitQueue {
    queue: Mutex<Queue>,
    arrived: Condvar,
    pub(crate) failure: Arc<DiskFailure>,
}

impl CommitQueue {
    pub(crate) fn new(failure: Arc<DiskFailure>) -> CommitQueue {
        CommitQueue { queue: Mutex::default(), arrived: Condvar::default(), failure }
    }

    /// Queues a commit. Its callback runs on the committer's thread, or at once if the engine accepts no commits.
    pub(crate) fn push(&self, request: CommitRequest) {
        if self.is_failed() {
            return (request.complete)(Err(Error::IO_ERROR.into()));
        }
        let mut queue = lock(&self.queue);
        if queue.is_closed {
            drop(queue);
            return (request.complete)(Err(Error::TRANSACTION_CANCELLED.into()));
        }
        queue.requests.push(request);
        let is_waiting = std::mem::take(&mut queue.is_waiting);
        drop(queue);
        if is_waiting {
            self.arrived.notify_one();
        }
    }

    pub(crate) fn close(&self) {
        lock(&self.queue).is_closed = true;
        self.arrived.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.queue).is_closed
    }

    pub(crate) fn is_failed(&self) -> bool {
        self.failure.is_failed()
    }

    /// Moves the waiting commits, up to a batch's limits, into `batch`; false when the engine closes and the queue is
    /// empty. With `is_busy` it does not wait for a commit.
    pub(crate) fn take(&self, batch: &mut Vec<CommitRequest>, is_busy: bool) -> bool {
        let mut queue = lock(&self.queue);
        while queue.requests.is_empty() {
            if queue.is_closed {
                return false;
            }
            if is_busy {
                return true;
            }
            queue.is_waiting = true;
            queue = self.arrived.wait(queue).unwrap_or_else(|broken| broken.into_inner());
            queue.is_waiting = false;
        }
        let mut bytes = 0;
        let mut fits = |request: &CommitRequest| {
            bytes += request.bytes();
            bytes <= BATCH_BYTES_MAX
        };
        let count = queue.requests.iter().take(BATCH_COMMITS_MAX).take_while(|request| fits(request)).count().max(1);
        if count == queue.requests.len() {
            std::mem::swap(batch, &mut queue.requests);
        } else {
            batch.extend(queue.requests.drain(..count));
        }
        true
    }
}
