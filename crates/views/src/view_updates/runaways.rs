//! The documents on which the functions of a group exceeded a bound of time or memory, as remembered by a process.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_revtree::RevId;
use flatbed_store::view_functions::FunctionFailure;
use tokio::time::Instant;

/// The number of tries before a document that exceeds a bound is set aside: the machine may have been slow.
const TRIES_MAX: u32 = 2;

/// The time for which a revision is remembered after its last try. It is not mapped meanwhile if it was tried
/// [`TRIES_MAX`] times.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// The most documents that a group remembers; with more, it forgets all.
const DOCUMENTS_MAX: usize = 2_000;

/// The documents of a group, by id. All tasks of the group share it, so a try counts after its task has ended.
#[derive(Debug)]
pub struct Runaways {
    clock: Clock,
    documents: Mutex<HashMap<String, Runaway>>,
}

#[derive(Debug)]
struct Runaway {
    rev: RevId,
    tried_at: Instant,
    failure: FunctionFailure,
    tries: u32,
}

impl Runaways {
    pub(super) fn new(clock: &Clock) -> Runaways {
        Runaways { clock: clock.clone(), documents: Mutex::default() }
    }

    /// Records that functions exceeded a bound on a revision. Returns whether that was its last try.
    pub fn record(&self, id: &str, rev: &RevId, failure: &FunctionFailure) -> bool {
        let mut documents = self.lock();
        let before = documents.get(id).filter(|known| self.is_of(known, rev)).map_or(0, |known| known.tries);
        if documents.len() >= DOCUMENTS_MAX {
            documents.clear();
        }
        let (tried_at, tries) = (self.clock.now(), before + 1);
        let runaway = Runaway { rev: rev.clone(), tried_at, failure: failure.clone(), tries };
        documents.insert(id.to_owned(), runaway);
        tries >= TRIES_MAX
    }

    pub fn failure(&self, id: &str, rev: &RevId) -> Option<FunctionFailure> {
        let documents = self.lock();
        let known = documents.get(id).filter(|known| self.is_of(known, rev) && known.tries >= TRIES_MAX)?;
        Some(known.failure.clone())
    }

    /// Returns whether functions exceeded a bound on a revision that is still to be retried.
    pub fn is_tried(&self, id: &str, rev: &RevId) -> bool {
        self.lock().get(id).is_some_and(|known| self.is_of(known, rev) && known.tries < TRIES_MAX)
    }

    pub fn forget(&self, id: &str) {
        self.lock().remove(id);
    }

    fn is_of(&self, known: &Runaway, rev: &RevId) -> bool {
        known.rev == *rev && self.clock.since(known.tried_at) < REMEMBERED_FOR
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Runaway>> {
        self.documents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use flatbed_clock::ManualClock;

    use super::*;

    #[test]
    fn a_revision_is_tried_twice_and_known_for_a_while() {
        let manual = ManualClock::new();
        let runaways = Runaways::new(&manual.clock());
        let (rev, failure) = (RevId::new(1, [0; 16]), FunctionFailure::TimedOut("slow".to_owned()));
        assert!(!runaways.is_tried("a", &rev));
        assert!(!runaways.record("a", &rev, &failure));
        assert_eq!((runaways.is_tried("a", &rev), runaways.failure("a", &rev)), (true, None));
        assert!(runaways.record("a", &rev, &failure));
        assert_eq!((runaways.is_tried("a", &rev), runaways.failure("a", &rev)), (false, Some(failure.clone())));
        let second = RevId::new(2, [0; 16]);
        assert_eq!((runaways.failure("b", &rev), runaways.failure("a", &second)), (None, None));
        manual.advance(REMEMBERED_FOR);
        assert_eq!(runaways.failure("a", &rev), None);
        assert!(!runaways.record("a", &rev, &failure), "it was too long ago");
        runaways.forget("a");
        assert!(!runaways.record("a", &rev, &failure), "it was mapped");
        assert!(!runaways.record("a", &second, &failure), "another revision");
        for n in 0..2 * DOCUMENTS_MAX {
            assert!(!runaways.record(&n.to_string(), &rev, &failure));
        }
        assert!(runaways.lock().len() <= DOCUMENTS_MAX);
    }
}
