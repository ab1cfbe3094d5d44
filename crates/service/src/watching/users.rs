//! Users of databases who follow: one look of the process for all of them finds which have changed, or had a session ended.
//!
//! Whoever is named looks at themselves; who is not rests on that nothing was said of them. So whoever follows looks at themselves once
//! behind the moment in which they began, and each look goes on where the one before it ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_layer::channels::{UsersChanged, UsersPlace};
use flatbed_layer::{Error, Layer};
use tokio::sync::watch;
use tokio::time::Instant;

/// How often it is looked, from one beginning to the next. Feeds end within a second of the loss.
const LOOK_EACH: Duration = Duration::from_millis(600);

/// After a failure of the storage, before it is asked again.
const FAILED_PAUSE: Duration = Duration::from_millis(300);

/// A look that takes longer is given up: the storage does not answer.
const LOOK_MAX: Duration = Duration::from_secs(4);

/// Databases that are looked at in one transaction.
const LOOKED_AT_ONCE: usize = 20;

/// A feed gives nothing while it was longer ago that its reader was known to be there.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct FollowedUsers {
    layer: Layer,
    followed: Mutex<Followed>,
    /// When the last look at all of them began.
    confirmed: watch::Sender<Option<Instant>>,
}

#[derive(Default)]
struct Followed {
    databases: HashMap<Arc<str>, OfDatabase>,
    is_looking: bool,
}

#[derive(Default)]
struct OfDatabase {
    /// `None`: it was not looked at yet, or was not there.
    place: Option<UsersPlace>,
    /// By name.
    users: HashMap<Arc<str>, watch::Sender<u64>>,
}

impl FollowedUsers {
    pub(super) fn new(layer: Layer) -> FollowedUsers {
        FollowedUsers { layer, followed: Mutex::default(), confirmed: watch::Sender::new(None) }
    }

    fn followed(&self) -> MutexGuard<'_, Followed> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When all users who follow were known last.
    pub(super) fn confirmed(&self) -> watch::Receiver<Option<Instant>> {
        self.confirmed.subscribe()
    }

    /// Whether that was less than a second ago.
    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed.borrow().is_some_and(|began| self.layer.clock().since(began) < FOLLOWED_WITHIN)
    }

    /// A number that moves whenever a user of a database may be another one. What was changed before this is called may be said or not.
    pub(super) fn follow(self: &Arc<Self>, database: &Arc<str>, name: &Arc<str>) -> watch::Receiver<u64> {
        let mut followed = self.followed();
        let of = followed.databases.entry(Arc::clone(database)).or_default();
        let receiver = of.users.entry(Arc::clone(name)).or_insert_with(|| watch::Sender::new(0)).subscribe();
        if !followed.is_looking {
            followed.is_looking = true;
            // Whoever is the first looks at themselves behind this moment.
            self.confirmed.send_replace(Some(self.layer.clock().now()));
            tokio::spawn(look(Arc::downgrade(self), self.layer.clock().clone()));
        }
        receiver
    }

    /// Databases that have users who follow, and up to where each was looked at; those of nobody any more are forgotten. `None`: there are
    /// none, and the task that looks ends.
    fn asked(&self) -> Option<Vec<(Arc<str>, Option<UsersPlace>)>> {
        let mut followed = self.followed();
        for of in followed.databases.values_mut() {
            of.users.retain(|_, sender| sender.receiver_count() > 0);
        }
        followed.databases.retain(|_, of| !of.users.is_empty());
        if followed.databases.is_empty() {
            followed.is_looking = false;
            return None;
        }
        Some(followed.databases.iter().map(|(name, of)| (Arc::clone(name), of.place)).collect())
    }

    async fn look_at_all(&self, asked: &[(Arc<str>, Option<UsersPlace>)]) -> Result<(), Error> {
        for some in asked.chunks(LOOKED_AT_ONCE) {
            let found = self.layer.users_changed(some).await?;
            let mut followed = self.followed();
            for ((name, _), found) in some.iter().zip(found) {
                if let Some(of) = followed.databases.get_mut(name) {
                    of.tell(found);
                }
            }
        }
        Ok(())
    }
}

impl OfDatabase {
    /// Wakes those of whom something was found.
    fn tell(&mut self, found: Option<UsersChanged>) {
        let (place, names) = found.map_or((None, None), |found| (Some(found.place), found.names));
        self.place = place;
        let wake = |sender: &watch::Sender<u64>| sender.send_modify(|number| *number = number.wrapping_add(1));
        match names {
            Some(names) => names.iter().filter_map(|name| self.users.get(name)).for_each(wake),
            None => self.users.values().for_each(wake),
        }
    }
}

/// Looks for as long as anybody follows.
async fn look(weak: Weak<FollowedUsers>, clock: Clock) {
    loop {
        let Some(users) = weak.upgrade() else { return };
        let Some(asked) = users.asked() else { return };
        let began = clock.now();
        match clock.timeout(LOOK_MAX, users.look_at_all(&asked)).await {
            Ok(Ok(())) => {
                users.confirmed.send_replace(Some(began));
            }
            // Nothing else is answered meanwhile, either.
            Ok(Err(error)) => {
                tracing::debug!(%error, "users of databases who follow were not looked at");
                drop(users);
                clock.sleep(FAILED_PAUSE).await;
                continue;
            }
            Err(_) => tracing::debug!("users of databases who follow were not looked at in time"),
        }
        drop(users);
        clock.sleep_until(began + LOOK_EACH).await;
    }
}
