//! A cache of valid tokens.

use std::collections::{HashMap, VecDeque};

use super::VerifiedToken;
use crate::credentials::Digest;

/// The newest valid tokens by digest, up to a number. Each is cached until it ends and at most for a time, and all of
/// them while all keys stay the same. Comparing only the key that verified a token would not suffice: an added key
/// could come first and give the token another result. A second verification costs little.
#[derive(Debug)]
pub struct TokenCache {
    max: usize,
    lifetime: u64,
    generation: u64,
    found: HashMap<Digest, CachedToken>,
    /// Oldest first.
    order: VecDeque<Digest>,
}

#[derive(Debug)]
struct CachedToken {
    verified: VerifiedToken,
    /// The end of the entry, in seconds since 1970.
    until: u64,
}

impl TokenCache {
    /// Creates a cache of at most `max` tokens for at most `lifetime` seconds each.
    pub fn new(max: usize, lifetime: u64) -> TokenCache {
        TokenCache { max, lifetime, generation: 0, found: HashMap::new(), order: VecDeque::new() }
    }

    /// Returns the result of a verification by keys of this generation, if it is still valid at `now`, in seconds
    /// since 1970. `digest` is from [`crate::digest`].
    pub fn get(&mut self, digest: &Digest, generation: u64, now: u64) -> Option<&VerifiedToken> {
        if !self.follow(generation) {
            return None;
        }
        let entry = self.found.get(digest).filter(|entry| now < entry.until)?;
        Some(&entry.verified)
    }

    /// Caches a token that keys of this generation verified at `now`.
    pub fn insert(&mut self, digest: Digest, verified: VerifiedToken, generation: u64, now: u64) {
        if !self.follow(generation) {
            return;
        }
        let until = verified.ends.unwrap_or(u64::MAX).min(now.saturating_add(self.lifetime));
        if self.found.insert(digest, CachedToken { verified, until }).is_none() {
            self.order.push_back(digest);
        }
        if self.order.len() > self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.found.remove(&oldest);
        }
    }

    /// Drops results of earlier keys; returns false if `generation` itself is an earlier one, of which nothing is
    /// cached.
    fn follow(&mut self, generation: u64) -> bool {
        if self.generation < generation {
            self.generation = generation;
            self.found.clear();
            self.order.clear();
        }
        self.generation == generation
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::jwt::{Algorithm, Binding, Key, KeyMaterial, VerifiedBy};
    use crate::principal::{AuthMethod, Principal};

    fn verified(name: &str, ends: Option<u64>) -> VerifiedToken {
        let key =
            Key::new(None, Algorithm::Hs256, KeyMaterial::Secret(vec![0; 32]), Arc::new(Binding::default())).unwrap();
        let by = VerifiedBy::new(&Arc::new(key), 0);
        VerifiedToken { principal: Principal::user(name, [], AuthMethod::Jwt), ends, by }
    }

    fn name(memory: &mut TokenCache, byte: u8, generation: u64, now: u64) -> Option<String> {
        memory.get(&[byte; 32], generation, now).and_then(|verified| verified.principal.name.clone())
    }

    #[test]
    fn tokens_are_known_as_long_as_they_last() {
        let mut memory = TokenCache::new(10, 100);
        memory.insert([1; 32], verified("a", Some(1_050)), 7, 1_000);
        memory.insert([2; 32], verified("b", None), 7, 1_000);
        memory.insert([3; 32], verified("c", Some(5_000)), 7, 1_000);
        let all = |memory: &mut TokenCache, now| [1, 2, 3].map(|byte| name(memory, byte, 7, now).is_some());
        assert_eq!(all(&mut memory, 1_049), [true, true, true]);
        assert_eq!(all(&mut memory, 1_050), [false, true, true]);
        assert_eq!(all(&mut memory, 1_099), [false, true, true]);
        assert_eq!(all(&mut memory, 1_100), [false, false, false]);
        assert_eq!(name(&mut memory, 4, 7, 0), None);
    }

    #[test]
    fn other_keys_know_nothing() {
        let mut memory = TokenCache::new(10, 100);
        memory.insert([1; 32], verified("a", None), 1, 0);
        assert_eq!(name(&mut memory, 1, 1, 0).as_deref(), Some("a"));
        assert_eq!((name(&mut memory, 1, 2, 0), name(&mut memory, 1, 1, 0)), (None, None));
        memory.insert([2; 32], verified("b", None), 2, 0);
        memory.insert([3; 32], verified("c", None), 3, 0);
        assert_eq!((memory.found.len(), memory.order.len()), (1, 1));
        // A verification that began with earlier keys neither drops nor adds results.
        memory.insert([4; 32], verified("d", None), 2, 0);
        assert_eq!((name(&mut memory, 4, 2, 0), name(&mut memory, 4, 3, 0)), (None, None));
        assert_eq!(name(&mut memory, 3, 3, 0).as_deref(), Some("c"));
    }

    #[test]
    fn the_oldest_is_forgotten() {
        let mut memory = TokenCache::new(2, 100);
        for (byte, name) in [(1, "a"), (2, "b"), (1, "z"), (3, "c")] {
            memory.insert([byte; 32], verified(name, None), 0, 0);
        }
        assert_eq!([1, 2, 3].map(|byte| name(&mut memory, byte, 0, 0)), [None, Some("b".into()), Some("c".into())]);
        assert_eq!((memory.found.len(), memory.order.len()), (2, 2));
    }
}
