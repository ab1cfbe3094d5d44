//! Since when a document's winner is in its channels, and since when there is the document: kept in its info, so that no write and no
//! reader reads anything for it.
//!
//! Of each channel it is the change with which the document entered it, and has not left it since. Where an info does not name the
//! channels, being too many, it is one for all of them: the change since which they are the same. Documents that were written before
//! this was kept are in channels of which nobody knows since when.

use std::collections::BTreeSet;

use flatbed_channels::Stamp;

use crate::store::proto;
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

/// One for each channel that the info names, in their order, or one for all; and one behind them of the document itself, which infos
/// that were written before that was kept do not have.
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
    fn distinct(&self) -> BTreeSet<Stamp> {
        self.0.iter().filter_map(|at| if let At::Before(stamp) = at { Some(*stamp) } else { None }).collect()
    }

    /// As [`ChannelsSince::decode`] reads it, with [`ChannelsSince::stamps`].
    pub(crate) fn places(&self) -> Vec<u32> {
        let distinct = self.distinct();
        let place = |at: &At| match at {
            At::Own => OWN,
            At::Unknown => UNKNOWN,
            At::Before(stamp) => u32::try_from(distinct.range(..stamp).count()).map_or(UNKNOWN, |at| FIRST + at),
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
    /// behind it, `named` what the info says of the latter.
    pub(crate) fn behind(
        old: Option<&Info>,
        was_in: &BTreeSet<String>,
        is_in: &BTreeSet<String>,
        named: &proto::ChannelNames,
    ) -> ChannelsSince {
        let known = |channel: &str| old.and_then(|old| since_of(old, channel)).map_or(At::Unknown, At::Before);
        // One that is entered now was seen by nobody before.
        let entered = old.filter(|old| old.routed.channels.is_some());
        let born = entered.map_or(At::Own, |old| born(old).map_or(At::Unknown, At::Before));
        if !named.are_elsewhere {
            let at = |channel: &String| if was_in.contains(channel) { known(channel) } else { At::Own };
            return ChannelsSince(is_in.iter().map(at).chain([born]).collect());
        }
        // Whether those of before were named follows from what they are.
        let is_same = !is_in.is_empty() && is_in == was_in;
        let first = is_in.first().filter(|_| is_same);
        ChannelsSince(Box::new([first.map_or(At::Own, |first| known(first)), born]))
    }

    /// Whether it is one that an info of these channels and of this sequence may have.
    pub(crate) fn is_sound(&self, named: &proto::ChannelNames, seq: Stamp) -> bool {
        let count = if named.are_elsewhere { 1 } else { named.names.len() };
        let is_before = |at: &At| !matches!(at, At::Before(stamp) if *stamp >= seq);
        (self.0.is_empty() || [count, count + 1].contains(&self.0.len())) && self.0.iter().all(is_before)
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
    let named = info.routed.channels.as_ref()?;
    info.routed.since.at(if named.are_elsewhere { 1 } else { named.names.len() }, info.stamp)
}

/// Since when the winner is in one of its channels, if that is known.
pub(crate) fn since_of(info: &Info, channel: &str) -> Option<Stamp> {
    let named = info.routed.channels.as_ref()?;
    let place = match named.are_elsewhere {
        true => 0,
        false => named.names.binary_search_by(|name| name.as_str().cmp(channel)).ok()?,
    };
    info.routed.since.at(place, info.stamp)
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
