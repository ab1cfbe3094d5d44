//! Range reads with random short pages: the result of following `more`, and the conflicts of a page.

use crate::common::{commit, open as open_without_faults};
use fdb_embedded::{Buggify, Engine, Error, KeySelector, OpenOptions, RangeOptions, Stats, Transaction};

const ROWS: usize = 60;

fn key(number: usize) -> Vec<u8> {
    format!("k{number:03}").into_bytes()
}

/// Opens an engine with 30 % short pages and no other faults, and fills it with rows.
fn open(dir: &std::path::Path, seed: u64) -> Engine {
    {
        let engine = open_without_faults(dir);
        let transaction = engine.transaction();
        (0..ROWS).for_each(|number| transaction.set(&key(number), b"stored"));
        commit(&transaction).unwrap();
    }
    let mut options = OpenOptions::default();
    options.buggify = Some(Buggify::new(0.0, seed).with_short_pages(0.3));
    Engine::open(dir, options).unwrap()
}

fn count(stats: &Stats, kind: &str) -> u64 {
    stats.faults.iter().find(|fault| fault.kind == kind).expect("a kind").count
}

struct Page {
    keys: Vec<Vec<u8>>,
    more: bool,
}

fn page(transaction: &Transaction, begin: &[u8], end: &[u8], options: &RangeOptions) -> Page {
    let (begin, end) = (KeySelector::first_greater_or_equal(begin), KeySelector::first_greater_or_equal(end));
    let result = transaction.get_range(begin, end, options).unwrap();
    Page { keys: result.iter().map(|(key, _)| key.to_vec()).collect(), more: result.more }
}

/// Returns the first `limit` keys, or all for 0, page after page.
fn follow(transaction: &Transaction, limit: usize, reverse: bool) -> Vec<Vec<u8>> {
    let (mut begin, mut end) = (b"k".to_vec(), b"l".to_vec());
    let mut keys = Vec::new();
    for iteration in 1..10_000 {
        let left = limit.saturating_sub(keys.len());
        let options = RangeOptions { limit: left as i32, iteration, mode: -1, reverse, ..RangeOptions::default() };
        let page = page(transaction, &begin, &end, &options);
        match page.keys.last() {
            Some(last) if reverse => end.clone_from(last),
            Some(last) => begin = [last, &[0][..]].concat(),
            None => {}
        }
        keys.extend(page.keys);
        if !page.more || (limit > 0 && keys.len() == limit) {
            return keys;
        }
    }
    panic!("pages without rows for ever");
}

#[test]
fn following_more_gives_every_row() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), 1);
    for (has_writes, is_native) in [(false, false), (false, true), (true, false)] {
        let transaction = engine.transaction();
        if is_native {
            transaction.set_option(51, None).unwrap();
        }
        let mut expected: Vec<Vec<u8>> = (0..ROWS).map(key).collect();
        if has_writes {
            transaction.clear_range(&key(10), &key(20));
            transaction.clear(&key(30));
            transaction.set(b"k0305", b"own");
            transaction.atomic_op(&key(40), b"own", 9);
            expected.retain(|key| !(&b"k010"[..]..b"k020").contains(&key.as_slice()) && key != b"k030");
            expected.push(b"k0305".to_vec());
            expected.sort();
        }
        for reverse in [false, true] {
            for limit in [0, 1, 2, 3, 7, 50, 500] {
                for _ in 0..20 {
                    let found = follow(&transaction, limit, reverse);
                    let in_order: Vec<_> = match reverse {
                        true => expected.iter().rev().cloned().collect(),
                        false => expected.clone(),
                    };
                    let rows = if limit == 0 { expected.len() } else { limit.min(expected.len()) };
                    assert_eq!(found, in_order[..rows], "limit {limit}, reverse {reverse}");
                }
            }
        }
    }
    let stats = engine.stats();
    assert!(count(&stats, "short_page") > 100 && count(&stats, "empty_page") > 100, "{stats:?}");
    assert_eq!(count(&stats, "short_page") + count(&stats, "empty_page"), stats.faults_injected, "nothing else");
}

#[test]
fn a_short_page_conflicts_with_what_it_answered() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), 2);
    // Returns whether a commit conflicts after another transaction wrote `written`.
    let conflicts = |reader: &Transaction, written: &[u8]| {
        let other = engine.transaction();
        other.set(written, b"other");
        commit(&other).unwrap();
        reader.set(b"mine", b"v");
        match commit(reader) {
            Ok(()) => false,
            Err(error) => {
                assert_eq!(error, Error::NOT_COMMITTED);
                true
            }
        }
    };
    let (mut empty, mut short, mut full) = (0, 0, 0);
    for round in 0..400 {
        let (reverse, has_writes, is_native) = (round % 2 == 1, round / 2 % 2 == 1, round / 4 % 2 == 1);
        let reader = engine.transaction();
        if is_native {
            reader.set_option(51, None).unwrap();
        }
        if has_writes {
            reader.set(b"a", b"own");
        }
        let page = page(&reader, b"k", b"l", &RangeOptions { reverse, ..RangeOptions::default() });
        let len = page.keys.len();
        // The numbers of the last returned row and of the first missing one.
        let row = |at: usize| key(if reverse { ROWS - 1 - at } else { at });
        match (len, page.more) {
            (_, false) => {
                full += 1;
                assert_eq!(len, ROWS);
                assert!(conflicts(&reader, &row(round % ROWS)));
            }
            (0, true) => {
                empty += 1;
                assert!(!conflicts(&reader, &row(0)), "a page without rows depends on nothing");
            }
            (_, true) => {
                short += 1;
                assert_eq!(page.keys.last(), Some(&row(len - 1)));
                let is_past = round / 8 % 2 == 1 && len < ROWS;
                let written = row(if is_past { len } else { len - 1 });
                assert_eq!(conflicts(&reader, &written), !is_past, "{len} rows, reverse {reverse}");
            }
        }
    }
    assert!(empty > 10 && short > 20 && full > 100, "{empty} {short} {full}");
}

#[test]
fn equal_seeds_cut_equal_pages() {
    let lengths = |seed, probability| {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path(), 0));
        let mut options = OpenOptions::default();
        options.buggify = Some(Buggify::new(probability, seed).with_short_pages(0.3));
        let engine = Engine::open(dir.path(), options).unwrap();
        let mut lengths = Vec::new();
        while lengths.len() < 200 {
            let range = (KeySelector::first_greater_or_equal(b"k"), KeySelector::first_greater_or_equal(b"l"));
            match engine.transaction().get_range(range.0, range.1, &RangeOptions::default()) {
                Ok(page) => lengths.push(page.pairs.len()),
                Err(error) => assert!(error.is_retryable()),
            }
        }
        lengths
    };
    let first = lengths(1, 0.0);
    assert_eq!(lengths(1, 0.0), first);
    assert_ne!(lengths(2, 0.0), first);
    assert_eq!(lengths(1, 0.2), lengths(1, 0.2), "with other faults, too");
}

#[test]
fn mapped_ranges_are_short_too() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path(), 3);
    // Keys that are tuples of one string, each its own record.
    let tuple = |number: usize| [&[1][..], &key(number), &[0]].concat();
    let transaction = engine.transaction();
    (0..ROWS).for_each(|number| transaction.set(&tuple(number), b""));
    commit(&transaction).unwrap();
    for reverse in [false, true] {
        let (mut begin, mut end) = (vec![1], vec![2]);
        let mut records = Vec::new();
        let options = RangeOptions { reverse, ..RangeOptions::default() };
        for _ in 0..10_000 {
            let range = (KeySelector::first_greater_or_equal(&begin), KeySelector::first_greater_or_equal(&end));
            let page = engine.transaction().get_mapped_range(range.0, range.1, b"\x01{K[0]}\0", &options).unwrap();
            assert_eq!(page.index.pairs.len(), page.records.len());
            match page.records.last() {
                Some(last) if reverse => end.clone_from(&last.begin),
                Some(last) => begin.clone_from(&last.end),
                None => {}
            }
            records.extend(page.records.into_iter().map(|record| record.begin));
            if !page.index.more {
                break;
            }
        }
        if reverse {
            records.reverse();
        }
        assert_eq!(records, (0..ROWS).map(tuple).collect::<Vec<_>>());
    }
    for _ in 0..40 {
        let range = (KeySelector::first_greater_or_equal(&[1]), KeySelector::first_greater_or_equal(&[2]));
        let options = RangeOptions::default();
        engine.transaction().get_mapped_range(range.0, range.1, b"\x01{K[0]}\0", &options).unwrap();
    }
    let stats = engine.stats();
    assert!(count(&stats, "short_page") > 3 && count(&stats, "empty_page") > 1, "{stats:?}");
}

#[test]
fn estimates_are_rough_under_faults() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), 0));
    let mut options = OpenOptions::default();
    options.buggify = Some(Buggify::new(1.0, 4));
    let engine = Engine::open(dir.path(), options).unwrap();
    let transaction = engine.transaction();
    let exact = (ROWS * (4 + 6)) as i64;
    let size = || transaction.get_estimated_range_size_bytes(b"k", b"l").unwrap();
    let sizes: Vec<i64> = (0..40).map(|_| size()).collect();
    assert!(sizes.contains(&0) && sizes.iter().any(|size| *size != 0 && *size != exact), "{sizes:?}");
    assert!(sizes.iter().all(|size| (0..=exact * 2).contains(size)), "{sizes:?}");
    let points = || transaction.get_range_split_points(b"k", b"l", 50).unwrap();
    let lengths: Vec<usize> = (0..20).map(|_| points().len()).collect();
    assert!(lengths.iter().any(|length| *length < ROWS / 5), "{lengths:?}");
    for points in (0..20).map(|_| points()) {
        assert!(points.is_sorted_by(|a, b| a < b));
        assert_eq!((points.first().unwrap().as_slice(), points.last().unwrap().as_slice()), (&b"k"[..], &b"l"[..]));
    }
    assert_eq!(count(&engine.stats(), "rough_size"), 80);
}
