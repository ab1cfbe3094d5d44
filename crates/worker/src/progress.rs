//! The progress of a job while it runs, for monitoring.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use flatbed_clock::Clock;
use serde::{Deserialize, Serialize};

use crate::checkpoint::Seq;

/// The number of errors that are remembered.
pub const ERRORS_MAX: usize = 10;

const SAMPLES_MAX: usize = 100;

const WINDOW_SECONDS: u64 = 60;

/// An error with its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The time, in seconds of Unix time.
    pub at: u64,
    /// The message, redacted.
    pub error: String,
}

/// A job's lag behind its source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lag {
    /// The rows of the feed that are not delivered, as of the last page. For sources that do not report the number of
    /// rows after a page: the rows that were read.
    pub rows: u64,
    /// The age of the target's state, in seconds: the time since which the source has had an undelivered change. Rows
    /// carry no time of writing, so this is derived from the times at which the end of the feed was sampled.
    pub seconds: u64,
}

#[derive(Debug, Default)]
struct Inner {
    seq: Option<Seq>,
    errors: VecDeque<Fault>,
    /// The last time at which everything in the source was known to be delivered, in seconds of Unix time.
    fresh_at: Option<u64>,
    /// True if a change is known that is not delivered.
    is_behind: bool,
    /// True since the end of the feed was reached and the job waits for rows.
    has_waited: bool,
    /// Samples of the end of the feed: the time and the position.
    samples: VecDeque<(u128, u64)>,
    rows: u64,
    /// True if a page has reported the lag since the source was last unreachable.
    is_known: bool,
    /// Deliveries per second of Unix time.
    delivered: VecDeque<(u64, u64)>,
}

/// Counts of attachments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentCounts {
    /// Fetched from the source.
    pub fetched: u64,
    /// Bytes fetched.
    pub bytes: u64,
    /// Not fetched, because the target has them with the same digest.
    pub held: u64,
    /// Unavailable: the source failed, lacks the attachment, has another one than the document declares, or it is too
    /// large.
    pub failed: u64,
}

/// The progress of a job in this process, shared by its successive runs.
#[derive(Debug, Default)]
pub struct Progress {
    delivered: AtomicU64,
    queued: AtomicU64,
    replayed: AtomicU64,
    outages: AtomicU64,
    attachments: AtomicU64,
    attachment_bytes: AtomicU64,
    attachments_held: AtomicU64,
    attachments_failed: AtomicU64,
    /// True if the last request to the source or target failed.
    is_failing: AtomicBool,
    inner: Mutex<Inner>,
    clock: Clock,
}

impl Progress {
    /// Creates the progress of a job that has not begun, with times of `clock`.
    pub fn new(clock: Clock) -> Progress {
        Progress { clock, ..Progress::default() }
    }

    fn now(&self) -> u64 {
        self.clock.unix_seconds()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of delivered documents.
    pub fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Returns the number of entries written to the queue.
    pub fn queued(&self) -> u64 {
        self.queued.load(Ordering::Relaxed)
    }

    /// Returns the number of queue entries that were delivered.
    pub fn replayed(&self) -> u64 {
        self.replayed.load(Ordering::Relaxed)
    }

    /// Returns the number of attempts that failed because of the state of the source or target.
    pub fn outages(&self) -> u64 {
        self.outages.load(Ordering::Relaxed)
    }

    /// Returns the counts of attachments.
    pub fn attachments(&self) -> AttachmentCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        AttachmentCounts {
            fetched: of(&self.attachments),
            bytes: of(&self.attachment_bytes),
            held: of(&self.attachments_held),
            failed: of(&self.attachments_failed),
        }
    }

    /// Returns the mean number of deliveries per second in the last minute.
    pub fn throughput(&self) -> f64 {
        let (now, inner) = (self.now(), self.inner());
        let newest = inner.delivered.iter().filter(|(at, _)| at + WINDOW_SECONDS > now);
        newest.map(|(_, count)| count).sum::<u64>() as f64 / WINDOW_SECONDS as f64
    }

    /// Returns the lag.
    pub fn lag(&self) -> Lag {
        let inner = self.inner();
        let is_old = inner.is_behind || !inner.is_known;
        let seconds = inner.fresh_at.filter(|_| is_old).map_or(0, |fresh_at| self.now().saturating_sub(fresh_at));
        Lag { rows: inner.rows, seconds }
    }

    /// Returns whether [`Lag::rows`] is current. It is not while the source is unreachable, or is not read because the
    /// target is unreachable.
    pub fn knows_lag(&self) -> bool {
        self.inner().is_known
    }

    /// Returns whether the job waits to retry a failed request to its source or target.
    pub fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    pub(crate) fn set_failing(&self, is_failing: bool) {
        self.is_failing.store(is_failing, Ordering::Relaxed);
    }

    /// Takes over the lag that another process reported at a time, in seconds of Unix time.
    pub fn resume(&self, at: u64, lag_seconds: u64) {
        let mut inner = self.inner();
        // A run that begins has not waited for rows yet.
        inner.has_waited = false;
        inner.fresh_at = inner.fresh_at.max(Some(at.min(self.now()).saturating_sub(lag_seconds)));
    }

    /// Returns the position up to which everything is delivered or in the queue.
    pub fn seq(&self) -> Option<Seq> {
        self.inner().seq.clone()
    }

    /// Returns the last errors, the newest first.
    pub fn errors(&self) -> Vec<Fault> {
        self.inner().errors.iter().cloned().collect()
    }

    /// Records an error.
    pub fn fail(&self, error: &str) {
        let mut inner = self.inner();
        inner.errors.push_front(Fault { at: self.now(), error: error.chars().take(500).collect() });
        inner.errors.truncate(ERRORS_MAX);
    }

    pub(crate) fn add_delivered(&self, count: u64) {
        self.delivered.fetch_add(count, Ordering::Relaxed);
        let (now, mut inner) = (self.now(), self.inner());
        match inner.delivered.back_mut() {
            Some((at, of)) if *at == now => *of += count,
            _ => inner.delivered.push_back((now, count)),
        }
        while inner.delivered.front().is_some_and(|(at, _)| at + WINDOW_SECONDS <= now) {
            inner.delivered.pop_front();
        }
        inner.rows = inner.rows.saturating_sub(count);
    }

    pub(crate) fn add_queued(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_replayed(&self) {
        self.replayed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_attachment(&self, bytes: usize) {
        self.attachments.fetch_add(1, Ordering::Relaxed);
        self.attachment_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_attachment_held(&self) {
        self.attachments_held.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_attachment_failed(&self) {
        self.attachments_failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_outage(&self, error: &str) {
        self.outages.fetch_add(1, Ordering::Relaxed);
        self.fail(error);
    }

    /// Records the number of undelivered rows.
    pub(crate) fn behind(&self, rows: u64) {
        let mut inner = self.inner();
        (inner.rows, inner.is_known) = (rows, true);
        if rows == 0 {
            (inner.is_behind, inner.has_waited) = (false, true);
            inner.fresh_at = Some(self.now());
            inner.samples.clear();
        } else if !inner.is_behind {
            // A waiting run gets new rows at once. A new run keeps the reported lag, if there is one.
            if inner.has_waited || inner.fresh_at.is_none() {
                inner.fresh_at = Some(self.now());
            }
            inner.is_behind = true;
        }
    }

    /// Records that the source does not answer or is not read. Rows of the next page may then be older than the page.
    pub fn mark_unknown(&self) {
        let mut inner = self.inner();
        (inner.has_waited, inner.is_known) = (false, false);
        if inner.fresh_at.is_none() {
            inner.fresh_at = Some(self.now());
        }
    }

    pub(crate) fn sampled(&self, end: &Seq) {
        let Some(number) = end.number() else { return };
        let mut inner = self.inner();
        inner.samples.push_back((number, self.now()));
        if inner.samples.len() > SAMPLES_MAX {
            inner.samples.pop_front();
        }
    }

    /// Records that everything up to a position is delivered.
    pub(crate) fn at(&self, seq: &Seq) {
        let mut inner = self.inner();
        inner.seq = Some(seq.clone());
        let Some(reached) = seq.number() else { return };
        while let Some((_, at)) = inner.samples.front().copied().filter(|(number, _)| *number <= reached) {
            inner.samples.pop_front();
            inner.fresh_at = inner.fresh_at.max(Some(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flatbed_clock::ManualClock;

    use super::*;

    #[test]
    fn lag_is_the_age_of_what_is_delivered() {
        let manual = ManualClock::new();
        let pass = |seconds| manual.advance(Duration::from_secs(seconds));
        let (progress, seq) = (Progress::new(manual.clock()), |number: u64| Seq::parse(&number.to_string()).unwrap());
        assert_eq!(progress.lag(), Lag::default());
        progress.behind(10);
        pass(70);
        progress.add_delivered(4);
        progress.behind(8);
        assert_eq!(progress.lag(), Lag { rows: 8, seconds: 70 });
        // Never at the end, but with a bounded lag: all that existed a minute ago is delivered.
        progress.sampled(&seq(100));
        pass(60);
        progress.sampled(&seq(200));
        progress.at(&seq(99));
        assert_eq!(progress.lag().seconds, 130);
        progress.at(&seq(150));
        assert_eq!(progress.lag().seconds, 60);
        progress.at(&seq(200));
        assert_eq!(progress.lag().seconds, 0);
        progress.behind(0);
        assert_eq!(progress.lag(), Lag::default());
        pass(1_000);
        progress.behind(1);
        assert_eq!(progress.lag().seconds, 0, "it was waited for");
        // Changes of the source in this time are unknown.
        pass(10);
        progress.behind(0);
        assert!(progress.knows_lag() && progress.lag() == Lag::default());
        pass(600);
        progress.mark_unknown();
        assert_eq!((progress.knows_lag(), progress.lag().seconds), (false, 600));
        progress.behind(2);
        assert_eq!((progress.knows_lag(), progress.lag()), (true, Lag { rows: 2, seconds: 600 }));
        // Another process resumes with the lag stored by the job.
        let progress = Progress::new(manual.clock());
        progress.resume(manual.clock().unix_seconds() - 30, 500);
        progress.behind(3);
        assert_eq!(progress.lag().seconds, 530);
        progress.behind(0);
        progress.behind(0);
        assert_eq!(progress.lag(), Lag::default());
        progress.add_delivered(4);
        assert_eq!((progress.delivered(), progress.throughput()), (4, 4.0 / 60.0));
        pass(60);
        assert_eq!((progress.delivered(), progress.throughput()), (4, 0.0));
        for at in 0..20 {
            progress.fail(&at.to_string());
        }
        let errors: Vec<_> = progress.errors().into_iter().map(|fault| fault.error).collect();
        assert_eq!((errors.len(), errors[0].as_str()), (ERRORS_MAX, "19"));
    }
}
