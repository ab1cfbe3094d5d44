//! One database's functions do not keep the others' waiting, and waiting is not running.
//!
//! A program of its own: it measures how long calls take, and functions of other tests beside it would take their time.
#![allow(clippy::expect_used)]

use std::time::{Duration, Instant};

use flatbed_javascript::{Design, Error, Group, GroupFunctions, RowLimits, Runner, RunnerOptions};

fn design(database: &str, source: &str) -> Design {
    Design::new(database, format!(r#"{{"filters":{{"f":"{source}"}}}}"#))
}

fn group(database: &str, source: &str) -> Group {
    let functions = GroupFunctions { lib: None, maps: &[("v", source)], reduces: &[] };
    Group::new(database, &functions, RowLimits::default())
}

const ENDLESS: &str = "function (doc) { while (true) {} }";
const QUICK: &str = "function (doc) { return true; }";

fn options(threads: usize, wait_ms: u64) -> RunnerOptions {
    let time = Duration::from_millis(600);
    let wait_max = Duration::from_millis(wait_ms);
    RunnerOptions { threads, wait_max, validation_max: time, batch_max: time, ..RunnerOptions::default() }
}

async fn run(runner: &Runner, design: &Design) -> Result<Vec<bool>, Error> {
    runner.filter(design, runner.caller(), "f", &[b"{}"], "{}").await
}

/// Calls of an endless function that are made again and again, until they are dropped.
fn endless(runner: &Runner, database: &str, at_once: usize) -> tokio::task::JoinSet<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..at_once {
        let (runner, design) = (runner.clone(), design(database, ENDLESS));
        tasks.spawn(async move {
            loop {
                let _ = run(&runner, &design).await;
            }
        });
    }
    tasks
}

#[tokio::test]
async fn endless_functions_of_one_database_do_not_stop_anothers() {
    let time = Duration::from_secs(60);
    let options = RunnerOptions { validation_max: time, ..options(2, 5_000) };
    let runner = Runner::new(options).expect("threads");
    let hostile = endless(&runner, "bad", 20);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let good = design("good", QUICK);
    for _ in 0..20 {
        // All but one of the threads is another's: none waits for as long as an endless function runs.
        let answer = tokio::time::timeout(Duration::from_secs(30), run(&runner, &good)).await;
        assert_eq!(answer, Ok(Ok(vec![true])));
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    drop(hostile);
}

#[tokio::test]
async fn what_waits_does_not_run_into_its_time() {
    // None is put aside before its end.
    let patient = |wait_ms, validation_max| {
        let slice = Duration::from_secs(60);
        Runner::new(RunnerOptions { slice, validation_max, ..options(1, wait_ms) }).expect("threads")
    };
    let waits_long = patient(60_000, Duration::from_secs(4));
    let hostile = endless(&waits_long, "bad", 1);
    tokio::time::sleep(Duration::from_millis(100)).await;
    // It waits for nearly as long as it may run, and then runs for a while.
    let slow = "function (doc) { var begun = Date.now(); while (Date.now() - begun < 400) {} return true; }";
    assert_eq!(run(&waits_long, &design("good", slow)).await, Ok(vec![true]));
    drop(hostile);
    let waits_short = patient(200, Duration::from_secs(60));
    let _hostile = endless(&waits_short, "bad", 1);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(run(&waits_short, &design("good", QUICK)).await, Err(Error::Busy));
}

/// The slowest of a filter and a map, again and again for so long.
async fn slowest(runner: &Runner, time: Duration) -> Duration {
    let (good, view) = (design("good", QUICK), group("good", "function (doc) { emit(doc._id, null); }"));
    let begun = Instant::now();
    let mut slowest = Duration::ZERO;
    while begun.elapsed() < time {
        let called = Instant::now();
        assert_eq!(run(runner, &good).await, Ok(vec![true]));
        let filtered = called.elapsed();
        let mapped = runner.map(&view, vec![br#"{"_id":"a"}"#.to_vec()]).await.expect("rows");
        assert_eq!(mapped.documents.len(), 1);
        slowest = slowest.max(filtered).max(called.elapsed() - filtered);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    slowest
}

/// Three databases keep calling functions that do not end, and map with them; a fourth waits for none of them longer than a
/// second, from the first call on. Where others have the machine at the same time, once of ten times.
#[tokio::test]
async fn no_number_of_endless_databases_keeps_another_waiting_for_a_second() {
    let mut all = Vec::new();
    while all.len() < 10 {
        // As a server runs them.
        let runner = Runner::new(RunnerOptions { map_threads: 2, ..RunnerOptions::default() }).expect("threads");
        let mut hostile = tokio::task::JoinSet::new();
        for database in ["bad", "worse", "worst"] {
            for _ in 0..20 {
                let (again, runner, design) = (runner.clone(), runner.clone(), design(database, ENDLESS));
                hostile.spawn(async move {
                    loop {
                        let _ = run(&runner, &design).await;
                    }
                });
                let (runner, group) = (again, group(database, ENDLESS));
                hostile.spawn(async move {
                    loop {
                        let _ = runner.map(&group, vec![b"{}".to_vec()]).await;
                    }
                });
            }
        }
        all.push(slowest(&runner, Duration::from_secs(5)).await);
        drop(hostile);
        if all.last().is_some_and(|slowest| *slowest < Duration::from_secs(1)) {
            return;
        }
    }
    panic!("{all:?}");
}

/// One database's batches run on all threads for maps at once, and filters go on beside them.
#[tokio::test]
async fn mapping_uses_all_its_threads_and_no_others() {
    let (batch_max, validation_max) = (Duration::from_secs(30), Duration::from_secs(30));
    let options = RunnerOptions { threads: 1, map_threads: 3, batch_max, validation_max, ..options(1, 60_000) };
    let runner = Runner::new(options).expect("threads");
    // By the clock: what else the machine is at does not make them longer.
    let source = "function (doc) { var end = Date.now() + 3000; while (Date.now() < end) {} emit(1); }";
    let begun = Instant::now();
    let mut maps = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (runner, group) = (runner.clone(), group("a", source));
        maps.spawn(async move { runner.map(&group, vec![b"{}".to_vec()]).await });
    }
    let good = design("a", QUICK);
    let mut filtered = 0;
    while begun.elapsed() < Duration::from_millis(500) {
        assert_eq!(run(&runner, &good).await, Ok(vec![true]));
        filtered += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    while let Some(mapped) = maps.join_next().await {
        assert_eq!(mapped.expect("no panic").expect("rows").documents.len(), 1);
    }
    // One after the other would take 9 s.
    assert!(begun.elapsed() < Duration::from_millis(8_500), "{:?}", begun.elapsed());
    assert!(filtered > 0);
}

/// A function that nobody waits for is stopped, or does not begin.
#[tokio::test]
async fn who_leaves_takes_his_calls_along() {
    let time = Duration::from_secs(60);
    let options =
        RunnerOptions { threads: 1, wait_max: time, validation_max: time, batch_max: time, ..RunnerOptions::default() };
    let runner = Runner::new(options).expect("a thread");
    let hostile = endless(&runner, "bad", 100);
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(hostile);
    let begun = Instant::now();
    assert_eq!(run(&runner, &design("good", QUICK)).await, Ok(vec![true]));
    assert!(begun.elapsed() < Duration::from_secs(30));
}
