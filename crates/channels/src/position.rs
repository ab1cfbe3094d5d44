//! Where a feed stands.

use std::cmp::Ordering;
use std::fmt;

/// Which commit, within an incarnation of a database: a versionstamp and a user version, which sort as they were committed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp(pub [u8; 12]);

impl Stamp {
    /// Before the first.
    pub const ZERO: Stamp = Stamp([0; 12]);

    /// Behind the last.
    pub const MAX: Stamp = Stamp([0xff; 12]);

    /// The last that may stand before this one.
    pub(crate) fn before(self) -> Stamp {
        Stamp::of_u128(self.u128().saturating_sub(1))
    }

    /// The first that may stand behind this one.
    pub(crate) fn behind(self) -> Stamp {
        Stamp::of_u128(self.u128().saturating_add(1))
    }

    fn u128(self) -> u128 {
        self.0.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
    }

    fn of_u128(number: u128) -> Stamp {
        let [_, _, _, _, bytes @ ..] = number.min(Stamp::MAX.u128()).to_be_bytes();
        Stamp(bytes)
    }

    /// A number as one: for tests, and for what has no versionstamps.
    pub const fn of(number: u64) -> Stamp {
        let [a, b, c, d, e, f, g, h] = number.to_be_bytes();
        Stamp([a, b, c, d, e, f, g, h, 0, 0, 0, 0])
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A place in a user's feed. Rows come in this order.
///
/// Most are a sequence alone. What a channel had when the user was given it comes under the sequence of the grant, in the order
/// in which it was committed, before what has that sequence itself: `G:n` before `G`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Position {
    /// The sequence, or that of the grant or loss because of which the row comes.
    pub at: Stamp,
    /// The row's own.
    pub of: Option<Stamp>,
}

impl Position {
    /// Before the first row.
    pub const BEGIN: Position = Position { at: Stamp::ZERO, of: None };

    /// At a sequence.
    pub const fn at(at: Stamp) -> Position {
        Position { at, of: None }
    }

    /// Within what comes because of a grant or a loss.
    pub const fn within(at: Stamp, of: Stamp) -> Position {
        Position { at, of: Some(of) }
    }

    /// Where a row of a channel stands for who has the channel since then. The document that gives the channel, and is in it,
    /// stands at its own sequence.
    pub fn held_since(since: Stamp, row: Stamp) -> Position {
        if row >= since { Position::at(row) } else { Position::within(since, row) }
    }

    /// Its text, each sequence as `show` writes it.
    pub fn text(&self, show: impl Fn(Stamp) -> String) -> String {
        match self.of {
            None => show(self.at),
            Some(of) => format!("{}:{}", show(self.at), show(of)),
        }
    }

    /// Reads what [`Position::text`] has written. Sync Gateway's forms with three parts, which say that one of its caches was
    /// behind, mean nothing here.
    pub fn parse(text: &str, read: impl Fn(&str) -> Option<Stamp>) -> Option<Position> {
        match text.split_once(':') {
            None => Some(Position::at(read(text)?)),
            Some((at, of)) => Some(Position::within(read(at)?, read(of)?)),
        }
    }
}

impl Ord for Position {
    fn cmp(&self, other: &Position) -> Ordering {
        let place = |position: &Position| (position.at, position.of.is_none(), position.of.unwrap_or(Stamp::MAX));
        place(self).cmp(&place(other))
    }
}

impl PartialOrd for Position {
    fn partial_cmp(&self, other: &Position) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn show(stamp: Stamp) -> String {
        format!("{stamp:?}")
    }

    fn read(text: &str) -> Option<Stamp> {
        let mut bytes = [0; 12];
        if text.len() != 24 || !text.is_ascii() {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Stamp(bytes))
    }

    #[test]
    fn what_a_grant_brings_comes_before_its_sequence() {
        let [one, two, three] = [1, 2, 3].map(Stamp::of);
        let sorted = [
            Position::BEGIN,
            Position::at(one),
            Position::within(two, one),
            Position::within(two, two),
            Position::within(two, Stamp::MAX),
            Position::at(two),
            Position::within(three, one),
            Position::at(three),
        ];
        assert!(sorted.is_sorted() && sorted.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(Position::held_since(two, one), Position::within(two, one));
        assert_eq!(Position::held_since(two, two), Position::at(two));
        assert_eq!(Position::held_since(two, three), Position::at(three));
        assert_eq!(Stamp::of(258), Stamp([0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0]));
    }

    #[test]
    fn other_texts_are_none() {
        let one = show(Stamp::of(1));
        for text in ["", ":", "1", "1:2", &format!(":{one}"), &format!("{one}:"), &format!("{one}::{one}"), "a:b:c"] {
            assert_eq!(Position::parse(text, read), None, "{text}");
        }
        assert_eq!(Position::parse(&one, read), Some(Position::at(Stamp::of(1))));
    }

    proptest! {
        #[test]
        fn texts_are_read(at in any::<[u8; 12]>(), of in any::<Option<[u8; 12]>>()) {
            let position = Position { at: Stamp(at), of: of.map(Stamp) };
            prop_assert_eq!(Position::parse(&position.text(show), read), Some(position));
        }

        #[test]
        fn anything_may_be_asked(text in any::<String>()) {
            let _ = Position::parse(&text, read);
        }
    }
}
