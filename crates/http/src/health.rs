//! Whether the storage takes writes, told from outside.

use std::sync::{Arc, OnceLock};

/// Where the program that runs a [`Server`](crate::Server) says that its storage has failed for good: `GET /_up` and
/// `/metrics` tell it. Clones share it.
///
/// Nobody needs to say anything: a storage that does not answer at all is noticed by `GET /_up` itself.
#[derive(Debug, Clone, Default)]
pub struct StorageHealth(Arc<OnceLock<String>>);

impl StorageHealth {
    /// The storage takes no more writes before the program is started again; `reason` is for its operator. The first
    /// reason stays.
    pub fn fail(&self, reason: impl Into<String>) {
        // Whoever comes second has nothing to add.
        let _ = self.0.set(reason.into());
    }

    /// Why the storage has failed, if it has.
    pub fn failure(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}
