//! Counts of the work that an operation gives to a cluster, and its critical path of answers.
//!
//! On the embedded engine an answer costs microseconds, on a cluster a round trip: an operation that waits for six
//! answers in sequence takes six round trips there, however fast it is here. The number of sequential waits is the same
//! on every machine, so it is counted. [`count`] makes a future an operation. A call is one deeper than the deepest
//! answer delivered to the operation before the call; the operation's depth is that of its deepest answer. An answer is
//! delivered when the awaiting code takes it, not when it arrives.
//!
//! A transaction's read version is a call of its own, made with the first read, or with a commit that follows no read.
//! FoundationDB's client gets `\xff/metadataVersion` with it. An empty commit, an approximate size and a watch wait for
//! no server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

tokio::task_local! {
    static OPERATION: Arc<OperationCounters>;
}

/// The answers on a path, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Path {
    /// Read versions of transactions.
    pub read_versions: u64,
    /// Reads of any kind.
    pub reads: u64,
    /// Commits that wrote something.
    pub commits: u64,
}

impl Path {
    /// Returns the number of sequential answers.
    pub fn depth(self) -> u64 {
        self.read_versions + self.reads + self.commits
    }

    /// Returns the deeper of two paths, or `self` if they are equally deep.
    pub(crate) fn deeper(self, other: Path) -> Path {
        if other.depth() > self.depth() { other } else { self }
    }
}

/// The counts of an operation so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waits {
    /// Transactions begun. Each further attempt counts again.
    pub transactions: u64,
    /// Reads of a key's value.
    pub point_reads: u64,
    /// Pages of ranges read, and selectors resolved.
    pub range_reads: u64,
    /// Estimates of a range's size, and of its split points.
    pub size_reads: u64,
    /// Keys in the answers of reads.
    pub keys_read: u64,
    /// Bytes of these keys and their values.
    pub bytes_read: u64,
    /// Keys set, cleared or changed by an atomic operation, and ranges cleared, including those of failed attempts.
    pub keys_written: u64,
    /// Bytes of these keys (of a range its begin and end) and their values.
    pub bytes_written: u64,
    /// Watches set.
    pub watches: u64,
    /// Commits with writes, whatever their result.
    pub commits: u64,
    /// The answers on the critical path.
    pub path: Path,
}

/// The counters of a running operation.
#[derive(Debug, Default)]
pub struct OperationCounters {
    pub(crate) transactions: AtomicU64,
    pub(crate) point_reads: AtomicU64,
    pub(crate) range_reads: AtomicU64,
    pub(crate) size_reads: AtomicU64,
    pub(crate) keys_read: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) keys_written: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) watches: AtomicU64,
    pub(crate) commits: AtomicU64,
    /// The path of the deepest answer delivered.
    given: Mutex<Path>,
}

impl OperationCounters {
    /// Returns the running task's operation, if it is counted.
    pub fn current() -> Option<Arc<OperationCounters>> {
        OPERATION.try_with(Arc::clone).ok()
    }

    /// Returns whether the running task is counted.
    pub fn is_running() -> bool {
        OPERATION.try_with(|_| ()).is_ok()
    }

    /// Returns the path of the deepest answer delivered so far.
    pub(crate) fn given(&self) -> Path {
        *self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the delivery of an answer.
    pub(crate) fn give(&self, answer: Path) {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        *given = given.deeper(answer);
    }

    fn waits(&self) -> Waits {
        let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Waits {
            transactions: get(&self.transactions),
            point_reads: get(&self.point_reads),
            range_reads: get(&self.range_reads),
            size_reads: get(&self.size_reads),
            keys_read: get(&self.keys_read),
            bytes_read: get(&self.bytes_read),
            keys_written: get(&self.keys_written),
            bytes_written: get(&self.bytes_written),
            watches: get(&self.watches),
            commits: get(&self.commits),
            path: self.given(),
        }
    }
}

/// Runs a future as one operation and returns its counts. Tasks started for it by [`carry`] count with it, as far as
/// they have come when it ends.
pub async fn count<F: Future>(operation: F) -> (F::Output, Waits) {
    let counted = Arc::new(OperationCounters::default());
    let output = OPERATION.scope(Arc::clone(&counted), operation).await;
    (output, counted.waits())
}

/// Makes a future for another task count with the operation that starts it, if that is counted.
pub async fn carry<F: Future>(operation: Option<Arc<OperationCounters>>, future: F) -> F::Output {
    match operation {
        Some(operation) => OPERATION.scope(operation, future).await,
        None => future.await,
    }
}
