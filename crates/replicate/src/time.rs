//! Formats times as CouchDB does.

use chrono::{DateTime, SecondsFormat, Utc};

fn date(seconds: u64) -> DateTime<Utc> {
    let date = i64::try_from(seconds).ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    date.unwrap_or(DateTime::UNIX_EPOCH)
}

/// Formats as `2013-08-11T20:38:50Z`, as in `_scheduler` and `_replication_state_time`.
pub fn iso(seconds: u64) -> String {
    date(seconds).to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Formats as `Sun, 11 Aug 2013 20:38:50 GMT`, as in replication logs.
pub fn http(seconds: u64) -> String {
    date(seconds).format("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        assert_eq!(iso(0), "1970-01-01T00:00:00Z");
        assert_eq!(http(1_376_253_530), "Sun, 11 Aug 2013 20:38:50 GMT");
        assert_eq!(iso(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(iso(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(iso(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(http(1_376_080_730), "Fri, 09 Aug 2013 20:38:50 GMT");
        assert_eq!((iso(u64::MAX), http(u64::MAX)), (iso(0), http(0)));
        assert_eq!(http(1_735_689_599), "Tue, 31 Dec 2024 23:59:59 GMT");
    }
}
