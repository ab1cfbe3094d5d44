//! The integration tests of the crate as one program, because linking takes longer than compiling. Tests that need
//! their own process are separate programs and say why.

mod depth;
mod functions;
mod isolation;
mod patterns;
mod render;
mod sync;
mod transform;
mod validations;
mod views;

use flatbed_javascript::{KillCause, Runner, RunnerOptions};
use flatbed_testkit::PATIENCE;

/// Returns options with time limits that no test reaches, however slow the machine is.
fn patient() -> RunnerOptions {
    let (validation_max, batch_max) = (10 * PATIENCE, 10 * PATIENCE);
    RunnerOptions { wait_max: PATIENCE, validation_max, batch_max, ..RunnerOptions::default() }
}

/// Returns whether a call ends without its process being killed. A process that ignores its deadline is killed in each
/// attempt; on a slow machine a cooperative process may be killed once, if a step between two clock checks takes long.
async fn listens(runner: &Runner, mut call: impl AsyncFnMut()) -> bool {
    let killed = || runner.figures().function_processes_killed.of(KillCause::Deadline).get();
    for _ in 0..10 {
        let before = killed();
        call().await;
        if killed() == before {
            return true;
        }
    }
    false
}
