//! Detects slow clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A client that moves this many bytes within [`LEAST_WITHIN`] is not slow: 64 kB in two seconds.
const LEAST_BYTES: u64 = 64 * 1024;

const LEAST_WITHIN: Duration = Duration::from_secs(2);

/// The recent progress of a client. Times are milliseconds of one clock.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    since: AtomicU64,
    bytes: AtomicU64,
}

impl Pace {
    pub(crate) fn restart(&self, now: u64) {
        self.since.store(now, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    pub(crate) fn moved(&self, bytes: usize, now: u64) {
        // Concurrent calls may count slightly too few or too many bytes, which does not matter.
        if self.bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64 >= LEAST_BYTES {
            self.restart(now);
        }
    }

    pub(crate) fn is_slow(&self, now: u64) -> bool {
        u128::from(now.saturating_sub(self.since.load(Ordering::Relaxed))) >= LEAST_WITHIN.as_millis()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_slow() {
        let pace = Pace::default();
        pace.restart(1_000);
        assert!(!pace.is_slow(2_999));
        assert!(pace.is_slow(3_000));
        pace.moved(40_000, 2_500);
        assert!(pace.is_slow(3_000));
        pace.moved(40_000, 3_000);
        assert!(!pace.is_slow(4_999));
        pace.moved(2_000, 4_999);
        assert!(pace.is_slow(5_000));
    }
}
