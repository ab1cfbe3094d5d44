//! Who has an account, as of less than a second ago.
//!
//! Accounts are read from `_users` and kept by name. What is kept counts as long as one read, begun less than a second ago,
//! has found `_users` in the state that it was read in: the first who finds that longer ago reads that state in line, for
//! all who wait. A task does the same every now and then while somebody asks or follows, and when a watch on `_users`
//! fires, so that hardly anybody waits. An answer does not rest on watches.
//!
//! What that task reads is the one look of a process at all that answers rest on: with its read version comes a number that
//! moves with every change of the stored settings and of databases' records. Where it has moved, what rests on it is read anew.

mod entries;
mod polling;
mod written;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_auth::users::{Account, id_of};
use flatbed_auth::{PasswordHash, Principal, Refused, SignedIn};
use flatbed_clock::Clock;
use flatbed_layer::json::{self, Limits};
use flatbed_layer::{
    Changes, ChangesQuery, Error, Followed, GetOptions, Layer, RecordState, Result, RevId, SettingFence, SignInState,
    SigningSecret, Since, USERS, UsersState,
};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::configuration::Configuration;
use crate::principals::Principals;
use crate::sign_in::keys::{Keys, KeysNow};
use crate::standing::{RestsOn, Standing};
use entries::{Entries, Entry};
use polling::Polling;

/// How old an answer may be.
const WITHIN: Duration = Duration::from_millis(950);

/// How often the state of `_users` is read while somebody asks or follows, from one beginning to the next. Feeds end within a
/// second of losing their right: what is left of it is for the reads that find it lost.
const POLL: Duration = Duration::from_millis(600);

/// A feed gives nothing while it was longer ago that its reader's rights were known to be there.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(1);

/// The least time between two such reads, however often `_users` is written: each may wake all who follow.
const POLL_LEAST: Duration = Duration::from_millis(250);

/// Nobody asked for so long and nobody follows: it is not read any more.
const IDLE: Duration = Duration::from_secs(2);

/// A read that takes longer is given up: it is an error of the storage.
const READ_MAX: Duration = Duration::from_secs(4);

/// The same of what an administrator of the configuration has besides.
const FURTHER_MAX: Duration = Duration::from_secs(2);

/// Accounts, names without one, and bytes of each of both.
const ACCOUNTS_MAX: usize = 20_000;
const MISSING_MAX: usize = 2_000;
const BYTES_MAX: usize = 32 << 20;

/// Rows of `_users` since it was looked at last; where there are more, all accounts are read anew.
const CHANGED_MAX: u64 = 500;

/// Documents that are read at once.
const READS_AT_ONCE: usize = 32;

/// Up to when followed databases are as they are known.
#[derive(Debug, Clone)]
pub(crate) enum Databases {
    /// None is followed.
    Unfollowed,
    /// They have not been looked at yet.
    Unknown,
    /// As of this state of all records.
    AsOf(RecordState),
}

/// The last look at all else.
#[derive(Debug)]
struct LookedAt {
    began: Instant,
    records: RecordState,
}

/// How fresh an answer must be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fresh {
    /// As of less than a second ago.
    Second,
    /// As of this moment, or of a later one.
    Since(Instant),
}

/// Who has an account.
pub struct Accounts {
    /// For what keeps them confirmed.
    this: Weak<Accounts>,
    layer: Layer,
    configuration: Configuration,
    /// Moves whenever an account was found changed.
    generation: watch::Sender<u64>,
    /// The state of all records that was found last.
    records: watch::Sender<Option<RecordState>>,
    /// When the last look began after which all that followers' rights rest on was known; `None`: there was none.
    confirmed: watch::Sender<Option<Instant>>,
    /// What of it is known: all else, and databases.
    looked: Mutex<(Option<LookedAt>, Databases)>,
    cache: Mutex<Cache>,
    /// Held by the one that reads the state: when one that failed began, and what it failed with.
    confirming: tokio::sync::Mutex<Option<(Instant, Error)>>,
    /// Held by those who read documents, by the names' hashes: one of a name at once.
    reading: Vec<tokio::sync::Mutex<()>>,
    hasher: RandomState,
    keys: Keys,
    /// Users of databases.
    pub(crate) principals: Principals,
    is_polled: AtomicBool,
}

impl std::fmt::Debug for Accounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accounts").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Cache {
    accounts: Entries,
    /// Names without one: in their own room, since strangers make them up.
    missing: Entries,
    /// What was found last, and when that read began: all entries are of this state, or of a later one.
    state: Option<(Arc<SignInState>, Instant)>,
    /// Moves whenever entries are taken out: who began to read before that puts nothing in.
    taken_out: u64,
    asked: Instant,
}

/// An account with what it rests on.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// What is signed in with; `None`: nobody is called so.
    pub account: Option<Account>,
    /// Why the user document of that name signs nobody in.
    pub refused: Option<Refused>,
    /// The winner of that document.
    pub rev: Option<RevId>,
    /// Where its account began, of who is no administrator of the configuration.
    pub born: Option<RevId>,
    /// Whether it is an administrator of the configuration.
    pub is_admin: bool,
    /// What is stored of that.
    pub setting: Option<Arc<SettingFence>>,
}

impl Found {
    /// Somebody who has signed in with this account, the one that was found.
    pub(crate) fn standing(&self, account: &Account, signed_in: SignedIn) -> Standing {
        Standing::new(account.principal(signed_in), self.rests_on()).judged_by(self.setting.clone())
    }

    /// The same for who signs in with a password: with a hash that takes more iterations than the settings let it, nobody does.
    /// Sessions go on, as in CouchDB.
    pub(crate) fn within(self, iterations_max: u32) -> Found {
        match &self.account {
            Some(account) if account.may_sign_in() && account.hash().iterations() > iterations_max => {
                let refused =
                    Refused::new(flatbed_auth::Kind::Forbidden, "Iteration count is too high for this server");
                Found { account: None, refused: Some(refused), ..self }
            }
            _ => self,
        }
    }

    /// What rights of this account rest on.
    pub(crate) fn rests_on(&self) -> RestsOn {
        match &self.account {
            None => RestsOn::Nothing,
            Some(account) => {
                let (name, salt) = (account.name().to_owned(), account.salt().to_owned());
                match (self.is_admin, self.rev.clone(), self.born.clone()) {
                    // Where it is not known where it began, it is an account of its own, nobody's before or after.
                    (false, Some(rev), born) => {
                        let born = born.unwrap_or_else(|| rev.clone());
                        RestsOn::Document { name, salt, rev, born }
                    }
                    // Of who is no administrator it holds for nobody.
                    (_, rev, _) => RestsOn::Admin { name, salt, rev },
                }
            }
        }
    }
}

impl Accounts {
    pub(crate) fn new(layer: Layer, configuration: Configuration) -> Arc<Accounts> {
        let cache = Cache {
            accounts: Entries::new(ACCOUNTS_MAX, BYTES_MAX),
            missing: Entries::new(MISSING_MAX, BYTES_MAX),
            state: None,
            taken_out: 0,
            asked: layer.clock().now(),
        };
        let settings = configuration.clone();
        let (principals, clock) = (Principals::new(layer.clone()), &layer.clock().clone());
        let accounts = Arc::new_cyclic(|this| Accounts {
            this: Weak::clone(this),
            layer,
            configuration,
            generation: watch::Sender::new(0),
            records: watch::Sender::new(None),
            confirmed: watch::Sender::new(None),
            looked: Mutex::new((None, Databases::Unfollowed)),
            cache: Mutex::new(cache),
            confirming: tokio::sync::Mutex::default(),
            reading: (0..READS_AT_ONCE).map(|_| tokio::sync::Mutex::default()).collect(),
            hasher: RandomState::new(),
            keys: Keys::new(clock),
            principals,
            is_polled: AtomicBool::new(false),
        });
        let of_settings = Arc::downgrade(&accounts);
        settings.on_change(move |_| {
            if let Some(accounts) = of_settings.upgrade() {
                accounts.note_change();
            }
        });
        accounts
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether everyone is an administrator: there are none by name.
    pub fn is_open(&self) -> bool {
        self.configuration.now().admins.is_empty()
    }

    /// Everyone, where there is no administrator by name.
    pub(crate) fn open(&self) -> Option<Standing> {
        self.configuration.open_to_all().map(Standing::of_open_server)
    }

    /// Everyone, where there is no administrator by name as of less than a second ago. `None`: there is one.
    ///
    /// # Errors
    /// Those of the storage, which then does not say it.
    #[boxed]
    pub async fn anybody(&self) -> Result<Option<Standing>> {
        self.confirm_settings(None).await?;
        Ok(self.open())
    }

    /// The hash of an administrator of the configuration; one of nothing, where their entry is broken; and what is stored of it. `None`:
    /// there is no administrator of that name.
    fn admin(&self, name: &str) -> Option<(PasswordHash, Option<Arc<SettingFence>>)> {
        if name.is_empty() {
            return None;
        }
        let (hash, setting) = self.configuration.admin(name)?;
        Some((hash.unwrap_or_else(PasswordHash::of_nothing), setting))
    }

    /// Who somebody is, as of less than a second ago. `None`: not any more. A session's own time does not end this, a
    /// changed password does.
    ///
    /// # Errors
    /// Those of the storage, which then does not say it.
    #[boxed]
    pub async fn now(&self, standing: &Standing) -> Result<Option<Principal>> {
        Ok(self.stands(standing, Fresh::Second).await?.map(|standing| standing.principal().clone()))
    }

    /// The same with what their rights rest on then.
    ///
    /// # Errors
    /// As of [`Accounts::now`].
    pub(crate) async fn stands(&self, standing: &Standing, fresh: Fresh) -> Result<Option<Standing>> {
        let admin = match standing.rests_on() {
            RestsOn::Admin { name, .. } => Some(name.as_str()),
            _ => None,
        };
        match fresh {
            Fresh::Second => self.confirm_settings(admin).await?,
            Fresh::Since(_) => self.configuration.confirm_now(admin).await?,
        }
        let is_so = match standing.rests_on() {
            RestsOn::Nothing => !self.configuration.now().auth.wants_names(),
            RestsOn::Server => true,
            RestsOn::OpenServer => return Ok(self.open()),
            RestsOn::Admin { name, salt, .. } | RestsOn::Document { name, salt, .. } => {
                let found = self.find(name, fresh).await?;
                let is_same = match standing.rests_on() {
                    // Of another account that has the name now, whatever else is equal, it does not hold.
                    RestsOn::Document { born, .. } => !found.is_admin && found.born.as_ref() == Some(born),
                    _ => found.is_admin,
                };
                let account = found
                    .account
                    .as_ref()
                    .filter(|account| is_same && account.salt() == salt && (found.is_admin || account.may_sign_in()));
                return Ok(account.map(|account| found.standing(account, standing.principal().signed_in)));
            }
            RestsOn::Token { ends, by } => {
                let now_s = self.clock().unix_seconds();
                ends.is_none_or(|ends| now_s < ends) && self.keys().await.has(by)
            }
            RestsOn::Proxy => standing.is_vouched_for(&self.configuration.now().auth.proxy),
            RestsOn::Principal { .. } => self.user_now(standing.rests_on(), fresh).await?.is_some(),
        };
        Ok(is_so.then(|| standing.clone()))
    }

    /// A number that moves whenever an account was found changed: whoever goes on for long judges anew then.
    pub fn changes(&self) -> watch::Receiver<u64> {
        let changes = self.generation.subscribe();
        self.keep_confirmed();
        changes
    }

    /// The state of all records, as it is found while anybody follows [`Accounts::changes`]: whoever goes on for long looks at
    /// records then.
    pub(crate) fn records(&self) -> watch::Receiver<Option<RecordState>> {
        self.records.subscribe()
    }

    /// When all that followers' rights rest on was known last.
    pub(crate) fn confirmed(&self) -> watch::Receiver<Option<Instant>> {
        self.confirmed.subscribe()
    }

    /// Whether that was less than a second ago.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.confirmed.borrow().is_some_and(|began| self.clock().since(began) < FOLLOWED_WITHIN)
    }

    /// Notes up to when followed databases are known, all who follow one that has changed having been woken.
    pub(crate) fn note_databases(&self, databases: Databases) {
        self.looked().1 = databases;
        self.note_confirmed();
    }

    fn looked(&self) -> MutexGuard<'_, (Option<LookedAt>, Databases)> {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_confirmed(&self) {
        let looked = self.looked();
        let (Some(LookedAt { began, records }), databases) = &*looked else { return };
        let are_known = match databases {
            Databases::Unfollowed => true,
            Databases::Unknown => false,
            Databases::AsOf(state) => state.is_since(records),
        };
        if are_known {
            self.confirmed.send_replace(Some(*began));
        }
    }

    /// Whether a standing cannot be lost while this process runs: that of an administrator whom it was started with.
    pub(crate) fn is_fixed(&self, standing: &Standing) -> bool {
        match standing.rests_on() {
            RestsOn::Server => true,
            RestsOn::Admin { name, .. } => self.configuration.is_fixed_admin(name),
            _ => false,
        }
    }

    /// The keys of tokens. Whoever rests on others judges anew.
    pub(crate) async fn keys(&self) -> Arc<KeysNow> {
        let (keys, is_changed) = self.keys.now(&self.configuration.now()).await;
        if is_changed {
            self.note_change();
        }
        keys
    }

    /// Something that standings rest on has changed.
    pub(crate) fn note_change(&self) {
        self.generation.send_modify(|generation| *generation = generation.wrapping_add(1));
    }

    /// Accounts that are kept, for metrics.
    pub(crate) fn kept(&self) -> usize {
        let cache = self.cache();
        cache.accounts.len() + cache.missing.len()
    }

    /// Sees to it that the settings are those of less than a second ago: see [`Configuration::confirm_for`].
    pub(crate) async fn confirm_settings(&self, admin: Option<&str>) -> Result<()> {
        self.configuration.confirm_for(admin).await
    }

    /// What somebody of this name signs in with, by settings that whoever asks has confirmed.
    pub(crate) async fn find(&self, name: &str, fresh: Fresh) -> Result<Found> {
        let Some((hash, setting)) = self.admin(name) else {
            let entry = self.entry(name, fresh).await?;
            let (account, refused) = match &entry.account {
                Ok(account) => (account.clone(), None),
                Err(refused) => (None, Some(refused.clone())),
            };
            let (rev, born) = (entry.rev.clone(), entry.born.clone());
            return Ok(Found { account, refused, rev, born, is_admin: false, setting: None });
        };
        // An administrator needs no further role to do what is to be done about a storage that does not answer.
        let entry = self.clock().timeout(FURTHER_MAX, self.entry(name, fresh)).await;
        let entry = entry.ok().and_then(Result::ok);
        let document = entry.as_ref().and_then(|entry| entry.account.as_ref().ok()?.as_ref());
        let account = Some(Account::of_admin(name, hash, document));
        let rev = entry.and_then(|entry| entry.rev.clone());
        Ok(Found { account, refused: None, rev, born: None, is_admin: true, setting })
    }

    /// The secrets of sessions, newest first.
    pub(crate) async fn secrets(&self, fresh: Fresh) -> Result<Vec<SigningSecret>> {
        if let Some(state) = self.state(fresh) {
            return Ok(state.secrets.clone());
        }
        self.confirm(fresh).await?;
        // What was confirmed just now is fresh enough, however long this has waited since.
        Ok(self.cache().state.as_ref().map(|(state, _)| state.secrets.clone()).unwrap_or_default())
    }

    /// The state that was found last, if that is fresh.
    fn state(&self, fresh: Fresh) -> Option<Arc<SignInState>> {
        let cache = self.cache();
        let (state, began) = cache.state.as_ref()?;
        self.is_fresh(*began, fresh).then(|| Arc::clone(state))
    }

    /// The entry of a name.
    async fn entry(&self, name: &str, fresh: Fresh) -> Result<Arc<Entry>> {
        if let Some(entry) = self.kept_entry(name, fresh) {
            return Ok(entry);
        }
        self.keep_confirmed();
        if self.state(fresh).is_none() {
            self.confirm(fresh).await?;
        }
        let place = self.hasher.hash_one(name) as usize % READS_AT_ONCE;
        let _turn = match self.reading.get(place) {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        // By somebody else meanwhile.
        if let Some(entry) = self.kept_entry(name, fresh) {
            return Ok(entry);
        }
        let before = self.cache().taken_out;
        let entry = Arc::new(self.read(name).await?);
        let mut cache = self.cache();
        if cache.taken_out == before {
            let entries = if entry.rev.is_some() { &mut cache.accounts } else { &mut cache.missing };
            entries.insert(name, Arc::clone(&entry));
        }
        Ok(entry)
    }

    /// The entry, from memory.
    fn kept_entry(&self, name: &str, fresh: Fresh) -> Option<Arc<Entry>> {
        let mut cache = self.cache();
        cache.asked = self.clock().now();
        let (_, began) = cache.state.as_ref()?;
        if self.is_fresh(*began, fresh) { cache.get(name) } else { None }
    }

    async fn read(&self, name: &str) -> Result<Entry> {
        let options = GetOptions { conflicts: true, born: true, ..GetOptions::default() };
        let id = id_of(name);
        let users = self.layer.reader(USERS);
        let found = within(self.clock(), READ_MAX, users.get(&id, &options)).await;
        let document = match found {
            Ok(document) => document,
            // It is not there, or no document can be called so.
            Err(Error::DatabaseNotFound | Error::Refused(_)) => return Ok(Entry::nobody()),
            Err(error) => return Err(error),
        };
        let text = [b"{".as_slice(), &document.body, b"}"].concat();
        let has_conflicts = document.conflicts.is_some_and(|conflicts| !conflicts.is_empty());
        let account = match json::parse(&text, &Limits::default()) {
            Ok(body) => Account::of_document(name, &body, has_conflicts).map(Some),
            Err(_) => Ok(None),
        };
        Ok(Entry { account, rev: Some(document.rev), born: document.born })
    }

    /// Sees to it that the state is fresh: reads it, one for all who ask.
    async fn confirm(&self, fresh: Fresh) -> Result<()> {
        let came = self.clock().now();
        let mut failed = self.confirming.lock().await;
        if self.state(fresh).is_some() {
            return Ok(());
        }
        // Who came before one began that failed does not try as long once more, one behind the other.
        if let Some((began, error)) = &*failed
            && came <= *began
        {
            return Err(error.clone());
        }
        let began = self.clock().now();
        let confirmed = within(self.clock(), READ_MAX, self.look(began)).await;
        *failed = confirmed.as_ref().err().map(|error| (began, error.clone()));
        confirmed
    }

    async fn look(&self, began: Instant) -> Result<()> {
        let (state, records) = self.layer.sign_in_state().await?;
        self.records.send_if_modified(|known| {
            let is_same = known.as_ref() == Some(&records);
            *known = Some(records);
            !is_same
        });
        let before = self.cache().state.as_ref().map(|(before, _)| Arc::clone(before));
        let changed = match &before {
            Some(before) if **before == state => {
                self.cache().state = Some((Arc::new(state), began));
                return Ok(());
            }
            Some(before) => self.changed(before.users, state.users).await?,
            None => None,
        };
        let mut cache = self.cache();
        cache.taken_out += 1;
        match changed {
            Some(names) => {
                for name in names {
                    cache.accounts.remove(&name);
                    cache.missing.remove(&name);
                }
            }
            None => {
                cache.accounts.clear();
                cache.missing.clear();
            }
        }
        cache.state = Some((Arc::new(state), began));
        drop(cache);
        if before.is_some() {
            self.note_change();
        }
        Ok(())
    }

    /// The names whose documents have changed between two states; `None`: perhaps all.
    async fn changed(&self, before: Option<UsersState>, now: Option<UsersState>) -> Result<Option<Vec<String>>> {
        let (Some(before), Some(now)) = (before, now) else {
            return Ok((before == now).then(Vec::new));
        };
        let is_same = before.update_seq.incarnation() == now.update_seq.incarnation() && before.purges == now.purges;
        if !is_same {
            return Ok(None);
        }
        if before.update_seq == now.update_seq {
            return Ok(Some(Vec::new()));
        }
        let since = Since::after(before.update_seq);
        let query = ChangesQuery { since, limit: Some(CHANGED_MAX + 1), ..ChangesQuery::default() };
        let (mut changes, mut names) = (self.layer.reader(USERS).changes(query), Vec::new());
        loop {
            let page = changes.next_page().await?;
            names.extend(page.rows.iter().filter_map(|row| flatbed_auth::users::name_in(&row.id).map(str::to_owned)));
            match (page.at_end, names.len() as u64 > CHANGED_MAX) {
                (_, true) => return Ok(None),
                (true, false) => return Ok(Some(names)),
                // A page without a row and without an end: nothing is certain.
                (false, false) if page.rows.is_empty() => return Ok(None),
                (false, false) => {}
            }
        }
    }

    /// Has the state read every now and then from here on, as long as somebody asks.
    fn keep_confirmed(&self) {
        if self.is_polled.swap(true, Ordering::SeqCst) {
            return;
        }
        let (weak, clock) = (Weak::clone(&self.this), self.clock().clone());
        tokio::spawn(async move {
            let mut polling = Polling(Weak::clone(&weak));
            let mut users = None;
            loop {
                let Some(accounts) = weak.upgrade() else { return };
                if accounts.is_idle() && !polling.goes_on(&accounts) {
                    return;
                }
                let began = clock.now();
                if let Err(error) = accounts.look_at_all().await {
                    tracing::debug!(%error, "it could not be looked at who has changed");
                }
                accounts.keys().await;
                let query = ChangesQuery { since: Since::Now, ..ChangesQuery::default() };
                // Nothing is asked of a database that is not there.
                match accounts.has_users() {
                    true if users.is_none() => users = Some(accounts.layer.reader(USERS).changes(query)),
                    true => {}
                    false => users = None,
                }
                drop(accounts);
                tokio::select! {
                    () = clock.sleep_until(began + POLL - POLL_LEAST) => {}
                    goes_on = written(&clock, users.as_mut()) => {
                        if !goes_on {
                            return;
                        }
                    }
                }
                clock.sleep(POLL_LEAST).await;
            }
        });
    }

    /// Looks at all that answers rest on.
    async fn look_at_all(&self) -> Result<()> {
        let began = self.clock().now();
        self.confirm(Fresh::Since(began)).await?;
        let Some(records) = self.records.borrow().clone() else { return Ok(()) };
        self.configuration.confirm_at(&records).await?;
        self.looked().0 = Some(LookedAt { began, records });
        self.note_confirmed();
        Ok(())
    }

    /// Whether there was such a database when it was looked.
    fn has_users(&self) -> bool {
        self.cache().state.as_ref().is_some_and(|(state, _)| state.users.is_some())
    }

    /// Nothing is looked at until this is dropped.
    #[cfg(test)]
    pub(crate) async fn stop_looking(&self) -> tokio::sync::MutexGuard<'_, Option<(Instant, Error)>> {
        self.confirming.lock().await
    }

    fn is_fresh(&self, began: Instant, fresh: Fresh) -> bool {
        match fresh {
            Fresh::Second => self.clock().since(began) < WITHIN,
            Fresh::Since(since) => began >= since,
        }
    }

    /// Where the layer takes the time from.
    pub fn clock(&self) -> &Clock {
        self.layer.clock()
    }

    fn is_idle(&self) -> bool {
        self.generation.receiver_count() == 0 && self.clock().since(self.cache().asked) > IDLE
    }
}

impl Cache {
    fn get(&self, name: &str) -> Option<Arc<Entry>> {
        self.accounts.get(name).or_else(|| self.missing.get(name)).cloned()
    }
}

/// Waits until something was written, or the server stops: then not.
async fn written(clock: &Clock, changes: Option<&mut Changes>) -> bool {
    let Some(changes) = changes else { return std::future::pending().await };
    loop {
        match changes.follow().await {
            Followed::Rows(_) => return true,
            Followed::Shutdown => return false,
            Followed::ReadOn => match changes.next_page().await {
                Ok(page) if page.rows.is_empty() => {}
                Ok(_) => return true,
                // There is no such database, or no storage: there still is the poll.
                Err(_) => std::future::pending().await,
            },
        }
        clock.sleep(POLL_LEAST).await;
    }
}

/// What takes longer than so long is an error of the storage's.
async fn within<T>(clock: &Clock, most: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    clock.timeout(most, work).await.unwrap_or_else(|_| Err(Error::timed_out()))
}

#[cfg(test)]
pub(crate) mod tests;
