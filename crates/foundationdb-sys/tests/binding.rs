//! The unmodified crate `foundationdb` on this one: on the embedded engine in a temporary directory, or on the cluster
//! in `FLATBED_CLUSTER_FILE`, under a prefix of the test's own.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests and their helpers")]

use flatbed_testkit::Storage;
use foundationdb::options::{ConflictRangeType, MutationType, StreamingMode};
use foundationdb::tuple::pack;
use foundationdb::{Database, FdbError, KeySelector, RangeOption, Transaction};
use futures::TryStreamExt;
use futures::executor::block_on;

fn key(prefix: &[u8], rest: impl AsRef<[u8]>) -> Vec<u8> {
    [prefix, rest.as_ref()].concat()
}

fn create(database: &Database) -> Transaction {
    database.create_trx().expect("created")
}

fn get(database: &Database, key: &[u8]) -> Option<Vec<u8>> {
    block_on(create(database).get(key, false)).expect("read").map(|value| value.to_vec())
}

fn fill(database: &Database, prefix: &[u8], count: usize) {
    let trx = create(database);
    for i in 0..count {
        trx.set(&key(prefix, format!("{i:04}")), format!("value {i}").as_bytes());
    }
    block_on(trx.commit()).expect("committed");
}

#[test]
fn keys_are_set_read_and_cleared() {
    let storage = Storage::new();
    let (database, prefix) = (storage.fdb.clone(), storage.root.clone());
    let (a, b) = (key(&prefix, "a"), key(&prefix, "b"));
    let trx = create(&database);
    trx.set(&a, b"1");
    trx.set(&b, b"");
    assert_eq!(block_on(trx.get(&a, false)).expect("read").as_deref(), Some(&b"1"[..]), "its own write");
    assert_eq!(get(&database, &a), None, "not yet committed");
    block_on(trx.commit()).expect("committed");
    assert_eq!(get(&database, &a), Some(b"1".to_vec()));
    assert_eq!(get(&database, &b), Some(Vec::new()), "empty is not absent");

    let trx = create(&database);
    trx.clear(&a);
    block_on(trx.commit()).expect("committed");
    assert_eq!(get(&database, &a), None);
    assert_eq!(get(&database, &b), Some(Vec::new()));
}

#[test]
fn every_streaming_mode_reads_a_whole_range_both_ways() {
    if std::env::var_os("FLATBED_FDB_BUGGIFY").is_some() {
        println!("skipped: the streams of the crate foundationdb end at a page without rows");
        return;
    }
    let storage = Storage::new();
    let (database, prefix) = (storage.fdb.clone(), storage.root.clone());
    fill(&database, &prefix, 1_000);
    let mut end = prefix.clone();
    end.push(0xFF);
    for mode in [
        StreamingMode::WantAll,
        StreamingMode::Iterator,
        StreamingMode::Small,
        StreamingMode::Medium,
        StreamingMode::Large,
        StreamingMode::Serial,
    ] {
        for reverse in [false, true] {
            let range = RangeOption { mode, reverse, ..RangeOption::from((prefix.clone(), end.clone())) };
            let trx = create(&database);
            let rows: Vec<_> = block_on(trx.get_ranges_keyvalues(range, false).try_collect()).expect("read");
            assert_eq!(rows.len(), 1_000, "{mode:?} {reverse}");
            for (at, row) in rows.iter().enumerate() {
                let i = if reverse { 999 - at } else { at };
                assert_eq!(row.key(), key(&prefix, format!("{i:04}")), "{mode:?} {reverse}");
                assert_eq!(row.value(), format!("value {i}").as_bytes(), "{mode:?} {reverse}");
            }
        }
    }

    let exact =
        RangeOption { mode: StreamingMode::Exact, limit: Some(7), ..RangeOption::from((prefix.clone(), end.clone())) };
    let rows = block_on(create(&database).get_range(&exact, 1, false)).expect("read");
    assert_eq!(rows.len(), 7);
    assert!(rows.more());
    let unlimited = RangeOption { mode: StreamingMode::Exact, ..RangeOption::from((prefix, end)) };
    let error = block_on(create(&database).get_range(&unlimited, 1, false)).map(drop).expect_err("no limit");
    assert_eq!(error.code(), 2210, "exact_mode_without_limits");
}

#[test]
fn selectors_resolve_by_order_and_offset() {
    let storage = Storage::new();
    let (database, prefix) = (storage.fdb.clone(), storage.root.clone());
    fill(&database, &prefix, 10);
    let at = |i: usize| key(&prefix, format!("{i:04}"));
    let trx = create(&database);
    let resolve = |selector: KeySelector<'_>| block_on(trx.get_key(&selector, false)).expect("read").to_vec();
    assert_eq!(resolve(KeySelector::first_greater_or_equal(at(3))), at(3));
    assert_eq!(resolve(KeySelector::first_greater_than(at(3))), at(4));
    assert_eq!(resolve(KeySelector::last_less_or_equal(at(3))), at(3));
    assert_eq!(resolve(KeySelector::last_less_than(at(3))), at(2));
    assert_eq!(resolve(KeySelector::new(at(3).into(), false, 4)), at(6));
    trx.clear(&at(4));
    assert_eq!(resolve(KeySelector::first_greater_than(at(3))), at(5), "its own clear");
}

#[test]
fn atomic_operations_combine() {
    let storage = Storage::new();
    let (database, prefix) = (storage.fdb.clone(), storage.root.clone());
    let counter = key(&prefix, "counter");
    for expected in 1..=3u64 {
        let trx = create(&database);
        trx.atomic_op(&counter, &1u64.to_le_bytes(), MutationType::Add);
        block_on(trx.commit()).expect("committed");
        assert_eq!(get(&database, &counter), Some(expected.to_le_bytes().to_vec()));
    }
    for (operation, operand, expected) in [
        (MutationType::BitXor, 0b0110, 0b0101),
        (MutationType::BitOr, 0b1000, 0b1101),
        (MutationType::BitAnd, 0b0101, 0b0101),
        (MutationType::Max, 9, 9),
        (MutationType::Min, 2, 2),
        (MutationType::ByteMax, 7, 7),
        (MutationType::ByteMin, 4, 4),
    ] {
        let trx = create(&database);
        trx.atomic_op(&counter, &[operand, 0, 0, 0, 0, 0, 0, 0], operation);
        block_on(trx.commit()).expect("committed");
        assert_eq!(get(&database, &counter).map(|value| value[0]), Some(expected), "{operation:?}");
    }
    let trx = create(&database);
    trx.atomic_op(&counter, &[4, 0, 0, 0, 0, 0, 0, 0], MutationType::CompareAndClear);
    block_on(trx.commit()).expect("committed");
    assert_eq!(get(&database, &counter), None);
}

#[test]
fn a_conflicting_commit_is_refused_and_can_be_retried() {
    let storage = Storage::new();
    let (database, prefix) = (storage.fdb.clone(), storage.root.clone());
    let (read, written) = (key(&prefix, "read"), key(&prefix, "written"));
    let trx = create(&database);
    block_on(trx.get(&read, false)).expect("read");
    trx.set(&written, b"first");

    let other = create(&database);
    other.set(&read, b"changed");
    block_on(other.commit()).expect("committed");

    let error = block_on(trx.commit()).expect_err("its read is stale");
    assert_eq!(error.code(), 1020);
    assert!(error.is_retryable() && error.is_retryable_not_committed() && !error.is_maybe_committed());
    assert_eq!(get(&database, &written), None);

    let trx = block_on(error.on_error()).expect("retryable");
    assert_eq!(block_on(trx.get(&read, false)).expect("read").as_deref(), Some(&b"changed"[..]));
    trx.set(&written, b"second");
    block_on(trx.commit()).expect("committed");
    assert_eq!(get(&database, &written), Some(b"second".to_vec()));

    // Snapshot reads conflict only with ranges added explicitly.
    for (by_hand, conflicts) in [(false, false), (true, true)] {
        let trx = create(&database);
        block_on(trx.get(&read, true)).expect("read");
        trx.set(&written, b"third");
        if by_hand {
            trx.add_conflict_range(&read, &key(&read, [0]), ConflictRangeType::Read).expect("added");
        }
        let other = create(&database);
        other.set(&read, b"changed again");
        block_on(other.commit()).expect("committed");
        assert_eq!(block_on(trx.commit()).is_err(), conflicts);
    }
}

#[test]
fn an_error_that_is_not_retryable_comes_back_from_on_error() {
    let Storage { fdb: database, .. } = &Storage::new();
    let error = block_on(create(database).on_error(FdbError::from_code(2101))).expect_err("not retryable");
    assert_eq!(error.code(), 2101);
    block_on(create(database).on_error(FdbError::from_code(1007))).expect("retryable");
    assert_eq!(
        FdbError::from_code(1020).message(),
        "Transaction not committed due to conflict with another transaction"
    );
}

#[test]
fn versionstamps_are_the_commits() {
    let storage = Storage::new();
    let (database, prefix) = (storage.fdb.clone(), storage.root.clone());
    let trx = create(&database);
    let stamped_value = key(&prefix, "value");
    trx.atomic_op(&stamped_value, &[0; 14], MutationType::SetVersionstampedValue);
    let at = u32::try_from(prefix.len()).expect("short").to_le_bytes();
    let stamped_key = [&prefix[..], &[0; 10], &at].concat();
    trx.atomic_op(&stamped_key, b"by key", MutationType::SetVersionstampedKey);
    let versionstamp = trx.get_versionstamp();
    let committed = block_on(trx.commit()).expect("committed");
    let version = committed.committed_version().expect("a version");
    let versionstamp = block_on(versionstamp).expect("a versionstamp").to_vec();
    assert_eq!(versionstamp.len(), 10);
    assert_eq!(versionstamp[..8], version.to_be_bytes());
    assert_eq!(get(&database, &stamped_value), Some(versionstamp.clone()));
    assert_eq!(get(&database, &key(&prefix, &versionstamp)), Some(b"by key".to_vec()));
}

#[test]
fn a_watch_fires_on_a_change() {
    let storage = Storage::new();
    let (database, prefix) = (storage.fdb.clone(), storage.root.clone());
    let watched = key(&prefix, "watched");
    let trx = create(&database);
    let watch = trx.watch(&watched);
    block_on(trx.commit()).expect("committed");
    let writer = create(&database);
    writer.set(&watched, b"changed");
    block_on(writer.commit()).expect("committed");
    block_on(watch).expect("fired");

    let trx = create(&database);
    let abandoned = trx.watch(&watched);
    drop(trx);
    assert_eq!(block_on(abandoned).expect_err("its transaction was not committed").code(), 1025);
}

#[test]
fn read_versions_are_shared() {
    let storage = Storage::new();
    let (database, prefix) = (storage.fdb.clone(), storage.root.clone());
    let changed = key(&prefix, "changed");
    let first = create(&database);
    let version = block_on(first.get_read_version()).expect("a version");
    let writer = create(&database);
    writer.set(&changed, b"later");
    block_on(writer.commit()).expect("committed");
    let second = create(&database);
    second.set_read_version(version);
    assert_eq!(block_on(second.get(&changed, false)).expect("read").as_deref(), None);
    assert_eq!(get(&database, &changed), Some(b"later".to_vec()));
}

#[test]
fn many_threads_count_together() {
    let storage = Storage::new();
    let (database, prefix) = (storage.fdb.clone(), storage.root.clone());
    let counter = key(&prefix, "counter");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..25 {
                    block_on(database.run(|trx, _| {
                        let counter = counter.clone();
                        async move {
                            let old = trx.get(&counter, false).await?;
                            let old = old.map_or(0, |value| u64::from_le_bytes(value[..].try_into().expect("8 bytes")));
                            trx.set(&counter, &(old + 1).to_le_bytes());
                            Ok(())
                        }
                    }))
                    .expect("committed");
                }
            });
        }
    });
    assert_eq!(get(&database, &counter), Some(200u64.to_le_bytes().to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn futures_wake_tokio_tasks() {
    let storage = Storage::new();
    let (database, prefix) = (storage.fdb.clone(), storage.root.clone());
    let tasks = (0..64u32).map(|i| {
        let (database, key) = (database.clone(), key(&prefix, i.to_be_bytes()));
        tokio::spawn(async move {
            let trx = database.create_trx()?;
            trx.set(&key, b"written");
            trx.commit().await?;
            let value = database.create_trx()?.get(&key, false).await?;
            Ok::<_, FdbError>(value.map(|value| value.to_vec()))
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        assert_eq!(task.await.expect("ran").expect("committed"), Some(b"written".to_vec()));
    }
}

#[test]
fn a_mapped_range_reads_an_index_and_its_records() {
    let storage = Storage::new();
    let (database, prefix) = (storage.fdb.clone(), storage.root.clone());
    let text = String::from_utf8(prefix).expect("UTF-8");
    let trx = create(&database);
    for id in 0..20 {
        trx.set(&pack(&(&text, "index", id % 2, id)), b"");
        for part in ["name", "place"] {
            trx.set(&pack(&(&text, "data", id, part)), format!("{part} of {id}").as_bytes());
        }
    }
    block_on(trx.commit()).expect("committed");
    let (begin, end) = (pack(&(&text, "index", 1)), pack(&(&text, "index", 2)));
    let range = RangeOption::from((begin, end));
    let mapper = pack(&(&text, "data", "{K[3]}", "{...}"));
    let trx = create(&database);
    let answer = block_on(trx.get_mapped_range(&range, &mapper, 1, false)).expect("read");
    assert!(!answer.more());
    let found: Vec<(Vec<u8>, Vec<String>)> = answer
        .iter()
        .map(|row| {
            let records = row.key_values().iter().map(|pair| String::from_utf8_lossy(pair.value()).into_owned());
            (row.parent_key().to_vec(), records.collect())
        })
        .collect();
    let expected = (0..20)
        .filter(|id| id % 2 == 1)
        .map(|id| (pack(&(&text, "index", 1, id)), vec![format!("name of {id}"), format!("place of {id}")]));
    assert_eq!(found, expected.collect::<Vec<_>>());
    let snapshot = block_on(trx.get_mapped_range(&range, &mapper, 1, true));
    assert_eq!(snapshot.err().map(|error| error.code()), Some(2108));
    trx.set(&pack(&(&text, "data", 7, "size")), b"");
    let own = block_on(trx.get_mapped_range(&range, &mapper, 1, false));
    assert_eq!(own.err().map(|error| error.code()), Some(2039));
}

#[test]
fn special_keys_tell_the_way_and_the_state() {
    let Storage { fdb: database, .. } = &Storage::new();
    let told = |name: &str| get(database, &[b"\xff\xff/", name.as_bytes()].concat()).expect("a value");
    let path = String::from_utf8(told("cluster_file_path")).expect("UTF-8");
    match std::env::var("FLATBED_CLUSTER_FILE") {
        Ok(given) => assert_eq!(path, given),
        Err(_) => assert_eq!(std::fs::read_to_string(path).expect("a file"), "embedded:test@data\n"),
    }
    assert!(told("connection_string").contains(&b'@'));
    let status = String::from_utf8(told("status/json")).expect("UTF-8");
    assert!(status.starts_with('{') && status.contains("\"database_status\""), "{status}");
    let trx = create(database);
    let code = |key: &[u8]| block_on(trx.get(key, false)).err().map(|error| error.code());
    assert_eq!(code(b"\xff\xff/no module"), Some(2113));
}
