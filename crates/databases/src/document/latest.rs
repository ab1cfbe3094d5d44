//! Reads of latest revisions: single ones, and those of neighbouring documents as one range.

use std::sync::Arc;

use flatbed_store::error::Result;
use flatbed_store::keys::{DocumentKeys, KeyPosition, KeyRange};
use flatbed_store::records::{BodyPlace, Info};
use flatbed_store::transaction::Transaction;
use foundationdb::FdbResult;
use foundationdb::future::FdbValues;
use futures_util::future::BoxFuture;

use crate::document::body::{self, BODY_BYTES_MAX, RangeRead, Rows};
use crate::instance::Instance;
use crate::limits::Limit;

/// A pending read of a document's info and latest body.
pub struct LatestRead<F> {
    pub keys: DocumentKeys,
    pub read: RangeRead<F>,
}

/// Begins to read a document's latest revision by one range.
pub fn begin_latest(
    trx: &Transaction,
    instance: &Instance,
    id: &str,
) -> LatestRead<impl Future<Output = foundationdb::FdbResult<foundationdb::future::FdbValues>> + Send + use<>> {
    begin_latest_of(trx, instance, id, 0)
}

/// [`begin_latest`] with a first page of about `target_bytes`; 0: as many as a reply holds.
pub fn begin_latest_of(
    trx: &Transaction,
    instance: &Instance,
    id: &str,
    target_bytes: usize,
) -> LatestRead<impl Future<Output = foundationdb::FdbResult<foundationdb::future::FdbValues>> + Send + use<>> {
    let keys = instance.keys.document(id);
    let read = body::begin_read_of(trx, keys.latest(), target_bytes);
    LatestRead { keys, read }
}

impl<F> LatestRead<F>
where
    F: Future<Output = foundationdb::FdbResult<foundationdb::future::FdbValues>> + Send,
{
    /// Names the future's type by boxing it.
    pub fn boxed(self) -> LatestRead<BoxFuture<'static, FdbResult<FdbValues>>>
    where
        F: 'static,
    {
        LatestRead { keys: self.keys, read: self.read.boxed() }
    }

    /// Returns the info record and the body's rows; `None` if there is no such document.
    pub async fn finish(self, trx: &Transaction, instance: &Instance) -> Result<Option<(Info, Rows)>> {
        let prefix_bytes = self.keys.body().len();
        let pages = self.read.finish(trx, BODY_BYTES_MAX).await?;
        let Some((info, rows)) = body::split_latest(pages, &self.keys.info(), prefix_bytes) else { return Ok(None) };
        let info = Info::decode(&info)?;
        whole_body(trx, instance, info, rows).await.map(Some)
    }
}

pub async fn whole_body(trx: &Transaction, instance: &Instance, info: Info, rows: Rows) -> Result<(Info, Rows)> {
    let rows = match &info.place {
        BodyPlace::Rows => rows,
        BodyPlace::Blob(blob_id) => Box::pin(body::read_rows(trx, instance.keys.blob_rows(blob_id))).await?,
    };
    Ok((info, rows))
}

/// Bytes of other keys beside a document that a range may read in vain: a separate read costs a server as much as about
/// 9,000 bytes.
const PASSED_OVER_BYTES: Limit<u64> = Limit::new(1_000, 300);

/// Byte limit of a reply; 0: FoundationDB's own.
const TARGET_BYTES: Limit<usize> = Limit::new(0, 700);

/// Bytes after which a range read ends.
const RANGE_BYTES_MAX: Limit<u64> = Limit::new(450_000, 4_000);

/// Bytes that were read, and the used part of them: the rest are histories and tombstones between documents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    pub bytes: u64,
    pub wanted: u64,
    /// Number of replies that were not the last of their range, and their bytes.
    pub full_replies: u64,
    pub full_bytes: u64,
}

impl Share {
    pub fn add(&mut self, other: Share) {
        self.bytes += other.bytes;
        self.wanted += other.wanted;
        self.full_replies += other.full_replies;
        self.full_bytes += other.full_bytes;
    }

    /// Returns whether less than half was used, not counting the bytes that single reads of this many documents would
    /// outweigh.
    pub fn is_small(self, documents: usize) -> bool {
        self.bytes > 2 * self.wanted + PASSED_OVER_BYTES.get() * documents as u64
    }
}

/// The result of a range read of documents.
#[derive(Default)]
pub struct LatestRange {
    /// Infos and rows of the first documents, as far as the range was read; `None`: there is no such document. A body
    /// in a blob has no rows here.
    pub found: Vec<Option<(Info, Rows)>>,
    pub share: Share,
}

/// Reads documents, given by their ids in the order of their keys, as one range with all keys between them. Ends early
/// if those are too many.
pub async fn read_range(trx: &Transaction, instance: &Instance, ids: &[&str]) -> Result<LatestRange> {
    let keys: Vec<DocumentKeys> = ids.iter().map(|id| instance.keys.document(id)).collect();
    let mut all = LatestRange::default();
    let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return Ok(all) };
    let mut rest = KeyRange { begin: first.info(), end: last.latest().end };
    let mut current: Option<(Info, Rows)> = None;
    loop {
        let (page, behind) = trx.range(&rest, true).target_bytes(TARGET_BYTES.get()).reply().await?.into_parts();
        let page = Arc::new(page);
        let before = all.share.bytes;
        // The rows of the page that belong to the current document's body.
        let mut body = 0..0;
        for (at, row) in page.iter().enumerate() {
            let (key, bytes) = (row.key(), (row.key().len() + row.value().len()) as u64);
            all.share.bytes += bytes;
            while let Some(document) = keys.get(all.found.len()) {
                match document.beside(key) {
                    KeyPosition::Before => {}
                    KeyPosition::Info => {
                        all.share.wanted += bytes;
                        current = Some((Info::decode(row.value())?, Rows::new(Vec::new(), document.body().len())));
                    }
                    KeyPosition::Body => {
                        all.share.wanted += bytes;
                        if body.is_empty() {
                            body.start = at;
                        }
                        body.end = at + 1;
                    }
                    KeyPosition::Rest | KeyPosition::Behind => {
                        all.found.push(take(&mut current, &page, &mut body));
                        continue;
                    }
                }
                break;
            }
        }
        // A body may continue in the next page.
        if let (Some((_, rows)), false) = (&mut current, body.is_empty()) {
            rows.push(&page, body);
        }
        let Some(behind) = behind else {
            all.found.extend(keys.get(all.found.len()..).unwrap_or_default().iter().map(|_| current.take()));
            break;
        };
        all.share.full_replies += 1;
        all.share.full_bytes += all.share.bytes - before;
        if all.share.bytes > RANGE_BYTES_MAX.get() || all.share.is_small(keys.len()) || all.found.len() == keys.len() {
            break;
        }
        rest = behind;
    }
    Ok(all)
}

fn take(
    current: &mut Option<(Info, Rows)>,
    page: &Arc<FdbValues>,
    body: &mut std::ops::Range<usize>,
) -> Option<(Info, Rows)> {
    let rows = std::mem::take(body);
    let (info, mut found) = current.take()?;
    if !rows.is_empty() {
        found.push(page, rows);
    }
    Some((info, found))
}
