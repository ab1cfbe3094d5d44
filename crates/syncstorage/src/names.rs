//! The names of users, collections, records and batches.

use std::fmt;

/// A user's number, as the token server assigned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(pub u64);

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Collections with fixed numbers in Mozilla's servers, in the order of the numbers: `clients` has 1.
pub const KNOWN_COLLECTIONS: [&str; 13] = [
    "clients",
    "crypto",
    "forms",
    "history",
    "keys",
    "meta",
    "bookmarks",
    "prefs",
    "tabs",
    "passwords",
    "addons",
    "addresses",
    "creditcards",
];

/// A collection's name: 1 to 32 of `A-Z a-z 0-9 . _ -`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CollectionName(Box<str>);

impl CollectionName {
    /// The longest name, in bytes.
    pub const BYTES_MAX: usize = 32;

    /// Creates a name; `None` if the text is no valid name.
    pub fn new(name: &str) -> Option<CollectionName> {
        let is_of_it = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let is_name = (1..=Self::BYTES_MAX).contains(&name.len()) && name.bytes().all(is_of_it);
        is_name.then(|| CollectionName(name.into()))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the fixed number of a known collection, from 1.
    pub(crate) fn known(&self) -> Option<u64> {
        let at = KNOWN_COLLECTIONS.iter().position(|known| *known == &*self.0)?;
        Some(at as u64 + 1)
    }

    pub(crate) fn of_known(number: u64) -> Option<CollectionName> {
        let at = usize::try_from(number.checked_sub(1)?).ok()?;
        KNOWN_COLLECTIONS.get(at).map(|name| CollectionName((*name).into()))
    }
}

impl fmt::Display for CollectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A record's id: 1 to 64 printable ASCII characters, including blanks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(Box<str>);

impl RecordId {
    /// The longest id, in bytes.
    pub const BYTES_MAX: usize = 64;

    /// Creates an id; `None` if the text is no valid id.
    pub fn new(id: &str) -> Option<RecordId> {
        let is_id = (1..=Self::BYTES_MAX).contains(&id.len()) && id.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        is_id.then(|| RecordId(id.into()))
    }

    /// Returns the id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An open batch. Its text, which clients get, is 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub(crate) u64);

impl BatchId {
    /// Parses the text of a batch; `None` for a text that no client ever got.
    pub fn parse(text: &str) -> Option<BatchId> {
        let is_digits = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        u64::from_str_radix(text, 16).ok().filter(|_| is_digits).map(BatchId)
    }
}

impl fmt::Display for BatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert!(CollectionName::new("a.b-c_D9").is_some() && CollectionName::new(&"x".repeat(32)).is_some());
        for bad in ["", "a b", "a+b", "é", "a$b", &"x".repeat(33)] {
            assert!(CollectionName::new(bad).is_none(), "{bad}");
        }
        for (number, name) in (1..).zip(KNOWN_COLLECTIONS) {
            let name = CollectionName::new(name).unwrap();
            assert_eq!((name.known(), CollectionName::of_known(number)), (Some(number), Some(name.clone())));
        }
        assert_eq!(CollectionName::new("Tabs").unwrap().known(), None);
        assert_eq!((CollectionName::of_known(0), CollectionName::of_known(14)), (None, None));
    }

    #[test]
    fn ids() {
        assert!(RecordId::new("a b").is_some() && RecordId::new("~!'()*+{x}/").is_some());
        for bad in ["", "a\nb", "é", "\x7f", &"x".repeat(65)] {
            assert!(RecordId::new(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn batches() {
        let batch = BatchId(0x0123_4567_89ab_cdef);
        assert_eq!(batch.to_string(), "0123456789abcdef");
        assert_eq!(BatchId::parse("0123456789abcdef"), Some(batch));
        for bad in ["", "12345", "nonsense", "0123456789ABCDEF", "+123456789abcdef", "MTIzNDU2Nzg5MDEyMw=="] {
            assert_eq!(BatchId::parse(bad), None, "{bad}");
        }
    }
}
