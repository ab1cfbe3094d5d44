//! The deadline of a call, shared by the server and the process that runs it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::shared::{ProcessPage, SharedMemory};

/// Returns the time of the system's monotonic clock, which all processes share.
pub(crate) fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The deadline of a call. The server and the process both see each change of it.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    page: Arc<SharedMemory<ProcessPage>>,
    call: u64,
}

impl Clock {
    pub(crate) fn of(page: &Arc<SharedMemory<ProcessPage>>, call: u64) -> Clock {
        Clock { page: page.clone(), call }
    }

    /// Returns the deadline on the clock of [`now`].
    pub(crate) fn until(&self) -> Duration {
        Duration::from_micros(self.page.until_us.load(Ordering::Relaxed))
    }

    pub(crate) fn set(&self, until: Duration) {
        self.page.until_us.store(u64::try_from(until.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Stops this call. A late stop does not affect later calls of the process.
    pub(crate) fn stop(&self) {
        self.page.stopped.fetch_max(self.call, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.page.stopped.load(Ordering::Relaxed) >= self.call
    }

    /// Reverts the deadline and the stop, as a hostile process can.
    #[cfg(test)]
    pub(crate) fn undo(&self) {
        self.page.until_us.store(u64::MAX, Ordering::Relaxed);
        self.page.stopped.store(0, Ordering::Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_stopped() || now() >= self.until()
    }

    pub(crate) fn finished(&self) -> usize {
        self.page.finished.load(Ordering::Relaxed)
    }

    pub(crate) fn set_finished(&self, items: usize) {
        self.page.finished.store(items, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_stopped_and_the_next_is_not() {
        let (page, _) = SharedMemory::create().unwrap();
        let page = Arc::new(page);
        let (first, second) = (Clock::of(&page, 1), Clock::of(&page, 2));
        first.set(now() + Duration::from_secs(1_000));
        assert!(!first.is_over() && first.until() > now());
        second.stop();
        // A stop that arrives late.
        first.stop();
        assert!(second.is_over() && first.is_stopped());
        assert!(!Clock::of(&page, 3).is_stopped());
        second.set(Duration::ZERO);
        assert!(Clock::of(&page, 3).is_over());
    }
}
