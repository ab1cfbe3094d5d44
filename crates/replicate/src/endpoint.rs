//! The endpoints of a replication.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use flatbed_client::{Url, encode_segment};
use flatbed_clock::Clock;
use flatbed_flatten::json::Value;
use flatbed_outward::{Network, Tls};
use hyper::header::{self, HeaderName, HeaderValue};
use tokio::io::DuplexStream;

use crate::error::{Error, Result};
use crate::memory::Memory;

/// Makes an in-memory connection to the server that runs the replication.
pub type LocalConnect = Arc<dyn Fn() -> DuplexStream + Send + Sync>;

/// The connections and resources of replications.
#[derive(Clone)]
pub struct PeerAccess {
    /// Connects to this server.
    pub local: LocalConnect,
    /// Connects to all other servers.
    pub network: Network,
    /// TLS for servers behind `https://`.
    pub tls: Tls,
    /// The memory for answers of peers.
    pub memory: Memory,
    /// The clock for checkpoints, sessions and pauses.
    pub clock: Clock,
}

const HEADERS_MAX: usize = 50;

const HEADERS_BYTES_MAX: usize = 16 << 10;

/// The longest URL, in bytes. It is shown in many places and part of each request's head.
const ADDRESS_BYTES_MAX: usize = 8 << 10;

#[derive(Clone)]
pub(crate) enum EndpointPlace {
    Remote(Url),
    /// A database of this server.
    Local(String),
}

/// A database and its credentials. Displayed without credentials.
#[derive(Clone)]
pub struct Endpoint {
    pub(crate) place: EndpointPlace,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

impl Endpoint {
    /// Parses `source` or `target` of a replication: the name of a database of this server, a URL, or an object with
    /// `url`, `headers` and `auth.basic`.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`], [`Error::Url`].
    pub fn parse(value: Option<&Value<'_>>, member: &'static str) -> Result<Endpoint> {
        let invalid = |what: &str| Error::InvalidSpec(format!("`{member}` {what}"));
        let (text, object) = match value {
            Some(Value::String(text)) => (text.as_ref(), None),
            Some(object @ Value::Object(_)) => {
                let url = object.get("url").and_then(Value::as_str);
                (url.ok_or_else(|| invalid("has no member `url`"))?, Some(object))
            }
            _ => return Err(invalid("must be a string or an object")),
        };
        if text.len() > ADDRESS_BYTES_MAX {
            return Err(invalid("is longer than 8 kB"));
        }
        let mut headers = Vec::new();
        let place = if text.contains("://") {
            let url = Url::parse_either(text).map_err(|error| Error::Url(member, error))?;
            if url.path("").is_empty() {
                return Err(invalid("names no database"));
            }
            if let Some(authorization) = url.authorization() {
                push(&mut headers, "authorization", authorization).ok_or_else(|| invalid("has bad credentials"))?;
            }
            EndpointPlace::Remote(url)
        } else {
            let name = text.trim_matches('/');
            if name.is_empty() {
                return Err(invalid("names no database"));
            }
            EndpointPlace::Local(name.to_owned())
        };
        if let Some(Value::Object(members)) = object.and_then(|object| object.get("headers")) {
            if members.len() > HEADERS_MAX {
                return Err(invalid("has too many headers"));
            }
            for (name, value) in members {
                let value = value.as_str().ok_or_else(|| invalid("has a header that is no string"))?;
                push(&mut headers, name, value).ok_or_else(|| invalid("has a header that cannot be sent"))?;
            }
        }
        if let Some(basic) = object.and_then(|object| object.get("auth")).and_then(|auth| auth.get("basic")) {
            let text = |name: &str| basic.get(name).and_then(Value::as_str);
            let (Some(name), Some(password)) = (text("username"), text("password")) else {
                return Err(invalid("has `auth.basic` without `username` and `password`"));
            };
            let credentials = format!("Basic {}", BASE64.encode(format!("{name}:{password}")));
            push(&mut headers, "authorization", &credentials).ok_or_else(|| invalid("has bad credentials"))?;
        }
        if headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>() > HEADERS_BYTES_MAX {
            return Err(invalid("has headers longer than 16 kB"));
        }
        Ok(Endpoint { place, headers })
    }

    pub(crate) fn path(&self) -> String {
        match &self.place {
            EndpointPlace::Remote(url) => url.path(""),
            EndpointPlace::Local(name) => format!("/{}", encode_segment(name)),
        }
    }

    /// Returns the database's name on this server.
    pub fn local_name(&self) -> Option<&str> {
        match &self.place {
            EndpointPlace::Local(name) => Some(name),
            EndpointPlace::Remote(_) => None,
        }
    }

    /// Returns the text that identifies this endpoint in a replication's id: the URL and the user. It is hashed and
    /// never shown.
    pub(crate) fn identity(&self) -> String {
        let mut identity = self.to_string();
        for (name, value) in &self.headers {
            if name == header::AUTHORIZATION {
                // Without the password, which may change during a replication.
                let text = value.to_str().unwrap_or_default();
                let decoded = text.strip_prefix("Basic ").and_then(|text| BASE64.decode(text).ok()).unwrap_or_default();
                identity.push('\n');
                identity.push_str(String::from_utf8_lossy(&decoded).split(':').next().unwrap_or_default());
            }
        }
        identity
    }
}

/// Sets a header, replacing one of the same name.
fn push(headers: &mut Vec<(HeaderName, HeaderValue)>, name: &str, value: &str) -> Option<()> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    // These headers frame messages and are set by this program.
    if [header::HOST, header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION].contains(&name) {
        return Some(());
    }
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    headers.retain(|(found, _)| *found != name);
    headers.push((name, value));
    Some(())
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            EndpointPlace::Remote(url) => write!(f, "{url}/"),
            EndpointPlace::Local(name) => f.write_str(name),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatbed_flatten::json::{Limits, parse};

    fn endpoint(text: &str) -> Result<Endpoint> {
        Endpoint::parse(Some(&parse(text.as_bytes(), &Limits::default()).unwrap()), "source")
    }

    #[test]
    fn secrets_are_not_shown() {
        for text in [
            r#""http://anna:s3cret@example.org:5984/db""#,
            r#"{"url":"http://example.org:5984/db","auth":{"basic":{"username":"anna","password":"s3cret"}}}"#,
            r#"{"url":"http://example.org:5984/db/","headers":{"Authorization":"Basic YW5uYTpzM2NyZXQ="}}"#,
        ] {
            let found = endpoint(text).unwrap();
            assert_eq!(found.to_string(), "http://example.org:5984/db/");
            assert_eq!(format!("{found:?}"), "http://example.org:5984/db/");
            assert_eq!(found.identity(), "http://example.org:5984/db/\nanna");
            assert_eq!(found.headers[0].1.to_str().unwrap(), "Basic YW5uYTpzM2NyZXQ=");
        }
    }

    #[test]
    fn what_is_no_endpoint() {
        for text in ["1", "null", "{}", "\"\"", "\"http://host\"", r#"{"url":"db","headers":{"a b":"c"}}"#] {
            assert!(endpoint(text).is_err(), "{text}");
        }
        let error = endpoint("\"ftp://x:secret@host/db\"").unwrap_err().to_string();
        assert!(error.contains("https://") && !error.contains("secret"), "{error}");
        assert_eq!(endpoint("\"a/b\"").unwrap().path(), "/a%2Fb");
    }
}
