//! A collection's state.

use crate::error::Result;
use crate::names::BatchId;
use crate::timestamp::Timestamp;
use crate::values::bytes_of::{Reader, Writer};

/// What is known of a collection without looking at its records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Collection {
    pub modified: Timestamp,
    /// Records, those among them that have expired and are not swept yet; those of overlays are counted, once each.
    pub count: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Another number, drawn by lot, with every change of what there is to see.
    pub state: u64,
    /// No record that lies in the collection itself expires before; `Timestamp::MAX`: none does. It stands in what is due.
    pub earliest: Timestamp,
    /// A batch is about to be committed, and others wait for it.
    pub hold: Option<Hold>,
    /// Batches that are committed and not folded, oldest first.
    pub overlays: Vec<Overlay>,
}

/// Others wait for this batch, until a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hold {
    pub batch: BatchId,
    pub until: Timestamp,
}

/// A batch that is committed: what it has of an id is seen instead of what lies beneath.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overlay {
    pub batch: BatchId,
    /// When it was committed: the time of all that it has.
    pub modified: Timestamp,
    /// Nothing that it has expires before.
    pub earliest: Timestamp,
}

impl Default for Collection {
    /// One that is not there.
    fn default() -> Collection {
        Collection {
            modified: Timestamp::ZERO,
            count: 0,
            bytes: 0,
            state: 0,
            earliest: Timestamp::MAX,
            hold: None,
            overlays: Vec::new(),
        }
    }
}

impl Collection {
    /// No record expires before.
    pub(crate) fn earliest_of_all(&self) -> Timestamp {
        self.overlays.iter().map(|overlay| overlay.earliest).fold(self.earliest, Timestamp::min)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.time(self.modified).u64(self.count).u64(self.bytes).u64(self.state).time(self.earliest);
        out.byte(u8::from(self.hold.is_some()));
        if let Some(Hold { batch, until }) = self.hold {
            out.u64(batch.0).time(until);
        }
        out.byte(self.overlays.len() as u8);
        for Overlay { batch, modified, earliest } in &self.overlays {
            out.u64(batch.0).time(*modified).time(*earliest);
        }
        out.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Collection> {
        let mut from = Reader::new(bytes, "a collection's state")?;
        let (modified, count, bytes, state, earliest) =
            (from.time()?, from.u64()?, from.u64()?, from.u64()?, from.time()?);
        let is_held = from.byte()? != 0;
        let hold = from.when(is_held, |from| Ok(Hold { batch: BatchId(from.u64()?), until: from.time()? }))?;
        let overlays = from.byte()?;
        let overlays = (0..overlays)
            .map(|_| Ok(Overlay { batch: BatchId(from.u64()?), modified: from.time()?, earliest: from.time()? }))
            .collect::<Result<_>>()?;
        from.end()?;
        Ok(Collection { modified, count, bytes, state, earliest, hold, overlays })
    }
}
