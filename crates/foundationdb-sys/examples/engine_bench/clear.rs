//! Clears all keys in one transaction while others commit.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use foundationdb::Database;
use futures::executor::block_on;
use heed::{EnvFlags, EnvOpenOptions};

use crate::report::{Row, at_most, megabytes, milliseconds, number};
use crate::setup::{Bench, ENDS, Fresh, median};

const WRITERS: u64 = 4;
/// The time limit for freeing the space, after which the measurement is abandoned.
const PATIENCE: Duration = Duration::from_secs(120);

/// Bytes of the pages with data, measured by another process: this one has the file open, and LMDB opens a file once
/// per process.
fn live_bytes(directory: &Path) -> Option<u64> {
    let program = std::env::current_exe().ok()?;
    let output = Command::new(program).arg("--live-bytes").arg(directory).output().ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

/// The output of `--live-bytes`.
pub fn print_live_bytes(directory: &Path) {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    // SAFETY: a reader takes no lock but its slot in the reader table.
    let env = unsafe { options.map_size(1 << 40).max_readers(16_384).flags(EnvFlags::READ_ONLY).open(directory) };
    let stat = env.expect("LMDB").unnamed_database_stat();
    let pages = stat.branch_pages + stat.leaf_pages + stat.overflow_pages;
    println!("{}", pages as u64 * u64::from(stat.page_size));
}

/// Commits one key after the other. Returns the start and the duration of each commit.
async fn write(database: Arc<Database>, writer: u64, is_over: Arc<AtomicBool>) -> Vec<(Instant, Duration)> {
    let mut times = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let trx = database.create_trx().expect("a transaction");
        trx.set(
            &[b"other/".as_slice(), &writer.to_be_bytes(), &(times.len() as u64 % 1_000).to_be_bytes()].concat(),
            b"",
        );
        let begun = Instant::now();
        trx.commit().await.expect("a commit");
        times.push((begun, begun.elapsed()));
    }
    times
}

struct ClearTimes {
    own: f64,
    longest_before: f64,
    longest: f64,
    /// Time until the space was free; NaN if it was not freed.
    freed: f64,
}

fn measure(bench: &Bench, fresh: &Fresh) -> ClearTimes {
    let directory = fresh.directory.as_path();
    let full = live_bytes(directory);
    let is_over = Arc::new(AtomicBool::new(false));
    let spawn = |writer| bench.runtime.spawn(write(Arc::clone(&fresh.database), writer, Arc::clone(&is_over)));
    let writers: Vec<_> = (0..WRITERS).map(spawn).collect();
    std::thread::sleep(Duration::from_secs(2));
    let trx = fresh.database.create_trx().expect("a transaction");
    trx.clear_range(ENDS.0, ENDS.1);
    let begun = Instant::now();
    block_on(trx.commit()).expect("a commit");
    let own = begun.elapsed().as_secs_f64();
    let is_free = || Some(live_bytes(directory)? < full? / 10);
    let mut freed = f64::NAN;
    while begun.elapsed() < PATIENCE {
        if is_free().unwrap_or(true) {
            freed = begun.elapsed().as_secs_f64();
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    // Measures the clear's later effect on other commits.
    std::thread::sleep(Duration::from_secs(1));
    is_over.store(true, Ordering::Relaxed);
    let times: Vec<_> = writers.into_iter().flat_map(|writer| block_on(writer).expect("no panic")).collect();
    let longest = |after: bool| {
        let of_time = times.iter().filter(|(at, took)| (*at + *took > begun) == after);
        of_time.map(|(_, took)| took.as_secs_f64()).fold(0.0, f64::max)
    };
    ClearTimes { own, longest_before: longest(false), longest: longest(true), freed }
}

/// One LMDB transaction that removes all keys.
fn raw_clear(bench: &Bench) -> f64 {
    let mut txn = bench.raw.write_txn();
    let begun = Instant::now();
    let bounds = (std::ops::Bound::Included(ENDS.0), std::ops::Bound::Excluded(ENDS.1));
    bench.raw.db.delete_range(&mut txn, &bounds).expect("removed");
    txn.commit().expect("a commit");
    begun.elapsed().as_secs_f64()
}

pub fn run(bench: &Bench) -> Vec<Row> {
    let keys = bench.settings.keys;
    let fresh = Fresh::open(bench, "clear", 0);
    let (mut found, mut files) = (Vec::new(), Vec::new());
    for _ in 0..bench.settings.rounds.min(3) {
        fresh.fill(keys);
        files.push(megabytes(fresh.file_bytes() as f64));
        found.push(measure(bench, &fresh));
    }
    let raw = raw_clear(bench);
    let of = |part: fn(&ClearTimes) -> f64| median(found.iter().map(part).collect());
    let worst = found.iter().map(|found| found.longest).fold(0.0, f64::max);
    let keys = number(keys as f64);
    vec![
        Row::new(format!(
            "the longest that a commit waited while {keys} keys were cleared; raw: one transaction that does it"
        ))
        .engine(format!("{} (before: {})", milliseconds(worst), milliseconds(of(|found| found.longest_before))))
        .raw(milliseconds(raw))
        .aim("100 ms", at_most(worst, 0.1)),
        Row::new("the clearing commit itself").engine(milliseconds(of(|found| found.own))),
        Row::new("until nine tenths of the space were free").engine(milliseconds(of(|found| found.freed))),
        Row::new("data file with all keys, after each refilling").engine(files.join(", ")),
    ]
}
