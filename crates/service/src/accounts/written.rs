//! Accounts that this process itself has written.

use flatbed_auth::users::name_in;

use crate::accounts::Accounts;

impl Accounts {
    /// This process has written these documents of `_users`, or may have: what it keeps of their names is of before. Others
    /// find that when they look.
    pub(crate) fn forget<'i>(&self, ids: impl Iterator<Item = &'i str>) {
        let mut cache = self.cache();
        // Nor does who reads one of them now keep it.
        cache.taken_out += 1;
        for name in ids.filter_map(name_in) {
            cache.accounts.remove(name);
            cache.missing.remove(name);
        }
    }
}
