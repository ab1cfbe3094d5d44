//! Conditions of requests: `X-If-Modified-Since` and `X-If-Unmodified-Since`.
//!
//! They are HTTP's own conditions with hundredths of a second, and apply to every method.

use flatbed_syncstorage::{Precondition, Timestamp};
use hyper::HeaderMap;

use crate::error::{Failure, Result};

/// Reads the headers.
///
/// # Errors
/// 400 for both headers at once, and for a text that is not a time.
pub(crate) fn precondition(headers: &HeaderMap) -> Result<Precondition> {
    let time = |name: &str| match headers.get(name) {
        None => Ok(None),
        Some(value) => {
            let time = value.to_str().ok().and_then(Timestamp::parse);
            time.map(Some).ok_or_else(|| Failure::bad_request(format!("{name} is no time")))
        }
    };
    match (time("x-if-modified-since")?, time("x-if-unmodified-since")?) {
        (None, None) => Ok(Precondition::None),
        (Some(since), None) => Ok(Precondition::ModifiedSince(since)),
        (None, Some(since)) => Ok(Precondition::UnmodifiedSince(since)),
        (Some(_), Some(_)) => Err(Failure::bad_request("two conditions at once")),
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;

    use super::*;

    fn of(pairs: &[(&'static str, &str)]) -> Option<Precondition> {
        let pairs = pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        precondition(&pairs.collect()).ok()
    }

    #[test]
    fn one_of_them_at_most() {
        let (modified, unmodified) = (("x-if-modified-since", "1.5"), ("x-if-unmodified-since", "2"));
        let time = Timestamp::from_hundredths;
        assert_eq!(of(&[]), Some(Precondition::None));
        assert_eq!(of(&[modified]), Some(Precondition::ModifiedSince(time(150))));
        assert_eq!(of(&[unmodified]), Some(Precondition::UnmodifiedSince(time(200))));
        assert_eq!(of(&[modified, unmodified]), None);
        for text in ["abc", "", "-1", "nan"] {
            assert_eq!(of(&[("x-if-modified-since", text)]), None, "{text}");
        }
    }
}
