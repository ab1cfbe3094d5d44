//! One FoundationDB watch a database and one reader of its newest changes, for all its followers in this process.
//!
//! A firing is a hint, its absence no proof. The order makes up for it: the hub sets the watch in the transaction that has
//! read by-seq to its end, so that a commit after its read version fires the watch, or is seen when the hub looks again.
//! What the hub reads it keeps for a while ([`Tail`]); a follower takes what lies behind its own place, and reads by-seq
//! itself where the hub has no longer, or not, what it needs. Both read the same rows in the same order.

mod reader;
mod routes;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use foundationdb::FdbResult;
use tokio::sync::{Notify, watch};

use crate::error::{Error, Result};
use crate::feed::hub::reader::Reader;
use crate::feed::query::{Documents, Extras};
use crate::feed::tail::{Part, Tail};
use crate::instance::Instance;
use crate::layer::Inner;
use crate::metrics::Metrics;
use crate::store::buckets::Buckets;
use crate::store::seq::Seq;
use crate::store::transaction::{Transaction, bounded};

/// Without a firing the hub looks at `last_seq` this often: nothing else reads while a database is idle.
pub(crate) const SAFETY_REREAD: Duration = Duration::from_secs(45);

/// After an error of the storage.
pub(super) const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// A hub that has seen to be without followers ends after this long: one that only connects again finds it still there.
const LINGER: Duration = Duration::from_secs(10);

/// Between two reads the hub gives each follower this much time to take rows, but not more than [`PACE_MAX`] in all: what
/// is committed meanwhile comes together.
const PACE_OF_FOLLOWER: Duration = Duration::from_micros(10);
const PACE_MAX: Duration = Duration::from_millis(100);

/// A follower that reads by-seq itself has no place in the tail.
const NO_PLACE: u64 = u64::MAX;

/// Where followers of an instance wait. Its task runs while there are any, and a little longer.
#[derive(Debug)]
pub(crate) struct Hub {
    name: String,
    pub(crate) namespace: u64,
    incarnation: u64,
    pub(crate) buckets: Buckets,
    state: Mutex<State>,
    /// Counts what followers are woken for.
    rounds: watch::Sender<u64>,
    /// The read version as of which the tail is complete.
    versions: watch::Sender<i64>,
    look: Notify,
    documents_wanted: AtomicUsize,
    conflicts_wanted: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    is_running: bool,
    /// `None` until it is read for the first time.
    tail: Option<Tail>,
    /// Where each follower stands: the commit version of its sequence.
    followers: HashMap<u64, Arc<AtomicU64>>,
    came: u64,
}

/// How followers that have come to the end of a feed once do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Followers {
    /// How many there are.
    pub followers: usize,
    /// Of these, those that read by-seq themselves again.
    pub behind: usize,
    /// For how long the oldest change has been waiting that one of the others has not taken.
    pub lag: Duration,
}

impl Hub {
    pub(crate) fn new(name: &str, namespace: u64, incarnation: u64, buckets: Buckets) -> Hub {
        Hub {
            name: name.to_owned(),
            namespace,
            incarnation,
            buckets,
            state: Mutex::default(),
            rounds: watch::Sender::new(0),
            versions: watch::Sender::new(0),
            look: Notify::new(),
            documents_wanted: AtomicUsize::new(0),
            conflicts_wanted: AtomicUsize::new(0),
        }
    }

    /// Whether it is that of an instance.
    pub(crate) fn is_of(&self, namespace: u64, incarnation: u64) -> bool {
        (self.namespace, self.incarnation) == (namespace, incarnation)
    }

    /// Lets the task read now.
    pub(crate) fn look(&self) {
        self.look.notify_one();
    }

    /// Whether the newest sequence, as all buckets' `last_seq` say, is nothing new.
    pub(crate) fn is_drained_to(&self, newest: Seq) -> bool {
        let state = self.lock();
        state.tail.as_ref().is_some_and(|tail| tail.drained().stamp() == newest.stamp())
    }

    /// Asks for the newest sequence.
    pub(crate) fn begin_last_seq(&self, trx: &Transaction) -> impl Future<Output = Result<Seq>> + Send + use<> {
        self.buckets.begin_last_seq(trx, self.incarnation)
    }

    pub(crate) fn standing(&self) -> Followers {
        let state = self.lock();
        let mut standing = Followers { followers: state.followers.len(), ..Followers::default() };
        let mut slowest = None;
        for place in state.followers.values().map(|place| place.load(Ordering::Relaxed)) {
            if place == NO_PLACE {
                standing.behind += 1;
            } else {
                slowest = Some(slowest.unwrap_or(place).min(place));
            }
        }
        if let (Some(slowest), Some(tail)) = (slowest, &state.tail) {
            standing.lag = tail.age_behind(slowest, Instant::now());
        }
        standing
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        self.rounds.send_modify(|round| *round += 1);
    }

    /// The task ends, unless followers have come that it is to end without; whether it does. Followers find no tail any
    /// more, and come again: who comes afterwards starts another task, so all that is left of this one goes at once.
    fn end(&self, inner: Option<&Inner>, only_if_deserted: bool) -> bool {
        let mut state = self.lock();
        if only_if_deserted && !state.followers.is_empty() {
            return false;
        }
        state.is_running = false;
        state.tail = None;
        self.versions.send_replace(0);
        if let Some(inner) = inner {
            inner.watches.leave(self);
            inner.hubs_running.fetch_sub(1, Ordering::Relaxed);
        }
        drop(state);
        self.wake();
        true
    }
}

/// A follower's place at a hub.
pub(crate) struct Following {
    hub: Arc<Hub>,
    number: u64,
    place: Arc<AtomicU64>,
    rounds: watch::Receiver<u64>,
    wants_documents: bool,
    wants_conflicts: bool,
}

/// What the hub has for a follower.
pub(crate) enum Taken {
    /// Changes behind its place; perhaps none, but a place further on.
    Part(Part),
    /// What it needs is not here, or no longer here.
    ReadBySeq,
    /// The task has ended.
    Ended,
}

impl Following {
    /// Takes a place, and starts the hub's task if it does not run.
    pub(crate) fn new(inner: &Arc<Inner>, instance: &Instance, extras: Extras) -> Following {
        let hub = instance.hub.clone();
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
            inner.hubs_running.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(run(Arc::downgrade(inner), hub.clone()));
        }
        drop(state);
        let rounds = hub.rounds.subscribe();
        Following { hub, number, place, rounds, wants_documents, wants_conflicts }
    }

    /// Takes a place where the task runs already and has read.
    pub(crate) fn at_running(inner: &Arc<Inner>, instance: &Instance, extras: Extras) -> Option<Following> {
        let has_tail = instance.hub.lock().tail.is_some();
        has_tail.then(|| Following::new(inner, instance, extras))
    }

    /// Up to where by-seq has been read.
    pub(crate) fn drained(&self) -> Option<Seq> {
        self.hub.lock().tail.as_ref().map(Tail::drained)
    }

    /// Whether the place is at this instance's hub.
    pub(crate) fn is_at(&self, instance: &Instance) -> bool {
        Arc::ptr_eq(&self.hub, &instance.hub)
    }

    /// What lies behind a sequence. What comes later is signalled by [`Following::changed`].
    pub(crate) fn take(&mut self, cursor: Seq) -> Option<Taken> {
        self.rounds.borrow_and_update();
        let state = self.hub.lock();
        if !state.is_running {
            return Some(Taken::Ended);
        }
        // Not read yet: the first reading wakes.
        let taken = state.tail.as_ref()?.after(cursor).map_or(Taken::ReadBySeq, Taken::Part);
        Some(taken)
    }

    /// Where the follower stands now; `None`: it reads by-seq.
    pub(crate) fn stands_at(&self, cursor: Option<Seq>) {
        self.place.store(cursor.map_or(NO_PLACE, |cursor| cursor.number()), Ordering::Relaxed);
    }

    /// Waits until there is something that was not there at the last [`Following::take`].
    pub(crate) async fn changed(&mut self) {
        // The hub, and with it the sender, is held by this place.
        let _ = self.rounds.changed().await;
    }

    /// Waits until the tail is complete as of a read version; false: the task has ended.
    pub(crate) async fn fresh(&self, version: i64) -> bool {
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

impl Drop for Following {
    fn drop(&mut self) {
        self.hub.documents_wanted.fetch_sub(usize::from(self.wants_documents), Ordering::Relaxed);
        self.hub.conflicts_wanted.fetch_sub(usize::from(self.wants_conflicts), Ordering::Relaxed);
        self.hub.lock().followers.remove(&self.number);
    }
}

async fn run(weak: Weak<Inner>, hub: Arc<Hub>) {
    let Some(mut closing) = weak.upgrade().map(|inner| inner.closing.subscribe()) else {
        hub.end(None, false);
        return;
    };
    let (mut reader, mut has_changed, mut deserted) = (Reader::default(), false, None);
    loop {
        let Some(inner) = weak.upgrade() else {
            hub.end(None, false);
            return;
        };
        let followers = hub.lock().followers.len();
        deserted = if followers == 0 { deserted.or(Some(Instant::now())) } else { None };
        let is_over = deserted.is_some_and(|since| since.elapsed() >= LINGER);
        if (inner.is_closing() || is_over) && hub.end(Some(&inner), !inner.is_closing()) {
            return;
        }
        let begun = Instant::now();
        let may_watch = inner.watches.may_watch(&inner, &hub, has_changed);
        match bounded(reader.read(&inner, &hub, may_watch)).await {
            Ok(page) => {
                let at_end = page.at_end;
                has_changed = reader.enter(&inner, &hub, page);
                // One that has changed may have the watch of another: it is asked for at once.
                if !at_end || has_changed && !may_watch {
                    continue;
                }
            }
            Err(Error::DatabaseNotFound) => {
                hub.end(Some(&inner), false);
                return;
            }
            Err(error) => {
                tracing::debug!(database = hub.name, %error, "the changes could not be read, and are looked at again");
                drop(inner);
                tokio::time::sleep(ERROR_PAUSE).await;
                continue;
            }
        }
        // Nothing of the layer is held while nothing happens.
        drop(inner);
        let patience = if followers == 0 { LINGER } else { SAFETY_REREAD };
        let woken = tokio::select! {
            fired = reader.armed.fired() => Woken::Fired(fired),
            () = tokio::time::sleep(patience) => Woken::Unasked,
            () = hub.look.notified() => Woken::Asked,
            _ = closing.wait_for(|closing| *closing) => Woken::Asked,
        };
        let metrics = |count: fn(&Metrics)| weak.upgrade().inspect(|inner| count(&inner.metrics));
        match woken {
            Woken::Fired(Ok(())) => {
                metrics(|metrics| metrics.watches_fired.add(1));
                let pace = PACE_OF_FOLLOWER * u32::try_from(followers).unwrap_or(u32::MAX);
                let rest = pace.min(PACE_MAX).saturating_sub(begun.elapsed());
                let _ = tokio::time::timeout(rest, hub.look.notified()).await;
            }
            Woken::Fired(Err(error)) => {
                tracing::debug!(database = hub.name, %error, "a watch failed");
                tokio::time::sleep(ERROR_PAUSE).await;
            }
            Woken::Unasked => {
                // They have not fired for so long that they are not relied on.
                reader.armed.clear();
                metrics(|metrics| metrics.safety_rereads.add(1));
            }
            Woken::Asked => {}
        }
    }
}

enum Woken {
    Fired(FdbResult<()>),
    Asked,
    Unasked,
}
