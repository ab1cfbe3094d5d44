//! The compression of attachment data, in slices: a few bytes may inflate to many, so a blocking thread codes all but
//! the smallest data, and clients and databases take turns.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flatbed_store::error::{Error, Refusal, Result};
use flate2::write::{GzEncoder, MultiGzDecoder};
use flate2::{Compression, GzBuilder};

use crate::actor::Actor;
use crate::turns::{CodingKey, CodingTurns};

/// CouchDB's level of compression.
const GZIP_LEVEL: u32 = 8;

/// "Unix", as in CouchDB's gzip header.
const GZIP_SYSTEM: u8 = 3;

/// Bytes that a coder gets at once. It inflates at most about 64 kB before the work is counted.
const STEP_BYTES: usize = 4 * 1024;

/// The work of a step besides its bytes, in inflated bytes: it may begin a gzip member.
const WORK_OF_STEP: usize = 1024;

/// The work of a byte that goes into a coder, in inflated bytes.
const WORK_OF_BYTE: usize = 16;

/// The work of a slice on a blocking thread, in inflated bytes: a few milliseconds.
const SLICE_WORK: usize = 1 << 20;

/// The work that is done at once, on the thread of the request.
const SMALL_WORK: usize = 64 << 10;

/// Bytes to which the gzip attachments of a request may inflate, beside [`INFLATED_BY_BYTE`].
const INFLATED_FREE_BYTES: u64 = 1 << 30;

/// The bytes to which gzip attachments may inflate for each byte sent, beyond [`INFLATED_FREE_BYTES`]. Texts inflate to
/// less.
const INFLATED_BY_BYTE: u64 = 32;

/// The bound of the bytes to which the gzip attachments of one request inflate together: 1 GB, and 32 bytes for each
/// byte sent. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct InflationBound(Arc<Inflated>);

#[derive(Debug, Default)]
struct Inflated {
    sent: AtomicU64,
    inflated: AtomicU64,
}

impl InflationBound {
    fn bytes_max(&self) -> u64 {
        let by_sent = self.0.sent.load(Ordering::Relaxed).saturating_mul(INFLATED_BY_BYTE);
        INFLATED_FREE_BYTES.saturating_add(by_sent)
    }

    fn send(&self, bytes: usize) {
        self.0.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Adds inflated bytes.
    ///
    /// # Errors
    /// [`Refusal::AttachmentTooLarge`]
    fn inflate(&self, bytes: u64) -> Result<()> {
        let inflated = self.0.inflated.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let bytes_max = self.bytes_max();
        if inflated > bytes_max { Err(Refusal::AttachmentTooLarge { bytes_max }.into()) } else { Ok(()) }
    }
}

#[derive(Default)]
struct Count(u64);

impl Write for Count {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A coder from bytes as sent to bytes as stored.
enum Coder {
    Compress(Box<GzEncoder<Vec<u8>>>),
    /// Sent compressed, and stored as sent; inflated only to learn the length.
    Compressed(Box<MultiGzDecoder<Count>>),
}

impl Coder {
    /// Returns the bytes that the coder has made of its input: inflated ones, or compressed ones not yet taken.
    fn made(&self) -> u64 {
        match self {
            Coder::Compress(encoder) => encoder.get_ref().len() as u64,
            Coder::Compressed(decoder) => decoder.get_ref().0,
        }
    }

    fn inflated(&self) -> u64 {
        match self {
            Coder::Compress(_) => 0,
            Coder::Compressed(decoder) => decoder.get_ref().0,
        }
    }

    fn step(&mut self, bytes: &[u8]) -> Result<usize> {
        match self {
            Coder::Compress(encoder) => {
                encoder.write_all(bytes).map_err(|error| Error::Corrupt(error.to_string()))?;
                Ok(bytes.len())
            }
            Coder::Compressed(decoder) => match decoder.write(bytes) {
                Ok(consumed) if consumed > 0 => Ok(consumed),
                Ok(_) | Err(_) => Err(Refusal::InvalidAttachment.into()),
            },
        }
    }

    /// Codes bytes until the work exceeds `work_max`, and returns how many. `bytes_max` bounds the inflated bytes.
    fn slice(&mut self, bytes: &[u8], work_max: usize, bytes_max: u64, request: &InflationBound) -> Result<usize> {
        let (mut coded, mut work) = (0, 0);
        while work < work_max && coded < bytes.len() {
            let left = bytes.get(coded..).unwrap_or_default();
            let (had, had_inflated) = (self.made(), self.inflated());
            let consumed = self.step(left.get(..STEP_BYTES.min(left.len())).unwrap_or_default())?;
            coded += consumed;
            let made = usize::try_from(self.made().saturating_sub(had)).unwrap_or(usize::MAX);
            work = work.saturating_add(made).saturating_add(WORK_OF_STEP + WORK_OF_BYTE * consumed);
            check(self.inflated(), bytes_max)?;
            request.inflate(self.inflated() - had_inflated)?;
        }
        Ok(coded)
    }
}

fn check(inflated: u64, bytes_max: u64) -> Result<()> {
    if inflated > bytes_max { Err(Refusal::AttachmentTooLarge { bytes_max }.into()) } else { Ok(()) }
}

/// The coding of one attachment.
pub enum Coding {
    /// The bytes are stored as sent.
    Identity,
    Running(ActiveCoding),
    /// A write failed or was dropped, so the coder is lost.
    Broken,
}

pub struct ActiveCoding {
    coder: Coder,
    request: InflationBound,
}

/// The end of a [`Coding`].
pub struct CodingEnd {
    /// The last bytes to store.
    pub rest: Vec<u8>,
    /// The length of the plain bytes, if it is not that of the bytes sent.
    pub inflated: Option<u64>,
    /// True if gzip is stored.
    pub gzip: bool,
}

/// The turns of a write, and the keys by which it takes them.
pub struct CodingWriter<'a> {
    pub turns: &'a Arc<CodingTurns>,
    pub database: &'a str,
    pub actor: &'a Actor,
}

impl CodingWriter<'_> {
    fn keys(&self) -> [CodingKey; 2] {
        let client = self.actor.user().and_then(|user| user.client);
        [CodingKey::Database(self.database.to_owned()), CodingKey::Client(client)]
    }
}

impl Coding {
    /// Compresses what the client sends.
    pub fn compress() -> Coding {
        let encoder = GzBuilder::new().operating_system(GZIP_SYSTEM);
        let encoder = encoder.write(Vec::new(), Compression::new(GZIP_LEVEL));
        Coding::Running(ActiveCoding { coder: Coder::Compress(Box::new(encoder)), request: InflationBound::default() })
    }

    /// The client sends gzip.
    pub fn compressed() -> Coding {
        let decoder = MultiGzDecoder::new(Count::default());
        Coding::Running(ActiveCoding {
            coder: Coder::Compressed(Box::new(decoder)),
            request: InflationBound::default(),
        })
    }

    /// Sets the bound that this shares with other attachments of its request. Precedes the first bytes.
    pub fn bound_by(&mut self, bound: &InflationBound) {
        if let Coding::Running(running) = self {
            running.request = bound.clone();
        }
    }

    /// Codes bytes and appends those to store to `pending`. `bytes_max` bounds the inflated bytes.
    ///
    /// # Errors
    /// [`Refusal::AttachmentTooLarge`], [`Refusal::InvalidAttachment`].
    pub async fn write(
        &mut self,
        bytes: &[u8],
        bytes_max: u64,
        writer: CodingWriter<'_>,
        pending: &mut Vec<u8>,
    ) -> Result<()> {
        let mut running = match std::mem::replace(self, Coding::Broken) {
            Coding::Identity => {
                *self = Coding::Identity;
                pending.extend_from_slice(bytes);
                return Ok(());
            }
            Coding::Running(running) => running,
            Coding::Broken => return Err(broken()),
        };
        if matches!(running.coder, Coder::Compressed(_)) {
            running.request.send(bytes.len());
        }
        let mut coded = running.coder.slice(bytes, SMALL_WORK, bytes_max, &running.request)?;
        // A request may have many small attachments.
        tokio::task::yield_now().await;
        while coded < bytes.len() {
            let left = bytes.get(coded..).unwrap_or_default();
            // A slice consumes at most about this many.
            let slice = left.get(..left.len().min(SLICE_WORK / WORK_OF_BYTE)).unwrap_or_default().to_vec();
            let turn = writer.turns.wait(writer.keys()).await.map_err(|_| Error::ShuttingDown)?;
            let task = tokio::task::spawn_blocking(move || {
                // The turn ends with the work, even if the request ends first.
                let _turn = turn;
                let consumed = running.coder.slice(&slice, SLICE_WORK, bytes_max, &running.request);
                (consumed, running)
            });
            let (consumed, rest) = task.await.map_err(Error::of_task)?;
            running = rest;
            coded += consumed?;
            // A task that is complete at once does not yield.
            tokio::task::yield_now().await;
        }
        match &mut running.coder {
            Coder::Compress(encoder) => pending.append(encoder.get_mut()),
            Coder::Compressed(_) => pending.extend_from_slice(bytes),
        }
        *self = Coding::Running(running);
        Ok(())
    }

    /// Completes the coding.
    ///
    /// # Errors
    /// As [`Coding::write`].
    pub fn finish(&mut self, bytes_max: u64) -> Result<CodingEnd> {
        let ActiveCoding { coder, request } = match std::mem::replace(self, Coding::Broken) {
            Coding::Identity => return Ok(CodingEnd { rest: Vec::new(), inflated: None, gzip: false }),
            Coding::Running(running) => running,
            Coding::Broken => return Err(broken()),
        };
        match coder {
            Coder::Compress(encoder) => {
                let rest = encoder.finish().map_err(|error| Error::Corrupt(error.to_string()))?;
                Ok(CodingEnd { rest, inflated: None, gzip: true })
            }
            Coder::Compressed(decoder) => {
                let had = decoder.get_ref().0;
                let inflated = decoder.finish().map_err(|_| Refusal::InvalidAttachment)?.0;
                check(inflated, bytes_max)?;
                request.inflate(inflated.saturating_sub(had))?;
                Ok(CodingEnd { rest: Vec::new(), inflated: Some(inflated), gzip: true })
            }
        }
    }
}

fn broken() -> Error {
    Error::BrokenOff("an upload continued after a failed write".to_owned())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn running(coding: Coding) -> ActiveCoding {
        match coding {
            Coding::Running(running) => running,
            Coding::Identity | Coding::Broken => panic!("not coded"),
        }
    }

    /// Codes bytes in slices and returns their number.
    fn slices(running: &mut ActiveCoding, bytes: &[u8]) -> usize {
        let (mut coded, mut slices) = (0, 0);
        while coded < bytes.len() {
            let left = &bytes[coded..];
            coded += running.coder.slice(left, SLICE_WORK, u64::MAX, &running.request).unwrap();
            slices += 1;
        }
        slices
    }

    #[test]
    fn a_slice_has_a_bounded_work() {
        let mut bomb = running(Coding::compressed());
        assert!(slices(&mut bomb, &gzip(&vec![0; 50_000_000])) >= 40);
        // Neither the bytes nor empty members are free.
        let empty = gzip(b"").repeat(10_000);
        assert!(slices(&mut running(Coding::compressed()), &empty) >= 10);
        assert!(slices(&mut running(Coding::compress()), &vec![7; 1_000_000]) >= 15);
    }

    #[test]
    fn inflation_ends_at_the_bound() {
        let bomb = gzip(&vec![0; 20_000_000]);
        let mut decoding = running(Coding::compressed());
        let refused = decoding.coder.slice(&bomb, usize::MAX, 1_000_000, &decoding.request);
        assert!(matches!(refused, Err(Error::Refused(Refusal::AttachmentTooLarge { bytes_max: 1_000_000 }))));
        assert!(decoding.coder.inflated() < 1_200_000, "{}", decoding.coder.inflated());
    }

    #[test]
    fn attachments_of_a_request_share_a_bound() {
        let bound = InflationBound::default();
        let other = bound.clone();
        other.inflate(INFLATED_FREE_BYTES - 10_000_000).unwrap();
        let bomb = gzip(&vec![0; 20_000_000]);
        let mut coding = Coding::compressed();
        coding.bound_by(&bound);
        let mut decoding = running(coding);
        let refused = decoding.coder.slice(&bomb, usize::MAX, u64::MAX, &decoding.request);
        assert!(matches!(refused, Err(Error::Refused(Refusal::AttachmentTooLarge { .. }))));
        // Bytes sent are allowed what a text inflates to.
        other.send(1_000_000);
        assert!(other.inflate(20_000_000).is_ok());
    }

    #[tokio::test]
    async fn a_dropped_write_takes_no_more_turns() {
        let turns = CodingTurns::new(1, 9);
        let held = turns.wait([CodingKey::Client(None), CodingKey::Client(None)]).await.unwrap();
        let actor = Actor::Server(crate::actor::authority().for_job("test"));
        let writer = || CodingWriter { turns: &turns, database: "db", actor: &actor };
        let (mut coding, mut pending, bomb) = (Coding::compressed(), Vec::new(), gzip(&vec![0; 5_000_000]));
        let mut write = Box::pin(coding.write(&bomb, u64::MAX, writer(), &mut pending));
        // It codes a little and yields, then waits.
        for waiting in 0..2 {
            assert!((&mut write).now_or_never().is_none());
            assert_eq!(turns.waiting(), waiting);
        }
        drop(write);
        assert_eq!(turns.waiting(), 0);
        drop(held);
        assert!(matches!(coding.write(b"x", u64::MAX, writer(), &mut pending).await, Err(Error::BrokenOff(_))));
        assert_eq!((turns.begun(), pending.len()), (1, 0));
    }
}
