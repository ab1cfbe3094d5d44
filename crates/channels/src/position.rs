//! Positions in feeds.

use std::cmp::Ordering;
use std::fmt;

/// A commit in an incarnation of a database: the store's epoch (4 bytes), the versionstamp (10) and a user version (2),
/// which sort in the order of commits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp(pub [u8; 16]);

impl Stamp {
    /// Before the first commit.
    pub const ZERO: Stamp = Stamp([0; 16]);

    /// After the last commit.
    pub const MAX: Stamp = Stamp([0xff; 16]);

    pub(crate) fn before(self) -> Stamp {
        Stamp::of_u128(self.u128().saturating_sub(1))
    }

    pub(crate) fn behind(self) -> Stamp {
        Stamp::of_u128(self.u128().saturating_add(1))
    }

    fn u128(self) -> u128 {
        u128::from_be_bytes(self.0)
    }

    fn of_u128(number: u128) -> Stamp {
        Stamp(number.to_be_bytes())
    }

    /// A stamp from a number, for tests and for stores without versionstamps.
    pub const fn of(number: u64) -> Stamp {
        let [a, b, c, d, e, f, g, h] = number.to_be_bytes();
        Stamp([0, 0, 0, 0, a, b, c, d, e, f, g, h, 0, 0, 0, 0])
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A position in a user's feed. Rows are sorted by it.
///
/// Most positions are a sequence alone. The documents that a channel has when it is granted come under the sequence
/// of the grant, in the order of their commits, before the rows of that sequence itself: `G:n` before `G`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Position {
    /// The sequence, or that of the grant or loss that caused the row.
    pub at: Stamp,
    /// The row's own sequence, inside a grant or loss.
    pub of: Option<Stamp>,
}

impl Position {
    /// Before the first row.
    pub const BEGIN: Position = Position { at: Stamp::ZERO, of: None };

    /// The position of a sequence.
    pub const fn at(at: Stamp) -> Position {
        Position { at, of: None }
    }

    /// A position inside the rows of a grant or loss.
    pub const fn within(at: Stamp, of: Stamp) -> Position {
        Position { at, of: Some(of) }
    }

    /// The position of a channel's row for a user who holds the channel since `since`. A document that grants the
    /// channel and is in it has its own sequence as its position.
    pub fn held_since(since: Stamp, row: Stamp) -> Position {
        if row >= since { Position::at(row) } else { Position::within(since, row) }
    }

    /// Formats the position, with `show` for each sequence.
    pub fn text(&self, show: impl Fn(Stamp) -> String) -> String {
        match self.of {
            None => show(self.at),
            Some(of) => format!("{}:{}", show(self.at), show(of)),
        }
    }

    /// Parses the result of [`Position::text`]. Sync Gateway's forms with three parts, which describe a lag of its
    /// caches, are not supported.
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
        let mut bytes = [0; 16];
        if text.len() != 32 || !text.is_ascii() {
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
        assert_eq!(Stamp::of(258), Stamp([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0]));
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
        fn texts_are_read(at in any::<[u8; 16]>(), of in any::<Option<[u8; 16]>>()) {
            let position = Position { at: Stamp(at), of: of.map(Stamp) };
            prop_assert_eq!(Position::parse(&position.text(show), read), Some(position));
        }

        #[test]
        fn anything_may_be_asked(text in any::<String>()) {
            let _ = Position::parse(&text, read);
        }
    }
}
