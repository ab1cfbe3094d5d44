//! Caches the nodes of a group in the process that follows it, so that it does not read them again for each batch.
//!
//! Each transaction that changes nodes writes a unique mark into the group's progress. A process that reads the
//! progress with a conflict and finds the mark of its cache knows that the cache is current. Any other mark empties the
//! cache.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use flatbed_databases::limits::Limit;
use flatbed_rowtree::{Key, KeyRange};
use flatbed_store::error::{Error, Result};
use flatbed_store::proto;

use crate::view::summary::Summary;
use crate::view_updates::KnowingGroups;

/// The cache limit for all groups that a process follows, in bytes.
const ALL_BYTES_MAX: usize = 64_000_000;
const GROUP_BYTES_MAX: Limit<usize> = Limit::new(32_000_000, 20_000);

#[derive(Debug)]
pub struct KnownNodes {
    of: KnowingGroups,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    mark: Vec<u8>,
    trees: Vec<flatbed_rowtree::KnownNodes<Summary>>,
    /// The changes of the last attempt. They are current if the progress has its mark.
    attempt: Option<Attempt>,
}

#[derive(Debug, Default)]
struct Attempt {
    mark: Vec<u8>,
    nodes: Vec<ChangedNode>,
}

/// A node to be written; `None`: it is cleared.
#[derive(Debug)]
pub(super) struct ChangedNode {
    pub tree: usize,
    pub level: u8,
    pub from: Key,
    /// With its stored size in bytes.
    pub summary: Option<(Summary, usize)>,
}

/// Returns a unique mark.
///
/// # Errors
/// [`Error::NoRandomness`].
pub fn new_mark() -> Result<Vec<u8>> {
    let mut mark = [0; 16];
    getrandom::fill(&mut mark).map_err(|_| Error::NoRandomness)?;
    Ok(mark.to_vec())
}

impl KnownNodes {
    pub fn new(of: &KnowingGroups) -> KnownNodes {
        of.0.fetch_add(1, Ordering::Relaxed);
        KnownNodes { of: of.clone(), state: Mutex::default() }
    }

    /// Begins a transaction that has read this progress with a conflict.
    pub(super) fn begin(&self, progress: &proto::ViewProgress) {
        let groups = self.of.0.load(Ordering::Relaxed).max(1);
        let bytes_max = GROUP_BYTES_MAX.get().min(ALL_BYTES_MAX / groups) / progress.trees.len().max(1);
        let mut state = self.lock();
        let attempt = state.attempt.take().filter(|attempt| attempt.mark == progress.nodes_mark);
        if let Some(Attempt { mark, nodes }) = attempt {
            for ChangedNode { tree, level, from, summary } in nodes {
                if let Some(tree) = state.trees.get_mut(tree) {
                    tree.change(level, from, summary);
                }
            }
            state.mark = mark;
        } else if state.mark != progress.nodes_mark || state.mark.is_empty() {
            // A program without support for marks writes an empty one on every change.
            state.mark.clone_from(&progress.nodes_mark);
            state.trees.clear();
        }
        state.trees.resize_with(progress.trees.len(), Default::default);
        state.trees.iter_mut().for_each(|tree| tree.trim(bytes_max));
    }

    /// Records the nodes that the transaction changes, and marks its progress.
    pub(super) fn attempt(&self, progress: &mut proto::ViewProgress, nodes: Vec<ChangedNode>) -> Result<()> {
        progress.nodes_mark = new_mark()?;
        self.lock().attempt = Some(Attempt { mark: progress.nodes_mark.clone(), nodes });
        Ok(())
    }

    /// Keeps the cache after a transaction that has replaced the mark and changed no nodes.
    pub fn follow_mark(&self, replaced: &[u8], mark: &[u8]) {
        let mut state = self.lock();
        if state.mark == replaced && !replaced.is_empty() {
            state.mark = mark.to_vec();
        }
        if let Some(attempt) = state.attempt.as_mut().filter(|attempt| attempt.mark == replaced) {
            attempt.mark = mark.to_vec();
        }
    }

    pub(super) fn get(&self, tree: usize, level: u8, range: &KeyRange) -> Option<Vec<(Key, Summary)>> {
        self.lock().trees.get_mut(tree)?.get(level, range)
    }

    pub(super) fn learn(&self, tree: usize, level: u8, range: KeyRange, nodes: impl Iterator<Item = (Key, Summary)>) {
        let nodes = nodes.map(|(key, summary)| {
            let bytes = summary.encode().len();
            (key, summary, bytes)
        });
        if let Some(tree) = self.lock().trees.get_mut(tree) {
            tree.insert(level, range, nodes);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for KnownNodes {
    fn drop(&mut self) {
        self.of.0.fetch_sub(1, Ordering::Relaxed);
    }
}
