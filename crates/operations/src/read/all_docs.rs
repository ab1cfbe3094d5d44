//! Scans documents in the order of their ids, page by page.

use std::collections::VecDeque;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::document::edit::{Conflicts, Document, partition_ids};
use flatbed_databases::document::latest::{LatestRange, Share, begin_latest, read_range};
use flatbed_databases::handles::ReadHandle;
use flatbed_databases::instance::{Instance, InstanceId};
use flatbed_databases::limits::Limit;
use flatbed_databases::server::Inner;
use flatbed_revtree::RevId;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{Counter, KeyRange, Keys};
use flatbed_store::records::{ById, Info, is_over};
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use flatbed_store::waits;
use futures_util::FutureExt;
use futures_util::future::try_join_all;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::read::get::{
    KnownDocument, READ_AHEAD, READ_BYTES_MAX, ShowsDocument, latest_document, show_documents_to, shown_to,
};
use crate::read::merged_ids::merged_page;
use crate::read::seen::winners_of;
use crate::read::viewer::{PendingViewer, Viewer, check_id, is_judged};

/// Row limit of a page without documents.
pub const PAGE_ROWS_MAX: usize = 2_000;

/// Row limit of a feed's page with documents, which also ends at [`READ_BYTES_MAX`].
pub const PAGE_DOCUMENTS_MAX: usize = 500;

/// Row limit of a scan's page with documents.
const WALKED_DOCUMENTS_MAX: usize = 1_000;

/// Documents that a restricted reader's lookup by ids judges at once, before it reads any.
const SEEN_AT_ONCE: usize = 100;

/// Target bytes of a scan's page, estimated from the pages before: less than the limit, because a page that is cut off
/// invalidates the page that is read ahead.
const WALKED_BYTES: usize = READ_BYTES_MAX / 16 * 15;

/// Row limit of a scan's first page, before the size of documents is known.
const FIRST_PAGE_DOCUMENTS: Limit<usize> = Limit::new(500, 5);

/// The estimate of bytes in a reply of the storage, before the first page.
const FIRST_REPLY_BYTES: Limit<u64> = Limit::new(72_000, 700);

/// Pages that are read document by document before ranges are tried again, if ranges have read many foreign keys.
const PAGES_BY_DOCUMENT: u32 = 8;

/// A query of `_all_docs`.
#[derive(Debug, Clone, Default)]
pub struct AllDocsQuery {
    /// The first id, inclusive.
    pub start: Option<String>,
    /// The last id.
    pub end: Option<String>,
    /// Excludes `end` itself.
    pub exclusive_end: bool,
    /// The partition to scan, in a partitioned database.
    pub partition: Option<String>,
    /// Scans downwards from `start`.
    pub descending: bool,
    /// Includes each document's body.
    pub include_docs: bool,
    /// The other leaves that documents name.
    pub conflicts: Conflicts,
    /// Number of rows to skip.
    pub skip: u64,
    /// Row limit.
    pub limit: Option<u64>,
}

/// A row of `_all_docs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllDocsRow {
    /// The id of the document.
    pub id: String,
    /// The winner.
    pub rev: RevId,
    /// True if the winner is a tombstone; only lookups by id return such rows.
    pub deleted: bool,
    /// The document if the query asks for it; `None` for a deleted one.
    pub doc: Option<Document>,
}

/// A running scan. Each page is one transaction and consistent in itself; the scan may take longer than FoundationDB's
/// 5 s.
pub struct AllDocs {
    pub(super) database: ReadHandle,
    pub(super) query: Arc<AllDocsQuery>,
    /// The start of the next page; `None` at the end of the scan.
    next: Option<ScanPosition>,
    instance: Option<InstanceId>,
    /// The next page and possibly the one behind it, which are read while the last one is sent.
    ahead: VecDeque<PageAhead>,
}

/// The start of a page, with the estimates for its documents.
#[derive(Debug, Clone)]
struct ScanPosition {
    /// The remaining range; `None` at first.
    rest: Option<KeyRange>,
    skip: u64,
    limit: u64,
    pace: ScanPace,
}

impl ScanPosition {
    /// Returns whether a page from there equals a page from here.
    fn is_at(&self, other: &ScanPosition) -> bool {
        (&self.rest, self.skip, self.limit) == (&other.rest, other.skip, other.limit)
    }
}

/// A page that a task reads ahead; the task ends when this is dropped.
struct PageAhead {
    place: ScanPosition,
    task: JoinHandle<Result<ScanPage>>,
    /// Receives the start of the page behind, for a page that is not cut off.
    listed: oneshot::Receiver<ScanPosition>,
    _room: OwnedSemaphorePermit,
}

impl Drop for PageAhead {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Size estimates from the documents of a scan so far.
#[derive(Debug, Clone, Copy)]
pub struct ScanPace {
    /// Bytes in the documents' range for each shown document.
    range_bytes: u64,
    /// Bytes for each shown document as FoundationDB counts them against a reply's limit: more than keys and values.
    reply_bytes: u64,
    /// Number of pages still to read document by document.
    by_document: u32,
    /// Row limit of the next page.
    pub rows_max: usize,
}

impl ScanPace {
    /// The estimate before the first page: documents of 1 kB without a history.
    pub fn first() -> ScanPace {
        let (reply_bytes, rows_max) = (FIRST_REPLY_BYTES.get(), FIRST_PAGE_DOCUMENTS.get());
        ScanPace { range_bytes: 1_100, reply_bytes, by_document: 0, rows_max }
    }

    /// Returns the number of ranges to read this many documents by. Each range takes several replies, because its last
    /// one is partly empty, but few, because they follow one another.
    fn ranges(self, rows: usize) -> usize {
        let bytes = self.range_bytes.saturating_mul(rows as u64).max(1);
        // A page slightly larger than estimated must not need another reply.
        let reply = (self.reply_bytes / 16 * 15).max(1);
        let choices = [3, 4, 2, 5].map(|replies| {
            let ranges = bytes.div_ceil(replies * reply);
            (ranges * bytes.div_ceil(ranges).div_ceil(reply), ranges)
        });
        // The first of the choices with the fewest replies.
        let (_, ranges) = choices.into_iter().min_by_key(|(replies, _)| *replies).unwrap_or_default();
        usize::try_from(ranges).unwrap_or(usize::MAX).clamp(1, rows.max(1))
    }

    /// Returns the estimate for the page behind one that is being read.
    pub fn behind(self) -> ScanPace {
        ScanPace { by_document: self.by_document.saturating_sub(1), ..self }
    }

    /// Returns the estimate after a page of `rows` documents with `body_bytes`; `share`: the number of ranges and what
    /// they read.
    pub fn next(self, rows: usize, body_bytes: usize, share: Option<(usize, Share)>) -> ScanPace {
        let mut next = self.behind();
        if let Some(average) = body_bytes.checked_div(rows) {
            next.rows_max = (WALKED_BYTES / (average + 1)).clamp(READ_AHEAD, WALKED_DOCUMENTS_MAX);
        }
        if let Some((documents, share)) = share {
            next.range_bytes = share.bytes / (documents as u64).max(1) + 1;
            next.reply_bytes = share.full_bytes.checked_div(share.full_replies).unwrap_or(self.reply_bytes);
            if share.is_small(documents) {
                next.by_document = PAGES_BY_DOCUMENT;
            }
        }
        next
    }
}

impl AllDocs {
    pub fn new(database: ReadHandle, query: AllDocsQuery) -> Self {
        let first = ScanPosition {
            rest: None,
            skip: query.skip,
            limit: query.limit.unwrap_or(u64::MAX),
            pace: ScanPace::first(),
        };
        let next = Some(first).filter(|first| first.limit > 0);
        AllDocs { database, query: Arc::new(query), next, instance: None, ahead: VecDeque::new() }
    }

    /// Counts the documents of the whole database that are not deleted. `None` for a restricted reader, who must not
    /// learn the number.
    #[boxed]
    pub async fn total_rows(&mut self) -> Result<Option<u64>> {
        struct Total<'a>(&'a ReadHandle);
        impl Operation for Total<'_> {
            type Output = Option<u64>;
            async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Option<u64>> {
                let instance = self.0.inner.resolve(trx, &self.0.name).await?;
                if is_judged(&instance, self.0.asker()) {
                    return Ok(None);
                }
                Ok(Some(instance.buckets.begin_count(trx, Counter::Documents).await?.max(0) as u64))
            }
        }
        self.database.read_judged(&mut Total(&self.database)).await
    }

    /// Returns the next rows, at least one; `None` at the end.
    ///
    /// # Errors
    /// [`Error::DatabaseNotFound`] also if the database has become another one since the first page.
    #[boxed]
    pub async fn next_page(&mut self) -> Result<Option<Vec<AllDocsRow>>> {
        while let Some(place) = &self.next {
            let found = match self.ahead.pop_front() {
                Some(ahead) if ahead.place.is_at(place) => self.taken(ahead).await?,
                _ => {
                    self.ahead.clear();
                    self.read(place.clone(), None).await?
                }
            };
            if *self.instance.get_or_insert(found.instance) != found.instance {
                return Err(Error::DatabaseNotFound);
            }
            self.next = found.next;
            if !found.rows.is_empty() {
                if let (true, Some(next)) = (self.ahead.is_empty(), &self.next) {
                    self.read_ahead(next.clone());
                }
                return Ok(Some(found.rows));
            }
        }
        Ok(None)
    }

    /// Waits for a page that is read ahead, and starts the page behind it as soon as its start is known, so that the
    /// storage works while documents become JSON.
    async fn taken(&mut self, mut ahead: PageAhead) -> Result<ScanPage> {
        let mut is_listed = false;
        loop {
            let place = tokio::select! {
                found = &mut ahead.task => return found.map_err(Error::of_task)?,
                place = &mut ahead.listed, if !is_listed => place,
            };
            is_listed = true;
            if let (true, Ok(place)) = (self.ahead.is_empty(), place) {
                self.read_ahead(place);
            }
        }
    }

    /// Starts to read a page if there is room, because the storage is idle while another page is sent. Operations that
    /// count their reads do not read ahead.
    fn read_ahead(&mut self, place: ScanPosition) {
        // A page of large documents takes long enough as it is.
        if !self.query.include_docs || place.pace.rows_max <= READ_AHEAD || waits::OperationCounters::is_running() {
            return;
        }
        let Ok(room) = self.database.inner.turns.walks_ahead.clone().try_acquire_owned() else { return };
        let (sender, listed) = oneshot::channel();
        let read = self.read(place.clone(), Some(sender));
        let task = tokio::spawn(read.in_current_span());
        self.ahead.push_back(PageAhead { place, task, listed, _room: room });
    }

    /// Reads a page, and sends the start of the page behind it as soon as that is known.
    fn read(
        &self,
        place: ScanPosition,
        listed: Option<oneshot::Sender<ScanPosition>>,
    ) -> impl Future<Output = Result<ScanPage>> + Send + use<> {
        let (database, query) = (self.database.clone(), self.query.clone());
        async move {
            let ReadHandle { inner, name, .. } = &database;
            let asker = database.asker();
            database.read_judged(&mut ReadScanPage { inner, name, asker, query: &query, place: &place, listed }).await
        }
    }
}

struct ReadScanPage<'a> {
    inner: &'a Inner,
    name: &'a str,
    asker: &'a ReadPrincipal,
    query: &'a AllDocsQuery,
    place: &'a ScanPosition,
    listed: Option<oneshot::Sender<ScanPosition>>,
}

struct ScanPage {
    instance: InstanceId,
    rows: Vec<AllDocsRow>,
    /// The start of the next page; `None` for the last page.
    next: Option<ScanPosition>,
}

impl Operation for ReadScanPage<'_> {
    type Output = ScanPage;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<ScanPage> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let keys = &instance.keys;
        let ScanPosition { rest, skip, limit: rows_left, mut pace } = self.place.clone();
        let range = rest.unwrap_or_else(|| whole_range(keys, self.query));
        let mut found = ScanPage { instance: instance.id(), rows: Vec::new(), next: None };
        if range.begin >= range.end {
            return Ok(found);
        }
        let with_documents = self.query.include_docs && skip == 0;
        let most = if with_documents { pace.rows_max } else { PAGE_ROWS_MAX };
        let limit = most.min(usize::try_from(skip.saturating_add(rows_left)).unwrap_or(most));
        let DocumentList { viewer, mut rows, last, more } = self.list(trx, &instance, &range, limit).boxed().await?;
        let skipped = skip.min(rows.len() as u64);
        rows.drain(..skipped as usize);
        let behind = |last: &[u8], rows: usize, pace: ScanPace| {
            let mut rest = range.clone();
            if self.query.descending {
                rest.end = last.to_vec();
            } else {
                rest.begin = [last, &[0]].concat();
            }
            let place = ScanPosition { rest: Some(rest), skip: skip - skipped, limit: rows_left - rows as u64, pace };
            Some(place).filter(|place| place.limit > 0)
        };
        // A page that begins with skipped rows has no documents: the next page shows them.
        if let (true, false, Some(first)) = (self.query.include_docs, with_documents, rows.first()) {
            let first = keys.all_docs_entry(&first.id);
            let (begin, end) = match self.query.descending {
                true => (range.begin, [first.as_slice(), &[0]].concat()),
                false => (first, range.end),
            };
            found.next = Some(ScanPosition { rest: Some(KeyRange { begin, end }), skip: 0, limit: rows_left, pace });
            return Ok(found);
        }
        let mut last = last.filter(|_| more);
        if with_documents {
            let next = last.as_ref().and_then(|last| behind(last, rows.len(), pace.behind()));
            if let (Some(listed), Some(next)) = (self.listed.take(), next) {
                // The receiver may have been dropped.
                let _ = listed.send(next);
            }
            let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
            let (known, share) = match &viewer {
                // The keys between them belong to hidden documents.
                Some(viewer) if !viewer.held.has_all() => (Vec::new(), None),
                _ => read_ranges(trx, &instance, &ids, pace, self.query.descending).await?,
            };
            let (conflicts, inner) = (self.query.conflicts, self.inner);
            if show_documents_to(viewer.as_ref(), trx, inner, &instance, &mut rows, known, conflicts).await? {
                last = rows.last().map(|row| keys.all_docs_entry(&row.id));
            }
            // Documents that have expired since they were listed, or whose row does not name the expiry.
            rows.retain(|row| row.doc.as_ref().is_none_or(|document| !document.deleted));
            let bytes = rows.iter().filter_map(|row| row.doc.as_ref()).map(|document| document.body.len()).sum();
            pace = pace.next(rows.len(), bytes, share);
        }
        found.next = last.and_then(|last| behind(&last, rows.len(), pace));
        found.rows = rows;
        Ok(found)
    }
}

struct DocumentList {
    /// The reader, if restricted.
    viewer: Option<Viewer>,
    rows: Vec<AllDocsRow>,
    /// The `_all_docs` key of the last document that was examined.
    last: Option<Vec<u8>>,
    /// True if there may be more documents behind it.
    more: bool,
}

impl ReadScanPage<'_> {
    /// Lists the first `limit` rows of a range of ids.
    async fn list(
        &self,
        trx: &Transaction,
        instance: &Instance,
        range: &KeyRange,
        limit: usize,
    ) -> Result<DocumentList> {
        let (keys, descending) = (&instance.keys, self.query.descending);
        let row = |id, rev| AllDocsRow { id, rev, deleted: false, doc: None };
        let mut viewer = None;
        if is_judged(instance, self.asker) {
            let found = PendingViewer::begin(self.inner, trx, instance, self.asker).viewer().await?;
            if !found.held.has_all() {
                let channels = found.held.channels().map(|(channel, _)| channel);
                let page = merged_page(trx, keys, channels, range, descending, limit).await?;
                let last = page.rows.last().map(|(id, _)| keys.all_docs_entry(id));
                let rows = page.rows.into_iter().filter(|(_, row)| !is_over(row.expires_at_ms, trx.clock()));
                let rows = rows.map(|(id, of)| row(id, of.winner)).collect();
                return Ok(DocumentList { viewer: Some(found), rows, last, more: page.more });
            }
            viewer = Some(found);
        }
        let page = trx.range(range, true).reverse(descending).page(limit).await?;
        let mut rows = Vec::with_capacity(page.len());
        for found in &page {
            let id = keys.all_docs_id(found.key())?;
            // Design documents are for administrators.
            let ById { winner, expires_at_ms } = ById::decode(found.value())?;
            if !is_over(expires_at_ms, trx.clock()) && (viewer.is_none() || check_id(&id).is_ok()) {
                rows.push(row(id, winner));
            }
        }
        let last = page.last().map(|row| row.key().to_vec());
        Ok(DocumentList { viewer, rows, last, more: !page.is_all() })
    }
}

/// Reads neighbouring documents by concurrent range reads, and returns how much was read for how many documents.
pub async fn read_ranges(
    trx: &Transaction,
    instance: &Instance,
    rows: &[&str],
    pace: ScanPace,
    descending: bool,
) -> Result<(Vec<KnownDocument>, Option<(usize, Share)>)> {
    if pace.by_document > 0 || rows.is_empty() {
        return Ok((Vec::new(), None));
    }
    let ranges = pace.ranges(rows.len());
    let reads = rows.chunks(rows.len().div_ceil(ranges)).map(|part| async move {
        let mut ids = part.to_vec();
        if descending {
            ids.reverse();
        }
        let LatestRange { found, share } = read_range(trx, instance, &ids).await?;
        let documents = found.len();
        let known = |(info, rows)| KnownDocument::Found(Box::new(info), rows);
        let found = found.into_iter().map(|found| found.map_or(KnownDocument::Absent, known));
        let mut known: Vec<KnownDocument> = found.collect();
        known.resize_with(part.len(), KnownDocument::default);
        if descending {
            known.reverse();
        }
        Ok::<_, Error>((known, documents, share))
    });
    let (mut known, mut documents, mut share) = (Vec::with_capacity(rows.len()), 0, Share::default());
    for (part, documents_of, share_of) in try_join_all(reads).await? {
        known.extend(part);
        documents += documents_of;
        share.add(share_of);
    }
    Ok((known, Some((documents, share))))
}

impl ShowsDocument for AllDocsRow {
    fn id(&self) -> &str {
        &self.id
    }

    fn show(&mut self, document: Option<Document>) {
        self.doc = document;
    }
}

pub(super) fn whole_range(keys: &Keys, query: &AllDocsQuery) -> KeyRange {
    let mut range = keys.all_docs();
    let after = |id: &str| [keys.all_docs_entry(id).as_slice(), &[0]].concat();
    let (low, high) = if query.descending { (&query.end, &query.start) } else { (&query.start, &query.end) };
    if let Some(low) = low {
        let exclusive = query.descending && query.exclusive_end;
        range.begin = if exclusive { after(low) } else { keys.all_docs_entry(low) };
    }
    if let Some(high) = high {
        let exclusive = !query.descending && query.exclusive_end;
        range.end = if exclusive { keys.all_docs_entry(high) } else { after(high) };
    }
    if let Some(partition) = &query.partition {
        let KeyRange { begin, end } = of_partition(keys, partition);
        (range.begin, range.end) = (range.begin.max(begin), range.end.min(end));
    }
    range
}

pub(super) fn of_partition(keys: &Keys, partition: &str) -> KeyRange {
    let [first, behind] = partition_ids(partition);
    KeyRange { begin: keys.all_docs_entry(&first), end: keys.all_docs_entry(&behind) }
}

pub struct AllDocsKeys<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub asker: &'a ReadPrincipal,
    pub keys: &'a [String],
    pub include_docs: bool,
    pub conflicts: Conflicts,
}

impl Operation for AllDocsKeys<'_> {
    type Output = Vec<Option<AllDocsRow>>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        if is_judged(&instance, self.asker) {
            return self.seen(trx, &instance).boxed().await;
        }
        let mut rows = Vec::with_capacity(self.keys.len());
        let mut bytes = 0;
        for ids in self.keys.chunks(READ_AHEAD) {
            if self.include_docs {
                let reads: Vec<_> = ids.iter().map(|id| begin_latest(trx, &instance, id)).collect();
                for (id, read) in ids.iter().zip(reads) {
                    if bytes > READ_BYTES_MAX {
                        return Ok(rows);
                    }
                    let doc = latest_document(read, trx, self.inner, &instance, id, self.conflicts).await?;
                    bytes += doc.as_ref().map_or(0, |doc| doc.body.len());
                    rows.push(doc.map(|doc| AllDocsRow {
                        id: id.clone(),
                        rev: doc.rev.clone(),
                        deleted: doc.deleted,
                        doc: Some(doc).filter(|doc| !doc.deleted),
                    }));
                }
            } else {
                let reads: Vec<_> = ids.iter().map(|id| trx.get(&instance.keys.document(id).info(), true)).collect();
                for (id, read) in ids.iter().zip(reads) {
                    let found = read.await?.map(|bytes| Info::decode(&bytes)).transpose()?;
                    let found = found.map(|info| info.read_at(trx.clock().unix_ms()));
                    rows.push(found.map(|info| AllDocsRow {
                        id: id.clone(),
                        rev: info.winner,
                        deleted: info.deleted,
                        doc: None,
                    }));
                }
            }
        }
        Ok(rows)
    }
}

impl AllDocsKeys<'_> {
    /// The lookup for a restricted reader: a hidden document has no row.
    async fn seen(&self, trx: &Transaction, instance: &Instance) -> Result<Vec<Option<AllDocsRow>>> {
        let mut rows = Vec::with_capacity(self.keys.len());
        let mut bytes = 0;
        for ids in self.keys.chunks(SEEN_AT_ONCE) {
            let (viewer, infos) = winners_of(self.inner, trx, instance, self.asker, ids).await?;
            for (ids, infos) in ids.chunks(READ_AHEAD).zip(infos.chunks(READ_AHEAD)) {
                let read = |(id, info): (&String, &Option<Info>)| {
                    let is_shown = self.include_docs && info.as_ref().is_some_and(|info| !info.deleted);
                    is_shown.then(|| begin_latest(trx, instance, id))
                };
                let reads: Vec<_> = ids.iter().zip(infos).map(read).collect();
                for ((id, info), read) in ids.iter().zip(infos).zip(reads) {
                    if bytes > READ_BYTES_MAX {
                        return Ok(rows);
                    }
                    let Some(info) = info else {
                        rows.push(None);
                        continue;
                    };
                    let found = match read {
                        Some(read) => read.finish(trx, instance).await?,
                        None => None,
                    };
                    let doc = match &found {
                        Some(found) => {
                            let (inner, conflicts) = (self.inner, self.conflicts);
                            Some(shown_to(Some(&viewer), found, trx, inner, instance, id, conflicts).await?)
                        }
                        None => None,
                    };
                    bytes += doc.as_ref().map_or(0, |doc| doc.body.len());
                    let (rev, deleted) = (info.winner.clone(), info.deleted);
                    rows.push(Some(AllDocsRow { id: id.clone(), rev, deleted, doc }));
                }
            }
        }
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pace(range_bytes: u64, reply_bytes: u64) -> ScanPace {
        ScanPace { range_bytes, reply_bytes, ..ScanPace::first() }
    }

    #[test]
    fn ranges_are_of_few_replies_that_are_nearly_full() {
        let ranges = |rows| pace(1_000, 80_000).ranges(rows);
        assert_eq!([0, 1, 225, 226, 450, 451, 600, 1_000].map(ranges), [1, 1, 1, 2, 2, 2, 2, 7]);
        assert_eq!(pace(1_000_000, 80_000).ranges(3), 3, "no more than there are documents");
    }

    proptest! {
        /// For pages of 10 replies and more, of documents as large as estimated.
        #[test]
        fn few_replies_are_left_empty(rows in 1..2_000_usize, range_bytes in 100..5_000_u64, reply_bytes in 40_000..90_000_u64) {
            let bytes = rows as u64 * range_bytes;
            prop_assume!(bytes >= 10 * reply_bytes);
            let ranges = pace(range_bytes, reply_bytes).ranges(rows) as u64;
            let replies = bytes.div_ceil(ranges).div_ceil(reply_bytes);
            prop_assert!(replies <= 5);
            prop_assert!((ranges * replies * reply_bytes) as f64 <= bytes as f64 * 1.3, "{} of {}", ranges, replies);
        }
    }
}
