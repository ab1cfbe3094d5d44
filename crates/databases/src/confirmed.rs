//! Tracks the time up to which no record of a database is known to have changed.
//!
//! A change of a record changes `\xff/metadataVersion`, and every transaction of the layer reads that with its read
//! version. So each transaction confirms all databases that were cached under the value that it reads, not only its
//! own. Facts of records that are read without a transaction, such as `_security`, are as of the moment before the
//! newest of these read versions was requested.
//!
//! The first transaction of a process that reads another value also reads the root's record and the names of the
//! databases whose records have changed since (`Inner::learn`). All other cached databases are then current under the
//! new value: the two values belong to one series.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_store::root::Epochs;
use tokio::time::Instant;

/// The smallest step of the confirmed time, so that transactions rarely write to the shared memory.
const NOTED_EACH_US: u64 = 2_000;

/// A value of `\xff/metadataVersion` with the newest moment as of which it was read, shared by all databases that are
/// cached under it.
#[derive(Debug)]
pub struct ConfirmedVersion {
    version: Box<[u8]>,
    /// The number of the series of values that it belongs to; 0: it belongs to none. The process knows all changes of
    /// records between two values of one series.
    series: u64,
    /// The epochs in the root's record under this value.
    epochs: Epochs,
    /// The moment at which the newest transaction with this value requested its read version, in microseconds of the
    /// process's clock.
    as_of_us: AtomicU64,
}

impl ConfirmedVersion {
    /// Creates a value that belongs to no series, so that nothing cached under it is current under another value.
    pub fn aside(version: &[u8], epochs: Epochs, as_of_us: u64) -> Arc<ConfirmedVersion> {
        Arc::new(ConfirmedVersion { version: version.into(), series: 0, epochs, as_of_us: AtomicU64::new(as_of_us) })
    }

    pub fn version(&self) -> &[u8] {
        &self.version
    }

    pub fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// Returns whether this process has read the root's record under this value.
    pub fn is_in_series(&self) -> bool {
        self.series > 0
    }

    /// Returns whether the process knows all changes of records between the two values.
    pub fn is_of_series(&self, other: &ConfirmedVersion) -> bool {
        self.series > 0 && self.series == other.series
    }

    /// Records that a transaction read the value, having requested its read version at or after this moment.
    pub fn confirm(&self, as_of_us: u64) {
        // Load first: all transactions pass here, and most advance the time by almost nothing.
        if as_of_us >= self.as_of_us.load(Ordering::Relaxed).saturating_add(NOTED_EACH_US) {
            self.as_of_us.fetch_max(as_of_us, Ordering::Relaxed);
        }
    }

    /// Returns whether the value was confirmed within this time.
    pub fn is_confirmed(&self, now_us: u64, within: Duration) -> bool {
        let within = u64::try_from(within.as_micros()).unwrap_or(u64::MAX);
        now_us.saturating_sub(self.as_of_us.load(Ordering::Relaxed)) < within
    }
}

/// The state of all records of databases and of the stored settings; equal while none of them has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordState(Box<[u8]>);

impl RecordState {
    /// Returns the state of a value of `\xff/metadataVersion`.
    pub fn of(version: Option<&[u8]>) -> RecordState {
        RecordState(version.unwrap_or_default().into())
    }

    pub fn version(&self) -> &[u8] {
        &self.0
    }

    /// Returns whether it is the other state, or a later one.
    pub fn is_since(&self, other: &RecordState) -> bool {
        self.0 >= other.0
    }
}

/// A state of the stored settings. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SettingsState {
    pub seen: Arc<ConfirmedVersion>,
    pub state: Arc<[u8]>,
}

impl SettingsState {
    /// Returns whether the settings had this state as of a state of all records.
    pub fn is_as_of(&self, records: &RecordState) -> bool {
        self.seen.version() == records.version()
    }
}

/// The newest value under which this process has read the root's record.
#[derive(Debug)]
pub struct VersionCache {
    began: Instant,
    newest: Mutex<Arc<ConfirmedVersion>>,
    /// Held by the request that confirms for all waiting ones: the error of the last failure, and its start.
    pub in_line: tokio::sync::Mutex<Option<(u64, flatbed_store::error::Error)>>,
}

impl VersionCache {
    /// Creates it without a confirmed value.
    pub fn new(clock: &Clock) -> VersionCache {
        // An hour in the past, so that an unconfirmed value is not recent.
        let now = clock.now();
        let began = now.checked_sub(Duration::from_secs(3600)).unwrap_or(now);
        VersionCache {
            began,
            newest: Mutex::new(ConfirmedVersion::aside(&[], Epochs::default(), 0)),
            in_line: tokio::sync::Mutex::default(),
        }
    }

    /// Returns a moment of the process's clock in microseconds.
    pub fn us(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.began).as_micros()).unwrap_or(u64::MAX)
    }

    pub fn newest(&self) -> Arc<ConfirmedVersion> {
        Arc::clone(&self.newest.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Confirms the newest value if a transaction read it, and returns it. `None` if the transaction read another one:
    /// then what this process knows of records may be outdated.
    pub fn known(&self, version: &[u8], as_of_us: u64) -> Option<Arc<ConfirmedVersion>> {
        let newest = self.newest();
        if newest.is_in_series() && newest.version() == version {
            newest.confirm(as_of_us);
            return Some(newest);
        }
        None
    }

    /// Makes a value the newest one. `continues`: it belongs to the series of the last one, as all changes of records
    /// between them are known; otherwise a new series begins. The caller must hold a lock that excludes other callers.
    pub fn advance(&self, version: &[u8], epochs: Epochs, as_of_us: u64, continues: bool) -> Arc<ConfirmedVersion> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let series = if continues && newest.series > 0 { newest.series } else { newest.series + 1 };
        let as_of_us = AtomicU64::new(as_of_us);
        *newest = Arc::new(ConfirmedVersion { version: version.into(), series, epochs, as_of_us });
        Arc::clone(&newest)
    }
}

/// The reasons for which a database is closed to its users. Administrators can still use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClosedReasons {
    /// Until its sync function has routed all documents.
    pub is_resyncing: bool,
    /// Until an administrator sets it online.
    pub is_offline: bool,
}

impl ClosedReasons {
    const RESYNCING: u32 = 1;
    const OFFLINE: u32 = 2;

    pub fn of(stored: u32) -> ClosedReasons {
        let is_resyncing = stored & ClosedReasons::RESYNCING != 0;
        // Unknown reasons of a newer program close the database, too.
        ClosedReasons { is_resyncing, is_offline: stored & !ClosedReasons::RESYNCING != 0 }
    }

    pub fn stored(self) -> u32 {
        u32::from(self.is_resyncing) * ClosedReasons::RESYNCING + u32::from(self.is_offline) * ClosedReasons::OFFLINE
    }

    /// Returns whether the database is closed.
    pub fn is_any(self) -> bool {
        self != ClosedReasons::default()
    }
}

/// A database's `_security` with its cached parsed form; shared while neither it nor the database changes.
pub struct DatabaseSecurity {
    bytes: Option<Vec<u8>>,
    incarnation: u64,
    has_channels: bool,
    is_replicator: bool,
    closed: ClosedReasons,
    parsed: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl fmt::Debug for DatabaseSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecurityOf").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}

impl DatabaseSecurity {
    /// Creates it from a database's record, whose empty bytes mean that none was set.
    pub fn new(bytes: &[u8], incarnation: u64) -> DatabaseSecurity {
        let bytes = Some(bytes.to_vec()).filter(|bytes| !bytes.is_empty());
        let (has_channels, is_replicator, closed) = Default::default();
        DatabaseSecurity { bytes, incarnation, has_channels, is_replicator, closed, parsed: OnceLock::new() }
    }

    /// Sets whether the database is a replicator database.
    #[must_use]
    pub fn of_replicator(self, is_replicator: bool) -> DatabaseSecurity {
        DatabaseSecurity { is_replicator, ..self }
    }

    /// Sets whether the database has channels, and the reasons for which it is closed to its users.
    pub fn with_channels(self, has_channels: bool, closed: ClosedReasons) -> DatabaseSecurity {
        DatabaseSecurity { has_channels, closed, ..self }
    }

    /// Returns the reasons for which the database is closed to all but its administrators.
    pub fn closed(&self) -> ClosedReasons {
        self.closed
    }

    /// Returns whether the database has channels: then members see a part of its documents, and it may have other
    /// users.
    pub fn has_channels(&self) -> bool {
        self.has_channels
    }

    /// Returns whether the database was created as a replicator database: its documents have owners, and other users
    /// see no credentials in them. False for [`REPLICATOR`](flatbed_store::database_name::REPLICATOR) itself.
    pub fn is_replicator(&self) -> bool {
        self.is_replicator
    }

    /// Returns JSON text of at most `SECURITY_BYTES_MAX` bytes; `None` if none was set.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.bytes.as_deref()
    }

    /// Returns the number that tells this database from others that had its name.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Returns the parsed form, which the first call makes and caches. `parse` must be deterministic. All callers
    /// should use one type: for another one each call parses again.
    pub fn parsed<T: Send + Sync + 'static>(&self, parse: impl FnOnce(Option<&[u8]>) -> T) -> Arc<T> {
        if let Some(parsed) = self.parsed.get() {
            return match Arc::clone(parsed).downcast() {
                Ok(parsed) => parsed,
                Err(_) => Arc::new(parse(self.bytes())),
            };
        }
        let made = Arc::new(parse(self.bytes()));
        // A concurrent call has made an equal value.
        let _ = self.parsed.set(Arc::clone(&made) as Arc<dyn Any + Send + Sync>);
        made
    }
}

#[cfg(test)]
mod tests {
    use flatbed_store::proto;

    use super::*;

    fn epochs(epoch: u32) -> Epochs {
        Epochs::of(&proto::Instance { epoch, ..proto::Instance::default() })
    }

    #[test]
    fn what_is_cached_under_one_value_is_confirmed_together() {
        let clock = Clock::system();
        let confirmed = VersionCache::new(&clock);
        let second = Duration::from_secs(1);
        assert!(confirmed.known(b"", 5_000_000).is_none(), "nothing was read under the first value");
        let first = confirmed.advance(b"1", epochs(7), 5_000_000, false);
        assert!(Arc::ptr_eq(&first, &confirmed.known(b"1", 5_500_000).unwrap()));
        assert!(first.is_confirmed(6_499_999, second) && !first.is_confirmed(6_500_000, second));
        // An earlier or hardly later read version confirms nothing new.
        first.confirm(4_000_000);
        first.confirm(5_501_000);
        assert!(!first.is_confirmed(6_500_000, second));
        assert!(confirmed.known(b"2", 7_000_000).is_none());
        let next = confirmed.advance(b"2", epochs(7), 7_000_000, true);
        assert!(Arc::ptr_eq(&next, &confirmed.newest()) && !Arc::ptr_eq(&next, &first));
        assert!(next.is_confirmed(7_000_000, second) && !first.is_confirmed(7_000_000, second));
        // A read of the past, or after a restore, is not shared.
        assert!(confirmed.known(b"1", 8_000_000).is_none());
        assert!(Arc::ptr_eq(&next, &confirmed.newest()));
        let unseen = VersionCache::new(&clock);
        assert!(!unseen.newest().is_confirmed(unseen.us(clock.now()), second));
    }

    #[test]
    fn values_of_one_series_have_known_changes_between_them() {
        let confirmed = VersionCache::new(&Clock::system());
        let first = confirmed.advance(b"1", epochs(7), 0, true);
        let second = confirmed.advance(b"2", epochs(7), 0, true);
        assert!(first.is_in_series() && first.is_of_series(&second));
        let third = confirmed.advance(b"3", epochs(8), 0, false);
        assert_eq!((second.epochs().now(), third.epochs().now()), (7, 8));
        assert!(!second.is_of_series(&third) && third.is_of_series(&confirmed.advance(b"4", epochs(8), 0, true)));
        let aside = ConfirmedVersion::aside(b"4", epochs(8), 0);
        assert!(!aside.is_of_series(&ConfirmedVersion::aside(b"4", epochs(8), 0)) && !aside.is_of_series(&third));
    }

    #[test]
    fn what_is_made_of_it_is_made_once() {
        let security = DatabaseSecurity::new(b"{}", 7);
        let first = security.parsed(|bytes| bytes.map(<[u8]>::len));
        assert!(Arc::ptr_eq(&first, &security.parsed(|_| Some(9))));
        assert_eq!((*first, *security.parsed(|_| "another type")), (Some(2), "another type"));
        assert_eq!((DatabaseSecurity::new(b"", 7).bytes(), security.incarnation()), (None, 7));
    }
}
