//! Rights that are lost: whoever goes on for long is judged anew.
//!
//! What a right rests on changes seldom, and many wait for it: tens of thousands of followers of few databases. One look of the
//! process finds whether anything has changed ([`Accounts::records`], [`Accounts::changes`]). Where a record has, one task
//! looks at `_security` of all databases that somebody follows, and wakes who follows one that is another. Who is woken judges
//! for itself, from memory.

mod users;

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_auth::Refused;
use flatbed_auth::security::Access;
use flatbed_clock::Clock;
use flatbed_layer::channels::HeldAt;
use flatbed_layer::{Error as LayerError, Layer, Reader, RecordState, SecurityOf};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::accounts::{Accounts, Databases, Fresh};
use crate::rights::Needs;
use crate::standing::{RestsOn, Standing};
use users::FollowedUsers;

/// How soon after a look those databases are looked at that somebody began to follow since.
const NEW_EACH: Duration = Duration::from_millis(300);

/// How often databases are looked at that were not there, and how often it is seen whether anything is followed still.
const LOOK_EACH: Duration = Duration::from_millis(600);

/// After a failure of the storage, before it is asked again.
const FAILED_PAUSE: Duration = Duration::from_millis(300);

/// What ends sooner was judged not long ago, and follows nothing.
const YOUNG: Duration = Duration::from_millis(300);

/// A look that takes longer is given up: the storage does not answer.
const LOOK_MAX: Duration = Duration::from_secs(4);

/// The end of a token is looked for again after so long at most: clocks are set.
const TOKEN_LOOK_MAX: Duration = Duration::from_secs(60);

/// It is waited for so long at least before the end of something that has come is looked at again.
const LEAST_WAIT: Duration = Duration::from_millis(10);

/// Databases that are looked at in one transaction.
const LOOKED_AT_ONCE: usize = 200;

/// What is known of a followed database.
#[derive(Debug, Clone)]
enum Known {
    /// Nothing yet.
    Nothing,
    /// It was not there: who reads it finds out. It may have been created since.
    Gone,
    /// This is its `_security`.
    Is(Arc<SecurityOf>),
}

/// What all that goes on for long shares.
pub(crate) struct Watching {
    layer: Layer,
    accounts: Arc<Accounts>,
    followed: Mutex<Followed>,
    /// Somebody follows a database that is not known.
    came: Arc<Notify>,
    /// Held by the one that looks: when the last look began, and what it found.
    looking: tokio::sync::Mutex<Option<(Instant, Result<RecordState, LayerError>)>>,
    /// Users of databases who follow.
    users: Arc<FollowedUsers>,
}

#[derive(Default)]
struct Followed {
    databases: HashMap<Arc<str>, watch::Sender<Known>>,
    is_looking: bool,
}

impl Watching {
    pub(crate) fn new(layer: Layer, accounts: Arc<Accounts>) -> Watching {
        let users = Arc::new(FollowedUsers::new(layer.clone()));
        let (followed, came, looking) = (Mutex::default(), Arc::default(), tokio::sync::Mutex::default());
        Watching { layer, accounts, followed, came, looking, users }
    }

    /// Whether all that rights rest on was known less than a second ago, of a user of one database that they are there.
    fn is_confirmed(&self, is_user: bool) -> bool {
        self.accounts.is_confirmed() && (!is_user || self.users.is_confirmed())
    }

    fn clock(&self) -> &Clock {
        self.layer.clock()
    }

    pub(crate) fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    fn followed(&self) -> MutexGuard<'_, Followed> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn is_looking(&self) -> bool {
        self.followed().is_looking
    }

    /// A database's `_security`, before it is looked at: as of now, or of less than a second ago.
    async fn unknown(&self, name: &Arc<str>, is_now: bool) -> Option<Arc<SecurityOf>> {
        if !is_now {
            return self.layer.security(name).await.ok();
        }
        let (_, mut found) = self.layer.securities(std::slice::from_ref(name)).await.ok()?;
        found.pop()?
    }

    /// Follows a database's `_security`.
    fn follow(self: &Arc<Self>, name: &Arc<str>) -> watch::Receiver<Known> {
        let mut followed = self.followed();
        let found = followed.databases.entry(name.clone()).or_insert_with(|| watch::Sender::new(Known::Nothing));
        let receiver = found.subscribe();
        if matches!(*receiver.borrow(), Known::Nothing) {
            self.came.notify_one();
        }
        if !followed.is_looking {
            followed.is_looking = true;
            self.accounts.note_databases(Databases::Unknown);
            tokio::spawn(look(Arc::downgrade(self), self.clock().clone()));
        }
        receiver
    }

    /// Databases that are followed; those that nobody follows any more are forgotten. `None`: there are none, and the task
    /// that looks ends.
    fn names(&self) -> Option<Vec<Arc<str>>> {
        let mut followed = self.followed();
        followed.databases.retain(|_, sender| sender.receiver_count() > 0);
        if followed.databases.is_empty() {
            followed.is_looking = false;
            self.accounts.note_databases(Databases::Unfollowed);
            return None;
        }
        Some(followed.databases.keys().cloned().collect())
    }

    /// Whether any of these databases is not known. One that is created changes no record that was there: one that is gone may
    /// be there again at any time.
    fn is_any_unknown(&self, names: &[Arc<str>]) -> bool {
        let followed = self.followed();
        let is_known = |sender: &watch::Sender<Known>| matches!(*sender.borrow(), Known::Is(_));
        names.iter().any(|name| followed.databases.get(name).is_some_and(|sender| !is_known(sender)))
    }

    /// Looks at all databases that are followed, unless a look began after this was called while it waited: one look for all who ask.
    /// One that has failed is not tried again for whoever came before it began.
    async fn look_now(&self) -> Result<RecordState, LayerError> {
        let came = self.clock().now();
        let mut looking = self.looking.lock().await;
        if let Some((began, found)) = &*looking
            && *began >= came
        {
            return found.clone();
        }
        let (began, names) = (self.clock().now(), self.followed().databases.keys().cloned().collect::<Vec<_>>());
        let found = self.clock().timeout(LOOK_MAX, self.look_at(&names)).await;
        let found = found.unwrap_or_else(|_| Err(LayerError::timed_out()));
        *looking = Some((began, found.clone()));
        found
    }

    /// Looks at databases, and wakes who follows one that is another. The state of all records that they were as of.
    async fn look_at(&self, names: &[Arc<str>]) -> Result<RecordState, LayerError> {
        let mut oldest = None;
        for some in names.chunks(LOOKED_AT_ONCE) {
            // What changes between two transactions is found the next time: the state of the first is kept.
            let (state, found) = self.layer.securities(some).await?;
            oldest.get_or_insert(state);
            let followed = self.followed();
            for (name, security) in some.iter().zip(found) {
                let Some(sender) = followed.databases.get(name) else { continue };
                sender.send_if_modified(|known| {
                    let is_same = match (&*known, &security) {
                        (Known::Is(known), Some(security)) => Arc::ptr_eq(known, security),
                        (Known::Gone, None) => true,
                        _ => false,
                    };
                    if !is_same {
                        *known = security.map_or(Known::Gone, Known::Is);
                    }
                    !is_same
                });
            }
        }
        oldest.ok_or(LayerError::DatabaseNotFound)
    }
}

/// Looks at what is followed for as long as something is: when a record has changed, and when something new is followed.
async fn look(weak: Weak<Watching>, clock: Clock) {
    let Some(mut records) = weak.upgrade().map(|watching| watching.accounts.records()) else { return };
    let mut state = None;
    loop {
        let Some(watching) = weak.upgrade() else { return };
        let Some(names) = watching.names() else { return };
        let newest = records.borrow_and_update().clone();
        let has_changed = state.is_none() || (newest.is_some() && newest != state);
        if has_changed || watching.is_any_unknown(&names) {
            match watching.look_now().await {
                Ok(found) => {
                    watching.accounts.note_databases(Databases::AsOf(found.clone()));
                    state = Some(found);
                }
                // Nothing else is answered meanwhile, either.
                Err(error) => {
                    tracing::debug!(%error, "rights of followers were not looked at");
                    clock.sleep(FAILED_PAUSE).await;
                    continue;
                }
            }
        }
        let came = Arc::clone(&watching.came);
        drop(watching);
        let came = async {
            // However many come, they are looked at together.
            clock.sleep(NEW_EACH).await;
            came.notified().await;
        };
        tokio::select! {
            _ = records.changed() => {}
            () = came => {}
            () = clock.sleep(LOOK_EACH) => {}
        }
    }
}

/// A right that a request was found to have.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    /// In the server, if it has none.
    database: Option<Arc<str>>,
    needs: Needs,
    /// The user's access to the database, which decides what they see in one with channels, and whether it was a replicator database.
    access: (Access, bool),
}

/// What a request was found to have a right to.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    rights: Mutex<Vec<Found>>,
    /// Databases with channels that it was let read a part of.
    seen: Mutex<Vec<Arc<SeenPart>>>,
}

impl Judged {
    /// Notes a right to a database; to the server, if it has no name.
    pub(crate) fn note(&self, name: Option<&str>, needs: Needs, access: (Access, bool)) {
        let mut rights = self.rights.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known =
            |known: &Found| known.database.as_deref() == name && known.needs == needs && known.access == access;
        if !rights.iter().any(is_known) {
            rights.push(Found { database: name.map(Arc::from), needs, access });
        }
    }

    /// Notes that a part of a database was given to be read, before anything is.
    pub(crate) fn note_part(&self, reader: Reader) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if !seen.iter().any(|known| known.reader.name() == reader.name() && known.reader.asker() == reader.asker()) {
            let since = reader.clock().now();
            seen.push(Arc::new(SeenPart { reader, since }));
        }
    }

    fn all(&self) -> Vec<Found> {
        self.rights.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn parts(&self) -> Vec<Arc<SeenPart>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A database that somebody sees a part of.
struct SeenPart {
    reader: Reader,
    /// When they were let read.
    since: Instant,
}

impl fmt::Debug for SeenPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SeenPart").field(&self.reader.name()).field(self.reader.asker()).finish()
    }
}

impl SeenPart {
    /// Whether they have lost nothing since, or nothing of what this says. Nobody knows where the storage does not say it.
    async fn is_whole(&self, judged_by: Option<&HeldAt>) -> bool {
        matches!(self.reader.has_lost(self.since, judged_by).await, Ok(false))
    }
}

/// By what something was judged, as who hands it on need not know it.
pub type Basis = Arc<dyn Any + Send + Sync>;

/// Tells whether somebody who sees parts of databases sees all of these still.
#[derive(Debug, Clone)]
pub struct PartsWatch {
    parts: Vec<Arc<SeenPart>>,
    since: Instant,
}

impl PartsWatch {
    /// Since when it can tell: what was shown to them is of later.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Whether nothing has been taken from them since then, or nothing by which something was judged, as of now or of a moment ago; not
    /// where the storage does not say. What they were given counts for nothing.
    pub fn is_whole(&self, judged_by: Option<Basis>) -> impl Future<Output = bool> + Send + use<> {
        let parts = self.parts.clone();
        let judged_by = judged_by.and_then(|by| by.downcast::<HeldAt>().ok());
        async move {
            for part in &parts {
                // Who reads several does not say of which something is.
                let judged_by = judged_by.as_deref().filter(|_| parts.len() == 1);
                if !part.is_whole(judged_by).await {
                    return false;
                }
            }
            true
        }
    }
}

/// Tells of somebody's rights when one of them is lost. It begins to look when it has been there for a moment.
pub struct RightsWatch {
    watching: Arc<Watching>,
    standing: Standing,
    judged: Arc<Judged>,
    began: Instant,
    /// Whether a feed's: what its request was judged by may be as old as an answer may be.
    is_feeds: bool,
    following: Option<Following>,
}

impl fmt::Debug for RightsWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RightsWatch").field("standing", &self.standing).finish_non_exhaustive()
    }
}

type Wait<'w> = Pin<Box<dyn Future<Output = ()> + Send + 'w>>;

/// A database that somebody follows.
struct FollowedDatabase {
    name: Arc<str>,
    known: watch::Receiver<Known>,
}

struct Following {
    accounts: watch::Receiver<u64>,
    /// Of a user of one database: that they have changed.
    user: Option<watch::Receiver<u64>>,
    /// What that number was when they were looked at last.
    user_known_at: Option<u64>,
    /// When the session ends that they brought, in milliseconds of Unix time, as far as is known.
    session_ends_at_ms: Option<u64>,
    /// Each in a database, or in the server, with what they were there.
    rights: Vec<(Option<FollowedDatabase>, Needs, (Access, bool))>,
    /// Nothing has changed since it was judged.
    is_judged: bool,
}

impl RightsWatch {
    pub(crate) fn new(watching: Arc<Watching>, standing: Standing, judged: Arc<Judged>) -> RightsWatch {
        let began = watching.clock().now();
        RightsWatch { watching, standing, judged, began, is_feeds: false, following: None }
    }

    /// Of a feed, which goes on for long: it is judged from its beginning on.
    pub(crate) fn at_once(self) -> RightsWatch {
        RightsWatch { is_feeds: true, ..self }
    }

    /// Resolves once all that rights rest on was known less than a second ago: mostly at once. What goes on for long gives nothing before, be
    /// it that the storage does not say what it is like now. Who follows nothing yet was judged not long ago.
    pub(crate) fn confirmed(&self) -> impl Future<Output = ()> + Send + use<> {
        let watching = (!self.is_confirmed()).then(|| Arc::clone(&self.watching));
        let is_user = self.is_user();
        async move {
            let Some(watching) = watching else { return };
            let (mut accounts, mut users) = (watching.accounts.confirmed(), watching.users.confirmed());
            while !watching.is_confirmed(is_user) {
                let is_over = tokio::select! {
                    changed = accounts.changed() => changed.is_err(),
                    changed = users.changed() => changed.is_err(),
                };
                if is_over {
                    std::future::pending::<()>().await;
                }
            }
        }
    }

    fn is_user(&self) -> bool {
        matches!(self.standing.rests_on(), RestsOn::Principal { .. })
    }

    /// Whether it is so.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.following.is_none() || self.watching.is_confirmed(self.is_user())
    }

    /// What tells whether they still see what they were shown, of databases of which they see a part; `None`: there are none.
    pub fn parts(&self) -> Option<PartsWatch> {
        let parts = self.judged.parts();
        let since = parts.iter().map(|part| part.since).min()?;
        Some(PartsWatch { parts, since })
    }

    /// Resolves within a second of the loss of a right that was there when this began to look, and says what a request would
    /// be refused with. It may be dropped and called again at any time.
    #[boxed]
    pub async fn lost(&mut self) -> Refused {
        if self.watching.accounts.is_fixed(&self.standing) {
            return std::future::pending().await;
        }
        if self.following.is_none() && !self.is_feeds {
            self.watching.clock().sleep_until(self.began + YOUNG).await;
        }
        let following =
            self.following.get_or_insert_with(|| Following::new(&self.watching, &self.standing, &self.judged));
        loop {
            if following.is_judged {
                following.changed(self.watching.clock(), &self.standing).await;
                // Until it is judged, whoever drops this now loses no change.
                following.is_judged = false;
            }
            if let Some(refused) = following.judge(&self.watching, &self.standing, self.is_feeds).await {
                return refused;
            }
            following.is_judged = true;
        }
    }
}

/// How long to wait for this second since 1970, or before it is asked for once more.
fn until(clock: &Clock, second: u64) -> Duration {
    Duration::from_secs(second).saturating_sub(clock.unix()).clamp(LEAST_WAIT, TOKEN_LOOK_MAX)
}

impl Following {
    fn new(watching: &Arc<Watching>, standing: &Standing, judged: &Judged) -> Following {
        let follow = |Found { database, needs, access }: Found| {
            let database = database.map(|name| {
                let known = watching.follow(&name);
                FollowedDatabase { name, known }
            });
            (database, needs, access)
        };
        let accounts = watching.accounts.changes();
        let user = match standing.rests_on() {
            RestsOn::Principal { database, name, .. } => Some(watching.users.follow(database, name)),
            _ => None,
        };
        let rights = judged.all().into_iter().map(follow).collect();
        Following { accounts, user, user_known_at: None, session_ends_at_ms: None, rights, is_judged: false }
    }

    /// Waits until something that the rights rest on may have changed. What nobody sends to any more says nothing.
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
        if let RestsOn::Token { ends: Some(ends), .. } = standing.rests_on() {
            waits.push(Box::pin(clock.sleep(until(clock, *ends))));
        }
        if let Some(user) = &mut self.user {
            waits.push(Box::pin(of(user)));
        }
        if let Some(ends_at_ms) = self.session_ends_at_ms {
            waits.push(Box::pin(clock.sleep(until(clock, ends_at_ms.div_ceil(1_000)))));
        }
        // All are asked, so that each wakes this.
        poll_fn(|context| {
            let mut is_ready = false;
            for wait in &mut waits {
                is_ready |= wait.as_mut().poll(context).is_ready();
            }
            if is_ready { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Judges anew; `None`: all is there. What is not known because the storage does not answer is asked for until it does.
    async fn judge(&mut self, watching: &Watching, standing: &Standing, is_feeds: bool) -> Option<Refused> {
        self.accounts.mark_unchanged();
        let clock = watching.clock();
        let is_over = |ends_at_ms: u64| until(clock, ends_at_ms / 1_000) <= LEAST_WAIT;
        if self.session_ends_at_ms.is_some_and(is_over) {
            self.user_known_at = None;
        }
        let principal = loop {
            let found = match standing.rests_on() {
                rests_on @ RestsOn::Principal { .. } => {
                    // Whoever waits for the number has seen it.
                    let said = self.user.as_ref().map(|user| *user.borrow());
                    if said.is_some() && said == self.user_known_at {
                        break standing.principal().clone();
                    }
                    // As of now: nobody hears of what changed before it was followed.
                    let now = watching.accounts.user_now(rests_on, Fresh::Since(clock.now())).await;
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
                // What is for everyone is that without a name, too, and rests on no right.
                Ok(None) if *standing.rests_on() == RestsOn::Nothing && self.rights.is_empty() => return None,
                Ok(None) => return Some(standing.lost()),
                Err(_) => clock.sleep(FAILED_PAUSE).await,
            }
        };
        for (database, needs, (access, was_replicator)) in &mut self.rights {
            let Some(FollowedDatabase { name, known }) = database else {
                if let Err(refused) = needs.in_server(&principal) {
                    return Some(refused);
                }
                continue;
            };
            // Before it is read what is known: that is as of then, or of later.
            let (is_known_now, mut is_looked_at) = (watching.accounts.is_confirmed(), false);
            loop {
                let found = known.borrow_and_update().clone();
                let is_known = matches!(found, Known::Is(_));
                let security = match found {
                    Known::Is(security) => security,
                    Known::Nothing | Known::Gone => match watching.unknown(name, is_feeds).await {
                        Some(security) => security,
                        // What looks at it will say.
                        None => break,
                    },
                };
                // By that of the next database of this name, too: a feed ends by itself with the one that it began with. What is
                // known of it here may be of before.
                let judged = |before| {
                    let before = (before, *was_replicator);
                    needs.in_database_as(before, standing, &principal, name, &security)
                };
                match judged(*access) {
                    Ok(()) => break,
                    Err(refused) if is_looked_at || !is_known => return Some(refused),
                    // Who is less than they were may have been made more since.
                    Err(refused) if is_known_now && judged(Access::Nobody).is_err() => return Some(refused),
                    // A look is late, and what was known when the last one began may be of before the right was given, by
                    // which a request was let in since.
                    Err(_) => match watching.look_now().await {
                        Ok(_) => is_looked_at = true,
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
