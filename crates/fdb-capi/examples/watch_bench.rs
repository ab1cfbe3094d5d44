//! Measures watches through the C API: the memory of a waiting watch, and its cost for commits that do not touch it.
//!
//! `cargo run --release --example watch_bench -- [DIRECTORY] [SECONDS]`. Memory is the sum of requested allocations
//! while 10,000 watches wait, each with its future and a callback, its transaction destroyed; the allocator's own
//! overhead is not included. Commits are of ten keys of 32 and 100 bytes, 64 in flight, alternately without and with
//! watches; the best of five rounds is printed.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "a measurement ends where it fails")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use fdb_capi::*;
use fdb_embedded::OpenOptions;

const WATCHES: u32 = 10_000;
const KEYS_PER_COMMIT: u64 = 10;
const IN_FLIGHT: usize = 64;
/// Keys that commits overwrite repeatedly, so that the database does not grow.
const WRITTEN: u64 = 200_000;
const ROUNDS: usize = 5;

static HELD: AtomicI64 = AtomicI64::new(0);

struct Counting;

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A key of 32 bytes; its first byte separates watched keys from others, or puts them between those.
fn key(kind: u8, number: u64) -> [u8; 32] {
    let mut key = [b'k'; 32];
    key[7] = kind;
    key[8..16].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

extern "C" fn ignore(_: *mut FDBFuture, _: *mut c_void) {}

extern "C" fn report(future: *mut FDBFuture, sender: *mut c_void) {
    // SAFETY: the parameter is a sender that `commit` boxed for this call alone.
    let sender = unsafe { Box::from_raw(sender.cast::<Sender<c_int>>()) };
    // SAFETY: the future is destroyed here and nowhere else.
    unsafe {
        sender.send(fdb_future_get_error(future)).expect("someone waits");
        fdb_future_destroy(future);
    }
}

fn transaction(database: *mut FDBDatabase) -> *mut FDBTransaction {
    let mut transaction = null_mut();
    // SAFETY: the database is open.
    assert_eq!(unsafe { fdb_database_create_transaction(database, &mut transaction) }, 0);
    transaction
}

fn commit(transaction: *mut FDBTransaction, sender: &Sender<c_int>) {
    // SAFETY: the transaction is destroyed after its commit was started, which the C API allows.
    unsafe {
        let future = fdb_transaction_commit(transaction);
        let sender = Box::into_raw(Box::new(sender.clone()));
        assert_eq!(fdb_future_set_callback(future, Some(report), sender.cast()), 0);
        fdb_transaction_destroy(transaction);
    }
}

fn set(database: *mut FDBDatabase, kind: u8, numbers: std::ops::Range<u64>, value: &[u8], sender: &Sender<c_int>) {
    let transaction = transaction(database);
    for number in numbers {
        let key = key(kind, number);
        // SAFETY: the transaction is alive, key and value have their lengths.
        unsafe { fdb_transaction_set(transaction, key.as_ptr(), 32, value.as_ptr(), value.len() as c_int) };
    }
    commit(transaction, sender);
}

/// Waiting watches, and the bytes of each.
fn watch(database: *mut FDBDatabase, kind: u8) -> (Vec<*mut FDBFuture>, f64) {
    let (sender, receiver) = channel();
    let mut futures = Vec::with_capacity(WATCHES as usize);
    let before = HELD.load(Ordering::Relaxed);
    for number in 0..u64::from(WATCHES) {
        let (transaction, key) = (transaction(database), key(kind, number));
        // SAFETY: the transaction is alive, the key has its length; the future is destroyed at the end.
        unsafe {
            let future = fdb_transaction_watch(transaction, key.as_ptr(), 32);
            assert_eq!(fdb_future_set_callback(future, Some(ignore), null_mut()), 0);
            futures.push(future);
        }
        commit(transaction, &sender);
        assert_eq!(receiver.recv().expect("an answer"), 0);
    }
    let held = HELD.load(Ordering::Relaxed) - before;
    (futures, held as f64 / f64::from(WATCHES))
}

/// The processor time of all threads of this program, as Linux counts it; zero elsewhere.
fn processor_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let run = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(run.sum())
}

/// Commits a second, and microseconds of processor time for each.
fn commits(database: *mut FDBDatabase, duration: Duration, next: &mut u64) -> (f64, f64) {
    let (sender, receiver) = channel();
    let (started, processor) = (Instant::now(), processor_time());
    let (mut open, mut count) = (0, 0u64);
    loop {
        while open < IN_FLIGHT && started.elapsed() < duration {
            let first = u64::from(WATCHES) + *next % WRITTEN;
            set(database, b'm', first..first + KEYS_PER_COMMIT, &[b'v'; 100], &sender);
            *next += KEYS_PER_COMMIT;
            open += 1;
        }
        if open == 0 {
            let spent = (processor_time() - processor).as_secs_f64() * 1e6;
            return (count as f64 / started.elapsed().as_secs_f64(), spent / count as f64);
        }
        assert_eq!(receiver.recv().expect("an answer"), 0);
        open -= 1;
        count += 1;
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let parent = args.next().map_or_else(std::env::temp_dir, Into::into);
    let duration = Duration::from_secs(args.next().and_then(|text| text.parse().ok()).unwrap_or(2));
    let dir = tempfile::tempdir_in(parent).expect("a directory");
    let database = open_embedded(dir.path(), OpenOptions::default()).expect("an engine");
    let mut next = 0;
    let (sender, receiver) = channel();
    for first in (0..u64::from(WATCHES) + WRITTEN).step_by(1_000) {
        set(database, b'm', first..first + 1_000, &[b'v'; 100], &sender);
        assert_eq!(receiver.recv().expect("an answer"), 0);
    }
    // The most commits a second, and the least processor time and memory, of all rounds.
    let mut best = [(0f64, f64::INFINITY, f64::INFINITY); 3];
    for _ in 0..ROUNDS {
        // No watches; watches between the written keys; watches apart from them, on keys without values.
        for (kind, best) in [None, Some(b'm'), Some(b'a')].into_iter().zip(&mut best) {
            let (futures, bytes) = kind.map_or((Vec::new(), 0.0), |kind| watch(database, kind));
            let (rate, processor) = commits(database, duration, &mut next);
            *best = (best.0.max(rate), best.1.min(processor), best.2.min(bytes));
            for future in futures {
                // SAFETY: each is destroyed once.
                unsafe { fdb_future_destroy(future) };
            }
        }
    }
    // SAFETY: the database is open until here.
    let stats = unsafe { engine_of(database) }.stats();
    assert_eq!((stats.watches_fired, stats.open_watches), (0, 0), "a watch fired without a change");
    // SAFETY: as above; the database is not used afterwards.
    unsafe { fdb_database_destroy(database) };
    let names = ["no watches", "10,000 on values of 100 bytes, between the keys written", "10,000 apart from them"];
    for (name, (rate, processor, bytes)) in names.into_iter().zip(best) {
        println!("{name}: {rate:.0} commits/s, {processor:.1} us of processor time each; {bytes:.0} bytes a watch");
    }
}
