//! Server URLs: `http://[name:password@]host[:port][/prefix]`, or `https://` for callers with TLS.

use std::fmt::{self, Write};

use base64::{Engine, prelude::BASE64_STANDARD};

/// A server's address and the credentials for it.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    is_secure: bool,
    host: String,
    port: u16,
    prefix: String,
    authorization: Option<String>,
}

/// The reason why a text is not a server URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Another scheme than `http://`: this client has no TLS.
    #[error("the URL must start with http:// (put a TLS proxy before the server if it must be https)")]
    Scheme,
    /// Neither `http://` nor `https://`.
    #[error("the URL must start with http:// or https://")]
    NeitherScheme,
    /// No host between the scheme and the port or path.
    #[error("the URL names no host")]
    Host,
    /// A port outside of 1 to 65,535.
    #[error("the URL's port is not a number from 1 to 65535")]
    Port,
    /// `%` without two hexadecimal digits, or invalid UTF-8, in the name or password.
    #[error("the URL's name or password is not percent-encoded UTF-8")]
    Credentials,
    /// A query, a fragment, a space or a control character.
    #[error("the URL may hold a host, a port and a path only")]
    Character,
}

impl Url {
    /// Parses `http://[name:password@]host[:port][/prefix]`. The default port is 80. Name and password are
    /// percent-decoded (RFC 3986, 3.2.1); trailing slashes of the prefix are dropped.
    ///
    /// # Errors
    /// [`UrlError`] names the defect.
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        Url::parse_rest(text.strip_prefix("http://").ok_or(UrlError::Scheme)?, false)
    }

    /// Parses `http://` as [`Url::parse`] does, or `https://` with the default port 443.
    ///
    /// # Errors
    /// [`UrlError`] names the defect.
    pub fn parse_either(text: &str) -> Result<Url, UrlError> {
        match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => Url::parse_rest(rest, false),
            (None, Some(rest)) => Url::parse_rest(rest, true),
            (None, None) => Err(UrlError::NeitherScheme),
        }
    }

    /// Refuses an `@` in the path. In the address of a server it ends a password with an unescaped slash, which
    /// messages would show as a path.
    ///
    /// # Errors
    /// [`UrlError::Credentials`].
    pub fn of_server(self) -> Result<Url, UrlError> {
        if self.prefix.contains('@') { Err(UrlError::Credentials) } else { Ok(self) }
    }

    fn parse_rest(rest: &str, is_secure: bool) -> Result<Url, UrlError> {
        if rest.contains(|c: char| c.is_control() || c == ' ' || c == '?' || c == '#') {
            return Err(UrlError::Character);
        }
        let (authority, prefix) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let (credentials, address) = match authority.rsplit_once('@') {
            Some((credentials, address)) => (Some(credentials), address),
            None => (None, authority),
        };
        let authorization = credentials.map(basic).transpose()?;
        // An IPv6 address has colons inside brackets (RFC 3986, 3.2.2).
        let host_end = address.find(']').map_or(0, |at| at + 1);
        let (host, port) = match address[host_end..].find(':') {
            Some(at) => (&address[..host_end + at], address[host_end + at + 1..].parse().map_err(|_| UrlError::Port)?),
            None => (address, if is_secure { 443 } else { 80 }),
        };
        if port == 0 {
            return Err(UrlError::Port);
        }
        if host.is_empty() {
            return Err(UrlError::Host);
        }
        let prefix = prefix.trim_end_matches('/').to_owned();
        Ok(Url { is_secure, host: host.to_owned(), port, prefix, authorization })
    }

    /// Returns `host:port`, for the `Host` header and for connecting.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Returns the host; an IPv6 address is in brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns whether the scheme is `https://`.
    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// Returns the path on the server: the URL's prefix and `path`, which starts with a slash.
    pub fn path(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    /// Returns the value of the `Authorization` header, if the URL has credentials.
    pub fn authorization(&self) -> Option<&str> {
        self.authorization.as_deref()
    }
}

/// Omits the password, so that an address can be logged.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_secure { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}{}", self.host, self.port, self.prefix)
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Percent-encodes one path segment, except for RFC 3986's unreserved characters, so that a slash in a database name or
/// document id stays inside its segment.
pub fn encode_segment(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            _ => {
                // Writing into a String cannot fail.
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

fn basic(credentials: &str) -> Result<String, UrlError> {
    let (name, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    let pair = format!("{}:{}", decode(name)?, decode(password)?);
    Ok(format!("Basic {}", BASE64_STANDARD.encode(pair)))
}

fn decode(text: &str) -> Result<String, UrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|d| char::from(d).to_digit(16)).and_then(|d| u8::try_from(d).ok());
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(UrlError::Credentials) };
        bytes.push(high * 16 + low);
    }
    String::from_utf8(bytes).map_err(|_| UrlError::Credentials)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let url = Url::parse("http://anna:p%40ss%3A@couch.example:5985/db/").unwrap();
        assert_eq!(url.authority(), "couch.example:5985");
        assert_eq!(url.path("/x"), "/db/x");
        // base64 of "anna:p@ss:"
        assert_eq!(url.authorization(), Some("Basic YW5uYTpwQHNzOg=="));
        assert_eq!(url.to_string(), "http://couch.example:5985/db");

        let url = Url::parse("http://[::1]").unwrap();
        assert_eq!((url.authority().as_str(), url.path("/").as_str()), ("[::1]:80", "/"));
        assert_eq!(Url::parse("http://[::1]:81/").unwrap().authority(), "[::1]:81");
        assert!(!url.is_secure());
        let url = Url::parse_either("https://anna:x@couch.example/db").unwrap();
        assert_eq!(
            (url.is_secure(), url.host(), url.authority().as_str()),
            (true, "couch.example", "couch.example:443")
        );
        assert_eq!(url.to_string(), "https://couch.example:443/db");
        assert_eq!(Url::parse_either("http://a").unwrap(), Url::parse("http://a").unwrap());
        assert_eq!(Url::parse_either("ftp://a"), Err(UrlError::NeitherScheme));
    }

    #[test]
    fn refused() {
        for (text, error) in [
            ("https://a", UrlError::Scheme),
            ("a:5984", UrlError::Scheme),
            ("http://", UrlError::Host),
            ("http://:80", UrlError::Host),
            ("http://a:", UrlError::Port),
            ("http://a:0", UrlError::Port),
            ("http://a:65536", UrlError::Port),
            ("http://%4:b@a", UrlError::Credentials),
            ("http://a?b", UrlError::Character),
            ("http://a\r\nx: y", UrlError::Character),
        ] {
            assert_eq!(Url::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn a_password_with_a_slash_is_no_path() {
        let parsed = |text| Url::parse(text).and_then(Url::of_server);
        assert_eq!(parsed("http://anna:12/3@couch.example/db"), Err(UrlError::Credentials));
        assert_eq!(parsed("http://anna:12%2F3@couch.example/db").unwrap().path(""), "/db");
    }

    #[test]
    fn segments() {
        assert_eq!(encode_segment("a/b+ü"), "a%2Fb%2B%C3%BC");
    }
}
