//! The end of a process that leaves its network running. A program of its own: it starts itself again and checks the
//! end of that process, which must not have threads of other tests.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests and their helpers")]

use std::io::Write as _;
use std::process::{Command, Output};
use std::sync::mpsc;
use std::time::Duration;

use foundationdb::Database;
use foundationdb_sys::NETWORK_THREAD;
use futures::executor::block_on;

/// The child's way to end.
const ENDING: &str = "FLATBED_TEST_ENDING";

/// The path of the child's cluster file.
const CLUSTER_FILE: &str = "FLATBED_TEST_CHILD_CLUSTER_FILE";

/// The exit status of a child that finds a running thread that should have ended.
const FOUND: i32 = 3;

/// The flag of a thread that the system is ending (`PF_EXITING` of Linux).
const PF_EXITING: u64 = 4;

/// The names of the threads of this process that run. A thread that was joined can still be listed while the system
/// ends it: the system wakes who joins it first.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
    // A thread that has ended meanwhile has no file.
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
    stats
        .filter_map(|stat| {
            let (before, behind) = stat.rsplit_once(')')?;
            let flags: u64 = behind.split_whitespace().nth(6)?.parse().ok()?;
            let (_, name) = before.split_once('(')?;
            (flags & PF_EXITING == 0).then(|| name.to_owned())
        })
        .collect()
}

/// Registered before any use of the API, so it runs after the API's handler.
extern "C" fn look() {
    let threads = threads();
    let (called, calls) = mpsc::channel();
    std::thread::spawn(move || {
        // SAFETY: returns a text for any number.
        unsafe { foundationdb_sys::fdb_get_error(0) };
        let _ = called.send(());
    });
    let has_returned = calls.recv_timeout(Duration::from_millis(200)).is_ok();
    let _ = writeln!(std::io::stderr(), "threads: {threads:?}; a call returns: {has_returned}");
    if threads.iter().any(|name| name == NETWORK_THREAD) || has_returned {
        // SAFETY: ends the process.
        unsafe { libc::_exit(FOUND) };
    }
}

#[test]
#[ignore = "the child of the tests below"]
fn child() {
    // SAFETY: the handler is a function of this program.
    assert_eq!(unsafe { libc::atexit(look) }, 0);
    let path = std::env::var(CLUSTER_FILE).expect("a cluster file");
    // SAFETY: foundationdb-sys stops the network when the process ends.
    std::mem::forget(unsafe { foundationdb::boot() });
    let database = Database::from_path(&path).expect("opened");
    let read = |database: &Database| {
        let trx = database.create_trx().expect("a transaction");
        block_on(trx.get(b"key", false)).map(|value| value.map(|value| value.to_vec()))
    };
    assert_eq!(read(&database).expect("read"), None);
    assert!(threads().iter().any(|name| name == NETWORK_THREAD), "the network runs");
    // Another thread continues to read while the process ends.
    std::thread::spawn(move || while read(&database).is_ok() {});
    if std::env::var(ENDING).is_ok_and(|ending| ending == "exit") {
        std::process::exit(0);
    }
}

fn run(ending: &str) -> Output {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("fdb.cluster");
    std::fs::write(&path, "embedded:test@data\n").expect("written");
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(ENDING, ending)
        .env(CLUSTER_FILE, &path)
        .env_remove("FLATBED_FDB_LIBRARY")
        .env_remove("FLATBED_CLUSTER_FILE")
        .env_remove("FDB_CLUSTER_FILE")
        .output()
        .expect("the child runs")
}

#[test]
fn the_network_thread_has_ended_before_the_process() {
    for ending in ["main", "exit"] {
        let output = run(ending);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{ending}: {text}{}", String::from_utf8_lossy(&output.stdout));
        // The handler above has run.
        assert!(text.contains("a call returns: false"), "{ending}: {text}");
    }
}
