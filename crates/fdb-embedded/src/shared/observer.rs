//! An observer of the keys that transactions read and write, for tests.

use std::fmt;
use std::sync::Arc;

/// An access to keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyAccess<'a> {
    /// A transaction reads a key's value.
    Read(&'a [u8]),
    /// A transaction reads a page of a range, or resolves a selector: the keys of its begin and its end.
    ReadRange(&'a [u8], &'a [u8]),
    /// A commit sets or clears a key, or changes it by an atomic operation. A versionstamp is in its place.
    Write(&'a [u8]),
    /// A commit clears a range: its begin and its end.
    ClearRange(&'a [u8], &'a [u8]),
}

/// The function that tells the caller of a transaction's read or commit, on the caller's thread.
type Caller = dyn Fn() -> u64 + Send + Sync;

/// The function that sees an access of a caller.
type Observe = dyn Fn(u64, KeyAccess<'_>) + Send + Sync;

/// Functions that see each access. They must return soon. Reads are seen before their result, on the reader's thread;
/// writes when their commit is applied, on the committer's.
#[derive(Clone)]
pub struct KeyObserver {
    caller: Arc<Caller>,
    observe: Arc<Observe>,
}

impl KeyObserver {
    /// Creates an observer. `caller` is called on the thread that reads or commits, and its result is given to
    /// `observe`.
    pub fn new(
        caller: impl Fn() -> u64 + Send + Sync + 'static,
        observe: impl Fn(u64, KeyAccess<'_>) + Send + Sync + 'static,
    ) -> KeyObserver {
        KeyObserver { caller: Arc::new(caller), observe: Arc::new(observe) }
    }

    pub(crate) fn caller(&self) -> u64 {
        (self.caller)()
    }

    pub(crate) fn observe(&self, caller: u64, access: KeyAccess<'_>) {
        (self.observe)(caller, access);
    }
}

impl fmt::Debug for KeyObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyObserver")
    }
}
