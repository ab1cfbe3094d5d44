//! Limits the log lines of one cause to one a minute, with the number of omitted lines.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::Clock;

/// The time between two lines of one cause.
pub const LINE_EVERY: Duration = Duration::from_secs(60);

/// Limits log lines by cause. The caller bounds the number of causes.
#[derive(Debug)]
pub struct LinePacer<K> {
    clock: Clock,
    causes: Mutex<HashMap<K, Lines>>,
}

/// The decision about a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineDecision {
    /// It should be written, with the number of lines that were omitted before it.
    Write(u64),
    /// It is the first omitted one since the last line. No later line may come, so a
    /// [summary](LinePacer::summary) is due after [`LINE_EVERY`].
    OmitFirst,
    /// It should be omitted, and is not the first omitted one since the last line.
    Omit,
}

#[derive(Debug)]
struct Lines {
    last: Instant,
    left_out: u64,
}

impl<K: Eq + Hash> LinePacer<K> {
    /// Creates a pacer that has written no line yet.
    pub fn new(clock: &Clock) -> LinePacer<K> {
        LinePacer { clock: clock.clone(), causes: Mutex::default() }
    }

    /// Returns the number of omitted lines if a line should be written now; `None` if it should be omitted.
    pub fn line(&self, cause: K) -> Option<u64> {
        match self.pace(cause) {
            LineDecision::Write(left_out) => Some(left_out),
            LineDecision::OmitFirst | LineDecision::Omit => None,
        }
    }

    /// Decides about a line as [`LinePacer::line`], for callers that write summaries.
    pub fn pace(&self, cause: K) -> LineDecision {
        let now = self.clock.now();
        let mut causes = self.causes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(lines) = causes.get_mut(&cause) else {
            causes.insert(cause, Lines { last: now, left_out: 0 });
            return LineDecision::Write(0);
        };
        if now.saturating_duration_since(lines.last) < LINE_EVERY {
            lines.left_out += 1;
            return if lines.left_out == 1 { LineDecision::OmitFirst } else { LineDecision::Omit };
        }
        lines.last = now;
        LineDecision::Write(std::mem::take(&mut lines.left_out))
    }

    /// Returns the number of omitted lines if there are any and a line about them should be written now.
    pub fn summary(&self, cause: &K) -> Option<u64> {
        let now = self.clock.now();
        let mut causes = self.causes.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = causes.get_mut(cause)?;
        if lines.left_out == 0 || now.saturating_duration_since(lines.last) < LINE_EVERY {
            return None;
        }
        lines.last = now;
        Some(std::mem::take(&mut lines.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ManualClock;

    #[test]
    fn each_cause_has_a_line_a_minute() {
        let manual = ManualClock::new();
        let pacer = LinePacer::new(&manual.clock());
        let lines = |cause: u8, times: usize| (0..times).filter_map(|_| pacer.line(cause)).collect::<Vec<_>>();
        assert_eq!((lines(1, 1_000), lines(2, 3)), (vec![0], vec![0]));
        manual.advance(LINE_EVERY / 2);
        assert_eq!(lines(1, 1), Vec::<u64>::new());
        manual.advance(LINE_EVERY / 2);
        assert_eq!((lines(1, 10), lines(2, 1)), (vec![1_000], vec![2]));
        manual.advance(LINE_EVERY);
        assert_eq!(lines(1, 1), vec![9]);
    }

    #[test]
    fn omitted_lines_are_summed_up_once() {
        let manual = ManualClock::new();
        let pacer = LinePacer::new(&manual.clock());
        let pace = || pacer.pace(1);
        assert_eq!([pace(), pace(), pace()], [LineDecision::Write(0), LineDecision::OmitFirst, LineDecision::Omit]);
        assert_eq!(pacer.summary(&1), None, "it is too early");
        manual.advance(LINE_EVERY);
        assert_eq!((pacer.summary(&1), pacer.summary(&1), pacer.summary(&2)), (Some(2), None, None));
        // A summary is a line, too.
        assert_eq!(pace(), LineDecision::OmitFirst);
        manual.advance(LINE_EVERY);
        assert_eq!(pace(), LineDecision::Write(1));
        assert_eq!(pacer.summary(&1), None, "the line had the number");
    }
}
