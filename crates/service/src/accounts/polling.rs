//! The task that keeps accounts confirmed.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use super::Accounts;

/// The running polling task. However it ends, the next request starts another one.
pub(super) struct PollingTask(pub(super) Weak<Accounts>);

impl PollingTask {
    /// Marks the task as ended, unless a follower came meanwhile that started no other task.
    pub(super) fn goes_on(&mut self, accounts: &Accounts) -> bool {
        accounts.is_polled.store(false, Ordering::SeqCst);
        let goes_on = !accounts.is_idle() && !accounts.is_polled.swap(true, Ordering::SeqCst);
        if !goes_on {
            // Another task polls from here on.
            self.0 = Weak::new();
        }
        goes_on
    }
}

impl Drop for PollingTask {
    fn drop(&mut self) {
        if let Some(accounts) = self.0.upgrade() {
            accounts.is_polled.store(false, Ordering::SeqCst);
        }
    }
}
