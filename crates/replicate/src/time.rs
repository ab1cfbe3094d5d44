//! Formats times as CouchDB does.

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Returns year, month (1 to 12) and day of a day counted from 1970-01-01, in the Gregorian calendar. Years are counted
/// from March on, so that a leap day is the last day of its year.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

/// Formats as `2013-08-11T20:38:50Z`, as in `_scheduler` and `_replication_state_time`.
pub fn iso(seconds: u64) -> String {
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Formats as `Sun, 11 Aug 2013 20:38:50 GMT`, as in replication logs.
pub fn http(seconds: u64) -> String {
    let days = seconds / 86_400;
    let (year, month, day) = date(days);
    let name = |names: &[&'static str], at: u64| names.get(at as usize).copied().unwrap_or_default();
    let (weekday, month) = (name(&DAYS, days % 7), name(&MONTHS, month - 1));
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{weekday}, {day:02} {month} {year} {hour:02}:{minute:02}:{second:02} GMT")
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
        assert_eq!(http(1_735_689_599), "Tue, 31 Dec 2024 23:59:59 GMT");
    }
}
