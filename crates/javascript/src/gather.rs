//! Writes of a database that come while its sync function is asked about others: they are asked about together, in one call
//! of a thread. To hand a call over and its answer back takes as long as a small function does.
//!
//! Whoever comes while none is under way is asked about at once, and all that come meanwhile wait, and are the next call. Nobody
//! pays for another's write: who comes while a call takes longer than [`PATIENCE`], is part of one that does, or of one that
//! fails as a whole, goes by itself, on another thread if there is one. Functions leave nothing behind, so that a
//! write may be asked about twice. What waits goes with the request that brought it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::error::{Error, Result};
use crate::runner::Runner;
use crate::sync::{Routed, SyncFunction, SyncWrite};

/// Writes of one call.
const TOGETHER_MAX: usize = 32;

/// Texts of a write that waits for others, in bytes: those of a call are there until it ends, whoever has gone.
const SMALL_BYTES: usize = 8_000;

/// A call that goes on for longer is waited for by nobody, and one of several writes comes to no further write then.
const PATIENCE: Duration = Duration::from_millis(5);

/// Nor does anybody wait for longer than this, however short the calls are.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// The writes of a function that wait for its answer to others.
#[derive(Debug, Default)]
pub(crate) struct Gather(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Since when a call is under way.
    since: Option<Instant>,
    /// By number.
    waiting: VecDeque<Waiting>,
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    write: SyncWrite,
    /// Dropped, where the call does not come to the write.
    reply: oneshot::Sender<Result<Routed>>,
}

/// How a write is to be asked about.
enum Entered<'a> {
    /// At once, and those who come meanwhile behind it.
    First,
    /// By itself.
    Alone,
    /// With others: it waits.
    Waits(Ticket<'a>, oneshot::Receiver<Result<Routed>>),
}

impl Gather {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, write: &SyncWrite) -> Entered<'_> {
        let mut state = self.state();
        match state.since {
            None => {
                state.since = Some(Instant::now());
                Entered::First
            }
            Some(since) if since.elapsed() >= PATIENCE => Entered::Alone,
            Some(_) => {
                let (reply, answer) = oneshot::channel();
                let number = state.next;
                state.next += 1;
                state.waiting.push_back(Waiting { number, write: write.clone(), reply });
                Entered::Waits(Ticket { gather: self, number }, answer)
            }
        }
    }

    /// Whether the call that is under way is worth waiting for.
    fn is_brisk(&self) -> bool {
        self.state().since.is_none_or(|since| since.elapsed() < PATIENCE)
    }
}

impl SyncWrite {
    fn is_small(&self) -> bool {
        self.document.len() + self.old.as_ref().map_or(0, String::len) <= SMALL_BYTES
    }
}

/// A call under way; at its end the next one begins.
struct Turn {
    runner: Runner,
    function: SyncFunction,
    /// One that never ran begins no other: its runtime ends, and those who wait go by themselves.
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
    /// Asks about the writes that wait. The call is stopped when all their requests have gone.
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
        let routed = part.map(|part| part.routed).unwrap_or_default();
        for (reply, said) in replies.into_iter().zip(routed) {
            drop(reply.send(said));
        }
    }
}

/// A write's place among those who wait; given up with its request.
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
    /// Asks a sync function about a write, with others of its database if there are any.
    ///
    /// # Errors
    /// Those of [`Runner::check_sync`]. What the function itself refuses is an answer.
    pub async fn route(&self, function: &SyncFunction, write: SyncWrite) -> Result<Routed> {
        if !write.is_small() {
            return self.route_alone(function, write).await;
        }
        let gather = &*function.gather;
        match gather.enter(&write) {
            Entered::Alone => {}
            Entered::First => {
                let _turn = Turn { runner: self.clone(), function: function.clone(), has_begun: true };
                return self.route_alone(function, write).await;
            }
            Entered::Waits(_ticket, mut answer) => {
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

    async fn route_alone(&self, function: &SyncFunction, write: SyncWrite) -> Result<Routed> {
        self.route_all(function, vec![write]).await.pop().unwrap_or(Err(Error::OutOfResources))
    }
}
