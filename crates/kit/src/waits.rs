//! What an operation makes a cluster do, and for how many of its answers in a row it waits.
//!
//! On the embedded engine an answer costs microseconds, on a cluster a round trip: an operation that waits for six
//! answers one after the other takes six round trips there, however fast it is here. So the waits are counted, which is
//! the same on every machine. [`count`] makes a future an operation; each call of its transactions is then one deeper
//! than the deepest answer that the operation had been given before the call, and the operation's depth is that of its
//! deepest answer. An answer is given when the code that awaits it takes it, not when it arrives.
//!
//! A transaction's read version is a call of its own, made with whatever needs it first: a read, or a commit without
//! one. `\xff/metadataVersion` comes with it, in FoundationDB's client. A commit of nothing, an approximate size and a
//! watch wait for no server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

tokio::task_local! {
    static OPERATION: Arc<Operation>;
}

/// Answers that were waited for one after the other, by what they answer.
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
    /// How many they are.
    pub fn depth(self) -> u64 {
        self.read_versions + self.reads + self.commits
    }

    /// The deeper of the two; the first of equals.
    pub(crate) fn deeper(self, other: Path) -> Path {
        if other.depth() > self.depth() { other } else { self }
    }
}

/// What an operation did until it was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waits {
    /// Transactions begun, each further attempt counted again.
    pub transactions: u64,
    /// Reads of a key's value.
    pub point_reads: u64,
    /// Pages of ranges, and selectors resolved.
    pub range_reads: u64,
    /// Estimates of a range's size.
    pub size_reads: u64,
    /// Keys in the answers of reads.
    pub keys_read: u64,
    /// Bytes of these keys and their values.
    pub bytes_read: u64,
    /// Keys set, cleared or changed by an atomic operation, and ranges cleared; also of attempts that failed.
    pub keys_written: u64,
    /// Bytes of these keys (of a range its begin and end) and their values.
    pub bytes_written: u64,
    /// Watches set.
    pub watches: u64,
    /// Commits that wrote something, whatever became of them.
    pub commits: u64,
    /// Answers that were waited for one after the other: the critical path.
    pub path: Path,
}

/// Numbers that grow while an operation runs.
#[derive(Debug, Default)]
pub struct Operation {
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
    /// The deepest answer that was given.
    given: Mutex<Path>,
}

impl Operation {
    /// That of the running task, if it is counted.
    pub fn current() -> Option<Arc<Operation>> {
        OPERATION.try_with(Arc::clone).ok()
    }

    /// Whether the running task is counted.
    pub fn is_running() -> bool {
        OPERATION.try_with(|_| ()).is_ok()
    }

    /// The deepest answer given so far.
    pub(crate) fn given(&self) -> Path {
        *self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An answer is given.
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

/// Runs a future as one operation, and says what it did until its end. Tasks that are started for it by [`carry`] count with it
/// as far as they have come by then.
pub async fn count<F: Future>(operation: F) -> (F::Output, Waits) {
    let counted = Arc::new(Operation::default());
    let output = OPERATION.scope(Arc::clone(&counted), operation).await;
    (output, counted.waits())
}

/// A future for a task of its own that goes on counting with the operation that starts it, if that is counted.
pub async fn carry<F: Future>(operation: Option<Arc<Operation>>, future: F) -> F::Output {
    match operation {
        Some(operation) => OPERATION.scope(operation, future).await,
        None => future.await,
    }
}
