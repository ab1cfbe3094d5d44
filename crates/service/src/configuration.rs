//! Settings that may change at run time, as an immutable snapshot that is replaced.
//!
//! Each value has a name of CouchDB's `_config`, a section and a key. Its sources, by precedence, are the command
//! line, the environment, the configuration file, the value that a request set [for this process](Source::Process),
//! the value [stored](Source::Stored) for all processes, and the default. Readers ask [`Configuration::now`] for a
//! snapshot when they need a setting, and do not keep it. Code that must act on a change waits for
//! [`Configuration::changes`].
//!
//! A stored setting may have any name, as in CouchDB. [`effect`] says what it does.

mod default_ini;
mod keys;
mod of_process;
mod password_rules;
mod registry;
mod settings;
mod stored;
mod values;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use async_recursion::async_recursion as boxed;
use flatbed_layer::{Layer, Result, STORED_SETTINGS_MAX, StoredSettings};
use tokio::sync::watch;

use stored::SettingsStore;

pub use keys::SettingError;
pub use password_rules::PasswordRules;
pub use registry::{SettingEffect, couchdb_settings, effect, warning};
pub use settings::{
    AuthSettings, CorsSettings, ForwardingSettings, JwtSettings, LimitSettings, LogSettings, PerUserSettings,
    ProxySettings, ReplicationSettings, Settings, UuidAlgorithm, UuidSettings,
};
pub use stored::{ADMINS, ChangeError, ChangedBy};
pub use values::{Source, Value, Values};

/// The current settings of a server. Clones are cheap and share their state.
#[derive(Clone)]
pub struct Configuration {
    inner: Arc<Inner>,
}

/// The largest number of settings that the log names.
const LOGGED_MAX: usize = 2 * STORED_SETTINGS_MAX;

type Listener = Box<dyn Fn(&Settings) + Send + Sync>;

struct Inner {
    now: watch::Sender<Arc<Settings>>,
    /// The values of the command line, the environment and the configuration file.
    fixed: RwLock<Values>,
    /// The stored values that apply, as they were read last.
    stored: Mutex<StoredSettings>,
    /// The values that requests set for this process.
    of_process: Mutex<StoredSettings>,
    /// The stored values, if there is a store.
    store: Option<SettingsStore>,
    listeners: Mutex<Vec<Listener>>,
    /// True once there was an administrator.
    was_closed: AtomicBool,
    /// The stored settings without an effect that the log has named.
    logged: Mutex<BTreeSet<(String, String)>>,
}

impl Default for Configuration {
    fn default() -> Self {
        Configuration::new(Values::default())
    }
}

impl fmt::Debug for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Configuration").finish_non_exhaustive()
    }
}

impl Configuration {
    /// Creates settings from `values` and defaults. An invalid value that was not [checked](Values::insert) is
    /// logged, and its default applies.
    pub fn new(values: Values) -> Configuration {
        Configuration::of(values, None)
    }

    /// As [`Configuration::new`], with the values stored for all processes, followed until the configuration is
    /// dropped. With `is_ignored` stored values do not apply, but can still be changed.
    ///
    /// # Errors
    /// A failure of the storage: without the stored values access cannot be judged.
    #[boxed]
    pub async fn open(layer: Layer, values: Values, is_ignored: bool) -> Result<Configuration> {
        let configuration = Configuration::once_with(layer, values, is_ignored).await?;
        tokio::spawn(Configuration::follow(Arc::downgrade(&configuration.inner)));
        Ok(configuration)
    }

    /// As [`Configuration::open`], without following: for programs that do one thing.
    #[boxed]
    pub async fn once(layer: Layer, values: Values) -> Result<Configuration> {
        Configuration::once_with(layer, values, false).await
    }

    async fn once_with(layer: Layer, values: Values, is_ignored: bool) -> Result<Configuration> {
        let configuration = Configuration::of(values, Some(SettingsStore::new(layer, is_ignored)));
        configuration.reload().await?;
        Ok(configuration)
    }

    fn of(fixed: Values, store: Option<SettingsStore>) -> Configuration {
        let settings = Settings::of(fixed.clone());
        let (fixed, stored) = (RwLock::new(fixed), Mutex::default());
        let (was_closed, listeners) = (AtomicBool::new(!settings.admins.is_empty()), Mutex::default());
        let now = watch::Sender::new(Arc::new(settings));
        let (logged, of_process) = (Mutex::default(), Mutex::default());
        let inner = Inner { now, fixed, stored, of_process, store, listeners, was_closed, logged };
        Configuration { inner: Arc::new(inner) }
    }

    /// Replaces the values from the start of this process, after its configuration file was read again. Always makes
    /// a new snapshot, so that readers of files that settings name, such as JWK sets, read them again.
    pub async fn replace_fixed(&self, values: Values) {
        // No read of the store may apply its values meanwhile.
        let _reading = match &self.inner.store {
            Some(store) => Some(store.lock_reading().await),
            None => None,
        };
        *self.inner.fixed.write().unwrap_or_else(PoisonError::into_inner) = values;
        self.inner.publish(true);
    }

    /// Returns a snapshot of the settings.
    pub fn now(&self) -> Arc<Settings> {
        self.inner.now.borrow().clone()
    }

    /// Returns a receiver that wakes on a change, with the value of [`Configuration::now`].
    pub fn changes(&self) -> watch::Receiver<Arc<Settings>> {
        self.inner.now.subscribe()
    }

    /// Calls `listener` with the settings, now and after each change, before any request sees the change. It must not
    /// block.
    pub fn on_change(&self, listener: impl Fn(&Settings) + Send + Sync + 'static) {
        let mut listeners = self.inner.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listener(&self.now());
        listeners.push(Box::new(listener));
    }
}

impl Inner {
    fn fixed(&self) -> RwLockReadGuard<'_, Values> {
        self.fixed.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies newly stored settings. Callers must not overlap.
    fn take(&self, stored: StoredSettings) {
        *self.stored.lock().unwrap_or_else(PoisonError::into_inner) = stored;
        self.publish(false);
    }

    /// Makes a snapshot of all values. One that equals the current snapshot is dropped unless
    /// `even_if_equal`. Callers must not overlap.
    fn publish(&self, even_if_equal: bool) {
        let mut values = self.fixed().clone();
        for ((section, key), text) in self.stored.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            values.insert_unchecked(section, key, text, Source::Stored);
        }
        for ((section, key), text) in self.of_process.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            values.insert_unchecked(section, key, text, Source::Process);
        }
        let mut settings = Settings::of(values);
        if settings.admins.is_empty() && self.was_closed.load(Ordering::Relaxed) {
            // A server that lost its last administrator may be reachable by others, so it opens only after a restart.
            settings.admins.insert(String::new(), None);
        }
        self.was_closed.fetch_or(!settings.admins.is_empty(), Ordering::Relaxed);
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        if !even_if_equal && **self.now.borrow() == settings {
            return;
        }
        listeners.iter().for_each(|listener| listener(&settings));
        self.log_unused(&settings);
        self.now.send_replace(Arc::new(settings));
    }

    /// Logs the settings without an effect, each once.
    fn log_unused(&self, settings: &Settings) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        for (section, key, _) in settings.unused() {
            let name = (section.to_owned(), key.to_owned());
            if logged.len() < LOGGED_MAX && logged.insert(name) {
                tracing::warn!(section, key, "a stored setting has no effect");
            }
        }
    }
}

#[cfg(test)]
mod tests;
