//! Where transactions and the committer meet: a commit as it is handed over, and the queue of those that wait.

use std::sync::{Condvar, Mutex};

use crate::base::error::Error;
use crate::base::key_space::KeyRange;
use crate::base::lock::lock;
use crate::base::mutation::Mutation;
use crate::base::range_set::RangeList;
use crate::disk::failure::DiskFailure;
use crate::read::snapshot::ReadPoint;
use crate::shared::watch::Waiting;

/// Most commits of one LMDB transaction; their order within it fits the two bytes of a versionstamp.
const BATCH_COMMITS_MAX: usize = 4_096;
/// Most bytes of one LMDB transaction, so that its dirty pages stay bounded.
const BATCH_BYTES_MAX: usize = 64 << 20;

/// What a commit was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Committed {
    pub(crate) version: i64,
    pub(crate) stamp: [u8; 10],
}

/// Why a commit failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// The read conflicts that were written to, where the transaction asked for them.
    pub(crate) conflicting: Vec<KeyRange>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure { error, conflicting: Vec::new() }
    }
}

pub(crate) type Complete = Box<dyn FnOnce(Result<Committed, Failure>) + Send>;

/// A transaction handed over for its commit.
pub(crate) struct CommitRequest {
    /// `None`: nothing was read, so nothing can conflict. The snapshot keeps the history back to it.
    pub(crate) read: Option<ReadPoint>,
    pub(crate) read_conflicts: RangeList,
    pub(crate) write_conflicts: RangeList,
    pub(crate) mutations: Vec<Mutation>,
    pub(crate) reports_conflicts: bool,
    /// Commits though the database is locked.
    pub(crate) is_lock_aware: bool,
    pub(crate) watches: Vec<Waiting>,
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
    /// Set while the committer sleeps and has not been notified yet. A notification it does not need is a system call for
    /// each commit.
    is_waiting: bool,
}

/// The commits that wait for the committer.
#[derive(Default)]
pub(crate) struct CommitQueue {
    queue: Mutex<Queue>,
    arrived: Condvar,
    pub(crate) failure: DiskFailure,
}

impl CommitQueue {
    /// Hands a commit over; its callback comes from the committer's thread, or at once when nothing can be committed.
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

    /// Everything that waits, up to a batch's bounds, into `batch`; false when the engine closes and nothing is left.
    /// With `is_busy` it does not wait for a commit.
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
