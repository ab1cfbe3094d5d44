//! A sorted block of keys, used in tree nodes.
//!
//! A comparison uses the eight bytes after the prefix that all keys share; only if those are equal it reads whole
//! keys. The bytes of all keys are in one allocation.
//!
//! Positions come from searches of the same block, so they are in bounds.

use std::cmp::Ordering;

/// The longest shared prefix that is used, in bytes.
const PREFIX_MAX: usize = 32;

/// Up to `N` sorted keys.
pub(crate) struct SortedKeys<const N: usize> {
    len: usize,
    /// The length and the bytes of the shared prefix; most searches need no other bytes.
    prefix_len: usize,
    prefix: [u8; PREFIX_MAX],
    /// The eight bytes after the prefix, big-endian, padded with zeros. Two heads that differ order their keys.
    heads: [u64; N],
    /// The position of each key in `bytes`: first byte and length.
    places: [(u32, u32); N],
    /// The keys in insertion order, with the bytes of removed ones.
    bytes: Vec<u8>,
    /// Bytes of removed keys.
    waste: usize,
}

fn head(rest: &[u8]) -> u64 {
    match rest.first_chunk() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            rest.iter().fold(0, |head, &byte| head << 8 | u64::from(byte)).unbounded_shl(64 - 8 * rest.len() as u32)
        }
    }
}

fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take(PREFIX_MAX).take_while(|(a, b)| a == b).count()
}

impl<const N: usize> Default for SortedKeys<N> {
    fn default() -> Self {
        SortedKeys {
            len: 0,
            prefix_len: 0,
            prefix: [0; PREFIX_MAX],
            heads: [0; N],
            places: [(0, 0); N],
            bytes: Vec::new(),
            waste: 0,
        }
    }
}

impl<const N: usize> SortedKeys<N> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Heap bytes.
    pub(crate) fn allocated(&self) -> usize {
        self.bytes.capacity()
    }

    pub(crate) fn get(&self, at: usize) -> &[u8] {
        let (start, len) = self.places[at];
        &self.bytes[start as usize..][..len as usize]
    }

    /// Returns the position of a key, or its insertion point.
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let compared = self.prefix_len.min(key.len());
        match key[..compared].cmp(self.prefix()) {
            Ordering::Less => return Err(0),
            Ordering::Greater => return Err(self.len),
            Ordering::Equal => {}
        }
        let rest = &key[self.prefix_len..];
        let head = head(rest);
        let mut from = self.heads[..self.len].partition_point(|&other| other < head);
        let mut to = from + self.heads[from..self.len].iter().take_while(|&&other| other == head).count();
        while from < to {
            let middle = from.midpoint(to);
            match self.get(middle)[self.prefix_len..].cmp(rest) {
                Ordering::Less => from = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => to = middle,
            }
        }
        Err(from)
    }

    pub(crate) fn lower_bound(&self, key: &[u8]) -> usize {
        self.search(key).unwrap_or_else(|at| at)
    }

    pub(crate) fn upper_bound(&self, key: &[u8]) -> usize {
        self.search(key).map_or_else(|at| at, |at| at + 1)
    }

    /// Inserts a key at the position from [`SortedKeys::search`]; the block must have fewer than `N` keys. `allocated`
    /// is a sum of heap bytes that insertions and removals update.
    pub(crate) fn insert(&mut self, at: usize, key: &[u8], allocated: &mut usize) {
        let prefix_len = if self.len == 0 { PREFIX_MAX.min(key.len()) } else { common_prefix_len(self.prefix(), key) };
        if self.len == 0 {
            self.prefix[..prefix_len].copy_from_slice(&key[..prefix_len]);
        }
        if prefix_len != self.prefix_len {
            self.prefix_len = prefix_len;
            self.fill_heads();
        }
        self.heads.copy_within(at..self.len, at + 1);
        self.heads[at] = head(&key[self.prefix_len..]);
        self.places.copy_within(at..self.len, at + 1);
        self.places[at] = self.add_bytes(key, allocated);
        self.len += 1;
    }

    fn add_bytes(&mut self, key: &[u8], allocated: &mut usize) -> (u32, u32) {
        let (start, before) = (self.bytes.len(), self.bytes.capacity());
        self.bytes.extend_from_slice(key);
        *allocated += self.bytes.capacity() - before;
        (start as u32, key.len() as u32)
    }

    /// Removes the keys at positions `from` (inclusive) to `to` (exclusive).
    pub(crate) fn remove(&mut self, from: usize, to: usize, allocated: &mut usize) {
        self.waste += self.places[from..to].iter().map(|(_, len)| *len as usize).sum::<usize>();
        self.heads.copy_within(to..self.len, from);
        self.places.copy_within(to..self.len, from);
        self.len -= to - from;
        if self.waste > self.bytes.len() / 2 {
            self.compact(allocated);
        }
    }

    fn compact(&mut self, allocated: &mut usize) {
        let kept = self.bytes.len() - self.waste;
        let old = std::mem::replace(&mut self.bytes, Vec::with_capacity(kept + kept / 4));
        for place in &mut self.places[..self.len] {
            let key = &old[place.0 as usize..][..place.1 as usize];
            place.0 = self.bytes.len() as u32;
            self.bytes.extend_from_slice(key);
        }
        self.waste = 0;
        *allocated = *allocated + self.bytes.capacity() - old.capacity();
    }

    /// Moves the keys from position `from` on into a new block.
    pub(crate) fn split_off(&mut self, from: usize, allocated: &mut usize) -> SortedKeys<N> {
        let mut right = SortedKeys::default();
        right.bytes.reserve(self.bytes.len());
        *allocated += right.bytes.capacity();
        for at in from..self.len {
            right.places[right.len] = right.add_bytes(self.get(at), allocated);
            right.len += 1;
        }
        self.remove(from, self.len, allocated);
        for half in [self, &mut right] {
            half.find_prefix();
        }
        right
    }

    fn prefix(&self) -> &[u8] {
        &self.prefix[..self.prefix_len]
    }

    /// Recomputes the shared prefix.
    fn find_prefix(&mut self) {
        let Some(last) = self.len.checked_sub(1) else { return };
        self.prefix_len = common_prefix_len(self.get(0), self.get(last));
        let (start, _) = self.places[0];
        self.prefix[..self.prefix_len].copy_from_slice(&self.bytes[start as usize..][..self.prefix_len]);
        self.fill_heads();
    }

    fn fill_heads(&mut self) {
        for at in 0..self.len {
            self.heads[at] = head(&self.get(at)[self.prefix_len..]);
        }
    }
}
