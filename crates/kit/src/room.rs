//! How much a transaction may still do beside what it is for.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a transaction has left for dropping what nobody needs, in bytes of keys and values. What does not find room is
/// left to a later one. The last that is taken may pass the bound: whoever takes sees to it that each is small.
#[derive(Debug)]
pub struct Room(AtomicU64);

impl Room {
    /// Room for so many bytes.
    pub fn new(bytes: u64) -> Room {
        Room(AtomicU64::new(bytes))
    }

    /// Whether no byte is left.
    pub fn is_empty(&self) -> bool {
        self.left() == 0
    }

    /// The bytes that are left.
    pub fn left(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes bytes.
    pub fn take(&self, bytes: u64) {
        // One task at a time: a transaction is an attempt's alone.
        self.0.store(self.left().saturating_sub(bytes), Ordering::Relaxed);
    }
}
