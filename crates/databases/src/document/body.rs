//! Bodies of documents as rows of keys: encoding and decoding.

use std::ops::Range;
use std::sync::Arc;

use flatbed_flatten::json::Value;
use flatbed_flatten::{DecodeError, FlattenOptions};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::KeyRange;
use flatbed_store::records::BodyPlace;
use flatbed_store::transaction::{PageRead, Transaction};
use foundationdb::FdbResult;
use foundationdb::future::FdbValues;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::instance::{Instance, RUN_BYTES_MAX};
use crate::server::Inner;

/// Bytes of rows above which a body is staged before its transaction: with the superseded body that it moves, and the
/// records, a transaction stays below 1 MB.
pub const STAGED_ABOVE_BYTES: u64 = 400_000;

/// Byte limit of a packed path: with root, namespace, document id and revision, even if all their bytes are NULs, the
/// key stays below 9.5 kB.
const PATH_BYTES_MAX: usize = 4_000;

/// Bytes of a row in a transaction beside its key and value: the mutation's overhead, and the extra length of a
/// superseded revision's key.
const ROW_OVERHEAD_BYTES: usize = 40;

/// Approximate bytes of a document's records (info, leaf, revision, by-seq, `_all_docs`, counters) in a transaction.
pub const ROW_OVERHEAD_OF_RECORDS: u64 = 1_500;

/// A body ready to be written.
#[derive(Debug)]
pub struct PreparedBody {
    /// Paths and values in the order of keys; empty once the body is staged.
    pub rows: Vec<(Vec<u8>, Vec<u8>)>,
    pub place: BodyPlace,
    /// True if the body is too large for the transaction that writes the document.
    pub must_be_staged: bool,
    pub external_bytes: u64,
    pub stored_bytes: u64,
}

impl PreparedBody {
    /// Flattens and packs a body with the names in the instance's cache. A body of more than [`STAGED_ABOVE_BYTES`] is
    /// packed into the largest runs, to be staged.
    pub fn new(instance: &Instance, id: &str, body: &Value<'_>) -> PreparedBody {
        let external_bytes = flatbed_flatten::json_len(body) as u64;
        let options = FlattenOptions { path_bytes_max: PATH_BYTES_MAX };
        let flat = flatbed_flatten::flatten(body, &instance.fields.view(), &options);
        let mut rows = flatbed_flatten::pack(&flat, instance.record.run_bytes as usize);
        let prefix_bytes = instance.keys.document(id).body().len();
        let mut stored_bytes = stored(prefix_bytes, &rows);
        let must_be_staged = stored_bytes > STAGED_ABOVE_BYTES;
        if must_be_staged {
            rows = flatbed_flatten::pack(&flat, RUN_BYTES_MAX as usize);
            stored_bytes = stored(prefix_bytes, &rows);
        }
        PreparedBody { rows, place: BodyPlace::Rows, must_be_staged, external_bytes, stored_bytes }
    }
}

/// Returns the bytes of rows: keys, values and a fixed overhead. Each key contains its document's id, so many small
/// rows under a long id take much.
fn stored(prefix_bytes: usize, rows: &[(Vec<u8>, Vec<u8>)]) -> u64 {
    rows.iter().map(|(path, value)| row_bytes(prefix_bytes, path, value)).sum()
}

/// Returns the bytes of one row; `prefix_bytes`: the length of its key before the path, as in the latest body.
#[inline]
pub fn row_bytes(prefix_bytes: usize, path: &[u8], value: &[u8]) -> u64 {
    (prefix_bytes + path.len() + value.len() + ROW_OVERHEAD_BYTES) as u64
}

/// Rows as read from FoundationDB, with the length of each key before its path. Cheap to clone.
#[derive(Clone)]
pub struct Rows {
    parts: Vec<PageRun>,
    prefix_bytes: usize,
}

/// A run of rows in a page that several bodies may share.
#[derive(Clone)]
struct PageRun {
    page: Arc<FdbValues>,
    rows: Range<usize>,
}

impl Rows {
    pub fn new(pages: Vec<FdbValues>, prefix_bytes: usize) -> Self {
        let mut rows = Rows { parts: Vec::with_capacity(pages.len()), prefix_bytes };
        for page in pages {
            let all = 0..page.len();
            rows.push(&Arc::new(page), all);
        }
        rows
    }

    pub fn push(&mut self, page: &Arc<FdbValues>, rows: Range<usize>) {
        self.parts.push(PageRun { page: page.clone(), rows });
    }

    /// Returns paths and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        let rows = self.parts.iter().flat_map(|part| part.page.get(part.rows.clone()).unwrap_or_default());
        rows.map(|row| (row.key().get(self.prefix_bytes..).unwrap_or_default(), row.value()))
    }
}

/// A pending range read. The first page is requested at creation, so that many reads can run at once.
pub struct RangeRead<F> {
    first: PageRead<F>,
}

/// Begins to read a whole range, as a snapshot: documents conflict on their info keys.
pub fn begin_read(
    trx: &Transaction,
    range: KeyRange,
) -> RangeRead<impl Future<Output = FdbResult<FdbValues>> + Send + use<>> {
    begin_read_of(trx, range, 0)
}

/// [`begin_read`] with a first page of about `target_bytes`; 0: as many as a reply holds.
pub fn begin_read_of(
    trx: &Transaction,
    range: KeyRange,
    target_bytes: usize,
) -> RangeRead<impl Future<Output = FdbResult<FdbValues>> + Send + use<>> {
    RangeRead { first: trx.range(&range, true).target_bytes(target_bytes).begin(None) }
}

/// A range read whose future has a name, for structures that hold several.
pub type BoxedRangeRead = RangeRead<BoxFuture<'static, FdbResult<FdbValues>>>;

/// [`begin_read`], boxed.
pub fn begin_reading(trx: &Transaction, range: KeyRange) -> BoxedRangeRead {
    begin_read(trx, range).boxed()
}

impl<F: Future<Output = FdbResult<FdbValues>> + Send> RangeRead<F> {
    /// Names the future's type by boxing it.
    pub fn boxed(self) -> BoxedRangeRead
    where
        F: 'static,
    {
        RangeRead { first: self.first.boxed() }
    }

    /// Returns the rows of the range if they fit the first page and have at most `bytes_max` bytes of values. `None`
    /// also for fewer bytes in several pages: the caller reads those in another way.
    pub async fn only_page(self, trx: &Transaction, bytes_max: usize) -> Result<Option<FdbValues>> {
        let (page, rest) = self.first.finish(trx).await?.into_parts();
        let bytes: usize = page.iter().map(|row| row.value().len()).sum();
        Ok((rest.is_none() && bytes <= bytes_max).then_some(page))
    }

    /// Returns the first pages with at least `bytes_max` bytes of keys and values, and whether they are all.
    pub async fn read_up_to(self, trx: &Transaction, bytes_max: u64) -> Result<(Vec<FdbValues>, bool)> {
        let (pages, rest) = self.until(trx, |read| read.keys + read.values >= bytes_max).await?;
        Ok((pages, rest.is_none()))
    }

    /// Returns all pages of the range. More than `bytes_max` bytes mean that the data is corrupt.
    pub async fn finish(self, trx: &Transaction, bytes_max: u64) -> Result<Vec<FdbValues>> {
        let (pages, rest) = self.until(trx, |read| read.values > bytes_max).await?;
        match rest {
            None => Ok(pages),
            Some(_) => Err(Error::Corrupt("a body is larger than a document may be".into())),
        }
    }

    /// Reads pages until they are enough, and returns the rest of the range.
    async fn until(
        self,
        trx: &Transaction,
        is_enough: impl Fn(&ReadBytes) -> bool,
    ) -> Result<(Vec<FdbValues>, Option<KeyRange>)> {
        let (mut pages, mut read) = (Vec::with_capacity(1), ReadBytes::default());
        let mut page = self.first.finish(trx).await?;
        loop {
            let (rows, rest) = page.into_parts();
            for row in &rows {
                read.keys += row.key().len() as u64;
                read.values += row.value().len() as u64;
            }
            pages.push(rows);
            match rest {
                Some(rest) if !is_enough(&read) => page = trx.range(&rest, true).reply().await?,
                rest => return Ok((pages, rest)),
            }
        }
    }
}

/// Bytes of keys and values that were read.
#[derive(Default)]
struct ReadBytes {
    keys: u64,
    values: u64,
}

/// The largest body in bytes of rows: a document of the largest size with a key for each leaf.
pub const BODY_BYTES_MAX: u64 = 64_000_000;

/// Splits the rows of [`flatbed_store::keys::DocumentKeys::latest`] into the info record and the body's rows.
pub fn split_latest(pages: Vec<FdbValues>, info_key: &[u8], prefix_bytes: usize) -> Option<(Vec<u8>, Rows)> {
    let info = {
        let first = pages.first()?.first()?;
        if first.key() != info_key {
            return None;
        }
        first.value().to_vec()
    };
    let mut rows = Rows::new(pages, prefix_bytes);
    if let Some(first) = rows.parts.first_mut() {
        first.rows.start = 1;
    }
    Some((info, rows))
}

pub async fn read_rows(trx: &Transaction, range: KeyRange) -> Result<Rows> {
    let prefix_bytes = range.begin.len();
    let pages = begin_read(trx, range).finish(trx, BODY_BYTES_MAX).await?;
    Ok(Rows::new(pages, prefix_bytes))
}

/// Texts above this size release their unused capacity.
const SHRUNK_ABOVE_BYTES: usize = 64 * 1024;

/// Returns a body's members as JSON text, without braces.
pub async fn to_json(inner: &Inner, instance: &Instance, rows: &Rows) -> Result<Vec<u8>> {
    match members_with_cache(instance, rows.iter()) {
        Err(DecodeError::UnknownFieldId(_)) => instance.reload_names(inner).boxed().await?,
        done => return done.map_err(|error| corrupt(instance, &error)),
    }
    members_with_cache(instance, rows.iter()).map_err(|error| corrupt(instance, &error))
}

/// As [`to_json`], for a body that is not written yet.
pub async fn prepared_to_json(inner: &Inner, instance: &Instance, body: &PreparedBody) -> Result<Vec<u8>> {
    let rows = || body.rows.iter().map(|(path, value)| (path.as_slice(), value.as_slice()));
    match members_with_cache(instance, rows()) {
        Err(DecodeError::UnknownFieldId(_)) => instance.reload_names(inner).boxed().await?,
        done => return done.map_err(|error| corrupt(instance, &error)),
    }
    members_with_cache(instance, rows()).map_err(|error| corrupt(instance, &error))
}

fn members_with_cache<'r>(
    instance: &Instance,
    rows: impl Iterator<Item = (&'r [u8], &'r [u8])> + Clone,
) -> std::result::Result<Vec<u8>, DecodeError> {
    let mut out = Vec::with_capacity(1024);
    flatbed_flatten::write_members(rows, &instance.fields.view(), &mut out)?;
    // It may wait long for its reader.
    if out.capacity() > SHRUNK_ABOVE_BYTES {
        out.shrink_to_fit();
    }
    Ok(out)
}

fn corrupt(instance: &Instance, error: &DecodeError) -> Error {
    Error::Corrupt(format!("a body in {}: {error}", instance.name))
}
