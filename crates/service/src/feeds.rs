//! Feeds of a database as streams of rows: what filters them, how long they wait, when they are over.
//!
//! Which words ask for a feed, what bytes its rows become and how a reader hears that it goes on is for the surface.
//!
//! A function runs on threads of its own, a page of documents at a time; so does a selector where it takes long. What has
//! been taken of the feed and is not filtered yet is kept here, so that whoever waits may stop waiting at any time, to send a
//! heartbeat.

mod function;
mod heartbeats;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_auth::Refused;
use flatbed_clock::Clock;
use flatbed_javascript::{Error as FunctionError, Runner};
use flatbed_layer::channels::HeldAt;
use flatbed_layer::{
    ChangeRow, Changes, ChangesPage, ChangesQuery, Documents, Error as LayerError, Extras, Followed, Place, Reader,
    Refusal, Scope, Since, TailRow,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::designs::{DesignError, Designs};
use crate::rights::Rights;
use crate::selecting::{Selecting, SelectorError, Selectors};
use crate::turns::Origin;
use crate::watching::{Basis, RightsWatch};
use function::{Filters, Function};

pub use function::{FilterFunction, FilterKind};
pub use heartbeats::Heartbeats;

/// Why a feed does not begin, or does not go on.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// What the layer says.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// What the function says, or why it cannot be asked.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// What the selector says.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// The design document has no member of this name, where the function would be.
    #[error("missing json key: {0}")]
    MissingMember(String),
    /// Who reads it has lost the right to.
    #[error("{0}")]
    Lost(Refused),
}

impl FeedError {
    /// Whether its reader is not let in, or no more.
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

/// What lets rows through.
#[derive(Debug, Default)]
pub enum Filter {
    /// All rows.
    #[default]
    None,
    /// Those of documents that it selects.
    Selector(Selecting),
    /// Those of documents that it says yes to. The design document is read once, and stays as it is for the feed.
    Function(FilterFunction),
}

/// For how long a feed goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Until its reader has what is there.
    No,
    /// The same; where that is nothing, until there is something.
    UntilFirst,
    /// For as long as there may be something.
    On,
}

/// What a feed is asked for.
#[derive(Debug)]
pub struct FeedQuery {
    /// Where to begin.
    pub since: Since,
    /// Newest first, down to `since`. Such a feed waits for nothing.
    pub descending: bool,
    /// How many rows at most; filters let so many through.
    pub limit: Option<u64>,
    /// Which documents it is about.
    pub scope: Scope,
    /// Without tombstones, and without documents that have left the feed; of a list of ids with them.
    pub active_only: bool,
    /// With rows of what a reader has lost because channels were taken from them.
    pub revocations: bool,
    /// Which of them pass.
    pub filter: Filter,
    /// Whether rows name all leaves, and filters are asked about each.
    pub all_leaves: bool,
    /// The documents that rows are to carry.
    pub documents: Documents,
    /// The documents that a filter is asked about. Rows that it let through carry them, whatever they are to carry.
    pub filtered: Documents,
    /// For how long it goes on.
    pub follow: Follow,
    /// For how long it waits where nothing comes, and its reader wants no heartbeats.
    pub timeout: Duration,
}

/// What feeds of all databases share. Made once.
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

    /// Begins a feed. Of its rows none is read.
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
            // It sees documents, whatever the feed shows, and the limit is of what it lets through.
            extras.documents = filtered;
            read = limit.filter(|limit| *limit == 0);
        }
        let filter = match filter {
            Filter::None => Passing::All,
            Filter::Selector(selecting) => Passing::Selector(selecting),
            Filter::Function(asked) => {
                Passing::Function(Box::pin(self.filters.find(asked, rights, origin, database, all_leaves)).await?)
            }
        };
        let rows = Rows {
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
        Ok(Feed { rows, watch, incarnation: None, came: None })
    }
}

/// How a wait for something new ended.
#[derive(Debug)]
pub enum Waited {
    /// Rows as all followers share them, or those of them that a selector let through.
    Shared(Vec<Arc<TailRow>>),
    /// Rows that a function let through.
    Passed(Vec<ChangeRow>),
    /// There is something that comes with [`Feed::next_page`].
    ReadOn,
    /// A heartbeat is due, and then the wait goes on.
    Heartbeat,
    /// Nothing came in time, or the server is stopping.
    Over,
}

enum Passing {
    All,
    Selector(Selecting),
    Function(Function),
}

/// What a filter has let through of what followers share.
enum Passed {
    Rows(Vec<ChangeRow>),
    Shared(Vec<Arc<TailRow>>),
}

/// A feed under way: pages until it is at the end, and then what comes; until its reader loses the right to it.
pub struct Feed {
    rows: Rows,
    watch: RightsWatch,
    /// Of the database that the first page is of: the reader was let read that one.
    incarnation: Option<u64>,
    /// Rows that came while it was not known whether the reader's rights are still there.
    came: Option<Waited>,
}

impl Feed {
    /// Whether what is read for it has documents, and takes memory accordingly.
    pub fn has_documents(&self) -> bool {
        self.rows.has_documents
    }

    /// What is there after its place, one bounded page of it; perhaps no row, where a filter let none through.
    ///
    /// # Errors
    /// [`FeedError`]; that there is no such database, too, where there is another one of its name by now.
    #[boxed]
    pub async fn next_page(&mut self) -> Result<ChangesPage> {
        let confirmed = self.watch.confirmed();
        let page = tokio::select! {
            biased;
            refused = self.watch.lost() => Err(FeedError::Lost(refused)),
            page = async {
                confirmed.await;
                self.rows.next_page().await
            } => page,
        }?;
        let incarnation = page.last_seq.incarnation();
        if *self.incarnation.get_or_insert(incarnation) == incarnation {
            Ok(page)
        } else {
            Err(LayerError::DatabaseNotFound.into())
        }
    }

    /// Whether it goes on once its reader has all that there is: then [`Feed::wait`] follows.
    pub fn goes_on(&self) -> bool {
        self.rows.goes_on()
    }

    /// Waits for something new, for as long as the feed is to wait. Whoever follows has all that came before. It may be
    /// dropped and called again at any time.
    ///
    /// # Errors
    /// [`FeedError`].
    #[boxed]
    pub async fn wait(&mut self, heartbeats: &mut Heartbeats) -> Result<Waited> {
        match self.came {
            None => {
                let waited = tokio::select! {
                    biased;
                    refused = self.watch.lost() => return Err(FeedError::Lost(refused)),
                    waited = self.rows.wait(heartbeats) => waited?,
                };
                let has_rows = matches!(waited, Waited::Shared(_) | Waited::Passed(_));
                if !has_rows || self.watch.is_confirmed() {
                    return Ok(waited);
                }
                self.came = Some(waited);
            }
            Some(_) => heartbeats.sent(),
        }
        let confirmed = self.watch.confirmed();
        tokio::select! {
            biased;
            refused = self.watch.lost() => Err(FeedError::Lost(refused)),
            () = confirmed => Ok(self.came.take().unwrap_or(Waited::ReadOn)),
            () = heartbeats.due() => Ok(Waited::Heartbeat),
        }
    }

    /// When and by what the rows were judged that [`Feed::next_page`] or [`Feed::wait`] gave last.
    pub fn judged(&self) -> (Instant, Option<Basis>) {
        let (at, by) = &self.rows.taken;
        (*at, by.clone().map(|by| by as Basis))
    }

    /// What a limit has left unread; without one all is read.
    ///
    /// # Errors
    /// Those of the layer.
    #[boxed]
    pub async fn pending(&mut self) -> flatbed_layer::Result<u64> {
        match self.rows.limit {
            Some(_) => self.rows.changes.pending().await,
            None => Ok(0),
        }
    }

    /// A shared row as this feed shows it.
    pub fn shown(&self, row: &TailRow) -> ChangeRow {
        self.rows.changes.shown(row)
    }

    /// Where it stands; `None` before the first page.
    pub fn last_seq(&self) -> Option<Place> {
        self.rows.changes.last_seq()
    }
}

/// What a feed reads, whoever reads it.
struct Rows {
    changes: Changes,
    clock: Clock,
    filter: Passing,
    has_documents: bool,
    /// As asked for, of a feed that a limit leaves something of.
    limit: Option<u64>,
    /// How many rows may pass.
    left: u64,
    /// What was taken and is being filtered.
    filtering: Option<JoinHandle<Result<Passed>>>,
    /// Where the feed stood before that.
    before: Option<Place>,
    /// When what was given last was judged, and by what.
    taken: (Instant, Option<Arc<HeldAt>>),
    follow: Follow,
    timeout: Duration,
    /// Until when it waits for the first row.
    deadline: Option<Instant>,
    /// No row has come yet.
    is_empty: bool,
}

impl Drop for Rows {
    fn drop(&mut self) {
        if let Some(filtering) = &self.filtering {
            filtering.abort();
        }
    }
}

impl Rows {
    async fn next_page(&mut self) -> Result<ChangesPage> {
        let began = self.clock.now();
        let mut page = self.changes.next_page().await?;
        self.taken = (began, self.changes.judged_by());
        match &self.filter {
            Passing::All => self.left = self.left.saturating_sub(page.rows.len() as u64),
            Passing::Function(function) => {
                page.rows = function.pass(page.rows).await?;
                page.at_end |= self.cut(&mut page.rows, |row| row.place());
            }
            Passing::Selector(selecting) => {
                page.rows = selecting.pass(page.rows).await?;
                page.at_end |= self.cut(&mut page.rows, |row| row.place());
            }
        }
        self.is_empty &= page.rows.is_empty();
        self.deadline.get_or_insert_with(|| self.clock.now() + self.timeout);
        Ok(page)
    }

    fn goes_on(&self) -> bool {
        let waits = match self.follow {
            Follow::No => false,
            Follow::UntilFirst => self.is_empty,
            Follow::On => true,
        };
        waits && self.left > 0
    }

    async fn wait(&mut self, heartbeats: &mut Heartbeats) -> Result<Waited> {
        heartbeats.sent();
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
            () = heartbeats.due() => Ok(Waited::Heartbeat),
            () = over => {
                self.give_back();
                Ok(Waited::Over)
            }
        }
    }

    /// The feed ends where the last row stands that its filter was done with: what is still being filtered comes with the
    /// next feed.
    fn give_back(&mut self) {
        if let (Some(filtering), Some(before)) = (self.filtering.take(), self.before) {
            filtering.abort();
            self.changes.stand_at(before);
        }
    }

    /// Drops rows beyond the limit, and says whether it is reached: then the feed stands at the last row.
    fn cut<R>(&mut self, rows: &mut Vec<R>, place: impl Fn(&R) -> Place) -> bool {
        let is_full = rows.len() as u64 >= self.left;
        rows.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= rows.len() as u64;
        if let (true, Some(last)) = (is_full, rows.last()) {
            self.changes.stand_at(place(last));
        }
        is_full
    }

    /// What came of filtering, as far as the limit goes; `None`: nothing passed.
    fn came(&mut self, passed: Passed) -> Option<Waited> {
        let came = match passed {
            Passed::Rows(mut rows) => {
                self.cut(&mut rows, |row| row.place());
                (!rows.is_empty()).then_some(Waited::Passed(rows))
            }
            Passed::Shared(mut rows) => {
                self.cut(&mut rows, |row| row.row.place());
                (!rows.is_empty()).then_some(Waited::Shared(rows))
            }
        };
        self.is_empty &= came.is_none();
        came
    }

    /// As [`Changes::follow`]: it may be dropped and called again at any time.
    async fn follow(&mut self) -> Result<Waited> {
        loop {
            if let Some(filtering) = &mut self.filtering {
                let passed = filtering.await;
                self.filtering = None;
                let passed = passed.map_err(|_| FunctionError::OutOfResources)??;
                if let Some(came) = self.came(passed) {
                    return Ok(came);
                }
            }
            self.before = self.changes.last_seq();
            let rows = match self.changes.follow().await {
                Followed::Shutdown => return Ok(Waited::Over),
                Followed::ReadOn => return Ok(Waited::ReadOn),
                Followed::Rows(rows) => rows,
            };
            self.taken = (self.clock.now(), self.changes.judged_by());
            match &self.filter {
                Passing::All => {
                    self.left = self.left.saturating_sub(rows.len() as u64);
                    self.is_empty &= rows.is_empty();
                    return Ok(Waited::Shared(rows));
                }
                Passing::Function(function) => {
                    let mut rows: Vec<ChangeRow> = rows.iter().map(|row| self.changes.shown(row)).collect();
                    if !function.all_leaves {
                        rows.iter_mut().for_each(|row| row.leaves.truncate(1));
                    }
                    let function = function.clone();
                    self.filtering = Some(tokio::spawn(async move { function.pass(rows).await.map(Passed::Rows) }));
                }
                Passing::Selector(selecting) if selecting.is_short(&rows) => {
                    let passed = Passed::Shared(selecting.pass_now(rows)?);
                    if let Some(came) = self.came(passed) {
                        return Ok(came);
                    }
                }
                Passing::Selector(selecting) => {
                    let selecting = selecting.clone();
                    self.filtering = Some(tokio::spawn(async move { Ok(Passed::Shared(selecting.pass(rows).await?)) }));
                }
            }
        }
    }
}
