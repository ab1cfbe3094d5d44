//! Data files that are truncated, damaged, foreign or newer, and one that only looks truncated.

use std::fs::{self, OpenOptions as FileOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use fdb_embedded::{Engine, OpenError, OpenOptions, RangeOptions};
use flatbed_testkit::Random;
use heed::types::Bytes;

use crate::common::{commit, open, range, set};
use crate::{command, output};

pub const PAGE_BYTES: u64 = 4_096;

/// Reads everything. Returns the number of keys.
pub fn all(engine: &Engine) -> usize {
    range(&engine.transaction(), b"", b"\xff", &RangeOptions::default()).expect("a range").len()
}

/// Creates and closes a database of several hundred pages. Returns its data file.
pub fn database(dir: &Path) -> Vec<u8> {
    let engine = open(dir);
    for from in (0..2_000u32).step_by(500) {
        let transaction = engine.transaction();
        for number in from..from + 500 {
            transaction.set(&number.to_be_bytes(), &[7; 300]);
        }
        transaction.set(b"large", &vec![from as u8; 90_000]);
        commit(&transaction).expect("a commit");
    }
    // These use free pages, so that the pages named by the meta pages are not at the file's end.
    (0..6u8).for_each(|number| set(&engine, b"large", &[number]));
    drop(engine);
    fs::read(dir.join("data.mdb")).expect("the file")
}

pub fn open_copy(bytes: &[u8]) -> Result<usize, OpenError> {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("data.mdb"), bytes).expect("a file");
    let opened = Engine::open(dir.path(), OpenOptions::default());
    if let Err(error) = &opened {
        let text = error.to_string();
        assert!(text.contains(&*dir.path().to_string_lossy()), "{text}");
        assert_eq!(
            fs::read(dir.path().join("data.mdb")).expect("the file"),
            bytes,
            "a file that is refused stays as it is"
        );
    }
    opened.map(|engine| all(&engine))
}

#[test]
fn files_that_are_cut_off() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = database(dir.path());
    let len = file.len() as u64;
    assert!(len > 200 * PAGE_BYTES && len.is_multiple_of(PAGE_BYTES), "{len}");
    assert_eq!(open_copy(&file).expect("the whole file"), 2_001);
    let page = PAGE_BYTES;
    let lengths =
        [1, 20, 100, 151, 152, page - 1, page, page + 1, page + 151, page + 152, 2 * page - 1, 2 * page, 2 * page + 1];
    for cut in lengths
        .into_iter()
        .chain([3 * page, len / 2, len / 2 + 7, len - page, len - 1])
        .chain((2..100).step_by(5).map(|pages| len - pages * page))
    {
        let error = match open_copy(&file[..cut as usize]) {
            Err(error) => error,
            // All pages cut off were free.
            Ok(keys) => {
                assert!(keys == 2_001 && cut > len / 2, "{cut} of {len} bytes: {keys} keys");
                continue;
            }
        };
        match &error {
            OpenError::NotOurs { .. } => assert!(cut < 152, "{cut}: {error}"),
            OpenError::Truncated { found_bytes, expected_bytes, .. } => {
                assert!(cut >= 152 && *found_bytes == cut && *expected_bytes <= len, "{cut}: {error}");
                assert!(error.to_string().contains("restore a backup"), "{error}");
            }
            error => panic!("{cut}: {error:?}"),
        }
        assert_eq!(error.code(), 1522);
    }
    let error = open_copy(b"").expect_err("an error");
    assert!(matches!(error, OpenError::Damaged { .. }) && error.to_string().contains("is empty"), "{error}");
}

#[test]
fn a_file_may_end_before_pages_that_are_free() {
    let dir = tempfile::tempdir().expect("a directory");
    set(&open(dir.path()), b"k", b"v");
    {
        let mut options = heed::EnvOpenOptions::new();
        // SAFETY: the directory is the test's own, and the engine on it is closed.
        let env = unsafe { options.map_size(1 << 28).open(dir.path()) }.expect("LMDB");
        let db = raw(&env);
        let put = |key: &[u8], bytes: usize| {
            let mut txn = env.write_txn().expect("a transaction");
            db.put(&mut txn, key, &sealed(key, &vec![1; bytes])).expect("a write");
            txn.commit().expect("a commit");
        };
        for (key, bytes) in [(b"\x01a", 200_000), (b"\x01b", 10), (b"\x01a", 10), (b"\x01b", 20), (b"\x01b", 30)] {
            put(key, bytes);
        }
        let mut txn = env.write_txn().expect("a transaction");
        db.put(&mut txn, b"\x01b", &sealed(b"\x01b", &[1; 40])).expect("a write");
        db.put(&mut txn, b"\x01z", &vec![1; 400_000]).expect("a write");
        db.delete(&mut txn, b"\x01z").expect("a write");
        txn.commit().expect("a commit");
        let needed = (env.info().last_page_number as u64 + 1) * PAGE_BYTES;
        assert!(env.real_disk_size().expect("a size") < needed, "LMDB wrote pages that it had freed");
    }
    assert_eq!(all(&open(dir.path())), 3);
    // A further cut removes a page in use.
    let bytes = fs::read(dir.path().join("data.mdb")).expect("the file");
    for pages in [2, 3, 4] {
        let cut = pages * PAGE_BYTES as usize;
        assert!(matches!(open_copy(&bytes[..cut]), Err(OpenError::Truncated { .. })), "{pages}");
    }
}

/// A value as the engine stores it.
fn sealed(key: &[u8], value: &[u8]) -> Vec<u8> {
    let checksum = crc32c::crc32c_append(crc32c::crc32c(key) ^ key.len() as u32, value);
    [value, &checksum.to_le_bytes()].concat()
}

/// The one database of an LMDB environment.
fn raw(env: &heed::Env<heed::WithTls>) -> heed::Database<'static, Bytes, Bytes> {
    let txn = env.write_txn().expect("a transaction");
    let created = env.create_databases_and_commit(txn, |opener, txn| {
        let db = opener.create_database::<Bytes, Bytes>(txn, None)?;
        Ok::<_, heed::Error>(heed::CommitOrAbort::<_, ()>::Commit(db))
    });
    created.expect("a database").unwrap_commit()
}

fn put_raw(dir: &Path, key: &[u8], value: &[u8]) {
    let mut options = heed::EnvOpenOptions::new();
    // SAFETY: the directory is the test's own, and no engine has it open.
    let env = unsafe { options.map_size(1 << 20).open(dir) }.expect("LMDB");
    let db = raw(&env);
    let mut txn = env.write_txn().expect("a transaction");
    db.put(&mut txn, key, value).expect("a write");
    txn.commit().expect("a commit");
}

#[test]
fn files_of_others() {
    let error = open_copy(b"not a database").expect_err("an error");
    assert!(matches!(error, OpenError::NotOurs { .. }), "{error}");
    let error = open_copy(&[b'x'; 100_000]).expect_err("an error");
    assert!(matches!(error, OpenError::NotOurs { .. }), "{error}");

    let dir = tempfile::tempdir().expect("a directory");
    put_raw(dir.path(), b"foreign", b"value");
    let error = Engine::open(dir.path(), OpenOptions::default()).expect_err("an error");
    assert!(matches!(error, OpenError::NotOurs { .. }) && error.to_string().contains("another directory"), "{error}");

    let dir = tempfile::tempdir().expect("a directory");
    set(&open(dir.path()), b"k", b"v");
    put_raw(dir.path(), b"\0format", &7u32.to_le_bytes());
    let error = Engine::open(dir.path(), OpenOptions::default()).expect_err("an error");
    assert!(matches!(error, OpenError::NewerFormat { found: 7, .. }), "{error}");
    assert!(error.to_string().contains("use a newer program") && error.code() == 2100, "{error}");
    put_raw(dir.path(), b"\0format", &1u32.to_le_bytes());
    let error = Engine::open(dir.path(), OpenOptions::default()).expect_err("an error");
    assert!(matches!(error, OpenError::OlderFormat { found: 1, .. }), "{error}");
    assert!(error.to_string().contains("dump its databases") && error.code() == 2100, "{error}");
}

/// The offsets of the bytes of both meta pages that LMDB reads.
fn meta_bytes() -> impl Iterator<Item = u64> {
    [0, PAGE_BYTES].into_iter().flat_map(|page| page..page + 152)
}

#[test]
fn meta_pages_that_are_damaged() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = database(dir.path());
    let torn = |from: usize, to: usize, byte: u8| {
        let mut torn = file.clone();
        torn[from..to].fill(byte);
        open_copy(&torn)
    };
    let page = PAGE_BYTES as usize;
    for byte in [0, 0xff] {
        // One meta page, both, and the bytes after the magic number.
        for (from, to) in
            [(0, 152), (page, page + 152), (0, 2 * page), (24, 152), (page + 24, page + 152), (page + 80, page + 152)]
        {
            let error = torn(from, to, byte).expect_err("an error");
            assert!(matches!(error, OpenError::NotOurs { .. } | OpenError::Damaged { .. }), "{from}..{to}: {error:?}");
        }
    }
}

/// With any damage of the meta pages the process must survive: the file is refused, or the bytes are unused. Run in a
/// child, because LMDB could end the process.
#[test]
fn no_byte_of_the_meta_pages_ends_the_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = database(dir.path());
    let (mut random, mut choice) = (Random(11), Random(12));
    let (mut refused, mut opened) = (0, 0);
    for at in meta_bytes().filter(|_| choice.below(4) == 0) {
        let copy = tempfile::tempdir().expect("a directory");
        let path = copy.path().join("data.mdb");
        fs::write(&path, &file).expect("a file");
        let damage = FileOptions::new().write(true).open(&path).expect("the file");
        damage.write_all_at(&[random.next() as u8 | 1], at).expect("a write");
        let text = output(&mut command("open", copy.path()));
        if text.contains("refused 1522") {
            refused += 1
        } else {
            opened += 1
        }
        assert!(text.contains("refused 1522") || text.contains("opened"), "byte {at}: {text}");
    }
    assert!(refused > 10 && opened > 0, "{refused} refused, {opened} opened");
}
