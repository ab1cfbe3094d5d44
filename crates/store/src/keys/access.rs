//! Keys of the access versions, which say where users, roles, grants or sessions have changed. They lie directly under
//! the root, since they belong to all databases.

use crate::error::Result;
use crate::keys::tuple::{bad_key, behind, put_int, take_int, under, with_int};
use crate::keys::updates::{bucket_of, hash_of};
use crate::keys::{KeyRange, RootKeys};

// Under the root.
const ACCESS: u64 = 25;

// Under it.
const NEWEST: u64 = 0;
const CELLS: u64 = 1;

/// The number of cells in a bucket.
pub const ACCESS_CELLS: usize = 256;

/// The place of a database among the access versions, by its name: one of 256 cells of one of 256 buckets. Databases
/// may share a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccessCell {
    pub bucket: u8,
    pub cell: u8,
}

impl AccessCell {
    /// Returns the cell of a database. The bucket is that of [`bucket_of`] without shards; the cell is the last byte of
    /// the same hash.
    pub fn of(name: &str) -> AccessCell {
        let [.., cell] = hash_of(name.as_bytes()).to_be_bytes();
        AccessCell { bucket: bucket_of(name, 0), cell }
    }
}

impl RootKeys {
    fn access(&self, part: u64) -> Vec<u8> {
        let mut key = with_int(&self.prefix, ACCESS);
        put_int(&mut key, part);
        key
    }

    /// Returns the key of the stamp of a bucket's newest change.
    pub fn access_bucket(&self, bucket: u8) -> Vec<u8> {
        with_int(&self.access(NEWEST), u64::from(bucket))
    }

    /// Returns the range of the stamps of all buckets.
    pub fn access_buckets(&self) -> KeyRange {
        KeyRange { begin: self.access(NEWEST), end: self.access(CELLS) }
    }

    /// Parses a key of [`RootKeys::access_buckets`].
    pub fn access_bucket_parse(&self, key: &[u8]) -> Result<u8> {
        match take_int(behind(key, &self.access(NEWEST)))? {
            (bucket, []) => u8::try_from(bucket).map_err(|_| bad_key()),
            _ => Err(bad_key()),
        }
    }

    /// Returns the key of the stamp of a cell's newest change.
    pub fn access_cell(&self, of: AccessCell) -> Vec<u8> {
        with_int(&with_int(&self.access(CELLS), u64::from(of.bucket)), u64::from(of.cell))
    }

    /// Returns the range of the stamps of a bucket's cells.
    pub fn access_cells(&self, bucket: u8) -> KeyRange {
        under(&with_int(&self.access(CELLS), u64::from(bucket)))
    }

    /// Returns the range of the stamps of all cells.
    pub fn all_access_cells(&self) -> KeyRange {
        KeyRange { begin: self.access(CELLS), end: self.access(CELLS + 1) }
    }

    /// Parses a key of [`RootKeys::all_access_cells`].
    pub fn access_cell_parse(&self, key: &[u8]) -> Result<AccessCell> {
        let (bucket, rest) = take_int(behind(key, &self.access(CELLS)))?;
        match (u8::try_from(bucket), take_int(rest)?) {
            (Ok(bucket), (cell, [])) => Ok(AccessCell { bucket, cell: u8::try_from(cell).map_err(|_| bad_key())? }),
            _ => Err(bad_key()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use foundationdb::tuple::{Bytes, pack};

    use super::*;

    #[test]
    fn keys_are_those_of_the_design() {
        let (keys, root) = (RootKeys::new(b"fb"), Bytes::from(b"fb".to_vec()));
        let of = AccessCell::of("db");
        assert_eq!((of.bucket, of.cell), (78, 195));
        assert_eq!(keys.access_bucket(of.bucket), pack(&(root.clone(), 25, 0, u64::from(of.bucket))));
        assert_eq!(keys.access_cell(of), pack(&(root, 25, 1, u64::from(of.bucket), u64::from(of.cell))));
        for (bucket, cell) in [(0, 0), (0, 255), (78, 3), (255, 0), (255, 255)] {
            let of = AccessCell { bucket, cell };
            let (newest, own) = (keys.access_bucket(bucket), keys.access_cell(of));
            assert_eq!(keys.access_bucket_parse(&newest).unwrap(), bucket);
            assert_eq!(keys.access_cell_parse(&own).unwrap(), of);
            let is_in = |range: KeyRange, key: &[u8]| *range.begin <= *key && *key < *range.end;
            assert!(is_in(keys.access_buckets(), &newest) && !is_in(keys.all_access_cells(), &newest));
            assert!(is_in(keys.access_cells(bucket), &own) && is_in(keys.all_access_cells(), &own));
            assert!(!is_in(keys.access_cells(bucket.wrapping_add(1)), &own));
            assert!(keys.access_bucket_parse(&own).is_err() && keys.access_cell_parse(&newest).is_err());
            assert!(keys.access_cell_parse(&[own, vec![0]].concat()).is_err());
        }
    }

    /// 100,000 followed databases have 1.5 in a cell on average.
    #[test]
    fn names_are_spread_over_the_cells() {
        let mut counts = HashMap::<_, usize>::new();
        (0..100_000).for_each(|n| *counts.entry(AccessCell::of(&format!("user-{n}"))).or_default() += 1);
        let most = counts.values().copied().max().unwrap();
        assert!(counts.len() > 40_000 && most < 30, "{} cells, {most} in the fullest", counts.len());
    }
}
