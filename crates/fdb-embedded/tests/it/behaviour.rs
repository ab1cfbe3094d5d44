//! Read versions, watches, retries and limits, as in FoundationDB's documentation.

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use crate::common::{commit, on_error, open, promise, range, set, wait};
use fdb_embedded::{Error, KeySelector, RangeOptions};
use flatbed_testkit::{PATIENCE, until_blocking};

/// The age in microseconds from which read versions are refused.
const AGE_MAX: i64 = 5_000_000;

#[test]
fn ten_thousand_transactions_each_see_their_own_version() {
    // A slow machine needs more than five seconds for all of them; then some or all are too old.
    until_blocking("some can be read", || ten_thousand_transactions() > 0);
}

/// Returns the number of transactions that could read.
fn ten_thousand_transactions() -> usize {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let mut open = Vec::new();
    for number in 0..10_000u32 {
        // A commit of a conflict range alone makes a new version without waiting for the disk.
        let writer = engine.transaction();
        writer.add_conflict_range(b"k", b"l", true).unwrap();
        if number % 20 == 0 {
            writer.set(b"k", &number.to_le_bytes());
        }
        commit(&writer).unwrap();
        let transaction = engine.transaction();
        transaction.get(b"other", true).unwrap();
        open.push((number - number % 20, transaction));
    }
    let mut read = 0;
    for (number, transaction) in &open {
        match transaction.get(b"k", false) {
            Ok(value) => {
                assert_eq!(value, Some(number.to_le_bytes().to_vec()));
                read += 1;
            }
            Err(error) => {
                assert_eq!(error, Error::TRANSACTION_TOO_OLD);
                let now = engine.transaction().get_read_version().unwrap();
                assert!(now - transaction.get_read_version().unwrap() > AGE_MAX, "too old before its time");
            }
        }
    }
    let versions: std::collections::BTreeSet<_> =
        open.iter().filter_map(|(_, transaction)| transaction.get_read_version().ok()).collect();
    assert_eq!(versions.len(), open.len());
    drop(open);
    set(&engine, b"k", b"");
    assert!(engine.transaction().get(b"k", false).is_ok());
    read
}

#[test]
fn a_commit_keeps_the_read_version_and_the_cost() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let (writer, loser) = (engine.transaction(), engine.transaction());
    let versions = [&writer, &loser].map(|transaction| transaction.get_read_version().unwrap());
    assert_eq!(writer.get(b"k", false), Ok(None));
    assert_eq!(
        writer
            .get_range(
                KeySelector::first_greater_or_equal(b"a"),
                KeySelector::first_greater_or_equal(b"z"),
                &RangeOptions::default()
            )
            .unwrap()
            .pairs
            .len(),
        0
    );
    loser.get(b"k", false).unwrap();
    assert_eq!(writer.get_total_cost(), Ok(2 * 4_096));
    writer.set(b"k", &[0; 4_096]);
    writer.clear(b"l");
    loser.set(b"k", b"");
    assert_eq!((commit(&writer), commit(&loser)), (Ok(()), Err(Error::NOT_COMMITTED)));
    assert_eq!([&writer, &loser].map(|transaction| transaction.get_read_version()), versions.map(Ok));
    assert_eq!(writer.get_total_cost(), Ok((2 + 4 * 2 + 1) * 4_096));
    writer.reset();
    assert_eq!(writer.get_total_cost(), Ok(0));
    assert!(writer.get_read_version().unwrap() > versions[0]);
}

#[test]
fn a_read_version_lives_five_seconds_and_is_shared() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    set(&engine, b"k", b"1");
    let first = engine.transaction();
    let version = first.get_read_version().unwrap();
    let reader = engine.transaction();
    assert_eq!(reader.get(b"k", false), Ok(Some(b"1".to_vec())));
    drop(first);
    set(&engine, b"k", b"2");
    let at = |version: i64| {
        let transaction = engine.transaction();
        transaction.set_read_version(version);
        transaction
    };
    assert_eq!(at(version).get(b"k", false), Ok(Some(b"1".to_vec())), "the version was handed out");
    assert_eq!(at(version).get_read_version(), Ok(version));
    assert_eq!(at(version + 60_000_000).get(b"k", false), Err(Error::FUTURE_VERSION));
    assert_eq!(at(1).get(b"k", false), Err(Error::TRANSACTION_TOO_OLD));
    assert_eq!(at(0).get(b"k", false), Err(Error::VERSION_INVALID));
    let stale = at(version);
    stale.get(b"k", false).unwrap();
    stale.set(b"z", b"");
    assert_eq!(commit(&stale), Err(Error::NOT_COMMITTED), "the conflict is seen from the old version");
    for reader in [&reader, &at(version)] {
        until_blocking("the version is too old", || reader.get(b"k", false) == Err(Error::TRANSACTION_TOO_OLD));
        let now = engine.transaction().get_read_version().unwrap();
        assert!(now - reader.get_read_version().unwrap() > AGE_MAX, "too old before its time");
    }
    // Only the newest state is left, though transactions hold older ones.
    until_blocking("older states are closed", || engine.stats().open_snapshots == 1);
}

#[test]
fn a_snapshot_goes_with_its_last_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    for number in 0..50u8 {
        let transaction = engine.transaction();
        transaction.get(b"k", true).unwrap();
        set(&engine, b"k", &[number]);
    }
    assert!(engine.stats().open_snapshots <= 1, "{:?}", engine.stats());
}

#[test]
fn watches_fire_on_a_change_and_only_then() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let watch = |key: &[u8]| {
        let transaction = engine.transaction();
        let (done, fired) = promise();
        let id = transaction.watch(key, done);
        commit(&transaction).unwrap();
        (id.unwrap(), fired)
    };
    let (_, fired) = watch(b"k");
    set(&engine, b"other", b"1");
    assert_eq!(fired.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout));
    set(&engine, b"k", b"1");
    assert_eq!(wait(&fired), Ok(()));
    let (_, fired) = watch(b"k");
    let clearer = engine.transaction();
    clearer.clear_range(b"a", b"z");
    commit(&clearer).unwrap();
    assert_eq!(wait(&fired), Ok(()), "a cleared range changes the key too");
    let (id, fired) = watch(b"k");
    engine.cancel_watch(id);
    assert_eq!(wait(&fired), Err(Error::OPERATION_CANCELLED));
    let (_, fired) = watch(b"k");
    assert_eq!(engine.stats().open_watches, 1);
    drop((clearer, engine));
    assert_eq!(wait(&fired), Err(Error::OPERATION_CANCELLED), "closing the engine ends its watches");
}

#[test]
fn a_change_between_a_watch_and_its_commit_fires_it() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let transaction = engine.transaction();
    let (done, fired) = promise();
    transaction.watch(b"k", done).unwrap();
    set(&engine, b"k", b"1");
    commit(&transaction).unwrap();
    assert_eq!(wait(&fired), Ok(()));
}

#[test]
fn a_watch_that_is_set_while_a_commit_is_written_does_not_miss_it() {
    const LAST: u32 = 1_000;
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    std::thread::scope(|scope| {
        scope.spawn(|| (0..=LAST).for_each(|number| set(&engine, b"k", &number.to_le_bytes())));
        loop {
            let transaction = engine.transaction();
            let seen = transaction.get(b"k", true).unwrap();
            let (done, fired) = promise();
            transaction.watch(b"k", done).unwrap();
            commit(&transaction).unwrap();
            if seen.as_deref() == Some(&LAST.to_le_bytes()[..]) {
                return;
            }
            assert_eq!(fired.recv_timeout(PATIENCE), Ok(Ok(())), "a change after {seen:?} fires");
        }
    });
}

#[test]
fn watches_have_a_limit_and_go_with_their_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    engine.set_default_option(20, Some(&2i64.to_le_bytes())).unwrap();
    let transaction = engine.transaction();
    let mut answers = Vec::new();
    for key in [b"a", b"b", b"c"] {
        let (done, fired) = promise();
        transaction.watch(key, done);
        answers.push(fired);
    }
    assert_eq!(wait(&answers[2]), Err(Error::TOO_MANY_WATCHES));
    drop(transaction);
    assert_eq!(wait(&answers[0]), Err(Error::TRANSACTION_CANCELLED));
    assert_eq!(wait(&answers[1]), Err(Error::TRANSACTION_CANCELLED));
    assert_eq!(engine.stats().open_watches, 0);
}

#[test]
fn the_metadata_version_needs_no_option() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let key = b"\xff/metadataVersion";
    assert_eq!(engine.transaction().get(key, false), Ok(None));
    let transaction = engine.transaction();
    transaction.atomic_op(key, &[0; 14], 15);
    let (done, stamp) = promise();
    transaction.get_versionstamp(done);
    commit(&transaction).unwrap();
    assert_eq!(engine.transaction().get(key, false), Ok(Some(wait(&stamp).unwrap().to_vec())));
    let transaction = engine.transaction();
    transaction.set(key, b"x");
    assert_eq!(commit(&transaction), Err(Error::CLIENT_INVALID_OPERATION));
}

#[test]
fn stamped_keys_are_unreadable_from_both_sides_unless_a_limit_comes_first() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    for key in [b"a", b"z"] {
        set(&engine, key, b"");
    }
    let transaction = engine.transaction();
    let stamped = [&b"s/"[..], &[0xff; 10], &2u32.to_le_bytes()].concat();
    transaction.atomic_op(&stamped, b"v", 14);
    transaction.atomic_op(b"t", &[0; 14], 15);
    let read = |begin: &[u8], end: &[u8], limit, reverse| {
        let options = RangeOptions { limit, mode: if limit == 0 { -2 } else { 0 }, reverse, ..RangeOptions::default() };
        range(&transaction, begin, end, &options).map(|pairs| pairs.len())
    };
    let unreadable = Err(Error::ACCESSED_UNREADABLE);
    for (limit, reverse) in [(0, false), (0, true), (2, false), (2, true)] {
        assert_eq!(read(b"", b"\xff", limit, reverse), unreadable.clone());
    }
    assert_eq!(read(b"", b"\xff", 1, false), Ok(1));
    assert_eq!(read(b"", b"\xff", 1, true), Ok(1));
    assert_eq!(read(b"", b"s/", 0, true), Ok(1));
    assert_eq!(read(b"t\0", b"\xff", 0, true), Ok(1));
    assert_eq!(read(b"s0", b"t", 0, true), Ok(0));
    assert_eq!(read(b"s/\x01", b"s/\x02", 0, true), unreadable.clone());
    assert_eq!(transaction.get(b"s/\x01", false), Err(Error::ACCESSED_UNREADABLE));
    assert_eq!(transaction.get(b"t", false), Err(Error::ACCESSED_UNREADABLE));
    assert_eq!(transaction.get_key(KeySelector::first_greater_than(b"t"), false), Ok(b"z".to_vec()));
    let last_below_t = KeySelector { key: b"t", or_equal: false, offset: 0 };
    assert_eq!(transaction.get_key(last_below_t, false), Err(Error::ACCESSED_UNREADABLE));
    transaction.set_option(1100, None).unwrap();
    assert_eq!(transaction.get(b"t", false), Ok(Some(vec![0; 14])), "bypass_unreadable shows the raw operand");
}

#[test]
fn a_large_range_comes_in_pieces_that_grow() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let transaction = engine.transaction();
    for number in 0..2_000u32 {
        transaction.set(&number.to_be_bytes(), &[0; 92]);
    }
    commit(&transaction).unwrap();
    let piece = |mode, iteration, target_bytes| {
        let options = RangeOptions { mode, iteration, target_bytes, ..RangeOptions::default() };
        let ends = (KeySelector::first_greater_or_equal(b""), KeySelector::first_greater_or_equal(b"\xff"));
        engine.transaction().get_range(ends.0, ends.1, &options).map(|piece| (piece.pairs.len(), piece.more))
    };
    assert_eq!(piece(-1, 1, 0), Ok((35, true)));
    assert_eq!(piece(-1, 2, 0), Ok((52, true)));
    assert_eq!(piece(-2, 1, 0), Ok((667, true)));
    assert_eq!(piece(1, 1, 0), Ok((3, true)));
    assert_eq!(piece(4, 1, 500), Ok((5, true)));
    assert_eq!(piece(0, 1, 0), Err(Error::EXACT_MODE_WITHOUT_LIMITS));
    assert_eq!(piece(-1, 0, 0), Err(Error::CLIENT_INVALID_OPERATION));
    assert_eq!(piece(5, 1, 0), Err(Error::CLIENT_INVALID_OPERATION));
    let reader = engine.transaction();
    for mode in [-2, -1, 1, 2, 3, 4] {
        for reverse in [false, true] {
            let options = RangeOptions { mode, reverse, ..RangeOptions::default() };
            assert_eq!(range(&reader, b"", b"\xff", &options).unwrap().len(), 2_000);
        }
    }
    let bytes = reader.get_estimated_range_size_bytes(b"", b"\xff").unwrap();
    assert_eq!(bytes, 2_000 * 96);
    assert_eq!(reader.get_range_split_points(b"", b"\xff", 96_000).unwrap().len(), 3);
}

#[test]
fn special_keys_tell_status_and_conflicts() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    set(&engine, b"k", b"v");
    let transaction = engine.transaction();
    let status = transaction.get(b"\xff\xff/status/json", false).unwrap().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    assert_eq!(status["cluster"]["database_available"], true);
    assert_eq!(transaction.get(b"\xff\xff/nothing", false), Err(Error::SPECIAL_KEYS_NO_MODULE_FOUND));
    transaction.set_option(712, None).unwrap();
    transaction.get(b"k", false).unwrap();
    transaction.get(b"l", false).unwrap();
    transaction.set(b"m", b"");
    set(&engine, b"k", b"w");
    assert_eq!(commit(&transaction), Err(Error::NOT_COMMITTED));
    let prefix = b"\xff\xff/transaction/conflicting_keys/";
    let found = range(&transaction, prefix, b"\xff\xff/transaction/conflicting_keys0", &RangeOptions::default());
    let expected = |key: &[u8], value: &[u8]| ([prefix, key].concat(), value.to_vec());
    assert_eq!(found.unwrap(), [expected(b"k", b"1"), expected(b"k\0", b"0")]);
    let transaction = engine.transaction();
    transaction.set(b"\xff\xff/x", b"");
    assert_eq!(commit(&transaction), Err(Error::SPECIAL_KEYS_WRITE_DISABLED));
}

#[test]
fn a_timeout_ends_what_waits() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let transaction = engine.transaction();
    transaction.set_option(500, Some(&30i64.to_le_bytes())).unwrap();
    transaction.set_option(502, Some(&60_000i64.to_le_bytes())).unwrap();
    let mut result = Ok(());
    for _ in 0..40 {
        result = on_error(&transaction, 1020);
        if result.is_err() {
            break;
        }
    }
    assert_eq!(result, Err(Error::TRANSACTION_TIMED_OUT), "the timeout goes on over retries");
    transaction.reset();
    assert!(transaction.get(b"k", false).is_ok());
}

#[test]
fn cancelling_answers_a_retry_that_waits() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let transaction = engine.transaction();
    let (done, answer) = promise();
    transaction.on_error(1007, done);
    transaction.cancel();
    assert_eq!(wait(&answer), Err(Error::TRANSACTION_CANCELLED));
}

#[test]
fn a_dropped_transaction_still_commits_and_answers() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let (done, answer) = promise();
    let (stamp_done, stamp) = promise();
    let transaction = engine.transaction();
    transaction.set(b"k", b"v");
    transaction.get_versionstamp(stamp_done);
    transaction.commit(done);
    drop(transaction);
    assert_eq!(wait(&answer), Ok(()));
    assert!(wait(&stamp).is_ok());
    assert_eq!(engine.transaction().get(b"k", false), Ok(Some(b"v".to_vec())));
}

#[test]
fn the_last_handle_may_be_dropped_in_a_callback() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let transaction = engine.transaction();
    transaction.set(b"k", b"v");
    let (done, answer) = promise();
    let held = engine.clone();
    transaction.commit(Box::new(move |result| {
        drop(held);
        done(result);
    }));
    drop((transaction, engine));
    assert_eq!(wait(&answer), Ok(()));
    assert_eq!(open(dir.path()).transaction().get(b"k", false), Ok(Some(b"v".to_vec())));
}

#[test]
fn a_callback_that_panics_harms_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let transaction = engine.transaction();
    transaction.set(b"k", b"v");
    transaction.commit(Box::new(|_| panic!("a callback's own panic")));
    let retrying = engine.transaction();
    retrying.on_error(1007, Box::new(|_| panic!("a callback's own panic")));
    set(&engine, b"k", b"w");
    assert_eq!(on_error(&engine.transaction(), 1007), Ok(()));
    assert_eq!(engine.transaction().get(b"k", false), Ok(Some(b"w".to_vec())));
}

#[test]
fn every_callback_comes_once_whatever_threads_do_to_a_transaction() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let (asked, answered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    std::thread::scope(|scope| {
        let shared: Vec<_> = (0..2).map(|_| Arc::new(engine.transaction())).collect();
        for thread in 0..4u64 {
            let (shared, engine, asked, answered) =
                (shared.clone(), &engine, Arc::clone(&asked), Arc::clone(&answered));
            scope.spawn(move || {
                let mut seed = thread + 1;
                for step in 0..3_000u32 {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let own = engine.transaction();
                    let transaction = if step % 3 == 0 { &own } else { &*shared[(seed >> 60) as usize % 2] };
                    let answered = Arc::clone(&answered);
                    let count = move || {
                        answered.fetch_add(1, Ordering::Relaxed);
                    };
                    let key = [(seed >> 40) as u8 % 8];
                    let ask = || asked.fetch_add(1, Ordering::Relaxed);
                    match (seed >> 33) % 10 {
                        0 => drop(transaction.get(&key, false)),
                        1 => transaction.set(&key, &step.to_le_bytes()),
                        2 => {
                            ask();
                            transaction.get_versionstamp(Box::new(move |_| count()));
                        }
                        3 | 4 => {
                            transaction.set(&key, b"v");
                            ask();
                            transaction.commit(Box::new(move |_| count()));
                        }
                        5 => {
                            ask();
                            let id = transaction.watch(&key, Box::new(move |_| count()));
                            if let Some(id) = id.filter(|_| step % 2 == 0) {
                                engine.cancel_watch(id);
                            }
                        }
                        6 => {
                            ask();
                            transaction.on_error(1007, Box::new(move |_| count()));
                        }
                        7 => transaction.cancel(),
                        _ => transaction.reset(),
                    }
                }
            });
        }
    });
    drop(engine);
    // The engine may end on a thread of its own, whose last callbacks come just after.
    let (asked, count) = (asked.load(Ordering::Relaxed), || answered.load(Ordering::Relaxed));
    until_blocking("all are answered", || count() >= asked);
    assert_eq!(count(), asked);
}

#[test]
fn a_commit_after_a_read_that_failed_fails_as_the_read_did() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let transaction = engine.transaction();
    // A versionstamped value cannot be read before the commit: 1036.
    transaction.atomic_op(b"k", &[0; 14], 15);
    let error = transaction.get(b"k", false).unwrap_err();
    assert_eq!(error, Error(1036));
    assert_eq!(commit(&transaction), Err(error));
    transaction.reset();
    transaction.set(b"k", b"v");
    assert_eq!(commit(&transaction), Ok(()));
}

#[test]
fn hostile_calls_answer_errors() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let failing = |write: &dyn Fn(&fdb_embedded::Transaction)| {
        let transaction = engine.transaction();
        write(&transaction);
        commit(&transaction)
    };
    let place = |place: u32| [&[0u8; 12][..], &place.to_le_bytes()].concat();
    assert_eq!(failing(&|t| t.atomic_op(b"k", b"", 15)), Err(Error::CLIENT_INVALID_OPERATION));
    assert_eq!(failing(&|t| t.atomic_op(b"k", &place(3), 15)), Err(Error::CLIENT_INVALID_OPERATION));
    assert_eq!(failing(&|t| t.atomic_op(b"k", &place(u32::MAX), 15)), Err(Error::CLIENT_INVALID_OPERATION));
    assert_eq!(failing(&|t| t.atomic_op(b"abc", b"", 14)), Err(Error::CLIENT_INVALID_OPERATION));
    assert_eq!(failing(&|t| t.atomic_op(b"k", b"", 99)), Err(Error::INVALID_MUTATION_TYPE));
    assert_eq!(failing(&|t| t.atomic_op(b"k", b"", i32::MIN)), Err(Error::INVALID_MUTATION_TYPE));
    assert_eq!(failing(&|t| t.clear(&vec![0; 20_000])), Ok(()));
    assert_eq!(failing(&|t| t.clear_range(&vec![1; 20_000], &vec![2; 20_000])), Ok(()));
    let transaction = engine.transaction();
    assert_eq!(transaction.set_option(77, None), Err(Error::INVALID_OPTION));
    assert_eq!(transaction.get(&vec![0; 100_000], false), Ok(None));
    for offset in [i32::MIN, -1, 0, 1, i32::MAX] {
        for or_equal in [false, true] {
            let selector = KeySelector { key: b"k", or_equal, offset };
            assert!(transaction.get_key(selector, false).is_ok());
            assert!(transaction.get_range(selector, selector, &RangeOptions::default()).is_ok());
        }
    }
    let limits = RangeOptions { limit: -5, ..RangeOptions::default() };
    let selector = KeySelector::first_greater_or_equal(b"");
    assert_eq!(transaction.get_range(selector, selector, &limits).unwrap_err(), Error::RANGE_LIMITS_INVALID);
    assert_eq!(transaction.add_conflict_range(b"b", b"a", true), Err(Error::INVERTED_RANGE));
}
