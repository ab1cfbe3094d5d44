//! Range reads whose results are complete as stated.
//!
//! FoundationDB may answer a range read with fewer rows than its limit, or with none, and set `more` although the range
//! has further rows. A cluster does so when a reply is full, at the end of a server's shard, and where the transaction
//! itself cleared keys of the range. Neither a short nor an empty reply is the end of a range. Each read here follows
//! `more`:
//!
//! | read | answer |
//! |---|---|
//! | [`RangeQuery::any`] | whether the range has a row |
//! | [`RangeQuery::first`] | the first N rows; fewer only where the range has no more |
//! | [`RangeQuery::all`] | all rows; an error where there are more than the bound |
//! | [`RangeQuery::page`], [`RangeQuery::reply`] | some rows, none only where the range has none, and the rest of the range |
//!
//! FoundationDB's own call is private to this module. A read issues its first call at once, before it is awaited, so a
//! caller can begin several reads and await them later. With full replies a read makes no further call. A caller must
//! await a read before it writes into the range: a further call would see the writes, and fails at keys with a
//! versionstamp.
//!
//! The loops have no bound of their own. Every turn awaits a call, and calls fail when the transaction is too old or
//! cancelled, or when its attempt has lasted too long ([`RetryPolicy::attempt_max`](crate::RetryPolicy::attempt_max)).

use foundationdb::future::{FdbKeyValue, FdbValues};
use foundationdb::options::StreamingMode;
use foundationdb::{FdbResult, RangeOption};
use futures_util::future::BoxFuture;

use crate::context::{Corruption, TransactionContext};
use crate::keys::KeyRange;
use crate::transaction::{CallKind, Transaction};

impl<C: TransactionContext> Transaction<C> {
    /// Returns a read of a range, which its methods issue. Without `snapshot` the commit fails if another transaction
    /// writes into the range that was read.
    pub fn range(&self, range: &KeyRange, snapshot: bool) -> RangeQuery<'_, C> {
        let form = RangeForm { snapshot, reverse: false, target_bytes: 0 };
        RangeQuery { trx: self, range: range.clone(), form }
    }

    /// Issues FoundationDB's call. Its answer may be short or empty although the range has more rows.
    fn get_range(
        &self,
        range: &KeyRange,
        form: RangeForm,
        limit: Option<usize>,
    ) -> impl Future<Output = FdbResult<FdbValues>> + Send + Sync + Unpin + use<C> {
        let option = RangeOption {
            mode: StreamingMode::WantAll,
            limit,
            reverse: form.reverse,
            target_bytes: form.target_bytes,
            ..RangeOption::from((range.begin.as_slice(), range.end.as_slice()))
        };
        // FoundationDB uses the iteration number only in another streaming mode.
        self.count_answer(CallKind::Range, self.trx.get_range(&option, 1, form.snapshot))
    }
}

#[derive(Debug, Clone, Copy)]
struct RangeForm {
    snapshot: bool,
    reverse: bool,
    /// The approximate size of the first reply, in bytes; 0: a full reply.
    target_bytes: usize,
}

/// A range read that is not issued yet.
pub struct RangeQuery<'t, C: TransactionContext> {
    trx: &'t Transaction<C>,
    range: KeyRange,
    form: RangeForm,
}

impl<'t, C: TransactionContext> RangeQuery<'t, C> {
    /// Reads from the end of the range to its beginning.
    pub fn reverse(self, reverse: bool) -> Self {
        RangeQuery { form: RangeForm { reverse, ..self.form }, ..self }
    }

    /// Sets the approximate size of the first reply, in bytes; 0: a full reply.
    pub fn target_bytes(self, target_bytes: usize) -> Self {
        RangeQuery { form: RangeForm { target_bytes, ..self.form }, ..self }
    }

    /// Returns whether the range has a row.
    pub fn any(self) -> impl Future<Output = FdbResult<bool>> + Send + Sync + use<'t, C> {
        let first = self.first(1);
        async move { Ok(!first.await?.is_empty()) }
    }

    /// Returns the first `count` rows; fewer only if the range has no more.
    pub fn first(self, count: usize) -> impl Future<Output = FdbResult<Rows>> + Send + Sync + use<'t, C> {
        let RangeQuery { trx, range, form } = self;
        let reply = (count > 0).then(|| trx.get_range(&range, form, Some(count)));
        async move {
            let Some(reply) = reply else { return Ok(Rows { replies: Vec::new() }) };
            let ask = |range: &KeyRange, limit| trx.get_range(range, form, limit);
            Ok(Rows { replies: first_rows(range, form.reverse, count, reply, ask).await? })
        }
    }

    /// Returns all rows of a range with at most `most` rows.
    ///
    /// # Errors
    /// [`Corruption::RangeTooLong`] if the range has more.
    pub fn all(self, most: usize) -> impl Future<Output = Result<Rows, C::Error>> + Send + Sync + use<'t, C> {
        let rows = self.first(most.saturating_add(1));
        async move {
            let rows = rows.await?;
            if rows.len() > most {
                return Err(Corruption::RangeTooLong(most).into());
            }
            Ok(rows)
        }
    }

    /// Returns the first rows, at most `limit` and at least one if the range has any, and the rest of the range. A
    /// limit of 0 counts as 1.
    pub fn page(self, limit: usize) -> impl Future<Output = FdbResult<RangePage>> + Send + Sync + use<'t, C> {
        let trx = self.trx;
        let page = self.begin(Some(limit));
        async move { page.finish(trx).await }
    }

    /// Returns a full reply's rows, at least one if the range has any, and the rest of the range.
    pub fn reply(self) -> impl Future<Output = FdbResult<RangePage>> + Send + Sync + use<'t, C> {
        let trx = self.trx;
        let page = self.begin(None);
        async move { page.finish(trx).await }
    }

    /// Issues the read of a page that does not borrow the transaction. `None`: a full reply's rows.
    pub fn begin(
        self,
        limit: Option<usize>,
    ) -> PageRead<impl Future<Output = FdbResult<FdbValues>> + Send + Sync + Unpin + use<C>> {
        let RangeQuery { trx, range, form } = self;
        // For FoundationDB a limit of 0 means no limit.
        let limit = limit.map(|limit| limit.max(1));
        let reply = trx.get_range(&range, form, limit);
        PageRead { range, form, limit, reply }
    }
}

/// A page read under way.
pub struct PageRead<F> {
    range: KeyRange,
    form: RangeForm,
    limit: Option<usize>,
    reply: F,
}

/// A page read under way whose future type has a name.
pub type BoxedPageRead = PageRead<BoxFuture<'static, FdbResult<FdbValues>>>;

impl<F: Future<Output = FdbResult<FdbValues>> + Send> PageRead<F> {
    /// Boxes the future, so that its type has a name.
    pub fn boxed(self) -> BoxedPageRead
    where
        F: 'static,
    {
        let PageRead { range, form, limit, reply } = self;
        PageRead { range, form, limit, reply: Box::pin(reply) }
    }

    /// Completes the page with the transaction that began it.
    pub async fn finish<C: TransactionContext>(self, trx: &Transaction<C>) -> FdbResult<RangePage> {
        let PageRead { range, form, limit, reply } = self;
        let ask = |range: &KeyRange, limit| trx.get_range(range, form, limit);
        let (rows, rest) = next_page(range, form.reverse, limit, reply, &ask).await?;
        Ok(RangePage { rows, rest })
    }
}

/// Rows of a range and the rest of it. A page without rows is the end of the range; a page with fewer rows than its
/// limit may not be.
pub struct RangePage {
    rows: FdbValues,
    /// The range behind the last row; `None`: the end. The rest may have no rows.
    pub rest: Option<KeyRange>,
}

impl RangePage {
    /// Returns the page's number of rows, which says nothing of the rest.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether the page has no rows, so that the range has none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns whether no rows follow the page.
    pub fn is_all(&self) -> bool {
        self.rest.is_none()
    }

    /// Returns the row at a position in the page.
    pub fn get(&self, at: usize) -> Option<&FdbKeyValue> {
        self.rows.get(at)
    }

    /// Returns the last row of the page.
    pub fn last(&self) -> Option<&FdbKeyValue> {
        self.rows.last()
    }

    /// Iterates over the rows in the order of the read.
    pub fn iter(&self) -> std::slice::Iter<'_, FdbKeyValue> {
        self.rows.iter()
    }

    /// Copies the keys and values.
    pub fn to_vec(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.iter().map(copied).collect()
    }

    /// Returns the rows, and the rest of the range.
    pub fn into_parts(self) -> (FdbValues, Option<KeyRange>) {
        (self.rows, self.rest)
    }
}

impl<'p> IntoIterator for &'p RangePage {
    type Item = &'p FdbKeyValue;
    type IntoIter = std::slice::Iter<'p, FdbKeyValue>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The first rows of a range, or all of them.
pub struct Rows {
    /// The replies in order. Only the first may be empty.
    replies: Vec<FdbValues>,
}

impl Rows {
    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.replies.iter().map(|reply| reply.len()).sum()
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// Returns the first row.
    pub fn first(&self) -> Option<&FdbKeyValue> {
        self.iter().next()
    }

    /// Iterates over the rows in the order of the read.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &FdbKeyValue> + Clone {
        self.replies.iter().flat_map(|reply| reply.iter())
    }

    /// Copies the keys and values.
    pub fn to_vec(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.iter().map(copied).collect()
    }
}

fn copied(row: &FdbKeyValue) -> (Vec<u8>, Vec<u8>) {
    (row.key().to_vec(), row.value().to_vec())
}

/// The part of a call's answer that the loops below use.
trait Reply {
    fn count(&self) -> usize;
    /// Returns whether more rows may follow the last one, or, without a row, lie in the same range.
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

/// Returns the first reply with rows, and the rest of the range behind them. Repeats the read after an empty reply with
/// `more`.
async fn next_page<R: Reply, F: Future<Output = FdbResult<R>>>(
    range: KeyRange,
    reverse: bool,
    limit: Option<usize>,
    first: impl Future<Output = FdbResult<R>>,
    ask: &impl Fn(&KeyRange, Option<usize>) -> F,
) -> FdbResult<(R, Option<KeyRange>)> {
    let mut reply = first.await?;
    while reply.count() == 0 && reply.has_more() {
        reply = ask(&range, limit).await?;
    }
    let is_full = limit.is_some_and(|limit| reply.count() >= limit);
    let rest = match reply.last_key() {
        Some(last) if is_full || reply.has_more() => behind(range, last, reverse),
        _ => None,
    };
    Ok((reply, rest))
}

async fn first_rows<R: Reply, F: Future<Output = FdbResult<R>>>(
    range: KeyRange,
    reverse: bool,
    count: usize,
    first: impl Future<Output = FdbResult<R>>,
    ask: impl Fn(&KeyRange, Option<usize>) -> F,
) -> FdbResult<Vec<R>> {
    let mut left = count;
    let (reply, mut rest) = next_page(range, reverse, Some(left), first, &ask).await?;
    left = left.saturating_sub(reply.count());
    let mut replies = vec![reply];
    while let Some(range) = rest.take().filter(|_| left > 0) {
        let next = ask(&range, Some(left));
        let (reply, behind) = next_page(range, reverse, Some(left), next, &ask).await?;
        left = left.saturating_sub(reply.count());
        replies.push(reply);
        rest = behind;
    }
    Ok(replies)
}

/// Returns a range without its rows up to `last`; `None` if it is empty.
fn behind(range: KeyRange, last: &[u8], reverse: bool) -> Option<KeyRange> {
    let rest = if reverse { range.before(last) } else { range.behind(last) };
    (rest.begin < rest.end).then_some(rest)
}

#[cfg(test)]
mod tests;
