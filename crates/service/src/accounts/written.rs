//! Accounts that this process has written.

use flatbed_auth::users::name_in;

use crate::accounts::Accounts;

impl Accounts {
    /// Drops cached accounts after this process has written these documents of `_users`, or may have. Other processes
    /// find the change by polling.
    pub(crate) fn forget<'i>(&self, ids: impl Iterator<Item = &'i str>) {
        let mut cache = self.cache();
        // A read that is under way must not be cached.
        cache.taken_out += 1;
        for name in ids.filter_map(name_in) {
            cache.accounts.remove(name);
            cache.missing.remove(name);
        }
    }
}
