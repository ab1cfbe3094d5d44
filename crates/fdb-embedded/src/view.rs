//! The database as a transaction sees it: a snapshot under the transaction's own writes.

use std::borrow::Cow;

use crate::error::Error;
use crate::store::{Pair, StoreError};
use crate::stored::{Ascend, Descend, Stored};
use crate::write_map::{Entry, Lookup, Ops, RangeState, WriteMap};

/// Why a read of a view failed.
#[derive(Debug)]
pub(crate) enum ViewError {
    /// The read met a key whose value is not known before the commit.
    Unreadable,
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
            ViewError::Store => Error::IO_ERROR,
        }
    }
}

pub(crate) type ViewResult<T> = Result<T, ViewError>;

/// A snapshot, and the writes that reads shall see (`None`: the snapshot alone).
#[derive(Clone, Copy)]
pub(crate) struct View<'v> {
    pub(crate) stored: Stored<'v>,
    pub(crate) writes: Option<&'v WriteMap>,
    pub(crate) bypass_unreadable: bool,
}

/// A key in order. A phantom was written by the transaction but holds nothing (`compare_and_clear`); FoundationDB's
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
    pub(crate) fn get(&self, key: &[u8]) -> ViewResult<Option<Cow<'v, [u8]>>> {
        let stored = || self.stored.get(key);
        match self.writes.map_or(Lookup::Untouched, |writes| writes.lookup(key, self.bypass_unreadable)) {
            Lookup::Untouched => Ok(stored()?.map(Cow::Borrowed)),
            Lookup::Cleared => Ok(None),
            Lookup::Unreadable => Err(ViewError::Unreadable),
            Lookup::Operations(ops) if ops.is_dependent() => Ok(ops.resolve(stored()?).map(Cow::Owned)),
            Lookup::Operations(ops) => Ok(ops.resolve(None).map(Cow::Owned)),
        }
    }

    /// Items from `begin` on; unreadable keys count below `end` only. Items may come past `end`.
    pub(crate) fn ascend(&self, begin: &[u8], end: &[u8]) -> ViewResult<Ascending<'v>> {
        let mut stored = self.stored.ascend(begin)?;
        let writes = match self.writes {
            Some(writes) if !writes.is_empty() => {
                let (state, mut entries) = writes.from(begin);
                let next = entries.next();
                Some(WritesAhead { state, at: begin.to_vec(), end: end.to_vec(), next, rest: Box::new(entries) })
            }
            _ => None,
        };
        let ahead = if writes.is_some() { stored.next()? } else { None };
        Ok(Ascending { view: *self, stored, ahead, writes })
    }

    /// Items below `end`, descending; unreadable keys count from `begin` on only. Items may come below `begin`.
    pub(crate) fn descend(&self, end: &[u8], begin: &[u8]) -> ViewResult<Descending<'v>> {
        let mut stored = self.stored.descend(end)?;
        let writes = match self.writes {
            Some(writes) if !writes.is_empty() => {
                let mut entries = writes.below(end);
                let next = entries.next();
                Some(WritesBehind { end: end.to_vec(), begin: begin.to_vec(), next, rest: Box::new(entries) })
            }
            _ => None,
        };
        let ahead = if writes.is_some() { stored.next()? } else { None };
        Ok(Descending { view: *self, stored, ahead, writes })
    }
}

type Entries<'v> = Box<dyn Iterator<Item = (&'v Vec<u8>, &'v Entry)> + 'v>;

struct WritesAhead<'v> {
    /// State of the keys from `at` to the next entry.
    state: RangeState,
    at: Vec<u8>,
    /// What lies from here on is not asked for.
    end: Vec<u8>,
    next: Option<(&'v Vec<u8>, &'v Entry)>,
    rest: Entries<'v>,
}

/// See [`View::ascend`].
pub(crate) struct Ascending<'v> {
    view: View<'v>,
    stored: Ascend<'v>,
    /// Read ahead where there are writes to be mingled in.
    ahead: Option<Pair<'v>>,
    writes: Option<WritesAhead<'v>>,
}

impl<'v> Ascending<'v> {
    pub(crate) fn next(&mut self) -> ViewResult<Option<Item<'v>>> {
        loop {
            let Some(writes) = &mut self.writes else { return Ok(self.stored.next()?.map(Item::stored)) };
            if writes.at >= writes.end {
                return Ok(None);
            }
            let boundary = writes.next.map(|(key, _)| key.as_slice());
            let range_is_empty = boundary.is_some_and(|boundary| boundary <= writes.at.as_slice());
            if !range_is_empty && writes.state.is_unreadable && !self.view.bypass_unreadable {
                return Err(ViewError::Unreadable);
            }
            let in_range = |pair: &Pair<'v>| boundary.is_none_or(|boundary| pair.0.as_ref() < boundary);
            if let Some(pair) = self.ahead.take_if(|pair| in_range(pair)) {
                if !writes.state.is_cleared {
                    self.ahead = self.stored.next()?;
                    return Ok(Some(Item::stored(pair)));
                }
                let Some(boundary) = boundary else { return Ok(None) };
                self.stored = self.view.stored.ascend(boundary)?;
                self.ahead = self.stored.next()?;
            }
            let Some((key, entry)) = writes.next else {
                // Past the last write, in a range that goes to the end of the key space.
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
            writes.at.push(0);
            if entry.is_unreadable && !self.view.bypass_unreadable {
                return Err(ViewError::Unreadable);
            }
            let stored = self.ahead.take_if(|pair| pair.0.as_ref() == key.as_slice());
            if stored.is_some() {
                self.ahead = self.stored.next()?;
            }
            return Ok(Some(Item::written(key, &entry.ops, stored.map(|(_, value)| value))));
        }
    }
}

struct WritesBehind<'v> {
    /// Everything from here on was given out.
    end: Vec<u8>,
    /// What lies below is not asked for.
    begin: Vec<u8>,
    /// The entry whose range or operations come next.
    next: Option<(&'v Vec<u8>, &'v Entry)>,
    rest: Entries<'v>,
}

/// See [`View::descend`].
pub(crate) struct Descending<'v> {
    view: View<'v>,
    stored: Descend<'v>,
    /// Read ahead where there are writes to be mingled in.
    ahead: Option<Pair<'v>>,
    writes: Option<WritesBehind<'v>>,
}

impl<'v> Descending<'v> {
    pub(crate) fn next(&mut self) -> ViewResult<Option<Item<'v>>> {
        loop {
            let writes = match &mut self.writes {
                None => return Ok(self.stored.next()?.map(Item::stored)),
                Some(writes) if writes.next.is_some() => writes,
                Some(_) => {
                    let Some(pair) = self.ahead.take() else { return Ok(None) };
                    self.ahead = self.stored.next()?;
                    return Ok(Some(Item::stored(pair)));
                }
            };
            let Some((key, entry)) = writes.next else { continue };
            if writes.end <= writes.begin {
                return Ok(None);
            }
            let has_ops = !entry.ops.is_empty();
            // The range of this entry: after its key if that has operations, from its key otherwise.
            let is_in_range = |at: &[u8]| if has_ops { at > key.as_slice() } else { at >= key.as_slice() };
            let range_is_empty = has_ops && writes.end.strip_prefix(key.as_slice()).is_some_and(|rest| rest == [0]);
            if !range_is_empty && entry.after.is_unreadable && !self.view.bypass_unreadable {
                return Err(ViewError::Unreadable);
            }
            if let Some(pair) = self.ahead.take_if(|pair| is_in_range(&pair.0)) {
                if !entry.after.is_cleared {
                    self.ahead = self.stored.next()?;
                    return Ok(Some(Item::stored(pair)));
                }
                let mut below = key.clone();
                if has_ops {
                    below.push(0);
                }
                self.stored = self.view.stored.descend(&below)?;
                self.ahead = self.stored.next()?;
            }
            if *key < writes.begin {
                return Ok(None);
            }
            writes.end.clone_from(key);
            writes.next = writes.rest.next();
            if !has_ops {
                continue;
            }
            if entry.is_unreadable && !self.view.bypass_unreadable {
                return Err(ViewError::Unreadable);
            }
            let stored = self.ahead.take_if(|pair| pair.0.as_ref() == key.as_slice());
            if stored.is_some() {
                self.ahead = self.stored.next()?;
            }
            return Ok(Some(Item::written(key, &entry.ops, stored.map(|(_, value)| value))));
        }
    }
}
