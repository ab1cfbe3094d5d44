//! What a tree consists of, and what it needs of whoever stores it.

use std::future::Future;

/// A row's key, as bytes that sort as rows do. The empty key is no row's: it is where the first node of each level begins.
pub type Key = Vec<u8>;

/// Keys from `begin` on and before `end`; `None`: to the end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// The first key that is in it, if it is there.
    pub begin: Key,
    /// The first that is not.
    pub end: Option<Key>,
}

impl KeyRange {
    /// All keys.
    pub fn all() -> KeyRange {
        KeyRange { begin: Key::new(), end: None }
    }

    /// Whether a key is in it.
    pub fn contains(&self, key: &[u8]) -> bool {
        *self.begin <= *key && self.is_before_end(key)
    }

    /// Whether a key is before its end.
    pub(crate) fn is_before_end(&self, key: &[u8]) -> bool {
        self.end.as_ref().is_none_or(|end| *key < **end)
    }

    /// Whether nothing can be in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.begin)
    }
}

/// What was read of a range, in order, or backwards if it was asked for so.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// Keys, and what lies there. A node lies where its first row is, or would be.
    pub entries: Vec<(Key, T)>,
    /// Whether the range goes on behind the last entry. Then there is at least one.
    pub more: bool,
}

/// What is kept of some rows together: their number, and what reductions make of them.
pub trait Summary: Clone + Send + Sync {
    /// How many rows there are.
    fn rows(&self) -> u64;
}

/// What is made one of: rows, or the summaries of nodes; at least one, in order.
#[derive(Debug, Clone)]
pub enum Parts<R, S> {
    /// Of a node of level 1, or of less than one.
    Rows(Vec<(Key, R)>),
    /// Of a node of a higher level, or of a range.
    Summaries(Vec<S>),
}

/// Where a tree lies, and how its rows are reduced.
///
/// Rows are not written by this crate, nor are nodes: callers get what they have to write.
pub trait Tree: Sync {
    /// What a row has beside its key.
    type Row: Clone + Send + Sync;
    /// What is kept of rows together.
    type Summary: Summary;
    /// What a change of a row means for summaries, where that is known without the rows that stay.
    type Delta: Send + Sync;
    /// What can go wrong.
    type Error: Send;

    /// How large a row's value is, in bytes: what was said when it was written.
    fn value_bytes(&self, row: &Self::Row) -> usize;

    /// Reads rows, at most `limit`; `reverse`: those at the end of the range, the last one first.
    fn rows(
        &self,
        range: &KeyRange,
        limit: usize,
        reverse: bool,
    ) -> impl Future<Output = Result<Page<Self::Row>, Self::Error>> + Send;

    /// Reads nodes of a level, likewise.
    fn nodes(
        &self,
        level: u8,
        range: &KeyRange,
        limit: usize,
        reverse: bool,
    ) -> impl Future<Output = Result<Page<Self::Summary>, Self::Error>> + Send;

    /// What a summary is after some changes of its rows; `None`: only the rows tell. It must be the one that would be made of them.
    fn adjusted(&self, _summary: &Self::Summary, _deltas: &[&Self::Delta]) -> Option<Self::Summary> {
        None
    }

    /// All nodes of a level in a range that begins and ends with nodes, if they are known as they lie in storage without being read.
    fn known(&self, _level: u8, _range: &KeyRange) -> Option<Vec<(Key, Self::Summary)>> {
        None
    }

    /// Such nodes, which were not known and have been read.
    fn learn(&self, _level: u8, _range: KeyRange, _nodes: impl Iterator<Item = (Key, Self::Summary)>) {}

    /// Makes one summary of each of these: all at once, as a function may be asked.
    fn summaries(
        &self,
        of: Vec<Parts<Self::Row, Self::Summary>>,
    ) -> impl Future<Output = Result<Vec<Self::Summary>, Self::Error>> + Send;
}

/// A row or a node.
#[derive(Debug, Clone)]
pub(crate) enum Entry<R, S> {
    Row(R),
    Node(S),
}

/// What a tree's entries are.
pub(crate) type EntryOf<T> = Entry<<T as Tree>::Row, <T as Tree>::Summary>;

/// Entries of one level with their keys, in order.
pub(crate) type Keyed<T> = Vec<(Key, EntryOf<T>)>;

/// What a tree makes a summary of.
pub(crate) type PartsOf<T> = Parts<<T as Tree>::Row, <T as Tree>::Summary>;

/// Reads rows (level 0) or nodes.
pub(crate) async fn read<T: Tree>(
    tree: &T,
    level: u8,
    range: &KeyRange,
    limit: usize,
    reverse: bool,
) -> Result<Page<EntryOf<T>>, T::Error> {
    fn of<A, B>(page: Page<A>, entry: impl Fn(A) -> B) -> Page<B> {
        let entries = page.entries.into_iter().map(|(key, found)| (key, entry(found))).collect();
        Page { entries, more: page.more }
    }
    match level {
        0 => Ok(of(tree.rows(range, limit, reverse).await?, Entry::Row)),
        _ => Ok(of(tree.nodes(level, range, limit, reverse).await?, Entry::Node)),
    }
}

/// How many entries are asked for at once where all of a range are wanted.
pub(crate) const PAGE_ENTRIES: usize = 1_024;

/// Reads all of a range, which is that of a node.
pub(crate) async fn read_all<T: Tree>(tree: &T, level: u8, range: &KeyRange) -> Result<Keyed<T>, T::Error> {
    let mut range = range.clone();
    let mut all = Vec::new();
    loop {
        let page = read(tree, level, &range, PAGE_ENTRIES, false).await?;
        all.extend(page.entries);
        let Some((last, _)) = all.last().filter(|_| page.more) else { return Ok(all) };
        range.begin = after(last);
    }
}

/// The first key behind one.
pub(crate) fn after(key: &[u8]) -> Key {
    [key, &[0]].concat()
}

/// What makes one of entries, which are all rows or all nodes and at least one.
pub(crate) fn parts<R, S>(entries: Vec<(Key, Entry<R, S>)>) -> Parts<R, S> {
    let (mut rows, mut summaries) = (Vec::new(), Vec::new());
    for (key, entry) in entries {
        match entry {
            Entry::Row(row) => rows.push((key, row)),
            Entry::Node(summary) => summaries.push(summary),
        }
    }
    if summaries.is_empty() { Parts::Rows(rows) } else { Parts::Summaries(summaries) }
}
