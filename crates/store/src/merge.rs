//! The merge of the sorted entries of a database's buckets.
//!
//! All buckets are read in parallel at one read version. Each returns its first entries behind a position, and whether
//! they were all. Every entry up to the smallest last entry of a truncated bucket is known: no bucket has further
//! entries before it, and later commits lie behind the read version. A page therefore ends there. The entries behind it
//! are read again with the next page.
//!
//! The limit of a bucket is proportional to the entries that it contributed to the page before, since one process may
//! have written all. So a page takes one round of reads and uses most of what it reads.

/// The smallest limit of a bucket, so that a quiet bucket does not end a page early.
const SHARE_MIN: usize = 32;

/// The entries of one bucket.
#[derive(Debug)]
pub struct Part<T> {
    /// In order.
    pub rows: Vec<T>,
    /// True if the bucket has no more.
    pub is_all: bool,
}

/// The merged entries of all buckets.
#[derive(Debug, PartialEq, Eq)]
pub struct MergedRows<T> {
    /// In order, each with its bucket.
    pub rows: Vec<(usize, T)>,
    /// True if nothing follows the last row.
    pub is_all: bool,
}

/// Merges the entries of the buckets into at most `most` rows by `place`, which must be unique.
pub fn merge<T, P: Ord>(parts: Vec<Part<T>>, most: usize, place: impl Fn(&T) -> P) -> MergedRows<T> {
    // A truncated bucket without a row ends before all others: no row is known to be next.
    let end = parts.iter().filter(|part| !part.is_all).map(|part| part.rows.last().map(&place)).min();
    let is_complete = |row: &T| end.as_ref().is_none_or(|end| end.as_ref().is_some_and(|end| place(row) <= *end));
    let (mut is_all, mut rows) = (end.is_none(), Vec::new());
    for (bucket, part) in parts.into_iter().enumerate() {
        rows.extend(part.rows.into_iter().take_while(&is_complete).map(|row| (bucket, row)));
    }
    // The sort detects the sorted runs.
    rows.sort_by_key(|(_, row)| place(row));
    is_all &= rows.len() <= most;
    rows.truncate(most);
    MergedRows { rows, is_all }
}

/// The share of each bucket in a page.
#[derive(Debug, Clone, Default)]
pub struct Shares {
    /// The rows of the page before, by bucket; empty: there is no page before.
    given: Vec<usize>,
}

impl Shares {
    /// Returns the limit of a bucket for a page of at most `most` rows.
    pub fn limit(&self, bucket: usize, buckets: usize, most: usize) -> usize {
        let all: usize = self.given.iter().sum();
        let share = match self.given.get(bucket) {
            // Half follows the last page, and half is the same for all, so that a bucket that becomes active is not
            // delayed.
            Some(given) if all > 0 => (most * given).div_ceil(all).max(most / (2 * buckets.max(1))),
            _ => most.div_ceil(buckets.max(1)),
        };
        share.max(SHARE_MIN).min(most)
    }

    /// Counts the buckets that rows came from.
    pub fn of(buckets: usize, given: impl Iterator<Item = usize>) -> Shares {
        let mut shares = Shares { given: vec![0; buckets] };
        for bucket in given {
            if let Some(given) = shares.given.get_mut(bucket) {
                *given += 1;
            }
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use proptest::prelude::*;

    use super::*;

    /// Reads all pages of `most` rows, each bucket with its own cut. Returns all rows, the number of pages, and the
    /// number of entries read.
    fn walk(buckets: &[Vec<u32>], most: usize, descending: bool) -> (Vec<(usize, u32)>, usize, usize) {
        let (mut all, mut pages, mut read, mut shares) = (Vec::new(), 0, 0, Shares::default());
        let mut place: Option<u32> = None;
        loop {
            let is_behind = |row: &&u32| match (place, descending) {
                (None, _) => true,
                (Some(place), false) => **row > place,
                (Some(place), true) => **row < place,
            };
            let part = |(bucket, rows): (usize, &Vec<u32>)| {
                let limit = shares.limit(bucket, buckets.len(), most);
                let mut rows: Vec<u32> = rows.iter().filter(is_behind).copied().collect();
                if descending {
                    rows.reverse();
                }
                let is_all = rows.len() < limit;
                rows.truncate(limit);
                Part { rows, is_all }
            };
            let parts: Vec<_> = buckets.iter().enumerate().map(part).collect();
            read += parts.iter().map(|part| part.rows.len()).sum::<usize>();
            let merged = match descending {
                false => merge(parts, most, |row| *row),
                true => merge(parts, most, |row| Reverse(*row)),
            };
            assert!(merged.rows.len() <= most && (merged.is_all || !merged.rows.is_empty()), "it gets on");
            shares = Shares::of(buckets.len(), merged.rows.iter().map(|(bucket, _)| *bucket));
            place = merged.rows.last().map(|(_, row)| *row).or(place);
            all.extend(merged.rows);
            pages += 1;
            if merged.is_all {
                return (all, pages, read);
            }
        }
    }

    fn spread(buckets: usize, of: &[usize]) -> Vec<Vec<u32>> {
        let mut all = vec![Vec::new(); buckets];
        for (row, bucket) in (0..).zip(of) {
            all[bucket % buckets].push(row);
        }
        all
    }

    proptest! {
        /// Each row comes once, in order, with its bucket, whatever its bucket is and however pages are cut.
        #[test]
        fn pages_of_buckets_are_those_of_one(
            buckets in 1..9_usize,
            of in prop::collection::vec(any::<usize>(), 0..600),
            most in 1..200_usize,
            descending: bool,
        ) {
            let all = spread(buckets, &of);
            let (got, ..) = walk(&all, most, descending);
            let mut expected: Vec<_> = (0..).zip(&of).map(|(row, bucket)| (bucket % buckets, row)).collect();
            if descending {
                expected.reverse();
            }
            prop_assert_eq!(got, expected);
        }

        /// No row is returned that follows an entry which was not read.
        #[test]
        fn a_page_ends_where_the_first_bucket_was_cut_off(
            parts in prop::collection::vec((prop::collection::btree_set(0..1_000_u32, 0..20), any::<bool>()), 1..6),
            most in 1..60_usize,
        ) {
            let end = parts.iter().filter(|(_, is_all)| !is_all).map(|(rows, _)| rows.last().copied()).min();
            let read: Vec<_> = parts.iter().flat_map(|(rows, _)| rows).copied().collect();
            let part = |(rows, is_all): (std::collections::BTreeSet<u32>, bool)| Part { rows: rows.into_iter().collect(), is_all };
            let merged = merge(parts.into_iter().map(part).collect(), most, |row| *row);
            let mut expected: Vec<u32> = read.iter().filter(|row| end.is_none_or(|end| Some(**row) <= end)).copied().collect();
            expected.sort_unstable();
            prop_assert_eq!(merged.is_all, end.is_none() && expected.len() <= most);
            expected.truncate(most);
            prop_assert_eq!(merged.rows.into_iter().map(|(_, row)| row).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn most_of_what_is_read_is_shown() {
        // All buckets alike, one bucket with all rows, and one with nearly all.
        let even: Vec<usize> = (0..40_000).map(|row| (row * 7_919) % 64 + row % 3).collect();
        let one = vec![5; 40_000];
        let nearly: Vec<usize> = (0..40_000).map(|row| if row % 50 == 0 { row / 50 } else { 5 }).collect();
        for (name, of, most_pages, most_read) in
            [("even", even, 26, 64_000), ("one", one, 23, 44_000), ("nearly", nearly, 23, 110_000)]
        {
            let (got, pages, read) = walk(&spread(64, &of), 2_000, false);
            assert_eq!(got.len(), 40_000);
            assert!(pages <= most_pages && read <= most_read, "{name}: {pages} pages, {read} rows read");
        }
    }
}
