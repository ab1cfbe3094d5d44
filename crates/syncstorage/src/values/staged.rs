//! The encodings of batches and their staged edits.

use crate::error::{Error, Result};
use crate::keys::BlobId;
use crate::names::CollectionName;
use crate::timestamp::Timestamp;
use crate::values::bytes_of::{Reader, Writer};

/// A batch or an upload that is not committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Batch {
    pub collection: CollectionName,
    /// The time at which it is removed.
    pub deadline: Timestamp,
    /// The number of its records, and the bytes of their payloads.
    pub records: u32,
    pub bytes: u64,
    /// The collection's state (0: missing) that all its edits were compared with.
    pub seen: Option<u64>,
    /// The number of appends.
    pub appends: u32,
    /// The changes of the collection's records and bytes by its commit.
    pub count_delta: i64,
    pub bytes_delta: i64,
    /// The shortest time to live of its edits.
    pub ttl_min: Option<u32>,
    /// The first expiry of a record of which an edit keeps a part; `Timestamp::MAX`: there is none.
    pub kept_earliest: Timestamp,
    /// Large payloads that are written and that no edit points at yet, at most [`AHEAD_MAX`], one for each write of
    /// them.
    pub ahead: Vec<StagedPayloads>,
}

/// The most writes of large payloads that a batch waits for: those of concurrent appends, and of servers that died.
const AHEAD_MAX: usize = 100;

/// The numbers that an append has for its large payloads. The first is a multiple of this.
pub(crate) const APPEND_NUMBERS: u64 = 0x1_0000;

/// The large payloads of one append or upload that no edit points at yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StagedPayloads {
    /// Their first number. They may use all numbers up to the append's last.
    pub next: u64,
    /// Their bytes together; 0: none is left.
    pub bytes: u32,
}

impl StagedPayloads {
    /// Returns the last number that they may have.
    pub(crate) fn last(self) -> u64 {
        self.next | (APPEND_NUMBERS - 1)
    }

    /// Returns whether a number belongs to the same append.
    pub(crate) fn is_of(self, number: u64) -> bool {
        self.next / APPEND_NUMBERS == number / APPEND_NUMBERS
    }
}

impl Batch {
    /// Returns the bytes of payloads stored for the batch.
    pub(crate) fn staged_bytes(&self) -> u64 {
        self.ahead.iter().fold(self.bytes, |bytes, ahead| bytes.saturating_add(ahead.bytes.into()))
    }

    /// Notes the large payloads of an append that are written and not pointed at.
    ///
    /// # Errors
    /// [`Error::TooMany`].
    pub(crate) fn note_ahead(&mut self, ahead: StagedPayloads) -> Result<()> {
        self.ahead.retain(|noted| !noted.is_of(ahead.next));
        if ahead.bytes == 0 {
            return Ok(());
        }
        if self.ahead.len() >= AHEAD_MAX {
            return Err(Error::TooMany("large payloads that were not staged"));
        }
        self.ahead.push(ahead);
        Ok(())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        let name = self.collection.as_str().as_bytes();
        out.byte(name.len() as u8).bytes(name).time(self.deadline).u32(self.records).u64(self.bytes);
        let has_ahead = u8::from(!self.ahead.is_empty());
        out.byte(u8::from(self.seen.is_some()) | u8::from(self.ttl_min.is_some()) << 1 | has_ahead << 2);
        out.u64(self.seen.unwrap_or_default()).u32(self.ttl_min.unwrap_or_default()).u32(self.appends);
        out.i64(self.count_delta).i64(self.bytes_delta).time(self.kept_earliest);
        if !self.ahead.is_empty() {
            out.byte(self.ahead.len() as u8);
        }
        for ahead in &self.ahead {
            out.u64(ahead.next).u32(ahead.bytes);
        }
        out.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Batch> {
        const WHAT: &str = "a batch";
        let mut from = Reader::new(bytes, WHAT)?;
        let len = from.byte()?;
        let name = std::str::from_utf8(from.some(usize::from(len))?).map_err(|_| Error::Corrupt(WHAT))?;
        let collection = CollectionName::new(name).ok_or(Error::Corrupt(WHAT))?;
        let (deadline, records, bytes, flags) = (from.time()?, from.u32()?, from.u64()?, from.byte()?);
        let (seen, ttl_min, appends) = (from.u64()?, from.u32()?, from.u32()?);
        let (count_delta, bytes_delta, kept_earliest) = (from.i64()?, from.i64()?, from.time()?);
        let ahead_len = from.when(flags & 4 != 0, Reader::byte)?.unwrap_or_default();
        let ahead = (0..ahead_len).map(|_| Ok(StagedPayloads { next: from.u64()?, bytes: from.u32()? }));
        let ahead = ahead.collect::<Result<_>>()?;
        from.end()?;
        let (seen, ttl_min) = ((flags & 1 != 0).then_some(seen), (flags & 2 != 0).then_some(ttl_min));
        Ok(Batch {
            collection,
            deadline,
            records,
            bytes,
            seen,
            appends,
            count_delta,
            bytes_delta,
            ttl_min,
            kept_earliest,
            ahead,
        })
    }
}

/// A staged edit of a batch, and the record below it when it was last compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StagedRow {
    pub payload: Option<StagedPayload>,
    pub sortindex: Option<i32>,
    pub ttl: Option<u32>,
    pub beneath: BaseRecord,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StagedPayload {
    /// In a key of its own, beside the edit.
    Beside { len: u32 },
    /// In parts.
    Blob { id: BlobId, len: u32 },
}

impl StagedPayload {
    pub(crate) fn len(self) -> u64 {
        match self {
            StagedPayload::Beside { len } | StagedPayload::Blob { len, .. } => u64::from(len),
        }
    }
}

/// The record below an edit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BaseRecord {
    /// True if a record exists, even an expired one.
    pub exists: bool,
    /// True if it has not expired, so that it keeps the members that the edit omits.
    pub is_live: bool,
    pub len: u32,
    pub sortindex: Option<i32>,
    pub expires: Option<Timestamp>,
}

const GIVES_PAYLOAD: u8 = 1;
const GIVES_SORTINDEX: u8 = 2;
const GIVES_TTL: u8 = 4;
const GIVES_BLOB: u8 = 8;
const EXISTS: u8 = 16;
const IS_LIVE: u8 = 32;
const HAD_SORTINDEX: u8 = 64;
const EXPIRED: u8 = 128;

impl StagedRow {
    /// Returns the record's sortindex.
    pub(crate) fn final_sortindex(&self) -> Option<i32> {
        self.sortindex.or(self.beneath.sortindex.filter(|_| self.beneath.is_live))
    }

    /// Returns when the record expires if the batch is committed at a time.
    pub(crate) fn final_expires(&self, modified: Timestamp) -> Option<Timestamp> {
        match self.ttl {
            Some(ttl) => Some(modified.after_seconds(ttl)),
            None => self.beneath.expires.filter(|_| self.beneath.is_live),
        }
    }

    /// Encodes the record's expiry for the entry by sortindex: `01` and the seconds after the commit, or `02` and a
    /// time, or nothing.
    pub(crate) fn encode_expires(&self) -> Vec<u8> {
        match (self.ttl, self.final_expires(Timestamp::ZERO)) {
            (Some(ttl), _) => [&[1][..], &ttl.to_be_bytes()].concat(),
            (None, Some(expires)) => [&[2][..], &expires.hundredths().to_be_bytes()].concat(),
            (None, None) => Vec::new(),
        }
    }

    /// Decodes [`StagedRow::encode_expires`], for a batch that was committed at a time.
    pub(crate) fn decode_expires(bytes: &[u8], modified: Timestamp) -> Result<Option<Timestamp>> {
        const WHAT: Error = Error::Corrupt("when a staged record expires");
        match bytes {
            [] => Ok(None),
            [1, ttl @ ..] => {
                let ttl = ttl.try_into().map_err(|_| WHAT)?;
                Ok(Some(modified.after_seconds(u32::from_be_bytes(ttl))))
            }
            [2, time @ ..] => {
                let time = time.try_into().map_err(|_| WHAT)?;
                Ok(Some(Timestamp::from_hundredths(i64::from_be_bytes(time))))
            }
            _ => Err(WHAT),
        }
    }

    /// Returns the bytes of the record's payload.
    pub(crate) fn final_len(&self) -> u64 {
        match self.payload {
            Some(payload) => payload.len(),
            None if self.beneath.is_live => u64::from(self.beneath.len),
            None => 0,
        }
    }

    /// Returns whether the payload is that of the record below.
    pub(crate) fn keeps_payload(&self) -> bool {
        self.payload.is_none() && self.beneath.is_live
    }

    /// Returns the changes of the collection's records and bytes.
    pub(crate) fn deltas(&self) -> (i64, i64) {
        let old = if self.beneath.exists { i64::from(self.beneath.len) } else { 0 };
        (i64::from(!self.beneath.exists), self.final_len() as i64 - old)
    }

    /// Returns when the record expires of which the edit keeps a part.
    pub(crate) fn kept_expires(&self) -> Option<Timestamp> {
        let keeps = self.payload.is_none() || self.sortindex.is_none() || self.ttl.is_none();
        self.beneath.expires.filter(|_| keeps && self.beneath.is_live)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let BaseRecord { exists, is_live, len, sortindex, expires } = self.beneath;
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(self.payload.is_some(), GIVES_PAYLOAD)
            | flag(self.sortindex.is_some(), GIVES_SORTINDEX)
            | flag(self.ttl.is_some(), GIVES_TTL)
            | flag(matches!(self.payload, Some(StagedPayload::Blob { .. })), GIVES_BLOB)
            | flag(exists, EXISTS)
            | flag(is_live, IS_LIVE)
            | flag(sortindex.is_some(), HAD_SORTINDEX)
            | flag(expires.is_some(), EXPIRED);
        let mut out = Writer::new();
        out.byte(flags);
        match self.payload {
            Some(StagedPayload::Beside { len }) => drop(out.u32(len)),
            Some(StagedPayload::Blob { id, len }) => drop(out.u32(len).u64(id.writer).u64(id.number)),
            None => {}
        }
        for number in [self.sortindex.map(|sortindex| sortindex as u32), self.ttl].into_iter().flatten() {
            out.u32(number);
        }
        out.u32(len);
        if let Some(sortindex) = sortindex {
            out.u32(sortindex as u32);
        }
        if let Some(expires) = expires {
            out.time(expires);
        }
        out.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<StagedRow> {
        let mut from = Reader::new(bytes, "a staged record")?;
        let flags = from.byte()?;
        let has = |flag: u8| flags & flag != 0;
        let payload = from.when(has(GIVES_PAYLOAD), |from| {
            let len = from.u32()?;
            if !has(GIVES_BLOB) {
                return Ok(StagedPayload::Beside { len });
            }
            Ok(StagedPayload::Blob { id: BlobId { writer: from.u64()?, number: from.u64()? }, len })
        })?;
        let sortindex = from.when(has(GIVES_SORTINDEX), |from| Ok(from.u32()? as i32))?;
        let ttl = from.when(has(GIVES_TTL), Reader::u32)?;
        let len = from.u32()?;
        let beneath = BaseRecord {
            exists: has(EXISTS),
            is_live: has(IS_LIVE),
            len,
            sortindex: from.when(has(HAD_SORTINDEX), |from| Ok(from.u32()? as i32))?,
            expires: from.when(has(EXPIRED), Reader::time)?,
        };
        from.end()?;
        Ok(StagedRow { payload, sortindex, ttl, beneath })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_ahead_is_bounded() {
        let mut batch = Batch {
            collection: CollectionName::new("tabs").unwrap(),
            deadline: Timestamp::ZERO,
            records: 0,
            bytes: 5,
            seen: None,
            appends: 0,
            count_delta: 0,
            bytes_delta: 0,
            ttl_min: None,
            kept_earliest: Timestamp::MAX,
            ahead: Vec::new(),
        };
        let of = |append: u64, next: u64, bytes| StagedPayloads { next: append * APPEND_NUMBERS + next, bytes };
        assert_eq!((of(3, 7, 1).last(), of(3, 0, 1).last()), (4 * APPEND_NUMBERS - 1, 4 * APPEND_NUMBERS - 1));
        for append in 0..AHEAD_MAX as u64 {
            batch.note_ahead(of(append, 0, 10)).unwrap();
        }
        assert_eq!(batch.staged_bytes(), 5 + 10 * AHEAD_MAX as u64);
        assert!(matches!(batch.note_ahead(of(1_000, 0, 10)), Err(Error::TooMany(_))));
        // An append has one note, and none once all of it is staged.
        batch.note_ahead(of(7, 2, 30)).unwrap();
        assert_eq!((batch.ahead.len(), batch.staged_bytes()), (AHEAD_MAX, 25 + 10 * AHEAD_MAX as u64));
        batch.note_ahead(of(7, 4, 0)).unwrap();
        assert_eq!((batch.ahead.len(), batch.staged_bytes()), (AHEAD_MAX - 1, 10 * AHEAD_MAX as u64 - 5));
    }
}
