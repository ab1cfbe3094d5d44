//! Which change is delivered next, and how far the checkpoint may go.
//!
//! Changes are admitted in the order of the feed and wait here. Of one document only one is under way at a time, and only its
//! newest waits: an older one that has not begun is overtaken by it, and settled at once, since whoever goes on from a checkpoint
//! between the two finds the newer. So a target sees each document's states in order, though not each of them. The checkpoint
//! passes what has been settled (delivered, in the queue, overtaken, or nothing to be done) without a gap. All of it is bounded by
//! how many changes may be admitted.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::checkpoint::Seq;

/// A change's place in the order of admission.
pub type Place = u64;

/// A change that was given out to be delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken<C> {
    /// To settle it, or to give it back.
    pub place: Place,
    /// Its document.
    pub id: String,
    /// What was admitted.
    pub change: C,
}

/// The newest of a document's changes that waits.
#[derive(Debug)]
struct Waiting<C> {
    place: Place,
    change: C,
}

#[derive(Debug)]
struct Document<C> {
    under_way: Option<Place>,
    waiting: Option<Waiting<C>>,
}

#[derive(Debug)]
struct Admitted {
    seq: Seq,
    is_settled: bool,
}

/// The changes that are under way or wait, at most as many as it was made for.
#[derive(Debug)]
pub struct Plan<C> {
    admitted_max: usize,
    /// From `begin` on, in order of admission.
    admitted: VecDeque<Admitted>,
    begin: Place,
    documents: HashMap<String, Document<C>>,
    /// Places of changes that wait and whose documents are idle, with their documents.
    ready: BTreeSet<(Place, String)>,
    under_way: usize,
    checkpoint: Option<Seq>,
}

impl<C> Plan<C> {
    /// Without changes.
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

    /// How many more changes may be admitted now.
    pub fn room(&self) -> usize {
        self.admitted_max.saturating_sub(self.admitted.len())
    }

    /// Changes that are admitted, settled ones among them as long as others before them are not.
    pub fn admitted(&self) -> usize {
        self.admitted.len()
    }

    /// Whether nothing waits and nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.admitted.is_empty()
    }

    /// Changes that were taken and not settled.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Whether there is a change whose document is idle.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes in the next change of the feed.
    ///
    /// # Errors
    /// The change, if there is no [room](Plan::room).
    pub fn admit(&mut self, id: &str, seq: Seq, change: C) -> Result<(), C> {
        if self.room() == 0 {
            return Err(change);
        }
        let place = self.begin + self.admitted.len() as u64;
        self.admitted.push_back(Admitted { seq, is_settled: false });
        let document =
            self.documents.entry(id.to_owned()).or_insert_with(|| Document { under_way: None, waiting: None });
        let overtaken = document.waiting.replace(Waiting { place, change });
        if document.under_way.is_none() {
            self.ready.insert((place, id.to_owned()));
        }
        if let Some(before) = overtaken {
            self.ready.remove(&(before.place, id.to_owned()));
            self.settle_place(before.place);
        }
        Ok(())
    }

    /// Notes a place of the feed at which there is no change for this job: the checkpoint may pass it with what is before it.
    pub fn pass(&mut self, seq: Seq) {
        match self.admitted.back_mut() {
            Some(last) => last.seq = seq,
            None => self.checkpoint = Some(seq),
        }
    }

    /// The next change to be delivered: the oldest whose document is idle, while fewer than `at_once` are under way.
    pub fn take(&mut self, at_once: usize) -> Option<Taken<C>> {
        if self.under_way >= at_once {
            return None;
        }
        let (_, id) = self.ready.pop_first()?;
        let document = self.documents.get_mut(&id)?;
        let Waiting { place, change } = document.waiting.take()?;
        document.under_way = Some(place);
        self.under_way += 1;
        Some(Taken { place, id, change })
    }

    /// A change that was taken is delivered, or in the queue, or nothing was to be done for it.
    pub fn settle(&mut self, id: &str, place: Place) {
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

    /// A change that was taken was not delivered, and is to be taken again; unless a newer one of its document waits, which
    /// overtakes it.
    pub fn give_back(&mut self, taken: Taken<C>) {
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
                document.waiting = Some(Waiting { place: taken.place, change: taken.change });
                self.ready.insert((taken.place, taken.id));
            }
        }
    }

    /// The newest place up to which everything is settled, once it has moved; then `None` until it moves again.
    pub fn checkpoint(&mut self) -> Option<Seq> {
        self.checkpoint.take()
    }

    /// How far the checkpoint will reach once these are settled too. `None`: not beyond where it is.
    pub fn reach(&self, settling: &BTreeSet<Place>) -> Option<Seq> {
        let is_settled =
            |(at, admitted): &(usize, &Admitted)| admitted.is_settled || settling.contains(&(self.begin + *at as u64));
        let last = self.admitted.iter().enumerate().take_while(is_settled).last();
        last.map(|(_, admitted)| admitted.seq.clone())
    }

    fn settle_place(&mut self, place: Place) {
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
