//! What is on disk after a kill, who may open it, and what a failing disk does.
//!
//! The tests start this test binary again as a child, which runs `child` below with a role from the environment.

mod common;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use common::{commit, open, set};
use fdb_embedded::{Engine, Error, KeySelector, OpenError, OpenOptions, RangeOptions};

const ROLE: &str = "FDB_EMBEDDED_TEST_ROLE";
const DIR: &str = "FDB_EMBEDDED_TEST_DIR";

fn start(role: &str, dir: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "child", "--nocapture"]).env(ROLE, role).env(DIR, dir);
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a child")
}

fn output(role: &str, dir: &Path) -> String {
    let output = start(role, dir).wait_with_output().expect("a child");
    String::from_utf8(output.stdout).expect("text")
}

/// Not a test of its own: what a child does.
#[test]
fn child() {
    let (Ok(role), Ok(dir)) = (std::env::var(ROLE), std::env::var(DIR)) else { return };
    let dir = Path::new(&dir);
    match role.as_str() {
        "opener" => match Engine::open(dir, OpenOptions::default()) {
            Ok(_) => println!("opened"),
            Err(error) => println!("refused {} {error}", error.code()),
        },
        "full" => write_until_full(dir),
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
    // Opened again and again, also while the last handle is just being dropped elsewhere.
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

/// Writes under a limit on the size of files, which gives an I/O error in the middle of a commit.
fn write_until_full(dir: &Path) {
    let engine = open(dir);
    set(&engine, b"before", b"v");
    let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
    // SAFETY: both calls take plain values; the signal would end the process where the write shall fail.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
    }
    let mut errors = Vec::new();
    for number in 0..100u32 {
        let transaction = engine.transaction();
        transaction.set(&number.to_be_bytes(), &vec![b'v'; 90_000]);
        match commit(&transaction) {
            Ok(()) => assert!(errors.is_empty(), "a commit was acknowledged after a failure"),
            Err(error) => errors.push(error),
        }
    }
    assert!(matches!(errors[0], Error::IO_ERROR | Error::COMMIT_UNKNOWN_RESULT), "{errors:?}");
    assert!(errors[1..].iter().all(|error| *error == Error::IO_ERROR), "{errors:?}");
    assert!(engine.stats().is_failed);
    assert_eq!(engine.transaction().get(b"before", false), Ok(Some(b"v".to_vec())));
    println!("failed after {}: {}", 100 - errors.len(), engine.stats().failure.unwrap_or_default());
}

#[test]
fn a_failing_disk_stops_commits_and_loses_none() {
    let dir = tempfile::tempdir().expect("a directory");
    let answer = output("full", dir.path());
    let line = answer.lines().find(|line| line.contains("failed after ")).unwrap_or_else(|| panic!("{answer}"));
    let count = line.split("failed after ").nth(1).and_then(|rest| rest.split(':').next());
    let count: usize = count.expect("a count").parse().expect("a count");
    let engine = open(dir.path());
    let transaction = engine.transaction();
    let ends = (KeySelector::first_greater_or_equal(b"\0"), KeySelector::first_greater_or_equal(b"\x01"));
    let mut found = 0;
    for number in 0..100u32 {
        found += usize::from(transaction.get(&number.to_be_bytes(), false).expect("a read").is_some());
    }
    assert!(count > 0 && (count..=count + 1).contains(&found), "{count} acknowledged, {found} found");
    assert!(transaction.get_range(ends.0, ends.1, &RangeOptions::default()).is_ok());
    set(&engine, b"after", b"v");
}

#[test]
fn foreign_and_damaged_files_are_refused() {
    let refused = |prepare: &dyn Fn(&Path)| {
        let dir = tempfile::tempdir().expect("a directory");
        prepare(dir.path());
        Engine::open(dir.path(), OpenOptions::default()).expect_err("an error")
    };
    let error = refused(&|dir| std::fs::write(dir.join("data.mdb"), b"not a database").expect("a file"));
    assert!(matches!(error, OpenError::NotOurs { .. }), "{error}");
    let error = refused(&|dir| {
        let mut options = heed::EnvOpenOptions::new();
        // SAFETY: the directory is the test's own.
        let env = unsafe { options.map_size(1 << 20).open(dir) }.expect("LMDB");
        put_raw(&env, b"foreign", b"value");
    });
    assert!(matches!(error, OpenError::NotOurs { .. }), "{error}");
    let error = refused(&|dir| {
        set(&open(dir), b"k", b"v");
        let mut options = heed::EnvOpenOptions::new();
        // SAFETY: the directory is the test's own, and the engine on it is closed.
        let env = unsafe { options.map_size(1 << 20).open(dir) }.expect("LMDB");
        put_raw(&env, b"\0format", &7u32.to_le_bytes());
    });
    assert!(matches!(error, OpenError::NewerFormat { found: 7, .. }), "{error}");
    let error = refused(&|dir| {
        let engine = open(dir);
        for number in 0..40u8 {
            set(&engine, &[number], &vec![0; 50_000]);
        }
        drop(engine);
        let file = std::fs::OpenOptions::new().write(true).open(dir.join("data.mdb")).expect("the file");
        file.set_len(100_000).expect("a cut");
    });
    assert!(matches!(error, OpenError::Truncated { .. }), "{error}");
    let error = refused(&|dir| std::fs::create_dir(dir.join("engine.lock")).expect("a directory"));
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
}

fn put_raw(env: &heed::Env<heed::WithTls>, key: &[u8], value: &[u8]) {
    use heed::types::Bytes;
    let txn = env.write_txn().expect("a transaction");
    let created = env.create_databases_and_commit(txn, |opener, txn| {
        let db = opener.create_database::<Bytes, Bytes>(txn, None)?;
        Ok::<_, heed::Error>(heed::CommitOrAbort::<_, ()>::Commit(db))
    });
    let db = created.expect("a database").unwrap_commit();
    let mut txn = env.write_txn().expect("a transaction");
    db.put(&mut txn, key, value).expect("a write");
    txn.commit().expect("a commit");
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
                    // Its state was closed for the map's sake.
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
