//! Trees from paths: the same tree for any order and any cut of the paths.
#![allow(clippy::unwrap_used)]

use flatbed_revtree::{Branch, MergeOutcome, RevId, Tree};
use proptest::prelude::*;

fn rev(text: &str) -> RevId {
    text.parse().unwrap()
}

fn path(text: &str) -> Vec<RevId> {
    text.split(' ').map(rev).collect()
}

/// Merges paths (a trailing `*` marks a tombstone) and compares the branches, the winner first.
fn check(paths: &[&str], expected: &[&str]) {
    let mut tree = Tree::default();
    for text in paths {
        let (text, deleted) = text.strip_suffix('*').map_or((*text, false), |text| (text, true));
        tree.merge(&path(text), deleted);
    }
    let shown = tree.branches().into_iter().map(|branch| {
        let line: Vec<String> = branch.line().map(RevId::to_string).collect();
        line.join(" ") + if branch.deleted { "*" } else { "" }
    });
    assert_eq!(shown.collect::<Vec<_>>(), expected, "{paths:?}");
    assert_eq!(tree.winner(), tree.branches().first().copied());
}

#[test]
fn paths_make_trees() {
    check(&[], &[]);
    check(&["1-a"], &["1-a"]);
    check(&["1-a", "2-b 1-a"], &["2-b 1-a"]);
    check(&["2-b 1-a", "1-a"], &["2-b 1-a"]);
    check(&["3-c 2-b 1-a", "3-d 2-b 1-a"], &["3-d 2-b 1-a", "3-c 2-b 1-a"]);
    check(&["3-c 2-b 1-a", "3-d 2-b 1-a*"], &["3-c 2-b 1-a", "3-d 2-b 1-a*"]);
    check(&["2-b 1-a", "2-x 1-y"], &["2-x 1-y", "2-b 1-a"]);
    check(&["3-c 2-b", "3-d 2-b 1-a"], &["3-d 2-b 1-a", "3-c 2-b 1-a"]);
    check(&["3-c", "3-c 2-b 1-a"], &["3-c 2-b 1-a"]);
    check(&["2-b", "4-d 3-c 2-b 1-a"], &["4-d 3-c 2-b 1-a"]);
    check(&["1-a*", "2-b 1-a"], &["2-b 1-a"]);
    check(&["9-z*", "1-a"], &["1-a", "9-z*"]);
    // A cut path does not shorten a known branch.
    check(&["2-b 1-a", "3-c 2-b"], &["3-c 2-b 1-a"]);
    check(&["3-c", "2-b 1-a", "3-c 2-b"], &["3-c 2-b 1-a"]);
    // Contradicting histories.
    check(&["7-0 6-3 5-1", "7-1 6-3 5-2", "5-1 4-0"], &["7-1 6-3 5-1 4-0", "7-0 6-3 5-1 4-0"]);
    check(&["3-c 2-b 1-a", "2-x", "3-c 2-x"], &["3-c 2-b 1-a", "2-x"]);
}

#[test]
fn a_parent_is_a_generation_below() {
    let mut tree = Tree::default();
    assert!(tree.is_empty() && tree.revisions().is_empty());
    assert_eq!(tree.merge(&path("3-c 3-b 2-a"), false), MergeOutcome::New);
    assert_eq!(tree.branch(&rev("3-c")).map(|branch| branch.ancestors.len()), Some(0));
}

#[test]
fn a_tree_answers_about_its_revisions() {
    let mut tree = Tree::default();
    assert_eq!(tree.merge(&path("3-c 2-b 1-a"), false), MergeOutcome::New);
    assert_eq!(tree.merge(&path("3-d 2-b 1-a"), true), MergeOutcome::New);
    assert_eq!(tree.merge(&path("2-b 1-a"), false), MergeOutcome::Known);
    assert!(tree.contains(&rev("1-a")) && !tree.contains(&rev("1-b")));
    assert_eq!((tree.len(), tree.is_empty()), (2, false));
    assert_eq!(tree.revisions(), path("3-c 3-d 2-b 1-a").iter().collect());
    assert_eq!(tree.line(&rev("2-b")), Some(path("2-b 1-a")));
    assert_eq!(tree.line(&rev("2-x")), None);
    assert_eq!(tree.branches_over(&rev("1-a")).count(), 2);
    assert_eq!(tree.leaves().collect::<Vec<_>>(), [&rev("3-c"), &rev("3-d")]);
    let over = |names: &[&str]| -> Vec<String> {
        let names: Vec<RevId> = names.iter().map(|name| rev(name)).collect();
        tree.leaves_over(&names).into_iter().map(RevId::to_string).collect()
    };
    assert_eq!(over(&["1-a"; 1000]), ["3-c", "3-d"], "each once");
    assert_eq!(over(&["2-b", "1-a", "3-c", "3-x", "1-b", "9-z"]), ["1-b", "3-c", "3-d", "3-x", "9-z"]);
    assert_eq!(over(&["3-d"]), ["3-d"]);
    assert!(over(&[]).is_empty());
    tree.stem(2);
    assert_eq!(tree.branch(&rev("3-c")).map(|branch| branch.ancestors.clone()), Some(path("2-b")));
    assert!(tree.remove(&rev("3-c")) && !tree.remove(&rev("2-b")));
    assert_eq!(tree.winner().map(|branch| branch.leaf.clone()), Some(rev("3-d")));
}

/// A whole tree: node `n` is a child of its choice among the nodes before it, or begins a new tree.
fn nodes(choices: &[(u8, bool)]) -> Vec<(Vec<RevId>, bool)> {
    let mut nodes: Vec<(Vec<RevId>, bool)> = Vec::new();
    for (number, (parent, deleted)) in choices.iter().enumerate() {
        let parent = nodes.get(usize::from(*parent)).map(|(path, _)| path.clone()).unwrap_or_default();
        let generation = parent.first().map_or(0, RevId::generation) + 1;
        let new = RevId::from_parts(generation, &format!("{number:02}")).unwrap();
        nodes.push((std::iter::once(new).chain(parent).collect(), *deleted));
    }
    nodes
}

fn merged(paths: &[(Vec<RevId>, bool)]) -> Tree {
    let mut tree = Tree::default();
    for (path, deleted) in paths {
        tree.merge(path, *deleted);
    }
    tree
}

proptest! {
    /// Every replica gets every revision, each in its own order and with ancestors cut off at random. Some get them
    /// twice, some get a part through another replica's tree.
    #[test]
    fn replicas_converge(
        choices in prop::collection::vec((any::<u8>(), any::<bool>()), 1..14),
        orders in prop::collection::vec((any::<prop::sample::Index>(), 1..9usize), 0..60),
        split in any::<prop::sample::Index>(),
    ) {
        let choices: Vec<_> = choices.iter().enumerate().map(|(n, (p, d))| (p % (n as u8 + 2), *d)).collect();
        let whole = nodes(&choices);
        let expected = merged(&whole);
        let leaves: Vec<_> = whole
            .iter()
            .filter(|(path, _)| !whole.iter().any(|(other, _)| other.get(1) == path.first()))
            .map(|(path, deleted)| Branch { leaf: path[0].clone(), deleted: *deleted, ancestors: path[1..].to_vec() })
            .collect();
        prop_assert_eq!(&expected, &Tree::new(leaves));
        // The full paths come too, because others must complete a cut path that ends above their known revisions.
        let mut shuffled: Vec<_> = whole.clone();
        for (at, cut) in &orders {
            let (path, deleted) = at.get(&whole).clone();
            let place = at.index(shuffled.len() + 1);
            shuffled.insert(place, (path.into_iter().take(*cut).collect(), deleted));
        }
        for (at, _) in &orders {
            let (one, last) = (at.index(shuffled.len()), shuffled.len() - 1);
            shuffled.swap(one, last);
        }
        prop_assert_eq!(&merged(&shuffled), &expected);
        let (first, second) = shuffled.split_at(split.index(shuffled.len()));
        let mut relayed = merged(second);
        for branch in merged(first).branches() {
            relayed.merge(&branch.line().cloned().collect::<Vec<_>>(), branch.deleted);
        }
        prop_assert_eq!(relayed.branches().len(), expected.branches().len());
        prop_assert_eq!(&relayed, &expected);
    }

    #[test]
    fn foreign_histories_break_nothing(
        paths in prop::collection::vec((prop::collection::vec(0..4u8, 1..6), 1..8u64, any::<bool>()), 0..12)
    ) {
        let mut tree = Tree::default();
        for (hashes, start, deleted) in paths {
            let before = tree.clone();
            let revs = hashes.iter().zip((1..=start).rev());
            let path: Vec<_> = revs.map(|(h, g)| RevId::from_parts(g, &h.to_string()).unwrap()).collect();
            tree.merge(&path, deleted);
            prop_assert!(tree.contains(&path[0]) && !tree.is_empty());
            prop_assert!(before.revisions().into_iter().all(|rev| tree.contains(rev)), "a revision was lost");
            for branch in tree.branches() {
                let generations: Vec<_> = branch.line().map(RevId::generation).collect();
                prop_assert!(generations.windows(2).all(|two| two[0] == two[1] + 1));
            }
        }
    }
}
