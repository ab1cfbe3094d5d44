//! A user's clock.

use crate::error::Result;
use crate::timestamp::Timestamp;
use crate::values::bytes_of::{Reader, Writer};

/// Writes that a head remembers, so that one whose commit's result is unknown can be told from one that did not happen.
const RECENT_MAX: usize = 16;

/// For how many seconds it remembers them; an operation is tried for less.
const RECENT_SECONDS: u32 = 80;

/// A user's clock, and what was written last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Head {
    /// The time of the last write; every later one has a greater time.
    pub last: Timestamp,
    /// The store's time as it is shown: 0 after all was deleted.
    pub shown: Timestamp,
    /// How many collections there are.
    pub collections: u32,
    /// The last writes, oldest first: the number that each had drawn, and its time.
    recent: Vec<(u64, Timestamp)>,
    /// The time of the last one that was forgotten.
    forgotten: Timestamp,
}

/// Whether a write has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    /// At this time.
    At(Timestamp),
    No,
    /// So much was written since that nobody knows.
    Unknown,
}

impl Head {
    /// How late it is for this user: never before what was written last, so that all processes agree on what has expired
    /// when something was written.
    pub(crate) fn now(&self, clock: Timestamp) -> Timestamp {
        clock.max(self.last)
    }

    /// The time of the next write.
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

    /// Whether a write happened, none of whose attempts was for an earlier time than this.
    pub(crate) fn has_done(&self, number: u64, first: Timestamp) -> Done {
        match self.recent.iter().find(|(noted, _)| *noted == number) {
            Some((_, at)) => Done::At(*at),
            None if self.forgotten >= first => Done::Unknown,
            None => Done::No,
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
        assert_eq!(head.has_done(19, at(1000)), Done::At(at(1019)));
        assert_eq!(head.has_done(4, at(1000)), Done::At(at(1004)));
        assert_eq!(head.has_done(3, at(1000)), Done::Unknown);
        // The last one that was forgotten may be it.
        assert_eq!((head.has_done(77, at(1003)), head.has_done(77, at(1004))), (Done::Unknown, Done::No));
        // Another process's clock is far ahead: the early ones are forgotten, and it is known that they are.
        head.note(20, at(100_000));
        assert_eq!((head.has_done(19, at(1000)), head.has_done(20, at(1000))), (Done::Unknown, Done::At(at(100_000))));
        assert_eq!(Head::decode(&head.encode()).unwrap(), head);
    }
}
