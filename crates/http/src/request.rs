//! What a handler is given: the request taken apart, and its body read within bounds.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use flatbed_layer::json::Value;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper::{HeaderMap, Method, StatusCode, Version, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::Principal;
use crate::error::{Failure, Result};
use crate::metrics::Usage;
use crate::query::Query;

/// Between two pieces of a body.
const BODY_IDLE_MAX: Duration = Duration::from_secs(30);

/// For a whole body, however it trickles.
const BODY_TOTAL_MAX: Duration = Duration::from_secs(600);

/// Every body may be this long without asking for memory; connections are counted.
const FREE_BYTES: usize = 16 * 1024;

/// Trees below this are not reckoned, for the same reason.
const FREE_TREE_BYTES: usize = 128 * 1024;

/// The unit in which memory is given out.
const PERMIT_BYTES: usize = 1024;

/// A body takes memory in steps of this while it comes in.
const STEP_BYTES: usize = 256 * 1024;

/// Memory that requests may take together, in two parts: their texts, and the trees that these are parsed into.
///
/// A text takes memory as it comes in, never ahead of it, and is refused where there is none: nobody who holds some
/// waits for more. A tree's memory is waited for, all at once: who holds it waits for no other memory.
#[derive(Debug, Clone)]
pub(crate) struct BodyMemory {
    texts: Arc<Semaphore>,
    trees: Arc<Semaphore>,
    text_bytes_max: usize,
    tree_bytes_max: usize,
    body_bytes_max: usize,
}

impl BodyMemory {
    pub(crate) fn new(total_bytes: usize, body_bytes_max: usize) -> Self {
        let semaphore = |bytes: usize| Arc::new(Semaphore::new((bytes / PERMIT_BYTES).min(u32::MAX as usize)));
        // At least one greatest body, beside what it is inflated to in a vector with up to twice the room.
        let text_bytes_max = (total_bytes / 3).max(3 * body_bytes_max + 2 * STEP_BYTES);
        let tree_bytes_max = total_bytes.saturating_sub(text_bytes_max).max(FREE_TREE_BYTES);
        let (texts, trees) = (semaphore(text_bytes_max), semaphore(tree_bytes_max));
        BodyMemory { texts, trees, text_bytes_max, tree_bytes_max, body_bytes_max }
    }

    /// Bytes of texts and of trees that requests hold now.
    pub(crate) fn usage(&self) -> [Usage; 2] {
        let of = |semaphore: &Semaphore, limit: usize| Usage {
            used: limit.saturating_sub(semaphore.available_permits() * PERMIT_BYTES),
            limit,
        };
        [of(&self.texts, self.text_bytes_max), of(&self.trees, self.tree_bytes_max)]
    }

    fn permits(bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX)
    }

    /// Takes room for more of a text, if it is there.
    fn grow(&self, held: &mut Memory, bytes: usize) -> Result<()> {
        let more = self.texts.clone().try_acquire_many_owned(Self::permits(bytes)).map_err(|_| busy())?;
        held.add(more);
        Ok(())
    }

    /// Waits for the room that the text's tree may take at most.
    async fn reserve_tree(&self, text: &[u8]) -> Result<Option<OwnedSemaphorePermit>> {
        let bytes = tree_bytes(text);
        if bytes <= FREE_TREE_BYTES {
            return Ok(None);
        }
        if bytes > self.tree_bytes_max {
            return Err(too_large());
        }
        let wait = self.trees.clone().acquire_many_owned(Self::permits(bytes));
        match tokio::time::timeout(BODY_IDLE_MAX, wait).await {
            Ok(Ok(permit)) => Ok(Some(permit)),
            _ => Err(busy()),
        }
    }
}

/// What a JSON text's tree takes at most: a vector grows by doubling, its first room is for four. An item of an array
/// has a comma or the bracket before it, a member of an object a colon too; those in strings count as well.
fn tree_bytes(text: &[u8]) -> usize {
    const VALUE: usize = size_of::<Value<'_>>();
    const MEMBER: usize = size_of::<(std::borrow::Cow<'_, str>, Value<'_>)>();
    let count = |wanted: u8| text.iter().filter(|byte| **byte == wanted).count();
    let items = 2 * VALUE * count(b',') + 4 * VALUE * count(b'[');
    text.len() + items + 2 * (MEMBER - VALUE) * count(b':') + 4 * MEMBER * count(b'{')
}

fn busy() -> Failure {
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", "Too many large requests at once")
}

/// Memory that a request holds until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    text: Option<OwnedSemaphorePermit>,
    tree: Option<OwnedSemaphorePermit>,
}

impl Memory {
    fn add(&mut self, more: OwnedSemaphorePermit) {
        match &mut self.text {
            Some(held) => held.merge(more),
            None => self.text = Some(more),
        }
    }
}

/// A body with the memory that it was given.
#[derive(Debug)]
pub(crate) struct Body {
    pub bytes: Bytes,
    /// Kept for as long as the text, or anything parsed from it, is in use.
    pub memory: Memory,
}

/// A text on its way in, with the memory that it takes.
pub(crate) struct Gathering {
    of: BodyMemory,
    memory: Memory,
    reserved: usize,
    bytes: BytesMut,
}

impl Gathering {
    /// `expected`: how long it is, if that is known.
    pub(crate) fn new(of: &BodyMemory, expected: Option<usize>) -> Gathering {
        let bytes = BytesMut::with_capacity(expected.unwrap_or(0).min(FREE_BYTES));
        Gathering { of: of.clone(), memory: Memory::default(), reserved: FREE_BYTES, bytes }
    }

    /// More of it.
    ///
    /// # Errors
    /// 413 when it becomes too long, 503 when there is no memory for it.
    pub(crate) fn push(&mut self, data: &[u8]) -> Result<()> {
        if self.bytes.len() + data.len() > self.of.body_bytes_max {
            return Err(too_large());
        }
        while self.bytes.len() + data.len() > self.reserved {
            self.of.grow(&mut self.memory, STEP_BYTES)?;
            self.reserved += STEP_BYTES;
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// It is complete: waits for the room that its tree may take.
    pub(crate) async fn finish(mut self) -> Result<Body> {
        let bytes = self.bytes.freeze();
        self.memory.tree = self.of.reserve_tree(&bytes).await?;
        Ok(Body { bytes, memory: self.memory })
    }
}

/// A request.
pub(crate) struct Request {
    pub method: Method,
    pub uri: hyper::Uri,
    pub version: Version,
    /// Decoded, without the leading slash; empty for `/`.
    pub segments: Vec<String>,
    pub query: Query,
    pub headers: HeaderMap,
    pub body: Incoming,
    /// The connection, if the client wants another protocol on it.
    pub upgrade: Option<OnUpgrade>,
    pub memory: BodyMemory,
    /// Who asks. All are administrators for now; users and per-database security look here.
    pub principal: Principal,
}

impl Request {
    pub(crate) fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Whether the client has what the tag stands for.
    pub(crate) fn accepts_cached(&self, etag: &str) -> bool {
        self.header(header::IF_NONE_MATCH)
            .is_some_and(|tags| tags.split(',').map(str::trim).any(|tag| tag.strip_prefix("W/").unwrap_or(tag) == etag))
    }

    /// `http://HOST`, as the client sees it.
    pub(crate) fn base(&self) -> String {
        let text = |name: &str| self.headers.get(name).and_then(|value| value.to_str().ok());
        let of_uri = self.uri.authority().map(|authority| authority.as_str());
        let host = text("x-forwarded-host").or(text("host")).or(of_uri).unwrap_or("localhost");
        let secure = text("x-forwarded-ssl") == Some("on") || text("x-forwarded-proto") == Some("https");
        format!("{}://{host}", if secure { "https" } else { "http" })
    }

    /// 415 unless the body is said to be JSON.
    pub(crate) fn require_json(&self) -> Result<()> {
        let json = self.header(header::CONTENT_TYPE).is_some_and(|kind| {
            let kind = kind.split(';').next().unwrap_or_default().trim();
            kind.eq_ignore_ascii_case("application/json")
        });
        if json {
            return Ok(());
        }
        let reason = "Content-Type must be application/json";
        Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_content_type", reason))
    }

    /// The whole body, inflated if it is compressed.
    pub(crate) async fn read_body(&mut self) -> Result<Body> {
        let read = self.read_within_bounds().await;
        let refused = [StatusCode::PAYLOAD_TOO_LARGE, StatusCode::SERVICE_UNAVAILABLE];
        if read.as_ref().is_err_and(|failure| refused.contains(&failure.status)) {
            // A client that is still sending when the connection closes does not see the answer.
            self.skip(self.memory.body_bytes_max).await;
        }
        read
    }

    async fn read_within_bounds(&mut self) -> Result<Body> {
        let bytes_max = self.memory.body_bytes_max;
        let known = self.header(header::CONTENT_LENGTH).and_then(|length| length.parse::<usize>().ok());
        if known.is_some_and(|length| length > bytes_max) {
            return Err(too_large());
        }
        let mut gathering = Gathering::new(&self.memory, known);
        let read = async {
            while let Some(frame) = next_frame(&mut self.body).await? {
                let Ok(data) = frame.into_data() else { continue };
                gathering.push(&data)?;
            }
            Result::Ok(())
        };
        tokio::time::timeout(BODY_TOTAL_MAX, read).await.map_err(|_| slow())??;
        let Gathering { mut memory, bytes, .. } = gathering;
        let mut bytes = bytes.freeze();
        match self.header(header::CONTENT_ENCODING).map(str::trim) {
            None | Some("" | "identity") => {}
            Some(encoding) if encoding.eq_ignore_ascii_case("gzip") => {
                bytes = inflate(&bytes, bytes_max, |step| self.memory.grow(&mut memory, step))?;
            }
            Some(other) => {
                let reason = format!("{other} is not a supported content encoding.");
                return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_content_type", reason));
            }
        }
        memory.tree = self.memory.reserve_tree(&bytes).await?;
        Ok(Body { bytes, memory })
    }

    /// The next piece of a body that is not kept whole; `None` at its end. Each piece must come in time.
    pub(crate) async fn next_piece(&mut self) -> Result<Option<Bytes>> {
        while let Some(frame) = next_frame(&mut self.body).await? {
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Reads what is left of a body that nobody needs, so that the connection can go on.
    pub(crate) async fn skip_body(&mut self) {
        self.skip(STEP_BYTES).await;
    }

    async fn skip(&mut self, mut left: usize) {
        let skip = async {
            while let Ok(Some(frame)) = next_frame(&mut self.body).await {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                if bytes > left {
                    return;
                }
                left -= bytes;
            }
        };
        // A body that takes longer is cut off with its connection.
        let _ = tokio::time::timeout(BODY_IDLE_MAX, skip).await;
    }
}

async fn next_frame(body: &mut Incoming) -> Result<Option<hyper::body::Frame<Bytes>>> {
    match tokio::time::timeout(BODY_IDLE_MAX, body.frame()).await {
        Err(_) => Err(slow()),
        Ok(None) => Ok(None),
        Ok(Some(Ok(frame))) => Ok(Some(frame)),
        Ok(Some(Err(_))) => Err(Failure::bad_request("The request's body broke off")),
    }
}

fn slow() -> Failure {
    Failure::new(StatusCode::REQUEST_TIMEOUT, "timeout", "The request's body did not come in time")
}

fn too_large() -> Failure {
    Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "the request entity is too large")
}

/// Inflates a gzip body, asking for room before it grows.
fn inflate(bytes: &[u8], bytes_max: usize, mut grow: impl FnMut(usize) -> Result<()>) -> Result<Bytes> {
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
        read.map_err(|_| Failure::bad_request("The request's body is no gzip"))?;
        if out.len() > bytes_max {
            return Err(too_large());
        }
        if out.len() == before {
            return Ok(out.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// What a value takes beyond itself.
    fn room(value: &Value<'_>) -> usize {
        match value {
            Value::Array(items) => items.capacity() * size_of::<Value<'_>>() + items.iter().map(room).sum::<usize>(),
            Value::Object(members) => {
                let each = members.iter().map(|(_, value)| room(value)).sum::<usize>();
                members.capacity() * size_of::<(std::borrow::Cow<'_, str>, Value<'_>)>() + each
            }
            Value::String(text) | Value::Number(text) => text.len(),
            Value::Null | Value::Bool(_) => 0,
        }
    }

    #[test]
    fn trees_are_never_larger_than_reckoned() {
        let many = |item: &str| format!("[{}]", vec![item; 1_000].join(","));
        for text in [
            "[0,0,0,0,0]".to_owned(),
            many("0"),
            many("[0]"),
            many("[]"),
            many("{\"\":0}"),
            many("{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5}"),
            many("\"\\u0041\\n\""),
            format!("{{{}}}", (0..1_000).map(|n| format!("\"{n}\":{n}")).collect::<Vec<_>>().join(",")),
            format!("{}1{}", "[".repeat(400), "]".repeat(400)),
        ] {
            let value = flatbed_layer::json::parse(text.as_bytes(), &Default::default()).unwrap();
            assert!(room(&value) <= tree_bytes(text.as_bytes()), "{} {}", room(&value), text.len());
        }
    }

    #[test]
    fn bombs_are_refused_before_they_go_off() {
        let bomb = gzip(&vec![b'x'; 50_000_000]);
        assert!(bomb.len() < 100_000);
        let mut granted = 0;
        let grow = |step| {
            granted += step;
            Ok(())
        };
        assert_eq!(inflate(&bomb, 1_000_000, grow).unwrap_err().status, StatusCode::PAYLOAD_TOO_LARGE);
        assert!(granted < 4_000_000, "{granted}");
        assert_eq!(inflate(&bomb, 100_000_000, |_| Err(busy())).unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(inflate(&gzip(b"{}")[..10], 1_000, |_| Ok(())).is_err());
        assert_eq!(&inflate(&gzip(b"{}"), 1_000, |_| Ok(())).unwrap()[..], b"{}");
    }
}
