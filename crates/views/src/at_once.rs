//! Adapts the number of documents in a transaction to the time that they take.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flatbed_clock::Clock;
use tokio::time::Instant;

/// A number of documents, shared by all transactions of a group. It is halved, down to one, when a transaction takes
/// too long, and grows again while transactions are fast.
#[derive(Debug)]
pub struct AdaptiveBatchSize {
    documents: AtomicUsize,
    most: usize,
    long: Duration,
    clock: Clock,
}

impl AdaptiveBatchSize {
    pub fn new(most: usize, long: Duration, clock: &Clock) -> AdaptiveBatchSize {
        AdaptiveBatchSize { documents: AtomicUsize::new(most), most, long, clock: clock.clone() }
    }

    pub fn documents(&self) -> usize {
        self.documents.load(Ordering::Relaxed)
    }

    /// Records the time that a number of documents took, successful or not.
    pub fn took(&self, documents: usize, time: Duration) {
        let now = self.documents();
        let next = if time > self.long {
            // A transaction that began before the last halving must not halve it again.
            now.min(documents / 2).max(1)
        } else {
            now.saturating_mul(2).min(self.most)
        };
        self.documents.store(next, Ordering::Relaxed);
    }
}

/// Paces the attempts of a transaction that writes the first of some documents.
pub struct BatchPacer<'a> {
    at_once: &'a AdaptiveBatchSize,
    /// The start and the number of documents of the last attempt.
    began: Option<(Instant, usize)>,
    /// The time between attempts that was spent waiting.
    waited: Duration,
}

impl<'a> BatchPacer<'a> {
    pub fn new(at_once: &'a AdaptiveBatchSize) -> BatchPacer<'a> {
        BatchPacer { at_once, began: None, waited: Duration::ZERO }
    }

    /// Returns the documents of the next attempt: fewer than before, if the last attempt took long and failed.
    pub fn attempt<'d, T>(&mut self, documents: &'d [T]) -> &'d [T] {
        if let Some((began, count)) = self.began.take()
            && self.at_once.clock.since(began) > self.at_once.long
        {
            self.at_once.took(count, self.at_once.clock.since(began));
        }
        let some = documents.get(..self.at_once.documents()).unwrap_or(documents);
        self.began = Some((self.at_once.clock.now(), some.len()));
        some
    }

    /// Records a wait for a shared resource, after which the transaction begins anew. The attempts so far do not count.
    pub fn record_wait(&mut self, time: Duration) {
        self.began = None;
        self.waited += time;
    }

    /// Ends with a commit. Returns the time that it spent waiting between attempts.
    pub fn end(self) -> Duration {
        if let Some((began, count)) = self.began {
            self.at_once.took(count, self.at_once.clock.since(began));
        }
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use flatbed_clock::ManualClock;

    use super::*;

    #[test]
    fn what_takes_long_is_halved_and_grows_again() {
        let at_once = AdaptiveBatchSize::new(500, Duration::from_secs(1), &Clock::system());
        let (long, short) = (Duration::from_secs(5), Duration::from_millis(3));
        let mut seen = Vec::new();
        for _ in 0..11 {
            at_once.took(at_once.documents(), long);
            seen.push(at_once.documents());
        }
        assert_eq!(seen, [250, 125, 62, 31, 15, 7, 3, 1, 1, 1, 1]);
        at_once.took(500, long);
        assert_eq!(at_once.documents(), 1);
        (0..9).for_each(|_| at_once.took(1, short));
        assert_eq!(at_once.documents(), 500);
    }

    #[test]
    fn an_attempt_after_a_long_one_has_fewer() {
        let manual = ManualClock::new();
        let (second, clock) = (Duration::from_secs(1), manual.clock());
        let at_once = AdaptiveBatchSize::new(8, second, &clock);
        let documents = [(); 20];
        let mut paced = BatchPacer::new(&at_once);
        let counts: Vec<usize> = (0..5)
            .map(|_| {
                manual.advance(2 * second);
                paced.attempt(&documents).len()
            })
            .collect();
        assert_eq!(counts, [8, 4, 2, 1, 1]);
        let quick = AdaptiveBatchSize::new(8, second, &clock);
        let mut paced = BatchPacer::new(&quick);
        assert_eq!([(); 3].map(|()| paced.attempt(&documents).len()), [8; 3], "a conflict says nothing of time");
        assert_eq!(paced.attempt(&documents[..2]).len(), 2);
    }

    #[test]
    fn a_wait_between_attempts_is_not_counted() {
        let manual = ManualClock::new();
        let (second, clock) = (Duration::from_secs(1), manual.clock());
        let at_once = AdaptiveBatchSize::new(8, second, &clock);
        let mut paced = BatchPacer::new(&at_once);
        assert_eq!(paced.attempt(&[(); 20]).len(), 8);
        manual.advance(30 * second);
        paced.record_wait(30 * second);
        assert_eq!(paced.attempt(&[(); 20]).len(), 8);
        assert_eq!((paced.end(), at_once.documents()), (30 * second, 8));
    }
}
