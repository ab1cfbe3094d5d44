//! Damaged and truncated sources of a backup, a restore and a check. LMDB trusts its pages and would end the process,
//! so each runs in a child.

use std::fs;

use crate::common::{open, set};
use crate::damage::{Found, meta, nodes, u16_at, u64_at};
use crate::files::{PAGE_BYTES, database};
use crate::{command, line, output};

const PAGE: usize = PAGE_BYTES as usize;

/// Requires that a backup, a restore and a check refuse a file with these words, and make nothing.
fn refused_by_all(file: &[u8], words: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    fs::create_dir(&data).expect("a directory");
    fs::write(data.join("data.mdb"), file).expect("a file");
    for (role, beginning) in [("backup", "not copied: "), ("restore", "not copied: "), ("check", "not checked: ")] {
        let text = output(&mut command(role, &data));
        let reason = line(&text, beginning);
        assert!(reason.contains(words) && reason.contains("restore a backup"), "{role}: {reason}");
        for made in ["out", "new"] {
            assert!(!dir.path().join(made).exists(), "{role}");
        }
    }
}

fn sound() -> Vec<u8> {
    database(tempfile::tempdir().expect("a directory").path())
}

#[test]
fn a_cut_source_is_named() {
    let file = sound();
    for bytes in [3 * PAGE, file.len() / 2, file.len() / 2 - 7] {
        refused_by_all(&file[..bytes], "is cut off");
    }
}

#[test]
fn a_cut_source_whose_free_list_hides_it_is_named() {
    let mut file = sound();
    let last = u64_at(&file, meta(&file) + 120);
    let is_list = |node: &usize| u16_at(&file, node + 4) == 0 && u64_at(&file, node + 16) > 0;
    let free = Found::of(&file, 24).leaves[0];
    let list = nodes(&file, free).into_iter().find(is_list).expect("a list") + 16;
    file[list + 8..list + 16].copy_from_slice(&last.to_ne_bytes());
    let node = nodes(&file, Found::of(&file, 72).branches[0])[4];
    file[node..node + 4].copy_from_slice(&u32::try_from(last).expect("a page").to_ne_bytes());
    refused_by_all(&file[..usize::try_from(last).expect("a page") * PAGE], "data.mdb is damaged");
}

#[test]
fn a_damaged_page_of_a_source_is_named() {
    let file = sound();
    let records = Found::of(&file, 72);
    let (branch, leaf) = (records.branches[0], records.leaves[7]);
    // A branch below itself.
    let mut circle = file.clone();
    let node = nodes(&file, branch)[3];
    circle[node..node + 4].copy_from_slice(&u32::try_from(branch).expect("a page").to_ne_bytes());
    refused_by_all(&circle, "names it too");
    // A record, and the end of the table of records, outside of their page.
    for (at, words) in [(16, "a record lies outside of it"), (12, "its header is impossible")] {
        let mut outside = file.clone();
        outside[leaf * PAGE + at..leaf * PAGE + at + 2].copy_from_slice(&0xfff0_u16.to_ne_bytes());
        refused_by_all(&outside, words);
    }
}

#[test]
fn a_large_value_beyond_the_end_of_a_source_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    set(&open(dir.path()), b"large", &[b'v'; 50_000]);
    let mut file = fs::read(dir.path().join("data.mdb")).expect("the file");
    let first = Found::of(&file, 72).overflows[0];
    file[first * PAGE + 12..first * PAGE + 16].copy_from_slice(&u32::MAX.to_ne_bytes());
    refused_by_all(&file, "a value's own page: its header is impossible");
}
