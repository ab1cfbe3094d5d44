//! An ordered map from keys to versions, with the greatest version of each subtree.
//!
//! A B+ tree whose inner nodes hold the greatest version below each child. A search for entries of a range that are
//! newer than a version reads two paths, for any width of the range; it skips subtrees of older versions.
//!
//! Positions within a node come from searches of that node, so they are in bounds. A node has at most `N` entries, and
//! only a root may be empty.

use crate::commit::sorted_keys::SortedKeys;

/// The version of a key that was never written.
pub(crate) const NEVER: i64 = i64::MIN;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    entries: usize,
    key_bytes: usize,
    nodes: usize,
}

struct Node<const N: usize> {
    /// A leaf's keys; in an inner node the lower bound of each child but the first.
    keys: SortedKeys<N>,
    /// The version of each key; in an inner node the greatest version below each child.
    versions: [i64; N],
    /// Empty in a leaf.
    children: Vec<Box<Node<N>>>,
}

/// The right half of a split node, and its lower bound.
type Split<const N: usize> = Option<(Box<[u8]>, Box<Node<N>>)>;

impl<const N: usize> Node<N> {
    fn new() -> Box<Node<N>> {
        Box::new(Node { keys: SortedKeys::default(), versions: [NEVER; N], children: Vec::new() })
    }

    fn is_leaf(&self) -> bool {
        self.children.is_empty()
    }

    /// The number of keys of a leaf, or of children of an inner node.
    fn len(&self) -> usize {
        if self.is_leaf() { self.keys.len() } else { self.children.len() }
    }

    fn max_version(&self) -> i64 {
        self.versions[..self.len()].iter().copied().max().unwrap_or(NEVER)
    }

    fn put(&mut self, key: &[u8], version: i64, size: &mut Size) -> Split<N> {
        if !self.is_leaf() {
            let at = self.keys.upper_bound(key);
            let Some((lowest, right)) = self.children[at].put(key, version, size) else {
                self.versions[at] = self.versions[at].max(version);
                return None;
            };
            self.versions[at] = self.children[at].max_version();
            return self.insert_child(at + 1, lowest, right, size);
        }
        let at = match self.keys.search(key) {
            Ok(at) => {
                self.versions[at] = version;
                return None;
            }
            Err(at) => at,
        };
        size.entries += 1;
        if self.keys.len() < N {
            self.insert_entry(at, key, version, size);
            return None;
        }
        // Keys that arrive in ascending order leave full nodes behind.
        let middle = if at == N { N } else { N / 2 };
        let mut right = Node::new();
        size.nodes += 1;
        right.versions[..N - middle].copy_from_slice(&self.versions[middle..]);
        right.keys = self.keys.split_off(middle, &mut size.key_bytes);
        if at < middle {
            self.insert_entry(at, key, version, size);
        } else {
            right.insert_entry(at - middle, key, version, size);
        }
        Some((right.keys.get(0).into(), right))
    }

    fn insert_entry(&mut self, at: usize, key: &[u8], version: i64, size: &mut Size) {
        self.versions.copy_within(at..self.keys.len(), at + 1);
        self.versions[at] = version;
        self.keys.insert(at, key, &mut size.key_bytes);
    }

    /// Inserts a child after others; `lowest` is its lower bound.
    fn insert_child(&mut self, at: usize, lowest: Box<[u8]>, child: Box<Node<N>>, size: &mut Size) -> Split<N> {
        if self.children.len() < N {
            self.versions.copy_within(at..self.children.len(), at + 1);
            self.versions[at] = child.max_version();
            self.keys.insert(at - 1, &lowest, &mut size.key_bytes);
            self.children.insert(at, child);
            return None;
        }
        let mut right = Node::new();
        size.nodes += 1;
        right.children.reserve_exact(N);
        if at == N {
            right.versions[0] = child.max_version();
            right.children.push(child);
            return Some((lowest, right));
        }
        let middle = N / 2;
        right.versions[..N - middle].copy_from_slice(&self.versions[middle..]);
        right.children.extend(self.children.drain(middle..));
        right.keys = self.keys.split_off(middle, &mut size.key_bytes);
        let lowest_right = self.keys.get(middle - 1).into();
        self.keys.remove(middle - 1, middle, &mut size.key_bytes);
        if at <= middle {
            self.insert_child(at, lowest, child, size);
        } else {
            right.insert_child(at - middle, lowest, child, size);
        }
        Some((lowest_right, right))
    }

    /// Returns whether a key in `[begin, end)` has a version above `version`; `None` is no bound.
    fn is_any_after(&self, begin: Option<&[u8]>, end: Option<&[u8]>, version: i64) -> bool {
        let (first, last) = self.span(begin, end);
        if self.is_leaf() {
            return self.versions[first..last].iter().any(|&other| other > version);
        }
        let is_newer = |at: usize| self.versions[at] > version;
        if first == last {
            return is_newer(first) && self.children[first].is_any_after(begin, end, version);
        }
        self.versions[first + 1..last].iter().any(|&other| other > version)
            || is_newer(first) && self.children[first].is_any_after(begin, None, version)
            || is_newer(last) && self.children[last].is_any_after(None, end, version)
    }

    /// The keys of a leaf in `[begin, end)` as a half-open range of positions; in an inner node the first and the last
    /// child that may have such keys.
    fn span(&self, begin: Option<&[u8]>, end: Option<&[u8]>) -> (usize, usize) {
        let first = begin.map_or(0, |begin| match self.is_leaf() {
            true => self.keys.lower_bound(begin),
            false => self.keys.upper_bound(begin),
        });
        let last = end.map_or(self.keys.len(), |end| self.keys.lower_bound(end));
        (first.min(last), last)
    }

    /// Removes the keys in `[begin, end)`.
    fn remove(&mut self, begin: Option<&[u8]>, end: Option<&[u8]>, size: &mut Size) {
        let (first, last) = self.span(begin, end);
        if self.is_leaf() {
            size.entries -= last - first;
            self.versions.copy_within(last..self.keys.len(), first);
            return self.keys.remove(first, last, &mut size.key_bytes);
        }
        for at in (first..=last).rev() {
            let child = &mut self.children[at];
            child.remove(begin.filter(|_| at == first), end.filter(|_| at == last), size);
            if child.len() == 0 {
                self.remove_child(at, size);
            } else {
                self.versions[at] = child.max_version();
            }
        }
    }

    fn remove_child(&mut self, at: usize, size: &mut Size) {
        self.versions.copy_within(at + 1.., at);
        size.key_bytes -= self.children.remove(at).keys.allocated();
        size.nodes -= 1;
        if self.keys.len() > 0 {
            // The child after the first takes over its keys.
            let key = at.saturating_sub(1);
            self.keys.remove(key, key + 1, &mut size.key_bytes);
        }
    }
}

/// See the module's documentation. `N` is the node size, at least 4.
pub(crate) struct VersionTree<const N: usize> {
    root: Box<Node<N>>,
    size: Size,
}

impl<const N: usize> Default for VersionTree<N> {
    fn default() -> Self {
        let size = Size { nodes: 1, ..Size::default() };
        VersionTree { root: Node::new(), size }
    }
}

impl<const N: usize> VersionTree<N> {
    pub(crate) fn len(&self) -> usize {
        self.size.entries
    }

    /// Approximate memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.size.key_bytes + self.size.nodes * size_of::<Node<N>>()
    }

    /// Sets the version of a key. It must not be below the current version.
    pub(crate) fn put(&mut self, key: &[u8], version: i64) {
        let Some((lowest, right)) = self.root.put(key, version, &mut self.size) else { return };
        self.size.nodes += 1;
        let left = std::mem::replace(&mut self.root, Node::new());
        self.root.children.reserve_exact(N);
        self.root.versions[0] = left.max_version();
        self.root.children.push(left);
        self.root.insert_child(1, lowest, right, &mut self.size);
    }

    /// Returns whether the version of `key` is above `version`.
    pub(crate) fn is_after(&self, key: &[u8], version: i64) -> bool {
        let mut node = &self.root;
        while !node.is_leaf() {
            let at = node.keys.upper_bound(key);
            if node.versions[at] <= version {
                return false;
            }
            node = &node.children[at];
        }
        node.keys.search(key).is_ok_and(|at| node.versions[at] > version)
    }

    /// Returns whether any key in `[begin, end)`, which is not inverted, has a version above `version`.
    pub(crate) fn is_any_after(&self, begin: &[u8], end: &[u8], version: i64) -> bool {
        self.root.is_any_after(Some(begin), Some(end), version)
    }

    /// Returns the version of the last key not above `key`, [`NEVER`] if there is none, and whether that key is `key`.
    pub(crate) fn at_or_below(&self, key: &[u8]) -> (i64, bool) {
        let (mut node, mut left) = (&self.root, None);
        while !node.is_leaf() {
            let at = node.keys.upper_bound(key);
            left = at.checked_sub(1).and_then(|before| node.children.get(before)).or(left);
            node = &node.children[at];
        }
        match node.keys.search(key) {
            Ok(at) => (node.versions[at], true),
            Err(0) => {
                let Some(mut node) = left else { return (NEVER, false) };
                while let Some(last) = node.children.last() {
                    node = last;
                }
                (node.versions[node.keys.len() - 1], false)
            }
            Err(at) => (node.versions[at - 1], false),
        }
    }

    /// Removes the keys in `[begin, end)`, which is not inverted.
    pub(crate) fn remove(&mut self, begin: &[u8], end: &[u8]) {
        self.root.remove(Some(begin), Some(end), &mut self.size);
        while self.root.children.len() == 1 {
            let Some(child) = self.root.children.pop() else { return };
            self.size.key_bytes -= self.root.keys.allocated();
            self.size.nodes -= 1;
            self.root = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        Put(Vec<u8>),
        Remove(Vec<u8>, Vec<u8>),
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        // Long and short shared prefixes, zeros that look like padding, keys longer than a head.
        let tail = || prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255)], 0..5);
        const LONG: &[u8] = &[b'p'; 50];
        let prefixes = vec![&b""[..], b"prefix", b"prefix-longer", &LONG[..40], LONG];
        (prop::sample::select(prefixes), tail()).prop_map(|(prefix, tail)| [prefix, &tail].concat())
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            12 => key().prop_map(Step::Put),
            1 => (key(), key()).prop_map(|(a, b)| Step::Remove(a.clone().min(b.clone()), a.max(b))),
        ]
    }

    fn measured<const N: usize>(node: &Node<N>) -> Size {
        let mut size = Size { nodes: 1, key_bytes: node.keys.allocated(), ..Size::default() };
        size.entries = if node.is_leaf() { node.keys.len() } else { 0 };
        for child in &node.children {
            let below = measured(child);
            size.entries += below.entries;
            size.key_bytes += below.key_bytes;
            size.nodes += below.nodes;
        }
        size
    }

    fn check<const N: usize>(steps: Vec<Step>, reads: &[(Vec<u8>, Vec<u8>)]) -> Result<(), TestCaseError> {
        let (mut tree, mut model) = (VersionTree::<N>::default(), BTreeMap::new());
        for (version, step) in (0i64..).zip(steps) {
            match step {
                Step::Put(key) => {
                    tree.put(&key, version);
                    model.insert(key, version);
                }
                Step::Remove(begin, end) => {
                    tree.remove(&begin, &end);
                    model.retain(|key, _| *key < begin || *key >= end);
                }
            }
            prop_assert_eq!(tree.size, measured(&tree.root));
            prop_assert_eq!(tree.len(), model.len());
        }
        for (a, b) in reads {
            let (begin, end) = (a.min(b), a.max(b));
            let newest = model.range(begin.clone()..end.clone()).map(|(_, version)| *version).max().unwrap_or(NEVER);
            prop_assert!(!tree.is_any_after(begin, end, newest));
            prop_assert!(newest == NEVER || tree.is_any_after(begin, end, newest - 1));
            let own = model.get(a).copied().unwrap_or(NEVER);
            prop_assert!(!tree.is_after(a, own));
            prop_assert!(own == NEVER || tree.is_after(a, own - 1));
            let below = model.range(..=a.clone()).next_back();
            let expected = below.map_or((NEVER, false), |(key, version)| (*version, key == a));
            prop_assert_eq!(tree.at_or_below(a), expected);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn answers_as_a_map(
            steps in prop::collection::vec(step(), 0..400),
            reads in prop::collection::vec((key(), key()), 40),
        ) {
            check::<4>(steps.clone(), &reads)?;
            check::<8>(steps.clone(), &reads)?;
            check::<96>(steps, &reads)?;
        }
    }
}
