//! The order of delivery and the progress of the checkpoint.
//!
//! Changes are admitted in the order of the feed and wait here. At most one change of a document is under way, and only
//! the document's newest change waits. A newer change overtakes an older one that has not begun and settles it at once:
//! a run that resumes from a checkpoint between the two finds the newer one. A target therefore sees a document's
//! states in order, but not every state. The checkpoint passes settled changes (delivered, queued, overtaken, or
//! without effect) without gaps. The number of admitted changes is limited.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::checkpoint::Seq;

/// A change's position in the order of admission.
pub type PlanPosition = u64;

/// A change that is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedChange<C> {
    /// The position, needed to settle or return it.
    pub place: PlanPosition,
    /// The document's id.
    pub id: String,
    /// The admitted value.
    pub change: C,
}

#[derive(Debug)]
struct QueuedChange<C> {
    place: PlanPosition,
    change: C,
}

#[derive(Debug)]
struct Document<C> {
    under_way: Option<PlanPosition>,
    waiting: Option<QueuedChange<C>>,
}

#[derive(Debug)]
struct AdmittedChange {
    seq: Seq,
    is_settled: bool,
}

/// The changes that are under way or wait, up to a limit.
#[derive(Debug)]
pub struct Plan<C> {
    admitted_max: usize,
    /// Changes from `begin` on, in the order of admission.
    admitted: VecDeque<AdmittedChange>,
    begin: PlanPosition,
    documents: HashMap<String, Document<C>>,
    /// The positions of waiting changes whose documents are idle, with the documents' ids.
    ready: BTreeSet<(PlanPosition, String)>,
    under_way: usize,
    checkpoint: Option<Seq>,
}

impl<C> Plan<C> {
    /// Creates an empty plan with a limit.
    pub fn new(admitted_max: usize) -> Plan<C> {
        Plan {
            admitted_max,
            admitted: VecDeque::new(),
            begin: 0,
            documents: HashMap::new(),
            ready: BTreeSet::new(),
            under_way: 0,
            checkpoint: None,
        }
    }

    /// Returns how many more changes may be admitted now.
    pub fn room(&self) -> usize {
        self.admitted_max.saturating_sub(self.admitted.len())
    }

    /// Returns the number of admitted changes, including settled ones behind an unsettled one.
    pub fn admitted(&self) -> usize {
        self.admitted.len()
    }

    /// Returns whether no change waits or is under way.
    pub fn is_empty(&self) -> bool {
        self.admitted.is_empty()
    }

    /// Returns the number of changes that are under way.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Returns whether a change of an idle document waits.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Admits the next change of the feed.
    ///
    /// # Errors
    /// The change, if the limit is [reached](Plan::room).
    pub fn admit(&mut self, id: &str, seq: Seq, change: C) -> Result<(), C> {
        if self.room() == 0 {
            return Err(change);
        }
        let place = self.begin + self.admitted.len() as u64;
        self.admitted.push_back(AdmittedChange { seq, is_settled: false });
        let document =
            self.documents.entry(id.to_owned()).or_insert_with(|| Document { under_way: None, waiting: None });
        let overtaken = document.waiting.replace(QueuedChange { place, change });
        if document.under_way.is_none() {
            self.ready.insert((place, id.to_owned()));
        }
        if let Some(before) = overtaken {
            self.ready.remove(&(before.place, id.to_owned()));
            self.settle_place(before.place);
        }
        Ok(())
    }

    /// Records a position of the feed without a change for this job. The checkpoint may pass it after its predecessors.
    pub fn pass(&mut self, seq: Seq) {
        match self.admitted.back_mut() {
            Some(last) => last.seq = seq,
            None => self.checkpoint = Some(seq),
        }
    }

    /// Takes the oldest waiting change whose document is idle, if fewer than `at_once` are under way.
    pub fn take(&mut self, at_once: usize) -> Option<PlannedChange<C>> {
        if self.under_way >= at_once {
            return None;
        }
        let (_, id) = self.ready.pop_first()?;
        let document = self.documents.get_mut(&id)?;
        let QueuedChange { place, change } = document.waiting.take()?;
        document.under_way = Some(place);
        self.under_way += 1;
        Some(PlannedChange { place, id, change })
    }

    /// Settles a change that was taken: it is delivered, queued, or without effect.
    pub fn settle(&mut self, id: &str, place: PlanPosition) {
        let Entry::Occupied(mut entry) = self.documents.entry(id.to_owned()) else { return };
        if entry.get().under_way != Some(place) {
            return;
        }
        entry.get_mut().under_way = None;
        self.under_way -= 1;
        match &entry.get().waiting {
            Some(waiting) => {
                self.ready.insert((waiting.place, id.to_owned()));
            }
            None => {
                entry.remove();
            }
        }
        self.settle_place(place);
    }

    /// Returns a change that was not delivered, to be taken again, unless a newer change of its document waits and
    /// overtakes it.
    pub fn give_back(&mut self, taken: PlannedChange<C>) {
        let Some(document) = self.documents.get_mut(&taken.id) else { return };
        if document.under_way != Some(taken.place) {
            return;
        }
        document.under_way = None;
        self.under_way -= 1;
        match &document.waiting {
            Some(newer) => {
                self.ready.insert((newer.place, taken.id));
                self.settle_place(taken.place);
            }
            None => {
                document.waiting = Some(QueuedChange { place: taken.place, change: taken.change });
                self.ready.insert((taken.place, taken.id));
            }
        }
    }

    /// Returns the newest position up to which everything is settled if it moved since the last call.
    pub fn checkpoint(&mut self) -> Option<Seq> {
        self.checkpoint.take()
    }

    /// Returns the position that the checkpoint reaches if these changes are settled too. `None`: it does not move.
    pub fn reach(&self, settling: &BTreeSet<PlanPosition>) -> Option<Seq> {
        let is_settled = |(at, admitted): &(usize, &AdmittedChange)| {
            admitted.is_settled || settling.contains(&(self.begin + *at as u64))
        };
        let last = self.admitted.iter().enumerate().take_while(is_settled).last();
        last.map(|(_, admitted)| admitted.seq.clone())
    }

    fn settle_place(&mut self, place: PlanPosition) {
        let at = place.checked_sub(self.begin).and_then(|at| usize::try_from(at).ok());
        if let Some(admitted) = at.and_then(|at| self.admitted.get_mut(at)) {
            admitted.is_settled = true;
        }
        while self.admitted.front().is_some_and(|first| first.is_settled) {
            if let Some(first) = self.admitted.pop_front() {
                self.begin += 1;
                self.checkpoint = Some(first.seq);
            }
        }
    }
}

#[cfg(test)]
mod tests;
