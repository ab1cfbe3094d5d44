//! The cost of checking a commit, by the number of recent writes.
//!
//! The disk is not involved: the commits have conflict ranges but no mutations, and the engine need not write them.

use std::cell::Cell;
use std::time::{Duration, Instant};

use foundationdb::options::ConflictRangeType;
use foundationdb::{Database, Transaction};
use futures::executor::block_on;
use futures::future::join_all;

use crate::report::{Row, at_most, microseconds};
use crate::setup::{Bench, Fresh, Random, median};

const COUNTS: [u64; 4] = [0, 10, 1_000, 100_000];
/// The writes are spread over this time, to fill many of the engine's buckets.
const SPREAD: Duration = Duration::from_millis(2_500);
const PIECES: u32 = 25;
const IN_FLIGHT: usize = 64;

fn written(number: u64) -> Vec<u8> {
    [b"m/".as_slice(), &Random(number).next().to_be_bytes(), &number.to_be_bytes(), &[0; 14]].concat()
}

fn add(trx: &Transaction, key: &[u8], kind: ConflictRangeType) {
    trx.add_conflict_range(key, &[key, &[0]].concat(), kind).expect("a range");
}

/// Commits a write of the keys of these numbers.
fn write_piece(database: &Database, from: u64, to: u64) {
    let trx = database.create_trx().expect("a transaction");
    for number in from..to {
        add(&trx, &written(number), ConflictRangeType::Write);
    }
    block_on(trx.commit()).expect("a commit");
}

/// Writes `count` single keys in several commits over [`SPREAD`].
fn write_ranges(database: &Database, count: u64) {
    let started = Instant::now();
    for piece in 0..PIECES {
        let at = |piece: u32| count * u64::from(piece) / u64::from(PIECES);
        write_piece(database, at(piece), at(piece + 1));
        std::thread::sleep((started + SPREAD * (piece + 1) / PIECES).saturating_duration_since(Instant::now()));
    }
}

/// Adds one narrow and one wide range; the wide one contains no write, but lies between writes.
fn add_reads(trx: &Transaction, number: u64) {
    add(trx, &[b"a/".as_slice(), &number.to_be_bytes()].concat(), ConflictRangeType::Read);
    trx.add_conflict_range(b"b", b"m", ConflictRangeType::Read).expect("a range");
    add(trx, &[b"w/".as_slice(), &number.to_be_bytes()].concat(), ConflictRangeType::Write);
}

/// Seconds per commit: calls `one` with several in flight, often enough for a result, but not so long that read
/// versions become too old.
async fn measure<F: Future<Output = ()>>(one: impl Fn(u64) -> F) -> f64 {
    const CALLS_MAX: u64 = 10_000;
    const TIME_MAX: Duration = Duration::from_secs(1);
    let (started, calls) = (Instant::now(), Cell::new(0));
    let task = |_| async {
        while calls.get() < CALLS_MAX && started.elapsed() < TIME_MAX {
            calls.set(calls.get() + 1);
            one(calls.get()).await;
        }
    };
    join_all((0..IN_FLIGHT).map(task)).await;
    started.elapsed().as_secs_f64() / calls.get() as f64
}

/// Commits that read at `version` are refused because of a key written since, the last of their ranges. So all their
/// ranges are checked, but the commits add nothing to the history.
fn refused(database: &Database, version: i64, reads_written: bool) -> f64 {
    let one = |number| async move {
        let trx = database.create_trx().expect("a transaction");
        trx.set_read_version(version);
        add_reads(&trx, number);
        if reads_written {
            trx.add_conflict_range(b"m", b"n", ConflictRangeType::Read).expect("a range");
        }
        add(&trx, LAST, ConflictRangeType::Read);
        let refused = trx.commit().await.map(drop).expect_err("a conflict");
        assert_eq!(refused.code(), 1020);
    };
    block_on(measure(one))
}

/// Above all other keys.
const LAST: &[u8] = b"z";

fn write_last(database: &Database) {
    let trx = database.create_trx().expect("a transaction");
    add(&trx, LAST, ConflictRangeType::Write);
    block_on(trx.commit()).expect("a commit");
}

/// Takes a read version, which also keeps the history from there on.
fn read_version(database: &Database) -> (Transaction, i64) {
    let trx = database.create_trx().expect("a transaction");
    let version = block_on(trx.get_read_version()).expect("a version");
    (trx, version)
}

/// The reads are older than all writes, and the wide range lies between the writes.
fn old_reads(database: &Database, count: u64) -> f64 {
    let (_kept, version) = read_version(database);
    write_ranges(database, count);
    write_last(database);
    refused(database, version, false)
}

/// The reads are newer than the writes inside of the wide range, but older than another write of the same moment.
fn reads_between(database: &Database, count: u64) -> f64 {
    write_piece(database, 0, count);
    let (_kept, version) = read_version(database);
    write_last(database);
    refused(database, version, true)
}

/// Each commit reads the newest state, and all writes of the last seconds are inside of the wide range.
fn new_reads(database: &Database, count: u64) -> f64 {
    let _kept = read_version(database);
    write_ranges(database, count);
    let one = |number| async move {
        let trx = database.create_trx().expect("a transaction");
        trx.get(b"a", true).await.expect("a read");
        add_reads(&trx, number);
        trx.add_conflict_range(b"m", b"n", ConflictRangeType::Read).expect("a range");
        trx.commit().await.map(drop).expect("no conflict");
    };
    block_on(measure(one))
}

pub fn run(bench: &Bench) -> Vec<Row> {
    type Measure = fn(&Database, u64) -> f64;
    let kinds: [(&str, &str, Measure); 3] = [
        ("conflicts.old", "reads older than all writes, a wide range between them", old_reads),
        ("conflicts.new", "reads newer than all writes, a wide range over them", new_reads),
        (
            "conflicts.between",
            "reads just after all writes, a wide range over them, another write since",
            reads_between,
        ),
    ];
    let mut rows = Vec::new();
    for (name, what, measure) in kinds.into_iter().filter(|(name, ..)| bench.settings.wants(name)) {
        let rounds = bench.settings.rounds.min(3);
        let mut times = vec![Vec::new(); COUNTS.len()];
        for round in 0..rounds {
            for (at, &count) in COUNTS.iter().enumerate() {
                // A separate database has no other writes in its window.
                let fresh = Fresh::open(bench, &format!("{name}.{round}.{count}"), 0);
                times[at].push(measure(&fresh.database, count));
            }
        }
        let times: Vec<f64> = times.into_iter().map(median).collect();
        let texts: Vec<_> = times.iter().map(|&seconds| microseconds(seconds)).collect();
        let growth = times[3] / times[1];
        rows.push(
            Row::new(format!("a commit without mutations, 64 in flight, after 0; 10; 1,000; 100,000 writes; {what}"))
                .engine(texts.join("; "))
                .aim("as the logarithm: 100,000 to 10 at most 5", at_most(growth, 5.0)),
        );
    }
    rows
}
