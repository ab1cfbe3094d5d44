#![cfg(test)]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::{Ready, ready};

use foundationdb::FdbError;
use futures_util::FutureExt;
use proptest::prelude::*;

use super::*;

/// An answer that a cluster may give.
struct FakeReply {
    keys: Vec<Vec<u8>>,
    more: bool,
}

impl Reply for FakeReply {
    fn count(&self) -> usize {
        self.keys.len()
    }

    fn has_more(&self) -> bool {
        self.more
    }

    fn last_key(&self) -> Option<&[u8]> {
        self.keys.last().map(Vec::as_slice)
    }
}

/// Keys, and the cuts of their replies.
struct FakeSource {
    keys: BTreeSet<Vec<u8>>,
    reverse: bool,
    /// For each call the most rows of its reply, and whether `more` is set at the end of the range. Further replies are
    /// full.
    cuts: RefCell<std::vec::IntoIter<(usize, bool)>>,
    calls: RefCell<usize>,
}

impl FakeSource {
    fn new(keys: &BTreeSet<Vec<u8>>, reverse: bool, cuts: Vec<(usize, bool)>) -> FakeSource {
        FakeSource { keys: keys.clone(), reverse, cuts: RefCell::new(cuts.into_iter()), calls: RefCell::new(0) }
    }

    fn rows(&self, range: &KeyRange) -> Vec<Vec<u8>> {
        let mut rows: Vec<_> = self.keys.range(range.begin.clone()..range.end.clone()).cloned().collect();
        if self.reverse {
            rows.reverse();
        }
        rows
    }

    fn ask(&self, range: &KeyRange, limit: Option<usize>) -> Ready<FdbResult<FakeReply>> {
        assert_ne!(limit, Some(0), "that would be no limit");
        *self.calls.borrow_mut() += 1;
        let rows = self.rows(range);
        let (most, says_more) = self.cuts.borrow_mut().next().unwrap_or((usize::MAX, false));
        let limit = limit.unwrap_or(usize::MAX);
        let keys: Vec<_> = rows.iter().take(most.min(limit)).cloned().collect();
        // A cluster also sets `more` on a reply that reaches its limit.
        let more = keys.len() < rows.len() || keys.len() == limit || says_more;
        ready(Ok(FakeReply { keys, more }))
    }

    fn first(&self, range: &KeyRange, count: usize) -> Vec<Vec<u8>> {
        let first = self.ask(range, Some(count));
        let replies =
            first_rows(range.clone(), self.reverse, count, first, |range: &KeyRange, limit| self.ask(range, limit));
        let replies = replies.now_or_never().unwrap().unwrap();
        replies.into_iter().flat_map(|reply| reply.keys).collect()
    }

    fn page(&self, range: &KeyRange, limit: Option<usize>) -> (Vec<Vec<u8>>, Option<KeyRange>) {
        let ask = |range: &KeyRange, limit| self.ask(range, limit);
        let page = next_page(range.clone(), self.reverse, limit, self.ask(range, limit), &ask);
        let (reply, rest) = page.now_or_never().unwrap().unwrap();
        (reply.keys, rest)
    }
}

fn range(begin: u8, end: u8) -> KeyRange {
    KeyRange { begin: vec![begin], end: vec![end] }
}

fn keys() -> impl Strategy<Value = BTreeSet<Vec<u8>>> {
    // Some keys are the immediate successors of others.
    prop::collection::btree_set(prop::collection::vec(0..3_u8, 1..4), 0..20)
}

fn cuts() -> impl Strategy<Value = Vec<(usize, bool)>> {
    prop::collection::vec((0..4_usize, any::<bool>()), 0..40)
}

proptest! {
    #[test]
    fn the_first_rows_are_the_same_however_replies_are_cut(
        keys in keys(), cuts in cuts(), reverse: bool, count in 1..25_usize, bounds in (0..3_u8, 0..4_u8),
    ) {
        let range = range(bounds.0, bounds.0.max(bounds.1));
        let source = FakeSource::new(&keys, reverse, cuts);
        let expected: Vec<_> = source.rows(&range).into_iter().take(count).collect();
        prop_assert_eq!(source.first(&range, count), expected);
    }

    #[test]
    fn pages_are_the_whole_range_however_replies_are_cut(
        keys in keys(), cuts in cuts(), reverse: bool, limit in prop::option::of(1..9_usize),
    ) {
        let all = range(0, 9);
        let source = FakeSource::new(&keys, reverse, cuts);
        let (mut rows, mut rest) = (Vec::new(), Some(all.clone()));
        while let Some(range) = rest.take() {
            let (page, behind) = source.page(&range, limit);
            prop_assert!(page.len() <= limit.unwrap_or(usize::MAX));
            prop_assert!(!page.is_empty() || behind.is_none(), "an empty page is the end");
            rows.extend(page);
            rest = behind;
        }
        prop_assert_eq!(rows, source.rows(&all));
    }

    #[test]
    fn full_replies_cost_one_call(keys in keys(), reverse: bool, count in 1..25_usize) {
        let source = FakeSource::new(&keys, reverse, Vec::new());
        source.first(&range(0, 9), count);
        source.page(&range(0, 9), Some(count));
        prop_assert_eq!(*source.calls.borrow(), 2);
    }
}

#[test]
fn an_error_ends_a_read() {
    let too_old = || FdbError::from_code(1007);
    let empty = ready(Ok(FakeReply { keys: Vec::new(), more: true }));
    let ask = |_: &KeyRange, _| ready(Err::<FakeReply, _>(too_old()));
    let failed = next_page(range(0, 9), false, Some(3), empty, &ask).now_or_never().unwrap();
    assert_eq!(failed.map(|_| ()).unwrap_err().code(), 1007);
}
