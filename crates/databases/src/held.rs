//! The rights of principals of databases, and their cache.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use flatbed_channels::require::Writer;
use flatbed_channels::{ALL, HeldChannels, PrincipalKind, Stamp};
use flatbed_clock::Clock;
use flatbed_store::error::Result;
use flatbed_store::transaction::{Transaction, conflict_with};
use foundationdb::FdbResult;
use foundationdb::future::FdbSlice;
use futures_util::future::try_join_all;
use tokio::time::Instant;

use crate::instance::InstanceId;
use crate::server::Inner;
use crate::slots::State;

const PRINCIPALS_MAX: usize = 10_000;

/// Approximate bytes of the cache.
const BYTES_MAX: usize = 64_000_000;

/// The part of a full cache that is evicted at once, so that its scan pays off for many insertions.
const PART_THAT_GOES: usize = 8;

/// Slots that record when principals were evicted; several principals share one.
const PLACES: usize = 4_096;

/// Bytes of an entry beside its names, and of each of its channels and roles, with the nodes of their maps.
const ENTRY_BYTES: usize = 600;
const NAME_BYTES: usize = 80;

/// The rights of a principal in a database with channels, with the versions that were read with them: current while
/// these are.
#[derive(Debug, Default)]
pub struct HeldRights {
    /// The channels and roles.
    pub held: HeldChannels,
    /// The newest change of the user's rights, and of those of each of their roles; `None`: there never was one. Empty
    /// for unrestricted principals and for those with the rights of everybody.
    pub versions: Vec<(PrincipalKind, Arc<str>, Option<Stamp>)>,
    /// The stamp of an administrator's last change of the user, if there is a user.
    pub user_at: Option<Stamp>,
    /// True if the user exists and is enabled.
    pub is_there: bool,
    /// The generation since which the user's name belongs to this person.
    pub person: u64,
    /// The keys of [`HeldRights::versions`], in their order.
    pub keys: Vec<Vec<u8>>,
    /// The argument of functions for this principal, by the name of their last write.
    pub writer: OnceLock<Arc<Writer>>,
}

impl HeldRights {
    pub fn all() -> HeldRights {
        HeldRights { held: HeldChannels::since_ever([ALL]), ..HeldRights::default() }
    }

    /// Returns the rights of everybody, which do not change.
    pub fn everybody() -> HeldRights {
        HeldRights { held: HeldChannels::everybody(), ..HeldRights::default() }
    }

    /// Returns whether it has the versions of another one, and so the same rights.
    #[inline]
    pub fn is_as(&self, other: &HeldRights) -> bool {
        self.versions == other.versions && self.is_there == other.is_there && self.held == other.held
    }

    /// Returns the argument of functions: `name`, and the `mark` of the principal's writes.
    pub fn as_writer(&self, name: String, mark: String) -> Arc<Writer> {
        let make = || Arc::new(Writer { mark: mark.clone(), ..Writer::new(name.clone(), self) });
        let writer = self.writer.get_or_init(make);
        if writer.name == name && writer.mark == mark { Arc::clone(writer) } else { make() }
    }

    /// Returns whether a right of then is missing in `now`.
    pub fn has_lost(&self, now: &HeldRights) -> bool {
        let is_gone = |(name, _): (&str, Stamp)| now.held.since(name).is_none();
        (self.is_there && !now.is_there) || (!now.has_all() && self.held.channels().any(is_gone))
    }

    /// Returns whether it has the versions of another one.
    #[inline]
    pub fn has_versions_of(&self, other: &HeldRights) -> bool {
        self.versions == other.versions && self.is_there == other.is_there
    }

    fn versions_alone(&self) -> HeldRights {
        let HeldRights { versions, keys, user_at, is_there, person, .. } = self;
        let (versions, keys) = (versions.clone(), keys.clone());
        HeldRights { versions, user_at: *user_at, is_there: *is_there, person: *person, keys, ..HeldRights::default() }
    }

    /// Requests the versions again, as snapshots, for a writer that was judged by these rights.
    pub fn begin_fence(&self, trx: &Transaction) -> RightsFence {
        let known = self.versions.iter().map(|(_, _, stamp)| *stamp);
        RightsFence(
            self.keys.iter().zip(known).map(|(key, known)| (Box::pin(trx.get(key, true)) as _, known)).collect(),
        )
    }

    /// Adds read conflicts on the versions, so that the commit fails if they change.
    pub fn conflict(&self, trx: &Transaction) -> Result<()> {
        self.keys.iter().try_for_each(|key| conflict_with(trx, key))
    }

    fn bytes(&self) -> usize {
        let lost = self.held.lost().iter().map(|lost| lost.channel.len() + size_of_val(lost.had.all()));
        let told = || self.held.channels().chain(self.held.roles());
        // The argument of functions has the names again.
        let names = told().chain(told()).chain(self.held.own()).map(|(name, _)| name.len());
        let versions = self.versions.iter().zip(&self.keys).map(|((_, name, _), key)| name.len() + key.len());
        ENTRY_BYTES + lost.chain(names).chain(versions).map(|bytes| bytes + NAME_BYTES).sum::<usize>()
    }
}

impl Deref for HeldRights {
    type Target = HeldChannels;

    fn deref(&self) -> &HeldChannels {
        &self.held
    }
}

pub type VersionRead = Pin<Box<dyn Future<Output = FdbResult<Option<FdbSlice>>> + Send + Sync>>;

/// Pending reads of the versions that judged a principal, with their values then.
pub struct RightsFence(Vec<(VersionRead, Option<Stamp>)>);

impl RightsFence {
    pub async fn holds(self) -> Result<bool> {
        let (reads, known): (Vec<_>, Vec<_>) = self.0.into_iter().unzip();
        let found = try_join_all(reads).await?;
        let mut both = found.iter().zip(&known);
        Ok(both.all(|(found, known)| found.as_deref() == known.as_ref().map(|stamp| &stamp.0[..])))
    }
}

/// The cache key of a principal: the instance of the database, the name, and the kind.
pub type RightsKey = (InstanceId, Arc<str>, RightsHolder);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RightsHolder {
    Principal,
    Account { is_member: bool },
}

/// The rights of recent principals. Entries are hints: their users must check the versions in a transaction.
#[derive(Debug)]
pub struct HeldCache {
    kept: Mutex<CacheState>,
    clock: Clock,
    principals_max: usize,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct CacheState {
    all: HashMap<RightsKey, CachedRights>,
    bytes: usize,
    clock: u64,
    /// The time of each slot's last eviction; empty before the first one.
    forgot: Vec<Option<Instant>>,
}

#[derive(Debug)]
struct CachedRights {
    held: Arc<HeldRights>,
    /// True if the rights are too large for the cache, so that the entry has only the versions.
    is_versions: bool,
    bytes: usize,
    used: u64,
    /// The rights were current up to here at least: the start of the last transaction that confirmed them.
    found: Instant,
    /// The rights of this entry, or of one before it, may have been shown up to here.
    shown: Instant,
    /// Rights that were lost later were held up to here at least, or possibly held before an eviction.
    had_until: Option<Instant>,
}

impl CachedRights {
    /// Returns whether a right of `by` is missing now.
    fn has_lost(&self, by: &HeldRights) -> bool {
        if self.is_versions { !by.has_versions_of(&self.held) } else { by.has_lost(&self.held) }
    }

    /// Records that a transaction that began then has used rights that a later one has replaced meanwhile.
    fn was_shown(&mut self, by: &HeldRights, began: Instant) {
        self.shown = self.shown.max(began);
        if self.has_lost(by) {
            self.had_until = self.had_until.max(Some(began));
        }
    }
}

impl State<Inner> for HeldCache {
    fn new_of(inner: &Inner) -> HeldCache {
        HeldCache::of(&inner.clock)
    }
}

impl HeldCache {
    /// Creates an empty cache; transactions have start times of this clock.
    #[inline]
    pub fn of(clock: &Clock) -> HeldCache {
        HeldCache::new(PRINCIPALS_MAX, BYTES_MAX, clock)
    }

    fn new(principals_max: usize, bytes_max: usize, clock: &Clock) -> HeldCache {
        HeldCache { kept: Mutex::default(), clock: clock.clone(), principals_max, bytes_max }
    }

    pub fn get(&self, by: &RightsKey) -> Option<Arc<HeldRights>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clock += 1;
        let now = kept.clock;
        let entry = kept.all.get_mut(by)?;
        entry.used = now;
        (!entry.is_versions).then(|| Arc::clone(&entry.held))
    }

    /// Returns the versions of rights that are too large for the cache.
    pub fn versions(&self, by: &RightsKey) -> Option<Arc<HeldRights>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.all.get(by).filter(|entry| entry.is_versions).map(|entry| Arc::clone(&entry.held))
    }

    /// Records that a transaction that began then has confirmed the rights.
    pub fn confirm(&self, by: &RightsKey, held: &Arc<HeldRights>, began: Instant) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = kept.all.get_mut(by) else { return };
        if Arc::ptr_eq(&entry.held, held) {
            entry.shown = entry.shown.max(began);
            entry.found = entry.found.max(began);
        } else {
            entry.was_shown(held, began);
        }
    }

    /// Returns the rights, as far as cached, and whether any right of `by` was lost, or without that any right at that
    /// moment or since: `true` also if that is unknown. `None`: they were not confirmed within this time.
    pub fn lost(
        &self,
        by: &RightsKey,
        (since, judged_by): (Instant, Option<&HeldRights>),
        within: Duration,
    ) -> Option<(Arc<HeldRights>, bool)> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = kept.all.get(by).filter(|entry| self.clock.since(entry.found) <= within)?;
        let has_lost = match judged_by {
            Some(judged_by) => entry.has_lost(judged_by),
            None => entry.had_until.is_some_and(|until| until >= since),
        };
        Some((Arc::clone(&entry.held), has_lost))
    }

    /// Caches rights that a transaction read that began then; evicts the least recently used ones if the cache is full.
    pub fn insert(&self, by: RightsKey, held: &Arc<HeldRights>, began: Instant) {
        let mut held = Arc::clone(held);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clock += 1;
        let used = kept.clock;
        if let Some(newer) = kept.all.get_mut(&by).filter(|entry| entry.found > began) {
            newer.used = used;
            newer.was_shown(&held, began);
            return;
        }
        // Rights that would evict most others are read each time.
        let is_versions = held.bytes() > self.bytes_max / PART_THAT_GOES;
        if is_versions {
            held = Arc::new(held.versions_alone());
        }
        let bytes = held.bytes();
        // A principal that is not cached may have been evicted, and may have lost rights since. Later evictions of
        // others, and those before a request began, do not matter.
        let had_until = kept.forgot.get(kept.place(&by)).copied().flatten();
        let mut entry = CachedRights { held, is_versions, bytes, used, found: began, shown: began, had_until };
        if let Some(before) = kept.all.get(&by) {
            let has_lost = match before.is_versions {
                true => !entry.held.has_versions_of(&before.held),
                false => entry.has_lost(&before.held),
            };
            entry.had_until = before.had_until.max(has_lost.then_some(before.shown));
            // A transaction that found the same rights as an earlier one may have shown them.
            entry.shown = began.max(before.shown);
        }
        let before = kept.all.insert(by, entry).map_or(0, |before| before.bytes);
        kept.bytes = kept.bytes + bytes - before;
        if kept.all.len() > self.principals_max || kept.bytes > self.bytes_max {
            kept.make_room(self.principals_max, self.bytes_max, self.clock.now());
        }
    }

    #[cfg(test)]
    fn size(&self) -> (usize, usize) {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        (kept.all.len(), kept.bytes)
    }
}

impl CacheState {
    /// Returns the slot of a principal's evictions.
    fn place(&self, by: &RightsKey) -> usize {
        usize::try_from(self.all.hasher().hash_one(by) % PLACES as u64).unwrap_or(0)
    }

    /// Evicts the least recently used entries, of databases with many entries first: so requests in one database do not
    /// evict principals of others, whose answers might be cut off for it.
    fn make_room(&mut self, principals_max: usize, bytes_max: usize, now: Instant) {
        let part = |max: usize| max - max / PART_THAT_GOES;
        let (most, bytes_most) = (part(principals_max), part(bytes_max));
        let mut by_use: Vec<(&RightsKey, &CachedRights)> = self.all.iter().collect();
        by_use.sort_unstable_by_key(|(_, entry)| Reverse(entry.used));
        let mut of_database = HashMap::<_, (usize, usize)>::new();
        // Ranked by the part of all entries that the database has up to this one.
        let mut ranked: Vec<(u128, &RightsKey, usize)> = by_use
            .into_iter()
            .map(|(by, entry)| {
                let (count, bytes) = of_database.entry(&by.0).or_default();
                (*count, *bytes) = (*count + 1, *bytes + entry.bytes);
                let (of_count, of_bytes) =
                    (*count as u128 * bytes_max as u128, *bytes as u128 * principals_max as u128);
                (of_count.max(of_bytes), by, entry.bytes)
            })
            .collect();
        ranked.sort_by_key(|(part, ..)| *part);
        let (mut count, mut bytes) = (0, 0);
        let goes = ranked.iter().skip_while(|(_, _, of)| {
            (count, bytes) = (count + 1, bytes + of);
            count <= most && bytes <= bytes_most
        });
        let goes: Vec<RightsKey> = goes.map(|(_, by, _)| (*by).clone()).collect();
        self.forgot.resize(PLACES, None);
        for by in goes {
            let place = self.place(&by);
            if let Some(forgot) = self.forgot.get_mut(place) {
                *forgot = Some(now);
            }
            self.bytes -= self.all.remove(&by).map_or(0, |entry| entry.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use flatbed_store::proto;

    use super::*;

    fn by(name: usize) -> RightsKey {
        in_database(1, name)
    }

    fn in_database(namespace: u64, name: usize) -> RightsKey {
        let record = proto::DatabaseRecord { namespace, ..proto::DatabaseRecord::default() };
        (InstanceId::new(&record, 0), name.to_string().into(), RightsHolder::Principal)
    }

    fn held(channels: usize) -> Arc<HeldRights> {
        let names: Vec<String> = (0..channels).map(|at| format!("{at:020}")).collect();
        let held = HeldChannels::since_ever(names.iter().map(String::as_str));
        Arc::new(HeldRights { held, ..HeldRights::default() })
    }

    #[test]
    fn what_was_asked_for_lately_stays() {
        let cache = HeldCache::new(16, usize::MAX, &Clock::system());
        (0..16).for_each(|name| cache.insert(by(name), &held(0), Instant::now()));
        assert!(cache.get(&by(0)).is_some() && cache.get(&by(1)).is_some());
        cache.insert(by(16), &held(0), Instant::now());
        assert_eq!(cache.size().0, 14);
        let is_there = |name: usize| cache.get(&by(name)).is_some();
        assert!([0, 1, 5, 15, 16].into_iter().all(is_there) && ![2, 3, 4].into_iter().any(is_there));
        // The same entry again.
        cache.insert(by(16), &held(1), Instant::now());
        assert_eq!(cache.size().0, 14);
        assert!(cache.get(&by(16)).is_some_and(|held| held.since("00000000000000000000").is_some()));
        let other = (by(16).0, by(16).1, RightsHolder::Account { is_member: true });
        assert!(cache.get(&other).is_none());
    }

    #[test]
    fn what_was_lost_is_known() {
        let (cache, ever) = (HeldCache::new(16, 100_000, &Clock::system()), Duration::MAX);
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let insert = |name, channels, began| cache.insert(by(name), &held(channels), at(began));
        let lost = |name, since| cache.lost(&by(name), (at(since), None), ever).map(|(_, lost)| lost);
        assert_eq!(lost(0, 0), None);
        insert(0, 3, 1);
        // A gain is not a loss.
        insert(0, 5, 2);
        assert_eq!(lost(0, 0), Some(false));
        // They were confirmed at 3, so requests until then may have shown them; later requests have not.
        let known = cache.get(&by(0)).unwrap();
        cache.confirm(&by(0), &known, at(3));
        insert(0, 4, 6);
        assert_eq!([0, 2, 3, 4, 6].map(|since| lost(0, since)), [true, true, true, false, false].map(Some));
        // A right that was regained counts as lost, unless the request names the rights that judged it.
        insert(0, 5, 7);
        assert_eq!(lost(0, 3), Some(true));
        let by_this = |judged: &HeldRights| cache.lost(&by(0), (at(0), Some(judged)), ever).map(|(_, lost)| lost);
        assert_eq!([held(3), held(5), held(6)].map(|held| by_this(&held)), [false, false, true].map(Some));
        // For rights that are too large each change counts.
        let large = |stamp| {
            let held = HeldChannels::since_ever(["x".repeat(20_000).as_str()]);
            let versions = vec![(PrincipalKind::User, "0".into(), Some(Stamp::of(stamp)))];
            Arc::new(HeldRights { held, versions, ..HeldRights::default() })
        };
        cache.insert(by(1), &large(1), at(8));
        cache.insert(by(1), &large(1), at(9));
        assert_eq!((lost(1, 0), cache.get(&by(1)).is_none()), (Some(false), true));
        cache.insert(by(1), &large(2), at(10));
        assert_eq!([9, 10].map(|since| lost(1, since)), [true, false].map(Some));
    }

    /// Returns a moment after all earlier ones.
    fn later() -> Instant {
        let before = Instant::now();
        std::iter::repeat_with(Instant::now).find(|now| *now > before).unwrap()
    }

    #[test]
    fn who_was_forgotten_meanwhile_may_have_lost_anything() {
        let (cache, ever) = (HeldCache::new(16, 100_000, &Clock::system()), Duration::MAX);
        let lost = |since| cache.lost(&by(0), (since, None), ever).map(|(_, lost)| lost);
        let came = |name| cache.insert(by(name), &held(3), later());
        let early = later();
        came(0);
        (1..40).for_each(came);
        assert_eq!(lost(early), None);
        let asked = later();
        came(0);
        assert_eq!((lost(early), lost(asked)), (Some(true), Some(false)));
        // Evictions of others do not matter.
        let is_there = |name| cache.get(&by(name)).is_some();
        (40..80).for_each(|name| {
            assert!(
                is_there(0) && {
                    came(name);
                    is_there(0)
                }
            )
        });
        assert!(!is_there(40));
        assert_eq!((lost(early), lost(asked)), (Some(true), Some(false)));
        // Nor does a loss before the request, whenever it is found.
        let asked_again = later();
        cache.insert(by(0), &held(2), later());
        assert_eq!((lost(asked), lost(asked_again)), (Some(true), Some(false)));
        // An evicted principal that a transaction finds again that began before the request.
        let began = later();
        let asked = later();
        (80..120).for_each(came);
        assert_eq!(lost(asked), None);
        cache.insert(by(0), &held(2), began);
        assert_eq!(lost(asked), Some(true));
        later();
        assert!(cache.lost(&by(0), (asked, None), Duration::ZERO).is_none(), "that was longer ago");
    }

    #[test]
    fn what_is_found_in_another_order_is_not_lost_unseen() {
        let ever = Duration::MAX;
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let lost = |cache: &HeldCache, since| cache.lost(&by(0), (at(since), None), ever).map(|(_, lost)| lost);
        // A loss that another transaction has found already is still reported.
        let cache = HeldCache::new(16, 100_000, &Clock::system());
        let known = held(5);
        cache.insert(by(0), &known, at(1));
        cache.insert(by(0), &held(3), at(4));
        assert_eq!(lost(&cache, 3), Some(false));
        cache.confirm(&by(0), &known, at(3));
        assert_eq!([3, 4].map(|since| lost(&cache, since)), [true, false].map(Some));
        // So is one behind a confirmation of the same rights.
        let cache = HeldCache::new(16, 100_000, &Clock::system());
        cache.insert(by(0), &known, at(1));
        cache.insert(by(0), &held(5), at(2));
        cache.confirm(&by(0), &known, at(3));
        cache.insert(by(0), &held(3), at(4));
        assert_eq!([3, 4].map(|since| lost(&cache, since)), [true, false].map(Some));
        // The result of a slow transaction replaces that of a later one.
        let cache = HeldCache::new(16, 100_000, &Clock::system());
        cache.insert(by(0), &known, at(3));
        cache.insert(by(0), &held(5), at(1));
        cache.insert(by(0), &held(3), at(4));
        assert_eq!([3, 4].map(|since| lost(&cache, since)), [true, false].map(Some));
    }

    #[test]
    fn one_database_makes_nobody_in_another_be_forgotten() {
        let (asked, one) = (later(), held(100).bytes());
        for (principals_max, bytes_max, channels) in [(16, usize::MAX, 0), (1_000, 16 * one, 100)] {
            let cache = HeldCache::new(principals_max, bytes_max, &Clock::system());
            let quiet = in_database(2, 0);
            cache.insert(quiet.clone(), &held(1), later());
            (0..200).for_each(|name| cache.insert(by(name), &held(channels), later()));
            assert!(cache.get(&by(100)).is_none() && cache.get(&by(199)).is_some());
            let lost = |by: &RightsKey| cache.lost(by, (asked, None), Duration::MAX).map(|(_, lost)| lost);
            assert_eq!(lost(&quiet), Some(false));
            // Nor does it matter for later principals, except by a shared slot.
            let known = (1..9).filter(|name| {
                let by = in_database(2, *name);
                cache.insert(by.clone(), &held(1), later());
                lost(&by) == Some(false)
            });
            assert!(known.count() > 4);
        }
    }

    #[test]
    fn what_a_slow_transaction_has_found_is_not_taken_for_newer() {
        let (cache, ever) = (HeldCache::new(16, 100_000, &Clock::system()), Duration::MAX);
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        cache.insert(by(0), &held(5), at(1));
        cache.insert(by(0), &held(3), at(4));
        cache.insert(by(0), &held(5), at(2));
        let lost =
            |since, judged: Option<&HeldRights>| cache.lost(&by(0), (at(since), judged), ever).map(|(_, lost)| lost);
        assert_eq!(lost(4, Some(&held(5))), Some(true));
        // Later requests did not use those rights.
        assert_eq!([2, 3].map(|since| lost(since, None)), [true, false].map(Some));
    }

    #[test]
    fn who_is_given_all_has_lost_nothing() {
        let all = HeldRights::all();
        assert!(!held(3).has_lost(&all) && all.has_lost(&held(3)));
    }

    #[test]
    fn memory_is_bounded() {
        let one = held(10).bytes();
        assert!((10 * 2 * 20..5_000).contains(&one), "{one}");
        let cache = HeldCache::new(1_000, 16 * one, &Clock::system());
        for name in 0..100 {
            cache.insert(by(name), &held(10), Instant::now());
            assert!(cache.size().1 <= 16 * one);
        }
        assert_eq!(cache.size(), (16, 16 * one).min(cache.size()));
        assert!(cache.get(&by(99)).is_some());
        // Too large for the cache: only the versions are kept.
        cache.insert(by(100), &held(100), Instant::now());
        assert!(cache.get(&by(100)).is_none() && cache.get(&by(99)).is_some());
        assert!(cache.size().1 <= 16 * one);
    }
}
