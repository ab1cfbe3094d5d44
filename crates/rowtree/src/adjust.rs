//! Nodes whose summaries follow from what they were and from what changes, without what lies below them.

use std::collections::BTreeMap;

use futures_util::future::{try_join, try_join_all};

use crate::change::{NodeChanges, RowChange};
use crate::tree::{Key, KeyRange, Page, Summary, Tree, after};

/// Nodes of a level, each with what changes it.
type Touched<'d, S, D> = BTreeMap<Key, (S, Vec<&'d D>)>;

/// Such nodes, of each level from 1 on, as they are after the change.
pub(crate) struct Adjusted<S>(Vec<BTreeMap<Key, S>>);

impl<S> Default for Adjusted<S> {
    fn default() -> Self {
        Adjusted(Vec::new())
    }
}

impl<S: Summary> Adjusted<S> {
    /// Reads the nodes that rows lie in, all at once. `None`: one of them is not there, would be empty, or is not known from
    /// the changes alone.
    pub(crate) async fn read<T: Tree<Summary = S>>(
        tree: &T,
        height: u8,
        rows: &[&RowChange<T::Row, T::Delta>],
    ) -> Result<Option<Adjusted<S>>, T::Error> {
        let node = |level: u8, key: &[u8]| {
            let range = KeyRange { begin: Key::new(), end: Some(after(key)) };
            async move { tree.nodes(level, &range, 1, true).await }
        };
        let reads = rows.iter().flat_map(|row| (1..height).map(|level| node(level, &row.key)));
        // The root is the same for all.
        let root = rows.first().map(|row| node(height, &row.key));
        let (reads, roots) = (try_join_all(reads.collect::<Vec<_>>()), try_join_all(root));
        let (pages, roots) = try_join(reads, roots).await?;
        let mut found: Vec<Touched<'_, S, T::Delta>> = Vec::new();
        found.resize_with(usize::from(height), BTreeMap::new);
        let mut pages = pages.into_iter();
        for row in rows {
            let Some(delta) = &row.delta else { return Ok(None) };
            for (level, nodes) in (1..=height).zip(&mut found) {
                let page: Option<Page<S>> = if level == height { roots.first().cloned() } else { pages.next() };
                let Some((key, summary)) = page.and_then(|mut page| page.entries.pop()) else { return Ok(None) };
                nodes.entry(key).or_insert_with(|| (summary, Vec::new())).1.push(delta);
            }
        }
        let mut all = Vec::with_capacity(found.len());
        for nodes in found {
            let mut adjusted = BTreeMap::new();
            for (key, (summary, deltas)) in nodes {
                match tree.adjusted(&summary, &deltas).filter(|summary| summary.rows() > 0) {
                    Some(summary) => adjusted.insert(key, summary),
                    None => return Ok(None),
                };
            }
            all.push(adjusted);
        }
        Ok(Some(Adjusted(all)))
    }

    /// Those of a level.
    pub(crate) fn take(&mut self, level: u8) -> BTreeMap<Key, S> {
        self.0.get_mut(usize::from(level) - 1).map(std::mem::take).unwrap_or_default()
    }

    /// Where nothing else changes.
    pub(crate) fn alone(mut self, height: u8) -> NodeChanges<S> {
        let mut done = NodeChanges { nodes: Vec::new(), height, root: None };
        for level in 1..=height {
            for (key, summary) in self.take(level) {
                if level == height {
                    done.root = Some(summary.clone());
                }
                done.nodes.push((level, key, Some(summary)));
            }
        }
        done
    }
}
