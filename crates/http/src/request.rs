//! Requests as a surface receives them, with bodies read within limits.

use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::HeaderValue;
use hyper::upgrade::OnUpgrade;
use hyper::{HeaderMap, Method, StatusCode, Version, header};

use crate::arriving::{RequestBody, TextBuffer};
use crate::body_memory::{Body, BodyMemory, Client, FREE_BYTES, Memory, STEP_BYTES, too_large};
use crate::rejection::{Rejection, Result};

/// Compressed bytes that are inflated at once, to at most about 64 kB.
const INFLATED_AT_ONCE: usize = 4 * 1024;

/// The work between two yields, in inflated bytes. A compressed byte counts 16, since it may inflate to none.
const INFLATED_SLICE: usize = STEP_BYTES / 2;

const SKIP_MAX: Duration = Duration::from_secs(30);

/// A request.
#[derive(Debug)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// The target.
    pub uri: hyper::Uri,
    /// The HTTP version.
    pub version: Version,
    /// The headers.
    pub headers: HeaderMap,
    /// The rest of the body.
    pub body: RequestBody,
    /// The connection, if the client requests another protocol on it.
    pub upgrade: Option<OnUpgrade>,
    /// The memory for bodies.
    pub memory: BodyMemory,
    /// Set if the request continues after its client hangs up.
    pub client: Option<Client>,
    /// The client's address; `None` for requests from within the process, and for clients without an address.
    pub peer: Option<IpAddr>,
    /// The address at the other end of the connection, independent of headers: that of a proxy if there is one.
    /// `None` as above.
    pub sender: Option<IpAddr>,
    /// The host that the client requested, as forwarded by a trusted proxy.
    pub forwarded_host: Option<String>,
    /// True if a page of another origin made the request, so it must not change anything. Requests that
    /// [`Surface::changes`](crate::Surface::changes) reports are already refused.
    pub is_foreign: bool,
    /// True if the path to the client is encrypted or within the process, so that secrets and `Secure` cookies may be
    /// sent.
    pub is_secure: bool,
}

impl Request {
    /// Returns a header's value if it is a text.
    pub fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns true if the client has cached the version with this tag.
    pub fn accepts_cached(&self, etag: &str) -> bool {
        self.header(header::IF_NONE_MATCH)
            .is_some_and(|tags| tags.split(',').map(str::trim).any(|tag| tag.strip_prefix("W/").unwrap_or(tag) == etag))
    }

    /// Returns `http://HOST` as the client sees it. `host`, `proto` and `ssl` are the headers in which proxies name
    /// the host, and say `https` or `on`.
    pub fn base(&self, [host, proto, ssl]: [&str; 3]) -> String {
        let text = |name: &str| self.headers.get(name).and_then(|value| value.to_str().ok());
        let of_uri = self.uri.authority().map(|authority| authority.as_str());
        let host = text(host).or(text("host")).or(of_uri).unwrap_or("localhost");
        let secure = text(ssl) == Some("on") || text(proto) == Some("https");
        format!("{}://{host}", if secure { "https" } else { "http" })
    }

    /// Checks that the content type is JSON.
    ///
    /// # Errors
    /// 415.
    pub fn require_json(&self) -> Result<()> {
        let json = self.header(header::CONTENT_TYPE).is_some_and(|kind| {
            let kind = kind.split(';').next().unwrap_or_default().trim();
            kind.eq_ignore_ascii_case("application/json")
        });
        if json {
            return Ok(());
        }
        let reason = "Content-Type must be application/json";
        Err(Rejection::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_content_type", reason))
    }

    /// Reads the whole body and inflates it.
    ///
    /// # Errors
    /// 408, 413, 415, 503, and 400 if it breaks off or is not valid gzip.
    pub async fn read_body(&mut self) -> Result<Body> {
        self.read_at_most(self.memory.body_bytes_max()).await
    }

    /// Reads the whole body of at most `bytes_max` bytes, compressed and inflated, within `time_max`.
    ///
    /// # Errors
    /// Those of [`Request::read_body`].
    pub async fn read_small_body(&mut self, bytes_max: usize, time_max: Duration) -> Result<Body> {
        self.body.within(time_max);
        self.read_at_most(bytes_max.min(self.memory.body_bytes_max())).await
    }

    async fn read_at_most(&mut self, bytes_max: usize) -> Result<Body> {
        let read = self.read_within_bounds(bytes_max).await;
        self.body.tell_time();
        let refused = [StatusCode::PAYLOAD_TOO_LARGE, StatusCode::SERVICE_UNAVAILABLE];
        if read.as_ref().is_err_and(|failure| refused.contains(&failure.status)) {
            // A client that still sends while the connection closes does not see the answer.
            self.skip(bytes_max).await;
        }
        read
    }

    async fn read_within_bounds(&mut self, bytes_max: usize) -> Result<Body> {
        let known = self.header(header::CONTENT_LENGTH).and_then(|length| length.parse::<usize>().ok());
        if known.is_some_and(|length| length > bytes_max) {
            return Err(too_large());
        }
        let mut gathering = TextBuffer::new(&self.body, known);
        let mut come = 0_usize;
        while let Some(data) = self.next_piece().await? {
            come += data.len();
            if come > bytes_max {
                return Err(too_large());
            }
            gathering.push(&data).await?;
        }
        let (mut bytes, mut memory) = gathering.into_parts();
        match self.header(header::CONTENT_ENCODING).map(str::trim) {
            None | Some("" | "identity") => {}
            Some(encoding) if encoding.eq_ignore_ascii_case("gzip") => {
                bytes = inflate(&bytes, bytes_max, |step| self.memory.grow(&mut memory, step)).await?;
            }
            Some(other) => {
                let reason = format!("{other} is not a supported content encoding.");
                return Err(Rejection::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_content_type", reason));
            }
        }
        memory.reserve_tree(&self.memory, &bytes, self.client.as_ref()).await?;
        Ok(Body { bytes, memory })
    }

    /// Returns a generated text as a body, with the memory of the text and its tree.
    ///
    /// # Errors
    /// 413, 503.
    pub async fn generated_body(&self, text: Bytes) -> Result<Body> {
        if text.len() > self.memory.body_bytes_max() {
            return Err(too_large());
        }
        let mut memory = Memory::default();
        if text.len() > FREE_BYTES {
            self.memory.grow(&mut memory, text.len())?;
        }
        memory.reserve_tree(&self.memory, &text, self.client.as_ref()).await?;
        Ok(Body { bytes: text, memory })
    }

    /// Replaces the body, which was read, by another one that the next reader gets. The memory stays reserved
    /// meanwhile.
    pub fn replace_body(&mut self, mut body: Body) {
        body.memory.drop_tree();
        self.headers.remove(header::CONTENT_ENCODING);
        self.headers.remove(header::TRANSFER_ENCODING);
        self.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.bytes.len()));
        self.body.put_back(body);
    }

    /// Returns the next piece of the body, `None` at its end. Each piece has a timeout, and the whole a minimal rate.
    ///
    /// # Errors
    /// 408, and 400 if it breaks off.
    pub async fn next_piece(&mut self) -> Result<Option<Bytes>> {
        self.body.next().await
    }

    /// Skips the rest of the body, so that the connection can be reused.
    pub async fn skip_body(&mut self) {
        self.skip(STEP_BYTES).await;
    }

    /// Skips the rest of the body and returns the refusal.
    ///
    /// # Errors
    /// `failure`, always.
    pub async fn refuse<T, E>(&mut self, failure: E) -> std::result::Result<T, E> {
        self.skip_body().await;
        Err(failure)
    }

    /// Skips the rest of the body if the outcome is a refusal, and returns the outcome.
    ///
    /// # Errors
    /// That of the outcome.
    pub async fn skip_if_refused<T, E>(&mut self, outcome: std::result::Result<T, E>) -> std::result::Result<T, E> {
        if outcome.is_err() {
            self.skip_body().await;
        }
        outcome
    }

    async fn skip(&mut self, mut left: usize) {
        let skip = async {
            while let Ok(Some(data)) = self.body.next().await {
                if data.len() > left {
                    return;
                }
                left -= data.len();
            }
        };
        // A longer body is cut together with its connection.
        let _ = tokio::time::timeout(SKIP_MAX, skip).await;
    }
}

/// Inflates a gzip body and reserves memory before it grows. Yields between slices, since a small body may become
/// large, and gzip members may be empty.
async fn inflate(bytes: &[u8], bytes_max: usize, mut grow: impl FnMut(usize) -> Result<()>) -> Result<Bytes> {
    let invalid = || Rejection::bad_request("The request's body is no gzip");
    let mut decoder = flate2::write::MultiGzDecoder::new(Vec::<u8>::new());
    let (mut left, mut reserved) = (bytes, 0);
    loop {
        if decoder.get_ref().len() + STEP_BYTES > reserved {
            // The capacity of a growing vector is at most twice its length.
            grow(2 * STEP_BYTES)?;
            reserved += STEP_BYTES;
        }
        if left.is_empty() {
            // The decoder holds less than a step back.
            let out = decoder.finish().map_err(|_| invalid())?;
            return if out.len() > bytes_max { Err(too_large()) } else { Ok(out.into()) };
        }
        let mut work = 0;
        while work < INFLATED_SLICE && !left.is_empty() {
            let before = decoder.get_ref().len();
            let some = left.get(..INFLATED_AT_ONCE.min(left.len())).unwrap_or_default();
            let consumed = decoder.write(some).map_err(|_| invalid())?;
            if consumed == 0 {
                return Err(invalid());
            }
            left = left.get(consumed..).unwrap_or_default();
            work += 1024 + 16 * consumed + decoder.get_ref().len().saturating_sub(before);
        }
        if decoder.get_ref().len() > bytes_max {
            return Err(too_large());
        }
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body_memory::busy;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[tokio::test]
    async fn bombs_are_refused_before_they_go_off() {
        let bomb = gzip(&vec![b'x'; 50_000_000]);
        assert!(bomb.len() < 100_000);
        let mut granted = 0;
        let grow = |step| {
            granted += step;
            Ok(())
        };
        assert_eq!(inflate(&bomb, 1_000_000, grow).await.unwrap_err().status, StatusCode::PAYLOAD_TOO_LARGE);
        assert!(granted < 4_000_000, "{granted}");
        assert_eq!(
            inflate(&bomb, 100_000_000, |_| Err(busy())).await.unwrap_err().status,
            StatusCode::SERVICE_UNAVAILABLE
        );
        assert!(inflate(&gzip(b"{}")[..10], 1_000, |_| Ok(())).await.is_err());
        assert_eq!(&inflate(&gzip(b"{}"), 1_000, |_| Ok(())).await.unwrap()[..], b"{}");
        for invalid in [&b""[..], b"x", &[&gzip(b"{}")[..], b"x"].concat()[..]] {
            assert_eq!(inflate(invalid, 1_000, |_| Ok(())).await.unwrap_err().status, StatusCode::BAD_REQUEST);
        }
    }

    /// The runtime here has one thread: the other task runs only if inflating yields.
    #[tokio::test]
    async fn empty_members_yield() {
        let members = gzip(b"").repeat(10_000);
        let runs = Arc::new(AtomicUsize::new(0));
        let other = tokio::spawn({
            let runs = runs.clone();
            async move {
                loop {
                    runs.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                }
            }
        });
        assert_eq!(inflate(&members, 1_000, |_| Ok(())).await.unwrap().len(), 0);
        other.abort();
        assert!(runs.load(Ordering::SeqCst) > 50);
    }
}
