//! Replays the pages into which a real FoundationDB 7.3 cluster cut ranges (tests/bindings/pages/pages.jsonl).
//!
//! Each line is a case: keys committed before it, operations of one transaction, and its range reads with the
//! cluster's pages: the keys of each, and whether more may follow.

use std::path::Path;

use fdb_embedded::{Engine, KeySelector, RangeOptions, Transaction};
use serde_json::{Value, json};

use crate::common::{commit, open};

const PREFIX: &[u8] = b"pages/";
/// The most pages of a read: a cut without progress fails the test instead of hanging.
const PAGES_MAX: usize = 80;

fn key(name: &Value) -> Vec<u8> {
    [PREFIX, name.as_str().expect("a key").as_bytes()].concat()
}

/// The streaming mode's number in the C API.
fn mode(name: &Value) -> i32 {
    let modes = ["want_all", "iterator", "exact", "small", "medium", "large", "serial"];
    modes.iter().position(|mode| *mode == name).expect("a mode") as i32 - 2
}

/// Reads a range page by page. Returns the keys without the prefix, and `more`.
fn read(transaction: &Transaction, begin: &Value, end: &Value, mut options: RangeOptions) -> Value {
    let (mut begin, mut end, mut pages) = ((key(begin), false), key(end), Vec::new());
    let has_limit = options.limit > 0;
    loop {
        let from = KeySelector { key: &begin.0, or_equal: begin.1, offset: 1 };
        let page = transaction.get_range(from, KeySelector::first_greater_or_equal(&end), &options).expect("a page");
        let name = |key: &[u8]| String::from_utf8_lossy(&key[PREFIX.len()..]).into_owned();
        pages.push(json!([page.iter().map(|(key, _)| name(key)).collect::<Vec<_>>(), page.more]));
        options.limit -= if has_limit { page.pairs.len() as i32 } else { 0 };
        if !page.more || (has_limit && options.limit == 0) || pages.len() > PAGES_MAX {
            return Value::Array(pages);
        }
        if let Some((last, _)) = page.iter().last() {
            if options.reverse { end = last.to_vec() } else { begin = (last.to_vec(), true) }
        }
        options.iteration += 1;
    }
}

fn operate(transaction: &Transaction, operation: &Value) {
    let at = key(&operation[1]);
    match operation[0].as_str().expect("a name") {
        "set" => transaction.set(&at, b"new"),
        "clear" => transaction.clear(&at),
        "clear_range" => transaction.clear_range(&at, &key(&operation[2])),
        "get" => drop(transaction.get(&at, false).expect("a value")),
        "get_snapshot" => drop(transaction.get(&at, true).expect("a value")),
        "add" => transaction.atomic_op(&at, &1u64.to_le_bytes(), 2),
        "read" => {
            let options = RangeOptions { mode: -1, ..RangeOptions::default() };
            read(transaction, &operation[1], &operation[2], options);
        }
        other => panic!("{other}"),
    }
}

/// Plays a case on the engine.
fn play(engine: &Engine, case: &Value) -> Value {
    let each = |list: &str, each: &mut dyn FnMut(&Value)| case[list].as_array().expect("a list").iter().for_each(each);
    let before = engine.transaction();
    before.clear_range(PREFIX, b"pages0");
    let value = vec![b'v'; case["size"].as_u64().expect("a size") as usize];
    each("keys", &mut |name| before.set(&key(name), &value));
    commit(&before).expect("a commit");
    let transaction = engine.transaction();
    each("ops", &mut |operation| operate(&transaction, operation));
    let mut answers = Vec::new();
    each("reads", &mut |of| {
        let flag = |name: &str| of[name].as_bool().expect("a flag");
        let options = RangeOptions {
            limit: of["limit"].as_i64().expect("a limit") as i32,
            mode: mode(&of["mode"]),
            snapshot: flag("snapshot"),
            reverse: flag("reverse"),
            ..RangeOptions::default()
        };
        answers.push(read(&transaction, &of["begin"], &of["end"], options));
    });
    Value::Array(answers)
}

#[test]
fn pages_end_where_those_of_a_cluster_end() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/bindings/pages/pages.jsonl");
    let text = std::fs::read_to_string(&path).expect("the recorded pages");
    let dir = tempfile::tempdir().expect("a directory");
    let engine = open(dir.path());
    let mut differences = Vec::new();
    for (place, line) in text.lines().enumerate() {
        let case: Value = serde_json::from_str(line).expect("JSON");
        let answer = play(&engine, &case);
        if answer != case["pages"] {
            differences.push(format!("line {}: {line}\n  answered {answer}", place + 1));
        }
    }
    let shown = differences.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "{} of {} cases differ:\n{shown}", differences.len(), text.lines().count());
    assert_eq!(text.lines().count(), 1_000);
}
