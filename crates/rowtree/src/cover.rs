//! Summaries of ranges, assembled from few rows and nodes; the count of a range; the nth row.

use futures_util::future::{join, join_all};

use crate::change::level_of;
use crate::shape::Shape;
use crate::tree::{Key, KeyRange, Parts, PartsOf, Summary, Tree, TreeEntry, TreePage, after, parts, read, read_all};

/// Entries read at first at each end of a range, on each level: one of 16 ends the needed part of a level.
const END_ENTRIES: usize = 40;

/// Rows read at first: those of one or two nodes with small rows.
const END_ROWS: usize = 100;

/// The factor for a count, which usually has one end and runs beside the read of the rows after it. With it one count
/// in some hundred waits longer, and not one in ten.
const COUNT_ENDS: usize = 2;

/// Entries read at once when the first read was not enough.
const MORE_ENTRIES: usize = 200;

/// A row or a node that lies completely inside of a range.
pub(crate) struct Piece<R, S> {
    /// The level; 0: a row.
    pub level: u8,
    pub key: Key,
    pub entry: TreeEntry<R, S>,
}

pub(crate) type PieceOf<T> = Piece<<T as Tree>::Row, <T as Tree>::Summary>;

/// Returns the pieces of a range in order: rows at its ends, and nodes of each level between, some 16 per level.
///
/// Usually waits once, because it requests the entries at the range's ends on all levels together. `ends` multiplies
/// the number of entries requested.
pub(crate) async fn pieces<T: Tree>(
    tree: &T,
    shape: &Shape,
    height: u8,
    range: &KeyRange,
    ends: usize,
) -> Result<Vec<PieceOf<T>>, T::Error> {
    if height == 0 || range.is_empty() {
        return Ok(Vec::new());
    }
    let ends = (0..height).map(|level| {
        let forward = End::begin(tree, level, range, false, if range.begin.is_empty() { 0 } else { ends });
        let backward = End::begin(tree, level, range, true, if range.end.is_none() { 0 } else { ends });
        join(forward, backward)
    });
    let (mut left, mut right) = (Vec::new(), Vec::new());
    // The part of the range that neither end has covered. From level 1 on a node begins at both of its ends.
    let mut rest = range.clone();
    for (level, (forward, backward)) in (0..height).zip(join_all(ends).await) {
        let (mut forward, mut backward) = (forward?, backward?);
        // The empty key begins a node of each level.
        if !rest.begin.is_empty() {
            let mut next = None;
            while let Some((key, entry)) = forward.next(tree, &rest).await? {
                if level_of(tree, shape, &key, &entry) > level {
                    next = Some(key);
                    break;
                }
                left.push(Piece { level, key, entry });
            }
            let Some(next) = next else {
                // The range ends before a node of the next level begins.
                left.extend(right.into_iter().rev());
                return Ok(left);
            };
            rest.begin = next;
        }
        if rest.end.as_ref().is_some_and(|end| !end.is_empty()) {
            let mut last = rest.begin.clone();
            while let Some((key, entry)) = backward.next(tree, &rest).await? {
                let begins = level_of(tree, shape, &key, &entry) > level;
                right.push(Piece { level, key: key.clone(), entry });
                if begins {
                    last = key;
                    break;
                }
            }
            rest.end = Some(last);
        }
        if rest.is_empty() {
            break;
        }
    }
    if !rest.is_empty() {
        let root = read(tree, height, &rest, 1, false).await?;
        left.extend(root.entries.into_iter().map(|(key, entry)| Piece { level: height, key, entry }));
    }
    left.extend(right.into_iter().rev());
    Ok(left)
}

/// The entries at one end of a range, on one level.
struct End<R, S> {
    level: u8,
    reverse: bool,
    /// Entries that were read and not taken, the next one last.
    read: Vec<(Key, TreeEntry<R, S>)>,
    more: bool,
    last: Option<Key>,
}

impl<R: Clone + Send + Sync, S: Summary> End<R, S> {
    /// `times` multiplies the number of entries read; 0: the range is unbounded here, and nothing is requested.
    async fn begin<T>(tree: &T, level: u8, range: &KeyRange, reverse: bool, times: usize) -> Result<End<R, S>, T::Error>
    where
        T: Tree<Row = R, Summary = S>,
    {
        let mut end = End { level, reverse, read: Vec::new(), more: times > 0, last: None };
        if times > 0 {
            let entries = if level == 0 { END_ROWS } else { END_ENTRIES };
            end.take(read(tree, level, range, times * entries, reverse).await?);
        }
        Ok(end)
    }

    fn take(&mut self, page: TreePage<TreeEntry<R, S>>) {
        self.last = page.entries.last().map(|(key, _)| key.clone()).or_else(|| self.last.take());
        self.read = page.entries;
        self.read.reverse();
        self.more = page.more;
    }

    /// Returns the next entry in a range, which only shrinks from call to call.
    async fn next<T>(&mut self, tree: &T, range: &KeyRange) -> Result<Option<(Key, TreeEntry<R, S>)>, T::Error>
    where
        T: Tree<Row = R, Summary = S>,
    {
        loop {
            while let Some((key, entry)) = self.read.pop() {
                if range.contains(&key) {
                    return Ok(Some((key, entry)));
                }
            }
            if !self.more {
                return Ok(None);
            }
            let mut range = range.clone();
            match &self.last {
                Some(last) if self.reverse && range.is_before_end(last) => range.end = Some(last.clone()),
                Some(last) if !self.reverse && *last >= range.begin => range.begin = after(last),
                _ => {}
            }
            if range.is_empty() {
                return Ok(None);
            }
            let page = read(tree, self.level, &range, MORE_ENTRIES, self.reverse).await?;
            self.take(page);
        }
    }
}

/// Summarises all rows of a range; `None`: the range is empty.
pub async fn cover<T: Tree>(
    tree: &T,
    shape: &Shape,
    height: u8,
    range: &KeyRange,
) -> Result<Option<T::Summary>, T::Error> {
    let pieces = pieces(tree, shape, height, range, 1).await?;
    let mut of = Vec::new();
    for Piece { key, entry, .. } in pieces {
        add(&mut of, parts(vec![(key, entry)]));
    }
    Ok(sums(tree, vec![of]).await?.pop().flatten())
}

/// Appends parts, merged with the last ones if both are of one type.
pub(crate) fn add<R, S>(of: &mut Vec<Parts<R, S>>, behind: Parts<R, S>) {
    match (of.last_mut(), behind) {
        (Some(Parts::Rows(rows)), Parts::Rows(behind)) => rows.extend(behind),
        (Some(Parts::Summaries(summaries)), Parts::Summaries(behind)) => summaries.extend(behind),
        (_, behind) => of.push(behind),
    }
}

/// Summarises each list of parts, in two rounds at most: first the rows, then their summaries with the nodes'. `None`
/// for an empty list.
pub(crate) async fn sums<T: Tree>(tree: &T, of: Vec<Vec<PartsOf<T>>>) -> Result<Vec<Option<T::Summary>>, T::Error> {
    let mut rows: Vec<PartsOf<T>> = Vec::new();
    // For each list: summaries, and indexes of summaries that are still to be computed.
    let mut wanted: Vec<Vec<Result<T::Summary, usize>>> = Vec::new();
    for parts in of {
        let mut parts_of = Vec::new();
        for part in parts {
            match part {
                Parts::Summaries(summaries) => parts_of.extend(summaries.into_iter().map(Ok)),
                Parts::Rows(_) => {
                    parts_of.push(Err(rows.len()));
                    rows.push(part);
                }
            }
        }
        wanted.push(parts_of);
    }
    let made = if rows.is_empty() { Vec::new() } else { tree.summaries(rows).await? };
    let filled = wanted.into_iter().map(|parts_of| {
        let summaries =
            parts_of.into_iter().filter_map(|part| part.map_or_else(|place| made.get(place).cloned(), Some));
        summaries.collect::<Vec<T::Summary>>()
    });
    let (mut done, mut several) = (Vec::new(), Vec::new());
    for mut summaries in filled {
        if summaries.len() < 2 {
            done.push(Some(summaries.pop()));
        } else {
            done.push(None);
            several.push(Parts::Summaries(summaries));
        }
    }
    let mut made = if several.is_empty() { Vec::new() } else { tree.summaries(several).await? }.into_iter();
    Ok(done.into_iter().map(|sum| sum.unwrap_or_else(|| made.next())).collect())
}

/// Counts the rows of a range. Usually waits once.
pub async fn count<T: Tree>(tree: &T, shape: &Shape, height: u8, range: &KeyRange) -> Result<u64, T::Error> {
    let pieces = pieces(tree, shape, height, range, COUNT_ENDS).await?;
    Ok(pieces.iter().map(|piece| rows_of(&piece.entry)).sum())
}

fn rows_of<R, S: Summary>(entry: &TreeEntry<R, S>) -> u64 {
    match entry {
        TreeEntry::Row(_) => 1,
        TreeEntry::Node(summary) => summary.rows(),
    }
}

/// Returns the key of the row that has `before` rows before it; `None`: there are fewer rows. Waits once for each
/// level.
pub async fn nth<T: Tree>(tree: &T, height: u8, before: u64) -> Result<Option<Key>, T::Error> {
    let (mut range, mut before) = (KeyRange::all(), before);
    for level in (0..height).rev() {
        let mut found = None;
        let mut entries = read_all(tree, level, &range).await?.into_iter().peekable();
        while let Some((key, entry)) = entries.next() {
            let rows = rows_of(&entry);
            if before < rows {
                let end = entries.peek().map(|(key, _)| key.clone()).or_else(|| range.end.take());
                found = Some(KeyRange { begin: key, end });
                break;
            }
            before -= rows;
        }
        let Some(found) = found else { return Ok(None) };
        range = found;
    }
    Ok((height > 0).then_some(range.begin))
}
