//! Processes that contend for one lease, in virtual time. The storage answers late, loses answers and reports
//! conflicts, by a seed. While one process works, no other may consider the lease its own.

use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use flatbed_testkit::{number, pass, seed, until};

use super::*;
use crate::job::{Failure, Next, Run};
use crate::status::Status;

const SILENCE_MAX: Duration = Duration::from_secs(15);
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(5) };
const PROCESSES: u8 = 4;

const CONTEST: Duration = Duration::from_secs(900);

/// Random numbers that the processes of a contest share.
struct Random(Mutex<flatbed_testkit::Random>);

impl Random {
    fn new(seed: u64) -> Random {
        Random(Mutex::new(flatbed_testkit::Random(seed)))
    }

    fn below(&self, bound: u64) -> u64 {
        self.0.lock().unwrap().below(bound)
    }

    /// Returns a mostly short delay; one in ten lets a lease expire.
    fn delay(&self) -> Duration {
        let bound = if self.below(10) == 0 { 20_000 } else { 200 };
        Duration::from_millis(self.below(bound))
    }
}

/// One lease in a storage with optimistic transactions.
struct Storage {
    /// The lease and the version of its last write.
    stored: Arc<Mutex<(Lease, u64)>>,
    random: Random,
}

impl Storage {
    /// Runs a transaction until it has an answer. `decide` returns the lease to write and the answer.
    async fn transact<T: Clone>(&self, decide: impl Fn(&Lease) -> (Option<Lease>, T)) -> Result<T, LeaseError> {
        for _ in 0..5 {
            pass(self.random.delay()).await;
            let (found, version) = self.stored.lock().unwrap().clone();
            let (next, answer) = decide(&found);
            let Some(next) = next else { return Ok(answer) };
            let fault = self.random.below(10);
            let (arrives, answers, stored) = (self.random.delay(), self.random.delay(), self.stored.clone());
            // A task of its own, so that it also commits when its caller stops waiting.
            let landed = tokio::spawn(async move {
                pass(arrives).await;
                let mut stored = stored.lock().unwrap();
                let is_committed = fault != 0 && stored.1 == version;
                if is_committed {
                    *stored = (next, version + 1);
                }
                is_committed
            });
            let is_committed = landed.await.unwrap();
            pass(answers).await;
            // One commit in ten has an unknown result; it is retried as if it had failed.
            if is_committed && fault != 1 {
                return Ok(answer);
            }
        }
        Err(LeaseError::Storage("too many conflicts".into()))
    }
}

impl Leases for Storage {
    async fn take(&self, _: &str, owner: &Owner, stale: Option<&Lease>) -> Result<TakenLease, LeaseError> {
        let decide = |found: &Lease| {
            if found.is_of_another(owner) && !stale.is_some_and(|stale| stale.is_still(found)) {
                return (None, TakenLease::Others(found.clone()));
            }
            let next = Lease { owner: owner.to_vec(), beats: found.beats + 1, state: Vec::new() };
            (Some(next), TakenLease::Ours(found.clone()))
        };
        self.transact(decide).await
    }

    async fn hold(&self, _: &str, owner: &Owner, _: &[u8], release: bool) -> Result<bool, LeaseError> {
        let decide = |found: &Lease| {
            if found.owner != owner {
                return (None, false);
            }
            let owner = if release { Vec::new() } else { owner.to_vec() };
            (Some(Lease { owner, beats: found.beats + 1, state: Vec::new() }), true)
        };
        self.transact(decide).await
    }
}

/// The state that the processes share.
struct Contest {
    storage: Arc<Storage>,
    claims: Vec<Arc<Claim>>,
    random: Random,
    steps: AtomicU32,
    terms: AtomicU32,
    /// Two processes that held the lease at once. Recorded, since a panic would only fail the run.
    both: Mutex<Option<(usize, usize)>>,
}

/// A job that takes a number of steps.
struct Steps {
    contest: Arc<Contest>,
    process: usize,
    status: Status,
    left: u64,
}

impl Steps {
    fn step(&self) {
        let now = Instant::now();
        for (other, claim) in self.contest.claims.iter().enumerate() {
            if other != self.process && claim.is_valid(now) {
                *self.contest.both.lock().unwrap() = Some((self.process, other));
            }
        }
        self.contest.steps.fetch_add(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl Job for Steps {
    fn kind(&self) -> &'static str {
        "test"
    }

    fn id(&self) -> &str {
        "steps"
    }

    fn status(&self) -> &Status {
        &self.status
    }

    async fn run(&self, _: Run) -> Result<Next, Failure> {
        self.contest.terms.fetch_add(1, Ordering::Relaxed);
        self.step();
        for _ in 0..self.left {
            pass(Duration::from_millis(self.contest.random.below(2_000))).await;
            self.step();
        }
        Ok(Next::Done)
    }

    fn state(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// Leads one job after the other, and reads their lease from time to time.
async fn process(contest: Arc<Contest>, process: usize) {
    let claim = contest.claims[process].clone();
    let looks = async {
        loop {
            pass(Duration::from_millis(contest.random.below(8_000))).await;
            let found = contest.storage.stored.lock().unwrap().0.clone();
            // The result of the read arrives later.
            pass(contest.random.delay()).await;
            claim.note(Some(found), Instant::now());
        }
    };
    let leads = async {
        loop {
            let left = contest.random.below(30);
            let job =
                Arc::new(Steps { contest: contest.clone(), process, status: Status::new(&Clock::system()), left });
            lead(&job, &claim, &contest.storage, &BACKOFF).await;
            pass(contest.random.delay()).await;
        }
    };
    let _ = tokio::time::timeout(CONTEST, async { tokio::join!(looks, leads) }).await;
}

/// Returns the steps and runs of one seed.
fn contend(seed: u64) -> (u32, u32) {
    let random = |salt: u64| Random::new(seed.wrapping_mul(2).wrapping_add(salt));
    let storage = Arc::new(Storage { stored: Arc::default(), random: random(0) });
    let claims =
        (0..PROCESSES).map(|number| Arc::new(Claim::new([number + 1; 16], SILENCE_MAX, &Clock::system()))).collect();
    let (steps, terms, both) = Default::default();
    let contest = Arc::new(Contest { storage, claims, random: random(1), steps, terms, both });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let processes: Vec<_> =
            (0..PROCESSES).map(|number| tokio::spawn(process(contest.clone(), number.into()))).collect();
        for one in processes {
            one.await.unwrap();
        }
    });
    if let Some((one, other)) = *contest.both.lock().unwrap() {
        panic!("FLATBED_TEST_SEED={seed} FLATBED_TEST_SEEDS=1: both {one} and {other} held it");
    }
    (contest.steps.load(Ordering::Relaxed), contest.terms.load(Ordering::Relaxed))
}

/// `FLATBED_TEST_SEEDS=5000` runs 5,000 seeds from `FLATBED_TEST_SEED` on.
#[test]
fn no_two_processes_believe_that_a_lease_is_theirs() {
    let (first, count) = (seed(0), number("FLATBED_TEST_SEEDS").unwrap_or(15));
    let seeds = (0..count).map(|at| first.wrapping_add(at));
    let (mut steps, mut terms) = (0, 0);
    for (more_steps, more_terms) in seeds.map(contend) {
        (steps, terms) = (steps + u64::from(more_steps), terms + u64::from(more_terms));
    }
    println!("{count} seeds: {terms} terms, {steps} steps");
    assert!(count < 15 || (terms > 10 * count && steps > 100 * count), "{terms} {steps}");
}

/// The run of a suspended process is ready to continue before the timer that ends it fires.
#[tokio::test(start_paused = true)]
async fn a_run_takes_no_step_after_its_process_was_stopped_for_too_long() {
    struct WakeCounter(Status, Notify, AtomicU32);
    #[async_trait]
    impl Job for WakeCounter {
        fn kind(&self) -> &'static str {
            "test"
        }
        fn id(&self) -> &str {
            "woken"
        }
        fn status(&self) -> &Status {
            &self.0
        }
        async fn run(&self, _: Run) -> Result<Next, Failure> {
            loop {
                self.1.notified().await;
                self.2.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    // Repeated, since one run may stop by chance.
    for _ in 0..20 {
        let storage = Storage { stored: Arc::default(), random: Random::new(1) };
        let (storage, claim) = (Arc::new(storage), Arc::new(Claim::new([1; 16], SILENCE_MAX, &Clock::system())));
        let job = Arc::new(WakeCounter(Status::new(&Clock::system()), Notify::new(), AtomicU32::new(0)));
        let led = tokio::spawn({
            let (job, claim) = (job.clone(), claim.clone());
            async move { lead(&job, &claim, &storage, &BACKOFF).await }
        });
        until("the lease is taken", async || claim.is_ours()).await;
        job.1.notify_one();
        tokio::task::yield_now().await;
        assert_eq!(job.2.load(Ordering::Relaxed), 1);
        job.1.notify_one();
        tokio::time::advance(SILENCE_MAX).await;
        pass(Duration::from_millis(1)).await;
        assert_eq!(job.2.load(Ordering::Relaxed), 1, "it went on with a lease that another may have");
        led.abort();
    }
}
