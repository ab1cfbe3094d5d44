use flatbed_testkit::{PATIENCE, soon, until};

use super::*;
use crate::engine_request::{MappedPart, RoutedPart};
use crate::{Design, Runner, RunnerOptions, SyncFunction};

fn give_reason(result: &mut Result<Answer>, because: &Error) {
    late_errors(result).into_iter().for_each(|error| error.clone_from(because));
}

#[test]
fn a_call_is_to_blame_if_it_has_used_the_processor() {
    let time = Duration::from_secs(5);
    let timed_out = || Error::TimedOut(Duration::ZERO);
    for (is_crowded_out, ran_ms, expected) in [
        (false, 0, Error::Busy),
        (false, 2_499, Error::Busy),
        (false, 2_500, Error::TimedOut(time)),
        (false, 9_000, Error::TimedOut(time)),
        (true, 9_000, Error::Busy),
    ] {
        let because = late_error(is_crowded_out, Duration::from_millis(ran_ms), time);
        assert_eq!(because, expected, "{ran_ms} ms");
        let mut plain = Err(timed_out());
        give_reason(&mut plain, &because);
        assert_eq!(plain.err(), Some(expected.clone()));
        let mapped = |stopped| {
            let (documents, rest, logs) = Default::default();
            Answer::Mapped(MappedPart { documents, stopped: Some(stopped), lost: 0, was_used: false, rest, logs })
        };
        for (stopped, expected) in [(timed_out(), &expected), (Error::OutOfResources, &Error::OutOfResources)] {
            let mut answer = Ok(mapped(stopped));
            give_reason(&mut answer, &because);
            let Ok(Answer::Mapped(part)) = answer else { panic!("no answer") };
            assert_eq!(part.stopped.as_ref(), Some(expected));
        }
        let killed = Some((1, timed_out()));
        let mut answer = Ok(Answer::Routed(RoutedPart { answers: vec![Err(timed_out())], rest: [].into(), killed }));
        give_reason(&mut answer, &because);
        let Ok(Answer::Routed(part)) = answer else { panic!("no answer") };
        assert!(part.answers == [Err(expected.clone())] && part.killed == Some((1, expected)));
    }
}

/// Returns a thread that was put aside and runs a call, which begins now.
fn running(processor: Option<Thread>, is_map: bool) -> Arc<Worker> {
    let (design, state) = (Design::new("db/1", "function () {}"), Arc::default());
    let (began, ran_before, class) = (Instant::now(), Duration::ZERO, CallClass::Unproven);
    let call = RunningCall { design, class, is_map, state, began, processor, ran_before, waits: None };
    let at = Mutex::new(WorkerState { call: Some(call), is_aside: true });
    Arc::new(Worker { lane: Lane::Usual, at })
}

#[test]
fn maps_are_stopped_for_others_before_calls_for_which_clients_wait() {
    let aside = [running(None, false), running(None, true), running(None, false)];
    let stopped = || {
        let is_stopped =
            |worker: &Arc<Worker>| lock(&worker.at).call.as_ref().is_some_and(|call| call.state.is_stopped());
        aside.iter().map(is_stopped).collect::<Vec<_>>()
    };
    crowd_out(&aside, Duration::ZERO);
    assert_eq!(stopped(), [false, true, false]);
    crowd_out(&aside, Duration::ZERO);
    assert_eq!(stopped().iter().filter(|is_stopped| **is_stopped).count(), 2);
}

#[test]
fn a_database_is_slow_if_its_call_has_used_the_processor() {
    let aside = |processor: Option<Thread>| [running(processor, false)];
    let is_stopped = |aside: &[Arc<Worker>]| {
        aside.iter().all(|worker| lock(&worker.at).call.as_ref().is_some_and(|call| call.state.is_stopped()))
    };
    let starved = aside(None);
    assert_eq!(crowd_out(&starved, Duration::ZERO), None);
    assert!(is_stopped(&starved));
    let thread = Thread::current();
    while thread.ran() < LONG {}
    let busy = aside(Some(thread));
    assert_eq!(crowd_out(&busy, Duration::ZERO).as_deref(), Some("db/1"));
    assert!(is_stopped(&busy));
}

/// Idle threads, which wait for an hour here, are woken for calls that may run because time has passed.
#[tokio::test]
async fn what_waits_is_run_when_its_database_is_slow_no_more() {
    let (threads, validation_max, wait_max) = (1, 10 * PATIENCE, PATIENCE);
    let options = RunnerOptions { threads, validation_max, wait_max, ..RunnerOptions::default() };
    let runner = Runner::new(options).unwrap();
    let pool = runner.pool(&EngineRequest::Check);
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

/// The process reverts its deadline and its stop on the shared page. A caller that leaves is not the fault of the
/// database.
#[tokio::test]
async fn a_process_cannot_undo_its_stop() {
    let runner = Runner::new(RunnerOptions { threads: 1, wait_max: PATIENCE, ..RunnerOptions::default() }).unwrap();
    let pool = runner.pool(&EngineRequest::Check);
    let asked = tokio::spawn({
        let runner = runner.clone();
        async move {
            let (design, ask) =
                (Design::new("db/1", "function () {}"), EngineRequest::Probe { input: "undo".to_owned() });
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
