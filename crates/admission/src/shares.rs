//! One value per key, for as long as it is held.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Keys without holders are dropped at the earliest when there are this many keys.
const FORGET_MIN: usize = 64;

/// One value per key, for as long as it is held: the budget of an address or of a database. The memory is at most
/// proportional to the largest number of keys that were held at once.
#[derive(Debug)]
pub struct Shares<K, V>(Mutex<KnownShares<K, V>>);

#[derive(Debug)]
struct KnownShares<K, V> {
    by_key: HashMap<K, Weak<V>>,
    /// The number of keys at which those without holders are dropped.
    forget_at: usize,
}

impl<K, V> Default for Shares<K, V> {
    fn default() -> Shares<K, V> {
        Shares(Mutex::new(KnownShares { by_key: HashMap::new(), forget_at: FORGET_MIN }))
    }
}

impl<K: Eq + Hash, V> Shares<K, V> {
    fn known(&self) -> MutexGuard<'_, KnownShares<K, V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the share of a key, made by `new` if it has no holder. Holders keep the result, or a grant of it.
    pub fn of(&self, key: K, new: impl FnOnce() -> Arc<V>) -> Arc<V> {
        let mut known = self.known();
        if let Some(share) = known.by_key.get(&key).and_then(Weak::upgrade) {
            return share;
        }
        if known.by_key.len() >= known.forget_at {
            known.by_key.retain(|_, share| share.strong_count() > 0);
            // At least as many new keys as there are held ones come before the next pass, so that a key costs little.
            known.forget_at = FORGET_MIN.max(2 * known.by_key.len());
        }
        let share = new();
        known.by_key.insert(key, Arc::downgrade(&share));
        share
    }

    /// Returns the shares that are held.
    pub fn all(&self) -> Vec<Arc<V>> {
        self.known().by_key.values().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    #[test]
    fn a_share_lasts_as_long_as_it_is_held() {
        let shares = Shares::<&str, Budget>::default();
        let of = |key| shares.of(key, || Budget::new(10, 1));
        let (a, b) = (of("a"), of("b"));
        assert!(Arc::ptr_eq(&a, &of("a")) && !Arc::ptr_eq(&a, &b));
        assert_eq!(shares.all().len(), 2);
        // A grant holds its budget.
        let grant = a.try_take(4).unwrap();
        drop((a, b));
        let free = |key| of(key).free();
        assert_eq!((free("a"), free("b"), shares.all().len()), (6, 10, 1));
        drop(grant);
        assert_eq!((free("a"), shares.all().len()), (10, 0));
    }

    #[test]
    fn keys_without_holders_are_forgotten() {
        let shares = Shares::<usize, Budget>::default();
        let of = |key| shares.of(key, || Budget::new(10, 1));
        for key in 0..3 * FORGET_MIN {
            drop(of(key));
        }
        assert!(shares.known().by_key.len() <= FORGET_MIN);
        let held: Vec<_> = (0..3 * FORGET_MIN).map(of).collect();
        for key in 0..100 * FORGET_MIN {
            drop(of(key));
        }
        assert_eq!(shares.all().len(), held.len());
        assert!(shares.known().by_key.len() <= 2 * held.len());
    }
}
