//! Queues of small single writes (group commit): writes that arrive while others of their database are running are
//! committed together in its next transaction.
//!
//! A lane exists while it has writes. It holds the waiting writes and decides which ones share a transaction; its
//! callers write them. A waiting write belongs to the memory of its request, and is dropped with it.

use std::any::Any;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use flatbed_databases::instance::InstanceId;
use flatbed_databases::server::Inner;
use flatbed_databases::slots::State;

/// Transactions of one lane that run at once.
const RUNNING_MAX: usize = 16;

/// One more transaction begins when the waiting documents are at least the running ones divided by this, or a
/// transaction has ended. Otherwise a busy server would run many small transactions instead of few large ones. With few
/// clients no write waits.
const WORTH_ONE_MORE: usize = 4;

/// Transactions of a lane that run at once while they take less than [`SHORT`] on average.
const RUNNING_SHORT_MAX: usize = 32;

/// The average duration below which transactions are short. They then have no round trips to a cluster, at least three,
/// but run in this process's engine, which itself commits concurrent transactions together, so waiting gains little.
const SHORT: Duration = Duration::from_millis(3);

/// The part of the difference by which a transaction changes the average duration.
const SHARE: i64 = 16;

const DOCUMENTS_MAX: usize = 250;

/// Byte limit of one transaction; a single write may exceed it.
const BYTES_MAX: u64 = 300_000;

/// Limit of writes of one document in one transaction, of which all but one are refused.
const OF_DOCUMENT_MAX: usize = 64;

/// Documents that are examined for one transaction: many may not go with its first write.
const LOOKED_AT_MAX: usize = 4 * DOCUMENTS_MAX;

pub struct Lanes {
    lanes: DashMap<String, Lane>,
    /// The configured limit of running transactions in a lane.
    running_max: Option<usize>,
    /// The average duration of recent transactions, in microseconds.
    takes_us: AtomicI64,
    /// The number of the next waiting write, over all lanes. A lane is removed when it is empty, and a number of it
    /// must not name a write in the next lane of that name.
    next: AtomicU64,
}

#[derive(Default)]
struct Lane {
    running: usize,
    /// Documents that running transactions write, or that have waiting writes.
    documents: HashMap<Arc<str>, Queue>,
    /// Number of documents that are being written.
    under_way: usize,
    /// The other documents, by the number of their first waiting write. So writes that wait for a document, however
    /// many, are not examined until it is written.
    ready: BTreeMap<u64, Arc<str>>,
}

#[derive(Default)]
struct Queue {
    /// True if a transaction writes the document, so that others must wait.
    is_under_way: bool,
    /// Waiting writes in the order of numbers.
    waiting: VecDeque<WaitingWrite>,
}

pub struct WaitingWrite {
    /// The id of its document.
    pub id: Arc<str>,
    /// Its approximate bytes in a transaction.
    pub bytes: u64,
    /// The instance and rules that it was prepared for: only equal ones share a transaction.
    pub fence: (InstanceId, u64),
    /// True if its transaction may have other writes of the document.
    pub may_repeat: bool,
    /// Set when it begins to wait, and unique.
    pub number: u64,
    /// The write itself.
    pub write: Box<dyn Any + Send + Sync>,
}

impl Lane {
    fn is_idle(&self) -> bool {
        self.running == 0 && self.documents.is_empty()
    }

    /// Changes a document's queue, and the lane's other state with it.
    fn change<T>(&mut self, id: &Arc<str>, change: impl FnOnce(&mut Queue) -> T) -> T {
        let queue = self.documents.entry(Arc::clone(id)).or_default();
        let is_ready = |queue: &Queue| queue.waiting.front().filter(|_| !queue.is_under_way).map(|first| first.number);
        let (was_ready, was_under_way) = (is_ready(queue), queue.is_under_way);
        let changed = change(queue);
        let (is_ready, is_under_way) = (is_ready(queue), queue.is_under_way);
        if queue.waiting.is_empty() && !is_under_way {
            self.documents.remove(id);
        }
        self.under_way = self.under_way + usize::from(is_under_way) - usize::from(was_under_way);
        if was_ready != is_ready {
            was_ready.map(|number| self.ready.remove(&number));
            is_ready.map(|number| self.ready.insert(number, Arc::clone(id)));
        }
        changed
    }

    /// Takes the writes of the next transaction, in the order of arrival.
    fn take(&mut self) -> Vec<WaitingWrite> {
        let mut taken: Vec<WaitingWrite> = Vec::new();
        let mut bytes = 0;
        let looked_at: Vec<Arc<str>> = self.ready.values().take(LOOKED_AT_MAX).cloned().collect();
        for id in looked_at {
            if taken.len() >= DOCUMENTS_MAX || bytes >= BYTES_MAX {
                break;
            }
            self.change(&id, |queue| {
                let mut of_document = 0;
                // Writes of a document stay in order.
                while taken.len() < DOCUMENTS_MAX
                    && bytes < BYTES_MAX
                    && let Some(next) = queue.waiting.front()
                    && of_document < if next.may_repeat { OF_DOCUMENT_MAX } else { 1 }
                    && taken.first().is_none_or(|first| first.fence == next.fence && bytes + next.bytes <= BYTES_MAX)
                {
                    bytes += next.bytes;
                    of_document += 1;
                    taken.extend(queue.waiting.pop_front());
                }
                queue.is_under_way = of_document > 0;
            });
        }
        taken.sort_unstable_by_key(|waiting| waiting.number);
        taken
    }
}

impl State<Inner> for Lanes {
    fn new_of(inner: &Inner) -> Lanes {
        Lanes::new(inner.options.single_writes_at_once)
    }
}

impl Lanes {
    /// Creates lanes with a limit of running transactions in each; `None`: chosen by the lanes.
    pub fn new(running_max: Option<usize>) -> Lanes {
        Lanes { lanes: DashMap::new(), running_max, takes_us: AtomicI64::new(0), next: AtomicU64::new(0) }
    }

    /// Returns whether one more transaction may begin while writes of `waiting` documents wait.
    fn may_begin(&self, lane: &Lane, waiting: usize, has_ended: bool) -> bool {
        let is_short = self.takes_us.load(Ordering::Relaxed) < SHORT.as_micros() as i64;
        let most = self.running_max.unwrap_or(if is_short { RUNNING_SHORT_MAX } else { RUNNING_MAX });
        let is_worth_it = has_ended || is_short || waiting >= lane.under_way / WORTH_ONE_MORE;
        lane.running < most && waiting > 0 && is_worth_it
    }

    /// Starts a transaction of one write at once, if few are running and no other write can begin.
    pub fn enter(&self, name: &str, id: &Arc<str>) -> bool {
        let mut lane = self.lane(name);
        let may_enter = lane.ready.is_empty() && self.may_begin(&lane, 1, false) && !lane.documents.contains_key(id);
        if may_enter {
            lane.change(id, |queue| queue.is_under_way = true);
            lane.running += 1;
        }
        may_enter
    }

    /// Adds a waiting write and returns its number. The caller must call [`Lanes::next`] afterwards.
    pub fn wait(&self, name: &str, waiting: WaitingWrite) -> u64 {
        let mut lane = self.lane(name);
        // With the lane locked, so that its writes are in the order of their numbers.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = Arc::clone(&waiting.id);
        lane.change(&id, |queue| queue.waiting.push_back(WaitingWrite { number, ..waiting }));
        number
    }

    pub fn leave(&self, name: &str, id: &Arc<str>, number: u64) -> Option<WaitingWrite> {
        let found = {
            let mut lane = self.lanes.get_mut(name)?;
            lane.change(id, |queue| {
                let at = queue.waiting.binary_search_by_key(&number, |waiting| waiting.number).ok()?;
                queue.waiting.remove(at)
            })
        };
        self.lanes.remove_if(name, |_, lane| lane.is_idle());
        found
    }

    /// Returns the writes of the next transaction, if one may begin. To be called after a write was added or,
    /// `has_ended`, a transaction has ended.
    pub fn next(&self, name: &str, has_ended: bool) -> Option<Vec<WaitingWrite>> {
        let mut lane = self.lanes.get_mut(name)?;
        if !self.may_begin(&lane, lane.ready.len(), has_ended) {
            return None;
        }
        let taken = lane.take();
        if taken.is_empty() {
            return None;
        }
        lane.running += 1;
        Some(taken)
    }

    /// Ends a transaction of these documents; the writes in `again` wait again, before all others of their documents.
    pub fn end(&self, name: &str, documents: &[Arc<str>], took: Duration, again: Vec<WaitingWrite>) {
        let before = self.takes_us.load(Ordering::Relaxed);
        let took = i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
        // A concurrent update may be lost.
        self.takes_us.store(before + (took - before) / SHARE, Ordering::Relaxed);
        if let Some(mut lane) = self.lanes.get_mut(name) {
            lane.running = lane.running.saturating_sub(1);
            for waiting in again.into_iter().rev() {
                let id = Arc::clone(&waiting.id);
                lane.change(&id, |queue| queue.waiting.push_front(waiting));
            }
            documents.iter().for_each(|id| lane.change(id, |queue| queue.is_under_way = false));
        }
        self.lanes.remove_if(name, |_, lane| lane.is_idle());
    }

    #[cfg(feature = "test-hooks")]
    pub fn count_waiting(&self, name: &str) -> usize {
        self.lanes.get(name).map_or(0, |lane| lane.documents.values().map(|queue| queue.waiting.len()).sum())
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
    use flatbed_store::proto::DatabaseRecord;
    use flatbed_testkit::Random;

    use super::*;

    fn waiting(id: &str, bytes: u64, rules: u64) -> WaitingWrite {
        let fence = (InstanceId::new(&DatabaseRecord::default(), 0), rules);
        WaitingWrite { id: id.into(), bytes, fence, may_repeat: true, number: 0, write: Box::new(()) }
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
        assert!(next(&lanes).is_empty());
        // Writes that wait for their document do not block it.
        assert!(lanes.enter("db", &"e".into()));
        lanes.wait("db", waiting("f", 1, 0));
        end(&lanes, &["e"]);
        // A write that waits for a transaction goes first.
        assert!(!lanes.enter("db", &"e".into()));
        assert_eq!(next(&lanes), [1]);
        end(&lanes, &["f"]);
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
        // a; a larger one and a later one of its document; one of other rules.
        let of = [("a", 200_000, 0), ("b", 200_000, 0), ("b", 1, 0), ("c", 1, 1), ("a", 1, 0), ("d", 1, 0)];
        for (id, bytes, rules) in of {
            lanes.wait("db", waiting(id, bytes, rules));
        }
        assert_eq!(next(&lanes), [0, 4, 5]);
        assert_eq!(next(&lanes), [1, 2]);
        lanes.wait("db", waiting("a", 1, 1));
        // A write of `a` is running.
        assert_eq!(next(&lanes), [3]);
        assert!(next(&lanes).is_empty());
        lanes.end("db", &ids(&["a", "d"]), SHORT, vec![WaitingWrite { number: 4, ..waiting("a", 1, 0) }]);
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
        assert_eq!(lanes.leave("db", &"hot".into(), 0).map(|_| ()), None);
        assert!(lanes.leave("db", &"hot".into(), 99).is_some_and(|left| &*left.id == "hot"));
    }

    /// Many writes of one document do not slow down those of other documents.
    #[test]
    fn who_waits_behind_others_is_not_looked_at() {
        let lanes = Lanes::new(Some(4));
        assert!(lanes.enter("db", &"hot".into()));
        (0..100_000).map(|_| lanes.wait("db", waiting("hot", 1, 0))).for_each(drop::<u64>);
        // The documents that the next transaction examines.
        let is_looked_at = || !lanes.lanes.get("db").unwrap().ready.is_empty();
        for _ in 0..3 {
            assert!(!is_looked_at() && lanes.next("db", false).is_none());
            assert!(lanes.enter("db", &"other".into()) && !is_looked_at());
            end(&lanes, &["other"]);
        }
        // Removal from any position keeps the order.
        for number in [0, 2, 99_999] {
            assert!(lanes.leave("db", &"hot".into(), number).is_some());
        }
        end(&lanes, &["hot"]);
        let first = next(&lanes);
        assert_eq!((first.len(), &first[..3]), (OF_DOCUMENT_MAX, &[1, 3, 4][..]));
        end(&lanes, &["hot"]);
        assert_eq!(next(&lanes)[0], first[OF_DOCUMENT_MAX - 1] + 1);
    }

    #[test]
    fn nobody_takes_back_the_write_of_another_lane() {
        let lanes = Lanes::new(Some(4));
        let number = lanes.wait("db", waiting("a", 1, 0));
        assert_eq!(next(&lanes), [number]);
        end(&lanes, &["a"]);
        // The lane was removed, and another one exists.
        assert!(lanes.enter("db", &"a".into()));
        let other = lanes.wait("db", waiting("a", 1, 0));
        assert!(lanes.leave("db", &"a".into(), number).is_none());
        assert!(lanes.leave("db", &"a".into(), other).is_some());
    }

    /// In any order of arrivals, removals and ends, each write is taken or removed once, those of a document in order
    /// and in one transaction at a time.
    #[test]
    fn nothing_is_forgotten() {
        for seed in 1..40_u64 {
            let mut random = Random(seed);
            let mut random = |bound: u64| random.below(bound);
            let lanes = Lanes::new(Some(3));
            let mut at_hand: BTreeMap<u64, Arc<str>> = BTreeMap::new();
            let mut running: Vec<Vec<WaitingWrite>> = Vec::new();
            let mut written: HashMap<Arc<str>, u64> = HashMap::new();
            for step in 0..2_000 {
                match random(if step < 1_500 { 4 } else { 3 }) {
                    // A transaction ends; the last writes of some of its documents wait again.
                    0 | 1 if !running.is_empty() => {
                        let ended = running.swap_remove(random(running.len() as u64) as usize);
                        let documents: Vec<Arc<str>> = ended.iter().map(|write| Arc::clone(&write.id)).collect();
                        let mut again = Vec::new();
                        for write in ended {
                            if again.iter().any(|other: &WaitingWrite| other.id == write.id)
                                || written.get(&write.id).is_some_and(|last| *last > 0 && random(4) == 0)
                            {
                                at_hand.insert(write.number, Arc::clone(&write.id));
                                again.push(write);
                                continue;
                            }
                            let last = written.insert(Arc::clone(&write.id), write.number + 1).unwrap_or(0);
                            assert!(last <= write.number, "{} is overtaken", write.id);
                        }
                        lanes.end("db", &documents, SHORT, again);
                    }
                    2 if !at_hand.is_empty() => {
                        let at = random(at_hand.len() as u64) as usize;
                        let (number, id) = at_hand.iter().nth(at).map(|(number, id)| (*number, id.clone())).unwrap();
                        assert!(lanes.leave("db", &id, number).is_some_and(|left| left.number == number));
                        at_hand.remove(&number);
                    }
                    3 => {
                        let id: Arc<str> = random(6).to_string().into();
                        let bytes = if random(10) == 0 { BYTES_MAX } else { 1 };
                        let new = WaitingWrite { may_repeat: random(4) > 0, ..waiting(&id, bytes, random(2)) };
                        let number = lanes.wait("db", new);
                        at_hand.insert(number, id);
                    }
                    _ => {}
                }
                while let Some(taken) = lanes.next("db", random(2) == 0) {
                    let under_way = running.iter().flatten().any(|write| taken.iter().any(|new| new.id == write.id));
                    assert!(!under_way && taken.is_sorted_by_key(|write| write.number));
                    taken.iter().for_each(|write| assert!(at_hand.remove(&write.number).is_some()));
                    running.push(taken);
                }
            }
            while let Some(taken) = running.pop().or_else(|| lanes.next("db", true)) {
                taken.iter().for_each(|write| drop(at_hand.remove(&write.number)));
                let documents: Vec<Arc<str>> = taken.iter().map(|write| Arc::clone(&write.id)).collect();
                lanes.end("db", &documents, SHORT, Vec::new());
            }
            assert!(at_hand.is_empty() && !lanes.lanes.contains_key("db"), "seed {seed}: {at_hand:?}");
        }
    }

    #[test]
    fn one_more_begins_where_it_is_worth_it() {
        let lanes = Lanes::new(None);
        let begun = |from: usize| (from..).take_while(|at| lanes.enter("db", &at.to_string().into())).count();
        assert_eq!(begun(0), RUNNING_SHORT_MAX, "transactions are short");
        let all: Vec<Arc<str>> = (0..RUNNING_SHORT_MAX).map(|at| at.to_string().into()).collect();
        let end = |id: &Arc<str>| lanes.end("db", std::slice::from_ref(id), SHORT * 40, Vec::new());
        all.iter().for_each(end);
        // Long transactions: up to eight begin while one document is a fourth of the running ones.
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
