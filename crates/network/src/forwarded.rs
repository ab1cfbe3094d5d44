//! The client that proxies report in headers: `X-Forwarded-For` with `X-Forwarded-Proto`, or `Forwarded` (RFC 7239).
//!
//! Each proxy appends the address of its peer. The list is therefore read from its end, as long as the entries come
//! from known proxies. Entries before an unknown address were written by that client and are not trusted.

use std::net::{IpAddr, SocketAddr};

use crate::blocks::Blocks;

/// The most entries of a list that are read: the longest chain of proxies.
const HOPS_MAX: usize = 32;

/// The reported client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardedClient {
    /// The last address reported by a known proxy; `None`: none was, or one without an address.
    pub address: Option<IpAddr>,
    /// True if the client used TLS, if reported.
    pub is_secure: Option<bool>,
}

/// Reads `X-Forwarded-For` and `X-Forwarded-Proto`, each with all its lines in order; `None`: nothing is reported.
/// `known` are the trusted proxies; one of them has sent this request.
pub fn from_x_forwarded<'h>(
    addresses: impl DoubleEndedIterator<Item = &'h str>,
    protocols: impl DoubleEndedIterator<Item = &'h str>,
    known: &Blocks,
) -> Option<ForwardedClient> {
    // Quotes have no meaning here.
    let mut addresses = elements(addresses, |line| from_the_end(line, b',', false)).map(address_of);
    let mut protocols = elements(protocols, |line| from_the_end(line, b',', false)).map(is_secure);
    let mut found = None::<ForwardedClient>;
    for address in addresses.by_ref().take(HOPS_MAX) {
        // With fewer protocols than addresses, the nearest proxy has set the only one.
        let of_hop = protocols.next().flatten().or(found.and_then(|found| found.is_secure));
        found = Some(ForwardedClient { address, is_secure: of_hop });
        if address.is_none() || !known.contains(address) {
            break;
        }
    }
    if found.is_none() {
        let is_secure = protocols.next().flatten();
        return is_secure.map(|is_secure| ForwardedClient { address: None, is_secure: Some(is_secure) });
    }
    found
}

/// Reads `Forwarded`, with all its lines in order; `None`: nothing is reported.
pub fn from_forwarded<'h>(lines: impl DoubleEndedIterator<Item = &'h str>, known: &Blocks) -> Option<ForwardedClient> {
    let mut found = None;
    for element in elements(lines, |line| from_the_end(line, b',', true)).take(HOPS_MAX) {
        let mut hop = ForwardedClient { address: None, is_secure: None };
        for pair in from_the_end(element, b';', true) {
            let Some((name, value)) = pair.split_once('=') else { continue };
            let value = value.trim().trim_matches('"');
            match name.trim() {
                name if name.eq_ignore_ascii_case("for") => hop.address = address_of(value),
                name if name.eq_ignore_ascii_case("proto") => hop.is_secure = is_secure(value),
                _ => {}
            }
        }
        found = Some(hop);
        if hop.address.is_none() || !known.contains(hop.address) {
            break;
        }
    }
    found
}

/// Returns the host that the last proxy received, from all lines of `Forwarded` in order.
pub fn host_in_forwarded<'h>(lines: impl DoubleEndedIterator<Item = &'h str>) -> Option<&'h str> {
    let last = elements(lines, |line| from_the_end(line, b',', true)).next()?;
    from_the_end(last, b';', true).find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("host").then(|| value.trim().trim_matches('"'))
    })
}

/// Returns the non-empty elements of a list, last first.
fn elements<'h, I: Iterator<Item = &'h str>>(
    lines: impl DoubleEndedIterator<Item = &'h str>,
    cut: impl Fn(&'h str) -> I,
) -> impl Iterator<Item = &'h str> {
    lines.rev().flat_map(cut).map(str::trim).filter(|element| !element.is_empty())
}

/// Splits a text at separators, optionally only outside of quotes, and returns the parts last first. Quotes are matched
/// from the end too: the proxy that wrote the last part closes its quotes, and a quote that a client left open before
/// it cannot swallow that part.
fn from_the_end(text: &str, separator: u8, has_quotes: bool) -> impl Iterator<Item = &str> {
    let mut left = Some(text);
    std::iter::from_fn(move || {
        let text = left?;
        let mut is_quoted = false;
        let cut = text.bytes().rposition(|byte| {
            is_quoted ^= has_quotes && byte == b'"';
            byte == separator && !is_quoted
        });
        let (before, part) = match cut {
            Some(cut) => (text.get(..cut), text.get(cut + 1..)),
            None => (None, Some(text)),
        };
        left = before;
        part
    })
}

/// Parses an address with or without a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`,
/// `[2001:db8::1]:80`.
fn address_of(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().ok().or_else(|| text.parse().ok().map(|address: SocketAddr| address.ip()));
    address.map(|address: IpAddr| address.to_canonical())
}

fn is_secure(text: &str) -> Option<bool> {
    match text {
        text if text.eq_ignore_ascii_case("https") => Some(true),
        text if text.eq_ignore_ascii_case("http") => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn x(addresses: &[&str], protocols: &[&str]) -> Option<(String, Option<bool>)> {
        let known = "10.0.0.0/8,::1".parse().unwrap();
        let found = from_x_forwarded(addresses.iter().copied(), protocols.iter().copied(), &known)?;
        Some((found.address.map_or("-".to_owned(), |address| address.to_string()), found.is_secure))
    }

    fn forwarded(lines: &[&str]) -> Option<(String, Option<bool>)> {
        let found = from_forwarded(lines.iter().copied(), &"10.0.0.0/8,::1".parse().unwrap())?;
        Some((found.address.map_or("-".to_owned(), |address| address.to_string()), found.is_secure))
    }

    fn is(address: &str, is_secure: Option<bool>) -> Option<(String, Option<bool>)> {
        Some((address.to_owned(), is_secure))
    }

    #[test]
    fn the_last_that_somebody_known_has_named() {
        assert_eq!(x(&["192.0.2.1"], &[]), is("192.0.2.1", None));
        // Entries that the client wrote itself are ignored.
        assert_eq!(x(&["127.0.0.1, 192.0.2.1"], &["https"]), is("192.0.2.1", Some(true)));
        assert_eq!(x(&["127.0.0.1", "192.0.2.1"], &["https", "http"]), is("192.0.2.1", Some(false)));
        assert_eq!(x(&["203.0.113.9, 192.0.2.1, 10.0.0.7"], &["https, http"]), is("192.0.2.1", Some(true)));
        assert_eq!(x(&["192.0.2.1, 10.0.0.7, 10.0.0.8"], &["https"]), is("192.0.2.1", Some(true)));
        assert_eq!(x(&["10.0.0.7"], &[]), is("10.0.0.7", None));
        assert_eq!(x(&["192.0.2.1, unknown"], &[]), is("-", None));
        assert_eq!(x(&["192.0.2.1, "], &["HTTPS"]), is("192.0.2.1", Some(true)));
        assert_eq!(x(&["[2001:db8::1]:80"], &["wss"]), is("2001:db8::1", None));
        assert_eq!(x(&["::ffff:192.0.2.1"], &[]), is("192.0.2.1", None));
        assert_eq!(x(&[], &["https"]), is("-", Some(true)));
        assert_eq!(x(&[""], &[]), None);
    }

    #[test]
    fn what_rfc_7239_has() {
        assert_eq!(forwarded(&["for=192.0.2.60;proto=http;by=203.0.113.43"]), is("192.0.2.60", Some(false)));
        let quoted = r#"for=127.0.0.1, For="[2001:db8:cafe::17]:4711";Proto="https";host="a,b;c""#;
        assert_eq!(forwarded(&[quoted]), is("2001:db8:cafe::17", Some(true)));
        assert_eq!(forwarded(&["for=192.0.2.1;proto=https", "for=10.0.0.7;proto=http"]), is("192.0.2.1", Some(true)));
        assert_eq!(forwarded(&["for=192.0.2.1, for=_hidden;proto=https"]), is("-", Some(true)));
        assert_eq!(forwarded(&["for=192.0.2.1, proto=https"]), is("-", Some(true)));
        assert_eq!(forwarded(&["", " , "]), None);
    }

    #[test]
    fn the_name_that_was_asked_for() {
        let host = |lines: &[&'static str]| host_in_forwarded(lines.iter().copied());
        assert_eq!(host(&["proto=https;host=a.example"]), Some("a.example"));
        assert_eq!(host(&["host=evil.example", "for=192.0.2.1;Host=\"a.example:8443\""]), Some("a.example:8443"));
        assert_eq!(host(&["host=a.example, for=192.0.2.1"]), None);
        assert_eq!(host(&[]), None);
    }

    #[test]
    fn a_list_without_an_end_is_not_read_to_its_end() {
        let many = vec!["10.0.0.1"; 10_000].join(",");
        assert_eq!(x(&["192.0.2.1", &many], &[]), is("10.0.0.1", None));
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text in r#"(for=|proto=https|[0-9a-f:.\[\]]{1,9}|["; ,=]){0,20}"#, other in ".{0,40}") {
            for text in [&text, &other] {
                forwarded(&[text]);
                x(&[text], &[text]);
            }
        }

        /// The address that the proxy appended counts, whatever a client writes.
        #[test]
        fn a_client_cannot_be_another(text in r#"[0-9a-z.,:;= "]{0,40}"#) {
            prop_assert_eq!(x(&[&text, "192.0.2.1"], &[&text, "https"]), is("192.0.2.1", Some(true)));
            prop_assert_eq!(forwarded(&[&text, "for=192.0.2.1;proto=http"]), is("192.0.2.1", Some(false)));
            prop_assert_eq!(x(&[&format!("{text}, 192.0.2.1")], &[]), is("192.0.2.1", None));
            let one_line = format!(r#"{text}, for="192.0.2.1:80";proto=http"#);
            prop_assert_eq!(forwarded(&[&one_line]), is("192.0.2.1", Some(false)));
        }
    }
}
