//! The slices that a process works in, and those that wait for it.
//!
//! The list is read again while slices are running, so that a slow slice delays a new one by one turn at most, and only
//! if all concurrent slices are slow.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use flatbed_jobs::{Backoff, Claim, try_lead};
use flatbed_store::due::DueKind;
use flatbed_store::error::Result;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::background::list::{self, DueEntry, DueWork};
use crate::background::slice::Slice;
use crate::background::{Worker, drawn};
use crate::lease::RootLeases;

/// See the module.
pub(super) struct Turns<'a> {
    worker: &'a Worker,
    leases: Arc<RootLeases>,
    /// In the order in which their due work was seen.
    waiting: VecDeque<WaitingSlice>,
    under_way: FuturesUnordered<BoxFuture<'a, u8>>,
    slices: HashMap<u8, Arc<Slice>>,
    /// True if work arrived while its slice was ending: the list must be read again.
    pub(super) came_late: bool,
    /// True if the last read found due work in slices of other processes.
    pub(super) is_left: bool,
}

struct WaitingSlice {
    slice: u8,
    claim: Arc<Claim>,
    entries: Vec<DueEntry>,
}

impl<'a> Turns<'a> {
    pub(super) fn new(worker: &'a Worker) -> Turns<'a> {
        let leases = Arc::new(RootLeases(worker.layer.inner.clone()));
        let (waiting, under_way, slices) = Default::default();
        Turns { worker, leases, waiting, under_way, slices, came_late: false, is_left: false }
    }

    /// Reads the due work. Work in a running slice is added to it.
    pub(super) async fn read_due(&mut self) -> Result<()> {
        let (worker, inner) = (self.worker, &self.worker.layer.inner);
        list::write_noted(inner).await?;
        let first = drawn();
        let DueWork { slices: mut found, leases, .. } = list::look(inner, worker.options.ahead, first).await?;
        let now = inner.clock.now();
        let mut claims = worker.claims.lock().unwrap_or_else(PoisonError::into_inner);
        // Claims of slices with a lease are kept, with the time of its last renewal: beyond the limit a read does not
        // see all slices.
        claims.retain(|slice, _| found.contains_key(slice) || leases.contains_key(slice));
        for slice in found.keys().chain(leases.keys()) {
            let new = || Arc::new(Claim::new(worker.owner, worker.options.silence_max, &inner.clock));
            claims.entry(*slice).or_insert_with(new).note(leases.get(slice).cloned(), now);
        }
        (self.is_left, self.came_late) = (false, false);
        // Each look begins at another slice, so that not all processes try the same ones.
        let behind = found.split_off(&first);
        for (slice, entries) in behind.into_iter().chain(found) {
            let at = self.waiting.iter().position(|waiting| waiting.slice == slice);
            if let Some(slice) = self.slices.get(&slice) {
                slice.add(entries);
            } else if let Some(claim) = claims.get(&slice).filter(|claim| claim.may_be_taken(now)) {
                let waiting = WaitingSlice { slice, claim: Arc::clone(claim), entries };
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

    pub(super) fn begin(&mut self) {
        let worker = self.worker;
        while !worker.is_ending()
            && let Some(at) = self.next_place()
            && let Some(WaitingSlice { slice, claim, entries }) = self.waiting.remove(at)
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

    /// Returns the place of the waiting slice that may begin. Beyond the limit a slice begins if it has work of a kind
    /// that no running slice has, so that work of one kind does not delay another kind.
    fn next_place(&self) -> Option<usize> {
        let (running, most) = (self.slices.len(), self.worker.options.slices_max);
        if running < most {
            return (!self.waiting.is_empty()).then_some(0);
        }
        if self.waiting.is_empty() || running >= most + DueKind::ALL.len() {
            return None;
        }
        let kinds: HashSet<u64> = self.slices.values().flat_map(|slice| slice.kinds()).collect();
        self.waiting.iter().position(|waiting| waiting.entries.iter().any(|entry| !kinds.contains(&entry.key.kind)))
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.slices.is_empty()
    }

    /// Waits until a slice has ended, and returns its number of tasks that were done or have made progress. `None`: no
    /// slice is running.
    pub(super) async fn ended(&mut self) -> Option<u64> {
        let slice = self.under_way.next().await?;
        let slice = self.slices.remove(&slice)?;
        self.came_late |= slice.has_late_work();
        Some(slice.done())
    }
}
