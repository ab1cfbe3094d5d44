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
use flatbed_store::keys::DueKey;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::background::kinds;
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
    /// Work of other processes' slices that this process may take part in.
    shared: Vec<DueEntry>,
    under_way: FuturesUnordered<BoxFuture<'a, Ended>>,
    slices: HashMap<u8, Arc<Slice>>,
    /// The work that this process takes part in.
    helped: Vec<DueKey>,
    /// True if work arrived while its slice was ending: the list must be read again.
    pub(super) came_late: bool,
    /// True if the last read found due work in slices of other processes.
    pub(super) is_left: bool,
}

/// The most work of other processes' slices that this process takes part in at once.
const SHARED_AT_ONCE: usize = 2;

enum Ended {
    Slice(u8),
    /// True if this process has done some of the work.
    Shared(DueKey, bool),
}

struct WaitingSlice {
    slice: u8,
    claim: Arc<Claim>,
    entries: Vec<DueEntry>,
}

impl<'a> Turns<'a> {
    pub(super) fn new(worker: &'a Worker) -> Turns<'a> {
        let leases = Arc::new(RootLeases(worker.layer.inner.clone()));
        let (waiting, shared, under_way, slices, helped) = Default::default();
        Turns { worker, leases, waiting, shared, under_way, slices, helped, came_late: false, is_left: false }
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
        self.shared.clear();
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
                self.shared.extend(entries.into_iter().filter(|entry| kinds::is_shared(entry.key.kind)));
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
                Ended::Slice(slice)
            }));
        }
        while self.helped.len() < SHARED_AT_ONCE
            && !worker.is_ending()
            && let Some(entry) = self.shared.pop()
        {
            if self.helped.contains(&entry.key) {
                continue;
            }
            self.helped.push(entry.key.clone());
            self.under_way.push(Box::pin(help(worker, entry)));
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
        self.under_way.is_empty()
    }

    /// Waits until a slice has ended, or this process's part in shared work, and returns its number of tasks that were
    /// done or have made progress. `None`: nothing is running.
    pub(super) async fn ended(&mut self) -> Option<u64> {
        let slice = match self.under_way.next().await? {
            Ended::Slice(slice) => self.slices.remove(&slice)?,
            Ended::Shared(key, has_got_on) => {
                self.helped.retain(|helped| *helped != key);
                return Some(u64::from(has_got_on));
            }
        };
        self.came_late |= slice.has_late_work();
        Some(slice.done())
    }
}

/// Takes part in work for a turn.
async fn help(worker: &Worker, entry: DueEntry) -> Ended {
    let mut stop = worker.status.stopping();
    let helped = kinds::help(&worker.layer, &entry, worker.options.turn);
    let has_got_on = tokio::select! {
        helped = helped => helped,
        _ = stop.wait_for(|stop| *stop) => Ok(false),
    };
    if let Err(error) = &has_got_on {
        let DueKey { name, kind, .. } = &entry.key;
        tracing::debug!(database = name, kind, %error, "this process could not take part in another one's work");
    }
    Ended::Shared(entry.key, has_got_on.unwrap_or(false))
}
