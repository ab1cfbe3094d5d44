use std::io::Write;
#[cfg(target_os = "linux")]
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use flatbed_testkit::{PATIENCE, soon, until, until_some};

use super::Process;
use crate::clock::now;
use crate::engine_request::{Answer, EngineRequest};
use crate::message::{Output, Reply, write_call, write_clear};
use crate::wire::Frame;
use crate::{Design, Error, KillCause, Result, Runner, RunnerOptions};

async fn probe(runner: &Runner, what: &str) -> Result<String> {
    let design = Design::new("db/1", "function () {}");
    let ask = EngineRequest::Probe { input: what.to_owned() };
    match soon(runner.run(&design, runner.caller(), ask, PATIENCE)).await? {
        Answer::Text(text) => Ok(text),
        _ => panic!("no text"),
    }
}

fn runner() -> Runner {
    let (wait_max, memory_max) = (PATIENCE, 16 << 20);
    Runner::new(RunnerOptions { threads: 1, wait_max, memory_max, ..RunnerOptions::default() }).unwrap()
}

/// The probes stand for a function that has taken over its engine.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[tokio::test]
async fn a_process_reaches_nothing() {
    let runner = runner();
    if !std::path::Path::new("/proc/sys/kernel/seccomp/actions_avail").exists() {
        println!("not tested: the kernel has no filters of system calls");
        return;
    }
    assert_eq!(probe(&runner, "filter").await.as_deref(), Ok("some"));
    for what in ["open", "write", "socket", "udp", "thread", "exec", "kill", "code"] {
        assert_eq!(probe(&runner, what).await.as_deref(), Ok("PermissionDenied"), "{what}");
    }
    assert_eq!(probe(&runner, "environment").await.as_deref(), Ok("[\"FLATBED_FUNCTIONS_PROCESS\"]"));
    assert_eq!(runner.figures().function_processes_killed.of(KillCause::Died).get(), 0);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_process_inherits_no_descriptor() {
    let file = std::fs::File::open("/dev/null").unwrap();
    // The standard library opens only descriptors that are not inherited; C libraries may open others.
    // SAFETY: it takes a number, and no other code has the new descriptor.
    let inherited = unsafe { OwnedFd::from_raw_fd(libc::dup(file.as_raw_fd())) };
    let runner = runner();
    assert_eq!(probe(&runner, "descriptors").await.as_deref(), Ok("[0, 1, 2]"));
    drop(inherited);
}

#[tokio::test]
async fn a_process_that_ends_costs_its_own_call_alone() {
    let runner = runner();
    // More memory than the limit, and an abort.
    for (deaths, what) in (1..).zip(["memory", "abort", "memory"]) {
        assert_eq!(probe(&runner, what).await, Err(Error::OutOfResources), "{what}");
        assert_eq!(runner.figures().function_processes_killed.of(KillCause::Died).get(), deaths);
        assert_eq!(probe(&runner, "nothing").await.as_deref(), Ok("what?"));
    }
}

#[tokio::test]
async fn what_is_no_reply_costs_its_own_call_alone() {
    let runner = runner();
    // An empty frame, one that claims 4 GB, and two at once.
    for (killed, what) in (1..).zip(["frame: ", "frame: 255 255 255 255", "frames: 0 9"]) {
        assert_eq!(probe(&runner, what).await, Err(Error::OutOfResources), "{what}");
        assert_eq!(runner.figures().function_processes_killed.of(KillCause::Malformed).get(), killed, "{what}");
        assert_eq!(probe(&runner, "nothing").await.as_deref(), Ok("what?"));
    }
}

#[tokio::test]
async fn a_process_that_does_not_reply_is_killed() {
    let validation_max = Duration::from_secs(2);
    let options = RunnerOptions { threads: 1, wait_max: PATIENCE, validation_max, ..RunnerOptions::default() };
    let runner = Runner::new(options).unwrap();
    let design = Design::new("db/1", "function () {}");
    for (killed, what) in (1..).zip(["silence", "piece"]) {
        // A busy machine may stop the engine before it exists.
        until(what, async || {
            let ask = EngineRequest::Probe { input: what.to_owned() };
            let answer = soon(runner.run(&design, runner.caller(), ask, validation_max)).await.map(drop);
            assert!(matches!(answer, Err(Error::TimedOut(_) | Error::Busy)), "{what}: {answer:?}");
            runner.figures().function_processes_killed.of(KillCause::Deadline).get() == killed
        })
        .await;
    }
    assert_eq!(probe(&runner, "nothing").await.as_deref(), Ok("what?"));
}

#[tokio::test]
async fn a_process_cannot_undo_its_deadline() {
    let runner = runner();
    let design = Design::new("db/1", "function () {}");
    let time = Duration::from_secs(2);
    until("its deadline holds", async || {
        let ask = EngineRequest::Probe { input: "undo".to_owned() };
        let answer = soon(runner.run(&design, runner.caller(), ask, time)).await.map(drop);
        assert!(matches!(answer, Err(Error::TimedOut(_) | Error::Busy)), "{answer:?}");
        runner.figures().function_processes_killed.of(KillCause::Deadline).get() == 1
    })
    .await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_call_without_the_processor_is_not_to_blame() {
    let runner = runner();
    let (design, ask) = (Design::new("db/1", "function () {}"), EngineRequest::Probe { input: "idle".to_owned() });
    let answer = soon(runner.run(&design, runner.caller(), ask, Duration::from_secs(2))).await.map(drop);
    assert_eq!(answer, Err(Error::Busy));
    let killed = runner.figures().function_processes_killed.of(KillCause::Deadline);
    until("its process is killed", async || killed.get() == 1).await;
}

/// As under a quota of a seventh of a processor: no call has the processor for half of its time.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_function_that_never_ends_is_to_blame_under_a_small_quota() {
    let runner = runner();
    let time = Duration::from_millis(800);
    let answer_of = async |design: &Design| {
        let ask = EngineRequest::Probe { input: "seldom".to_owned() };
        soon(runner.run(design, runner.caller(), ask, time)).await.map(drop)
    };
    let design = Design::new("db/1", "function () {}");
    assert_eq!(answer_of(&design).await, Err(Error::Busy));
    let look = async || answer_of(&design).await.err().filter(|error| *error != Error::Busy);
    assert_eq!(until_some("the calls have used the time of one", look).await, Error::TimedOut(time));
    assert_eq!(answer_of(&Design::new("db/2", "function () {}")).await, Err(Error::Busy));
}

/// An idle thread drops its engines; a call may follow at once.
#[test]
fn a_call_may_come_right_behind_the_word_to_drop_engines() {
    let runner = runner();
    let mut process = runner.nursery().take().unwrap();
    for _ in 0..3 {
        let (clock, number) = process.begin();
        let late = now() + 2 * PATIENCE;
        clock.set(late);
        let ask = EngineRequest::Probe { input: "nothing".to_owned() };
        let (mut clear, mut call) = (Frame::begin(Vec::new()), Frame::begin(Vec::new()));
        write_clear(&mut clear);
        write_call(&mut call, number, (&[], 1), Some("function () {}"), &ask);
        let both = [clear.end().unwrap(), call.end().unwrap()].concat();
        let Process { socket, .. } = &mut process;
        socket.write_all(&both).unwrap();
        let reply = process.receive(&ask, &mut || now() > late).unwrap();
        let Reply::Done { result, .. } = reply else { panic!("no answer") };
        assert_eq!(result, Ok(Output::Text("what?".to_owned())));
    }
}

#[tokio::test]
async fn a_killed_process_gives_its_memory_back() {
    let (wait_max, batch_max) = (PATIENCE, Duration::from_secs(2));
    let runner = Runner::new(RunnerOptions { threads: 1, wait_max, batch_max, ..RunnerOptions::default() }).unwrap();
    let function = r"function (doc) { var a = new Float64Array(5000000); ('a' + '\\u0301\\u0316'.repeat(150000)).normalize('NFC'); }";
    let design = Design::new("db/1", format!(r#"{{"filters":{{"f":"{function}"}}}}"#));
    let killed = |runner: &Runner| runner.figures().function_processes_killed.of(KillCause::Deadline).get();
    let calls = tokio::spawn({
        let runner = runner.clone();
        async move {
            // A busy machine may stop a call before it has memory, or before the kill.
            loop {
                let answer = soon(runner.filter(&design, runner.caller(), "f", &[b"{}"], "{}")).await;
                assert!(matches!(answer, Err(Error::TimedOut(_) | Error::Busy)), "{answer:?}");
            }
        }
    });
    until("it has much", async || runner.nursery().counted() > 30 << 20).await;
    until("one is killed", async || killed(&runner) > 0).await;
    assert!(!calls.is_finished());
    calls.abort();
    until("it has nothing", async || runner.nursery().counted() < 1 << 20).await;
}
