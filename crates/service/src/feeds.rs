//! Feeds of a database as streams of rows: filters, waits, ends.
//!
//! Query parameters, the encoding of rows and the form of heartbeats belong to the surface.
//!
//! A filter function runs on threads of its own, a page of documents at a time; so does a slow selector. Rows that
//! are being filtered are kept here, so that a caller can stop waiting at any time to send a heartbeat.

mod function;
mod heartbeats;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_auth::AuthError;
use flatbed_clock::Clock;
use flatbed_javascript::{Error as FunctionError, Runner};
use flatbed_layer::channels::HeldRights;
use flatbed_layer::{
    ChangeRow, Changes, ChangesPage, ChangesQuery, Documents, Error as LayerError, Extras, FeedPosition, FollowOutcome,
    Reader, Refusal, Scope, Since, TailRow,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::designs::{DesignError, Designs};
use crate::rights::Rights;
use crate::selecting::{FeedSelector, SelectorError, Selectors};
use crate::turns::Origin;
use crate::watching::{Basis, RightsWatch};
use function::{Filters, Function};

pub use function::{FilterFunction, FilterKind};
pub use heartbeats::Heartbeats;

/// The reason why a feed does not begin or ends early.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// A failure of the layer.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// A failure of the function or of its process.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// A failure of the selector.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// The design document has no member of this name, where the function would be.
    #[error("missing json key: {0}")]
    MissingMember(String),
    /// The reader has lost the right.
    #[error("{0}")]
    Lost(AuthError),
}

impl FeedError {
    /// True if the reader is not or no longer admitted.
    pub fn is_refusal(&self) -> bool {
        let of_layer =
            |error: &LayerError| matches!(error, LayerError::Refused(Refusal::Forbidden(_) | Refusal::Unauthorized(_)));
        match self {
            FeedError::Lost(_) => true,
            FeedError::Layer(error) => of_layer(error),
            FeedError::Function(_) | FeedError::Selector(_) | FeedError::MissingMember(_) => false,
        }
    }
}

impl From<DesignError> for FeedError {
    fn from(error: DesignError) -> FeedError {
        match error {
            DesignError::Layer(error) => error.into(),
            DesignError::Function(error) => error.into(),
        }
    }
}

type Result<T> = std::result::Result<T, FeedError>;

/// The filter of a feed's rows.
#[derive(Debug, Default)]
pub enum Filter {
    /// All rows.
    #[default]
    None,
    /// Rows of documents that the selector matches.
    Selector(FeedSelector),
    /// Rows of documents that the function accepts. The design document is read once and stays the same for the feed.
    Function(FilterFunction),
}

/// The duration of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Until the reader has all current rows.
    No,
    /// Until the reader has all current rows, or, if there are none, the first new ones.
    UntilFirst,
    /// Until the reader leaves.
    On,
}

/// The parameters of a feed.
#[derive(Debug)]
pub struct FeedQuery {
    /// The start.
    pub since: Since,
    /// Newest first, down to `since`. Such a feed does not wait.
    pub descending: bool,
    /// The most rows, counted after the filter.
    pub limit: Option<u64>,
    /// The set of documents.
    pub scope: Scope,
    /// Without tombstones and documents that have left the feed. A list of ids keeps tombstones.
    pub active_only: bool,
    /// With rows of documents that the reader has lost with a channel.
    pub revocations: bool,
    /// The filter.
    pub filter: Filter,
    /// True if rows name all leaves and the filter judges each.
    pub all_leaves: bool,
    /// The documents in rows.
    pub documents: Documents,
    /// The documents for the filter. Rows that it accepts carry them, regardless of `documents`.
    pub filtered: Documents,
    /// The duration of the feed.
    pub follow: Follow,
    /// The longest wait without a row for a reader without heartbeats.
    pub timeout: Duration,
}

/// The state that feeds of all databases share.
#[derive(Debug)]
pub(crate) struct Feeds {
    filters: Filters,
    pub(crate) selectors: Selectors,
}

impl Feeds {
    pub(crate) fn new(functions: Runner, designs: Designs, selectors: Selectors) -> Feeds {
        Feeds { filters: Filters::new(functions, designs), selectors }
    }

    #[cfg(test)]
    fn held_bytes(&self) -> usize {
        self.filters.held_bytes()
    }

    #[cfg(test)]
    fn reading(&self) -> &Arc<crate::turns::Turns> {
        self.filters.reading()
    }

    pub(crate) async fn begin(
        &self,
        rights: &Rights,
        origin: &Origin,
        watch: RightsWatch,
        database: &Reader,
        query: FeedQuery,
    ) -> Result<Feed> {
        let FeedQuery { since, descending, limit, scope, active_only, revocations, filter, all_leaves, .. } = query;
        let FeedQuery { documents, filtered, follow, timeout, .. } = query;
        let mut extras = Extras { leaves: all_leaves, documents };
        let mut read = limit;
        if !matches!(filter, Filter::None) {
            // The filter sees documents, whatever the feed shows, and the limit counts rows that pass.
            extras.documents = filtered;
            read = limit.filter(|limit| *limit == 0);
        }
        let filter = match filter {
            Filter::None => RowFilter::All,
            Filter::Selector(selecting) => RowFilter::Selector(selecting),
            Filter::Function(asked) => {
                RowFilter::Function(Box::pin(self.filters.find(asked, rights, origin, database, all_leaves)).await?)
            }
        };
        let rows = FeedReader {
            changes: database.changes(ChangesQuery {
                since,
                descending,
                limit: read,
                scope,
                active_only,
                revocations,
                extras,
            }),
            filter,
            has_documents: extras.has_documents(),
            limit: if descending { None } else { limit },
            left: limit.unwrap_or(u64::MAX),
            filtering: None,
            before: None,
            taken: (database.clock().now(), None),
            clock: database.clock().clone(),
            follow: if descending { Follow::No } else { follow },
            timeout,
            deadline: None,
            is_empty: true,
        };
        let watch = if matches!(rows.follow, Follow::No) { watch } else { watch.at_once() };
        Ok(Feed { rows, watch, incarnation: None, page: None, came: None })
    }
}

/// The result of a wait for new rows.
#[derive(Debug)]
pub enum FeedWaitOutcome {
    /// Rows that all followers share, after the selector.
    Shared(Vec<Arc<TailRow>>),
    /// Rows that a function accepted.
    Passed(Vec<ChangeRow>),
    /// The next rows come with [`Feed::next_page`].
    ReadOn,
    /// A heartbeat is due; the wait resumes after it.
    Heartbeat,
    /// The timeout has passed, or the server is stopping.
    Over,
}

enum RowFilter {
    All,
    Selector(FeedSelector),
    Function(Function),
}

enum FilteredRows {
    Rows(Vec<ChangeRow>),
    Shared(Vec<Arc<TailRow>>),
}

/// A running feed: pages up to the end, then new rows, until the reader loses the right.
pub struct Feed {
    rows: FeedReader,
    watch: RightsWatch,
    /// The database's incarnation at the first page: the right is for that database.
    incarnation: Option<u64>,
    /// A page that was read while the reader's rights were unconfirmed, and when.
    page: Option<(Instant, ChangesPage)>,
    /// Rows that arrived while they were unconfirmed, and when.
    came: Option<(Instant, FeedWaitOutcome)>,
}

impl Feed {
    /// True if the feed reads documents, and takes memory for them.
    pub fn has_documents(&self) -> bool {
        self.rows.has_documents
    }

    /// Returns the next page of rows, perhaps an empty one after the filter.
    ///
    /// # Errors
    /// [`FeedError`]; a missing database if it was replaced by another of its name.
    #[boxed]
    pub async fn next_page(&mut self) -> Result<ChangesPage> {
        let page = self.read_page().await?;
        self.filter_page(page).await
    }

    /// Reads the next page of rows, which must be passed to [`Feed::filter_page`]. So the caller can return memory that
    /// the page does not need before a function judges it, which may take seconds.
    ///
    /// # Errors
    /// As [`Feed::next_page`].
    #[boxed]
    pub async fn read_page(&mut self) -> Result<ChangesPage> {
        loop {
            if let Some((read_at, _)) = self.page {
                self.confirm(read_at).await?;
            }
            if let Some((_, page)) = self.page.take() {
                return self.of_one_database(page);
            }
            let is_new = self.watch.is_new();
            let page = tokio::select! {
                biased;
                refused = self.watch.lost() => Err(FeedError::Lost(refused)),
                page = self.rows.read_page() => page,
            }?;
            if is_new {
                return self.of_one_database(page);
            }
            // It stays if this is dropped while the reader's rights are unconfirmed.
            self.page = Some((self.rows.clock.now(), page));
        }
    }

    /// Checks that a page is of the database of the first one.
    fn of_one_database(&mut self, page: ChangesPage) -> Result<ChangesPage> {
        let incarnation = page.last_seq.incarnation();
        if *self.incarnation.get_or_insert(incarnation) == incarnation {
            Ok(page)
        } else {
            Err(LayerError::DatabaseNotFound.into())
        }
    }

    /// Waits until rows that were read at this time may be sent. It may be dropped and called again at any time.
    async fn confirm(&mut self, read_at: Instant) -> Result<()> {
        if self.watch.may_send(read_at) {
            return Ok(());
        }
        while !self.watch.may_send(read_at) {
            let confirmed = self.watch.confirmed(read_at);
            tokio::select! {
                biased;
                refused = self.watch.lost() => return Err(FeedError::Lost(refused)),
                () = confirmed => {}
            }
        }
        self.watch.looks().rights_rows_held_seconds.observe(self.rows.clock.since(read_at));
        Ok(())
    }

    /// Filters a page of [`Feed::read_page`].
    ///
    /// # Errors
    /// As [`Feed::next_page`].
    #[boxed]
    pub async fn filter_page(&mut self, page: ChangesPage) -> Result<ChangesPage> {
        tokio::select! {
            biased;
            refused = self.watch.lost() => Err(FeedError::Lost(refused)),
            page = self.rows.filter_page(page) => page,
        }
    }

    /// True if the feed continues at the end of the current rows, with [`Feed::wait`].
    pub fn can_wait(&self) -> bool {
        self.rows.can_wait()
    }

    /// Waits for new rows, up to the feed's timeout. All followers have read the current rows before. It may be
    /// dropped and called again at any time.
    #[boxed]
    pub async fn wait(&mut self, heartbeats: &mut Heartbeats) -> Result<FeedWaitOutcome> {
        if self.page.is_some() {
            return Ok(FeedWaitOutcome::ReadOn);
        }
        match self.came {
            None => {
                let waited = tokio::select! {
                    biased;
                    refused = self.watch.lost() => return Err(FeedError::Lost(refused)),
                    waited = self.rows.wait(heartbeats) => waited?,
                };
                let has_rows = matches!(waited, FeedWaitOutcome::Shared(_) | FeedWaitOutcome::Passed(_));
                let read_at = self.rows.clock.now();
                if !has_rows || self.watch.may_send(read_at) {
                    return Ok(waited);
                }
                self.came = Some((read_at, waited));
            }
            Some(_) => heartbeats.restart(),
        }
        if let Some((read_at, _)) = self.came {
            tokio::select! {
                biased;
                confirmed = self.confirm(read_at) => confirmed?,
                () = heartbeats.due() => return Ok(FeedWaitOutcome::Heartbeat),
            }
        }
        Ok(self.came.take().map_or(FeedWaitOutcome::ReadOn, |(_, came)| came))
    }

    /// When the last rows of [`Feed::next_page`] or [`Feed::wait`] were judged, and the access state that they were
    /// judged by.
    pub fn decision(&self) -> (Instant, Option<Basis>) {
        let (at, by) = &self.rows.taken;
        (*at, by.clone().map(|by| by as Basis))
    }

    /// Returns the number of rows beyond the limit; 0 without a limit.
    #[boxed]
    pub async fn pending(&mut self) -> flatbed_layer::Result<u64> {
        match self.rows.limit {
            Some(_) => self.rows.changes.pending().await,
            None => Ok(0),
        }
    }

    /// Returns a shared row as this feed shows it.
    pub fn shown(&self, row: &TailRow) -> ChangeRow {
        self.rows.changes.shown(row)
    }

    /// The position; `None` before the first page.
    pub fn last_seq(&self) -> Option<FeedPosition> {
        self.rows.changes.last_seq()
    }
}

/// The reading part of a feed, without its rights.
struct FeedReader {
    changes: Changes,
    clock: Clock,
    filter: RowFilter,
    has_documents: bool,
    /// The requested limit, if the feed reports rows beyond it.
    limit: Option<u64>,
    /// The number of rows that may still pass.
    left: u64,
    filtering: Option<JoinHandle<Result<FilteredRows>>>,
    /// The feed's position before those rows.
    before: Option<FeedPosition>,
    /// When the last rows were judged, and by which access state.
    taken: (Instant, Option<Arc<HeldRights>>),
    follow: Follow,
    timeout: Duration,
    /// The end of the wait for the first row.
    deadline: Option<Instant>,
    is_empty: bool,
}

impl Drop for FeedReader {
    fn drop(&mut self) {
        if let Some(filtering) = &self.filtering {
            filtering.abort();
        }
    }
}

impl FeedReader {
    async fn read_page(&mut self) -> Result<ChangesPage> {
        let began = self.clock.now();
        let page = self.changes.next_page().await?;
        self.taken = (began, self.changes.judged_by());
        Ok(page)
    }

    async fn filter_page(&mut self, mut page: ChangesPage) -> Result<ChangesPage> {
        match &self.filter {
            RowFilter::All => self.left = self.left.saturating_sub(page.rows.len() as u64),
            RowFilter::Function(function) => {
                page.rows = function.pass(page.rows).await?;
                page.at_end |= self.apply_limit(&mut page.rows, |row| row.place());
            }
            RowFilter::Selector(selecting) => {
                page.rows = selecting.pass(page.rows).await?;
                page.at_end |= self.apply_limit(&mut page.rows, |row| row.place());
            }
        }
        self.is_empty &= page.rows.is_empty();
        self.deadline.get_or_insert_with(|| self.clock.now() + self.timeout);
        Ok(page)
    }

    fn can_wait(&self) -> bool {
        let waits = match self.follow {
            Follow::No => false,
            Follow::UntilFirst => self.is_empty,
            Follow::On => true,
        };
        waits && self.left > 0
    }

    async fn wait(&mut self, heartbeats: &mut Heartbeats) -> Result<FeedWaitOutcome> {
        heartbeats.restart();
        let (clock, now) = (self.clock.clone(), self.clock.now());
        let until = match self.follow {
            _ if heartbeats.are_wanted() => None,
            Follow::On => Some(now + self.timeout),
            Follow::No | Follow::UntilFirst => Some(*self.deadline.get_or_insert(now + self.timeout)),
        };
        let over = async {
            match until {
                Some(until) => clock.sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            came = self.follow() => came,
            () = heartbeats.due() => Ok(FeedWaitOutcome::Heartbeat),
            () = over => {
                self.rewind();
                Ok(FeedWaitOutcome::Over)
            }
        }
    }

    /// Moves the feed back to the last row that its filter has judged. The next feed reads the rows that are still
    /// being filtered.
    fn rewind(&mut self) {
        if let (Some(filtering), Some(before)) = (self.filtering.take(), self.before) {
            filtering.abort();
            self.changes.stand_at(before);
        }
    }

    /// Drops rows beyond the limit; returns whether the limit is reached. The feed then stands at the last row.
    fn apply_limit<R>(&mut self, rows: &mut Vec<R>, place: impl Fn(&R) -> FeedPosition) -> bool {
        let is_full = rows.len() as u64 >= self.left;
        rows.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= rows.len() as u64;
        if let (true, Some(last)) = (is_full, rows.last()) {
            self.changes.stand_at(place(last));
        }
        is_full
    }

    /// Applies the limit to filtered rows; `None`: no row passed.
    fn limit_rows(&mut self, passed: FilteredRows) -> Option<FeedWaitOutcome> {
        let came = match passed {
            FilteredRows::Rows(mut rows) => {
                self.apply_limit(&mut rows, |row| row.place());
                (!rows.is_empty()).then_some(FeedWaitOutcome::Passed(rows))
            }
            FilteredRows::Shared(mut rows) => {
                self.apply_limit(&mut rows, |row| row.row.place());
                (!rows.is_empty()).then_some(FeedWaitOutcome::Shared(rows))
            }
        };
        self.is_empty &= came.is_none();
        came
    }

    /// As [`Changes::follow`]: it may be dropped and called again at any time.
    async fn follow(&mut self) -> Result<FeedWaitOutcome> {
        loop {
            if let Some(filtering) = &mut self.filtering {
                let passed = filtering.await;
                self.filtering = None;
                let passed = passed.map_err(|_| FunctionError::OutOfResources)??;
                if let Some(came) = self.limit_rows(passed) {
                    return Ok(came);
                }
            }
            self.before = self.changes.last_seq();
            let rows = match self.changes.follow().await {
                FollowOutcome::Shutdown => return Ok(FeedWaitOutcome::Over),
                FollowOutcome::ReadOn => return Ok(FeedWaitOutcome::ReadOn),
                FollowOutcome::Rows(rows) => rows,
            };
            self.taken = (self.clock.now(), self.changes.judged_by());
            match &self.filter {
                RowFilter::All => {
                    self.left = self.left.saturating_sub(rows.len() as u64);
                    self.is_empty &= rows.is_empty();
                    return Ok(FeedWaitOutcome::Shared(rows));
                }
                RowFilter::Function(function) => {
                    let mut rows: Vec<ChangeRow> = rows.iter().map(|row| self.changes.shown(row)).collect();
                    if !function.all_leaves {
                        rows.iter_mut().for_each(|row| row.leaves.truncate(1));
                    }
                    let function = function.clone();
                    self.filtering =
                        Some(tokio::spawn(async move { function.pass(rows).await.map(FilteredRows::Rows) }));
                }
                RowFilter::Selector(selecting) if selecting.is_short(&rows) => {
                    let passed = FilteredRows::Shared(selecting.pass_now(rows)?);
                    if let Some(came) = self.limit_rows(passed) {
                        return Ok(came);
                    }
                }
                RowFilter::Selector(selecting) => {
                    let selecting = selecting.clone();
                    self.filtering =
                        Some(tokio::spawn(async move { Ok(FilteredRows::Shared(selecting.pass(rows).await?)) }));
                }
            }
        }
    }
}
