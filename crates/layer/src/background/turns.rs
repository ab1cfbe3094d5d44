//! The slices that a process works in, and those that wait until it has time for them.
//!
//! They are looked at again while others are being worked in, so that what takes long holds up what comes later for a turn at
//! most, and only where all that a process does at once takes long.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use flatbed_jobs::{Backoff, Claim, try_lead};
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::background::list::{self, Entry, Found};
use crate::background::slice::Slice;
use crate::background::{Worker, drawn};
use crate::error::Result;
use crate::lease::RootLeases;

/// See the module.
pub(super) struct Turns<'a> {
    worker: &'a Worker,
    leases: Arc<RootLeases>,
    /// In the order in which it was seen that they have something due.
    waiting: VecDeque<Waiting>,
    under_way: FuturesUnordered<BoxFuture<'a, u8>>,
    /// Those that are under way.
    slices: HashMap<u8, Arc<Slice>>,
    /// Something came when its slice was about to end: it is to be looked again.
    pub(super) came_late: bool,
    /// As of the last look, something is due in slices that other processes work in.
    pub(super) is_left: bool,
}

/// A slice that nobody works in.
struct Waiting {
    slice: u8,
    claim: Arc<Claim>,
    entries: Vec<Entry>,
}

impl<'a> Turns<'a> {
    pub(super) fn new(worker: &'a Worker) -> Turns<'a> {
        let leases = Arc::new(RootLeases(worker.layer.inner.clone()));
        let (waiting, under_way, slices) = Default::default();
        Turns { worker, leases, waiting, under_way, slices, came_late: false, is_left: false }
    }

    /// Looks at what is due. What is due in a slice that is under way is done there.
    pub(super) async fn look(&mut self) -> Result<()> {
        let (worker, inner) = (self.worker, &self.worker.layer.inner);
        list::write_noted(inner).await?;
        let Found { slices: found, leases } = list::look(inner, worker.options.ahead, drawn()).await?;
        let now = inner.clock.now();
        let mut claims = worker.claims.lock().unwrap_or_else(PoisonError::into_inner);
        // Of each that has a lease it is known how long that has stood still: where much is due not all of it is seen each time.
        claims.retain(|slice, _| found.contains_key(slice) || leases.contains_key(slice));
        for slice in found.keys().chain(leases.keys()) {
            let new = || Arc::new(Claim::new(worker.owner, worker.options.silence_max, &inner.clock));
            claims.entry(*slice).or_insert_with(new).note(leases.get(slice).cloned(), now);
        }
        (self.is_left, self.came_late) = (false, false);
        for (slice, entries) in found {
            let at = self.waiting.iter().position(|waiting| waiting.slice == slice);
            if let Some(slice) = self.slices.get(&slice) {
                slice.add(entries);
            } else if let Some(claim) = claims.get(&slice).filter(|claim| claim.may_be_taken(now)) {
                let waiting = Waiting { slice, claim: Arc::clone(claim), entries };
                match at.and_then(|at| self.waiting.get_mut(at)) {
                    Some(place) => *place = waiting,
                    None => self.waiting.push_back(waiting),
                }
            } else {
                at.map(|at| self.waiting.remove(at));
                self.is_left = true;
            }
        }
        Ok(())
    }

    /// Begins those for which there is time.
    pub(super) fn begin(&mut self) {
        let worker = self.worker;
        while self.slices.len() < worker.options.slices_max
            && !worker.is_ending()
            && let Some(Waiting { slice, claim, entries }) = self.waiting.pop_front()
        {
            let work = Arc::new(Slice::new(worker, slice, entries));
            self.slices.insert(slice, Arc::clone(&work));
            let leases = Arc::clone(&self.leases);
            let backoff = Backoff { first: worker.options.look_every, max: worker.options.look_every };
            self.under_way.push(Box::pin(async move {
                try_lead(&work, &claim, &leases, &backoff).await;
                slice
            }));
        }
        worker.are_some_waiting.store(self.has_waiting(), Ordering::Relaxed);
    }

    /// Whether some have to wait.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether none is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.slices.is_empty()
    }

    /// Waits until one has ended: pieces of work that were done in it, or have come further. `None`: none is under way.
    pub(super) async fn ended(&mut self) -> Option<u64> {
        let slice = self.under_way.next().await?;
        let slice = self.slices.remove(&slice)?;
        self.came_late |= slice.came_late();
        Some(slice.done())
    }
}
