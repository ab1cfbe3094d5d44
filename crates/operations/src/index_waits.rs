//! The queries of a process that wait for indexes under construction.
//!
//! Queries that wait at one database share the reads: one of them checks its record for all. A query does not wait if a
//! builder has failed for long, and the number of waiting queries is bounded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_databases::server::Inner;
use flatbed_databases::slots::State;
use flatbed_store::error::{Error, IndexFailure, Result};
use futures_util::future::BoxFuture;
use tokio::sync::{Mutex as Turn, Notify, watch};

use crate::index_builds::{IndexBuild, IndexBuilds};

/// The most queries that may wait; further ones fail.
pub const WAITING_MAX: u64 = 10_000;

/// The most waits that are listed.
const SHOWN_MAX: usize = 500;

/// The first and the longest pause between two checks of a database.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The longest wait without an answer, even if nothing has happened.
const WAITS_FOR: Duration = Duration::from_millis(500);

/// Queries that wait until an index is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexWait {
    /// The database.
    pub database: String,
    /// The index's number in the database.
    pub number: u64,
    /// The design document that defines it.
    pub design_document: String,
    /// The index's name.
    pub name: String,
    /// The number of waiting queries in this process.
    pub waiting: u64,
    /// The Unix time in milliseconds since when at least one query waits.
    pub since_ms: u64,
    /// The build in this process, if any.
    pub build: Option<IndexBuild>,
}

#[derive(Debug)]
pub struct IndexWaits {
    all: Arc<Mutex<All>>,
    clock: Clock,
    /// A builder that has failed for this long makes the waiting queries fail.
    stuck_max: Duration,
}

#[derive(Debug, Default)]
struct All {
    count: u64,
    databases: HashMap<String, DatabaseWaits>,
}

#[derive(Debug, Default)]
struct DatabaseWaits {
    looks: Arc<SharedChecks>,
    indexes: HashMap<u64, IndexWait>,
}

#[derive(Debug)]
struct SharedChecks {
    newest: watch::Sender<CheckResult>,
    /// The query that holds it does the next check, after this pause.
    turn: Turn<()>,
    pause: Mutex<Duration>,
    /// Notified when this process has built an index.
    soon: Notify,
}

#[derive(Debug, Clone, Default)]
struct CheckResult {
    /// The number of checks so far.
    count: u64,
    found: UnbuiltIndexes,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnbuiltIndexes {
    pub namespace: u64,
    pub numbers: Vec<u64>,
}

impl Default for SharedChecks {
    fn default() -> SharedChecks {
        let (newest, turn, soon) = (watch::Sender::default(), Turn::default(), Notify::new());
        SharedChecks { newest, turn, pause: Mutex::new(PAUSE), soon }
    }
}

pub type CheckRecord<'a> = &'a (dyn Fn() -> BoxFuture<'a, Result<UnbuiltIndexes>> + Sync);

/// A waiting query, until this is dropped.
#[derive(Debug)]
pub struct WaitingQuery {
    database: String,
    number: u64,
    looks: Arc<SharedChecks>,
    /// The number of the last check that is too old for it.
    seen: u64,
    all: Arc<Mutex<All>>,
    clock: Clock,
    stuck_max: Duration,
}

impl State<Inner> for IndexWaits {
    fn new_of(inner: &Inner) -> IndexWaits {
        IndexWaits::new(inner.options.index_stuck_max, &inner.clock)
    }
}

impl IndexWaits {
    /// `stuck_max`: the time after which a failing builder makes the waiting queries fail.
    pub fn new(stuck_max: Duration, clock: &Clock) -> IndexWaits {
        IndexWaits { all: Arc::default(), clock: clock.clone(), stuck_max }
    }

    /// Registers a query that begins to wait for an index.
    ///
    /// # Errors
    /// [`IndexFailure::TooManyWaiting`].
    pub fn begin(&self, database: &str, number: u64, design_document: &str, name: &str) -> Result<WaitingQuery> {
        let begins = || IndexWait {
            database: database.to_owned(),
            number,
            design_document: design_document.to_owned(),
            name: name.to_owned(),
            waiting: 0,
            since_ms: self.clock.unix_ms(),
            build: None,
        };
        let mut all = lock(&self.all);
        if all.count >= WAITING_MAX {
            return Err(IndexFailure::TooManyWaiting.into());
        }
        all.count += 1;
        let at = all.databases.entry(database.to_owned()).or_default();
        at.indexes.entry(number).or_insert_with(begins).waiting += 1;
        // The index may be built in a moment.
        *lock(&at.looks.pause) = PAUSE;
        let (looks, seen) = (at.looks.clone(), at.looks.newest.borrow().count);
        let (all, clock, stuck_max) = (Arc::clone(&self.all), self.clock.clone(), self.stuck_max);
        Ok(WaitingQuery { database: database.to_owned(), number, looks, seen, all, clock, stuck_max })
    }

    pub fn count(&self) -> u64 {
        lock(&self.all).count
    }

    /// Wakes the queries that wait for an index of a database when one is built.
    pub fn is_built(&self, database: &str) {
        if let Some(at) = lock(&self.all).databases.get(database) {
            at.looks.soon.notify_one();
        }
    }

    /// Returns the waits, the longest first, and the number of waits beyond the limit.
    pub fn all(&self, builds: &[IndexBuild]) -> (Vec<IndexWait>, u64) {
        let mut waits: Vec<_> =
            lock(&self.all).databases.values().flat_map(|at| at.indexes.values().cloned()).collect();
        waits.sort_by(|a, b| (a.since_ms, &a.database, a.number).cmp(&(b.since_ms, &b.database, b.number)));
        let rest = waits.split_off(waits.len().min(SHOWN_MAX));
        for wait in &mut waits {
            let is_its = |build: &&IndexBuild| (&build.database, build.number) == (&wait.database, wait.number);
            wait.build = builds.iter().find(is_its).cloned();
        }
        (waits, rest.iter().map(|wait| wait.waiting).sum())
    }
}

impl WaitingQuery {
    /// Waits about half a second, and returns whether the index is readable or gone. The queries that wait at the
    /// database take turns in calling `look` for all.
    ///
    /// # Errors
    /// [`IndexFailure::Stuck`], and those of `look`.
    pub async fn wait(&mut self, builds: &IndexBuilds, look: CheckRecord<'_>) -> Result<bool> {
        let (looks, clock) = (Arc::clone(&self.looks), self.clock.clone());
        let (mut newest, until) = (looks.newest.subscribe(), clock.now() + WAITS_FOR);
        loop {
            let CheckResult { count, found } = newest.borrow_and_update().clone();
            if count > self.seen {
                if !found.numbers.contains(&self.number) {
                    self.seen = count;
                    return Ok(true);
                }
                if let Some(reason) = builds.failing(found.namespace, self.number, self.stuck_max) {
                    return Err(IndexFailure::Stuck(reason).into());
                }
            }
            if clock.now() >= until {
                return Ok(false);
            }
            tokio::select! {
                _ = newest.changed() => {}
                _turn = looks.turn.lock() => {
                    let pause = *lock(&looks.pause);
                    let _ = clock.timeout(pause, looks.soon.notified()).await;
                    let found = match look().await {
                        Ok(found) => found,
                        // Each query finds out for itself.
                        Err(Error::DatabaseNotFound) => UnbuiltIndexes::default(),
                        Err(error) => return Err(error),
                    };
                    *lock(&looks.pause) = (pause * 2).min(PAUSE_MAX);
                    // A query wakes only for a check that is new enough.
                    looks.newest.send_if_modified(|newest| {
                        let is_other = newest.found != found;
                        *newest = CheckResult { count: newest.count + 1, found };
                        is_other
                    });
                }
                () = clock.sleep_until(until) => {}
            }
        }
    }
}

impl Drop for WaitingQuery {
    fn drop(&mut self) {
        let mut all = lock(&self.all);
        all.count = all.count.saturating_sub(1);
        let Some(at) = all.databases.get_mut(&self.database) else { return };
        if let Some(found) = at.indexes.get_mut(&self.number) {
            found.waiting = found.waiting.saturating_sub(1);
        }
        at.indexes.retain(|_, wait| wait.waiting > 0);
        if at.indexes.is_empty() {
            all.databases.remove(&self.database);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::future::ready;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use tokio::time::Instant;

    const STUCK_MAX: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn all_who_wait_at_a_database_have_one_look_at_a_time() {
        let (waits, builds) = (IndexWaits::new(STUCK_MAX, &Clock::system()), IndexBuilds::new(&Clock::system()));
        let (looked, is_built) = (&AtomicU64::new(0), &AtomicBool::new(false));
        let look = &|| {
            looked.fetch_add(1, Ordering::Relaxed);
            let numbers = if is_built.load(Ordering::Relaxed) { vec![8] } else { vec![7, 8] };
            ready(Ok(UnbuiltIndexes { namespace: 1, numbers })).boxed()
        };
        let mut waiting: Vec<_> = (0..1_000).map(|_| waits.begin("db", 7, "_design/d", "i").unwrap()).collect();
        let mut other = waits.begin("db", 8, "_design/d", "j").unwrap();
        for _ in 0..4 {
            let all = waiting.iter_mut().map(|waiting| waiting.wait(&builds, look));
            assert!(futures_util::future::join_all(all).await.into_iter().all(|built| !built.unwrap()));
        }
        // Two seconds: at 20, 60, 140, 300, 620, 1,120 ms, and so on.
        let count = looked.load(Ordering::Relaxed);
        assert!((4..=12).contains(&count), "{count}");
        is_built.store(true, Ordering::Relaxed);
        waits.is_built("db");
        let began = Instant::now();
        let all = waiting.iter_mut().map(|waiting| waiting.wait(&builds, look));
        assert!(futures_util::future::join_all(all).await.into_iter().all(|built| built.unwrap()));
        assert_eq!(Clock::system().since(began), Duration::ZERO);
        assert!(!other.wait(&builds, look).await.unwrap());
        // A query that was woken by a check and found the index unbuilt waits for the next check.
        assert!(waiting[0].wait(&builds, look).await.unwrap());
        let count = looked.load(Ordering::Relaxed);
        assert!(waiting[0].wait(&builds, look).await.unwrap());
        assert!(looked.load(Ordering::Relaxed) > count);
        drop((waiting, other));
        assert_eq!((waits.count(), waits.all(&[])), (0, (Vec::new(), 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_wait_than_so_many_and_none_for_a_builder_that_fails() {
        let (waits, builds) = (IndexWaits::new(STUCK_MAX, &Clock::system()), IndexBuilds::new(&Clock::system()));
        let begin = |number| waits.begin("db", number, "_design/d", "i");
        let mut waiting: Vec<_> = (0..WAITING_MAX).map(|number| begin(number % 600).unwrap()).collect();
        assert!(matches!(begin(1), Err(Error::Index(IndexFailure::TooManyWaiting))));
        let (shown, rest) = waits.all(&[]);
        assert_eq!((shown.len(), shown.iter().map(|wait| wait.waiting).sum::<u64>() + rest), (500, WAITING_MAX));
        let look = &|| ready(Ok(UnbuiltIndexes { namespace: 1, numbers: vec![0] })).boxed();
        builds.record_failure(1, 0, "no room");
        assert!(!waiting[0].wait(&builds, look).await.unwrap());
        tokio::time::advance(STUCK_MAX).await;
        let failed = waiting[0].wait(&builds, look).await;
        assert!(matches!(failed, Err(Error::Index(IndexFailure::Stuck(reason))) if reason == "no room"));
        builds.clear_failure(1, 0);
        assert!(!waiting[0].wait(&builds, look).await.unwrap());
    }
}
