//! The seats of a server's jobs: which jobs hold them, which wait for one, and which job yields one. Pure: without I/O
//! and clock.
//!
//! Waiting owners form a queue, and the waiting jobs of each owner form another. A job's ticket is its place in the
//! queue of its owner. Free seats are assigned in the order of the owners, each time to the owner's first job; the
//! owner then goes to the end. A job that yielded its seat and waits again gets a new ticket. So owners take turns, and
//! so do the jobs of an owner. A request stands until it is granted or withdrawn, however long a job takes to repeat
//! it.
//!
//! The first job of an owner that gets no seat recalls one: at once that of a job that waits to be retried, and after a
//! turn that of a job that has held its seat for a whole turn.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// A job whose run would lose all its work keeps its seat for this many turns.
const TURNS_WITHOUT_ADVANCE: u32 = 10;

/// The owner of seats: a user. `None`: all administrators together.
pub(crate) type SeatOwner = Option<Arc<str>>;

/// The numbers of seats, the memory of filters, and the length of a turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeatLimits {
    pub(crate) jobs_max: usize,
    /// Seats that all users who are not administrators may hold together.
    pub(crate) users_jobs_max: usize,
    /// Seats that one such user may hold.
    pub(crate) user_jobs_max: usize,
    /// Filter memory in all, in kB.
    pub(crate) filters_kb_max: usize,
    /// Filter memory of one user who is not an administrator, in kB. No job needs more.
    pub(crate) user_filters_kb_max: usize,
    /// A running job keeps its seat at least this long, and a job waits this long before it recalls the seat of a
    /// running one.
    pub(crate) turn: Duration,
}

#[derive(Debug)]
pub(crate) struct SeatGrant {
    pub(crate) id: u64,
    /// Becomes `true` when the job must yield the seat.
    pub(crate) recalled: watch::Receiver<bool>,
}

/// The place of a waiting job in the queue of its owner. Later tickets are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

struct Seat {
    owner: SeatOwner,
    filter_kb: usize,
    since: Instant,
    /// The job can be stopped and resumed later.
    can_yield: bool,
    /// The job waits to be retried.
    is_resting: bool,
    /// A run that is stopped now resumes beyond its start.
    has_advanced: bool,
    recall: watch::Sender<bool>,
}

impl Seat {
    fn is_recalled(&self) -> bool {
        *self.recall.borrow()
    }
}

struct WaitingJob {
    since: Instant,
    filter_kb: usize,
    /// The seat that was recalled for this job.
    recalled: Option<u64>,
}

struct WaitingOwner {
    owner: SeatOwner,
    /// Never empty.
    jobs: BTreeMap<Ticket, WaitingJob>,
}

/// The resources that an owner holds.
#[derive(Clone, Copy, Default)]
struct Share {
    seats: usize,
    filter_kb: usize,
}

/// The reason why a job gets no seat.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MissingResource {
    /// The owner holds as many seats as one user may.
    OwnSeat,
    /// The owner holds as much filter memory as one user may.
    OwnFilters,
    /// No filter memory is free.
    Filters,
    /// Users hold as many seats as all of them may.
    UserSeat,
    /// No seat is free.
    Seat,
}

impl MissingResource {
    /// Returns whether the return of a seat helps the owner.
    fn is_helped_by(self, seat: &Seat, owner: &SeatOwner) -> bool {
        match self {
            MissingResource::OwnSeat => seat.owner == *owner,
            MissingResource::OwnFilters => seat.owner == *owner && seat.filter_kb > 0,
            MissingResource::Filters => seat.filter_kb > 0,
            MissingResource::UserSeat => seat.owner.is_some(),
            MissingResource::Seat => true,
        }
    }

    /// Returns the amount of the missing resource in a share.
    fn amount_in(self, share: Share) -> usize {
        match self {
            MissingResource::OwnFilters | MissingResource::Filters => share.filter_kb,
            MissingResource::OwnSeat | MissingResource::UserSeat | MissingResource::Seat => share.seats,
        }
    }
}

pub(crate) struct Seats {
    limits: SeatLimits,
    next_id: u64,
    taken: BTreeMap<u64, Seat>,
    /// Without owners that hold no seat.
    shares: HashMap<SeatOwner, Share>,
    users_seats: usize,
    filter_kb: usize,
    waiting: VecDeque<WaitingOwner>,
    /// Seats assigned to jobs that have not repeated their requests since.
    assigned: BTreeMap<Ticket, SeatGrant>,
}

impl Seats {
    pub(crate) fn new(limits: SeatLimits) -> Seats {
        let (taken, shares, waiting, assigned) = Default::default();
        Seats { limits, next_id: 0, taken, shares, users_seats: 0, filter_kb: 0, waiting, assigned }
    }

    /// Takes a seat for a job that neither waits nor yields. `None`: none is free beyond those that waiting jobs can
    /// take.
    pub(crate) fn take(&mut self, owner: &SeatOwner, filter_kb: usize, now: Instant) -> Option<SeatGrant> {
        let are_filters_kept = self.assign(now);
        let is_free = self.lack(owner, filter_kb).is_none() && (filter_kb == 0 || !are_filters_kept);
        is_free.then(|| self.grant(owner, filter_kb, false, now))
    }

    /// Takes a seat for a job that repeats the request until it has one, and that can yield it. `ticket` is the job's,
    /// `None` at first; the job keeps it between requests. `None`: the job waits, and another job's seat may be
    /// recalled.
    pub(crate) fn ask(
        &mut self,
        owner: &SeatOwner,
        filter_kb: usize,
        ticket: &mut Option<Ticket>,
        now: Instant,
    ) -> Option<SeatGrant> {
        let place = match *ticket {
            Some(place) => place,
            None => self.enqueue(owner, filter_kb, now),
        };
        *ticket = Some(place);
        self.assign(now);
        if let Some(grant) = self.assigned.remove(&place) {
            *ticket = None;
            return Some(grant);
        }
        self.recall_for(owner, place, now);
        None
    }

    pub(crate) fn withdraw(&mut self, owner: &SeatOwner, ticket: Ticket) {
        if let Some(grant) = self.assigned.remove(&ticket) {
            self.leave(grant.id);
        }
        let Some(at) = self.position(owner) else { return };
        let Some(waiting) = self.waiting.get_mut(at) else { return };
        waiting.jobs.remove(&ticket);
        if waiting.jobs.is_empty() {
            self.waiting.remove(at);
        }
    }

    /// Returns a seat. An owner that waited because of its own limit goes to the end of the queue: other owners wait
    /// for the seat, too.
    pub(crate) fn leave(&mut self, id: u64) {
        let Some(seat) = self.taken.remove(&id) else { return };
        if let Some(at) = self.position(&seat.owner)
            && self.waiting.get(at).is_some_and(|waiting| self.is_at_own_limit(waiting))
            && let Some(waiting) = self.waiting.remove(at)
        {
            self.waiting.push_back(waiting);
        }
        self.users_seats -= usize::from(seat.owner.is_some());
        self.filter_kb -= seat.filter_kb;
        if let Some(share) = self.shares.get_mut(&seat.owner) {
            share.seats -= 1;
            share.filter_kb -= seat.filter_kb;
            if share.seats == 0 {
                self.shares.remove(&seat.owner);
            }
        }
    }

    /// Notes whether a seat's job waits to be retried.
    pub(crate) fn rest(&mut self, id: u64, is_resting: bool) {
        if let Some(seat) = self.taken.get_mut(&id) {
            seat.is_resting = is_resting;
        }
    }

    /// Notes that a seat's job, stopped now, resumes beyond its start.
    pub(crate) fn advance(&mut self, id: u64) {
        if let Some(seat) = self.taken.get_mut(&id) {
            seat.has_advanced = true;
        }
    }

    fn share(&self, owner: &SeatOwner) -> Share {
        self.shares.get(owner).copied().unwrap_or_default()
    }

    fn position(&self, owner: &SeatOwner) -> Option<usize> {
        self.waiting.iter().position(|waiting| waiting.owner == *owner)
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn enqueue(&mut self, owner: &SeatOwner, filter_kb: usize, now: Instant) -> Ticket {
        let (ticket, job) = (Ticket(self.next_id()), WaitingJob { since: now, filter_kb, recalled: None });
        match self.waiting.iter_mut().find(|waiting| waiting.owner == *owner) {
            Some(waiting) => {
                waiting.jobs.insert(ticket, job);
            }
            None => {
                let jobs = BTreeMap::from([(ticket, job)]);
                self.waiting.push_back(WaitingOwner { owner: owner.clone(), jobs });
            }
        }
        ticket
    }

    /// Returns the resource that an owner's job lacks; `None`: none.
    fn lack(&self, owner: &SeatOwner, filter_kb: usize) -> Option<MissingResource> {
        let (limits, share, is_user) = (&self.limits, self.share(owner), owner.is_some());
        if is_user && share.seats >= limits.user_jobs_max {
            Some(MissingResource::OwnSeat)
        } else if is_user && filter_kb > 0 && share.filter_kb + filter_kb > limits.user_filters_kb_max {
            Some(MissingResource::OwnFilters)
        } else if filter_kb > 0 && self.filter_kb + filter_kb > limits.filters_kb_max {
            Some(MissingResource::Filters)
        } else if is_user && self.users_seats >= limits.users_jobs_max {
            Some(MissingResource::UserSeat)
        } else if self.taken.len() >= limits.jobs_max {
            Some(MissingResource::Seat)
        } else {
            None
        }
    }

    fn is_at_own_limit(&self, waiting: &WaitingOwner) -> bool {
        let lack = waiting.jobs.first_key_value().and_then(|(_, job)| self.lack(&waiting.owner, job.filter_kb));
        matches!(lack, Some(MissingResource::OwnSeat | MissingResource::OwnFilters))
    }

    /// Assigns all seats that are free for waiting jobs. Returns whether the free filter memory is kept for a job that
    /// needs more.
    fn assign(&mut self, now: Instant) -> bool {
        let (mut at, mut are_filters_kept) = (0, false);
        while self.taken.len() < self.limits.jobs_max
            && let Some(waiting) = self.waiting.get(at)
            && let Some((ticket, job)) = waiting.jobs.first_key_value()
        {
            let (owner, ticket, filter_kb) = (waiting.owner.clone(), *ticket, job.filter_kb);
            let lack = self.lack(&owner, filter_kb);
            if lack.is_some() || filter_kb > 0 && are_filters_kept {
                are_filters_kept |= lack == Some(MissingResource::Filters);
                at += 1;
                continue;
            }
            if let Some(mut waiting) = self.waiting.remove(at) {
                waiting.jobs.remove(&ticket);
                if !waiting.jobs.is_empty() {
                    self.waiting.push_back(waiting);
                }
            }
            let grant = self.grant(&owner, filter_kb, true, now);
            self.assigned.insert(ticket, grant);
        }
        are_filters_kept
    }

    fn grant(&mut self, owner: &SeatOwner, filter_kb: usize, can_yield: bool, now: Instant) -> SeatGrant {
        let (id, recall) = (self.next_id(), watch::Sender::new(false));
        let recalled = recall.subscribe();
        let share = self.shares.entry(owner.clone()).or_default();
        share.seats += 1;
        share.filter_kb += filter_kb;
        self.users_seats += usize::from(owner.is_some());
        self.filter_kb += filter_kb;
        let (owner, is_resting, has_advanced) = (owner.clone(), false, false);
        self.taken.insert(id, Seat { owner, filter_kb, since: now, can_yield, is_resting, has_advanced, recall });
        SeatGrant { id, recalled }
    }

    /// Recalls a seat for the first waiting job of an owner, unless one that was recalled for it is not returned yet.
    fn recall_for(&mut self, owner: &SeatOwner, ticket: Ticket, now: Instant) {
        let Some(at) = self.position(owner) else { return };
        let first = self.waiting.get(at).and_then(|waiting| waiting.jobs.first_key_value());
        let Some((_, job)) = first.filter(|(first, _)| **first == ticket) else { return };
        if job.recalled.is_some_and(|id| self.taken.contains_key(&id)) {
            return;
        }
        let is_due = now.saturating_duration_since(job.since) >= self.limits.turn;
        let recalled = self.lack(owner, job.filter_kb).and_then(|lack| self.recall(owner, lack, is_due, now));
        let waiting = self.waiting.get_mut(at).and_then(|waiting| waiting.jobs.get_mut(&ticket));
        if let Some(job) = waiting {
            job.recalled = recalled;
        }
    }

    /// Recalls a seat that helps an owner and returns its id. First choice: a seat whose job waits to be retried.
    /// Otherwise, if the owner `is_due`, a seat held for a whole turn by the owner itself or by an owner that holds
    /// more.
    fn recall(&self, owner: &SeatOwner, lack: MissingResource, is_due: bool, now: Instant) -> Option<u64> {
        let amount = |owner: &SeatOwner| lack.amount_in(self.share(owner));
        let own = amount(owner);
        let has_had_turn = |seat: &Seat| {
            let turns = if seat.has_advanced { 1 } else { TURNS_WITHOUT_ADVANCE };
            let has_more = seat.owner == *owner || amount(&seat.owner) > own;
            has_more && now.saturating_duration_since(seat.since) >= self.limits.turn * turns
        };
        let helping = self.taken.iter().filter(|&(_, seat)| {
            let can_yield = seat.can_yield && !seat.is_recalled() && lack.is_helped_by(seat, owner);
            can_yield && (seat.is_resting || is_due && has_had_turn(seat))
        });
        let chosen = helping.max_by_key(|&(_, seat)| (seat.is_resting, amount(&seat.owner), Reverse(seat.since)));
        let (id, seat) = chosen?;
        seat.recall.send_replace(true);
        Some(*id)
    }
}

#[cfg(test)]
mod tests;
