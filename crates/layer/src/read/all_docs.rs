//! Walking the documents in order of their ids, page by page.

use flatbed_revtree::RevId;
use foundationdb::RangeOption;
use foundationdb::options::StreamingMode;
use prost::Message;

use crate::document::edit::Document;
use crate::error::{Error, Result};
use crate::handle::Reader;
use crate::instance::InstanceId;
use crate::layer::Inner;
use crate::read::get::{READ_AHEAD, READ_BYTES_MAX, ShowsDocument, begin_latest, show_documents};
use crate::store::keys::{Counter, KeyRange};
use crate::store::proto;
use crate::store::records::{Info, revision};
use crate::store::transaction::page_of;
use crate::store::transaction::{Attempt, Operation, Transaction};

/// Rows of a page without documents.
pub(crate) const PAGE_ROWS_MAX: usize = 2_000;

/// Rows of a page with documents; it ends early at [`READ_BYTES_MAX`].
pub(crate) const PAGE_DOCUMENTS_MAX: usize = 200;

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
    query: AllDocsQuery,
    /// What is left; `None` at first.
    rest: Option<KeyRange>,
    skip: u64,
    limit: u64,
    done: bool,
    /// Of the first page.
    instance: Option<InstanceId>,
}

impl AllDocs {
    pub(crate) fn new(database: Reader, query: AllDocsQuery) -> Self {
        let (skip, limit) = (query.skip, query.limit.unwrap_or(u64::MAX));
        AllDocs { database, query, rest: None, skip, limit, done: false, instance: None }
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
            let mut page = Page {
                inner: &self.database.inner,
                name: &self.database.name,
                query: &self.query,
                rest: self.rest.as_ref(),
                skip: self.skip,
                limit: self.limit,
            };
            let found = self.database.read(&mut page).await?;
            if *self.instance.get_or_insert(found.instance) != found.instance {
                return Err(Error::DatabaseNotFound);
            }
            self.skip -= found.skipped;
            self.limit -= found.rows.len() as u64;
            self.done = found.rest.is_none();
            self.rest = found.rest;
            if !found.rows.is_empty() {
                return Ok(Some(found.rows));
            }
        }
        Ok(None)
    }
}

struct Page<'a> {
    inner: &'a Inner,
    name: &'a str,
    query: &'a AllDocsQuery,
    rest: Option<&'a KeyRange>,
    skip: u64,
    limit: u64,
}

struct Found {
    instance: InstanceId,
    rows: Vec<AllDocsRow>,
    skipped: u64,
    rest: Option<KeyRange>,
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
        let mut found = Found { instance: instance.id(), rows: Vec::new(), skipped: 0, rest: None };
        if range.begin >= range.end {
            return Ok(found);
        }
        let with_documents = self.query.include_docs && self.skip == 0;
        let most = if with_documents { PAGE_DOCUMENTS_MAX } else { PAGE_ROWS_MAX };
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
        let cut = with_documents && show_documents(trx, self.inner, &instance, &mut rows, self.query.conflicts).await?;
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

/// How many keys lie in a range, counted up to `most`, read as a snapshot.
pub(crate) async fn count_keys(trx: &Transaction, range: &KeyRange, most: usize) -> Result<usize> {
    let mut option = RangeOption { mode: StreamingMode::WantAll, ..page_of(range, most, false) };
    let mut count = 0;
    loop {
        let page = trx.get_range(&option, 1, true).await?;
        count += page.len();
        match option.next_range(&page) {
            Some(next) if count < most => option = next,
            _ => return Ok(count.min(most)),
        }
    }
}
