//! Followed users of databases: one look per process and interval finds the users that have changed or lost a session.
//!
//! A look reads the access versions, and then only the databases in whose cells they have moved. A reported user reads
//! its own state; the others are unchanged. So a follower reads its own state once after it began to follow, and each
//! look resumes at the one before.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_layer::channels::{AccessCell, AccessPart, AccessState, UserChanges, UsersPosition};
use flatbed_layer::{Layer, Result};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::looks::{LookPacer, RightsLook, RightsMetrics, confirms, read_within};

/// The interval of looks, from begin to begin. Feeds end within a second of the loss.
const LOOK_INTERVAL: Duration = Duration::from_millis(600);

/// The most databases that one transaction reads, with a range read each.
const DATABASES_PER_READ: usize = 100;

/// The age of a state from which no look resumes. The log of a database's changed users is kept for an hour.
const STATE_MAX: Duration = Duration::from_secs(30 * 60);

pub(super) struct FollowedUsers {
    layer: Layer,
    metrics: Arc<RightsMetrics>,
    followed: Mutex<UserFollowers>,
    confirmed: watch::Sender<Option<Instant>>,
    /// Locked by each look. A test that holds it makes a look late.
    #[cfg(test)]
    pub(super) looking: tokio::sync::Mutex<()>,
    /// The number of looks that a test lets fail.
    #[cfg(test)]
    pub(super) failing: std::sync::atomic::AtomicUsize,
}

#[derive(Default)]
struct UserFollowers {
    databases: HashMap<Arc<str>, DatabaseFollowers>,
    /// The names of these databases by cell.
    cells: BTreeMap<AccessCell, HashSet<Arc<str>>>,
    is_looking: bool,
}

struct DatabaseFollowers {
    /// The incarnation of the database that the users are of. `None`: of several, or it was missing.
    incarnation: Option<u64>,
    /// The change counter of each user, by name.
    users: HashMap<Arc<str>, watch::Sender<u64>>,
}

/// The change counter of a followed user. The last one that is dropped ends the following.
pub(super) struct UserChangeCounter {
    counter: watch::Receiver<u64>,
    of: Arc<FollowedUsers>,
    database: Arc<str>,
    name: Arc<str>,
}

impl UserChangeCounter {
    pub(super) fn count(&self) -> u64 {
        *self.counter.borrow()
    }

    pub(super) fn counter(&mut self) -> &mut watch::Receiver<u64> {
        &mut self.counter
    }

    pub(super) fn has_changed(&self) -> bool {
        self.counter.has_changed().unwrap_or(false)
    }
}

impl Drop for UserChangeCounter {
    fn drop(&mut self) {
        self.of.followed().leave(&self.database, &self.name);
    }
}

impl FollowedUsers {
    pub(super) fn new(layer: Layer, metrics: Arc<RightsMetrics>) -> FollowedUsers {
        FollowedUsers {
            layer,
            metrics,
            followed: Mutex::default(),
            confirmed: watch::Sender::new(None),
            #[cfg(test)]
            looking: tokio::sync::Mutex::default(),
            #[cfg(test)]
            failing: std::sync::atomic::AtomicUsize::new(0),
        }
    }

    fn followed(&self) -> MutexGuard<'_, UserFollowers> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the last look began after which all followers of changed users were woken.
    pub(super) fn confirmed(&self) -> watch::Receiver<Option<Instant>> {
        self.confirmed.subscribe()
    }

    /// Returns whether the last look confirms rows: see [`confirms`].
    pub(super) fn is_confirmed(&self, read_at: Option<Instant>) -> bool {
        confirms(self.layer.clock(), *self.confirmed.borrow(), read_at)
    }

    /// Returns a counter that increases when a user of a database may have changed. It may or may not report changes
    /// from before this call.
    pub(super) fn follow(
        self: &Arc<Self>,
        database: &Arc<str>,
        incarnation: u64,
        name: &Arc<str>,
    ) -> UserChangeCounter {
        let mut followed = self.followed();
        let counter = followed.join(database, incarnation, name);
        if !followed.is_looking {
            followed.is_looking = true;
            // The first follower reads its own state after this moment.
            self.confirmed.send_replace(Some(self.layer.clock().now()));
            tokio::spawn(look_on(Arc::downgrade(self), self.layer.clock().clone()));
        }
        drop(followed);
        UserChangeCounter { counter, of: Arc::clone(self), database: Arc::clone(database), name: Arc::clone(name) }
    }

    /// True if no user is followed; the task of the looks then ends.
    fn has_ended(&self) -> bool {
        let mut followed = self.followed();
        followed.is_looking = !followed.databases.is_empty();
        !followed.is_looking
    }

    /// Wakes the followers of users that have changed since the known state. Returns the state of now.
    async fn look(&self, known: Option<&AccessState>) -> Result<AccessState> {
        #[cfg(test)]
        let _looking = self.looking.lock().await;
        #[cfg(test)]
        if self.fails() {
            return Err(flatbed_layer::Error::timed_out());
        }
        let clock = self.layer.clock();
        let wants = |bucket| self.followed().has_bucket(bucket);
        let found = read_within(clock, self.layer.access_changes(known, &wants)).await?;
        let Some(known) = known else {
            // A user may have changed since its follower read it.
            self.followed().databases.values_mut().for_each(|of| of.wake(None));
            return Ok(found.state);
        };
        let asked = self.followed().among(&found.changed, known);
        for some in asked.chunks(DATABASES_PER_READ) {
            let changed = read_within(clock, self.layer.users_changed(some)).await?;
            let mut followed = self.followed();
            for ((name, before), changed) in some.iter().zip(changed) {
                if let Some(of) = followed.databases.get_mut(name) {
                    // Followers of another database of the name may have come meanwhile.
                    let is_same = before.as_ref().map(UsersPosition::incarnation) == of.incarnation;
                    of.wake(changed.filter(|_| is_same));
                }
            }
        }
        Ok(found.state)
    }

    #[cfg(test)]
    fn fails(&self) -> bool {
        use std::sync::atomic::Ordering::SeqCst;
        self.failing.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

impl UserFollowers {
    fn join(&mut self, database: &Arc<str>, incarnation: u64, name: &Arc<str>) -> watch::Receiver<u64> {
        let of = self.databases.entry(Arc::clone(database)).or_insert_with(|| {
            self.cells.entry(AccessCell::of(database)).or_default().insert(Arc::clone(database));
            DatabaseFollowers { incarnation: Some(incarnation), users: HashMap::new() }
        });
        of.incarnation = of.incarnation.filter(|known| *known == incarnation);
        of.users.entry(Arc::clone(name)).or_insert_with(|| watch::Sender::new(0)).subscribe()
    }

    /// Ends the following of a user if its last follower, which is still subscribed, leaves.
    fn leave(&mut self, database: &Arc<str>, name: &Arc<str>) {
        let Some(of) = self.databases.get_mut(database) else { return };
        if of.users.get(name).is_some_and(|counter| counter.receiver_count() <= 1) {
            of.users.remove(name);
        }
        if !of.users.is_empty() {
            return;
        }
        self.databases.remove(database);
        let cell = AccessCell::of(database);
        if let Some(names) = self.cells.get_mut(&cell) {
            names.remove(database);
            if names.is_empty() {
                self.cells.remove(&cell);
            }
        }
    }

    fn of_bucket(&self, bucket: u8) -> impl Iterator<Item = &HashSet<Arc<str>>> {
        let cell = |cell| AccessCell { bucket, cell };
        self.cells.range(cell(0)..=cell(u8::MAX)).map(|(_, names)| names)
    }

    fn has_bucket(&self, bucket: u8) -> bool {
        self.of_bucket(bucket).next().is_some()
    }

    /// Returns the followed databases of changed parts, with the position of the known state in each.
    fn among(&self, changed: &[AccessPart], known: &AccessState) -> Vec<(Arc<str>, Option<UsersPosition>)> {
        let mut names = HashSet::new();
        for part in changed {
            match part {
                AccessPart::Cell(cell) => names.extend(self.cells.get(cell).into_iter().flatten()),
                AccessPart::Bucket(bucket) => names.extend(self.of_bucket(*bucket).flatten()),
            }
        }
        let position = |name: &Arc<str>| Some(known.position(self.databases.get(name)?.incarnation?));
        names.into_iter().map(|name| (Arc::clone(name), position(name))).collect()
    }
}

impl DatabaseFollowers {
    /// Wakes the followers of changed users; of all users if these are unknown.
    fn wake(&mut self, found: Option<UserChanges>) {
        let wake = |counter: &watch::Sender<u64>| counter.send_modify(|number| *number = number.wrapping_add(1));
        match found.and_then(|found| found.names) {
            Some(names) => names.iter().filter_map(|name| self.users.get(name)).for_each(wake),
            None => self.users.values().for_each(wake),
        }
    }
}

async fn look_on(weak: Weak<FollowedUsers>, clock: Clock) {
    let (mut known, mut pacer): (Option<(Instant, AccessState)>, _) = (None, LookPacer::new(&clock));
    loop {
        let Some(users) = weak.upgrade() else { return };
        if users.has_ended() {
            return;
        }
        let began = clock.now();
        let before = known.take().filter(|(of, _)| clock.since(*of) < STATE_MAX);
        let looked = users.look(before.as_ref().map(|(_, state)| state)).await;
        let pause = match looked {
            Ok(state) => {
                known = Some((began, state));
                users.confirmed.send_replace(Some(began));
                pacer.succeeded(&users.metrics, RightsLook::Users, began);
                pacer.next(began, LOOK_INTERVAL)
            }
            Err(error) => {
                tracing::debug!(%error, "a look at followed users failed");
                known = before;
                pacer.failed(&users.metrics, RightsLook::Users)
            }
        };
        drop(users);
        clock.sleep_until(pause).await;
    }
}

#[cfg(test)]
mod tests;
