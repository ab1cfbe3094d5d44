//! A user's clock.

use crate::error::Result;
use crate::timestamp::Timestamp;
use crate::values::bytes_of::{Reader, Writer};

/// The writes that a head remembers, so that an unknown commit result can be resolved.
const RECENT_MAX: usize = 16;

/// The seconds for which it remembers them. An operation is retried for less.
const RECENT_SECONDS: u32 = 80;

/// A user's clock, and the last writes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Head {
    /// The time of the last write. Every later write has a greater time.
    pub last: Timestamp,
    /// The store's shown time: 0 after all was deleted.
    pub shown: Timestamp,
    /// The number of collections.
    pub collections: u32,
    /// The random numbers and times of the last writes, oldest first.
    recent: Vec<(u64, Timestamp)>,
    /// The time of the last write that was forgotten.
    forgotten: Timestamp,
}

/// The result of a write, as the head tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// It was committed at this time.
    At(Timestamp),
    No,
    /// Unknown, because later writes displaced it.
    Unknown,
}

impl Head {
    /// Returns the user's time. It is never before the last write, so that all processes agree on which records had
    /// expired at a write.
    pub(crate) fn now(&self, clock: Timestamp) -> Timestamp {
        clock.max(self.last)
    }

    pub(crate) fn next(&self, clock: Timestamp) -> Timestamp {
        clock.max(self.last.next())
    }

    /// Notes a write.
    pub(crate) fn note(&mut self, number: u64, at: Timestamp) {
        self.last = at;
        self.recent.push((number, at));
        let is_old = |time: Timestamp| time < at.before_seconds(RECENT_SECONDS);
        let over = self.recent.len().saturating_sub(RECENT_MAX);
        let forget = self.recent.iter().filter(|(_, time)| is_old(*time)).count().max(over);
        for (_, time) in self.recent.drain(..forget) {
            self.forgotten = self.forgotten.max(time);
        }
    }

    /// Returns whether a write was committed. `first`: no attempt of it had an earlier time.
    pub(crate) fn has_done(&self, number: u64, first: Timestamp) -> WriteOutcome {
        match self.recent.iter().find(|(noted, _)| *noted == number) {
            Some((_, at)) => WriteOutcome::At(*at),
            None if self.forgotten >= first => WriteOutcome::Unknown,
            None => WriteOutcome::No,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.time(self.last).time(self.shown).u32(self.collections).time(self.forgotten).byte(self.recent.len() as u8);
        for (number, at) in &self.recent {
            out.u64(*number).time(*at);
        }
        out.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Head> {
        let mut from = Reader::new(bytes, "a user's clock")?;
        let (last, shown, collections, forgotten) = (from.time()?, from.time()?, from.u32()?, from.time()?);
        let count = from.byte()?;
        let recent = (0..count).map(|_| Ok((from.u64()?, from.time()?))).collect::<Result<_>>()?;
        from.end()?;
        Ok(Head { last, shown, collections, recent, forgotten })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_grow_whatever_the_clock_says() {
        let (mut head, at) = (Head::default(), Timestamp::from_hundredths);
        for (clock, time) in [(500, 500), (500, 501), (400, 502), (503, 503), (900, 900)] {
            let next = head.next(at(clock));
            assert_eq!(next, at(time));
            head.note(clock as u64, next);
            assert_eq!((head.now(at(clock)), head.now(at(1000))), (next, at(1000)));
        }
    }

    #[test]
    fn what_was_forgotten_is_not_taken_for_undone() {
        let (mut head, at) = (Head::default(), Timestamp::from_hundredths);
        let times: Vec<_> = (0..20).map(|step| at(1000 + step)).collect();
        for (number, time) in (0..).zip(&times) {
            head.note(number, *time);
        }
        assert_eq!(head.has_done(19, at(1000)), WriteOutcome::At(at(1019)));
        assert_eq!(head.has_done(4, at(1000)), WriteOutcome::At(at(1004)));
        assert_eq!(head.has_done(3, at(1000)), WriteOutcome::Unknown);
        // The last forgotten write may be it.
        assert_eq!(
            (head.has_done(77, at(1003)), head.has_done(77, at(1004))),
            (WriteOutcome::Unknown, WriteOutcome::No)
        );
        // Another process's clock is far ahead: the early writes are forgotten, and the head knows that.
        head.note(20, at(100_000));
        assert_eq!(
            (head.has_done(19, at(1000)), head.has_done(20, at(1000))),
            (WriteOutcome::Unknown, WriteOutcome::At(at(100_000)))
        );
        assert_eq!(Head::decode(&head.encode()).unwrap(), head);
    }
}
