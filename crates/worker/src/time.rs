//! Parses and formats times: ISO 8601 as in documents. Proleptic Gregorian calendar, UTC, years 0 to 9999.

use std::fmt;

use chrono::{DateTime, Datelike, SecondsFormat, Utc};
use flatbed_clock::Clock;

const DAY: i64 = 86_400;

/// The number from which numeric times are milliseconds. As seconds they would be beyond the year 5138.
const MILLISECONDS_FROM: u64 = 100_000_000_000;

/// The length of `2026-04-22`.
const DATE_BYTES: usize = 10;

/// The length of `19:33:16.123456789`.
const CLOCK_BYTES_MAX: usize = 18;

/// The length of `+02:00`.
const ZONE_BYTES_MAX: usize = 6;

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(DateTime<Utc>);

/// Returns a clock's time, in whole seconds.
pub fn now(clock: &Clock) -> Moment {
    Moment::at(clock.unix_seconds())
}

/// Parses `YYYY-MM-DD` into days since 1970-01-01. `None`: not a date.
pub(crate) fn day_of(text: &str) -> Option<i64> {
    let is_date = text.len() == DATE_BYTES;
    Moment::parse(text).filter(|_| is_date).map(|moment| moment.seconds().div_euclid(DAY))
}

/// Returns the date part of an ISO 8601 text, unconverted: `2026-04-22` of `2026-04-22T23:30:00-08:00`.
pub fn date_of(text: &str) -> Option<&str> {
    Moment::parse(text)?;
    text.get(..DATE_BYTES)
}

impl Moment {
    fn new(seconds: i64, nanoseconds: u32) -> Option<Moment> {
        let time = DateTime::from_timestamp(seconds, nanoseconds)?;
        (0..=9999).contains(&time.year()).then_some(Moment(time))
    }

    /// Converts Unix time. Times beyond the year 9999 become 1970.
    pub fn at(seconds: u64) -> Moment {
        let moment = i64::try_from(seconds).ok().and_then(|seconds| Moment::new(seconds, 0));
        moment.unwrap_or(Moment(DateTime::UNIX_EPOCH))
    }

    /// Parses ISO 8601: `2026-04-22`, `2026-04-22T19:33:16.759+02:00`, with a space instead of the `T`, without
    /// seconds, and as UTC if there is no zone. A leap second is the second before it.
    pub fn parse(text: &str) -> Option<Moment> {
        let (date, rest) = text.split_at_checked(DATE_BYTES)?;
        let rest = if rest.is_empty() { "00:00" } else { rest.strip_prefix(['T', 't', ' '])? };
        let (clock, zone) = rest.split_at(rest.find(['Z', 'z', '+', '-']).unwrap_or(rest.len()));
        if clock.len() > CLOCK_BYTES_MAX || zone.len() > ZONE_BYTES_MAX {
            return None;
        }
        let seconds = if clock.len() == "19:33".len() { ":00" } else { "" };
        let zone = match (zone.len(), zone.split_at_checked(3)) {
            (0, _) => "Z".to_owned(),
            (3, _) => format!("{zone}:00"),
            (5, Some((hours, minutes))) => format!("{hours}:{minutes}"),
            _ => zone.to_owned(),
        };
        let time = DateTime::parse_from_rfc3339(&format!("{date}T{clock}{seconds}{zone}")).ok()?;
        // The library counts a leap second as nanoseconds above a billion.
        Moment::new(time.timestamp(), time.timestamp_subsec_nanos() % 1_000_000_000)
    }

    /// Converts a number of Unix time: seconds, or milliseconds from 100,000,000,000 on.
    pub fn of_number(number: i64) -> Option<Moment> {
        let (seconds, milliseconds) = if number.unsigned_abs() >= MILLISECONDS_FROM {
            (number.div_euclid(1_000), number.rem_euclid(1_000))
        } else {
            (number, 0)
        };
        Moment::new(seconds, u32::try_from(milliseconds).ok()? * 1_000_000)
    }

    /// Returns the seconds of Unix time.
    pub fn seconds(self) -> i64 {
        self.0.timestamp()
    }

    /// Returns the microseconds of Unix time.
    pub fn microseconds(self) -> i64 {
        self.0.timestamp_micros()
    }

    /// Formats as `20260422T193316Z`.
    pub fn compact(self) -> String {
        self.0.format("%Y%m%dT%H%M%SZ").to_string()
    }
}

/// Formats as `2026-04-22T19:33:16Z`, with a fraction of three, six or nine digits if there is one.
impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_rfc3339_opts(SecondsFormat::AutoSi, true))
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
            "0000-01-01T00:00+00:01",
            "9999-12-31T23:59-00:01",
            "2000-01-01T00:00:00\u{2212}01:00",
            "2000-01-01T00:00:00ZZ",
            "2000-01-01T00:00:00+01:00:00",
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
    fn numbers_are_unix_time() {
        let shown = |number| Moment::of_number(number).map(|moment| moment.to_string());
        assert_eq!(shown(1_768_521_600).as_deref(), Some("2026-01-16T00:00:00Z"));
        assert_eq!(shown(1_768_521_600_250).as_deref(), Some("2026-01-16T00:00:00.250Z"));
        assert_eq!(shown(-1).as_deref(), Some("1969-12-31T23:59:59Z"));
        assert_eq!([shown(i64::MAX), shown(i64::MIN)], [None, None]);
        assert_eq!(Moment::at(1_369_353_600).compact(), "20130524T000000Z");
        assert_eq!([Moment::at(u64::MAX), Moment::at(253_402_300_800)], [Moment::at(0); 2]);
        let precise = Moment::parse("1969-12-31T23:59:59.999999999Z").unwrap();
        assert_eq!((precise.seconds(), precise.microseconds()), (-1, -1));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(seconds in -62_167_219_200_i64..253_402_300_800, nanoseconds in 0_u32..1_000_000_000) {
            let moment = Moment::new(seconds, nanoseconds).unwrap();
            prop_assert_eq!(Moment::parse(&moment.to_string()), Some(moment));
        }

        #[test]
        fn a_date_is_its_day(day in -719_528_i64..2_932_897) {
            let date = Moment::new(day * DAY + DAY - 1, 0).unwrap().to_string();
            prop_assert_eq!(day_of(&date[..10]), Some(day));
            prop_assert_eq!((day_of(&date), date_of(&date)), (None, Some(&date[..10])));
        }

        #[test]
        fn any_text_is_a_moment_or_none(text in "[-0-9T:.Zz+ \u{e4}\u{2212}]{0,30}|2026-04-22T19:33:16[-0-9:.Zz+\u{e4}\u{2212}]{0,9}") {
            let _ = (Moment::parse(&text), date_of(&text), day_of(&text));
        }
    }
}
