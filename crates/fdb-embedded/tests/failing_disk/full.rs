//! Full disks: a small file system, and a limit on the size of files.

use std::path::Path;
use std::process::Command;

use fdb_embedded::{Engine, Error, OpenError, OpenOptions};
use flatbed_testkit::until_blocking;

use crate::common::{commit, open, set};
use crate::{command, line, output};

/// Commits values of 90 kB until a commit fails, and some more. Returns the number of acknowledged commits.
fn write_until_full(engine: &Engine) -> u32 {
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
    100 - errors.len() as u32
}

fn check(engine: &Engine, acknowledged: u32) {
    let transaction = engine.transaction();
    let is_there = |number: u32| transaction.get(&number.to_be_bytes(), false).expect("a read").is_some();
    let found = (0..100).filter(|&number| is_there(number)).count() as u32;
    assert!((0..acknowledged).all(is_there), "{acknowledged} acknowledged, {found} found");
    assert!(acknowledged > 0 && found <= acknowledged + 1, "{acknowledged} acknowledged, {found} found");
}

pub fn under_a_limit_of_file_size(dir: &Path) {
    let engine = open(dir);
    set(&engine, b"before", b"v");
    let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
    // SAFETY: both calls take plain values. Without the first, the signal would end the process at the failing write.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
    }
    println!("acknowledged {}", write_until_full(&engine));
    println!("failure {}", engine.stats().failure.unwrap_or_default());
}

#[test]
fn a_limit_on_the_size_of_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = output(&mut command("file size", dir.path()));
    assert!(line(&text, "failure ").contains("ulimit -f"), "{text}");
    let engine = open(dir.path());
    check(&engine, line(&text, "acknowledged ").parse().expect("a number"));
    set(&engine, b"after", b"v");
}

/// A small file system in memory, unmounted when dropped.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    /// `None`, with a message, if this user may not mount.
    fn mount(size: &str) -> Option<Tmpfs> {
        let dir = tempfile::tempdir().expect("a directory");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(dir.path())
            .output();
        if !mount.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: no file system can be mounted here");
            return None;
        }
        Some(Tmpfs(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn remount(&self, option: &str) {
        // Children of other tests may inherit LMDB's file, which exec does not close, while they run.
        let remount = || Command::new("mount").args(["-o", &format!("remount,{option}")]).arg(self.path()).output();
        until_blocking("it is mounted anew", || remount().expect("mount").status.success());
    }

    fn fill(&self) {
        let mut file = std::fs::File::create(self.path().join("filler")).expect("a file");
        while std::io::Write::write_all(&mut file, &[0; 4_096]).is_ok() {}
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

#[test]
fn a_full_file_system() {
    let Some(disk) = Tmpfs::mount("5m") else { return };
    let data = disk.path().join("data");
    let engine = open(&data);
    set(&engine, b"before", b"v");
    let acknowledged = write_until_full(&engine);
    let failure = engine.stats().failure.unwrap_or_default();
    assert!(failure.contains("No space left on device") && failure.contains("make room"), "{failure}");
    drop(engine);
    // It also opens on the full disk, for reading.
    let engine = open(&data);
    check(&engine, acknowledged);
    drop(engine);
    disk.remount("size=20m");
    let engine = open(&data);
    check(&engine, acknowledged);
    set(&engine, b"after", b"v");
}

#[test]
fn a_new_directory_on_a_full_file_system() {
    let Some(disk) = Tmpfs::mount("1m") else { return };
    disk.fill();
    let error = Engine::open(disk.path(), OpenOptions::default()).expect_err("an error");
    assert!(matches!(error, OpenError::Io { .. }), "{error:?}");
    assert!(error.to_string().contains("No space left on device (os error 28); make room on the disk"), "{error}");
    std::fs::remove_file(disk.path().join("filler")).expect("the filler");
    disk.remount("size=3m");
    set(&open(disk.path()), b"k", b"v");
}

#[test]
fn a_reader_more_needs_no_room_on_a_full_disk() {
    let Some(disk) = Tmpfs::mount("16m") else { return };
    let engine = open(&disk.path().join("data"));
    // Free pages inside of the file.
    let transaction = engine.transaction();
    (0..100u8).for_each(|number| transaction.set(&[number], &vec![0; 90_000]));
    commit(&transaction).expect("a commit");
    let transaction = engine.transaction();
    transaction.clear_range(&[], &[0xff]);
    commit(&transaction).expect("a commit");
    for _ in 0..5 {
        set(&engine, b"k", b"v");
    }
    disk.fill();
    // Each takes a slot in LMDB's reader table, far beyond its first page.
    let readers: Vec<_> = (0..200u32)
        .map(|number| {
            let reader = engine.transaction();
            reader.get(b"k", false).expect("a read");
            set(&engine, b"k", &number.to_be_bytes());
            reader
        })
        .collect();
    assert!(engine.stats().open_snapshots >= 200);
    drop(readers);
}

#[test]
fn a_read_only_file_system() {
    let Some(disk) = Tmpfs::mount("4m") else { return };
    let data = disk.path().join("data");
    set(&open(&data), b"k", b"v");
    disk.remount("ro");
    for dir in [data.clone(), disk.path().join("new")] {
        let error = Engine::open(&dir, OpenOptions::default()).expect_err("an error");
        assert!(matches!(error, OpenError::ReadOnlyFileSystem(_)), "{error:?}");
        assert!(error.to_string().contains("mount it for writing"), "{error}");
    }
    disk.remount("rw");
    assert_eq!(open(&data).transaction().get(b"k", false), Ok(Some(b"v".to_vec())));
}
