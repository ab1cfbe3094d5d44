//! The crate's tests, one program: linking takes longer than compiling them. What needs a process of its own
//! is a program beside this one and says why.

mod depth;
mod functions;
mod isolation;
mod patterns;
mod render;
mod sync;
mod transform;
mod views;

use flatbed_javascript::RunnerOptions;
use flatbed_testkit::PATIENCE;

/// Options with times that no call of a test needs, however slow the machine is.
fn patient() -> RunnerOptions {
    let (validation_max, batch_max) = (10 * PATIENCE, 10 * PATIENCE);
    RunnerOptions { wait_max: PATIENCE, validation_max, batch_max, ..RunnerOptions::default() }
}
