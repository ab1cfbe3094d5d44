//! Reads of ranges whose answers cannot be taken for more than they say.
//!
//! FoundationDB may answer a range read with fewer rows than its limit, or with none, although the range has more. It sets `more`
//! then, and the reads here follow it. FoundationDB's own call is private to this module. A read issues its first call at once,
//! before anything is awaited. Where replies are full it makes no call more than that one.
//!
//! The loops have no bound of their own. Every turn awaits a call, and calls fail when the transaction is too old, or when its
//! attempt has lasted too long.

use bytes::Bytes;
use foundationdb::future::{FdbKeyValue, FdbValues};
use foundationdb::options::StreamingMode;
use foundationdb::{FdbResult, RangeOption};

use crate::error::Result;
use crate::keys::KeyRange;
use crate::transaction::Trx;

/// Rows of a range and the rest of it. A page without rows is the end of the range; one of fewer rows than its limit is not.
pub(crate) struct Page {
    /// Keys and values.
    pub rows: Vec<(Vec<u8>, Bytes)>,
    /// The range behind the last row; `None`: there are no more rows. It may turn out to have none.
    pub rest: Option<KeyRange>,
}

/// How a range is read.
#[derive(Clone, Copy)]
struct Form {
    limit: usize,
    is_reverse: bool,
    is_snapshot: bool,
}

impl Trx {
    /// The first rows of a range, as a snapshot: at most `limit`, and at least one if there is one.
    pub(crate) fn page(
        &self,
        range: &KeyRange,
        limit: usize,
        is_reverse: bool,
    ) -> impl Future<Output = Result<Page>> + Send + use<> {
        self.page_with(range, limit, is_reverse, true)
    }

    /// The same; without `is_snapshot` the commit fails if another writes something in what was read.
    pub(crate) fn page_with(
        &self,
        range: &KeyRange,
        limit: usize,
        is_reverse: bool,
        is_snapshot: bool,
    ) -> impl Future<Output = Result<Page>> + Send + use<> {
        // FoundationDB takes a limit of 0 for none.
        let form = Form { limit: limit.max(1), is_reverse, is_snapshot };
        let (trx, range) = (self.clone(), range.clone());
        let first = (range.begin < range.end).then(|| trx.get_range(&range, form));
        async move {
            let Some(first) = first else { return Ok(Page { rows: Vec::new(), rest: None }) };
            let (values, rest) = next_page(range, form, first, |range: &KeyRange| trx.get_range(range, form)).await?;
            let rows = values.iter().map(|row| (row.key().to_vec(), Bytes::copy_from_slice(row.value())));
            Ok(Page { rows: rows.collect(), rest })
        }
    }

    /// Whether a range has a row, as a snapshot.
    pub(crate) fn is_any(&self, range: &KeyRange) -> impl Future<Output = Result<bool>> + Send + use<> {
        let page = self.page(range, 1, false);
        async move { Ok(!page.await?.rows.is_empty()) }
    }

    /// FoundationDB's call. Its answer may be short or empty although there is more.
    fn get_range(
        &self,
        range: &KeyRange,
        form: Form,
    ) -> impl Future<Output = FdbResult<FdbValues>> + Send + Unpin + use<> {
        self.metrics.sync_range_reads.add(1);
        let option = RangeOption {
            mode: StreamingMode::WantAll,
            limit: Some(form.limit),
            reverse: form.is_reverse,
            ..RangeOption::from((range.begin.as_slice(), range.end.as_slice()))
        };
        // The iteration has a meaning in another mode only.
        self.trx.get_range(&option, 1, form.is_snapshot)
    }
}

/// What a call answers, as far as it is read here.
trait Reply {
    fn count(&self) -> usize;
    /// Whether there may be more behind its last row; without a row, in the same range.
    fn has_more(&self) -> bool;
    fn last_key(&self) -> Option<&[u8]>;
}

impl Reply for FdbValues {
    fn count(&self) -> usize {
        self.len()
    }

    fn has_more(&self) -> bool {
        self.more()
    }

    fn last_key(&self) -> Option<&[u8]> {
        self.last().map(FdbKeyValue::key)
    }
}

/// The first reply with rows, and the rest of the range behind them. An empty one with `more` is asked for again.
async fn next_page<R: Reply, F: Future<Output = FdbResult<R>>>(
    range: KeyRange,
    form: Form,
    first: F,
    ask: impl Fn(&KeyRange) -> F,
) -> FdbResult<(R, Option<KeyRange>)> {
    let mut reply = first.await?;
    while reply.count() == 0 && reply.has_more() {
        reply = ask(&range).await?;
    }
    let rest = match reply.last_key() {
        Some(last) if reply.has_more() || reply.count() >= form.limit => {
            Some(if form.is_reverse { range.before(last) } else { range.behind(last) })
        }
        _ => None,
    };
    Ok((reply, rest.filter(|rest| rest.begin < rest.end)))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::future::{Ready, ready};

    use futures_util::FutureExt;
    use proptest::prelude::*;

    use super::*;

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

    proptest! {
        /// Of each reply the most rows are given, and whether `more` is set although the range has no more.
        #[test]
        fn pages_are_the_whole_range_however_replies_are_cut(
            keys in prop::collection::btree_set(prop::collection::vec(0..3_u8, 1..4), 0..20),
            cuts in prop::collection::vec((0..4_usize, any::<bool>()), 0..40),
            limit in 1..9_usize,
            is_reverse: bool,
        ) {
            let keys: BTreeSet<Vec<u8>> = keys;
            let (form, cuts) = (Form { limit, is_reverse, is_snapshot: true }, RefCell::new(cuts.into_iter()));
            let rows = |range: &KeyRange| {
                let mut rows: Vec<_> = keys.range(range.begin.clone()..range.end.clone()).cloned().collect();
                if is_reverse {
                    rows.reverse();
                }
                rows
            };
            let ask = |range: &KeyRange| -> Ready<FdbResult<FakeReply>> {
                let rows = rows(range);
                let (most, says_more) = cuts.borrow_mut().next().unwrap_or((usize::MAX, false));
                let keys: Vec<_> = rows.iter().take(most.min(limit)).cloned().collect();
                let more = keys.len() < rows.len() || keys.len() == limit || says_more;
                ready(Ok(FakeReply { keys, more }))
            };
            let all = KeyRange { begin: vec![0], end: vec![9] };
            let (mut read, mut rest) = (Vec::new(), Some(all.clone()));
            while let Some(range) = rest.take() {
                let first = ask(&range);
                let (reply, behind) = next_page(range, form, first, ask).now_or_never().unwrap().unwrap();
                prop_assert!(!reply.keys.is_empty() || behind.is_none(), "an empty page is the end");
                read.extend(reply.keys);
                rest = behind;
            }
            prop_assert_eq!(read, rows(&all));
        }
    }
}
