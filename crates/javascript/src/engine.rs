//! The process of a thread and the engines loaded in it.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, now};
use crate::engine_request::{Answer, EngineRequest};
use crate::error::{Error, Result};
use crate::figures::KillCause;
use crate::machine::MachineKind;
use crate::memory::SHARE_BYTES;
use crate::message::{Output, Reply, write_call, write_clear};
use crate::nursery::Nursery;
use crate::process::Process;
use crate::thread::Thread;
use crate::wire::{Frame, FrameError};
use crate::{Caller, Design};

/// An engine that holds more memory after its call is dropped.
pub(crate) const KEPT_BYTES_MAX: usize = 2 * SHARE_BYTES;

/// The time that a call has to stop after its deadline or a stop. After that its process is killed.
const GRACE: Duration = Duration::from_millis(300);

/// The same time for a call that got no processor time.
pub(crate) const STUCK: Duration = Duration::from_secs(5);

/// The number of calls after which a process is replaced. This bounds the lifetime of damage by a function.
const CALLS_MAX: u64 = 10_000;

/// The most spare processes that are tried for one call.
const TAKEN_MAX: usize = 8;

/// The process of one thread. It has none before its first call, after a kill, and after long idleness.
pub(crate) struct Engine {
    nursery: Arc<Nursery>,
    process: Option<Process>,
    loaded: LoadedEngines,
    /// True if the process must end after this call.
    is_spent: bool,
    /// The niceness of the process relative to the server.
    niceness: i32,
}

pub(crate) struct StartedCall<'e> {
    engine: &'e mut Engine,
    pub(crate) clock: Clock,
    number: u64,
}

pub(crate) struct CallTerms<'t> {
    pub(crate) design: &'t Design,
    pub(crate) caller: Caller,
    pub(crate) loaded_max: usize,
    pub(crate) step_max: Duration,
    pub(crate) time_max: Duration,
}

pub(crate) struct CallOutcome {
    pub(crate) result: Result<Answer>,
    /// Why the process must be killed. The engine kills it when it ends the process.
    pub(crate) killed: Option<KillCause>,
    /// The processor time of the call; for a list, since its last page.
    pub(crate) ran: Duration,
}

/// The server's view of a call while it runs. It does not rely on the process, which can write anything to the shared
/// page.
pub(crate) struct CallEnvironment<'o> {
    pub(crate) is_closed: &'o dyn Fn() -> bool,
    pub(crate) is_stopped: &'o dyn Fn() -> bool,
    /// Called with true when a list starts to wait for its caller, and with false when it stops waiting.
    pub(crate) waits: &'o dyn Fn(bool),
}

impl Engine {
    pub(crate) fn new(nursery: Arc<Nursery>, niceness: i32) -> Engine {
        Engine { nursery, process: None, loaded: LoadedEngines::default(), is_spent: false, niceness }
    }

    pub(crate) fn begin(&mut self) -> Option<StartedCall<'_>> {
        if !self.process.as_ref().is_some_and(|process| process.calls() < CALLS_MAX && process.is_ready()) {
            self.end();
            // The system may have killed a spare process, for example when memory was short.
            let process = std::iter::from_fn(|| self.nursery.take()).take(TAKEN_MAX).find(Process::is_ready)?;
            if self.niceness > 0 {
                process.processor().lower(self.niceness);
            }
            self.process = Some(process);
        }
        let (clock, number) = self.process.as_mut()?.begin();
        self.nursery.figures.function_calls.add(1);
        Some(StartedCall { engine: self, clock, number })
    }

    pub(crate) fn clear(&mut self) {
        if self.loaded.is_empty() {
            return;
        }
        self.loaded = LoadedEngines { next_slot: self.loaded.next_slot, ..LoadedEngines::default() };
        let sent = self.process.as_mut().map(|process| process.send(write_clear, &mut || true));
        if sent.is_some_and(|sent| sent.is_err()) {
            self.end();
        }
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.is_spent
    }

    pub(crate) fn end(&mut self) {
        self.is_spent = false;
        self.process = None;
        self.loaded = LoadedEngines::default();
    }
}

impl StartedCall<'_> {
    pub(crate) fn processor(&self) -> Option<Thread> {
        self.engine.process.as_ref().map(|process| process.processor().clone())
    }

    pub(crate) fn run(self, ask: EngineRequest, terms: &CallTerms<'_>, outside: &CallEnvironment<'_>) -> CallOutcome {
        let processor = self.processor();
        let ran = || processor.as_ref().map_or(Duration::ZERO, Thread::ran);
        let ran_before = Cell::new(ran());
        let (result, killed) = self.answer(ask, terms, outside, &|| ran_before.set(ran()));
        CallOutcome { result, killed, ran: ran().saturating_sub(ran_before.get()) }
    }

    /// Runs the call. `goes_on` is called when a list gets its next page, which restarts its time.
    fn answer(
        self,
        mut ask: EngineRequest,
        terms: &CallTerms<'_>,
        outside: &CallEnvironment<'_>,
        goes_on: &dyn Fn(),
    ) -> (Result<Answer>, Option<KillCause>) {
        let StartedCall { engine, clock, number } = self;
        let Engine { process, loaded, is_spent, .. } = engine;
        let Some(process) = process else { return (Err(Error::OutOfResources), None) };
        let CallTerms { design, caller, loaded_max, step_max, time_max } = *terms;
        let part = ask.part();
        let began = now();
        clock.set(began + step_max);
        let (slot, was_used) = loaded.take(caller, design, part, ask.wants_fresh());
        let dropped = std::mem::take(&mut loaded.dropped);
        let text = (!was_used).then(|| design.text());
        // For several writes the process moves the deadline; otherwise the server does.
        let last = Cell::new(began + if ask.moves_deadline() { time_max } else { step_max });
        let stopped = Cell::new(None);
        let mut watch = DeadlineWatch { clock: &clock, last: &last, stopped: &stopped, ran: None };
        let processor = process.processor().clone();
        let mut is_late = || (outside.is_closed)() || watch.is_late((outside.is_stopped)(), &processor);
        let write = |frame: &mut Frame| write_call(frame, number, (&dropped, slot), text, &ask);
        let mut sent = process.send(write, &mut is_late);
        let broken = loop {
            match sent.and_then(|()| process.receive(&ask, &mut is_late)) {
                Ok(Reply::Done { is_kept, is_last, result }) => {
                    *is_spent = is_last;
                    if is_kept {
                        loaded.keep(design, part, slot, loaded_max);
                    }
                    if let (EngineRequest::List { link, .. }, Ok(Output::Text(_))) = (&ask, &result) {
                        link.end();
                    }
                    match result.map(|output| ask.answer(output, was_used)) {
                        Ok(Some(answer)) => return (Ok(answer), None),
                        Err(error) => return (Err(error), None),
                        Ok(None) => return (Err(Error::OutOfResources), Some(KillCause::Malformed)),
                    }
                }
                Ok(Reply::Exchange(part)) => {
                    let EngineRequest::List { link, .. } = &mut ask else { break FrameError::Malformed };
                    let (page, until) = link.exchange(part, &clock, outside.is_stopped, outside.waits);
                    last.set(until);
                    goes_on();
                    sent = process.send(|frame| page.write(frame), &mut is_late);
                }
                Err(broken) => break broken,
            }
        };
        let (cause, error) = match broken {
            FrameError::Late if stopped.get().is_some_and(|since| since < last.get()) => {
                (KillCause::Stopped, Error::TimedOut(step_max))
            }
            FrameError::Late => (KillCause::Deadline, Error::TimedOut(step_max)),
            FrameError::Malformed => (KillCause::Malformed, Error::OutOfResources),
            // `SIGKILL` by the system is not the input's fault. Other deaths come from the process's own limits.
            FrameError::Gone if process.was_killed() => (KillCause::Died, Error::Busy),
            FrameError::Gone => (KillCause::Died, Error::OutOfResources),
        };
        (ask.lost(clock.finished(), was_used, error), Some(cause))
    }
}

/// Detects that a call did not stop in time.
struct DeadlineWatch<'c> {
    clock: &'c Clock,
    /// The latest deadline that the process may set.
    last: &'c Cell<Duration>,
    /// When the stop was first seen: the caller is gone, or other calls need the thread.
    stopped: &'c Cell<Option<Duration>>,
    /// The processor time of the process when the deadline was first seen to have passed.
    ran: Option<Duration>,
}

impl DeadlineWatch<'_> {
    fn is_late(&mut self, is_stopped: bool, processor: &Thread) -> bool {
        let now = now();
        if is_stopped && self.stopped.get().is_none() {
            self.stopped.set(Some(now));
        }
        let deadline = self.clock.until().min(self.last.get());
        let end = self.stopped.get().map_or(deadline, |since| since.min(deadline));
        if now < end {
            self.ran = None;
            return false;
        }
        let ran = processor.ran();
        let since = ran.saturating_sub(*self.ran.get_or_insert(ran));
        now >= end + GRACE && (since >= GRACE / 2 || now >= end + STUCK)
    }
}

const SHARED_MAX: usize = 4;

struct Slot {
    design: Design,
    part: MachineKind,
    number: u32,
}

/// The engines of a process, as the server knows them. An ordinary engine serves one caller, so that no other caller
/// sees state that a function leaves behind. Engines of sync functions are restored after each call and serve all
/// callers.
#[derive(Default)]
struct LoadedEngines {
    caller: Option<Caller>,
    /// In order of use; the last was used last.
    machines: Vec<Slot>,
    shared: Vec<Slot>,
    dropped: Vec<u32>,
    next_slot: u32,
}

impl LoadedEngines {
    fn take(&mut self, caller: Caller, design: &Design, part: MachineKind, is_fresh: bool) -> (u32, bool) {
        let machines = if part == MachineKind::Sync {
            &mut self.shared
        } else {
            if self.caller != Some(caller) {
                self.dropped.extend(self.machines.drain(..).map(|slot| slot.number));
                self.caller = Some(caller);
            }
            &mut self.machines
        };
        let place = machines.iter().position(|slot| slot.part == part && slot.design == *design);
        if let Some(slot) = place.map(|place| machines.remove(place)) {
            if !is_fresh {
                return (slot.number, true);
            }
            self.dropped.push(slot.number);
        }
        self.next_slot = self.next_slot.wrapping_add(1);
        (self.next_slot, false)
    }

    fn keep(&mut self, design: &Design, part: MachineKind, number: u32, max: usize) {
        let (machines, max) =
            if part == MachineKind::Sync { (&mut self.shared, SHARED_MAX) } else { (&mut self.machines, max) };
        if machines.len() >= max {
            self.dropped.push(machines.remove(0).number);
        }
        machines.push(Slot { design: design.clone(), part, number });
    }

    fn is_empty(&self) -> bool {
        self.machines.is_empty() && self.shared.is_empty()
    }
}
