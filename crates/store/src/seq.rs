//! Sequences: the positions of changes in the commit order.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Refusal};

/// Length of a versionstamp with its user version, in bytes.
pub const STAMP_BYTES: usize = 12;

/// A position in a database's commit order. It is an opaque text for clients.
///
/// Text: 16 decimal digits (the commit version, so a number that grows), `-`, 16 hexadecimal digits of the database's
/// incarnation and 8 of batch order and user version. Texts of one database sort as they were committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq {
    stamp: [u8; STAMP_BYTES],
    incarnation: u64,
}

impl Seq {
    /// Creates the sequence of a commit in a database, from the commit's versionstamp.
    pub fn new(incarnation: u64, stamp: [u8; STAMP_BYTES]) -> Self {
        Seq { stamp, incarnation }
    }

    /// Returns the sequence before every change of the incarnation.
    pub fn zero(incarnation: u64) -> Self {
        Seq { stamp: [0; STAMP_BYTES], incarnation }
    }

    pub fn from_slice(incarnation: u64, stamp: &[u8]) -> Result<Self, Error> {
        let stamp = stamp.try_into().map_err(|_| Error::Corrupt("a sequence is not 12 bytes".into()))?;
        Ok(Seq { stamp, incarnation })
    }

    pub fn stamp(&self) -> &[u8; STAMP_BYTES] {
        &self.stamp
    }

    /// Returns the incarnation, which differs between databases of the same name.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Appends the text form.
    pub fn write(&self, out: &mut Vec<u8>) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut number = self.number();
        let mut digits = [b'0'; 20];
        let mut at = digits.len();
        while number > 0 {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
        }
        out.extend_from_slice(&digits[at.min(digits.len() - 16)..]);
        out.push(b'-');
        for byte in self.incarnation.to_be_bytes().iter().chain(&self.stamp[8..]) {
            out.extend_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }

    /// Returns the commit version, with which the text begins.
    pub fn number(&self) -> u64 {
        let mut version = [0_u8; 8];
        version.copy_from_slice(&self.stamp[..8]);
        u64::from_be_bytes(version)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.stamp;
        write!(f, "{:016}-{:016x}{:02x}{:02x}{:02x}{:02x}", self.number(), self.incarnation, s[8], s[9], s[10], s[11])
    }
}

impl FromStr for Seq {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let parse = || {
            let (number, rest) = text.split_once('-')?;
            let digits = number.bytes().all(|b| b.is_ascii_digit()) && rest.bytes().all(|b| b.is_ascii_hexdigit());
            if !digits || number.is_empty() || number.len() > 20 || rest.len() != 24 {
                return None;
            }
            let version: u64 = number.parse().ok()?;
            let incarnation = u64::from_str_radix(&rest[..16], 16).ok()?;
            let order = u32::from_str_radix(&rest[16..], 16).ok()?;
            let mut stamp = [0_u8; STAMP_BYTES];
            stamp[..8].copy_from_slice(&version.to_be_bytes());
            stamp[8..].copy_from_slice(&order.to_be_bytes());
            Some(Seq { stamp, incarnation })
        };
        parse().ok_or(Refusal::InvalidSequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn text_round_trips_and_sorts_as_committed(
            a in (0..10_u64.pow(15), any::<u32>()), b in (0..10_u64.pow(15), any::<u32>()), incarnation: u64
        ) {
            let seq = |(version, order): (u64, u32)| {
                let mut stamp = [0; STAMP_BYTES];
                stamp[..8].copy_from_slice(&version.to_be_bytes());
                stamp[8..].copy_from_slice(&order.to_be_bytes());
                Seq::new(incarnation, stamp)
            };
            let (a, b) = (seq(a), seq(b));
            prop_assert_eq!(a.to_string().parse::<Seq>().unwrap(), a);
            let mut written = Vec::new();
            a.write(&mut written);
            prop_assert_eq!(written, a.to_string().into_bytes());
            prop_assert_eq!(a.to_string().cmp(&b.to_string()), a.cmp(&b));
        }

        #[test]
        fn foreign_texts_are_refused_without_a_panic(text in ".{0,60}") {
            let _ = text.parse::<Seq>();
        }
    }

    #[test]
    fn refuses() {
        for text in ["", "0", "nonsense", "1-", "1-zz", "-000000000000000000000000", "1-00000000000000000000000é"] {
            assert!(text.parse::<Seq>().is_err(), "{text}");
        }
    }
}
