//! A locked database, as `fdbcli`'s `lock` and `unlock` leave it.

use fdb_embedded::{Engine, Error, Transaction};

use crate::common::{commit, on_error, open, set};

const LOCK: &[u8] = b"\xff/dbLocked";
const SYSTEM_KEYS: u32 = 301;
const LOCK_AWARE: u32 = 700;
const READ_LOCK_AWARE: u32 = 702;
const SET_VERSIONSTAMPED_VALUE: i32 = 15;

fn with_options(engine: &Engine, options: &[u32]) -> Transaction {
    let transaction = engine.transaction();
    options.iter().for_each(|option| transaction.set_option(*option, None).unwrap());
    transaction
}

/// Writes the value of `lock`: a versionstamp, and a number.
fn lock_database(engine: &Engine) {
    let transaction = with_options(engine, &[SYSTEM_KEYS, LOCK_AWARE]);
    assert_eq!(transaction.get(LOCK, false), Ok(None));
    transaction.atomic_op(LOCK, b"0123456789ABCDEFGHIJKLMNOP\0\0\0\0", SET_VERSIONSTAMPED_VALUE);
    transaction.add_conflict_range(b"", b"\xff", true).unwrap();
    commit(&transaction).unwrap();
}

fn unlock_database(engine: &Engine) {
    let transaction = with_options(engine, &[SYSTEM_KEYS, LOCK_AWARE]);
    assert_eq!(transaction.get(LOCK, false).unwrap().unwrap()[10..], *b"ABCDEFGHIJKLMNOP");
    transaction.clear_range(LOCK, b"\xff/dbLocked\0");
    commit(&transaction).unwrap();
}

#[test]
fn only_who_knows_of_locks_gets_through() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    set(&engine, b"a", b"1");
    let (reader, writer, blind) = (engine.transaction(), engine.transaction(), engine.transaction());
    assert_eq!(reader.get(b"a", false), Ok(Some(b"1".to_vec())));
    writer.get(b"b", false).unwrap();
    writer.set(b"b", b"1");
    lock_database(&engine);

    // A transaction with a read version can still read, but no longer commit.
    assert_eq!(reader.get(b"a", false), Ok(Some(b"1".to_vec())));
    assert_eq!(commit(&writer), Err(Error::DATABASE_LOCKED));
    blind.set(b"c", b"1");
    assert_eq!(commit(&blind), Err(Error::DATABASE_LOCKED));
    for read in
        [|trx: &Transaction| trx.get(b"a", false).map(|_| ()), |trx: &Transaction| trx.get_read_version().map(|_| ())]
    {
        assert_eq!(read(&engine.transaction()), Err(Error::DATABASE_LOCKED));
    }
    // A read answered by the transaction's own writes needs no server.
    let own = engine.transaction();
    own.set(b"d", b"1");
    assert_eq!(own.get(b"d", false), Ok(Some(b"1".to_vec())));

    let aware = with_options(&engine, &[LOCK_AWARE]);
    assert_eq!(aware.get(b"a", false), Ok(Some(b"1".to_vec())));
    aware.set(b"e", b"1");
    commit(&aware).unwrap();
    let reads_only = with_options(&engine, &[READ_LOCK_AWARE]);
    assert_eq!(reads_only.get(b"e", false), Ok(Some(b"1".to_vec())));
    reads_only.set(b"f", b"1");
    assert_eq!(commit(&reads_only), Err(Error::TRANSACTION_READ_ONLY));

    // A retry loop waits for the unlock.
    on_error(&blind, Error::DATABASE_LOCKED.0).unwrap();
    unlock_database(&engine);
    blind.set(b"c", b"2");
    commit(&blind).unwrap();
    let reader = engine.transaction();
    let values = [b"a", b"b", b"c", b"d", b"e", b"f"].map(|key| reader.get(key, false).unwrap());
    let expected: [Option<&[u8]>; 6] = [Some(b"1"), None, Some(b"2"), None, Some(b"1"), None];
    assert_eq!(values.each_ref().map(Option::as_deref), expected);
}

#[test]
fn a_lock_outlives_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    lock_database(&engine);
    drop(engine);
    let engine = open(dir.path());
    assert_eq!(engine.transaction().get(b"a", false), Err(Error::DATABASE_LOCKED));
    unlock_database(&engine);
    assert_eq!(engine.transaction().get(b"a", false), Ok(None));
}
