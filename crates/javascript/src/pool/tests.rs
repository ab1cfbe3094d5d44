use flatbed_testkit::{PATIENCE, soon, until};

use super::*;
use crate::{Runner, RunnerOptions, SyncFunction};

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
