//! Walking the documents in order of their ids, page by page.

use std::sync::Arc;

use flatbed_revtree::RevId;
use futures_util::future::try_join_all;
use prost::Message;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::document::edit::Document;
use crate::document::latest::{LatestRange, RANGE_BYTES, Share, begin_latest, read_range};
use crate::error::{Error, Result};
use crate::handle::Reader;
use crate::instance::{Instance, InstanceId};
use crate::layer::Inner;
use crate::read::get::{Known, READ_AHEAD, READ_BYTES_MAX, ShowsDocument, show_documents};
use crate::store::keys::{Counter, KeyRange};
use crate::store::proto;
use crate::store::records::{Info, revision};
use crate::store::transaction::page_of;
use crate::store::transaction::{Attempt, Operation, Transaction};
use crate::store::waits;

/// Rows of a page without documents.
pub(crate) const PAGE_ROWS_MAX: usize = 2_000;

/// Rows of a page of a feed with documents; it ends early at [`READ_BYTES_MAX`].
pub(crate) const PAGE_DOCUMENTS_MAX: usize = 500;

/// The same of a walk.
const WALKED_DOCUMENTS_MAX: usize = 1_000;

/// And of the first one of a walk, before it is known how large they are.
const FIRST_PAGE_DOCUMENTS: usize = if cfg!(test) { 5 } else { 200 };

/// So many pages are read document by document where those are few among what lies between them, before it is looked again.
const PAGES_BY_DOCUMENT: u32 = 8;

/// Pages that all walks of the process read ahead: beside what is held for those who are sent an answer.
static PAGES_AHEAD: Semaphore = Semaphore::const_new(8);

/// Which documents, in which order.
#[derive(Debug, Clone, Default)]
pub struct AllDocsQuery {
    /// Where to begin, itself included.
    pub start: Option<String>,
    /// Where to end.
    pub end: Option<String>,
    /// Without `end` itself.
    pub exclusive_end: bool,
    /// From `start` downwards.
    pub descending: bool,
    /// With each document's body.
    pub include_docs: bool,
    /// The documents with their other leaves that are not deleted.
    pub conflicts: bool,
    /// How many to pass over.
    pub skip: u64,
    /// How many at most.
    pub limit: Option<u64>,
}

/// One document of the walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllDocsRow {
    /// Its id.
    pub id: String,
    /// Its winner.
    pub rev: RevId,
    /// Only where documents were asked for by their ids.
    pub deleted: bool,
    /// When asked for; never for a deleted one.
    pub doc: Option<Document>,
}

/// A walk under way. Each page is a transaction of its own: consistent in itself, and the walk may take longer than
/// FoundationDB's 5 s.
pub struct AllDocs {
    database: Reader,
    query: Arc<AllDocsQuery>,
    /// What is left; `None` at first.
    rest: Option<KeyRange>,
    skip: u64,
    limit: u64,
    done: bool,
    /// Of the first page.
    instance: Option<InstanceId>,
    pace: Pace,
    /// The next page, which is being read while the last one is sent.
    ahead: Option<Ahead>,
}

/// A task that ends with who wants it.
struct Ahead(JoinHandle<Result<Found>>);

impl Drop for Ahead {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What the documents of a walk were like so far.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Bytes under the documents' own range, for each that is shown.
    range_bytes: u64,
    /// Pages that are still to be read document by document.
    by_document: u32,
    /// Rows of the next page, at most.
    rows_max: usize,
}

impl Pace {
    /// Of documents of 1 kB without a history.
    const FIRST: Pace = Pace { range_bytes: 1_100, by_document: 0, rows_max: FIRST_PAGE_DOCUMENTS };

    /// How many ranges so many documents are read as.
    fn ranges(self, rows: usize) -> usize {
        let bytes = self.range_bytes.saturating_mul(rows as u64);
        usize::try_from(bytes.div_ceil(RANGE_BYTES)).unwrap_or(usize::MAX).clamp(1, rows.max(1))
    }

    /// After a page with so many documents, whose bodies have so many bytes; `share`: what was read as ranges, of so many.
    fn next(self, rows: usize, body_bytes: usize, share: Option<(usize, Share)>) -> Pace {
        let mut next = Pace { by_document: self.by_document.saturating_sub(1), ..self };
        if let Some(average) = body_bytes.checked_div(rows) {
            next.rows_max = (READ_BYTES_MAX / (average + 1)).clamp(READ_AHEAD, WALKED_DOCUMENTS_MAX);
        }
        if let Some((documents, share)) = share {
            next.range_bytes = share.bytes / (documents as u64).max(1) + 1;
            if share.is_small(documents) {
                next.by_document = PAGES_BY_DOCUMENT;
            }
        }
        next
    }
}

impl AllDocs {
    pub(crate) fn new(database: Reader, query: AllDocsQuery) -> Self {
        let (skip, limit) = (query.skip, query.limit.unwrap_or(u64::MAX));
        let (query, pace) = (Arc::new(query), Pace::FIRST);
        AllDocs { database, query, rest: None, skip, limit, done: false, instance: None, pace, ahead: None }
    }

    /// Documents that are not deleted, in the whole database.
    pub async fn total_rows(&mut self) -> Result<u64> {
        struct Total<'a>(&'a Inner, &'a str);
        impl Operation for Total<'_> {
            type Output = u64;
            async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<u64> {
                let instance = self.0.resolve(trx, self.1).await?;
                Ok(instance.buckets.begin_count(trx, Counter::Documents).await?.max(0) as u64)
            }
        }
        self.database.read(&mut Total(&self.database.inner, &self.database.name)).await
    }

    /// The next rows, at least one; `None` at the end.
    ///
    /// # Errors
    /// [`Error::DatabaseNotFound`] also if the database has become another one since the first page.
    pub async fn next_page(&mut self) -> Result<Option<Vec<AllDocsRow>>> {
        while !self.done && self.limit > 0 {
            let found = match self.ahead.take() {
                Some(mut ahead) => (&mut ahead.0).await.map_err(|_| Error::ShuttingDown)??,
                None => self.read().await?,
            };
            if *self.instance.get_or_insert(found.instance) != found.instance {
                return Err(Error::DatabaseNotFound);
            }
            self.skip -= found.skipped;
            self.limit -= found.rows.len() as u64;
            self.done = found.rest.is_none();
            self.rest = found.rest;
            self.pace = found.pace;
            if !found.rows.is_empty() {
                self.read_ahead();
                return Ok(Some(found.rows));
            }
        }
        Ok(None)
    }

    /// Begins to read the next page, if there is room for it: while this one is sent nobody would ask the storage. What is
    /// counted is read when it is asked for.
    fn read_ahead(&mut self) {
        let is_wanted = self.query.include_docs && !self.done && self.limit > 0;
        // Of large documents a page takes a while as it is.
        if !is_wanted || self.pace.rows_max <= READ_AHEAD || waits::Operation::is_running() {
            return;
        }
        let Ok(room) = PAGES_AHEAD.try_acquire() else { return };
        let read = self.read();
        let read = async move {
            let _room = room;
            read.await
        };
        self.ahead = Some(Ahead(tokio::spawn(read.in_current_span())));
    }

    fn read(&self) -> impl Future<Output = Result<Found>> + Send + use<> {
        let (database, query, rest) = (self.database.clone(), self.query.clone(), self.rest.clone());
        let (skip, limit, pace) = (self.skip, self.limit, self.pace);
        async move {
            let Reader { inner, name, .. } = &database;
            let rest = rest.as_ref();
            database.read(&mut Page { inner, name, query: &query, rest, skip, limit, pace }).await
        }
    }
}

struct Page<'a> {
    inner: &'a Inner,
    name: &'a str,
    query: &'a AllDocsQuery,
    rest: Option<&'a KeyRange>,
    skip: u64,
    limit: u64,
    pace: Pace,
}

struct Found {
    instance: InstanceId,
    rows: Vec<AllDocsRow>,
    skipped: u64,
    rest: Option<KeyRange>,
    pace: Pace,
}

impl Operation for Page<'_> {
    type Output = Found;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Found> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let keys = &instance.keys;
        let mut range = match self.rest {
            Some(rest) => rest.clone(),
            None => whole_range(keys, self.query),
        };
        let mut found = Found { instance: instance.id(), rows: Vec::new(), skipped: 0, rest: None, pace: self.pace };
        if range.begin >= range.end {
            return Ok(found);
        }
        let with_documents = self.query.include_docs && self.skip == 0;
        let most = if with_documents { self.pace.rows_max } else { PAGE_ROWS_MAX };
        let limit = most.min(usize::try_from(self.skip.saturating_add(self.limit)).unwrap_or(most));
        let page = trx.get_range(&page_of(&range, limit, self.query.descending), 1, true).await?;
        let more = page.more() || page.len() == limit;
        let mut rows = Vec::with_capacity(page.len());
        for row in &page {
            let id = keys.all_docs_id(row.key())?;
            let rev = revision(proto::AllDocsEntry::decode(row.value())?.winner.as_ref())?;
            rows.push(AllDocsRow { id, rev, deleted: false, doc: None });
        }
        found.skipped = self.skip.min(rows.len() as u64);
        let last = page.last().map(|row| row.key().to_vec());
        drop(page);
        rows.drain(..found.skipped as usize);
        // A page that begins with skipped rows has no documents yet: what it shows is left to the next one.
        if self.query.include_docs && !with_documents && !rows.is_empty() {
            let first = keys.all_docs_entry(&rows[0].id);
            found.rest = Some(if self.query.descending {
                KeyRange { begin: range.begin, end: [first.as_slice(), &[0]].concat() }
            } else {
                KeyRange { begin: first, end: range.end }
            });
            return Ok(found);
        }
        let mut cut = false;
        if with_documents {
            let (known, share) = self.read_ranges(trx, &instance, &rows).await?;
            cut = show_documents(trx, self.inner, &instance, &mut rows, known, self.query.conflicts).await?;
            let bytes = rows.iter().filter_map(|row| row.doc.as_ref()).map(|document| document.body.len()).sum();
            found.pace = self.pace.next(rows.len(), bytes, share);
        }
        let shown = rows.last().filter(|_| cut).map(|row| keys.all_docs_entry(&row.id));
        let last = shown.or(last.filter(|_| more));
        found.rows = rows;
        found.rest = last.map(|last| {
            if self.query.descending {
                range.end = last;
            } else {
                range.begin = [last.as_slice(), &[0]].concat();
            }
            range
        });
        Ok(found)
    }
}

impl Page<'_> {
    /// Reads the rows' documents by ranges, all at once: each is a part of them that lies together. Also says how much was
    /// read for how many documents.
    async fn read_ranges(
        &self,
        trx: &Transaction,
        instance: &Instance,
        rows: &[AllDocsRow],
    ) -> Result<(Vec<Known>, Option<(usize, Share)>)> {
        if self.pace.by_document > 0 || rows.is_empty() {
            return Ok((Vec::new(), None));
        }
        let ranges = self.pace.ranges(rows.len());
        let reads = rows.chunks(rows.len().div_ceil(ranges)).map(|part| async move {
            let mut ids: Vec<&str> = part.iter().map(|row| row.id.as_str()).collect();
            if self.query.descending {
                ids.reverse();
            }
            let LatestRange { found, share } = read_range(trx, instance, &ids).await?;
            let documents = found.len();
            let found =
                found.into_iter().map(|found| found.map_or(Known::Absent, |(info, rows)| Known::Found(info, rows)));
            let mut known: Vec<Known> = found.collect();
            known.resize_with(part.len(), Known::default);
            if self.query.descending {
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
}

impl ShowsDocument for AllDocsRow {
    fn id(&self) -> &str {
        &self.id
    }

    fn show(&mut self, document: Option<Document>) {
        self.doc = document;
    }
}

fn whole_range(keys: &crate::store::keys::Keys, query: &AllDocsQuery) -> KeyRange {
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
    range
}

/// Looks documents up by their ids.
pub(crate) struct AllDocsKeys<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub keys: &'a [String],
    pub include_docs: bool,
    pub conflicts: bool,
}

impl Operation for AllDocsKeys<'_> {
    type Output = Vec<Option<AllDocsRow>>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let mut rows = Vec::with_capacity(self.keys.len());
        let mut bytes = 0;
        for ids in self.keys.chunks(READ_AHEAD) {
            if self.include_docs {
                let reads: Vec<_> = ids.iter().map(|id| begin_latest(trx, &instance, id)).collect();
                for (id, read) in ids.iter().zip(reads) {
                    if bytes > READ_BYTES_MAX {
                        return Ok(rows);
                    }
                    let doc = read.document(trx, self.inner, &instance, id, self.conflicts).await?;
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
