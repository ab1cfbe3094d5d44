//! A leaf's line of ancestors, stored so that an edit rewrites a bounded part of it.
//!
//! A leaf may have a thousand ancestors (`_revs_limit`), and each edit adds its parent. The recent ones are in the
//! leaf's own record. When they reach [`ANCESTORS_INLINE_MAX`], the older half is sealed: written once as a separate
//! segment, which names the next older one. Branches of one tree share the segments below their fork.

use crate::RevId;

/// The most ancestors in a leaf's record, and in a segment.
pub const ANCESTORS_INLINE_MAX: usize = 64;

/// Ancestors of a leaf, newest first: its parent, the parent's parent, and so on, without a gap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ancestry {
    /// The newest ancestors, at most [`ANCESTORS_INLINE_MAX`].
    pub recent: Vec<RevId>,
    /// The newest sealed ancestor.
    pub sealed: Option<RevId>,
    /// The number of sealed ancestors.
    pub sealed_count: u64,
}

/// A segment of sealed ancestors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AncestrySegment {
    /// Newest first, 1 to [`ANCESTORS_INLINE_MAX`]. The first names the segment.
    pub revisions: Vec<RevId>,
    /// The newest revision of the next older segment.
    pub next: Option<RevId>,
}

impl Ancestry {
    /// Splits a whole line into the recent part and the segments to write for the rest, newest first.
    pub fn of_line(mut line: Vec<RevId>) -> (Ancestry, Vec<AncestrySegment>) {
        // Half full, so that the next edits write no segment.
        let older = line.split_off(line.len().min(ANCESTORS_INLINE_MAX / 2));
        let runs: Vec<_> = older.chunks(ANCESTORS_INLINE_MAX).collect();
        let first_of = |run: Option<&&[RevId]>| run.and_then(|run| run.first()).cloned();
        let segments = runs.iter().enumerate();
        let segments =
            segments.map(|(at, run)| AncestrySegment { revisions: run.to_vec(), next: first_of(runs.get(at + 1)) });
        let ancestry = Ancestry { recent: line, sealed: older.first().cloned(), sealed_count: older.len() as u64 };
        (ancestry, segments.collect())
    }

    /// Returns the ancestry of a child of `leaf`, whose ancestry this is: `leaf` comes first. If the recent ancestors
    /// would exceed the limit, it also returns the older half, to be written as a segment.
    pub fn extend(mut self, leaf: RevId) -> (Ancestry, Option<AncestrySegment>) {
        self.recent.insert(0, leaf);
        if self.recent.len() <= ANCESTORS_INLINE_MAX {
            return (self, None);
        }
        let revisions = self.recent.split_off(ANCESTORS_INLINE_MAX / 2);
        self.sealed_count += revisions.len() as u64;
        let newest = revisions.first().cloned();
        let next = std::mem::replace(&mut self.sealed, newest);
        (self, Some(AncestrySegment { revisions, next }))
    }

    /// The number of ancestors, sealed ones included.
    pub fn len(&self) -> u64 {
        self.recent.len() as u64 + self.sealed_count
    }

    /// Returns whether there are none: true for a first revision.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn rev(generation: u64) -> RevId {
        RevId::from_parts(generation, "a").unwrap()
    }

    /// Joins the line and its segments.
    fn line(ancestry: &Ancestry, segments: &HashMap<RevId, AncestrySegment>) -> Vec<RevId> {
        let (mut line, mut next) = (ancestry.recent.clone(), ancestry.sealed.as_ref());
        while let Some(segment) = next.map(|newest| &segments[newest]) {
            line.extend(segment.revisions.iter().cloned());
            next = segment.next.as_ref();
        }
        line
    }

    #[test]
    fn a_line_leaves_room_for_the_next_edits() {
        let line = |length: u64| (1..=length).rev().map(rev).collect::<Vec<_>>();
        for (length, recent, segments) in [(0, 0, 0), (32, 32, 0), (33, 32, 1), (96, 32, 1), (97, 32, 2)] {
            let (ancestry, sealed) = Ancestry::of_line(line(length));
            assert_eq!((ancestry.recent.len(), sealed.len()), (recent, segments), "{length}");
            assert_eq!((ancestry.len(), ancestry.is_empty()), (length, length == 0));
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_the_record_stays_bounded(begin in 0..200_u64, edits in 1..400_u64) {
            let whole: Vec<RevId> = (1..=begin).rev().map(rev).collect();
            let (mut ancestry, sealed) = Ancestry::of_line(whole.clone());
            let mut segments: HashMap<_, _> = sealed.into_iter().map(|s| (s.revisions[0].clone(), s)).collect();
            prop_assert_eq!(line(&ancestry, &segments), whole);
            for generation in begin + 1..begin + edits {
                let (next, sealed) = ancestry.extend(rev(generation));
                ancestry = next;
                segments.extend(sealed.into_iter().map(|s| (s.revisions[0].clone(), s)));
                prop_assert!(ancestry.recent.len() <= ANCESTORS_INLINE_MAX);
            }
            let all = line(&ancestry, &segments);
            prop_assert_eq!(all.len() as u64, ancestry.len());
            prop_assert_eq!(all, (1..begin + edits).rev().map(rev).collect::<Vec<_>>());
            prop_assert!(segments.values().all(|s| (1..=ANCESTORS_INLINE_MAX).contains(&s.revisions.len())));
        }
    }
}
