//! Nodes that were read or made before, kept in memory.

use std::collections::BTreeMap;

use crate::tree::{Key, KeyRange};

/// Beside its key and its summary a node takes about so many bytes.
const NODE_BYTES: usize = 120;

/// Nodes of a tree as they lie in storage, of some ranges of some levels all that there are.
///
/// Whoever keeps them says what [changes](KnownNodes::change); that storage is as they say is theirs to know.
#[derive(Debug)]
pub struct KnownNodes<S> {
    /// By level and begin; those of a level do not overlap.
    parts: BTreeMap<(u8, Key), Part<S>>,
    bytes: usize,
    /// Grows with each [trim](KnownNodes::trim).
    now: u64,
}

/// All nodes of a range.
#[derive(Debug)]
struct Part<S> {
    end: Option<Key>,
    /// With the bytes that each takes.
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
    /// All nodes of a level in a range; `None`: they are not known.
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

    /// The part that a key is in.
    fn part(&mut self, level: u8, key: &Key) -> Option<&mut Part<S>> {
        let now = self.now;
        let before = self.parts.range_mut((level, Key::new())..=(level, key.clone()));
        let (_, part) = before.into_iter().next_back()?;
        part.used = now;
        part.is_behind(key).then_some(part)
    }

    /// These are all nodes of a level in a range, each with the bytes that its summary takes.
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

    /// A node is this from now on, with the bytes that it takes; `None`: it is not there.
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

    /// Forgets what was not used for the longest time, where there is more than so many bytes, until there is half of that.
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

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = KnownNodes { now: self.now, ..KnownNodes::default() };
    }

    /// What they take, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
