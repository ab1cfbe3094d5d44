//! What the layer counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! metrics {
    ($($name:ident: $help:literal,)*) => {
        /// Counters of one [`Layer`](crate::Layer), since it was opened.
        #[derive(Debug, Default)]
        pub(crate) struct Metrics { $(pub(crate) $name: Count,)* }

        impl Metrics {
            pub(crate) fn snapshot(&self) -> Vec<Metric> {
                vec![$(Metric { name: stringify!($name), help: $help, value: self.$name.get() },)*]
            }
        }
    };
}

metrics! {
    transactions: "Transactions begun.",
    commits: "Transactions committed.",
    commit_microseconds: "Time spent in commits that succeeded, in microseconds.",
    retries: "Attempts that FoundationDB had tried again.",
    conflicts: "Commits refused for a conflict (1020).",
    unknown_results: "Commits whose result was unknown (1021).",
    documents_written: "Document revisions committed.",
    documents_read: "Documents read.",
    document_conflicts: "Edits refused because their parent was not the current leaf.",
    mapping_hits: "Documents whose field names were all cached.",
    mapping_misses: "Documents with field names to look up or allocate.",
    field_ids_allocated: "Field ids allocated.",
    by_seq_reads: "Range reads of by-seq.",
    by_seq_rows: "Rows read from by-seq.",
    watches_set: "FoundationDB watches set by feeds.",
    watches_fired: "FoundationDB watches that fired.",
    safety_rereads: "Times that a feed read again without a watch having fired.",
    blobs_staged: "Large bodies written ahead.",
    blobs_swept: "Broken uploads removed.",
}

/// A counter's name, what it counts, and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// In snake case, without a prefix.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Since the layer was opened.
    pub value: u64,
}
