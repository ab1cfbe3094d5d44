use super::*;
use crate::{Runner, RunnerOptions, SyncFunction};

/// Far more than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

async fn until(mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
}

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
    until(|| lock(&pool.workers).present.iter().any(is_busy)).await;
    let waiting = tokio::spawn({
        let runner = runner.clone();
        async move { runner.check_sync(&SyncFunction::new("db/1", "function () {}")).await }
    });
    until(|| lock(&pool.queue).waits(Lane::Slow, Instant::now())).await;
    lock(&pool.queue).forget_slow();
    waiting.await.unwrap().unwrap();
    check.abort();
}
