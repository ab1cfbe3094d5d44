//! A revision id: `GENERATION-HASH`.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// The greatest generation accepted: larger integers are not exact in JavaScript clients.
pub const GENERATION_MAX: u64 = 1 << 53;

/// The longest hash accepted, in bytes of UTF-8. CouchDB generates 32 hexadecimal digits; replication can bring other
/// hashes.
pub const HASH_BYTES_MAX: usize = 512;

/// The hexadecimal digits of a hash that CouchDB generates.
const DIGITS: usize = 32;

/// The text is not a revision id. CouchDB answers 400 "Invalid rev format".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Invalid rev format")]
pub struct InvalidRevision;

/// The part of a revision id after the dash.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Hash {
    /// 32 hexadecimal digits, stored as 16 bytes and written in lower case.
    Md5([u8; 16]),
    /// Any other text, up to [`HASH_BYTES_MAX`] bytes; it may be empty, as in CouchDB.
    Text(Box<str>),
}

/// A revision id, such as `3-28390acbb2afb09d34e8e35d2d2211ad`.
///
/// Ids sort by generation, then by the bytes of the hash as CouchDB stores it ([`RevId::hash_bytes`]). The greatest of
/// the leaves that are equally deleted or not wins, the same on every replica. So `1-aa...` of 32 digits is above
/// `1-z`, and `1-00...` below.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RevId {
    generation: u64,
    hash: Hash,
}

impl RevId {
    /// Builds the id of an edit made by this service: `generation` and an MD5 (see `flatbed_flatten::etf`).
    pub fn new(generation: u64, md5: [u8; 16]) -> Self {
        RevId { generation, hash: Hash::Md5(md5) }
    }

    /// Builds an id from the parts of a `_revisions` member: `hash` is the text behind the dash. As in CouchDB, a hash of 32 bytes
    /// must be hexadecimal digits, except for generation 0.
    ///
    /// # Errors
    /// [`InvalidRevision`] if it is not, or the generation or the length of the hash is beyond its limit.
    pub fn from_parts(generation: u64, hash: &str) -> Result<Self, InvalidRevision> {
        if generation > GENERATION_MAX || hash.len() > HASH_BYTES_MAX {
            return Err(InvalidRevision);
        }
        let is_odd = hash.len() == DIGITS && generation > 0;
        match parse_hash(hash) {
            Hash::Text(_) if is_odd => Err(InvalidRevision),
            hash => Ok(RevId { generation, hash }),
        }
    }

    /// The generation: 1 for a first edit, and one more for each edit after it.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The hash part.
    pub fn hash(&self) -> &Hash {
        &self.hash
    }

    /// The hash as the bytes that CouchDB hashes into a child's id: 16 raw bytes, or the text's own.
    pub fn hash_bytes(&self) -> &[u8] {
        match &self.hash {
            Hash::Md5(bytes) => bytes,
            Hash::Text(text) => text.as_bytes(),
        }
    }

    /// The text after the dash.
    pub fn hash_text(&self) -> String {
        HashText(&self.hash).to_string()
    }

    /// Appends the id's text to `out`.
    #[expect(clippy::indexing_slicing, reason = "a u64 has at most 20 digits")]
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut digits = [0_u8; 20];
        let mut at = digits.len();
        let mut rest = self.generation;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        out.extend_from_slice(&digits[at..]);
        out.push(b'-');
        match &self.hash {
            Hash::Md5(bytes) => out.extend_from_slice(&hex(bytes)),
            Hash::Text(text) => out.extend_from_slice(text.as_bytes()),
        }
    }
}

struct HashText<'a>(&'a Hash);

impl fmt::Display for HashText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Hash::Md5(bytes) => {
                let digits = hex(bytes);
                f.write_str(std::str::from_utf8(&digits).map_err(|_| fmt::Error)?)
            }
            Hash::Text(text) => f.write_str(text),
        }
    }
}

impl fmt::Display for RevId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.generation, HashText(&self.hash))
    }
}

impl FromStr for RevId {
    type Err = InvalidRevision;

    fn from_str(text: &str) -> Result<Self, InvalidRevision> {
        let (generation, hash) = split(text)?;
        RevId::from_parts(generation, hash)
    }
}

/// Splits an id into its generation and the text of its hash.
fn split(text: &str) -> Result<(u64, &str), InvalidRevision> {
    let (generation, hash) = text.split_once('-').ok_or(InvalidRevision)?;
    if generation.is_empty() || generation.len() > 16 || !generation.bytes().all(|b| b.is_ascii_digit()) {
        return Err(InvalidRevision);
    }
    Ok((generation.parse().map_err(|_| InvalidRevision)?, hash))
}

impl Ord for RevId {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_bytes = || self.hash_bytes().cmp(other.hash_bytes());
        // A text of 16 bytes may equal the bytes of 32 digits. CouchDB treats both as one revision; here they are two.
        let is_text = |rev: &RevId| matches!(rev.hash, Hash::Text(_));
        self.generation.cmp(&other.generation).then_with(by_bytes).then_with(|| is_text(self).cmp(&is_text(other)))
    }
}

impl PartialOrd for RevId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn parse_hash(text: &str) -> Hash {
    let digits = text.as_bytes();
    let mut bytes = [0_u8; 16];
    if digits.len() == DIGITS {
        let whole =
            bytes.iter_mut().zip(digits.as_chunks().0).all(|(byte, [high, low])| match (nibble(*high), nibble(*low)) {
                (Some(high), Some(low)) => {
                    *byte = high << 4 | low;
                    true
                }
                _ => false,
            });
        if whole {
            return Hash::Md5(bytes);
        }
    }
    Hash::Text(text.into())
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[expect(clippy::indexing_slicing, reason = "half a byte is below 16")]
fn hex(bytes: &[u8; 16]) -> [u8; 32] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut out = [0_u8; 32];
    for ([high, low], byte) in out.as_chunks_mut().0.iter_mut().zip(bytes) {
        *high = DIGITS[usize::from(byte >> 4)];
        *low = DIGITS[usize::from(byte & 15)];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_and_writes_what_couchdb_writes() {
        for text in ["1-967a00dff5e02add41819138abb3284d", "12-abc", "3-x-y", "9007199254740992-é", "0-q", "1-"] {
            let rev: RevId = text.parse().unwrap();
            assert_eq!(rev.to_string(), text);
            let mut out = Vec::new();
            rev.write(&mut out);
            assert_eq!(out, text.as_bytes());
        }
        let upper: RevId = "1-967A00DFF5E02ADD41819138ABB3284D".parse().unwrap();
        assert_eq!(upper.to_string(), "1-967a00dff5e02add41819138abb3284d");
        assert!(RevId::from_parts(1, &"x".repeat(HASH_BYTES_MAX)).is_ok());
    }

    #[test]
    fn digits_are_kept_as_their_bytes() {
        let md5 = [0x96, 0x7a, 0, 0xdf, 0xf5, 0xe0, 0x2a, 0xdd, 0x41, 0x81, 0x91, 0x38, 0xab, 0xb3, 0x28, 0x4d];
        for text in ["1-967a00dff5e02add41819138abb3284d", "1-967A00DFF5E02ADD41819138ABB3284D"] {
            let rev: RevId = text.parse().unwrap();
            assert_eq!((rev.hash(), rev.hash_bytes()), (&Hash::Md5(md5), md5.as_slice()));
            assert_eq!(rev, RevId::new(1, md5));
        }
        let text: RevId = "1-967a".parse().unwrap();
        assert_eq!((text.hash(), text.hash_bytes()), (&Hash::Text("967a".into()), b"967a".as_slice()));
    }

    #[test]
    fn a_hash_of_32_bytes_is_hexadecimal() {
        for hash in ["g".repeat(32), format!("{}G", "a".repeat(31)), "é".repeat(16), " ".repeat(32)] {
            let text = format!("1-{hash}");
            assert_eq!(text.parse::<RevId>(), Err(InvalidRevision), "{text}");
            assert_eq!(RevId::from_parts(1, &hash), Err(InvalidRevision), "{text}");
            assert!(RevId::from_parts(0, &hash).is_ok());
        }
        for length in [31, 33] {
            assert!(RevId::from_parts(1, &"g".repeat(length)).is_ok());
        }
        assert!(RevId::from_parts(1, &"aF".repeat(16)).is_ok());
    }

    /// CouchDB's order compares the 16 bytes of 32 digits with the bytes of any other text.
    #[test]
    fn order_is_that_of_couchdbs_bytes() {
        let of = |digit: &str| format!("1-{}", digit.repeat(32));
        let texts = [
            "0-zz".to_owned(),
            "1-".to_owned(),
            of("0"),
            of("3"),
            "1-9".to_owned(),
            // `a` is 0x61.
            "1-a".to_owned(),
            "1-aaaaaaaaaaaaaaa".to_owned(),
            format!("1-{}", "61".repeat(16)),
            "1-aaaaaaaaaaaaaaaa".to_owned(),
            "1-aaaaaaaaaaaaaaaaa".to_owned(),
            "1-f".to_owned(),
            "1-z".to_owned(),
            of("a"),
            "1-é".to_owned(),
            of("f"),
            "2-".to_owned(),
        ];
        let revs: Vec<RevId> = texts.iter().map(|text| text.parse().unwrap()).collect();
        for (at, rev) in revs.iter().enumerate() {
            for (other_at, other) in revs.iter().enumerate() {
                assert_eq!(rev.cmp(other), at.cmp(&other_at), "{rev} {other}");
                assert_eq!(rev.partial_cmp(other), Some(at.cmp(&other_at)));
                assert_eq!(rev == other, at == other_at);
            }
        }
    }

    #[test]
    fn refuses_what_is_no_revision() {
        let long = format!("1-{}", "x".repeat(HASH_BYTES_MAX + 1));
        for text in [
            "",
            "1",
            "-a",
            "a-b",
            "+1-a",
            "-1-a",
            "9007199254740993-a",
            "99999999999999999999-a",
            "00000000000000001-a",
            &long,
        ] {
            assert_eq!(text.parse::<RevId>(), Err(InvalidRevision), "{text}");
        }
    }

    fn any_rev() -> impl Strategy<Value = RevId> {
        (0..5_u64, prop_oneof!["[0-9a-f]{32}", "[0-9a-f]{2}", "[ -~]{1,40}"])
            .prop_filter_map("a revision", |(generation, hash)| RevId::from_parts(generation, &hash).ok())
    }

    proptest! {
        #[test]
        fn order_is_by_generation_and_bytes(a in any_rev(), b in any_rev()) {
            let by_bytes = a.generation().cmp(&b.generation()).then_with(|| a.hash_bytes().cmp(b.hash_bytes()));
            if a.hash_bytes() != b.hash_bytes() {
                prop_assert_eq!(a.cmp(&b), by_bytes);
            }
            prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
            prop_assert_eq!(a.cmp(&b).is_eq(), a == b);
            prop_assert_eq!(a.to_string().parse::<RevId>(), Ok(a));
        }
    }
}
