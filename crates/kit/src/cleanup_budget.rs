//! The limit of a transaction's optional cleanup.

use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes of keys and values that a transaction may still spend on cleanup. A later transaction does the rest. The
/// last removal may pass the limit, so the caller must keep each removal small.
#[derive(Debug)]
pub struct CleanupBudget(AtomicU64);

impl CleanupBudget {
    /// Creates a budget of this many bytes.
    pub fn new(bytes: u64) -> CleanupBudget {
        CleanupBudget(AtomicU64::new(bytes))
    }

    /// Returns whether no byte is left.
    pub fn is_empty(&self) -> bool {
        self.left() == 0
    }

    /// Returns the bytes left.
    pub fn left(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Subtracts bytes, down to 0.
    pub fn take(&self, bytes: u64) {
        // Only one task writes: a transaction belongs to one attempt.
        self.0.store(self.left().saturating_sub(bytes), Ordering::Relaxed);
    }
}
