//! A cache of right credentials, so that a password is not checked on every request.

use std::collections::{HashMap, VecDeque};

use crate::credentials::Digest;
use crate::password::PasswordHash;

/// The newest right credentials by digest, with their names and the hashes that they matched, up to a number. Nothing
/// else drops them: the caller compares the user's current hash, which changes with the password.
#[derive(Debug)]
pub struct CredentialCache {
    max: usize,
    found: HashMap<Digest, (String, PasswordHash)>,
    /// Oldest first.
    order: VecDeque<Digest>,
}

impl CredentialCache {
    /// Creates an empty cache of at most `max` credentials.
    pub fn new(max: usize) -> CredentialCache {
        CredentialCache { max, found: HashMap::new(), order: VecDeque::new() }
    }

    /// True if these credentials were right for this name and this very hash. Another hash of the same password does
    /// not count.
    pub fn is_right(&self, digest: &Digest, name: &str, hash: &PasswordHash) -> bool {
        self.found.get(digest).is_some_and(|(known, was)| known == name && was == hash)
    }

    /// Adds right credentials, and drops the oldest beyond the bound.
    pub fn insert(&mut self, digest: Digest, name: String, hash: PasswordHash) {
        if self.found.insert(digest, (name, hash)).is_none() {
            self.order.push_back(digest);
        }
        if self.order.len() > self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.found.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(byte: u8) -> PasswordHash {
        PasswordHash::with_iterations("p", &[byte; 16], 1)
    }

    #[test]
    fn the_oldest_is_forgotten() {
        let mut known = CredentialCache::new(2);
        for (byte, name) in [(1, "a"), (2, "b"), (1, "a")] {
            known.insert([byte; 32], name.to_owned(), hash(1));
        }
        let are_known = |known: &CredentialCache| {
            [(1, "a"), (2, "b"), (3, "c")].map(|(byte, name)| known.is_right(&[byte; 32], name, &hash(1)))
        };
        assert_eq!(are_known(&known), [true, true, false]);
        known.insert([3; 32], "c".to_owned(), hash(1));
        assert_eq!(are_known(&known), [false, true, true]);
        assert_eq!((known.found.len(), known.order.len()), (2, 2));
    }

    #[test]
    fn another_hash_is_another_password() {
        let (one, other) = (hash(1), hash(2));
        let mut known = CredentialCache::new(2);
        known.insert([1; 32], "a".to_owned(), one.clone());
        let found = [([1; 32], "a", &one), ([1; 32], "a", &other), ([1; 32], "b", &one), ([2; 32], "a", &one)];
        assert_eq!(found.map(|(digest, name, hash)| known.is_right(&digest, name, hash)), [true, false, false, false]);
        known.insert([1; 32], "a".to_owned(), other.clone());
        assert!(known.is_right(&[1; 32], "a", &other) && !known.is_right(&[1; 32], "a", &one));
    }
}
