//! The names that have passwords.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use crate::password::PasswordHash;

/// Names and their passwords' hashes.
#[derive(Debug, Clone, Default)]
pub struct Passwords {
    hashes: HashMap<String, PasswordHash>,
}

impl Passwords {
    /// These, and no others.
    pub fn new(hashes: HashMap<String, PasswordHash>) -> Passwords {
        Passwords { hashes }
    }

    /// Whether nobody has one.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Whether there is such a name.
    pub fn contains(&self, name: &str) -> bool {
        self.hashes.contains_key(name)
    }

    /// What a name's password is checked against. For a name that there is not it is another's, always the same one, so
    /// that the check takes as long as of a name that there is; what the check says then must be ignored.
    pub fn hash_for(&self, name: &str) -> PasswordHash {
        if let Some(hash) = self.hashes.get(name) {
            return hash.clone();
        }
        let mut all: Vec<_> = self.hashes.iter().collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        let digest = Sha256::digest(name.as_bytes());
        let place = digest.iter().fold(0, |sum: usize, byte| (sum << 8 ^ usize::from(*byte)) % all.len().max(1));
        let found = all.get(place).map(|(_, hash)| (*hash).clone());
        found.unwrap_or_else(PasswordHash::of_nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_checked_against_a_hash_that_there_is() {
        let sha1 = PasswordHash::parse("-pbkdf2-4b007901b765489abead49d926f721d065a429c1,salt,4096").unwrap();
        let alone = Passwords::new([("a".to_owned(), sha1.clone())].into());
        assert_eq!(alone.hash_for("b"), sha1);
        assert!(alone.contains("a") && !alone.contains("b") && !alone.is_empty());
        let sha256 = PasswordHash::with_iterations("x", &[0; 16], 2);
        let both = Passwords::new([("a".to_owned(), sha1.clone()), ("b".to_owned(), sha256.clone())].into());
        assert_eq!(both.hash_for("a"), sha1);
        let found: Vec<_> = (0..50).map(|n| both.hash_for(&format!("name{n}"))).collect();
        // About half of them are each one's.
        assert!((10..40).contains(&found.iter().filter(|hash| **hash == sha1).count()));
        assert!(found.contains(&sha256));
        assert_eq!(found, (0..50).map(|n| both.hash_for(&format!("name{n}"))).collect::<Vec<_>>());
    }

    #[test]
    fn where_nobody_has_one() {
        let none = Passwords::default();
        assert!(none.is_empty() && !none.contains(""));
        assert_eq!(none.hash_for(""), PasswordHash::of_nothing());
    }
}
