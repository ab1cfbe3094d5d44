//! Range reads and their read conflicts, as in FoundationDB's client.
//!
//! Two rule sets: [`Rules::ReadYourWrites`] is the client's read-your-writes layer; [`Rules::Native`] is the layer
//! below, which answers when `read_your_writes_disable` is set. They resolve selectors alike and differ in the extent
//! of the read conflicts.

use std::borrow::Cow;

use crate::base::key_space::key_after;
use crate::disk::stored::StoredState;
use crate::read::limits::Limits;
use crate::read::result::RangeResult;
use crate::read::selector::{KeySelector, Outcome, get_key, resolve};
use crate::read::view::{Item, View, ViewError, ViewResult};

/// The rule set for the conflicts of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    ReadYourWrites,
    Native,
}

type Keys<'r> = (Cow<'r, [u8]>, Cow<'r, [u8]>);

/// A range read between two selectors.
pub(crate) struct RangeRead<'r> {
    pub(crate) begin: KeySelector<'r>,
    pub(crate) end: KeySelector<'r>,
    pub(crate) limits: Limits,
    pub(crate) reverse: bool,
    pub(crate) rules: Rules,
    pub(crate) max_key: &'r [u8],
}

impl<'r> RangeRead<'r> {
    /// Returns the two ends of the read if its selectors need no walk.
    pub(crate) fn keys(&self) -> Option<Keys<'r>> {
        let is_plain = self.begin.offset == 1 && self.end.offset == 1;
        is_plain.then(|| (self.begin.base(), self.end.base())).filter(|(begin, end)| begin < end)
    }

    pub(crate) fn run(&self, view: &View<'_>) -> ViewResult<Outcome<RangeResult>> {
        self.run_cut(view, |_| Ok(()))
    }

    /// Reads, lets `cut` take pairs off the far end, and determines the conflict of the rest.
    pub(crate) fn run_cut<E: From<ViewError>>(
        &self,
        view: &View<'_>,
        cut: impl FnOnce(&mut RangeResult) -> std::result::Result<(), E>,
    ) -> std::result::Result<Outcome<RangeResult>, E> {
        let (begin, end) = (self.begin.base().into_owned(), self.end.base().into_owned());
        let mut scan = RangeScan::default();
        self.collect(view, &begin, &end, &mut scan)?;
        cut(&mut scan.result)?;
        let conflict = match self.rules {
            Rules::ReadYourWrites => self.conflict(&scan, begin, end),
            Rules::Native => self.native_conflict(&scan, begin, end),
        };
        Ok(Outcome { answer: scan.result, conflict: Some(conflict) })
    }

    fn collect(&self, view: &View<'_>, begin: &[u8], end: &[u8], scan: &mut RangeScan) -> ViewResult<()> {
        let from = resolve(view, begin, i64::from(self.begin.offset), self.max_key);
        let to = resolve(view, end, i64::from(self.end.offset), self.max_key);
        // A selector may run into unreadable keys that the read, ended by its limit, never reaches.
        let (from, to) = match (from, to, self.reverse) {
            (Ok(from), Ok(to), _) => (from, to),
            (Ok(from), Err(error), false) => {
                scan.read_to_begin = from.is_before_begin;
                return self.until_limit(view, (&from.key, end), scan, error);
            }
            (Err(error), Ok(to), true) => {
                scan.read_through_end = to.is_past_end;
                return self.until_limit(view, (&to.key, begin), scan, error);
            }
            (Err(error), _, _) | (_, Err(error), _) => return Err(error),
        };
        if self.rules == Rules::ReadYourWrites && self.is_crossed(view, begin, end, scan)? {
            return Ok(());
        }
        scan.reads_past_end = to.is_past_end && (!from.is_past_end || from.offset < to.offset);
        if from.offset >= to.offset && from.key >= to.key {
            // An end that only the walk of the far selector ran off does not count.
            (scan.read_to_begin, scan.read_through_end) = (false, false);
            return Ok(());
        }
        scan.begins_before_begin = from.is_before_begin && from.key < to.key;
        scan.read_to_begin |= from.is_before_begin || to.is_before_begin;
        scan.read_through_end |= from.is_past_end || to.is_past_end;
        if from.key < to.key {
            let end = to.key.as_slice().min(self.max_key);
            if self.reverse {
                let mut items = view.descend(end, &from.key)?;
                self.fill(scan, || Ok(items.next()?.filter(|item| item.key.as_ref() >= from.key.as_slice())))?;
            } else if view.writes.is_none_or(|writes| writes.is_empty()) {
                self.fill_stored(&view.stored()?, &from.key, end, scan)?;
            } else {
                let mut items = view.ascend(&from.key, end)?;
                self.fill(scan, || Ok(items.next()?.filter(|item| item.key.as_ref() < end)))?;
            }
        }
        if scan.result.more {
            // Keys past the limit were not read.
            scan.read_to_begin &= !self.reverse;
            scan.read_through_end &= self.reverse;
        }
        Ok(())
    }

    /// Handles selectors that start on crossed keys. FoundationDB's client resolves the far one first, and its answer
    /// may end the read at once, with a conflict up to the end of the key space that it ran off.
    fn is_crossed(&self, view: &View<'_>, begin: &[u8], end: &[u8], scan: &mut RangeScan) -> ViewResult<bool> {
        let (near, far) = if self.reverse { (&self.end, &self.begin) } else { (&self.begin, &self.end) };
        if begin <= end || far.offset == 1 {
            return Ok(false);
        }
        let resolved = get_key(view, *far, self.max_key)?.answer;
        let (is_begin, is_end) = (resolved.is_empty(), resolved == self.max_key);
        let (is_empty, is_off) = if self.reverse {
            (resolved.as_slice() >= end && near.offset <= 1, is_end)
        } else {
            (begin >= resolved.as_slice() && near.offset > 0, is_begin)
        };
        if !is_empty {
            scan.read_to_begin = is_begin;
            scan.read_through_end = is_end;
        }
        Ok(is_empty || is_off)
    }

    /// Reads from one end while the other end is unknown because of `error`. The result is valid only if the limit is
    /// reached first, with as many pairs after it as the other selector may go back over.
    fn until_limit(
        &self,
        view: &View<'_>,
        (from, other_base): (&[u8], &[u8]),
        scan: &mut RangeScan,
        error: ViewError,
    ) -> ViewResult<()> {
        let is_known = if self.reverse {
            let further = i64::from(self.begin.offset) - 1;
            let mut items = view.descend(from.min(self.max_key), b"")?;
            let is_before = |key: &[u8]| further <= 0 || key >= other_base;
            from >= other_base && self.fill_and_go_on(scan, further, is_before, || items.next())?
        } else {
            let further = 1 - i64::from(self.end.offset);
            let mut items = view.ascend(from, self.max_key)?;
            let is_before = |key: &[u8]| further <= 0 || key < other_base;
            from <= other_base && self.fill_and_go_on(scan, further, is_before, || items.next())?
        };
        if is_known { Ok(()) } else { Err(error) }
    }

    /// Returns whether the limit was reached and `further` pairs follow, all of them before the other selector's base.
    fn fill_and_go_on<'v>(
        &self,
        scan: &mut RangeScan,
        mut further: i64,
        is_before: impl Fn(&[u8]) -> bool,
        mut next: impl FnMut() -> ViewResult<Option<Item<'v>>>,
    ) -> ViewResult<bool> {
        self.fill(scan, &mut next)?;
        if !scan.result.more || scan.result.last_key().is_some_and(|key| !is_before(key)) {
            return Ok(false);
        }
        while further > 0 {
            match next()?.filter(|item| is_before(&item.key)) {
                Some(item) => further -= i64::from(item.value.is_some()),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn fill<'v>(&self, scan: &mut RangeScan, mut next: impl FnMut() -> ViewResult<Option<Item<'v>>>) -> ViewResult<()> {
        let mut limits = self.limits;
        while let Some(item) = next()? {
            let Some(value) = item.value else { continue };
            if scan.result.take(&item.key, &value, &mut limits) {
                break;
            }
        }
        Ok(())
    }

    /// Fills from stored pairs from `from` on, without writes to overlay: the fast path of most range reads.
    fn fill_stored(&self, stored: &StoredState<'_>, from: &[u8], end: &[u8], scan: &mut RangeScan) -> ViewResult<()> {
        let mut limits = self.limits;
        Ok(stored.ascend(from)?.for_each_below(end, |key, value| scan.result.take(key, value, &mut limits))?)
    }

    /// The extent of the conflict in the read-your-writes layer. A limited read does not depend on keys past its last
    /// pair, unless the far selector counts from there.
    fn conflict(&self, scan: &RangeScan, begin: Vec<u8>, end: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
        let result = &scan.result;
        let (mut from, mut to) = match (begin < end, self.reverse) {
            (false, _) => (end, begin),
            (true, false) if self.end.offset > 0 && result.more => (begin.clone(), begin),
            (true, true) if self.begin.offset <= 1 && result.more => (end.clone(), end),
            (true, _) => (begin, end),
        };
        if scan.read_to_begin && self.begin.offset <= 0 {
            from = Vec::new();
        }
        if scan.read_through_end && self.end.offset > 0 {
            to = self.max_key.to_vec();
        }
        if let (Some(first), Some(last)) = (result.first_key(), result.last_key()) {
            let (lowest, highest) = if self.reverse { (last, first) } else { (first, last) };
            if (self.reverse || self.begin.offset <= 0) && lowest < from.as_slice() {
                from = lowest.to_vec();
            }
            if (!self.reverse || self.end.offset > 0) && to.as_slice() <= highest {
                to = key_after(highest);
            }
        }
        (from, to)
    }

    /// The extent of the conflict without the read-your-writes layer.
    fn native_conflict(&self, scan: &RangeScan, begin: Vec<u8>, end: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
        let result = &scan.result;
        let (begin_offset, end_offset) = (self.begin.offset, self.end.offset);
        let starts_at_begin = begin.is_empty() && begin_offset < 1;
        let read_to_begin = starts_at_begin || scan.begins_before_begin && !(self.reverse && result.more);
        let ends = match (result.first_key(), result.last_key()) {
            (Some(first), Some(last)) if self.reverse => Some((last, first)),
            (Some(first), Some(last)) => Some((first, last)),
            _ => None,
        };
        let mut from = match ends {
            _ if read_to_begin => Vec::new(),
            Some((lowest, _)) if begin_offset <= 0 || (self.reverse && result.more && begin_offset <= 1) => {
                lowest.to_vec()
            }
            _ => begin.clone(),
        };
        if end_offset > begin_offset && end < from {
            from.clone_from(&end);
        }
        let mut to = match ends {
            _ if scan.reads_past_end && !result.more => self.max_key.to_vec(),
            Some((_, highest)) if end_offset > 1 || (!self.reverse && result.more && end_offset > 0) => {
                key_after(highest)
            }
            _ => end,
        };
        if begin_offset < end_offset && begin > to {
            to = begin;
        }
        (from, to)
    }
}

#[derive(Default)]
struct RangeScan {
    result: RangeResult,
    /// True if the begin selector ran off the begin of the key space and the range is not empty.
    begins_before_begin: bool,
    /// True if the end selector ran off the readable end and the range is not empty: on a cluster it contains system
    /// keys.
    reads_past_end: bool,
    read_to_begin: bool,
    read_through_end: bool,
}
