//! Builds the nodes of existing rows level by level, each level in parts: of all rows, or of each [`Section`].

use crate::change::level_of;
use crate::shape::Shape;
use crate::tree::{Key, KeyRange, PartsOf, Tree, TreePage, after, parts, read};

/// The most pages of a part if pages hold fewer entries than requested.
const SHORT_PAGES_MAX: usize = 8;

/// The rows from one that begins a node of the section's level up to the next such row; the first section begins before
/// all rows. All its nodes up to that level depend on its rows alone, so sections can be built at the same time and in
/// any order. The levels above are built once all sections are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The level, from 1 on. Beyond all levels: the only section has all rows.
    pub level: u8,
    /// The key of its first row; empty: of the first row of the tree.
    pub begin: Key,
    /// The begin of the next section; `None`: there is none, or it is not known. The part that ends level 1 tells it.
    pub end: Option<Key>,
}

impl Section {
    /// Returns the section of all rows.
    pub fn all() -> Section {
        Section { level: u8::MAX, begin: Key::new(), end: None }
    }
}

/// A part of a level.
#[derive(Debug, Clone)]
pub struct BuiltNodes<S> {
    /// Keys and summaries to write.
    pub nodes: Vec<(Key, S)>,
    /// The begin of the next part; `None`: the level is complete.
    pub next: Option<Key>,
    /// The begin of the next section, if this part has come to it.
    pub end: Option<Key>,
    /// True if the level has a single node: the root. Known only for a level built in one part.
    pub is_root: bool,
}

/// Builds nodes of a level from the entries of the level below: from `begin` on (empty for the first part, then
/// [`next`](BuiltNodes::next)), about `limit` entries and at least one node. A part may be built twice, and each part
/// in its own transaction, while the rows do not change.
///
/// A tree is built by levels from 1 on until [`is_root`](BuiltNodes::is_root).
pub async fn build<T: Tree>(
    tree: &T,
    shape: &Shape,
    level: u8,
    begin: Key,
    limit: usize,
) -> Result<BuiltNodes<T::Summary>, T::Error> {
    build_section(tree, shape, level, &Section::all(), begin, limit).await
}

/// Builds nodes of a section as [`build`] those of all rows: by levels from 1 to the section's, the first part of each
/// level from the section's begin on. The section's end must be [known](Section::end) from level 2 on.
///
/// A tree has a root at a level up to the section's only if it has a single section.
pub async fn build_section<T: Tree>(
    tree: &T,
    shape: &Shape,
    level: u8,
    section: &Section,
    begin: Key,
    limit: usize,
) -> Result<BuiltNodes<T::Summary>, T::Error> {
    let (mut range, is_first) = (KeyRange { begin: begin.clone(), end: section.end.clone() }, begin.is_empty());
    let mut groups: Vec<(Key, Vec<_>)> = Vec::new();
    let mut current = begin;
    let (mut seen, mut next, mut end) = (0, None, section.end.clone());
    'read: loop {
        let limit = limit.max(2);
        let TreePage { entries, more } = read(tree, level - 1, &range, limit, false).await?;
        // A page cut short has large entries.
        seen += entries.len().max(limit / SHORT_PAGES_MAX);
        if let Some((last, _)) = entries.last() {
            range.begin = after(last);
        }
        for (key, entry) in entries {
            let begins = if key.is_empty() { 0 } else { level_of(tree, shape, &key, &entry) };
            if begins >= section.level && key > section.begin {
                end = Some(key);
                break 'read;
            }
            if begins >= level {
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
        // The last group may continue, so the next part begins with it.
        if seen >= limit && groups.len() > 1 {
            next = groups.pop().map(|(begin, _)| begin);
            break;
        }
    }
    let (begins, of): (Vec<Key>, Vec<PartsOf<T>>) =
        groups.into_iter().map(|(begin, group)| (begin, parts(group))).unzip();
    let is_root = is_first && next.is_none() && end.is_none() && begins.iter().all(Vec::is_empty);
    let summaries = if of.is_empty() { Vec::new() } else { tree.summaries(of).await? };
    Ok(BuiltNodes { nodes: begins.into_iter().zip(summaries).collect(), next, end, is_root })
}
