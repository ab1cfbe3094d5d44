//! How far a job is, for whoever watches it while it runs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::checkpoint::Seq;

/// Errors that are remembered.
pub const ERRORS_MAX: usize = 10;

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
    /// For how long there have been such.
    pub seconds: u64,
}

#[derive(Debug, Default)]
struct Inner {
    seq: Option<Seq>,
    errors: VecDeque<Fault>,
    /// Since when not all of the feed is delivered; `None`: it is.
    behind_since: Option<u64>,
    rows: u64,
    /// Seconds of Unix time with what was delivered in each.
    delivered: VecDeque<(u64, u64)>,
}

/// What a run tells, and another of the same job goes on with. All counts are of this process.
#[derive(Debug, Default)]
pub struct Progress {
    delivered: AtomicU64,
    queued: AtomicU64,
    replayed: AtomicU64,
    outages: AtomicU64,
    inner: Mutex<Inner>,
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Progress {
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

    /// What was delivered in a second, as the mean of the last minute.
    pub fn throughput(&self) -> f64 {
        let (now, inner) = (now(), self.inner());
        let newest = inner.delivered.iter().filter(|(at, _)| at + WINDOW_SECONDS > now);
        newest.map(|(_, count)| count).sum::<u64>() as f64 / WINDOW_SECONDS as f64
    }

    /// How far behind it is.
    pub fn lag(&self) -> Lag {
        let inner = self.inner();
        Lag { rows: inner.rows, seconds: inner.behind_since.map_or(0, |since| now().saturating_sub(since)) }
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
        inner.errors.push_front(Fault { at: now(), error: error.chars().take(500).collect() });
        inner.errors.truncate(ERRORS_MAX);
    }

    pub(crate) fn add_delivered(&self, count: u64) {
        self.delivered.fetch_add(count, Ordering::Relaxed);
        let (now, mut inner) = (now(), self.inner());
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

    pub(crate) fn add_outage(&self, error: &str) {
        self.outages.fetch_add(1, Ordering::Relaxed);
        self.fail(error);
    }

    /// So many rows are there that are not delivered.
    pub(crate) fn behind(&self, rows: u64) {
        let mut inner = self.inner();
        inner.rows = rows;
        inner.behind_since = if rows == 0 { None } else { inner.behind_since.or(Some(now())) };
    }

    pub(crate) fn at(&self, seq: &Seq) {
        self.inner().seq = Some(seq.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_grows_until_all_is_delivered() {
        let progress = Progress::default();
        assert_eq!(progress.lag(), Lag::default());
        progress.behind(10);
        let since = progress.inner().behind_since.unwrap();
        progress.inner().behind_since = Some(since - 7);
        progress.add_delivered(4);
        progress.behind(8);
        assert_eq!((progress.lag().rows, progress.lag().seconds >= 7), (8, true));
        progress.behind(0);
        assert_eq!(progress.lag(), Lag::default());
        assert!(progress.delivered() == 4 && progress.throughput() > 0.0);
        for at in 0..20 {
            progress.fail(&at.to_string());
        }
        let errors: Vec<_> = progress.errors().into_iter().map(|fault| fault.error).collect();
        assert_eq!((errors.len(), errors[0].as_str()), (ERRORS_MAX, "19"));
    }
}
