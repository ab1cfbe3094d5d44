//! Checks of passwords, which cost their time on purpose: few run at once, few wait, and equal ones are made once.
//!
//! A client that hangs up does not end a check that runs: the permit is the work's, and comes back with its end. What has
//! not begun when nobody waits for it does not begin.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flatbed_auth::Digest;
use tokio::sync::{Semaphore, watch};

/// Checks that run at once: a flood of wrong passwords must not take all cores.
const CHECKS_AT_ONCE: usize = 2;

/// Checks that run or wait. Whoever asks for the same as one of these waits with it and counts for nothing.
pub(super) const CHECKS_MAX: usize = 16;

/// Who learns a check's outcome.
type Told = Arc<watch::Sender<Option<bool>>>;

/// There are too many already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Checks {
    permits: Arc<Semaphore>,
    /// Those that run or wait.
    pending: Arc<Mutex<HashMap<Digest, Told>>>,
}

impl Checks {
    pub(super) fn new() -> Checks {
        Checks { permits: Arc::new(Semaphore::new(CHECKS_AT_ONCE)), pending: Arc::default() }
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<Digest, Told>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `check` says of the credentials of this digest; a check of the same ones that is under way answers for both.
    pub(super) async fn ask(
        &self,
        digest: Digest,
        check: impl FnOnce() -> bool + Send + 'static,
    ) -> std::result::Result<bool, TooMany> {
        let mut outcome = {
            let mut pending = self.pending();
            if let Some(same) = pending.get(&digest) {
                same.subscribe()
            } else if pending.len() >= CHECKS_MAX {
                return Err(TooMany);
            } else {
                let (told, outcome) = watch::channel(None);
                let told = Arc::new(told);
                pending.insert(digest, told.clone());
                tokio::spawn(self.clone().work(digest, told, check));
                outcome
            }
        };
        // A check that came to no end says nothing good of a password.
        Ok(outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| *outcome).unwrap_or(false))
    }

    async fn work(self, digest: Digest, told: Told, check: impl FnOnce() -> bool + Send + 'static) {
        let permit = loop {
            tokio::select! {
                biased;
                () = told.closed() => {
                    let mut pending = self.pending();
                    // Another may have come in the meantime.
                    if told.receiver_count() == 0 {
                        pending.remove(&digest);
                        return;
                    }
                }
                permit = self.permits.clone().acquire_owned() => break permit,
            }
        };
        let checked = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            check()
        });
        let outcome = checked.await.unwrap_or(false);
        self.pending().remove(&digest);
        told.send_replace(Some(outcome));
    }
}
