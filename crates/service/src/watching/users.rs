//! Followed users of databases: one poll per process finds the users that have changed or lost a session.
//!
//! A reported user reads its own state; the others are unchanged. So a follower reads its own state once after it
//! began to follow, and each poll resumes at the end of the one before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_layer::channels::{UserChanges, UsersPosition};
use flatbed_layer::{Error, Layer};
use tokio::sync::watch;
use tokio::time::Instant;

/// The interval of polls, from begin to begin. Feeds end within a second of the loss.
const POLL_INTERVAL: Duration = Duration::from_millis(600);

const FAILED_PAUSE: Duration = Duration::from_millis(300);

/// The time limit of a poll; a longer one counts as a failure of the storage.
const POLL_MAX: Duration = Duration::from_secs(4);

/// The most databases that one transaction reads.
const DATABASES_PER_READ: usize = 20;

/// The age at which a feed stops sending until its reader's existence is confirmed.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(1);

pub(super) struct FollowedUsers {
    layer: Layer,
    followed: Mutex<UserFollowers>,
    confirmed: watch::Sender<Option<Instant>>,
}

#[derive(Default)]
struct UserFollowers {
    databases: HashMap<Arc<str>, DatabaseFollowers>,
    is_polling: bool,
}

#[derive(Default)]
struct DatabaseFollowers {
    /// `None`: not polled yet, or missing.
    place: Option<UsersPosition>,
    /// The change counter of each user, by name.
    users: HashMap<Arc<str>, watch::Sender<u64>>,
}

impl FollowedUsers {
    pub(super) fn new(layer: Layer) -> FollowedUsers {
        FollowedUsers { layer, followed: Mutex::default(), confirmed: watch::Sender::new(None) }
    }

    fn followed(&self) -> MutexGuard<'_, UserFollowers> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When all followed users were last known.
    pub(super) fn confirmed(&self) -> watch::Receiver<Option<Instant>> {
        self.confirmed.subscribe()
    }

    /// True if that was less than a second ago.
    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed.borrow().is_some_and(|began| self.layer.clock().since(began) < FOLLOWED_WITHIN)
    }

    /// Returns a counter that increases when a user of a database may have changed. It may or may not report changes
    /// from before this call.
    pub(super) fn follow(self: &Arc<Self>, database: &Arc<str>, name: &Arc<str>) -> watch::Receiver<u64> {
        let mut followed = self.followed();
        let of = followed.databases.entry(Arc::clone(database)).or_default();
        let receiver = of.users.entry(Arc::clone(name)).or_insert_with(|| watch::Sender::new(0)).subscribe();
        if !followed.is_polling {
            followed.is_polling = true;
            // The first follower reads its own state after this moment.
            self.confirmed.send_replace(Some(self.layer.clock().now()));
            tokio::spawn(poll(Arc::downgrade(self), self.layer.clock().clone()));
        }
        receiver
    }

    /// Returns the databases with followed users and the position of each one's last poll; drops databases without
    /// followers. `None`: no user is followed, and the polling task ends.
    fn polled_databases(&self) -> Option<Vec<(Arc<str>, Option<UsersPosition>)>> {
        let mut followed = self.followed();
        for of in followed.databases.values_mut() {
            of.users.retain(|_, sender| sender.receiver_count() > 0);
        }
        followed.databases.retain(|_, of| !of.users.is_empty());
        if followed.databases.is_empty() {
            followed.is_polling = false;
            return None;
        }
        Some(followed.databases.iter().map(|(name, of)| (Arc::clone(name), of.place)).collect())
    }

    async fn poll_all(&self, asked: &[(Arc<str>, Option<UsersPosition>)]) -> Result<(), Error> {
        for some in asked.chunks(DATABASES_PER_READ) {
            let found = self.layer.users_changed(some).await?;
            let mut followed = self.followed();
            for ((name, _), found) in some.iter().zip(found) {
                if let Some(of) = followed.databases.get_mut(name) {
                    of.wake(found);
                }
            }
        }
        Ok(())
    }
}

impl DatabaseFollowers {
    fn wake(&mut self, found: Option<UserChanges>) {
        let (place, names) = found.map_or((None, None), |found| (Some(found.place), found.names));
        self.place = place;
        let wake = |sender: &watch::Sender<u64>| sender.send_modify(|number| *number = number.wrapping_add(1));
        match names {
            Some(names) => names.iter().filter_map(|name| self.users.get(name)).for_each(wake),
            None => self.users.values().for_each(wake),
        }
    }
}

async fn poll(weak: Weak<FollowedUsers>, clock: Clock) {
    loop {
        let Some(users) = weak.upgrade() else { return };
        let Some(asked) = users.polled_databases() else { return };
        let began = clock.now();
        match clock.timeout(POLL_MAX, users.poll_all(&asked)).await {
            Ok(Ok(())) => {
                users.confirmed.send_replace(Some(began));
            }
            // Other reads fail meanwhile, too.
            Ok(Err(error)) => {
                tracing::debug!(%error, "polling followed users failed");
                drop(users);
                clock.sleep(FAILED_PAUSE).await;
                continue;
            }
            Err(_) => tracing::debug!("polling followed users timed out"),
        }
        drop(users);
        clock.sleep_until(began + POLL_INTERVAL).await;
    }
}
