//! One database's functions do not keep the others' waiting, and waiting is not running.
//!
//! A program of its own: it measures how long calls take, and functions of other tests beside it would take their time.
#![allow(clippy::expect_used)]

use std::time::{Duration, Instant};

use flatbed_javascript::{Design, Error, Runner, RunnerOptions};

fn design(database: &str, source: &str) -> Design {
    Design::new(database, format!(r#"{{"filters":{{"f":"{source}"}}}}"#))
}

const ENDLESS: &str = "function (doc) { while (true) {} }";
const QUICK: &str = "function (doc) { return true; }";

fn runner(threads: usize, wait_ms: u64) -> Runner {
    let time = Duration::from_millis(600);
    let wait_max = Duration::from_millis(wait_ms);
    Runner::new(RunnerOptions { threads, wait_max, validation_max: time, batch_max: time }).expect("threads")
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
    let runner = runner(2, 5_000);
    let hostile = endless(&runner, "bad", 20);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let good = design("good", QUICK);
    for _ in 0..20 {
        // All but one of the threads is another's: none waits for as long as an endless function runs.
        let answer = tokio::time::timeout(Duration::from_millis(500), run(&runner, &good)).await;
        assert_eq!(answer, Ok(Ok(vec![true])));
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    drop(hostile);
}

#[tokio::test]
async fn what_waits_does_not_run_into_its_time() {
    let waits_long = runner(1, 5_000);
    let hostile = endless(&waits_long, "bad", 1);
    tokio::time::sleep(Duration::from_millis(100)).await;
    // It waits for most of the time that it may run for, then runs for most of it.
    let slow = "function (doc) { var begun = Date.now(); while (Date.now() - begun < 400) {} return true; }";
    assert_eq!(run(&waits_long, &design("good", slow)).await, Ok(vec![true]));
    drop(hostile);
    let waits_short = runner(1, 200);
    let _hostile = endless(&waits_short, "bad", 1);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(run(&waits_short, &design("good", QUICK)).await, Err(Error::Busy));
}

/// A function that nobody waits for is stopped, or does not begin.
#[tokio::test]
async fn who_leaves_takes_his_calls_along() {
    let time = Duration::from_secs(60);
    let options = RunnerOptions { threads: 1, wait_max: time, validation_max: time, batch_max: time };
    let runner = Runner::new(options).expect("a thread");
    let hostile = endless(&runner, "bad", 100);
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(hostile);
    let begun = Instant::now();
    assert_eq!(run(&runner, &design("good", QUICK)).await, Ok(vec![true]));
    assert!(begun.elapsed() < Duration::from_secs(30));
}
