//! The cache of databases by name, bounded by bytes.
//!
//! A database in use is never evicted: an operation holds its instance, or a subsystem says that it uses the state of
//! one (feeds, slow selectors). So a process never has two live instances of a database that each count, lock or follow
//! for themselves.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flatbed_store::instruments::Instruments;
use prost::Message;
use quick_cache::sync::Cache;
use quick_cache::{Lifecycle, Weighter};

use crate::confirmed::ConfirmedVersion;
use crate::field_names::Fields;
use crate::instance::Instance;
use crate::slots;

/// A usual entry: the cache's tables are made for as many of them as the budget holds.
const USUAL_BYTES: u64 = 16_000;

/// The approximate bytes of an instance with its keys and the states of subsystems, without what follows.
const INSTANCE_BYTES: u64 = 4_000;

/// The copies of a record: decoded, and what subsystems compile of its indexes, groups and settings.
const RECORD_COPIES: u64 = 4;

/// A cached database, which is current while `\xff/metadataVersion` has the value `seen`. It is also current under a
/// later value of the same series, unless it is outdated.
#[derive(Debug, Clone)]
pub struct CachedDatabase {
    pub seen: Arc<ConfirmedVersion>,
    /// The record has changed since `seen`.
    pub is_outdated: bool,
    /// The weight of the entry. It stays the same while the entry is in the cache.
    bytes: u64,
    pub instance: Arc<Instance>,
}

impl CachedDatabase {
    pub fn new(seen: Arc<ConfirmedVersion>, instance: Arc<Instance>) -> CachedDatabase {
        CachedDatabase { seen, is_outdated: false, bytes: bytes_of(&instance), instance }
    }

    /// Returns whether something outside of the cache uses the instance or a state of it.
    pub fn is_used(&self) -> bool {
        Arc::strong_count(&self.instance) > 1
            || slots::are_used(&self.instance.of_incarnation)
            || slots::are_used(&self.instance.of_name)
    }

    /// Returns whether the entry is current under a value that this process has read.
    pub fn is_current(&self, newest: &ConfirmedVersion) -> bool {
        !self.is_outdated && self.seen.is_of_series(newest) && self.seen.version() <= newest.version()
    }
}

fn bytes_of(instance: &Instance) -> u64 {
    let record = (instance.record.encoded_len() + instance.name.len()) as u64;
    INSTANCE_BYTES + RECORD_COPIES * record + instance.fields.bytes()
}

#[derive(Clone)]
struct EntryBytes;

impl Weighter<String, CachedDatabase> for EntryBytes {
    fn weight(&self, _: &String, cached: &CachedDatabase) -> u64 {
        cached.bytes
    }
}

#[derive(Clone)]
struct KeepUsed(Arc<Instruments>);

impl Lifecycle<String, CachedDatabase> for KeepUsed {
    /// Dropped behind the lock of the cache's part.
    type RequestState = Vec<CachedDatabase>;

    fn is_pinned(&self, _: &String, cached: &CachedDatabase) -> bool {
        cached.is_used()
    }

    fn on_evict(&self, evicted: &mut Vec<CachedDatabase>, _: String, cached: CachedDatabase) {
        self.0.database_cache_evictions.add(1);
        evicted.push(cached);
    }
}

/// The databases that a process holds in memory.
pub struct DatabaseCache {
    entries: Cache<String, CachedDatabase, EntryBytes, foldhash::fast::RandomState, KeepUsed>,
    /// Held while entries are added, or become current or outdated: between such steps they agree with the newest
    /// value of `\xff/metadataVersion` that the process has read.
    changing: Mutex<()>,
}

impl DatabaseCache {
    /// Creates an empty cache that holds about this many bytes, and what is in use.
    pub fn new(bytes_max: u64, instruments: &Arc<Instruments>) -> DatabaseCache {
        let usual = usize::try_from(bytes_max / USUAL_BYTES).unwrap_or(usize::MAX).max(1);
        let keep = KeepUsed(Arc::clone(instruments));
        let entries = Cache::with(usual, bytes_max, EntryBytes, foldhash::fast::RandomState::default(), keep);
        DatabaseCache { entries, changing: Mutex::new(()) }
    }

    /// Excludes other changes of what is current.
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub fn get(&self, name: &str) -> Option<CachedDatabase> {
        self.entries.get(name)
    }

    /// Returns the instance of a name if it is current under a value that this process has read. Then it is cached under
    /// that value.
    pub fn carry(&self, name: &str, newest: &Arc<ConfirmedVersion>) -> Option<Arc<Instance>> {
        let _changing = self.lock();
        let cached = self.entries.get(name).filter(|cached| cached.is_current(newest))?;
        let instance = Arc::clone(&cached.instance);
        if !Arc::ptr_eq(&cached.seen, newest) {
            self.replace(CachedDatabase { seen: Arc::clone(newest), ..cached });
        }
        Some(instance)
    }

    /// Adds an entry. The caller holds [`DatabaseCache::lock`].
    pub fn insert(&self, cached: CachedDatabase) {
        self.entries.insert(cached.instance.name.clone(), cached);
    }

    /// Records that the record of a name has changed. The caller holds [`DatabaseCache::lock`].
    pub fn outdate(&self, name: &str) {
        if let Some(cached) = self.entries.peek(name) {
            self.replace(CachedDatabase { is_outdated: true, ..cached });
        }
    }

    /// Weighs an entry again, after names were added to it.
    pub fn weigh(&self, name: &str, fields: &Arc<Fields>) {
        let _changing = self.lock();
        if let Some(cached) = self.entries.peek(name)
            && Arc::ptr_eq(&cached.instance.fields, fields)
        {
            let bytes = bytes_of(&cached.instance);
            self.replace(CachedDatabase { bytes, ..cached });
        }
    }

    fn replace(&self, cached: CachedDatabase) {
        // An entry that was removed meanwhile stays away.
        let _ = self.entries.replace(cached.instance.name.clone(), cached, true);
    }

    pub fn remove(&self, name: &str) {
        self.entries.remove(name);
    }

    /// Removes an entry that satisfies a condition, and returns whether there was one.
    pub fn remove_if(&self, name: &str, condition: impl FnOnce(&CachedDatabase) -> bool) -> bool {
        self.entries.remove_if(name, condition).is_some()
    }

    pub fn clear(&self) {
        self.entries.clear();
    }

    /// Returns all entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = CachedDatabase> + '_ {
        self.entries.iter().map(|(_, cached)| cached)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the approximate bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.entries.weight()
    }
}
