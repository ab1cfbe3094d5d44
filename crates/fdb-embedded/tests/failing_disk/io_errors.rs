//! Fails each write and each sync of commits once, in each way that a disk may fail.

use std::collections::BTreeMap;
use std::path::Path;

use fdb_embedded::{Engine, Error, OpenOptions, RangeOptions, Transaction};

use crate::common::{commit, open, range, set};
use crate::faults::Faults;
use crate::{command, line, output};

/// The ways in which a call fails: the mode of `faults.c`, and the error.
const FAULTS: [(&str, i32); 6] = [
    ("once", libc::EIO),
    ("from", libc::EIO),
    ("from", libc::ENOSPC),
    ("short", libc::ENOSPC),
    ("done", libc::EIO),
    ("done-from", libc::EIO),
];
const COMMITS: u64 = 6;
/// The keys that a commit clears, and the records of them that it removes itself.
const CLEARED: u64 = 300;
const CLEAR_RECORDS_MAX: usize = 50;

/// Writes commit number `number`, which must be applied as a whole or not at all.
fn write(transaction: &Transaction, number: u64) {
    let put = |part: u64, bytes: usize| {
        transaction.set(format!("w/{number}/{part:03}").as_bytes(), &vec![number as u8; bytes]);
    };
    match number {
        0 => put(0, 10),
        // A value on overflow pages, and pages all over the file.
        1 => put(0, 90_000),
        2 => (0..60).for_each(|part| put(part, 700)),
        // The engine removes the pending records in LMDB transactions of its own.
        3 => {
            transaction.clear_range(b"c/", b"c0");
            put(0, 10);
        }
        _ => put(0, 3_000),
    }
}

fn keys(number: u64) -> usize {
    if number == 2 { 60 } else { 1 }
}

/// The child: some commits, then the switch, then commits of which one meets the fault.
pub fn commits(dir: &Path) {
    let mut options = OpenOptions::default();
    options.clear_records_max = Some(CLEAR_RECORDS_MAX);
    let engine = Engine::open(dir, options).expect("an engine");
    let transaction = engine.transaction();
    (0..CLEARED).for_each(|number| transaction.set(format!("c/{number:04}").as_bytes(), &[b'c'; 200]));
    commit(&transaction).expect("a commit");
    set(&engine, b"before", b"v");
    let (told, heard) = std::sync::mpsc::channel();
    engine.on_failure(move |reason| told.send(reason.to_owned()).expect("the test listens"));
    let armed = std::env::var("FDB_EMBEDDED_TEST_FAULT").expect("a fault");
    std::fs::write(std::env::var("FAULTS_SWITCH").expect("a switch"), armed).expect("a switch");

    let mut is_failed = false;
    for number in 0..COMMITS {
        let transaction = engine.transaction();
        write(&transaction, number);
        let result = commit(&transaction);
        println!("commit {number} {}", result.as_ref().map_or_else(|error| error.0, |()| 0));
        match result {
            Ok(()) => assert!(!is_failed, "a commit was acknowledged after a failure"),
            Err(error) if is_failed => assert_eq!(error, Error::IO_ERROR),
            Err(error) => assert!([Error::IO_ERROR, Error::COMMIT_UNKNOWN_RESULT].contains(&error), "{error:?}"),
        }
        is_failed |= result.is_err();
        read(&engine, number, result.is_ok());
        if number == 3 && !is_failed {
            // The removal may meet the fault too.
            while engine.stats().pending_clears > 0 && !engine.stats().is_failed {
                std::thread::yield_now();
            }
        }
    }
    let stats = engine.stats();
    assert!(stats.is_failed || !is_failed);
    assert_eq!(heard.try_recv().ok(), stats.failure);
    println!("failure {}", stats.failure.unwrap_or_default());
}

/// Reads continue, and see the acknowledged commits.
fn read(engine: &Engine, number: u64, is_acknowledged: bool) {
    let transaction = engine.transaction();
    transaction.get_read_version().expect("a version");
    assert_eq!(transaction.get(b"before", false), Ok(Some(b"v".to_vec())));
    let pairs = range(
        &transaction,
        format!("w/{number}/").as_bytes(),
        format!("w/{number}0").as_bytes(),
        &RangeOptions::default(),
    );
    let expected = if is_acknowledged { keys(number) } else { 0 };
    assert_eq!(pairs.map(|pairs| pairs.len()), Ok(expected), "keys of commit {number}");
}

/// Parses the child's output: the code of each commit, and the failure.
fn answers(text: &str) -> (BTreeMap<u64, i32>, String) {
    let commits = text.lines().filter_map(|line| line.strip_prefix("commit ")).map(|line| {
        let (number, code) = line.split_once(' ').expect("two numbers");
        (number.parse().expect("a number"), code.parse().expect("a code"))
    });
    (commits.collect(), line(text, "failure ").to_owned())
}

fn check(dir: &Path, answers: &BTreeMap<u64, i32>, what: &str) {
    let engine = open(dir);
    assert!(!engine.stats().is_failed);
    let transaction = engine.transaction();
    let mut is_cleared = false;
    for (number, code) in answers {
        let (begin, end) = (format!("w/{number}/"), format!("w/{number}0"));
        let found =
            range(&transaction, begin.as_bytes(), end.as_bytes(), &RangeOptions::default()).expect("a range").len();
        let allowed: &[usize] = match *code {
            0 => &[keys(*number)],
            1021 => &[0, keys(*number)],
            _ => &[0],
        };
        assert!(allowed.contains(&found), "{what}: {found} keys of commit {number}, which was answered {code}");
        is_cleared |= *number == 3 && found > 0;
    }
    let left = range(&transaction, b"c/", b"c0", &RangeOptions::default()).expect("a range").len() as u64;
    assert_eq!(left, if is_cleared { 0 } else { CLEARED }, "{what}: keys that commit 3 clears");
    set(&engine, b"after", b"v");
}

#[test]
fn no_call_that_fails_loses_a_commit_or_lets_another_one_pass() {
    let mut failures = 0;
    for (mode, errno) in FAULTS {
        for at in 1.. {
            let dir = tempfile::tempdir().expect("a directory");
            let data = dir.path().join("data");
            let faults = Faults::on(&data);
            let what = format!("{mode} {errno} at call {at}");
            let mut command = command("commits", &data);
            command.env("FDB_EMBEDDED_TEST_FAULT", format!("{at} {mode} {errno}"));
            let text = output(faults.load(&mut command));
            let (answers, failure) = answers(&text);
            check(&data, &answers, &what);
            let calls = faults.calls();
            let Some(failed) = calls.iter().find(|call| !call.ends_with(" 0")) else {
                assert!(at > 15, "{what}: only {} calls were made: {calls:?}", calls.len());
                assert!(answers.values().all(|&code| code == 0) && failure.is_empty(), "{what}: {answers:?} {failure}");
                break;
            };
            failures += 1;
            assert!(!failure.is_empty(), "{what}: {failed} went by: {answers:?}");
            assert!(failure.contains("writing to the data file failed"), "{failure}");
            // A short write is no system error; LMDB turns it into one.
            let advice = if errno == libc::ENOSPC && mode != "short" { "make room" } else { "the disk may be failing" };
            assert!(mode == "short" || failure.contains(advice), "{what}: {failure}");
        }
    }
    assert!(failures > 15 * FAULTS.len(), "{failures} failures");
}

#[test]
fn no_call_that_fails_while_it_opens_leaves_a_directory_that_cannot_be_opened() {
    for is_new in [true, false] {
        for (mode, errno) in FAULTS {
            for at in 1.. {
                let dir = tempfile::tempdir().expect("a directory");
                let data = dir.path().join("made").join("data");
                if !is_new {
                    set(&open(&data), b"before", b"v");
                }
                let faults = Faults::on(&dir.path().join("made"));
                faults.arm(at, mode, errno);
                let text = output(faults.load(&mut command("open", &data)));
                let what = format!("{mode} {errno} at call {at}: {text}");
                let calls = faults.calls();
                let Some(failed) = calls.iter().find(|call| !call.ends_with(" 0")) else {
                    assert!(text.contains("opened"), "{what}");
                    break;
                };
                let is_refused = text.contains("refused 1510") && text.contains(&*dir.path().to_string_lossy());
                // LMDB does not notice a short first write of its meta pages; the resulting file is refused.
                assert!(is_refused || mode == "short", "{what} {failed}");
                let engine = open(&data);
                let found = engine.transaction().get(b"before", false).expect("a read");
                assert_eq!(found.is_some(), !is_new, "{what}");
                set(&engine, b"after", b"v");
            }
        }
    }
}
