//! Counters of an engine.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::stripe::{CacheAligned, STRIPES, own_stripe};

/// Counts since the engine was opened. All of them only grow, except those named `open_`, `pending_`, `retained_`,
/// `last_`, `conflict_ranges`, `data_bytes` and `map_bytes`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Reads of single keys.
    pub reads: u64,
    /// Range reads.
    pub range_reads: u64,
    /// Resolved key selectors (`get_key`).
    pub key_reads: u64,
    /// Pairs that range reads returned.
    pub keys_read: u64,
    /// Bytes of the keys and values that reads returned.
    pub bytes_read: u64,
    /// Read versions taken.
    pub read_versions: u64,
    /// Commits that wrote and succeeded.
    pub commits: u64,
    /// Commits without writes, which touch nothing.
    pub read_only_commits: u64,
    /// LMDB transactions that the commits were written in.
    pub batches: u64,
    /// Mutations in those commits.
    pub mutations: u64,
    /// Bytes of keys and values in those mutations.
    pub mutation_bytes: u64,
    /// Commits refused with 1020.
    pub conflicts: u64,
    /// Commits refused with 1007.
    pub too_old: u64,
    /// Calls of `on_error` that allowed a retry.
    pub retries: u64,
    /// Watches created.
    pub watches_set: u64,
    /// Watches that fired because the value changed.
    pub watches_fired: u64,
    /// Watches that are waiting.
    pub open_watches: u64,
    /// Readable states of the database.
    pub open_snapshots: u64,
    /// Readable states kept only because their read version was handed out.
    pub retained_snapshots: u64,
    /// LMDB read transactions opened.
    pub snapshots_opened: u64,
    /// Cleared ranges whose records are still being removed.
    pub pending_clears: u64,
    /// Answers of reads delivered from another thread without a fault.
    pub pending_reads: u64,
    /// Injected faults of all kinds.
    pub faults_injected: u64,
    /// Injected faults by kind: all kinds, in a fixed order.
    pub faults: Vec<FaultCount>,
    /// Version of the newest commit.
    pub last_committed_version: i64,
    /// Writes of recent commits kept for conflict checks.
    pub conflict_ranges: u64,
    /// Bytes of the data file in use.
    pub data_bytes: u64,
    /// Bytes of the data file's address space.
    pub map_bytes: u64,
    /// True if an I/O error stopped all commits.
    pub is_failed: bool,
    /// That error, and the advice to the operator.
    pub failure: Option<String>,
}

/// The number of injected faults of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultCount {
    /// The kind in snake case.
    pub kind: &'static str,
    /// Since the engine was opened.
    pub count: u64,
}

/// A striped sum, which threads add to without contention.
#[derive(Default)]
pub(crate) struct Counter([CacheAligned<AtomicU64>; STRIPES]);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        if let Some(own) = self.0.get(own_stripe()) {
            own.0.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum()
    }
}

/// The counters of [`Stats`] that are kept nowhere else.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) reads: Counter,
    pub(crate) range_reads: Counter,
    pub(crate) key_reads: Counter,
    pub(crate) keys_read: Counter,
    pub(crate) bytes_read: Counter,
    pub(crate) read_versions: Counter,
    pub(crate) commits: Counter,
    pub(crate) read_only_commits: Counter,
    pub(crate) batches: Counter,
    pub(crate) mutations: Counter,
    pub(crate) mutation_bytes: Counter,
    pub(crate) conflicts: Counter,
    pub(crate) too_old: Counter,
    pub(crate) retries: Counter,
    pub(crate) conflict_ranges: AtomicU64,
}
