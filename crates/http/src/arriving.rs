//! A request's body on its way in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Frame, Incoming};
use tokio::time::Instant;

use crate::body_memory::{Body, BodyMemory, Client, Coming, FREE_BYTES, Memory, STEP_BYTES, UploadRoom, too_large};
use crate::limits::Limits;
use crate::outlet::Connection;
use crate::refused::{Refused, Result};
use crate::shares::Sender;

/// A body may take longer than that if so much has come for each second.
const LEAST_BYTES_A_SECOND: u64 = 16 * 1024;

/// The time spent waiting for a request body that is read as a whole, for the head of the answer. It depends on the client only.
#[derive(Debug, Clone, Default)]
pub(crate) struct BodyTime(Arc<AtomicU64>);

impl BodyTime {
    fn set(&self, waited: Duration) {
        self.0.store(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// In milliseconds; 0 without a body, or if the body was not read as a whole before the answer began.
    pub(crate) fn millis(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A request's body.
#[derive(Debug)]
pub struct Arriving {
    body: Incoming,
    /// What comes in the place of the rest.
    instead: Option<Body>,
    bytes: u64,
    began: Instant,
    /// Between two pieces, and for all of it, however it trickles.
    pause_max: Duration,
    all_max: Duration,
    memory: BodyMemory,
    coming: Arc<Coming>,
    /// Where it comes, and how long it was waited for in all.
    connection: Arc<Connection>,
    waited: Duration,
    time: BodyTime,
}

impl Arriving {
    pub(crate) fn new(
        body: Incoming,
        memory: &BodyMemory,
        limits: &Limits,
        sender: Option<Sender>,
        connection: &Arc<Connection>,
    ) -> Arriving {
        Arriving {
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

    /// Returns the time that [`Arriving::tell_time`] publishes.
    pub(crate) fn time(&self) -> BodyTime {
        self.time.clone()
    }

    /// Publishes the time, after the body was read as a whole.
    pub(crate) fn tell_time(&self) {
        self.time.set(self.waited);
    }

    /// It may take no longer than that.
    pub(crate) fn within(&mut self, all_max: Duration) {
        self.all_max = self.all_max.min(all_max);
    }

    /// Room for something else that the request's client is going to send, of at most so many bytes.
    ///
    /// # Errors
    /// 503 where there is none; 429 where the client's address has its share.
    pub fn room_for(&self, bytes: usize) -> Result<Memory> {
        self.memory.room_for(self.coming.sender(), bytes)
    }

    /// What was read of it comes again, or something else in its place.
    pub(crate) fn put_back(&mut self, body: Body) {
        self.instead = Some(body);
    }

    /// The next piece; `None` at its end.
    ///
    /// # Errors
    /// 408 where it does not come in time, or too slowly where others need what it holds; 400 where it breaks off.
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
            let broken = |_| Refused::bad_request("The request's body broke off");
            if let Ok(data) = frame.map(Frame::into_data).map_err(broken)? {
                self.bytes += data.len() as u64;
                return Ok(Some(data));
            }
        }
    }

    /// Waits for room for an upload of what comes here, for which slow ones are ended. `has_gzip`: it is compressed, or
    /// becomes so.
    ///
    /// # Errors
    /// 503 where there is none for long.
    pub async fn upload_room(&self, has_gzip: bool) -> Result<UploadRoom> {
        self.memory.upload(has_gzip, &self.coming).await
    }
}

/// How long a body may take of which so much has come.
fn time_for(all_max: Duration, bytes: u64) -> Duration {
    all_max + Duration::from_secs(bytes / LEAST_BYTES_A_SECOND)
}

fn slow() -> Refused {
    Refused::new(StatusCode::REQUEST_TIMEOUT, "timeout", "The request's body did not come in time")
}

/// A text on its way in, with the memory that it takes.
pub(crate) struct Gathering {
    of: BodyMemory,
    coming: Arc<Coming>,
    memory: Memory,
    reserved: usize,
    /// How long it is said to be, as far as that costs nothing.
    expected: usize,
    bytes: BytesMut,
}

impl Gathering {
    /// `expected`: how long it is, if that is known.
    pub(crate) fn new(of: &Arriving, expected: Option<usize>) -> Gathering {
        let expected = expected.unwrap_or(0).min(FREE_BYTES);
        let (of, coming) = (of.memory.clone(), of.coming.clone());
        Gathering { of, coming, memory: Memory::default(), reserved: FREE_BYTES, expected, bytes: BytesMut::new() }
    }

    /// More of it.
    ///
    /// # Errors
    /// 413 when it becomes too long, 503 when there is no memory for it.
    pub(crate) async fn push(&mut self, data: &[u8]) -> Result<()> {
        if self.bytes.len() + data.len() > self.of.body_bytes_max() {
            return Err(too_large());
        }
        while self.bytes.len() + data.len() > self.reserved {
            self.of.grow_coming(&mut self.memory, self.reserved, &self.coming).await?;
            self.reserved += STEP_BYTES;
        }
        // Not for who says that much comes, and sends a little.
        if self.bytes.is_empty() && data.len() >= self.expected / 4 {
            self.bytes.reserve(self.expected);
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// It is complete.
    pub(crate) fn into_parts(self) -> (Bytes, Memory) {
        (self.bytes.freeze(), self.memory)
    }

    /// It is complete: waits for the room that its tree may take, as long as its client does.
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
        // A byte every 29 s comes to an end.
        let all_max = Limits::default().body_max;
        assert_eq!(time_for(all_max, 0), all_max);
        assert_eq!(time_for(all_max, all_max.as_secs() / 29), all_max);
        // The largest attachment in 18 hours.
        assert_eq!(time_for(all_max, 1 << 30), all_max + Duration::from_secs(65_536));
    }
}
