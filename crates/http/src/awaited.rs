//! Requests' bodies that a connection is waited for, and how slowly they come.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A body is not slow before it was waited for as long.
const PATIENCE_MS: u64 = 2_000;

/// Nor if as much comes of it in a second.
const LEAST_BYTES_A_SECOND: u64 = 16 * 1024;

/// The bodies of one connection that are waited for just now.
#[derive(Debug, Default)]
pub(crate) struct BodiesAwaited {
    count: AtomicUsize,
    /// Of the one that was begun to be waited for first: when, in milliseconds since the server began, and what has come.
    since: AtomicU64,
    bytes: AtomicU64,
}

/// A body that is waited for until this is dropped.
#[derive(Debug)]
pub(crate) struct BodyAwaited<'b>(&'b BodiesAwaited);

impl Drop for BodyAwaited<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl BodiesAwaited {
    pub(crate) fn begin(&self, since: u64, bytes: u64) -> BodyAwaited<'_> {
        // Several come at once on HTTP/2 alone: what is read between these is a little wrong at most.
        if self.count.fetch_add(1, Ordering::Relaxed) == 0 || since < self.since.load(Ordering::Relaxed) {
            self.since.store(since, Ordering::Relaxed);
            self.bytes.store(bytes, Ordering::Relaxed);
        }
        BodyAwaited(self)
    }

    /// Bytes a second, where that is slow.
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
        let bodies = BodiesAwaited::default();
        assert_eq!(bodies.slow(10_000), None);
        let one = bodies.begin(1_000, 100);
        assert_eq!((bodies.slow(2_999), bodies.slow(3_000), bodies.slow(11_000)), (None, Some(50), Some(10)));
        // One that has just begun does not hide it.
        let two = bodies.begin(10_000, 1 << 30);
        assert_eq!(bodies.slow(11_000), Some(10));
        drop((one, two));
        assert_eq!(bodies.slow(11_000), None);
        let _quick = bodies.begin(1_000, 1 << 30);
        assert_eq!(bodies.slow(11_000), None);
    }
}
