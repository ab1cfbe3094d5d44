//! A clock for tests, which they advance themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::{Clock, Source, TimedOut};

/// The time since 1970 at which a manual clock begins.
const UNIX_BEGIN: Duration = Duration::from_secs(1_700_000_000);

/// A clock that stands still until a test advances it. Clones share the time.
///
/// Consecutive calls of [`Clock::now`] return instants a nanosecond apart, because some code orders events by them.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<State>);

#[derive(Debug)]
pub(crate) struct State {
    begin: Instant,
    passed: watch::Sender<Duration>,
    /// The number of times the clock was read.
    asked: AtomicU64,
    /// The futures that wait for the clock to move.
    waiting: AtomicUsize,
}

impl Default for ManualClock {
    fn default() -> Self {
        ManualClock::new()
    }
}

impl ManualClock {
    /// Creates a clock at 1,700,000,000 seconds after 1970.
    pub fn new() -> ManualClock {
        let (passed, asked, waiting) = (watch::Sender::default(), AtomicU64::new(0), AtomicUsize::new(0));
        ManualClock(Arc::new(State { begin: Instant::now(), passed, asked, waiting }))
    }

    /// Returns the clock to inject.
    pub fn clock(&self) -> Clock {
        Clock { source: Source::Manual(Arc::clone(&self.0)), skew_ms: 0 }
    }

    /// Advances the clock and wakes the futures whose deadline has passed.
    pub fn advance(&self, by: Duration) {
        self.0.passed.send_modify(|passed| *passed += by);
    }

    /// Returns the number of futures that wait for the clock. A test waits until a sleep has begun before it advances
    /// the clock past it.
    pub fn waiting(&self) -> usize {
        self.0.waiting.load(Ordering::SeqCst)
    }
}

impl State {
    pub(crate) fn now(&self) -> Instant {
        self.after(*self.passed.borrow())
    }

    /// Returns a unique instant at `passed` after the start.
    fn after(&self, passed: Duration) -> Instant {
        self.begin + passed + Duration::from_nanos(self.asked.fetch_add(1, Ordering::SeqCst))
    }

    pub(crate) fn unix(&self) -> Duration {
        UNIX_BEGIN + *self.passed.borrow()
    }

    pub(crate) async fn sleep_until(&self, deadline: Instant) {
        let mut passed = self.passed.subscribe();
        let _waits = Waits::new(self);
        // `wait_for` fails only if the sender is dropped, and `self` owns it.
        let _ = passed.wait_for(|passed| self.after(*passed) >= deadline).await;
    }

    pub(crate) async fn timeout_at<T>(
        &self,
        deadline: Instant,
        future: impl Future<Output = T>,
    ) -> Result<T, TimedOut> {
        tokio::select! {
            biased;
            output = future => Ok(output),
            () = self.sleep_until(deadline) => Err(TimedOut),
        }
    }
}

/// Counts a waiting future until it is dropped.
struct Waits<'a>(&'a AtomicUsize);

impl Waits<'_> {
    fn new(state: &State) -> Waits<'_> {
        state.waiting.fetch_add(1, Ordering::SeqCst);
        Waits(&state.waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn time_passes_only_when_it_is_moved() {
        let manual = ManualClock::new();
        let clock = manual.clock();
        let (begin, unix) = (clock.now(), clock.unix_ms());
        let mut sleep = std::pin::pin!(clock.sleep(SECOND));
        assert!(poll_once(sleep.as_mut()).await.is_none());
        assert_eq!(manual.waiting(), 1);
        manual.advance(SECOND / 2);
        assert!(poll_once(sleep.as_mut()).await.is_none());
        manual.advance(SECOND / 2);
        sleep.await;
        assert_eq!((clock.since(begin).as_millis(), clock.unix_ms() - unix, manual.waiting()), (1_000, 1_000, 0));
        let earlier = clock.now();
        assert!(clock.now() > earlier, "one is after the other");
    }

    #[test]
    fn a_skewed_clock_has_another_time_since_1970() {
        let manual = ManualClock::new();
        let (clock, late) = (manual.clock(), manual.clock().skewed(-300));
        let begin = clock.now();
        manual.advance(SECOND);
        assert_eq!((late.since(begin).as_millis(), late.unix_ms()), (1_000, clock.unix_ms() - 300));
        assert_eq!(late.skewed(500).unix_ms(), clock.unix_ms() + 200);
    }

    #[tokio::test]
    async fn a_timeout_ends_with_the_clock_or_with_the_future() {
        let manual = ManualClock::new();
        let clock = manual.clock();
        assert_eq!(clock.timeout(SECOND, async { 7 }).await, Ok(7));
        let mut late = std::pin::pin!(clock.timeout(SECOND, std::future::pending::<()>()));
        assert!(poll_once(late.as_mut()).await.is_none());
        manual.advance(SECOND);
        assert_eq!(late.await, Err(TimedOut));
        assert_eq!(clock.timeout_at(clock.now(), std::future::pending::<()>()).await, Err(TimedOut));
    }

    async fn poll_once<T>(mut future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        std::future::poll_fn(|context| match future.as_mut().poll(context) {
            std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        })
        .await
    }
}
