//! Leases: one holder at a time, whatever the storage and the owners do. Time is a number that the test moves on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Store, create, delete, put};
use flatbed_jobs::{HOLDS_MAX, Hold, LEASE_STATE_BYTES_MAX, Lease, Owner, Sighting, TakenLease, valid_until};
use flatbed_layer::{Database, Error, Refusal};
use tokio::time::Instant;

/// In milliseconds of the test's time.
const SILENCE_MAX: u64 = 1_000;

/// Steps of the others while one waits for the storage: now and then an answer comes too late.
const STEPS_MAX: u64 = 12;

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
    // Held since: what was seen before counts no more.
    assert!(db.hold_lease("a", &one, b"first", false).await.unwrap());
    let seen = others(db.take_lease("a", &two, Some(&seen)).await.unwrap());
    // Silent since: taken over, with what the last owner told, and the old owner notices.
    assert_eq!(ours(db.take_lease("a", &two, Some(&seen)).await.unwrap()).state, b"first");
    assert!(!db.hold_lease("a", &one, b"", true).await.unwrap());
    // Released: free at once, and the state stays.
    assert!(db.hold_lease("a", &two, b"second", true).await.unwrap());
    assert_eq!(ours(db.take_lease("a", &one, None).await.unwrap()).state, b"second");

    // A lease that was dropped and taken anew by the same owner is not the one that was seen.
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
    // Of what is no document nobody has one, and none is left behind.
    assert!(db.take_document_lease("a", &one, None).await.unwrap().is_none());
    assert!(db.leases(None).await.unwrap().is_empty());
    let first = put(&db, "a", None, "{}").await.unwrap();
    ours(db.take_document_lease("a", &one, None).await.unwrap().unwrap());
    assert!(!db.drop_document_lease("a").await.unwrap());
    assert!(db.hold_lease("a", &one, b"one", false).await.unwrap());
    let gone = delete(&db, "a", &first).await.unwrap();
    assert!(db.take_document_lease("a", &two, None).await.unwrap().is_none());
    // Who has seen it go comes late, once it was made again and is somebody's.
    put(&db, "a", Some(&gone), "{}").await.unwrap();
    assert!(!db.drop_document_lease("a").await.unwrap());
    others(db.take_document_lease("a", &two, None).await.unwrap().unwrap());
    assert!(db.hold_lease("a", &one, b"one", false).await.unwrap());
    // In time, it does go.
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

fn hold(id: &str, state: &[u8]) -> Hold {
    Hold { id: id.to_owned(), state: state.to_vec() }
}

#[tokio::test]
async fn several_are_held_at_once_and_each_is_somebodys() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let (one, two): (Owner, Owner) = ([1; 16], [2; 16]);
    let beats = async || -> Vec<(String, u64, Vec<u8>)> {
        let leases = db.leases(None).await.unwrap();
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
    let many: Vec<Hold> = (0..=HOLDS_MAX).map(|at| hold(&at.to_string(), b"")).collect();
    let long = |count: usize, bytes| (0..count).map(|at| hold(&at.to_string(), &vec![0; bytes])).collect::<Vec<_>>();
    for holds in [many, long(11, LEASE_STATE_BYTES_MAX), long(1, LEASE_STATE_BYTES_MAX + 1)] {
        assert!(refused(db.hold_leases_after(&one, &holds, &|_, _| true).await));
    }
    assert!(db.hold_leases_after(&one, &[], &|_, _| true).await.unwrap().is_empty());
}

/// Owners hold all that they have in one transaction each, while others take over what they see; the storage fails now and then. Nobody
/// is told that a lease is its own which another has taken since, and none is lost for want of another one.
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
            let mine: Vec<Hold> = ids.iter().filter(|id| !lost.contains(*id)).map(|id| hold(id, b"state")).collect();
            let begun = Instant::now();
            let held = holder.hold_leases_after(&one, &mine, &|_, _| true).await;
            // Between two of them a lease can be seen, and taken, in longer and longer time.
            tokio::time::sleep(begun.elapsed() * (2 + round % 8)).await;
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
    let (taken, lost) = tokio::time::timeout(Duration::from_secs(300), both).await.expect("both come to their ends");
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

/// The test's time. While somebody waits for the storage it goes on by a number of steps only, however long that takes on
/// this machine.
#[derive(Clone)]
struct Clock {
    milliseconds: Arc<AtomicU64>,
    base: Instant,
    /// How many wait for the storage, and how many steps are left to those that are silent meanwhile.
    waiting: Arc<Mutex<(u32, u64)>>,
}

impl Clock {
    fn now(&self) -> Instant {
        self.base + Duration::from_millis(self.milliseconds.load(Ordering::SeqCst))
    }

    fn advance(&self, milliseconds: u64) {
        self.milliseconds.fetch_add(milliseconds, Ordering::SeqCst);
    }

    /// Waits for the storage, in which others make at most so many steps.
    async fn wait<T>(&self, steps: u64, storage: impl Future<Output = T>) -> T {
        {
            let mut waiting = self.waiting.lock().unwrap();
            *waiting = (waiting.0 + 1, waiting.1 + steps);
        }
        let answer = storage.await;
        let mut waiting = self.waiting.lock().unwrap();
        waiting.0 -= 1;
        if waiting.0 == 0 {
            waiting.1 = 0;
        }
        answer
    }

    /// A step of somebody who is silent.
    fn step(&self) {
        let mut waiting = self.waiting.lock().unwrap();
        if waiting.0 > 0 && waiting.1 == 0 {
            return;
        }
        waiting.1 = waiting.1.saturating_sub(1);
        self.advance(20);
    }
}

/// From when to when an owner acted on the lease.
type Holds = Arc<Mutex<Vec<(Owner, Instant, Instant)>>>;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A server that wants the lease, holds it for a while, and falls silent or releases it. Returns how often it took it from
/// another.
async fn contend(db: Database, owner: Owner, clock: Clock, holds: Holds, turns: u32) -> u32 {
    let mut random = Random(u64::from(owner[0]));
    let silence_max = Duration::from_millis(SILENCE_MAX);
    let mut seen: Option<Sighting> = None;
    let mut taken_over = 0;
    for _ in 0..turns {
        // Time goes on while transactions are under way too, as all owners move it.
        clock.advance(random.below(SILENCE_MAX / 8));
        tokio::task::yield_now().await;
        let begun = clock.now();
        let stale = seen.as_ref().and_then(|seen| seen.stale(begun, silence_max)).cloned();
        match clock.wait(random.below(STEPS_MAX), db.take_lease("job", &owner, stale.as_ref())).await {
            Err(_) => continue,
            Ok(TakenLease::Others(lease)) => {
                let now = clock.now();
                match &mut seen {
                    Some(seen) => seen.update(lease, now),
                    None => seen = Some(Sighting::new(lease, now)),
                }
                continue;
            }
            Ok(TakenLease::Ours(_)) => {}
        }
        taken_over += u32::from(stale.is_some());
        seen = None;
        let (from, mut until) = (clock.now(), valid_until(begun, silence_max));
        for _ in 0..random.below(6) {
            clock.advance(random.below(SILENCE_MAX / 4));
            let begun = clock.now();
            if begun >= until {
                break;
            }
            match clock.wait(random.below(STEPS_MAX), db.hold_lease("job", &owner, b"state", false)).await {
                // Heard too late: the owner has stopped by then.
                Ok(true) if clock.now() < until => until = valid_until(begun, silence_max),
                Ok(true) | Err(_) => {}
                Ok(false) => {
                    assert!(clock.now() >= until, "an owner had lost the lease while it was still to act on it");
                    break;
                }
            }
        }
        if random.below(3) == 0 && clock.now() < until {
            let at = clock.now();
            let _ = clock.wait(random.below(STEPS_MAX), db.hold_lease("job", &owner, b"state", true)).await;
            until = at;
        }
        if from < until {
            holds.lock().unwrap().push((owner, from, until));
        }
        // A long silence, in which another may take it over.
        let silent_until = clock.now() + Duration::from_millis(random.below(4 * SILENCE_MAX));
        while clock.now() < silent_until {
            clock.step();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    taken_over
}

#[tokio::test(flavor = "multi_thread")]
async fn never_two_holders_at_once_under_faults() {
    let seed = std::env::var("FLATBED_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() % 100_000
    });
    println!("FLATBED_TEST_SEED={seed}");
    let Some(store) = Store::with_faults(0.1, seed) else { return };
    let layer = store.layer().await;
    create(&layer, "db", None).await;
    let clock = Clock { milliseconds: Arc::default(), base: Instant::now(), waiting: Arc::default() };
    let holds = Holds::default();
    let mut contenders = Vec::new();
    for number in 1..=4 {
        let db = store.layer().await.database("db");
        contenders.push(tokio::spawn(contend(db, [number; 16], clock.clone(), holds.clone(), 150)));
    }
    let mut taken_over = 0;
    for contender in contenders {
        let contended = tokio::time::timeout(Duration::from_secs(300), contender).await;
        taken_over += contended.expect("it comes to its end").unwrap();
    }
    let mut holds = holds.lock().unwrap().clone();
    holds.sort_by_key(|(_, from, _)| *from);
    for pair in holds.windows(2) {
        let [(one, _, until), (other, from, _)] = pair else { unreachable!() };
        assert!(one == other || until <= from, "both {} and {} held it", one[0], other[0]);
    }
    let owners: std::collections::HashSet<Owner> = holds.iter().map(|(owner, ..)| *owner).collect();
    assert!(holds.len() > 20 && owners.len() == 4 && taken_over > 5, "{taken_over} {}", holds.len());
    println!("{} holds, {taken_over} taken over", holds.len());
}
