//! The polls of accounts that wait for a look at followed databases.

use std::collections::VecDeque;

use flatbed_layer::RecordState;
use tokio::time::Instant;

/// The most polls that wait. Beyond it the newest one replaces the one before, so that a look that takes longer still
/// confirms the oldest.
const WAITING_MAX: usize = 64;

/// The freshness of the known state of followed databases.
#[derive(Debug, Clone)]
pub(crate) enum DatabasesState {
    Unfollowed,
    Unknown,
    AsOf(RecordState),
}

/// A poll of everything but databases.
#[derive(Debug)]
pub(super) struct AccountsPoll {
    pub began: Instant,
    pub records: RecordState,
}

/// Polls, oldest first, from the last one that is confirmed on. A poll is confirmed once databases are known as of its
/// records or later.
#[derive(Debug)]
pub(super) struct WaitingPolls {
    polls: VecDeque<AccountsPoll>,
    databases: DatabasesState,
}

impl WaitingPolls {
    pub(super) fn new() -> WaitingPolls {
        WaitingPolls { polls: VecDeque::new(), databases: DatabasesState::Unfollowed }
    }

    /// Adds a poll, after the followers of changed accounts were woken.
    pub(super) fn poll(&mut self, poll: AccountsPoll) {
        // Several polls may need the same look at databases: the newest one counts.
        if self.polls.back().is_some_and(|last| last.records == poll.records) || self.polls.len() >= WAITING_MAX {
            self.polls.pop_back();
        }
        self.polls.push_back(poll);
    }

    /// Records how current followed databases are, after the followers of changed ones were woken.
    pub(super) fn databases(&mut self, databases: DatabasesState) {
        self.databases = databases;
    }

    /// Returns the begin of the newest poll that is confirmed.
    pub(super) fn confirmed(&mut self) -> Option<Instant> {
        let databases = &self.databases;
        let is_known = |poll: &&AccountsPoll| match databases {
            DatabasesState::Unfollowed => true,
            DatabasesState::Unknown => false,
            DatabasesState::AsOf(state) => state.is_since(&poll.records),
        };
        let known = self.polls.iter().take_while(is_known).count();
        // The last of them stays, for the next state of databases.
        self.polls.drain(..known.saturating_sub(1));
        self.polls.front().filter(|_| known > 0).map(|poll| poll.began)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn state(number: u8) -> RecordState {
        RecordState::of(Some(&[number]))
    }

    /// Databases that take longer to read than polls are apart confirm older polls, and do not stop confirming.
    #[test]
    fn a_slow_look_at_databases_confirms_the_polls_before_it() {
        let (mut waiting, begin) = (WaitingPolls::new(), Instant::now());
        let at = |number: u8| begin + Duration::from_millis(600) * u32::from(number);
        let poll = |number: u8| AccountsPoll { began: at(number), records: state(number) };
        assert_eq!(waiting.confirmed(), None);
        waiting.poll(poll(1));
        assert_eq!(waiting.confirmed(), Some(at(1)));
        waiting.databases(DatabasesState::Unknown);
        assert_eq!(waiting.confirmed(), None);
        // Each look ends as of a state that the next polls have left behind.
        for number in 1..100 {
            waiting.poll(poll(number + 1));
            waiting.poll(poll(number + 2));
            waiting.databases(DatabasesState::AsOf(state(number)));
            assert_eq!(waiting.confirmed(), Some(at(number)), "{number}");
        }
        for number in 102..250 {
            waiting.poll(poll(number));
        }
        assert_eq!((waiting.confirmed(), waiting.polls.len()), (Some(at(99)), WAITING_MAX));
        waiting.databases(DatabasesState::AsOf(state(101)));
        assert_eq!(waiting.confirmed(), Some(at(101)));
        waiting.databases(DatabasesState::Unfollowed);
        assert_eq!((waiting.confirmed(), waiting.polls.len()), (Some(at(249)), 1));
        // Without a change of records the newest poll counts.
        waiting.databases(DatabasesState::AsOf(state(249)));
        waiting.poll(AccountsPoll { began: at(250), records: state(249) });
        assert_eq!((waiting.confirmed(), waiting.polls.len()), (Some(at(250)), 1));
    }
}
