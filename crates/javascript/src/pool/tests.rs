use flatbed_testkit::{PATIENCE, soon, until};

use super::*;
use crate::{Design, Runner, RunnerOptions, SyncFunction};

/// Threads that wait for calls, for an hour here, are told of those that they may run because time has passed.
#[tokio::test]
async fn what_waits_is_run_when_its_database_is_slow_no_more() {
    let (threads, validation_max, wait_max) = (1, 10 * PATIENCE, PATIENCE);
    let options = RunnerOptions { threads, validation_max, wait_max, ..RunnerOptions::default() };
    let runner = Runner::new(options).unwrap();
    let pool = runner.pool(&Ask::Check);
    lock(&pool.queue).slow_down(&"db/1".into(), Instant::now());
    let endless = SyncFunction::new("db/1", "(() => { for (;;) {} })()");
    let check = tokio::spawn({
        let runner = runner.clone();
        async move { runner.check_sync(&endless).await }
    });
    let is_busy = |worker: &Arc<Worker>| worker.lane == Lane::Slow && lock(&worker.at).call.is_some();
    until("the slow thread runs", async || lock(&pool.workers).present.iter().any(is_busy)).await;
    let waiting = tokio::spawn({
        let runner = runner.clone();
        async move { runner.check_sync(&SyncFunction::new("db/1", "function () {}")).await }
    });
    until("a call waits", async || lock(&pool.queue).waits(Lane::Slow, Instant::now())).await;
    lock(&pool.queue).forget_slow();
    soon(waiting).await.unwrap().unwrap();
    check.abort();
}

/// One that takes its deadline and its stop back on the page that it shares with the server. That nobody waits is not its database's fault.
#[tokio::test]
async fn a_process_cannot_undo_its_stop() {
    let runner = Runner::new(RunnerOptions { threads: 1, wait_max: PATIENCE, ..RunnerOptions::default() }).unwrap();
    let pool = runner.pool(&Ask::Check);
    let asked = tokio::spawn({
        let runner = runner.clone();
        async move {
            let (design, ask) = (Design::new("db/1", "function () {}"), Ask::Probe { input: "undo".to_owned() });
            runner.run(&design, runner.caller(), ask, 10 * PATIENCE).await.map(drop)
        }
    });
    let has_undone = |worker: &Arc<Worker>| {
        let at = lock(&worker.at);
        let stop = at.call.as_ref().map(|call| lock(&call.state.stop));
        let clock = stop.as_ref().and_then(|stop| stop.clock.as_ref());
        clock.is_some_and(|clock| clock.until() > Duration::from_secs(1 << 40))
    };
    until("it runs", async || lock(&pool.workers).present.iter().any(has_undone)).await;
    asked.abort();
    assert!(asked.await.is_err());
    let killed = |cause: KillCause| runner.figures().function_processes_killed.of(cause).get();
    until("it is killed", async || killed(KillCause::Stopped) == 1).await;
    assert_eq!(killed(KillCause::Deadline), 0);
}
