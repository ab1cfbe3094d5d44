//! The punctuality of a simulated cluster's answers: their delay after the due time, in a task that waits for them,
//! and the share of a core that the waiting takes.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use fdb_embedded::{OpenOptions, SimulatedCluster};
use foundationdb::Database;

use crate::report::{Row, number};
use crate::setup::{Bench, cpu_time, key};

/// Reads one after the other in this many tasks. Returns how late each answer was, in microseconds, and the share of a
/// core that the process used.
fn lateness(bench: &Bench, latency: Duration, tasks: usize) -> (Vec<f64>, f64) {
    let mut options = OpenOptions::default();
    let mut cluster = SimulatedCluster::default();
    cluster.read = latency;
    options.simulated = Some(cluster);
    let directory = bench.directory.join(format!("late-{}-{tasks}", latency.as_micros()));
    let database = fdb_capi::open_embedded(&directory, options).expect("the engine opens");
    // SAFETY: the pointer is a database that no other code destroys.
    let database = unsafe { Database::new_from_pointer(NonNull::new(database).expect("not null")) };
    let database = std::sync::Arc::new(database);
    let (begun, cpu) = (Instant::now(), cpu_time());
    let end = begun + bench.settings.round;
    let mut late: Vec<f64> = bench.runtime.block_on(async {
        let tasks: Vec<_> = (0..tasks)
            .map(|task| {
                let database = database.clone();
                tokio::spawn(async move {
                    let mut late = Vec::new();
                    let trx = database.create_trx().expect("a transaction");
                    trx.get_read_version().await.expect("a read version");
                    while Instant::now() < end && late.len() < 4_000 {
                        let asked = Instant::now();
                        trx.get(&key(task as u64), true).await.expect("a read");
                        late.push((asked.elapsed() - latency).as_secs_f64() * 1e6);
                    }
                    late
                })
            })
            .collect();
        let mut late = Vec::new();
        for task in tasks {
            late.extend(task.await.expect("a task"));
        }
        late
    });
    let share = (cpu_time() - cpu) / begun.elapsed().as_secs_f64();
    late.sort_by(f64::total_cmp);
    (late, share)
}

pub fn run(bench: &Bench) -> Vec<Row> {
    let cases = [(500, 1), (1_000, 1), (1_000, 64)];
    let row = |(latency_us, tasks)| {
        let (late, share) = lateness(bench, Duration::from_micros(latency_us), tasks);
        let at = |part: f64| late.get((late.len() as f64 * part) as usize).copied().unwrap_or(f64::NAN);
        let tasks = if tasks == 1 { "one task that waits".to_owned() } else { format!("{tasks} tasks that wait") };
        Row::new(format!("answers due after {} µs, {tasks}: later than due, p50, p90, p99", number(latency_us as f64)))
            .engine(format!("{:.0}, {:.0}, {:.0} µs; {:.0} % of a core", at(0.5), at(0.9), at(0.99), share * 100.0))
    };
    cases.map(row).into()
}
