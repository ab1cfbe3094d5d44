//! Databases do not delay each other's calls, and waiting time does not count as running time.
//!
//! A separate program: its endless functions use the processor, which would disturb other tests.
#![allow(clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flatbed_javascript::{
    CallClass, Design, Error, Group, GroupFunctions, MappedBatch, ReduceInput, Reduction, RowLimits, Runner,
    RunnerOptions,
};
use flatbed_testkit::{PATIENCE, pass, soon, until, until_some};

/// The time limit of endless functions. No test waits for it.
const FOREVER: Duration = PATIENCE.saturating_mul(10);

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

/// Repeats calls of an endless function until the result is dropped. Returns once all calls have started.
async fn endless(runner: &Runner, database: &str, at_once: usize) -> tokio::task::JoinSet<()> {
    let (mut tasks, made) = (tokio::task::JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    for _ in 0..at_once {
        let (runner, design, made) = (runner.clone(), design(database, ENDLESS), Arc::clone(&made));
        tasks.spawn(async move {
            made.fetch_add(1, Ordering::Relaxed);
            loop {
                let _ = run(&runner, &design).await;
            }
        });
    }
    until("all calls are made", async || made.load(Ordering::Relaxed) == at_once).await;
    tasks
}

#[tokio::test]
async fn endless_functions_of_one_database_do_not_stop_anothers() {
    let options = RunnerOptions { validation_max: FOREVER, wait_max: PATIENCE, ..options(2, 0) };
    let runner = Runner::new(options).expect("threads");
    let hostile = endless(&runner, "bad", 20).await;
    let good = design("good", QUICK);
    for _ in 0..20 {
        // One thread is always left for other databases, so no call waits for an endless function.
        assert_eq!(soon(run(&runner, &good)).await, Ok(vec![true]));
        pass(Duration::from_millis(40)).await;
    }
    drop(hostile);
}

#[tokio::test]
async fn what_waits_does_not_run_into_its_time() {
    // No call is put aside.
    let patient = |wait_ms, validation_max| {
        Runner::new(RunnerOptions { slice: FOREVER, validation_max, ..options(1, wait_ms) }).expect("threads")
    };
    let waits_long = patient(180_000, Duration::from_secs(4));
    let hostile = endless(&waits_long, "bad", 1).await;
    // The call waits for almost its time limit and then runs for a while.
    let slow = "function (doc) { var begun = Date.now(); while (Date.now() - begun < 400) {} return true; }";
    let slow = design("good", slow);
    let answer = until_some("a call that has waited runs to its end", async || {
        match soon(run(&waits_long, &slow)).await {
            // A busy machine used up the time limit. If the wait counted, each attempt would fail.
            Err(Error::TimedOut(_) | Error::Busy) => None,
            answer => Some(answer),
        }
    });
    assert_eq!(answer.await, Ok(vec![true]));
    drop(hostile);
    let waits_short = patient(200, FOREVER);
    let _hostile = endless(&waits_short, "bad", 1).await;
    let good = design("good", QUICK);
    let refused = until_some("a call waits for no longer than it may", async || {
        // The thread may have slept until the endless call was cancelled and queued again behind this one.
        soon(run(&waits_short, &good)).await.err()
    });
    assert_eq!(refused.await, Error::Busy);
}

/// Three databases run endless functions and maps all the time. A fourth never waits for them, not even for its first
/// call.
#[tokio::test]
async fn no_number_of_endless_databases_keeps_another_waiting() {
    // The options of a server, except that no call reaches its time limit.
    let (validation_max, batch_max, wait_max) = (FOREVER, FOREVER, PATIENCE);
    let options = RunnerOptions { map_threads: 2, validation_max, batch_max, wait_max, ..RunnerOptions::default() };
    let runner = Runner::new(options).expect("threads");
    let (mut hostile, mut maps) = (Vec::new(), tokio::task::JoinSet::new());
    for database in ["bad", "worse", "worst"] {
        hostile.push(endless(&runner, database, 20).await);
        for _ in 0..20 {
            let (runner, group) = (runner.clone(), group(database, ENDLESS));
            maps.spawn(async move {
                loop {
                    let _ = runner.map(&group, vec![b"{}".to_vec()]).await;
                }
            });
        }
    }
    let (good, view) = (design("good", QUICK), group("good", "function (doc) { emit(doc._id, null); }"));
    let mut slowest = Duration::ZERO;
    for _ in 0..60 {
        let called = Instant::now();
        assert_eq!(soon(run(&runner, &good)).await, Ok(vec![true]));
        let filtered = called.elapsed();
        let mapped = soon(runner.map(&view, vec![br#"{"_id":"a"}"#.to_vec()])).await.expect("rows");
        assert_eq!(mapped.documents.len(), 1);
        slowest = slowest.max(filtered).max(called.elapsed() - filtered);
        pass(Duration::from_millis(20)).await;
    }
    println!("the slowest answer took {slowest:?}");
    drop((hostile, maps));
}

/// Sixty databases of one owner have calls all the time. A database of another owner does not wait for all of them.
#[tokio::test]
async fn many_databases_of_one_owner_do_not_delay_another_owners() {
    const DATABASES: usize = 60;
    let runner = Runner::new(RunnerOptions { threads: 1, wait_max: PATIENCE, ..RunnerOptions::default() });
    let runner = runner.expect("threads");
    let busy = "function (doc) { var begun = Date.now(); while (Date.now() - begun < 5) {} return true; }";
    let (mut noisy, answers) = (tokio::task::JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    for n in 0..DATABASES {
        let database = format!("noisy{n}");
        runner.set_owner(&database, Some(1));
        let (runner, design, answers) = (runner.clone(), design(&database, busy), Arc::clone(&answers));
        noisy.spawn(async move {
            loop {
                let _ = run(&runner, &design).await;
                answers.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    until("all are called", async || answers.load(Ordering::Relaxed) >= DATABASES).await;
    let (quiet, mut before) = (design("quiet", QUICK), Vec::new());
    for _ in 0..11 {
        let begun = answers.load(Ordering::Relaxed);
        assert_eq!(soon(run(&runner, &quiet)).await, Ok(vec![true]));
        before.push(answers.load(Ordering::Relaxed) - begun);
    }
    before.sort_unstable();
    // The median: this program may have slept in some rounds.
    assert!(before[5] < DATABASES / 3, "{before:?}");
    drop(noisy);
}

/// The options of a runner with two threads and endless slices.
fn patient_options() -> RunnerOptions {
    let (slice, batch_max, wait_max) = (FOREVER, FOREVER, PATIENCE);
    RunnerOptions { map_threads: 2, slice, batch_max, wait_max, ..options(2, 0) }
}

/// Repeats a map that never ends until the result is dropped.
fn endless_map(maps: &mut tokio::task::JoinSet<()>, runner: &Runner, group: Group) {
    let runner = runner.clone();
    maps.spawn(async move {
        loop {
            let _ = runner.map(&group, vec![b"{}".to_vec()]).await;
        }
    });
}

#[tokio::test]
async fn databases_that_begin_to_be_long_leave_a_thread_to_one_whose_calls_are_short() {
    let runner = Runner::new(patient_options()).expect("threads");
    let good = design("good", QUICK);
    assert_eq!(soon(run(&runner, &good)).await, Ok(vec![true]));
    let mut hostile = Vec::new();
    for n in 0..10 {
        hostile.push(endless(&runner, &format!("bad{n}"), 1).await);
    }
    for _ in 0..20 {
        assert_eq!(soon(run(&runner, &good)).await, Ok(vec![true]));
        pass(Duration::from_millis(20)).await;
    }
    let calls = |class| runner.figures().function_wait_seconds.of(class).count();
    assert!(calls(CallClass::Short) >= 15 && calls(CallClass::Unproven) >= 1);
    drop(hostile);
}

#[tokio::test]
async fn databases_whose_maps_begin_to_be_long_leave_a_thread_to_one_whose_maps_are_short() {
    let runner = Runner::new(patient_options()).expect("threads");
    let good = group("good", "function (doc) { emit(doc._id, null); }");
    let map_good = async || {
        let mapped = soon(runner.map(&good, vec![br#"{"_id":"a"}"#.to_vec()])).await;
        assert_eq!(mapped.expect("rows").documents.len(), 1);
    };
    map_good().await;
    let mut hostile = tokio::task::JoinSet::new();
    for n in 0..60 {
        endless_map(&mut hostile, &runner, group(&format!("bad{n}"), ENDLESS));
    }
    for _ in 0..20 {
        map_good().await;
        pass(Duration::from_millis(20)).await;
    }
    drop(hostile);
}

#[tokio::test]
async fn a_reduce_does_not_wait_for_maps_of_its_own_database() {
    let runner = Runner::new(patient_options()).expect("threads");
    let reduces = [("v", "function (keys, values) { return sum(values); }")];
    let functions = GroupFunctions { lib: None, maps: &[("v", ENDLESS)], reduces: &reduces };
    let group = Group::new("a", &functions, RowLimits::default());
    let reduce = async || {
        let rows = [("1", "a", "10"), ("2", "b", "20")];
        let reduction = Reduction { functions: &[0], input: ReduceInput::Rows(&rows) };
        assert_eq!(soon(runner.reduce(&group, &[reduction])).await, Ok(vec![vec![Ok("30".to_owned())]]));
    };
    reduce().await;
    let mut hostile = tokio::task::JoinSet::new();
    for _ in 0..10 {
        endless_map(&mut hostile, &runner, group.clone());
    }
    for _ in 0..20 {
        reduce().await;
        pass(Duration::from_millis(20)).await;
    }
    drop(hostile);
}

fn ran(mapped: &MappedBatch) -> (u64, u64) {
    let rows = mapped.documents[0][0].as_ref().expect("rows");
    let (begun, ended) = rows.iter().next().expect("a row");
    (begun.parse().expect("a number"), ended.parse().expect("a number"))
}

#[tokio::test]
async fn mapping_uses_all_its_threads_and_no_others() {
    let (batch_max, validation_max, wait_max) = (FOREVER, FOREVER, PATIENCE);
    let options = RunnerOptions { threads: 1, map_threads: 3, batch_max, validation_max, wait_max, ..options(1, 0) };
    let runner = Runner::new(options).expect("threads");
    let source =
        "function (doc) { var begun = Date.now(); while (Date.now() - begun < 1000) {} emit(begun, Date.now()); }";
    let good = design("a", QUICK);
    // Repeated, because a busy machine may delay the maps.
    until("three maps run at once, and a filter beside them", async || {
        let mut maps = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let (runner, group) = (runner.clone(), group("a", source));
            maps.spawn(async move { runner.map(&group, vec![b"{}".to_vec()]).await });
        }
        pass(Duration::from_millis(100)).await;
        assert_eq!(soon(run(&runner, &good)).await, Ok(vec![true]));
        let is_beside = maps.try_join_next().is_none();
        let times: Vec<_> =
            soon(maps.join_all()).await.iter().map(|mapped| ran(mapped.as_ref().expect("rows"))).collect();
        let last_begun = times.iter().map(|(begun, _)| begun).max();
        let first_ended = times.iter().map(|(_, ended)| ended).min();
        is_beside && times.len() == 3 && last_begun < first_ended
    })
    .await;
}

#[tokio::test]
async fn who_leaves_takes_his_calls_along() {
    let (wait_max, validation_max, batch_max) = (FOREVER, FOREVER, FOREVER);
    let options = RunnerOptions { threads: 1, wait_max, validation_max, batch_max, ..RunnerOptions::default() };
    let runner = Runner::new(options).expect("a thread");
    let hostile = endless(&runner, "bad", 100).await;
    pass(Duration::from_millis(50)).await;
    drop(hostile);
    assert_eq!(soon(run(&runner, &design("good", QUICK))).await, Ok(vec![true]));
}
