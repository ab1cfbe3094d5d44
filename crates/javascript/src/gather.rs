//! Writes of a database that come while its sync function is asked about others: they are asked about together, in one call
//! of a thread. To hand a call over and its answer back takes as long as a small function does.
//!
//! Whoever comes while none is under way is asked about at once. All that come meanwhile wait, and are the next call; who
//! waits for longer than [`PATIENCE`] goes by itself, on another thread if there is one, so that a function that takes long
//! runs as if nobody gathered. What waits lies in the request that brought it, and goes when that goes.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::ask::RoutedPart;
use crate::error::{Error, Result};
use crate::runner::Runner;
use crate::sync::{Routed, SyncFunction, SyncWrite};

/// Writes of one call.
const TOGETHER_MAX: usize = 32;

/// Texts of a write that waits for others, in bytes: those of a call are there until it ends, whoever has gone.
const SMALL_BYTES: usize = 8_000;

/// After this time a write goes by itself: what is asked before it takes long.
const PATIENCE: Duration = Duration::from_millis(5);

/// The writes of a function that wait for its answer to others.
#[derive(Debug, Default)]
pub(crate) struct Gather(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_under_way: bool,
    /// By number.
    waiting: VecDeque<Waiting>,
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    write: SyncWrite,
    reply: oneshot::Sender<Reply>,
}

#[derive(Debug, Clone)]
enum Reply {
    Said(Result<Routed>),
    /// To be asked about by itself.
    Alone(SyncWrite),
}

impl Gather {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a write wait for its answer. Given back, it is to be asked about at once: no call is under way before it.
    fn enter(&self, write: SyncWrite) -> std::result::Result<(Ticket<'_>, oneshot::Receiver<Reply>), SyncWrite> {
        let mut state = self.state();
        if !state.is_under_way {
            state.is_under_way = true;
            return Err(write);
        }
        let (reply, answer) = oneshot::channel();
        let number = state.next;
        state.next += 1;
        state.waiting.push_back(Waiting { number, write, reply });
        Ok((Ticket { gather: self, number }, answer))
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
        state.is_under_way = runtime.is_some();
        drop(state);
        if let Some(runtime) = runtime {
            let next = Turn { runner: self.runner.clone(), function: self.function.clone(), has_begun: false };
            runtime.spawn(next.run());
        }
    }
}

impl Turn {
    /// Asks about those who wait.
    async fn run(mut self) {
        self.has_begun = true;
        let (replies, writes): (Vec<oneshot::Sender<Reply>>, VecDeque<_>) = {
            let mut state = self.function.gather.state();
            let many = state.waiting.len().min(TOGETHER_MAX);
            state.waiting.drain(..many).map(|waiting| (waiting.reply, waiting.write)).unzip()
        };
        // Whoever has gone needs no answer.
        let said = match self.runner.route_some(&self.function, writes).await {
            Ok(RoutedPart { routed, rest }) => {
                let routed = routed.into_iter().map(Reply::Said);
                routed.chain(rest.into_iter().map(Reply::Alone)).collect()
            }
            Err(error) => vec![Reply::Said(Err(error)); replies.len()],
        };
        for (waiting, reply) in replies.into_iter().zip(said) {
            drop(waiting.send(reply));
        }
    }
}

/// A write's place among those who wait; given up with its request.
struct Ticket<'a> {
    gather: &'a Gather,
    number: u64,
}

impl Ticket<'_> {
    fn leave(&self) -> Option<SyncWrite> {
        let mut state = self.gather.state();
        let at = state.waiting.binary_search_by_key(&self.number, |waiting| waiting.number).ok()?;
        state.waiting.remove(at).map(|waiting| waiting.write)
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        drop(self.leave());
    }
}

impl Runner {
    /// Asks a sync function about a write, with others of its database if there are any: where a thread has to be given up, those
    /// have no answer either.
    ///
    /// # Errors
    /// Those of [`Runner::check_sync`]. What the function itself refuses is an answer.
    pub async fn route(&self, function: &SyncFunction, write: SyncWrite) -> Result<Routed> {
        if !write.is_small() {
            return self.route_alone(function, write).await;
        }
        let (ticket, mut answer) = match function.gather.enter(write) {
            Ok(waits) => waits,
            Err(write) => {
                let _turn = Turn { runner: self.clone(), function: function.clone(), has_begun: true };
                return self.route_alone(function, write).await;
            }
        };
        loop {
            match tokio::time::timeout(PATIENCE, &mut answer).await {
                Ok(Ok(Reply::Said(said))) => return said,
                Ok(Ok(Reply::Alone(write))) => return self.route_alone(function, write).await,
                // Its call was ended with the runtime.
                Ok(Err(_)) => return Err(Error::OutOfResources),
                Err(_) => {
                    if let Some(write) = ticket.leave() {
                        return self.route_alone(function, write).await;
                    }
                }
            }
        }
    }

    async fn route_alone(&self, function: &SyncFunction, write: SyncWrite) -> Result<Routed> {
        self.route_all(function, vec![write]).await.pop().unwrap_or(Err(Error::OutOfResources))
    }
}
