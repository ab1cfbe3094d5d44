//! The headers `cookie` and `set-cookie`.

use std::fmt::Write;

const NAME: &str = "AuthSession";

/// When a browser sends the cookie with requests from other sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SameSite {
    /// Always; browsers require `Secure` with it.
    None,
    /// When a link is followed.
    Lax,
    /// Never.
    Strict,
}

impl SameSite {
    /// Parses the setting `same_site`, in either case; `None` for another word.
    pub fn from_name(text: &str) -> Option<SameSite> {
        let all = [SameSite::None, SameSite::Lax, SameSite::Strict];
        all.into_iter().find(|found| found.name().eq_ignore_ascii_case(text))
    }

    fn name(self) -> &'static str {
        match self {
            SameSite::None => "None",
            SameSite::Lax => "Lax",
            SameSite::Strict => "Strict",
        }
    }
}

/// The attributes of a cookie.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes {
    /// The lifetime of the cookie in the browser, in seconds; `None`: until the browser is closed
    /// (`allow_persistent_cookies`).
    pub max_age: Option<u64>,
    /// True if it is sent on encrypted connections only: the request came on one.
    pub is_secure: bool,
    /// The setting `cookie_domain`.
    pub domain: Option<String>,
    /// The attribute `SameSite`, which CouchDB does not set by default.
    pub same_site: Option<SameSite>,
}

impl Attributes {
    /// Returns the value of a `set-cookie` header at `now`, in seconds since 1970. An empty `value` ends the session
    /// in the browser, with the same attributes as in CouchDB.
    pub fn set_cookie(&self, value: &str, now: u64) -> String {
        let mut out = format!("{NAME}={value}; Version=1");
        // Writing to a String does not fail.
        if let Some(max_age) = self.max_age {
            let _ = write!(out, "; Expires={}; Max-Age={max_age}", date(now.saturating_add(max_age)));
        }
        if self.is_secure {
            out.push_str("; Secure");
        }
        if let Some(domain) = &self.domain {
            let _ = write!(out, "; Domain={domain}");
        }
        out.push_str("; Path=/; HttpOnly");
        if let Some(same_site) = self.same_site {
            let _ = write!(out, "; SameSite={}", same_site.name());
        }
        out
    }
}

/// Returns the first `AuthSession` of a `cookie` header, without quotation marks.
pub fn cookie_in(header: &str) -> Option<&str> {
    let value = header.split(';').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        (name.trim() == NAME).then(|| value.trim())
    })?;
    Some(value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value))
}

/// The last second of the year 9999, which has four digits.
const SECONDS_MAX: u64 = 253_402_300_799;

/// Formats a time in seconds since 1970 as `Thu, 01-Jan-1970 00:00:00 GMT`, RFC 2109's form, up to the end of the
/// year 9999.
fn date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let seconds = seconds.min(SECONDS_MAX);
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let weekday = DAYS.into_iter().cycle().nth((days % 7) as usize).unwrap_or_default();
    let (mut year, mut day) = (1970, days);
    while day >= year_days(year) {
        day -= year_days(year);
        year += 1;
    }
    let mut name = "";
    for (at, month) in MONTHS.into_iter().enumerate() {
        name = month;
        let length = match at {
            1 => year_days(year) - 337,
            3 | 5 | 8 | 10 => 30,
            _ => 31,
        };
        if day < length {
            break;
        }
        day -= length;
    }
    let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
    format!("{weekday}, {:02}-{name}-{year:04} {hour:02}:{minute:02}:{second:02} GMT", day + 1)
}

fn year_days(year: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    if is_leap { 366 } else { 365 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The output of Python's `time.gmtime`.
    #[test]
    fn dates() {
        for (seconds, expected) in [
            (0, "Thu, 01-Jan-1970 00:00:00 GMT"),
            (86399, "Thu, 01-Jan-1970 23:59:59 GMT"),
            (86400, "Fri, 02-Jan-1970 00:00:00 GMT"),
            (951782399, "Mon, 28-Feb-2000 23:59:59 GMT"),
            (951782400, "Tue, 29-Feb-2000 00:00:00 GMT"),
            (951868800, "Wed, 01-Mar-2000 00:00:00 GMT"),
            (1078012800, "Sun, 29-Feb-2004 00:00:00 GMT"),
            (1709164799, "Wed, 28-Feb-2024 23:59:59 GMT"),
            (1709164800, "Thu, 29-Feb-2024 00:00:00 GMT"),
            (1709251200, "Fri, 01-Mar-2024 00:00:00 GMT"),
            (1735689599, "Tue, 31-Dec-2024 23:59:59 GMT"),
            (1735689600, "Wed, 01-Jan-2025 00:00:00 GMT"),
            (4107542399, "Sun, 28-Feb-2100 23:59:59 GMT"),
            (4107542400, "Mon, 01-Mar-2100 00:00:00 GMT"),
            (1798761599, "Thu, 31-Dec-2026 23:59:59 GMT"),
            (1593561600, "Wed, 01-Jul-2020 00:00:00 GMT"),
            (1669075200, "Tue, 22-Nov-2022 00:00:00 GMT"),
            (253402300799, "Fri, 31-Dec-9999 23:59:59 GMT"),
            (SECONDS_MAX + 1, "Fri, 31-Dec-9999 23:59:59 GMT"),
            (u64::MAX, "Fri, 31-Dec-9999 23:59:59 GMT"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }

    #[test]
    fn attributes_are_as_recorded() {
        let http = Attributes { max_age: Some(600), ..Attributes::default() };
        assert_eq!(
            http.set_cookie("YQ", 0),
            "AuthSession=YQ; Version=1; Expires=Thu, 01-Jan-1970 00:10:00 GMT; Max-Age=600; Path=/; HttpOnly"
        );
        assert_eq!(Attributes::default().set_cookie("", 0), "AuthSession=; Version=1; Path=/; HttpOnly");
        let all = Attributes {
            max_age: Some(0),
            is_secure: true,
            domain: Some("example.com".to_owned()),
            same_site: Some(SameSite::Lax),
        };
        assert_eq!(
            all.set_cookie("x", 1),
            "AuthSession=x; Version=1; Expires=Thu, 01-Jan-1970 00:00:01 GMT; Max-Age=0; Secure; Domain=example.com; Path=/; HttpOnly; SameSite=Lax"
        );
        assert!(Attributes { max_age: Some(u64::MAX), ..http }.set_cookie("", 5).contains("9999"));
    }

    #[test]
    fn same_site_by_its_name() {
        let found = ["none", "LAX", "Strict", "", "x"].map(SameSite::from_name);
        assert_eq!(found, [Some(SameSite::None), Some(SameSite::Lax), Some(SameSite::Strict), None, None]);
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        for (header, expected) in [
            ("", None),
            ("AuthSession", None),
            ("other=AuthSession=x", None),
            ("authsession=x", None),
            ("XAuthSession=x", None),
            ("AuthSession=", Some("")),
            ("AuthSession=x", Some("x")),
            ("other=1; AuthSession=x", Some("x")),
            ("other=1;AuthSession = x ;b=2", Some("x")),
            ("AuthSession=\"x\"", Some("x")),
            ("AuthSession=\"x", Some("\"x")),
            ("AuthSession=x; AuthSession=y", Some("x")),
            ("AuthSession=x=", Some("x=")),
        ] {
            assert_eq!(cookie_in(header), expected, "{header}");
        }
    }

    proptest! {
        #[test]
        fn a_day_later_is_the_next_weekday(seconds in 0..SECONDS_MAX - 86_400) {
            let (one, next) = (date(seconds), date(seconds + 86_400));
            prop_assert_eq!((one.len(), next.len()), (29, 29));
            let both = [one.get(..3), next.get(..3)].map(Option::unwrap).concat();
            prop_assert!("SunMonTueWedThuFriSatSun".contains(&both), "{}", both);
        }
    }
}
