//! What a change of rows does to the nodes above them.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;

use crate::shape::Shape;
use crate::tree::{Entry, EntryOf, Key, KeyRange, Keyed, PartsOf, Summary, Tree, parts, read_all};

/// Nodes whose contents are read at once where they are neighbours.
const NEIGHBOURS_MAX: usize = 32;

/// A row that comes, goes or has another value.
#[derive(Debug, Clone)]
pub struct RowChange<R, D> {
    /// Not empty.
    pub key: Key,
    /// The bytes of the value that it had; `None`: it was not there.
    pub old_bytes: Option<usize>,
    /// What it is; `None`: it is gone.
    pub new: Option<R>,
    /// What that means for summaries; `None`: it is not known.
    pub delta: Option<D>,
}

/// What is to be written of a tree's nodes after a change of its rows.
#[derive(Debug, Clone)]
pub struct NodeChanges<S> {
    /// Level, key, and what to write there; `None`: it is to be cleared.
    pub nodes: Vec<(u8, Key, Option<S>)>,
    /// The level of the root from now on: its only node is about all rows. 0: there are no rows, and no nodes.
    pub height: u8,
    /// What the root says; `None`: there are no rows.
    pub root: Option<S>,
}

/// Entries of a level, by their keys.
type Entries<T> = BTreeMap<Key, EntryOf<T>>;

/// What a change of rows does to the nodes of a tree whose root has the level `height`.
///
/// The rows in storage are those of before, and no row is changed twice. It waits once for the nodes of each level, from above, and
/// once for each level's summaries, from below. What it reads is what lies in the nodes that change: of a level as many as
/// rows change, and one more for each that no longer begins a node; nodes that a tree [knows](Tree::known) are not read.
///
/// The rows of a node of level 1 are not read where all that change in it keep beginning a node or none, and their
/// [deltas](RowChange::delta) say what it is [from now on](Tree::adjusted).
///
/// # Errors
/// The tree's.
pub async fn change<T: Tree>(
    tree: &T,
    shape: &Shape,
    height: u8,
    rows: Vec<RowChange<T::Row, T::Delta>>,
) -> Result<NodeChanges<T::Summary>, T::Error> {
    let mut old = Touched::<T>::descend(tree, shape, height, &rows).await?;
    let mut changes: BTreeMap<Key, Option<EntryOf<T>>> =
        rows.into_iter().map(|row| (row.key, row.new.map(Entry::Row))).collect();
    let mut done = NodeChanges { nodes: Vec::new(), height: 0, root: None };
    let mut level = 0;
    loop {
        // Of the level below the one that is made now, as they are after the change.
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
        changes.extend(begins.into_iter().zip(summaries).map(|(key, summary)| (key, Some(Entry::Node(summary)))));
        if level == 1 {
            let adjusted = std::mem::take(&mut old.adjusted).into_iter();
            changes.extend(adjusted.map(|(key, summary)| (key, Some(Entry::Node(summary)))));
        }
        done.nodes.extend(changes.iter().map(|(key, change)| {
            let summary = change
                .as_ref()
                .and_then(|entry| if let Entry::Node(summary) = entry { Some(summary.clone()) } else { None });
            (level, key.clone(), summary)
        }));
        if is_root {
            break;
        }
    }
    // What was above the new root.
    for above in level + 1..=height {
        done.nodes.extend(old.nodes(above).map(|key| (above, key.clone(), None)));
    }
    done.height = if done.root.is_some() { level } else { 0 };
    Ok(done)
}

/// The entries of each run, as they are parted among the nodes of a level: where each begins, and what it is made of.
fn groups<T: Tree>(
    tree: &T,
    shape: &Shape,
    level: u8,
    runs: &[KeyRange],
    entries: Entries<T>,
) -> Vec<(Key, PartsOf<T>)> {
    let mut groups: Vec<(Key, Keyed<T>)> = Vec::new();
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

/// The highest level at which an entry begins a node. The first node of a level begins one of the next, whatever it is.
pub(crate) fn level_of<T: Tree>(tree: &T, shape: &Shape, key: &[u8], entry: &EntryOf<T>) -> u8 {
    match entry {
        Entry::Row(row) => shape.level(key, tree.value_bytes(row)),
        Entry::Node(_) if key.is_empty() => u8::MAX,
        Entry::Node(_) => shape.node_level(key),
    }
}

/// The highest levels at which a row began a node, and begins one.
fn levels<T: Tree>(tree: &T, shape: &Shape, row: &RowChange<T::Row, T::Delta>) -> (u8, u8) {
    let old_level = row.old_bytes.map_or(0, |bytes| shape.level(&row.key, bytes));
    let new_level = row.new.as_ref().map_or(0, |new| shape.level(&row.key, tree.value_bytes(new)));
    (old_level, new_level)
}

/// The part of a tree that a change is about, as it was before.
struct Touched<T: Tree> {
    /// Of each level from rows to the one below the root: what lies in the nodes of the next level that are made anew.
    entries: Vec<Entries<T>>,
    /// Of each level from 1 to the root's: what its nodes that are made anew are about.
    ranges: Vec<Vec<KeyRange>>,
    /// Nodes of level 1 that change and are not made anew, as they are from now on.
    adjusted: Vec<(Key, T::Summary)>,
    height: u8,
}

impl<T: Tree> Touched<T> {
    async fn descend(
        tree: &T,
        shape: &Shape,
        height: u8,
        rows: &[RowChange<T::Row, T::Delta>],
    ) -> Result<Touched<T>, T::Error> {
        let (mut entries, mut ranges) = (Vec::new(), vec![vec![KeyRange::all()]]);
        let levels: Vec<(u8, u8)> = rows.iter().map(|row| levels(tree, shape, row)).collect();
        let mut adjusted = Vec::new();
        for level in (1..height).rev() {
            let above = ranges.last().map(Vec::as_slice).unwrap_or_default();
            let found: Entries<T> = read_nodes(tree, level, above).await?;
            let mut touched: BTreeMap<Key, TouchedNode<'_, T::Delta>> = BTreeMap::new();
            for (row, (old_level, new_level)) in rows.iter().zip(&levels) {
                let (begin, end) = node_at(above, &found, &row.key, false);
                let delta = row.delta.as_ref().filter(|_| old_level == new_level);
                touched.entry(begin).or_insert_with(|| TouchedNode::new(end)).change(delta);
                if (new_level + 1..=*old_level).contains(&level) {
                    // What it began is the end of the node before it from now on.
                    let (begin, end) = node_at(above, &found, &row.key, true);
                    touched.entry(begin).or_insert_with(|| TouchedNode::new(end)).change(None);
                }
            }
            let mut anew = Vec::with_capacity(touched.len());
            for (begin, TouchedNode { end, deltas }) in touched {
                let known = (level == 1).then(|| found.get(&begin).zip(deltas)).flatten();
                let summary = match known {
                    Some((Entry::Node(summary), deltas)) => tree.adjusted(summary, &deltas),
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
        Ok(Touched { entries, ranges, adjusted, height })
    }

    /// What of a level is made anew: neighbours in one, as they may become one node.
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

    /// The nodes of a level that there were in what was read, the root included.
    fn nodes(&self, level: u8) -> impl Iterator<Item = &Key> {
        static ROOT: Key = Key::new();
        let root = (level == self.height && level > 0).then_some(&ROOT);
        let known = self.entries.get(usize::from(level)).into_iter().flat_map(|entries| entries.keys());
        root.into_iter().chain(known)
    }
}

/// A node in which rows change.
struct TouchedNode<'d, D> {
    end: Option<Key>,
    /// What the changes mean for it; `None`: only what lies in it tells.
    deltas: Option<Vec<&'d D>>,
}

impl<'d, D> TouchedNode<'d, D> {
    fn new(end: Option<Key>) -> Self {
        TouchedNode { end, deltas: Some(Vec::new()) }
    }

    fn change(&mut self, delta: Option<&'d D>) {
        match (&mut self.deltas, delta) {
            (Some(deltas), Some(delta)) => deltas.push(delta),
            _ => self.deltas = None,
        }
    }
}

/// The nodes of a level that lie in some nodes of the next, which are in order.
async fn read_nodes<T: Tree>(tree: &T, level: u8, above: &[KeyRange]) -> Result<Entries<T>, T::Error> {
    let mut found = Entries::<T>::new();
    // Neighbours are read together.
    let mut unknown: Vec<(KeyRange, usize)> = Vec::new();
    for range in above {
        if let Some(known) = tree.known(level, range) {
            found.extend(known.into_iter().map(|(key, summary)| (key, Entry::Node(summary))));
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
            Entry::Node(summary) => Some((key.clone(), summary.clone())),
            Entry::Row(_) => None,
        });
        tree.learn(level, range, nodes);
        found.extend(entries);
    }
    Ok(found)
}

/// What the node is about in which a key lies (`before`: in which what is just before it lies), of a level whose nodes
/// are known in some ranges.
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

/// Of ranges in order, the one in which a key lies (`before`: in which what is just before it lies).
fn holding<'r>(ranges: &'r [KeyRange], key: &Key, before: bool) -> Option<&'r KeyRange> {
    let begun = ranges.partition_point(|range| if before { range.begin < *key } else { range.begin <= *key });
    let last = ranges.get(begun.checked_sub(1)?)?;
    let ends_behind = last.is_before_end(key) || before && last.end.as_ref() == Some(key);
    ends_behind.then_some(last)
}
