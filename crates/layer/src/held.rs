//! What principals of databases have, as it was found, and what a process remembers of it.

use std::collections::HashMap;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use flatbed_channels::{ALL, Held, Kind, Stamp};
use foundationdb::FdbResult;
use foundationdb::future::FdbSlice;
use futures_util::future::try_join_all;

use crate::error::Result;
use crate::instance::InstanceId;
use crate::store::transaction::{Transaction, conflict_with};

/// Principals that are remembered at most.
const PRINCIPALS_MAX: usize = 10_000;

/// What they may take in memory together, in bytes, about.
const BYTES_MAX: usize = 64_000_000;

/// Of a full cache this part goes at once: so the look at all of it is paid for by many that come.
const PART_THAT_GOES: usize = 8;

/// What an entry takes beside its names, and each of its channels and roles, with the nodes of their maps.
const ENTRY_BYTES: usize = 600;
const NAME_BYTES: usize = 80;

/// What somebody has in a database with channels, as of the versions that were read with it: it is so as long as these are.
#[derive(Debug, Default)]
pub struct HeldAt {
    /// What they have.
    pub held: Held,
    /// The newest change of what the user has, and of what each of the user's roles has; `None`: there never was one. None of who
    /// sees all, and of who has what everybody has.
    pub versions: Vec<(Kind, Arc<str>, Option<Stamp>)>,
    /// When an administrator changed the user last, where there is one.
    pub user_at: Option<Stamp>,
    /// Whether there is such a user, who is not disabled.
    pub is_there: bool,
    /// Since which of its generations the user's name has been this person's.
    pub(crate) person: u64,
    /// The keys of [`HeldAt::versions`], in their order.
    pub(crate) keys: Vec<Vec<u8>>,
}

impl HeldAt {
    /// Of who sees all.
    pub(crate) fn all() -> HeldAt {
        HeldAt { held: Held::since_ever([ALL]), ..HeldAt::default() }
    }

    /// Of who has what everybody has, whatever is changed.
    pub(crate) fn everybody() -> HeldAt {
        HeldAt { held: Held::everybody(), ..HeldAt::default() }
    }

    /// Whether it was found at the same versions: all that is said then is the same.
    pub fn is_as(&self, other: &HeldAt) -> bool {
        self.versions == other.versions && self.is_there == other.is_there && self.held == other.held
    }

    /// Asks for the versions anew, as snapshots: of who has been judged by them and writes now.
    pub(crate) fn begin_fence(&self, trx: &Transaction) -> Fencing {
        let known = self.versions.iter().map(|(_, _, stamp)| *stamp);
        Fencing(self.keys.iter().zip(known).map(|(key, known)| (Box::pin(trx.get(key, true)) as _, known)).collect())
    }

    /// What is written then fails where they change before it is committed.
    pub(crate) fn conflict(&self, trx: &Transaction) -> Result<()> {
        self.keys.iter().try_for_each(|key| conflict_with(trx, key))
    }

    /// About what it takes in memory.
    fn bytes(&self) -> usize {
        let lost = self.held.lost().iter().map(|lost| lost.channel.len() + size_of_val(lost.had.all()));
        let names = self.held.channels().chain(self.held.own()).chain(self.held.roles()).map(|(name, _)| name.len());
        let versions = self.versions.iter().zip(&self.keys).map(|((_, name, _), key)| name.len() + key.len());
        ENTRY_BYTES + lost.chain(names).chain(versions).map(|bytes| bytes + NAME_BYTES).sum::<usize>()
    }
}

impl Deref for HeldAt {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

/// A value under way.
pub(crate) type Reading = Pin<Box<dyn Future<Output = FdbResult<Option<FdbSlice>>> + Send + Sync>>;

/// Versions that somebody was judged by, being read again, and what they were.
pub(crate) struct Fencing(Vec<(Reading, Option<Stamp>)>);

impl Fencing {
    /// Whether they are what they were.
    pub(crate) async fn holds(self) -> Result<bool> {
        let (reads, known): (Vec<_>, Vec<_>) = self.0.into_iter().unzip();
        let found = try_join_all(reads).await?;
        let mut both = found.iter().zip(&known);
        Ok(both.all(|(found, known)| found.as_deref() == known.as_ref().map(|stamp| &stamp.0[..])))
    }
}

/// Who is remembered: of which instance of a database, by which name, and whether as an account of the server.
pub(crate) type HeldBy = (InstanceId, Arc<str>, As);

/// As whom somebody of a name is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum As {
    /// The principal of the name.
    Principal,
    /// An account of the server.
    Account { is_member: bool },
}

/// What was found of those who have asked lately. It is never taken for true: whoever finds something here reads the versions that
/// it is of.
#[derive(Debug)]
pub(crate) struct HeldCache {
    kept: Mutex<Kept>,
    principals_max: usize,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Kept {
    all: HashMap<HeldBy, Entry>,
    bytes: usize,
    /// Counts each use.
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    held: Arc<HeldAt>,
    bytes: usize,
    used: u64,
}

impl Default for HeldCache {
    fn default() -> HeldCache {
        HeldCache::new(PRINCIPALS_MAX, BYTES_MAX)
    }
}

impl HeldCache {
    fn new(principals_max: usize, bytes_max: usize) -> HeldCache {
        HeldCache { kept: Mutex::default(), principals_max, bytes_max }
    }

    /// What was found last.
    pub(crate) fn get(&self, by: &HeldBy) -> Option<Arc<HeldAt>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clock += 1;
        let now = kept.clock;
        let entry = kept.all.get_mut(by)?;
        entry.used = now;
        Some(Arc::clone(&entry.held))
    }

    /// Remembers what was found; what was not asked for the longest goes, where there is too much.
    pub(crate) fn insert(&self, by: HeldBy, held: &Arc<HeldAt>) {
        let bytes = held.bytes();
        // One that would take the place of most others is read each time.
        if bytes > self.bytes_max / PART_THAT_GOES {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clock += 1;
        let entry = Entry { held: Arc::clone(held), bytes, used: kept.clock };
        let before = kept.all.insert(by, entry).map_or(0, |before| before.bytes);
        kept.bytes = kept.bytes + bytes - before;
        if kept.all.len() > self.principals_max || kept.bytes > self.bytes_max {
            kept.make_room(self.principals_max, self.bytes_max);
        }
    }

    /// How many are remembered, and what they take.
    #[cfg(test)]
    fn size(&self) -> (usize, usize) {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        (kept.all.len(), kept.bytes)
    }
}

impl Kept {
    fn make_room(&mut self, principals_max: usize, bytes_max: usize) {
        let part = |max: usize| max - max / PART_THAT_GOES;
        let (most, bytes_most) = (part(principals_max), part(bytes_max));
        let mut by_use: Vec<(u64, usize)> = self.all.values().map(|entry| (entry.used, entry.bytes)).collect();
        by_use.sort_unstable_by_key(|(used, _)| std::cmp::Reverse(*used));
        let (mut count, mut bytes) = (0, 0);
        let stays = by_use.iter().take_while(|(_, of)| {
            (count, bytes) = (count + 1, bytes + of);
            count <= most && bytes <= bytes_most
        });
        let oldest = stays.last().map_or(u64::MAX, |(used, _)| *used);
        self.all.retain(|_, entry| entry.used >= oldest);
        self.bytes = self.all.values().map(|entry| entry.bytes).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::proto;

    fn by(name: usize) -> HeldBy {
        let record = proto::DatabaseRecord { namespace: 1, ..proto::DatabaseRecord::default() };
        (InstanceId::from(&record), name.to_string().into(), As::Principal)
    }

    fn held(channels: usize) -> Arc<HeldAt> {
        let names: Vec<String> = (0..channels).map(|at| format!("{at:020}")).collect();
        let held = Held::since_ever(names.iter().map(String::as_str));
        Arc::new(HeldAt { held, ..HeldAt::default() })
    }

    #[test]
    fn what_was_asked_for_lately_stays() {
        let cache = HeldCache::new(16, usize::MAX);
        (0..16).for_each(|name| cache.insert(by(name), &held(0)));
        assert!(cache.get(&by(0)).is_some() && cache.get(&by(1)).is_some());
        cache.insert(by(16), &held(0));
        assert_eq!(cache.size().0, 14);
        let is_there = |name: usize| cache.get(&by(name)).is_some();
        assert!([0, 1, 5, 15, 16].into_iter().all(is_there) && ![2, 3, 4].into_iter().any(is_there));
        // The same one anew.
        cache.insert(by(16), &held(1));
        assert_eq!(cache.size().0, 14);
        assert!(cache.get(&by(16)).is_some_and(|held| held.since("00000000000000000000").is_some()));
        let other = (by(16).0, by(16).1, As::Account { is_member: true });
        assert!(cache.get(&other).is_none());
    }

    #[test]
    fn memory_is_bounded() {
        let one = held(10).bytes();
        assert!((10 * 2 * 20..5_000).contains(&one), "{one}");
        let cache = HeldCache::new(1_000, 16 * one);
        for name in 0..100 {
            cache.insert(by(name), &held(10));
            assert!(cache.size().1 <= 16 * one);
        }
        assert_eq!(cache.size(), (16, 16 * one).min(cache.size()));
        assert!(cache.get(&by(99)).is_some());
        // Too large to be kept, and nothing goes for it.
        let before = cache.size();
        cache.insert(by(100), &held(100));
        assert_eq!(cache.size(), before);
    }
}
