//! What a handler is given: the request taken apart, and its body read within bounds.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, StatusCode, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::Principal;
use crate::error::{Failure, Result};
use crate::query::Query;

/// Between two pieces of a body.
const BODY_IDLE_MAX: Duration = Duration::from_secs(30);

/// For a whole body, however it trickles.
const BODY_TOTAL_MAX: Duration = Duration::from_secs(600);

/// Bodies are parsed into trees of several times their size: so much is reckoned for each byte.
const MEMORY_FACTOR: usize = 4;

/// The unit in which memory for bodies is given out.
const PERMIT_BYTES: usize = 1024;

/// A body that does not say its length reserves memory in steps of this.
const STEP_BYTES: usize = 256 * 1024;

/// Memory that bodies of requests may take together.
#[derive(Debug, Clone)]
pub(crate) struct BodyMemory {
    permits: Arc<Semaphore>,
    body_bytes_max: usize,
}

impl BodyMemory {
    pub(crate) fn new(total_bytes: usize, body_bytes_max: usize) -> Self {
        let permits = (total_bytes / PERMIT_BYTES).max(body_bytes_max * MEMORY_FACTOR / PERMIT_BYTES + 1);
        BodyMemory { permits: Arc::new(Semaphore::new(permits)), body_bytes_max }
    }

    fn permits(bytes: usize) -> u32 {
        u32::try_from((bytes * MEMORY_FACTOR).div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX)
    }

    /// Waits a while for room.
    async fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit> {
        let wait = self.permits.clone().acquire_many_owned(Self::permits(bytes));
        match tokio::time::timeout(BODY_IDLE_MAX, wait).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(busy()),
        }
    }

    /// Takes more room if it is there: who holds some must not wait for more.
    fn grow(&self, permit: &mut OwnedSemaphorePermit, bytes: usize) -> Result<()> {
        let more = self.permits.clone().try_acquire_many_owned(Self::permits(bytes)).map_err(|_| busy())?;
        permit.merge(more);
        Ok(())
    }
}

fn busy() -> Failure {
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", "Too many large requests at once")
}

/// A body with the memory that it was given.
#[derive(Debug)]
pub(crate) struct Body {
    pub bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

/// A request.
pub(crate) struct Request {
    pub method: Method,
    /// Decoded, without the leading slash; empty for `/`.
    pub segments: Vec<String>,
    pub query: Query,
    pub headers: HeaderMap,
    pub body: Incoming,
    pub memory: BodyMemory,
    /// Who asks. All are administrators for now; users and per-database security look here.
    pub principal: Principal,
}

impl Request {
    pub(crate) fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
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
        let bytes_max = self.memory.body_bytes_max;
        let known = self.header(header::CONTENT_LENGTH).and_then(|length| length.parse::<usize>().ok());
        if known.is_some_and(|length| length > bytes_max) {
            return Err(too_large());
        }
        let mut reserved = known.unwrap_or(STEP_BYTES);
        let mut permit = self.memory.reserve(reserved).await?;
        let mut bytes = BytesMut::with_capacity(known.unwrap_or(0).min(STEP_BYTES));
        let read = async {
            while let Some(frame) = next_frame(&mut self.body).await? {
                let Ok(data) = frame.into_data() else { continue };
                if bytes.len() + data.len() > bytes_max {
                    return Err(too_large());
                }
                while bytes.len() + data.len() > reserved {
                    self.memory.grow(&mut permit, STEP_BYTES)?;
                    reserved += STEP_BYTES;
                }
                bytes.extend_from_slice(&data);
            }
            Ok(())
        };
        tokio::time::timeout(BODY_TOTAL_MAX, read).await.map_err(|_| slow())??;
        let bytes = bytes.freeze();
        match self.header(header::CONTENT_ENCODING).map(str::trim) {
            None | Some("" | "identity") => Ok(Body { bytes, _permit: permit }),
            Some(encoding) if encoding.eq_ignore_ascii_case("gzip") => {
                let bytes = inflate(&bytes, bytes_max, |step| self.memory.grow(&mut permit, step))?;
                Ok(Body { bytes, _permit: permit })
            }
            Some(_) => {
                let reason = "Only gzip and identity are supported in Content-Encoding";
                Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_ctype", reason))
            }
        }
    }

    /// Reads what is left of a body that nobody needs, so that the connection can go on.
    pub(crate) async fn skip_body(&mut self) {
        let mut left = STEP_BYTES;
        while let Ok(Some(frame)) = next_frame(&mut self.body).await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            if bytes > left {
                return;
            }
            left -= bytes;
        }
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
    let mut reserved = bytes.len();
    loop {
        if out.len() + STEP_BYTES > reserved {
            grow(STEP_BYTES)?;
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
        assert!(granted < 2_000_000, "{granted}");
        assert_eq!(inflate(&bomb, 100_000_000, |_| Err(busy())).unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(inflate(&gzip(b"{}")[..10], 1_000, |_| Ok(())).is_err());
        assert_eq!(&inflate(&gzip(b"{}"), 1_000, |_| Ok(())).unwrap()[..], b"{}");
    }
}
