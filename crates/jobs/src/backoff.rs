//! The pauses after failures.

use std::time::Duration;

/// Pauses that double with each failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The pause after the first failure.
    pub first: Duration,
    /// The longest pause.
    pub max: Duration,
}

impl Backoff {
    /// The doublings after which pauses no longer grow, whatever `max` is.
    const DOUBLINGS_MAX: u32 = 10;

    /// Returns the pause after this many failures in a row. 0 failures count as 1.
    pub fn pause(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(Backoff::DOUBLINGS_MAX);
        self.first.saturating_mul(2_u32.pow(doublings)).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let backoff = Backoff { first: Duration::from_secs(30), max: Duration::from_secs(8 * 3_600) };
        let seconds = [0, 1, 2, 3, 4, 10, 11, 12, u32::MAX].map(|failures| backoff.pause(failures).as_secs());
        assert_eq!(seconds, [30, 30, 60, 120, 240, 15_360, 28_800, 28_800, 28_800]);
        let short = Backoff { first: Duration::from_millis(1), ..backoff };
        assert_eq!(short.pause(u32::MAX), Duration::from_millis(1_024));
        let longest = Backoff { first: Duration::MAX, max: Duration::MAX };
        assert_eq!(longest.pause(5), Duration::MAX);
    }
}
