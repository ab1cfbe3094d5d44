//! Point reads, range reads of twenty keys, a scan of everything.
//!
//! Measurements on one thread count CPU time.

use std::sync::Arc;
use std::time::Duration;

use foundationdb::options::StreamingMode;
use foundationdb::{Database, RangeOption, Transaction};
use futures::TryStreamExt;
use futures::executor::block_on;

use crate::report::{Row, at_least, megabytes, per_second};
use crate::setup::{Bench, ENDS, Random, Raw, SideRate, Stopwatch, key, look_at, rate_without_waits};

const RANGE_KEYS: usize = 20;

/// The reads of a transaction: their kind and number.
#[derive(Clone, Copy)]
enum ReadKind {
    Point { per_transaction: u64, snapshot: bool },
    Range { per_transaction: u64 },
}

impl ReadKind {
    fn per_transaction(self) -> u64 {
        match self {
            ReadKind::Point { per_transaction, .. } | ReadKind::Range { per_transaction } => per_transaction,
        }
    }

    async fn run(self, trx: &Transaction, random: &mut Random, keys: u64) {
        let from = key(random.below(keys - RANGE_KEYS as u64));
        match self {
            ReadKind::Point { snapshot, .. } => {
                let found = trx.get(&from, snapshot).await.expect("a read").expect("a value");
                look_at(&found);
            }
            ReadKind::Range { .. } => {
                let mut range = RangeOption::from((&from[..], ENDS.1));
                range.limit = Some(RANGE_KEYS);
                range.mode = StreamingMode::Exact;
                let found = trx.get_range(&range, 1, false).await.expect("a read");
                assert_eq!(found.len(), RANGE_KEYS);
                for pair in found.iter() {
                    look_at(pair.key());
                    look_at(pair.value());
                }
            }
        }
    }

    fn run_raw(self, raw: &Raw, txn: &heed::RoTxn<'_, heed::WithoutTls>, random: &mut Random, keys: u64) {
        let from = key(random.below(keys - RANGE_KEYS as u64));
        match self {
            ReadKind::Point { .. } => look_at(raw.db.get(txn, &from).expect("a read").expect("a value")),
            ReadKind::Range { .. } => {
                let bounds = (std::ops::Bound::Included(&from[..]), std::ops::Bound::Unbounded);
                for pair in raw.db.range(txn, &bounds).expect("a read").take(RANGE_KEYS) {
                    let (key, value) = pair.expect("a pair");
                    look_at(key);
                    look_at(value);
                }
            }
        }
    }
}

/// Runs one transaction's reads. Returns their number.
async fn transaction(database: &Database, read: ReadKind, random: &mut Random, keys: u64) -> u64 {
    let trx = database.create_trx().expect("a transaction");
    for _ in 0..read.per_transaction() {
        read.run(&trx, random, keys).await;
    }
    read.per_transaction()
}

/// Reads a second of CPU time, on this thread alone.
fn alone(bench: &Bench, read: ReadKind, duration: Duration) -> f64 {
    let (mut random, keys) = (Random(3), bench.settings.keys);
    rate_without_waits(1, duration, || block_on(transaction(&bench.database, read, &mut random, keys)))
}

fn raw_alone(bench: &Bench, read: ReadKind, duration: Duration) -> f64 {
    let mut random = Random(3);
    rate_without_waits(1, duration, || raw_transaction(bench, read, &mut random))
}

fn raw_transaction(bench: &Bench, read: ReadKind, random: &mut Random) -> u64 {
    let txn = bench.raw.env.read_txn().expect("a transaction");
    for _ in 0..read.per_transaction() {
        read.run_raw(&bench.raw, &txn, random, bench.settings.keys);
    }
    read.per_transaction()
}

/// Reads a second of 64 tasks on as many threads as there are CPUs.
fn tasks(bench: &Bench, read: ReadKind, duration: Duration) -> f64 {
    let (watch, keys) = (Arc::new(Stopwatch::start(bench.cpus)), bench.settings.keys);
    let task = |seed: u64| {
        let (database, watch) = (Arc::clone(&bench.database), Arc::clone(&watch));
        bench.runtime.spawn(async move {
            let (mut random, mut count) = (Random(seed << 32), 0);
            while !watch.is_over(duration) {
                count += transaction(&database, read, &mut random, keys).await;
                tokio::task::yield_now().await;
            }
            count
        })
    };
    let tasks: Vec<_> = (0..64).map(task).collect();
    let count: u64 = tasks.into_iter().map(|task| block_on(task).expect("no panic")).sum();
    count as f64 / watch.seconds()
}

/// Reads a second on this many threads, without tasks.
fn raw_threads(bench: &Bench, read: ReadKind, duration: Duration) -> f64 {
    let watch = Stopwatch::start(bench.cpus);
    let reads = |seed: u64| {
        let (mut random, mut count) = (Random(seed << 32), 0);
        while !watch.is_over(duration) {
            count += raw_transaction(bench, read, &mut random);
        }
        count
    };
    let count: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..bench.cpus as u64).map(|seed| scope.spawn(move || reads(seed))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    count as f64 / watch.seconds()
}

/// The thread count of the rows with tasks.
fn threads(bench: &Bench) -> String {
    format!("64 tasks, {}", if bench.cpus == 1 { "1 thread".into() } else { format!("{} threads", bench.cpus) })
}

pub fn points(bench: &Bench) -> Vec<Row> {
    let kinds = [
        ("points.many", "1,000 in a transaction", ReadKind::Point { per_transaction: 1_000, snapshot: false }),
        ("points.ten", "10 in a transaction", ReadKind::Point { per_transaction: 10, snapshot: false }),
        (
            "points.snapshot",
            "1,000 snapshot reads in a transaction",
            ReadKind::Point { per_transaction: 1_000, snapshot: true },
        ),
    ];
    let row = |what: String, measured: Vec<SideRate>| {
        Row::new(what)
            .engine(per_second(measured[0].rate))
            .raw(per_second(measured[1].rate))
            .share(measured[1].share)
            .aim("400,000/s", at_least(measured[0].rate, 400e3))
    };
    let mut rows = Vec::new();
    for (name, what, read) in kinds.into_iter().filter(|(name, ..)| bench.settings.wants(name)) {
        let measured =
            bench.alternate(&mut [&mut |time| alone(bench, read, time), &mut |time| raw_alone(bench, read, time)]);
        rows.push(row(format!("point reads, {what}, 1 thread"), measured));
        if name != "points.snapshot" {
            let measured = bench
                .alternate(&mut [&mut |time| tasks(bench, read, time), &mut |time| raw_threads(bench, read, time)]);
            rows.push(row(format!("point reads, {what}, {}", threads(bench)), measured));
        }
    }
    rows
}

/// Range reads of plain LMDB that copy their results, as an answer that outlives the transaction must.
fn raw_copies(bench: &Bench, per_transaction: u64, duration: Duration) -> f64 {
    let (mut random, keys) = (Random(3), bench.settings.keys);
    rate_without_waits(1, duration, || {
        let txn = bench.raw.env.read_txn().expect("a transaction");
        for _ in 0..per_transaction {
            let from = key(random.below(keys - RANGE_KEYS as u64));
            let bounds = (std::ops::Bound::Included(&from[..]), std::ops::Bound::Unbounded);
            let (mut bytes, mut ends) = (Vec::with_capacity(4_096), Vec::with_capacity(2 * RANGE_KEYS));
            for pair in bench.raw.db.range(&txn, &bounds).expect("a read").take(RANGE_KEYS) {
                let (key, value) = pair.expect("a pair");
                bytes.extend_from_slice(key);
                ends.push(bytes.len());
                bytes.extend_from_slice(value);
                ends.push(bytes.len());
            }
            std::hint::black_box((bytes, ends));
        }
        per_transaction
    })
}

pub fn ranges(bench: &Bench) -> Vec<Row> {
    let row = |what: String, rate: f64, raw: SideRate| {
        Row::new(what).engine(per_second(rate)).raw(per_second(raw.rate)).share(raw.share)
    };
    let aimed = |row: Row, raw: SideRate| row.aim("55 %", at_least(raw.share, 0.55));
    let mut rows = Vec::new();
    for (name, per_transaction) in [("ranges.many", 100), ("ranges.one", 1)] {
        if !bench.settings.wants(name) {
            continue;
        }
        let read = ReadKind::Range { per_transaction };
        let what = format!("range reads of {RANGE_KEYS} keys, {per_transaction} in a transaction");
        let measured = bench.alternate(&mut [
            &mut |time| alone(bench, read, time),
            &mut |time| raw_alone(bench, read, time),
            &mut |time| raw_copies(bench, per_transaction, time),
        ]);
        rows.push(aimed(row(format!("{what}, 1 thread"), measured[0].rate, measured[1]), measured[1]));
        rows.push(row(format!("{what}, 1 thread; raw copies the pairs too"), measured[0].rate, measured[2]));
        let measured =
            bench.alternate(&mut [&mut |time| tasks(bench, read, time), &mut |time| raw_threads(bench, read, time)]);
        rows.push(aimed(row(format!("{what}, {}", threads(bench)), measured[0].rate, measured[1]), measured[1]));
    }
    rows
}

/// Reads a piece of the data set by `get_range`, page by page. Returns its bytes.
async fn scan_pages(database: &Database, from: Vec<u8>, to: Vec<u8>) -> u64 {
    let trx = database.create_trx().expect("a transaction");
    let mut next = Some(RangeOption { mode: StreamingMode::WantAll, ..RangeOption::from((from, to)) });
    let (mut bytes, mut iteration) = (0, 0);
    while let Some(range) = next {
        iteration += 1;
        let page = trx.get_range(&range, iteration, true).await.expect("a page");
        for pair in page.iter() {
            look_at(pair.value());
            bytes += pair.key().len() + pair.value().len();
        }
        next = range.next_range(&page);
    }
    bytes as u64
}

/// Reads a piece of the data set by the stream of pairs. Returns its bytes.
async fn scan_stream(database: &Database, from: Vec<u8>, to: Vec<u8>) -> u64 {
    let trx = database.create_trx().expect("a transaction");
    let range = RangeOption { mode: StreamingMode::WantAll, ..RangeOption::from((from, to)) };
    let mut pairs = trx.get_ranges_keyvalues(range, true);
    let mut bytes = 0;
    while let Some(pair) = pairs.try_next().await.expect("a pair") {
        look_at(pair.value());
        bytes += pair.key().len() + pair.value().len();
    }
    bytes as u64
}

fn scan_raw(bench: &Bench, from: &[u8], to: &[u8]) -> u64 {
    let txn = bench.raw.env.read_txn().expect("a transaction");
    let bounds = (std::ops::Bound::Included(from), std::ops::Bound::Excluded(to));
    let mut bytes = 0;
    for pair in bench.raw.db.range(&txn, &bounds).expect("a read") {
        let (key, value) = pair.expect("a pair");
        look_at(value);
        bytes += key.len() + value.len();
    }
    bytes as u64
}

fn pieces(bench: &Bench) -> Vec<(Vec<u8>, Vec<u8>)> {
    let at = |piece: u64| key(bench.settings.keys * piece / 64).to_vec();
    (0..64).map(|piece| (at(piece), at(piece + 1))).collect()
}

fn scan_tasks(bench: &Bench) -> u64 {
    let task = |(from, to)| {
        let database = Arc::clone(&bench.database);
        bench.runtime.spawn(async move { scan_pages(&database, from, to).await })
    };
    let tasks: Vec<_> = pieces(bench).into_iter().map(task).collect();
    tasks.into_iter().map(|task| block_on(task).expect("no panic")).sum()
}

fn scan_raw_threads(bench: &Bench) -> u64 {
    let pieces = pieces(bench);
    std::thread::scope(|scope| {
        let read = |own: Vec<(Vec<u8>, Vec<u8>)>| own.iter().map(|(from, to)| scan_raw(bench, from, to)).sum::<u64>();
        let thread = |own| scope.spawn(move || read(own));
        let share = pieces.len().div_ceil(bench.cpus);
        let threads: Vec<_> = pieces.chunks(share).map(|own| thread(own.to_vec())).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    })
}

pub fn scan(bench: &Bench) -> Vec<Row> {
    let (from, to) = ENDS;
    let mut pages =
        |time| rate_without_waits(1, time, || block_on(scan_pages(&bench.database, from.to_vec(), to.to_vec())));
    let mut stream =
        |time| rate_without_waits(1, time, || block_on(scan_stream(&bench.database, from.to_vec(), to.to_vec())));
    let mut raw = |time| rate_without_waits(1, time, || scan_raw(bench, from, to));
    let mut rows = Vec::new();
    let row = |what: String, measured: Vec<SideRate>| {
        Row::new(what)
            .engine(format!("{}/s", megabytes(measured[0].rate)))
            .raw(format!("{}/s", megabytes(measured[1].rate)))
            .share(measured[1].share)
            .aim("300 MB/s", at_least(measured[0].rate, 300e6))
    };
    if bench.settings.wants("scan.pages") {
        rows.push(row("scan by get_range, WantAll, 1 thread".into(), bench.alternate(&mut [&mut pages, &mut raw])));
    }
    if bench.settings.wants("scan.stream") {
        rows.push(row("scan by get_ranges_keyvalues, 1 thread".into(), bench.alternate(&mut [&mut stream, &mut raw])));
    }
    if bench.settings.wants("scan.tasks") {
        let mut tasks = |time| rate_without_waits(bench.cpus, time, || scan_tasks(bench));
        let mut raw = |time| rate_without_waits(bench.cpus, time, || scan_raw_threads(bench));
        let what = format!("scan by get_range in 64 pieces, {}", threads(bench));
        rows.push(row(what, bench.alternate(&mut [&mut tasks, &mut raw])));
    }
    rows
}
