//! A transaction's view of the database: a snapshot under the transaction's own writes.

use std::borrow::Cow;

use crate::base::error::Error;
use crate::base::key_space::key_after;
use crate::disk::store::{Pair, StoreError};
use crate::disk::stored::{Ascend, Cursor, Descend, StoredState};
use crate::read::write_map::{Lookup, Ops, RangeState, WriteEntry, WriteMap};

/// The failure of a read of a view.
#[derive(Debug)]
pub(crate) enum ViewError {
    /// The read met a key whose value is unknown before the commit.
    Unreadable,
    /// The read needs stored pairs, and the view has only the transaction's writes.
    NeedsStored,
    /// LMDB failed, or the file is damaged.
    Store,
}

impl From<StoreError> for ViewError {
    fn from(_: StoreError) -> Self {
        ViewError::Store
    }
}

impl From<ViewError> for Error {
    fn from(error: ViewError) -> Self {
        match error {
            ViewError::Unreadable => Error::ACCESSED_UNREADABLE,
            ViewError::NeedsStored => Error::INTERNAL_ERROR,
            ViewError::Store => Error::IO_ERROR,
        }
    }
}

pub(crate) type ViewResult<T> = Result<T, ViewError>;

/// A snapshot, and the writes that reads see (`None`: the snapshot alone).
#[derive(Clone, Copy)]
pub(crate) struct View<'v> {
    /// `None`: the transaction has no read version yet, and reads answered by its writes alone must not take one.
    pub(crate) stored: Option<StoredState<'v>>,
    pub(crate) writes: Option<&'v WriteMap>,
    pub(crate) bypass_unreadable: bool,
}

/// A key in order. A phantom was written by the transaction but has no value (`compare_and_clear`). FoundationDB's
/// client counts it when it walks a key selector's offset, and skips it in results.
pub(crate) struct Item<'v> {
    pub(crate) key: Cow<'v, [u8]>,
    /// `None`: a phantom.
    pub(crate) value: Option<Cow<'v, [u8]>>,
}

impl<'v> Item<'v> {
    fn stored((key, value): Pair<'v>) -> Item<'v> {
        Item { key, value: Some(Cow::Borrowed(value)) }
    }

    fn written(key: &'v [u8], ops: &Ops, stored: Option<&[u8]>) -> Item<'v> {
        Item { key: Cow::Borrowed(key), value: ops.resolve(stored).map(Cow::Owned) }
    }
}

impl<'v> View<'v> {
    pub(crate) fn stored(&self) -> ViewResult<StoredState<'v>> {
        self.stored.ok_or(ViewError::NeedsStored)
    }

    pub(crate) fn get(&self, key: &[u8]) -> ViewResult<Option<Cow<'v, [u8]>>> {
        let stored = || -> ViewResult<Option<&'v [u8]>> { Ok(self.stored()?.get(key)?) };
        match self.writes.map_or(Lookup::Untouched, |writes| writes.lookup(key, self.bypass_unreadable)) {
            Lookup::Untouched => Ok(stored()?.map(Cow::Borrowed)),
            Lookup::Cleared => Ok(None),
            Lookup::Unreadable => Err(ViewError::Unreadable),
            Lookup::Operations(ops) if ops.is_dependent() => Ok(ops.resolve(stored()?).map(Cow::Owned)),
            Lookup::Operations(ops) => Ok(ops.resolve(None).map(Cow::Owned)),
        }
    }

    /// Returns whether the value of `key` depends on stored pairs.
    pub(crate) fn needs_stored(&self, key: &[u8]) -> bool {
        self.writes.is_none_or(|writes| writes.is_dependent(key))
    }

    /// Returns items from `begin` on. Unreadable keys are errors only below `end`. Items past `end` are possible.
    pub(crate) fn ascend(&self, begin: &[u8], end: &[u8]) -> ViewResult<AscendingCursor<'v>> {
        let writes = match self.writes {
            Some(writes) if !writes.is_empty() => {
                let (state, mut entries) = writes.from(begin);
                let next = entries.next();
                Some(WritesAhead { state, at: begin.to_vec(), end: end.to_vec(), next, rest: Box::new(entries) })
            }
            _ => None,
        };
        let stored = StoredLookahead::new(self, begin, writes.is_some())?;
        Ok(AscendingCursor { bypass_unreadable: self.bypass_unreadable, stored, writes })
    }

    /// Returns items below `end`, descending. Unreadable keys are errors only from `begin` on. Items below `begin` are
    /// possible.
    pub(crate) fn descend(&self, end: &[u8], begin: &[u8]) -> ViewResult<DescendingCursor<'v>> {
        let writes = match self.writes {
            Some(writes) if !writes.is_empty() => {
                let mut entries = writes.below(end);
                let next = entries.next();
                Some(WritesBehind { end: end.to_vec(), begin: begin.to_vec(), next, rest: Box::new(entries) })
            }
            _ => None,
        };
        // Nothing is below the empty key, so no cursor is needed.
        let stored = StoredLookahead::new(self, end, writes.is_some() || end.is_empty())?;
        Ok(DescendingCursor { bypass_unreadable: self.bypass_unreadable, stored, writes })
    }
}

/// The stored pairs in order, read ahead by one pair, and only where the writes do not determine the content.
struct StoredLookahead<'v, C> {
    view: View<'v>,
    /// `None`: to be placed at the next request.
    cursor: Option<C>,
    lookahead: Lookahead<'v>,
}

enum Lookahead<'v> {
    /// No pair was read ahead.
    Unread,
    At(Pair<'v>),
    /// The pairs have ended.
    End,
}

impl<'v, C: Cursor<'v>> StoredLookahead<'v, C> {
    fn new(view: &View<'v>, from: &[u8], is_lazy: bool) -> ViewResult<Self> {
        let cursor = if is_lazy { None } else { Some(C::place(&view.stored()?, from)?) };
        Ok(StoredLookahead { view: *view, cursor, lookahead: Lookahead::Unread })
    }

    /// Returns the next pair, if none was read ahead.
    fn next(&mut self) -> ViewResult<Option<Pair<'v>>> {
        match &mut self.cursor {
            Some(cursor) => Ok(cursor.next()?),
            None => Ok(None),
        }
    }

    /// Reads ahead the first pair not passed yet; `from` is the begin of those pairs.
    fn read_ahead(&mut self, from: &[u8], is_passed: impl Fn(&[u8]) -> bool) -> ViewResult<()> {
        let cursor = match &mut self.cursor {
            Some(cursor) => cursor,
            cursor => cursor.insert(C::place(&self.view.stored()?, from)?),
        };
        while let Lookahead::Unread = self.lookahead {
            // Keys that only the writes know may lie between.
            self.lookahead = match cursor.next()? {
                Some(pair) if is_passed(&pair.0) => Lookahead::Unread,
                Some(pair) => Lookahead::At(pair),
                None => Lookahead::End,
            };
        }
        Ok(())
    }

    /// Takes the pair that was read ahead, if it matches.
    fn take_if(&mut self, is_it: impl FnOnce(&[u8]) -> bool) -> Option<Pair<'v>> {
        match std::mem::replace(&mut self.lookahead, Lookahead::Unread) {
            Lookahead::At(pair) if is_it(&pair.0) => Some(pair),
            lookahead => {
                self.lookahead = lookahead;
                None
            }
        }
    }

    /// Skips pairs up to the first one read ahead that does not match.
    fn skip(&mut self, is_skipped: impl FnOnce(&[u8]) -> bool) {
        match &self.lookahead {
            Lookahead::At(pair) if !is_skipped(&pair.0) => {}
            Lookahead::End => {}
            Lookahead::At(_) | Lookahead::Unread => (self.cursor, self.lookahead) = (None, Lookahead::Unread),
        }
    }
}

type Entries<'v> = Box<dyn Iterator<Item = (&'v Vec<u8>, &'v WriteEntry)> + 'v>;

struct WritesAhead<'v> {
    /// The state of the keys from `at` to the next entry.
    state: RangeState,
    at: Vec<u8>,
    /// The end of the request, exclusive.
    end: Vec<u8>,
    next: Option<(&'v Vec<u8>, &'v WriteEntry)>,
    rest: Entries<'v>,
}

pub(crate) struct AscendingCursor<'v> {
    bypass_unreadable: bool,
    stored: StoredLookahead<'v, Ascend<'v>>,
    writes: Option<WritesAhead<'v>>,
}

impl<'v> AscendingCursor<'v> {
    pub(crate) fn next(&mut self) -> ViewResult<Option<Item<'v>>> {
        loop {
            let Some(writes) = &mut self.writes else { return Ok(self.stored.next()?.map(Item::stored)) };
            if writes.at >= writes.end {
                return Ok(None);
            }
            let boundary = writes.next.map(|(key, _)| key.as_slice());
            let range_is_empty = boundary.is_some_and(|boundary| boundary <= writes.at.as_slice());
            if !range_is_empty && writes.state.is_unreadable && !self.bypass_unreadable {
                return Err(ViewError::Unreadable);
            }
            let is_in_range = |key: &[u8]| boundary.is_none_or(|boundary| key < boundary);
            if range_is_empty {
            } else if writes.state.is_cleared {
                self.stored.skip(is_in_range);
            } else {
                self.stored.read_ahead(&writes.at, |key| key < writes.at.as_slice())?;
                if let Some(pair) = self.stored.take_if(is_in_range) {
                    return Ok(Some(Item::stored(pair)));
                }
            }
            let Some((key, entry)) = writes.next else {
                // Past the last write, in a range up to the end of the key space.
                return Ok(None);
            };
            if *key >= writes.end {
                return Ok(None);
            }
            writes.next = writes.rest.next();
            writes.state = entry.after;
            writes.at.clone_from(key);
            if entry.ops.is_empty() {
                continue;
            }
            if entry.is_unreadable && !self.bypass_unreadable {
                return Err(ViewError::Unreadable);
            }
            if entry.ops.is_dependent() {
                self.stored.read_ahead(key, |at| at < key.as_slice())?;
            }
            let stored = self.stored.take_if(|at| at == key.as_slice());
            writes.at.push(0);
            return Ok(Some(Item::written(key, &entry.ops, stored.map(|(_, value)| value))));
        }
    }
}

struct WritesBehind<'v> {
    /// All keys from here on were returned.
    end: Vec<u8>,
    begin: Vec<u8>,
    /// The entry whose range or operations come next.
    next: Option<(&'v Vec<u8>, &'v WriteEntry)>,
    rest: Entries<'v>,
}

pub(crate) struct DescendingCursor<'v> {
    bypass_unreadable: bool,
    stored: StoredLookahead<'v, Descend<'v>>,
    writes: Option<WritesBehind<'v>>,
}

impl<'v> DescendingCursor<'v> {
    pub(crate) fn next(&mut self) -> ViewResult<Option<Item<'v>>> {
        loop {
            let Some(writes) = &mut self.writes else { return Ok(self.stored.next()?.map(Item::stored)) };
            if writes.end <= writes.begin {
                return Ok(None);
            }
            let is_passed = |at: &[u8]| at >= writes.end.as_slice();
            let Some((key, entry)) = writes.next else {
                self.stored.read_ahead(&writes.end, is_passed)?;
                return Ok(self.stored.take_if(|_| true).map(Item::stored));
            };
            let has_ops = !entry.ops.is_empty();
            // The range of this entry: after its key if that has operations, from its key otherwise.
            let is_in_range = |at: &[u8]| if has_ops { at > key.as_slice() } else { at >= key.as_slice() };
            let range_is_empty = has_ops && writes.end.strip_prefix(key.as_slice()).is_some_and(|rest| rest == [0]);
            if !range_is_empty && entry.after.is_unreadable && !self.bypass_unreadable {
                return Err(ViewError::Unreadable);
            }
            if range_is_empty {
            } else if entry.after.is_cleared {
                self.stored.skip(is_in_range);
            } else {
                self.stored.read_ahead(&writes.end, is_passed)?;
                if let Some(pair) = self.stored.take_if(is_in_range) {
                    return Ok(Some(Item::stored(pair)));
                }
            }
            if *key < writes.begin {
                return Ok(None);
            }
            if has_ops && entry.is_unreadable && !self.bypass_unreadable {
                return Err(ViewError::Unreadable);
            }
            if has_ops && entry.ops.is_dependent() {
                let after = key_after(key);
                self.stored.read_ahead(&after, |at| at > key.as_slice())?;
            }
            writes.end.clone_from(key);
            writes.next = writes.rest.next();
            if has_ops {
                let stored = self.stored.take_if(|at| at == key.as_slice());
                return Ok(Some(Item::written(key, &entry.ops, stored.map(|(_, value)| value))));
            }
        }
    }
}
