//! The pace and the metrics of looks at rights. A late look delays rows, and is counted; the next one follows.

use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_layer::{Error, Result};
use flatbed_metrics::{Counter, Histogram, LabelledMetrics};
use tokio::time::Instant;

/// The age of the last look at which rows of feeds wait for the next one.
pub(crate) const FOLLOWED_WITHIN: Duration = Duration::from_secs(1);

/// The time limit of one transaction; a longer one counts as a failure of the storage. A look of many transactions has
/// no limit of its own.
const READ_MAX: Duration = Duration::from_secs(4);

/// The pause after a failed look. It doubles with each further one, up to the longest.
const FAILED_PAUSE: Duration = Duration::from_millis(300);
const FAILED_PAUSE_MAX: Duration = Duration::from_millis(2_400);

/// The shortest pause between two looks, if they take longer than their interval.
const LEAST_PAUSE: Duration = Duration::from_millis(50);

flatbed_metrics::labels! {
    /// The subject of a look.
    pub(crate) enum RightsLook: "look" {
        Accounts = "accounts",
        Databases = "databases",
        Users = "users",
    }
}

flatbed_metrics::metrics! {
    pub(crate) struct RightsMetrics {
        rights_look_seconds: LabelledMetrics<RightsLook, Histogram> = "Duration of looks at the rights of feeds, until the feeds of changed rights were woken.",
        rights_looks_late: LabelledMetrics<RightsLook, Counter> = "Looks at the rights of feeds that ended more than a second after the begin of the one before: rows waited for them.",
        rights_looks_failed: LabelledMetrics<RightsLook, Counter> = "Looks at the rights of feeds that failed and were retried.",
        rights_rows_held_seconds: Histogram = "Time that rows of feeds waited for a late look at rights.",
    }
}

/// Limits the time of a transaction.
pub(crate) async fn read_within<T>(clock: &Clock, read: impl Future<Output = Result<T>>) -> Result<T> {
    clock.timeout(READ_MAX, read).await.unwrap_or_else(|_| Err(Error::timed_out()))
}

/// Returns whether a look confirms rows: it began less than a second ago, or after the rows were read.
pub(crate) fn confirms(clock: &Clock, began: Option<Instant>, read_at: Option<Instant>) -> bool {
    began.is_some_and(|began| clock.since(began) < FOLLOWED_WITHIN || read_at.is_some_and(|read_at| began >= read_at))
}

/// The begin of the next look, and the count of those that are late or failed.
pub(crate) struct LookPacer {
    clock: Clock,
    /// The begin of the last look that did not fail; at first that of the following.
    confirmed: Instant,
    failures: u32,
}

impl LookPacer {
    pub(crate) fn new(clock: &Clock) -> LookPacer {
        LookPacer { clock: clock.clone(), confirmed: clock.now(), failures: 0 }
    }

    /// Counts a look that has just ended well. It is late if rows may have waited for it.
    pub(crate) fn succeeded(&mut self, metrics: &RightsMetrics, of: RightsLook, began: Instant) {
        metrics.rights_look_seconds.of(of).observe(self.clock.since(began));
        if self.clock.since(self.confirmed) >= FOLLOWED_WITHIN {
            metrics.rights_looks_late.of(of).add(1);
        }
        (self.confirmed, self.failures) = (began, 0);
    }

    /// Returns the begin of the look that follows one, by the interval from begin to begin.
    pub(crate) fn next(&self, began: Instant, interval: Duration) -> Instant {
        (began + interval).max(self.clock.now() + LEAST_PAUSE)
    }

    /// Counts a failed look, and returns the begin of the next one.
    pub(crate) fn failed(&mut self, metrics: &RightsMetrics, of: RightsLook) -> Instant {
        metrics.rights_looks_failed.of(of).add(1);
        let pause = FAILED_PAUSE.saturating_mul(1 << self.failures.min(8)).min(FAILED_PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        self.clock.now() + pause
    }
}

#[cfg(test)]
mod tests {
    use flatbed_clock::ManualClock;

    use super::*;

    #[test]
    fn failed_looks_back_off_and_late_ones_are_counted() {
        let manual = ManualClock::new();
        let (clock, metrics, of) = (manual.clock(), RightsMetrics::default(), RightsLook::Users);
        let mut pacer = LookPacer::new(&clock);
        // Each reading of this clock is some nanoseconds after the one before.
        let pause = |next: Instant| next.saturating_duration_since(clock.now()).as_millis() + 1;
        let pauses: Vec<_> = (0..5).map(|_| pause(pacer.failed(&metrics, of))).collect();
        assert_eq!(pauses, [300, 600, 1_200, 2_400, 2_400]);
        assert_eq!((metrics.rights_looks_failed.of(of).get(), metrics.rights_looks_late.of(of).get()), (5, 0));
        // Rows waited for the look after them.
        manual.advance(Duration::from_secs(2));
        let began = clock.now();
        pacer.succeeded(&metrics, of, began);
        assert_eq!(metrics.rights_looks_late.of(of).get(), 1);
        assert_eq!(pause(pacer.next(began, Duration::from_millis(600))), 600);
        // In time, by the begin of the one before.
        manual.advance(Duration::from_millis(600));
        let began = clock.now();
        manual.advance(Duration::from_millis(300));
        pacer.succeeded(&metrics, of, began);
        assert_eq!(metrics.rights_looks_late.of(of).get(), 1);
        assert_eq!(pause(pacer.next(began, Duration::from_millis(600))), 300);
        // A look that takes longer than the interval is followed by the next one.
        let began = clock.now();
        manual.advance(Duration::from_millis(900));
        pacer.succeeded(&metrics, of, began);
        assert_eq!(metrics.rights_looks_late.of(of).get(), 2);
        assert_eq!(pause(pacer.next(began, Duration::from_millis(600))), 50);
        assert_eq!(pause(pacer.failed(&metrics, of)), 300, "the backoff begins anew");
    }

    #[test]
    fn a_look_confirms_what_was_read_before_it() {
        let manual = ManualClock::new();
        let clock = manual.clock();
        let (before, began, after) = (clock.now(), clock.now(), clock.now());
        assert!(!confirms(&clock, None, Some(before)));
        assert!(confirms(&clock, Some(began), None) && confirms(&clock, Some(began), Some(after)));
        manual.advance(FOLLOWED_WITHIN);
        assert!(confirms(&clock, Some(began), Some(before)), "a late look lets older rows pass");
        assert!(!confirms(&clock, Some(began), Some(after)) && !confirms(&clock, Some(began), None));
    }
}
