//! Group calls of sync functions: writes to a database that arrive during a call run together in the next call.
//! Handing over a call and its answer costs as much as a small function.
//!
//! A write that arrives while no call is in progress runs at once. Later writes wait and form the next call. A write
//! runs alone, on another thread if possible, if the current call takes longer than [`PATIENCE`] or fails as a whole,
//! so no write pays for another one. Sync functions leave no state behind, so that a write may run twice. A waiting
//! write is dropped with its request.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::error::{Error, Result};
use crate::runner::Runner;
use crate::sync::{SyncDecision, SyncFunction, SyncWrite};

const TOGETHER_MAX: usize = 32;

/// The largest document text of a write that waits for others, in bytes. A call keeps its texts until it ends, even
/// after the client has gone.
const SMALL_BYTES: usize = 8_000;

/// The longest call that other writes wait for. A group call starts no further write after this time.
const PATIENCE: Duration = Duration::from_millis(5);

/// The longest time that a write waits for others.
const WAIT_MAX: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(crate) struct Gather(Mutex<GatherState>);

#[derive(Debug, Default)]
struct GatherState {
    /// The start of the call in progress.
    since: Option<Instant>,
    waiting: VecDeque<WaitingWrite>,
    next: u64,
}

#[derive(Debug)]
struct WaitingWrite {
    number: u64,
    write: SyncWrite,
    /// Dropped if the call ends before this write.
    reply: oneshot::Sender<Result<SyncDecision>>,
}

enum Admission<'a> {
    /// At once; later writes wait for it.
    First,
    Alone,
    /// With others, in the next call.
    Waits(Ticket<'a>, oneshot::Receiver<Result<SyncDecision>>),
}

impl Gather {
    fn state(&self) -> MutexGuard<'_, GatherState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, write: &SyncWrite) -> Admission<'_> {
        let mut state = self.state();
        match state.since {
            None => {
                state.since = Some(Instant::now());
                Admission::First
            }
            Some(since) if since.elapsed() >= PATIENCE => Admission::Alone,
            Some(_) => {
                let (reply, answer) = oneshot::channel();
                let number = state.next;
                state.next += 1;
                state.waiting.push_back(WaitingWrite { number, write: write.clone(), reply });
                Admission::Waits(Ticket { gather: self, number }, answer)
            }
        }
    }

    /// Returns true if the call in progress is short enough to wait for.
    fn is_brisk(&self) -> bool {
        self.state().since.is_none_or(|since| since.elapsed() < PATIENCE)
    }
}

impl SyncWrite {
    fn is_small(&self) -> bool {
        self.document.len() + self.old.as_ref().map_or(0, String::len) <= SMALL_BYTES
    }
}

/// A call in progress. Its end starts the next one.
struct Turn {
    runner: Runner,
    function: SyncFunction,
    /// False if the task never ran because its runtime ends. Then no next call starts, and the waiting writes run
    /// alone.
    has_begun: bool,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.function.gather.state();
        let runtime = Handle::try_current().ok().filter(|_| self.has_begun && !state.waiting.is_empty());
        state.since = runtime.as_ref().map(|_| Instant::now());
        drop(state);
        if let Some(runtime) = runtime {
            let next = Turn { runner: self.runner.clone(), function: self.function.clone(), has_begun: false };
            runtime.spawn(next.run());
        }
    }
}

impl Turn {
    /// Runs the waiting writes. The call stops when all their requests have gone.
    async fn run(mut self) {
        self.has_begun = true;
        let (mut replies, writes): (Vec<oneshot::Sender<_>>, VecDeque<_>) = {
            let mut state = self.function.gather.state();
            let many = state.waiting.len().min(TOGETHER_MAX);
            state.waiting.drain(..many).map(|waiting| (waiting.reply, waiting.write)).unzip()
        };
        if writes.is_empty() {
            return;
        }
        let all_gone = async {
            for reply in &mut replies {
                reply.closed().await;
            }
        };
        let part = tokio::select! {
            part = self.runner.route_some(&self.function, writes, PATIENCE) => part.ok(),
            () = all_gone => None,
        };
        let routed = part.map(|part| part.answers).unwrap_or_default();
        for (reply, said) in replies.into_iter().zip(routed) {
            drop(reply.send(said));
        }
    }
}

/// The queue position of a write; dropped with its request.
struct Ticket<'a> {
    gather: &'a Gather,
    number: u64,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut state = self.gather.state();
        let at = state.waiting.binary_search_by_key(&self.number, |waiting| waiting.number);
        let left = at.ok().and_then(|at| state.waiting.remove(at));
        drop(state);
        drop(left);
    }
}

impl Runner {
    /// Runs a sync function for a write, together with other writes of its database if there are any.
    ///
    /// # Errors
    /// Those of [`Runner::check_sync`]. A refusal by the function is an `Ok` value.
    pub async fn route(&self, function: &SyncFunction, write: SyncWrite) -> Result<SyncDecision> {
        if !write.is_small() {
            return self.route_alone(function, write).await;
        }
        let gather = &*function.gather;
        match gather.enter(&write) {
            Admission::Alone => {}
            Admission::First => {
                let _turn = Turn { runner: self.clone(), function: function.clone(), has_begun: true };
                return self.route_alone(function, write).await;
            }
            Admission::Waits(_ticket, mut answer) => {
                let begun = Instant::now();
                loop {
                    match tokio::time::timeout(PATIENCE, &mut answer).await {
                        Ok(Ok(said)) => return said,
                        Err(_) if begun.elapsed() < WAIT_MAX && gather.is_brisk() => {}
                        Ok(Err(_)) | Err(_) => break,
                    }
                }
            }
        }
        self.route_alone(function, write).await
    }

    async fn route_alone(&self, function: &SyncFunction, write: SyncWrite) -> Result<SyncDecision> {
        self.route_all(function, vec![write]).await.pop().unwrap_or(Err(Error::OutOfResources))
    }
}
