//! Groups of adjacent rows, such as those of one key, or of the same first items of array keys: a summary of each
//! group.

use std::collections::VecDeque;

use futures_util::future::try_join_all;

use crate::cover::{Piece, add, pieces, sums};
use crate::shape::Shape;
use crate::tree::{Key, KeyRange, Parts, PartsOf, Tree, TreeEntry, read_all};

/// The most nodes opened in one round.
const OPENED_AT_ONCE: usize = 512;

/// A group of rows.
#[derive(Debug, Clone)]
pub struct Group<R, S> {
    /// The first row's key.
    pub first: Key,
    /// The first row, if it was read.
    pub first_row: Option<R>,
    /// The summary of its rows.
    pub summary: S,
}

/// Groups of a range, complete or its first ones.
#[derive(Debug, Clone)]
pub struct Groups<R, S> {
    /// In order.
    pub groups: Vec<Group<R, S>>,
    /// The key of the first row of the next group (`reverse`: of the last group here, before which the next one ends);
    /// `None`: the range is complete.
    pub next: Option<Key>,
}

type GroupsOf<T> = Groups<<T as Tree>::Row, <T as Tree>::Summary>;

enum RangePart<R, S> {
    /// At least one row, all of one group.
    Rows(Vec<(Key, R)>),
    Node {
        level: u8,
        key: Key,
        summary: S,
    },
}

type RangePartOf<T> = RangePart<<T as Tree>::Row, <T as Tree>::Summary>;

impl<R, S> RangePart<R, S> {
    /// The key of the first row, or the begin of the node.
    fn key(&self) -> &Key {
        static NONE: Key = Key::new();
        match self {
            RangePart::Rows(rows) => rows.first().map_or(&NONE, |(key, _)| key),
            RangePart::Node { key, .. } => key,
        }
    }

    /// Returns whether all its rows belong to the group of its key, as far as the next part's key tells.
    fn is_of_one(&self, next: Option<&Key>, are_together: impl Fn(&[u8], &[u8]) -> bool) -> bool {
        match self {
            RangePart::Rows(_) => true,
            // The first node's key is not a row's.
            RangePart::Node { key, .. } => !key.is_empty() && next.is_some_and(|next| are_together(key, next)),
        }
    }

    fn into_parts(self) -> Parts<R, S> {
        match self {
            RangePart::Rows(rows) => Parts::Rows(rows),
            RangePart::Node { summary, .. } => Parts::Summaries(vec![summary]),
        }
    }
}

/// Summarises at most `limit` groups of a range; `reverse`: the last groups, the last first.
///
/// `are_together` returns whether the rows of two keys belong to one group; the rows between them must then belong to
/// it too.
///
/// A node inside of one group is used whole. A node in which a group ends is opened, together with all other such
/// nodes. The cost is proportional to the number of groups, with some 16 entries of each level for each group. It
/// waits once for each level and 512 groups.
pub async fn groups<T: Tree>(
    tree: &T,
    shape: &Shape,
    height: u8,
    range: &KeyRange,
    limit: usize,
    reverse: bool,
    are_together: impl Fn(&[u8], &[u8]) -> bool,
) -> Result<GroupsOf<T>, T::Error> {
    let mut ahead: VecDeque<RangePartOf<T>> = VecDeque::new();
    let mut rows = Vec::new();
    for Piece { level, key, entry } in pieces(tree, shape, height, range, 1).await? {
        match entry {
            TreeEntry::Row(row) => rows.push((key, row)),
            TreeEntry::Node(summary) => {
                ahead.extend(divide(std::mem::take(&mut rows), &are_together));
                ahead.push_back(RangePart::Node { level, key, summary });
            }
        }
    }
    ahead.extend(divide(rows, &are_together));
    let mut done: Vec<(Key, Vec<RangePartOf<T>>)> = Vec::new();
    // The last part taken, in reverse.
    let mut behind: Option<Key> = None;
    loop {
        // The part is decided by its near end.
        while let Some(part) = if reverse { ahead.back() } else { ahead.front() } {
            let next = if reverse { behind.as_ref() } else { ahead.get(1).map(RangePart::key) };
            if !part.is_of_one(next, &are_together) {
                break;
            }
            let taken = if reverse { ahead.pop_back() } else { ahead.pop_front() };
            let Some(part) = taken else { break };
            if reverse {
                behind = Some(part.key().clone());
            }
            let count = done.len();
            match done.last_mut() {
                Some((first, group)) if are_together(first, part.key()) => {
                    if reverse {
                        first.clone_from(part.key());
                    }
                    group.push(part);
                }
                last if count == limit => {
                    let next = if reverse { last.map(|(first, _)| first.clone()) } else { Some(part.key().clone()) };
                    return Ok(Groups { groups: summarise(tree, done, reverse).await?, next });
                }
                _ => done.push((part.key().clone(), vec![part])),
            }
        }
        if ahead.is_empty() {
            return Ok(Groups { groups: summarise(tree, done, reverse).await?, next: None });
        }
        let wanted = limit.saturating_sub(done.len()) + 1;
        open(tree, &mut ahead, behind.as_ref(), wanted, range, reverse, &are_together).await?;
    }
}

fn divide<R, S>(rows: Vec<(Key, R)>, are_together: impl Fn(&[u8], &[u8]) -> bool) -> Vec<RangePart<R, S>> {
    let mut counts = Vec::new();
    let mut rest = rows.as_slice();
    while let [(first, _), behind @ ..] = rest {
        let is_in = |(key, _): &(Key, R)| are_together(first, key);
        let count = match behind.last() {
            Some(last) if is_in(last) => behind.len(),
            _ => {
                // Groups may be small compared with all rows, so the search for the end starts at the begin.
                let mut most = 1;
                while behind.get(most - 1).is_some_and(is_in) {
                    most *= 2;
                }
                behind.get(..most.min(behind.len())).unwrap_or_default().partition_point(is_in)
            }
        };
        counts.push(1 + count);
        rest = behind.get(count..).unwrap_or_default();
    }
    let mut rows = rows.into_iter();
    counts.into_iter().map(|count| RangePart::Rows(rows.by_ref().take(count).collect())).collect()
}

/// Replaces the first nodes (`reverse`: the last ones) in which groups may end by their entries: as many nodes as
/// groups are requested. `behind`: the part after them, if it was taken.
async fn open<T: Tree>(
    tree: &T,
    ahead: &mut VecDeque<RangePartOf<T>>,
    behind: Option<&Key>,
    wanted: usize,
    range: &KeyRange,
    reverse: bool,
    are_together: impl Fn(&[u8], &[u8]) -> bool,
) -> Result<(), T::Error> {
    let most = wanted.min(OPENED_AT_ONCE);
    let nexts = || ahead.iter().skip(1).map(|next| Some(next.key())).chain([behind]);
    let to_open = ahead.iter().zip(nexts()).enumerate().filter_map(|(at, (part, next))| match part {
        RangePart::Node { level, key, .. } if !part.is_of_one(next, &are_together) => {
            let end = next.cloned().or_else(|| range.end.clone());
            Some((at, level - 1, KeyRange { begin: key.clone(), end }))
        }
        _ => None,
    });
    let mut opened: Vec<(usize, u8, KeyRange)> = to_open.collect();
    if reverse {
        opened.drain(..opened.len().saturating_sub(most));
    } else {
        opened.truncate(most);
    }
    let found = try_join_all(opened.iter().map(|(_, level, range)| read_all(tree, *level, range))).await?;
    let mut replaced = opened.into_iter().zip(found).peekable();
    for (at, part) in std::mem::take(ahead).into_iter().enumerate() {
        match replaced.next_if(|((opened, ..), _)| *opened == at) {
            Some(((_, level, _), entries)) => ahead.extend(entries_in(level, entries, &are_together)),
            None => ahead.push_back(part),
        }
    }
    Ok(())
}

/// The entries of a node of this level.
fn entries_in<R, S>(
    level: u8,
    entries: Vec<(Key, TreeEntry<R, S>)>,
    are_together: impl Fn(&[u8], &[u8]) -> bool,
) -> Vec<RangePart<R, S>> {
    let (mut rows, mut nodes) = (Vec::new(), Vec::new());
    for (key, entry) in entries {
        match entry {
            TreeEntry::Row(row) => rows.push((key, row)),
            TreeEntry::Node(summary) => nodes.push(RangePart::Node { level, key, summary }),
        }
    }
    if rows.is_empty() { nodes } else { divide(rows, are_together) }
}

async fn summarise<T: Tree>(
    tree: &T,
    groups: Vec<(Key, Vec<RangePartOf<T>>)>,
    reverse: bool,
) -> Result<Vec<Group<T::Row, T::Summary>>, T::Error> {
    let (mut firsts, mut of) = (Vec::with_capacity(groups.len()), Vec::with_capacity(groups.len()));
    for (first, mut group) in groups {
        if reverse {
            group.reverse();
        }
        let mut all: Vec<PartsOf<T>> = Vec::new();
        group.into_iter().for_each(|part| add(&mut all, part.into_parts()));
        let first_row = match all.first() {
            Some(Parts::Rows(rows)) => rows.first().map(|(_, row)| row.clone()),
            _ => None,
        };
        firsts.push((first, first_row));
        of.push(all);
    }
    let sums = sums(tree, of).await?;
    let group =
        |((first, first_row), summary): (_, Option<T::Summary>)| Some(Group { first, first_row, summary: summary? });
    Ok(firsts.into_iter().zip(sums).filter_map(group).collect())
}
