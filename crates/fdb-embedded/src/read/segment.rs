//! The segments into which a transaction's writes and earlier reads divide the key space.

use crate::base::key_space::key_after;
use crate::read::known::KnownRanges;
use crate::read::view::{View, ViewError, ViewResult};
use crate::read::write_map::{BEHIND_ALL_KEYS, Ops, Side};

/// The client's knowledge of a segment's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Unknown: a server must be asked.
    Unknown,
    /// No key.
    Empty,
    /// One key with the stored value.
    Stored,
    /// One key that the transaction wrote; `None`: its operations leave no value.
    Written(Option<Vec<u8>>),
}

/// Adjacent keys of which the client knows the same: `[begin, end)`.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) begin: Vec<u8>,
    pub(crate) end: Vec<u8>,
    pub(crate) content: Content,
    /// True if the transaction wrote a versionstamp here.
    pub(crate) is_unreadable: bool,
    /// The range around a stored key whose stored pairs are all known and not overwritten.
    pub(crate) pairs_begin: Vec<u8>,
    pub(crate) pairs_end: Vec<u8>,
}

impl Segment {
    /// Returns whether the client knows the content and may read it.
    pub(crate) fn is_known(&self) -> bool {
        !self.is_unreadable && self.content != Content::Unknown
    }
}

pub(crate) struct Segments<'s, 'v> {
    pub(crate) view: &'s View<'v>,
    pub(crate) known: &'s KnownRanges,
}

impl Segments<'_, '_> {
    /// Returns the segment that holds `key`.
    pub(crate) fn at(&self, key: &[u8]) -> ViewResult<Segment> {
        self.segment(key, Side::At)
    }

    /// Returns the segment of the keys just below `key`, which is not the empty key.
    pub(crate) fn below(&self, key: &[u8]) -> ViewResult<Segment> {
        match key.split_last() {
            // Exactly one key is just below this one.
            Some((0, before)) => self.segment(before, Side::At),
            _ => self.segment(key, Side::Below),
        }
    }

    /// Returns the first segment, from the one that holds `key` on, that is not known to be empty; and `key` or the
    /// segment's begin.
    pub(crate) fn skip_empty(&self, key: &[u8], max_key: &[u8]) -> ViewResult<(Vec<u8>, Segment)> {
        let mut key = key.to_vec();
        let mut segment = self.at(&key)?;
        while !segment.is_unreadable && segment.content == Content::Empty && segment.end.as_slice() < max_key {
            segment = self.at(&segment.end)?;
            key.clone_from(&segment.begin);
        }
        Ok((key, segment))
    }

    pub(crate) fn content<'c>(&self, segment: &'c Segment) -> ViewResult<&'c Content> {
        match segment.is_unreadable && !self.view.bypass_unreadable {
            true => Err(ViewError::Unreadable),
            false => Ok(&segment.content),
        }
    }

    fn segment(&self, key: &[u8], side: Side) -> ViewResult<Segment> {
        let mut segment = self.read_segment(key, side)?;
        let Some(writes) = self.view.writes else { return Ok(segment) };
        let written = writes.segment(key, side);
        segment.is_unreadable = written.state.is_unreadable;
        match written.ops {
            Some(ops) => segment.content = self.written(key, ops, &segment)?,
            None if written.state.is_cleared => segment.content = Content::Empty,
            None => {}
        }
        for (place, bound) in [(&mut segment.begin, &written.begin), (&mut segment.pairs_begin, &written.begin)] {
            if place.as_slice() < bound.as_ref() {
                *place = bound.to_vec();
            }
        }
        for (place, bound) in [(&mut segment.end, &written.end), (&mut segment.pairs_end, &written.end)] {
            if place.as_slice() > bound.as_ref() {
                *place = bound.to_vec();
            }
        }
        Ok(segment)
    }

    fn written(&self, key: &[u8], ops: &Ops, read: &Segment) -> ViewResult<Content> {
        Ok(match (ops.is_dependent(), &read.content) {
            (true, Content::Unknown) => Content::Unknown,
            (true, Content::Stored) => Content::Written(ops.resolve(self.view.stored()?.get(key)?)),
            _ => Content::Written(ops.resolve(None)),
        })
    }

    /// Returns the segment by earlier reads, without the transaction's writes.
    fn read_segment(&self, key: &[u8], side: Side) -> ViewResult<Segment> {
        let held = match side {
            Side::At => self.known.holding(key),
            Side::Below => self.known.last_below(key).filter(|(_, end)| key <= *end),
        };
        let new = |begin: Vec<u8>, end: Vec<u8>, content| {
            let (pairs_begin, pairs_end) = (begin.clone(), end.clone());
            Segment { begin, end, content, is_unreadable: false, pairs_begin, pairs_end }
        };
        let Some((held_begin, held_end)) = held else {
            let begin = self.known.last_below(key).map_or(&b""[..], |(_, end)| end);
            let end = self.known.begin_from(key).unwrap_or(BEHIND_ALL_KEYS);
            return Ok(new(begin.to_vec(), end.to_vec(), Content::Unknown));
        };
        let stored = self.view.stored()?;
        let above = stored.ascend(key)?.next()?.filter(|(at, _)| at.as_ref() < held_end);
        if side == Side::At && above.as_ref().is_some_and(|(at, _)| at.as_ref() == key) {
            let (pairs_begin, pairs_end) = (held_begin.to_vec(), held_end.to_vec());
            return Ok(Segment { pairs_begin, pairs_end, ..new(key.to_vec(), key_after(key), Content::Stored) });
        }
        let below = stored.descend(key)?.next()?.filter(|(at, _)| at.as_ref() >= held_begin);
        let begin = below.map_or_else(|| held_begin.to_vec(), |(at, _)| key_after(&at));
        let end = above.map_or_else(|| held_end.to_vec(), |(at, _)| at.into_owned());
        Ok(new(begin, end, Content::Empty))
    }
}
