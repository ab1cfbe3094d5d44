//! Request bodies while they arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Frame, Incoming};
use tokio::time::Instant;

use crate::body_memory::{
    ArrivingBody, Body, BodyMemory, Client, FREE_BYTES, Memory, STEP_BYTES, UploadRoom, too_large,
};
use crate::limits::Limits;
use crate::outlet::Connection;
use crate::rejection::{Rejection, Result};
use crate::shares::Sender;

/// The rate, in bytes per second, that extends the time limit of a long body.
const LEAST_BYTES_A_SECOND: u64 = 16 * 1024;

#[derive(Debug, Clone, Default)]
pub(crate) struct BodyTime(Arc<AtomicU64>);

impl BodyTime {
    fn set(&self, waited: Duration) {
        self.0.store(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns milliseconds; 0 without a body, or if the body was not read as a whole before the answer began.
    pub(crate) fn millis(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A request body that is arriving.
#[derive(Debug)]
pub struct RequestBody {
    body: Incoming,
    /// A body that replaces the rest.
    instead: Option<Body>,
    bytes: u64,
    began: Instant,
    /// Limits of the time between two pieces, and in total.
    pause_max: Duration,
    all_max: Duration,
    memory: BodyMemory,
    coming: Arc<ArrivingBody>,
    /// The connection, and the total time that the server waited for the body.
    connection: Arc<Connection>,
    waited: Duration,
    time: BodyTime,
}

impl RequestBody {
    pub(crate) fn new(
        body: Incoming,
        memory: &BodyMemory,
        limits: &Limits,
        sender: Option<Sender>,
        connection: &Arc<Connection>,
    ) -> RequestBody {
        RequestBody {
            body,
            instead: None,
            bytes: 0,
            began: Instant::now(),
            pause_max: limits.body_pause_max,
            all_max: limits.body_max,
            memory: memory.clone(),
            coming: memory.expect(sender),
            connection: connection.clone(),
            waited: Duration::ZERO,
            time: BodyTime::default(),
        }
    }

    pub(crate) fn time(&self) -> BodyTime {
        self.time.clone()
    }

    pub(crate) fn tell_time(&self) {
        self.time.set(self.waited);
    }

    pub(crate) fn within(&mut self, all_max: Duration) {
        self.all_max = self.all_max.min(all_max);
    }

    /// Reserves memory for at most `bytes` that the client will send besides the body.
    ///
    /// # Errors
    /// 503 if memory is exhausted; 429 if the share of the client's address is.
    pub fn room_for(&self, bytes: usize) -> Result<Memory> {
        self.memory.room_for(self.coming.sender(), bytes)
    }

    pub(crate) fn put_back(&mut self, body: Body) {
        self.instead = Some(body);
    }

    /// Returns the next piece, `None` at the end.
    ///
    /// # Errors
    /// 408 if the body is late, or slow while others need its memory; 400 if it breaks off.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>> {
        if let Some(Body { bytes, .. }) = self.instead.take().filter(|body| !body.bytes.is_empty()) {
            return Ok(Some(bytes));
        }
        loop {
            let left = time_for(self.all_max, self.bytes).saturating_sub(self.began.elapsed());
            let frame = tokio::time::timeout(left.min(self.pause_max), self.body.frame());
            let frame = self.coming.more(frame, |frame| match frame {
                Ok(Some(Ok(frame))) => frame.data_ref().map_or(0, Bytes::len),
                _ => 0,
            });
            let waits = Instant::now();
            let awaited = self.connection.awaits_body(self.waited, self.bytes);
            let frame = frame.await;
            drop(awaited);
            self.waited += waits.elapsed();
            let frame = match frame {
                None | Some(Err(_)) => return Err(slow()),
                Some(Ok(None)) => return Ok(None),
                Some(Ok(Some(frame))) => frame,
            };
            let broken = |_| Rejection::bad_request("The request's body broke off");
            if let Ok(data) = frame.map(Frame::into_data).map_err(broken)? {
                self.bytes += data.len() as u64;
                return Ok(Some(data));
            }
        }
    }

    /// Waits for the room of an upload, and ends slow uploads for it. `has_gzip`: the upload is compressed or will
    /// be.
    ///
    /// # Errors
    /// 503 after a long wait.
    pub async fn upload_room(&self, has_gzip: bool) -> Result<UploadRoom> {
        self.memory.upload(has_gzip, &self.coming).await
    }
}

/// Returns the time limit of a body of which `bytes` have arrived.
fn time_for(all_max: Duration, bytes: u64) -> Duration {
    all_max + Duration::from_secs(bytes / LEAST_BYTES_A_SECOND)
}

fn slow() -> Rejection {
    Rejection::new(StatusCode::REQUEST_TIMEOUT, "timeout", "The request's body did not come in time")
}

pub(crate) struct TextBuffer {
    of: BodyMemory,
    coming: Arc<ArrivingBody>,
    memory: Memory,
    reserved: usize,
    /// The announced length, up to [`FREE_BYTES`], which needs no reservation.
    expected: usize,
    bytes: BytesMut,
}

impl TextBuffer {
    pub(crate) fn new(of: &RequestBody, expected: Option<usize>) -> TextBuffer {
        let expected = expected.unwrap_or(0).min(FREE_BYTES);
        let (of, coming) = (of.memory.clone(), of.coming.clone());
        TextBuffer { of, coming, memory: Memory::default(), reserved: FREE_BYTES, expected, bytes: BytesMut::new() }
    }

    /// Appends data.
    ///
    /// # Errors
    /// 413 if the text is too long, 503 if memory is exhausted.
    pub(crate) async fn push(&mut self, data: &[u8]) -> Result<()> {
        if self.bytes.len() + data.len() > self.of.body_bytes_max() {
            return Err(too_large());
        }
        while self.bytes.len() + data.len() > self.reserved {
            self.of.grow_coming(&mut self.memory, self.reserved, &self.coming).await?;
            self.reserved += STEP_BYTES;
        }
        // Not for a client that announces much and sends little.
        if self.bytes.is_empty() && data.len() >= self.expected / 4 {
            self.bytes.reserve(self.expected);
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    pub(crate) fn into_parts(self) -> (Bytes, Memory) {
        (self.bytes.freeze(), self.memory)
    }

    pub(crate) async fn finish(self, client: Option<&Client>) -> Result<Body> {
        let of = self.of.clone();
        let (bytes, mut memory) = self.into_parts();
        memory.reserve_tree(&of, &bytes, client).await?;
        Ok(Body { bytes, memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_body_is_told_in_milliseconds() {
        let time = BodyTime::default();
        let told = time.clone();
        assert_eq!(told.millis(), 0);
        time.set(Duration::from_micros(2_999));
        assert_eq!(told.millis(), 2);
    }

    #[test]
    fn who_goes_on_has_more_time() {
        // One byte each 29 s gains no time.
        let all_max = Limits::default().body_max;
        assert_eq!(time_for(all_max, 0), all_max);
        assert_eq!(time_for(all_max, all_max.as_secs() / 29), all_max);
        // The largest attachment may take 18 hours.
        assert_eq!(time_for(all_max, 1 << 30), all_max + Duration::from_secs(65_536));
    }
}
