//! The seats of a server's jobs: which owners have them, which wait for one, and which job gives one up. Pure.
//!
//! Owners take turns: an owner that waits is served after those that began to wait before, and begins to wait anew for its next job.
//! Where no seat is free, a job that waits to be retried gives its seat up at once, and a job that has had its seat for a whole
//! turn gives it up to an owner that has fewer.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// The owner of jobs, for its turns: a user. `None`: all administrators together.
pub(crate) type Party = Option<Arc<str>>;

/// How many seats there are, and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeatLimits {
    /// Seats in all.
    pub(crate) jobs_max: usize,
    /// Of these, those that users who are no administrators may have together.
    pub(crate) users_jobs_max: usize,
    /// Seats of one user who is no administrator.
    pub(crate) user_jobs_max: usize,
    /// A running job keeps its seat for this long, whoever waits.
    pub(crate) turn: Duration,
    /// An owner that has not asked for this long waits no more.
    pub(crate) wait_max: Duration,
}

/// What a job is told of its seat.
#[derive(Debug)]
pub(crate) struct SeatGrant {
    pub(crate) id: u64,
    /// Becomes true when the job must give the seat up.
    pub(crate) recalled: watch::Receiver<bool>,
}

struct Seat {
    party: Party,
    since: Instant,
    /// Its job can be stopped and begun again.
    can_yield: bool,
    /// Its job waits to be retried.
    is_resting: bool,
    recall: watch::Sender<bool>,
}

impl Seat {
    fn is_recalled(&self) -> bool {
        *self.recall.borrow()
    }
}

struct Waiting {
    party: Party,
    since: Instant,
    asked_at: Instant,
}

/// All seats of a server.
pub(crate) struct Seats {
    limits: SeatLimits,
    next_id: u64,
    taken: BTreeMap<u64, Seat>,
    /// How many seats each owner has, without those that have none.
    counts: HashMap<Party, usize>,
    users_taken: usize,
    /// In the order of their turns.
    waiting: VecDeque<Waiting>,
}

impl Seats {
    pub(crate) fn new(limits: SeatLimits) -> Seats {
        let (taken, counts, waiting) = Default::default();
        Seats { limits, next_id: 0, taken, counts, users_taken: 0, waiting }
    }

    /// Takes a seat for a job that cannot wait and does not yield, unless it is an owner's turn who waits.
    pub(crate) fn take(&mut self, party: &Party, now: Instant) -> Option<SeatGrant> {
        self.forget(now);
        self.is_turn(party).then(|| self.grant(party, false, now))
    }

    /// Takes a seat for a job that asks again until it has one, and can yield it. `None`: it is not this owner's turn, who waits for
    /// it from now on; a job that has a seat may have been told to give it up.
    pub(crate) fn ask(&mut self, party: &Party, now: Instant) -> Option<SeatGrant> {
        self.forget(now);
        if self.is_turn(party) {
            self.waiting.retain(|waiting| waiting.party != *party);
            return Some(self.grant(party, true, now));
        }
        if self.has_all(party) {
            // Only its own jobs can make room, one at a time.
            if !self.taken.values().any(|seat| seat.party == *party && seat.is_recalled()) {
                self.recall(party, true, now, |seat| seat.party == *party);
            }
            return None;
        }
        match self.waiting.iter_mut().find(|waiting| waiting.party == *party) {
            Some(waiting) => waiting.asked_at = now,
            None => self.waiting.push_back(Waiting { party: party.clone(), since: now, asked_at: now }),
        }
        self.make_room(party, now);
        None
    }

    /// Gives a seat back.
    pub(crate) fn leave(&mut self, id: u64) {
        let Some(seat) = self.taken.remove(&id) else { return };
        self.users_taken -= usize::from(seat.party.is_some());
        if let Some(count) = self.counts.get_mut(&seat.party) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&seat.party);
            }
        }
    }

    /// Notes whether a seat's job waits to be retried.
    pub(crate) fn rest(&mut self, id: u64, is_resting: bool) {
        if let Some(seat) = self.taken.get_mut(&id) {
            seat.is_resting = is_resting;
        }
    }

    fn count(&self, party: &Party) -> usize {
        self.counts.get(party).copied().unwrap_or_default()
    }

    /// Whether an owner has as many seats as it may have, however many are free.
    fn has_all(&self, party: &Party) -> bool {
        party.is_some() && self.count(party) >= self.limits.user_jobs_max
    }

    fn free(&self) -> usize {
        self.limits.jobs_max.saturating_sub(self.taken.len())
    }

    fn users_free(&self) -> usize {
        self.limits.users_jobs_max.saturating_sub(self.users_taken)
    }

    /// How many users, and whether administrators, are before an owner; all that wait are before one that does not.
    fn ahead(&self, party: &Party) -> (usize, usize) {
        let ahead = self.waiting.iter().take_while(|waiting| waiting.party != *party);
        let (users, admins): (Vec<_>, Vec<_>) = ahead.partition(|waiting| waiting.party.is_some());
        (users.len(), admins.len())
    }

    /// Forgets owners that ask no more.
    fn forget(&mut self, now: Instant) {
        let wait_max = self.limits.wait_max;
        self.waiting.retain(|waiting| now.saturating_duration_since(waiting.asked_at) < wait_max);
    }

    /// Whether there is a free seat for an owner beside those for owners that are before it.
    fn is_turn(&self, party: &Party) -> bool {
        let (free, users_free) = (self.free(), self.users_free());
        if self.has_all(party) {
            return false;
        }
        let (users, admins) = self.ahead(party);
        (party.is_none() || users < users_free) && users.min(users_free) + admins < free
    }

    fn grant(&mut self, party: &Party, can_yield: bool, now: Instant) -> SeatGrant {
        let (id, recall) = (self.next_id, watch::Sender::new(false));
        self.next_id += 1;
        let recalled = recall.subscribe();
        *self.counts.entry(party.clone()).or_default() += 1;
        self.users_taken += usize::from(party.is_some());
        self.taken.insert(id, Seat { party: party.clone(), since: now, can_yield, is_resting: false, recall });
        SeatGrant { id, recalled }
    }

    /// Recalls a seat for an owner that waits, unless one is free or recalled for each that is before it and for it.
    fn make_room(&mut self, party: &Party, now: Instant) {
        let (users, admins) = self.ahead(party);
        // Where users have all of their seats, an administrator's seat would be of no use to one.
        let of_users = party.is_some() && self.users_free() == 0;
        let recalled = self.taken.values().filter(|seat| seat.is_recalled() && (!of_users || seat.party.is_some()));
        let (ahead, coming) =
            if of_users { (users, recalled.count()) } else { (users + admins, self.free() + recalled.count()) };
        if coming > ahead {
            return;
        }
        let waited = self.waiting.iter().find(|waiting| waiting.party == *party);
        let is_due = waited.is_some_and(|w| now.saturating_duration_since(w.since) >= self.limits.turn);
        self.recall(party, is_due, now, |seat| !of_users || seat.party.is_some());
    }

    /// Recalls one of the seats that `can_serve`: one whose job waits to be retried; else, where the owner `is_due`, one that was had for
    /// a whole turn, of the owner itself or of one that has more.
    fn recall(&self, party: &Party, is_due: bool, now: Instant, can_serve: impl Fn(&Seat) -> bool) {
        let (turn, count) = (self.limits.turn, self.count(party));
        let has_had_turn = |seat: &Seat| {
            let has_more = seat.party == *party || self.count(&seat.party) > count;
            is_due && has_more && now.saturating_duration_since(seat.since) >= turn
        };
        let candidates = self.taken.values().filter(|seat| seat.can_yield && !seat.is_recalled() && can_serve(seat));
        let chosen = candidates
            .filter(|seat| seat.is_resting || has_had_turn(seat))
            .max_by_key(|seat| (seat.is_resting, self.count(&seat.party), Reverse(seat.since)));
        if let Some(seat) = chosen {
            seat.recall.send_replace(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Duration = Duration::from_secs(60);

    /// How often owners ask.
    const ROUND: Duration = Duration::from_secs(4);

    fn seats(jobs_max: usize, users_jobs_max: usize, user_jobs_max: usize) -> Seats {
        Seats::new(SeatLimits { jobs_max, users_jobs_max, user_jobs_max, turn: TURN, wait_max: 4 * ROUND })
    }

    fn user(name: &str) -> Party {
        Some(name.into())
    }

    fn ask_20_000(seats: &mut Seats, party: &Party, now: Instant) -> Vec<SeatGrant> {
        (0..20_000).filter_map(|_| seats.ask(party, now)).collect()
    }

    #[test]
    fn the_one_job_of_an_owner_starts_in_the_next_round() {
        let mut seats = seats(10, 8, 8);
        let (anna, bob, mut now) = (user("anna"), user("bob"), Instant::now());
        let mut annas = ask_20_000(&mut seats, &anna, now);
        assert_eq!(annas.len(), 8);
        assert!(seats.ask(&bob, now).is_none());
        // A seat that becomes free is bob's, however many jobs ask before.
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
        // Users who wait do not keep an administrator from a seat that is not theirs.
        seats.leave(admins[0].id);
        assert!(seats.ask(&None, now).is_some());
    }

    /// Numbers that differ by the seed.
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
            let parties: Vec<Party> = (0..5).map(|n| (n > 0).then(|| format!("u{n}").into())).collect();
            let jobs_max = 1 + numbers.below(6);
            let users_jobs_max = jobs_max - jobs_max / 5;
            let user_jobs_max = 1 + numbers.below(jobs_max);
            let mut seats = seats(jobs_max, users_jobs_max, user_jobs_max);
            let mut now = Instant::now();
            let mut running: Vec<(usize, SeatGrant)> = Vec::new();
            // Starts of others, and rounds, since an owner without a seat asked first.
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
                // Some ask more often than others, in any order.
                for _ in 0..100 {
                    let asks = numbers.below(5) * numbers.below(2);
                    ask(&mut seats, &parties, asks, now, &mut running, &mut starts);
                }
                for asks in 0..5 {
                    ask(&mut seats, &parties, asks, now, &mut running, &mut starts);
                }
                let users = running.iter().filter(|(party, _)| *party > 0).count();
                assert!(running.len() <= jobs_max && users <= users_jobs_max, "seed {seed}, round {round}");
                for party in 0..5 {
                    let count = running.iter().filter(|(other, _)| *other == party).count();
                    assert!(party == 0 || count <= user_jobs_max, "seed {seed}, round {round}");
                    rounds[party] = if count > 0 { 0 } else { rounds[party] + 1 };
                    starts[party] = if count > 0 { 0 } else { starts[party] };
                    assert!(starts[party] <= jobs_max + 10, "seed {seed}: {party} waited for {} starts", starts[party]);
                    assert!(rounds[party] <= 100, "seed {seed}: {party} waited for {} rounds", rounds[party]);
                }
            }
        }
    }

    fn ask(
        seats: &mut Seats,
        parties: &[Party],
        asks: usize,
        now: Instant,
        running: &mut Vec<(usize, SeatGrant)>,
        starts: &mut [usize; 5],
    ) {
        if let Some(seat) = seats.ask(&parties[asks], now) {
            running.push((asks, seat));
            for (party, starts) in starts.iter_mut().enumerate() {
                *starts = if party == asks { 0 } else { *starts + 1 };
            }
        }
    }
}
