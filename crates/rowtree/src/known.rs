//! A cache of nodes that were read or written before.

use std::collections::BTreeMap;

use crate::tree::{Key, KeyRange};

/// The overhead of a node in bytes, beside its key and its summary.
const NODE_BYTES: usize = 120;

/// A cache of a tree's nodes as stored: all nodes of some ranges of some levels.
///
/// The owner reports [changes](KnownNodes::change), and must ensure that storage matches.
#[derive(Debug)]
pub struct KnownNodes<S> {
    /// By level and begin; the parts of a level do not overlap.
    parts: BTreeMap<(u8, Key), Part<S>>,
    bytes: usize,
    /// Grows with each [trim](KnownNodes::trim).
    now: u64,
}

/// All nodes of a range.
#[derive(Debug)]
struct Part<S> {
    end: Option<Key>,
    /// Each with its bytes.
    nodes: BTreeMap<Key, (S, usize)>,
    bytes: usize,
    used: u64,
}

impl<S> Default for KnownNodes<S> {
    fn default() -> Self {
        KnownNodes { parts: BTreeMap::new(), bytes: 0, now: 0 }
    }
}

impl<S> Part<S> {
    fn is_behind(&self, key: &[u8]) -> bool {
        self.end.as_ref().is_none_or(|end| **end > *key)
    }
}

impl<S: Clone> KnownNodes<S> {
    /// Returns all nodes of a level in a range; `None`: not cached.
    pub fn get(&mut self, level: u8, range: &KeyRange) -> Option<Vec<(Key, S)>> {
        let (mut found, mut begin) = (Vec::new(), range.begin.clone());
        loop {
            let part = self.part(level, &begin)?;
            let nodes = part.nodes.range(begin..).take_while(|(key, _)| range.is_before_end(key));
            found.extend(nodes.map(|(key, (summary, _))| (key.clone(), summary.clone())));
            match (&part.end, &range.end) {
                (Some(part_end), Some(end)) if part_end < end => begin = part_end.clone(),
                (Some(part_end), None) => begin = part_end.clone(),
                _ => return Some(found),
            }
        }
    }

    /// The part that contains a key.
    fn part(&mut self, level: u8, key: &Key) -> Option<&mut Part<S>> {
        let now = self.now;
        let before = self.parts.range_mut((level, Key::new())..=(level, key.clone()));
        let (_, part) = before.into_iter().next_back()?;
        part.used = now;
        part.is_behind(key).then_some(part)
    }

    /// Caches all nodes of a level in a range, each with the bytes of its summary.
    pub fn insert(&mut self, level: u8, range: KeyRange, nodes: impl Iterator<Item = (Key, S, usize)>) {
        let from = (level, Key::new());
        let until = range.end.clone().map_or((level + 1, Key::new()), |end| (level, end));
        let overlapping = self.parts.range(from..until).rev().take_while(|(_, part)| part.is_behind(&range.begin));
        let overlapping: Vec<_> = overlapping.map(|(place, _)| place.clone()).collect();
        overlapping.iter().for_each(|place| self.forget(place));
        let nodes = nodes.map(|(key, summary, bytes)| {
            let bytes = bytes + key.len() + NODE_BYTES;
            (key, (summary, bytes))
        });
        let nodes: BTreeMap<Key, (S, usize)> = nodes.collect();
        let bytes = range.begin.len() + NODE_BYTES + nodes.values().map(|(_, bytes)| bytes).sum::<usize>();
        self.bytes += bytes;
        self.parts.insert((level, range.begin), Part { end: range.end, nodes, bytes, used: self.now });
    }

    fn forget(&mut self, place: &(u8, Key)) {
        if let Some(part) = self.parts.remove(place) {
            self.bytes -= part.bytes;
        }
    }

    /// Replaces a node, given with the bytes of its summary; `None`: removes it.
    pub fn change(&mut self, level: u8, key: Key, summary: Option<(S, usize)>) {
        let Some(part) = self.part(level, &key) else { return };
        let (key_bytes, before) = (key.len(), part.bytes);
        let replaced = match summary {
            Some((summary, bytes)) => {
                let bytes = bytes + key_bytes + NODE_BYTES;
                part.bytes += bytes;
                part.nodes.insert(key, (summary, bytes))
            }
            None => part.nodes.remove(&key),
        };
        part.bytes -= replaced.map_or(0, |(_, bytes)| bytes);
        let after = part.bytes;
        self.bytes = self.bytes + after - before;
    }

    /// Evicts the least recently used parts if the cache exceeds `bytes_max`, until half of that is left.
    pub fn trim(&mut self, bytes_max: usize) {
        self.now += 1;
        if self.bytes <= bytes_max {
            return;
        }
        let mut places: Vec<_> = self.parts.iter().map(|(place, part)| (part.used, place.clone())).collect();
        places.sort_unstable();
        for (_, place) in places {
            if self.bytes <= bytes_max / 2 {
                break;
            }
            self.forget(&place);
        }
    }

    /// Evicts everything.
    pub fn clear(&mut self) {
        *self = KnownNodes { now: self.now, ..KnownNodes::default() };
    }

    /// The approximate size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
