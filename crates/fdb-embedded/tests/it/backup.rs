//! Copies of a served database, and their restore.
//!
//! A process cannot open one database twice, so the tests start this program again as a child that makes the copy.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{commit, on_error, open, range, set};
use fdb_embedded::{BackupError, Engine, OpenError, OpenOptions, RangeOptions, Restore, backup};
use flatbed_testkit::{pass_blocking, until_blocking};

const ROLE: &str = "FDB_EMBEDDED_TEST_ROLE";
const DIR: &str = "FDB_EMBEDDED_TEST_DIR";
const OUT: &str = "FDB_EMBEDDED_TEST_OUT";

/// Keys that every transaction of the writers changes in the same way.
const COUNTERS: u64 = 20;

fn start(role: &str, dir: &Path, out: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "backup::child", "--nocapture"]).env(ROLE, role).env(DIR, dir).env(OUT, out);
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a child")
}

/// Runs the child. Returns its answer line, or all of its output without one.
fn output(role: &str, dir: &Path, out: &Path) -> String {
    let output = start(role, dir, out).wait_with_output().expect("a child");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().find_map(|line| Some(line.split_once("answer: ")?.1.to_owned())).unwrap_or(text)
}

/// The code of the child; not a test of its own.
#[test]
fn child() {
    let (Ok(role), Ok(dir), Ok(out)) = (std::env::var(ROLE), std::env::var(DIR), std::env::var(OUT)) else { return };
    let (dir, out) = (PathBuf::from(dir), PathBuf::from(out));
    // SAFETY: the calls take plain values. Without the first, the signal would end the process at the failing write.
    unsafe {
        match role.as_str() {
            "limited" => {
                let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
            }
            "nobody" if libc::geteuid() == 0 => assert_eq!(libc::setuid(65_534), 0),
            _ => {}
        }
    }
    println!("begins");
    match backup(&dir, &out, |progress| assert!(progress.total_bytes > 0)) {
        Ok(bytes) => println!("answer: {bytes}"),
        Err(error) => println!("answer: {error}"),
    }
}

/// Adds one to all counters, and adds an entry for the new number.
fn count(engine: &Engine) -> u64 {
    let transaction = engine.transaction();
    loop {
        let old = transaction.get(b"c/0", false).expect("a read");
        let number = old.map_or(0, |old| u64::from_le_bytes(old[..8].try_into().expect("a number"))) + 1;
        for counter in 0..COUNTERS {
            let filler = vec![counter as u8; 50 << (counter % 7)];
            transaction.set(format!("c/{counter}").as_bytes(), &[&number.to_le_bytes(), &filler[..]].concat());
        }
        transaction.set(format!("e/{number:012}/{}", "x".repeat(2_500)).as_bytes(), b"");
        transaction.clear(format!("o/{}", number.saturating_sub(50)).as_bytes());
        transaction.set(format!("o/{number}").as_bytes(), &[0; 5_000]);
        match commit(&transaction) {
            Ok(()) => return number,
            Err(error) => on_error(&transaction, error.0).expect("a retry"),
        }
    }
}

/// Returns the number that all counters show, after checking the entries.
fn counted(engine: &Engine) -> u64 {
    let transaction = engine.transaction();
    let counters = range(&transaction, b"c/", b"c0", &RangeOptions::default()).expect("a read");
    let number = |value: &[u8]| u64::from_le_bytes(value[..8].try_into().expect("a number"));
    let first = number(&counters[0].1);
    assert_eq!(counters.len() as u64, COUNTERS);
    assert!(counters.iter().all(|(_, value)| number(value) == first), "counters differ");
    assert_eq!(range(&transaction, b"e/", b"e0", &RangeOptions::default()).expect("a read").len() as u64, first);
    first
}

#[test]
fn a_copy_beside_writers_is_one_state() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = open(dir.path());
    set(&engine, b"c/0", &[0; 8]);
    // Between the counters and their entries: the copy takes so long that many commits run meanwhile.
    for number in 0..400u16 {
        set(&engine, &[b"d/", &number.to_be_bytes()[..]].concat(), &[b'd'; 90_000]);
    }
    let (is_over, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    acknowledged.fetch_max(count(&engine), Ordering::Relaxed);
                }
            });
        }
        let mut copies = Vec::new();
        for number in 0..5 {
            until_blocking("the writers commit", || acknowledged.load(Ordering::Relaxed) > number * 20);
            let out = dir.path().join(format!("copies/{number}"));
            let before = acknowledged.load(Ordering::Relaxed);
            let answer = output("backup", dir.path(), &out);
            let bytes: u64 = answer.parse().unwrap_or_else(|_| panic!("{answer}"));
            assert_eq!(bytes, std::fs::metadata(out.join("data.mdb")).expect("the copy").len());
            let mode = std::fs::metadata(out.join("data.mdb")).expect("the copy").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "only the owner may read a backup");
            copies.push((out, before, acknowledged.load(Ordering::Relaxed)));
        }
        is_over.store(true, Ordering::Relaxed);
        for (out, before, after) in copies {
            assert_eq!(std::fs::read_dir(&out).expect("the directory").count(), 1, "data.mdb and nothing else");
            let found = counted(&open(&out));
            assert!(before <= found && found <= after + 4, "{before} before, {found} copied, {after} after");
        }
    });
    assert!(counted(&engine) >= acknowledged.load(Ordering::Relaxed));
}

#[test]
fn a_copy_leaves_free_pages_out_and_is_made_without_a_server() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, out) = (dir.path().join("data"), dir.path().join("out"));
    let engine = open(&data);
    for number in 0..100u8 {
        set(&engine, &[b'k', number], &vec![number; 90_000]);
    }
    let transaction = engine.transaction();
    transaction.clear_range(b"k\x01", b"l");
    commit(&transaction).expect("a commit");
    until_blocking("the cleared records are removed", || engine.stats().pending_clears == 0);
    let version = transaction.committed_version().expect("a version");
    drop((transaction, engine));
    // In this process, because the directory is closed; into an existing empty directory.
    std::fs::create_dir(&out).expect("a directory");
    let bytes = backup(&data, &out, |_| {}).expect("a backup");
    assert!(bytes < 500_000, "{bytes}");
    assert!(std::fs::metadata(data.join("data.mdb")).expect("the file").len() > 5_000_000);
    let copy = open(&out);
    assert_eq!(copy.transaction().get(b"k\0", false), Ok(Some(vec![0; 90_000])));
    assert_eq!(copy.transaction().get(b"k\x01", false), Ok(None));
    assert!(copy.transaction().get_read_version().expect("a version") > version, "versions never go back");
    set(&copy, b"k\x01", b"new");
}

/// Creates a database of 54 MB.
fn large(dir: &Path) -> Engine {
    let engine = open(dir);
    for number in 0..600u16 {
        set(&engine, &number.to_be_bytes(), &vec![b'v'; 90_000]);
    }
    engine
}

/// Waits until all threads of a child are stopped, or it has ended, without reaping it.
fn wait_for_stop(child: &Child) {
    // SAFETY: zeros are a value of this type.
    let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let events = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT;
    // SAFETY: the process is a child that has not been waited for, and `found` outlives the call.
    let waited = unsafe { libc::waitid(libc::P_PID, child.id(), &mut found, events) };
    assert_eq!(waited, 0, "{}", std::io::Error::last_os_error());
}

/// A backup of [`large`] that a signal stopped in the middle of its copy; `None` if it was too fast.
fn stopped_backup(data: &Path, out: &Path) -> Option<Child> {
    // The file of an earlier attempt would be taken for this one's.
    let _ = std::fs::remove_dir_all(out);
    let mut child = start("backup", data, out);
    let output = child.stdout.as_mut().expect("its output");
    let mut lines = BufReader::new(output).lines();
    while !lines.next().expect("a line").expect("text").ends_with("begins") {}
    let length = || std::fs::metadata(out.join("data.mdb.partial")).map_or(0, |found| found.len());
    while length() < 4 << 20 && !out.join("data.mdb").exists() {}
    // SAFETY: the process is a child that has not been waited for.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGSTOP) };
    // A write that has begun still completes.
    wait_for_stop(&child);
    if (4 << 20..50 << 20).contains(&length()) {
        return Some(child);
    }
    child.kill().expect("a kill");
    child.wait().expect("its end");
    None
}

#[test]
fn the_server_may_begin_anew_during_a_backup() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, out) = (dir.path().join("data"), dir.path().join("out"));
    drop(large(&data));
    let engine = open(&data);
    let mut met = None;
    until_blocking("a backup is met in the middle", || {
        met = stopped_backup(&data, &out);
        met.is_some()
    });
    let mut child = met.expect("it was met");
    // LMDB's lock file stays in use, so its contents must outlive the engine.
    drop(engine);
    for _ in 0..3 {
        let engine = open(&data);
        for number in 0..600u16 {
            set(&engine, &number.to_be_bytes(), &vec![b'w'; 9_000]);
        }
    }
    // SAFETY: as above.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGCONT) };
    assert!(child.wait().expect("its end").success());
    let copy = open(&out);
    for number in 0..600u16 {
        let value = copy.transaction().get(&number.to_be_bytes(), false).expect("a read").expect("a value");
        assert!(value == vec![b'v'; 90_000], "{number} differs from the begin of the backup");
    }
    assert_eq!(open(&data).transaction().get(&0u16.to_be_bytes(), false), Ok(Some(vec![b'w'; 9_000])));
}

#[test]
fn a_killed_backup_leaves_nothing_half_and_holds_no_pages() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, out) = (dir.path().join("data"), dir.path().join("out"));
    let engine = large(&data);
    let overwrite = || {
        let before = engine.stats().data_bytes;
        for number in 0..100u16 {
            set(&engine, &number.to_be_bytes(), &vec![b'w'; 90_000]);
        }
        engine.stats().data_bytes - before
    };
    // Killed in the middle, and before the engine checks the readers: until then freed pages cannot be reused.
    until_blocking("a kill meets a backup in the middle", || {
        let Some(mut child) = stopped_backup(&data, &out) else { return false };
        child.kill().expect("a kill");
        child.wait().expect("its end");
        overwrite() > 7_000_000
    });
    assert!(!out.join("data.mdb").exists());
    until_blocking("the file grows no more", || {
        // The file grows by 9 MB each time until the engine checks.
        pass_blocking(Duration::from_millis(500));
        overwrite() <= 1_000_000
    });
    // The next backup reuses the incomplete file.
    let answer = output("backup", &data, &out);
    assert!(answer.parse::<u64>().is_ok(), "{answer}");
    assert_eq!(open(&out).transaction().get(&0u16.to_be_bytes(), false), Ok(Some(vec![b'w'; 90_000])));
}

#[test]
fn what_cannot_be_copied_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, out) = (dir.path().join("data"), dir.path().join("some/out"));
    let refused = |data: &Path, out: &Path| backup(data, out, |_| {}).expect_err("an error");

    assert!(matches!(refused(&data, &out), BackupError::NoDatabase(path) if path == data));
    std::fs::create_dir(&data).expect("a directory");
    assert!(matches!(refused(&data, &out), BackupError::NoDatabase(path) if path == data));
    assert_eq!(std::fs::read_dir(&data).expect("the directory").count(), 0, "nothing is made in it");
    std::fs::write(data.join("data.mdb"), b"not a database").expect("a file");
    assert!(matches!(refused(&data, &out), BackupError::Directory(OpenError::NotOurs { .. })));
    std::fs::remove_dir_all(&data).expect("the directory");

    let engine = open(&data);
    for number in 0..40u8 {
        set(&engine, &[number], &vec![0; 50_000]);
    }
    assert!(matches!(refused(&data, &out), BackupError::OpenHere(_)));
    let answer = output("limited", &data, &out);
    assert!(answer.starts_with("cannot write ") && answer.contains("some/out/data.mdb.partial"), "{answer}");
    drop(engine);
    assert!(!dir.path().join("some").exists(), "nothing was made for a backup that failed");

    std::fs::create_dir_all(&out).expect("a directory");
    std::fs::write(out.join("other"), b"").expect("a file");
    assert!(matches!(refused(&data, &out), BackupError::NotEmpty(path) if path == out));
    assert!(matches!(refused(&data, &out.join("other")), BackupError::Directory(OpenError::NotADirectory(_))));
    std::fs::remove_file(out.join("other")).expect("the file");
    backup(&data, &out, |_| {}).expect("a backup");
    assert!(matches!(refused(&data, &out), BackupError::NotEmpty(_)), "a backup is not overwritten");
    assert!(matches!(refused(&data, &data), BackupError::NotEmpty(_)));

    let file = std::fs::OpenOptions::new().write(true).open(out.join("data.mdb")).expect("the file");
    file.set_len(1_000_000).expect("a cut");
    let cut_off = refused(&out, &dir.path().join("again"));
    assert!(matches!(cut_off, BackupError::Directory(OpenError::Truncated { .. })), "{cut_off}");
    put_format(&data, 77);
    let newer = refused(&data, &dir.path().join("newer"));
    assert!(matches!(newer, BackupError::Directory(OpenError::NewerFormat { found: 77, .. })), "{newer}");
    assert!(!dir.path().join("newer").exists() && !dir.path().join("again").exists());
}

fn put_format(dir: &Path, format: u32) {
    use heed::types::Bytes;
    let mut options = heed::EnvOpenOptions::new();
    // SAFETY: the directory is the test's own, and the engine on it is closed.
    let env = unsafe { options.map_size(1 << 30).open(dir) }.expect("LMDB");
    let txn = env.write_txn().expect("a transaction");
    let opened = env.create_databases_and_commit(txn, |opener, txn| {
        let db = opener.create_database::<Bytes, Bytes>(txn, None)?;
        Ok::<_, heed::Error>(heed::CommitOrAbort::<_, ()>::Commit(db))
    });
    let db = opened.expect("a database").unwrap_commit();
    let mut txn = env.write_txn().expect("a transaction");
    db.put(&mut txn, b"\0format", &format.to_le_bytes()).expect("a write");
    txn.commit().expect("a commit");
}

#[test]
fn a_reader_needs_the_lock_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let engine = open(&data);
    set(&engine, b"k", b"v");
    for path in [dir.path(), &data] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("a mode");
    }
    for (name, mode) in [("data.mdb", 0o444), ("lock.mdb", 0o444)] {
        std::fs::set_permissions(data.join(name), std::fs::Permissions::from_mode(mode)).expect("a mode");
    }
    let answer = output("nobody", &data, &dir.path().join("out"));
    assert!(answer.starts_with("no permission to write ") && answer.contains("data/lock.mdb"), "{answer}");
    assert!(answer.ends_with("run it as the server's user"), "{answer}");
    assert!(!dir.path().join("out").exists());
}

#[test]
fn pages_that_belong_to_nothing_are_copied_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, out) = (dir.path().join("data"), dir.path().join("out"));
    set(&open(&data), b"k", &[1; 50_000]);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(data.join("data.mdb")).expect("the file");
    // Both meta pages claim one page more; LMDB then refuses to compact.
    // SAFETY: sysconf only reads.
    let page_bytes = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("a size");
    for offset in [136, page_bytes + 136] {
        let mut last = [0; 8];
        file.read_exact_at(&mut last, offset).expect("a read");
        let pages = u64::from_ne_bytes(last) + 1;
        file.write_all_at(&pages.to_ne_bytes(), offset).expect("a write");
        let length = file.metadata().expect("its length").len();
        file.set_len(length.max((pages + 1) * page_bytes)).expect("a page");
    }
    let bytes = backup(&data, &out, |_| {}).expect("a backup");
    assert_eq!(bytes, file.metadata().expect("its length").len());
    assert_eq!(open(&out).transaction().get(b"k", false), Ok(Some(vec![1; 50_000])));
}

#[test]
fn two_backups_do_not_meet_in_one_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, out) = (dir.path().join("data"), dir.path().join("out"));
    set(&open(&data), b"k", b"v");
    std::fs::create_dir(&out).expect("a directory");
    let held = std::fs::File::create(out.join("data.mdb.partial")).expect("a file");
    // SAFETY: the call takes a descriptor, which `held` keeps open.
    assert_eq!(unsafe { libc::flock(std::os::fd::AsRawFd::as_raw_fd(&held), libc::LOCK_EX) }, 0);
    assert!(matches!(backup(&data, &out, |_| {}), Err(BackupError::Busy(_))));
    assert!(out.join("data.mdb.partial").exists(), "another process owns the file");
    drop(held);
    backup(&data, &out, |_| {}).expect("a backup");
}

#[test]
fn a_backup_is_put_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, out) = (dir.path().join("data"), dir.path().join("out"));
    set(&open(&data), b"k", b"v");
    backup(&data, &out, |_| {}).expect("a backup");

    let new = dir.path().join("some/new");
    let restore = Restore::begin(&out, &new, |_| {}).expect("a restore");
    assert!(
        matches!(Engine::open(&new, OpenOptions::default()), Err(OpenError::InUse(_))),
        "the restore is incomplete"
    );
    drop(restore);
    assert!(!dir.path().join("some").exists(), "an incomplete restore leaves nothing");

    // A killed restore leaves this directory; its content is ignored.
    std::fs::create_dir_all(new.join("restoring")).expect("a directory");
    std::fs::write(new.join("restoring/data.mdb"), b"half").expect("a file");
    std::fs::write(new.join("engine.lock"), b"").expect("a file");
    let restore = Restore::begin(&out, &new, |_| {}).expect("a restore");
    let staged = open(restore.staging());
    set(&staged, b"added", b"v");
    drop(staged);
    restore.finish().expect("a restore");
    assert_eq!(std::fs::read_dir(&out).expect("the backup").count(), 1, "the backup is not written to");
    let engine = open(&new);
    assert_eq!(engine.transaction().get(b"k", false), Ok(Some(b"v".to_vec())));
    assert_eq!(engine.transaction().get(b"added", false), Ok(Some(b"v".to_vec())));
    assert!(!new.join("restoring").exists());

    // Never into a database, open or closed, and never without a source.
    let refused = |out: &Path, new: &Path| Restore::begin(out, new, |_| {}).err().expect("an error");
    assert!(matches!(refused(&out, &new), BackupError::NotEmpty(path) if path == new));
    drop(engine);
    assert!(matches!(refused(&out, &new), BackupError::NotEmpty(_)));
    assert!(matches!(refused(&dir.path().join("none"), &dir.path().join("a")), BackupError::NoDatabase(_)));
    let foreign = dir.path().join("foreign");
    std::fs::create_dir(&foreign).expect("a directory");
    std::fs::write(foreign.join("file"), b"").expect("a file");
    assert!(matches!(refused(&out, &foreign), BackupError::NotEmpty(_)));
    assert_eq!(std::fs::read_dir(&foreign).expect("the directory").count(), 1, "nothing is made in it");
    put_format(&out, 77);
    let newer = refused(&out, &dir.path().join("b"));
    assert!(matches!(newer, BackupError::Directory(OpenError::NewerFormat { .. })), "{newer}");
    assert!(!dir.path().join("a").exists() && !dir.path().join("b").exists());

    // The directory of a stopped server, or of one in another process, can be moved too.
    let restore = Restore::begin(&new, &dir.path().join("moved"), |_| {}).expect("a restore");
    let staged = open(restore.staging());
    let staging = restore.staging().to_owned();
    assert!(matches!(restore.finish(), Err(BackupError::StillOpen(path)) if path == staging));
    drop(staged);
    assert!(!dir.path().join("moved/data.mdb").exists());
}
