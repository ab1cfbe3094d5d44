//! Parses and formats times: ISO 8601 as in documents, and dates of HTTP headers. Proleptic Gregorian calendar, UTC,
//! years 0 to 9999.

use flatbed_clock::Clock;

const DAY: i64 = 86_400;

/// The number from which numeric times are milliseconds. As seconds they would be beyond the year 5138.
const MILLISECONDS_FROM: u64 = 100_000_000_000;

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Seconds of Unix time.
    pub seconds: i64,
    /// The fraction, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// Returns a clock's time, in whole seconds.
pub fn now(clock: &Clock) -> Moment {
    Moment { seconds: i64::try_from(clock.unix_seconds()).unwrap_or_default(), nanoseconds: 0 }
}

/// Returns the days since 1970-01-01, after Howard Hinnant's `days_from_civil`. Months count from 1; any day is valid.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

fn number(text: &str, digits: usize) -> Option<i64> {
    (text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

/// Parses `YYYY-MM-DD` into days since 1970-01-01. `None`: not a date.
pub(crate) fn day_of(text: &str) -> Option<i64> {
    let (year, rest) = text.split_once('-')?;
    let (month, day) = rest.split_once('-')?;
    let (year, month, day) = (number(year, 4)?, number(month, 2)?, number(day, 2)?);
    let since = days(year, month, day);
    // A day that does not exist in its month would convert back to another one.
    (civil(since) == (year, month, day)).then_some(since)
}

/// Returns the date part of an ISO 8601 text, unconverted: `2026-04-22` of `2026-04-22T23:30:00-08:00`.
pub fn date_of(text: &str) -> Option<&str> {
    let date = text.get(..10)?;
    day_of(date)?;
    (text.len() == 10 || Moment::parse(text).is_some()).then_some(date)
}

impl Moment {
    /// Parses ISO 8601: `2026-04-22`, `2026-04-22T19:33:16.759+02:00`, with a space instead of the `T`, without
    /// seconds, and as UTC if there is no zone.
    pub fn parse(text: &str) -> Option<Moment> {
        let day = day_of(text.get(..10)?)?;
        let rest = text.get(10..)?;
        if rest.is_empty() {
            return Some(Moment { seconds: day * DAY, nanoseconds: 0 });
        }
        let rest = rest.strip_prefix(['T', 't', ' '])?;
        let (clock, offset) = match rest.find(['Z', 'z', '+', '-']) {
            Some(at) => (rest.get(..at)?, offset(rest.get(at..)?)?),
            None => (rest, 0),
        };
        let (clock, nanoseconds) = match clock.split_once('.') {
            None => (clock, 0),
            Some((clock, fraction)) => {
                if !(1..=9).contains(&fraction.len()) || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
                    return None;
                }
                (clock, format!("{fraction:0<9}").parse().ok()?)
            }
        };
        let mut parts = clock.split(':');
        let (hour, minute) = (number(parts.next()?, 2)?, number(parts.next()?, 2)?);
        let second = parts.next().map_or(Some(0), |second| number(second, 2))?;
        if parts.next().is_some() || hour > 23 || minute > 59 || second > 60 || (nanoseconds > 0 && clock.len() < 8) {
            return None;
        }
        Some(Moment { seconds: day * DAY + hour * 3_600 + minute * 60 + second.min(59) - offset, nanoseconds })
    }

    /// Converts a number of Unix time: seconds, or milliseconds from 100,000,000,000 on.
    pub fn of_number(number: i64) -> Option<Moment> {
        let (seconds, milliseconds) = if number.unsigned_abs() >= MILLISECONDS_FROM {
            (number.div_euclid(1_000), number.rem_euclid(1_000))
        } else {
            (number, 0)
        };
        let year = civil(seconds.div_euclid(DAY)).0;
        let nanoseconds = u32::try_from(milliseconds).ok()? * 1_000_000;
        (0..=9999).contains(&year).then_some(Moment { seconds, nanoseconds })
    }

    /// Parses a date of an HTTP header (RFC 9110, 5.6.7): `Sun, 06 Nov 1994 08:49:37 GMT`. The two obsolete forms are
    /// not supported.
    pub fn parse_http(text: &str) -> Option<Moment> {
        let (_, rest) = text.split_once(", ")?;
        let mut words = rest.split(' ');
        let day = number(words.next()?, 2)?;
        let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let name = words.next()?;
        let month = months.iter().position(|month| *month == name)? + 1;
        let year = number(words.next()?, 4)?;
        let (clock, zone) = (words.next()?, words.next()?);
        if zone != "GMT" || words.next().is_some() {
            return None;
        }
        Moment::parse(&format!("{year:04}-{month:02}-{day:02}T{clock}Z"))
    }
}

/// Parses a zone into seconds ahead of UTC.
fn offset(text: &str) -> Option<i64> {
    if matches!(text, "Z" | "z") {
        return Some(0);
    }
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+')?),
    };
    let (hours, minutes) = match (rest.split_once(':'), rest.len()) {
        (Some((hours, minutes)), _) => (hours, minutes),
        (None, 4) => rest.split_at_checked(2)?,
        (None, _) => (rest, "00"),
    };
    let (hours, minutes) = (number(hours, 2)?, number(minutes, 2)?);
    (hours <= 23 && minutes <= 59).then_some(sign * (hours * 3_600 + minutes * 60))
}

/// Formats as `2026-04-22T19:33:16Z`, with a fraction of three, six or nine digits if there is one.
impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (year, month, day) = civil(self.seconds.div_euclid(DAY));
        let second = self.seconds.rem_euclid(DAY);
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        match self.nanoseconds {
            0 => {}
            nanoseconds if nanoseconds % 1_000_000 == 0 => write!(f, ".{:03}", nanoseconds / 1_000_000)?,
            nanoseconds if nanoseconds % 1_000 == 0 => write!(f, ".{:06}", nanoseconds / 1_000)?,
            nanoseconds => write!(f, ".{nanoseconds:09}")?,
        }
        f.write_str("Z")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn moments_are_read_and_written() {
        for (text, written) in [
            ("1970-01-01", "1970-01-01T00:00:00Z"),
            ("2026-04-22T19:33:16.759377+00:00", "2026-04-22T19:33:16.759377Z"),
            ("2026-04-22 19:33", "2026-04-22T19:33:00Z"),
            ("2024-02-29T23:30:00-08:00", "2024-03-01T07:30:00Z"),
            ("2024-02-29t23:30:00.5z", "2024-02-29T23:30:00.500Z"),
            ("2000-12-31T23:59:60Z", "2000-12-31T23:59:59Z"),
            ("2000-01-01T00:30:00+0130", "1999-12-31T23:00:00Z"),
            ("2000-01-01T00:30:00+01", "1999-12-31T23:30:00Z"),
            ("0000-01-01", "0000-01-01T00:00:00Z"),
            ("2000-01-01T00:00:00.123456789Z", "2000-01-01T00:00:00.123456789Z"),
        ] {
            assert_eq!(Moment::parse(text).map(|moment| moment.to_string()).as_deref(), Some(written), "{text}");
        }
        for text in [
            "",
            "2026",
            "2026-4-22",
            "2026-02-29",
            "2026-13-01",
            "2026-00-01",
            "2026-01-00",
            "2026-01-32",
            "26-01-01",
            "2026-01-01T",
            "2026-01-01T24:00",
            "2026-01-01T00:60",
            "2026-01-01T00:00:61",
            "2026-01-01T0:00",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00.1234567890",
            "2026-01-01T00:00.5",
            "2026-01-01T00:00+25",
            "2026-01-01T00:00:00:00",
            "2026-01-01x00:00",
            "2026-01-01T00:00+1:00",
            "\u{e4}2026-01-01",
            "2026-01-0\u{e4}",
        ] {
            assert_eq!(Moment::parse(text), None, "{text}");
            assert_eq!(date_of(text), None, "{text}");
        }
    }

    #[test]
    fn dates_stay_as_they_are_written() {
        assert_eq!(date_of("2024-02-29T23:30:00-08:00"), Some("2024-02-29"));
        assert_eq!(date_of("2024-02-29"), Some("2024-02-29"));
        assert_eq!(date_of("2024-02-29 at noon"), None);
    }

    #[test]
    fn numbers_and_headers() {
        let shown = |number| Moment::of_number(number).map(|moment| moment.to_string());
        assert_eq!(shown(1_768_521_600).as_deref(), Some("2026-01-16T00:00:00Z"));
        assert_eq!(shown(1_768_521_600_250).as_deref(), Some("2026-01-16T00:00:00.250Z"));
        assert_eq!(shown(-1).as_deref(), Some("1969-12-31T23:59:59Z"));
        assert_eq!([shown(i64::MAX), shown(i64::MIN)], [None, None]);
        let header = Moment::parse_http("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(header.seconds, 784_111_777);
        for text in
            ["", "Sun, 06 Nov 1994 08:49:37", "Sun, 06 Non 1994 08:49:37 GMT", "Sun, 31 Feb 1994 08:49:37 GMT", "1"]
        {
            assert_eq!(Moment::parse_http(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(seconds in -62_167_219_200_i64..253_402_300_800, nanoseconds in 0_u32..1_000_000_000) {
            let moment = Moment { seconds, nanoseconds };
            prop_assert_eq!(Moment::parse(&moment.to_string()), Some(moment));
        }

        #[test]
        fn days_follow_each_other(day in -719_528_i64..2_932_896) {
            let (year, month, of_month) = civil(day);
            prop_assert_eq!(days(year, month, of_month), day);
            prop_assert!(civil(day + 1) > (year, month, of_month));
        }

        #[test]
        fn any_text_is_a_moment_or_none(text in "[-0-9T:.Zz+ \u{e4}]{0,30}") {
            let _ = (Moment::parse(&text), date_of(&text), Moment::parse_http(&text));
        }
    }
}
