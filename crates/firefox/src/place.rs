//! The host and port to which a client sent its request, which it signs.

use flatbed_http::Request;
use hyper::header;

use crate::hawk::HawkAuthority;

/// The URL by which clients know this server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicUrl {
    text: String,
    place: HawkAuthority,
    prefix: String,
}

/// The error for a text that is not such a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a URL such as https://sync.example.org or https://example.org/sync, without a query")]
pub struct InvalidUrl;

impl std::str::FromStr for PublicUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<PublicUrl, InvalidUrl> {
        let text = text.trim_end_matches('/');
        let uri: hyper::Uri = text.parse().map_err(|_| InvalidUrl)?;
        let port = match uri.scheme_str() {
            Some("https") => 443,
            Some("http") => 80,
            _ => return Err(InvalidUrl),
        };
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or(InvalidUrl)?;
        if uri.query().is_some() || authority.host().is_empty() || text.contains('#') {
            return Err(InvalidUrl);
        }
        // In lower case, as browsers sign it.
        let place =
            HawkAuthority { host: authority.host().to_ascii_lowercase(), port: authority.port_u16().unwrap_or(port) };
        Ok(PublicUrl { text: text.to_owned(), place, prefix: uri.path().trim_end_matches('/').to_owned() })
    }
}

impl std::fmt::Display for PublicUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl PublicUrl {
    /// Returns the path before all others, such as `/sync`, or nothing.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// Returns the path behind a prefix; `None` if it has another one.
pub(crate) fn behind<'p>(path: &'p str, prefix: &str) -> Option<&'p str> {
    path.strip_prefix(prefix).filter(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
}

/// Returns the host and port to which a request was sent: those of the public URL, else those that a trusted proxy
/// states, else those of the request itself. `None`: there are none.
pub(crate) fn place_of(request: &Request, public_url: Option<&PublicUrl>) -> Option<HawkAuthority> {
    if let Some(url) = public_url {
        return Some(url.place.clone());
    }
    let of_uri = || request.uri.authority().map(|authority| authority.as_str());
    let said = request.forwarded_host.as_deref().or_else(of_uri).or_else(|| request.header(header::HOST))?;
    let default = if request.is_secure { 443 } else { 80 };
    // The colons of an IPv6 address are inside brackets.
    match said.rsplit_once(':').filter(|(_, port)| !port.contains(']')) {
        None => Some(HawkAuthority { host: said.to_owned(), port: default }),
        Some((host, port)) => Some(HawkAuthority { host: host.to_owned(), port: port.parse().ok()? }),
    }
}

/// Returns the URL by which the client knows this server. `mount`: the path that the surface is mounted at.
pub(crate) fn url_of(request: &Request, public_url: Option<&PublicUrl>, mount: &str) -> Option<String> {
    if let Some(url) = public_url {
        return Some(url.to_string());
    }
    let HawkAuthority { host, port } = place_of(request, None)?;
    let is_plain = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte));
    let (scheme, default) = if request.is_secure { ("https", 443) } else { ("http", 80) };
    let port = if port == default { String::new() } else { format!(":{port}") };
    is_plain.then(|| format!("{scheme}://{host}{port}{mount}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let of = |text: &str| text.parse::<PublicUrl>().ok().map(|url| (url.to_string(), url.place, url.prefix));
        let place = |host: &str, port| HawkAuthority { host: host.into(), port };
        let sync = place("sync.example", 443);
        assert_eq!(of("https://Sync.example/"), Some(("https://Sync.example".into(), sync, "".into())));
        let deep = ("http://a.example:8080/x/sync".into(), place("a.example", 8080), "/x/sync".into());
        assert_eq!(of("http://a.example:8080/x/sync/"), Some(deep));
        assert_eq!(of("https://[::1]").map(|(_, place, _)| place), Some(place("[::1]", 443)));
        for text in
            ["", "a.example", "ftp://a.example", "https://", "https://u:p@a", "https://a/?x=1", "https://a/#b", "/a"]
        {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn prefixes() {
        assert_eq!(behind("/sync/1.5/1", "/sync"), Some("/1.5/1"));
        assert_eq!(behind("/sync", "/sync"), Some(""));
        assert_eq!(behind("/sync?x", "/sync"), Some("?x"));
        assert_eq!(behind("/synced/1.5", "/sync"), None);
        assert_eq!(behind("/1.5/1", ""), Some("/1.5/1"));
    }
}
