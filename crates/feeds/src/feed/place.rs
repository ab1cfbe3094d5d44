//! Positions of feeds.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use flatbed_channels::{Position, Stamp};
use flatbed_store::error::Refusal;
use flatbed_store::seq::{STAMP_BYTES, Seq};

/// A position in a feed, and the position of a row in it. Feeds of all documents use sequences alone.
///
/// In a feed of channels another change can cause a row, the grant of a channel. Such a row is positioned within the
/// sequence of its cause, before the change itself, and its text is both sequences with a colon between, `G:n`. Any
/// other text is the sequence's. Texts do not sort as the positions do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FeedPosition {
    /// The row's sequence, or that of its cause.
    at: Seq,
    /// The row's own sequence, if another change caused it.
    of: Option<[u8; STAMP_BYTES]>,
}

impl FeedPosition {
    /// Returns the position of the change `of` within the sequence `at` of its cause.
    pub fn within(at: Seq, of: Seq) -> FeedPosition {
        FeedPosition { at, of: Some(*of.stamp()) }
    }

    pub fn new(incarnation: u64, position: Position) -> FeedPosition {
        FeedPosition { at: Seq::new(incarnation, position.at.0), of: position.of.map(|of| of.0) }
    }

    /// Returns the position within an incarnation: the beginning if it is another one.
    pub fn position(&self, incarnation: u64) -> Position {
        if self.incarnation() != incarnation {
            return Position::BEGIN;
        }
        Position { at: Stamp(*self.at.stamp()), of: self.of.map(Stamp) }
    }

    /// Returns the sequence at which a feed of all documents continues without missing a change.
    pub fn seq(&self) -> Seq {
        match self.of {
            Some(of) => self.at.min(Seq::new(self.incarnation(), of)),
            None => self.at,
        }
    }

    /// Returns the number that tells the database from others that had its name.
    pub fn incarnation(&self) -> u64 {
        self.at.incarnation()
    }

    /// Appends the text. No character of it needs an escape in JSON or in a URL's query.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.at.write(out);
        if let Some(of) = self.of {
            out.push(b':');
            Seq::new(self.incarnation(), of).write(out);
        }
    }
}

impl From<Seq> for FeedPosition {
    fn from(at: Seq) -> FeedPosition {
        FeedPosition { at, of: None }
    }
}

impl PartialEq<Seq> for FeedPosition {
    fn eq(&self, other: &Seq) -> bool {
        *self == FeedPosition::from(*other)
    }
}

impl Ord for FeedPosition {
    fn cmp(&self, other: &FeedPosition) -> Ordering {
        let position = |place: &FeedPosition| (place.position(place.incarnation()), place.incarnation());
        position(self).cmp(&position(other))
    }
}

impl PartialOrd for FeedPosition {
    fn partial_cmp(&self, other: &FeedPosition) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for FeedPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of {
            Some(of) => write!(f, "{}:{}", self.at, Seq::new(self.incarnation(), of)),
            None => self.at.fmt(f),
        }
    }
}

impl FromStr for FeedPosition {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let Some((at, of)) = text.split_once(':') else { return Ok(text.parse::<Seq>()?.into()) };
        let (at, of): (Seq, Seq) = (at.parse()?, of.parse()?);
        if at.incarnation() != of.incarnation() {
            return Err(Refusal::InvalidSequence);
        }
        Ok(FeedPosition { at, of: Some(*of.stamp()) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place() -> impl Strategy<Value = FeedPosition> {
        let epoch = prop_oneof![Just(0), any::<u32>()];
        let stamp = (epoch, any::<u64>(), any::<u32>()).prop_map(|(epoch, version, order)| {
            let mut stamp = [0; STAMP_BYTES];
            stamp[..4].copy_from_slice(&epoch.to_be_bytes());
            stamp[4..12].copy_from_slice(&version.to_be_bytes());
            stamp[12..].copy_from_slice(&order.to_be_bytes());
            stamp
        });
        (any::<u64>(), stamp.clone(), prop::option::of(stamp))
            .prop_map(|(incarnation, at, of)| FeedPosition { at: Seq::new(incarnation, at), of })
    }

    proptest! {
        #[test]
        fn texts_are_read(place in place()) {
            prop_assert_eq!(place.to_string().parse::<FeedPosition>().unwrap(), place);
            let mut written = Vec::new();
            place.write(&mut written);
            prop_assert_eq!(written, place.to_string().into_bytes());
        }

        #[test]
        fn they_are_in_the_order_of_positions(a in place(), b in place()) {
            let b = FeedPosition { at: Seq::new(a.incarnation(), *b.at.stamp()), of: b.of };
            prop_assert_eq!(a.cmp(&b), a.position(a.incarnation()).cmp(&b.position(a.incarnation())));
            prop_assert!(a.seq() <= a.at && a.of.is_none_or(|of| *a.seq().stamp() <= of));
            prop_assert_eq!(FeedPosition::new(a.incarnation(), a.position(a.incarnation())), a);
            prop_assert_eq!(a.position(a.incarnation() ^ 1), Position::BEGIN);
        }

        #[test]
        fn foreign_texts_are_refused_without_a_panic(text in "[0-9a-f:-]{0,90}|.{0,20}") {
            let _ = text.parse::<FeedPosition>();
        }
    }

    #[test]
    fn refuses() {
        let seq = "0000000000000005-000000000000000700000000";
        assert_eq!(seq.parse::<FeedPosition>().unwrap(), seq.parse::<Seq>().unwrap());
        let other = "0000000000000005-000000000000000800000000";
        for text in [&format!("{seq}:"), &format!(":{seq}"), &format!("{seq}::{seq}"), &format!("{seq}:{other}"), ""] {
            assert!(text.parse::<FeedPosition>().is_err(), "{text}");
        }
        assert!(format!("{seq}:{seq}").parse::<FeedPosition>().is_ok());
    }
}
