//! The task that keeps accounts confirmed.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use super::Accounts;

/// That the state is read every now and then: whatever ends the task, the next who asks begins another.
pub(super) struct Polling(pub(super) Weak<Accounts>);

impl Polling {
    /// Says that it ends, unless somebody has come to follow meanwhile who has not begun another.
    pub(super) fn goes_on(&mut self, accounts: &Accounts) -> bool {
        accounts.is_polled.store(false, Ordering::SeqCst);
        let goes_on = !accounts.is_idle() && !accounts.is_polled.swap(true, Ordering::SeqCst);
        if !goes_on {
            // It is another's to say from here on.
            self.0 = Weak::new();
        }
        goes_on
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        if let Some(accounts) = self.0.upgrade() {
            accounts.is_polled.store(false, Ordering::SeqCst);
        }
    }
}
