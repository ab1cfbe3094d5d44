//! Clears of large ranges: the engine removes the records in the background, across restarts, unseen by readers.

use std::path::Path;

use crate::common::{commit, range, set};
use fdb_embedded::{Engine, OpenOptions, RangeOptions};
use flatbed_testkit::until_blocking;

const KEYS: usize = 12_000;

fn open(dir: &Path, records_max: usize, is_paused: bool) -> Engine {
    let mut options = OpenOptions::default();
    options.clear_records_max = Some(records_max);
    options.is_removal_paused = is_paused;
    let engine = Engine::open(dir, options).expect("an engine");
    // The test counts records, so the time keeper must add none.
    let transaction = engine.transaction();
    transaction.set_option(301, None).expect("an option");
    transaction.set(b"\xff\x02/timeKeeper/disable", b"");
    commit(&transaction).expect("a commit");
    engine
}

fn key(number: usize) -> Vec<u8> {
    // Every hundredth key is longer than an LMDB key, and shares its first bytes with others.
    let tail = if number.is_multiple_of(100) { vec![b'x'; 2_500] } else { Vec::new() };
    [format!("k{number:06}").as_bytes(), &tail].concat()
}

fn fill(engine: &Engine) {
    for from in (0..KEYS).step_by(3_000) {
        let transaction = engine.transaction();
        (from..from + 3_000).for_each(|number| transaction.set(&key(number), b"value"));
        commit(&transaction).expect("a commit");
    }
}

fn clear_all_and_set(engine: &Engine, numbers: impl IntoIterator<Item = usize>) {
    let transaction = engine.transaction();
    transaction.clear_range(b"k", b"l");
    numbers.into_iter().for_each(|number| transaction.set(&key(number), b"again"));
    commit(&transaction).expect("a commit");
}

/// Returns all keys after reading them in both directions.
fn all(engine: &Engine) -> Vec<Vec<u8>> {
    let keys = |reverse| {
        let options = RangeOptions { reverse, ..RangeOptions::default() };
        let pairs = range(&engine.transaction(), b"", b"\xff", &options).expect("a range");
        pairs.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    let (up, mut down) = (keys(false), keys(true));
    down.reverse();
    assert!(up == down, "{} keys upwards, {} downwards", up.len(), down.len());
    up
}

/// The records of the file, including the engine's own two and the one of [`open`].
fn records(dir: &Path) -> u64 {
    let mut options = heed::EnvOpenOptions::new().read_txn_without_tls();
    // SAFETY: no engine has the directory open.
    let env = unsafe { options.map_size(1 << 30).open(dir) }.expect("LMDB");
    env.unnamed_database_stat().entries as u64
}

fn wait_for_removal(engine: &Engine) {
    until_blocking("the records are removed", || engine.stats().pending_clears == 0);
}

#[test]
fn what_was_cleared_is_gone_at_once_and_its_records_later() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), 100, false);
    set(&engine, b"a", b"before");
    fill(&engine);
    let earlier = engine.transaction();
    let count = earlier.get_read_version().map(|_| all(&engine).len());
    assert_eq!(count, Ok(KEYS + 1));
    clear_all_and_set(&engine, [5]);
    for number in [0, 100, KEYS - 1] {
        set(&engine, &key(number), b"again");
    }
    assert_eq!(all(&engine).len(), 5);
    wait_for_removal(&engine);
    assert_eq!(all(&engine), [b"a".to_vec(), key(0), key(5), key(100), key(KEYS - 1)]);
    assert_eq!(earlier.get(&key(7), false), Ok(Some(b"value".to_vec())), "an older state changed");
    drop((earlier, engine));
    assert_eq!(records(dir.path()), 5 + 3);
}

#[test]
fn a_restart_goes_on_with_the_removal() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), 10, true);
    fill(&engine);
    clear_all_and_set(&engine, []);
    set(&engine, &key(4_000), b"again");
    assert_eq!(engine.stats().pending_clears, 2);
    drop(engine);
    assert!(records(dir.path()) > 11_000);
    let engine = open(dir.path(), 10, true);
    assert_eq!(all(&engine), [key(4_000)]);
    drop(engine);
    let engine = open(dir.path(), 10, false);
    assert_eq!(all(&engine), [key(4_000)]);
    wait_for_removal(&engine);
    assert_eq!(all(&engine), [key(4_000)]);
    drop(engine);
    assert_eq!(records(dir.path()), 1 + 3);
}

#[test]
fn one_transaction_clears_everything_and_writes_half_of_it_anew() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), 0, false);
    fill(&engine);
    // Each write splits the pending range, into more pieces than the limit.
    clear_all_and_set(&engine, (0..KEYS).step_by(2));
    let expected: Vec<_> = (0..KEYS).step_by(2).map(key).collect();
    assert!(all(&engine) == expected, "right after the commit");
    set(&engine, b"a", b"the removal of too many pieces comes first");
    set(&engine, b"a", b"and so before this");
    assert!(engine.stats().pending_clears <= 1_024);
    wait_for_removal(&engine);
    assert!(all(&engine)[1..] == expected, "after the removal");
    drop(engine);
    assert_eq!(records(dir.path()), 1 + expected.len() as u64 + 3);
}
