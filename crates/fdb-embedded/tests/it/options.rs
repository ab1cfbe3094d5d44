//! The effects and errors of transaction options, and their lifetime over retries and resets.

use crate::common::{commit, on_error, open, range, set};
use fdb_embedded::{Engine, Error, KeySelector, RangeOptions, Result, Transaction};

fn with(engine: &Engine, options: &[(u32, Option<&[u8]>)]) -> Transaction {
    let transaction = engine.transaction();
    for (code, value) in options {
        assert_eq!(transaction.set_option(*code, *value), Ok(()), "a known option is always taken");
    }
    transaction
}

#[test]
fn a_value_that_is_refused_comes_out_later() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let check = |code: u32, value: Option<&[u8]>, expected: Error| {
        let transaction = with(&engine, &[(code, value)]);
        assert_eq!(transaction.get(b"k", false), Err(expected), "{code}");
        assert_eq!(transaction.get_approximate_size(), Err(expected));
        assert_eq!(commit(&transaction), Err(expected));
        on_error(&transaction, 1020).unwrap();
        assert_eq!(transaction.get(b"k", false), Ok(None));
    };
    check(503, Some(&31i64.to_le_bytes()), Error::INVALID_OPTION_VALUE);
    check(500, Some(b"x"), Error::INVALID_OPTION_VALUE);
    check(30, Some(b"x"), Error::INVALID_OPTION_VALUE);
    check(800, None, Error::INVALID_OPTION_VALUE);
    check(404, None, Error::CLIENT_INVALID_OPERATION);
    assert_eq!(engine.transaction().set_option(9_999, None), Err(Error::INVALID_OPTION));
    // The first error stays, and later options are not checked.
    let transaction = with(&engine, &[(503, None), (404, None)]);
    transaction.set(&[0; 10_001], b"");
    assert_eq!(transaction.get(b"k", false), Err(Error::INVALID_OPTION_VALUE));
}

#[test]
fn a_retry_keeps_timeout_retries_and_delay_alone() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let large = |transaction: &Transaction| {
        transaction.set(b"k", &[0; 2_000]);
        commit(transaction)
    };
    let limited = with(&engine, &[(503, Some(&1_000i64.to_le_bytes()))]);
    assert_eq!(large(&limited), Err(Error::TRANSACTION_TOO_LARGE));
    on_error(&limited, 1020).unwrap();
    assert_eq!(large(&limited), Ok(()), "the size limit went");
    let retried = with(&engine, &[(501, Some(&1i64.to_le_bytes()))]);
    on_error(&retried, 1020).unwrap();
    assert_eq!(on_error(&retried, 1020), Err(Error::NOT_COMMITTED), "the retry limit stayed");
    let system = with(&engine, &[(301, None)]);
    on_error(&system, 1020).unwrap();
    assert_eq!(system.get(b"\xff/k", false), Err(Error::KEY_OUTSIDE_LEGAL_RANGE));
}

#[test]
fn raw_access_is_no_access_to_system_keys() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let write = |options: &[(u32, Option<&[u8]>)], key: &[u8]| {
        let transaction = with(&engine, options);
        transaction.set(key, b"");
        commit(&transaction)
    };
    let (raw, access, read): (&[_], &[_], &[_]) = (&[(303, None)], &[(301, None)], &[(302, None)]);
    assert_eq!(write(raw, b"\xff/k"), Err(Error::KEY_OUTSIDE_LEGAL_RANGE));
    assert_eq!(with(&engine, raw).get(b"\xff/k", false), Err(Error::KEY_OUTSIDE_LEGAL_RANGE));
    assert_eq!(write(read, b"\xff/k"), Err(Error::KEY_OUTSIDE_LEGAL_RANGE));
    assert_eq!(write(access, b"\xff/k"), Ok(()));
    // With the option a key may be longer by a tenant's prefix.
    assert_eq!(write(&[], &[b'k'; 10_000]), Ok(()));
    assert_eq!(write(&[], &[b'k'; 10_001]), Err(Error::KEY_TOO_LARGE));
    for options in [raw, access, read] {
        assert_eq!(write(options, &[b'k'; 10_008]), Ok(()));
        assert_eq!(write(options, &[b'k'; 10_009]), Err(Error::KEY_TOO_LARGE));
    }
    assert_eq!(write(access, &[0xff; 30_000]), Err(Error::KEY_OUTSIDE_LEGAL_RANGE));
    assert_eq!(write(access, &[&[0xff], &[b'k'; 29_999][..]].concat()), Ok(()));
    assert_eq!(write(access, &[&[0xff], &[b'k'; 30_000][..]].concat()), Err(Error::KEY_TOO_LARGE));
}

#[test]
fn who_may_only_read_a_locked_database_commits_no_writes() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let write = |options: &[(u32, Option<&[u8]>)]| {
        let transaction = with(&engine, options);
        transaction.get(b"k", false)?;
        transaction.set(b"k", b"");
        commit(&transaction)
    };
    assert_eq!(write(&[(702, None)]), Err(Error::TRANSACTION_READ_ONLY));
    assert_eq!(write(&[(702, None), (700, None)]), Ok(()));
    assert_eq!(write(&[(700, None), (702, None)]), Ok(()));
    let reader = with(&engine, &[(702, None)]);
    reader.get(b"k", false).unwrap();
    assert_eq!(commit(&reader), Ok(()));
}

#[test]
fn snapshot_reads_see_own_writes_as_often_as_they_were_let() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let sees = |options: &[(u32, Option<&[u8]>)]| {
        let transaction = with(&engine, options);
        transaction.set(b"k", b"own");
        assert_eq!(transaction.get(b"k", false), Ok(Some(b"own".to_vec())));
        transaction.get(b"k", true).unwrap().is_some()
    };
    let (on, off) = ((600, None), (601, None));
    assert!(sees(&[]) && !sees(&[off]) && sees(&[off, on]) && sees(&[on, off]));
    assert!(!sees(&[off, off, on]) && sees(&[off, off, on, on]));
    let without = with(&engine, &[(51, None)]);
    without.set(b"k", b"own");
    assert_eq!(without.get(b"k", false), Ok(None));
}

#[test]
fn read_your_writes_is_disabled_first_or_never() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let disable_after = |first: &dyn Fn(&Transaction)| -> Result<()> {
        let transaction = engine.transaction();
        first(&transaction);
        transaction.set_option(51, None)?;
        transaction.get(b"k", false).map(|_| ())
    };
    let refused = Err(Error::CLIENT_INVALID_OPERATION);
    assert_eq!(disable_after(&|tr| drop(tr.get(b"k", true))), refused);
    assert_eq!(disable_after(&|tr| tr.set(b"k", b"")), refused);
    assert_eq!(disable_after(&|tr| tr.add_conflict_range(b"a", b"b", true).unwrap()), refused);
    assert_eq!(disable_after(&|tr| tr.add_conflict_range(b"a", b"b", false).unwrap()), Ok(()));
    assert_eq!(disable_after(&|tr| assert!(tr.get_read_version().is_ok())), Ok(()));
}

#[test]
fn the_next_write_alone_makes_no_conflict() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    type Write<'w> = &'w dyn Fn(&Transaction);
    let writes: [Write<'_>; 4] =
        [&|tr| tr.set(b"k", b"x"), &|tr| tr.clear(b"k"), &|tr| tr.clear_range(b"a", b"z"), &|tr| {
            tr.atomic_op(b"k", b"x", 2)
        }];
    for (at, write) in writes.into_iter().enumerate() {
        for quiet in [false, true] {
            set(&engine, b"k", b"before");
            let reader = engine.transaction();
            reader.get(b"k", false).unwrap();
            reader.set(b"mine", b"");
            let writer = engine.transaction();
            if quiet {
                writer.set_option(30, None).unwrap();
            }
            write(&writer);
            commit(&writer).unwrap();
            assert_eq!(commit(&reader).is_ok(), quiet, "write {at}");
        }
    }
    // A refused write uses up the option.
    let reader = engine.transaction();
    reader.get(b"k", false).unwrap();
    reader.set(b"mine", b"");
    let writer = with(&engine, &[(30, None)]);
    writer.clear(&[b'x'; 20_000]);
    writer.set(b"k", b"after");
    commit(&writer).unwrap();
    assert_eq!(commit(&reader), Err(Error::NOT_COMMITTED));
}

#[test]
fn a_version_is_told_until_the_next_commit() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let transaction = engine.transaction();
    assert_eq!(transaction.committed_version(), Ok(-1));
    transaction.set(b"k", b"");
    commit(&transaction).unwrap();
    let version = transaction.committed_version().unwrap();
    assert!(version > 0);
    transaction.reset();
    assert_eq!(transaction.committed_version(), Ok(version));
    transaction.get(b"k", false).unwrap();
    commit(&transaction).unwrap();
    assert_eq!(transaction.committed_version(), Ok(-1), "it wrote nothing");
}

#[test]
fn limits_are_refused_after_what_is_wrong_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let read = |transaction: &Transaction, end: &[u8], options: &RangeOptions| {
        let (begin, end) = (KeySelector::first_greater_or_equal(b""), KeySelector::first_greater_or_equal(end));
        transaction.get_range(begin, end, options).map(|found| found.pairs.len())
    };
    let default = RangeOptions::default;
    let negative = RangeOptions { limit: -2, ..default() };
    assert_eq!(read(&engine.transaction(), b"z", &negative), Err(Error::RANGE_LIMITS_INVALID));
    assert_eq!(read(&engine.transaction(), b"\xff\xff", &negative), Err(Error::KEY_OUTSIDE_LEGAL_RANGE));
    let cancelled = engine.transaction();
    cancelled.cancel();
    assert_eq!(read(&cancelled, b"z", &negative), Err(Error::TRANSACTION_CANCELLED));
    assert_eq!(read(&cancelled, b"z", &RangeOptions { mode: 5, ..default() }), Err(Error::CLIENT_INVALID_OPERATION));
    assert_eq!(cancelled.get_approximate_size(), Ok(0), "a transaction that is over tells its size");
    let unlimited = |limit, target_bytes| RangeOptions { mode: 0, limit, target_bytes, ..default() };
    for (limit, target_bytes) in [(0, 0), (-1, 0), (0, -1), (-1, -1)] {
        assert_eq!(
            read(&engine.transaction(), b"z", &unlimited(limit, target_bytes)),
            Err(Error::EXACT_MODE_WITHOUT_LIMITS)
        );
    }
    assert_eq!(read(&engine.transaction(), b"z", &RangeOptions { limit: -1, ..default() }), Ok(0), "no limit");
}

#[test]
fn sizes_are_those_that_a_client_counts() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let size = |act: &dyn Fn(&Transaction)| {
        let transaction = engine.transaction();
        act(&transaction);
        transaction.get_approximate_size().unwrap()
    };
    // The overhead is 44 bytes for a mutation and 24 for a range.
    assert_eq!(size(&|tr| tr.set(b"key", b"value")), 8 + 44 + 7 + 24);
    assert_eq!(size(&|tr| tr.atomic_op(b"key", b"value", 2)), 8 + 44 + 7 + 24);
    assert_eq!(size(&|tr| tr.clear(b"key")), 7 + 24 + 7 + 24);
    assert_eq!(size(&|tr| tr.clear_range(b"aa", b"b")), 3 + 44 + 3 + 24);
    assert_eq!(size(&|tr| drop(tr.get(b"key", false))), 7 + 24);
    assert_eq!(size(&|tr| drop(tr.get(b"key", true))), 0);
    let quiet = |tr: &Transaction| {
        tr.set_option(30, None).unwrap();
        tr.set(b"key", b"value");
    };
    assert_eq!(size(&quiet), 8 + 44);
    let around_own_write = |tr: &Transaction| {
        tr.set(b"b", b"");
        range(tr, b"a", b"c", &RangeOptions::default()).unwrap();
    };
    assert_eq!(size(&around_own_write), (1 + 44 + 3 + 24) + 2 * (2 + 24));
}
