use super::*;

const TURN: Duration = Duration::from_secs(60);

/// The interval of a job's requests.
const ROUND: Duration = Duration::from_secs(4);

fn seats(jobs_max: usize, users_jobs_max: usize, user_jobs_max: usize) -> Seats {
    let (filters_kb_max, user_filters_kb_max) = (64, 16);
    Seats::new(SeatLimits { jobs_max, users_jobs_max, user_jobs_max, filters_kb_max, user_filters_kb_max, turn: TURN })
}

fn user(name: &str) -> SeatOwner {
    Some(name.into())
}

/// A job that requests a seat each round.
struct Job {
    owner: SeatOwner,
    filter_kb: usize,
    ticket: Option<Ticket>,
    seat: Option<SeatGrant>,
}

impl Job {
    fn new(owner: &SeatOwner, filter_kb: usize) -> Job {
        Job { owner: owner.clone(), filter_kb, ticket: None, seat: None }
    }

    fn many(owner: &SeatOwner, count: usize) -> Vec<Job> {
        (0..count).map(|_| Job::new(owner, 0)).collect()
    }

    /// Requests a seat, unless the job has one. Returns whether it has one then.
    fn ask(&mut self, seats: &mut Seats, now: Instant) -> bool {
        if self.seat.is_none() {
            self.seat = seats.ask(&self.owner, self.filter_kb, &mut self.ticket, now);
            if let Some(seat) = &self.seat {
                seats.advance(seat.id);
            }
        }
        self.seat.is_some()
    }

    fn is_recalled(&self) -> bool {
        self.seat.as_ref().is_some_and(|seat| *seat.recalled.borrow())
    }

    fn leave(&mut self, seats: &mut Seats) {
        if let Some(seat) = self.seat.take() {
            seats.leave(seat.id);
        }
    }

    fn rest(&self, seats: &mut Seats) {
        seats.rest(self.seat.as_ref().unwrap().id, true);
    }
}

/// All jobs ask in their order. Returns how many have a seat then.
fn ask_all(jobs: &mut [Job], seats: &mut Seats, now: Instant) -> usize {
    jobs.iter_mut().filter_map(|job| job.ask(seats, now).then_some(())).count()
}

fn yield_recalled(jobs: &mut [Job], seats: &mut Seats) {
    for job in jobs.iter_mut().filter(|job| job.is_recalled()) {
        job.leave(seats);
    }
}

#[test]
fn the_one_job_of_an_owner_starts_in_the_next_round() {
    let mut seats = seats(10, 8, 8);
    let now = Instant::now();
    let mut annas = Job::many(&user("anna"), 20_000);
    let mut bob = Job::new(&user("bob"), 0);
    assert_eq!(ask_all(&mut annas, &mut seats, now), 8);
    assert!(!bob.ask(&mut seats, now));
    // A seat that becomes free goes to bob, although many other jobs request it first: anna's queue stays behind his.
    annas[0].leave(&mut seats);
    let mut carls = Job::many(&user("carl"), 20_000);
    assert_eq!(ask_all(&mut carls, &mut seats, now + ROUND), 0);
    assert!(bob.ask(&mut seats, now + ROUND));
}

#[test]
fn a_seat_is_recalled_after_a_turn_where_none_becomes_free() {
    let mut seats = seats(10, 8, 8);
    let mut now = Instant::now();
    let mut annas = Job::many(&user("anna"), 8);
    let mut bob = Job::new(&user("bob"), 0);
    assert_eq!(ask_all(&mut annas, &mut seats, now), 8);
    let since = now;
    while now < since + TURN {
        assert!(!bob.ask(&mut seats, now));
        assert!(!annas.iter().any(Job::is_recalled));
        now += ROUND;
    }
    for _ in 0..3 {
        assert!(!bob.ask(&mut seats, now));
        assert_eq!(annas.iter().filter(|job| job.is_recalled()).count(), 1);
    }
    yield_recalled(&mut annas, &mut seats);
    assert_eq!(ask_all(&mut annas, &mut seats, now), 7);
    assert!(bob.ask(&mut seats, now));
}

#[test]
fn a_recalled_job_that_asks_first_waits_behind_the_other_jobs_of_its_owner() {
    // A user at its limit, and administrators who have all seats.
    for owner in [user("anna"), None] {
        let mut seats = seats(2, 2, 2);
        let mut now = Instant::now();
        let mut jobs = Job::many(&owner, 3);
        let mut starts = [0; 3];
        for _ in 0..200 {
            yield_recalled(&mut jobs, &mut seats);
            // The jobs ask in the order in which they were added, so a recalled one asks before the one that waits
            // longest.
            for (job, starts) in jobs.iter_mut().zip(&mut starts) {
                let had_seat = job.seat.is_some();
                *starts += usize::from(job.ask(&mut seats, now) && !had_seat);
            }
            now += ROUND;
        }
        assert!(starts.iter().all(|starts| *starts > 2), "{owner:?}: {starts:?}");
        // One seat changes hands in a turn, not one in each round.
        assert!(starts.iter().sum::<usize>() <= 20, "{owner:?}: {starts:?}");
    }
}

#[test]
fn a_job_that_would_lose_its_work_keeps_its_seat_for_several_turns() {
    let mut seats = seats(1, 1, 1);
    let (anna, mut now) = (user("anna"), Instant::now());
    let grant = seats.ask(&anna, 0, &mut None, now).unwrap();
    let mut bob = Job::new(&user("bob"), 0);
    let since = now;
    while now < since + TURN * TURNS_WITHOUT_ADVANCE {
        assert!(!bob.ask(&mut seats, now) && !*grant.recalled.borrow());
        now += ROUND;
    }
    assert!(!bob.ask(&mut seats, now) && *grant.recalled.borrow());
    // Once it has advanced, one turn is enough.
    seats.leave(grant.id);
    assert!(bob.ask(&mut seats, now));
    let mut carl = Job::new(&user("carl"), 0);
    assert!(!carl.ask(&mut seats, now) && !carl.ask(&mut seats, now + TURN) && bob.is_recalled());
}

#[test]
fn a_job_that_waits_to_be_retried_gives_its_seat_up_at_once() {
    let mut seats = seats(3, 3, 3);
    let now = Instant::now();
    let mut annas = Job::many(&user("anna"), 4);
    let mut bob = Job::new(&user("bob"), 0);
    assert_eq!(ask_all(&mut annas[..3], &mut seats, now), 3);
    annas[1].rest(&mut seats);
    assert!(!bob.ask(&mut seats, now) && !bob.ask(&mut seats, now));
    let recalled: Vec<bool> = annas.iter().map(Job::is_recalled).collect();
    assert_eq!(recalled, [false, true, false, false]);
    annas[1].leave(&mut seats);
    assert!(!annas[3].ask(&mut seats, now));
    assert!(bob.ask(&mut seats, now));
}

#[test]
fn the_order_lasts_however_long_a_round_takes() {
    let mut seats = seats(1, 1, 1);
    let mut now = Instant::now();
    let [mut anna, mut bob, mut carl] = ["anna", "bob", "carl"].map(|name| Job::new(&user(name), 0));
    assert!(anna.ask(&mut seats, now) && !bob.ask(&mut seats, now) && !carl.ask(&mut seats, now));
    anna.leave(&mut seats);
    now += Duration::from_secs(3_600);
    assert!(!carl.ask(&mut seats, now) && bob.ask(&mut seats, now));
}

#[test]
fn a_withdrawn_request_holds_up_no_other() {
    let mut seats = seats(1, 1, 1);
    let now = Instant::now();
    let [mut anna, mut bob, mut carl] = ["anna", "bob", "carl"].map(|name| Job::new(&user(name), 0));
    assert!(anna.ask(&mut seats, now) && !bob.ask(&mut seats, now) && !carl.ask(&mut seats, now));
    anna.leave(&mut seats);
    // The seat is bob's, and no other job may take it meanwhile.
    assert!(!carl.ask(&mut seats, now) && seats.take(&user("dora"), 0, now).is_none());
    seats.withdraw(&bob.owner, bob.ticket.take().unwrap());
    assert!(carl.ask(&mut seats, now));
    assert!(seats.waiting.is_empty() && seats.assigned.is_empty());
}

#[test]
fn a_seat_of_an_administrator_is_of_no_use_to_users_who_have_all_of_theirs() {
    let mut seats = seats(3, 1, 1);
    let now = Instant::now();
    let mut admins = Job::many(&None, 3);
    assert_eq!(ask_all(&mut admins[..2], &mut seats, now), 2);
    admins[..2].iter().for_each(|job| job.rest(&mut seats));
    let [mut anna, mut bob] = ["anna", "bob"].map(|name| Job::new(&user(name), 0));
    assert!(anna.ask(&mut seats, now) && !bob.ask(&mut seats, now));
    assert!(!admins.iter().any(Job::is_recalled));
    anna.rest(&mut seats);
    assert!(!bob.ask(&mut seats, now) && anna.is_recalled());
    // Waiting users do not keep an administrator from a seat that users may not hold.
    admins[0].leave(&mut seats);
    assert!(admins[2].ask(&mut seats, now));
}

#[test]
fn a_job_with_a_filter_recalls_a_seat_that_holds_filters() {
    let mut seats = seats(20, 20, 20);
    let mut now = Instant::now();
    let mut others: Vec<Job> = (0..8).map(|n| Job::new(&user(&format!("u{}", n / 2)), 8)).collect();
    assert_eq!(ask_all(&mut others, &mut seats, now), 8);
    let (mut plain, mut bob) = (Job::new(&user("plain"), 0), Job::new(&user("bob"), 16));
    assert!(!bob.ask(&mut seats, now));
    // It holds up neither jobs without filters, nor does a smaller filter overtake it.
    assert!(plain.ask(&mut seats, now));
    let mut carl = Job::new(&user("carl"), 8);
    for _ in 0..40 {
        now += ROUND;
        yield_recalled(&mut others, &mut seats);
        assert!(!plain.is_recalled());
        assert!(!carl.ask(&mut seats, now) || bob.seat.is_some());
        bob.ask(&mut seats, now);
    }
    assert!(bob.seat.is_some());
}

#[test]
fn the_filters_of_an_owner_are_bounded_and_its_jobs_take_turns_at_them() {
    let mut seats = seats(20, 20, 20);
    let mut now = Instant::now();
    let mut annas: Vec<Job> = (0..3).map(|_| Job::new(&user("anna"), 8)).collect();
    assert_eq!(ask_all(&mut annas, &mut seats, now), 2);
    assert!(seats.take(&user("anna"), 8, now).is_none() && seats.take(&user("anna"), 0, now).is_some());
    for _ in 0..20 {
        now += ROUND;
        ask_all(&mut annas[2..], &mut seats, now);
        yield_recalled(&mut annas[..2], &mut seats);
    }
    assert!(annas[2].seat.is_some() && seats.share(&user("anna")).filter_kb == 16);
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
fn each_waiting_job_gets_a_seat_within_a_bounded_number_of_rounds() {
    for seed in 0..20 {
        let mut numbers = Numbers(seed);
        let owners: Vec<SeatOwner> = (0..5).map(|n| (n > 0).then(|| format!("u{n}").into())).collect();
        let jobs_max = 1 + numbers.below(6);
        let users_jobs_max = jobs_max - jobs_max / 5;
        let user_jobs_max = 1 + numbers.below(jobs_max);
        let mut seats = seats(jobs_max, users_jobs_max, user_jobs_max);
        let mut jobs: Vec<Job> = (0..15).map(|n| Job::new(&owners[n % 5], 8 * numbers.below(2))).collect();
        // Rounds that a job has waited without a break.
        let mut waited = [0; 15];
        let mut now = Instant::now();
        for round in 0..1_000 {
            now += ROUND;
            for (job, waited) in jobs.iter_mut().zip(&mut waited) {
                if job.is_recalled() || numbers.below(100) == 0 {
                    job.leave(&mut seats);
                }
                if let Some(seat) = &job.seat {
                    let is_resting = numbers.below(20) == 0;
                    seats.rest(seat.id, is_resting);
                }
                // Another server runs the job for a while.
                if numbers.below(1_000) == 0
                    && let Some(ticket) = job.ticket.take()
                {
                    seats.withdraw(&job.owner, ticket);
                    *waited = 0;
                }
            }
            let first = numbers.below(15);
            for n in 0..15 {
                let at = (first + n) % 15;
                waited[at] = if jobs[at].ask(&mut seats, now) { 0 } else { waited[at] + 1 };
                assert!(waited[at] <= 300, "seed {seed}, round {round}: job {at} waited for {} rounds", waited[at]);
            }
            let of = |owner: &SeatOwner| jobs.iter().filter(|job| job.seat.is_some() && job.owner == *owner).count();
            let users: usize = owners[1..].iter().map(of).sum();
            assert!(of(&None) + users <= jobs_max && users <= users_jobs_max, "seed {seed}, round {round}");
            assert!(owners[1..].iter().all(|owner| of(owner) <= user_jobs_max), "seed {seed}, round {round}");
        }
    }
}
