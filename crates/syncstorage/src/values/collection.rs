//! The state of a collection.

use crate::error::Result;
use crate::names::BatchId;
use crate::timestamp::Timestamp;
use crate::values::bytes_of::{Reader, Writer};

/// The state of a collection, which is known without reading its records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Collection {
    pub modified: Timestamp,
    /// Records, including expired ones that are not swept yet. A record in overlays counts once.
    pub count: u64,
    /// The bytes of their payloads.
    pub bytes: u64,
    /// A random number, another one with each change of the visible collection.
    pub state: u64,
    /// No record of the collection itself expires before this time; `Timestamp::MAX`: none does. The due work has it.
    pub earliest: Timestamp,
    /// The batch that is about to be committed, for which other writers wait.
    pub hold: Option<Hold>,
    /// Committed batches that are not folded, oldest first.
    pub overlays: Vec<Overlay>,
}

/// A batch for which other writers wait, until a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hold {
    pub batch: BatchId,
    pub until: Timestamp,
}

/// A committed batch. Its edits hide the records below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overlay {
    pub batch: BatchId,
    /// The time of its commit, and so of its records.
    pub modified: Timestamp,
    /// None of its records expires before this time.
    pub earliest: Timestamp,
}

impl Default for Collection {
    /// Returns the state of a missing collection.
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
    /// Returns a time before which no record expires.
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
