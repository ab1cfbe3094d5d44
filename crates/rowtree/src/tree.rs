//! The parts of a tree, and the trait of its storage.

use std::future::Future;

/// A row's key, as bytes that sort as rows do. No row has the empty key, which begins the first node of each level.
pub type Key = Vec<u8>;

/// Keys in `[begin, end)`; `None`: unbounded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// The begin, inclusive.
    pub begin: Key,
    /// The end, exclusive.
    pub end: Option<Key>,
}

impl KeyRange {
    /// Returns the range of all keys.
    pub fn all() -> KeyRange {
        KeyRange { begin: Key::new(), end: None }
    }

    /// Returns whether a key is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        *self.begin <= *key && self.is_before_end(key)
    }

    pub(crate) fn is_before_end(&self, key: &[u8]) -> bool {
        self.end.as_ref().is_none_or(|end| *key < **end)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.begin)
    }
}

/// A page of a range, in order or in reverse.
#[derive(Debug, Clone)]
pub struct TreePage<T> {
    /// Keys and values. The key of a node is that of its first row.
    pub entries: Vec<(Key, T)>,
    /// True if more entries follow the last one; then the page has at least one.
    pub more: bool,
}

/// The aggregate of some rows: their number and their reductions.
pub trait Summary: Clone + Send + Sync {
    /// The number of rows.
    fn rows(&self) -> u64;
}

/// The input of a summary: rows, or summaries of nodes; at least one, in order.
#[derive(Debug, Clone)]
pub enum Parts<R, S> {
    /// The rows of a node of level 1, or a part of them.
    Rows(Vec<(Key, R)>),
    /// The summaries of a node of a higher level, or of a range.
    Summaries(Vec<S>),
}

/// The storage of a tree, and the reduction of its rows.
///
/// This crate writes neither rows nor nodes: callers get the changes to write.
pub trait Tree: Sync {
    /// The data of a row beside its key.
    type Row: Clone + Send + Sync;
    /// The aggregate of rows.
    type Summary: Summary;
    /// The effect of a row's change on summaries, if it is known without the other rows.
    type Delta: Send + Sync;
    /// An error of storage or of a reduction.
    type Error: Send;

    /// Returns the size of a row's value in bytes, as given when it was written.
    fn value_bytes(&self, row: &Self::Row) -> usize;

    /// Reads at most `limit` rows; `reverse`: from the end of the range, the last one first.
    fn rows(
        &self,
        range: &KeyRange,
        limit: usize,
        reverse: bool,
    ) -> impl Future<Output = Result<TreePage<Self::Row>, Self::Error>> + Send;

    /// Reads nodes of a level in the same way.
    fn nodes(
        &self,
        level: u8,
        range: &KeyRange,
        limit: usize,
        reverse: bool,
    ) -> impl Future<Output = Result<TreePage<Self::Summary>, Self::Error>> + Send;

    /// Returns a summary after some changes of its rows; `None`: it needs the rows. It must equal the summary computed
    /// from the rows.
    fn adjusted(&self, _summary: &Self::Summary, _deltas: &[&Self::Delta]) -> Option<Self::Summary> {
        None
    }

    /// Returns all nodes of a level in a range of whole nodes, if they are cached as stored.
    fn known(&self, _level: u8, _range: &KeyRange) -> Option<Vec<(Key, Self::Summary)>> {
        None
    }

    /// Caches nodes that [`Tree::known`] lacked and that were read.
    fn learn(&self, _level: u8, _range: KeyRange, _nodes: impl Iterator<Item = (Key, Self::Summary)>) {}

    /// Computes one summary for each of these, in one batch, because an external function may compute it.
    fn summaries(
        &self,
        of: Vec<Parts<Self::Row, Self::Summary>>,
    ) -> impl Future<Output = Result<Vec<Self::Summary>, Self::Error>> + Send;
}

#[derive(Debug, Clone)]
pub(crate) enum TreeEntry<R, S> {
    Row(R),
    Node(S),
}

pub(crate) type EntryOf<T> = TreeEntry<<T as Tree>::Row, <T as Tree>::Summary>;

/// Entries of one level with their keys, in order.
pub(crate) type KeyedEntries<T> = Vec<(Key, EntryOf<T>)>;

pub(crate) type PartsOf<T> = Parts<<T as Tree>::Row, <T as Tree>::Summary>;

/// Reads rows (level 0) or nodes.
pub(crate) async fn read<T: Tree>(
    tree: &T,
    level: u8,
    range: &KeyRange,
    limit: usize,
    reverse: bool,
) -> Result<TreePage<EntryOf<T>>, T::Error> {
    fn of<A, B>(page: TreePage<A>, entry: impl Fn(A) -> B) -> TreePage<B> {
        let entries = page.entries.into_iter().map(|(key, found)| (key, entry(found))).collect();
        TreePage { entries, more: page.more }
    }
    match level {
        0 => Ok(of(tree.rows(range, limit, reverse).await?, TreeEntry::Row)),
        _ => Ok(of(tree.nodes(level, range, limit, reverse).await?, TreeEntry::Node)),
    }
}

/// The page size of a read of a whole range.
pub(crate) const PAGE_ENTRIES: usize = 1_024;

/// Reads all entries of a node's range.
pub(crate) async fn read_all<T: Tree>(tree: &T, level: u8, range: &KeyRange) -> Result<KeyedEntries<T>, T::Error> {
    let mut range = range.clone();
    let mut all = Vec::new();
    loop {
        let page = read(tree, level, &range, PAGE_ENTRIES, false).await?;
        all.extend(page.entries);
        let Some((last, _)) = all.last().filter(|_| page.more) else { return Ok(all) };
        range.begin = after(last);
    }
}

pub(crate) fn after(key: &[u8]) -> Key {
    [key, &[0]].concat()
}

/// Converts entries, all rows or all nodes and at least one, to the input of a summary.
pub(crate) fn parts<R, S>(entries: Vec<(Key, TreeEntry<R, S>)>) -> Parts<R, S> {
    let (mut rows, mut summaries) = (Vec::new(), Vec::new());
    for (key, entry) in entries {
        match entry {
            TreeEntry::Row(row) => rows.push((key, row)),
            TreeEntry::Node(summary) => summaries.push(summary),
        }
    }
    if summaries.is_empty() { Parts::Rows(rows) } else { Parts::Summaries(summaries) }
}
