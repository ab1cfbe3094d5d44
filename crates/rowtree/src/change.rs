//! What a change of rows does to the nodes above them.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{try_join, try_join_all};

use crate::adjust::Adjusted;
use crate::shape::Shape;
use crate::tree::{Entry, EntryOf, Key, KeyRange, Keyed, PartsOf, Tree, parts, read_all};

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
/// rows change, and one more for each that no longer begins a node.
///
/// Rows that begin no node, neither before nor after, and whose [delta](RowChange::delta) is known cost one node of each level, where
/// these can be [adjusted](Tree::adjusted): without another row, and all at once.
///
/// # Errors
/// The tree's.
pub async fn change<T: Tree>(
    tree: &T,
    shape: &Shape,
    height: u8,
    rows: Vec<RowChange<T::Row, T::Delta>>,
) -> Result<NodeChanges<T::Summary>, T::Error> {
    let begins = |row: &RowChange<T::Row, T::Delta>| {
        let (old_level, new_level) = levels(tree, shape, row);
        row.delta.is_none() || old_level > 0 || new_level > 0
    };
    let (others, plain): (Vec<_>, Vec<_>) = rows.iter().partition(|row| begins(row));
    let descend = async {
        match others.as_slice() {
            [] if !plain.is_empty() => Ok(Touched::none(height)),
            others => Touched::<T>::descend(tree, shape, height, others).await,
        }
    };
    let adjust = async { if height == 0 { Ok(None) } else { Adjusted::read(tree, height, &plain).await } };
    let (mut old, mut adjusted) = match (plain.is_empty(), try_join(descend, adjust).await?) {
        (false, (_, None)) => {
            let all: Vec<_> = rows.iter().collect();
            (Touched::<T>::descend(tree, shape, height, &all).await?, Adjusted::default())
        }
        (_, (old, adjusted)) => (old, adjusted.unwrap_or_default()),
    };
    if old.ranges.is_empty() && height > 0 {
        return Ok(adjusted.alone(height));
    }
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
        let outside = adjusted.take(level).into_iter().filter(|(key, _)| holding(&runs, key, false).is_none());
        changes.extend(outside.map(|(key, summary)| (key, Some(Entry::Node(summary)))));
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
    /// Of each level from rows to the one below the root: what lies in the nodes of the next level that change.
    entries: Vec<Entries<T>>,
    /// Of each level from 1 to the root's: what its nodes that change are about.
    ranges: Vec<Vec<KeyRange>>,
    height: u8,
}

impl<T: Tree> Touched<T> {
    /// Nothing of it.
    fn none(height: u8) -> Touched<T> {
        Touched { entries: Vec::new(), ranges: Vec::new(), height }
    }

    async fn descend(
        tree: &T,
        shape: &Shape,
        height: u8,
        rows: &[&RowChange<T::Row, T::Delta>],
    ) -> Result<Touched<T>, T::Error> {
        let (mut entries, mut ranges) = (Vec::new(), vec![vec![KeyRange::all()]]);
        for level in (0..height).rev() {
            let above = ranges.last().map(Vec::as_slice).unwrap_or_default();
            let read = try_join_all(above.iter().map(|range| read_all(tree, level, range))).await?;
            let found: Entries<T> = read.into_iter().flatten().collect();
            if level > 0 {
                let mut touched = BTreeSet::new();
                for row in rows {
                    let (old_level, new_level) = levels(tree, shape, row);
                    touched.insert(node_at(above, &found, &row.key, false));
                    if (new_level + 1..=old_level).contains(&level) {
                        // What it began is the end of the node before it from now on.
                        touched.insert(node_at(above, &found, &row.key, true));
                    }
                }
                let range = |(begin, end)| KeyRange { begin, end };
                ranges.push(touched.into_iter().map(range).collect());
            }
            entries.push(found);
        }
        entries.reverse();
        ranges.reverse();
        Ok(Touched { entries, ranges, height })
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
