//! Times of the API: hundredths of a second since 1970.

use std::fmt;

use flatbed_clock::Clock;

/// A time in hundredths of a second since 1970, never negative. Its text is seconds with two decimals, as in the API's
/// headers and bodies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// The greatest time, in the year 2255: a `f64` of seconds still distinguishes it from its neighbours.
const HUNDREDTHS_MAX: i64 = 900_000_000_000;

impl Timestamp {
    /// The time of an empty collection or a store without writes.
    pub const ZERO: Timestamp = Timestamp(0);

    /// The greatest time.
    pub const MAX: Timestamp = Timestamp(HUNDREDTHS_MAX);

    /// Returns a clock's time.
    pub fn now(clock: &Clock) -> Timestamp {
        Timestamp::from_hundredths(i64::try_from(clock.unix_ms() / 10).unwrap_or(i64::MAX))
    }

    /// Creates a time from hundredths of a second. Values out of bounds become the nearest time.
    pub const fn from_hundredths(hundredths: i64) -> Timestamp {
        if hundredths < 0 {
            Timestamp(0)
        } else if hundredths > HUNDREDTHS_MAX {
            Timestamp::MAX
        } else {
            Timestamp(hundredths)
        }
    }

    /// Returns the hundredths of a second since 1970.
    pub const fn hundredths(self) -> i64 {
        self.0
    }

    /// Returns the time this many seconds later, at most [`Timestamp::MAX`].
    pub const fn after_seconds(self, seconds: u32) -> Timestamp {
        Timestamp::from_hundredths(self.0 + seconds as i64 * 100)
    }

    /// Returns the time this many seconds earlier, at least [`Timestamp::ZERO`].
    pub const fn before_seconds(self, seconds: u32) -> Timestamp {
        Timestamp::from_hundredths(self.0 - seconds as i64 * 100)
    }

    /// Returns the next time.
    pub const fn next(self) -> Timestamp {
        Timestamp::from_hundredths(self.0 + 1)
    }

    /// Parses seconds as clients write them: a decimal number that is not negative, with an optional exponent. The
    /// third and later decimals are cut off. Returns `None` for other texts and for infinite or undefined numbers, and
    /// [`Timestamp::MAX`] for greater times.
    pub fn parse(text: &str) -> Option<Timestamp> {
        if text.is_empty() || text.len() > 32 {
            return None;
        }
        // Plain decimals first: in binary 0.29 * 100 is 28.999...
        if let Some(exact) = parse_decimal(text) {
            return Some(exact);
        }
        let is_number = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
        let seconds: f64 = text.parse().ok().filter(|_| is_number)?;
        if !seconds.is_finite() || seconds < 0.0 || text.starts_with('-') && seconds != 0.0 {
            return None;
        }
        let hundredths = (seconds * 100.0).floor().min(HUNDREDTHS_MAX as f64);
        Some(Timestamp::from_hundredths(hundredths as i64))
    }
}

/// Parses digits, and any number of decimals.
fn parse_decimal(text: &str) -> Option<Timestamp> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_digits(whole) || !is_digits(decimals) {
        return None;
    }
    let Ok(seconds) = whole.parse::<i64>() else { return Some(Timestamp::MAX) };
    let digit = |at: usize| decimals.as_bytes().get(at).map_or(0, |byte| i64::from(byte - b'0'));
    let hundredths = seconds.saturating_mul(100).saturating_add(digit(0) * 10 + digit(1));
    Some(Timestamp::from_hundredths(hundredths))
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flatbed_clock::ManualClock;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_clocks_time_is_in_hundredths() {
        let manual = ManualClock::new();
        let begin = Timestamp::now(&manual.clock());
        manual.advance(Duration::from_millis(19));
        assert_eq!(Timestamp::now(&manual.clock()), begin.next());
        assert_eq!(begin.hundredths().unsigned_abs(), (manual.clock().unix_ms() - 19) / 10);
    }

    #[test]
    fn what_clients_write() {
        let hundredths = |text| Timestamp::parse(text).map(Timestamp::hundredths);
        assert_eq!(hundredths("0"), Some(0));
        assert_eq!(hundredths("0.00"), Some(0));
        assert_eq!(hundredths("0.29"), Some(29));
        assert_eq!(hundredths("1400000000.129"), Some(140_000_000_012));
        assert_eq!(hundredths("1e9"), Some(100_000_000_000));
        assert_eq!((hundredths("1239e-3"), hundredths("0e0")), (Some(123), Some(0)));
        assert_eq!(hundredths("1e300"), Some(HUNDREDTHS_MAX));
        assert_eq!(hundredths("99999999999999999999"), Some(HUNDREDTHS_MAX));
        for bad in ["", "-1", "-0.01", "abc", "nan", "inf", "infinity", "1e999", "1 ", "0x1", "."] {
            assert_eq!(hundredths(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(hundredths in 0..HUNDREDTHS_MAX) {
            let time = Timestamp::from_hundredths(hundredths);
            prop_assert_eq!(Timestamp::parse(&time.to_string()), Some(time));
            prop_assert_eq!(Timestamp::parse(&format!("{time}9")), Some(time));
        }

        #[test]
        fn nothing_panics(text in ".{0,40}") {
            let _ = Timestamp::parse(&text);
        }
    }
}
