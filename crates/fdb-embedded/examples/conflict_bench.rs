//! Measures the conflict check alone: nanoseconds of a check, of an insertion and of dropping history, by the number
//! of recent ranges.
//!
//! `cargo run --release --example conflict_bench -- [ROUNDS]` prints the least of the rounds. Keys are 32 bytes: a
//! prefix, a random document, one of its eight keys. The ranges are spread evenly over the five seconds of a
//! transaction's lifetime, in commits of ten. Reads are of one key or of a quarter of all keys. Their version is so
//! recent that one commit is newer, the newest, in the middle, or so old that all commits are newer. The figure for
//! dropping is the longest call.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "a measurement ends where it fails")]

// The engine's own modules, because the measured types are not public. The engine uses the items that are unused here.
#[path = "../src/base"]
#[allow(dead_code)]
mod base {
    pub(crate) mod key_space;
}
#[path = "../src/commit"]
#[allow(dead_code)]
mod commit {
    pub(crate) mod conflict;
    pub(crate) mod sorted_keys;
    pub(crate) mod version_tree;
}

use std::hint::black_box;
use std::time::Instant;

use base::key_space::KeyRange;
use commit::conflict::History;

const WINDOW: i64 = 5_000_000;
const KEYS_PER_DOCUMENT: u64 = 8;
const KEYS_PER_COMMIT: u64 = 10;
const READS: usize = 20_000;

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn key(number: u64) -> Vec<u8> {
    let mut key = vec![b'k'; 32];
    let document = split_mix(&mut (number / KEYS_PER_DOCUMENT));
    key[12..20].copy_from_slice(&document.to_be_bytes());
    key[31] = (number % KEYS_PER_DOCUMENT) as u8;
    key
}

fn single(key: Vec<u8>) -> KeyRange {
    let mut end = Vec::with_capacity(key.len() + 1);
    end.extend_from_slice(&key);
    end.push(0);
    (key, end)
}

fn wide(from: u64) -> KeyRange {
    let (mut begin, mut end) = (key(0), key(0));
    begin[12..20].copy_from_slice(&from.to_be_bytes());
    // A quarter of all documents.
    end[12..20].copy_from_slice(&from.saturating_add(1 << 62).to_be_bytes());
    (begin, end)
}

/// Nanoseconds of one call.
fn time<T>(items: Vec<T>, mut call: impl FnMut(T)) -> f64 {
    let (count, started) = (items.len(), Instant::now());
    items.into_iter().for_each(&mut call);
    started.elapsed().as_nanos() as f64 / count as f64
}

/// The measurements: the heading, and whether the read is wide. `measure` has the versions.
const CHECKS: [(&str, bool); 6] = [
    ("key, recent", false),
    ("key, old", false),
    ("wide, newest", true),
    ("wide, recent", true),
    ("wide, middle", true),
    ("wide, old", true),
];

/// Nanoseconds of each check, of an insertion, and of the longest `forget`.
fn measure(ranges: u64) -> Vec<f64> {
    let version = |number: u64| (number / KEYS_PER_COMMIT * KEYS_PER_COMMIT) as i64 * WINDOW / ranges as i64 + 1;
    let mut history: History = History::default();
    for number in 0..ranges {
        history.insert(single(key(number)), version(number));
    }
    let mut seed = ranges;
    let mut random = |below: u64| split_mix(&mut seed) % below.max(1);
    // Nothing is newer than the newest version; at the others a wide read finds something.
    let recent = version(ranges - 1) - 1;
    let versions = [recent, 0, version(ranges), recent, WINDOW / 2, 0];
    let mut found = Vec::new();
    for ((_, is_wide), at) in CHECKS.into_iter().zip(versions) {
        let reads: Vec<KeyRange> = (0..READS)
            .map(|_| match is_wide {
                true => wide(random(u64::MAX - (1 << 62))),
                // Half of them were written.
                false => single(key(random(2 * ranges))),
            })
            .collect();
        found.push(time(reads, |(begin, end)| {
            black_box(history.is_written_after(&begin, &end, at).is_ok_and(|found| found));
        }));
    }
    // Further insertions: the number of ranges stays the same, because the window drops old ones.
    let (mut insertion, mut forgetting) = (f64::INFINITY, 0f64);
    let step = (ranges / 8).clamp(1_000, 100_000);
    for first in (0..8).map(|number| ranges + number * step) {
        let keys: Vec<_> = (first..first + step).map(|number| (single(key(number)), version(number))).collect();
        insertion = insertion.min(time(keys, |(range, version)| history.insert(range, version)));
        forgetting = forgetting.max(time(vec![version(first + step) - WINDOW], |oldest| history.forget(oldest)));
    }
    found.extend([insertion, forgetting]);
    found
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(5);
    let headings = CHECKS.iter().map(|(heading, _)| *heading).chain(["insertion", "forgetting"]);
    println!("{:>10}{}", "ranges", headings.map(|heading| format!("{heading:>14}")).collect::<String>());
    for ranges in [10, 1_000, 100_000, 1_000_000] {
        let mut least = measure(ranges);
        for _ in 1..rounds {
            least.iter_mut().zip(measure(ranges)).for_each(|(least, other)| *least = least.min(other));
        }
        println!("{ranges:>10}{}", least.iter().map(|nanoseconds| format!("{nanoseconds:>14.0}")).collect::<String>());
    }
}
