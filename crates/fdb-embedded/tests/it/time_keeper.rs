//! The time keeper's entries: written for their readers only.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::common::{commit, open, range, set};
use fdb_embedded::{Engine, RangeOptions};

const MAP: (&[u8], &[u8]) = (b"\xff\x02/timeKeeper/map/", b"\xff\x02/timeKeeper/map0");

fn entries(engine: &Engine) -> Vec<(Vec<u8>, Vec<u8>)> {
    let transaction = engine.transaction();
    transaction.set_option(302, None).unwrap();
    range(&transaction, MAP.0, MAP.1, &RangeOptions::default()).unwrap()
}

/// The integer of a tuple of one positive integer.
fn integer(tuple: &[u8]) -> u64 {
    assert_eq!(usize::from(tuple[0]), 0x13 + tuple.len(), "{tuple:?}");
    tuple[1..].iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[test]
fn who_reads_finds_an_entry_of_now() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (begun, before, found, after) = (Instant::now(), now(), entries(&engine), now());
    let [(key, value)] = found.as_slice() else { panic!("{found:?}") };
    assert!((before..=after).contains(&integer(&key[MAP.0.len()..])));
    let read_version = engine.transaction().get_read_version().unwrap().unsigned_abs();
    assert!((1..=read_version).contains(&integer(value)));
    let again = entries(&engine);
    assert!(again == found || Instant::now() > begun + Duration::from_secs(10), "one in ten seconds: {again:?}");
}

#[test]
fn a_commit_takes_an_entry_along() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let reader = engine.transaction();
    reader.set_option(302, None).unwrap();
    reader.get_read_version().unwrap();
    set(&engine, b"k", b"");
    let batches = engine.stats().batches;
    assert_eq!(entries(&engine).len(), 1);
    assert_eq!(engine.stats().batches, batches, "nothing was written for the reader");
    let before = range(&reader, MAP.0, MAP.1, &RangeOptions::default()).unwrap();
    assert_eq!(before, [], "the entry is younger than its read version");
    // It conflicts with later writes, as any read.
    reader.set_option(301, None).unwrap();
    reader.set(b"k", b"");
    assert_eq!(commit(&reader), Err(fdb_embedded::Error::NOT_COMMITTED));
}

#[test]
fn nothing_is_written_for_other_readers_or_while_disabled() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let reader = engine.transaction();
    reader.set_option(302, None).unwrap();
    assert_eq!(range(&reader, b"", b"\xff", &RangeOptions::default()), Ok(vec![]));
    assert_eq!(reader.get(b"\xff\x02/timeKeeper/version", false), Ok(None));
    assert_eq!(engine.stats().batches, 0);
    let disabler = engine.transaction();
    disabler.set_option(301, None).unwrap();
    disabler.set(b"\xff\x02/timeKeeper/disable", b"");
    commit(&disabler).unwrap();
    assert_eq!(entries(&engine), []);
}

#[test]
fn the_locality_functions_find_one_shard() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let reader = engine.transaction();
    reader.set_option(302, None).unwrap();
    let found = range(&reader, b"\xff/keyServers/", b"\xff/keyServers/\xff", &RangeOptions::default()).unwrap();
    assert_eq!(found, [(b"\xff/keyServers/".to_vec(), vec![])]);
    let batches = engine.stats().batches;
    assert_eq!(reader.get(b"\xff/keyServers/", true), Ok(Some(vec![])));
    assert_eq!(engine.stats().batches, batches, "it is written once a run");
}
