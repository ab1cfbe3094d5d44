//! Clients behind proxies: the PROXY protocol and forwarding headers.

use std::io;
use std::net::SocketAddr;

use flatbed_network::proxy_protocol::{Header, Progress, read};
use flatbed_network::{Blocks, ForwardedClient, from_forwarded, from_x_forwarded, host_in_forwarded};
use hyper::HeaderMap;
use hyper::header::HeaderName;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::peer::{Peer, RequestScheme};

const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The trusted proxies and their protocols. Other peers are not trusted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    /// Peers whose connections always begin with a PROXY header, version 1 or 2.
    pub proxy_protocol: Blocks,
    /// Peers whose forwarding headers are trusted.
    pub forwarding: Blocks,
    /// True if these proxies write `Forwarded` (RFC 7239), false for `X-Forwarded-For` and `X-Forwarded-Proto`. The
    /// other form is ignored: a proxy that does not know it passes on a client's header.
    pub writes_forwarded: bool,
}

impl Proxies {
    pub(crate) fn begins(&self, peer: &Peer) -> bool {
        self.proxy_protocol.contains(peer.ip())
    }

    pub(crate) fn forwards(&self, peer: &Peer) -> bool {
        self.forwarding.contains(peer.ip())
    }

    pub(crate) fn host<'h>(&self, peer: &Peer, headers: &'h HeaderMap) -> Option<&'h str> {
        if self.forwarding.is_empty() || !self.forwards(peer) {
            return None;
        }
        if self.writes_forwarded {
            let lines = headers.get_all(FORWARDED).iter().map(|line| line.to_str().unwrap_or_default());
            return host_in_forwarded(lines);
        }
        Some(headers.get_all(X_FORWARDED_HOST).iter().next_back()?.to_str().ok()?.rsplit(',').next()?.trim())
    }

    pub(crate) fn client(&self, peer: Peer, headers: &HeaderMap) -> Peer {
        if self.forwarding.is_empty() || !self.forwards(&peer) {
            return peer;
        }
        let Some(ForwardedClient { address, is_secure }) = self.forwarded(headers) else { return peer };
        let address = address.map(|address| SocketAddr::new(address, 0)).or(peer.address);
        Peer { address, is_secure: is_secure.unwrap_or(peer.is_secure) }
    }

    /// Returns the statement of a trusted proxy, which has sent the request.
    fn forwarded(&self, headers: &HeaderMap) -> Option<ForwardedClient> {
        if self.writes_forwarded {
            return from_forwarded(lines(headers, FORWARDED), &self.forwarding);
        }
        from_x_forwarded(lines(headers, X_FORWARDED_FOR), lines(headers, X_FORWARDED_PROTO), &self.forwarding)
    }

    /// Returns the scheme of the address that the client asked for. `sender` is the other end of the connection.
    pub(crate) fn scheme(&self, sender: &Peer, headers: &HeaderMap) -> RequestScheme {
        let is_forwarded = self.forwards(sender);
        let said = if is_forwarded { self.forwarded(headers).and_then(|said| said.is_secure) } else { None };
        // The PROXY protocol replaces the address of the proxy, and most proxies do not state TLS in it.
        let is_direct = !is_forwarded && !self.forwarding.is_empty() && self.proxy_protocol.is_empty();
        match said.or(sender.is_secure.then_some(true)) {
            Some(true) => RequestScheme::Https,
            Some(false) => RequestScheme::Http,
            None if is_direct => RequestScheme::Http,
            None => RequestScheme::Unknown,
        }
    }
}

/// Returns true if any proxy, trusted or not, states that it received the request over TLS. Pages cannot set these
/// headers without a preflight request, so they cannot forge it.
pub(crate) fn is_said_to_be_https(headers: &HeaderMap) -> bool {
    let none = Blocks::default();
    let said = [
        from_x_forwarded(std::iter::empty(), lines(headers, X_FORWARDED_PROTO), &none),
        from_forwarded(lines(headers, FORWARDED), &none),
    ];
    said.into_iter().flatten().any(|said| said.is_secure == Some(true))
}

fn lines(headers: &HeaderMap, name: HeaderName) -> impl DoubleEndedIterator<Item = &str> {
    headers.get_all(name).iter().map(|line| line.to_str().unwrap_or_default())
}

/// Reads the PROXY header of a connection and nothing behind it, and returns the client.
///
/// # Errors
/// Those of the connection, `InvalidData` without a valid header.
pub(crate) async fn read_header(stream: &mut (impl AsyncRead + Unpin), peer: Peer) -> io::Result<Peer> {
    let mut bytes = Vec::new();
    loop {
        match read(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
            Progress::Needs(more) => {
                let begin = bytes.len();
                bytes.resize(begin + more, 0);
                stream.read_exact(bytes.get_mut(begin..).unwrap_or_default()).await?;
            }
            Progress::Complete(Header::Local) => return Ok(peer),
            Progress::Complete(Header::Client { address, is_secure }) => {
                return Ok(match address {
                    Some(address) => Peer::new(address, is_secure),
                    None => Peer { is_secure, ..peer },
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(writes_forwarded: bool) -> Proxies {
        let forwarding = "10.0.0.0/8,unix".parse().unwrap();
        Proxies { forwarding, writes_forwarded, ..Proxies::default() }
    }

    fn client(proxies: &Proxies, from: &str, headers: &[(&str, &str)]) -> String {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        let peer = match from {
            "unix" => Peer { address: None, is_secure: false },
            from => Peer::new(from.parse().unwrap(), false),
        };
        let client = proxies.client(peer, &map);
        format!("{client} {}", client.is_secure)
    }

    #[test]
    fn only_who_is_named_is_believed() {
        let headers =
            [("x-forwarded-for", "192.0.2.1"), ("x-forwarded-proto", "https"), ("forwarded", "for=192.0.2.2")];
        assert_eq!(client(&proxies(false), "10.0.0.1:5", &headers), "192.0.2.1 true");
        assert_eq!(client(&proxies(false), "unix", &headers), "192.0.2.1 true");
        assert_eq!(client(&proxies(true), "10.0.0.1:5", &headers), "192.0.2.2 false");
        assert_eq!(client(&proxies(false), "11.0.0.1:5", &headers), "11.0.0.1:5 false");
        assert_eq!(client(&Proxies::default(), "10.0.0.1:5", &headers), "10.0.0.1:5 false");
        assert_eq!(client(&proxies(false), "10.0.0.1:5", &[]), "10.0.0.1:5 false");
        assert_eq!(client(&proxies(false), "10.0.0.1:5", &[("x-forwarded-for", "x")]), "10.0.0.1:5 false");
    }

    #[test]
    fn the_scheme_is_known_from_tls_and_from_proxies() {
        let scheme = |proxies: &Proxies, from: &str, is_secure: bool, headers: &[(&'static str, &'static str)]| {
            let headers = headers
                .iter()
                .map(|&(name, value)| (HeaderName::from_static(name), hyper::header::HeaderValue::from_static(value)));
            proxies.scheme(&Peer::new(from.parse().unwrap(), is_secure), &headers.collect())
        };
        let (none, known) = (Proxies::default(), proxies(false));
        let (https, http) = ([("x-forwarded-proto", "https")], [("x-forwarded-proto", "http")]);
        assert_eq!(scheme(&none, "192.0.2.1:5", true, &[]), RequestScheme::Https);
        assert_eq!(scheme(&none, "192.0.2.1:5", false, &https), RequestScheme::Unknown);
        assert_eq!(scheme(&known, "10.0.0.1:5", false, &https), RequestScheme::Https);
        assert_eq!(scheme(&known, "10.0.0.1:5", true, &http), RequestScheme::Http);
        assert_eq!(scheme(&known, "10.0.0.1:5", false, &[]), RequestScheme::Unknown);
        assert_eq!(scheme(&known, "192.0.2.1:5", false, &https), RequestScheme::Http);
        let behind = Proxies { proxy_protocol: "10.0.0.2".parse().unwrap(), ..known };
        assert_eq!(scheme(&behind, "192.0.2.1:5", false, &[]), RequestScheme::Unknown);
        let said = |name: &'static str, value: &'static str| {
            let value = hyper::header::HeaderValue::from_static(value);
            is_said_to_be_https(&HeaderMap::from_iter([(HeaderName::from_static(name), value)]))
        };
        assert!(said("x-forwarded-proto", "https") && said("forwarded", "for=192.0.2.1;proto=https"));
        assert!(!said("x-forwarded-proto", "http") && !said("forwarded", "for=https") && !said("x-a", "https"));
    }

    #[test]
    fn the_name_is_the_named_proxys() {
        let headers = [("x-forwarded-host", "a, b.example"), ("forwarded", "host=c.example")];
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        let host = |writes_forwarded, from: &str| {
            let peer = Peer::new(from.parse().unwrap(), false);
            proxies(writes_forwarded).host(&peer, &map).map(str::to_owned)
        };
        assert_eq!(host(false, "10.0.0.1:5").as_deref(), Some("b.example"));
        assert_eq!(host(true, "10.0.0.1:5").as_deref(), Some("c.example"));
        assert_eq!(host(true, "11.0.0.1:5"), None);
    }

    #[tokio::test]
    async fn a_header_and_what_follows() {
        let peer = Peer::new("10.0.0.1:5".parse().unwrap(), false);
        let mut bytes = &b"PROXY TCP4 192.0.2.1 192.0.2.2 7 8\r\nGET"[..];
        assert_eq!(read_header(&mut bytes, peer).await.unwrap().to_string(), "192.0.2.1:7");
        assert_eq!(bytes, b"GET");
        let mut bytes = &b"PROXY UNKNOWN\r\nGET"[..];
        assert_eq!(read_header(&mut bytes, peer).await.unwrap(), peer);
        assert_eq!(
            read_header(&mut &b"GET / HTTP/1.1\r\n"[..], peer).await.unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        assert_eq!(read_header(&mut &b"PROXY"[..], peer).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
