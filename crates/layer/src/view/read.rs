//! Views as they are read: which one, at which state, from where to where.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_collate::{Collation, Place, SortKey, cut_to_level};
use flatbed_flatten::json::Value;
use flatbed_rowtree::{KeyRange, Shape};
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::handle::Reader;
use crate::instance::Instance;
use crate::store::keys::{RowPlaces, ViewKeys};
use crate::store::proto;
use crate::store::seq::Seq;
use crate::store::transaction::{self, Attempt, Operation, Transaction};
use crate::view::asking::Asking;
use crate::view::build::FOLLOWED;
use crate::view::group::{ViewGroup, shape_of};
use crate::view::labels::Labels;
use crate::view::stored::StoredTree;
use crate::view::undo::{GroupReads, shown};
use crate::view::written::WrittenReduces;
use crate::view_definition::{GroupDefinition, ReduceFunction, TreeDefinition, ViewDefinition};

/// Finds a view in each transaction that reads it, and says whether it may be read yet.
pub(crate) trait ViewSource: Send + Sync {
    /// `is_first`: of what is read together, which sees all that was asked for; later pages take what is there.
    fn open<'a>(&'a self, trx: &'a Transaction, is_first: bool) -> BoxFuture<'a, Result<Opening>>;

    /// See [`View::is_waiting`].
    fn is_waiting(&self) -> bool {
        false
    }
}

/// What became of it.
pub(crate) enum Opening {
    /// It may be read, in this transaction.
    Open(Box<OpenView>),
    /// It is to be tried again, in another transaction, when this resolves.
    Wait(BoxFuture<'static, Result<()>>),
}

/// A view in a transaction.
pub(crate) struct OpenView {
    pub instance: Arc<Instance>,
    pub group: ViewGroup,
    pub tree: usize,
    pub progress: proto::ViewProgress,
    pub written: Option<Arc<dyn WrittenReduces>>,
}

/// A view of a design document, to be read. Cheap to clone.
#[derive(Clone)]
pub struct View {
    pub(crate) source: Arc<dyn ViewSource>,
    pub(crate) reader: Reader,
    pub(crate) definition: Arc<GroupDefinition>,
    /// Its place in the definition.
    pub(crate) view: usize,
    /// Of whose documents rows are read alone.
    pub(crate) partition: Option<Arc<str>>,
}

impl View {
    /// The same view as far as it is of documents in a partition: all that is read of it lies there. Of a view that is not local
    /// to partitions it has no rows.
    #[must_use]
    pub fn of_partition(self, partition: &str) -> View {
        View { partition: Some(partition.into()), ..self }
    }

    /// What its design document defines.
    pub fn definition(&self) -> &Arc<GroupDefinition> {
        &self.definition
    }

    /// Its own part of it.
    pub fn view(&self) -> Option<&ViewDefinition> {
        self.definition.views.get(self.view)
    }

    /// Its map, with all reduces of its rows.
    pub fn tree(&self) -> Option<&TreeDefinition> {
        self.definition.trees.get(self.view()?.tree)
    }

    /// Whether who reads it waits for it to be as fresh as asked: nothing of it is read by then.
    pub fn is_waiting(&self) -> bool {
        self.source.is_waiting()
    }

    /// Its reduce's place among those of its rows; `None`: it has none.
    pub fn reduce_at(&self) -> Option<usize> {
        self.view()?.reduce
    }

    /// Its reduce.
    pub fn reducer(&self) -> Option<&ReduceFunction> {
        self.tree()?.reduces.get(self.reduce_at()?)
    }
}

impl View {
    /// The order of two keys in it.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: there is no data for the collation.
    pub fn compare(&self, a: &Value<'_>, b: &Value<'_>) -> Result<Ordering> {
        let is_raw = self.tree().is_some_and(|tree| tree.is_raw);
        let unicode = || Collation::unicode().map_err(|error| Error::Corrupt(error.to_string()));
        let collation = if is_raw { Collation::raw() } else { unicode()? };
        Ok(collation.compare(a, b))
    }
}

/// Which rows of a view.
#[derive(Debug, Clone)]
pub enum Select {
    /// From one place to another.
    Range(ViewRange),
    /// Those of each of these keys, in the order of the keys. The bounds of documents are each key's.
    Keys {
        /// The keys.
        keys: Vec<Value<'static>>,
        /// As in [`ViewRange`].
        start_docid: Option<String>,
        /// As in [`ViewRange`].
        end_docid: Option<String>,
        /// As in [`ViewRange`].
        exclusive_end: bool,
    },
}

impl Default for Select {
    fn default() -> Self {
        Select::Range(ViewRange::default())
    }
}

/// From where reading begins to where it ends: of a descending reading the beginning is the upper end.
#[derive(Debug, Clone, Default)]
pub struct ViewRange {
    /// The first key.
    pub start: Option<Value<'static>>,
    /// Of the rows with this very key, from this document on.
    pub start_docid: Option<String>,
    /// The last key.
    pub end: Option<Value<'static>>,
    /// Of the rows with this very key, up to this document.
    pub end_docid: Option<String>,
    /// Without the last key, or its last document.
    pub exclusive_end: bool,
}

/// An open view, and what of it is read.
pub(super) struct Reading<'a> {
    pub trx: &'a Transaction,
    pub open: &'a OpenView,
    /// Where all lies that is read.
    pub places: RowPlaces<'a>,
    pub keys: ViewKeys,
    is_before: bool,
    pub shape: Shape,
    pub height: u8,
}

/// On which side of what a place is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Before,
    Behind,
}

impl<'a> Reading<'a> {
    pub(super) fn new(trx: &'a Transaction, open: &'a OpenView, partition: Option<&'a str>) -> Result<Reading<'a>> {
        let (trees, is_before) = shown(&open.progress);
        let (shape, height) = shape_of(trees, open.tree)?;
        let keys = open.instance.keys.view(open.group.number());
        Ok(Reading { trx, open, places: RowPlaces(partition), keys, is_before, shape, height })
    }

    /// How keys of rows and nodes are read.
    pub(super) fn reads(&self) -> GroupReads<'_> {
        GroupReads { trx: self.trx, keys: &self.keys, is_before: self.is_before }
    }

    pub(super) fn stored(&self) -> StoredTree<'_> {
        let OpenView { group, tree, written, .. } = self.open;
        StoredTree {
            reads: self.reads(),
            group,
            tree: *tree,
            written: written.as_deref(),
            known: None,
            asking: Asking::default(),
        }
    }

    /// Whether there is something to be read: what is being built is as a view without rows.
    pub(super) fn is_built(&self) -> bool {
        self.open.progress.phase == FOLLOWED
    }

    /// Rows of the view.
    pub(super) fn total(&self) -> u64 {
        shown(&self.open.progress).0.get(self.open.tree).map_or(0, |tree| tree.rows)
    }

    /// Up to where by-seq is in the view.
    pub(super) fn place(&self) -> Option<Seq> {
        let proto::ViewProgress { incarnation, stamp, .. } = &self.open.progress;
        Seq::from_slice(*incarnation, stamp).ok()
    }

    /// The place before or behind the rows with a key, or those that a document has of them.
    pub(super) async fn place_of(&self, key: &Value<'_>, id: Option<&str>, side: Side) -> Result<Vec<u8>> {
        let sort_key = self.open.group.collation(self.open.tree).sort_key(key);
        let places = self.places;
        let exactly = |element: &[u8]| match (id, side) {
            (None, Side::Before) => places.before_element(element),
            (None, Side::Behind) => places.behind_element(element),
            (Some(id), Side::Before) => places.before_document(element, id),
            (Some(id), Side::Behind) => places.behind_document(element, id),
        };
        if !sort_key.is_cut() {
            return Ok(exactly(sort_key.bytes()));
        }
        let compare = |found: &Value<'_>| self.open.group.collation(self.open.tree).compare(key, found);
        let place = self.labels().place((self.open.tree, places), &sort_key, compare).await?;
        Ok(match &place {
            Place::Label(label) => exactly(&[sort_key.bytes(), label].concat()),
            Place::Gap { .. } => at_gap(places, &sort_key, &place),
        })
    }

    /// The place before or behind the group of a long key: `level` of its items.
    pub(super) async fn place_of_group(&self, key: &Value<'_>, level: usize, side: Side) -> Result<Vec<u8>> {
        let collation = self.open.group.collation(self.open.tree);
        let (places, sort_key, group) = (self.places, collation.sort_key(key), cut_to_level(key, level));
        let compare = |found: &Value<'_>| match (collation.compare(&group, &cut_to_level(found, level)), side) {
            (Ordering::Equal, Side::Before) => Ordering::Less,
            (Ordering::Equal, Side::Behind) => Ordering::Greater,
            (other, _) => other,
        };
        let place = self.labels().place((self.open.tree, places), &sort_key, compare).await?;
        Ok(at_gap(places, &sort_key, &place))
    }

    fn labels(&self) -> Labels<'_> {
        Labels::new(self.reads(), &self.open.group, shown(&self.open.progress).0)
    }

    /// The rows of a range, in the view's order.
    pub(super) async fn range(&self, range: &ViewRange, descending: bool) -> Result<KeyRange> {
        let ViewRange { start, start_docid, end, end_docid, exclusive_end } = range;
        let start_side = if descending { Side::Behind } else { Side::Before };
        let end_side = if descending != *exclusive_end { Side::Before } else { Side::Behind };
        let start = match start {
            Some(key) => Some(self.place_of(key, start_docid.as_deref(), start_side).await?),
            None => None,
        };
        let end = match end {
            Some(key) => Some(self.place_of(key, end_docid.as_deref(), end_side).await?),
            None => None,
        };
        let (begin, end) = if descending { (end, start) } else { (start, end) };
        let (first, last) = self.places.all();
        Ok(KeyRange { begin: begin.unwrap_or(first), end: end.or(last) })
    }

    /// The same of each of some keys.
    pub(super) async fn range_of_key(&self, select: &Select, at: usize, descending: bool) -> Result<Option<KeyRange>> {
        let Select::Keys { keys, start_docid, end_docid, exclusive_end } = select else { return Ok(None) };
        let Some(key) = keys.get(at) else { return Ok(None) };
        let (start_docid, end_docid) = (start_docid.clone(), end_docid.clone());
        let (start, end) = (Some(key.clone()), Some(key.clone()));
        let range = ViewRange { start, start_docid, end, end_docid, exclusive_end: *exclusive_end };
        self.range(&range, descending).await.map(Some)
    }
}

/// Behind the label before the gap, or before all that begin so.
fn at_gap(places: RowPlaces<'_>, sort_key: &SortKey, place: &Place) -> Vec<u8> {
    match place {
        Place::Label(label) | Place::Gap { after: Some(label), .. } => {
            places.behind_element(&[sort_key.bytes(), label].concat())
        }
        Place::Gap { after: None, .. } => places.before_prefix(sort_key.bytes()),
    }
}

/// Something that is read of an open view in one transaction.
pub(super) trait PageRead: Send {
    type Page: Send;

    fn read(&mut self, reading: &Reading<'_>) -> impl Future<Output = Result<Self::Page>> + Send;
}

/// What a transaction gave.
enum Attempted<P> {
    Page(P),
    Wait(BoxFuture<'static, Result<()>>),
}

/// As of which version the pages of a query are read: all as of one, as long as FoundationDB keeps it, so that a query that does not
/// take longer sees one state of the view. What takes longer goes on with a later one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pinned(Option<(i64, Instant)>);

/// FoundationDB keeps versions for 5 s; a page is to be read in that time, too.
const PINNED_FOR: Duration = Duration::from_millis(3_500);

impl Pinned {
    fn version(self, clock: &Clock) -> Option<i64> {
        self.0.filter(|(_, since)| clock.since(*since) < PINNED_FOR).map(|(version, _)| version)
    }
}

struct OpenAndRead<'a, R> {
    view: &'a View,
    is_first: bool,
    /// As of which the first attempt reads.
    version: Option<i64>,
    read: &'a mut R,
}

impl<R: PageRead> Operation for OpenAndRead<'_, R> {
    /// With the version as of which it was read, where that is another one.
    type Output = (Attempted<R::Page>, Option<i64>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let pinned = self.version.take();
        if let Some(version) = pinned {
            trx.set_read_version(version);
        }
        match self.view.source.open(trx, self.is_first).await? {
            Opening::Wait(wait) => Ok((Attempted::Wait(wait), None)),
            Opening::Open(open) => {
                let reading = Reading::new(trx, &open, self.view.partition.as_deref())?;
                let page = self.read.read(&reading).await?;
                // It is known by now.
                let version = if pinned.is_some() { None } else { Some(trx.get_read_version().await?) };
                Ok((Attempted::Page(page), version))
            }
        }
    }
}

/// Reads a page, once the view may be read.
pub(super) async fn read_page<R: PageRead>(
    view: &View,
    is_first: bool,
    pinned: &mut Pinned,
    read: &mut R,
) -> Result<R::Page> {
    loop {
        let inner = &view.reader.inner;
        let (since, version) = (inner.clock.now(), pinned.version(&inner.clock));
        let mut operation = OpenAndRead { view, is_first, version, read };
        match transaction::read(&inner.db, &inner.metrics, &mut operation).await? {
            (Attempted::Page(page), version) => {
                if let Some(version) = version {
                    *pinned = Pinned(Some((version, since)));
                }
                return Ok(page);
            }
            (Attempted::Wait(wait), _) => wait.await?,
        }
    }
}
