//! How far a job is, for whoever watches it while it runs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use flatbed_clock::Clock;
use serde::{Deserialize, Serialize};

use crate::checkpoint::Seq;

/// Errors that are remembered.
pub const ERRORS_MAX: usize = 10;

/// Ends of the feed that are remembered.
const SAMPLES_MAX: usize = 100;

/// Seconds that the throughput is the mean of.
const WINDOW_SECONDS: u64 = 60;

/// Something that went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// In seconds of Unix time.
    pub at: u64,
    /// What, without secrets.
    pub error: String,
}

/// How far behind its source a job is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lag {
    /// Rows of the feed that are not delivered yet, as of the last page; of sources that do not tell how many there are behind it, those
    /// that are read.
    pub rows: u64,
    /// How old the target's state is: since when the source has had something that is not delivered, as far as it is known. Rows do not
    /// tell when they were written: what is known are the moments at which it was asked where the feed ends.
    pub seconds: u64,
}

#[derive(Debug, Default)]
struct Inner {
    seq: Option<Seq>,
    errors: VecDeque<Fault>,
    /// The last moment of which it is known that all that the source had is delivered, in seconds of Unix time.
    fresh_at: Option<u64>,
    /// Whether there is something that is not.
    is_behind: bool,
    /// Whether the feed's end has been reached, and rows are waited for since.
    has_waited: bool,
    /// Ends of the feed, each with the moment at which it was there.
    samples: VecDeque<(u64, u64)>,
    rows: u64,
    /// Whether a page has reported the lag since the source was last out of reach.
    is_known: bool,
    /// Seconds of Unix time with what was delivered in each.
    delivered: VecDeque<(u64, u64)>,
}

/// What became of attachments that were to be delivered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentCounts {
    /// Fetched of the source.
    pub fetched: u64,
    /// Bytes that these have.
    pub bytes: u64,
    /// Not fetched, as the target has them by their digest.
    pub held: u64,
    /// Not to be had: the source failed, or has none or another one than the document says, or it is too large.
    pub failed: u64,
}

/// What a run tells, and another of the same job goes on with. All counts are of this process.
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
    /// Whether the last try of the source or the target failed.
    is_failing: AtomicBool,
    inner: Mutex<Inner>,
    clock: Clock,
}

impl Progress {
    /// Of a job that has not begun. Its moments are `clock`'s.
    pub fn new(clock: Clock) -> Progress {
        Progress { clock, ..Progress::default() }
    }

    /// Seconds of Unix time.
    fn now(&self) -> u64 {
        self.clock.unix_seconds()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Documents that the target took.
    pub fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Entries that were written.
    pub fn queued(&self) -> u64 {
        self.queued.load(Ordering::Relaxed)
    }

    /// Entries of the queue that were delivered.
    pub fn replayed(&self) -> u64 {
        self.replayed.load(Ordering::Relaxed)
    }

    /// Tries that failed by the state of the source or the target.
    pub fn outages(&self) -> u64 {
        self.outages.load(Ordering::Relaxed)
    }

    /// What became of attachments.
    pub fn attachments(&self) -> AttachmentCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        AttachmentCounts {
            fetched: of(&self.attachments),
            bytes: of(&self.attachment_bytes),
            held: of(&self.attachments_held),
            failed: of(&self.attachments_failed),
        }
    }

    /// What was delivered in a second, as the mean of the last minute.
    pub fn throughput(&self) -> f64 {
        let (now, inner) = (self.now(), self.inner());
        let newest = inner.delivered.iter().filter(|(at, _)| at + WINDOW_SECONDS > now);
        newest.map(|(_, count)| count).sum::<u64>() as f64 / WINDOW_SECONDS as f64
    }

    /// How far behind it is.
    pub fn lag(&self) -> Lag {
        let inner = self.inner();
        let is_old = inner.is_behind || !inner.is_known;
        let seconds = inner.fresh_at.filter(|_| is_old).map_or(0, |fresh_at| self.now().saturating_sub(fresh_at));
        Lag { rows: inner.rows, seconds }
    }

    /// Whether the rows of [`Progress::lag`] are current. They are not while the source cannot be reached, or is not read because the
    /// target cannot be reached.
    pub fn knows_lag(&self) -> bool {
        self.inner().is_known
    }

    /// Whether the job waits to retry a failed request to its source or target.
    pub fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    pub(crate) fn set_failing(&self, is_failing: bool) {
        self.is_failing.store(is_failing, Ordering::Relaxed);
    }

    /// Notes how old the target's state was at a moment, in seconds of Unix time, as another process has told.
    pub fn resume(&self, at: u64, lag_seconds: u64) {
        let mut inner = self.inner();
        // A run begins: nobody has waited for rows meanwhile.
        inner.has_waited = false;
        inner.fresh_at = inner.fresh_at.max(Some(at.min(self.now()).saturating_sub(lag_seconds)));
    }

    /// Up to where all is delivered or in the queue.
    pub fn seq(&self) -> Option<Seq> {
        self.inner().seq.clone()
    }

    /// What went wrong last, the newest first.
    pub fn errors(&self) -> Vec<Fault> {
        self.inner().errors.iter().cloned().collect()
    }

    /// Remembers that something went wrong.
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

    /// So many rows are there that are not delivered.
    pub(crate) fn behind(&self, rows: u64) {
        let mut inner = self.inner();
        (inner.rows, inner.is_known) = (rows, true);
        if rows == 0 {
            (inner.is_behind, inner.has_waited) = (false, true);
            inner.fresh_at = Some(self.now());
            inner.samples.clear();
        } else if !inner.is_behind {
            // Who waits for rows has them at once; who comes anew knows what was told, if anything was.
            if inner.has_waited || inner.fresh_at.is_none() {
                inner.fresh_at = Some(self.now());
            }
            inner.is_behind = true;
        }
    }

    /// Notes that the source does not answer or is not read: rows of the next page may be older than the page.
    pub fn lose_sight(&self) {
        let mut inner = self.inner();
        (inner.has_waited, inner.is_known) = (false, false);
        if inner.fresh_at.is_none() {
            inner.fresh_at = Some(self.now());
        }
    }

    /// The feed ends there now.
    pub(crate) fn sampled(&self, end: &Seq) {
        let Some(number) = end.number() else { return };
        let mut inner = self.inner();
        inner.samples.push_back((number, self.now()));
        if inner.samples.len() > SAMPLES_MAX {
            inner.samples.pop_front();
        }
    }

    /// All up to there is delivered.
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
        // It is never at the end, and not ever further behind: what there was a minute ago is delivered.
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
        // The source's changes in this time are unknown.
        pass(10);
        progress.behind(0);
        assert!(progress.knows_lag() && progress.lag() == Lag::default());
        pass(600);
        progress.lose_sight();
        assert_eq!((progress.knows_lag(), progress.lag().seconds), (false, 600));
        progress.behind(2);
        assert_eq!((progress.knows_lag(), progress.lag()), (true, Lag { rows: 2, seconds: 600 }));
        // Another process goes on: the job says how old it was.
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
