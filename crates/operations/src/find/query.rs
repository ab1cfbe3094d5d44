//! A running query.

use std::collections::VecDeque;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_databases::document::edit::Document;
use flatbed_databases::handles::ReadHandle;
use flatbed_databases::instance::InstanceId;
use flatbed_flatten::json::Value;
use flatbed_mango::{Bookmark, ExecutionStats, Index, Plan, Selector, Source};
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::keys::RowPlaces;
use flatbed_store::waits;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::find::catalog::JsonIndexes;
use crate::find::page::{PagePosition, QueryPage, SelectedRow, SelectorPage};
use crate::find::wait::{begin_to_wait, wait_for};
use crate::index::json::place::EntrySearch;
use crate::index::maintainers::IndexContext;
use crate::index_waits::WaitingQuery;

/// Returns true if the client has stopped waiting.
pub type Stop = Arc<dyn Fn() -> bool + Send + Sync>;

/// The most pages of a query that are read ahead.
const AHEAD_MAX: usize = 3;

/// Options of a query's execution.
#[derive(Clone, Default)]
pub struct FindOptions {
    /// The number of selected documents to skip.
    pub skip: u64,
    /// The most documents to answer.
    pub limit: u64,
    /// True to add conflicts to documents.
    pub conflicts: bool,
    /// True to count examined rows up to the document behind the last one, as CouchDB does, instead of up to the last
    /// one.
    pub exact_stats: bool,
    /// True to examine each row on its own, as CouchDB does with `r` above 1: design documents are then not counted.
    pub counts_each: bool,
    /// True to count the documents instead of returning them.
    pub counts: bool,
    /// True to read no page ahead: the selector takes long, and is matched in the caller's turn.
    pub is_alone: bool,
    /// Called between documents and inside a slow match. If it returns true, other work waits for a turn, and the page
    /// ends after it has matched or read for a slice. The next page resumes inside the document.
    pub has_waiters: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    /// Called regularly; `true`: the client has stopped waiting.
    pub stop: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

/// A document of a query's answer.
#[derive(Debug, Clone, PartialEq)]
pub enum QueryDocument {
    /// The whole document.
    Whole(Box<Document>),
    /// Its id and the index's fields, for a covering plan: see [`Plan::document_of`].
    Covered(Value<'static>),
}

/// A row of a query's answer.
#[derive(Debug, Clone, PartialEq)]
pub struct QueryRow {
    /// The document's id.
    pub id: String,
    /// The document.
    pub document: QueryDocument,
}

pub struct Query {
    pub index: Index,
    pub number: Option<u64>,
    /// The partition to read, for an index per partition.
    pub partition: Option<String>,
    pub source: Source,
    pub reverse: bool,
    pub covering: bool,
    pub residual: Option<Selector>,
    pub after: Option<Bookmark>,
    pub conflicts: bool,
    /// True if documents are not answered.
    pub counts: bool,
    /// True if documents are not read, either.
    pub counts_rows: bool,
    /// True if design documents are never counted.
    pub counts_each: bool,
    pub stop: Option<Stop>,
    pub has_waiters: Option<Stop>,
    pub indexes: JsonIndexes,
}

impl Query {
    pub fn entry_search<'a>(&'a self, within: &'a IndexContext<'a>, number: u64) -> EntrySearch<'a> {
        let places = RowPlaces(self.partition.as_deref());
        EntrySearch { within, number, index: &self.index, places, snapshot: true, written: None }
    }
}

/// A running query. Each page is a transaction of its own and consistent in itself, so that the query may take longer
/// than FoundationDB's 5 s. The query waits for an index that is still being built.
pub struct Find {
    database: ReadHandle,
    query: Arc<Query>,
    skip: u64,
    limit: u64,
    exact_stats: bool,
    is_alone: bool,
    waiting: Option<WaitingQuery>,
    /// True after a wait, until it has checked the index again.
    has_waited: bool,
    next: Option<PagePosition>,
    instance: Option<InstanceId>,
    stats: ExecutionStats,
    /// The rows examined since the last selected one.
    pending: u64,
    last: Option<Bookmark>,
    ahead: VecDeque<QueryPageAhead>,
}

/// A page that a task reads ahead. The task ends when this is dropped.
struct QueryPageAhead {
    place: PagePosition,
    task: JoinHandle<Result<Option<SelectorPage>>>,
    /// Receives the beginning of the page behind it, unless this one is cut off; `None` once received.
    listed: Option<oneshot::Receiver<PagePosition>>,
    _room: OwnedSemaphorePermit,
}

impl Drop for QueryPageAhead {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Performs `Reader::find` of the layer.
pub fn find(database: &ReadHandle, indexes: &JsonIndexes, plan: &Plan<'_>, options: FindOptions) -> Find {
    let FindOptions { skip, limit, conflicts, exact_stats, counts_each, counts, .. } = options;
    let FindOptions { is_alone, has_waiters, stop, .. } = options;
    let query = Query {
        index: plan.index.clone(),
        number: indexes.number(plan.index),
        partition: plan.partition.clone(),
        source: plan.source.clone(),
        reverse: plan.reverse,
        covering: plan.covering,
        residual: plan.residual.clone(),
        after: plan.after.clone(),
        conflicts,
        counts,
        counts_rows: counts && plan.counts_rows(),
        counts_each,
        stop,
        has_waiters,
        indexes: indexes.clone(),
    };
    let next = Some(PagePosition::first(&query, skip, limit)).filter(|_| query.source != Source::Nothing);
    Find {
        database: database.clone(),
        query: Arc::new(query),
        skip,
        limit,
        exact_stats,
        is_alone,
        waiting: None,
        has_waited: false,
        next,
        instance: None,
        stats: ExecutionStats::default(),
        pending: 0,
        last: None,
        ahead: VecDeque::new(),
    }
}

impl Find {
    /// Returns the rows examined and documents answered so far. The caller fills in the time.
    pub fn stats(&self) -> ExecutionStats {
        self.stats
    }

    /// Returns whether another page may follow.
    pub fn has_more(&self) -> bool {
        self.next.is_some()
    }

    /// Returns the last row that was answered or skipped.
    pub fn last(&self) -> Option<&Bookmark> {
        self.last.as_ref()
    }

    /// Returns the next documents, at least one; `None` at the end. A count returns no documents.
    ///
    /// # Errors
    /// [`Refusal::IndexGone`]: the database has other indexes than the query was planned with; before the first page
    /// the caller plans again. [`Refusal::SelectorExhausted`]. [`Error::Index`]. [`Error::DatabaseNotFound`] also if
    /// another database has replaced this one since the first page.
    #[boxed]
    pub async fn next_page(&mut self) -> Result<Option<Vec<QueryRow>>> {
        while let Some(rows) = self.read_page().await? {
            if !rows.is_empty() {
                return Ok(Some(rows));
            }
        }
        Ok(None)
    }

    /// Like [`Find::next_page`], for a single page, which may be empty. It is also empty while the index is being
    /// built.
    ///
    /// # Errors
    /// As there.
    #[boxed]
    pub async fn read_page(&mut self) -> Result<Option<Vec<QueryRow>>> {
        let Some(place) = self.next.clone() else { return Ok(None) };
        if self.query.stop.as_ref().is_some_and(|stop| stop()) {
            return Err(Refusal::SelectorExhausted.into());
        }
        if !self.wait().await? {
            return Ok(Some(Vec::new()));
        }
        self.has_waited = false;
        let page = match self.ahead.pop_front() {
            Some(ahead) if ahead.place.is_at(&place) => self.taken(ahead).await?,
            _ => {
                self.ahead.clear();
                let Some(page) = self.read(place, self.instance.is_none(), None).await? else {
                    self.begin_to_wait()?;
                    return Ok(Some(Vec::new()));
                };
                page
            }
        };
        self.waiting = None;
        if *self.instance.get_or_insert(page.instance) != page.instance {
            return Err(Error::DatabaseNotFound);
        }
        self.next = page.next.clone();
        let rows = self.take(page);
        self.read_ahead();
        Ok(Some(rows))
    }

    /// Waits about half a second if the index was found under construction. Returns true if a page may be read.
    ///
    /// # Errors
    /// [`Error::Index`].
    #[boxed]
    pub async fn wait(&mut self) -> Result<bool> {
        // A wait before the page is not repeated while reading it.
        if let (Some(waiting), false) = (&mut self.waiting, self.has_waited) {
            self.has_waited = wait_for(&self.database, waiting).await?;
            return Ok(self.has_waited);
        }
        Ok(true)
    }

    fn begin_to_wait(&mut self) -> Result<()> {
        if let (None, Some(number)) = (&self.waiting, self.query.number) {
            self.waiting = Some(begin_to_wait(&self.database, number, &self.query.index)?);
        }
        Ok(())
    }

    /// Counts a page's rows, and returns those to answer.
    ///
    /// As in CouchDB a selected row accounts for the rows examined since the one before it, and for those examined at
    /// the end of the query. A selected design document is dropped together with the rows that it accounts for.
    fn take(&mut self, page: SelectorPage) -> Vec<QueryRow> {
        let SelectorPage { examined, found, .. } = page;
        let mut rows = Vec::new();
        let mut counted = 0;
        for SelectedRow { ordinal, id, key, document, is_dropped } in found {
            let brings = std::mem::take(&mut self.pending) + ordinal.saturating_sub(counted);
            counted = ordinal;
            if is_dropped {
                // With `counts_each`, rows that a dropped row accounts for are still counted.
                self.pending = if self.query.counts_each { brings.saturating_sub(1) } else { 0 };
                continue;
            }
            self.count(brings);
            if self.limit == 0 {
                self.next = None;
                return rows;
            }
            if !self.query.counts {
                self.last = Some(Bookmark { id: id.clone(), key });
            }
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.limit -= 1;
            self.stats.results_returned += 1;
            rows.extend(document.map(|document| QueryRow { id, document }));
            if self.limit == 0 && !self.exact_stats {
                self.next = None;
                return rows;
            }
        }
        self.pending += examined.saturating_sub(counted);
        if self.next.is_none() {
            let pending = std::mem::take(&mut self.pending);
            self.count(pending);
        }
        rows
    }

    fn count(&mut self, examined: u64) {
        self.stats.keys_examined += examined;
        if !self.query.covering && !self.query.counts_rows {
            self.stats.docs_examined += examined;
        }
    }

    /// Returns a page that was read ahead, once it is complete. The page behind it begins as soon as its position is
    /// known.
    async fn taken(&mut self, mut ahead: QueryPageAhead) -> Result<SelectorPage> {
        let own = ahead.listed.take();
        let mut own = std::pin::pin!(async move {
            match own {
                Some(listed) => listed.await.ok(),
                None => std::future::pending().await,
            }
        });
        let mut is_own_listed = false;
        loop {
            let last = self.ahead.back_mut().and_then(|ahead| ahead.listed.as_mut());
            let behind = async {
                match last {
                    Some(listed) => listed.await.ok(),
                    None => std::future::pending().await,
                }
            };
            let place = tokio::select! {
                page = &mut ahead.task => {
                    return page.map_err(Error::of_task)??.ok_or(Refusal::IndexGone.into());
                }
                place = &mut own, if !is_own_listed => {
                    is_own_listed = true;
                    place.filter(|_| self.ahead.is_empty())
                }
                place = behind => {
                    if let Some(last) = self.ahead.back_mut() {
                        last.listed = None;
                    }
                    place
                }
            };
            if let Some(place) = place {
                self.begin_ahead(place);
            }
        }
    }

    fn read_ahead(&mut self) {
        if let (true, Some(next)) = (self.ahead.is_empty(), self.next.clone()) {
            self.begin_ahead(next);
        }
    }

    fn begin_ahead(&mut self, place: PagePosition) {
        // Counts are not read ahead.
        if self.is_alone
            || self.ahead.len() >= AHEAD_MAX
            || !place.may_be_ahead()
            || waits::OperationCounters::is_running()
        {
            return;
        }
        let Ok(room) = self.database.inner.turns.queries_ahead.clone().try_acquire_owned() else { return };
        let (sender, listed) = oneshot::channel();
        let task = tokio::spawn(self.read(place.clone(), false, Some(sender)).in_current_span());
        self.ahead.push_back(QueryPageAhead { place, task, listed: Some(listed), _room: room });
    }

    /// Reads a page; `None`: its index is still being built.
    fn read(
        &self,
        place: PagePosition,
        is_first: bool,
        listed: Option<oneshot::Sender<PagePosition>>,
    ) -> impl Future<Output = Result<Option<SelectorPage>>> + Send + use<> {
        let (database, query) = (self.database.clone(), self.query.clone());
        async move {
            let ReadHandle { inner, name, .. } = &database;
            database.read(&mut QueryPage { inner, name, query: &query, place: &place, is_first, listed }).await
        }
    }
}
