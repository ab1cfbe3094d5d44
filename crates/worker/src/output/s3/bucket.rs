//! A bucket of an S3-compatible store: objects are put and deleted, whole, and listed by what their keys begin with.

use std::time::Duration;

use bytes::Bytes;
use flatbed_client::encode_segment;
use flatbed_clock::Clock;
use hyper::Method;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::sign::{Signed, Signer, encode_key, hash, timestamp};
use crate::failure::Failure;
use crate::output::Refused;
use crate::peer::{Answer, Bounds, Peer, PeerError};
use crate::retry::retry_after;
use crate::secret::Secret;

/// What is read of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// What is read of a list of keys, and how many are asked for.
const LIST_BYTES_MAX: usize = 1 << 20;
const LIST_MAX: usize = 200;

/// The header in which an object keeps what tells its bytes from others.
const DIGEST: &str = "x-amz-meta-flatbed-digest";

/// What is longer is hashed where no other work waits for it.
const HASH_HERE_BYTES_MAX: usize = 256 << 10;

/// The service's words for what this object alone causes. All else is the bucket's state, also where its status is 400 (a clock that
/// is late, a region that is another, a token that has ended, a request that took too long) or 409.
const POISON: [&str; 5] =
    ["KeyTooLongError", "EntityTooLarge", "InvalidObjectName", "XMinioInvalidObjectName", "MetadataTooLarge"];

/// A bucket.
#[derive(Debug)]
pub struct Bucket {
    peer: Peer,
    /// Before the key: `/BUCKET` where the server's name does not have it.
    prefix: String,
    /// `None`: nothing is signed.
    signer: Option<Signer>,
    session_token: Option<Secret>,
    time_max: Duration,
}

impl Bucket {
    /// At a server whose name has the bucket's in it (`in_path`: `None`), or with the bucket's name in the path.
    pub fn new(
        peer: Peer,
        in_path: Option<&str>,
        signer: Option<Signer>,
        session_token: Option<Secret>,
        time_max: Duration,
    ) -> Bucket {
        let prefix = in_path.map_or_else(String::new, |name| format!("/{}", encode_key(name)));
        Bucket { peer, prefix, signer, session_token, time_max }
    }

    /// The clock that it takes the time from.
    pub fn clock(&self) -> &Clock {
        self.peer.clock()
    }

    /// Stores an object in the place of what is there, with a digest if one is given.
    ///
    /// # Errors
    /// [`Refused`].
    pub async fn put(&self, key: &str, content_type: &str, digest: &str, body: Bytes) -> Result<(), Refused> {
        let kind = if is_plain(content_type) { content_type } else { "application/octet-stream" };
        let digest = if is_plain(digest) { digest } else { "" };
        let said = Said { path: self.path(key), kind, digest, ..Said::default() };
        self.call(Method::PUT, said, body).await.map(drop)
    }

    /// The digest with which an object was stored; `None` where there is no object, or none with one, or no answer.
    pub async fn digest(&self, key: &str) -> Option<String> {
        let said = Said { path: self.path(key), ..Said::default() };
        let answer = self.call(Method::HEAD, said, Bytes::new()).await.ok()?;
        Some(answer.headers.get(DIGEST)?.to_str().ok()?.to_owned())
    }

    /// Keys that begin so, at most some hundreds; and where the next ones begin, if there are more.
    ///
    /// # Errors
    /// [`Refused`].
    pub async fn list(&self, prefix: &str, after: Option<&str>) -> Result<(Vec<String>, Option<String>), Refused> {
        let after = after.map(|after| format!("continuation-token={}&", encode_segment(after))).unwrap_or_default();
        let prefix = encode_segment(prefix);
        let query = format!("{after}encoding-type=url&list-type=2&max-keys={LIST_MAX}&prefix={prefix}");
        let path = if self.prefix.is_empty() { "/".to_owned() } else { self.prefix.clone() };
        let said = Said { path, query, bytes_max: LIST_BYTES_MAX, ..Said::default() };
        let answer = self.call(Method::GET, said, Bytes::new()).await?;
        listed(&String::from_utf8_lossy(&answer.body))
            .ok_or_else(|| Refused::failed(Failure::Store(answer.status), "the bucket's list of keys is none"))
    }

    /// Deletes an object, if it is there.
    ///
    /// # Errors
    /// [`Refused`].
    pub async fn delete(&self, key: &str) -> Result<(), Refused> {
        let said = Said { path: self.path(key), ..Said::default() };
        self.call(Method::DELETE, said, Bytes::new()).await.map(drop)
    }

    fn path(&self, key: &str) -> String {
        format!("{}/{}", self.prefix, encode_key(key))
    }

    async fn call(&self, method: Method, said: Said<'_>, body: Bytes) -> Result<Answer, Refused> {
        let Said { mut path, query, kind, digest, bytes_max } = said;
        let whole = self.peer.url().path(&path);
        let now = self.clock().unix_seconds();
        let body_hash = if body.len() > HASH_HERE_BYTES_MAX {
            let body = body.clone();
            let hashing = tokio::task::spawn_blocking(move || hash(&body)).await;
            hashing.map_err(|error| Refused::failed(Failure::Store(0), error))?
        } else {
            hash(&body)
        };
        let (date, host) = (timestamp(now), self.peer.host());
        let mut headers = vec![
            ("content-type", kind),
            ("host", host.as_str()),
            ("x-amz-content-sha256", body_hash.as_str()),
            ("x-amz-date", date.as_str()),
            (DIGEST, digest),
            ("x-amz-security-token", self.session_token.as_ref().map_or("", Secret::expose)),
        ];
        headers.retain(|(_, value)| !value.is_empty());
        let signed =
            Signed { method: method.as_str(), path: &whole, query: &query, headers: &headers, body_hash: &body_hash };
        let authorization = self.signer.as_ref().map(|signer| signer.sign(&signed, &date));
        let unsendable = || Refused::failed(Failure::Store(0), "a header of the request cannot be sent");
        let mut sent = HeaderMap::new();
        let all = headers.iter().map(|(name, value)| (*name, *value));
        for (name, value) in all.chain(authorization.as_deref().map(|value| (header::AUTHORIZATION.as_str(), value))) {
            // The connection's own.
            if name != "host" {
                let mut value = HeaderValue::from_str(value).map_err(|_| unsendable())?;
                value.set_sensitive(matches!(name, "authorization" | "x-amz-security-token"));
                sent.insert(HeaderName::try_from(name).map_err(|_| unsendable())?, value);
            }
        }
        if !query.is_empty() {
            path = format!("{path}?{query}");
        }
        let bounds = Bounds { bytes_max, time_max: self.time_max };
        match self.peer.call(method, &path, &sent, body, bounds).await {
            Ok(answer) if (200..300).contains(&answer.status) => Ok(answer),
            Ok(answer) => Err(Refused::Failed {
                failure: failure(answer.status, &answer.body),
                error: format!("{} {}", answer.status, String::from_utf8_lossy(&answer.body)),
                retry_after: answer.retry_after.as_deref().and_then(|header| retry_after(header, now)),
            }),
            Err(error @ (PeerError::Broken(_) | PeerError::Late | PeerError::TooLarge(_))) => {
                Err(Refused::failed(Failure::Connection, error))
            }
        }
    }
}

/// What a request says but for its body.
struct Said<'r> {
    path: String,
    query: String,
    kind: &'r str,
    digest: &'r str,
    bytes_max: usize,
}

impl Default for Said<'_> {
    fn default() -> Self {
        Said { path: String::new(), query: String::new(), kind: "", digest: "", bytes_max: ANSWER_BYTES_MAX }
    }
}

/// Whether a text is signed as it is sent: printable, and without spaces that are made fewer on the way.
fn is_plain(text: &str) -> bool {
    let is_printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    !text.is_empty() && is_printable && text.trim() == text && !text.contains("  ")
}

/// Keys of a list in XML, and where it goes on. `None`: it is no list, or goes on nowhere.
fn listed(text: &str) -> Option<(Vec<String>, Option<String>)> {
    let inner = |name: &str| text.split_once(&format!("<{name}>"))?.1.split_once('<').map(|(inside, _)| inside.trim());
    text.contains("<ListBucketResult").then_some(())?;
    let is_encoded = inner("EncodingType") == Some("url");
    let mut keys = Vec::new();
    for rest in text.split("<Key>").skip(1) {
        let key = plain_text(rest.split_once("</Key>")?.0)?;
        keys.push(if is_encoded { decoded(&key)? } else { key });
    }
    let next = match inner("IsTruncated") {
        Some("true") => Some(plain_text(inner("NextContinuationToken")?)?),
        _ => None,
    };
    Some((keys, next))
}

/// A text of XML.
fn plain_text(mut text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    while let Some((before, after)) = text.split_once('&') {
        let (name, after) = after.split_once(';')?;
        plain.push_str(before);
        plain.push(match name {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            name => {
                let number = name.strip_prefix('#')?;
                let hexadecimal = number.strip_prefix('x').map(|digits| u32::from_str_radix(digits, 16));
                char::from_u32(hexadecimal.unwrap_or_else(|| number.parse()).ok()?)?
            }
        });
        text = after;
    }
    plain.push_str(text);
    Some(plain)
}

/// What is percent-encoded, with `+` for spaces.
fn decoded(text: &str) -> Option<String> {
    // A form's value is encoded so. What would end it there is encoded in it.
    let form = format!("k={}", text.replace('&', "%26"));
    form_urlencoded::parse(form.as_bytes()).next().map(|(_, value)| value.into_owned())
}

/// What an answer means, by its status and the service's word, which stands in XML: `<Error><Code>NoSuchBucket</Code>...`.
fn failure(status: u16, body: &[u8]) -> Failure {
    let text = String::from_utf8_lossy(body);
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map(|(code, _)| code.trim());
    match (status, code) {
        (400..=499, Some(code)) if POISON.contains(&code) => Failure::TooLarge,
        // Of a proxy on the way, which has no such words.
        (413, _) => Failure::Http(413),
        (status, _) => Failure::Store(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Class;

    #[test]
    fn lists_of_keys() {
        let list =
            |inside: &str| format!("<?xml version=\"1.0\"?><ListBucketResult xmlns=\"x\">{inside}</ListBucketResult>");
        let of = |inside: &str| listed(&list(inside));
        let key = |key: &str| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>");
        let two =
            format!("<Prefix>a</Prefix>{}{}<IsTruncated>false</IsTruncated>", key("a/b&amp;c+d"), key("a/&#x41;%2E"));
        assert_eq!(of(&two), Some((vec!["a/b&c+d".to_owned(), "a/A%2E".to_owned()], None)));
        let encoded = format!("<EncodingType>url</EncodingType>{}", key("a/b%252F+c%2B%C3%A4"));
        assert_eq!(of(&encoded), Some((vec!["a/b%2F c+\u{e4}".to_owned()], None)));
        let more = "<NextContinuationToken>1&amp;=</NextContinuationToken><IsTruncated>true</IsTruncated>";
        assert_eq!(of(more), Some((Vec::new(), Some("1&=".to_owned()))));
        for none in ["<IsTruncated>true</IsTruncated>", "<Key>a", &key("&x;"), &key("&#xD800;"), &key("&")] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(listed("<html></html>"), None);
    }

    #[test]
    fn whose_fault_it_is() {
        let error =
            |code: &str| format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>x</Message></Error>");
        for (status, body, class, reason) in [
            (400, error("KeyTooLongError"), Class::Poison, "data_error:too_large"),
            (400, error("EntityTooLarge"), Class::Poison, "data_error:too_large"),
            (400, error("ExpiredToken"), Class::Outage, "client_error:400"),
            (400, error("RequestTimeout"), Class::Outage, "client_error:400"),
            (400, String::new(), Class::Outage, "client_error:400"),
            (403, error("AccessDenied"), Class::Outage, "client_error:403"),
            (403, error("RequestTimeTooSkewed"), Class::Outage, "client_error:403"),
            (404, error("NoSuchBucket"), Class::Outage, "client_error:404"),
            (409, error("OperationAborted"), Class::Outage, "client_error:409"),
            (413, "<html>".to_owned(), Class::Poison, "client_error:413"),
            (301, error("PermanentRedirect"), Class::Outage, "redirect:301"),
            (500, error("KeyTooLongError"), Class::Outage, "server_error:500"),
            (503, error("SlowDown"), Class::Outage, "server_error:503"),
        ] {
            let failure = failure(status, body.as_bytes());
            assert_eq!((failure.class(), failure.reason().as_str()), (class, reason), "{status} {body}");
        }
    }
}
