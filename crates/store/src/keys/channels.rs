//! Keys of channels: the documents that are in them, the documents that left them, and the expiry of documents.
//! design/channels.md says what they are for.

use crate::error::Result;
use crate::keys::tuple::{
    TUPLE_STRING, bad_key, behind, put_int, put_stamp, put_text, stamped, take_int, take_stamp, take_text,
    take_text_at, under,
};
use crate::keys::{CHANNELS, KeyRange, Keys};
use crate::seq::Seq;

// Under {NS}/CHANNELS.
const ENTRIES: u64 = 0;
const DOCUMENTS: u64 = 1;
const LEFT: u64 = 2;
const ENDS: u64 = 3;
const FUNCTION: u64 = 4;
const RESYNC: u64 = 5;
// 6: no longer used.
const STAYS: u64 = 7;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChannelPart {
    /// A document that is or was in a channel, in commit order.
    Entry { channel: String, seq: Seq },
    /// A document that is in a channel, by document id.
    Document { channel: String, id: String },
    /// A channel that a document has left.
    Left { id: String, channel: String },
    /// A past stay of a document in a channel that it entered again.
    Stays { id: String, channel: String },
    /// The second of Unix time at which a document expires.
    End { second: u64, id: String },
    /// The sync function.
    Function,
    /// A resync.
    Resync,
    /// The documents of a resync from this id on.
    ResyncRange { first: String },
}

impl Keys {
    fn channel_part(&self, part: u64, first: &str) -> Vec<u8> {
        let mut key = self.two(CHANNELS, part);
        put_text(&mut key, TUPLE_STRING, first.as_bytes());
        key
    }

    fn channel_text(&self, part: u64, first: &str, second: &str) -> Vec<u8> {
        let mut key = self.channel_part(part, first);
        put_text(&mut key, TUPLE_STRING, second.as_bytes());
        key
    }

    fn channel_incarnation(&self, channel: &str, incarnation: u64) -> Vec<u8> {
        let mut key = self.channel_part(ENTRIES, channel);
        put_int(&mut key, incarnation);
        key
    }

    pub fn channel_entry(&self, channel: &str, seq: &Seq) -> Vec<u8> {
        let mut key = self.channel_incarnation(channel, seq.incarnation());
        put_stamp(&mut key, seq.stamp());
        key
    }

    /// Returns the key of an entry for SET_VERSIONSTAMPED_KEY.
    pub fn channel_entry_stamped(&self, channel: &str, incarnation: u64, epoch: u32, user_version: u16) -> Vec<u8> {
        stamped(self.channel_incarnation(channel, incarnation), epoch, user_version)
    }

    pub fn channel_entries(&self, channel: &str, incarnation: u64) -> KeyRange {
        under(&self.channel_incarnation(channel, incarnation))
    }

    /// Returns the range of those entries behind a sequence.
    pub fn channel_entries_after(&self, channel: &str, seq: &Seq) -> KeyRange {
        let mut begin = self.channel_entry(channel, seq);
        begin.push(0);
        KeyRange { begin, end: self.channel_entries(channel, seq.incarnation()).end }
    }

    pub fn channel_entry_seq(&self, key: &[u8]) -> Result<Seq> {
        match self.split_channels(key)? {
            ChannelPart::Entry { seq, .. } => Ok(seq),
            _ => Err(bad_key()),
        }
    }

    /// Returns the key whose presence puts a document into a channel.
    pub fn channel_document(&self, channel: &str, id: &str) -> Vec<u8> {
        self.channel_text(DOCUMENTS, channel, id)
    }

    pub fn channel_documents(&self, channel: &str) -> KeyRange {
        under(&self.channel_part(DOCUMENTS, channel))
    }

    pub fn channel_documents_all(&self) -> KeyRange {
        KeyRange { begin: self.two(CHANNELS, DOCUMENTS), end: self.two(CHANNELS, DOCUMENTS + 1) }
    }

    pub fn channel_document_id(&self, key: &[u8]) -> Result<String> {
        match self.split_channels(key)? {
            ChannelPart::Document { id, .. } => Ok(id),
            _ => Err(bad_key()),
        }
    }

    /// Returns the key whose presence records that a document left a channel.
    pub fn left(&self, id: &str, channel: &str) -> Vec<u8> {
        self.channel_text(LEFT, id, channel)
    }

    /// Returns the range of all channels that a document left.
    pub fn left_of(&self, id: &str) -> KeyRange {
        under(&self.channel_part(LEFT, id))
    }

    pub fn left_channel(&self, key: &[u8]) -> Result<String> {
        match self.split_channels(key)? {
            ChannelPart::Left { channel, .. } => Ok(channel),
            _ => Err(bad_key()),
        }
    }

    /// Returns the key of a document's past stays in a channel that it entered again.
    pub fn stays(&self, id: &str, channel: &str) -> Vec<u8> {
        self.channel_text(STAYS, id, channel)
    }

    /// Returns the range of a document's past stays in all channels.
    pub fn stays_of(&self, id: &str) -> KeyRange {
        under(&self.channel_part(STAYS, id))
    }

    pub fn stays_channel(&self, key: &[u8]) -> Result<String> {
        match self.split_channels(key)? {
            ChannelPart::Stays { channel, .. } => Ok(channel),
            _ => Err(bad_key()),
        }
    }

    /// Returns the key whose presence makes a document expire at a second of Unix time.
    pub fn end_of_document(&self, second: u64, id: &str) -> Vec<u8> {
        let mut key = self.two(CHANNELS, ENDS);
        put_int(&mut key, second);
        put_text(&mut key, TUPLE_STRING, id.as_bytes());
        key
    }

    /// Returns the range of the documents that expire at or before a second.
    pub fn ends_until(&self, second: u64) -> KeyRange {
        let mut end = self.two(CHANNELS, ENDS);
        put_int(&mut end, second.saturating_add(1));
        KeyRange { begin: self.two(CHANNELS, ENDS), end }
    }

    pub fn sync_function(&self) -> Vec<u8> {
        self.two(CHANNELS, FUNCTION)
    }

    /// Returns the key of a resync.
    pub fn resync(&self) -> Vec<u8> {
        self.two(CHANNELS, RESYNC)
    }

    /// Returns the key of the progress of a resync with the documents from this id on.
    pub fn resync_range(&self, first: &str) -> Vec<u8> {
        self.channel_part(RESYNC, first)
    }

    /// Returns the range of all progress of a resync.
    pub fn resync_ranges(&self) -> KeyRange {
        KeyRange { begin: [&self.resync()[..], &[0]].concat(), end: self.two(CHANNELS, RESYNC + 1) }
    }

    /// Returns the range of a resync and its progress.
    pub fn resync_all(&self) -> KeyRange {
        KeyRange { begin: self.resync(), end: self.two(CHANNELS, RESYNC + 1) }
    }

    /// Parses a key of channels.
    pub fn split_channels(&self, key: &[u8]) -> Result<ChannelPart> {
        let (part, rest) = take_int(behind(key, &self.one(CHANNELS)))?;
        Ok(match part {
            ENTRIES => {
                let (channel, rest) = take_text_at(rest)?;
                let (incarnation, rest) = take_int(rest)?;
                ChannelPart::Entry { channel, seq: Seq::new(incarnation, take_stamp(rest)?) }
            }
            DOCUMENTS => {
                let (channel, rest) = take_text_at(rest)?;
                ChannelPart::Document { channel, id: take_text(rest)? }
            }
            LEFT => {
                let (id, rest) = take_text_at(rest)?;
                ChannelPart::Left { id, channel: take_text(rest)? }
            }
            STAYS => {
                let (id, rest) = take_text_at(rest)?;
                ChannelPart::Stays { id, channel: take_text(rest)? }
            }
            ENDS => {
                let (second, rest) = take_int(rest)?;
                ChannelPart::End { second, id: take_text(rest)? }
            }
            FUNCTION if rest.is_empty() => ChannelPart::Function,
            RESYNC if rest.is_empty() => ChannelPart::Resync,
            RESYNC => ChannelPart::ResyncRange { first: take_text(rest)? },
            _ => return Err(bad_key()),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::keys::{RootKeys, Subspace};

    fn keys() -> Keys {
        RootKeys::new(b"fb").namespace(1)
    }

    #[test]
    fn keys_are_those_of_the_design() {
        let seq = Seq::new(65_536, *b"\0\0\0\x000123456789ab");
        let entry = b"\x01fb\0\x15\x03\x15\x01\x15\x11\x14\x02A\0\x17\x01\0\0\x14\x330123456789ab";
        assert_eq!(keys().channel_entry("A", &seq), entry);
        assert_eq!(keys().channel_document("A", "d"), b"\x01fb\0\x15\x03\x15\x01\x15\x11\x15\x01\x02A\0\x02d\0");
        assert_eq!(keys().left("d", "B"), b"\x01fb\0\x15\x03\x15\x01\x15\x11\x15\x02\x02d\0\x02B\0");
        assert_eq!(keys().end_of_document(256, "d"), b"\x01fb\0\x15\x03\x15\x01\x15\x11\x15\x03\x16\x01\0\x02d\0");
        assert_eq!(keys().sync_function(), b"\x01fb\0\x15\x03\x15\x01\x15\x11\x15\x04");
        assert_eq!(keys().resync(), b"\x01fb\0\x15\x03\x15\x01\x15\x11\x15\x05");
        assert_eq!(keys().resync_range("d"), b"\x01fb\0\x15\x03\x15\x01\x15\x11\x15\x05\x02d\0");
        assert_eq!(keys().stays("d", "B"), b"\x01fb\0\x15\x03\x15\x01\x15\x11\x15\x07\x02d\0\x02B\0");
        let stamped = keys().channel_entry_stamped("A", 65_536, 0, 0x0102);
        let place = entry.len() - 12;
        assert_eq!(stamped[..place], entry[..place]);
        assert_eq!(stamped[place..], [&[0xff; 10][..], &[1, 2], &(place as u32).to_le_bytes()].concat());
    }

    #[test]
    fn a_channel_is_a_range_of_its_own() {
        let is_in = |range: &KeyRange, key: &Vec<u8>| range.begin <= *key && *key < range.end;
        let [first, second] = [1, 2].map(|last| Seq::new(7, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]));
        for other in ["A\0", "A\0B", "AB", "B", "", "@"] {
            assert!(!is_in(&keys().channel_entries("A", 7), &keys().channel_entry(other, &first)), "{other:?}");
            assert!(!is_in(&keys().channel_documents("A"), &keys().channel_document(other, "d")), "{other:?}");
            assert!(!is_in(&keys().left_of("A"), &keys().left(other, "d")), "{other:?}");
            assert!(!is_in(&keys().stays_of("A"), &keys().stays(other, "d")), "{other:?}");
        }
        assert!(!is_in(&keys().channel_entries("A", 8), &keys().channel_entry("A", &first)));
        for first in ["", "\0", "d"] {
            assert!(is_in(&keys().resync_ranges(), &keys().resync_range(first)), "{first:?}");
        }
        assert!(!is_in(&keys().resync_ranges(), &keys().resync()) && is_in(&keys().resync_all(), &keys().resync()));
        let after = keys().channel_entries_after("A", &first);
        assert_eq!([first, second].map(|seq| is_in(&after, &keys().channel_entry("A", &seq))), [false, true]);
        let until = keys().ends_until(255);
        assert_eq!(
            [0, 255, 256].map(|second| is_in(&until, &keys().end_of_document(second, "d"))),
            [true, true, false]
        );
    }

    proptest! {
        #[test]
        fn what_is_put_is_taken(channel in ".{0,40}", id in ".{0,40}", second: u64, stamp: crate::seq::Stamp) {
            let (keys, seq) = (keys(), Seq::new(second, stamp));
            let (one, two) = (channel.clone(), id.clone());
            let built = [
                (keys.channel_entry(&one, &seq), ChannelPart::Entry { channel: one.clone(), seq }, keys.subspace(Subspace::Channels)),
                (keys.channel_document(&one, &two), ChannelPart::Document { channel: one.clone(), id: two.clone() }, keys.channel_documents_all()),
                (keys.left(&two, &one), ChannelPart::Left { id: two.clone(), channel: one.clone() }, keys.left_of(&two)),
                (keys.stays(&two, &one), ChannelPart::Stays { id: two.clone(), channel: one }, keys.stays_of(&two)),
                (keys.end_of_document(second, &two), ChannelPart::End { second, id: two }, keys.subspace(Subspace::Channels)),
            ];
            for (key, part, all) in built {
                prop_assert!(all.begin <= key && key < all.end && keys.check(Subspace::Channels, &key).is_ok());
                prop_assert_eq!(keys.split_channels(&key).unwrap(), part);
                // Longer keys are no keys of this layer.
                prop_assert!(keys.split_channels(&[&key[..], &[0x14]].concat()).is_err());
            }
            prop_assert_eq!(keys.channel_entry_seq(&keys.channel_entry(&channel, &seq)).unwrap(), seq);
            prop_assert_eq!(keys.channel_document_id(&keys.channel_document(&channel, &id)).unwrap(), id.clone());
            prop_assert_eq!(keys.left_channel(&keys.left(&id, &channel)).unwrap(), channel.clone());
            prop_assert_eq!(keys.stays_channel(&keys.stays(&id, &channel)).unwrap(), channel);
        }
    }
}
