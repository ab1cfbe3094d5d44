//! Watches for lost rights of long-lived requests.
//!
//! Rights change seldom, and tens of thousands of followers may wait for a change. One poll per process finds changes
//! ([`Accounts::records`], [`Accounts::changes`]). After a change of a record one task reads `_security` of all followed
//! databases and wakes the followers of changed ones. Another one finds changed users of databases (`users`). A woken
//! follower judges its rights from memory.
//!
//! Rows of a feed pass if the last of these looks began less than a second ago, or after the rows were read. So a look
//! that takes longer delays rows and does not silence the feed.

mod users;

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_auth::AuthError;
use flatbed_auth::security::Access;
use flatbed_clock::Clock;
use flatbed_layer::channels::HeldRights;
use flatbed_layer::{DatabaseSecurity, Error as LayerError, Layer, Reader, RecordState};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::accounts::{Accounts, DatabasesState, Freshness};
use crate::looks::{LookPacer, RightsLook, RightsMetrics, read_within};
use crate::rights::Requirement;
use crate::standing::{RightsBasis, Standing};
use users::{FollowedUsers, UserChangeCounter};

/// The delay from a poll to the poll of databases that were followed since.
const NEW_POLL_DELAY: Duration = Duration::from_millis(300);

/// The interval of polls for missing databases, and of checks for databases without followers.
const POLL_INTERVAL: Duration = Duration::from_millis(600);

const FAILED_PAUSE: Duration = Duration::from_millis(300);

/// A request that ends sooner follows nothing, since its rights were judged recently.
const YOUNG_MAX: Duration = Duration::from_millis(300);

/// The longest wait for the end of a token, since clocks may be adjusted.
const TOKEN_WAIT_MAX: Duration = Duration::from_secs(60);

/// The shortest wait before an end that has passed is checked again.
const LEAST_WAIT: Duration = Duration::from_millis(10);

/// The most databases that one transaction reads.
const DATABASES_PER_READ: usize = 200;

#[derive(Debug, Clone)]
enum KnownSecurity {
    Unread,
    /// Missing when it was read; it may have been created since.
    Missing,
    Present(Arc<DatabaseSecurity>),
}

/// The begin of a read of a single database, its name, and the result.
type SingleRead = (Instant, Arc<str>, Result<(), LayerError>);

/// The state that all watches share.
pub(crate) struct WatchState {
    layer: Layer,
    accounts: Arc<Accounts>,
    followed: Mutex<FollowedDatabases>,
    /// Notified when a database without a known state gets a follower.
    came: Arc<Notify>,
    /// Locked by the transaction that reads: the last read of a single database, its begin, and its result.
    reading: tokio::sync::Mutex<Option<SingleRead>>,
    users: Arc<FollowedUsers>,
}

#[derive(Default)]
struct FollowedDatabases {
    databases: HashMap<Arc<str>, watch::Sender<KnownSecurity>>,
    /// Those that are unread or missing. A created database changes no existing record, and a missing one may be
    /// created at any time.
    unknown: HashSet<Arc<str>>,
    is_polling: bool,
}

impl WatchState {
    pub(crate) fn new(layer: Layer, accounts: Arc<Accounts>) -> WatchState {
        let users = Arc::new(FollowedUsers::new(layer.clone(), Arc::clone(accounts.looks())));
        let (followed, came, reading) = (Mutex::default(), Arc::default(), tokio::sync::Mutex::default());
        WatchState { layer, accounts, followed, came, reading, users }
    }

    /// True if the basis of all rights is known as of less than a second ago, or as of `read_at` or later; for a user of
    /// one database, also the user's existence.
    fn is_confirmed(&self, is_user: bool, read_at: Option<Instant>) -> bool {
        self.accounts.is_confirmed(read_at) && (!is_user || self.users.is_confirmed(read_at))
    }

    fn looks(&self) -> &Arc<RightsMetrics> {
        self.accounts.looks()
    }

    fn clock(&self) -> &Clock {
        self.layer.clock()
    }

    pub(crate) fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    fn followed(&self) -> MutexGuard<'_, FollowedDatabases> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn is_polling(&self) -> bool {
        self.followed().is_polling
    }

    /// Reads a database's `_security` before the first poll: as of now, or of less than a second ago.
    async fn read_security(&self, name: &Arc<str>, is_now: bool) -> Option<Arc<DatabaseSecurity>> {
        if !is_now {
            return self.layer.security(name).await.ok();
        }
        let (_, mut found) = self.layer.securities(std::slice::from_ref(name)).await.ok()?;
        found.pop()?
    }

    fn follow(self: &Arc<Self>, name: &Arc<str>) -> FollowedDatabase {
        let mut followed = self.followed();
        let FollowedDatabases { databases, unknown, .. } = &mut *followed;
        let known = databases.entry(name.clone()).or_insert_with(|| {
            unknown.insert(name.clone());
            watch::Sender::new(KnownSecurity::Unread)
        });
        let known = known.subscribe();
        if matches!(*known.borrow(), KnownSecurity::Unread) {
            self.came.notify_one();
        }
        if !followed.is_polling {
            followed.is_polling = true;
            self.accounts.note_databases(DatabasesState::Unknown);
            tokio::spawn(poll(Arc::downgrade(self), self.clock().clone()));
        }
        drop(followed);
        FollowedDatabase { name: name.clone(), known, of: Arc::clone(self) }
    }

    /// True if no database is followed; the polling task then ends.
    fn has_ended(&self) -> bool {
        let mut followed = self.followed();
        followed.is_polling = !followed.databases.is_empty();
        if !followed.is_polling {
            self.accounts.note_databases(DatabasesState::Unfollowed);
        }
        !followed.is_polling
    }

    /// Returns all followed databases, or only those of unknown state.
    fn names(&self, are_all: bool) -> Vec<Arc<str>> {
        let followed = self.followed();
        if are_all { followed.databases.keys().cloned().collect() } else { followed.unknown.iter().cloned().collect() }
    }

    /// Reads one database now and wakes its followers, unless a read of it began after this call while it waited. A
    /// failed read also counts for callers that came before it began.
    async fn read_now(&self, name: &Arc<str>) -> Result<(), LayerError> {
        let came = self.clock().now();
        let mut reading = self.reading.lock().await;
        if let Some((began, of, found)) = &*reading
            && (of, *began >= came) == (name, true)
        {
            return found.clone();
        }
        let began = self.clock().now();
        let found = self.read(std::slice::from_ref(name)).await.map(drop);
        *reading = Some((began, Arc::clone(name), found.clone()));
        found
    }

    /// Reads databases and wakes the followers of changed ones. Returns the state of all records at that time.
    async fn read_all(&self, names: &[Arc<str>]) -> Result<RecordState, LayerError> {
        let mut oldest = None;
        for some in names.chunks(DATABASES_PER_READ) {
            // Locked, so that an older state never replaces a newer one.
            let _reading = self.reading.lock().await;
            // The next poll finds changes between two transactions, since the state of the first is kept.
            oldest.get_or_insert(self.read(some).await?);
        }
        oldest.ok_or(LayerError::DatabaseNotFound)
    }

    /// Reads databases in one transaction.
    async fn read(&self, names: &[Arc<str>]) -> Result<RecordState, LayerError> {
        let (state, found) = read_within(self.clock(), self.layer.securities(names)).await?;
        let mut followed = self.followed();
        let FollowedDatabases { databases, unknown, .. } = &mut *followed;
        for (name, security) in names.iter().zip(found) {
            let Some(sender) = databases.get(name) else { continue };
            if security.is_some() {
                unknown.remove(name);
            } else {
                unknown.insert(Arc::clone(name));
            }
            sender.send_if_modified(|known| {
                let is_same = match (&*known, &security) {
                    (KnownSecurity::Present(known), Some(security)) => Arc::ptr_eq(known, security),
                    (KnownSecurity::Missing, None) => true,
                    _ => false,
                };
                if !is_same {
                    *known = security.map_or(KnownSecurity::Missing, KnownSecurity::Present);
                }
                !is_same
            });
        }
        Ok(state)
    }
}

/// Polls while anything is followed: all databases after a change of a record, else those of unknown state.
async fn poll(weak: Weak<WatchState>, clock: Clock) {
    let Some(mut records) = weak.upgrade().map(|watching| watching.accounts.records()) else { return };
    let (mut state, mut pacer) = (None, LookPacer::new(&clock));
    loop {
        let Some(watching) = weak.upgrade() else { return };
        if watching.has_ended() {
            return;
        }
        let newest = records.borrow_and_update().clone();
        let has_changed = state.is_none() || (newest.is_some() && newest != state);
        let (names, began) = (watching.names(has_changed), clock.now());
        if !names.is_empty() {
            match watching.read_all(&names).await {
                Ok(found) if has_changed || state.as_ref() == Some(&found) => {
                    pacer.succeeded(watching.looks(), RightsLook::Databases, began);
                    watching.accounts.note_databases(DatabasesState::AsOf(found.clone()));
                    state = Some(found);
                }
                // Another record has changed meanwhile.
                Ok(_) => {
                    state = None;
                    continue;
                }
                // Other reads fail meanwhile, too.
                Err(error) => {
                    tracing::debug!(%error, "polling the rights of followers failed");
                    let next = pacer.failed(watching.looks(), RightsLook::Databases);
                    drop(watching);
                    clock.sleep_until(next).await;
                    continue;
                }
            }
        }
        let came = Arc::clone(&watching.came);
        drop(watching);
        let came = async {
            // One poll serves all followers that come within this time.
            clock.sleep(NEW_POLL_DELAY).await;
            came.notified().await;
        };
        tokio::select! {
            _ = records.changed() => {}
            () = came => {}
            () = clock.sleep(POLL_INTERVAL) => {}
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct GrantedRight {
    /// `None`: a right in the server.
    database: Option<Arc<str>>,
    needs: Requirement,
    /// The user's access to the database, which decides what is visible in one with channels; and whether it was a
    /// replicator database.
    access: (Access, bool),
}

/// The rights that were granted to a request.
#[derive(Debug, Default)]
pub(crate) struct GrantedRights {
    rights: Mutex<Vec<GrantedRight>>,
    /// The databases with channels that the request may read in part.
    seen: Mutex<Vec<Arc<PartialAccess>>>,
}

impl GrantedRights {
    /// Records a granted right in a database, or in the server if `name` is `None`.
    pub(crate) fn note(&self, name: Option<&str>, needs: Requirement, access: (Access, bool)) {
        let mut rights = self.rights.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known =
            |known: &GrantedRight| known.database.as_deref() == name && known.needs == needs && known.access == access;
        if !rights.iter().any(is_known) {
            rights.push(GrantedRight { database: name.map(Arc::from), needs, access });
        }
    }

    /// Records, before anything is read, that the request reads a part of a database.
    pub(crate) fn note_part(&self, reader: Reader) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if !seen.iter().any(|known| known.reader.name() == reader.name() && known.reader.asker() == reader.asker()) {
            let since = reader.clock().now();
            seen.push(Arc::new(PartialAccess { reader, since }));
        }
    }

    fn all(&self) -> Vec<GrantedRight> {
        self.rights.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn parts(&self) -> Vec<Arc<PartialAccess>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A database with channels, as a restricted reader sees it.
struct PartialAccess {
    reader: Reader,
    since: Instant,
}

impl fmt::Debug for PartialAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PartialAccess").field(&self.reader.name()).field(self.reader.asker()).finish()
    }
}

impl PartialAccess {
    /// Returns whether the reader has lost nothing since then, or nothing that this state covers. False if the
    /// storage fails.
    async fn is_whole(&self, judged_by: Option<&HeldRights>) -> bool {
        matches!(self.reader.has_lost(self.since, judged_by).await, Ok(false))
    }
}

/// The access state by which rows were judged, opaque to surfaces.
pub type Basis = Arc<dyn Any + Send + Sync>;

/// Checks whether a restricted reader still sees everything that it was shown.
#[derive(Debug, Clone)]
pub struct PartsWatch {
    parts: Vec<Arc<PartialAccess>>,
    since: Instant,
}

impl PartsWatch {
    /// The earliest time that this watch covers; what the reader is shown must be newer.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Returns whether the reader has lost nothing since then, or nothing of the state by which rows were judged, as
    /// of a moment ago. Gained access counts for nothing. False if the storage fails.
    pub fn is_whole(&self, judged_by: Option<Basis>) -> impl Future<Output = bool> + Send + use<> {
        let parts = self.parts.clone();
        let judged_by = judged_by.and_then(|by| by.downcast::<HeldRights>().ok());
        async move {
            for part in &parts {
                // With several databases the caller does not say which one the state is of.
                let judged_by = judged_by.as_deref().filter(|_| parts.len() == 1);
                if !part.is_whole(judged_by).await {
                    return false;
                }
            }
            true
        }
    }
}

/// A watch that resolves when a right of a request is lost. It starts polling after 300 ms.
pub struct RightsWatch {
    watching: Arc<WatchState>,
    standing: Standing,
    judged: Arc<GrantedRights>,
    began: Instant,
    /// True for a feed: its request may have been judged with rights as old as an answer may be.
    is_feeds: bool,
    /// False while a change of the rights is judged.
    is_judged: watch::Sender<bool>,
    following: Option<RightsState>,
}

impl fmt::Debug for RightsWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RightsWatch").field("standing", &self.standing).finish_non_exhaustive()
    }
}

type Wait<'w> = Pin<Box<dyn Future<Output = ()> + Send + 'w>>;

/// A followed database. The last one that is dropped ends the following.
struct FollowedDatabase {
    name: Arc<str>,
    known: watch::Receiver<KnownSecurity>,
    of: Arc<WatchState>,
}

impl Drop for FollowedDatabase {
    fn drop(&mut self) {
        let mut followed = self.of.followed();
        // Its own receiver still counts.
        if followed.databases.get(&self.name).is_some_and(|sender| sender.receiver_count() <= 1) {
            followed.databases.remove(&self.name);
            followed.unknown.remove(&self.name);
        }
    }
}

struct RightsState {
    accounts: watch::Receiver<u64>,
    /// The change counter of a user of one database.
    user: Option<UserChangeCounter>,
    /// The value of that counter when the user was last read.
    user_known_at: Option<u64>,
    /// The known end of the user's session, in milliseconds of Unix time.
    session_ends_at_ms: Option<u64>,
    /// Each right, with its database (`None`: the server) and the access at the grant.
    rights: Vec<(Option<FollowedDatabase>, Requirement, (Access, bool))>,
    /// True if nothing has changed since the rights were judged.
    is_judged: bool,
}

impl RightsWatch {
    pub(crate) fn new(watching: Arc<WatchState>, standing: Standing, judged: Arc<GrantedRights>) -> RightsWatch {
        let began = watching.clock().now();
        let is_judged = watch::Sender::new(true);
        RightsWatch { watching, standing, judged, began, is_feeds: false, is_judged, following: None }
    }

    /// Makes the watch a feed's, which is judged from its beginning on.
    pub(crate) fn at_once(self) -> RightsWatch {
        RightsWatch { is_feeds: true, ..self }
    }

    /// Resolves once rows that were read at this time may be sent, as far as looks and judgements go: see
    /// [`RightsWatch::may_send`]. Resolves never if the watch is dropped.
    pub(crate) fn confirmed(&self, read_at: Instant) -> impl Future<Output = ()> + Send + use<> {
        let watching = (!self.is_new()).then(|| Arc::clone(&self.watching));
        let (is_user, mut is_judged) = (self.is_user(), self.is_judged.subscribe());
        async move {
            let Some(watching) = watching else { return };
            let (mut accounts, mut users) = (watching.accounts.confirmed(), watching.users.confirmed());
            while !(*is_judged.borrow() && watching.is_confirmed(is_user, Some(read_at))) {
                let is_over = tokio::select! {
                    changed = accounts.changed() => changed.is_err(),
                    changed = users.changed() => changed.is_err(),
                    changed = is_judged.changed() => changed.is_err(),
                };
                if is_over {
                    std::future::pending::<()>().await;
                }
            }
        }
    }

    fn is_user(&self) -> bool {
        matches!(self.standing.basis(), RightsBasis::Principal { .. })
    }

    /// True if the watch follows nothing yet: the request was judged recently.
    pub(crate) fn is_new(&self) -> bool {
        self.following.is_none()
    }

    /// Returns whether rows that were read at this time may be sent: the rights were judged after the last change that
    /// is known, and all changes are known as of less than a second ago, or as of the time when the rows were read. A
    /// long-lived request sends nothing else, even if the storage fails. A request that follows nothing yet was judged
    /// recently.
    pub(crate) fn may_send(&self, read_at: Instant) -> bool {
        let Some(following) = &self.following else { return true };
        // In this order: a look wakes followers before it confirms.
        self.watching.is_confirmed(self.is_user(), Some(read_at)) && following.is_current()
    }

    /// The metrics of looks at rights.
    pub(crate) fn looks(&self) -> &RightsMetrics {
        self.watching.looks()
    }

    /// Returns a watch for the databases that the reader sees a part of; `None`: there are none.
    pub fn parts(&self) -> Option<PartsWatch> {
        let parts = self.judged.parts();
        let since = parts.iter().map(|part| part.since).min()?;
        Some(PartsWatch { parts, since })
    }

    /// Resolves within a second of the loss of a right, with the refusal that a request would get. The watch covers
    /// rights that were held when it started. It may be dropped and called again at any time.
    #[boxed]
    pub async fn lost(&mut self) -> AuthError {
        if self.watching.accounts.is_fixed(&self.standing) {
            return std::future::pending().await;
        }
        if self.following.is_none() && !self.is_feeds {
            self.watching.clock().sleep_until(self.began + YOUNG_MAX).await;
        }
        let following = self.following.get_or_insert_with(|| {
            self.is_judged.send_replace(false);
            RightsState::new(&self.watching, &self.standing, &self.judged)
        });
        loop {
            if following.is_judged {
                following.changed(self.watching.clock(), &self.standing).await;
                // A change is not lost if this is dropped before it is judged.
                following.is_judged = false;
                self.is_judged.send_replace(false);
            }
            if let Some(refused) = following.judge(&self.watching, &self.standing, self.is_feeds).await {
                return refused;
            }
            following.is_judged = true;
            self.is_judged.send_replace(true);
        }
    }
}

/// Returns the wait until this second since 1970, within [`LEAST_WAIT`] and [`TOKEN_WAIT_MAX`].
fn until(clock: &Clock, second: u64) -> Duration {
    Duration::from_secs(second).saturating_sub(clock.unix()).clamp(LEAST_WAIT, TOKEN_WAIT_MAX)
}

impl RightsState {
    fn new(watching: &Arc<WatchState>, standing: &Standing, judged: &GrantedRights) -> RightsState {
        let follow = |GrantedRight { database, needs, access }: GrantedRight| {
            (database.map(|name| watching.follow(&name)), needs, access)
        };
        let accounts = watching.accounts.changes();
        let user = match standing.basis() {
            RightsBasis::Principal { database, incarnation, name, .. } => {
                Some(watching.users.follow(database, *incarnation, name))
            }
            _ => None,
        };
        let rights = judged.all().into_iter().map(follow).collect();
        RightsState { accounts, user, user_known_at: None, session_ends_at_ms: None, rights, is_judged: false }
    }

    /// True if the rights were judged after the last change that is known.
    fn is_current(&self) -> bool {
        let mut databases = self.rights.iter().filter_map(|(database, ..)| database.as_ref());
        let has_changed = databases.any(|database| database.known.has_changed().unwrap_or(false))
            || self.accounts.has_changed().unwrap_or(false)
            || self.user.as_ref().is_some_and(UserChangeCounter::has_changed);
        self.is_judged && !has_changed
    }

    /// Waits until the basis of the rights may have changed. A closed channel never reports a change.
    async fn changed(&mut self, clock: &Clock, standing: &Standing) {
        async fn of<T>(receiver: &mut watch::Receiver<T>) {
            if receiver.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
        let databases = self.rights.iter_mut().filter_map(|(database, ..)| database.as_mut());
        let mut waits: Vec<Wait<'_>> =
            databases.map(|database| Box::pin(of(&mut database.known)) as Wait<'_>).collect();
        waits.push(Box::pin(of(&mut self.accounts)));
        if let RightsBasis::Token { ends: Some(ends), .. } = standing.basis() {
            waits.push(Box::pin(clock.sleep(until(clock, *ends))));
        }
        if let Some(user) = &mut self.user {
            waits.push(Box::pin(of(user.counter())));
        }
        if let Some(ends_at_ms) = self.session_ends_at_ms {
            waits.push(Box::pin(clock.sleep(until(clock, ends_at_ms.div_ceil(1_000)))));
        }
        // All receivers are polled, so that each can wake this task.
        poll_fn(|context| {
            let mut is_ready = false;
            for wait in &mut waits {
                is_ready |= wait.as_mut().poll(context).is_ready();
            }
            if is_ready { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Judges the rights again; `None`: all are still held. Retries while the storage fails.
    async fn judge(&mut self, watching: &WatchState, standing: &Standing, is_feeds: bool) -> Option<AuthError> {
        self.accounts.mark_unchanged();
        let clock = watching.clock();
        let is_over = |ends_at_ms: u64| until(clock, ends_at_ms / 1_000) <= LEAST_WAIT;
        if self.session_ends_at_ms.is_some_and(is_over) {
            self.user_known_at = None;
        }
        let principal = loop {
            let found = match standing.basis() {
                rests_on @ RightsBasis::Principal { .. } => {
                    // The counter is read before the user.
                    let said = self.user.as_ref().map(UserChangeCounter::count);
                    if said.is_some() && said == self.user_known_at {
                        break standing.principal().clone();
                    }
                    // As of now: the watch does not report changes from before it began.
                    let now = watching.accounts.user_now(rests_on, Freshness::Since(clock.now())).await;
                    now.map(|now| {
                        (self.user_known_at, self.session_ends_at_ms) =
                            (said, now.and_then(|now| now.session_ends_at_ms));
                        now.map(|_| standing.principal().clone())
                    })
                }
                _ => watching.accounts.now(standing).await,
            };
            match found {
                Ok(Some(principal)) => break principal,
                // Public resources stay readable without a name and need no right.
                Ok(None) if *standing.basis() == RightsBasis::Nothing && self.rights.is_empty() => return None,
                Ok(None) => return Some(standing.lost()),
                Err(_) => clock.sleep(FAILED_PAUSE).await,
            }
        };
        for (database, needs, (access, was_replicator)) in &mut self.rights {
            let Some(FollowedDatabase { name, known, .. }) = database else {
                if let Err(refused) = needs.in_server(&principal) {
                    return Some(refused);
                }
                continue;
            };
            // Read before the state, which is as of then or later.
            let (is_known_now, mut is_read) = (watching.accounts.is_confirmed(None), false);
            loop {
                let found = known.borrow_and_update().clone();
                let is_known = matches!(found, KnownSecurity::Present(_));
                let security = match found {
                    KnownSecurity::Present(security) => security,
                    KnownSecurity::Unread | KnownSecurity::Missing => {
                        match watching.read_security(name, is_feeds).await {
                            Some(security) => security,
                            // The poll will report it.
                            None => break,
                        }
                    }
                };
                // The `_security` of a later database of this name counts, too: a feed ends by itself with its own
                // database. The state known here may be older.
                let judged = |before| {
                    let before = (before, *was_replicator);
                    needs.in_database_as(before, standing, &principal, name, &security)
                };
                match judged(*access) {
                    Ok(()) => break,
                    Err(refused) if is_read || !is_known => return Some(refused),
                    // A user with less access than before may have gained it again since.
                    Err(refused) if is_known_now && judged(Access::Nobody).is_err() => return Some(refused),
                    // A poll may be late, and its state may be older than the grant of the right.
                    Err(_) => match watching.read_now(name).await {
                        Ok(()) => is_read = true,
                        Err(_) => clock.sleep(FAILED_PAUSE).await,
                    },
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
