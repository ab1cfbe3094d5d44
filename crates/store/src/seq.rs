//! Sequences: the positions of changes in the order of epochs and commits.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Refusal};

/// Length of a stamp in bytes: epoch (4), versionstamp (10), user version (2).
pub const STAMP_BYTES: usize = 16;

/// A commit: the epoch of the store, big-endian, then the commit's versionstamp and a user version. Stamps sort as the
/// changes were committed, also over restores into clusters whose versions are lower.
pub type Stamp = [u8; STAMP_BYTES];

/// Length of the epoch at the beginning of a stamp.
const EPOCH_BYTES: usize = 4;

/// The offset of the versionstamp in a stamp: that of the placeholder in a value that begins with [`own_stamp`].
pub const VERSIONSTAMP_OFFSET: u32 = EPOCH_BYTES as u32;

/// Digits of the commit version in a text that begins with an epoch.
const VERSION_DIGITS: usize = 20;

/// Returns the stamp of the transaction itself, whose versionstamp is the placeholder that FoundationDB replaces.
pub const fn own_stamp(epoch: u32, user_version: u16) -> Stamp {
    let [a, b, c, d] = epoch.to_be_bytes();
    let [high, low] = user_version.to_be_bytes();
    [a, b, c, d, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, high, low]
}

/// Returns the operand of SET_VERSIONSTAMPED_VALUE for a value that begins with [`own_stamp`].
pub fn stamped_value(value: &[u8]) -> Vec<u8> {
    [value, &VERSIONSTAMP_OFFSET.to_le_bytes()].concat()
}

/// Returns the position before every change of an epoch, and after those of the epochs before it.
pub const fn begin_of(epoch: u32) -> Stamp {
    let [a, b, c, d] = epoch.to_be_bytes();
    [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}

/// Returns the epoch of a stamp.
pub const fn epoch_of(stamp: &Stamp) -> u32 {
    let [a, b, c, d, ..] = *stamp;
    u32::from_be_bytes([a, b, c, d])
}

/// A position in a database's order of changes. It is an opaque text for clients.
///
/// Text: a decimal number that grows, `-`, 16 hexadecimal digits of the database's incarnation and 8 of batch order and
/// user version. The number is the commit version with at least 16 digits; after a restore it is the epoch and the
/// commit version with 20 digits. Texts of one epoch sort as they were committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq {
    stamp: Stamp,
    incarnation: u64,
}

impl Seq {
    /// Creates the sequence of a commit in a database, from the commit's stamp.
    pub fn new(incarnation: u64, stamp: Stamp) -> Self {
        Seq { stamp, incarnation }
    }

    /// Returns the sequence before every change of the incarnation.
    pub fn zero(incarnation: u64) -> Self {
        Seq { stamp: [0; STAMP_BYTES], incarnation }
    }

    pub fn from_slice(incarnation: u64, stamp: &[u8]) -> Result<Self, Error> {
        let stamp = stamp.try_into().map_err(|_| Error::Corrupt("a sequence is not 16 bytes".into()))?;
        Ok(Seq { stamp, incarnation })
    }

    pub fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// Returns the incarnation, which differs between databases of the same name.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Returns the epoch, which each restore raises.
    pub fn epoch(&self) -> u32 {
        epoch_of(&self.stamp)
    }

    /// Appends the text form.
    pub fn write(&self, out: &mut Vec<u8>) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut digits = [b'0'; VERSION_DIGITS];
        let mut at = put_digits(&mut digits, self.version());
        if self.epoch() > 0 {
            let mut epoch = [b'0'; VERSION_DIGITS];
            let begin = put_digits(&mut epoch, self.epoch().into());
            out.extend_from_slice(&epoch[begin..]);
            at = 0;
        }
        out.extend_from_slice(&digits[at.min(digits.len() - 16)..]);
        out.push(b'-');
        for byte in self.incarnation.to_be_bytes().iter().chain(&self.stamp[12..]) {
            out.extend_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }

    /// Returns the commit version. It grows within an epoch.
    pub fn version(&self) -> u64 {
        let [_, _, _, _, a, b, c, d, e, f, g, h, ..] = self.stamp;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

/// Writes the digits of a number at the end, and returns where they begin.
fn put_digits(digits: &mut [u8; VERSION_DIGITS], mut number: u64) -> usize {
    let mut at = digits.len();
    while number > 0 && at > 0 {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    at
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, _, _, _, _, _, _, _, _, _, _, _, a, b, c, d] = self.stamp;
        match self.epoch() {
            0 => write!(f, "{:016}", self.version())?,
            epoch => write!(f, "{epoch}{:020}", self.version())?,
        }
        write!(f, "-{:016x}{a:02x}{b:02x}{c:02x}{d:02x}", self.incarnation)
    }
}

impl FromStr for Seq {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let parse = || {
            let (number, rest) = text.split_once('-')?;
            let digits = number.bytes().all(|b| b.is_ascii_digit()) && rest.bytes().all(|b| b.is_ascii_hexdigit());
            if !digits || number.is_empty() || rest.len() != 24 {
                return None;
            }
            let (epoch, version) = number.split_at(number.len().saturating_sub(VERSION_DIGITS));
            let epoch = match epoch {
                "" => 0,
                // Each position has one text.
                epoch if epoch.starts_with('0') => return None,
                epoch => epoch.parse::<u32>().ok()?,
            };
            let version: u64 = version.parse().ok()?;
            let incarnation = u64::from_str_radix(&rest[..16], 16).ok()?;
            let order = u32::from_str_radix(&rest[16..], 16).ok()?;
            let mut stamp = begin_of(epoch);
            stamp[4..12].copy_from_slice(&version.to_be_bytes());
            stamp[12..].copy_from_slice(&order.to_be_bytes());
            Some(Seq { stamp, incarnation })
        };
        parse().ok_or(Refusal::InvalidSequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seq(incarnation: u64, epoch: u32, version: u64, order: u32) -> Seq {
        let mut stamp = begin_of(epoch);
        stamp[4..12].copy_from_slice(&version.to_be_bytes());
        stamp[12..].copy_from_slice(&order.to_be_bytes());
        Seq::new(incarnation, stamp)
    }

    fn number(seq: &Seq) -> u128 {
        seq.to_string().split_once('-').unwrap().0.parse().unwrap()
    }

    proptest! {
        #[test]
        fn text_round_trips_and_sorts_as_committed(
            a in (0..10_u64.pow(15), any::<u32>()), b in (0..10_u64.pow(15), any::<u32>()), incarnation: u64, epoch: u32,
        ) {
            let of = |(version, order)| seq(incarnation, epoch, version, order);
            let (a, b) = (of(a), of(b));
            prop_assert_eq!(a.to_string().cmp(&b.to_string()), a.cmp(&b));
        }

        #[test]
        fn every_position_has_one_text_and_epochs_come_first(
            epochs in [prop_oneof![Just(0), any::<u32>()], prop_oneof![Just(0), any::<u32>()]],
            versions: [u64; 2], orders: [u32; 2], incarnation: u64,
        ) {
            let [a, b] = [0, 1].map(|n| seq(incarnation, epochs[n], versions[n], orders[n]));
            prop_assert_eq!(a.to_string().parse::<Seq>().unwrap(), a);
            let mut written = Vec::new();
            a.write(&mut written);
            prop_assert_eq!(written, a.to_string().into_bytes());
            prop_assert_eq!((a.epoch(), a.version()), (epochs[0], versions[0]));
            prop_assert_eq!(a.cmp(&b), (epochs[0], versions[0], orders[0]).cmp(&(epochs[1], versions[1], orders[1])));
            // The number that clients may parse never falls.
            prop_assert!(a > b || number(&a) <= number(&b));
            prop_assert!(begin_of(epochs[0]) <= *a.stamp() && own_stamp(epochs[0], u16::MAX) >= *a.stamp());
        }

        #[test]
        fn foreign_texts_are_refused_without_a_panic(text in ".{0,60}|[0-9]{0,45}-[0-9a-f]{22,26}") {
            if let Ok(seq) = text.parse::<Seq>() {
                prop_assert_eq!(seq.to_string().parse::<Seq>().unwrap(), seq);
            }
        }
    }

    #[test]
    fn refuses() {
        let rest = "000000000000000000000000";
        let zero = format!("000000000000000000001-{rest}");
        let beyond = format!("429496729600000000000000000001-{rest}");
        let long = format!("100000000000000000000000000000001-{rest}");
        for text in ["", "0", "nonsense", "1-", "1-zz", "-000000000000000000000000", "1-00000000000000000000000é"] {
            assert!(text.parse::<Seq>().is_err(), "{text}");
        }
        for text in [zero, beyond, long] {
            assert!(text.parse::<Seq>().is_err(), "{text}");
        }
        let first = format!("100000000000000000005-{rest}").parse::<Seq>().unwrap();
        assert_eq!((first.epoch(), first.version()), (1, 5));
    }
}
