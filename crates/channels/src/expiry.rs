//! The expiry of documents: `_exp` in a body, and `expiry()` of a sync function.

use chrono::{DateTime, SecondsFormat};
use flatbed_flatten::json::Value;

/// The largest number that is relative to now, in seconds: 30 days. Larger ones are Unix time.
const RELATIVE_MAX_S: u64 = 30 * 86_400;

/// The last second: 2106-02-07T06:28:15Z, the largest of 32 bits, as in Sync Gateway.
const LAST_S: u64 = u32::MAX as u64;

/// The longest text that is parsed, in bytes.
const TEXT_MAX: usize = 100;

/// The expiry of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// Never: absent, null or 0.
    Never,
    /// The document is hidden from this second of Unix time on, which may be in the past.
    At(u64),
}

/// The value is not an expiry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidExpiry {
    /// Neither a number nor a date.
    #[error("Invalid expiry: Unable to parse expiry {0} as either numeric or date expiry")]
    Form(String),
    /// Before 1970, or beyond 32 bits of seconds.
    #[error("Invalid expiry: Expiry value is not within valid range: {0}")]
    Range(String),
}

impl Expiry {
    /// Parses a number, a number as text, or a date of RFC 3339. `now_s` is the current Unix time.
    ///
    /// # Errors
    /// [`InvalidExpiry`]: a 400 for `_exp`; in `expiry()` such a value is ignored.
    pub fn parse(value: &Value<'_>, now_s: u64) -> Result<Expiry, InvalidExpiry> {
        match value {
            Value::Null => Ok(Expiry::Never),
            Value::Number(text) => Expiry::of_number(text, now_s).unwrap_or_else(|| Err(form(text))),
            Value::String(text) if text.len() <= TEXT_MAX => {
                let number = Expiry::of_number(text, now_s);
                let date = || seconds_of_date(text).map(|seconds| within(seconds, text));
                number.or_else(date).unwrap_or_else(|| Err(form(text)))
            }
            Value::String(text) => Err(form(text)),
            Value::Bool(_) | Value::Array(_) | Value::Object(_) => Err(form("that is neither a number nor a text")),
        }
    }

    /// Parses a number and truncates its fraction. `None`: the text is no number.
    fn of_number(text: &str, now_s: u64) -> Option<Result<Expiry, InvalidExpiry>> {
        // Other texts that the parser of floating point accepts, such as `inf` and `nan`, are no numbers.
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte)) {
            return None;
        }
        let number: f64 = text.parse().ok()?;
        #[expect(clippy::cast_possible_truncation, reason = "it saturates, and what is beyond the range is refused")]
        let seconds = number as i64;
        Some(match u64::try_from(seconds) {
            Ok(0) => Ok(Expiry::Never),
            Ok(seconds) if seconds <= RELATIVE_MAX_S => Ok(Expiry::At(now_s.saturating_add(seconds).min(LAST_S))),
            _ => within(seconds, text),
        })
    }

    /// Formats the expiry as a date of RFC 3339, in UTC.
    pub fn shown(self) -> Option<String> {
        let Expiry::At(seconds) = self else { return None };
        let date = DateTime::from_timestamp(i64::try_from(seconds).ok()?, 0)?;
        Some(date.to_rfc3339_opts(SecondsFormat::Secs, true))
    }
}

fn form(text: &str) -> InvalidExpiry {
    InvalidExpiry::Form(crate::name::cut(text))
}

fn within(seconds: i64, text: &str) -> Result<Expiry, InvalidExpiry> {
    match u64::try_from(seconds) {
        Ok(seconds) if seconds <= LAST_S => Ok(Expiry::At(seconds)),
        _ => Err(InvalidExpiry::Range(crate::name::cut(text))),
    }
}

/// Parses `2099-01-01T00:00:00.000+01:00` to seconds of Unix time, without the fraction.
fn seconds_of_date(text: &str) -> Option<i64> {
    let date = DateTime::parse_from_rfc3339(text).ok()?;
    // The library also accepts a space for the `T`, U+2212 for the minus sign, and leap seconds, which it counts as
    // nanoseconds above a billion.
    let is_strict = text.is_ascii() && !text.contains(' ') && date.timestamp_subsec_nanos() < 1_000_000_000;
    is_strict.then(|| date.timestamp())
}

/// The stored value, in seconds of Unix time.
impl From<Expiry> for Option<u64> {
    fn from(expiry: Expiry) -> Option<u64> {
        match expiry {
            Expiry::Never => None,
            Expiry::At(seconds) => Some(seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW_S: u64 = 1_700_000_000;

    fn of_text(text: &str) -> Result<Expiry, InvalidExpiry> {
        Expiry::parse(&Value::String(text.into()), NOW_S)
    }

    fn of_number(text: &str) -> Result<Expiry, InvalidExpiry> {
        Expiry::parse(&Value::Number(text.into()), NOW_S)
    }

    #[test]
    fn numbers_are_relative_below_thirty_days() {
        for (number, at) in [
            ("1", NOW_S + 1),
            ("1.9", NOW_S + 1),
            ("2592000", NOW_S + 2_592_000),
            ("2592001", 2_592_001),
            ("4102444800", 4_102_444_800),
            ("1e9", 1_000_000_000),
            ("4294967295", 4_294_967_295),
        ] {
            assert_eq!(of_number(number), Ok(Expiry::At(at)), "{number}");
            assert_eq!(of_text(number), Ok(Expiry::At(at)), "{number}");
        }
        for never in ["0", "0.9", "-0", "-0.5"] {
            assert_eq!(of_number(never), Ok(Expiry::Never), "{never}");
        }
        for beyond in ["-1", "-5", "4294967296", "1e300", "-1e300"] {
            assert_eq!(of_number(beyond), Err(InvalidExpiry::Range(beyond.to_owned())), "{beyond}");
        }
        let said = of_number("-1").unwrap_err().to_string();
        assert_eq!(said, "Invalid expiry: Expiry value is not within valid range: -1");
        assert_eq!(Expiry::parse(&Value::Number("5".into()), u64::MAX), Ok(Expiry::At(4_294_967_295)));
    }

    #[test]
    fn dates_are_those_of_rfc_3339() {
        for (date, at) in [
            ("2099-01-01T00:00:00.000+00:00", 4_070_908_800),
            ("2099-01-01T00:00:00Z", 4_070_908_800),
            ("2099-01-01t00:00:00z", 4_070_908_800),
            ("2099-01-01T01:30:00+01:30", 4_070_908_800),
            ("2098-12-31T22:30:00-01:30", 4_070_908_800),
            ("2099-01-01T23:59:00+23:59", 4_070_908_800),
            ("2024-02-29T12:34:56Z", 1_709_210_096),
            ("2000-02-29T00:00:00Z", 951_782_400),
            ("1970-01-01T00:00:01Z", 1),
            ("1970-01-01T00:00:00Z", 0),
            ("2106-02-07T06:28:15Z", 4_294_967_295),
        ] {
            assert_eq!(of_text(date), Ok(Expiry::At(at)), "{date}");
        }
        for date in ["1969-12-31T23:59:59Z", "2106-02-07T06:28:16Z", "1970-01-01T00:00:00+00:01"] {
            assert!(matches!(of_text(date), Err(InvalidExpiry::Range(_))), "{date}");
        }
        for no_date in [
            "",
            "soon",
            "tomorrow",
            "inf",
            "nan",
            "2100-02-29T00:00:00Z",
            "2023-02-29T00:00:00Z",
            "2099-13-01T00:00:00Z",
            "2099-00-01T00:00:00Z",
            "2099-04-31T00:00:00Z",
            "2099-01-00T00:00:00Z",
            "2099-01-01T24:00:00Z",
            "2099-01-01T00:60:00Z",
            "2099-01-01T00:00:60Z",
            "2099-01-01T00:00:00.Z",
            "2099-01-01T00:00:00",
            "2099-01-01T00:00:00Zx",
            "2099-01-01T00:00:00+0100",
            "2099-01-01T00:00:00+24:00",
            "2099-01-01T00:00:00+01:60",
            "2099-01-01T00:00:00+01:00x",
            "2099-01-01 00:00:00Z",
            "2099-01-01T00:00:00\u{2212}01:00",
            "99-01-01T00:00:00Z",
        ] {
            assert!(matches!(of_text(no_date), Err(InvalidExpiry::Form(_))), "{no_date}");
        }
        let said = of_text("soon").unwrap_err().to_string();
        assert_eq!(said, "Invalid expiry: Unable to parse expiry soon as either numeric or date expiry");
        assert_eq!(of_text(&"9".repeat(101)), Err(InvalidExpiry::Form("9".repeat(100))));
        assert!(of_text(&"9".repeat(100)).is_err());
    }

    #[test]
    fn others_are_no_times() {
        assert_eq!(Expiry::parse(&Value::Null, NOW_S), Ok(Expiry::Never));
        for value in [Value::Bool(true), Value::Array(Vec::new()), Value::Object(Vec::new())] {
            assert!(Expiry::parse(&value, NOW_S).is_err());
        }
        assert_eq!(Option::<u64>::from(Expiry::Never), None);
        assert_eq!(Option::<u64>::from(Expiry::At(7)), Some(7));
    }

    #[test]
    fn times_are_shown_as_recorded() {
        assert_eq!(Expiry::At(4_102_444_800).shown().unwrap(), "2100-01-01T00:00:00Z");
        assert_eq!(Expiry::At(4_070_908_800).shown().unwrap(), "2099-01-01T00:00:00Z");
        assert_eq!(Expiry::At(1_709_210_096).shown().unwrap(), "2024-02-29T12:34:56Z");
        assert_eq!(Expiry::Never.shown(), None);
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read(seconds in 0..=LAST_S) {
            let shown = Expiry::At(seconds).shown().unwrap();
            prop_assert_eq!(of_text(&shown), Ok(Expiry::At(seconds)));
        }

        #[test]
        fn anything_may_be_said(text in "[0-9+:.TZeE-]{0,30}|.*") {
            let _ = (of_text(&text), of_number(&text));
        }
    }
}
