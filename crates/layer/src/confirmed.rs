//! Up to when it is known that no record of a database has changed.
//!
//! Whoever changes a record changes `\xff/metadataVersion`, and every transaction of the layer reads that with its read
//! version. So each of them says of all databases that were cached under the value that it finds that they are as cached: not
//! only of its own. What rests on a record and is asked for without a transaction, `_security` first of all, is as of the moment
//! before the newest of these read versions was asked for.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use flatbed_clock::Clock;
use tokio::time::Instant;

/// Newer by less than this is not noted: each transaction would write to one place in memory.
const NOTED_EACH_US: u64 = 2_000;

/// A value of `\xff/metadataVersion`, with the newest moment as of which it was found. One for all databases that are cached
/// under it.
#[derive(Debug)]
pub(crate) struct Seen {
    version: Box<[u8]>,
    /// When the read version of the newest transaction that found it was asked for, in microseconds of the process's clock.
    as_of_us: AtomicU64,
}

impl Seen {
    pub(crate) fn version(&self) -> &[u8] {
        &self.version
    }

    /// The same value, of which nothing is known to hold now: this process has just changed what is cached under it.
    pub(crate) fn unconfirmed(&self) -> Arc<Seen> {
        Arc::new(Seen { version: self.version.clone(), as_of_us: AtomicU64::new(0) })
    }

    /// A transaction found it that asked for its read version at that moment, or after it.
    pub(crate) fn confirm(&self, as_of_us: u64) {
        // Read first: all transactions come by here, and most bring next to nothing.
        if as_of_us >= self.as_of_us.load(Ordering::Relaxed).saturating_add(NOTED_EACH_US) {
            self.as_of_us.fetch_max(as_of_us, Ordering::Relaxed);
        }
    }

    /// Whether it held at a moment less than so long ago.
    pub(crate) fn is_confirmed(&self, now_us: u64, within: Duration) -> bool {
        let within = u64::try_from(within.as_micros()).unwrap_or(u64::MAX);
        now_us.saturating_sub(self.as_of_us.load(Ordering::Relaxed)) < within
    }
}

/// The state of all records of databases and of the stored settings: the same one as long as none has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordState(Box<[u8]>);

impl RecordState {
    /// What a transaction found at `\xff/metadataVersion`.
    pub(crate) fn of(version: Option<&[u8]>) -> RecordState {
        RecordState(version.unwrap_or_default().into())
    }

    pub(crate) fn version(&self) -> &[u8] {
        &self.0
    }

    /// Whether it is this one, or a later one.
    pub fn is_since(&self, other: &RecordState) -> bool {
        self.0 >= other.0
    }
}

/// A state of the stored settings, as they were found. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SettingsState {
    pub(crate) seen: Arc<Seen>,
    pub(crate) state: Arc<[u8]>,
}

impl SettingsState {
    /// Whether the settings were these as of that state of all records: each change of them makes another one.
    pub fn is_as_of(&self, records: &RecordState) -> bool {
        self.seen.version() == records.version()
    }
}

/// The newest value that this process has seen, and its clock.
#[derive(Debug)]
pub(crate) struct Confirmed {
    began: Instant,
    newest: Mutex<Arc<Seen>>,
    /// Held by the one that confirms in line: what its failure was, and when it began.
    pub in_line: tokio::sync::Mutex<Option<(u64, crate::error::Error)>>,
}

impl Confirmed {
    /// Nothing was seen yet.
    pub(crate) fn new(clock: &Clock) -> Confirmed {
        let nothing = Seen { version: Box::default(), as_of_us: AtomicU64::new(0) };
        // An hour before the beginning, so that what was never confirmed is not as of a moment ago.
        let now = clock.now();
        let began = now.checked_sub(Duration::from_secs(3600)).unwrap_or(now);
        Confirmed { began, newest: Mutex::new(Arc::new(nothing)), in_line: tokio::sync::Mutex::default() }
    }

    /// A moment on the process's clock, in microseconds.
    pub(crate) fn us(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.began).as_micros()).unwrap_or(u64::MAX)
    }

    /// The newest value that was seen.
    pub(crate) fn newest(&self) -> Arc<Seen> {
        Arc::clone(&self.newest.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A value that a transaction found, which asked for its read version at that moment. All that is cached under one value
    /// shares what this gives.
    pub(crate) fn see(&self, version: &[u8], as_of_us: u64) -> Arc<Seen> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if newest.version() == version {
            newest.confirm(as_of_us);
            return Arc::clone(&newest);
        }
        let seen = Arc::new(Seen { version: version.into(), as_of_us: AtomicU64::new(as_of_us) });
        if *version > *newest.version {
            *newest = Arc::clone(&seen);
        }
        seen
    }
}

/// For what a database is closed to its users: its administrators go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Closed {
    /// Until its sync function has come to all documents.
    pub is_resyncing: bool,
    /// Until an administrator brings it back.
    pub is_offline: bool,
}

impl Closed {
    const RESYNCING: u32 = 1;
    const OFFLINE: u32 = 2;

    /// As a record has it.
    pub(crate) fn of(stored: u32) -> Closed {
        let is_resyncing = stored & Closed::RESYNCING != 0;
        // For whatever a later program closes it, it is closed.
        Closed { is_resyncing, is_offline: stored & !Closed::RESYNCING != 0 }
    }

    /// As it stands in a record.
    pub(crate) fn stored(self) -> u32 {
        u32::from(self.is_resyncing) * Closed::RESYNCING + u32::from(self.is_offline) * Closed::OFFLINE
    }

    /// Whether it is closed at all.
    pub fn is_any(self) -> bool {
        self != Closed::default()
    }
}

/// A database's `_security`, with what was made of it. The same one as long as neither it nor the database is another.
pub struct SecurityOf {
    bytes: Option<Vec<u8>>,
    incarnation: u64,
    has_channels: bool,
    is_replicator: bool,
    closed: Closed,
    parsed: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl fmt::Debug for SecurityOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecurityOf").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}

impl SecurityOf {
    /// Of a database's record, where empty bytes mean that none was set.
    pub fn new(bytes: &[u8], incarnation: u64) -> SecurityOf {
        let bytes = Some(bytes.to_vec()).filter(|bytes| !bytes.is_empty());
        let (has_channels, is_replicator, closed) = Default::default();
        SecurityOf { bytes, incarnation, has_channels, is_replicator, closed, parsed: OnceLock::new() }
    }

    /// Sets whether the database is a replicator database.
    #[must_use]
    pub fn of_replicator(self, is_replicator: bool) -> SecurityOf {
        SecurityOf { is_replicator, ..self }
    }

    /// Of a database that has channels, or has none, and is closed to its users for this.
    pub(crate) fn with_channels(self, has_channels: bool, closed: Closed) -> SecurityOf {
        SecurityOf { has_channels, closed, ..self }
    }

    /// For what the database is closed to all but its administrators.
    pub fn closed(&self) -> Closed {
        self.closed
    }

    /// Whether the database has channels: there members see a part of its documents, and others may be its users.
    pub fn has_channels(&self) -> bool {
        self.has_channels
    }

    /// Whether the database was created as a replicator database: its documents have owners, and other users see no credentials
    /// in them. False for [`REPLICATOR`](crate::REPLICATOR) itself.
    pub fn is_replicator(&self) -> bool {
        self.is_replicator
    }

    /// JSON text of at most [`SECURITY_BYTES_MAX`](crate::SECURITY_BYTES_MAX) bytes; `None`: it was never set.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.bytes.as_deref()
    }

    /// Tells this database from others that had its name.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// What is made of it, made once: `parse` is called the first time, and must always make the same of the same bytes. All
    /// who ask ask for one type; for another one it is made each time.
    pub fn parsed<T: Send + Sync + 'static>(&self, parse: impl FnOnce(Option<&[u8]>) -> T) -> Arc<T> {
        if let Some(parsed) = self.parsed.get() {
            return match Arc::clone(parsed).downcast() {
                Ok(parsed) => parsed,
                Err(_) => Arc::new(parse(self.bytes())),
            };
        }
        let made = Arc::new(parse(self.bytes()));
        // Whoever else made it at the same time made the same.
        let _ = self.parsed.set(Arc::clone(&made) as Arc<dyn Any + Send + Sync>);
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cached_under_one_value_is_confirmed_together() {
        let clock = Clock::system();
        let confirmed = Confirmed::new(&clock);
        let second = Duration::from_secs(1);
        let first = confirmed.see(b"1", 5_000_000);
        assert!(Arc::ptr_eq(&first, &confirmed.see(b"1", 5_500_000)));
        assert!(first.is_confirmed(6_499_999, second) && !first.is_confirmed(6_500_000, second));
        // One that asked before says nothing new, nor does one that asked next to then.
        first.confirm(4_000_000);
        first.confirm(5_501_000);
        assert!(!first.is_confirmed(6_500_000, second));
        let next = confirmed.see(b"2", 7_000_000);
        assert!(Arc::ptr_eq(&next, &confirmed.newest()) && !Arc::ptr_eq(&next, &first));
        assert!(next.is_confirmed(7_000_000, second) && !first.is_confirmed(7_000_000, second));
        // What reads the past, or after a restore, is nobody else's.
        assert!(!Arc::ptr_eq(&confirmed.see(b"1", 8_000_000), &first));
        assert!(Arc::ptr_eq(&next, &confirmed.newest()));
        let unseen = Confirmed::new(&clock);
        assert!(!unseen.newest().is_confirmed(unseen.us(clock.now()), second));
    }

    #[test]
    fn what_is_made_of_it_is_made_once() {
        let security = SecurityOf::new(b"{}", 7);
        let first = security.parsed(|bytes| bytes.map(<[u8]>::len));
        assert!(Arc::ptr_eq(&first, &security.parsed(|_| Some(9))));
        assert_eq!((*first, *security.parsed(|_| "another type")), (Some(2), "another type"));
        assert_eq!((SecurityOf::new(b"", 7).bytes(), security.incarnation()), (None, 7));
    }
}
