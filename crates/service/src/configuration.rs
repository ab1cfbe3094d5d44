//! Settings that may change while a server runs, as one immutable snapshot that is replaced.
//!
//! Each value has a name of CouchDB's `_config`, a section and a key, and comes from where it is most binding: the command
//! line, the environment, the configuration file, what is [stored](Source::Stored) for all processes, or the default. Whoever
//! wants a setting asks [`Configuration::now`] for the snapshot whenever it matters, and keeps none; whoever must act when
//! one changes waits for [`Configuration::changes`].

mod keys;
mod peers;
mod settings;
mod values;

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

pub use keys::SettingError;
pub use peers::Peers;
pub use settings::{AuthSettings, CorsSettings, JwtSettings, LimitSettings, LogSettings, ProxySettings, Settings};
pub use values::{Source, Value, Values};

/// The settings of a server as they are now. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Configuration {
    now: Arc<watch::Sender<Arc<Settings>>>,
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
        Configuration { now: Arc::new(watch::Sender::new(Arc::new(Settings::of(values)))) }
    }

    /// The settings as they are known now. A snapshot: whoever holds it does not see later changes.
    pub fn now(&self) -> Arc<Settings> {
        self.now.borrow().clone()
    }

    /// Wakes whoever must act when the settings change. Its value is what [`Configuration::now`] gives.
    pub fn changes(&self) -> watch::Receiver<Arc<Settings>> {
        self.now.subscribe()
    }
}
