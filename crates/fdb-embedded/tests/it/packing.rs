//! The fill of the data file's pages.

use fdb_embedded::RangeOptions;

use crate::common::{commit, open, range as range_of};

const VALUE: [u8; 60] = [b'v'; 60];

fn key(range: u8, number: usize) -> Vec<u8> {
    [&[b'r', range, b'/'][..], &(number as u64).to_be_bytes()].concat()
}

/// Appends this many records to three ranges, some to each in one commit. Returns the file's size relative to the
/// records' bytes: tag and key, value and checksum, head and place.
fn file_share(records: usize, records_per_commit: usize) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    for first in (0..records).step_by(records_per_commit) {
        let transaction = engine.transaction();
        for number in first..records.min(first + records_per_commit) {
            for range in 0..3 {
                transaction.set(&key(range, number), &VALUE);
            }
        }
        commit(&transaction).unwrap();
    }
    for range in 0..3 {
        let options = RangeOptions::default();
        let found = range_of(&engine.transaction(), &key(range, 0), &key(range, usize::MAX), &options).unwrap();
        assert!(found.into_iter().eq((0..records).map(|number| (key(range, number), VALUE.to_vec()))), "{records}");
    }
    engine.stats().data_bytes as f64 / (3 * records * (key(0, 0).len() + VALUE.len() + 15)) as f64
}

#[test]
fn ranges_that_grow_at_their_ends_fill_their_pages() {
    for (records, records_per_commit) in [(12_000, 500), (6_000, 40), (2_800, 7), (1_500, 1)] {
        let share = file_share(records, records_per_commit);
        println!("{records_per_commit} records of each range in a commit: {share:.2}");
        assert!(share < 1.5, "{records_per_commit} in a commit: {share:.2} times the records' bytes");
    }
}
