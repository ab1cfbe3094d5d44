//! Namespace numbers, taken in blocks, so that databases created in sequence write no common key.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_clock::Clock;
use tokio::time::Instant;

/// The largest block, for a process that creates many databases.
const TAKEN_MAX: u64 = 32;

/// The time after which a process that took no block starts with a block of one again.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Numbers that belong to this process: `from` inclusive, `until` exclusive. They are valid in one epoch, since a
/// restore may undo their allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    pub epoch: u32,
    pub from: u64,
    pub until: u64,
}

/// The numbers that this process has taken and not given to a database yet. Numbers left at its end are never used.
#[derive(Debug, Default)]
pub struct Namespaces(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    block: Option<Block>,
    /// The size of the last block, and when it was taken.
    taken: Option<(u64, Instant)>,
}

impl Namespaces {
    /// Returns whether any number is left, of any epoch.
    pub fn has_some(&self) -> bool {
        self.lock().block.is_some()
    }

    /// Takes a number of this epoch, and forgets a block of another epoch.
    pub fn take(&self, epoch: u32) -> Option<u64> {
        let mut state = self.lock();
        let block = state.block.filter(|block| block.epoch == epoch);
        let rest = block.map(|block| Block { from: block.from + 1, ..block });
        state.block = rest.filter(|rest| rest.from < rest.until);
        block.map(|block| block.from)
    }

    /// Returns the size of the next block: twice that of the last, if that is recent.
    pub fn wanted(&self, clock: &Clock) -> u64 {
        match self.lock().taken {
            Some((taken, at)) if clock.since(at) < IDLE_MAX => (2 * taken).min(TAKEN_MAX),
            _ => 1,
        }
    }

    /// Notes that a committed transaction took a block of this size, of which `left` remains.
    pub fn keep(&self, taken: u64, left: Block, clock: &Clock) {
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
