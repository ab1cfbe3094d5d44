//! Namespaces, taken in blocks: databases that are created one after the other write no key in common.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_clock::Clock;
use tokio::time::Instant;

/// A process that creates many databases takes this many at once.
const TAKEN_MAX: u64 = 32;

/// Who has not taken any for this long begins with one again.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Numbers that belong to this process, from one up to another one that does not. They are of an epoch: a restore may
/// have taken back that they were given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub epoch: u64,
    pub from: u64,
    pub until: u64,
}

/// What this process has taken and not given to a database yet. What it still has when it ends is never given.
#[derive(Debug, Default)]
pub(crate) struct Namespaces(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    block: Option<Block>,
    /// How many were taken the last time, and when.
    taken: Option<(u64, Instant)>,
}

impl Namespaces {
    /// Whether there is any, of whatever epoch.
    pub(crate) fn has_some(&self) -> bool {
        self.lock().block.is_some()
    }

    /// One of this epoch. Those of another one are forgotten.
    pub(crate) fn take(&self, epoch: u64) -> Option<u64> {
        let mut state = self.lock();
        let block = state.block.filter(|block| block.epoch == epoch);
        let rest = block.map(|block| Block { from: block.from + 1, ..block });
        state.block = rest.filter(|rest| rest.from < rest.until);
        block.map(|block| block.from)
    }

    /// How many to take at once: twice as many as the last time, if that is not long ago.
    pub(crate) fn wanted(&self, clock: &Clock) -> u64 {
        match self.lock().taken {
            Some((taken, at)) if clock.since(at) < IDLE_MAX => (2 * taken).min(TAKEN_MAX),
            _ => 1,
        }
    }

    /// A transaction that was committed has taken so many, of which these are left.
    pub(crate) fn keep(&self, taken: u64, left: Block, clock: &Clock) {
        let mut state = self.lock();
        state.taken = Some((taken, clock.now()));
        if left.from < left.until {
            state.block = Some(left);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use flatbed_clock::ManualClock;

    use super::*;

    #[test]
    fn each_is_given_once_and_in_its_epoch() {
        let (namespaces, manual) = (Namespaces::default(), ManualClock::new());
        let clock = manual.clock();
        assert_eq!((namespaces.has_some(), namespaces.take(1), namespaces.wanted(&clock)), (false, None, 1));
        namespaces.keep(1, Block { epoch: 1, from: 5, until: 5 }, &clock);
        assert_eq!((namespaces.has_some(), namespaces.wanted(&clock)), (false, 2));
        namespaces.keep(16, Block { epoch: 1, from: 7, until: 9 }, &clock);
        assert_eq!([(); 3].map(|()| namespaces.take(1)), [Some(7), Some(8), None]);
        assert_eq!(namespaces.wanted(&clock), 32);
        namespaces.keep(32, Block { epoch: 1, from: 10, until: 41 }, &clock);
        assert_eq!(namespaces.wanted(&clock), 32);
        assert_eq!((namespaces.take(2), namespaces.take(1)), (None, None), "a renewal makes them useless");
        manual.advance(IDLE_MAX);
        assert_eq!(namespaces.wanted(&clock), 1);
    }
}
