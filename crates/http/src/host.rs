//! Checks the host of a request: `Host` in HTTP/1, `:authority` in HTTP/2.
//!
//! Without administrators every client has all rights, and only this machine can connect. A browser on this machine
//! can connect too and may show hostile pages. With DNS rebinding, a page whose name resolves to 127.0.0.1 has the
//! same origin as this server for the browser. Only the name in the request reveals it.

use std::net::{Ipv4Addr, Ipv6Addr};

use hyper::header::{self, HeaderMap};
use hyper::http::uri::{Authority, Uri};
use hyper::{StatusCode, Version};

use crate::rejection::{Rejection, Result};

/// Checks that a request names its server exactly once and consistently. `only_loopback`: also that it uses a
/// loopback name, which DNS cannot redirect.
///
/// An HTTP/1.0 request may omit the host: browsers do not send such requests.
///
/// # Errors
/// 400 if the host is missing or ambiguous, 403 if the name is not allowed.
pub(crate) fn check(version: Version, uri: &Uri, headers: &HeaderMap, only_loopback: bool) -> Result<()> {
    if version <= Version::HTTP_11 && uri.scheme().is_none() && uri.authority().is_some() {
        // RFC 9112, 3.2.3: only a `CONNECT` request has a target without a path.
        return Err(Rejection::bad_request("The request's target has no path"));
    }
    let mut named = headers.get_all(header::HOST).iter();
    let host = named.next();
    if named.next().is_some() {
        return Err(Rejection::bad_request("Several Host headers"));
    }
    let is_missing = match version {
        Version::HTTP_09 | Version::HTTP_10 => false,
        Version::HTTP_11 => host.is_none(),
        _ => host.is_none() && uri.authority().is_none(),
    };
    if is_missing {
        return Err(Rejection::bad_request("Host header is missing"));
    }
    if uri.authority().is_none() && host.is_some_and(|host| is_plainly_loopback(host.as_bytes())) {
        return Ok(());
    }
    let host = match host {
        None => None,
        // A target without an authority has an empty `Host` (RFC 9112, 3.2), which means nothing to a server.
        Some(host) if host.is_empty() && uri.authority().is_none() && !only_loopback => return Ok(()),
        Some(host) => {
            let host = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
            Some(host.ok_or_else(|| Rejection::bad_request("Host header is invalid"))?)
        }
    };
    if let (Some(host), Some(target)) = (&host, uri.authority())
        && !is_same(host, target)
    {
        return Err(Rejection::bad_request("Host header and the request's target disagree"));
    }
    for authority in host.as_ref().into_iter().chain(uri.authority()) {
        if !is_host_and_port(authority) {
            return Err(Rejection::bad_request("Host header is invalid"));
        }
        if only_loopback && !is_loopback(authority.host()) {
            let reason = "Without administrators only localhost, 127.0.0.0/8 and [::1] are taken as Host.";
            return Err(Rejection::new(StatusCode::FORBIDDEN, "forbidden", reason));
        }
    }
    Ok(())
}

fn is_plainly_loopback(host: &[u8]) -> bool {
    let port = host.strip_prefix(b"127.0.0.1:").or(host.strip_prefix(b"localhost:"));
    let number = |digits: &[u8]| digits.iter().fold(0, |number, digit| 10 * number + u32::from(digit - b'0'));
    port.is_some_and(|port| {
        matches!(port.len(), 1..=5) && port.iter().all(u8::is_ascii_digit) && number(port) <= u32::from(u16::MAX)
    })
}

fn is_host_and_port(authority: &Authority) -> bool {
    let port = authority.as_str().strip_prefix(authority.host());
    port.is_some_and(|port| matches!(port, "" | ":") || authority.port_u16().is_some())
}

fn is_same(one: &Authority, other: &Authority) -> bool {
    let port = |authority: &Authority| authority.port_u16().unwrap_or(80);
    one.host().eq_ignore_ascii_case(other.host()) && port(one) == port(other)
}

/// Returns true for names of this machine that do not depend on DNS.
fn is_loopback(host: &str) -> bool {
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    host.eq_ignore_ascii_case("localhost")
        || host.parse().is_ok_and(|host: Ipv4Addr| host.is_loopback())
        || v6.is_some_and(|host| host.parse() == Ok(Ipv6Addr::LOCALHOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(version: Version, target: &str, hosts: &[&str], only_loopback: bool) -> u16 {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, host.parse().unwrap());
        }
        let checked = check(version, &target.parse().unwrap(), &headers, only_loopback);
        checked.map_or_else(|failure| failure.status.as_u16(), |()| 200)
    }

    #[test]
    fn only_names_of_this_machine() {
        let own = [
            "localhost",
            "LocalHost:5984",
            "127.0.0.1",
            "127.0.0.1:1",
            "127.0.0.1:65535",
            "127.9.8.7:5984",
            "[::1]",
            "[::1]:5984",
        ];
        for host in own {
            assert_eq!(status(Version::HTTP_11, "/", &[host], true), 200, "{host}");
            assert_eq!(status(Version::HTTP_2, &format!("http://{host}/"), &[], true), 200, "{host}");
            assert_eq!(status(Version::HTTP_10, "/", &[host], true), 200, "{host}");
        }
        let others = [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil-localhost",
            "10.0.0.1",
            "128.0.0.1",
            "0.0.0.0",
            "127.1",
            "[::2]:5984",
            "[::]",
        ];
        for host in others {
            assert_eq!(status(Version::HTTP_11, "/", &[host], true), 403, "{host}");
            assert_eq!(status(Version::HTTP_11, "/", &[host], false), 200, "{host}");
            assert_eq!(status(Version::HTTP_2, &format!("http://{host}/"), &[], true), 403, "{host}");
            assert_eq!(status(Version::HTTP_10, "/", &[host], true), 403, "{host}");
        }
        for host in [
            "",
            "a b",
            "localhost:x",
            "localhost:65536",
            "user@localhost",
            "localhost, evil",
            "[::1",
            "http://localhost",
        ] {
            assert_eq!(status(Version::HTTP_11, "/", &[host], true), 400, "{host}");
        }
    }

    #[test]
    fn one_host_that_agrees_with_the_target() {
        for only_loopback in [false, true] {
            assert_eq!(status(Version::HTTP_11, "/", &[], only_loopback), 400);
            assert_eq!(status(Version::HTTP_10, "/", &[], only_loopback), 200);
            assert_eq!(status(Version::HTTP_2, "/", &[], only_loopback), 400);
            for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
                assert_eq!(status(version, "/", &["localhost", "localhost"], only_loopback), 400, "{version:?}");
                let absolute = |host| status(version, "http://LOCALHOST/db", &[host], only_loopback);
                assert_eq!((absolute("localhost:80"), absolute("localhost:81"), absolute("a")), (200, 400, 400));
            }
        }
        assert_eq!(status(Version::HTTP_11, "/", &[""], false), 200);
        assert_eq!(status(Version::HTTP_11, "http://localhost/", &[""], false), 400);
        for target in ["localhost", "127.0.0.1:1", "_up"] {
            assert_eq!(status(Version::HTTP_11, target, &[target], false), 400, "{target}");
        }
    }
}
