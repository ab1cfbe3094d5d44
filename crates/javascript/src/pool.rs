//! The threads that functions run on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::Design;
use crate::error::{Error, Result};
use crate::machine::Machine;

/// Calls that wait for a thread; further ones wait to be let in.
const WAITING_MAX: usize = 64;

/// A call that has not been let in for this long is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Design documents that a thread keeps loaded.
const LOADED_MAX: usize = 16;

/// Stack of a thread: what the functions may use, and what parsing and calling need around them.
const THREAD_STACK_BYTES: usize = 4 * 1024 * 1024;

struct Job {
    design: Design,
    kind: &'static str,
    path: String,
    input: String,
    time_max: Duration,
    answer: oneshot::Sender<Result<String>>,
}

/// Runs functions of design documents on threads of its own, which end with it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Runner {
    jobs: mpsc::Sender<Job>,
}

impl Runner {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn new(threads: usize) -> std::io::Result<Runner> {
        let (jobs, waiting) = mpsc::channel(WAITING_MAX);
        let waiting = Arc::new(Mutex::new(waiting));
        for number in 0..threads.max(1) {
            let waiting = waiting.clone();
            std::thread::Builder::new()
                .name(format!("javascript-{number}"))
                .stack_size(THREAD_STACK_BYTES)
                .spawn(move || work(&waiting))?;
        }
        Ok(Runner { jobs })
    }

    pub(crate) async fn run(
        &self,
        design: Design,
        kind: &'static str,
        path: String,
        input: String,
        time_max: Duration,
    ) -> Result<String> {
        let (answer, answered) = oneshot::channel();
        let job = Job { design, kind, path, input, time_max, answer };
        self.jobs.send_timeout(job, PATIENCE).await.map_err(|_| Error::Busy)?;
        // A thread that is gone drops the job.
        answered.await.unwrap_or(Err(Error::OutOfResources))
    }
}

fn work(waiting: &Mutex<mpsc::Receiver<Job>>) {
    // The one used last is the last.
    let mut loaded: Vec<(Design, Machine)> = Vec::new();
    loop {
        // One thread waits, the others wait for it to have got a job.
        let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
        let Some(Job { design, kind, path, input, time_max, answer }) = job else { return };
        // Who has gone away in the meantime wants nothing run.
        if answer.is_closed() {
            continue;
        }
        let _ = answer.send(call(&mut loaded, design, kind, &path, &input, time_max));
    }
}

fn call(
    loaded: &mut Vec<(Design, Machine)>,
    design: Design,
    kind: &str,
    path: &str,
    input: &str,
    time_max: Duration,
) -> Result<String> {
    let place = loaded.iter().position(|(known, _)| *known == design);
    let machine = match place {
        Some(place) => loaded.remove(place).1,
        None => Machine::new(design.text(), time_max)?,
    };
    let answer = machine.call(kind, path, input, time_max);
    // A runtime that was stopped in the middle of something is not used again.
    if answer.is_ok() {
        loaded.push((design, machine));
        if loaded.len() > LOADED_MAX {
            loaded.remove(0);
        }
    }
    answer
}
