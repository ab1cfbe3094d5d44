//! Ranges over pages with many records, with few, and with overflow values. Reads return what was written, wherever a
//! range begins and ends on a page.

use std::collections::BTreeMap;

use fdb_embedded::{Engine, KeySelector, RangeOptions};
use flatbed_testkit::Random;

use crate::common::{commit, open};

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

fn below(random: &mut Random, bound: usize) -> usize {
    random.below(bound as u64) as usize
}

/// One of a hundred adjacent records has an overflow value, and one a key that shares a bucket with others. Each fifth
/// hundred has values of which a page holds four.
fn pair(number: usize) -> (Vec<u8>, Vec<u8>) {
    let mut key = format!("k{:05}", number / 2).into_bytes();
    let mut value = vec![number as u8; if number / 100 % 5 == 4 { 900 } else { number % 60 }];
    match number % 100 {
        40 => value = vec![1; 5_000],
        // With the previous key: the same long prefix.
        70 | 71 => key = [format!("k{:05}", number / 2).into_bytes(), vec![b'z'; 2_400], vec![number as u8]].concat(),
        _ if number % 2 == 1 => key.push(b'+'),
        _ => {}
    }
    (key, value)
}

fn fill(engine: &Engine) -> Pairs {
    let all: Pairs = (0..4_000).map(pair).collect();
    let records: Vec<_> = all.iter().collect();
    let parts: Vec<_> = records.chunks(60).collect();
    // In random order, so that many writes precede records of each kind.
    for at in 0..parts.len() {
        let transaction = engine.transaction();
        parts[at * 7 % parts.len()].iter().for_each(|(key, value)| transaction.set(key, value));
        commit(&transaction).unwrap();
    }
    all
}

fn check_ranges(engine: &Engine, all: &Pairs, random: &mut Random, times: usize) {
    for time in 0..times {
        let mut end_of = || {
            let (mut key, _) = pair(below(random, 4_000));
            match below(random, 4) {
                0 => key.push(0),
                1 => key.truncate(3),
                _ => {}
            }
            key
        };
        let (begin, end) = (end_of(), end_of());
        let limit = if below(random, 3) == 0 { 0 } else { 1 + below(random, 90) };
        let mut options = RangeOptions { limit: limit as i32, snapshot: time % 2 == 0, ..RangeOptions::default() };
        options.target_bytes = if below(random, 4) == 0 { 1 + below(random, 6_000) as i32 } else { 0 };
        let ends = (KeySelector::first_greater_or_equal(&begin), KeySelector::first_greater_or_equal(&end));
        let page = engine.transaction().get_range(ends.0, ends.1, &options).unwrap();
        let mut expected = if begin < end { Some(all.range(begin.clone()..end.clone())) } else { None };
        let mut next = || expected.as_mut().and_then(Iterator::next);
        for (key, value) in page.iter() {
            let (wanted_key, wanted_value) = next().expect("no more than there is");
            assert_eq!(
                (key, value.len()),
                (&wanted_key[..], wanted_value.len()),
                "{time}: {begin:?} to {end:?}, {limit}"
            );
            assert_eq!(value, wanted_value);
        }
        assert!(page.more || next().is_none(), "{time}: {begin:?} to {end:?}, {limit}: {} are all", page.pairs.len());
        assert!(limit == 0 || page.pairs.len() <= limit);
    }
}

#[test]
fn ranges_hold_what_was_written_wherever_they_begin_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let mut all = fill(&engine);
    let mut random = Random(20_261_122);
    check_ranges(&engine, &all, &mut random, 3_000);
    // Clears, and writes into them.
    for _ in 0..40 {
        let transaction = engine.transaction();
        let first = below(&mut random, 3_900);
        let (begin, end) = (pair(first).0, pair(first + 1 + below(&mut random, 60)).0);
        transaction.clear_range(&begin, &end);
        all.retain(|key, _| !(begin <= *key && *key < end));
        let (key, value) = pair(first + below(&mut random, 60));
        transaction.set(&key, &value);
        all.insert(key, value);
        commit(&transaction).unwrap();
        check_ranges(&engine, &all, &mut random, 60);
    }
}
