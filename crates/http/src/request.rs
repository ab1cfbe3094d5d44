//! What a surface is given: the request taken apart, and its body read within bounds.

use std::io::Read;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::HeaderValue;
use hyper::upgrade::OnUpgrade;
use hyper::{HeaderMap, Method, StatusCode, Version, header};

use crate::arriving::{Arriving, Gathering};
use crate::body_memory::{Body, BodyMemory, Client, FREE_BYTES, Memory, STEP_BYTES, too_large};
use crate::refused::{Refused, Result};

/// For what is left of a body that nobody needs.
const SKIP_MAX: Duration = Duration::from_secs(30);

/// A request.
#[derive(Debug)]
pub struct Request {
    /// Its method.
    pub method: Method,
    /// Its target.
    pub uri: hyper::Uri,
    /// Of HTTP.
    pub version: Version,
    /// Its headers.
    pub headers: HeaderMap,
    /// What is still to come.
    pub body: Arriving,
    /// The connection, if the client wants another protocol on it.
    pub upgrade: Option<OnUpgrade>,
    /// Where its body has room.
    pub memory: BodyMemory,
    /// Where the request goes on when its client hangs up.
    pub client: Option<Client>,
    /// The client's address; `None` for this process, and for clients that have none.
    pub peer: Option<IpAddr>,
    /// The other end of the connection, which no header can say: a proxy's, where there is one. `None` as above.
    pub sender: Option<IpAddr>,
    /// The name that the client has asked for, where a proxy that is believed says so.
    pub forwarded_host: Option<String>,
    /// A page of another origin made the request, so it must not change anything. Requests that
    /// [`Surface::changes`](crate::Surface::changes) reports are already refused.
    pub is_foreign: bool,
    /// Nobody between the client and this process can read along: what was agreed upon can be a secret, and a cookie be
    /// kept for such connections.
    pub is_secure: bool,
}

impl Request {
    /// A header's value; `None` too for one that is no text.
    pub fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Whether the client has what the tag stands for.
    pub fn accepts_cached(&self, etag: &str) -> bool {
        self.header(header::IF_NONE_MATCH)
            .is_some_and(|tags| tags.split(',').map(str::trim).any(|tag| tag.strip_prefix("W/").unwrap_or(tag) == etag))
    }

    /// `http://HOST`, as the client sees it.
    pub fn base(&self) -> String {
        let text = |name: &str| self.headers.get(name).and_then(|value| value.to_str().ok());
        let of_uri = self.uri.authority().map(|authority| authority.as_str());
        let host = text("x-forwarded-host").or(text("host")).or(of_uri).unwrap_or("localhost");
        let secure = text("x-forwarded-ssl") == Some("on") || text("x-forwarded-proto") == Some("https");
        format!("{}://{host}", if secure { "https" } else { "http" })
    }

    /// Nothing if the body is said to be JSON.
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
        Err(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_content_type", reason))
    }

    /// The whole body, inflated if it is compressed.
    ///
    /// # Errors
    /// 408, 413, 415, 503, and 400 where it breaks off or is no gzip.
    pub async fn read_body(&mut self) -> Result<Body> {
        self.read_at_most(self.memory.body_bytes_max()).await
    }

    /// The whole body, as it comes and inflated no more than so many bytes, and within so much time.
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
            // A client that is still sending when the connection closes does not see the answer.
            self.skip(bytes_max).await;
        }
        read
    }

    async fn read_within_bounds(&mut self, bytes_max: usize) -> Result<Body> {
        let known = self.header(header::CONTENT_LENGTH).and_then(|length| length.parse::<usize>().ok());
        if known.is_some_and(|length| length > bytes_max) {
            return Err(too_large());
        }
        let mut gathering = Gathering::new(&self.body, known);
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
                return Err(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_content_type", reason));
            }
        }
        memory.reserve_tree(&self.memory, &bytes, self.client.as_ref()).await?;
        Ok(Body { bytes, memory })
    }

    /// A text that was made for this request, with the memory that it and its tree take, as if it had come as the body.
    ///
    /// # Errors
    /// 413, 503.
    pub async fn made(&self, text: Bytes) -> Result<Body> {
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

    /// Puts a body in the place of the one that came, which was read: whoever reads it next finds this. It is counted while
    /// it waits for that.
    pub fn replace_body(&mut self, mut body: Body) {
        body.memory.drop_tree();
        self.headers.remove(header::CONTENT_ENCODING);
        self.headers.remove(header::TRANSFER_ENCODING);
        self.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.bytes.len()));
        self.body.put_back(body);
    }

    /// The next piece of the body; `None` at its end. Each piece must come in time, and all of it at a least rate.
    ///
    /// # Errors
    /// 408, and 400 where it breaks off.
    pub async fn next_piece(&mut self) -> Result<Option<Bytes>> {
        self.body.next().await
    }

    /// Reads what is left of a body that nobody needs, so that the connection can go on.
    pub async fn skip_body(&mut self) {
        self.skip(STEP_BYTES).await;
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
        // A body that takes longer is cut off with its connection.
        let _ = tokio::time::timeout(SKIP_MAX, skip).await;
    }
}

/// Inflates a gzip body, asking for room before it grows. What is small may become large: others have their turn meanwhile.
async fn inflate(bytes: &[u8], bytes_max: usize, mut grow: impl FnMut(usize) -> Result<()>) -> Result<Bytes> {
    let mut decoder = flate2::read::MultiGzDecoder::new(bytes);
    let mut out = Vec::new();
    let mut reserved = 0;
    loop {
        if out.len() + STEP_BYTES > reserved {
            // A vector that grows has twice the room that it needs at most.
            grow(2 * STEP_BYTES)?;
            reserved += STEP_BYTES;
        }
        let before = out.len();
        let read = (&mut decoder).take(STEP_BYTES as u64).read_to_end(&mut out);
        read.map_err(|_| Refused::bad_request("The request's body is no gzip"))?;
        if out.len() > bytes_max {
            return Err(too_large());
        }
        if out.len() == before {
            return Ok(out.into());
        }
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body_memory::busy;
    use std::io::Write;

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
    }
}
