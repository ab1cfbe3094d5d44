//! Where a replication reads from and writes to.

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

/// Makes a connection to the server that runs the replication, in memory.
pub type LocalConnect = Arc<dyn Fn() -> DuplexStream + Send + Sync>;

/// How peers are reached.
#[derive(Clone)]
pub struct Ways {
    /// This server itself.
    pub local: LocalConnect,
    /// All others.
    pub network: Network,
    /// Servers behind `https://`.
    pub tls: Tls,
    /// For what peers answer.
    pub memory: Memory,
    /// The time of replications: of checkpoints, sessions, and pauses.
    pub clock: Clock,
}

/// Headers that one endpoint may have.
const HEADERS_MAX: usize = 50;

/// Their names and values together.
const HEADERS_BYTES_MAX: usize = 16 << 10;

/// The longest address: it is shown in many places, and stands in the head of each request.
const ADDRESS_BYTES_MAX: usize = 8 << 10;

#[derive(Clone)]
pub(crate) enum Place {
    Remote(Url),
    /// A database of this server.
    Local(String),
}

/// A database, and as whom to speak to it. Shown without credentials.
#[derive(Clone)]
pub struct Endpoint {
    pub(crate) place: Place,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

impl Endpoint {
    /// From `source` or `target` of a replication: a name of a database of this server, an URL, or an object with `url`,
    /// `headers` and `auth.basic`.
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
            Place::Remote(url)
        } else {
            let name = text.trim_matches('/');
            if name.is_empty() {
                return Err(invalid("names no database"));
            }
            Place::Local(name.to_owned())
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

    /// The database's path on its server.
    pub(crate) fn path(&self) -> String {
        match &self.place {
            Place::Remote(url) => url.path(""),
            Place::Local(name) => format!("/{}", encode_segment(name)),
        }
    }

    /// The database's name on this server.
    pub fn local_name(&self) -> Option<&str> {
        match &self.place {
            Place::Local(name) => Some(name),
            Place::Remote(_) => None,
        }
    }

    /// What makes this endpoint another one for a replication's id: its address and as whom it is spoken to, which is
    /// hashed and never shown.
    pub(crate) fn identity(&self) -> String {
        let mut identity = self.to_string();
        for (name, value) in &self.headers {
            if name == header::AUTHORIZATION {
                // The name of a user, not the password: that may change under a replication.
                let text = value.to_str().unwrap_or_default();
                let decoded = text.strip_prefix("Basic ").and_then(|text| BASE64.decode(text).ok()).unwrap_or_default();
                identity.push('\n');
                identity.push_str(String::from_utf8_lossy(&decoded).split(':').next().unwrap_or_default());
            }
        }
        identity
    }
}

/// Later ones take the place of earlier ones.
fn push(headers: &mut Vec<(HeaderName, HeaderValue)>, name: &str, value: &str) -> Option<()> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    // These are how messages are framed, and ours to set.
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
            Place::Remote(url) => write!(f, "{url}/"),
            Place::Local(name) => f.write_str(name),
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
