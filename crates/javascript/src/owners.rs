//! The owners of databases that the program has set.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// With this many databases in `recent`, those of `older` are forgotten. Both have 5 MB then.
const GENERATION_MAX: usize = 131_072;

/// The owners of databases, by number. Two generations bound them: databases without calls are forgotten first. The
/// program sets an owner only when it reads a `_security` anew, so a database that stays in its memory without calls
/// may be forgotten. It is its own owner until the next report.
///
/// Databases are kept by a hash with a random key. Databases of equal hash share an owner, which affects only turns.
#[derive(Debug, Default)]
pub(crate) struct DatabaseOwners {
    hashes: RandomState,
    known: Mutex<Generations>,
}

#[derive(Debug, Default)]
struct Generations {
    recent: HashMap<u64, u64>,
    older: HashMap<u64, u64>,
}

impl Generations {
    fn add(&mut self, database: u64, owner: u64) {
        if self.recent.len() >= GENERATION_MAX && !self.recent.contains_key(&database) {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(database, owner);
    }
}

impl DatabaseOwners {
    fn known(&self) -> MutexGuard<'_, Generations> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, database: &str, owner: Option<u64>) {
        let database = self.hashes.hash_one(database);
        let mut known = self.known();
        known.older.remove(&database);
        match owner {
            Some(owner) => known.add(database, owner),
            None => {
                known.recent.remove(&database);
            }
        }
    }

    /// Returns the owner of a database that is called now.
    pub(crate) fn find(&self, database: &str) -> Option<u64> {
        let database = self.hashes.hash_one(database);
        let mut known = self.known();
        if let Some(owner) = known.recent.get(&database) {
            return Some(*owner);
        }
        let owner = known.older.remove(&database)?;
        known.add(database, owner);
        Some(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_without_calls_are_forgotten_first() {
        let owners = DatabaseOwners::default();
        for n in 0..3 * GENERATION_MAX {
            owners.set(&format!("db{n}"), Some(7));
            assert_eq!(owners.find("db0"), Some(7), "{n}");
        }
        assert_eq!(owners.find("db1"), None);
        let known = owners.known();
        assert!(known.recent.len() <= GENERATION_MAX && known.older.len() <= GENERATION_MAX);
    }

    #[test]
    fn all_databases_of_a_large_process_are_known() {
        let owners = DatabaseOwners::default();
        for n in 0..100_000 {
            owners.set(&format!("db{n}"), Some(n));
        }
        for n in 0..100_000 {
            assert_eq!(owners.find(&format!("db{n}")), Some(n));
        }
    }

    #[test]
    fn a_database_has_its_last_owner() {
        let owners = DatabaseOwners::default();
        let found: Vec<_> = [None, Some(1), Some(2), None]
            .into_iter()
            .map(|owner| {
                owners.set("a", owner);
                owners.find("a")
            })
            .collect();
        assert_eq!(found, [None, Some(1), Some(2), None]);
    }
}
