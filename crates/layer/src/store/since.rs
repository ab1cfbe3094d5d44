//! Since when a document's winner is in its channels, and since when there is the document: kept in its info, so that no write and no
//! reader reads anything for it but the names of the channels, which stand with the revision where they are too many.
//!
//! Of each channel it is the change with which the document entered it, and has not left it since.

use std::collections::{BTreeMap, BTreeSet};

use flatbed_channels::Stamp;

use crate::store::records::Info;
use crate::store::seq::STAMP_BYTES;

/// Since when in one channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// With the change that the info is of.
    Own,
    Unknown,
    Before(Stamp),
}

/// One for each channel that the winner is in, in the order of their names; and one behind them of the document itself. A revision's rows
/// are bounded, so these are some 600 of 14 bytes at most.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ChannelsSince(Box<[At]>);

/// What of the places in an info stands for [`At::Own`] and [`At::Unknown`]; stamps are numbered from here on.
const OWN: u32 = 0;
const UNKNOWN: u32 = 1;
const FIRST: u32 = 2;

impl ChannelsSince {
    /// As it stands in an info; what cannot be read is not known.
    pub(crate) fn decode(places: Vec<u32>, stamps: &[u8]) -> ChannelsSince {
        let (stamps, _) = stamps.as_chunks::<STAMP_BYTES>();
        let at = |place: u32| match place {
            OWN => At::Own,
            UNKNOWN => At::Unknown,
            number => {
                let stamp = usize::try_from(number - FIRST).ok().and_then(|number| stamps.get(number));
                stamp.map_or(At::Unknown, |stamp| At::Before(Stamp(*stamp)))
            }
        };
        ChannelsSince(places.into_iter().map(at).collect())
    }

    /// Stamps, each once, in order.
    fn distinct(&self) -> Vec<Stamp> {
        let stamps = self.0.iter().filter_map(|at| if let At::Before(stamp) = at { Some(*stamp) } else { None });
        stamps.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// As [`ChannelsSince::decode`] reads it, with [`ChannelsSince::stamps`].
    pub(crate) fn places(&self) -> Vec<u32> {
        let distinct = self.distinct();
        let place = |at: &At| match at {
            At::Own => OWN,
            At::Unknown => UNKNOWN,
            At::Before(stamp) => {
                let number = distinct.binary_search(stamp).ok().and_then(|number| u32::try_from(number).ok());
                number.map_or(UNKNOWN, |number| FIRST + number)
            }
        };
        self.0.iter().map(place).collect()
    }

    pub(crate) fn stamps(&self) -> Vec<u8> {
        self.distinct().iter().flat_map(|stamp| stamp.0).collect()
    }

    /// How many stamps it has.
    pub(crate) fn count(&self) -> usize {
        self.distinct().len()
    }

    /// Of channels one by one, and of the document behind them, for tests.
    #[cfg(test)]
    pub(crate) fn known(each: impl Iterator<Item = Option<Stamp>>) -> ChannelsSince {
        ChannelsSince(each.map(|stamp| stamp.map_or(At::Unknown, At::Before)).collect())
    }

    /// Behind a change of a document from what `old` says, with which it is in these channels: `was_in` and `is_in` are all before it and
    /// behind it.
    pub(crate) fn behind(old: Option<&Info>, was_in: &BTreeSet<String>, is_in: &BTreeSet<String>) -> ChannelsSince {
        let known = |at: Option<Stamp>| at.map_or(At::Unknown, At::Before);
        let was = old.into_iter().flat_map(|old| since_each(old, was_in));
        let was: BTreeMap<&str, At> = was.map(|(channel, at)| (channel, known(at))).collect();
        // One that is entered now was seen by nobody before.
        let entered = old.filter(|old| old.routed.channels.is_some());
        let born = entered.map_or(At::Own, |old| known(born(old)));
        let at = |channel: &String| was.get(channel.as_str()).copied().unwrap_or(At::Own);
        ChannelsSince(is_in.iter().map(at).chain([born]).collect())
    }

    /// Whether it is one that an info of so many channels and of this sequence may have.
    pub(crate) fn is_sound(&self, channels: usize, seq: Stamp) -> bool {
        let is_before = |at: &At| !matches!(at, At::Before(stamp) if *stamp >= seq);
        self.0.len() == channels + 1 && self.0.iter().all(is_before)
    }

    fn at(&self, place: usize, own: [u8; STAMP_BYTES]) -> Option<Stamp> {
        match self.0.get(place)? {
            At::Own => Some(Stamp(own)),
            At::Unknown => None,
            At::Before(stamp) => Some(*stamp),
        }
    }
}

/// Since when there is a document, as far as it is entered in channels and that is known.
pub(crate) fn born(info: &Info) -> Option<Stamp> {
    let since = &info.routed.since;
    info.routed.channels.as_ref().and_then(|_| since.at(since.0.len().checked_sub(1)?, info.stamp))
}

/// Since when the winner is in each of its channels, where that is known. `channels`: all of them, be they named in the info or not.
pub(crate) fn since_each<'i, 'c>(
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
        let since = ChannelsSince(Box::new([At::Before(a), At::Own, At::Unknown, At::Before(b), At::Before(a)]));
        assert_eq!((since.places(), since.count()), (vec![3, 0, 1, 2, 3], 2));
        assert_eq!(since.stamps(), [b.0, a.0].concat());
        assert_eq!(ChannelsSince::decode(since.places(), &since.stamps()), since);
        // A stamp that is not there, and one that is cut.
        assert_eq!(
            *ChannelsSince::decode(vec![2, 3, u32::MAX], &[9; 13]).0,
            [At::Before(Stamp([9; 12])), At::Unknown, At::Unknown]
        );
        assert_eq!(ChannelsSince::decode(Vec::new(), &[]), ChannelsSince::default());
    }
}
