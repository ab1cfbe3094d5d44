//! Measures the engine without any layer above it: durable commits, point reads, range reads, a scan.
//!
//! `cargo run --release --example raw_bench -- [DIRECTORY] [SECONDS]` prints one line for each measurement. A line
//! with the same writes in plain LMDB transactions of as many commits, without checks, follows each line of commits.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "a measurement ends where it fails")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use fdb_embedded::{Engine, KeySelector, OpenOptions, RangeOptions, Result};
use heed::types::Bytes;
use heed::{CommitOrAbort, EnvOpenOptions};

const KEYS_PER_COMMIT: u64 = 8;
const KEY_BYTES: usize = 32;
const VALUE_BYTES: usize = 100;

fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [b'k'; KEY_BYTES];
    // Documents arrive in random order; the keys of one are adjacent.
    let document = (number / KEYS_PER_COMMIT).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    key[8..16].copy_from_slice(&document.to_be_bytes());
    key[16..24].copy_from_slice(&number.to_be_bytes());
    key
}

/// Keeps `in_flight` commits running from callbacks; returns commits a second.
fn commits(engine: &Engine, in_flight: u64, duration: Duration, next: &Arc<AtomicU64>) -> f64 {
    fn one(engine: &Engine, next: &Arc<AtomicU64>, finished: &Sender<Result<()>>) {
        let transaction = engine.transaction();
        let first = next.fetch_add(KEYS_PER_COMMIT, Ordering::Relaxed);
        // As a layer does: read the document's own state with conflict, then write.
        transaction.get(&key(first), false).expect("a read");
        for number in first..first + KEYS_PER_COMMIT {
            transaction.set(&key(number), &[b'v'; VALUE_BYTES]);
        }
        let finished = finished.clone();
        transaction.commit(Box::new(move |result| finished.send(result).unwrap_or_default()));
    }
    let (sender, receiver): (_, Receiver<Result<()>>) = channel();
    let started = Instant::now();
    for _ in 0..in_flight {
        one(engine, next, &sender);
    }
    let (mut count, mut open) = (0u64, in_flight);
    while open > 0 {
        receiver.recv().expect("an answer").expect("a commit");
        count += 1;
        open -= 1;
        if started.elapsed() < duration {
            one(engine, next, &sender);
            open += 1;
        }
    }
    count as f64 / started.elapsed().as_secs_f64()
}

/// The same writes in plain LMDB, `batch` commits in each transaction.
fn raw_commits(dir: &Path, batch: u64, duration: Duration) -> f64 {
    std::fs::create_dir_all(dir).expect("a directory");
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    // SAFETY: the directory is this process's own.
    let env = unsafe { options.map_size(1 << 34).open(dir) }.expect("LMDB");
    let txn = env.write_txn().expect("a transaction");
    let created = env.create_databases_and_commit(txn, |opener, txn| {
        let db = opener.create_database::<Bytes, Bytes>(txn, None)?;
        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(db))
    });
    let db = created.expect("a database").unwrap_commit();
    let (started, mut number, mut count) = (Instant::now(), 0u64, 0u64);
    while started.elapsed() < duration {
        let mut txn = env.write_txn().expect("a transaction");
        let mut keys: Vec<_> = (number..number + batch * KEYS_PER_COMMIT).map(key).collect();
        keys.sort_unstable();
        for key in &keys {
            db.put(&mut txn, key, &[b'v'; VALUE_BYTES]).expect("a write");
        }
        txn.commit().expect("a commit");
        number += batch * KEYS_PER_COMMIT;
        count += batch;
    }
    count as f64 / started.elapsed().as_secs_f64()
}

/// Calls `read` from `threads` threads until the time is over; returns calls a second.
fn reads(threads: u64, duration: Duration, read: impl Fn(u64) -> u64 + Sync) -> f64 {
    let (count, started) = (AtomicU64::new(0), Instant::now());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (read, count) = (&read, &count);
            scope.spawn(move || {
                let (mut seed, mut done) = (thread + 1, 0);
                while started.elapsed() < duration {
                    for _ in 0..64 {
                        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        done += read(seed >> 33);
                    }
                }
                count.fetch_add(done, Ordering::Relaxed);
            });
        }
    });
    count.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64()
}

fn main() {
    let mut args = std::env::args().skip(1);
    let parent = args.next().map_or_else(std::env::temp_dir, Into::into);
    let seconds = args.next().and_then(|text| text.parse().ok()).unwrap_or(3);
    let duration = Duration::from_secs(seconds);
    let dir = tempfile::tempdir_in(parent).expect("a directory");
    let engine = Engine::open(&dir.path().join("engine"), OpenOptions::default()).expect("an engine");
    let next = Arc::new(AtomicU64::new(0));
    for in_flight in [1, 16, 64] {
        let before = engine.stats();
        let rate = commits(&engine, in_flight, duration, &next);
        let after = engine.stats();
        let batch = (after.commits - before.commits) as f64 / (after.batches - before.batches).max(1) as f64;
        let raw = raw_commits(&dir.path().join(format!("raw{in_flight}")), in_flight, duration);
        println!(
            "commits of {KEYS_PER_COMMIT} keys, {in_flight:>2} in flight: {rate:>9.0}/s, {batch:.1} a batch; \
             raw LMDB in batches of {in_flight}: {raw:.0}/s; share {:.2}",
            rate / raw
        );
    }
    let total = next.load(Ordering::Relaxed);
    for threads in [1, 2] {
        let shared = engine.transaction();
        let rate = reads(threads, duration, |number| {
            u64::from(shared.get(&key(number % total), true).expect("a read").is_some())
        });
        println!("point reads, one transaction, {threads} threads: {rate:.0}/s");
        let rate = reads(threads, duration, |number| {
            u64::from(engine.transaction().get(&key(number % total), false).expect("a read").is_some())
        });
        println!("point reads, a transaction each, {threads} threads: {rate:.0}/s");
        let twenty = RangeOptions { limit: 20, mode: 0, ..RangeOptions::default() };
        let rate = reads(threads, duration, |number| {
            let (begin, end) = (key(number % total), [0xfe]);
            let ends = (KeySelector::first_greater_or_equal(&begin), KeySelector::first_greater_or_equal(&end));
            let pairs = engine.transaction().get_range(ends.0, ends.1, &twenty).expect("a read").pairs.len();
            u64::from(pairs > 0)
        });
        println!("range reads of 20 keys, a transaction each, {threads} threads: {rate:.0}/s");
    }
    let started = Instant::now();
    let (mut begin, mut bytes) = (Vec::new(), 0usize);
    let transaction = engine.transaction();
    loop {
        let ends = (KeySelector::first_greater_than(&begin), KeySelector::first_greater_or_equal(b"\xff"));
        let page = transaction.get_range(ends.0, ends.1, &RangeOptions { snapshot: true, ..RangeOptions::default() });
        let page = page.expect("a read");
        bytes += page.arena.len();
        match page.iter().last() {
            Some((last, _)) if page.more => begin = last.to_vec(),
            _ => break,
        }
    }
    let megabytes = bytes as f64 / 1e6;
    println!("scan: {megabytes:.0} MB at {:.0} MB/s", megabytes / started.elapsed().as_secs_f64());
}
