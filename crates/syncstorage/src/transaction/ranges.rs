//! Pages of ranges, with their keys and values copied.

use bytes::Bytes;

use crate::error::Result;
use crate::keys::KeyRange;
use crate::transaction::Trx;

/// Rows of a range and the rest of it. A page without rows is the end of the range; a page with fewer rows than its
/// limit may not be.
pub(crate) struct Page {
    /// The keys and values.
    pub rows: Vec<(Vec<u8>, Bytes)>,
    /// The range behind the last row; `None`: the end. The rest may have no rows.
    pub rest: Option<KeyRange>,
}

impl Trx {
    /// Reads the first rows of a range as a snapshot: at most `limit`, and at least one if the range has any.
    pub(crate) fn page(
        &self,
        range: &KeyRange,
        limit: usize,
        is_reverse: bool,
    ) -> impl Future<Output = Result<Page>> + Send + use<> {
        self.page_with(range, limit, is_reverse, true)
    }

    /// Reads as [`Trx::page`] does. Without `is_snapshot` the commit fails if another transaction writes into what was
    /// read. The read is issued at once, before it is awaited. An empty or inverted range is not read.
    pub(crate) fn page_with(
        &self,
        range: &KeyRange,
        limit: usize,
        is_reverse: bool,
        is_snapshot: bool,
    ) -> impl Future<Output = Result<Page>> + Send + use<> {
        let trx = self.clone();
        let first = (range.begin < range.end)
            .then(|| trx.kit().range(range, is_snapshot).reverse(is_reverse).begin(Some(limit)));
        async move {
            let Some(first) = first else { return Ok(Page { rows: Vec::new(), rest: None }) };
            let (values, rest) = first.finish(trx.kit()).await?.into_parts();
            let rows = values.iter().map(|row| (row.key().to_vec(), Bytes::copy_from_slice(row.value())));
            Ok(Page { rows: rows.collect(), rest })
        }
    }

    /// Returns whether a range has a row, as a snapshot.
    pub(crate) fn is_any(&self, range: &KeyRange) -> impl Future<Output = Result<bool>> + Send + use<> {
        let page = self.page(range, 1, false);
        async move { Ok(!page.await?.rows.is_empty()) }
    }
}
