//! A query under way.

use std::collections::VecDeque;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_flatten::json::Value;
use flatbed_mango::{Bookmark, ExecutionStats, Index, Plan, Selector, Source};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::document::edit::Document;
use crate::error::{Error, Refusal, Result};
use crate::find::catalog::JsonIndexes;
use crate::find::page::{Found, Page, PageRead, Place};
use crate::handle::Reader;
use crate::index::json::place::Among;
use crate::index::maintainers::Within;
use crate::index_waits::Waiting;
use crate::instance::InstanceId;
use crate::store::keys::RowPlaces;
use crate::store::waits;

/// Says that nobody is waiting.
pub(crate) type Stop = Arc<dyn Fn() -> bool + Send + Sync>;

/// Pages of one query that are read while another one is taken.
const AHEAD_MAX: usize = 3;

/// What of a plan's documents is wanted, and how.
#[derive(Clone, Default)]
pub struct FindOptions {
    /// How many that are selected are passed over.
    pub skip: u64,
    /// How many are answered at most.
    pub limit: u64,
    /// Documents have their conflicts.
    pub conflicts: bool,
    /// What is examined is counted up to the document behind the last one, as CouchDB does; else no further than that one.
    pub exact_stats: bool,
    /// Each row is looked at where the query is asked, as in CouchDB with `r` above 1: of design documents none is counted.
    pub counts_each: bool,
    /// Counts the documents instead of returning them.
    pub counts: bool,
    /// No page is read while another one is taken: its selector takes long, and is matched where the query is asked.
    pub is_alone: bool,
    /// Called between documents and inside a document that takes long. `true`: others wait for their turn, and the page ends once it
    /// has matched, or read, for a slice. The next page resumes inside the document.
    pub has_waiters: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    /// Asked now and then; `true`: nobody is waiting.
    pub stop: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

/// What a query answers of a document.
#[derive(Debug, Clone, PartialEq)]
pub enum FoundDocument {
    /// All of it.
    Whole(Box<Document>),
    /// Its id and the index's fields, where the plan is covering: see [`Plan::document_of`].
    Covered(Value<'static>),
}

/// A document that a query has found.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundRow {
    /// Its id.
    pub id: String,
    /// The document.
    pub document: FoundDocument,
}

/// A plan with all that belongs to it.
pub(crate) struct Query {
    pub index: Index,
    /// Of a json index.
    pub number: Option<u64>,
    /// Of which the index's entries are read, where each has an index of its own.
    pub partition: Option<String>,
    pub source: Source,
    pub reverse: bool,
    pub covering: bool,
    pub residual: Option<Selector>,
    pub after: Option<Bookmark>,
    pub conflicts: bool,
    /// No document is shown.
    pub counts: bool,
    /// No document is read, either.
    pub counts_rows: bool,
    /// No design document is counted, whether it is selected or not.
    pub counts_each: bool,
    pub stop: Option<Stop>,
    pub has_waiters: Option<Stop>,
    /// The indexes that it was planned with.
    pub indexes: JsonIndexes,
}

impl Query {
    /// The query's json index, as far as it is read.
    pub(crate) fn among<'a>(&'a self, within: &'a Within<'a>, number: u64) -> Among<'a> {
        let places = RowPlaces(self.partition.as_deref());
        Among { within, number, index: &self.index, places, snapshot: true, written: None }
    }
}

/// A query under way. Each page is a transaction of its own: consistent in itself, and the query may take longer than
/// FoundationDB's 5 s. An index that is still being built is waited for.
pub struct Find {
    database: Reader,
    query: Arc<Query>,
    skip: u64,
    limit: u64,
    exact_stats: bool,
    is_alone: bool,
    /// While it waits for its index.
    waiting: Option<Waiting>,
    /// It has waited, and is to look whether its index may be read.
    has_waited: bool,
    /// Where the next page begins; `None` after the last.
    next: Option<Place>,
    instance: Option<InstanceId>,
    stats: ExecutionStats,
    /// Rows that were examined since the last one that is selected.
    pending: u64,
    last: Option<Bookmark>,
    ahead: VecDeque<Ahead>,
}

/// A page that is being read by a task, which ends with who wants it.
struct Ahead {
    place: Place,
    task: JoinHandle<Result<Option<PageRead>>>,
    /// Where the page behind it begins, if this one is not cut off; `None` once it was asked.
    listed: Option<oneshot::Receiver<Place>>,
    _room: OwnedSemaphorePermit,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Reader {
    /// Carries out a plan that was made with these indexes of the database. Nothing is read yet.
    pub fn find(&self, indexes: &JsonIndexes, plan: &Plan<'_>, options: FindOptions) -> Find {
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
        let next = Some(Place::first(&query, skip, limit)).filter(|_| query.source != Source::Nothing);
        Find {
            database: self.clone(),
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
}

impl Find {
    /// What was examined and answered until now; the time is the caller's to fill in.
    pub fn stats(&self) -> ExecutionStats {
        self.stats
    }

    /// Whether there may be another page.
    pub fn has_more(&self) -> bool {
        self.next.is_some()
    }

    /// The row that was answered, or passed over by `skip`, last.
    pub fn last(&self) -> Option<&Bookmark> {
        self.last.as_ref()
    }

    /// The next documents, at least one; `None` at the end. Of a count they are none.
    ///
    /// # Errors
    /// [`Refusal::IndexGone`]: the database has other indexes than those that it was planned with; before the first page it is to
    /// be planned anew. [`Refusal::SelectorExhausted`]. [`Error::Index`]. [`Error::DatabaseNotFound`] also if the database has become another one
    /// since the first page.
    #[boxed]
    pub async fn next_page(&mut self) -> Result<Option<Vec<FoundRow>>> {
        while let Some(rows) = self.read_page().await? {
            if !rows.is_empty() {
                return Ok(Some(rows));
            }
        }
        Ok(None)
    }

    /// As [`Find::next_page`], of one page, which may have none; or of none, while its index is being built.
    ///
    /// # Errors
    /// As there.
    #[boxed]
    pub async fn read_page(&mut self) -> Result<Option<Vec<FoundRow>>> {
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

    /// Waits for half a second, about, where its index was found to be still under construction. True: a page may be read.
    ///
    /// # Errors
    /// [`Error::Index`].
    #[boxed]
    pub async fn wait(&mut self) -> Result<bool> {
        // Whoever asked before the page is read does not wait once more with it.
        if let (Some(waiting), false) = (&mut self.waiting, self.has_waited) {
            self.has_waited = self.database.wait_for(waiting).await?;
            return Ok(self.has_waited);
        }
        Ok(true)
    }

    fn begin_to_wait(&mut self) -> Result<()> {
        if let (None, Some(number)) = (&self.waiting, self.query.number) {
            self.waiting = Some(self.database.begin_to_wait(number, &self.query.index)?);
        }
        Ok(())
    }

    /// Counts a page's rows, and takes those that are answered.
    ///
    /// As in CouchDB a row that is selected brings what was examined since the one before it, and what the end of the query
    /// finds comes with that; a selected design document is dropped with all that it brings.
    fn take(&mut self, page: PageRead) -> Vec<FoundRow> {
        let PageRead { examined, found, .. } = page;
        let mut rows = Vec::new();
        let mut counted = 0;
        for Found { ordinal, id, key, document, is_dropped } in found {
            let brings = std::mem::take(&mut self.pending) + ordinal.saturating_sub(counted);
            counted = ordinal;
            if is_dropped {
                // What rows that are sent each by itself bring is not lost with another one.
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
            rows.extend(document.map(|document| FoundRow { id, document }));
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

    /// A page that is read ahead, once it is there; what is behind it is begun as soon as it is known where.
    async fn taken(&mut self, mut ahead: Ahead) -> Result<PageRead> {
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

    /// Begins to read a page, if there is room for it.
    fn begin_ahead(&mut self, place: Place) {
        // What is counted is read when it is asked for.
        if self.is_alone || self.ahead.len() >= AHEAD_MAX || !place.may_be_ahead() || waits::Operation::is_running() {
            return;
        }
        let Ok(room) = self.database.inner.turns.queries_ahead.clone().try_acquire_owned() else { return };
        let (sender, listed) = oneshot::channel();
        let task = tokio::spawn(self.read(place.clone(), false, Some(sender)).in_current_span());
        self.ahead.push_back(Ahead { place, task, listed: Some(listed), _room: room });
    }

    /// Reads a page; `None`: its index is still being built.
    fn read(
        &self,
        place: Place,
        is_first: bool,
        listed: Option<oneshot::Sender<Place>>,
    ) -> impl Future<Output = Result<Option<PageRead>>> + Send + use<> {
        let (database, query) = (self.database.clone(), self.query.clone());
        async move {
            let Reader { inner, name, .. } = &database;
            database.read(&mut Page { inner, name, query: &query, place: &place, is_first, listed }).await
        }
    }
}
