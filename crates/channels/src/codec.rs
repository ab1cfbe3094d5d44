//! Values of keys, byte by byte. They are compact, since each document has a value for each of its channels.
//!
//! A text is its length, as a varint, and its bytes. A varint has seven bits per byte, the lowest first, with the
//! eighth bit set in all bytes but the last. A revision is its generation as a varint; then `00` and 16 bytes if its
//! hash is 32 hexadecimal digits in lower case, otherwise `01` and the hash as a text.
//!
//! | value | bytes |
//! |---|---|
//! | [`ChannelEntry`] | `10` and flags (1 deleted, 2 removed, 4 has channels, 8 has an expiry); the document's id as a text; the revision; with flag 4 the number of channels, a varint, and each as a text; with flag 8 the expiry, a varint |
//! | [`ChannelDeparture`] | the stamp, 16 bytes; `10` and flags (1 deleted, 2 has the stamp of entry); the revision; with flag 2 the stamp of entry, 16 bytes |
//! | [`Periods`] | the newest stamp, 16 bytes: the end of the newest period, or its beginning if it is open; `10` and the flag 1, open; the beginning of an ended newest period, 16 bytes; older periods, the newest first, each as beginning and end, 16 bytes each |
//!
//! Stamps come first, so that SET_VERSIONSTAMPED_VALUE can write them.

use crate::change::ChannelDeparture;
use crate::held::{PERIODS_MAX, Period, Periods};
use crate::position::Stamp;

/// The format of values, 1, in the upper half of a byte with flags.
const FORMAT: u8 = 0x10;
const DELETED: u8 = 1;
const REMOVED: u8 = 2;
const WITH_CHANNELS: u8 = 4;
const WITH_END: u8 = 8;

/// The flag of [`ChannelDeparture`] for a known entry into the channel.
const WITH_SINCE: u8 = 2;

/// The flag of periods for an open newest one.
const OPEN: u8 = 1;

const MD5: u8 = 0;
const TEXT: u8 = 1;

/// The most channels that an entry names, and the most bytes of their names.
const NAMED_MAX: usize = 16;
const NAMED_BYTES_MAX: usize = 200;

/// A document in a channel, at the sequence in the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelEntry {
    /// The document's id.
    pub doc: String,
    /// The winning revision at that time.
    pub rev: String,
    /// True if that is a tombstone.
    pub deleted: bool,
    /// True if the document left the channel with this change.
    pub removed: bool,
    /// All channels of the document at that time. `None`: more than an entry names; they are stored with the
    /// revision.
    pub channels: Option<Vec<String>>,
    /// The document's expiry, in milliseconds of Unix time.
    pub ends_at_ms: Option<u64>,
}

/// A stored value is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a value of channels cannot be read")]
pub struct BadValue;

impl ChannelEntry {
    /// Creates an entry, which names the document's channels if they are few.
    pub fn new<'a>(
        doc: impl Into<String>,
        rev: impl Into<String>,
        deleted: bool,
        removed: bool,
        channels: impl ExactSizeIterator<Item = &'a str> + Clone,
    ) -> ChannelEntry {
        let are_few = channels.len() <= NAMED_MAX && channels.clone().map(str::len).sum::<usize>() <= NAMED_BYTES_MAX;
        let channels = are_few.then(|| channels.map(str::to_owned).collect());
        ChannelEntry { doc: doc.into(), rev: rev.into(), deleted, removed, channels, ends_at_ms: None }
    }

    /// Encodes the entry.
    pub fn encode(&self) -> Vec<u8> {
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(self.deleted, DELETED)
            | flag(self.removed, REMOVED)
            | flag(self.channels.is_some(), WITH_CHANNELS)
            | flag(self.ends_at_ms.is_some(), WITH_END);
        let mut out = vec![FORMAT | flags];
        put_text(&mut out, &self.doc);
        put_rev(&mut out, &self.rev);
        if let Some(channels) = &self.channels {
            put_varint(&mut out, channels.len() as u64);
            channels.iter().for_each(|channel| put_text(&mut out, channel));
        }
        if let Some(at) = self.ends_at_ms {
            put_varint(&mut out, at);
        }
        out
    }

    /// Decodes the result of [`ChannelEntry::encode`].
    pub fn decode(bytes: &[u8]) -> Result<ChannelEntry, BadValue> {
        let mut rest = bytes;
        let flags = take_flags(&mut rest, DELETED | REMOVED | WITH_CHANNELS | WITH_END)?;
        let (doc, rev) = (take_text(&mut rest)?, take_rev(&mut rest)?);
        let mut channels = None;
        if flags & WITH_CHANNELS != 0 {
            let count = take_varint(&mut rest)?;
            if count > NAMED_MAX as u64 {
                return Err(BadValue);
            }
            channels = Some((0..count).map(|_| take_text(&mut rest)).collect::<Result<_, _>>()?);
        }
        let ends_at_ms = if flags & WITH_END != 0 { Some(take_varint(&mut rest)?) } else { None };
        let (deleted, removed) = (flags & DELETED != 0, flags & REMOVED != 0);
        let entry = ChannelEntry { doc, rev, deleted, removed, channels, ends_at_ms };
        if rest.is_empty() { Ok(entry) } else { Err(BadValue) }
    }
}

impl ChannelDeparture {
    /// Encodes the departure.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.seq.0.to_vec();
        out.push(FORMAT | u8::from(self.deleted) | if self.since.is_some() { WITH_SINCE } else { 0 });
        put_rev(&mut out, &self.rev);
        if let Some(since) = &self.since {
            out.extend_from_slice(&since.0);
        }
        out
    }

    /// Decodes the result of [`ChannelDeparture::encode`].
    pub fn decode(bytes: &[u8]) -> Result<ChannelDeparture, BadValue> {
        let mut rest = bytes;
        let seq = take_stamp(&mut rest)?;
        let flags = take_flags(&mut rest, DELETED | WITH_SINCE)?;
        let rev = take_rev(&mut rest)?;
        let since = if flags & WITH_SINCE != 0 { Some(take_stamp(&mut rest)?) } else { None };
        let left = ChannelDeparture { seq, rev, deleted: flags & DELETED != 0, since };
        if rest.is_empty() { Ok(left) } else { Err(BadValue) }
    }
}

impl Periods {
    /// Encodes the periods; without periods there are no bytes.
    pub fn encode(&self) -> Vec<u8> {
        let Some((newest, older)) = self.all().split_last() else { return Vec::new() };
        let mut out = newest.until.unwrap_or(newest.from).0.to_vec();
        match newest.until {
            None => out.push(FORMAT | OPEN),
            Some(_) => {
                out.push(FORMAT);
                out.extend_from_slice(&newest.from.0);
            }
        }
        for period in older.iter().rev() {
            out.extend_from_slice(&period.from.0);
            out.extend_from_slice(&period.until.unwrap_or(period.from).0);
        }
        out
    }

    /// Decodes the result of [`Periods::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Periods, BadValue> {
        if bytes.is_empty() {
            return Ok(Periods::default());
        }
        let mut rest = bytes;
        let newest = take_stamp(&mut rest)?;
        let is_open = take_flags(&mut rest, OPEN)? == OPEN;
        let mut periods = vec![match is_open {
            true => Period { from: newest, until: None },
            false => Period { from: take_stamp(&mut rest)?, until: Some(newest) },
        }];
        while !rest.is_empty() && periods.len() < PERIODS_MAX {
            periods.push(Period { from: take_stamp(&mut rest)?, until: Some(take_stamp(&mut rest)?) });
        }
        if rest.is_empty() { Ok(Periods::new(periods)) } else { Err(BadValue) }
    }
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Encodes a revision. A text without a generation is kept as it is, with generation 0.
fn put_rev(out: &mut Vec<u8>, rev: &str) {
    let parts = rev.split_once('-').and_then(|(generation, hash)| {
        let number: u64 = generation.parse().ok()?;
        (number > 0 && number.to_string() == generation).then_some((number, hash))
    });
    let (generation, hash) = parts.unwrap_or((0, rev));
    put_varint(out, generation);
    match md5(hash) {
        Some(md5) => {
            out.push(MD5);
            out.extend_from_slice(&md5);
        }
        None => {
            out.push(TEXT);
            put_text(out, hash);
        }
    }
}

fn md5(hash: &str) -> Option<[u8; 16]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, []) = hash.as_bytes().as_chunks::<2>() else { return None };
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect::<Option<Vec<_>>>()?;
    bytes.try_into().ok()
}

fn take<'b>(rest: &mut &'b [u8], count: usize) -> Result<&'b [u8], BadValue> {
    let (found, others) = rest.split_at_checked(count).ok_or(BadValue)?;
    *rest = others;
    Ok(found)
}

fn take_stamp(rest: &mut &[u8]) -> Result<Stamp, BadValue> {
    take(rest, 16)?.try_into().map(Stamp).map_err(|_| BadValue)
}

fn take_byte(rest: &mut &[u8]) -> Result<u8, BadValue> {
    take(rest, 1)?.first().copied().ok_or(BadValue)
}

/// Decodes flags. Unknown ones belong to a newer program.
fn take_flags(rest: &mut &[u8], known: u8) -> Result<u8, BadValue> {
    let flags = take_byte(rest)?.checked_sub(FORMAT).ok_or(BadValue)?;
    if flags & !known == 0 { Ok(flags) } else { Err(BadValue) }
}

fn take_varint(rest: &mut &[u8]) -> Result<u64, BadValue> {
    let mut number: u64 = 0;
    for shift in (0..64).step_by(7) {
        let byte = take_byte(rest)?;
        let bits = u64::from(byte & 0x7f);
        if (bits << shift) >> shift != bits {
            return Err(BadValue);
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(BadValue)
}

fn take_text(rest: &mut &[u8]) -> Result<String, BadValue> {
    let length = usize::try_from(take_varint(rest)?).map_err(|_| BadValue)?;
    owned(take(rest, length)?)
}

fn owned(bytes: &[u8]) -> Result<String, BadValue> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| BadValue)
}

fn take_rev(rest: &mut &[u8]) -> Result<String, BadValue> {
    let generation = take_varint(rest)?;
    let hash = match take_byte(rest)? {
        MD5 => take(rest, 16)?.iter().map(|byte| format!("{byte:02x}")).collect(),
        TEXT => take_text(rest)?,
        _ => return Err(BadValue),
    };
    Ok(if generation == 0 { hash } else { format!("{generation}-{hash}") })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_are_as_documented() {
        let entry = ChannelEntry::new("d", "2-00ff00000000000000000000000000aa", true, true, ["A", "!"].into_iter());
        let bytes = entry.encode();
        let expected = b"\x17\x01d\x02\x00\x00\xff\0\0\0\0\0\0\0\0\0\0\0\0\0\xaa\x02\x01A\x01!";
        assert_eq!(bytes, expected);
        let entry = ChannelEntry { channels: None, deleted: false, removed: false, rev: "300-b".into(), ..entry };
        assert_eq!(entry.encode(), b"\x10\x01d\xac\x02\x01\x01b");
        let entry = ChannelEntry { ends_at_ms: Some(300), ..entry };
        assert_eq!(entry.encode(), b"\x18\x01d\xac\x02\x01\x01b\xac\x02");
        let left = ChannelDeparture { seq: Stamp([7; 16]), rev: "1-b".into(), deleted: true, since: None };
        assert_eq!(left.encode(), [&[7; 16][..], b"\x11\x01\x01\x01b"].concat());
        let left = ChannelDeparture { deleted: false, since: Some(Stamp([8; 16])), ..left };
        assert_eq!(left.encode(), [&[7; 16][..], b"\x12\x01\x01\x01b", &[8; 16]].concat());
        let mut periods = Periods::since(Stamp([1; 16]));
        assert_eq!(periods.encode(), [&[1; 16][..], &[0x11]].concat());
        periods = periods.taken(Stamp([2; 16]));
        assert_eq!(periods.encode(), [&[2; 16][..], &[0x10], &[1; 16]].concat());
        periods = periods.given(Stamp([3; 16]));
        assert_eq!(periods.encode(), [&[3; 16][..], &[0x11], &[1; 16], &[2; 16]].concat());
    }

    #[test]
    fn what_is_more_than_an_entry_names_is_left_out() {
        let of = |count: usize, length: usize| {
            let names: Vec<String> = (0..count).map(|at| format!("{at:0length$}")).collect();
            ChannelEntry::new("d", "1-a", false, false, names.iter().map(String::as_str))
                .channels
                .map(|names| names.len())
        };
        assert_eq!(
            (of(0, 1), of(16, 12), of(17, 12), of(1, 200), of(1, 201)),
            (Some(0), Some(16), None, Some(1), None)
        );
    }

    #[test]
    fn other_bytes_are_refused() {
        let entry = ChannelEntry::new("d", "1-a", false, false, ["A"].into_iter()).encode();
        for cut in 0..entry.len() {
            assert_eq!(ChannelEntry::decode(&entry[..cut]), Err(BadValue), "{cut}");
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = entry.clone();
            bytes[at] = byte;
            ChannelEntry::decode(&bytes)
        };
        assert_eq!(with(0, 0x24), Err(BadValue));
        assert_eq!(with(0, 0x04), Err(BadValue));
        assert_eq!(with(2, 0xff), Err(BadValue));
        assert_eq!(with(4, 2), Err(BadValue));
        assert_eq!(ChannelEntry::decode(&[&entry[..], b"x"].concat()), Err(BadValue));
        let left = ChannelDeparture { seq: Stamp::ZERO, rev: "1-a".into(), deleted: false, since: None }.encode();
        assert_eq!(ChannelDeparture::decode(&[&left[..], b"x"].concat()), Err(BadValue));
        assert_eq!((Periods::decode(&[]), Periods::decode(&[0; 15])), (Ok(Periods::default()), Err(BadValue)));
        let many = |count: usize| Periods::decode(&[&[9; 16][..], &[0x11], &[0; 32].repeat(count)].concat());
        assert!(many(PERIODS_MAX - 1).is_ok() && many(PERIODS_MAX) == Err(BadValue));
        // More than 64 bits, and more channels than an entry can hold.
        assert_eq!(take_varint(&mut &[0xff; 11][..]), Err(BadValue));
        let most = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(take_varint(&mut &most[..]), Ok(u64::MAX));
        assert_eq!(take_varint(&mut &[&most[..9], &[0x02][..]].concat()[..]), Err(BadValue));
        assert_eq!(ChannelEntry::decode(b"\x14\x01d\x01\x01\x01a\x11"), Err(BadValue));
    }

    fn rev() -> impl Strategy<Value = String> {
        prop_oneof![
            "[1-9][0-9]{0,14}-[0-9a-f]{32}",
            "[1-9]-.{0,5}",
            "[1-9]-[0-9A-F]{32}",
            "0-[0-9]{1,3}",
            "01-a",
            ".{0,8}"
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(doc in ".{0,300}", rev in rev(), flags in any::<[bool; 2]>(), channels in any::<Option<[String; 2]>>(), stamp in any::<[u8; 16]>(), ends_at_ms in any::<Option<u64>>()) {
            let [deleted, removed] = flags;
            let channels = channels.map(Vec::from);
            let entry = ChannelEntry { doc: doc.clone(), rev: rev.clone(), deleted, removed, channels, ends_at_ms };
            prop_assert_eq!(ChannelEntry::decode(&entry.encode()), Ok(entry));
            let left = ChannelDeparture { seq: Stamp(stamp), rev, deleted, since: removed.then_some(Stamp(stamp)) };
            prop_assert_eq!(ChannelDeparture::decode(&left.encode()), Ok(left));
            let mut periods = Periods::default();
            for at in 0..doc.len() as u64 % 20 {
                periods = if at % 2 == 0 { periods.given(Stamp::of(at + 1)) } else { periods.taken(Stamp::of(at + 1)) };
                prop_assert_eq!(Periods::decode(&periods.encode()), Ok(periods.clone()));
            }
        }

        #[test]
        fn anything_may_be_stored(mut bytes in any::<Vec<u8>>(), first in 0x10_u8..0x20) {
            let _ = (ChannelEntry::decode(&bytes), ChannelDeparture::decode(&bytes), Periods::decode(&bytes));
            bytes.insert(0, first);
            let _ = ChannelEntry::decode(&bytes);
        }
    }
}
