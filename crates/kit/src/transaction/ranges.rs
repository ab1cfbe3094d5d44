//! Reads of ranges whose answers cannot be taken for more than they say.
//!
//! FoundationDB may answer a range read with fewer rows than its limit, or with none, although the range has more. It sets `more`
//! then. A cluster does so where a reply is full, where a server's part of the keys ends, and where the transaction itself has
//! cleared keys of the range. So neither a short reply nor an empty one is the end of a range. Each read here follows `more`:
//!
//! | read | answer |
//! |---|---|
//! | [`RangeQuery::any`] | whether the range has a row |
//! | [`RangeQuery::first`] | the first N rows; fewer only where the range has no more |
//! | [`RangeQuery::all`] | all rows; an error where there are more than the bound |
//! | [`RangeQuery::page`], [`RangeQuery::reply`] | some rows, none only where the range has none, and the rest of the range |
//!
//! FoundationDB's own call is private to this module. A read issues its first call at once, before anything is awaited, so that
//! a caller can begin several and await them later. Where replies are full it makes no call more than that one. A caller must
//! await a read before it writes into its range: a further call sees the writes, and fails at keys with a versionstamp.
//!
//! The loops have no bound of their own. Every turn awaits a call, and calls fail when the transaction is too old or is cancelled,
//! or when its attempt has lasted too long ([`RetryPolicy::attempt_max`](crate::RetryPolicy::attempt_max)).

use foundationdb::future::{FdbKeyValue, FdbValues};
use foundationdb::options::StreamingMode;
use foundationdb::{FdbResult, RangeOption};
use futures_util::future::BoxFuture;

use crate::context::{Corruption, TransactionContext};
use crate::keys::KeyRange;
use crate::transaction::{Kind, Transaction};

impl<C: TransactionContext> Transaction<C> {
    /// A read of a range, to be issued by one of its methods. Without `snapshot` the commit fails if another transaction writes
    /// something in what was read.
    pub fn range(&self, range: &KeyRange, snapshot: bool) -> RangeQuery<'_, C> {
        let form = Form { snapshot, reverse: false, target_bytes: 0 };
        RangeQuery { trx: self, range: range.clone(), form }
    }

    /// FoundationDB's call. Its answer may be short or empty although there is more.
    fn get_range(
        &self,
        range: &KeyRange,
        form: Form,
        limit: Option<usize>,
    ) -> impl Future<Output = FdbResult<FdbValues>> + Send + Sync + Unpin + use<C> {
        let option = RangeOption {
            mode: StreamingMode::WantAll,
            limit,
            reverse: form.reverse,
            target_bytes: form.target_bytes,
            ..RangeOption::from((range.begin.as_slice(), range.end.as_slice()))
        };
        // The iteration has a meaning in another mode only.
        self.given(Kind::Range, self.trx.get_range(&option, 1, form.snapshot))
    }
}

/// How a range is read.
#[derive(Debug, Clone, Copy)]
struct Form {
    snapshot: bool,
    reverse: bool,
    /// Bytes of the first reply, about; 0: as many as a reply holds.
    target_bytes: usize,
}

/// A read of a range that is not issued yet.
pub struct RangeQuery<'t, C: TransactionContext> {
    trx: &'t Transaction<C>,
    range: KeyRange,
    form: Form,
}

impl<'t, C: TransactionContext> RangeQuery<'t, C> {
    /// From the end of the range to its beginning, if so.
    pub fn reverse(self, reverse: bool) -> Self {
        RangeQuery { form: Form { reverse, ..self.form }, ..self }
    }

    /// A first reply of about so many bytes; 0: as many as a reply holds.
    pub fn target_bytes(self, target_bytes: usize) -> Self {
        RangeQuery { form: Form { target_bytes, ..self.form }, ..self }
    }

    /// Whether the range has a row.
    pub fn any(self) -> impl Future<Output = FdbResult<bool>> + Send + Sync + use<'t, C> {
        let first = self.first(1);
        async move { Ok(!first.await?.is_empty()) }
    }

    /// The first `count` rows; fewer only if the range has no more.
    pub fn first(self, count: usize) -> impl Future<Output = FdbResult<Rows>> + Send + Sync + use<'t, C> {
        let RangeQuery { trx, range, form } = self;
        let reply = (count > 0).then(|| trx.get_range(&range, form, Some(count)));
        async move {
            let Some(reply) = reply else { return Ok(Rows { replies: Vec::new() }) };
            let ask = |range: &KeyRange, limit| trx.get_range(range, form, limit);
            Ok(Rows { replies: first_rows(range, form.reverse, count, reply, ask).await? })
        }
    }

    /// All rows of a range that has at most `most`.
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

    /// The first rows, at most `limit` and at least one if there is one, and the rest of the range. A limit of 0 counts as 1.
    pub fn page(self, limit: usize) -> impl Future<Output = FdbResult<Page>> + Send + Sync + use<'t, C> {
        let trx = self.trx;
        let page = self.begin(Some(limit));
        async move { page.finish(trx).await }
    }

    /// As many of the first rows as a reply holds, at least one if there is one, and the rest of the range.
    pub fn reply(self) -> impl Future<Output = FdbResult<Page>> + Send + Sync + use<'t, C> {
        let trx = self.trx;
        let page = self.begin(None);
        async move { page.finish(trx).await }
    }

    /// A page whose read is issued, in a form that does not borrow the transaction. `None`: as many rows as a reply holds.
    pub fn begin(
        self,
        limit: Option<usize>,
    ) -> PageRead<impl Future<Output = FdbResult<FdbValues>> + Send + Sync + Unpin + use<C>> {
        let RangeQuery { trx, range, form } = self;
        // FoundationDB takes a limit of 0 for none.
        let limit = limit.map(|limit| limit.max(1));
        let reply = trx.get_range(&range, form, limit);
        PageRead { range, form, limit, reply }
    }
}

/// A page that is being read.
pub struct PageRead<F> {
    range: KeyRange,
    form: Form,
    limit: Option<usize>,
    reply: F,
}

/// A page that is being read, with a name for its future.
pub type BoxedPageRead = PageRead<BoxFuture<'static, FdbResult<FdbValues>>>;

impl<F: Future<Output = FdbResult<FdbValues>> + Send> PageRead<F> {
    /// The same, with a name for its future.
    pub fn boxed(self) -> BoxedPageRead
    where
        F: 'static,
    {
        let PageRead { range, form, limit, reply } = self;
        PageRead { range, form, limit, reply: Box::pin(reply) }
    }

    /// The page, read by the transaction that began it.
    pub async fn finish<C: TransactionContext>(self, trx: &Transaction<C>) -> FdbResult<Page> {
        let PageRead { range, form, limit, reply } = self;
        let ask = |range: &KeyRange, limit| trx.get_range(range, form, limit);
        let (rows, rest) = next_page(range, form.reverse, limit, reply, &ask).await?;
        Ok(Page { rows, rest })
    }
}

/// Rows of a range and the rest of it. A page without rows is the end of the range; one of fewer rows than its limit is not.
pub struct Page {
    rows: FdbValues,
    /// The range behind the last row; `None`: there are no more rows. It may turn out to have none.
    pub rest: Option<KeyRange>,
}

impl Page {
    /// How many rows the page has, which says nothing of the rest.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the range has no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether the range has no rows behind these.
    pub fn is_all(&self) -> bool {
        self.rest.is_none()
    }

    /// The row at a place in the page.
    pub fn get(&self, at: usize) -> Option<&FdbKeyValue> {
        self.rows.get(at)
    }

    /// The last row of the page.
    pub fn last(&self) -> Option<&FdbKeyValue> {
        self.rows.last()
    }

    /// The rows in the order of the read.
    pub fn iter(&self) -> std::slice::Iter<'_, FdbKeyValue> {
        self.rows.iter()
    }

    /// Keys and values, copied.
    pub fn to_vec(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.iter().map(copied).collect()
    }

    /// The rows as they came, and the rest of the range.
    pub fn into_parts(self) -> (FdbValues, Option<KeyRange>) {
        (self.rows, self.rest)
    }
}

impl<'p> IntoIterator for &'p Page {
    type Item = &'p FdbKeyValue;
    type IntoIter = std::slice::Iter<'p, FdbKeyValue>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The first rows of a range, or all.
pub struct Rows {
    /// As they came, none of them empty but a first one.
    replies: Vec<FdbValues>,
}

impl Rows {
    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.replies.iter().map(|reply| reply.len()).sum()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// The first row.
    pub fn first(&self) -> Option<&FdbKeyValue> {
        self.iter().next()
    }

    /// The rows in the order of the read.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &FdbKeyValue> + Clone {
        self.replies.iter().flat_map(|reply| reply.iter())
    }

    /// Keys and values, copied.
    pub fn to_vec(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.iter().map(copied).collect()
    }
}

fn copied(row: &FdbKeyValue) -> (Vec<u8>, Vec<u8>) {
    (row.key().to_vec(), row.value().to_vec())
}

/// What a call answers, as far as the loops below read it.
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

/// Replies with the first `count` rows of a range.
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

/// A range without its rows up to `last`; `None`: no key lies in it.
fn behind(range: KeyRange, last: &[u8], reverse: bool) -> Option<KeyRange> {
    let rest = if reverse { range.before(last) } else { range.behind(last) };
    (rest.begin < rest.end).then_some(rest)
}

#[cfg(test)]
mod tests;
