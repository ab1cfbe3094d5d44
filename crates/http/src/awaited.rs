//! The request bodies that a connection waits for, and their rate.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A body is not called slow within this time.
const PATIENCE_MS: u64 = 2_000;

/// A body at this rate is not slow.
const LEAST_BYTES_A_SECOND: u64 = 16 * 1024;

#[derive(Debug, Default)]
pub(crate) struct AwaitedBodies {
    count: AtomicUsize,
    /// The body that has been awaited longest: the start of the wait, in milliseconds since the server's start, and
    /// its bytes so far.
    since: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct AwaitedBody<'b>(&'b AwaitedBodies);

impl Drop for AwaitedBody<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AwaitedBodies {
    pub(crate) fn begin(&self, since: u64, bytes: u64) -> AwaitedBody<'_> {
        // Only HTTP/2 has several bodies at once. A race between the two stores skews the rate only slightly.
        if self.count.fetch_add(1, Ordering::Relaxed) == 0 || since < self.since.load(Ordering::Relaxed) {
            self.since.store(since, Ordering::Relaxed);
            self.bytes.store(bytes, Ordering::Relaxed);
        }
        AwaitedBody(self)
    }

    /// Returns true while a body is awaited.
    pub(crate) fn is_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Returns the rate in bytes per second if it is slow.
    pub(crate) fn slow(&self, now: u64) -> Option<u64> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let waited = now.saturating_sub(self.since.load(Ordering::Relaxed));
        let rate = self.bytes.load(Ordering::Relaxed).saturating_mul(1_000) / waited.max(1);
        Some(rate).filter(|rate| waited >= PATIENCE_MS && *rate < LEAST_BYTES_A_SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sends_on_is_not_slow() {
        let bodies = AwaitedBodies::default();
        assert_eq!((bodies.slow(10_000), bodies.is_any()), (None, false));
        let one = bodies.begin(1_000, 100);
        assert_eq!((bodies.slow(2_999), bodies.slow(3_000), bodies.slow(11_000)), (None, Some(50), Some(10)));
        assert!(bodies.is_any());
        // A second body that has just begun does not hide the first.
        let two = bodies.begin(10_000, 1 << 30);
        assert_eq!(bodies.slow(11_000), Some(10));
        drop((one, two));
        assert_eq!((bodies.slow(11_000), bodies.is_any()), (None, false));
        let _quick = bodies.begin(1_000, 1 << 30);
        assert_eq!(bodies.slow(11_000), None);
    }
}
