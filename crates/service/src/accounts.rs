//! Accounts as of less than a second ago.
//!
//! Accounts are read from `_users` and cached by name. The cache is valid while a read of the state of `_users`,
//! begun less than a second ago, found that state unchanged. The first caller that finds the read older reads the
//! state again, for all callers that wait. A task does the same while there are requests or followers, and when a
//! watch on `_users` fires, so that few callers wait. Answers do not depend on watches.
//!
//! That task's read is the only poll of a process. Its read version comes with a number that changes with the stored
//! settings and with databases' records. After a change the process reads what depends on them.

mod confirming;
mod entries;
mod polling;
mod written;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_auth::users::{Account, id_of};
use flatbed_auth::{AuthError, AuthMethod, PasswordHash, Principal};
use flatbed_clock::Clock;
use flatbed_layer::json::{self, Limits};
use flatbed_layer::{
    Changes, ChangesQuery, Error, FollowOutcome, GetOptions, Layer, RecordState, Result, RevId, SettingFence,
    SignInState, SigningSecret, Since, USERS, UsersState,
};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::configuration::{Configuration, Settings};
use crate::looks::{LookPacer, RightsLook, RightsMetrics, confirms};
use crate::principals::Principals;
use crate::sign_in::keys::{KeySnapshot, TokenKeys};
use crate::standing::{RightsBasis, Standing};
pub(crate) use confirming::DatabasesState;
use confirming::{AccountsPoll, WaitingPolls};
use entries::{AccountEntries, AccountEntry};
use polling::PollingTask;

/// The largest age of an answer.
const WITHIN: Duration = Duration::from_millis(950);

/// The interval of polls of `_users` while there are requests or followers, from begin to begin. A feed ends within a
/// second of losing its right: the rest of that second is for the reads that find the loss.
const POLL: Duration = Duration::from_millis(600);

/// The shortest interval of polls under frequent writes of `_users`, since each may wake all followers.
const POLL_LEAST: Duration = Duration::from_millis(250);

/// The time without requests and followers after which polling ends.
const IDLE: Duration = Duration::from_secs(2);

/// The time limit of a read; a longer one counts as a failure of the storage.
const READ_MAX: Duration = Duration::from_secs(4);

/// The time limit for reading further roles of a configured administrator.
const FURTHER_MAX: Duration = Duration::from_secs(2);

/// The most accounts, the most missing names, and the most bytes of each.
const ACCOUNTS_MAX: usize = 20_000;
const MISSING_MAX: usize = 2_000;
const BYTES_MAX: usize = 32 << 20;

/// The most changed rows of `_users` per poll; more of them drop all cached accounts.
const CHANGED_MAX: u64 = 500;

/// The number of locks for reads of documents, and so the most reads in parallel.
const READS_AT_ONCE: usize = 32;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Freshness {
    /// As of less than a second ago.
    Second,
    /// As of this moment or later.
    Since(Instant),
}

/// The cache of accounts, and the poll that keeps it valid.
pub struct Accounts {
    /// For the polling task.
    this: Weak<Accounts>,
    layer: Layer,
    configuration: Configuration,
    /// Increases when an account has changed.
    generation: watch::Sender<u64>,
    /// The state of all records at the last poll.
    records: watch::Sender<Option<RecordState>>,
    /// When the last poll began after which the basis of all followers' rights was known; `None`: there was none.
    confirmed: watch::Sender<Option<Instant>>,
    /// The polls of everything else, and the known state of databases.
    polled: Mutex<WaitingPolls>,
    looks: Arc<RightsMetrics>,
    cache: Mutex<AccountCache>,
    /// Locked by the reader of the state: when a failed read began, and its error.
    confirming: tokio::sync::Mutex<Option<(Instant, Error)>>,
    /// Locked by readers of documents, by the name's hash: one reader per name.
    reading: Vec<tokio::sync::Mutex<()>>,
    hasher: RandomState,
    keys: TokenKeys,
    pub(crate) principals: Principals,
    is_polled: AtomicBool,
}

impl std::fmt::Debug for Accounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accounts").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct AccountCache {
    accounts: AccountEntries,
    /// Missing names, with a bound of their own, since strangers invent them.
    missing: AccountEntries,
    /// The last state, and when its read began: all entries are of this state or a later one.
    state: Option<(Arc<SignInState>, Instant)>,
    /// Increases when entries are removed: a read that began before adds nothing.
    taken_out: u64,
    asked: Instant,
}

#[derive(Debug, Clone)]
pub(crate) struct AccountLookup {
    /// `None`: no user has this name.
    pub account: Option<Account>,
    /// The reason why the user document does not allow a sign-in.
    pub refused: Option<AuthError>,
    /// The winning revision of that document.
    pub rev: Option<RevId>,
    /// The first revision of the account, unless it is a configured administrator.
    pub born: Option<RevId>,
    /// True for a configured administrator.
    pub is_admin: bool,
    /// The stored entry of that administrator.
    pub setting: Option<Arc<SettingFence>>,
}

impl AccountLookup {
    /// The standing of a user who has signed in with this account.
    pub(crate) fn standing(&self, account: &Account, signed_in: AuthMethod) -> Standing {
        Standing::new(account.principal(signed_in), self.basis()).judged_by(self.setting.clone())
    }

    /// Drops the account if its hash takes more iterations than the settings allow. Sessions continue, as in CouchDB.
    pub(crate) fn within_iterations(self, iterations_max: u32) -> AccountLookup {
        match &self.account {
            Some(account) if account.may_sign_in() && account.hash().iterations() > iterations_max => {
                let refused = AuthError::new(
                    flatbed_auth::AuthErrorKind::Forbidden,
                    "Iteration count is too high for this server",
                );
                AccountLookup { account: None, refused: Some(refused), ..self }
            }
            _ => self,
        }
    }

    pub(crate) fn basis(&self) -> RightsBasis {
        match &self.account {
            None => RightsBasis::Nothing,
            Some(account) => {
                let (name, salt) = (account.name().to_owned(), account.salt().to_owned());
                match (self.is_admin, self.rev.clone(), self.born.clone()) {
                    // An account without a known first revision is distinct from those before and after it.
                    (false, Some(rev), born) => {
                        let born = born.unwrap_or_else(|| rev.clone());
                        RightsBasis::Document { name, salt, rev, born }
                    }
                    // Without a revision only an administrator has rights.
                    (_, rev, _) => RightsBasis::Admin { name, salt, rev },
                }
            }
        }
    }
}

impl Accounts {
    pub(crate) fn new(layer: Layer, configuration: Configuration) -> Arc<Accounts> {
        let cache = AccountCache {
            accounts: AccountEntries::new(ACCOUNTS_MAX, BYTES_MAX),
            missing: AccountEntries::new(MISSING_MAX, BYTES_MAX),
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
            polled: Mutex::new(WaitingPolls::new()),
            looks: Arc::default(),
            cache: Mutex::new(cache),
            confirming: tokio::sync::Mutex::default(),
            reading: (0..READS_AT_ONCE).map(|_| tokio::sync::Mutex::default()).collect(),
            hasher: RandomState::new(),
            keys: TokenKeys::new(clock),
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

    fn cache(&self) -> MutexGuard<'_, AccountCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The settings that may change at run time.
    pub fn settings(&self) -> Arc<Settings> {
        self.configuration.now()
    }

    /// True if the server has no administrator by name, so that every client is one.
    pub fn is_open(&self) -> bool {
        self.configuration.now().admins.is_empty()
    }

    /// The standing of every client on a server without administrators.
    pub(crate) fn open(&self) -> Option<Standing> {
        self.configuration.open_to_all().map(Standing::of_open_server)
    }

    /// The standing of every client on a server without administrators, as of less than a second ago. `None`: there
    /// is an administrator.
    #[boxed]
    pub async fn standing_of_everyone(&self) -> Result<Option<Standing>> {
        self.confirm_settings(None).await?;
        Ok(self.open())
    }

    /// Returns the hash of a configured administrator and its stored entry. A broken entry gets a hash that matches
    /// no password. `None`: no administrator has that name.
    fn admin(&self, name: &str) -> Option<(PasswordHash, Option<Arc<SettingFence>>)> {
        if name.is_empty() {
            return None;
        }
        let (hash, setting) = self.configuration.admin(name)?;
        Some((hash.unwrap_or_else(PasswordHash::of_nothing), setting))
    }

    /// Returns the principal as of less than a second ago. `None`: the standing is lost. A changed password ends it;
    /// the end of a session does not.
    #[boxed]
    pub async fn now(&self, standing: &Standing) -> Result<Option<Principal>> {
        Ok(self.current_standing(standing, Freshness::Second).await?.map(|standing| standing.principal().clone()))
    }

    /// As [`Accounts::now`], with the current basis of the rights.
    pub(crate) async fn current_standing(&self, standing: &Standing, fresh: Freshness) -> Result<Option<Standing>> {
        let admin = match standing.basis() {
            RightsBasis::Admin { name, .. } => Some(name.as_str()),
            _ => None,
        };
        match fresh {
            Freshness::Second => self.confirm_settings(admin).await?,
            Freshness::Since(_) => self.configuration.confirm_now(admin).await?,
        }
        let is_so = match standing.basis() {
            RightsBasis::Nothing => !self.configuration.now().auth.wants_names(),
            RightsBasis::Server => true,
            RightsBasis::OpenServer => return Ok(self.open()),
            RightsBasis::Admin { name, salt, .. } | RightsBasis::Document { name, salt, .. } => {
                let found = self.find(name, fresh).await?;
                let is_same = match standing.basis() {
                    // A new account of the same name is another one, even if all else is equal.
                    RightsBasis::Document { born, .. } => !found.is_admin && found.born.as_ref() == Some(born),
                    _ => found.is_admin,
                };
                let account = found
                    .account
                    .as_ref()
                    .filter(|account| is_same && account.salt() == salt && (found.is_admin || account.may_sign_in()));
                return Ok(account.map(|account| found.standing(account, standing.principal().signed_in)));
            }
            RightsBasis::Token { ends, by } => {
                let now_s = self.clock().unix_seconds();
                ends.is_none_or(|ends| now_s < ends) && self.keys().await.has(by)
            }
            RightsBasis::Proxy => standing.is_vouched_for(&self.configuration.now().auth.proxy),
            RightsBasis::Principal { .. } => self.user_now(standing.basis(), fresh).await?.is_some(),
        };
        Ok(is_so.then(|| standing.clone()))
    }

    /// Returns a number that changes when an account has changed: long-lived requests then judge their rights again.
    pub fn changes(&self) -> watch::Receiver<u64> {
        let changes = self.generation.subscribe();
        self.keep_confirmed();
        changes
    }

    /// Returns the state of all records, updated while [`Accounts::changes`] is followed: long-lived requests then
    /// read records again.
    pub(crate) fn records(&self) -> watch::Receiver<Option<RecordState>> {
        self.records.subscribe()
    }

    /// When the basis of all followers' rights was last known.
    pub(crate) fn confirmed(&self) -> watch::Receiver<Option<Instant>> {
        self.confirmed.subscribe()
    }

    /// Returns whether that confirms rows: see [`confirms`].
    pub(crate) fn is_confirmed(&self, read_at: Option<Instant>) -> bool {
        confirms(self.clock(), *self.confirmed.borrow(), read_at)
    }

    /// The metrics of looks at the rights of feeds.
    pub(crate) fn looks(&self) -> &Arc<RightsMetrics> {
        &self.looks
    }

    /// Records how current followed databases are, after the followers of changed ones were woken.
    pub(crate) fn note_databases(&self, databases: DatabasesState) {
        self.note_confirmed(|polls| polls.databases(databases));
    }

    fn note_confirmed(&self, note: impl FnOnce(&mut WaitingPolls)) {
        let mut polls = self.polled.lock().unwrap_or_else(PoisonError::into_inner);
        note(&mut polls);
        if let Some(began) = polls.confirmed() {
            self.confirmed.send_replace(Some(began));
        }
    }

    /// True if a standing cannot be lost while this process runs: that of the server itself, or of an administrator
    /// from the start-up configuration.
    pub(crate) fn is_fixed(&self, standing: &Standing) -> bool {
        match standing.basis() {
            RightsBasis::Server => true,
            RightsBasis::Admin { name, .. } => self.configuration.is_fixed_admin(name),
            _ => false,
        }
    }

    /// Returns the keys of tokens. A change makes holders of tokens judge their rights again.
    pub(crate) async fn keys(&self) -> Arc<KeySnapshot> {
        let (keys, is_changed) = self.keys.now(&self.configuration.now()).await;
        if is_changed {
            self.note_change();
        }
        keys
    }

    pub(crate) fn note_change(&self) {
        self.generation.send_modify(|generation| *generation = generation.wrapping_add(1));
    }

    pub(crate) fn cached_count(&self) -> usize {
        let cache = self.cache();
        cache.accounts.len() + cache.missing.len()
    }

    /// Confirms that the settings are as of less than a second ago: see [`Configuration::confirm_for`].
    pub(crate) async fn confirm_settings(&self, admin: Option<&str>) -> Result<()> {
        self.configuration.confirm_for(admin).await
    }

    /// Looks an account up, by settings that the caller has confirmed.
    pub(crate) async fn find(&self, name: &str, fresh: Freshness) -> Result<AccountLookup> {
        let Some((hash, setting)) = self.admin(name) else {
            let entry = self.entry(name, fresh).await?;
            let (account, refused) = match &entry.account {
                Ok(account) => (account.clone(), None),
                Err(refused) => (None, Some(refused.clone())),
            };
            let (rev, born) = (entry.rev.clone(), entry.born.clone());
            return Ok(AccountLookup { account, refused, rev, born, is_admin: false, setting: None });
        };
        // An administrator must be able to sign in while the storage fails, without further roles.
        let entry = self.clock().timeout(FURTHER_MAX, self.entry(name, fresh)).await;
        let entry = entry.ok().and_then(Result::ok);
        let document = entry.as_ref().and_then(|entry| entry.account.as_ref().ok()?.as_ref());
        let account = Some(Account::of_admin(name, hash, document));
        let rev = entry.and_then(|entry| entry.rev.clone());
        Ok(AccountLookup { account, refused: None, rev, born: None, is_admin: true, setting })
    }

    pub(crate) async fn secrets(&self, fresh: Freshness) -> Result<Vec<SigningSecret>> {
        if let Some(state) = self.state(fresh) {
            return Ok(state.secrets.clone());
        }
        self.confirm(fresh).await?;
        // A state that was just confirmed is fresh enough, regardless of the time spent waiting.
        Ok(self.cache().state.as_ref().map(|(state, _)| state.secrets.clone()).unwrap_or_default())
    }

    fn state(&self, fresh: Freshness) -> Option<Arc<SignInState>> {
        let cache = self.cache();
        let (state, began) = cache.state.as_ref()?;
        self.is_fresh(*began, fresh).then(|| Arc::clone(state))
    }

    async fn entry(&self, name: &str, fresh: Freshness) -> Result<Arc<AccountEntry>> {
        if let Some(entry) = self.cached_entry(name, fresh) {
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
        // Another task may have read it meanwhile.
        if let Some(entry) = self.cached_entry(name, fresh) {
            return Ok(entry);
        }
        let before = self.cache().taken_out;
        let entry = Arc::new(self.read_entry(name).await?);
        let mut cache = self.cache();
        if cache.taken_out == before {
            let entries = if entry.rev.is_some() { &mut cache.accounts } else { &mut cache.missing };
            entries.insert(name, Arc::clone(&entry));
        }
        Ok(entry)
    }

    fn cached_entry(&self, name: &str, fresh: Freshness) -> Option<Arc<AccountEntry>> {
        let mut cache = self.cache();
        cache.asked = self.clock().now();
        let (_, began) = cache.state.as_ref()?;
        if self.is_fresh(*began, fresh) { cache.get(name) } else { None }
    }

    async fn read_entry(&self, name: &str) -> Result<AccountEntry> {
        let options = GetOptions { conflicts: true, born: true, ..GetOptions::default() };
        let id = id_of(name);
        let users = self.layer.reader(USERS);
        let found = with_time_limit(self.clock(), READ_MAX, users.get(&id, &options)).await;
        let document = match found {
            Ok(document) => document,
            // `_users` is missing, or the name is no valid document id.
            Err(Error::DatabaseNotFound | Error::Refused(_)) => return Ok(AccountEntry::nobody()),
            Err(error) => return Err(error),
        };
        let text = [b"{".as_slice(), &document.body, b"}"].concat();
        let has_conflicts = document.conflicts.is_some_and(|conflicts| !conflicts.is_empty());
        let account = match json::parse(&text, &Limits::default()) {
            Ok(body) => Account::of_document(name, &body, has_conflicts).map(Some),
            Err(_) => Ok(None),
        };
        Ok(AccountEntry { account, rev: Some(document.rev), born: document.born })
    }

    /// Reads the state if it is not fresh, once for all callers that wait.
    async fn confirm(&self, fresh: Freshness) -> Result<()> {
        let came = self.clock().now();
        let mut failed = self.confirming.lock().await;
        if self.state(fresh).is_some() {
            return Ok(());
        }
        // Callers from before a failed read began take its error, so that they do not time out one after the other.
        if let Some((began, error)) = &*failed
            && came <= *began
        {
            return Err(error.clone());
        }
        let began = self.clock().now();
        let confirmed = with_time_limit(self.clock(), READ_MAX, self.poll_users(began)).await;
        *failed = confirmed.as_ref().err().map(|error| (began, error.clone()));
        confirmed
    }

    async fn poll_users(&self, began: Instant) -> Result<()> {
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
            Some(before) => self.changed_names(before.users, state.users).await?,
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

    /// Returns the names whose documents have changed between two states; `None`: any of them may have.
    async fn changed_names(&self, before: Option<UsersState>, now: Option<UsersState>) -> Result<Option<Vec<String>>> {
        let (Some(before), Some(now)) = (before, now) else {
            return Ok((before == now).then(Vec::new));
        };
        // A restore reverts documents without a change.
        let of = |state: &UsersState| (state.update_seq.incarnation(), state.update_seq.epoch(), state.purges);
        let is_same = of(&before) == of(&now);
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
                // A page without a row and without an end proves nothing.
                (false, false) if page.rows.is_empty() => return Ok(None),
                (false, false) => {}
            }
        }
    }

    fn keep_confirmed(&self) {
        if self.is_polled.swap(true, Ordering::SeqCst) {
            return;
        }
        let (weak, clock) = (Weak::clone(&self.this), self.clock().clone());
        tokio::spawn(async move {
            let mut polling = PollingTask(Weak::clone(&weak));
            let (mut users, mut pacer) = (None, LookPacer::new(&clock));
            loop {
                let Some(accounts) = weak.upgrade() else { return };
                if accounts.is_idle() && !polling.goes_on(&accounts) {
                    return;
                }
                let began = clock.now();
                let mut next = began + POLL - POLL_LEAST;
                match accounts.poll_all().await {
                    Ok(()) => pacer.succeeded(&accounts.looks, RightsLook::Accounts, began),
                    Err(error) => {
                        tracing::debug!(%error, "polling accounts failed");
                        next = next.max(pacer.failed(&accounts.looks, RightsLook::Accounts));
                    }
                }
                accounts.keys().await;
                let query = ChangesQuery { since: Since::Now, ..ChangesQuery::default() };
                // A missing database has no changes feed.
                match accounts.has_users() {
                    true if users.is_none() => users = Some(accounts.layer.reader(USERS).changes(query)),
                    true => {}
                    false => users = None,
                }
                drop(accounts);
                tokio::select! {
                    () = clock.sleep_until(next) => {}
                    goes_on = wait_for_write(&clock, users.as_mut()) => {
                        if !goes_on {
                            return;
                        }
                    }
                }
                clock.sleep(POLL_LEAST).await;
            }
        });
    }

    /// Polls everything that answers depend on.
    async fn poll_all(&self) -> Result<()> {
        let began = self.clock().now();
        self.confirm(Freshness::Since(began)).await?;
        let Some(records) = self.records.borrow().clone() else { return Ok(()) };
        self.configuration.confirm_at(&records).await?;
        self.note_confirmed(|polls| polls.poll(AccountsPoll { began, records }));
        Ok(())
    }

    fn has_users(&self) -> bool {
        self.cache().state.as_ref().is_some_and(|(state, _)| state.users.is_some())
    }

    /// Blocks polls until this is dropped.
    #[cfg(test)]
    pub(crate) async fn stop_polling(&self) -> tokio::sync::MutexGuard<'_, Option<(Instant, Error)>> {
        self.confirming.lock().await
    }

    fn is_fresh(&self, began: Instant, fresh: Freshness) -> bool {
        match fresh {
            Freshness::Second => self.clock().since(began) < WITHIN,
            Freshness::Since(since) => began >= since,
        }
    }

    /// The layer's clock.
    pub fn clock(&self) -> &Clock {
        self.layer.clock()
    }

    fn is_idle(&self) -> bool {
        self.generation.receiver_count() == 0 && self.clock().since(self.cache().asked) > IDLE
    }
}

impl AccountCache {
    fn get(&self, name: &str) -> Option<Arc<AccountEntry>> {
        self.accounts.get(name).or_else(|| self.missing.get(name)).cloned()
    }
}

/// Waits for a write. Returns false if the server stops.
async fn wait_for_write(clock: &Clock, changes: Option<&mut Changes>) -> bool {
    let Some(changes) = changes else { return std::future::pending().await };
    loop {
        match changes.follow().await {
            FollowOutcome::Rows(_) => return true,
            FollowOutcome::Shutdown => return false,
            FollowOutcome::ReadOn => match changes.next_page().await {
                Ok(page) if page.rows.is_empty() => {}
                Ok(_) => return true,
                // Without the database or the storage only the interval applies.
                Err(_) => std::future::pending().await,
            },
        }
        clock.sleep(POLL_LEAST).await;
    }
}

/// Limits the time of a read of the storage.
async fn with_time_limit<T>(clock: &Clock, most: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    clock.timeout(most, work).await.unwrap_or_else(|_| Err(Error::timed_out()))
}

#[cfg(test)]
pub(crate) mod tests;
