//! Settings that may change while a server runs, as one immutable snapshot that is replaced.
//!
//! Each value has a name of CouchDB's `_config`, a section and a key, and comes from where it is most binding: the command
//! line, the environment, the configuration file, what is [stored](Source::Stored) for all processes, or the default. Whoever
//! wants a setting asks [`Configuration::now`] for the snapshot whenever it matters, and keeps none; whoever must act when
//! one changes waits for [`Configuration::changes`].

mod keys;
mod settings;
mod stored;
mod values;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_recursion::async_recursion as boxed;
use flatbed_layer::{Layer, Result, StoredSettings};
use tokio::sync::watch;

use stored::Store;

pub use keys::SettingError;
pub use settings::{AuthSettings, CorsSettings, JwtSettings, LimitSettings, LogSettings, ProxySettings, Settings};
pub use stored::{ADMINS, ChangeError, ChangedBy};
pub use values::{Source, Value, Values};

/// The settings of a server as they are now. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Configuration {
    inner: Arc<Inner>,
}

type Listener = Box<dyn Fn(&Settings) + Send + Sync>;

struct Inner {
    now: watch::Sender<Arc<Settings>>,
    /// What this process was started with.
    fixed: Values,
    /// Where others are stored, if anywhere.
    store: Option<Store>,
    listeners: Mutex<Vec<Listener>>,
    /// There was an administrator.
    was_closed: AtomicBool,
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
    /// Settings that are `values`, and for the rest defaults. Values that were not [checked](Values::insert) and do not fit
    /// are logged, and their defaults taken.
    pub fn new(values: Values) -> Configuration {
        Configuration::of(values, None)
    }

    /// The same, with what is stored for all processes, which is followed from now on, as long as the configuration is there.
    /// `is_ignored`: nothing that is stored counts here; it can be changed all the same.
    ///
    /// # Errors
    /// Those of the storage: who does not know what is stored does not know who may do what.
    #[boxed]
    pub async fn open(layer: Layer, values: Values, is_ignored: bool) -> Result<Configuration> {
        let configuration = Configuration::once_with(layer, values, is_ignored).await?;
        tokio::spawn(Configuration::follow(Arc::downgrade(&configuration.inner)));
        Ok(configuration)
    }

    /// The same, not followed: for programs that do one thing.
    ///
    /// # Errors
    /// As there.
    #[boxed]
    pub async fn once(layer: Layer, values: Values) -> Result<Configuration> {
        Configuration::once_with(layer, values, false).await
    }

    async fn once_with(layer: Layer, values: Values, is_ignored: bool) -> Result<Configuration> {
        let configuration = Configuration::of(values, Some(Store::new(layer, is_ignored)));
        configuration.reload().await?;
        Ok(configuration)
    }

    fn of(fixed: Values, store: Option<Store>) -> Configuration {
        let settings = Settings::of(fixed.clone());
        let (was_closed, listeners) = (AtomicBool::new(!settings.admins.is_empty()), Mutex::default());
        let now = watch::Sender::new(Arc::new(settings));
        Configuration { inner: Arc::new(Inner { now, fixed, store, listeners, was_closed }) }
    }

    /// The settings as they are known now. A snapshot: whoever holds it does not see later changes.
    pub fn now(&self) -> Arc<Settings> {
        self.inner.now.borrow().clone()
    }

    /// Wakes whoever must act when the settings change. Its value is what [`Configuration::now`] gives.
    pub fn changes(&self) -> watch::Receiver<Arc<Settings>> {
        self.inner.now.subscribe()
    }

    /// Calls `listener` with the settings, now and whenever they have changed, before a request sees the change. It must not
    /// wait for anything.
    pub fn on_change(&self, listener: impl Fn(&Settings) + Send + Sync + 'static) {
        let mut listeners = self.inner.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listener(&self.now());
        listeners.push(Box::new(listener));
    }
}

impl Inner {
    /// Other stored settings than before. One at a time.
    fn take(&self, stored: &StoredSettings) {
        let mut values = self.fixed.clone();
        for ((section, key), text) in stored {
            values.insert_unchecked(section, key, text, Source::Stored);
        }
        let mut settings = Settings::of(values);
        if settings.admins.is_empty() && self.was_closed.load(Ordering::Relaxed) {
            // Whoever took the last one out did so beside a server that others may reach: it opens when it is started anew.
            settings.admins.insert(String::new(), None);
        }
        self.was_closed.fetch_or(!settings.admins.is_empty(), Ordering::Relaxed);
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        if **self.now.borrow() == settings {
            return;
        }
        listeners.iter().for_each(|listener| listener(&settings));
        self.now.send_replace(Arc::new(settings));
    }
}

#[cfg(test)]
mod tests;
