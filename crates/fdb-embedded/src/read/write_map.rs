//! The writes of a transaction, for its own reads and its commit.
//!
//! The key space is divided into segments: single keys with a stack of operations, and ranges between them that are
//! untouched or cleared. Each segment records whether it is a write conflict and whether it is unreadable
//! (versionstamps). The map stores one boundary per entry; the entry before a range holds the range's state.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound;

use crate::base::atomic::AtomicOp;
use crate::base::key_space::key_after;
use crate::base::range_set::RangeList;

/// An operation on a single key, not yet resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// `None` if an operation on a cleared key left no value.
    Set(Option<Vec<u8>>),
    Atomic(AtomicOp, Vec<u8>),
    /// A value with a versionstamp; its offset is in the last four bytes.
    StampValue(Vec<u8>),
    /// A key with a versionstamp; its offset is in the last four bytes.
    StampKey(Vec<u8>),
}

impl Op {
    /// Returns whether the result depends on the previous value.
    fn is_dependent(&self) -> bool {
        matches!(self, Op::Atomic(..))
    }

    fn is_stamp(&self) -> bool {
        matches!(self, Op::StampValue(_) | Op::StampKey(_))
    }
}

/// Operations on one key in order; empty if the entry is only a boundary. Most keys have one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ops {
    first: Option<Op>,
    more: Vec<Op>,
}

impl IntoIterator for Ops {
    type Item = Op;
    type IntoIter = std::iter::Chain<std::option::IntoIter<Op>, std::vec::IntoIter<Op>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.more)
    }
}

impl Ops {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }

    /// Returns whether the result depends on the stored value.
    pub(crate) fn is_dependent(&self) -> bool {
        self.first.as_ref().is_some_and(Op::is_dependent)
    }

    fn push(&mut self, op: Op) {
        if self.first.is_none() {
            self.first = Some(op);
        } else {
            self.more.push(op);
        }
    }

    /// Replaces all operations by one.
    fn replace(&mut self, op: Op) {
        *self = Ops { first: Some(op), more: Vec::new() };
    }

    /// Returns the value after all operations on the stored one; stamps count as their raw operand.
    pub(crate) fn resolve(&self, stored: Option<&[u8]>) -> Option<Vec<u8>> {
        self.first.iter().chain(&self.more).fold(stored.map(<[u8]>::to_vec), |value, op| match op {
            Op::Set(value) => value.clone(),
            Op::Atomic(op, operand) => op.apply(value.as_deref(), operand),
            Op::StampValue(value) | Op::StampKey(value) => Some(value.clone()),
        })
    }

    /// Adds an operation, merged with the previous one if the result is the same.
    fn push_coalesced(&mut self, op: Op) {
        let last = self.more.last_mut().or(self.first.as_mut());
        let melted = match (&last, &op) {
            (Some(Op::Set(before)), Op::Atomic(kind, operand)) => Some(Op::Set(kind.apply(before.as_deref(), operand))),
            (Some(Op::Atomic(before, first)), Op::Atomic(kind, second))
                if before == kind
                    && *kind != AtomicOp::CompareAndClear
                    && (!kind.depends_on_operand_length() || first.len() == second.len()) =>
            {
                kind.apply(Some(first), second).map(|operand| Op::Atomic(*kind, operand))
            }
            (Some(_), Op::Set(_)) => Some(op.clone()),
            _ => None,
        };
        match (melted, last) {
            (Some(melted), Some(last)) => *last = melted,
            _ => self.push(op),
        }
    }
}

/// The state of a range of keys without operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeState {
    pub(crate) is_cleared: bool,
    pub(crate) is_conflict: bool,
    pub(crate) is_unreadable: bool,
}

/// A boundary: the key's own operations, and the state of the keys after it (from it, if it has no operations).
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteEntry {
    pub(crate) ops: Ops,
    pub(crate) is_conflict: bool,
    pub(crate) is_unreadable: bool,
    pub(crate) after: RangeState,
}

/// All writes of a transaction. Every key before the first entry is untouched.
#[derive(Debug, Default)]
pub(crate) struct WriteMap {
    entries: BTreeMap<Vec<u8>, WriteEntry>,
    /// True if any range may have a state other than untouched; else all entries are single keys.
    has_ranges: bool,
}

/// The segment of a key, for reads.
pub(crate) enum Lookup<'w> {
    Untouched,
    Cleared,
    Unreadable,
    Operations(&'w Ops),
}

/// The choice of a segment by a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The segment that holds the key.
    At,
    /// The segment of the keys just below it; the key must not be `k\0` for any key `k`.
    Below,
}

/// A part of the key space whose keys all have the same state: one written key, or a range.
pub(crate) struct WriteSegment<'w> {
    pub(crate) begin: Cow<'w, [u8]>,
    pub(crate) end: Cow<'w, [u8]>,
    pub(crate) ops: Option<&'w Ops>,
    pub(crate) state: RangeState,
}

/// Above every readable key.
pub(crate) const BEHIND_ALL_KEYS: &[u8] = b"\xff\xff\xff";

impl WriteMap {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns whether only single keys were written: no range was cleared, made a conflict or made unreadable.
    pub(crate) fn has_keys_only(&self) -> bool {
        !self.has_ranges
    }

    fn range_state(&self, key: &[u8]) -> RangeState {
        self.last_at_or_before(key).map_or_else(RangeState::default, |(_, entry)| entry.after)
    }

    fn last_at_or_before(&self, key: &[u8]) -> Option<(&Vec<u8>, &WriteEntry)> {
        self.entries.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()
    }

    pub(crate) fn lookup(&self, key: &[u8], bypass_unreadable: bool) -> Lookup<'_> {
        let Some((at, entry)) = self.last_at_or_before(key) else { return Lookup::Untouched };
        if at == key && !entry.ops.is_empty() {
            return match entry.is_unreadable && !bypass_unreadable {
                true => Lookup::Unreadable,
                false => Lookup::Operations(&entry.ops),
            };
        }
        match entry.after {
            RangeState { is_unreadable: true, .. } if !bypass_unreadable => Lookup::Unreadable,
            RangeState { is_cleared: true, .. } => Lookup::Cleared,
            _ => Lookup::Untouched,
        }
    }

    /// Returns the segment that holds `key`, or the one of the keys just below it.
    pub(crate) fn segment(&self, key: &[u8], side: Side) -> WriteSegment<'_> {
        let before = match side {
            Side::At => self.last_at_or_before(key),
            Side::Below => self.entries.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(key))).next_back(),
        };
        let next = match before {
            Some((at, _)) => self.entries.range::<[u8], _>((Bound::Excluded(at.as_slice()), Bound::Unbounded)).next(),
            None => self.entries.iter().next(),
        };
        let end = next.map_or(Cow::Borrowed(BEHIND_ALL_KEYS), |(next, _)| Cow::Borrowed(next.as_slice()));
        let Some((at, entry)) = before else {
            return WriteSegment { begin: Cow::Borrowed(b""), end, ops: None, state: RangeState::default() };
        };
        if entry.ops.is_empty() {
            return WriteSegment { begin: Cow::Borrowed(at), end, ops: None, state: entry.after };
        }
        let after = key_after(at);
        if side == Side::At && at == key {
            let state = RangeState { is_unreadable: entry.is_unreadable, ..RangeState::default() };
            return WriteSegment { begin: Cow::Borrowed(at), end: Cow::Owned(after), ops: Some(&entry.ops), state };
        }
        WriteSegment { begin: Cow::Owned(after), end, ops: None, state: entry.after }
    }

    /// Returns whether the transaction wrote, cleared or made unreadable anything in `[begin, end)`.
    pub(crate) fn touches(&self, begin: &[u8], end: &[u8]) -> bool {
        if self.entries.is_empty() {
            return false;
        }
        let (state, mut entries) = self.from(begin);
        state != RangeState::default() || entries.next().is_some_and(|(key, _)| key.as_slice() < end)
    }

    /// Returns entries from `key` on, ascending, and the state of the range around `key`.
    pub(crate) fn from<'w>(
        &'w self,
        key: &[u8],
    ) -> (RangeState, impl Iterator<Item = (&'w Vec<u8>, &'w WriteEntry)> + use<'w>) {
        let before = self.entries.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(key))).next_back();
        let state = before.map_or_else(RangeState::default, |(_, entry)| entry.after);
        (state, self.entries.range::<[u8], _>((Bound::Included(key), Bound::Unbounded)))
    }

    /// Returns entries below `key`, descending.
    pub(crate) fn below<'w>(&'w self, key: &[u8]) -> impl Iterator<Item = (&'w Vec<u8>, &'w WriteEntry)> + use<'w> {
        self.entries.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(key))).rev()
    }

    pub(crate) fn mutate(&mut self, key: Vec<u8>, op: Op, add_conflict: bool) {
        let state = if self.has_ranges { self.range_state(&key) } else { RangeState::default() };
        let entry = self.entries.entry(key).or_insert_with(|| WriteEntry {
            ops: Ops::default(),
            is_conflict: state.is_conflict,
            is_unreadable: state.is_unreadable,
            after: state,
        });
        if entry.ops.is_empty() {
            // A boundary's own key has the state of its range.
            entry.is_conflict = entry.after.is_conflict;
            entry.is_unreadable = entry.after.is_unreadable;
        }
        let was_unreadable = entry.is_unreadable;
        entry.is_conflict |= add_conflict;
        entry.is_unreadable |= op.is_stamp();
        if entry.ops.is_empty() {
            if entry.after.is_cleared && op.is_dependent() {
                entry.ops.push(Op::Set(None));
                entry.ops.push_coalesced(op);
            } else {
                entry.ops.push(op);
            }
        } else if !was_unreadable && matches!(op, Op::Set(_) | Op::StampValue(_)) {
            entry.ops.replace(op);
        } else if !entry.is_unreadable {
            entry.ops.push_coalesced(op);
        } else {
            entry.ops.push(op);
        }
    }

    fn split(&mut self, key: &[u8]) {
        self.has_ranges = true;
        if !self.entries.contains_key(key) {
            let after = self.range_state(key);
            let (is_conflict, is_unreadable) = (after.is_conflict, after.is_unreadable);
            self.entries.insert(key.to_vec(), WriteEntry { ops: Ops::default(), is_conflict, is_unreadable, after });
        }
    }

    /// Removes and returns the entries of `[begin, end)`; `end` is a boundary afterwards.
    fn take(&mut self, begin: &[u8], end: &[u8]) -> Vec<(Vec<u8>, WriteEntry)> {
        self.split(end);
        let inside = (Bound::Included(begin), Bound::Excluded(end));
        let keys: Vec<_> = self.entries.range::<[u8], _>(inside).map(|(key, _)| key.clone()).collect();
        keys.into_iter().filter_map(|key| self.entries.remove_entry(&key)).collect()
    }

    /// Clears `[begin, end)`, which must not be empty. As in FoundationDB's client, an end of the range inside of an
    /// earlier cleared range keeps no boundary, because boundaries decide where a page of a range ends.
    pub(crate) fn clear(&mut self, begin: &[u8], end: &[u8], add_conflict: bool) {
        let has_ops = self.entries.get(begin).is_some_and(|entry| !entry.ops.is_empty());
        let was_boundary = self.entries.contains_key(begin);
        let state = self.range_state(begin);
        let continues = !has_ops && state.is_cleared && !state.is_unreadable && (state.is_conflict || !add_conflict);
        self.split(begin);
        let old = self.take(begin, end);
        let mut conflict = None;
        let mut put = |key: Vec<u8>, is_conflict: bool| {
            if conflict != Some(is_conflict) {
                let after = RangeState { is_cleared: true, is_conflict, is_unreadable: false };
                self.entries.insert(key, WriteEntry { ops: Ops::default(), is_conflict, is_unreadable: false, after });
            }
            conflict = Some(is_conflict);
        };
        if add_conflict {
            put(begin.to_vec(), true);
        } else {
            // Conflicts of earlier writes in the range stay.
            for (key, entry) in old {
                if entry.ops.is_empty() || entry.is_conflict == entry.after.is_conflict {
                    put(key, entry.after.is_conflict);
                } else {
                    let next = key_after(&key);
                    put(key, entry.is_conflict);
                    if next.as_slice() < end {
                        put(next, entry.after.is_conflict);
                    }
                }
            }
        }
        let last = RangeState { is_cleared: true, is_conflict: conflict.unwrap_or(add_conflict), is_unreadable: false };
        if self.entries.get(end).is_some_and(|entry| entry.ops.is_empty() && entry.after == last) {
            self.entries.remove(end);
        }
        if continues && !was_boundary {
            self.entries.remove(begin);
        }
    }

    pub(crate) fn add_conflict(&mut self, begin: &[u8], end: &[u8]) {
        self.split(begin);
        self.split(end);
        for (_, entry) in self.entries.range_mut::<[u8], _>((Bound::Included(begin), Bound::Excluded(end))) {
            entry.is_conflict = true;
            entry.after.is_conflict = true;
        }
    }

    /// Marks `[begin, end)` as handed over to the commit; it must not be read again.
    pub(crate) fn make_unreadable(&mut self, begin: &[u8], end: &[u8]) {
        self.take(begin, end);
        let after = RangeState { is_unreadable: true, ..RangeState::default() };
        let entry = WriteEntry { ops: Ops::default(), is_conflict: false, is_unreadable: true, after };
        self.entries.insert(begin.to_vec(), entry);
    }

    /// Returns whether a read of `key` depends on its stored value: false if the transaction cleared or set it.
    pub(crate) fn is_dependent(&self, key: &[u8]) -> bool {
        match self.last_at_or_before(key) {
            Some((at, entry)) if at == key && !entry.ops.is_empty() => entry.ops.is_dependent(),
            Some((_, entry)) => !entry.after.is_cleared,
            None => true,
        }
    }

    /// Calls `each(begin, end)` for the parts of `[begin, end)` whose stored values a read depends on: everything that
    /// the transaction did not clear or set itself.
    pub(crate) fn for_each_dependent(&self, begin: &[u8], end: &[u8], mut each: impl FnMut(&[u8], &[u8])) {
        if self.entries.is_empty() {
            return each(begin, end);
        }
        let (mut state, entries) = self.from(begin);
        let mut from = begin.to_vec();
        for (key, entry) in entries {
            if key.as_slice() >= end {
                break;
            }
            if !state.is_cleared && from < *key {
                each(&from, key);
            }
            state = entry.after;
            from.clone_from(key);
            if !entry.ops.is_empty() {
                from.push(0);
                if entry.ops.is_dependent() {
                    each(key, &from);
                }
            }
        }
        if !state.is_cleared && from.as_slice() < end {
            each(&from, end);
        }
    }

    /// Returns the first key in `[begin, end)` that the transaction itself set, changed or cleared.
    pub(crate) fn first_touched(&self, begin: &[u8], end: &[u8]) -> Option<Vec<u8>> {
        let (state, entries) = self.from(begin);
        let mut inside = entries.take_while(|(key, _)| key.as_slice() < end).peekable();
        let starts_in_range = inside.peek().is_none_or(|(key, _)| key.as_slice() > begin);
        if state.is_cleared && starts_in_range && begin < end {
            return Some(begin.to_vec());
        }
        let touched = inside.find(|(_, entry)| !entry.ops.is_empty() || entry.after.is_cleared);
        touched.map(|(key, _)| key.clone())
    }

    /// Adds the write conflicts within `[begin, end)`, ascending and disjoint, to a list.
    pub(crate) fn conflicts(&self, begin: &[u8], end: &[u8], found: &mut RangeList) {
        let before = found.len();
        let mut add = |from: &[u8], to: &[u8]| found.push_after(from, to, before);
        let (mut state, entries) = self.from(begin);
        let mut from = begin.to_vec();
        for (key, entry) in entries {
            if key.as_slice() >= end {
                break;
            }
            if state.is_conflict && from < *key {
                add(&from, key);
            }
            state = entry.after;
            from.clone_from(key);
            if !entry.ops.is_empty() {
                from.push(0);
                if entry.is_conflict {
                    add(key, &from);
                }
            }
        }
        if state.is_conflict && from.as_slice() < end {
            add(&from, end);
        }
    }

    /// Returns the cleared ranges within `[begin, end)`, ascending; the commit applies them before the operations.
    pub(crate) fn cleared(&self, begin: &[u8], end: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut found: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let (mut state, entries) = self.from(begin);
        let mut from = begin.to_vec();
        let mut add = |from: &[u8], to: &[u8]| match found.last_mut() {
            Some((_, last)) if last == from => *last = to.to_vec(),
            _ => found.push((from.to_vec(), to.to_vec())),
        };
        for (key, entry) in entries {
            if key.as_slice() >= end {
                break;
            }
            if state.is_cleared && from < *key {
                add(&from, key);
            }
            let was_cleared = state.is_cleared;
            state = entry.after;
            from.clone_from(key);
            if !entry.ops.is_empty() {
                from.push(0);
                // Clearing a key just before it is set changes nothing, and keeps adjacent cleared ranges joined.
                if was_cleared
                    && state.is_cleared
                    && matches!((&entry.ops.first, entry.ops.len()), (Some(Op::Set(_)), 1))
                {
                    add(key, &from);
                }
            }
        }
        if state.is_cleared && from.as_slice() < end {
            add(&from, end);
        }
        found
    }

    /// Returns all entries with operations, ascending, each with whether it is a write conflict. For the commit, which
    /// no longer needs the map.
    pub(crate) fn into_operations(self) -> impl ExactSizeIterator<Item = (Vec<u8>, Ops, bool)> {
        self.entries.into_iter().map(|(key, entry)| (key, entry.ops, entry.is_conflict))
    }

    /// Copies the operations within `[begin, end)`, ascending.
    pub(crate) fn operations(&self, begin: &[u8], end: &[u8]) -> Vec<(Vec<u8>, Ops)> {
        let inside = (Bound::Included(begin), Bound::Excluded(end));
        let entries = self.entries.range::<[u8], _>(inside);
        entries.filter(|(_, e)| !e.ops.is_empty()).map(|(k, e)| (k.clone(), e.ops.clone())).collect()
    }
}
