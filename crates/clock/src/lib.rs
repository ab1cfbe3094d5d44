//! The clock of a process. A [`Clock`] is injected into every subsystem with timeouts, leases, heartbeats, expiry or
//! backoff. Tests inject a [`ManualClock`], which they advance themselves.

mod line_pacer;
mod manual;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

pub use line_pacer::{LINE_EVERY, LineDecision, LinePacer};
pub use manual::ManualClock;

/// A source of time. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    source: Source,
    /// Milliseconds added to the source's time since 1970.
    skew_ms: i64,
}

#[derive(Debug, Clone, Default)]
enum Source {
    #[default]
    System,
    Manual(Arc<manual::State>),
}

/// The error of [`Clock::timeout`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedOut;

impl std::fmt::Display for TimedOut {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("timed out")
    }
}

impl std::error::Error for TimedOut {}

impl Clock {
    /// Returns the machine's clock.
    pub fn system() -> Clock {
        Clock::default()
    }

    /// Returns a clock whose time since 1970 is ahead by `by_ms` (behind if negative), for tests of processes with a
    /// wrong time. The monotonic time stays that of the other clones.
    #[must_use]
    pub fn skewed(&self, by_ms: i64) -> Clock {
        Clock { source: self.source.clone(), skew_ms: self.skew_ms.saturating_add(by_ms) }
    }

    /// Returns the monotonic time.
    pub fn now(&self) -> Instant {
        match &self.source {
            Source::System => Instant::now(),
            Source::Manual(state) => state.now(),
        }
    }

    /// Returns the time that has passed since `earlier`, or zero if `earlier` is later than now.
    pub fn since(&self, earlier: Instant) -> Duration {
        self.now().saturating_duration_since(earlier)
    }

    /// Returns the time since 1970.
    pub fn unix(&self) -> Duration {
        let unix = match &self.source {
            Source::System => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            Source::Manual(state) => state.unix(),
        };
        let skew = Duration::from_millis(self.skew_ms.unsigned_abs());
        if self.skew_ms < 0 { unix.saturating_sub(skew) } else { unix + skew }
    }

    /// Returns the milliseconds since 1970.
    pub fn unix_ms(&self) -> u64 {
        u64::try_from(self.unix().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the seconds since 1970.
    pub fn unix_seconds(&self) -> u64 {
        self.unix().as_secs()
    }

    /// Waits for a duration.
    pub async fn sleep(&self, duration: Duration) {
        match &self.source {
            Source::System => tokio::time::sleep(duration).await,
            Source::Manual(state) => state.sleep_until(state.now() + duration).await,
        }
    }

    /// Waits until a point in time.
    pub async fn sleep_until(&self, deadline: Instant) {
        match &self.source {
            Source::System => tokio::time::sleep_until(deadline).await,
            Source::Manual(state) => state.sleep_until(deadline).await,
        }
    }

    /// Waits for a future, for at most a duration.
    ///
    /// # Errors
    /// [`TimedOut`]: the future is dropped.
    pub async fn timeout<T>(&self, duration: Duration, future: impl Future<Output = T>) -> Result<T, TimedOut> {
        match &self.source {
            Source::System => tokio::time::timeout(duration, future).await.map_err(|_| TimedOut),
            Source::Manual(state) => state.timeout_at(state.now() + duration, future).await,
        }
    }

    /// Waits for a future until a point in time.
    ///
    /// # Errors
    /// [`TimedOut`]: the future is dropped.
    pub async fn timeout_at<T>(&self, deadline: Instant, future: impl Future<Output = T>) -> Result<T, TimedOut> {
        match &self.source {
            Source::System => tokio::time::timeout_at(deadline, future).await.map_err(|_| TimedOut),
            Source::Manual(state) => state.timeout_at(deadline, future).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_system_clock_is_that_of_the_runtime() {
        let clock = Clock::system();
        let begin = clock.now();
        clock.sleep(SECOND).await;
        assert!(clock.since(begin) >= SECOND);
        assert_eq!(clock.since(clock.now() + SECOND), Duration::ZERO);
        assert_eq!(clock.timeout(SECOND, std::future::pending::<()>()).await, Err(TimedOut));
        assert_eq!(clock.timeout_at(clock.now() + SECOND, async { 7 }).await, Ok(7));
        assert_eq!(clock.unix_ms() / 1_000, clock.unix_seconds());
    }
}
