//! Ranges of keys: a set of disjoint ranges, and a list in insertion order.

use std::borrow::Cow;
use std::ops::Range;

use crate::base::key_space::key_after;

/// A set of keys made of half-open ranges. An insertion only appends; the ranges are sorted and merged when a caller
/// needs the order.
#[derive(Debug, Default)]
pub(crate) struct RangeSet {
    list: RangeList,
    is_unordered: bool,
    /// The number of ranges at which they are merged, so that repeated reads of the same keys do not use memory.
    order_at: usize,
}

impl RangeSet {
    /// Adds `[begin, end)`; an empty range adds nothing.
    pub(crate) fn insert(&mut self, begin: &[u8], end: &[u8]) {
        if begin >= end {
            return;
        }
        if let Some((last_begin, last_end)) = self.list.last() {
            if last_begin <= begin && begin <= last_end {
                // The next page of a scan, or the same key again.
                if last_end < end {
                    self.list.set_last_end(end);
                }
                return;
            }
            self.is_unordered |= begin < last_end;
        }
        self.list.push(begin, end);
        self.limit();
    }

    pub(crate) fn insert_key(&mut self, key: &[u8]) {
        if let Some((last_begin, last_end)) = self.list.last() {
            if last_begin <= key && key < last_end {
                return;
            }
            if last_begin < key && key == last_end {
                return self.insert(key, &key_after(key));
            }
            self.is_unordered |= key < last_end;
        }
        self.list.push_key(key);
        self.limit();
    }

    fn limit(&mut self) {
        if self.is_unordered && self.list.len() >= self.order_at {
            self.order();
            self.order_at = 2 * self.list.len() + 64;
        }
    }

    fn order(&mut self) {
        if self.is_unordered {
            self.list = self.in_order().into_owned();
            self.is_unordered = false;
        }
    }

    /// The set as ascending, disjoint ranges that do not touch.
    pub(crate) fn in_order(&self) -> Cow<'_, RangeList> {
        if !self.is_unordered {
            return Cow::Borrowed(&self.list);
        }
        let mut ranges: Vec<_> = self.list.iter().collect();
        ranges.sort_unstable();
        let mut set = RangeSet::default();
        ranges.into_iter().for_each(|(begin, end)| set.insert(begin, end));
        Cow::Owned(set.list)
    }

    /// Takes all ranges out, ascending and merged where they touch.
    pub(crate) fn take(&mut self) -> RangeList {
        self.order();
        std::mem::take(self).list
    }
}

/// Half-open ranges in insertion order, in one allocation. A single key costs its bytes and one more.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeList {
    bytes: Vec<u8>,
    /// The position of begin and end of each range; an end that extends its begin shares its bytes.
    places: Vec<(Range<usize>, Range<usize>)>,
}

impl RangeList {
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn reserve(&mut self, ranges: usize) {
        self.places.reserve(ranges);
    }

    pub(crate) fn push(&mut self, begin: &[u8], end: &[u8]) {
        let start = self.bytes.len();
        self.bytes.reserve(begin.len() + end.len());
        if !end.starts_with(begin) {
            self.bytes.extend_from_slice(begin);
        }
        let end_start = if end.starts_with(begin) { start } else { self.bytes.len() };
        self.bytes.extend_from_slice(end);
        self.places.push((start..start + begin.len(), end_start..self.bytes.len()));
    }

    pub(crate) fn push_key(&mut self, key: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.push(0);
        self.places.push((start..start + key.len(), start..self.bytes.len()));
    }

    pub(crate) fn push_key_after(&mut self, key: &[u8], kept: usize) {
        let is_touching = self.len() > kept && self.last().is_some_and(|(_, last_end)| last_end == key);
        self.push_key(key);
        if is_touching
            && let Some((_, end)) = self.places.pop()
            && let Some((_, last_end)) = self.places.last_mut()
        {
            *last_end = end;
        }
    }

    /// Adds a range that is not below the last one, and extends the last one if they touch, unless it is among the
    /// first `kept`.
    pub(crate) fn push_after(&mut self, begin: &[u8], end: &[u8], kept: usize) {
        if self.len() > kept && self.last().is_some_and(|(_, last_end)| last_end == begin) {
            self.set_last_end(end);
        } else {
            self.push(begin, end);
        }
    }

    fn last(&self) -> Option<(&[u8], &[u8])> {
        let (begin, end) = self.places.last()?;
        Some((self.bytes.get(begin.clone())?, self.bytes.get(end.clone())?))
    }

    fn set_last_end(&mut self, end: &[u8]) {
        if let Some((begin, place)) = self.places.last_mut() {
            // The last range is the last in memory.
            self.bytes.truncate(begin.end);
            *place = self.bytes.len()..self.bytes.len() + end.len();
            self.bytes.extend_from_slice(end);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.places
            .iter()
            .filter_map(|(begin, end)| Some((self.bytes.get(begin.clone())?, self.bytes.get(end.clone())?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_list_gives_back_what_came(ranges in prop::collection::vec((0u8..3, 0u8..9, 0usize..4, any::<bool>()), 0..12)) {
            let (mut list, mut model) = (RangeList::default(), Vec::<(Vec<u8>, Vec<u8>)>::new());
            for (kind, byte, kept, is_long) in ranges {
                let begin = match model.last() {
                    // Touches the last one.
                    Some((_, last)) if kind == 0 => last.clone(),
                    _ => vec![byte],
                };
                let end = if is_long { [&begin[..], &[byte, 1]].concat() } else { vec![begin[0] + 1] };
                if kind == 1 {
                    list.push_key(&begin);
                    model.push((begin.clone(), [&begin[..], &[0]].concat()));
                    continue;
                }
                list.push_after(&begin, &end, kept);
                match model.len() > kept && model.last().is_some_and(|(_, last)| *last == begin) {
                    true => model.last_mut().unwrap().1 = end,
                    false => model.push((begin, end)),
                }
            }
            let found: Vec<_> = list.iter().map(|(begin, end)| (begin.to_vec(), end.to_vec())).collect();
            prop_assert_eq!(list.len(), model.len());
            prop_assert_eq!(found, model);
        }

        #[test]
        fn holds_the_union(ranges in prop::collection::vec((0u8..40, 0u8..40), 0..200)) {
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for (begin, end) in ranges {
                if end == begin + 1 {
                    // The set's key is longer than the model's, and has the same position.
                    set.insert_key(&[begin]);
                    set.insert(&[begin, 0], &[end]);
                } else {
                    set.insert(&[begin], &[end]);
                }
                model.extend(begin..end);
                prop_assert!(set.list.len() < 120);
            }
            let mut held = BTreeSet::new();
            let mut last = None;
            for (begin, end) in set.in_order().iter() {
                prop_assert!(last < Some(begin[0]), "ranges touch or overlap");
                last = Some(end[0]);
                held.extend(begin[0]..end[0]);
            }
            prop_assert_eq!(held, model);
        }
    }
}
