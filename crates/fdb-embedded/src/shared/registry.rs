//! The directories that this process has open.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, Weak};

use crate::base::lock::lock;
use crate::shared::owner::Owner;

/// One engine per directory and process. This is the only process-wide state, because a file lock is process-wide: a
/// second LMDB environment on one file in one process would break the lock.
static REGISTRY: Mutex<Option<HashMap<PathBuf, RegistryEntry>>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

enum RegistryEntry {
    /// Another thread is opening or closing it.
    Busy,
    Open(Weak<Owner>),
}

/// Keeps a directory registered until the engine is closed.
pub(crate) struct Registration(PathBuf);

pub(crate) enum DirectoryClaim {
    Open(Arc<Owner>),
    New(Registration),
}

impl Registration {
    /// Returns the owner of a directory's engine, or the right to open it. Waits while another thread opens or closes
    /// it.
    pub(crate) fn of(dir: &Path) -> DirectoryClaim {
        let mut registry = lock(&REGISTRY);
        loop {
            let entries = registry.get_or_insert_default();
            match entries.get(dir) {
                None => {
                    entries.insert(dir.to_owned(), RegistryEntry::Busy);
                    return DirectoryClaim::New(Registration(dir.to_owned()));
                }
                Some(RegistryEntry::Open(owner)) => {
                    if let Some(owner) = owner.upgrade() {
                        return DirectoryClaim::Open(owner);
                    }
                }
                Some(RegistryEntry::Busy) => {}
            }
            registry = CHANGED.wait(registry).unwrap_or_else(|broken| broken.into_inner());
        }
    }
}

/// Publishes the engine of the directory whose [`Registration`] the owner holds.
pub(crate) fn complete(owner: &Arc<Owner>) {
    let mut registry = lock(&REGISTRY);
    registry.get_or_insert_default().insert(owner.core.dir.clone(), RegistryEntry::Open(Arc::downgrade(owner)));
    CHANGED.notify_all();
}

impl Drop for Registration {
    fn drop(&mut self) {
        lock(&REGISTRY).get_or_insert_default().remove(&self.0);
        CHANGED.notify_all();
    }
}
