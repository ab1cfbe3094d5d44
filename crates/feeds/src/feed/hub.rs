//! The reader of a database's newest changes for all its followers in this process, with a FoundationDB watch on each
//! bucket.
//!
//! A watch that fires is a hint, and one that does not is no proof. So the hub sets the watch in the transaction that
//! has read by-seq to its end: a later commit either fires the watch or is seen at the next look. The hub keeps what it
//! reads for a while ([`Tail`]). A follower takes the rows behind its place, and reads by-seq itself if the hub does
//! not have them. Both ways give the same rows in the same order.

pub mod reader;
pub mod routes;
pub mod table;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use flatbed_databases::held::HeldRights;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_databases::slots::State;
use flatbed_store::buckets::Buckets;
use flatbed_store::error::{Error, Result};
use flatbed_store::metrics::Metrics;
use flatbed_store::seq::Seq;
use flatbed_store::transaction::{Transaction, bounded};
use foundationdb::FdbResult;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::feed::hub::reader::Reader;
use crate::feed::hub::table::{FollowerRows, FollowerTable};
use crate::feed::query::{Documents, Extras};
use crate::feed::tail::{Tail, TailPart};
use crate::feed::watches::Watches;

pub use table::Interest;

/// Interval at which the hub reads `last_seq` of an idle database without a firing.
pub const SAFETY_REREAD: Duration = Duration::from_secs(45);

pub const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// The lifetime of a hub without followers. A follower that reconnects earlier finds it.
const LINGER: Duration = Duration::from_secs(10);

/// Pause between two reads for each woken follower, but at most [`PACE_MAX`] in all: followers take their rows, and
/// commits that happen meanwhile are read together.
const PACE_OF_FOLLOWER: Duration = Duration::from_micros(10);
const PACE_MAX: Duration = Duration::from_millis(100);

/// Stands for a follower that reads by-seq itself and has no place in the tail.
const NO_PLACE: u64 = u64::MAX;

/// The place where followers of an instance wait. Its task runs while there are followers, and a little longer.
#[derive(Debug)]
pub struct Hub {
    name: String,
    pub namespace: u64,
    /// Before all changes of the epoch.
    begin: Seq,
    pub buckets: Buckets,
    state: Mutex<HubState>,
    /// Wakes the followers that are woken for each change.
    rounds: watch::Sender<u64>,
    /// The read version as of which the tail is complete.
    versions: watch::Sender<i64>,
    look: Notify,
    documents_wanted: AtomicUsize,
    conflicts_wanted: AtomicUsize,
}

#[derive(Debug, Default)]
struct HubState {
    is_running: bool,
    /// `None` until the first read.
    tail: Option<Tail>,
    /// The commit version of each follower's sequence.
    followers: HashMap<u64, Arc<AtomicU64>>,
    came: u64,
    /// The followers that are woken only for changes of their channels.
    table: FollowerTable,
}

/// Statistics of followers that have reached the end of a feed once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Followers {
    /// Number of followers.
    pub followers: usize,
    /// Number of those that are reading by-seq themselves again.
    pub behind: usize,
    /// Age of the oldest change that one of the other followers has not taken.
    pub lag: Duration,
    /// Number of followers that are woken only for changes of their channels.
    pub by_channels: usize,
    /// Number of their channels, users and roles in the tables of hubs, counted once for each follower.
    pub held: usize,
}

impl Followers {
    pub fn add(&mut self, other: Followers) {
        self.followers += other.followers;
        self.behind += other.behind;
        self.lag = self.lag.max(other.lag);
        self.by_channels += other.by_channels;
        self.held += other.held;
    }
}

/// The hub of a database, which all versions of its record share.
struct OwnHub(Arc<Hub>);

impl State<Instance> for OwnHub {
    fn new_of(instance: &Instance) -> OwnHub {
        let Instance { name, record, buckets, .. } = instance;
        OwnHub(Arc::new(Hub::new(name, record.namespace, instance.epoch_begin(), buckets.clone())))
    }

    fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// Returns the hub of a database.
pub fn hub_of(instance: &Instance) -> &Arc<Hub> {
    &instance.of_incarnation.get::<OwnHub>(instance).0
}

/// As [`hub_of`]; `None` if the database had no followers.
pub fn known_hub(instance: &Instance) -> Option<&Arc<Hub>> {
    instance.of_incarnation.find::<OwnHub>().map(|own| &own.0)
}

/// The number of hubs of a server that run.
#[derive(Default)]
pub struct RunningHubs(pub AtomicUsize);

impl State<Inner> for RunningHubs {
    fn new_of(_: &Inner) -> RunningHubs {
        RunningHubs::default()
    }
}

impl Hub {
    pub fn new(name: &str, namespace: u64, begin: Seq, buckets: Buckets) -> Hub {
        Hub {
            name: name.to_owned(),
            namespace,
            begin,
            buckets,
            state: Mutex::default(),
            rounds: watch::Sender::new(0),
            versions: watch::Sender::new(0),
            look: Notify::new(),
            documents_wanted: AtomicUsize::new(0),
            conflicts_wanted: AtomicUsize::new(0),
        }
    }

    /// Makes the task read now.
    pub fn look(&self) {
        self.look.notify_one();
    }

    /// Returns whether the hub has read up to the newest sequence of all buckets.
    pub fn is_drained_to(&self, newest: Seq) -> bool {
        let state = self.lock();
        state.tail.as_ref().is_some_and(|tail| tail.drained().stamp() == newest.stamp())
    }

    pub fn begin_last_seq(&self, trx: &Transaction) -> impl Future<Output = Result<Seq>> + Send + use<> {
        self.buckets.begin_last_seq(trx, self.begin)
    }

    /// Returns the commit version of a position, as one of the epoch.
    fn version_at(&self, seq: Seq) -> u64 {
        if seq < self.begin { 0 } else { seq.version() }
    }

    pub fn standing(&self, now: Instant) -> Followers {
        let state = self.lock();
        let (by_channels, held) = (state.table.members(), state.table.entries());
        let mut standing = Followers { followers: state.followers.len(), by_channels, held, ..Followers::default() };
        let mut slowest = None;
        for (number, place) in &state.followers {
            let place = place.load(Ordering::Relaxed);
            if place == NO_PLACE {
                standing.behind += 1;
            } else if let Some(place) = state.table.stands(*number, place) {
                slowest = Some(slowest.unwrap_or(place).min(place));
            }
        }
        if let (Some(slowest), Some(tail)) = (slowest, &state.tail) {
            standing.lag = tail.age_behind(slowest, now);
        }
        standing
    }

    fn lock(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        self.rounds.send_modify(|round| *round += 1);
    }

    /// Ends the task, unless `only_if_deserted` is set and there are followers; returns whether it ended. Followers
    /// lose the tail and subscribe again. A later follower starts another task, so this one's state is dropped at once.
    fn end(&self, inner: Option<&Inner>, only_if_deserted: bool) -> bool {
        let mut state = self.lock();
        if only_if_deserted && !state.followers.is_empty() {
            return false;
        }
        state.is_running = false;
        state.tail = None;
        let woken = state.table.end();
        self.versions.send_replace(0);
        if let Some(inner) = inner {
            inner.state::<Watches>().leave(self);
            inner.state::<RunningHubs>().0.fetch_sub(1, Ordering::Relaxed);
        }
        drop(state);
        self.wake();
        woken.iter().for_each(|follower| follower.notify_one());
        true
    }
}

pub struct HubFollower {
    hub: Arc<Hub>,
    number: u64,
    place: Arc<AtomicU64>,
    rounds: watch::Receiver<u64>,
    /// The rights under which it is in the hub's table, if any: it waits there and not for rounds.
    stands_by: Option<Arc<HeldRights>>,
    wake: Option<Arc<Notify>>,
    wants_documents: bool,
    wants_conflicts: bool,
}

pub enum HubAnswer {
    /// Changes behind its place; possibly no rows, only a later place.
    Part(TailPart),
    /// The hub does not have the changes.
    ReadBySeq,
    Ended,
}

impl HubFollower {
    /// Adds a follower, and starts the hub's task if it is not running.
    pub fn new(inner: &Arc<Inner>, instance: &Instance, extras: Extras) -> HubFollower {
        let hub = hub_of(instance).clone();
        let place = Arc::new(AtomicU64::new(NO_PLACE));
        let (wants_documents, wants_conflicts) = (extras.has_documents(), extras.documents >= Documents::WithConflicts);
        hub.documents_wanted.fetch_add(usize::from(wants_documents), Ordering::Relaxed);
        hub.conflicts_wanted.fetch_add(usize::from(wants_conflicts), Ordering::Relaxed);
        let mut state = hub.lock();
        state.came += 1;
        let number = state.came;
        state.followers.insert(number, place.clone());
        if !state.is_running {
            state.is_running = true;
            inner.state::<RunningHubs>().0.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(run(Arc::downgrade(inner), hub.clone()));
        }
        drop(state);
        let rounds = hub.rounds.subscribe();
        HubFollower { hub, number, place, rounds, stands_by: None, wake: None, wants_documents, wants_conflicts }
    }

    /// Adds a follower if the task is running and has read.
    pub fn join_running(inner: &Arc<Inner>, instance: &Instance, extras: Extras) -> Option<HubFollower> {
        let has_tail = hub_of(instance).lock().tail.is_some();
        has_tail.then(|| HubFollower::new(inner, instance, extras))
    }

    /// Returns the sequence up to which by-seq has been read.
    pub fn drained(&self) -> Option<Seq> {
        self.hub.lock().tail.as_ref().map(Tail::drained)
    }

    pub fn is_at(&self, instance: &Instance) -> bool {
        Arc::ptr_eq(&self.hub, hub_of(instance))
    }

    /// Returns the changes behind `cursor`, up to which the follower has taken all; for a follower by channels only
    /// those of its channels. [`HubFollower::changed`] signals later changes.
    pub(crate) fn take(&mut self, cursor: Seq, interest: Option<Interest<'_>>) -> Option<HubAnswer> {
        self.rounds.borrow_and_update();
        let mut state = self.hub.lock();
        if !state.is_running {
            self.stands_by = None;
            return Some(HubAnswer::Ended);
        }
        let HubState { tail, table, .. } = &mut *state;
        let is_same = match (&self.stands_by, interest) {
            (Some(by), Some(interest)) => Arc::ptr_eq(by, interest.found) && table.has(self.number),
            (None, None) => true,
            _ => false,
        };
        // The first read wakes the followers that wait for rounds.
        let Some(tail) = tail else {
            self.stands_by = None;
            return None;
        };
        if !is_same {
            self.stands_by = None;
            match interest {
                Some(interest) => {
                    let wake = self.wake.get_or_insert_default();
                    if table.join(self.number, interest, wake, cursor, tail.drained()) {
                        self.stands_by = Some(Arc::clone(interest.found));
                    }
                }
                None => table.leave(self.number),
            }
        }
        let part = match table.look(self.number, cursor) {
            None => tail.after(cursor),
            Some(FollowerRows::Nothing) => tail.these_after(cursor.max(tail.drained()), &[]),
            Some(FollowerRows::These(after, these)) => tail.these_after(after, &these),
            Some(FollowerRows::All(after)) => tail.after(after),
        };
        Some(part.map_or(HubAnswer::ReadBySeq, HubAnswer::Part))
    }

    /// Sets the follower's place; `None` if it reads by-seq.
    pub fn stands_at(&self, cursor: Option<Seq>) {
        self.place.store(cursor.map_or(NO_PLACE, |cursor| self.hub.version_at(cursor)), Ordering::Relaxed);
    }

    /// Waits until there is a change since the last [`HubFollower::take`].
    pub async fn changed(&mut self) {
        match (&self.stands_by, &self.wake) {
            (Some(_), Some(wake)) => wake.notified().await,
            // `self` holds the hub and its sender, so this cannot fail.
            _ => drop(self.rounds.changed().await),
        }
    }

    /// Waits until the tail is complete as of a read version; false if the task has ended.
    pub async fn wait_until_fresh(&self, version: i64) -> bool {
        let mut versions = self.hub.versions.subscribe();
        loop {
            let known = *versions.borrow_and_update();
            if known >= version || !self.hub.lock().is_running {
                return known >= version;
            }
            self.hub.look();
            if versions.changed().await.is_err() {
                return false;
            }
        }
    }
}

impl Drop for HubFollower {
    fn drop(&mut self) {
        self.hub.documents_wanted.fetch_sub(usize::from(self.wants_documents), Ordering::Relaxed);
        self.hub.conflicts_wanted.fetch_sub(usize::from(self.wants_conflicts), Ordering::Relaxed);
        let mut state = self.hub.lock();
        state.followers.remove(&self.number);
        state.table.leave(self.number);
    }
}

async fn run(weak: Weak<Inner>, hub: Arc<Hub>) {
    let begun = weak.upgrade().map(|inner| (inner.closing.subscribe(), inner.clock.clone()));
    let Some((mut closing, clock)) = begun else {
        hub.end(None, false);
        return;
    };
    let (mut reader, mut has_changed, mut deserted, mut woken) = (Reader::default(), false, None, 0);
    loop {
        let Some(inner) = weak.upgrade() else {
            hub.end(None, false);
            return;
        };
        let followers = hub.lock().followers.len();
        deserted = if followers == 0 { deserted.or(Some(clock.now())) } else { None };
        let is_over = deserted.is_some_and(|since| clock.since(since) >= LINGER);
        if (inner.is_closing() || is_over) && hub.end(Some(&inner), !inner.is_closing()) {
            return;
        }
        let begun = clock.now();
        let may_watch = inner.state::<Watches>().may_watch(&inner, &hub, has_changed);
        match bounded(reader.read(&inner, &hub, may_watch)).await {
            Ok(page) => {
                let at_end = page.at_end;
                let entered = reader.enter(&inner, &hub, page);
                has_changed = entered.has_moved;
                woken += entered.woken;
                // A changed database may take the watch of another, so ask at once.
                if !at_end || has_changed && !may_watch {
                    continue;
                }
            }
            Err(Error::DatabaseNotFound) => {
                hub.end(Some(&inner), false);
                return;
            }
            Err(error) => {
                tracing::debug!(database = hub.name, %error, "the changes could not be read; the hub retries");
                drop(inner);
                clock.sleep(ERROR_PAUSE).await;
                continue;
            }
        }
        // An idle task must not keep the layer open.
        drop(inner);
        let patience = if followers == 0 { LINGER } else { SAFETY_REREAD };
        let why = tokio::select! {
            fired = reader.armed.fired() => WakeReason::Fired(fired),
            () = clock.sleep(patience) => WakeReason::Unasked,
            () = hub.look.notified() => WakeReason::Asked,
            _ = closing.wait_for(|closing| *closing) => WakeReason::Asked,
        };
        let metrics = |count: fn(&Metrics)| weak.upgrade().inspect(|inner| count(&inner.metrics));
        let pace = pace(std::mem::take(&mut woken));
        match why {
            WakeReason::Fired(Ok(())) => {
                metrics(|metrics| metrics.watches_fired.add(1));
                let rest = pace.saturating_sub(clock.since(begun));
                // The timer rounds up to the next millisecond, also a wait of 0.
                if !rest.is_zero() {
                    let _ = clock.timeout(rest, hub.look.notified()).await;
                }
            }
            WakeReason::Fired(Err(error)) => {
                tracing::debug!(database = hub.name, %error, "a watch failed");
                clock.sleep(ERROR_PAUSE).await;
            }
            WakeReason::Unasked => {
                // They have not fired for a long time, so they are not trusted.
                reader.armed.clear();
                metrics(|metrics| metrics.safety_rereads.add(1));
            }
            WakeReason::Asked => {}
        }
    }
}

/// Returns the pause after waking this many followers.
fn pace(woken: usize) -> Duration {
    u32::try_from(woken).map_or(PACE_MAX, |woken| (PACE_OF_FOLLOWER.saturating_mul(woken)).min(PACE_MAX))
}

enum WakeReason {
    Fired(FdbResult<()>),
    Asked,
    Unasked,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_follows_those_that_are_woken() {
        assert_eq!(pace(0), Duration::ZERO);
        assert_eq!(pace(100), Duration::from_millis(1));
        assert_eq!([pace(10_000), pace(usize::MAX)], [PACE_MAX; 2]);
    }
}
