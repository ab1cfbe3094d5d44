//! Durable commits of ten keys, 64 and one in flight.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foundationdb::Database;
use futures::executor::block_on;

use crate::machine::{BareCommit, written};
use crate::report::{Row, at_least, at_most, microseconds, per_second};
use crate::setup::{Bench, KEYS_PER_COMMIT, Random, Raw, cpu_time, key, rate, value};

#[derive(Clone, Copy, PartialEq)]
pub enum KeyPlacement {
    /// Adjacent, like the keys of one document.
    Together,
    /// Random.
    Apart,
}

pub fn numbers(random: &mut Random, keys: &Range<u64>, place: KeyPlacement) -> [u64; KEYS_PER_COMMIT as usize] {
    let count = keys.end - keys.start;
    let first = keys.start + random.below(count - KEYS_PER_COMMIT);
    let mut numbers = [0; KEYS_PER_COMMIT as usize];
    for (at, number) in numbers.iter_mut().enumerate() {
        *number = if place == KeyPlacement::Together { first + at as u64 } else { keys.start + random.below(count) };
    }
    numbers
}

/// Commits one after the other until `deadline`. Returns the number of commits.
async fn commit_until(
    database: Arc<Database>,
    keys: Range<u64>,
    place: KeyPlacement,
    seed: u64,
    deadline: Instant,
) -> u64 {
    let (mut random, mut count) = (Random(seed), 0);
    while Instant::now() < deadline {
        let trx = database.create_trx().expect("a transaction");
        for number in numbers(&mut random, &keys, place) {
            trx.set(&key(number), &value(random.next()));
        }
        trx.commit().await.expect("a commit");
        count += 1;
    }
    count
}

pub fn commits(bench: &Bench, tasks: u64, place: KeyPlacement, keys: Range<u64>, duration: Duration) -> f64 {
    let started = Instant::now();
    let deadline = started + duration;
    let spawn = |task| {
        let database = Arc::clone(&bench.database);
        bench.runtime.spawn(commit_until(database, keys.clone(), place, task << 32, deadline))
    };
    let tasks: Vec<_> = (0..tasks).map(spawn).collect();
    let count: u64 = tasks.into_iter().map(|task| block_on(task).expect("no panic")).sum();
    count as f64 / started.elapsed().as_secs_f64()
}

/// The same writes in one LMDB transaction per batch; commits a second.
fn raw_commits(raw: &Raw, keys: &Range<u64>, place: KeyPlacement, batch: u64, sorted: bool, duration: Duration) -> f64 {
    let mut random = Random(duration.as_nanos() as u64);
    let mut batch_numbers = Vec::new();
    rate(duration, || {
        batch_numbers.clear();
        for _ in 0..batch {
            batch_numbers.extend(numbers(&mut random, keys, place));
        }
        if sorted {
            batch_numbers.sort_unstable();
        }
        let mut txn = raw.write_txn();
        for &number in &batch_numbers {
            raw.put(&mut txn, number, random.next());
        }
        txn.commit().expect("a commit");
        batch
    })
}

pub fn run(bench: &Bench) -> Vec<Row> {
    let mut rows = Vec::new();
    for (place, name) in [(KeyPlacement::Together, "together"), (KeyPlacement::Apart, "apart")] {
        if bench.settings.wants(&format!("commits.64.{name}")) {
            rows.extend(many(bench, place, name));
        }
        if bench.settings.wants(&format!("commits.1.{name}")) {
            rows.extend(single(bench, place, name));
        }
    }
    rows
}

fn many(bench: &Bench, place: KeyPlacement, name: &str) -> Vec<Row> {
    let keys = 0..bench.settings.keys;
    let batches = Cell::new((0, 0));
    // Plain LMDB gets the batch size that the engine reached in its last round.
    let batch = Cell::new(64);
    let (own_cpu, raw_cpu) = (CpuTime::default(), CpuTime::default());
    let mut engine = |duration| {
        let before = bench.stats();
        let rate = own_cpu.of(duration, |duration| commits(bench, 64, place, keys.clone(), duration));
        let after = bench.stats();
        let (commits, written) = (after.commits - before.commits, (after.batches - before.batches).max(1));
        batch.set((commits as f64 / written as f64).round().max(1.0) as u64);
        batches.set((batches.get().0 + commits, batches.get().1 + written));
        rate
    };
    let raw_sorted = |duration| raw_commits(&bench.raw, &keys, place, batch.get(), true, duration);
    let mut sorted = |duration| raw_cpu.of(duration, raw_sorted);
    let mut unsorted = |duration| raw_commits(&bench.raw, &keys, place, batch.get(), false, duration);
    let measured = bench.alternate(&mut [&mut engine, &mut sorted, &mut unsorted]);
    let reached = batches.get().0 as f64 / batches.get().1 as f64;
    let rate = measured[0].rate;
    let row = |what: String, at: usize| {
        let measured = measured[at];
        Row::new(what)
            .engine(per_second(rate))
            .raw(per_second(measured.rate))
            .share(measured.share)
            .aim("60 %", at_least(measured.share, 0.6))
    };
    let what = format!("commits of 10 keys {name}, 64 in flight, {reached:.1} a batch");
    vec![
        row(format!("{what}; raw sorted"), 1),
        row(format!("{what}; raw not sorted"), 2),
        Row::new("CPU time of such a commit, clients and the writes to the file included; raw sorted")
            .engine(microseconds(own_cpu.each()))
            .raw(microseconds(raw_cpu.each()))
            .share(raw_cpu.each() / own_cpu.each()),
    ]
}

/// The total CPU time of several rounds.
#[derive(Default)]
struct CpuTime(Cell<(f64, f64)>);

impl CpuTime {
    /// Runs a round, which returns its commits a second.
    fn of(&self, duration: Duration, round: impl FnOnce(Duration) -> f64) -> f64 {
        let (started, before) = (Instant::now(), cpu_time());
        let rate = round(duration);
        let (seconds, commits) = self.0.get();
        self.0.set((seconds + cpu_time() - before, commits + rate * started.elapsed().as_secs_f64()));
        rate
    }

    /// Seconds of CPU time a commit.
    fn each(&self) -> f64 {
        self.0.get().0 / self.0.get().1
    }
}

fn single(bench: &Bench, place: KeyPlacement, name: &str) -> Vec<Row> {
    let keys = 0..bench.settings.keys;
    // LMDB's writes for such a commit, once the first commits have put the free pages to use.
    let warm = Duration::from_millis(200);
    raw_commits(&bench.raw, &keys, place, 1, false, warm);
    let before = written();
    let commits = raw_commits(&bench.raw, &keys, place, 1, false, warm) * warm.as_secs_f64();
    let (bytes, calls) = match (before, written()) {
        (Some(before), Some(after)) => {
            (((after.0 - before.0) as f64 / commits) as u64, ((after.1 - before.1) as f64 / commits).round() as u64)
        }
        // Ten leaves, the pages above them, and the list of free pages.
        _ => (16 * 4_096, 17),
    };
    let mut bare = BareCommit::new(&bench.directory, bytes, calls);
    let seed = Cell::new(7);
    let mut engine = |duration| {
        seed.set(seed.get() + 1);
        let (database, started) = (Arc::clone(&bench.database), Instant::now());
        let count = block_on(commit_until(database, keys.clone(), place, seed.get(), started + duration));
        count as f64 / started.elapsed().as_secs_f64()
    };
    let mut raw = |duration| raw_commits(&bench.raw, &keys, place, 1, false, duration);
    let mut sync = |duration| {
        rate(duration, || {
            bare.run();
            1
        })
    };
    let measured = bench.alternate(&mut [&mut engine, &mut raw, &mut sync]);
    let what = format!("a commit of 10 keys {name}, 1 in flight");
    let times = 1.0 / measured[2].share;
    vec![
        Row::new(format!("{what}; raw commit"))
            .engine(microseconds(1.0 / measured[0].rate))
            .raw(microseconds(1.0 / measured[1].rate))
            .share(measured[1].share),
        Row::new(format!("{what}; its bare writes and syncs ({calls} writes, {:.0} kB)", bytes as f64 / 1e3))
            .engine(format!("{} = {times:.2} times", microseconds(1.0 / measured[0].rate)))
            .raw(microseconds(1.0 / measured[2].rate))
            .share(measured[2].share)
            .aim("1.3 times", at_most(times, 1.3)),
    ]
}
