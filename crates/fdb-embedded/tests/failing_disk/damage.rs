//! Each kind of damage of a data file is named, and none is served as good data.

use std::fs::{self, OpenOptions as FileOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::channel;

use fdb_embedded::{
    BackupError, Engine, Error, OpenError, OpenOptions, RangeOptions, Restore, backup, check_data_file,
};
use flatbed_testkit::{PATIENCE, Random};

use crate::common::{commit, open, range, set};
use crate::files::{PAGE_BYTES, database, open_copy};
use crate::{command, output};

const PAGE: usize = PAGE_BYTES as usize;
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
const OVERFLOW: u16 = 4;

pub fn u16_at(file: &[u8], at: usize) -> usize {
    usize::from(u16::from_ne_bytes(file[at..at + 2].try_into().expect("two bytes")))
}

pub fn u64_at(file: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(file[at..at + 8].try_into().expect("eight bytes"))
}

/// The offset of the content of the newer meta page.
pub fn meta(file: &[u8]) -> usize {
    let at = |page: usize| page * PAGE + 16;
    if u64_at(file, at(1) + 128) > u64_at(file, at(0) + 128) { at(1) } else { at(0) }
}

/// The offsets of a page's nodes.
pub fn nodes(file: &[u8], page: usize) -> Vec<usize> {
    let count = (u16_at(file, page * PAGE + 12) - 16) / 2;
    (0..count).map(|at| page * PAGE + u16_at(file, page * PAGE + 16 + 2 * at)).collect()
}

/// The pages of a tree: branches, leaves, and the first pages of values of their own.
#[derive(Default)]
pub struct Found {
    pub branches: Vec<usize>,
    pub leaves: Vec<usize>,
    pub overflows: Vec<usize>,
}

impl Found {
    /// Walks the tree that is described at an offset of the meta page: 24 for the free list, 72 for the records.
    pub fn of(file: &[u8], tree: usize) -> Found {
        let at = meta(file) + tree;
        let mut found = Found::default();
        found.walk(file, u64_at(file, at + 40) as usize, u16_at(file, at + 6));
        found
    }

    fn walk(&mut self, file: &[u8], page: usize, depth: usize) {
        for node in nodes(file, page) {
            let (flags, key_bytes) = (u16_at(file, node + 4), u16_at(file, node + 6));
            if depth > 1 {
                self.walk(file, u16_at(file, node) | u16_at(file, node + 2) << 16, depth - 1);
            } else if flags & 1 != 0 {
                self.overflows.push(u64_at(file, node + 8 + key_bytes) as usize);
            }
        }
        if depth > 1 { self.branches.push(page) } else { self.leaves.push(page) }
    }
}

/// A data file with each kind of page.
fn sound() -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a directory");
    let file = database(dir.path());
    let records = Found::of(&file, 72);
    for (pages, flags) in [(&records.branches, BRANCH), (&records.leaves, LEAF), (&records.overflows, OVERFLOW)] {
        for page in pages {
            assert_eq!(u16_at(&file, page * PAGE + 10), usize::from(flags));
        }
    }
    assert!(!records.branches.is_empty() && records.leaves.len() > 50);
    assert!(!Found::of(&file, 24).leaves.is_empty());
    assert_eq!(open_copy(&file).expect("a sound file"), 2_001);
    file
}

/// Requires that a file is refused as damaged, with these words.
fn named(file: &[u8], words: &[&str]) {
    let error = open_copy(file).expect_err("a damaged file is refused");
    let text = error.to_string();
    assert!(matches!(error, OpenError::Damaged { .. }) && error.code() == 1522, "{error:?}");
    assert!(text.contains("data.mdb is damaged") && text.contains("restore a backup"), "{text}");
    for word in words {
        assert!(text.contains(word), "{text} does not contain {word:?}");
    }
}

fn flipped(file: &[u8], at: usize) -> Vec<u8> {
    let mut flipped = file.to_vec();
    flipped[at] ^= 0x80;
    flipped
}

#[test]
fn a_flipped_byte_in_a_meta_page() {
    let file = sound();
    // The number of records, and the root of the tree.
    named(&flipped(&file, meta(&file) + 72 + 32), &["number of records"]);
    // The number by which LMDB knows its files.
    named(&flipped(&file, 16), &["first meta page"]);
    named(&flipped(&file, PAGE + 16), &["second meta page"]);
    let mut file = file;
    let root = meta(&file) + 72 + 40;
    let child = Found::of(&file, 72).leaves[3] as u64;
    file[root..root + 8].copy_from_slice(&child.to_ne_bytes());
    named(&file, &["root page"]);
}

#[test]
fn a_root_that_leads_to_a_part_of_the_tree() {
    let mut file = sound();
    let tree = meta(&file) + 72;
    let child = Found::of(&file, 72).leaves[3] as u64;
    file[tree + 6..tree + 8].copy_from_slice(&1u16.to_ne_bytes());
    file[tree + 40..tree + 48].copy_from_slice(&child.to_ne_bytes());
    // The engine's own records are on the first leaf.
    let error = open_copy(&file).expect_err("records are missing");
    assert_eq!(error.code(), 1522, "{error}");
}

#[test]
fn a_flipped_byte_in_a_key_of_a_branch_page() {
    let file = sound();
    let page = Found::of(&file, 72).branches[0];
    let node = nodes(&file, page)[5];
    // The tag of the engine's keys: all records behind it would be missed.
    named(&flipped(&file, node + 8), &["keys are not in order"]);
}

#[test]
fn a_flipped_byte_in_a_child_of_a_branch_page() {
    let file = sound();
    let page = Found::of(&file, 72).branches[0];
    let (from, to) = (nodes(&file, page)[4], nodes(&file, page)[5]);
    named(&flipped(&file, to + 1), &["the file has no such page"]);
    let mut file = file;
    file.copy_within(from..from + 4, to);
    named(&file, &["page ", "a leaf", "names it too"]);
}

#[test]
fn a_flipped_byte_in_a_value_of_a_leaf() {
    let file = sound();
    let page = Found::of(&file, 72).leaves[7];
    let node = nodes(&file, page)[2];
    let at = node + 8 + u16_at(&file, node + 6) + 100;
    named(&flipped(&file, at), &[&format!("page {page}, a leaf"), "does not match its checksum"]);
}

#[test]
fn a_flipped_byte_in_a_key_of_a_leaf() {
    let file = sound();
    let page = Found::of(&file, 72).leaves[7];
    let node = nodes(&file, page)[2];
    let last = node + 8 + u16_at(&file, node + 6) - 1;
    named(&flipped(&file, last), &[&format!("page {page}, a leaf")]);
    // A byte behind the last that tells neighbours apart keeps the order; the checksum tells.
    let dir = tempfile::tempdir().expect("a directory");
    set(&open(dir.path()), b"key", b"value");
    let mut file = fs::read(dir.path().join("data.mdb")).expect("the file");
    let at = file.windows(8).rposition(|bytes| bytes == b"keyvalue").expect("the record");
    file[at + 2] ^= 1;
    named(&file, &["a leaf", "does not match its checksum"]);
}

#[test]
fn a_flipped_byte_in_the_head_of_a_leaf() {
    let file = sound();
    let page = Found::of(&file, 72).leaves[7];
    // Its number, its kind, the end of its table, the begin of its records, and a record's place.
    for at in [0, 10, 12, 13, 15, 17] {
        named(&flipped(&file, page * PAGE + at), &[&format!("page {page}, a leaf")]);
    }
}

#[test]
fn a_flipped_byte_in_a_large_value() {
    let dir = tempfile::tempdir().expect("a directory");
    set(&open(dir.path()), b"large", &[b'v'; 50_000]);
    let file = fs::read(dir.path().join("data.mdb")).expect("the file");
    let first = Found::of(&file, 72).overflows[0];
    named(&flipped(&file, (first + 7) * PAGE + 9), &["a leaf", "does not match its checksum"]);
    for at in [0, 10, 13] {
        named(&flipped(&file, first * PAGE + at), &[&format!("page {first}, a value's own page")]);
    }
}

#[test]
fn a_free_list_that_names_a_page_in_use() {
    let mut file = sound();
    let in_use = Found::of(&file, 72).leaves[7] as u64;
    let page = Found::of(&file, 24).leaves[0];
    // A list that is on its page.
    let is_list = |node: &usize| u16_at(&file, node + 4) == 0 && u64_at(&file, node + 16) > 0;
    let list = nodes(&file, page).into_iter().find(is_list).expect("a list") + 16;
    named(&flipped(&file, list + 7), &["a page of the free list", "longer than its record"]);
    file[list + 8..list + 16].copy_from_slice(&in_use.to_ne_bytes());
    named(&file, &["it too"]);
}

#[test]
fn a_flipped_byte_in_a_bucket_of_long_keys() {
    let dir = tempfile::tempdir().expect("a directory");
    let key = [b'k'; 5_000];
    set(&open(dir.path()), &key, b"the value");
    let file = fs::read(dir.path().join("data.mdb")).expect("the file");
    let at = file.windows(9).rposition(|bytes| bytes == b"the value").expect("the value");
    named(&flipped(&file, at), &["does not match its checksum"]);
}

#[test]
fn a_flipped_byte_in_the_engines_own_records() {
    let file = sound();
    let first = Found::of(&file, 72).leaves[0];
    for (name, words) in [(&b"\0ceiling"[..], "does not match"), (&b"\0format"[..], "its format")] {
        let key =
            nodes(&file, first).into_iter().find(|node| file[node + 8..].starts_with(name)).expect("a record") + 8;
        named(&flipped(&file, key + name.len()), &[words]);
        named(&flipped(&file, key + 1), &[]);
    }
}

#[test]
fn a_zeroed_block() {
    let file = sound();
    let (records, free) = (Found::of(&file, 72), Found::of(&file, 24));
    for page in [records.branches[0], records.leaves[7], free.leaves[0]] {
        let mut zeroed = file.clone();
        zeroed[page * PAGE..(page + 1) * PAGE].fill(0);
        named(&zeroed, &[]);
    }
    // The first meta page, and both.
    for pages in [1, 2] {
        let mut zeroed = file.clone();
        zeroed[..pages * PAGE].fill(0);
        named(&zeroed, &["first meta page"]);
    }
    // A block of the disk within a page.
    let mut zeroed = file.clone();
    let page = records.leaves[7];
    zeroed[page * PAGE + 2_048..page * PAGE + 2_560].fill(0);
    named(&zeroed, &[&format!("page {page}, a leaf")]);
}

#[test]
fn a_page_of_an_earlier_state_or_from_elsewhere() {
    let file = sound();
    let leaves = Found::of(&file, 72).leaves;
    let mut moved = file.clone();
    moved.copy_within(leaves[9] * PAGE..(leaves[9] + 1) * PAGE, leaves[7] * PAGE);
    named(&moved, &[&format!("page {}, a leaf", leaves[7]), "another page's number"]);
    // With its number right it is still in the wrong place.
    moved[leaves[7] * PAGE..leaves[7] * PAGE + 8].copy_from_slice(&(leaves[7] as u64).to_ne_bytes());
    named(&moved, &["keys are not in order"]);
}

#[test]
fn a_file_that_is_cut_off() {
    let file = sound();
    let error = open_copy(&file[..50 * PAGE]).expect_err("a cut file");
    assert!(matches!(error, OpenError::Truncated { .. }) && error.to_string().contains("restore a backup"), "{error}");
}

fn pairs(engine: &Engine) -> Vec<(Vec<u8>, Vec<u8>)> {
    range(&engine.transaction(), b"", b"\xff", &RangeOptions::default()).expect("a range")
}

#[test]
fn any_flipped_byte_is_refused_or_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = database(dir.path());
    let expected = pairs(&open(dir.path()));
    let mut random = Random(17);
    let (mut refused, mut opened) = (0, 0);
    for _ in 0..400 {
        let mut damaged = file.clone();
        let at = random.below(file.len() as u64) as usize;
        damaged[at] ^= random.next() as u8 | 1;
        let copy = tempfile::tempdir().expect("a directory");
        fs::write(copy.path().join("data.mdb"), &damaged).expect("a file");
        match Engine::open(copy.path(), OpenOptions::default()) {
            Err(error) => {
                assert!(error.code() == 1522, "byte {at}: {error}");
                refused += 1;
            }
            Ok(engine) => {
                assert!(pairs(&engine) == expected, "byte {at}: other data");
                opened += 1;
            }
        }
    }
    assert!(refused > 100 && opened > 10, "{refused} refused, {opened} opened");
}

/// Flips a byte of the value of the last record of this leaf, in the file that an engine has open or will open.
fn flip_in_leaf(dir: &Path, of: impl Fn(&Found) -> usize) -> usize {
    let path = dir.join("data.mdb");
    let file = fs::read(&path).expect("the file");
    let page = of(&Found::of(&file, 72));
    let node = *nodes(&file, page).last().expect("a node");
    let at = node + 8 + u16_at(&file, node + 6) + 1;
    let damage = FileOptions::new().write(true).open(&path).expect("the file");
    damage.write_all_at(&[file[at] ^ 1], at as u64).expect("a write");
    page
}

#[test]
fn damage_under_a_running_engine_is_named_by_the_read_that_meets_it() {
    let dir = tempfile::tempdir().expect("a directory");
    database(dir.path());
    let engine = open(dir.path());
    let (told, heard) = channel();
    engine.on_failure(move |reason| told.send(reason.to_owned()).expect("the test listens"));
    flip_in_leaf(dir.path(), |found| found.leaves[7]);
    let transaction = engine.transaction();
    assert_eq!(range(&transaction, b"", b"\xff", &RangeOptions::default()), Err(Error::IO_ERROR));
    let reason = heard.try_recv().expect("a reason");
    assert!(reason.contains("data.mdb is damaged") && reason.contains("does not match its checksum"), "{reason}");
    assert_eq!(engine.stats().failure, Some(reason));
    // Each record on the page but the damaged one is read, and nothing is written any more.
    let refused = (0..2_000u32).filter(|number| engine.transaction().get(&number.to_be_bytes(), false).is_err());
    assert_eq!(refused.count(), 1);
    let options = RangeOptions { reverse: true, ..RangeOptions::default() };
    assert_eq!(range(&engine.transaction(), b"", b"\xff", &options), Err(Error::IO_ERROR));
    let transaction = engine.transaction();
    transaction.set(b"k", b"v");
    assert_eq!(commit(&transaction), Err(Error::IO_ERROR));
}

#[test]
fn damage_beyond_the_check_at_the_start_is_found_in_the_background() {
    let dir = tempfile::tempdir().expect("a directory");
    database(dir.path());
    let page = flip_in_leaf(dir.path(), |found| found.leaves[found.leaves.len() - 2]);
    let mut options = OpenOptions::default();
    options.checked_pages_max = Some(10);
    let engine = Engine::open(dir.path(), options).expect("an engine");
    let (told, heard) = channel();
    engine.on_failure(move |reason| told.send(reason.to_owned()).expect("the test listens"));
    let reason = heard.recv_timeout(PATIENCE).expect("a reason");
    assert!(reason.contains(&format!("page {page}, a leaf")) && reason.contains("restore a backup"), "{reason}");
    drop(engine);
    let error = Engine::open(dir.path(), OpenOptions::default()).expect_err("an error");
    assert!(error.to_string().contains(&format!("page {page}, a leaf")), "{error}");
}

#[test]
fn a_damaged_file_is_not_backed_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, out) = (dir.path().join("data"), dir.path().join("out"));
    database(&data);
    assert!(check_data_file(&data, |_| ()).expect("a sound file").records > 2_000);
    flip_in_leaf(&data, |found| found.leaves[7]);
    for error in [check_data_file(&data, |_| ()).map(|_| 0), backup(&data, &out, |_| ())] {
        let error = error.expect_err("an error");
        assert!(matches!(error, BackupError::Directory(OpenError::Damaged { .. })), "{error:?}");
    }
    assert!(!out.join("data.mdb").exists());
}

#[test]
fn a_file_is_checked_beside_the_engine_that_writes_to_it() {
    let dir = tempfile::tempdir().expect("a directory");
    database(dir.path());
    let engine = open(dir.path());
    set(&engine, b"k", b"v");
    let text = output(&mut command("check", dir.path()));
    assert!(text.contains("checked 20"), "{text}");
    flip_in_leaf(dir.path(), |found| found.leaves[7]);
    let text = output(&mut command("check", dir.path()));
    assert!(text.contains("not checked: ") && text.contains("data.mdb is damaged"), "{text}");
}

#[test]
fn a_damaged_backup_is_not_restored() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, out, new) = (dir.path().join("data"), dir.path().join("out"), dir.path().join("new"));
    database(&data);
    backup(&data, &out, |_| ()).expect("a backup");
    flip_in_leaf(&out, |found| found.leaves[7]);
    let error = Restore::begin(&out, &new, |_| ()).err().expect("an error");
    assert!(matches!(error, BackupError::Directory(OpenError::Damaged { .. })), "{error:?}");
    assert!(!new.exists());
}
