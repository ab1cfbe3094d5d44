//! The encoding of a record.

use bytes::Bytes;

use crate::error::Result;
use crate::keys::BlobId;
use crate::timestamp::Timestamp;
use crate::values::bytes_of::{Reader, Writer};

const HAS_SORTINDEX: u8 = 1;
const EXPIRES: u8 = 2;
const IS_BLOB: u8 = 4;

/// A record's row in its collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub modified: Timestamp,
    pub sortindex: Option<i32>,
    pub expires: Option<Timestamp>,
    pub payload: Payload,
}

/// A payload, or the place of its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Payload {
    Inline(Bytes),
    Blob { id: BlobId, len: u32 },
}

impl Payload {
    /// Returns its length in bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Payload::Inline(bytes) => bytes.len() as u64,
            Payload::Blob { len, .. } => u64::from(*len),
        }
    }

    pub(crate) fn blob(&self) -> Option<BlobId> {
        match self {
            Payload::Inline(_) => None,
            Payload::Blob { id, .. } => Some(*id),
        }
    }
}

impl Row {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(self.sortindex.is_some(), HAS_SORTINDEX)
            | flag(self.expires.is_some(), EXPIRES)
            | flag(self.payload.blob().is_some(), IS_BLOB);
        out.byte(flags).time(self.modified);
        if let Some(sortindex) = self.sortindex {
            out.bytes(&sortindex.to_be_bytes());
        }
        if let Some(expires) = self.expires {
            out.time(expires);
        }
        match &self.payload {
            Payload::Inline(bytes) => out.bytes(bytes),
            Payload::Blob { id, len } => out.u64(id.writer).u64(id.number).u32(*len),
        };
        out.finish()
    }

    pub(crate) fn decode(value: &Bytes) -> Result<Row> {
        let mut from = Reader::new(value, "a record")?;
        let (flags, modified) = (from.byte()?, from.time()?);
        let sortindex = from.when(flags & HAS_SORTINDEX != 0, |from| Ok(from.u32()? as i32))?;
        let expires = from.when(flags & EXPIRES != 0, Reader::time)?;
        let payload = if flags & IS_BLOB == 0 {
            Payload::Inline(from.rest(value))
        } else {
            let id = BlobId { writer: from.u64()?, number: from.u64()? };
            let len = from.u32()?;
            from.end()?;
            Payload::Blob { id, len }
        };
        Ok(Row { modified, sortindex, expires, payload })
    }
}
