//! Bodies of documents as rows of keys: how they are made, and how they are read back.

use std::ops::Range;
use std::sync::Arc;

use flatbed_flatten::json::Value;
use flatbed_flatten::{DecodeError, FlattenOptions};
use foundationdb::FdbResult;
use foundationdb::future::FdbValues;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::error::{Error, Result};
use crate::instance::{Instance, RUN_BYTES_MAX};
use crate::layer::Inner;
use crate::store::keys::KeyRange;
use crate::store::records::BodyPlace;
use crate::store::transaction::{PageRead, Transaction};

/// A body whose rows take more than this is written ahead: with the superseded one it moves, and the records, a
/// transaction stays below 1 MB.
pub(crate) const STAGED_ABOVE_BYTES: u64 = 400_000;

/// A packed path may take this much: with root, namespace, document id and revision, though every byte of these were a
/// NUL, the key stays below 9.5 kB.
const PATH_BYTES_MAX: usize = 4_000;

/// What a row costs in a transaction beside its key and value: the mutation's frame, and what a superseded revision's key
/// has more than the latest one's.
const ROW_OVERHEAD_BYTES: usize = 40;

/// What a document's records (info, leaf, revision, by-seq, `_all_docs`, counters) take in a transaction, about.
pub(crate) const ROW_OVERHEAD_OF_RECORDS: u64 = 1_500;

/// A body ready to be written.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// Path and value, in order of keys. Empty once it is staged.
    pub rows: Vec<(Vec<u8>, Vec<u8>)>,
    pub place: BodyPlace,
    /// Too large for the transaction that writes the document.
    pub must_be_staged: bool,
    pub external_bytes: u64,
    pub stored_bytes: u64,
}

impl Prepared {
    /// Flattens and packs a body with what the instance's cache knows. A body of more than [`STAGED_ABOVE_BYTES`] comes
    /// back in the largest runs, to be staged.
    pub(crate) fn new(instance: &Instance, id: &str, body: &Value<'_>) -> Prepared {
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
        Prepared { rows, place: BodyPlace::Rows, must_be_staged, external_bytes, stored_bytes }
    }
}

/// What rows take: keys, values and a fixed share for each. Every key has its document's id, so many small rows under a
/// long id take much.
fn stored(prefix_bytes: usize, rows: &[(Vec<u8>, Vec<u8>)]) -> u64 {
    rows.iter().map(|(path, value)| row_bytes(prefix_bytes, path, value)).sum()
}

/// What one row takes; `prefix_bytes`: of its key, before the path, as in the latest body.
pub(crate) fn row_bytes(prefix_bytes: usize, path: &[u8], value: &[u8]) -> u64 {
    (prefix_bytes + path.len() + value.len() + ROW_OVERHEAD_BYTES) as u64
}

/// Rows as they came from FoundationDB, with how much of each key is not path. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Rows {
    parts: Vec<Part>,
    prefix_bytes: usize,
}

/// Rows of a page, which others may have rows of, too.
#[derive(Clone)]
struct Part {
    page: Arc<FdbValues>,
    rows: Range<usize>,
}

impl Rows {
    pub(crate) fn new(pages: Vec<FdbValues>, prefix_bytes: usize) -> Self {
        let mut rows = Rows { parts: Vec::with_capacity(pages.len()), prefix_bytes };
        for page in pages {
            let all = 0..page.len();
            rows.push(&Arc::new(page), all);
        }
        rows
    }

    /// Adds those that follow.
    pub(crate) fn push(&mut self, page: &Arc<FdbValues>, rows: Range<usize>) {
        self.parts.push(Part { page: page.clone(), rows });
    }

    /// Path and value, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        let rows = self.parts.iter().flat_map(|part| part.page.get(part.rows.clone()).unwrap_or_default());
        rows.map(|row| (row.key().get(self.prefix_bytes..).unwrap_or_default(), row.value()))
    }
}

/// A range that is being read: the first page is asked for when this is made, so that many can be under way at once.
pub(crate) struct RangeRead<F> {
    first: PageRead<F>,
}

/// Begins to read a whole range, as a snapshot: the conflict of a document is on its info key.
pub(crate) fn begin_read(
    trx: &Transaction,
    range: KeyRange,
) -> RangeRead<impl Future<Output = FdbResult<FdbValues>> + Send + use<>> {
    begin_read_of(trx, range, 0)
}

/// [`begin_read`], whose first page is of about so many bytes; 0: as many as a reply holds.
pub(crate) fn begin_read_of(
    trx: &Transaction,
    range: KeyRange,
    target_bytes: usize,
) -> RangeRead<impl Future<Output = FdbResult<FdbValues>> + Send + use<>> {
    RangeRead { first: trx.range(&range, true).target_bytes(target_bytes).begin(None) }
}

/// A range read whose future has a name, for structures that hold several.
pub(crate) type Reading = RangeRead<BoxFuture<'static, FdbResult<FdbValues>>>;

/// [`begin_read`], boxed.
pub(crate) fn begin_reading(trx: &Transaction, range: KeyRange) -> Reading {
    begin_read(trx, range).boxed()
}

impl<F: Future<Output = FdbResult<FdbValues>> + Send> RangeRead<F> {
    /// The same, with a name for its future.
    pub(crate) fn boxed(self) -> Reading
    where
        F: 'static,
    {
        RangeRead { first: self.first.boxed() }
    }

    /// All rows of the range, if they come in the first page and have at most `bytes_max` bytes of values. `None` also of fewer bytes
    /// that come in several pages: the caller reads those in another way.
    pub(crate) async fn only_page(self, trx: &Transaction, bytes_max: usize) -> Result<Option<FdbValues>> {
        let (page, rest) = self.first.finish(trx).await?.into_parts();
        let bytes: usize = page.iter().map(|row| row.value().len()).sum();
        Ok((rest.is_none() && bytes <= bytes_max).then_some(page))
    }

    /// The first pages of the range, until they hold so many bytes of keys and values or more, and whether they are all.
    pub(crate) async fn up_to(self, trx: &Transaction, bytes_max: u64) -> Result<(Vec<FdbValues>, bool)> {
        let (pages, rest) = self.until(trx, |read| read.keys + read.values >= bytes_max).await?;
        Ok((pages, rest.is_none()))
    }

    /// All pages of the range; at most `bytes_max` bytes, beyond it the data is not what this layer writes.
    pub(crate) async fn finish(self, trx: &Transaction, bytes_max: u64) -> Result<Vec<FdbValues>> {
        let (pages, rest) = self.until(trx, |read| read.values > bytes_max).await?;
        match rest {
            None => Ok(pages),
            Some(_) => Err(Error::Corrupt("a body is larger than a document may be".into())),
        }
    }

    /// The first pages until they are enough, and the rest of the range.
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

/// Bytes of keys and of values that were read.
#[derive(Default)]
struct ReadBytes {
    keys: u64,
    values: u64,
}

/// Most bytes of rows that one body can have: a document of the largest size with a key for each leaf.
pub(crate) const BODY_BYTES_MAX: u64 = 64_000_000;

/// Splits what [`crate::store::keys::DocumentKeys::latest`] holds into the info record and the body's rows.
pub(crate) fn split_latest(pages: Vec<FdbValues>, info_key: &[u8], prefix_bytes: usize) -> Option<(Vec<u8>, Rows)> {
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

/// The rows under a prefix.
pub(crate) async fn read_rows(trx: &Transaction, range: KeyRange) -> Result<Rows> {
    let prefix_bytes = range.begin.len();
    let pages = begin_read(trx, range).finish(trx, BODY_BYTES_MAX).await?;
    Ok(Rows::new(pages, prefix_bytes))
}

/// Texts above this give back the room that they do not need.
const SHRUNK_ABOVE_BYTES: usize = 64 * 1024;

/// A body's members as JSON text, without braces.
pub(crate) async fn to_json(inner: &Inner, instance: &Instance, rows: &Rows) -> Result<Vec<u8>> {
    match members_with_cache(instance, rows.iter()) {
        Err(DecodeError::UnknownFieldId(_)) => instance.reload_names(inner).boxed().await?,
        done => return done.map_err(|error| corrupt(instance, &error)),
    }
    members_with_cache(instance, rows.iter()).map_err(|error| corrupt(instance, &error))
}

/// The same of a body that is not written yet.
pub(crate) async fn prepared_to_json(inner: &Inner, instance: &Instance, body: &Prepared) -> Result<Vec<u8>> {
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
