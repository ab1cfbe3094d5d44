//! Tokens that were right before.

use std::collections::{HashMap, VecDeque};

use super::Verified;
use crate::credentials::Digest;

/// Tokens that were right, by their digests: the newest, up to a number, each as long as it lasts and at most for a time,
/// and all of them as long as all keys are the same. That is more than the key that has verified one: with another key a token
/// may be another one's before it comes to that key, and to verify it once more costs little.
#[derive(Debug)]
pub struct Memory {
    max: usize,
    lifetime: u64,
    generation: u64,
    found: HashMap<Digest, Entry>,
    /// Oldest first.
    order: VecDeque<Digest>,
}

#[derive(Debug)]
struct Entry {
    verified: Verified,
    /// From then on it is not remembered, in seconds since 1970.
    until: u64,
}

impl Memory {
    /// Knows none yet, at most `max` later, none for longer than `lifetime` seconds.
    pub fn new(max: usize, lifetime: u64) -> Memory {
        Memory { max, lifetime, generation: 0, found: HashMap::new(), order: VecDeque::new() }
    }

    /// What a token of this digest (of [`crate::digest`]) was at a verification with the keys of this generation, if it
    /// still is at `now`, in seconds since 1970.
    pub fn get(&mut self, digest: &Digest, generation: u64, now: u64) -> Option<&Verified> {
        if !self.follow(generation) {
            return None;
        }
        let entry = self.found.get(digest).filter(|entry| now < entry.until)?;
        Some(&entry.verified)
    }

    /// Remembers a token that was verified at `now` with the keys of this generation.
    pub fn insert(&mut self, digest: Digest, verified: Verified, generation: u64, now: u64) {
        if !self.follow(generation) {
            return;
        }
        let until = verified.ends.unwrap_or(u64::MAX).min(now.saturating_add(self.lifetime));
        if self.found.insert(digest, Entry { verified, until }).is_none() {
            self.order.push_back(digest);
        }
        if self.order.len() > self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.found.remove(&oldest);
        }
    }

    /// Forgets what the keys of before have verified; whether these are not those of before: then nothing is known of them.
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
    use crate::jwt::{Algorithm, Binding, Key, Material, VerifiedBy};
    use crate::principal::{Principal, SignedIn};

    fn verified(name: &str, ends: Option<u64>) -> Verified {
        let key =
            Key::new(None, Algorithm::Hs256, Material::Secret(vec![0; 32]), Arc::new(Binding::default())).unwrap();
        let by = VerifiedBy::new(&Arc::new(key), 0);
        Verified { principal: Principal::user(name, [], SignedIn::Jwt), ends, by }
    }

    fn name(memory: &mut Memory, byte: u8, generation: u64, now: u64) -> Option<String> {
        memory.get(&[byte; 32], generation, now).and_then(|verified| verified.principal.name.clone())
    }

    #[test]
    fn tokens_are_known_as_long_as_they_last() {
        let mut memory = Memory::new(10, 100);
        memory.insert([1; 32], verified("a", Some(1_050)), 7, 1_000);
        memory.insert([2; 32], verified("b", None), 7, 1_000);
        memory.insert([3; 32], verified("c", Some(5_000)), 7, 1_000);
        let all = |memory: &mut Memory, now| [1, 2, 3].map(|byte| name(memory, byte, 7, now).is_some());
        assert_eq!(all(&mut memory, 1_049), [true, true, true]);
        assert_eq!(all(&mut memory, 1_050), [false, true, true]);
        assert_eq!(all(&mut memory, 1_099), [false, true, true]);
        assert_eq!(all(&mut memory, 1_100), [false, false, false]);
        assert_eq!(name(&mut memory, 4, 7, 0), None);
    }

    #[test]
    fn other_keys_know_nothing() {
        let mut memory = Memory::new(10, 100);
        memory.insert([1; 32], verified("a", None), 1, 0);
        assert_eq!(name(&mut memory, 1, 1, 0).as_deref(), Some("a"));
        assert_eq!((name(&mut memory, 1, 2, 0), name(&mut memory, 1, 1, 0)), (None, None));
        memory.insert([2; 32], verified("b", None), 2, 0);
        memory.insert([3; 32], verified("c", None), 3, 0);
        assert_eq!((memory.found.len(), memory.order.len()), (1, 1));
        // One that began with the keys of before takes nothing away, and adds nothing.
        memory.insert([4; 32], verified("d", None), 2, 0);
        assert_eq!((name(&mut memory, 4, 2, 0), name(&mut memory, 4, 3, 0)), (None, None));
        assert_eq!(name(&mut memory, 3, 3, 0).as_deref(), Some("c"));
    }

    #[test]
    fn the_oldest_is_forgotten() {
        let mut memory = Memory::new(2, 100);
        for (byte, name) in [(1, "a"), (2, "b"), (1, "z"), (3, "c")] {
            memory.insert([byte; 32], verified(name, None), 0, 0);
        }
        assert_eq!([1, 2, 3].map(|byte| name(&mut memory, byte, 0, 0)), [None, Some("b".into()), Some("c".into())]);
        assert_eq!((memory.found.len(), memory.order.len()), (2, 2));
    }
}
