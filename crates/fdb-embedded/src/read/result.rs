//! The result of a range read.

use crate::read::limits::Limits;

/// The largest result in bytes, whatever the limits: offsets in the arena are 32 bits, and memory is bounded.
const RESULT_BYTES_MAX: usize = 1 << 28;

/// The position of a pair in [`RangeResult::arena`], in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairAt {
    /// First byte of the key.
    pub key_start: u32,
    /// Bytes of the key.
    pub key_len: u32,
    /// First byte of the value.
    pub value_start: u32,
    /// Bytes of the value.
    pub value_len: u32,
    /// Pads the struct to the size of a C key-value pair, so that a list of these can be converted in place.
    _room: [u32; 2],
}

/// The result of a range read, with all keys and values in one arena.
#[derive(Clone, Debug, Default)]
pub struct RangeResult {
    /// The bytes of all keys and values.
    pub arena: Vec<u8>,
    /// The pairs in the order of the read.
    pub pairs: Vec<PairAt>,
    /// True if a limit ended the read, so that the range may have more pairs.
    pub more: bool,
}

impl RangeResult {
    /// Returns the pair at a position.
    pub fn get(&self, at: usize) -> Option<(&[u8], &[u8])> {
        let pair = self.pairs.get(at)?;
        let bytes = |start: u32, len: u32| self.arena.get(start as usize..).and_then(|rest| rest.get(..len as usize));
        Some((bytes(pair.key_start, pair.key_len)?, bytes(pair.value_start, pair.value_len)?))
    }

    /// The pairs in the order of the read.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.pairs.len()).filter_map(|at| self.get(at))
    }

    /// Reserves memory for a pair: at first for a few like it, then for as many as the limits allow.
    pub(crate) fn make_room(&mut self, pair_bytes: usize, limits: &Limits) {
        const FIRST_BYTES: usize = 4 << 10;
        const BYTES_MAX: usize = 128 << 10;
        if self.arena.capacity() - self.arena.len() >= pair_bytes {
            return;
        }
        let bytes_max = if self.pairs.is_empty() { FIRST_BYTES } else { BYTES_MAX };
        let rows_max = limits.rows.map_or(usize::MAX, |rows| rows as usize);
        let bytes = limits.bytes.map_or(bytes_max, |bytes| bytes.min(bytes_max));
        let pairs = (bytes / (pair_bytes + 8) + 1).min(rows_max).max(1);
        self.pairs.reserve(pairs);
        self.arena.reserve(pairs.saturating_mul(pair_bytes));
    }

    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        let key_start = self.arena.len() as u32;
        self.arena.extend_from_slice(key);
        let value_start = self.arena.len() as u32;
        self.arena.extend_from_slice(value);
        let (key_len, value_len) = (key.len() as u32, value.len() as u32);
        self.pairs.push(PairAt { key_start, key_len, value_start, value_len, _room: [0; 2] });
    }

    /// Appends a pair. Returns whether it was the last that the limits allow.
    pub(crate) fn take(&mut self, key: &[u8], value: &[u8], limits: &mut Limits) -> bool {
        self.make_room(key.len() + value.len(), limits);
        self.push(key, value);
        limits.take(key, value);
        self.more = limits.is_reached() || self.arena.len() >= RESULT_BYTES_MAX;
        self.more
    }

    /// Empties the pairs between the first and the last.
    pub(crate) fn blank_inner(&mut self) {
        let last = self.pairs.len().saturating_sub(1);
        for pair in self.pairs.iter_mut().take(last).skip(1) {
            (pair.key_len, pair.value_len) = (0, 0);
        }
    }

    /// Keeps the first `len` pairs and sets `more`.
    pub(crate) fn cut(&mut self, len: usize) {
        self.pairs.truncate(len);
        self.more = true;
    }

    pub(crate) fn first_key(&self) -> Option<&[u8]> {
        self.get(0).map(|(key, _)| key)
    }

    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        self.get(self.pairs.len().checked_sub(1)?).map(|(key, _)| key)
    }
}
