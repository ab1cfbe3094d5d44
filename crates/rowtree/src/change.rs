//! The effect of row changes on the nodes above them.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;

use crate::shape::Shape;
use crate::tree::{EntryOf, Key, KeyRange, KeyedEntries, PartsOf, Summary, Tree, TreeEntry, parts, read_all};

/// The most adjacent nodes whose entries are read in one request.
const NEIGHBOURS_MAX: usize = 32;

/// An insertion, a removal or a new value of a row.
#[derive(Debug, Clone)]
pub struct RowChange<R, D> {
    /// The row's key; not empty.
    pub key: Key,
    /// The bytes of the old value; `None`: the row is new.
    pub old_bytes: Option<usize>,
    /// The new row; `None`: the row is removed.
    pub new: Option<R>,
    /// The change's effect on summaries; `None`: unknown.
    pub delta: Option<D>,
}

/// The changes of a tree's nodes after a change of its rows.
#[derive(Debug, Clone)]
pub struct NodeChanges<S> {
    /// Level, key and summary to write; `None`: the node is cleared.
    pub nodes: Vec<(u8, Key, Option<S>)>,
    /// The new level of the root, whose only node covers all rows. 0: no rows and no nodes.
    pub height: u8,
    /// The root's summary; `None`: there are no rows.
    pub root: Option<S>,
}

type Entries<T> = BTreeMap<Key, EntryOf<T>>;

/// Computes the node changes of a tree whose root has the level `height`.
///
/// Storage must still hold the old rows, and no row may be changed twice. The function waits once for the nodes of
/// each level, top down, and once for the summaries of each level, bottom up. It reads the entries of the nodes that
/// change: on each level as many nodes as rows change, and one more for each row that no longer begins a node. Nodes
/// that the tree [knows](Tree::known) are not read.
///
/// The rows of a node of level 1 are not read if every changed row in it keeps its level and the
/// [deltas](RowChange::delta) give the [adjusted](Tree::adjusted) summary.
pub async fn change<T: Tree>(
    tree: &T,
    shape: &Shape,
    height: u8,
    rows: Vec<RowChange<T::Row, T::Delta>>,
) -> Result<NodeChanges<T::Summary>, T::Error> {
    let mut old = ChangedPart::<T>::descend(tree, shape, height, &rows).await?;
    let mut changes: BTreeMap<Key, Option<EntryOf<T>>> =
        rows.into_iter().map(|row| (row.key, row.new.map(TreeEntry::Row))).collect();
    let mut done = NodeChanges { nodes: Vec::new(), height: 0, root: None };
    let mut level = 0;
    loop {
        // The entries of the level below, after the change.
        let mut entries = old.entries.get_mut(usize::from(level)).map(std::mem::take).unwrap_or_default();
        for (key, change) in std::mem::take(&mut changes) {
            match change {
                Some(entry) => entries.insert(key, entry),
                None => entries.remove(&key),
            };
        }
        level += 1;
        let runs = old.runs(level);
        let groups = groups(tree, shape, level, &runs, entries);
        let gone = old.nodes(level).filter(|key| holding(&runs, key, false).is_some());
        changes.extend(gone.map(|key| (key.clone(), None)));
        let (begins, of): (Vec<Key>, Vec<_>) = groups.into_iter().unzip();
        let is_root = runs == [KeyRange::all()] && begins.iter().all(Vec::is_empty);
        let summaries = if of.is_empty() { Vec::new() } else { tree.summaries(of).await? };
        if is_root {
            done.root = summaries.first().cloned();
        }
        changes.extend(begins.into_iter().zip(summaries).map(|(key, summary)| (key, Some(TreeEntry::Node(summary)))));
        if level == 1 {
            let adjusted = std::mem::take(&mut old.adjusted).into_iter();
            changes.extend(adjusted.map(|(key, summary)| (key, Some(TreeEntry::Node(summary)))));
        }
        done.nodes.extend(changes.iter().map(|(key, change)| {
            let summary = change
                .as_ref()
                .and_then(|entry| if let TreeEntry::Node(summary) = entry { Some(summary.clone()) } else { None });
            (level, key.clone(), summary)
        }));
        if is_root {
            break;
        }
    }
    // The levels above the new root.
    for above in level + 1..=height {
        done.nodes.extend(old.nodes(above).map(|key| (above, key.clone(), None)));
    }
    done.height = if done.root.is_some() { level } else { 0 };
    Ok(done)
}

/// Divides the entries of each run among the nodes of a level: the begin and the parts of each node.
fn groups<T: Tree>(
    tree: &T,
    shape: &Shape,
    level: u8,
    runs: &[KeyRange],
    entries: Entries<T>,
) -> Vec<(Key, PartsOf<T>)> {
    let mut groups: Vec<(Key, KeyedEntries<T>)> = Vec::new();
    let (mut runs, mut run_of_last) = (runs.iter().peekable(), None);
    for (key, entry) in entries {
        while runs.next_if(|run| !run.is_before_end(&key)).is_some() {}
        let Some(run) = runs.peek().filter(|run| run.begin <= key) else { continue };
        let begins = level_of(tree, shape, &key, &entry) >= level;
        match groups.last_mut() {
            Some((_, group)) if !begins && run_of_last == Some(&run.begin) => group.push((key, entry)),
            _ => groups.push((if begins { key.clone() } else { run.begin.clone() }, vec![(key, entry)])),
        }
        run_of_last = Some(&run.begin);
    }
    groups.into_iter().map(|(begin, group)| (begin, parts(group))).collect()
}

/// The highest level at which an entry begins a node. The first node of a level always begins one of the next.
pub(crate) fn level_of<T: Tree>(tree: &T, shape: &Shape, key: &[u8], entry: &EntryOf<T>) -> u8 {
    match entry {
        TreeEntry::Row(row) => shape.level(key, tree.value_bytes(row)),
        TreeEntry::Node(_) if key.is_empty() => u8::MAX,
        TreeEntry::Node(_) => shape.node_level(key),
    }
}

/// The highest levels at which a row began a node before the change, and begins one after it.
fn levels<T: Tree>(tree: &T, shape: &Shape, row: &RowChange<T::Row, T::Delta>) -> (u8, u8) {
    let old_level = row.old_bytes.map_or(0, |bytes| shape.level(&row.key, bytes));
    let new_level = row.new.as_ref().map_or(0, |new| shape.level(&row.key, tree.value_bytes(new)));
    (old_level, new_level)
}

/// The part of a tree that a change touches, before the change.
struct ChangedPart<T: Tree> {
    /// For each level from rows to the one below the root: the entries of the next level's nodes that are rebuilt.
    entries: Vec<Entries<T>>,
    /// For each level from 1 to the root's: the ranges of the nodes that are rebuilt.
    ranges: Vec<Vec<KeyRange>>,
    /// Nodes of level 1 that change without being rebuilt, with their new summaries.
    adjusted: Vec<(Key, T::Summary)>,
    height: u8,
}

impl<T: Tree> ChangedPart<T> {
    async fn descend(
        tree: &T,
        shape: &Shape,
        height: u8,
        rows: &[RowChange<T::Row, T::Delta>],
    ) -> Result<ChangedPart<T>, T::Error> {
        let (mut entries, mut ranges) = (Vec::new(), vec![vec![KeyRange::all()]]);
        let levels: Vec<(u8, u8)> = rows.iter().map(|row| levels(tree, shape, row)).collect();
        let mut adjusted = Vec::new();
        for level in (1..height).rev() {
            let above = ranges.last().map(Vec::as_slice).unwrap_or_default();
            let found: Entries<T> = read_nodes(tree, level, above).await?;
            let mut touched: BTreeMap<Key, ChangedNode<'_, T::Delta>> = BTreeMap::new();
            for (row, (old_level, new_level)) in rows.iter().zip(&levels) {
                let (begin, end) = node_at(above, &found, &row.key, false);
                let delta = row.delta.as_ref().filter(|_| old_level == new_level);
                touched.entry(begin).or_insert_with(|| ChangedNode::new(end)).change(delta);
                if (new_level + 1..=*old_level).contains(&level) {
                    // Its rows join the node before it.
                    let (begin, end) = node_at(above, &found, &row.key, true);
                    touched.entry(begin).or_insert_with(|| ChangedNode::new(end)).change(None);
                }
            }
            let mut anew = Vec::with_capacity(touched.len());
            for (begin, ChangedNode { end, deltas }) in touched {
                let known = (level == 1).then(|| found.get(&begin).zip(deltas)).flatten();
                let summary = match known {
                    Some((TreeEntry::Node(summary), deltas)) => tree.adjusted(summary, &deltas),
                    _ => None,
                };
                match summary.filter(|summary| summary.rows() > 0) {
                    Some(summary) => adjusted.push((begin, summary)),
                    None => anew.push(KeyRange { begin, end }),
                }
            }
            ranges.push(anew);
            entries.push(found);
        }
        if height > 0 {
            let above = ranges.last().map(Vec::as_slice).unwrap_or_default();
            let read = try_join_all(above.iter().map(|range| read_all(tree, 0, range))).await?;
            entries.push(read.into_iter().flatten().collect());
        }
        entries.reverse();
        ranges.reverse();
        Ok(ChangedPart { entries, ranges, adjusted, height })
    }

    /// The ranges of a level that are rebuilt, with neighbours merged, because they may become one node.
    fn runs(&self, level: u8) -> Vec<KeyRange> {
        if level > self.height {
            return vec![KeyRange::all()];
        }
        let mut runs: Vec<KeyRange> = Vec::new();
        for range in self.ranges.get(usize::from(level) - 1).into_iter().flatten() {
            match runs.last_mut() {
                Some(last) if last.end.as_ref() == Some(&range.begin) => last.end.clone_from(&range.end),
                _ => runs.push(range.clone()),
            }
        }
        runs
    }

    /// The old nodes of a level among the entries that were read, including the root.
    fn nodes(&self, level: u8) -> impl Iterator<Item = &Key> {
        static ROOT: Key = Key::new();
        let root = (level == self.height && level > 0).then_some(&ROOT);
        let known = self.entries.get(usize::from(level)).into_iter().flat_map(|entries| entries.keys());
        root.into_iter().chain(known)
    }
}

struct ChangedNode<'d, D> {
    end: Option<Key>,
    /// The deltas of its changes; `None`: the node must be rebuilt from its rows.
    deltas: Option<Vec<&'d D>>,
}

impl<'d, D> ChangedNode<'d, D> {
    fn new(end: Option<Key>) -> Self {
        ChangedNode { end, deltas: Some(Vec::new()) }
    }

    fn change(&mut self, delta: Option<&'d D>) {
        match (&mut self.deltas, delta) {
            (Some(deltas), Some(delta)) => deltas.push(delta),
            _ => self.deltas = None,
        }
    }
}

/// Reads the nodes of a level inside of nodes of the next, which are in order.
async fn read_nodes<T: Tree>(tree: &T, level: u8, above: &[KeyRange]) -> Result<Entries<T>, T::Error> {
    let mut found = Entries::<T>::new();
    // Neighbours are read in one request.
    let mut unknown: Vec<(KeyRange, usize)> = Vec::new();
    for range in above {
        if let Some(known) = tree.known(level, range) {
            found.extend(known.into_iter().map(|(key, summary)| (key, TreeEntry::Node(summary))));
            continue;
        }
        match unknown.last_mut() {
            Some((last, count)) if last.end.as_ref() == Some(&range.begin) && *count < NEIGHBOURS_MAX => {
                last.end.clone_from(&range.end);
                *count += 1;
            }
            _ => unknown.push((range.clone(), 1)),
        }
    }
    let read = try_join_all(unknown.iter().map(|(range, _)| read_all(tree, level, range))).await?;
    for ((range, _), entries) in unknown.into_iter().zip(read) {
        let nodes = entries.iter().filter_map(|(key, entry)| match entry {
            TreeEntry::Node(summary) => Some((key.clone(), summary.clone())),
            TreeEntry::Row(_) => None,
        });
        tree.learn(level, range, nodes);
        found.extend(entries);
    }
    Ok(found)
}

/// Returns the range of the node that contains a key (`before`: the key's predecessor), on a level whose nodes are
/// known in some ranges.
fn node_at<E>(ranges: &[KeyRange], known: &BTreeMap<Key, E>, key: &Key, before: bool) -> (Key, Option<Key>) {
    let Some(range) = holding(ranges, key, before) else {
        debug_assert!(false, "a key that changes lies in no node that was read");
        return (key.clone(), None);
    };
    let last = match before {
        true => known.range(..key.clone()).next_back(),
        false => known.range(..=key.clone()).next_back(),
    };
    let begin = last
        .map(|(begin, _)| begin.clone())
        .filter(|begin| range.begin <= *begin)
        .unwrap_or_else(|| range.begin.clone());
    let next = known.range(begin.clone()..).map(|(next, _)| next).find(|next| **next > begin);
    let end = next.filter(|next| range.is_before_end(next)).cloned().or_else(|| range.end.clone());
    (begin, end)
}

/// Returns the range that contains a key (`before`: the key's predecessor); `ranges` are in order.
fn holding<'r>(ranges: &'r [KeyRange], key: &Key, before: bool) -> Option<&'r KeyRange> {
    let begun = ranges.partition_point(|range| if before { range.begin < *key } else { range.begin <= *key });
    let last = ranges.get(begun.checked_sub(1)?)?;
    let ends_behind = last.is_before_end(key) || before && last.end.as_ref() == Some(key);
    ends_behind.then_some(last)
}
