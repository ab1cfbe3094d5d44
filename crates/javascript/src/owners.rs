//! The owners of databases that the program has set.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// With this many databases in `recent`, those of `older` are forgotten.
const GENERATION_MAX: usize = 8_192;

/// The owners of databases, by number. Two generations bound them: databases without calls are forgotten first.
#[derive(Debug, Default)]
pub(crate) struct DatabaseOwners(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    recent: HashMap<Arc<str>, u64>,
    older: HashMap<Arc<str>, u64>,
}

impl Generations {
    fn add(&mut self, database: Arc<str>, owner: u64) {
        if self.recent.len() >= GENERATION_MAX && !self.recent.contains_key(&database) {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(database, owner);
    }
}

impl DatabaseOwners {
    fn known(&self) -> MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, database: &str, owner: Option<u64>) {
        let mut known = self.known();
        known.older.remove(database);
        match owner {
            Some(owner) => known.add(database.into(), owner),
            None => {
                known.recent.remove(database);
            }
        }
    }

    /// Returns the owner of a database that is called now.
    pub(crate) fn find(&self, database: &str) -> Option<u64> {
        let mut known = self.known();
        if let Some(owner) = known.recent.get(database) {
            return Some(*owner);
        }
        let (database, owner) = known.older.remove_entry(database)?;
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
