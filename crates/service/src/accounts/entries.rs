//! Cached accounts by name: the newest ones, within a number and a number of bytes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use flatbed_auth::AuthError;
use flatbed_auth::users::Account;
use flatbed_layer::RevId;

#[derive(Debug)]
pub(crate) struct AccountEntry {
    /// `None`: the user does not exist. An error: the reason why the document does not allow a sign-in.
    pub account: Result<Option<Account>, AuthError>,
    /// The winning revision; `None`: the document is missing or deleted.
    pub rev: Option<RevId>,
    /// The first revision of the account, since a name may be reused.
    pub born: Option<RevId>,
}

impl AccountEntry {
    pub(crate) fn nobody() -> AccountEntry {
        AccountEntry { account: Ok(None), rev: None, born: None }
    }

    fn bytes(&self, name: &str) -> usize {
        let account = self.account.as_ref().ok().and_then(Option::as_ref);
        let roles = account.map_or(0, |account| account.roles().iter().map(|role| role.len() + 24).sum());
        512 + 4 * name.len() + roles + account.map_or(0, |account| account.salt().len())
    }
}

/// Entries by name. The oldest are dropped beyond the bounds.
#[derive(Debug)]
pub(crate) struct AccountEntries {
    most: usize,
    bytes_most: usize,
    bytes: usize,
    found: HashMap<Arc<str>, (u64, Arc<AccountEntry>)>,
    /// Oldest first, each with its number; an entry with another number was removed or replaced.
    order: VecDeque<(u64, Arc<str>)>,
    next: u64,
}

impl AccountEntries {
    pub(crate) fn new(most: usize, bytes_most: usize) -> AccountEntries {
        AccountEntries { most, bytes_most, bytes: 0, found: HashMap::new(), order: VecDeque::new(), next: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.found.len()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<AccountEntry>> {
        self.found.get(name).map(|(_, entry)| entry)
    }

    pub(crate) fn insert(&mut self, name: &str, entry: Arc<AccountEntry>) {
        self.remove(name);
        let bytes = entry.bytes(name);
        // An entry of more than an eighth of the bound is not cached.
        if bytes > self.bytes_most / 8 {
            return;
        }
        let name: Arc<str> = name.into();
        self.bytes += bytes;
        self.next += 1;
        self.found.insert(Arc::clone(&name), (self.next, entry));
        self.order.push_back((self.next, name));
        while self.found.len() > self.most || self.bytes > self.bytes_most {
            let Some((number, oldest)) = self.order.pop_front() else { break };
            if self.found.get(&oldest).is_some_and(|(found, _)| *found == number) {
                self.remove(&oldest);
            }
        }
        if self.order.len() > 2 * self.most.max(8) {
            let found = &self.found;
            self.order.retain(|(number, name)| found.get(name).is_some_and(|(of, _)| of == number));
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        if let Some((_, entry)) = self.found.remove(name) {
            self.bytes = self.bytes.saturating_sub(entry.bytes(name));
        }
    }

    pub(crate) fn clear(&mut self) {
        self.found.clear();
        self.order.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_bounded_by_number_and_bytes() {
        let mut entries = AccountEntries::new(3, 100_000);
        for name in ["a", "b", "c", "a", "d"] {
            entries.insert(name, Arc::new(AccountEntry::nobody()));
        }
        // `a` was inserted again, so `b` was the oldest.
        let there = |entries: &AccountEntries| ["a", "b", "c", "d"].map(|name| entries.get(name).is_some());
        assert_eq!((there(&entries), entries.len()), ([true, false, true, true], 3));
        for _ in 0..100 {
            entries.insert("a", Arc::new(AccountEntry::nobody()));
        }
        assert!(entries.order.len() <= 16, "{}", entries.order.len());
        entries.remove("c");
        assert_eq!(there(&entries), [true, false, false, true]);
        let long = "n".repeat(2_000);
        entries.insert(&long, Arc::new(AccountEntry::nobody()));
        assert!(entries.get(&long).is_some());
        let too_long = "n".repeat(5_000);
        entries.insert(&too_long, Arc::new(AccountEntry::nobody()));
        assert!(entries.get(&too_long).is_none());
        let mut few_bytes = AccountEntries::new(100, 20_000);
        for at in 0..100 {
            few_bytes.insert(&format!("{at}{}", "n".repeat(400)), Arc::new(AccountEntry::nobody()));
        }
        assert!(few_bytes.len() < 12 && few_bytes.bytes <= 20_000);
        few_bytes.clear();
        assert_eq!((few_bytes.len(), few_bytes.bytes, few_bytes.order.len()), (0, 0, 0));
    }
}
