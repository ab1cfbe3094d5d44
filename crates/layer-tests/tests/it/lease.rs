//! Leases: one holder at a time, whatever the storage and the owners do. Contenders run in virtual time.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Random, Store, create, delete, put, soon};
use crate::waits::runtime;
use fdb_embedded::VirtualClock;
use flatbed_jobs::{HOLDS_MAX, LEASE_STATE_BYTES_MAX, Lease, LeaseRenewal, Owner, Sighting, TakenLease, valid_until};
use flatbed_layer::{Database, Error, Refusal};
use flatbed_testkit::{engine, number, pass};
use foundationdb_sys::backend::Embedded;
use tokio::time::Instant;

fn ours(taken: TakenLease) -> Lease {
    match taken {
        TakenLease::Ours(lease) => lease,
        TakenLease::Others(lease) => panic!("another has it: {lease:?}"),
    }
}

fn others(taken: TakenLease) -> Lease {
    match taken {
        TakenLease::Others(lease) => lease,
        TakenLease::Ours(lease) => panic!("taken: {lease:?}"),
    }
}

#[tokio::test]
async fn taken_held_released_and_dropped() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let (one, two): (Owner, Owner) = ([1; 16], [2; 16]);

    assert_eq!(ours(db.take_lease("a", &one, None).await.unwrap()).state, b"");
    assert!(db.hold_lease("a", &one, b"first", false).await.unwrap());
    let seen = others(db.take_lease("a", &two, None).await.unwrap());
    assert!(seen.state == b"first" && seen.is_of_another(&two) && !seen.is_of_another(&one));
    assert!(!db.hold_lease("a", &two, b"", false).await.unwrap());
    // Renewed since: the earlier observation does not count any more.
    assert!(db.hold_lease("a", &one, b"first", false).await.unwrap());
    let seen = others(db.take_lease("a", &two, Some(&seen)).await.unwrap());
    // Silent since: taken over with the last owner's state, and the old owner notices.
    assert_eq!(ours(db.take_lease("a", &two, Some(&seen)).await.unwrap()).state, b"first");
    assert!(!db.hold_lease("a", &one, b"", true).await.unwrap());
    // Released: free at once, and the state stays.
    assert!(db.hold_lease("a", &two, b"second", true).await.unwrap());
    assert_eq!(ours(db.take_lease("a", &one, None).await.unwrap()).state, b"second");

    // A lease that the same owner released and took again is not the observed one.
    assert!(db.hold_lease("a", &one, b"", false).await.unwrap());
    db.drop_lease("b").await.unwrap();
    ours(db.take_lease("b", &one, None).await.unwrap());
    let seen = others(db.take_lease("b", &two, None).await.unwrap());
    db.drop_lease("b").await.unwrap();
    assert!(!db.hold_lease("b", &one, b"", false).await.unwrap());
    ours(db.take_lease("b", &one, None).await.unwrap());
    others(db.take_lease("b", &two, Some(&seen)).await.unwrap());

    let long = vec![b'x'; LEASE_STATE_BYTES_MAX + 1];
    assert!(matches!(db.hold_lease("a", &one, &long, false).await, Err(Error::Refused(Refusal::InvalidSetting(_)))));
    // Several pages of them, in order.
    for n in 0..450 {
        ours(db.take_lease(&format!("n{n:04}"), &one, None).await.unwrap());
    }
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = db.leases(after.as_deref()).await.unwrap();
        let Some((last, _)) = page.last() else { break };
        after = Some(last.clone());
        all.extend(page.into_iter().map(|(id, _)| id));
    }
    assert!(all.len() == 452 && all.is_sorted());
}

#[tokio::test]
async fn a_documents_lease_is_there_with_its_document_alone() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let (one, two): (Owner, Owner) = ([1; 16], [2; 16]);
    // A missing document cannot have a lease, and no lease of it is left behind.
    assert!(db.take_document_lease("a", &one, None).await.unwrap().is_none());
    assert!(db.leases(None).await.unwrap().is_empty());
    let first = put(&db, "a", None, "{}").await.unwrap();
    ours(db.take_document_lease("a", &one, None).await.unwrap().unwrap());
    assert!(!db.drop_document_lease("a").await.unwrap());
    assert!(db.hold_lease("a", &one, b"one", false).await.unwrap());
    let gone = delete(&db, "a", &first).await.unwrap();
    assert!(db.take_document_lease("a", &two, None).await.unwrap().is_none());
    // The document was created again and leased since another process saw its deletion.
    put(&db, "a", Some(&gone), "{}").await.unwrap();
    assert!(!db.drop_document_lease("a").await.unwrap());
    others(db.take_document_lease("a", &two, None).await.unwrap().unwrap());
    assert!(db.hold_lease("a", &one, b"one", false).await.unwrap());
    // In time, the removal succeeds.
    put(&db, "b", None, "{}").await.unwrap();
    ours(db.take_document_lease("b", &one, None).await.unwrap().unwrap());
    db.drop_lease("a").await.unwrap();
    let rev = put(&db, "c", None, "{}").await.unwrap();
    ours(db.take_document_lease("c", &one, None).await.unwrap().unwrap());
    delete(&db, "c", &rev).await.unwrap();
    assert!(db.drop_document_lease("c").await.unwrap());
    let left: Vec<String> = db.leases(None).await.unwrap().into_iter().map(|(id, _)| id).collect();
    assert_eq!(left, ["b"]);
}

fn hold(id: &str, state: &[u8]) -> LeaseRenewal {
    LeaseRenewal { id: id.to_owned(), state: state.to_vec() }
}

#[tokio::test]
async fn several_are_held_at_once_and_each_is_somebodys() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let (one, two): (Owner, Owner) = ([1; 16], [2; 16]);
    let beats = async || -> Vec<(String, u64, Vec<u8>)> {
        let mut leases = db.leases(None).await.unwrap();
        while let Some((last, _)) = leases.last() {
            let page = db.leases(Some(last)).await.unwrap();
            if page.is_empty() {
                break;
            }
            leases.extend(page);
        }
        leases.into_iter().map(|(id, lease)| (id, lease.beats, lease.state)).collect()
    };
    for id in ["a", "b", "c", "d", "e"] {
        ours(db.take_lease(id, &one, None).await.unwrap());
    }
    // One was taken over meanwhile, one is gone, and one says that it is not to be followed.
    let seen = others(db.take_lease("b", &two, None).await.unwrap());
    ours(db.take_lease("b", &two, Some(&seen)).await.unwrap());
    db.drop_lease("d").await.unwrap();
    assert!(db.hold_lease("e", &one, b"9", false).await.unwrap());
    let before = beats().await;
    let all = ["a", "b", "c", "d", "e"].map(|id| hold(id, b"5"));
    let held = db.hold_leases_after(&one, &all, &|found, told| found <= told).await.unwrap();
    assert_eq!(held, [true, false, true, false, false]);
    let expected: Vec<_> = before
        .into_iter()
        .map(
            |(id, beats, state)| {
                if id == "a" || id == "c" { (id, beats + 1, b"5".to_vec()) } else { (id, beats, state) }
            },
        )
        .collect();
    assert_eq!(beats().await, expected);
    assert!(db.hold_lease("b", &two, b"", false).await.unwrap(), "it is the other's as before");
    let refused = |error: Result<Vec<bool>, Error>| matches!(error, Err(Error::Refused(Refusal::InvalidSetting(_))));
    let many: Vec<LeaseRenewal> = (0..=HOLDS_MAX).map(|at| hold(&at.to_string(), b"")).collect();
    let long = |count: usize, bytes| (0..count).map(|at| hold(&at.to_string(), &vec![0; bytes])).collect::<Vec<_>>();
    for holds in [many, long(11, LEASE_STATE_BYTES_MAX), long(1, LEASE_STATE_BYTES_MAX + 1)] {
        assert!(refused(db.hold_leases_after(&one, &holds, &|_, _| true).await));
    }
    assert!(db.hold_leases_after(&one, &[], &|_, _| true).await.unwrap().is_empty());
}

/// Each owner renews all its leases in one transaction, while others take over leases that they have observed, and the
/// storage has faults. No owner is told that it holds a lease that another has taken since, and the loss of one lease
/// does not affect the others.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_taken_over_among_several_is_lost_alone_under_faults() {
    let Some(store) = Store::with_faults(0.1, 7) else { return };
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let (one, two): (Owner, Owner) = ([1; 16], [2; 16]);
    let ids: Vec<String> = (0..20).map(|at| format!("j{at:02}")).collect();
    for id in &ids {
        while db.take_lease(id, &one, None).await.is_err() {}
    }
    let takes = async {
        let mut taken = Vec::new();
        for id in ids.iter().step_by(3) {
            loop {
                let stale = match db.take_lease(id, &two, None).await {
                    Ok(TakenLease::Others(lease)) => lease,
                    Ok(TakenLease::Ours(_)) => break,
                    Err(_) => continue,
                };
                if matches!(db.take_lease(id, &two, Some(&stale)).await, Ok(TakenLease::Ours(_))) {
                    break;
                }
            }
            taken.push(id.clone());
        }
        taken
    };
    let holder = store.layer().await.database("db");
    let done = AtomicU64::new(0);
    let holds = async {
        let mut lost = std::collections::BTreeSet::new();
        for round in 0_u32.. {
            let is_last = done.load(Ordering::SeqCst) == 1;
            let mine: Vec<LeaseRenewal> =
                ids.iter().filter(|id| !lost.contains(*id)).map(|id| hold(id, b"state")).collect();
            let begun = Instant::now();
            let held = holder.hold_leases_after(&one, &mine, &|_, _| true).await;
            // The interval in which another process can see and take a lease grows.
            pass(begun.elapsed() * (2 + round % 8)).await;
            let Ok(held) = held else { continue };
            lost.extend(mine.iter().zip(held).filter(|(_, held)| !held).map(|(hold, _)| hold.id.clone()));
            if is_last {
                break;
            }
        }
        lost
    };
    let takes = async {
        let taken = takes.await;
        done.store(1, Ordering::SeqCst);
        taken
    };
    let both = async { tokio::join!(takes, holds) };
    let (taken, lost) = soon(both).await;
    assert_eq!(taken, lost.into_iter().collect::<Vec<_>>());
    let leases = loop {
        if let Ok(leases) = db.leases(None).await {
            break leases;
        }
    };
    for (id, lease) in leases {
        assert_eq!(lease.owner == two, taken.contains(&id), "{id}");
    }
}

/// Others take over a lease that has not changed for this long. A fault delays an answer by up to a fifth of a second.
const SILENCE_MAX: Duration = Duration::from_millis(300);

/// Attempts of each contender to take the lease.
const TURNS: u32 = 120;

/// A period in which an owner acts on the lease: it ends before `until`.
#[derive(Debug, Clone, PartialEq)]
struct Term {
    owner: u8,
    from: Duration,
    until: Duration,
}

/// The state that the contenders share. The clock stands still while any of them runs, so it shows one time throughout
/// a step.
struct Contest {
    clock: Arc<VirtualClock>,
    base: Instant,
    terms: Mutex<Vec<Term>>,
    /// Events with their times and contenders.
    events: Mutex<Vec<(Duration, u8, &'static str)>>,
    taken_over: AtomicU64,
    given_up: AtomicU64,
}

/// A server that contends for the lease. Its clock runs at `percent` of the contest's.
struct Contender {
    contest: Arc<Contest>,
    db: Database,
    number: u8,
    percent: u32,
    random: Random,
}

impl Contender {
    /// Returns the time of its own clock.
    fn now(&self) -> Instant {
        self.contest.base + self.contest.clock.now() * self.percent / 100
    }

    /// Returns the contest's time at which its own clock shows `instant`, rounded up.
    fn moment(&self, instant: Instant) -> Duration {
        let own = instant.saturating_duration_since(self.contest.base);
        (own * 100 + Duration::from_nanos(u64::from(self.percent) - 1)) / self.percent
    }

    fn note(&self, event: &'static str) {
        self.contest.events.lock().unwrap().push((self.contest.clock.now(), self.number, event));
    }

    /// Ends its terms when it releases the lease, including those that it left by silence.
    fn end_terms(&self) {
        let now = self.contest.clock.now();
        let mut terms = self.contest.terms.lock().unwrap();
        terms.iter_mut().filter(|term| term.owner == self.number).for_each(|term| term.until = term.until.min(now));
    }

    async fn pause(&mut self, bound: Duration) {
        let micros = self.random.below(u64::try_from(bound.as_micros()).expect("short"));
        self.contest.clock.sleep(Duration::from_micros(micros)).await;
    }

    /// Returns the storage's answer; `None` if it did not arrive until its clock showed `until`. The operation may
    /// still take effect later.
    async fn until<T>(&self, until: Instant, answer: impl Future<Output = T>) -> Option<T> {
        let left = self.moment(until).saturating_sub(self.contest.clock.now());
        let timeout = self.contest.clock.sleep(left);
        tokio::select! {
            biased;
            answer = answer => {
                self.note("answered");
                Some(answer)
            }
            () = timeout => {
                self.note("given up");
                self.contest.given_up.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Takes the lease repeatedly, renews it a few times as [`flatbed_jobs::lead`] does, and releases it or falls
    /// silent.
    async fn contend(mut self) {
        let owner: Owner = [self.number; 16];
        let mut seen: Option<Sighting> = None;
        for _ in 0..TURNS {
            self.pause(SILENCE_MAX / 8).await;
            self.note("takes");
            let begun = self.now();
            let stale = seen.as_ref().and_then(|seen| seen.stale(begun, SILENCE_MAX)).cloned();
            // One in eight operations is dropped early, as by a process that ends or loses its connection.
            let patience = if self.random.below(8) == 0 { Duration::from_millis(4) } else { SILENCE_MAX };
            let taken = self.db.take_lease("job", &owner, stale.as_ref());
            match self.until(begun + patience, taken).await {
                None | Some(Err(_)) => continue,
                Some(Ok(TakenLease::Others(lease))) => {
                    let now = self.now();
                    match &mut seen {
                        Some(seen) => seen.update(lease, now),
                        None => seen = Some(Sighting::new(lease, now)),
                    }
                    continue;
                }
                Some(Ok(TakenLease::Ours(_))) => {}
            }
            self.contest.taken_over.fetch_add(u64::from(stale.is_some()), Ordering::Relaxed);
            seen = None;
            let (from, mut until) = (self.contest.clock.now(), valid_until(begun, SILENCE_MAX));
            for _ in 0..self.random.below(6) {
                self.pause(SILENCE_MAX / 4).await;
                let begun = self.now();
                if begun >= until {
                    break;
                }
                match self.until(until, self.db.hold_lease("job", &owner, b"state", false)).await {
                    Some(Ok(true)) => until = valid_until(begun, SILENCE_MAX),
                    Some(Err(_)) => {}
                    Some(Ok(false)) => panic!("{} had lost the lease while it was to act on it", self.number),
                    None => break,
                }
            }
            let now = self.now();
            if now < until && self.random.below(3) == 0 {
                self.note("releases");
                self.end_terms();
                until = now;
                let patience = SILENCE_MAX * u32::try_from(self.random.below(3)).expect("small") / 20;
                let _ = self.until(now + patience, self.db.hold_lease("job", &owner, b"state", true)).await;
            }
            let term = Term { owner: self.number, from, until: self.moment(until) };
            if term.from < term.until {
                self.contest.terms.lock().unwrap().push(term);
            }
            // A long silence, in which another contender may take it over.
            if self.random.below(2) == 0 {
                self.pause(SILENCE_MAX * 4).await;
            }
        }
    }
}

/// Four servers contend for one lease. Everything follows from the seed: one thread runs, it moves the clock when no
/// task can run, and each step of the clock wakes one task.
fn contest(engine: Embedded, seed: u64) -> Contest {
    let clock = Arc::<VirtualClock>::default();
    let store = Store::simulated_with_faults(&clock, 0.1, seed).expect("the engine");
    let runtime = runtime(Some(engine), &clock);
    let contest = Contest {
        clock,
        base: Instant::now(),
        terms: Mutex::default(),
        events: Mutex::default(),
        taken_over: AtomicU64::new(0),
        given_up: AtomicU64::new(0),
    };
    let contest = Arc::new(contest);
    let mut random = Random(seed);
    runtime.block_on(async {
        create(&store.layer_alone().await, "db", None).await;
        let mut contenders = Vec::new();
        for number in 1..=4 {
            let db = store.layer_alone().await.database("db");
            // A clock that runs 10 % too fast or too slow uses up part of the rest of the silence.
            let percent = 90 + u32::try_from(random.below(21)).expect("small");
            let random = Random(random.below(u64::MAX));
            contenders.push(Contender { contest: Arc::clone(&contest), db, number, percent, random });
        }
        let contenders: Vec<_> = contenders.into_iter().map(|one| tokio::spawn(one.contend())).collect();
        for contender in contenders {
            contender.await.unwrap();
        }
    });
    Arc::into_inner(contest).expect("all have ended")
}

/// Fails if two owners had the lease at the same time.
fn assert_one_at_a_time(terms: &[Term], seed: u64) {
    let mut terms = terms.to_vec();
    terms.sort_by_key(|term| term.from);
    for (at, term) in terms.iter().enumerate() {
        let overlaps = |later: &&Term| later.owner != term.owner && later.from < term.until;
        if let Some(later) = terms.iter().skip(at + 1).find(overlaps) {
            panic!("FLATBED_TEST_SEED={seed}: both {term:?} and {later:?}");
        }
    }
}

/// `FLATBED_TEST_SEED=7` takes one seed, `FLATBED_TEST_SEEDS=5000` the first 5,000.
#[test]
fn never_two_holders_at_once_under_faults() {
    let Some(engine) = engine() else { return };
    let seeds = match (number("FLATBED_TEST_SEED"), number("FLATBED_TEST_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(10),
    };
    let (mut terms, mut several, mut taken_over, mut given_up) = (0, 0, 0, 0);
    for seed in seeds.clone() {
        let contest = contest(engine, seed);
        let held = contest.terms.into_inner().unwrap();
        assert_one_at_a_time(&held, seed);
        let owners: HashSet<u8> = held.iter().map(|term| term.owner).collect();
        several += u64::from(owners.len() > 2);
        terms += held.len() as u64;
        taken_over += contest.taken_over.into_inner();
        given_up += contest.given_up.into_inner();
    }
    let count = seeds.end - seeds.start;
    println!("{count} seeds: {terms} terms, {taken_over} taken over, {given_up} answers not waited for");
    // On average each seed has some of each.
    assert!(terms > 20 * count && 2 * several > count && taken_over > 5 * count && given_up > 5 * count);
}

#[test]
fn a_contest_follows_from_its_seed() {
    let Some(engine) = engine() else { return };
    let events = |seed| contest(engine, seed).events.into_inner().unwrap();
    let (first, again) = (events(22_085), events(22_085));
    let at = first.iter().zip(&again).take_while(|(one, other)| one == other).count();
    let near = |events: &[_]| {
        format!("{:?}", events.iter().skip(at.saturating_sub(8)).take(12).collect::<Vec<&(Duration, u8, &str)>>())
    };
    assert!(first == again, "they part at {at}:\n{}\n{}", near(&first), near(&again));
    assert_ne!(first, events(22_086));
}
