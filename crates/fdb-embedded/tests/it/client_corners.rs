//! Corner cases of reads as in FoundationDB's client: reads that need no read version, limits reached before an
//! unreadable key, and the conflicts of reads without the read-your-writes layer.

use crate::common::{commit, open, range, set};
use fdb_embedded::{Engine, Error, KeySelector, RangeOptions, Result, Transaction};

const READ_YOUR_WRITES_DISABLE: u32 = 51;
const SET_VERSIONSTAMPED_VALUE: i32 = 15;

/// The begins ("1") and ends ("0") of the transaction's read conflicts, from its special keys.
fn conflicts(transaction: &Transaction) -> Vec<(String, String)> {
    const BEGIN: &[u8] = b"\xff\xff/transaction/read_conflict_range/";
    let end = [BEGIN, b"\xff\xff"].concat();
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let found = range(transaction, BEGIN, &end, &RangeOptions::default()).unwrap();
    found.iter().map(|(key, value)| (text(&key[BEGIN.len()..]), text(value))).collect()
}

/// A conflict range in the form of [`conflicts`].
fn one(begin: &str, end: &str) -> Vec<(String, String)> {
    vec![(begin.to_owned(), "1".to_owned()), (end.to_owned(), "0".to_owned())]
}

fn selector(key: &str, offset: i32) -> KeySelector<'_> {
    KeySelector { key: key.as_bytes(), or_equal: false, offset }
}

/// The one-letter keys of a range; a limit of 0 is none.
fn letters(
    transaction: &Transaction,
    begin: KeySelector<'_>,
    end: KeySelector<'_>,
    limit: i32,
    reverse: bool,
) -> Result<String> {
    let options = RangeOptions { limit, reverse, ..RangeOptions::default() };
    let found = transaction.get_range(begin, end, &options)?;
    Ok(found.iter().map(|(key, _)| key.escape_ascii().to_string()).collect())
}

fn store(engine: &Engine, keys: &str) {
    for key in keys.bytes() {
        set(engine, &[key], b"");
    }
}

#[test]
fn what_the_own_writes_answer_takes_no_read_version() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    store(&engine, "ln");
    let transaction = engine.transaction();
    transaction.set(b"m", b"own");
    transaction.clear_range(b"p", b"r");
    transaction.set(b"q", b"own");
    assert_eq!(transaction.get(b"m", false), Ok(Some(b"own".to_vec())));
    assert_eq!(transaction.get(b"p", false), Ok(None));
    assert_eq!(transaction.get_key(selector("p", 1), false), Ok(b"q".to_vec()));
    assert_eq!(transaction.get_key(selector("r", 0), false), Ok(b"q".to_vec()));
    for reverse in [false, true] {
        assert_eq!(letters(&transaction, selector("p", 1), selector("r", 1), 0, reverse), Ok("q".to_owned()));
        // Nothing can be between these, whatever is stored.
        assert_eq!(letters(&transaction, selector("n", 2), selector("l", 1), 0, reverse), Ok(String::new()));
    }
    // The limit is reached before the stored keys.
    assert_eq!(letters(&transaction, selector("m", 1), selector("z", 1), 1, false), Ok("m".to_owned()));
    assert_eq!(letters(&transaction, selector("a", 1), selector("r", 1), 1, true), Ok("q".to_owned()));
    assert_eq!(conflicts(&transaction), []);
    set(&engine, b"n", b"later");
    assert_eq!(transaction.get(b"n", false), Ok(Some(b"later".to_vec())), "the read version was not taken yet");
    assert_eq!(conflicts(&transaction), one("n", "n\\x00"));
    set(&engine, b"l", b"later");
    assert_eq!(transaction.get(b"l", false), Ok(Some(Vec::new())), "the read version is taken");
    assert_eq!(commit(&transaction), Err(Error::NOT_COMMITTED));
}

#[test]
fn a_limit_comes_before_an_unreadable_key_if_the_far_selector_goes_back_no_further() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    store(&engine, "abcefgh");
    let read = |begin: KeySelector<'_>, end: KeySelector<'_>, limit, reverse| {
        let transaction = engine.transaction();
        transaction.atomic_op(b"d", &[0; 14], SET_VERSIONSTAMPED_VALUE);
        letters(&transaction, begin, end, limit, reverse)
    };
    // The end is "d" itself, outside of the range: one pair more must be known than is returned.
    assert_eq!(read(selector("a", 1), selector("e", 0), 2, false), Ok("ab".to_owned()));
    assert_eq!(read(selector("a", 1), selector("e", 0), 3, false), Err(Error::ACCESSED_UNREADABLE));
    assert_eq!(read(selector("a", 1), selector("e", -1), 1, false), Ok("a".to_owned()));
    assert_eq!(read(selector("a", 1), selector("e", -1), 2, false), Err(Error::ACCESSED_UNREADABLE));
    // An end that walks forward needs none.
    assert_eq!(read(selector("a", 1), selector("c", 3), 3, false), Ok("abc".to_owned()));
    assert_eq!(read(selector("c", 3), selector("z", 1), 2, true), Ok("hg".to_owned()));
    assert_eq!(read(selector("c", 3), selector("z", 1), 3, true), Err(Error::ACCESSED_UNREADABLE));
    assert_eq!(read(selector("e", 0), selector("z", 1), 4, true), Ok("hgfe".to_owned()));

    let transaction = engine.transaction();
    transaction.atomic_op(b"d", &[0; 14], SET_VERSIONSTAMPED_VALUE);
    assert_eq!(letters(&transaction, selector("a", -1), selector("e", 0), 1, false), Ok("a".to_owned()));
    assert_eq!(conflicts(&transaction)[0], (String::new(), "1".to_owned()), "it ran off the begin of all keys");
}

#[test]
fn native_ranges_conflict_up_to_the_ends_that_their_selectors_ran_off() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    store(&engine, "bcd");
    let check = |begin, end, (limit, reverse), found: &str, conflict| {
        let transaction = engine.transaction();
        transaction.set_option(READ_YOUR_WRITES_DISABLE, None).unwrap();
        assert_eq!(letters(&transaction, begin, end, limit, reverse), Ok(found.to_owned()));
        assert_eq!(conflicts(&transaction), conflict);
    };
    let (forward, backward) = (false, true);
    check(selector("b", -1), selector("c", 1), (0, forward), "b", one("", "c"));
    check(selector("b", -1), selector("d", 1), (0, backward), "cb", one("", "d"));
    check(selector("b", -1), selector("d", 1), (1, backward), "c", one("c", "d"));
    // Past the last of these a cluster has system keys, which the native layer counts and reads.
    check(selector("c", 1), selector("d", 5), (0, forward), "cd", one("c", "\\xff"));
    check(selector("c", 1), selector("d", 5), (1, forward), "c", one("c", "c\\x00"));
    // In reverse, the client resolves the end as a key of its own.
    check(selector("a", 1), selector("b", 2), (0, backward), "b", one("a", "c\\x00"));
    check(selector("d", 1), selector("b", 2), (0, backward), "", one("b", "c\\x00"));
}
