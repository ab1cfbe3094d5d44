//! A bucket of an S3-compatible store: objects are put and deleted, whole.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hyper::Method;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::sign::{Signed, Signer, encode_key, hash, timestamp};
use crate::failure::Failure;
use crate::output::Refused;
use crate::peer::{Bounds, Peer, PeerError};
use crate::retry::retry_after;
use crate::secret::Secret;

/// What is read of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;

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

    /// Stores an object in the place of what is there.
    ///
    /// # Errors
    /// [`Refused`].
    pub async fn put(&self, key: &str, content_type: &str, body: Bytes) -> Result<(), Refused> {
        self.call(Method::PUT, key, Some(content_type), body).await
    }

    /// Deletes an object, if it is there.
    ///
    /// # Errors
    /// [`Refused`].
    pub async fn delete(&self, key: &str) -> Result<(), Refused> {
        self.call(Method::DELETE, key, None, Bytes::new()).await
    }

    async fn call(&self, method: Method, key: &str, content_type: Option<&str>, body: Bytes) -> Result<(), Refused> {
        let path = format!("{}/{}", self.prefix, encode_key(key));
        let whole = self.peer.url().path(&path);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let body_hash = if body.len() > HASH_HERE_BYTES_MAX {
            let body = body.clone();
            let hashing = tokio::task::spawn_blocking(move || hash(&body)).await;
            hashing.map_err(|error| Refused::failed(Failure::Store(0), error))?
        } else {
            hash(&body)
        };
        let (date, host) = (timestamp(now), self.peer.host());
        let mut headers = vec![
            ("content-type", content_type.unwrap_or_default()),
            ("host", host.as_str()),
            ("x-amz-content-sha256", body_hash.as_str()),
            ("x-amz-date", date.as_str()),
            ("x-amz-security-token", self.session_token.as_ref().map_or("", Secret::expose)),
        ];
        headers.retain(|(_, value)| !value.is_empty());
        let signed =
            Signed { method: method.as_str(), path: &whole, query: "", headers: &headers, body_hash: &body_hash };
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
        let bounds = Bounds { bytes_max: ANSWER_BYTES_MAX, time_max: self.time_max };
        match self.peer.call(method, &path, &sent, body, bounds).await {
            Ok(answer) if (200..300).contains(&answer.status) => Ok(()),
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
