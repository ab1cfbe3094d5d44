//! Since when a document's winner has been in each of its channels, and since when the document exists. The info stores
//! both, so that writes and readers read nothing more for them, except the names of the channels, which lie with the
//! revision if there are too many.
//!
//! For each channel it is the change with which the document entered the channel and after which it has not left.

use std::collections::{BTreeMap, BTreeSet};

use flatbed_channels::Stamp;

use crate::records::Info;
use crate::seq::STAMP_BYTES;

/// The start of a stay in one channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StayStart {
    /// The change that wrote the info.
    Own,
    Unknown,
    Before(Stamp),
}

/// The starts for each of the winner's channels, in the order of their names, and last that of the document itself. A
/// revision's rows are bounded, so there are at most some 600 of 18 bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChannelsSince(Box<[StayStart]>);

/// The stored numbers of [`StayStart::Own`] and [`StayStart::Unknown`]. Stamps are numbered behind them.
const OWN: u32 = 0;
const UNKNOWN: u32 = 1;
const FIRST: u32 = 2;

impl ChannelsSince {
    /// Decodes the stored form. Unreadable parts count as unknown.
    pub fn decode(places: Vec<u32>, stamps: &[u8]) -> ChannelsSince {
        let (stamps, _) = stamps.as_chunks::<STAMP_BYTES>();
        let at = |place: u32| match place {
            OWN => StayStart::Own,
            UNKNOWN => StayStart::Unknown,
            number => {
                let stamp = usize::try_from(number - FIRST).ok().and_then(|number| stamps.get(number));
                stamp.map_or(StayStart::Unknown, |stamp| StayStart::Before(Stamp(*stamp)))
            }
        };
        ChannelsSince(places.into_iter().map(at).collect())
    }

    fn distinct(&self) -> Vec<Stamp> {
        let stamps = self.0.iter().filter_map(|at| if let StayStart::Before(stamp) = at { Some(*stamp) } else { None });
        stamps.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Encodes the places that [`ChannelsSince::decode`] reads together with [`ChannelsSince::stamps`].
    pub fn places(&self) -> Vec<u32> {
        let distinct = self.distinct();
        let place = |at: &StayStart| match at {
            StayStart::Own => OWN,
            StayStart::Unknown => UNKNOWN,
            StayStart::Before(stamp) => {
                let number = distinct.binary_search(stamp).ok().and_then(|number| u32::try_from(number).ok());
                number.map_or(UNKNOWN, |number| FIRST + number)
            }
        };
        self.0.iter().map(place).collect()
    }

    pub fn stamps(&self) -> Vec<u8> {
        self.distinct().iter().flat_map(|stamp| stamp.0).collect()
    }

    /// Returns the number of distinct stamps.
    pub fn count(&self) -> usize {
        self.distinct().len()
    }

    /// Creates it from the starts of the channels and, last, of the document. For tests.
    pub fn known(each: impl Iterator<Item = Option<Stamp>>) -> ChannelsSince {
        ChannelsSince(each.map(|stamp| stamp.map_or(StayStart::Unknown, StayStart::Before)).collect())
    }

    /// Returns the starts after a change of a document, from `old`, the info before the change. `was_in` and `is_in`
    /// are all channels before and after the change.
    pub fn behind(old: Option<&Info>, was_in: &BTreeSet<String>, is_in: &BTreeSet<String>) -> ChannelsSince {
        let known = |at: Option<Stamp>| at.map_or(StayStart::Unknown, StayStart::Before);
        let was = old.into_iter().flat_map(|old| since_each(old, was_in));
        let was: BTreeMap<&str, StayStart> = was.map(|(channel, at)| (channel, known(at))).collect();
        // A document that is routed for the first time was visible to no user before.
        let entered = old.filter(|old| old.routed.channels.is_some());
        let born = entered.map_or(StayStart::Own, |old| known(born(old)));
        let at = |channel: &String| was.get(channel.as_str()).copied().unwrap_or(StayStart::Own);
        ChannelsSince(is_in.iter().map(at).chain([born]).collect())
    }

    /// Returns whether an info with this many channels and this sequence can have these starts.
    pub fn is_sound(&self, channels: usize, seq: Stamp) -> bool {
        let is_before = |at: &StayStart| !matches!(at, StayStart::Before(stamp) if *stamp >= seq);
        self.0.len() == channels + 1 && self.0.iter().all(is_before)
    }

    fn at(&self, place: usize, own: [u8; STAMP_BYTES]) -> Option<Stamp> {
        match self.0.get(place)? {
            StayStart::Own => Some(Stamp(own)),
            StayStart::Unknown => None,
            StayStart::Before(stamp) => Some(*stamp),
        }
    }
}

/// Returns since when the document exists, if it is routed and this is known.
pub fn born(info: &Info) -> Option<Stamp> {
    let since = &info.routed.since;
    info.routed.channels.as_ref().and_then(|_| since.at(since.0.len().checked_sub(1)?, info.stamp))
}

/// Returns the start of the winner's stay in each of `channels`, where known. `channels`: all of its channels, whether
/// or not the info names them.
pub fn since_each<'i, 'c>(
    info: &'i Info,
    channels: &'c BTreeSet<String>,
) -> impl Iterator<Item = (&'c str, Option<Stamp>)> + use<'i, 'c> {
    let (since, own) = (&info.routed.since, info.stamp);
    channels.iter().enumerate().map(move |(place, channel)| (channel.as_str(), since.at(place, own)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let [a, b] = [Stamp::of(7), Stamp::of(5)];
        let since = ChannelsSince(Box::new([
            StayStart::Before(a),
            StayStart::Own,
            StayStart::Unknown,
            StayStart::Before(b),
            StayStart::Before(a),
        ]));
        assert_eq!((since.places(), since.count()), (vec![3, 0, 1, 2, 3], 2));
        assert_eq!(since.stamps(), [b.0, a.0].concat());
        assert_eq!(ChannelsSince::decode(since.places(), &since.stamps()), since);
        // One number without a stamp, and one truncated stamp.
        assert_eq!(
            *ChannelsSince::decode(vec![2, 3, u32::MAX], &[9; 17]).0,
            [StayStart::Before(Stamp([9; 16])), StayStart::Unknown, StayStart::Unknown]
        );
        assert_eq!(ChannelsSince::decode(Vec::new(), &[]), ChannelsSince::default());
    }
}
