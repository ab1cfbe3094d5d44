//! A bucket of an S3-compatible store: puts and deletes whole objects and lists keys by prefix.

use std::time::Duration;

use bytes::Bytes;
use flatbed_client::encode_segment;
use flatbed_clock::Clock;
use hyper::Method;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::sign::{CanonicalRequest, Signer, encode_key, hash, timestamp};
use crate::failure::Failure;
use crate::output::DeliveryError;
use crate::peer::{Answer, Bounds, Peer, PeerError};
use crate::retry::retry_after;
use crate::secret::Secret;

const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The longest list of keys that is read, in bytes, and the number of keys that are requested.
const LIST_BYTES_MAX: usize = 1 << 20;
const LIST_MAX: usize = 200;

const DIGEST: &str = "x-amz-meta-flatbed-digest";

/// The size in bytes from which a body is hashed on a blocking thread.
const HASH_HERE_BYTES_MAX: usize = 256 << 10;

/// The service's error codes that the object itself causes. All other errors are the bucket's state, even with status
/// 400 (clock skew, another region, an expired token, a slow request) or 409.
const POISON: [&str; 5] =
    ["KeyTooLongError", "EntityTooLarge", "InvalidObjectName", "XMinioInvalidObjectName", "MetadataTooLarge"];

/// A bucket.
#[derive(Debug)]
pub struct Bucket {
    peer: Peer,
    /// The prefix of paths: `/BUCKET` if the server's name does not include it.
    prefix: String,
    /// `None`: requests are not signed.
    signer: Option<Signer>,
    session_token: Option<Secret>,
    time_max: Duration,
}

impl Bucket {
    /// Creates a bucket at a server whose name includes the bucket (`in_path`: `None`), or with the bucket's name in
    /// the path.
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

    /// Returns the clock in use.
    pub fn clock(&self) -> &Clock {
        self.peer.clock()
    }

    /// Stores an object, replacing an existing one, with a digest if one is given.
    pub async fn put(&self, key: &str, content_type: &str, digest: &str, body: Bytes) -> Result<(), DeliveryError> {
        let kind = if is_plain(content_type) { content_type } else { "application/octet-stream" };
        let digest = if is_plain(digest) { digest } else { "" };
        let said = RequestHead { path: self.path(key), kind, digest, ..RequestHead::default() };
        self.call(Method::PUT, said, body).await.map(drop)
    }

    /// Returns the digest stored with an object; `None` if there is no object, no digest, or no answer.
    pub async fn digest(&self, key: &str) -> Option<String> {
        let said = RequestHead { path: self.path(key), ..RequestHead::default() };
        let answer = self.call(Method::HEAD, said, Bytes::new()).await.ok()?;
        Some(answer.headers.get(DIGEST)?.to_str().ok()?.to_owned())
    }

    /// Lists keys with a prefix, at most some hundreds, and returns the position of the next ones if there are more.
    pub async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<(Vec<String>, Option<String>), DeliveryError> {
        let after = after.map(|after| format!("continuation-token={}&", encode_segment(after))).unwrap_or_default();
        let prefix = encode_segment(prefix);
        let query = format!("{after}encoding-type=url&list-type=2&max-keys={LIST_MAX}&prefix={prefix}");
        let path = if self.prefix.is_empty() { "/".to_owned() } else { self.prefix.clone() };
        let said = RequestHead { path, query, bytes_max: LIST_BYTES_MAX, ..RequestHead::default() };
        let answer = self.call(Method::GET, said, Bytes::new()).await?;
        listed(&String::from_utf8_lossy(&answer.body)).ok_or_else(|| {
            DeliveryError::failed(Failure::Store(answer.status), "the bucket's list of keys is malformed")
        })
    }

    /// Deletes an object if it exists.
    pub async fn delete(&self, key: &str) -> Result<(), DeliveryError> {
        let said = RequestHead { path: self.path(key), ..RequestHead::default() };
        self.call(Method::DELETE, said, Bytes::new()).await.map(drop)
    }

    fn path(&self, key: &str) -> String {
        format!("{}/{}", self.prefix, encode_key(key))
    }

    async fn call(&self, method: Method, said: RequestHead<'_>, body: Bytes) -> Result<Answer, DeliveryError> {
        let RequestHead { mut path, query, kind, digest, bytes_max } = said;
        let whole = self.peer.url().path(&path);
        let now = self.clock().unix_seconds();
        let body_hash = if body.len() > HASH_HERE_BYTES_MAX {
            let body = body.clone();
            let hashing = tokio::task::spawn_blocking(move || hash(&body)).await;
            hashing.map_err(|error| DeliveryError::failed(Failure::Store(0), error))?
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
        let signed = CanonicalRequest {
            method: method.as_str(),
            path: &whole,
            query: &query,
            headers: &headers,
            body_hash: &body_hash,
        };
        let authorization = self.signer.as_ref().map(|signer| signer.sign(&signed, &date));
        let unsendable = || DeliveryError::failed(Failure::Store(0), "a header of the request cannot be sent");
        let mut sent = HeaderMap::new();
        let all = headers.iter().map(|(name, value)| (*name, *value));
        for (name, value) in all.chain(authorization.as_deref().map(|value| (header::AUTHORIZATION.as_str(), value))) {
            // The connection sets `host`.
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
            Ok(answer) => Err(DeliveryError::Failed {
                failure: failure(answer.status, &answer.body),
                error: format!("{} {}", answer.status, String::from_utf8_lossy(&answer.body)),
                retry_after: answer.retry_after.as_deref().and_then(|header| retry_after(header, now)),
            }),
            Err(error @ (PeerError::Broken(_) | PeerError::Late | PeerError::TooLarge(_))) => {
                Err(DeliveryError::failed(Failure::Connection, error))
            }
        }
    }
}

/// A request without its body.
struct RequestHead<'r> {
    path: String,
    query: String,
    kind: &'r str,
    digest: &'r str,
    bytes_max: usize,
}

impl Default for RequestHead<'_> {
    fn default() -> Self {
        RequestHead { path: String::new(), query: String::new(), kind: "", digest: "", bytes_max: ANSWER_BYTES_MAX }
    }
}

/// Returns whether a header value reaches the server exactly as signed: printable, and without spaces that are
/// collapsed on the way.
fn is_plain(text: &str) -> bool {
    let is_printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    !text.is_empty() && is_printable && text.trim() == text && !text.contains("  ")
}

/// Parses a list of keys from XML, with the position of the next list. `None`: malformed, or without the position.
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

/// Decodes percent-encoding with `+` for spaces.
fn decoded(text: &str) -> Option<String> {
    // A form's value has this encoding. `&` would end it and is encoded.
    let form = format!("k={}", text.replace('&', "%26"));
    form_urlencoded::parse(form.as_bytes()).next().map(|(_, value)| value.into_owned())
}

/// Returns the failure of an answer, from its status and the service's code in XML:
/// `<Error><Code>NoSuchBucket</Code>...`.
fn failure(status: u16, body: &[u8]) -> Failure {
    let text = String::from_utf8_lossy(body);
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map(|(code, _)| code.trim());
    match (status, code) {
        (400..=499, Some(code)) if POISON.contains(&code) => Failure::TooLarge,
        // From a proxy, which has no such codes.
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
