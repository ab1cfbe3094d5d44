//! The queue of calls that wait for a thread.
//!
//! Turns go by owner first, then by database. A call has two owners: the client that waits for it, and the owner of
//! its database. So neither many databases of one owner nor many clients of one database delay the others. Databases
//! with recent long calls share a separate thread instead of the usual ones. One of the usual threads is reserved for
//! databases whose last call was short, so that they do not wait for databases whose calls become long, however many
//! these are.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::figures::CallClass;
use crate::records::{CallEnd, CallRecords};

/// The most waiting calls. Further calls fail with [`QueueFull`].
const WAITING_MAX: usize = 16_384;

/// The most waiting calls of one database. A change is filtered for all its followers at once.
const WAITING_OF_ONE_MAX: usize = 4_096;

/// The most waiting calls of one client, or of one owner of databases without a client.
const WAITING_OF_OWNER_MAX: usize = WAITING_MAX / 2;

/// A call that uses more processor time makes its database slow.
pub(crate) const LONG: Duration = Duration::from_millis(300);

/// The first term for which a database is slow. A further long call within another such term doubles it. Otherwise
/// the databases of one tenant would take the usual threads each time their terms end.
const SLOW_FOR: Duration = Duration::from_secs(30);

const SLOW_FOR_MAX: Duration = Duration::from_secs(600);

#[derive(Debug)]
struct SlowTerm {
    until: Instant,
    term: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Usual,
    Slow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueFull;

/// The known owners of a call.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CallOwners {
    /// The client that waits for the call.
    pub(crate) client: Option<u64>,
    /// The owner of the database. `None`: the database is its own owner.
    pub(crate) of_database: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Owner {
    Client(u64),
    OfDatabase(u64),
    Database(Arc<str>),
}

#[derive(Debug)]
struct OwnerTurn {
    waiting: usize,
    number: u64,
    /// True if it has had no turn since it began to wait.
    is_new: bool,
}

/// A waiting database.
#[derive(Debug)]
struct Turn {
    database: Arc<str>,
    /// True if it has had no turn since it began to wait.
    is_new: bool,
    /// True if its last call was short. Kept here because thousands of databases may wait.
    is_short: bool,
}

/// A call on a usual thread.
#[derive(Debug)]
struct UsualCall {
    database: Arc<str>,
    class: CallClass,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueOptions {
    /// The most usual threads of one database.
    pub(crate) of_one_max: usize,
    /// The most usual threads that slow databases may use while no other database needs them.
    pub(crate) lent_max: usize,
    /// The most usual threads of all databases whose last call was not short.
    pub(crate) shared_max: usize,
    /// True if each fourth turn is that of the database that came last, first of owners that had no turn yet. Where
    /// calls have no client, an owner that comes behind hundreds does not wait for all of them.
    pub(crate) takes_newest: bool,
}

#[derive(Debug)]
struct WaitingCall<J> {
    id: u64,
    /// The client, or else the owner of the database.
    owner: Owner,
    /// The owner of the database, if it is not `owner`.
    further: Option<Owner>,
    job: J,
}

/// The queue. `J` is a call.
///
/// The next call is the one whose owners had their last turns earliest: the later of the two turns decides, then the
/// other one, then the time since which the database waits. So an owner waits for about one call of each other owner,
/// however many databases they have. By this rule alone a call could wait forever if other calls of both of its owners
/// always come before it, so each fourth turn goes by database alone.
#[derive(Debug)]
pub(crate) struct Queue<J> {
    options: QueueOptions,
    waiting: HashMap<Arc<str>, VecDeque<WaitingCall<J>>>,
    turns: VecDeque<Turn>,
    owners: HashMap<Owner, OwnerTurn>,
    last_turn: u64,
    /// The number of calls that have had their turn.
    taken: usize,
    count: usize,
    next_id: u64,
    running: Vec<UsualCall>,
    records: CallRecords,
    /// The slow databases, and those that were slow within the last term.
    slow: HashMap<Arc<str>, SlowTerm>,
}

impl<J> Queue<J> {
    pub(crate) fn new(options: QueueOptions) -> Queue<J> {
        let (waiting, turns, owners, running, records, slow) = Default::default();
        let (last_turn, taken, count, next_id) = Default::default();
        Queue { options, waiting, turns, owners, last_turn, taken, count, next_id, running, records, slow }
    }

    pub(crate) fn push(&mut self, database: &Arc<str>, owners: CallOwners, job: J) -> Result<u64, QueueFull> {
        let of_one = self.waiting.get(database).map_or(0, VecDeque::len);
        let of_database = owners.of_database.map_or_else(|| Owner::Database(database.clone()), Owner::OfDatabase);
        let (owner, further) = match owners.client {
            Some(client) => (Owner::Client(client), Some(of_database)),
            None => (of_database, None),
        };
        let of_owner = self.owners.get(&owner).map_or(0, |turn| turn.waiting);
        if self.count >= WAITING_MAX || of_one >= WAITING_OF_ONE_MAX || of_owner >= WAITING_OF_OWNER_MAX {
            return Err(QueueFull);
        }
        if of_one == 0 {
            self.add_turn(database, true);
        }
        self.next_id += 1;
        self.count += 1;
        self.last_turn += 1;
        for owner in [Some(&owner), further.as_ref()].into_iter().flatten() {
            let new = OwnerTurn { waiting: 0, number: self.last_turn, is_new: true };
            self.owners.entry(owner.clone()).or_insert(new).waiting += 1;
        }
        let call = WaitingCall { id: self.next_id, owner, further, job };
        self.waiting.entry(database.clone()).or_default().push_back(call);
        Ok(self.next_id)
    }

    fn add_turn(&mut self, database: &Arc<str>, is_new: bool) {
        let is_short = self.records.is_short(database);
        self.turns.push_back(Turn { database: database.clone(), is_new, is_short });
    }

    /// Counts a call that leaves the queue. `had_turn`: the call runs, and its owner moves behind the others.
    fn left(&mut self, owner: &Owner, had_turn: bool) {
        let Some(turn) = self.owners.get_mut(owner) else { return };
        turn.waiting = turn.waiting.saturating_sub(1);
        if turn.waiting == 0 {
            self.owners.remove(owner);
        } else if had_turn {
            self.last_turn += 1;
            turn.number = self.last_turn;
            turn.is_new = false;
        }
    }

    pub(crate) fn remove(&mut self, database: &Arc<str>, id: u64) {
        let Some(calls) = self.waiting.get_mut(database) else { return };
        let place = calls.iter().position(|call| call.id == id);
        let Some(call) = place.and_then(|place| calls.remove(place)) else { return };
        if calls.is_empty() {
            self.waiting.remove(database);
            self.turns.retain(|turn| turn.database != *database);
        }
        self.count -= 1;
        self.left(&call.owner, false);
        call.further.iter().for_each(|owner| self.left(owner, false));
    }

    /// Returns the index in `turns` of the next call for a thread.
    fn next(&self, lane: Lane, now: Instant) -> Option<usize> {
        let own = self.place(lane, |turn| self.may_run(turn, lane, now));
        own.or_else(|| self.place(lane, |turn| self.may_borrow(turn, lane, now)))
    }

    fn place(&self, lane: Lane, may: impl Fn(&Turn) -> bool) -> Option<usize> {
        let next = match self.taken % 4 {
            2 if self.options.takes_newest && lane == Lane::Usual => {
                self.newest(&may).or_else(|| self.first_by_owner(&may))
            }
            3 => self.places(&may).next(),
            _ => self.first_by_owner(&may),
        };
        next.map(|(place, _)| place)
    }

    fn places<'q>(&'q self, may: &'q impl Fn(&Turn) -> bool) -> impl Iterator<Item = (usize, &'q Turn)> {
        self.turns.iter().enumerate().filter(move |(_, turn)| may(turn))
    }

    fn first_by_owner<'q>(&'q self, may: &'q impl Fn(&Turn) -> bool) -> Option<(usize, &'q Turn)> {
        self.places(may).min_by_key(|(_, turn)| self.owner_turns(&turn.database))
    }

    /// Returns the database that came last and had no turn yet, first of owners that had none.
    fn newest<'q>(&'q self, may: &'q impl Fn(&Turn) -> bool) -> Option<(usize, &'q Turn)> {
        let new = self.places(may).filter(|(_, turn)| turn.is_new);
        new.max_by_key(|(place, turn)| (self.has_new_owner(&turn.database), *place))
    }

    /// Returns the numbers of the last turns of the owners of a database's next call, the later one first.
    fn owner_turns(&self, database: &Arc<str>) -> Option<(u64, u64)> {
        let call = self.waiting.get(database)?.front()?;
        let number = |owner: &Owner| self.owners.get(owner).map_or(0, |turn| turn.number);
        let first = number(&call.owner);
        let second = call.further.as_ref().map_or(first, number);
        Some((first.max(second), first.min(second)))
    }

    fn has_new_owner(&self, database: &Arc<str>) -> bool {
        let call = self.waiting.get(database).and_then(VecDeque::front);
        call.and_then(|call| self.owners.get(&call.owner)).is_some_and(|turn| turn.is_new)
    }

    pub(crate) fn has(&self, lane: Lane, now: Instant) -> bool {
        self.waits(lane, now) || self.turns.iter().any(|turn| self.may_borrow(turn, lane, now))
    }

    /// Takes the next call for a thread. The call counts as running until [`Queue::finished`].
    pub(crate) fn take(&mut self, lane: Lane, now: Instant) -> Option<J> {
        let place = self.next(lane, now)?;
        let database = self.turns.remove(place)?.database;
        let calls = self.waiting.get_mut(&database)?;
        let WaitingCall { owner, further, job, .. } = calls.pop_front()?;
        self.count -= 1;
        self.taken = self.taken.wrapping_add(1);
        if calls.is_empty() {
            self.waiting.remove(&database);
        } else {
            self.add_turn(&database, false);
        }
        self.left(&owner, true);
        further.iter().for_each(|owner| self.left(owner, true));
        if lane == Lane::Usual {
            let class = self.class(&database, now);
            self.running.push(UsualCall { database, class });
        }
        Some(job)
    }

    pub(crate) fn waits(&self, lane: Lane, now: Instant) -> bool {
        self.turns.iter().any(|turn| self.may_run(turn, lane, now))
    }

    /// Returns true if a call of another database waits that could run in the place of a call on a usual thread.
    pub(crate) fn wants_place(&self, database: &Arc<str>, class: CallClass, now: Instant) -> bool {
        let fits = |turn: &Turn| {
            (class != CallClass::Short || turn.is_short || self.may_share())
                && turn.database != *database
                && self.has_room(&turn.database)
                && self.lane(&turn.database, now) == Lane::Usual
        };
        self.turns.iter().any(fits)
    }

    pub(crate) fn lane(&self, database: &Arc<str>, now: Instant) -> Lane {
        let is_slow = self.slow.get(database).is_some_and(|slow| now < slow.until);
        if is_slow { Lane::Slow } else { Lane::Usual }
    }

    pub(crate) fn class(&self, database: &Arc<str>, now: Instant) -> CallClass {
        match self.lane(database, now) {
            Lane::Slow => CallClass::Slow,
            Lane::Usual if self.records.is_short(database) => CallClass::Short,
            Lane::Usual => CallClass::Unproven,
        }
    }

    /// Returns true if one more usual thread may run a call that is not of the class [`CallClass::Short`].
    fn may_share(&self) -> bool {
        self.running.iter().filter(|call| call.class != CallClass::Short).count() < self.options.shared_max
    }

    fn has_room(&self, database: &Arc<str>) -> bool {
        self.running.iter().filter(|call| call.database == *database).count() < self.options.of_one_max
    }

    fn may_run(&self, turn: &Turn, lane: Lane, now: Instant) -> bool {
        let may = lane == Lane::Slow || (turn.is_short || self.may_share()) && self.has_room(&turn.database);
        may && self.lane(&turn.database, now) == lane
    }

    /// Returns true if a thread may run a call of the other lane while none of its own waits: a usual thread if another
    /// one is left, and the slow thread if unproven databases have their share of the usual ones.
    fn may_borrow(&self, turn: &Turn, lane: Lane, now: Instant) -> bool {
        let is_lent = match lane {
            Lane::Usual => self.running.len() < self.options.lent_max && self.may_share(),
            Lane::Slow => {
                self.options.lent_max > 0 && !turn.is_short && !self.may_share() && self.has_room(&turn.database)
            }
        };
        is_lent && self.lane(&turn.database, now) != lane
    }

    /// Counts the end of a call, or that it was put aside. `class`: its class when it began; `ran`: its processor time.
    pub(crate) fn finished(&mut self, database: &Arc<str>, lane: Lane, class: CallClass, ran: Duration, now: Instant) {
        let is_it = |call: &UsualCall| call.class == class && call.database == *database;
        if lane == Lane::Usual
            && let Some(place) = self.running.iter().position(is_it)
        {
            self.running.swap_remove(place);
        }
        if ran >= LONG {
            self.slow_down(database, now);
        }
    }

    /// Records the end of a call that ran, also on a thread that was put aside.
    pub(crate) fn record(&mut self, database: &Arc<str>, ran: Duration, end: CallEnd, now: Instant) {
        if self.records.add(database, ran, end) || ran >= LONG {
            self.slow_down(database, now);
        }
        if self.waiting.contains_key(database) {
            let is_short = self.records.is_short(database);
            if let Some(turn) = self.turns.iter_mut().find(|turn| turn.database == *database) {
                turn.is_short = is_short;
            }
        }
    }

    pub(crate) fn slow_down(&mut self, database: &Arc<str>, now: Instant) {
        self.slow.retain(|_, slow| now < slow.until + slow.term);
        let term = match self.slow.get(database) {
            None => SLOW_FOR,
            Some(slow) if now < slow.until => slow.term,
            Some(slow) => (slow.term * 2).min(SLOW_FOR_MAX),
        };
        self.slow.insert(database.clone(), SlowTerm { until: now + term, term });
    }

    #[cfg(test)]
    pub(crate) fn forget_slow(&mut self) {
        self.slow.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CallClass::{Short, Slow, Unproven};

    fn queue<J>(of_one_max: usize) -> Queue<J> {
        Queue::new(QueueOptions { of_one_max, lent_max: 0, shared_max: usize::MAX, takes_newest: false })
    }

    const UNKNOWN: CallOwners = CallOwners { client: None, of_database: None };

    fn of_client(client: u64) -> CallOwners {
        CallOwners { client: Some(client), ..UNKNOWN }
    }

    fn names<const N: usize>(names: [&str; N]) -> [Arc<str>; N] {
        names.map(Into::into)
    }

    #[test]
    fn databases_take_turns() {
        let [a, b] = names(["a", "b"]);
        let (mut queue, now) = (queue(1), Instant::now());
        for n in 0..3 {
            queue.push(&a, UNKNOWN, n).unwrap();
        }
        for n in 10..12 {
            queue.push(&b, UNKNOWN, n).unwrap();
        }
        let mut order = Vec::new();
        while let Some(job) = queue.take(Lane::Usual, now) {
            queue.finished(if job < 10 { &a } else { &b }, Lane::Usual, Unproven, Duration::ZERO, now);
            order.push(job);
        }
        assert_eq!(order, [0, 10, 1, 11, 2]);
        assert!(queue.waiting.is_empty() && queue.turns.is_empty() && queue.running.is_empty() && queue.count == 0);
        assert!(queue.owners.is_empty());
    }

    /// Returns how many calls of others run before the last one of a client.
    fn calls_before(others: impl Iterator<Item = (String, u64)>, (database, client): (&str, u64)) -> usize {
        let (mut queue, now) = (queue(usize::MAX), Instant::now());
        for (database, client) in others {
            queue.push(&database.into(), of_client(client), false).unwrap();
        }
        queue.push(&database.into(), of_client(client), true).unwrap();
        let calls: Vec<bool> = std::iter::from_fn(|| queue.take(Lane::Usual, now)).collect();
        assert!(queue.waiting.is_empty() && queue.turns.is_empty() && queue.owners.is_empty() && queue.count == 0);
        calls.iter().position(|is_last| *is_last).unwrap()
    }

    #[test]
    fn neither_many_clients_nor_many_databases_have_more_turns() {
        let quiet = ("quiet", 0);
        let of_many_databases = calls_before((0..300).map(|n| (format!("noisy{n}"), 1)), quiet);
        let of_many_clients = calls_before((0..300).map(|n| ("noisy".to_owned(), 1 + n)), quiet);
        let of_one = calls_before((0..300).map(|_| ("noisy".to_owned(), 1)), quiet);
        let all = [of_many_databases, of_many_clients, of_one];
        assert!(all.iter().all(|before| *before <= 4), "{all:?}");
    }

    #[test]
    fn an_owner_with_one_database_waits_for_one_call_of_another_with_many() {
        type NoisyOwners<'o> = &'o dyn Fn(u64) -> CallOwners;
        let owned = |client, of_database| CallOwners { client, of_database };
        let noisy: [(NoisyOwners<'_>, CallOwners); 5] = [
            // Maps: the owner of the databases decides.
            (&|_| owned(None, Some(1)), owned(None, Some(2))),
            (&|_| owned(None, Some(1)), UNKNOWN),
            // A user with many databases, and many users of databases of one owner.
            (&|_| owned(Some(1), None), owned(Some(2), None)),
            (&|n| owned(Some(n), Some(1)), owned(Some(1_000), Some(2))),
            // A user of all databases, among them the other owner's.
            (&|_| owned(Some(1), Some(1)), owned(Some(1), Some(2))),
        ];
        for (at, (noisy, quiet)) in noisy.iter().enumerate() {
            for takes_newest in [false, true] {
                let mut queue = queue(usize::MAX);
                queue.options.takes_newest = takes_newest;
                for n in 0..100 {
                    queue.push(&format!("noisy{n}").into(), noisy(n), false).unwrap();
                }
                queue.push(&"quiet".into(), *quiet, true).unwrap();
                let order: Vec<bool> = std::iter::from_fn(|| queue.take(Lane::Usual, Instant::now())).collect();
                assert_eq!(order.iter().position(|is_quiet| *is_quiet), Some(1), "{at} {takes_newest}");
                assert!(order.len() == 101 && queue.owners.is_empty());
            }
        }
    }

    #[test]
    fn the_newest_turn_is_not_for_further_databases_of_an_owner_that_had_turns() {
        let now = Instant::now();
        let mut queue = Queue::new(QueueOptions { takes_newest: true, ..queue::<usize>(1).options });
        let of = |owner| CallOwners { of_database: Some(owner), ..UNKNOWN };
        for n in 0..20 {
            queue.push(&format!("first{n}").into(), of(n), 0).unwrap();
            queue.push(&format!("second{n}").into(), of(n), 0).unwrap();
        }
        let _ = [(); 2].map(|()| queue.take(Lane::Usual, now));
        queue.push(&"quiet".into(), UNKNOWN, 1).unwrap();
        for n in 0..20 {
            queue.push(&format!("third{n}").into(), of(0), 0).unwrap();
        }
        assert_eq!(queue.take(Lane::Usual, now), Some(1));
    }

    /// Calls of its client in another database, and of another client in its database's owner, come before it.
    #[test]
    fn a_call_of_busy_owners_does_not_wait_forever() {
        let (mut queue, now) = (queue(usize::MAX), Instant::now());
        let [x_b, y_a, x_a] = names(["x_b", "y_a", "x_a"]);
        let owned = |client, of_database| CallOwners { client: Some(client), of_database: Some(of_database) };
        let push = |queue: &mut Queue<u8>, job| match job {
            0 => queue.push(&x_b, owned(1, 2), 0).unwrap(),
            _ => queue.push(&y_a, owned(2, 1), 1).unwrap(),
        };
        for job in [0, 1, 0, 1] {
            push(&mut queue, job);
        }
        queue.push(&x_a, owned(1, 1), 2).unwrap();
        let mut turns = 0;
        while let Some(job) = queue.take(Lane::Usual, now).filter(|job| *job != 2) {
            push(&mut queue, job);
            turns += 1;
            assert!(turns < 20, "it waits forever");
        }
    }

    #[test]
    fn a_client_leaves_room_to_others() {
        let mut queue = queue(2);
        let of = |n: usize| Arc::<str>::from(format!("db{}", n % 100));
        let ids: Vec<u64> = (0..WAITING_OF_OWNER_MAX).map(|n| queue.push(&of(n), of_client(1), n).unwrap()).collect();
        assert_eq!(queue.push(&of(0), of_client(1), 0), Err(QueueFull));
        queue.push(&of(0), of_client(2), 0).unwrap();
        queue.remove(&of(0), ids[0]);
        queue.push(&of(0), of_client(1), 0).unwrap();
        assert_eq!(queue.push(&of(0), of_client(1), 0), Err(QueueFull));
    }

    #[test]
    fn a_database_that_is_slow_again_is_so_for_longer() {
        let [a] = names(["a"]);
        let (mut queue, began) = (queue::<i32>(1), Instant::now());
        let lane = |queue: &Queue<i32>, after_s| queue.lane(&a, began + Duration::from_secs(after_s));
        let mut now_s = 0;
        for term_s in [30, 60, 120, 240, 480, 600, 600] {
            queue.slow_down(&a, began + Duration::from_secs(now_s));
            assert_eq!(lane(&queue, now_s + term_s - 1), Lane::Slow, "{term_s}");
            now_s += term_s;
            assert_eq!(lane(&queue, now_s), Lane::Usual, "{term_s}");
        }
        // Two long calls within a term count once, and old terms are forgotten.
        now_s += 1_200;
        queue.slow_down(&a, began + Duration::from_secs(now_s));
        queue.slow_down(&a, began + Duration::from_secs(now_s + 1));
        assert_eq!(lane(&queue, now_s + 31), Lane::Usual);
    }

    #[test]
    fn one_database_leaves_threads_to_the_others() {
        let [a, b, c] = names(["a", "b", "c"]);
        let (mut queue, now) = (queue(2), Instant::now());
        for n in 0..4 {
            queue.push(&a, UNKNOWN, n).unwrap();
        }
        let usual = |queue: &mut Queue<i32>| queue.take(Lane::Usual, now);
        assert_eq!([(); 3].map(|()| usual(&mut queue)), [Some(0), Some(1), None]);
        queue.push(&b, UNKNOWN, 10).unwrap();
        assert!(queue.waits(Lane::Usual, now) && !queue.waits(Lane::Slow, now));
        assert_eq!(usual(&mut queue), Some(10));
        for (database, ran) in [(&a, LONG), (&b, LONG)] {
            queue.finished(database, Lane::Usual, Unproven, ran, now);
        }
        queue.push(&b, UNKNOWN, 11).unwrap();
        queue.push(&c, UNKNOWN, 20).unwrap();
        queue.push(&c, UNKNOWN, 21).unwrap();
        assert_eq!([(); 3].map(|()| usual(&mut queue)), [Some(20), Some(21), None]);
        assert!(!queue.waits(Lane::Usual, now) && queue.waits(Lane::Slow, now));
        assert_eq!([(); 2].map(|()| queue.take(Lane::Slow, now)), [Some(2), Some(11)]);
        queue.finished(&b, Lane::Slow, Slow, Duration::ZERO, now);
        // One usual thread is never lent: three of four are lent here.
        queue.options.lent_max = 3;
        assert!(!queue.has(Lane::Usual, now) && queue.waits(Lane::Slow, now));
        assert_eq!(usual(&mut queue), None);
        queue.finished(&c, Lane::Usual, Unproven, Duration::ZERO, now);
        assert!(queue.has(Lane::Usual, now));
        assert_eq!(usual(&mut queue), Some(3));
        queue.push(&b, UNKNOWN, 12).unwrap();
        assert_eq!(usual(&mut queue), None);
        queue.push(&a, UNKNOWN, 4).unwrap();
        queue.push(&a, UNKNOWN, 5).unwrap();
        assert_eq!([(); 2].map(|()| queue.take(Lane::Slow, now)), [Some(12), Some(4)]);
        queue.finished(&a, Lane::Usual, Unproven, Duration::ZERO, now);
        assert!(!queue.waits(Lane::Slow, now + SLOW_FOR));
        assert_eq!(queue.take(Lane::Usual, now + SLOW_FOR), Some(5));
    }

    #[test]
    fn databases_that_begin_to_be_long_leave_a_thread_to_short_ones() {
        let ([short, first], now) = (names(["short", "long0"]), Instant::now());
        let mut queue = Queue::new(QueueOptions { shared_max: 2, ..queue::<i32>(3).options });
        for n in 0..60 {
            queue.push(&format!("long{n}").into(), UNKNOWN, n).unwrap();
        }
        queue.record(&short, Duration::ZERO, CallEnd::Whole, now);
        assert_eq!([(); 3].map(|()| queue.take(Lane::Usual, now)), [Some(0), Some(1), None]);
        assert!(!queue.has(Lane::Usual, now) && !queue.wants_place(&first, Short, now));
        assert!(queue.wants_place(&first, Unproven, now));
        queue.push(&short, UNKNOWN, 100).unwrap();
        assert!(queue.wants_place(&first, Short, now) && !queue.wants_place(&short, Short, now));
        assert_eq!(queue.take(Lane::Usual, now), Some(100));
        queue.finished(&first, Lane::Usual, Unproven, Duration::ZERO, now);
        assert_eq!(queue.take(Lane::Usual, now), Some(2));
    }

    #[test]
    fn the_slow_thread_helps_databases_that_have_their_share() {
        let ([a, b, c, d], now) = (names(["a", "b", "c", "d"]), Instant::now());
        let mut queue = Queue::new(QueueOptions { lent_max: 1, shared_max: 1, ..queue::<i32>(2).options });
        for (n, database) in (0..).zip([&a, &b, &c]) {
            queue.push(database, UNKNOWN, n).unwrap();
        }
        assert!(!queue.has(Lane::Slow, now));
        assert_eq!([(); 2].map(|()| queue.take(Lane::Usual, now)), [Some(0), None]);
        queue.slow_down(&c, now);
        assert_eq!([(); 2].map(|()| queue.take(Lane::Slow, now)), [Some(2), Some(1)]);
        queue.finished(&a, Lane::Usual, Unproven, Duration::ZERO, now);
        queue.push(&d, UNKNOWN, 3).unwrap();
        assert_eq!(queue.take(Lane::Slow, now), None);
        assert_eq!(queue.take(Lane::Usual, now), Some(3));
    }

    #[test]
    fn a_database_that_comes_last_does_not_wait_for_all_others() {
        let now = Instant::now();
        let mut queue = Queue::new(QueueOptions { takes_newest: true, ..queue::<usize>(1).options });
        let push = |queue: &mut Queue<usize>, n: usize| queue.push(&format!("db{n}").into(), UNKNOWN, n).unwrap();
        for n in 0..=100 {
            push(&mut queue, n);
        }
        let mut order: Vec<usize> = (0..3).filter_map(|_| queue.take(Lane::Usual, now)).collect();
        assert_eq!(order, [0, 1, 100]);
        // The others have their turn even if more come all the time.
        for n in 101..401 {
            order.extend(queue.take(Lane::Usual, now));
            push(&mut queue, n);
        }
        assert!((0..100).all(|n| order.contains(&n)), "{order:?}");
    }

    #[test]
    fn few_wait_and_who_leaves_makes_room() {
        let (mut queue, now) = (queue(2), Instant::now());
        let [a] = names(["a"]);
        let ids: Vec<u64> = (0..WAITING_OF_ONE_MAX).map(|n| queue.push(&a, UNKNOWN, n).unwrap()).collect();
        assert_eq!(queue.push(&a, UNKNOWN, 0), Err(QueueFull));
        queue.remove(&a, ids[0]);
        queue.remove(&a, ids[0]);
        queue.push(&a, UNKNOWN, 0).unwrap();
        let mut others = 0;
        while queue.push(&format!("b{others}").into(), UNKNOWN, others).is_ok() {
            others += 1;
        }
        assert_eq!(others, WAITING_MAX - WAITING_OF_ONE_MAX);
        assert_eq!(queue.take(Lane::Usual, now), Some(1));
        for id in &ids {
            queue.remove(&a, *id);
        }
        assert_eq!(queue.waiting.get(&a).map(VecDeque::len), Some(1));
    }
}
