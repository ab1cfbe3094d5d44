//! Limits that are low in tests, so that few documents reach them.
//!
//! Tests of the code above a limit run with its low value, and tests of whole servers with the real one. A test program
//! lowers all limits once, before it opens its first layer, and never raises them. Nothing else may call [`lower`].

use std::sync::atomic::{AtomicBool, Ordering};

static ARE_LOW: AtomicBool = AtomicBool::new(false);

/// A limit, and its low value.
#[derive(Debug, Clone, Copy)]
pub struct Limit<T> {
    real: T,
    low: T,
}

impl<T: Copy> Limit<T> {
    pub const fn new(real: T, low: T) -> Limit<T> {
        Limit { real, low }
    }

    /// Returns the value that holds in this process.
    #[inline]
    pub fn get(self) -> T {
        if ARE_LOW.load(Ordering::Relaxed) { self.low } else { self.real }
    }
}

/// Lowers all limits of this process, for tests alone.
pub fn lower() {
    ARE_LOW.store(true, Ordering::Relaxed);
}
