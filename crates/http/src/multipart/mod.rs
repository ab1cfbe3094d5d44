//! Multipart bodies (RFC 2046) of requests, and the choice of a form for answers.

mod parts;
mod read;

pub use parts::Parts;
pub use read::{Event, MultipartError, PartHeaders};

use hyper::{HeaderMap, header};

/// The longest boundary of RFC 2046, 5.1.1.
const BOUNDARY_BYTES_MAX: usize = 70;

/// Returns true if the `Accept` header allows a media type such as `multipart/mixed`, by CouchDB's rule: one matching
/// entry is enough, `*/*` or no header allow all, and only `q=0` of the type or its family excludes it.
pub fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    let Some(accept) = headers.get(header::ACCEPT) else { return true };
    let Ok(accept) = accept.to_str() else { return false };
    let family = format!("{}/*", kind.split('/').next().unwrap_or_default());
    let mut is_taken = false;
    for entry in accept.split(',') {
        let mut parameters = entry.split(';').map(str::trim);
        let of = parameters.next().unwrap_or_default();
        let quality = parameters.find_map(|parameter| parameter.strip_prefix("q="));
        let is_zero = quality.is_some_and(|quality| quality.trim().parse() == Ok(0.0));
        let is_own = of.eq_ignore_ascii_case(kind) || of.eq_ignore_ascii_case(&family);
        if is_own && is_zero {
            return false;
        }
        is_taken |= !is_zero && (is_own || of == "*/*");
    }
    is_taken
}

/// Returns the boundary in a `Content-Type` of this media type, if it is valid.
pub fn boundary_of<'h>(content_type: &'h str, kind: &str) -> Option<&'h str> {
    let (of, parameters) = content_type.split_once(';')?;
    if !of.trim().eq_ignore_ascii_case(kind) {
        return None;
    }
    let boundary = parameter(parameters, "boundary")?;
    let fits = (1..=BOUNDARY_BYTES_MAX).contains(&boundary.len());
    (fits && boundary.bytes().all(|byte| (0x20..0x7f).contains(&byte))).then_some(boundary)
}

/// Returns true if a `Content-Type` is of this media type, with any parameters.
pub fn is_kind(content_type: &str, kind: &str) -> bool {
    content_type.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(kind)
}

/// Returns a parameter of a header without its quotes. Escapes within them are kept.
pub fn parameter<'h>(parameters: &'h str, name: &str) -> Option<&'h str> {
    let mut rest = parameters;
    loop {
        let (found, value) = rest.split_once('=')?;
        let value = value.trim_start();
        let (value, behind) = match value.strip_prefix('"') {
            Some(quoted) => {
                let end = quoted.find('"').unwrap_or(quoted.len());
                (quoted.get(..end)?, quoted.get(end + 1..).unwrap_or_default())
            }
            None => {
                let end = value.find(';').unwrap_or(value.len());
                (value.get(..end)?.trim_end(), value.get(end..)?)
            }
        };
        // A parameter without a value is skipped.
        let found = found.rsplit(';').next().unwrap_or_default().trim();
        if found.eq_ignore_ascii_case(name) {
            return Some(value);
        }
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_as_couchdb_reads_it() {
        let headers = |accept: Option<&str>| {
            let pairs = accept.map(|accept| (header::ACCEPT, accept.parse().unwrap()));
            pairs.into_iter().collect::<HeaderMap>()
        };
        for (accept, taken) in [
            (None, true),
            (Some("*/*"), true),
            (Some("application/json, */*;q=0.1"), true),
            (Some("multipart/*"), true),
            (Some("Multipart/Mixed; q=0.5"), true),
            (Some("application/json"), false),
            (Some("*/*, multipart/mixed;q=0"), false),
            (Some("*/*, multipart/*;q=0.0"), false),
            (Some("multipart/related"), false),
            (Some(""), false),
        ] {
            assert_eq!(accepts(&headers(accept), "multipart/mixed"), taken, "{accept:?}");
        }
    }

    #[test]
    fn boundaries_of_content_types() {
        for (content_type, boundary) in [
            ("multipart/related;boundary=\"abc\"", Some("abc")),
            ("Multipart/Related; charset=utf-8; Boundary=abc; x=\"boundary=no\"", Some("abc")),
            ("multipart/related; x=\"; boundary=no\"; boundary=\"a b;c\"", Some("a b;c")),
            ("multipart/related; flag; boundary=--x", Some("--x")),
            ("multipart/related", None),
            ("multipart/related; boundary=", None),
            ("multipart/related; boundary=\"\"", None),
            ("multipart/mixed; boundary=abc", None),
        ] {
            assert_eq!(boundary_of(content_type, "multipart/related"), boundary, "{content_type}");
        }
        let long = format!("multipart/related; boundary={}", "x".repeat(71));
        assert_eq!(boundary_of(&long, "multipart/related"), None);
    }
}
