//! Limits the log lines of one cause to one a minute, with the number of omitted lines.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flatbed_clock::Clock;
use tokio::time::Instant;

/// The time between two lines of one cause.
const LINE_EVERY: Duration = Duration::from_secs(60);

/// Limits log lines by cause. The caller bounds the number of causes.
#[derive(Debug)]
pub(crate) struct LinePacer<K> {
    clock: Clock,
    causes: Mutex<HashMap<K, Lines>>,
}

#[derive(Debug)]
struct Lines {
    last: Instant,
    left_out: u64,
}

impl<K: Eq + Hash> LinePacer<K> {
    pub(crate) fn new(clock: &Clock) -> LinePacer<K> {
        LinePacer { clock: clock.clone(), causes: Mutex::default() }
    }

    /// Returns the number of omitted lines if a line should be written now; `None` if it should be omitted.
    pub(crate) fn line(&self, cause: K) -> Option<u64> {
        let now = self.clock.now();
        let mut causes = self.causes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(lines) = causes.get_mut(&cause) else {
            causes.insert(cause, Lines { last: now, left_out: 0 });
            return Some(0);
        };
        if now.saturating_duration_since(lines.last) < LINE_EVERY {
            lines.left_out += 1;
            return None;
        }
        lines.last = now;
        Some(std::mem::take(&mut lines.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatbed_clock::ManualClock;

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
}
