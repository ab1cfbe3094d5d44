//! The schedule of retries.

use std::time::{Duration, UNIX_EPOCH};

/// The longest pause that a target's `Retry-After` can cause.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// Exponential backoff: each pause doubles up to a maximum, with jitter so that many jobs do not retry at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// The pause after the first failure.
    pub first: Duration,
    /// The longest pause of the schedule itself.
    pub max: Duration,
    /// The number of retries until the job halts, or until a replay gives up; `None`: unlimited.
    pub tries_max: Option<u32>,
}

impl Default for Schedule {
    /// Returns pauses from one second to one minute, without a limit of retries.
    fn default() -> Schedule {
        Schedule { first: Duration::from_secs(1), max: Duration::from_secs(60), tries_max: None }
    }
}

impl Schedule {
    /// Returns the pause after this many consecutive failures; `None`: no retry. `chance` is a random number: the pause
    /// lies between half of the schedule's pause and the whole. A longer pause that the target asks for is honoured and
    /// does not change the number of retries.
    pub fn pause(&self, failures: u32, asked: Option<Duration>, chance: u32) -> Option<Duration> {
        if self.tries_max.is_some_and(|max| failures > max) {
            return None;
        }
        let doublings = failures.saturating_sub(1).min(20);
        let whole = self.first.saturating_mul(1 << doublings).min(self.max);
        let pause = whole / 2 + (whole / 2).mul_f64(f64::from(chance) / f64::from(u32::MAX));
        Some(pause.max(asked.unwrap_or_default().min(RETRY_AFTER_MAX)))
    }
}

/// Parses a header `Retry-After` (RFC 9110, 10.2.3): seconds, or a date. `now` is Unix time in seconds. `None`:
/// malformed.
pub fn retry_after(header: &str, now: u64) -> Option<Duration> {
    let header = header.trim();
    if !header.is_empty() && header.bytes().all(|byte| byte.is_ascii_digit()) {
        let seconds = header.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
    }
    let until = httpdate::parse_http_date(header).ok()?.duration_since(UNIX_EPOCH).ok()?.as_secs();
    Some(Duration::from_secs(until.saturating_sub(now)).min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pauses_double_and_end() {
        let schedule = Schedule { first: Duration::from_secs(1), max: Duration::from_secs(10), tries_max: Some(5) };
        let longest = |failures| schedule.pause(failures, None, u32::MAX).map(|pause| pause.as_millis());
        assert_eq!(
            [1, 2, 3, 4, 5, 6].map(longest),
            [Some(1_000), Some(2_000), Some(4_000), Some(8_000), Some(10_000), None]
        );
        assert_eq!(schedule.pause(1, None, 0), Some(Duration::from_millis(500)));
        assert_eq!(Schedule::default().pause(u32::MAX, None, u32::MAX), Some(Duration::from_secs(60)));
        assert_eq!(schedule.pause(1, Some(Duration::from_secs(30)), 0), Some(Duration::from_secs(30)));
        assert_eq!(schedule.pause(5, Some(Duration::from_millis(1)), u32::MAX), Some(Duration::from_secs(10)));
        assert_eq!(schedule.pause(1, Some(Duration::MAX), 0), Some(RETRY_AFTER_MAX));
    }

    #[test]
    fn what_targets_ask_for() {
        let asked = |header| retry_after(header, 784_111_700).map(|pause| pause.as_secs());
        assert_eq!(asked("120"), Some(120));
        assert_eq!(asked(" 0 "), Some(0));
        assert_eq!(asked("99999999999999999999999"), Some(3_600));
        assert_eq!(asked("Sun, 06 Nov 1994 08:49:37 GMT"), Some(77));
        assert_eq!(asked("Sat, 06 Nov 1993 08:49:37 GMT"), Some(0));
        assert_eq!(asked("Mon, 06 Nov 1995 08:49:37 GMT"), Some(3_600));
        // The obsolete forms, which a recipient must accept (RFC 9110, 5.6.7).
        assert_eq!(asked("Sunday, 06-Nov-94 08:49:37 GMT"), Some(77));
        assert_eq!(asked("Sun Nov  6 08:49:37 1994"), Some(77));
        for malformed in [
            "",
            "-1",
            "soon",
            "1.5",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Non 1994 08:49:37 GMT",
            "Sun, 31 Feb 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 0000 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 \u{e4}T",
        ] {
            assert_eq!(asked(malformed), None, "{malformed}");
        }
    }

    proptest! {
        #[test]
        fn pauses_stay_within_bounds(first in 0_u64..100_000, max in 0_u64..100_000, failures in any::<u32>(), asked in proptest::option::of(any::<u64>()), chance in any::<u32>()) {
            let schedule = Schedule { first: Duration::from_millis(first), max: Duration::from_millis(max), tries_max: None };
            let asked = asked.map(Duration::from_millis);
            let pause = schedule.pause(failures, asked, chance).unwrap();
            let least = schedule.first.min(schedule.max) / 2;
            prop_assert!(pause >= least && pause <= schedule.max.max(asked.unwrap_or_default().min(RETRY_AFTER_MAX)));
        }
    }
}
