//! Where single writes of small documents wait for each other: those of a database that arrive while others of it are under
//! way go into its next transaction together.
//!
//! A lane is there as long as somebody is in it. It says who goes with whom, and holds what waits; what that is, and how
//! it is written, those above know. What waits lies in memory of the request that brought it, and goes when that goes.

use std::any::Any;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use dashmap::DashMap;

use crate::instance::InstanceId;

/// Transactions of one lane that are under way at once.
const RUNNING_MAX: usize = 16;

/// One more begins only when those that wait are this part of the documents under way, or one has ended: else a busy server
/// would work for many small transactions instead of few larger ones. Few clients wait for nobody.
const WORTH_ONE_MORE: usize = 4;

/// How many are under way where a transaction takes less than [`SHORT`], whatever waits.
const RUNNING_SHORT_MAX: usize = 32;

/// What takes less has no round trips to a cluster, three at least, but this process's own engine, which commits
/// transactions together that come together: to wait before it gains little.
const SHORT: Duration = Duration::from_millis(3);

/// A transaction changes what they take on average by this part of the difference.
const SHARE: i64 = 16;

/// Most documents of one transaction.
const DOCUMENTS_MAX: usize = 250;

/// What they bring, in bytes; one may pass it.
const BYTES_MAX: u64 = 300_000;

/// Most writes of one document in one transaction: all but one of them are refused there.
const OF_DOCUMENT_MAX: usize = 64;

/// The lanes of all databases, by name.
pub(crate) struct Lanes {
    lanes: DashMap<String, Lane>,
    /// How many transactions a lane has under way at most, if that is set.
    running_max: Option<usize>,
    /// What transactions have taken of late, in microseconds.
    takes_us: AtomicI64,
}

#[derive(Default)]
struct Lane {
    /// Transactions under way.
    running: usize,
    /// Documents of these: nobody else may write them yet.
    documents: HashSet<Arc<str>>,
    waiting: VecDeque<Waiting>,
    /// The number of the next one that waits.
    next: u64,
}

/// A write that waits.
pub(crate) struct Waiting {
    /// Its document.
    pub id: Arc<str>,
    /// What it takes in a transaction, about.
    pub bytes: u64,
    /// What it was prepared for, and what judged it: others go into other transactions.
    pub fence: (InstanceId, u64),
    /// Whether others of the same document may come into its transaction.
    pub may_repeat: bool,
    /// Given by its lane.
    pub number: u64,
    /// The write itself.
    pub write: Box<dyn Any + Send + Sync>,
}

impl Lane {
    fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting.is_empty()
    }

    /// The writes of the next transaction, in the order in which they came.
    fn take(&mut self) -> Vec<Waiting> {
        let (mut taken, mut stay): (Vec<Waiting>, Vec<Waiting>) = (Vec::new(), Vec::new());
        let (mut bytes, mut of_document) = (0, HashMap::<Arc<str>, usize>::new());
        let mut passed: HashSet<Arc<str>> = HashSet::new();
        while taken.len() < DOCUMENTS_MAX
            && bytes < BYTES_MAX
            && let Some(waiting) = self.waiting.pop_front()
        {
            let before = of_document.get(&waiting.id).copied().unwrap_or(0);
            let most = if waiting.may_repeat { OF_DOCUMENT_MAX } else { 1 };
            let is_next = !passed.contains(&waiting.id) && !self.documents.contains(&waiting.id) && before < most;
            let goes_with =
                taken.first().is_none_or(|first| first.fence == waiting.fence && bytes + waiting.bytes <= BYTES_MAX);
            if !is_next || !goes_with {
                // Nobody overtakes it at its document.
                passed.insert(Arc::clone(&waiting.id));
                stay.push(waiting);
                continue;
            }
            bytes += waiting.bytes;
            of_document.insert(Arc::clone(&waiting.id), before + 1);
            taken.push(waiting);
        }
        stay.into_iter().rev().for_each(|waiting| self.waiting.push_front(waiting));
        taken
    }
}

impl Lanes {
    /// With so many transactions under way in each lane at most; `None`: as many as is good.
    pub(crate) fn new(running_max: Option<usize>) -> Lanes {
        Lanes { lanes: DashMap::new(), running_max, takes_us: AtomicI64::new(0) }
    }

    /// Whether one more transaction may begin where so many writes wait.
    fn may_begin(&self, lane: &Lane, waiting: usize, has_ended: bool) -> bool {
        let is_short = self.takes_us.load(Ordering::Relaxed) < SHORT.as_micros() as i64;
        let most = self.running_max.unwrap_or(if is_short { RUNNING_SHORT_MAX } else { RUNNING_MAX });
        let is_worth_it = has_ended || is_short || waiting >= lane.documents.len() / WORTH_ONE_MORE;
        lane.running < most && waiting > 0 && is_worth_it
    }

    /// Begins a transaction for one write at once, if nobody waits and few are under way.
    pub(crate) fn enter(&self, name: &str, id: &Arc<str>) -> bool {
        let mut lane = self.lane(name);
        let may_enter =
            lane.waiting.is_empty() && self.may_begin(&lane, 1, false) && lane.documents.insert(Arc::clone(id));
        lane.running += usize::from(may_enter);
        may_enter
    }

    /// Lets a write wait; its number. Who does so asks for [`Lanes::next`] afterwards.
    pub(crate) fn wait(&self, name: &str, waiting: Waiting) -> u64 {
        let mut lane = self.lane(name);
        let number = lane.next;
        lane.next += 1;
        lane.waiting.push_back(Waiting { number, ..waiting });
        number
    }

    /// Takes back a write that still waits.
    pub(crate) fn leave(&self, name: &str, number: u64) -> Option<Waiting> {
        let found = {
            let mut lane = self.lanes.get_mut(name)?;
            let at = lane.waiting.iter().position(|waiting| waiting.number == number)?;
            lane.waiting.remove(at)
        };
        self.lanes.remove_if(name, |_, lane| lane.is_idle());
        found
    }

    /// Begins the next transaction, if one may be: its writes. Asked for where something has come or, `has_ended`, ended.
    pub(crate) fn next(&self, name: &str, has_ended: bool) -> Option<Vec<Waiting>> {
        let mut lane = self.lanes.get_mut(name)?;
        if !self.may_begin(&lane, lane.waiting.len(), has_ended) {
            return None;
        }
        let taken = lane.take();
        if taken.is_empty() {
            return None;
        }
        lane.running += 1;
        lane.documents.extend(taken.iter().map(|waiting| Arc::clone(&waiting.id)));
        Some(taken)
    }

    /// A transaction has ended, with these documents, after some time; of its writes some wait again, before all others.
    pub(crate) fn end(&self, name: &str, documents: &[Arc<str>], took: Duration, again: Vec<Waiting>) {
        let before = self.takes_us.load(Ordering::Relaxed);
        let took = i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
        // What others do to it at the same time may be lost.
        self.takes_us.store(before + (took - before) / SHARE, Ordering::Relaxed);
        if let Some(mut lane) = self.lanes.get_mut(name) {
            lane.running = lane.running.saturating_sub(1);
            documents.iter().for_each(|id| {
                lane.documents.remove(id);
            });
            again.into_iter().rev().for_each(|waiting| lane.waiting.push_front(waiting));
        }
        self.lanes.remove_if(name, |_, lane| lane.is_idle());
    }

    fn lane(&self, name: &str) -> dashmap::mapref::one::RefMut<'_, String, Lane> {
        match self.lanes.get_mut(name) {
            Some(lane) => lane,
            None => self.lanes.entry(name.to_owned()).or_default(),
        }
    }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes").field("databases", &self.lanes.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::proto::DatabaseRecord;

    fn waiting(id: &str, bytes: u64, rules: u64) -> Waiting {
        let fence = (InstanceId::from(&DatabaseRecord::default()), rules);
        Waiting { id: id.into(), bytes, fence, may_repeat: true, number: 0, write: Box::new(()) }
    }

    fn next(lanes: &Lanes) -> Vec<u64> {
        lanes.next("db", true).unwrap_or_default().iter().map(|waiting| waiting.number).collect()
    }

    fn end(lanes: &Lanes, documents: &[&str]) {
        lanes.end("db", &ids(documents), SHORT, Vec::new());
    }

    fn ids(ids: &[&str]) -> Vec<Arc<str>> {
        ids.iter().map(|id| Arc::from(*id)).collect()
    }

    #[test]
    fn the_first_ones_wait_for_nobody() {
        let lanes = Lanes::new(Some(4));
        for id in ["a", "b", "c", "d"] {
            assert!(lanes.enter("db", &id.into()) && lanes.enter("other", &id.into()), "{id}");
        }
        assert!(!lanes.enter("db", &"e".into()));
        end(&lanes, &["a"]);
        // Its document is being written.
        assert!(!lanes.enter("db", &"b".into()));
        lanes.wait("db", waiting("b", 1, 0));
        // Nor past one that waits.
        assert!(!lanes.enter("db", &"e".into()));
        assert!(next(&lanes).is_empty());
        for id in ["b", "c", "d"] {
            end(&lanes, &[id]);
        }
        assert_eq!(next(&lanes), [0]);
        end(&lanes, &["b"]);
        assert!(!lanes.lanes.contains_key("db"), "nobody is in it");
    }

    #[test]
    fn who_goes_with_whom() {
        let lanes = Lanes::new(Some(4));
        // a; a larger one and the one of its document that came after it; judged otherwise.
        let of = [("a", 200_000, 0), ("b", 200_000, 0), ("b", 1, 0), ("c", 1, 1), ("a", 1, 0), ("d", 1, 0)];
        for (id, bytes, rules) in of {
            lanes.wait("db", waiting(id, bytes, rules));
        }
        assert_eq!(next(&lanes), [0, 4, 5]);
        assert_eq!(next(&lanes), [1, 2]);
        lanes.wait("db", waiting("a", 1, 1));
        // Of `a` one is under way.
        assert_eq!(next(&lanes), [3]);
        assert!(next(&lanes).is_empty());
        lanes.end("db", &ids(&["a", "d"]), SHORT, vec![Waiting { number: 4, ..waiting("a", 1, 0) }]);
        assert_eq!(next(&lanes), [4]);
        end(&lanes, &["a"]);
        assert_eq!(next(&lanes), [6]);
    }

    #[test]
    fn a_transaction_has_a_bound_and_so_has_each_document_in_it() {
        let lanes = Lanes::new(Some(4));
        let wait = |id: &str, bytes| lanes.wait("db", waiting(id, bytes, 0));
        (0..100).map(|_| wait("hot", 1)).for_each(drop::<u64>);
        (0..300).map(|at: u32| wait(&at.to_string(), 1)).for_each(drop::<u64>);
        let first = lanes.next("db", true).expect("some");
        assert_eq!(first.iter().filter(|waiting| &*waiting.id == "hot").count(), OF_DOCUMENT_MAX);
        assert_eq!(first.len(), DOCUMENTS_MAX);
        (0..100).map(|_| wait("large", BYTES_MAX)).for_each(drop::<u64>);
        assert_eq!(lanes.next("db", true).map(|some| some.len()), Some(114));
        assert_eq!(lanes.next("db", true).map(|some| some.len()), Some(1), "it may pass the bound, alone");
        assert_eq!(lanes.leave("db", 0).map(|_| ()), None);
        assert!(lanes.leave("db", 99).is_some_and(|left| &*left.id == "hot"));
    }

    #[test]
    fn one_more_begins_where_it_is_worth_it() {
        let lanes = Lanes::new(None);
        let begun = |from: usize| (from..).take_while(|at| lanes.enter("db", &at.to_string().into())).count();
        assert_eq!(begun(0), RUNNING_SHORT_MAX, "transactions are short");
        let all: Vec<Arc<str>> = (0..RUNNING_SHORT_MAX).map(|at| at.to_string().into()).collect();
        let end = |id: &Arc<str>| lanes.end("db", std::slice::from_ref(id), SHORT * 40, Vec::new());
        all.iter().for_each(end);
        // They are long now: until they are eight, one is the fourth part of those under way.
        assert_eq!(begun(0), 8);
        lanes.wait("db", waiting("a", 1, 0));
        assert!(lanes.next("db", false).is_none());
        lanes.wait("db", waiting("b", 1, 0));
        assert_eq!(lanes.next("db", false).map(|some| some.len()), Some(2));
        lanes.wait("db", waiting("c", 1, 0));
        assert!(lanes.next("db", false).is_none());
        end(&all[0]);
        assert_eq!(lanes.next("db", true).map(|some| some.len()), Some(1), "one has ended");
    }
}
