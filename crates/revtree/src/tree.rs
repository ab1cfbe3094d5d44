//! A document's revision tree: its leaves, each with its line of ancestors.
//!
//! The known part of a tree is a set of steps from a revision to its parent. Replication brings them as paths, in any
//! order and cut anywhere; the tree does not depend on the order. A revision without a child is a leaf.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::RevId;

/// A leaf with its known ancestors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Branch {
    /// The leaf.
    pub leaf: RevId,
    /// True for a tombstone.
    pub deleted: bool,
    /// Its ancestors, newest first, without a gap: each one generation below its successor.
    pub ancestors: Vec<RevId>,
}

impl Branch {
    /// The rank that decides the winner: not deleted first, then generation, then hash, bytewise. The greatest wins.
    pub fn rank(&self) -> (bool, &RevId) {
        rank(self.deleted, &self.leaf)
    }

    /// The leaf and its ancestors, newest first.
    pub fn line(&self) -> impl DoubleEndedIterator<Item = &RevId> {
        std::iter::once(&self.leaf).chain(&self.ancestors)
    }
}

/// See [`Branch::rank`].
pub fn rank(deleted: bool, leaf: &RevId) -> (bool, &RevId) {
    (!deleted, leaf)
}

/// The effect of a path on a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeOutcome {
    /// The revision was known; the path may have added ancestors.
    Known,
    /// The revision is a new leaf.
    New,
}

/// All branches of a document; none for a missing document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    branches: BTreeMap<RevId, Branch>,
}

impl Tree {
    /// Builds a tree from its branches, whose leaves must all be leaves of one tree.
    pub fn new(branches: impl IntoIterator<Item = Branch>) -> Tree {
        Tree { branches: branches.into_iter().map(|branch| (branch.leaf.clone(), branch)).collect() }
    }

    /// Returns the winner, which every replica shows by default.
    pub fn winner(&self) -> Option<&Branch> {
        self.branches.values().max_by(|a, b| a.rank().cmp(&b.rank()))
    }

    /// Returns all branches by descending rank, the winner first.
    pub fn branches(&self) -> Vec<&Branch> {
        let mut branches: Vec<&Branch> = self.branches.values().collect();
        branches.sort_by(|a, b| b.rank().cmp(&a.rank()));
        branches
    }

    /// The number of leaves.
    pub fn len(&self) -> usize {
        self.branches.len()
    }

    /// Returns whether the document is missing.
    pub fn is_empty(&self) -> bool {
        self.branches.is_empty()
    }

    /// Returns the branch of a leaf.
    pub fn branch(&self, leaf: &RevId) -> Option<&Branch> {
        self.branches.get(leaf)
    }

    /// Returns whether the revision is a leaf or a known ancestor of one.
    pub fn contains(&self, rev: &RevId) -> bool {
        self.branches_over(rev).next().is_some()
    }

    /// Returns the branches that contain a revision.
    pub fn branches_over(&self, rev: &RevId) -> impl Iterator<Item = &Branch> {
        self.branches.values().filter(move |branch| branch.depth_of(rev).is_some())
    }

    /// The leaves, ascending.
    pub fn leaves(&self) -> impl Iterator<Item = &RevId> {
        self.branches.keys()
    }

    /// Returns the leaves above the given revisions, each once; a revision that is not in the tree stands for itself.
    /// Each branch is searched once for each named generation, not for each revision.
    pub fn leaves_over<'t>(&'t self, revs: &'t [RevId]) -> BTreeSet<&'t RevId> {
        let names: HashSet<&RevId> = revs.iter().collect();
        let generations: BTreeSet<u64> = revs.iter().map(RevId::generation).collect();
        let (mut leaves, mut found) = (BTreeSet::new(), HashSet::new());
        for branch in self.branches.values() {
            for generation in generations.range(..=branch.leaf.generation()) {
                if let Some(rev) = branch.at(*generation).filter(|rev| names.contains(rev)) {
                    leaves.insert(&branch.leaf);
                    found.insert(rev);
                }
            }
        }
        leaves.extend(names.difference(&found).copied());
        leaves
    }

    /// Returns a revision and its known ancestors, newest first; `None` if it is not in the tree.
    pub fn line(&self, rev: &RevId) -> Option<Vec<RevId>> {
        let branch = self.branches.get(rev).or_else(|| self.branches_over(rev).next())?;
        let depth = branch.depth_of(rev)?;
        Some(branch.line().skip(depth).cloned().collect())
    }

    /// Adds a revision with its ancestors: `path` begins with the revision, then its ancestors, newest first, each one
    /// generation below its successor. An ancestor that was a leaf stops being one.
    pub fn merge(&mut self, path: &[RevId], deleted: bool) -> MergeOutcome {
        let Some((leaf, ancestors)) = path.split_first() else { return MergeOutcome::Known };
        let merged = if self.contains(leaf) { MergeOutcome::Known } else { MergeOutcome::New };
        if merged == MergeOutcome::New {
            let branch = Branch { leaf: leaf.clone(), deleted, ancestors: Vec::new() };
            self.branches.insert(leaf.clone(), branch);
        }
        self.lengthen(path);
        for ancestor in ancestors {
            let was_leaf = self.branches.contains_key(ancestor);
            if was_leaf && self.branches_over(ancestor).any(|branch| branch.leaf != *ancestor) {
                self.branches.remove(ancestor);
            }
        }
        merged
    }

    /// Extends every branch as far down as the path and the other branches reach.
    ///
    /// Correct histories agree on each revision's parent. If a path contradicts known steps, the known steps stay: no
    /// revision leaves the tree.
    fn lengthen(&mut self, path: &[RevId]) {
        let mut steps: HashMap<&RevId, &RevId> = HashMap::new();
        for (child, parent) in path.iter().zip(path.iter().skip(1)) {
            if parent.generation() < child.generation() {
                steps.entry(child).or_insert(parent);
            }
        }
        // Only branches that end on the path can become longer, and many branches may end at the same revision.
        let mut longer: HashMap<RevId, Vec<RevId>> = HashMap::new();
        for branch in self.branches.values() {
            let oldest = branch.oldest();
            if steps.contains_key(oldest) && !longer.contains_key(oldest) {
                longer.insert(oldest.clone(), self.descend(oldest, &steps));
            }
        }
        if longer.is_empty() {
            return;
        }
        for branch in self.branches.values_mut() {
            if let Some(rest) = longer.get(branch.oldest()) {
                branch.ancestors.extend(rest.iter().cloned());
            }
        }
    }

    /// The ancestors of a revision as far as the branches know them, then by the steps from child to parent.
    fn descend(&self, rev: &RevId, steps: &HashMap<&RevId, &RevId>) -> Vec<RevId> {
        let mut line: Vec<RevId> = Vec::new();
        loop {
            let oldest = line.last().unwrap_or(rev);
            let below = self.branches.values().find_map(|branch| {
                let below = branch.ancestors.get(branch.depth_of(oldest)?..)?;
                (!below.is_empty()).then_some(below)
            });
            match (below, steps.get(oldest)) {
                (Some(below), _) => line.extend_from_slice(below),
                (None, Some(parent)) => line.push((*parent).clone()),
                (None, None) => return line,
            }
        }
    }

    /// Removes a leaf with the ancestors that no other branch has. False if the revision is not a leaf.
    pub fn remove(&mut self, leaf: &RevId) -> bool {
        self.branches.remove(leaf).is_some()
    }

    /// Keeps the newest `revisions_max` revisions of each branch, its leaf included.
    pub fn stem(&mut self, revisions_max: usize) {
        for branch in self.branches.values_mut() {
            branch.ancestors.truncate(revisions_max.saturating_sub(1));
        }
    }

    /// Every revision in the tree.
    pub fn revisions(&self) -> HashSet<&RevId> {
        self.branches.values().flat_map(Branch::line).collect()
    }
}

impl Branch {
    /// The oldest known revision of the branch.
    fn oldest(&self) -> &RevId {
        self.ancestors.last().unwrap_or(&self.leaf)
    }

    /// The number of steps from the leaf down to `rev`; `None` if `rev` is not on the branch.
    fn depth_of(&self, rev: &RevId) -> Option<usize> {
        let depth = usize::try_from(self.leaf.generation().checked_sub(rev.generation())?).ok()?;
        (self.at(rev.generation()) == Some(rev)).then_some(depth)
    }

    fn at(&self, generation: u64) -> Option<&RevId> {
        let depth = usize::try_from(self.leaf.generation().checked_sub(generation)?).ok()?;
        if depth == 0 { Some(&self.leaf) } else { self.ancestors.get(depth - 1) }
    }
}
