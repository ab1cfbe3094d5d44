//! Settings that are stored for all processes: reading, following, changing.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_auth::{PasswordHash, SALT_BYTES};
use flatbed_layer::{Actor, Error, Layer, RecordState, Result, SettingFence, SettingsState, StoredSettings};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

use super::keys::{self, SettingError};
use super::values::{Source, Value};
use super::{Configuration, Inner};

/// The pause after a failure of the storage, while following.
const FAILED_PAUSE: Duration = Duration::from_secs(1);

/// The time for which a request waits for current settings, and the shorter time limit of the read that it waits for.
const CONFIRM_MAX: Duration = Duration::from_secs(2);
const READ_MAX: Duration = Duration::from_millis(1_900);

pub(super) const AUDIT: &str = "audit";

/// The section of administrators.
pub const ADMINS: &str = "admins";

pub(super) struct SettingsStore {
    layer: Layer,
    /// True if stored values do not apply in this process.
    pub is_ignored: bool,
    /// The state of the store that this process's settings are of.
    found: RwLock<Option<SettingsState>>,
    /// Locked by the running read: when a failed read began, and its error.
    reading: Mutex<Option<(Instant, Error)>>,
    /// Limits the hashing of administrators' passwords to one at a time.
    hashing: Semaphore,
}

/// The author of a change of a setting.
#[derive(Debug, Clone, Copy)]
pub struct ChangedBy<'a> {
    /// The actor, whose right must still exist at the commit.
    pub actor: &'a Actor,
    /// The author's name; `None` on a server without administrators.
    pub name: Option<&'a str>,
    /// The author's address.
    pub from: Option<IpAddr>,
}

/// The reason why a stored setting is not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The setting does not exist, or the value is invalid.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A value from the start of this process takes precedence.
    #[error("{section}/{key} is set by {}, which beats what is stored: change it there", .source_of_it.words())]
    Fixed {
        /// The section.
        section: String,
        /// The key.
        key: String,
        /// The source of the value.
        source_of_it: Source,
    },
    /// The change would remove the last administrator.
    #[error("this is the last administrator: add another one first")]
    LastAdmin,
    /// This process has no store of settings.
    #[error("settings cannot be changed while this server runs")]
    NotStored,
    /// The storage failed or is full.
    #[error(transparent)]
    Layer(#[from] Error),
}

impl SettingsStore {
    pub(super) fn new(layer: Layer, is_ignored: bool) -> SettingsStore {
        let (found, reading, hashing) = (RwLock::default(), Mutex::default(), Semaphore::new(1));
        SettingsStore { layer, is_ignored, found, reading, hashing }
    }

    /// Waits until no read applies its values, and keeps others from it.
    pub(super) async fn lock_reading(&self) -> impl Sized + '_ {
        self.reading.lock().await
    }

    fn found(&self) -> Option<SettingsState> {
        self.found.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True if the settings are known to be as of less than a second ago.
    fn is_known(&self) -> bool {
        let found = self.found.read().unwrap_or_else(PoisonError::into_inner);
        found.as_ref().is_some_and(|state| self.layer.are_settings_known(state))
    }
}

impl Inner {
    /// Reads the store and applies changes. `_reading` is the lock that keeps an older read from being applied last.
    async fn read_store(&self, store: &SettingsStore, _reading: &mut Option<(Instant, Error)>) -> Result<()> {
        let before = store.found();
        let (state, settings) = store.layer.stored_settings(before.as_ref()).await?;
        if let Some(settings) = settings.filter(|_| !store.is_ignored) {
            self.take(settings);
        }
        *store.found.write().unwrap_or_else(PoisonError::into_inner) = Some(state);
        Ok(())
    }

    /// Reads the store now.
    pub(super) async fn read_now(&self, store: &SettingsStore) -> Result<()> {
        let mut reading = store.reading.lock().await;
        self.read_store(store, &mut reading).await
    }
}

impl Configuration {
    /// Returns when the settings are as of less than a second ago: at once if a transaction of this process has found
    /// so, otherwise after a read of the store, which serves all callers. Precedes each judgement of rights. It takes
    /// at most two seconds.
    #[boxed]
    pub async fn confirm(&self) -> Result<()> {
        match &self.inner.store {
            Some(store) if !store.is_ignored && !store.is_known() => {
                let confirmed = store.layer.clock().timeout(CONFIRM_MAX, Box::pin(self.confirm_in_line(store))).await;
                confirmed.unwrap_or_else(|_| Err(Error::timed_out()))
            }
            _ => Ok(()),
        }
    }

    /// As [`Configuration::confirm`], for rights or credentials that rest only on the administrator `admin`. Values
    /// from the start of this process take precedence, so its administrators are known while the storage fails.
    pub(crate) async fn confirm_for(&self, admin: Option<&str>) -> Result<()> {
        if admin.is_some_and(|name| self.is_fixed_admin(name)) { Ok(()) } else { self.confirm().await }
    }

    /// As [`Configuration::confirm_for`], as of now.
    pub(crate) async fn confirm_now(&self, admin: Option<&str>) -> Result<()> {
        match self.inner.store.as_ref().filter(|store| !store.is_ignored) {
            Some(store) if !admin.is_some_and(|name| self.is_fixed_admin(name)) => {
                let outcome = store.layer.clock().timeout(READ_MAX, self.inner.read_now(store)).await;
                outcome.unwrap_or_else(|_| Err(Error::timed_out()))
            }
            _ => Ok(()),
        }
    }

    /// The state of the settings. Must be read before them, so that they are of this state or a later one. `None`:
    /// stored values do not apply.
    fn state(&self) -> Option<Option<SettingsState>> {
        self.inner.store.as_ref().filter(|store| !store.is_ignored).map(SettingsStore::found)
    }

    /// Returns an administrator's password hash, `None` if the value is invalid, and its stored entry.
    pub(crate) fn admin(&self, name: &str) -> Option<(Option<PasswordHash>, Option<Arc<SettingFence>>)> {
        let (state, settings) = (self.state(), self.now());
        let hash = settings.admins.get(name)?.clone();
        let stored = settings.values().get(ADMINS, name).filter(|value| value.source == Source::Stored);
        let fence = |value: &Value| Arc::new(SettingFence::new(state.flatten(), ADMINS, Some((name, &value.text))));
        Some((hash, stored.map(fence)))
    }

    /// Returns the stored evidence that the server has no administrator, if it has none.
    pub(crate) fn open_to_all(&self) -> Option<Option<Arc<SettingFence>>> {
        let (state, settings) = (self.state(), self.now());
        let is_open = settings.admins.is_empty();
        is_open.then(|| state.map(|state| Arc::new(SettingFence::new(state, ADMINS, None))))
    }

    /// True if the command line, the environment or the file of this process has an administrator of this name.
    pub(crate) fn is_fixed_admin(&self, name: &str) -> bool {
        self.inner.fixed().get(ADMINS, name).is_some()
    }

    async fn confirm_in_line(&self, store: &SettingsStore) -> Result<()> {
        let clock = store.layer.clock();
        let came = clock.now();
        let mut reading = store.reading.lock().await;
        if store.is_known() {
            return Ok(());
        }
        // Callers from before a failed read began take its error, so that they do not time out one after the other.
        if let Some((began, error)) = &*reading
            && came <= *began
        {
            return Err(error.clone());
        }
        let began = clock.now();
        let outcome = clock.timeout(READ_MAX, self.inner.read_store(store, &mut reading)).await;
        let outcome = outcome.unwrap_or_else(|_| Err(Error::timed_out()));
        *reading = outcome.as_ref().err().map(|error| (began, error.clone()));
        outcome
    }

    /// Applies changes on a watch until the configuration is dropped, for a process without requests. Requests and
    /// followers do not rely on it: see [`Configuration::confirm`] and [`Configuration::confirm_at`].
    pub(super) async fn follow(weak: Weak<Inner>) {
        loop {
            let Some(inner) = weak.upgrade() else { return };
            let Some(store) = inner.store.as_ref().filter(|store| !store.is_ignored) else { return };
            let (layer, found) = (store.layer.clone(), store.found());
            drop(inner);
            let changed = match found {
                Some(found) => layer.settings_changed(&found).await,
                None => Ok(true),
            };
            let clock = layer.clock().clone();
            drop(layer);
            let Some(inner) = weak.upgrade() else { return };
            let outcome = match (changed, &inner.store) {
                (Ok(true), Some(store)) => inner.read_now(store).await,
                (Ok(_), _) => return,
                (Err(error), _) => Err(error),
            };
            drop(inner);
            if let Err(error) = outcome {
                tracing::debug!(%error, "stored settings cannot be read");
                clock.sleep(FAILED_PAUSE).await;
            }
        }
    }

    /// Brings the settings to the state of all records that was just found: reads the store if the state has changed.
    pub(crate) async fn confirm_at(&self, records: &RecordState) -> Result<()> {
        match self.inner.store.as_ref().filter(|store| !store.is_ignored) {
            Some(store) if !store.found().is_some_and(|found| found.is_as_of(records)) => {
                let outcome = store.layer.clock().timeout(READ_MAX, self.inner.read_now(store)).await;
                outcome.unwrap_or_else(|_| Err(Error::timed_out()))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether administrators are stored, even if stored values do not apply.
    #[boxed]
    pub async fn has_stored_admins(&self) -> Result<bool> {
        let Some(store) = &self.inner.store else { return Ok(false) };
        let (_, settings) = store.layer.stored_settings(None).await?;
        Ok(settings.is_some_and(|settings| settings.keys().any(|(section, _)| section == ADMINS)))
    }

    /// Reads the store now.
    #[boxed]
    pub async fn reload(&self) -> Result<()> {
        match &self.inner.store {
            Some(store) => self.inner.read_now(store).await,
            None => Ok(()),
        }
    }

    /// Stores a value for all processes. It applies in this process on return, in others within a second. The value
    /// of an administrator is a password, which is stored as its hash, or a hash. Returns the previous value as
    /// administrators see it.
    pub async fn set(
        &self,
        section: &str,
        key: &str,
        text: &str,
        by: ChangedBy<'_>,
    ) -> std::result::Result<String, ChangeError> {
        let (store, section, key) = self.changeable(section, key)?;
        let text = text.trim();
        let text = if section == ADMINS { hashed(store, key, text).await? } else { text.to_owned() };
        keys::check_stored(section, key, &text)?;
        let name = (section.to_owned(), key.to_owned());
        let insert = |settings: &mut StoredSettings| Ok::<_, ChangeError>(settings.insert(name.clone(), text.clone()));
        let old = store.layer.change_settings(by.actor, insert).await??;
        let shown = keys::is_loggable(section, key).then_some(text.as_str());
        tracing::info!(target: AUDIT, section, key, text = shown, by.name, by.from = by.from.map(tracing::field::display), "a setting is stored");
        self.reload().await?;
        self.forget_here(section, key).await;
        Ok(old.map_or_else(
            || keys::default(section, key).unwrap_or_default().to_owned(),
            |old| keys::shown(section, key, &old).to_owned(),
        ))
    }

    /// Removes the value of a setting, both stored and of this process, and returns it as administrators see it.
    ///
    /// # Errors
    /// [`ChangeError`]; [`SettingError::Unknown`] where there is none.
    pub async fn remove(
        &self,
        section: &str,
        key: &str,
        by: ChangedBy<'_>,
    ) -> std::result::Result<String, ChangeError> {
        let (store, section, key) = self.changeable(section, key)?;
        let others = self.inner.fixed().section(ADMINS).next().is_some();
        let name = (section.to_owned(), key.to_owned());
        let remove = |settings: &mut StoredSettings| {
            let old = settings.remove(&name).ok_or(SettingError::Unknown)?;
            if section == ADMINS && !others && !settings.keys().any(|(section, _)| section == ADMINS) {
                return Err(ChangeError::LastAdmin);
            }
            Ok(old)
        };
        let removed = store.layer.change_settings(by.actor, remove).await?;
        let old = match (removed, self.forget_here(section, key).await) {
            (Err(ChangeError::Setting(SettingError::Unknown)), Some(of_process)) => of_process,
            (removed, _) => removed?,
        };
        tracing::info!(target: AUDIT, section, key, by.name, by.from = by.from.map(tracing::field::display), "a stored setting is removed");
        self.reload().await?;
        Ok(keys::shown(section, key, &old).to_owned())
    }

    /// Returns the store and the canonical name of a setting that has no fixed value.
    pub(super) fn changeable<'s>(
        &'s self,
        section: &'s str,
        key: &'s str,
    ) -> std::result::Result<(&'s SettingsStore, &'s str, &'s str), ChangeError> {
        let (section, key) = keys::canonical(section, key);
        let store = self.inner.store.as_ref().ok_or(ChangeError::NotStored)?;
        keys::check_storable(section, key)?;
        match self.inner.fixed().get(section, key) {
            Some(value) => {
                Err(ChangeError::Fixed { section: section.to_owned(), key: key.to_owned(), source_of_it: value.source })
            }
            None => Ok((store, section, key)),
        }
    }
}

/// Returns the stored form of an administrator's password: its hash, or the given hash.
async fn hashed(store: &SettingsStore, name: &str, text: &str) -> std::result::Result<String, ChangeError> {
    keys::check_admin_name(name)?;
    if PasswordHash::parse(text).is_ok() {
        return Ok(text.to_owned());
    }
    // A truncated hash must not become a password.
    if text.is_empty() || text.starts_with("-pbkdf2") || text.starts_with("-hashed-") {
        return Err(SettingError::Wrong("a password, or the whole of a hash").into());
    }
    let mut random = [0; SALT_BYTES];
    getrandom::fill(&mut random).map_err(|_| Error::NoRandomness)?;
    let text = text.to_owned();
    let _turn = store.hashing.acquire().await;
    let hash = tokio::task::spawn_blocking(move || PasswordHash::new(&text, &random).to_string()).await;
    hash.map_err(|error| ChangeError::Layer(Error::of_task(error)))
}
