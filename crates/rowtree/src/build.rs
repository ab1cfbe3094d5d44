//! The nodes of rows that are there already, a level after the other, a part of a level at a time.

use crate::change::level_of;
use crate::shape::Shape;
use crate::tree::{Key, KeyRange, Page, PartsOf, Tree, after, parts, read};

/// Pages that a part is made of at most, if each holds less than was asked for.
const SHORT_PAGES_MAX: usize = 8;

/// A part of a level.
#[derive(Debug, Clone)]
pub struct BuiltNodes<S> {
    /// Keys and what is to be written there.
    pub nodes: Vec<(Key, S)>,
    /// Where the next part begins; `None`: the level is through.
    pub next: Option<Key>,
    /// Whether there is nothing beside one node for all. Said of a level that was made in one part: its root.
    pub is_root: bool,
}

/// Makes nodes of a level from what lies in the one below: from `begin` on, which is empty first and later where the last part ended, some
/// `limit` entries, and at least one node. It may be done twice, and each part in a transaction of its own, as long as rows stay as they
/// are.
///
/// A tree is made by levels from 1 on until [`is_root`](BuiltNodes::is_root).
///
/// # Errors
/// The tree's.
pub async fn build<T: Tree>(
    tree: &T,
    shape: &Shape,
    level: u8,
    begin: Key,
    limit: usize,
) -> Result<BuiltNodes<T::Summary>, T::Error> {
    let (mut range, is_first) = (KeyRange { begin: begin.clone(), end: None }, begin.is_empty());
    let mut groups: Vec<(Key, Vec<_>)> = Vec::new();
    let mut current = begin;
    let (mut seen, mut next) = (0, None);
    loop {
        let limit = limit.max(2);
        let Page { entries, more } = read(tree, level - 1, &range, limit, false).await?;
        // Where a page is cut short, entries are large.
        seen += entries.len().max(limit / SHORT_PAGES_MAX);
        if let Some((last, _)) = entries.last() {
            range.begin = after(last);
        }
        for (key, entry) in entries {
            if !key.is_empty() && level_of(tree, shape, &key, &entry) >= level {
                current.clone_from(&key);
            }
            match groups.last_mut() {
                Some((begin, group)) if *begin == current => group.push((key, entry)),
                _ => groups.push((current.clone(), vec![(key, entry)])),
            }
        }
        if !more {
            break;
        }
        // The last one may go on: it begins the next part.
        if seen >= limit && groups.len() > 1 {
            next = groups.pop().map(|(begin, _)| begin);
            break;
        }
    }
    let (begins, of): (Vec<Key>, Vec<PartsOf<T>>) =
        groups.into_iter().map(|(begin, group)| (begin, parts(group))).unzip();
    let is_root = is_first && next.is_none() && begins.iter().all(Vec::is_empty);
    let summaries = if of.is_empty() { Vec::new() } else { tree.summaries(of).await? };
    Ok(BuiltNodes { nodes: begins.into_iter().zip(summaries).collect(), next, is_root })
}
