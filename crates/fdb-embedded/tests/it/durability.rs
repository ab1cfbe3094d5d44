//! Access to a directory, and its content over restarts. `crash` tests kills, `failing_disk` disk failures.
//!
//! The tests start this test binary again as a child, which runs `child` below with a role from the environment.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{commit, open, set};
use fdb_embedded::{Engine, Error, OpenOptions};

const ROLE: &str = "FDB_EMBEDDED_TEST_ROLE";
const DIR: &str = "FDB_EMBEDDED_TEST_DIR";

fn start(role: &str, dir: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "durability::child", "--nocapture"]).env(ROLE, role).env(DIR, dir);
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a child")
}

fn output(role: &str, dir: &Path) -> String {
    let output = start(role, dir).wait_with_output().expect("a child");
    String::from_utf8(output.stdout).expect("text")
}

/// The code of the child; not a test of its own.
#[test]
fn child() {
    let (Ok(role), Ok(dir)) = (std::env::var(ROLE), std::env::var(DIR)) else { return };
    let dir = Path::new(&dir);
    match role.as_str() {
        "opener" => match Engine::open(dir, OpenOptions::default()) {
            Ok(_) => println!("opened"),
            Err(error) => println!("refused {} {error}", error.code()),
        },
        other => panic!("role {other}"),
    }
}

#[test]
fn a_second_process_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = open(dir.path());
    let answer = output("opener", dir.path());
    assert!(answer.contains("refused 1529") && answer.contains("in use by another process"), "{answer}");
    assert!(answer.contains(&*engine.directory().to_string_lossy()), "{answer}");
    drop(engine);
    assert!(output("opener", dir.path()).contains("opened"));
}

#[test]
fn one_process_has_one_engine_a_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let (one, two) = (open(dir.path()), open(&dir.path().join(".")));
    set(&one, b"k", b"v");
    assert_eq!(two.transaction().get(b"k", false), Ok(Some(b"v".to_vec())));
    assert_eq!(two.stats().commits, 1);
    drop(one);
    set(&two, b"k", b"w");
    drop(two);
    // Opened repeatedly, also while another thread drops the last handle.
    let threads: Vec<_> = (0..8u8)
        .map(|number| {
            let dir = dir.path().to_owned();
            std::thread::spawn(move || {
                for _ in 0..10 {
                    set(&open(&dir), &[number], b"v");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a thread"));
    assert_eq!(open(dir.path()).transaction().get(b"k", false), Ok(Some(b"w".to_vec())));
}

#[test]
fn versions_grow_over_restarts() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut last = 0;
    for _ in 0..4 {
        let engine = open(dir.path());
        let transaction = engine.transaction();
        let read = transaction.get_read_version().expect("a version");
        assert!(read > last);
        transaction.set(b"k", b"v");
        commit(&transaction).expect("a commit");
        let committed = transaction.committed_version().expect("a version");
        assert!(committed > read);
        last = engine.transaction().get_read_version().expect("a version");
        assert!(last >= committed);
    }
}

#[test]
fn the_map_grows_while_transactions_read_and_write() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = OpenOptions::default();
    options.map_bytes = Some(1 << 20);
    let engine = Engine::open(dir.path(), options).expect("an engine");
    let read_until_done = |is_done: &AtomicBool| {
        let mut reads = 0u64;
        while !is_done.load(Ordering::Relaxed) {
            let transaction = engine.transaction();
            for _ in 0..10 {
                match transaction.get(b"k", false) {
                    Ok(_) => reads += 1,
                    // Its state was closed to replace the map.
                    Err(error) => assert_eq!(error, Error::TRANSACTION_TOO_OLD),
                }
            }
        }
        reads
    };
    let is_done = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_until_done(&is_done));
        for number in 0..300u32 {
            let transaction = engine.transaction();
            (0..10u8).for_each(|part| transaction.set(&[&number.to_be_bytes()[..], &[part]].concat(), &[part; 20_000]));
            commit(&transaction).expect("a commit");
        }
        is_done.store(true, Ordering::Relaxed);
        reader.join().expect("the reader")
    });
    assert!(reads > 0);
    assert!(engine.stats().data_bytes > 60_000_000);
    drop(engine);
    let transaction = open(dir.path()).transaction();
    for number in 0..300u32 {
        let value = transaction.get(&[&number.to_be_bytes()[..], &[7]].concat(), true);
        assert_eq!(value, Ok(Some(vec![7; 20_000])));
    }
}
