//! The seats of a server's jobs: which owners hold them, which wait for one, and which job yields one. Pure: without I/O and clock.
//!
//! Owners wait in a queue. A granted owner goes to the end of the queue for its next job, so owners take turns. If no seat is free, a
//! job that waits to be retried yields its seat at once, and a job that has held its seat for a whole turn yields it to an owner
//! with fewer seats.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// The owner of seats: a user. `None`: all administrators together.
pub(crate) type SeatOwner = Option<Arc<str>>;

/// The numbers of seats, and the times that bound holding and waiting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeatLimits {
    /// Seats in all.
    pub(crate) jobs_max: usize,
    /// Seats that all users who are not administrators may hold together.
    pub(crate) users_jobs_max: usize,
    /// Seats that one such user may hold.
    pub(crate) user_jobs_max: usize,
    /// A running job keeps its seat at least this long.
    pub(crate) turn: Duration,
    /// An owner that has not repeated its request for this long leaves the queue.
    pub(crate) wait_max: Duration,
}

/// A granted seat.
#[derive(Debug)]
pub(crate) struct SeatGrant {
    pub(crate) id: u64,
    /// Becomes `true` when the job must yield the seat.
    pub(crate) recalled: watch::Receiver<bool>,
}

struct Seat {
    owner: SeatOwner,
    since: Instant,
    /// The job can be stopped and resumed later.
    can_yield: bool,
    /// The job waits to be retried.
    is_resting: bool,
    recall: watch::Sender<bool>,
}

impl Seat {
    fn is_recalled(&self) -> bool {
        *self.recall.borrow()
    }
}

struct Waiting {
    owner: SeatOwner,
    since: Instant,
    asked_at: Instant,
}

/// All seats of a server.
pub(crate) struct Seats {
    limits: SeatLimits,
    next_id: u64,
    taken: BTreeMap<u64, Seat>,
    /// The number of seats by owner, without owners that have none.
    counts: HashMap<SeatOwner, usize>,
    users_taken: usize,
    /// The queue of owners.
    waiting: VecDeque<Waiting>,
}

impl Seats {
    pub(crate) fn new(limits: SeatLimits) -> Seats {
        let (taken, counts, waiting) = Default::default();
        Seats { limits, next_id: 0, taken, counts, users_taken: 0, waiting }
    }

    /// Takes a seat for a job that neither waits nor yields. `None`: no seat is free beyond those of waiting owners.
    pub(crate) fn take(&mut self, owner: &SeatOwner, now: Instant) -> Option<SeatGrant> {
        self.forget_idle(now);
        self.is_turn(owner).then(|| self.grant(owner, false, now))
    }

    /// Takes a seat for a job that repeats the request until it has one, and that can yield it. `None`: the owner waits in the queue, or
    /// holds as many seats as it may. In both cases another job's seat may be recalled.
    pub(crate) fn ask(&mut self, owner: &SeatOwner, now: Instant) -> Option<SeatGrant> {
        self.forget_idle(now);
        if self.is_turn(owner) {
            self.waiting.retain(|waiting| waiting.owner != *owner);
            return Some(self.grant(owner, true, now));
        }
        if self.is_at_limit(owner) {
            // Only a job of the same owner can make a seat free, one at a time.
            if !self.taken.values().any(|seat| seat.owner == *owner && seat.is_recalled()) {
                self.recall(owner, true, now, |seat| seat.owner == *owner);
            }
            return None;
        }
        match self.waiting.iter_mut().find(|waiting| waiting.owner == *owner) {
            Some(waiting) => waiting.asked_at = now,
            None => self.waiting.push_back(Waiting { owner: owner.clone(), since: now, asked_at: now }),
        }
        self.recall_for(owner, now);
        None
    }

    /// Returns a seat.
    pub(crate) fn leave(&mut self, id: u64) {
        let Some(seat) = self.taken.remove(&id) else { return };
        self.users_taken -= usize::from(seat.owner.is_some());
        if let Some(count) = self.counts.get_mut(&seat.owner) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&seat.owner);
            }
        }
    }

    /// Notes whether a seat's job waits to be retried.
    pub(crate) fn rest(&mut self, id: u64, is_resting: bool) {
        if let Some(seat) = self.taken.get_mut(&id) {
            seat.is_resting = is_resting;
        }
    }

    fn count(&self, owner: &SeatOwner) -> usize {
        self.counts.get(owner).copied().unwrap_or_default()
    }

    /// Whether an owner holds as many seats as one user may.
    fn is_at_limit(&self, owner: &SeatOwner) -> bool {
        owner.is_some() && self.count(owner) >= self.limits.user_jobs_max
    }

    fn free(&self) -> usize {
        self.limits.jobs_max.saturating_sub(self.taken.len())
    }

    fn users_free(&self) -> usize {
        self.limits.users_jobs_max.saturating_sub(self.users_taken)
    }

    /// The number of users (first) and of administrators (second: 0 or 1) that wait before an owner. If the owner does not wait, all
    /// waiting ones count.
    fn ahead(&self, owner: &SeatOwner) -> (usize, usize) {
        let ahead = self.waiting.iter().take_while(|waiting| waiting.owner != *owner);
        let (users, admins): (Vec<_>, Vec<_>) = ahead.partition(|waiting| waiting.owner.is_some());
        (users.len(), admins.len())
    }

    /// Removes owners from the queue that no longer repeat their requests.
    fn forget_idle(&mut self, now: Instant) {
        let wait_max = self.limits.wait_max;
        self.waiting.retain(|waiting| now.saturating_duration_since(waiting.asked_at) < wait_max);
    }

    /// Whether a seat is free for an owner beyond those reserved for the owners before it in the queue.
    fn is_turn(&self, owner: &SeatOwner) -> bool {
        let (free, users_free) = (self.free(), self.users_free());
        if self.is_at_limit(owner) {
            return false;
        }
        let (users, admins) = self.ahead(owner);
        (owner.is_none() || users < users_free) && users.min(users_free) + admins < free
    }

    fn grant(&mut self, owner: &SeatOwner, can_yield: bool, now: Instant) -> SeatGrant {
        let (id, recall) = (self.next_id, watch::Sender::new(false));
        self.next_id += 1;
        let recalled = recall.subscribe();
        *self.counts.entry(owner.clone()).or_default() += 1;
        self.users_taken += usize::from(owner.is_some());
        self.taken.insert(id, Seat { owner: owner.clone(), since: now, can_yield, is_resting: false, recall });
        SeatGrant { id, recalled }
    }

    /// Recalls a seat for a waiting owner, unless enough seats are free or recalled for it and all owners before it.
    fn recall_for(&mut self, owner: &SeatOwner, now: Instant) {
        let (users, admins) = self.ahead(owner);
        // If users hold all seats that users may hold, only the seat of a user helps a user.
        let of_users = owner.is_some() && self.users_free() == 0;
        let recalled = self.taken.values().filter(|seat| seat.is_recalled() && (!of_users || seat.owner.is_some()));
        let (ahead, coming) =
            if of_users { (users, recalled.count()) } else { (users + admins, self.free() + recalled.count()) };
        if coming > ahead {
            return;
        }
        let waited = self.waiting.iter().find(|waiting| waiting.owner == *owner);
        let is_due = waited.is_some_and(|w| now.saturating_duration_since(w.since) >= self.limits.turn);
        self.recall(owner, is_due, now, |seat| !of_users || seat.owner.is_some());
    }

    /// Recalls one of the seats that `can_serve`. First choice: a seat whose job waits to be retried. Otherwise, if the owner `is_due`, a
    /// seat held for a whole turn by the owner itself or by an owner with more seats.
    fn recall(&self, owner: &SeatOwner, is_due: bool, now: Instant, can_serve: impl Fn(&Seat) -> bool) {
        let (turn, count) = (self.limits.turn, self.count(owner));
        let has_had_turn = |seat: &Seat| {
            let has_more = seat.owner == *owner || self.count(&seat.owner) > count;
            is_due && has_more && now.saturating_duration_since(seat.since) >= turn
        };
        let candidates = self.taken.values().filter(|seat| seat.can_yield && !seat.is_recalled() && can_serve(seat));
        let chosen = candidates
            .filter(|seat| seat.is_resting || has_had_turn(seat))
            .max_by_key(|seat| (seat.is_resting, self.count(&seat.owner), Reverse(seat.since)));
        if let Some(seat) = chosen {
            seat.recall.send_replace(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Duration = Duration::from_secs(60);

    /// The interval of an owner's requests.
    const ROUND: Duration = Duration::from_secs(4);

    fn seats(jobs_max: usize, users_jobs_max: usize, user_jobs_max: usize) -> Seats {
        Seats::new(SeatLimits { jobs_max, users_jobs_max, user_jobs_max, turn: TURN, wait_max: 4 * ROUND })
    }

    fn user(name: &str) -> SeatOwner {
        Some(name.into())
    }

    fn ask_20_000(seats: &mut Seats, owner: &SeatOwner, now: Instant) -> Vec<SeatGrant> {
        (0..20_000).filter_map(|_| seats.ask(owner, now)).collect()
    }

    #[test]
    fn the_one_job_of_an_owner_starts_in_the_next_round() {
        let mut seats = seats(10, 8, 8);
        let (anna, bob, mut now) = (user("anna"), user("bob"), Instant::now());
        let mut annas = ask_20_000(&mut seats, &anna, now);
        assert_eq!(annas.len(), 8);
        assert!(seats.ask(&bob, now).is_none());
        // A seat that becomes free goes to bob, although many other jobs request it first.
        seats.leave(annas.pop().unwrap().id);
        now += ROUND;
        assert!(ask_20_000(&mut seats, &anna, now).is_empty());
        assert!(seats.ask(&bob, now).is_some());
    }

    #[test]
    fn a_seat_is_recalled_after_a_turn_where_none_becomes_free() {
        let mut seats = seats(10, 8, 8);
        let (anna, bob, mut now) = (user("anna"), user("bob"), Instant::now());
        let mut annas: Vec<SeatGrant> = (0..8).filter_map(|_| seats.ask(&anna, now)).collect();
        let since = now;
        while now < since + TURN {
            assert!(seats.ask(&bob, now).is_none());
            assert!(annas.iter().all(|seat| !*seat.recalled.borrow()));
            now += ROUND;
        }
        for _ in 0..3 {
            assert!(seats.ask(&bob, now).is_none());
            assert_eq!(annas.iter().filter(|seat| *seat.recalled.borrow()).count(), 1);
        }
        annas.retain(|seat| {
            if *seat.recalled.borrow() {
                seats.leave(seat.id);
            }
            !*seat.recalled.borrow()
        });
        assert!(ask_20_000(&mut seats, &anna, now).is_empty());
        assert!(seats.ask(&bob, now).is_some());
    }

    #[test]
    fn a_job_that_waits_to_be_retried_gives_its_seat_up_at_once() {
        let mut seats = seats(3, 3, 3);
        let (anna, bob, now) = (user("anna"), user("bob"), Instant::now());
        let annas: Vec<SeatGrant> = (0..3).filter_map(|_| seats.ask(&anna, now)).collect();
        seats.rest(annas[1].id, true);
        assert!(seats.ask(&bob, now).is_none());
        assert!(seats.ask(&bob, now).is_none());
        let recalled: Vec<bool> = annas.iter().map(|seat| *seat.recalled.borrow()).collect();
        assert_eq!(recalled, [false, true, false]);
        seats.leave(annas[1].id);
        assert!(seats.ask(&anna, now).is_none());
        assert!(seats.ask(&bob, now).is_some());
    }

    #[test]
    fn an_owner_that_asks_no_more_holds_up_no_other() {
        let mut seats = seats(1, 1, 1);
        let (anna, bob, carl, mut now) = (user("anna"), user("bob"), user("carl"), Instant::now());
        let annas = seats.ask(&anna, now).unwrap();
        assert!(seats.ask(&bob, now).is_none() && seats.ask(&carl, now).is_none());
        seats.leave(annas.id);
        for _ in 0..4 {
            assert!(seats.ask(&carl, now).is_none() && seats.take(&carl, now).is_none());
            now += ROUND;
        }
        assert!(seats.ask(&carl, now).is_some());
    }

    #[test]
    fn a_seat_of_an_administrator_is_of_no_use_to_users_who_have_all_of_theirs() {
        let mut seats = seats(3, 1, 1);
        let (anna, bob, now) = (user("anna"), user("bob"), Instant::now());
        let admins: Vec<SeatGrant> = (0..2).filter_map(|_| seats.ask(&None, now)).collect();
        admins.iter().for_each(|seat| seats.rest(seat.id, true));
        let annas = seats.ask(&anna, now).unwrap();
        assert!(seats.ask(&bob, now).is_none());
        assert!(admins.iter().all(|seat| !*seat.recalled.borrow()));
        seats.rest(annas.id, true);
        assert!(seats.ask(&bob, now).is_none());
        assert!(*annas.recalled.borrow());
        // Waiting users do not keep an administrator from a seat that users may not hold.
        seats.leave(admins[0].id);
        assert!(seats.ask(&None, now).is_some());
    }

    /// Pseudo-random numbers from a seed.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % bound
        }
    }

    #[test]
    fn each_owner_that_waits_is_served_within_a_bounded_number_of_starts() {
        for seed in 0..200 {
            let mut numbers = Numbers(seed);
            let owners: Vec<SeatOwner> = (0..5).map(|n| (n > 0).then(|| format!("u{n}").into())).collect();
            let jobs_max = 1 + numbers.below(6);
            let users_jobs_max = jobs_max - jobs_max / 5;
            let user_jobs_max = 1 + numbers.below(jobs_max);
            let mut seats = seats(jobs_max, users_jobs_max, user_jobs_max);
            let mut now = Instant::now();
            let mut running: Vec<(usize, SeatGrant)> = Vec::new();
            // Other owners' starts, and rounds, since an owner without a seat began to wait.
            let mut starts = [0; 5];
            let mut rounds = [0; 5];
            for round in 0..300 {
                now += ROUND;
                for (_, seat) in &running {
                    if numbers.below(8) == 0 {
                        seats.rest(seat.id, numbers.below(2) == 0);
                    }
                }
                running.retain(|(_, seat)| {
                    let ends = *seat.recalled.borrow() || numbers.below(100) == 0;
                    if ends {
                        seats.leave(seat.id);
                    }
                    !ends
                });
                // Some owners request more often than others, in random order.
                for _ in 0..100 {
                    let asks = numbers.below(5) * numbers.below(2);
                    ask(&mut seats, &owners, asks, now, &mut running, &mut starts);
                }
                for asks in 0..5 {
                    ask(&mut seats, &owners, asks, now, &mut running, &mut starts);
                }
                let users = running.iter().filter(|(owner, _)| *owner > 0).count();
                assert!(running.len() <= jobs_max && users <= users_jobs_max, "seed {seed}, round {round}");
                for owner in 0..5 {
                    let count = running.iter().filter(|(other, _)| *other == owner).count();
                    assert!(owner == 0 || count <= user_jobs_max, "seed {seed}, round {round}");
                    rounds[owner] = if count > 0 { 0 } else { rounds[owner] + 1 };
                    starts[owner] = if count > 0 { 0 } else { starts[owner] };
                    assert!(starts[owner] <= jobs_max + 10, "seed {seed}: {owner} waited for {} starts", starts[owner]);
                    assert!(rounds[owner] <= 100, "seed {seed}: {owner} waited for {} rounds", rounds[owner]);
                }
            }
        }
    }

    fn ask(
        seats: &mut Seats,
        owners: &[SeatOwner],
        asks: usize,
        now: Instant,
        running: &mut Vec<(usize, SeatGrant)>,
        starts: &mut [usize; 5],
    ) {
        if let Some(seat) = seats.ask(&owners[asks], now) {
            running.push((asks, seat));
            for (owner, starts) in starts.iter_mut().enumerate() {
                *starts = if owner == asks { 0 } else { *starts + 1 };
            }
        }
    }
}
