//! Unusable directories, limits of the process, and a clock that was set back.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;

use fdb_embedded::{Engine, OpenError, OpenOptions};

use crate::common::{commit, open, set};
use crate::faults::Faults;
use crate::{command, line, output};

/// A user that owns no files.
const NOBODY: u32 = 65_534;

#[test]
fn a_path_that_is_no_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    fs::write(&file, b"text").expect("a file");
    for path in [file.clone(), file.join("below")] {
        let error = Engine::open(&path, OpenOptions::default()).expect_err("an error");
        assert!(matches!(error, OpenError::NotADirectory(_)), "{error:?}");
        assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
    }
    fs::create_dir(dir.path().join("engine.lock")).expect("a directory");
    let error = Engine::open(dir.path(), OpenOptions::default()).expect_err("an error");
    assert!(matches!(error, OpenError::Io { .. }) && error.to_string().contains("engine.lock"), "{error}");
}

/// Opens in a child that is not root; `None`, with a message, if that is impossible.
fn open_as_nobody(dir: &Path) -> Option<String> {
    let mut command = command("open", dir);
    // SAFETY: getuid only reads.
    if unsafe { libc::getuid() } == 0 {
        command.uid(NOBODY).gid(NOBODY);
    }
    match command.output() {
        Ok(output) if output.status.success() => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => panic!("{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            eprintln!("skipped: another user may not run this program ({error})");
            None
        }
    }
}

#[test]
fn no_permission() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("permissions");
    let data = dir.path().join("data");
    set(&open(&data), b"k", b"v");
    let mode = |path: &Path, mode: u32| fs::set_permissions(path, Permissions::from_mode(mode)).expect("permissions");
    // SAFETY: getuid only reads.
    let owner = if unsafe { libc::getuid() } == 0 { Some(NOBODY) } else { None };
    for file in ["", "data.mdb", "lock.mdb", "engine.lock"] {
        chown(data.join(file), owner, owner).expect("an owner");
    }
    let cases: [(&str, u32); 5] =
        [("", 0o000), ("", 0o555), ("engine.lock", 0o444), ("data.mdb", 0o444), ("lock.mdb", 0o444)];
    for (file, forbidden) in cases {
        let path = if file.is_empty() { data.clone() } else { data.join(file) };
        let before = fs::metadata(&path).expect("it is there").permissions().mode();
        mode(&path, forbidden);
        if forbidden == 0o555 {
            fs::remove_file(data.join("data.mdb")).expect("removed");
        }
        let Some(text) = open_as_nobody(&data) else { return };
        let named = if forbidden == 0o555 || forbidden == 0 { data.clone() } else { path.clone() };
        assert!(text.contains("refused 1514 no permission to read and write"), "{file} {forbidden:o}: {text}");
        assert!(text.contains(&*named.to_string_lossy()) && text.contains("give it to the user"), "{file}: {text}");
        mode(&path, before);
        if forbidden == 0o555 {
            set(&open(&data), b"k", b"v");
            chown(data.join("data.mdb"), owner, owner).expect("an owner");
        }
        let text = open_as_nobody(&data).expect("a child");
        assert!(text.contains("opened, 1 keys"), "{file}: {text}");
    }
    // The directory cannot be created.
    let text = open_as_nobody(&dir.path().join("new")).expect("a child");
    assert!(text.contains("refused 1514") || owner.is_none(), "{text}");
}

pub fn under_a_limit_of_address_space(dir: &Path) {
    let pages = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = pages.split(' ').next().and_then(|pages| pages.parse().ok()).expect("a number");
    let bytes = pages * 4_096 + (200 << 20);
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: the call takes plain values.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    let error = Engine::open(dir, OpenOptions::default()).expect_err("an error");
    assert!(matches!(error, OpenError::AddressSpace(_)), "{error:?}");
    println!("error {error}");
}

#[test]
fn no_address_space() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = output(&mut command("address space", &dir.path().join("data")));
    assert!(line(&text, "error ").contains("ulimit -v"), "{text}");
    set(&open(&dir.path().join("data")), b"k", b"v");
}

pub fn with_another_clock(dir: &Path) {
    let engine = open(dir);
    let transaction = engine.transaction();
    transaction.set(b"k", b"v");
    commit(&transaction).expect("a commit");
    println!("version {}", transaction.committed_version().expect("a version"));
}

#[test]
fn a_clock_that_was_set_back_takes_no_version_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let mut command = command("clock", &data);
    let text = output(Faults::on(&data).load(command.env("FAULTS_CLOCK_SECONDS", "3600")));
    let before: i64 = line(&text, "version ").parse().expect("a number");
    let engine = open(&data);
    let transaction = engine.transaction();
    let read = transaction.get_read_version().expect("a version");
    transaction.set(b"k", b"w");
    commit(&transaction).expect("a commit");
    let committed = transaction.committed_version().expect("a version");
    assert!(before < read && read < committed, "{before}, then {read} and {committed}");
}
