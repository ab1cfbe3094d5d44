//! Which reads are answered from another thread, as all of a cluster's are.

use std::sync::atomic::{AtomicU64, Ordering};

/// Not a power of two, so that a program whose reads repeat in a round number meets it at each of them in turn.
const PENDING_READ_EVERY_DEFAULT: u32 = 257;

/// Which reads are answered from another thread although no fault delays them.
pub(crate) struct PendingReads {
    /// 0: none.
    every: u64,
    count: AtomicU64,
}

impl PendingReads {
    pub(crate) fn new(every: Option<u32>) -> PendingReads {
        let every = every.unwrap_or(PENDING_READ_EVERY_DEFAULT).into();
        PendingReads { every, count: AtomicU64::new(0) }
    }

    #[inline]
    pub(crate) fn is_next(&self) -> bool {
        self.every > 0 && (self.count.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(self.every)
    }

    pub(crate) fn chosen(&self) -> u64 {
        self.count.load(Ordering::Relaxed).checked_div(self.every).unwrap_or(0)
    }
}
