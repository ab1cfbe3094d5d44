//! Mapped ranges: results, conflicts, refused calls, and the end of an answer.

use crate::common::{commit, open, set};
use fdb_embedded::{Engine, Error, KeySelector, MappedRange, RangeOptions, Result, Transaction};

/// A tuple of byte strings without zero bytes.
fn pack(parts: &[&str]) -> Vec<u8> {
    parts.iter().flat_map(|part| [&[1], part.as_bytes(), &[0]].concat()).collect()
}

/// An index of `count` entries, ("index", i) to (i), and for each i the records ("data", i, 0) and ("data", i, 1).
fn fill(engine: &Engine, count: usize, value: &[u8]) {
    let transaction = engine.transaction();
    for number in 0..count {
        let id = format!("{number:05}");
        transaction.set(&pack(&["index", &id]), &pack(&[&id]));
        for part in ["0", "1"] {
            transaction.set(&pack(&["data", &id, part]), value);
        }
    }
    commit(&transaction).expect("filled");
}

fn read(transaction: &Transaction, mapper: &[&str], options: &RangeOptions) -> Result<MappedRange> {
    let (begin, end) = (pack(&["index"]), [&pack(&["index"])[..], &[0xff]].concat());
    let (begin, end) = (KeySelector::first_greater_or_equal(&begin), KeySelector::first_greater_or_equal(&end));
    transaction.get_mapped_range(begin, end, &pack(mapper), options)
}

const PREFIX: [&str; 3] = ["data", "{V[0]}", "{...}"];
const SINGLE: [&str; 3] = ["data", "{K[1]}", "1"];

#[test]
fn every_entry_has_its_records() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    fill(&engine, 3, b"value");
    for reverse in [false, true] {
        let options = RangeOptions { reverse, ..RangeOptions::default() };
        let range = read(&engine.transaction(), &PREFIX, &options).unwrap();
        assert!(!range.index.more);
        let mut ids: Vec<_> = (0..3).map(|number| format!("{number:05}")).collect();
        if reverse {
            ids.reverse();
        }
        assert_eq!((range.index.pairs.len(), range.records.len()), (3, 3));
        for (at, id) in ids.iter().enumerate() {
            assert_eq!(range.index.get(at), Some((&pack(&["index", id])[..], &pack(&[id])[..])));
            let records = &range.records[at];
            let prefix = pack(&["data", id]);
            assert_eq!(
                (records.begin.as_slice(), records.end.as_slice()),
                (&prefix[..], &[&prefix[..prefix.len() - 1], &[1]].concat()[..])
            );
            let found: Vec<_> = records.pairs.iter().collect();
            let keys = [pack(&["data", id, "0"]), pack(&["data", id, "1"])];
            assert_eq!(found, [(&keys[0][..], &b"value"[..]), (&keys[1], b"value")]);
        }
    }
}

#[test]
fn single_records_and_none_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    fill(&engine, 4, b"value");
    let transaction = engine.transaction();
    transaction.clear(&pack(&["data", "00001", "1"]));
    commit(&transaction).unwrap();
    let range = read(&engine.transaction(), &SINGLE, &RangeOptions::default()).unwrap();
    let found: Vec<_> = range.records.iter().map(|records| records.pairs.get(0).map(|(_, value)| value)).collect();
    assert_eq!(found, [Some(&b"value"[..]), None, Some(b"value"), Some(b"value")]);
    let entry = |id| (pack(&["index", id]), pack(&[id]));
    let ((first, first_value), (last, last_value)) = (entry("00000"), entry("00003"));
    let told: Vec<_> = range.index.iter().collect();
    let empty = (&b""[..], &b""[..]);
    assert_eq!(told, [(&first[..], &first_value[..]), empty, empty, (&last, &last_value)], "only the ends are given");
}

#[test]
fn answers_end_where_a_storage_server_ends_them() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    fill(&engine, 1_000, &[b'v'; 100]);
    let rows = |options: &RangeOptions| {
        let range = read(&engine.transaction(), &PREFIX, options).unwrap();
        assert_eq!(range.index.pairs.len(), range.records.len());
        (range.records.len(), range.index.more)
    };
    let default = RangeOptions::default;
    assert_eq!(rows(&RangeOptions { limit: 5, ..default() }), (5, true));
    // An entry counts 24 + 14 + 7 bytes, its two records 2 * (24 + 16 + 100); lookups run ten at a time.
    let counted = 45 + 280;
    assert_eq!(rows(&default()), (80_000usize.div_ceil(counted).next_multiple_of(10), true));
    assert_eq!(
        rows(&RangeOptions { target_bytes: 10_000, ..default() }),
        (10_000usize.div_ceil(counted).next_multiple_of(10), true)
    );
    // The index may use a fifth of the bytes.
    assert_eq!(rows(&RangeOptions { target_bytes: 1_000, ..default() }), (5, true));
    assert_eq!(rows(&RangeOptions { mode: 0, limit: 1_000, ..default() }), (1_000, true));
    assert_eq!(rows(&RangeOptions { mode: 0, limit: 1_001, ..default() }), (1_000, false));
}

#[test]
fn index_and_records_conflict_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    fill(&engine, 10, b"value");
    let limited = RangeOptions { limit: 5, ..RangeOptions::default() };
    let check = |mapper: &[&str], options: &RangeOptions, other: &[u8], expected: Result<()>| {
        let transaction = engine.transaction();
        read(&transaction, mapper, options).unwrap();
        set(&engine, other, b"changed");
        transaction.set(b"mine", b"");
        assert_eq!(commit(&transaction), expected, "{mapper:?} {other:?}");
        let clearer = engine.transaction();
        clearer.clear(other);
        commit(&clearer).unwrap();
    };
    let conflict = || Err(Error::NOT_COMMITTED);
    let all = RangeOptions::default();
    check(&PREFIX, &all, &pack(&["index", "00003x"]), conflict());
    check(&PREFIX, &all, &pack(&["data", "00003", "a new one"]), conflict());
    check(&PREFIX, &all, &pack(&["data", "00010", "0"]), Ok(()));
    check(&PREFIX, &limited, &pack(&["index", "00003x"]), conflict());
    check(&PREFIX, &limited, &pack(&["index", "00004x"]), Ok(()));
    check(&PREFIX, &limited, &pack(&["data", "00004", "a new one"]), conflict());
    check(&PREFIX, &limited, &pack(&["data", "00005", "a new one"]), Ok(()));
    check(&["data", "{K[1]}", "2"], &all, &pack(&["data", "00003", "2"]), conflict());
    check(&["data", "{K[1]}", "2"], &all, &pack(&["data", "00003", "3"]), Ok(()));
}

#[test]
fn own_writes_are_refused_where_they_would_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    fill(&engine, 3, b"value");
    let check = |write: &dyn Fn(&Transaction), expected: Result<usize>| {
        let transaction = engine.transaction();
        write(&transaction);
        let read = read(&transaction, &PREFIX, &RangeOptions::default());
        assert_eq!(read.map(|range| range.records.len()), expected);
    };
    let refused = || Err(Error::MAPPED_RANGE_READS_YOUR_WRITES);
    check(&|tr| tr.set(&pack(&["index", "00001x"]), b"x"), refused());
    check(&|tr| tr.set(&pack(&["data", "00001", "x"]), b"x"), refused());
    check(&|tr| tr.clear_range(b"\x01", b"\x02"), refused());
    check(&|tr| tr.atomic_op(&pack(&["data", "00001", "0"]), b"\x01", 2), refused());
    check(&|tr| tr.clear_range(&pack(&["data", "00003"]), &pack(&["data", "00004"])), Ok(3));
    check(&|tr| tr.set(b"\x02", b""), Ok(3));
    check(&|tr| tr.add_conflict_range(b"", b"\xff", true).unwrap(), Ok(3));
}

#[test]
fn what_is_not_offered_has_its_code() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    fill(&engine, 2, b"value");
    let all = RangeOptions::default();
    let code = |mapper: &[&str], options: &RangeOptions| read(&engine.transaction(), mapper, options).unwrap_err();
    let snapshot = RangeOptions { snapshot: true, ..all.clone() };
    assert_eq!(code(&PREFIX, &snapshot), Error::UNSUPPORTED_OPERATION);
    let without = engine.transaction();
    without.set_option(51, None).unwrap();
    assert_eq!(read(&without, &PREFIX, &all).unwrap_err(), Error::UNSUPPORTED_OPERATION);
    assert_eq!(code(&["{...}", "x"], &all), Error::MAPPER_BAD_RANGE_DESCRIPTOR);
    assert_eq!(code(&["{K[9]}"], &all), Error::MAPPER_BAD_INDEX);
    assert_eq!(code(&PREFIX, &RangeOptions { mode: 0, ..all.clone() }), Error::EXACT_MODE_WITHOUT_LIMITS);
    let raw = |begin: &[u8], end: &[u8], mapper: &[u8]| {
        let (begin, end) = (KeySelector::first_greater_or_equal(begin), KeySelector::first_greater_or_equal(end));
        engine.transaction().get_mapped_range(begin, end, mapper, &all).map(|range| range.records.len())
    };
    assert_eq!(raw(b"", b"\xff", b"\xfe"), Err(Error::MAPPER_NOT_TUPLE));
    assert_eq!(raw(b"b", b"a", b"\xfe"), Ok(0), "an inverted range asks for nothing");
    assert_eq!(raw(b"", b"\xff\x02", b""), Err(Error::KEY_OUTSIDE_LEGAL_RANGE));
    assert_eq!(raw(b"\xff\xff/a", b"\xff\xff/b", b""), Err(Error::CLIENT_INVALID_OPERATION));
    set(&engine, b"\xf0", b"no tuple");
    assert_eq!(raw(b"\xf0", b"\xf1", &pack(&["{K[0]}"])), Err(Error::KEY_NOT_TUPLE));
    assert_eq!(raw(b"\xf0", b"\xf1", &pack(&["{V[0]}"])), Err(Error::VALUE_NOT_TUPLE));
    assert_eq!(raw(b"\xf0", b"\xf1", &pack(&["x"])), Ok(1));
}
