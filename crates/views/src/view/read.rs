//! Reads of views: the view, its state, and the range.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_collate::{Collation, LabelPlace, SortKey, cut_to_level};
use flatbed_databases::handles::ReadHandle;
use flatbed_databases::instance::Instance;
use flatbed_flatten::json::Value;
use flatbed_rowtree::{KeyRange, Shape};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{RowPlaces, ViewKeys};
use flatbed_store::proto;
use flatbed_store::seq::Seq;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use flatbed_store::view_definition::{GroupDefinition, TreeDefinition, ViewDefinition};
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::view::asking::ConcurrentReaders;
use crate::view::build::FOLLOWED;
use crate::view::group::{ViewGroup, shape_of};
use crate::view::labels::Labels;
use crate::view::stored::StoredTree;
use crate::view::undo::{GroupReads, shown};
use crate::view::written::WrittenReduces;

/// Opens a view in each transaction that reads it, and decides whether it may be read yet.
pub trait ViewSource: Send + Sync {
    /// `is_first`: the first page of a query, which must be as fresh as asked; later pages take the current state.
    fn open<'a>(&'a self, trx: &'a Transaction, is_first: bool) -> BoxFuture<'a, Result<OpenOutcome>>;

    /// See [`View::is_waiting`].
    fn is_waiting(&self) -> bool {
        false
    }
}

pub enum OpenOutcome {
    Open(Box<OpenView>),
    /// The caller opens it again in another transaction when this resolves.
    Wait(BoxFuture<'static, Result<()>>),
}

pub struct OpenView {
    pub instance: Arc<Instance>,
    pub group: ViewGroup,
    pub tree: usize,
    pub progress: proto::ViewProgress,
    pub written: Option<Arc<dyn WrittenReduces>>,
}

/// A view of a design document for reading. Cheap to clone.
#[derive(Clone)]
pub struct View {
    pub source: Arc<dyn ViewSource>,
    pub reader: ReadHandle,
    pub definition: Arc<GroupDefinition>,
    /// Its index in the definition.
    pub view: usize,
    /// The partition whose rows are read.
    pub partition: Option<Arc<str>>,
}

impl View {
    /// Restricts the view to the documents of a partition; reads then stay within it. A view that is not local to
    /// partitions has no such rows.
    #[must_use]
    pub fn of_partition(self, partition: &str) -> View {
        View { partition: Some(partition.into()), ..self }
    }

    /// Returns the definition of its group.
    pub fn definition(&self) -> &Arc<GroupDefinition> {
        &self.definition
    }

    /// Returns the view's part of the definition.
    pub fn view(&self) -> Option<&ViewDefinition> {
        self.definition.views.get(self.view)
    }

    /// Returns the tree of its map, with all reduces of its rows.
    pub fn tree(&self) -> Option<&TreeDefinition> {
        self.definition.trees.get(self.view()?.tree)
    }

    /// Returns whether the reader waits for the requested freshness before it reads.
    pub fn is_waiting(&self) -> bool {
        self.source.is_waiting()
    }

    /// Returns the index of its reduce among those of its rows; `None`: it has none.
    pub fn reduce_at(&self) -> Option<usize> {
        self.view()?.reduce
    }
}

impl View {
    /// Compares two keys in the view's order.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: the collation data is missing.
    pub fn compare(&self, a: &Value<'_>, b: &Value<'_>) -> Result<Ordering> {
        let is_raw = self.tree().is_some_and(|tree| tree.is_raw);
        let unicode = || Collation::unicode().map_err(|error| Error::Corrupt(error.to_string()));
        let collation = if is_raw { Collation::raw() } else { unicode()? };
        Ok(collation.compare(a, b))
    }
}

/// The rows of a view to read.
#[derive(Debug, Clone)]
pub enum Select {
    /// The rows of a range.
    Range(ViewRange),
    /// The rows of each key, in the order of the keys. The document bounds apply to each key.
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

/// A range in reading order: of a descending read the start is the upper end.
#[derive(Debug, Clone, Default)]
pub struct ViewRange {
    /// The first key.
    pub start: Option<Value<'static>>,
    /// The first document among the rows with the start key.
    pub start_docid: Option<String>,
    /// The last key.
    pub end: Option<Value<'static>>,
    /// The last document among the rows with the end key.
    pub end_docid: Option<String>,
    /// True to exclude the end key, or its last document.
    pub exclusive_end: bool,
}

pub(super) struct TreeReading<'a> {
    pub trx: &'a Transaction,
    pub open: &'a OpenView,
    /// The rows of one partition, or of all.
    pub places: RowPlaces<'a>,
    pub keys: ViewKeys,
    is_before: bool,
    pub shape: Shape,
    pub height: u8,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Before,
    Behind,
}

impl<'a> TreeReading<'a> {
    pub(super) fn new(trx: &'a Transaction, open: &'a OpenView, partition: Option<&'a str>) -> Result<TreeReading<'a>> {
        let (trees, is_before) = shown(&open.progress);
        let (shape, height) = shape_of(trees, open.tree)?;
        let keys = open.instance.keys.view(open.group.number());
        Ok(TreeReading { trx, open, places: RowPlaces(partition), keys, is_before, shape, height })
    }

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
            asking: ConcurrentReaders::default(),
        }
    }

    pub(super) fn is_built(&self) -> bool {
        self.open.progress.phase == FOLLOWED
    }

    pub(super) fn total(&self) -> u64 {
        shown(&self.open.progress).0.get(self.open.tree).map_or(0, |tree| tree.rows)
    }

    /// Returns the by-seq position up to which the view is current.
    pub(super) fn place(&self) -> Option<Seq> {
        let proto::ViewProgress { incarnation, stamp, .. } = &self.open.progress;
        Seq::from_slice(*incarnation, stamp).ok()
    }

    /// Returns the key before or behind the rows with a key, or those of a document among them.
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
            LabelPlace::Label(label) => exactly(&[sort_key.bytes(), label].concat()),
            LabelPlace::Gap { .. } => at_gap(places, &sort_key, &place),
        })
    }

    /// Returns the key before or behind the group of a long key: `level` of its items.
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

    pub(super) async fn range_of_key(&self, select: &Select, at: usize, descending: bool) -> Result<Option<KeyRange>> {
        let Select::Keys { keys, start_docid, end_docid, exclusive_end } = select else { return Ok(None) };
        let Some(key) = keys.get(at) else { return Ok(None) };
        let (start_docid, end_docid) = (start_docid.clone(), end_docid.clone());
        let (start, end) = (Some(key.clone()), Some(key.clone()));
        let range = ViewRange { start, start_docid, end, end_docid, exclusive_end: *exclusive_end };
        self.range(&range, descending).await.map(Some)
    }
}

/// Returns the key behind the label before the gap, or before all rows with the same beginning.
fn at_gap(places: RowPlaces<'_>, sort_key: &SortKey, place: &LabelPlace) -> Vec<u8> {
    match place {
        LabelPlace::Label(label) | LabelPlace::Gap { after: Some(label), .. } => {
            places.behind_element(&[sort_key.bytes(), label].concat())
        }
        LabelPlace::Gap { after: None, .. } => places.before_prefix(sort_key.bytes()),
    }
}

pub(super) trait PageReader: Send {
    type Page: Send;

    fn read(&mut self, reading: &TreeReading<'_>) -> impl Future<Output = Result<Self::Page>> + Send;
}

enum AttemptOutcome<P> {
    Page(P),
    Wait(BoxFuture<'static, Result<()>>),
}

/// The read version of a query's pages. All pages use the first one as long as FoundationDB keeps it, so that a query
/// that takes no longer sees one state of the view. A longer query continues with a later version.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PinnedVersion(Option<(i64, Instant)>);

/// FoundationDB keeps versions for 5 s; a page must be read within that time, too.
const PINNED_FOR: Duration = Duration::from_millis(3_500);

impl PinnedVersion {
    fn version(self, clock: &Clock) -> Option<i64> {
        self.0.filter(|(_, since)| clock.since(*since) < PINNED_FOR).map(|(version, _)| version)
    }
}

struct OpenAndRead<'a, R> {
    view: &'a View,
    is_first: bool,
    version: Option<i64>,
    read: &'a mut R,
}

impl<R: PageReader> Operation for OpenAndRead<'_, R> {
    /// With the read version that was used, if it is a new one.
    type Output = (AttemptOutcome<R::Page>, Option<i64>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let pinned = self.version.take();
        if let Some(version) = pinned {
            trx.set_read_version(version);
        }
        match self.view.source.open(trx, self.is_first).await? {
            OpenOutcome::Wait(wait) => Ok((AttemptOutcome::Wait(wait), None)),
            OpenOutcome::Open(open) => {
                let reading = TreeReading::new(trx, &open, self.view.partition.as_deref())?;
                let page = self.read.read(&reading).await?;
                // The transaction knows its version by now.
                let version = if pinned.is_some() { None } else { Some(trx.get_read_version().await?) };
                Ok((AttemptOutcome::Page(page), version))
            }
        }
    }
}

/// Reads a page as soon as the view may be read.
pub(super) async fn read_page<R: PageReader>(
    view: &View,
    is_first: bool,
    pinned: &mut PinnedVersion,
    read: &mut R,
) -> Result<R::Page> {
    loop {
        let inner = &view.reader.inner;
        let (since, version) = (inner.clock.now(), pinned.version(&inner.clock));
        let mut operation = OpenAndRead { view, is_first, version, read };
        match transaction::read(&inner.db, &inner.metrics, &mut operation).await? {
            (AttemptOutcome::Page(page), version) => {
                if let Some(version) = version {
                    *pinned = PinnedVersion(Some((version, since)));
                }
                return Ok(page);
            }
            (AttemptOutcome::Wait(wait), _) => wait.await?,
        }
    }
}
