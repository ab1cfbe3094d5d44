//! Conversions between numbers and bytes.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::timestamp::Timestamp;
use crate::values::FORMAT;

/// An encoder.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new() -> Writer {
        let mut bytes = Vec::with_capacity(64);
        bytes.push(FORMAT);
        Writer(bytes)
    }

    pub(crate) fn byte(&mut self, value: u8) -> &mut Writer {
        self.0.push(value);
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Writer {
        self.bytes(&value.to_be_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Writer {
        self.bytes(&value.to_be_bytes())
    }

    pub(crate) fn i64(&mut self, value: i64) -> &mut Writer {
        self.bytes(&value.to_be_bytes())
    }

    pub(crate) fn time(&mut self, value: Timestamp) -> &mut Writer {
        self.i64(value.hundredths())
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Writer {
        self.0.extend_from_slice(value);
        self
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// A decoder.
pub(crate) struct Reader<'b> {
    rest: &'b [u8],
    what: &'static str,
}

impl<'b> Reader<'b> {
    /// Begins to decode a value of the known format. `what`: the value's name, for the error.
    pub(crate) fn new(bytes: &'b [u8], what: &'static str) -> Result<Reader<'b>> {
        match bytes.split_first() {
            Some((&FORMAT, rest)) => Ok(Reader { rest, what }),
            Some((&other, _)) => Err(Error::Format(other)),
            None => Err(Error::Corrupt(what)),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>().ok_or(Error::Corrupt(self.what))?;
        self.rest = rest;
        Ok(*bytes)
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        Ok(u8::from_be_bytes(self.take()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.take()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.take()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_be_bytes(self.take()?))
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp> {
        Ok(Timestamp::from_hundredths(self.i64()?))
    }

    /// Returns the read value if the flag is set.
    pub(crate) fn when<T>(&mut self, is_there: bool, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        is_there.then(|| read(self)).transpose()
    }

    /// Returns all remaining bytes, as a slice of the value.
    pub(crate) fn rest(self, value: &Bytes) -> Bytes {
        value.slice(value.len() - self.rest.len()..)
    }

    /// Takes this many bytes.
    pub(crate) fn some(&mut self, len: usize) -> Result<&'b [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Error::Corrupt(self.what))?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Fails if bytes remain.
    pub(crate) fn end(self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(Error::Corrupt(self.what)) }
    }
}
