//! The size of a transaction, and its cost for a cluster's throttling: whole pages read, and four times as much for
//! pages written.
//!
//! The engine throttles nothing; the figure is for programs that estimate their cost on a cluster.

use crate::base::mutation::Mutation;

/// The knobs of 7.3: bytes of a page, and the cost of a byte written in bytes read.
const PAGE_BYTES: u64 = 4_096;
const WRITE_FACTOR: u64 = 4;

/// The cost of one operation on this many bytes: at least a page.
fn pages(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(PAGE_BYTES).max(1) * PAGE_BYTES
}

/// The accumulated cost, in bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cost(u64);

impl Cost {
    pub(crate) fn add_read(&mut self, bytes: usize) {
        self.0 = self.0.saturating_add(pages(bytes));
    }

    pub(crate) fn bytes(self) -> u64 {
        self.0
    }

    /// Adds writes: a clear counts as a page, whatever it removes, and an atomic operation as its key.
    pub(crate) fn add_writes(&mut self, mutations: &[Mutation]) {
        let cost = |mutation: &Mutation| match mutation {
            Mutation::Set(key, value) => WRITE_FACTOR * pages(key.len() + value.len()),
            Mutation::Atomic(_, key, _) | Mutation::StampKey(key, _) | Mutation::StampValue(key, _) => {
                WRITE_FACTOR * pages(key.len())
            }
            Mutation::Clear(_) => PAGE_BYTES,
        };
        self.0 = mutations.iter().map(cost).fold(self.0, u64::saturating_add);
    }
}
